/* Object storage as blobs: s3://bucket/prefix (AWS and what speaks its language: Ceph, MinIO) and
 * gs://bucket/prefix (Google's XML interface with HMAC keys). What is retried, and which server
 * promises what: docs/STORAGE.md.
 *
 * A write that failed may be repeated with the same bytes: parts that the server has are not sent
 * again. Nothing here logs; no error holds a secret. */
#ifndef RF_OS_S3_H
#define RF_OS_S3_H

#include "io/blob.h"

#include <ringfold/error.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* All zero is the usual. Borrowed for the call. */
struct rf__s3_options {
    const char *endpoint;           /* "http://host:port"; NULL: from environment and profile */
    const char *const *environment; /* "NAME=value", ends with NULL; NULL: the process's own */
    int64_t deadline_ms; /* no try begins later than this after a call's last progress; 0: 60 s */
    int64_t stall_s;     /* a try slower than 1 KiB/s for so long is ended; 0: 10 s */
    size_t part_bytes;   /* of an upload's first parts; 0: 8 MiB. Servers want at least 5 MiB */
    unsigned max_keys;   /* asked for in one page of a list; 0: 1000 */
};

/* Reads settings and credentials; asks the server nothing. RF_EINVAL: the URI or a setting; no
 * credentials: RF_ENOTFOUND. */
int rf__s3_blobs_create(const char *uri, const struct rf__s3_options *options,
                        struct rf__blobs **out, struct rf_error *err) RF_MUST_CHECK;

/* Whether the server was found not to know conditional puts, so that `only_new` looks before it
 * writes instead: two writers at once may then both succeed. */
bool rf__s3_blobs_unconditional(const struct rf__blobs *blobs);

#endif
