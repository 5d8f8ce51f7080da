/* Token streams: files of 16- or 32-bit little-endian token numbers, one after the other, plain or
 * behind a header of 1,024 bytes (256 numbers of 32 bits: a magic number, a version, the count of
 * tokens; magic 20240520 with version 1 has 16-bit tokens, 20240801 with version 7 32-bit ones).
 * Where others leave zeros, a header of our own goes on with the size of the vocabulary, the upper
 * 32 bits of the count, and the tokenizer's name (from byte 24, 16 bytes, zeros behind it).
 *
 * A sample is a window of T + 1 tokens: T inputs, each with the one after it as its target. Windows
 * follow each other at a distance of T, so every token but the first is a target once; what is left
 * at the end and fills no window is not used. */
#ifndef RF_DATA_TOKENS_H
#define RF_DATA_TOKENS_H

#include "data/source.h"

enum {
    RF__TOKENS_MAX_WINDOW = 1 << 20,
    RF__TOKENS_HEADER = 1024, /* bytes */
    RF__TOKENS_NAME = 16
};

/* A header for so many tokens of `width` bytes, 2 or 4. */
void rf__tokens_header(int width, uint64_t count, uint32_t vocabulary, const char *tokenizer,
                       unsigned char out[RF__TOKENS_HEADER]);

struct rf__tokens {
    struct rf__source *source;
    uint64_t at;      /* where token 0 is in the file */
    uint64_t count;   /* tokens */
    uint64_t windows; /* samples */
    uint32_t window;  /* T */
    int width;        /* bytes of a token: 2 or 4 */

    /* What the header says of the tokenizer; 0 and "" where it says nothing, "?" for a name that is
     * not of a-z and 0-9. */
    uint32_t vocabulary;
    char tokenizer[RF__TOKENS_NAME];
};

/* `path` is NAME of io's folder. `width` is that of a file without a header, 2 or 4; a header
 * overrules it. RF_EDATA where the file cannot be one, or has less than one window. */
int rf__tokens_open(const struct rf__data_io *io, const char *path, const char *name, int width,
                    uint32_t window, size_t cache_bytes, struct rf__tokens *out,
                    struct rf_error *err);
void rf__tokens_close(struct rf__tokens *tokens);

/* The T + 1 tokens of a window. 0; RF_EDATA or RF_EIO with `bad` filled where a block of it cannot
 * be used. */
int rf__tokens_read(struct rf__tokens *tokens, uint64_t sample, uint32_t *out, struct rf__bad *bad,
                    struct rf_error *err);

#endif
