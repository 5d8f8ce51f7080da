/* For the tests of member/: facts for a decision, put together piece by piece; and several machines
 * over one store of the test's own that reaches each of them late, in any order of workers. Time is
 * the test's own, too. */
#ifndef TESTS_MEMBER_WORLD_H
#define TESTS_MEMBER_WORLD_H

#include "base/rng.h"
#include "member/decide.h"
#include "member/member.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MS 1000000ll

enum { MOST = 8 };

/* ---- Records ---- */

static inline struct rf__report report_of(int id, uint64_t units, bool prepared) {
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

static inline struct rf__generation generation_of(int count) {
    struct rf__generation g = {.number = 7, .count = count};
    for (int i = 0; i < count; i++) {
        g.members[i] =
            (struct rf__member_entry){.id = i, .nonce = 100 + (uint64_t)i, .healed = true};
    }
    return g;
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

static inline void set_scene(int size, int min) {
    memset(&scene, 0, sizeof scene);
    scene.current = generation_of(size);
    scene.facts = (struct rf__facts){.current = &scene.current,
                                     .reports = scene.seen,
                                     .candidates = scene.listed,
                                     .min_size = min,
                                     .max_size = MOST,
                                     .config = 1};
}

static inline struct rf__report *reports(int id, uint64_t units, bool prepared) {
    scene.reports[id] = report_of(id, units, prepared);
    scene.seen[id] = &scene.reports[id];
    return &scene.reports[id];
}

static inline void suspects(int id, int suspect, enum rf__doubt doubt) {
    struct rf__report *r = &scene.reports[id];
    r->suspects[r->suspect_count++] = (struct rf__suspect){.id = suspect, .doubt = doubt};
}

static inline void stands_by(int id, uint64_t nonce, uint64_t config) {
    int i = scene.facts.candidate_count++;
    scene.candidates[i] = (struct rf__candidate){
        .id = id, .nonce = nonce, .config = config, .wants = true, .seen = 7};
    scene.listed[i] = &scene.candidates[i];
}

static inline enum rf__verdict decided(void) {
    return rf__decide(&scene.facts, &scene.next);
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
    uint64_t generations[CHANGES],
        orders[CHANGES]; /* as swapped in: numbers, orders to roll back */
    int generation_count;
    bool opened[MOST];
    int min, starts[MOST];
    bool may_roll_back;
};

static struct world *world;

static inline void put(const char *key, const unsigned char *bytes, size_t length) {
    struct change *c = &world->changes[world->change_count++];
    assert_true(world->change_count < CHANGES && length <= sizeof c->bytes);
    snprintf(c->key, sizeof c->key, "%s", key);
    c->gone = !bytes;
    c->length = length;
    if (bytes) {
        memcpy(c->bytes, bytes, length);
    }
}

static inline void swap(int w, const struct rf__member_action *action) {
    static struct rf__generation g;

    if (action->revision == world->generation_revision) {
        put("generation", action->bytes, action->length);
        world->generation_revision = world->change_count;
        assert_int_equal(rf__generation_decode(action->bytes, action->length, &g), 0);
        world->orders[world->generation_count] = g.order;
        world->generations[world->generation_count++] = g.number;
    }
    rf__member_swapped(world->machines[w], true);
}

static inline void act(int w) {
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

static inline void hear(int w) {
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
    } else if (!strcmp(c->key, "rollback")) {
        rf__member_see_rollback(m, bytes, c->length);
    } else {
        rf__member_see_candidate(m, c->key[2] - '0', bytes, c->length);
    }
}

/* Links are up once all members of the generation have opened theirs. */
static inline void link_up(int w) {
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

/* The worker as its process starts: also again. */
static inline void start_machine(int w) {
    int start = world->starts[w]++;
    struct rf__member_options options = {.id = w,
                                         .nonce = 900 + (uint64_t)w + 100 * (uint64_t)start,
                                         .restarts = (uint32_t)start,
                                         .min_size = world->min,
                                         .max_size = MOST,
                                         .start_size = world->count,
                                         .detect_ns = 1000 * MS,
                                         .start_timeout_ns = 60000 * MS,
                                         .endpoint = "somewhere"};
    world->dead[w] = false;
    world->told[w] = 0;
    assert_int_equal(rf__member_create(&options, world->now, &world->machines[w]), 0);
    while (world->told[w] < world->change_count) { /* all that was there */
        hear(w);
    }
    rf__member_synced(world->machines[w]);
    rf__member_enter(world->machines[w], 42, world->may_roll_back);
    act(w);
}

static inline void open_world(int count, int min, bool may_roll_back, uint64_t seed) {
    world = test_calloc(1, sizeof *world);
    world->count = count;
    world->min = min;
    world->may_roll_back = may_roll_back;
    world->rng = rf__rng(seed, 0, 0);
    for (int w = 0; w < count; w++) {
        start_machine(w);
    }
}

static inline void close_world(void) {
    for (int w = 0; w < world->count; w++) {
        rf__member_destroy(world->machines[w]);
    }
    test_free(world);
}

static inline void turn(void) {
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
static inline bool is_settled(void) {
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

static inline void settle(void) {
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

#endif
