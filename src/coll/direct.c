/* Direct exchange: each slice has an owner, who collects it from all, folds it in rank order and
 * hands the sum back.
 *
 * Allreduce of 5 slices on 5 ranks; what is complete after each step:
 *
 *     step   rank 0       rank 1       rank 2       rank 3       rank 4
 *     0      slice 0      slice 1      slice 2      slice 3      slice 4      each sends slice i to
 * rank i 1      all          all          all          all          all          owner i sends
 * slice i to all
 *
 * All of a step's messages start at once. The owner reads them in the order r+1, r+2, … around the
 * circle, so that at any time each rank is read by one other and all links are busy; what comes
 * before its turn in the fold (the ranks above r) waits in TMP. Reduce-scatter is step 0 with the
 * caller's parts as slices, all-gather is step 1.
 *
 * Limits: any number of ranks and any count; every rank speaks with every other (n-1 connections).
 * The ring's bytes, two latencies, and bits that do not depend on where slices are cut. */
#include "coll/algorithms.h"

/* The owner's part of step 0: what the rank's own slice `own` of IN and all others' sum to, in
 * `out`. */
static void collect(struct rf__draft *draft, struct rf__span own, struct rf__span out) {
    int rank = draft->params.rank, size = draft->params.size;
    int direct_from =
        rank == 0 ? size : rank + 1; /* ranks from here on are read before their turn */
    struct rf__span acc = rf__span(RF__ACC, 0, own.count);

    for (int k = direct_from; k < size; k++) {
        size_t offset = (size_t)(k - direct_from) * own.count;
        rf__draft_recv(draft, k, rf__span(RF__TMP, offset, own.count));
    }
    for (int k = 0; k < direct_from; k++) {
        rf__draft_take(draft, k, k == 0, acc, RF__IN, own.offset);
    }
    for (int k = direct_from; k < size; k++) {
        size_t offset = (size_t)(k - direct_from) * own.count;
        rf__draft_join(draft, acc, RF__TMP, offset, RF__RIGHT);
    }
    rf__draft_divide(draft, acc);
    rf__draft_copy(draft, out, RF__ACC, 0);
}

void rf__write_direct_allreduce(struct rf__draft *draft) {
    int rank = draft->params.rank, size = draft->params.size;
    struct rf__span own = {.buffer = RF__OUT};

    rf__slice(draft->params.count, size, rank, &own.offset, &own.count);
    for (int s = 1; s < size; s++) {
        int peer = rf__wrap_rank(rank, -s, size);
        struct rf__span theirs = {.buffer = RF__IN};
        rf__slice(draft->params.count, size, peer, &theirs.offset, &theirs.count);
        rf__draft_send(draft, peer, theirs);
    }
    collect(draft, own, own);
    draft->step++;
    for (int s = 1; s < size; s++) {
        rf__draft_send(draft, rf__wrap_rank(rank, -s, size), own);
    }
    for (int s = 1; s < size; s++) {
        int peer = rf__wrap_rank(rank, s, size);
        struct rf__span theirs = {.buffer = RF__OUT};
        rf__slice(draft->params.count, size, peer, &theirs.offset, &theirs.count);
        rf__draft_recv(draft, peer, theirs);
    }
}

void rf__write_direct_reduce_scatter(struct rf__draft *draft) {
    int rank = draft->params.rank, size = draft->params.size;
    size_t count = draft->params.count;

    for (int s = 1; s < size; s++) {
        int peer = rf__wrap_rank(rank, -s, size);
        rf__draft_send(draft, peer, rf__span(RF__IN, (size_t)peer * count, count));
    }
    collect(draft, rf__span(RF__IN, (size_t)rank * count, count), rf__span(RF__OUT, 0, count));
}

void rf__write_direct_all_gather(struct rf__draft *draft) {
    int rank = draft->params.rank, size = draft->params.size;
    size_t count = draft->params.count;

    for (int s = 1; s < size; s++) {
        rf__draft_send(draft, rf__wrap_rank(rank, -s, size), rf__span(RF__IN, 0, count));
    }
    if (!draft->params.in_place) {
        rf__draft_copy(draft, rf__span(RF__OUT, (size_t)rank * count, count), RF__IN, 0);
    }
    for (int s = 1; s < size; s++) {
        int peer = rf__wrap_rank(rank, s, size);
        rf__draft_recv(draft, peer, rf__span(RF__OUT, (size_t)peer * count, count));
    }
}
