/* What the files of os/file share: file.c (names, reading, removing), file_write.c (writing) and
 * file_walk.c (listing, collecting). */
#ifndef RF_OS_FILE_INTERNAL_H
#define RF_OS_FILE_INTERNAL_H

#include "os/file.h"

#include <stdatomic.h>

struct rf__file_root {
    struct rf__blobs base;
    struct rf__file_sys *sys;
    char *path;              /* absolute, without a slash at its end; "" is the root of all */
    atomic_bool interrupted; /* a flag alone: nothing is handed over with it, so relaxed */
    atomic_bool anchored;    /* whether the folders above the root are synced; relaxed, as too few
                                of these is impossible and too many are harmless */
};

static inline struct rf__file_root *rf__file_root(struct rf__blobs *blobs) {
    return (struct rf__file_root *)blobs;
}

/* root/name, to be freed; "" gives the root. NULL without memory. */
char *rf__file_path(const struct rf__file_root *root, const char *name);

/* RF_EINVAL for what cannot be a blob's name; a prefix may be empty or end anywhere. */
int rf__file_name_check(const char *name, bool prefix, struct rf_error *err);

/* RF_ESTOPPED once interrupted. */
int rf__file_going(const struct rf__file_root *root, const char *verb, const char *name,
                   struct rf_error *err);

/* RF_EIO: cannot `verb` 'path': the errno's text; with advice on what next. */
int rf__file_fail(struct rf_error *err, int sys_errno, const char *verb, const char *path);
void rf__file_advise(struct rf_error *err, const char *path);

/* Ends the path before its last part: false where there is nothing above. */
bool rf__file_cut(char *path);

/* 0 or a negative errno. A file system that cannot sync folders, and a folder that went, are fine.
 */
int rf__file_sync_folder(struct rf__file_sys *sys, const char *path);

/* Removes the folder and those above it that are empty, below the root. `path` is used up. */
void rf__file_prune(const struct rf__file_root *root, char *path);

/* file_write.c */
int rf__file_create(struct rf__blobs *blobs, const char *name, struct rf__blob_writer **out,
                    struct rf_error *err);
int rf__file_write(struct rf__blobs *blobs, struct rf__blob_writer *writer, const void *bytes,
                   size_t length, struct rf_error *err);
int rf__file_finish(struct rf__blobs *blobs, struct rf__blob_writer *writer, bool only_new,
                    struct rf_error *err);
void rf__file_abandon(struct rf__blobs *blobs, struct rf__blob_writer *writer);

/* file_walk.c */
int rf__file_list(struct rf__blobs *blobs, const char *prefix,
                  int (*each)(void *context, const struct rf__blob_entry *entry), void *context,
                  struct rf_error *err);
int rf__file_collect(struct rf__blobs *blobs, const char *prefix, int64_t age_s,
                     struct rf_error *err);

#endif
