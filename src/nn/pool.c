/* Max-pooling, 2 x 2, stride 2; an odd row or column at the end is dropped. Forward keeps which of
 * the four was largest, and backward sends the gradient there. */
#include "nn/layer.h"

enum { FORWARD, BACKWARD };
enum { KERNEL = 2 };

static const dnnl_dims_t kernel = {KERNEL, KERNEL}, padding = {0, 0};

static int forward_desc(dnnl_pooling_desc_t *desc, const struct rf__layer *layer,
                        const dnnl_memory_desc_t *in, const dnnl_memory_desc_t *out,
                        struct rf_error *err) {
    return rf__device_check(dnnl_pooling_forward_desc_init(desc, dnnl_forward_training,
                                                           dnnl_pooling_max, in, out, kernel,
                                                           kernel, padding, padding),
                            layer->name, "describing the forward pooling", err);
}

static int describe(struct rf__layer *layer, struct rf__device *device, struct rf_error *err) {
    struct rf__op forward = {0};
    dnnl_pooling_desc_t desc;
    dnnl_memory_desc_t out;
    const dnnl_dim_t *d = layer->in.dims;
    dnnl_dims_t dims = {d[0], d[1], d[2] / KERNEL, d[3] / KERNEL};
    struct rf__op_options options = {
        .layer = layer->name, .what = "forward pooling", .desc = &desc};
    int rc =
        rf__device_check(dnnl_memory_desc_init_by_tag(&out, 4, dims, dnnl_f32, dnnl_format_tag_any),
                         layer->name, "a layout", err);
    if (!rc) {
        rc = forward_desc(&desc, layer, &layer->in, &out, err);
    }
    if (!rc) {
        rc = rf__op_describe(&forward, device, &options, err);
    }
    if (!rc) {
        layer->out = *rf__op_layout(&forward, DNNL_ARG_DST);
        layer->keep_bytes = dnnl_memory_desc_get_size(rf__op_layout(&forward, DNNL_ARG_WORKSPACE));
    }
    rf__op_destroy(&forward);
    return rc;
}

static int plan(const struct rf__layer *layer, struct rf__op *ops, int count,
                struct rf__device *device, struct rf_error *err) {
    static const int forward_args[] = {DNNL_ARG_SRC, DNNL_ARG_DST, DNNL_ARG_WORKSPACE};
    static const int backward_args[] = {DNNL_ARG_DIFF_DST, DNNL_ARG_WORKSPACE, DNNL_ARG_DIFF_SRC};
    dnnl_pooling_desc_t desc;
    dnnl_memory_desc_t in, out;
    struct rf__op_options forward = {.layer = layer->name,
                                     .what = "forward pooling",
                                     .desc = &desc,
                                     .args = forward_args,
                                     .count = 3};
    struct rf__op_options backward = {.layer = layer->name,
                                      .what = "backward pooling",
                                      .desc = &desc,
                                      .hint = &ops[FORWARD],
                                      .args = backward_args,
                                      .count = 3};
    int rc = rf__layout_rows(&in, layer->name, &layer->in, count, err);
    if (!rc) {
        rc = rf__layout_rows(&out, layer->name, &layer->out, count, err);
    }
    if (!rc) {
        rc = forward_desc(&desc, layer, &in, &out, err);
    }
    if (!rc) {
        rc = rf__op_create(&ops[FORWARD], device, &forward, err);
    }
    if (!rc) {
        rc = rf__device_check(dnnl_pooling_backward_desc_init(&desc, dnnl_pooling_max, &in, &out,
                                                              kernel, kernel, padding, padding),
                              layer->name, backward.what, err);
    }
    if (!rc) {
        rc = rf__op_create(&ops[BACKWARD], device, &backward, err);
    }
    return rc;
}

static int forward(const struct rf__layer *layer, struct rf__op *ops, struct rf__device *device,
                   struct rf_error *err) {
    return RF__OP_RUN(&ops[FORWARD], device, err, layer->input, layer->output, layer->keep);
}

static int backward_data(const struct rf__layer *layer, struct rf__op *ops,
                         struct rf__device *device, const struct rf__layer_gradients *gradients,
                         struct rf_error *err) {
    return RF__OP_RUN(&ops[BACKWARD], device, err, gradients->output, layer->keep,
                      gradients->input);
}

const struct rf__layer_kind rf__layer_pool = {.name = "pool",
                                              .describe = describe,
                                              .plan = plan,
                                              .forward = forward,
                                              .backward_data = backward_data};
