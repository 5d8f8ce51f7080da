/* member/: records as bytes; the decision about the next generation, case by case; and several
 * machines over one store of the test's own that reaches each of them late, in any order of
 * workers: they always end in one generation, and never in two of one number. */
#include "base/rng.h"
#include "member/decide.h"
#include "member/member.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define MS 1000000ll

enum { MOST = 8 };

/* ---- Records ---- */

static struct rf__report report_of(int id, uint64_t units, bool prepared) {
    struct rf__report report = {.generation = 7,
                                .id = id,
                                .nonce = 100 + (uint64_t)id,
                                .progress = {.healed = true,
                                             .units = units,
                                             .chain = 1000 + units,
                                             .prepared = prepared,
                                             .prepared_chain = prepared ? 1001 + units : 0}};
    snprintf(report.cause, sizeof report.cause, "worker 9 was lost");
    return report;
}

static struct rf__generation generation_of(int count) {
    struct rf__generation g = {.number = 7, .count = count};
    for (int i = 0; i < count; i++) {
        g.members[i] =
            (struct rf__member_entry){.id = i, .nonce = 100 + (uint64_t)i, .healed = true};
    }
    return g;
}

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

struct scene {
    struct rf__generation current, next;
    struct rf__report reports[MOST];
    const struct rf__report *seen[MOST];
    struct rf__candidate candidates[MOST];
    const struct rf__candidate *listed[MOST];
    struct rf__facts facts;
};

static struct scene scene;

static void set_scene(int size, int min) {
    memset(&scene, 0, sizeof scene);
    scene.current = generation_of(size);
    scene.facts = (struct rf__facts){.current = &scene.current,
                                     .reports = scene.seen,
                                     .candidates = scene.listed,
                                     .min_size = min,
                                     .max_size = MOST,
                                     .config = 1};
}

static struct rf__report *reports(int id, uint64_t units, bool prepared) {
    scene.reports[id] = report_of(id, units, prepared);
    scene.seen[id] = &scene.reports[id];
    return &scene.reports[id];
}

static void suspects(int id, int suspect, enum rf__doubt doubt) {
    struct rf__report *r = &scene.reports[id];
    r->suspects[r->suspect_count++] = (struct rf__suspect){.id = suspect, .doubt = doubt};
}

static void stands_by(int id, uint64_t nonce, uint64_t config) {
    int i = scene.facts.candidate_count++;
    scene.candidates[i] = (struct rf__candidate){
        .id = id, .nonce = nonce, .config = config, .wants = true, .seen = 7};
    scene.listed[i] = &scene.candidates[i];
}

static enum rf__verdict decided(void) {
    return rf__decide(&scene.facts, &scene.next);
}

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

enum { KEYS = 64, CHANGES = 4096 };

struct change {
    char key[32];
    unsigned char bytes[RF__CANDIDATE_BYTES];
    size_t length;
    bool gone;
};

/* All keys are told to all machines, each from where it has got to. */
struct world {
    int count;
    int64_t now;
    struct rf__rng rng;
    struct rf__member *machines[MOST];
    bool dead[MOST];
    int told[MOST];
    struct change changes[CHANGES];
    int change_count;
    int64_t generation_revision; /* index + 1 of the newest generation's change */
    uint64_t generations[CHANGES];
    int generation_count;
    bool opened[MOST];
};

static struct world *world;

static void put(const char *key, const unsigned char *bytes, size_t length) {
    struct change *c = &world->changes[world->change_count++];
    assert_true(world->change_count < CHANGES && length <= sizeof c->bytes);
    snprintf(c->key, sizeof c->key, "%s", key);
    c->gone = !bytes;
    c->length = length;
    if (bytes) {
        memcpy(c->bytes, bytes, length);
    }
}

static void swap(int w, const struct rf__member_action *action) {
    static struct rf__generation g;

    if (action->revision == world->generation_revision) {
        put("generation", action->bytes, action->length);
        world->generation_revision = world->change_count;
        assert_int_equal(rf__generation_decode(action->bytes, action->length, &g), 0);
        world->generations[world->generation_count++] = g.number;
    }
    rf__member_swapped(world->machines[w], true);
}

static void act(int w) {
    struct rf__member_action action;
    char key[32];

    while (!world->dead[w] && rf__member_next(world->machines[w], &action)) {
        switch (action.kind) {
        case RF__MEMBER_PUBLISH:
            snprintf(key, sizeof key, "m/%d", w);
            put(key, action.bytes, action.length);
            break;
        case RF__MEMBER_REPORT:
            put("report", action.bytes, action.length);
            break;
        case RF__MEMBER_SWAP:
            swap(w, &action);
            break;
        case RF__MEMBER_OPEN:
            world->opened[w] = true;
            break;
        case RF__MEMBER_LEAVE:
            world->opened[w] = false;
            break;
        case RF__MEMBER_REFUSE:
        case RF__MEMBER_FORGET:
            break;
        }
    }
}

static void hear(int w) {
    struct rf__member *m = world->machines[w];
    if (world->told[w] == world->change_count) {
        return;
    }
    const struct change *c = &world->changes[world->told[w]++];
    const unsigned char *bytes = c->gone ? NULL : c->bytes;
    if (!strcmp(c->key, "generation")) {
        rf__member_see_generation(m, bytes, c->length, world->told[w]);
    } else if (!strcmp(c->key, "report")) {
        rf__member_see_report(m, bytes, c->length);
    } else {
        rf__member_see_candidate(m, c->key[2] - '0', bytes, c->length);
    }
}

/* Links are up once all members of the generation have opened theirs. */
static void link_up(int w) {
    const struct rf__generation *g = rf__member_generation(world->machines[w]);
    if (rf__member_state(world->machines[w]) != RF__MEMBER_FORMING || !world->opened[w]) {
        return;
    }
    for (int rank = 0; rank < g->count; rank++) {
        int peer = g->members[rank].id;
        const struct rf__generation *other = rf__member_generation(world->machines[peer]);
        if (world->dead[peer] || other->number != g->number || !world->opened[peer]) {
            return;
        }
    }
    rf__member_linked(world->machines[w]);
}

static void open_world(int count, int min, uint64_t seed) {
    world = test_calloc(1, sizeof *world);
    world->count = count;
    world->rng = rf__rng(seed, 0, 0);
    for (int w = 0; w < count; w++) {
        struct rf__member_options options = {.id = w,
                                             .nonce = 900 + (uint64_t)w,
                                             .min_size = min,
                                             .max_size = MOST,
                                             .start_size = count,
                                             .detect_ns = 1000 * MS,
                                             .start_timeout_ns = 60000 * MS,
                                             .endpoint = "somewhere"};
        assert_int_equal(rf__member_create(&options, 0, &world->machines[w]), 0);
        rf__member_synced(world->machines[w]);
        rf__member_enter(world->machines[w], 42, false);
        act(w);
    }
}

static void close_world(void) {
    for (int w = 0; w < world->count; w++) {
        rf__member_destroy(world->machines[w]);
    }
    test_free(world);
}

static void turn(void) {
    int w = (int)rf__rng_below(&world->rng, (uint64_t)world->count);
    world->now += (int64_t)rf__rng_below(&world->rng, 3 * MS);
    if (world->dead[w]) {
        return;
    }
    switch (rf__rng_below(&world->rng, 3)) {
    case 0:
        rf__member_tick(world->machines[w], world->now);
        break;
    case 1:
        hear(w);
        break;
    default:
        link_up(w);
        break;
    }
    act(w);
}

/* All that live run in one generation of just them. */
static bool is_settled(void) {
    uint64_t number = 0;
    int alive = 0;

    for (int w = 0; w < world->count; w++) {
        alive += !world->dead[w];
    }
    for (int w = 0; w < world->count; w++) {
        const struct rf__generation *g = rf__member_generation(world->machines[w]);
        if (world->dead[w]) {
            continue;
        }
        if (rf__member_state(world->machines[w]) != RF__MEMBER_RUNNING || g->count != alive ||
            (number && number != g->number)) {
            return false;
        }
        number = g->number;
    }
    return true;
}

static void settle(void) {
    for (int k = 0; k < 200000 && !is_settled(); k++) {
        turn();
    }
    for (int w = 0; w < world->count && !is_settled(); w++) {
        const struct rf__member *m = world->machines[w];
        print_message("worker %d%s: state %d, generation %d of %d, %s\n", w,
                      world->dead[w] ? " (dead)" : "", rf__member_state(m),
                      (int)rf__member_generation(m)->number, rf__member_generation(m)->count,
                      rf__member_waits_for(m));
    }
    assert_true(is_settled());
}

static void machines_meet_and_survive_deaths(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        int count = 2 + (int)(seed % 5);
        open_world(count, 1, seed);
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

static void nothing_is_done_after_the_report(void **state) {
    struct rf__progress progress = {.healed = true, .units = 1, .chain = 5};
    (void)state;
    open_world(3, 1, 3);
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
        cmocka_unit_test(nothing_is_done_after_the_report),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
