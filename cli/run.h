/* The launcher's state, shared by its parts: run.c sets up and concludes, run_loop.c waits and
 * decides, run_say.c talks. */
#ifndef RF_CLI_RUN_H
#define RF_CLI_RUN_H

#include "run_env.h"
#include "run_events.h"
#include "run_folder.h"
#include "run_memory.h"
#include "run_options.h"
#include "run_output.h"
#include "run_worker.h"

#include <ringfold/store.h>
#include <stdint.h>

/* How long the others get to end by themselves after a failure, beyond --detect; how long a killed
 * process may take. */
enum { SETTLE_MORE_MS = 2000, KILLED_MS = 5000 };

/* When workers were started again, within the last hour. */
struct run_budget {
    int64_t used_ns[RUN_RESTARTS_LIMIT];
    int used;
};

enum run_phase { PHASE_RUNNING, PHASE_SETTLING, PHASE_ENDING, PHASE_KILLING };

struct run {
    struct run_options options;
    struct run_folder folder;
    struct run_key key;
    struct run_guard guard;
    struct run_launch launch;
    struct run_env env;
    struct run_memory memory_before;
    struct rf_store_server *store;
    char store_uri[256];
    char own_path[PATH_MAX];
    struct run_worker *workers;
    struct sink sinks[2]; /* stdout, stderr */
    struct run_news news;
    struct run_budget budget;
    pid_t publisher; /* writes what those who join have to know; 0: none */
    bool has_ended_below_min;
    int left_below_min; /* workers that were left then */
    int signal_fd;
    enum run_phase phase;
    int64_t deadline_ns; /* of every phase but RUNNING */
    int64_t started_ns;
    int stop_requests;
    int ends_seen;
    bool output_abandoned; /* asked to stop again while only output was left */
    struct rf_error error; /* of the launcher's own; code 0: none */
    int exec_status;       /* 126 or 127, where the program cannot be executed */
};

int64_t run_now_ns(void);

/* A line of the launcher's own on stderr, unless it is to be quiet or speaks JSON. */
void run_say(struct run *run, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* What happened to the job, with the time of day: "14:02:11 ! worker 5 lost". */
void run_tell(struct run *run, char mark, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* A line of JSON, as it is. */
void run_say_json(struct run *run, const char *line, size_t bytes);

/* Makes the launcher's next words start on a line of their own. */
void run_end_line(struct run *run);

/* Into events.jsonl; with --json on the screen too. `event` is taken over. */
void run_note_event(struct run *run, const char *name, json_t *event);

/* "" for one, "s" for more. */
const char *run_plural(int count);

/* Starts the worker, for the first time or again. */
RF_MUST_CHECK int run_start_worker(struct run *run, struct run_worker *worker,
                                   struct rf_error *err);

/* Signals that go with the phase are sent, and its deadline is set. Nobody is started again but in
 * PHASE_RUNNING. */
void run_enter_phase(struct run *run, enum run_phase phase, int64_t now_ns, int64_t wait_ms);

/* Until all workers have ended and their output is written. */
void run_loop(struct run *run);

/* --- run_restart.c --- */

/* A worker has gone wrong while the job runs: whether the job goes on, with or without it. Also
 * decides whether it is started again. */
bool run_goes_on_without(struct run *run, struct run_worker *worker, int64_t now_ns);

/* The worker is DONE: sets when it is started again, if it is to be. */
void run_schedule_restart(struct run *run, struct run_worker *worker, int64_t now_ns);

/* Starts those whose time has come; forgets all of them where there is no job to come back to. */
void run_restart_due(struct run *run, int64_t now_ns);
void run_forget_restarts(struct run *run);
bool run_awaits_restart(const struct run_worker *worker);

/* --- run_join.c --- */

/* --join: the job's sizes, and ids for our workers, from its store. RF_ENOTFOUND and others, with
 * the address. */
RF_MUST_CHECK int run_join(struct run *run, struct rf_error *err);

/* Lets others join: writes the job's sizes and the next id into the store, from a process of its
 * own, because this one may be the store. */
void run_publish_start(struct run *run);
void run_publish_ended(struct run *run);
void run_publish_stop(struct run *run);

#endif
