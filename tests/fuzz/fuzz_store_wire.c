/* Fuzz target: bytes as a request, as an event, and as a stream of frames. What can be read must be
 * written back to the same bytes, and a change that can be read must leave the state machine whole.
 * Compiled alone for a fuzzer, included by tests/unit/test_store_fuzz.c under another name. */
#include "base/assert.h"
#include "kv/wire.h"

#include <stdlib.h>
#include <string.h>

#ifndef FUZZ_STORE_WIRE
#define FUZZ_STORE_WIRE LLVMFuzzerTestOneInput
#endif

int FUZZ_STORE_WIRE(const uint8_t *bytes, size_t count);

static void as_request(const uint8_t *bytes, size_t count) {
    struct rf__kv_request request;
    int rc = rf__kv_read_request(bytes, count, &request);
    unsigned char *again = malloc(count + RF__KV_LENGTH_BYTES + 1);

    RF_ASSERT(again);
    if (rc == 0) {
        RF_ASSERT(request.key_bytes <= RF_MAX_STORE_KEY);
        RF_ASSERT(request.value_bytes <= RF_MAX_STORE_VALUE);
        RF_ASSERT(rf__kv_request_body(&request, again, count) == count);
        RF_ASSERT(memcmp(again, bytes, count) == 0);
        RF_ASSERT(count == 0 || rf__kv_request_body(&request, again, count - 1) == 0);
        struct rf__kv *kv = rf__kv_create();
        struct rf__kv_result result;
        RF_ASSERT(kv);
        if (rf__kv_is_change(request.op)) {
            bool changed = rf__kv_change(kv, 7, &request, 0, &result);
            RF_ASSERT(changed == (result.code == 0));
            RF_ASSERT(rf__kv_revision(kv) <= 1);
        }
        rf__kv_destroy(kv);
    }
    free(again);
}

static void as_event(const uint8_t *bytes, size_t count) {
    struct rf__kv_event event;
    unsigned char *again = malloc(count + RF__KV_LENGTH_BYTES);

    RF_ASSERT(again);
    if (rf__kv_read_event(bytes, count, &event) == 0) {
        RF_ASSERT(rf__kv_event_frame(&event, again, count + RF__KV_LENGTH_BYTES) ==
                  count + RF__KV_LENGTH_BYTES);
        RF_ASSERT(memcmp(again + RF__KV_LENGTH_BYTES, bytes, count) == 0);
        RF_ASSERT(rf__kv_body_bytes(again) == (int64_t)count);
    }
    free(again);
}

int FUZZ_STORE_WIRE(const uint8_t *bytes, size_t count) {
    as_request(bytes, count);
    as_event(bytes, count);
    if (count >= RF__KV_LENGTH_BYTES) {
        int64_t body = rf__kv_body_bytes(bytes);
        RF_ASSERT(body < 0 || body <= RF__KV_BODY_MAX);
    }
    return 0;
}
