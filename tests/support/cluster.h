/* The groups of all ranks of a job within one process, over the links of fake_net.h and a clock
 * that the test moves on: opened, formed, stepped one after the other, closed. */
#ifndef TESTS_SUPPORT_CLUSTER_H
#define TESTS_SUPPORT_CLUSTER_H

#include "support/fake_net.h"

#include "group/group.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

struct cluster {
    int size;
    int64_t now;
    struct fake_world *world;
    struct rf__group *groups[FAKE_MAX];
    bool dead[FAKE_MAX]; /* not stepped any more */
};

/* Zero stands for what most tests want. */
struct cluster_options {
    bool shared;          /* memory, among the ranks of a host */
    int local;            /* ranks on each host where memory is shared; 0: all on one */
    size_t most;          /* bytes that a read or write moves; 0: as many as fit */
    int lanes;            /* of each link between hosts; 0: one */
    bool late;            /* further lanes are there when the test says so */
    int stingy;           /* once it has formed */
    int start_timeout_ms; /* 0: 1000 */
    uint64_t seed;
};

static void step_all(struct cluster *c) {
    c->now += 1000;
    for (int rank = 0; rank < c->size; rank++) {
        if (!c->dead[rank]) {
            (void)rf__group_step(c->groups[rank], c->now);
        }
    }
}

/* All groups are there, none has made a step. */
static void create_cluster(struct cluster *c, int size, const struct cluster_options *options) {
    const char *endpoints[FAKE_MAX];
    struct rf_error err;

    *c = (struct cluster){.size = size, .now = 1};
    c->world = fake_world_create(size, options->shared, options->most, options->seed);
    c->world->local = options->local;
    c->world->late = options->late;
    if (options->lanes) {
        fake_set_lanes(c->world, options->lanes);
    }
    for (int rank = 0; rank < size; rank++) {
        endpoints[rank] = "fake";
    }
    for (int rank = 0; rank < size; rank++) {
        struct rf__group_options group = {
            .job = "test",
            .rank = rank,
            .size = size,
            .detect_ms = 3000,
            .start_timeout_ms = options->start_timeout_ms ? options->start_timeout_ms : 1000,
            .net = size > 1 ? &c->world->nets[rank].net : NULL,
            .endpoints = endpoints,
            .generation = 7};
        assert_int_equal(rf__group_create(&group, c->now, &c->groups[rank], &err), 0);
    }
}

static void form_cluster(struct cluster *c, int size, const struct cluster_options *options) {
    create_cluster(c, size, options);
    for (int i = 0; i < 10; i++) {
        step_all(c);
    }
    for (int rank = 0; rank < size; rank++) {
        assert_int_equal(rf__group_state(c->groups[rank]), RF__GROUP_RUNNING);
    }
    c->world->stingy = options->stingy;
}

static void close_cluster(struct cluster *c) {
    for (int rank = 0; rank < c->size; rank++) {
        rf__group_destroy(c->groups[rank]);
    }
    fake_world_destroy(c->world);
}

#endif
