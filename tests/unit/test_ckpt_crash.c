/* Checkpoints on a disk that loses power before every call that changes it, in many variants of
 * what is left: what a restart finds as the newest checkpoint that verifies is one of those that
 * were written, to the byte, and never an older one than the last that was complete. */
#include "ckpt/checkpoint.h"
#include "os/file.h"
#include "support/checkpoints.h"
#include "support/fake_files.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

enum { VARIANTS = 24, PARTS = 2 };

/* How far the work got, and what was found afterwards. */
struct progress {
    struct test_state ten, twenty;
    bool ten_done, twenty_done, pruned;
    bool ten_before; /* the first one was complete long before */
    long found_none, found_ten, found_twenty;
};

static struct rf__blobs *open_root(struct fake_files *disk) {
    struct rf__blobs *blobs = NULL;
    assert_int_equal(rf__file_blobs_create("/data/ckpt", &disk->sys, &blobs, NULL), 0);
    return blobs;
}

static void prepare(struct fake_files *disk, void *context) {
    struct progress *p = context;
    p->ten_done = p->twenty_done = p->pruned = false;
    if (p->ten_before) {
        struct rf__blobs *blobs = open_root(disk);
        assert_int_equal(test_write(blobs, &p->ten.state, test_id(10), PARTS, NULL), 0);
        blobs->ops->destroy(blobs);
        fake_files_settle(disk);
    }
}

static void work(struct fake_files *disk, void *context) {
    struct progress *p = context;
    struct rf__blobs *blobs = open_root(disk);
    struct rf__ckpt_pruned pruned;

    p->ten_done = p->ten_before || !test_write(blobs, &p->ten.state, test_id(10), PARTS, NULL);
    p->twenty_done = p->ten_done && !test_write(blobs, &p->twenty.state, test_id(20), PARTS, NULL);
    p->pruned = p->twenty_done && !rf__ckpt_prune(blobs, 1, &pruned, NULL);
    blobs->ops->destroy(blobs);
}

static void expect(bool holds, const char *what, long at, unsigned variant) {
    if (!holds) {
        fail_msg("crash before change %ld, variant %u: %s", at, variant, what);
    }
}

/* What a restart takes: the step, or -1. What it loads is exactly that step's state. */
static int64_t restart(struct rf__blobs *blobs, const struct progress *p, long at,
                       unsigned variant) {
    struct rf__ckpt_list list;
    struct test_state loaded;
    int64_t step = -1;

    test_state_make(&loaded, 99);
    assert_int_equal(rf__ckpt_list(blobs, &list, NULL), 0);
    for (int i = list.count - 1; i >= 0; i--) {
        const struct rf__ckpt_entry *entry = &list.entries[i];
        expect(entry->condition != RF__CKPT_BAD, "a crash made a bad one", at, variant);
        if (entry->condition == RF__CKPT_WHOLE) {
            expect(!rf__ckpt_load(blobs, entry->manifest, &loaded.state, NULL),
                   "a crash left what looks whole and is not", at, variant);
            const struct test_state *from = entry->id.step == 10 ? &p->ten : &p->twenty;
            expect(test_state_equal(&loaded, from), "a mix was loaded", at, variant);
            step = step < 0 ? (int64_t)entry->id.step : step;
        }
    }
    rf__ckpt_list_free(&list);
    test_state_free(&loaded);
    return step;
}

static void check(struct fake_files *after, long at, unsigned variant, void *context) {
    struct progress *p = context;
    struct rf__blobs *blobs = open_root(after);
    struct rf__ckpt_pruned pruned;
    struct rf__ckpt_list list;
    int64_t step = restart(blobs, p, at, variant);

    expect(step == 20 || !p->twenty_done, "20 was complete and is gone", at, variant);
    expect(step >= 10 || !p->ten_done, "10 was complete and nothing is left", at, variant);
    p->found_none += step < 0;
    p->found_ten += step == 10;
    p->found_twenty += step == 20;

    /* Life goes on: the same is written again, pruned, and nothing else remains. */
    after->wall_s += 7200;
    expect(!test_write(blobs, &p->twenty.state, test_id(20), PARTS, NULL), "no second life", at,
           variant);
    expect(!rf__ckpt_prune(blobs, 1, &pruned, NULL), "cannot be pruned", at, variant);
    assert_int_equal(rf__ckpt_list(blobs, &list, NULL), 0);
    expect(list.count == 1 && list.entries[0].id.step == 20 &&
               list.entries[0].condition == RF__CKPT_WHOLE,
           "leftovers remain", at, variant);
    expect(fake_files_entries(after, "/data/ckpt") <= 2, "folders remain", at, variant);
    rf__ckpt_list_free(&list);
    blobs->ops->destroy(blobs);
}

static void run(bool ten_before) {
    struct progress p = {.ten_before = ten_before};
    struct fake_crash_plan plan = {
        .prepare = prepare, .work = work, .check = check, .context = &p, .variants = VARIANTS};
    test_state_make(&p.ten, 1);
    test_state_make(&p.twenty, 2);
    long shown = fake_files_each_crash(&plan);
    print_message("%ld disks: %ld had no checkpoint, %ld the first, %ld the second\n", shown,
                  p.found_none, p.found_ten, p.found_twenty);
    assert_int_equal(shown, p.found_none + p.found_ten + p.found_twenty);
    assert_true(p.pruned); /* the last round got through */
    assert_true(p.found_ten > 100 && p.found_twenty > 100);
    assert_int_equal(p.found_none > 100, !ten_before);
    test_state_free(&p.ten);
    test_state_free(&p.twenty);
}

static void from_an_empty_disk(void **unused) {
    (void)unused;
    run(false);
}

static void with_one_that_was_complete(void **unused) {
    (void)unused;
    run(true);
}

/* The second is written again by a group of another size, over what an earlier attempt left. */
static void over_the_leftovers_of_an_attempt(void **unused) {
    struct test_state s;
    (void)unused;
    test_state_make(&s, 1);
    for (long cut = 0; cut < 200; cut += 7) {
        struct fake_files *disk = fake_files_create();
        struct rf__blobs *blobs = open_root(disk);
        struct rf__ckpt_list list;
        disk->power_off_at = cut;
        int code = test_write(blobs, &s.state, test_id(10), 3, NULL);
        disk->power_off_at = FAKE_NEVER;
        if (!code) {
            cut = 1000; /* there was nothing to cut off any more */
        }
        code = test_write(blobs, &s.state, test_id(10), code ? PARTS : 3, NULL);
        assert_int_equal(code, 0);
        assert_int_equal(rf__ckpt_list(blobs, &list, NULL), 0);
        assert_int_equal(list.count, 1);
        assert_int_equal(list.entries[0].condition, RF__CKPT_WHOLE);
        assert_int_equal(rf__ckpt_verify(blobs, list.entries[0].manifest, NULL, NULL, NULL), 0);
        rf__ckpt_list_free(&list);
        blobs->ops->destroy(blobs);
        fake_files_destroy(disk);
    }
    test_state_free(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(from_an_empty_disk),
        cmocka_unit_test(with_one_that_was_complete),
        cmocka_unit_test(over_the_leftovers_of_an_attempt),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
