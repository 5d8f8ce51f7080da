/* Numbers for people, both ways. Parsing takes the whole text or nothing. */
#include "format.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *format_count(char out[FORMAT_MAX], uint64_t count) {
    char digits[FORMAT_MAX];
    int length = snprintf(digits, sizeof digits, "%llu", (unsigned long long)count);
    int at = 0;

    for (int i = 0; i < length; i++) {
        if (i && (length - i) % 3 == 0) {
            out[at++] = ',';
        }
        out[at++] = digits[i];
    }
    out[at] = '\0';
    return out;
}

const char *format_bytes(char out[FORMAT_MAX], uint64_t bytes) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double value = (double)bytes;
    int unit = 0;

    while (value >= 1023.995 && unit < 6) {
        value /= 1024;
        unit++;
    }
    snprintf(out, FORMAT_MAX, unit ? "%.2f %s" : "%.0f %s", value, units[unit]);
    return out;
}

const char *format_duration(char out[FORMAT_MAX], double seconds) {
    if (!(seconds >= 0 && seconds < 1e9)) {
        snprintf(out, FORMAT_MAX, "?");
    } else if (seconds < 0.9995e-3) {
        snprintf(out, FORMAT_MAX, "%.0fus", seconds * 1e6);
    } else if (seconds < 0.9995) {
        snprintf(out, FORMAT_MAX, "%.0fms", seconds * 1e3);
    } else if (seconds < 59.95) {
        snprintf(out, FORMAT_MAX, "%.1fs", seconds);
    } else {
        long whole = lround(seconds);
        long minutes = whole / 60, hours = whole / 3600, days = whole / 86400;
        if (days) {
            snprintf(out, FORMAT_MAX, "%ldd%02ldh", days, hours % 24);
        } else if (hours) {
            snprintf(out, FORMAT_MAX, "%ldh%02ldm", hours, minutes % 60);
        } else {
            snprintf(out, FORMAT_MAX, "%ldm%02lds", minutes, whole % 60);
        }
    }
    return out;
}

/* A decimal number without sign, exponent or blanks; the unit that follows it in *unit. */
static int parse_number(const char *text, double *value, const char **unit) {
    size_t digits = strspn(text, "0123456789");
    size_t length = digits;

    if (text[length] == '.') {
        size_t fraction = strspn(text + length + 1, "0123456789");
        digits += fraction;
        length += 1 + fraction;
    }
    if (!digits || length >= FORMAT_MAX) {
        return RF_EINVAL;
    }
    char number[FORMAT_MAX];
    memcpy(number, text, length);
    number[length] = '\0';
    *value = strtod(number, NULL);
    *unit = text + length;
    return 0;
}

struct unit {
    const char *name;
    double factor;
};

static int scale(const char *unit, const struct unit *units, size_t count, double *value) {
    for (size_t i = 0; i < count; i++) {
        if (!strcmp(unit, units[i].name)) {
            *value *= units[i].factor;
            return 0;
        }
    }
    return RF_EINVAL;
}

int parse_bytes(const char *text, uint64_t *out) {
    static const struct unit units[] = {
        {"", 1},         {"B", 1},        {"K", 0x1p10},   {"k", 0x1p10},   {"M", 0x1p20},
        {"m", 0x1p20},   {"G", 0x1p30},   {"g", 0x1p30},   {"T", 0x1p40},   {"t", 0x1p40},
        {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}, {"kB", 1e3},
        {"KB", 1e3},     {"MB", 1e6},     {"GB", 1e9},     {"TB", 1e12}};
    double value;
    const char *unit;

    if (parse_number(text, &value, &unit) ||
        scale(unit, units, sizeof units / sizeof units[0], &value) || value >= 0x1p63) {
        return RF_EINVAL;
    }
    *out = (uint64_t)value;
    return 0;
}

int parse_duration_ms(const char *text, int *out) {
    static const struct unit units[] = {{"ms", 1}, {"s", 1e3}, {"m", 60e3}, {"h", 3600e3}};
    double value;
    const char *unit;

    if (parse_number(text, &value, &unit) ||
        scale(unit, units, sizeof units / sizeof units[0], &value) || value > INT_MAX) {
        return RF_EINVAL;
    }
    *out = (int)value;
    return 0;
}

int parse_int(const char *text, long least, long most, int *out) {
    char *end;

    if (!isdigit((unsigned char)text[text[0] == '-'])) {
        return RF_EINVAL;
    }
    errno = 0;
    long value = strtol(text, &end, 10);
    if (errno || *end || value < least || value > most) {
        return RF_EINVAL;
    }
    *out = (int)value;
    return 0;
}

int parse_seconds_ms(const char *text, int *out) {
    char *end;
    double seconds = strtod(text, &end);

    if (end == text || *end || !(seconds > 0 && seconds < 86400)) {
        return RF_EINVAL;
    }
    *out = seconds < 0.001 ? 1 : (int)(seconds * 1000);
    return RF_OK;
}

int parse_transport(const char *text, enum rf_transport *out) {
    static const char *const names[] = {
        [RF_TRANSPORT_AUTO] = "auto", [RF_TRANSPORT_SHM] = "shm", [RF_TRANSPORT_TCP] = "tcp"};

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (!strcmp(text, names[i])) {
            *out = (enum rf_transport)i;
            return 0;
        }
    }
    return RF_EINVAL;
}
