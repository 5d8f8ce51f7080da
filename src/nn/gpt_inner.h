/* What gpt.c, which makes a gpt, and gpt_pass.c, which runs it, both know of it. */
#ifndef RF_NN_GPT_INNER_H
#define RF_NN_GPT_INNER_H

#include "nn/gpt.h"
#include "nn/kernels.h"
#include "nn/product.h"

enum head_product { LOGITS, LOGITS_BACK, WTE_GRADIENT, HEAD_PRODUCTS };

enum product {
    ATTN,
    ATTN_PROJ,
    FC,
    PROJ,
    ATTN_BACK,
    ATTN_PROJ_BACK,
    FC_BACK,
    PROJ_BACK,
    ATTN_GRADIENT,
    ATTN_PROJ_GRADIENT,
    FC_GRADIENT,
    PROJ_GRADIENT,
    PRODUCTS
};

/* The products for a chunk of some number of samples. */
struct plan {
    size_t rows, slice;
    struct rf__product products[PRODUCTS];
    struct rf__product head[2][HEAD_PRODUCTS]; /* of a whole slice, and of the last one */
};

/* What is kept of one half of a block, or of the end. */
struct stream {
    float *x;            /* the residual stream: positions x width */
    float *mean, *scale; /* of its rows */
};

struct block {
    struct stream attn_in, mlp_in;
    float *qkv;    /* positions x 3 width */
    float *out;    /* of attention: positions x width */
    float *logs;   /* samples x heads x context */
    float *hidden; /* before GELU: positions x 4 width */
};

struct rf__gpt {
    struct rf__gpt_options options;
    size_t width, heads, context, vocabulary;
    uint64_t seed;
    struct rf__device device;
    const struct rf__kernels *kernels;
    int batch, tensor_count;
    struct rf__tensor *tensors;
    struct block *blocks;
    int chunk;           /* samples of a chunk */
    struct plan **plans; /* [samples of the chunk - 1] */

    float *parameters;
    size_t parameter_count, parameter_floats; /* the latter with what pads each to cache lines */
    unsigned char *activations; /* one block for all that follows and that of the blocks */
    size_t activation_bytes;
    struct stream end;
    float *normed;    /* what comes out of a layer norm: positions x width */
    float *gradient;  /* by the residual stream: positions x width */
    float *narrow;    /* positions of a chunk x width */
    float *wide;      /* positions of a chunk x 4 width */
    float *dropped;   /* positions of a chunk x width, where there is dropout */
    float *logits;    /* a slice */
    float *scratch;   /* of attention */
    uint16_t *halves; /* parameters in bfloat16, as of the pass's begin; NULL: float32 */
};

/* The plan for a chunk of `samples`, made if it is not there yet. */
int rf__gpt_plan(struct rf__gpt *gpt, size_t samples, struct plan **out, struct rf_error *err);

#endif
