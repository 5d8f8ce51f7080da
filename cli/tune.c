/* ringfold tune: measures which algorithm is the fastest for each collective and size on this
 * machine, among the workers that take part, and writes the table by which the library chooses.
 *
 * Every rank runs this; rank 0 prints and writes. For each collective and size the algorithms take
 * turns, so that a disturbance of the machine hits all of them; a call is timed as the bench does
 * it (fresh inputs, a barrier, the slowest rank), and medians are compared. All ranks know all
 * times, so all agree on how long to go on. An algorithm replaces the library's own choice only
 * where it is clearly faster: what is within the noise must not depend on the day. */
#include "commands.h"
#include "format.h"
#include "report.h"

#include <argp.h>
#include <limits.h>
#include <math.h>
#include <ringfold/comm.h>
#include <ringfold/tuning.h>
#include <ringfold/version.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <time.h>
#include <unistd.h>

enum {
    COLLECTIVES = RF_COLL_ALL_TO_ALL + 1,
    MOST_SIZES = 16,
    MOST_ROUNDS = 1000,
    LEAST_ROUNDS = 5,
    QUICK_ROUNDS = 3,
    HOPELESS = 10, /* so many times slower than the fastest: not measured any further */
    REACH = 4,     /* beyond so many times the largest size measured nothing is known */
    LARGEST_BUFFER = 32 << 20,
    MOST_SECONDS = 86400
};
static const double CLEARLY = 1.05; /* faster than the library's own choice */
static const uint64_t ALL_SIZES[] = {4,      256,     4096,    16384,    65536,
                                     262144, 1 << 20, 4 << 20, 16 << 20, 0};
static const uint64_t QUICK_SIZES[] = {4, 4096, 262144, 0};

struct settings {
    unsigned collectives; /* bits; 0: all */
    int workers;          /* to start; 0: none */
    int seconds;          /* 0: as the kind of measurement has it */
    bool quick, any_order;
    bool has_transport; /* else as the environment says */
    enum rf_transport transport;
    const char *output; /* NULL: not given */
    char path[RF_TUNING_PATH];
};

/* One algorithm in one cell of the table. */
struct candidate {
    enum rf_algorithm algorithm;
    double median;
    double times[MOST_ROUNDS];
};

struct cell {
    enum rf_coll coll;
    uint64_t bytes;
    enum rf_algorithm own; /* what the library does by itself */
    struct candidate candidates[RF_ALGORITHM_COUNT];
    int count; /* of them */
};

struct tune {
    const struct settings *settings;
    struct rf_comm *comm;
    int rank, size;
    enum rf_link link;
    void *in, *out;
    const uint64_t *sizes; /* ends with a 0 */
    int cells;             /* left to measure */
    double deadline;
    struct rf_tuning table; /* what is written */
};

/* -------- options -------- */

enum { KEY_QUICK = 0x100, KEY_SECONDS, KEY_ANY_ORDER, KEY_TRANSPORT };

static const struct argp_option flags[] = {
    {"workers", 'n', "N", 0, "Start N workers here; without it 'ringfold run' does", 0},
    {"output", 'o', "FILE", 0, "Write it there; the user's own table otherwise", 0},
    {"quick", KEY_QUICK, NULL, 0, "Three sizes only, in about 5 s", 0},
    {"seconds", KEY_SECONDS, "S", 0, "Take about so long (30)", 0},
    {"any-order", KEY_ANY_ORDER, NULL, 0, "Also algorithms that do not sum in rank order", 0},
    {"transport", KEY_TRANSPORT, "NAME", 0, "auto, shm or tcp", 0},
    {0}};

static void parse_number(struct argp_state *state, const char *text, long least, long most,
                         int *out) {
    if (parse_int(text, least, most, out)) {
        argp_error(state, "'%s' is not between %ld and %ld", text, least, most);
    }
}

static error_t parse_flag(int key, char *text, struct argp_state *state) {
    struct settings *s = state->input;
    enum rf_coll coll = RF_COLL_COUNT;

    switch (key) {
    case 'n':
        parse_number(state, text, 2, RF_MAX_LOCAL_RANKS, &s->workers);
        break;
    case 'o':
        s->output = text;
        break;
    case KEY_QUICK:
        s->quick = true;
        break;
    case KEY_SECONDS:
        parse_number(state, text, 1, MOST_SECONDS, &s->seconds);
        break;
    case KEY_ANY_ORDER:
        s->any_order = true;
        break;
    case KEY_TRANSPORT:
        s->has_transport = true;
        if (parse_transport(text, &s->transport)) {
            argp_error(state, "'%s' is no transport: auto, shm or tcp", text);
        }
        break;
    case ARGP_KEY_ARG:
        if (rf_coll_parse(text, &coll) || coll > RF_COLL_ALL_TO_ALL) {
            argp_error(state, "'%s' is no collective with algorithms to choose from", text);
        } else {
            s->collectives |= 1u << coll;
        }
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

/* Where the table goes. */
static int find_path(struct settings *s, struct rf_error *err) {
    int rc = 0;

    if (s->output) {
        int length = snprintf(s->path, sizeof s->path, "%s", s->output);
        if (length <= 0 || (size_t)length >= sizeof s->path || s->output[length - 1] == '/') {
            rc = report_fail(err, RF_EUSAGE, 0, "--output '%s' is no file's path", s->output);
        }
    } else if (rf_tuning_user_path(environ, s->path)) {
        rc = report_fail(err, RF_EUSAGE, 0,
                         "there is no place for the table: neither XDG_CONFIG_HOME nor HOME is a "
                         "full path");
        snprintf(err->next, sizeof err->next, "ringfold tune -o tuning.json");
    }
    return rc;
}

/* -n: 'ringfold run' starts this command, with the same words, in as many workers. Returns only on
 * failure. */
static int start_workers(const struct settings *s, int argc, char **argv, struct rf_error *err) {
    static char self[PATH_MAX];
    char workers[16];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    const char *const head[] = {"ringfold", "run",  "-n", workers, "-q",
                                "--prefix", "none", "--", self,    "tune"};
    size_t heads = sizeof head / sizeof head[0];
    const char **words = calloc(heads + (size_t)argc, sizeof *words);

    if (length <= 0 || !words) {
        free(words);
        return report_fail(err, RF_EIO, 0,
                           "cannot start workers: the path of this program is not "
                           "to be had");
    }
    snprintf(workers, sizeof workers, "%d", s->workers);
    memcpy(words, head, sizeof head);
    for (int i = 1; i < argc; i++) {
        words[heads + (size_t)i - 1] = argv[i];
    }
    execv(self, (char *const *)(uintptr_t)words);
    free(words);
    return report_fail(err, RF_EIO, 0, "cannot start '%s' again as 'ringfold run'", self);
}

/* -------- the measurement -------- */

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static bool has_parts(enum rf_coll coll) {
    return coll == RF_COLL_REDUCE_SCATTER || coll == RF_COLL_ALL_GATHER || coll == RF_COLL_GATHER ||
           coll == RF_COLL_SCATTER || coll == RF_COLL_ALL_TO_ALL;
}

/* Into *seconds the time of the call alone, with inputs that no cache holds from the last one. */
static int time_once(const struct tune *t, const struct cell *cell, enum rf_algorithm algorithm,
                     double *seconds) {
    struct rf_call call = {.coll = cell->coll,
                           .type = RF_F32,
                           .redop = RF_SUM,
                           .send = t->in,
                           .recv = t->out,
                           .count = (size_t)cell->bytes / sizeof(float),
                           .algorithm = algorithm};

    memset(t->in, 0, (size_t)cell->bytes * (has_parts(cell->coll) ? (size_t)t->size : 1));
    int rc = rf_barrier(t->comm);
    double start = now_s();
    if (!rc) {
        rc = rf_run(t->comm, &call);
    }
    *seconds = now_s() - start;
    return rc;
}

/* Those that may be chosen. What rf_tuning.h says of order holds for this, too. */
static void list_candidates(const struct tune *t, struct cell *cell) {
    bool ordered = !t->settings->any_order && t->size <= RF_TUNING_ORDERED_RANKS &&
                   cell->coll != RF_COLL_REDUCE;
    for (int a = RF_ALGORITHM_AUTO + 1; a < RF_ALGORITHM_COUNT; a++) {
        enum rf_algorithm algorithm = (enum rf_algorithm)a;
        bool is_twin = algorithm == RF_ALGORITHM_NAIVE && /* the same messages under two names */
                       rf_algorithm_covers(cell->coll, RF_ALGORITHM_DIRECT) &&
                       cell->coll != RF_COLL_ALLREDUCE;
        bool is_possible = algorithm == RF_ALGORITHM_SHARED         ? t->link == RF_LINK_SHM
                           : algorithm == RF_ALGORITHM_HIERARCHICAL ? t->link == RF_LINK_TCP
                                                                    : true;
        if (is_possible && !is_twin && rf_algorithm_covers(cell->coll, algorithm) &&
            (!ordered || rf_algorithm_keeps_order(cell->coll, algorithm))) {
            cell->candidates[cell->count++] = (struct candidate){.algorithm = algorithm};
        }
    }
}

/* The first call of each sets up what it needs, the second is timed: who is hopeless goes, and all
 * ranks agree on the rounds that fit into the cell's share of the time. */
static int warm_up(struct tune *t, struct cell *cell, int *rounds) {
    double first[RF_ALGORITHM_COUNT + 1] = {0}, fastest = INFINITY;
    int least = t->settings->quick ? QUICK_ROUNDS : LEAST_ROUNDS, kept = 0, rc = 0;

    for (int i = 0; !rc && i < cell->count; i++) {
        rc = time_once(t, cell, cell->candidates[i].algorithm, &first[i]);
        if (rc == RF_EUNSUPPORTED) { /* the hosts are not what it needs: on all ranks alike */
            cell->candidates[i--] = cell->candidates[--cell->count];
            rc = 0;
        }
    }
    double begun = now_s();
    for (int i = 0; !rc && i < cell->count; i++) {
        rc = time_once(t, cell, cell->candidates[i].algorithm, &first[i]);
    }
    double each = now_s() - begun, share = (t->deadline - now_s()) / (t->cells > 0 ? t->cells : 1);
    first[cell->count] = each / (share > 1e-3 ? share : 1e-3); /* 1 / rounds */
    if (!rc) {
        rc = rf_allreduce(t->comm, first, first, (size_t)cell->count + 1, RF_F64, RF_MAX);
    }
    double fit = 1 / (first[cell->count] > 1e-9 ? first[cell->count] : 1e-9);
    *rounds = fit < least ? least : fit > MOST_ROUNDS ? MOST_ROUNDS : (int)fit;
    for (int i = 0; i < cell->count; i++) {
        fastest = first[i] < fastest ? first[i] : fastest;
    }
    for (int i = 0; i < cell->count; i++) {
        struct candidate *c = &cell->candidates[i];
        if (first[i] <= HOPELESS * fastest || c->algorithm == cell->own) {
            cell->candidates[kept++].algorithm = c->algorithm;
        }
    }
    cell->count = kept;
    return rc;
}

static int measure(struct tune *t, struct cell *cell) {
    int rounds = 0;
    double ignored;
    int rc = time_once(t, cell, RF_ALGORITHM_AUTO, &ignored);

    cell->own = rf_last_algorithm(t->comm);
    if (!rc) {
        rc = warm_up(t, cell, &rounds);
    }

    for (int round = 0; !rc && round < rounds; round++) {
        for (int k = 0; !rc && k < cell->count; k++) {
            struct candidate *c = &cell->candidates[(k + round) % cell->count];
            rc = time_once(t, cell, c->algorithm, &c->times[round]);
        }
    }
    for (int i = 0; !rc && i < cell->count; i++) {
        struct candidate *c = &cell->candidates[i];
        rc = rf_allreduce(t->comm, c->times, c->times, (size_t)rounds, RF_F64, RF_MAX);
        qsort(c->times, (size_t)rounds, sizeof *c->times, by_value);
        c->median = c->times[rounds / 2];
    }
    return rc;
}

static const struct candidate *fastest_but(const struct cell *cell, const struct candidate *other) {
    const struct candidate *best = NULL;
    for (int i = 0; i < cell->count; i++) {
        const struct candidate *c = &cell->candidates[i];
        if (c != other && (!best || c->median < best->median)) {
            best = c;
        }
    }
    return best;
}

static const struct candidate *own_choice(const struct cell *cell) {
    const struct candidate *own = NULL;
    for (int i = 0; i < cell->count; i++) {
        own = cell->candidates[i].algorithm == cell->own ? &cell->candidates[i] : own;
    }
    return own;
}

/* -------- the table -------- */

/* Up to which size the measurement counts: half way, on a logarithmic scale, to the next. */
static uint64_t border(uint64_t bytes, uint64_t next) {
    return next ? (uint64_t)sqrt((double)bytes * (double)next) : bytes * REACH;
}

static int conclude(struct tune *t, const struct cell *cell, uint64_t next, struct rf_error *err) {
    const struct candidate *own = own_choice(cell), *won = fastest_but(cell, NULL);
    char size[FORMAT_MAX], time[FORMAT_MAX] = "-";

    if (own && own->median <= CLEARLY * won->median) {
        won = own;
    }
    const struct candidate *second = fastest_but(cell, won);
    struct rf_tuning_rule rule = {.coll = cell->coll,
                                  .link = t->link,
                                  .ranks = t->size,
                                  .bytes = border(cell->bytes, next),
                                  .algorithm = won->algorithm,
                                  .measured_bytes = cell->bytes,
                                  .seconds = won->median};
    if (second) {
        rule.second = second->algorithm;
        rule.second_seconds = second->median;
        snprintf(time, sizeof time, "%.2f", second->median * 1e6);
    }
    if (t->rank == 0) {
        printf(" %-14s %10s  %-18s %11.2f  %-18s %11s %7.2f\n", rf_coll_name(cell->coll),
               format_bytes(size, cell->bytes), rf_algorithm_name(won->algorithm),
               won->median * 1e6, second ? rf_algorithm_name(second->algorithm) : "-", time,
               own ? own->median / won->median : 1);
        fflush(stdout);
    }
    return rf_tuning_add(&t->table, &rule, err);
}

/* The bytes of the full buffer of a call. */
static uint64_t buffer_bytes(const struct tune *t, enum rf_coll coll, uint64_t bytes) {
    return bytes * (has_parts(coll) ? (uint64_t)t->size : 1);
}

/* The sizes of a collective end where its buffers would be too large. */
static bool is_measured(const struct tune *t, enum rf_coll coll, uint64_t bytes) {
    return bytes && buffer_bytes(t, coll, bytes) <= LARGEST_BUFFER;
}

static bool is_wanted(const struct tune *t, int coll) {
    return !t->settings->collectives || (t->settings->collectives >> coll & 1);
}

/* How large the buffers must be. */
static size_t largest(const struct tune *t) {
    uint64_t most = 0;
    for (int coll = 0; coll < COLLECTIVES; coll++) {
        for (const uint64_t *size = t->sizes; *size; size++) {
            uint64_t bytes = buffer_bytes(t, (enum rf_coll)coll, *size);
            most = bytes > most && bytes <= LARGEST_BUFFER ? bytes : most;
        }
    }
    return (size_t)most;
}

static int measure_cell(struct tune *t, enum rf_coll coll, const uint64_t *size,
                        struct rf_error *err) {
    static struct cell cell; /* too large for a stack */
    int rc = 0;

    cell = (struct cell){.coll = coll, .bytes = *size};
    list_candidates(t, &cell);
    if (cell.count > 1) { /* else there is nothing to choose */
        rc = measure(t, &cell);
        if (rc) {
            rf_comm_error(t->comm, err);
            rc = err->code ? err->code
                           : report_fail(err, rc, 0, "%s of %llu bytes: %s", rf_coll_name(coll),
                                         (unsigned long long)*size, rf_error_text(rc));
        } else {
            rc = conclude(t, &cell, is_measured(t, coll, size[1]) ? size[1] : 0, err);
        }
    }
    t->cells--;
    return rc;
}

static int measure_all(struct tune *t, struct rf_error *err) {
    int rc = 0;

    for (int coll = 0; coll < COLLECTIVES; coll++) {
        for (const uint64_t *size = t->sizes; *size && is_wanted(t, coll); size++) {
            t->cells += is_measured(t, (enum rf_coll)coll, *size);
        }
    }
    if (t->rank == 0) {
        printf("# ringfold %s tune: %d workers, %s, f32, the slowest worker's median; ratio: the "
               "default's time to the winner's\n"
               "#%-14s %10s  %-18s %11s  %-18s %11s %7s\n",
               rf_version(), t->size, rf_comm_transport(t->comm), "collective", "size", "winner",
               "time (us)", "second", "time (us)", "ratio");
    }
    for (int coll = 0; coll < COLLECTIVES && !rc; coll++) {
        for (const uint64_t *size = t->sizes; *size && is_wanted(t, coll) && !rc; size++) {
            if (is_measured(t, (enum rf_coll)coll, *size)) {
                rc = measure_cell(t, (enum rf_coll)coll, size, err);
            }
        }
    }
    return rc;
}

/* What the file says of other groups, links and collectives stays. A file that cannot be read is
 * replaced. */
static int keep_others(struct tune *t, struct rf_error *err) {
    struct rf_tuning *old = calloc(1, sizeof *old);
    struct rf_error ignored;
    int rc = 0, measured = t->table.count;

    if (!old) {
        return report_fail(err, RF_ENOMEM, 0, "no memory for the table that is there");
    }
    if (rf_tuning_load(t->settings->path, old, &ignored)) {
        old->count = 0;
    }
    for (int i = 0; i < old->count && !rc; i++) {
        const struct rf_tuning_rule *rule = &old->rules[i];
        bool is_replaced = false;
        for (int k = 0; k < measured && !is_replaced; k++) {
            const struct rf_tuning_rule *mine = &t->table.rules[k];
            is_replaced =
                mine->coll == rule->coll && mine->link == rule->link && mine->ranks == rule->ranks;
        }
        if (!is_replaced) {
            rc = rf_tuning_add(&t->table, rule, err);
        }
    }
    free(old);
    return rc;
}

static void describe_machine(struct rf_tuning *table) {
    char host[40] = "?";
    time_t now = time(NULL);
    struct tm utc;

    (void)gethostname(host, sizeof host - 1);
    snprintf(table->machine, sizeof table->machine, "%s, %ld cores", host,
             sysconf(_SC_NPROCESSORS_ONLN));
    if (gmtime_r(&now, &utc)) {
        strftime(table->when, sizeof table->when, "%Y-%m-%dT%H:%M:%SZ", &utc);
    }
}

static int write_table(struct tune *t, struct rf_error *err) {
    const char *path = t->settings->path;
    int measured = t->table.count;

    describe_machine(&t->table);
    t->table.any_order = t->settings->any_order;
    int rc = keep_others(t, err);
    if (!rc) {
        rc = rf_tuning_save(&t->table, path, err);
    }
    if (!rc && t->settings->output) {
        printf("# %d rules written to %s; to use it: RINGFOLD_TUNING=%s\n", measured, path, path);
    } else if (!rc) {
        printf("# %d rules written to %s, which this user's jobs use from now on\n", measured,
               path);
    }
    return rc;
}

/* -------- the command -------- */

static int join(struct tune *t, struct rf_error *err) {
    struct rf_options options;

    rf_options_init(&options);
    int rc = rf_options_from_environ(&options, environ, err);
    if (!rc) {
        if (t->settings->has_transport) {
            options.transport = t->settings->transport;
        }
        options.tuning[0] = 0; /* which may be the one to be replaced */
        options.algorithm = RF_ALGORITHM_AUTO;
        rc = rf_comm_create(&options, &t->comm, err);
    }
    if (!rc) {
        t->rank = rf_rank(t->comm);
        t->size = rf_size(t->comm);
        t->link = strcmp(rf_comm_transport(t->comm), "shm") ? RF_LINK_TCP : RF_LINK_SHM;
    }
    return rc;
}

static int prepare(struct tune *t, struct rf_error *err) {
    int seconds = t->settings->seconds ? t->settings->seconds : t->settings->quick ? 5 : 30;
    int rc = 0;

    if (t->size < 2) {
        rc = report_fail(err, RF_EUSAGE, 0, "one worker alone has nothing to measure");
        snprintf(err->next, sizeof err->next, "ringfold tune -n 4");
        return rc;
    }
    t->sizes = t->settings->quick ? QUICK_SIZES : ALL_SIZES;
    t->deadline = now_s() + seconds;
    rc = rf_mem_alloc(t->comm, largest(t), &t->in, err);
    return rc ? rc : rf_mem_alloc(t->comm, largest(t), &t->out, err);
}

int cmd_tune(int argc, char **argv) {
    static const struct argp argp = {
        .options = flags,
        .parser = parse_flag,
        .args_doc = "[COLLECTIVE...]",
        .doc = "Measures which algorithms are the fastest among these workers, for all "
               "collectives or those named, and writes a table by which the library chooses."};
    static struct settings settings;
    static struct tune tune;
    struct rf_error err = {0};

    argp_parse(&argp, argc, argv, 0, NULL, &settings);
    tune = (struct tune){.settings = &settings};
    int rc = find_path(&settings, &err);
    if (!rc && settings.workers && !getenv("RINGFOLD_STORE")) {
        rc = start_workers(&settings, argc, argv, &err);
    }
    if (!rc) {
        rc = join(&tune, &err);
    }
    if (!rc) {
        rc = prepare(&tune, &err);
    }
    if (!rc) {
        rc = measure_all(&tune, &err);
    }
    if (!rc && tune.rank == 0) {
        rc = write_table(&tune, &err);
    }
    if (rc) {
        report_error(&err);
    }
    if (tune.comm) {
        rf_mem_free(tune.comm, tune.out);
        rf_mem_free(tune.comm, tune.in);
    }
    rf_comm_destroy(tune.comm);
    return exit_status(rc);
}
