/* Datasets whose files are damaged: exactly the samples in damaged blocks cannot be used, the
 * others are what they were, and so is the normalisation. IDX files, plain and packed, TFRecord
 * files and token streams; then mutations of all of them. Files are in memory. */
#include "base/mem.h"
#include "base/rng.h"
#include "data/check.h"
#include "data/dataset.h"
#include "data/tfrecord.h"
#include "data/tokens.h"
#include "support/memory_files.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <zlib.h>

#include <cmocka.h>

#define FUZZ_DATA fuzz_data
#include "fuzz/fuzz_data.c"

enum { SIDE = 28, PIXELS = SIDE * SIDE, TRAIN = 900, TEST = 90, BLOCK = RF__INDEX_BLOCK };

#define TRAIN_IMAGES "train-images-idx3-ubyte"
#define TRAIN_LABELS "train-labels-idx1-ubyte"
#define TEST_IMAGES  "t10k-images-idx3-ubyte"
#define TEST_LABELS  "t10k-labels-idx1-ubyte"

static unsigned char train_images[16 + TRAIN * PIXELS], train_labels[8 + TRAIN];
static unsigned char test_images[16 + TEST * PIXELS], test_labels[8 + TEST];
static unsigned char packed[1 << 20], scratch[1 << 21];
static struct memory_files files, beside;
static const struct rf__data_io io = {.files = &files.base, .beside = &beside.base, .root = "/set"};

static void be32(unsigned char *at, uint32_t value) {
    for (int i = 0; i < 4; i++) {
        at[i] = (unsigned char)(value >> (24 - 8 * i));
    }
}

static void part_make(unsigned char *images, unsigned char *labels, uint32_t count,
                      uint64_t stream) {
    struct rf__rng rng = rf__rng(11, stream, 0);
    be32(images, 0x803);
    be32(images + 4, count);
    be32(images + 8, SIDE);
    be32(images + 12, SIDE);
    be32(labels, 0x801);
    be32(labels + 4, count);
    for (uint32_t i = 0; i < count * PIXELS; i++) {
        images[16 + i] = (unsigned char)rf__rng_below(&rng, 256);
    }
    for (uint32_t i = 0; i < count; i++) {
        labels[8 + i] = (unsigned char)rf__rng_below(&rng, 10);
    }
}

/* A file is in the folder under a path, and in its list under its name. */
static struct memory_entry *file_put(const char *name, const void *bytes, size_t count) {
    char path[MEMORY_NAME];
    snprintf(path, sizeof path, "/set/%s", name);
    memory_put(&beside, name, "", 0);
    return memory_put(&files, path, bytes, count);
}

static struct memory_entry *file_of(const char *name) {
    char path[MEMORY_NAME];
    snprintf(path, sizeof path, "/set/%s", name);
    return memory_find(&files, path);
}

static int setup(void **state) {
    (void)state;
    files = beside = (struct memory_files){.base = {&memory_files_ops}};
    part_make(train_images, train_labels, TRAIN, 1);
    part_make(test_images, test_labels, TEST, 2);
    file_put(TRAIN_IMAGES, train_images, sizeof train_images);
    file_put(TRAIN_LABELS, train_labels, sizeof train_labels);
    file_put(TEST_IMAGES, test_images, sizeof test_images);
    file_put(TEST_LABELS, test_labels, sizeof test_labels);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    memory_clear(&files);
    memory_clear(&beside);
    return 0;
}

static struct rf__dataset opened(void) {
    struct rf__dataset set = {0};
    struct rf_error err = {0};
    int code = rf__dataset_read(&io, "/set", &set, &err);
    if (code) {
        fail_msg("%d: %s", code, err.text);
    }
    return set;
}

static void refused(int code, const char *words) {
    struct rf__dataset set = {0};
    struct rf_error err = {0};
    int got = rf__dataset_read(&io, "/set", &set, &err);
    if (got != code || !strstr(err.text, words)) {
        fail_msg("got %d '%s', expected %d with '%s'", got, err.text, code, words);
    }
    assert_null(set.train.images);
}

/* Which samples cannot be used is `expected`; the others are what they were made as. */
static uint32_t samples_check(const struct rf__samples *part, const unsigned char *images,
                              const unsigned char *labels,
                              bool (*expected)(uint32_t sample, const struct rf__bad *bad)) {
    uint32_t usable = 0;
    for (uint32_t i = 0; i < part->count; i++) {
        struct rf__bad bad = {0};
        struct rf_error err = {0};
        int label;
        int is_usable = rf__dataset_usable(part, i, &bad, &err);
        if (expected(i, is_usable ? NULL : &bad) != (is_usable == 0)) {
            fail_msg("sample %u: %d %s", i, is_usable, bad.cause);
        }
        if (is_usable) {
            assert_memory_equal(rf__dataset_image(part, i, &label), images + 16 + i * PIXELS,
                                PIXELS);
            assert_int_equal(label, labels[8 + i]);
            usable++;
        }
    }
    return usable;
}

static bool none(uint32_t sample, const struct rf__bad *bad) {
    (void)sample;
    (void)bad;
    return false;
}

/* Blocks of the training images that are damaged, as bits. */
static uint64_t damaged;
static const char *cause;

static bool in_damaged_blocks(uint32_t sample, const struct rf__bad *bad) {
    uint64_t begin = 16 + (uint64_t)sample * PIXELS;
    uint64_t first = begin / BLOCK;
    uint64_t last = (begin + PIXELS - 1) / BLOCK;
    bool is_bad = (damaged >> first & 1) || (damaged >> last & 1);
    if (bad) {
        uint64_t block = damaged >> first & 1 ? first : last;
        assert_int_equal(bad->block, block);
        assert_int_equal(bad->offset, block * BLOCK);
        assert_non_null(strstr(bad->file, "train-images"));
        assert_non_null(strstr(bad->cause, cause));
    }
    return is_bad;
}

static void sound_sets_are_usable_and_indexed_once(void **state) {
    (void)state;
    for (int round = 0; round < 2; round++) {
        struct rf__dataset set = opened();
        assert_int_equal(samples_check(&set.train, train_images, train_labels, none), TRAIN);
        assert_int_equal(samples_check(&set.test, test_images, test_labels, none), TEST);
        assert_int_equal(beside.writes, 4);
        rf__dataset_free(&set);
    }
}

static void exactly_the_samples_in_damaged_blocks_are_unusable(void **state) {
    static const uint64_t patterns[] = {1 << 1, 1 << 3 | 1 << 4, 1 << 10, 0x7fe};
    (void)state;
    struct rf__dataset sound = opened();
    struct memory_entry *entry = file_of(TRAIN_IMAGES);
    for (size_t k = 0; k < sizeof patterns / sizeof *patterns; k++) {
        damaged = patterns[k];
        cause = "mismatch: ";
        for (uint64_t b = 0; b * BLOCK < sizeof train_images; b++) {
            entry->bytes[b * BLOCK + 11] ^= damaged >> b & 1;
        }
        struct rf__dataset set = opened();
        uint32_t usable = samples_check(&set.train, train_images, train_labels, in_damaged_blocks);
        assert_true(usable < TRAIN);
        assert_int_equal(samples_check(&set.test, test_images, test_labels, none), TEST);
        /* Whatever is damaged, samples become the same numbers. */
        assert_memory_equal(set.value, sound.value, sizeof set.value);
        rf__dataset_free(&set);
        for (uint64_t b = 0; b * BLOCK < sizeof train_images; b++) {
            entry->bytes[b * BLOCK + 11] ^= damaged >> b & 1;
        }
    }
    rf__dataset_free(&sound);
}

static void what_cannot_be_read_or_is_missing_is_unusable(void **state) {
    (void)state;
    struct rf__dataset sound = opened();
    struct memory_entry *entry = file_of(TRAIN_IMAGES);
    entry->bad_begin = 5 * BLOCK - 1;
    entry->bad_end = 5 * BLOCK + 1;
    damaged = 1 << 4 | 1 << 5;
    cause = "unreadable: Input/output error";
    struct rf__dataset set = opened();
    (void)samples_check(&set.train, train_images, train_labels, in_damaged_blocks);
    assert_memory_equal(set.value, sound.value, sizeof set.value);
    rf__dataset_free(&set);

    entry->bad_end = 0;
    entry->count = 8 * BLOCK + 5;
    damaged = 7 << 8;
    cause = "short: ";
    set = opened();
    (void)samples_check(&set.train, train_images, train_labels, in_damaged_blocks);
    assert_memory_equal(set.value, sound.value, sizeof set.value);
    rf__dataset_free(&set);
    rf__dataset_free(&sound);
}

/* Labels of a small set share a block with their header. */
static void damaged_labels_of_a_small_set_are_told(void **state) {
    (void)state;
    struct rf__dataset set = opened();
    rf__dataset_free(&set);
    struct memory_entry *entry = file_of(TEST_LABELS);
    entry->bytes[50] = 77; /* which would be refused as a label if it were believed */
    refused(RF_EDATA, "block 0 of '/set/" TEST_LABELS "'");
    memcpy(entry->bytes, test_labels, sizeof test_labels);
    set = opened();
    assert_int_equal(samples_check(&set.test, test_images, test_labels, none), TEST);
    rf__dataset_free(&set);
}

/* Of a large one they take their samples along. */
static void damaged_labels_take_their_samples_along(void **state) {
    enum { MANY = 150000 };
    static unsigned char bytes[16 + MANY];
    (void)state;
    static const char *const names[] = {TRAIN_IMAGES, TEST_IMAGES, TRAIN_LABELS, TEST_LABELS};
    for (int k = 0; k < 4; k++) {
        size_t at = k < 2 ? 16 : 8;
        be32(bytes, k < 2 ? 0x803 : 0x801);
        be32(bytes + 4, MANY);
        be32(bytes + 8, 1);
        be32(bytes + 12, 1);
        for (uint32_t i = 0; i < MANY; i++) {
            bytes[at + i] = (unsigned char)(i * 7 % 10);
        }
        file_put(names[k], bytes, at + MANY);
    }
    struct rf__dataset set = opened();
    rf__dataset_free(&set);
    file_of(TRAIN_LABELS)->bytes[BLOCK + 5000] = 77;
    set = opened();
    for (uint32_t i = 0; i < MANY; i++) {
        struct rf__bad bad = {0};
        int label;
        bool is_bad = (8 + i) / BLOCK == 1;
        assert_int_equal(rf__dataset_usable(&set.train, i, &bad, NULL), !is_bad);
        if (is_bad) {
            assert_string_equal(bad.file, "/set/" TRAIN_LABELS);
            assert_int_equal(bad.offset, BLOCK);
        } else {
            (void)rf__dataset_image(&set.train, i, &label);
            assert_int_equal(label, i * 7 % 10);
        }
    }
    rf__dataset_free(&set);
}

static void a_damaged_header_is_told_at_once(void **state) {
    (void)state;
    struct rf__dataset set = opened();
    rf__dataset_free(&set);
    file_of(TRAIN_IMAGES)->bytes[500] ^= 1; /* in the header's block */
    refused(RF_EDATA, "nothing can be read without the header: block 0 of '/set/" TRAIN_IMAGES "'");
    file_of(TRAIN_IMAGES)->bytes[500] ^= 1;
    file_of(TRAIN_IMAGES)->bad_end = 4;
    refused(RF_EIO, "nothing can be read without the header");
}

static void a_file_is_sound_before_it_is_indexed(void **state) {
    (void)state;
    file_put(TRAIN_LABELS, train_labels, sizeof train_labels - 3);
    refused(RF_EDATA, "'/set/" TRAIN_LABELS "' ends after 905 of 908 bytes");
    assert_null(memory_find(&beside, TRAIN_LABELS ".rfindex"));
}

static void an_index_of_another_file_is_told(void **state) {
    (void)state;
    struct rf__indexed indexed;
    file_put(TRAIN_LABELS, train_labels, 500);
    assert_int_equal(rf__data_index(&io, "/set/" TRAIN_LABELS, TRAIN_LABELS, false, &indexed, NULL),
                     0);
    file_put(TRAIN_LABELS, train_labels, sizeof train_labels);
    refused(RF_EDATA, "by its index, '/set/" TRAIN_LABELS "' ends after 500 of 908 bytes");
}

/* --- packed ----------------------------------------------------------------------------------- */

static size_t gzip(const void *bytes, size_t count, unsigned char *out, size_t room) {
    z_stream z = {0};
    assert_int_equal(deflateInit2(&z, 1, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
    z.next_in = (unsigned char *)(uintptr_t)bytes;
    z.avail_in = (unsigned)count;
    z.next_out = out;
    z.avail_out = (unsigned)room;
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    size_t made = z.total_out;
    deflateEnd(&z);
    return made;
}

static struct memory_entry *train_images_pack(void) {
    memory_remove(&files, "/set/" TRAIN_IMAGES);
    memory_remove(&beside, TRAIN_IMAGES);
    return file_put(TRAIN_IMAGES ".gz", packed,
                    gzip(train_images, sizeof train_images, packed, sizeof packed));
}

static void packed_files_need_no_index(void **state) {
    (void)state;
    struct rf__dataset plain = opened();
    beside.writes = 0;
    struct memory_entry *entry = train_images_pack();
    struct rf__dataset set = opened();
    assert_memory_equal(set.value, plain.value, sizeof set.value);
    assert_int_equal(samples_check(&set.train, train_images, train_labels, none), TRAIN);
    assert_int_equal(beside.writes, 0);
    rf__dataset_free(&set);
    rf__dataset_free(&plain);
    entry->bytes[entry->count / 2] ^= 1;
    refused(RF_EDATA, TRAIN_IMAGES ".gz");
}

/* With one, what came out before the damage is used. */
static void damaged_packed_files_are_used_with_an_index(void **state) {
    (void)state;
    struct rf__dataset plain = opened();
    struct rf__indexed indexed;
    struct rf__checked checked;
    struct memory_entry *entry = train_images_pack();
    const char *path = "/set/" TRAIN_IMAGES ".gz";
    const char *name = TRAIN_IMAGES ".gz";
    assert_int_equal(rf__data_index(&io, path, name, false, &indexed, NULL), 0);
    assert_int_equal(indexed.bytes, sizeof train_images);
    assert_int_equal(rf__data_check(&io, path, name, 0, NULL, NULL, &checked, NULL), 0);

    entry->count /= 2;
    struct rf__dataset set = opened();
    uint32_t usable = 0;
    for (uint32_t i = 0; i < TRAIN; i++) {
        struct rf__bad bad;
        int label;
        if (rf__dataset_usable(&set.train, i, &bad, NULL)) {
            assert_int_equal(usable, i);
            assert_memory_equal(rf__dataset_image(&set.train, i, &label),
                                train_images + 16 + i * PIXELS, PIXELS);
            usable++;
        } else {
            assert_non_null(strstr(bad.cause, "short: "));
        }
    }
    assert_true(usable > TRAIN / 3 && usable < TRAIN * 2 / 3);
    assert_memory_equal(set.value, plain.value, sizeof set.value);
    rf__dataset_free(&set);

    entry->count *= 2;
    entry->bytes[entry->count / 2] ^= 0x10;
    assert_int_equal(rf__data_check(&io, path, name, 0, NULL, NULL, &checked, NULL), RF_EDATA);
    set = opened();
    for (uint32_t i = 0; i < TRAIN; i++) {
        struct rf__bad bad;
        int label;
        if (rf__dataset_usable(&set.train, i, &bad, NULL)) {
            assert_memory_equal(rf__dataset_image(&set.train, i, &label),
                                train_images + 16 + i * PIXELS, PIXELS);
        }
    }
    rf__dataset_free(&set);
    rf__dataset_free(&plain);
    memory_remove(&beside, TRAIN_IMAGES ".gz.rfindex");
    assert_int_equal(rf__data_index(&io, path, name, false, &indexed, NULL), RF_EDATA);
}

/* --- TFRecord --------------------------------------------------------------------------------- */

struct writer {
    unsigned char *bytes;
    size_t count;
};

static void put(struct writer *w, const void *bytes, size_t count) {
    memcpy(w->bytes + w->count, bytes, count);
    w->count += count;
}

static void put_varint(struct writer *w, uint64_t value) {
    do {
        unsigned char byte = (unsigned char)((value & 0x7f) | (value > 0x7f ? 0x80 : 0));
        put(w, &byte, 1);
        value >>= 7;
    } while (value);
}

static void put_field(struct writer *w, unsigned number, const void *bytes, size_t count) {
    put_varint(w, number << 3 | 2);
    put_varint(w, count);
    put(w, bytes, count);
}

static void put_u32(struct writer *w, uint32_t value) {
    unsigned char bytes[4] = {(unsigned char)value, (unsigned char)(value >> 8),
                              (unsigned char)(value >> 16), (unsigned char)(value >> 24)};
    put(w, bytes, 4);
}

/* A feature of one entry of the map: `list` 1 has bytes, 3 a number; `packed_number`: as a list. */
static void put_feature(struct writer *features, const char *name, unsigned list, const void *bytes,
                        size_t count, int64_t number, bool packed_number) {
    static unsigned char a[4096], b[4096], c[4096], d[64];
    struct writer inner = {a, 0}, feature = {b, 0}, entry = {c, 0}, numbers = {d, 0};
    if (list == 1) {
        put_field(&inner, 1, bytes, count);
    } else if (packed_number) {
        put_varint(&numbers, (uint64_t)number);
        put_field(&inner, 1, d, numbers.count);
    } else {
        put_varint(&inner, 1 << 3);
        put_varint(&inner, (uint64_t)number);
    }
    put_field(&feature, list, a, inner.count);
    put_field(&entry, 1, name, strlen(name));
    put_field(&entry, 2, b, feature.count);
    put_field(features, 1, c, entry.count);
}

static void put_record(struct writer *w, const void *data, size_t count) {
    unsigned char length[8] = {0};
    for (int i = 0; i < 8; i++) {
        length[i] = (unsigned char)((uint64_t)count >> 8 * i);
    }
    put(w, length, 8);
    put_u32(w, rf__crc32c_masked(length, 8));
    put(w, data, count);
    put_u32(w, rf__crc32c_masked(data, count));
}

/* The records of samples `first` to `end` - 1; where each begins goes to `offsets`. */
static size_t records_make(unsigned char *out, const unsigned char *images,
                           const unsigned char *labels, uint32_t first, uint32_t end,
                           bool with_size, uint64_t *offsets) {
    static unsigned char a[8192], b[8192];
    struct writer file = {out, 0};
    for (uint32_t i = first; i < end; i++) {
        struct writer features = {a, 0}, example = {b, 0};
        put_feature(&features, "label", 3, NULL, 0, labels[8 + i], i % 2);
        put_feature(&features, "name", 1, "something else", 14, 0, false);
        put_feature(&features, "image_raw", 1, images + 16 + i * PIXELS, PIXELS, 0, false);
        if (with_size) {
            put_feature(&features, "height", 3, NULL, 0, SIDE, false);
            put_feature(&features, "width", 3, NULL, 0, SIDE, true);
        }
        put_field(&example, 1, a, features.count);
        if (offsets) {
            offsets[i] = file.count;
        }
        put_record(&file, b, example.count);
    }
    return file.count;
}

static uint64_t offsets[TRAIN];
enum { SPLIT = 500 };

static void records_put(void) {
    memory_clear(&files);
    memory_clear(&beside);
    size_t n = records_make(scratch, train_images, train_labels, 0, SPLIT, true, offsets);
    file_put("train-00000-of-00002.tfrecord", scratch, n);
    n = records_make(scratch, train_images, train_labels, SPLIT, TRAIN, false, offsets);
    file_put("train-00001-of-00002.tfrecord", scratch, n);
    n = records_make(scratch, test_images, test_labels, 0, TEST, true, NULL);
    file_put("test.tfrecord", scratch, n);
}

static void crcs_are_what_others_compute(void **state) {
    unsigned char bytes[32];
    (void)state;
    assert_int_equal(rf__crc32c((const unsigned char *)"123456789", 9), 0xe3069283);
    assert_int_equal(rf__crc32c(bytes, 0), 0);
    memset(bytes, 0, sizeof bytes);
    assert_int_equal(rf__crc32c(bytes, 32), 0x8a9136aa); /* RFC 3720, B.4 */
    memset(bytes, 0xff, sizeof bytes);
    assert_int_equal(rf__crc32c(bytes, 32), 0x62a8ab43);
    for (int i = 0; i < 32; i++) {
        bytes[i] = (unsigned char)i;
    }
    assert_int_equal(rf__crc32c(bytes, 32), 0x46dd794e);
}

static void tfrecords_are_the_same_set(void **state) {
    (void)state;
    struct rf__dataset idx = opened();
    records_put();
    struct rf__dataset set = opened();
    assert_int_equal(set.train.count, TRAIN);
    assert_int_equal(set.height, SIDE);
    assert_int_equal(samples_check(&set.train, train_images, train_labels, none), TRAIN);
    assert_int_equal(samples_check(&set.test, test_images, test_labels, none), TEST);
    assert_memory_equal(set.value, idx.value, sizeof set.value);
    rf__dataset_free(&set);
    rf__dataset_free(&idx);
}

static uint32_t bad_record;

static bool is_bad_record(uint32_t sample, const struct rf__bad *bad) {
    if (bad) {
        assert_non_null(strstr(bad->cause, cause));
        assert_non_null(strstr(bad->file, "train-00000"));
    }
    return sample == bad_record;
}

static void a_bad_record_is_one_bad_sample(void **state) {
    (void)state;
    records_put();
    struct memory_entry *entry = file_of("train-00000-of-00002.tfrecord");
    bad_record = 321;
    cause = "mismatch: a record's check sum";
    entry->bytes[offsets[321] + 400] ^= 4;
    struct rf__dataset set = opened();
    assert_int_equal(set.train.count, TRAIN);
    assert_int_equal(samples_check(&set.train, train_images, train_labels, is_bad_record),
                     TRAIN - 1);
    rf__dataset_free(&set);
    entry->bytes[offsets[321] + 400] ^= 4;
    entry->bytes[offsets[322] - 1] ^= 4; /* the check sum itself */
    set = opened();
    assert_int_equal(samples_check(&set.train, train_images, train_labels, is_bad_record),
                     TRAIN - 1);
    rf__dataset_free(&set);
}

static void behind_a_bad_length_the_file_is_lost(void **state) {
    (void)state;
    records_put();
    struct memory_entry *entry = file_of("train-00000-of-00002.tfrecord");
    entry->bytes[offsets[100] + 1] ^= 4;
    struct rf__dataset set = opened();
    struct rf__bad bad;
    /* 100 before it, one for what is lost, and those of the other file. */
    assert_int_equal(set.train.count, 100 + 1 + TRAIN - SPLIT);
    for (uint32_t i = 0; i < set.train.count; i++) {
        assert_int_equal(rf__dataset_usable(&set.train, i, &bad, NULL), i != 100);
    }
    assert_int_equal(bad.offset, offsets[100]);
    int label;
    assert_memory_equal(rf__dataset_image(&set.train, 101, &label),
                        train_images + 16 + SPLIT * PIXELS, PIXELS);
    rf__dataset_free(&set);

    entry->bytes[offsets[100] + 1] ^= 4;
    entry->count = (size_t)offsets[200] + 300; /* cut within a record */
    set = opened();
    assert_int_equal(set.train.count, 200 + 1 + TRAIN - SPLIT);
    assert_int_equal(rf__dataset_usable(&set.train, 200, &bad, NULL), 0);
    rf__dataset_free(&set);
}

static void records_that_cannot_be_read_are_bad(void **state) {
    (void)state;
    records_put();
    struct memory_entry *entry = file_of("train-00001-of-00002.tfrecord");
    entry->bad_begin = entry->count - 10; /* in the last block, so in the file's tail */
    entry->bad_end = entry->count;
    struct rf__dataset set = opened();
    struct rf__bad bad;
    uint32_t last = set.train.count - 1;
    assert_true(last < TRAIN);
    assert_int_equal(rf__dataset_usable(&set.train, last, &bad, NULL), 0);
    assert_non_null(strstr(bad.cause, "unreadable: "));
    rf__dataset_free(&set);
}

static void folders_say_what_was_looked_for(void **state) {
    struct rf__dataset set = {0};
    struct rf_error err = {0};
    (void)state;
    records_put();
    memory_remove(&beside, "test.tfrecord");
    refused(RF_ENOTFOUND, "no 'test*.tfrecord' or 't10k*.tfrecord' beside 'train-00000");
    memory_clear(&beside);
    assert_int_equal(rf__dataset_read(&io, "/set", &set, &err), RF_ENOTFOUND);
    assert_non_null(strstr(err.text, "no '" TRAIN_IMAGES "' or '" TRAIN_IMAGES ".gz' in '/set'"));
    assert_non_null(strstr(err.why, "train*.tfrecord and test*.tfrecord (or t10k*.tfrecord)"));
}

static void examples_that_do_not_fit_are_refused(void **state) {
    static unsigned char a[8192], b[8192];
    static const struct {
        const char *name;
        size_t bytes;
        int64_t label, height;
        const char *words;
    } wrong[] = {{"image_raw", 783, 1, 0, "has an image of 783 bytes"},
                 {"image_raw", 784, 10, 0, "has label 10, expected 0 to 9"},
                 {"image_raw", 784, -1, 0, "has no 'label'"},
                 {"image", 784, 1, 0, "has no 'image_raw'"},
                 {"image_raw", 784, 1, 56, "has an image of 784 bytes"},
                 {"image_raw", 784, 1, -5, "has an image of 784 bytes"},
                 {"image_raw", 900, 1, 0, "has an image of 30 x 30, expected 28 x 28"}};
    (void)state;
    for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++) {
        struct writer features = {a, 0}, example = {b, 0}, file = {scratch, 0};
        records_put();
        put_feature(&features, wrong[k].name, 1, train_images, wrong[k].bytes, 0, false);
        if (wrong[k].label >= 0) {
            put_feature(&features, "label", 3, NULL, 0, wrong[k].label, false);
        }
        if (wrong[k].height) {
            put_feature(&features, "height", 3, NULL, 0, wrong[k].height, false);
            put_feature(&features, "width", 3, NULL, 0, SIDE, false);
        }
        put_field(&example, 1, a, features.count);
        put_record(&file, b, example.count);
        file_put("test.tfrecord", scratch, file.count);
        refused(RF_EDATA, wrong[k].words);
    }
}

/* --- token streams ---------------------------------------------------------------------------- */

enum { TOKENS = 150000, WINDOW = 64 };

static uint32_t token(uint32_t i, int width) {
    return width == 2 ? i * 2654435761u >> 16 : i * 2654435761u;
}

static size_t tokens_make(unsigned char *out, uint32_t count, int width, bool header,
                          uint32_t magic, uint32_t version) {
    struct writer w = {out, 0};
    if (header) {
        memset(out, 0, 1024);
        put_u32(&w, magic);
        put_u32(&w, version);
        put_u32(&w, count);
        w.count = 1024;
    }
    for (uint32_t i = 0; i < count; i++) {
        put_u32(&w, token(i, width));
        w.count -= width == 2 ? 2 : 0;
    }
    return w.count;
}

static int tokens_open(int width, uint32_t window, struct rf__tokens *out, struct rf_error *err) {
    *out = (struct rf__tokens){0};
    return rf__tokens_open(&io, "/set/t.bin", "t.bin", width, window, 4 * BLOCK, out, err);
}

static void tokens_put(size_t count) {
    memory_remove(&beside, "t.bin.rfindex");
    file_put("t.bin", scratch, count);
}

static void token_streams_are_read_in_windows(void **state) {
    static const struct {
        int given, width;
        bool header;
        uint32_t magic, version;
    } kinds[] = {{2, 2, false, 0, 0},
                 {4, 4, false, 0, 0},
                 {4, 2, true, 20240520, 1},
                 {2, 4, true, 20240801, 7}};
    (void)state;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        struct rf__tokens tokens;
        struct rf_error err = {0};
        uint32_t out[WINDOW + 1];
        tokens_put(tokens_make(scratch, TOKENS, kinds[k].width, kinds[k].header, kinds[k].magic,
                               kinds[k].version));
        if (tokens_open(kinds[k].given, WINDOW, &tokens, &err)) {
            fail_msg("%s", err.text);
        }
        assert_int_equal(tokens.width, kinds[k].width);
        assert_int_equal(tokens.count, TOKENS);
        assert_int_equal(tokens.windows, (TOKENS - 1) / WINDOW);
        for (uint64_t s = 0; s < tokens.windows; s++) {
            assert_int_equal(rf__tokens_read(&tokens, s, out, NULL, NULL), 0);
            for (uint32_t i = 0; i <= WINDOW; i++) {
                assert_int_equal(out[i], token((uint32_t)s * WINDOW + i, kinds[k].width));
            }
        }
        rf__tokens_close(&tokens);
    }
}

static void token_windows_in_damaged_blocks_are_told(void **state) {
    struct rf__tokens tokens;
    uint32_t out[WINDOW + 1];
    (void)state;
    tokens_put(tokens_make(scratch, TOKENS, 2, true, 20240520, 1));
    assert_int_equal(tokens_open(2, WINDOW, &tokens, NULL), 0);
    rf__tokens_close(&tokens);
    struct memory_entry *entry = file_of("t.bin");
    entry->bytes[2 * BLOCK + 3] ^= 1;
    entry->count -= 100;
    assert_int_equal(tokens_open(2, WINDOW, &tokens, NULL), 0);
    for (uint64_t s = 0; s < tokens.windows; s++) {
        struct rf__bad bad = {0};
        uint64_t first = (1024 + s * WINDOW * 2) / BLOCK;
        uint64_t last = (1024 + s * WINDOW * 2 + WINDOW * 2 + 1) / BLOCK;
        uint64_t end = 1024 / BLOCK + (1024 + TOKENS * 2) / BLOCK;
        bool is_bad = first == 2 || last == 2 || last == end;
        assert_int_equal(rf__tokens_read(&tokens, s, out, &bad, NULL), is_bad ? RF_EDATA : 0);
        if (is_bad) {
            assert_int_equal(bad.block, first == 2 || last == 2 ? 2 : end);
        }
    }
    rf__tokens_close(&tokens);
}

static void token_files_that_cannot_be_are_refused(void **state) {
    struct rf__tokens tokens;
    struct rf_error err = {0};
    (void)state;
#define REFUSED(code, words, width, window)                                                        \
    do {                                                                                           \
        assert_int_equal(tokens_open(width, window, &tokens, &err), code);                         \
        assert_non_null(strstr(err.text, words));                                                  \
        assert_null(tokens.source);                                                                \
    } while (0)
    tokens_put(tokens_make(scratch, 1000, 2, false, 0, 0));
    REFUSED(RF_EINVAL, "expected 2 or 4", 3, 8);
    REFUSED(RF_EINVAL, "in windows of 0", 2, 0);
    REFUSED(RF_EDATA, "has 1,000 tokens, expected more than a window of 1000", 2, 1000);
    tokens_put(999);
    REFUSED(RF_EDATA, "has 999 bytes, which 16-bit tokens do not fill", 2, 8);
    tokens_put(0);
    REFUSED(RF_EDATA, "has 0 tokens", 4, 8);
    tokens_put(tokens_make(scratch, 1000, 2, true, 20240520, 2));
    REFUSED(RF_EDATA, "has version 2 (byte 4), expected 1", 2, 8);
    tokens_put(tokens_make(scratch, 1000, 2, true, 20240520, 1) - 2);
    REFUSED(RF_EDATA, "has 3,022 bytes, expected 3,024 for the 1,000 tokens", 2, 8);
    memory_remove(&files, "/set/t.bin");
    memory_remove(&beside, "t.bin.rfindex");
    REFUSED(RF_ENOTFOUND, "t.bin", 2, 8);
}

/* --- mutations -------------------------------------------------------------------------------- */

/* Records and Examples: whatever the bytes, readers stay within them. */
static void mutated_records_never_harm(void **state) {
    (void)state;
    int good = 0, bad = 0, lost = 0, parsed = 0;
    size_t made = records_make(scratch, train_images, train_labels, 0, 4, true, NULL);
    for (uint64_t round = 0; round < 20000; round++) {
        struct rf__rng rng = rf__rng(0xbad, round, 0);
        size_t count = rf__rng_below(&rng, 3) ? made : (size_t)rf__rng_below(&rng, made + 1);
        unsigned char *file = malloc(count ? count : 1); /* of its own, for the sanitizer */
        memcpy(file, scratch, count);
        for (uint64_t k = rf__rng_below(&rng, 4); k && count; k--) {
            file[rf__rng_below(&rng, count)] = (unsigned char)rf__rng_below(&rng, 256);
        }
        struct rf__record record;
        uint64_t at = 0;
        while (rf__record_next(file, count, &at, &record)) {
            assert_true(at <= count && at > record.offset);
            good += record.state == RF__RECORD_GOOD;
            bad += record.state == RF__RECORD_BAD;
            lost += record.state == RF__RECORD_LOST;
            if (record.state != RF__RECORD_LOST) {
                struct rf__example example;
                assert_true(record.data + record.bytes <= count);
                int code = rf__example_parse(file + record.data, record.bytes, &example);
                assert_true(code == RF_OK || code == RF_EDATA);
                if (!code && example.image) {
                    assert_true(example.image >= file && example.image_bytes <= count &&
                                example.image + example.image_bytes <= file + count);
                    parsed++;
                }
            }
        }
        free(file);
    }
    assert_true(good > 20000 && bad > 2000 && lost > 1000 && parsed > 20000);
}

/* Examples whose bytes are damaged where a check sum would not have told. */
static void mutated_examples_never_harm(void **state) {
    (void)state;
    int accepted = 0, refused_count = 0;
    size_t made = records_make(scratch, train_images, train_labels, 0, 1, true, NULL) - 16;
    for (uint64_t round = 0; round < 30000; round++) {
        struct rf__rng rng = rf__rng(0xbad, round, 1);
        size_t count = rf__rng_below(&rng, 3) ? made : (size_t)rf__rng_below(&rng, made + 1);
        unsigned char *bytes = malloc(count ? count : 1);
        struct rf__example example;
        memcpy(bytes, scratch + 12, count);
        for (uint64_t k = rf__rng_below(&rng, 4); k && count; k--) {
            size_t room = rf__rng_below(&rng, 2) ? count : count < 60 ? count : 60;
            bytes[rf__rng_below(&rng, room)] = (unsigned char)rf__rng_below(&rng, 256);
        }
        if (rf__example_parse(bytes, count, &example)) {
            refused_count++;
        } else if (example.image) {
            assert_true(example.image >= bytes &&
                        example.image + example.image_bytes <= bytes + count);
            accepted++;
        }
        free(bytes);
    }
    assert_true(accepted > 5000 && refused_count > 5000);
}

/* The fuzz target over mutants of what each reader accepts. */
static void mutants_pass_the_fuzz_target(void **state) {
    (void)state;
    struct rf__dataset set = opened();
    rf__dataset_free(&set);
    const struct memory_entry *index = memory_find(&beside, TEST_LABELS ".rfindex");
    size_t records = records_make(scratch, train_images, train_labels, 0, 3, true, NULL);
    const struct {
        const unsigned char *bytes;
        size_t count;
    } seeds[] = {{index->bytes, index->count},
                 {test_labels, 60},
                 {test_images, 60},
                 {scratch, records},
                 {scratch + 12, records / 3 - 16}};
    for (uint64_t round = 0; round < 20000; round++) {
        struct rf__rng rng = rf__rng(0xbad, round, 3);
        size_t which = round % 5;
        size_t count = seeds[which].count;
        count = rf__rng_below(&rng, 3) ? count : (size_t)rf__rng_below(&rng, count + 1);
        unsigned char *mutant = malloc(count ? count : 1);
        memcpy(mutant, seeds[which].bytes, count);
        for (uint64_t k = rf__rng_below(&rng, 5); k && count; k--) {
            size_t room = rf__rng_below(&rng, 2) || count < 40 ? count : 40;
            mutant[rf__rng_below(&rng, room)] = (unsigned char)rf__rng_below(&rng, 256);
        }
        assert_int_equal(fuzz_data(mutant, count), 0);
        free(mutant);
    }
}

/* Token files without an index to tell: opened or refused, and windows stay within them. */
static void mutated_token_files_never_harm(void **state) {
    (void)state;
    int accepted = 0, refused_count = 0;
    for (uint64_t round = 0; round < 400; round++) {
        struct rf__rng rng = rf__rng(0xbad, round, 4);
        struct rf__tokens tokens;
        struct rf_error err = {0};
        uint32_t out[WINDOW + 1];
        size_t count = tokens_make(scratch, 700, 2, true, 20240520, 1);
        for (uint64_t k = rf__rng_below(&rng, 4); k; k--) {
            scratch[rf__rng_below(&rng, 12)] = (unsigned char)rf__rng_below(&rng, 256);
        }
        count = rf__rng_below(&rng, 3) ? count : (size_t)rf__rng_below(&rng, count + 1);
        tokens_put(count);
        int code = tokens_open(rf__rng_below(&rng, 2) ? 2 : 4, WINDOW, &tokens, &err);
        if (code) {
            assert_true(code == RF_EDATA && strstr(err.text, "t.bin"));
            refused_count++;
            continue;
        }
        assert_true(tokens.at + tokens.count * (uint64_t)tokens.width <= count);
        assert_int_equal(rf__tokens_read(&tokens, tokens.windows - 1, out, NULL, NULL), 0);
        rf__tokens_close(&tokens);
        accepted++;
    }
    assert_true(accepted > 50 && refused_count > 50);
}

/* Every file of the folder, and every index: opened or refused in words, and what can be used is
 * what was written. */
static void mutated_sets_never_harm(void **state) {
    (void)state;
    int accepted = 0, refused_count = 0;
    struct rf__dataset set = opened();
    rf__dataset_free(&set);
    static const char *const names[] = {"/set/" TRAIN_IMAGES, "/set/" TRAIN_LABELS,
                                        "/set/" TEST_IMAGES, "/set/" TEST_LABELS};
    static const char *const indices[] = {TRAIN_IMAGES ".rfindex", TRAIN_LABELS ".rfindex",
                                          TEST_IMAGES ".rfindex", TEST_LABELS ".rfindex"};
    for (uint64_t round = 0; round < 150; round++) {
        struct rf__rng rng = rf__rng(0xbad, round, 2);
        size_t which = (size_t)rf__rng_below(&rng, 4);
        bool is_index = rf__rng_below(&rng, 3) == 0;
        struct memory_entry *entry =
            is_index ? memory_find(&beside, indices[which]) : memory_find(&files, names[which]);
        size_t count = entry->count;
        unsigned char *kept = malloc(count);
        memcpy(kept, entry->bytes, count);
        for (uint64_t k = rf__rng_below(&rng, 4); k; k--) {
            entry->bytes[rf__rng_below(&rng, count)] = (unsigned char)rf__rng_below(&rng, 256);
        }
        if (rf__rng_below(&rng, 4) == 0) {
            entry->count = (size_t)rf__rng_below(&rng, count);
        }
        struct rf_error err = {0};
        int code = rf__dataset_read(&io, "/set", &set, &err);
        if (code) {
            assert_true(code == RF_EDATA && strstr(err.text, "ubyte"));
            refused_count++;
        } else {
            for (uint32_t i = 0; i < TRAIN; i += 7) {
                struct rf__bad bad;
                int label;
                if (rf__dataset_usable(&set.train, i, &bad, NULL)) {
                    assert_memory_equal(rf__dataset_image(&set.train, i, &label),
                                        train_images + 16 + i * PIXELS, PIXELS);
                    assert_int_equal(label, train_labels[8 + i]);
                }
            }
            rf__dataset_free(&set);
            accepted++;
        }
        memcpy(entry->bytes, kept, count);
        entry->count = count;
        free(kept);
    }
    assert_true(accepted > 40 && refused_count > 40);
}

static void memory_may_run_out_anywhere(void **state) {
    (void)state;
    for (int kind = 0; kind < 2; kind++) {
        int code = RF_ENOMEM;
        long k = 0;
        if (kind) {
            records_put();
        }
        for (; code == RF_ENOMEM && k < 200; k++) {
            struct rf__dataset set = {0};
            rf__alloc_fail_after(k);
            code = rf__dataset_read(&io, "/set", &set, NULL);
            rf__alloc_fail_after(-1);
            rf__dataset_free(&set);
        }
        assert_int_equal(code, RF_OK);
        assert_true(k > 10);
    }
}

int main(void) {
#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        CASE(sound_sets_are_usable_and_indexed_once),
        CASE(exactly_the_samples_in_damaged_blocks_are_unusable),
        CASE(what_cannot_be_read_or_is_missing_is_unusable),
        CASE(damaged_labels_of_a_small_set_are_told),
        CASE(damaged_labels_take_their_samples_along),
        CASE(a_damaged_header_is_told_at_once),
        CASE(a_file_is_sound_before_it_is_indexed),
        CASE(an_index_of_another_file_is_told),
        CASE(packed_files_need_no_index),
        CASE(damaged_packed_files_are_used_with_an_index),
        CASE(crcs_are_what_others_compute),
        CASE(tfrecords_are_the_same_set),
        CASE(a_bad_record_is_one_bad_sample),
        CASE(behind_a_bad_length_the_file_is_lost),
        CASE(records_that_cannot_be_read_are_bad),
        CASE(folders_say_what_was_looked_for),
        CASE(examples_that_do_not_fit_are_refused),
        CASE(token_streams_are_read_in_windows),
        CASE(token_windows_in_damaged_blocks_are_told),
        CASE(token_files_that_cannot_be_are_refused),
        CASE(mutated_records_never_harm),
        CASE(mutated_examples_never_harm),
        CASE(mutants_pass_the_fuzz_target),
        CASE(mutated_token_files_never_harm),
        CASE(mutated_sets_never_harm),
        CASE(memory_may_run_out_anywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
