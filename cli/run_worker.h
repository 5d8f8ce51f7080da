/* Worker processes: started in their own process groups, watched, and never left behind.
 *
 * Each worker dies with the launcher by its parent-death signal. For the processes that it has
 * started itself there is the guard: a process that waits for the launcher's end of a pipe to close
 * and then kills every group it was told of. */
#ifndef RF_CLI_RUN_WORKER_H
#define RF_CLI_RUN_WORKER_H

#include "run_events.h"
#include "run_output.h"

#include <ringfold/error.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/types.h>

struct run_guard {
    pid_t pid;
    int fd;
};

RF_MUST_CHECK int run_guard_start(struct run_guard *guard, struct rf_error *err);

/* Ends the guard; groups that it still knows of are killed. */
void run_guard_stop(struct run_guard *guard);

enum run_worker_state {
    WORKER_NONE, /* not started */
    WORKER_RUNNING,
    WORKER_DRAINING, /* ended, not yet waited for (so its group keeps its number); output may come
                      */
    WORKER_KILLED,   /* its group was killed; the rest of the output is read */
    WORKER_DONE
};

struct run_worker {
    enum run_worker_state state;
    int id;       /* its name in the job, over all its starts */
    int local;    /* its place among those of this host */
    int restarts; /* how often it was started again */
    pid_t pid;
    int64_t started_ns, ended_ns;
    int64_t drain_deadline_ns;
    int signal;  /* that ended it, or 0 */
    int status;  /* its exit status where signal is 0 */
    int order;   /* 1, 2, …: in which the ends were seen */
    bool told;   /* TERM or KILL was sent to it before its end was seen */
    bool frozen; /* a signal had stopped it when the others failed */
    struct stream out, err;
    struct run_pipe events;

    /* Of an elastic job. */
    bool has_committed;    /* since it was started: it holds the job's state */
    bool is_outlived;      /* the others run without it: its end fails nobody */
    char lost_by[48];      /* "ended by SIGKILL": its end that was not told yet */
    bool told_lost;        /* since it was a member last */
    bool wants_restart;    /* once it is DONE; until then it has no time yet */
    int64_t restart_at_ns; /* 0: not waited for */
    int64_t last_restart_ns;
    int quick_restarts; /* one soon after the other */
};

/* What all workers have in common. */
struct run_launch {
    const char *path; /* what is executed, looked up in PATH where it has no slash */
    char **argv;
    struct run_guard *guard;
    sigset_t signals;         /* the mask to give back */
    struct rlimit open_files; /* likewise */
};

/* Starts a worker whose streams are set up but for their descriptors. It inherits `key_fd` and,
 * where it is not negative, `event_fd`. `cores` may be NULL. Where the program cannot be executed,
 * *exec_errno says why and the result is RF_EWORKER. */
RF_MUST_CHECK int run_worker_start(struct run_worker *worker, const struct run_launch *launch,
                                   char **environment, int key_fd, int event_fd,
                                   const cpu_set_t *cores, int *exec_errno, struct rf_error *err);

/* Whether it has ended since the last look; then signal and status are set, and it is DRAINING. */
bool run_worker_ended(struct run_worker *worker);

/* Whether it runs, but a signal has stopped it. */
bool run_worker_stands_still(const struct run_worker *worker);

/* To the whole group, if there is one. */
void run_worker_signal(struct run_worker *worker, int signal);

/* Waits for the ended worker's process: its number is free again afterwards. */
void run_worker_reap(struct run_worker *worker, const struct run_guard *guard);

/* Ended with 0, or with 75, stopped on request. */
bool run_worker_ended_well(const struct run_worker *worker);

/* "SIGKILL", or "signal 77" for one without a name. */
void run_signal_name(char out[16], int signal);

/* "ended by SIGKILL", "ended with exit status 3". */
void run_worker_end_text(const struct run_worker *worker, char *out, size_t room);

/* As shells have it: the status, or 128 and the signal. */
int run_worker_exit_code(const struct run_worker *worker);

#endif
