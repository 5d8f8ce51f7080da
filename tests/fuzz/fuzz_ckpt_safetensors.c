/* Fuzz target: the rest of the bytes as a safetensors header, the first two as the size of the
 * data. What is taken covers the data without holes, and can be written again. Compiled alone for a
 * fuzzer, included by tests/unit/test_ckpt_fuzz.c under another name. */
#include "base/assert.h"
#include "base/mem.h"
#include "ckpt/safetensors.h"

#include <stdint.h>
#include <string.h>

#ifndef FUZZ_CKPT_SAFETENSORS
#define FUZZ_CKPT_SAFETENSORS LLVMFuzzerTestOneInput
#endif

int FUZZ_CKPT_SAFETENSORS(const uint8_t *bytes, size_t count);

int FUZZ_CKPT_SAFETENSORS(const uint8_t *bytes, size_t count) {
    struct rf__safetensors s, again;
    uint64_t at = 0;

    if (count < 2) {
        return 0;
    }
    uint64_t data = (uint64_t)bytes[0] | (uint64_t)bytes[1] << 8;
    int code = rf__safetensors_parse(bytes + 2, count - 2, data, &s, NULL);
    RF_ASSERT(code == 0 || code == RF_ECHECKPOINT);
    if (code == 0) {
        for (int i = 0; i < s.count; i++) {
            RF_ASSERT(s.entries[i].begin == at && s.entries[i].end >= at);
            RF_ASSERT(strlen(s.entries[i].name) < sizeof s.entries[i].name);
            RF_ASSERT(s.entries[i].dims >= 0 && s.entries[i].dims <= RF__CKPT_DIMS);
            at = s.entries[i].end;
        }
        RF_ASSERT(at == data);
        void *header = NULL;
        size_t length = 0;
        RF_ASSERT(rf__safetensors_header(NULL, 0, s.entries, s.count, &header, &length, NULL) == 0);
        RF_ASSERT(rf__safetensors_parse((char *)header + RF__SAFETENSORS_LENGTH_BYTES,
                                        length - RF__SAFETENSORS_LENGTH_BYTES, data, &again,
                                        NULL) == 0);
        RF_ASSERT(again.count == s.count);
        RF_ASSERT(s.count == 0 ||
                  memcmp(again.entries, s.entries, (size_t)s.count * sizeof *s.entries) == 0);
        rf__safetensors_free(&again);
        rf__free(header);
    }
    rf__safetensors_free(&s);
    return 0;
}
