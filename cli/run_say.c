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

static void say_line(struct run *run, const char *begin, const char *text) {
    struct sink *sink = &run->sinks[1];

    run_end_line(run);
    sink_put(sink, begin, strlen(begin));
    sink_put(sink, text, strlen(text));
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
    say_line(run, "ringfold: ", text);
}

void run_note_event(struct run *run, const char *name, json_t *event) {
    char *line = run_folder_event(&run->folder, name, event);

    if (line && run->options.json) {
        say_line(run, "", line);
    }
    free(line);
}

const char *run_plural(int count) {
    return count == 1 ? "" : "s";
}
