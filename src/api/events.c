/* See events.h. */
#include "api/events.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LINE_MAX_BYTES = 4096 }; /* at most PIPE_BUF, so that writes to a pipe do not mix */

struct line {
    char text[LINE_MAX_BYTES];
    size_t at;
};

static void add(struct line *line, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void add(struct line *line, const char *format, ...) {
    va_list arguments;

    va_start(arguments, format);
    int length = vsnprintf(line->text + line->at, sizeof line->text - line->at, format, arguments);
    va_end(arguments);
    line->at += length > 0 ? (size_t)length : 0;
    if (line->at > sizeof line->text - 1) {
        line->at = sizeof line->text - 1;
    }
}

/* As a JSON string: texts are printable already but for quotes and backslashes; what else is below
 * a blank becomes one. */
static void add_text(struct line *line, const char *name, const char *text) {
    add(line, ", \"%s\": \"", name);
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\') {
            add(line, "\\%c", c);
        } else {
            add(line, "%c", c < 32 ? ' ' : c);
        }
    }
    add(line, "\"");
}

static int find(const int *ids, int count, int id) {
    for (int i = 0; i < count; i++) {
        if (ids[i] == id) {
            return i;
        }
    }
    return -1;
}

/* Those of `ids` that are not in `others`; as many as a line holds. */
static void add_ids(struct line *line, const char *name, const int *ids, int count,
                    const int *others, int other_count) {
    bool is_first = true;

    add(line, ", \"%s\": [", name);
    for (int i = 0; i < count && line->at < LINE_MAX_BYTES / 4 * 3; i++) {
        if (!others || find(others, other_count, ids[i]) < 0) {
            add(line, "%s%d", is_first ? "" : ", ", ids[i]);
            is_first = false;
        }
    }
    add(line, "]");
}

static const char *name_of(enum rf_event_kind kind) {
    switch (kind) {
    case RF_EVENT_FORM:
        return "form";
    case RF_EVENT_REVOKE:
        return "revoke";
    case RF_EVENT_PAUSE:
        return "pause";
    case RF_EVENT_OUT:
        return "out";
    case RF_EVENT_HEAL:
        return "heal";
    case RF_EVENT_COMMIT:
        return "commit";
    case RF_EVENT_RETRY:
        return "retry";
    case RF_EVENT_SLOW:
        return "slow";
    case RF_EVENT_CHECKPOINT:
        return "checkpoint";
    case RF_EVENT_DIVERGED:
        return "diverged";
    case RF_EVENT_FLIP:
        return "flip";
    }
    return "?";
}

static const char *what_of(enum rf_checkpoint_kind kind) {
    switch (kind) {
    case RF_CHECKPOINT_SAVED:
        return "saved";
    case RF_CHECKPOINT_FAILED:
        return "failed";
    case RF_CHECKPOINT_BAD:
        return "bad";
    case RF_CHECKPOINT_PARTED:
        return "parted";
    case RF_CHECKPOINT_RETURNED:
        return "returned";
    case RF_CHECKPOINT_NONE:
        return "none";
    }
    return "?";
}

static void add_details(struct line *line, const struct rf__events *events,
                        const struct rf_event *event) {
    const struct rf__events_form *form = &events->form;

    switch (event->kind) {
    case RF_EVENT_FORM:
        add_ids(line, "members", form->ids, form->size, NULL, 0);
        add_ids(line, "joined", form->ids, form->size, form->last_ids, form->last_size);
        add_ids(line, "lost", form->last_ids, form->last_size, form->ids, form->size);
        add(line, ", \"seconds\": %.6f", event->seconds);
        add_text(line, "text", event->text);
        return;
    case RF_EVENT_CHECKPOINT:
        add(line,
            ", \"what\": \"%s\", \"checkpoint\": %" PRIu64 ", \"bytes\": %" PRIu64
            ", \"seconds\": %.6f, \"rolled_back\": %s",
            what_of(event->checkpoint), event->checkpoint_step, event->bytes, event->seconds,
            event->rolled_back ? "true" : "false");
        add_text(line, "text", event->text);
        return;
    case RF_EVENT_REVOKE:
    case RF_EVENT_DIVERGED:
        add(line, ", \"peer\": %d", event->peer);
        add_text(line, "text", event->text);
        return;
    case RF_EVENT_PAUSE:
        add(line, ", \"seconds\": %.3f", event->seconds);
        add_text(line, "text", event->text);
        return;
    case RF_EVENT_OUT:
        add_text(line, "text", event->text);
        return;
    case RF_EVENT_FLIP:
        return;
    case RF_EVENT_HEAL:
        add(line, ", \"bytes\": %" PRIu64 ", \"seconds\": %.6f, \"donors\": %d", event->bytes,
            event->seconds, event->peer);
        return;
    case RF_EVENT_COMMIT:
        add(line,
            ", \"digest\": \"%016" PRIx64 "\", \"samples\": %" PRIu64
            ", \"measure\": %s, \"retries\": %" PRIu32 ", \"redone\": %" PRIu32
            ", \"seconds\": %.6f",
            event->digest, event->samples, event->measure ? "true" : "false", event->retries,
            event->redone, event->seconds);
        return;
    case RF_EVENT_RETRY:
        add(line, ", \"retries\": %" PRIu32, event->retries);
        add_text(line, "text", event->text);
        return;
    case RF_EVENT_SLOW:
        add(line, ", \"peer\": %d, \"ratio\": %.2f", event->peer, event->ratio);
        add_text(line, "text", event->text);
        return;
    }
}

/* A reader that went away must not end the process by SIGPIPE. */
static bool write_quietly(int fd, const char *text, size_t bytes) {
    sigset_t pipe_signal, before, pending;
    const struct timespec at_once = {0};

    sigemptyset(&pipe_signal);
    sigaddset(&pipe_signal, SIGPIPE);
    sigpending(&pending);
    pthread_sigmask(SIG_BLOCK, &pipe_signal, &before);
    ssize_t written = write(fd, text, bytes);
    bool has_reader = written >= 0 || errno != EPIPE;
    if (!has_reader && !sigismember(&pending, SIGPIPE)) {
        (void)sigtimedwait(&pipe_signal, NULL, &at_once);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return has_reader;
}

void rf__events_write(struct rf__events *events, const struct rf_event *event) {
    struct timespec now;
    struct line line = {.at = 0};

    if (events->fd < 0) {
        return;
    }
    clock_gettime(CLOCK_REALTIME, &now);
    add(&line,
        "{\"event\": \"%s\", \"time\": %lld.%06ld, \"id\": %d, \"rank\": %d, \"size\": %d, "
        "\"generation\": %" PRIu64 ", \"unit\": %" PRIu64 ", \"step\": %" PRIu64,
        name_of(event->kind), (long long)now.tv_sec, now.tv_nsec / 1000, event->id, event->rank,
        event->size, event->generation, event->unit, event->step);
    add_details(&line, events, event);
    add(&line, "}\n");
    if (!write_quietly(events->fd, line.text, line.at)) { /* full: this line is lost */
        events->fd = -1;
    }
}
