/* Checkpoints of a gpt, to folders in the form of Hugging Face's GPT-2; and whose tokenizer is
 * whose. */
#include "api/ckpt.h"

#include "base/mem.h"
#include "base/status.h"
#include "data/vocab.h"
#include "os/file.h"
#include "os/storage.h"
#include "train/weights.h"

#include <jansson.h>
#include <stdio.h>

/* The folder of data that the configuration names; *out by rf__free, NULL where it names none. */
static int data_of(const struct rf_ckpt *ckpt, char **out, struct rf_error *err) {
    const char *config = rf_ckpt_config(ckpt);
    json_t *object = config ? json_loads(config, 0, NULL) : NULL;
    const char *data = json_string_value(json_object_get(object, "data"));
    int code = RF_OK;

    *out = data && *data ? rf__strdup(data) : NULL;
    if (data && *data && !*out) {
        code = rf__fail(err, RF_ENOMEM, 0, "no memory for the name of a folder");
    }
    json_decref(object);
    return code;
}

int rf__ckpt_tokenizer(const struct rf_ckpt *ckpt, const char *data, struct rf__tokenizer **out,
                       struct rf_error *err) {
    char *recorded = NULL;
    int code = data ? RF_OK : data_of(ckpt, &recorded, err);

    data = data ? data : recorded;
    if (!code && !data) {
        code = rf__fail(err, RF_ENOTFOUND, 0,
                        "the checkpoint does not tell which data it was trained on");
    }
    code = code ? code : rf__vocab_load(&rf__file_blobs, data, out, err);
    rf__free(recorded);
    return code;
}

int rf__tokenizer_fits(const struct rf__tokenizer *tokenizer, int vocabulary,
                       struct rf_error *err) {
    uint32_t tokens = rf__tokenizer_vocabulary(tokenizer);
    bool exact = rf__tokenizer_kind(tokenizer) != RF__TOKENIZER_GPT2;

    if (exact ? tokens == (uint32_t)vocabulary : tokens <= (uint32_t)vocabulary) {
        return RF_OK;
    }
    rf__fail(err, RF_EDATA, 0, "the tokenizer (%s) has a vocabulary of %u, and the model one of %d",
             rf__tokenizer_name(rf__tokenizer_kind(tokenizer)), (unsigned)tokens, vocabulary);
    if (err) {
        rf__detail(err->next, "--data with the folder of tokens that the model was trained on");
    }
    return RF_EDATA;
}

/* What is written beside the weights. */
struct beside {
    struct rf__tokenizer *tokenizer; /* or NULL */
    bool saved;
};

static int write_tokenizer(void *context, struct rf__blobs *to, struct rf_error *err) {
    struct beside *beside = context;

    if (!beside->tokenizer) {
        return RF_OK;
    }
    int code = rf__vocab_save(beside->tokenizer, to, err);
    beside->saved = !code;
    return code;
}

/* The tokenizer is asked for by its folder, or taken along where it is found. One that is damaged,
 * or of another model, is an error in both cases. */
static int find_tokenizer(const struct rf_ckpt *ckpt, const char *data, int vocabulary,
                          struct rf__tokenizer **out, struct rf_error *err) {
    int code = rf__ckpt_tokenizer(ckpt, data, out, err);

    code = code ? code : rf__tokenizer_fits(*out, vocabulary, err);
    if (code == RF_ENOTFOUND && !data) {
        rf__error_clear(err);
        code = RF_OK;
    }
    return code;
}

int rf_ckpt_export_gpt2(struct rf_ckpt *ckpt, const char *folder, const char *data,
                        struct rf_ckpt_gpt2 *out, struct rf_error *err) {
    static const char *const others[] = RF__VOCAB_SAVED;
    const struct rf__ckpt_manifest *manifest = rf__ckpt_manifest(ckpt);
    struct beside beside = {.tokenizer = NULL};
    struct rf__weights weights = {.owned = NULL};
    struct rf__blobs *to = NULL;
    struct rf__gpt2_shape shape = {0};
    uint64_t bytes = 0, parameters = 0;

    rf__error_clear(err);
    *out = (struct rf_ckpt_gpt2){.bytes = 0};
    int code = rf__gpt2_shape_of(manifest, &shape, err);
    struct rf__gpt_options options = rf__weights_options(&shape);
    code = code ? code : rf__generator_parameters(&options, &parameters, err);
    code = code ? code : find_tokenizer(ckpt, data, shape.vocabulary, &beside.tokenizer, err);
    code = code ? code : rf__weights_described(&options, &weights, err);
    code = code ? code : rf__storage_open(folder, NULL, &to, err);
    if (code) {
        goto out;
    }
    shape.end = beside.tokenizer ? rf__tokenizer_end(beside.tokenizer) : RF__GPT2_NO_END;
    struct rf__gpt2_export order = {.from = rf__ckpt_blobs(ckpt),
                                    .to = to,
                                    .manifest = manifest,
                                    .state = &weights.state,
                                    .shape = &shape,
                                    .others = others,
                                    .others_count = sizeof others / sizeof *others,
                                    .further = write_tokenizer,
                                    .context = &beside};
    code = rf__gpt2_export(&order, &bytes, err);
    if (code) {
        if (beside.saved) {
            rf__vocab_remove(beside.tokenizer, to);
        }
        (void)rf__wrap(err, code, "exporting to '%.100s': ", folder);
    } else {
        *out = (struct rf_ckpt_gpt2){.bytes = bytes,
                                     .parameters = parameters,
                                     .tensors = weights.state.count,
                                     .tokenizer = beside.tokenizer != NULL};
    }
out:
    if (to) {
        to->ops->destroy(to);
    }
    rf__weights_free(&weights);
    rf__tokenizer_destroy(beside.tokenizer);
    return code;
}
