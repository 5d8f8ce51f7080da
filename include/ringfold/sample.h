/* Text from a trained gpt: token by token, from a checkpoint of training or from a folder in the
 * form of Hugging Face's GPT-2 (docs/GPT.md). Needs no communicator and no running job.
 *
 * The same options give the same text on the same machine with as many threads.
 *
 * Thread safety: one thread at a time for each object; everything else is free. */
#ifndef RINGFOLD_SAMPLE_H
#define RINGFOLD_SAMPLE_H

#include <ringfold/error.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct rf_sampler;

/* Strings are borrowed for the call that takes them. */
struct rf_sampler_options {
    const char *where; /* a local folder with config.json and model.safetensors (a path, or
                          file:/path); or a root of checkpoints, as for rf_ckpt_open */
    const char *which; /* of checkpoints: which one, as for rf_ckpt_open; NULL: the newest.
                          RF_EINVAL with a folder of the other kind */
    const char *data;  /* folder with the tokenizer; NULL: the one in `where`, or the folder of data
                          that the checkpoint was trained on, if it is there */
    const char *prompt; /* UTF-8; NULL or "": the text begins */
    uint64_t seed;      /* 1 */
    double temperature; /* 0.8; 0: always the likeliest token */
    int top_k;          /* 40: of how many of the likeliest tokens one is drawn; 0: of all */
};

RF_API void rf_sampler_options_init(struct rf_sampler_options *options);

/* Reads model and tokenizer, and takes the prompt in. RF_ENOTFOUND: there is neither kind of model,
 * or no tokenizer. RF_ECHECKPOINT, RF_EDATA: a file is damaged, or is not what the others say.
 * RF_EUNSUPPORTED: it is of a model that this cannot run. RF_EINVAL names an option. */
RF_API RF_MUST_CHECK int rf_sampler_open(const struct rf_sampler_options *options,
                                         struct rf_sampler **out, struct rf_error *err);
RF_API void rf_sampler_close(struct rf_sampler *sampler);

enum { RF_SAMPLER_NAME = 48 };

struct rf_sampler_info {
    char name[RF_SAMPLER_NAME]; /* the checkpoint's; "" for a folder of Hugging Face's form */
    int depth, heads, width, context, vocabulary;
    uint64_t parameters;
    const char *tokenizer; /* "chars", "bytes", "gpt2" */
    size_t prompt_tokens;
};

RF_API void rf_sampler_get_info(const struct rf_sampler *sampler, struct rf_sampler_info *out);

struct rf_sample {
    uint32_t token;
    bool end; /* it says that the text is over; it has no text of its own */
    /* What it adds to the text, UTF-8, ended by a zero; borrowed until the next call. May be empty:
     * a character is told when all of its bytes are there. */
    const char *text;
    size_t bytes;
};

/* One more token. A text longer than the context goes on from its newest half. After an end another
 * text begins. RF_EDATA: the model does not give numbers. */
RF_API RF_MUST_CHECK int rf_sampler_next(struct rf_sampler *sampler, struct rf_sample *out,
                                         struct rf_error *err);

/* What was held back, where no more tokens are wanted: *text as above; its bytes. */
RF_API size_t rf_sampler_rest(struct rf_sampler *sampler, const char **text);

#ifdef __cplusplus
}
#endif
#endif
