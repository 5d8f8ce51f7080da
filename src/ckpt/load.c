/* Reading checkpoints: into a state's memory, or only to see whether they are good. */
#include "base/assert.h"
#include "base/status.h"
#include "ckpt/inner.h"

#include <string.h>

static int into_state(void *context, int tensor, uint64_t offset, const void *bytes, size_t length,
                      struct rf_error *err) {
    const struct rf__ckpt_state *state = context;

    (void)err;
    memcpy((char *)state->tensors[tensor].bytes + offset, bytes, length);
    return RF_OK;
}

int rf__ckpt_load_part(struct rf__blobs *blobs, const struct rf__ckpt_manifest *manifest, int part,
                       const struct rf__ckpt_state *state, struct rf_error *err) {
    struct rf__ckpt_state target = *state;
    struct rf__ckpt_sink sink = {.data = into_state, .context = &target};

    RF_ASSERT(part >= 0 && part < manifest->part_count);
    int code = rf__ckpt_state_compare(&manifest->state, state, err);
    return code ? code : rf__ckpt_read_part(blobs, manifest, part, &sink, err);
}

int rf__ckpt_load(struct rf__blobs *blobs, const struct rf__ckpt_manifest *manifest,
                  const struct rf__ckpt_state *state, struct rf_error *err) {
    int code = RF_OK;

    for (int i = 0; i < manifest->part_count && !code; i++) {
        code = rf__ckpt_load_part(blobs, manifest, i, state, err);
    }
    return code;
}

/* Trained parameters come first in every state. */
static struct rf__ckpt_state trained_of(const struct rf__ckpt_state *state) {
    struct rf__ckpt_state trained = {.tensors = state->tensors};

    while (trained.count < state->count && state->tensors[trained.count].trained) {
        trained.count++;
    }
    return trained;
}

int rf__ckpt_compare_trained(const struct rf__ckpt_manifest *manifest,
                             const struct rf__ckpt_state *state, struct rf_error *err) {
    struct rf__ckpt_state theirs = trained_of(&manifest->state), ours = trained_of(state);
    return rf__ckpt_state_compare(&theirs, &ours, err);
}

static int into_trained(void *context, int tensor, uint64_t offset, const void *bytes,
                        size_t length, struct rf_error *err) {
    const struct rf__ckpt_state *trained = context;
    return tensor < trained->count ? into_state(context, tensor, offset, bytes, length, err)
                                   : RF_OK;
}

int rf__ckpt_load_trained(struct rf__blobs *blobs, const struct rf__ckpt_manifest *manifest,
                          const struct rf__ckpt_state *state, struct rf_error *err) {
    struct rf__ckpt_state trained = trained_of(state);
    struct rf__ckpt_sink sink = {.data = into_trained, .context = &trained};

    int code = rf__ckpt_compare_trained(manifest, state, err);
    for (int i = 0; i < manifest->part_count && !code; i++) {
        struct rf__ckpt_pieces pieces = rf__ckpt_pieces(&manifest->state, i, manifest->part_count);
        struct rf__ckpt_piece piece;
        /* Pieces are in the order of the state: where the first is none, no other is. */
        if (rf__ckpt_next_piece(&pieces, &piece) && piece.tensor < trained.count) {
            code = rf__ckpt_read_part(blobs, manifest, i, &sink, err);
        }
    }
    return code;
}

int rf__ckpt_verify(struct rf__blobs *blobs, const struct rf__ckpt_manifest *manifest,
                    rf__ckpt_part_fn *each, void *context, struct rf_error *err) {
    const struct rf__ckpt_sink nowhere = {0};
    struct rf_error problem;
    int first = RF_OK;

    for (int i = 0; i < manifest->part_count; i++) {
        rf__error_clear(&problem);
        int code = rf__ckpt_read_part(blobs, manifest, i, &nowhere, &problem);
        if (each) {
            each(context, i, code, &problem);
        }
        if (code && !first) {
            first = code;
            if (err) {
                *err = problem;
            }
        }
        if (code && !rf__ckpt_is_damage(code)) {
            if (err) {
                *err = problem;
            }
            return code;
        }
    }
    return first;
}
