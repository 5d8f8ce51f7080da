/* XXH3 behind a few functions, so that the choice of hash stands in one place. Where libxxhash has
 * loops for each width of vectors and finds out which this machine has (RF_XXH_DISPATCH), they are
 * taken: what still lies in a cache passes several times as fast. The digests are the same. */
#include "base/digest.h"

#include "base/mem.h"

#define XXH_STATIC_LINKING_ONLY /* the size of its state */
#ifdef RF_XXH_DISPATCH
#include <xxhash.h>

#include <xxh_x86dispatch.h>
#else
#define XXH_INLINE_ALL
#include <xxhash.h>
#endif

/* The loops wait for memory, of which a core has more under way when it is told ahead what comes.
 */
enum { AHEAD_BYTES = 4096, LONG_BYTES = 16 * AHEAD_BYTES, LINE_BYTES = 64 };

static uint64_t digest_long(const unsigned char *bytes, size_t length, uint64_t seed) {
    _Alignas(64) XXH3_state_t state;
    size_t at = 0;

    XXH3_INITSTATE(&state);
    (void)XXH3_64bits_reset_withSeed(&state, seed);
    for (; length - at >= (size_t)2 * AHEAD_BYTES; at += AHEAD_BYTES) {
        for (size_t line = 0; line < AHEAD_BYTES; line += LINE_BYTES) {
            __builtin_prefetch(bytes + at + AHEAD_BYTES + line);
        }
        (void)XXH3_64bits_update(&state, bytes + at, AHEAD_BYTES);
    }
    (void)XXH3_64bits_update(&state, bytes + at, length - at);
    return XXH3_64bits_digest(&state);
}

uint64_t rf__digest(const void *bytes, size_t length, uint64_t seed) {
    return length < LONG_BYTES ? XXH3_64bits_withSeed(bytes, length, seed)
                               : digest_long(bytes, length, seed);
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
