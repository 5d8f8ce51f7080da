/* Tokens as samples: train.bin and val.bin of a folder, in windows. What a token may be is the
 * tokenizer's to say, whose file stands beside them; a window with another one would be read beyond
 * the end of a model's tables, and cannot be used. */
#include "data/windows.h"

#include "base/assert.h"
#include "base/mem.h"
#include "base/status.h"
#include "data/text.h"
#include "data/tokenizer_file.h"

#include <stdio.h>
#include <string.h>

enum { PATH_BYTES = 4096, CACHE_BYTES = 64 << 20 };

/* What one part holds must have been made by the folder's tokenizer, as far as it says. */
static int tokenizer_check(const struct rf__tokens *tokens, const struct rf__tokenizer *tokenizer,
                           const char *path, struct rf_error *err) {
    uint32_t vocabulary = rf__tokenizer_vocabulary(tokenizer);
    const char *name = rf__tokenizer_name(rf__tokenizer_kind(tokenizer));

    if ((tokens->vocabulary && tokens->vocabulary != vocabulary) ||
        (tokens->tokenizer[0] && strcmp(tokens->tokenizer, name))) {
        rf__fail(err, RF_EDATA, 0,
                 "'%s' is of %s with a vocabulary of %s, expected %s with %s as '%s' has",
                 rf__path_tail(path),
                 tokens->tokenizer[0] ? tokens->tokenizer : "an unnamed tokenizer",
                 rf__number(tokens->vocabulary).text, name, rf__number(vocabulary).text,
                 RF__TOKENIZER_FILE);
        if (err) {
            rf__detail(err->next, "make the folder anew with ringfold data tokens");
        }
        return RF_EDATA;
    }
    return RF_OK;
}

static int part_open(const struct rf__data_io *io, const char *folder, const char *name,
                     uint32_t context, const struct rf__tokenizer *tokenizer,
                     struct rf__samples *out, struct rf_error *err) {
    char path[PATH_BYTES];
    struct rf__tokens tokens = {0};

    int length = snprintf(path, sizeof path, "%s/%s", folder, name);
    if (length < 0 || length >= PATH_BYTES) {
        return rf__fail(err, RF_ELIMIT, 0, "the data folder's name is longer than %d bytes",
                        PATH_BYTES);
    }
    int code = rf__tokens_open(io, path, name, 2, context, CACHE_BYTES, &tokens, err);
    if (!code) {
        code = tokenizer_check(&tokens, tokenizer, path, err);
    }
    if (!code && tokens.windows > UINT32_MAX) {
        code = rf__fail(err, RF_ELIMIT, 0,
                        "'%s' has %s windows of %u tokens, more than %s: use a longer context",
                        rf__path_tail(path), rf__number(tokens.windows).text, context,
                        rf__number(UINT32_MAX).text);
    }
    uint32_t *window = NULL;
    if (!code) {
        window = rf__alloc((size_t)context + 1, sizeof *window);
        code = window ? RF_OK
                      : rf__fail(err, RF_ENOMEM, 0, "no memory to read '%s'", rf__path_tail(path));
    }
    if (code) {
        rf__tokens_close(&tokens);
        return code;
    }
    *out = (struct rf__samples){.count = (uint32_t)tokens.windows,
                                .tokens = tokens,
                                .vocabulary = rf__tokenizer_vocabulary(tokenizer),
                                .window = window};
    return RF_OK;
}

/* A file that is gone has left its index. */
static bool has_index(const struct rf__data_io *io, const char *name) {
    struct rf__index index = {0};

    int code = rf__index_find(io, name, &index, NULL, NULL);
    rf__index_free(&index);
    return !code;
}

int rf__dataset_read_tokens(const struct rf__data_io *io, const char *folder, uint32_t context,
                            struct rf__dataset *out, struct rf_error *err) {
    struct rf__dataset dataset = {.context = context};
    struct rf__tokenizer *tokenizer = NULL;

    int code = rf__tokenizer_load(io->files, folder, &tokenizer, err);
    if (code) {
        goto out;
    }
    dataset.vocabulary = rf__tokenizer_vocabulary(tokenizer);
    code = part_open(io, folder, RF__TOKENS_TRAIN, context, tokenizer, &dataset.train, err);
    if (code) {
        goto out;
    }
    code = part_open(io, folder, RF__TOKENS_TEST, context, tokenizer, &dataset.test, err);
    if (code == RF_ENOTFOUND && !has_index(io, RF__TOKENS_TEST)) { /* made without one */
        code = RF_OK;
    }
    if (!code) {
        *out = dataset;
        dataset = (struct rf__dataset){0};
        rf__error_clear(err); /* of what was looked for on the way */
    }
out:
    rf__tokenizer_destroy(tokenizer);
    rf__dataset_free(&dataset);
    return code;
}

static bool is_known(const struct rf__samples *part, uint32_t sample, struct rf__bad *bad) {
    const struct rf__tokens *tokens = &part->tokens;

    for (uint32_t i = 0; i <= tokens->window; i++) {
        if (part->window[i] >= part->vocabulary) {
            uint64_t token = (uint64_t)sample * tokens->window + i;
            uint64_t block =
                (tokens->at + token * (uint64_t)tokens->width) / (uint64_t)RF__INDEX_BLOCK;
            if (bad) {
                *bad = (struct rf__bad){.file = rf__source_path(tokens->source),
                                        .block = block,
                                        .offset = block * RF__INDEX_BLOCK};
                snprintf(bad->cause, sizeof bad->cause,
                         "range: token %s is %u, expected less than the vocabulary's %u",
                         rf__number(token).text, part->window[i], part->vocabulary);
            }
            return false;
        }
    }
    return true;
}

int rf__windows_usable(const struct rf__samples *part, uint32_t sample, struct rf__bad *bad,
                       struct rf_error *err) {
    struct rf__tokens tokens = part->tokens; /* its source is what changes */

    int code = rf__tokens_read(&tokens, sample, part->window, bad, err);
    if (code) {
        return code == RF_EDATA || code == RF_EIO ? 0 : code;
    }
    return is_known(part, sample, bad) ? 1 : 0;
}

/* A window that was usable, into part->window. */
static int read_again(const struct rf__samples *part, uint32_t sample, struct rf_error *err) {
    struct rf_error own = {0};
    struct rf__bad bad = {0};

    int usable = rf__windows_usable(part, sample, &bad, &own);
    if (usable == 0) {
        return rf__fail(err, RF_EDATA, 0, "sample %s of '%s' can no more be used: %s",
                        rf__number(sample).text, rf__path_tail(bad.file), bad.cause);
    }
    if (usable < 0 && err) {
        *err = own;
    }
    return usable < 0 ? usable : RF_OK;
}

int rf__dataset_gather_tokens(const struct rf__samples *part, const uint32_t *indices,
                              uint32_t count, int32_t *inputs, int32_t *targets,
                              struct rf_error *err) {
    uint32_t context = part->tokens.window;
    int code = RF_OK;

    for (uint32_t s = 0; s < count && !code; s++) {
        code = read_again(part, indices[s], err);
        for (uint32_t i = 0; i < context && !code; i++) {
            inputs[(size_t)s * context + i] = (int32_t)part->window[i];
            targets[(size_t)s * context + i] = (int32_t)part->window[i + 1];
        }
    }
    return code;
}

int rf__dataset_gather_windows(const struct rf__samples *part, const uint32_t *indices,
                               uint32_t count, uint32_t *tokens, struct rf_error *err) {
    size_t window = (size_t)part->tokens.window + 1;
    int code = RF_OK;

    for (uint32_t s = 0; s < count && !code; s++) {
        code = read_again(part, indices[s], err);
        if (!code) {
            memcpy(tokens + s * window, part->window, window * sizeof *tokens);
        }
    }
    return code;
}
