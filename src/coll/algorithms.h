/* The algorithms, and the helpers with which they write down a schedule. Private to src/coll.
 *
 * A draft is a schedule being written: each helper appends one instruction to the step
 * `draft->step`, which the algorithm moves on itself, so that the steps of different ranks that
 * belong together carry the same number (gaps are fine). Local instructions on nothing are left
 * out; messages never are, whatever they carry: who talks to whom does not depend on the count, so
 * a rank whose call differs is always found out. Running out of memory is remembered in the draft.
 */
#ifndef RF_COLL_ALGORITHMS_H
#define RF_COLL_ALGORITHMS_H

#include "coll/schedule.h"

struct rf__draft {
    struct rf__schedule *schedule;
    struct rf__schedule_params params; /* size > 1 */
    uint32_t step;
    int error; /* 0 or RF_ENOMEM */
};

/* A run of elements in one of the buffers. */
struct rf__span {
    enum rf__buffer buffer;
    size_t offset, count;
};

static inline struct rf__span rf__span(enum rf__buffer buffer, size_t offset, size_t count) {
    return (struct rf__span){.buffer = buffer, .offset = offset, .count = count};
}

enum rf__side { RF__RIGHT, RF__LEFT }; /* where what comes in stands: dst op it, or it op dst */

void rf__draft_send(struct rf__draft *draft, int peer, struct rf__span src);
void rf__draft_recv(struct rf__draft *draft, int peer, struct rf__span dst);
void rf__draft_fold(struct rf__draft *draft, int peer, struct rf__span dst, enum rf__side side);

/* dst.count elements from `src` at src_offset. */
void rf__draft_copy(struct rf__draft *draft, struct rf__span dst, enum rf__buffer src,
                    size_t src_offset);
void rf__draft_join(struct rf__draft *draft, struct rf__span dst, enum rf__buffer src,
                    size_t src_offset, enum rf__side side);
void rf__draft_divide(struct rf__draft *draft, struct rf__span dst);

/* Takes rank `peer`'s contribution as the next operand of the fold in `acc` (an ACC span): the
 * first is stored, later ones stand at the right; the own rank's comes from `own` at own_offset,
 * the others' from messages. */
void rf__draft_take(struct rf__draft *draft, int peer, bool first, struct rf__span acc,
                    enum rf__buffer own, size_t own_offset);

/* dst = what peer sends op own data of IN at in_offset (side LEFT), or the other way round: in
 * place and out of place. */
void rf__draft_fold_own(struct rf__draft *draft, int peer, struct rf__span dst, size_t in_offset,
                        enum rf__side side);

/* (a + b) mod size, for 0 <= a < size and -size <= b <= size. Adds, because plans of many ranks
 * call it a billion times. */
static inline int rf__wrap_rank(int a, int b, int size) {
    int rank = a + b;
    return rank < 0 ? rank + size : rank >= size ? rank - size : rank;
}

/* The smallest k with 2^k >= n, and the largest power of two <= n. */
int rf__log2_up(int n);
int rf__power_of_two_below(int n);

/* Everybody hears of everybody: dissemination by empty messages. */
void rf__write_dissemination(struct rf__draft *draft);

typedef void rf__algorithm_writer(struct rf__draft *draft);

rf__algorithm_writer rf__write_naive_allreduce;
rf__algorithm_writer rf__write_naive_broadcast;
rf__algorithm_writer rf__write_naive_reduce;
rf__algorithm_writer rf__write_naive_gather;
rf__algorithm_writer rf__write_naive_scatter;
rf__algorithm_writer rf__write_naive_all_to_all;
rf__algorithm_writer rf__write_reduce_broadcast_allreduce;
rf__algorithm_writer rf__write_ring_allreduce;
rf__algorithm_writer rf__write_ring_reduce_scatter;
rf__algorithm_writer rf__write_ring_all_gather;
rf__algorithm_writer rf__write_direct_allreduce;
rf__algorithm_writer rf__write_direct_reduce_scatter;
rf__algorithm_writer rf__write_direct_all_gather;
rf__algorithm_writer rf__write_doubling_allreduce;
rf__algorithm_writer rf__write_doubling_all_gather;
rf__algorithm_writer rf__write_rabenseifner_allreduce;
rf__algorithm_writer rf__write_tree_allreduce;
rf__algorithm_writer rf__write_tree_broadcast;
rf__algorithm_writer rf__write_tree_reduce;
rf__algorithm_writer rf__write_tree_gather;
rf__algorithm_writer rf__write_tree_scatter;

/* The ranks beyond the largest power of two, for the algorithms that want one: among the first 2 x
 * rest ranks each even one hands its data to its odd neighbour and is out (index -1) until the end.
 * The others count 0 … power-1 in rank order. */
struct rf__core {
    int power;   /* ranks that take part */
    int rest;    /* size - power */
    int index;   /* of this rank among them, or -1 */
    bool in_out; /* this rank's data is in OUT; otherwise still in IN */
};

/* Writes the handing over (one step, if there is a rest) and the handing back of OUT. */
struct rf__core rf__write_core_enter(struct rf__draft *draft);
void rf__write_core_leave(struct rf__draft *draft, const struct rf__core *core);
int rf__core_rank(const struct rf__core *core, int index);

#endif
