/* Folding many buffers into many: the operation of collectives through shared memory. Where the
 * kernels of this machine have a loop that keeps the partial results in registers, it is taken;
 * otherwise the data passes in pieces whose partial results stay in the first-level cache, step by
 * step as fold.h defines the result. */
#include "base/assert.h"
#include "coll/fold.h"
#include "coll/fold_kernels.h"

#include <ringfold/limits.h>
#include <string.h>

/* Of partial results: a piece of an input and of an output lie in the first-level cache beside it.
 */
enum { PIECE_BYTES = 8192 };

static const void *input_at(const void *base, size_t bytes) {
    return (const unsigned char *)base + bytes;
}

static void *output_at(void *base, size_t bytes) {
    return (unsigned char *)base + bytes;
}

static void fold_in_pieces(enum rf_type type, enum rf_redop redop, void *const *outs, int out_count,
                           const void *const *ins, int in_count, size_t count, double divisor) {
    _Alignas(64) unsigned char acc[PIECE_BYTES];
    enum rf_type acc_type = rf__acc_type(type);
    size_t element = rf_type_size(type), piece = PIECE_BYTES / rf_type_size(acc_type);
    for (size_t at = 0; at < count; at += piece) {
        size_t length = count - at < piece ? count - at : piece;
        rf__widen(type, acc, input_at(ins[0], at * element), length);
        for (int k = 1; k < in_count; k++) {
            rf__fold_acc(type, redop, acc, input_at(ins[k], at * element), false, length);
        }
        rf__divide(acc_type, acc, divisor, length);
        for (int k = 0; k < out_count; k++) {
            rf__narrow(type, output_at(outs[k], at * element), acc, length);
        }
    }
}

void rf__fold_many(enum rf_type type, enum rf_redop redop, void *const *outs, int out_count,
                   const void *const *ins, int in_count, size_t count, double divisor,
                   bool stream) {
    RF_ASSERT(rf_redop_valid(redop, type));
    RF_ASSERT(in_count >= 1 && in_count <= RF_MAX_LOCAL_RANKS);
    RF_ASSERT(out_count >= 1 && out_count <= RF_MAX_LOCAL_RANKS);
    bool is_float = type == RF_F32 || type == RF_F64 || rf__acc_type(type) != type;
    rf__fold_many_fn *many = rf__fold_kernels()->many[type][redop == RF_AVG ? RF_SUM : redop];
    /* A single input that is not divided keeps the bits of its NaNs: it must not pass through
     * arithmetic at all, in which compilers take x / 1 and x for the same. */
    bool arithmetic = in_count > 1 || divisor != 1;
    if (many && arithmetic && (is_float || divisor == 1)) {
        many(outs, out_count, ins, in_count, count, divisor, stream);
    } else {
        fold_in_pieces(type, redop, outs, out_count, ins, in_count, count, divisor);
    }
}

/* [from, ins…], for types that are their own accumulator. */
static int put_first(const void **out, const void *from, const void *const *ins, int in_count) {
    RF_ASSERT(in_count >= 1 && in_count + (from != NULL) <= RF_MAX_LOCAL_RANKS);
    int count = 0;
    if (from) {
        out[count++] = from;
    }
    memcpy(out + count, ins, sizeof *ins * (size_t)in_count);
    return count + in_count;
}

/* acc = from op ins[0] op …, of a few elements. */
static void fold_on(enum rf_type type, enum rf_redop redop, void *acc, const void *from,
                    const void *const *ins, int in_count, size_t at, size_t count) {
    size_t element = rf_type_size(type), wide = rf_type_size(rf__acc_type(type));
    if (!from) {
        rf__widen(type, acc, input_at(ins[0], at * element), count);
    } else if (acc != from) {
        memcpy(acc, input_at(from, at * wide), count * wide);
    }
    for (int k = from ? 0 : 1; k < in_count; k++) {
        rf__fold_acc(type, redop, acc, input_at(ins[k], at * element), false, count);
    }
}

void rf__fold_part(enum rf_type type, enum rf_redop redop, void *acc, const void *from,
                   const void *const *ins, int in_count, size_t count) {
    const void *all[RF_MAX_LOCAL_RANKS];
    enum rf_type acc_type = rf__acc_type(type);
    size_t wide = rf_type_size(acc_type), piece = PIECE_BYTES / wide;

    if (acc_type == type) {
        int all_count = put_first(all, from, ins, in_count);
        rf__fold_many(type, redop, &acc, 1, all, all_count, count, 1, false);
        return;
    }
    for (size_t at = 0; at < count; at += piece) {
        size_t length = count - at < piece ? count - at : piece;
        void *to = output_at(acc, at * wide);
        if (from == acc) {
            fold_on(type, redop, to, to, ins, in_count, at, length);
        } else {
            fold_on(type, redop, to, from, ins, in_count, at, length);
        }
    }
}

void rf__fold_last(enum rf_type type, enum rf_redop redop, void *const *outs, int out_count,
                   const void *from, const void *const *ins, int in_count, size_t count,
                   double divisor, bool stream) {
    _Alignas(64) unsigned char acc[PIECE_BYTES];
    const void *all[RF_MAX_LOCAL_RANKS];
    enum rf_type acc_type = rf__acc_type(type);
    size_t element = rf_type_size(type), piece = PIECE_BYTES / rf_type_size(acc_type);

    if (acc_type == type || !from) {
        int all_count = put_first(all, from, ins, in_count);
        rf__fold_many(type, redop, outs, out_count, all, all_count, count, divisor, stream);
        return;
    }
    for (size_t at = 0; at < count; at += piece) {
        size_t length = count - at < piece ? count - at : piece;
        fold_on(type, redop, acc, from, ins, in_count, at, length);
        rf__divide(acc_type, acc, divisor, length);
        for (int k = 0; k < out_count; k++) {
            rf__narrow(type, output_at(outs[k], at * element), acc, length);
        }
    }
}
