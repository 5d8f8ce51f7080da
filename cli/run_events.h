/* What the workers of an elastic job tell: one line of JSON for each event, read from a pipe for
 * each worker, at all times, so that none is held up by a screen that stands still.
 *
 * Lines come from other programs: they are bounded, and what is not an event is counted and
 * dropped. */
#ifndef RF_CLI_RUN_EVENTS_H
#define RF_CLI_RUN_EVENTS_H

#include <ringfold/error.h>
#include <ringfold/limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { RUN_EVENT_LINE = 4096, RUN_EVENT_TEXT = 160 };

/* The launcher's end. */
struct run_pipe {
    int fd;           /* -1: there is none, or its end was read */
    bool is_skipping; /* the rest of a line that is too long */
    size_t bytes;
    char line[RUN_EVENT_LINE];
};

/* Opens it, non-blocking at both ends; *writer is the worker's. RF_EIO. */
RF_MUST_CHECK int run_pipe_open(struct run_pipe *pipe, int *writer, struct rf_error *err);
void run_pipe_close(struct run_pipe *pipe);

/* Calls `take` for each whole line that is there, with its end; `line` is NULL for one that was too
 * long. Closes the pipe at its end. */
typedef void run_pipe_take_fn(void *context, const char *line, size_t bytes);
void run_pipe_read(struct run_pipe *pipe, run_pipe_take_fn *take, void *context);

/* What the launcher knows of the job from its workers' events. */
struct run_news {
    bool has_formed, has_committed; /* any worker, ever */
    uint64_t step;                  /* training steps committed */
    uint64_t generation;            /* the newest that was told of, by its rank 0 */
    int members[RF_MAX_RANKS], member_count;

    /* Why the generation before ended. */
    uint64_t revoked;
    int revoked_peer;
    char revoked_text[RUN_EVENT_TEXT];

    bool is_pause_told;     /* since a generation was formed */
    int failed_checkpoints; /* since the last that was written; the first is told */
    bool has_checkpoint;    /* the job could start again from one */
    uint64_t returned;      /* the generation that took its state from a checkpoint last */
    int64_t last_slow, last_diverged; /* unit and peer, so that each is told once */
    uint64_t bad_lines;
};

struct run;
struct run_worker;

/* Reads what the worker has told so far, keeps it, and says what a person should know. */
void run_events_read(struct run *run, struct run_worker *worker);

/* Members of the job that are none of ours. */
int run_events_remote_members(const struct run *run);

#endif
