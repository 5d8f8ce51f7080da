/* What a character is jansson says itself, so that it cannot refuse what is made here. */
#include "json_text.h"

#include <stdlib.h>
#include <string.h>

/* Bytes of the character at the front; 0 where none begins. */
static size_t character(const char *text) {
    for (size_t length = 1; length <= 4 && text[length - 1]; length++) {
        json_t *one = json_stringn(text, length);
        if (one) {
            json_decref(one);
            return length;
        }
    }
    return 0;
}

json_t *json_text(const char *text) {
    static const char replacement[] = "\xEF\xBF\xBD";
    json_t *whole = json_string(text);
    size_t count = 0;

    if (whole) {
        return whole;
    }
    char *out = malloc(3 * strlen(text) + 1);
    while (out && *text) {
        size_t length = character(text);
        memcpy(out + count, length ? text : replacement, length ? length : 3);
        count += length ? length : 3;
        text += length ? length : 1;
    }
    whole = out ? json_stringn(out, count) : NULL;
    free(out);
    return whole;
}
