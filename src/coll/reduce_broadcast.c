/* Allreduce through rank 0, as a parameter server would do it: rank 0 folds all contributions and
 * hands the result out.
 *
 * 5 ranks holding a b c d e:
 *
 *     step   rank 0   rank 1   rank 2   rank 3   rank 4
 *     start  a        b        c        d        e
 *     0      abcde    b        c        d        e         all send to 0, which folds in rank order
 *     1      abcde    abcde    abcde    abcde    abcde     0 sends to all
 *
 * Limits: any number of ranks and any count. 2 (n-1) messages of S, all of them through rank 0. */
#include "coll/algorithms.h"

void rf__write_reduce_broadcast_allreduce(struct rf__draft *draft) {
    int size = draft->params.size;
    size_t count = draft->params.count;
    struct rf__span acc = rf__span(RF__ACC, 0, count), out = rf__span(RF__OUT, 0, count);

    if (draft->params.rank != 0) {
        rf__draft_send(draft, 0, rf__span(RF__IN, 0, count));
        draft->step++;
        rf__draft_recv(draft, 0, out);
        return;
    }
    for (int k = 0; k < size; k++) {
        rf__draft_take(draft, k, k == 0, acc, RF__IN, 0);
    }
    rf__draft_divide(draft, acc);
    rf__draft_copy(draft, out, RF__ACC, 0);
    draft->step++;
    for (int k = 1; k < size; k++) {
        rf__draft_send(draft, k, out);
    }
}
