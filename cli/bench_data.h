/* What `ringfold bench` sends and expects: values that follow from the rank and the index alone,
 * small enough that each type holds every partial result exactly, in whatever order an algorithm
 * forms it. They repeat after BENCH_PERIOD elements, so that a buffer is filled and checked by
 * copying and comparing a short table. */
#ifndef RF_CLI_BENCH_DATA_H
#define RF_CLI_BENCH_DATA_H

#include <ringfold/types.h>
#include <stddef.h>

enum { BENCH_PERIOD = 1009, BENCH_ELEMENT_MAX = 8 };

struct bench_table {
    size_t element_bytes;
    unsigned char elements[BENCH_PERIOD * BENCH_ELEMENT_MAX];
};

/* What `rank` of `size` contributes. `redop` is RF_REDOP_COUNT where the collective has none. */
void bench_table_of_rank(struct bench_table *table, enum rf_type type, enum rf_redop redop,
                         int rank, int size);

/* What the contributions of all `size` ranks reduce to. */
void bench_table_reduced(struct bench_table *table, enum rf_type type, enum rf_redop redop,
                         int size);

/* The elements `first` … `first` + `count` of the endless repetition: written to, or compared with,
 * `at`; the latter returns how many differ. */
void bench_fill(const struct bench_table *table, void *at, size_t first, size_t count);
size_t bench_count_wrong(const struct bench_table *table, const void *at, size_t first,
                         size_t count);

#endif
