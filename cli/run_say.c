/* What the launcher itself has to say: through the same sink as the workers' stderr, so that
 * nothing is overtaken. */
#include "run.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

int64_t run_now_ns(void) {
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* A line that a worker has not ended yet must not get ours behind it. */
void run_end_line(struct run *run) {
    struct sink *out = &run->sinks[0], *err = &run->sinks[1];

    if (err->midline || (out->midline && out->terminal && err->terminal)) {
        sink_put(err, "\n", 1);
    }
    out->midline &= !err->terminal;
}

/* Where the screen stands still for long, lines are left out rather than cut. */
static void say_line(struct run *run, const char *begin, const char *text, size_t bytes) {
    struct sink *sink = &run->sinks[1];

    if (sink_pending(sink) + strlen(begin) + bytes + 2 > SINK_BYTES) {
        return;
    }
    run_end_line(run);
    sink_put(sink, begin, strlen(begin));
    sink_put(sink, text, bytes);
    sink_put(sink, "\n", 1);
    sink_flush(sink);
}

void run_say(struct run *run, const char *format, ...) {
    char text[PATH_MAX + 256];
    va_list arguments;

    if (run->options.quiet || run->options.json) {
        return;
    }
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    say_line(run, "ringfold: ", text, strlen(text));
}

void run_tell(struct run *run, char mark, const char *format, ...) {
    char begin[32], text[1024];
    time_t now = time(NULL);
    struct tm local;
    va_list arguments;

    if (run->options.quiet || run->options.json) {
        return;
    }
    localtime_r(&now, &local);
    size_t at = strftime(begin, sizeof begin - 4, "%H:%M:%S", &local);
    snprintf(begin + at, sizeof begin - at, " %c ", mark);
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    for (char *c = text; *c; c++) { /* parts of it come from other programs */
        *c = (unsigned char)*c < ' ' || *c == 127 ? ' ' : *c;
    }
    say_line(run, begin, text, strlen(text));
}

void run_say_json(struct run *run, const char *line, size_t bytes) {
    say_line(run, "", line, bytes);
}

void run_note_event(struct run *run, const char *name, json_t *event) {
    char *line = run_folder_event(&run->folder, name, event);

    if (line && run->options.json) {
        run_say_json(run, line, strlen(line));
    }
    free(line);
}

const char *run_plural(int count) {
    return count == 1 ? "" : "s";
}
