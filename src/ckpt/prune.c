/* Removing checkpoints that are no longer wanted. What is half removed must never look whole, and
 * what is bad must never look good: the manifest goes first, the mark last. */
#include "base/mem.h"
#include "base/status.h"
#include "ckpt/inner.h"

#include <string.h>

enum { UNFINISHED_AGE_S = 3600, NAMES_MAX = 1 << 20 };

/* Names under one folder. */
struct names {
    char **names;
    size_t count, room;
    struct rf_error *err;
};

static int add_name(void *context, const struct rf__blob_entry *blob) {
    struct names *n = context;

    if (n->count == n->room) {
        size_t more = n->room ? n->room * 2 : 16;
        void *larger = more <= NAMES_MAX ? rf__grow(n->names, more, sizeof *n->names) : NULL;
        if (!larger) {
            return rf__fail(n->err, RF_ENOMEM, 0, "no memory for the names of %zu blobs", more);
        }
        n->names = larger;
        n->room = more;
    }
    n->names[n->count] = rf__strdup(blob->name);
    if (!n->names[n->count]) {
        return rf__fail(n->err, RF_ENOMEM, 0, "no memory for a blob's name");
    }
    n->count++;
    return RF_OK;
}

static void names_free(struct names *n) {
    for (size_t i = 0; i < n->count; i++) {
        rf__free(n->names[i]);
    }
    rf__free(n->names);
}

/* What somebody else removed meanwhile is as well removed. */
static int remove_one(struct rf__blobs *blobs, const char *name, struct rf_error *err) {
    int code = blobs->ops->remove(blobs, name, err);
    if (code == RF_ENOTFOUND) {
        code = RF_OK;
        rf__error_clear(err);
    }
    return code;
}

static int remove_folder(struct rf__blobs *blobs, const char *folder, struct rf_error *err) {
    char prefix[RF__CKPT_PATH], manifest[RF__CKPT_PATH], mark[RF__CKPT_PATH];
    struct names n = {.err = err};
    bool marked = false;

    rf__ckpt_path(prefix, folder, "");
    rf__ckpt_path(manifest, folder, RF__CKPT_MANIFEST_NAME);
    rf__ckpt_path(mark, folder, RF__CKPT_MARK_NAME);
    int code = blobs->ops->list(blobs, prefix, add_name, &n, err);
    code = code ? code : remove_one(blobs, manifest, err);
    for (size_t i = 0; i < n.count && !code; i++) {
        if (!strcmp(n.names[i], mark)) {
            marked = true;
        } else if (strcmp(n.names[i], manifest)) {
            code = remove_one(blobs, n.names[i], err);
        }
    }
    if (!code && marked) {
        code = remove_one(blobs, mark, err);
    }
    if (code) {
        (void)rf__wrap(err, code, "removing checkpoint '%.48s': ", folder);
    }
    names_free(&n);
    return code;
}

/* The index of the oldest whole one that is kept, or -1. */
static int oldest_kept(const struct rf__ckpt_list *list, int keep) {
    int oldest = -1, next = rf__ckpt_newest(list, list->count);

    while (next >= 0 && keep > 0) {
        oldest = next;
        keep--;
        next = rf__ckpt_newest(list, next);
    }
    return oldest;
}

/* Where it counts if it is to go, or NULL. */
static int *verdict(const struct rf__ckpt_list *list, int index, int oldest, int newest,
                    struct rf__ckpt_pruned *out) {
    const struct rf__ckpt_entry *entry = &list->entries[index];

    if (entry->newer) {
        return NULL; /* whoever wrote it knows more */
    }
    switch (entry->condition) {
    case RF__CKPT_WHOLE:
        return index < oldest ? &out->removed : NULL;
    case RF__CKPT_BAD:
        return entry->id.step < list->entries[oldest].id.step ? &out->bad : NULL;
    case RF__CKPT_INCOMPLETE:
        return entry->id.step < list->entries[newest].id.step ? &out->incomplete : NULL;
    }
    return NULL;
}

static int prune_list(struct rf__blobs *blobs, const struct rf__ckpt_list *list, int keep,
                      struct rf__ckpt_pruned *out, struct rf_error *err) {
    int newest = rf__ckpt_newest(list, list->count), oldest = oldest_kept(list, keep);
    int code = RF_OK;

    for (int i = 0; newest >= 0 && i < list->count && !code; i++) {
        int *count = verdict(list, i, oldest, newest, out);
        if (!count) {
            out->kept += list->entries[i].condition == RF__CKPT_WHOLE;
            continue;
        }
        code = remove_folder(blobs, list->entries[i].folder, err);
        if (!code) {
            ++*count;
            out->bytes += list->entries[i].bytes;
        }
    }
    return code;
}

int rf__ckpt_prune(struct rf__blobs *blobs, int keep, struct rf__ckpt_pruned *out,
                   struct rf_error *err) {
    struct rf__ckpt_list list = {0};

    *out = (struct rf__ckpt_pruned){0};
    if (keep < 1) {
        return rf__fail(err, RF_EINVAL, 0, "%d checkpoints to keep; at least one is kept", keep);
    }
    int code = rf__ckpt_list(blobs, &list, err);
    code = code ? code : prune_list(blobs, &list, keep, out, err);
    if (!code) {
        int collected = blobs->ops->collect(blobs, "step-", UNFINISHED_AGE_S, err);
        out->collected = collected > 0 ? collected : 0;
        code = collected < 0 ? collected : RF_OK;
    }
    rf__ckpt_list_free(&list);
    return code;
}
