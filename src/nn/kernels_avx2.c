/* The kernels for processors with AVX2. */
#include "nn/kernels.h"

#if defined(__x86_64__)

#define VECTOR 32
#define TARGET __attribute__((target("avx2,fma")))
#define NAME   "AVX2"
#include "nn/kernels.inc"

const struct rf__kernels *rf__kernels_avx2(void) {
    bool all = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    return all ? &vector_kernels : NULL;
}

#else

const struct rf__kernels *rf__kernels_avx2(void) {
    return NULL;
}

#endif
