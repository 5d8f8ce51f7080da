/* The inner loops of folding, as one table for each set of instructions. fold.c holds the plain
 * table, which runs everywhere, and chooses; fold_avx2.c and fold_avx512.c hold the others, NULL
 * where the compiler's target has none.
 *
 * The arithmetic that all tables keep to, so that their bits agree whatever order a compiler gives
 * to operands: a floating-point operation whose result is NaN gives the one canonical quiet NaN
 * (positive, no payload); MIN of -0 and +0 is -0, MAX is +0. So every operation is commutative to
 * the bit. */
#ifndef RF_COLL_FOLD_KERNELS_H
#define RF_COLL_FOLD_KERNELS_H

#include <ringfold/types.h>

typedef void rf__fold_fn(void *dst, const void *left, const void *right, size_t count);
typedef void rf__fold_acc_fn(void *acc, const void *x, size_t count);
typedef void rf__convert_fn(void *dst, const void *src, size_t count);
typedef void rf__fold_many_fn(void *const *outs, int out_count, const void *const *ins,
                              int in_count, size_t count, double divisor, bool stream);

/* Where a kernel has no entry: fold_acc, widen and narrow are NULL for types that accumulate in
 * themselves, many where the step-by-step path is to be taken (it is the definition). Rows exist
 * for all valid (type, operation) pairs but AVG, which is SUM. `many` divides floating-point types
 * only: divisor 1 for the others. */
struct rf__fold_kernels {
    rf__fold_fn *fold[RF_TYPE_COUNT][RF_REDOP_COUNT];
    rf__fold_acc_fn *fold_acc[RF_TYPE_COUNT][RF_REDOP_COUNT];
    rf__convert_fn *widen[RF_TYPE_COUNT];
    rf__convert_fn *narrow[RF_TYPE_COUNT];
    rf__fold_many_fn *many[RF_TYPE_COUNT][RF_REDOP_COUNT];
};

/* For the files that hold tables: DEFINE for each operation of a type, and the table of functions
 * named PREFIX_type_operation. */
#define FOR_ARITHMETIC(DEFINE, name)                                                               \
    DEFINE(name, sum) DEFINE(name, prod) DEFINE(name, min) DEFINE(name, max)
#define FOR_BITWISE(DEFINE, name) DEFINE(name, and) DEFINE(name, or) DEFINE(name, xor)
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
#define FOLD_ROWS(prefix)                                                                          \
    {                                                                                              \
        [RF_F32] = FLOAT_ROW(prefix, f32), [RF_F64] = FLOAT_ROW(prefix, f64),                      \
        [RF_F16] = FLOAT_ROW(prefix, f16), [RF_BF16] = FLOAT_ROW(prefix, bf16),                    \
        [RF_I8] = INTEGER_ROW(prefix, i8), [RF_U8] = INTEGER_ROW(prefix, u8),                      \
        [RF_I32] = INTEGER_ROW(prefix, i32), [RF_U32] = INTEGER_ROW(prefix, u32),                  \
        [RF_I64] = INTEGER_ROW(prefix, i64), [RF_U64] = INTEGER_ROW(prefix, u64)                   \
    }

enum rf__fold_level { RF__FOLD_PLAIN, RF__FOLD_AVX2, RF__FOLD_AVX512, RF__FOLD_LEVELS };

/* The kernels for this machine, or those of rf__fold_level. */
const struct rf__fold_kernels *rf__fold_kernels(void);
const struct rf__fold_kernels *rf__fold_kernels_avx2(void);
const struct rf__fold_kernels *rf__fold_kernels_avx512(void);

/* Tests only: fold with the kernels of `level` from now on; negative: with the best. False, and no
 * change, where this machine or build has none of that level. Not for use while another thread
 * folds. */
bool rf__fold_level(int level);

#endif
