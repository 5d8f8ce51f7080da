/* The kernels for processors with AVX-512. */
#include "nn/kernels.h"

#if defined(__x86_64__)

#define VECTOR 64
#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")))
#define NAME   "AVX-512"
#include "nn/kernels.inc"

const struct rf__kernels *rf__kernels_avx512(void) {
    bool all = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    return all ? &vector_kernels : NULL;
}

#else

const struct rf__kernels *rf__kernels_avx512(void) {
    return NULL;
}

#endif
