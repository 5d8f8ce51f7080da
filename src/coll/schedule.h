/* Schedules: what one rank does in a collective, as data.
 *
 * A schedule is a list of steps, carried out one after the other. Within a step all SENDs start at
 * once and progress independently of each other and of the rest; everything else (RECV, FOLD, COPY,
 * DIVIDE) is carried out strictly in the order written. A step ends when all of it is done: a SEND,
 * when its bytes have been taken by the link. So within a step nothing may write what a SEND of the
 * same step reads. Messages between two ranks arrive in the order sent; each SEND meets exactly one
 * RECV or FOLD of the same count, which may be 0: which messages there are depends on (coll,
 * algorithm, size, root, agree) and, in the direct exchange, on whether slices are large; and in
 * collectives without a root every rank hears of every other, so calls that differ still meet.
 *
 * A schedule of one rank depends on (coll, algorithm, rank, size, root, count, in_place) alone;
 * `in_place` may differ between ranks, so it never changes the messages. Nothing here does I/O or
 * knows of links. */
#ifndef RF_COLL_SCHEDULE_H
#define RF_COLL_SCHEDULE_H

#include <ringfold/types.h>

/* The buffers a schedule names. IN and OUT are the caller's and the same memory (at the offsets of
 * comm.h's in-place rule) when in_place. ACC is scratch of `acc_count` elements of the accumulator
 * type (float32 for half-precision types, else the type itself); TMP is scratch of `tmp_count`
 * elements of the type. */
enum rf__buffer { RF__IN, RF__OUT, RF__ACC, RF__TMP };

enum rf__instr_kind {
    RF__SEND, /* src[count] to peer; src is not ACC */
    RF__RECV, /* dst[count] = what peer sent; into ACC it is widened */
    RF__FOLD, /* dst[count] = dst op what peer sent, or (left) what peer sent op dst; dst may be ACC
               */
    RF__COPY, /* dst[count] = src[count]; ACC widens on the way in and narrows (rounds) on the way
                 out */
    RF__JOIN, /* dst[count] = dst op src[count], or (left) src op dst: a FOLD of the rank's own
                 data; src is not ACC */
    RF__DIVIDE /* dst[count] is divided by the divisor (AVG), in the buffer's own type (dst may be
                  ACC: before rounding); where the operation has none, nothing is done */
};

/* Offsets and counts in elements. */
struct rf__instr {
    uint8_t kind;     /* enum rf__instr_kind */
    uint8_t src, dst; /* enum rf__buffer */
    bool left;
    uint32_t step; /* 0, 1, … never falling; the executor groups by it */
    int32_t peer;
    size_t src_offset, dst_offset, count;
};

struct rf__schedule {
    struct rf__instr *instrs;
    size_t count, capacity; /* capacity grows in warm-up and is kept: rewriting a schedule of a
                               known size allocates nothing */
    size_t acc_count, tmp_count;
};

struct rf__schedule_params {
    enum rf_coll coll;           /* not SEND, RECV */
    enum rf_algorithm algorithm; /* not AUTO, SHARED */
    int rank, size, root;
    size_t count; /* as in struct rf_call */
    bool in_place;
    bool agree; /* a rooted collective begins with a dissemination barrier of empty messages, so
                   that every rank hears of every other's call and a mismatch is known to all;
                   others ignore it */
};

/* Replaces the schedule's content. RF_EUNSUPPORTED where the algorithm does not cover the
 * collective; RF_ENOMEM. A group of one is covered by every algorithm that covers the collective:
 * local COPY and DIVIDE only. */
int rf__schedule_write(struct rf__schedule *schedule, const struct rf__schedule_params *params);
void rf__schedule_free(struct rf__schedule *schedule);

/* Whether rf__schedule_write would cover it. */
bool rf__schedule_covers(enum rf_coll coll, enum rf_algorithm algorithm);

/* The algorithm for AUTO by the library's own table for messages (coll/choose.h): `bytes` is count
 * x type size; depends only on what all ranks agree on. AUTO for SEND and RECV. */
enum rf_algorithm rf__schedule_choose(enum rf_coll coll, int size, size_t bytes);

/* Slice `index` of `count` elements cut into `slices`: sizes differ by at most one block of 16
 * elements, borders are multiples of 16 but for the end. */
void rf__slice(size_t count, int slices, int index, size_t *offset, size_t *length);

#endif
