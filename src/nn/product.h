/* A matrix product of fixed sizes: result = left x right + bias, or added to what is there.
 *
 * Matrices are dense; transposition is a matter of strides. With `bf16` both factors are rounded to
 * bfloat16 on the way in, and sums and the result stay float32. */
#ifndef RF_NN_PRODUCT_H
#define RF_NN_PRODUCT_H

#include "nn/device.h"
#include "nn/kernels.h"

struct rf__product_sizes {
    const char *what; /* borrowed, for error texts */
    size_t rows, inner, columns;
    bool left_turned, right_turned; /* the memory holds the transposed matrix */
    bool bias;                      /* one number a column */
    bool sum;                       /* the result is added to what is there */
    bool bf16;
};

/* Zeroed: absent, and may be destroyed. */
struct rf__product {
    struct rf__product_sizes sizes;
    struct rf__op op;
};

int rf__product_create(struct rf__product *product, struct rf__device *device,
                       const struct rf__product_sizes *sizes, struct rf_error *err);
void rf__product_destroy(struct rf__product *product);

struct rf__factors {
    const float *left, *right;
    const uint16_t *right_half; /* the right one in bfloat16, where it is there; NULL: is made */
    const float *bias;          /* NULL where there is none */
    bool fresh;                 /* of a sum: what is there counts for nothing */
};

int rf__product_run(struct rf__product *product, struct rf__device *device,
                    const struct rf__kernels *kernels, const struct rf__factors *factors,
                    float *result, struct rf_error *err);

#endif
