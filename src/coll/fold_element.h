/* The arithmetic of one element, by the rules of fold_kernels.h: what the plain loops are made of
 * and the ends of the vector loops, so that both agree by construction. Inline, without calls. */
#ifndef RF_COLL_FOLD_ELEMENT_H
#define RF_COLL_FOLD_ELEMENT_H

#include <stdint.h>
#include <string.h>

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

#endif
