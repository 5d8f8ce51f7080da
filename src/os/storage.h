/* Storage by its URI:
 *
 *     /path, path, file:/path, file:path, file:///path   a folder (os/file)
 *     s3://bucket/prefix, gs://bucket/prefix             an object store (os/s3)
 *
 * Paths are taken as they stand: nothing in them is percent-encoded, and '?' and '#' are characters
 * like any other. A path with a colon in its first part is written "./a:b". */
#ifndef RF_OS_STORAGE_H
#define RF_OS_STORAGE_H

#include "io/blob.h"
#include "os/file_sys.h"

struct rf__s3_options;

/* All may be NULL, for what is usual; borrowed as their parts say. */
struct rf__storage_options {
    struct rf__file_sys *files;
    const struct rf__s3_options *s3;
};

/* `options` may be NULL. Nothing is looked at or made yet. RF_EUSAGE: no such kind of storage, or a
 * URI that names none. */
int rf__storage_open(const char *uri, const struct rf__storage_options *options,
                     struct rf__blobs **out, struct rf_error *err);

#endif
