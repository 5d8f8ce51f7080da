/* IDX files, the format of MNIST and its successors: two zero bytes, the element type (8: bytes,
 * the only one read here), the number of dimensions, each dimension as a big-endian 32-bit number,
 * then the elements. Plain, or gzip where the name ends in ".gz".
 *
 * Nothing in a file is believed: a size is held against the limits below and against what is really
 * there before memory is taken, and every refusal is RF_EDATA with the file, the place and what was
 * expected. */
#ifndef RF_DATA_IDX_H
#define RF_DATA_IDX_H

#include "io/blob.h"

#include <stddef.h>

enum { RF__IDX_DIMS = 3, RF__IDX_MAX_SIDE = 1 << 24, RF__IDX_MAX_BYTES = 1 << 30 };

struct rf__idx {
    int dims;
    uint32_t sizes[RF__IDX_DIMS];
    size_t bytes;        /* the product of the sizes */
    unsigned char *data; /* the elements; given back by rf__idx_free */
};

/* Reads the whole file, which must have `dims` dimensions. RF_ENOTFOUND where there is none. */
int rf__idx_read(struct rf__blobs *blobs, const char *path, int dims, struct rf__idx *out,
                 struct rf_error *err);
void rf__idx_free(struct rf__idx *idx);

/* The parts of it, for who reads a file piece by piece. The header, of which the file has `count`
 * bytes: sizes and their product, no elements. */
size_t rf__idx_header_bytes(int dims);
int rf__idx_header(const unsigned char *bytes, size_t count, const char *path, int dims,
                   struct rf__idx *out, struct rf_error *err);

/* A plain file of `bytes` bytes must be what its header says, no more and no less. */
int rf__idx_size_check(const char *path, uint64_t bytes, const struct rf__idx *idx,
                       struct rf_error *err);

/* Unpacks as much of a gzip file as can be, at most `most` bytes: to its end (`damage` is clear),
 * or to where it is damaged. How much of that is what it was before the damage, only an index can
 * tell. *data is given back by rf__free. */
int rf__idx_unpack(struct rf__blobs *blobs, const char *path, size_t most, unsigned char **data,
                   size_t *count, struct rf_error *damage, struct rf_error *err);

#endif
