/* Folding, the plain part: loops over elements that every compiler can vectorise, conversions of
 * half-precision types by integer arithmetic, and the choice of faster kernels at run time. The
 * rules of the arithmetic are in fold_kernels.h. Elements are read and written through types
 * without alignment; results may overwrite their own operands, never those of another index, which
 * the loops are told to rely on. */
#include "coll/fold.h"
#include "base/assert.h"
#include "coll/fold_kernels.h"

#include <stdatomic.h>
#include <string.h>

#if defined(__clang__)
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif

/* Elements at any address. */
#define ANYWHERE __attribute__((aligned(1), may_alias))
typedef float any_f32 ANYWHERE;
typedef double any_f64 ANYWHERE;
typedef uint16_t any_u16 ANYWHERE;
typedef int8_t any_i8 ANYWHERE;
typedef uint8_t any_u8 ANYWHERE;
typedef int32_t any_i32 ANYWHERE;
typedef uint32_t any_u32 ANYWHERE;
typedef int64_t any_i64 ANYWHERE;
typedef uint64_t any_u64 ANYWHERE;

#define F32_NAN UINT32_C(0x7fc00000)
#define F64_NAN UINT64_C(0x7ff8000000000000)
#define F32_INF UINT32_C(0x7f800000)
#define F64_INF UINT64_C(0x7ff0000000000000)

/* Bits and values of f32 and f64, the canonical NaN, and the four operations. */
#define FLOAT_OPERATIONS(name, real, bits, INF, NAN_BITS)                                          \
    static inline bits name##_bits(real value) {                                                   \
        bits out;                                                                                  \
        memcpy(&out, &value, sizeof out);                                                          \
        return out;                                                                                \
    }                                                                                              \
    static inline real name##_of(bits value) {                                                     \
        real out;                                                                                  \
        memcpy(&out, &value, sizeof out);                                                          \
        return out;                                                                                \
    }                                                                                              \
    static inline real name##_canonical(real value) {                                              \
        bits b = name##_bits(value);                                                               \
        bits magnitude = b & ~((bits)1 << (8 * sizeof(bits) - 1));                                 \
        return name##_of(magnitude > INF ? NAN_BITS : b);                                          \
    }                                                                                              \
    static inline real name##_sum(real a, real b) {                                                \
        return name##_canonical(a + b);                                                            \
    }                                                                                              \
    static inline real name##_prod(real a, real b) {                                               \
        return name##_canonical(a * b);                                                            \
    }                                                                                              \
    /* Equal operands differ in the sign of zero at most, which | and & settle. */                 \
    static inline real name##_min(real a, real b) {                                                \
        bits low = name##_bits(a < b ? a : b) | name##_bits(b < a ? b : a);                        \
        return name##_of(a != a || b != b ? NAN_BITS : low);                                       \
    }                                                                                              \
    static inline real name##_max(real a, real b) {                                                \
        bits high = name##_bits(a > b ? a : b) & name##_bits(b > a ? b : a);                       \
        return name##_of(a != a || b != b ? NAN_BITS : high);                                      \
    }

FLOAT_OPERATIONS(f32, float, uint32_t, F32_INF, F32_NAN)
FLOAT_OPERATIONS(f64, double, uint64_t, F64_INF, F64_NAN)

/* Integers wrap: sums and products are formed without sign. */
#define INTEGER_OPERATIONS(name, integer, wide)                                                    \
    static inline integer name##_sum(integer a, integer b) {                                       \
        return (integer)((wide)a + (wide)b);                                                       \
    }                                                                                              \
    static inline integer name##_prod(integer a, integer b) {                                      \
        return (integer)((wide)a * (wide)b);                                                       \
    }                                                                                              \
    static inline integer name##_min(integer a, integer b) {                                       \
        return a < b ? a : b;                                                                      \
    }                                                                                              \
    static inline integer name##_max(integer a, integer b) {                                       \
        return a > b ? a : b;                                                                      \
    }                                                                                              \
    static inline integer name##_and(integer a, integer b) {                                       \
        return a & b;                                                                              \
    }                                                                                              \
    static inline integer name##_or(integer a, integer b) {                                        \
        return a | b;                                                                              \
    }                                                                                              \
    static inline integer name##_xor(integer a, integer b) {                                       \
        return a ^ b;                                                                              \
    }

INTEGER_OPERATIONS(i8, int8_t, uint32_t)
INTEGER_OPERATIONS(u8, uint8_t, uint32_t)
INTEGER_OPERATIONS(i32, int32_t, uint32_t)
INTEGER_OPERATIONS(u32, uint32_t, uint32_t)
INTEGER_OPERATIONS(i64, int64_t, uint64_t)
INTEGER_OPERATIONS(u64, uint64_t, uint64_t)

/* Half precision. A subnormal f16 counts units of 2^-24: that is what the last bit of 0.5f is
 * worth, so that adding 0.5f lets the processor do the rounding, and subtracting 2^-14 from a float
 * of that exponent the normalising. */
static inline float widen_f16(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    uint32_t shifted = (uint32_t)(half & 0x7fffu) << 13;
    uint32_t normal = shifted + (UINT32_C(112) << 23);
    uint32_t special = shifted + (UINT32_C(224) << 23);
    uint32_t quiet = special > F32_INF ? UINT32_C(1) << 22 : 0;
    uint32_t tiny = f32_bits(f32_of(shifted + (UINT32_C(113) << 23)) - 0x1p-14f);
    uint32_t magnitude = shifted >= (UINT32_C(31) << 23) ? special | quiet
                         : shifted < (UINT32_C(1) << 23) ? tiny
                                                         : normal;
    return f32_of(sign | magnitude);
}

static inline uint16_t narrow_f16(float value) {
    uint32_t b = f32_bits(value);
    uint32_t sign = b >> 16 & 0x8000u, magnitude = b & 0x7fffffffu;
    uint32_t even = magnitude >> 13 & 1;
    uint32_t rounded = (magnitude - (UINT32_C(112) << 23) + 0xfffu + even) >> 13;
    uint32_t normal = magnitude >= (UINT32_C(143) << 23) || rounded > 0x7c00u ? 0x7c00u : rounded;
    uint32_t tiny = f32_bits(f32_of(magnitude) + 0.5f) - (UINT32_C(126) << 23);
    uint32_t nan = 0x7e00u | (magnitude >> 13 & 0x3ffu);
    uint32_t half = magnitude > F32_INF ? nan : magnitude < (UINT32_C(113) << 23) ? tiny : normal;
    return (uint16_t)(sign | half);
}

static inline float widen_bf16(uint16_t half) {
    return f32_of((uint32_t)half << 16);
}

static inline uint16_t narrow_bf16(float value) {
    uint32_t b = f32_bits(value);
    uint32_t rounded = (b + 0x7fffu + (b >> 16 & 1)) >> 16;
    uint32_t nan = b >> 16 | 0x40u;
    return (uint16_t)((b & 0x7fffffffu) > F32_INF ? nan : rounded);
}

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

#define ARITHMETIC(DEFINE, name)                                                                   \
    DEFINE(name, sum) DEFINE(name, prod) DEFINE(name, min) DEFINE(name, max)
#define BITWISE(DEFINE, name) DEFINE(name, and) DEFINE(name, or) DEFINE(name, xor)

ARITHMETIC(FOLD, f32)
ARITHMETIC(FOLD, f64)
ARITHMETIC(FOLD_HALF, f16)
ARITHMETIC(FOLD_HALF, bf16)
ARITHMETIC(FOLD, i8)
ARITHMETIC(FOLD, u8)
ARITHMETIC(FOLD, i32)
ARITHMETIC(FOLD, u32)
ARITHMETIC(FOLD, i64)
ARITHMETIC(FOLD, u64)
BITWISE(FOLD, i8)
BITWISE(FOLD, u8)
BITWISE(FOLD, i32)
BITWISE(FOLD, u32)
BITWISE(FOLD, i64)
BITWISE(FOLD, u64)
CONVERT(f16)
CONVERT(bf16)

#define FLOAT_ROW(prefix, name)                                                                    \
    {                                                                                              \
        [RF_SUM] = prefix##_##name##_sum, [RF_PROD] = prefix##_##name##_prod,                      \
        [RF_MIN] = prefix##_##name##_min, [RF_MAX] = prefix##_##name##_max                         \
    }
#define INTEGER_ROW(prefix, name)                                                                  \
    {                                                                                              \
        [RF_SUM] = prefix##_##name##_sum, [RF_PROD] = prefix##_##name##_prod,                      \
        [RF_MIN] = prefix##_##name##_min, [RF_MAX] = prefix##_##name##_max,                        \
        [RF_AND] = prefix##_##name##_and, [RF_OR] = prefix##_##name##_or,                          \
        [RF_XOR] = prefix##_##name##_xor                                                           \
    }

static const struct rf__fold_kernels plain = {
    .fold = {[RF_F32] = FLOAT_ROW(fold, f32),
             [RF_F64] = FLOAT_ROW(fold, f64),
             [RF_F16] = FLOAT_ROW(fold, f16),
             [RF_BF16] = FLOAT_ROW(fold, bf16),
             [RF_I8] = INTEGER_ROW(fold, i8),
             [RF_U8] = INTEGER_ROW(fold, u8),
             [RF_I32] = INTEGER_ROW(fold, i32),
             [RF_U32] = INTEGER_ROW(fold, u32),
             [RF_I64] = INTEGER_ROW(fold, i64),
             [RF_U64] = INTEGER_ROW(fold, u64)},
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
    case RF__FOLD_AVX512:
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
