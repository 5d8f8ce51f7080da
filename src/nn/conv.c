/* Convolution, 3 x 3, stride 1, padded with zeros so that the size stays.
 *
 * The library is fastest with channels in blocks of a vector. So activations between convolutions
 * stay in the layout it names for the forward pass, and the weights (outputs x inputs x 3 x 3 for
 * everybody else, and small) are brought into its layout before each use. The gradient of the
 * weights comes in its layout too and is added to the caller's memory on the way back into the
 * dense one. */
#include "nn/layer.h"

#include <string.h>

enum {
    KERNEL = 3,
    PADDING = 1,
};

enum {
    FORWARD,
    BACKWARD_DATA,
    BACKWARD_WEIGHTS,
    INPUT_IN,
    WEIGHT_IN,
    WEIGHT_BACK,
    GRADIENT_OUT,
    OPS
};
_Static_assert((int)OPS <= (int)RF__LAYER_OPS, "a layer has room for its operations");

static const dnnl_dims_t strides = {1, 1}, padding = {PADDING, PADDING};

/* Any layout for these sizes, for the library to choose. */
static int any(dnnl_memory_desc_t *out, const struct rf__layer *layer, const dnnl_dim_t *dims,
               struct rf_error *err) {
    return rf__device_check(
        dnnl_memory_desc_init_by_tag(out, 4, dims, dnnl_f32, dnnl_format_tag_any), layer->name,
        "a layout", err);
}

static int dense_bias(dnnl_memory_desc_t *out, const struct rf__layer *layer,
                      struct rf_error *err) {
    return rf__layout_dense(out, layer->name, (dnnl_dims_t){layer->outputs}, 1, err);
}

static int forward_desc(dnnl_convolution_desc_t *desc, const struct rf__layer *layer,
                        const dnnl_memory_desc_t *in, const dnnl_memory_desc_t *out,
                        struct rf_error *err) {
    dnnl_memory_desc_t weight, bias;
    int rc = any(&weight, layer, layer->weight_shape, err);
    if (!rc) {
        rc = dense_bias(&bias, layer, err);
    }
    if (!rc) {
        rc = rf__device_check(
            dnnl_convolution_forward_desc_init(desc, dnnl_forward_training, dnnl_convolution_direct,
                                               in, &weight, &bias, out, strides, padding, padding),
            layer->name, "describing the forward convolution", err);
    }
    return rc;
}

static int describe(struct rf__layer *layer, struct rf__device *device, struct rf_error *err) {
    struct rf__op forward = {0};
    dnnl_convolution_desc_t desc;
    dnnl_memory_desc_t in = layer->in, out;
    const dnnl_dim_t *d = layer->in.dims;
    struct rf__op_options options = {
        .layer = layer->name, .what = "forward convolution", .desc = &desc, .relu = layer->relu};
    layer->weight_dims = 4;
    memcpy(layer->weight_shape, (dnnl_dims_t){layer->outputs, d[1], KERNEL, KERNEL},
           sizeof layer->weight_shape);
    int rc = any(&out, layer, (dnnl_dims_t){d[0], layer->outputs, d[2], d[3]}, err);
    if (!rc && layer->first) {
        rc = any(&in, layer, d, err);
    }
    if (!rc) {
        rc = forward_desc(&desc, layer, &in, &out, err);
    }
    if (!rc) {
        rc = rf__op_describe(&forward, device, &options, err);
    }
    if (!rc) {
        layer->read = *rf__op_layout(&forward, DNNL_ARG_SRC);
        layer->out = *rf__op_layout(&forward, DNNL_ARG_DST);
        if (!dnnl_memory_desc_equal(&layer->read, &layer->in)) {
            layer->keep_bytes = dnnl_memory_desc_get_size(&layer->read);
        }
    }
    rf__op_destroy(&forward);
    return rc;
}

/* The three convolutions, for layouts `in` and `out` of this many samples. */
static int plan_convolutions(const struct rf__layer *layer, struct rf__op *ops,
                             struct rf__device *device, const dnnl_memory_desc_t *in,
                             const dnnl_memory_desc_t *out, struct rf_error *err) {
    static const int args_forward[] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_BIAS, DNNL_ARG_DST};
    static const int args_weights[] = {DNNL_ARG_SRC, DNNL_ARG_DIFF_DST, DNNL_ARG_DIFF_WEIGHTS,
                                       DNNL_ARG_DIFF_BIAS};
    static const int args_data[] = {DNNL_ARG_DIFF_DST, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_SRC};
    dnnl_convolution_desc_t desc;
    dnnl_memory_desc_t weight, bias;
    struct rf__op_options options = {.layer = layer->name,
                                     .what = "forward convolution",
                                     .desc = &desc,
                                     .relu = layer->relu,
                                     .args = args_forward,
                                     .count = 4};
    int rc = forward_desc(&desc, layer, in, out, err);
    if (!rc) {
        rc = rf__op_create(&ops[FORWARD], device, &options, err);
    }
    if (!rc) {
        rc = any(&weight, layer, layer->weight_shape, err);
    }
    if (!rc) {
        rc = dense_bias(&bias, layer, err);
    }
    if (!rc) {
        options = (struct rf__op_options){.layer = layer->name,
                                          .what = "backward convolution by the weight",
                                          .desc = &desc,
                                          .hint = &ops[FORWARD],
                                          .args = args_weights,
                                          .count = 4};
        rc = rf__device_check(
            dnnl_convolution_backward_weights_desc_init(&desc, dnnl_convolution_direct, in, &weight,
                                                        &bias, out, strides, padding, padding),
            layer->name, options.what, err);
    }
    if (!rc) {
        rc = rf__op_create(&ops[BACKWARD_WEIGHTS], device, &options, err);
    }
    if (!rc && !layer->first) {
        options.what = "backward convolution by the input";
        options.args = args_data;
        options.count = 3;
        rc = rf__device_check(
            dnnl_convolution_backward_data_desc_init(&desc, dnnl_convolution_direct, in, &weight,
                                                     out, strides, padding, padding),
            layer->name, options.what, err);
        if (!rc) {
            rc = rf__op_create(&ops[BACKWARD_DATA], device, &options, err);
        }
    }
    return rc;
}

/* A weight in the library's layout, rounded up so that a bias may follow it, aligned. */
static size_t weight_bytes(const struct rf__op *op, int arg) {
    return (dnnl_memory_desc_get_size(rf__op_layout(op, arg)) + 63) / 64 * 64;
}

static int plan_reorders(const struct rf__layer *layer, struct rf__op *ops,
                         struct rf__device *device, const dnnl_memory_desc_t *dense_in,
                         const dnnl_memory_desc_t *in, struct rf_error *err) {
    dnnl_memory_desc_t dense;
    size_t bytes = weight_bytes(&ops[FORWARD], DNNL_ARG_WEIGHTS);
    size_t back = weight_bytes(&ops[BACKWARD_WEIGHTS], DNNL_ARG_DIFF_WEIGHTS) +
                  (size_t)layer->outputs * sizeof(float);
    bytes = back > bytes ? back : bytes;
    int rc = rf__layout_dense(&dense, layer->name, layer->weight_shape, 4, err);
    if (!rc) {
        rc = rf__op_create_reorder(&ops[WEIGHT_IN], device, layer->name, "weights for forward",
                                   &dense, rf__op_layout(&ops[FORWARD], DNNL_ARG_WEIGHTS), false,
                                   err);
    }
    if (!rc) {
        rc = rf__op_create_reorder(
            &ops[GRADIENT_OUT], device, layer->name, "adding the weight's gradient",
            rf__op_layout(&ops[BACKWARD_WEIGHTS], DNNL_ARG_DIFF_WEIGHTS), &dense, true, err);
    }
    if (!rc && layer->keep_bytes) {
        rc = rf__op_create_reorder(&ops[INPUT_IN], device, layer->name, "input in blocks", dense_in,
                                   in, false, err);
    }
    if (!rc && !layer->first) {
        size_t data = weight_bytes(&ops[BACKWARD_DATA], DNNL_ARG_WEIGHTS);
        bytes = data > bytes ? data : bytes;
        rc = rf__op_create_reorder(&ops[WEIGHT_BACK], device, layer->name, "weights for backward",
                                   &dense, rf__op_layout(&ops[BACKWARD_DATA], DNNL_ARG_WEIGHTS),
                                   false, err);
    }
    return rc ? rc : rf__device_reserve_temporary(device, bytes, err);
}

static int plan(const struct rf__layer *layer, struct rf__op *ops, int count,
                struct rf__device *device, struct rf_error *err) {
    dnnl_memory_desc_t given, in, out;
    int rc = rf__layout_rows(&given, layer->name, &layer->in, count, err);
    if (!rc) {
        rc = rf__layout_rows(&in, layer->name, &layer->read, count, err);
    }
    if (!rc) {
        rc = rf__layout_rows(&out, layer->name, &layer->out, count, err);
    }
    if (!rc) {
        rc = plan_convolutions(layer, ops, device, &in, &out, err);
    }
    if (!rc) {
        rc = plan_reorders(layer, ops, device, &given, &in, err);
    }
    return rc;
}

/* The input in the layout that the convolutions read. */
static const void *input_of(const struct rf__layer *layer) {
    return layer->keep_bytes ? layer->keep : (const void *)layer->input;
}

static int forward(const struct rf__layer *layer, struct rf__op *ops, struct rf__device *device,
                   struct rf_error *err) {
    int rc = RF__OP_RUN(&ops[WEIGHT_IN], device, err, layer->weight, device->temporary);
    if (!rc && layer->keep_bytes) {
        rc = RF__OP_RUN(&ops[INPUT_IN], device, err, layer->input, layer->keep);
    }
    if (!rc) {
        rc = RF__OP_RUN(&ops[FORWARD], device, err, input_of(layer), device->temporary, layer->bias,
                        layer->output);
    }
    return rc;
}

static int backward_weights(const struct rf__layer *layer, struct rf__op *ops,
                            struct rf__device *device, const struct rf__layer_gradients *gradients,
                            struct rf_error *err) {
    size_t bytes = weight_bytes(&ops[BACKWARD_WEIGHTS], DNNL_ARG_DIFF_WEIGHTS);
    float *weight = device->temporary;
    float *bias = weight + bytes / sizeof(float);
    int rc = RF__OP_RUN(&ops[BACKWARD_WEIGHTS], device, err, input_of(layer), gradients->output,
                        weight, bias);
    if (!rc) {
        rc = RF__OP_RUN(&ops[GRADIENT_OUT], device, err, weight, gradients->weight);
    }
    for (int k = 0; k < layer->outputs && !rc; k++) {
        gradients->bias[k] += bias[k];
    }
    return rc;
}

static int backward_data(const struct rf__layer *layer, struct rf__op *ops,
                         struct rf__device *device, const struct rf__layer_gradients *gradients,
                         struct rf_error *err) {
    int rc = RF__OP_RUN(&ops[WEIGHT_BACK], device, err, layer->weight, device->temporary);
    if (!rc) {
        rc = RF__OP_RUN(&ops[BACKWARD_DATA], device, err, gradients->output, device->temporary,
                        gradients->input);
    }
    return rc;
}

const struct rf__layer_kind rf__layer_conv = {.name = "conv",
                                              .describe = describe,
                                              .plan = plan,
                                              .forward = forward,
                                              .backward_weights = backward_weights,
                                              .backward_data = backward_data};
