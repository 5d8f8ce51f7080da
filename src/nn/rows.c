/* From the images of the last convolution or pooling, whose channels lie in blocks, to dense rows,
 * channel by channel, for the fully connected layers; and the gradient back. */
#include "nn/layer.h"

#include <string.h>

enum { FORWARD, BACKWARD };

static int describe(struct rf__layer *layer, struct rf__device *device, struct rf_error *err) {
    (void)device;
    const dnnl_dim_t *d = layer->in.dims;
    return rf__layout_dense(&layer->out, layer->name, (dnnl_dims_t){d[0], d[1] * d[2] * d[3]}, 2,
                            err);
}

/* The same memory as `layout`, N x C x H x W and dense. */
static int dense_images(dnnl_memory_desc_t *out, const struct rf__layer *layer, int count,
                        struct rf_error *err) {
    dnnl_dims_t dims;
    memcpy(dims, layer->in.dims, sizeof dims);
    dims[0] = count;
    return rf__layout_dense(out, layer->name, dims, 4, err);
}

static int plan(const struct rf__layer *layer, struct rf__op *ops, int count,
                struct rf__device *device, struct rf_error *err) {
    dnnl_memory_desc_t images, rows;
    int rc = rf__layout_rows(&images, layer->name, &layer->in, count, err);
    if (!rc) {
        rc = dense_images(&rows, layer, count, err);
    }
    if (!rc) {
        rc = rf__op_create_reorder(&ops[FORWARD], device, layer->name, "images to rows", &images,
                                   &rows, false, err);
    }
    if (!rc) {
        rc = rf__op_create_reorder(&ops[BACKWARD], device, layer->name, "rows to images", &rows,
                                   &images, false, err);
    }
    return rc;
}

static int forward(const struct rf__layer *layer, struct rf__op *ops, struct rf__device *device,
                   struct rf_error *err) {
    return RF__OP_RUN(&ops[FORWARD], device, err, layer->input, layer->output);
}

static int backward_data(const struct rf__layer *layer, struct rf__op *ops,
                         struct rf__device *device, const struct rf__layer_gradients *gradients,
                         struct rf_error *err) {
    (void)layer;
    return RF__OP_RUN(&ops[BACKWARD], device, err, gradients->output, gradients->input);
}

const struct rf__layer_kind rf__layer_rows = {.name = "rows",
                                              .describe = describe,
                                              .plan = plan,
                                              .forward = forward,
                                              .backward_data = backward_data};
