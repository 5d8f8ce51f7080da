/* Error codes' texts, and the building of error reports. */
#include "base/status.h"

#include "base/assert.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *rf_error_text(int code) {
    switch (code) {
    case RF_OK:
        return "success";
#define RF_X(name, number, text, next)                                                             \
    case RF_##name:                                                                                \
        return text;
        RF_ERROR_LIST(RF_X)
#undef RF_X
    default:
        return "unknown error";
    }
}

const char *rf_error_name(int code) {
    switch (code) {
    case RF_OK:
        return "RF_OK";
#define RF_X(name, number, text, next)                                                             \
    case RF_##name:                                                                                \
        return "RF_" #name;
        RF_ERROR_LIST(RF_X)
#undef RF_X
    default:
        return "RF_E?";
    }
}

const char *rf_error_next(int code) {
    switch (code) {
#define RF_X(name, number, text, next)                                                             \
    case RF_##name:                                                                                \
        return next;
        RF_ERROR_LIST(RF_X)
#undef RF_X
    default:
        return "";
    }
}

void rf__error_clear(struct rf_error *err) {
    if (err) {
        *err = (struct rf_error){.rank = -1};
    }
}

int rf__fail(struct rf_error *err, int code, int sys_errno, const char *format, ...) {
    va_list arguments;

    if (!err) {
        return code;
    }
    rf__error_clear(err);
    err->code = code;
    err->sys_errno = sys_errno;
    va_start(arguments, format);
    int length = vsnprintf(err->text, sizeof err->text, format, arguments);
    va_end(arguments);
    if (sys_errno && length >= 0 && (size_t)length < sizeof err->text) {
        char reason[128];
        snprintf(err->text + length, sizeof err->text - (size_t)length, ": %s",
                 strerror_r(sys_errno, reason, sizeof reason));
    }
    return code;
}

int rf__wrap(struct rf_error *err, int code, const char *format, ...) {
    char inner[RF_ERROR_TEXT_MAX];
    va_list arguments;

    if (!err) {
        return code;
    }
    memcpy(inner, err->text, sizeof inner);
    va_start(arguments, format);
    int length = vsnprintf(err->text, sizeof err->text, format, arguments);
    va_end(arguments);
    if (length >= 0 && (size_t)length < sizeof err->text) {
        snprintf(err->text + length, sizeof err->text - (size_t)length, "%s", inner);
    }
    return err->code ? err->code : (err->code = code);
}

void rf__detail(char detail[RF_ERROR_DETAIL_MAX], const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(detail, RF_ERROR_DETAIL_MAX, format, arguments);
    va_end(arguments);
}

void rf__assert_failed(const char *expression, const char *file, int line) {
    fprintf(stderr, "ringfold: assertion failed: %s at %s:%d\n", expression, file, line);
    abort();
}
