/* GPT-2's forward pass for generation. New positions go through the model some hundred at a time;
 * mostly there is one. Matrices are multiplied by oneDNN's plain call, which takes any number of
 * rows without a plan; attention is two such products a head over the keys and values that are
 * kept, each position x width, block by block. */
#include "nn/generate.h"

#include "base/assert.h"
#include "base/mem.h"
#include "base/status.h"
#include "nn/device.h"
#include "nn/kernels.h"

#include <math.h>
#include <string.h>

enum { ROWS = 128 }; /* positions at once */

struct rf__generator {
    struct rf__gpt_options options;
    size_t width, heads, context, vocabulary;
    const struct rf__kernels *kernels;
    int tensor_count;
    struct rf__tensor *tensors;

    uint32_t *window; /* the tokens so far */
    size_t used;

    /* Each one block, whole cache lines. */
    float *parameters;
    float *keys, *values; /* blocks x context x width */
    float *x, *normed, *qkv, *out, *delta, *hidden, *scores, *mean, *scale;
    float *logits;
};

/* --- creation --- */

int rf__generator_parameters(const struct rf__gpt_options *options, uint64_t *out,
                             struct rf_error *err) {
    int rc = rf__gpt_check_shape(options, err);
    if (!rc) {
        uint64_t d = (uint64_t)options->width;
        uint64_t block = 12 * d * d + 13 * d;
        *out = ((uint64_t)options->vocabulary + (uint64_t)options->context + 2) * d +
               (uint64_t)options->depth * block;
    }
    return rc;
}

static float *floats(size_t count, bool *good) {
    float *memory = count > SIZE_MAX / sizeof(float) ? NULL : rf__alloc(count, sizeof(float));
    *good = *good && memory;
    return memory;
}

static bool allocate(struct rf__generator *g) {
    const size_t rows = ROWS < g->context ? ROWS : g->context;
    const size_t cache = (size_t)g->options.depth * g->context * g->width;
    size_t count = 0;
    bool good = true;
    g->tensor_count = rf__gpt_tensor_count(g->options.depth);
    g->tensors = rf__alloc((size_t)g->tensor_count, sizeof *g->tensors);
    g->window = rf__alloc(g->context, sizeof *g->window);
    if (!g->tensors || !g->window) {
        return false;
    }
    rf__gpt_describe_tensors(&g->options, g->tensors);
    for (int i = 0; i < g->tensor_count; i++) {
        count += g->tensors[i].count;
    }
    g->parameters = floats(count, &good);
    g->keys = floats(cache, &good);
    g->values = floats(cache, &good);
    g->x = floats(rows * g->width, &good);
    g->normed = floats(rows * g->width, &good);
    g->qkv = floats(rows * 3 * g->width, &good);
    g->out = floats(rows * g->width, &good);
    g->delta = floats(rows * g->width, &good);
    g->hidden = floats(rows * 4 * g->width, &good);
    g->scores = floats(rows * g->context, &good);
    g->mean = floats(rows, &good);
    g->scale = floats(rows, &good);
    g->logits = floats(g->vocabulary, &good);
    for (int i = 0, at = 0; good && i < g->tensor_count; i++, at = 1) {
        g->tensors[i].data = at ? g->tensors[i - 1].data + g->tensors[i - 1].count : g->parameters;
    }
    return good;
}

int rf__generator_create(const struct rf__gpt_options *options, struct rf__generator **out,
                         struct rf_error *err) {
    struct rf__generator *g = NULL;
    *out = NULL;
    int rc = rf__gpt_check_shape(options, err);
    if (rc) {
        return rc;
    }
    g = rf__alloc(1, sizeof *g);
    if (g) {
        g->options = *options;
        g->width = (size_t)options->width;
        g->heads = (size_t)options->heads;
        g->context = (size_t)options->context;
        g->vocabulary = (size_t)options->vocabulary;
        g->kernels = rf__kernels_best();
    }
    if (!g || !allocate(g)) {
        rf__generator_destroy(g);
        return rf__fail(err, RF_ENOMEM, 0,
                        "no memory for a gpt of depth %d, width %d, context %d and vocabulary %d",
                        options->depth, options->width, options->context, options->vocabulary);
    }
    *out = g;
    return 0;
}

void rf__generator_destroy(struct rf__generator *g) {
    if (g) {
        float *const blocks[] = {g->parameters, g->keys,  g->values, g->x,      g->normed,
                                 g->qkv,        g->out,   g->delta,  g->hidden, g->scores,
                                 g->mean,       g->scale, g->logits};
        for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++) {
            rf__free(blocks[i]);
        }
        rf__free(g->window);
        rf__free(g->tensors);
        rf__free(g);
    }
}

int rf__generator_tensors(const struct rf__generator *g) {
    return g->tensor_count;
}

const struct rf__tensor *rf__generator_tensor(const struct rf__generator *g, int index) {
    RF_ASSERT(index >= 0 && index < g->tensor_count);
    return &g->tensors[index];
}

void rf__generator_reset(struct rf__generator *g) {
    g->used = 0;
}

/* --- forward --- */

/* `rows` new positions from `first` on, at block `block`. */
struct part {
    struct rf__generator *g;
    size_t first, rows;
    int block;
    struct rf_error *err;
};

static const float *weight_of(const struct part *p, enum rf__gpt_block_tensor tensor) {
    return p->g->tensors[rf__gpt_block_tensor(p->block, tensor)].data;
}

/* y = x W + b, W inputs x outputs; b NULL: none. */
static int multiply(const struct part *p, const char *what, const float *x, size_t inputs,
                    const float *weight, const float *bias, float *y, size_t outputs) {
    for (size_t i = 0; i < p->rows && bias; i++) {
        memcpy(y + i * outputs, bias, outputs * sizeof(float));
    }
    dnnl_status_t status =
        dnnl_sgemm('N', 'N', (dnnl_dim_t)p->rows, (dnnl_dim_t)outputs, (dnnl_dim_t)inputs, 1.0f, x,
                   (dnnl_dim_t)inputs, weight, (dnnl_dim_t)outputs, bias ? 1.0f : 0.0f, y,
                   (dnnl_dim_t)outputs);
    return rf__device_check(status, "gpt", what, p->err);
}

/* x += delta + bias where there is a delta, and its layer norm, to `normed`. */
static void norm(const struct part *p, const float *delta, const float *bias, int tensor) {
    struct rf__generator *g = p->g;
    struct rf__norm n = {.rows = p->rows,
                         .width = g->width,
                         .before = g->x,
                         .delta = delta,
                         .bias = bias,
                         .x = g->x,
                         .gain = g->tensors[tensor].data,
                         .shift = g->tensors[tensor + 1].data,
                         .mean = g->mean,
                         .scale = g->scale,
                         .y = g->normed};
    g->kernels->norm(&n);
}

/* Row i, of position first + i, looks at the positions up to its own. */
static void soften(const struct part *p, size_t positions) {
    for (size_t i = 0; i < p->rows; i++) {
        float *row = p->g->scores + i * positions, largest = row[0], sum = 0;
        const size_t seen = p->first + i + 1;
        for (size_t t = 1; t < seen; t++) {
            largest = row[t] > largest ? row[t] : largest;
        }
        for (size_t t = 0; t < seen; t++) {
            row[t] = expf(row[t] - largest);
            sum += row[t];
        }
        for (size_t t = 0; t < seen; t++) {
            row[t] /= sum;
        }
        memset(row + seen, 0, (positions - seen) * sizeof *row);
    }
}

static int attend(const struct part *p) {
    struct rf__generator *g = p->g;
    const size_t width = g->width, each = width / g->heads, positions = p->first + p->rows;
    const size_t kept = (size_t)p->block * g->context * width;
    const dnnl_dim_t rows = (dnnl_dim_t)p->rows, all = (dnnl_dim_t)positions;
    const dnnl_dim_t head = (dnnl_dim_t)each, stride = (dnnl_dim_t)width;
    dnnl_status_t status = dnnl_success;
    for (size_t i = 0; i < p->rows; i++) {
        const float *row = g->qkv + i * 3 * width;
        const size_t at = kept + (p->first + i) * width;
        memcpy(g->keys + at, row + width, width * sizeof *row);
        memcpy(g->values + at, row + 2 * width, width * sizeof *row);
    }
    for (size_t h = 0; h < g->heads && !status; h++) {
        status = dnnl_sgemm('N', 'T', rows, all, head, 1.0f / sqrtf((float)each), g->qkv + h * each,
                            3 * stride, g->keys + kept + h * each, stride, 0.0f, g->scores, all);
        if (!status) {
            soften(p, positions);
            status =
                dnnl_sgemm('N', 'N', rows, head, all, 1.0f, g->scores, all,
                           g->values + kept + h * each, stride, 0.0f, g->out + h * each, stride);
        }
    }
    return rf__device_check(status, "gpt", "attention", p->err);
}

/* From x and its layer norm in `normed` to those after the block. */
static int run_block(const struct part *p) {
    struct rf__generator *g = p->g;
    const size_t d = g->width;
    int rc = multiply(p, "attn.c_attn", g->normed, d, weight_of(p, RF__GPT_ATTN_WEIGHT),
                      weight_of(p, RF__GPT_ATTN_BIAS), g->qkv, 3 * d);
    if (!rc) {
        rc = attend(p);
    }
    if (!rc) {
        rc = multiply(p, "attn.c_proj", g->out, d, weight_of(p, RF__GPT_ATTN_PROJ_WEIGHT), NULL,
                      g->delta, d);
    }
    if (!rc) {
        norm(p, g->delta, weight_of(p, RF__GPT_ATTN_PROJ_BIAS),
             rf__gpt_block_tensor(p->block, RF__GPT_LN_2_WEIGHT));
        rc = multiply(p, "mlp.c_fc", g->normed, d, weight_of(p, RF__GPT_FC_WEIGHT),
                      weight_of(p, RF__GPT_FC_BIAS), g->hidden, 4 * d);
    }
    if (!rc) {
        g->kernels->gelu(g->hidden, g->hidden, p->rows * 4 * d);
        rc = multiply(p, "mlp.c_proj", g->hidden, 4 * d, weight_of(p, RF__GPT_PROJ_WEIGHT), NULL,
                      g->delta, d);
    }
    if (!rc) {
        norm(p, g->delta, weight_of(p, RF__GPT_PROJ_BIAS),
             rf__gpt_block_tensor(p->block + 1, RF__GPT_LN_1_WEIGHT));
    }
    return rc;
}

/* Positions first … first + rows - 1 of the window; what comes before them is kept. */
static int run_rows(struct rf__generator *g, size_t first, size_t rows, struct rf_error *err) {
    struct part p = {.g = g, .first = first, .rows = rows, .err = err};
    const float *wte = g->tensors[RF__GPT_WTE].data, *wpe = g->tensors[RF__GPT_WPE].data;
    int rc = 0;
    for (size_t i = 0; i < rows; i++) {
        float *x = g->x + i * g->width;
        memcpy(x, wte + g->window[first + i] * g->width, g->width * sizeof *x);
        g->kernels->add(wpe + (first + i) * g->width, x, g->width);
    }
    norm(&p, NULL, NULL, rf__gpt_block_tensor(0, RF__GPT_LN_1_WEIGHT));
    for (; p.block < g->options.depth && !rc; p.block++) {
        rc = run_block(&p);
    }
    return rc;
}

/* What the last of the `rows` that were run last says of the next token. */
static int run_head(struct rf__generator *g, size_t rows, struct rf_error *err) {
    const dnnl_dim_t d = (dnnl_dim_t)g->width, vocabulary = (dnnl_dim_t)g->vocabulary;
    dnnl_status_t status =
        dnnl_sgemm('N', 'T', 1, vocabulary, d, 1.0f, g->normed + (rows - 1) * g->width, d,
                   g->tensors[RF__GPT_WTE].data, d, 0.0f, g->logits, vocabulary);
    return rf__device_check(status, "gpt", "head", err);
}

static int check_tokens(const struct rf__generator *g, const uint32_t *tokens, size_t count,
                        struct rf_error *err) {
    for (size_t i = 0; i < count; i++) {
        if (tokens[i] >= g->vocabulary) {
            return rf__fail(err, RF_EDATA, 0,
                            "token %u at position %zu is none of the vocabulary of %zu: check "
                            "which tokenizer made it",
                            (unsigned)tokens[i], i, g->vocabulary);
        }
    }
    return 0;
}

/* Puts the tokens into the window: the first that is to be computed. */
static size_t take(struct rf__generator *g, const uint32_t *tokens, size_t count) {
    if (count >= g->context) {
        memcpy(g->window, tokens + (count - g->context), g->context * sizeof *tokens);
        g->used = g->context;
        return 0;
    }
    size_t first = g->used;
    if (g->used + count > g->context) {
        size_t keep = g->context / 2 > count ? g->context / 2 - count : 0; /* of the old ones */
        memmove(g->window, g->window + g->used - keep, keep * sizeof *tokens);
        g->used = keep;
        first = 0;
    }
    memcpy(g->window + g->used, tokens, count * sizeof *tokens);
    g->used += count;
    return first;
}

int rf__generator_feed(struct rf__generator *g, const uint32_t *tokens, size_t count,
                       const float **logits, struct rf_error *err) {
    size_t rows = 0;
    RF_ASSERT(count);
    int rc = check_tokens(g, tokens, count, err);
    if (rc) {
        return rc;
    }
    for (size_t at = take(g, tokens, count); at < g->used && !rc; at += rows) {
        rows = g->used - at < ROWS ? g->used - at : ROWS;
        rc = run_rows(g, at, rows, err);
    }
    if (!rc) {
        rc = run_head(g, rows, err);
    }
    if (!rc) {
        *logits = g->logits;
    }
    return rc;
}
