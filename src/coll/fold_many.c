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
