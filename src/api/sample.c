/* The public face of generation: finds out what stands at a place, reads it and its tokenizer, and
 * goes from token to token. */
#include <ringfold/sample.h>

#include "api/ckpt.h"
#include "base/mem.h"
#include "base/status.h"
#include "data/vocab.h"
#include "os/file.h"
#include "train/weights.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

_Static_assert((int)RF_SAMPLER_NAME >= (int)RF__CKPT_FOLDER, "a checkpoint's name fits");

struct rf_sampler {
    struct rf__gpt_options sizes;
    struct rf__generator *generator;
    struct rf__tokenizer *tokenizer;
    struct rf__decoder decoder;
    struct rf__draw draw;
    size_t tokens; /* those that are drawn are below */
    uint64_t seed, drawn;
    const float *logits; /* of the next one */
    char name[RF_SAMPLER_NAME];
    size_t prompt_tokens;
    char text[RF__DECODED_BYTES + 1];
};

void rf_sampler_options_init(struct rf_sampler_options *options) {
    *options = (struct rf_sampler_options){.seed = 1, .temperature = 0.8, .top_k = 40};
}

static int check_options(const struct rf_sampler_options *options, struct rf_error *err) {
    if (!options->where || !options->where[0]) {
        return rf__fail(err, RF_EINVAL, 0, "a sample needs the place of a model");
    }
    if (!isfinite(options->temperature) || options->temperature < 0) {
        return rf__fail(err, RF_EINVAL, 0, "a temperature of %g, expected 0 or more",
                        options->temperature);
    }
    if (options->top_k < 0) {
        return rf__fail(err, RF_EINVAL, 0, "top-k is %d, expected 0 or more", options->top_k);
    }
    return RF_OK;
}

/* --- the model -------------------------------------------------------------------------------- */

/* A folder may be told as checkpoints are (os/storage.h); what is wrong with such a URI is told
 * where these are looked for. */
static const char *path_of(const char *where) {
    const char *path = where + strlen("file:");

    if (strncasecmp(where, "file:", strlen("file:")) != 0) {
        return where;
    }
    if (!strncmp(path, "//", 2)) {
        size_t host = strcspn(path + 2, "/");
        bool here = !host || (host == strlen("localhost") &&
                              !strncasecmp(path + 2, "localhost", strlen("localhost")));
        path = here ? path + 2 + host : where;
    }
    return *path ? path : where;
}

static int open_folder(struct rf_sampler *s, const struct rf_sampler_options *options,
                       const char *folder, struct rf_error *err) {
    const char *data = options->data ? options->data : folder;
    struct rf__weights weights = {.owned = NULL};

    if (options->which) {
        int code = rf__fail(err, RF_EINVAL, 0,
                            "'%.120s' is a folder with one model, and has no checkpoint '%.40s'",
                            options->where, options->which);
        if (err) {
            rf__detail(err->next, "leave --step out, or give a folder of checkpoints");
        }
        return code;
    }
    int code = rf__weights_folder(&rf__file_blobs, folder, &s->sizes, err);
    code = code ? code : rf__vocab_load(&rf__file_blobs, data, &s->tokenizer, err);
    code = code ? code : rf__tokenizer_fits(s->tokenizer, s->sizes.vocabulary, err);
    code = code ? code : rf__generator_create(&s->sizes, &s->generator, err);
    code = code ? code : rf__weights_of_generator(s->generator, &weights, err);
    code = code ? code : rf__gpt2_read(&rf__file_blobs, folder, &weights.state, err);
    rf__weights_free(&weights);
    return code;
}

static int open_checkpoint(struct rf_sampler *s, const struct rf_sampler_options *options,
                           struct rf_error *err) {
    struct rf__weights weights = {.owned = NULL};
    struct rf_ckpt *ckpt = NULL;
    struct rf__gpt2_shape shape;

    int code = rf_ckpt_open(options->where, options->which, &ckpt, err);
    if (code == RF_ENOTFOUND && !options->which && err) {
        rf__detail(err->next, "give a folder of checkpoints, or a local one with config.json and "
                              "model.safetensors");
    }
    if (code) {
        return code;
    }
    const struct rf__ckpt_manifest *manifest = rf__ckpt_manifest(ckpt);
    rf__ckpt_folder(s->name, &manifest->id);
    code = rf__gpt2_shape_of(manifest, &shape, err);
    if (!code) {
        s->sizes = rf__weights_options(&shape);
        code = rf__ckpt_tokenizer(ckpt, options->data, &s->tokenizer, err);
    }
    code = code ? code : rf__tokenizer_fits(s->tokenizer, s->sizes.vocabulary, err);
    code = code ? code : rf__generator_create(&s->sizes, &s->generator, err);
    code = code ? code : rf__weights_of_generator(s->generator, &weights, err);
    code = code ? code : rf__ckpt_load_trained(rf__ckpt_blobs(ckpt), manifest, &weights.state, err);
    rf__weights_free(&weights);
    rf_ckpt_close(ckpt);
    return code;
}

static int open_model(struct rf_sampler *s, const struct rf_sampler_options *options,
                      struct rf_error *err) {
    const char *folder = path_of(options->where);
    int found = rf__gpt2_is_folder(&rf__file_blobs, folder, err);
    int code = found < 0 ? found
               : found   ? open_folder(s, options, folder, err)
                         : open_checkpoint(s, options, err);

    if (code == RF_ENOTFOUND && s->sizes.depth && !s->tokenizer) { /* the model is there */
        char why[RF_ERROR_TEXT_MAX] = "";
        snprintf(why, sizeof why, "%s", err ? err->text : "");
        rf__fail(err, code, 0, "there is no tokenizer for the model in '%.120s'", options->where);
        if (err) {
            rf__detail(err->why, "%.250s", why);
            rf__detail(err->next, "--data with the folder of tokens that the model was trained on, "
                                  "or one with vocab.json and merges.txt");
        }
    }
    return code;
}

/* --- the prompt ------------------------------------------------------------------------------- */

/* What stands before the first token of a text: the end of the one before it, or of a line. */
static uint32_t first_token(const struct rf__tokenizer *tokenizer) {
    int32_t end = rf__tokenizer_end(tokenizer);
    uint32_t *tokens = NULL, first = end == RF__NO_TOKEN ? 0 : (uint32_t)end;
    size_t count = 0;

    if (end == RF__NO_TOKEN && !rf__tokenizer_encode(tokenizer, "\n", 1, &tokens, &count, NULL)) {
        first = count ? tokens[0] : first;
        rf__free(tokens);
    }
    return first;
}

static int take_prompt(struct rf_sampler *s, const char *prompt, struct rf_error *err) {
    uint32_t first = first_token(s->tokenizer), *tokens = NULL;
    size_t count = 0;
    int code = RF_OK;

    if (prompt && *prompt) {
        code = rf__tokenizer_encode(s->tokenizer, prompt, strlen(prompt), &tokens, &count, err);
        if (code) {
            (void)rf__wrap(err, code, "the prompt: ");
            if (err && code == RF_EDATA) {
                rf__detail(err->next, "use only characters of the texts that the model was trained "
                                      "on");
            }
        }
    }
    s->prompt_tokens = count;
    code = code ? code
                : rf__generator_feed(s->generator, count ? tokens : &first, count ? count : 1,
                                     &s->logits, err);
    rf__free(tokens);
    return code;
}

/* --- the text --------------------------------------------------------------------------------- */

int rf_sampler_open(const struct rf_sampler_options *options, struct rf_sampler **out,
                    struct rf_error *err) {
    struct rf_sampler *s = NULL;

    *out = NULL;
    rf__error_clear(err);
    int code = check_options(options, err);
    if (code) {
        return code;
    }
    s = rf__alloc(1, sizeof *s);
    if (!s) {
        return rf__fail(err, RF_ENOMEM, 0, "no memory to open '%.200s'", options->where);
    }
    s->seed = options->seed;
    code = open_model(s, options, err);
    if (!code) {
        s->tokens = rf__tokenizer_vocabulary(s->tokenizer);
        s->draw = (struct rf__draw){
            .temperature = options->temperature,
            .top_k = (size_t)options->top_k < s->tokens ? (size_t)options->top_k : 0};
        s->draw.room = rf__alloc(s->draw.top_k + 1, sizeof *s->draw.room);
        code = s->draw.room
                   ? take_prompt(s, options->prompt, err)
                   : rf__fail(err, RF_ENOMEM, 0, "no memory for %zu tokens", s->draw.top_k);
    }
    if (code) {
        rf_sampler_close(s);
    } else {
        *out = s;
    }
    return code;
}

void rf_sampler_close(struct rf_sampler *s) {
    if (s) {
        rf__free(s->draw.room);
        rf__generator_destroy(s->generator);
        rf__tokenizer_destroy(s->tokenizer);
        rf__free(s);
    }
}

void rf_sampler_get_info(const struct rf_sampler *s, struct rf_sampler_info *out) {
    *out = (struct rf_sampler_info){
        .depth = s->sizes.depth,
        .heads = s->sizes.heads,
        .width = s->sizes.width,
        .context = s->sizes.context,
        .vocabulary = s->sizes.vocabulary,
        .tokenizer = rf__tokenizer_name(rf__tokenizer_kind(s->tokenizer)),
        .prompt_tokens = s->prompt_tokens,
    };
    memcpy(out->name, s->name, sizeof out->name);
    (void)rf__generator_parameters(&s->sizes, &out->parameters, NULL);
}

int rf_sampler_next(struct rf_sampler *s, struct rf_sample *out, struct rf_error *err) {
    struct rf__rng rng = rf__rng(s->seed, s->drawn, 0);

    rf__error_clear(err);
    *out = (struct rf_sample){.text = s->text};
    if (!s->logits) {
        return rf__fail(err, RF_EINVAL, 0, "this sampler failed before");
    }
    int64_t drawn = rf__draw(&s->draw, s->logits, s->tokens, &rng);
    s->logits = NULL;
    if (drawn < 0) {
        return rf__fail(err, RF_EDATA, 0,
                        "the model gives no numbers for token %llu: its weights are not finite, or "
                        "too large",
                        (unsigned long long)s->drawn + 1);
    }
    out->token = (uint32_t)drawn;
    out->end = drawn == rf__tokenizer_end(s->tokenizer);
    s->drawn++;
    out->bytes = out->end ? rf__tokenizer_decode_end(&s->decoder, s->text)
                          : rf__tokenizer_decode(s->tokenizer, &s->decoder, out->token, s->text);
    s->text[out->bytes] = '\0';
    return rf__generator_feed(s->generator, &out->token, 1, &s->logits, err);
}

size_t rf_sampler_rest(struct rf_sampler *s, const char **text) {
    size_t bytes = rf__tokenizer_decode_end(&s->decoder, s->text);

    s->text[bytes] = '\0';
    *text = s->text;
    return bytes;
}
