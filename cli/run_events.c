/* From a worker's line to the run folder and the screen.
 *
 * All members tell of the same things. One line for each goes to the screen: a generation is told
 * by its rank 0, together with why the one before ended, which is known from whoever said so first;
 * what a worker tells about itself (that it copied the state) only it can tell. */
#include "run_events.h"

#include "run.h"

#include "report.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- lines ------------------------------------------------------------------------------------ */

int run_pipe_open(struct run_pipe *pipe, int *writer, struct rf_error *err) {
    int ends[2];

    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK)) {
        return report_fail(err, RF_EIO, errno, "cannot make a pipe for a worker's events");
    }
    pipe->fd = ends[0];
    pipe->bytes = 0;
    pipe->is_skipping = false;
    *writer = ends[1];
    return 0;
}

void run_pipe_close(struct run_pipe *pipe) {
    if (pipe->fd >= 0) {
        close(pipe->fd);
    }
    pipe->fd = -1;
}

/* The whole lines in hand; what is left of the last one moves to the front. */
static void split(struct run_pipe *pipe, run_pipe_take_fn *take, void *context) {
    size_t at = 0;

    while (at < pipe->bytes) {
        const char *end = memchr(pipe->line + at, '\n', pipe->bytes - at);
        if (!end) {
            break;
        }
        size_t length = (size_t)(end + 1 - (pipe->line + at));
        if (pipe->is_skipping) {
            take(context, NULL, 0);
        } else {
            take(context, pipe->line + at, length);
        }
        pipe->is_skipping = false;
        at += length;
    }
    pipe->bytes -= at;
    memmove(pipe->line, pipe->line + at, pipe->bytes);
    if (pipe->bytes == sizeof pipe->line) {
        pipe->is_skipping = true;
        pipe->bytes = 0;
    }
}

void run_pipe_read(struct run_pipe *pipe, run_pipe_take_fn *take, void *context) {
    while (pipe->fd >= 0) {
        ssize_t count = read(pipe->fd, pipe->line + pipe->bytes, sizeof pipe->line - pipe->bytes);
        if (count > 0) {
            pipe->bytes += (size_t)count;
            split(pipe, take, context);
        } else if (count == 0 || (errno != EINTR && errno != EAGAIN)) {
            if (pipe->bytes || pipe->is_skipping) {
                take(context, NULL, 0); /* it never got its end */
            }
            run_pipe_close(pipe);
        } else if (errno == EAGAIN) {
            return;
        }
    }
}

/* --- what they mean --------------------------------------------------------------------------- */

enum kind {
    FORM,
    REVOKE,
    PAUSE,
    OUT,
    HEAL,
    COMMIT,
    RETRY,
    SLOW,
    DIVERGED,
    CHECKPOINT,
    FLIP,
    KINDS
};

/* One event, with what the launcher wants of it. */
struct told {
    enum kind kind;
    int id, rank, size, peer, donors;
    uint64_t generation, unit, step, bytes, checkpoint;
    double seconds, ratio;
    bool rolled_back;
    const char *text, *what;
    const json_t *members, *lost, *joined;
};

struct reading {
    struct run *run;
    struct run_worker *worker;
};

static struct run_worker *own_worker(struct run *run, int id) {
    int index = id - run->options.first_id;
    return id >= run->options.first_id && index < run->options.workers ? &run->workers[index]
                                                                       : NULL;
}

int run_events_remote_members(const struct run *run) {
    const struct run_news *news = &run->news;
    int count = 0;

    for (int i = 0; i < news->member_count; i++) {
        int index = news->members[i] - run->options.first_id;
        count += index < 0 || index >= run->options.workers;
    }
    return count;
}

static bool read_kind(const char *name, enum kind *out) {
    static const char *const names[KINDS] = {
        [FORM] = "form",         [REVOKE] = "revoke",         [PAUSE] = "pause", [OUT] = "out",
        [HEAL] = "heal",         [COMMIT] = "commit",         [RETRY] = "retry", [SLOW] = "slow",
        [DIVERGED] = "diverged", [CHECKPOINT] = "checkpoint", [FLIP] = "flip"};

    for (int i = 0; name && i < KINDS; i++) {
        if (!strcmp(name, names[i])) {
            *out = (enum kind)i;
            return true;
        }
    }
    return false;
}

static int64_t integer(const json_t *event, const char *name, int64_t least, int64_t most,
                       int64_t otherwise) {
    const json_t *value = json_object_get(event, name);
    int64_t number = json_is_integer(value) ? json_integer_value(value) : otherwise;
    return number < least || number > most ? otherwise : number;
}

static double real(const json_t *event, const char *name) {
    double value = json_number_value(json_object_get(event, name));
    return value > 0 && value < 1e9 ? value : 0;
}

/* False: it is no event. The texts are borrowed from `event`. */
static bool read_event(const json_t *event, struct told *out) {
    const char *text = json_string_value(json_object_get(event, "text"));
    const char *what = json_string_value(json_object_get(event, "what"));

    *out = (struct told){.id = (int)integer(event, "id", 0, 999999, -1),
                         .rank = (int)integer(event, "rank", -1, RF_MAX_RANKS - 1, -1),
                         .size = (int)integer(event, "size", 0, RF_MAX_RANKS, 0),
                         .peer = (int)integer(event, "peer", -1, 999999, -1),
                         .donors = (int)integer(event, "donors", 0, RF_MAX_RANKS, 0),
                         .generation = (uint64_t)integer(event, "generation", 0, INT64_MAX, 0),
                         .unit = (uint64_t)integer(event, "unit", 0, INT64_MAX, 0),
                         .step = (uint64_t)integer(event, "step", 0, INT64_MAX, 0),
                         .bytes = (uint64_t)integer(event, "bytes", 0, INT64_MAX, 0),
                         .checkpoint = (uint64_t)integer(event, "checkpoint", 0, INT64_MAX, 0),
                         .rolled_back = json_is_true(json_object_get(event, "rolled_back")),
                         .what = what ? what : "",
                         .seconds = real(event, "seconds"),
                         .ratio = real(event, "ratio"),
                         .text = text ? text : "",
                         .members = json_object_get(event, "members"),
                         .lost = json_object_get(event, "lost"),
                         .joined = json_object_get(event, "joined")};
    return out->id >= 0 &&
           read_kind(json_string_value(json_object_get(event, "event")), &out->kind);
}

static int id_at(const json_t *list, size_t index) {
    const json_t *value = json_array_get(list, index);
    json_int_t id = json_is_integer(value) ? json_integer_value(value) : -1;
    return id >= 0 && id <= 999999 ? (int)id : -1;
}

static bool has_id(const json_t *list, int id) {
    for (size_t i = 0; i < json_array_size(list); i++) {
        if (id_at(list, i) == id) {
            return true;
        }
    }
    return false;
}

/* 1490000000 -> "1.49 GB". */
static void decimal_bytes(char out[32], uint64_t bytes) {
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
    double value = (double)bytes;
    int unit = 0;

    while (value >= 999.5 && unit < 6) {
        value /= 1000;
        unit++;
    }
    snprintf(out, 32, unit ? "%.3g %s" : "%.0f %s", value, units[unit]);
}

/* What the launcher itself saw is nearer to the cause than what the peers did. */
static void cause_of(struct run *run, const struct told *told, int id, char out[256]) {
    const struct run_worker *worker = own_worker(run, id);
    const struct run_news *news = &run->news;
    const char *text = news->revoked && news->revoked < told->generation && news->revoked_text[0]
                           ? news->revoked_text
                           : told->text;
    char name[32];

    if (worker && worker->lost_by[0]) {
        snprintf(out, 256, "%s", worker->lost_by);
        return;
    }
    int length = snprintf(name, sizeof name, "worker %d ", id);
    text += !strncmp(text, name, (size_t)length) ? length : 0;
    text += !strncmp(text, "was lost: ", strlen("was lost: ")) ? strlen("was lost: ") : 0;
    snprintf(out, 256, "%.*s", RUN_EVENT_TEXT, text[0] ? text : "no reason is known");
}

/* "worker 5", "workers 5, 6 and 8"; *first is the first of them. */
static int lost_ids(struct run *run, const struct told *told, char *out, size_t room, int *first) {
    const struct run_news *news = &run->news;
    int ids[RF_MAX_RANKS], count = 0;
    size_t at;

    for (size_t i = 0; i < json_array_size(told->lost) && count < RF_MAX_RANKS; i++) {
        int id = id_at(told->lost, i);
        if (id >= 0) {
            ids[count++] = id;
        }
    }
    if (!count && news->revoked && news->revoked < told->generation && news->revoked_peer >= 0) {
        ids[count++] = news->revoked_peer; /* and it is back already */
    }
    at = (size_t)snprintf(out, room, "worker%s", run_plural(count));
    for (int i = 0; i < count && at < room; i++) {
        const char *before = i == 0 ? " " : i + 1 == count ? " and " : ", ";
        at += (size_t)snprintf(out + at, room - at, "%s%d", before, ids[i]);
    }
    *first = count ? ids[0] : -1;
    return count;
}

static bool all_told_lost(struct run *run, const json_t *lost) {
    for (size_t i = 0; i < json_array_size(lost); i++) {
        const struct run_worker *worker = own_worker(run, id_at(lost, i));
        if (!worker || !worker->told_lost) {
            return false;
        }
    }
    return json_array_size(lost) > 0;
}

static void tell_form(struct run *run, const struct told *told) {
    struct run_news *news = &run->news;
    char who[256], cause[256];
    int first, count = lost_ids(run, told, who, sizeof who, &first);
    unsigned long long step = news->step + 1;
    int size = (int)json_array_size(told->members);

    if (count && all_told_lost(run, told->lost)) {
        run_tell(run, '!', "step %llu goes on with %d worker%s after %.2f s, batch kept", step,
                 size, run_plural(size), told->seconds);
    } else if (count) {
        cause_of(run, told, first, cause);
        run_tell(run, '!',
                 "%s lost: %s; step %llu goes on with %d worker%s after %.2f s, batch kept", who,
                 cause, step, size, run_plural(size), told->seconds);
    } else if (news->revoked && !json_array_size(told->joined)) {
        cause_of(run, told, -1, cause);
        run_tell(run, '!', "%s; step %llu goes on with %d worker%s after %.2f s, batch kept", cause,
                 step, size, run_plural(size), told->seconds);
    } else if (run->options.verbose) {
        run_tell(run, '=', "generation %" PRIu64 " runs with %d worker%s", told->generation, size,
                 run_plural(size));
    }
    for (size_t i = 0; i < json_array_size(told->lost); i++) {
        struct run_worker *worker = own_worker(run, id_at(told->lost, i));
        if (worker) {
            worker->told_lost = true;
        }
    }
}

static void take_form(struct run *run, const struct told *told) {
    struct run_news *news = &run->news;

    news->has_formed = true;
    for (int i = 0; i < run->options.workers; i++) {
        struct run_worker *worker = &run->workers[i];
        bool is_member = has_id(told->members, worker->id);
        if (told->generation >= news->generation) {
            worker->is_outlived = !is_member;
        }
    }
    if (told->rank != 0 || told->generation <= news->generation) {
        return;
    }
    tell_form(run, told);
    news->generation = told->generation;
    news->member_count = 0;
    for (size_t i = 0; i < json_array_size(told->members) && i < RF_MAX_RANKS; i++) {
        int id = id_at(told->members, i);
        struct run_worker *worker = own_worker(run, id);
        news->members[news->member_count++] = id;
        if (worker) {
            worker->told_lost = false;
        }
    }
    for (int i = 0; i < run->options.workers; i++) { /* told above, or no longer of interest */
        run->workers[i].lost_by[0] = '\0';
    }
    news->revoked = 0;
    news->is_pause_told = false;
}

/* The first to say so knows best. */
static void take_revoke(struct run *run, const struct told *told) {
    struct run_news *news = &run->news;

    if (told->generation >= news->generation && news->revoked < told->generation) {
        news->revoked = told->generation;
        news->revoked_peer = told->peer;
        snprintf(news->revoked_text, sizeof news->revoked_text, "%s", told->text);
    } else if (told->generation == news->revoked && news->revoked_peer < 0 && told->peer >= 0) {
        news->revoked_peer = told->peer;
        snprintf(news->revoked_text, sizeof news->revoked_text, "%s", told->text);
    }
}

static void take_heal(struct run *run, struct run_worker *worker, const struct told *told) {
    unsigned long long step = told->step > run->news.step ? told->step : run->news.step;
    char bytes[32];

    worker->has_committed = true;
    worker->told_lost = false;
    decimal_bytes(bytes, told->bytes);
    if (told->donors > 0) {
        run_tell(run, '+', "worker %d joined at step %llu: copied %s from %d worker%s in %.1f s",
                 worker->id, step + 1, bytes, told->donors, run_plural(told->donors),
                 told->seconds);
    } else {
        run_tell(run, '+', "worker %d joined at step %llu: copied %s in %.1f s", worker->id,
                 step + 1, bytes, told->seconds);
    }
}

static void take_commit(struct run *run, struct run_worker *worker, const struct told *told) {
    struct run_news *news = &run->news;

    news->has_committed = worker->has_committed = true;
    news->step = told->step > news->step ? told->step : news->step;
}

static void take_checkpoint(struct run *run, struct run_worker *worker, const struct told *told) {
    struct run_news *news = &run->news;
    unsigned long long step = (unsigned long long)told->checkpoint;
    bool is_new = news->returned != told->generation;
    char bytes[32];

    decimal_bytes(bytes, told->bytes);
    if (!strcmp(told->what, "saved")) {
        news->has_checkpoint = true;
        run_tell(run, '=', "checkpoint %llu, %s in %.1f s, in the background%s: %s", step, bytes,
                 told->seconds, news->failed_checkpoints ? ", the first since that failure" : "",
                 told->text);
        news->failed_checkpoints = 0;
    } else if (!strcmp(told->what, "failed") && !news->failed_checkpoints++) {
        run_tell(run, '!', "checkpoint %llu is not written, training goes on: %s", step,
                 told->text);
    } else if (!strcmp(told->what, "bad") || !strcmp(told->what, "parted")) {
        run_tell(run, '!', "checkpoint %s", told->text);
    } else if (!strcmp(told->what, "returned") && is_new) {
        news->returned = told->generation;
        news->has_checkpoint = true;
        news->step = told->checkpoint;
        if (!step && !told->rolled_back) { /* the beginning, once more */
            return;
        }
        run_tell(run, told->rolled_back ? '!' : '=', "%s step %llu: %s, %s read in %.1f s",
                 told->rolled_back ? "rolled back to" : "resumed from", step, told->text, bytes,
                 told->seconds);
    }
    worker->told_lost = worker->told_lost && strcmp(told->what, "returned") != 0;
}

/* Whether it is the first to tell this of this peer in this unit. */
static bool is_first_to_tell(int64_t *last, const struct told *told) {
    int64_t name = (int64_t)((told->unit << 20 | (uint64_t)(told->peer + 1)) & INT64_MAX);
    bool is_new = *last != name;
    *last = name;
    return is_new;
}

static void take(struct run *run, struct run_worker *worker, const struct told *told) {
    struct run_news *news = &run->news;

    switch (told->kind) {
    case FORM:
        take_form(run, told);
        return;
    case REVOKE:
        take_revoke(run, told);
        return;
    case PAUSE:
        if (!news->is_pause_told && !worker->told_lost) {
            news->is_pause_told = true;
            run_tell(run, '!', "paused: %s", told->text);
        }
        return;
    case OUT:
        if (worker->has_committed && !worker->told_lost) {
            worker->told_lost = true;
            run_tell(run, '!', "worker %d put out: %s", worker->id, told->text);
        }
        return;
    case HEAL:
        take_heal(run, worker, told);
        return;
    case COMMIT:
        take_commit(run, worker, told);
        return;
    case RETRY:
    case FLIP:
        return;
    case CHECKPOINT:
        take_checkpoint(run, worker, told);
        return;
    case SLOW:
        if (is_first_to_tell(&news->last_slow, told)) {
            run_tell(run, '!', "worker %d is %.1fx slower than the median (%s)", told->peer,
                     told->ratio, told->text);
        }
        return;
    case DIVERGED:
        if (is_first_to_tell(&news->last_diverged, told)) {
            run_tell(run, '!', "worker %d holds another state, %s; healed from the majority",
                     told->peer, told->text);
        }
        return;
    case KINDS:
        return;
    }
}

static void take_line(void *context, const char *line, size_t bytes) {
    struct reading *reading = context;
    struct run *run = reading->run;
    struct told told;
    json_t *event = line ? json_loadb(line, bytes, 0, NULL) : NULL;

    if (!event || !read_event(event, &told) || told.id != reading->worker->id) {
        run->news.bad_lines++;
        goto out;
    }
    run_folder_line(&run->folder, told.kind == COMMIT, line, bytes);
    if (told.kind != COMMIT && run->options.json) {
        run_say_json(run, line, bytes - 1);
    }
    take(run, reading->worker, &told);
out:
    json_decref(event);
}

void run_events_read(struct run *run, struct run_worker *worker) {
    struct reading reading = {run, worker};
    run_pipe_read(&worker->events, take_line, &reading);
}
