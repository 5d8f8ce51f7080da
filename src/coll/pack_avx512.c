/* The loops of packing for processors with AVX-512. */
#include "coll/pack_kernels.h"

#if defined(__x86_64__)

#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq")))
#include "coll/pack_loops.inc"

const struct rf__pack_kernels *rf__pack_kernels_avx512(void) {
    bool all = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    return all ? &block_kernels : NULL;
}

#else

const struct rf__pack_kernels *rf__pack_kernels_avx512(void) {
    return NULL;
}

#endif
