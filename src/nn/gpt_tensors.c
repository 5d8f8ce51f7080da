/* The tensors of the gpt model: what shapes there can be, names, and the values they start with. */
#include "base/rng.h"
#include "base/status.h"
#include "nn/gpt.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const uint64_t STREAM_INITIAL = 0x67707420696e6974; /* apart from what others draw */

/* In multiples of the width. 0: one dimension. */
static const struct {
    const char *name;
    size_t rows, columns;
} block_tensors[RF__GPT_BLOCK_TENSORS] = {
    [RF__GPT_LN_1_WEIGHT] = {"ln_1.weight", 0, 1},
    [RF__GPT_LN_1_BIAS] = {"ln_1.bias", 0, 1},
    [RF__GPT_ATTN_WEIGHT] = {"attn.c_attn.weight", 1, 3},
    [RF__GPT_ATTN_BIAS] = {"attn.c_attn.bias", 0, 3},
    [RF__GPT_ATTN_PROJ_WEIGHT] = {"attn.c_proj.weight", 1, 1},
    [RF__GPT_ATTN_PROJ_BIAS] = {"attn.c_proj.bias", 0, 1},
    [RF__GPT_LN_2_WEIGHT] = {"ln_2.weight", 0, 1},
    [RF__GPT_LN_2_BIAS] = {"ln_2.bias", 0, 1},
    [RF__GPT_FC_WEIGHT] = {"mlp.c_fc.weight", 1, 4},
    [RF__GPT_FC_BIAS] = {"mlp.c_fc.bias", 0, 4},
    [RF__GPT_PROJ_WEIGHT] = {"mlp.c_proj.weight", 4, 1},
    [RF__GPT_PROJ_BIAS] = {"mlp.c_proj.bias", 0, 1},
};

int rf__gpt_check_shape(const struct rf__gpt_options *o, struct rf_error *err) {
    enum {
        MAX_DEPTH = 1024,
        MAX_WIDTH = 1 << 16,
        MAX_CONTEXT = 1 << 15, /* a row and a column of attention fit in 32 bits; dropout too */
        MAX_VOCABULARY = 1 << 24
    };
    const struct {
        const char *name;
        int value, most;
    } sizes[] = {{"depth", o->depth, MAX_DEPTH},
                 {"width", o->width, MAX_WIDTH},
                 {"heads", o->heads, MAX_WIDTH},
                 {"context", o->context, MAX_CONTEXT},
                 {"vocabulary", o->vocabulary, MAX_VOCABULARY}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        if (sizes[i].value < 1 || sizes[i].value > sizes[i].most) {
            return rf__fail(err, RF_EINVAL, 0, "model gpt: %s must be 1 … %d, not %d",
                            sizes[i].name, sizes[i].most, sizes[i].value);
        }
    }
    if (o->width % o->heads) {
        return rf__fail(err, RF_EINVAL, 0,
                        "model gpt: a width of %d cannot be divided among %d heads; choose one "
                        "that is a multiple of the other",
                        o->width, o->heads);
    }
    return 0;
}

int rf__gpt_block_tensor(int block, enum rf__gpt_block_tensor tensor) {
    return RF__GPT_BLOCKS + block * (int)RF__GPT_BLOCK_TENSORS + (int)tensor;
}

int rf__gpt_tensor_count(int depth) {
    return rf__gpt_block_tensor(depth, RF__GPT_LN_1_BIAS) + 1;
}

/* rows == 0: one dimension. */
static void shape(struct rf__tensor *tensor, size_t rows, size_t columns) {
    tensor->dims = rows ? 2 : 1;
    tensor->decay = rows > 0;
    tensor->shape[0] = rows ? rows : columns;
    tensor->shape[1] = rows ? columns : 0;
    tensor->count = (rows ? rows : 1) * columns;
}

void rf__gpt_describe_tensors(const struct rf__gpt_options *options, struct rf__tensor *tensors) {
    const size_t width = (size_t)options->width;
    snprintf(tensors[RF__GPT_WTE].name, RF__TENSOR_NAME, "wte.weight");
    shape(&tensors[RF__GPT_WTE], (size_t)options->vocabulary, width);
    snprintf(tensors[RF__GPT_WPE].name, RF__TENSOR_NAME, "wpe.weight");
    shape(&tensors[RF__GPT_WPE], (size_t)options->context, width);
    for (int block = 0; block < options->depth; block++) {
        struct rf__tensor *first =
            &tensors[rf__gpt_block_tensor(block, (enum rf__gpt_block_tensor)0)];
        for (int i = 0; i < (int)RF__GPT_BLOCK_TENSORS; i++) {
            snprintf(first[i].name, RF__TENSOR_NAME, "h.%d.%s", block, block_tensors[i].name);
            shape(&first[i], block_tensors[i].rows * width, block_tensors[i].columns * width);
        }
    }
    struct rf__tensor *last = &tensors[rf__gpt_block_tensor(options->depth, RF__GPT_LN_1_WEIGHT)];
    snprintf(last[0].name, RF__TENSOR_NAME, "ln_f.weight");
    snprintf(last[1].name, RF__TENSOR_NAME, "ln_f.bias");
    shape(&last[0], 0, width);
    shape(&last[1], 0, width);
}

/* The sum of twelve uniform numbers of 16 bits has a variance of 1 and is close to normal; and it
 * is arithmetic of whole numbers, so no machine's logarithm can make a difference. */
static float near_normal(struct rf__rng *rng) {
    int64_t sum = 0;
    for (int draw = 0; draw < 3; draw++) {
        uint64_t bits = rf__rng_u64(rng);
        for (int i = 0; i < 4; i++, bits >>= 16) {
            sum += (int64_t)(bits & 0xffff);
        }
    }
    return (float)(2 * sum - 12 * 0xffff) * 0x1p-17f;
}

static bool ends_with(const char *text, const char *end) {
    size_t length = strlen(text), part = strlen(end);
    return length >= part && !strcmp(text + length - part, end);
}

void rf__gpt_initialise(const struct rf__gpt_options *options, const struct rf__tensor *tensors,
                        uint64_t seed) {
    const float deviation = 0.02f;
    const float less = deviation / (float)sqrt(2.0 * options->depth);
    for (int i = 0; i < rf__gpt_tensor_count(options->depth); i++) {
        const struct rf__tensor *tensor = &tensors[i];
        if (tensor->dims > 1) {
            struct rf__rng rng = rf__rng(seed, (uint64_t)i, STREAM_INITIAL);
            float scale = ends_with(tensor->name, "c_proj.weight") ? less : deviation;
            for (size_t k = 0; k < tensor->count; k++) {
                tensor->data[k] = scale * near_normal(&rng);
            }
        } else {
            float value = ends_with(tensor->name, ".weight") ? 1.0f : 0.0f;
            for (size_t k = 0; k < tensor->count; k++) {
                tensor->data[k] = value;
            }
        }
    }
}
