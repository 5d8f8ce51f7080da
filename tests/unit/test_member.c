/* member/: records as bytes; the decision about the next generation, case by case; and several
 * machines over one store of the test's own that reaches each of them late, in any order of
 * workers: they always end in one generation, and never in two of one number. */
#include "base/rng.h"
#include "support/member_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void records_survive_their_bytes(void **state) {
    static unsigned char bytes[RF__GENERATION_BYTES];
    static struct rf__generation g, h;
    struct rf__report r = report_of(3, 41, true), s;
    struct rf__candidate c = {.id = 5, .nonce = 9, .restarts = 2, .config = 77, .wants = true}, d;
    (void)state;

    r.suspects[r.suspect_count++] = (struct rf__suspect){.id = 9, .doubt = RF__DOUBT_SILENT};
    size_t length = rf__report_encode(&r, bytes, sizeof bytes);
    assert_true(length > 0);
    memset(&s, 0xff, sizeof s);
    assert_int_equal(rf__report_decode(bytes, length, &s), 0);
    assert_int_equal(s.id, 3);
    assert_true(s.progress.prepared && s.progress.healed);
    assert_int_equal(s.progress.prepared_chain, r.progress.prepared_chain);
    assert_int_equal(s.suspects[0].doubt, RF__DOUBT_SILENT);
    assert_string_equal(s.cause, r.cause);

    snprintf(c.endpoint, sizeof c.endpoint, "host tcp 10.0.0.1:5");
    length = rf__candidate_encode(&c, bytes, sizeof bytes);
    assert_int_equal(rf__candidate_decode(bytes, length, &d), 0);
    assert_int_equal(d.config, 77);
    assert_string_equal(d.endpoint, c.endpoint);

    g = generation_of(4);
    g.commit = true;
    g.units = 12;
    g.dropped[g.dropped_count++] = (struct rf__suspect){.id = 6, .doubt = RF__DOUBT_END};
    length = rf__generation_encode(&g, bytes, sizeof bytes);
    assert_int_equal(rf__generation_decode(bytes, length, &h), 0);
    assert_int_equal(h.count, 4);
    assert_int_equal(h.dropped[0].id, 6);
    assert_true(h.commit && !h.ended);
    for (size_t cut = 0; cut < length; cut++) { /* a record cut short is none */
        assert_int_equal(rf__generation_decode(bytes, cut, &h), RF_EPROTO);
    }
}

static void any_bytes_are_decoded_or_refused(void **state) {
    static unsigned char bytes[4096];
    static struct rf__generation g;
    struct rf__report r;
    struct rf__candidate c;
    struct rf__rng rng;
    (void)state;

    rng = rf__rng(11, 0, 0);
    for (int round = 0; round < 20000; round++) {
        size_t length = (size_t)rf__rng_below(&rng, sizeof bytes);
        for (size_t i = 0; i < length; i++) {
            bytes[i] = (unsigned char)rf__rng_below(&rng, 256);
        }
        bytes[0] = 1;
        if (rf__generation_decode(bytes, length, &g) == 0) {
            assert_in_range(g.count, 0, RF_MAX_RANKS);
            assert_in_range(g.dropped_count, 0, RF_MAX_RANKS);
        }
        if (rf__report_decode(bytes, length, &r) == 0) {
            assert_in_range(r.suspect_count, 0, RF__MEMBER_SUSPECTS);
            assert_true(memchr(r.cause, 0, sizeof r.cause) != NULL);
        }
        if (rf__candidate_decode(bytes, length, &c) == 0) {
            assert_true(memchr(c.endpoint, 0, sizeof c.endpoint) != NULL);
        }
    }
}

/* ---- Decisions ---- */

static void survivors_keep_their_order(void **state) {
    (void)state;
    set_scene(4, 1);
    reports(0, 5, false);
    reports(2, 5, false);
    reports(3, 5, false);
    suspects(0, 1, RF__DOUBT_GONE);
    assert_int_equal(decided(), RF__VERDICT_FORM);
    assert_int_equal(scene.next.number, 8);
    assert_int_equal(scene.next.count, 3);
    assert_int_equal(scene.next.members[0].id, 0);
    assert_int_equal(scene.next.members[1].id, 2);
    assert_int_equal(scene.next.members[2].id, 3);
    assert_int_equal(scene.next.dropped_count, 1);
    assert_int_equal(scene.next.dropped[0].doubt, RF__DOUBT_GONE);
}

static void commit_needs_all_prepared(void **state) {
    (void)state;
    for (int prepared = 0; prepared < 8; prepared++) {
        set_scene(4, 1); /* worker 3 is gone */
        for (int id = 0; id < 3; id++) {
            reports(id, 5, prepared >> id & 1);
        }
        assert_int_equal(decided(), RF__VERDICT_FORM);
        assert_int_equal(scene.next.commit, prepared == 7);
        assert_int_equal(scene.next.units, prepared == 7 ? 6 : 5);
        assert_int_equal(scene.next.chain, prepared == 7 ? 1006 : 1005);
        for (int rank = 0; rank < 3; rank++) {
            assert_true(scene.next.members[rank].healed);
        }
    }
}

static void who_has_committed_decides(void **state) {
    (void)state;
    set_scene(3, 1);
    reports(0, 6, false);
    reports(1, 5, true);
    assert_int_equal(decided(), RF__VERDICT_FORM);
    assert_true(scene.next.commit);
    assert_int_equal(scene.next.units, 6);
    assert_true(scene.next.members[0].healed && scene.next.members[1].healed);
    /* a member that is behind and holds something else copies */
    scene.reports[1].progress.prepared_chain = 4711;
    assert_int_equal(decided(), RF__VERDICT_FORM);
    assert_false(scene.next.members[1].healed);
}

/* Also one that is cut off from the others counts for what was committed: it may have done so. */
static void who_goes_counts_too(void **state) {
    (void)state;
    set_scene(3, 1);
    reports(0, 5, true);
    reports(1, 5, true);
    reports(2, 6, false);
    suspects(0, 2, RF__DOUBT_SILENT);
    suspects(1, 2, RF__DOUBT_SILENT);
    assert_int_equal(decided(), RF__VERDICT_FORM);
    assert_int_equal(scene.next.count, 2);
    assert_true(scene.next.commit);
    assert_int_equal(scene.next.units, 6);
}

static void joiners_copy_until_they_have_prepared(void **state) {
    (void)state;
    set_scene(3, 1);
    reports(0, 5, true);
    reports(1, 5, true);
    reports(2, 5, false)->progress.healed = false;
    assert_int_equal(decided(), RF__VERDICT_FORM);
    assert_false(scene.next.commit);
    assert_false(scene.next.members[2].healed);
    scene.reports[2] = report_of(2, 5, true);
    scene.reports[2].progress.healed = false;
    assert_int_equal(decided(), RF__VERDICT_FORM);
    assert_true(scene.next.commit);
    assert_true(scene.next.members[2].healed);
}

static void differing_digests_need_a_majority(void **state) {
    (void)state;
    set_scene(3, 1);
    reports(0, 5, true);
    reports(1, 5, true);
    reports(2, 5, true)->progress.prepared_chain = 4711;
    assert_int_equal(decided(), RF__VERDICT_FORM);
    assert_true(scene.next.commit);
    assert_int_equal(scene.next.chain, 1006);
    assert_false(scene.next.members[2].healed);
    /* two of four that are left of it: the two that are gone may have been of either side */
    set_scene(4, 1);
    reports(0, 5, true);
    reports(1, 5, true)->progress.prepared_chain = 4711;
    assert_int_equal(decided(), RF__VERDICT_DIVERGED);
}

static void broken_pairs_are_cut_at_their_fewest(void **state) {
    (void)state;
    set_scene(4, 1); /* worker 1 hears nobody, and nobody hears it; all reach the store */
    for (int id = 0; id < 4; id++) {
        reports(id, 5, false);
    }
    suspects(0, 1, RF__DOUBT_SILENT);
    suspects(2, 1, RF__DOUBT_SILENT);
    suspects(1, 0, RF__DOUBT_SILENT);
    suspects(1, 2, RF__DOUBT_SILENT);
    suspects(1, 3, RF__DOUBT_SILENT);
    assert_int_equal(decided(), RF__VERDICT_FORM);
    assert_int_equal(scene.next.count, 3);
    assert_int_equal(rf__generation_find(&scene.next, 1, 0), -1);
    /* too few without it: all try again */
    scene.facts.min_size = 4;
    assert_int_equal(decided(), RF__VERDICT_FORM);
    assert_int_equal(scene.next.count, 4);
    /* that a connection ended says nothing of one that has reported */
    set_scene(2, 1);
    reports(0, 5, false);
    reports(1, 5, false);
    suspects(0, 1, RF__DOUBT_GONE);
    assert_int_equal(decided(), RF__VERDICT_FORM);
    assert_int_equal(scene.next.count, 2);
}

static void slow_and_stuck_are_put_out(void **state) {
    (void)state;
    set_scene(3, 2);
    for (int id = 0; id < 3; id++) {
        reports(id, 5, false);
    }
    suspects(0, 2, RF__DOUBT_SLOW);
    suspects(1, 2, RF__DOUBT_STUCK); /* only its own word counts */
    assert_int_equal(decided(), RF__VERDICT_FORM);
    assert_int_equal(scene.next.count, 2);
    assert_int_equal(scene.next.dropped[0].doubt, RF__DOUBT_SLOW);
    scene.facts.min_size = 3; /* never below the minimum */
    assert_int_equal(decided(), RF__VERDICT_FORM);
    assert_int_equal(scene.next.count, 3);
    suspects(1, 1, RF__DOUBT_STUCK);
    assert_int_equal(decided(), RF__VERDICT_FORM);
    assert_int_equal(scene.next.count, 3);
    scene.facts.min_size = 1;
    assert_int_equal(decided(), RF__VERDICT_FORM);
    assert_int_equal(scene.next.count, 1);
}

static void the_welcome_are_taken_in(void **state) {
    (void)state;
    set_scene(2, 1);
    reports(0, 5, false);
    reports(1, 5, false);
    stands_by(1, 500, 1); /* worker 1 was started again after it had reported */
    stands_by(4, 501, 1);
    stands_by(5, 502, 2); /* trains something else */
    stands_by(6, 503, 1);
    scene.candidates[3].seen = 6; /* its wish was granted then, and it has been lost since */
    assert_int_equal(decided(), RF__VERDICT_FORM);
    assert_int_equal(scene.next.count, 3);
    assert_int_equal(scene.next.members[1].id, 1);
    assert_int_equal(scene.next.members[1].nonce, 500);
    assert_false(scene.next.members[1].healed);
    assert_int_equal(scene.next.members[2].id, 4);
    scene.facts.max_size = 2;
    assert_int_equal(decided(), RF__VERDICT_FORM);
    assert_int_equal(scene.next.count, 2);
}

static void nobody_with_the_state_is_told(void **state) {
    (void)state;
    set_scene(3, 1);
    reports(2, 5, false)->progress.healed = false;
    stands_by(4, 501, 1);
    assert_int_equal(decided(), RF__VERDICT_STATELESS);
    scene.facts.min_size = 3;
    assert_int_equal(decided(), RF__VERDICT_TOO_FEW);
}

/* ---- Machines over a store ---- */

static void machines_meet_and_survive_deaths(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        int count = 2 + (int)(seed % 5);
        open_world(count, 1, false, seed);
        settle();
        for (int deaths = 1; deaths < count; deaths++) {
            int victim;
            do {
                victim = (int)rf__rng_below(&world->rng, (uint64_t)count);
            } while (world->dead[victim]);
            world->dead[victim] = true;
            for (int w = 0; w < count; w++) { /* not all of them notice */
                const struct rf__generation *g = rf__member_generation(world->machines[w]);
                bool notices = rf__rng_below(&world->rng, 2) == 0;
                if (!world->dead[w] && notices) {
                    rf__member_doubt(world->machines[w], rf__generation_find(g, victim, 0),
                                     RF__DOUBT_SILENT, "silent");
                    act(w);
                }
            }
            for (int w = 0; w < count; w++) { /* one always does */
                const struct rf__generation *g = rf__member_generation(world->machines[w]);
                if (!world->dead[w]) {
                    rf__member_doubt(world->machines[w], rf__generation_find(g, victim, 0),
                                     RF__DOUBT_SILENT, "silent");
                    act(w);
                    break;
                }
            }
            settle();
        }
        for (int i = 1; i < world->generation_count; i++) {
            assert_int_equal(world->generations[i], world->generations[i - 1] + 1);
        }
        close_world();
    }
}

/* Nobody is lost to a store that was away for longer than the detection time: who reaches it first
 * waits for the others from then on. */
static void who_reaches_the_store_first_waits_for_the_others(void **state) {
    (void)state;
    open_world(4, 1, false, 5);
    settle();
    int before = world->generation_count;
    for (int w = 0; w < 4; w++) {
        rf__member_revoke(world->machines[w], "because");
    }
    world->now += 5000 * MS;
    for (int w = 0; w < 4; w++) {
        rf__member_tick(world->machines[w], world->now);
    }
    act(0);
    for (int k = 0; k < 9; k++) {
        hear(0);
        world->now += 100 * MS;
        rf__member_tick(world->machines[0], world->now);
        act(0);
    }
    assert_int_equal(world->generation_count, before);
    for (int w = 1; w < 4; w++) {
        act(w);
    }
    settle();
    assert_int_equal(world->generation_count, before + 1);
    assert_int_equal(rf__member_generation(world->machines[0])->count, 4);
    close_world();
}

static void nothing_is_done_after_the_report(void **state) {
    struct rf__progress progress = {.healed = true, .units = 1, .chain = 5};
    (void)state;
    open_world(3, 1, false, 3);
    settle();
    uint64_t number = rf__member_generation(world->machines[0])->number;
    assert_int_equal(rf__member_note(world->machines[0], number, &progress), 0);
    assert_int_equal(rf__member_note(world->machines[0], number + 1, &progress), RF_EREVOKED);
    rf__member_revoke(world->machines[0], "because");
    progress.units = 2;
    assert_int_equal(rf__member_note(world->machines[0], number, &progress), RF_EREVOKED);
    assert_int_equal(rf__member_progress(world->machines[0])->units, 1);
    act(0);
    /* the others have committed nothing: the one that is ahead counts, and they copy */
    settle();
    const struct rf__generation *g = rf__member_generation(world->machines[1]);
    assert_int_equal(g->units, 1);
    assert_true(g->members[0].healed);
    assert_false(g->members[1].healed || g->members[2].healed);
    close_world();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(records_survive_their_bytes),
        cmocka_unit_test(any_bytes_are_decoded_or_refused),
        cmocka_unit_test(survivors_keep_their_order),
        cmocka_unit_test(commit_needs_all_prepared),
        cmocka_unit_test(who_has_committed_decides),
        cmocka_unit_test(who_goes_counts_too),
        cmocka_unit_test(joiners_copy_until_they_have_prepared),
        cmocka_unit_test(differing_digests_need_a_majority),
        cmocka_unit_test(broken_pairs_are_cut_at_their_fewest),
        cmocka_unit_test(slow_and_stuck_are_put_out),
        cmocka_unit_test(the_welcome_are_taken_in),
        cmocka_unit_test(nobody_with_the_state_is_told),
        cmocka_unit_test(machines_meet_and_survive_deaths),
        cmocka_unit_test(who_reaches_the_store_first_waits_for_the_others),
        cmocka_unit_test(nothing_is_done_after_the_report),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
