/* What a tokenizer holds: for tokenizer.c and encoder.c alone. */
#ifndef RF_DATA_TOKENIZER_INNER_H
#define RF_DATA_TOKENIZER_INNER_H

#include "data/bpe.h"
#include "data/tokenizer.h"

struct rf__tokenizer {
    enum rf__tokenizer_kind kind;
    uint32_t vocabulary;

    /* chars: the characters, and the token + 1 of each up to the last of them; 0: it has none. */
    uint32_t *points, *token_of;

    struct rf__bpe *bpe; /* gpt2 */
};

#endif
