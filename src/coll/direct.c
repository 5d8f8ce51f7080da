/* Direct exchange: each slice has an owner, who collects it from all, folds it in rank order and
 * hands the sum back.
 *
 * Allreduce of 5 slices on 5 ranks: first each rank sends slice i to rank i, which then has the sum
 * of slice i; then rank i sends that to all.
 *
 * Small slices all start at once, which takes two latencies. Large ones go in turns: in turn t rank
 * r sends to r-t and hears r+t, so that each link carries one stream in each direction. (All at
 * once, n-1 streams meet in every receiver's link: 16 MiB between 4 hosts of 1 Gbit/s took 1.24
 * times the time.) A receiver calls its next sender by an empty message once it has all of the turn
 * before; else a rank that is through early sends to one whose link another still fills, and where
 * such a link's queue overflows a call takes twice the time.
 *
 * In either case the owner reads in the order r+1, r+2, … around the circle, and what comes before
 * its turn in the fold (the ranks above r) waits in TMP. Reduce-scatter is the first half with the
 * caller's parts as slices, all-gather the second.
 *
 * Limits: any number of ranks and any count; every rank speaks with every other (n-1 connections).
 * The ring's bytes, and bits that do not depend on where slices are cut. Two latencies for small
 * slices, 4 (n-1) for large ones (2 for n = 2), which have 2 (n-1) in the ring. */
#include "coll/algorithms.h"

enum { TURNS_FROM = 32 << 10 }; /* elements of a slice */

static struct rf__span slice_of(const struct rf__draft *draft, enum rf__buffer buffer, int rank) {
    struct rf__span span = {.buffer = buffer};
    rf__slice(draft->params.count, draft->params.size, rank, &span.offset, &span.count);
    return span;
}

static struct rf__span part_of(const struct rf__draft *draft, int rank) {
    return rf__span(RF__IN, (size_t)rank * draft->params.count, draft->params.count);
}

static struct rf__span input_of(const struct rf__draft *draft, int rank) {
    bool has_parts = draft->params.coll == RF_COLL_REDUCE_SCATTER;
    return has_parts ? part_of(draft, rank) : slice_of(draft, RF__IN, rank);
}

static bool has_turns(const struct rf__draft *draft) {
    bool has_slices = draft->params.coll == RF_COLL_ALLREDUCE;
    size_t slices = has_slices ? (size_t)draft->params.size : 1;
    return draft->params.count / slices >= TURNS_FROM;
}

/* Opens a turn: the receiver calls, and the sender waits until it is called. Two ranks have nobody
 * to keep apart, and before the first turn of all no link is in use. */
static void call(struct rf__draft *draft, int sender, int receiver) {
    if (sender == receiver) {
        return;
    }
    rf__draft_send(draft, sender, rf__span(RF__IN, 0, 0));
    rf__draft_recv(draft, receiver, rf__span(RF__TMP, 0, 0));
    draft->step++;
}

/* What the rank's own slice `own` of IN and all others' sum to, in `out`. */
static void collect(struct rf__draft *draft, struct rf__span own, struct rf__span out) {
    int rank = draft->params.rank, size = draft->params.size;
    int early = rank == 0 ? 0 : size - 1 - rank; /* ranks that are read before their turn */
    struct rf__span acc = rf__span(RF__ACC, 0, own.count);

    for (int t = 1; t < size && !has_turns(draft); t++) {
        int to = rf__wrap_rank(rank, -t, size);
        rf__draft_send(draft, to, input_of(draft, to));
    }
    if (rank == 0) {
        rf__draft_take(draft, 0, true, acc, RF__IN, own.offset);
    }
    for (int t = 1; t < size; t++) {
        int from = rf__wrap_rank(rank, t, size), to = rf__wrap_rank(rank, -t, size);
        if (has_turns(draft) && t > 1) {
            call(draft, from, to);
        }
        if (has_turns(draft)) {
            rf__draft_send(draft, to, input_of(draft, to));
        }
        if (t <= early) {
            rf__draft_recv(draft, from, rf__span(RF__TMP, (size_t)(t - 1) * own.count, own.count));
        } else {
            rf__draft_take(draft, from, from == 0, acc, RF__IN, own.offset);
        }
        draft->step += has_turns(draft) && t < size - 1;
    }
    if (rank > 0) {
        rf__draft_take(draft, rank, false, acc, RF__IN, own.offset);
    }
    for (int k = 0; k < early; k++) {
        rf__draft_join(draft, acc, RF__TMP, (size_t)k * own.count, RF__RIGHT);
    }
    rf__draft_divide(draft, acc);
    rf__draft_copy(draft, out, RF__ACC, 0);
}

void rf__write_direct_allreduce(struct rf__draft *draft) {
    int rank = draft->params.rank, size = draft->params.size;
    struct rf__span own = slice_of(draft, RF__OUT, rank);

    collect(draft, own, own);
    draft->step++;
    for (int t = 1; t < size && !has_turns(draft); t++) {
        rf__draft_send(draft, rf__wrap_rank(rank, -t, size), own);
    }
    for (int t = 1; t < size; t++) {
        int from = rf__wrap_rank(rank, t, size), to = rf__wrap_rank(rank, -t, size);
        if (has_turns(draft)) {
            call(draft, from, to);
            rf__draft_send(draft, to, own);
        }
        rf__draft_recv(draft, from, slice_of(draft, RF__OUT, from));
        draft->step += has_turns(draft);
    }
}

void rf__write_direct_reduce_scatter(struct rf__draft *draft) {
    int rank = draft->params.rank;

    collect(draft, part_of(draft, rank), rf__span(RF__OUT, 0, draft->params.count));
}

void rf__write_direct_all_gather(struct rf__draft *draft) {
    int rank = draft->params.rank, size = draft->params.size;
    size_t count = draft->params.count;

    if (!draft->params.in_place) {
        rf__draft_copy(draft, rf__span(RF__OUT, (size_t)rank * count, count), RF__IN, 0);
    }
    for (int t = 1; t < size && !has_turns(draft); t++) {
        rf__draft_send(draft, rf__wrap_rank(rank, -t, size), rf__span(RF__IN, 0, count));
    }
    for (int t = 1; t < size; t++) {
        int from = rf__wrap_rank(rank, t, size), to = rf__wrap_rank(rank, -t, size);
        if (has_turns(draft) && t > 1) {
            call(draft, from, to);
        }
        if (has_turns(draft)) {
            rf__draft_send(draft, to, rf__span(RF__IN, 0, count));
        }
        rf__draft_recv(draft, from, rf__span(RF__OUT, (size_t)from * count, count));
        draft->step += has_turns(draft);
    }
}
