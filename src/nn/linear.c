/* Fully connected: output = input x weight' + bias, weight being outputs x inputs, row by row.
 *
 * Three matrix products over the same dense memory; that of the weight gradient, output gradient' x
 * input, adds to the caller's memory as it goes. Transposition is a matter of strides: nothing is
 * copied. */
#include "nn/layer.h"

enum { FORWARD, BACKWARD_DATA, BACKWARD_WEIGHTS };

static int describe(struct rf__layer *layer, struct rf__device *device, struct rf_error *err) {
    (void)device;
    layer->weight_dims = 2;
    layer->weight_shape[0] = layer->outputs;
    layer->weight_shape[1] = layer->in.dims[1];
    return rf__layout_dense(&layer->out, layer->name,
                            (dnnl_dims_t){layer->in.dims[0], layer->outputs}, 2, err);
}

/* A rows x columns matrix; `transposed`: of memory that is columns x rows. */
static int matrix(dnnl_memory_desc_t *out, const struct rf__layer *layer, dnnl_dim_t rows,
                  dnnl_dim_t columns, bool transposed, struct rf_error *err) {
    dnnl_dims_t dims = {rows, columns};
    dnnl_dims_t strides = {transposed ? 1 : columns, transposed ? rows : 1};
    return rf__device_check(dnnl_memory_desc_init_by_strides(out, 2, dims, dnnl_f32, strides),
                            layer->name, "a matrix", err);
}

struct product {
    const char *what;
    dnnl_dim_t rows, inner, columns;
    bool left_transposed, right_transposed;
    bool bias, relu, sum;
};

static int create(struct rf__op *op, const struct rf__layer *layer, struct rf__device *device,
                  const struct product *product, struct rf_error *err) {
    static const int args[] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_BIAS};
    dnnl_memory_desc_t left, right, result, bias;
    dnnl_matmul_desc_t desc;
    int rc = matrix(&left, layer, product->rows, product->inner, product->left_transposed, err);
    if (!rc) {
        rc =
            matrix(&right, layer, product->inner, product->columns, product->right_transposed, err);
    }
    if (!rc) {
        rc = matrix(&result, layer, product->rows, product->columns, false, err);
    }
    if (!rc) {
        rc = matrix(&bias, layer, 1, product->columns, false, err);
    }
    if (!rc) {
        rc = rf__device_check(
            dnnl_matmul_desc_init(&desc, &left, &right, product->bias ? &bias : NULL, &result),
            layer->name, product->what, err);
    }
    if (!rc) {
        struct rf__op_options options = {.layer = layer->name,
                                         .what = product->what,
                                         .desc = &desc,
                                         .relu = product->relu,
                                         .sum = product->sum,
                                         .args = args,
                                         .count = product->bias ? 4 : 3};
        rc = rf__op_create(op, device, &options, err);
    }
    return rc;
}

static int plan(const struct rf__layer *layer, struct rf__op *ops, int count,
                struct rf__device *device, struct rf_error *err) {
    dnnl_dim_t inputs = layer->weight_shape[1], outputs = layer->weight_shape[0];
    struct product forward = {.what = "forward product",
                              .rows = count,
                              .inner = inputs,
                              .columns = outputs,
                              .right_transposed = true,
                              .bias = true,
                              .relu = layer->relu};
    struct product data = {.what = "backward product by the input",
                           .rows = count,
                           .inner = outputs,
                           .columns = inputs};
    struct product weights = {.what = "backward product by the weight",
                              .rows = outputs,
                              .inner = count,
                              .columns = inputs,
                              .left_transposed = true,
                              .sum = true};
    int rc = create(&ops[FORWARD], layer, device, &forward, err);
    if (!rc) {
        rc = create(&ops[BACKWARD_DATA], layer, device, &data, err);
    }
    if (!rc) {
        rc = create(&ops[BACKWARD_WEIGHTS], layer, device, &weights, err);
    }
    return rc;
}

static int forward(const struct rf__layer *layer, struct rf__op *ops, struct rf__device *device,
                   struct rf_error *err) {
    return RF__OP_RUN(&ops[FORWARD], device, err, layer->input, layer->weight, layer->output,
                      layer->bias);
}

static int backward_weights(const struct rf__layer *layer, struct rf__op *ops,
                            struct rf__device *device, const struct rf__layer_gradients *gradients,
                            struct rf_error *err) {
    size_t outputs = (size_t)layer->outputs;
    size_t count = (size_t)rf__op_layout(&ops[FORWARD], DNNL_ARG_DST)->dims[0];
    for (size_t i = 0; i < count; i++) {
        for (size_t k = 0; k < outputs; k++) {
            gradients->bias[k] += gradients->output[i * outputs + k];
        }
    }
    return RF__OP_RUN(&ops[BACKWARD_WEIGHTS], device, err, gradients->output, layer->input,
                      gradients->weight);
}

static int backward_data(const struct rf__layer *layer, struct rf__op *ops,
                         struct rf__device *device, const struct rf__layer_gradients *gradients,
                         struct rf_error *err) {
    return RF__OP_RUN(&ops[BACKWARD_DATA], device, err, gradients->output, layer->weight,
                      gradients->input);
}

const struct rf__layer_kind rf__layer_linear = {.name = "linear",
                                                .describe = describe,
                                                .plan = plan,
                                                .forward = forward,
                                                .backward_weights = backward_weights,
                                                .backward_data = backward_data};
