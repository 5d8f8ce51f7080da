/* What the files of ckpt/ share: names of blobs, small blobs, a part's header, and the one loop
 * that reads a part and verifies it, whatever becomes of its bytes. */
#ifndef RF_CKPT_INNER_H
#define RF_CKPT_INNER_H

#include "ckpt/checkpoint.h"

enum {
    RF__CKPT_PATH = RF__CKPT_FOLDER + RF__CKPT_PART_NAME, /* bytes of a blob's name, with its end */
    RF__CKPT_MARK_MAX = 1 << 16                           /* bytes of bad.json */
};

#define RF__CKPT_MANIFEST_NAME "manifest.json"
#define RF__CKPT_MARK_NAME     "bad.json"

/* "FOLDER/NAME" */
void rf__ckpt_path(char out[RF__CKPT_PATH], const char *folder, const char *name);

/* A whole blob of at most `most` bytes; *out is freed with rf__free and has a 0 behind it.
 * RF_ECHECKPOINT: it is larger, or shrank meanwhile. */
int rf__ckpt_read_blob(struct rf__blobs *blobs, const char *name, size_t most, char **out,
                       size_t *bytes, struct rf_error *err);

/* Creates, writes in chunks and finishes a blob. */
int rf__ckpt_put_blob(struct rf__blobs *blobs, const char *name, const void *bytes, size_t length,
                      bool only_new, struct rf_error *err);

/* `length` bytes to a writer, in chunks. */
int rf__ckpt_write_bytes(struct rf__blobs *blobs, struct rf__blob_writer *writer, const void *bytes,
                         size_t length, struct rf_error *err);

/* RF_ECONFLICT where another one stands there, as rf__ckpt_write_manifest. */
int rf__ckpt_put_manifest(struct rf__blobs *blobs, const struct rf__ckpt_manifest *manifest,
                          const char *text, size_t bytes, struct rf_error *err);

/* The beginning of a part's file, to be freed with rf__free. */
int rf__ckpt_part_header(const struct rf__ckpt_state *state, const struct rf__ckpt_id *id, int part,
                         int parts, void **out, size_t *bytes, struct rf_error *err);

/* "tensor" for all of it, "tensor@OFFSET" for a piece, with its type and shape; without offsets. */
struct rf__safetensors_entry;
void rf__ckpt_piece_entry(const struct rf__ckpt_state *state, const struct rf__ckpt_piece *piece,
                          struct rf__safetensors_entry *out);

/* What is to become of a part's bytes, in order, before all of them are verified. Either may be
 * NULL; what they return other than 0 ends the reading. */
struct rf__ckpt_sink {
    /* The file's bytes. */
    int (*raw)(void *context, const void *bytes, size_t length, struct rf_error *err);
    /* The bytes of `tensor` from `offset`. */
    int (*data)(void *context, int tensor, uint64_t offset, const void *bytes, size_t length,
                struct rf_error *err);
    void *context;
};

/* Reads a part to its end and holds size, header and digest against the manifest. RF_ECHECKPOINT
 * where they do not match, or the part is missing; RF_EIO where it cannot be read. */
int rf__ckpt_read_part(struct rf__blobs *blobs, const struct rf__ckpt_manifest *manifest, int part,
                       const struct rf__ckpt_sink *sink, struct rf_error *err);

/* Whether an error says that this blob is no good, rather than that none can be read now. */
bool rf__ckpt_is_damage(int code);

#endif
