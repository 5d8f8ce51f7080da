/* The plain kernels, and the choice among all. */
#include "nn/kernels.h"

#define VECTOR 16
#define TARGET
#define NAME "plain"
#include "nn/kernels.inc"

const struct rf__kernels *rf__kernels_plain(void) {
    return &vector_kernels;
}

const struct rf__kernels *rf__kernels_best(void) {
    const struct rf__kernels *out = rf__kernels_avx512();
    if (!out) {
        out = rf__kernels_avx2();
    }
    return out ? out : &vector_kernels;
}

/* Enough for the widest vectors, so that it does not depend on who asks. */
size_t rf__attention_scratch(size_t rows, size_t width) {
    const size_t vector = 16;
    size_t padded = (rows + BLOCK - 1) / BLOCK * BLOCK;
    size_t wide = (width + vector - 1) / vector * vector;
    return ATTENTION_COPIES * padded * wide + 2 * BLOCK * BLOCK + BLOCK * wide + 2 * padded +
           BLOCK * vector;
}
