/* Networks: layers with an explicit forward and backward pass over oneDNN, chained into a model;
 * optimizers.
 *
 * A model is built for a largest micro-batch; all activations are planned and allocated then, and a
 * pass allocates nothing but, when a size of micro-batch first occurs, the operations for it. It
 * knows nothing of workers: gradients are *added* to memory that the caller names for each tensor,
 * and the caller is told of each tensor as soon as its gradient is complete, last layer first, so
 * that communication can start. Everything is deterministic for a seed and a thread count; what a
 * sample gives does not depend, beyond rounding, on the worker or the micro-batch it is in.
 *
 * For mlp and cnn a sample is a row of channels x height x width floats, channel by channel, with a
 * label from 0 to classes - 1; inputs and labels are copied. For gpt a sample is a sequence of
 * context + 1 tokens, each but the last an input and each but the first the label of the one before
 * it; so the loss of a sample is a sum over `context` tokens. Thread safety: one thread a model. */
#ifndef RF_NN_NN_H
#define RF_NN_NN_H

#include <ringfold/error.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { RF__TENSOR_DIMS = 4, RF__TENSOR_NAME = 64 };

struct rf__model;

/* What matrix products take: float32, or bfloat16 with sums in float32. Parameters, gradients and
 * everything else are float32 either way. */
enum rf__compute { RF__COMPUTE_F32, RF__COMPUTE_BF16 };

struct rf__gpt_options {
    int depth, width, heads; /* blocks; numbers a position; heads divide the width */
    int context, vocabulary; /* positions; tokens there are */
    double dropout;          /* share of embeddings, attention and what blocks add; 0: none */
    enum rf__compute compute;
};

struct rf__model_options {
    const char *name; /* "mlp", "cnn", "gpt"; RF_EINVAL and the names there are otherwise */
    int channels, height, width, classes; /* of one sample; not for gpt */
    int batch;                            /* largest micro-batch */
    int hidden;                           /* mlp: width of the hidden layers; 0: the default */
    uint64_t seed;                        /* of the initial parameters, and of dropout */
    struct rf__gpt_options gpt;
};

/* A trained tensor, in order of the forward pass, row-major: O x I x H x W, O x I, or O; for gpt
 * see gpt.h. `decay`: weight decay applies (not for biases and layer norms). */
struct rf__tensor {
    char name[RF__TENSOR_NAME];
    float *data; /* the model's */
    size_t count;
    size_t shape[RF__TENSOR_DIMS];
    int dims;
    int decay;
};

int rf__model_create(const struct rf__model_options *options, struct rf__model **out,
                     struct rf_error *err);
void rf__model_destroy(struct rf__model *model);

int rf__model_tensors(const struct rf__model *model);
const struct rf__tensor *rf__model_tensor(const struct rf__model *model, int index);
size_t rf__model_parameters(const struct rf__model *model); /* elements */

/* What a model that is not there yet would take, without scratch; only for gpt, else zeros. The
 * options' errors, as rf__model_create has them. */
struct rf__model_bytes {
    size_t parameters, activations;
};
int rf__model_estimate(const struct rf__model_options *options, struct rf__model_bytes *out,
                       struct rf_error *err);

/* Activations, their gradients, and scratch. */
size_t rf__model_activation_bytes(const struct rf__model *model);
const char *rf__model_compute(void); /* "oneDNN 2.6.3, AVX-512" */

/* Forward on `count` <= batch samples: sum of the losses (softmax cross-entropy) and, where not
 * NULL, how many were right. */
int rf__model_forward(struct rf__model *model, const float *inputs, const int32_t *labels,
                      int count, double *loss_sum, int *correct, struct rf_error *err);

/* After a forward: adds the gradient of the *sum* of losses to grad(context, index, …) for each
 * tensor, last layer first, and calls ready(context, index) after each; where that is not 0 the
 * pass ends with its code and leaves `err` alone. Neither callback may touch the model.
 * `fresh` NULL: what is given is added to. Otherwise *fresh may be set to true: nothing was added
 * yet, what stands there counts for nothing, and the pass writes all of it before it asks again. */
struct rf__model_sink {
    float *(*grad)(void *context, int index, bool *fresh);
    int (*ready)(void *context, int index);
    void *context;
};
int rf__model_backward(struct rf__model *model, const struct rf__model_sink *sink,
                       struct rf_error *err);

/* Sequences for gpt. Dropout depends on the seed, the step, the number of the sample and the
 * position alone. */
struct rf__token_batch {
    const uint32_t *tokens; /* count x (context + 1) */
    int count;
    uint64_t step;
    const uint64_t *samples; /* count numbers; NULL: no dropout */
};

/* Forward and, with a sink, backward at once (the head's gradient is taken while its logits stand):
 * the sum of the losses over all count x context tokens and, where not NULL, how many were guessed
 * right. The sink is used as by rf__model_backward, except that the gradient of tensor 0, the token
 * embedding, is added to from the beginning; it is complete last all the same. Without a sink
 * (NULL) there is no dropout. Tokens at or above the vocabulary: RF_EDATA, before anything is
 * added. Only for models that take tokens, as only others take the two calls above. */
bool rf__model_takes_tokens(const struct rf__model *model);
int rf__model_pass(struct rf__model *model, const struct rf__token_batch *batch,
                   const struct rf__model_sink *sink, double *loss_sum, int64_t *correct,
                   struct rf_error *err);

/* Whether products of bfloat16 are fast here: the processor has AVX512-BF16 or AMX. */
bool rf__model_has_bf16(void);

/* Optimizers. State is one block for all tensors, registered by the caller for hashing. */
struct rf__optimizer;

struct rf__optimizer_options {
    const char *name;             /* "sgd" (with momentum) or "adamw" */
    double momentum;              /* sgd */
    double beta1, beta2, epsilon; /* adamw; 0: 0.9, 0.999, 1e-8 */
    double weight_decay;          /* decoupled, for both */
};

int rf__optimizer_create(const struct rf__optimizer_options *options, const struct rf__model *model,
                         struct rf__optimizer **out, struct rf_error *err);
void rf__optimizer_destroy(struct rf__optimizer *optimizer);
void rf__optimizer_state(struct rf__optimizer *optimizer, void **state, size_t *bytes);

/* Updates every tensor from gradient(context, index) x `scale` (clipping); `step` counts from 1. */
void rf__optimizer_update(struct rf__optimizer *optimizer, struct rf__model *model,
                          const float *(*gradient)(void *context, int index), void *context,
                          double rate, double scale, uint64_t step);

/* Sum of squares of `count` floats, in double, in a fixed order. */
double rf__sum_of_squares(const float *x, size_t count);

/* The learning rate of `step` (from 1): linear warm-up, then a cosine from `rate` to `rate` / 10 at
 * `steps`. */
double rf__schedule_rate(double rate, uint64_t step, uint64_t warmup, uint64_t steps);

#endif
