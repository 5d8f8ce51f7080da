/* Operations over oneDNN: creation, running, and the translation of its statuses. */
#include "nn/device.h"

#include "base/assert.h"
#include "base/mem.h"
#include "base/status.h"

#include <string.h>

int rf__device_check(dnnl_status_t status, const char *layer, const char *what,
                     struct rf_error *err) {
    static const char *const texts[] = {
        [dnnl_success] = "success",
        [dnnl_out_of_memory] = "out of memory",
        [dnnl_invalid_arguments] = "invalid arguments",
        [dnnl_unimplemented] = "not implemented for this processor or shape",
        [dnnl_iterator_ends] = "no implementation is left",
        [dnnl_runtime_error] = "runtime error",
        [dnnl_not_required] = "not required",
    };
    if (status == dnnl_success) {
        return 0;
    }
    const char *text = (size_t)status < sizeof texts / sizeof texts[0] ? texts[status] : "?";
    int code = status == dnnl_out_of_memory ? RF_ENOMEM : RF_EINTERNAL;
    return rf__fail(err, code, 0, "layer %s, %s: oneDNN: %s", layer, what, text);
}

static int reserve(void **block, size_t *have, size_t bytes, const char *what,
                   struct rf_error *err) {
    if (bytes <= *have) {
        return 0;
    }
    void *larger = rf__alloc_aligned(bytes);
    if (!larger) {
        return rf__fail(err, RF_ENOMEM, 0, "no memory for %s of %zu bytes", what, bytes);
    }
    rf__free(*block);
    *block = larger;
    *have = bytes;
    return 0;
}

int rf__device_reserve_temporary(struct rf__device *device, size_t bytes, struct rf_error *err) {
    return reserve(&device->temporary, &device->temporary_bytes, bytes, "temporaries", err);
}

int rf__device_open(struct rf__device *device, struct rf_error *err) {
    *device = (struct rf__device){0};
    int rc = rf__device_check(dnnl_engine_create(&device->engine, dnnl_cpu, 0), "(all)",
                              "creating the engine", err);
    if (!rc) {
        rc = rf__device_check(
            dnnl_stream_create(&device->stream, device->engine, dnnl_stream_default_flags), "(all)",
            "creating the stream", err);
    }
    return rc;
}

void rf__device_close(struct rf__device *device) {
    rf__free(device->temporary);
    rf__free(device->scratchpad);
    if (device->stream) {
        dnnl_stream_destroy(device->stream);
    }
    if (device->engine) {
        dnnl_engine_destroy(device->engine);
    }
    *device = (struct rf__device){0};
}

/* Scratchpad of ours; ReLU and sum as asked. */
static dnnl_status_t attributes(dnnl_primitive_attr_t *attr, bool relu, bool sum) {
    dnnl_post_ops_t post = NULL;
    dnnl_status_t status = dnnl_primitive_attr_create(attr);
    if (status) {
        goto out;
    }
    status = dnnl_primitive_attr_set_scratchpad_mode(*attr, dnnl_scratchpad_mode_user);
    if (status || !(relu || sum)) {
        goto out;
    }
    status = dnnl_post_ops_create(&post);
    if (!status && sum) {
        status = dnnl_post_ops_append_sum(post, 1.0f);
    }
    if (!status && relu) {
        status = dnnl_post_ops_append_eltwise(post, 1.0f, dnnl_eltwise_relu, 0.0f, 0.0f);
    }
    if (!status) {
        status = dnnl_primitive_attr_set_post_ops(*attr, post);
    }
out:
    if (post) {
        dnnl_post_ops_destroy(post);
    }
    return status;
}

int rf__op_describe(struct rf__op *op, struct rf__device *device,
                    const struct rf__op_options *options, struct rf_error *err) {
    dnnl_primitive_attr_t attr = NULL;
    RF_ASSERT(!op->description && options->count <= RF__OP_ARGS);
    op->layer = options->layer;
    op->what = options->what;
    dnnl_status_t status = attributes(&attr, options->relu, options->sum);
    if (!status) {
        status = dnnl_primitive_desc_create(&op->description, options->desc, attr, device->engine,
                                            options->hint ? options->hint->description : NULL);
    }
    if (attr) {
        dnnl_primitive_attr_destroy(attr);
    }
    return rf__device_check(status, op->layer, op->what, err);
}

/* From the description to something that runs: the primitive, and a memory object for each
 * argument. */
static int complete(struct rf__op *op, struct rf__device *device, const int *args, int count,
                    struct rf_error *err) {
    dnnl_status_t status = dnnl_primitive_create(&op->primitive, op->description);
    for (int i = 0; i < count && !status; i++) {
        op->args[i].arg = args[i];
        status = dnnl_memory_create(&op->args[i].memory, rf__op_layout(op, args[i]), device->engine,
                                    DNNL_MEMORY_NONE);
        op->count = i + 1;
    }
    const dnnl_memory_desc_t *pad =
        dnnl_primitive_desc_query_md(op->description, dnnl_query_scratchpad_md, 0);
    size_t bytes = pad ? dnnl_memory_desc_get_size(pad) : 0;
    if (!status && bytes) {
        op->args[count].arg = DNNL_ARG_SCRATCHPAD;
        status = dnnl_memory_create(&op->args[count].memory, pad, device->engine, DNNL_MEMORY_NONE);
        op->scratchpad = true;
    }
    int rc = rf__device_check(status, op->layer, op->what, err);
    if (!rc) {
        rc = reserve(&device->scratchpad, &device->scratchpad_bytes, bytes, "a scratchpad", err);
    }
    return rc;
}

int rf__op_create(struct rf__op *op, struct rf__device *device,
                  const struct rf__op_options *options, struct rf_error *err) {
    int rc = rf__op_describe(op, device, options, err);
    if (!rc) {
        rc = complete(op, device, options->args, options->count, err);
    }
    return rc;
}

int rf__op_create_reorder(struct rf__op *op, struct rf__device *device, const char *layer,
                          const char *what, const dnnl_memory_desc_t *from,
                          const dnnl_memory_desc_t *to, bool sum, struct rf_error *err) {
    static const int args[] = {DNNL_ARG_FROM, DNNL_ARG_TO};
    dnnl_primitive_attr_t attr = NULL;
    op->layer = layer;
    op->what = what;
    dnnl_status_t status = attributes(&attr, false, sum);
    if (!status) {
        status = dnnl_reorder_primitive_desc_create(&op->description, from, device->engine, to,
                                                    device->engine, attr);
    }
    if (attr) {
        dnnl_primitive_attr_destroy(attr);
    }
    int rc = rf__device_check(status, layer, what, err);
    return rc ? rc : complete(op, device, args, 2, err);
}

void rf__op_destroy(struct rf__op *op) {
    for (int i = 0; i <= RF__OP_ARGS; i++) {
        if (op->args[i].memory) {
            dnnl_memory_destroy(op->args[i].memory);
        }
    }
    if (op->primitive) {
        dnnl_primitive_destroy(op->primitive);
    }
    if (op->description) {
        dnnl_primitive_desc_destroy(op->description);
    }
    *op = (struct rf__op){0};
}

const dnnl_memory_desc_t *rf__op_layout(const struct rf__op *op, int arg) {
    return dnnl_primitive_desc_query_md(op->description, dnnl_query_exec_arg_md, arg);
}

int rf__op_run(struct rf__op *op, struct rf__device *device, const void *const *addresses,
               int count, struct rf_error *err) {
    dnnl_status_t status = dnnl_success;
    RF_ASSERT(op->primitive && count == op->count);
    for (int i = 0; i < count && !status; i++) {
        status = dnnl_memory_set_data_handle(op->args[i].memory, (void *)addresses[i]);
    }
    if (!status && op->scratchpad) {
        status = dnnl_memory_set_data_handle(op->args[count].memory, device->scratchpad);
    }
    if (!status) {
        status = dnnl_primitive_execute(op->primitive, device->stream,
                                        count + (op->scratchpad ? 1 : 0), op->args);
    }
    return rf__device_check(status, op->layer, op->what, err);
}

int rf__layout_dense(dnnl_memory_desc_t *out, const char *layer, const dnnl_dim_t *dims, int count,
                     struct rf_error *err) {
    dnnl_dims_t strides = {0};
    dnnl_dim_t stride = 1;
    for (int i = count - 1; i >= 0; i--) {
        strides[i] = stride;
        stride *= dims[i];
    }
    return rf__device_check(dnnl_memory_desc_init_by_strides(out, count, dims, dnnl_f32, strides),
                            layer, "its layout", err);
}

int rf__layout_rows(dnnl_memory_desc_t *out, const char *layer, const dnnl_memory_desc_t *layout,
                    int count, struct rf_error *err) {
    dnnl_dims_t dims, offsets = {0};
    memcpy(dims, layout->dims, sizeof dims);
    RF_ASSERT(count > 0 && count <= dims[0]);
    dims[0] = count;
    return rf__device_check(dnnl_memory_desc_init_submemory(out, layout, dims, offsets), layer,
                            "its layout for fewer samples", err);
}
