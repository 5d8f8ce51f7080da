/* Files and objects as the data readers and checkpoints see them: named blobs that are read at an
 * offset, so that an I/O error is an error and not a crash, and that are written whole or not at
 * all. Implemented by os/file and os/s3, and by tests. Calls may block; none blocks for ever.
 *
 * Names are relative to the root that the implementation was opened with, with '/' between their
 * parts. Thread safety: different blobs and writers may be used by different threads at once, one
 * of them by one thread at a time; `interrupt` by any. */
#ifndef RF_IO_BLOB_H
#define RF_IO_BLOB_H

#include <ringfold/error.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct rf__blob;        /* one open blob, of the implementation's making */
struct rf__blob_writer; /* one that is being written */

struct rf__blobs;

/* What a list tells of one blob. */
struct rf__blob_entry {
    const char *name; /* borrowed for the call */
    uint64_t bytes;
    int64_t modified_s; /* seconds since 1970, as the server or the file system has it */
};

struct rf__blob_ops {
    /* RF_ENOTFOUND where there is none; *bytes is its size. */
    int (*open)(struct rf__blobs *blobs, const char *name, struct rf__blob **out, uint64_t *bytes,
                struct rf_error *err);

    /* Bytes read, fewer than asked only at the end of the blob; or RF_EIO. */
    ssize_t (*read)(struct rf__blobs *blobs, struct rf__blob *blob, uint64_t offset, void *buffer,
                    size_t bytes, struct rf_error *err);
    void (*close)(struct rf__blobs *blobs, struct rf__blob *blob);

    /* The rest is NULL where blobs can only be read.
     *
     * A new blob, written front to back. Nothing stands under its name before `finish`, which makes
     * all of it stand there, durably, and replaces what was there; `only_new`: RF_ECONFLICT where
     * something was there already, which stays. `finish` frees the writer, also on an error: then
     * what stands under the name is what was there before, or, where only the answer was lost, all
     * of the new. `abandon` frees it too and leaves no trace that `collect` does not find. */
    int (*create)(struct rf__blobs *blobs, const char *name, struct rf__blob_writer **out,
                  struct rf_error *err);
    int (*write)(struct rf__blobs *blobs, struct rf__blob_writer *writer, const void *bytes,
                 size_t length, struct rf_error *err);
    int (*finish)(struct rf__blobs *blobs, struct rf__blob_writer *writer, bool only_new,
                  struct rf_error *err);
    void (*abandon)(struct rf__blobs *blobs, struct rf__blob_writer *writer);

    /* RF_ENOTFOUND where there is none. */
    int (*remove)(struct rf__blobs *blobs, const char *name, struct rf_error *err);

    /* Every blob whose name begins with `prefix`, ascending by name. What `each` returns other than
     * 0 ends the list and is returned. Blobs that are being written are not told. */
    int (*list)(struct rf__blobs *blobs, const char *prefix,
                int (*each)(void *context, const struct rf__blob_entry *entry), void *context,
                struct rf_error *err);

    /* Removes what is left of writes under `prefix` that were begun at least `age_s` seconds ago
     * and never finished: how many, or an error. */
    int (*collect)(struct rf__blobs *blobs, const char *prefix, int64_t age_s,
                   struct rf_error *err);

    /* Calls that block, now or later, return RF_ESTOPPED soon. */
    void (*interrupt)(struct rf__blobs *blobs);
    void (*destroy)(struct rf__blobs *blobs);
};

/* Implementations embed this first. */
struct rf__blobs {
    const struct rf__blob_ops *ops;
};

#endif
