/* A file whose bytes are verified before anybody uses them: each block is held against the file's
 * index when it is first touched, and what was found is remembered.
 *
 * A file of at most `cache_bytes` is kept whole in memory, block by block as they are touched; of a
 * larger one the blocks touched last. A block that was dropped and read again is verified again.
 *
 * A read that fails is not repeated: whoever asks again gets the remembered verdict. What is wrong
 * with a block is told as `struct rf__bad`. One thread at a time. */
#ifndef RF_DATA_SOURCE_H
#define RF_DATA_SOURCE_H

#include "data/index.h"

#include <stdbool.h>

enum { RF__BAD_CAUSE = 120 };

/* Why bytes cannot be used. `file` is borrowed from the source. */
struct rf__bad {
    const char *file;
    uint64_t block, offset; /* of the first bad block: its number, and where it begins */
    char cause[RF__BAD_CAUSE];
};

struct rf__source;

/* `index` is copied; NULL: nothing is known of the file, and only what cannot be read is bad.
 * RF_ENOTFOUND where there is no file. */
int rf__source_open(struct rf__blobs *files, const char *path, const struct rf__index *index,
                    size_t cache_bytes, struct rf__source **out, struct rf_error *err);

/* Bytes that are in memory already: taken, also on an error. Where they are fewer than the index
 * says, the rest is bad. */
int rf__source_wrap(const char *path, unsigned char *bytes, size_t count,
                    const struct rf__index *index, struct rf__source **out, struct rf_error *err);
void rf__source_close(struct rf__source *source);

const char *rf__source_path(const struct rf__source *source);

/* What the file should have, by its index, and what it has. */
uint64_t rf__source_bytes(const struct rf__source *source);
uint64_t rf__source_found(const struct rf__source *source);
uint64_t rf__source_blocks(const struct rf__source *source);
const uint64_t *rf__source_histogram(const struct rf__source *source); /* NULL without an index */

/* 0 where all of these bytes can be used. RF_EDATA or RF_EIO, with `bad` and `err` filled, where a
 * block does not match, is missing, or cannot be read. Anything else is an error of its own. */
int rf__source_touch(struct rf__source *source, uint64_t offset, size_t count, struct rf__bad *bad,
                     struct rf_error *err);

/* The same, and the bytes. */
int rf__source_read(struct rf__source *source, uint64_t offset, void *buffer, size_t count,
                    struct rf__bad *bad, struct rf_error *err);

/* Of a file that is kept whole: bytes that were touched and found good. Borrowed. */
const unsigned char *rf__source_view(const struct rf__source *source, uint64_t offset,
                                     size_t count);

/* Forgets what was found of this block, so that the next touch reads it again. */
void rf__source_forget(struct rf__source *source, uint64_t block);

#endif
