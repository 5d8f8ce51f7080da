/* base/: status, cursors, digest, rng, names. */
#include "base/cursor.h"
#include "base/digest.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/status.h"

#include <ringfold/ringfold.h>

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cmocka.h>

static void errors_read_outwards(void **state) {
    struct rf_error err;
    (void)state;
    assert_int_equal(rf__fail(&err, RF_EIO, ENOSPC, "writing '%s'", "x"), RF_EIO);
    assert_string_equal(err.text, "writing 'x': No space left on device");
    assert_int_equal(rf__wrap(&err, RF_EINTERNAL, "journal: "), RF_EIO);
    assert_string_equal(err.text, "journal: writing 'x': No space left on device");
    assert_int_equal(rf__fail(NULL, RF_EIO, 0, "x"), RF_EIO);
    char longer[1000];
    memset(longer, 'a', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    (void)rf__wrap(&err, RF_EIO, "%s", longer);
    assert_int_equal(strlen(err.text), RF_ERROR_TEXT_MAX - 1);
}

static void every_code_has_its_texts(void **state) {
    (void)state;
#define RF_X(name, number, text, next)                                                             \
    assert_string_equal(rf_error_name(RF_##name), "RF_" #name);                                    \
    assert_true(rf_error_text(RF_##name)[0] && rf_error_next(RF_##name)[0]);
    RF_ERROR_LIST(RF_X)
#undef RF_X
    assert_string_equal(rf_error_text(-9999), "unknown error");
}

static void cursors_are_bounded(void **state) {
    unsigned char bytes[15];
    (void)state;
    struct rf__writer w = rf__writer(bytes, sizeof bytes);
    rf__write_u64(&w, 0x0102030405060708ull);
    rf__write_u32(&w, 0xdeadbeef);
    rf__write_u16(&w, 0x1234);
    rf__write_u8(&w, 0x7f);
    assert_false(w.failed);
    rf__write_u8(&w, 1);
    assert_true(w.failed);
    struct rf__reader r = rf__reader(bytes, sizeof bytes);
    assert_int_equal(rf__read_u64(&r), 0x0102030405060708ull);
    assert_int_equal(rf__read_u32(&r), 0xdeadbeef);
    assert_int_equal(rf__read_u16(&r), 0x1234);
    assert_int_equal(rf__read_u8(&r), 0x7f);
    assert_false(r.failed);
    assert_int_equal(rf__read_u16(&r), 0);
    assert_true(r.failed);
    assert_null(rf__read_view(&r, 0));
    assert_int_equal(bytes[0], 8);
}

static void names_go_both_ways(void **state) {
    (void)state;
    for (int i = 0; i < RF_TYPE_COUNT; i++) {
        enum rf_type type = RF_TYPE_COUNT;
        assert_int_equal(rf_type_parse(rf_type_name((enum rf_type)i), &type), 0);
        assert_int_equal(type, i);
    }
    enum rf_algorithm algorithm;
    assert_int_equal(rf_algorithm_parse("recursive-doubling", &algorithm), 0);
    assert_int_equal(algorithm, RF_ALGORITHM_RECURSIVE_DOUBLING);
    enum rf_coll coll = RF_COLL_RECV;
    assert_int_equal(rf_coll_parse("allreducee", &coll), RF_EINVAL);
    assert_int_equal(coll, RF_COLL_RECV);
    assert_int_equal(rf_type_size((enum rf_type)99), 0);
    assert_false(rf_redop_valid(RF_XOR, RF_F16));
    assert_true(rf_redop_valid(RF_XOR, RF_U8));
}

static void random_streams_are_stable_and_apart(void **state) {
    (void)state;
    struct rf__rng a = rf__rng(1, 2, 3), b = rf__rng(1, 2, 3), c = rf__rng(1, 3, 2);
    assert_int_equal(rf__rng_u64(&a), rf__rng_u64(&b));
    assert_int_not_equal(rf__rng_u64(&a), rf__rng_u64(&c));
    double sum = 0, squares = 0;
    for (int i = 0; i < 100000; i++) {
        double x = (double)rf__rng_normal(&a);
        sum += x;
        squares += x * x;
        assert_true(rf__rng_below(&a, 7) < 7);
        float f = rf__rng_float(&a);
        assert_true(f >= 0 && f < 1);
    }
    assert_true(sum / 1e5 < 0.02 && sum / 1e5 > -0.02);
    assert_true(squares / 1e5 > 0.97 && squares / 1e5 < 1.03);
}

static void the_kth_allocation_can_fail(void **state) {
    (void)state;
    rf__alloc_fail_after(1);
    void *first = rf__alloc(1, 8), *second = rf__alloc(1, 8), *third = rf__alloc(1, 8);
    rf__alloc_fail_after(-1);
    assert_non_null(first);
    assert_null(second);
    assert_non_null(third);
    rf__free(first);
    rf__free(third);
    assert_null(rf__alloc(SIZE_MAX / 2, 4));
}

static void digests_differ_by_one_bit(void **state) {
    unsigned char bytes[1000] = {0};
    (void)state;
    uint64_t before = rf__digest(bytes, sizeof bytes, 0);
    bytes[777] ^= 4;
    assert_int_not_equal(before, rf__digest(bytes, sizeof bytes, 0));
    assert_int_not_equal(rf__digest_mix(1, 2), rf__digest_mix(2, 1));
}

/* Whatever loops are taken: against the plain ones of the library's header, at every kind of
 * length.
 */
static void digests_are_xxh3(void **state) {
    static const size_t lengths[] = {0,     1,     240,   241,   1024,   4096,  8191,
                                     65535, 65536, 65537, 69631, 131072, 300001};
    enum { MOST = 300001 + 3 };
    unsigned char *bytes = malloc(MOST);
    struct rf__digester *digester = rf__digester_create();
    (void)state;
    assert_non_null(bytes);
    assert_non_null(digester);
    for (size_t i = 0; i < MOST; i++) {
        bytes[i] = (unsigned char)(i * 2654435761u >> 13);
    }
    for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++) {
        for (uint64_t seed = 0; seed < 3; seed++) {
            const unsigned char *from = bytes + seed; /* at any address */
            assert_int_equal(rf__digest(from, lengths[k], seed),
                             XXH3_64bits_withSeed(from, lengths[k], seed));
        }
        rf__digester_reset(digester);
        rf__digester_add(digester, bytes, lengths[k] / 3);
        rf__digester_add(digester, bytes + lengths[k] / 3, lengths[k] - lengths[k] / 3);
        assert_int_equal(rf__digester_value(digester), rf__digest(bytes, lengths[k], 0));
    }
    rf__digester_destroy(digester);
    free(bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(errors_read_outwards),
        cmocka_unit_test(every_code_has_its_texts),
        cmocka_unit_test(cursors_are_bounded),
        cmocka_unit_test(names_go_both_ways),
        cmocka_unit_test(random_streams_are_stable_and_apart),
        cmocka_unit_test(the_kth_allocation_can_fail),
        cmocka_unit_test(digests_differ_by_one_bit),
        cmocka_unit_test(digests_are_xxh3),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
