/* XXH3 behind a few functions, so that the choice of hash stands in one place. */
#include "base/digest.h"

#include "base/mem.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

uint64_t rf__digest(const void *bytes, size_t length, uint64_t seed) {
    return XXH3_64bits_withSeed(bytes, length, seed);
}

uint64_t rf__digest_mix(uint64_t digest, uint64_t value) {
    unsigned char bytes[8];
    for (int i = 0; i < 8; i++) {
        bytes[i] = (unsigned char)(value >> (8 * i));
    }
    return XXH3_64bits_withSeed(bytes, sizeof bytes, digest);
}

struct rf__digester {
    XXH3_state_t state;
};

struct rf__digester *rf__digester_create(void) {
    struct rf__digester *digester = rf__alloc_aligned(sizeof *digester);
    if (digester) {
        rf__digester_reset(digester);
    }
    return digester;
}

void rf__digester_reset(struct rf__digester *digester) {
    (void)XXH3_64bits_reset(&digester->state);
}

void rf__digester_add(struct rf__digester *digester, const void *bytes, size_t length) {
    (void)XXH3_64bits_update(&digester->state, bytes, length);
}

uint64_t rf__digester_value(const struct rf__digester *digester) {
    return XXH3_64bits_digest(&digester->state);
}

void rf__digester_destroy(struct rf__digester *digester) {
    rf__free(digester);
}
