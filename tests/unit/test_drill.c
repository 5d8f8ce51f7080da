/* The books of `ringfold drill`, over lists of events made by hand. */
#include "cli/drill_score.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static int set_up(void **state) {
    struct drill_score *score = malloc(sizeof *score);
    if (score) {
        drill_score_init(score);
    }
    *state = score;
    return score ? 0 : -1;
}

static int tear_down(void **state) {
    drill_score_free(*state);
    free(*state);
    return 0;
}

static void take(struct drill_score *score, struct drill_event event) {
    assert_int_equal(drill_score_event(score, &event), 0);
}

static void start(struct drill_score *score, double time, int id, int pid) {
    take(score, (struct drill_event){
                    .kind = DRILL_EVENT_WORKER, .time = time, .id = id, .peer = -1, .pid = pid});
}

static void end(struct drill_score *score, double time, int id, int pid, bool well) {
    take(score, (struct drill_event){.kind = DRILL_EVENT_EXIT,
                                     .time = time,
                                     .id = id,
                                     .peer = -1,
                                     .pid = pid,
                                     .well = well});
}

static void commit(struct drill_score *score, double time, int id, uint64_t generation,
                   uint64_t unit) {
    take(score, (struct drill_event){.kind = DRILL_EVENT_COMMIT,
                                     .time = time,
                                     .id = id,
                                     .peer = -1,
                                     .generation = generation,
                                     .unit = unit,
                                     .step = unit + 1,
                                     .digest = 1000 + unit});
}

static void tell(struct drill_score *score, enum drill_event_kind kind, double time, int id,
                 uint64_t generation, int peer) {
    take(score, (struct drill_event){
                    .kind = kind, .time = time, .id = id, .generation = generation, .peer = peer});
}

static struct drill_history history(const struct drill_score *score) {
    struct drill_history out;
    drill_score_history(score, &out);
    return out;
}

static struct drill_times times(const struct drill_score *score, enum drill_kind kind) {
    struct drill_times out;
    assert_int_equal(drill_score_times(score, kind, &out), 0);
    return out;
}

/* Workers 0, 1, 2 commit units 0 … count - 1, one a second from time 100 on. */
static void begin(struct drill_score *score, int workers, uint64_t count) {
    for (int id = 0; id < workers; id++) {
        start(score, 90, id, 500 + id);
    }
    for (uint64_t unit = 0; unit < count; unit++) {
        for (int id = 0; id < workers; id++) {
            commit(score, 100 + (double)unit, id, 1, unit);
        }
    }
}

static void percentiles(void **state) {
    double values[200];
    (void)state;
    assert_int_equal(drill_series_of(values, 0).count, 0);
    values[0] = 7;
    struct drill_series one = drill_series_of(values, 1);
    assert_true(one.median == 7 && one.p99 == 7);
    double four[] = {4, 1, 3, 2};
    struct drill_series even = drill_series_of(four, 4);
    assert_true(even.median == 2.5 && even.p99 == 4);
    for (int i = 0; i < 100; i++) {
        values[i] = 100 - i; /* 100 … 1 */
    }
    struct drill_series hundred = drill_series_of(values, 100);
    assert_true(hundred.median == 50.5 && hundred.p99 == 99);
    for (int i = 0; i < 101; i++) {
        values[i] = i + 1;
    }
    struct drill_series odd = drill_series_of(values, 101);
    assert_true(odd.median == 51 && odd.p99 == 100);
}

static void names(void **state) {
    enum drill_kind kind = DRILL_KINDS;
    (void)state;
    for (int i = 0; i < DRILL_KINDS; i++) {
        const char *name = drill_kind_name((enum drill_kind)i);
        assert_int_equal(drill_kind_parse(name, strlen(name), &kind), 0);
        assert_int_equal(kind, i);
    }
    assert_int_equal(drill_kind_parse("killed", 4, &kind), 0);
    assert_int_equal(kind, DRILL_KILL);
    assert_int_equal(drill_kind_parse("kil", 3, &kind), RF_EINVAL);
    assert_int_equal(drill_kind_parse("", 0, &kind), RF_EINVAL);
    assert_int_equal(kind, DRILL_KILL);
}

static void a_quiet_run(void **state) {
    struct drill_score *score = *state;
    int culprit;
    begin(score, 3, 11);
    struct drill_history all = history(score);
    assert_int_equal(all.units, 11);
    assert_int_equal(all.lost, 0);
    assert_int_equal(score->step, 11);
    assert_true(drill_score_participation(score, 3) == 1);
    assert_true(drill_score_participation(score, 4) == 0.75);
    assert_true(drill_score_throughput(score) == 1);
    assert_true(drill_score_is_settled(score, 10, &culprit));
    assert_false(drill_score_is_settled(score, 11, &culprit));
    assert_int_equal(culprit, 0);
}

static void a_killed_worker_comes_back(void **state) {
    struct drill_score *score = *state;
    size_t fault;
    int ids[DRILL_MAX_IDS], culprit;
    begin(score, 3, 3); /* until 102 */
    assert_int_equal(drill_score_healthy(score, ids), 3);
    assert_int_equal(drill_score_strike(score, DRILL_KILL, 1, 102.5, &fault), 0);
    assert_int_equal(drill_score_healthy(score, ids), 2);
    assert_int_equal(ids[1], 2);
    end(score, 102.6, 1, 501, false);
    tell(score, DRILL_EVENT_REVOKE, 102.75, 0, 1, 1);
    tell(score, DRILL_EVENT_REVOKE, 102.8, 2, 1, 1);
    tell(score, DRILL_EVENT_FORM, 103, 0, 2, -1);
    commit(score, 103.5, 0, 2, 3);
    commit(score, 103.5, 2, 2, 3);
    start(score, 104, 1, 601);
    assert_false(drill_score_is_healthy(score, 1));
    tell(score, DRILL_EVENT_HEAL, 104.5, 1, 3, -1);
    assert_false(score->faults[fault].done);
    for (int id = 0; id < 3; id++) {
        commit(score, 105, id, 3, 4);
    }
    assert_true(score->faults[fault].done);
    assert_true(drill_score_is_healthy(score, 1));
    for (int id = 0; id < 3; id++) {
        commit(score, 106, id, 3, 5);
    }
    struct drill_times kill = times(score, DRILL_KILL);
    assert_int_equal(kill.faults, 1);
    assert_int_equal(kill.detect.count, 1);
    assert_true(kill.detect.median == 250);
    assert_true(kill.next_commit.median == 1000);
    assert_true(kill.rejoin.median == 1000);
    assert_int_equal(times(score, DRILL_FREEZE).faults, 0);
    assert_int_equal(times(score, DRILL_KINDS).faults, 1);
    assert_int_equal(history(score).lost, 0);
    /* 6 s each, of which worker 1 took part from 100 to 102 and from 105 to 106. */
    assert_true(drill_score_participation(score, 3) == (6 + 6 + 3) / 18.0);
    assert_true(drill_score_is_settled(score, 5, &culprit));
    assert_int_equal(culprit, -1);
}

/* Its process goes on: what it committed before it was frozen is not yet its return. */
static void a_frozen_worker_comes_back(void **state) {
    struct drill_score *score = *state;
    size_t fault;
    begin(score, 3, 3);
    assert_int_equal(drill_score_strike(score, DRILL_FREEZE, 2, 102.5, &fault), 0);
    commit(score, 102.6, 2, 1, 3); /* was under way */
    commit(score, 102.6, 0, 1, 3);
    commit(score, 102.6, 1, 1, 3);
    assert_false(score->faults[fault].done);
    tell(score, DRILL_EVENT_REVOKE, 105.5, 1, 1, 2);
    commit(score, 106, 0, 2, 4);
    commit(score, 106, 1, 2, 4);
    drill_score_over(score, fault, 107.5);
    tell(score, DRILL_EVENT_REVOKE, 107.6, 2, 1, -1);
    tell(score, DRILL_EVENT_HEAL, 108, 2, 3, -1);
    for (int id = 0; id < 3; id++) {
        commit(score, 109.5, id, 3, 5);
    }
    struct drill_times freeze = times(score, DRILL_FREEZE);
    assert_true(freeze.detect.median == 3000);
    assert_true(freeze.next_commit.median == 3500);
    assert_true(freeze.rejoin.median == 2000);
    assert_true(score->faults[fault].done);
    assert_int_equal(history(score).lost, 0);
}

/* A generation that had formed before the fault, but was told of later, is not its consequence. */
static void a_late_form_is_no_consequence(void **state) {
    struct drill_score *score = *state;
    size_t fault;
    begin(score, 3, 3);
    assert_int_equal(drill_score_strike(score, DRILL_CUT, 0, 103, &fault), 0);
    tell(score, DRILL_EVENT_FORM, 102.9, 1, 2, -1);
    commit(score, 103.1, 1, 2, 3);
    commit(score, 103.1, 2, 2, 3);
    assert_true(score->faults[fault].next_commit == 0);
    tell(score, DRILL_EVENT_REVOKE, 106, 1, 2, 0);
    commit(score, 106.5, 1, 3, 4);
    assert_true(score->faults[fault].next_commit == 106.5);
}

/* A slow worker that nobody put out is not credited with what another's death caused. */
static void a_slow_worker_is_only_seen_by_name(void **state) {
    struct drill_score *score = *state;
    size_t slow, kill;
    begin(score, 3, 3);
    assert_int_equal(drill_score_strike(score, DRILL_SLOW, 0, 102.5, &slow), 0);
    assert_int_equal(drill_score_strike(score, DRILL_KILL, 1, 102.5, &kill), 0);
    tell(score, DRILL_EVENT_REVOKE, 103, 2, 1, 1);
    commit(score, 104, 0, 2, 3);
    commit(score, 104, 2, 2, 3);
    assert_true(score->faults[kill].detected == 103);
    assert_true(score->faults[slow].detected == 0);
    assert_true(score->faults[slow].next_commit == 0);
    drill_score_over(score, slow, 106);
    commit(score, 106.5, 2, 2, 4);
    commit(score, 106.5, 0, 2, 4);
    assert_true(score->faults[slow].done);
    assert_int_equal(times(score, DRILL_SLOW).detect.count, 0);
    assert_int_equal(times(score, DRILL_SLOW).rejoin.count, 1);
    tell(score, DRILL_EVENT_SLOW, 107, 2, 2, 0);
    assert_true(score->faults[slow].detected == 0); /* too late to be about it */
}

static void a_flipped_bit_is_put_right(void **state) {
    struct drill_score *score = *state;
    size_t fault;
    begin(score, 3, 3);
    assert_int_equal(drill_score_strike(score, DRILL_FLIP, 2, 102.25, &fault), 0);
    tell(score, DRILL_EVENT_REVOKE, 102.3, 0, 1, 2);
    tell(score, DRILL_EVENT_HEAL, 102.375, 2, 1, -1); /* of something before */
    take(score, (struct drill_event){
                    .kind = DRILL_EVENT_WORKER, .time = 102.4, .id = 2, .peer = -1, .pid = 77});
    commit(score, 102.45, 2, 1, 2);
    assert_false(score->faults[fault].done);
    tell(score, DRILL_EVENT_FLIP, 102.5, 2, 1, -1);
    for (int id = 0; id < 3; id++) {
        commit(score, 103, id, 1, 3);
    }
    assert_false(score->faults[fault].done);
    tell(score, DRILL_EVENT_DIVERGED, 104.5, 0, 1, 2);
    tell(score, DRILL_EVENT_HEAL, 105, 2, 1, -1);
    for (int id = 0; id < 3; id++) {
        commit(score, 106.5, id, 1, 4);
    }
    assert_true(score->faults[fault].done);
    assert_true(times(score, DRILL_FLIP).detect.median == 2000);
    assert_true(times(score, DRILL_FLIP).rejoin.median == 2000);
}

static void the_store_has_no_victim(void **state) {
    struct drill_score *score = *state;
    size_t fault;
    int ids[DRILL_MAX_IDS];
    begin(score, 3, 3);
    assert_int_equal(drill_score_strike(score, DRILL_STORE, -1, 102.5, &fault), 0);
    assert_int_equal(drill_score_healthy(score, ids), 3);
    commit(score, 103, 0, 1, 3);
    assert_false(score->faults[fault].done);
    drill_score_over(score, fault, 103.5);
    commit(score, 104, 0, 1, 4);
    assert_true(score->faults[fault].done);
    assert_int_equal(times(score, DRILL_STORE).detect.count, 0);
    assert_int_equal(times(score, DRILL_STORE).next_commit.count, 0);
}

static void a_joiner_comes_and_goes(void **state) {
    struct drill_score *score = *state;
    size_t fault;
    begin(score, 3, 3);
    assert_int_equal(drill_score_strike(score, DRILL_JOIN, -1, 102.5, &fault), 0);
    drill_score_joined(score, fault, 9);
    take(score, (struct drill_event){.kind = DRILL_EVENT_WORKER,
                                     .time = 102.5,
                                     .id = 9,
                                     .peer = -1,
                                     .pid = 700,
                                     .source = 1});
    tell(score, DRILL_EVENT_REVOKE, 103, 0, 1, -1); /* to take it in */
    tell(score, DRILL_EVENT_HEAL, 103.5, 9, 2, -1);
    for (int id = 0; id < 3; id++) {
        commit(score, 104.5, id, 2, 3);
    }
    commit(score, 104.5, 9, 2, 3);
    assert_false(score->faults[fault].done);
    drill_score_left(score, fault, 110, true);
    tell(score, DRILL_EVENT_REVOKE, 110.5, 0, 2, 9);
    commit(score, 111, 0, 3, 4);
    assert_true(score->faults[fault].done);
    struct drill_times join = times(score, DRILL_JOIN);
    assert_true(join.rejoin.median == 2000);
    assert_true(join.detect.median == 500);
    assert_true(join.next_commit.median == 1000);
    int ids[DRILL_MAX_IDS];
    assert_int_equal(drill_score_healthy(score, ids), 1); /* 0 alone is in generation 3 yet */
    assert_true(drill_score_participation(score, 3) > 0.9 * (11 + 2 * 4.5) / 33);
    assert_true(drill_score_participation(score, 3) <= (11 + 2 * 4.5) / 33);
}

/* The others re-formed without it before its process was gone: there is nothing to wait for. */
static void a_joiner_leaves_in_order(void **state) {
    struct drill_score *score = *state;
    size_t fault;
    begin(score, 3, 3);
    assert_int_equal(drill_score_strike(score, DRILL_JOIN, -1, 102.5, &fault), 0);
    drill_score_joined(score, fault, 9);
    take(score, (struct drill_event){.kind = DRILL_EVENT_WORKER,
                                     .time = 102.5,
                                     .id = 9,
                                     .peer = -1,
                                     .pid = 700,
                                     .source = 1});
    tell(score, DRILL_EVENT_HEAL, 103.5, 9, 2, -1);
    commit(score, 104, 0, 2, 3);
    commit(score, 104, 9, 2, 3);
    drill_score_left(score, fault, 104.5, false);
    commit(score, 105, 9, 2, 4);
    assert_false(score->faults[fault].done);
    commit(score, 105, 0, 2, 4);
    assert_true(score->faults[fault].done);
    commit(score, 106.5, 0, 3, 5); /* told soon after: still measured */
    assert_true(times(score, DRILL_JOIN).next_commit.median == 2000);
    assert_int_equal(history(score).lost, 0);
}

/* One that never took part is not waited for. */
static void a_joiner_that_was_not_taken_in(void **state) {
    struct drill_score *score = *state;
    size_t fault;
    begin(score, 3, 3);
    assert_int_equal(drill_score_strike(score, DRILL_JOIN, -1, 102.5, &fault), 0);
    drill_score_left(score, fault, 104, false);
    assert_true(score->faults[fault].done);
    tell(score, DRILL_EVENT_REVOKE, 104.5, 0, 1, 1); /* of somebody else */
    commit(score, 105, 0, 2, 3);
    assert_int_equal(times(score, DRILL_JOIN).rejoin.count, 0);
    assert_int_equal(times(score, DRILL_JOIN).detect.count, 0);
    assert_int_equal(times(score, DRILL_JOIN).next_commit.count, 0);
}

/* Histories. */

static void two_digests(void **state) {
    struct drill_score *score = *state;
    begin(score, 2, 5);
    take(score, (struct drill_event){.kind = DRILL_EVENT_COMMIT,
                                     .time = 106,
                                     .id = 1,
                                     .peer = -1,
                                     .generation = 2,
                                     .unit = 4,
                                     .digest = 77});
    assert_int_equal(history(score).differ, 1);
    assert_int_equal(history(score).lost, 1);
}

static void a_unit_left_out(void **state) {
    struct drill_score *score = *state;
    begin(score, 2, 5);
    commit(score, 106, 0, 2, 6);
    commit(score, 106, 1, 2, 6);
    assert_int_equal(history(score).missing, 1);
    assert_int_equal(history(score).lost, 1);
    assert_int_equal(history(score).units, 7);
}

/* The one that was lost had committed what the others never did. */
static void ahead_and_lost(void **state) {
    struct drill_score *score = *state;
    begin(score, 3, 5);
    commit(score, 105, 2, 1, 5);
    assert_int_equal(history(score).lost, 0); /* the others may be about to */
    end(score, 105.5, 2, 502, false);
    assert_int_equal(history(score).beyond, 1);
    commit(score, 106, 0, 2, 5);
    assert_int_equal(history(score).lost, 0);
}

/* What ends while the rehearsal ends its workers was not lost. */
static void ended_on_purpose(void **state) {
    struct drill_score *score = *state;
    begin(score, 3, 5);
    commit(score, 105, 2, 1, 5);
    score->ending = 105.2;
    for (int id = 0; id < 3; id++) {
        end(score, 105.5, id, 500 + id, false);
    }
    assert_int_equal(history(score).lost, 0);
}

static void nobody_is_left(void **state) {
    struct drill_score *score = *state;
    begin(score, 2, 5);
    end(score, 105.5, 0, 500, false);
    end(score, 105.5, 1, 501, false);
    assert_int_equal(history(score).beyond, 5);
    assert_int_equal(history(score).lost, 5);
}

/* Worker 0, without unit 4, commits 5, though 4 was committed by worker 1 alone. */
static void nobody_went_on_from_it(void **state) {
    struct drill_score *score = *state;
    begin(score, 2, 4);
    commit(score, 104, 1, 1, 4);
    end(score, 104.5, 1, 501, false);
    commit(score, 105, 0, 2, 5);
    assert_int_equal(history(score).broken, 1);
    assert_int_equal(history(score).lost, 1);
}

/* Whoever copied the state may begin in the middle; a new process has to copy it. */
static void healed_or_not(void **state) {
    struct drill_score *score = *state;
    begin(score, 2, 4);
    start(score, 104, 5, 505);
    tell(score, DRILL_EVENT_HEAL, 104.5, 5, 2, -1);
    commit(score, 105, 5, 2, 4);
    assert_int_equal(history(score).lost, 0);
    end(score, 105.5, 5, 505, true);
    start(score, 106, 5, 506);
    commit(score, 107, 5, 2, 5);
    assert_int_equal(history(score).broken, 1);
}

static void retries_and_shards(void **state) {
    struct drill_score *score = *state;
    begin(score, 2, 4);
    for (int id = 0; id < 2; id++) {
        take(score, (struct drill_event){.kind = DRILL_EVENT_COMMIT,
                                         .time = 105,
                                         .id = id,
                                         .peer = -1,
                                         .generation = 2,
                                         .unit = 4,
                                         .digest = 1004,
                                         .retries = 2,
                                         .redone = (uint32_t)(3 + id)});
    }
    assert_int_equal(history(score).retried, 1);
    assert_int_equal(score->redone, 7);
}

static void numbers_that_cannot_be(void **state) {
    struct drill_score *score = *state;
    begin(score, 2, 4);
    commit(score, 105, -1, 1, 4);
    commit(score, 105, DRILL_MAX_IDS, 1, 4);
    commit(score, 105, 0, 1, DRILL_MAX_UNITS);
    commit(score, 1.0 / 0.0, 0, 1, 4);
    assert_int_equal(score->ignored, 4);
    assert_int_equal(history(score).units, 4);
    commit(score, 105, 0, 1, 100000); /* far ahead: a gap, not a crash */
    assert_int_equal(history(score).missing, 100000 - 4);
}

static void nothing_at_all(void **state) {
    struct drill_score *score = *state;
    int culprit;
    assert_int_equal(history(score).lost, 0);
    assert_int_equal(history(score).units, 0);
    assert_true(drill_score_participation(score, 3) == 0);
    assert_true(drill_score_throughput(score) == 0);
    assert_int_equal(times(score, DRILL_KINDS).detect.count, 0);
    assert_false(drill_score_is_settled(score, 0, &culprit));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(percentiles),
        cmocka_unit_test(names),
        TEST(a_quiet_run),
        TEST(a_killed_worker_comes_back),
        TEST(a_frozen_worker_comes_back),
        TEST(a_late_form_is_no_consequence),
        TEST(a_slow_worker_is_only_seen_by_name),
        TEST(a_flipped_bit_is_put_right),
        TEST(the_store_has_no_victim),
        TEST(a_joiner_comes_and_goes),
        TEST(a_joiner_leaves_in_order),
        TEST(a_joiner_that_was_not_taken_in),
        TEST(two_digests),
        TEST(a_unit_left_out),
        TEST(ahead_and_lost),
        TEST(ended_on_purpose),
        TEST(nobody_is_left),
        TEST(nobody_went_on_from_it),
        TEST(healed_or_not),
        TEST(retries_and_shards),
        TEST(numbers_that_cannot_be),
        TEST(nothing_at_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
