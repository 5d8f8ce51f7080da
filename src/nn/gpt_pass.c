/* GPT-2's architecture: one pass over token sequences, forward and backward.
 *
 *   x = wte[token] + wpe[position]
 *   each block: x += proj(attention(ln_1(x))); x += proj(gelu(fc(ln_2(x))))
 *   loss = cross-entropy(ln_f(x) wte', next token)
 *
 * All matrices are positions x something, a sample's positions one after the other. A block does
 * all it does for a chunk of samples before it goes to the next chunk, so that what stands between
 * its layers stays in cache; chunks are whole samples, as many as have a few hundred positions.
 *
 * Kept for the backward pass are, for each block, the residual stream x before each half, queries,
 * keys and values, what attention puts out with a number a row, and what goes into GELU; what comes
 * out of layer norm and GELU is computed again.
 *
 * The head goes over a chunk in slices: logits, loss, and at once the gradient by its input and by
 * wte, so that the logits of a large vocabulary never stand whole and are computed once. */
#include "nn/gpt_inner.h"

#include "base/rng.h"
#include "base/status.h"

#include <string.h>

/* Each a stream of random numbers; for those of a block, twice its number and one are added. */
enum drop_place { DROP_EMBEDDING, DROP_ATTENTION = 1 << 16, DROP_RESIDUAL = 2 << 16 };

/* One call of rf__gpt_pass, and the chunk that it is at. */
struct pass {
    struct rf__gpt *gpt;
    struct plan *plan;
    size_t sample, samples; /* the first, and how many */
    size_t row, rows;       /* the same in positions */
    const struct rf__token_batch *batch;
    const struct rf__model_sink *sink; /* NULL: only the loss */
    bool drops;
    struct rf_error *err;
};

/* --- what both directions use --- */

/* Row `row` of the chunk that the pass is at, in memory for all positions. */
static float *at(const struct pass *p, float *all, size_t width) {
    return all + p->row * width;
}

static const float *weight_of(const struct rf__gpt *gpt, int block,
                              enum rf__gpt_block_tensor tensor) {
    return gpt->tensors[rf__gpt_block_tensor(block, tensor)].data;
}

static const uint16_t *half_of(const struct rf__gpt *gpt, const float *parameter) {
    return gpt->halves ? gpt->halves + (parameter - gpt->parameters) : NULL;
}

/* `right` is a parameter. */
static int multiply(const struct pass *p, enum product product, const float *left,
                    const float *right, float *result, const float *bias) {
    const struct rf__factors factors = {
        .left = left, .right = right, .right_half = half_of(p->gpt, right), .bias = bias};
    return rf__product_run(&p->plan->products[product], &p->gpt->device, p->gpt->kernels, &factors,
                           result, p->err);
}

/* A layer norm over the chunk of `stream`, with the gain that is tensor `tensor` and the shift that
 * is the next. */
static struct rf__norm norm_of(const struct pass *p, const struct stream *stream, int tensor) {
    const size_t width = p->gpt->width;
    return (struct rf__norm){.rows = p->rows,
                             .width = width,
                             .before = at(p, stream->x, width),
                             .gain = p->gpt->tensors[tensor].data,
                             .shift = p->gpt->tensors[tensor + 1].data,
                             .mean = at(p, stream->mean, 1),
                             .scale = at(p, stream->scale, 1),
                             .y = at(p, p->gpt->normed, width)};
}

/* Dropout of a place in a sample. */
static struct rf__drop drop_of(const struct pass *p, size_t sample, uint64_t place) {
    const double rate = p->gpt->options.dropout;
    struct rf__rng step = rf__rng(p->gpt->seed, p->batch->step, place);
    struct rf__rng rng = rf__rng(rf__rng_u64(&step), p->batch->samples[sample], 0);
    return (struct rf__drop){.key = rf__rng_u64(&rng),
                             .below = (uint32_t)(rate * 0x1p32),
                             .scale = (float)(1 / (1 - rate))};
}

/* y = dropout(x + bias) for the samples of the chunk, which both begin with. */
static void drop(const struct pass *p, uint64_t place, const float *x, const float *bias,
                 float *y) {
    const size_t each = p->gpt->context * p->gpt->width;
    for (size_t i = 0; i < p->samples; i++) {
        struct rf__drop d = drop_of(p, p->sample + i, place);
        p->gpt->kernels->drop(&d, x + i * each, bias, y + i * each, p->gpt->context, p->gpt->width);
    }
}

static uint64_t residual_place(int block, bool mlp) {
    return DROP_RESIDUAL + 2 * (uint64_t)block + (mlp ? 1 : 0);
}

/* The head `head` of sample `sample`. */
static struct rf__attention attention_of(const struct pass *p, int number, size_t sample,
                                         size_t head) {
    const struct rf__gpt *gpt = p->gpt;
    const struct block *block = &gpt->blocks[number];
    const size_t width = gpt->width / gpt->heads, row = sample * gpt->context;
    float *qkv = block->qkv + row * 3 * gpt->width + head * width;
    struct rf__attention a = {.rows = gpt->context,
                              .width = width,
                              .q = qkv,
                              .k = qkv + gpt->width,
                              .v = qkv + 2 * gpt->width,
                              .more = head + 1 < gpt->heads,
                              .stride = 3 * gpt->width,
                              .out = block->out + row * gpt->width + head * width,
                              .out_stride = gpt->width,
                              .logs = block->logs + (sample * gpt->heads + head) * gpt->context,
                              .scratch = gpt->scratch};
    if (p->drops) {
        struct rf__rng rng;
        a.drop = drop_of(p, sample, DROP_ATTENTION + (uint64_t)number);
        rng = rf__rng(a.drop.key, head, 0);
        a.drop.key = rf__rng_u64(&rng);
    }
    return a;
}

/* --- forward --- */

/* The first x and its layer norm. */
static void embed(const struct pass *p) {
    const struct rf__gpt *gpt = p->gpt;
    const struct stream *stream = &gpt->blocks[0].attn_in;
    const float *wte = gpt->tensors[RF__GPT_WTE].data, *wpe = gpt->tensors[RF__GPT_WPE].data;
    const size_t width = gpt->width;
    float *x = at(p, stream->x, width), *row = x;
    for (size_t i = p->sample; i < p->sample + p->samples; i++) {
        const uint32_t *tokens = p->batch->tokens + i * (gpt->context + 1);
        for (size_t t = 0; t < gpt->context; t++, row += width) {
            memcpy(row, wte + tokens[t] * width, width * sizeof(float));
            gpt->kernels->add(wpe + t * width, row, width);
        }
    }
    if (p->drops) {
        drop(p, DROP_EMBEDDING, x, NULL, x);
    }
    struct rf__norm norm = norm_of(p, stream, rf__gpt_block_tensor(0, RF__GPT_LN_1_WEIGHT));
    gpt->kernels->norm(&norm);
}

/* The next x from the one before, what a half of a block puts out (in `narrow`, without its bias),
 * and that bias; and its layer norm, to `normed`. */
static void next_stream(const struct pass *p, const struct stream *before, const float *bias,
                        uint64_t place, const struct stream *next, int tensor) {
    struct rf__norm norm = norm_of(p, next, tensor);
    if (p->drops) {
        drop(p, place, p->gpt->narrow, bias, p->gpt->narrow);
        bias = NULL;
    }
    norm.before = at(p, before->x, p->gpt->width);
    norm.delta = p->gpt->narrow;
    norm.bias = bias;
    norm.x = at(p, next->x, p->gpt->width);
    p->gpt->kernels->norm(&norm);
}

static void attend(const struct pass *p, int number) {
    for (size_t i = p->sample; i < p->sample + p->samples; i++) {
        for (size_t head = 0; head < p->gpt->heads; head++) {
            struct rf__attention a = attention_of(p, number, i, head);
            p->gpt->kernels->attention(&a);
        }
    }
}

/* From a block's first x and its layer norm in `normed` to the next block's (or the end's). */
static int forward_block(const struct pass *p, int number) {
    struct rf__gpt *gpt = p->gpt;
    const struct block *block = &gpt->blocks[number];
    const struct stream *next =
        number + 1 < gpt->options.depth ? &gpt->blocks[number + 1].attn_in : &gpt->end;
    const size_t width = gpt->width;
    float *normed = at(p, gpt->normed, width), *hidden = at(p, block->hidden, 4 * width);
    int rc = multiply(p, ATTN, normed, weight_of(gpt, number, RF__GPT_ATTN_WEIGHT),
                      at(p, block->qkv, 3 * width), weight_of(gpt, number, RF__GPT_ATTN_BIAS));
    if (!rc) {
        attend(p, number);
        rc = multiply(p, ATTN_PROJ, at(p, block->out, width),
                      weight_of(gpt, number, RF__GPT_ATTN_PROJ_WEIGHT), gpt->narrow, NULL);
    }
    if (!rc) {
        next_stream(p, &block->attn_in, weight_of(gpt, number, RF__GPT_ATTN_PROJ_BIAS),
                    residual_place(number, false), &block->mlp_in,
                    rf__gpt_block_tensor(number, RF__GPT_LN_2_WEIGHT));
        rc = multiply(p, FC, normed, weight_of(gpt, number, RF__GPT_FC_WEIGHT), hidden,
                      weight_of(gpt, number, RF__GPT_FC_BIAS));
    }
    if (!rc) {
        gpt->kernels->gelu(hidden, gpt->wide, p->rows * 4 * width);
        rc = multiply(p, PROJ, gpt->wide, weight_of(gpt, number, RF__GPT_PROJ_WEIGHT), gpt->narrow,
                      NULL);
    }
    if (!rc) {
        next_stream(p, &block->mlp_in, weight_of(gpt, number, RF__GPT_PROJ_BIAS),
                    residual_place(number, true), next,
                    rf__gpt_block_tensor(number + 1, RF__GPT_LN_1_WEIGHT));
    }
    return rc;
}

/* --- backward: the gradient by the residual stream is in `gradient` --- */

static float *gradient_of(const struct pass *p, int tensor) {
    return p->sink->grad(p->sink->context, tensor, NULL);
}

/* The gradient of a matrix becomes, or grows by, left' x right. */
static int add_gradient(const struct pass *p, struct rf__product *product, const float *left,
                        const float *right, int tensor) {
    struct rf__factors factors = {.left = left, .right = right};
    float *result = p->sink->grad(p->sink->context, tensor, &factors.fresh);
    return rf__product_run(product, &p->gpt->device, p->gpt->kernels, &factors, result, p->err);
}

static int matrix_gradient(const struct pass *p, enum product product, const float *left,
                           const float *right, int tensor) {
    return add_gradient(p, &p->plan->products[product], left, right, tensor);
}

/* Tensors from `first` on are complete: the last first. */
static int ready(const struct pass *p, int first, int count) {
    int rc = 0;
    for (int i = first + count - 1; i >= first && !rc; i--) {
        rc = p->sink->ready(p->sink->context, i);
    }
    return rc;
}

/* Through a layer norm, from the gradient in `narrow`. */
static void norm_back(const struct pass *p, const struct stream *stream, int tensor, bool add) {
    struct rf__norm norm = norm_of(p, stream, tensor);
    struct rf__norm_gradients gradients = {.dy = p->gpt->narrow,
                                           .dx = at(p, p->gpt->gradient, p->gpt->width),
                                           .add = add,
                                           .gain = gradient_of(p, tensor),
                                           .shift = gradient_of(p, tensor + 1)};
    p->gpt->kernels->norm_backward(&norm, &gradients);
}

/* What was added to the residual stream has this gradient. */
static const float *out_gradient(const struct pass *p, uint64_t place) {
    const float *gradient = at(p, p->gpt->gradient, p->gpt->width);
    if (p->drops) {
        drop(p, place, gradient, NULL, p->gpt->dropped);
        return p->gpt->dropped;
    }
    return gradient;
}

static void bias_gradient(const struct pass *p, const float *output, size_t columns, int tensor) {
    p->gpt->kernels->add_columns(output, gradient_of(p, tensor), p->rows, columns);
}

static int mlp_back(const struct pass *p, int number) {
    struct rf__gpt *gpt = p->gpt;
    const struct block *block = &gpt->blocks[number];
    const int proj = rf__gpt_block_tensor(number, RF__GPT_PROJ_WEIGHT);
    const int fc = rf__gpt_block_tensor(number, RF__GPT_FC_WEIGHT);
    const int ln = rf__gpt_block_tensor(number, RF__GPT_LN_2_WEIGHT);
    const size_t width = gpt->width;
    float *normed = at(p, gpt->normed, width), *hidden = at(p, block->hidden, 4 * width);
    struct rf__norm norm = norm_of(p, &block->mlp_in, ln);
    const float *out = out_gradient(p, residual_place(number, true));

    bias_gradient(p, out, width, proj + 1);
    int rc = multiply(p, PROJ_BACK, out, gpt->tensors[proj].data, gpt->wide, NULL);
    if (!rc) {
        gpt->kernels->gelu_backward(hidden, gpt->wide, gradient_of(p, fc + 1), p->rows, 4 * width);
        rc = matrix_gradient(p, PROJ_GRADIENT, hidden, out, proj);
    }
    if (!rc) {
        gpt->kernels->norm_again(&norm);
        rc = matrix_gradient(p, FC_GRADIENT, normed, gpt->wide, fc);
    }
    if (!rc) {
        rc = multiply(p, FC_BACK, gpt->wide, gpt->tensors[fc].data, gpt->narrow, NULL);
    }
    if (!rc) {
        norm_back(p, &block->mlp_in, ln, true);
    }
    return rc;
}

/* From the gradient by what attention puts out, in `narrow`, to that by queries, keys and values,
 * in `wide`. */
static void attend_back(const struct pass *p, int number) {
    const struct rf__gpt *gpt = p->gpt;
    const struct block *block = &gpt->blocks[number];
    for (size_t i = p->sample; i < p->sample + p->samples; i++) {
        for (size_t head = 0; head < gpt->heads; head++) {
            struct rf__attention a = attention_of(p, number, i, head);
            a.dout = gpt->narrow + (a.out - at(p, block->out, gpt->width));
            a.dq = gpt->wide + (a.q - at(p, block->qkv, 3 * gpt->width));
            a.dk = a.dq + gpt->width;
            a.dv = a.dk + gpt->width;
            gpt->kernels->attention_backward(&a);
        }
    }
}

static int attention_back(const struct pass *p, int number) {
    struct rf__gpt *gpt = p->gpt;
    const struct block *block = &gpt->blocks[number];
    const int proj = rf__gpt_block_tensor(number, RF__GPT_ATTN_PROJ_WEIGHT);
    const int attn = rf__gpt_block_tensor(number, RF__GPT_ATTN_WEIGHT);
    const int ln = rf__gpt_block_tensor(number, RF__GPT_LN_1_WEIGHT);
    const size_t width = gpt->width;
    struct rf__norm norm = norm_of(p, &block->attn_in, ln);
    const float *out = out_gradient(p, residual_place(number, false));

    bias_gradient(p, out, width, proj + 1);
    int rc = matrix_gradient(p, ATTN_PROJ_GRADIENT, at(p, block->out, width), out, proj);
    if (!rc) {
        rc = multiply(p, ATTN_PROJ_BACK, out, gpt->tensors[proj].data, gpt->narrow, NULL);
    }
    if (!rc) {
        attend_back(p, number);
        bias_gradient(p, gpt->wide, 3 * width, attn + 1);
        gpt->kernels->norm_again(&norm);
        rc = matrix_gradient(p, ATTN_GRADIENT, at(p, gpt->normed, width), gpt->wide, attn);
    }
    if (!rc) {
        rc = multiply(p, ATTN_BACK, gpt->wide, gpt->tensors[attn].data, gpt->narrow, NULL);
    }
    if (!rc) {
        norm_back(p, &block->attn_in, ln, true);
    }
    return rc;
}

/* After the last chunk each half's gradients are complete at once: they can be on their way while
 * the rest is computed. */
static int backward_block(const struct pass *p, int number) {
    const int ln_1 = rf__gpt_block_tensor(number, RF__GPT_LN_1_WEIGHT);
    const int ln_2 = rf__gpt_block_tensor(number, RF__GPT_LN_2_WEIGHT);
    const bool is_last = p->sample + p->samples == (size_t)p->batch->count;
    int rc = mlp_back(p, number);
    if (!rc && is_last) {
        rc = ready(p, ln_2, ln_1 + RF__GPT_BLOCK_TENSORS - ln_2);
    }
    if (!rc) {
        rc = attention_back(p, number);
    }
    if (!rc && is_last) {
        rc = ready(p, ln_1, ln_2 - ln_1);
    }
    return rc;
}

static void embed_back(const struct pass *p) {
    const struct rf__gpt *gpt = p->gpt;
    float *wte = gradient_of(p, RF__GPT_WTE), *wpe = gradient_of(p, RF__GPT_WPE);
    const float *row = out_gradient(p, DROP_EMBEDDING);
    const size_t width = gpt->width;
    for (size_t i = p->sample; i < p->sample + p->samples; i++) {
        const uint32_t *tokens = p->batch->tokens + i * (gpt->context + 1);
        for (size_t t = 0; t < gpt->context; t++, row += width) {
            gpt->kernels->add(row, wpe + t * width, width);
            gpt->kernels->add(row, wte + tokens[t] * width, width);
        }
    }
}

/* --- the head --- */

struct outcome {
    double loss;
    int64_t correct;
};

static struct rf__product *head_product(const struct pass *p, enum head_product product,
                                        size_t rows) {
    return &p->plan->head[rows == p->plan->slice ? 0 : 1][product];
}

static int head_multiply(const struct pass *p, enum head_product product, size_t rows,
                         const float *left, const float *right, float *result) {
    const struct rf__factors factors = {
        .left = left, .right = right, .right_half = half_of(p->gpt, right)};
    return rf__product_run(head_product(p, product, rows), &p->gpt->device, p->gpt->kernels,
                           &factors, result, p->err);
}

/* The losses of a slice, from row `first` on; its logits become their gradient. */
static void slice_loss(const struct pass *p, size_t first, size_t rows, struct outcome *outcome) {
    const struct rf__gpt *gpt = p->gpt;
    for (size_t i = 0; i < rows; i++) {
        size_t sample = (first + i) / gpt->context, t = (first + i) % gpt->context;
        uint32_t label = p->batch->tokens[sample * (gpt->context + 1) + t + 1];
        bool right;
        outcome->loss +=
            gpt->kernels->loss(gpt->logits + i * gpt->vocabulary, gpt->vocabulary, label, &right);
        outcome->correct += right;
    }
}

/* From `normed` to the loss and, with a sink, the head's part of the gradient of wte and the
 * gradient by the residual stream. */
static int head(const struct pass *p, struct outcome *outcome) {
    const struct rf__gpt *gpt = p->gpt;
    const float *wte = gpt->tensors[RF__GPT_WTE].data;
    int rc = 0;
    for (size_t first = 0; first < p->rows && !rc; first += p->plan->slice) {
        size_t left = p->rows - first, rows = left < p->plan->slice ? left : p->plan->slice;
        const float *normed = at(p, gpt->normed, gpt->width) + first * gpt->width;
        rc = head_multiply(p, LOGITS, rows, normed, wte, gpt->logits);
        if (!rc) {
            slice_loss(p, p->row + first, rows, outcome);
        }
        if (!rc && p->sink) {
            rc = head_multiply(p, LOGITS_BACK, rows, gpt->logits, wte,
                               gpt->narrow + first * gpt->width);
        }
        if (!rc && p->sink) {
            rc = add_gradient(p, head_product(p, WTE_GRADIENT, rows), gpt->logits, normed,
                              RF__GPT_WTE);
        }
    }
    if (!rc && p->sink) {
        norm_back(p, &gpt->end, rf__gpt_block_tensor(gpt->options.depth, RF__GPT_LN_1_WEIGHT),
                  false);
    }
    return rc;
}

/* --- a pass --- */

static int check_batch(const struct rf__gpt *gpt, const struct rf__token_batch *batch,
                       struct rf_error *err) {
    if (batch->count < 1 || batch->count > gpt->batch) {
        return rf__fail(err, RF_EINVAL, 0, "a micro-batch of %d samples; the model takes 1 … %d",
                        batch->count, gpt->batch);
    }
    for (size_t i = 0; i < (size_t)batch->count * (gpt->context + 1); i++) {
        if (batch->tokens[i] >= gpt->vocabulary) {
            return rf__fail(err, RF_EDATA, 0,
                            "sample %zu of a micro-batch has token %u at position %zu; the "
                            "vocabulary has %zu: check which tokenizer made the data",
                            i / (gpt->context + 1), (unsigned)batch->tokens[i],
                            i % (gpt->context + 1), gpt->vocabulary);
        }
    }
    return 0;
}

/* Goes to the next chunk, or to the first: whether there is one. Its plan is there. */
static bool next_chunk(struct pass *p) {
    const struct rf__gpt *gpt = p->gpt;
    p->sample += p->samples;
    size_t left = (size_t)p->batch->count - p->sample;
    p->samples = left < (size_t)gpt->chunk ? left : (size_t)gpt->chunk;
    p->row = p->sample * gpt->context;
    p->rows = p->samples * gpt->context;
    p->plan = p->samples ? gpt->plans[p->samples - 1] : NULL;
    return p->samples > 0;
}

static void before_first_chunk(struct pass *p) {
    p->sample = p->samples = 0;
}

static int forward(struct pass *p, struct outcome *outcome) {
    int rc = 0;
    before_first_chunk(p);
    while (next_chunk(p)) {
        embed(p);
    }
    for (int i = 0; i < p->gpt->options.depth; i++) {
        before_first_chunk(p);
        while (!rc && next_chunk(p)) {
            rc = forward_block(p, i);
        }
    }
    before_first_chunk(p);
    while (!rc && next_chunk(p)) {
        rc = head(p, outcome);
    }
    return rc;
}

static int backward(struct pass *p) {
    const int depth = p->gpt->options.depth;
    int rc = ready(p, rf__gpt_block_tensor(depth, RF__GPT_LN_1_WEIGHT), 2);
    for (int i = depth - 1; i >= 0 && !rc; i--) {
        before_first_chunk(p);
        while (!rc && next_chunk(p)) {
            rc = backward_block(p, i);
        }
    }
    before_first_chunk(p);
    while (!rc && next_chunk(p)) {
        embed_back(p);
    }
    return rc ? rc : ready(p, RF__GPT_WTE, 2);
}

int rf__gpt_pass(struct rf__gpt *gpt, const struct rf__token_batch *batch,
                 const struct rf__model_sink *sink, double *loss_sum, int64_t *correct,
                 struct rf_error *err) {
    struct pass pass = {.gpt = gpt,
                        .batch = batch,
                        .sink = sink,
                        .drops = sink && batch->samples && gpt->options.dropout > 0,
                        .err = err};
    struct outcome outcome = {0};
    struct plan *plan;
    int rc = check_batch(gpt, batch, err);
    if (!rc && batch->count % gpt->chunk) {
        rc = rf__gpt_plan(gpt, (size_t)(batch->count % gpt->chunk), &plan, err);
    }
    if (!rc && gpt->halves) {
        gpt->kernels->to_bf16(gpt->parameters, gpt->halves, gpt->parameter_floats);
    }
    if (!rc) {
        rc = forward(&pass, &outcome);
    }
    if (!rc) {
        *loss_sum = outcome.loss;
        if (correct) {
            *correct = outcome.correct;
        }
        if (sink) {
            rc = backward(&pass);
        }
    }
    return rc;
}
