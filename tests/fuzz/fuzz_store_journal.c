/* Fuzz target: bytes as a journal file, replayed into a state; and as one record, past the
 * checksum. Whatever comes, the sound part is a prefix, and reading that prefix again gives the
 * same revision. */
#include "base/assert.h"
#include "kv/kv.h"
#include "os/journal.h"

#ifndef FUZZ_STORE_JOURNAL
#define FUZZ_STORE_JOURNAL LLVMFuzzerTestOneInput
#endif

int FUZZ_STORE_JOURNAL(const uint8_t *bytes, size_t count);

static int replay_one(void *context, const unsigned char *record, size_t bytes) {
    return rf__kv_replay(context, record, bytes);
}

int FUZZ_STORE_JOURNAL(const uint8_t *bytes, size_t count) {
    size_t good = 0, again = 0;
    struct rf__kv *kv = rf__kv_create(), *twin = rf__kv_create();

    RF_ASSERT(kv && twin);
    int rc = rf__journal_scan(bytes, count, RF__KV_RECORD_MAX, replay_one, kv, &good, NULL);
    RF_ASSERT(good <= count);
    if (rc == 0) {
        rc = rf__journal_scan(bytes, good, RF__KV_RECORD_MAX, replay_one, twin, &again, NULL);
        RF_ASSERT(rc == 0 && again == good);
        RF_ASSERT(rf__kv_revision(kv) == rf__kv_revision(twin));
        RF_ASSERT(rf__kv_count(kv) == rf__kv_count(twin));
    }
    /* Without the checksum, to reach the records' own checks. */
    rc = rf__kv_replay(kv, bytes, count);
    RF_ASSERT(rc <= 0);
    rf__kv_destroy(kv);
    rf__kv_destroy(twin);
    return 0;
}
