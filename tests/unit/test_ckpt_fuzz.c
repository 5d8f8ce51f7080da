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

/* A part whose digest in the manifest goes with whatever became of it, so that all behind the
 * digest is reached: it is refused, or it was changed in its data alone. */
static void parts_survive_anything(void **state) {
    static unsigned char changed[ROOM];
    struct rf__rng rng = rf__rng(11, 3, 4);
    struct test_state s, loaded;
    struct memory_blobs *blobs = memory_blobs_create();
    struct rf__ckpt_manifest m;
    struct rf__ckpt_id id = test_id(20);
    char folder[RF__CKPT_FOLDER], path[128];
    long taken = 0;
    (void)state;

    test_state_make(&s, 1);
    test_state_make(&loaded, 2);
    rf__ckpt_folder(folder, &id);
    assert_int_equal(test_write(&blobs->base, &s.state, id, 2, NULL), 0);
    assert_int_equal(rf__ckpt_read_manifest(&blobs->base, folder, &m, NULL), 0);
    snprintf(path, sizeof path, "%s/part-1-of-2.safetensors", folder);
    struct blob_file *file = memory_get(blobs, path);
    size_t count = file->length, header = count - rf__ckpt_part_bytes(&s.state, 1, 2);
    unsigned char *good = malloc(count);
    memcpy(good, file->bytes, count);
    for (int round = 0; round < ROUNDS / 4; round++) {
        memcpy(changed, good, count);
        /* Half of the rounds leave the header's length alone, and many the file's. */
        size_t length = mutate(&rng, changed + round % 2 * 6, header - round % 2 * 6, count);
        length += (size_t)(round % 2) * 6;
        if (round % 3) {
            length = count; /* what was moved up to the data is data now */
        }
        struct rf__ckpt_part parts[2] = {m.parts[0], {length, rf__digest(changed, length, 0)}};
        struct rf__ckpt_manifest lying = m;
        lying.parts = parts;
        unsigned char *exact = malloc(length + 1);
        memcpy(exact, changed, length);
        memory_put(blobs, path, exact, length);
        int code = rf__ckpt_load_part(&blobs->base, &lying, 1, &loaded.state, NULL);
        assert_true(code == 0 || code == RF_ECHECKPOINT);
        if (code == 0) {
            void *staged = malloc(count - header + 1);
            rf__ckpt_stage(&loaded.state, 1, 2, staged);
            assert_int_equal(length, count);
            assert_memory_equal(staged, changed + header, count - header);
            free(staged);
            taken++;
        }
    }
    assert_true(taken < ROUNDS / 8);
    free(good);
    rf__ckpt_manifest_free(&m);
    blobs->base.ops->destroy(&blobs->base);
    test_state_free(&s);
    test_state_free(&loaded);
}

/* Names and marks as anybody may leave them: a list is a list, and the whole one is in it. */
static void lists_survive_anything(void **state) {
    static const char *const seeds[] = {"step-00000030-0badcafe/manifest.json",
                                        "step-00000030-0badcafe/part-0-of-2.safetensors",
                                        "step-00000030-0badcafe/bad.json"};
    static const char mark[] = "{\"reason\": \"it diverged\", \"time\": 5, \"by\": \"rank 0\"}";
    struct rf__rng rng = rf__rng(12, 3, 4);
    struct test_state s;
    (void)state;

    test_state_make(&s, 1);
    for (int round = 0; round < ROUNDS / 20; round++) {
        struct memory_blobs *blobs = memory_blobs_create();
        struct rf__ckpt_list list;
        unsigned char name[BLOB_NAME + 1] = "", *text = malloc(2 * sizeof mark);
        bool found = false;

        assert_int_equal(test_write(&blobs->base, &s.state, test_id(20), 1, NULL), 0);
        const char *seed = seeds[rf__rng_below(&rng, 3)];
        size_t length = strlen(seed);
        memcpy(name, seed, length);
        length = rf__rng_below(&rng, 2) ? length : mutate(&rng, name, length, BLOB_NAME - 1);
        name[length] = '\0';
        memcpy(text, mark, sizeof mark);
        size_t bytes = mutate(&rng, text, sizeof mark - 1, 2 * sizeof mark);
        memory_put(blobs, (const char *)name, text, bytes);
        assert_int_equal(rf__ckpt_list(&blobs->base, &list, NULL), 0);
        assert_true(list.count == 1 || list.count == 2);
        for (int i = 0; i < list.count; i++) {
            const struct rf__ckpt_entry *entry = &list.entries[i];
            char printable[RF__CKPT_REASON];
            memcpy(printable, entry->reason, sizeof printable);
            rf__ckpt_printable(printable);
            assert_string_equal(printable, entry->reason);
            found |= entry->condition == RF__CKPT_WHOLE && entry->id.step == 20;
        }
        assert_true(found);
        rf__ckpt_list_free(&list);
        blobs->base.ops->destroy(&blobs->base);
    }
    test_state_free(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(headers_survive_anything),
        cmocka_unit_test(manifests_survive_anything),
        cmocka_unit_test(parts_survive_anything),
        cmocka_unit_test(lists_survive_anything),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
