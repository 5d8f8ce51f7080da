/* Fuzz target: bytes as an index, as the header of an IDX file, as TFRecords and as an Example.
 * Readers stay within the bytes, and what they accept is consistent: an index comes back as the
 * same bytes. Compiled alone for a fuzzer, included by tests/unit/test_bad_data.c under another
 * name. */
#include "base/assert.h"
#include "data/idx.h"
#include "data/index.h"
#include "data/tfrecord.h"

#include <stdlib.h>
#include <string.h>

#ifndef FUZZ_DATA
#define FUZZ_DATA LLVMFuzzerTestOneInput
#endif

int FUZZ_DATA(const uint8_t *bytes, size_t count);

static void as_index(const uint8_t *bytes, size_t count) {
    struct rf__index index = {0};

    if (rf__index_decode(bytes, count, "fuzzed", &index, NULL) == 0) {
        unsigned char *again = malloc(count);
        RF_ASSERT(again && rf__index_encoded_bytes(&index) == count);
        rf__index_encode(&index, again);
        RF_ASSERT(memcmp(again, bytes, count) == 0);
        free(again);
    }
    rf__index_free(&index);
}

static void as_header(const uint8_t *bytes, size_t count) {
    for (int dims = 1; dims <= RF__IDX_DIMS; dims++) {
        struct rf__idx idx;
        if (rf__idx_header(bytes, count, "fuzzed", dims, &idx, NULL) == 0) {
            RF_ASSERT(count >= rf__idx_header_bytes(dims) && idx.bytes <= RF__IDX_MAX_BYTES);
        }
    }
}

static void as_example(const uint8_t *bytes, uint64_t count) {
    struct rf__example example;

    if (rf__example_parse(bytes, count, &example) == 0 && example.image) {
        RF_ASSERT(example.image >= bytes && example.image_bytes <= count &&
                  example.image + example.image_bytes <= bytes + count);
    }
}

static void as_records(const uint8_t *bytes, size_t count) {
    struct rf__record record;
    uint64_t at = 0, before = 0;

    while (rf__record_next(bytes, count, &at, &record)) {
        RF_ASSERT(record.offset == before && at > before && at <= count);
        if (record.state != RF__RECORD_LOST) {
            RF_ASSERT(record.data + record.bytes + 4 == at);
            as_example(bytes + record.data, record.bytes);
        }
        before = at;
    }
    RF_ASSERT(at == count);
}

int FUZZ_DATA(const uint8_t *bytes, size_t count) {
    as_index(bytes, count);
    as_header(bytes, count);
    as_records(bytes, count);
    as_example(bytes, count);
    return 0;
}
