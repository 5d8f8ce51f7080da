/* Which samples make up which shard of which step: a pure function of (seed, step, shard), so that
 * it need not be stored, sent or agreed on, and does not depend on how many workers there are.
 *
 * Each epoch is a permutation of all samples drawn from (seed, epoch) and cut into global batches;
 * a batch is cut into V shards of sizes that differ by at most one. Where the batch size does not
 * divide the epoch, the epoch's last batch is smaller and its shards may be uneven or empty: every
 * sample of an epoch is used exactly once. */
#ifndef RF_DATA_SAMPLER_H
#define RF_DATA_SAMPLER_H

#include <ringfold/error.h>
#include <stdint.h>

struct rf__sampler;

/* RF_EINVAL unless 1 <= shards <= batch and 1 <= count. A batch larger than the set is the set. */
int rf__sampler_create(uint64_t seed, uint32_t count, uint32_t batch, uint32_t shards,
                       struct rf__sampler **out, struct rf_error *err);
void rf__sampler_destroy(struct rf__sampler *sampler);

uint64_t rf__sampler_steps_per_epoch(const struct rf__sampler *sampler);

/* The largest shard there is, in samples. */
uint32_t rf__sampler_shard_max(const struct rf__sampler *sampler);

/* Points *samples at the sample numbers of shard `shard` of step `step` (from 0) and returns how
 * many there are. Valid until the next call. The first call in an epoch draws its permutation. */
uint32_t rf__sampler_shard(struct rf__sampler *sampler, uint64_t step, uint32_t shard,
                           const uint32_t **samples);

#endif
