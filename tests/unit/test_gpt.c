/* The gpt model: its kernels, each table of them, against plain formulas in double and central
 * differences of those; the whole model against differences of its own loss; what it promises of
 * dropout, micro-batches, order and memory. Beside PyTorch it is in tests/system/test_gpt_torch.py.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/rng.h"
#include "nn/gpt.h"
#include "nn/kernels.h"
#include "nn/nn.h"

enum { TABLES = 3 };

static const struct rf__kernels *table(int i) {
    const struct rf__kernels *tables[TABLES] = {rf__kernels_plain(), rf__kernels_avx2(),
                                                rf__kernels_avx512()};
    return tables[i];
}

static float *floats(size_t count) {
    float *x = rf__alloc_aligned(count * sizeof *x);
    assert_non_null(x);
    return x;
}

static void fill(float *x, size_t count, uint64_t seed, float size) {
    struct rf__rng rng = rf__rng(seed, 0, 0);
    for (size_t i = 0; i < count; i++) {
        x[i] = size * rf__rng_normal(&rng);
    }
}

static void assert_near(double got, double expected, double tolerance) {
    if (!(fabs(got - expected) <= tolerance)) {
        fail_msg("%.9g, expected %.9g within %g", got, expected, tolerance);
    }
}

static void assert_all_near(const float *got, const float *expected, size_t count,
                            double tolerance) {
    double size = 1e-30;
    for (size_t i = 0; i < count; i++) {
        size = fmax(size, fabs((double)expected[i]));
    }
    for (size_t i = 0; i < count; i++) {
        assert_near((double)got[i], (double)expected[i], tolerance * size);
    }
}

/* The derivative of objective(context) by *x, by central differences in double. */
static double slope(double (*objective)(const void *context), const void *context, double *x) {
    const double kept = *x, step = 1e-5 * fmax(1, fabs(kept));
    *x = kept + step;
    double above = objective(context);
    *x = kept - step;
    double below = objective(context);
    *x = kept;
    return (above - below) / (2 * step);
}

/* --- layer norm --- */

enum { NORM_ROWS = 3, NORM_WIDTH = 70 };

struct norm_case {
    size_t width;
    double x[NORM_ROWS * NORM_WIDTH], gain[NORM_WIDTH], shift[NORM_WIDTH];
    double factor[NORM_ROWS * NORM_WIDTH]; /* the objective is the sum of factor x y */
    double y[NORM_ROWS * NORM_WIDTH];
};

static void norm_reference(struct norm_case *c) {
    for (size_t r = 0; r < NORM_ROWS; r++) {
        const double *x = c->x + r * c->width;
        double mean = 0, variance = 0;
        for (size_t i = 0; i < c->width; i++) {
            mean += x[i] / (double)c->width;
        }
        for (size_t i = 0; i < c->width; i++) {
            variance += (x[i] - mean) * (x[i] - mean) / (double)c->width;
        }
        for (size_t i = 0; i < c->width; i++) {
            c->y[r * c->width + i] =
                (x[i] - mean) / sqrt(variance + 1e-5) * c->gain[i] + c->shift[i];
        }
    }
}

static double norm_objective(const void *context) {
    struct norm_case c = *(const struct norm_case *)context;
    double sum = 0;
    norm_reference(&c);
    for (size_t i = 0; i < NORM_ROWS * c.width; i++) {
        sum += c.factor[i] * c.y[i];
    }
    return sum;
}

static void check_norm(const struct rf__kernels *k, size_t width, bool bias) {
    const size_t count = NORM_ROWS * width;
    float before[NORM_ROWS * NORM_WIDTH], delta[NORM_ROWS * NORM_WIDTH], add[NORM_WIDTH];
    float x[NORM_ROWS * NORM_WIDTH], y[NORM_ROWS * NORM_WIDTH], again[NORM_ROWS * NORM_WIDTH];
    float gain[NORM_WIDTH], shift[NORM_WIDTH], mean[NORM_ROWS], scale[NORM_ROWS];
    float dy[NORM_ROWS * NORM_WIDTH], dx[NORM_ROWS * NORM_WIDTH];
    float dgain[NORM_WIDTH], dshift[NORM_WIDTH];
    struct norm_case c = {.width = width};
    fill(before, count, 1, 2);
    fill(delta, count, 2, 1);
    fill(add, width, 3, 1);
    fill(gain, width, 4, 1);
    fill(shift, width, 5, 1);
    fill(dy, count, 6, 1);
    for (size_t i = 0; i < count; i++) {
        float sum = before[i] + (bias ? delta[i] + add[i % width] : delta[i]);
        c.x[i] = sum;
        c.factor[i] = dy[i];
        dx[i] = 1;
    }
    for (size_t i = 0; i < width; i++) {
        c.gain[i] = gain[i];
        c.shift[i] = shift[i];
        dgain[i] = 1;
        dshift[i] = 2;
    }
    struct rf__norm norm = {.rows = NORM_ROWS,
                            .width = width,
                            .before = before,
                            .delta = delta,
                            .bias = bias ? add : NULL,
                            .x = x,
                            .gain = gain,
                            .shift = shift,
                            .mean = mean,
                            .scale = scale,
                            .y = y};
    struct rf__norm_gradients gradients = {
        .dy = dy, .dx = dx, .add = true, .gain = dgain, .shift = dshift};
    k->norm(&norm);
    norm_reference(&c);
    norm.y = again;
    norm.before = x;
    norm.delta = NULL;
    k->norm_again(&norm);
    assert_memory_equal(y, again, count * sizeof *y);
    k->norm_backward(&norm, &gradients);
    for (size_t i = 0; i < count; i++) {
        assert_near((double)x[i], c.x[i], 0);
        assert_near((double)y[i], c.y[i], 2e-5);
        assert_near((double)dx[i] - 1, slope(norm_objective, &c, &c.x[i]), 1e-4);
    }
    for (size_t i = 0; i < width; i++) {
        assert_near((double)dgain[i] - 1, slope(norm_objective, &c, &c.gain[i]), 1e-4);
        assert_near((double)dshift[i] - 2, slope(norm_objective, &c, &c.shift[i]), 1e-4);
    }
    gradients.add = false;
    memcpy(again, dx, count * sizeof *dx);
    k->norm_backward(&norm, &gradients);
    for (size_t i = 0; i < count; i++) {
        assert_near((double)dx[i], (double)again[i] - 1, 1e-6 * fmax(1, fabs((double)again[i])));
    }
}

static void norm_is_right(void **state) {
    static const size_t widths[] = {4, 5, 16, 37, 64, NORM_WIDTH};
    (void)state;
    for (int t = 0; t < TABLES; t++) {
        for (size_t i = 0; table(t) && i < sizeof widths / sizeof widths[0]; i++) {
            check_norm(table(t), widths[i], false);
            check_norm(table(t), widths[i], true);
        }
    }
}

/* --- GELU --- */

static double gelu_reference(double x) {
    return 0.5 * x * (1 + tanh(sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
}

static double gelu_objective(const void *context) {
    return gelu_reference(*(const double *)context);
}

static void gelu_is_right(void **state) {
    enum { ROWS = 11, WIDTH = 187 };
    float x[ROWS * WIDTH], y[ROWS * WIDTH], d[ROWS * WIDTH], bias[WIDTH];
    (void)state;
    for (int t = 0; t < TABLES; t++) {
        const struct rf__kernels *k = table(t);
        double sums[WIDTH] = {0};
        if (!k) {
            continue;
        }
        for (int i = 0; i < ROWS * WIDTH; i++) {
            x[i] = (float)(i - ROWS * WIDTH / 2) / 100.0f;
            d[i] = (float)(i % 3 + 1);
        }
        x[0] = -1e4f;
        x[ROWS * WIDTH - 1] = 1e4f;
        memset(bias, 0, sizeof bias);
        k->gelu(x, y, ROWS * WIDTH);
        float kept[ROWS * WIDTH];
        memcpy(kept, x, sizeof x);
        k->gelu_backward(x, d, bias, ROWS, WIDTH);
        assert_memory_equal(x, y, sizeof x);
        for (int i = 0; i < ROWS * WIDTH; i++) {
            double at = kept[i], by = slope(gelu_objective, &at, &at) * (i % 3 + 1);
            assert_near((double)y[i], gelu_reference(at), 4e-7 * fmax(1, fabs(at)));
            assert_near((double)d[i], by, 2e-6 * fmax(1, fabs(by)));
            sums[i % WIDTH] += by;
        }
        for (int i = 0; i < WIDTH; i++) {
            assert_near((double)bias[i], sums[i], 2e-5);
        }
    }
}

/* --- the loss --- */

struct loss_case {
    size_t classes, label;
    double logits[300];
};

static double loss_reference(const void *context) {
    const struct loss_case *c = context;
    double most = -HUGE_VAL, sum = 0;
    for (size_t i = 0; i < c->classes; i++) {
        most = fmax(most, c->logits[i]);
    }
    for (size_t i = 0; i < c->classes; i++) {
        sum += exp(c->logits[i] - most);
    }
    return log(sum) + most - c->logits[c->label];
}

static void check_loss(const struct rf__kernels *k, size_t classes, float size) {
    struct loss_case c = {.classes = classes, .label = classes / 2};
    float logits[300];
    size_t top = 0;
    bool right;
    fill(logits, classes, classes, size);
    for (size_t i = 0; i < classes; i++) {
        c.logits[i] = logits[i];
        top = logits[i] > logits[top] ? i : top;
    }
    double loss = k->loss(logits, classes, c.label, &right);
    assert_near(loss, loss_reference(&c), 1e-6 * fmax(1, loss_reference(&c)));
    assert_int_equal(right, top == c.label);
    for (size_t i = 0; i < classes; i++) {
        assert_near((double)logits[i], slope(loss_reference, &c, &c.logits[i]), 2e-6);
    }
    for (size_t i = 0; i < classes; i++) {
        logits[i] = (float)c.logits[i];
    }
    k->loss(logits, classes, top, &right);
    assert_true(right);
}

static void loss_is_right(void **state) {
    static const size_t classes[] = {1, 2, 5, 16, 65, 257, 300};
    (void)state;
    for (int t = 0; t < TABLES; t++) {
        for (size_t i = 0; table(t) && i < sizeof classes / sizeof classes[0]; i++) {
            check_loss(table(t), classes[i], 1);
            check_loss(table(t), classes[i], 30);
        }
    }
}

/* --- attention --- */

struct attention_case {
    size_t rows, width;
    double *qkv;    /* three times rows x width */
    double *out;    /* rows x width */
    double *factor; /* rows x width: the objective is the sum of factor x out */
    float *mask;    /* rows x rows */
};

static void attention_reference(const struct attention_case *c) {
    const double *q = c->qkv, *k = q + c->rows * c->width, *v = k + c->rows * c->width;
    double *share = calloc(c->rows, sizeof *share);
    assert_non_null(share);
    for (size_t r = 0; r < c->rows; r++) {
        double sum = 0, most = -HUGE_VAL, *out = c->out + r * c->width;
        for (size_t s = 0; s <= r; s++) {
            share[s] = 0;
            for (size_t i = 0; i < c->width; i++) {
                share[s] += q[r * c->width + i] * k[s * c->width + i] / sqrt((double)c->width);
            }
            most = fmax(most, share[s]);
        }
        for (size_t s = 0; s <= r; s++) {
            share[s] = exp(share[s] - most);
            sum += share[s];
        }
        memset(out, 0, c->width * sizeof *out);
        for (size_t s = 0; s <= r; s++) {
            double by = share[s] / sum * (double)c->mask[r * c->rows + s];
            for (size_t i = 0; i < c->width; i++) {
                out[i] += by * v[s * c->width + i];
            }
        }
    }
    free(share);
}

static double attention_objective(const void *context) {
    const struct attention_case *c = context;
    double sum = 0;
    attention_reference(c);
    for (size_t i = 0; i < c->rows * c->width; i++) {
        sum += c->factor[i] * c->out[i];
    }
    return sum;
}

static void check_attention(const struct rf__kernels *k, size_t rows, size_t width, double rate) {
    const size_t stride = 3 * width + 5, out_stride = width + 2, count = rows * width;
    struct attention_case c = {.rows = rows,
                               .width = width,
                               .qkv = calloc(3 * count, sizeof(double)),
                               .out = calloc(count, sizeof(double)),
                               .factor = calloc(count, sizeof(double)),
                               .mask = floats(rows * rows)};
    assert_true(c.qkv && c.out && c.factor);
    float *qkv = floats(rows * stride), *dqkv = floats(rows * stride);
    float *out = floats(rows * out_stride), *dout = floats(rows * out_stride);
    float *logs = floats(rows), *ones = floats(rows * rows);
    struct rf__attention a = {.rows = rows,
                              .width = width,
                              .q = qkv,
                              .k = qkv + width,
                              .v = qkv + 2 * width,
                              .stride = stride,
                              .out = out,
                              .out_stride = out_stride,
                              .logs = logs,
                              .dout = dout,
                              .dq = dqkv,
                              .dk = dqkv + width,
                              .dv = dqkv + 2 * width,
                              .drop = {.key = 0x123456789abcdefu + rows,
                                       .below = (uint32_t)(rate * 0x1p32),
                                       .scale = (float)(1 / (1 - rate))},
                              .scratch = floats(rf__attention_scratch(rows, width))};
    fill(qkv, rows * stride, 1, 1.5f);
    fill(dout, rows * out_stride, 2, 1);
    fill(a.scratch, rf__attention_scratch(rows, width), 3, 1e6f); /* nothing is taken for zero */
    for (size_t i = 0; i < rows * rows; i++) {
        ones[i] = 1;
    }
    k->drop(&a.drop, ones, NULL, c.mask, rows, rows);
    for (size_t r = 0; r < rows; r++) {
        for (size_t i = 0; i < width; i++) {
            for (size_t part = 0; part < 3; part++) {
                c.qkv[part * count + r * width + i] = qkv[r * stride + part * width + i];
            }
            c.factor[r * width + i] = dout[r * out_stride + i];
        }
    }
    k->attention(&a);
    k->attention_backward(&a);
    attention_reference(&c);
    for (size_t i = 0; i < count; i++) {
        assert_near((double)out[i / width * out_stride + i % width], c.out[i], 1e-5);
    }
    /* All differences of a small one, some of a large one. */
    struct rf__rng rng = rf__rng(9, rows, width);
    size_t all = 3 * count, tries = all < 200 ? all : 60;
    for (size_t n = 0; n < tries; n++) {
        size_t at = all < 200 ? n : (size_t)rf__rng_below(&rng, all);
        size_t part = at / count, r = at % count / width, i = at % width;
        assert_near((double)dqkv[r * stride + part * width + i],
                    slope(attention_objective, &c, &c.qkv[at]), 2e-5);
    }
    float *blocks[] = {qkv, dqkv, out, dout, logs, ones, a.scratch, c.mask};
    for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++) {
        rf__free(blocks[i]);
    }
    free(c.qkv);
    free(c.out);
    free(c.factor);
}

static void attention_is_right(void **state) {
    static const size_t rows[] = {1, 2, 9, 63, 64, 65, 130}, widths[] = {1, 5, 16, 33, 48};
    (void)state;
    for (int t = 0; t < TABLES; t++) {
        for (size_t i = 0; table(t) && i < sizeof rows / sizeof rows[0]; i++) {
            for (size_t w = 0; w < sizeof widths / sizeof widths[0]; w++) {
                check_attention(table(t), rows[i], widths[w], 0);
                check_attention(table(t), rows[i], widths[w], 0.3);
            }
        }
    }
}

/* Scores of thousands: no exponential overflows, and the largest takes all. */
static void attention_of_large_scores(void **state) {
    enum { ROWS = 100, WIDTH = 4 };
    float qkv[ROWS * 3 * WIDTH], out[ROWS * WIDTH], logs[ROWS];
    (void)state;
    for (int t = 0; t < TABLES; t++) {
        for (int r = 0; r < ROWS; r++) {
            for (int i = 0; i < WIDTH; i++) {
                qkv[r * 3 * WIDTH + i] = 100;
                qkv[r * 3 * WIDTH + WIDTH + i] = (float)(r % 70);
                qkv[r * 3 * WIDTH + 2 * WIDTH + i] = (float)r;
            }
        }
        struct rf__attention a = {.rows = ROWS,
                                  .width = WIDTH,
                                  .q = qkv,
                                  .k = qkv + WIDTH,
                                  .v = qkv + 2 * WIDTH,
                                  .stride = 3 * WIDTH,
                                  .out = out,
                                  .out_stride = WIDTH,
                                  .logs = logs,
                                  .scratch = floats(rf__attention_scratch(ROWS, WIDTH))};
        for (int r = 0; table(t) && r < ROWS; r++) {
            if (r == 0) {
                table(t)->attention(&a);
            }
            assert_near((double)out[r * WIDTH], r < 70 ? r : 69, 1e-4);
        }
        rf__free(a.scratch);
    }
}

/* --- dropout and bf16 --- */

static void dropout_keeps_its_share(void **state) {
    enum { ROWS = 200, WIDTH = 501, COUNT = ROWS * WIDTH };
    static const double rates[] = {0.1, 0.5, 0.9};
    float *x = floats(COUNT), *y = floats(COUNT), *z = floats(COUNT), *first = floats(COUNT);
    (void)state;
    for (size_t i = 0; i < COUNT; i++) {
        x[i] = 1;
    }
    for (int t = 0; t < TABLES; t++) {
        for (size_t i = 0; table(t) && i < sizeof rates / sizeof rates[0]; i++) {
            const double rate = rates[i], spread = sqrt(rate * (1 - rate) / COUNT);
            struct rf__drop d = {.key = 77 + i,
                                 .below = (uint32_t)(rate * 0x1p32),
                                 .scale = (float)(1 / (1 - rate))};
            size_t kept = 0, both = 0, neighbours = 0;
            table(t)->drop(&d, x, NULL, y, ROWS, WIDTH);
            d.key ^= (uint64_t)1 << 40;
            table(t)->drop(&d, x, NULL, z, ROWS, WIDTH);
            for (size_t n = 0; n < COUNT; n++) {
                assert_true(y[n] == 0.0f || y[n] == d.scale);
                kept += y[n] > 0;
                both += y[n] > 0 && z[n] > 0;
                neighbours += n > 0 && y[n] > 0 && y[n - 1] > 0;
            }
            assert_near((double)kept / COUNT, 1 - rate, 5 * spread);
            assert_near((double)both / COUNT, (1 - rate) * (1 - rate), 5 * spread);
            assert_near((double)neighbours / COUNT, (1 - rate) * (1 - rate), 8 * spread);
            if (i == 0) {
                if (t == 0) {
                    memcpy(first, y, COUNT * sizeof *y);
                }
                assert_memory_equal(first, y, COUNT * sizeof *y); /* whatever the instructions */
            }
        }
    }
    rf__free(x);
    rf__free(y);
    rf__free(z);
    rf__free(first);
}

static void bf16_rounds(void **state) {
    static const struct {
        float x;
        uint16_t bits;
    } cases[] = {{0.0f, 0},
                 {-0.0f, 0x8000},
                 {1.0f, 0x3f80},
                 {0x1.01p0f, 0x3f80},     /* halfway: to even */
                 {0x1.03p0f, 0x3f82},     /* halfway: to even, up */
                 {0x1.010002p0f, 0x3f81}, /* above halfway */
                 {-3.0f, 0xc040},
                 {0x1.fffffep127f, 0x7f80}, /* to infinity */
                 {INFINITY, 0x7f80},
                 {NAN, 0x7fc0}};
    (void)state;
    for (int t = 0; t < TABLES; t++) {
        for (size_t i = 0; table(t) && i < sizeof cases / sizeof cases[0]; i++) {
            float x[40];
            uint16_t y[40];
            for (int n = 0; n < 40; n++) {
                x[n] = cases[i].x;
            }
            table(t)->to_bf16(x, y, 40);
            assert_int_equal(y[0] & 0x7fff, cases[i].bits & 0x7fff);
            for (int n = 0; n < 40; n++) {
                assert_int_equal(y[n], y[0]);
            }
        }
    }
}

/* --- the model --- */

enum { TENSORS = 80 };

struct world {
    struct rf__model *model;
    struct rf__model_options options;
    float *gradients[TENSORS];
    float *when_ready[TENSORS];
    int order[TENSORS], told, stop_after; /* stop_after: 0: never */
    bool fresh[TENSORS];                  /* what stands in the gradient counts for nothing */
    uint32_t tokens[4096];
    uint64_t samples[64];
};

static float *world_grad(void *context, int index, bool *fresh) {
    struct world *w = context;
    if (fresh) {
        *fresh = w->fresh[index];
    } else if (w->fresh[index]) {
        memset(w->gradients[index], 0, rf__model_tensor(w->model, index)->count * sizeof(float));
    }
    w->fresh[index] = false;
    return w->gradients[index];
}

static const float *world_average(void *context, int index) {
    return ((struct world *)context)->gradients[index];
}

static int world_ready(void *context, int index) {
    struct world *w = context;
    assert_true(w->told < TENSORS);
    w->order[w->told++] = index;
    memcpy(w->when_ready[index], w->gradients[index],
           rf__model_tensor(w->model, index)->count * sizeof(float));
    return w->told == w->stop_after ? -77 : 0;
}

static const struct rf__model_options tiny = {
    .name = "gpt",
    .batch = 5,
    .seed = 3,
    .gpt = {.depth = 2, .width = 12, .heads = 3, .context = 7, .vocabulary = 11}};

static struct world *world_open(const struct rf__model_options *options) {
    struct rf_error err = {0};
    struct world *w = rf__alloc(1, sizeof *w);
    struct rf__rng rng = rf__rng(5, 0, 0);
    assert_non_null(w);
    w->options = *options;
    if (rf__model_create(options, &w->model, &err)) {
        fail_msg("%s", err.text);
    }
    assert_true(rf__model_takes_tokens(w->model));
    assert_true(rf__model_tensors(w->model) <= TENSORS);
    for (int i = 0; i < rf__model_tensors(w->model); i++) {
        w->gradients[i] = floats(rf__model_tensor(w->model, i)->count);
        w->when_ready[i] = floats(rf__model_tensor(w->model, i)->count);
    }
    size_t count = (size_t)options->batch * (size_t)(options->gpt.context + 1);
    assert_true(count <= sizeof w->tokens / sizeof w->tokens[0]);
    for (size_t i = 0; i < count; i++) {
        w->tokens[i] = (uint32_t)rf__rng_below(&rng, (uint64_t)options->gpt.vocabulary);
    }
    for (size_t i = 0; i < 64; i++) {
        w->samples[i] = 1000 + i;
    }
    return w;
}

static void world_close(struct world *w) {
    for (int i = 0; i < rf__model_tensors(w->model); i++) {
        rf__free(w->gradients[i]);
        rf__free(w->when_ready[i]);
    }
    rf__model_destroy(w->model);
    rf__free(w);
}

static void world_clear(struct world *w) {
    for (int i = 0; i < rf__model_tensors(w->model); i++) {
        memset(w->gradients[i], 0, rf__model_tensor(w->model, i)->count * sizeof(float));
    }
}

/* Samples first … first + count; gradients are added. */
static double world_pass(struct world *w, int first, int count, uint64_t step) {
    struct rf_error err = {0};
    size_t each = (size_t)(w->options.gpt.context + 1);
    struct rf__token_batch batch = {.tokens = w->tokens + (size_t)first * each,
                                    .count = count,
                                    .step = step,
                                    .samples = w->samples + first};
    struct rf__model_sink sink = {.grad = world_grad, .ready = world_ready, .context = w};
    double loss = -1;
    w->told = 0;
    if (rf__model_pass(w->model, &batch, &sink, &loss, NULL, &err)) {
        fail_msg("%s", err.text);
    }
    return loss;
}

static double world_loss(struct world *w, int64_t *correct) {
    struct rf_error err = {0};
    struct rf__token_batch batch = {
        .tokens = w->tokens, .count = w->options.batch, .samples = w->samples};
    double loss = -1;
    if (rf__model_pass(w->model, &batch, NULL, &loss, correct, &err)) {
        fail_msg("%s", err.text);
    }
    return loss;
}

static double norm_of(const float *x, size_t count) {
    return sqrt(rf__sum_of_squares(x, count));
}

/* Along its own gradient the loss rises by the gradient's length, for each tensor: differences of
 * the loss of the model itself, with dropout or without. */
static void check_directions(double dropout) {
    struct rf__model_options options = tiny;
    options.gpt.dropout = dropout;
    struct world *w = world_open(&options);
    for (int i = 0; i < rf__model_tensors(w->model); i++) {
        /* Away from the start, where some gradients all but vanish. */
        const struct rf__tensor *t = rf__model_tensor(w->model, i);
        float *noise = floats(t->count);
        fill(noise, t->count, (uint64_t)i, 0.3f);
        for (size_t k = 0; k < t->count; k++) {
            t->data[k] += noise[k];
        }
        rf__free(noise);
    }
    for (int i = 0; i < rf__model_tensors(w->model); i++) {
        const struct rf__tensor *t = rf__model_tensor(w->model, i);
        float *kept = floats(t->count), *direction = floats(t->count);
        double loss[2], length;
        memcpy(kept, t->data, t->count * sizeof *kept);
        world_clear(w);
        world_pass(w, 0, 5, 9);
        length = norm_of(w->gradients[i], t->count);
        assert_true(length > 1e-3);
        memcpy(direction, w->gradients[i], t->count * sizeof *kept);
        const double step = 3e-3;
        for (int side = 0; side < 2; side++) {
            for (size_t k = 0; k < t->count; k++) {
                double by = (side ? step : -step) * (double)direction[k] / length;
                t->data[k] = (float)((double)kept[k] + by);
            }
            loss[side] = world_pass(w, 0, 5, 9);
        }
        memcpy(t->data, kept, t->count * sizeof *kept);
        double found = (loss[1] - loss[0]) / (2 * step);
        if (fabs(found - length) > 1e-2 * length + 5e-3) {
            fail_msg("%s: the loss rises by %g, its gradient is %g", t->name, found, length);
        }
        rf__free(kept);
        rf__free(direction);
    }
    world_close(w);
}

static void gradients_are_those_of_the_loss(void **state) {
    (void)state;
    check_directions(0);
    check_directions(0.2);
}

static void starts_as_gpt2(void **state) {
    struct rf__model_options options = tiny;
    (void)state;
    options.gpt = (struct rf__gpt_options){
        .depth = 3, .width = 64, .heads = 2, .context = 33, .vocabulary = 101};
    struct world *w = world_open(&options);
    assert_int_equal(rf__model_tensors(w->model), 4 + 12 * 3);
    size_t parameters = 0;
    for (int i = 0; i < rf__model_tensors(w->model); i++) {
        const struct rf__tensor *t = rf__model_tensor(w->model, i);
        double square = rf__sum_of_squares(t->data, t->count) / (double)t->count;
        double expected = strstr(t->name, "c_proj.weight") ? 0.02 / sqrt(6) : 0.02;
        assert_int_equal(t->decay, t->dims > 1);
        if (t->dims > 1) {
            assert_near(sqrt(square) / expected, 1, 5 / sqrt(2.0 * (double)t->count));
        } else {
            assert_near(square, strstr(t->name, ".bias") ? 0 : 1, 0);
        }
        parameters += t->count;
    }
    assert_int_equal(parameters, rf__model_parameters(w->model));
    assert_int_equal(parameters, (101 + 33) * 64 + 3 * (12 * 64 * 64 + 13 * 64) + 2 * 64);
    assert_string_equal(rf__model_tensor(w->model, 0)->name, "wte.weight");
    assert_string_equal(rf__model_tensor(w->model, 1)->name, "wpe.weight");
    const struct rf__tensor *fc =
        rf__model_tensor(w->model, rf__gpt_block_tensor(2, RF__GPT_FC_WEIGHT));
    assert_string_equal(fc->name, "h.2.mlp.c_fc.weight");
    assert_int_equal(fc->shape[0], 64);
    assert_int_equal(fc->shape[1], 256);
    assert_string_equal(rf__model_tensor(w->model, 39)->name, "ln_f.bias");
    /* Nothing is known yet: every token is about as likely as any other. */
    double tokens = 5.0 * 33;
    assert_near(world_loss(w, NULL) / tokens, log(101), 0.05);
    world_close(w);
}

static void same_seed_same_bits(void **state) {
    struct rf__model_options options = tiny;
    (void)state;
    options.gpt.dropout = 0.1;
    struct world *a = world_open(&options), *b = world_open(&options);
    options.seed++;
    struct world *c = world_open(&options);
    double loss = world_pass(a, 0, 5, 4);
    assert_true(loss == world_pass(b, 0, 5, 4));
    assert_true(loss != world_pass(c, 0, 5, 4));
    for (int i = 0; i < rf__model_tensors(a->model); i++) {
        const struct rf__tensor *t = rf__model_tensor(a->model, i);
        assert_memory_equal(t->data, rf__model_tensor(b->model, i)->data, t->count * sizeof(float));
        assert_memory_equal(a->gradients[i], b->gradients[i], t->count * sizeof(float));
        if (t->dims > 1) {
            assert_memory_not_equal(t->data, rf__model_tensor(c->model, i)->data,
                                    t->count * sizeof(float));
        }
    }
    world_close(a);
    world_close(b);
    world_close(c);
}

/* With dropout: what is dropped goes by the sample's number and the step, not by the micro-batch.
 */
static void micro_batches_add_up(void **state) {
    struct rf__model_options options = tiny;
    (void)state;
    options.gpt.dropout = 0.2;
    struct world *whole = world_open(&options), *parts = world_open(&options);
    double loss = world_pass(whole, 0, 5, 8);
    double sum = world_pass(parts, 3, 2, 8) + world_pass(parts, 0, 3, 8);
    assert_near(sum, loss, 1e-5 * loss);
    for (int i = 0; i < rf__model_tensors(whole->model); i++) {
        assert_all_near(parts->gradients[i], whole->gradients[i],
                        rf__model_tensor(whole->model, i)->count, 1e-5);
    }
    assert_true(fabs(world_pass(whole, 0, 5, 9) - loss) > 1e-4); /* another step */
    for (int i = 0; i < 5; i++) {
        whole->samples[i] += 50;
    }
    assert_true(fabs(world_pass(whole, 0, 5, 8) - loss) > 1e-4); /* other samples */
    world_close(whole);
    world_close(parts);
}

static void measuring_drops_nothing(void **state) {
    struct rf__model_options options = tiny;
    int64_t correct = -1;
    (void)state;
    struct world *plain = world_open(&options);
    options.gpt.dropout = 0.5;
    struct world *dropping = world_open(&options);
    double loss = world_loss(plain, &correct);
    assert_true(correct >= 0 && correct <= 35);
    assert_true(loss == world_loss(dropping, NULL));
    assert_near(world_pass(plain, 0, 5, 1), loss, 0);
    assert_true(fabs(world_pass(dropping, 0, 5, 1) - loss) > 1e-4);
    world_close(plain);
    world_close(dropping);
}

static void check_last_first_and_complete(const struct rf__model_options *options) {
    struct world *w = world_open(options);
    int tensors = rf__model_tensors(w->model);
    for (int i = 0; i < tensors; i++) {
        for (size_t k = 0; k < rf__model_tensor(w->model, i)->count; k++) {
            w->gradients[i][k] = 1; /* is added to */
        }
    }
    world_pass(w, 0, options->batch, 0);
    assert_int_equal(w->told, tensors);
    for (int i = 0; i < tensors; i++) {
        size_t count = rf__model_tensor(w->model, i)->count;
        assert_int_equal(w->order[i], tensors - 1 - i);
        assert_memory_equal(w->when_ready[i], w->gradients[i], count * sizeof(float));
    }
    struct world *zero = world_open(options);
    world_pass(zero, 0, options->batch, 0);
    for (int i = 0; i < tensors; i++) {
        size_t count = rf__model_tensor(w->model, i)->count;
        for (size_t k = 0; k < count; k++) {
            assert_near((double)w->gradients[i][k], (double)zero->gradients[i][k] + 1,
                        1e-5 * fmax(1, fabs((double)zero->gradients[i][k])));
        }
    }
    world_close(zero);
    world_close(w);
}

static void last_tensor_first_and_complete(void **state) {
    (void)state;
    struct rf__model_options in_chunks = tiny; /* of one sample each */
    in_chunks.batch = 3;
    in_chunks.gpt.context = 300;
    check_last_first_and_complete(&tiny);
    check_last_first_and_complete(&in_chunks);
}

static void a_sink_may_end_the_pass(void **state) {
    (void)state;
    for (int after = 1; after <= 28; after++) {
        struct world *w = world_open(&tiny);
        struct rf_error err = {0};
        struct rf__token_batch batch = {.tokens = w->tokens, .count = 5};
        struct rf__model_sink sink = {.grad = world_grad, .ready = world_ready, .context = w};
        double loss;
        w->stop_after = after;
        assert_int_equal(rf__model_pass(w->model, &batch, &sink, &loss, NULL, &err), -77);
        assert_int_equal(err.code, 0);
        assert_int_equal(w->told, after);
        world_close(w);
    }
}

/* Whoever may write over what is there never reads it. */
static void fresh_gradients_are_written(void **state) {
    (void)state;
    for (int compute = RF__COMPUTE_F32; compute <= RF__COMPUTE_BF16; compute++) {
        struct rf__model_options options = tiny;
        options.gpt.compute = (enum rf__compute)compute;
        if (compute == RF__COMPUTE_BF16 && !rf__model_has_bf16()) {
            continue;
        }
        struct world *fresh = world_open(&options), *zero = world_open(&options);
        for (int i = 0; i < rf__model_tensors(fresh->model); i++) {
            fresh->fresh[i] = true;
            for (size_t k = 0; k < rf__model_tensor(fresh->model, i)->count; k++) {
                fresh->gradients[i][k] = NAN;
            }
        }
        for (int step = 0; step < 2; step++) { /* the second is added to the first */
            world_pass(fresh, 0, 5, 0);
            world_pass(zero, 0, 5, 0);
        }
        for (int i = 0; i < rf__model_tensors(fresh->model); i++) {
            assert_all_near(fresh->gradients[i], zero->gradients[i],
                            rf__model_tensor(fresh->model, i)->count, 1e-6);
        }
        world_close(fresh);
        world_close(zero);
    }
}

/* The logits of all positions would be 103 MB. */
static void a_large_vocabulary_takes_little(void **state) {
    struct rf__model_options options = {
        .name = "gpt",
        .batch = 8,
        .gpt = {.depth = 1, .width = 8, .heads = 2, .context = 64, .vocabulary = 50257}};
    (void)state;
    struct world *w = world_open(&options);
    double whole = 8.0 * 64 * 50257 * sizeof(float);
    assert_true((double)rf__model_activation_bytes(w->model) < whole / 2);
    double loss = world_pass(w, 0, 8, 0);
    assert_near(loss / (8 * 64), log(50257), 0.05);
    /* In slices or not, the same: the first samples, of which one slice holds all. */
    struct world *few = world_open(&options);
    double sum = 0;
    for (int i = 0; i < 8; i += 2) {
        sum += world_pass(few, i, 2, 0);
    }
    assert_near(sum, loss, 1e-5 * loss);
    assert_all_near(few->gradients[0], w->gradients[0], 50257 * 8, 1e-5);
    world_close(few);
    world_close(w);
}

/* Activations are what the head of gpt.c says they are, and no more than a little for products. */
static void activations_are_as_planned(void **state) {
    struct rf__model_options options = {
        .name = "gpt",
        .batch = 4,
        .gpt = {.depth = 6, .width = 64, .heads = 4, .context = 128, .vocabulary = 65}};
    (void)state;
    struct world *w = world_open(&options);
    size_t positions = 4 * 128, width = 64;
    size_t block = positions * (10 * width + 4 + 4);
    size_t chunk = 4 * 128;
    size_t between = positions * (width + 2 + 2 * width) + chunk * (5 * width + 65);
    double planned = (double)(6 * block + between) * sizeof(float);
    double reported = (double)rf__model_activation_bytes(w->model);
    assert_true(reported >= planned);
    assert_true(reported < 1.2 * planned);
    world_close(w);
}

static void mistakes_are_named(void **state) {
    static const struct {
        struct rf__gpt_options gpt;
        int batch, code;
        const char *text;
    } cases[] = {
        {{0, 12, 3, 7, 11, 0, RF__COMPUTE_F32}, 1, RF_EINVAL, "depth must be 1"},
        {{1, 12, 5, 7, 11, 0, RF__COMPUTE_F32}, 1, RF_EINVAL, "width of 12"},
        {{1, 12, 3, 40000, 11, 0, RF__COMPUTE_F32}, 1, RF_EINVAL, "context must be 1"},
        {{1, 12, 3, 7, 0, 0, RF__COMPUTE_F32}, 1, RF_EINVAL, "vocabulary must be 1"},
        {{1, 12, 3, 7, 11, 1, RF__COMPUTE_F32}, 1, RF_EINVAL, "dropout must be"},
        {{1, 12, 3, 7, 11, NAN, RF__COMPUTE_F32}, 1, RF_EINVAL, "dropout must be"},
        {{1, 12, 3, 7, 11, 0, RF__COMPUTE_F32}, 0, RF_EINVAL, "batch must be 1"},
        {{1, 12, 3, 32768, 11, 0, RF__COMPUTE_F32}, 60000, RF_ELIMIT, "positions"},
    };
    struct rf_error err = {0};
    struct rf__model *model;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct rf__model_options options = {
            .name = "gpt", .batch = cases[i].batch, .gpt = cases[i].gpt};
        assert_int_equal(rf__model_create(&options, &model, &err), cases[i].code);
        assert_null(model);
        assert_non_null(strstr(err.text, cases[i].text));
    }
    struct world *w = world_open(&tiny);
    struct rf__token_batch batch = {.tokens = w->tokens, .count = 6};
    double loss;
    assert_int_equal(rf__model_pass(w->model, &batch, NULL, &loss, NULL, &err), RF_EINVAL);
    assert_non_null(strstr(err.text, "a micro-batch of 6 samples; the model takes 1 … 5"));
    batch.count = 2;
    w->tokens[8 + 7] = 11; /* only ever a label */
    assert_int_equal(rf__model_pass(w->model, &batch, NULL, &loss, NULL, &err), RF_EDATA);
    assert_non_null(strstr(err.text, "sample 1 of a micro-batch has token 11 at position 7"));
    world_close(w);
}

static void bf16_where_there_is_bf16(void **state) {
    struct rf__model_options options = {
        .name = "gpt",
        .batch = 4,
        .gpt = {.depth = 2, .width = 64, .heads = 4, .context = 40, .vocabulary = 65}};
    (void)state;
    struct world *exact = world_open(&options);
    double loss = world_pass(exact, 0, 4, 0);
    options.gpt.compute = RF__COMPUTE_BF16;
    if (!rf__model_has_bf16()) {
        struct rf_error err = {0};
        struct rf__model *model;
        assert_int_equal(rf__model_create(&options, &model, &err), RF_EUNSUPPORTED);
        assert_non_null(strstr(err.text, "AVX512-BF16 or AMX"));
    } else {
        struct world *w = world_open(&options);
        assert_near(world_pass(w, 0, 4, 0), loss, 1e-3 * loss);
        for (int i = 0; i < rf__model_tensors(w->model); i++) {
            size_t count = rf__model_tensor(w->model, i)->count;
            double length = norm_of(exact->gradients[i], count), sum = 0;
            for (size_t k = 0; k < count; k++) {
                sum += (double)w->gradients[i][k] * (double)exact->gradients[i][k];
            }
            /* The same direction; exactly the same numbers would mean that nothing was rounded. */
            assert_true(sum > 0.98 * length * norm_of(w->gradients[i], count));
            assert_memory_not_equal(w->gradients[i], exact->gradients[i], count * sizeof(float));
        }
        world_close(w);
    }
    world_close(exact);
}

/* It learns a pattern by heart: all that stands between gradient and parameters is there. */
static void it_learns(void **state) {
    struct rf__optimizer_options adamw = {.name = "adamw", .weight_decay = 0.01};
    struct rf__optimizer *optimizer;
    struct rf_error err = {0};
    int64_t correct = 0;
    (void)state;
    struct world *w = world_open(&tiny);
    for (size_t i = 0; i < 40; i++) {
        w->tokens[i] = (uint32_t)(i % 8 * 3 % 11); /* the same sequence five times */
    }
    assert_int_equal(rf__optimizer_create(&adamw, w->model, &optimizer, &err), 0);
    for (uint64_t step = 1; step <= 150; step++) {
        world_clear(w);
        world_pass(w, 0, 5, step);
        rf__optimizer_update(optimizer, w->model, world_average, w, 1e-2, 1.0 / 35, step);
    }
    assert_true(world_loss(w, &correct) / 35 < 0.1);
    assert_int_equal(correct, 35);
    rf__optimizer_destroy(optimizer);
    world_close(w);
}

static void failed_allocations(void **state) {
    int rc = RF_ENOMEM;
    (void)state;
    for (long k = 0; rc; k++) {
        struct rf_error err = {0};
        struct rf__model *model;
        assert_true(k < 500);
        rf__alloc_fail_after(k);
        rc = rf__model_create(&tiny, &model, &err);
        rf__alloc_fail_after(-1);
        if (rc) {
            assert_int_equal(rc, RF_ENOMEM);
            assert_null(model);
        }
        rf__model_destroy(model);
    }
}

/* A size of micro-batch that occurs first when there is no memory: refused, and the next time not.
 */
static void failed_plans(void **state) {
    (void)state;
    struct world *w = world_open(&tiny), *calm = world_open(&tiny);
    struct rf__token_batch batch = {.tokens = w->tokens, .count = 3};
    struct rf_error err = {0};
    double loss = 0;
    rf__alloc_fail_after(0);
    int rc = rf__model_pass(w->model, &batch, NULL, &loss, NULL, &err);
    rf__alloc_fail_after(-1);
    assert_int_equal(rc, RF_ENOMEM);
    assert_non_null(strstr(err.text, "3 samples"));
    assert_true(world_pass(w, 0, 3, 0) == world_pass(calm, 0, 3, 0));
    world_close(w);
    world_close(calm);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norm_is_right),
        cmocka_unit_test(gelu_is_right),
        cmocka_unit_test(loss_is_right),
        cmocka_unit_test(attention_is_right),
        cmocka_unit_test(attention_of_large_scores),
        cmocka_unit_test(dropout_keeps_its_share),
        cmocka_unit_test(bf16_rounds),
        cmocka_unit_test(gradients_are_those_of_the_loss),
        cmocka_unit_test(starts_as_gpt2),
        cmocka_unit_test(same_seed_same_bits),
        cmocka_unit_test(micro_batches_add_up),
        cmocka_unit_test(measuring_drops_nothing),
        cmocka_unit_test(last_tensor_first_and_complete),
        cmocka_unit_test(fresh_gradients_are_written),
        cmocka_unit_test(a_sink_may_end_the_pass),
        cmocka_unit_test(a_large_vocabulary_takes_little),
        cmocka_unit_test(activations_are_as_planned),
        cmocka_unit_test(mistakes_are_named),
        cmocka_unit_test(bf16_where_there_is_bf16),
        cmocka_unit_test(it_learns),
        cmocka_unit_test(failed_allocations),
        cmocka_unit_test(failed_plans),
    };
    return cmocka_run_group_tests_name("gpt", tests, NULL, NULL);
}
