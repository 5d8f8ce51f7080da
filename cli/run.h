/* The launcher's state, shared by its parts: run.c sets up and concludes, run_loop.c waits and
 * decides, run_say.c talks. */
#ifndef RF_CLI_RUN_H
#define RF_CLI_RUN_H

#include "run_env.h"
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

/* Makes the launcher's next words start on a line of their own. */
void run_end_line(struct run *run);

/* Into events.jsonl; with --json on the screen too. `event` is taken over. */
void run_note_event(struct run *run, const char *name, json_t *event);

/* "" for one, "s" for more. */
const char *run_plural(int count);

/* Signals that go with the phase are sent, and its deadline is set. */
void run_enter_phase(struct run *run, enum run_phase phase, int64_t now_ns, int64_t wait_ms);

/* Until all workers have ended and their output is written. */
void run_loop(struct run *run);

#endif
