/* Tokenizers: text to token numbers and back.
 *
 *   chars  a token a character (Unicode code point); the vocabulary is those of the text it was
 *          made of, ascending
 *   bytes  a token a byte: 256
 *   gpt2   GPT-2's byte pairs (data/bpe, data/pieces): any bytes; <|endoftext|> is the token behind
 *          those of the ranks, 50256 with GPT-2's own. Text never becomes that one: what looks like
 *          it is text
 *
 * Encoding is a stream: text is fed as it comes, in bounded memory, and the tokens do not depend on
 * how it was cut. The one limit: a word, or a stretch of white space or signs, of more than 256 KiB
 * is cut there.
 *
 * A tokenizer is not changed by its use, by any number of threads at once; encoders and decoders
 * are one thread's. */
#ifndef RF_DATA_TOKENIZER_H
#define RF_DATA_TOKENIZER_H

#include <ringfold/error.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum rf__tokenizer_kind { RF__TOKENIZER_CHARS, RF__TOKENIZER_BYTES, RF__TOKENIZER_GPT2 };

enum { RF__TOKENIZER_KINDS = 3, RF__NO_TOKEN = -1 };

/* "chars", "bytes", "gpt2"; and back: RF_EINVAL for anything else. */
const char *rf__tokenizer_name(enum rf__tokenizer_kind kind);
int rf__tokenizer_parse(const char *name, enum rf__tokenizer_kind *out, struct rf_error *err);

struct rf__tokenizer;

int rf__tokenizer_bytes(struct rf__tokenizer **out, struct rf_error *err);

/* `points`: ascending, at least one; RF_EDATA where they are not that. */
int rf__tokenizer_chars(const uint32_t *points, uint32_t count, struct rf__tokenizer **out,
                        struct rf_error *err);

/* The content of a .tiktoken file; `name` for the report. */
int rf__tokenizer_gpt2(const unsigned char *ranks, size_t count, const char *name,
                       struct rf__tokenizer **out, struct rf_error *err);
void rf__tokenizer_destroy(struct rf__tokenizer *tokenizer);

enum rf__tokenizer_kind rf__tokenizer_kind(const struct rf__tokenizer *tokenizer);
uint32_t rf__tokenizer_vocabulary(const struct rf__tokenizer *tokenizer); /* tokens are less */
int32_t rf__tokenizer_end(const struct rf__tokenizer *tokenizer); /* <|endoftext|>, RF__NO_TOKEN */

/* The characters of one for characters. */
const uint32_t *rf__tokenizer_points(const struct rf__tokenizer *tokenizer);

/* The bytes of a token of the vocabulary, which may be part of a character: at most
 * RF__TOKEN_BYTES. */
enum { RF__TOKEN_BYTES = 1 << 10 };

size_t rf__tokenizer_token(const struct rf__tokenizer *tokenizer, uint32_t token,
                           unsigned char out[RF__TOKEN_BYTES]);

/* --- encoding --------------------------------------------------------------------------------- */

struct rf__encoder;

/* Tokens are given to `sink`, many at a time; what it returns other than 0 ends the call and is
 * returned. `tokenizer` is borrowed. */
int rf__encoder_create(const struct rf__tokenizer *tokenizer,
                       int (*sink)(void *context, const uint32_t *tokens, size_t count,
                                   struct rf_error *err),
                       void *context, struct rf__encoder **out, struct rf_error *err);
void rf__encoder_destroy(struct rf__encoder *encoder);

/* RF_EDATA, with the byte's place in this text, where a tokenizer for characters meets what is not
 * UTF-8 or has no token. After an error the encoder is of no more use. */
int rf__encoder_feed(struct rf__encoder *encoder, const unsigned char *text, size_t count,
                     struct rf_error *err);

/* The text ends; the next feed begins another. All tokens have been given to the sink. */
int rf__encoder_end(struct rf__encoder *encoder, struct rf_error *err);

/* A short text at once: *tokens is given back by rf__free. */
int rf__tokenizer_encode(const struct rf__tokenizer *tokenizer, const void *text, size_t count,
                         uint32_t **tokens, size_t *got, struct rf_error *err);

/* --- decoding --------------------------------------------------------------------------------- */

/* Tokens to whole characters: of one that is not all there yet the bytes are kept back. Zeroed is
 * new. */
struct rf__decoder {
    unsigned char kept[4];
    size_t count;
};

/* What a token can add: its bytes and those kept, each perhaps as U+FFFD. */
enum { RF__DECODED_BYTES = 3 * (RF__TOKEN_BYTES + 4) };

/* The text that a token adds, UTF-8; bytes that are not UTF-8 become U+FFFD. Its length; the token
 * must be one. `out` is not ended by a zero. */
size_t rf__tokenizer_decode(const struct rf__tokenizer *tokenizer, struct rf__decoder *decoder,
                            uint32_t token, char out[RF__DECODED_BYTES]);

/* The text ends: what was kept back, which is no character. */
size_t rf__tokenizer_decode_end(struct rf__decoder *decoder, char out[RF__DECODED_BYTES]);

#endif
