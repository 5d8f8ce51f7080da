/* Copies and exports. Both read through the loop that verifies a part, and write a blob that only
 * stands there once all of it is known to be good. */
#include "ckpt/copy.h"

#include "base/mem.h"
#include "base/status.h"
#include "ckpt/inner.h"
#include "ckpt/safetensors.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Where bytes go. */
struct target {
    struct rf__blobs *blobs;
    struct rf__blob_writer *writer;
    const struct rf__ckpt_state *state;
    bool further;
};

/* ---- copy ---- */

static int copy_bytes(void *context, const void *bytes, size_t length, struct rf_error *err) {
    struct target *target = context;
    return target->blobs->ops->write(target->blobs, target->writer, bytes, length, err);
}

static int copy_part(struct rf__blobs *from, struct rf__blobs *to,
                     const struct rf__ckpt_manifest *manifest, int part, struct rf_error *err) {
    struct target target = {.blobs = to};
    struct rf__ckpt_sink sink = {.raw = copy_bytes, .context = &target};
    char folder[RF__CKPT_FOLDER], name[RF__CKPT_PART_NAME], path[RF__CKPT_PATH];

    rf__ckpt_folder(folder, &manifest->id);
    rf__ckpt_part_name(name, part, manifest->part_count);
    rf__ckpt_path(path, folder, name);
    int code = to->ops->create(to, path, &target.writer, err);
    if (code) {
        return code;
    }
    code = rf__ckpt_read_part(from, manifest, part, &sink, err);
    if (code) {
        to->ops->abandon(to, target.writer);
        return code;
    }
    return to->ops->finish(to, target.writer, false, err);
}

int rf__ckpt_copy(struct rf__blobs *from, struct rf__blobs *to, const char *folder,
                  struct rf_error *err) {
    struct rf__ckpt_manifest manifest = {0};
    char path[RF__CKPT_PATH], *text = NULL;
    size_t bytes = 0;

    int code = rf__ckpt_read_manifest(from, folder, &manifest, err);
    if (code) {
        goto out;
    }
    for (int i = 0; i < manifest.part_count && !code; i++) {
        code = copy_part(from, to, &manifest, i, err);
    }
    if (code) {
        goto out;
    }
    /* The text as it is: what another program wrote is not written anew. */
    rf__ckpt_path(path, folder, RF__CKPT_MANIFEST_NAME);
    struct rf__ckpt_manifest again = {0};
    code = rf__ckpt_read_blob(from, path, RF__CKPT_MANIFEST_MAX, &text, &bytes, err);
    code = code ? code : rf__ckpt_manifest_decode(text, bytes, &again, err);
    if (!code && (again.id.step != manifest.id.step || again.id.chain != manifest.id.chain)) {
        code = rf__fail(err, RF_ECONFLICT, 0, "'%.100s' changed while it was copied", path);
    }
    rf__ckpt_manifest_free(&again);
    code = code ? code : rf__ckpt_put_manifest(to, &manifest, text, bytes, err);
out:
    if (code) {
        (void)rf__wrap(err, code, "copying '%.48s': ", folder);
    }
    rf__free(text);
    rf__ckpt_manifest_free(&manifest);
    return code;
}

/* ---- export ---- */

static bool is_wanted(const struct rf__ckpt_tensor *tensor, bool further) {
    return tensor->trained || further;
}

static int export_bytes(void *context, int tensor, uint64_t offset, const void *bytes,
                        size_t length, struct rf_error *err) {
    struct target *target = context;

    (void)offset; /* they come in the order of the state, which is that of the exported file */
    if (!is_wanted(&target->state->tensors[tensor], target->further)) {
        return RF_OK;
    }
    return target->blobs->ops->write(target->blobs, target->writer, bytes, length, err);
}

/* The beginning of the exported file, and how many bytes of data are to follow. */
static int export_header(const struct rf__ckpt_manifest *manifest, bool further, void **out,
                         size_t *bytes, uint64_t *data, struct rf_error *err) {
    const struct rf__ckpt_state *state = &manifest->state;
    struct rf__safetensors_entry *entries = rf__alloc((size_t)state->count, sizeof *entries);
    char step[24], chain[24];
    int count = 0;

    *data = 0;
    if (!entries) {
        return rf__fail(err, RF_ENOMEM, 0, "no memory for the header of %d tensors", state->count);
    }
    snprintf(step, sizeof step, "%" PRIu64, manifest->id.step);
    snprintf(chain, sizeof chain, "%016" PRIx64, manifest->id.chain);
    const struct rf__safetensors_pair pairs[] = {
        {"format", "pt"}, {"step", step}, {"chain", chain}};
    for (int i = 0; i < state->count; i++) {
        if (is_wanted(&state->tensors[i], further)) {
            struct rf__ckpt_piece piece = {
                .tensor = i, .length = state->tensors[i].length, .whole = true};
            rf__ckpt_piece_entry(state, &piece, &entries[count]);
            entries[count].begin = *data;
            *data += piece.length;
            entries[count++].end = *data;
        }
    }
    int code = rf__safetensors_header(pairs, sizeof pairs / sizeof *pairs, entries, count, out,
                                      bytes, err);
    rf__free(entries);
    return code;
}

/* Whether any byte of the part goes into the exported file. */
static bool part_is_wanted(const struct rf__ckpt_manifest *manifest, int part, bool further) {
    struct rf__ckpt_pieces pieces = rf__ckpt_pieces(&manifest->state, part, manifest->part_count);
    struct rf__ckpt_piece piece;

    while (rf__ckpt_next_piece(&pieces, &piece)) {
        if (is_wanted(&manifest->state.tensors[piece.tensor], further)) {
            return true;
        }
    }
    return false;
}

static int export_all(struct rf__blobs *from, const struct rf__ckpt_manifest *manifest,
                      struct target *target, const void *header, size_t bytes,
                      struct rf_error *err) {
    struct rf__ckpt_sink sink = {.data = export_bytes, .context = target};
    int code = rf__ckpt_write_bytes(target->blobs, target->writer, header, bytes, err);

    for (int i = 0; i < manifest->part_count && !code; i++) {
        if (part_is_wanted(manifest, i, target->further)) {
            code = rf__ckpt_read_part(from, manifest, i, &sink, err);
        }
    }
    return code;
}

int rf__ckpt_export(struct rf__blobs *from, const struct rf__ckpt_manifest *manifest, bool further,
                    struct rf__blobs *to, const char *name, uint64_t *bytes, struct rf_error *err) {
    struct target target = {.blobs = to, .state = &manifest->state, .further = further};
    size_t header_bytes = 0;
    uint64_t data = 0;
    void *header = NULL;

    int code = export_header(manifest, further, &header, &header_bytes, &data, err);
    if (code) {
        goto out;
    }
    code = to->ops->create(to, name, &target.writer, err);
    if (code) {
        goto out;
    }
    code = export_all(from, manifest, &target, header, header_bytes, err);
    if (code) {
        to->ops->abandon(to, target.writer);
        goto out;
    }
    code = to->ops->finish(to, target.writer, false, err);
    if (!code && bytes) {
        *bytes = header_bytes + data;
    }
out:
    if (code) {
        (void)rf__wrap(err, code, "exporting step %" PRIu64 " to '%.100s': ", manifest->id.step,
                       name);
    }
    rf__free(header);
    return code;
}
