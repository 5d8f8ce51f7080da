/* The settings of `ringfold run`: flag before RINGFOLD_* variable before default, and where each
 * came from.
 *
 * Every setting is kept as text with its source, for --explain and run.json, and once more as the
 * value it stands for. */
#ifndef RF_CLI_RUN_OPTIONS_H
#define RF_CLI_RUN_OPTIONS_H

#include <ringfold/limits.h>
#include <ringfold/types.h>
#include <stdbool.h>

/* X(NAME, flag, short flag or 0, default, argument in the help or NULL for a switch, group in the
 * help, help). The variable is RINGFOLD_NAME. */
#define RUN_SETTING_LIST(X)                                                                        \
    X(WORKERS, "workers", 'n', "1", "N", 1, "Start N workers (also: -np N), or MIN:MAX")           \
    X(THREADS, "threads", 0, "auto", "N", 1, "OMP_NUM_THREADS of each (auto: cores / workers)")    \
    X(BIND, "bind", 0, "auto", "TO", 1, "Bind each worker to its cores: auto, none, core")         \
    X(STORE, "store", 0, "", "URI", 2, "Meet at tcp://HOST:PORT instead of hosting a store")       \
    X(STORE_BIND, "store-bind", 0, "127.0.0.1:0", "HOST:PORT", 2,                                  \
      "Where the hosted store listens")                                                            \
    X(JOIN, "join", 0, "", "HOST:PORT", 2, "Add the workers to the running job whose store it is") \
    X(JOB, "job", 0, "", "NAME", 2, "The job's name (default: the program's, and random)")         \
    X(KEY_FILE, "key-file", 0, "", "FILE", 2, "Take the job's key from FILE (default: random)")    \
    X(TRANSPORT, "transport", 0, "auto", "NAME", 2, "auto, shm or tcp")                            \
    X(STREAMS, "streams", 0, "1", "N", 2, "TCP connections between two workers of two hosts (1)")  \
    X(ALGORITHM, "algorithm", 0, "auto", "NAME", 2, "Of the collectives: auto, ring, direct, ...") \
    X(DETECT, "detect", 0, "3s", "TIME", 3, "Take a silent worker for lost (default 3s)")          \
    X(START_TIMEOUT, "start-timeout", 0, "5m", "TIME", 3, "Wait for all workers (default 5m)")     \
    X(GRACE, "grace", 0, "30s", "TIME", 3, "What a worker gets to save itself (default 30s)")      \
    X(MAX_RESTARTS, "max-restarts", 0, "3", "N", 3, "Start lost workers again, N times an hour")   \
    X(SLOW_EVICT, "slow-evict", 0, "10", "N", 3, "Put out who is N times slower (10; 0: nobody)")  \
    X(SLOW_WINDOW, "slow-window", 0, "2", "N", 3, "... in N steps one after the other (2)")        \
    X(COOL_DOWN, "cool-down", 0, "30s", "TIME", 3, "How long a slow worker stays out (30s)")       \
    X(RUN_DIR, "run-dir", 0, "", "DIR", 4, "The run folder (default runs/NAME-TIME)")              \
    X(SHOW, "show", 0, "all", "RANKS", 4, "Whose output is shown: all, none, 0,3-5")               \
    X(PREFIX, "prefix", 0, "auto", "WHEN", 4, "Put the rank before each line: auto, none")         \
    X(QUIET, "quiet", 'q', "no", NULL, 4, "Only errors and the workers' own output")               \
    X(VERBOSE, "verbose", 'v', "no", NULL, 4, "Also timeouts, and each worker's start and end")    \
    X(JSON, "json", 0, "no", NULL, 4, "The launcher's own messages as JSON, on stderr")            \
    X(COMMITS, "commits", 0, "no", NULL, 4, "Keep each worker's commits in commits.jsonl")

enum run_setting {
#define RF_X(NAME, flag, key, standard, argument, group, help) RUN_##NAME,
    RUN_SETTING_LIST(RF_X)
#undef RF_X
        RUN_SETTING_COUNT
};

enum run_bind { RUN_BIND_NONE, RUN_BIND_CORE };

enum { RUN_MAX_EXPORTS = 64, RUN_MAX_NOTES = 24, RUN_NAME_MAX = 40, RUN_RESTARTS_LIMIT = 100000 };

struct run_value {
    const char *text;   /* borrowed from argv, the environment or `text_room` */
    const char *source; /* "default", "flag --workers", "variable RINGFOLD_WORKERS" or "derived" */
};

struct run_options {
    struct run_value values[RUN_SETTING_COUNT];
    char text_room[16];           /* of a number of workers that was worked out */
    char join_room[256];          /* of an address put together */
    int workers;                  /* started here */
    int first_id;                 /* theirs are the next `workers`; 0 but for those that join */
    bool elastic;                 /* the job goes on without workers that are lost */
    int size, min_size, max_size; /* of the job: at its start, at least, at most */
    int max_restarts;             /* within an hour */
    int slow_evict, slow_window, cool_down_ms;
    bool faults; /* rehearsed ones are allowed */
    bool commits;
    int cores; /* that this process may use */
    int detect_ms, start_timeout_ms, grace_ms;
    int streams;
    int threads; /* 0: auto */
    enum run_bind bind;
    bool prefix, quiet, verbose, json;
    bool shown[RF_MAX_LOCAL_RANKS];
    char name[RUN_NAME_MAX]; /* of the program, fit for a file name */
    char job[RF_MAX_JOB_NAME];
    bool dry_run, explain;
    const char *exports[RUN_MAX_EXPORTS]; /* -x NAME[=VALUE] */
    int export_count;
    const char *notes[RUN_MAX_NOTES]; /* flags that were accepted and mean nothing here */
    int note_count;
    char **program; /* borrowed from argv, ends with NULL */
};

/* Reads argv and the environment; 0, or an exit status once the error was reported. --help ends the
 * process. */
int run_options_read(struct run_options *options, int argc, char **argv);

const char *run_setting_name(enum run_setting setting);

/* Every setting, its value and its source, on stdout. */
void run_options_explain(const struct run_options *options);

#endif
