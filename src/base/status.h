/* Filling and wrapping `struct rf_error`. All functions accept err == NULL and return the code they
 * were given, so that `return rf__fail(err, RF_EIO, errno, "…")` reads well. Text that does not fit
 * is cut, never overrun. */
#ifndef RF_BASE_STATUS_H
#define RF_BASE_STATUS_H

#include <ringfold/error.h>

#define RF__PRINTF(text, first) __attribute__((format(printf, text, first)))

/* Starts a new report. `sys_errno` may be 0; its text is appended (": no such file or directory").
 */
int rf__fail(struct rf_error *err, int code, int sys_errno, const char *format, ...)
    RF__PRINTF(4, 5);

/* Puts context in front of the text: "opening the journal: " + text. Returns err's code (or `code`
 * where err is NULL). */
int rf__wrap(struct rf_error *err, int code, const char *format, ...) RF__PRINTF(3, 4);

/* Fills one of the details: err->what, where, why, next. */
void rf__detail(char detail[RF_ERROR_DETAIL_MAX], const char *format, ...) RF__PRINTF(2, 3);

void rf__error_clear(struct rf_error *err);

#endif
