/* The public entry points of data files: the file system, wired to src/data. */
#include "api/data.h"

#include "base/mem.h"
#include "base/status.h"
#include "data/check.h"
#include "os/file.h"

#include <ringfold/data.h>

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int rf__data_files_open(struct rf__data_files *files, const char *folder, const char *cache,
                        const char *bad_reads, struct rf_error *err) {
    char absolute[PATH_MAX];
    int code = RF_OK;

    *files = (struct rf__data_files){.io = {.files = &rf__file_blobs, .cache_root = cache}};
    if (bad_reads) {
        code = rf__bad_reads_init(&files->bad_reads, &rf__file_blobs, bad_reads, err);
        files->io.files = &files->bad_reads.base;
    }
    if (code || !realpath(folder, absolute)) { /* that there is none is told by who opens a file */
        return code;
    }
    files->root = rf__strdup(absolute);
    files->io.root = files->root;
    if (!files->root) {
        code = rf__fail(err, RF_ENOMEM, 0, "no memory to open '%.200s'", folder);
    }
    if (!code) {
        code = rf__file_blobs_create(absolute, NULL, &files->io.beside, err);
    }
    if (!code && cache) {
        code = rf__file_blobs_create(cache, NULL, &files->io.cache, err);
    }
    if (code) {
        rf__data_files_close(files);
    }
    return code;
}

void rf__data_files_close(struct rf__data_files *files) {
    struct rf__blobs *const owned[] = {files->io.beside, files->io.cache};

    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) {
        if (owned[i]) {
            owned[i]->ops->destroy(owned[i]);
        }
    }
    rf__free(files->root);
    *files = (struct rf__data_files){0};
}

void rf_data_options_init(struct rf_data_options *options) {
    *options = (struct rf_data_options){0};
}

/* The folder of a path, and its last part. */
struct split {
    char folder[PATH_MAX];
    const char *name; /* within the path */
};

static int path_split(const char *path, struct split *out, struct rf_error *err) {
    const char *slash = strrchr(path, '/');

    out->name = slash ? slash + 1 : path;
    if (strlen(path) >= PATH_MAX || !out->name[0]) {
        return rf__fail(err, RF_EINVAL, 0, "'%.200s' is not the path of a file", path);
    }
    if (!slash) {
        memcpy(out->folder, ".", 2);
    } else {
        size_t length = slash == path ? 1 : (size_t)(slash - path);
        memcpy(out->folder, path, length);
        out->folder[length] = 0;
    }
    return RF_OK;
}

int rf_data_index(const char *path, const struct rf_data_options *options,
                  struct rf_data_index *out, struct rf_error *err) {
    struct rf__data_files files = {0};
    struct rf__indexed indexed;
    struct split split;

    *out = (struct rf_data_index){0};
    int code = path_split(path, &split, err);
    if (!code) {
        code = rf__data_files_open(&files, split.folder, options->cache, options->bad_reads, err);
    }
    if (!code) {
        code = rf__data_index(&files.io, path, split.name, options->force, &indexed, err);
    }
    if (!code) {
        out->bytes = indexed.bytes;
        out->blocks = indexed.blocks;
        out->is_new = indexed.is_new;
        snprintf(out->where, sizeof out->where, "%s", indexed.where);
    }
    rf__data_files_close(&files);
    return code;
}

struct telling {
    void (*each)(void *context, const struct rf_data_bad *bad);
    void *context;
    const struct rf__checked *checked;
};

static void bad_tell(void *context, const struct rf__bad *bad) {
    const struct telling *telling = context;
    uint64_t left = telling->checked->bytes - bad->offset;
    const struct rf_data_bad told = {.block = bad->block,
                                     .offset = bad->offset,
                                     .bytes =
                                         left < RF_DATA_BLOCK_BYTES ? left : RF_DATA_BLOCK_BYTES,
                                     .cause = bad->cause};

    telling->each(telling->context, &told);
}

int rf_data_check(const char *path, const struct rf_data_options *options,
                  void (*each)(void *context, const struct rf_data_bad *bad), void *context,
                  struct rf_data_check *out, struct rf_error *err) {
    struct rf__data_files files = {0};
    struct rf__checked checked = {0};
    struct telling telling = {.each = each, .context = context, .checked = &checked};
    struct split split;

    int code = path_split(path, &split, err);
    if (!code) {
        code = rf__data_files_open(&files, split.folder, options->cache, options->bad_reads, err);
    }
    if (!code) {
        code = rf__data_check(&files.io, path, split.name, options->retries, each ? bad_tell : NULL,
                              &telling, &checked, err);
    }
    *out = (struct rf_data_check){.bytes = checked.bytes,
                                  .found = checked.found,
                                  .blocks = checked.blocks,
                                  .bad = checked.bad,
                                  .recovered = checked.recovered};
    rf__data_files_close(&files);
    return code;
}
