/* The loops of packing for processors with AVX2. */
#include "coll/pack_kernels.h"

#if defined(__x86_64__)

#define TARGET __attribute__((target("avx2")))
#include "coll/pack_loops.inc"

const struct rf__pack_kernels *rf__pack_kernels_avx2(void) {
    return __builtin_cpu_supports("avx2") ? &block_kernels : NULL;
}

#else

const struct rf__pack_kernels *rf__pack_kernels_avx2(void) {
    return NULL;
}

#endif
