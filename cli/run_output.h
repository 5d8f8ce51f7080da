/* What the workers write: every byte into their logs, whole lines on the screen.
 *
 * Two sinks (the launcher's stdout and stderr) hold what could not be written yet, so that a slow
 * terminal or pager never keeps the launcher from its other work: when a sink is full, the workers'
 * pipes are simply not read. */
#ifndef RF_CLI_RUN_OUTPUT_H
#define RF_CLI_RUN_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    SINK_BYTES = 1 << 20,
    SINK_ROOM = 1 << 19, /* what one read of a stream may need, lines of one byte included */
    STREAM_READ = 1 << 14,
    STREAM_LINE = 1 << 13, /* longer lines are shown in pieces */
    STREAM_TAIL = 1 << 12  /* kept for the error report */
};

struct sink {
    int fd;
    bool broken;  /* its reader is gone: what comes is dropped (the logs have it) */
    bool midline; /* the last byte put in was not the end of a line */
    bool terminal, colour;
    size_t start, end;
    char *bytes;
};

int sink_open(struct sink *sink, int fd, bool colour);
void sink_close(struct sink *sink);
void sink_put(struct sink *sink, const char *bytes, size_t count);

/* Writes what can be written without waiting. */
void sink_flush(struct sink *sink);
size_t sink_pending(const struct sink *sink);
bool sink_has_room(const struct sink *sink);

/* One of a worker's two pipes. */
struct stream {
    int fd;        /* -1 once its end was read */
    int log_fd;    /* -1: not logged */
    int log_errno; /* why the log is not complete */
    struct sink *sink;
    bool shown;
    bool raw;             /* the only worker's: passed on as it comes */
    int rank, rank_width; /* of the prefix; width 0: none */
    bool continued;       /* the line in hand has had a piece shown */
    uint64_t total;
    size_t line_bytes;
    char line[STREAM_LINE];
    char tail[STREAM_TAIL]; /* a ring: byte i of the output is at i % STREAM_TAIL */
};

/* Reads once. False when nothing more can come: the end was reached, and fd is closed. */
bool stream_read(struct stream *stream);

/* Gives up what may still come; an unfinished line is shown. */
void stream_close(struct stream *stream);

/* The last bytes into `out`, from the begin of a line where possible; returns their number. */
size_t stream_tail(const struct stream *stream, char out[STREAM_TAIL]);

#endif
