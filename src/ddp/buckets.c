/* The layout of gradients in buckets: one walk over the tensors in their order. */
#include "ddp/buckets.h"

#include <stdint.h>

static size_t aligned(size_t floats) {
    return (floats + RF__BUCKET_ALIGN - 1) / RF__BUCKET_ALIGN * RF__BUCKET_ALIGN;
}

size_t rf__buckets_floats(const size_t *counts, int tensors) {
    const size_t most = PTRDIFF_MAX / sizeof(float) / 2;
    size_t total = 0;

    for (int i = 0; i < tensors; i++) {
        if (counts[i] > most || aligned(counts[i]) > most - total) {
            return 0;
        }
        total += aligned(counts[i]);
    }
    return total;
}

int rf__buckets_layout(const size_t *counts, const int *order, int tensors, size_t first_bytes,
                       size_t bytes, struct rf__bucket *buckets, struct rf__slot *slots) {
    struct rf__bucket *bucket = buckets;
    size_t offset = 0;
    int used = 0;

    for (int k = 0; k < tensors; k++) {
        size_t count = counts[order[k]];
        size_t limit = (used <= 1 ? first_bytes : bytes) / sizeof(float);
        if (used == 0 || bucket->count >= limit) {
            bucket = &buckets[used++];
            *bucket = (struct rf__bucket){.first = k, .offset = offset};
        }
        bucket->tensors++;
        bucket->count = offset + count - bucket->offset;
        slots[order[k]] = (struct rf__slot){.bucket = used - 1, .offset = offset};
        offset += aligned(count);
    }
    return used;
}
