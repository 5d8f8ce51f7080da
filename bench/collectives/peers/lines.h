/* Cache lines of floats, and how they are stored: for the programs that measure what memory allows.
 */
#ifndef BENCH_LINES_H
#define BENCH_LINES_H

#include <stddef.h>
#include <string.h>
#ifdef __SSE2__
#include <immintrin.h>
#endif

/* A cache line of floats, in registers. */
typedef float line_t __attribute__((vector_size(64), may_alias));

static inline void store_plain(float *to, line_t line) {
    *(line_t *)(void *)to = line;
}

static inline void store_streaming(float *to, line_t line) {
#if defined __AVX512F__
    _mm512_stream_ps(to, (__m512)line);
#elif defined __SSE2__
    __m128 quarters[4];
    memcpy(quarters, &line, sizeof line);
    for (size_t i = 0; i < 4; i++) {
        _mm_stream_ps(to + 4 * i, quarters[i]);
    }
#else
    store_plain(to, line);
#endif
}

#endif
