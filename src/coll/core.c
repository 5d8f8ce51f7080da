/* Making the number of ranks a power of two, for the algorithms that need one. 5 ranks holding a b
 * c d e:
 *
 *     step   rank 0   rank 1   rank 2   rank 3   rank 4
 *     start  a        b        c        d        e
 *     enter  (out)    ab       c        d        e        even ranks below 2 x rest hand over to
 * the next index  -        0        1        2        3 …      …        abcde    abcde    abcde
 * abcde leave  abcde    abcde    abcde    abcde    abcde    and get the result back
 *
 * Source: Rabenseifner, Träff, "More efficient reduction algorithms for non-power-of-two number of
 * processors in message-passing parallel systems", EuroPVM/MPI 2004 (section 2, the simplest of its
 * variants). */
#include "coll/algorithms.h"

struct rf__core rf__write_core_enter(struct rf__draft *draft) {
    int rank = draft->params.rank;
    struct rf__core core = {.power = rf__power_of_two_below(draft->params.size)};
    size_t count = draft->params.count;

    core.rest = draft->params.size - core.power;
    if (rank >= 2 * core.rest) {
        core.index = rank - core.rest;
    } else if (rank % 2 == 0) {
        rf__draft_send(draft, rank + 1, rf__span(RF__IN, 0, count));
        core.index = -1;
    } else {
        rf__draft_fold_own(draft, rank - 1, rf__span(RF__OUT, 0, count), 0, RF__LEFT);
        core.index = rank / 2;
        core.in_out = true;
    }
    draft->step += core.rest > 0;
    return core;
}

void rf__write_core_leave(struct rf__draft *draft, const struct rf__core *core) {
    int rank = draft->params.rank;
    struct rf__span out = rf__span(RF__OUT, 0, draft->params.count);

    if (rank < 2 * core->rest && rank % 2 == 0) {
        rf__draft_recv(draft, rank + 1, out);
    } else if (rank < 2 * core->rest) {
        rf__draft_send(draft, rank - 1, out);
    }
}

int rf__core_rank(const struct rf__core *core, int index) {
    return index < core->rest ? 2 * index + 1 : index + core->rest;
}
