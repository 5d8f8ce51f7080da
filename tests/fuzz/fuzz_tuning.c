/* Fuzz target: bytes as a tuning table. What is taken chooses an algorithm that covers the
 * collective, whatever is asked, and can be written and read again with the same choices. Compiled
 * alone for a fuzzer, included by tests/unit/test_choose.c under another name. */
#include "base/assert.h"
#include "base/mem.h"
#include "coll/choose.h"

#include <stdint.h>

#ifndef FUZZ_TUNING
#define FUZZ_TUNING LLVMFuzzerTestOneInput
#endif

int FUZZ_TUNING(const uint8_t *bytes, size_t count);

int FUZZ_TUNING(const uint8_t *bytes, size_t count) {
    static struct rf_tuning tuning, again;
    static const uint64_t sizes[] = {0, 1, 8192, 65537, UINT64_MAX};
    static const int ranks[] = {1, 2, 16, 17, RF_MAX_RANKS};
    char *text = NULL;
    size_t length = 0;

    int rc = rf__tuning_decode(bytes, count, &tuning, NULL);
    RF_ASSERT(rc == 0 || rc == RF_EINVAL || rc == RF_ELIMIT || rc == RF_ENOMEM);
    if (rc) {
        return 0;
    }
    RF_ASSERT(tuning.count >= 0 && tuning.count <= RF_MAX_TUNING_RULES);
    RF_ASSERT(rf__tuning_encode(&tuning, &text, &length, NULL) == 0);
    RF_ASSERT(rf__tuning_decode(text, length, &again, NULL) == 0);
    RF_ASSERT(rf__tuning_digest(&again) == rf__tuning_digest(&tuning));
    rf__free(text);
    for (int coll = 0; coll <= RF_COLL_BARRIER; coll++) {
        for (int i = 0; i < 2 * 5 * 5; i++) {
            enum rf_link link = (enum rf_link)(i % 2);
            int size = ranks[i / 2 % 5];
            enum rf_algorithm chosen =
                rf_tuning_choose(&tuning, link, (enum rf_coll)coll, size, sizes[i / 10]);
            RF_ASSERT(rf_algorithm_covers((enum rf_coll)coll, chosen));
            RF_ASSERT(chosen != RF_ALGORITHM_SHARED || link == RF_LINK_SHM);
            RF_ASSERT(chosen != RF_ALGORITHM_HIERARCHICAL || link == RF_LINK_TCP);
            RF_ASSERT(chosen ==
                      rf_tuning_choose(&again, link, (enum rf_coll)coll, size, sizes[i / 10]));
            RF_ASSERT(tuning.any_order || size > RF_TUNING_ORDERED_RANKS ||
                      coll == RF_COLL_REDUCE ||
                      rf_algorithm_keeps_order((enum rf_coll)coll, chosen));
        }
    }
    return 0;
}
