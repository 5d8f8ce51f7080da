/* A whole file against its index: what `ringfold data` does. */
#ifndef RF_DATA_CHECK_H
#define RF_DATA_CHECK_H

#include "data/source.h"

struct rf__indexed {
    uint64_t bytes, blocks;
    bool is_new; /* made just now */
    char where[RF__INDEX_PATH];
};

/* The index of the file NAME of io's folder, at `path`: the one that is there, or a new one; with
 * `anew` always a new one, in place of any. RF_EIO where it cannot be kept. */
int rf__data_index(const struct rf__data_io *io, const char *path, const char *name, bool anew,
                   struct rf__indexed *out, struct rf_error *err);

struct rf__checked {
    uint64_t bytes, found; /* by the index, and what the file has */
    uint64_t blocks, bad;
    uint64_t recovered; /* blocks that were good only when they were read again */
};

/* Reads all of it, a bad block up to `retries` times more, and tells of each that stays bad. 0; or
 * RF_EDATA where a block is bad or the file longer than it was. */
int rf__data_check(const struct rf__data_io *io, const char *path, const char *name, int retries,
                   void (*each)(void *context, const struct rf__bad *bad), void *context,
                   struct rf__checked *out, struct rf_error *err);

#endif
