/* Folding: the arithmetic of reductions on arrays. Pure; no alignment is required, aligned arrays
 * are faster.
 *
 * Bits: an operation on the same left and right operands gives the same bits wherever it is carried
 * out (vector and scalar paths agree, tails included), NaN and signed zeros too. Buffers may be the
 * same but must not partly overlap. "acc" is float32 for f16 and bf16, and the type itself for all
 * others. Conversion to half rounds to nearest even. */
#ifndef RF_COLL_FOLD_H
#define RF_COLL_FOLD_H

#include <ringfold/types.h>

/* The accumulator type of a type. */
enum rf_type rf__acc_type(enum rf_type type);

/* dst[i] = left[i] op right[i], all of `type`; dst may be left or right. AVG folds as SUM. */
void rf__fold(enum rf_type type, enum rf_redop redop, void *dst, const void *left,
              const void *right, size_t count);

/* acc[i] = acc[i] op x[i], or x[i] op acc[i] where `left`; acc of the accumulator type, x of
 * `type`. */
void rf__fold_acc(enum rf_type type, enum rf_redop redop, void *acc, const void *x, bool left,
                  size_t count);

/* acc[i] = x[i], and dst[i] = acc[i]. */
void rf__widen(enum rf_type type, void *acc, const void *x, size_t count);
void rf__narrow(enum rf_type type, void *dst, const void *acc, size_t count);

/* x[i] /= divisor, x of `type`; integers: by (integer)divisor, towards zero. Divisor 1: nothing. */
void rf__divide(enum rf_type type, void *x, double divisor, size_t count);

/* outs[k][i] = (ins[0][i] op ins[1][i] op …) / divisor for every k: folded in the order of `ins`,
 * in the accumulator type, rounded once. One pass over memory in cache-sized pieces. An `out` may
 * be one of the `ins`. `stream`: the caller expects the outs to be larger than the caches, so
 * stores may bypass them. 1 <= in_count, out_count <= RF_MAX_LOCAL_RANKS. */
void rf__fold_many(enum rf_type type, enum rf_redop redop, void *const *outs, int out_count,
                   const void *const *ins, int in_count, size_t count, double divisor, bool stream);

/* The same in parts, with the same bits: what was folded so far is `count` elements of the
 * accumulator type. `part` folds the ins to `from` (NULL: they are the first) and leaves that in
 * `acc`, which may be `from`; `last` ends as rf__fold_many does. in_count < RF_MAX_LOCAL_RANKS
 * where there is a `from`. */
void rf__fold_part(enum rf_type type, enum rf_redop redop, void *acc, const void *from,
                   const void *const *ins, int in_count, size_t count);
void rf__fold_last(enum rf_type type, enum rf_redop redop, void *const *outs, int out_count,
                   const void *from, const void *const *ins, int in_count, size_t count,
                   double divisor, bool stream);

#endif
