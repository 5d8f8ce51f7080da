/* Which bytes of a state are in which part. All tensors stand end to end; the ideal cut between two
 * parts is moved down to a multiple of 64 bytes from the start of the tensor it falls into, so that
 * it never goes through an element and memory stays aligned. A tensor without elements belongs to
 * the part in which it stands, or to the last one. */
#include "ckpt/layout.h"

#include "base/assert.h"
#include "base/mem.h"
#include "base/status.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STATE_BYTES_MAX (UINT64_C(1) << 62)

uint64_t rf__ckpt_state_bytes(const struct rf__ckpt_state *state) {
    uint64_t total = 0;

    for (int i = 0; i < state->count; i++) {
        total += state->tensors[i].length;
    }
    return total;
}

/* Where part `part` begins, within all the state's bytes. */
static uint64_t cut(const struct rf__ckpt_state *state, uint64_t total, int part, int parts) {
    uint64_t n = (uint64_t)parts, k = (uint64_t)part, rest = total % n;
    uint64_t ideal = total / n * k + (k < rest ? k : rest), start = 0;

    for (int i = 0; i < state->count && part < parts; i++) {
        uint64_t length = state->tensors[i].length;
        if (ideal - start < length) {
            return start + (ideal - start) / RF__CKPT_CUT * RF__CKPT_CUT;
        }
        start += length;
    }
    return total;
}

uint64_t rf__ckpt_part_bytes(const struct rf__ckpt_state *state, int part, int parts) {
    uint64_t total = rf__ckpt_state_bytes(state);

    RF_ASSERT(part >= 0 && part < parts);
    return cut(state, total, part + 1, parts) - cut(state, total, part, parts);
}

struct rf__ckpt_pieces rf__ckpt_pieces(const struct rf__ckpt_state *state, int part, int parts) {
    uint64_t total = rf__ckpt_state_bytes(state);

    RF_ASSERT(part >= 0 && part < parts);
    return (struct rf__ckpt_pieces){.state = state,
                                    .begin = cut(state, total, part, parts),
                                    .end = cut(state, total, part + 1, parts),
                                    .last = part + 1 == parts};
}

bool rf__ckpt_next_piece(struct rf__ckpt_pieces *pieces, struct rf__ckpt_piece *out) {
    while (pieces->next < pieces->state->count && (pieces->start < pieces->end || pieces->last)) {
        int tensor = pieces->next++;
        uint64_t start = pieces->start, length = pieces->state->tensors[tensor].length;
        uint64_t from = start > pieces->begin ? start : pieces->begin;
        uint64_t to = start + length < pieces->end ? start + length : pieces->end;
        pieces->start = start + length;
        if (from < to || (!length && start >= pieces->begin)) {
            *out = (struct rf__ckpt_piece){.tensor = tensor,
                                           .offset = from - start,
                                           .length = to - from,
                                           .whole = to - from == length};
            return true;
        }
    }
    return false;
}

void rf__ckpt_stage(const struct rf__ckpt_state *state, int part, int parts, void *buffer) {
    struct rf__ckpt_pieces pieces = rf__ckpt_pieces(state, part, parts);
    struct rf__ckpt_piece piece;
    char *at = buffer;

    while (rf__ckpt_next_piece(&pieces, &piece)) {
        if (piece.length) {
            memcpy(at, (const char *)state->tensors[piece.tensor].bytes + piece.offset,
                   piece.length);
        }
        at += piece.length;
    }
}

/* A name that JSON can hold and that a piece's "NAME@OFFSET" cannot be mistaken for. */
static bool is_name(const char *name) {
    size_t length = name ? strnlen(name, RF__CKPT_NAME) : 0;
    if (!length || length == RF__CKPT_NAME || !strcmp(name, "__metadata__")) {
        return false;
    }
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)name[i];
        if (c < ' ' || c == 127 || c == '@') {
            return false;
        }
    }
    json_t *text = json_stringn(name, length); /* NULL where it is not UTF-8 */
    bool utf8 = text != NULL;
    json_decref(text);
    return utf8;
}

static int check_tensor(const struct rf__ckpt_tensor *tensor, int index, struct rf_error *err) {
    if (!is_name(tensor->name)) {
        return rf__fail(
            err, RF_EINVAL, 0,
            "the name of tensor %d cannot stand in a checkpoint: '%.100s' (1 to %d bytes "
            "of UTF-8 without '@' and control characters)",
            index, tensor->name ? tensor->name : "", RF__CKPT_NAME - 1);
    }
    if (tensor->type != RF_F32 && tensor->type != RF_U8) {
        return rf__fail(err, RF_EINVAL, 0, "tensor '%.100s' is of type %s; there are f32 and u8",
                        tensor->name, rf_type_name(tensor->type));
    }
    if (tensor->dims < 0 || tensor->dims > RF__CKPT_DIMS) {
        return rf__fail(err, RF_EINVAL, 0, "tensor '%.100s' has %d dimensions, at most %d are kept",
                        tensor->name, tensor->dims, RF__CKPT_DIMS);
    }
    uint64_t bytes = rf_type_size(tensor->type);
    for (int i = 0; i < tensor->dims; i++) {
        if (tensor->shape[i] && bytes > STATE_BYTES_MAX / tensor->shape[i]) {
            return rf__fail(err, RF_EINVAL, 0, "the shape of tensor '%.100s' is too large",
                            tensor->name);
        }
        bytes *= tensor->shape[i];
    }
    if (bytes != tensor->length) {
        return rf__fail(err, RF_EINVAL, 0, "tensor '%.100s' has %llu bytes, its shape has %llu",
                        tensor->name, (unsigned long long)tensor->length,
                        (unsigned long long)bytes);
    }
    return RF_OK;
}

static int compare_names(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int check_unique(const struct rf__ckpt_state *state, struct rf_error *err) {
    const char **names = rf__alloc((size_t)state->count, sizeof *names);
    int code = RF_OK;

    if (!names) {
        return rf__fail(err, RF_ENOMEM, 0, "no memory for the names of %d tensors", state->count);
    }
    for (int i = 0; i < state->count; i++) {
        names[i] = state->tensors[i].name;
    }
    qsort(names, (size_t)state->count, sizeof *names, compare_names);
    for (int i = 1; i < state->count && !code; i++) {
        if (!strcmp(names[i - 1], names[i])) {
            code = rf__fail(err, RF_EINVAL, 0, "two tensors have the name '%.200s'", names[i]);
        }
    }
    rf__free(names);
    return code;
}

int rf__ckpt_state_check(const struct rf__ckpt_state *state, struct rf_error *err) {
    uint64_t total = 0;

    if (state->count < 0 || state->count > RF__CKPT_TENSORS) {
        return rf__fail(err, RF_EINVAL, 0, "%d tensors, a checkpoint holds at most %d",
                        state->count, RF__CKPT_TENSORS);
    }
    for (int i = 0; i < state->count; i++) {
        const struct rf__ckpt_tensor *tensor = &state->tensors[i];
        int code = check_tensor(tensor, i, err);
        if (code) {
            return code;
        }
        if (i && tensor->trained && !tensor[-1].trained) {
            return rf__fail(err, RF_EINVAL, 0,
                            "parameter '%.100s' comes after '%.100s', which is none", tensor->name,
                            tensor[-1].name);
        }
        total += tensor->length;
        if (total > STATE_BYTES_MAX) {
            return rf__fail(err, RF_EINVAL, 0, "the state is too large at tensor '%.100s'",
                            tensor->name);
        }
    }
    return check_unique(state, err);
}

/* "f32 [128, 784], a parameter" */
static void describe(const struct rf__ckpt_tensor *tensor, char *text, size_t room) {
    int at = snprintf(text, room, "%s [", rf_type_name(tensor->type));

    for (int i = 0; i < tensor->dims; i++) {
        at += snprintf(text + at, room - (size_t)at, i ? ", %llu" : "%llu",
                       (unsigned long long)tensor->shape[i]);
    }
    snprintf(text + at, room - (size_t)at, "], %s", tensor->trained ? "a parameter" : "state");
}

int rf__ckpt_state_compare(const struct rf__ckpt_state *theirs, const struct rf__ckpt_state *ours,
                           struct rf_error *err) {
    char text[2][128]; /* 4 numbers of at most 20 digits fit */

    for (int i = 0; i < theirs->count || i < ours->count; i++) {
        if (i >= ours->count || i >= theirs->count) {
            bool more = i >= ours->count;
            return rf__fail(
                err, RF_ECHECKPOINT, 0,
                "the checkpoint has %d tensors, the model %d: '%.100s' is only in the %s",
                theirs->count, ours->count, more ? theirs->tensors[i].name : ours->tensors[i].name,
                more ? "checkpoint" : "model");
        }
        const struct rf__ckpt_tensor *a = &theirs->tensors[i], *b = &ours->tensors[i];
        if (strcmp(a->name, b->name)) {
            return rf__fail(err, RF_ECHECKPOINT, 0,
                            "tensor %d is '%.100s' in the checkpoint, '%.100s' in the model", i,
                            a->name, b->name);
        }
        if (a->type != b->type || a->dims != b->dims || a->trained != b->trained ||
            memcmp(a->shape, b->shape, (size_t)a->dims * sizeof *a->shape)) {
            describe(a, text[0], sizeof text[0]);
            describe(b, text[1], sizeof text[1]);
            return rf__fail(err, RF_ECHECKPOINT, 0,
                            "tensor '%.80s' is %s in the checkpoint, %s in the model", a->name,
                            text[0], text[1]);
        }
    }
    return RF_OK;
}
