/* Sums of float32 that travel as something smaller: bfloat16, or 8-bit blocks (coll/pack.h).
 *
 * A block of floats is cut into runs (the buckets) by the caller and each run into pieces by this
 * file. Several pieces are under way at a time: while one travels, the next is packed and the one
 * before is unpacked, on the caller's thread.
 *
 * In 8 bits every rank packs its values, all_to_all brings each slice's packed parts to its owner,
 * which sums them up in rank order and packs the sum, and all_gather brings that to all; so all
 * unpack the same bytes. What packing loses is kept and added to the next unit's values, element by
 * element: `lost`, what this rank's values lost, and `owned`, what its sums lost. Of an attempt
 * that fails nothing is taken twice: what was added stays in the values, which live through
 * retries, and `lost` is computed anew by the next attempt; `owned` is dropped with the generation,
 * as slices have other owners then.
 *
 * No clock, no thread of its own; allocates in create only. */
#ifndef RF_DDP_COMPRESS_H
#define RF_DDP_COMPRESS_H

#include "ddp/buckets.h"
#include "group/runner.h"

struct rf__compress;

struct rf__compress_options {
    enum rf_wire wire;           /* not NONE */
    enum rf_algorithm algorithm; /* of allreduces */
    size_t floats;               /* of the block */
    int runs;                    /* at most */
    size_t piece_floats;         /* 0: as fits networks; else whole blocks of 256 (tests) */
};

int rf__compress_create(struct rf__runner *runner, const struct rf__compress_options *options,
                        struct rf__compress **out, struct rf_error *err);

/* NULL is fine. Nothing may be under way. */
void rf__compress_destroy(struct rf__compress *c);
size_t rf__compress_bytes(const struct rf__compress *c);

/* What was lost before counts no more. */
void rf__compress_forget(struct rf__compress *c);

/* The values are about to be laid out anew. Returns what they lost, by place in the block, for the
 * caller to move it along (NULL: nothing is kept); what sums lost is dropped. */
float *rf__compress_move(struct rf__compress *c);

/* The values are those of a new unit. Before the attempt. */
void rf__compress_unit(struct rf__compress *c);

/* One attempt at their sums: `out` = the sum of all ranks' `values`, divided by *divisor (NULL: not
 * at all), which is read when all operations started before are complete. Values are changed: what
 * was lost before is added to them. `out` may be `values`. Borrowed until it is complete or
 * drained. */
void rf__compress_attempt(struct rf__compress *c, const struct rf__bucket *run, int runs,
                          float *values, float *out, const double *divisor);

/* Starts what can be started without waiting: the values of the first `ready` runs are complete.
 * The order of operations is the same on all ranks, whatever has arrived. 0 or an error. */
int rf__compress_pump(struct rf__compress *c, int ready);

/* Waits for run `run`, all being ready. Adds what its operations took to *busy_ns. */
int rf__compress_wait(struct rf__compress *c, int run, int64_t *busy_ns);

/* Waits for every operation under way, and ends the attempt. */
void rf__compress_drain(struct rf__compress *c);

#endif
