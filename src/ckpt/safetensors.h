/* The safetensors format: a header length (8 bytes, little-endian), a JSON header padded with
 * spaces to a multiple of 8 bytes, then the tensors' bytes without holes.
 *
 *     {"__metadata__":{"format":"pt"},"NAME":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}
 *
 * Writing gives the same bytes for the same content. Reading is bounded and takes nothing on trust:
 * the header comes from a file that anybody may have written. No I/O here. */
#ifndef RF_CKPT_SAFETENSORS_H
#define RF_CKPT_SAFETENSORS_H

#include "ckpt/layout.h"

#include <stddef.h>

enum {
    RF__SAFETENSORS_LENGTH_BYTES = 8,
    RF__SAFETENSORS_HEADER_MAX = 100000000,   /* bytes, by the format's own rules */
    RF__SAFETENSORS_NAME = RF__CKPT_NAME + 24 /* "NAME@OFFSET", with its end */
};

struct rf__safetensors_entry {
    char name[RF__SAFETENSORS_NAME];
    enum rf_type type; /* BOOL is read as RF_U8 */
    int dims;
    uint64_t shape[RF__CKPT_DIMS];
    uint64_t begin, end; /* within the data */
};

/* One pair of the header's "__metadata__". */
struct rf__safetensors_pair {
    const char *key, *value;
};

/* The whole beginning of a file, length included, for entries that follow each other without holes.
 * *out is freed with rf__free; *bytes is where the data begin. RF_ELIMIT for too long a header. */
int rf__safetensors_header(const struct rf__safetensors_pair *metadata, int pairs,
                           const struct rf__safetensors_entry *entries, int count, void **out,
                           size_t *bytes, struct rf_error *err);

/* What was read, in the order of the data. */
struct rf__safetensors {
    struct rf__safetensors_entry *entries;
    int count;
    void *json; /* private: what the metadata stand in */
};

/* Parses a header (without its length) that is followed by `data_bytes` of data. RF_ECHECKPOINT
 * says what is wrong: not JSON, an unknown member or type, shape and offsets that disagree, a hole,
 * an overlap, data that are left over. */
int rf__safetensors_parse(const void *header, size_t length, uint64_t data_bytes,
                          struct rf__safetensors *out, struct rf_error *err);
void rf__safetensors_free(struct rf__safetensors *safetensors);

/* A value of the metadata, or NULL; borrowed until free. */
const char *rf__safetensors_metadata(const struct rf__safetensors *safetensors, const char *key);

#endif
