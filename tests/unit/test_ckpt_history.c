/* How checkpoints are related, from what their manifests tell. Histories are made by a walk: each
 * step's digest follows from the one before and the branch it is on, as in training. */
#include "base/digest.h"
#include "ckpt/history.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MANIFESTS = 100 };

/* A training that goes on: its chain, and the checkpoints that it took. */
struct walk {
    uint64_t step, units, chain, branch;
    struct rf__ckpt_id taken[256]; /* newest last */
    int taken_count;
    uint64_t digests[RF__CKPT_DIGESTS];
    int digest_count;
    bool tells; /* its manifests have the steps' digests */
};

static struct rf__ckpt_manifest manifests[MANIFESTS];
static uint64_t *memory[2 * MANIFESTS];
static int manifest_count, memory_count;

static struct walk begin(bool tells) {
    manifest_count = 0;
    return (struct walk){.chain = 7, .tells = tells};
}

static void measure(struct walk *w) {
    w->units++;
    w->chain = rf__digest_mix(w->chain, 999);
}

static void train(struct walk *w, int steps) {
    for (int i = 0; i < steps; i++) {
        w->step++;
        w->units++;
        w->chain = rf__digest_mix(w->chain, w->step * 1000 + w->branch);
        w->digests[w->digest_count++] = w->chain;
    }
}

static void *kept(const void *bytes, size_t count) {
    void *copy = malloc(count + 1);
    assert_true(memory_count < 2 * MANIFESTS);
    memcpy(copy, bytes, count);
    return memory[memory_count++] = copy;
}

/* Its index; the walk goes on as one that has it as its parent. `noted`: unless its writing failed
 * for all that the members know. */
static int take(struct walk *w, bool noted) {
    struct rf__ckpt_manifest *m = &manifests[manifest_count];
    struct rf__ckpt_id ancestors[RF__CKPT_ANCESTORS];
    int count = 0;

    assert_true(manifest_count < MANIFESTS);
    for (int i = w->taken_count - 1; i >= 0 && count < RF__CKPT_ANCESTORS; i--) {
        ancestors[count++] = w->taken[i];
    }
    *m = (struct rf__ckpt_manifest){.id = {w->step, w->chain}, .units = w->units};
    m->ancestors = kept(ancestors, (size_t)count * sizeof *ancestors);
    m->ancestor_count = count;
    if (w->tells && w->digest_count) {
        m->digests = kept(w->digests, (size_t)w->digest_count * sizeof *w->digests);
        m->digest_count = w->digest_count;
        m->first_step = w->step - (uint64_t)w->digest_count + 1;
    }
    if (noted) {
        w->taken[w->taken_count++] = m->id;
        w->digest_count = 0;
    }
    return manifest_count++;
}

static int drop_memory(void **unused) {
    (void)unused;
    while (memory_count) {
        free(memory[--memory_count]);
    }
    return 0;
}

static struct rf__ckpt_relation relation(int a, int b) {
    struct rf__ckpt_relation r, back;
    rf__ckpt_relate(&manifests[a], &manifests[b], &r);
    rf__ckpt_relate(&manifests[b], &manifests[a], &back);
    switch (r.kind) { /* the same from the other side */
    case RF__CKPT_SAME:
    case RF__CKPT_UNKNOWN:
        assert_int_equal(back.kind, r.kind);
        break;
    case RF__CKPT_PARTED:
        assert_int_equal(back.kind, r.kind);
        assert_int_equal(back.first, r.first);
        assert_int_equal(back.last, r.last);
        assert_int_equal(back.has_common, r.has_common);
        assert_int_equal(back.common.step, r.common.step);
        break;
    case RF__CKPT_ANCESTOR:
        assert_int_equal(back.kind, RF__CKPT_DESCENDANT);
        break;
    case RF__CKPT_DESCENDANT:
        assert_int_equal(back.kind, RF__CKPT_ANCESTOR);
        break;
    }
    return r;
}

static void expect_parted(int a, int b, int64_t common, uint64_t first, uint64_t last) {
    struct rf__ckpt_relation r = relation(a, b);
    assert_int_equal(r.kind, RF__CKPT_PARTED);
    assert_int_equal(r.has_common, common >= 0);
    assert_int_equal(r.common.step, common >= 0 ? common : 0);
    assert_int_equal(r.first, first);
    assert_int_equal(r.last, last);
}

static void one_history_has_ancestors(void **unused) {
    (void)unused;
    for (int tells = 0; tells < 2; tells++) {
        struct walk w = begin(tells);
        int at[4];
        for (int i = 0; i < 4; i++) {
            train(&w, 10);
            at[i] = take(&w, true);
        }
        for (int i = 0; i < 4; i++) {
            assert_int_equal(relation(at[i], at[i]).kind, RF__CKPT_SAME);
            for (int k = 0; k < i; k++) {
                assert_int_equal(relation(at[k], at[i]).kind, RF__CKPT_ANCESTOR);
            }
        }
    }
}

/* Both go on from checkpoint 20: one step is the first that differs, and known where both tell. */
static void two_that_went_on_from_one(void **unused) {
    (void)unused;
    for (int tells = 0; tells < 2; tells++) {
        struct walk a = begin(tells), b;
        train(&a, 10);
        take(&a, true);
        train(&a, 10);
        take(&a, true);
        b = a;
        b.branch = 1;
        train(&a, 10);
        train(&b, 7);
        int x = take(&a, true), y = take(&b, true);
        expect_parted(x, y, 20, 21, tells ? 21 : 27);
        train(&a, 10);
        train(&b, 30);
        expect_parted(take(&a, true), take(&b, true), 20, 21, tells ? 31 : 40);
    }
}

/* They part in the middle between two checkpoints. */
static void the_step_is_exact_where_both_tell(void **unused) {
    struct walk a = begin(true), b;
    (void)unused;
    train(&a, 20);
    take(&a, true);
    train(&a, 4);
    b = a;
    b.branch = 1;
    train(&a, 6);
    train(&b, 16);
    int x = take(&a, true);
    expect_parted(x, take(&b, false), 20, 25, 25);
    b.tells = false;
    expect_parted(x, take(&b, true), 20, 21, 30);
}

static void without_a_common_checkpoint(void **unused) {
    struct walk a = begin(true), b;
    (void)unused;
    train(&a, 3);
    b = a;
    b.branch = 1;
    train(&a, 2);
    train(&b, 3);
    expect_parted(take(&a, true), take(&b, true), -1, 4, 4);
}

/* A checkpoint that its own group took for failed is known by the digests. */
static void one_that_was_not_noted(void **unused) {
    struct walk w = begin(true), other;
    (void)unused;
    train(&w, 10);
    take(&w, true);
    train(&w, 10);
    other = w;
    int lost = take(&w, false);
    train(&w, 10);
    int next = take(&w, true);
    assert_int_equal(relation(lost, next).kind, RF__CKPT_ANCESTOR);
    other.branch = 1;
    train(&other, 5);
    int parted = take(&other, true);
    expect_parted(parted, next, 10, 21, 21);
    assert_int_equal(relation(lost, parted).kind, RF__CKPT_ANCESTOR);
}

/* A measurement lengthens the chain and changes nothing of the training. */
static void measurements_are_no_parting(void **unused) {
    struct walk w = begin(true);
    (void)unused;
    train(&w, 10);
    int before = take(&w, false);
    measure(&w);
    int after = take(&w, true);
    assert_int_equal(relation(before, after).kind, RF__CKPT_ANCESTOR);
    train(&w, 10);
    int next = take(&w, true);
    assert_int_equal(relation(after, next).kind, RF__CKPT_ANCESTOR);
}

static void too_far_apart_is_unknown(void **unused) {
    struct walk w = begin(true);
    int first = -1, last = -1;
    (void)unused;
    for (int i = 0; i < RF__CKPT_ANCESTORS + 2; i++) {
        train(&w, 2);
        last = take(&w, true);
        first = first < 0 ? last : first;
    }
    assert_int_equal(relation(first, last).kind, RF__CKPT_UNKNOWN);
    assert_int_equal(relation(first, last - 1).kind, RF__CKPT_ANCESTOR);
    assert_int_equal(relation(first + 1, last).kind, RF__CKPT_ANCESTOR);
}

static struct rf__ckpt_histories histories(void) {
    const struct rf__ckpt_manifest *all[MANIFESTS] = {0};
    struct rf__ckpt_histories h;
    for (int i = 0; i < manifest_count; i++) {
        all[i] = &manifests[i];
    }
    rf__ckpt_histories(all, manifest_count, &h);
    return h;
}

static void tips_are_found(void **unused) {
    struct walk a = begin(true), b, c;
    (void)unused;
    assert_int_equal(histories().tips, 0);
    train(&a, 10);
    take(&a, true);
    assert_int_equal(histories().tips, 1);
    train(&a, 5);
    b = a;
    b.branch = 1;
    train(&a, 5);
    int x = take(&a, true);
    struct rf__ckpt_histories h = histories();
    assert_int_equal(h.tips, 1);
    assert_int_equal(h.tip[0], x);
    train(&b, 25);
    int y = take(&b, true);
    h = histories();
    assert_int_equal(h.tips, 2);
    assert_int_equal(h.tip[0], y);
    assert_int_equal(h.tip[1], x);
    assert_int_equal(h.parted.kind, RF__CKPT_PARTED);
    assert_int_equal(h.parted.common.step, 10);
    assert_int_equal(h.parted.first, 16);
    assert_int_equal(h.parted.last, 16);
    c = b;
    c.branch = 2;
    train(&b, 1);
    train(&c, 2);
    take(&b, true);
    int z = take(&c, true);
    h = histories();
    assert_int_equal(h.tips, 3);
    assert_int_equal(h.tip[0], z);
    assert_int_equal(h.tip[2], x);
    assert_int_equal(h.parted.common.step, 40);
}

static void more_tips_than_are_told(void **unused) {
    struct walk base = begin(true);
    (void)unused;
    train(&base, 5);
    for (uint64_t i = 0; i < RF__CKPT_TIPS + 5; i++) {
        struct walk w = base;
        w.branch = i + 1;
        train(&w, 1 + (int)(i * 8 % (RF__CKPT_TIPS + 5)));
        take(&w, true);
    }
    struct rf__ckpt_histories h = histories();
    assert_int_equal(h.tips, RF__CKPT_TIPS + 5);
    for (int i = 0; i < RF__CKPT_TIPS; i++) {
        assert_int_equal(manifests[h.tip[i]].id.step, 5 + RF__CKPT_TIPS + 5 - i);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(one_history_has_ancestors, drop_memory),
        cmocka_unit_test_teardown(two_that_went_on_from_one, drop_memory),
        cmocka_unit_test_teardown(the_step_is_exact_where_both_tell, drop_memory),
        cmocka_unit_test_teardown(without_a_common_checkpoint, drop_memory),
        cmocka_unit_test_teardown(one_that_was_not_noted, drop_memory),
        cmocka_unit_test_teardown(measurements_are_no_parting, drop_memory),
        cmocka_unit_test_teardown(too_far_apart_is_unknown, drop_memory),
        cmocka_unit_test_teardown(tips_are_found, drop_memory),
        cmocka_unit_test_teardown(more_tips_than_are_told, drop_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
