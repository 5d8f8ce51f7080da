/* The inner loops of packing, for one block each, as one table for each set of instructions:
 * pack.c holds the plain one, which runs everywhere, and chooses. All give the same bits. */
#ifndef RF_COLL_PACK_KERNELS_H
#define RF_COLL_PACK_KERNELS_H

#include "coll/fold_kernels.h"

struct rf__pack_kernels {
    /* Returns the scale's bits. */
    uint16_t (*pack)(float *x, float *lost, bool add, int8_t *out);
    void (*unpack)(float *x, const int8_t *in, float scale);
    void (*add)(float *x, const int8_t *in, float scale); /* to x */
};

/* NULL where the compiler's target, or this machine, has none. */
const struct rf__pack_kernels *rf__pack_kernels_avx2(void);
const struct rf__pack_kernels *rf__pack_kernels_avx512(void);

/* Tests only: pack with the kernels of `level` from now on; negative: with the best. False, and no
 * change, where there are none. Not for use while another thread packs. */
bool rf__pack_level(int level);

#endif
