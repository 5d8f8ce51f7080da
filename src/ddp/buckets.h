/* Where each tensor's gradient lies. Tensors are laid into one block in a given order (that in
 * which their gradients become ready), each on a 64-byte boundary; a bucket is a run of them that
 * is averaged in one operation. The block's size does not depend on the order, so a new order needs
 * no new memory. Pure. */
#ifndef RF_DDP_BUCKETS_H
#define RF_DDP_BUCKETS_H

#include <stddef.h>

enum { RF__BUCKET_ALIGN = 64 / sizeof(float) }; /* floats */

struct rf__bucket {
    int first, tensors; /* order[first] … order[first + tensors - 1] */
    size_t offset,
        count; /* floats; gaps between its tensors are counted, the gap after the last is not */
};

struct rf__slot {
    int bucket;
    size_t offset; /* floats, from the start of the block */
};

/* Floats of the block; 0 where it would not fit into memory's address space. */
size_t rf__buckets_floats(const size_t *counts, int tensors);

/* `order` is a permutation of 0 … tensors - 1. A bucket is closed by the tensor that fills it
 * to `first_bytes` (the first) or `bytes` (the others): a large tensor does not wait for those
 * after it. Fills `slots` by tensor, and `buckets`, of which there are at most `tensors`. Returns
 * their number. */
int rf__buckets_layout(const size_t *counts, const int *order, int tensors, size_t first_bytes,
                       size_t bytes, struct rf__bucket *buckets, struct rf__slot *slots);

#endif
