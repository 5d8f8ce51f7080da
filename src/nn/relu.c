/* max(0, x), in place. Where the layer before can do it on the way out, forward has nothing left to
 * do. The derivative is known from the output alone: it is positive or the gradient stops here. */
#include "nn/layer.h"

enum { FORWARD, BACKWARD };

static int describe(struct rf__layer *layer, struct rf__device *device, struct rf_error *err) {
    (void)device;
    (void)err;
    layer->out = layer->in;
    layer->in_place = true;
    return 0;
}

static int plan(const struct rf__layer *layer, struct rf__op *ops, int count,
                struct rf__device *device, struct rf_error *err) {
    static const int forward_args[] = {DNNL_ARG_SRC, DNNL_ARG_DST};
    static const int backward_args[] = {DNNL_ARG_DST, DNNL_ARG_DIFF_DST, DNNL_ARG_DIFF_SRC};
    dnnl_memory_desc_t data;
    dnnl_eltwise_desc_t desc;
    struct rf__op_options forward = {.layer = layer->name,
                                     .what = "forward relu",
                                     .desc = &desc,
                                     .args = forward_args,
                                     .count = 2};
    struct rf__op_options backward = {.layer = layer->name,
                                      .what = "backward relu",
                                      .desc = &desc,
                                      .hint = &ops[FORWARD],
                                      .args = backward_args,
                                      .count = 3};
    int rc = rf__layout_rows(&data, layer->name, &layer->in, count, err);
    if (!rc) {
        rc = rf__device_check(dnnl_eltwise_forward_desc_init(&desc, dnnl_forward_training,
                                                             dnnl_eltwise_relu_use_dst_for_bwd,
                                                             &data, 0.0f, 0.0f),
                              layer->name, forward.what, err);
    }
    if (!rc) {
        rc = rf__op_create(&ops[FORWARD], device, &forward, err);
    }
    if (!rc) {
        rc = rf__device_check(dnnl_eltwise_backward_desc_init(&desc,
                                                              dnnl_eltwise_relu_use_dst_for_bwd,
                                                              &data, &data, 0.0f, 0.0f),
                              layer->name, backward.what, err);
    }
    if (!rc) {
        rc = rf__op_create(&ops[BACKWARD], device, &backward, err);
    }
    return rc;
}

static int forward(const struct rf__layer *layer, struct rf__op *ops, struct rf__device *device,
                   struct rf_error *err) {
    if (layer->done) {
        return 0;
    }
    return RF__OP_RUN(&ops[FORWARD], device, err, layer->input, layer->output);
}

static int backward_data(const struct rf__layer *layer, struct rf__op *ops,
                         struct rf__device *device, const struct rf__layer_gradients *gradients,
                         struct rf_error *err) {
    return RF__OP_RUN(&ops[BACKWARD], device, err, layer->output, gradients->output,
                      gradients->input);
}

const struct rf__layer_kind rf__layer_relu = {.name = "relu",
                                              .describe = describe,
                                              .plan = plan,
                                              .forward = forward,
                                              .backward_data = backward_data};
