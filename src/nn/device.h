/* The one place that speaks to oneDNN: an engine with its stream, and operations.
 *
 * An operation is one primitive for one set of shapes, with the memory objects of its arguments. It
 * is created while a model plans; to run it, its caller names an address for each argument, in the
 * order given at creation. Scratchpads are ours (`scratchpad`, the largest need of all operations),
 * so running allocates nothing of any size. */
#ifndef RF_NN_DEVICE_H
#define RF_NN_DEVICE_H

#include <oneapi/dnnl/dnnl.h>
#include <ringfold/error.h>
#include <stdbool.h>
#include <stddef.h>

enum { RF__OP_ARGS = 5 };

/* `temporary` lives within one layer's forward or backward: weights in another layout. Both blocks
 * may move while a model plans, never while it runs. */
struct rf__device {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    void *scratchpad, *temporary;
    size_t scratchpad_bytes, temporary_bytes;
};

int rf__device_open(struct rf__device *device, struct rf_error *err);
void rf__device_close(struct rf__device *device);
int rf__device_reserve_temporary(struct rf__device *device, size_t bytes, struct rf_error *err);

/* A zeroed operation is valid: it is absent, and may be destroyed. `layer` and `what` are borrowed,
 * for error texts. */
struct rf__op {
    const char *layer, *what;
    dnnl_primitive_desc_t description;
    dnnl_primitive_t primitive;
    dnnl_exec_arg_t args[RF__OP_ARGS + 1]; /* and the scratchpad */
    int count;
    bool scratchpad;
};

/* `desc` is one of oneDNN's operation descriptors; `args` are DNNL_ARG_… numbers, `count` <=
 * RF__OP_ARGS. */
struct rf__op_options {
    const char *layer, *what;
    const_dnnl_op_desc_t desc;
    const struct rf__op *hint; /* of a backward operation: its forward one */
    bool relu;                 /* applied to the result on its way out */
    bool sum;                  /* the result is added to what is there */
    const int *args;
    int count;
};

int rf__op_create(struct rf__op *op, struct rf__device *device,
                  const struct rf__op_options *options, struct rf_error *err);

/* A copy from one layout to another (arguments: from, to), or, with `sum`, an addition. */
int rf__op_create_reorder(struct rf__op *op, struct rf__device *device, const char *layer,
                          const char *what, const dnnl_memory_desc_t *from,
                          const dnnl_memory_desc_t *to, bool sum, struct rf_error *err);
void rf__op_destroy(struct rf__op *op);

/* Only the description, to ask it for layouts: rf__op_layout works, running does not. */
int rf__op_describe(struct rf__op *op, struct rf__device *device,
                    const struct rf__op_options *options, struct rf_error *err);
const dnnl_memory_desc_t *rf__op_layout(const struct rf__op *op, int arg);

int rf__op_run(struct rf__op *op, struct rf__device *device, const void *const *addresses,
               int count, struct rf_error *err);

#define RF__OP_RUN(op, device, err, ...)                                                           \
    rf__op_run(op, device, (const void *const[]){__VA_ARGS__},                                     \
               (int)(sizeof((const void *const[]){__VA_ARGS__}) / sizeof(const void *)), err)

/* Turns a status into a code; on failure the text names the layer and what was done for it. */
int rf__device_check(dnnl_status_t status, const char *layer, const char *what,
                     struct rf_error *err);

/* A dense row-major layout, and the same layout for the first `count` of its rows (samples). */
int rf__layout_dense(dnnl_memory_desc_t *out, const char *layer, const dnnl_dim_t *dims, int count,
                     struct rf_error *err);
int rf__layout_rows(dnnl_memory_desc_t *out, const char *layer, const dnnl_memory_desc_t *layout,
                    int count, struct rf_error *err);

#endif
