/* Digests: XXH3, 64 bits, for content (not for secrets: those are HMAC-SHA-256 in os/auth). */
#ifndef RF_BASE_DIGEST_H
#define RF_BASE_DIGEST_H

#include <stddef.h>
#include <stdint.h>

uint64_t rf__digest(const void *bytes, size_t length, uint64_t seed);

/* Folds one value, or one digest, into a running digest. */
uint64_t rf__digest_mix(uint64_t digest, uint64_t value);

#endif
