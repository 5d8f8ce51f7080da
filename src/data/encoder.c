/* Text to tokens, as it comes: what is fed is gathered to a window, tokens are made from its front,
 * and what the text that follows may still change is moved there. */
#include "base/assert.h"
#include "base/mem.h"
#include "base/status.h"
#include "data/pieces.h"
#include "data/text.h"
#include "data/tokenizer_inner.h"
#include "data/utf8.h"

#include <string.h>

enum { WINDOW_BYTES = RF__BPE_PIECE_BYTES, TOKENS_ROOM = 2 * WINDOW_BYTES };

struct rf__encoder {
    const struct rf__tokenizer *tokenizer;
    int (*sink)(void *context, const uint32_t *tokens, size_t count, struct rf_error *err);
    void *context;
    struct rf__pieces *pieces; /* gpt2 */
    struct rf__bpe_room room;
    uint64_t at; /* of the window in this text */
    size_t filled;
    size_t token_count;
    unsigned char window[WINDOW_BYTES];
    uint32_t tokens[TOKENS_ROOM];
};

int rf__encoder_create(const struct rf__tokenizer *tokenizer,
                       int (*sink)(void *context, const uint32_t *tokens, size_t count,
                                   struct rf_error *err),
                       void *context, struct rf__encoder **out, struct rf_error *err) {
    struct rf__encoder *encoder = rf__alloc(1, sizeof *encoder);
    int code = RF_OK;

    if (!encoder) {
        return rf__fail(err, RF_ENOMEM, 0, "no memory to encode text");
    }
    encoder->tokenizer = tokenizer;
    encoder->sink = sink;
    encoder->context = context;
    if (tokenizer->kind == RF__TOKENIZER_GPT2) {
        code = rf__pieces_create(&encoder->pieces, err);
    }
    if (code) {
        rf__encoder_destroy(encoder);
    } else {
        *out = encoder;
    }
    return code;
}

void rf__encoder_destroy(struct rf__encoder *encoder) {
    if (encoder) {
        rf__pieces_destroy(encoder->pieces);
        rf__bpe_room_free(&encoder->room);
        rf__free(encoder);
    }
}

static int tokens_give(struct rf__encoder *encoder, struct rf_error *err) {
    size_t count = encoder->token_count;

    encoder->token_count = 0;
    return count ? encoder->sink(encoder->context, encoder->tokens, count, err) : RF_OK;
}

/* --- the three ways --------------------------------------------------------------------------- */

static int byte_refuse(uint64_t at, unsigned char byte, struct rf_error *err) {
    return rf__fail(err, RF_EDATA, 0, "byte %s (0x%02X) is not UTF-8, which chars needs",
                    rf__number(at).text, byte);
}

static int point_refuse(uint64_t at, uint32_t point, struct rf_error *err) {
    unsigned char bytes[RF__UTF8_MAX];
    int length = rf__utf8_put(point, bytes);
    bool shown = point >= ' ' && point != 0x7F && !(point >= 0x80 && point < 0xA0);

    return rf__fail(err, RF_EDATA, 0, "U+%04X%s%.*s%s at byte %s is not in the vocabulary", point,
                    shown ? " '" : "", shown ? length : 0, (const char *)bytes, shown ? "'" : "",
                    rf__number(at).text);
}

static int chars_encode(struct rf__encoder *encoder, bool is_last, size_t *used,
                        struct rf_error *err) {
    const struct rf__tokenizer *tokenizer = encoder->tokenizer;
    uint32_t last = tokenizer->points[tokenizer->vocabulary - 1];
    size_t at = 0;

    while (at < encoder->filled) {
        uint32_t point;
        int length = rf__utf8_next(encoder->window + at, encoder->filled - at, &point);
        if (length == RF__UTF8_CUT && !is_last) {
            break;
        }
        if (length <= 0) {
            return byte_refuse(encoder->at + at, encoder->window[at], err);
        }
        uint32_t token = point <= last ? tokenizer->token_of[point] : 0;
        if (!token) {
            return point_refuse(encoder->at + at, point, err);
        }
        encoder->tokens[encoder->token_count++] = token - 1;
        at += (size_t)length;
    }
    *used = at;
    return RF_OK;
}

static void bytes_encode(struct rf__encoder *encoder, size_t *used) {
    for (size_t i = 0; i < encoder->filled; i++) {
        encoder->tokens[encoder->token_count + i] = encoder->window[i];
    }
    encoder->token_count += encoder->filled;
    *used = encoder->filled;
}

static int piece_encode(void *context, const unsigned char *piece, size_t count,
                        struct rf_error *err) {
    struct rf__encoder *encoder = context;
    size_t got = 0;

    int code = rf__bpe_encode(encoder->tokenizer->bpe, &encoder->room, piece, count,
                              encoder->tokens + encoder->token_count, &got, err);
    encoder->token_count += got;
    return code;
}

static int gpt2_encode(struct rf__encoder *encoder, bool is_last, size_t *used,
                       struct rf_error *err) {
    int code = rf__pieces_split(encoder->pieces, encoder->window, encoder->filled, is_last, used,
                                piece_encode, encoder, err);
    if (!code && !*used && encoder->filled == WINDOW_BYTES) { /* a word longer than any is */
        size_t whole = rf__utf8_whole(encoder->window, WINDOW_BYTES);
        code = rf__pieces_split(encoder->pieces, encoder->window, whole, true, used, piece_encode,
                                encoder, err);
    }
    return code;
}

/* --- the stream ------------------------------------------------------------------------------- */

/* Makes tokens of the window, at most one for each of its bytes, and moves what is left to its
 * front. */
static int window_encode(struct rf__encoder *encoder, bool is_last, struct rf_error *err) {
    size_t used = 0;
    int code = RF_OK;

    if (encoder->token_count + encoder->filled > TOKENS_ROOM) {
        code = tokens_give(encoder, err);
    }
    if (code) {
        return code;
    }
    switch (encoder->tokenizer->kind) {
    case RF__TOKENIZER_CHARS:
        code = chars_encode(encoder, is_last, &used, err);
        break;
    case RF__TOKENIZER_BYTES:
        bytes_encode(encoder, &used);
        break;
    case RF__TOKENIZER_GPT2:
        code = gpt2_encode(encoder, is_last, &used, err);
        break;
    }
    encoder->filled -= used;
    encoder->at += used;
    memmove(encoder->window, encoder->window + used, encoder->filled);
    return code;
}

int rf__encoder_feed(struct rf__encoder *encoder, const unsigned char *text, size_t count,
                     struct rf_error *err) {
    int code = RF_OK;

    while (count && !code) {
        size_t room = WINDOW_BYTES - encoder->filled;
        size_t n = count < room ? count : room;
        RF_ASSERT(room);
        memcpy(encoder->window + encoder->filled, text, n);
        encoder->filled += n;
        text += n;
        count -= n;
        if (encoder->filled == WINDOW_BYTES) {
            code = window_encode(encoder, false, err);
        }
    }
    return code;
}

int rf__encoder_end(struct rf__encoder *encoder, struct rf_error *err) {
    int code = window_encode(encoder, true, err);

    RF_ASSERT(code || !encoder->filled);
    encoder->at = 0;
    return code ? code : tokens_give(encoder, err);
}

/* --- at once ---------------------------------------------------------------------------------- */

struct gathering {
    uint32_t *tokens;
    size_t count, room;
};

static int gather(void *context, const uint32_t *tokens, size_t count, struct rf_error *err) {
    struct gathering *gathering = context;

    if (gathering->count + count > gathering->room) {
        size_t room = 2 * gathering->room + count;
        uint32_t *grown = rf__grow(gathering->tokens, room, sizeof *grown);
        if (!grown) {
            return rf__fail(err, RF_ENOMEM, 0, "no memory for %s tokens", rf__number(room).text);
        }
        gathering->tokens = grown;
        gathering->room = room;
    }
    memcpy(gathering->tokens + gathering->count, tokens, count * sizeof *tokens);
    gathering->count += count;
    return RF_OK;
}

int rf__tokenizer_encode(const struct rf__tokenizer *tokenizer, const void *text, size_t count,
                         uint32_t **tokens, size_t *got, struct rf_error *err) {
    struct gathering gathering = {0};
    struct rf__encoder *encoder = NULL;

    int code = rf__encoder_create(tokenizer, gather, &gathering, &encoder, err);
    if (!code) {
        code = rf__encoder_feed(encoder, text, count, err);
    }
    if (!code) {
        code = rf__encoder_end(encoder, err);
    }
    rf__encoder_destroy(encoder);
    if (code) {
        rf__free(gathering.tokens);
    } else {
        *tokens = gathering.tokens; /* NULL of an empty text */
        *got = gathering.count;
    }
    return code;
}
