/* Finding a checkpoint again, on the thread that trains: what is usable, whether histories have
 * parted, which one to go back to, and loading it. */
#include "ckpt/saver_inner.h"

#include "base/mem.h"
#include "base/status.h"
#include "ckpt/history.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static bool is_refused(const struct rf__saver *s, const struct rf__ckpt_id *id) {
    for (int i = 0; i < s->refused_count; i++) {
        if (s->refused[i].step == id->step && s->refused[i].chain == id->chain) {
            return true;
        }
    }
    return false;
}

static void mark(struct rf__saver *s, const struct rf__ckpt_id *id, const char *why) {
    char folder[RF__CKPT_FOLDER];
    struct rf_error err;

    rf__ckpt_folder(folder, id);
    if (rf__ckpt_mark_bad(s->blobs, folder, why, s->job_name, (int64_t)time(NULL), &err)) {
        rf__saver_tell(s, RF__SAVER_FAILED, id, err.text);
        return;
    }
    rf__saver_tell(s, RF__SAVER_MARKED, id, why);
}

void rf__saver_refuse(struct rf__saver *s, const struct rf__saver_choice *choice, const char *why) {
    if (s->refused_count < REFUSED) {
        s->refused[s->refused_count++] = choice->id;
    }
    if (!choice->is_other) { /* that is not ours to write to */
        mark(s, &choice->id, why);
    }
}

static bool is_usable(const struct rf__saver *s, const struct rf__ckpt_entry *entry) {
    return entry->condition == RF__CKPT_WHOLE && entry->manifest && !is_refused(s, &entry->id);
}

/* A place to look in: the own blobs, or the other ones, which are not ours to write to. */
struct place {
    struct rf__blobs *blobs;
    const char *where;
    bool is_other;
};

static struct place place_of(const struct rf__saver *s, bool is_other) {
    return (struct place){.blobs = is_other ? s->options.other : s->blobs,
                          .where = is_other ? s->other_where : s->where,
                          .is_other = is_other};
}

/* All that are newer than the chosen one are left behind for good. */
static void leave_behind(struct rf__saver *s, const struct place *place,
                         const struct rf__ckpt_list *list, int chosen, const char *why) {
    for (int i = 0; i < list->count; i++) {
        if (!place->is_other && i != chosen && is_usable(s, &list->entries[i]) &&
            list->entries[i].id.step > list->entries[chosen].id.step) {
            mark(s, &list->entries[i].id, why);
        }
    }
}

static int parted(const struct place *place, const struct rf__ckpt_entry *a,
                  const struct rf__ckpt_entry *b, const struct rf__ckpt_relation *how,
                  struct rf_error *err) {
    char range[64];

    if (how->first == how->last) {
        snprintf(range, sizeof range, "at step %" PRIu64, how->first);
    } else {
        snprintf(range, sizeof range, "between steps %" PRIu64 " and %" PRIu64, how->first,
                 how->last);
    }
    int code = rf__fail(err, RF_EDIVERGED, 0,
                        "two groups trained on by themselves, and their histories parted %s: %s "
                        "and %s in '%.100s'",
                        range, a->folder, b->folder, place->where);
    if (err) {
        rf__detail(err->why, "two jobs of one name wrote there, with different stores");
        if (how->has_common) {
            rf__detail(err->next,
                       "--on-divergence rollback goes back to step %" PRIu64
                       ", the newest that both have; --resume STEP takes the one of that step",
                       how->common.step);
        } else {
            rf__detail(err->next, "--resume STEP takes the one of that step");
        }
    }
    return code;
}

static int find_id(const struct rf__saver *s, const struct rf__ckpt_list *list,
                   const struct rf__ckpt_id *id) {
    for (int i = 0; i < list->count; i++) {
        if (is_usable(s, &list->entries[i]) && list->entries[i].id.step == id->step &&
            list->entries[i].id.chain == id->chain) {
            return i;
        }
    }
    return -1;
}

/* Where the usable ones have more than one history: an error, or *chosen is their common past. */
static int look_at_histories(struct rf__saver *s, const struct place *place,
                             const struct rf__ckpt_list *list, int *chosen, struct rf_error *err) {
    struct rf__ckpt_histories histories;
    int count = 0, rc = 0;
    const struct rf__ckpt_manifest **manifests =
        rf__alloc((size_t)list->count + 1, sizeof *manifests);
    int *index = rf__alloc((size_t)list->count + 1, sizeof *index);

    *chosen = -1;
    if (!manifests || !index) {
        rc = rf__fail(err, RF_ENOMEM, 0, "no memory to compare %d checkpoints", list->count);
        goto out;
    }
    for (int i = 0; i < list->count; i++) {
        if (is_usable(s, &list->entries[i])) {
            index[count] = i;
            manifests[count++] = list->entries[i].manifest;
        }
    }
    rf__ckpt_histories(manifests, count, &histories);
    if (histories.tips < 2) {
        goto out;
    }
    const struct rf__ckpt_relation *how = &histories.parted;
    int common = how->has_common ? find_id(s, list, &how->common) : -1;
    if (!s->options.roll_back_parted || common < 0) {
        rc = parted(place, &list->entries[index[histories.tip[0]]],
                    &list->entries[index[histories.tip[1]]], how, err);
        goto out;
    }
    char why[RF_ERROR_TEXT_MAX];
    snprintf(why, sizeof why,
             "two histories parted at step %" PRIu64 ": went back to step %" PRIu64, how->first,
             how->common.step);
    leave_behind(s, place, list, common, why);
    *chosen = common;

out:
    rf__free(index);
    rf__free(manifests);
    return rc;
}

/* All that are there are bad: whoever starts must know, rather than begin anew. */
static int all_bad(const struct place *place, const struct rf__ckpt_list *list,
                   struct rf_error *err) {
    const struct rf__ckpt_entry *newest = NULL;
    int count = 0;

    for (int i = 0; i < list->count; i++) {
        if (list->entries[i].condition == RF__CKPT_BAD) {
            newest = &list->entries[i];
            count++;
        }
    }
    if (!newest) {
        return 0;
    }
    int code = rf__fail(err, RF_ECHECKPOINT, 0,
                        "none of the %d checkpoint%s in '%.100s' can be used; the newest, %s: %s",
                        count, count == 1 ? "" : "s", place->where, newest->folder, newest->reason);
    if (err) {
        rf__detail(err->next,
                   "ringfold ckpt list %.150s; to begin anew choose another --checkpoint",
                   place->where);
    }
    return code;
}

static int none(const struct place *place, uint64_t target, struct rf_error *err) {
    if (target == RF__NEWEST_STEP) {
        return rf__fail(err, RF_ENOTFOUND, 0, "there is no whole checkpoint in '%.200s'",
                        place->where);
    }
    int code = rf__fail(err, RF_ENOTFOUND, 0,
                        "there is no whole checkpoint of step %" PRIu64 " in '%.200s'", target,
                        place->where);
    if (err) {
        rf__detail(err->next, "ringfold ckpt list %.200s", place->where);
    }
    return code;
}

static int choose_of(struct rf__saver *s, const struct place *place,
                     const struct rf__ckpt_list *list, uint64_t target, bool at_start, int *chosen,
                     struct rf_error *err) {
    bool exact = at_start && target != RF__NEWEST_STEP;

    *chosen = -1;
    if (at_start && !exact) {
        int rc = look_at_histories(s, place, list, chosen, err);
        if (rc || *chosen >= 0) {
            return rc;
        }
    }
    for (int i = 0; i < list->count; i++) {
        const struct rf__ckpt_entry *entry = &list->entries[i];
        bool fits = exact ? entry->id.step == target : entry->id.step <= target;
        if (fits && is_usable(s, entry)) {
            if (exact && *chosen >= 0) {
                return rf__fail(err, RF_EDIVERGED, 0,
                                "there are two checkpoints of step %" PRIu64 " in '%.200s': %s and "
                                "%s",
                                target, place->where, list->entries[*chosen].folder, entry->folder);
            }
            *chosen = i;
        }
    }
    if (*chosen < 0) {
        int code = at_start && !exact ? all_bad(place, list, err) : 0;
        return code ? code : none(place, target, err);
    }
    if (target != RF__NEWEST_STEP) {
        char why[96];
        snprintf(why, sizeof why, "the job went back to step %" PRIu64,
                 list->entries[*chosen].id.step);
        leave_behind(s, place, list, *chosen, why);
    }
    return 0;
}

/* One place: what to take from there. */
static int choose_in(struct rf__saver *s, bool is_other, uint64_t target, bool at_start,
                     struct rf__ckpt_id *out, struct rf_error *err) {
    struct place place = place_of(s, is_other);
    struct rf__ckpt_list list;
    int chosen;

    int rc = rf__ckpt_list(place.blobs, &list, err);
    if (rc) {
        return rc;
    }
    rc = choose_of(s, &place, &list, target, at_start, &chosen, err);
    if (rc == 0) {
        *out = list.entries[chosen].id;
    }
    rf__ckpt_list_free(&list);
    return rc;
}

/* Nothing was to be resumed. What was taken before the first step is as good as the beginning. */
static int must_be_new(const struct rf__saver *s, const struct rf__ckpt_id *newest,
                       struct rf_error *err) {
    if (newest->step == 0) {
        return 0;
    }
    int code = rf__fail(err, RF_EEXISTS, 0,
                        "'%.200s' holds checkpoints of an earlier training, up to step %" PRIu64,
                        s->where, newest->step);
    if (err) {
        rf__detail(err->next, "--resume auto to go on from there, or another --checkpoint");
    }
    return code;
}

/* What cannot be written to is better known before the first step than after it. */
static int try_to_write(struct rf__saver *s, struct rf_error *err) {
    static const char name[] = "writable";
    struct rf__blob_writer *writer;

    int rc = s->blobs->ops->create(s->blobs, name, &writer, err);
    if (rc == 0) {
        rc = s->blobs->ops->write(s->blobs, writer, name, sizeof name - 1, err);
        if (rc) {
            s->blobs->ops->abandon(s->blobs, writer);
        } else {
            rc = s->blobs->ops->finish(s->blobs, writer, false, err);
        }
    }
    if (rc == 0) {
        rc = s->blobs->ops->remove(s->blobs, name, err);
    }
    return rc ? rf__wrap(err, rc, "'%.100s' cannot be written to: ", s->where) : 0;
}

int rf__saver_choose(struct rf__saver *s, uint64_t target, bool at_start,
                     struct rf__saver_choice *out, struct rf_error *err) {
    uint64_t wanted = at_start ? s->options.resume : target;
    bool none_wanted = wanted == RF__RESUME_NONE;

    *out = (struct rf__saver_choice){.is_other = false};
    int rc = choose_in(s, false, none_wanted ? RF__NEWEST_STEP : wanted, at_start && !none_wanted,
                       &out->id, err);
    if (rc == RF_ENOTFOUND && at_start) {
        int written = try_to_write(s, err);
        rc = written ? written : rc;
    }
    if (rc == RF_ENOTFOUND && at_start && s->options.other) {
        out->is_other = true;
        rc = choose_in(s, true, RF__NEWEST_STEP, true, &out->id, err);
        if (rc == RF_ENOTFOUND) {
            rc = rf__fail(err, RF_EINVAL, 0, "there is no whole checkpoint in '%.200s'",
                          s->other_where);
        }
    }
    if (rc == 0 && none_wanted && at_start) {
        rc = must_be_new(s, &out->id, err);
    }
    /* a place where nothing is yet is a beginning, unless a step was named */
    if (rc == RF_ENOTFOUND && at_start && wanted != RF__NEWEST_STEP && !none_wanted) {
        rc = RF_EINVAL;
        if (err) {
            err->code = rc;
        }
    }
    return rc;
}

/* Whether two configurations speak of models of different shapes, and how. The same tensors make
 * another model where attention has another number of heads; that the rest differs is seen in the
 * tensors, and only told here in fewer words. */
static bool is_other_shape(const char *theirs, const char *ours, bool same_tensors,
                           struct rf_error *err) {
    static const char *const numbers[] = {"heads", "depth", "width", "context", "vocabulary"};
    json_t *a = json_loads(theirs ? theirs : "{}", 0, NULL), *b = json_loads(ours, 0, NULL);
    bool differ = false;

    for (size_t i = 0; i < (same_tensors ? 1 : sizeof numbers / sizeof *numbers) && !differ; i++) {
        const json_t *there = json_object_get(a, numbers[i]),
                     *here = json_object_get(b, numbers[i]);
        long long have = json_integer_value(there), want = json_integer_value(here);
        differ = json_is_integer(there) && json_is_integer(here) && have != want;
        if (differ) {
            (void)rf__fail(err, RF_ECHECKPOINT, 0, "%s: %lld in the checkpoint, %lld in the model",
                           numbers[i], have, want);
        }
    }
    json_decref(a);
    json_decref(b);
    return differ;
}

static bool is_other_model(const struct rf__ckpt_manifest *theirs, const char *config,
                           const struct rf__ckpt_state *state, struct rf_error *err) {
    bool same_tensors = !rf__ckpt_state_compare(&theirs->state, state, err);
    return is_other_shape(theirs->config, config, same_tensors, err) || !same_tensors;
}

int rf__saver_load(struct rf__saver *s, const struct rf__saver_choice *choice,
                   const struct rf__ckpt_state *state, struct rf__ckpt_manifest *out,
                   struct rf_error *err) {
    struct rf__blobs *blobs = choice->is_other ? s->options.other : s->blobs;
    char folder[RF__CKPT_FOLDER];

    if (!blobs) {
        return rf__fail(err, RF_EINVAL, 0, "this worker was not told where to start from");
    }
    rf__ckpt_folder(folder, &choice->id);
    int rc = rf__ckpt_read_manifest(blobs, folder, out, err);
    if (rc) {
        return rc;
    }
    if (out->id.chain != choice->id.chain) {
        rc = rf__fail(err, RF_ECHECKPOINT, 0, "%s in '%.200s' is another checkpoint", folder,
                      choice->is_other ? s->other_where : s->where);
    }
    if (rc == 0 && is_other_model(out, s->config, state, err)) {
        rc = RF_EINVAL; /* it is as it should be: the training is another one */
        if (err) {
            (void)rf__wrap(err, rc, "it is of another model: ");
            err->code = rc;
        }
    }
    if (rc == 0) {
        rc = rf__ckpt_load(blobs, out, state, err);
    }
    if (rc == 0) {
        rf__saver_past_reset(&s->past, out);
    } else {
        rf__ckpt_manifest_free(out);
    }
    return rc;
}
