/* Makes checkpoints without training: `make_ckpt FOLDER STEP [PARTS [SEED [PARENT]]]` writes one of
 * a small state whose values anybody can compute: element i of parameter p is p + i / 64 + SEED,
 * byte i of the further state i * 7 + SEED. PARENT is the step of the checkpoint that it goes on
 * from.
 *
 * It uses the library's inside, which the public interface only reads. */
#include "base/digest.h"
#include "ckpt/checkpoint.h"
#include "os/storage.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { TENSORS = 5, PARTS_MAX = 64 };

static struct rf__ckpt_tensor tensor(const char *name, bool trained, int dims, uint64_t a,
                                     uint64_t b, int number, int seed) {
    struct rf__ckpt_tensor t = {.name = name,
                                .type = trained ? RF_F32 : RF_U8,
                                .trained = trained,
                                .dims = dims,
                                .shape = {a, b}};
    uint64_t count = (dims > 0 ? a : 1) * (dims > 1 ? b : 1);

    t.length = count * rf_type_size(t.type);
    t.bytes = malloc(t.length ? t.length : 1);
    for (uint64_t i = 0; t.bytes && i < count; i++) {
        if (trained) {
            ((float *)t.bytes)[i] = (float)number + (float)i / 64 + (float)seed;
        } else {
            ((unsigned char *)t.bytes)[i] = (unsigned char)(i * 7 + (uint64_t)seed);
        }
    }
    return t;
}

static struct rf__ckpt_id id_of(uint64_t step, int seed) {
    return (struct rf__ckpt_id){.step = step, .chain = rf__digest_mix((uint64_t)seed + 1, step)};
}

static int write_all(struct rf__blobs *blobs, const struct rf__ckpt_state *state,
                     struct rf__ckpt_manifest *manifest, int parts, struct rf_error *err) {
    struct rf__ckpt_part written[PARTS_MAX];
    int code = 0;

    for (int i = 0; i < parts && !code; i++) {
        void *staged = malloc(rf__ckpt_part_bytes(state, i, parts) + 1);
        if (!staged) {
            return RF_ENOMEM;
        }
        rf__ckpt_stage(state, i, parts, staged);
        code = rf__ckpt_write_part(blobs, state, &manifest->id, i, parts, staged, &written[i], err);
        free(staged);
    }
    manifest->parts = written;
    manifest->part_count = parts;
    return code ? code : rf__ckpt_write_manifest(blobs, manifest, err);
}

int main(int argc, char **argv) {
    uint64_t step = argc > 2 ? strtoull(argv[2], NULL, 10) : 0;
    int parts = argc > 3 ? atoi(argv[3]) : 1, seed = argc > 4 ? atoi(argv[4]) : 0;
    struct rf__ckpt_tensor tensors[TENSORS] = {
        tensor("layer1.weight", true, 2, 128, 100, 0, seed),
        tensor("layer1.bias", true, 1, 128, 0, 1, seed),
        tensor("scale", true, 0, 0, 0, 2, seed),
        tensor("empty", true, 2, 0, 3, 3, seed),
        tensor("momentum", false, 1, 5001, 0, 4, seed),
    };
    struct rf__ckpt_state state = {.tensors = tensors, .count = TENSORS};
    struct rf__ckpt_manifest manifest = {.id = id_of(step, seed),
                                         .job = "made",
                                         .units = step,
                                         .generation = 1,
                                         .state_digest = 42,
                                         .samples = step * 128,
                                         .time_s = (int64_t)time(NULL),
                                         .config = "{\"model\":\"none\",\"batch\":128}",
                                         .state = state};
    struct rf__ckpt_id parent = {0};
    struct rf__blobs *blobs = NULL;
    struct rf_error err = {0};
    int code = 0;

    if (argc < 3 || parts < 1 || parts > PARTS_MAX) {
        fprintf(stderr, "usage: make_ckpt FOLDER STEP [PARTS [SEED [PARENT]]]\n");
        return 64;
    }
    if (argc > 5) {
        parent = id_of(strtoull(argv[5], NULL, 10), 0);
        manifest.ancestors = &parent;
        manifest.ancestor_count = 1;
    }
    code = rf__storage_open(argv[1], NULL, &blobs, &err);
    code = code ? code : write_all(blobs, &state, &manifest, parts, &err);
    if (code) {
        fprintf(stderr, "make_ckpt: %s\n", err.text);
    }
    if (blobs) {
        blobs->ops->destroy(blobs);
    }
    for (int i = 0; i < TENSORS; i++) {
        free(tensors[i].bytes);
    }
    return code ? 1 : 0;
}
