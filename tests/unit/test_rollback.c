/* member/: going back to a checkpoint. When it is decided, for whom, and that an order is carried
 * out once; and that without checkpoints nothing is any different. */
#include "support/member_world.h"

enum { DETECT_MS = 1000 }; /* as the machines have it */

/* ---- Records ---- */

static void assert_same_generation(const struct rf__generation *a, const struct rf__generation *b) {
    assert_int_equal(a->number, b->number);
    assert_int_equal(a->rolled_back, b->rolled_back);
    assert_true(a->target == b->target && a->order == b->order);
    assert_true(a->commit == b->commit && a->ended == b->ended);
    assert_int_equal(a->units, b->units);
    assert_int_equal(a->count, b->count);
    assert_string_equal(a->cause, b->cause);
}

static void records_carry_it(void **state) {
    static const uint64_t targets[] = {0, 3, RF__NEWEST_STEP};
    static unsigned char bytes[RF__GENERATION_BYTES];
    static struct rf__generation g, h;
    (void)state;

    for (int how = 0; how < 6; how++) {
        g = generation_of(3);
        g.rolled_back = how % 2;
        g.target = targets[how / 2];
        g.order = how ? 0x1122334455667788 + (uint64_t)how : 0;
        size_t length = rf__generation_encode(&g, bytes, sizeof bytes);
        assert_true(length > 0);
        memset(&h, 0xff, sizeof h);
        assert_int_equal(rf__generation_decode(bytes, length, &h), 0);
        assert_same_generation(&g, &h);
    }
}

static void orders_survive_their_bytes(void **state) {
    static const uint64_t steps[] = {0, 17, INT64_MAX, RF__NEWEST_STEP};
    unsigned char bytes[RF__ROLLBACK_BYTES + 1];
    struct rf__rollback order, seen;
    (void)state;

    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        order = (struct rf__rollback){.nonce = 1 + i * 0x0102030405060708, .step = steps[i]};
        size_t length = rf__rollback_encode(&order, bytes, sizeof bytes);
        assert_int_equal(length, RF__ROLLBACK_BYTES);
        assert_int_equal(rf__rollback_decode(bytes, length, &seen), 0);
        assert_true(seen.nonce == order.nonce && seen.step == order.step);
        for (size_t cut = 0; cut < length; cut++) {
            assert_int_equal(rf__rollback_decode(bytes, cut, &seen), RF_EPROTO);
            assert_int_equal(rf__rollback_encode(&order, bytes, cut), 0);
        }
        (void)rf__rollback_encode(&order, bytes, sizeof bytes);
        bytes[length] = 0;
        assert_int_equal(rf__rollback_decode(bytes, length + 1, &seen), RF_EPROTO);
        bytes[0] ^= 0x40; /* of another version */
        assert_int_equal(rf__rollback_decode(bytes, length, &seen), RF_EPROTO);
    }
    order = (struct rf__rollback){.nonce = 0, .step = 3}; /* stands for "none" */
    size_t length = rf__rollback_encode(&order, bytes, sizeof bytes);
    assert_int_equal(rf__rollback_decode(bytes, length, &seen), RF_EPROTO);
}

/* What is decoded at all is encoded to the same bytes again, but for what they say twice. */
static void mutated_records_are_refused_or_bounded(void **state) {
    static struct rf__generation g, h;
    struct rf__rng rng = rf__rng(5, 0, 0);
    struct rf__rollback order = {.nonce = 77, .step = 3};
    (void)state;

    g = generation_of(5);
    g.rolled_back = true;
    g.target = RF__NEWEST_STEP;
    g.order = 77;
    g.dropped[g.dropped_count++] = (struct rf__suspect){.id = 6, .doubt = RF__DOUBT_END};
    for (int round = 0; round < 20000; round++) {
        unsigned char bytes[512];
        bool is_order = round % 4 == 0;
        size_t length = is_order ? rf__rollback_encode(&order, bytes, sizeof bytes)
                                 : rf__generation_encode(&g, bytes, sizeof bytes);
        assert_true(length > 0);
        for (uint64_t flips = 1 + rf__rng_below(&rng, 6); flips; flips--) {
            bytes[rf__rng_below(&rng, length)] ^= (unsigned char)(1u << rf__rng_below(&rng, 8));
        }
        if (rf__rng_below(&rng, 3) == 0) {
            length = (size_t)rf__rng_below(&rng, length + 1);
        }
        /* a block of just that size, so that a read beyond its end is seen */
        unsigned char *exact = malloc(length + !length);
        memcpy(exact, bytes, length);
        struct rf__rollback seen;
        if (rf__rollback_decode(exact, length, &seen) == 0) {
            assert_true(seen.nonce != 0 && length == RF__ROLLBACK_BYTES);
        }
        if (rf__generation_decode(exact, length, &h) == 0) {
            assert_in_range(h.count, 0, RF_MAX_RANKS);
            assert_in_range(h.dropped_count, 0, RF_MAX_RANKS);
            assert_true(memchr(h.cause, 0, sizeof h.cause) != NULL);
            for (int i = 0; i < h.count; i++) {
                assert_in_range(h.members[i].id, 0, RF__MEMBER_ID_MAX - 1);
            }
        }
        free(exact);
    }
}

/* ---- Decisions ---- */

static struct rf__rollback the_order;

static void orders(uint64_t nonce, uint64_t step) {
    the_order = (struct rf__rollback){.nonce = nonce, .step = step};
    scene.facts.order = &the_order;
}

static void assert_goes_back(uint64_t target, uint64_t order, int count) {
    assert_true(scene.next.rolled_back);
    assert_true(scene.next.target == target);
    assert_true(scene.next.order == order);
    assert_int_equal(scene.next.units, 0);
    assert_int_equal(scene.next.chain, 0);
    assert_false(scene.next.commit);
    assert_int_equal(scene.next.count, count);
    for (int i = 0; i < count; i++) {
        assert_true(scene.next.members[i].healed);
    }
}

static void assert_goes_on(uint64_t units) {
    assert_false(scene.next.rolled_back);
    assert_int_equal(scene.next.target, 0);
    assert_int_equal(scene.next.units, units);
}

static void an_order_is_for_all(void **state) {
    (void)state;
    set_scene(3, 1);
    reports(0, 5, true); /* even what all have prepared is given up */
    reports(1, 5, true);
    reports(2, 5, true)->progress.healed = false;
    stands_by(6, 501, 1);
    orders(9, 3);
    assert_int_equal(decided(), RF__VERDICT_FORM); /* there are no checkpoints */
    assert_goes_on(6);
    assert_int_equal(scene.next.order, 0);
    scene.facts.may_roll_back = true;
    assert_int_equal(decided(), RF__VERDICT_FORM);
    assert_goes_back(3, 9, 4);
    scene.facts.min_size = 5;
    assert_int_equal(decided(), RF__VERDICT_TOO_FEW);
    scene.facts.min_size = 1;
    orders(10, RF__NEWEST_STEP);
    assert_int_equal(decided(), RF__VERDICT_FORM);
    assert_goes_back(RF__NEWEST_STEP, 10, 4);
    /* it is said once: what was carried out stays known, and the group goes on */
    scene.facts.order = NULL;
    scene.current.order = 10;
    assert_int_equal(decided(), RF__VERDICT_FORM);
    assert_goes_on(6);
    assert_int_equal(scene.next.order, 10);
}

static void nobody_with_the_state_is_waited_for_at_first(void **state) {
    (void)state;
    set_scene(3, 1);
    reports(1, 0, false)->progress.healed = false;
    reports(2, 5, false)->progress.healed = false;
    scene.facts.may_roll_back = true;
    assert_int_equal(decided(), RF__VERDICT_STATELESS);
    scene.facts.gives_up = true;
    assert_int_equal(decided(), RF__VERDICT_FORM);
    assert_goes_back(RF__NEWEST_STEP, 0, 2);
    scene.facts.min_size = 3;
    assert_int_equal(decided(), RF__VERDICT_TOO_FEW);
    scene.facts.min_size = 1;
    scene.facts.may_roll_back = false;
    assert_int_equal(decided(), RF__VERDICT_STATELESS);
    /* one that holds it is all it takes, however long it took */
    scene.facts.may_roll_back = true;
    reports(0, 5, false);
    assert_int_equal(decided(), RF__VERDICT_FORM);
    assert_goes_on(5);
    assert_true(scene.next.members[0].healed);
    assert_false(scene.next.members[1].healed || scene.next.members[2].healed);
}

static void without_a_majority_all_go_back(void **state) {
    (void)state;
    for (int may = 0; may < 2; may++) {
        set_scene(2, 1);
        reports(0, 5, true);
        reports(1, 5, true)->progress.prepared_chain = 4711;
        scene.facts.may_roll_back = may;
        assert_int_equal(decided(), may ? RF__VERDICT_FORM : RF__VERDICT_DIVERGED);
        if (may) {
            assert_goes_back(RF__NEWEST_STEP, 0, 2);
        }
        set_scene(2, 1); /* what they committed differs */
        reports(0, 5, false);
        reports(1, 5, false)->progress.chain = 4711;
        scene.facts.may_roll_back = may;
        assert_int_equal(decided(), may ? RF__VERDICT_FORM : RF__VERDICT_DIVERGED);
        if (may) {
            assert_goes_back(RF__NEWEST_STEP, 0, 2);
            scene.facts.min_size = 3;
            assert_int_not_equal(decided(), RF__VERDICT_FORM);
        }
        set_scene(3, 1); /* with one they go on, as ever */
        reports(0, 5, true);
        reports(1, 5, true);
        reports(2, 5, true)->progress.prepared_chain = 4711;
        scene.facts.may_roll_back = may;
        assert_int_equal(decided(), RF__VERDICT_FORM);
        assert_goes_on(6);
    }
}

/* The generation after one that went back. */
static void who_has_restored_counts(void **state) {
    (void)state;
    set_scene(3, 1);
    scene.facts.may_roll_back = true;
    scene.current.rolled_back = true;
    scene.current.target = 3;
    scene.current.order = 9;
    for (int id = 0; id < 3; id++) { /* none of them got that far: once more */
        reports(id, 0, false)->progress.chain = 0;
    }
    stands_by(6, 501, 1);
    assert_int_equal(decided(), RF__VERDICT_FORM);
    assert_true(scene.next.rolled_back && scene.next.target == 3 && scene.next.order == 9);
    assert_int_equal(scene.next.units, 0);
    assert_true(scene.next.members[0].healed && scene.next.members[2].healed);

    reports(1, 3, false);
    assert_int_equal(decided(), RF__VERDICT_FORM);
    assert_goes_on(3);
    assert_int_equal(scene.next.chain, 1003);
    assert_int_equal(scene.next.order, 9);
    assert_int_equal(scene.next.count, 4);
    for (int i = 0; i < 4; i++) { /* the others copy it from that one */
        assert_int_equal(scene.next.members[i].healed, i == 1);
    }
    orders(11, 2); /* and again */
    assert_int_equal(decided(), RF__VERDICT_FORM);
    assert_goes_back(2, 11, 4);
}

static void nobody_that_is_left_makes_a_new_beginning(void **state) {
    (void)state;
    set_scene(3, 2);
    scene.facts.may_roll_back = true;
    scene.current.order = 8;
    scene.current.units = 5;
    stands_by(1, 501, 1);
    assert_int_equal(rf__decide_anew(&scene.facts, &scene.next), RF__VERDICT_TOO_FEW);
    stands_by(2, 502, 2); /* trains something else */
    stands_by(4, 504, 1);
    scene.candidates[2].seen = 6; /* it was granted that */
    stands_by(5, 505, 1);
    scene.candidates[3].wants = false;
    assert_int_equal(rf__decide_anew(&scene.facts, &scene.next), RF__VERDICT_TOO_FEW);
    stands_by(6, 506, 1);
    assert_int_equal(rf__decide_anew(&scene.facts, &scene.next), RF__VERDICT_FORM);
    assert_int_equal(scene.next.number, 8);
    assert_goes_back(RF__NEWEST_STEP, 8, 2);
    assert_int_equal(scene.next.members[0].id, 1);
    assert_int_equal(scene.next.members[0].nonce, 501);
    assert_int_equal(scene.next.members[1].id, 6);
    assert_int_equal(scene.next.dropped_count, 3);
    assert_true(scene.next.cause[0] != 0);
    orders(9, 3);
    assert_int_equal(rf__decide_anew(&scene.facts, &scene.next), RF__VERDICT_FORM);
    assert_goes_back(3, 9, 2);
    scene.facts.min_size = 1;
    scene.facts.max_size = 1;
    assert_int_equal(rf__decide_anew(&scene.facts, &scene.next), RF__VERDICT_FORM);
    assert_goes_back(3, 9, 1);
}

/* ---- Machines ---- */

static const struct rf__generation *generation_at(int w) {
    return rf__member_generation(world->machines[w]);
}

/* All that was put is told to all that live. */
static void tell_all(void) {
    for (int w = 0; w < world->count; w++) {
        while (!world->dead[w] && world->told[w] < world->change_count) {
            hear(w);
            act(w);
        }
    }
}

static void put_order(uint64_t nonce, uint64_t step) {
    struct rf__rollback order = {.nonce = nonce, .step = step};
    unsigned char bytes[RF__ROLLBACK_BYTES];
    put("rollback", bytes, rf__rollback_encode(&order, bytes, sizeof bytes));
}

static void note(int w, bool healed, uint64_t units, uint64_t chain) {
    struct rf__progress progress = {.healed = healed, .units = units, .chain = chain};
    assert_int_equal(rf__member_note(world->machines[w], generation_at(w)->number, &progress), 0);
}

/* Until all that live are in one generation after this one. */
static void settle_after(uint64_t number) {
    for (int k = 0; k < 400000; k++) {
        bool later = is_settled();
        for (int w = 0; w < world->count; w++) {
            later = later && (world->dead[w] || generation_at(w)->number > number);
        }
        if (later) {
            return;
        }
        turn();
    }
    settle();
    fail_msg("no generation came after number %d", (int)number);
}

static void revoke(int w) {
    rf__member_revoke(world->machines[w], "because");
    act(w);
}

static void kill_machine(int w) {
    world->dead[w] = true;
    for (int other = 0; other < world->count; other++) {
        int rank = rf__generation_find(generation_at(other), w, 0);
        if (!world->dead[other] && rank >= 0) {
            rf__member_doubt(world->machines[other], rank, RF__DOUBT_SILENT, "silent");
            act(other);
        }
    }
}

static void restart_machine(int w) {
    rf__member_destroy(world->machines[w]);
    start_machine(w);
}

static void assert_back(int w, uint64_t target, uint64_t order) {
    const struct rf__generation *g = generation_at(w);
    const struct rf__progress *p = rf__member_progress(world->machines[w]);

    assert_true(g->rolled_back && g->target == target && g->order == order);
    assert_int_equal(g->units, 0);
    for (int i = 0; i < g->count; i++) {
        assert_true(g->members[i].healed);
    }
    assert_true(p->healed && p->units == 0 && !p->prepared);
}

static void an_order_is_carried_out_once(void **state) {
    (void)state;
    open_world(3, 1, true, 21);
    settle();
    uint64_t number = generation_at(0)->number;
    for (int w = 0; w < 3; w++) {
        note(w, true, 5, 55);
        assert_false(rf__member_is_awaited(world->machines[w]));
    }
    put_order(9, 3);
    tell_all();
    for (int w = 0; w < 3; w++) {
        assert_true(rf__member_is_awaited(world->machines[w]));
    }
    revoke(0); /* as the group does at the end of a unit */
    settle_after(number);
    number = generation_at(0)->number;
    for (int w = 0; w < 3; w++) {
        assert_back(w, 3, 9);
    }
    put_order(9, 3); /* it is told again, as after a break of the connection */
    tell_all();
    for (int w = 0; w < 3; w++) {
        assert_false(rf__member_is_awaited(world->machines[w]));
    }
    revoke(1); /* nobody has restored it yet: the same in the next one */
    settle_after(number);
    number = generation_at(0)->number;
    assert_back(2, 3, 9);
    note(1, true, 3, 33); /* one has, when it ends again */
    revoke(1);
    settle_after(number);
    number = generation_at(0)->number;
    for (int w = 0; w < 3; w++) {
        const struct rf__generation *g = generation_at(w);
        assert_false(g->rolled_back);
        assert_int_equal(g->units, 3);
        assert_int_equal(g->chain, 33);
        assert_int_equal(g->order, 9);
        assert_int_equal(g->members[rf__generation_find(g, w, 0)].healed, w == 1);
        assert_int_equal(rf__member_progress(world->machines[w])->healed, w == 1);
    }
    put_order(10, RF__NEWEST_STEP); /* another one is another one */
    tell_all();
    assert_true(rf__member_is_awaited(world->machines[2]));
    revoke(2);
    settle_after(number);
    assert_back(0, RF__NEWEST_STEP, 10);
    close_world();
}

static void without_checkpoints_an_order_is_none(void **state) {
    (void)state;
    open_world(3, 1, false, 22);
    settle();
    uint64_t number = generation_at(0)->number;
    for (int w = 0; w < 3; w++) {
        note(w, true, 5, 55);
    }
    put_order(9, 3);
    tell_all();
    assert_false(rf__member_is_awaited(world->machines[0]));
    revoke(0);
    settle_after(number);
    assert_false(generation_at(1)->rolled_back);
    assert_int_equal(generation_at(1)->units, 5);
    close_world();
}

static void what_cannot_be_read_is_no_order(void **state) {
    static const unsigned char none[RF__ROLLBACK_BYTES] = {0};
    (void)state;
    open_world(2, 1, true, 23);
    settle();
    put("rollback", none, sizeof none);
    put("rollback", none, 3);
    put("rollback", NULL, 0);
    tell_all();
    assert_false(rf__member_is_awaited(world->machines[0]));
    close_world();
}

/* Until one of them has failed, or all have settled. */
static void settle_or_fail(uint64_t number) {
    for (int k = 0; k < 400000; k++) {
        for (int w = 0; w < world->count; w++) {
            if (!world->dead[w] && rf__member_state(world->machines[w]) == RF__MEMBER_FAILED) {
                return;
            }
        }
        if (is_settled() && generation_at(0)->number > number) {
            return;
        }
        turn();
    }
    fail_msg("nothing came of it");
}

/* Two find in their reports that they differ: both say that they hold nothing. */
static void a_divergence_goes_back_at_once(void **state) {
    (void)state;
    for (int may = 0; may < 2; may++) {
        open_world(2, 1, may, 24);
        settle();
        uint64_t number = generation_at(0)->number;
        int64_t began = world->now;
        for (int w = 0; w < 2; w++) {
            note(w, false, 5, 55);
        }
        revoke(0);
        revoke(1);
        settle_or_fail(number);
        if (may) {
            assert_back(0, RF__NEWEST_STEP, 0);
            assert_back(1, RF__NEWEST_STEP, 0);
            assert_true(world->now - began < 10 * DETECT_MS * MS); /* nobody was waited for */
        } else {
            const struct rf__member *m = world->machines[0];
            m = rf__member_state(m) == RF__MEMBER_FAILED ? m : world->machines[1];
            assert_int_equal(rf__member_state(m), RF__MEMBER_FAILED);
            assert_int_equal(rf__member_error(m)->code, RF_ESTATELESS);
        }
        close_world();
    }
}

static void differing_units_go_back_too(void **state) {
    (void)state;
    for (int may = 0; may < 2; may++) {
        open_world(2, 1, may, 25);
        settle();
        uint64_t number = generation_at(0)->number;
        for (int w = 0; w < 2; w++) {
            struct rf__progress progress = {.healed = true,
                                            .units = 5,
                                            .chain = 55,
                                            .prepared = true,
                                            .prepared_chain = 60 + (uint64_t)w};
            assert_int_equal(rf__member_note(world->machines[w], number, &progress), 0);
        }
        revoke(0);
        settle_or_fail(number);
        if (may) {
            assert_back(0, RF__NEWEST_STEP, 0);
        } else {
            const struct rf__member *m = world->machines[0];
            m = rf__member_state(m) == RF__MEMBER_FAILED ? m : world->machines[1];
            assert_int_equal(rf__member_error(m)->code, RF_EDIVERGED);
        }
        close_world();
    }
}

/* Workers 0 and 1 held the state and have died; worker 2 was copying it. */
static void open_stateless(uint64_t seed) {
    open_world(3, 1, true, seed);
    settle();
    note(0, true, 5, 55);
    note(1, true, 5, 55);
    note(2, false, 0, 0);
    world->dead[0] = true;
    kill_machine(1);
    rf__member_doubt(world->machines[2], rf__generation_find(generation_at(2), 0, 0),
                     RF__DOUBT_SILENT, "silent");
    act(2);
}

static void who_may_hold_the_state_is_waited_for(void **state) {
    (void)state;
    open_stateless(26);
    uint64_t number = generation_at(2)->number;
    int64_t began = world->now;
    while (world->now - began < 8 * DETECT_MS * MS) {
        turn();
        assert_int_equal(rf__member_state(world->machines[2]), RF__MEMBER_REVOKED);
    }
    assert_non_null(strstr(rf__member_waits_for(world->machines[2]), "holds the state"));
    settle_after(number);
    assert_back(2, RF__NEWEST_STEP, 0);
    assert_int_equal(generation_at(2)->count, 1);
    close_world();
}

static void who_was_started_again_holds_nothing(void **state) {
    (void)state;
    open_stateless(27);
    uint64_t number = generation_at(2)->number;
    int64_t began = world->now;
    restart_machine(0);
    restart_machine(1);
    tell_all();
    for (int k = 0; k < 400000 && generation_at(2)->number == number; k++) {
        turn();
    }
    assert_true(generation_at(2)->number > number);
    assert_true(world->now - began < 8 * DETECT_MS * MS); /* at once, as that is certain */
    assert_back(2, RF__NEWEST_STEP, 0);
    assert_int_equal(generation_at(2)->count, 3);
    settle();
    assert_back(0, RF__NEWEST_STEP, 0);
    close_world();
}

static void all_started_again_begin_anew(void **state) {
    (void)state;
    for (int how = 0; how < 4; how++) { /* 1: with an order; 2: without checkpoints; 3: one less */
        open_world(3, how == 3 ? 2 : 3, how != 2, 28 + (uint64_t)how);
        settle();
        uint64_t number = generation_at(0)->number;
        for (int w = 0; w < 3; w++) {
            note(w, true, 5, 55);
        }
        if (how == 1) {
            put_order(9, 4);
        }
        for (int w = 0; w < 3; w++) {
            world->dead[w] = true;
        }
        if (how == 3) { /* its lease has run out */
            put("m/2", NULL, 0);
        }
        for (int w = 0; w < (how == 3 ? 2 : 3); w++) {
            restart_machine(w);
        }
        if (how == 2) {
            settle_or_fail(number);
            for (int w = 0; w < 3; w++) {
                enum rf__member_state s = rf__member_state(world->machines[w]);
                assert_true(s == RF__MEMBER_FAILED || s == RF__MEMBER_JOINING);
                if (s == RF__MEMBER_FAILED) {
                    assert_int_equal(rf__member_error(world->machines[w])->code, RF_ESTATELESS);
                }
            }
        } else {
            settle_after(number);
            assert_int_equal(generation_at(0)->number, number + 1);
            assert_int_equal(generation_at(0)->count, how == 3 ? 2 : 3);
            assert_back(0, how == 1 ? 4 : RF__NEWEST_STEP, how == 1 ? 9 : 0);
            assert_back(1, how == 1 ? 4 : RF__NEWEST_STEP, how == 1 ? 9 : 0);
        }
        close_world();
    }
}

/* As long as one of them lives, the new ones wait for it to take them in. */
static void one_that_lives_is_enough(void **state) {
    (void)state;
    open_world(3, 1, true, 40);
    settle();
    uint64_t number = generation_at(0)->number;
    for (int w = 0; w < 3; w++) {
        note(w, true, 5, 55);
    }
    kill_machine(1);
    kill_machine(2);
    restart_machine(1);
    restart_machine(2);
    for (int k = 0; k < 400000 && !(is_settled() && generation_at(0)->number > number); k++) {
        turn();
        if (rf__member_is_awaited(world->machines[0])) {
            revoke(0);
        }
    }
    settle();
    const struct rf__generation *g = generation_at(0);
    assert_false(g->rolled_back);
    assert_int_equal(g->units, 5);
    assert_true(g->members[rf__generation_find(g, 0, 0)].healed);
    assert_false(g->members[rf__generation_find(g, 1, 0)].healed);
    close_world();
}

/* Deaths, returns and orders in any order: numbers follow each other, each order is carried out
 * once at most and none after a later one, and the last one always is. */
static void anything_may_happen(void **state) {
    (void)state;
    for (uint64_t seed = 100; seed < 160; seed++) {
        int count = 2 + (int)(seed % 4);
        uint64_t nonce = 1000;
        open_world(count, 1, true, seed);
        settle();
        for (int event = 0; event < 6; event++) {
            uint64_t number = 0;
            for (int w = 0; w < count; w++) {
                uint64_t own = world->dead[w] ? 0 : generation_at(w)->number;
                number = own > number ? own : number;
            }
            int w = (int)rf__rng_below(&world->rng, (uint64_t)count);
            switch (rf__rng_below(&world->rng, 3)) {
            case 0:
                put_order(++nonce, rf__rng_below(&world->rng, 5));
                break;
            case 1:
                kill_machine(w);
                restart_machine(w);
                break;
            default:
                note(w, true, number * 3, number);
                break;
            }
            for (int k = (int)rf__rng_below(&world->rng, 300); k > 0; k--) {
                turn();
            }
            /* at the end of a unit the group ends its generation where it is asked to */
            for (int k = 0; k < 400000 && !is_settled(); k++) {
                turn();
                for (int i = 0; i < count; i++) {
                    if (rf__member_is_awaited(world->machines[i])) {
                        revoke(i);
                    }
                }
            }
            settle();
        }
        tell_all();
        for (int w = 0; w < count; w++) {
            if (rf__member_is_awaited(world->machines[w])) {
                uint64_t number = generation_at(w)->number;
                revoke(w);
                settle_after(number);
                break;
            }
        }
        assert_int_equal(generation_at(0)->order, nonce == 1000 ? 0 : nonce);
        for (int i = 1; i < world->generation_count; i++) {
            assert_int_equal(world->generations[i], world->generations[i - 1] + 1);
            assert_true(world->orders[i] >= world->orders[i - 1]);
        }
        close_world();
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(records_carry_it),
        cmocka_unit_test(orders_survive_their_bytes),
        cmocka_unit_test(mutated_records_are_refused_or_bounded),
        cmocka_unit_test(an_order_is_for_all),
        cmocka_unit_test(nobody_with_the_state_is_waited_for_at_first),
        cmocka_unit_test(without_a_majority_all_go_back),
        cmocka_unit_test(who_has_restored_counts),
        cmocka_unit_test(nobody_that_is_left_makes_a_new_beginning),
        cmocka_unit_test(an_order_is_carried_out_once),
        cmocka_unit_test(without_checkpoints_an_order_is_none),
        cmocka_unit_test(what_cannot_be_read_is_no_order),
        cmocka_unit_test(a_divergence_goes_back_at_once),
        cmocka_unit_test(differing_units_go_back_too),
        cmocka_unit_test(who_may_hold_the_state_is_waited_for),
        cmocka_unit_test(who_was_started_again_holds_nothing),
        cmocka_unit_test(all_started_again_begin_anew),
        cmocka_unit_test(one_that_lives_is_enough),
        cmocka_unit_test(anything_may_happen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
