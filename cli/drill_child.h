/* Processes that a rehearsal starts: each in a process group of its own, and none of them outlives
 * it. */
#ifndef RF_CLI_DRILL_CHILD_H
#define RF_CLI_DRILL_CHILD_H

#include <ringfold/error.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/types.h>

struct drill_child {
    pid_t pid;  /* 0: none */
    int status; /* as shells have it, once it has ended */
    bool ended;
};

/* How to start one. */
struct drill_start {
    const char *path; /* looked up in PATH where it has no slash */
    char **argv;
    const char *out_path, *err_path; /* where its output is appended */
    int *out_pipe;                   /* else: where its standard output can be read */
    sigset_t signals;                /* its mask */
};

RF_MUST_CHECK int drill_child_start(struct drill_child *child, const struct drill_start *start,
                                    struct rf_error *err);

/* Runs still; where it has ended since the last look, the status is set. */
bool drill_child_runs(struct drill_child *child);

/* To the process itself: what it has started is its own business. */
void drill_child_signal(const struct drill_child *child, int signal);

/* Kills it and its group, and waits for the process. */
void drill_child_kill(struct drill_child *child);

/* To the process group that the worker leads; false, and nothing is done, where the process is no
 * child of the launcher any more. */
bool drill_signal_worker(pid_t pid, const struct drill_child *launcher, int signal);

#endif
