/* UTF-8 as the Unicode standard has it (chapter 3, table 3-7): no overlong forms, no surrogates,
 * nothing beyond U+10FFFF. Inline, because every character of a text goes through it. */
#ifndef RF_DATA_UTF8_H
#define RF_DATA_UTF8_H

#include <stddef.h>
#include <stdint.h>

enum { RF__UTF8_MAX = 4, RF__UTF8_POINTS = 0x110000, RF__UTF8_REPLACEMENT = 0xFFFD };

/* How a sequence fails to be one. */
enum { RF__UTF8_CUT = 0, RF__UTF8_INVALID = -1 };

/* The character at the front of `left` bytes: its length, 1 to 4. RF__UTF8_CUT where the bytes end
 * within what may become one; RF__UTF8_INVALID where no character begins so. */
static inline int rf__utf8_next(const unsigned char *at, size_t left, uint32_t *point) {
    if (!left) {
        return RF__UTF8_CUT;
    }
    uint32_t first = at[0];
    if (first < 0x80) {
        *point = first;
        return 1;
    }
    if (first < 0xC2 || first > 0xF4) {
        return RF__UTF8_INVALID;
    }
    int length = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
    uint32_t value = first & (0xFFu >> (length + 1));
    unsigned low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80; /* of the second byte */
    unsigned high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
    for (int i = 1; i < length; i++) {
        if ((size_t)i == left) {
            return RF__UTF8_CUT;
        }
        if (at[i] < low || at[i] > high) {
            return RF__UTF8_INVALID;
        }
        value = value << 6 | (at[i] & 0x3Fu);
        low = 0x80;
        high = 0xBF;
    }
    *point = value;
    return length;
}

/* Writes the character, which must be one, and returns how many bytes that took. */
static inline int rf__utf8_put(uint32_t point, unsigned char out[RF__UTF8_MAX]) {
    if (point < 0x80) {
        out[0] = (unsigned char)point;
        return 1;
    }
    int length = point < 0x800 ? 2 : point < 0x10000 ? 3 : 4;
    for (int i = length - 1; i > 0; i--) {
        out[i] = (unsigned char)(0x80 | (point & 0x3F));
        point >>= 6;
    }
    out[0] = (unsigned char)(0xF00u >> length | point);
    return length;
}

/* How many of the bytes end with a character: all, or less the up to three of one that is cut. */
static inline size_t rf__utf8_whole(const unsigned char *bytes, size_t count) {
    uint32_t point;
    for (size_t back = 1; back < RF__UTF8_MAX && back <= count; back++) {
        unsigned char byte = bytes[count - back];
        if (byte >= 0xC0) { /* a character's first */
            return rf__utf8_next(bytes + count - back, back, &point) == RF__UTF8_CUT ? count - back
                                                                                     : count;
        }
        if (byte < 0x80) {
            break;
        }
    }
    return count;
}

/* How many bytes from the front are characters. */
static inline size_t rf__utf8_valid(const unsigned char *bytes, size_t count) {
    uint32_t point;
    size_t at = 0;
    while (at < count) {
        int length = rf__utf8_next(bytes + at, count - at, &point);
        if (length <= 0) {
            break;
        }
        at += (size_t)length;
    }
    return at;
}

#endif
