/* member/slow: who is told of, and who is to be put out, from rows of reports. */
#include "member/slow.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

enum { MOST = 8 };

struct watch {
    struct rf__slow slow;
    struct rf__slow_record records[2 * MOST];
    double scratch[MOST];
    struct rf__step_report reports[MOST];
    int ids[MOST], count;
    struct rf__slow_news news;
};

static void open_watch(struct watch *w, int count) {
    memset(w, 0, sizeof *w);
    w->slow = (struct rf__slow){
        .record = w->records, .scratch = w->scratch, .capacity = MOST, .evict = 10, .window = 3};
    w->count = count;
    for (int r = 0; r < count; r++) {
        w->ids[r] = 10 + r;
        w->reports[r] = (struct rf__step_report){.healed = true,
                                                 .shards = 2,
                                                 .compute_s = 2,
                                                 .comm_s = 1,
                                                 .link_peer = -1,
                                                 .put_out = -1};
    }
    for (int i = 0; i < RF__SLOW_WARM_UP; i++) {
        rf__slow_observe(&w->slow, w->reports, w->ids, w->count, &w->news);
    }
}

static const struct rf__slow_news *observe(struct watch *w) {
    rf__slow_observe(&w->slow, w->reports, w->ids, w->count, &w->news);
    return &w->news;
}

static void equal_members_are_no_news(void **state) {
    (void)state;
    for (int count = 1; count <= MOST; count++) {
        struct watch w;
        open_watch(&w, count);
        for (int i = 0; i < 5; i++) {
            assert_int_equal(observe(&w)->told, -1);
            assert_int_equal(w.news.put_out, -1);
        }
    }
}

/* Told once after two units in a row; again only after it has been faster. */
static void an_onset_is_told_once(void **state) {
    (void)state;
    for (int count = 2; count <= MOST; count++) {
        for (int who = 0; who < count; who++) {
            struct watch w;
            open_watch(&w, count);
            w.reports[who].compute_s = 5;
            assert_int_equal(observe(&w)->told, -1);
            assert_int_equal(observe(&w)->told, who);
            assert_int_equal(w.news.part, RF__SLOW_PROCESSOR);
            assert_true(w.news.ratio == 2.5);
            assert_int_equal(observe(&w)->told, -1);
            w.reports[who].compute_s = 3;
            assert_int_equal(observe(&w)->told, -1);
            w.reports[who].compute_s = 4;
            assert_int_equal(observe(&w)->told, -1);
            assert_int_equal(observe(&w)->told, who);
            assert_int_equal(w.news.put_out, -1); /* far from ten times */
        }
    }
}

/* What counts is the time for a shard: half the shards in half the time is not fast. */
static void shares_of_different_size_are_compared_by_shard(void **state) {
    struct watch w;
    (void)state;
    open_watch(&w, 3);
    w.reports[0].shards = 1;
    w.reports[0].compute_s = 1;
    w.reports[1].shards = 8;
    w.reports[1].compute_s = 8;
    assert_int_equal(observe(&w)->told, -1);
    assert_int_equal(observe(&w)->told, -1);
    w.reports[2].shards = 0; /* had nothing to do: says nothing */
    w.reports[2].compute_s = 99;
    assert_int_equal(observe(&w)->told, -1);
    assert_int_equal(observe(&w)->told, -1);
}

static void the_slowest_is_put_out_after_the_window(void **state) {
    struct watch w;
    (void)state;
    open_watch(&w, 4);
    w.reports[2].compute_s = 20;
    assert_int_equal(observe(&w)->put_out, -1);
    assert_int_equal(observe(&w)->put_out, -1);
    assert_int_equal(observe(&w)->put_out, 12);
    w.reports[2].compute_s = 19;
    assert_int_equal(observe(&w)->put_out, -1);
    w.reports[2].compute_s = 20;
    assert_int_equal(observe(&w)->put_out, -1); /* a new row */
    w.slow.evict = 0;
    for (int i = 0; i < 9; i++) {
        assert_int_equal(observe(&w)->put_out, -1);
    }
}

/* Ranks move as others leave: the record is the id's. */
/* Ten times slower, but in units of a few milliseconds: not before they have taken long enough. */
static void short_units_say_little(void **state) {
    struct watch w;
    int units = 0;
    (void)state;

    open_watch(&w, 4);
    for (int r = 0; r < 4; r++) {
        w.reports[r].compute_s = r == 2 ? 0.05 : 0.004;
    }
    while (observe(&w)->put_out < 0) {
        units++;
        assert_true(units < 100);
    }
    assert_int_equal(w.news.put_out, 12);
    assert_in_range(units, 5, 6); /* 0.05 s each, and 0.3 s are asked for */
}

static void records_follow_the_ids(void **state) {
    struct watch w;
    (void)state;
    open_watch(&w, 4);
    w.reports[3].compute_s = 20;
    observe(&w);
    observe(&w);
    w.count = 3; /* 11 has left, 13 is rank 2 now */
    w.ids[1] = 12;
    w.ids[2] = 13;
    w.reports[2].compute_s = 20;
    assert_int_equal(observe(&w)->put_out, 13);
    w.ids[0] = 13; /* in another order, with a newcomer */
    w.ids[1] = 11;
    w.ids[2] = 12;
    w.reports[2].compute_s = 2;
    w.reports[0].compute_s = 20;
    assert_int_equal(observe(&w)->put_out, 13);
    w.ids[0] = 14; /* another one is as slow: from the start, once it is warm */
    for (int i = 0; i < RF__SLOW_WARM_UP; i++) {
        assert_int_equal(observe(&w)->put_out, -1);
    }
    assert_int_equal(observe(&w)->put_out, -1);
    assert_int_equal(observe(&w)->put_out, -1);
    assert_int_equal(observe(&w)->put_out, 14);
}

static void set_link(struct watch *w, int rank, int peer, double rate) {
    w->reports[rank].link_peer = peer;
    w->reports[rank].link_bytes_s = rate;
}

/* In a ring each hears one neighbour: who is slow in both directions is at the end of two slow
 * links. */
static void a_slow_link_is_blamed_on_the_end_that_has_two(void **state) {
    (void)state;
    for (int who = 0; who < 5; who++) {
        struct watch w;
        open_watch(&w, 5);
        for (int r = 0; r < 5; r++) {
            int peer = (r + 4) % 5;
            set_link(&w, r, peer, r == who || peer == who ? 1e6 : 1e9);
        }
        assert_int_equal(observe(&w)->told, -1);
        assert_int_equal(observe(&w)->told, who);
        assert_int_equal(w.news.part, RF__SLOW_LINK);
        assert_true(w.news.ratio == 1000);
        assert_int_equal(observe(&w)->put_out, 10 + who);
    }
}

/* In one direction only, it is the sender's. */
static void a_link_slow_in_one_direction_is_the_sender_s(void **state) {
    struct watch w;
    (void)state;
    open_watch(&w, 4);
    for (int r = 0; r < 4; r++) {
        set_link(&w, r, (r + 3) % 4, r == 2 ? 1e8 : 1e9);
    }
    observe(&w);
    assert_int_equal(observe(&w)->told, 1);
    assert_int_equal(w.news.part, RF__SLOW_LINK);
    set_link(&w, 2, 9, 1e8); /* a rank that is not there says nothing */
    assert_int_equal(observe(&w)->told, -1);
    for (int r = 0; r < 4; r++) {
        set_link(&w, r, -1, 0);
    }
    assert_int_equal(observe(&w)->told, -1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_members_are_no_news),
        cmocka_unit_test(an_onset_is_told_once),
        cmocka_unit_test(shares_of_different_size_are_compared_by_shard),
        cmocka_unit_test(the_slowest_is_put_out_after_the_window),
        cmocka_unit_test(short_units_say_little),
        cmocka_unit_test(records_follow_the_ids),
        cmocka_unit_test(a_slow_link_is_blamed_on_the_end_that_has_two),
        cmocka_unit_test(a_link_slow_in_one_direction_is_the_sender_s),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
