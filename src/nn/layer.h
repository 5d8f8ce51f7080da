/* What a layer is to the model: an entry in a chain, with a forward and a backward pass.
 *
 * Life: describe() once, from the layout of the input to that of the output and the sizes of what
 * the layer needs; plan() for each micro-batch size that occurs, which creates the operations; then
 * forward(), and for training backward_weights() (where the layer has tensors) and backward_data(),
 * in this order. Layers own no memory: the model plans and frees it. */
#ifndef RF_NN_LAYER_H
#define RF_NN_LAYER_H

#include "nn/device.h"

#include <stdint.h>

enum { RF__LAYER_OPS = 7, RF__LAYER_NAME = 32 };

struct rf__layer_kind;

struct rf__layer {
    const struct rf__layer_kind *kind;
    char name[RF__LAYER_NAME]; /* "conv2" */

    /* Set before describe(). */
    dnnl_memory_desc_t in; /* a full micro-batch; dims are N x C x H x W or N x features */
    int outputs;           /* features or channels, linear and conv only */
    bool first;            /* there is nothing before it: backward_data is never called */
    bool relu;             /* the ReLU that follows is applied on the way out */
    bool done;             /* relu only: the layer before applies it */

    /* Set by describe(). */
    dnnl_memory_desc_t out;
    dnnl_memory_desc_t read; /* conv only: how the input is read; where not as `in`, from `keep` */
    bool in_place;           /* output and input share memory, and so do their gradients */
    int weight_dims;         /* 0: no tensors; otherwise weight_shape is O x I x H x W or O x I */
    dnnl_dims_t weight_shape;
    size_t keep_bytes; /* what forward leaves for backward, besides input and output */

    /* Set by the model, after describe(). */
    int tensor; /* index of the weight; the bias is next; -1: none */
    const float *weight, *bias;
    const float *input;
    float *output;
    void *keep;
};

/* One backward pass through one layer. For a layer in place both gradients are the same memory. */
struct rf__layer_gradients {
    const float *output;  /* of the loss by the layer's output */
    float *input;         /* by its input: written by backward_data */
    float *weight, *bias; /* by its tensors: added to by backward_weights */
};

struct rf__layer_kind {
    const char *name;
    int (*describe)(struct rf__layer *layer, struct rf__device *device, struct rf_error *err);
    int (*plan)(const struct rf__layer *layer, struct rf__op *ops, int count,
                struct rf__device *device, struct rf_error *err);
    int (*forward)(const struct rf__layer *layer, struct rf__op *ops, struct rf__device *device,
                   struct rf_error *err);
    int (*backward_weights)(const struct rf__layer *layer, struct rf__op *ops,
                            struct rf__device *device, const struct rf__layer_gradients *gradients,
                            struct rf_error *err); /* NULL: no tensors */
    int (*backward_data)(const struct rf__layer *layer, struct rf__op *ops,
                         struct rf__device *device, const struct rf__layer_gradients *gradients,
                         struct rf_error *err);
};

extern const struct rf__layer_kind rf__layer_linear; /* x W' + b */
extern const struct rf__layer_kind rf__layer_conv;   /* 3 x 3, the size stays */
extern const struct rf__layer_kind rf__layer_pool;   /* largest of 2 x 2, the size is halved */
extern const struct rf__layer_kind rf__layer_relu;
extern const struct rf__layer_kind rf__layer_rows; /* images of any layout to dense rows */

/* The end of the chain: softmax and cross-entropy, from logits to losses. `gradient` gets the
 * derivative of the sum of the losses by the logits; rows from `count` to `rows` are padding and
 * get zeros. Labels are below `classes`. */
struct rf__loss {
    double sum;
    int correct;
};
struct rf__loss rf__loss_forward(const float *logits, const int32_t *labels, int count,
                                 int classes);
void rf__loss_backward(const float *logits, const int32_t *labels, int count, int rows, int classes,
                       float *gradient);

/* Which layers a model has, in order. */
enum { RF__MODEL_LAYERS = 16 };

struct rf__layer_spec {
    const struct rf__layer_kind *kind;
    int outputs;
};

struct rf__architecture {
    bool images; /* the input is N x C x H x W, else rows */
    int count;
    struct rf__layer_spec layers[RF__MODEL_LAYERS];
};

struct rf__model_options;
int rf__architecture_find(const struct rf__model_options *options, struct rf__architecture *out,
                          struct rf_error *err);

#endif
