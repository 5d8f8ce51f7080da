/* data/index, data/source, data/check and data/rehearse: indices as bytes and where they are kept;
 * files that are flipped, cut, lengthened or cannot be read, through caches of several sizes. */
#include "base/mem.h"
#include "base/rng.h"
#include "data/check.h"
#include "data/index.h"
#include "data/rehearse.h"
#include "data/source.h"
#include "support/memory_files.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

enum { BLOCK = RF__INDEX_BLOCK, BYTES = 9 * BLOCK + 1234, BLOCKS = 10 };

static unsigned char content[BYTES];
static struct memory_files files, beside, cache;
static const struct rf__data_io io = {.files = &files.base,
                                      .beside = &beside.base,
                                      .cache = &cache.base,
                                      .root = "/data",
                                      .cache_root = "/cache"};

static int setup(void **state) {
    struct rf__rng rng = rf__rng(3, 1, 4);
    (void)state;
    for (size_t i = 0; i < BYTES; i++) {
        content[i] = (unsigned char)rf__rng_below(&rng, 256);
    }
    files = beside = cache = (struct memory_files){.base = {&memory_files_ops}};
    memory_put(&files, "/data/file", content, BYTES);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    memory_clear(&files);
    memory_clear(&beside);
    memory_clear(&cache);
    return 0;
}

static struct rf__index made(void) {
    struct rf__index index = {0};
    struct rf_error err = {0};
    int code = rf__index_make(&files.base, "/data/file", &index, &err);
    if (code) {
        fail_msg("%d: %s", code, err.text);
    }
    return index;
}

/* --- the index itself ------------------------------------------------------------------------- */

static void an_index_says_what_the_file_is(void **state) {
    (void)state;
    struct rf__index index = made();
    uint64_t counted[256] = {0};
    for (size_t i = 0; i < BYTES; i++) {
        counted[content[i]]++;
    }
    assert_int_equal(index.bytes, BYTES);
    assert_int_equal(index.blocks, BLOCKS);
    assert_memory_equal(index.histogram, counted, sizeof counted);
    assert_int_equal(rf__index_block_bytes(&index, 0), BLOCK);
    assert_int_equal(rf__index_block_bytes(&index, 9), 1234);
    for (uint64_t b = 0; b < BLOCKS; b++) {
        size_t n = rf__index_block_bytes(&index, b);
        assert_int_equal(index.digests[b], rf__index_digest(b, content + b * BLOCK, n));
        assert_int_not_equal(index.digests[b], rf__index_digest(b + 1, content + b * BLOCK, n));
    }
    rf__index_free(&index);
}

/* However the bytes arrive. */
static void feeding_in_pieces_gives_the_same_bytes(void **state) {
    (void)state;
    struct rf__index index = made();
    size_t count = rf__index_encoded_bytes(&index);
    unsigned char *whole = malloc(count);
    unsigned char *pieces = malloc(count);
    rf__index_encode(&index, whole);
    rf__index_free(&index);
    for (uint64_t round = 0; round < 20; round++) {
        struct rf__rng rng = rf__rng(round, 2, 2);
        struct rf__index_maker maker;
        assert_int_equal(rf__index_begin(&maker, round % 2 ? BYTES : 0, NULL), 0);
        for (size_t at = 0; at < BYTES;) {
            size_t n = (size_t)rf__rng_below(&rng, 3 * BLOCK);
            n = n < BYTES - at ? n : BYTES - at;
            assert_int_equal(rf__index_feed(&maker, content + at, n, NULL), 0);
            at += n;
        }
        assert_int_equal(rf__index_end(&maker, &index, NULL), 0);
        assert_int_equal(rf__index_encoded_bytes(&index), count);
        rf__index_encode(&index, pieces);
        assert_memory_equal(pieces, whole, count);
        rf__index_free(&index);
    }
    free(whole);
    free(pieces);
}

static void empty_and_exact_files_are_indexed(void **state) {
    static const size_t sizes[] = {0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK};
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        memory_put(&files, "/data/file", content, sizes[i]);
        struct rf__index index = made();
        assert_int_equal(index.bytes, sizes[i]);
        assert_int_equal(index.blocks, (sizes[i] + BLOCK - 1) / BLOCK);
        rf__index_free(&index);
    }
}

static void an_index_comes_back_from_its_bytes(void **state) {
    (void)state;
    struct rf__index index = made();
    struct rf__index back = {0};
    size_t count = rf__index_encoded_bytes(&index);
    unsigned char *bytes = malloc(count);
    rf__index_encode(&index, bytes);
    assert_int_equal(rf__index_decode(bytes, count, "x", &back, NULL), 0);
    assert_int_equal(back.bytes, index.bytes);
    assert_int_equal(back.blocks, index.blocks);
    assert_memory_equal(back.digests, index.digests, index.blocks * 8);
    assert_memory_equal(back.histogram, index.histogram, sizeof index.histogram);
    rf__index_free(&index);
    rf__index_free(&back);
    free(bytes);
}

/* No byte of it may differ, none be missing and none be added. */
static void a_damaged_index_is_refused(void **state) {
    (void)state;
    struct rf__index index = made();
    struct rf__index back = {0};
    size_t count = rf__index_encoded_bytes(&index);
    unsigned char *bytes = malloc(count + 8);
    rf__index_encode(&index, bytes);
    rf__index_free(&index);
    for (size_t i = 0; i < count; i++) {
        struct rf_error err = {0};
        bytes[i] ^= (unsigned char)(1 << i % 8);
        assert_int_equal(rf__index_decode(bytes, count, "some.rfindex", &back, &err), RF_EDATA);
        assert_non_null(strstr(err.text, "some.rfindex"));
        bytes[i] ^= (unsigned char)(1 << i % 8);
        unsigned char *cut = malloc(i ? i : 1); /* of its own, for the sanitizer */
        memcpy(cut, bytes, i);
        assert_int_equal(rf__index_decode(cut, i, "some.rfindex", &back, &err), RF_EDATA);
        free(cut);
    }
    memset(bytes + count, 0, 8);
    assert_int_equal(rf__index_decode(bytes, count + 8, "x", &back, NULL), RF_EDATA);
    assert_null(back.digests);
    free(bytes);
}

/* Whose digest was made to hold: the counts must still be possible. */
static void an_index_of_nonsense_is_refused(void **state) {
    (void)state;
    int accepted = 0;
    for (uint64_t round = 0; round < 2000; round++) {
        struct rf__rng rng = rf__rng(round, 7, 7);
        struct rf__index index = made();
        struct rf__index back = {0};
        size_t count = rf__index_encoded_bytes(&index);
        unsigned char *bytes = malloc(count);
        if (rf__rng_below(&rng, 2)) {
            index.histogram[rf__rng_below(&rng, 256)] =
                rf__rng_u64(&rng) >> rf__rng_below(&rng, 64);
        }
        if (rf__rng_below(&rng, 2)) {
            index.bytes = rf__rng_u64(&rng) >> rf__rng_below(&rng, 64);
        }
        rf__index_encode(&index, bytes);
        if (rf__index_decode(bytes, count, "x", &back, NULL) == 0) {
            uint64_t sum = 0;
            for (int v = 0; v < 256; v++) {
                sum += back.histogram[v];
            }
            assert_int_equal(sum, back.bytes);
            assert_int_equal(back.blocks, BLOCKS);
            accepted++;
        }
        rf__index_free(&back);
        rf__index_free(&index);
        free(bytes);
    }
    assert_true(accepted > 200 && accepted < 1000);
}

/* --- where it is kept ------------------------------------------------------------------------- */

static void one_is_made_once_and_kept_beside(void **state) {
    (void)state;
    struct rf__index index = {0};
    char where[RF__INDEX_PATH];
    assert_int_equal(rf__index_find(&io, "file", &index, where, NULL), RF_ENOTFOUND);
    assert_int_equal(rf__index_of(&io, "/data/file", "file", &index, NULL), 0);
    rf__index_free(&index);
    assert_non_null(memory_find(&beside, "file.rfindex"));
    assert_int_equal(beside.writes, 1);
    assert_int_equal(cache.writes, 0);
    /* Not again, though the file is another one by now. */
    memory_find(&files, "/data/file")->bytes[5] ^= 1;
    assert_int_equal(rf__index_of(&io, "/data/file", "file", &index, NULL), 0);
    assert_int_equal(beside.writes, 1);
    assert_int_equal(index.digests[0], rf__index_digest(0, content, BLOCK));
    rf__index_free(&index);
    assert_int_equal(rf__index_find(&io, "file", &index, where, NULL), 0);
    assert_string_equal(where, "/data/file.rfindex");
    rf__index_free(&index);
}

static void the_cache_is_for_folders_that_cannot_be_written(void **state) {
    (void)state;
    struct rf__index index = {0};
    char where[RF__INDEX_PATH];
    beside.is_readonly = true;
    assert_int_equal(rf__index_of(&io, "/data/file", "file", &index, NULL), 0);
    rf__index_free(&index);
    assert_int_equal(cache.writes, 1);
    assert_int_equal(rf__index_find(&io, "file", &index, where, NULL), 0);
    assert_int_equal(strncmp(where, "/cache/", 7), 0);
    assert_int_equal(strlen(where), 7 + 16 + 8);
    rf__index_free(&index);
    /* Another folder's file of that name is another file. */
    struct rf__data_io other = io;
    other.root = "/elsewhere";
    assert_int_equal(rf__index_find(&other, "file", &index, where, NULL), RF_ENOTFOUND);
    /* And where nothing can be kept, it is made for the run. */
    memory_clear(&cache);
    cache.is_readonly = true;
    struct rf_error err = {0};
    assert_int_equal(rf__index_of(&io, "/data/file", "file", &index, &err), 0);
    assert_int_equal(err.code, 0);
    assert_int_equal(index.bytes, BYTES);
    rf__index_free(&index);
    assert_int_equal(rf__index_keep(&io, "file", &index, false, NULL, &err), RF_EIO);
}

/* Two workers make one at the same time: the second takes the first one's. */
static void who_comes_second_takes_the_first_ones(void **state) {
    (void)state;
    struct rf__index index = {0};
    beside.is_racing = true;
    assert_int_equal(rf__index_of(&io, "/data/file", "file", &index, NULL), 0);
    assert_int_equal(index.blocks, BLOCKS);
    assert_int_equal(beside.writes, 0);
    rf__index_free(&index);
}

static void a_damaged_index_is_not_made_anew(void **state) {
    (void)state;
    struct rf__index index = {0};
    struct rf_error err = {0};
    memory_put(&beside, "file.rfindex", "nonsense", 8);
    assert_int_equal(rf__index_of(&io, "/data/file", "file", &index, &err), RF_EDATA);
    assert_non_null(strstr(err.text, "'file.rfindex' is cut short"));
    assert_non_null(strstr(err.next, "--force"));
    assert_int_equal(beside.writes, 0);
}

static void a_file_that_cannot_be_read_is_not_indexed(void **state) {
    (void)state;
    struct rf__index index = {0};
    struct rf_error err = {0};
    struct memory_entry *entry = memory_find(&files, "/data/file");
    entry->bad_begin = 100000;
    entry->bad_end = 100001;
    assert_int_equal(rf__index_of(&io, "/data/file", "file", &index, &err), RF_EIO);
    assert_non_null(strstr(err.next, "ringfold data index /data/file"));
    assert_int_equal(beside.writes + cache.writes, 0);
}

/* --- verified reads --------------------------------------------------------------------------- */

static struct rf__source *opened(const struct rf__index *index, size_t cache_bytes) {
    struct rf__source *source = NULL;
    struct rf_error err = {0};
    int code = rf__source_open(&files.base, "/data/file", index, cache_bytes, &source, &err);
    if (code) {
        fail_msg("%d: %s", code, err.text);
    }
    return source;
}

static const size_t caches[] = {0, 5 * BLOCK, BYTES, 1 << 30};

static void sound_files_are_read_as_they_are(void **state) {
    static unsigned char buffer[BYTES];
    (void)state;
    struct rf__index index = made();
    for (size_t c = 0; c < sizeof caches / sizeof *caches; c++) {
        struct rf__source *source = opened(&index, caches[c]);
        struct rf__rng rng = rf__rng(c, 5, 5);
        for (int k = 0; k < 300; k++) {
            uint64_t offset = rf__rng_below(&rng, BYTES + 1);
            size_t n = (size_t)rf__rng_below(&rng, BYTES - offset + 1) >> rf__rng_below(&rng, 20);
            assert_int_equal(rf__source_read(source, offset, buffer, n, NULL, NULL), 0);
            assert_memory_equal(buffer, content + offset, n);
        }
        rf__source_close(source);
    }
    rf__index_free(&index);
}

/* A block is read once where it is kept. */
static void a_verdict_is_remembered(void **state) {
    unsigned char byte;
    (void)state;
    struct rf__index index = made();
    struct rf__source *source = opened(&index, BYTES);
    struct memory_entry *entry = memory_find(&files, "/data/file");
    entry->bytes[3 * BLOCK] ^= 1;
    entry->reads = 0;
    for (int k = 0; k < 5; k++) {
        for (uint64_t b = 0; b < BLOCKS; b++) {
            int code = rf__source_read(source, b * BLOCK + 7, &byte, 1, NULL, NULL);
            assert_int_equal(code, b == 3 ? RF_EDATA : 0);
        }
    }
    assert_int_equal(entry->reads, BLOCKS);
    /* Until it is forgotten. */
    entry->bytes[3 * BLOCK] ^= 1;
    rf__source_forget(source, 3);
    assert_int_equal(rf__source_read(source, 3 * BLOCK, &byte, 1, NULL, NULL), 0);
    assert_int_equal(byte, content[3 * BLOCK]);
    rf__source_close(source);
    rf__index_free(&index);
}

static void damage_is_told_with_block_offset_and_cause(void **state) {
    (void)state;
    struct rf__index index = made();
    struct memory_entry *entry = memory_find(&files, "/data/file");
    entry->bytes[2 * BLOCK + 77] ^= 0x40;
    entry->bad_begin = 5 * BLOCK + 9;
    entry->bad_end = 5 * BLOCK + 10;
    entry->count = 8 * BLOCK + 100;
    for (size_t c = 0; c < sizeof caches / sizeof *caches; c++) {
        struct rf__source *source = opened(&index, caches[c]);
        for (uint64_t b = 0; b < BLOCKS; b++) {
            struct rf__bad bad = {0};
            struct rf_error err = {0};
            size_t n = rf__index_block_bytes(&index, b);
            int code = rf__source_touch(source, b * BLOCK, n, &bad, &err);
            const char *cause = b == 2   ? "mismatch: "
                                : b == 5 ? "unreadable: Input/output error"
                                : b >= 8 ? "short: the file ends after 524,388 of 591,058 bytes"
                                         : NULL;
            assert_int_equal(code, !cause ? 0 : b == 5 ? RF_EIO : RF_EDATA);
            if (cause) {
                assert_int_equal(bad.block, b);
                assert_int_equal(bad.offset, b * BLOCK);
                assert_string_equal(bad.file, "/data/file");
                assert_non_null(strstr(bad.cause, cause));
                assert_non_null(strstr(err.text, cause));
                assert_non_null(strstr(err.text, "'/data/file'"));
            }
        }
        /* Of several the first is told. */
        struct rf__bad bad = {0};
        assert_int_equal(rf__source_touch(source, BLOCK, 6 * BLOCK, &bad, NULL), RF_EDATA);
        assert_int_equal(bad.block, 2);
        assert_int_equal(rf__source_bytes(source), BYTES);
        assert_int_equal(rf__source_found(source), 8 * BLOCK + 100);
        rf__source_close(source);
    }
    rf__index_free(&index);
}

/* A byte anywhere: exactly the stretches that touch its block cannot be used. */
static void exactly_the_damaged_block_is_bad(void **state) {
    static unsigned char buffer[BYTES];
    (void)state;
    struct rf__index index = made();
    struct memory_entry *entry = memory_find(&files, "/data/file");
    for (uint64_t round = 0; round < 60; round++) {
        struct rf__rng rng = rf__rng(round, 9, 1);
        size_t at = (size_t)rf__rng_below(&rng, BYTES);
        unsigned char change = (unsigned char)(1 + rf__rng_below(&rng, 255));
        entry->bytes[at] ^= change;
        struct rf__source *source = opened(&index, caches[round % 4]);
        for (int k = 0; k < 40; k++) {
            uint64_t offset = rf__rng_below(&rng, BYTES);
            size_t n = 1 + (size_t)rf__rng_below(&rng, BYTES - offset);
            bool touches = offset / BLOCK <= at / BLOCK && (offset + n - 1) / BLOCK >= at / BLOCK;
            int code = rf__source_read(source, offset, buffer, n, NULL, NULL);
            assert_int_equal(code, touches ? RF_EDATA : 0);
            if (!code) {
                assert_memory_equal(buffer, content + offset, n);
            }
        }
        rf__source_close(source);
        entry->bytes[at] ^= change;
    }
    rf__index_free(&index);
}

static void bytes_in_memory_are_verified_too(void **state) {
    (void)state;
    struct rf__index index = made();
    unsigned char *bytes = malloc(7 * BLOCK);
    struct rf__source *source = NULL;
    struct rf__bad bad;
    memcpy(bytes, content, 7 * BLOCK);
    bytes[1] ^= 1;
    assert_int_equal(rf__source_wrap("x.gz", bytes, 7 * BLOCK, &index, &source, NULL), 0);
    assert_int_equal(rf__source_touch(source, 0, 5, &bad, NULL), RF_EDATA);
    assert_int_equal(rf__source_touch(source, BLOCK, 6 * BLOCK, &bad, NULL), 0);
    assert_memory_equal(rf__source_view(source, BLOCK, 6 * BLOCK), content + BLOCK, 6 * BLOCK);
    assert_int_equal(rf__source_touch(source, 7 * BLOCK, 1, &bad, NULL), RF_EDATA);
    assert_non_null(strstr(bad.cause, "short: "));
    rf__source_close(source);
    rf__index_free(&index);
}

static void without_an_index_only_what_cannot_be_read_is_bad(void **state) {
    unsigned char byte;
    (void)state;
    struct memory_entry *entry = memory_find(&files, "/data/file");
    entry->bytes[0] ^= 1;
    entry->bad_begin = 4 * BLOCK;
    entry->bad_end = 4 * BLOCK + 1;
    struct rf__source *source = opened(NULL, BYTES);
    assert_null(rf__source_histogram(source));
    assert_int_equal(rf__source_read(source, 0, &byte, 1, NULL, NULL), 0);
    assert_int_equal(rf__source_read(source, 5 * BLOCK - 1, &byte, 1, NULL, NULL), RF_EIO);
    assert_int_equal(rf__source_read(source, 5 * BLOCK, &byte, 1, NULL, NULL), 0);
    rf__source_close(source);
}

/* --- checking, and rehearsed failures --------------------------------------------------------- */

static uint64_t told[BLOCKS];
static int told_count;

static void tell(void *context, const struct rf__bad *bad) {
    assert_ptr_equal(context, told);
    told[told_count++] = bad->block;
}

static int check(int retries, struct rf__checked *out, struct rf_error *err) {
    told_count = 0;
    return rf__data_check(&io, "/data/file", "file", retries, tell, told, out, err);
}

static void a_check_lists_the_bad_blocks(void **state) {
    (void)state;
    struct rf__indexed indexed;
    struct rf__checked checked;
    struct rf_error err = {0};
    assert_int_equal(check(0, &checked, &err), RF_ENOTFOUND);
    assert_non_null(strstr(err.next, "ringfold data index /data/file"));
    assert_int_equal(rf__data_index(&io, "/data/file", "file", false, &indexed, &err), 0);
    assert_true(indexed.is_new);
    assert_int_equal(indexed.blocks, BLOCKS);
    assert_string_equal(indexed.where, "/data/file.rfindex");
    assert_int_equal(rf__data_index(&io, "/data/file", "file", false, &indexed, &err), 0);
    assert_false(indexed.is_new);
    assert_int_equal(check(0, &checked, &err), 0);
    assert_int_equal(told_count, 0);

    struct memory_entry *entry = memory_find(&files, "/data/file");
    entry->bytes[BLOCK] ^= 1;
    entry->bytes[9 * BLOCK + 1233] ^= 1;
    entry->bad_begin = 6 * BLOCK;
    entry->bad_end = 6 * BLOCK + 1;
    assert_int_equal(check(2, &checked, &err), RF_EDATA);
    assert_non_null(strstr(err.text, "3 of the 10 blocks of '/data/file'"));
    assert_int_equal(checked.bad, 3);
    assert_int_equal(told_count, 3);
    assert_int_equal(told[0] * 100 + told[1] * 10 + told[2], 169);

    assert_int_equal(rf__data_index(&io, "/data/file", "file", true, &indexed, &err), RF_EIO);
    entry->bad_end = 0;
    assert_int_equal(rf__data_index(&io, "/data/file", "file", true, &indexed, &err), 0);
    assert_true(indexed.is_new);
    assert_int_equal(check(0, &checked, &err), 0);
}

static void a_longer_file_is_told(void **state) {
    static unsigned char longer[BYTES + 10];
    (void)state;
    struct rf__indexed indexed;
    struct rf__checked checked;
    struct rf_error err = {0};
    assert_int_equal(rf__data_index(&io, "/data/file", "file", false, &indexed, &err), 0);
    memcpy(longer, content, BYTES);
    memory_put(&files, "/data/file", longer, sizeof longer);
    assert_int_equal(check(0, &checked, &err), RF_EDATA);
    assert_int_equal(checked.bad, 0);
    assert_non_null(strstr(err.text, "longer than its index: 591,068 bytes, expected 591,058"));
}

/* A disk that gives the block at the second try. */
static ssize_t shaky_read(struct rf__blobs *blobs, struct rf__blob *blob, uint64_t offset,
                          void *buffer, size_t bytes, struct rf_error *err) {
    struct memory_entry *entry = (struct memory_entry *)blob;
    ssize_t got = files_read(blobs, blob, offset, buffer, bytes, err);
    if (got == RF_EIO) {
        entry->bad_end = 0;
    }
    return got;
}

static void a_second_read_may_help(void **state) {
    struct rf__blob_ops shaky = memory_files_ops;
    (void)state;
    struct rf__indexed indexed;
    struct rf__checked checked;
    struct memory_entry *entry = memory_find(&files, "/data/file");
    assert_int_equal(rf__data_index(&io, "/data/file", "file", false, &indexed, NULL), 0);
    shaky.read = shaky_read;
    files.base.ops = &shaky;
    for (int retries = 0; retries < 2; retries++) {
        entry->bad_begin = 0;
        entry->bad_end = 1;
        assert_int_equal(check(retries, &checked, NULL), retries ? 0 : RF_EDATA);
        assert_int_equal(checked.recovered, retries);
        assert_int_equal(checked.bad, !retries);
    }
}

static void rehearsed_reads_fail_where_they_shall(void **state) {
    unsigned char byte[4];
    struct rf__bad_reads reads;
    struct rf__blob *blob = NULL;
    struct rf_error err = {0};
    uint64_t bytes;
    (void)state;
    static const char *const wrong[] = {"",
                                        "file",
                                        "file:",
                                        "file:1",
                                        "file:1-",
                                        "file:2-2",
                                        ":1-2",
                                        "file:1-2x",
                                        "file:-1-2",
                                        "file: 1-2",
                                        "file:9-99999999999999999999"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(rf__bad_reads_init(&reads, &files.base, wrong[i], &err), RF_EINVAL);
        assert_non_null(strstr(err.text, "NAME:BEGIN-END"));
    }
    assert_int_equal(rf__bad_reads_init(&reads, &files.base, "file:100-104", &err), 0);
    memory_put(&files, "/data/other", content, 1000);
    static const char *const names[] = {"/data/file", "/data/other"};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(reads.base.ops->open(&reads.base, names[i], &blob, &bytes, &err), 0);
        for (uint64_t at = 90; at < 110; at++) {
            bool touches = i == 0 && at + 4 > 100 && at < 104;
            ssize_t got = reads.base.ops->read(&reads.base, blob, at, byte, 4, &err);
            assert_int_equal(got, touches ? RF_EIO : 4);
            if (touches) {
                assert_int_equal(err.sys_errno, EIO);
            }
        }
        reads.base.ops->close(&reads.base, blob);
    }
}

static void memory_may_run_out_anywhere(void **state) {
    (void)state;
    int code = RF_ENOMEM;
    long k = 0;
    for (; code == RF_ENOMEM && k < 100; k++) {
        struct rf__index index = {0};
        struct rf__source *source = NULL;
        memory_clear(&beside);
        rf__alloc_fail_after(k);
        code = rf__index_of(&io, "/data/file", "file", &index, NULL);
        if (!code) {
            code = rf__source_open(&files.base, "/data/file", &index, 0, &source, NULL);
        }
        rf__alloc_fail_after(-1);
        rf__source_close(source);
        rf__index_free(&index);
    }
    assert_int_equal(code, RF_OK);
    assert_true(k > 7);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(an_index_says_what_the_file_is),
        TEST(feeding_in_pieces_gives_the_same_bytes),
        TEST(empty_and_exact_files_are_indexed),
        TEST(an_index_comes_back_from_its_bytes),
        TEST(a_damaged_index_is_refused),
        TEST(an_index_of_nonsense_is_refused),
        TEST(one_is_made_once_and_kept_beside),
        TEST(the_cache_is_for_folders_that_cannot_be_written),
        TEST(who_comes_second_takes_the_first_ones),
        TEST(a_damaged_index_is_not_made_anew),
        TEST(a_file_that_cannot_be_read_is_not_indexed),
        TEST(sound_files_are_read_as_they_are),
        TEST(a_verdict_is_remembered),
        TEST(damage_is_told_with_block_offset_and_cause),
        TEST(exactly_the_damaged_block_is_bad),
        TEST(bytes_in_memory_are_verified_too),
        TEST(without_an_index_only_what_cannot_be_read_is_bad),
        TEST(a_check_lists_the_bad_blocks),
        TEST(a_longer_file_is_told),
        TEST(a_second_read_may_help),
        TEST(rehearsed_reads_fail_where_they_shall),
        TEST(memory_may_run_out_anywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
