/* States and checkpoints for tests: a state is made from a number, so that what was loaded can be
 * told apart; whole checkpoints are written as the members of a group would. */
#ifndef TESTS_CHECKPOINTS_H
#define TESTS_CHECKPOINTS_H

#include "base/digest.h"
#include "base/rng.h"
#include "ckpt/checkpoint.h"

#include <stdlib.h>
#include <string.h>

enum { STATE_TENSORS = 7 };

struct test_state {
    struct rf__ckpt_tensor tensors[STATE_TENSORS];
    struct rf__ckpt_state state;
};

static inline struct rf__ckpt_tensor test_tensor(const char *name, enum rf_type type, bool trained,
                                                 int dims, uint64_t a, uint64_t b) {
    struct rf__ckpt_tensor tensor = {
        .name = name, .type = type, .trained = trained, .dims = dims, .shape = {a, b}};
    tensor.length = rf_type_size(type) * (dims > 0 ? a : 1) * (dims > 1 ? b : 1);
    tensor.bytes = calloc(1, tensor.length + 1);
    return tensor;
}

/* 3 parameters, one of them a scalar; an empty tensor; moments; odd bytes. */
static inline void test_state_make(struct test_state *s, uint64_t seed) {
    struct rf__rng rng = rf__rng(seed, 1, 2);

    s->tensors[0] = test_tensor("layer1.weight", RF_F32, true, 2, 13, 17);
    s->tensors[1] = test_tensor("layer1.bias", RF_F32, true, 1, 13, 0);
    s->tensors[2] = test_tensor("scale", RF_F32, true, 0, 0, 0);
    s->tensors[3] = test_tensor("empty \"\xc3\xa9\"", RF_F32, true, 2, 0, 4);
    s->tensors[4] = test_tensor("optimizer", RF_U8, false, 1, 1001, 0);
    s->tensors[5] = test_tensor("counter", RF_U8, false, 1, 3, 0);
    s->tensors[6] = test_tensor("none", RF_U8, false, 1, 0, 0);
    s->state = (struct rf__ckpt_state){.tensors = s->tensors, .count = STATE_TENSORS};
    for (int i = 0; i < STATE_TENSORS; i++) {
        unsigned char *bytes = s->tensors[i].bytes;
        for (uint64_t k = 0; k < s->tensors[i].length; k++) {
            bytes[k] = (unsigned char)rf__rng_u64(&rng);
        }
    }
}

static inline void test_state_free(struct test_state *s) {
    for (int i = 0; i < STATE_TENSORS; i++) {
        free(s->tensors[i].bytes);
    }
}

static inline bool test_state_equal(const struct test_state *a, const struct test_state *b) {
    bool equal = true;
    for (int i = 0; i < STATE_TENSORS; i++) {
        equal &= !memcmp(a->tensors[i].bytes, b->tensors[i].bytes, a->tensors[i].length);
    }
    return equal;
}

/* What every checkpoint of these tests says; `parts` is room for as many. */
static inline struct rf__ckpt_manifest test_manifest(const struct rf__ckpt_state *state,
                                                     struct rf__ckpt_id id,
                                                     const struct rf__ckpt_part *parts, int count) {
    return (struct rf__ckpt_manifest){.id = id,
                                      .job = "job",
                                      .units = id.step + 1,
                                      .generation = 3,
                                      .state_digest = 0xfedcba9876543210,
                                      .samples = id.step * 128,
                                      .skipped = 2,
                                      .time_s = 1790000000 + (int64_t)id.step,
                                      .config = "{\"model\":\"mlp\",\"lr\":0.05}",
                                      .state = *state,
                                      .parts = parts,
                                      .part_count = count};
}

/* All members write their part, then the first the manifest. The code of the first failure. */
static inline int test_write(struct rf__blobs *blobs, const struct rf__ckpt_state *state,
                             struct rf__ckpt_id id, int parts, struct rf_error *err) {
    struct rf__ckpt_part expected[RF__CKPT_PARTS], written;
    int code = RF_OK;

    for (int i = 0; i < parts && !code; i++) {
        void *staged = malloc(rf__ckpt_part_bytes(state, i, parts) + 1);
        rf__ckpt_stage(state, i, parts, staged);
        code = rf__ckpt_part_digest(state, &id, i, parts, &expected[i], err);
        code =
            code ? code : rf__ckpt_write_part(blobs, state, &id, i, parts, staged, &written, err);
        if (!code && (written.bytes != expected[i].bytes || written.digest != expected[i].digest)) {
            code = RF_EINTERNAL;
        }
        free(staged);
    }
    if (!code) {
        struct rf__ckpt_manifest manifest = test_manifest(state, id, expected, parts);
        code = rf__ckpt_write_manifest(blobs, &manifest, err);
    }
    return code;
}

/* Of checkpoint `seed` in these tests. */
static inline struct rf__ckpt_id test_id(uint64_t step) {
    return (struct rf__ckpt_id){.step = step, .chain = rf__digest_mix(77, step)};
}

#endif
