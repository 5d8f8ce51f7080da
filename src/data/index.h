/* The integrity index of a file: what its bytes were when it was known to be whole. A digest for
 * each block of 64 KiB, so that damage is found and told block by block, and how often each byte
 * value occurs in the file, so that normalisation needs no pass over the data and is the same
 * wherever a copy is damaged.
 *
 * It is made once and never again by itself: a file that differs from its index is damaged, until
 * somebody says otherwise by making the index anew. It stands beside the file as NAME.rfindex or,
 * where that folder cannot be written, in a cache folder under a digest of the file's absolute
 * path.
 *
 * Of a file whose name ends in ".gz" the index is of the unpacked bytes. */
#ifndef RF_DATA_INDEX_H
#define RF_DATA_INDEX_H

#include "io/blob.h"

#include <stdbool.h>
#include <stddef.h>

enum { RF__INDEX_BLOCK = 64 << 10, RF__INDEX_NAME = 640, RF__INDEX_PATH = 4096 + RF__INDEX_NAME };

/* The largest file that is indexed, and what bounds an index's own size. */
#define RF__INDEX_MAX_BYTES (1ull << 40)

struct rf__index {
    uint64_t bytes, blocks; /* of the file; the last block may be smaller */
    uint64_t *digests;      /* one a block; given back by rf__index_free */
    uint64_t histogram[256];
};

/* Where a folder's files and their indices are. All is borrowed. */
struct rf__data_io {
    struct rf__blobs *files;  /* names are paths: FOLDER/NAME */
    struct rf__blobs *beside; /* the folder itself: indices, and a list of what is there; or NULL */
    struct rf__blobs *cache;  /* indices of folders that cannot be written; or NULL */
    const char *root;         /* the folder's absolute path; not NULL where there is a cache */
    const char *cache_root;   /* the cache folder's path, for people; or NULL */
};

/* Builds an index from bytes that arrive front to back. */
struct rf__index_maker {
    struct rf__index index;
    uint64_t room;        /* of digests */
    unsigned char *block; /* the bytes of the block that is not full yet */
    size_t filled;
};

/* `bytes` is how many there will be, as far as is known: only room is taken for them. */
int rf__index_begin(struct rf__index_maker *maker, uint64_t bytes, struct rf_error *err);
int rf__index_feed(struct rf__index_maker *maker, const void *bytes, size_t count,
                   struct rf_error *err);

/* Hands the index over; or gives up. Either ends the maker. */
int rf__index_end(struct rf__index_maker *maker, struct rf__index *out, struct rf_error *err);
void rf__index_drop(struct rf__index_maker *maker);
void rf__index_free(struct rf__index *index);

/* Reads a plain file to its end. RF_EIO where a part of it cannot be read: such a file cannot be
 * indexed. */
int rf__index_make(struct rf__blobs *files, const char *path, struct rf__index *out,
                   struct rf_error *err);

/* The size of block `block`, and its digest given its bytes: that of the bytes and their place. */
size_t rf__index_block_bytes(const struct rf__index *index, uint64_t block);
uint64_t rf__index_digest(uint64_t block, const void *bytes, size_t count);

/* As bytes, the same for the same content. `out` has room for rf__index_encoded_bytes. */
size_t rf__index_encoded_bytes(const struct rf__index *index);
void rf__index_encode(const struct rf__index *index, unsigned char *out);

/* RF_EDATA with what is wrong in it; `name` for the report. */
int rf__index_decode(const unsigned char *bytes, size_t count, const char *name,
                     struct rf__index *out, struct rf_error *err);

/* Looks beside the file NAME of the folder, then in the cache. RF_ENOTFOUND where neither has one,
 * RF_EDATA where the one that is there is damaged itself. `where`: its path, for people; may be
 * NULL. */
int rf__index_find(const struct rf__data_io *io, const char *name, struct rf__index *out,
                   char where[RF__INDEX_PATH], struct rf_error *err);

/* Writes it, beside the file or else into the cache: durable when it returns. RF_ECONFLICT where
 * one stands there and `replace` is not set. Another error, of the last place that was tried, where
 * none can be written. */
int rf__index_keep(const struct rf__data_io *io, const char *name, const struct rf__index *index,
                   bool replace, char where[RF__INDEX_PATH], struct rf_error *err);

/* The index of the plain file `path`, which is NAME of the folder: the one that is kept or, where
 * there is none, a new one, which is kept if it can be. Who makes one at the same time as another
 * takes the first one's. */
int rf__index_of(const struct rf__data_io *io, const char *path, const char *name,
                 struct rf__index *out, struct rf_error *err);

#endif
