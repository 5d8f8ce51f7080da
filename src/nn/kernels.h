/* The loops over elements of the gpt model, between its matrix products, as one table for each set
 * of instructions: kernels.c holds the plain one, which runs everywhere, and chooses. The tables
 * give the same numbers up to rounding; a table by itself always gives the same bits.
 *
 * exp is a polynomial (relative error below 2e-7); everything else is arithmetic. Matrices are
 * row-major and dense unless a stride is named. Gradients of tensors are added to, others
 * written. */
#ifndef RF_NN_KERNELS_H
#define RF_NN_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* x = before + delta + bias, where there is a delta; then y = (x - mean) x scale x gain + shift
 * with the mean and 1 / deviation of the row, which are kept. Without delta, x is `before` and is
 * not written. */
struct rf__norm {
    size_t rows, width;
    const float *before, *delta, *bias; /* bias: NULL: none */
    float *x;
    const float *gain, *shift;
    float *mean, *scale; /* one a row */
    float *y;
};

/* dx = or += the gradient by x of what gives `dy` by y. */
struct rf__norm_gradients {
    const float *dy;
    float *dx;
    bool add;
    float *gain, *shift;
};

/* Which elements dropout keeps: a hash of the key and the element's number is at least `below`.
 * What is kept grows by `scale`, 1 / (1 - rate). */
struct rf__drop {
    uint64_t key;
    uint32_t below; /* 0: nothing is dropped */
    float scale;
};

/* One head of one sample: its part of each row of qkv (queries, keys, values side by side) and of
 * the output. `logs` gets, and backward reads, the logarithm of each row's sum of exponentials.
 * Scratch is rf__attention_scratch floats, aligned. */
struct rf__attention {
    size_t rows, width;     /* positions; of a head */
    bool more;              /* another head's part follows in each row: it may be fetched early */
    const float *q, *k, *v; /* rows `stride` apart */
    size_t stride;
    float *out; /* rows `out_stride` apart; backward reads it */
    size_t out_stride;
    float *logs;
    const float *dout;   /* backward: as out */
    float *dq, *dk, *dv; /* backward: written, rows `stride` apart */
    struct rf__drop drop;
    float *scratch;
};
size_t rf__attention_scratch(size_t rows, size_t width);

struct rf__kernels {
    const char *name;
    void (*norm)(const struct rf__norm *norm);
    void (*norm_again)(const struct rf__norm *norm); /* y from x, mean and scale */
    void (*norm_backward)(const struct rf__norm *norm, const struct rf__norm_gradients *gradients);
    void (*gelu)(const float *x, float *y, size_t count);
    /* x becomes gelu(x), d is multiplied by gelu'(x), and its columns are added to `bias`. */
    void (*gelu_backward)(float *x, float *d, float *bias, size_t rows, size_t width);
    void (*add_columns)(const float *x, float *sums, size_t rows, size_t width);
    void (*add)(const float *x, float *sum, size_t count);
    /* y = what is kept of x + bias (NULL: of x), elements numbered from 0. May be in place. */
    void (*drop)(const struct rf__drop *drop, const float *x, const float *bias, float *y,
                 size_t rows, size_t width);
    /* Softmax and cross-entropy of a row: returns the loss; logits become its gradient. */
    double (*loss)(float *logits, size_t classes, size_t label, bool *right);
    void (*attention)(const struct rf__attention *attention);
    void (*attention_backward)(const struct rf__attention *attention);
    void (*to_bf16)(const float *x, uint16_t *y, size_t count); /* to nearest, ties to even */
};

const struct rf__kernels *rf__kernels_plain(void);
/* NULL where the compiler's target, or this machine, has none. */
const struct rf__kernels *rf__kernels_avx2(void);
const struct rf__kernels *rf__kernels_avx512(void);
const struct rf__kernels *rf__kernels_best(void);

#endif
