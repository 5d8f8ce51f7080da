/* Error reports for the screen, and the exit status that goes with each code. */
#include "report.h"

#include <jansson.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <unistd.h>

enum {
    EXIT_STOPPED = 75 /* stopped on request, state saved: start again to go on */
};

bool report_colour(FILE *stream) {
    const char *no_color = getenv("NO_COLOR");
    const char *term = getenv("TERM");

    if (no_color && no_color[0]) {
        return false;
    }
    return term && strcmp(term, "dumb") && isatty(fileno(stream));
}

static void print_detail(const char *name, const char *text) {
    if (text[0]) {
        fprintf(stderr, "  %-6s %s\n", name, text);
    }
}

/* For the launcher, which makes one report of all that went wrong. */
static bool leave_for_launcher(const struct rf_error *err, const char *text) {
    const char *path = getenv("RINGFOLD_REPORT");
    json_t *report =
        path ? json_pack("{s:i, s:s, s:s, s:s, s:s, s:s}", "code", err->code, "text", text, "what",
                         err->what, "where", err->where, "why", err->why, "next", err->next)
             : NULL;
    bool left = report && json_dump_file(report, path, JSON_INDENT(2)) == 0;

    json_decref(report);
    return left;
}

void report_error(const struct rf_error *err) {
    bool colour = report_colour(stderr);
    const char *text = err->text[0] ? err->text : rf_error_text(err->code);

    fflush(stdout);
    if (leave_for_launcher(err, text)) {
        return;
    }
    fprintf(stderr, "%serror[RF%04d]:%s %s\n", colour ? "\033[1;31m" : "", -err->code,
            colour ? "\033[0m" : "", text);
    print_detail("what", err->what);
    print_detail("where", err->where);
    print_detail("why", err->why);
    print_detail("next", err->next[0] ? err->next : rf_error_next(err->code));
    fflush(stderr);
}

int report_fail(struct rf_error *err, int code, int sys_errno, const char *format, ...) {
    va_list arguments;

    *err = (struct rf_error){.code = code, .sys_errno = sys_errno, .rank = -1};
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

int exit_status(int code) {
    switch (code) {
    case RF_OK:
        return 0;
    case RF_EUSAGE:
    case RF_EINVAL:
        return EX_USAGE;
    case RF_ELOST:
    case RF_EREVOKED:
    case RF_ETOOFEW:
        return EX_UNAVAILABLE;
    case RF_EIO:
        return EX_IOERR;
    case RF_ESTOPPED:
        return EXIT_STOPPED;
    default:
        return 1;
    }
}
