/* Files in memory behind io/blob.h, with everything a test of data readers wants to do to them:
 * flip, cut, lengthen, or let reads of a range fail. Written files appear whole, as the interface
 * promises; `is_readonly` makes writing fail as in a folder without permission. */
#ifndef TESTS_MEMORY_FILES_H
#define TESTS_MEMORY_FILES_H

#include "base/status.h"
#include "io/blob.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MEMORY_FILES = 16, MEMORY_NAME = 128 };

struct memory_entry {
    char name[MEMORY_NAME]; /* "": free */
    unsigned char *bytes;
    size_t count;
    uint64_t bad_begin, bad_end; /* reads that touch these fail with EIO */
    int reads;                   /* so many calls */
};

struct memory_files {
    struct rf__blobs base;
    struct memory_entry entries[MEMORY_FILES];
    bool is_readonly;
    bool is_racing; /* somebody else finishes first: only_new fails, and his bytes are there */
    int writes;
};

struct rf__blob_writer {
    char name[MEMORY_NAME];
    unsigned char *bytes;
    size_t count;
};

static inline struct memory_entry *memory_find(struct memory_files *files, const char *name) {
    for (int i = 0; i < MEMORY_FILES; i++) {
        if (files->entries[i].name[0] && !strcmp(files->entries[i].name, name)) {
            return &files->entries[i];
        }
    }
    return NULL;
}

/* Makes the file, or replaces its content. */
static inline struct memory_entry *memory_put(struct memory_files *files, const char *name,
                                              const void *bytes, size_t count) {
    struct memory_entry *entry = memory_find(files, name);
    for (int i = 0; i < MEMORY_FILES && !entry; i++) {
        entry = files->entries[i].name[0] ? NULL : &files->entries[i];
    }
    if (!entry) {
        abort();
    }
    unsigned char *copy = malloc(count + 1);
    memcpy(copy, bytes, count);
    free(entry->bytes);
    *entry = (struct memory_entry){.bytes = copy, .count = count};
    snprintf(entry->name, sizeof entry->name, "%s", name);
    return entry;
}

static inline void memory_remove(struct memory_files *files, const char *name) {
    struct memory_entry *entry = memory_find(files, name);
    if (entry) {
        free(entry->bytes);
        *entry = (struct memory_entry){.count = 0};
    }
}

static inline void memory_clear(struct memory_files *files) {
    for (int i = 0; i < MEMORY_FILES; i++) {
        free(files->entries[i].bytes);
        files->entries[i] = (struct memory_entry){.count = 0};
    }
}

static int files_open(struct rf__blobs *blobs, const char *name, struct rf__blob **out,
                      uint64_t *bytes, struct rf_error *err) {
    struct memory_entry *entry = memory_find((struct memory_files *)blobs, name);
    if (!entry) {
        return rf__fail(err, RF_ENOTFOUND, ENOENT, "cannot open '%s'", name);
    }
    *out = (struct rf__blob *)entry;
    *bytes = entry->count;
    return RF_OK;
}

static ssize_t files_read(struct rf__blobs *blobs, struct rf__blob *blob, uint64_t offset,
                          void *buffer, size_t bytes, struct rf_error *err) {
    struct memory_entry *entry = (struct memory_entry *)blob;
    size_t left = offset < entry->count ? entry->count - (size_t)offset : 0;
    size_t n = bytes < left ? bytes : left;
    (void)blobs;
    entry->reads++;
    if (offset < entry->bad_end && offset + n > entry->bad_begin) {
        return rf__fail(err, RF_EIO, EIO, "cannot read '%s'", entry->name);
    }
    memcpy(buffer, entry->bytes + (n ? offset : 0), n);
    return (ssize_t)n;
}

static void files_close(struct rf__blobs *blobs, struct rf__blob *blob) {
    (void)blobs;
    (void)blob;
}

static int files_create(struct rf__blobs *blobs, const char *name, struct rf__blob_writer **out,
                        struct rf_error *err) {
    const struct memory_files *files = (const struct memory_files *)blobs;
    if (files->is_readonly) {
        return rf__fail(err, RF_EIO, EACCES, "cannot write '%s'", name);
    }
    *out = calloc(1, sizeof **out);
    snprintf((*out)->name, sizeof(*out)->name, "%s", name);
    return RF_OK;
}

static int files_write(struct rf__blobs *blobs, struct rf__blob_writer *writer, const void *bytes,
                       size_t length, struct rf_error *err) {
    (void)blobs;
    (void)err;
    writer->bytes = realloc(writer->bytes, writer->count + length + 1);
    memcpy(writer->bytes + writer->count, bytes, length);
    writer->count += length;
    return RF_OK;
}

static void files_abandon(struct rf__blobs *blobs, struct rf__blob_writer *writer) {
    (void)blobs;
    free(writer->bytes);
    free(writer);
}

static int files_finish(struct rf__blobs *blobs, struct rf__blob_writer *writer, bool only_new,
                        struct rf_error *err) {
    struct memory_files *files = (struct memory_files *)blobs;
    int code = RF_OK;
    if (files->is_racing) {
        memory_put(files, writer->name, writer->bytes, writer->count);
    }
    if (only_new && memory_find(files, writer->name)) {
        code = rf__fail(err, RF_ECONFLICT, EEXIST, "'%s' is there", writer->name);
    } else {
        memory_put(files, writer->name, writer->bytes, writer->count);
        files->writes++;
    }
    files_abandon(blobs, writer);
    return code;
}

static int files_list(struct rf__blobs *blobs, const char *prefix,
                      int (*each)(void *context, const struct rf__blob_entry *entry), void *context,
                      struct rf_error *err) {
    struct memory_files *files = (struct memory_files *)blobs;
    char last[MEMORY_NAME] = "";
    int rc = 0;
    (void)err;
    for (;;) { /* the least name after the last one */
        const struct memory_entry *next = NULL;
        for (int i = 0; i < MEMORY_FILES; i++) {
            const struct memory_entry *e = &files->entries[i];
            if (e->name[0] && strcmp(e->name, last) > 0 &&
                (!next || strcmp(e->name, next->name) < 0)) {
                next = e;
            }
        }
        if (!next || rc) {
            return rc;
        }
        snprintf(last, sizeof last, "%s", next->name);
        if (!strncmp(next->name, prefix, strlen(prefix))) {
            const struct rf__blob_entry entry = {.name = next->name, .bytes = next->count};
            rc = each(context, &entry);
        }
    }
}

static const struct rf__blob_ops memory_files_ops = {.open = files_open,
                                                     .read = files_read,
                                                     .close = files_close,
                                                     .create = files_create,
                                                     .write = files_write,
                                                     .finish = files_finish,
                                                     .abandon = files_abandon,
                                                     .list = files_list};

#endif
