/* ringfold bench: times one collective over a range of message sizes, and checks what it gave.
 *
 * Every rank runs this; rank 0 prints. For each size a rank writes its buffer anew before each
 * timed call (what lies in a cache from the last call would flatter), meets the others at a
 * barrier, and times the call. The time of an iteration is that of the slowest rank, the time of a
 * size the median over the iterations. In place by default, so one buffer of the largest size is
 * all that a rank holds. Sizes and bandwidths are those of nccl-tests, so that figures compare. */
#include "bench_data.h"
#include "commands.h"
#include "format.h"
#include "report.h"

#include <argp.h>
#include <ringfold/comm.h>
#include <ringfold/version.h>
#include <ringfold/wire.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <time.h>
#include <unistd.h>

enum {
    MOST_ITERATIONS = 1000000,
    MOST_FACTOR = 1 << 20,
    SENDRECV = RF_COLL_COUNT,
    PASSES = 4,            /* over all sizes */
    MOST_IN_A_PASS = 2000, /* calls of one size */
    MOST_SIZES = 64
};
static const double SECONDS_IN_A_PASS = 0.12; /* for one size */

/* What to measure, and with what. */
struct settings {
    int coll; /* enum rf_coll, or SENDRECV: each rank sends to the next and receives from the one
                 before */
    uint64_t min_bytes, max_bytes;
    int factor, root, warmup, iterations; /* iterations 0: by time */
    enum rf_type type;
    enum rf_redop redop;
    enum rf_algorithm algorithm;
    enum rf_wire wire;
    bool has_transport; /* else as the environment says */
    enum rf_transport transport;
    int streams; /* 0: the same */
    bool private_memory, out_of_place, check, json, verbose;
    bool have_coll, have_redop;
};

/* The traits of a collective. `parts`: the full buffer holds one part for each rank. `share`: on
 * the bus travels (n-1)/n of the buffer, `share` times. */
static const struct collective {
    const char *name;
    bool reduces, rooted, parts;
    int share; /* 0: the whole buffer once */
} collectives[] = {
    [RF_COLL_ALLREDUCE] = {"allreduce", true, false, false, 2},
    [RF_COLL_REDUCE_SCATTER] = {"reduce_scatter", true, false, true, 1},
    [RF_COLL_ALL_GATHER] = {"all_gather", false, false, true, 1},
    [RF_COLL_BROADCAST] = {"broadcast", false, true, false, 0},
    [RF_COLL_REDUCE] = {"reduce", true, true, false, 0},
    [RF_COLL_GATHER] = {"gather", false, true, true, 1},
    [RF_COLL_SCATTER] = {"scatter", false, true, true, 1},
    [RF_COLL_ALL_TO_ALL] = {"all_to_all", false, false, true, 1},
    [SENDRECV] = {"sendrecv", false, false, false, 0},
};

/* One size. */
struct result {
    size_t count, bytes;
    double *times; /* of all passes so far: `iterations` of them */
    int iterations;
    double seconds, algbw, busbw;
    uint64_t wrong;
    enum rf_algorithm algorithm;
};

struct bench {
    const struct settings *settings;
    const struct collective *collective;
    struct rf_comm *comm;
    int rank, size;
    unsigned char *memory,
        *other;             /* the full buffer; the results' where they are apart, else NULL */
    struct result *results; /* one a size */
    size_t sizes;
    struct rf_wire_sum *wire_sum; /* NULL: the collective as it is */
    struct bench_table table;     /* what this rank contributes */
    double busbw_sum;
    uint64_t wrong;
};

/* -------- options -------- */

enum {
    KEY_ALGORITHM = 0x100,
    KEY_TRANSPORT,
    KEY_STREAMS,
    KEY_PRIVATE,
    KEY_OUT_OF_PLACE,
    KEY_CHECK,
    KEY_JSON,
    KEY_WIRE
};

static const struct argp_option flags[] = {
    {"min-bytes", 'b', "SIZE", 0, "First size (4): bytes, or with K, M, G", 0},
    {"max-bytes", 'e', "SIZE", 0, "Last size (64M)", 0},
    {"factor", 'f', "N", 0, "From one size to the next (4)", 0},
    {"type", 't', "TYPE", 0, "f32 (default) f64 f16 bf16 i8 u8 i32 u32 i64 u64", 0},
    {"redop", 'o', "OP", 0, "sum (default) avg prod min max and or xor", 0},
    {"root", 'r', "RANK", 0, "Root of broadcast, reduce, gather, scatter (0)", 0},
    {"warmup", 'w', "N", 0, "Calls before the timed ones (3)", 0},
    {"iterations", 'n', "N", 0, "Timed calls; default as many as fit into half a second", 0},
    {"algorithm", KEY_ALGORITHM, "NAME", 0, "Use this one: ring, direct, tree, shared, …; auto", 0},
    {"transport", KEY_TRANSPORT, "NAME", 0, "auto, shm or tcp", 0},
    {"streams", KEY_STREAMS, "N", 0, "TCP connections between two workers (1)", 0},
    {"wire", KEY_WIRE, "NAME", 0, "Float32 sums travel as this: none, bf16 or int8", 0},
    {"private", KEY_PRIVATE, NULL, 0, "Buffers in ordinary memory, not the library's shared", 0},
    {"out-of-place", KEY_OUT_OF_PLACE, NULL, 0, "Results into a second buffer", 0},
    {"check", KEY_CHECK, "0|1", 0, "Verify the results after timing (1)", 0},
    {"json", KEY_JSON, NULL, 0, "One JSON object a line, and nothing else", 0},
    {"verbose", 'v', NULL, 0, "Say which algorithm is chosen, and why, on stderr", 0},
    {0}};

static void parse_size(struct argp_state *state, const char *text, uint64_t *out) {
    if (parse_bytes(text, out) || *out == 0 || *out > SIZE_MAX / 4) {
        argp_error(state, "'%s' is no size: 4096, 64K, 256M, 1G", text);
    }
}

static void parse_number(struct argp_state *state, const char *text, long least, long most,
                         int *out) {
    if (parse_int(text, least, most, out)) {
        argp_error(state, "'%s' is not between %ld and %ld", text, least, most);
    }
}

static void parse_collective(struct argp_state *state, const char *text, struct settings *s) {
    enum rf_coll coll = RF_COLL_COUNT;
    s->have_coll = true;
    if (!strcmp(text, "sendrecv")) {
        s->coll = SENDRECV;
    } else if (rf_coll_parse(text, &coll) || coll > RF_COLL_ALL_TO_ALL) {
        argp_error(state, "'%s' is no collective that can be measured", text);
    } else {
        s->coll = (int)coll;
    }
}

static void parse_names(int key, struct argp_state *state, const char *text, struct settings *s) {
    int rc = 0;
    if (key == 't') {
        rc = rf_type_parse(text, &s->type);
    } else if (key == 'o') {
        rc = rf_redop_parse(text, &s->redop);
        s->have_redop = true;
    } else {
        rc = rf_algorithm_parse(text, &s->algorithm);
    }
    if (rc) {
        argp_error(state, "'%s' is no %s", text,
                   key == 't'   ? "type"
                   : key == 'o' ? "operation"
                                : "algorithm");
    }
}

static void check_settings(struct argp_state *state, const struct settings *s) {
    char names[RF_ALGORITHMS_TEXT];

    if (!s->have_coll) {
        argp_error(state, "say which collective: allreduce, all_gather, reduce_scatter, …");
    } else if (s->max_bytes < s->min_bytes) {
        argp_error(state, "the last size is smaller than the first");
    } else if (s->have_redop && !collectives[s->coll].reduces) {
        argp_error(state, "%s has no operation", collectives[s->coll].name);
    } else if (s->wire != RF_WIRE_NONE &&
               (s->coll != RF_COLL_ALLREDUCE || s->type != RF_F32 || s->redop != RF_SUM ||
                s->algorithm != RF_ALGORITHM_AUTO)) {
        argp_error(state, "--wire is for allreduce of f32, sum, by whatever algorithm");
    } else if (!rf_redop_valid(s->redop, s->type)) {
        argp_error(state, "'%s' is not defined for %s", rf_redop_name(s->redop),
                   rf_type_name(s->type));
    } else if (s->algorithm != RF_ALGORITHM_AUTO && s->coll == SENDRECV) {
        argp_error(state, "sendrecv has no algorithm");
    } else if (s->algorithm != RF_ALGORITHM_AUTO &&
               !rf_algorithm_covers((enum rf_coll)s->coll, s->algorithm)) {
        argp_error(state, "algorithm %s does not cover %s: %s can", rf_algorithm_name(s->algorithm),
                   collectives[s->coll].name, rf_algorithms_covering((enum rf_coll)s->coll, names));
    }
}

static error_t parse_flag(int key, char *text, struct argp_state *state) {
    struct settings *s = state->input;
    int number = 0;
    error_t rc = 0;
    switch (key) {
    case 'b':
        parse_size(state, text, &s->min_bytes);
        break;
    case 'e':
        parse_size(state, text, &s->max_bytes);
        break;
    case 'f':
        parse_number(state, text, 2, MOST_FACTOR, &s->factor);
        break;
    case 't':
    case 'o':
    case KEY_ALGORITHM:
        parse_names(key, state, text, s);
        break;
    case 'r':
        parse_number(state, text, 0, RF_MAX_RANKS - 1, &s->root);
        break;
    case 'w':
        parse_number(state, text, 0, MOST_ITERATIONS, &s->warmup);
        break;
    case 'n':
        parse_number(state, text, 1, MOST_ITERATIONS, &s->iterations);
        break;
    case KEY_TRANSPORT:
        s->has_transport = true;
        if (parse_transport(text, &s->transport)) {
            argp_error(state, "'%s' is no transport: auto, shm or tcp", text);
        }
        break;
    case KEY_STREAMS:
        parse_number(state, text, 1, RF_MAX_STREAMS, &s->streams);
        break;
    case KEY_WIRE:
        if (rf_wire_parse(text, &s->wire)) {
            argp_error(state, "'%s' is no wire type: none, bf16 or int8", text);
        }
        break;
    case KEY_PRIVATE:
        s->private_memory = true;
        break;
    case KEY_OUT_OF_PLACE:
        s->out_of_place = true;
        break;
    case KEY_CHECK:
        parse_number(state, text, 0, 1, &number);
        s->check = number;
        break;
    case KEY_JSON:
        s->json = true;
        break;
    case 'v':
        s->verbose = true;
        break;
    case ARGP_KEY_ARG:
        if (s->have_coll) {
            argp_error(state, "one collective at a time: '%s' is too much", text);
        }
        parse_collective(state, text, s);
        break;
    case ARGP_KEY_END:
        check_settings(state, s);
        break;
    default:
        rc = ARGP_ERR_UNKNOWN;
    }
    return rc;
}

/* -------- the calls -------- */

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static size_t element_bytes(const struct bench *b) {
    return rf_type_size(b->settings->type);
}

/* The elements of the full buffer. */
static size_t full_count(const struct bench *b, size_t count) {
    return b->collective->parts ? count * (size_t)b->size : count;
}

static bool is_root(const struct bench *b) {
    return b->rank == b->settings->root;
}

/* Where this rank's own part lies within a full buffer. */
static unsigned char *own_part(const struct bench *b, unsigned char *full, size_t count) {
    return full + (size_t)b->rank * count * element_bytes(b);
}

/* Which buffers the call takes. A full buffer that only the root needs is left out elsewhere; in
 * place, parts lie where they lie in the full buffer. */
static void set_buffers(const struct bench *b, struct rf_call *call) {
    unsigned char *in = b->memory, *out = b->other ? b->other : b->memory;
    bool in_place = !b->other;
    switch (call->coll) {
    case RF_COLL_REDUCE_SCATTER:
        call->send = in;
        call->recv = in_place ? own_part(b, in, call->count) : out;
        break;
    case RF_COLL_ALL_GATHER:
        call->send = in_place ? own_part(b, in, call->count) : in;
        call->recv = out;
        break;
    case RF_COLL_GATHER:
        call->send = in_place ? own_part(b, in, call->count) : in;
        call->recv = is_root(b) ? out : NULL;
        break;
    case RF_COLL_SCATTER:
        call->send = is_root(b) ? in : NULL;
        call->recv = in_place ? own_part(b, in, call->count) : out;
        break;
    case RF_COLL_ALLREDUCE:
    case RF_COLL_BROADCAST:
    case RF_COLL_REDUCE:
    case RF_COLL_ALL_TO_ALL:
    case RF_COLL_BARRIER:
    case RF_COLL_SEND:
    case RF_COLL_RECV:
    case RF_COLL_COUNT:
        call->send = in;
        call->recv = out;
        break;
    }
}

static int run_sendrecv(const struct bench *b, size_t count) {
    struct rf_call send = {.coll = RF_COLL_SEND,
                           .type = b->settings->type,
                           .root = (b->rank + 1) % b->size,
                           .send = b->memory,
                           .count = count};
    struct rf_call recv = {.coll = RF_COLL_RECV,
                           .type = b->settings->type,
                           .root = (b->rank + b->size - 1) % b->size,
                           .recv = b->other,
                           .count = count};
    struct rf_request *sending = NULL;
    int rc = rf_start(b->comm, &send, &sending);
    if (!rc) {
        int received = rf_run(b->comm, &recv);
        rc = rf_wait(sending, -1);
        rc = received ? received : rc;
    }
    return rc;
}

static int run_once(const struct bench *b, size_t count) {
    int rc;
    if (b->settings->coll == SENDRECV) {
        rc = run_sendrecv(b, count);
    } else if (b->wire_sum) {
        float *out = (float *)(void *)(b->other ? b->other : b->memory);
        rc = rf_wire_sum_run(b->wire_sum, (const float *)(void *)b->memory, out, count);
    } else {
        struct rf_call call = {.coll = (enum rf_coll)b->settings->coll,
                               .type = b->settings->type,
                               .redop = b->settings->redop,
                               .root = b->settings->root,
                               .count = count,
                               .algorithm = b->settings->algorithm};
        set_buffers(b, &call);
        rc = rf_run(b->comm, &call);
    }
    return rc;
}

/* This rank's contribution, where the call takes it from. */
static void write_inputs(const struct bench *b, size_t count) {
    unsigned char *own = b->other ? b->memory : own_part(b, b->memory, count);
    switch (b->settings->coll) {
    case RF_COLL_ALL_GATHER:
    case RF_COLL_GATHER:
        bench_fill(&b->table, own, 0, count);
        break;
    case RF_COLL_BROADCAST:
    case RF_COLL_SCATTER:
        if (is_root(b)) {
            bench_fill(&b->table, b->memory, 0, full_count(b, count));
        }
        break;
    default:
        bench_fill(&b->table, b->memory, 0, full_count(b, count));
    }
}

/* -------- the check -------- */

/* Elements that are off by more than compression may be: values are 100 at most, each rank's is
 * rounded and then their sum, and what the call before has lost may be in it. */
static uint64_t count_off(const struct bench *b, const struct bench_table *want,
                          const unsigned char *out, size_t count) {
    const float *found = (const float *)(const void *)out;
    float each = b->settings->wire == RF_WIRE_INT8 ? 1.7f : 0.8f, expected;
    uint64_t wrong = 0;
    for (size_t i = 0; i < count; i++) {
        memcpy(&expected, want->elements + i % BENCH_PERIOD * sizeof expected, sizeof expected);
        float off = found[i] - expected;
        wrong += !(off <= each * (float)b->size && off >= -each * (float)b->size);
    }
    return wrong;
}

/* Elements of this rank's result that are not what they must be. */
static uint64_t count_wrong(const struct bench *b, size_t count) {
    static struct bench_table want;
    const struct settings *s = b->settings;
    unsigned char *out = b->other ? b->other : b->memory;
    unsigned char *part = b->other ? b->other : own_part(b, b->memory, count);
    size_t first = (size_t)b->rank * count, bytes = count * element_bytes(b);
    uint64_t wrong = 0;
    switch (s->coll) {
    case RF_COLL_ALLREDUCE:
    case RF_COLL_REDUCE:
        if (s->coll == RF_COLL_ALLREDUCE || is_root(b)) {
            bench_table_reduced(&want, s->type, s->redop, b->size);
            wrong = b->wire_sum ? count_off(b, &want, out, count)
                                : bench_count_wrong(&want, out, 0, count);
        }
        break;
    case RF_COLL_REDUCE_SCATTER:
        bench_table_reduced(&want, s->type, s->redop, b->size);
        wrong = bench_count_wrong(&want, part, first, count);
        break;
    case RF_COLL_ALL_GATHER:
    case RF_COLL_GATHER:
    case RF_COLL_ALL_TO_ALL:
        for (int k = 0; k < b->size && (s->coll != RF_COLL_GATHER || is_root(b)); k++) {
            bench_table_of_rank(&want, s->type, RF_REDOP_COUNT, k, b->size);
            wrong += bench_count_wrong(&want, out + (size_t)k * bytes,
                                       s->coll == RF_COLL_ALL_TO_ALL ? first : 0, count);
        }
        break;
    case RF_COLL_BROADCAST:
        bench_table_of_rank(&want, s->type, RF_REDOP_COUNT, s->root, b->size);
        wrong = bench_count_wrong(&want, out, 0, count);
        break;
    case RF_COLL_SCATTER:
        bench_table_of_rank(&want, s->type, RF_REDOP_COUNT, s->root, b->size);
        wrong = bench_count_wrong(&want, part, first, count);
        break;
    case SENDRECV:
        bench_table_of_rank(&want, s->type, RF_REDOP_COUNT, (b->rank + b->size - 1) % b->size,
                            b->size);
        wrong = bench_count_wrong(&want, out, 0, count);
        break;
    default:
        break;
    }
    return wrong;
}

/* One more call, into memory that holds nothing like the result, checked by every rank. */
static int check(const struct bench *b, size_t count, uint64_t *wrong) {
    memset(b->other ? b->other : b->memory, 0xee, full_count(b, count) * element_bytes(b));
    write_inputs(b, count);
    int rc = run_once(b, count);
    if (!rc) {
        *wrong = count_wrong(b, count);
        rc = rf_allreduce(b->comm, wrong, wrong, 1, RF_U64, RF_SUM);
    }
    return rc;
}

/* -------- the measurement -------- */

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* One call with fresh inputs; *seconds is the time of the call alone. */
static int time_once(struct bench *b, size_t count, double *seconds) {
    write_inputs(b, count);
    int rc = rf_barrier(b->comm);
    double start = now_s();
    if (!rc) {
        rc = run_once(b, count);
    }
    *seconds = now_s() - start;
    return rc;
}

/* Warms up, and agrees with all ranks on how many calls to time in this pass. */
static int warm_up(struct bench *b, const struct result *r, int *calls) {
    const struct settings *s = b->settings;
    double begun = now_s(), seconds = 0;
    int rc = 0;

    for (int k = 0; !rc && k < s->warmup; k++) {
        rc = time_once(b, r->count, &seconds);
    }
    *calls = s->iterations;
    if (rc || s->iterations) {
        return rc;
    }
    double each = s->warmup ? (now_s() - begun) / s->warmup : 1;
    rc = rf_allreduce(b->comm, &each, &each, 1, RF_F64, RF_MAX);
    int least = r->bytes <= 65536 ? 100 : r->bytes <= (4u << 20) ? 10 : 3;
    double fit = SECONDS_IN_A_PASS / (each > 1e-9 ? each : 1e-9);
    *calls = fit < least ? least : fit > MOST_IN_A_PASS ? MOST_IN_A_PASS : (int)fit;
    return rc;
}

static double bus_share(const struct bench *b) {
    int share = b->collective->share;
    return share ? share * (b->size - 1.0) / b->size : 1;
}

/* More times of one size; each that of the slowest rank. */
static int sample(struct bench *b, struct result *r) {
    int calls = 0;
    int rc = warm_up(b, r, &calls);
    double *times = r->times + r->iterations;
    for (int k = 0; !rc && k < calls; k++) {
        rc = time_once(b, r->count, &times[k]);
    }
    if (!rc) {
        r->algorithm = rf_last_algorithm(b->comm);
        rc = rf_allreduce(b->comm, times, times, (size_t)calls, RF_F64, RF_MAX);
        r->iterations += calls;
    }
    return rc;
}

static int conclude(struct bench *b, struct result *r) {
    qsort(r->times, (size_t)r->iterations, sizeof *r->times, by_value);
    r->seconds = r->times[r->iterations / 2];
    r->algbw = (double)r->bytes / r->seconds / 1e9;
    r->busbw = r->algbw * bus_share(b);
    return b->settings->check ? check(b, r->count, &r->wrong) : 0;
}

/* -------- the screen -------- */

static void print_header(const struct bench *b) {
    printf("# ringfold %s bench %s: %d worker%s, %s, %s memory%s%s\n", rf_version(),
           b->collective->name, b->size, b->size == 1 ? "" : "s",
           b->other ? "out of place" : "in place",
           b->settings->private_memory ? "private" : "shared", b->wire_sum ? ", as " : "",
           b->wire_sum ? rf_wire_name(b->settings->wire) : "");
    printf("#%12s %13s %5s %5s %5s %12s %8s %8s %6s  %-18s %s\n", "size (B)", "count", "type",
           "redop", "root", "time (us)", "algbw", "busbw", "#wrong", "algorithm", "transport");
}

static void print_result(const struct bench *b, const struct result *r) {
    const struct settings *s = b->settings;
    const char *redop = b->collective->reduces ? rf_redop_name(s->redop) : "none";
    int root = b->collective->rooted ? s->root : -1;
    const char *transport = rf_comm_transport(b->comm), *type = rf_type_name(s->type);
    const char *algorithm = s->coll == SENDRECV ? "none" : rf_algorithm_name(r->algorithm);
    char wrong[24] = "-";
    if (s->check) {
        snprintf(wrong, sizeof wrong, "%llu", (unsigned long long)r->wrong);
    }
    if (s->json) {
        printf(
            "{\"collective\":\"%s\",\"bytes\":%zu,\"count\":%zu,\"type\":\"%s\",\"redop\":\"%s\","
            "\"root\":%d,\"time_us\":%.3f,\"algbw\":%.6g,\"busbw\":%.6g,\"wrong\":%s,"
            "\"algorithm\":\"%s\",\"transport\":\"%s\",\"wire\":\"%s\",\"n\":%d,"
            "\"iterations\":%d,"
            "\"in_place\":%s,\"private\":%s,\"version\":\"%s\"}\n",
            b->collective->name, r->bytes, r->count, type, redop, root, r->seconds * 1e6, r->algbw,
            r->busbw, s->check ? wrong : "null", algorithm, transport, rf_wire_name(s->wire),
            b->size, r->iterations, b->other ? "false" : "true",
            s->private_memory ? "true" : "false", rf_version());
    } else {
        printf(" %12zu %13zu %5s %5s %5d %12.2f %8.3f %8.3f %6s  %-18s %s\n", r->bytes, r->count,
               type, redop, root, r->seconds * 1e6, r->algbw, r->busbw, wrong, algorithm,
               transport);
    }
    fflush(stdout);
}

static void print_end(const struct bench *b) {
    if (!b->settings->json) {
        printf("# average busbw: %.3f GB/s\n", b->busbw_sum / (double)b->sizes);
        if (b->wrong) {
            printf("# %llu elements are wrong\n", (unsigned long long)b->wrong);
        }
    }
}

/* -------- set-up -------- */

/* What was chosen is the same on all: rank 0 tells of it. */
static void on_choice(void *context, const char *line) {
    struct rf_comm **comm = context;
    if (*comm && rf_rank(*comm) == 0) {
        fprintf(stderr, "%s\n", line);
    }
}

static int join(const struct settings *s, struct rf_comm **out, struct rf_error *err) {
    struct rf_options options;
    rf_options_init(&options);
    int rc = rf_options_from_environ(&options, environ, err);
    if (!rc) {
        if (s->has_transport) {
            options.transport = s->transport;
        }
        options.streams = s->streams ? s->streams : options.streams;
        options.choice = s->verbose ? on_choice : NULL;
        options.choice_context = out;
        rc = rf_comm_create(&options, out, err);
    }
    return rc;
}

static int get_memory(const struct bench *b, size_t bytes, unsigned char **out,
                      struct rf_error *err) {
    void *memory = NULL;
    int rc = 0;
    if (!b->settings->private_memory) {
        rc = rf_mem_alloc(b->comm, bytes, &memory, err);
    } else {
        memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
        if (memory) {
            memset(memory, 0, bytes); /* the pages come now, not in the first timed call */
        } else {
            rc = report_fail(err, RF_ENOMEM, 0, "no memory for a buffer of %zu bytes", bytes);
        }
    }
    *out = memory;
    return rc;
}

static void free_memory(const struct bench *b, unsigned char *memory) {
    if (b->settings->private_memory) {
        free(memory);
    } else if (memory) {
        rf_mem_free(b->comm, memory);
    }
}

/* The elements of one call whose full buffer is at most `bytes`. */
static size_t count_for(const struct bench *b, uint64_t bytes) {
    return (size_t)bytes / element_bytes(b) / (b->collective->parts ? (size_t)b->size : 1);
}

/* The sizes to measure, with room for their times; those too small for one element a rank are left
 * out. */
static int list_sizes(struct bench *b, struct rf_error *err) {
    const struct settings *s = b->settings;
    size_t most = s->iterations ? (size_t)s->iterations : PASSES * MOST_IN_A_PASS;

    b->results = calloc(MOST_SIZES, sizeof *b->results);
    for (uint64_t bytes = s->min_bytes;
         b->results && bytes <= s->max_bytes && b->sizes < MOST_SIZES;
         bytes *= (uint64_t)s->factor) {
        size_t count = count_for(b, bytes);
        if (count) {
            struct result *r = &b->results[b->sizes++];
            r->count = count;
            r->bytes = full_count(b, count) * element_bytes(b);
            r->times = calloc(most, sizeof *r->times);
            if (!r->times) {
                return report_fail(err, RF_ENOMEM, 0, "no memory for %zu times", most);
            }
        }
        if (bytes > UINT64_MAX / (uint64_t)s->factor) {
            break;
        }
    }
    return b->results ? 0 : report_fail(err, RF_ENOMEM, 0, "no memory for the results");
}

static int prepare(struct bench *b, struct rf_error *err) {
    const struct settings *s = b->settings;
    size_t bytes = full_count(b, count_for(b, s->max_bytes)) * element_bytes(b);
    int rc = 0;
    if (bytes == 0) {
        rc = report_fail(err, RF_EUSAGE, 0, "the last size holds no element for each of %d workers",
                         b->size);
    } else if (b->collective->rooted && s->root >= b->size) {
        rc = report_fail(err, RF_EUSAGE, 0, "root %d is no rank of %d workers", s->root, b->size);
    } else if (s->coll == SENDRECV && b->size < 2) {
        rc = report_fail(err, RF_EUSAGE, 0, "sendrecv needs at least 2 workers");
    } else {
        rc = get_memory(b, bytes, &b->memory, err);
    }
    if (!rc && (s->out_of_place || s->coll == SENDRECV)) {
        rc = get_memory(b, bytes, &b->other, err);
    }
    if (!rc && s->wire != RF_WIRE_NONE) {
        rc = rf_wire_sum_create(b->comm, s->wire, count_for(b, s->max_bytes), &b->wire_sum, err);
    }
    if (!rc) {
        rc = list_sizes(b, err);
    }
    bench_table_of_rank(&b->table, s->type, b->collective->reduces ? s->redop : RF_REDOP_COUNT,
                        b->rank, b->size);
    return rc;
}

/* Several passes over all sizes, so that a disturbance of the machine hits a part of each size's
 * times and not all of one size's. The lines appear during the last. */
static int measure_all(struct bench *b, struct rf_error *err) {
    const struct settings *s = b->settings;
    int passes = s->iterations ? 1 : PASSES, rc = 0;
    if (b->rank == 0 && !s->json) {
        print_header(b);
    }
    for (int pass = 0; pass < passes; pass++) {
        for (size_t i = 0; i < b->sizes; i++) {
            struct result *r = &b->results[i];
            rc = sample(b, r);
            if (!rc && pass == passes - 1) {
                rc = conclude(b, r);
            }
            if (rc) {
                rf_comm_error(b->comm, err);
                return err->code ? rc
                                 : report_fail(err, rc, 0, "%s of %zu bytes: %s",
                                               b->collective->name, r->bytes, rf_error_text(rc));
            }
            if (pass == passes - 1) {
                b->busbw_sum += r->busbw;
                b->wrong += r->wrong;
                if (b->rank == 0) {
                    print_result(b, r);
                }
            }
        }
    }
    if (b->rank == 0 && b->sizes) {
        print_end(b);
    }
    return 0;
}

static void free_results(struct bench *b) {
    for (size_t i = 0; i < b->sizes; i++) {
        free(b->results[i].times);
    }
    free(b->results);
}

int cmd_bench(int argc, char **argv) {
    static const struct argp argp = {
        .options = flags,
        .parser = parse_flag,
        .args_doc = "COLLECTIVE",
        .doc =
            "Measures allreduce, all_gather, reduce_scatter, broadcast, reduce, gather, scatter, "
            "all_to_all or sendrecv, among the workers that 'ringfold run' started."};
    struct settings settings = {.min_bytes = 4,
                                .max_bytes = 64u << 20,
                                .factor = 4,
                                .warmup = 3,
                                .type = RF_F32,
                                .redop = RF_SUM,
                                .algorithm = RF_ALGORITHM_AUTO,
                                .check = true};
    static struct bench bench;
    struct rf_error err = {0};
    int rc = 0, status = 0;

    argp_parse(&argp, argc, argv, 0, NULL, &settings);
    bench = (struct bench){.settings = &settings, .collective = &collectives[settings.coll]};
    rc = join(&settings, &bench.comm, &err);
    if (!rc) {
        bench.rank = rf_rank(bench.comm);
        bench.size = rf_size(bench.comm);
        rc = prepare(&bench, &err);
    }
    if (!rc) {
        rc = measure_all(&bench, &err);
    }
    if (rc) {
        report_error(&err);
        status = exit_status(rc);
    } else if (bench.wrong) {
        status = EXIT_FAILURE;
    }
    free_results(&bench);
    rf_wire_sum_destroy(bench.wire_sum);
    if (bench.comm) {
        free_memory(&bench, bench.other);
        free_memory(&bench, bench.memory);
    }
    rf_comm_destroy(bench.comm);
    return status;
}
