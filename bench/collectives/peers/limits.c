/* What memory allows, timed as measure.h says: threads that share all buffers, each folding its
 * slice of all of them into all of them. No library, no copies; the ranks only meet at the end. The
 * reference for "share of the limit".
 *
 * In ordinary pages, as shared memory has them; each thread on a core of its own. Measured twice:
 * with plain stores, which are ahead while data fits into a cache, and with streaming ones, which
 * are beyond it. The better counts.
 *
 * Usage: limits THREADS MIN MAX FACTOR */
#define _GNU_SOURCE
#include "lines.h"
#include "measure.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST_THREADS = 64,
    SPINS_BEFORE_YIELD = 20000,
    LINE = 64 / sizeof(float),
    MOST_TIMES = 8000
};

static int threads;
static float *buffers[MOST_THREADS];
static double gathered[MOST_THREADS][MOST_TIMES];

/* The barrier: arrivals counted, and a phase that the last one moves (release) for those who wait
 * (acquire). */
static _Alignas(64) atomic_int arrived;
static _Alignas(64) atomic_uint phase;

static void barrier(struct measure *m) {
    unsigned mine = atomic_load_explicit(&phase, memory_order_acquire);
    (void)m;
    if (atomic_fetch_add_explicit(&arrived, 1, memory_order_acq_rel) == threads - 1) {
        atomic_store_explicit(&arrived, 0, memory_order_relaxed);
        atomic_store_explicit(&phase, mine + 1, memory_order_release);
    } else {
        for (int spins = 0; atomic_load_explicit(&phase, memory_order_acquire) == mine; spins++) {
            if (spins > SPINS_BEFORE_YIELD) {
                sched_yield();
            }
        }
    }
}

static void largest(struct measure *m, double *values, int count) {
    memcpy(gathered[m->rank], values, (size_t)count * sizeof *values);
    barrier(m);
    for (int i = 0; i < count; i++) {
        for (int k = 0; k < threads; k++) {
            values[i] = gathered[k][i] > values[i] ? gathered[k][i] : values[i];
        }
    }
    barrier(m);
}

/* `n` is a constant where it is called with one, and the loops over the buffers are gone. */
static inline __attribute__((always_inline)) void fold(int n, size_t first, size_t end,
                                                       void (*store)(float *to, line_t line)) {
    float *at[MOST_THREADS];
    size_t i = first;
    memcpy(at, buffers, sizeof at);
    for (; i + LINE <= end; i += LINE) {
        line_t sum = *(const line_t *)(const void *)(at[0] + i);
        for (int k = 1; k < n; k++) {
            sum += *(const line_t *)(const void *)(at[k] + i);
        }
        for (int k = 0; k < n; k++) {
            store(at[k] + i, sum);
        }
    }
    for (; i < end; i++) {
        float sum = at[0][i];
        for (int k = 1; k < n; k++) {
            sum += at[k][i];
        }
        for (int k = 0; k < n; k++) {
            at[k][i] = sum;
        }
    }
}

/* A rank's slice, on the borders of cache lines. */
static size_t border(size_t count, int rank) {
    return rank == threads ? count : count * (size_t)rank / (size_t)threads / LINE * LINE;
}

static void call_plain(struct measure *m, size_t count) {
    size_t first = border(count, m->rank), end = border(count, m->rank + 1);
    if (threads == 2) {
        fold(2, first, end, store_plain);
    } else {
        fold(threads, first, end, store_plain);
    }
    barrier(m);
}

static void call_streaming(struct measure *m, size_t count) {
    size_t first = border(count, m->rank), end = border(count, m->rank + 1);
    if (threads == 2) {
        fold(2, first, end, store_streaming);
    } else {
        fold(threads, first, end, store_streaming);
    }
#ifdef __SSE2__
    _mm_sfence();
#endif
    barrier(m);
}

/* To the core of its rank, of those this process may use; where it may not, it stays where it is.
 */
static void pin(int rank) {
    cpu_set_t may, one;
    CPU_ZERO(&one);
    if (sched_getaffinity(0, sizeof may, &may) || CPU_COUNT(&may) < threads) {
        return;
    }
    for (int core = 0; core < CPU_SETSIZE; core++) {
        if (CPU_ISSET(core, &may) && rank-- == 0) {
            CPU_SET(core, &one);
        }
    }
    sched_setaffinity(0, sizeof one, &one);
}

static void *work(void *argument) {
    struct measure *m = argument;
    size_t wrong;
    pin(m->rank);
    buffers[m->rank] = m->memory = measure_memory(m->max_bytes); /* first touched by its owner */
    barrier(m);
    m->call = call_plain;
    m->variant = "plain";
    wrong = measure_all(m);
    m->call = call_streaming;
    m->variant = "streaming";
    wrong += measure_all(m);
    return wrong ? m : NULL;
}

int main(int argc, char **argv) {
    struct measure ranks[MOST_THREADS] = {{0}};
    pthread_t started[MOST_THREADS];
    int wrong = 0;

    threads = argc == 5 ? atoi(argv[1]) : 0;
    if (threads < 1 || threads > MOST_THREADS) {
        measure_fail("usage: limits THREADS MIN MAX FACTOR, with 1 to 64 threads");
    }
    for (int k = 0; k < threads; k++) {
        ranks[k] =
            (struct measure){.rank = k, .size = threads, .barrier = barrier, .largest = largest};
        measure_parse(&ranks[k], "allreduce", argv[2], argv[3], argv[4]);
    }
    for (int k = 0; k < threads; k++) {
        if (pthread_create(&started[k], NULL, work, &ranks[k])) {
            measure_fail("no thread could be started");
        }
    }
    for (int k = 0; k < threads; k++) {
        void *failed = NULL;
        pthread_join(started[k], &failed);
        wrong |= failed != NULL;
        free(ranks[k].memory);
    }
    return wrong ? EXIT_FAILURE : EXIT_SUCCESS;
}
