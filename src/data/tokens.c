/* Token streams, read window by window through a source. */
#include "data/tokens.h"

#include "base/assert.h"
#include "base/cursor.h"
#include "base/status.h"
#include "data/text.h"

#include <string.h>

enum { HEADER_BYTES = RF__TOKENS_HEADER, KNOWN_BYTES = 24 + RF__TOKENS_NAME, PIECE_BYTES = 4096 };

static const struct {
    uint32_t magic, version;
    int width;
} kinds[] = {{20240520, 1, 2}, {20240801, 7, 4}};

/* Whether there is a header; fills in what it says. */
static int header_take(struct rf__tokens *tokens, const char *path, struct rf_error *err) {
    unsigned char bytes[KNOWN_BYTES];
    uint64_t whole = rf__source_bytes(tokens->source);

    if (whole < HEADER_BYTES) {
        return RF_OK;
    }
    int code = rf__source_read(tokens->source, 0, bytes, sizeof bytes, NULL, err);
    if (code == RF_EDATA || code == RF_EIO) {
        return rf__wrap(err, code, "nothing can be read without the header: ");
    }
    if (code) {
        return code;
    }
    struct rf__reader r = rf__reader(bytes, sizeof bytes);
    uint32_t magic = rf__read_u32(&r);
    uint32_t version = rf__read_u32(&r);
    uint64_t count = rf__read_u32(&r);
    uint32_t vocabulary = rf__read_u32(&r);
    count |= (uint64_t)rf__read_u32(&r) << 32;
    (void)rf__read_u32(&r);
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        if (magic != kinds[k].magic) {
            continue;
        }
        if (version != kinds[k].version) {
            return rf__fail(err, RF_EDATA, 0, "'%s' has version %u (byte 4), expected %u",
                            rf__path_tail(path), version, kinds[k].version);
        }
        uint64_t expected = HEADER_BYTES + count * (uint64_t)kinds[k].width;
        if (count > RF__INDEX_MAX_BYTES || expected != whole) {
            return rf__fail(err, RF_EDATA, 0,
                            "'%s' has %s bytes, expected %s for the %s tokens of its header",
                            rf__path_tail(path), rf__number(whole).text, rf__number(expected).text,
                            rf__number(count).text);
        }
        tokens->at = HEADER_BYTES;
        tokens->width = kinds[k].width;
        tokens->vocabulary = vocabulary;
        rf__read_bytes(&r, tokens->tokenizer, sizeof tokens->tokenizer);
        tokens->tokenizer[sizeof tokens->tokenizer - 1] = 0;
        if (tokens->tokenizer[strspn(tokens->tokenizer, "abcdefghijklmnopqrstuvwxyz0123456789")]) {
            memcpy(tokens->tokenizer, "?",
                   2); /* no tokenizer is called so, and it may be printed */
        }
    }
    return RF_OK;
}

void rf__tokens_header(int width, uint64_t count, uint32_t vocabulary, const char *tokenizer,
                       unsigned char out[RF__TOKENS_HEADER]) {
    size_t k = kinds[0].width == width ? 0 : 1;
    struct rf__writer w = rf__writer(out, HEADER_BYTES);

    RF_ASSERT(kinds[k].width == width && strlen(tokenizer) < RF__TOKENS_NAME);
    memset(out, 0, HEADER_BYTES);
    rf__write_u32(&w, kinds[k].magic);
    rf__write_u32(&w, kinds[k].version);
    rf__write_u32(&w, (uint32_t)count);
    rf__write_u32(&w, vocabulary);
    rf__write_u32(&w, (uint32_t)(count >> 32));
    rf__write_u32(&w, 0);
    rf__write_bytes(&w, tokenizer, strlen(tokenizer));
}

/* How many tokens and windows there are. */
static int count_take(struct rf__tokens *tokens, const char *path, struct rf_error *err) {
    uint64_t bytes = rf__source_bytes(tokens->source) - tokens->at;

    if (bytes % (uint64_t)tokens->width) {
        return rf__fail(err, RF_EDATA, 0, "'%s' has %s bytes, which %d-bit tokens do not fill",
                        rf__path_tail(path), rf__number(bytes).text, 8 * tokens->width);
    }
    tokens->count = bytes / (uint64_t)tokens->width;
    tokens->windows = tokens->count ? (tokens->count - 1) / tokens->window : 0;
    if (!tokens->windows) {
        return rf__fail(err, RF_EDATA, 0, "'%s' has %s tokens, expected more than a window of %u",
                        rf__path_tail(path), rf__number(tokens->count).text, tokens->window);
    }
    return RF_OK;
}

int rf__tokens_open(const struct rf__data_io *io, const char *path, const char *name, int width,
                    uint32_t window, size_t cache_bytes, struct rf__tokens *out,
                    struct rf_error *err) {
    struct rf__tokens tokens = {.window = window, .width = width};
    struct rf__index index = {0};

    if ((width != 2 && width != 4) || !window || window > RF__TOKENS_MAX_WINDOW) {
        return rf__fail(err, RF_EINVAL, 0,
                        "tokens of %d bytes in windows of %u: expected 2 or 4, and 1 to %d", width,
                        window, RF__TOKENS_MAX_WINDOW);
    }
    int code = rf__index_of(io, path, name, &index, err);
    if (!code) {
        code = rf__source_open(io->files, path, &index, cache_bytes, &tokens.source, err);
    }
    if (!code) {
        code = header_take(&tokens, path, err);
    }
    if (!code) {
        code = count_take(&tokens, path, err);
    }
    rf__index_free(&index);
    if (code) {
        rf__tokens_close(&tokens);
    } else {
        *out = tokens;
    }
    return code;
}

void rf__tokens_close(struct rf__tokens *tokens) {
    rf__source_close(tokens->source);
    *tokens = (struct rf__tokens){0};
}

int rf__tokens_read(struct rf__tokens *tokens, uint64_t sample, uint32_t *out, struct rf__bad *bad,
                    struct rf_error *err) {
    unsigned char piece[PIECE_BYTES];
    size_t width = (size_t)tokens->width;
    uint64_t at = tokens->at + sample * tokens->window * width;
    size_t left = (size_t)tokens->window + 1;
    int code = RF_OK;

    RF_ASSERT(sample < tokens->windows);
    while (left && !code) {
        size_t n = left < PIECE_BYTES / width ? left : PIECE_BYTES / width;
        code = rf__source_read(tokens->source, at, piece, n * width, bad, err);
        struct rf__reader r = rf__reader(piece, code ? 0 : n * width);
        for (size_t i = 0; i < n && !code; i++) {
            *out++ = (uint32_t)rf__read_unsigned(&r, width);
        }
        at += n * width;
        left -= n;
    }
    return code;
}
