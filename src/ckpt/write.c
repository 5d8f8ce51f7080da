/* Writing a checkpoint: parts, and the manifest that makes one of them. Anybody can compute what a
 * part has to be from the state, since the same content always gives the same bytes. */
#include "base/digest.h"
#include "base/mem.h"
#include "base/status.h"
#include "ckpt/inner.h"
#include "ckpt/safetensors.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

int rf__ckpt_part_digest(const struct rf__ckpt_state *state, const struct rf__ckpt_id *id, int part,
                         int parts, struct rf__ckpt_part *out, struct rf_error *err) {
    struct rf__ckpt_pieces pieces = rf__ckpt_pieces(state, part, parts);
    struct rf__ckpt_piece piece;
    void *header = NULL;
    size_t bytes = 0;

    int code = rf__ckpt_part_header(state, id, part, parts, &header, &bytes, err);
    if (code) {
        return code;
    }
    struct rf__digester *digester = rf__digester_create();
    if (!digester) {
        code = rf__fail(err, RF_ENOMEM, 0, "no memory for the digest of part %d", part);
        goto out;
    }
    rf__digester_add(digester, header, bytes);
    out->bytes = bytes;
    while (rf__ckpt_next_piece(&pieces, &piece)) {
        if (piece.length) {
            rf__digester_add(digester,
                             (const char *)state->tensors[piece.tensor].bytes + piece.offset,
                             piece.length);
        }
        out->bytes += piece.length;
    }
    out->digest = rf__digester_value(digester);
out:
    rf__digester_destroy(digester);
    rf__free(header);
    return code;
}

/* Header and data to a blob that stands nowhere yet. */
static int write_all(struct rf__blobs *blobs, const char *path, const void *header,
                     size_t header_bytes, const void *data, size_t data_bytes,
                     struct rf_error *err) {
    struct rf__blob_writer *writer = NULL;

    int code = blobs->ops->create(blobs, path, &writer, err);
    if (code) {
        return code;
    }
    code = rf__ckpt_write_bytes(blobs, writer, header, header_bytes, err);
    code = code ? code : rf__ckpt_write_bytes(blobs, writer, data, data_bytes, err);
    if (code) {
        blobs->ops->abandon(blobs, writer);
        return code;
    }
    return blobs->ops->finish(blobs, writer, false, err);
}

int rf__ckpt_write_part(struct rf__blobs *blobs, const struct rf__ckpt_state *state,
                        const struct rf__ckpt_id *id, int part, int parts, const void *staged,
                        struct rf__ckpt_part *out, struct rf_error *err) {
    char folder[RF__CKPT_FOLDER], name[RF__CKPT_PART_NAME], path[RF__CKPT_PATH];
    struct rf__digester *digester = NULL;
    size_t data = (size_t)rf__ckpt_part_bytes(state, part, parts), bytes = 0;
    void *header = NULL;

    rf__ckpt_folder(folder, id);
    rf__ckpt_part_name(name, part, parts);
    rf__ckpt_path(path, folder, name);
    int code = rf__ckpt_part_header(state, id, part, parts, &header, &bytes, err);
    if (code) {
        goto out;
    }
    digester = rf__digester_create();
    if (!digester) {
        code = rf__fail(err, RF_ENOMEM, 0, "no memory for the digest of a part");
        goto out;
    }
    rf__digester_add(digester, header, bytes);
    if (data) {
        rf__digester_add(digester, staged, data);
    }
    code = write_all(blobs, path, header, bytes, staged, data, err);
    if (!code) {
        *out =
            (struct rf__ckpt_part){.bytes = bytes + data, .digest = rf__digester_value(digester)};
    }
out:
    if (code) {
        (void)rf__wrap(err, code, "writing '%.100s': ", path);
    }
    rf__digester_destroy(digester);
    rf__free(header);
    return code;
}

/* ---- the manifest ---- */

static bool same_parts(const struct rf__ckpt_manifest *a, const struct rf__ckpt_manifest *b) {
    bool same =
        a->id.step == b->id.step && a->id.chain == b->id.chain && a->part_count == b->part_count;
    for (int i = 0; same && i < a->part_count; i++) {
        same = a->parts[i].bytes == b->parts[i].bytes && a->parts[i].digest == b->parts[i].digest;
    }
    return same;
}

/* Somebody else's manifest stands in the place of ours: it may be the same. */
static int compare_with(struct rf__blobs *blobs, const char *folder,
                        const struct rf__ckpt_manifest *ours, struct rf_error *err) {
    struct rf__ckpt_manifest theirs = {0};
    char path[RF__CKPT_PATH], *mark = NULL;
    size_t bytes;

    int code = rf__ckpt_read_manifest(blobs, folder, &theirs, err);
    if (code) {
        return code;
    }
    if (!same_parts(ours, &theirs)) {
        code =
            rf__fail(err, RF_ECONFLICT, 0,
                     "another checkpoint stands at '%.48s' already, of job '%.64s' with %d parts",
                     folder, theirs.job, theirs.part_count);
    } else {
        rf__ckpt_path(path, folder, RF__CKPT_MARK_NAME);
        code = rf__ckpt_read_blob(blobs, path, RF__CKPT_MARK_MAX, &mark, &bytes, err);
        if (code == RF_ENOTFOUND) {
            code = RF_OK;
            rf__error_clear(err);
        } else if (!code) {
            code =
                rf__fail(err, RF_ECONFLICT, 0,
                         "this checkpoint stands at '%.48s' already and is marked as bad", folder);
        }
    }
    rf__free(mark);
    rf__ckpt_manifest_free(&theirs);
    return code;
}

int rf__ckpt_put_manifest(struct rf__blobs *blobs, const struct rf__ckpt_manifest *manifest,
                          const char *text, size_t bytes, struct rf_error *err) {
    char folder[RF__CKPT_FOLDER], path[RF__CKPT_PATH];

    rf__ckpt_folder(folder, &manifest->id);
    rf__ckpt_path(path, folder, RF__CKPT_MANIFEST_NAME);
    int code = rf__ckpt_put_blob(blobs, path, text, bytes, true, err);
    if (code == RF_ECONFLICT) {
        code = compare_with(blobs, folder, manifest, err);
        if (code == RF_ECHECKPOINT) { /* nobody can use what is there */
            code = rf__ckpt_put_blob(blobs, path, text, bytes, false, err);
        }
    }
    return code;
}

int rf__ckpt_write_manifest(struct rf__blobs *blobs, const struct rf__ckpt_manifest *manifest,
                            struct rf_error *err) {
    char folder[RF__CKPT_FOLDER], *text = NULL;
    size_t bytes = 0;

    rf__ckpt_folder(folder, &manifest->id);
    int code = rf__ckpt_manifest_encode(manifest, &text, &bytes, err);
    code = code ? code : rf__ckpt_put_manifest(blobs, manifest, text, bytes, err);
    if (code) {
        (void)rf__wrap(err, code, "writing the manifest of '%.48s': ", folder);
    }
    rf__free(text);
    return code;
}

int rf__ckpt_read_manifest(struct rf__blobs *blobs, const char *folder,
                           struct rf__ckpt_manifest *out, struct rf_error *err) {
    char path[RF__CKPT_PATH], own[RF__CKPT_FOLDER], *text = NULL;
    size_t bytes = 0;

    *out = (struct rf__ckpt_manifest){0};
    rf__ckpt_path(path, folder, RF__CKPT_MANIFEST_NAME);
    int code = rf__ckpt_read_blob(blobs, path, RF__CKPT_MANIFEST_MAX, &text, &bytes, err);
    if (code) {
        goto out;
    }
    code = rf__ckpt_manifest_decode(text, bytes, out, err);
    if (code) {
        goto out;
    }
    rf__ckpt_folder(own, &out->id);
    if (strcmp(own, folder)) {
        rf__ckpt_manifest_free(out);
        code = rf__fail(err, RF_ECHECKPOINT, 0, "the manifest is that of '%s'", own);
    }
out:
    if (code) {
        (void)rf__wrap(err, code, "'%.100s': ", path);
    }
    rf__free(text);
    return code;
}

int rf__ckpt_mark_bad(struct rf__blobs *blobs, const char *folder, const char *reason,
                      const char *by, int64_t time_s, struct rf_error *err) {
    char path[RF__CKPT_PATH];
    struct rf__ckpt_id id;
    int code = RF_OK;

    if (!rf__ckpt_folder_parse(folder, &id)) {
        return rf__fail(err, RF_EINVAL, 0, "'%.100s' is not the name of a checkpoint", folder);
    }
    json_t *root =
        json_pack("{s:s, s:I, s:s}", "reason", reason, "time", (json_int_t)time_s, "by", by);
    char *text = root ? json_dumps(root, JSON_INDENT(1) | JSON_PRESERVE_ORDER) : NULL;
    if (!text || strlen(text) > RF__CKPT_MARK_MAX) {
        code = rf__fail(err, RF_EINVAL, 0, "the reason is not UTF-8, or too long");
        goto out;
    }
    rf__ckpt_path(path, folder, RF__CKPT_MARK_NAME);
    code = rf__ckpt_put_blob(blobs, path, text, strlen(text), true, err);
    if (code == RF_ECONFLICT) {
        code = RF_OK;
        rf__error_clear(err);
    }
out:
    if (code) {
        (void)rf__wrap(err, code, "marking '%.48s' as bad: ", folder);
    }
    free(text);
    json_decref(root);
    return code;
}
