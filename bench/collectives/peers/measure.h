/* How the programs beside this file time a collective: by the definition of `ringfold bench`, so
 * that figures compare.
 *
 * A rank writes its contribution anew before each timed call (what lies in a cache from the last
 * call would flatter), meets the others at a barrier, and times the call. The time of an iteration
 * is that of the slowest rank, the time of a size the median over the iterations; the iterations
 * of a size are spread over several passes over all sizes. Then one more call is checked, element
 * by element, on every rank. Float32, reductions are sums; in place, but for all_to_all.
 *
 * A program brings the library: barrier, call, and the largest of doubles over the ranks. It knows
 * nothing of Ringfold. */
#ifndef BENCH_MEASURE_H
#define BENCH_MEASURE_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum coll { ALLREDUCE, ALL_GATHER, REDUCE_SCATTER, BROADCAST, ALL_TO_ALL, COLL_COUNT };

struct measure {
    enum coll coll;
    int rank, size;
    size_t min_bytes, max_bytes; /* of the full buffer */
    size_t factor;
    const char *variant; /* of the call, for the output; NULL: there is but one */
    int root;
    int unchecked; /* the call leaves no result */

    /* The full buffer of max_bytes, from measure_open or brought along; the results' for
     * all_to_all, else NULL. After reduce_scatter a rank's part stands at the buffer's
     * beginning. */
    float *memory, *other;

    /* The library. `count`: elements of the buffer, for all but allreduce and broadcast of one
     * rank's part. The calls end the program where they fail. */
    void *context;
    void (*barrier)(struct measure *m);
    void (*call)(struct measure *m, size_t count);
    void (*largest)(struct measure *m, double *values, int count); /* in place, on every rank */
};

/* COLLECTIVE MIN MAX FACTOR, as they stand on the command line; ends the program where they are no
 * such thing. */
void measure_parse(struct measure *m, const char *coll, const char *min, const char *max,
                   const char *factor);

/* Memory whose pages are there; ends the program where there is none. */
float *measure_memory(size_t bytes);
void measure_open(struct measure *m);
void measure_close(struct measure *m);

/* Measures all sizes; rank 0 prints a JSON line for each. Returns the elements that were wrong on
 * any rank. */
size_t measure_all(struct measure *m);

/* Ends the program with a line that says what failed. */
__attribute__((noreturn)) void measure_fail(const char *what);

#ifdef __cplusplus
}
#endif

#endif
