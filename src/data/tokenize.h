/* Texts to a folder of tokens: train.bin, val.bin, their indices, and what is needed to read them
 * back (tokenizer.json, tokenizer.tiktoken). What `ringfold data tokens` does.
 *
 * The last part of each text, by bytes, is for validation; the cut is moved behind the character
 * that it meets. In each part the texts follow each other in the order given, with gpt2 an
 * <|endoftext|> between two of them.
 *
 * Texts are streamed, twice (chars: three times): a file begins with how many tokens follow. Memory
 * does not depend on their size. Files appear whole, tokenizer.json last, without which the folder
 * is none of tokens. */
#ifndef RF_DATA_TOKENIZE_H
#define RF_DATA_TOKENIZE_H

#include "data/index.h"
#include "data/tokenizer.h"

struct rf__tokenize {
    const struct rf__data_io *io; /* the folder that is made; `files` reads the texts by path */
    const char *const *texts;
    size_t count;
    enum rf__tokenizer_kind kind;
    const char *ranks; /* gpt2: path of the .tiktoken file */
    double validation; /* the share of each text: 0, then there is no val.bin, to less than 1 */
    bool replace;      /* a folder of tokens that is there; else RF_EEXISTS */

    /* Called about once for each MiB; false ends the work with RF_ESTOPPED. May be NULL. */
    bool (*go_on)(void *context, uint64_t done, uint64_t total);
    void *context;
};

struct rf__tokenized_part {
    uint64_t tokens, text_bytes, file_bytes;
};

struct rf__tokenized {
    uint32_t vocabulary;
    int width; /* bytes of a token */
    struct rf__tokenized_part train, validation;
};

/* RF_EDATA where a text cannot be encoded or a part has too little, RF_EIO where a file cannot be
 * written. Nothing of what was begun is left then. */
int rf__tokenize(const struct rf__tokenize *tokenize, struct rf__tokenized *out,
                 struct rf_error *err);

#endif
