/* splitmix64: state advances by a constant, the output is a finaliser of the state. */
#include "base/rng.h"

#include <math.h>

static uint64_t finalise(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

struct rf__rng rf__rng(uint64_t seed, uint64_t a, uint64_t b) {
    uint64_t state = finalise(seed + 0x9e3779b97f4a7c15ull);
    state = finalise(state ^ (a + 0xd1b54a32d192ed03ull));
    state = finalise(state ^ (b + 0x8cb92ba72f3d8dd7ull));
    return (struct rf__rng){.state = state};
}

uint64_t rf__rng_u64(struct rf__rng *rng) {
    rng->state += 0x9e3779b97f4a7c15ull;
    return finalise(rng->state);
}

uint64_t rf__rng_below(struct rf__rng *rng, uint64_t bound) {
    uint64_t limit = UINT64_MAX - UINT64_MAX % bound;
    uint64_t value;
    do {
        value = rf__rng_u64(rng);
    } while (value >= limit);
    return value % bound;
}

float rf__rng_float(struct rf__rng *rng) {
    return (float)(rf__rng_u64(rng) >> 40) * 0x1p-24f;
}

float rf__rng_normal(struct rf__rng *rng) {
    double u = ((double)(rf__rng_u64(rng) >> 11) + 1.0) * 0x1p-53;
    double v = (double)(rf__rng_u64(rng) >> 11) * 0x1p-53;
    return (float)(sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v));
}
