/* The obvious ways: everybody sends everything straight to whoever needs it.
 *
 * Allreduce, 5 ranks holding a b c d e:
 *
 *     step   rank 0   rank 1   rank 2   rank 3   rank 4
 *     start  a        b        c        d        e
 *     0      abcde    abcde    abcde    abcde    abcde     each sends its vector to all and folds
 * all, in rank order 1      (local: ACC to OUT, which in place was being read by the messages until
 * now)
 *
 * Broadcast, reduce, gather, scatter: one step, the root speaks with each rank in turn; reduce
 * folds in rank order. All-to-all: step s pairs the ranks whose sum is s modulo n, so each step is
 * a matching and a pair swaps its two parts; in place the part coming in waits in TMP until the one
 * going out has left.
 *
 * Limits: any number of ranks and any count. Allreduce sends (n-1) S per rank, and since each rank
 * reads the others in rank order, large vectors queue behind rank 0's: for small messages and for
 * comparison. */
#include "coll/algorithms.h"

void rf__write_naive_allreduce(struct rf__draft *draft) {
    int rank = draft->params.rank, size = draft->params.size;
    size_t count = draft->params.count;
    struct rf__span acc = rf__span(RF__ACC, 0, count);

    for (int s = 1; s < size; s++) {
        rf__draft_send(draft, rf__wrap_rank(rank, s, size), rf__span(RF__IN, 0, count));
    }
    for (int k = 0; k < size; k++) {
        rf__draft_take(draft, k, k == 0, acc, RF__IN, 0);
    }
    rf__draft_divide(draft, acc);
    draft->step++;
    rf__draft_copy(draft, rf__span(RF__OUT, 0, count), RF__ACC, 0);
}

void rf__write_naive_broadcast(struct rf__draft *draft) {
    int rank = draft->params.rank, size = draft->params.size, root = draft->params.root;
    size_t count = draft->params.count;

    if (rank != root) {
        rf__draft_recv(draft, root, rf__span(RF__OUT, 0, count));
        return;
    }
    for (int s = 1; s < size; s++) {
        rf__draft_send(draft, rf__wrap_rank(root, s, size), rf__span(RF__IN, 0, count));
    }
    if (!draft->params.in_place) {
        rf__draft_copy(draft, rf__span(RF__OUT, 0, count), RF__IN, 0);
    }
}

void rf__write_naive_reduce(struct rf__draft *draft) {
    int size = draft->params.size, root = draft->params.root;
    size_t count = draft->params.count;
    struct rf__span acc = rf__span(RF__ACC, 0, count);

    if (draft->params.rank != root) {
        rf__draft_send(draft, root, rf__span(RF__IN, 0, count));
        return;
    }
    for (int k = 0; k < size; k++) {
        rf__draft_take(draft, k, k == 0, acc, RF__IN, 0);
    }
    rf__draft_divide(draft, acc);
    rf__draft_copy(draft, rf__span(RF__OUT, 0, count), RF__ACC, 0);
}

void rf__write_naive_gather(struct rf__draft *draft) {
    int size = draft->params.size, root = draft->params.root;
    size_t count = draft->params.count;

    if (draft->params.rank != root) {
        rf__draft_send(draft, root, rf__span(RF__IN, 0, count));
        return;
    }
    for (int k = 0; k < size; k++) {
        struct rf__span part = rf__span(RF__OUT, (size_t)k * count, count);
        if (k != root) {
            rf__draft_recv(draft, k, part);
        } else if (!draft->params.in_place) {
            rf__draft_copy(draft, part, RF__IN, 0);
        }
    }
}

void rf__write_naive_scatter(struct rf__draft *draft) {
    int size = draft->params.size, root = draft->params.root;
    size_t count = draft->params.count;

    if (draft->params.rank != root) {
        rf__draft_recv(draft, root, rf__span(RF__OUT, 0, count));
        return;
    }
    for (int k = 0; k < size; k++) {
        if (k != root) {
            rf__draft_send(draft, k, rf__span(RF__IN, (size_t)k * count, count));
        } else if (!draft->params.in_place) {
            rf__draft_copy(draft, rf__span(RF__OUT, 0, count), RF__IN, (size_t)k * count);
        }
    }
}

void rf__write_naive_all_to_all(struct rf__draft *draft) {
    int rank = draft->params.rank, size = draft->params.size;
    size_t count = draft->params.count;
    bool in_place = draft->params.in_place;

    for (int s = 0; s < size; s++) {
        int peer = rf__wrap_rank(s, -rank, size);
        size_t offset = (size_t)peer * count;
        struct rf__span part = rf__span(RF__OUT, offset, count);

        draft->step = 2 * (uint32_t)s;
        if (peer != rank) {
            rf__draft_send(draft, peer, rf__span(RF__IN, offset, count));
            rf__draft_recv(draft, peer, in_place ? rf__span(RF__TMP, 0, count) : part);
            draft->step++;
        }
        if (peer != rank && in_place) {
            rf__draft_copy(draft, part, RF__TMP, 0);
        }
        if (peer == rank && !in_place) {
            rf__draft_copy(draft, part, RF__IN, offset);
        }
    }
}
