/* Everybody hears of everybody, by empty messages: the barrier, and the opening of rooted
 * collectives that agree first.
 *
 * Whom 5 ranks have heard of (r: rank r itself and its predecessors on the circle):
 *
 *     step   sends to   rank 0    rank 1    rank 2    rank 3    rank 4
 *     start             0         1         2         3         4
 *     0      r + 1      40        01        12        23        34
 *     1      r + 2      2340      3401      4012      0123      1234
 *     2      r + 4      all       all       all       all       all
 *
 * Source: Hensgen, Finkel, Manber, "Two algorithms for barrier synchronization", IJPP 17 (1988).
 * Limits: any number of ranks; ceil(log2 n) steps, one message each way per rank and step. */
#include "coll/algorithms.h"

void rf__write_dissemination(struct rf__draft *draft) {
    int rank = draft->params.rank, size = draft->params.size;

    for (int distance = 1; distance < size; distance *= 2) {
        rf__draft_send(draft, rf__wrap_rank(rank, distance, size), rf__span(RF__IN, 0, 0));
        rf__draft_recv(draft, rf__wrap_rank(rank, -distance, size), rf__span(RF__OUT, 0, 0));
        draft->step++;
    }
}
