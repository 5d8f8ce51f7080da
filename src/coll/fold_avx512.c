/* The fold kernels for processors with AVX-512. */
#include "coll/fold_kernels.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define VECTOR            64
#define TARGET            __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq")))
#define LOAD_F16(p)       _mm512_cvtph_ps(_mm256_loadu_si256(p))
#define TO_F16(v)         _mm512_cvtps_ph((__m512)(v), _MM_FROUND_TO_NEAREST_INT)
#define STREAM(p, v)      _mm512_stream_si512(p, (__m512i)(v))
#define STREAM_HALF(p, v) _mm256_stream_si256(p, (__m256i)(v))
#define FENCE()           _mm_sfence()

#include "coll/fold_vectors.inc"

const struct rf__fold_kernels *rf__fold_kernels_avx512(void) {
    bool all = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    return all ? &vector_kernels : NULL;
}

#else

const struct rf__fold_kernels *rf__fold_kernels_avx512(void) {
    return NULL;
}

#endif
