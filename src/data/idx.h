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

#endif
