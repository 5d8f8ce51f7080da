/* data/: the IDX reader against whole, cut, padded, wrong and mutated files; the dataset; the order
 * of samples. Files are real ones, made here in a folder of the test's own, and read through
 * os/file. */
#include "base/mem.h"
#include "base/rng.h"
#include "data/dataset.h"
#include "data/idx.h"
#include "data/sampler.h"
#include "os/file.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <cmocka.h>

enum { SIDE = 7, TRAIN = 53, TEST = 17, FILE_MAX_BYTES = 1 << 20 };

static char folder[] = "/tmp/ringfold-data-XXXXXX";
static char path_text[512];

static const char *path_of(const char *name) {
    snprintf(path_text, sizeof path_text, "%s/%s", folder, name);
    return path_text;
}

static void file_write(const char *name, const void *bytes, size_t count) {
    FILE *file = fopen(path_of(name), "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
}

static void file_remove(const char *name) {
    unlink(path_of(name));
}

/* `bytes` as one gzip member; the result's size. */
static size_t gzip(const void *bytes, size_t count, unsigned char *out) {
    z_stream z = {0};
    assert_int_equal(deflateInit2(&z, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
    z.next_in = (unsigned char *)(uintptr_t)bytes;
    z.avail_in = (unsigned)count;
    z.next_out = out;
    z.avail_out = FILE_MAX_BYTES;
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    size_t made = z.total_out;
    deflateEnd(&z);
    return made;
}

static void be32(unsigned char *at, uint32_t value) {
    for (int i = 0; i < 4; i++) {
        at[i] = (unsigned char)(value >> (24 - 8 * i));
    }
}

/* An IDX file of noise; `below` bounds the elements. */
static size_t idx_make(unsigned char *out, int dims, uint32_t a, uint32_t b, uint32_t c,
                       int below) {
    uint32_t sizes[3] = {a, b, c};
    size_t elements = 1;
    struct rf__rng rng = rf__rng(1, a, (uint64_t)dims);

    be32(out, 0x0800u + (unsigned)dims);
    for (int i = 0; i < dims; i++) {
        be32(out + 4 + 4 * i, sizes[i]);
        elements *= sizes[i];
    }
    size_t at = 4 + 4 * (size_t)dims;
    for (size_t i = 0; i < elements; i++) {
        out[at + i] = (unsigned char)rf__rng_below(&rng, (uint64_t)below);
    }
    return at + elements;
}

static unsigned char plain[FILE_MAX_BYTES], packed[FILE_MAX_BYTES], changed[FILE_MAX_BYTES];

static void expect_error(const char *name, int dims, int code, const char *words) {
    struct rf__idx idx = {0};
    struct rf_error err = {0};
    int got = rf__idx_read(&rf__file_blobs, path_of(name), dims, &idx, &err);
    if (got != code || !strstr(err.text, words) || !strstr(err.text, name)) {
        fail_msg("'%s': got %d '%s', expected %d with '%s'", name, got, err.text, code, words);
    }
    assert_null(idx.data);
}

static void expect_equal(const char *name, int dims, const unsigned char *elements, size_t bytes) {
    struct rf__idx idx = {0};
    struct rf_error err = {0};
    int code = rf__idx_read(&rf__file_blobs, path_of(name), dims, &idx, &err);
    if (code) {
        fail_msg("'%s': %s", name, err.text);
    }
    assert_int_equal(idx.bytes, bytes);
    assert_memory_equal(idx.data, elements, bytes);
    rf__idx_free(&idx);
}

static void whole_files_are_read(void **state) {
    (void)state;
    size_t bytes = idx_make(plain, 3, 900, 30, 31, 256);
    file_write("whole", plain, bytes);
    expect_equal("whole", 3, plain + 16, bytes - 16);
    size_t made = gzip(plain, bytes, packed);
    file_write("whole.gz", packed, made);
    expect_equal("whole.gz", 3, plain + 16, bytes - 16);

    /* gzip files may be several members one after the other. */
    size_t first = gzip(plain, 1000, packed);
    size_t second = gzip(plain + 1000, bytes - 1000, packed + first);
    file_write("members.gz", packed, first + second);
    expect_equal("members.gz", 3, plain + 16, bytes - 16);

    bytes = idx_make(plain, 1, 5, 0, 0, 10);
    file_write("labels", plain, bytes);
    expect_equal("labels", 1, plain + 8, 5);
}

static void wrong_files_are_refused_with_reasons(void **state) {
    (void)state;
    size_t bytes = idx_make(plain, 3, 10, 4, 5, 256); /* 216 bytes */
    size_t made = gzip(plain, bytes, packed);

    expect_error("nowhere", 3, RF_ENOTFOUND, "cannot open");
    assert_int_equal(mkdir(path_of("folder"), 0700), 0);
    expect_error("folder", 3, RF_EIO, "not a regular file");
    rmdir(path_of("folder"));

    file_write("short", plain, 100);
    expect_error("short", 3, RF_EDATA, "ends after 100 of 216 bytes");
    file_write("short", plain, 9);
    expect_error("short", 3, RF_EDATA, "ends after 9 of 16 bytes");
    file_write("short", plain, 0);
    expect_error("short", 3, RF_EDATA, "ends after 0 of 16 bytes");
    file_write("long", plain, bytes + 3);
    expect_error("long", 3, RF_EDATA, "3 bytes of trailing garbage from byte 216");

    file_write("short.gz", packed, gzip(plain, 100, packed));
    expect_error("short.gz", 3, RF_EDATA, "ends after 100 of 216 bytes");
    file_write("long.gz", packed, gzip(plain, bytes + 3, packed));
    expect_error("long.gz", 3, RF_EDATA, "trailing garbage from byte 216 of its content");
    made = gzip(plain, bytes, packed);
    file_write("cut.gz", packed, made / 2);
    expect_error("cut.gz", 3, RF_EDATA, "of 216 bytes");
    file_write("cut.gz", packed, made - 1);
    expect_error("cut.gz", 3, RF_EDATA, "expected gzip's check sum");
    memcpy(changed, packed, made);
    memcpy(changed + made, "xyz", 3);
    file_write("tail.gz", changed, made + 3);
    expect_error("tail.gz", 3, RF_EDATA, "trailing garbage near byte");
    changed[made] = 0x1f;
    file_write("tail.gz", changed, made + 1);
    expect_error("tail.gz", 3, RF_EDATA, "expected gzip's check sum");
    memcpy(changed, packed, made);
    changed[made - 5] ^= 1; /* the check sum */
    file_write("sum.gz", changed, made);
    expect_error("sum.gz", 3, RF_EDATA, "incorrect data check");
    file_write("none.gz", plain, bytes);
    expect_error("none.gz", 3, RF_EDATA, "is corrupt near byte");

    expect_error("short", 3, RF_EDATA, "ends after 0");
    memcpy(changed, plain, bytes);
    changed[2] = 0x0d; /* floats */
    file_write("magic", changed, bytes);
    expect_error("magic", 3, RF_EDATA, "begins with 0x00000d03 at byte 0, expected 0x00000803");
    file_write("dims", plain, bytes);
    expect_error("dims", 1, RF_EDATA, "has 3 dimensions (byte 3), expected 1");
    memcpy(changed, plain, bytes);
    be32(changed + 8, 0);
    file_write("zero", changed, bytes);
    expect_error("zero", 3, RF_EDATA, "gives dimension 2 as 0 (byte 8)");
    be32(changed + 8, 0xffffffff);
    file_write("huge", changed, bytes);
    expect_error("huge", 3, RF_EDATA, "gives dimension 2 as 4,294,967,295");
    be32(changed + 4, 1 << 24);
    be32(changed + 8, 1 << 20);
    file_write("huge", changed, bytes);
    expect_error("huge", 3, RF_EDATA, "expected at most 1,073,741,824");
    be32(changed + 4, 1 << 20);
    be32(changed + 8, 1 << 7);
    file_write("claim", changed, bytes);
    expect_error("claim", 3, RF_EDATA, "ends after 216 of 671,088,656 bytes");
    file_write("claim.gz", packed, gzip(changed, bytes, packed));
    expect_error("claim.gz", 3, RF_EDATA, "ends after 216 of 671,088,656 bytes");
}

/* Every failed allocation is an error and leaks nothing. */
static void memory_may_run_out_anywhere(void **state) {
    (void)state;
    size_t bytes = idx_make(plain, 3, 900, 30, 31, 256);
    file_write("memory.gz", packed, gzip(plain, bytes, packed));
    int code = RF_ENOMEM;
    long k = 0;
    for (; code == RF_ENOMEM && k < 100; k++) {
        struct rf__idx idx = {0};
        struct rf_error err = {0};
        rf__alloc_fail_after(k);
        code = rf__idx_read(&rf__file_blobs, path_of("memory.gz"), 3, &idx, &err);
        rf__alloc_fail_after(-1);
        assert_true(code == RF_ENOMEM || code == RF_OK);
        rf__idx_free(&idx);
    }
    assert_int_equal(code, RF_OK);
    assert_true(k > 4);
}

/* Mutations of good files: read whole and right in size, or refused in words; the sanitizers watch.
 */
static void mutations_never_harm(void **state) {
    (void)state;
    int accepted = 0;
    int refused = 0;

    for (uint64_t round = 0; round < 6000; round++) {
        struct rf__rng rng = rf__rng(0xda7a, round, 0);
        bool zipped = rf__rng_below(&rng, 3) != 0;
        size_t bytes = idx_make(plain, 3, (uint32_t)rf__rng_below(&rng, 40) + 1, 3, 5, 256);
        size_t made = bytes;
        /* Half of the packed ones are damaged before they are packed, so that the damage gets past
         * the check sum. */
        bool inner = zipped && rf__rng_below(&rng, 2);
        if (zipped && !inner) {
            made = gzip(plain, bytes, changed);
        } else {
            memcpy(changed, plain, bytes);
        }
        uint64_t damage = rf__rng_below(&rng, 4);
        for (uint64_t i = 0; i < damage; i++) {
            changed[rf__rng_below(&rng, rf__rng_below(&rng, 2) ? 16 : made)] =
                (unsigned char)rf__rng_below(&rng, 256);
        }
        if (rf__rng_below(&rng, 4) == 0) {
            made = (size_t)rf__rng_below(&rng, made + 1);
        } else if (rf__rng_below(&rng, 4) == 0) {
            memset(changed + made, (int)rf__rng_below(&rng, 256), 20);
            made += (size_t)rf__rng_below(&rng, 20);
        }
        if (inner) {
            memcpy(plain, changed, made);
            made = gzip(plain, made, changed);
        }
        const char *name = zipped ? "mutant.gz" : "mutant";
        file_write(name, changed, made);
        struct rf__idx idx = {0};
        struct rf_error err = {0};
        int code = rf__idx_read(&rf__file_blobs, path_of(name), 3, &idx, &err);
        if (code == RF_OK) {
            assert_int_equal(idx.bytes, (size_t)idx.sizes[0] * idx.sizes[1] * idx.sizes[2]);
            uint64_t sum = 0;
            for (size_t i = 0; i < idx.bytes; i++) {
                sum += idx.data[i];
            }
            assert_true(sum <= 255 * (uint64_t)idx.bytes);
            accepted++;
        } else {
            if (code != RF_EDATA || !strstr(err.text, name)) {
                fail_msg("round %llu: %d '%s'", (unsigned long long)round, code, err.text);
            }
            refused++;
        }
        rf__idx_free(&idx);
    }
    assert_true(accepted > 500 && refused > 2000);
}

/* The four files of a set; labels below `classes`. */
static void dataset_write(int classes, uint32_t labels) {
    file_write("train-images-idx3-ubyte", plain, idx_make(plain, 3, TRAIN, SIDE, SIDE, 256));
    file_write("train-labels-idx1-ubyte", plain, idx_make(plain, 1, labels, 0, 0, classes));
    size_t bytes = idx_make(plain, 3, TEST, SIDE, SIDE, 256);
    file_write("t10k-images-idx3-ubyte.gz", packed, gzip(plain, bytes, packed));
    bytes = idx_make(plain, 1, TEST, 0, 0, 10);
    file_write("t10k-labels-idx1-ubyte.gz", packed, gzip(plain, bytes, packed));
}

static const struct rf__data_io io = {.files = &rf__file_blobs};

static void dataset_refused(int code, const char *words) {
    struct rf__dataset dataset = {0};
    struct rf_error err = {0};
    int got = rf__dataset_read(&io, folder, &dataset, &err);
    if (got != code || !strstr(err.text, words)) {
        fail_msg("got %d '%s', expected %d with '%s'", got, err.text, code, words);
    }
    assert_null(dataset.train.images);
    if (code == RF_ENOTFOUND) {
        assert_non_null(strstr(err.next, "dataset-fashion-mnist"));
    }
}

static void datasets_are_read_and_gathered(void **state) {
    struct rf__dataset dataset = {0};
    struct rf_error err = {0};
    float inputs[3 * SIDE * SIDE];
    int32_t labels[3];
    const uint32_t indices[3] = {TRAIN - 1, 0, 7};

    (void)state;
    dataset_write(10, TRAIN);
    assert_int_equal(rf__dataset_read(&io, folder, &dataset, &err), 0);
    assert_int_equal(dataset.train.count, TRAIN);
    assert_int_equal(dataset.test.count, TEST);
    assert_int_equal(dataset.height, SIDE);
    double sum = 0;
    double squares = 0;
    for (uint32_t i = 0; i < TRAIN; i++) {
        int label;
        struct rf__bad bad;
        assert_int_equal(rf__dataset_usable(&dataset.train, i, &bad, &err), 1);
        const unsigned char *image = rf__dataset_image(&dataset.train, i, &label);
        for (int p = 0; p < SIDE * SIDE; p++) {
            double x = (double)dataset.value[image[p]];
            sum += x;
            squares += x * x;
        }
    }
    assert_true(fabs(sum / (TRAIN * SIDE * SIDE)) < 1e-5);
    assert_true(fabs(squares / (TRAIN * SIDE * SIDE) - 1) < 1e-5);
    rf__dataset_gather(&dataset, &dataset.train, indices, 3, inputs, labels);
    for (int i = 0; i < 3; i++) {
        int label;
        const unsigned char *image = rf__dataset_image(&dataset.train, indices[i], &label);
        assert_int_equal(labels[i], label);
        for (int p = 0; p < SIDE * SIDE; p++) {
            float expected = dataset.value[image[p]];
            assert_memory_equal(&inputs[i * SIDE * SIDE + p], &expected, sizeof expected);
        }
    }
    rf__dataset_free(&dataset);
}

static void datasets_that_do_not_fit_are_refused(void **state) {
    (void)state;
    dataset_write(10, TRAIN - 1);
    dataset_refused(RF_EDATA, "has 52 labels (byte 4), expected 53");
    dataset_write(12, TRAIN);
    dataset_refused(RF_EDATA, ", expected 0 to 9");
    dataset_write(10, TRAIN);
    file_remove("t10k-images-idx3-ubyte.gz");
    dataset_refused(RF_ENOTFOUND, "no 't10k-images-idx3-ubyte' or 't10k-images-idx3-ubyte.gz' in");
    file_write("t10k-images-idx3-ubyte", plain, idx_make(plain, 3, TEST, SIDE, SIDE + 1, 256));
    dataset_refused(RF_EDATA, "has images of 7 x 8 (bytes 8 to 15), expected 7 x 7");
    file_remove("t10k-images-idx3-ubyte");
    file_write("train-images-idx3-ubyte", plain, idx_make(plain, 3, 2, 1025, 1, 256));
    dataset_refused(RF_EDATA, "expected at most 1024 x 1024");
    file_remove("train-images-idx3-ubyte");
    dataset_refused(RF_ENOTFOUND, "no 'train-images-idx3-ubyte' or");
}

/* All shards of all steps of an epoch hold each sample exactly once, for any cut; and epochs
 * differ. */
static void each_sample_is_used_once_an_epoch(void **state) {
    static const struct {
        uint32_t count, batch, shards;
    } cuts[] = {{1, 1, 1},    {53, 8, 1},   {53, 8, 4},     {53, 8, 8},    {53, 53, 3},
                {53, 64, 64}, {97, 96, 32}, {1000, 60, 12}, {1024, 64, 7}, {60000, 128, 8}};
    static unsigned char seen[60000];
    static uint32_t before[60000];

    (void)state;
    for (size_t c = 0; c < sizeof cuts / sizeof *cuts; c++) {
        struct rf__sampler *sampler = NULL;
        assert_int_equal(
            rf__sampler_create(7, cuts[c].count, cuts[c].batch, cuts[c].shards, &sampler, NULL), 0);
        uint64_t steps = rf__sampler_steps_per_epoch(sampler);
        for (uint64_t epoch = 0; epoch < 3; epoch++) {
            uint32_t total = 0;
            uint32_t same = 0;
            memset(seen, 0, sizeof seen);
            for (uint64_t step = epoch * steps; step < (epoch + 1) * steps; step++) {
                uint32_t smallest = UINT32_MAX;
                uint32_t largest = 0;
                for (uint32_t shard = 0; shard < cuts[c].shards; shard++) {
                    const uint32_t *samples;
                    uint32_t n = rf__sampler_shard(sampler, step, shard, &samples);
                    assert_true(n <= rf__sampler_shard_max(sampler));
                    smallest = n < smallest ? n : smallest;
                    largest = n > largest ? n : largest;
                    for (uint32_t i = 0; i < n; i++, total++) {
                        assert_true(samples[i] < cuts[c].count);
                        assert_int_equal(seen[samples[i]], 0);
                        seen[samples[i]] = 1;
                        same += epoch && before[total] == samples[i];
                        before[total] = samples[i];
                    }
                }
                assert_true(largest - smallest <= 1);
            }
            assert_int_equal(total, cuts[c].count);
            assert_true(!epoch || cuts[c].count < 50 || same < cuts[c].count / 2);
        }
        rf__sampler_destroy(sampler);
    }
}

/* A batch is the same samples in the same order however many shards it is cut into, and whatever
 * was asked before. */
static void batches_depend_on_nothing_but_seed_and_step(void **state) {
    (void)state;
    for (uint32_t shards = 1; shards <= 12; shards++) {
        struct rf__sampler *whole = NULL;
        struct rf__sampler *cut = NULL;
        struct rf__sampler *other = NULL;
        assert_int_equal(rf__sampler_create(3, 1000, 60, 1, &whole, NULL), 0);
        assert_int_equal(rf__sampler_create(3, 1000, 60, shards, &cut, NULL), 0);
        assert_int_equal(rf__sampler_create(4, 1000, 60, 1, &other, NULL), 0);
        for (int k = 0; k < 40; k++) {
            uint64_t step = (uint64_t)(k * 23 % 40);
            const uint32_t *batch;
            const uint32_t *part;
            const uint32_t *foreign;
            uint32_t n = rf__sampler_shard(whole, step, 0, &batch);
            uint32_t at = 0;
            for (uint32_t shard = 0; shard < shards; shard++) {
                uint32_t m = rf__sampler_shard(cut, step, shard, &part);
                assert_memory_equal(part, batch + at, m * sizeof *part);
                at += m;
            }
            assert_int_equal(at, n);
            assert_int_equal(rf__sampler_shard(other, step, 0, &foreign), n);
            assert_memory_not_equal(foreign, batch, n * sizeof *batch);
        }
        rf__sampler_destroy(whole);
        rf__sampler_destroy(cut);
        rf__sampler_destroy(other);
    }
}

static void cuts_that_cannot_be_are_refused(void **state) {
    struct rf__sampler *sampler = NULL;
    struct rf_error err = {0};
    (void)state;
    assert_int_equal(rf__sampler_create(1, 10, 4, 5, &sampler, &err), RF_EINVAL);
    assert_int_equal(rf__sampler_create(1, 10, 4, 0, &sampler, &err), RF_EINVAL);
    assert_int_equal(rf__sampler_create(1, 0, 4, 1, &sampler, &err), RF_EINVAL);
    assert_null(sampler);
}

static int setup(void **state) {
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int teardown(void **state) {
    static const char *const names[] = {"whole",
                                        "whole.gz",
                                        "members.gz",
                                        "labels",
                                        "short",
                                        "long",
                                        "short.gz",
                                        "long.gz",
                                        "cut.gz",
                                        "tail.gz",
                                        "sum.gz",
                                        "none.gz",
                                        "magic",
                                        "dims",
                                        "zero",
                                        "huge",
                                        "claim",
                                        "claim.gz",
                                        "memory.gz",
                                        "mutant",
                                        "mutant.gz",
                                        "train-images-idx3-ubyte",
                                        "train-labels-idx1-ubyte",
                                        "t10k-images-idx3-ubyte.gz",
                                        "t10k-labels-idx1-ubyte.gz"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        file_remove(names[i]);
    }
    return rmdir(folder); /* fails where the test left something behind */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_files_are_read),
        cmocka_unit_test(wrong_files_are_refused_with_reasons),
        cmocka_unit_test(memory_may_run_out_anywhere),
        cmocka_unit_test(mutations_never_harm),
        cmocka_unit_test(datasets_are_read_and_gathered),
        cmocka_unit_test(datasets_that_do_not_fit_are_refused),
        cmocka_unit_test(each_sample_is_used_once_an_epoch),
        cmocka_unit_test(batches_depend_on_nothing_but_seed_and_step),
        cmocka_unit_test(cuts_that_cannot_be_are_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
