/* Weights of a gpt between a model and files: the one place that knows both src/nn's tensors and
 * src/ckpt's states. */
#ifndef RF_TRAIN_WEIGHTS_H
#define RF_TRAIN_WEIGHTS_H

#include "ckpt/gpt2.h"
#include "nn/generate.h"

/* Tensors as a checkpoint's state, which borrows names and memory from their owner; with
 * rf__weights_described it is described only. */
struct rf__weights {
    struct rf__ckpt_state state;
    void *owned;
};

int rf__weights_of_model(const struct rf__model *model, struct rf__weights *out,
                         struct rf_error *err);
int rf__weights_of_generator(const struct rf__generator *generator, struct rf__weights *out,
                             struct rf_error *err);
int rf__weights_described(const struct rf__gpt_options *options, struct rf__weights *out,
                          struct rf_error *err);
void rf__weights_free(struct rf__weights *weights);

struct rf__gpt_options rf__weights_options(const struct rf__gpt2_shape *shape);

/* The sizes of a folder in Hugging Face's form (ckpt/gpt2.h), held against what is there of
 * weights, so that nothing is allocated that they could not fill. Names in `files` are paths. */
int rf__weights_folder(struct rf__blobs *files, const char *folder, struct rf__gpt_options *out,
                       struct rf_error *err);

/* Fills a model of `options` from such a folder, which must be of the same depth, width, heads,
 * context and vocabulary: RF_EINVAL names the one that differs. */
int rf__weights_read(struct rf__blobs *files, const char *folder,
                     const struct rf__gpt_options *options, struct rf__model *model,
                     struct rf_error *err);

#endif
