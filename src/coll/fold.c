/* Folding, the plain part: loops over elements that every compiler can vectorise, conversions of
 * half-precision types by integer arithmetic, and the choice of faster kernels at run time. The
 * rules of the arithmetic are in fold_kernels.h. Elements are read and written through types
 * without alignment; results may overwrite their own operands, never those of another index, which
 * the loops are told to rely on. */
#include "coll/fold.h"
#include "base/assert.h"
#include "coll/fold_element.h"
#include "coll/fold_kernels.h"

#include <stdatomic.h>
#include <string.h>

#if defined(__clang__)
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif

/* The loops. */
#define FOLD(name, redop)                                                                          \
    static void fold_##name##_##redop(void *dst, const void *left, const void *right,              \
                                      size_t count) {                                              \
        any_##name *d = dst;                                                                       \
        const any_##name *l = left, *r = right;                                                    \
        INDEPENDENT                                                                                \
        for (size_t i = 0; i < count; i++) {                                                       \
            d[i] = name##_##redop(l[i], r[i]);                                                     \
        }                                                                                          \
    }
#define FOLD_HALF(name, redop)                                                                     \
    static void fold_##name##_##redop(void *dst, const void *left, const void *right,              \
                                      size_t count) {                                              \
        any_u16 *d = dst;                                                                          \
        const any_u16 *l = left, *r = right;                                                       \
        INDEPENDENT                                                                                \
        for (size_t i = 0; i < count; i++) {                                                       \
            d[i] = narrow_##name(f32_##redop(widen_##name(l[i]), widen_##name(r[i])));             \
        }                                                                                          \
    }                                                                                              \
    static void fold_acc_##name##_##redop(void *acc, const void *x, size_t count) {                \
        any_f32 *a = acc;                                                                          \
        const any_u16 *h = x;                                                                      \
        INDEPENDENT                                                                                \
        for (size_t i = 0; i < count; i++) {                                                       \
            a[i] = f32_##redop(a[i], widen_##name(h[i]));                                          \
        }                                                                                          \
    }
#define CONVERT(name)                                                                              \
    static void widen_all_##name(void *dst, const void *src, size_t count) {                       \
        any_f32 *d = dst;                                                                          \
        const any_u16 *s = src;                                                                    \
        INDEPENDENT                                                                                \
        for (size_t i = 0; i < count; i++) {                                                       \
            d[i] = widen_##name(s[i]);                                                             \
        }                                                                                          \
    }                                                                                              \
    static void narrow_all_##name(void *dst, const void *src, size_t count) {                      \
        any_u16 *d = dst;                                                                          \
        const any_f32 *s = src;                                                                    \
        INDEPENDENT                                                                                \
        for (size_t i = 0; i < count; i++) {                                                       \
            d[i] = narrow_##name(s[i]);                                                            \
        }                                                                                          \
    }

FOR_ARITHMETIC(FOLD, f32)
FOR_ARITHMETIC(FOLD, f64)
FOR_ARITHMETIC(FOLD_HALF, f16)
FOR_ARITHMETIC(FOLD_HALF, bf16)
FOR_ARITHMETIC(FOLD, i8)
FOR_ARITHMETIC(FOLD, u8)
FOR_ARITHMETIC(FOLD, i32)
FOR_ARITHMETIC(FOLD, u32)
FOR_ARITHMETIC(FOLD, i64)
FOR_ARITHMETIC(FOLD, u64)
FOR_BITWISE(FOLD, i8)
FOR_BITWISE(FOLD, u8)
FOR_BITWISE(FOLD, i32)
FOR_BITWISE(FOLD, u32)
FOR_BITWISE(FOLD, i64)
FOR_BITWISE(FOLD, u64)
CONVERT(f16)
CONVERT(bf16)

static const struct rf__fold_kernels plain = {
    .fold = FOLD_ROWS(fold),
    .fold_acc = {[RF_F16] = FLOAT_ROW(fold_acc, f16), [RF_BF16] = FLOAT_ROW(fold_acc, bf16)},
    .widen = {[RF_F16] = widen_all_f16, [RF_BF16] = widen_all_bf16},
    .narrow = {[RF_F16] = narrow_all_f16, [RF_BF16] = narrow_all_bf16},
};

/* The table in use; NULL until the first use. Several threads may find it at the same time: they
 * find the same, so relaxed order is enough for a pointer to constants. */
static _Atomic(const struct rf__fold_kernels *) chosen;

static const struct rf__fold_kernels *kernels_of(enum rf__fold_level level) {
    const struct rf__fold_kernels *out = NULL;
    switch (level) {
    case RF__FOLD_PLAIN:
        out = &plain;
        break;
    case RF__FOLD_AVX2:
        out = rf__fold_kernels_avx2();
        break;
    case RF__FOLD_AVX512:
        out = rf__fold_kernels_avx512();
        break;
    case RF__FOLD_LEVELS:
        break;
    }
    return out;
}

static const struct rf__fold_kernels *best_kernels(void) {
    const struct rf__fold_kernels *out = NULL;
    for (int level = RF__FOLD_LEVELS - 1; level >= 0 && !out; level--) {
        out = kernels_of((enum rf__fold_level)level);
    }
    return out;
}

const struct rf__fold_kernels *rf__fold_kernels(void) {
    const struct rf__fold_kernels *out = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (!out) {
        out = best_kernels();
        atomic_store_explicit(&chosen, out, memory_order_relaxed);
    }
    return out;
}

bool rf__fold_level(int level) {
    const struct rf__fold_kernels *kernels =
        level < 0 ? best_kernels() : kernels_of((enum rf__fold_level)level);
    if (kernels) {
        atomic_store_explicit(&chosen, kernels, memory_order_relaxed);
    }
    return kernels != NULL;
}

enum rf_type rf__acc_type(enum rf_type type) {
    return type == RF_F16 || type == RF_BF16 ? RF_F32 : type;
}

static enum rf_redop folded_as(enum rf_redop redop) {
    return redop == RF_AVG ? RF_SUM : redop;
}

void rf__fold(enum rf_type type, enum rf_redop redop, void *dst, const void *left,
              const void *right, size_t count) {
    RF_ASSERT(rf_redop_valid(redop, type));
    rf__fold_kernels()->fold[type][folded_as(redop)](dst, left, right, count);
}

/* `left` changes nothing: every operation is commutative to the bit. */
void rf__fold_acc(enum rf_type type, enum rf_redop redop, void *acc, const void *x, bool left,
                  size_t count) {
    RF_ASSERT(rf_redop_valid(redop, type));
    const struct rf__fold_kernels *kernels = rf__fold_kernels();
    (void)left;
    if (rf__acc_type(type) == type) {
        kernels->fold[type][folded_as(redop)](acc, acc, x, count);
    } else {
        kernels->fold_acc[type][folded_as(redop)](acc, x, count);
    }
}

static void convert(rf__convert_fn *kernel, enum rf_type type, void *dst, const void *src,
                    size_t count) {
    if (kernel) {
        kernel(dst, src, count);
    } else if (count && dst != src) {
        memcpy(dst, src, count * rf_type_size(type));
    }
}

void rf__widen(enum rf_type type, void *acc, const void *x, size_t count) {
    convert(rf__fold_kernels()->widen[type], type, acc, x, count);
}

void rf__narrow(enum rf_type type, void *dst, const void *acc, size_t count) {
    convert(rf__fold_kernels()->narrow[type], type, dst, acc, count);
}

/* Left to the compiler's vectoriser everywhere: a division is exact to the last bit on every path.
 */
#define DIVIDE(name, element, wide)                                                                \
    static void divide_##name(void *x, double divisor, size_t count) {                             \
        any_##name *at = x;                                                                        \
        wide by = (wide)divisor;                                                                   \
        for (size_t i = 0; i < count; i++) {                                                       \
            at[i] = (element)((wide)at[i] / by);                                                   \
        }                                                                                          \
    }
DIVIDE(f32, float, float)
DIVIDE(f64, double, double)
DIVIDE(i8, int8_t, int64_t)
DIVIDE(u8, uint8_t, uint64_t)
DIVIDE(i32, int32_t, int64_t)
DIVIDE(u32, uint32_t, uint64_t)
DIVIDE(i64, int64_t, int64_t)
DIVIDE(u64, uint64_t, uint64_t)

#define DIVIDE_HALF(name)                                                                          \
    static void divide_##name(void *x, double divisor, size_t count) {                             \
        any_u16 *at = x;                                                                           \
        float by = (float)divisor;                                                                 \
        for (size_t i = 0; i < count; i++) {                                                       \
            at[i] = narrow_##name(widen_##name(at[i]) / by);                                       \
        }                                                                                          \
    }
DIVIDE_HALF(f16)
DIVIDE_HALF(bf16)

void rf__divide(enum rf_type type, void *x, double divisor, size_t count) {
    static void (*const divide[RF_TYPE_COUNT])(void *, double, size_t) = {
        [RF_F32] = divide_f32,   [RF_F64] = divide_f64, [RF_F16] = divide_f16,
        [RF_BF16] = divide_bf16, [RF_I8] = divide_i8,   [RF_U8] = divide_u8,
        [RF_I32] = divide_i32,   [RF_U32] = divide_u32, [RF_I64] = divide_i64,
        [RF_U64] = divide_u64};
    RF_ASSERT((unsigned)type < RF_TYPE_COUNT);
    bool is_float = type == RF_F32 || type == RF_F64 || rf__acc_type(type) != type;
    if (divisor != 1) {
        RF_ASSERT(is_float || (divisor >= 1 && divisor < 0x1p63));
        divide[type](x, divisor, count);
    }
}
