/* os/storage: which storage a URI means; os/faulty: failures of storage that are rehearsed. */
#include "base/mem.h"
#include "base/rng.h"
#include "os/clock.h"
#include "os/faulty.h"
#include "os/file.h"
#include "os/storage.h"
#include "support/fake_files.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

static int put(struct rf__blobs *blobs, const char *name, const char *text, struct rf_error *err) {
    struct rf__blob_writer *writer = NULL;
    int code = blobs->ops->create(blobs, name, &writer, err);
    if (code) {
        return code;
    }
    code = blobs->ops->write(blobs, writer, text, strlen(text), err);
    if (code) {
        blobs->ops->abandon(blobs, writer);
        return code;
    }
    return blobs->ops->finish(blobs, writer, false, err);
}

static void expect_at(const char *uri, const char *path) {
    struct fake_files *disk = fake_files_create();
    struct rf__storage_options options = {.files = &disk->sys};
    struct rf__blobs *blobs = NULL;
    struct rf_error err = {0};
    size_t bytes;
    int code = rf__storage_open(uri, &options, &blobs, &err);
    if (code) {
        fail_msg("'%s': %s", uri, err.text);
    }
    assert_int_equal(disk->calls, 0); /* nothing is looked at yet */
    assert_int_equal(put(blobs, "x", "y", NULL), 0);
    if (!fake_files_content(disk, path, &bytes)) {
        fail_msg("'%s' is not at '%s'", uri, path);
    }
    blobs->ops->destroy(blobs);
    fake_files_destroy(disk);
}

static void files_are_meant_in_many_ways(void **state) {
    (void)state;
    expect_at("/a/b", "/a/b/x");
    expect_at("/a/b/", "/a/b/x");
    expect_at("rel/b", "/here/rel/b/x");
    expect_at("file:/a/b", "/a/b/x");
    expect_at("file:rel/b", "/here/rel/b/x");
    expect_at("file:///a/b", "/a/b/x");
    expect_at("file://localhost/a", "/a/x");
    expect_at("FILE:/a", "/a/x");
    expect_at("file:/a?b#c%20d", "/a?b#c%20d/x");
    expect_at("./run:1", "/here/./run:1/x");
    expect_at("1:a", "/here/1:a/x"); /* no scheme begins with a digit */
    expect_at("s3", "/here/s3/x");
    expect_at("a/s3://b", "/here/a/s3:/b/x");
}

static void expect_usage(const char *uri, const char *words) {
    struct rf__blobs *blobs = NULL;
    struct rf_error err = {0};
    int code = rf__storage_open(uri, NULL, &blobs, &err);
    if (code != RF_EUSAGE || !strstr(err.text, words) || !strstr(err.next, "s3://bucket")) {
        fail_msg("'%s': %d '%s', next '%s'", uri, code, err.text, err.next);
    }
    assert_null(blobs);
}

static void other_kinds_are_refused_with_what_there_is(void **state) {
    (void)state;
    expect_usage("", "empty");
    expect_usage("file:", "no path");
    expect_usage("file://", "no path");
    expect_usage("file://localhost", "no path");
    expect_usage("file://host-2/a", "another host");
    expect_usage("http://x/y", "'http:'");
    expect_usage("hdfs:/x", "'hdfs:'");
    expect_usage("azure://x/y", "'azure:'");
    expect_usage("run:1", "'run:'");
    expect_usage("s3:/bucket/x", "bucket's name");
    expect_usage("gs:bucket", "bucket's name");
    expect_usage("averyveryverylongschemethatnobodyhas:x", "'averyveryverylongsch:'");
}

/* Anything as a URI: blobs or a code, and never both. */
static void any_uri_is_survived(void **state) {
    static const char *const pieces[] = {"file", ":", "/", "//",   "s3", "gs:", "localhost",
                                         "..",   "a", "?", "\xff", "#",  "%",   "9+-."};
    struct rf__rng rng = rf__rng(4, 4, 4);
    struct fake_files *disk = fake_files_create();
    struct rf__storage_options options = {.files = &disk->sys};
    (void)state;
    for (int round = 0; round < 20000; round++) {
        char uri[128] = "";
        for (uint64_t n = rf__rng_below(&rng, 8); n > 0; n--) {
            strcat(uri, pieces[rf__rng_below(&rng, sizeof pieces / sizeof *pieces)]);
        }
        char *exact = strdup(uri);
        struct rf__blobs *blobs = NULL;
        struct rf_error err = {0};
        int code = rf__storage_open(exact, &options, &blobs, &err);
        assert_true(code ? !blobs && *err.text : blobs != NULL);
        if (blobs) {
            blobs->ops->destroy(blobs);
        }
        free(exact);
    }
    fake_files_destroy(disk);
}

/* ---- rehearsed failures ---- */

struct test_clock {
    struct rf__clock clock;
    int64_t now;
};

static int64_t test_now(struct rf__clock *clock) {
    return ((struct test_clock *)clock)->now;
}

struct rehearsal {
    struct fake_files *disk;
    struct test_clock clock;
    struct rf__faulty_blobs *faulty;
    struct rf__blobs *blobs;
};

static void rehearsal_open(struct rehearsal *r) {
    struct rf__blobs *inner = NULL;
    *r =
        (struct rehearsal){.disk = fake_files_create(), .clock = {.clock = {test_now}, .now = 100}};
    assert_int_equal(rf__file_blobs_create("/r", &r->disk->sys, &inner, NULL), 0);
    assert_int_equal(rf__faulty_blobs_create(inner, &r->clock.clock, &r->faulty, NULL), 0);
    r->blobs = rf__faulty_blobs_base(r->faulty);
}

static void rehearsal_close(struct rehearsal *r) {
    r->blobs->ops->destroy(r->blobs);
    assert_int_equal(r->disk->open_fds, 0);
    fake_files_destroy(r->disk);
}

static int count_one(void *context, const struct rf__blob_entry *entry) {
    (void)entry;
    ++*(int *)context;
    return 0;
}

static int count_of(struct rf__blobs *blobs) {
    int count = 0;
    assert_int_equal(blobs->ops->list(blobs, "", count_one, &count, NULL), 0);
    return count;
}

static void it_passes_through_while_nothing_is_told(void **state) {
    struct rehearsal r;
    struct rf__blob *blob = NULL;
    struct rf__blob_writer *writer = NULL;
    struct rf_error err = {0};
    uint64_t bytes = 0;
    char text[8];
    (void)state;
    rehearsal_open(&r);
    assert_int_equal(put(r.blobs, "s/a", "hello", NULL), 0);
    assert_int_equal(r.blobs->ops->open(r.blobs, "s/a", &blob, &bytes, NULL), 0);
    assert_int_equal(bytes, 5);
    assert_int_equal(r.blobs->ops->read(r.blobs, blob, 1, text, sizeof text, NULL), 4);
    assert_memory_equal(text, "ello", 4);
    r.blobs->ops->close(r.blobs, blob);
    assert_int_equal(r.blobs->ops->create(r.blobs, "s/a", &writer, NULL), 0);
    assert_int_equal(r.blobs->ops->finish(r.blobs, writer, true, &err), RF_ECONFLICT);
    assert_int_equal(count_of(r.blobs), 1);
    assert_int_equal(r.blobs->ops->collect(r.blobs, "", 0, NULL), 0);
    assert_int_equal(r.blobs->ops->remove(r.blobs, "s/a", NULL), 0);
    assert_int_equal(r.blobs->ops->remove(r.blobs, "s/a", NULL), RF_ENOTFOUND);
    assert_int_equal(count_of(r.blobs), 0);
    r.blobs->ops->interrupt(r.blobs);
    assert_int_equal(put(r.blobs, "s/a", "hello", NULL), RF_ESTOPPED);
    rehearsal_close(&r);
}

static void expect_refused(int code, const struct rf_error *err) {
    assert_int_equal(code, RF_ECONNECT);
    assert_int_equal(err->sys_errno, ECONNREFUSED);
    assert_non_null(strstr(err->text, "Connection refused"));
    assert_true(*err->next);
}

static void down_refuses_every_call_until_its_time(void **state) {
    struct rehearsal r;
    struct rf__blob *blob = NULL;
    struct rf__blob_writer *writer = NULL, *other = NULL, *new = NULL;
    struct rf_error err = {0};
    uint64_t bytes;
    char byte;
    int count = 0;
    (void)state;
    rehearsal_open(&r);
    struct rf__blobs *blobs = r.blobs;
    assert_int_equal(put(blobs, "a", "old", NULL), 0);
    assert_int_equal(blobs->ops->open(blobs, "a", &blob, &bytes, NULL), 0);
    assert_int_equal(blobs->ops->create(blobs, "a", &writer, NULL), 0);
    assert_int_equal(blobs->ops->create(blobs, "b", &other, NULL), 0);
    assert_int_equal(blobs->ops->write(blobs, writer, "new", 3, NULL), 0);

    rf__faulty_blobs_down(r.faulty, 200);
    r.clock.now = 199;
    expect_refused(blobs->ops->open(blobs, "a", &blob, &bytes, &err), &err);
    expect_refused((int)blobs->ops->read(blobs, blob, 0, &byte, 1, &err), &err);
    expect_refused(blobs->ops->create(blobs, "c", &new, &err), &err);
    assert_null(new);
    expect_refused(blobs->ops->write(blobs, writer, "x", 1, &err), &err);
    expect_refused(blobs->ops->finish(blobs, other, false, &err), &err);
    expect_refused(blobs->ops->remove(blobs, "a", &err), &err);
    expect_refused(blobs->ops->list(blobs, "", count_one, &count, &err), &err);
    expect_refused(blobs->ops->collect(blobs, "", 0, &err), &err);
    assert_int_equal(count, 0);

    /* Over: what was being written is lost, all else is as before. */
    r.clock.now = 200;
    assert_int_equal(blobs->ops->write(blobs, writer, "x", 1, &err), RF_ECONNECT);
    assert_int_equal(blobs->ops->finish(blobs, writer, false, &err), RF_ECONNECT);
    assert_int_equal(blobs->ops->read(blobs, blob, 0, &byte, 1, &err), 1);
    assert_int_equal(byte, 'o');
    blobs->ops->close(blobs, blob);
    assert_int_equal(count_of(blobs), 1);
    assert_int_equal(fake_files_entries(r.disk, "/r"), 1);
    assert_int_equal(put(blobs, "b", "new", NULL), 0);

    rf__faulty_blobs_down(r.faulty, RF__NEVER);
    r.clock.now = INT64_MAX - 1;
    expect_refused(put(blobs, "b", "newer", &err), &err);
    rf__faulty_blobs_down(r.faulty, 0);
    assert_int_equal(put(blobs, "b", "newer", &err), 0);
    rehearsal_close(&r);
}

static void full_fails_only_what_writes(void **state) {
    struct rehearsal r;
    struct rf__blob *blob = NULL;
    struct rf__blob_writer *writer = NULL, *other = NULL;
    struct rf_error err = {0};
    uint64_t bytes;
    (void)state;
    rehearsal_open(&r);
    struct rf__blobs *blobs = r.blobs;
    assert_int_equal(put(blobs, "a", "old", NULL), 0);
    assert_int_equal(blobs->ops->create(blobs, "a", &other, NULL), 0);
    rf__faulty_blobs_full(r.faulty, 200);
    assert_int_equal(blobs->ops->create(blobs, "b", &writer, NULL), 0);
    assert_int_equal(blobs->ops->write(blobs, writer, "xyz", 3, &err), RF_EIO);
    assert_int_equal(err.sys_errno, ENOSPC);
    assert_non_null(strstr(err.text, "3 bytes wanted"));
    assert_non_null(strstr(err.text, "No space left"));
    assert_int_equal(blobs->ops->finish(blobs, other, false, &err), RF_EIO);
    assert_int_equal(err.sys_errno, ENOSPC);
    assert_int_equal(blobs->ops->open(blobs, "a", &blob, &bytes, &err), 0);
    assert_int_equal(bytes, 3);
    blobs->ops->close(blobs, blob);
    assert_int_equal(count_of(blobs), 1);

    r.clock.now = 200;
    assert_int_equal(blobs->ops->write(blobs, writer, "xyz", 3, &err), RF_EIO);
    blobs->ops->abandon(blobs, writer);
    assert_int_equal(fake_files_entries(r.disk, "/r"), 1);
    assert_int_equal(put(blobs, "b", "xyz", NULL), 0);
    assert_int_equal(blobs->ops->remove(blobs, "a", NULL), 0);
    rehearsal_close(&r);
}

/* Over blobs that can only be read, and without memory. */
static void what_cannot_be_written_says_so(void **state) {
    struct rf__faulty_blobs *faulty = NULL;
    struct rf__blob_writer *writer = NULL;
    struct rf_error err = {0};
    int count = 0;
    (void)state;
    assert_int_equal(rf__faulty_blobs_create(&rf__file_blobs, NULL, &faulty, NULL), 0);
    struct rf__blobs *blobs = rf__faulty_blobs_base(faulty);
    assert_int_equal(blobs->ops->create(blobs, "a", &writer, &err), RF_EUNSUPPORTED);
    assert_int_equal(blobs->ops->remove(blobs, "a", &err), RF_EUNSUPPORTED);
    assert_int_equal(blobs->ops->list(blobs, "a", count_one, &count, &err), RF_EUNSUPPORTED);
    assert_int_equal(blobs->ops->collect(blobs, "a", 0, &err), RF_EUNSUPPORTED);
    blobs->ops->interrupt(blobs);
    rf__faulty_blobs_down(faulty, rf__now() + 3600 * 1000 * RF__MS); /* the system's clock */
    assert_int_equal(blobs->ops->create(blobs, "a", &writer, &err), RF_ECONNECT);
    blobs->ops->destroy(blobs);

    bool clean = false;
    for (long k = 0; !clean; k++) {
        struct fake_files *disk = fake_files_create();
        struct rf__blobs *inner = NULL;
        assert_int_equal(rf__file_blobs_create("/r", &disk->sys, &inner, NULL), 0);
        rf__alloc_fail_after(k);
        int code = rf__faulty_blobs_create(inner, NULL, &faulty, &err);
        if (!code) {
            blobs = rf__faulty_blobs_base(faulty);
            code = put(blobs, "a", "x", &err);
            clean = !code;
            blobs->ops->destroy(blobs);
        }
        rf__alloc_fail_after(-1);
        assert_true(clean || code == RF_ENOMEM);
        assert_int_equal(disk->open_fds, 0);
        fake_files_destroy(disk);
    }
}

/* Told by one thread while another writes. */
static void *tell_often(void *context) {
    for (int i = 0; i < 2000; i++) {
        rf__faulty_blobs_down(context, i % 3 ? 0 : RF__NEVER);
        rf__faulty_blobs_full(context, i % 5 ? 0 : RF__NEVER);
    }
    rf__faulty_blobs_down(context, 0);
    rf__faulty_blobs_full(context, 0);
    return NULL;
}

static void it_is_told_from_any_thread(void **state) {
    struct rehearsal r;
    pthread_t thread;
    (void)state;
    rehearsal_open(&r);
    assert_int_equal(pthread_create(&thread, NULL, tell_often, r.faulty), 0);
    for (int i = 0; i < 300; i++) {
        int code = put(r.blobs, "a", "x", NULL);
        assert_true(!code || code == RF_ECONNECT || code == RF_EIO);
    }
    pthread_join(thread, NULL);
    assert_int_equal(put(r.blobs, "a", "x", NULL), 0);
    assert_int_equal(fake_files_entries(r.disk, "/r"), 1);
    rehearsal_close(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_are_meant_in_many_ways),
        cmocka_unit_test(other_kinds_are_refused_with_what_there_is),
        cmocka_unit_test(any_uri_is_survived),
        cmocka_unit_test(it_passes_through_while_nothing_is_told),
        cmocka_unit_test(down_refuses_every_call_until_its_time),
        cmocka_unit_test(full_fails_only_what_writes),
        cmocka_unit_test(what_cannot_be_written_says_so),
        cmocka_unit_test(it_is_told_from_any_thread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
