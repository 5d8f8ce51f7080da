/* Reading the event files of a rehearsal. See drill_feed.h.
 *
 * Events of one moment stand in several files, so they are kept for a moment (the caller's `time`)
 * and then handed out sorted. */
#include "drill_feed.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    MAX_WAITING = 1 << 20, /* events not handed out yet; more are dropped and counted */
    MAX_READ = 1 << 22     /* bytes of one file at a time */
};

int drill_tail_open(struct drill_tail *tail, const char *path) {
    *tail = (struct drill_tail){.fd = -1, .line = malloc(DRILL_MAX_LINE)};
    snprintf(tail->path, sizeof tail->path, "%s", path);
    return tail->line ? 0 : RF_ENOMEM;
}

void drill_tail_close(struct drill_tail *tail) {
    if (tail->fd >= 0) {
        close(tail->fd);
    }
    free(tail->line);
    *tail = (struct drill_tail){.fd = -1};
}

/* Complete lines are handed out, the rest moves to the front; returns 1 for a line that began to be
 * too long. */
static size_t hand_out_lines(struct drill_tail *tail, drill_line_fn *each, void *context) {
    size_t at = 0;

    for (;;) {
        char *end = memchr(tail->line + at, '\n', tail->held - at);
        if (!end) {
            break;
        }
        size_t bytes = (size_t)(end - tail->line) - at;
        if (!tail->skipping && bytes) {
            each(context, tail->line + at, bytes);
        }
        tail->skipping = false;
        at += bytes + 1;
    }
    memmove(tail->line, tail->line + at, tail->held - at);
    tail->held -= at;
    if (tail->held < DRILL_MAX_LINE) {
        return 0;
    }
    bool first = !tail->skipping;
    tail->skipping = true;
    tail->held = 0;
    return first;
}

size_t drill_tail_read(struct drill_tail *tail, drill_line_fn *each, void *context) {
    size_t too_long = 0, total = 0;

    if (tail->fd < 0) {
        tail->fd = open(tail->path, O_RDONLY | O_CLOEXEC);
    }
    while (tail->fd >= 0 && total < MAX_READ) {
        ssize_t count = read(tail->fd, tail->line + tail->held, DRILL_MAX_LINE - tail->held);
        if (count <= 0) {
            break; /* the end for now; what cannot be read now is tried again */
        }
        tail->held += (size_t)count;
        total += (size_t)count;
        too_long += hand_out_lines(tail, each, context);
    }
    return too_long;
}

/* Events. */

bool drill_json_whole(const json_t *object, const char *key, uint64_t most, uint64_t *out) {
    const json_t *value = json_object_get(object, key);

    if (!json_is_integer(value) || json_integer_value(value) < 0 ||
        (uint64_t)json_integer_value(value) > most) {
        return false;
    }
    *out = (uint64_t)json_integer_value(value);
    return true;
}

static bool read_digest(const json_t *object, uint64_t *out) {
    const char *text = json_string_value(json_object_get(object, "digest"));
    size_t length = text ? strlen(text) : 0;

    if (!length || length > 16 || strspn(text, "0123456789abcdefABCDEF") != length) {
        return false;
    }
    *out = strtoull(text, NULL, 16);
    return true;
}

static enum drill_event_kind kind_of(const char *name) {
    static const struct {
        const char *name;
        enum drill_event_kind kind;
    } kinds[] = {{"commit", DRILL_EVENT_COMMIT},     {"form", DRILL_EVENT_FORM},
                 {"revoke", DRILL_EVENT_REVOKE},     {"heal", DRILL_EVENT_HEAL},
                 {"out", DRILL_EVENT_OUT},           {"slow", DRILL_EVENT_SLOW},
                 {"diverged", DRILL_EVENT_DIVERGED}, {"flip", DRILL_EVENT_FLIP},
                 {"worker", DRILL_EVENT_WORKER},     {"exit", DRILL_EVENT_EXIT}};

    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (!strcmp(kinds[i].name, name)) {
            return kinds[i].kind;
        }
    }
    return DRILL_EVENT_OTHER;
}

/* What a worker tells: the keys that all events have, and those of its kind. */
static bool read_told(const json_t *object, struct drill_event *event) {
    uint64_t peer, retries = 0, redone = 0;

    if (!drill_json_whole(object, "generation", INT64_MAX, &event->generation) ||
        !drill_json_whole(object, "unit", DRILL_MAX_UNITS - 1, &event->unit)) {
        return false;
    }
    if (!drill_json_whole(object, "step", INT64_MAX, &event->step)) {
        event->step = 0;
    }
    event->peer = drill_json_whole(object, "peer", DRILL_MAX_IDS - 1, &peer) ? (int)peer : -1;
    (void)drill_json_whole(object, "retries", UINT32_MAX, &retries);
    (void)drill_json_whole(object, "redone", UINT32_MAX, &redone);
    event->retries = (uint32_t)retries;
    event->redone = (uint32_t)redone;
    return event->kind != DRILL_EVENT_COMMIT || read_digest(object, &event->digest);
}

/* What a launcher tells of a process. */
static bool read_process(const json_t *object, struct drill_event *event) {
    const json_t *code = json_object_get(object, "exit_code");
    const json_t *ended_by = json_object_get(object, "signal");
    uint64_t pid;

    if (!drill_json_whole(object, "pid", INT_MAX, &pid) || !pid) {
        return false;
    }
    event->pid = (int)pid;
    event->well = !json_integer_value(ended_by) && json_is_integer(code) &&
                  (json_integer_value(code) == 0 || json_integer_value(code) == 75);
    return true;
}

static void add(struct drill_feed *feed, const struct drill_event *event) {
    if (feed->count == feed->room) {
        size_t room = feed->room ? 2 * feed->room : 1024;
        struct drill_event *grown =
            room <= MAX_WAITING ? realloc(feed->events, room * sizeof *grown) : NULL;
        if (!grown) {
            feed->out_of_memory |= room <= MAX_WAITING;
            feed->bad_lines++;
            return;
        }
        feed->events = grown;
        feed->room = room;
    }
    feed->events[feed->count++] = *event;
}

/* `start` names the processes by id: an array, or an object. That of a launcher which joins does
 * not know ids; `worker` tells them. */
static bool add_start(struct drill_feed *feed, const json_t *object, struct drill_event event) {
    const json_t *pids = json_object_get(object, "pids");
    size_t count = json_is_array(pids) ? json_array_size(pids) : 0;

    event.kind = DRILL_EVENT_WORKER;
    if (event.source > 0) {
        return true;
    }
    for (size_t i = 0; i < count && i < DRILL_MAX_IDS; i++) {
        json_int_t pid = json_integer_value(json_array_get(pids, i));
        if (pid > 0 && pid <= INT_MAX) {
            event.id = (int)i;
            event.pid = (int)pid;
            add(feed, &event);
        }
    }
    if (json_is_object(pids)) {
        const char *key;
        json_t *value;
        json_object_foreach((json_t *)(uintptr_t)pids, key, value) {
            char *end;
            long id = strtol(key, &end, 10);
            json_int_t pid = json_integer_value(value);
            if (end != key && !*end && id >= 0 && id < DRILL_MAX_IDS && pid > 0 && pid <= INT_MAX) {
                event.id = (int)id;
                event.pid = (int)pid;
                add(feed, &event);
            }
        }
    }
    return pids != NULL;
}

static bool read_event(struct drill_feed *feed, const json_t *object) {
    const char *name = json_string_value(json_object_get(object, "event"));
    const json_t *time = json_object_get(object, "time");
    uint64_t id;

    if (!name || !json_is_number(time) || !isfinite(json_number_value(time))) {
        return false;
    }
    struct drill_event event = {.kind = kind_of(name),
                                .time = json_number_value(time),
                                .peer = -1,
                                .source = feed->reading};
    if (!strcmp(name, "start")) {
        return add_start(feed, object, event);
    }
    if (event.kind == DRILL_EVENT_OTHER) {
        return true;
    }
    if (!drill_json_whole(object, "id", DRILL_MAX_IDS - 1, &id)) {
        return false;
    }
    event.id = (int)id;
    bool of_launcher = event.kind == DRILL_EVENT_WORKER || event.kind == DRILL_EVENT_EXIT;
    if (!(of_launcher ? read_process(object, &event) : read_told(object, &event))) {
        return false;
    }
    add(feed, &event);
    return true;
}

static void read_line(void *context, const char *line, size_t bytes) {
    struct drill_feed *feed = context;
    json_t *object = json_loadb(line, bytes, 0, NULL);

    if (!json_is_object(object) || !read_event(feed, object)) {
        feed->bad_lines++;
    }
    json_decref(object);
}

int drill_feed_follow(struct drill_feed *feed, const char *folder, int source) {
    static const char *const files[] = {"events.jsonl", "commits.jsonl"};
    int followed = 0;

    for (int i = 0; i < DRILL_MAX_TAILS && followed < 2; i++) {
        char path[PATH_MAX];
        if (feed->used[i]) {
            continue;
        }
        int length = snprintf(path, sizeof path, "%s/%s", folder, files[followed]);
        if (length < 0 || (size_t)length >= sizeof path) {
            return RF_ELIMIT;
        }
        if (drill_tail_open(&feed->tails[i], path)) {
            return RF_ENOMEM;
        }
        feed->used[i] = true;
        feed->sources[i] = source;
        followed++;
    }
    return followed == 2 ? 0 : RF_ELIMIT;
}

void drill_feed_forget(struct drill_feed *feed, int source) {
    for (int i = 0; i < DRILL_MAX_TAILS; i++) {
        if (feed->used[i] && feed->sources[i] == source) {
            drill_tail_close(&feed->tails[i]);
            feed->used[i] = false;
        }
    }
}

void drill_feed_close(struct drill_feed *feed) {
    for (int i = 0; i < DRILL_MAX_TAILS; i++) {
        if (feed->used[i]) {
            drill_tail_close(&feed->tails[i]);
        }
    }
    free(feed->events);
    *feed = (struct drill_feed){0};
}

int drill_feed_read(struct drill_feed *feed) {
    for (int i = 0; i < DRILL_MAX_TAILS; i++) {
        if (feed->used[i]) {
            feed->reading = feed->sources[i];
            feed->bad_lines += drill_tail_read(&feed->tails[i], read_line, feed);
        }
    }
    return feed->out_of_memory ? RF_ENOMEM : 0;
}

/* By time; at the same time a process's start comes first. */
static int compare_events(const void *a, const void *b) {
    const struct drill_event *x = a, *y = b;

    if (x->time != y->time) {
        return x->time < y->time ? -1 : 1;
    }
    if ((x->kind == DRILL_EVENT_WORKER) != (y->kind == DRILL_EVENT_WORKER)) {
        return x->kind == DRILL_EVENT_WORKER ? -1 : 1;
    }
    return (x->unit > y->unit) - (x->unit < y->unit);
}

int drill_feed_take(struct drill_feed *feed, double time, drill_event_fn *each, void *context) {
    size_t taken = 0;
    int rc = 0;

    if (!feed->count) {
        return 0;
    }
    qsort(feed->events, feed->count, sizeof *feed->events, compare_events);
    while (taken < feed->count && feed->events[taken].time < time && !rc) {
        rc = each(context, &feed->events[taken++]);
    }
    memmove(feed->events, feed->events + taken, (feed->count - taken) * sizeof *feed->events);
    feed->count -= taken;
    return rc;
}
