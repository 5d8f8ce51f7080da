/* The configuration files of AWS tools, read as far as they are needed: "[section]" and
 * "key = value" lines. Lines that begin with a blank belong to the nested value above them and are
 * passed over, as is whatever is not understood. */
#include "os/s3_text.h"

#include <string.h>

/* A piece of the file, borrowed from it. */
struct piece {
    const char *at;
    size_t length;
};

static bool is_blank(char c) {
    return c == ' ' || c == '\t' || c == '\r';
}

static struct piece trim(struct piece piece) {
    while (piece.length && is_blank(piece.at[0])) {
        piece.at++;
        piece.length--;
    }
    while (piece.length && is_blank(piece.at[piece.length - 1])) {
        piece.length--;
    }
    return piece;
}

static bool equals(struct piece piece, const char *text) {
    return strlen(text) == piece.length && !memcmp(piece.at, text, piece.length);
}

/* Up to a '#' or ';' that follows a blank, which begins a comment. */
static struct piece without_comment(struct piece value) {
    for (size_t i = 1; i < value.length; i++) {
        if ((value.at[i] == '#' || value.at[i] == ';') && is_blank(value.at[i - 1])) {
            value.length = i;
        }
    }
    return trim(value);
}

/* "[name]", also with blanks or a comment around; the name with single blanks inside is compared as
 * it stands. */
static bool heads(struct piece line, const char *section) {
    const char *end = memchr(line.at, ']', line.length);
    if (!end) {
        return false;
    }
    return equals(trim((struct piece){line.at + 1, (size_t)(end - line.at - 1)}), section);
}

static bool next_line(struct piece *rest, struct piece *line) {
    if (!rest->length) {
        return false;
    }
    const char *end = memchr(rest->at, '\n', rest->length);
    line->at = rest->at;
    line->length = end ? (size_t)(end - rest->at) : rest->length;
    size_t taken = line->length + (end ? 1 : 0);
    rest->at += taken;
    rest->length -= taken;
    return true;
}

int rf__s3_ini_find(const char *text, size_t bytes, const char *section, const char *key,
                    char *value, size_t capacity) {
    struct piece rest = {text, bytes}, line;
    bool inside = false;

    while (next_line(&rest, &line)) {
        if (!line.length || is_blank(line.at[0]) || line.at[0] == '#' || line.at[0] == ';') {
            continue;
        }
        if (line.at[0] == '[') {
            inside = heads(line, section);
            continue;
        }
        const char *equal = inside ? memchr(line.at, '=', line.length) : NULL;
        if (!equal || !equals(trim((struct piece){line.at, (size_t)(equal - line.at)}), key)) {
            continue;
        }
        struct piece found =
            without_comment((struct piece){equal + 1, line.length - (size_t)(equal - line.at) - 1});
        if (found.length >= capacity) {
            return RF_ELIMIT;
        }
        memcpy(value, found.at, found.length);
        value[found.length] = '\0';
        return RF_OK;
    }
    return RF_ENOTFOUND;
}
