/* Paths and numbers for error reports. */
#include "data/text.h"

#include <stdio.h>
#include <string.h>

enum { PATH_SHOWN = 160 };

struct rf__number rf__number(uint64_t value) {
    struct rf__number number;
    char digits[24];
    size_t at = 0;

    size_t count = (size_t)snprintf(digits, sizeof digits, "%llu", (unsigned long long)value);
    for (size_t i = 0; i < count; i++) {
        if (i && (count - i) % 3 == 0) {
            number.text[at++] = ',';
        }
        number.text[at++] = digits[i];
    }
    number.text[at] = 0;
    return number;
}

const char *rf__path_tail(const char *path) {
    size_t length = strlen(path);
    return length > PATH_SHOWN ? path + length - PATH_SHOWN : path;
}
