/* os/file over a disk that loses power before every call that changes it, in many variants of what
 * is left: for each name a reader finds nothing, or one of the contents that were given to it,
 * whole; and once `finish` or `remove` has returned, what it promised, for good. */
#include "base/rng.h"
#include "os/file.h"
#include "support/fake_files.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

enum { VARIANTS = 60, BYTES = 5000 };

/* How far the work got, and whether the second object has the name to itself. */
struct progress {
    bool old_done, new_done, only_done, removed, other_begun, other_done;
    bool no_rename_new;
    long checked, found_old, found_new, found_nothing;
};

static unsigned char old_content[BYTES], new_content[BYTES + 17], only_content[33];

static struct rf__blobs *open_root(struct fake_files *disk) {
    struct rf__blobs *blobs = NULL;
    assert_int_equal(rf__file_blobs_create("/data/run/ckpt", &disk->sys, &blobs, NULL), 0);
    return blobs;
}

/* In two pieces, so that there is a write to crash before. */
static bool put(struct rf__blobs *blobs, const char *name, const unsigned char *bytes, size_t count,
                bool only_new) {
    struct rf__blob_writer *writer = NULL;
    if (blobs->ops->create(blobs, name, &writer, NULL)) {
        return false;
    }
    if (blobs->ops->write(blobs, writer, bytes, count / 3, NULL) ||
        blobs->ops->write(blobs, writer, bytes + count / 3, count - count / 3, NULL)) {
        blobs->ops->abandon(blobs, writer);
        return false;
    }
    return blobs->ops->finish(blobs, writer, only_new, NULL) == 0;
}

enum found { NOTHING, OLD, NEW, ONLY };

/* Which of the contents stands there; anything else fails the test. */
static enum found look(struct rf__blobs *blobs, const char *name, long at, unsigned variant) {
    static unsigned char got[2 * BYTES];
    struct rf__blob *blob = NULL;
    struct rf_error err = {0};
    uint64_t size = 0;
    enum found found = NOTHING;

    int code = blobs->ops->open(blobs, name, &blob, &size, &err);
    if (code == RF_ENOTFOUND) {
        return NOTHING;
    }
    assert_int_equal(code, 0);
    ssize_t count = blobs->ops->read(blobs, blob, 0, got, sizeof got, &err);
    blobs->ops->close(blobs, blob);
    assert_true(count >= 0 && (uint64_t)count == size);
    if (count == BYTES && !memcmp(got, old_content, BYTES)) {
        found = OLD;
    } else if (count == sizeof new_content && !memcmp(got, new_content, sizeof new_content)) {
        found = NEW;
    } else if (count == sizeof only_content && !memcmp(got, only_content, sizeof only_content)) {
        found = ONLY;
    } else {
        fail_msg("crash before change %ld, variant %u: '%s' holds %zd bytes of no known content",
                 at, variant, name, count);
    }
    return found;
}

static void expect(bool holds, const char *what, long at, unsigned variant) {
    if (!holds) {
        fail_msg("crash before change %ld, variant %u: %s", at, variant, what);
    }
}

/* ---- old, replaced by new; another that is only new ---- */

static void nothing_before(struct fake_files *disk, void *context) {
    struct progress *progress = context;
    progress->old_done = progress->new_done = progress->only_done = false;
    progress->removed = progress->other_begun = progress->other_done = false;
    disk->no_rename_new = progress->no_rename_new;
    disk->write_most = 1500;
}

static void write_and_replace(struct fake_files *disk, void *context) {
    struct progress *progress = context;
    struct rf__blobs *blobs = open_root(disk);
    progress->old_done = put(blobs, "step/a", old_content, sizeof old_content, false);
    progress->new_done = put(blobs, "step/a", new_content, sizeof new_content, false);
    progress->only_done = put(blobs, "step/only", only_content, sizeof only_content, true);
    blobs->ops->destroy(blobs);
}

struct names {
    int count;
    bool a, only;
};

static int name_note(void *context, const struct rf__blob_entry *entry) {
    struct names *names = context;
    names->count++;
    names->a |= !strcmp(entry->name, "step/a");
    names->only |= !strcmp(entry->name, "step/only");
    return 0;
}

static void check_replaced(struct fake_files *after, long at, unsigned variant, void *context) {
    struct progress *progress = context;
    struct rf__blobs *blobs = open_root(after);
    enum found a = look(blobs, "step/a", at, variant);
    enum found only = look(blobs, "step/only", at, variant);
    struct names names = {0};

    expect(a != ONLY, "a holds what another was given", at, variant);
    expect(only == NOTHING || only == ONLY, "only holds what another was given", at, variant);
    expect(!progress->old_done || a != NOTHING, "what was finished is gone", at, variant);
    expect(!progress->new_done || a == NEW, "what was replaced is back", at, variant);
    expect(!progress->only_done || only == ONLY, "what was finished is gone", at, variant);

    /* A list tells just these, and never what was not finished. */
    assert_int_equal(blobs->ops->list(blobs, "", name_note, &names, NULL), 0);
    expect(names.a == (a != NOTHING) && names.only == (only != NOTHING) &&
               names.count == names.a + names.only,
           "the list is wrong", at, variant);

    /* Life goes on: leftovers are found, and everything can be written again. */
    int collected = blobs->ops->collect(blobs, "", 0, NULL);
    assert_true(collected >= 0);
    long left = fake_files_entries(after, "/data/run/ckpt/step");
    expect(left == names.count || (left < 0 && !names.count), "leftovers remain", at, variant);
    expect(put(blobs, "step/a", old_content, sizeof old_content, false), "no second life", at,
           variant);
    expect(look(blobs, "step/a", at, variant) == OLD, "no second life", at, variant);
    expect(put(blobs, "step/only", only_content, sizeof only_content, true) == (only == NOTHING),
           "only new is not", at, variant);
    blobs->ops->destroy(blobs);

    /* What was written after the restart survives a second crash. */
    struct fake_files *again = fake_files_crash(after, variant);
    blobs = open_root(again);
    expect(look(blobs, "step/a", at, variant) == OLD, "lost in a second crash", at, variant);
    expect(look(blobs, "step/only", at, variant) == ONLY, "lost in a second crash", at, variant);
    blobs->ops->destroy(blobs);
    fake_files_destroy(again);

    progress->checked++;
    progress->found_old += a == OLD;
    progress->found_new += a == NEW;
    progress->found_nothing += a == NOTHING;
}

static void replace(bool no_rename_new) {
    struct progress progress = {.no_rename_new = no_rename_new};
    struct fake_crash_plan plan = {.prepare = nothing_before,
                                   .work = write_and_replace,
                                   .check = check_replaced,
                                   .context = &progress,
                                   .variants = VARIANTS};
    long shown = fake_files_each_crash(&plan);
    assert_true(progress.new_done && progress.only_done);
    assert_int_equal(shown, progress.checked);
    /* 4 folders, 3 files made, 9 writes and more, 3 syncs, 3 renames, folders synced. */
    assert_true(shown > 30l * VARIANTS);
    assert_true(progress.found_old > 100 && progress.found_new > 100 &&
                progress.found_nothing > 100);
}

static void a_reader_sees_old_or_new_and_never_less(void **state) {
    (void)state;
    replace(false);
    replace(true);
}

/* ---- removing ---- */

static void two_before(struct fake_files *disk, void *context) {
    nothing_before(disk, context);
    struct rf__blobs *blobs = open_root(disk);
    assert_true(put(blobs, "step/a", old_content, sizeof old_content, false));
    assert_true(put(blobs, "step/only", only_content, sizeof only_content, true));
    blobs->ops->destroy(blobs);
}

static void remove_then_replace(struct fake_files *disk, void *context) {
    struct progress *progress = context;
    struct rf__blobs *blobs = open_root(disk);
    progress->removed = blobs->ops->remove(blobs, "step/only", NULL) == 0 &&
                        blobs->ops->remove(blobs, "step/a", NULL) == 0;
    /* Into a folder of the same name as the one that went. */
    progress->new_done = put(blobs, "step/a", new_content, sizeof new_content, true);
    blobs->ops->destroy(blobs);
}

static void check_removed(struct fake_files *after, long at, unsigned variant, void *context) {
    struct progress *progress = context;
    struct rf__blobs *blobs = open_root(after);
    enum found a = look(blobs, "step/a", at, variant);
    enum found only = look(blobs, "step/only", at, variant);
    expect(a != NEW || progress->removed, "written before the old one was removed", at, variant);
    expect(!(only == ONLY && a != OLD), "removed in another order than asked", at, variant);
    expect(!progress->removed || (only == NOTHING && a != OLD), "removed and back", at, variant);
    expect(!progress->new_done || a == NEW, "what was finished is gone", at, variant);
    progress->checked++;
    blobs->ops->destroy(blobs);
}

static void what_was_removed_stays_away(void **state) {
    struct progress progress = {0};
    struct fake_crash_plan plan = {.prepare = two_before,
                                   .work = remove_then_replace,
                                   .check = check_removed,
                                   .context = &progress,
                                   .variants = VARIANTS};
    (void)state;
    fake_files_each_crash(&plan);
    assert_true(progress.removed && progress.new_done);
}

/* ---- folders that somebody else made and did not sync ---- */

static void write_into_anothers_folder(struct fake_files *disk, void *context) {
    struct progress *progress = context;
    struct rf__blobs *other = open_root(disk), *mine = open_root(disk);
    struct rf__blob_writer *writer = NULL;
    progress->other_begun = other->ops->create(other, "step/b", &writer, NULL) == 0;
    progress->only_done = put(mine, "step/only", only_content, sizeof only_content, true);
    if (progress->other_begun) {
        other->ops->abandon(other, writer);
    }
    mine->ops->destroy(mine);
    other->ops->destroy(other);
}

static void check_anothers(struct fake_files *after, long at, unsigned variant, void *context) {
    struct progress *progress = context;
    struct rf__blobs *blobs = open_root(after);
    enum found only = look(blobs, "step/only", at, variant);
    expect(!progress->only_done || only == ONLY, "what was finished is gone", at, variant);
    expect(look(blobs, "step/b", at, variant) == NOTHING, "what was abandoned is there", at,
           variant);
    blobs->ops->destroy(blobs);
}

static void a_folder_that_another_made_is_secured_too(void **state) {
    struct progress progress = {0};
    struct fake_crash_plan plan = {.prepare = nothing_before,
                                   .work = write_into_anothers_folder,
                                   .check = check_anothers,
                                   .context = &progress,
                                   .variants = VARIANTS};
    (void)state;
    fake_files_each_crash(&plan);
    assert_true(progress.only_done);
}

/* ---- a root that is removed, with what is above it, while it is in use ---- */

static void write_into_a_root_made_again(struct fake_files *disk, void *context) {
    struct progress *progress = context;
    struct rf__blobs *blobs = open_root(disk);
    progress->old_done = put(blobs, "step/a", old_content, sizeof old_content, false) &&
                         blobs->ops->remove(blobs, "step/a", NULL) == 0;
    (void)disk->sys.rmdir(&disk->sys, "/data/run/ckpt");
    (void)disk->sys.rmdir(&disk->sys, "/data/run");
    (void)disk->sys.rmdir(&disk->sys, "/data");
    progress->new_done = put(blobs, "step/a", new_content, sizeof new_content, false);
    blobs->ops->destroy(blobs);
}

static void check_made_again(struct fake_files *after, long at, unsigned variant, void *context) {
    struct progress *progress = context;
    struct rf__blobs *blobs = open_root(after);
    enum found a = look(blobs, "step/a", at, variant);
    expect(!progress->new_done || a == NEW, "what was finished is gone", at, variant);
    blobs->ops->destroy(blobs);
}

static void a_root_that_is_made_again_is_secured_again(void **state) {
    struct progress progress = {0};
    struct fake_crash_plan plan = {.prepare = nothing_before,
                                   .work = write_into_a_root_made_again,
                                   .check = check_made_again,
                                   .context = &progress,
                                   .variants = VARIANTS};
    (void)state;
    fake_files_each_crash(&plan);
    assert_true(progress.old_done && progress.new_done);
}

/* ---- the alarm itself ---- */

/* Syncs that do nothing, as with a bug or a disk that lies: the checks must notice. */
static int lazy_fsync_file(struct rf__file_sys *sys, int fd) {
    struct fake_files *disk = fake_files_of(sys);
    return disk->nodes[disk->fds[fd].node].folder ? fake_fsync(sys, fd) : 0;
}

static int lazy_fsync_folder(struct rf__file_sys *sys, int fd) {
    struct fake_files *disk = fake_files_of(sys);
    return disk->nodes[disk->fds[fd].node].folder ? 0 : fake_fsync(sys, fd);
}

/* How many variants lost or tore what finish had promised. */
static int broken(struct fake_files *disk) {
    struct progress progress = {0};
    int wrong = 0;
    write_and_replace(disk, &progress);
    assert_true(progress.new_done);
    for (unsigned variant = 0; variant < VARIANTS; variant++) {
        struct fake_files *after = fake_files_crash(disk, variant);
        size_t bytes = 0;
        const unsigned char *a = fake_files_content(after, "/data/run/ckpt/step/a", &bytes);
        wrong += !a || bytes != sizeof new_content || memcmp(a, new_content, bytes) != 0;
        fake_files_destroy(after);
    }
    fake_files_destroy(disk);
    return wrong;
}

static void syncs_left_out_are_noticed(void **state) {
    (void)state;
    struct fake_files *disk = fake_files_create();
    assert_int_equal(broken(disk), 0);
    disk = fake_files_create();
    disk->sys.fsync = lazy_fsync_file;
    assert_true(broken(disk) > VARIANTS / 4);
    disk = fake_files_create();
    disk->sys.fsync = lazy_fsync_folder;
    assert_true(broken(disk) > VARIANTS / 4);
}

/* A folder above whose entry is never synced takes all with it. */
static int folder_sync_or_none(struct rf__file_sys *sys, int fd) {
    struct fake_files *disk = fake_files_of(sys);
    bool top = disk->fds[fd].node == 0;
    return top ? 0 : fake_fsync(sys, fd);
}

static void each_folder_above_counts(void **state) {
    (void)state;
    struct fake_files *disk = fake_files_create();
    disk->sys.fsync = folder_sync_or_none;
    assert_true(broken(disk) > VARIANTS / 4);
}

/* After a failed sync the disk in memory forgets, as Linux does: a second one that succeeds
 * secures nothing. */
static void a_failed_sync_cannot_be_made_good(void **state) {
    (void)state;
    struct fake_files *disk = fake_files_create();
    struct rf__file_sys *sys = &disk->sys;
    int fd = sys->open_new(sys, "/x");
    assert_int_equal(sys->write(sys, fd, "abc", 3), 3);
    disk->fail_kinds = 1u << FAKE_FSYNC;
    assert_int_equal(sys->fsync(sys, fd), -EIO);
    disk->fail_kinds = 0;
    assert_int_equal(sys->fsync(sys, fd), 0);
    sys->close(sys, fd);
    fd = sys->open_folder(sys, "/");
    assert_int_equal(sys->fsync(sys, fd), 0);
    sys->close(sys, fd);
    struct fake_files *after = fake_files_crash(disk, FAKE_ALL_LOST);
    size_t bytes = 9;
    assert_non_null(fake_files_content(after, "/x", &bytes));
    assert_int_equal(bytes, 0);
    fake_files_destroy(after);
    fake_files_destroy(disk);
}

/* The same variant of the same disk is the same; and the drawn ones differ. */
static void variants_replay(void **state) {
    int torn = 0;
    (void)state;
    struct fake_files *disk = fake_files_create();
    struct rf__file_sys *sys = &disk->sys;
    int fd = sys->open_new(sys, "/x");
    fake_files_settle(disk);
    assert_int_equal(sys->write(sys, fd, old_content, 100), 100);
    sys->close(sys, fd);
    for (unsigned variant = 0; variant < 200; variant++) {
        struct fake_files *one = fake_files_crash(disk, variant);
        struct fake_files *two = fake_files_crash(disk, variant);
        size_t bytes = 0, same = 0;
        const unsigned char *a = fake_files_content(one, "/x", &bytes);
        const unsigned char *b = fake_files_content(two, "/x", &same);
        assert_int_equal(bytes, same);
        assert_true(bytes <= 100);
        assert_memory_equal(a, b, bytes);
        torn += bytes > 0 && (bytes < 100 || memcmp(a, old_content, 100) != 0);
        fake_files_destroy(one);
        fake_files_destroy(two);
    }
    assert_true(torn > 50);
    fake_files_destroy(disk);
}

static int contents_make(void **state) {
    struct rf__rng rng = rf__rng(1, 1, 1);
    (void)state;
    for (size_t i = 0; i < sizeof new_content; i++) {
        new_content[i] = (unsigned char)(1 + rf__rng_below(&rng, 255));
    }
    for (size_t i = 0; i < sizeof old_content; i++) {
        old_content[i] = (unsigned char)(1 + rf__rng_below(&rng, 255));
    }
    for (size_t i = 0; i < sizeof only_content; i++) {
        only_content[i] = (unsigned char)(1 + rf__rng_below(&rng, 255));
    }
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_reader_sees_old_or_new_and_never_less),
        cmocka_unit_test(what_was_removed_stays_away),
        cmocka_unit_test(a_folder_that_another_made_is_secured_too),
        cmocka_unit_test(a_root_that_is_made_again_is_secured_again),
        cmocka_unit_test(syncs_left_out_are_noticed),
        cmocka_unit_test(each_folder_above_counts),
        cmocka_unit_test(a_failed_sync_cannot_be_made_good),
        cmocka_unit_test(variants_replay),
    };
    return cmocka_run_group_tests(tests, contents_make, NULL);
}
