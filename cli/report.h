/* What the user reads when something goes wrong: one report for one incident, in one shape.
 *
 *     error[RF0302]: worker 3 was lost
 *       what   all-reduce of step 12
 *       next   look at the lost worker's own log
 */
#ifndef RF_CLI_REPORT_H
#define RF_CLI_REPORT_H

#include <ringfold/error.h>
#include <stdbool.h>
#include <stdio.h>

/* Prints the report on stderr: the text, then what, where, why and next where they are known (next
 * always is). A worker (RINGFOLD_REPORT names a file) leaves it to its launcher instead. */
void report_error(const struct rf_error *err);

/* The process's exit status for an RF_E… code; 0 for 0. */
int exit_status(int code);

/* Fills a report of the command's own and returns `code`; a `sys_errno` other than 0 adds its text.
 * Details are empty. */
int report_fail(struct rf_error *err, int code, int sys_errno, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Whether colour may be used on this stream: a terminal, unless NO_COLOR or TERM=dumb says
 * otherwise. */
bool report_colour(FILE *stream);

#endif
