/* The three tokenizers, and their way back to text. Their way forth is in encoder.c. */
#include "data/tokenizer.h"

#include "base/assert.h"
#include "base/mem.h"
#include "base/status.h"
#include "data/text.h"
#include "data/tokenizer_inner.h"
#include "data/utf8.h"

#include <string.h>

static const char END_OF_TEXT[] = "<|endoftext|>";
static const char *const NAMES[RF__TOKENIZER_KINDS] = {"chars", "bytes", "gpt2"};

_Static_assert((int)RF__TOKEN_BYTES == (int)RF__BPE_TOKEN_BYTES, "room for any token's bytes");

const char *rf__tokenizer_name(enum rf__tokenizer_kind kind) {
    return NAMES[kind];
}

int rf__tokenizer_parse(const char *name, enum rf__tokenizer_kind *out, struct rf_error *err) {
    for (int k = 0; k < RF__TOKENIZER_KINDS; k++) {
        if (!strcmp(name, NAMES[k])) {
            *out = (enum rf__tokenizer_kind)k;
            return RF_OK;
        }
    }
    return rf__fail(err, RF_EINVAL, 0, "'%.40s' is no tokenizer, expected chars, bytes or gpt2",
                    name);
}

/* --- making them ------------------------------------------------------------------------------ */

static int no_memory(struct rf_error *err) {
    return rf__fail(err, RF_ENOMEM, 0, "no memory for a tokenizer");
}

int rf__tokenizer_bytes(struct rf__tokenizer **out, struct rf_error *err) {
    struct rf__tokenizer *tokenizer = rf__alloc(1, sizeof *tokenizer);

    if (!tokenizer) {
        return no_memory(err);
    }
    tokenizer->kind = RF__TOKENIZER_BYTES;
    tokenizer->vocabulary = 256;
    *out = tokenizer;
    return RF_OK;
}

static bool is_point(uint32_t point) {
    return point < RF__UTF8_POINTS && (point < 0xD800 || point > 0xDFFF);
}

int rf__tokenizer_chars(const uint32_t *points, uint32_t count, struct rf__tokenizer **out,
                        struct rf_error *err) {
    struct rf__tokenizer *tokenizer = NULL;
    int code = RF_OK;

    for (uint32_t i = 0; i < count && !code; i++) {
        if (!is_point(points[i]) || (i && points[i] <= points[i - 1])) {
            code = rf__fail(err, RF_EDATA, 0,
                            "character %s of the vocabulary is %s, expected Unicode characters, "
                            "ascending",
                            rf__number(i).text, rf__number(points[i]).text);
        }
    }
    if (!code && !count) {
        code = rf__fail(err, RF_EDATA, 0, "a vocabulary without a character");
    }
    if (code) {
        return code;
    }
    tokenizer = rf__alloc(1, sizeof *tokenizer);
    if (!tokenizer) {
        return no_memory(err);
    }
    tokenizer->kind = RF__TOKENIZER_CHARS;
    tokenizer->vocabulary = count;
    tokenizer->points = rf__alloc(count, sizeof *tokenizer->points);
    tokenizer->token_of = rf__alloc((size_t)points[count - 1] + 1, sizeof *tokenizer->token_of);
    if (!tokenizer->points || !tokenizer->token_of) {
        rf__tokenizer_destroy(tokenizer);
        return no_memory(err);
    }
    memcpy(tokenizer->points, points, count * sizeof *points);
    for (uint32_t i = 0; i < count; i++) {
        tokenizer->token_of[points[i]] = i + 1;
    }
    *out = tokenizer;
    return RF_OK;
}

int rf__tokenizer_gpt2(const unsigned char *ranks, size_t count, const char *name,
                       struct rf__tokenizer **out, struct rf_error *err) {
    struct rf__tokenizer *tokenizer = rf__alloc(1, sizeof *tokenizer);

    if (!tokenizer) {
        return no_memory(err);
    }
    tokenizer->kind = RF__TOKENIZER_GPT2;
    int code = rf__bpe_create(ranks, count, name, &tokenizer->bpe, err);
    if (code) {
        rf__tokenizer_destroy(tokenizer);
        return code;
    }
    tokenizer->vocabulary = rf__bpe_count(tokenizer->bpe) + 1;
    *out = tokenizer;
    return RF_OK;
}

void rf__tokenizer_destroy(struct rf__tokenizer *tokenizer) {
    if (tokenizer) {
        rf__free(tokenizer->points);
        rf__free(tokenizer->token_of);
        rf__bpe_destroy(tokenizer->bpe);
        rf__free(tokenizer);
    }
}

/* --- what they are ---------------------------------------------------------------------------- */

enum rf__tokenizer_kind rf__tokenizer_kind(const struct rf__tokenizer *tokenizer) {
    return tokenizer->kind;
}

uint32_t rf__tokenizer_vocabulary(const struct rf__tokenizer *tokenizer) {
    return tokenizer->vocabulary;
}

int32_t rf__tokenizer_end(const struct rf__tokenizer *tokenizer) {
    return tokenizer->kind == RF__TOKENIZER_GPT2 ? (int32_t)tokenizer->vocabulary - 1
                                                 : RF__NO_TOKEN;
}

const uint32_t *rf__tokenizer_points(const struct rf__tokenizer *tokenizer) {
    RF_ASSERT(tokenizer->kind == RF__TOKENIZER_CHARS);
    return tokenizer->points;
}

size_t rf__tokenizer_token(const struct rf__tokenizer *tokenizer, uint32_t token,
                           unsigned char out[RF__TOKEN_BYTES]) {
    size_t count = 1;

    RF_ASSERT(token < tokenizer->vocabulary);
    switch (tokenizer->kind) {
    case RF__TOKENIZER_CHARS:
        return (size_t)rf__utf8_put(tokenizer->points[token], out);
    case RF__TOKENIZER_BYTES:
        out[0] = (unsigned char)token;
        return count;
    case RF__TOKENIZER_GPT2:
        break;
    }
    const unsigned char *bytes = (const unsigned char *)END_OF_TEXT;
    count = sizeof END_OF_TEXT - 1;
    if (token + 1 < tokenizer->vocabulary) {
        bytes = rf__bpe_token(tokenizer->bpe, token, &count);
    }
    memcpy(out, bytes, count);
    return count;
}

/* --- decoding --------------------------------------------------------------------------------- */

/* Copies the characters; bytes that are none become U+FFFD, one for each. Those at the end that may
 * yet become one are kept, unless this is the end. */
static size_t text_put(struct rf__decoder *decoder, const unsigned char *bytes, size_t count,
                       bool is_last, char *out) {
    unsigned char replacement[RF__UTF8_MAX];
    size_t replaced = (size_t)rf__utf8_put(RF__UTF8_REPLACEMENT, replacement);
    size_t at = 0, put = 0;

    decoder->count = 0;
    while (at < count) {
        uint32_t point;
        int length = rf__utf8_next(bytes + at, count - at, &point);
        if (length == RF__UTF8_CUT && !is_last) {
            decoder->count = count - at;
            memcpy(decoder->kept, bytes + at, decoder->count);
            break;
        }
        bool good = length > 0;
        memcpy(out + put, good ? bytes + at : replacement, good ? (size_t)length : replaced);
        put += good ? (size_t)length : replaced;
        at += good ? (size_t)length : 1;
    }
    return put;
}

size_t rf__tokenizer_decode(const struct rf__tokenizer *tokenizer, struct rf__decoder *decoder,
                            uint32_t token, char out[RF__DECODED_BYTES]) {
    unsigned char bytes[RF__TOKEN_BYTES + sizeof decoder->kept];
    size_t kept = decoder->count;

    memcpy(bytes, decoder->kept, kept);
    size_t count = rf__tokenizer_token(tokenizer, token, bytes + kept);
    return text_put(decoder, bytes, kept + count, false, out);
}

size_t rf__tokenizer_decode_end(struct rf__decoder *decoder, char out[RF__DECODED_BYTES]) {
    unsigned char bytes[sizeof decoder->kept];
    size_t kept = decoder->count;

    memcpy(bytes, decoder->kept, kept);
    return text_put(decoder, bytes, kept, true, out);
}
