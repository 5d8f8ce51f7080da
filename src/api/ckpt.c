/* The public face of checkpoints: URIs become blobs, and names become one of what a list tells. */
#include "api/ckpt.h"

#include "base/mem.h"
#include "base/status.h"
#include "ckpt/checkpoint.h"
#include "ckpt/copy.h"
#include "ckpt/history.h"
#include "os/storage.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

_Static_assert((int)RF_CKPT_NAME >= (int)RF__CKPT_FOLDER &&
                   (int)RF_CKPT_REASON >= (int)RF__CKPT_REASON &&
                   (int)RF_CKPT_VERSION >= (int)RF__CKPT_VERSION &&
                   (int)RF_CKPT_DIMS >= (int)RF__CKPT_DIMS,
               "what the public structs hold");

struct rf_ckpt {
    struct rf__blobs *blobs;
    struct rf__ckpt_list list;
    const struct rf__ckpt_entry *entry; /* with a manifest */
};

const char *rf_ckpt_condition_name(enum rf_ckpt_condition condition) {
    switch (condition) {
    case RF_CKPT_WHOLE:
        return "whole";
    case RF_CKPT_INCOMPLETE:
        return "incomplete";
    case RF_CKPT_BAD:
        return "bad";
    }
    return "?";
}

static enum rf_ckpt_condition condition_of(enum rf__ckpt_condition condition) {
    switch (condition) {
    case RF__CKPT_WHOLE:
        return RF_CKPT_WHOLE;
    case RF__CKPT_INCOMPLETE:
        return RF_CKPT_INCOMPLETE;
    case RF__CKPT_BAD:
        break;
    }
    return RF_CKPT_BAD;
}

static void destroy_blobs(struct rf__blobs *blobs) {
    if (blobs) {
        blobs->ops->destroy(blobs);
    }
}

static void describe(const struct rf__ckpt_entry *entry, struct rf_ckpt_info *out) {
    const struct rf__ckpt_manifest *m = entry->manifest;

    *out = (struct rf_ckpt_info){.condition = condition_of(entry->condition),
                                 .marked = entry->marked,
                                 .step = entry->id.step,
                                 .chain = entry->id.chain,
                                 .bytes = entry->bytes,
                                 .time_s = entry->time_s,
                                 .parts = entry->parts};
    memcpy(out->name, entry->folder, sizeof entry->folder);
    memcpy(out->reason, entry->reason, sizeof entry->reason);
    if (m) {
        memcpy(out->job, m->job, sizeof m->job);
        memcpy(out->version, m->version, sizeof m->version);
        out->units = m->units;
        out->generation = m->generation;
        out->state_digest = m->state_digest;
        out->samples = m->samples;
        out->skipped = m->skipped;
        out->parts = m->part_count;
        out->tensors = m->state.count;
    }
}

/* ---- lists ---- */

static int find_parting(const struct rf__ckpt_list *list, struct rf_ckpt_parting *out,
                        struct rf_error *err) {
    const struct rf__ckpt_manifest **manifests = rf__alloc((size_t)list->count, sizeof *manifests);
    struct rf__ckpt_histories found;
    char folder[RF__CKPT_FOLDER];
    int count = 0;

    if (!manifests) {
        return rf__fail(err, RF_ENOMEM, 0, "no memory for %d checkpoints", list->count);
    }
    for (int i = 0; i < list->count; i++) {
        if (list->entries[i].condition == RF__CKPT_WHOLE) {
            manifests[count++] = list->entries[i].manifest;
        }
    }
    rf__ckpt_histories(manifests, count, &found);
    *out = (struct rf_ckpt_parting){.histories = found.tips};
    for (int i = 0; i < 2 && i < found.tips; i++) {
        rf__ckpt_folder(folder, &manifests[found.tip[i]]->id);
        memcpy(out->newest[i], folder, sizeof folder);
    }
    if (found.tips > 1) {
        out->has_common = found.parted.has_common;
        out->common_step = found.parted.common.step;
        out->first = found.parted.first;
        out->last = found.parted.last;
    }
    rf__free(manifests);
    return RF_OK;
}

int rf_ckpt_list(const char *uri, rf_ckpt_each_fn *each, void *context,
                 struct rf_ckpt_parting *parting, struct rf_error *err) {
    struct rf__blobs *blobs = NULL;
    struct rf__ckpt_list list = {0};
    struct rf_ckpt_info info;

    rf__error_clear(err);
    int code = rf__storage_open(uri, NULL, &blobs, err);
    code = code ? code : rf__ckpt_list(blobs, &list, err);
    if (!code && parting) {
        code = find_parting(&list, parting, err);
    }
    for (int i = 0; i < list.count && !code; i++) {
        describe(&list.entries[i], &info);
        each(context, &info);
    }
    rf__ckpt_list_free(&list);
    destroy_blobs(blobs);
    return code;
}

/* ---- one of them ---- */

/* Only digits, and a number. */
static bool is_step(const char *which, uint64_t *step) {
    size_t digits = strspn(which, "0123456789");
    if (!digits || which[digits] || digits > 19) {
        return false;
    }
    *step = strtoull(which, NULL, 10);
    return true;
}

static int find_step(const struct rf__ckpt_list *list, uint64_t step, int *out,
                     struct rf_error *err) {
    int found = -1;

    for (int i = 0; i < list->count; i++) {
        const struct rf__ckpt_entry *entry = &list->entries[i];
        if (entry->id.step != step) {
            continue;
        }
        bool better = found < 0 || (list->entries[found].condition != RF__CKPT_WHOLE &&
                                    entry->condition == RF__CKPT_WHOLE);
        if (!better && entry->condition == RF__CKPT_WHOLE) {
            return rf__fail(err, RF_EUSAGE, 0,
                            "two whole checkpoints have step %llu: '%s' and '%s'; name one",
                            (unsigned long long)step, list->entries[found].folder, entry->folder);
        }
        found = better ? i : found;
    }
    *out = found;
    return found >= 0 ? RF_OK
                      : rf__fail(err, RF_ENOTFOUND, 0, "there is no checkpoint of step %llu",
                                 (unsigned long long)step);
}

static int find_which(const struct rf__ckpt_list *list, const char *which, int *out,
                      struct rf_error *err) {
    struct rf__ckpt_id id;
    uint64_t step;

    if (!which) {
        *out = rf__ckpt_newest(list, list->count);
        return *out >= 0 ? RF_OK
                         : rf__fail(err, RF_ENOTFOUND, 0, "there is no whole checkpoint (of %d)",
                                    list->count);
    }
    if (is_step(which, &step)) {
        return find_step(list, step, out, err);
    }
    if (!rf__ckpt_folder_parse(which, &id)) {
        return rf__fail(err, RF_EUSAGE, 0,
                        "'%.100s' is neither a step nor the name of a checkpoint", which);
    }
    for (int i = 0; i < list->count; i++) {
        if (!strcmp(list->entries[i].folder, which)) {
            *out = i;
            return RF_OK;
        }
    }
    return rf__fail(err, RF_ENOTFOUND, 0, "there is no checkpoint '%s'", which);
}

static int open_which(struct rf_ckpt *ckpt, const char *uri, const char *which,
                      struct rf_error *err) {
    int index = -1;

    int code = rf__storage_open(uri, NULL, &ckpt->blobs, err);
    if (code) {
        return code;
    }
    code = rf__ckpt_list(ckpt->blobs, &ckpt->list, err);
    if (code) {
        return code;
    }
    code = find_which(&ckpt->list, which, &index, err);
    if (code) {
        (void)rf__wrap(err, code, "'%.100s': ", uri);
        if (err && !err->next[0]) {
            rf__detail(err->next, "ringfold ckpt list %.180s  shows what there is", uri);
        }
        return code;
    }
    ckpt->entry = &ckpt->list.entries[index];
    if (!ckpt->entry->manifest) {
        code = rf__fail(
            err, RF_ECHECKPOINT, 0, "checkpoint '%s' of '%.80s' is %s: %.140s", ckpt->entry->folder,
            uri, rf_ckpt_condition_name(condition_of(ckpt->entry->condition)), ckpt->entry->reason);
        if (err) {
            rf__detail(err->next, "use another one: ringfold ckpt list %.180s", uri);
        }
    }
    return code;
}

int rf_ckpt_open(const char *uri, const char *which, struct rf_ckpt **out, struct rf_error *err) {
    struct rf_ckpt *ckpt = rf__alloc(1, sizeof *ckpt);

    *out = NULL;
    rf__error_clear(err);
    if (!ckpt) {
        return rf__fail(err, RF_ENOMEM, 0, "no memory to open a checkpoint of '%.200s'", uri);
    }
    int code = open_which(ckpt, uri, which, err);
    if (code) {
        rf_ckpt_close(ckpt);
        return code;
    }
    *out = ckpt;
    return RF_OK;
}

void rf_ckpt_close(struct rf_ckpt *ckpt) {
    if (ckpt) {
        rf__ckpt_list_free(&ckpt->list);
        destroy_blobs(ckpt->blobs);
        rf__free(ckpt);
    }
}

void rf_ckpt_get_info(const struct rf_ckpt *ckpt, struct rf_ckpt_info *out) {
    describe(ckpt->entry, out);
}

struct rf__blobs *rf__ckpt_blobs(const struct rf_ckpt *ckpt) {
    return ckpt->blobs;
}

const struct rf__ckpt_manifest *rf__ckpt_manifest(const struct rf_ckpt *ckpt) {
    return ckpt->entry->manifest;
}

const char *rf_ckpt_config(const struct rf_ckpt *ckpt) {
    return ckpt->entry->manifest->config;
}

bool rf_ckpt_get_tensor(const struct rf_ckpt *ckpt, int index, struct rf_ckpt_tensor *out) {
    const struct rf__ckpt_state *state = &ckpt->entry->manifest->state;

    if (index < 0 || index >= state->count) {
        return false;
    }
    const struct rf__ckpt_tensor *tensor = &state->tensors[index];
    *out = (struct rf_ckpt_tensor){.name = tensor->name,
                                   .type = tensor->type,
                                   .trained = tensor->trained,
                                   .dims = tensor->dims,
                                   .bytes = tensor->length};
    memcpy(out->shape, tensor->shape, sizeof tensor->shape);
    return true;
}

bool rf_ckpt_get_part(const struct rf_ckpt *ckpt, int index, struct rf_ckpt_part *out) {
    const struct rf__ckpt_manifest *m = ckpt->entry->manifest;

    if (index < 0 || index >= m->part_count) {
        return false;
    }
    *out = (struct rf_ckpt_part){.bytes = m->parts[index].bytes, .digest = m->parts[index].digest};
    return true;
}

bool rf_ckpt_get_ancestor(const struct rf_ckpt *ckpt, int index, uint64_t *step, uint64_t *chain) {
    const struct rf__ckpt_manifest *m = ckpt->entry->manifest;

    if (index < 0 || index >= m->ancestor_count) {
        return false;
    }
    *step = m->ancestors[index].step;
    *chain = m->ancestors[index].chain;
    return true;
}

/* ---- work on one ---- */

int rf_ckpt_verify(struct rf_ckpt *ckpt, rf_ckpt_part_fn *each, void *context,
                   struct rf_error *err) {
    rf__error_clear(err);
    return rf__ckpt_verify(ckpt->blobs, ckpt->entry->manifest, each, context, err);
}

int rf_ckpt_mark_bad(struct rf_ckpt *ckpt, const char *reason, const char *by,
                     struct rf_error *err) {
    rf__error_clear(err);
    return rf__ckpt_mark_bad(ckpt->blobs, ckpt->entry->folder, reason, by, (int64_t)time(NULL),
                             err);
}

int rf_ckpt_copy(struct rf_ckpt *ckpt, const char *to_uri, struct rf_error *err) {
    struct rf__blobs *to = NULL;

    rf__error_clear(err);
    int code = rf__storage_open(to_uri, NULL, &to, err);
    code = code ? code : rf__ckpt_copy(ckpt->blobs, to, ckpt->entry->folder, err);
    destroy_blobs(to);
    return code;
}

int rf_ckpt_export(struct rf_ckpt *ckpt, const char *path, bool further, uint64_t *bytes,
                   struct rf_error *err) {
    const char *slash = strrchr(path, '/'), *colon = strchr(path, ':');
    const char *name = slash ? slash + 1 : colon && colon == path + 4 ? colon + 1 : path;
    struct rf__blobs *to = NULL;
    char *folder = NULL;
    int code;

    rf__error_clear(err);
    if (!*name) {
        return rf__fail(err, RF_EUSAGE, 0, "'%.200s' is the name of a folder, not of a file", path);
    }
    /* "/model" is in "/", "model" and "file:model" in the present folder. */
    size_t length = (size_t)(name - path);
    folder = rf__alloc(length + 2, 1);
    if (!folder) {
        return rf__fail(err, RF_ENOMEM, 0, "no memory to export to '%.200s'", path);
    }
    memcpy(folder, path, length);
    if (!slash) {
        folder[length] = '.';
    }
    code = rf__storage_open(folder, NULL, &to, err);
    code = code
               ? code
               : rf__ckpt_export(ckpt->blobs, ckpt->entry->manifest, further, to, name, bytes, err);
    destroy_blobs(to);
    rf__free(folder);
    return code;
}

int rf_ckpt_prune(const char *uri, int keep, struct rf_ckpt_pruned *out, struct rf_error *err) {
    struct rf__ckpt_pruned pruned = {0};
    struct rf__blobs *blobs = NULL;

    rf__error_clear(err);
    int code = rf__storage_open(uri, NULL, &blobs, err);
    code = code ? code : rf__ckpt_prune(blobs, keep, &pruned, err);
    *out = (struct rf_ckpt_pruned){.kept = pruned.kept,
                                   .removed = pruned.removed,
                                   .bad = pruned.bad,
                                   .incomplete = pruned.incomplete,
                                   .collected = pruned.collected,
                                   .bytes = pruned.bytes};
    destroy_blobs(blobs);
    return code;
}
