/* TFRecord files: one record after the other, each a length (8 bytes, little-endian), its masked
 * CRC32C (4), the data, and their masked CRC32C (4). And the records' usual content here, a
 * tf.train.Example, as far as labelled images need it: bytes, in the wire format of protocol
 * buffers.
 *
 * A record whose data does not match is one bad record, and the next one is found behind it. Where
 * a length does not match nobody knows where the next one begins: the rest of the file is lost. */
#ifndef RF_DATA_TFRECORD_H
#define RF_DATA_TFRECORD_H

#include <ringfold/error.h>
#include <stdbool.h>
#include <stdint.h>

enum rf__record_state { RF__RECORD_GOOD, RF__RECORD_BAD, RF__RECORD_LOST };

/* Offsets count from the first byte of the file. */
struct rf__record {
    enum rf__record_state state; /* LOST: this and all that follows, and the last one told */
    uint64_t offset;             /* where it begins */
    uint64_t data, bytes;        /* its content; not of one that is lost */
};

/* The record at *offset, which moves behind it. False at the end. */
bool rf__record_next(const unsigned char *file, uint64_t count, uint64_t *offset,
                     struct rf__record *out);

/* CRC32C (Castagnoli), and as TFRecord files have it. */
uint32_t rf__crc32c(const unsigned char *bytes, uint64_t count);
uint32_t rf__crc32c_masked(const unsigned char *bytes, uint64_t count);

/* What an Example says of a labelled image; what it does not say is -1 or NULL. `image` is
 * borrowed. */
struct rf__example {
    const unsigned char *image; /* feature image_raw, its first bytes value */
    uint64_t image_bytes;
    int64_t label, height, width;
};

/* RF_EDATA where it is none; other features are passed over. */
int rf__example_parse(const unsigned char *bytes, uint64_t count, struct rf__example *out);

#endif
