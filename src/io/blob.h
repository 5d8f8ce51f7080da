/* Files and objects as the data readers and checkpoints see them: named blobs that are read at an
 * offset, so that an I/O error is an error and not a crash. Implemented by os/file, later by S3 and
 * GCS, and by tests. Calls may block. */
#ifndef RF_IO_BLOB_H
#define RF_IO_BLOB_H

#include <ringfold/error.h>
#include <stdint.h>
#include <sys/types.h>

struct rf__blob; /* one open blob, of the implementation's making */

struct rf__blobs;

struct rf__blob_ops {
    /* RF_ENOTFOUND where there is none; *bytes is its size. */
    int (*open)(struct rf__blobs *blobs, const char *name, struct rf__blob **out, uint64_t *bytes,
                struct rf_error *err);

    /* Bytes read, fewer than asked only at the end of the blob; or RF_EIO. */
    ssize_t (*read)(struct rf__blobs *blobs, struct rf__blob *blob, uint64_t offset, void *buffer,
                    size_t bytes, struct rf_error *err);
    void (*close)(struct rf__blobs *blobs, struct rf__blob *blob);
};

/* Implementations embed this first. */
struct rf__blobs {
    const struct rf__blob_ops *ops;
};

#endif
