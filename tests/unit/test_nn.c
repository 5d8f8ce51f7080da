/* nn/: each layer against plain C and against finite differences; models, passes, optimizers. */
#include "nn/nn.h"

#include "base/mem.h"
#include "base/rng.h"
#include "nn/layer.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* --- one layer at a time --- */

/* A layer with dense memory around it: whatever layout it likes inside, the test sees N x C x H x W
 * or rows. */
struct bench {
    struct rf__device device;
    struct rf__layer layer;
    struct rf__op ops[RF__LAYER_OPS];
    struct rf__op out_dense,
        out_liked; /* its output to dense, a dense gradient to its output's layout */
    size_t in_count, out_count, weight_count, bias_count;
    float *in, *out, *grad_out, *grad_in, *weight, *bias, *grad_weight, *grad_bias;
    float *liked_out, *liked_grad; /* in the layer's own layout */
};

static float *floats(size_t count) {
    float *x = rf__alloc_aligned((count + 1) * sizeof *x);
    assert_non_null(x);
    return x;
}

/* Distinct values, at least 0.02 apart and at least 0.01 from zero, in random order, for layers
 * with kinks. */
static void fill_apart(float *x, size_t count, uint64_t stream) {
    struct rf__rng rng = rf__rng(5, stream, 0);
    for (size_t i = 0; i < count; i++) {
        x[i] = ((float)i - (float)count / 2.0f + 0.25f) * 0.03f;
    }
    for (size_t i = count; i-- > 1;) {
        size_t k = (size_t)rf__rng_below(&rng, i + 1);
        float t = x[i];
        x[i] = x[k];
        x[k] = t;
    }
}

static void fill(float *x, size_t count, uint64_t stream) {
    struct rf__rng rng = rf__rng(3, stream, 0);
    for (size_t i = 0; i < count; i++) {
        x[i] = 2.0f * rf__rng_float(&rng) - 1.0f;
    }
}

static size_t elements(const dnnl_memory_desc_t *layout) {
    size_t count = 1;
    for (int i = 0; i < layout->ndims; i++) {
        count *= (size_t)layout->dims[i];
    }
    return count;
}

static void bench_open(struct bench *b, const struct rf__layer_kind *kind, const dnnl_dim_t *dims,
                       int count, int outputs, bool relu) {
    struct rf_error err = {0};
    dnnl_memory_desc_t dense;
    struct rf__layer *layer = &b->layer;
    *b =
        (struct bench){.layer = {.kind = kind, .name = "tested", .outputs = outputs, .relu = relu}};
    assert_int_equal(rf__device_open(&b->device, &err), 0);
    assert_int_equal(rf__layout_dense(&layer->in, "tested", dims, count, &err), 0);
    assert_int_equal(kind->describe(layer, &b->device, &err), 0);
    assert_int_equal(kind->plan(layer, b->ops, (int)dims[0], &b->device, &err), 0);
    assert_int_equal(rf__layout_dense(&dense, "tested", layer->out.dims, layer->out.ndims, &err),
                     0);
    assert_int_equal(rf__op_create_reorder(&b->out_dense, &b->device, "tested", "out", &layer->out,
                                           &dense, false, &err),
                     0);
    assert_int_equal(rf__op_create_reorder(&b->out_liked, &b->device, "tested", "out", &dense,
                                           &layer->out, false, &err),
                     0);
    b->in_count = elements(&layer->in);
    b->out_count = elements(&layer->out);
    b->weight_count = layer->weight_dims ? 1 : 0;
    for (int i = 0; i < layer->weight_dims; i++) {
        b->weight_count *= (size_t)layer->weight_shape[i];
    }
    b->bias_count = layer->weight_dims ? (size_t)outputs : 0;
    b->in = floats(b->in_count);
    b->grad_in = floats(b->in_count);
    b->out = floats(b->out_count);
    b->grad_out = floats(b->out_count);
    b->weight = floats(b->weight_count);
    b->grad_weight = floats(b->weight_count);
    b->bias = floats(b->bias_count);
    b->grad_bias = floats(b->bias_count);
    size_t bytes = dnnl_memory_desc_get_size(&layer->out);
    b->liked_out = rf__alloc_aligned(bytes);
    b->liked_grad = rf__alloc_aligned(bytes);
    layer->keep = rf__alloc_aligned(layer->keep_bytes);
    layer->weight = b->weight;
    layer->bias = b->bias;
    layer->input = b->in;
    layer->output = b->liked_out;
    fill(b->in, b->in_count, 1);
    fill(b->grad_out, b->out_count, 2);
    fill(b->weight, b->weight_count, 3);
    fill(b->bias, b->bias_count, 4);
}

static void bench_close(struct bench *b) {
    float *blocks[] = {b->in,        b->out,        b->grad_out,    b->grad_in,
                       b->weight,    b->bias,       b->grad_weight, b->grad_bias,
                       b->liked_out, b->liked_grad, b->layer.keep};
    for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++) {
        rf__free(blocks[i]);
    }
    for (int i = 0; i < RF__LAYER_OPS; i++) {
        rf__op_destroy(&b->ops[i]);
    }
    rf__op_destroy(&b->out_dense);
    rf__op_destroy(&b->out_liked);
    rf__device_close(&b->device);
}

static void bench_forward(struct bench *b) {
    struct rf_error err = {0};
    assert_int_equal(b->layer.kind->forward(&b->layer, b->ops, &b->device, &err), 0);
    assert_int_equal(RF__OP_RUN(&b->out_dense, &b->device, &err, b->liked_out, b->out), 0);
}

static void bench_backward(struct bench *b) {
    struct rf_error err = {0};
    struct rf__layer_gradients gradients = {.output = b->liked_grad,
                                            .input = b->grad_in,
                                            .weight = b->grad_weight,
                                            .bias = b->grad_bias};
    assert_int_equal(RF__OP_RUN(&b->out_liked, &b->device, &err, b->grad_out, b->liked_grad), 0);
    if (b->weight_count) {
        assert_int_equal(
            b->layer.kind->backward_weights(&b->layer, b->ops, &b->device, &gradients, &err), 0);
    }
    assert_int_equal(b->layer.kind->backward_data(&b->layer, b->ops, &b->device, &gradients, &err),
                     0);
}

/* Largest difference, relative to the largest value. */
static double difference(const float *x, const double *reference, size_t count) {
    double worst = 0, size = 1e-30;
    for (size_t i = 0; i < count; i++) {
        worst = fmax(worst, fabs((double)x[i] - reference[i]));
        size = fmax(size, fabs(reference[i]));
    }
    return isfinite(worst) ? worst / size : HUGE_VAL;
}

static void assert_close(const float *x, const double *reference, size_t count, double tolerance) {
    double far = difference(x, reference, count);
    if (!(far <= tolerance)) {
        fail_msg("relative difference %g, allowed %g", far, tolerance);
    }
}

static double objective(struct bench *b) {
    double sum = 0;
    bench_forward(b);
    for (size_t i = 0; i < b->out_count; i++) {
        sum += (double)b->grad_out[i] * (double)b->out[i];
    }
    return sum;
}

static void check_differences(struct bench *b, float *x, const float *gradient, size_t count,
                              float step) {
    double *differences = calloc(count, sizeof *differences);
    assert_non_null(differences);
    for (size_t i = 0; i < count; i++) {
        float kept = x[i];
        x[i] = kept + step;
        double above = objective(b), span = x[i];
        x[i] = kept - step;
        double below = objective(b);
        span -= x[i];
        x[i] = kept;
        differences[i] = (above - below) / span;
    }
    assert_close(gradient, differences, count, 1e-3);
    free(differences);
}

/* Gradients by everything that the layer takes, against central differences of sum(grad_out x out).
 */
static void check_gradients(struct bench *b, float step) {
    bench_forward(b);
    bench_backward(b);
    check_differences(b, b->in, b->grad_in, b->in_count, step);
    check_differences(b, b->weight, b->grad_weight, b->weight_count, step);
    check_differences(b, b->bias, b->grad_bias, b->bias_count, step);
}

/* The reference: out, and gradients, in double, for a linear or conv layer; the oracle loops over
 * everything. */
struct reference {
    double *out, *grad_in, *grad_weight, *grad_bias;
};

static struct reference reference_create(const struct bench *b) {
    struct reference r = {
        calloc(b->out_count + 1, sizeof(double)), calloc(b->in_count + 1, sizeof(double)),
        calloc(b->weight_count + 1, sizeof(double)), calloc(b->bias_count + 1, sizeof(double))};
    assert_true(r.out && r.grad_in && r.grad_weight && r.grad_bias);
    return r;
}

static void reference_check(struct bench *b, struct reference *r) {
    bench_forward(b);
    bench_backward(b);
    assert_close(b->out, r->out, b->out_count, 1e-5);
    assert_close(b->grad_in, r->grad_in, b->in_count, 1e-5);
    if (b->weight_count) {
        assert_close(b->grad_weight, r->grad_weight, b->weight_count, 1e-5);
        assert_close(b->grad_bias, r->grad_bias, b->bias_count, 1e-5);
        bench_backward(b); /* gradients of tensors are added, the other is written */
        for (size_t i = 0; i < b->weight_count; i++) {
            r->grad_weight[i] *= 2;
        }
        for (size_t i = 0; i < b->bias_count; i++) {
            r->grad_bias[i] *= 2;
        }
        assert_close(b->grad_in, r->grad_in, b->in_count, 1e-5);
        assert_close(b->grad_weight, r->grad_weight, b->weight_count, 1e-5);
        assert_close(b->grad_bias, r->grad_bias, b->bias_count, 1e-5);
    }
    free(r->out);
    free(r->grad_in);
    free(r->grad_weight);
    free(r->grad_bias);
}

static void linear_reference(const struct bench *b, struct reference *r) {
    size_t rows = (size_t)b->layer.in.dims[0], in = (size_t)b->layer.in.dims[1];
    size_t out = (size_t)b->layer.outputs;
    for (size_t n = 0; n < rows; n++) {
        for (size_t o = 0; o < out; o++) {
            double g = b->grad_out[n * out + o];
            r->out[n * out + o] = b->bias[o];
            r->grad_bias[o] += g;
            for (size_t i = 0; i < in; i++) {
                r->out[n * out + o] += (double)b->in[n * in + i] * (double)b->weight[o * in + i];
                r->grad_weight[o * in + i] += g * (double)b->in[n * in + i];
                r->grad_in[n * in + i] += g * (double)b->weight[o * in + i];
            }
        }
    }
}

static void conv_reference(const struct bench *b, struct reference *r) {
    const dnnl_dim_t *d = b->layer.in.dims;
    int rows = (int)d[0], in = (int)d[1], height = (int)d[2], width = (int)d[3];
    int out = b->layer.outputs;
    for (int n = 0; n < rows; n++) {
        for (int o = 0; o < out; o++) {
            for (int y = 0; y < height; y++) {
                for (int x = 0; x < width; x++) {
                    size_t to =
                        (((size_t)n * (size_t)out + (size_t)o) * (size_t)height + (size_t)y) *
                            (size_t)width +
                        (size_t)x;
                    double g = b->grad_out[to];
                    r->out[to] = b->bias[o];
                    r->grad_bias[o] += g;
                    for (int i = 0; i < in * 9; i++) {
                        int c = i / 9, v = y + i % 9 / 3 - 1, u = x + i % 3 - 1;
                        if (v < 0 || v >= height || u < 0 || u >= width) {
                            continue;
                        }
                        size_t from =
                            (((size_t)n * (size_t)in + (size_t)c) * (size_t)height + (size_t)v) *
                                (size_t)width +
                            (size_t)u;
                        size_t w = (size_t)o * (size_t)in * 9 + (size_t)i;
                        r->out[to] += (double)b->in[from] * (double)b->weight[w];
                        r->grad_weight[w] += g * (double)b->in[from];
                        r->grad_in[from] += g * (double)b->weight[w];
                    }
                }
            }
        }
    }
}

static void pool_reference(const struct bench *b, struct reference *r) {
    const dnnl_dim_t *d = b->layer.in.dims;
    size_t planes = (size_t)(d[0] * d[1]), height = (size_t)d[2], width = (size_t)d[3];
    size_t to = 0;
    for (size_t p = 0; p < planes; p++) {
        for (size_t y = 0; y + 1 < height; y += 2) {
            for (size_t x = 0; x + 1 < width; x += 2, to++) {
                size_t best = (p * height + y) * width + x;
                const size_t others[] = {best + 1, best + width, best + width + 1};
                for (int i = 0; i < 3; i++) {
                    best = b->in[others[i]] > b->in[best] ? others[i] : best;
                }
                r->out[to] = b->in[best];
                r->grad_in[best] += b->grad_out[to];
            }
        }
    }
    assert_int_equal(to, b->out_count);
}

static void linear_is_right(void **state) {
    static const dnnl_dim_t sizes[][2] = {{1, 1}, {5, 7}, {3, 131}, {33, 17}};
    struct bench b;
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        for (int outputs = 1; outputs <= 35; outputs += 17) {
            bench_open(&b, &rf__layer_linear, sizes[i], 2, outputs, false);
            struct reference r = reference_create(&b);
            linear_reference(&b, &r);
            reference_check(&b, &r);
            bench_close(&b);
        }
    }
    bench_open(&b, &rf__layer_linear, sizes[1], 2, 3, false);
    check_gradients(&b, 0.25f);
    bench_close(&b);
}

static void conv_is_right(void **state) {
    static const struct {
        dnnl_dim_t in[4];
        int outputs;
    } sizes[] = {{{3, 1, 9, 11}, 16},  {{2, 3, 8, 13}, 7},    {{1, 5, 9, 9}, 16},
                 {{3, 16, 9, 11}, 32}, {{2, 32, 14, 14}, 64}, {{1, 20, 11, 8}, 24}};
    struct bench b;
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        bench_open(&b, &rf__layer_conv, sizes[i].in, 4, sizes[i].outputs, false);
        struct reference r = reference_create(&b);
        conv_reference(&b, &r);
        reference_check(&b, &r);
        bench_close(&b);
    }
    bench_open(&b, &rf__layer_conv, (const dnnl_dim_t[]){2, 2, 8, 9}, 4, 3, false);
    check_gradients(&b, 0.25f);
    bench_close(&b);
}

static void relu_on_the_way_out(void **state) {
    static const dnnl_dim_t images[] = {3, 16, 9, 11}, rows[] = {5, 19};
    (void)state;
    for (int conv = 0; conv < 2; conv++) {
        struct bench b;
        bench_open(&b, conv ? &rf__layer_conv : &rf__layer_linear, conv ? images : rows,
                   conv ? 4 : 2, 33, true);
        struct reference r = reference_create(&b);
        if (conv) {
            conv_reference(&b, &r);
        } else {
            linear_reference(&b, &r);
        }
        int cut = 0;
        for (size_t i = 0; i < b.out_count; i++) {
            cut += r.out[i] < 0;
            r.out[i] = fmax(r.out[i], 0);
        }
        assert_true(cut > 0);
        reference_check(&b, &r);
        bench_close(&b);
    }
}

static void pool_is_right(void **state) {
    static const dnnl_dim_t sizes[][4] = {
        {3, 5, 9, 11}, {2, 16, 8, 9}, {1, 32, 28, 28}, {1, 1, 2, 2}};
    struct bench b;
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        bench_open(&b, &rf__layer_pool, sizes[i], 4, 0, false);
        struct reference r = reference_create(&b);
        pool_reference(&b, &r);
        reference_check(&b, &r);
        bench_close(&b);
    }
    bench_open(&b, &rf__layer_pool, sizes[0], 4, 0, false);
    fill_apart(b.in, b.in_count, 7);
    check_gradients(&b, 0.007f);
    bench_close(&b);
}

static void relu_is_right(void **state) {
    struct bench b;
    (void)state;
    bench_open(&b, &rf__layer_relu, (const dnnl_dim_t[]){7, 37}, 2, 0, false);
    fill_apart(b.in, b.in_count, 7);
    bench_forward(&b);
    bench_backward(&b);
    for (size_t i = 0; i < b.in_count; i++) {
        assert_true(b.out[i] == (b.in[i] > 0 ? b.in[i] : 0));
        assert_true(b.grad_in[i] == (b.in[i] > 0 ? b.grad_out[i] : 0));
    }
    check_gradients(&b, 0.004f);
    bench_close(&b);
}

static void rows_keep_every_value(void **state) {
    struct bench b;
    (void)state;
    bench_open(&b, &rf__layer_rows, (const dnnl_dim_t[]){3, 5, 3, 7}, 4, 0, false);
    bench_forward(&b);
    bench_backward(&b);
    assert_memory_equal(b.out, b.in, b.in_count * sizeof(float));
    assert_memory_equal(b.grad_in, b.grad_out, b.in_count * sizeof(float));
    bench_close(&b);
}

static void loss_is_right(void **state) {
    enum { ROWS = 5, COUNT = 4, CLASSES = 7 };
    float logits[ROWS * CLASSES], gradient[ROWS * CLASSES];
    const int32_t labels[ROWS] = {0, 6, 3, 3, 1};
    double sum = 0;
    int correct = 0;
    (void)state;
    fill(logits, ROWS * CLASSES, 9);
    logits[2 * CLASSES + 3] = 1.5f;  /* a sample that is right */
    logits[1 * CLASSES + 2] = 90.0f; /* and one that is very wrong */
    for (int i = 0; i < COUNT; i++) {
        double total = 0;
        int best = 0;
        for (int k = 0; k < CLASSES; k++) {
            total += exp((double)logits[i * CLASSES + k]);
            best = logits[i * CLASSES + k] > logits[i * CLASSES + best] ? k : best;
        }
        sum -= log(exp((double)logits[i * CLASSES + labels[i]]) / total);
        correct += best == labels[i];
    }
    struct rf__loss loss = rf__loss_forward(logits, labels, COUNT, CLASSES);
    assert_true(fabs(loss.sum - sum) < 1e-9 * sum);
    assert_int_equal(loss.correct, correct);
    assert_true(correct > 0 && correct < COUNT);
    rf__loss_backward(logits, labels, COUNT, ROWS, CLASSES, gradient);
    for (int i = 0; i < COUNT * CLASSES; i++) {
        float kept = logits[i];
        logits[i] = kept + 0.0078125f;
        double above = rf__loss_forward(logits, labels, COUNT, CLASSES).sum;
        logits[i] = kept - 0.0078125f;
        double below = rf__loss_forward(logits, labels, COUNT, CLASSES).sum;
        logits[i] = kept;
        assert_true(fabs((above - below) / 0.015625 - (double)gradient[i]) < 1e-4);
    }
    for (int i = COUNT * CLASSES; i < ROWS * CLASSES; i++) {
        assert_true(gradient[i] == 0);
    }
}

/* Logits that no exponential could take. */
static void loss_does_not_overflow(void **state) {
    const float logits[] = {1e6f, -1e6f, 0};
    const int32_t label = 2;
    float gradient[3];
    (void)state;
    assert_true(rf__loss_forward(logits, &label, 1, 3).sum == 1e6);
    rf__loss_backward(logits, &label, 1, 1, 3, gradient);
    assert_true(gradient[0] == 1 && gradient[1] == 0 && gradient[2] == -1);
}

/* --- whole models --- */

enum { SIDE = 9, CHANNELS = 2, SAMPLE = CHANNELS * SIDE * SIDE, CLASSES = 5, BATCH = 7 };

static const char *const names[] = {"mlp", "cnn"};

static struct rf__model *model_create(const char *name, int batch, uint64_t seed) {
    struct rf_error err = {0};
    struct rf__model *model = NULL;
    struct rf__model_options options = {.name = name,
                                        .channels = CHANNELS,
                                        .height = SIDE,
                                        .width = SIDE,
                                        .classes = CLASSES,
                                        .batch = batch,
                                        .hidden = 19,
                                        .seed = seed};
    int rc = rf__model_create(&options, &model, &err);
    if (rc) {
        fail_msg("%s", err.text);
    }
    return model;
}

/* Gradients of all tensors, and the order in which they were ready. */
struct gradients {
    float *of[32];
    size_t count[32];
    int tensors, asked, order[64], ready;
    int refuse; /* index whose ready() fails; -1: none */
};

static float *gradients_grad(void *context, int index, bool *fresh) {
    struct gradients *g = context;
    assert_null(fresh); /* these are added to */
    g->asked++;
    return g->of[index];
}

static int gradients_ready(void *context, int index) {
    struct gradients *g = context;
    assert_true(g->ready < 64);
    g->order[g->ready++] = index;
    return index == g->refuse ? RF_EREVOKED : 0;
}

static const float *gradients_read(void *context, int index) {
    return ((struct gradients *)context)->of[index];
}

static void gradients_clear(struct gradients *g) {
    g->asked = g->ready = 0;
    for (int i = 0; i < g->tensors; i++) {
        memset(g->of[i], 0, g->count[i] * sizeof(float));
    }
}

static void gradients_open(struct gradients *g, const struct rf__model *model) {
    *g = (struct gradients){.tensors = rf__model_tensors(model), .refuse = -1};
    for (int i = 0; i < g->tensors; i++) {
        g->count[i] = rf__model_tensor(model, i)->count;
        g->of[i] = floats(g->count[i]);
    }
}

static void gradients_close(struct gradients *g) {
    for (int i = 0; i < g->tensors; i++) {
        rf__free(g->of[i]);
    }
}

static double pass(struct rf__model *model, struct gradients *g, const float *inputs,
                   const int32_t *labels, int count) {
    struct rf_error err = {0};
    const struct rf__model_sink sink = {gradients_grad, gradients_ready, g};
    double loss = -1;
    int rc = rf__model_forward(model, inputs, labels, count, &loss, NULL, &err);
    rc = rc ? rc : rf__model_backward(model, &sink, &err);
    if (rc) {
        fail_msg("%s", err.text);
    }
    return loss;
}

static void samples(float *inputs, int32_t *labels, int count, uint64_t stream) {
    fill(inputs, (size_t)count * SAMPLE, 100 + stream);
    for (int i = 0; i < count; i++) {
        labels[i] = (int32_t)((uint64_t)i * 3 + stream) % CLASSES;
    }
}

static void assert_same(const struct gradients *x, const struct gradients *y, double tolerance) {
    assert_int_equal(x->tensors, y->tensors);
    for (int i = 0; i < x->tensors; i++) {
        double worst = 0, size = 0;
        for (size_t k = 0; k < x->count[i]; k++) {
            worst = fmax(worst, fabs((double)x->of[i][k] - (double)y->of[i][k]));
            size = fmax(size, fabs((double)y->of[i][k]));
        }
        if (!(worst <= tolerance * size) || size == 0) {
            fail_msg("tensor %d: difference %g of %g", i, worst, size);
        }
    }
}

static void tensors_are_described(void **state) {
    (void)state;
    for (int which = 0; which < 2; which++) {
        struct rf__model *model = model_create(names[which], BATCH, 1);
        size_t total = 0;
        for (int i = 0; i < rf__model_tensors(model); i++) {
            const struct rf__tensor *t = rf__model_tensor(model, i);
            size_t count = 1;
            for (int k = 0; k < t->dims; k++) {
                count *= t->shape[k];
            }
            assert_int_equal(count, t->count);
            assert_int_equal(t->decay, i % 2 == 0);
            assert_int_equal((uintptr_t)t->data % 64, 0);
            assert_non_null(strstr(t->name, i % 2 ? ".bias" : ".weight"));
            total += count;
            double sum = rf__sum_of_squares(t->data, t->count);
            assert_true(i % 2 ? sum == 0 : sum > 0);
        }
        assert_int_equal(total, rf__model_parameters(model));
        assert_true(rf__model_activation_bytes(model) > (size_t)BATCH * SAMPLE * sizeof(float));
        rf__model_destroy(model);
    }
    assert_non_null(strstr(rf__model_compute(), "oneDNN 2."));
}

/* Initial values: within the bound, of the right variance, other for other seeds, the same for the
 * same. */
static void initial_values(void **state) {
    (void)state;
    struct rf__model *a = model_create("mlp", 1, 1), *b = model_create("mlp", BATCH, 1);
    struct rf__model *c = model_create("mlp", 1, 2);
    for (int i = 0; i < rf__model_tensors(a); i += 2) {
        const struct rf__tensor *t = rf__model_tensor(a, i);
        double gain = i + 2 < rf__model_tensors(a) ? 2.0 : 1.0;
        double variance = rf__sum_of_squares(t->data, t->count) / (double)t->count;
        assert_true(fabs(variance * (double)t->shape[1] / gain - 1) < 0.25);
        assert_memory_equal(t->data, rf__model_tensor(b, i)->data, t->count * sizeof(float));
        assert_memory_not_equal(t->data, rf__model_tensor(c, i)->data, t->count * sizeof(float));
    }
    rf__model_destroy(a);
    rf__model_destroy(b);
    rf__model_destroy(c);
}

/* The derivative along a random direction of each tensor, against the change of the loss. */
static void model_gradients(void **state) {
    float inputs[BATCH * SAMPLE];
    int32_t labels[BATCH];
    struct rf_error err = {0};
    (void)state;
    samples(inputs, labels, BATCH, 0);
    for (int which = 0; which < 2; which++) {
        struct rf__model *model = model_create(names[which], BATCH, 3);
        struct gradients g;
        gradients_open(&g, model);
        pass(model, &g, inputs, labels, BATCH);
        for (int i = 0; i < g.tensors; i++) {
            const struct rf__tensor *t = rf__model_tensor(model, i);
            double norm = sqrt(rf__sum_of_squares(g.of[i], g.count[i])), losses[2];
            assert_true(norm > 1e-3);
            /* Along the gradient itself: the derivative is its norm, far above rounding. */
            float *kept = floats(t->count);
            memcpy(kept, t->data, t->count * sizeof(float));
            for (int side = 0; side < 2; side++) {
                double step = (side ? 1e-3 : -1e-3) / norm;
                for (size_t k = 0; k < t->count; k++) {
                    t->data[k] = (float)((double)kept[k] + step * (double)g.of[i][k]);
                }
                assert_int_equal(
                    rf__model_forward(model, inputs, labels, BATCH, &losses[side], NULL, &err), 0);
            }
            memcpy(t->data, kept, t->count * sizeof(float));
            rf__free(kept);
            double slope = (losses[1] - losses[0]) / 2e-3;
            if (!(fabs(slope / norm - 1) < 1e-2)) {
                fail_msg("%s %s: slope %g, gradient %g", names[which], t->name, slope, norm);
            }
        }
        gradients_close(&g);
        rf__model_destroy(model);
    }
}

static void gradients_are_added(void **state) {
    float inputs[BATCH * SAMPLE];
    int32_t labels[BATCH];
    (void)state;
    samples(inputs, labels, BATCH, 1);
    for (int which = 0; which < 2; which++) {
        struct rf__model *model = model_create(names[which], BATCH, 3);
        struct gradients once, twice;
        gradients_open(&once, model);
        gradients_open(&twice, model);
        pass(model, &once, inputs, labels, BATCH);
        pass(model, &twice, inputs, labels, BATCH);
        pass(model, &twice, inputs, labels, BATCH);
        for (int i = 0; i < once.tensors; i++) {
            for (size_t k = 0; k < once.count[i]; k++) {
                once.of[i][k] *= 2;
            }
        }
        assert_same(&twice, &once, 1e-6);
        gradients_close(&once);
        gradients_close(&twice);
        rf__model_destroy(model);
    }
}

/* Padding adds nothing, and samples do not see each other: a batch in parts, in another order, is
 * the batch. */
static void parts_make_the_whole(void **state) {
    static const int cuts[][4] = {{7, 0}, {3, 4}, {1, 5, 1}, {2, 3, 1, 1}};
    float inputs[BATCH * SAMPLE], mirrored[BATCH * SAMPLE];
    int32_t labels[BATCH], mirrored_labels[BATCH];
    (void)state;
    samples(inputs, labels, BATCH, 2);
    for (int i = 0; i < BATCH; i++) {
        memcpy(mirrored + (BATCH - 1 - i) * SAMPLE, inputs + i * SAMPLE, SAMPLE * sizeof(float));
        mirrored_labels[BATCH - 1 - i] = labels[i];
    }
    for (int which = 0; which < 2; which++) {
        struct rf__model *large = model_create(names[which], 4 * BATCH, 3);
        struct rf__model *model = model_create(names[which], BATCH, 3);
        struct gradients whole, parts;
        gradients_open(&whole, model);
        gradients_open(&parts, model);
        double loss = pass(model, &whole, inputs, labels, BATCH);
        for (size_t cut = 0; cut < sizeof cuts / sizeof cuts[0]; cut++) {
            double sum = 0;
            gradients_clear(&parts);
            for (int i = 0, at = 0; i < 4 && cuts[cut][i]; at += cuts[cut][i++]) {
                sum += pass(cut % 2 ? large : model, &parts, mirrored + at * SAMPLE,
                            mirrored_labels + at, cuts[cut][i]);
            }
            assert_true(fabs(sum - loss) < 1e-5 * loss);
            assert_same(&parts, &whole, 1e-5);
        }
        gradients_close(&whole);
        gradients_close(&parts);
        rf__model_destroy(model);
        rf__model_destroy(large);
    }
}

/* Whatever a larger micro-batch left behind in memory must not shine through the padding. */
static void padding_is_exactly_nothing(void **state) {
    float inputs[BATCH * SAMPLE];
    int32_t labels[BATCH];
    (void)state;
    samples(inputs, labels, BATCH, 3);
    for (int which = 0; which < 2; which++) {
        struct rf__model *used = model_create(names[which], BATCH, 3);
        struct rf__model *fresh = model_create(names[which], BATCH, 3);
        struct gradients first, second;
        gradients_open(&first, used);
        gradients_open(&second, used);
        pass(used, &first, inputs, labels, BATCH);
        gradients_clear(&first);
        double a = pass(used, &first, inputs, labels, 5);
        double b = pass(fresh, &second, inputs, labels, 5);
        assert_true(a == b);
        for (int i = 0; i < first.tensors; i++) {
            assert_memory_equal(first.of[i], second.of[i], first.count[i] * sizeof(float));
        }
        gradients_close(&first);
        gradients_close(&second);
        rf__model_destroy(used);
        rf__model_destroy(fresh);
    }
}

static void ready_last_first(void **state) {
    float inputs[BATCH * SAMPLE];
    int32_t labels[BATCH];
    (void)state;
    samples(inputs, labels, BATCH, 4);
    for (int which = 0; which < 2; which++) {
        struct rf__model *model = model_create(names[which], BATCH, 3);
        struct gradients g;
        struct rf_error err = {0};
        const struct rf__model_sink sink = {gradients_grad, gradients_ready, &g};
        double loss;
        gradients_open(&g, model);
        pass(model, &g, inputs, labels, 3);
        assert_int_equal(g.ready, g.tensors);
        assert_int_equal(g.asked, g.tensors);
        for (int i = 0; i < g.tensors; i++) {
            assert_int_equal(g.order[i], g.tensors - 1 - i);
        }
        gradients_clear(&g);
        g.refuse = g.tensors - 3;
        assert_int_equal(rf__model_forward(model, inputs, labels, 3, &loss, NULL, &err), 0);
        assert_int_equal(rf__model_backward(model, &sink, &err), RF_EREVOKED);
        assert_int_equal(g.ready, 3);
        gradients_close(&g);
        rf__model_destroy(model);
    }
}

/* After the first pass of a size there is nothing left to allocate. */
static void passes_allocate_nothing(void **state) {
    float inputs[BATCH * SAMPLE];
    int32_t labels[BATCH];
    (void)state;
    samples(inputs, labels, BATCH, 4);
    for (int which = 0; which < 2; which++) {
        struct rf__model *model = model_create(names[which], BATCH, 3);
        struct gradients g;
        gradients_open(&g, model);
        pass(model, &g, inputs, labels, 2);
        rf__alloc_fail_after(0);
        pass(model, &g, inputs, labels, BATCH);
        pass(model, &g, inputs, labels, 2);
        assert_null(rf__alloc(1, 1)); /* the failure is still to come: nobody took it */
        rf__alloc_fail_after(-1);
        gradients_close(&g);
        rf__model_destroy(model);
    }
}

static void train(struct rf__model *model, const char *optimizer_name, int steps) {
    float inputs[BATCH * SAMPLE];
    int32_t labels[BATCH];
    struct rf_error err = {0};
    struct rf__optimizer_options options = {
        .name = optimizer_name, .momentum = 0.9, .weight_decay = 0.01};
    struct rf__optimizer *optimizer;
    struct gradients g;
    gradients_open(&g, model);
    assert_int_equal(rf__optimizer_create(&options, model, &optimizer, &err), 0);
    for (int step = 1; step <= steps; step++) {
        int count = step % 5 ? BATCH : 3;
        samples(inputs, labels, BATCH, (uint64_t)step);
        gradients_clear(&g);
        pass(model, &g, inputs, labels, count);
        rf__optimizer_update(optimizer, model, gradients_read, &g, 0.01, 1.0 / count,
                             (uint64_t)step);
    }
    rf__optimizer_destroy(optimizer);
    gradients_close(&g);
}

static void runs_are_equal_bit_for_bit(void **state) {
    static const char *const optimizers[] = {"sgd", "adamw"};
    (void)state;
    for (int which = 0; which < 2; which++) {
        struct rf__model *a = model_create(names[which], BATCH, 8);
        struct rf__model *b = model_create(names[which], BATCH, 8);
        struct rf__model *initial = model_create(names[which], BATCH, 8);
        train(a, optimizers[which], 20);
        train(b, optimizers[which], 20);
        for (int i = 0; i < rf__model_tensors(a); i++) {
            const struct rf__tensor *t = rf__model_tensor(a, i);
            assert_memory_equal(t->data, rf__model_tensor(b, i)->data, t->count * sizeof(float));
            assert_memory_not_equal(t->data, rf__model_tensor(initial, i)->data,
                                    t->count * sizeof(float));
        }
        rf__model_destroy(a);
        rf__model_destroy(b);
        rf__model_destroy(initial);
    }
}

static void mistakes_are_named(void **state) {
    static const struct {
        struct rf__model_options options;
        int code;
        const char *text;
    } cases[] = {
        {{.name = "resnet", .channels = 1, .height = 9, .width = 9, .classes = 2, .batch = 1},
         RF_EINVAL,
         "there is no model 'resnet'; there are: mlp, cnn, gpt"},
        {{.name = NULL, .channels = 1, .height = 9, .width = 9, .classes = 2, .batch = 1},
         RF_EINVAL,
         "mlp, cnn"},
        {{.name = "cnn", .channels = 1, .height = 9, .width = 7, .classes = 2, .batch = 1},
         RF_EINVAL,
         "at least 8 x 8, not 9 x 7"},
        {{.name = "mlp", .channels = 1, .height = 9, .width = 9, .classes = 2, .batch = 0},
         RF_EINVAL,
         "batch"},
        {{.name = "mlp", .channels = 1, .height = 9, .width = 9, .classes = 1, .batch = 1},
         RF_EINVAL,
         "classes"},
        {{.name = "mlp", .channels = 4096, .height = 4096, .width = 4096, .classes = 2, .batch = 1},
         RF_ELIMIT,
         "68719476736"},
    };
    struct rf__model *model;
    struct rf_error err;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        err = (struct rf_error){0};
        assert_int_equal(rf__model_create(&cases[i].options, &model, &err), cases[i].code);
        assert_null(model);
        assert_non_null(strstr(err.text, cases[i].text));
    }
    float inputs[2 * SAMPLE] = {0};
    int32_t labels[2] = {0, CLASSES};
    double loss;
    model = model_create("mlp", 2, 1);
    assert_int_equal(rf__model_forward(model, inputs, labels, 2, &loss, NULL, &err), RF_EDATA);
    assert_non_null(strstr(err.text, "label 5"));
    assert_int_equal(rf__model_forward(model, inputs, labels, 3, &loss, NULL, &err), RF_EINVAL);
    assert_int_equal(rf__model_forward(model, inputs, labels, 0, &loss, NULL, &err), RF_EINVAL);
    assert_int_equal(rf__model_forward(model, inputs, labels, 1, &loss, NULL, &err), 0);
    struct rf__optimizer *optimizer;
    struct rf__optimizer_options options = {.name = "adam"};
    assert_int_equal(rf__optimizer_create(&options, model, &optimizer, &err), RF_EINVAL);
    assert_string_equal(err.text, "there is no optimizer 'adam'; there are: sgd, adamw");
    rf__model_destroy(model);
    rf__model_destroy(NULL);
    rf__optimizer_destroy(NULL);
}

/* What a library status becomes. */
static void library_errors_name_the_layer(void **state) {
    struct rf_error err = {0};
    (void)state;
    assert_int_equal(rf__device_check(dnnl_out_of_memory, "conv2", "forward convolution", &err),
                     RF_ENOMEM);
    assert_string_equal(err.text, "layer conv2, forward convolution: oneDNN: out of memory");
    assert_int_equal(rf__device_check(dnnl_unimplemented, "pool1", "backward pooling", &err),
                     RF_EINTERNAL);
    assert_non_null(strstr(err.text, "layer pool1, backward pooling: oneDNN: not implemented"));
    assert_int_equal(rf__device_check(dnnl_success, "x", "y", &err), 0);
}

/* Everything that allocates, with the k-th allocation failing. */
static int everything(const char *name, struct rf_error *err) {
    float inputs[BATCH * SAMPLE] = {0};
    const int32_t labels[BATCH] = {0};
    struct rf__model *model = NULL;
    struct rf__optimizer *optimizer = NULL;
    struct rf__model_options options = {.name = name,
                                        .channels = CHANNELS,
                                        .height = SIDE,
                                        .width = SIDE,
                                        .classes = CLASSES,
                                        .batch = BATCH};
    struct rf__optimizer_options adamw = {.name = "adamw"};
    double loss;
    int rc = rf__model_create(&options, &model, err);
    assert_true(!rc == !!model);
    if (!rc) {
        rc = rf__optimizer_create(&adamw, model, &optimizer, err);
        assert_true(!rc == !!optimizer);
    }
    if (!rc) {
        rc = rf__model_forward(model, inputs, labels, 3, &loss, NULL, err);
        if (rc) { /* memory is there again: so is the model */
            struct rf_error none = {0};
            assert_int_equal(rf__model_forward(model, inputs, labels, 3, &loss, NULL, &none), 0);
        }
    }
    rf__optimizer_destroy(optimizer);
    rf__model_destroy(model);
    return rc;
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    for (int which = 0; which < 2; which++) {
        int rc, failures = 0;
        do {
            struct rf_error err = {0};
            rf__alloc_fail_after(failures);
            rc = everything(names[which], &err);
            rf__alloc_fail_after(-1);
            if (rc) {
                failures++;
                assert_int_equal(rc, RF_ENOMEM);
                assert_int_equal(err.code, RF_ENOMEM);
                assert_non_null(strstr(err.text, "no memory"));
            }
        } while (rc);
        assert_in_range(failures, 6, 40);
    }
}

/* Two inputs of unequal sign or not: no linear model can tell. */
static void mlp_learns_xor(void **state) {
    enum { POINTS = 32 };
    float inputs[POINTS * 2];
    int32_t labels[POINTS];
    struct rf__rng rng = rf__rng(1, 2, 3);
    struct rf__model_options options = {.name = "mlp",
                                        .channels = 1,
                                        .height = 1,
                                        .width = 2,
                                        .classes = 2,
                                        .batch = POINTS,
                                        .hidden = 16,
                                        .seed = 1};
    struct rf__optimizer_options adamw = {.name = "adamw"};
    struct rf__model *model;
    struct rf__optimizer *optimizer;
    struct rf_error err = {0};
    struct gradients g;
    int correct;
    double loss = 0;
    (void)state;
    for (int i = 0; i < POINTS; i++) {
        for (int k = 0; k < 2; k++) {
            float size = 0.5f + 0.5f * rf__rng_float(&rng);
            inputs[i * 2 + k] = i >> k & 1 ? size : -size;
        }
        labels[i] = (i & 1) != (i >> 1 & 1);
    }
    assert_int_equal(rf__model_create(&options, &model, &err), 0);
    assert_int_equal(rf__optimizer_create(&adamw, model, &optimizer, &err), 0);
    gradients_open(&g, model);
    for (uint64_t step = 1; step <= 300; step++) {
        gradients_clear(&g);
        loss = pass(model, &g, inputs, labels, POINTS);
        rf__optimizer_update(optimizer, model, gradients_read, &g, 0.01, 1.0 / POINTS, step);
    }
    assert_int_equal(rf__model_forward(model, inputs, labels, POINTS, &loss, &correct, &err), 0);
    assert_int_equal(correct, POINTS);
    assert_true(loss / POINTS < 0.01);
    gradients_close(&g);
    rf__optimizer_destroy(optimizer);
    rf__model_destroy(model);
}

/* --- optimizers --- */

/* Ten updates with random gradients, against the same in double. */
static void optimizers_follow_their_papers(void **state) {
    const double rate = 0.02, scale = 0.5, decay = 0.1;
    (void)state;
    for (int adamw = 0; adamw < 2; adamw++) {
        struct rf__optimizer_options options = {
            .name = adamw ? "adamw" : "sgd", .momentum = 0.8, .beta2 = 0.99, .weight_decay = decay};
        struct rf__model *model = model_create("mlp", 1, 4);
        struct rf__optimizer *optimizer;
        struct rf_error err = {0};
        struct gradients g;
        double *w[32], *m[32], *v[32];
        void *block;
        size_t bytes;
        gradients_open(&g, model);
        assert_int_equal(rf__optimizer_create(&options, model, &optimizer, &err), 0);
        rf__optimizer_state(optimizer, &block, &bytes);
        assert_int_equal(bytes, rf__model_parameters(model) * sizeof(float) * (adamw ? 2 : 1));
        for (int i = 0; i < g.tensors; i++) {
            w[i] = calloc(g.count[i], sizeof(double));
            m[i] = calloc(g.count[i], sizeof(double));
            v[i] = calloc(g.count[i], sizeof(double));
            assert_true(w[i] && m[i] && v[i]);
            for (size_t k = 0; k < g.count[i]; k++) {
                w[i][k] = rf__model_tensor(model, i)->data[k];
            }
        }
        for (int step = 1; step <= 10; step++) {
            for (int i = 0; i < g.tensors; i++) {
                fill(g.of[i], g.count[i], (uint64_t)(step * 100 + i));
                double fade = i % 2 ? 0 : rate * decay;
                for (size_t k = 0; k < g.count[i]; k++) {
                    double x = scale * (double)g.of[i][k];
                    if (adamw) {
                        m[i][k] = 0.9 * m[i][k] + 0.1 * x;
                        v[i][k] = 0.99 * v[i][k] + 0.01 * x * x;
                        double mean = m[i][k] / (1 - pow(0.9, step));
                        double square = v[i][k] / (1 - pow(0.99, step));
                        w[i][k] -= rate * mean / (sqrt(square) + 1e-8) + fade * w[i][k];
                    } else {
                        m[i][k] = 0.8 * m[i][k] + x;
                        w[i][k] -= rate * m[i][k] + fade * w[i][k];
                    }
                }
            }
            rf__optimizer_update(optimizer, model, gradients_read, &g, rate, scale, (uint64_t)step);
        }
        for (int i = 0; i < g.tensors; i++) {
            assert_close(rf__model_tensor(model, i)->data, w[i], g.count[i], 2e-6);
            free(w[i]);
            free(m[i]);
            free(v[i]);
        }
        gradients_close(&g);
        rf__optimizer_destroy(optimizer);
        rf__model_destroy(model);
    }
}

static void sum_of_squares_is_exact_enough(void **state) {
    float x[1003];
    (void)state;
    fill(x, 1003, 1);
    assert_true(rf__sum_of_squares(x, 0) == 0);
    for (size_t count = 1; count <= 1003; count += 167) {
        long double sum = 0;
        for (size_t i = 0; i < count; i++) {
            sum += (long double)x[i] * (long double)x[i];
        }
        assert_true(fabs(rf__sum_of_squares(x, count) / (double)sum - 1) < 1e-14);
    }
    x[500] = NAN;
    assert_true(isnan(rf__sum_of_squares(x, 1003)));
}

static void schedule_values(void **state) {
    (void)state;
    for (uint64_t step = 1; step <= 10; step++) {
        assert_true(fabs(rf__schedule_rate(0.4, step, 10, 110) - 0.04 * (double)step) < 1e-15);
    }
    for (uint64_t step = 10; step <= 110; step++) {
        double wave = 0.5 * (1 + cos(3.14159265358979323846 * (double)(step - 10) / 100));
        assert_true(fabs(rf__schedule_rate(0.4, step, 10, 110) - (0.04 + 0.36 * wave)) < 1e-10);
    }
    assert_true(rf__schedule_rate(0.4, 1, 0, 100) == 0.4);
    assert_true(fabs(rf__schedule_rate(0.4, 100, 0, 100) - 0.04) < 1e-10);
    assert_true(rf__schedule_rate(0.4, 200, 0, 100) == rf__schedule_rate(0.4, 100, 0, 100));
    assert_true(rf__schedule_rate(0.4, 1, 0, 1) == 0.4);
    assert_true(rf__schedule_rate(0.4, 5, 10, 5) == 0.2); /* the warm-up is longer than the run */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linear_is_right),
        cmocka_unit_test(conv_is_right),
        cmocka_unit_test(relu_on_the_way_out),
        cmocka_unit_test(pool_is_right),
        cmocka_unit_test(relu_is_right),
        cmocka_unit_test(rows_keep_every_value),
        cmocka_unit_test(loss_is_right),
        cmocka_unit_test(loss_does_not_overflow),
        cmocka_unit_test(tensors_are_described),
        cmocka_unit_test(initial_values),
        cmocka_unit_test(model_gradients),
        cmocka_unit_test(gradients_are_added),
        cmocka_unit_test(parts_make_the_whole),
        cmocka_unit_test(padding_is_exactly_nothing),
        cmocka_unit_test(ready_last_first),
        cmocka_unit_test(passes_allocate_nothing),
        cmocka_unit_test(runs_are_equal_bit_for_bit),
        cmocka_unit_test(mistakes_are_named),
        cmocka_unit_test(library_errors_name_the_layer),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(mlp_learns_xor),
        cmocka_unit_test(optimizers_follow_their_papers),
        cmocka_unit_test(sum_of_squares_is_exact_enough),
        cmocka_unit_test(schedule_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
