/* Listing and collecting: a walk over the folders below the root, each folder read whole and sorted
 * before anything is done in it, so that it may change underneath. Folders whose names cannot lead
 * to the prefix are not entered; symbolic links never are. */
#include "base/mem.h"
#include "base/status.h"
#include "os/file_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct item {
    char *name;
    enum rf__file_kind kind;
};

/* What stands in one folder. */
struct items {
    struct item *items;
    size_t count, capacity;
    bool no_memory;
};

struct walk {
    struct rf__file_root *root;
    const char *prefix;
    char name[RF__FILE_NAME_MAX]; /* of where the walk is; a folder's ends in '/', the root's is ""
                                   */
    size_t length;

    /* A list has these. */
    int (*each)(void *context, const struct rf__blob_entry *entry);
    void *context;

    /* And a collection these. */
    int64_t now_s, age_s;
    struct rf__file_maker self;
    int removed;
};

static int item_keep(void *context, const char *name, enum rf__file_kind kind) {
    struct items *items = context;

    if (kind == RF__FILE_OTHER) {
        return 0;
    }
    if (items->count == items->capacity) {
        size_t capacity = items->capacity ? 2 * items->capacity : 16;
        struct item *grown = rf__grow(items->items, capacity, sizeof *grown);
        if (!grown) {
            items->no_memory = true;
            return 1;
        }
        items->items = grown;
        items->capacity = capacity;
    }
    char *copy = rf__strdup(name);
    if (!copy) {
        items->no_memory = true;
        return 1;
    }
    items->items[items->count++] = (struct item){copy, kind};
    return 0;
}

static void items_free(struct items *items) {
    for (size_t i = 0; i < items->count; i++) {
        rf__free(items->items[i].name);
    }
    rf__free(items->items);
}

/* By whole names: those in the folder "a" go by "a/…", after "a-b" and before "a0". */
static int item_order(const void *left, const void *right) {
    const struct item *a = left, *b = right;
    size_t i = 0;
    while (a->name[i] && a->name[i] == b->name[i]) {
        i++;
    }
    unsigned char x = (unsigned char)a->name[i], y = (unsigned char)b->name[i];
    if (!x && a->kind == RF__FILE_FOLDER) {
        x = '/';
    }
    if (!y && b->kind == RF__FILE_FOLDER) {
        y = '/';
    }
    return (x > y) - (x < y);
}

/* Appends to the walk's name: false where it gets longer than a name can be. */
static bool name_push(struct walk *walk, const char *name, bool folder) {
    size_t more = strlen(name);
    if (more + folder >= sizeof walk->name - walk->length) {
        return false;
    }
    memcpy(walk->name + walk->length, name, more);
    walk->length += more;
    if (folder) {
        walk->name[walk->length++] = '/';
    }
    walk->name[walk->length] = 0;
    return true;
}

static void name_cut(struct walk *walk, size_t length) {
    walk->length = length;
    walk->name[length] = 0;
}

/* The path of where the walk is, without the slash at a folder's end; NULL without memory. */
static char *path_of(const struct walk *walk, struct rf_error *err) {
    char *path = rf__file_path(walk->root, walk->name);
    if (!path) {
        (void)rf__fail(err, RF_ENOMEM, 0, "no memory to look at '%.200s'", walk->name);
    } else if (walk->length && walk->name[walk->length - 1] == '/') {
        path[strlen(path) - 1] = 0;
    }
    return path;
}

static bool gone(int got) {
    return got == -ENOENT || got == -ENOTDIR || got == -ELOOP;
}

/* ---- what is done with a file ---- */

static int file_tell(struct walk *walk, const char *path, struct rf_error *err) {
    struct rf__file_status status;
    int got = walk->root->sys->lstat(walk->root->sys, path, &status);
    if (gone(got) || (!got && status.kind != RF__FILE_REGULAR)) {
        return RF_OK;
    }
    if (got < 0) {
        return rf__file_fail(err, -got, "look at", path);
    }
    struct rf__blob_entry entry = {walk->name, status.bytes, status.modified_s};
    return walk->each(walk->context, &entry);
}

static bool old_enough(const struct walk *walk, const struct rf__file_status *status) {
    return walk->age_s <= 0 || status->modified_s <= walk->now_s - walk->age_s;
}

/* Removes a temporary file, or not: *removed. */
static int file_collect(struct walk *walk, const char *name, const char *path, bool *removed,
                        struct rf_error *err) {
    struct rf__file_sys *sys = walk->root->sys;
    struct rf__file_status status;
    struct rf__file_maker maker;

    if (!rf__file_temporary_parse(name, &maker) ||
        (maker.host == walk->self.host && sys->lives(sys, &maker))) {
        return RF_OK;
    }
    int got = sys->lstat(sys, path, &status);
    if (got < 0 && !gone(got)) {
        return rf__file_fail(err, -got, "look at", path);
    }
    if (got < 0 || !old_enough(walk, &status)) {
        return RF_OK;
    }
    got = sys->unlink(sys, path);
    if (got < 0 && !gone(got)) {
        return rf__file_fail(err, -got, "remove the unfinished", path);
    }
    if (!got) {
        walk->removed++;
        *removed = true;
    }
    return RF_OK;
}

static int file_visit(struct walk *walk, const char *name, bool *removed, struct rf_error *err) {
    bool temporary = !strncmp(name, RF__FILE_TEMPORARY, strlen(RF__FILE_TEMPORARY));
    int code = RF_OK;

    if (temporary != !walk->each) {
        return RF_OK;
    }
    if (!temporary && strncmp(walk->name, walk->prefix, strlen(walk->prefix)) != 0) {
        return RF_OK;
    }
    char *path = path_of(walk, err);
    if (!path) {
        return RF_ENOMEM;
    }
    code = temporary ? file_collect(walk, name, path, removed, err) : file_tell(walk, path, err);
    rf__free(path);
    return code;
}

/* ---- folders ---- */

/* Whether names that begin with the prefix may stand in the folder where the walk is. */
static bool may_lead(const struct walk *walk) {
    size_t prefix = strlen(walk->prefix);
    return !strncmp(walk->name, walk->prefix, prefix < walk->length ? prefix : walk->length);
}

static int folder_read(struct walk *walk, const char *path, struct items *items,
                       struct rf_error *err) {
    struct rf__file_sys *sys = walk->root->sys;
    int got;
    do {
        got = sys->read_folder(sys, path, !walk->length, item_keep, items);
    } while (got == -EINTR && !items->count);
    if (items->no_memory) {
        return rf__fail(err, RF_ENOMEM, 0, "no memory to list '%.200s'", path);
    }
    /* A disk's own folder for what its check found is closed to users. */
    bool own = got == -EACCES && !strcmp(walk->name, "lost+found/");
    if (got < 0 && !gone(got) && !own) {
        return rf__file_fail(err, -got, "list", path);
    }
    if (items->count) {
        qsort(items->items, items->count, sizeof *items->items, item_order);
    }
    return RF_OK;
}

/* A folder that the collection found or left empty, as a crash leaves them. */
static bool folder_collect(struct walk *walk, const char *path, bool removed) {
    struct rf__file_sys *sys = walk->root->sys;
    struct rf__file_status status;
    if (!removed && (sys->lstat(sys, path, &status) || !old_enough(walk, &status))) {
        return false;
    }
    return !sys->rmdir(sys, path);
}

/* Depth is bounded by the length of a name. *gone_too: the folder itself was removed. */
static int folder_walk(struct walk *walk, bool *gone_too, struct rf_error *err) {
    struct items items = {0};
    size_t length = walk->length;
    bool removed = false;
    int code = RF_OK;

    char *path = path_of(walk, err);
    if (!path) {
        return RF_ENOMEM;
    }
    code = folder_read(walk, path, &items, err);
    for (size_t i = 0; i < items.count && !code; i++) {
        const struct item *item = &items.items[i];
        bool folder = item->kind == RF__FILE_FOLDER;
        code = rf__file_going(walk->root, "list", path, err);
        /* What has a longer name than a blob's can be is none. */
        if (!code && name_push(walk, item->name, folder)) {
            if (!folder) {
                code = file_visit(walk, item->name, &removed, err);
            } else if (may_lead(walk)) {
                code = folder_walk(walk, &removed, err);
            }
            name_cut(walk, length);
        }
    }
    if (!code && !walk->each && length && folder_collect(walk, path, removed)) {
        *gone_too = true;
    }
    items_free(&items);
    rf__free(path);
    return code;
}

int rf__file_list(struct rf__blobs *blobs, const char *prefix,
                  int (*each)(void *context, const struct rf__blob_entry *entry), void *context,
                  struct rf_error *err) {
    struct walk walk = {
        .root = rf__file_root(blobs), .prefix = prefix, .each = each, .context = context};
    bool changed;

    int code = rf__file_going(walk.root, "list", prefix, err);
    if (!code) {
        code = rf__file_name_check(prefix, true, err);
    }
    return code ? code : folder_walk(&walk, &changed, err);
}

int rf__file_collect(struct rf__blobs *blobs, const char *prefix, int64_t age_s,
                     struct rf_error *err) {
    struct walk walk = {.root = rf__file_root(blobs), .prefix = prefix, .age_s = age_s};
    struct rf__file_sys *sys = walk.root->sys;
    bool changed;

    int code = rf__file_going(walk.root, "collect", prefix, err);
    if (!code) {
        code = rf__file_name_check(prefix, true, err);
    }
    if (!code) {
        walk.now_s = sys->wall_s(sys);
        sys->self(sys, &walk.self);
        code = folder_walk(&walk, &changed, err);
    }
    return code ? code : walk.removed;
}
