/* XXH3 behind two functions, so that the choice of hash stands in one place. */
#include "base/digest.h"

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
