/* For rehearsals: reads that fail as those of a bad disk do. Wraps blobs and passes everything on,
 * except that a read which touches the range of a file of that name fails with EIO. */
#ifndef RF_DATA_REHEARSE_H
#define RF_DATA_REHEARSE_H

#include "io/blob.h"

enum { RF__REHEARSED_NAME = 256 };

struct rf__bad_reads {
    struct rf__blobs base; /* these are what is read through */
    struct rf__blobs *inner;
    char name[RF__REHEARSED_NAME];
    uint64_t begin, end;
};

/* `order` is "NAME:BEGIN-END": bytes BEGIN up to, not with, END of every file whose path ends in
 * /NAME. RF_EINVAL where it is something else. `inner` is borrowed. */
int rf__bad_reads_init(struct rf__bad_reads *reads, struct rf__blobs *inner, const char *order,
                       struct rf_error *err);

#endif
