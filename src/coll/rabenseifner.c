/* Rabenseifner's allreduce: reduce-scatter by recursive halving, then all-gather by recursive
 * doubling.
 *
 * 5 ranks, 4 of them take part (see core.c; a is here what rank 0 and 1 hold together), 4 slices;
 * slices a rank works on, and whose contributions they have:
 *
 *     step    index 0        index 1        index 2        index 3
 *     start   0123: a        0123: b        0123: c        0123: d
 *     1       01: ac         01: bd         23: ac         23: bd         partners differ in bit 1:
 * half of it goes 2       0: abcd        1: abcd        2: abcd        3: abcd        bit 0: half
 * of that; the owner divides 3       01             01             23             23 bit 0: slices
 * come back 4       0123           0123           0123           0123           bit 1
 *
 * What goes out and what is folded are different halves, so all work is done in OUT. The lower
 * rank's operand is the left one; each slice is finished by its owner alone, so all ranks get equal
 * bits.
 *
 * Source: Rabenseifner, "Optimization of collective reduction operations", ICCS 2004; Thakur et
 * al., IJHPCA 19 (2005). Limits: any number of ranks and any count; 2 log2 n steps, and two more of
 * S where n is no power of two; half precision is rounded at each exchange. */
#include "coll/algorithms.h"

/* The elements of slices first … first + slices - 1. */
static struct rf__span run_of(const struct rf__draft *draft, const struct rf__core *core,
                              enum rf__buffer buffer, int first, int slices) {
    struct rf__span span = {.buffer = buffer};
    size_t last_offset, last_count;

    rf__slice(draft->params.count, core->power, first, &span.offset, &span.count);
    rf__slice(draft->params.count, core->power, first + slices - 1, &last_offset, &last_count);
    span.count = last_offset + last_count - span.offset;
    return span;
}

static void halve(struct rf__draft *draft, const struct rf__core *core) {
    int first = 0;
    enum rf__buffer sums = core->in_out ? RF__OUT : RF__IN;

    for (int half = core->power / 2; half >= 1; half /= 2) {
        bool upper = core->index & half;
        int peer = rf__core_rank(core, core->index ^ half);
        int kept = upper ? first + half : first, gone = upper ? first : first + half;
        struct rf__span keep = run_of(draft, core, RF__OUT, kept, half);
        enum rf__side theirs = upper ? RF__LEFT : RF__RIGHT;

        rf__draft_send(draft, peer, run_of(draft, core, sums, gone, half));
        if (sums == RF__IN) {
            rf__draft_fold_own(draft, peer, keep, keep.offset, theirs);
        } else {
            rf__draft_fold(draft, peer, keep, theirs);
        }
        if (half == 1) {
            rf__draft_divide(draft, keep);
        }
        sums = RF__OUT;
        first = kept;
        draft->step++;
    }
}

static void spread(struct rf__draft *draft, const struct rf__core *core) {
    int first = core->index;

    for (int held = 1; held < core->power; held *= 2) {
        int peer = rf__core_rank(core, core->index ^ held);
        int other = first ^ held;

        rf__draft_send(draft, peer, run_of(draft, core, RF__OUT, first, held));
        rf__draft_recv(draft, peer, run_of(draft, core, RF__OUT, other, held));
        first = first < other ? first : other;
        draft->step++;
    }
}

void rf__write_rabenseifner_allreduce(struct rf__draft *draft) {
    struct rf__core core = rf__write_core_enter(draft);

    if (core.index >= 0) {
        halve(draft, &core);
        spread(draft, &core);
    } else {
        draft->step += 2 * (uint32_t)rf__log2_up(core.power);
    }
    rf__write_core_leave(draft, &core);
}
