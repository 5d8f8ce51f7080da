/* The fold kernels for processors with AVX2 and F16C. */
#include "coll/fold_kernels.h"

#if defined(__x86_64__)

#include <cpuid.h>
#include <immintrin.h>

#define VECTOR            32
#define TARGET            __attribute__((target("avx2,f16c")))
#define LOAD_F16(p)       _mm256_cvtph_ps(_mm_loadu_si128(p))
#define TO_F16(v)         _mm256_cvtps_ph((__m256)(v), _MM_FROUND_TO_NEAREST_INT)
#define STREAM(p, v)      _mm256_stream_si256(p, (__m256i)(v))
#define STREAM_HALF(p, v) _mm_stream_si128(p, (__m128i)(v))
#define FENCE()           _mm_sfence()

#include "coll/fold_vectors.inc"

const struct rf__fold_kernels *rf__fold_kernels_avx2(void) {
    unsigned a = 0, b = 0, c = 0, d = 0;
    bool f16c = __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
    return f16c && __builtin_cpu_supports("avx2") ? &vector_kernels : NULL;
}

#else

const struct rf__fold_kernels *rf__fold_kernels_avx2(void) {
    return NULL;
}

#endif
