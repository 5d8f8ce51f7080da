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

/* X(NAME, flag, default, argument in the help or NULL for a switch, help). The variable is
 * RINGFOLD_NAME. */
#define RUN_SETTING_LIST(X)                                                                        \
    X(WORKERS, "workers", "1", "N", "Start N workers")                                             \
    X(STORE, "store", "", "URI", "Meet at this store (tcp://HOST:PORT) instead of hosting one")    \
    X(JOB, "job", "", "NAME", "Name of the job (default: the program's, with a random end)")       \
    X(KEY_FILE, "key-file", "", "FILE", "Take the job's key from FILE (default: a random one)")    \
    X(DETECT, "detect", "3s", "TIME", "Take a silent worker for lost after TIME (default 3s)")     \
    X(START_TIMEOUT, "start-timeout", "5m", "TIME", "Wait TIME for all workers (default 5m)")      \
    X(GRACE, "grace", "30s", "TIME", "What a worker gets to save itself (default 30s)")            \
    X(TRANSPORT, "transport", "auto", "NAME", "auto, shm or tcp")                                  \
    X(ALGORITHM, "algorithm", "auto", "NAME", "Of the collectives: auto, ring, direct, ...")       \
    X(RUN_DIR, "run-dir", "", "DIR", "Run folder (default runs/NAME-TIME)")                        \
    X(SHOW, "show", "all", "RANKS", "Whose output is shown: all, none, or a list as 0,3-5")        \
    X(PREFIX, "prefix", "auto", "WHEN", "Prefix of their lines: auto (with several) or none")      \
    X(THREADS, "threads", "auto", "N", "OMP_NUM_THREADS of each worker (auto: cores / workers)")   \
    X(BIND, "bind", "none", "TO", "Bind each worker to: none, core")                               \
    X(QUIET, "quiet", "no", NULL, "Only errors and the workers' own output")                       \
    X(VERBOSE, "verbose", "no", NULL, "Also timeouts, and each worker's start and end")            \
    X(JSON, "json", "no", NULL, "The launcher's own messages as JSON lines on stderr")

enum run_setting {
#define RF_X(NAME, flag, standard, argument, help) RUN_##NAME,
    RUN_SETTING_LIST(RF_X)
#undef RF_X
        RUN_SETTING_COUNT
};

enum run_bind { RUN_BIND_NONE, RUN_BIND_CORE };

enum { RUN_MAX_EXPORTS = 64, RUN_MAX_NOTES = 24, RUN_NAME_MAX = 40 };

struct run_value {
    const char *text;   /* borrowed from argv, the environment or `text_room` */
    const char *source; /* "default", "flag --workers", "variable RINGFOLD_WORKERS" or "derived" */
};

struct run_options {
    struct run_value values[RUN_SETTING_COUNT];
    char text_room[16]; /* of a number of workers that was worked out */
    int workers;
    int cores; /* that this process may use */
    int detect_ms, start_timeout_ms, grace_ms;
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
