/* GPT-2's architecture: what it takes in memory, and the matrix products that it will need, planned
 * once. gpt_pass.c has the pass over it. */
#include "nn/gpt_inner.h"

#include "base/assert.h"
#include "base/mem.h"
#include "base/status.h"

enum {
    CACHE_LINE = 64,
    MAX_BATCH = 1 << 16,
    CHUNK = 512,              /* positions of a chunk, where a sample has not more */
    LOGITS_AT_ONCE = 1 << 23, /* a slice of the head holds no more, */
    SLICE_LEAST = 64          /* unless its rows would be fewer than this */
};

/* Parts of one block of memory: first all are measured (memory == NULL), then handed out. */
struct carver {
    unsigned char *memory;
    size_t used;
};

static float *carve(struct carver *carver, size_t count) {
    float *part = carver->memory ? (float *)(void *)(carver->memory + carver->used) : NULL;
    carver->used += (count * sizeof(float) + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
    return part;
}

/* --- creation --- */

static int check_options(const struct rf__model_options *options, struct rf_error *err) {
    const struct rf__gpt_options *o = &options->gpt;
    int rc = rf__gpt_check_shape(o, err);

    if (rc) {
        return rc;
    }
    if (options->batch < 1 || options->batch > MAX_BATCH) {
        return rf__fail(err, RF_EINVAL, 0, "model gpt: batch must be 1 … %d, not %d", MAX_BATCH,
                        options->batch);
    }
    if (!(o->dropout >= 0 && o->dropout < 1)) {
        return rf__fail(err, RF_EINVAL, 0, "model gpt: dropout must be 0 … below 1, not %g",
                        o->dropout);
    }
    double positions = (double)options->batch * o->context;
    double most = (double)o->width > (double)o->vocabulary ? o->width : o->vocabulary;
    if (positions > 1 << 24 || most * o->width > (double)(1ll << 36)) {
        return rf__fail(err, RF_ELIMIT, 0,
                        "model gpt: a micro-batch of %.0f positions of width %d, and a vocabulary "
                        "of %d; at most %d positions and matrices of 2^36 numbers",
                        positions, o->width, o->vocabulary, 1 << 24);
    }
    return 0;
}

static int check_compute(const struct rf__gpt_options *options, struct rf_error *err) {
    int rc = 0;
    switch (options->compute) {
    case RF__COMPUTE_F32:
        break;
    case RF__COMPUTE_BF16:
        if (!rf__model_has_bf16()) {
            rc = rf__fail(err, RF_EUNSUPPORTED, 0,
                          "model gpt: bf16 needs a processor with AVX512-BF16 or AMX, and this one "
                          "(%s) has neither; use float32",
                          rf__model_compute());
        }
        break;
    }
    return rc;
}

static size_t carve_parameters(struct rf__gpt *gpt, unsigned char *memory) {
    struct carver carver = {.memory = memory};
    for (int i = 0; i < gpt->tensor_count; i++) {
        gpt->tensors[i].data = carve(&carver, gpt->tensors[i].count);
    }
    gpt->parameter_floats = carver.used / sizeof(float);
    return carver.used;
}

static struct stream carve_stream(struct carver *carver, size_t positions, size_t width) {
    struct stream stream;
    stream.x = carve(carver, positions * width);
    stream.mean = carve(carver, positions);
    stream.scale = carve(carver, positions);
    return stream;
}

/* How many positions the head takes at once. */
static size_t slice_of(const struct rf__gpt *gpt, size_t positions) {
    size_t slice = LOGITS_AT_ONCE / gpt->vocabulary;
    slice = slice > SLICE_LEAST ? slice : SLICE_LEAST;
    return slice < positions ? slice : positions;
}

static size_t carve_activations(struct rf__gpt *gpt, unsigned char *memory) {
    struct carver carver = {.memory = memory};
    const size_t positions = (size_t)gpt->batch * gpt->context;
    const size_t chunk = (size_t)gpt->chunk * gpt->context;
    for (int i = 0; i < gpt->options.depth; i++) {
        struct block *block = &gpt->blocks[i];
        block->attn_in = carve_stream(&carver, positions, gpt->width);
        block->qkv = carve(&carver, positions * 3 * gpt->width);
        block->logs = carve(&carver, positions * gpt->heads);
        block->out = carve(&carver, positions * gpt->width);
        block->mlp_in = carve_stream(&carver, positions, gpt->width);
        block->hidden = carve(&carver, positions * 4 * gpt->width);
    }
    gpt->end = carve_stream(&carver, positions, gpt->width);
    gpt->normed = carve(&carver, positions * gpt->width);
    gpt->gradient = carve(&carver, positions * gpt->width);
    gpt->narrow = carve(&carver, chunk * gpt->width);
    gpt->wide = carve(&carver, chunk * 4 * gpt->width);
    gpt->dropped = carve(&carver, gpt->options.dropout > 0 ? chunk * gpt->width : 0);
    gpt->logits = carve(&carver, slice_of(gpt, chunk) * gpt->vocabulary);
    gpt->scratch = carve(&carver, rf__attention_scratch(gpt->context, gpt->width / gpt->heads));
    if (gpt->options.compute == RF__COMPUTE_BF16) {
        gpt->halves = (uint16_t *)(void *)carve(&carver, gpt->parameter_floats / 2);
    }
    return carver.used;
}

static int allocate(struct rf__gpt *gpt, struct rf_error *err) {
    const size_t depth = (size_t)gpt->options.depth;
    gpt->tensor_count = rf__gpt_tensor_count(gpt->options.depth);
    gpt->tensors = rf__alloc((size_t)gpt->tensor_count, sizeof *gpt->tensors);
    gpt->blocks = rf__alloc(depth, sizeof *gpt->blocks);
    gpt->plans = rf__alloc((size_t)gpt->chunk, sizeof(struct plan *));
    if (!gpt->tensors || !gpt->blocks || !gpt->plans) {
        return rf__fail(err, RF_ENOMEM, 0, "no memory for a gpt of depth %d", gpt->options.depth);
    }
    rf__gpt_describe_tensors(&gpt->options, gpt->tensors);
    for (int i = 0; i < gpt->tensor_count; i++) {
        gpt->parameter_count += gpt->tensors[i].count;
    }
    size_t bytes = carve_parameters(gpt, NULL);
    gpt->activation_bytes = carve_activations(gpt, NULL);
    gpt->parameters = rf__alloc_aligned(bytes);
    gpt->activations = rf__alloc_aligned(gpt->activation_bytes);
    if (!gpt->parameters || !gpt->activations) {
        return rf__fail(err, RF_ENOMEM, 0,
                        "no memory for a gpt of %zu bytes and activations of %zu bytes for "
                        "micro-batches of %d x %d tokens; a smaller micro-batch needs less",
                        bytes, gpt->activation_bytes, gpt->batch, gpt->options.context);
    }
    carve_parameters(gpt, (unsigned char *)gpt->parameters);
    carve_activations(gpt, gpt->activations);
    return 0;
}

static void plan_destroy(struct plan *plan) {
    if (plan) {
        for (int i = 0; i < PRODUCTS; i++) {
            rf__product_destroy(&plan->products[i]);
        }
        for (int i = 0; i < HEAD_PRODUCTS; i++) {
            rf__product_destroy(&plan->head[0][i]);
            rf__product_destroy(&plan->head[1][i]);
        }
        rf__free(plan);
    }
}

/* The products of the blocks: of each matrix, inputs x outputs, its own, that of the gradient by
 * its input, and that of its own gradient. */
static int plan_blocks(struct rf__gpt *gpt, struct plan *plan, struct rf_error *err) {
    const size_t d = gpt->width;
    const struct {
        const char *forward, *back, *gradient;
        enum product product;
        size_t inputs, outputs;
        bool bias; /* added on the way; otherwise by the layer norm that follows */
    } matrices[] = {
        {"attn.c_attn", "attn.c_attn, back", "attn.c_attn, gradient", ATTN, d, 3 * d, true},
        {"attn.c_proj", "attn.c_proj, back", "attn.c_proj, gradient", ATTN_PROJ, d, d, false},
        {"mlp.c_fc", "mlp.c_fc, back", "mlp.c_fc, gradient", FC, d, 4 * d, true},
        {"mlp.c_proj", "mlp.c_proj, back", "mlp.c_proj, gradient", PROJ, 4 * d, d, false},
    };
    const bool bf16 = gpt->options.compute == RF__COMPUTE_BF16;
    int rc = 0;
    for (size_t i = 0; i < sizeof matrices / sizeof matrices[0] && !rc; i++) {
        const struct rf__product_sizes sizes[] = {
            {.what = matrices[i].forward,
             .rows = plan->rows,
             .inner = matrices[i].inputs,
             .columns = matrices[i].outputs,
             .bias = matrices[i].bias,
             .bf16 = bf16},
            {.what = matrices[i].back,
             .rows = plan->rows,
             .inner = matrices[i].outputs,
             .columns = matrices[i].inputs,
             .right_turned = true,
             .bf16 = bf16},
            {.what = matrices[i].gradient,
             .rows = matrices[i].inputs,
             .inner = plan->rows,
             .columns = matrices[i].outputs,
             .left_turned = true,
             .sum = true,
             .bf16 = bf16},
        };
        struct rf__product *first = &plan->products[matrices[i].product];
        for (int k = 0; k < 3 && !rc; k++) {
            rc = rf__product_create(first + k * (ATTN_BACK - ATTN), &gpt->device, &sizes[k], err);
        }
    }
    return rc;
}

static int plan_head(struct rf__gpt *gpt, struct rf__product *products, size_t rows,
                     struct rf_error *err) {
    const bool bf16 = gpt->options.compute == RF__COMPUTE_BF16;
    const struct rf__product_sizes sizes[HEAD_PRODUCTS] = {
        [LOGITS] = {.what = "head",
                    .rows = rows,
                    .inner = gpt->width,
                    .columns = gpt->vocabulary,
                    .right_turned = true,
                    .bf16 = bf16},
        [LOGITS_BACK] = {.what = "head, back",
                         .rows = rows,
                         .inner = gpt->vocabulary,
                         .columns = gpt->width,
                         .bf16 = bf16},
        [WTE_GRADIENT] = {.what = "head, gradient",
                          .rows = gpt->vocabulary,
                          .inner = rows,
                          .columns = gpt->width,
                          .left_turned = true,
                          .sum = true,
                          .bf16 = bf16},
    };
    int rc = 0;
    for (int i = 0; i < HEAD_PRODUCTS && !rc; i++) {
        rc = rf__product_create(&products[i], &gpt->device, &sizes[i], err);
    }
    return rc;
}

int rf__gpt_plan(struct rf__gpt *gpt, size_t samples, struct plan **out, struct rf_error *err) {
    struct plan *plan = gpt->plans[samples - 1];
    int rc = 0;
    if (!plan) {
        plan = rf__alloc(1, sizeof *plan);
        if (!plan) {
            return rf__fail(err, RF_ENOMEM, 0, "no memory to plan a pass of %zu samples", samples);
        }
        plan->rows = samples * gpt->context;
        plan->slice = slice_of(gpt, plan->rows);
        rc = plan_blocks(gpt, plan, err);
        if (!rc) {
            rc = plan_head(gpt, plan->head[0], plan->slice, err);
        }
        if (!rc && plan->rows % plan->slice) {
            rc = plan_head(gpt, plan->head[1], plan->rows % plan->slice, err);
        }
        if (rc) {
            plan_destroy(plan);
            plan = NULL;
        }
        gpt->plans[samples - 1] = plan;
    }
    *out = plan;
    return rc;
}

/* How many samples a chunk has: of the batch, and of a few hundred positions, as many as there are.
 */
static int chunk_of(const struct rf__model_options *options) {
    int samples = CHUNK / options->gpt.context;
    samples = samples > 1 ? samples : 1;
    return samples < options->batch ? samples : options->batch;
}

static void take_options(struct rf__gpt *gpt, const struct rf__model_options *options) {
    gpt->options = options->gpt;
    gpt->width = (size_t)options->gpt.width;
    gpt->heads = (size_t)options->gpt.heads;
    gpt->context = (size_t)options->gpt.context;
    gpt->vocabulary = (size_t)options->gpt.vocabulary;
    gpt->seed = options->seed;
    gpt->batch = options->batch;
    gpt->chunk = chunk_of(options);
}

int rf__gpt_estimate(const struct rf__model_options *options, struct rf__model_bytes *out,
                     struct rf_error *err) {
    struct rf__gpt gpt = {0};

    int rc = check_options(options, err);
    if (rc) {
        return rc;
    }
    take_options(&gpt, options);
    gpt.tensor_count = rf__gpt_tensor_count(options->gpt.depth);
    gpt.tensors = rf__alloc((size_t)gpt.tensor_count, sizeof *gpt.tensors);
    gpt.blocks = rf__alloc((size_t)options->gpt.depth, sizeof *gpt.blocks);
    if (gpt.tensors && gpt.blocks) {
        rf__gpt_describe_tensors(&gpt.options, gpt.tensors);
        out->parameters = carve_parameters(&gpt, NULL);
        out->activations = carve_activations(&gpt, NULL);
    } else {
        rc = rf__fail(err, RF_ENOMEM, 0, "no memory for a gpt of depth %d", options->gpt.depth);
    }
    rf__free(gpt.blocks);
    rf__free(gpt.tensors);
    return rc;
}

int rf__gpt_create(const struct rf__model_options *options, struct rf__gpt **out,
                   struct rf_error *err) {
    struct rf__gpt *gpt = NULL;
    struct plan *plan;

    *out = NULL;
    int rc = check_options(options, err);
    if (!rc) {
        rc = check_compute(&options->gpt, err);
    }
    if (rc) {
        goto out;
    }
    gpt = rf__alloc(1, sizeof *gpt);
    if (!gpt) {
        rc = rf__fail(err, RF_ENOMEM, 0, "no memory for a gpt");
        goto out;
    }
    take_options(gpt, options);
    gpt->kernels = rf__kernels_best();
    rc = rf__device_open(&gpt->device, err);
    if (!rc) {
        rc = allocate(gpt, err);
    }
    if (!rc) {
        rf__gpt_initialise(&gpt->options, gpt->tensors, options->seed);
        rc = rf__gpt_plan(gpt, (size_t)gpt->chunk, &plan, err);
    }
    if (!rc) {
        *out = gpt;
        gpt = NULL;
    }
out:
    rf__gpt_destroy(gpt);
    return rc;
}

void rf__gpt_destroy(struct rf__gpt *gpt) {
    if (gpt) {
        for (int i = 0; gpt->plans && i < gpt->chunk; i++) {
            plan_destroy(gpt->plans[i]);
        }
        rf__free(gpt->activations);
        rf__free(gpt->parameters);
        rf__free(gpt->plans);
        rf__free(gpt->blocks);
        rf__free(gpt->tensors);
        rf__device_close(&gpt->device);
        rf__free(gpt);
    }
}

int rf__gpt_tensors(const struct rf__gpt *gpt) {
    return gpt->tensor_count;
}

const struct rf__tensor *rf__gpt_tensor(const struct rf__gpt *gpt, int index) {
    RF_ASSERT(index >= 0 && index < gpt->tensor_count);
    return &gpt->tensors[index];
}

size_t rf__gpt_parameters(const struct rf__gpt *gpt) {
    return gpt->parameter_count;
}

size_t rf__gpt_activation_bytes(const struct rf__gpt *gpt) {
    return gpt->activation_bytes + gpt->device.scratchpad_bytes + gpt->device.temporary_bytes;
}
