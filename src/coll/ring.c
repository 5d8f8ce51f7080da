/* The ring: each rank speaks to its right neighbour and listens to its left one only.
 *
 * Allreduce of 5 slices on 5 ranks. What rank r adds up or receives in each step (3:340 is slice 3,
 * the sum of ranks 3, 4 and 0); slice i starts at rank i+1, is complete at rank i, its owner, and
 * then goes round once more. In the reduce-scatter, step s sends slice r-1-s and folds slice r-2-s;
 * then the owner divides; in the all-gather, step t sends slice r-t and receives slice r-1-t.
 *
 *     step  rank 0   rank 1   rank 2   rank 3   rank 4
 *     0     3:40     4:01     0:12     1:23     2:34      reduce-scatter
 *     1     2:340    3:401    4:012    0:123    1:234
 *     2     1:2340   2:3401   3:4012   4:0123   0:1234
 *     3     0:12340  1:23401  2:34012  3:40123  4:01234
 *     4     4        0        1        2        3         all-gather
 *     5     3        4        0        1        2
 *     6     2        3        4        0        1
 *     7     1        2        3        4        0
 *
 * Reduce-scatter is the first half (partial sums travel through two halves of TMP, so that one is
 * filled while the other is sent), all-gather the second.
 *
 * Source: Patarasuk, Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
 * JPDC 69 (2009). Limits: any number of ranks and any count; 2 (n-1) steps, so latency grows with
 * n; half precision is rounded at each hop; the order of the fold differs between slices, but all
 * ranks get the owner's bits. */
#include "coll/algorithms.h"

static struct rf__span slice(const struct rf__draft *draft, enum rf__buffer buffer, int index) {
    struct rf__span span = {.buffer = buffer};
    rf__slice(draft->params.count, draft->params.size, index, &span.offset, &span.count);
    return span;
}

void rf__write_ring_allreduce(struct rf__draft *draft) {
    int rank = draft->params.rank, size = draft->params.size;
    int right = rf__wrap_rank(rank, 1, size), left = rf__wrap_rank(rank, -1, size);
    struct rf__span passed =
        slice(draft, RF__IN, left); /* what comes in goes out in the next step */

    for (int s = 0; s < size - 1; s++) {
        rf__draft_send(draft, right, passed);
        passed = slice(draft, RF__OUT, rf__wrap_rank(rank, -2 - s, size));
        rf__draft_fold_own(draft, left, passed, passed.offset, RF__LEFT);
        if (s == size - 2) {
            rf__draft_divide(draft, passed);
        }
        draft->step++;
    }
    for (int t = 0; t < size - 1; t++) {
        rf__draft_send(draft, right, passed);
        passed = slice(draft, RF__OUT, rf__wrap_rank(rank, -1 - t, size));
        rf__draft_recv(draft, left, passed);
        draft->step++;
    }
}

void rf__write_ring_reduce_scatter(struct rf__draft *draft) {
    int rank = draft->params.rank, size = draft->params.size;
    int right = rf__wrap_rank(rank, 1, size), left = rf__wrap_rank(rank, -1, size);
    size_t count = draft->params.count;
    struct rf__span sum = rf__span(RF__IN, (size_t)left * count, count), out;

    for (int s = 0; s < size - 2; s++) {
        size_t own = (size_t)rf__wrap_rank(rank, -2 - s, size) * count;
        rf__draft_send(draft, right, sum);
        sum = rf__span(RF__TMP, (size_t)(s % 2) * count, count);
        rf__draft_recv(draft, left, sum);
        rf__draft_join(draft, sum, RF__IN, own, RF__RIGHT);
        draft->step++;
    }
    out = rf__span(RF__OUT, 0, count);
    rf__draft_send(draft, right, sum);
    rf__draft_fold_own(draft, left, out, (size_t)rank * count, RF__LEFT);
    rf__draft_divide(draft, out);
}

void rf__write_ring_all_gather(struct rf__draft *draft) {
    int rank = draft->params.rank, size = draft->params.size;
    int right = rf__wrap_rank(rank, 1, size), left = rf__wrap_rank(rank, -1, size);
    size_t count = draft->params.count;
    struct rf__span part = rf__span(RF__IN, 0, count);

    if (!draft->params.in_place) {
        rf__draft_copy(draft, rf__span(RF__OUT, (size_t)rank * count, count), RF__IN, 0);
    }
    for (int t = 0; t < size - 1; t++) {
        rf__draft_send(draft, right, part);
        part = rf__span(RF__OUT, (size_t)rf__wrap_rank(rank, -1 - t, size) * count, count);
        rf__draft_recv(draft, left, part);
        draft->step++;
    }
}
