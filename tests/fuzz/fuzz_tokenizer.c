/* Fuzz target: bytes as a file of ranks, as a tokenizer.json and as a text. What is accepted is
 * consistent: whatever the ranks and the text, decoding gives back the bytes that were encoded.
 * Compiled alone for a fuzzer, included by tests/unit/test_tokenizer.c under another name. */
#include "base/assert.h"
#include "base/mem.h"
#include "data/tokenizer_file.h"
#include "data/utf8.h"
#include "support/small_ranks.h"

#ifndef FUZZ_TOKENIZER
#define FUZZ_TOKENIZER LLVMFuzzerTestOneInput
#endif

int FUZZ_TOKENIZER(const uint8_t *bytes, size_t count);

static void there_and_back(const struct rf__tokenizer *tokenizer, const uint8_t *text,
                           size_t count) {
    unsigned char token[RF__TOKEN_BYTES];
    uint32_t *tokens = NULL;
    size_t got = 0, at = 0;

    int code = rf__tokenizer_encode(tokenizer, text, count, &tokens, &got, NULL);
    if (code) {
        RF_ASSERT(code == RF_EDATA && rf__tokenizer_kind(tokenizer) == RF__TOKENIZER_CHARS);
        return;
    }
    for (size_t i = 0; i < got; i++) {
        RF_ASSERT(tokens[i] < rf__tokenizer_vocabulary(tokenizer));
        size_t length = rf__tokenizer_token(tokenizer, tokens[i], token);
        RF_ASSERT(length && length <= count - at && !memcmp(token, text + at, length));
        at += length;
    }
    RF_ASSERT(at == count);
    rf__free(tokens);
}

/* What comes out is UTF-8, and is the text where that is. */
static void read_aloud(const struct rf__tokenizer *tokenizer, const uint8_t *text, size_t count) {
    struct rf__decoder decoder = {.count = 0};
    char out[RF__DECODED_BYTES];
    uint32_t *tokens = NULL;
    size_t got = 0, at = 0;
    bool is_valid = rf__utf8_valid(text, count) == count;

    RF_ASSERT(!rf__tokenizer_encode(tokenizer, text, count, &tokens, &got, NULL));
    for (size_t i = 0; i <= got; i++) {
        size_t put = i < got ? rf__tokenizer_decode(tokenizer, &decoder, tokens[i], out)
                             : rf__tokenizer_decode_end(&decoder, out);
        RF_ASSERT(put <= sizeof out && rf__utf8_valid((const unsigned char *)out, put) == put);
        RF_ASSERT(!is_valid || (put <= count - at && !memcmp(text + at, out, put)));
        at += is_valid ? put : 0;
    }
    RF_ASSERT(!is_valid || at == count);
    rf__free(tokens);
}

static void as_text(const uint8_t *bytes, size_t count) {
    static struct small_ranks ranks;
    static struct rf__tokenizer *gpt2, *plain; /* made once: they do not change */

    if (!gpt2) {
        ranks_words(&ranks);
        RF_ASSERT(!rf__tokenizer_gpt2(ranks.text, ranks.count, "ranks", &gpt2, NULL) &&
                  !rf__tokenizer_bytes(&plain, NULL));
    }
    there_and_back(gpt2, bytes, count);
    there_and_back(plain, bytes, count);
    read_aloud(gpt2, bytes, count);
    read_aloud(plain, bytes, count);
}

static void as_ranks(const uint8_t *bytes, size_t count) {
    struct rf__tokenizer *tokenizer = NULL;

    if (!rf__tokenizer_gpt2(bytes, count, "fuzzed", &tokenizer, NULL)) {
        there_and_back(tokenizer, bytes, count);
        rf__tokenizer_destroy(tokenizer);
    }
}

static void as_description(const uint8_t *bytes, size_t count) {
    struct rf__described described = {0};
    struct rf__tokenizer *tokenizer = NULL;

    if (rf__tokenizer_described(bytes, count, "fuzzed", &described, NULL)) {
        return;
    }
    RF_ASSERT(described.vocabulary &&
              (described.kind == RF__TOKENIZER_CHARS) == (described.points != NULL));
    if (described.points &&
        !rf__tokenizer_chars(described.points, described.vocabulary, &tokenizer, NULL)) {
        there_and_back(tokenizer, bytes, count);
        rf__tokenizer_destroy(tokenizer);
    }
    rf__free(described.points);
}

int FUZZ_TOKENIZER(const uint8_t *bytes, size_t count) {
    as_text(bytes, count);
    as_ranks(bytes, count);
    as_description(bytes, count);
    return 0;
}
