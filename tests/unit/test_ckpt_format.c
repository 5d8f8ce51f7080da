/* The formats of checkpoints: which bytes are in which part, safetensors headers, manifests. */
#include "base/mem.h"
#include "ckpt/layout.h"
#include "ckpt/manifest.h"
#include "ckpt/safetensors.h"
#include "support/checkpoints.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

/* ---- layout ---- */

static void parts_cover_each_byte_once(void **unused) {
    struct test_state s;
    (void)unused;
    test_state_make(&s, 1);
    uint64_t total = rf__ckpt_state_bytes(&s.state);
    assert_int_equal(total, 13 * 17 * 4 + 13 * 4 + 4 + 1001 + 3);
    for (int parts = 1; parts <= 64; parts++) {
        uint64_t at[STATE_TENSORS] = {0}, sum = 0;
        int last = 0;
        for (int part = 0; part < parts; part++) {
            struct rf__ckpt_pieces pieces = rf__ckpt_pieces(&s.state, part, parts);
            struct rf__ckpt_piece piece;
            uint64_t bytes = 0;
            while (rf__ckpt_next_piece(&pieces, &piece)) {
                uint64_t length = s.tensors[piece.tensor].length;
                assert_true(piece.tensor >= last);
                last = piece.tensor;
                assert_int_equal(piece.offset, at[piece.tensor]);
                assert_int_equal(piece.offset % 64, 0);
                assert_true(piece.length || !length);
                assert_int_equal(piece.whole, piece.length == length);
                at[piece.tensor] += length ? piece.length : 1;
                bytes += piece.length;
            }
            assert_int_equal(bytes, rf__ckpt_part_bytes(&s.state, part, parts));
            assert_true(bytes <= total / (uint64_t)parts + 1 + 63); /* nearly equal */
            sum += bytes;
        }
        assert_int_equal(sum, total);
        for (int i = 0; i < STATE_TENSORS; i++) { /* an empty one is once somewhere */
            assert_int_equal(at[i], s.tensors[i].length ? s.tensors[i].length : 1);
        }
    }
    test_state_free(&s);
}

static void a_state_without_bytes_has_parts(void **unused) {
    struct rf__ckpt_tensor none = test_tensor("none", RF_F32, true, 1, 0, 0);
    struct rf__ckpt_state states[] = {{NULL, 0}, {&none, 1}};
    (void)unused;
    for (int i = 0; i < 2; i++) {
        int found = 0;
        for (int part = 0; part < 3; part++) {
            struct rf__ckpt_pieces pieces = rf__ckpt_pieces(&states[i], part, 3);
            struct rf__ckpt_piece piece;
            while (rf__ckpt_next_piece(&pieces, &piece)) {
                assert_true(piece.whole);
                found++;
            }
            assert_int_equal(rf__ckpt_part_bytes(&states[i], part, 3), 0);
        }
        assert_int_equal(found, states[i].count);
        assert_int_equal(rf__ckpt_state_check(&states[i], NULL), 0);
    }
    free(none.bytes);
}

static void expect_refused(const struct rf__ckpt_tensor *tensors, int count, const char *words) {
    struct rf__ckpt_state state = {.tensors = tensors, .count = count};
    struct rf_error err = {0};
    assert_int_equal(rf__ckpt_state_check(&state, &err), RF_EINVAL);
    if (!strstr(err.text, words)) {
        fail_msg("'%s' does not say '%s'", err.text, words);
    }
}

static void a_state_is_checked(void **unused) {
    struct test_state s;
    struct rf__ckpt_tensor t[STATE_TENSORS];
    char long_name[RF__CKPT_NAME + 1];
    (void)unused;

    test_state_make(&s, 1);
    assert_int_equal(rf__ckpt_state_check(&s.state, NULL), 0);
    const char *names[] = {"", NULL, "a@3", "__metadata__", "a\nb", "a\xff", "a\x7f", long_name};
    memset(long_name, 'a', sizeof long_name - 1);
    long_name[RF__CKPT_NAME] = '\0';
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        memcpy(t, s.tensors, sizeof t);
        t[1].name = names[i];
        expect_refused(t, STATE_TENSORS, "tensor 1");
    }
    memcpy(t, s.tensors, sizeof t);
    t[2].name = "layer1.bias";
    expect_refused(t, STATE_TENSORS, "'layer1.bias'");
    memcpy(t, s.tensors, sizeof t);
    t[0].type = RF_F64;
    expect_refused(t, STATE_TENSORS, "f64");
    memcpy(t, s.tensors, sizeof t);
    t[0].dims = 5;
    expect_refused(t, STATE_TENSORS, "5 dimensions");
    memcpy(t, s.tensors, sizeof t);
    t[0].shape[1]++;
    expect_refused(t, STATE_TENSORS, "884 bytes");
    memcpy(t, s.tensors, sizeof t);
    t[0].shape[0] = UINT64_MAX / 2;
    expect_refused(t, STATE_TENSORS, "too large");
    memcpy(t, s.tensors, sizeof t);
    t[1].trained = false;
    expect_refused(t, STATE_TENSORS, "'scale' comes after 'layer1.bias'");
    expect_refused(t, RF__CKPT_TENSORS + 1, "at most");
    test_state_free(&s);
}

static void the_first_difference_is_named(void **unused) {
    struct test_state a, b;
    struct rf_error err = {0};
    (void)unused;

    test_state_make(&a, 1);
    test_state_make(&b, 2);
    assert_int_equal(rf__ckpt_state_compare(&a.state, &b.state, &err), 0);
    b.tensors[1].name = "layer1.offset";
    assert_int_equal(rf__ckpt_state_compare(&a.state, &b.state, &err), RF_ECHECKPOINT);
    assert_non_null(strstr(err.text, "'layer1.bias' in the checkpoint, 'layer1.offset'"));
    b.tensors[1].name = "layer1.bias";
    b.tensors[0].shape[0] = 26;
    assert_int_equal(rf__ckpt_state_compare(&a.state, &b.state, &err), RF_ECHECKPOINT);
    assert_non_null(strstr(err.text, "'layer1.weight' is f32 [13, 17], a parameter in the"));
    assert_non_null(strstr(err.text, "f32 [26, 17]"));
    b.tensors[0].shape[0] = 13;
    b.state.count--;
    assert_int_equal(rf__ckpt_state_compare(&a.state, &b.state, &err), RF_ECHECKPOINT);
    assert_non_null(strstr(err.text, "'none' is only in the checkpoint"));
    assert_int_equal(rf__ckpt_state_compare(&b.state, &a.state, &err), RF_ECHECKPOINT);
    assert_non_null(strstr(err.text, "'none' is only in the model"));
    test_state_free(&a);
    test_state_free(&b);
}

/* ---- safetensors ---- */

static void a_header_is_written_to_the_byte(void **unused) {
    static const char expected[] =
        "{\"__metadata__\":{\"format\":\"pt\"},\"w\":{\"dtype\":\"F32\",\"shape\":[2,3],"
        "\"data_offsets\":[0,24]},\"s@8\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[24,25]}"
        "}";
    const struct rf__safetensors_pair pair = {"format", "pt"};
    const struct rf__safetensors_entry entries[] = {
        {.name = "w", .type = RF_F32, .dims = 2, .shape = {2, 3}, .end = 24},
        {.name = "s@8", .type = RF_U8, .dims = 1, .shape = {1}, .begin = 24, .end = 25}};
    unsigned char *bytes = NULL;
    size_t count = 0, text = sizeof expected - 1;
    (void)unused;

    assert_int_equal(rf__safetensors_header(&pair, 1, entries, 2, (void **)&bytes, &count, NULL),
                     0);
    assert_int_equal(count % 8, 0);
    assert_int_equal(bytes[0] | bytes[1] << 8, count - 8);
    assert_memory_equal(bytes + 8, expected, text);
    for (size_t i = 8 + text; i < count; i++) {
        assert_int_equal(bytes[i], ' ');
    }
    struct rf__safetensors s;
    assert_int_equal(rf__safetensors_parse(bytes + 8, count - 8, 25, &s, NULL), 0);
    assert_int_equal(s.count, 2);
    assert_memory_equal(s.entries, entries, sizeof entries);
    assert_string_equal(rf__safetensors_metadata(&s, "format"), "pt");
    assert_null(rf__safetensors_metadata(&s, "step"));
    rf__safetensors_free(&s);
    rf__free(bytes);
}

static void a_foreign_order_is_put_right(void **unused) {
    static const char text[] = "{\"b\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[8,11]},"
                               "\"a\":{\"data_offsets\":[0,8],\"dtype\":\"F32\",\"shape\":[2]},"
                               "\"e\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[8,8]}}";
    struct rf__safetensors s;
    (void)unused;
    assert_int_equal(rf__safetensors_parse(text, sizeof text - 1, 11, &s, NULL), 0);
    assert_int_equal(s.count, 3);
    assert_string_equal(s.entries[0].name, "a");
    assert_string_equal(s.entries[1].name, "e");
    assert_string_equal(s.entries[2].name, "b");
    assert_null(rf__safetensors_metadata(&s, "format"));
    rf__safetensors_free(&s);
}

static void wrong_headers_are_refused(void **unused) {
    static const struct {
        const char *text, *words;
        uint64_t data;
    } cases[] = {
        {"", "no safetensors header", 0},
        {" {}", "no safetensors header", 0},
        {"{", "not JSON", 0},
        {"{}x", "not JSON", 0},
        {"{\"a\":1}", "dtype, shape and data_offsets", 0},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", "dtype, shape and data_offsets", 4},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":1}}", "nothing else",
         4},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
         "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
         "duplicate", 4},
        {"{\"a\":{\"dtype\":\"F8_E4M3\",\"shape\":[1],\"data_offsets\":[0,1]}}",
         "dtype that is not known", 1},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,8]}}", "go with its shape",
         8},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", "whole numbers", 4},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1.5],\"data_offsets\":[0,4]}}", "whole numbers", 4},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":{},\"data_offsets\":[0,4]}}", "has no shape", 4},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1],\"data_offsets\":[0,4]}}", "has no shape",
         4},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,4],\"data_offsets\":[0,4]}}",
         "too large", 4},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4,0]}}", "within the data", 4},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[-4,0]}}", "within the data", 4},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[5],\"data_offsets\":[0,5]}}", "within the data", 4},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4,4]}}", "within the data", 4},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[1,3]}}", "hole", 4},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[2,4]}}",
         "overlaps", 4},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]}}", "3 bytes of data", 4},
        {"{\"__metadata__\":{\"format\":1}}", "'format'", 0},
        {"{\"__metadata__\":[]}", "no object", 0},
        {"{\"\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", "or none", 0},
    };
    (void)unused;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct rf_error err = {0};
        struct rf__safetensors s;
        int code =
            rf__safetensors_parse(cases[i].text, strlen(cases[i].text), cases[i].data, &s, &err);
        if (code != RF_ECHECKPOINT || !strstr(err.text, cases[i].words)) {
            fail_msg("%s: %d '%s' and not '%s'", cases[i].text, code, err.text, cases[i].words);
        }
        assert_null(s.entries);
    }
}

/* ---- manifests ---- */

struct full {
    struct test_state s;
    struct rf__ckpt_part parts[2];
    struct rf__ckpt_id ancestors[RF__CKPT_ANCESTORS];
    uint64_t digests[RF__CKPT_DIGESTS];
    struct rf__ckpt_manifest m;
};

static struct full *full_make(void) {
    struct full *f = calloc(1, sizeof *f);

    test_state_make(&f->s, 1);
    f->parts[0] = (struct rf__ckpt_part){1000, UINT64_MAX};
    f->parts[1] = (struct rf__ckpt_part){INT64_MAX, 0};
    f->m = test_manifest(&f->s.state, test_id(20000), f->parts, 2);
    for (int i = 0; i < RF__CKPT_ANCESTORS; i++) {
        f->ancestors[i] = test_id(10000 - (uint64_t)i * 100);
    }
    for (int i = 0; i < RF__CKPT_DIGESTS; i++) {
        f->digests[i] = test_id(10001 + (uint64_t)i).chain;
    }
    f->m.ancestors = f->ancestors;
    f->m.ancestor_count = RF__CKPT_ANCESTORS;
    f->m.digests = f->digests;
    f->m.first_step = 10001;
    f->m.digest_count = RF__CKPT_DIGESTS;
    return f;
}

static void full_free(struct full *f) {
    test_state_free(&f->s);
    free(f);
}

static void a_manifest_comes_back_as_it_was(void **unused) {
    struct full *f = full_make();
    struct rf__ckpt_manifest m;
    char *text = NULL, *again = NULL;
    size_t bytes = 0, more = 0;
    (void)unused;

    assert_int_equal(rf__ckpt_manifest_encode(&f->m, &text, &bytes, NULL), 0);
    assert_int_equal(rf__ckpt_manifest_decode(text, bytes, &m, NULL), 0);
    assert_int_equal(m.id.step, 20000);
    assert_true(m.id.chain == f->m.id.chain && m.state_digest == f->m.state_digest);
    assert_string_equal(m.job, "job");
    assert_string_equal(m.version, "0.1.0");
    assert_string_equal(m.config, "{\"model\":\"mlp\",\"lr\":0.050000000000000003}");
    assert_int_equal(m.units, 20001);
    assert_int_equal(m.generation, 3);
    assert_int_equal(m.samples, 20000 * 128);
    assert_int_equal(m.skipped, 2);
    assert_int_equal(m.time_s, 1790020000);
    assert_int_equal(rf__ckpt_state_compare(&m.state, &f->s.state, NULL), 0);
    assert_null(m.state.tensors[0].bytes);
    assert_int_equal(m.part_count, 2);
    assert_memory_equal(m.parts, f->parts, sizeof f->parts);
    assert_int_equal(m.ancestor_count, RF__CKPT_ANCESTORS);
    assert_memory_equal(m.ancestors, f->ancestors, sizeof f->ancestors);
    assert_int_equal(m.first_step, 10001);
    assert_int_equal(m.digest_count, RF__CKPT_DIGESTS);
    assert_memory_equal(m.digests, f->digests, sizeof f->digests);
    assert_int_equal(rf__ckpt_manifest_encode(&m, &again, &more, NULL), 0);
    assert_int_equal(more, bytes);
    assert_memory_equal(again, text, bytes);
    rf__ckpt_manifest_free(&m);
    rf__free(text);
    rf__free(again);
    full_free(f);
}

static void every_byte_of_a_manifest_counts(void **unused) {
    struct test_state s;
    struct rf__ckpt_part part = {1000, 5};
    char *text = NULL;
    size_t bytes = 0;
    (void)unused;

    test_state_make(&s, 1);
    struct rf__ckpt_manifest m = test_manifest(&s.state, test_id(20), &part, 1), read;
    assert_int_equal(rf__ckpt_manifest_encode(&m, &text, &bytes, NULL), 0);
    for (size_t i = 0; i < bytes; i++) {
        for (int bit = 0; bit < 8; bit++) {
            struct rf_error err = {0};
            text[i] = (char)(text[i] ^ 1 << bit);
            assert_int_equal(rf__ckpt_manifest_decode(text, bytes, &read, &err), RF_ECHECKPOINT);
            assert_true(err.text[0]);
            text[i] = (char)(text[i] ^ 1 << bit);
        }
    }
    for (size_t length = 0; length < bytes; length++) {
        char *cut = malloc(length + 1);
        memcpy(cut, text, length);
        assert_int_equal(rf__ckpt_manifest_decode(cut, length, &read, NULL), RF_ECHECKPOINT);
        free(cut);
    }
    assert_int_equal(rf__ckpt_manifest_decode(text, bytes, &read, NULL), 0);
    rf__ckpt_manifest_free(&read);
    rf__free(text);
    test_state_free(&s);
}

static void expect_unwritable(const struct rf__ckpt_manifest *m, const char *words) {
    struct rf_error err = {0};
    char *text = NULL;
    size_t bytes = 0;
    assert_int_equal(rf__ckpt_manifest_encode(m, &text, &bytes, &err), RF_EINVAL);
    if (!strstr(err.text, words)) {
        fail_msg("'%s' does not say '%s'", err.text, words);
    }
}

static void contradictions_are_not_written(void **unused) {
    struct full *f = full_make();
    const struct rf__ckpt_manifest good = f->m;
    (void)unused;

    f->m.config = "[1]";
    expect_unwritable(&f->m, "not a JSON object");
    f->m.config = "{";
    expect_unwritable(&f->m, "not a JSON object");
    f->m = good;
    f->m.digest_count--;
    expect_unwritable(&f->m, "do not end at its step");
    f->m = good;
    f->m.ancestors = &f->m.id;
    f->m.ancestor_count = 1;
    f->m.part_count = 0;
    expect_unwritable(&f->m, "no parts");
    f->m = good;
    f->ancestors[1].step = f->ancestors[0].step + 1;
    expect_unwritable(&f->m, "not in order");
    f->m = good;
    f->m.id.step = UINT64_MAX;
    expect_unwritable(&f->m, "63 bits");
    f->m = good;
    f->m.ancestor_count = 0;
    memcpy(f->m.job, "\xff", 2);
    expect_unwritable(&f->m, "not UTF-8");
    memcpy(f->m.job, "a\033[31m", 7);
    expect_unwritable(&f->m, "control characters");
    full_free(f);
}

/* What a file says is quoted, and a terminal does not obey it. */
static void quotes_are_printable(void **unused) {
    static const char header[] = "{\"a\\u001b[31m\\u007f\":1}";
    char cut[] = "caf\xc3\xa9 \xc3", whole[] = "caf\xc3\xa9\n";
    struct rf__safetensors s;
    struct rf_error err = {0};
    (void)unused;

    assert_int_equal(rf__safetensors_parse(header, sizeof header - 1, 0, &s, &err), RF_ECHECKPOINT);
    assert_non_null(strstr(err.text, "'a?[31m?'"));
    rf__ckpt_printable(cut);
    assert_string_equal(cut, "caf?? ?");
    rf__ckpt_printable(whole);
    assert_string_equal(whole, "caf\xc3\xa9?");
}

static void folders_have_one_name(void **unused) {
    static const char *const wrong[] = {"",
                                        "step-",
                                        "step-1-6f3a9c21",
                                        "step-00001400-6f3a9c2",
                                        "step-00001400-6F3A9C21",
                                        "step-00001400-6f3a9c211",
                                        "step-00001400",
                                        "step--0001400-6f3a9c21",
                                        "step-00001400-6f3a9c21/",
                                        "step-+0001400-6f3a9c21",
                                        "Step-00001400-6f3a9c21",
                                        "step-000001400-6f3a9c21",
                                        "step-99999999999999999999999999-6f3a9c21"};
    struct rf__ckpt_id id = {1400, 0x6f3a9c21deadbeef}, read;
    char folder[RF__CKPT_FOLDER];
    (void)unused;

    rf__ckpt_folder(folder, &id);
    assert_string_equal(folder, "step-00001400-6f3a9c21");
    assert_true(rf__ckpt_folder_parse(folder, &read));
    assert_int_equal(read.step, 1400);
    assert_true(read.chain == UINT64_C(0x6f3a9c21) << 32);
    id = (struct rf__ckpt_id){UINT64_MAX, UINT64_MAX};
    rf__ckpt_folder(folder, &id);
    assert_true(rf__ckpt_folder_parse(folder, &read) && read.step == UINT64_MAX);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_false(rf__ckpt_folder_parse(wrong[i], &read));
    }
}

static void digests_of_streams_are_those_of_the_whole(void **unused) {
    static unsigned char bytes[5000];
    struct rf__digester *d = rf__digester_create();
    struct rf__rng rng = rf__rng(1, 2, 3);
    (void)unused;

    assert_non_null(d);
    for (size_t i = 0; i < sizeof bytes; i++) {
        bytes[i] = (unsigned char)rf__rng_u64(&rng);
    }
    for (size_t length = 0; length <= sizeof bytes; length += 1 + length / 7) {
        rf__digester_reset(d);
        for (size_t at = 0; at < length;) {
            size_t n = 1 + rf__rng_below(&rng, length - at);
            rf__digester_add(d, bytes + at, n);
            at += n;
        }
        assert_true(rf__digester_value(d) == rf__digest(bytes, length, 0));
    }
    rf__digester_destroy(d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_cover_each_byte_once),
        cmocka_unit_test(a_state_without_bytes_has_parts),
        cmocka_unit_test(a_state_is_checked),
        cmocka_unit_test(the_first_difference_is_named),
        cmocka_unit_test(a_header_is_written_to_the_byte),
        cmocka_unit_test(a_foreign_order_is_put_right),
        cmocka_unit_test(wrong_headers_are_refused),
        cmocka_unit_test(a_manifest_comes_back_as_it_was),
        cmocka_unit_test(every_byte_of_a_manifest_counts),
        cmocka_unit_test(contradictions_are_not_written),
        cmocka_unit_test(quotes_are_printable),
        cmocka_unit_test(folders_have_one_name),
        cmocka_unit_test(digests_of_streams_are_those_of_the_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
