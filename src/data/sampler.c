/* Epochs as permutations (Fisher-Yates from the seed's own stream for the epoch), batches and
 * shards as stretches of them. */
#include "data/sampler.h"

#include "base/assert.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/status.h"

/* Keeps the order of samples apart from the seed's other streams. */
static const uint64_t STREAM = 0x6f72646572ull;

struct rf__sampler {
    uint64_t seed;
    uint32_t count, batch, shards;
    uint64_t epoch;  /* the one `order` holds */
    uint32_t *order; /* a permutation of 0 … count - 1 */
};

int rf__sampler_create(uint64_t seed, uint32_t count, uint32_t batch, uint32_t shards,
                       struct rf__sampler **out, struct rf_error *err) {
    int code = RF_OK;
    struct rf__sampler *sampler = NULL;

    if (!count || !shards || shards > batch) {
        code = rf__fail(err, RF_EINVAL, 0, "a batch of %u samples cannot be cut into %u shards",
                        batch, shards);
        goto out;
    }
    sampler = rf__alloc(1, sizeof *sampler);
    if (!sampler) {
        code = rf__fail(err, RF_ENOMEM, 0, "no memory for the order of samples");
        goto out;
    }
    *sampler = (struct rf__sampler){.seed = seed,
                                    .count = count,
                                    .batch = batch < count ? batch : count,
                                    .shards = shards,
                                    .epoch = UINT64_MAX};
    sampler->order = rf__alloc(count, sizeof *sampler->order);
    if (!sampler->order) {
        code = rf__fail(err, RF_ENOMEM, 0, "no memory for the order of %u samples", count);
        goto out;
    }
    *out = sampler;
    sampler = NULL;
out:
    rf__sampler_destroy(sampler);
    return code;
}

void rf__sampler_destroy(struct rf__sampler *sampler) {
    if (!sampler) {
        return;
    }
    rf__free(sampler->order);
    rf__free(sampler);
}

uint64_t rf__sampler_steps_per_epoch(const struct rf__sampler *sampler) {
    return ((uint64_t)sampler->count + sampler->batch - 1) / sampler->batch;
}

uint32_t rf__sampler_shard_max(const struct rf__sampler *sampler) {
    return (uint32_t)(((uint64_t)sampler->batch + sampler->shards - 1) / sampler->shards);
}

static void order_draw(struct rf__sampler *sampler, uint64_t epoch) {
    struct rf__rng rng = rf__rng(sampler->seed, STREAM, epoch);
    uint32_t *order = sampler->order;

    for (uint32_t i = 0; i < sampler->count; i++) {
        order[i] = i;
    }
    for (uint32_t i = sampler->count - 1; i > 0; i--) {
        uint32_t j = (uint32_t)rf__rng_below(&rng, (uint64_t)i + 1);
        uint32_t kept = order[i];
        order[i] = order[j];
        order[j] = kept;
    }
    sampler->epoch = epoch;
}

uint32_t rf__sampler_shard(struct rf__sampler *sampler, uint64_t step, uint32_t shard,
                           const uint32_t **samples) {
    uint64_t steps = rf__sampler_steps_per_epoch(sampler);
    uint64_t epoch = step / steps;

    RF_ASSERT(shard < sampler->shards);
    if (sampler->epoch != epoch) {
        order_draw(sampler, epoch);
    }
    uint64_t first = step % steps * sampler->batch;
    uint64_t left = sampler->count - first;
    uint64_t batch = left < sampler->batch ? left : sampler->batch;
    uint64_t begin = batch * shard / sampler->shards;
    uint64_t end = batch * (shard + 1) / sampler->shards;
    *samples = sampler->order + first + begin;
    return (uint32_t)(end - begin);
}
