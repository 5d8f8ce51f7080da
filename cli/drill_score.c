/* The books of a rehearsal. See drill_score.h.
 *
 * History: units are numbered, and each commit names its digest, which covers everything before it.
 * So nothing is lost exactly where each unit has one digest, no number is left out, whoever commits
 * a unit had the one before it or copied it, and nobody who was lost was ahead of those that are
 * left.
 *
 * A fault is noticed by a revoke of a worker other than its victim. One that a group may well get
 * along with (slow, a flipped bit, the store) is only noticed where the victim is named, so that it
 * is not credited with what another fault has caused at the same time. */
#include "drill_score.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const kind_names[] = {
#define RF_X(NAME, name) #name,
    DRILL_KIND_LIST(RF_X)
#undef RF_X
};

const char *drill_kind_name(enum drill_kind kind) {
    return kind < DRILL_KINDS ? kind_names[kind] : "?";
}

int drill_kind_parse(const char *name, size_t length, enum drill_kind *out) {
    for (int i = 0; i < DRILL_KINDS; i++) {
        if (strlen(kind_names[i]) == length && !memcmp(kind_names[i], name, length)) {
            *out = (enum drill_kind)i;
            return 0;
        }
    }
    return RF_EINVAL;
}

void drill_score_init(struct drill_score *score) {
    memset(score, 0, sizeof *score);
}

void drill_score_free(struct drill_score *score) {
    free(score->units);
    free(score->faults);
    score->units = NULL;
    score->faults = NULL;
}

static bool is_id(int id) {
    return id >= 0 && id < DRILL_MAX_IDS;
}

/* Faults. */

/* Its victim takes part again, or it has none. */
static void close_fault(struct drill_score *score, struct drill_fault *fault) {
    if (!fault->done && is_id(fault->id) && fault->kind != DRILL_JOIN) {
        score->workers[fault->id].victim--;
    }
    fault->done = true;
}

int drill_score_strike(struct drill_score *score, enum drill_kind kind, int id, double time,
                       size_t *out) {
    if (score->fault_count == score->fault_room) {
        size_t room = score->fault_room ? 2 * score->fault_room : 64;
        struct drill_fault *grown = realloc(score->faults, room * sizeof *grown);
        if (!grown) {
            return RF_ENOMEM;
        }
        score->faults = grown;
        score->fault_room = room;
    }
    *out = score->fault_count++;
    score->faults[*out] =
        (struct drill_fault){.kind = kind, .id = id, .from = time, .generation = score->generation};
    if (is_id(id)) {
        score->workers[id].victim++;
    }
    return 0;
}

void drill_score_over(struct drill_score *score, size_t index, double time) {
    struct drill_fault *fault = &score->faults[index];

    if (!fault->over) {
        fault->over = time;
    }
}

void drill_score_joined(struct drill_score *score, size_t index, int id) {
    struct drill_fault *fault = &score->faults[index];

    if (is_id(id) && fault->id < 0) {
        fault->id = id;
    }
}

void drill_score_left(struct drill_score *score, size_t index, double time, bool abrupt) {
    struct drill_fault *fault = &score->faults[index];

    if (fault->left) {
        return;
    }
    fault->left = time;
    fault->abrupt = abrupt;
    fault->generation = score->generation;
    if (!fault->back) { /* was never in: nobody will notice */
        close_fault(score, fault);
    }
}

/* When the group begins to suffer from it: of a joiner, when it goes, if it ever took part. */
static double struck(const struct drill_fault *fault) {
    if (fault->kind == DRILL_JOIN) {
        return fault->back ? fault->left : 0;
    }
    return fault->from;
}

/* Whether the group must re-form because of it. */
static bool ends_generation(enum drill_kind kind) {
    switch (kind) {
    case DRILL_KILL:
    case DRILL_FREEZE:
    case DRILL_CUT:
    case DRILL_JOIN:
    case DRILL_CHECKPOINT:
        return true;
    case DRILL_SLOW:
    case DRILL_FLIP:
    case DRILL_STORE:
    case DRILL_STORAGE:
    case DRILL_KINDS:
        break;
    }
    return false;
}

static void notice(struct drill_fault *fault, const struct drill_event *event) {
    double from = struck(fault);
    bool named = event->peer >= 0 && event->peer == fault->id;
    bool by_itself = event->kind == DRILL_EVENT_REVOKE && ends_generation(fault->kind) &&
                     event->generation >= fault->generation;
    bool past = fault->back && fault->kind != DRILL_JOIN;

    if (!fault->detected && !past && from && event->time >= from && event->id != fault->id &&
        (named || by_itself)) {
        fault->detected = event->time;
    }
}

/* A worker that is not the victim has committed. */
static void go_on(struct drill_fault *fault, const struct drill_event *event) {
    double from = struck(fault);
    bool noticed = fault->detected && event->time >= fault->detected;
    bool in_time =
        !fault->back || fault->kind == DRILL_JOIN || event->generation <= fault->back_generation;

    if (!fault->next_commit && from && event->time >= from &&
        event->generation > fault->generation && in_time &&
        (noticed || ends_generation(fault->kind))) {
        fault->next_commit = event->time;
    }
}

/* The victim's next commit after it could come back. */
static void come_back(struct drill_score *score, struct drill_fault *fault,
                      const struct drill_event *event) {
    if (!fault->back && fault->over && event->time >= fault->over) {
        fault->back = event->time;
        fault->back_generation = event->generation;
        if (fault->kind != DRILL_JOIN) {
            close_fault(score, fault);
        }
    }
}

static void tell_fault(struct drill_score *score, struct drill_fault *fault,
                       const struct drill_event *event) {
    bool victim = fault->id >= 0 && event->id == fault->id;

    switch (event->kind) {
    case DRILL_EVENT_FORM: /* told after the fault was carried out, but formed before */
        if (event->time <= struck(fault) && event->generation > fault->generation) {
            fault->generation = event->generation;
        }
        fault->absent = fault->absent && !victim;
        break;
    case DRILL_EVENT_OUT:
        fault->absent = fault->absent || (victim && !fault->left);
        break;
    case DRILL_EVENT_REVOKE:
        notice(fault, event);
        break;
    case DRILL_EVENT_SLOW:
        if (fault->kind == DRILL_SLOW) {
            notice(fault, event);
        }
        break;
    case DRILL_EVENT_FLIP: /* what was copied before does not put it right */
        if (fault->kind == DRILL_FLIP && victim && !fault->flipped && !fault->done) {
            fault->flipped = true;
            fault->from = event->time;
            fault->generation = event->generation;
            fault->detected = fault->next_commit = 0;
        }
        break;
    case DRILL_EVENT_DIVERGED:
        if (fault->flipped && event->time >= fault->from &&
            (victim || (event->peer >= 0 && event->peer == fault->id))) {
            fault->detected = fault->detected ? fault->detected : event->time;
            fault->over = fault->over ? fault->over : event->time;
        }
        break;
    case DRILL_EVENT_HEAL:
        if (fault->flipped && victim && event->time >= fault->from && !fault->over) {
            fault->over = event->time;
        }
        break;
    case DRILL_EVENT_WORKER:
        if (victim && event->time >= fault->from && !fault->back &&
            (fault->kind != DRILL_FLIP || fault->flipped)) {
            fault->over = event->time;
        }
        break;
    case DRILL_EVENT_COMMIT:
        if (victim) {
            come_back(score, fault, event);
        } else {
            go_on(fault, event);
        }
        bool is_of_nobody = fault->kind == DRILL_STORE || fault->kind == DRILL_STORAGE;
        if (is_of_nobody && fault->over && event->time >= fault->over) {
            close_fault(score, fault);
        } else if (fault->kind == DRILL_JOIN && fault->left && !victim &&
                   (fault->next_commit ||
                    ((!fault->abrupt || fault->absent) && event->time >= fault->left))) {
            close_fault(score, fault); /* one that leaves in order, or was out, disturbs nobody */
        }
        break;
    case DRILL_EVENT_OTHER:
    case DRILL_EVENT_EXIT:
        break;
    }
}

/* Faults that are over are looked at for a while longer: what the others tell of the same moments
 * may come after. */
static void tell_faults(struct drill_score *score, const struct drill_event *event) {
    static const double while_s = 5;

    while (score->first_open < score->fault_count) {
        const struct drill_fault *fault = &score->faults[score->first_open];
        double end = fault->back > fault->left ? fault->back : fault->left;
        end = end > fault->over ? end : fault->over;
        if (!fault->done || event->time < end + while_s) {
            break;
        }
        score->first_open++;
    }
    for (size_t i = score->first_open; i < score->fault_count; i++) {
        tell_fault(score, &score->faults[i], event);
    }
}

/* Workers and units. */

static int make_room(struct drill_score *score, uint64_t unit) {
    size_t room = score->unit_room ? score->unit_room : 1024;

    while (room <= unit) {
        room *= 2;
    }
    if (room == score->unit_room) {
        return 0;
    }
    struct drill_unit *grown = realloc(score->units, room * sizeof *grown);
    if (!grown) {
        return RF_ENOMEM;
    }
    memset(grown + score->unit_room, 0, (room - score->unit_room) * sizeof *grown);
    score->units = grown;
    score->unit_room = room;
    return 0;
}

static void enter_unit(struct drill_score *score, const struct drill_event *event) {
    const struct drill_worker *worker = &score->workers[event->id];
    struct drill_unit *unit = &score->units[event->unit];

    if (!unit->commits) {
        unit->digest = event->digest;
    }
    unit->commits++;
    unit->differs |= unit->digest != event->digest;
    unit->carried |= worker->healed || (worker->committed && worker->unit + 1 == event->unit);
    unit->retries = event->retries > unit->retries ? event->retries : unit->retries;
    if (!score->any_commit || event->unit < score->low) {
        score->low = event->unit;
    }
    if (!score->any_commit || event->unit > score->high) {
        score->high = event->unit;
    }
}

static void enter_worker(struct drill_worker *worker, const struct drill_event *event) {
    if (worker->committed && !worker->healed && worker->unit + 1 == event->unit &&
        event->time > worker->commit_time) {
        worker->taking_part += event->time - worker->commit_time;
    }
    worker->committed = true;
    worker->healed = false;
    worker->unit = event->unit;
    worker->generation = event->generation;
    worker->commit_time = event->time;
}

static int enter_commit(struct drill_score *score, const struct drill_event *event) {
    int rc = make_room(score, event->unit);

    if (rc) {
        return rc;
    }
    enter_unit(score, event);
    enter_worker(&score->workers[event->id], event);
    if (!score->any_commit || event->time < score->first_commit) {
        score->first_commit = event->time;
    }
    score->last_commit = event->time > score->last_commit ? event->time : score->last_commit;
    score->step = event->step > score->step ? event->step : score->step;
    score->redone += event->redone;
    if (event->generation > score->commit_generation) {
        score->commit_generation = event->generation;
    }
    score->any_commit = true;
    return 0;
}

/* A process of its own: what the one before had done is not its own work. */
static void enter_start(struct drill_worker *worker, const struct drill_event *event) {
    double taking_part = worker->taking_part;
    int victim = worker->victim;

    if (worker->alive && worker->pid == event->pid) {
        return; /* told twice */
    }
    *worker = (struct drill_worker){.known = true,
                                    .alive = true,
                                    .own = event->source == 0,
                                    .pid = event->pid,
                                    .victim = victim,
                                    .taking_part = taking_part};
}

int drill_score_event(struct drill_score *score, const struct drill_event *event) {
    int rc = 0;

    if (event->kind == DRILL_EVENT_OTHER) {
        return 0;
    }
    if (!is_id(event->id) || event->unit >= DRILL_MAX_UNITS || !isfinite(event->time)) {
        score->ignored++;
        return 0;
    }
    struct drill_worker *worker = &score->workers[event->id];
    bool started_anew =
        event->kind == DRILL_EVENT_WORKER && !(worker->alive && worker->pid == event->pid);
    switch (event->kind) {
    case DRILL_EVENT_COMMIT:
        rc = enter_commit(score, event);
        break;
    case DRILL_EVENT_HEAL:
        worker->healed = true;
        break;
    case DRILL_EVENT_WORKER:
        enter_start(worker, event);
        break;
    case DRILL_EVENT_EXIT:
        if (worker->pid == event->pid) {
            worker->alive = false;
            worker->lost = !event->well && !(score->ending && event->time >= score->ending);
        }
        break;
    case DRILL_EVENT_FORM:
    case DRILL_EVENT_REVOKE:
    case DRILL_EVENT_SLOW:
    case DRILL_EVENT_DIVERGED:
    case DRILL_EVENT_FLIP:
    case DRILL_EVENT_OUT:
    case DRILL_EVENT_OTHER:
        break;
    }
    if (event->kind != DRILL_EVENT_WORKER || started_anew) {
        tell_faults(score, event);
    }
    if (event->generation > score->generation) {
        score->generation = event->generation;
    }
    return rc;
}

bool drill_score_is_healthy(const struct drill_score *score, int id) {
    const struct drill_worker *worker = is_id(id) ? &score->workers[id] : NULL;

    return worker && worker->alive && worker->committed && !worker->victim &&
           worker->generation == score->commit_generation;
}

int drill_score_healthy(const struct drill_score *score, int ids[DRILL_MAX_IDS]) {
    int count = 0;

    for (int id = 0; id < DRILL_MAX_IDS; id++) {
        if (drill_score_is_healthy(score, id) && score->workers[id].own) {
            ids[count++] = id;
        }
    }
    return count;
}

bool drill_score_is_settled(const struct drill_score *score, uint64_t unit, int *culprit) {
    int alive = 0;

    *culprit = -1;
    for (int id = 0; id < DRILL_MAX_IDS; id++) {
        const struct drill_worker *worker = &score->workers[id];
        if (!worker->alive || !worker->own) {
            continue;
        }
        alive++;
        if (!worker->committed || worker->unit < unit || worker->generation < score->generation) {
            *culprit = id;
            return false;
        }
    }
    return alive > 0;
}

/* The result. */

/* Whether anybody that was not lost has committed, and the last unit that such a worker has. */
static bool last_surviving(const struct drill_score *score, uint64_t *out) {
    bool found = false;

    *out = 0;
    for (int id = 0; id < DRILL_MAX_IDS; id++) {
        const struct drill_worker *worker = &score->workers[id];
        if (worker->committed && !worker->lost && (!found || worker->unit > *out)) {
            *out = worker->unit;
            found = true;
        }
    }
    return found;
}

void drill_score_history(const struct drill_score *score, struct drill_history *out) {
    uint64_t last;
    bool survived = last_surviving(score, &last);

    *out = (struct drill_history){0};
    if (!score->any_commit) {
        return;
    }
    out->units = score->high - score->low + 1;
    for (uint64_t i = score->low; i <= score->high; i++) {
        const struct drill_unit *unit = &score->units[i];
        out->retried += unit->commits && unit->retries;
        if (!unit->commits) {
            out->missing++;
        } else if (unit->differs) {
            out->differ++;
        } else if (!survived || i > last) {
            out->beyond++;
        } else if (i > score->low && score->units[i - 1].commits && !unit->carried) {
            out->broken++;
        }
    }
    out->lost = out->differ + out->missing + out->beyond + out->broken;
}

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct drill_series drill_series_of(double *values, size_t count) {
    struct drill_series series = {.count = count};

    if (count) {
        qsort(values, count, sizeof *values, compare_doubles);
        series.median = (values[(count - 1) / 2] + values[count / 2]) / 2;
        series.p99 = values[(99 * count + 99) / 100 - 1];
    }
    return series;
}

static void add_time(double *values, size_t *count, double from, double to) {
    if (from > 0 && to >= from) {
        values[(*count)++] = (to - from) * 1e3;
    }
}

int drill_score_times(const struct drill_score *score, enum drill_kind kind,
                      struct drill_times *out) {
    size_t detects = 0, commits = 0, rejoins = 0, room = score->fault_count + 1;
    double *values = calloc(3 * room, sizeof *values);

    *out = (struct drill_times){0};
    if (!values) {
        return RF_ENOMEM;
    }
    for (size_t i = 0; i < score->fault_count; i++) {
        const struct drill_fault *fault = &score->faults[i];
        if (kind != DRILL_KINDS && kind != fault->kind) {
            continue;
        }
        out->faults++;
        add_time(values, &detects, struck(fault), fault->detected);
        add_time(values + room, &commits, struck(fault), fault->next_commit);
        add_time(values + 2 * room, &rejoins, fault->over, fault->back);
    }
    out->detect = drill_series_of(values, detects);
    out->next_commit = drill_series_of(values + room, commits);
    out->rejoin = drill_series_of(values + 2 * room, rejoins);
    free(values);
    return 0;
}

double drill_score_participation(const struct drill_score *score, int workers) {
    double seconds = score->last_commit - score->first_commit, sum = 0;

    for (int id = 0; id < DRILL_MAX_IDS; id++) {
        sum += score->workers[id].own ? score->workers[id].taking_part : 0;
    }
    if (!(seconds > 0) || workers < 1) {
        return 0;
    }
    double share = sum / (seconds * workers);
    return share > 1 ? 1 : share;
}

double drill_score_throughput(const struct drill_score *score) {
    double seconds = score->last_commit - score->first_commit;

    return seconds > 0 ? (double)(score->high - score->low) / seconds : 0;
}
