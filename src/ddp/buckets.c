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

static size_t limit_of(size_t half, size_t first_bytes, size_t bytes) {
    size_t least = (first_bytes < bytes ? first_bytes : bytes) / sizeof(float);
    size_t most = bytes / sizeof(float);
    return half < least ? least : half > most ? most : half;
}

int rf__buckets_layout(const size_t *counts, const int *order, int tensors, size_t first_bytes,
                       size_t bytes, struct rf__bucket *buckets, struct rf__slot *slots) {
    struct rf__bucket *bucket = buckets;
    size_t offset = 0, limit = 0, all = rf__buckets_floats(counts, tensors);
    int used = 0;

    for (int k = 0; k < tensors; k++) {
        size_t count = counts[order[k]];
        if (used == 0 || bucket->count >= limit) {
            limit = used == 0 ? first_bytes / sizeof(float)
                              : limit_of((all - offset) / 2, first_bytes, bytes);
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
