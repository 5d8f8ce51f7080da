/* Tokenizers as files: tokenizer.json, beside the tokens that it made, and for byte pairs the ranks
 * as they came, tokenizer.tiktoken. */
#ifndef RF_DATA_TOKENIZER_FILE_H
#define RF_DATA_TOKENIZER_FILE_H

#include "data/tokenizer.h"
#include "io/blob.h"

#define RF__TOKENIZER_FILE  "tokenizer.json"
#define RF__TOKENIZER_RANKS "tokenizer.tiktoken"
#define RF__TOKENS_TRAIN    "train.bin"
#define RF__TOKENS_TEST     "val.bin"

/* A file that is read whole, at most `most` bytes: *bytes is given back by rf__free. RF_ELIMIT
 * where it is larger. */
int rf__whole_read(struct rf__blobs *files, const char *path, size_t most, unsigned char **bytes,
                   size_t *count, struct rf_error *err);

/* tokenizer.json of it, given back by free(), not rf__free; NULL where there is no memory. `ranks`
 * are those of a gpt2 one. */
char *rf__tokenizer_describe(const struct rf__tokenizer *tokenizer, const unsigned char *ranks,
                             size_t count);

/* The content of a tokenizer.json; for gpt2 only what it says of the ranks. RF_EDATA where it is
 * none. */
struct rf__described {
    enum rf__tokenizer_kind kind;
    uint32_t vocabulary;
    uint32_t *points; /* chars; given back by rf__free */
    uint64_t ranks;   /* gpt2: the digest of its ranks' file */
};

int rf__tokenizer_described(const unsigned char *json, size_t count, const char *name,
                            struct rf__described *out, struct rf_error *err);

/* The tokenizer of a folder that `ringfold data tokens` made. RF_ENOTFOUND where there is none. */
int rf__tokenizer_load(struct rf__blobs *files, const char *folder, struct rf__tokenizer **out,
                       struct rf_error *err);

#endif
