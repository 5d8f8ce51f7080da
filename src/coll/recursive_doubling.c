/* Recursive doubling: in each step the distance doubles, and so does what a rank holds.
 *
 * Allreduce, 5 ranks holding a b c d e (four take part, see core.c; their indices are 0 1 2 3):
 *
 *     step    rank 0   rank 1   rank 2   rank 3   rank 4
 *     start   a        b        c        d        e
 *     enter   -        ab       c        d        e
 *     1       -        abc      abc      de       de        indices that differ in bit 0 exchange
 *     2       -        abcde    abcde    abcde    abcde     indices that differ in bit 1 exchange
 *     leave   abcde    abcde    abcde    abcde    abcde
 *
 * Both partners compute the same, lower index on the left, so all ranks get equal bits, and each
 * divides for itself. What comes in must not overwrite what is going out: the sum moves to and fro
 * between TMP and OUT and ends in OUT.
 *
 * All-gather, 5 ranks, blocks held after each step (block r + j of the circle comes from j to the
 * right):
 *
 *     step    rank 0   rank 1   rank 2   rank 3   rank 4
 *     0       01       12       23       34       40         from r + 1
 *     1       0123     1234     2340     3401     4012       from r + 2
 *     2       all      all      all      all      all        from r + 4, only what is missing
 *
 * Each block is received in its place; where a run of blocks goes over the end of the buffer it
 * takes two messages.
 *
 * Source: Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in
 * MPICH", IJHPCA 19 (2005); Bruck et al., "Efficient algorithms for all-to-all communications in
 * multiport message-passing systems", TPDS 8 (1997). Limits: any number of ranks and any count;
 * allreduce sends S log2 n per rank, so for small messages; TMP of S. */
#include "coll/algorithms.h"

/* One exchange of the allreduce; `sum` is where this rank's sum is. Returns where it is afterwards.
 */
static struct rf__span exchange(struct rf__draft *draft, int peer, struct rf__span sum,
                                struct rf__span target, bool same_memory) {
    enum rf__side own = draft->params.rank < peer ? RF__LEFT : RF__RIGHT;
    struct rf__span tmp = rf__span(RF__TMP, 0, draft->params.count);

    rf__draft_send(draft, peer, sum);
    if (same_memory) {
        /* The first exchange, where an odd number of them shall end in OUT, and the sum is there
         * already. */
        rf__draft_recv(draft, peer, tmp);
        draft->step++;
        rf__draft_join(draft, target, RF__TMP, 0, own == RF__LEFT ? RF__RIGHT : RF__LEFT);
    } else {
        rf__draft_recv(draft, peer, target);
        rf__draft_join(draft, target, sum.buffer, sum.offset, own);
    }
    return target;
}

void rf__write_doubling_allreduce(struct rf__draft *draft) {
    size_t count = draft->params.count;
    struct rf__core core = rf__write_core_enter(draft);
    int rounds = rf__log2_up(core.power);
    uint32_t first = draft->step;
    struct rf__span out = rf__span(RF__OUT, 0, count), tmp = rf__span(RF__TMP, 0, count);
    struct rf__span sum = core.in_out ? out : rf__span(RF__IN, 0, count);

    if (core.index >= 0) {
        for (int k = 0; k < rounds; k++) {
            struct rf__span target = (rounds - 1 - k) % 2 ? tmp : out;
            bool in_out = sum.buffer == RF__OUT || (sum.buffer == RF__IN && draft->params.in_place);
            int peer = rf__core_rank(&core, core.index ^ (1 << k));

            draft->step = first + 2 * (uint32_t)k;
            sum = exchange(draft, peer, sum, target, in_out && target.buffer == RF__OUT);
        }
        rf__draft_divide(draft, out);
    }
    draft->step = first + 2 * (uint32_t)rounds;
    rf__write_core_leave(draft, &core);
}

/* Blocks first … first + blocks - 1 of the circle, to or from a peer. */
static void circle_run(struct rf__draft *draft, int peer, int first, int blocks, bool send) {
    int size = draft->params.size;
    size_t count = draft->params.count;
    int before_end = first + blocks <= size ? blocks : size - first;
    struct rf__span runs[2] = {
        rf__span(RF__OUT, (size_t)first * count, (size_t)before_end * count),
        rf__span(RF__OUT, 0, (size_t)(blocks - before_end) * count),
    };

    for (int i = 0; i < (before_end < blocks ? 2 : 1); i++) {
        if (send) {
            rf__draft_send(draft, peer, runs[i]);
        } else {
            rf__draft_recv(draft, peer, runs[i]);
        }
    }
}

void rf__write_doubling_all_gather(struct rf__draft *draft) {
    int rank = draft->params.rank, size = draft->params.size;
    size_t count = draft->params.count;

    if (!draft->params.in_place) {
        rf__draft_copy(draft, rf__span(RF__OUT, (size_t)rank * count, count), RF__IN, 0);
    }
    for (int held = 1; held < size; held *= 2) {
        int blocks = held < size - held ? held : size - held;
        int to = rf__wrap_rank(rank, -held, size), from = rf__wrap_rank(rank, held, size);

        if (held == 1) {
            rf__draft_send(draft, to, rf__span(RF__IN, 0, count));
        } else {
            circle_run(draft, to, rank, blocks, true);
        }
        circle_run(draft, from, from, blocks, false);
        draft->step++;
    }
}
