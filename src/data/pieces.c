/* The pieces, by PCRE2. The pattern matches at least one character wherever one stands, and looks
 * at most one character past a match; a match that comes to the end of what is there, while more
 * follows, is a partial one to PCRE2 and waits. */
#include "data/pieces.h"

#include "base/assert.h"
#include "base/mem.h"
#include "base/status.h"
#include "data/utf8.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

struct rf__pieces {
    pcre2_code *code;
    pcre2_match_data *match;
};

/* White_Space is spelled out: what PCRE2 takes for \s has U+180E in it beside. */
#define SPACES                                                                                     \
    "\\x{9}-\\x{D} \\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}" \
    "\\x{3000}"

static const char PATTERN[] = "'s|'t|'re|'ve|'m|'ll|'d"
                              "| ?\\p{L}+"
                              "| ?\\p{N}+"
                              "| ?[^" SPACES "\\p{L}\\p{N}]+"
                              "|[" SPACES "]+(?![^" SPACES "])"
                              "|[" SPACES "]+";

int rf__pieces_create(struct rf__pieces **out, struct rf_error *err) {
    struct rf__pieces *pieces = rf__alloc(1, sizeof *pieces);
    PCRE2_SIZE at = 0;
    int problem = 0;

    if (!pieces) {
        goto no_memory;
    }
    pieces->code =
        pcre2_compile((PCRE2_SPTR)PATTERN, sizeof PATTERN - 1,
                      PCRE2_UTF | PCRE2_ANCHORED | PCRE2_NO_UTF_CHECK, &problem, &at, NULL);
    RF_ASSERT(pieces->code || problem == PCRE2_ERROR_HEAP_FAILED);
    if (!pieces->code) {
        goto no_memory;
    }
    /* Where code may not be made while it runs, PCRE2 interprets the pattern: the same, slower. */
    (void)pcre2_jit_compile(pieces->code, PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD);
    pieces->match = pcre2_match_data_create(1, NULL);
    if (!pieces->match) {
        goto no_memory;
    }
    *out = pieces;
    return RF_OK;
no_memory:
    rf__pieces_destroy(pieces);
    return rf__fail(err, RF_ENOMEM, 0, "no memory to cut a text into words");
}

void rf__pieces_destroy(struct rf__pieces *pieces) {
    if (pieces) {
        pcre2_match_data_free(pieces->match);
        pcre2_code_free(pieces->code);
        rf__free(pieces);
    }
}

static int match_fail(int problem, struct rf_error *err) {
    unsigned char text[120] = "?";

    (void)pcre2_get_error_message(problem, text, sizeof text);
    return rf__fail(err, problem == PCRE2_ERROR_NOMEMORY ? RF_ENOMEM : RF_EINTERNAL, 0,
                    "a text cannot be cut into words: %s", text);
}

/* The piece at the front of characters: its length; 0 where more of the text may change it. */
static int piece_find(struct rf__pieces *pieces, const unsigned char *text, size_t count,
                      bool is_last, size_t *length, struct rf_error *err) {
    uint32_t options = PCRE2_NO_UTF_CHECK | (is_last ? 0 : PCRE2_PARTIAL_HARD);

    int got = pcre2_match(pieces->code, text, count, 0, options, pieces->match, NULL);
    *length = got > 0 ? pcre2_get_ovector_pointer(pieces->match)[1] : 0;
    RF_ASSERT(got <= 0 || *length);
    return got > 0 || got == PCRE2_ERROR_PARTIAL ? RF_OK : match_fail(got, err);
}

/* The bytes at the front that belong to no character; one that is cut does where more follows. */
static size_t invalid_find(const unsigned char *text, size_t count, bool is_last) {
    uint32_t point;
    size_t at = 0;

    while (at < count) {
        int length = rf__utf8_next(text + at, count - at, &point);
        if (length > 0 || (length == RF__UTF8_CUT && !is_last)) {
            break;
        }
        at++;
    }
    return at;
}

int rf__pieces_split(struct rf__pieces *pieces, const unsigned char *text, size_t count,
                     bool is_last, size_t *used,
                     int (*each)(void *context, const unsigned char *piece, size_t count,
                                 struct rf_error *err),
                     void *context, struct rf_error *err) {
    uint32_t point;
    int code = RF_OK;

    *used = 0;
    while (*used < count && !code) {
        const unsigned char *run = text + *used;
        size_t left = count - *used;
        size_t valid = rf__utf8_valid(run, left);
        /* Characters before bytes that are none end there; before one that is cut they may not. */
        bool ends = is_last || invalid_find(run + valid, left - valid, false) > 0;
        size_t at = 0, length = 1;
        while (at < valid && length && !code) {
            code = piece_find(pieces, run + at, valid - at, ends, &length, err);
            if (!code && length) {
                code = each(context, run + at, length, err);
                at += length;
            }
        }
        *used += at;
        if (code || at < valid) {
            break;
        }
        length = invalid_find(run + valid, left - valid, is_last);
        if (!length) {
            break;
        }
        size_t behind = left - valid - length;
        if (!is_last && rf__utf8_next(run + valid + length, behind, &point) == RF__UTF8_CUT) {
            break; /* it may go on, and a piece must not depend on how the text comes */
        }
        code = each(context, run + valid, length, err);
        *used += length;
    }
    return code;
}
