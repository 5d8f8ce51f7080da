/* coll/fold: every type and operation against a naive oracle (doubles and 64-bit integers,
 * conversions by search in the table of all values), every level of kernels against the plain one
 * and against the step-by-step definition, bit for bit. */
#include "base/rng.h"
#include "coll/fold.h"
#include "coll/fold_kernels.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MOST = 67, ROOM = MOST * 8 + 64 };

static const uint64_t special_f32[] = {0x7fc00000, 0xffc00000, 0x7f800001, 0xffa00001, 0x7fc12345,
                                       0x7f800000, 0xff800000, 0x00000000, 0x80000000, 0x00000001,
                                       0x80000001, 0x007fffff, 0x00800000, 0x7f7fffff, 0xff7fffff,
                                       0x3f800000, 0xbf800000, 0x33000000};
static const uint64_t special_f64[] = {
    0x7ff8000000000000, 0xfff8000000000000, 0x7ff0000000000001, 0xfff4000000000001,
    0x7ff8123456789abc, 0x7ff0000000000000, 0xfff0000000000000, 0x0000000000000000,
    0x8000000000000000, 0x0000000000000001, 0x8000000000000001, 0x000fffffffffffff,
    0x0010000000000000, 0x7fefffffffffffff, 0xffefffffffffffff, 0x3ff0000000000000};
static const uint64_t special_f16[] = {0x7e00, 0xfe00, 0x7c01, 0xfd01, 0x7e12, 0x7c00,
                                       0xfc00, 0x0000, 0x8000, 0x0001, 0x8001, 0x03ff,
                                       0x0400, 0x7bff, 0xfbff, 0x3c00, 0xbc00, 0x0201};
static const uint64_t special_bf16[] = {0x7fc0, 0xffc0, 0x7f81, 0xffa1, 0x7fc1, 0x7f80,
                                        0xff80, 0x0000, 0x8000, 0x0001, 0x8001, 0x007f,
                                        0x0080, 0x7f7f, 0xff7f, 0x3f80, 0xbf80, 0x0031};
static const uint64_t special_integer[] = {
    0, 1, UINT64_MAX, UINT64_C(1) << 63, INT64_MAX, 0x80000000, 0x7fffffff, 0x80, 0x7f};

static bool is_float(enum rf_type type) {
    return type == RF_F32 || type == RF_F64 || type == RF_F16 || type == RF_BF16;
}

static uint64_t special(enum rf_type type, uint64_t draw) {
#define PICK(table) table[draw % (sizeof table / sizeof *table)]
    return type == RF_F32    ? PICK(special_f32)
           : type == RF_F64  ? PICK(special_f64)
           : type == RF_F16  ? PICK(special_f16)
           : type == RF_BF16 ? PICK(special_bf16)
                             : PICK(special_integer);
#undef PICK
}

/* Little-endian bits of element `index`. */
static uint64_t bits_at(const void *array, size_t bytes, size_t index) {
    uint64_t bits = 0;
    memcpy(&bits, (const unsigned char *)array + bytes * index, bytes);
    return bits;
}

static void fill(struct rf__rng *rng, enum rf_type type, void *array, size_t count) {
    size_t bytes = rf_type_size(type);
    for (size_t i = 0; i < count; i++) {
        uint64_t bits = rf__rng_u64(rng);
        uint64_t kind = rf__rng_below(rng, 4);
        if (kind == 0) {
            bits = special(type, bits);
        } else if (kind == 1 && type == RF_F32) {
            float value = rf__rng_normal(rng);
            memcpy(&bits, &value, sizeof value);
        } else if (kind == 1 && type == RF_F64) {
            double value = rf__rng_normal(rng);
            memcpy(&bits, &value, sizeof value);
        }
        memcpy((unsigned char *)array + bytes * i, &bits, bytes);
    }
}

/* The oracle. */
static float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static double f16_value(uint64_t bits) {
    int exponent = (int)(bits >> 10 & 31);
    double mantissa = (double)(bits & 1023);
    double value = exponent == 31  ? (mantissa != 0 ? (double)NAN : (double)INFINITY)
                   : exponent == 0 ? ldexp(mantissa, -24)
                                   : ldexp(mantissa + 1024, exponent - 25);
    return bits & 0x8000 ? -value : value;
}

static double half_value(enum rf_type type, uint64_t bits) {
    return type == RF_F16 ? f16_value(bits) : (double)float_of((uint32_t)bits << 16);
}

/* The nearest half to a number, by search among all that are not negative, whose bits count
 * upwards. */
static uint64_t half_nearest(enum rf_type type, double value) {
    uint64_t infinity = type == RF_F16 ? 0x7c00 : 0x7f80, low = 0, high = infinity;
    double magnitude = fabs(value), beyond = type == RF_F16 ? 0x1p16 : 0x1p128;
    while (high - low > 1) {
        uint64_t middle = (low + high) / 2;
        if (half_value(type, middle) <= magnitude) {
            low = middle;
        } else {
            high = middle;
        }
    }
    double below = magnitude - half_value(type, low);
    double above = (high == infinity ? beyond : half_value(type, high)) - magnitude;
    uint64_t nearest = below < above || (below == above && low % 2 == 0) ? low : high;
    return nearest | (signbit(value) ? 0x8000 : 0);
}

static double real_operation(enum rf_redop redop, double a, double b) {
    double out = 0;
    switch (redop) {
    case RF_SUM:
    case RF_AVG:
        out = a + b;
        break;
    case RF_PROD:
        out = a * b;
        break;
    case RF_MIN:
        out = isnan(a) || isnan(b) ? (double)NAN : a < b || (a == b && signbit(a)) ? a : b;
        break;
    case RF_MAX:
        out = isnan(a) || isnan(b) ? (double)NAN : a > b || (a == b && !signbit(a)) ? a : b;
        break;
    case RF_AND:
    case RF_OR:
    case RF_XOR:
    case RF_REDOP_COUNT:
        fail();
    }
    return out;
}

static uint64_t integer_operation(enum rf_redop redop, uint64_t a, uint64_t b, bool is_signed) {
    uint64_t out = 0;
    bool less = is_signed ? (int64_t)a < (int64_t)b : a < b;
    switch (redop) {
    case RF_SUM:
    case RF_AVG:
        out = a + b;
        break;
    case RF_PROD:
        out = a * b;
        break;
    case RF_MIN:
        out = less ? a : b;
        break;
    case RF_MAX:
        out = less ? b : a;
        break;
    case RF_AND:
        out = a & b;
        break;
    case RF_OR:
        out = a | b;
        break;
    case RF_XOR:
        out = a ^ b;
        break;
    case RF_REDOP_COUNT:
        fail();
    }
    return out;
}

/* The bits that `type`'s operation must give. Sums and products of two floats are exact enough in
 * double for one rounding to float to be right (53 >= 2 x 24 + 2). */
static uint64_t oracle(enum rf_type type, enum rf_redop redop, uint64_t a, uint64_t b) {
    size_t bytes = rf_type_size(type);
    uint64_t out = 0;
    if (type == RF_F64) {
        double x, y;
        memcpy(&x, &a, 8);
        memcpy(&y, &b, 8);
        double value = real_operation(redop, x, y);
        memcpy(&out, &value, 8);
        out = isnan(value) ? 0x7ff8000000000000 : out;
    } else if (type == RF_F32) {
        float value = (float)real_operation(redop, (double)float_of((uint32_t)a),
                                            (double)float_of((uint32_t)b));
        memcpy(&out, &value, 4);
        out = isnan(value) ? 0x7fc00000 : out;
    } else if (is_float(type)) {
        float value = (float)real_operation(redop, half_value(type, a), half_value(type, b));
        out = isnan(value) ? (type == RF_F16 ? 0x7e00 : 0x7fc0) : half_nearest(type, (double)value);
    } else {
        bool is_signed = type == RF_I8 || type == RF_I32 || type == RF_I64;
        unsigned unused = (unsigned)(64 - 8 * bytes);
        if (is_signed) {
            a = (uint64_t)((int64_t)(a << unused) >> unused);
            b = (uint64_t)((int64_t)(b << unused) >> unused);
        }
        out = integer_operation(redop, a, b, is_signed) << unused >> unused;
    }
    return out;
}

/* All bytes but those from `begin` to before `end` are `mark` still. Apart from assertions, which
 * cost far more than what is checked here. */
static bool untouched(const unsigned char *memory, size_t room, unsigned char mark,
                      const unsigned char *begin, const unsigned char *end) {
    bool same = true;
    for (const unsigned char *p = memory; p < memory + room; p++) {
        same = same && ((p >= begin && p < end) || *p == mark);
    }
    return same;
}

/* Calls `test` for each level that the machine has, and the best at the end. */
static void at_each_level(void (*test)(void)) {
    int levels = 0;
    for (int level = 0; level < RF__FOLD_LEVELS; level++) {
        if (rf__fold_level(level)) {
            test();
            levels++;
        }
    }
    assert_true(rf__fold_level(-1));
    assert_true(levels >= 1);
}

#define EACH_OPERATION(type, redop)                                                                \
    for (enum rf_type type = 0; type < RF_TYPE_COUNT; type++)                                      \
        for (enum rf_redop redop = 0; redop < RF_REDOP_COUNT; redop++)                             \
            if (rf_redop_valid(redop, type))

static void check_fold(void) {
    unsigned char left[ROOM], right[ROOM], dst[ROOM];
    struct rf__rng rng = rf__rng(1, 2, 3);
    EACH_OPERATION(type, redop) {
        size_t bytes = rf_type_size(type);
        for (size_t count = 0; count <= MOST; count++) {
            /* Aligned once in four times; otherwise each at its own odd place. */
            size_t shift = count % 4 == 3 ? 0 : 1;
            unsigned char *l = left + shift * 5, *r = right + shift * 3, *d = dst + shift * 9;
            fill(&rng, type, l, count);
            fill(&rng, type, r, count);
            memset(dst, 0xa5, sizeof dst);
            rf__fold(type, redop, d, l, r, count);
            for (size_t i = 0; i < count; i++) {
                uint64_t want = oracle(type, redop, bits_at(l, bytes, i), bits_at(r, bytes, i));
                if (bits_at(d, bytes, i) != want) {
                    fail_msg("%s %s: %llx op %llx gave %llx, not %llx", rf_type_name(type),
                             rf_redop_name(redop), (unsigned long long)bits_at(l, bytes, i),
                             (unsigned long long)bits_at(r, bytes, i),
                             (unsigned long long)bits_at(d, bytes, i), (unsigned long long)want);
                }
            }
            assert_true(untouched(dst, sizeof dst, 0xa5, d, d + count * bytes));
            unsigned char copy[ROOM];
            memcpy(copy, d, count * bytes);
            memcpy(d, l, count * bytes);
            rf__fold(type, redop, d, d, r, count);
            assert_memory_equal(d, copy, count * bytes);
            memcpy(d, r, count * bytes);
            rf__fold(type, redop, d, l, d, count);
            assert_memory_equal(d, copy, count * bytes);
            rf__fold(type, redop, d, r, l, count);
            assert_memory_equal(d, copy, count * bytes);
        }
    }
}

static void fold_matches_the_oracle(void **state) {
    (void)state;
    at_each_level(check_fold);
}

static void check_special_pairs(void) {
    EACH_OPERATION(type, redop) {
        size_t bytes = rf_type_size(type);
        /* 18 x 18 pairs at most, at every position of a vector. */
        for (uint64_t a = 0; a < 18; a++) {
            for (uint64_t b = 0; b < 18; b++) {
                unsigned char left[ROOM], right[ROOM], dst[ROOM];
                uint64_t x = special(type, a), y = special(type, b);
                for (size_t i = 0; i < MOST; i++) {
                    memcpy(left + bytes * i, &x, bytes);
                    memcpy(right + bytes * i, &y, bytes);
                }
                rf__fold(type, redop, dst, left, right, MOST);
                uint64_t want =
                    oracle(type, redop, bits_at(left, bytes, 0), bits_at(right, bytes, 0));
                for (size_t i = 0; i < MOST; i++) {
                    assert_int_equal(bits_at(dst, bytes, i), want);
                }
            }
        }
    }
}

static void special_values_are_the_same_at_every_position(void **state) {
    (void)state;
    at_each_level(check_special_pairs);
}

static void check_halves(void) {
    static uint16_t all[65536], back[65536];
    static float wide[65536];
    for (size_t i = 0; i < 65536; i++) {
        all[i] = (uint16_t)i;
    }
    rf__widen(RF_F16, wide, all, 65536);
    rf__narrow(RF_F16, back, wide, 65536);
    for (size_t i = 0; i < 65536; i++) {
        double value = f16_value(i);
        if (isnan(value)) {
            assert_int_equal(bits_at(wide, 4, i),
                             (i & 0x8000) << 16 | 0x7fc00000 | (i & 0x3ff) << 13);
            assert_int_equal(back[i], i | 0x200);
        } else {
            assert_true((double)wide[i] == value && !signbit(wide[i]) == !signbit(value));
            assert_int_equal(back[i], i);
        }
    }
    rf__widen(RF_BF16, wide, all, 65536);
    rf__narrow(RF_BF16, back, wide, 65536);
    for (size_t i = 0; i < 65536; i++) {
        assert_int_equal(bits_at(wide, 4, i), i << 16);
        assert_int_equal(back[i], isnan(wide[i]) ? i | 0x40 : i);
    }
}

/* Each half, the middle between it and the next, and the floats just below and above both. */
static void check_rounding(void) {
    for (int t = 0; t < 2; t++) {
        enum rf_type type = t ? RF_BF16 : RF_F16;
        uint64_t infinity = t ? 0x7f80 : 0x7c00;
        for (uint64_t half = 0; half < infinity; half++) {
            double value = half_value(type, half);
            double next = half + 1 < infinity ? half_value(type, half + 1) : t ? 0x1p128 : 0x1p16;
            float middle = (float)(value + (next - value) / 2), exact = (float)value;
            float tries[12] = {exact,  nextafterf(exact, -1), nextafterf(exact, INFINITY),
                               middle, nextafterf(middle, 0), nextafterf(middle, INFINITY)};
            uint16_t out[12];
            for (int i = 0; i < 6; i++) {
                tries[i + 6] = -tries[i];
            }
            rf__narrow(type, out, tries, 12);
            for (int i = 0; i < 12; i++) {
                assert_int_equal(out[i], half_nearest(type, (double)tries[i]));
            }
        }
        float far[4] = {INFINITY, -INFINITY, 0x1.fffffep127f, -0x1.fffffep127f};
        uint16_t out[4];
        rf__narrow(type, out, far, 4);
        for (int i = 0; i < 4; i++) {
            assert_int_equal(out[i], infinity | (i % 2 ? 0x8000 : 0));
        }
    }
}

static void halves_convert_exactly(void **state) {
    (void)state;
    at_each_level(check_halves);
}

static void halves_round_to_nearest_even(void **state) {
    (void)state;
    at_each_level(check_rounding);
}

/* fold.h's definition of rf__fold_many, one element after the other. */
static void by_definition(enum rf_type type, enum rf_redop redop, void *out, const void *const *ins,
                          int in_count, size_t count, double divisor) {
    size_t bytes = rf_type_size(type);
    for (size_t i = 0; i < count; i++) {
        uint64_t acc[1] = {0};
        rf__widen(type, acc, (const unsigned char *)ins[0] + i * bytes, 1);
        for (int k = 1; k < in_count; k++) {
            rf__fold_acc(type, redop, acc, (const unsigned char *)ins[k] + i * bytes, k % 2, 1);
        }
        rf__divide(rf__acc_type(type), acc, divisor, 1);
        rf__narrow(type, (unsigned char *)out + i * bytes, acc, 1);
    }
}

enum { INS = 9, LARGE = 5003 };

static unsigned char *memory_for(size_t bytes) {
    unsigned char *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
    assert_non_null(memory);
    return memory;
}

/* `shift` bytes past alignment for the inputs; for the outs too, one of them one byte further where
 * `uneven`. */
static void check_many_of(enum rf_type type, enum rf_redop redop, size_t count, size_t shift,
                          bool uneven) {
    size_t bytes = rf_type_size(type), room = count * 8 + 128;
    unsigned char *memory[INS], *saved[INS], *fresh = memory_for(room), *want = memory_for(room);
    struct rf__rng rng = rf__rng(count, (uint64_t)type, (uint64_t)redop);
    for (int k = 0; k < INS; k++) {
        memory[k] = memory_for(room);
        saved[k] = memory_for(room);
        fill(&rng, type, saved[k] + shift, count);
    }
    for (int in_count = 1; in_count <= INS; in_count++) {
        double divisor = redop == RF_AVG ? in_count + 1 : 1;
        for (int stream = 0; stream < 2; stream++) {
            const void *ins[INS];
            void *outs[INS];
            for (int k = 0; k < in_count; k++) {
                memcpy(memory[k] + shift, saved[k] + shift, count * bytes);
                ins[k] = memory[k] + shift;
                outs[k] = memory[k] + shift;
            }
            unsigned char *apart = fresh + shift + (uneven ? 1 : 0);
            memset(fresh, 0x5a, room);
            by_definition(type, redop, want, ins, in_count, count, divisor);
            /* Into other memory first, then in place: with all ranks' buffers as outs, last to
             * first, and one apart. */
            void *single[1] = {apart};
            rf__fold_many(type, redop, single, 1, ins, in_count, count, divisor, stream);
            assert_memory_equal(apart, want, count * bytes);
            for (int k = 0; k < in_count; k++) {
                outs[k] = memory[in_count - 1 - k] + shift;
            }
            if (in_count > 2) {
                outs[1] = apart;
                memset(fresh, 0x5a, room);
            }
            rf__fold_many(type, redop, outs, in_count, ins, in_count, count, divisor, stream);
            for (int k = 0; k < in_count; k++) {
                assert_memory_equal(outs[k], want, count * bytes);
            }
            assert_true(untouched(fresh, room, 0x5a, apart, apart + count * bytes));
        }
    }
    for (int k = 0; k < INS; k++) {
        free(memory[k]);
        free(saved[k]);
    }
    free(fresh);
    free(want);
}

static void check_many(void) {
    EACH_OPERATION(type, redop) {
        for (size_t count = 0; count <= MOST; count += count < 20 ? 1 : 13) {
            check_many_of(type, redop, count, count % 2 ? 0 : 1, count % 5 == 0);
            check_many_of(type, redop, count, rf_type_size(type), false);
        }
        check_many_of(type, redop, LARGE, rf_type_size(type), false);
        check_many_of(type, redop, 1024, 0, false);
    }
}

static void many_is_its_definition(void **state) {
    (void)state;
    at_each_level(check_many);
}

/* Compilers clear them only where they optimise well, and the sanitizers' builds need no speed. */
#if defined(__x86_64__) && defined(__OPTIMIZE__) && !defined(__SANITIZE_ADDRESS__) &&              \
    !defined(__SANITIZE_THREAD__)
#define CLEARS_UPPER
#endif

/* Whether the upper halves of the vector registers are clear. */
static bool is_upper_clear(void) {
#ifdef CLEARS_UPPER
    static const unsigned char clear[256];
    unsigned char upper[256];
    if (__builtin_cpu_supports("avx")) {
#define UPPER(register, at) "vextractf128 $1, %%ymm" register ", " at "(%0)\n"
        __asm__ volatile(UPPER("0", "0") UPPER("1", "16") UPPER("2", "32") UPPER("3", "48")
                             UPPER("4", "64") UPPER("5", "80") UPPER("6", "96") UPPER("7", "112")
                                 UPPER("8", "128") UPPER("9", "144") UPPER("10", "160")
                                     UPPER("11", "176") UPPER("12", "192") UPPER("13", "208")
                                         UPPER("14", "224") UPPER("15", "240")
                         :
                         : "r"(upper)
                         : "memory");
        return memcmp(upper, clear, sizeof clear) == 0;
    }
#endif
    return true;
}

static void check_upper(void) {
    enum { BYTES = 8 * 1024 };
    static unsigned char left[BYTES + 64], right[BYTES + 64], out[BYTES + 64];
    memset(left, 0x35, sizeof left);
    memset(right, 0x36, sizeof right);
    EACH_OPERATION(type, redop) {
        const void *ins[3] = {left, right, left};
        void *outs[3] = {out, left, right};
        for (size_t count = 1; count <= BYTES / rf_type_size(type); count = 3 * count + 1) {
            rf__fold(type, redop == RF_AVG ? RF_SUM : redop, out, left, right, count);
            assert_true(is_upper_clear());
            for (int in_count = 2; in_count <= 3; in_count++) {
                rf__fold_many(type, redop, outs, in_count, ins, in_count, count,
                              redop == RF_AVG ? 2 : 1, in_count == 3);
                assert_true(is_upper_clear());
            }
        }
    }
}

/* Else every vector instruction of the caller's that knows nothing of wider ones is slow. */
static void the_upper_halves_of_registers_are_left_clear(void **state) {
    (void)state;
    at_each_level(check_upper);
}

static void levels_agree(void **state) {
    (void)state;
    enum { COUNT = 1031 };
    static unsigned char ins[3][COUNT * 8], plain[COUNT * 8], other[COUNT * 8];
    struct rf__rng rng = rf__rng(5, 6, 7);
    EACH_OPERATION(type, redop) {
        const void *const in[3] = {ins[0], ins[1], ins[2]};
        void *outs[1] = {plain};
        size_t length = COUNT * rf_type_size(type);
        for (int k = 0; k < 3; k++) {
            fill(&rng, type, ins[k], COUNT);
        }
        assert_true(rf__fold_level(RF__FOLD_PLAIN));
        rf__fold_many(type, redop, outs, 1, in, 3, COUNT, redop == RF_AVG ? 3 : 1, false);
        outs[0] = other;
        for (int level = 1; level < RF__FOLD_LEVELS; level++) {
            if (rf__fold_level(level)) {
                memset(other, 0, sizeof other);
                rf__fold_many(type, redop, outs, 1, in, 3, COUNT, redop == RF_AVG ? 3 : 1, true);
                assert_memory_equal(other, plain, length);
            }
        }
        assert_true(rf__fold_level(-1));
    }
}

static void division_is_exact_and_towards_zero(void **state) {
    (void)state;
    int8_t i8[4] = {-128, -7, 7, 127};
    rf__divide(RF_I8, i8, 200, 4);
    assert_true(!i8[0] && !i8[1] && !i8[2] && !i8[3]);
    int32_t i32[3] = {-7, 7, INT32_MIN};
    rf__divide(RF_I32, i32, 2, 3);
    assert_true(i32[0] == -3 && i32[1] == 3 && i32[2] == INT32_MIN / 2);
    uint64_t u64[2] = {UINT64_MAX, 5};
    rf__divide(RF_U64, u64, 3, 2);
    assert_true(u64[0] == UINT64_MAX / 3 && u64[1] == 1);
    float f32[2] = {1, -10};
    rf__divide(RF_F32, f32, 3, 2);
    assert_true(f32[0] == 1.0f / 3.0f && f32[1] == -10.0f / 3.0f);
    double f64[1] = {1};
    rf__divide(RF_F64, f64, 3, 1);
    assert_true(f64[0] == 1.0 / 3.0);
    uint16_t f16[2] = {0x3c00, 0x4200};
    rf__divide(RF_F16, f16, 3, 2);
    assert_int_equal(f16[0], half_nearest(RF_F16, 1.0 / 3.0));
    assert_int_equal(f16[1], 0x3c00);
    uint32_t signalling[1] = {0x7f800001};
    rf__divide(RF_F32, signalling, 1, 1);
    assert_int_equal(signalling[0], 0x7f800001);
}

/* One rounding: 2049 is no f16, and the average of 1 + 2 x 2^-11 in three parts is. */
static void half_sums_round_once(void **state) {
    (void)state;
    uint16_t one[1] = {0x3c00}, tiny[1] = {0x1000}, out[1]; /* 2^-11: half of the last bit of 1 */
    const void *ins[3] = {one, tiny, tiny};
    void *outs[1] = {out};
    rf__fold_many(RF_F16, RF_SUM, outs, 1, ins, 3, 1, 1, false);
    assert_int_equal(out[0], 0x3c01);
    rf__fold(RF_F16, RF_SUM, out, one, tiny, 1);
    assert_int_equal(out[0], 0x3c00);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fold_matches_the_oracle),
        cmocka_unit_test(special_values_are_the_same_at_every_position),
        cmocka_unit_test(halves_convert_exactly),
        cmocka_unit_test(halves_round_to_nearest_even),
        cmocka_unit_test(many_is_its_definition),
        cmocka_unit_test(the_upper_halves_of_registers_are_left_clear),
        cmocka_unit_test(levels_agree),
        cmocka_unit_test(division_is_exact_and_towards_zero),
        cmocka_unit_test(half_sums_round_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
