/* Checkpoints on blobs in memory: written by any number of members and read by any, every flipped
 * byte noticed, calls that fail at each position, races, pruning, copies and exports. */
#include "base/mem.h"
#include "ckpt/checkpoint.h"
#include "ckpt/copy.h"
#include "ckpt/safetensors.h"
#include "support/checkpoints.h"
#include "support/memory_blobs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

static void drop(struct memory_blobs *blobs) {
    assert_int_equal(blobs->open_now, 0);
    assert_int_equal(blobs->writing_now, 0);
    blobs->base.ops->destroy(&blobs->base);
}

static const char *path_in(const struct rf__ckpt_id *id, const char *name) {
    static char path[2][128];
    static int turn;
    char folder[RF__CKPT_FOLDER];
    rf__ckpt_folder(folder, id);
    turn = !turn;
    snprintf(path[turn], sizeof path[turn], "%s/%s", folder, name);
    return path[turn];
}

static struct rf__ckpt_manifest manifest_of(struct memory_blobs *blobs, struct rf__ckpt_id id) {
    struct rf__ckpt_manifest m;
    struct rf_error err = {0};
    char folder[RF__CKPT_FOLDER];
    rf__ckpt_folder(folder, &id);
    if (rf__ckpt_read_manifest(&blobs->base, folder, &m, &err)) {
        fail_msg("%s", err.text);
    }
    return m;
}

/* The newest whole one whose parts all verify, or -1: what a restart looks for. */
static int64_t newest_good(struct memory_blobs *blobs) {
    struct rf__ckpt_list list;
    int64_t found = -1;

    assert_int_equal(rf__ckpt_list(&blobs->base, &list, NULL), 0);
    for (int i = rf__ckpt_newest(&list, list.count); i >= 0 && found < 0;
         i = rf__ckpt_newest(&list, i)) {
        if (!rf__ckpt_verify(&blobs->base, list.entries[i].manifest, NULL, NULL, NULL)) {
            found = (int64_t)list.entries[i].id.step;
        }
    }
    rf__ckpt_list_free(&list);
    return found;
}

/* ---- writing and reading ---- */

static void any_number_of_members_writes_and_reads(void **unused) {
    struct test_state s, other;
    (void)unused;
    test_state_make(&s, 1);
    for (int parts = 1; parts <= 9; parts++) {
        struct memory_blobs *blobs = memory_blobs_create();
        struct rf_error err = {0};
        test_state_make(&other, 2);
        assert_int_equal(test_write(&blobs->base, &s.state, test_id(20), parts, &err), 0);
        assert_int_equal(blobs->count, parts + 1);
        struct rf__ckpt_manifest m = manifest_of(blobs, test_id(20));
        assert_int_equal(m.part_count, parts);
        assert_false(test_state_equal(&s, &other));
        assert_int_equal(rf__ckpt_load(&blobs->base, &m, &other.state, &err), 0);
        assert_true(test_state_equal(&s, &other));
        assert_int_equal(rf__ckpt_verify(&blobs->base, &m, NULL, NULL, &err), 0);
        rf__ckpt_manifest_free(&m);
        test_state_free(&other);
        drop(blobs);
    }
    test_state_free(&s);
}

static void the_same_content_gives_the_same_bytes(void **unused) {
    struct test_state s, twin;
    struct memory_blobs *a = memory_blobs_create(), *b = memory_blobs_create();
    (void)unused;
    test_state_make(&s, 1);
    test_state_make(&twin, 1);
    assert_int_equal(test_write(&a->base, &s.state, test_id(20), 3, NULL), 0);
    assert_int_equal(test_write(&b->base, &twin.state, test_id(20), 3, NULL), 0);
    assert_int_equal(a->count, b->count);
    for (int i = 0; i < a->count; i++) {
        assert_string_equal(a->files[i].name, b->files[i].name);
        assert_int_equal(a->files[i].length, b->files[i].length);
        assert_memory_equal(a->files[i].bytes, b->files[i].bytes, a->files[i].length);
    }
    test_state_free(&s);
    test_state_free(&twin);
    drop(a);
    drop(b);
}

/* More than one chunk, so that pieces and chunks end at different places. */
static void large_parts_go_in_chunks(void **unused) {
    struct rf__ckpt_tensor t[2][2];
    struct rf__ckpt_state state[2];
    struct memory_blobs *blobs = memory_blobs_create();
    uint64_t chunk = RF__CKPT_CHUNK;
    (void)unused;
    for (int k = 0; k < 2; k++) {
        t[k][0] = test_tensor("a", RF_F32, true, 1, chunk / 4 - 5, 0);
        t[k][1] = test_tensor("b", RF_U8, false, 1, chunk + 77, 0);
        state[k] = (struct rf__ckpt_state){.tensors = t[k], .count = 2};
    }
    for (uint64_t i = 0; i < chunk; i += 3) {
        ((unsigned char *)t[0][1].bytes)[i] = (unsigned char)(i * 7 >> 4);
    }
    memset(t[0][0].bytes, 0x5a, t[0][0].length);
    assert_int_equal(test_write(&blobs->base, &state[0], test_id(5), 1, NULL), 0);
    struct rf__ckpt_manifest m = manifest_of(blobs, test_id(5));
    assert_int_equal(rf__ckpt_load(&blobs->base, &m, &state[1], NULL), 0);
    for (int i = 0; i < 2; i++) {
        assert_memory_equal(t[0][i].bytes, t[1][i].bytes, t[0][i].length);
        free(t[0][i].bytes);
        free(t[1][i].bytes);
    }
    rf__ckpt_manifest_free(&m);
    drop(blobs);
}

static void every_byte_of_a_part_counts(void **unused) {
    struct test_state s, other;
    struct memory_blobs *blobs = memory_blobs_create();
    struct rf__ckpt_id id = test_id(20);
    (void)unused;
    test_state_make(&s, 1);
    test_state_make(&other, 2);
    assert_int_equal(test_write(&blobs->base, &s.state, id, 2, NULL), 0);
    struct rf__ckpt_manifest m = manifest_of(blobs, id);
    struct blob_file *file = memory_get(blobs, path_in(&id, "part-1-of-2.safetensors"));
    for (size_t i = 0; i < file->length; i++) {
        struct rf_error err = {0};
        file->bytes[i] ^= (unsigned char)(1 << i % 8);
        assert_int_equal(rf__ckpt_load_part(&blobs->base, &m, 1, &other.state, &err),
                         RF_ECHECKPOINT);
        assert_non_null(strstr(err.text, "part-1-of-2.safetensors': "));
        assert_non_null(strstr(err.next, "ringfold ckpt list"));
        file->bytes[i] ^= (unsigned char)(1 << i % 8);
    }
    size_t whole = file->length;
    for (file->length = 0; file->length < whole; file->length++) {
        struct rf_error err = {0};
        assert_int_equal(rf__ckpt_load_part(&blobs->base, &m, 1, &other.state, &err),
                         RF_ECHECKPOINT);
        assert_non_null(strstr(err.text, "should have"));
    }
    assert_int_equal(rf__ckpt_load_part(&blobs->base, &m, 1, &other.state, NULL), 0);
    rf__ckpt_manifest_free(&m);
    test_state_free(&s);
    test_state_free(&other);
    drop(blobs);
}

/* A part whose digest is right in the manifest and whose header is not that of the layout. */
static void a_part_in_anothers_place_is_refused(void **unused) {
    static const struct {
        const char *header, *words;
    } cases[] = {
        {"{\"__metadata__\":{\"step\":\"20\",\"chain\":\"$\",\"part\":\"0\",\"parts\":\"2\"},"
         "\"a\":{\"dtype\":\"U8\",\"shape\":[128],\"data_offsets\":[0,128]}}",
         "another checkpoint"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[128],\"data_offsets\":[0,128]}}",
         "another checkpoint"},
        {"{\"__metadata__\":{\"step\":\"20\",\"chain\":\"$\",\"part\":\"0\",\"parts\":\"1\"},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[128],\"data_offsets\":[0,128]}}",
         "describe 'a'"},
        {"{\"__metadata__\":{\"step\":\"20\",\"chain\":\"$\",\"part\":\"0\",\"parts\":\"1\"},"
         "\"a\":{\"dtype\":\"U8\",\"shape\":[2,64],\"data_offsets\":[0,128]}}",
         "describe 'a'"},
        {"{\"__metadata__\":{\"step\":\"20\",\"chain\":\"$\",\"part\":\"0\",\"parts\":\"1\"},"
         "\"a\":{\"dtype\":\"U8\",\"shape\":[64],\"data_offsets\":[0,64]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[64],\"data_offsets\":[64,128]}}",
         "describe 'a'"},
        {"{\"__metadata__\":{\"step\":\"20\",\"chain\":\"$\",\"part\":\"0\",\"parts\":\"1\"},"
         "\"a\":{\"dtype\":\"U8\",\"shape\":[128],\"data_offsets\":[0,128]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[128,128]}}",
         "has 'b'"},
    };
    struct rf__ckpt_tensor t = test_tensor("a", RF_U8, false, 1, 128, 0);
    struct rf__ckpt_state state = {.tensors = &t, .count = 1};
    struct rf__ckpt_id id = test_id(20);
    (void)unused;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct memory_blobs *blobs = memory_blobs_create();
        struct rf_error err = {0};
        char text[512];
        const char *dollar = strchr(cases[i].header, '$');
        int at = dollar ? (int)(dollar - cases[i].header) : 0;
        if (dollar) {
            snprintf(text, sizeof text, "%.*s%016llx%s", at, cases[i].header,
                     (unsigned long long)id.chain, dollar + 1);
        } else {
            snprintf(text, sizeof text, "%s", cases[i].header);
        }
        size_t header = strlen(text), count = 8 + header + 128;
        unsigned char *file = calloc(1, count);
        file[0] = (unsigned char)header;
        file[1] = (unsigned char)(header >> 8);
        memcpy(file + 8, text, header);
        struct rf__ckpt_part part = {.bytes = count, .digest = rf__digest(file, count, 0)};
        memory_put(blobs, path_in(&id, "part-0-of-1.safetensors"), file, count);
        struct rf__ckpt_manifest m = test_manifest(&state, id, &part, 1);
        assert_int_equal(rf__ckpt_load_part(&blobs->base, &m, 0, &state, &err), RF_ECHECKPOINT);
        if (!strstr(err.text, cases[i].words)) {
            fail_msg("%zu: '%s' does not say '%s'", i, err.text, cases[i].words);
        }
        drop(blobs);
    }
    free(t.bytes);
}

static void another_model_is_refused_by_name(void **unused) {
    struct test_state s, other;
    struct memory_blobs *blobs = memory_blobs_create();
    struct rf_error err = {0};
    (void)unused;
    test_state_make(&s, 1);
    test_state_make(&other, 2);
    assert_int_equal(test_write(&blobs->base, &s.state, test_id(20), 2, NULL), 0);
    struct rf__ckpt_manifest m = manifest_of(blobs, test_id(20));
    other.tensors[0].shape[0] = 17;
    other.tensors[0].shape[1] = 13;
    blobs->calls = 0;
    assert_int_equal(rf__ckpt_load(&blobs->base, &m, &other.state, &err), RF_ECHECKPOINT);
    assert_non_null(strstr(err.text, "'layer1.weight' is f32 [13, 17]"));
    assert_int_equal(blobs->calls, 0); /* nothing was read */
    rf__ckpt_manifest_free(&m);
    test_state_free(&s);
    test_state_free(&other);
    drop(blobs);
}

static int verified[4];

static void note_part(void *context, int part, int code, const struct rf_error *err) {
    assert_ptr_equal(context, verified);
    assert_int_equal(err->code, code);
    verified[part] = code;
}

static void verify_tells_of_every_part(void **unused) {
    struct test_state s;
    struct memory_blobs *blobs = memory_blobs_create();
    struct rf__ckpt_id id = test_id(20);
    struct rf_error err = {0};
    (void)unused;
    test_state_make(&s, 1);
    assert_int_equal(test_write(&blobs->base, &s.state, id, 4, NULL), 0);
    struct rf__ckpt_manifest m = manifest_of(blobs, id);
    memory_get(blobs, path_in(&id, "part-1-of-4.safetensors"))->bytes[300] ^= 1;
    memory_drop(blobs, memory_find(blobs, path_in(&id, "part-3-of-4.safetensors")));
    memset(verified, 1, sizeof verified);
    assert_int_equal(rf__ckpt_verify(&blobs->base, &m, note_part, verified, &err), RF_ECHECKPOINT);
    assert_non_null(strstr(err.text, "part-1-of-4"));
    assert_int_equal(verified[0], 0);
    assert_int_equal(verified[1], RF_ECHECKPOINT);
    assert_int_equal(verified[2], 0);
    assert_int_equal(verified[3], RF_ECHECKPOINT);
    /* A server that cannot be reached says nothing of the parts behind. */
    memory_fail(blobs, 0, RF_ECONNECT, false);
    memset(verified, 1, sizeof verified);
    assert_int_equal(rf__ckpt_verify(&blobs->base, &m, note_part, verified, &err), RF_ECONNECT);
    assert_int_equal(verified[0], RF_ECONNECT);
    assert_int_not_equal(verified[1], RF_ECONNECT);
    rf__ckpt_manifest_free(&m);
    test_state_free(&s);
    drop(blobs);
}

/* ---- failures and races ---- */

/* Each call of writing fails in turn, before its effect or after: there is no checkpoint, or all of
 * it; and writing it again makes it. */
static void a_failed_write_leaves_none_or_all(void **unused) {
    struct test_state s;
    (void)unused;
    test_state_make(&s, 1);
    for (int late = 0; late < 2; late++) {
        bool done = false;
        for (long k = 0; !done; k++) {
            struct memory_blobs *blobs = memory_blobs_create();
            struct rf_error err = {0};
            memory_fail(blobs, k, k % 2 ? RF_EIO : RF_ECONNECT, late);
            int code = test_write(&blobs->base, &s.state, test_id(20), 2, &err);
            done = blobs->calls <= k;
            assert_int_equal(code == 0, done);
            assert_true(code == 0 || err.text[0]);
            memory_fail(blobs, -1, 0, false);
            int64_t newest = newest_good(blobs);
            assert_true(newest == 20 || (newest == -1 && !done));
            assert_int_equal(test_write(&blobs->base, &s.state, test_id(20), 2, &err), 0);
            assert_int_equal(newest_good(blobs), 20);
            drop(blobs);
            assert_true(k < 100);
        }
    }
    test_state_free(&s);
}

static void no_memory_is_an_error_everywhere(void **unused) {
    struct test_state s, other;
    (void)unused;
    test_state_make(&s, 1);
    test_state_make(&other, 2);
    bool done = false;
    for (long k = 0; !done; k++) {
        struct memory_blobs *blobs = memory_blobs_create();
        struct rf__ckpt_manifest m = {0};
        struct rf__ckpt_list list = {0};
        char folder[RF__CKPT_FOLDER];
        struct rf__ckpt_id id = test_id(20);
        rf__ckpt_folder(folder, &id);
        rf__alloc_fail_after(k);
        int code = test_write(&blobs->base, &s.state, id, 2, NULL);
        code = code ? code : rf__ckpt_list(&blobs->base, &list, NULL);
        code = code ? code : rf__ckpt_read_manifest(&blobs->base, folder, &m, NULL);
        code = code ? code : rf__ckpt_load(&blobs->base, &m, &other.state, NULL);
        rf__alloc_fail_after(-1);
        assert_true(code == 0 || code == RF_ENOMEM);
        done = code == 0;
        rf__ckpt_list_free(&list);
        rf__ckpt_manifest_free(&m);
        drop(blobs);
        assert_true(k < 1000);
    }
    assert_true(test_state_equal(&s, &other));
    test_state_free(&s);
    test_state_free(&other);
}

static struct test_state *racer;
static int racer_parts;

static void write_first(struct memory_blobs *blobs, const char *name) {
    if (strstr(name, "manifest")) {
        assert_int_equal(test_write(&blobs->base, &racer->state, test_id(20), racer_parts, NULL),
                         0);
    } else {
        blobs->before_finish = write_first;
    }
}

static void of_two_that_race_one_wins(void **unused) {
    struct test_state s, same, other;
    (void)unused;
    test_state_make(&s, 1);
    test_state_make(&same, 1);
    test_state_make(&other, 2);
    for (int kind = 0; kind < 3; kind++) {
        struct memory_blobs *blobs = memory_blobs_create();
        struct rf_error err = {0};
        racer = kind == 1 ? &other : &same;
        racer_parts = kind == 2 ? 3 : 2;
        blobs->before_finish = write_first;
        int code = test_write(&blobs->base, &s.state, test_id(20), 2, &err);
        assert_int_equal(code, kind ? RF_ECONFLICT : 0);
        if (kind == 2) {
            assert_non_null(strstr(err.text, "another checkpoint stands at"));
            assert_non_null(strstr(err.text, "3 parts"));
        }
        /* What a reader takes for a checkpoint is one of them, whole. */
        struct rf__ckpt_manifest m = manifest_of(blobs, test_id(20));
        assert_int_equal(rf__ckpt_verify(&blobs->base, &m, NULL, NULL, NULL), 0);
        assert_int_equal(m.part_count, racer_parts);
        rf__ckpt_manifest_free(&m);
        drop(blobs);
    }
    test_state_free(&s);
    test_state_free(&same);
    test_state_free(&other);
}

static void a_torn_manifest_is_written_over_and_a_bad_one_is_not(void **unused) {
    struct test_state s;
    struct memory_blobs *blobs = memory_blobs_create();
    struct rf__ckpt_id id = test_id(20);
    struct rf_error err = {0};
    char folder[RF__CKPT_FOLDER];
    (void)unused;
    test_state_make(&s, 1);
    rf__ckpt_folder(folder, &id);
    assert_int_equal(test_write(&blobs->base, &s.state, id, 2, NULL), 0);
    memory_get(blobs, path_in(&id, "manifest.json"))->length /= 2;
    assert_int_equal(newest_good(blobs), -1);
    assert_int_equal(test_write(&blobs->base, &s.state, id, 2, &err), 0);
    assert_int_equal(newest_good(blobs), 20);
    assert_int_equal(rf__ckpt_mark_bad(&blobs->base, folder, "it diverged", "rank 0", 5, &err), 0);
    assert_int_equal(newest_good(blobs), -1);
    assert_int_equal(test_write(&blobs->base, &s.state, id, 2, &err), RF_ECONFLICT);
    assert_non_null(strstr(err.text, "marked as bad"));
    /* The first reason stays. */
    assert_int_equal(rf__ckpt_mark_bad(&blobs->base, folder, "another", "rank 1", 6, &err), 0);
    struct rf__ckpt_list list;
    assert_int_equal(rf__ckpt_list(&blobs->base, &list, NULL), 0);
    assert_int_equal(list.count, 1);
    assert_int_equal(list.entries[0].condition, RF__CKPT_BAD);
    assert_string_equal(list.entries[0].reason, "it diverged");
    rf__ckpt_list_free(&list);
    assert_int_equal(rf__ckpt_mark_bad(&blobs->base, "nonsense", "x", "y", 5, &err), RF_EINVAL);
    test_state_free(&s);
    drop(blobs);
}

static void an_interrupted_write_ends(void **unused) {
    struct test_state s;
    struct memory_blobs *blobs = memory_blobs_create();
    (void)unused;
    test_state_make(&s, 1);
    blobs->base.ops->interrupt(&blobs->base);
    assert_int_equal(test_write(&blobs->base, &s.state, test_id(20), 2, NULL), RF_ESTOPPED);
    test_state_free(&s);
    drop(blobs);
}

/* ---- lists ---- */

static void put_text(struct memory_blobs *blobs, const char *name, const char *text) {
    memory_put(blobs, name, (unsigned char *)strdup(text), strlen(text));
}

static void a_list_says_what_each_is(void **unused) {
    struct test_state s;
    struct memory_blobs *blobs = memory_blobs_create();
    struct rf__ckpt_list list;
    struct rf__ckpt_id id;
    (void)unused;
    test_state_make(&s, 1);
    assert_int_equal(rf__ckpt_list(&blobs->base, &list, NULL), 0);
    assert_int_equal(list.count, 0);
    assert_int_equal(rf__ckpt_newest(&list, 0), -1);
    for (uint64_t step = 10; step <= 60; step += 10) {
        assert_int_equal(test_write(&blobs->base, &s.state, test_id(step), 3, NULL), 0);
    }
    id = test_id(20);
    memory_drop(blobs, memory_find(blobs, path_in(&id, "manifest.json")));
    id = test_id(30);
    memory_drop(blobs, memory_find(blobs, path_in(&id, "part-1-of-3.safetensors")));
    id = test_id(40);
    memory_get(blobs, path_in(&id, "part-2-of-3.safetensors"))->length--;
    id = test_id(50);
    memory_get(blobs, path_in(&id, "manifest.json"))->bytes[77] ^= 1;
    id = test_id(60);
    put_text(blobs, path_in(&id, "bad.json"), "not JSON");
    put_text(blobs, "step-00000070-00000000/part-0-of-9.safetensors", "x");
    put_text(blobs, "step-00000070-00000000/stray", "xyz");
    put_text(blobs, "step-x/part-0-of-9.safetensors", "x");
    put_text(blobs, "step-00000080-00000000", "x");
    put_text(blobs, "other/manifest.json", "x");
    assert_int_equal(rf__ckpt_list(&blobs->base, &list, NULL), 0);
    assert_int_equal(list.count, 7);
    static const struct {
        enum rf__ckpt_condition condition;
        const char *reason;
    } expected[] = {{RF__CKPT_WHOLE, ""},
                    {RF__CKPT_INCOMPLETE, "there is no manifest"},
                    {RF__CKPT_BAD, "part 1 of 3 is missing"},
                    {RF__CKPT_BAD, "part 2 of 3 has "},
                    {RF__CKPT_BAD, "digest does not match"},
                    {RF__CKPT_BAD, "the mark cannot be read"},
                    {RF__CKPT_INCOMPLETE, "there is no manifest"}};
    for (int i = 0; i < list.count; i++) {
        const struct rf__ckpt_entry *entry = &list.entries[i];
        assert_int_equal(entry->id.step, 10 + 10 * i);
        assert_int_equal(entry->condition, expected[i].condition);
        if (!strstr(entry->reason, expected[i].reason)) {
            fail_msg("'%s' does not say '%s'", entry->reason, expected[i].reason);
        }
    }
    assert_int_equal(list.entries[0].parts, 3);
    assert_int_equal(list.entries[0].time_s, 1790000010);
    assert_true(list.entries[0].id.chain == test_id(10).chain);
    assert_int_equal(list.entries[6].parts, 1);
    assert_int_equal(list.entries[6].bytes, 4);
    assert_int_equal(rf__ckpt_newest(&list, list.count), 0);
    rf__ckpt_list_free(&list);

    /* A manifest that cannot be read is no good; a server that cannot be reached is an error. */
    struct rf_error err = {0};
    memory_fail(blobs, 1, RF_EIO, false);
    assert_int_equal(rf__ckpt_list(&blobs->base, &list, NULL), 0);
    assert_int_equal(list.entries[0].condition, RF__CKPT_BAD);
    rf__ckpt_list_free(&list);
    memory_fail(blobs, 1, RF_ECONNECT, false);
    assert_int_equal(rf__ckpt_list(&blobs->base, &list, &err), RF_ECONNECT);
    assert_int_equal(list.count, 0);
    assert_non_null(strstr(err.text, "looking for checkpoints: "));
    test_state_free(&s);
    drop(blobs);
}

static void what_a_later_version_wrote_is_left_alone(void **unused) {
    struct test_state s;
    struct memory_blobs *blobs = memory_blobs_create();
    struct rf__ckpt_list list;
    struct rf__ckpt_pruned pruned;
    struct rf__ckpt_id id = test_id(10);
    (void)unused;
    test_state_make(&s, 1);
    for (uint64_t step = 10; step <= 30; step += 10) {
        assert_int_equal(test_write(&blobs->base, &s.state, test_id(step), 1, NULL), 0);
    }
    struct blob_file *file = memory_get(blobs, path_in(&id, "manifest.json"));
    char *version = memmem(file->bytes, file->length, "\"version\": 1", 12);
    version[11] = '2';
    size_t body = file->length - (sizeof ",\n \"digest\": \"\"\n}\n" - 1) - 16;
    char digits[17];
    snprintf(digits, sizeof digits, "%016llx",
             (unsigned long long)rf__digest(file->bytes, body, 0));
    memcpy(file->bytes + body + sizeof ",\n \"digest\": \"" - 1, digits, 16);
    assert_int_equal(rf__ckpt_list(&blobs->base, &list, NULL), 0);
    assert_true(list.entries[0].newer);
    assert_int_equal(list.entries[0].condition, RF__CKPT_BAD);
    assert_non_null(strstr(list.entries[0].reason, "version 2"));
    rf__ckpt_list_free(&list);
    assert_int_equal(rf__ckpt_prune(&blobs->base, 1, &pruned, NULL), 0);
    assert_int_equal(pruned.removed, 1);
    assert_int_equal(pruned.bad, 0);
    assert_non_null(memory_get(blobs, path_in(&id, "manifest.json")));
    test_state_free(&s);
    drop(blobs);
}

/* ---- pruning ---- */

/* 10 whole, 20 bad, 30 whole, 40 incomplete, 50 whole, 60 bad, 70 incomplete. */
static struct memory_blobs *many(const struct rf__ckpt_state *state) {
    struct memory_blobs *blobs = memory_blobs_create();
    for (uint64_t step = 10; step <= 70; step += 10) {
        struct rf__ckpt_id id = test_id(step);
        char folder[RF__CKPT_FOLDER];
        rf__ckpt_folder(folder, &id);
        assert_int_equal(test_write(&blobs->base, state, id, 2, NULL), 0);
        if (step == 20 || step == 60) {
            assert_int_equal(rf__ckpt_mark_bad(&blobs->base, folder, "bad", "test", 1, NULL), 0);
        }
        if (step == 40 || step == 70) {
            memory_drop(blobs, memory_find(blobs, path_in(&id, "manifest.json")));
        }
    }
    blobs->unfinished = 4;
    return blobs;
}

static bool is_there(struct memory_blobs *blobs, uint64_t step) {
    struct rf__ckpt_id id = test_id(step);
    char folder[RF__CKPT_FOLDER];
    bool found = false;
    rf__ckpt_folder(folder, &id);
    for (int i = 0; i < blobs->count; i++) {
        found |= !strncmp(blobs->files[i].name, folder, strlen(folder));
    }
    return found;
}

static void pruning_keeps_the_newest(void **unused) {
    static const struct {
        int keep, removed, bad, incomplete, kept;
        const char *left; /* one mark each for 10 … 70 */
    } cases[] = {{1, 2, 1, 1, 1, "----xxx"},
                 {2, 1, 1, 1, 2, "--x-xxx"},
                 {3, 0, 0, 1, 3, "xxx-xxx"},
                 {9, 0, 0, 1, 3, "xxx-xxx"}};
    struct test_state s;
    (void)unused;
    test_state_make(&s, 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct memory_blobs *blobs = many(&s.state);
        struct rf__ckpt_pruned pruned;
        assert_int_equal(rf__ckpt_prune(&blobs->base, cases[i].keep, &pruned, NULL), 0);
        assert_int_equal(pruned.removed, cases[i].removed);
        assert_int_equal(pruned.bad, cases[i].bad);
        assert_int_equal(pruned.incomplete, cases[i].incomplete);
        assert_int_equal(pruned.kept, cases[i].kept);
        assert_int_equal(pruned.collected, 4);
        assert_true(pruned.bytes > 0);
        for (uint64_t k = 0; k < 7; k++) {
            assert_int_equal(is_there(blobs, 10 + 10 * k), cases[i].left[k] == 'x');
        }
        assert_int_equal(newest_good(blobs), 50);
        drop(blobs);
    }
    struct memory_blobs *blobs = many(&s.state);
    struct rf__ckpt_pruned pruned;
    struct rf_error err = {0};
    assert_int_equal(rf__ckpt_prune(&blobs->base, 0, &pruned, &err), RF_EINVAL);
    drop(blobs);
    test_state_free(&s);
}

/* What goes first and last of a folder, so that no half of one is taken for more than it is. */
static void pruning_goes_in_order(void **unused) {
    struct test_state s;
    struct rf__ckpt_pruned pruned;
    (void)unused;
    test_state_make(&s, 1);
    struct memory_blobs *blobs = many(&s.state);
    assert_int_equal(rf__ckpt_prune(&blobs->base, 1, &pruned, NULL), 0);
    struct rf__ckpt_id id = test_id(10);
    assert_string_equal(blobs->removed[0], path_in(&id, "manifest.json"));
    assert_string_equal(blobs->removed[1], path_in(&id, "part-0-of-2.safetensors"));
    id = test_id(20);
    assert_string_equal(blobs->removed[3], path_in(&id, "manifest.json"));
    assert_string_equal(blobs->removed[6], path_in(&id, "bad.json"));
    drop(blobs);
    test_state_free(&s);
}

/* Each call of pruning fails in turn: the newest good one stays, none that is bad turns good, and
 * another call ends where an undisturbed one does. */
static void a_failed_pruning_loses_nothing(void **unused) {
    struct test_state s;
    (void)unused;
    test_state_make(&s, 1);
    for (int late = 0; late < 2; late++) {
        bool done = false;
        for (long k = 0; !done; k++) {
            struct memory_blobs *blobs = many(&s.state);
            struct rf__ckpt_pruned pruned;
            struct rf__ckpt_list list;
            memory_fail(blobs, k, RF_ECONNECT, late);
            int code = rf__ckpt_prune(&blobs->base, 1, &pruned, NULL);
            done = blobs->calls <= k;
            assert_int_equal(code, done ? 0 : RF_ECONNECT);
            memory_fail(blobs, -1, 0, false);
            assert_int_equal(newest_good(blobs), 50);
            assert_int_equal(rf__ckpt_list(&blobs->base, &list, NULL), 0);
            for (int i = 0; i < list.count; i++) {
                const struct rf__ckpt_entry *entry = &list.entries[i];
                if (entry->condition == RF__CKPT_WHOLE) {
                    assert_true(entry->id.step % 20 == 10);
                    assert_int_equal(
                        rf__ckpt_verify(&blobs->base, entry->manifest, NULL, NULL, NULL), 0);
                }
            }
            rf__ckpt_list_free(&list);
            assert_int_equal(rf__ckpt_prune(&blobs->base, 1, &pruned, NULL), 0);
            assert_int_equal(blobs->count, 3 + 4 + 2);
            assert_int_equal(newest_good(blobs), 50);
            drop(blobs);
            assert_true(k < 200);
        }
    }
    test_state_free(&s);
}

static void where_nothing_is_whole_nothing_goes(void **unused) {
    struct test_state s;
    struct memory_blobs *blobs = memory_blobs_create();
    struct rf__ckpt_pruned pruned;
    (void)unused;
    test_state_make(&s, 1);
    for (uint64_t step = 10; step <= 30; step += 10) {
        struct rf__ckpt_id id = test_id(step);
        assert_int_equal(test_write(&blobs->base, &s.state, id, 1, NULL), 0);
        memory_get(blobs, path_in(&id, "manifest.json"))->bytes[9] ^= 1;
    }
    assert_int_equal(rf__ckpt_prune(&blobs->base, 1, &pruned, NULL), 0);
    assert_int_equal(blobs->removed_count, 0);
    assert_int_equal(pruned.kept, 0);
    test_state_free(&s);
    drop(blobs);
}

/* ---- copies and exports ---- */

static void a_copy_is_the_same_to_the_byte(void **unused) {
    struct test_state s;
    struct memory_blobs *from = memory_blobs_create();
    struct rf__ckpt_id id = test_id(20);
    char folder[RF__CKPT_FOLDER];
    (void)unused;
    test_state_make(&s, 1);
    rf__ckpt_folder(folder, &id);
    assert_int_equal(test_write(&from->base, &s.state, id, 3, NULL), 0);
    for (int late = 0; late < 2; late++) {
        bool done = false;
        for (long k = 0; !done; k++) {
            struct memory_blobs *to = memory_blobs_create();
            struct rf_error err = {0};
            memory_fail(to, k, RF_EIO, late);
            int code = rf__ckpt_copy(&from->base, &to->base, folder, &err);
            done = to->calls <= k;
            assert_int_equal(code, done ? 0 : RF_EIO);
            memory_fail(to, -1, 0, false);
            int64_t newest = newest_good(to);
            assert_true(newest == 20 || !done);
            assert_true(newest == 20 || memory_find(to, path_in(&id, "manifest.json")) < 0);
            assert_int_equal(rf__ckpt_copy(&from->base, &to->base, folder, &err), 0);
            assert_int_equal(to->count, 4);
            for (int i = 0; i < 4; i++) {
                assert_string_equal(to->files[i].name, from->files[i].name);
                assert_int_equal(to->files[i].length, from->files[i].length);
                assert_memory_equal(to->files[i].bytes, from->files[i].bytes, to->files[i].length);
            }
            drop(to);
            assert_true(k < 100);
        }
    }
    test_state_free(&s);
    drop(from);
}

static void what_is_damaged_is_not_copied(void **unused) {
    struct test_state s;
    struct memory_blobs *from = memory_blobs_create(), *to = memory_blobs_create();
    struct rf__ckpt_id id = test_id(20);
    struct rf_error err = {0};
    char folder[RF__CKPT_FOLDER];
    (void)unused;
    test_state_make(&s, 1);
    rf__ckpt_folder(folder, &id);
    assert_int_equal(test_write(&from->base, &s.state, id, 3, NULL), 0);
    struct blob_file *file = memory_get(from, path_in(&id, "part-1-of-3.safetensors"));
    file->bytes[file->length - 1] ^= 0x80;
    assert_int_equal(rf__ckpt_copy(&from->base, &to->base, folder, &err), RF_ECHECKPOINT);
    assert_non_null(strstr(err.text, "copying 'step-00000020-"));
    assert_non_null(strstr(err.text, "part-1-of-3.safetensors': its digest is"));
    assert_true(memory_find(to, path_in(&id, "part-1-of-3.safetensors")) < 0);
    assert_true(memory_find(to, path_in(&id, "manifest.json")) < 0);
    assert_int_equal(rf__ckpt_copy(&from->base, &to->base, "step-00000021-00000000", &err),
                     RF_ENOTFOUND);
    test_state_free(&s);
    drop(from);
    drop(to);
}

static void an_export_has_every_parameter(void **unused) {
    struct test_state s;
    (void)unused;
    test_state_make(&s, 1);
    for (int parts = 1; parts <= 7; parts++) {
        for (int further = 0; further < 2; further++) {
            struct memory_blobs *from = memory_blobs_create(), *to = memory_blobs_create();
            struct rf__safetensors st;
            uint64_t bytes = 0;
            assert_int_equal(test_write(&from->base, &s.state, test_id(20), parts, NULL), 0);
            struct rf__ckpt_manifest m = manifest_of(from, test_id(20));
            assert_int_equal(
                rf__ckpt_export(&from->base, &m, further, &to->base, "model", &bytes, NULL), 0);
            const struct blob_file *file = memory_get(to, "model");
            assert_int_equal(file->length, bytes);
            size_t header = file->bytes[0] | (size_t)file->bytes[1] << 8;
            const unsigned char *data = file->bytes + 8 + header;
            assert_int_equal(rf__safetensors_parse(file->bytes + 8, header,
                                                   file->length - 8 - header, &st, NULL),
                             0);
            assert_string_equal(rf__safetensors_metadata(&st, "format"), "pt");
            assert_int_equal(st.count, further ? STATE_TENSORS : 4);
            for (int i = 0; i < st.count; i++) {
                assert_string_equal(st.entries[i].name, s.tensors[i].name);
                assert_int_equal(st.entries[i].dims, s.tensors[i].dims);
                assert_memory_equal(st.entries[i].shape, s.tensors[i].shape,
                                    sizeof s.tensors[i].shape);
                assert_memory_equal(data + st.entries[i].begin, s.tensors[i].bytes,
                                    s.tensors[i].length);
            }
            rf__safetensors_free(&st);
            rf__ckpt_manifest_free(&m);
            drop(from);
            drop(to);
        }
    }
    test_state_free(&s);
}

static void a_damaged_export_leaves_nothing(void **unused) {
    struct test_state s;
    struct memory_blobs *from = memory_blobs_create(), *to = memory_blobs_create();
    struct rf__ckpt_id id = test_id(20);
    struct rf_error err = {0};
    (void)unused;
    test_state_make(&s, 1);
    assert_int_equal(test_write(&from->base, &s.state, id, 2, NULL), 0);
    struct rf__ckpt_manifest m = manifest_of(from, id);
    put_text(to, "model", "before");
    struct blob_file *file = memory_get(from, path_in(&id, "part-0-of-2.safetensors"));
    file->bytes[file->length - 1] ^= 1;
    assert_int_equal(rf__ckpt_export(&from->base, &m, false, &to->base, "model", NULL, &err),
                     RF_ECHECKPOINT);
    assert_non_null(strstr(err.text, "exporting step 20 to 'model': "));
    assert_int_equal(memory_get(to, "model")->length, 6);
    file->bytes[file->length - 1] ^= 1;
    memory_fail(to, 2, RF_EIO, false);
    assert_int_equal(rf__ckpt_export(&from->base, &m, false, &to->base, "model", NULL, &err),
                     RF_EIO);
    assert_int_equal(memory_get(to, "model")->length, 6);
    rf__ckpt_manifest_free(&m);
    test_state_free(&s);
    drop(from);
    drop(to);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_number_of_members_writes_and_reads),
        cmocka_unit_test(the_same_content_gives_the_same_bytes),
        cmocka_unit_test(large_parts_go_in_chunks),
        cmocka_unit_test(every_byte_of_a_part_counts),
        cmocka_unit_test(a_part_in_anothers_place_is_refused),
        cmocka_unit_test(another_model_is_refused_by_name),
        cmocka_unit_test(verify_tells_of_every_part),
        cmocka_unit_test(a_failed_write_leaves_none_or_all),
        cmocka_unit_test(no_memory_is_an_error_everywhere),
        cmocka_unit_test(of_two_that_race_one_wins),
        cmocka_unit_test(a_torn_manifest_is_written_over_and_a_bad_one_is_not),
        cmocka_unit_test(an_interrupted_write_ends),
        cmocka_unit_test(a_list_says_what_each_is),
        cmocka_unit_test(what_a_later_version_wrote_is_left_alone),
        cmocka_unit_test(pruning_keeps_the_newest),
        cmocka_unit_test(pruning_goes_in_order),
        cmocka_unit_test(a_failed_pruning_loses_nothing),
        cmocka_unit_test(where_nothing_is_whole_nothing_goes),
        cmocka_unit_test(a_copy_is_the_same_to_the_byte),
        cmocka_unit_test(what_is_damaged_is_not_copied),
        cmocka_unit_test(an_export_has_every_parameter),
        cmocka_unit_test(a_damaged_export_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
