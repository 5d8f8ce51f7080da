/* Writing a schedule down, instruction by instruction. Knows the instructions, but no algorithm. */
#include "coll/algorithms.h"

#include "base/mem.h"

static struct rf__instr *append(struct rf__draft *draft) {
    static struct rf__instr dropped; /* never read: where writes go once memory has run out */
    struct rf__schedule *schedule = draft->schedule;

    if (schedule->count == schedule->capacity && !draft->error) {
        size_t capacity = schedule->capacity ? schedule->capacity * 2 : 64;
        struct rf__instr *grown = rf__grow(schedule->instrs, capacity, sizeof *grown);
        if (grown) {
            schedule->instrs = grown;
            schedule->capacity = capacity;
        } else {
            draft->error = RF_ENOMEM;
        }
    }
    return draft->error ? &dropped : &schedule->instrs[schedule->count++];
}

static void need_scratch(struct rf__draft *draft, struct rf__span span) {
    struct rf__schedule *schedule = draft->schedule;
    size_t end = span.offset + span.count;

    if (span.buffer == RF__ACC && schedule->acc_count < end) {
        schedule->acc_count = end;
    }
    if (span.buffer == RF__TMP && schedule->tmp_count < end) {
        schedule->tmp_count = end;
    }
}

void rf__draft_send(struct rf__draft *draft, int peer, struct rf__span src) {
    *append(draft) = (struct rf__instr){.kind = RF__SEND,
                                        .step = draft->step,
                                        .peer = peer,
                                        .src = (uint8_t)src.buffer,
                                        .src_offset = src.offset,
                                        .count = src.count};
}

static void into(struct rf__draft *draft, enum rf__instr_kind kind, int peer, struct rf__span dst,
                 enum rf__side side) {
    need_scratch(draft, dst);
    *append(draft) = (struct rf__instr){.kind = (uint8_t)kind,
                                        .step = draft->step,
                                        .peer = peer,
                                        .left = side == RF__LEFT,
                                        .dst = (uint8_t)dst.buffer,
                                        .dst_offset = dst.offset,
                                        .count = dst.count};
}

void rf__draft_recv(struct rf__draft *draft, int peer, struct rf__span dst) {
    into(draft, RF__RECV, peer, dst, RF__RIGHT);
}

void rf__draft_fold(struct rf__draft *draft, int peer, struct rf__span dst, enum rf__side side) {
    into(draft, RF__FOLD, peer, dst, side);
}

static void local(struct rf__draft *draft, enum rf__instr_kind kind, struct rf__span dst,
                  enum rf__buffer src, size_t src_offset, enum rf__side side) {
    if (dst.count == 0) {
        return;
    }
    need_scratch(draft, dst);
    *append(draft) = (struct rf__instr){.kind = (uint8_t)kind,
                                        .step = draft->step,
                                        .peer = -1,
                                        .left = side == RF__LEFT,
                                        .src = (uint8_t)src,
                                        .src_offset = src_offset,
                                        .dst = (uint8_t)dst.buffer,
                                        .dst_offset = dst.offset,
                                        .count = dst.count};
}

void rf__draft_copy(struct rf__draft *draft, struct rf__span dst, enum rf__buffer src,
                    size_t src_offset) {
    local(draft, RF__COPY, dst, src, src_offset, RF__RIGHT);
}

void rf__draft_join(struct rf__draft *draft, struct rf__span dst, enum rf__buffer src,
                    size_t src_offset, enum rf__side side) {
    local(draft, RF__JOIN, dst, src, src_offset, side);
}

void rf__draft_divide(struct rf__draft *draft, struct rf__span dst) {
    local(draft, RF__DIVIDE, dst, dst.buffer, dst.offset, RF__RIGHT);
}

void rf__draft_take(struct rf__draft *draft, int peer, bool first, struct rf__span acc,
                    enum rf__buffer own, size_t own_offset) {
    if (peer == draft->params.rank) {
        if (first) {
            rf__draft_copy(draft, acc, own, own_offset);
        } else {
            rf__draft_join(draft, acc, own, own_offset, RF__RIGHT);
        }
    } else if (first) {
        rf__draft_recv(draft, peer, acc);
    } else {
        rf__draft_fold(draft, peer, acc, RF__RIGHT);
    }
}

void rf__draft_fold_own(struct rf__draft *draft, int peer, struct rf__span dst, size_t in_offset,
                        enum rf__side side) {
    if (draft->params.in_place) {
        rf__draft_fold(draft, peer, dst, side);
    } else {
        rf__draft_recv(draft, peer, dst);
        rf__draft_join(draft, dst, RF__IN, in_offset, side == RF__LEFT ? RF__RIGHT : RF__LEFT);
    }
}

int rf__log2_up(int n) {
    int k = 0;
    while ((1 << k) < n) {
        k++;
    }
    return k;
}

int rf__power_of_two_below(int n) {
    int power = 1;
    while (power * 2 <= n) {
        power *= 2;
    }
    return power;
}

void rf__slice(size_t count, int slices, int index, size_t *offset, size_t *length) {
    enum { BLOCK = 16 };
    size_t blocks = count / BLOCK + (count % BLOCK != 0);
    size_t each = blocks / (size_t)slices, longer = blocks % (size_t)slices, i = (size_t)index;
    size_t first = i * each + (i < longer ? i : longer);
    size_t last = first + each + (i < longer);

    /* The last block may be short; no product below exceeds count but that block's end. */
    *offset = first < blocks ? first * BLOCK : count;
    *length = (last < blocks ? last * BLOCK : count) - *offset;
}
