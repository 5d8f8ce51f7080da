/* A text as a folder of tokens in memory, "set/train.bin", "set/val.bin" and "set/tokenizer.json":
 * letters whose next one mostly follows from the one before, so that a model can learn something.
 * Only read, so any number of threads may. For the trainer's tests. */
#ifndef TESTS_TOKEN_SET_H
#define TESTS_TOKEN_SET_H

#include "base/rng.h"
#include "base/status.h"
#include "data/tokenizer_file.h"
#include "data/tokens.h"
#include "io/blob.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SET_CONTEXT = 8,
    SET_WINDOWS = 50, /* and a few tokens that fill none */
    SET_TEST_WINDOWS = 21,
    SET_VOCABULARY = 256,
    SET_LETTERS = 11
};

struct token_file {
    const char *name;
    unsigned char *bytes;
    size_t count;
};

static struct token_file token_files[3];

struct token_blobs {
    struct rf__blobs base;
    bool no_test; /* there is no val.bin */
};

static int token_open(struct rf__blobs *blobs, const char *name, struct rf__blob **out,
                      uint64_t *bytes, struct rf_error *err) {
    const struct token_blobs *self = (const struct token_blobs *)blobs;
    for (size_t i = 0; i < 3; i++) {
        if (!strcmp(name, token_files[i].name) && !(i == 1 && self->no_test)) {
            *out = (struct rf__blob *)&token_files[i];
            *bytes = token_files[i].count;
            return RF_OK;
        }
    }
    return rf__fail(err, RF_ENOTFOUND, 0, "no '%s'", name);
}

static ssize_t token_read(struct rf__blobs *blobs, struct rf__blob *blob, uint64_t offset,
                          void *buffer, size_t bytes, struct rf_error *err) {
    const struct token_file *file = (const struct token_file *)blob;
    (void)blobs;
    (void)err;
    size_t left = offset < file->count ? file->count - (size_t)offset : 0;
    size_t n = bytes < left ? bytes : left;
    memcpy(buffer, file->bytes + (n ? offset : 0), n);
    return (ssize_t)n;
}

static void token_close(struct rf__blobs *blobs, struct rf__blob *blob) {
    (void)blobs;
    (void)blob;
}

static const struct rf__blob_ops token_ops = {
    .open = token_open, .read = token_read, .close = token_close};

static unsigned char *token_at(struct token_file *file, size_t index) {
    return file->bytes + RF__TOKENS_HEADER + 2 * index;
}

static void token_part(struct token_file *file, const char *name, size_t windows, uint64_t stream) {
    size_t count = windows * SET_CONTEXT + 5;
    struct rf__rng rng = rf__rng(7, stream, 0);
    unsigned letter = 0;

    *file = (struct token_file){.name = name, .count = RF__TOKENS_HEADER + 2 * count};
    file->bytes = calloc(1, file->count);
    rf__tokens_header(2, count, SET_VOCABULARY, "bytes", file->bytes);
    for (size_t i = 0; i < count; i++) {
        letter = rf__rng_below(&rng, 8) ? (letter * 3 + 1) % SET_LETTERS
                                        : (unsigned)rf__rng_below(&rng, SET_LETTERS);
        *token_at(file, i) = (unsigned char)('a' + letter);
    }
}

/* A token of window `window` that no vocabulary has, or a good one again: such a window cannot be
 * used. */
static inline void token_spoil(uint32_t window, bool bad) {
    token_at(&token_files[0], (size_t)window * SET_CONTEXT + 3)[1] = bad ? 0x40 : 0;
}

static int token_set_make(void **state) {
    struct rf__tokenizer *tokenizer = NULL;
    (void)state;

    token_part(&token_files[0], "set/train.bin", SET_WINDOWS, 0);
    token_part(&token_files[1], "set/val.bin", SET_TEST_WINDOWS, 1);
    if (rf__tokenizer_bytes(&tokenizer, NULL)) {
        abort();
    }
    char *json = rf__tokenizer_describe(tokenizer, NULL, 0);
    token_files[2] = (struct token_file){
        .name = "set/tokenizer.json", .bytes = (unsigned char *)json, .count = strlen(json)};
    rf__tokenizer_destroy(tokenizer);
    return 0;
}

static int token_set_drop(void **state) {
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        free(token_files[i].bytes);
    }
    return 0;
}

#endif
