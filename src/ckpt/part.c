/* A part's file: its header, and the loop that reads one. The file is read front to back in large
 * chunks, since each read may be a request to a server; a chunk is then dealt out to the pieces
 * that it covers. What is read is verified at the end, by the digest in the manifest, and before
 * that field by field, so that the error says what is wrong. */
#include "base/cursor.h"
#include "base/digest.h"
#include "base/mem.h"
#include "base/status.h"
#include "ckpt/inner.h"
#include "ckpt/safetensors.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool rf__ckpt_is_damage(int code) {
    return code == RF_ECHECKPOINT || code == RF_EIO;
}

void rf__ckpt_path(char out[RF__CKPT_PATH], const char *folder, const char *name) {
    snprintf(out, RF__CKPT_PATH, "%.*s/%.*s", RF__CKPT_FOLDER - 1, folder, RF__CKPT_PART_NAME - 1,
             name);
}

/* ---- blobs ---- */

int rf__ckpt_read_blob(struct rf__blobs *blobs, const char *name, size_t most, char **out,
                       size_t *bytes, struct rf_error *err) {
    struct rf__blob *blob = NULL;
    uint64_t size = 0;
    char *text = NULL;

    int code = blobs->ops->open(blobs, name, &blob, &size, err);
    if (code) {
        return code;
    }
    if (size > most) {
        code = rf__fail(err, RF_ECHECKPOINT, 0, "'%.100s' has %llu bytes, at most %zu are read",
                        name, (unsigned long long)size, most);
        goto out;
    }
    text = rf__alloc((size_t)size + 1, 1);
    if (!text) {
        code = rf__fail(err, RF_ENOMEM, 0, "no memory for the %llu bytes of '%.100s'",
                        (unsigned long long)size, name);
        goto out;
    }
    ssize_t n = size ? blobs->ops->read(blobs, blob, 0, text, (size_t)size, err) : 0;
    if (n < 0) {
        code = (int)n;
        goto out;
    }
    if ((uint64_t)n != size) {
        code = rf__fail(err, RF_ECHECKPOINT, 0, "'%.100s' ended after %zd of its %llu bytes", name,
                        n, (unsigned long long)size);
        goto out;
    }
    *out = text;
    *bytes = (size_t)size;
    text = NULL;
out:
    rf__free(text);
    blobs->ops->close(blobs, blob);
    return code;
}

int rf__ckpt_write_bytes(struct rf__blobs *blobs, struct rf__blob_writer *writer, const void *bytes,
                         size_t length, struct rf_error *err) {
    int code = RF_OK;

    for (size_t at = 0; at < length && !code; at += RF__CKPT_CHUNK) {
        size_t n = length - at < RF__CKPT_CHUNK ? length - at : RF__CKPT_CHUNK;
        code = blobs->ops->write(blobs, writer, (const char *)bytes + at, n, err);
    }
    return code;
}

int rf__ckpt_put_blob(struct rf__blobs *blobs, const char *name, const void *bytes, size_t length,
                      bool only_new, struct rf_error *err) {
    struct rf__blob_writer *writer = NULL;

    int code = blobs->ops->create(blobs, name, &writer, err);
    if (code) {
        return code;
    }
    code = rf__ckpt_write_bytes(blobs, writer, bytes, length, err);
    if (code) {
        blobs->ops->abandon(blobs, writer);
        return code;
    }
    return blobs->ops->finish(blobs, writer, only_new, err);
}

/* ---- the header ---- */

void rf__ckpt_piece_entry(const struct rf__ckpt_state *state, const struct rf__ckpt_piece *piece,
                          struct rf__safetensors_entry *out) {
    const struct rf__ckpt_tensor *tensor = &state->tensors[piece->tensor];
    uint64_t element = rf_type_size(tensor->type);

    *out = (struct rf__safetensors_entry){.type = tensor->type};
    if (piece->whole) {
        snprintf(out->name, sizeof out->name, "%.*s", RF__CKPT_NAME - 1, tensor->name);
        out->dims = tensor->dims;
        memcpy(out->shape, tensor->shape, sizeof out->shape);
    } else {
        snprintf(out->name, sizeof out->name, "%.*s@%" PRIu64, RF__CKPT_NAME - 1, tensor->name,
                 piece->offset / element);
        out->dims = 1;
        out->shape[0] = piece->length / element;
    }
}

static int count_pieces(const struct rf__ckpt_state *state, int part, int parts) {
    struct rf__ckpt_pieces pieces = rf__ckpt_pieces(state, part, parts);
    struct rf__ckpt_piece piece;
    int count = 0;

    while (rf__ckpt_next_piece(&pieces, &piece)) {
        count++;
    }
    return count;
}

/* The texts of a part's metadata. */
struct marks {
    char step[24], chain[24], part[16], parts[16];
};

static void mark(struct marks *marks, const struct rf__ckpt_id *id, int part, int parts) {
    snprintf(marks->step, sizeof marks->step, "%" PRIu64, id->step);
    snprintf(marks->chain, sizeof marks->chain, "%016" PRIx64, id->chain);
    snprintf(marks->part, sizeof marks->part, "%d", part);
    snprintf(marks->parts, sizeof marks->parts, "%d", parts);
}

int rf__ckpt_part_header(const struct rf__ckpt_state *state, const struct rf__ckpt_id *id, int part,
                         int parts, void **out, size_t *bytes, struct rf_error *err) {
    struct rf__ckpt_pieces pieces = rf__ckpt_pieces(state, part, parts);
    struct rf__ckpt_piece piece;
    struct marks marks;
    int count = count_pieces(state, part, parts), i = 0;
    uint64_t at = 0;

    mark(&marks, id, part, parts);
    const struct rf__safetensors_pair pairs[] = {{"format", "pt"},
                                                 {"step", marks.step},
                                                 {"chain", marks.chain},
                                                 {"part", marks.part},
                                                 {"parts", marks.parts}};
    struct rf__safetensors_entry *entries = rf__alloc((size_t)count, sizeof *entries);
    if (!entries) {
        return rf__fail(err, RF_ENOMEM, 0, "no memory for the header of part %d", part);
    }
    for (; rf__ckpt_next_piece(&pieces, &piece); i++) {
        rf__ckpt_piece_entry(state, &piece, &entries[i]);
        entries[i].begin = at;
        at += piece.length;
        entries[i].end = at;
    }
    int code = rf__safetensors_header(pairs, sizeof pairs / sizeof *pairs, entries, count, out,
                                      bytes, err);
    rf__free(entries);
    return code;
}

/* ---- reading ---- */

/* One part that is being read. */
struct reading {
    struct rf__blobs *blobs;
    struct rf__blob *blob;
    const struct rf__ckpt_manifest *manifest;
    const struct rf__ckpt_sink *sink;
    int part;
    struct rf__digester *digester;
    char *chunk;
    struct rf__ckpt_pieces pieces;
    struct rf__ckpt_piece piece; /* the one that the next byte of data is of */
    uint64_t done;               /* of that piece */
};

/* Exactly `length` bytes at `offset`, which are then part of the digest. */
static int read_exactly(struct reading *r, uint64_t offset, void *bytes, size_t length,
                        struct rf_error *err) {
    ssize_t n = r->blobs->ops->read(r->blobs, r->blob, offset, bytes, length, err);

    if (n < 0) {
        return (int)n;
    }
    if ((size_t)n != length) {
        return rf__fail(err, RF_ECHECKPOINT, 0, "it ends at byte %llu of %llu",
                        (unsigned long long)(offset + (uint64_t)n),
                        (unsigned long long)r->manifest->parts[r->part].bytes);
    }
    rf__digester_add(r->digester, bytes, length);
    return r->sink->raw ? r->sink->raw(r->sink->context, bytes, length, err) : RF_OK;
}

static bool same_text(const char *a, const char *b) {
    return a && !strcmp(a, b);
}

static int check_header(const struct reading *r, const struct rf__safetensors *s,
                        struct rf_error *err) {
    const struct rf__ckpt_manifest *m = r->manifest;
    struct rf__ckpt_pieces pieces = rf__ckpt_pieces(&m->state, r->part, m->part_count);
    struct rf__safetensors_entry expected;
    struct rf__ckpt_piece piece;
    struct marks marks;
    int i = 0;

    mark(&marks, &m->id, r->part, m->part_count);
    if (!same_text(rf__safetensors_metadata(s, "step"), marks.step) ||
        !same_text(rf__safetensors_metadata(s, "chain"), marks.chain) ||
        !same_text(rf__safetensors_metadata(s, "part"), marks.part) ||
        !same_text(rf__safetensors_metadata(s, "parts"), marks.parts)) {
        return rf__fail(err, RF_ECHECKPOINT, 0,
                        "by its header it is the part of another checkpoint");
    }
    for (; rf__ckpt_next_piece(&pieces, &piece); i++) {
        rf__ckpt_piece_entry(&m->state, &piece, &expected);
        const struct rf__safetensors_entry *found = &s->entries[i];
        if (i >= s->count || strcmp(found->name, expected.name) || found->type != expected.type ||
            found->dims != expected.dims ||
            memcmp(found->shape, expected.shape, sizeof expected.shape)) {
            return rf__fail(err, RF_ECHECKPOINT, 0,
                            "its header does not describe '%.100s' as the manifest does",
                            expected.name);
        }
    }
    if (i != s->count) {
        return rf__fail(err, RF_ECHECKPOINT, 0,
                        "its header has '%.100s', which the manifest does not have there",
                        s->entries[i].name);
    }
    return RF_OK;
}

static int read_header(struct reading *r, size_t bytes, uint64_t data_bytes, struct rf_error *err) {
    struct rf__safetensors s = {0};
    unsigned char *header = rf__alloc(bytes, 1);

    if (!header) {
        return rf__fail(err, RF_ENOMEM, 0, "no memory for a header of %zu bytes", bytes);
    }
    int code = read_exactly(r, 0, header, bytes, err);
    if (code) {
        goto out;
    }
    struct rf__reader cursor = rf__reader(header, RF__SAFETENSORS_LENGTH_BYTES);
    if (rf__read_u64(&cursor) != bytes - RF__SAFETENSORS_LENGTH_BYTES) {
        code = rf__fail(err, RF_ECHECKPOINT, 0, "its header has another length than it should");
        goto out;
    }
    code = rf__safetensors_parse(header + RF__SAFETENSORS_LENGTH_BYTES,
                                 bytes - RF__SAFETENSORS_LENGTH_BYTES, data_bytes, &s, err);
    code = code ? code : check_header(r, &s, err);
out:
    rf__safetensors_free(&s);
    rf__free(header);
    return code;
}

/* Deals a chunk of the data out to the pieces that it covers. */
static int deal_out(struct reading *r, const char *bytes, size_t length, struct rf_error *err) {
    int code = RF_OK;

    while (length && !code) {
        while (r->done == r->piece.length) {
            if (!rf__ckpt_next_piece(&r->pieces, &r->piece)) {
                return RF_OK;
            }
            r->done = 0;
        }
        uint64_t left = r->piece.length - r->done;
        size_t n = length < left ? length : (size_t)left;
        code = r->sink->data(r->sink->context, r->piece.tensor, r->piece.offset + r->done, bytes, n,
                             err);
        r->done += n;
        bytes += n;
        length -= n;
    }
    return code;
}

static int read_data(struct reading *r, uint64_t offset, uint64_t end, struct rf_error *err) {
    int code = RF_OK;

    while (offset < end && !code) {
        uint64_t left = end - offset;
        size_t n = left < RF__CKPT_CHUNK ? (size_t)left : RF__CKPT_CHUNK;
        code = read_exactly(r, offset, r->chunk, n, err);
        if (!code && r->sink->data) {
            code = deal_out(r, r->chunk, n, err);
        }
        offset += n;
    }
    return code;
}

static int read_all(struct reading *r, uint64_t size, struct rf_error *err) {
    const struct rf__ckpt_manifest *m = r->manifest;
    const struct rf__ckpt_part *part = &m->parts[r->part];
    uint64_t data = rf__ckpt_part_bytes(&m->state, r->part, m->part_count);

    if (size != part->bytes) {
        return rf__fail(err, RF_ECHECKPOINT, 0, "it has %llu bytes and should have %llu",
                        (unsigned long long)size, (unsigned long long)part->bytes);
    }
    if (size < data + RF__SAFETENSORS_LENGTH_BYTES ||
        size - data > RF__SAFETENSORS_LENGTH_BYTES + RF__SAFETENSORS_HEADER_MAX) {
        return rf__fail(err, RF_ECHECKPOINT, 0, "its %llu bytes do not go with its tensors' %llu",
                        (unsigned long long)size, (unsigned long long)data);
    }
    int code = read_header(r, (size_t)(size - data), data, err);
    code = code ? code : read_data(r, size - data, size, err);
    if (!code && rf__digester_value(r->digester) != part->digest) {
        code = rf__fail(err, RF_ECHECKPOINT, 0,
                        "its digest is %016" PRIx64 " and should be %016" PRIx64,
                        rf__digester_value(r->digester), part->digest);
    }
    return code;
}

int rf__ckpt_read_part(struct rf__blobs *blobs, const struct rf__ckpt_manifest *manifest, int part,
                       const struct rf__ckpt_sink *sink, struct rf_error *err) {
    struct reading r = {.blobs = blobs,
                        .manifest = manifest,
                        .sink = sink,
                        .part = part,
                        .pieces = rf__ckpt_pieces(&manifest->state, part, manifest->part_count)};
    char folder[RF__CKPT_FOLDER], name[RF__CKPT_PART_NAME], path[RF__CKPT_PATH];
    uint64_t size = 0;

    rf__ckpt_folder(folder, &manifest->id);
    rf__ckpt_part_name(name, part, manifest->part_count);
    rf__ckpt_path(path, folder, name);
    int code = blobs->ops->open(blobs, path, &r.blob, &size, err);
    if (code == RF_ENOTFOUND) {
        code = rf__fail(err, RF_ECHECKPOINT, 0, "it is missing");
    }
    if (code) {
        goto out;
    }
    r.digester = rf__digester_create();
    r.chunk = rf__alloc(RF__CKPT_CHUNK, 1);
    code = r.digester && r.chunk ? read_all(&r, size, err)
                                 : rf__fail(err, RF_ENOMEM, 0, "no memory for a chunk of it");
out:
    if (code) {
        (void)rf__wrap(err, code, "'%.100s': ", path);
        if (err && code == RF_ECHECKPOINT && !err->next[0]) {
            rf__detail(err->next, "an older checkpoint: ringfold ckpt list shows them");
        }
    }
    rf__free(r.chunk);
    rf__digester_destroy(r.digester);
    if (r.blob) {
        blobs->ops->close(blobs, r.blob);
    }
    return code;
}
