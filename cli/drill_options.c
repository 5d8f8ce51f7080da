/* Reading the settings of `ringfold drill`. */
#include "drill_options.h"

#include "format.h"
#include "report.h"

#include <argp.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <ringfold/limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sysexits.h>
#include <unistd.h>

enum {
    KEY_WORKERS = 0x200,
    KEY_MINUTES,
    KEY_FAULTS_TOTAL,
    KEY_MTBF,
    KEY_FAULTS,
    KEY_SEED,
    KEY_REPLAY,
    KEY_BASELINE,
    KEY_BASELINE_THROUGHPUT,
    KEY_JSON,
    KEY_RUN_DIR,
    KEY_DETECT,
    KEY_START_TIMEOUT,
    KEY_SETTLE,
    KEY_LAUNCHER
};

static const struct argp_option flags[] = {
    {NULL, 0, NULL, 0, "Workers:", 1},
    {NULL, 'n', "N", 0, "Start N workers", 1},
    {"workers", KEY_WORKERS, "MIN:MAX", 0, "As of run; MIN always stay (half of N)", 1},
    {"detect", KEY_DETECT, "TIME", 0, "When a silent worker is lost (default 3s)", 1},
    {"start-timeout", KEY_START_TIMEOUT, "TIME", 0, "Wait for the first commit (5m)", 1},
    {NULL, 0, NULL, 0, "Faults:", 2},
    {"faults", KEY_FAULTS, "KINDS", 0,
     "Any of kill,freeze,slow,cut,join,flip,store,checkpoint,storage (default kill,freeze)", 2},
    {"mtbf", KEY_MTBF, "TIME", 0, "Mean time between two faults (default 15s)", 2},
    {"minutes", KEY_MINUTES, "M", 0, "Stop after M minutes", 2},
    {"faults-total", KEY_FAULTS_TOTAL, "N", 0, "Stop after N faults", 2},
    {"seed", KEY_SEED, "S", 0, "Draw the same schedule again (default: random)", 2},
    {"replay", KEY_REPLAY, "FILE", 0, "Repeat the schedule of a drill.jsonl", 2},
    {"settle", KEY_SETTLE, "TIME", 0, "Wait for the last to come back (default 1m)", 2},
    {NULL, 0, NULL, 0, "Result:", 3},
    {"baseline", KEY_BASELINE, "SHARE", OPTION_ARG_OPTIONAL,
     "Run without faults first, for SHARE of the time (default 1)", 3},
    {"baseline-throughput", KEY_BASELINE_THROUGHPUT, "X", 0,
     "Units a second without faults, if known", 3},
    {"json", KEY_JSON, "FILE", 0, "Write the result to FILE (- for stdout)", 3},
    {"run-dir", KEY_RUN_DIR, "DIR", 0, "Where everything is kept (runs/drill-TIME)", 3},
    {"launcher", KEY_LAUNCHER, "PROGRAM", OPTION_HIDDEN, NULL, 0},
    {0}};

/* What needs a second look once all flags are there. */
struct flags_seen {
    struct drill_options *options;
    const char *number, *range;
    bool seeded;
};

static void take_duration(struct argp_state *state, const char *name, const char *text, int *out) {
    if (parse_duration_ms(text, out) || *out < 1) {
        argp_error(state, "--%s '%s' is not a time as 500ms, 3s or 5m", name, text);
    }
}

static void take_minutes(struct argp_state *state, const char *text, int *out) {
    char with_unit[FORMAT_MAX];
    int length = snprintf(with_unit, sizeof with_unit, "%sm", text);

    if (length >= (int)sizeof with_unit || parse_duration_ms(with_unit, out) || *out < 1) {
        argp_error(state, "--minutes '%s' is not a number of minutes", text);
    }
}

static void take_kinds(struct argp_state *state, const char *text, struct drill_options *options) {
    options->kind_count = 0;
    for (const char *at = text;; at++) {
        size_t length = strcspn(at, ",");
        enum drill_kind kind = DRILL_KINDS;
        if (drill_kind_parse(at, length, &kind)) {
            argp_error(state,
                       "--faults '%s': '%.*s' is none of kill, freeze, slow, cut, join, "
                       "flip, store, checkpoint, storage",
                       text, (int)(length < 32 ? length : 32), at);
            return;
        }
        if (!drill_options_has(options, kind)) {
            options->kinds[options->kind_count++] = kind;
        }
        at += length;
        if (!*at) {
            return;
        }
    }
}

static void take_positive(struct argp_state *state, const char *name, const char *text, double most,
                          double *out) {
    char *end;
    double value = strtod(text, &end);

    if (end == text || *end || !(value > 0 && value <= most)) {
        argp_error(state, "--%s '%s' is not a number above 0 and up to %g", name, text, most);
    }
    *out = value;
}

static void take_seed(struct argp_state *state, const char *text, uint64_t *out) {
    char *end;

    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (end == text || *end || errno || text[0] == '-' || value > INT64_MAX) {
        argp_error(state, "--seed '%s' is not a whole number", text);
    }
    *out = value;
}

static error_t parse_flag(int key, char *argument, struct argp_state *state) {
    struct flags_seen *seen = state->input;
    struct drill_options *options = seen->options;

    switch (key) {
    case 'n':
        seen->number = argument;
        return 0;
    case KEY_WORKERS:
        seen->range = argument;
        return 0;
    case KEY_MINUTES:
        take_minutes(state, argument, &options->limit_ms);
        return 0;
    case KEY_FAULTS_TOTAL:
        if (parse_int(argument, 1, 100000, &options->faults_total)) {
            argp_error(state, "--faults-total '%s' is not a number from 1 to 100000", argument);
        }
        return 0;
    case KEY_MTBF:
        take_duration(state, "mtbf", argument, &options->mtbf_ms);
        return 0;
    case KEY_DETECT:
        take_duration(state, "detect", argument, &options->detect_ms);
        return 0;
    case KEY_START_TIMEOUT:
        take_duration(state, "start-timeout", argument, &options->start_timeout_ms);
        return 0;
    case KEY_SETTLE:
        take_duration(state, "settle", argument, &options->settle_ms);
        return 0;
    case KEY_FAULTS:
        take_kinds(state, argument, options);
        return 0;
    case KEY_SEED:
        take_seed(state, argument, &options->seed);
        seen->seeded = true;
        return 0;
    case KEY_REPLAY:
        options->replay = argument;
        return 0;
    case KEY_BASELINE:
        options->baseline = 1;
        if (argument) {
            take_positive(state, "baseline", argument, 1, &options->baseline);
        }
        return 0;
    case KEY_BASELINE_THROUGHPUT:
        take_positive(state, "baseline-throughput", argument, 1e9, &options->baseline_throughput);
        return 0;
    case KEY_JSON:
        options->json = argument;
        return 0;
    case KEY_RUN_DIR:
        options->run_dir = argument;
        return 0;
    case KEY_LAUNCHER:
        options->launcher = argument;
        return 0;
    case ARGP_KEY_ARG: /* the program; everything after it is its own */
        options->command = state->argv + state->next - 1;
        state->next = state->argc;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp argp = {
    flags,
    parse_flag,
    "[--] PROGRAM [ARGUMENTS]",
    "Rehearse failures: start workers on this host, let faults strike them, and measure what it "
    "costs.\v"
    "Ends with 0 only where nothing was lost: every unit has one digest on all workers, none is "
    "missing, and all workers are back in the end. Ctrl-C stops everything and still reports.\n\n"
    "  ringfold drill -n 4 --minutes 2 --mtbf 5s -- ringfold train mlp --data data/mnist",
    NULL,
    NULL,
    NULL};

static int usage_error(struct rf_error *err) {
    if (!err->next[0]) {
        snprintf(err->next, sizeof err->next, "ringfold drill --help");
    }
    report_error(err);
    return EX_USAGE;
}

bool drill_options_has(const struct drill_options *options, enum drill_kind kind) {
    for (int i = 0; i < options->kind_count; i++) {
        if (options->kinds[i] == kind) {
            return true;
        }
    }
    return false;
}

/* -n N and --workers N or MIN:MAX. */
static int read_workers(struct drill_options *options, const struct flags_seen *seen,
                        struct rf_error *err) {
    const char *colon = seen->range ? strchr(seen->range, ':') : NULL;

    options->workers = 1;
    if (seen->number && parse_int(seen->number, 1, RF_MAX_LOCAL_RANKS, &options->workers)) {
        return report_fail(err, RF_EUSAGE, 0, "-n '%s' is not a number from 1 to %d", seen->number,
                           RF_MAX_LOCAL_RANKS);
    }
    options->most = options->workers;
    options->least = (options->workers + 1) / 2;
    options->range_given = seen->range != NULL;
    if (!seen->range) {
        return 0;
    }
    char first[16];
    snprintf(first, sizeof first, "%.*s", colon ? (int)(colon - seen->range) : 15, seen->range);
    if (parse_int(colon ? colon + 1 : seen->range, 1, RF_MAX_LOCAL_RANKS, &options->most) ||
        (colon && parse_int(first, 1, options->most, &options->least))) {
        return report_fail(err, RF_EUSAGE, 0,
                           "--workers '%s' is not MIN:MAX with 1 <= MIN <= MAX <= %d", seen->range,
                           RF_MAX_LOCAL_RANKS);
    }
    options->workers = seen->number ? options->workers : options->most;
    if (!colon) {
        options->least = (options->workers + 1) / 2;
    }
    if (options->workers < options->least || options->workers > options->most) {
        return report_fail(err, RF_EUSAGE, 0, "-n %d is not within --workers %s", options->workers,
                           seen->range);
    }
    return 0;
}

int drill_options_settle(struct drill_options *options, struct rf_error *err) {
    if (!options->range_given && drill_options_has(options, DRILL_JOIN)) {
        options->most = options->workers + 1;
    }
    for (int i = 0; i < options->kind_count; i++) {
        enum drill_kind kind = options->kinds[i];
        bool takes_worker = kind != DRILL_JOIN && kind != DRILL_STORE && kind != DRILL_STORAGE;
        if (takes_worker && options->workers - 1 < options->least) {
            report_fail(err, RF_EUSAGE, 0,
                        "none of %d workers can be spared for '%s': at least %d have to stay",
                        options->workers, drill_kind_name(kind), options->least);
            snprintf(err->next, sizeof err->next, "ringfold drill -n %d --workers %d:%d ...",
                     options->least + 1, options->least, options->least + 1);
            return RF_EUSAGE;
        }
        if (kind == DRILL_FLIP && options->workers < 3) {
            report_fail(err, RF_EUSAGE, 0,
                        "'flip' needs 3 workers: a majority has to know what is right");
            snprintf(err->next, sizeof err->next, "ringfold drill -n 3 ...");
            return RF_EUSAGE;
        }
    }
    return 0;
}

int drill_options_read(struct drill_options *options, int argc, char **argv) {
    struct rf_error err = {.rank = -1};
    struct flags_seen seen = {.options = options};

    *options = (struct drill_options){.kinds = {DRILL_KILL, DRILL_FREEZE},
                                      .kind_count = 2,
                                      .mtbf_ms = 15000,
                                      .detect_ms = 3000,
                                      .start_timeout_ms = 300000,
                                      .settle_ms = 60000};
    if (argp_parse(&argp, argc, argv, ARGP_IN_ORDER, NULL, &seen)) {
        return EX_USAGE;
    }
    if (!options->command) {
        report_fail(&err, RF_EUSAGE, 0, "which program? none was given");
        snprintf(err.next, sizeof err.next, "ringfold drill -n 4 --minutes 2 -- PROGRAM");
        return usage_error(&err);
    }
    if (options->baseline > 0 && options->baseline_throughput > 0) {
        report_fail(&err, RF_EUSAGE, 0, "--baseline measures what --baseline-throughput states");
        snprintf(err.next, sizeof err.next, "give one of the two");
        return usage_error(&err);
    }
    if (read_workers(options, &seen, &err) ||
        (!options->replay && drill_options_settle(options, &err))) {
        return usage_error(&err);
    }
    options->screen = options->json && !strcmp(options->json, "-") ? stderr : stdout;
    if (!seen.seeded) {
        uint32_t noise = 1;
        if (getrandom(&noise, sizeof noise, 0) != (ssize_t)sizeof noise) {
            noise = (uint32_t)getpid(); /* any seed will do: it is told */
        }
        options->seed = noise;
    }
    return 0;
}
