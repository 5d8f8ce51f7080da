/* coll/choose: the library's own table, rules of a table that was read, which of them counts, what
 * a file may say, and what is told about a choice. */
#define FUZZ_TUNING fuzz_tuning
#include "base/mem.h"
#include "base/rng.h"
#include "coll/choose.h"
#include "coll/schedule.h"
#include "fuzz/fuzz_tuning.c"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { KIB = 1024, ROUNDS = 20000 };

static struct rf_tuning table, other;

static struct rf_tuning_rule rule(enum rf_coll coll, int ranks, uint64_t bytes,
                                  enum rf_algorithm algorithm) {
    return (struct rf_tuning_rule){
        .coll = coll, .link = RF_LINK_TCP, .ranks = ranks, .bytes = bytes, .algorithm = algorithm};
}

static void add(enum rf_coll coll, int ranks, uint64_t bytes, enum rf_algorithm algorithm) {
    struct rf_tuning_rule one = rule(coll, ranks, bytes, algorithm);
    assert_int_equal(rf_tuning_add(&table, &one, NULL), 0);
}

static enum rf_algorithm choose(enum rf_coll coll, int size, uint64_t bytes) {
    return rf_tuning_choose(&table, RF_LINK_TCP, coll, size, bytes);
}

/* What the library did before it had a table: written anew, by hand. */
static enum rf_algorithm by_hand(enum rf_coll coll, int size, uint64_t bytes) {
    switch (coll) {
    case RF_COLL_ALLREDUCE:
        if (size <= 16) {
            return bytes <= (size <= 2 ? 512 : 8) * KIB ? RF_ALGORITHM_NAIVE : RF_ALGORITHM_DIRECT;
        }
        return bytes <= 32 * KIB     ? RF_ALGORITHM_RECURSIVE_DOUBLING
               : bytes <= 1024 * KIB ? RF_ALGORITHM_RABENSEIFNER
                                     : RF_ALGORITHM_RING;
    case RF_COLL_REDUCE_SCATTER:
    case RF_COLL_ALL_GATHER:
        return size <= 16 ? RF_ALGORITHM_DIRECT : RF_ALGORITHM_RING;
    case RF_COLL_BROADCAST:
    case RF_COLL_REDUCE:
        return RF_ALGORITHM_TREE;
    case RF_COLL_GATHER:
    case RF_COLL_SCATTER:
        return size <= 8 ? RF_ALGORITHM_NAIVE : RF_ALGORITHM_TREE;
    case RF_COLL_ALL_TO_ALL:
        return RF_ALGORITHM_NAIVE;
    case RF_COLL_BARRIER:
        return RF_ALGORITHM_RECURSIVE_DOUBLING;
    case RF_COLL_SEND:
    case RF_COLL_RECV:
    case RF_COLL_COUNT:
        break;
    }
    return RF_ALGORITHM_AUTO;
}

static void the_own_table_is_what_it_says(void **state) {
    static const uint64_t sizes[] = {
        0, 1, 8192, 8193, 32768, 32769, 1 << 20, (1 << 20) + 1, UINT64_C(1) << 40, UINT64_MAX};
    (void)state;
    for (int coll = 0; coll < RF_COLL_COUNT; coll++) {
        for (int size = 1; size <= RF_MAX_RANKS; size++) {
            for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
                assert_int_equal(
                    rf_tuning_choose(NULL, RF_LINK_TCP, (enum rf_coll)coll, size, sizes[i]),
                    by_hand((enum rf_coll)coll, size, sizes[i]));
                assert_int_equal(
                    rf_tuning_choose(NULL, RF_LINK_SHM, (enum rf_coll)coll, size, sizes[i]),
                    coll < RF_COLL_SEND ? RF_ALGORITHM_SHARED : RF_ALGORITHM_AUTO);
            }
        }
    }
}

static void every_own_rule_obeys_the_rules(void **state) {
    size_t count = 0;
    const struct rf_tuning_rule *rules = rf__default_rules(&count);
    (void)state;
    table = (struct rf_tuning){.count = 0};
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(rf_tuning_add(&table, &rules[i], NULL), 0);
        if (rules[i].ranks <= RF_TUNING_ORDERED_RANKS) {
            assert_true(rf_algorithm_keeps_order(rules[i].coll, rules[i].algorithm));
        }
    }
}

static void the_narrowest_rule_counts(void **state) {
    (void)state;
    table = (struct rf_tuning){.any_order = true};
    add(RF_COLL_ALLREDUCE, 8, UINT64_MAX, RF_ALGORITHM_RING);
    add(RF_COLL_ALLREDUCE, 4, 1000, RF_ALGORITHM_TREE);
    add(RF_COLL_ALLREDUCE, 8, 100, RF_ALGORITHM_DIRECT);
    add(RF_COLL_ALLREDUCE, 4, 10, RF_ALGORITHM_NAIVE);
    const struct {
        int size;
        uint64_t bytes;
        enum rf_algorithm want;
    } cases[] = {
        {1, 0, RF_ALGORITHM_NAIVE},     {4, 10, RF_ALGORITHM_NAIVE},  {4, 11, RF_ALGORITHM_TREE},
        {4, 1000, RF_ALGORITHM_TREE},   {4, 1001, RF_ALGORITHM_RING}, {5, 10, RF_ALGORITHM_DIRECT},
        {8, 100, RF_ALGORITHM_DIRECT},  {8, 101, RF_ALGORITHM_RING},  {9, 10, RF_ALGORITHM_NAIVE},
        {9, 8193, RF_ALGORITHM_DIRECT}, /* the own table */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(choose(RF_COLL_ALLREDUCE, cases[i].size, cases[i].bytes), cases[i].want);
    }
    assert_int_equal(choose(RF_COLL_BROADCAST, 4, 10), RF_ALGORITHM_TREE);
    assert_int_equal(rf_tuning_choose(&table, RF_LINK_SHM, RF_COLL_ALLREDUCE, 4, 10),
                     RF_ALGORITHM_SHARED);
}

/* Rules whose sums have an order of their own, in small groups. */
static void sums_stay_in_rank_order_unless_the_table_says_so(void **state) {
    (void)state;
    table = (struct rf_tuning){.count = 0};
    add(RF_COLL_ALLREDUCE, RF_TUNING_ANY_RANKS, UINT64_MAX, RF_ALGORITHM_RING);
    add(RF_COLL_REDUCE_SCATTER, RF_TUNING_ANY_RANKS, UINT64_MAX, RF_ALGORITHM_RING);
    add(RF_COLL_ALL_GATHER, RF_TUNING_ANY_RANKS, UINT64_MAX, RF_ALGORITHM_RING);
    for (int any = 0; any < 2; any++) {
        table.any_order = any;
        enum rf_algorithm few = any ? RF_ALGORITHM_RING : RF_ALGORITHM_DIRECT;
        assert_int_equal(choose(RF_COLL_ALLREDUCE, 16, 1 << 20), few);
        assert_int_equal(choose(RF_COLL_REDUCE_SCATTER, 2, 4), few);
        assert_int_equal(choose(RF_COLL_ALLREDUCE, 17, 4), RF_ALGORITHM_RING);
        assert_int_equal(choose(RF_COLL_ALL_GATHER, 2, 4), RF_ALGORITHM_RING); /* adds nothing */
    }
}

static void rules_that_cannot_be_are_refused(void **state) {
    struct rf_error err = {0};
    struct rf_tuning_rule one;
    (void)state;
    table = (struct rf_tuning){.count = 0};
    one = rule(RF_COLL_ALL_TO_ALL, 4, 10, RF_ALGORITHM_RING);
    assert_int_equal(rf_tuning_add(&table, &one, &err), RF_EINVAL);
    assert_non_null(strstr(err.text, "ring does not cover all_to_all: naive can"));
    one = rule(RF_COLL_ALLREDUCE, 4, 10, RF_ALGORITHM_SHARED);
    assert_int_equal(rf_tuning_add(&table, &one, &err), RF_EINVAL);
    one.link = RF_LINK_SHM;
    assert_int_equal(rf_tuning_add(&table, &one, &err), 0);
    assert_int_equal(rf_tuning_add(&table, &one, &err), RF_EINVAL); /* twice */
    one.algorithm = RF_ALGORITHM_HIERARCHICAL;
    assert_int_equal(rf_tuning_add(&table, &one, &err), RF_EINVAL);
    one = rule(RF_COLL_SEND, 4, 10, RF_ALGORITHM_NAIVE);
    assert_int_equal(rf_tuning_add(&table, &one, &err), RF_EINVAL);
    one = rule(RF_COLL_ALLREDUCE, 0, 10, RF_ALGORITHM_NAIVE);
    assert_int_equal(rf_tuning_add(&table, &one, &err), RF_EINVAL);
    one = rule(RF_COLL_ALLREDUCE, 4, UINT64_MAX - 1, RF_ALGORITHM_NAIVE);
    assert_int_equal(rf_tuning_add(&table, &one, &err), RF_EINVAL);
    table.count = 0;
    for (int i = 0; i < RF_MAX_TUNING_RULES; i++) {
        add(RF_COLL_ALLREDUCE, 4, (uint64_t)i, RF_ALGORITHM_NAIVE);
    }
    one = rule(RF_COLL_ALLREDUCE, 5, 10, RF_ALGORITHM_NAIVE);
    assert_int_equal(rf_tuning_add(&table, &one, &err), RF_ELIMIT);
}

static void those_that_cover_are_listed(void **state) {
    char names[RF_ALGORITHMS_TEXT];
    (void)state;
    assert_string_equal(rf_algorithms_covering(RF_COLL_ALLREDUCE, names),
                        "naive, reduce_broadcast, ring, direct, recursive_doubling, rabenseifner "
                        "and tree");
    assert_string_equal(rf_algorithms_covering(RF_COLL_BROADCAST, names), "naive and tree");
    assert_string_equal(rf_algorithms_covering(RF_COLL_SEND, names), "none");
}

/* -------- files -------- */

#define HEAD "{\"format\": \"ringfold-tuning\", \"version\": 1"
#define TWO                                                                                        \
    HEAD ", \"machine\": \"a\", \"when\": \"2026-01-02T03:04:05Z\", \"any_order\": true, "         \
         "\"rules\": [{\"collective\": \"allreduce\", \"link\": \"tcp\", \"ranks\": 4, "           \
         "\"bytes\": 65536, \"algorithm\": \"ring\", \"measured_bytes\": 32768, \"us\": 12.5, "    \
         "\"second\": \"direct\", \"second_us\": 13.25}, {\"collective\": \"all_gather\", "        \
         "\"link\": \"shm\", \"algorithm\": \"shared\"}]}"

static void a_table_survives_the_file(void **state) {
    char *text = NULL;
    size_t length = 0;
    (void)state;
    assert_int_equal(rf__tuning_decode(TWO, strlen(TWO), &table, NULL), 0);
    assert_int_equal(table.count, 2);
    assert_true(table.any_order);
    assert_string_equal(table.machine, "a");
    const struct rf_tuning_rule *first = &table.rules[0], *second = &table.rules[1];
    assert_true(first->coll == RF_COLL_ALLREDUCE && first->link == RF_LINK_TCP &&
                first->ranks == 4 && first->bytes == 65536 &&
                first->algorithm == RF_ALGORITHM_RING && first->measured_bytes == 32768 &&
                first->second == RF_ALGORITHM_DIRECT);
    assert_float_equal(first->seconds, 12.5e-6, 1e-12);
    assert_true(second->ranks == RF_TUNING_ANY_RANKS && second->bytes == RF_TUNING_ANY_BYTES &&
                second->seconds == 0);
    assert_int_equal(rf__tuning_encode(&table, &text, &length, NULL), 0);
    assert_int_equal(rf__tuning_decode(text, length, &other, NULL), 0);
    assert_string_equal(other.when, table.when);
    assert_int_equal(other.count, 2);
    for (int i = 0; i < 2; i++) {
        const struct rf_tuning_rule *a = &table.rules[i], *b = &other.rules[i];
        assert_true(a->coll == b->coll && a->link == b->link && a->ranks == b->ranks &&
                    a->bytes == b->bytes && a->algorithm == b->algorithm &&
                    a->measured_bytes == b->measured_bytes && a->second == b->second);
        assert_float_equal(a->seconds, b->seconds, 1e-12);
        assert_float_equal(a->second_seconds, b->second_seconds, 1e-12);
    }
    rf__free(text);
}

static void what_is_wrong_with_a_file_is_said(void **state) {
    const struct {
        const char *text, *said;
    } cases[] = {
        {"", "line 1"},
        {"[]", "no tuning table"},
        {"{}", "no tuning table"},
        {"{\"format\": \"ringfold-tuning\"}", "version 0"},
        {"{\"format\": \"ringfold-tuning\", \"version\": 2}", "version 2"},
        {HEAD "}", "no list"},
        {HEAD ", \"rules\": {}}", "no list"},
        {HEAD ", \"rule\": [], \"rules\": []}", "'rule' is no member"},
        {HEAD ", \"any_order\": 1, \"rules\": []}", "any_order"},
        {HEAD ", \"machine\": \"a\\nb\", \"rules\": []}", "machine"},
        {HEAD ", \"rules\": [1]}", "rule 1: it is no object"},
        {HEAD ", \"rules\": [{}]}", "rule 1: 'collective' is 'missing'"},
        {HEAD ", \"rules\": [{\"collective\": \"allreduce\", \"link\": \"ib\"}]}", "not 'ib'"},
        {HEAD ", \"rules\": [{\"collective\": \"allreduce\", \"link\": \"tcp\", \"ranks\": -1, "
              "\"algorithm\": \"ring\"}]}",
         "'ranks'"},
        {HEAD ", \"rules\": [{\"collective\": \"allreduce\", \"link\": \"tcp\", \"byte\": 1, "
              "\"algorithm\": \"ring\"}]}",
         "'byte' is no member"},
        {HEAD ", \"rules\": [{\"collective\": \"allreduce\", \"link\": \"tcp\", "
              "\"algorithm\": \"auto\"}]}",
         "'auto', which does not exist"},
        {HEAD ", \"rules\": [{\"collective\": \"reduce_scatter\", \"link\": \"tcp\", "
              "\"algorithm\": \"tree\"}]}",
         "rule 1: algorithm tree does not cover reduce_scatter: naive, ring and direct can"},
        {HEAD ", \"rules\": [{\"collective\": \"allreduce\", \"link\": \"tcp\", "
              "\"algorithm\": \"ring\", \"us\": -3}]}",
         "'us'"},
        {HEAD ", \"rules\": [], \"rules\": []}", "duplicate"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct rf_error err = {0};
        int rc = rf__tuning_decode(cases[i].text, strlen(cases[i].text), &table, &err);
        if (rc != RF_EINVAL || !strstr(err.text, cases[i].said)) {
            fail_msg("case %zu: %d, '%s'", i, rc, err.text);
        }
    }
    char *large = calloc(RF_MAX_TUNING_FILE + 1, 1);
    assert_int_equal(rf__tuning_decode(large, RF_MAX_TUNING_FILE + 1, &table, NULL), RF_EINVAL);
    free(large);
}

static void the_digest_tells_choices_apart_and_nothing_else(void **state) {
    (void)state;
    table = (struct rf_tuning){.count = 0};
    assert_int_equal(rf__tuning_digest(NULL), 0);
    assert_int_equal(rf__tuning_digest(&table), 0);
    add(RF_COLL_ALLREDUCE, 4, 10, RF_ALGORITHM_RING);
    add(RF_COLL_ALLREDUCE, 4, 20, RF_ALGORITHM_NAIVE);
    uint64_t digest = rf__tuning_digest(&table);
    other = table;
    other.rules[0] = table.rules[1];
    other.rules[1] = table.rules[0];
    other.rules[1].seconds = 3;
    snprintf(other.machine, sizeof other.machine, "elsewhere");
    assert_true(rf__tuning_digest(&other) == digest);
    other.any_order = true;
    assert_true(rf__tuning_digest(&other) != digest);
    other.any_order = false;
    other.rules[0].bytes = 21;
    assert_true(rf__tuning_digest(&other) != digest);
}

/* Every prefix, and seeded damage. */
static void damaged_files_are_read_safely(void **state) {
    static unsigned char changed[2 * sizeof TWO];
    struct rf__rng rng = rf__rng(7, 8, 9);
    (void)state;
    assert_int_equal(fuzz_tuning((const uint8_t *)TWO, strlen(TWO)), 0);
    for (size_t length = 0; length < strlen(TWO); length++) {
        uint8_t *exact = malloc(length ? length : 1);
        memcpy(exact, TWO, length);
        assert_int_equal(rf__tuning_decode(exact, length, &table, NULL), RF_EINVAL);
        free(exact);
    }
    for (int round = 0; round < ROUNDS; round++) {
        static const char likely[] = "0123456789-{}[]\",:.e ";
        size_t count = strlen(TWO);
        memcpy(changed, TWO, count);
        for (uint64_t k = 1 + rf__rng_below(&rng, 3); k > 0; k--) {
            size_t at = rf__rng_below(&rng, count);
            size_t piece = 1 + rf__rng_below(&rng, count - at < 40 ? count - at : 40);
            switch (rf__rng_below(&rng, 4)) {
            case 0:
                changed[at] = (unsigned char)rf__rng_u64(&rng);
                break;
            case 1:
                changed[at] = (unsigned char)likely[rf__rng_below(&rng, sizeof likely - 1)];
                break;
            case 2:
                memmove(changed + at, changed + at + piece, count - at - piece);
                count -= piece < count - 1 ? piece : 0;
                break;
            default:
                if (count + piece <= sizeof changed) {
                    memmove(changed + at + piece, changed + at, count - at);
                    count += piece;
                }
                break;
            }
        }
        uint8_t *exact = malloc(count);
        memcpy(exact, changed, count);
        assert_int_equal(fuzz_tuning(exact, count), 0);
        free(exact);
    }
}

/* -------- what is told -------- */

static void a_choice_is_told_with_its_reason(void **state) {
    char line[256];
    (void)state;
    rf__choice_text(line, sizeof line, NULL, "", RF_LINK_TCP, RF_COLL_ALLREDUCE, 4, 65536,
                    RF_ALGORITHM_AUTO, RF_ALGORITHM_DIRECT, "levels");
    assert_string_equal(line, "allreduce of 64 KiB on 4 ranks over tcp: direct (table: default, up "
                              "to 16 ranks, above 8 KiB)");
    rf__choice_text(line, sizeof line, NULL, "", RF_LINK_TCP, RF_COLL_ALLREDUCE, 4, 100,
                    RF_ALGORITHM_AUTO, RF_ALGORITHM_NAIVE, "levels");
    assert_string_equal(line, "allreduce of 100 B on 4 ranks over tcp: naive (table: default, up "
                              "to 16 ranks, up to 8 KiB)");
    rf__choice_text(line, sizeof line, NULL, "", RF_LINK_TCP, RF_COLL_ALLREDUCE, 4, 100,
                    RF_ALGORITHM_RING, RF_ALGORITHM_RING, "levels");
    assert_string_equal(line, "allreduce of 100 B on 4 ranks over tcp: ring (asked for)");
    rf__choice_text(line, sizeof line, NULL, "", RF_LINK_SHM, RF_COLL_BARRIER, 2, 0,
                    RF_ALGORITHM_AUTO, RF_ALGORITHM_SHARED, "levels");
    assert_string_equal(line, "barrier on 2 ranks over shm: shared (table: default)");
    rf__choice_text(line, sizeof line, NULL, "", RF_LINK_SHM, RF_COLL_GATHER, 2, 1 << 20,
                    RF_ALGORITHM_AUTO, RF_ALGORITHM_NAIVE, "levels");
    assert_non_null(strstr(line, "gather of 1 MiB on 2 ranks over shm: naive (by messages: "));
    rf__choice_text(line, sizeof line, NULL, "", RF_LINK_TCP, RF_COLL_ALLREDUCE, 4, 1 << 20,
                    RF_ALGORITHM_AUTO, RF_ALGORITHM_HIERARCHICAL, "levels");
    assert_string_equal(line, "allreduce of 1 MiB on 4 ranks over tcp: hierarchical (levels)");
    table = (struct rf_tuning){.any_order = true};
    add(RF_COLL_ALLREDUCE, 4, 65536, RF_ALGORITHM_HIERARCHICAL);
    rf__choice_text(line, sizeof line, &table, "t.json", RF_LINK_TCP, RF_COLL_ALLREDUCE, 4, 65536,
                    RF_ALGORITHM_AUTO, RF_ALGORITHM_DIRECT, "levels");
    assert_string_equal(line, "allreduce of 64 KiB on 4 ranks over tcp: direct (table: default, up "
                              "to 16 ranks, above 8 KiB)");
    rf__choice_text(line, sizeof line, &table, "t.json", RF_LINK_TCP, RF_COLL_ALLREDUCE, 4, 65536,
                    RF_ALGORITHM_AUTO, RF_ALGORITHM_HIERARCHICAL, "levels");
    assert_string_equal(line, "allreduce of 64 KiB on 4 ranks over tcp: hierarchical (table: "
                              "t.json, up to 4 ranks, up to 64 KiB)");
    table = (struct rf_tuning){.any_order = true};
    add(RF_COLL_ALLREDUCE, 4, 65536, RF_ALGORITHM_RING);
    rf__choice_text(line, sizeof line, &table, "t.json", RF_LINK_TCP, RF_COLL_ALLREDUCE, 4, 65536,
                    RF_ALGORITHM_AUTO, RF_ALGORITHM_RING, "levels");
    assert_string_equal(line, "allreduce of 64 KiB on 4 ranks over tcp: ring (table: t.json, up to "
                              "4 ranks, up to 64 KiB)");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_own_table_is_what_it_says),
        cmocka_unit_test(every_own_rule_obeys_the_rules),
        cmocka_unit_test(the_narrowest_rule_counts),
        cmocka_unit_test(sums_stay_in_rank_order_unless_the_table_says_so),
        cmocka_unit_test(rules_that_cannot_be_are_refused),
        cmocka_unit_test(those_that_cover_are_listed),
        cmocka_unit_test(a_table_survives_the_file),
        cmocka_unit_test(what_is_wrong_with_a_file_is_said),
        cmocka_unit_test(the_digest_tells_choices_apart_and_nothing_else),
        cmocka_unit_test(damaged_files_are_read_safely),
        cmocka_unit_test(a_choice_is_told_with_its_reason),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
