/* Texts to folders of tokens, and those as data sets: what was written is what an encoder makes of
 * the text, damage costs the windows it is in, and whatever fails, nothing half-made is left. */
#include "base/mem.h"
#include "base/rng.h"
#include "data/dataset.h"
#include "data/tokenize.h"
#include "data/tokenizer_file.h"
#include "support/memory_files.h"
#include "support/small_ranks.h"

// clang-format off
#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on

enum { TEXT_BYTES = 300000, CONTEXT = 64 };

/* The folder: memory files that also remove, and whose calls fail after so many. */
struct folder {
    struct rf__blobs base;
    long left; /* calls until one fails; negative: none does */
};

static struct memory_files texts, beside;
static struct folder folder;
static struct small_ranks small;
static unsigned char *text;
static const struct rf__data_io io = {.files = &texts.base, .beside = &folder.base, .root = "/out"};

static bool must_fail(struct rf__blobs *blobs) {
    struct folder *f = (struct folder *)blobs;
    return f->left >= 0 && f->left-- == 0;
}

static int failed(struct rf_error *err) {
    return rf__fail(err, RF_EIO, ENOSPC, "cannot write '/out'");
}

static int folder_open(struct rf__blobs *b, const char *name, struct rf__blob **out,
                       uint64_t *bytes, struct rf_error *err) {
    return must_fail(b) ? failed(err) : files_open(&beside.base, name, out, bytes, err);
}

static ssize_t folder_read(struct rf__blobs *b, struct rf__blob *blob, uint64_t offset, void *to,
                           size_t bytes, struct rf_error *err) {
    return must_fail(b) ? failed(err) : files_read(&beside.base, blob, offset, to, bytes, err);
}

static int folder_create(struct rf__blobs *b, const char *name, struct rf__blob_writer **out,
                         struct rf_error *err) {
    return must_fail(b) ? failed(err) : files_create(&beside.base, name, out, err);
}

static int folder_write(struct rf__blobs *b, struct rf__blob_writer *writer, const void *bytes,
                        size_t count, struct rf_error *err) {
    return must_fail(b) ? failed(err) : files_write(&beside.base, writer, bytes, count, err);
}

static int folder_finish(struct rf__blobs *b, struct rf__blob_writer *writer, bool only_new,
                         struct rf_error *err) {
    if (must_fail(b)) {
        files_abandon(&beside.base, writer);
        return failed(err);
    }
    return files_finish(&beside.base, writer, only_new, err);
}

static void folder_abandon(struct rf__blobs *b, struct rf__blob_writer *writer) {
    (void)b;
    files_abandon(&beside.base, writer);
}

static int folder_remove(struct rf__blobs *b, const char *name, struct rf_error *err) {
    (void)b;
    if (!memory_find(&beside, name)) {
        return rf__fail(err, RF_ENOTFOUND, ENOENT, "no '%s'", name);
    }
    memory_remove(&beside, name);
    return RF_OK;
}

static const struct rf__blob_ops folder_ops = {.open = folder_open,
                                               .read = folder_read,
                                               .close = files_close,
                                               .create = folder_create,
                                               .write = folder_write,
                                               .finish = folder_finish,
                                               .abandon = folder_abandon,
                                               .remove = folder_remove};

static int setup(void **state) {
    (void)state;
    static const char *const words[] = {"the ", "low ", "newest", "\xC3\xA9t\xC3\xA9", "\n", "12",
                                        "of",   " is ", "'ll",    "\xE2\x82\xAC",      "!!"};
    struct rf__rng rng = rf__rng(3, 1, 4);
    size_t at = 0;
    texts = (struct memory_files){.base = {&memory_files_ops}};
    beside = (struct memory_files){.base = {&memory_files_ops}};
    folder = (struct folder){.base = {&folder_ops}, .left = -1};
    text = malloc(TEXT_BYTES);
    while (at + 16 < TEXT_BYTES) {
        const char *word = words[rf__rng_below(&rng, sizeof words / sizeof *words)];
        memcpy(text + at, word, strlen(word));
        at += strlen(word);
    }
    memset(text + at, 'x', TEXT_BYTES - at);
    memory_put(&texts, "a.txt", text, TEXT_BYTES);
    memory_put(&texts, "b.txt", "the lowest of \xE2\x82\xAC\xE2\x82\xAC\xE2\x82\xAC", 23);
    ranks_words(&small);
    memory_put(&texts, "r.tiktoken", small.text, small.count);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    memory_clear(&texts);
    memory_clear(&beside);
    free(text);
    return 0;
}

static const char *const both[] = {"a.txt", "b.txt"};

static struct rf__tokenize order_of(enum rf__tokenizer_kind kind, size_t count) {
    return (struct rf__tokenize){.io = &io,
                                 .texts = both,
                                 .count = count,
                                 .kind = kind,
                                 .ranks = kind == RF__TOKENIZER_GPT2 ? "r.tiktoken" : NULL,
                                 .validation = 0.1};
}

static void make(const struct rf__tokenize *order, struct rf__tokenized *made) {
    struct rf_error err = {0};
    if (rf__tokenize(order, made, &err)) {
        fail_msg("%s", err.text);
    }
    assert_int_equal(err.code, 0);
}

/* What was made goes to where a reader looks for it: io.files are paths. */
static void publish(void) {
    for (int i = 0; i < MEMORY_FILES; i++) {
        struct memory_entry *e = &beside.entries[i];
        char path[MEMORY_NAME];
        if (e->name[0] && !strstr(e->name, ".rfindex")) {
            snprintf(path, sizeof path, "/out/%.100s", e->name);
            memory_put(&texts, path, e->bytes, e->count);
        }
    }
}

static size_t files_count(void) {
    size_t count = 0;
    for (int i = 0; i < MEMORY_FILES; i++) {
        count += beside.entries[i].name[0] != 0;
    }
    return count;
}

/* --- what is made ----------------------------------------------------------------------------- */

/* The tokens of a stretch, as the tokenizer of the folder has them. */
static size_t encoded(const void *bytes, size_t count, uint32_t **out) {
    struct rf__tokenizer *tokenizer = NULL;
    size_t got = 0;
    assert_int_equal(rf__tokenizer_load(&texts.base, "/out", &tokenizer, NULL), 0);
    assert_int_equal(rf__tokenizer_encode(tokenizer, bytes, count, out, &got, NULL), 0);
    rf__tokenizer_destroy(tokenizer);
    return got;
}

static void windows_are_the_text(void **state) {
    (void)state;
    for (int kind = 0; kind < RF__TOKENIZER_KINDS; kind++) {
        struct rf__tokenize order = order_of((enum rf__tokenizer_kind)kind, 1);
        struct rf__tokenized made;
        struct rf__dataset set;
        size_t cut = 270000;
        order.replace = kind > 0;
        make(&order, &made);
        publish();
        while ((text[cut] & 0xC0) == 0x80) { /* behind the character that it meets */
            cut++;
        }
        assert_int_equal(made.train.text_bytes, cut);
        assert_int_equal(made.validation.text_bytes, TEXT_BYTES - cut);
        assert_int_equal(made.width, 2);
        assert_int_equal(rf__dataset_read_tokens(&io, "/out", CONTEXT, &set, NULL), 0);
        assert_int_equal(set.context, CONTEXT);
        assert_int_equal(set.vocabulary, made.vocabulary);
        for (int part = 0; part < 2; part++) {
            const struct rf__samples *samples = part ? &set.test : &set.train;
            uint32_t *tokens = NULL;
            size_t count =
                part ? encoded(text + cut, TEXT_BYTES - cut, &tokens) : encoded(text, cut, &tokens);
            assert_int_equal(count, part ? made.validation.tokens : made.train.tokens);
            assert_int_equal(samples->count, (count - 1) / CONTEXT);
            assert_true(samples->count > 100);
            for (uint32_t s = 0; s < samples->count; s++) {
                int32_t inputs[CONTEXT], targets[CONTEXT];
                struct rf__bad bad;
                assert_int_equal(rf__dataset_usable(samples, s, &bad, NULL), 1);
                assert_int_equal(rf__dataset_gather_tokens(samples, &s, 1, inputs, targets, NULL),
                                 0);
                for (uint32_t i = 0; i < CONTEXT; i++) {
                    assert_int_equal(inputs[i], tokens[s * CONTEXT + i]);
                    assert_int_equal(targets[i], tokens[s * CONTEXT + i + 1]);
                }
            }
            rf__free(tokens);
        }
        rf__dataset_free(&set);
    }
}

static void the_files_say_what_they_are(void **state) {
    (void)state;
    struct rf__tokenize order = order_of(RF__TOKENIZER_GPT2, 1);
    struct rf__tokenized made;
    struct rf__tokens tokens;
    struct rf__index index;
    make(&order, &made);
    publish();
    assert_int_equal(files_count(), 6);
    assert_int_equal(rf__tokens_open(&io, "/out/train.bin", "train.bin", 4, 8, 0, &tokens, NULL),
                     0);
    assert_int_equal(tokens.width, 2);
    assert_int_equal(tokens.vocabulary, small.lines + 1);
    assert_string_equal(tokens.tokenizer, "gpt2");
    assert_int_equal(tokens.count, made.train.tokens);
    rf__tokens_close(&tokens);
    /* The index is that of the bytes as they are. */
    struct rf__index again;
    assert_int_equal(rf__index_find(&io, "val.bin", &index, NULL, NULL), 0);
    assert_int_equal(rf__index_make(&texts.base, "/out/val.bin", &again, NULL), 0);
    assert_int_equal(index.bytes, made.validation.file_bytes);
    assert_int_equal(index.blocks, again.blocks);
    assert_memory_equal(index.digests, again.digests, index.blocks * sizeof *index.digests);
    assert_memory_equal(index.histogram, again.histogram, sizeof index.histogram);
    rf__index_free(&index);
    rf__index_free(&again);
    assert_memory_equal(memory_find(&beside, "tokenizer.tiktoken")->bytes, small.text, small.count);
}

/* Counts beyond 32 bits: their upper half stands where others leave zeros, and is believed. */
static void headers_count_beyond_32_bits(void **state) {
    (void)state;
    static const unsigned char expected[40] = {0x88, 0xD8, 0x34, 0x01, 1,    0, 0, 0, 0x05, 0, 0, 0,
                                               0x00, 0x01, 0,    0,    1,    0, 0, 0, 0,    0, 0, 0,
                                               0x62, 0x79, 0x74, 0x65, 0x73, 0, 0, 0, 0,    0, 0, 0,
                                               0,    0,    0,    0};
    unsigned char header[RF__TOKENS_HEADER + 10] = {0};
    struct rf__tokens tokens;
    struct rf_error err;
    rf__tokens_header(2, (1ull << 32) + 5, 256, "bytes", header);
    assert_memory_equal(header, expected, sizeof expected);
    for (size_t i = sizeof expected; i < sizeof header; i++) {
        assert_int_equal(header[i], 0);
    }
    memory_put(&texts, "/out/train.bin", header, sizeof header); /* it has but five of them */
    assert_int_equal(rf__tokens_open(&io, "/out/train.bin", "train.bin", 2, 2, 0, &tokens, &err),
                     RF_EDATA);
    assert_non_null(strstr(err.text, "expected 8,589,935,626 for the 4,294,967,301 tokens"));
    header[16] = 0;
    memory_put(&texts, "/out/train.bin", header, sizeof header);
    memory_remove(&beside, "train.bin.rfindex");
    assert_int_equal(rf__tokens_open(&io, "/out/train.bin", "train.bin", 2, 2, 0, &tokens, &err),
                     0);
    assert_int_equal(tokens.count, 5);
    rf__tokens_close(&tokens);
}

/* More characters than 16 bits hold. */
static void large_vocabularies_take_32_bits(void **state) {
    (void)state;
    enum { POINTS = 70000 };
    unsigned char *all = malloc(4 * POINTS);
    static const char *const one[] = {"all.txt"};
    size_t count = 0;
    uint32_t point = 0x20;
    for (uint32_t i = 0; i < POINTS; i++, point++) {
        point = point == 0xD800 ? 0xE000 : point;
        unsigned char *to = all + count;
        int length = point < 0x80 ? 1 : point < 0x800 ? 2 : point < 0x10000 ? 3 : 4;
        uint32_t rest = point;
        for (int k = length - 1; k > 0; k--, rest >>= 6) {
            to[k] = (unsigned char)(0x80 | (rest & 63));
        }
        to[0] = (unsigned char)((length == 1 ? 0 : 0xF00 >> length) | rest);
        count += (size_t)length;
    }
    memory_put(&texts, "all.txt", all, count);
    free(all);
    struct rf__tokenize order = order_of(RF__TOKENIZER_CHARS, 1);
    struct rf__tokenized made;
    struct rf__dataset set;
    order.texts = one;
    order.validation = 0;
    make(&order, &made);
    publish();
    assert_int_equal(made.vocabulary, POINTS);
    assert_int_equal(made.width, 4);
    assert_int_equal(made.validation.file_bytes, 0);
    assert_null(memory_find(&beside, "val.bin"));
    assert_int_equal(rf__dataset_read_tokens(&io, "/out", 1000, &set, NULL), 0);
    assert_int_equal(set.test.count, 0);
    int32_t inputs[1000], targets[1000];
    const uint32_t last = set.train.count - 1;
    assert_int_equal(rf__dataset_gather_tokens(&set.train, &last, 1, inputs, targets, NULL), 0);
    for (int i = 0; i < 1000; i++) {
        assert_int_equal(inputs[i], last * 1000 + (uint32_t)i);
        assert_int_equal(targets[i], inputs[i] + 1);
    }
    rf__dataset_free(&set);
}

static void texts_follow_each_other(void **state) {
    (void)state;
    memory_put(&texts, "a.txt", "lower is new", 12);
    struct rf__tokenize order = order_of(RF__TOKENIZER_GPT2, 2);
    struct rf__tokenized made;
    order.validation = 0.5;
    make(&order, &made);
    publish();
    /* "lower " + "the lowest " and "is new" + "of €€€": the cut at byte 11 of 23 meets no character
     * but that of its own. */
    struct rf__tokens tokens;
    struct rf__tokenizer *tokenizer = NULL;
    uint32_t out[64];
    char said[256] = "", piece[RF__DECODED_BYTES];
    assert_int_equal(rf__tokenizer_load(&texts.base, "/out", &tokenizer, NULL), 0);
    for (int part = 0; part < 2; part++) {
        const char *name = part ? "val.bin" : "train.bin";
        const char *path = part ? "/out/val.bin" : "/out/train.bin";
        uint64_t count = part ? made.validation.tokens : made.train.tokens;
        struct rf__decoder decoder = {.count = 0};
        assert_int_equal(rf__tokens_open(&io, path, name, 2, (uint32_t)count - 1, 0, &tokens, NULL),
                         0);
        assert_int_equal(rf__tokens_read(&tokens, 0, out, NULL, NULL), 0);
        for (uint64_t i = 0; i < count; i++) {
            size_t n = rf__tokenizer_decode(tokenizer, &decoder, out[i], piece);
            strncat(said, piece, n);
        }
        strcat(said, "/");
        rf__tokens_close(&tokens);
    }
    assert_string_equal(said, "lower <|endoftext|>the lowest /is new<|endoftext|>of "
                              "\xE2\x82\xAC\xE2\x82\xAC\xE2\x82\xAC/");
    rf__tokenizer_destroy(tokenizer);
}

/* --- damage ----------------------------------------------------------------------------------- */

static void windows_in_damaged_blocks_cannot_be_used(void **state) {
    (void)state;
    struct rf__tokenize order = order_of(RF__TOKENIZER_BYTES, 1);
    struct rf__tokenized made;
    struct rf__dataset set;
    const uint64_t begin = 2 * RF__INDEX_BLOCK, end = 3 * RF__INDEX_BLOCK;
    uint32_t unusable = 0;
    make(&order, &made);
    publish();
    memory_find(&texts, "/out/train.bin")->bytes[begin + 777] ^= 4;
    assert_int_equal(rf__dataset_read_tokens(&io, "/out", CONTEXT, &set, NULL), 0);
    for (uint32_t s = 0; s < set.train.count; s++) {
        struct rf__bad bad = {0};
        uint64_t first = 1024 + 2 * (uint64_t)s * CONTEXT;
        bool is_hit = first < end && first + 2 * (CONTEXT + 1) > begin;
        assert_int_equal(rf__dataset_usable(&set.train, s, &bad, NULL), is_hit ? 0 : 1);
        if (is_hit) {
            int32_t inputs[CONTEXT], targets[CONTEXT];
            struct rf_error err;
            assert_int_equal(bad.block, 2);
            assert_int_equal(bad.offset, begin);
            assert_string_equal(bad.file, "/out/train.bin");
            assert_non_null(strstr(bad.cause, "mismatch"));
            assert_int_equal(rf__dataset_gather_tokens(&set.train, &s, 1, inputs, targets, &err),
                             RF_EDATA);
            unusable++;
        }
    }
    assert_int_equal(unusable, RF__INDEX_BLOCK / 2 / CONTEXT + 1);
    rf__dataset_free(&set);
}

/* A token that the index vouches for, but that no model has a place for. */
static void tokens_beyond_the_vocabulary_cannot_be_used(void **state) {
    (void)state;
    struct rf__tokenize order = order_of(RF__TOKENIZER_BYTES, 1);
    struct rf__tokenized made;
    struct rf__dataset set;
    struct rf__bad bad = {0};
    make(&order, &made);
    publish();
    memory_find(&texts, "/out/train.bin")->bytes[1024 + 2 * (5 * CONTEXT + 3) + 1] = 1;
    memory_remove(&beside, "train.bin.rfindex");
    assert_int_equal(rf__dataset_read_tokens(&io, "/out", CONTEXT, &set, NULL), 0);
    for (uint32_t s = 0; s < set.train.count; s++) {
        assert_int_equal(rf__dataset_usable(&set.train, s, &bad, NULL), s == 5 ? 0 : 1);
    }
    assert_non_null(strstr(bad.cause, "range: token 323 is "));
    assert_non_null(strstr(bad.cause, "expected less than the vocabulary's 256"));
    rf__dataset_free(&set);
}

static void folders_that_do_not_fit_are_refused(void **state) {
    (void)state;
    struct rf__tokenize order = order_of(RF__TOKENIZER_CHARS, 1);
    struct rf__tokenized made;
    struct rf__dataset set;
    struct rf_error err = {0};
    assert_int_equal(rf__dataset_read_tokens(&io, "/out", CONTEXT, &set, &err), RF_ENOTFOUND);
    assert_non_null(strstr(err.text, "no 'tokenizer.json' in '/out'"));
    make(&order, &made);
    publish();
    assert_int_equal(rf__dataset_read_tokens(&io, "/out", 1 << 18, &set, &err), RF_EDATA);
    assert_non_null(strstr(err.text, "expected more than a window of 262144"));
    memory_remove(&texts, "/out/val.bin"); /* not made without one, but lost */
    assert_int_equal(rf__dataset_read_tokens(&io, "/out", CONTEXT, &set, &err), RF_ENOTFOUND);
    assert_non_null(strstr(err.text, "/out/val.bin"));
    static const char other[] = "{\"version\":1,\"tokenizer\":\"bytes\",\"vocabulary\":256}";
    memory_put(&texts, "/out/tokenizer.json", other, sizeof other - 1);
    assert_int_equal(rf__dataset_read_tokens(&io, "/out", CONTEXT, &set, &err), RF_EDATA);
    assert_non_null(strstr(err.text, "'/out/train.bin' is of chars with a vocabulary of"));
    assert_string_equal(err.next, "make the folder anew with ringfold data tokens");
    static const char names[][RF__TOKENS_NAME] = {"\x1b[31m", "by tes", "caf\xE9", "", "bytes"};
    static const char *const told[] = {"of ? with", "of ? with", "of ? with",
                                       "of an unnamed tokenizer with", "of bytes with"};
    for (size_t i = 0; i < sizeof told / sizeof *told; i++) {
        memcpy(memory_find(&texts, "/out/train.bin")->bytes + 24, names[i], RF__TOKENS_NAME);
        memory_remove(&beside, "train.bin.rfindex");
        assert_int_equal(rf__dataset_read_tokens(&io, "/out", CONTEXT, &set, &err), RF_EDATA);
        assert_non_null(strstr(err.text, told[i]));
        assert_null(strpbrk(err.text, "\x1b\xE9"));
        assert_string_equal(err.next, "make the folder anew with ringfold data tokens");
    }
}

/* --- failures --------------------------------------------------------------------------------- */

static void what_cannot_be_encoded_is_told_by_its_place(void **state) {
    (void)state;
    struct rf__tokenize order = order_of(RF__TOKENIZER_CHARS, 2);
    struct rf__tokenized made;
    struct rf_error err = {0};
    /* Across the stretches that are read: 1 MiB, less one byte of a character of three. */
    size_t count = (1 << 20) + 10;
    unsigned char *long_one = malloc(count);
    memset(long_one, 'a', count);
    memcpy(long_one + (1 << 20) - 1, "\xE2\x82", 2);
    memory_put(&texts, "b.txt", long_one, count);
    assert_int_equal(rf__tokenize(&order, &made, &err), RF_EDATA);
    assert_string_equal(err.text, "'b.txt': byte 1,048,575 (0xE2) is not UTF-8, which chars needs");
    memcpy(long_one + (1 << 20) - 1, "\xE2\x82\xAC", 3);
    memory_put(&texts, "b.txt", long_one, count);
    make(&order, &made);
    uint64_t extra = 0; /* bytes that begin no character */
    for (size_t i = 0; i < TEXT_BYTES; i++) {
        extra += (text[i] & 0xC0) == 0x80;
    }
    assert_int_equal(made.train.tokens + made.validation.tokens + extra + 2, TEXT_BYTES + count);
    memcpy(long_one + count - 2, "\xE2\x82", 2); /* and where the text ends */
    memory_put(&texts, "b.txt", long_one, count);
    order.replace = true;
    assert_int_equal(rf__tokenize(&order, &made, &err), RF_EDATA);
    assert_string_equal(err.text, "'b.txt': byte 1,048,584 (0xE2) is not UTF-8, which chars needs");
    free(long_one);
    memory_put(&texts, "a.txt", "", 0);
    memory_put(&texts, "b.txt", "", 0);
    assert_int_equal(rf__tokenize(&order, &made, &err), RF_EDATA);
    assert_string_equal(err.text, "'a.txt' and all other texts are empty");
    memory_put(&texts, "a.txt", "abcdefgh", 8);
    assert_int_equal(rf__tokenize(&order, &made, &err), RF_EDATA);
    assert_non_null(strstr(err.text, "the validation part has 1 tokens, expected at least 2"));
    memory_remove(&texts, "b.txt");
    assert_int_equal(rf__tokenize(&order, &made, &err), RF_ENOTFOUND);
}

static void a_folder_that_is_there_is_not_replaced(void **state) {
    (void)state;
    struct rf__tokenize order = order_of(RF__TOKENIZER_GPT2, 1);
    struct rf__tokenized made;
    struct rf_error err = {0};
    make(&order, &made);
    assert_int_equal(rf__tokenize(&order, &made, &err), RF_EEXISTS);
    assert_string_equal(err.text, "there is a 'train.bin' in '/out' already");
    order = order_of(RF__TOKENIZER_BYTES, 1);
    order.replace = true;
    order.validation = 0;
    make(&order, &made);
    assert_int_equal(files_count(), 3); /* none of the old: val.bin, its index, the ranks */
    assert_non_null(memory_find(&beside, "train.bin"));
    assert_non_null(memory_find(&beside, "train.bin.rfindex"));
    assert_non_null(memory_find(&beside, "tokenizer.json"));
}

static void any_failure_leaves_nothing(void **state) {
    (void)state;
    memory_put(&texts, "a.txt", text, 4000);
    for (int kind = 0; kind < RF__TOKENIZER_KINDS; kind++) {
        struct rf__tokenize order = order_of((enum rf__tokenizer_kind)kind, 2);
        struct rf__tokenized made;
        int code = RF_EIO;
        long k = 0;
        for (; code && k < 200; k++) {
            struct rf_error err = {0};
            folder.left = k;
            code = rf__tokenize(&order, &made, &err);
            folder.left = -1;
            assert_true(code == RF_OK || (code == RF_EIO && err.text[0]));
            assert_int_equal(files_count() == 0, code != RF_OK);
        }
        assert_int_equal(code, RF_OK);
        assert_true(k > 15);
        memory_clear(&beside);
        code = RF_ENOMEM;
        for (k = 0; code && k < 200; k++) {
            rf__alloc_fail_after(k);
            code = rf__tokenize(&order, &made, NULL);
            rf__alloc_fail_after(-1);
            assert_true(code == RF_OK || code == RF_ENOMEM);
            assert_int_equal(files_count() == 0, code != RF_OK);
        }
        assert_int_equal(code, RF_OK);
        publish();
        code = RF_ENOMEM;
        for (k = 0; code && k < 200; k++) {
            struct rf__dataset set = {0};
            rf__alloc_fail_after(k);
            code = rf__dataset_read_tokens(&io, "/out", CONTEXT, &set, NULL);
            rf__alloc_fail_after(-1);
            assert_true(code == RF_OK || code == RF_ENOMEM);
            rf__dataset_free(&set);
        }
        assert_int_equal(code, RF_OK);
        memory_clear(&beside);
    }
}

struct patience {
    uint64_t last;
    int calls, most;
};

static bool be_patient(void *context, uint64_t done, uint64_t total) {
    struct patience *patience = context;
    assert_true(done >= patience->last && done < total);
    patience->last = done;
    return ++patience->calls <= patience->most;
}

static void it_stops_when_asked(void **state) {
    (void)state;
    struct rf__tokenize order = order_of(RF__TOKENIZER_GPT2, 2);
    struct rf__tokenized made;
    struct rf_error err = {0};
    struct patience patience = {.most = 1 << 20};
    order.go_on = be_patient;
    order.context = &patience;
    make(&order, &made);
    int calls = patience.calls;
    assert_true(calls > 4);
    memory_clear(&beside);
    for (int most = 0; most < calls; most++) {
        patience = (struct patience){.most = most};
        assert_int_equal(rf__tokenize(&order, &made, &err), RF_ESTOPPED);
        assert_int_equal(files_count(), 0);
    }
}

/* A text that cannot be read to its end, or that changes, is told. */
static void texts_that_fail_are_told(void **state) {
    (void)state;
    struct rf__tokenize order = order_of(RF__TOKENIZER_BYTES, 1);
    struct rf__tokenized made;
    struct rf_error err = {0};
    struct memory_entry *entry = memory_find(&texts, "a.txt");
    entry->bad_begin = 200000;
    entry->bad_end = 200001;
    assert_int_equal(rf__tokenize(&order, &made, &err), RF_EIO);
    assert_non_null(strstr(err.text, "cannot read 'a.txt'"));
    assert_int_equal(files_count(), 0);
}

int main(void) {
#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        CASE(windows_are_the_text),
        CASE(the_files_say_what_they_are),
        CASE(headers_count_beyond_32_bits),
        CASE(large_vocabularies_take_32_bits),
        CASE(texts_follow_each_other),
        CASE(windows_in_damaged_blocks_cannot_be_used),
        CASE(tokens_beyond_the_vocabulary_cannot_be_used),
        CASE(folders_that_do_not_fit_are_refused),
        CASE(what_cannot_be_encoded_is_told_by_its_place),
        CASE(a_folder_that_is_there_is_not_replaced),
        CASE(any_failure_leaves_nothing),
        CASE(it_stops_when_asked),
        CASE(texts_that_fail_are_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
