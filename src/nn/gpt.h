/* The gpt model, which rf__model holds where that is its name: GPT-2's architecture (Radford et al.
 * 2019). What the functions do is what those of nn.h with the same ending do. */
#ifndef RF_NN_GPT_H
#define RF_NN_GPT_H

#include "nn/nn.h"

#include <stdbool.h>

struct rf__gpt;

int rf__gpt_create(const struct rf__model_options *options, struct rf__gpt **out,
                   struct rf_error *err);
int rf__gpt_estimate(const struct rf__model_options *options, struct rf__model_bytes *out,
                     struct rf_error *err);
void rf__gpt_destroy(struct rf__gpt *gpt);
int rf__gpt_tensors(const struct rf__gpt *gpt);
const struct rf__tensor *rf__gpt_tensor(const struct rf__gpt *gpt, int index);
size_t rf__gpt_parameters(const struct rf__gpt *gpt);
size_t rf__gpt_activation_bytes(const struct rf__gpt *gpt);
int rf__gpt_pass(struct rf__gpt *gpt, const struct rf__token_batch *batch,
                 const struct rf__model_sink *sink, double *loss_sum, int64_t *correct,
                 struct rf_error *err);

/* The tensors, in order, which is also GPT-2's own naming and layout, so that a file of its weights
 * needs no change but the names' prefix:
 *
 *   wte.weight  vocabulary x width     also the head: logits = x wte'
 *   wpe.weight  context x width
 *   h.N.…       as below, for each block N
 *   ln_f.weight, ln_f.bias  width
 *
 * Matrices of the blocks are inputs x outputs, row by row: y = x W + b. Columns of c_attn are
 * queries, keys and values, in each the heads one after the other. */
enum rf__gpt_block_tensor {
    RF__GPT_LN_1_WEIGHT,
    RF__GPT_LN_1_BIAS,
    RF__GPT_ATTN_WEIGHT, /* attn.c_attn: width x 3 width */
    RF__GPT_ATTN_BIAS,
    RF__GPT_ATTN_PROJ_WEIGHT, /* attn.c_proj: width x width */
    RF__GPT_ATTN_PROJ_BIAS,
    RF__GPT_LN_2_WEIGHT,
    RF__GPT_LN_2_BIAS,
    RF__GPT_FC_WEIGHT, /* mlp.c_fc: width x 4 width */
    RF__GPT_FC_BIAS,
    RF__GPT_PROJ_WEIGHT, /* mlp.c_proj: 4 width x width */
    RF__GPT_PROJ_BIAS,
    RF__GPT_BLOCK_TENSORS
};
enum { RF__GPT_WTE, RF__GPT_WPE, RF__GPT_BLOCKS };

/* Whether there can be a model of that depth, width, heads, context and vocabulary: RF_EINVAL names
 * the first that cannot be. */
int rf__gpt_check_shape(const struct rf__gpt_options *options, struct rf_error *err);

/* Number of tensors for a depth, and the index of block `block`'s, or, with block == depth, of
 * ln_f's weight. */
int rf__gpt_tensor_count(int depth);
int rf__gpt_block_tensor(int block, enum rf__gpt_block_tensor tensor);

/* Fills in all but `data`; `tensors` has room for rf__gpt_tensor_count. */
void rf__gpt_describe_tensors(const struct rf__gpt_options *options, struct rf__tensor *tensors);

/* As GPT-2: weights normal with deviation 0.02, those of projections into the residual stream less
 * by sqrt(2 depth); gains 1; biases 0. The same bits on every machine. */
void rf__gpt_initialise(const struct rf__gpt_options *options, const struct rf__tensor *tensors,
                        uint64_t seed);

#endif
