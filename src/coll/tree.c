/* Binomial trees. Ranks are counted from the root on: place = rank - root, modulo n.
 *
 * Allreduce (reduce to rank 0, then broadcast from it), 5 ranks holding a b c d e:
 *
 *     step   rank 0   rank 1   rank 2   rank 3   rank 4
 *     start  a        b        c        d        e
 *     0      ab       -        cd       -        e         places with bit 0 send to place - 1
 *     1      abcd     -        -        -        e         bit 1: to place - 2
 *     2      abcde    -        -        -        -         bit 2: to place - 4; the root divides
 *     3      abcde                               abcde     back in the opposite order
 *     4      abcde             abcde             abcde
 *     5      abcde    abcde    abcde    abcde    abcde
 *
 * Reduce and broadcast are the halves. Gather and scatter move, over the same edges, the blocks of
 * all places below the edge, from TMP to TMP; the root sends and receives them where they belong in
 * its buffer, so a run of places that goes over rank n-1 takes two messages. A rank folds in ACC
 * and rounds once before it sends on.
 *
 * Source: Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in
 * MPICH", IJHPCA 19 (2005). Limits: any number of ranks and any count; the root sends or receives S
 * log2 n, so for small messages. */
#include "coll/algorithms.h"

static int place_of(const struct rf__draft *draft, int root) {
    return rf__wrap_rank(draft->params.rank, -root, draft->params.size);
}

static int rank_at(const struct rf__draft *draft, int root, int place) {
    return rf__wrap_rank(place, root, draft->params.size);
}

/* How many rounds a place listens before it speaks to its parent: its trailing zero bits; the root
 * listens in all. */
static int height_of(const struct rf__draft *draft, int place) {
    int rounds = rf__log2_up(draft->params.size), height = 0;
    while (height < rounds && !(place & (1 << height))) {
        height++;
    }
    return height;
}

/* Up the tree: the root's result is in OUT, divided. `relay` is where other ranks keep what they
 * send on. */
static void reduce_to(struct rf__draft *draft, int root, enum rf__buffer relay) {
    int size = draft->params.size, place = place_of(draft, root);
    int height = height_of(draft, place);
    uint32_t first = draft->step;
    size_t count = draft->params.count;
    struct rf__span acc = rf__span(RF__ACC, 0, count), sum = rf__span(RF__IN, 0, count);

    for (int k = 0; k < height && place + (1 << k) < size; k++) {
        draft->step = first + (uint32_t)k;
        if (k == 0) {
            rf__draft_copy(draft, acc, RF__IN, 0);
        }
        rf__draft_fold(draft, rank_at(draft, root, place + (1 << k)), acc, RF__RIGHT);
        sum.buffer = relay;
    }
    if (place == 0) {
        rf__draft_divide(draft, acc);
        rf__draft_copy(draft, rf__span(RF__OUT, 0, count), RF__ACC, 0);
    } else {
        if (sum.buffer == relay) {
            rf__draft_copy(draft, sum, RF__ACC, 0);
        }
        draft->step = first + (uint32_t)height;
        rf__draft_send(draft, rank_at(draft, root, place - (1 << height)), sum);
    }
    draft->step = first + (uint32_t)rf__log2_up(size);
}

/* Down the tree: what the root has in `src` arrives in OUT everywhere else. */
static void broadcast_from(struct rf__draft *draft, int root, enum rf__buffer src) {
    int size = draft->params.size, place = place_of(draft, root);
    int height = height_of(draft, place), rounds = rf__log2_up(size);
    uint32_t last = draft->step + (uint32_t)rounds - 1;
    struct rf__span data = rf__span(place == 0 ? src : RF__OUT, 0, draft->params.count);

    if (place != 0) {
        draft->step = last - (uint32_t)height;
        rf__draft_recv(draft, rank_at(draft, root, place - (1 << height)), data);
    }
    for (int k = height - 1; k >= 0; k--) {
        draft->step = last - (uint32_t)k;
        if (place + (1 << k) < size) {
            rf__draft_send(draft, rank_at(draft, root, place + (1 << k)), data);
        }
    }
    draft->step = last + 1;
}

void rf__write_tree_allreduce(struct rf__draft *draft) {
    reduce_to(draft, 0, RF__OUT);
    broadcast_from(draft, 0, RF__OUT);
}

void rf__write_tree_reduce(struct rf__draft *draft) {
    reduce_to(draft, draft->params.root, RF__TMP);
}

void rf__write_tree_broadcast(struct rf__draft *draft) {
    if (draft->params.rank == draft->params.root && !draft->params.in_place) {
        rf__draft_copy(draft, rf__span(RF__OUT, 0, draft->params.count), RF__IN, 0);
    }
    broadcast_from(draft, draft->params.root, RF__IN);
}

/* The blocks of places first … end - 1, to or from a peer. This rank keeps them by rank in `buffer`
 * if it is the root, else by place in TMP from its own place on. */
static void places(struct rf__draft *draft, int peer, int first, int end, enum rf__buffer buffer,
                   bool send) {
    int size = draft->params.size, root = draft->params.root, own = place_of(draft, root);
    size_t count = draft->params.count;
    int turn = size - root; /* the place of rank 0 */
    int cuts[3] = {first, first < turn && turn < end ? turn : end, end};

    for (int i = 0; i < 2 && cuts[i] < cuts[i + 1]; i++) {
        int at = own == 0 ? rank_at(draft, root, cuts[i]) : cuts[i] - own;
        size_t blocks = (size_t)(cuts[i + 1] - cuts[i]);
        struct rf__span span =
            rf__span(own == 0 ? buffer : RF__TMP, (size_t)at * count, blocks * count);
        if (send) {
            rf__draft_send(draft, peer, span);
        } else {
            rf__draft_recv(draft, peer, span);
        }
    }
}

static int least(int a, int b) {
    return a < b ? a : b;
}

void rf__write_tree_gather(struct rf__draft *draft) {
    int size = draft->params.size, root = draft->params.root, place = place_of(draft, root);
    int height = height_of(draft, place);
    uint32_t first = draft->step;
    size_t count = draft->params.count;
    bool leaf = height == 0 || place + 1 >= size;

    if (place == 0 && !draft->params.in_place) {
        rf__draft_copy(draft, rf__span(RF__OUT, (size_t)root * count, count), RF__IN, 0);
    } else if (place != 0 && !leaf) {
        rf__draft_copy(draft, rf__span(RF__TMP, 0, count), RF__IN, 0);
    }
    for (int k = 0; k < height && place + (1 << k) < size; k++) {
        int child = place + (1 << k);
        draft->step = first + (uint32_t)k;
        places(draft, rank_at(draft, root, child), child, least(child + (1 << k), size), RF__OUT,
               false);
    }
    if (place != 0) {
        int parent = rank_at(draft, root, place - (1 << height));
        draft->step = first + (uint32_t)height;
        if (leaf) {
            rf__draft_send(draft, parent, rf__span(RF__IN, 0, count));
        } else {
            places(draft, parent, place, least(place + (1 << height), size), RF__OUT, true);
        }
    }
}

void rf__write_tree_scatter(struct rf__draft *draft) {
    int size = draft->params.size, root = draft->params.root, place = place_of(draft, root);
    int height = height_of(draft, place);
    uint32_t last = draft->step + (uint32_t)rf__log2_up(size) - 1;
    size_t count = draft->params.count;
    bool leaf = height == 0 || place + 1 >= size;
    struct rf__span out = rf__span(RF__OUT, 0, count);

    if (place != 0) {
        int parent = rank_at(draft, root, place - (1 << height));
        draft->step = last - (uint32_t)height;
        if (leaf) {
            rf__draft_recv(draft, parent, out);
        } else {
            places(draft, parent, place, least(place + (1 << height), size), RF__IN, false);
            rf__draft_copy(draft, out, RF__TMP, 0);
        }
    } else if (!draft->params.in_place) {
        rf__draft_copy(draft, out, RF__IN, (size_t)root * count);
    }
    for (int k = height - 1; k >= 0; k--) {
        int child = place + (1 << k);
        draft->step = last - (uint32_t)k;
        if (child < size) {
            places(draft, rank_at(draft, root, child), child, least(child + (1 << k), size), RF__IN,
                   true);
        }
    }
}
