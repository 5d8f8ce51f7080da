/* os/file: blobs that are written, listed, removed and collected, in a real folder and on the disk
 * in memory of support/fake_files.h, on which every call fails in turn. What a crash leaves is in
 * test_blob_crash.c. */
#include "base/mem.h"
#include "base/rng.h"
#include "base/status.h"
#include "os/file.h"
#include "support/fake_files.h"

#include <fcntl.h>
#include <inttypes.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { BIG = (3 << 20) + 12345, HOUR = 3600 };

static unsigned char noise[BIG];

/* One root, on a real disk or in memory. */
struct place {
    struct rf__blobs *blobs;
    struct fake_files *disk; /* NULL: real */
    char folder[64];         /* what was made for it */
    char root[96];
};

static void place_open(struct place *place, bool real) {
    *place = (struct place){0};
    if (real) {
        strcpy(place->folder, "/tmp/ringfold-files-XXXXXX");
        assert_non_null(mkdtemp(place->folder));
    } else {
        place->disk = fake_files_create();
    }
    snprintf(place->root, sizeof place->root, "%s/deep/root", place->folder);
    assert_int_equal(
        rf__file_blobs_create(place->root, real ? NULL : &place->disk->sys, &place->blobs, NULL),
        0);
}

static void place_close(struct place *place) {
    place->blobs->ops->destroy(place->blobs);
    if (place->disk) {
        assert_int_equal(place->disk->open_fds, 0);
        fake_files_destroy(place->disk);
    } else {
        char command[128];
        snprintf(command, sizeof command, "rm -rf '%s'", place->folder);
        assert_int_equal(system(command), 0);
    }
}

/* ---- shorthand ---- */

static int put(struct rf__blobs *blobs, const char *name, const void *bytes, size_t count,
               bool only_new, struct rf_error *err) {
    struct rf__blob_writer *writer = NULL;
    int code = blobs->ops->create(blobs, name, &writer, err);
    if (code) {
        return code;
    }
    code = blobs->ops->write(blobs, writer, bytes, count, err);
    if (code) {
        blobs->ops->abandon(blobs, writer);
        return code;
    }
    return blobs->ops->finish(blobs, writer, only_new, err);
}

static int put_text(struct rf__blobs *blobs, const char *name, const char *text) {
    return put(blobs, name, text, strlen(text), false, NULL);
}

static void expect_content(struct rf__blobs *blobs, const char *name, const void *bytes,
                           size_t count) {
    struct rf_error err = {0};
    struct rf__blob *blob = NULL;
    uint64_t size = 0;
    unsigned char *got = malloc(count + 1);
    int code = blobs->ops->open(blobs, name, &blob, &size, &err);
    if (code) {
        fail_msg("'%s': %s", name, err.text);
    }
    assert_int_equal(size, count);
    assert_int_equal(blobs->ops->read(blobs, blob, 0, got, count + 1, &err), count);
    assert_memory_equal(got, bytes, count);
    blobs->ops->close(blobs, blob);
    free(got);
}

static void expect_text(struct rf__blobs *blobs, const char *name, const char *text) {
    expect_content(blobs, name, text, strlen(text));
}

static void expect_missing(struct rf__blobs *blobs, const char *name) {
    struct rf_error err = {0};
    struct rf__blob *blob = NULL;
    uint64_t size;
    assert_int_equal(blobs->ops->open(blobs, name, &blob, &size, &err), RF_ENOTFOUND);
    assert_non_null(strstr(err.text, name));
}

struct told {
    char names[2048];
    int64_t modified_s;
    uint64_t bytes;
    int stop_after;
};

static int tell(void *context, const struct rf__blob_entry *entry) {
    struct told *told = context;
    strcat(told->names, entry->name);
    strcat(told->names, " ");
    told->modified_s = entry->modified_s;
    told->bytes = entry->bytes;
    return --told->stop_after == 0 ? 42 : 0;
}

static void expect_list(struct rf__blobs *blobs, const char *prefix, const char *names) {
    struct told told = {0};
    struct rf_error err = {0};
    int code = blobs->ops->list(blobs, prefix, tell, &told, &err);
    if (code) {
        fail_msg("list '%s': %s", prefix, err.text);
    }
    assert_string_equal(told.names, names);
}

static void expect_nothing_left(const struct place *place) {
    if (place->disk) {
        assert_int_equal(fake_files_entries(place->disk, place->root), 0);
    } else {
        /* rmdir refuses what is not empty. */
        assert_int_equal(rmdir(place->root), 0);
    }
}

/* ---- what works, on both ---- */

static void works(bool real) {
    struct place place;
    place_open(&place, real);
    struct rf__blobs *blobs = place.blobs;

    expect_list(blobs, "", "");
    expect_missing(blobs, "a");
    assert_int_equal(blobs->ops->remove(blobs, "a", NULL), RF_ENOTFOUND);
    assert_int_equal(blobs->ops->collect(blobs, "", 0, NULL), 0);

    /* Sizes around the buffer's, and nothing at all. */
    static const size_t sizes[] = {0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, BIG};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        assert_int_equal(put(blobs, "sizes/one", noise, sizes[i], false, NULL), 0);
        expect_content(blobs, "sizes/one", noise, sizes[i]);
    }

    /* In pieces of any length. */
    struct rf__rng rng = rf__rng(3, 1, 4);
    struct rf__blob_writer *writer = NULL;
    assert_int_equal(blobs->ops->create(blobs, "sizes/pieces", &writer, NULL), 0);
    for (size_t at = 0; at < BIG;) {
        size_t piece = (size_t)rf__rng_below(&rng, rf__rng_below(&rng, 3) ? 5000 : 2 << 20);
        piece = piece < BIG - at ? piece : BIG - at;
        assert_int_equal(blobs->ops->write(blobs, writer, noise + at, piece, NULL), 0);
        at += piece;
    }
    expect_missing(blobs, "sizes/pieces");
    expect_list(blobs, "", "sizes/one ");
    assert_int_equal(blobs->ops->finish(blobs, writer, false, NULL), 0);
    expect_content(blobs, "sizes/pieces", noise, BIG);

    /* Reading at an offset, and past the end. */
    struct rf__blob *blob = NULL;
    uint64_t size;
    char four[4];
    assert_int_equal(blobs->ops->open(blobs, "sizes/pieces", &blob, &size, NULL), 0);
    assert_int_equal(blobs->ops->read(blobs, blob, BIG - 2, four, 4, NULL), 2);
    assert_memory_equal(four, noise + BIG - 2, 2);
    assert_int_equal(blobs->ops->read(blobs, blob, BIG + 7, four, 4, NULL), 0);
    assert_int_equal(blobs->ops->read(blobs, blob, UINT64_MAX, four, 4, NULL), RF_EIO);
    blobs->ops->close(blobs, blob);

    /* Abandoned: no trace, not even of the folder. */
    assert_int_equal(blobs->ops->create(blobs, "gone/deep/x", &writer, NULL), 0);
    assert_int_equal(blobs->ops->write(blobs, writer, "abc", 3, NULL), 0);
    blobs->ops->abandon(blobs, writer);
    expect_missing(blobs, "gone/deep/x");

    assert_int_equal(blobs->ops->remove(blobs, "sizes/one", NULL), 0);
    expect_missing(blobs, "sizes/one");
    assert_int_equal(blobs->ops->remove(blobs, "sizes", NULL), RF_ENOTFOUND);
    assert_int_equal(blobs->ops->remove(blobs, "sizes/pieces", NULL), 0);
    expect_nothing_left(&place);
    place_close(&place);
}

static void writes_reads_and_removes(void **state) {
    (void)state;
    works(true);
    works(false);
}

static void only_new(bool real, bool no_rename_new) {
    struct rf_error err = {0};
    struct place place;
    place_open(&place, real);
    struct rf__blobs *blobs = place.blobs;
    struct rf__blob_writer *first = NULL, *second = NULL;
    if (no_rename_new) {
        place.disk->no_rename_new = true;
    }

    /* Two that race: the first to finish wins, the other's content is dropped. */
    assert_int_equal(blobs->ops->create(blobs, "f/m", &first, NULL), 0);
    assert_int_equal(blobs->ops->create(blobs, "f/m", &second, NULL), 0);
    assert_int_equal(blobs->ops->write(blobs, first, "first", 5, NULL), 0);
    assert_int_equal(blobs->ops->write(blobs, second, "second", 6, NULL), 0);
    assert_int_equal(blobs->ops->finish(blobs, second, true, &err), 0);
    assert_int_equal(blobs->ops->finish(blobs, first, true, &err), RF_ECONFLICT);
    assert_non_null(strstr(err.text, "f/m"));
    expect_text(blobs, "f/m", "second");

    assert_int_equal(put(blobs, "f/m", "third", 5, false, NULL), 0);
    expect_text(blobs, "f/m", "third");
    assert_int_equal(blobs->ops->remove(blobs, "f/m", NULL), 0);
    expect_nothing_left(&place);
    place_close(&place);
}

static void of_two_only_new_one_wins(void **state) {
    (void)state;
    only_new(true, false);
    only_new(false, false);
    only_new(false, true);
}

static void without_rename_new_and_link_it_says_so(void **state) {
    struct rf_error err = {0};
    struct place place;
    (void)state;
    place_open(&place, false);
    place.disk->no_rename_new = place.disk->no_link = true;
    assert_int_equal(put(place.blobs, "m", "x", 1, true, &err), RF_EUNSUPPORTED);
    assert_non_null(strstr(err.text, "deep/root/m"));
    assert_non_null(strstr(err.next, "local disk"));
    expect_nothing_left(&place);
    assert_int_equal(put(place.blobs, "m", "x", 1, false, &err), 0);
    place_close(&place);
}

/* Threads of one process, and the real kernel as the judge. */
static void *race_one(void *context) {
    struct rf__blobs *blobs = context;
    intptr_t won = 0;
    for (int round = 0; round < 50; round++) {
        char name[32];
        snprintf(name, sizeof name, "r%d/manifest", round);
        int code = put(blobs, name, noise, 3000, true, NULL);
        won += code == 0;
        if (code && code != RF_ECONFLICT) {
            return (void *)-1;
        }
    }
    return (void *)won;
}

static void exactly_one_of_racing_threads_wins(void **state) {
    enum { THREADS = 4 };
    pthread_t threads[THREADS];
    struct place place;
    intptr_t won = 0;
    (void)state;
    place_open(&place, true);
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, race_one, place.blobs), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        void *mine;
        pthread_join(threads[i], &mine);
        assert_true((intptr_t)mine >= 0);
        won += (intptr_t)mine;
    }
    assert_int_equal(won, 50);
    expect_content(place.blobs, "r49/manifest", noise, 3000);
    place_close(&place);
}

/* One makes and fills a folder while another empties it. */
static void *churn(void *context) {
    struct rf__blobs *blobs = context;
    for (int round = 0; round < 200; round++) {
        char name[32];
        snprintf(name, sizeof name, "a/b/%lx", (unsigned long)pthread_self());
        if (put(blobs, name, "x", 1, false, NULL) || blobs->ops->remove(blobs, name, NULL)) {
            return context;
        }
    }
    return NULL;
}

static void folders_may_go_while_others_write(void **state) {
    enum { THREADS = 4 };
    pthread_t threads[THREADS];
    struct place place;
    (void)state;
    place_open(&place, false);
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, churn, place.blobs), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        void *failed;
        pthread_join(threads[i], &failed);
        assert_null(failed);
    }
    expect_nothing_left(&place);
    place_close(&place);
}

/* Somebody who removes empty folders as soon as they are made: this one at once, or with all above
 * it. */
static int thefts_left;
static bool steals_above;

static int stolen_mkdir(struct rf__file_sys *sys, const char *path) {
    int got = fake_mkdir(sys, path);
    if (!got && thefts_left > 0) {
        char above[256];
        thefts_left--;
        assert_int_equal(fake_rmdir(sys, path), 0);
        snprintf(above, sizeof above, "%s", path);
        *strrchr(above, '/') = 0;
        if (steals_above && strlen(above) > strlen("/deep/root")) {
            (void)fake_rmdir(sys, above);
        }
    }
    return got;
}

static void folders_that_go_at_once_are_made_again(void **state) {
    (void)state;
    for (int thefts = 0; thefts < 20; thefts++) {
        struct rf_error err = {0};
        struct place place;
        place_open(&place, false);
        place.disk->sys.mkdir = stolen_mkdir;
        thefts_left = thefts;
        steals_above = thefts % 2;
        assert_int_equal(put(place.blobs, "a/b/c/d", "x", 1, false, &err), 0);
        assert_int_equal(thefts_left, 0);
        expect_text(place.blobs, "a/b/c/d", "x");
        place_close(&place);
    }

    /* But not for ever. */
    struct rf_error err = {0};
    struct place place;
    place_open(&place, false);
    place.disk->sys.mkdir = stolen_mkdir;
    thefts_left = 1000;
    assert_int_equal(put(place.blobs, "a/b", "x", 1, false, &err), RF_EIO);
    assert_int_equal(err.sys_errno, ENOENT);
    assert_non_null(strstr(err.text, "/deep/root/a'"));
    place_close(&place);
}

/* ---- names ---- */

static void bad_names_are_refused(void **state) {
    static const char *const bad[] = {"",        "/abs", "..",          "a/../b",     "../a",
                                      "a/..",    ".",    "a/./b",       "a//b",       "a/",
                                      "a/b/../", "./a",  ".rf-tmp-abc", "a/.rf-tmp-", ".rf-tmp-/a"};
    struct rf_error err = {0};
    struct rf__blob_writer *writer;
    struct rf__blob *blob;
    uint64_t size;
    char longest[1100];
    struct place place;
    (void)state;
    place_open(&place, false);
    struct rf__blobs *blobs = place.blobs;

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(blobs->ops->create(blobs, bad[i], &writer, &err), RF_EINVAL);
        assert_non_null(strstr(err.text, "not a blob's name"));
        assert_int_equal(blobs->ops->open(blobs, bad[i], &blob, &size, &err), RF_EINVAL);
        assert_int_equal(blobs->ops->remove(blobs, bad[i], &err), RF_EINVAL);
    }
    static const char *const bad_prefixes[] = {"/", "..", "a/../b", "a//", "../"};
    for (size_t i = 0; i < sizeof bad_prefixes / sizeof *bad_prefixes; i++) {
        assert_int_equal(blobs->ops->list(blobs, bad_prefixes[i], tell, NULL, &err), RF_EINVAL);
        assert_int_equal(blobs->ops->collect(blobs, bad_prefixes[i], 0, &err), RF_EINVAL);
    }
    memset(longest, 'a', sizeof longest);
    longest[sizeof longest - 1] = 0;
    assert_int_equal(blobs->ops->create(blobs, longest, &writer, &err), RF_EINVAL);
    longest[300] = 0;
    assert_int_equal(blobs->ops->create(blobs, longest, &writer, &err), RF_EINVAL);
    assert_int_equal(place.disk->changes, 0);

    assert_int_equal(put_text(blobs, "a..b/..c/d..", "dots"), 0);
    assert_int_equal(put_text(blobs, ".hidden", "dot"), 0);
    expect_list(blobs, "", ".hidden a..b/..c/d.. ");
    place_close(&place);

    assert_int_equal(rf__file_blobs_create("", NULL, &blobs, &err), RF_EINVAL);
}

/* Any bytes as a name: refused, or the file is below the root. */
static void any_name_stays_below_the_root(void **state) {
    static const char letters[] = "a./.-\xc3\xa4rf-tmp";
    struct rf__rng rng = rf__rng(9, 9, 9);
    int accepted = 0;
    (void)state;
    struct place place;
    place_open(&place, false);
    for (int round = 0; round < 20000; round++) {
        char text[25] = "";
        size_t count = (size_t)rf__rng_below(&rng, sizeof text);
        for (size_t i = 0; i < count; i++) {
            text[i] = letters[rf__rng_below(&rng, sizeof letters - 1)];
        }
        char *exact = strdup(text);
        struct rf__blob_writer *writer = NULL;
        int code = place.blobs->ops->create(place.blobs, exact, &writer, NULL);
        if (!code) {
            accepted++;
            place.blobs->ops->abandon(place.blobs, writer);
        } else {
            assert_int_equal(code, RF_EINVAL);
        }
        free(exact);
        if (place.disk->node_count > FAKE_NODES - 64) {
            place_close(&place);
            place_open(&place, false);
        }
        assert_true(fake_files_entries(place.disk, "/") <= 1);
    }
    assert_true(accepted > 1000);
    place_close(&place);
}

static void roots_are_tidied(void **state) {
    static const char *const roots[] = {"/a//b/", "/a/b", "//a/b", "/a/b///"};
    struct rf__blobs *blobs;
    size_t bytes;
    (void)state;
    for (size_t i = 0; i < sizeof roots / sizeof *roots; i++) {
        struct fake_files *disk = fake_files_create();
        assert_int_equal(rf__file_blobs_create(roots[i], &disk->sys, &blobs, NULL), 0);
        assert_int_equal(put_text(blobs, "c/d", "x"), 0);
        assert_non_null(fake_files_content(disk, "/a/b/c/d", &bytes));
        assert_int_equal(blobs->ops->remove(blobs, "c/d", NULL), 0);
        assert_int_equal(fake_files_entries(disk, "/a/b"), 0);
        blobs->ops->destroy(blobs);
        fake_files_destroy(disk);
    }

    /* A relative one, and the root of all. */
    struct fake_files *disk = fake_files_create();
    assert_int_equal(rf__file_blobs_create("ckpt/", &disk->sys, &blobs, NULL), 0);
    assert_int_equal(put_text(blobs, "d", "x"), 0);
    assert_non_null(fake_files_content(disk, "/here/ckpt/d", &bytes));
    blobs->ops->destroy(blobs);
    assert_int_equal(rf__file_blobs_create("/", &disk->sys, &blobs, NULL), 0);
    assert_int_equal(put_text(blobs, "top", "x"), 0);
    assert_int_equal(put_text(blobs, "under/it", "x"), 0);
    expect_list(blobs, "", "here/ckpt/d top under/it ");
    assert_int_equal(blobs->ops->remove(blobs, "top", NULL), 0);
    assert_int_equal(blobs->ops->remove(blobs, "under/it", NULL), 0);
    assert_int_equal(fake_files_entries(disk, "/"), 1);
    blobs->ops->destroy(blobs);
    fake_files_destroy(disk);
}

/* ---- lists ---- */

static void lists(bool real) {
    struct place place;
    place_open(&place, real);
    struct rf__blobs *blobs = place.blobs;
    static const char *const names[] = {"a/x",   "a-b",         "a0",       "a/b/c", "a.json",
                                        "b",     "step-1",      "aa/b",     "a/b.d", "step-2/m",
                                        "A/big", "step-10/p-0", "step-10/m"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        assert_int_equal(put_text(blobs, names[i], names[i]), 0);
    }
    struct rf__blob_writer *writer = NULL;
    assert_int_equal(blobs->ops->create(blobs, "a/unfinished", &writer, NULL), 0);

    /* Byte by byte over whole names: '-' and '.' come before '/', which comes before '0'. */
    expect_list(blobs, "",
                "A/big a-b a.json a/b.d a/b/c a/x a0 aa/b b step-1 step-10/m "
                "step-10/p-0 step-2/m ");
    expect_list(blobs, "a", "a-b a.json a/b.d a/b/c a/x a0 aa/b ");
    expect_list(blobs, "a/", "a/b.d a/b/c a/x ");
    expect_list(blobs, "a/b", "a/b.d a/b/c ");
    expect_list(blobs, "a/b/c", "a/b/c ");
    expect_list(blobs, "a/b/cd", "");
    expect_list(blobs, "step-1", "step-1 step-10/m step-10/p-0 ");
    expect_list(blobs, "zz/y", "");
    expect_list(blobs, "b/c", "");

    struct told told = {.stop_after = 3};
    assert_int_equal(blobs->ops->list(blobs, "", tell, &told, NULL), 42);
    assert_string_equal(told.names, "A/big a-b a.json ");
    told = (struct told){0};
    assert_int_equal(blobs->ops->list(blobs, "step-10/p-0", tell, &told, NULL), 0);
    assert_int_equal(told.bytes, strlen("step-10/p-0"));
    assert_true(told.modified_s > 0);
    blobs->ops->abandon(blobs, writer);
    place_close(&place);
}

static int remove_told(void *context, const struct rf__blob_entry *entry) {
    struct rf__blobs *blobs = context;
    return blobs->ops->remove(blobs, entry->name, NULL);
}

static void lists_ascend_by_whole_names(void **state) {
    (void)state;
    lists(true);
    lists(false);
}

static void what_is_told_may_be_removed(void **state) {
    struct place place;
    (void)state;
    place_open(&place, true);
    for (int i = 0; i < 40; i++) {
        char name[32];
        snprintf(name, sizeof name, "s%d/t/%d", i / 10, i);
        assert_int_equal(put_text(place.blobs, name, "x"), 0);
    }
    assert_int_equal(place.blobs->ops->list(place.blobs, "", remove_told, place.blobs, NULL), 0);
    expect_nothing_left(&place);
    place_close(&place);
}

static void symbolic_links_are_not_followed(void **state) {
    char path[384], outside[256];
    struct place place;
    (void)state;
    place_open(&place, true);
    struct rf__blobs *blobs = place.blobs;
    assert_int_equal(put_text(blobs, "a/x", "inside"), 0);

    snprintf(outside, sizeof outside, "%s/outside", place.folder);
    assert_int_equal(mkdir(outside, 0700), 0);
    snprintf(path, sizeof path, "%s/secret", outside);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_int_equal(write(fd, "secret", 6), 6);
    close(fd);
    snprintf(path, sizeof path, "%s/" RF__FILE_TEMPORARY "00000000000000aa-1-1-1", outside);
    fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    close(fd);

    snprintf(path, sizeof path, "%s/link", place.root);
    assert_int_equal(symlink(outside, path), 0);
    snprintf(path, sizeof path, "%s/loop", place.root);
    assert_int_equal(symlink(".", path), 0);
    snprintf(path, sizeof path, "%s/name", place.root);
    assert_int_equal(symlink("a/x", path), 0);
    snprintf(path, sizeof path, "%s/fifo", place.root);
    assert_int_equal(mkfifo(path, 0600), 0);

    expect_list(blobs, "", "a/x ");
    expect_list(blobs, "link/", "");
    assert_int_equal(blobs->ops->collect(blobs, "", 0, NULL), 0);

    /* What is written replaces the link, not what it points to. */
    assert_int_equal(put_text(blobs, "name", "new"), 0);
    expect_text(blobs, "name", "new");
    expect_text(blobs, "a/x", "inside");
    struct rf__blob *blob;
    uint64_t size;
    struct rf_error err;
    assert_int_equal(blobs->ops->open(blobs, "fifo", &blob, &size, &err), RF_EIO);
    assert_int_equal(blobs->ops->open(blobs, "a", &blob, &size, &err), RF_EIO);
    assert_int_equal(err.sys_errno, EISDIR);
    assert_int_equal(blobs->ops->remove(blobs, "link", NULL), 0);
    snprintf(path, sizeof path, "%s/secret", outside);
    assert_int_equal(access(path, R_OK), 0);
    place_close(&place);

    /* The root itself may be one. */
    place_open(&place, true);
    snprintf(outside, sizeof outside, "%s/deep", place.folder);
    assert_int_equal(mkdir(outside, 0700), 0);
    snprintf(outside, sizeof outside, "%s/elsewhere", place.folder);
    assert_int_equal(mkdir(outside, 0700), 0);
    assert_int_equal(symlink("../elsewhere", place.root), 0);
    assert_int_equal(put_text(place.blobs, "x", "y"), 0);
    expect_list(place.blobs, "", "x ");
    place_close(&place);
}

/* ---- leftovers ---- */

static void temporary_names_are_parsed_and_nothing_else(void **state) {
    static const char *const bad[] = {
        "",
        ".rf-tmp-",
        ".rf-tmp-1",
        ".rf-tmp-1-2-3",
        ".rf-tmp-1-2-3-",
        ".rf-tmp--2-3-4",
        ".rf-tmp-1-2-3-4-5",
        ".rf-tmp-1-2-3-4 ",
        ".rf-tmp-g-2-3-4",
        ".rf-tmp-1-a-3-4",
        ".rf-tmp-1--2-3-4",
        ".rf-tmp-00000000000000001-2-3-4",
        ".rf-tmp-1-1234567890123456789-3-4",
        "rf-tmp-1-2-3-4",
    };
    char name[RF__FILE_TEMPORARY_MAX];
    struct rf__file_maker maker, got;
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (rf__file_temporary_parse(bad[i], &got)) {
            fail_msg("'%s' passed for a temporary file's name", bad[i]);
        }
    }
    struct rf__rng rng = rf__rng(1, 2, 3);
    int parsed = 0;
    for (int round = 0; round < 50000; round++) {
        maker = (struct rf__file_maker){rf__rng_u64(&rng) >> rf__rng_below(&rng, 64),
                                        (int64_t)rf__rng_below(&rng, 1ull << 22),
                                        rf__rng_u64(&rng) >> rf__rng_below(&rng, 64)};
        rf__file_temporary_name(name, &maker, rf__rng_u64(&rng));
        assert_true(rf__file_temporary_parse(name, &got));
        assert_true(got.host == maker.host && got.pid == maker.pid && got.started == maker.started);

        /* Turned and cut, in a block of just its size. */
        size_t length = strlen(name);
        name[rf__rng_below(&rng, length)] ^= (char)(1u << rf__rng_below(&rng, 7));
        char *exact = strndup(name, (size_t)rf__rng_below(&rng, length + 1));
        if (rf__file_temporary_parse(exact, &got)) {
            assert_true(got.pid >= 0);
            parsed++;
        }
        free(exact);
    }
    assert_true(parsed > 100);
}

/* A leftover of somebody's, as a killed process leaves it. */
static void leave(struct fake_files *disk, const char *folder, struct rf__file_maker maker,
                  uint64_t count) {
    char name[RF__FILE_TEMPORARY_MAX], path[256];
    rf__file_temporary_name(name, &maker, count);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int fd = disk->sys.open_new(&disk->sys, path);
    assert_true(fd >= 0);
    assert_int_equal(disk->sys.write(&disk->sys, fd, "left", 4), 4);
    disk->sys.close(&disk->sys, fd);
}

static void collects_by_age_and_by_life(void **state) {
    struct place place;
    (void)state;
    place_open(&place, false);
    struct rf__blobs *blobs = place.blobs;
    struct fake_files *disk = place.disk;
    const struct rf__file_maker dead = {77, 999, 5}, mine = {77, 1234, 5}, reused = {77, 1234, 4},
                                other = {77, 4321, 9}, elsewhere = {78, 4321, 9};
    disk->living_pid = 4321;
    assert_int_equal(put_text(blobs, "s/kept", "x"), 0);
    assert_int_equal(put_text(blobs, "t/kept", "x"), 0);
    leave(disk, "/deep/root/s", dead, 1);
    leave(disk, "/deep/root/s", mine, 2);
    leave(disk, "/deep/root/s", reused, 3);
    leave(disk, "/deep/root/s", other, 4);
    leave(disk, "/deep/root/s", elsewhere, 5);
    leave(disk, "/deep/root/t", dead, 6);
    leave(disk, "/deep/root", dead, 7);
    int fd = disk->sys.open_new(&disk->sys, "/deep/root/s/.rf-tmp-by-a-user");
    disk->sys.close(&disk->sys, fd);
    expect_list(blobs, "", "s/kept t/kept ");

    assert_int_equal(blobs->ops->collect(blobs, "", HOUR, NULL), 0);
    disk->wall_s += HOUR - 1;
    leave(disk, "/deep/root/s", dead, 8);
    assert_int_equal(blobs->ops->collect(blobs, "", HOUR, NULL), 0);
    disk->wall_s += 1;
    assert_int_equal(blobs->ops->collect(blobs, "s/", HOUR, NULL), 4); /* also the root's own */
    assert_int_equal(blobs->ops->collect(blobs, "s/", HOUR, NULL), 0);
    assert_int_equal(blobs->ops->collect(blobs, "", HOUR, NULL), 1);
    disk->living_pid = 0;
    assert_int_equal(blobs->ops->collect(blobs, "", 0, NULL), 2);
    assert_int_equal(fake_files_entries(disk, "/deep/root/s"), 3); /* kept, mine and the user's */
    assert_int_equal(fake_files_entries(disk, "/deep/root/t"), 1);

    /* A writer of this process goes on through a collection. */
    struct rf__blob_writer *writer = NULL;
    assert_int_equal(blobs->ops->create(blobs, "s/late", &writer, NULL), 0);
    disk->wall_s += 10 * HOUR;
    assert_int_equal(blobs->ops->collect(blobs, "", 0, NULL), 0);
    assert_int_equal(blobs->ops->finish(blobs, writer, false, NULL), 0);
    place_close(&place);
}

static void collects_empty_folders(void **state) {
    struct place place;
    (void)state;
    place_open(&place, false);
    struct fake_files *disk = place.disk;
    assert_int_equal(put_text(place.blobs, "kept/x", "x"), 0);
    assert_int_equal(disk->sys.mkdir(&disk->sys, "/deep/root/empty"), 0);
    assert_int_equal(disk->sys.mkdir(&disk->sys, "/deep/root/left"), 0);
    assert_int_equal(disk->sys.mkdir(&disk->sys, "/deep/root/left/over"), 0);
    leave(disk, "/deep/root/left/over", (struct rf__file_maker){1, 2, 3}, 4);
    assert_int_equal(place.blobs->ops->collect(place.blobs, "", HOUR, NULL), 0);
    assert_int_equal(fake_files_entries(disk, "/deep/root"), 3);
    disk->wall_s += HOUR;
    assert_int_equal(place.blobs->ops->collect(place.blobs, "", HOUR, NULL), 1);
    assert_int_equal(fake_files_entries(disk, "/deep/root"), 1);
    place_close(&place);
}

/* A real process that was killed in the middle of writing. */
static void a_killed_writer_leaves_what_collect_finds(void **state) {
    struct place place;
    int pipes[2];
    char byte;
    (void)state;
    place_open(&place, true);
    assert_int_equal(pipe(pipes), 0);
    pid_t child = fork();
    if (!child) {
        struct rf__blob_writer *writer = NULL;
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* nobody is left where the test fails */
        int code = place.blobs->ops->create(place.blobs, "step/part", &writer, NULL);
        code = code ? code : place.blobs->ops->write(place.blobs, writer, noise, BIG, NULL);
        _exit(code || write(pipes[1], "x", 1) != 1 || pause());
    }
    assert_int_equal(read(pipes[0], &byte, 1), 1);
    assert_int_equal(place.blobs->ops->collect(place.blobs, "", 0, NULL), 0); /* it lives */
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, NULL, 0), child);
    expect_list(place.blobs, "", "");
    assert_int_equal(place.blobs->ops->collect(place.blobs, "", HOUR, NULL), 0); /* too young */
    assert_int_equal(place.blobs->ops->collect(place.blobs, "step/", 0, NULL), 1);
    expect_nothing_left(&place);
    close(pipes[0]);
    close(pipes[1]);
    place_close(&place);
}

/* ---- errors ---- */

static void a_full_disk_says_how_much_was_wanted(void **state) {
    struct rf_error err = {0};
    struct place place;
    (void)state;
    place_open(&place, false);
    place.disk->room = 2 << 20;
    assert_int_equal(put(place.blobs, "a/b", noise, BIG, false, &err), RF_EIO);
    assert_int_equal(err.sys_errno, ENOSPC);
    assert_non_null(strstr(err.text, "cannot write '/deep/root/a/b'"));
    assert_non_null(strstr(err.text, "bytes wanted at byte 2097152"));
    assert_non_null(strstr(err.next, "free space"));
    assert_string_equal(err.where, "/deep/root/a/b");
    expect_missing(place.blobs, "a/b");
    expect_nothing_left(&place);

    /* Once failed, the writer stays failed, whatever was freed. */
    struct rf__blob_writer *writer = NULL;
    assert_int_equal(place.blobs->ops->create(place.blobs, "c", &writer, NULL), 0);
    assert_int_equal(place.blobs->ops->write(place.blobs, writer, noise, BIG, NULL), RF_EIO);
    place.disk->room = UINT64_MAX;
    assert_int_equal(place.blobs->ops->write(place.blobs, writer, noise, 1, &err), RF_EIO);
    assert_non_null(strstr(err.text, "earlier"));
    assert_int_equal(place.blobs->ops->finish(place.blobs, writer, false, &err), RF_EIO);
    expect_missing(place.blobs, "c");
    expect_nothing_left(&place);
    place_close(&place);
}

static void errnos_come_with_advice(void **state) {
    static const struct {
        int sys_errno;
        enum fake_call call;
        const char *next;
    } cases[] = {
        {EROFS, FAKE_OPEN_NEW, "for writing"}, {EDQUOT, FAKE_WRITE, "quota"},
        {EACCES, FAKE_OPEN_NEW, "right"},      {ENAMETOOLONG, FAKE_OPEN_NEW, "shorter"},
        {EMFILE, FAKE_OPEN_NEW, "ulimit -n"},  {EFBIG, FAKE_WRITE, "ulimit -f"},
        {EIO, FAKE_FSYNC, "kernel's log"},     {ENOTDIR, FAKE_OPEN_NEW, "a file where"},
        {ENOSPC, FAKE_FSYNC, "free space"},    {EINTR, FAKE_FSYNC, ""},
        {ESTALE, FAKE_RENAME, "kernel's log"}, {EROFS, FAKE_MKDIR, "for writing"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct rf_error err = {0};
        struct place place;
        place_open(&place, false);
        place.disk->fail_kinds = 1u << cases[i].call;
        place.disk->fail_errno = cases[i].sys_errno;
        assert_int_equal(put(place.blobs, "f/n", "x", 1, false, &err), RF_EIO);
        assert_int_equal(err.sys_errno, cases[i].sys_errno);
        assert_non_null(strstr(err.next, cases[i].next));
        assert_non_null(strstr(err.text, "/deep/root"));
        assert_non_null(strstr(err.text, strerror(cases[i].sys_errno)));
        /* Never twice on the same file. */
        assert_true(place.disk->count[FAKE_FSYNC] <= 1);
        place.disk->fail_kinds = 0;
        expect_missing(place.blobs, "f/n");
        expect_list(place.blobs, "", "");
        place_close(&place);
    }
}

static void interrupted_and_short_calls_are_normal(void **state) {
    struct place place;
    (void)state;
    place_open(&place, false);
    place.disk->write_most = 65537;
    place.disk->interrupt_every = 3;
    assert_int_equal(put(place.blobs, "a/b/c", noise, BIG, false, NULL), 0);
    assert_int_equal(put(place.blobs, "a/b/d", noise, 9, true, NULL), 0);
    expect_content(place.blobs, "a/b/c", noise, BIG);
    expect_list(place.blobs, "", "a/b/c a/b/d ");
    assert_int_equal(place.blobs->ops->remove(place.blobs, "a/b/c", NULL), 0);
    place_close(&place);
}

static void writes_are_large_and_few(void **state) {
    struct place place;
    struct rf__blob_writer *writer = NULL;
    (void)state;
    place_open(&place, false);
    assert_int_equal(place.blobs->ops->create(place.blobs, "x", &writer, NULL), 0);
    for (int i = 0; i < 3 << 20; i += 64) {
        assert_int_equal(place.blobs->ops->write(place.blobs, writer, noise + i, 64, NULL), 0);
    }
    assert_int_equal(place.blobs->ops->finish(place.blobs, writer, false, NULL), 0);
    assert_int_equal(place.disk->count[FAKE_WRITE], 3);
    expect_content(place.blobs, "x", noise, 3 << 20);

    /* And what comes in one piece is not copied into pieces. */
    assert_int_equal(put(place.blobs, "y", noise, BIG, false, NULL), 0);
    assert_int_equal(place.disk->count[FAKE_WRITE], 3 + 2);
    place_close(&place);
}

static void a_stopped_place_refuses(void **state) {
    struct rf_error err = {0};
    struct place place;
    struct rf__blob_writer *writer = NULL, *other = NULL;
    struct rf__blob *blob = NULL;
    uint64_t size;
    char byte;
    (void)state;
    place_open(&place, false);
    struct rf__blobs *blobs = place.blobs;
    assert_int_equal(put_text(blobs, "a", "x"), 0);
    assert_int_equal(blobs->ops->open(blobs, "a", &blob, &size, NULL), 0);
    assert_int_equal(blobs->ops->create(blobs, "b", &writer, NULL), 0);
    assert_int_equal(blobs->ops->create(blobs, "c", &other, NULL), 0);
    assert_int_equal(blobs->ops->write(blobs, writer, "abc", 3, NULL), 0);
    blobs->ops->interrupt(blobs);
    assert_int_equal(blobs->ops->read(blobs, blob, 0, &byte, 1, &err), RF_ESTOPPED);
    assert_int_equal(blobs->ops->write(blobs, writer, "abc", 3, &err), RF_ESTOPPED);
    assert_int_equal(blobs->ops->finish(blobs, writer, false, &err), RF_ESTOPPED);
    assert_non_null(strstr(err.text, "deep/root/b"));
    blobs->ops->abandon(blobs, other);
    blobs->ops->close(blobs, blob);
    assert_int_equal(blobs->ops->open(blobs, "a", &blob, &size, &err), RF_ESTOPPED);
    assert_int_equal(blobs->ops->create(blobs, "b", &writer, &err), RF_ESTOPPED);
    assert_int_equal(blobs->ops->remove(blobs, "a", &err), RF_ESTOPPED);
    assert_int_equal(blobs->ops->list(blobs, "", tell, NULL, &err), RF_ESTOPPED);
    assert_int_equal(blobs->ops->collect(blobs, "", 0, &err), RF_ESTOPPED);
    assert_int_equal(fake_files_entries(place.disk, "/deep/root"), 1);
    place_close(&place);
}

/* ---- every call, every allocation fails in turn ---- */

/* Replaces a, adds b only new, removes c, lists, collects, reads; whatever fails, what stands is
 * whole and the codes say what happened. True when nothing failed. */
static bool exercise(struct rf__blobs *blobs, bool *replaced, bool *added, bool *removed) {
    struct rf_error err = {0};
    struct told told = {0};
    struct rf__blob *blob = NULL;
    uint64_t size;
    char text[16];
    bool clean = true;

    *replaced = put(blobs, "s/a", "new a", 5, false, &err) == 0;
    clean &= *replaced;
    *added = put(blobs, "s/b", "new b", 5, true, &err) == 0;
    clean &= *added;
    *removed = blobs->ops->remove(blobs, "t/c", &err) == 0;
    clean &= *removed;
    clean &= blobs->ops->list(blobs, "", tell, &told, &err) == 0;
    clean &= blobs->ops->collect(blobs, "", 0, &err) >= 0;
    int code = blobs->ops->open(blobs, "s/a", &blob, &size, &err);
    clean &= code == 0;
    if (!code) {
        clean &= blobs->ops->read(blobs, blob, 0, text, sizeof text, &err) == 5;
        blobs->ops->close(blobs, blob);
    }
    if (!clean) {
        assert_true(err.code < 0);
        assert_true(*err.text);
    }
    return clean;
}

static void expect_old_or_new(struct fake_files *disk, const char *path, const char *old,
                              const char *new, bool surely_new) {
    size_t bytes = 0;
    const unsigned char *content = fake_files_content(disk, path, &bytes);
    bool is_new = content && new &&bytes == strlen(new) && !memcmp(content, new, bytes);
    bool is_old = content && old && bytes == strlen(old) && !memcmp(content, old, bytes);
    is_new |= !content && !new;
    is_old |= !content && !old;
    assert_true(is_new || (is_old && !surely_new));
}

static void one_failure(struct fake_files *disk, long call, int sys_errno, bool answer_lost,
                        bool *reached) {
    struct rf__blobs *blobs = NULL;
    bool replaced, added, removed;

    assert_int_equal(rf__file_blobs_create("/r", &disk->sys, &blobs, NULL), 0);
    assert_int_equal(put_text(blobs, "s/a", "old a"), 0);
    assert_int_equal(put_text(blobs, "t/c", "old c"), 0);
    disk->fail_at = disk->calls + call;
    disk->fail_errno = sys_errno;
    disk->answer_lost = answer_lost;
    exercise(blobs, &replaced, &added, &removed);
    *reached = disk->calls > disk->fail_at;

    expect_old_or_new(disk, "/r/s/a", "old a", "new a", replaced);
    expect_old_or_new(disk, "/r/s/b", NULL, "new b", added);
    expect_old_or_new(disk, "/r/t/c", "old c", NULL, removed);
    assert_int_equal(disk->open_fds, 0);
    if (!*reached) {
        assert_true(replaced && added && removed);
    }

    /* And all is well again when it is over; what could not be removed is found later. */
    disk->fail_at = FAKE_NEVER;
    assert_int_equal(put_text(blobs, "s/a", "again"), 0);
    disk->self.pid++;
    assert_true(blobs->ops->collect(blobs, "", 0, NULL) >= 0);
    assert_true(fake_files_entries(disk, "/r/s") == 1 + (fake_at(disk, "/r/s/b") >= 0));
    blobs->ops->destroy(blobs);
}

static void every_call_fails_in_turn(void **state) {
    static const int errnos[] = {EIO, ENOSPC, ENOENT, EEXIST, EACCES};
    (void)state;
    for (size_t e = 0; e < sizeof errnos / sizeof *errnos; e++) {
        for (int kind = 0; kind < 4; kind++) {
            bool reached = true;
            long call = 0;
            for (; reached; call++) {
                struct fake_files *disk = fake_files_create();
                disk->no_rename_new = kind & 1;
                one_failure(disk, call, errnos[e], kind & 2, &reached);
                fake_files_destroy(disk);
            }
            assert_true(call > 30);
        }
    }
}

static void every_allocation_fails_in_turn(void **state) {
    bool clean = false, replaced, added, removed;
    (void)state;
    for (long k = 0; !clean; k++) {
        struct fake_files *disk = fake_files_create();
        struct rf__blobs *blobs = NULL;
        rf__alloc_fail_after(k);
        int code = rf__file_blobs_create("r", &disk->sys, &blobs, NULL);
        rf__alloc_fail_after(-1);
        if (code) {
            assert_int_equal(code, RF_ENOMEM);
            fake_files_destroy(disk);
            continue;
        }
        assert_int_equal(put_text(blobs, "s/a", "old a"), 0);
        assert_int_equal(put_text(blobs, "t/c", "old c"), 0);
        rf__alloc_fail_after(k);
        clean = exercise(blobs, &replaced, &added, &removed);
        rf__alloc_fail_after(-1);
        expect_old_or_new(disk, "/here/r/s/a", "old a", "new a", replaced);
        expect_old_or_new(disk, "/here/r/s/b", NULL, "new b", added);
        expect_old_or_new(disk, "/here/r/t/c", "old c", NULL, removed);
        assert_int_equal(disk->open_fds, 0);
        blobs->ops->destroy(blobs);
        fake_files_destroy(disk);
    }
}

/* A server that renamed and whose answer was lost answers the repeated request with ENOENT. */
static void a_lost_answer_of_a_rename_is_recognised(void **state) {
    static const enum fake_call calls[] = {FAKE_RENAME, FAKE_RENAME_NEW, FAKE_LINK};
    static const int errnos[] = {ENOENT, EEXIST, EEXIST};
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct place place;
        place_open(&place, false);
        place.disk->no_rename_new = calls[i] == FAKE_LINK;
        place.disk->fail_kinds = 1u << calls[i];
        place.disk->fail_errno = errnos[i];
        place.disk->answer_lost = true;
        assert_int_equal(put(place.blobs, "m", "mine", 4, i > 0, NULL), 0);
        place.disk->fail_kinds = 0;
        expect_text(place.blobs, "m", "mine");
        assert_int_equal(fake_files_entries(place.disk, "/deep/root"), 1);
        place_close(&place);
    }
}

/* ---- the real kernel's refusals ---- */

static void the_kernel_says_no(void **state) {
    struct rf_error err = {0};
    struct rf__blobs *blobs = NULL;
    char path[4200];
    struct place place;
    (void)state;
    place_open(&place, true);
    assert_int_equal(put_text(place.blobs, "file", "x"), 0);
    assert_int_equal(put(place.blobs, "file/below", "x", 1, false, &err), RF_EIO);
    assert_int_equal(err.sys_errno, ENOTDIR);
    assert_int_equal(place.blobs->ops->remove(place.blobs, "file/below", &err), RF_ENOTFOUND);
    assert_int_equal(put_text(place.blobs, "folder/x", "x"), 0);
    assert_int_equal(put(place.blobs, "folder", "x", 1, false, &err), RF_EIO);
    assert_int_equal(err.sys_errno, EISDIR);

    /* A path that is longer than any may be. */
    memset(path, '/', sizeof path);
    for (size_t i = 1; i < sizeof path; i += 2) {
        path[i] = 'n';
    }
    path[sizeof path - 1] = 0;
    assert_int_equal(rf__file_blobs_create(path, NULL, &blobs, NULL), 0);
    assert_int_equal(put(blobs, "x", "x", 1, false, &err), RF_EIO);
    assert_int_equal(err.sys_errno, ENAMETOOLONG);
    assert_non_null(strstr(err.next, "shorter"));
    blobs->ops->destroy(blobs);

    /* A root that is a file. */
    snprintf(path, sizeof path, "%s/file", place.root);
    assert_int_equal(rf__file_blobs_create(path, NULL, &blobs, NULL), 0);
    assert_int_equal(put(blobs, "x", "x", 1, false, &err), RF_EIO);
    assert_int_equal(err.sys_errno, ENOTDIR);
    expect_list(blobs, "", "");
    blobs->ops->destroy(blobs);

    /* No file may be longer than a MiB. */
    struct rlimit old, low;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    low = old;
    low.rlim_cur = 1 << 20;
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &low), 0);
    int code = put(place.blobs, "long", noise, BIG, false, &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    signal(SIGXFSZ, handler);
    assert_int_equal(code, RF_EIO);
    assert_int_equal(err.sys_errno, EFBIG);
    assert_non_null(strstr(err.text, "at byte 1048576"));
    expect_list(place.blobs, "", "file folder/x ");
    place_close(&place);
}

/* /proc takes no file, whoever runs this. */
static void a_folder_that_takes_no_files(void **state) {
    struct rf_error err = {0};
    struct rf__blobs *blobs = NULL;
    (void)state;
    assert_int_equal(rf__file_blobs_create("/proc/self", NULL, &blobs, NULL), 0);
    assert_int_equal(put(blobs, "x", "x", 1, false, &err), RF_EIO);
    assert_non_null(strstr(err.text, "/proc/self"));
    blobs->ops->destroy(blobs);
}

static int noise_make(void **state) {
    struct rf__rng rng = rf__rng(7, 7, 7);
    (void)state;
    for (size_t i = 0; i < sizeof noise; i++) {
        noise[i] = (unsigned char)rf__rng_u64(&rng);
    }
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(writes_reads_and_removes),
        cmocka_unit_test(of_two_only_new_one_wins),
        cmocka_unit_test(without_rename_new_and_link_it_says_so),
        cmocka_unit_test(exactly_one_of_racing_threads_wins),
        cmocka_unit_test(folders_may_go_while_others_write),
        cmocka_unit_test(folders_that_go_at_once_are_made_again),
        cmocka_unit_test(bad_names_are_refused),
        cmocka_unit_test(any_name_stays_below_the_root),
        cmocka_unit_test(roots_are_tidied),
        cmocka_unit_test(lists_ascend_by_whole_names),
        cmocka_unit_test(what_is_told_may_be_removed),
        cmocka_unit_test(symbolic_links_are_not_followed),
        cmocka_unit_test(temporary_names_are_parsed_and_nothing_else),
        cmocka_unit_test(collects_by_age_and_by_life),
        cmocka_unit_test(collects_empty_folders),
        cmocka_unit_test(a_killed_writer_leaves_what_collect_finds),
        cmocka_unit_test(a_full_disk_says_how_much_was_wanted),
        cmocka_unit_test(errnos_come_with_advice),
        cmocka_unit_test(interrupted_and_short_calls_are_normal),
        cmocka_unit_test(writes_are_large_and_few),
        cmocka_unit_test(a_stopped_place_refuses),
        cmocka_unit_test(every_call_fails_in_turn),
        cmocka_unit_test(every_allocation_fails_in_turn),
        cmocka_unit_test(a_lost_answer_of_a_rename_is_recognised),
        cmocka_unit_test(the_kernel_says_no),
        cmocka_unit_test(a_folder_that_takes_no_files),
    };
    return cmocka_run_group_tests(tests, noise_make, NULL);
}
