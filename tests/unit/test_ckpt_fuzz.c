/* The fuzz targets of checkpoints, driven by seeded mutations of good input, so that they run
 * everywhere. The sanitizers look on; RF_ASSERT in the targets checks. */
#define FUZZ_CKPT_SAFETENSORS fuzz_safetensors
#define FUZZ_CKPT_MANIFEST    fuzz_manifest
#include "fuzz/fuzz_ckpt_manifest.c"
#include "fuzz/fuzz_ckpt_safetensors.c"
#include "support/checkpoints.h"
#include "support/memory_blobs.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum { ROUNDS = 20000, ROOM = 1 << 16 };

/* Some of: bits turned over, digits and marks set, a piece cut out or doubled, the end cut off. */
static size_t mutate(struct rf__rng *rng, unsigned char *bytes, size_t count, size_t room) {
    static const char likely[] = "0123456789-{}[]\",:@.eEF\\ ";

    for (uint64_t i = 1 + rf__rng_below(rng, 3); i > 0 && count > 2; i--) {
        size_t at = 2 + rf__rng_below(rng, count - 2);
        size_t piece = rf__rng_below(rng, count - at < 40 ? count - at : 40) + 1;
        switch (rf__rng_below(rng, 6)) {
        case 0:
            bytes[at] ^= (unsigned char)(1u << rf__rng_below(rng, 8));
            break;
        case 1:
            bytes[at] = (unsigned char)rf__rng_u64(rng);
            break;
        case 2:
            memmove(bytes + at, bytes + at + piece, count - at - piece);
            count -= piece;
            break;
        case 3:
            if (count + piece <= room) {
                memmove(bytes + at + piece, bytes + at, count - at);
                count += piece;
            }
            break;
        case 4:
            bytes[at] = (unsigned char)likely[rf__rng_below(rng, sizeof likely - 1)];
            break;
        default:
            if (rf__rng_below(rng, 8) == 0) {
                count = at;
            }
            break;
        }
    }
    return count;
}

typedef int target_fn(const uint8_t *bytes, size_t count);

/* A copy of just its size each time, so that a read past the end is seen. */
static void drive(target_fn *target, const unsigned char *good, size_t count, uint64_t seed) {
    static unsigned char changed[ROOM];
    struct rf__rng rng = rf__rng(seed, 3, 4);

    assert_true(count > 2 && count < ROOM / 2);
    (void)target(good, count);
    for (int round = 0; round < ROUNDS; round++) {
        memcpy(changed, good, count);
        size_t length = mutate(&rng, changed, count, ROOM);
        unsigned char *exact = malloc(length);
        memcpy(exact, changed, length);
        (void)target(exact, length);
        free(exact);
    }
}

static void headers_survive_anything(void **state) {
    struct test_state s;
    struct memory_blobs *blobs = memory_blobs_create();
    struct rf__ckpt_id id = test_id(20);
    char path[128];
    (void)state;

    test_state_make(&s, 1);
    assert_int_equal(test_write(&blobs->base, &s.state, id, 2, NULL), 0);
    for (int part = 0; part < 2; part++) {
        char folder[RF__CKPT_FOLDER];
        rf__ckpt_folder(folder, &id);
        snprintf(path, sizeof path, "%s/part-%d-of-2.safetensors", folder, part);
        const struct blob_file *file = memory_get(blobs, path);
        size_t header = file->length - rf__ckpt_part_bytes(&s.state, part, 2) - 8;
        unsigned char *good = malloc(header + 2);
        uint64_t data = rf__ckpt_part_bytes(&s.state, part, 2);
        good[0] = (unsigned char)data;
        good[1] = (unsigned char)(data >> 8);
        memcpy(good + 2, file->bytes + 8, header);
        drive(fuzz_safetensors, good, header + 2, (uint64_t)part);
        free(good);
    }
    blobs->base.ops->destroy(&blobs->base);
    test_state_free(&s);
}

static void manifests_survive_anything(void **state) {
    struct test_state s;
    struct rf__ckpt_part parts[3] = {{800, 1}, {801, 2}, {802, UINT64_MAX}};
    struct rf__ckpt_id ancestors[2] = {{10, 5}, {0, 4}};
    uint64_t digests[3] = {1, UINT64_MAX, 3};
    char *text = NULL;
    size_t bytes = 0;
    (void)state;

    test_state_make(&s, 1);
    struct rf__ckpt_manifest m = test_manifest(&s.state, test_id(20), parts, 3);
    m.ancestors = ancestors;
    m.ancestor_count = 2;
    m.digests = digests;
    m.first_step = 18;
    m.digest_count = 3;
    assert_int_equal(rf__ckpt_manifest_encode(&m, &text, &bytes, NULL), 0);
    drive(fuzz_manifest, (const unsigned char *)text, bytes, 9);
    rf__free(text);
    test_state_free(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(headers_survive_anything),
        cmocka_unit_test(manifests_survive_anything),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
