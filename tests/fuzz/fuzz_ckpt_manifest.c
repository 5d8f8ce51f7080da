/* Fuzz target: bytes as a manifest, once as they are and once with the digest that goes with them,
 * so that what is behind the digest is reached. What is taken can be written again and is the same.
 * Compiled alone for a fuzzer, included by tests/unit/test_ckpt_fuzz.c under another name. */
#include "base/assert.h"
#include "base/digest.h"
#include "base/mem.h"
#include "ckpt/manifest.h"

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef FUZZ_CKPT_MANIFEST
#define FUZZ_CKPT_MANIFEST LLVMFuzzerTestOneInput
#endif

int FUZZ_CKPT_MANIFEST(const uint8_t *bytes, size_t count);

static void decode_and_encode(const void *bytes, size_t count) {
    struct rf__ckpt_manifest m, again;
    char *text = NULL;
    size_t length = 0;

    int code = rf__ckpt_manifest_decode(bytes, count, &m, NULL);
    RF_ASSERT(code == 0 || code == RF_ECHECKPOINT || code == RF_EUNSUPPORTED);
    if (code == 0) {
        RF_ASSERT(rf__ckpt_state_check(&m.state, NULL) == 0);
        RF_ASSERT(m.part_count >= 1 && m.part_count <= RF__CKPT_PARTS);
        RF_ASSERT(m.ancestor_count <= RF__CKPT_ANCESTORS && m.digest_count <= RF__CKPT_DIGESTS);
        RF_ASSERT(rf__ckpt_manifest_encode(&m, &text, &length, NULL) == 0);
        RF_ASSERT(rf__ckpt_manifest_decode(text, length, &again, NULL) == 0);
        RF_ASSERT(again.id.step == m.id.step && again.id.chain == m.id.chain);
        RF_ASSERT(rf__ckpt_state_compare(&again.state, &m.state, NULL) == 0);
        RF_ASSERT(!memcmp(again.parts, m.parts, (size_t)m.part_count * sizeof *m.parts));
        rf__ckpt_manifest_free(&again);
        rf__free(text);
    }
    rf__ckpt_manifest_free(&m);
}

int FUZZ_CKPT_MANIFEST(const uint8_t *bytes, size_t count) {
    static const char before[] = ",\n \"digest\": \"", after[] = "\"\n}\n";
    enum { TAIL = sizeof before - 1 + 16 + sizeof after - 1 };
    char digits[17];

    decode_and_encode(bytes, count);
    size_t body = count > TAIL ? count - TAIL : 0;
    char *text = malloc(body + TAIL);
    RF_ASSERT(text);
    memcpy(text, bytes, body);
    memcpy(text + body, before, sizeof before - 1);
    snprintf(digits, sizeof digits, "%016" PRIx64, rf__digest(text, body, 0));
    memcpy(text + body + sizeof before - 1, digits, 16);
    memcpy(text + body + sizeof before - 1 + 16, after, sizeof after - 1);
    decode_and_encode(text, body + TAIL);
    free(text);
    return 0;
}
