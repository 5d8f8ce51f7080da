/* Reading the settings of `ringfold run`.
 *
 * argp collects the flags as text; then each setting takes its flag, else its variable, else its
 * default, and is turned into a value. Spellings of other launchers are aliases here, so that
 * nothing else knows of them. */
#include "run_options.h"

#include "format.h"
#include "report.h"

#include <argp.h>
#include <ctype.h>
#include <errno.h>
#include <sched.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sysexits.h>

static const struct setting {
    const char *name, *variable, *flag_source, *variable_source, *standard;
} settings[] = {
#define RF_X(NAME, flag, key, standard, argument, group, help)                                     \
    {flag, "RINGFOLD_" #NAME, "flag --" flag, "variable RINGFOLD_" #NAME, standard},
    RUN_SETTING_LIST(RF_X)
#undef RF_X
};

/* Keys of flags that are no setting. Settings have KEY_SETTING + their number. */
enum {
    KEY_SETTING = 0x200,
    KEY_PER_HOST = 0x300,
    KEY_HOSTS,
    KEY_HOST_RANK,
    KEY_RENDEZVOUS,
    KEY_MASTER,
    KEY_MASTER_PORT,
    KEY_FAULTS,
    KEY_MODULE,
    KEY_DRY_RUN,
    KEY_EXPLAIN,
    KEY_STANDALONE,
    KEY_IGNORED = 0x400 /* + the index in `ignored` */
};

/* Flags of torchrun that ask for something that is always so here, or that does not exist. */
static const char *const ignored[] = {
    "--rdzv-backend", "--rdzv-conf",         "--monitor-interval", "--role",
    "--start-method", "--log-dir",           "--redirects",        "--tee",
    "--local-addr",   "--event-log-handler", "--no-python"};

#define ALIAS(text)                                                                                \
    { text, 0, NULL, OPTION_ALIAS | OPTION_HIDDEN, NULL, 0 }
#define IGNORED(text, index, argument)                                                             \
    { text, KEY_IGNORED + (index), argument, OPTION_HIDDEN, NULL, 0 }

static const struct argp_option flags[] = {
    {NULL, 0, NULL, 0, "Workers:", 1},
#define RF_X(NAME, flag, key, standard, argument, group, help)                                     \
    {flag, (key) ? (key) : KEY_SETTING + RUN_##NAME, argument, 0, help, group},
    RUN_SETTING_LIST(RF_X)
#undef RF_X
        {"nproc-per-node", KEY_PER_HOST, "N", 0, "N on each host; auto: one for each core", 1},
    {"ppn", 0, NULL, OPTION_ALIAS, NULL, 0},
    {NULL, 'x', "NAME[=VALUE]", 0, "Set a variable for them (no value: insist on it)", 1},
    {NULL, 0, NULL, 0, "How they meet:", 2},
    {NULL, 0, NULL, 0, "When something fails (times as 500ms, 3s, 5m):", 3},
    {NULL, 0, NULL, 0, "Output:", 4},
    {"dry-run", KEY_DRY_RUN, NULL, 0, "Show what would be started, and start nothing", 4},
    {"explain", KEY_EXPLAIN, NULL, 0, "Show every setting and the place it came from", 4},
    {"nproc_per_node", KEY_PER_HOST, "N", OPTION_HIDDEN, NULL, 0},
    {"nnodes", KEY_HOSTS, "N", OPTION_HIDDEN, NULL, 0},
    {"node-rank", KEY_HOST_RANK, "N", OPTION_HIDDEN, NULL, 0},
    ALIAS("node_rank"),
    {"restarts", KEY_SETTING + RUN_MAX_RESTARTS, "N", OPTION_HIDDEN, NULL, 0},
    ALIAS("max_restarts"),
    {"faults", KEY_FAULTS, NULL, OPTION_HIDDEN, NULL, 0},
    {"rdzv-endpoint", KEY_RENDEZVOUS, "HOST:PORT", OPTION_HIDDEN, NULL, 0},
    ALIAS("rdzv_endpoint"),
    {"master-addr", KEY_MASTER, "HOST", OPTION_HIDDEN, NULL, 0},
    ALIAS("master_addr"),
    {"master-port", KEY_MASTER_PORT, "PORT", OPTION_HIDDEN, NULL, 0},
    ALIAS("master_port"),
    {"module", KEY_MODULE, NULL, OPTION_HIDDEN, NULL, 0},
    {NULL, 'm', NULL, OPTION_HIDDEN, NULL, 0},
    {"standalone", KEY_STANDALONE, NULL, OPTION_HIDDEN, NULL, 0},
    {"rdzv-id", KEY_SETTING + RUN_JOB, "NAME", OPTION_HIDDEN, NULL, 0},
    ALIAS("rdzv_id"),
    {"local-ranks-filter", KEY_SETTING + RUN_SHOW, "RANKS", OPTION_HIDDEN, NULL, 0},
    ALIAS("local_ranks_filter"),
    {"key_file", KEY_SETTING + RUN_KEY_FILE, "FILE", OPTION_HIDDEN, NULL, 0},
    {"start_timeout", KEY_SETTING + RUN_START_TIMEOUT, "TIME", OPTION_HIDDEN, NULL, 0},
    {"run_dir", KEY_SETTING + RUN_RUN_DIR, "DIR", OPTION_HIDDEN, NULL, 0},
    {"store_bind", KEY_SETTING + RUN_STORE_BIND, "HOST:PORT", OPTION_HIDDEN, NULL, 0},
    {"slow_evict", KEY_SETTING + RUN_SLOW_EVICT, "N", OPTION_HIDDEN, NULL, 0},
    {"slow_window", KEY_SETTING + RUN_SLOW_WINDOW, "N", OPTION_HIDDEN, NULL, 0},
    {"cool_down", KEY_SETTING + RUN_COOL_DOWN, "TIME", OPTION_HIDDEN, NULL, 0},
    IGNORED("rdzv-backend", 0, "NAME"),
    ALIAS("rdzv_backend"),
    IGNORED("rdzv-conf", 1, "TEXT"),
    ALIAS("rdzv_conf"),
    IGNORED("monitor-interval", 2, "TIME"),
    ALIAS("monitor_interval"),
    IGNORED("role", 3, "NAME"),
    IGNORED("start-method", 4, "NAME"),
    ALIAS("start_method"),
    IGNORED("log-dir", 5, "DIR"),
    ALIAS("log_dir"),
    IGNORED("redirects", 6, "WHICH"),
    IGNORED("tee", 7, "WHICH"),
    IGNORED("local-addr", 8, "HOST"),
    ALIAS("local_addr"),
    IGNORED("event-log-handler", 9, "NAME"),
    ALIAS("event_log_handler"),
    IGNORED("no-python", 10, NULL),
    ALIAS("no_python"),
    {0}};

/* What argp has collected. */
struct flags_seen {
    struct run_options *options;
    const char *text[RUN_SETTING_COUNT];
    const char *per_host, *hosts, *host_rank;
    const char *rendezvous, *master, *master_port; /* other launchers' words for --join */
    bool module, standalone;
};

static int usage_error(const char *next, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static int usage_error(const char *next, const char *format, ...) {
    struct rf_error err = {.code = RF_EUSAGE, .rank = -1};
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(err.text, sizeof err.text, format, arguments);
    va_end(arguments);
    snprintf(err.next, sizeof err.next, "%s", next ? next : "ringfold run --help");
    report_error(&err);
    return EX_USAGE;
}

static error_t parse_flag(int key, char *argument, struct argp_state *state) {
    struct flags_seen *seen = state->input;
    struct run_options *options = seen->options;

    switch (key) {
    case 'n':
        if (argument[0] == 'p') { /* -np N, -npN */
            argument = argument[1] ? argument + 1 : state->argv[state->next];
            if (!argument) {
                argp_error(state, "option '-np' needs a number");
                return EINVAL;
            }
            state->next += argument == state->argv[state->next];
        }
        seen->text[RUN_WORKERS] = argument;
        return 0;
    case 'q':
        seen->text[RUN_QUIET] = "yes";
        return 0;
    case 'v':
        seen->text[RUN_VERBOSE] = "yes";
        return 0;
    case 'x':
        if (options->export_count == RUN_MAX_EXPORTS) {
            argp_error(state, "more than %d times '-x'", RUN_MAX_EXPORTS);
            return E2BIG;
        }
        options->exports[options->export_count++] = argument;
        return 0;
    case KEY_PER_HOST:
        seen->per_host = argument;
        return 0;
    case KEY_HOSTS:
        seen->hosts = argument;
        return 0;
    case KEY_HOST_RANK:
        seen->host_rank = argument;
        return 0;
    case KEY_RENDEZVOUS:
        seen->rendezvous = argument;
        return 0;
    case KEY_MASTER:
        seen->master = argument;
        return 0;
    case KEY_MASTER_PORT:
        seen->master_port = argument;
        return 0;
    case KEY_FAULTS:
        options->faults = true;
        return 0;
    case KEY_MODULE:
    case 'm':
        seen->module = true;
        return 0;
    case KEY_DRY_RUN:
        options->dry_run = true;
        return 0;
    case KEY_EXPLAIN:
        options->explain = true;
        return 0;
    case KEY_STANDALONE:
        seen->standalone = true;
        return 0;
    case ARGP_KEY_ARG: /* the program; everything after it is its own */
        options->program = state->argv + state->next - 1;
        state->next = state->argc;
        return 0;
    default:
        if (key >= KEY_SETTING && key < KEY_SETTING + RUN_SETTING_COUNT) {
            seen->text[key - KEY_SETTING] = argument ? argument : "yes";
            return 0;
        }
        if (key >= KEY_IGNORED && key < KEY_IGNORED + (int)(sizeof ignored / sizeof ignored[0])) {
            if (options->note_count < RUN_MAX_NOTES) {
                options->notes[options->note_count++] = ignored[key - KEY_IGNORED];
            }
            return 0;
        }
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp argp = {
    flags,
    parse_flag,
    "[--] PROGRAM [ARGUMENTS]",
    "Start workers on this host, show what they write, start again who is lost, and end them "
    "together.\v"
    "Each flag's variable is RINGFOLD_ and its name, as RINGFOLD_START_TIMEOUT. The spellings of "
    "torchrun are accepted.\n\n"
    "Ctrl-C: finish the step, save and stop. Twice: stop now. Three times: kill.\n\n"
    "  ringfold run -n 4 -- ringfold train mlp --data data/mnist",
    NULL,
    NULL,
    NULL};

/* --workers N or MIN:MAX: MAX are started, and the job goes on down to MIN. */
static int read_workers(struct run_options *options) {
    const char *text = options->values[RUN_WORKERS].text;
    const char *colon = strchr(text, ':');
    char first[16];

    if (!colon) {
        if (parse_int(text, 1, RF_MAX_LOCAL_RANKS, &options->workers)) {
            return usage_error(NULL, "--workers '%s' is not a number from 1 to %d", text,
                               RF_MAX_LOCAL_RANKS);
        }
        options->min_size = options->max_size = options->workers;
        return 0;
    }
    snprintf(first, sizeof first, "%.*s", (int)(colon - text < 15 ? colon - text : 15), text);
    if (parse_int(first, 1, RF_MAX_RANKS, &options->min_size) ||
        parse_int(colon + 1, 1, RF_MAX_RANKS, &options->max_size) ||
        options->min_size > options->max_size) {
        return usage_error(NULL, "--workers '%s' is not MIN:MAX with 1 <= MIN <= MAX <= %d", text,
                           RF_MAX_RANKS);
    }
    options->workers = options->max_size;
    return 0;
}

static int count_cores(void) {
    cpu_set_t allowed;

    CPU_ZERO(&allowed);
    if (sched_getaffinity(0, sizeof allowed, &allowed)) {
        return 1;
    }
    return CPU_COUNT(&allowed) > 0 ? CPU_COUNT(&allowed) : 1;
}

/* --nproc-per-node: the same as --workers, or, where that is MIN:MAX, how many the job starts with
 * here; others may join. */
static int read_per_host(struct run_options *options, const struct flags_seen *seen) {
    struct run_value *value = &options->values[RUN_WORKERS];
    bool is_range = strchr(value->text, ':') != NULL;
    int count = options->cores;

    if (!seen->per_host) {
        if (options->workers > RF_MAX_LOCAL_RANKS) {
            return usage_error("ringfold run --workers MIN:MAX --nproc-per-node N ...",
                               "--workers %s: at most %d of them can be started on one host",
                               value->text, RF_MAX_LOCAL_RANKS);
        }
        return 0;
    }
    if (!strcmp(seen->per_host, "auto") || !strcmp(seen->per_host, "cpu")) {
        count = count > RF_MAX_LOCAL_RANKS ? RF_MAX_LOCAL_RANKS : count;
    } else if (parse_int(seen->per_host, 1, RF_MAX_LOCAL_RANKS, &count)) {
        return usage_error(NULL, "--nproc-per-node '%s' is neither auto nor a number from 1 to %d",
                           seen->per_host, RF_MAX_LOCAL_RANKS);
    }
    if (is_range) {
        if (count < options->min_size || count > options->max_size) {
            return usage_error(NULL, "--nproc-per-node %d is not within --workers %s", count,
                               value->text);
        }
        options->workers = count;
        return 0;
    }
    if (seen->text[RUN_WORKERS] && count != options->workers) {
        return usage_error("give one of the two",
                           "--workers %d and --nproc-per-node %d do not agree on one host",
                           options->workers, count);
    }
    options->workers = options->min_size = options->max_size = count;
    snprintf(options->text_room, sizeof options->text_room, "%d", count);
    *value = (struct run_value){options->text_room, "flag --nproc-per-node"};
    return 0;
}

static void note(struct run_options *options, const char *flag) {
    if (options->note_count < RUN_MAX_NOTES) {
        options->notes[options->note_count++] = flag;
    }
}

/* The words of other launchers for --join; alone on one host they mean nothing. */
static int read_rendezvous(struct run_options *options, const struct flags_seen *seen) {
    struct run_value *join = &options->values[RUN_JOIN];
    bool alone = seen->standalone ||
                 (seen->hosts && (!strcmp(seen->hosts, "1") || !strcmp(seen->hosts, "1:1")));

    if (join->text[0] || alone || (!seen->rendezvous && !seen->master)) {
        if (seen->rendezvous) {
            note(options, "--rdzv-endpoint");
        }
        if (seen->master) {
            note(options, "--master-addr");
        }
        if (seen->master_port) {
            note(options, "--master-port");
        }
        return 0;
    }
    if (seen->rendezvous) {
        *join = (struct run_value){seen->rendezvous, "flag --rdzv-endpoint"};
        return 0;
    }
    if (!seen->master_port) {
        return usage_error("ringfold run --join HOST:PORT ...",
                           "--master-addr %s: --master-port is missing", seen->master);
    }
    bool is_v6 = strchr(seen->master, ':') && seen->master[0] != '[';
    int length = snprintf(options->join_room, sizeof options->join_room,
                          is_v6 ? "[%s]:%s" : "%s:%s", seen->master, seen->master_port);
    if (length < 0 || (size_t)length >= sizeof options->join_room) {
        return usage_error(NULL, "--master-addr '%.40s...' is too long", seen->master);
    }
    *join = (struct run_value){options->join_room, "flag --master-addr"};
    return 0;
}

/* --join: what such a worker has to know beforehand. The rest stands in the job's store. */
static int check_join(const struct run_options *options) {
    const char *join = options->values[RUN_JOIN].text;
    const char *source = options->values[RUN_JOIN].source;
    const char *example = "ringfold run --join HOST:PORT --job NAME --key-file FILE ...";
    const char *colon = strrchr(join, ':');
    int port;

    if (!join[0]) {
        return 0;
    }
    if (!colon || colon == join || parse_int(colon + 1, 1, 65535, &port) || strlen(join) > 240 ||
        join[strcspn(join, " /")]) {
        return usage_error(example, "%s '%s' is not HOST:PORT", source, join);
    }
    if (options->values[RUN_STORE].text[0]) {
        return usage_error("give one of the two", "--store and %s name a store both", source);
    }
    if (!options->values[RUN_JOB].text[0]) {
        return usage_error(example, "%s %s needs --job: which of the jobs there?", source, join);
    }
    if (!options->values[RUN_KEY_FILE].text[0]) {
        return usage_error(example, "%s %s needs --key-file: the job's key is not known here",
                           source, join);
    }
    if (options->min_size != options->max_size) {
        return usage_error("ringfold run --join HOST:PORT -n N ...",
                           "--workers %s: how few and how many is the running job's to say",
                           options->values[RUN_WORKERS].text);
    }
    return 0;
}

static int check_store_bind(const struct run_options *options) {
    const struct run_value *bind_to = &options->values[RUN_STORE_BIND];
    const char *colon = strrchr(bind_to->text, ':');
    int port;

    if (!colon || parse_int(colon + 1, 0, 65535, &port) || strlen(bind_to->text) > 240) {
        return usage_error(NULL, "--store-bind '%s' is not HOST:PORT", bind_to->text);
    }
    if (strcmp(bind_to->source, "default") &&
        (options->values[RUN_STORE].text[0] || options->values[RUN_JOIN].text[0])) {
        return usage_error("give one of the two",
                           "--store-bind is for a store that is hosted here");
    }
    return 0;
}

/* What belongs to several hosts that start together. */
static int refuse_what_is_missing(const struct flags_seen *seen) {
    if (seen->hosts && strcmp(seen->hosts, "1") && strcmp(seen->hosts, "1:1")) {
        return usage_error("start on one host, then elsewhere: ringfold run --join HOST:PORT ...",
                           "--nnodes %s: several hosts that start together are not there yet",
                           seen->hosts);
    }
    if (seen->host_rank && strcmp(seen->host_rank, "0")) {
        return usage_error("ringfold run --join HOST:PORT ...",
                           "--node-rank %s: hosts have no ranks here, they join", seen->host_rank);
    }
    if (seen->module) {
        return usage_error("ringfold run ... -- python3 -m MODULE",
                           "-m: the program is started as it is, so it has to be python3");
    }
    return 0;
}

static int read_switch(const struct run_options *options, enum run_setting setting, bool *out) {
    static const char *const yes[] = {"1", "yes", "true", "on"};
    static const char *const no[] = {"", "0", "no", "false", "off"};
    const char *text = options->values[setting].text;

    for (size_t i = 0; i < sizeof yes / sizeof yes[0]; i++) {
        if (!strcmp(text, yes[i])) {
            *out = true;
            return 0;
        }
    }
    for (size_t i = 0; i < sizeof no / sizeof no[0]; i++) {
        if (!strcmp(text, no[i])) {
            *out = false;
            return 0;
        }
    }
    return usage_error(NULL, "%s '%s' is neither yes nor no", settings[setting].variable, text);
}

static int read_duration(const struct run_options *options, enum run_setting setting, int *out_ms) {
    const char *text = options->values[setting].text;

    if (parse_duration_ms(text, out_ms) || *out_ms < 1) {
        return usage_error(NULL, "--%s '%s' is not a time as 500ms, 3s or 5m",
                           settings[setting].name, text);
    }
    return 0;
}

static int read_number(const struct run_options *options, enum run_setting setting, int least,
                       int most, int *out) {
    const char *text = options->values[setting].text;

    if (parse_int(text, least, most, out)) {
        return usage_error(NULL, "--%s '%s' is not a number from %d to %d", settings[setting].name,
                           text, least, most);
    }
    return 0;
}

/* A job is elastic unless nobody is started again and nobody may be missing; one worker by itself
 * has nobody who could keep its state. */
static int read_elastic(struct run_options *options) {
    bool joins = options->values[RUN_JOIN].text[0] != 0;
    bool alone = options->max_size == 1 && !options->values[RUN_STORE].text[0] &&
                 !strcmp(options->values[RUN_STORE_BIND].source, "default");
    int status = 0;

    (void)((status = read_number(options, RUN_MAX_RESTARTS, 0, RUN_RESTARTS_LIMIT,
                                 &options->max_restarts)) ||
           (status = read_number(options, RUN_SLOW_EVICT, 0, 1 << 20, &options->slow_evict)) ||
           (status = read_number(options, RUN_SLOW_WINDOW, 1, 1 << 20, &options->slow_window)) ||
           (status = read_duration(options, RUN_COOL_DOWN, &options->cool_down_ms)));
    options->elastic =
        joins || (!alone && (options->max_restarts > 0 || options->min_size < options->max_size));
    options->size = options->workers;
    return status;
}

/* "all", "none" or "0,3-5". */
static int read_show(struct run_options *options) {
    const char *text = options->values[RUN_SHOW].text;
    bool all = !strcmp(text, "all");

    for (int rank = 0; rank < options->workers; rank++) {
        options->shown[rank] = all;
    }
    if (all || !strcmp(text, "none")) {
        return 0;
    }
    const char *at = text;
    for (;;) {
        char *end;
        long first = isdigit((unsigned char)*at) ? strtol(at, &end, 10) : -1;
        long last = first;
        if (first < 0) {
            break;
        }
        if (*end == '-') {
            at = end + 1;
            last = isdigit((unsigned char)*at) ? strtol(at, &end, 10) : -1;
        }
        if (last < first || last >= options->workers) {
            break;
        }
        for (long rank = first; rank <= last; rank++) {
            options->shown[rank] = true;
        }
        if (!*end) {
            return 0;
        }
        if (*end != ',') {
            break;
        }
        at = end + 1;
    }
    return usage_error(NULL, "--show '%s' is not all, none or a list of ranks below %d", text,
                       options->workers);
}

static int read_choices(struct run_options *options) {
    const char *prefix = options->values[RUN_PREFIX].text;
    const char *threads = options->values[RUN_THREADS].text;
    const char *bind_to = options->values[RUN_BIND].text;
    const char *transport = options->values[RUN_TRANSPORT].text;
    const char *algorithm = options->values[RUN_ALGORITHM].text;
    enum rf_algorithm known;
    enum rf_transport way;

    if (strcmp(prefix, "auto") && strcmp(prefix, "none")) {
        return usage_error(NULL, "--prefix '%s' is neither auto nor none", prefix);
    }
    options->prefix = !strcmp(prefix, "auto") && options->workers > 1;
    if (strcmp(threads, "auto") && parse_int(threads, 1, 4096, &options->threads)) {
        return usage_error(NULL, "--threads '%s' is neither auto nor a number from 1 to 4096",
                           threads);
    }
    if (!strcmp(bind_to, "auto")) {
        bool fits = options->workers > 1 && options->workers <= options->cores;
        options->bind = fits ? RUN_BIND_CORE : RUN_BIND_NONE;
    } else if (!strcmp(bind_to, "core")) {
        options->bind = RUN_BIND_CORE;
    } else if (!strcmp(bind_to, "numa")) {
        return usage_error("ringfold run --bind core ...", "--bind numa is not there yet");
    } else if (strcmp(bind_to, "none")) {
        return usage_error(NULL, "--bind '%s' is not auto, none or core", bind_to);
    }
    if (parse_int(options->values[RUN_STREAMS].text, 1, RF_MAX_STREAMS, &options->streams)) {
        return usage_error(NULL, "--streams '%s' is not a number from 1 to %d",
                           options->values[RUN_STREAMS].text, RF_MAX_STREAMS);
    }
    if (parse_transport(transport, &way)) {
        return usage_error(NULL, "--transport '%s' is not auto, shm or tcp", transport);
    }
    if (rf_algorithm_parse(algorithm, &known)) {
        return usage_error("ringfold plan --help  lists the algorithms",
                           "--algorithm '%s' is not known", algorithm);
    }
    return 0;
}

static bool name_character(char c) {
    return isalnum((unsigned char)c) || c == '.' || c == '_' || c == '-';
}

/* Whether the word, but for a version at its end, is a program that runs what its first argument
 * names. */
static bool is_interpreter(const char *word) {
    static const char *const names[] = {"ringfold", "python", "sh", "bash"};

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        size_t length = strlen(names[i]);
        if (!strncmp(word, names[i], length) &&
            !word[length + strspn(word + length, "0123456789.")]) {
            return true;
        }
    }
    return false;
}

static const char *last_component(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash && slash[1] ? slash + 1 : path;
}

/* The program's name without its ending, or that of the script which an interpreter runs ("ringfold
 * train": "train"). */
static void read_name(struct run_options *options) {
    const char *word = last_component(options->program[0]);
    size_t at = 0;

    if (is_interpreter(word) && options->program[1] && options->program[1][0] != '-') {
        word = last_component(options->program[1]);
    }
    const char *dot = strrchr(word, '.');
    for (; word[at] && at + 1 < sizeof options->name && (!at || word + at != dot); at++) {
        options->name[at] = word[at];
        if (!name_character(word[at]) || (!at && (word[at] == '.' || word[at] == '-'))) {
            options->name[at] = '_';
        }
    }
    options->name[at] = '\0';
}

static int read_job(struct run_options *options) {
    struct run_value *value = &options->values[RUN_JOB];

    if (!value->text[0]) {
        unsigned char noise[4] = {0};
        if (getrandom(noise, sizeof noise, 0) != (ssize_t)sizeof noise) {
            return usage_error("give the job a name with --job", "no random numbers are to be had");
        }
        snprintf(options->job, sizeof options->job, "%s-%02x%02x%02x%02x", options->name, noise[0],
                 noise[1], noise[2], noise[3]);
        *value = (struct run_value){options->job, "derived"};
        return 0;
    }
    size_t length = strlen(value->text);
    bool valid = length < sizeof options->job;
    for (size_t i = 0; valid && i < length; i++) {
        valid = name_character(value->text[i]);
    }
    if (!valid) {
        return usage_error(NULL,
                           "--job '%s' may have letters, digits, '.', '_', '-', and at most %d of "
                           "them",
                           value->text, RF_MAX_JOB_NAME - 1);
    }
    memcpy(options->job, value->text, length + 1);
    return 0;
}

static int check_exports(const struct run_options *options) {
    static const char *const reserved[] = {
        "RINGFOLD_",        "RANK",        "WORLD_SIZE", "LOCAL_RANK",
        "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"};

    for (int i = 0; i < options->export_count; i++) {
        const char *text = options->exports[i];
        size_t length = strcspn(text, "=");
        char name[64];
        snprintf(name, sizeof name, "%.*s", (int)(length < 63 ? length : 63), text);
        if (!length) {
            return usage_error(NULL, "-x '%s' is not NAME or NAME=VALUE", text);
        }
        for (size_t k = 0; k < sizeof reserved / sizeof reserved[0]; k++) {
            if (!strcmp(name, reserved[k]) || (!k && !strncmp(name, reserved[0], 9))) {
                return usage_error(NULL, "-x %s: this variable is the launcher's", name);
            }
        }
        if (!text[length] && (length >= sizeof name || !getenv(name))) {
            return usage_error(NULL, "-x %s: there is no such variable to pass on", name);
        }
    }
    return 0;
}

/* Inside a worker of another run the RINGFOLD_* variables are that run's, not the user's wishes. */
static void resolve(struct run_options *options, const struct flags_seen *seen) {
    bool nested = getenv("RINGFOLD_RANK") != NULL;

    for (int i = 0; i < RUN_SETTING_COUNT; i++) {
        const char *variable = nested ? NULL : getenv(settings[i].variable);
        if (seen->text[i]) {
            options->values[i] = (struct run_value){seen->text[i], settings[i].flag_source};
        } else if (variable && variable[0]) {
            options->values[i] = (struct run_value){variable, settings[i].variable_source};
        } else {
            options->values[i] = (struct run_value){settings[i].standard, "default"};
        }
    }
    const char *faults = nested ? NULL : getenv("RINGFOLD_FAULTS");
    options->faults |= faults && !strcmp(faults, "1");
}

int run_options_read(struct run_options *options, int argc, char **argv) {
    struct flags_seen seen = {.options = options};
    int status = 0;

    *options = (struct run_options){.cores = count_cores()};
    if (argp_parse(&argp, argc, argv, ARGP_IN_ORDER, NULL, &seen)) {
        return EX_USAGE;
    }
    resolve(options, &seen);
    if ((status = refuse_what_is_missing(&seen)) || (status = read_workers(options)) ||
        (status = read_per_host(options, &seen)) || (status = read_rendezvous(options, &seen)) ||
        (status = check_join(options)) || (status = check_store_bind(options)) ||
        (status = read_elastic(options)) ||
        (status = read_duration(options, RUN_DETECT, &options->detect_ms)) ||
        (status = read_duration(options, RUN_START_TIMEOUT, &options->start_timeout_ms)) ||
        (status = read_duration(options, RUN_GRACE, &options->grace_ms)) ||
        (status = read_switch(options, RUN_QUIET, &options->quiet)) ||
        (status = read_switch(options, RUN_VERBOSE, &options->verbose)) ||
        (status = read_switch(options, RUN_JSON, &options->json)) ||
        (status = read_switch(options, RUN_COMMITS, &options->commits)) ||
        (status = read_show(options)) || (status = read_choices(options)) ||
        (status = check_exports(options))) {
        return status;
    }
    if (!options->program) {
        return usage_error("ringfold run -n 4 -- PROGRAM", "which program? none was given");
    }
    if (options->values[RUN_STORE].text[0] && !options->values[RUN_KEY_FILE].text[0]) {
        return usage_error("ringfold run --store URI --key-file FILE ...",
                           "--store needs --key-file: the store's key is not known here");
    }
    read_name(options);
    return read_job(options);
}

const char *run_setting_name(enum run_setting setting) {
    return settings[setting].name;
}

/* What it means that a setting is empty. */
static const char *empty_setting(int setting) {
    switch (setting) {
    case RUN_STORE:
        return "hosted here";
    case RUN_KEY_FILE:
        return "a random key";
    case RUN_RUN_DIR:
        return "runs/NAME-TIME";
    case RUN_JOIN:
        return "a job of its own";
    default:
        return "-";
    }
}

void run_options_explain(const struct run_options *options) {
    for (int i = 0; i < RUN_SETTING_COUNT; i++) {
        const struct run_value *value = &options->values[i];
        printf("%-14s %-24s %s\n", settings[i].name,
               value->text[0] ? value->text : empty_setting(i), value->source);
    }
}
