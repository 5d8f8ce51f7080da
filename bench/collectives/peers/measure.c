/* The measurement of measure.h. What ranks contribute repeats after PERIOD elements, so that a
 * buffer is written by copying a short table, and sums of it are exact in any order. It keeps
 * nothing outside of its callers' memory: ranks may be threads. */
#include "measure.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    PERIOD = 1009,
    PASSES = 4, /* over all sizes */
    WARM_UP = 3,
    MOST_CALLS = 2000, /* of one size in a pass */
    MOST_SIZES = 64
};
static const double SECONDS = 0.12;      /* for one size in a pass */
static const double SECONDS_AT_MOST = 1; /* where the fewest calls take that long */

static const char *const names[COLL_COUNT] = {[ALLREDUCE] = "allreduce",
                                              [ALL_GATHER] = "all_gather",
                                              [REDUCE_SCATTER] = "reduce_scatter",
                                              [BROADCAST] = "broadcast",
                                              [ALL_TO_ALL] = "all_to_all"};

/* One size, and the times of all passes so far. */
struct size {
    size_t count, bytes;
    double *times;
    int calls;
};

void measure_fail(const char *what) {
    fprintf(stderr, "collectives bench: %s\n", what);
    exit(EXIT_FAILURE);
}

static size_t number(const char *text) {
    char *end = NULL;
    unsigned long long value = strtoull(text, &end, 10);
    if (*end || value == 0 || value > SIZE_MAX / 64) {
        measure_fail("MIN, MAX and FACTOR are whole numbers: bytes, bytes, from size to size");
    }
    return (size_t)value;
}

void measure_parse(struct measure *m, const char *coll, const char *min, const char *max,
                   const char *factor) {
    m->coll = COLL_COUNT;
    for (int k = 0; k < COLL_COUNT; k++) {
        if (!strcmp(coll, names[k])) {
            m->coll = (enum coll)k;
        }
    }
    m->min_bytes = number(min);
    m->max_bytes = number(max);
    m->factor = number(factor);
    if (m->coll == COLL_COUNT || m->max_bytes < m->min_bytes || m->factor < 2) {
        measure_fail("usage: allreduce|all_gather|reduce_scatter|broadcast|all_to_all MIN MAX "
                     "FACTOR, and FACTOR is at least 2");
    }
}

static size_t rounded(size_t bytes) {
    return (bytes + 63) / 64 * 64;
}

float *measure_memory(size_t bytes) {
    float *memory = aligned_alloc(64, rounded(bytes));
    if (!memory) {
        measure_fail("no memory for a buffer of the last size; take a smaller MAX");
    }
    memset(memory, 0, rounded(bytes));
    return memory;
}

void measure_open(struct measure *m) {
    m->memory = measure_memory(m->max_bytes);
    m->other = m->coll == ALL_TO_ALL ? measure_memory(m->max_bytes) : NULL;
}

void measure_close(struct measure *m) {
    free(m->memory);
    free(m->other);
}

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* -------- what ranks contribute -------- */

static float value(int rank, size_t place) {
    return (float)((place * 3 + (size_t)rank * 5) % 97);
}

/* The table of a rank, or of all ranks' sum. */
static void make_table(float table[PERIOD], const struct measure *m, int rank, int sum) {
    for (size_t place = 0; place < PERIOD; place++) {
        table[place] = value(rank, place);
        for (int k = 0; sum && k < m->size; k++) {
            table[place] = k ? table[place] + value(k, place) : value(0, place);
        }
    }
}

static size_t run_length(size_t place, size_t count) {
    return PERIOD - place < count ? PERIOD - place : count;
}

static void fill(const float table[PERIOD], float *at, size_t count) {
    while (count) {
        size_t length = run_length(0, count);
        memcpy(at, table, length * sizeof *at);
        at += length;
        count -= length;
    }
}

/* Of what began at `first` in the contribution, the elements that differ. */
static size_t differing(const float table[PERIOD], const float *at, size_t first, size_t count) {
    size_t place = first % PERIOD, wrong = 0;
    for (size_t i = 0; i < count; i++) {
        wrong += at[i] != table[place];
        place = place + 1 == PERIOD ? 0 : place + 1;
    }
    return wrong;
}

static int has_parts(const struct measure *m) {
    return m->coll != ALLREDUCE && m->coll != BROADCAST;
}

static size_t full_count(const struct measure *m, size_t count) {
    return has_parts(m) ? count * (size_t)m->size : count;
}

static void write_contribution(const struct measure *m, const float own[PERIOD], size_t count) {
    if (m->coll == ALL_GATHER) {
        fill(own, m->memory + (size_t)m->rank * count, count);
    } else if (m->coll != BROADCAST || m->rank == m->root) {
        fill(own, m->memory, full_count(m, count));
    }
}

static size_t count_wrong(const struct measure *m, size_t count) {
    float want[PERIOD];
    size_t first = (size_t)m->rank * count, wrong = 0;
    switch (m->coll) {
    case ALLREDUCE:
        make_table(want, m, 0, 1);
        wrong = differing(want, m->memory, 0, count);
        break;
    case REDUCE_SCATTER:
        make_table(want, m, 0, 1);
        wrong = differing(want, m->memory, first, count);
        break;
    case BROADCAST:
        make_table(want, m, m->root, 0);
        wrong = differing(want, m->memory, 0, count);
        break;
    case ALL_GATHER:
    case ALL_TO_ALL:
        for (int k = 0; k < m->size; k++) {
            const float *from = (m->coll == ALL_GATHER ? m->memory : m->other) + (size_t)k * count;
            make_table(want, m, k, 0);
            wrong += differing(want, from, m->coll == ALL_GATHER ? 0 : first, count);
        }
        break;
    case COLL_COUNT:
        break;
    }
    return wrong;
}

/* -------- the measurement -------- */

static double time_once(struct measure *m, const float own[PERIOD], size_t count) {
    write_contribution(m, own, count);
    m->barrier(m);
    double start = now_s();
    m->call(m, count);
    return now_s() - start;
}

/* How many calls to time in this pass, agreed with all ranks. */
static int warm_up(struct measure *m, const float own[PERIOD], const struct size *s) {
    double begun = now_s();
    for (int k = 0; k < WARM_UP; k++) {
        time_once(m, own, s->count);
    }
    double each = (now_s() - begun) / WARM_UP;
    m->largest(m, &each, 1);
    each = each > 1e-9 ? each : 1e-9;
    double least = s->bytes <= 65536 ? 100 : s->bytes <= (4u << 20) ? 10 : 3;
    if (least * each > SECONDS_AT_MOST) {
        least = SECONDS_AT_MOST / each > 3 ? SECONDS_AT_MOST / each : 3;
    }
    double fit = SECONDS / each;
    return (int)(fit < least ? least : fit > MOST_CALLS ? MOST_CALLS : fit);
}

static void sample(struct measure *m, const float own[PERIOD], struct size *s) {
    int calls = warm_up(m, own, s);
    double *times = s->times + s->calls;
    for (int k = 0; k < calls; k++) {
        times[k] = time_once(m, own, s->count);
    }
    m->largest(m, times, calls);
    s->calls += calls;
}

/* One more call, into memory that holds nothing like the result. */
static size_t check(struct measure *m, const float own[PERIOD], size_t count) {
    size_t bytes = full_count(m, count) * sizeof(float);
    memset(m->memory, 0xee, bytes);
    if (m->other) {
        memset(m->other, 0xee, bytes);
    }
    write_contribution(m, own, count);
    m->barrier(m);
    m->call(m, count);
    m->barrier(m);
    double wrong = (double)count_wrong(m, count);
    m->largest(m, &wrong, 1);
    return (size_t)wrong;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static size_t conclude(struct measure *m, const float own[PERIOD], struct size *s) {
    size_t wrong = m->unchecked ? 0 : check(m, own, s->count);
    qsort(s->times, (size_t)s->calls, sizeof *s->times, by_value);
    if (m->rank == 0) {
        printf("{\"collective\":\"%s\",\"bytes\":%zu,\"count\":%zu,\"time_us\":%.3f,\"wrong\":%zu,"
               "\"n\":%d,\"iterations\":%d,\"variant\":\"%s\"}\n",
               names[m->coll], s->bytes, s->count, s->times[s->calls / 2] * 1e6, wrong, m->size,
               s->calls, m->variant ? m->variant : "");
        fflush(stdout);
    }
    return wrong;
}

static int list_sizes(const struct measure *m, struct size sizes[MOST_SIZES]) {
    size_t parts = has_parts(m) ? (size_t)m->size : 1;
    int found = 0;
    for (size_t bytes = m->min_bytes; bytes <= m->max_bytes && found < MOST_SIZES;
         bytes *= m->factor) {
        size_t count = bytes / sizeof(float) / parts;
        if (count) {
            struct size *s = &sizes[found++];
            s->count = count;
            s->bytes = count * parts * sizeof(float);
            s->times = calloc(PASSES * MOST_CALLS, sizeof *s->times);
            if (!s->times) {
                measure_fail("no memory for the times");
            }
        }
        if (bytes > SIZE_MAX / m->factor) {
            break;
        }
    }
    return found;
}

size_t measure_all(struct measure *m) {
    struct size sizes[MOST_SIZES] = {{0}};
    float own[PERIOD];
    int count = list_sizes(m, sizes);
    size_t wrong = 0;

    make_table(own, m, m->rank, 0);
    for (int pass = 0; pass < PASSES; pass++) {
        for (int i = 0; i < count; i++) {
            sample(m, own, &sizes[i]);
            if (pass == PASSES - 1) {
                wrong += conclude(m, own, &sizes[i]);
            }
        }
    }
    for (int i = 0; i < count; i++) {
        free(sizes[i].times);
    }
    return wrong;
}
