/* Random numbers from a seed: the same on every machine, and addressable (a stream for each key),
 * so that nothing depends on who draws first. splitmix64 (Steele, Lea, Flood 2014), counter-based.
 */
#ifndef RF_BASE_RNG_H
#define RF_BASE_RNG_H

#include <stdint.h>

struct rf__rng {
    uint64_t state;
};

/* Independent streams: rf__rng(seed, a, b) for any a, b (layer and tensor; step and sample). */
struct rf__rng rf__rng(uint64_t seed, uint64_t a, uint64_t b);
uint64_t rf__rng_u64(struct rf__rng *rng);

/* 0 <= value < bound, without bias; bound > 0. */
uint64_t rf__rng_below(struct rf__rng *rng, uint64_t bound);

/* [0, 1) with 24 bits, and a standard normal (Box-Muller). */
float rf__rng_float(struct rf__rng *rng);
float rf__rng_normal(struct rf__rng *rng);

#endif
