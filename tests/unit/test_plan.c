/* ringfold/plan.h: counts, the time of the model against what can be worked out by hand, messages,
 * pictures, limits. */
#include "base/mem.h"

#include <ringfold/plan.h>

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static struct rf_plan *plan_of(enum rf_coll coll, enum rf_algorithm algorithm, int size,
                               size_t count) {
    struct rf_plan_options options;
    struct rf_plan *plan;
    struct rf_error err;

    rf_plan_options_init(&options);
    options.coll = coll;
    options.algorithm = algorithm;
    options.size = size;
    options.count = count;
    options.latency_s = 1;
    options.bytes_per_s = 4; /* an element takes a second */
    options.fold_bytes_per_s = 0;
    if (rf_plan_create(&options, &plan, &err) != 0) {
        fail_msg("%s", err.text);
    }
    return plan;
}

static struct rf_plan_totals totals_of(enum rf_coll coll, enum rf_algorithm algorithm, int size,
                                       size_t count) {
    struct rf_plan *plan = plan_of(coll, algorithm, size, count);
    struct rf_plan_totals totals;

    rf_plan_get_totals(plan, &totals);
    rf_plan_destroy(plan);
    return totals;
}

static void a_hundred_workers(void **state) {
    (void)state;
    struct rf_plan_totals naive = totals_of(RF_COLL_ALLREDUCE, RF_ALGORITHM_NAIVE, 100, 1600);
    struct rf_plan_totals ring = totals_of(RF_COLL_ALLREDUCE, RF_ALGORITHM_RING, 100, 1600);
    assert_int_equal(naive.messages, 9900);
    assert_int_equal(naive.max_messages, 99);
    assert_int_equal(naive.steps, 1);
    assert_int_equal(naive.bytes, 9900 * 6400);
    assert_int_equal(ring.messages, 19800);
    assert_int_equal(ring.max_messages, 198);
    assert_int_equal(ring.steps, 198);
    assert_int_equal(ring.bytes, 19800 * 64);
    assert_int_equal(ring.max_bytes_sent, 198 * 64);
    assert_int_equal(ring.max_bytes_received, 198 * 64);
}

static void assert_time(enum rf_coll coll, enum rf_algorithm algorithm, int size, size_t count,
                        double expected) {
    struct rf_plan_totals totals = totals_of(coll, algorithm, size, count);
    if (fabs(totals.time_s - expected) > 1e-9 * expected) {
        fail_msg("%s by %s, %d ranks: %.9g s, not %.9g s", rf_coll_name(coll),
                 rf_algorithm_name(algorithm), size, totals.time_s, expected);
    }
    assert_true(totals.lower_bound_s <= totals.time_s);
}

/* Latency 1 s, an element 1 s. */
static void times_are_those_of_the_books(void **state) {
    (void)state;
    for (int n = 2; n <= 64; n *= 2) {
        double log = log2(n), s = 64 * n, slice = 64;
        size_t count = (size_t)s;
        enum rf_coll all = RF_COLL_ALLREDUCE;
        assert_time(all, RF_ALGORITHM_NAIVE, n, count, (n - 1) * (1 + s));
        assert_time(all, RF_ALGORITHM_REDUCE_BROADCAST, n, count, 2 * (n - 1) * (1 + s));
        assert_time(all, RF_ALGORITHM_RING, n, count, 2 * (n - 1) * (1 + slice));
        assert_time(all, RF_ALGORITHM_DIRECT, n, count, 2 * (n - 1) * (1 + slice));
        assert_time(all, RF_ALGORITHM_RECURSIVE_DOUBLING, n, count, log * (1 + s));
        assert_time(all, RF_ALGORITHM_RABENSEIFNER, n, count, 2 * log + 2 * (n - 1) * slice);
        assert_time(all, RF_ALGORITHM_TREE, n, count, 2 * log * (1 + s));
        assert_time(RF_COLL_BROADCAST, RF_ALGORITHM_NAIVE, n, 10, (n - 1) * 11.0);
        assert_time(RF_COLL_BROADCAST, RF_ALGORITHM_TREE, n, 10, log * 11.0);
        assert_time(RF_COLL_BARRIER, RF_ALGORITHM_RECURSIVE_DOUBLING, n, 0, log);
        assert_time(RF_COLL_ALL_GATHER, RF_ALGORITHM_RING, n, 10, (n - 1) * 11.0);
        assert_time(RF_COLL_GATHER, RF_ALGORITHM_TREE, n, 10, log + (n - 1) * 10.0);
    }
}

static void folding_takes_time(void **state) {
    struct rf_plan_options options;
    struct rf_plan_totals totals;
    struct rf_plan *plan;
    (void)state;
    rf_plan_options_init(&options);
    options.count = 64;
    options.latency_s = 0;
    options.bytes_per_s = 64; /* a slice of 16 elements a second */
    options.fold_bytes_per_s = 32;
    assert_int_equal(rf_plan_create(&options, &plan, NULL), 0);
    rf_plan_get_totals(plan, &totals);
    assert_true(fabs(totals.time_s - (3 * (1 + 2) + 3 * 1)) < 1e-9);
    assert_true(fabs(totals.lower_bound_s - 6) < 1e-9); /* 3/4 x 256 bytes / 32; and 6 to send */
    rf_plan_destroy(plan);
}

static void nothing_is_below_the_lower_bound(void **state) {
    (void)state;
    for (int coll = 0; coll < RF_COLL_COUNT; coll++) {
        for (int algorithm = 0; algorithm < RF_ALGORITHM_COUNT; algorithm++) {
            for (int n = 1; n <= 40; n++) {
                struct rf_plan_options o;
                struct rf_plan *plan;
                rf_plan_options_init(&o);
                o.coll = (enum rf_coll)coll;
                o.algorithm = (enum rf_algorithm)algorithm;
                o.size = n;
                o.root = n / 3;
                o.count = coll == RF_COLL_BARRIER ? 0 : (size_t)(n * 37 % 1000);
                if (rf_plan_create(&o, &plan, NULL) == RF_EUNSUPPORTED) {
                    continue;
                }
                struct rf_plan_totals t;
                struct rf_plan_message m;
                uint64_t messages = 0, sent = 0, received = 0, index = 0, bytes = 0;
                double before = 0;
                rf_plan_get_totals(plan, &t);
                assert_true(t.time_s >= t.lower_bound_s * (1 - 1e-12));
                for (int r = 0; r < n; r++) {
                    uint64_t one, out, in;
                    rf_plan_rank(plan, r, &one, &out, &in);
                    messages += one;
                    sent += out;
                    received += in;
                }
                assert_true(messages == t.messages && sent == t.bytes && received == t.bytes);
                for (; rf_plan_get_message(plan, index, &m); index++) {
                    assert_true(m.start_s >= before && m.end_s > m.start_s && m.end_s <= t.time_s);
                    assert_true(m.from != m.to && m.from < n && m.to < n);
                    before = m.start_s;
                    bytes += m.bytes;
                }
                assert_true(index == t.messages && bytes == t.bytes);
                rf_plan_destroy(plan);
            }
        }
    }
}

/* The ring of three: who sends which slice to whom, in the order of the model. */
static void messages_are_told_one_by_one(void **state) {
    struct rf_plan *plan = plan_of(RF_COLL_ALLREDUCE, RF_ALGORITHM_RING, 3, 48);
    struct rf_plan_message m;
    (void)state;
    for (int i = 0; i < 12; i++) {
        int step = i / 3, from = i % 3;
        int slice = step < 2 ? (from - 1 - step + 3) % 3 : (from - (step - 2) + 3) % 3;
        assert_true(rf_plan_get_message(plan, (uint64_t)i, &m));
        assert_int_equal(m.step, step);
        assert_int_equal(m.from, from);
        assert_int_equal(m.to, (from + 1) % 3);
        assert_int_equal(m.offset, slice * 64);
        assert_int_equal(m.bytes, 64);
        assert_int_equal(m.fold, step < 2);
        assert_true(m.start_s == step * 17.0 && m.end_s == (step + 1) * 17.0);
    }
    assert_false(rf_plan_get_message(plan, 12, &m));
    rf_plan_destroy(plan);
}

static void large_plans_are_only_counted(void **state) {
    struct rf_plan *plan = plan_of(RF_COLL_ALLREDUCE, RF_ALGORITHM_NAIVE, 2100, 1);
    struct rf_plan_totals totals;
    struct rf_plan_message message;
    char *svg;
    size_t bytes;
    (void)state;
    rf_plan_get_totals(plan, &totals);
    assert_int_equal(totals.messages, 2100 * 2099);
    assert_true(totals.messages > RF_PLAN_MAX_MODELLED);
    assert_true(totals.time_s < 0 && totals.lower_bound_s > 0);
    assert_false(rf_plan_get_message(plan, 0, &message));
    assert_int_equal(rf_plan_svg(plan, &svg, &bytes, NULL), RF_ELIMIT);
    assert_null(svg);
    rf_plan_destroy(plan);
}

static int occurrences(const char *text, const char *word) {
    int count = 0;
    for (const char *at = text; (at = strstr(at, word)) != NULL; at++) {
        count++;
    }
    return count;
}

static void pictures(void **state) {
    char *svg;
    size_t bytes;
    (void)state;
    struct rf_plan *plan = plan_of(RF_COLL_ALLREDUCE, RF_ALGORITHM_RING, 4, 1 << 20);
    assert_int_equal(rf_plan_svg(plan, &svg, &bytes, NULL), 0);
    assert_int_equal(strlen(svg), bytes);
    assert_int_equal(strncmp(svg, "<svg ", 5), 0);
    assert_string_equal(svg + bytes - 7, "</svg>\n");
    assert_int_equal(occurrences(svg, "<g "), occurrences(svg, "</g>"));
    assert_int_equal(occurrences(svg, ">step "), 6);
    assert_int_equal(occurrences(svg, "4 messages of 1 MiB, added up"), 3);
    assert_int_equal(occurrences(svg, "4 messages of 1 MiB, kept"), 3);
    assert_int_equal(occurrences(svg, "stroke-linecap"), 24); /* one arrow each */
    assert_null(strstr(svg, "nan"));
    rf_plan_svg_free(svg);
    rf_plan_destroy(plan);

    plan = plan_of(RF_COLL_ALLREDUCE, RF_ALGORITHM_RING, RF_PLAN_MAX_PICTURE_RANKS, 100);
    assert_int_equal(rf_plan_svg(plan, &svg, &bytes, NULL), 0);
    rf_plan_svg_free(svg);
    rf_plan_destroy(plan);
    plan = plan_of(RF_COLL_ALLREDUCE, RF_ALGORITHM_RING, RF_PLAN_MAX_PICTURE_RANKS + 1, 100);
    struct rf_error err;
    assert_int_equal(rf_plan_svg(plan, &svg, &bytes, &err), RF_ELIMIT);
    assert_non_null(strstr(err.text, "25 ranks"));
    rf_plan_destroy(plan);
}

static void every_plan_can_be_drawn(void **state) {
    (void)state;
    for (int coll = 0; coll < RF_COLL_COUNT; coll++) {
        for (int algorithm = 0; algorithm < RF_ALGORITHM_COUNT; algorithm++) {
            for (int n = 1; n <= RF_PLAN_MAX_PICTURE_RANKS; n += n < 6 ? 1 : 6) {
                struct rf_plan_options o;
                struct rf_plan *plan;
                char *svg;
                size_t bytes;
                rf_plan_options_init(&o);
                o.coll = (enum rf_coll)coll;
                o.algorithm = (enum rf_algorithm)algorithm;
                o.size = n;
                o.count = (size_t)n * 7;
                if (rf_plan_create(&o, &plan, NULL) == 0) {
                    assert_int_equal(rf_plan_svg(plan, &svg, &bytes, NULL), 0);
                    assert_null(strstr(svg, "nan"));
                    rf_plan_svg_free(svg);
                    rf_plan_destroy(plan);
                }
            }
        }
    }
}

static void assert_refused(const struct rf_plan_options *options, int code, const char *words) {
    struct rf_plan *plan = NULL;
    struct rf_error err = {0};
    assert_int_equal(rf_plan_create(options, &plan, &err), code);
    assert_null(plan);
    assert_int_equal(err.code, code);
    if (!strstr(err.text, words)) {
        fail_msg("'%s' does not say '%s'", err.text, words);
    }
}

static void what_cannot_be_planned_is_refused(void **state) {
    struct rf_plan_options good, o;
    (void)state;
    rf_plan_options_init(&good);
    o = good;
    o.size = 0;
    assert_refused(&o, RF_EINVAL, "size");
    o.size = RF_PLAN_MAX_RANKS + 1;
    assert_refused(&o, RF_ELIMIT, "16385 ranks");
    o = good;
    o.coll = RF_COLL_SEND;
    assert_refused(&o, RF_EUNSUPPORTED, "send by 'ring'");
    o = good;
    o.algorithm = RF_ALGORITHM_AUTO;
    assert_refused(&o, RF_EUNSUPPORTED, "by 'auto'");
    o = good;
    o.root = 4;
    assert_refused(&o, RF_EINVAL, "root 4");
    o = good;
    o.bytes_per_s = 0;
    assert_refused(&o, RF_EINVAL, "rates");
    o = good;
    o.latency_s = NAN;
    assert_refused(&o, RF_EINVAL, "latency");
    o = good;
    o.count = SIZE_MAX / 8;
    assert_refused(&o, RF_ELIMIT, "more bytes than can be counted");
}

static void memory_that_runs_out_is_reported(void **state) {
    struct rf_plan_options options;
    int rc = RF_ENOMEM;
    long k = 0;
    (void)state;
    rf_plan_options_init(&options);
    options.algorithm = RF_ALGORITHM_DIRECT;
    options.size = 16;
    for (; rc != 0; k++) {
        struct rf_plan *plan = NULL;
        struct rf_error err = {0};
        char *svg = NULL;
        size_t bytes;
        rf__alloc_fail_after(k);
        rc = rf_plan_create(&options, &plan, &err);
        rc = rc ? rc : rf_plan_svg(plan, &svg, &bytes, &err);
        rf__alloc_fail_after(-1);
        assert_true(rc == 0 || (rc == RF_ENOMEM && err.code == RF_ENOMEM && !svg));
        rf_plan_svg_free(svg);
        rf_plan_destroy(plan);
    }
    assert_true(k > 20);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_hundred_workers),
        cmocka_unit_test(times_are_those_of_the_books),
        cmocka_unit_test(folding_takes_time),
        cmocka_unit_test(nothing_is_below_the_lower_bound),
        cmocka_unit_test(messages_are_told_one_by_one),
        cmocka_unit_test(large_plans_are_only_counted),
        cmocka_unit_test(pictures),
        cmocka_unit_test(every_plan_can_be_drawn),
        cmocka_unit_test(what_cannot_be_planned_is_refused),
        cmocka_unit_test(memory_that_runs_out_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
