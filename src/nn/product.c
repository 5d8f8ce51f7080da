/* Matrix products over oneDNN: planned operations, except for sums in float32 (gradients of
 * matrices), where its plain call, which packs both factors, is faster by a twentieth. */
#include "nn/product.h"

#include "base/assert.h"

#include <string.h>

static const char layer[] = "gpt";

static int matrix(dnnl_memory_desc_t *out, const char *what, size_t rows, size_t columns,
                  bool turned, dnnl_data_type_t type, struct rf_error *err) {
    dnnl_dims_t dims = {(dnnl_dim_t)rows, (dnnl_dim_t)columns};
    dnnl_dims_t strides = {turned ? 1 : (dnnl_dim_t)columns, turned ? (dnnl_dim_t)rows : 1};
    return rf__device_check(dnnl_memory_desc_init_by_strides(out, 2, dims, type, strides), layer,
                            what, err);
}

/* The factors in bfloat16, one after the other, each from a cache line on. */
static size_t half_bytes(size_t count) {
    return (count * sizeof(uint16_t) + 63) / 64 * 64;
}

static bool plain(const struct rf__product_sizes *s) {
    return s->sum && !s->bf16 && !s->bias;
}

static int run_plain(const struct rf__product_sizes *s, const struct rf__factors *f, float *result,
                     struct rf_error *err) {
    const dnnl_dim_t rows = (dnnl_dim_t)s->rows, inner = (dnnl_dim_t)s->inner;
    const dnnl_dim_t columns = (dnnl_dim_t)s->columns;
    dnnl_status_t status =
        dnnl_sgemm(s->left_turned ? 'T' : 'N', s->right_turned ? 'T' : 'N', rows, columns, inner,
                   1.0f, f->left, s->left_turned ? rows : inner, f->right,
                   s->right_turned ? inner : columns, f->fresh ? 0.0f : 1.0f, result, columns);
    return rf__device_check(status, layer, s->what, err);
}

int rf__product_create(struct rf__product *product, struct rf__device *device,
                       const struct rf__product_sizes *sizes, struct rf_error *err) {
    static const int args[] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_BIAS};
    const struct rf__product_sizes *s = sizes;
    const dnnl_data_type_t type = s->bf16 ? dnnl_bf16 : dnnl_f32;
    dnnl_memory_desc_t left, right, result, bias;
    dnnl_matmul_desc_t desc;
    product->sizes = *s;
    if (plain(s)) {
        return 0;
    }
    int rc = matrix(&left, s->what, s->rows, s->inner, s->left_turned, type, err);
    if (!rc) {
        rc = matrix(&right, s->what, s->inner, s->columns, s->right_turned, type, err);
    }
    if (!rc) {
        rc = matrix(&result, s->what, s->rows, s->columns, false, dnnl_f32, err);
    }
    if (!rc) {
        rc = matrix(&bias, s->what, 1, s->columns, false, dnnl_f32, err);
    }
    if (!rc) {
        rc = rf__device_check(
            dnnl_matmul_desc_init(&desc, &left, &right, s->bias ? &bias : NULL, &result), layer,
            s->what, err);
    }
    if (!rc) {
        struct rf__op_options options = {.layer = layer,
                                         .what = s->what,
                                         .desc = &desc,
                                         .sum = s->sum,
                                         .args = args,
                                         .count = s->bias ? 4 : 3};
        rc = rf__op_create(&product->op, device, &options, err);
    }
    if (!rc && s->bf16) {
        rc = rf__device_reserve_temporary(
            device, half_bytes(s->rows * s->inner) + half_bytes(s->inner * s->columns), err);
    }
    return rc;
}

void rf__product_destroy(struct rf__product *product) {
    rf__op_destroy(&product->op);
}

int rf__product_run(struct rf__product *product, struct rf__device *device,
                    const struct rf__kernels *kernels, const struct rf__factors *factors,
                    float *result, struct rf_error *err) {
    const struct rf__product_sizes *s = &product->sizes;
    const void *addresses[] = {factors->left, factors->right, result, factors->bias};
    RF_ASSERT(s->bias == (factors->bias != NULL) && (s->sum || !factors->fresh));
    if (plain(s)) {
        return run_plain(s, factors, result, err);
    }
    if (factors->fresh) {
        memset(result, 0, s->rows * s->columns * sizeof *result);
    }
    if (s->bf16) {
        uint16_t *halves[] = {device->temporary,
                              (uint16_t *)device->temporary +
                                  half_bytes(s->rows * s->inner) / sizeof(uint16_t)};
        kernels->to_bf16(factors->left, halves[0], s->rows * s->inner);
        addresses[0] = halves[0];
        addresses[1] = factors->right_half;
        if (!factors->right_half) {
            kernels->to_bf16(factors->right, halves[1], s->inner * s->columns);
            addresses[1] = halves[1];
        }
    }
    return rf__op_run(&product->op, device, addresses, s->bias ? 4 : 3, err);
}
