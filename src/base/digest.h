/* Digests: XXH3, 64 bits, for content (not for secrets: those are HMAC-SHA-256 in os/auth). */
#ifndef RF_BASE_DIGEST_H
#define RF_BASE_DIGEST_H

#include <stddef.h>
#include <stdint.h>

uint64_t rf__digest(const void *bytes, size_t length, uint64_t seed);

/* Folds one value, or one digest, into a running digest. */
uint64_t rf__digest_mix(uint64_t digest, uint64_t value);

/* The digest of bytes that come one after the other: what rf__digest gives for all of them with
 * seed 0. NULL where there is no memory. `value` may be asked at any time. */
struct rf__digester;

struct rf__digester *rf__digester_create(void);
void rf__digester_reset(struct rf__digester *digester);
void rf__digester_add(struct rf__digester *digester, const void *bytes, size_t length);
uint64_t rf__digester_value(const struct rf__digester *digester);
void rf__digester_destroy(struct rf__digester *digester);

#endif
