/* A model: a chain of layers, the memory between them, and the two passes along it.
 *
 * Creation lays the chain out for the largest micro-batch and takes all memory: parameters,
 * activations, what layers keep for the backward pass, and two blocks for the gradients of
 * activations, between which the backward pass alternates.
 *
 * Micro-batches smaller than the largest are padded with samples of zeros to the next power of two,
 * so that few plans (sets of operations) exist however many sizes occur; the gradient of the loss
 * is exactly zero for the padding, and so is what it adds to any tensor. A plan is made when a size
 * first occurs and kept.
 *
 * A gpt is no chain: it has its own file, gpt.c, and is only passed on to here. */
#include "nn/nn.h"

#include "base/assert.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/status.h"
#include "nn/gpt.h"
#include "nn/layer.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum {
    MAX_TENSORS = 2 * RF__MODEL_LAYERS,
    MAX_PLANS = 31,
    MAX_SIZE = 1 << 24, /* of each size in the options: products stay far from overflow */
    CACHE_LINE = 64
};
static const uint64_t STREAM_INITIAL = 0x696e6974; /* apart from the streams that others draw */

struct plan {
    int rows; /* samples, padding included */
    struct rf__op ops[RF__MODEL_LAYERS][RF__LAYER_OPS];
};

struct rf__model {
    struct rf__gpt *gpt; /* NULL: a chain of layers, which is all that follows */
    struct rf__device device;
    int batch, classes, sample; /* largest micro-batch; numbers of classes and of inputs a sample */
    int layer_count, tensor_count;
    struct rf__layer layers[RF__MODEL_LAYERS];
    struct rf__tensor tensors[MAX_TENSORS];
    struct plan *plans[MAX_PLANS]; /* [k] for 2^(k-1) < count <= 2^k */

    float *parameters;
    size_t parameter_count;
    unsigned char *activations; /* one block for all that follows */
    size_t activation_bytes;
    float *input;
    float *gradients[2];
    int32_t *labels;

    struct plan *plan; /* of the last forward; NULL: there was none */
    int count;
};

/* Parts of one block: first all are measured (block == NULL), then handed out. */
struct carver {
    unsigned char *block;
    size_t used;
};

static void *carve(struct carver *carver, size_t bytes) {
    void *part = carver->block ? carver->block + carver->used : NULL;
    carver->used += (bytes + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
    return part;
}

/* --- creation --- */

static int check_options(const struct rf__model_options *options, struct rf_error *err) {
    const struct {
        const char *name;
        int value, least;
    } sizes[] = {{"channels", options->channels, 1}, {"height", options->height, 1},
                 {"width", options->width, 1},       {"classes", options->classes, 2},
                 {"batch", options->batch, 1},       {"hidden", options->hidden, 0}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        if (sizes[i].value < sizes[i].least || sizes[i].value > MAX_SIZE) {
            return rf__fail(err, RF_EINVAL, 0, "model: %s must be %d … %d, not %d", sizes[i].name,
                            sizes[i].least, MAX_SIZE, sizes[i].value);
        }
    }
    double inputs = (double)options->channels * options->height * options->width;
    if (inputs > MAX_SIZE) {
        return rf__fail(err, RF_ELIMIT, 0, "model: a sample of %.0f numbers; at most %d", inputs,
                        MAX_SIZE);
    }
    return 0;
}

/* Names count within a kind: conv1, conv2, linear1. */
static void name_layer(struct rf__model *model, struct rf__layer *layer) {
    int number = 1;
    for (int i = 0; &model->layers[i] != layer; i++) {
        number += model->layers[i].kind == layer->kind;
    }
    snprintf(layer->name, sizeof layer->name, "%s%d", layer->kind->name, number);
}

/* Each layer's input is what the one before puts out. */
static int describe_layers(struct rf__model *model, const struct rf__architecture *architecture,
                           const struct rf__model_options *options, struct rf_error *err) {
    dnnl_dims_t images = {options->batch, options->channels, options->height, options->width};
    dnnl_dims_t rows = {options->batch, model->sample};
    dnnl_memory_desc_t in;
    int rc = rf__layout_dense(&in, "(input)", architecture->images ? images : rows,
                              architecture->images ? 4 : 2, err);
    for (int i = 0; i < architecture->count && !rc; i++) {
        const struct rf__layer_spec *spec = &architecture->layers[i];
        struct rf__layer *layer = &model->layers[i];
        layer->kind = spec->kind;
        layer->outputs = spec->outputs;
        layer->in = in;
        layer->first = i == 0;
        layer->relu = spec->kind->backward_weights && i + 1 < architecture->count &&
                      spec[1].kind == &rf__layer_relu;
        layer->done = spec->kind == &rf__layer_relu && i > 0 && model->layers[i - 1].relu;
        name_layer(model, layer);
        rc = layer->kind->describe(layer, &model->device, err);
        in = layer->out;
        model->layer_count = i + 1;
    }
    return rc;
}

static void describe_tensor(struct rf__model *model, const struct rf__layer *layer,
                            const char *part, const dnnl_dim_t *shape, int dims) {
    struct rf__tensor *tensor = &model->tensors[model->tensor_count++];
    snprintf(tensor->name, sizeof tensor->name, "%s.%s", layer->name, part);
    tensor->dims = dims;
    tensor->decay = dims > 1;
    tensor->count = 1;
    for (int i = 0; i < dims; i++) {
        tensor->shape[i] = (size_t)shape[i];
        tensor->count *= tensor->shape[i];
    }
    model->parameter_count += tensor->count;
}

static void describe_tensors(struct rf__model *model) {
    for (int i = 0; i < model->layer_count; i++) {
        struct rf__layer *layer = &model->layers[i];
        layer->tensor = -1;
        if (layer->weight_dims) {
            layer->tensor = model->tensor_count;
            describe_tensor(model, layer, "weight", layer->weight_shape, layer->weight_dims);
            describe_tensor(model, layer, "bias", (dnnl_dims_t){layer->outputs}, 1);
        }
    }
}

static size_t carve_parameters(struct rf__model *model, unsigned char *block) {
    struct carver carver = {.block = block};
    for (int i = 0; i < model->tensor_count; i++) {
        model->tensors[i].data = carve(&carver, model->tensors[i].count * sizeof(float));
    }
    return carver.used;
}

static size_t carve_activations(struct rf__model *model, unsigned char *block) {
    struct carver carver = {.block = block};
    size_t largest = 0;
    model->labels = carve(&carver, (size_t)model->batch * sizeof *model->labels);
    model->input = carve(&carver, (size_t)model->batch * (size_t)model->sample * sizeof(float));
    float *between = model->input;
    for (int i = 0; i < model->layer_count; i++) {
        struct rf__layer *layer = &model->layers[i];
        size_t bytes = dnnl_memory_desc_get_size(&layer->out);
        largest = bytes > largest ? bytes : largest;
        layer->input = between;
        layer->output = layer->in_place ? between : carve(&carver, bytes);
        layer->keep = carve(&carver, layer->keep_bytes);
        between = layer->output;
    }
    model->gradients[0] = carve(&carver, largest);
    model->gradients[1] = carve(&carver, largest);
    return carver.used;
}

static int allocate(struct rf__model *model, struct rf_error *err) {
    size_t bytes = carve_parameters(model, NULL);
    model->activation_bytes = carve_activations(model, NULL);
    model->parameters = rf__alloc_aligned(bytes);
    model->activations = rf__alloc_aligned(model->activation_bytes);
    if (!model->parameters || !model->activations) {
        return rf__fail(err, RF_ENOMEM, 0,
                        "no memory for a model of %zu bytes and activations of %zu bytes", bytes,
                        model->activation_bytes);
    }
    carve_parameters(model, (unsigned char *)model->parameters);
    carve_activations(model, model->activations);
    for (int i = 0; i < model->layer_count; i++) {
        struct rf__layer *layer = &model->layers[i];
        if (layer->tensor >= 0) {
            layer->weight = model->tensors[layer->tensor].data;
            layer->bias = model->tensors[layer->tensor + 1].data;
        }
    }
    return 0;
}

/* He et al. 2015: weights uniform with variance 2 / fan-in; biases zero. The last layer, which no
 * ReLU follows, has half that variance. Each tensor has its own stream, so its values depend on the
 * seed and its place only. */
static void initialise(struct rf__model *model, uint64_t seed) {
    for (int i = 0; i < model->tensor_count; i++) {
        struct rf__tensor *tensor = &model->tensors[i];
        if (tensor->dims > 1) {
            struct rf__rng rng = rf__rng(seed, (uint64_t)i, STREAM_INITIAL);
            double fan_in = (double)(tensor->count / tensor->shape[0]);
            double gain = i + 2 < model->tensor_count ? 6.0 : 3.0;
            float bound = (float)sqrt(gain / fan_in);
            for (size_t k = 0; k < tensor->count; k++) {
                tensor->data[k] = bound * (2.0f * rf__rng_float(&rng) - 1.0f);
            }
        }
    }
}

static void plan_destroy(struct rf__model *model, struct plan *plan) {
    if (plan) {
        for (int i = 0; i < model->layer_count; i++) {
            for (int k = 0; k < RF__LAYER_OPS; k++) {
                rf__op_destroy(&plan->ops[i][k]);
            }
        }
        rf__free(plan);
    }
}

/* The plan for `count` samples, made if it is not there yet. */
static int plan_for(struct rf__model *model, int count, struct plan **out, struct rf_error *err) {
    int k = 0, rc = 0;
    while (1 << k < count) {
        k++;
    }
    struct plan *plan = model->plans[k];
    if (!plan) {
        plan = rf__alloc(1, sizeof *plan);
        if (!plan) {
            return rf__fail(err, RF_ENOMEM, 0, "no memory to plan a pass of %d samples", count);
        }
        plan->rows = 1 << k < model->batch ? 1 << k : model->batch;
        for (int i = 0; i < model->layer_count && !rc; i++) {
            struct rf__layer *layer = &model->layers[i];
            rc = layer->kind->plan(layer, plan->ops[i], plan->rows, &model->device, err);
        }
        if (rc) {
            plan_destroy(model, plan);
            plan = NULL;
        }
        model->plans[k] = plan;
    }
    *out = plan;
    return rc;
}

static int create_gpt(const struct rf__model_options *options, struct rf__model **out,
                      struct rf_error *err) {
    struct rf__model *model = rf__alloc(1, sizeof *model);
    if (!model) {
        return rf__fail(err, RF_ENOMEM, 0, "no memory for a model");
    }
    int rc = rf__gpt_create(options, &model->gpt, err);
    if (rc) {
        rf__free(model);
    } else {
        *out = model;
    }
    return rc;
}

int rf__model_estimate(const struct rf__model_options *options, struct rf__model_bytes *out,
                       struct rf_error *err) {
    *out = (struct rf__model_bytes){0};
    return options->name && !strcmp(options->name, "gpt") ? rf__gpt_estimate(options, out, err) : 0;
}

int rf__model_create(const struct rf__model_options *options, struct rf__model **out,
                     struct rf_error *err) {
    struct rf__architecture architecture = {0};
    struct rf__model *model = NULL;
    struct plan *plan;

    *out = NULL;
    if (options->name && !strcmp(options->name, "gpt")) {
        return create_gpt(options, out, err);
    }
    int rc = check_options(options, err);
    if (!rc) {
        rc = rf__architecture_find(options, &architecture, err);
    }
    if (rc) {
        goto out;
    }
    model = rf__alloc(1, sizeof *model);
    if (!model) {
        rc = rf__fail(err, RF_ENOMEM, 0, "no memory for a model");
        goto out;
    }
    model->batch = options->batch;
    model->classes = options->classes;
    model->sample = options->channels * options->height * options->width;
    rc = rf__device_open(&model->device, err);
    if (!rc) {
        rc = describe_layers(model, &architecture, options, err);
    }
    if (!rc) {
        describe_tensors(model);
        rc = allocate(model, err);
    }
    if (!rc) {
        initialise(model, options->seed);
        rc = plan_for(model, model->batch, &plan, err);
    }
    if (!rc) {
        *out = model;
        model = NULL;
    }
out:
    rf__model_destroy(model);
    return rc;
}

void rf__model_destroy(struct rf__model *model) {
    if (model) {
        for (int k = 0; k < MAX_PLANS; k++) {
            plan_destroy(model, model->plans[k]);
        }
        rf__gpt_destroy(model->gpt);
        rf__free(model->activations);
        rf__free(model->parameters);
        rf__device_close(&model->device);
        rf__free(model);
    }
}

/* --- what a model is --- */

bool rf__model_takes_tokens(const struct rf__model *model) {
    return model->gpt != NULL;
}

int rf__model_tensors(const struct rf__model *model) {
    return model->gpt ? rf__gpt_tensors(model->gpt) : model->tensor_count;
}

const struct rf__tensor *rf__model_tensor(const struct rf__model *model, int index) {
    if (model->gpt) {
        return rf__gpt_tensor(model->gpt, index);
    }
    RF_ASSERT(index >= 0 && index < model->tensor_count);
    return &model->tensors[index];
}

size_t rf__model_parameters(const struct rf__model *model) {
    return model->gpt ? rf__gpt_parameters(model->gpt) : model->parameter_count;
}

size_t rf__model_activation_bytes(const struct rf__model *model) {
    if (model->gpt) {
        return rf__gpt_activation_bytes(model->gpt);
    }
    return model->activation_bytes + model->device.scratchpad_bytes + model->device.temporary_bytes;
}

static char compute_text[64];

/* Instruction sets are numbered so that a larger one has all bits of those it contains. */
static bool has(dnnl_cpu_isa_t isa, dnnl_cpu_isa_t wanted) {
    return ((unsigned)isa & (unsigned)wanted) == (unsigned)wanted;
}

static void describe_compute(void) {
    const dnnl_version_t *version = dnnl_version();
    dnnl_cpu_isa_t isa = dnnl_get_effective_cpu_isa();
    const char *vectors = has(isa, dnnl_cpu_isa_avx512_core) ? "AVX-512"
                          : has(isa, dnnl_cpu_isa_avx2)      ? "AVX2"
                          : has(isa, dnnl_cpu_isa_avx)       ? "AVX"
                                                             : "SSE4.1";
    snprintf(compute_text, sizeof compute_text, "oneDNN %d.%d.%d, %s", version->major,
             version->minor, version->patch, vectors);
}

const char *rf__model_compute(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, describe_compute);
    return compute_text;
}

bool rf__model_has_bf16(void) {
    dnnl_cpu_isa_t isa = dnnl_get_effective_cpu_isa();
    return has(isa, dnnl_cpu_isa_avx512_core_bf16);
}

/* --- the two passes --- */

static int take_inputs(struct rf__model *model, const float *inputs, const int32_t *labels,
                       int count, struct rf_error *err) {
    size_t sample = (size_t)model->sample;
    for (int i = 0; i < count; i++) {
        if (labels[i] < 0 || labels[i] >= model->classes) {
            return rf__fail(err, RF_EDATA, 0,
                            "sample %d of a micro-batch has label %d; there are %d classes", i,
                            (int)labels[i], model->classes);
        }
    }
    memcpy(model->labels, labels, (size_t)count * sizeof *labels);
    memcpy(model->input, inputs, (size_t)count * sample * sizeof *inputs);
    memset(model->input + (size_t)count * sample, 0,
           (size_t)(model->plan->rows - count) * sample * sizeof *inputs);
    return 0;
}

static const float *logits(const struct rf__model *model) {
    return model->layers[model->layer_count - 1].output;
}

int rf__model_forward(struct rf__model *model, const float *inputs, const int32_t *labels,
                      int count, double *loss_sum, int *correct, struct rf_error *err) {
    struct plan *plan;
    RF_ASSERT(!model->gpt);
    model->plan = NULL;
    if (count < 1 || count > model->batch) {
        return rf__fail(err, RF_EINVAL, 0, "a micro-batch of %d samples; the model takes 1 … %d",
                        count, model->batch);
    }
    int rc = plan_for(model, count, &plan, err);
    if (!rc) {
        model->count = count;
        model->plan = plan;
        rc = take_inputs(model, inputs, labels, count, err);
    }
    for (int i = 0; i < model->layer_count && !rc; i++) {
        const struct rf__layer *layer = &model->layers[i];
        rc = layer->kind->forward(layer, plan->ops[i], &model->device, err);
    }
    if (!rc) {
        struct rf__loss loss =
            rf__loss_forward(logits(model), model->labels, count, model->classes);
        *loss_sum = loss.sum;
        if (correct) {
            *correct = loss.correct;
        }
    } else {
        model->plan = NULL;
    }
    return rc;
}

/* The gradient of a layer's tensors, and word that they are complete, the last first. */
static int backward_tensors(struct rf__model *model, const struct rf__layer *layer,
                            struct rf__op *ops, struct rf__layer_gradients *gradients,
                            const struct rf__model_sink *sink, struct rf_error *err) {
    int weight = layer->tensor, bias = weight + 1;
    gradients->weight = sink->grad(sink->context, weight, NULL);
    gradients->bias = sink->grad(sink->context, bias, NULL);
    int rc = layer->kind->backward_weights(layer, ops, &model->device, gradients, err);
    for (int tensor = bias; tensor >= weight && !rc; tensor--) {
        rc = sink->ready(sink->context, tensor);
    }
    return rc;
}

int rf__model_backward(struct rf__model *model, const struct rf__model_sink *sink,
                       struct rf_error *err) {
    struct plan *plan = model->plan;
    float *here = model->gradients[0], *other = model->gradients[1];
    int rc = 0;
    RF_ASSERT(plan);
    rf__loss_backward(logits(model), model->labels, model->count, plan->rows, model->classes, here);
    for (int i = model->layer_count - 1; i >= 0 && !rc; i--) {
        const struct rf__layer *layer = &model->layers[i];
        struct rf__layer_gradients gradients = {.output = here,
                                                .input = layer->in_place ? here : other};
        if (layer->tensor >= 0) {
            rc = backward_tensors(model, layer, plan->ops[i], &gradients, sink, err);
        }
        if (!rc && !layer->first) {
            rc = layer->kind->backward_data(layer, plan->ops[i], &model->device, &gradients, err);
        }
        if (!layer->in_place) {
            other = here;
            here = gradients.input;
        }
    }
    return rc;
}

int rf__model_pass(struct rf__model *model, const struct rf__token_batch *batch,
                   const struct rf__model_sink *sink, double *loss_sum, int64_t *correct,
                   struct rf_error *err) {
    RF_ASSERT(model->gpt);
    return rf__gpt_pass(model->gpt, batch, sink, loss_sum, correct, err);
}
