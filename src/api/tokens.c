/* The public entry point of texts: the file system, wired to src/data/tokenize. */
#include "base/status.h"
#include "data/rehearse.h"
#include "data/tokenize.h"
#include "os/file.h"

#include <ringfold/data.h>

#include <math.h>
#include <unistd.h>

void rf_data_tokens_options_init(struct rf_data_tokens_options *options) {
    *options = (struct rf_data_tokens_options){.tokenizer = "chars", .validation = 0.1};
}

static int options_check(const struct rf_data_tokens_options *options, size_t count,
                         const char *folder, enum rf__tokenizer_kind *kind, struct rf_error *err) {
    int code = rf__tokenizer_parse(options->tokenizer ? options->tokenizer : "", kind, err);

    if (code) {
        return code;
    }
    if (*kind == RF__TOKENIZER_GPT2 && !options->ranks) {
        return rf__fail(err, RF_EINVAL, 0, "the tokenizer gpt2 needs a file of ranks");
    }
    if (*kind != RF__TOKENIZER_GPT2 && options->ranks) {
        return rf__fail(err, RF_EINVAL, 0, "the tokenizer %s takes no ranks", options->tokenizer);
    }
    if (!isfinite(options->validation) || options->validation < 0 || options->validation >= 1) {
        return rf__fail(err, RF_EINVAL, 0, "a validation share of %g, expected 0 to less than 1",
                        options->validation);
    }
    if (!count || !folder || !*folder) {
        return rf__fail(err, RF_EINVAL, 0, "tokens need a text, and a folder to go to");
    }
    return RF_OK;
}

int rf_data_tokens(const char *const *texts, size_t count, const char *folder,
                   const struct rf_data_tokens_options *options, struct rf_data_tokens *out,
                   struct rf_error *err) {
    struct rf__bad_reads bad_reads;
    struct rf__data_io io = {.files = &rf__file_blobs, .root = folder};
    struct rf__tokenize order = {.io = &io,
                                 .texts = texts,
                                 .count = count,
                                 .ranks = options->ranks,
                                 .validation = options->validation,
                                 .replace = options->force,
                                 .go_on = options->go_on,
                                 .context = options->context};
    struct rf__tokenized made;

    *out = (struct rf_data_tokens){0};
    int code = options_check(options, count, folder, &order.kind, err);
    if (!code && options->bad_reads) {
        code = rf__bad_reads_init(&bad_reads, &rf__file_blobs, options->bad_reads, err);
        io.files = &bad_reads.base;
    }
    if (code) {
        return code;
    }
    bool is_new = access(folder, F_OK) != 0;
    code = rf__file_blobs_create(folder, NULL, &io.beside, err);
    if (code) {
        return code;
    }
    code = rf__tokenize(&order, &made, err);
    io.beside->ops->destroy(io.beside);
    if (!code) {
        const struct rf__tokenized_part *t = &made.train, *v = &made.validation;
        *out = (struct rf_data_tokens){.vocabulary = made.vocabulary,
                                       .token_bytes = made.width,
                                       .train = {t->tokens, t->text_bytes, t->file_bytes},
                                       .validation = {v->tokens, v->text_bytes, v->file_bytes}};
    } else if (is_new) {
        (void)rmdir(folder); /* the one that was made for it, where it is empty again */
    }
    return code;
}
