/* What checkpoints there are. One pass over the names tells which folders there are and how large
 * their blobs; then each folder's manifest is read, and its parts are held against those sizes.
 * Nothing of the parts is read here. */
#include "base/mem.h"
#include "base/status.h"
#include "ckpt/inner.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FOLDERS_MAX = 1 << 16, BLOBS_MAX = 1 << 22 };

/* A part's file that is there: the size of part `part` of `parts`, in folder `entry`. */
struct seen {
    uint64_t bytes;
    int entry, part, parts;
};

struct listing {
    struct rf__ckpt_list list;
    struct seen *seen;
    size_t seen_count, seen_room;
    int room;
    struct rf_error *err;
};

/* Room for one more in a growing array. */
static void *grown(void *array, size_t count, size_t *room, size_t bytes) {
    if (count < *room) {
        return array;
    }
    size_t more = *room ? *room * 2 : 16;
    void *larger = rf__grow(array, more, bytes);
    if (larger) {
        *room = more;
    }
    return larger;
}

static int no_memory(struct listing *l) {
    return rf__fail(l->err, RF_ENOMEM, 0, "no memory for a list of %d checkpoints", l->list.count);
}

/* The entry of the folder, which is the last one or a new one, as names come in order. */
static int add_folder(struct listing *l, const char *folder, const struct rf__ckpt_id *id) {
    struct rf__ckpt_list *list = &l->list;

    if (list->count && !strcmp(list->entries[list->count - 1].folder, folder)) {
        return RF_OK;
    }
    if (list->count == FOLDERS_MAX) {
        return rf__fail(l->err, RF_ELIMIT, 0, "more than %d checkpoints under one root",
                        FOLDERS_MAX);
    }
    size_t room = (size_t)l->room;
    void *larger = grown(list->entries, (size_t)list->count, &room, sizeof *list->entries);
    if (!larger) {
        return no_memory(l);
    }
    list->entries = larger;
    l->room = (int)room;
    struct rf__ckpt_entry *entry = &list->entries[list->count];
    *entry = (struct rf__ckpt_entry){.id = *id, .condition = RF__CKPT_INCOMPLETE};
    snprintf(entry->folder, sizeof entry->folder, "%.*s", RF__CKPT_FOLDER - 1, folder);
    list->count++;
    return RF_OK;
}

static int add_part(struct listing *l, uint64_t bytes, int part, int parts) {
    void *larger = grown(l->seen, l->seen_count, &l->seen_room, sizeof *l->seen);

    if (!larger) {
        return no_memory(l);
    }
    l->seen = larger;
    if (l->seen_count == BLOBS_MAX) {
        return rf__fail(l->err, RF_ELIMIT, 0, "more than %d parts under one root", BLOBS_MAX);
    }
    l->seen[l->seen_count++] =
        (struct seen){.bytes = bytes, .entry = l->list.count - 1, .part = part, .parts = parts};
    return RF_OK;
}

/* "part-I-of-N.safetensors", in its one spelling. */
static bool part_parse(const char *name, int *part, int *parts) {
    char again[RF__CKPT_PART_NAME];

    if (sscanf(name, "part-%9d-of-%9d.", part, parts) != 2 || *part < 0 || *part >= *parts ||
        *parts > RF__CKPT_PARTS) {
        return false;
    }
    rf__ckpt_part_name(again, *part, *parts);
    return !strcmp(name, again);
}

static int add_blob(void *context, const struct rf__blob_entry *blob) {
    struct listing *l = context;
    const char *slash = strchr(blob->name, '/');
    char folder[RF__CKPT_FOLDER];
    struct rf__ckpt_id id;
    int part, parts;

    if (!slash || (size_t)(slash - blob->name) >= sizeof folder) {
        return RF_OK;
    }
    snprintf(folder, sizeof folder, "%.*s", (int)(slash - blob->name), blob->name);
    if (!rf__ckpt_folder_parse(folder, &id)) {
        return RF_OK; /* not ours */
    }
    int code = add_folder(l, folder, &id);
    if (code) {
        return code;
    }
    struct rf__ckpt_entry *entry = &l->list.entries[l->list.count - 1];
    entry->bytes += blob->bytes;
    entry->time_s = blob->modified_s > entry->time_s ? blob->modified_s : entry->time_s;
    entry->marked |= !strcmp(slash + 1, RF__CKPT_MARK_NAME);
    if (part_parse(slash + 1, &part, &parts)) {
        entry->parts++;
        return add_part(l, blob->bytes, part, parts);
    }
    return RF_OK;
}

/* ---- one folder ---- */

static void call_bad(struct rf__ckpt_entry *entry, const char *reason) {
    entry->condition = RF__CKPT_BAD;
    snprintf(entry->reason, sizeof entry->reason, "%.*s", RF__CKPT_REASON - 1, reason);
}

/* The first part that is missing or has another size than the manifest says. */
static void check_parts(struct listing *l, int index, struct rf__ckpt_entry *entry) {
    const struct rf__ckpt_manifest *m = entry->manifest;
    uint64_t sizes[RF__CKPT_PARTS];

    memset(sizes, 0xff, sizeof sizes);
    for (size_t i = 0; i < l->seen_count; i++) {
        const struct seen *seen = &l->seen[i];
        if (seen->entry == index && seen->parts == m->part_count) {
            sizes[seen->part] = seen->bytes;
        }
    }
    for (int i = 0; i < m->part_count; i++) {
        if (sizes[i] == m->parts[i].bytes) {
            continue;
        }
        entry->condition = RF__CKPT_BAD;
        if (sizes[i] == UINT64_MAX) {
            snprintf(entry->reason, sizeof entry->reason, "part %d of %d is missing", i,
                     m->part_count);
        } else {
            snprintf(entry->reason, sizeof entry->reason,
                     "part %d of %d has %llu bytes and should have %llu", i, m->part_count,
                     (unsigned long long)sizes[i], (unsigned long long)m->parts[i].bytes);
        }
        return;
    }
}

static int read_mark(struct rf__blobs *blobs, struct rf__ckpt_entry *entry, struct rf_error *err) {
    char path[RF__CKPT_PATH], *text = NULL;
    const char *reason = NULL;
    json_t *root = NULL;
    size_t bytes = 0;

    rf__ckpt_path(path, entry->folder, RF__CKPT_MARK_NAME);
    int code = rf__ckpt_read_blob(blobs, path, RF__CKPT_MARK_MAX, &text, &bytes, err);
    if (!code) {
        root = json_loadb(text, bytes, 0, NULL);
        reason = json_string_value(json_object_get(root, "reason"));
    } else if (rf__ckpt_is_damage(code) || code == RF_ENOTFOUND) {
        code = RF_OK;
    }
    call_bad(entry, reason ? reason : "it was marked so, and the mark cannot be read");
    json_decref(root);
    rf__free(text);
    return code;
}

static int look_at(struct rf__blobs *blobs, struct listing *l, int index, struct rf_error *err) {
    struct rf__ckpt_entry *entry = &l->list.entries[index];
    struct rf_error problem = {0};
    struct rf__ckpt_manifest *m = rf__alloc(1, sizeof *m);

    if (!m) {
        return no_memory(l);
    }
    int code = rf__ckpt_read_manifest(blobs, entry->folder, m, &problem);
    if (!code) {
        entry->manifest = m;
        entry->id = m->id;
        entry->time_s = m->time_s;
        entry->condition = RF__CKPT_WHOLE;
        check_parts(l, index, entry);
        m = NULL;
    } else if (code == RF_ENOTFOUND) {
        snprintf(entry->reason, sizeof entry->reason, "there is no manifest");
        code = RF_OK;
    } else if (rf__ckpt_is_damage(code) || code == RF_EUNSUPPORTED) {
        entry->newer = code == RF_EUNSUPPORTED;
        call_bad(entry, problem.text);
        code = RF_OK;
    } else if (err) {
        *err = problem;
    }
    if (!code && entry->marked) {
        code = read_mark(blobs, entry, err);
    }
    rf__free(m);
    return code;
}

static int compare_entries(const void *a, const void *b) {
    const struct rf__ckpt_entry *x = a, *y = b;
    if (x->id.step != y->id.step) {
        return x->id.step < y->id.step ? -1 : 1;
    }
    if (x->time_s != y->time_s) {
        return x->time_s < y->time_s ? -1 : 1;
    }
    return strcmp(x->folder, y->folder);
}

int rf__ckpt_list(struct rf__blobs *blobs, struct rf__ckpt_list *out, struct rf_error *err) {
    struct listing l = {.err = err};

    *out = l.list;
    int code = blobs->ops->list(blobs, "step-", add_blob, &l, err);
    for (int i = 0; i < l.list.count && !code; i++) {
        code = look_at(blobs, &l, i, err);
    }
    if (code) {
        (void)rf__wrap(err, code, "looking for checkpoints: ");
        goto out;
    }
    if (l.list.count) {
        qsort(l.list.entries, (size_t)l.list.count, sizeof *l.list.entries, compare_entries);
    }
    *out = l.list;
    l.list = (struct rf__ckpt_list){0};
out:
    rf__ckpt_list_free(&l.list);
    rf__free(l.seen);
    return code;
}

void rf__ckpt_list_free(struct rf__ckpt_list *list) {
    for (int i = 0; i < list->count; i++) {
        if (list->entries[i].manifest) {
            rf__ckpt_manifest_free(list->entries[i].manifest);
            rf__free(list->entries[i].manifest);
        }
    }
    rf__free(list->entries);
    *list = (struct rf__ckpt_list){0};
}

int rf__ckpt_newest(const struct rf__ckpt_list *list, int before) {
    int i = before - 1;

    while (i >= 0 && list->entries[i].condition != RF__CKPT_WHOLE) {
        i--;
    }
    return i;
}
