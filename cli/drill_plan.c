/* The schedule of a rehearsal. See drill_plan.h.
 *
 * Each fault takes the same number of random numbers, whatever it is and whatever has happened
 * before, so a seed gives the same schedule on every machine. */
#include "drill_plan.h"

#include "drill_feed.h"
#include "report.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014). */
static uint64_t draw(struct drill_plan *plan) {
    uint64_t z = plan->state += 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* In [0, 1). */
static double draw_share(struct drill_plan *plan) {
    return (double)(draw(plan) >> 11) * 0x1p-53;
}

static int length_of(enum drill_kind kind, int detect_ms, double share) {
    double least = 0, most = 0;

    switch (kind) {
    case DRILL_FREEZE: /* long enough to be noticed */
    case DRILL_CUT:
        least = 1.5 * detect_ms;
        most = 3.0 * detect_ms;
        break;
    case DRILL_SLOW:
        least = 2000;
        most = 6000;
        break;
    case DRILL_STORE:
        least = 200;
        most = 3000;
        break;
    case DRILL_STORAGE:
        least = 1000;
        most = 5000;
        break;
    case DRILL_JOIN:
        least = 5000;
        most = 20000;
        break;
    case DRILL_KILL:
    case DRILL_FLIP:
    case DRILL_CHECKPOINT:
    case DRILL_KINDS:
        break;
    }
    double length = least + (most - least) * share;
    return length < DRILL_MAX_LENGTH_MS ? (int)length : DRILL_MAX_LENGTH_MS;
}

bool drill_plan_next(struct drill_plan *plan, struct drill_planned *out) {
    if (plan->read) {
        if (plan->read_at == plan->read_count) {
            return false;
        }
        *out = plan->read[plan->read_at++];
        return true;
    }
    plan->at += -log1p(-draw_share(plan)) * plan->mtbf_ms / 1e3;
    uint64_t kind = draw(plan), victim = draw(plan);
    double share = draw_share(plan);
    uint64_t abrupt = draw(plan);
    *out = (struct drill_planned){.at = plan->at,
                                  .kind = plan->kinds[kind % (uint64_t)plan->kind_count],
                                  .victim = (int)(victim % (uint64_t)plan->workers)};
    out->length_ms = length_of(out->kind, plan->detect_ms, share);
    out->abrupt = (out->kind == DRILL_JOIN || out->kind == DRILL_STORAGE) && (abrupt & 1);
    return true;
}

json_t *drill_plan_line(const struct drill_planned *planned, size_t number) {
    return json_pack("{s:s, s:I, s:f, s:s, s:i, s:f, s:b}", "event", "plan", "number",
                     (json_int_t)number, "at", planned->at, "fault", drill_kind_name(planned->kind),
                     "victim", planned->victim, "seconds", planned->length_ms / 1e3, "abrupt",
                     planned->abrupt);
}

/* Reading one. */

struct reading {
    struct drill_plan *plan;
    const char *path;
    size_t line, room;
    struct rf_error *err;
    int rc;
};

static bool read_planned(const json_t *object, struct drill_planned *out) {
    const char *name = json_string_value(json_object_get(object, "fault"));
    double at = json_number_value(json_object_get(object, "at"));
    double seconds = json_number_value(json_object_get(object, "seconds"));
    uint64_t victim;

    *out =
        (struct drill_planned){.at = at, .abrupt = json_is_true(json_object_get(object, "abrupt"))};
    if (!name || drill_kind_parse(name, strlen(name), &out->kind) ||
        !drill_json_whole(object, "victim", DRILL_MAX_IDS - 1, &victim) ||
        !(at >= 0 && at <= 1e8) || !(seconds >= 0 && seconds * 1e3 <= DRILL_MAX_LENGTH_MS)) {
        return false;
    }
    out->victim = (int)victim;
    out->length_ms = (int)lround(seconds * 1e3);
    return true;
}

static int keep_planned(struct reading *reading, const struct drill_planned *planned) {
    struct drill_plan *plan = reading->plan;

    if (plan->read_count == DRILL_MAX_PLANNED) {
        return report_fail(reading->err, RF_ELIMIT, 0, "'%s' has more than %d faults",
                           reading->path, DRILL_MAX_PLANNED);
    }
    if (plan->read_count == reading->room) {
        size_t room = reading->room ? 2 * reading->room : 64;
        struct drill_planned *grown = realloc(plan->read, room * sizeof *grown);
        if (!grown) {
            return report_fail(reading->err, RF_ENOMEM, 0, "no memory for a schedule");
        }
        plan->read = grown;
        reading->room = room;
    }
    plan->read[plan->read_count++] = *planned;
    return 0;
}

static void read_plan_line(void *context, const char *line, size_t bytes) {
    struct reading *reading = context;
    json_t *object = json_loadb(line, bytes, 0, NULL);
    const char *event = json_string_value(json_object_get(object, "event"));
    struct drill_planned planned;

    reading->line++;
    if (reading->rc) {
        goto out;
    }
    if (!event || (!strcmp(event, "plan") && !read_planned(object, &planned))) {
        reading->rc = report_fail(reading->err, RF_EDATA, 0, "line %zu of '%s' is no %s",
                                  reading->line, reading->path,
                                  event ? "fault that can be repeated" : "line of a drill.jsonl");
    } else if (!strcmp(event, "plan")) {
        reading->rc = keep_planned(reading, &planned);
    }
out:
    json_decref(object);
}

int drill_plan_read(struct drill_plan *plan, const char *path, struct rf_error *err) {
    struct reading reading = {.plan = plan, .path = path, .err = err};
    struct drill_tail tail;
    size_t before, too_long = 0;

    if (access(path, R_OK)) {
        return report_fail(err, RF_EIO, errno, "cannot read '%s'", path);
    }
    if (drill_tail_open(&tail, path)) {
        return report_fail(err, RF_ENOMEM, 0, "no memory to read '%s'", path);
    }
    do {
        before = reading.line;
        too_long += drill_tail_read(&tail, read_plan_line, &reading);
    } while (reading.line != before && !reading.rc);
    drill_tail_close(&tail);
    if (!reading.rc && (too_long || !plan->read_count)) {
        reading.rc = report_fail(err, RF_EDATA, 0,
                                 "'%s' holds no schedule: not one fault stands in it", path);
    }
    return reading.rc;
}

void drill_plan_free(struct drill_plan *plan) {
    free(plan->read);
    plan->read = NULL;
    plan->read_count = 0;
}
