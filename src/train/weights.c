/* Between the tensors of src/nn and the states of src/ckpt. */
#include "train/weights.h"

#include "base/mem.h"
#include "base/status.h"

#include <inttypes.h>
#include <string.h>

static void describe(const struct rf__tensor *tensor, struct rf__ckpt_tensor *out) {
    *out = (struct rf__ckpt_tensor){.name = tensor->name,
                                    .type = RF_F32,
                                    .trained = true,
                                    .dims = tensor->dims,
                                    .bytes = tensor->data,
                                    .length = tensor->count * sizeof(float)};
    for (int i = 0; i < tensor->dims; i++) {
        out->shape[i] = tensor->shape[i];
    }
}

/* Room for `count` tensors, and `bytes` behind them. */
static int begin(int count, size_t bytes, struct rf__weights *out, struct rf__ckpt_tensor **tensors,
                 struct rf_error *err) {
    size_t all = (size_t)count * sizeof **tensors;

    *tensors = rf__alloc(all + bytes, 1);
    *out = (struct rf__weights){.state = {.tensors = *tensors, .count = count}, .owned = *tensors};
    return *tensors ? RF_OK : rf__fail(err, RF_ENOMEM, 0, "no memory to name %d tensors", count);
}

int rf__weights_of_model(const struct rf__model *model, struct rf__weights *out,
                         struct rf_error *err) {
    struct rf__ckpt_tensor *tensors;
    int code = begin(rf__model_tensors(model), 0, out, &tensors, err);

    for (int i = 0; i < out->state.count && !code; i++) {
        describe(rf__model_tensor(model, i), &tensors[i]);
    }
    return code;
}

int rf__weights_of_generator(const struct rf__generator *generator, struct rf__weights *out,
                             struct rf_error *err) {
    struct rf__ckpt_tensor *tensors;
    int code = begin(rf__generator_tensors(generator), 0, out, &tensors, err);

    for (int i = 0; i < out->state.count && !code; i++) {
        describe(rf__generator_tensor(generator, i), &tensors[i]);
    }
    return code;
}

int rf__weights_described(const struct rf__gpt_options *options, struct rf__weights *out,
                          struct rf_error *err) {
    int count = rf__gpt_tensor_count(options->depth);
    struct rf__ckpt_tensor *tensors;
    int code = begin(count, (size_t)count * sizeof(struct rf__tensor), out, &tensors, err);

    if (!code) {
        struct rf__tensor *described = (struct rf__tensor *)(void *)(tensors + count);
        rf__gpt_describe_tensors(options, described);
        for (int i = 0; i < count; i++) {
            describe(&described[i], &tensors[i]);
        }
    }
    return code;
}

void rf__weights_free(struct rf__weights *weights) {
    rf__free(weights->owned);
    *weights = (struct rf__weights){.owned = NULL};
}

struct rf__gpt_options rf__weights_options(const struct rf__gpt2_shape *shape) {
    return (struct rf__gpt_options){.depth = shape->depth,
                                    .width = shape->width,
                                    .heads = shape->heads,
                                    .context = shape->context,
                                    .vocabulary = shape->vocabulary};
}

int rf__weights_folder(struct rf__blobs *files, const char *folder, struct rf__gpt_options *out,
                       struct rf_error *err) {
    struct rf__gpt2_shape shape;
    uint64_t bytes = 0, parameters = 0;

    int code = rf__gpt2_read_shape(files, folder, &shape, &bytes, err);
    if (code) {
        return code;
    }
    struct rf__gpt_options options = rf__weights_options(&shape);
    code = rf__generator_parameters(&options, &parameters, err);
    if (code) {
        return rf__wrap(err, code, "'%.100s/" RF__GPT2_CONFIG "': ", folder);
    }
    if (bytes && bytes / sizeof(uint16_t) < parameters) {
        return rf__fail(err, RF_EDATA, 0,
                        "'%.100s/" RF__GPT2_WEIGHTS "' has %" PRIu64 " bytes, too few for the "
                        "%" PRIu64 " parameters that '" RF__GPT2_CONFIG "' describes",
                        folder, bytes, parameters);
    }
    *out = options;
    return RF_OK;
}

static int check_same(const char *folder, const struct rf__gpt_options *theirs,
                      const struct rf__gpt_options *ours, struct rf_error *err) {
    const struct {
        const char *name;
        int theirs, ours;
    } sizes[] = {{"depth", theirs->depth, ours->depth},
                 {"width", theirs->width, ours->width},
                 {"heads", theirs->heads, ours->heads},
                 {"context", theirs->context, ours->context},
                 {"vocabulary", theirs->vocabulary, ours->vocabulary}};

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (sizes[i].theirs != sizes[i].ours) {
            rf__fail(err, RF_EINVAL, 0,
                     "the gpt in '%.120s' has a %s of %d, and the model to be filled one of %d",
                     folder, sizes[i].name, sizes[i].theirs, sizes[i].ours);
            if (err) {
                rf__detail(err->next,
                           "--depth %d --width %d --heads %d --context %d, and data of a "
                           "vocabulary of %d",
                           theirs->depth, theirs->width, theirs->heads, theirs->context,
                           theirs->vocabulary);
            }
            return RF_EINVAL;
        }
    }
    return RF_OK;
}

int rf__weights_read(struct rf__blobs *files, const char *folder,
                     const struct rf__gpt_options *options, struct rf__model *model,
                     struct rf_error *err) {
    struct rf__gpt_options found;
    struct rf__weights weights = {.owned = NULL};

    int code = rf__weights_folder(files, folder, &found, err);
    code = code ? code : check_same(folder, &found, options, err);
    code = code ? code : rf__weights_of_model(model, &weights, err);
    code = code ? code : rf__gpt2_read(files, folder, &weights.state, err);
    rf__weights_free(&weights);
    return code;
}
