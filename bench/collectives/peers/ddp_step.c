/* What a step of data-parallel training costs, beside the folding alone: the figures of
 * docs/BENCH.md, "step".
 *
 * The model is a transformer's list of tensors, 100 MB of float32 in all. A step's compute writes a
 * gradient to each tensor, from the last to the first, tells the library, and keeps its core busy
 * for a time that the tensor's size decides; then the step is committed. What the library costs is
 * the CPU time of the process from begin to commit, all threads, less what the compute took of its
 * own thread.
 *
 * The folding alone is what no step can do without: with every gradient already in memory that all
 * ranks share, each rank reads its part of all ranks' gradients and writes the quotient into every
 * rank's averages, in pieces of the library's bucket size: out of place, as a step promises to
 * leave the gradients as they are. Plain stores and streaming ones are both measured, and the
 * cheaper counts. No messages, no waits but at both ends, which do not count; all ranks at the same
 * time.
 *
 * Steps and foldings alternate. The averages are held against those of the folding, bit by bit.
 *
 *     ringfold run -n 2 -- ddp_step ROUNDS COMPUTE_MS[,COMPUTE_MS…] [BUCKET_BYTES]
 *
 * prints on rank 0 a line of JSON for each time of computing. Public headers only. */
#define _GNU_SOURCE
#include "lines.h"

#include <ringfold/ringfold.h>

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum {
    FLOATS = 25000000, /* of the model */
    WIDTH = 512,
    CONTEXT = 1024,
    LAYERS = 6,
    MOST_TENSORS = 128,
    MOST_RANKS = 8,
    MOST_ROUNDS = 1000,
    WARMUP = 2, /* rounds: in the second step the buckets take their order */
    SAMPLES = 4,
    LINE = 64 / sizeof(float)
};

extern char **environ;

enum figure {
    WALL,
    CPU,
    COMPUTE,
    EXPOSED,
    HIDDEN, /* these five of the step */
    BEGIN_CPU,
    COMMIT_CPU,
    PLAIN_WALL,
    PLAIN_CPU,
    STREAM_WALL,
    STREAM_CPU,
    FIGURES
};

static const char *const figure_names[FIGURES] = {
    [WALL] = "wall",
    [CPU] = "cpu",
    [COMPUTE] = "computed",
    [EXPOSED] = "exposed",
    [HIDDEN] = "hidden",
    [BEGIN_CPU] = "begin_cpu",
    [COMMIT_CPU] = "commit_cpu",
    [PLAIN_WALL] = "plain_fold_wall",
    [PLAIN_CPU] = "plain_fold_cpu",
    [STREAM_WALL] = "stream_fold_wall",
    [STREAM_CPU] = "stream_fold_cpu",
};

static struct rf_comm *comm;
static struct rf_ddp *ddp;
static int rank, size;
static size_t count[MOST_TENSORS];
static float *param[MOST_TENSORS];
static int tensors;
static float *grads[MOST_RANKS], *averages[MOST_RANKS]; /* of the folding, in shared memory */
static double seen[FIGURES][MOST_ROUNDS];

__attribute__((noreturn)) static void give_up(const char *what, const struct rf_error *err) {
    fprintf(stderr, "ddp_step: rank %d: %s: %s\n", rank, what,
            err && err->code ? err->text : strerror(errno));
    exit(EXIT_FAILURE);
}

static void must(int code, const char *what) {
    if (code) {
        struct rf_error err;
        rf_comm_error(comm, &err);
        if (!err.code) {
            snprintf(err.text, sizeof err.text, "%s", rf_error_text(code));
            err.code = code;
        }
        give_up(what, &err);
    }
}

static double seconds(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- the model */

static void add(size_t elements) {
    count[tensors++] = elements;
}

/* In the order of the forward pass; the embedding takes what is left. */
static void describe(void) {
    size_t w = WIDTH, total = 0;

    add(0);
    add((size_t)CONTEXT * w);
    for (int i = 0; i < LAYERS; i++) {
        const size_t layer[] = {w, w, 3 * w * w, 3 * w, w * w,     w,
                                w, w, 4 * w * w, 4 * w, 4 * w * w, w};
        for (size_t k = 0; k < sizeof layer / sizeof *layer; k++) {
            add(layer[k]);
        }
    }
    add(w);
    add(w);
    for (int i = 0; i < tensors; i++) {
        total += count[i];
    }
    count[0] = FLOATS - total;
}

static void set_up(size_t bucket_bytes) {
    struct rf_ddp_options options;
    struct rf_error err = {.code = 0};

    rf_ddp_options_init(&options);
    if (bucket_bytes) {
        options.bucket_bytes = bucket_bytes;
        options.first_bucket_bytes =
            bucket_bytes < options.first_bucket_bytes ? bucket_bytes : options.first_bucket_bytes;
    }
    int code = rf_ddp_create(comm, &options, &ddp, &err);
    for (int i = 0; i < tensors && !code; i++) {
        char name[16];
        snprintf(name, sizeof name, "tensor.%d", i);
        param[i] = calloc(count[i], sizeof(float));
        if (!param[i]) {
            give_up("allocating the parameters", NULL);
        }
        code = rf_ddp_register(ddp, name, param[i], count[i], &err);
    }
    if (!code) {
        code = rf_ddp_seal(ddp, &err);
    }
    if (code) {
        give_up("setting up", &err);
    }
}

/* ---- one step */

/* A gradient whose every element differs from its neighbours', from step to step, and on each rank:
 * written, or added to what is there. */
static void write_gradient(float *to, int tensor, uint64_t step, bool fresh) {
    float base = (float)(tensor + 1) + (float)(step % 64) * 0.25f + (float)rank * 0.125f;
    for (size_t i = 0; fresh && i < count[tensor]; i++) {
        to[i] = base + (float)(i & 1023) * 0.001f;
    }
    for (size_t i = 0; !fresh && i < count[tensor]; i++) {
        to[i] += base + (float)(i & 1023) * 0.001f;
    }
}

static void keep_busy(double until) {
    while (seconds(CLOCK_THREAD_CPUTIME_ID) < until) {
    }
}

static double take_step(double compute_s, int round) {
    struct rf_error err = {.code = 0};
    struct rf_step_report report;
    struct rf_step step;
    struct rf_shard shard;
    double compute = 0;

    must(rf_barrier(comm), "meeting before a step");
    double wall = seconds(CLOCK_MONOTONIC), cpu = seconds(CLOCK_PROCESS_CPUTIME_ID);
    double own = seconds(CLOCK_THREAD_CPUTIME_ID), begin;
    must(rf_ddp_begin(ddp, &step, &err), "beginning a step");
    begin = seconds(CLOCK_THREAD_CPUTIME_ID) - own;
    while (rf_ddp_next_shard(ddp, &shard) > 0) {
        rf_ddp_shard_samples(ddp, SAMPLES);
        for (int i = tensors - 1; i >= 0; i--) {
            bool fresh;
            float *gradient = rf_ddp_grad_fresh(ddp, i, &fresh);
            double from = seconds(CLOCK_THREAD_CPUTIME_ID);
            write_gradient(gradient, i, step.step, fresh);
            keep_busy(from + compute_s * (double)count[i] / FLOATS);
            compute += seconds(CLOCK_THREAD_CPUTIME_ID) - from;
            must(rf_ddp_ready(ddp, i), "telling that a gradient is ready");
        }
        must(rf_ddp_shard_done(ddp, 1.0), "telling that a shard is done");
    }
    own = seconds(CLOCK_THREAD_CPUTIME_ID);
    must(rf_ddp_commit(ddp, &report, &err), "committing a step");
    if (round >= 0) {
        seen[WALL][round] = seconds(CLOCK_MONOTONIC) - wall;
        seen[CPU][round] = seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu - compute;
        seen[COMPUTE][round] = compute;
        seen[EXPOSED][round] = report.exposed_s;
        seen[HIDDEN][round] = report.comm_s > 0 ? report.hidden_s / report.comm_s : 1;
        seen[BEGIN_CPU][round] = begin;
        seen[COMMIT_CPU][round] = seconds(CLOCK_THREAD_CPUTIME_ID) - own;
    }
    return (double)report.samples;
}

/* ---- the folding alone */

/* Memory that all ranks map, made by rank 0 and found through its process. */
static void share(void) {
    const size_t bytes = (size_t)FLOATS * sizeof(float), all = 2 * (size_t)size * bytes;
    int64_t where[2] = {getpid(), -1};
    char path[64];

    if (rank == 0) {
        where[1] = memfd_create("ddp_step", MFD_CLOEXEC);
        if (where[1] < 0 || ftruncate((int)where[1], (off_t)all)) {
            give_up("making memory to share", NULL);
        }
    }
    must(rf_broadcast(comm, where, where, 2, RF_I64, 0), "telling where the memory is");
    snprintf(path, sizeof path, "/proc/%lld/fd/%lld", (long long)where[0], (long long)where[1]);
    int file = open(path, O_RDWR | O_CLOEXEC);
    char *at = file < 0 ? MAP_FAILED : mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (at == MAP_FAILED) {
        give_up("mapping rank 0's memory", NULL);
    }
    close(file);
    (void)madvise(at, all, MADV_HUGEPAGE); /* as the library asks for its own */
    for (int r = 0; r < size; r++) {
        grads[r] = (float *)(void *)(at + 2 * (size_t)r * bytes);
        averages[r] = (float *)(void *)(at + (2 * (size_t)r + 1) * bytes);
    }
    memset(grads[rank], 0, 2 * bytes); /* first touched by its owner */
    must(rf_barrier(comm), "meeting after the memory was shared");
}

/* Floats at an address of any alignment. */
typedef float loose_t __attribute__((vector_size(64), aligned(4), may_alias));

static inline __attribute__((always_inline)) void fold(int n, size_t first, size_t end, float by,
                                                       void (*store)(float *to, line_t line)) {
    size_t i = first;
    for (; i + LINE <= end; i += LINE) {
        line_t sum = *(const loose_t *)(const void *)(grads[0] + i);
        for (int k = 1; k < n; k++) {
            sum += *(const loose_t *)(const void *)(grads[k] + i);
        }
        sum /= by;
        for (int k = 0; k < n; k++) {
            store(averages[k] + i, sum);
        }
    }
    for (; i < end; i++) {
        float sum = grads[0][i];
        for (int k = 1; k < n; k++) {
            sum += grads[k][i];
        }
        for (int k = 0; k < n; k++) {
            averages[k][i] = sum / by;
        }
    }
}

static void fold_part(size_t first, size_t end, float by, int stream) {
    if (size == 2 && stream) {
        fold(2, first, end, by, store_streaming);
    } else if (size == 2) {
        fold(2, first, end, by, store_plain);
    } else if (stream) {
        fold(size, first, end, by, store_streaming);
    } else {
        fold(size, first, end, by, store_plain);
    }
#ifdef __SSE2__
    _mm_sfence();
#endif
}

static void fold_alone(double samples, uint64_t step, size_t piece_bytes, int round, int stream) {
    size_t piece = piece_bytes / sizeof(float) / LINE * LINE, offset = 0;

    for (int i = 0; i < tensors; i++) {
        write_gradient(grads[rank] + offset, i, step, true);
        offset += count[i];
    }
    must(rf_barrier(comm), "meeting before a folding");
    double wall = seconds(CLOCK_MONOTONIC), cpu = seconds(CLOCK_THREAD_CPUTIME_ID);
    for (size_t at = 0; at < FLOATS; at += piece) {
        size_t length = FLOATS - at < piece ? FLOATS - at : piece;
        size_t first = at + length * (size_t)rank / (size_t)size / LINE * LINE;
        size_t end = rank + 1 == size
                         ? at + length
                         : at + length * (size_t)(rank + 1) / (size_t)size / LINE * LINE;
        fold_part(first, end, (float)samples, stream);
    }
    if (round >= 0) {
        seen[stream ? STREAM_WALL : PLAIN_WALL][round] = seconds(CLOCK_MONOTONIC) - wall;
        seen[stream ? STREAM_CPU : PLAIN_CPU][round] = seconds(CLOCK_THREAD_CPUTIME_ID) - cpu;
    }
    must(rf_barrier(comm), "meeting after a folding");
}

/* Elements of this rank's averages whose bits are not the folding's. */
static uint64_t differences(void) {
    uint64_t wrong = 0;
    size_t offset = 0;

    for (int t = 0; t < tensors; t++) {
        wrong +=
            memcmp(rf_ddp_average(ddp, t), averages[rank] + offset, count[t] * sizeof(float)) != 0;
        offset += count[t];
    }
    return wrong;
}

/* ---- figures */

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(const double *values, int n) {
    double sorted[MOST_ROUNDS];
    memcpy(sorted, values, (size_t)n * sizeof *values);
    qsort(sorted, (size_t)n, sizeof *sorted, by_value);
    return n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

/* The means over the ranks, so that a rank that waits less than its peer counts as both. */
static void tell(double compute_s, int rounds, size_t bucket_bytes, uint64_t wrong) {
    static double ratios[MOST_ROUNDS];
    double ends[2] = {0, 0};

    for (int f = 0; f < FIGURES; f++) {
        must(rf_allreduce(comm, seen[f], seen[f], (size_t)rounds, RF_F64, RF_AVG),
             "gathering figures");
    }
    must(rf_allreduce(comm, &wrong, &wrong, 1, RF_U64, RF_SUM), "gathering errors");
    int base =
        median(seen[PLAIN_CPU], rounds) < median(seen[STREAM_CPU], rounds) ? PLAIN_CPU : STREAM_CPU;
    for (int i = 0; i < rounds; i++) {
        ratios[i] = seen[CPU][i] / seen[base][i];
        ends[0] = i == 0 || ratios[i] < ends[0] ? ratios[i] : ends[0];
        ends[1] = i == 0 || ratios[i] > ends[1] ? ratios[i] : ends[1];
    }
    if (rank == 0) {
        printf("{\"compute_ms\": %g, \"bucket_bytes\": %zu, \"buckets\": %d, \"rounds\": %d, "
               "\"wrong\": %llu, \"ratio\": %.4f, \"low\": %.4f, \"high\": %.4f",
               compute_s * 1e3, bucket_bytes, rf_ddp_buckets(ddp), rounds,
               (unsigned long long)wrong, median(ratios, rounds), ends[0], ends[1]);
        for (int f = 0; f < FIGURES; f++) {
            double scale = f == HIDDEN ? 1 : 1e3;
            printf(", \"%s%s\": %.4f", figure_names[f], f == HIDDEN ? "" : "_ms",
                   median(seen[f], rounds) * scale);
        }
        printf("}\n");
        fflush(stdout);
    }
}

static void measure(double compute_s, int rounds, size_t bucket_bytes, uint64_t *step) {
    uint64_t wrong = 0;

    for (int round = -WARMUP; round < rounds; round++, ++*step) {
        int first = round & 1; /* which kind of stores comes first alternates */
        double samples = take_step(compute_s, round);
        fold_alone(samples, *step, bucket_bytes, round, first);
        fold_alone(samples, *step, bucket_bytes, round, !first);
        wrong += differences();
    }
    tell(compute_s, rounds, bucket_bytes, wrong);
}

int main(int argc, char **argv) {
    struct rf_ddp_options defaults;
    struct rf_options options;
    struct rf_error err = {.code = 0};
    int rounds = argc > 2 ? atoi(argv[1]) : 0;
    size_t bucket_bytes = argc > 3 ? (size_t)strtoull(argv[3], NULL, 10) : 0;
    uint64_t step = 0;

    if (argc > 4 || rounds < 1 || rounds > MOST_ROUNDS) {
        fprintf(stderr,
                "usage: ringfold run -n 2 -- ddp_step ROUNDS COMPUTE_MS[,COMPUTE_MS...] "
                "[BUCKET_BYTES], with 1 to %d rounds\n",
                MOST_ROUNDS);
        return 64;
    }
    rf_options_init(&options);
    int code = rf_options_from_environ(&options, environ, &err);
    if (!code) {
        code = rf_comm_create(&options, &comm, &err);
    }
    if (code) {
        give_up("joining", &err);
    }
    rank = rf_rank(comm);
    size = rf_size(comm);
    if (size > MOST_RANKS) {
        errno = EINVAL;
        give_up("more ranks than 8", NULL);
    }
    describe();
    set_up(bucket_bytes);
    share();
    rf_ddp_options_init(&defaults);
    char *rest = argv[2];
    while (*rest) {
        char *end;
        double compute_s = strtod(rest, &end) * 1e-3;
        if (end == rest || (*end && *end != ',')) {
            errno = EINVAL;
            give_up("COMPUTE_MS must be numbers with commas between", NULL);
        }
        rest = end + (*end == ',');
        measure(compute_s, rounds, bucket_bytes ? bucket_bytes : defaults.bucket_bytes, &step);
    }
    rf_ddp_destroy(ddp);
    rf_comm_destroy(comm);
    for (int i = 0; i < tensors; i++) {
        free(param[i]);
    }
    return 0;
}
