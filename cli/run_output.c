/* Sinks and streams: from a worker's pipe into its log and, line by line, to the screen. */
#include "run_output.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SINK_WRITE = 4096 /* a pipe that polls writable takes as much without waiting */ };

int sink_open(struct sink *sink, int fd, bool colour) {
    *sink = (struct sink){.fd = fd, .terminal = isatty(fd), .colour = colour};
    sink->bytes = malloc(SINK_BYTES);
    return sink->bytes ? 0 : ENOMEM;
}

void sink_close(struct sink *sink) {
    free(sink->bytes);
    sink->bytes = NULL;
}

size_t sink_pending(const struct sink *sink) {
    return sink->broken ? 0 : sink->end - sink->start;
}

bool sink_has_room(const struct sink *sink) {
    return SINK_BYTES - (sink->end - sink->start) >= SINK_ROOM;
}

void sink_put(struct sink *sink, const char *bytes, size_t count) {
    if (sink->broken || !count) {
        return;
    }
    if (SINK_BYTES - sink->end < count) {
        memmove(sink->bytes, sink->bytes + sink->start, sink->end - sink->start);
        sink->end -= sink->start;
        sink->start = 0;
    }
    if (count > SINK_BYTES - sink->end) {
        count = SINK_BYTES -
                sink->end; /* readers ask for room before, so only messages can come here */
    }
    memcpy(sink->bytes + sink->end, bytes, count);
    sink->end += count;
    if (count) {
        sink->midline = sink->bytes[sink->end - 1] != '\n';
    }
}

void sink_flush(struct sink *sink) {
    while (sink_pending(sink)) {
        struct pollfd ready = {.fd = sink->fd, .events = POLLOUT};
        size_t count = sink->end - sink->start;
        if (poll(&ready, 1, 0) < 1) {
            return;
        }
        ssize_t written =
            write(sink->fd, sink->bytes + sink->start, count < SINK_WRITE ? count : SINK_WRITE);
        if (written > 0) {
            sink->start += (size_t)written;
        } else if (written < 0 && errno != EINTR) {
            sink->broken = errno != EAGAIN;
            return;
        }
    }
    sink->start = sink->end = 0;
}

static void put_prefix(const struct stream *stream) {
    char prefix[32];

    if (!stream->rank_width) {
        return;
    }
    const char *bar = stream->continued ? "\u250a" : "\u2502";
    int length =
        snprintf(prefix, sizeof prefix, stream->sink->colour ? "\033[2m%*d%s\033[0m" : "%*d%s",
                 stream->rank_width, stream->rank, bar);
    sink_put(stream->sink, prefix, (size_t)length);
}

/* Shows the line in hand. A progress bar's earlier states, each ended by a carriage return, are
 * left out. */
static void show_line(struct stream *stream, bool whole) {
    size_t end = stream->line_bytes;
    size_t start = 0;

    while (end && stream->line[end - 1] == '\r') {
        end--;
    }
    for (size_t i = 0; i < end; i++) {
        start = stream->line[i] == '\r' ? i + 1 : start;
    }
    put_prefix(stream);
    sink_put(stream->sink, stream->line + start, end - start);
    sink_put(stream->sink, "\n", 1);
    stream->line_bytes = 0;
    stream->continued = !whole;
}

static void show(struct stream *stream, const char *bytes, size_t count) {
    if (stream->raw) {
        sink_put(stream->sink, bytes, count);
        return;
    }
    while (count) {
        const char *newline = memchr(bytes, '\n', count);
        size_t part = newline ? (size_t)(newline - bytes) : count;
        size_t room = STREAM_LINE - stream->line_bytes;
        if (part > room) {
            part = room;
            newline = NULL;
        }
        memcpy(stream->line + stream->line_bytes, bytes, part);
        stream->line_bytes += part;
        bytes += part;
        count -= part;
        if (newline) {
            bytes++;
            count--;
            show_line(stream, true);
        } else if (stream->line_bytes == STREAM_LINE) {
            show_line(stream, false);
        }
    }
}

static void write_log(struct stream *stream, const char *bytes, size_t count) {
    while (count && stream->log_fd >= 0) {
        ssize_t written = write(stream->log_fd, bytes, count);
        if (written > 0) {
            bytes += written;
            count -= (size_t)written;
        } else if (written < 0 && errno != EINTR) {
            stream->log_errno = errno;
            close(stream->log_fd);
            stream->log_fd = -1;
        }
    }
}

static void keep_tail(struct stream *stream, const char *bytes, size_t count) {
    for (size_t i = count > STREAM_TAIL ? count - STREAM_TAIL : 0; i < count; i++) {
        stream->tail[(stream->total + i) % STREAM_TAIL] = bytes[i];
    }
    stream->total += count;
}

bool stream_read(struct stream *stream) {
    char bytes[STREAM_READ];

    ssize_t count = read(stream->fd, bytes, sizeof bytes);
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) {
        return true;
    }
    if (count <= 0) {
        stream_close(stream);
        return false;
    }
    write_log(stream, bytes, (size_t)count);
    keep_tail(stream, bytes, (size_t)count);
    if (stream->shown) {
        show(stream, bytes, (size_t)count);
    }
    return true;
}

void stream_close(struct stream *stream) {
    if (stream->shown && stream->line_bytes) {
        show_line(stream, true);
    }
    if (stream->fd >= 0) {
        close(stream->fd);
        stream->fd = -1;
    }
    if (stream->log_fd >= 0 && close(stream->log_fd)) {
        stream->log_errno = errno;
    }
    stream->log_fd = -1;
}

size_t stream_tail(const struct stream *stream, char out[STREAM_TAIL]) {
    size_t count = stream->total < STREAM_TAIL ? (size_t)stream->total : STREAM_TAIL;

    for (size_t i = 0; i < count; i++) {
        out[i] = stream->tail[(stream->total - count + i) % STREAM_TAIL];
    }
    if (stream->total > count) {
        const char *newline = memchr(out, '\n', count);
        if (newline && newline + 1 < out + count) {
            size_t cut = (size_t)(newline + 1 - out);
            memmove(out, out + cut, count - cut);
            count -= cut;
        }
    }
    return count;
}
