/* Tokenizers against naive oracles: byte pairs against a search of the whole piece for each merge,
 * pieces against lists made by hand, and everything against being fed in other cuts. */
#include "base/mem.h"
#include "base/rng.h"
#include "data/bpe.h"
#include "data/pieces.h"
#include "data/tokenizer_file.h"
#include "data/utf8.h"
#include "support/memory_files.h"
#include "support/small_ranks.h"

// clang-format off
#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on

#define FUZZ_TOKENIZER fuzz_tokenizer
#include "fuzz/fuzz_tokenizer.c"

static struct small_ranks small;

static struct rf__tokenizer *gpt2_of(const struct small_ranks *ranks) {
    struct rf__tokenizer *tokenizer = NULL;
    struct rf_error err = {0};
    if (rf__tokenizer_gpt2(ranks->text, ranks->count, "small.tiktoken", &tokenizer, &err)) {
        fail_msg("%s", err.text);
    }
    return tokenizer;
}

/* --- byte pairs ------------------------------------------------------------------------------- */

/* The tokens as the oracle has them. */
struct oracle {
    struct {
        unsigned char bytes[32];
        size_t count;
    } tokens[600];
    uint32_t count;
};

static int oracle_rank(const struct oracle *o, const unsigned char *bytes, size_t count) {
    for (uint32_t t = 0; t < o->count; t++) {
        if (o->tokens[t].count == count && !memcmp(o->tokens[t].bytes, bytes, count)) {
            return (int)t;
        }
    }
    return -1;
}

/* Parts as a list of their ends; each round searches all neighbours for the lowest rank. */
static size_t oracle_encode(const struct oracle *o, const unsigned char *piece, size_t count,
                            uint32_t *out) {
    size_t ends[256], parts = count;
    if (oracle_rank(o, piece, count) >= 0) {
        out[0] = (uint32_t)oracle_rank(o, piece, count);
        return 1;
    }
    for (size_t i = 0; i < count; i++) {
        ends[i] = i + 1;
    }
    for (;;) {
        int best = -1;
        size_t where = 0;
        for (size_t p = 0; p + 1 < parts; p++) {
            size_t begin = p ? ends[p - 1] : 0;
            int rank = oracle_rank(o, piece + begin, ends[p + 1] - begin);
            if (rank >= 0 && (best < 0 || rank < best)) {
                best = rank;
                where = p;
            }
        }
        if (best < 0) {
            break;
        }
        memmove(ends + where, ends + where + 1, (parts - where - 1) * sizeof *ends);
        parts--;
    }
    for (size_t p = 0; p < parts; p++) {
        size_t begin = p ? ends[p - 1] : 0;
        out[p] = (uint32_t)oracle_rank(o, piece + begin, ends[p] - begin);
    }
    return parts;
}

/* Ranks of random tokens over few letters, in the file in another order than theirs. */
static struct rf__bpe *random_ranks(struct rf__rng *rng, struct oracle *o) {
    static char text[1 << 16];
    size_t at = 0;
    for (o->count = 0; o->count < 256; o->count++) {
        o->tokens[o->count].bytes[0] = (unsigned char)o->count;
        o->tokens[o->count].count = 1;
    }
    for (int tries = 0; tries < 200; tries++) {
        size_t count = 2 + (size_t)rf__rng_below(rng, 6);
        for (size_t i = 0; i < count; i++) {
            o->tokens[o->count].bytes[i] = (unsigned char)('a' + rf__rng_below(rng, 3));
        }
        o->tokens[o->count].count = count;
        o->count += oracle_rank(o, o->tokens[o->count].bytes, count) < 0;
    }
    for (uint32_t i = o->count - 1; i > 0; i--) { /* any rank for any token */
        uint32_t j = (uint32_t)rf__rng_below(rng, i + 1);
        __typeof__(o->tokens[0]) swapped = o->tokens[i];
        o->tokens[i] = o->tokens[j];
        o->tokens[j] = swapped;
    }
    for (uint32_t i = 0; i < o->count; i++) {
        uint32_t t = (i * 7 + 3) % o->count; /* the count is made coprime to 7 below */
        unsigned char line[64];
        int length = EVP_EncodeBlock(line, o->tokens[t].bytes, (int)o->tokens[t].count);
        at += (size_t)snprintf(text + at, sizeof text - at, "%.*s %u\n", length, line, t);
    }
    struct rf__bpe *bpe = NULL;
    struct rf_error err = {0};
    int code = rf__bpe_create((unsigned char *)text, at, "random", &bpe, &err);
    if (o->count % 7 == 0) { /* then the walk above repeats itself */
        assert_int_equal(code, RF_EDATA);
        return NULL;
    }
    assert_int_equal(code, 0);
    return bpe;
}

static void merges_are_those_of_the_naive_search(void **state) {
    (void)state;
    static struct oracle o;
    int pieces = 0, merged = 0;
    for (uint64_t round = 0; round < 30; round++) {
        struct rf__rng rng = rf__rng(7, round, 0);
        struct rf__bpe *bpe = random_ranks(&rng, &o);
        struct rf__bpe_room room = {0};
        for (int k = 0; k < 60 && bpe; k++) {
            unsigned char piece[200];
            uint32_t tokens[200], expected[200];
            size_t count = 1 + (size_t)rf__rng_below(&rng, k % 3 ? 24 : sizeof piece), got = 0;
            for (size_t i = 0; i < count; i++) {
                piece[i] =
                    (unsigned char)('a' + rf__rng_below(&rng, rf__rng_below(&rng, 9) ? 3 : 5));
            }
            assert_int_equal(rf__bpe_encode(bpe, &room, piece, count, tokens, &got, NULL), 0);
            assert_int_equal(got, oracle_encode(&o, piece, count, expected));
            assert_memory_equal(tokens, expected, got * sizeof *tokens);
            pieces++;
            merged += got < count;
        }
        rf__bpe_room_free(&room);
        rf__bpe_destroy(bpe);
    }
    assert_true(pieces > 1000 && merged > 1000);
}

static void the_longest_piece_is_encoded(void **state) {
    (void)state;
    enum { COUNT = RF__BPE_PIECE_BYTES };
    unsigned char *piece = malloc(COUNT);
    uint32_t *tokens = malloc(COUNT * sizeof *tokens);
    struct rf__bpe_room room = {0};
    struct rf__bpe *bpe = NULL;
    size_t got = 0;
    ranks_begin(&small); /* doubling: 2, 4, 8 … of the same letter */
    for (size_t n = 2; n <= RF__BPE_TOKEN_BYTES; n *= 2) {
        memset(piece, 'x', n);
        ranks_add(&small, piece, n);
    }
    assert_int_equal(rf__bpe_create(small.text, small.count, "x", &bpe, NULL), 0);
    memset(piece, 'x', COUNT);
    assert_int_equal(rf__bpe_encode(bpe, &room, piece, COUNT, tokens, &got, NULL), 0);
    assert_int_equal(got, COUNT / RF__BPE_TOKEN_BYTES);
    for (size_t i = 0; i < got; i++) {
        assert_int_equal(tokens[i], 256 + 9);
    }
    assert_int_equal(rf__bpe_encode(bpe, &room, piece, COUNT - 1, tokens, &got, NULL), 0);
    size_t sum = 0;
    for (size_t i = 0; i < got; i++) {
        size_t bytes;
        (void)rf__bpe_token(bpe, tokens[i], &bytes);
        sum += bytes;
    }
    assert_int_equal(sum, COUNT - 1);
    rf__bpe_room_free(&room);
    rf__bpe_destroy(bpe);
    free(tokens);
    free(piece);
}

static void ranks_that_cannot_be_are_refused(void **state) {
    (void)state;
    struct rf__bpe *bpe = NULL;
    struct rf_error err;
    static char text[SMALL_RANKS_BYTES + 4096];
    ranks_words(&small);
    /* The file with its last lines exchanged for `tail`, `cut` bytes from its end. */
#define REFUSED(said, tail)                                                                        \
    do {                                                                                           \
        int length = snprintf(text, sizeof text, "%.*s%s", (int)small.count,                       \
                              (const char *)small.text, tail);                                     \
        err = (struct rf_error){0};                                                                \
        assert_int_equal(                                                                          \
            rf__bpe_create((unsigned char *)text, (size_t)length, "r.tiktoken", &bpe, &err),       \
            RF_EDATA);                                                                             \
        if (!strstr(err.text, said)) {                                                             \
            fail_msg("'%s' does not say '%s'", err.text, said);                                    \
        }                                                                                          \
    } while (0)
    REFUSED("line 293 of 'r.tiktoken' is no token and rank", "\n");
    REFUSED("line 293 of 'r.tiktoken' is no token and rank", "Ynk=292\n");
    REFUSED("line 293 of 'r.tiktoken' has no token in base64", "Yn? 292\n");
    REFUSED("line 293 of 'r.tiktoken' has no token in base64", "Yn= 292\n");
    REFUSED("line 293 of 'r.tiktoken' has no token in base64", "Y=k= 292\n");
    REFUSED("line 293 of 'r.tiktoken' has no token in base64", " 292\n");
    REFUSED("line 293 of 'r.tiktoken' has no rank after its token", "Ynk= \n");
    REFUSED("line 293 of 'r.tiktoken' has no rank after its token", "Ynk= -1\n");
    REFUSED("line 293 of 'r.tiktoken' has no rank after its token", "Ynk= 0x12\n");
    REFUSED("line 293 of 'r.tiktoken' has no rank after its token", "Ynk= 00000292\n");
    REFUSED("line 293 of 'r.tiktoken' has a rank that is not less", "Ynk= 293\n");
    REFUSED("line 293 of 'r.tiktoken' has a rank that an earlier", "Ynk= 17\n");
    REFUSED("line 293 of 'r.tiktoken' has a token that an earlier", "IGFuZA== 292\n");
#undef REFUSED
    char tail[2100];
    memset(tail, 'Q', 1368);
    snprintf(tail + 1368, 10, " 292");
    int length =
        snprintf(text, sizeof text, "%.*s%s", (int)small.count, (const char *)small.text, tail);
    assert_int_equal(rf__bpe_create((unsigned char *)text, (size_t)length, "r", &bpe, &err),
                     RF_EDATA);
    assert_non_null(strstr(err.text, "more than 1,024 bytes"));
    /* Not all bytes; nothing; windows line ends, and no end of the last line. */
    assert_int_equal(rf__bpe_create((const unsigned char *)"YQ== 0\nYg== 1\n", 14, "r", &bpe, &err),
                     RF_EDATA);
    assert_non_null(strstr(err.text, "no token for the byte 0x00 alone"));
    assert_int_equal(rf__bpe_create(small.text, 0, "r", &bpe, &err), RF_EDATA);
    size_t put = 0;
    for (size_t i = 0; i + 1 < small.count; i++) {
        if (small.text[i] == '\n') {
            text[put++] = '\r';
        }
        text[put++] = (char)small.text[i];
    }
    assert_int_equal(rf__bpe_create((unsigned char *)text, put, "r", &bpe, &err), 0);
    assert_int_equal(rf__bpe_count(bpe), small.lines);
    rf__bpe_destroy(bpe);
}

/* --- pieces ----------------------------------------------------------------------------------- */

struct heard {
    char text[4096];
    size_t count;
};

/* Pieces, with a bar behind each. */
static int hear(void *context, const unsigned char *piece, size_t count, struct rf_error *err) {
    struct heard *heard = context;
    (void)err;
    assert_true(count > 0 && heard->count + count + 2 < sizeof heard->text);
    memcpy(heard->text + heard->count, piece, count);
    heard->count += count;
    heard->text[heard->count++] = '|';
    heard->text[heard->count] = 0;
    return 0;
}

static void texts_are_cut_as_gpt2_cuts_them(void **state) {
    (void)state;
    static const struct {
        const char *text, *cut;
    } cases[] = {
        {"Hello world", "Hello| world|"},
        {"he's we'll I'd they've you're I'm don't", "he|'s| we|'ll| I|'d| they|'ve| you|'re| I|'m| "
                                                    "don|'t|"},
        {"HE'S 'tis", "HE|'|S| '|tis|"},
        {"a  b   c", "a| | b|  | c|"},
        {"x 12345y", "x| 12345|y|"},
        {"end. \n\n next", "end|.| \n\n| next|"},
        {"tail  ", "tail|  |"},
        {"\tif (a!=b)", "\t|if| (|a|!=|b|)|"},
        {"gr\xC3\xBC\xC3\x9F \xE6\x9D\xB1\xE4\xBA\xAC",
         "gr\xC3\xBC\xC3\x9F| \xE6\x9D\xB1\xE4\xBA\xAC|"},
        /* Numbers of other scripts; a half; a Roman eight is a number too. */
        {"\xD9\xA3\xD9\xA4\xC2\xBD\xE2\x85\xA7z", "\xD9\xA3\xD9\xA4\xC2\xBD\xE2\x85\xA7|z|"},
        /* An accent of its own is no letter. */
        {"e\xCC\x81!", "e|\xCC\x81!|"},
        /* White space is what Unicode says: U+00A0, U+0085, U+3000; not U+180E, U+200B, U+FEFF. */
        {"a\xC2\xA0\x62", "a|\xC2\xA0|b|"},
        {"a\xC2\x85\xC2\x85\x62", "a|\xC2\x85|\xC2\x85|b|"},
        {"a \xE3\x80\x80\x62", "a| |\xE3\x80\x80|b|"},
        {"a\xE1\xA0\x8E\xE2\x80\x8B\xEF\xBB\xBF\x62", "a|\xE1\xA0\x8E\xE2\x80\x8B\xEF\xBB\xBF|b|"},
        /* Bytes that are no characters: alone, in a row, and a character that is cut off. */
        {"a \xFF\xFE\x62", "a| |\xFF\xFE|b|"},
        {"a\xE2\x82", "a|\xE2\x82|"},
        {"\xC0\xAF\xED\xA0\x80x", "\xC0\xAF\xED\xA0\x80|x|"},
        {"", ""},
    };
    struct rf__pieces *pieces = NULL;
    assert_int_equal(rf__pieces_create(&pieces, NULL), 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct heard heard = {.count = 0};
        size_t used, count = strlen(cases[i].text);
        assert_int_equal(rf__pieces_split(pieces, (const unsigned char *)cases[i].text, count, true,
                                          &used, hear, &heard, NULL),
                         0);
        assert_int_equal(used, count);
        assert_string_equal(heard.text, cases[i].cut);
        /* The same when it comes byte by byte. */
        heard = (struct heard){.count = 0};
        for (size_t end = 0, begin = 0; end <= count; end++) {
            assert_int_equal(rf__pieces_split(pieces, (const unsigned char *)cases[i].text + begin,
                                              end - begin, end == count, &used, hear, &heard, NULL),
                             0);
            begin += used;
        }
        assert_string_equal(heard.text, cases[i].cut);
    }
    rf__pieces_destroy(pieces);
}

/* --- characters ------------------------------------------------------------------------------- */

/* Every byte string of up to four bytes from the interesting ones, against the rule in words. */
static void utf8_is_what_the_standard_says(void **state) {
    (void)state;
    unsigned char bytes[4];
    uint32_t point = 0;
    int valid = 0;
    for (uint32_t p = 0; p < RF__UTF8_POINTS; p++) {
        if (p >= 0xD800 && p <= 0xDFFF) {
            continue;
        }
        int length = rf__utf8_put(p, bytes);
        assert_int_equal(length, p < 0x80 ? 1 : p < 0x800 ? 2 : p < 0x10000 ? 3 : 4);
        assert_int_equal(rf__utf8_next(bytes, 4, &point), length);
        assert_int_equal(point, p);
        for (int cut = 1; cut < length; cut++) {
            assert_int_equal(rf__utf8_next(bytes, (size_t)cut, &point), RF__UTF8_CUT);
            assert_int_equal(rf__utf8_whole(bytes, (size_t)cut), 0);
        }
        assert_int_equal(rf__utf8_whole(bytes, (size_t)length), length);
        valid++;
    }
    assert_int_equal(valid, 0x110000 - 0x800);
    static const char *const bad[] = {
        "\x80",         "\xBF",         "\xC0\x80",     "\xC1\xBF",     "\xE0\x9F\xBF",
        "\xED\xA0\x80", "\xED\xBF\xBF", "\xF0\x8F\xBF", "\xF4\x90\x80", "\xF5\x80",
        "\xFF",         "\xC3(",        "\xE2\x82(",    "\xF0\x9F\x98("};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(rf__utf8_next((const unsigned char *)bad[i], strlen(bad[i]), &point),
                         RF__UTF8_INVALID);
    }
}

static struct rf__tokenizer *chars_of(const uint32_t *points, uint32_t count) {
    struct rf__tokenizer *tokenizer = NULL;
    assert_int_equal(rf__tokenizer_chars(points, count, &tokenizer, NULL), 0);
    return tokenizer;
}

static void characters_are_numbered_in_their_order(void **state) {
    (void)state;
    static const uint32_t points[] = {'\n', ' ', 'a', 'b', 0xE9, 0x20AC, 0x1F600};
    struct rf__tokenizer *tokenizer = chars_of(points, 7);
    static const char text[] = "ab \xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\n";
    static const uint32_t expected[] = {2, 3, 1, 4, 5, 6, 0};
    uint32_t *tokens = NULL;
    size_t got = 0;
    struct rf_error err = {0};
    assert_int_equal(rf__tokenizer_vocabulary(tokenizer), 7);
    assert_int_equal(rf__tokenizer_end(tokenizer), RF__NO_TOKEN);
    assert_int_equal(rf__tokenizer_encode(tokenizer, text, sizeof text - 1, &tokens, &got, NULL),
                     0);
    assert_int_equal(got, 7);
    assert_memory_equal(tokens, expected, sizeof expected);
    rf__free(tokens);
#define REFUSED(bad, said)                                                                         \
    assert_int_equal(rf__tokenizer_encode(tokenizer, bad, sizeof bad - 1, &tokens, &got, &err),    \
                     RF_EDATA);                                                                    \
    assert_string_equal(err.text, said)
    REFUSED("abc", "U+0063 'c' at byte 2 is not in the vocabulary");
    REFUSED("a\x07", "U+0007 at byte 1 is not in the vocabulary");
    REFUSED("a\xC3\xA9\xF0\x9F\x98\x81",
            "U+1F601 '\xF0\x9F\x98\x81' at byte 3 is not in the vocabulary");
    REFUSED("ab\xC3\x28", "byte 2 (0xC3) is not UTF-8, which chars needs");
    REFUSED("ab\xE2\x82", "byte 2 (0xE2) is not UTF-8, which chars needs");
#undef REFUSED
    rf__tokenizer_destroy(tokenizer);
    static const uint32_t bad[][2] = {{5, 5}, {5, 4}, {5, 0xD800}, {5, 0x110000}};
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(rf__tokenizer_chars(bad[i], 2, &tokenizer, &err), RF_EDATA);
    }
    assert_int_equal(rf__tokenizer_chars(points, 0, &tokenizer, &err), RF_EDATA);
}

/* --- streams ---------------------------------------------------------------------------------- */

struct stream {
    uint32_t *tokens;
    size_t count, room;
};

static int gather(void *context, const uint32_t *tokens, size_t count, struct rf_error *err) {
    struct stream *stream = context;
    (void)err;
    assert_true(count > 0 && stream->count + count <= stream->room);
    memcpy(stream->tokens + stream->count, tokens, count * sizeof *tokens);
    stream->count += count;
    return 0;
}

/* Words, long stretches of one kind, other scripts, and bytes that are none. */
static size_t text_make(struct rf__rng *rng, unsigned char *out, size_t room, bool any_bytes) {
    static const char *const words[] = {"the",
                                        " low",
                                        "lowest ",
                                        "'ll",
                                        " newest",
                                        "\n\n",
                                        "  ",
                                        "1234",
                                        "!!?",
                                        "\xC3\xA9t\xC3\xA9",
                                        "\xE2\x82\xAC",
                                        "\xF0\x9F\x98\x80",
                                        "\xE3\x80\x80",
                                        " and",
                                        "'",
                                        "\xC2\x85",
                                        "\t"};
    size_t at = 0;
    while (at + 64 < room) {
        const char *word = words[rf__rng_below(rng, sizeof words / sizeof *words)];
        uint64_t kind = rf__rng_below(rng, 400);
        if (any_bytes && kind < 20) {
            out[at++] = (unsigned char)rf__rng_below(rng, 256);
        } else if (kind == 20) { /* up to more than an encoder holds */
            size_t n = (size_t)rf__rng_below(rng, 600000);
            n = n < room - at ? n : room - at;
            memset(out + at, " xX9"[rf__rng_below(rng, 4)], n);
            at += n;
        } else {
            memcpy(out + at, word, strlen(word));
            at += strlen(word);
        }
    }
    return at;
}

static void tokens_do_not_depend_on_cuts(void **state) {
    (void)state;
    enum { ROOM = 900000 };
    static const uint32_t points[] = {
        '\t', '\n', ' ', '!', '\'', '1', '2', '3', '4', '9',    '?',  'X',    'a',    'd',
        'e',  'h',  'l', 'n', 'o',  's', 't', 'w', 'x', 0x0085, 0xE9, 0x20AC, 0x3000, 0x1F600};
    unsigned char *text = malloc(ROOM);
    struct stream whole = {malloc(ROOM * sizeof(uint32_t)), 0, ROOM};
    struct stream cut = {malloc(ROOM * sizeof(uint32_t)), 0, ROOM};
    struct rf__tokenizer *tokenizers[3] = {NULL};
    ranks_words(&small);
    tokenizers[0] = gpt2_of(&small);
    tokenizers[1] = chars_of(points, sizeof points / sizeof *points);
    assert_int_equal(rf__tokenizer_bytes(&tokenizers[2], NULL), 0);
    for (uint64_t round = 0; round < 6; round++) {
        struct rf__rng rng = rf__rng(11, round, 0);
        const struct rf__tokenizer *tokenizer = tokenizers[round % 3];
        size_t count = text_make(&rng, text, round < 3 ? ROOM : 20000, round % 3 != 1);
        struct rf__encoder *encoder = NULL;
        whole.count = cut.count = 0;
        assert_int_equal(rf__encoder_create(tokenizer, gather, &whole, &encoder, NULL), 0);
        assert_int_equal(rf__encoder_feed(encoder, text, count, NULL), 0);
        assert_int_equal(rf__encoder_end(encoder, NULL), 0);
        rf__encoder_destroy(encoder);
        assert_int_equal(rf__encoder_create(tokenizer, gather, &cut, &encoder, NULL), 0);
        for (int again = 0; again < 2; again++) { /* an encoder takes one text after the other */
            cut.count = 0;
            for (size_t at = 0; at < count;) {
                size_t n = 1 + (size_t)rf__rng_below(&rng, rf__rng_below(&rng, 2) ? 9 : 90000);
                n = n < count - at ? n : count - at;
                assert_int_equal(rf__encoder_feed(encoder, text + at, n, NULL), 0);
                at += n;
            }
            assert_int_equal(rf__encoder_end(encoder, NULL), 0);
            assert_int_equal(cut.count, whole.count);
            assert_memory_equal(cut.tokens, whole.tokens, whole.count * sizeof *whole.tokens);
        }
        rf__encoder_destroy(encoder);
        size_t at = 0; /* and they are the text */
        for (size_t i = 0; i < whole.count; i++) {
            unsigned char token[RF__TOKEN_BYTES];
            size_t n = rf__tokenizer_token(tokenizer, whole.tokens[i], token);
            assert_true(n <= count - at && !memcmp(text + at, token, n));
            at += n;
        }
        assert_int_equal(at, count);
    }
    for (int i = 0; i < 3; i++) {
        rf__tokenizer_destroy(tokenizers[i]);
    }
    free(whole.tokens);
    free(cut.tokens);
    free(text);
}

static int give_up(void *context, const uint32_t *tokens, size_t count, struct rf_error *err) {
    (void)context;
    (void)tokens;
    (void)count;
    return rf__fail(err, RF_EIO, 0, "enough");
}

static void what_the_sink_says_is_returned(void **state) {
    (void)state;
    struct rf__encoder *encoder = NULL;
    struct rf__tokenizer *tokenizer = NULL;
    struct rf_error err = {0};
    assert_int_equal(rf__tokenizer_bytes(&tokenizer, NULL), 0);
    assert_int_equal(rf__encoder_create(tokenizer, give_up, NULL, &encoder, NULL), 0);
    assert_int_equal(rf__encoder_feed(encoder, (const unsigned char *)"abc", 3, &err), 0);
    assert_int_equal(rf__encoder_end(encoder, &err), RF_EIO);
    assert_string_equal(err.text, "enough");
    rf__encoder_destroy(encoder);
    rf__tokenizer_destroy(tokenizer);
}

/* --- decoding --------------------------------------------------------------------------------- */

static void only_whole_characters_come_out(void **state) {
    (void)state;
    static const struct {
        unsigned char byte;
        const char *out;
    } steps[] = {{'a', "a"},
                 {0xC3, ""},
                 {0xA9, "\xC3\xA9"},
                 {0xF0, ""},
                 {0x9F, ""},
                 {0x98, ""},
                 {0x80, "\xF0\x9F\x98\x80"},
                 {0x80, "\xEF\xBF\xBD"},
                 {0xE2, ""},
                 {0x82, ""},
                 {'x', "\xEF\xBF\xBD\xEF\xBF\xBDx"},
                 {0xE2, ""}};
    struct rf__decoder decoder = {.count = 0};
    struct rf__tokenizer *tokenizer = NULL;
    char out[RF__DECODED_BYTES];
    assert_int_equal(rf__tokenizer_bytes(&tokenizer, NULL), 0);
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        size_t put = rf__tokenizer_decode(tokenizer, &decoder, steps[i].byte, out);
        assert_int_equal(put, strlen(steps[i].out));
        assert_memory_equal(out, steps[i].out, put);
    }
    assert_int_equal(rf__tokenizer_decode_end(&decoder, out), 3);
    assert_memory_equal(out, "\xEF\xBF\xBD", 3);
    assert_int_equal(rf__tokenizer_decode_end(&decoder, out), 0);
    rf__tokenizer_destroy(tokenizer);

    ranks_words(&small);
    tokenizer = gpt2_of(&small);
    size_t put =
        rf__tokenizer_decode(tokenizer, &decoder, (uint32_t)rf__tokenizer_end(tokenizer), out);
    assert_int_equal(put, 13);
    assert_memory_equal(out, "<|endoftext|>", 13);
    rf__tokenizer_destroy(tokenizer);
}

/* --- files ------------------------------------------------------------------------------------ */

static void tokenizers_come_back_from_their_files(void **state) {
    (void)state;
    struct memory_files files = {.base = {&memory_files_ops}};
    static const uint32_t points[] = {'\n', 'a', 0x1F600};
    struct rf__tokenizer *made[3], *read = NULL;
    struct rf_error err = {0};
    ranks_words(&small);
    made[0] = chars_of(points, 3);
    assert_int_equal(rf__tokenizer_bytes(&made[1], NULL), 0);
    made[2] = gpt2_of(&small);
    assert_int_equal(rf__tokenizer_load(&files.base, "/t", &read, &err), RF_ENOTFOUND);
    assert_string_equal(err.text, "no 'tokenizer.json' in '/t'");
    for (int i = 0; i < 3; i++) {
        char *json = rf__tokenizer_describe(made[i], small.text, small.count);
        memory_put(&files, "/t/tokenizer.json", json, strlen(json));
        if (i == 2) {
            assert_int_equal(rf__tokenizer_load(&files.base, "/t", &read, &err), RF_ENOTFOUND);
            assert_non_null(strstr(err.text, "tokenizer.tiktoken"));
            memory_put(&files, "/t/tokenizer.tiktoken", small.text, small.count);
        }
        assert_int_equal(rf__tokenizer_load(&files.base, "/t", &read, &err), 0);
        assert_int_equal(rf__tokenizer_kind(read), i);
        assert_int_equal(rf__tokenizer_vocabulary(read), rf__tokenizer_vocabulary(made[i]));
        assert_int_equal(rf__tokenizer_end(read), rf__tokenizer_end(made[i]));
        for (uint32_t t = 0; t < rf__tokenizer_vocabulary(read); t++) {
            unsigned char a[RF__TOKEN_BYTES], b[RF__TOKEN_BYTES];
            size_t n = rf__tokenizer_token(read, t, a);
            assert_int_equal(rf__tokenizer_token(made[i], t, b), n);
            assert_memory_equal(a, b, n);
        }
        rf__tokenizer_destroy(read);
        rf__tokenizer_destroy(made[i]);
        free(json);
    }
    memory_find(&files, "/t/tokenizer.tiktoken")->bytes[3] ^= 1;
    assert_int_equal(rf__tokenizer_load(&files.base, "/t", &read, &err), RF_EDATA);
    assert_non_null(strstr(err.text, "'/t/tokenizer.tiktoken' is damaged"));
    static const char *const bad[][2] = {
        {"", "not a JSON object"},
        {"[1]", "not a JSON object"},
        {"{\"version\":2,\"tokenizer\":\"bytes\",\"vocabulary\":256}", "'version' is not 1"},
        {"{\"version\":1,\"tokenizer\":\"words\",\"vocabulary\":256}", "'tokenizer' is not"},
        {"{\"version\":1,\"tokenizer\":\"bytes\",\"vocabulary\":255}", "'vocabulary' is not one"},
        {"{\"version\":1,\"tokenizer\":\"chars\",\"vocabulary\":0,\"characters\":[]}",
         "'vocabulary' is not one"},
        {"{\"version\":1,\"tokenizer\":\"chars\",\"vocabulary\":2,\"characters\":[1]}",
         "does not have as many"},
        {"{\"version\":1,\"tokenizer\":\"chars\",\"vocabulary\":2,\"characters\":[1,1114112]}",
         "what is not the number of one"},
        {"{\"version\":1,\"tokenizer\":\"chars\",\"vocabulary\":2,\"characters\":[2,1]}",
         "expected Unicode characters, ascending"},
        {"{\"version\":1,\"tokenizer\":\"gpt2\",\"vocabulary\":9,\"ranks\":\"../x\"}",
         "'ranks' is not"},
        {"{\"version\":1,\"tokenizer\":\"gpt2\",\"vocabulary\":9,\"ranks\":\"tokenizer.tiktoken\","
         "\"ranks_xxh3\":\"12\"}",
         "'ranks_xxh3' is not"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        memory_put(&files, "/t/tokenizer.json", bad[i][0], strlen(bad[i][0]));
        assert_int_equal(rf__tokenizer_load(&files.base, "/t", &read, &err), RF_EDATA);
        if (!strstr(err.text, bad[i][1]) || !strstr(err.text, "'/t/tokenizer.json'")) {
            fail_msg("'%s' does not say '%s'", err.text, bad[i][1]);
        }
    }
    memory_clear(&files);
}

/* --- GPT-2's own ranks ------------------------------------------------------------------------ */

/* RINGFOLD_R50K names r50k_base.tiktoken. What is expected came from another implementation. */
static void with_its_ranks_it_is_gpt2(void **state) {
    (void)state;
    static const struct {
        const char *text;
        size_t count;
        uint32_t tokens[80];
    } cases[] = {
        {"Hello world", 2, {15496, 995}},
        {"<|endoftext|>", 7, {27, 91, 437, 1659, 5239, 91, 29}},
        {"The quick brown fox's  12345 jumps!!\n\n  over\tthe lazy dogs'll  ",
         20,
         {464, 2068, 7586, 21831, 338,  220,   17031, 2231, 18045, 3228,
          628, 220,  625,  197,   1169, 16931, 6844,  1183, 220,   220}},
        {"Gr\xC3\xBC\xC3\x9F"
         "e aus \xE6\x9D\xB1\xE4\xBA\xAC, \xD9\xA3\xD9\xA4\xD9\xA5 \xC2\xBD "
         "\xE2\x85\xA7 \xE0\xA4\xA8\xE0\xA4\xAE\xE0\xA4\xB8\xE0\xA5\x8D\xE0\xA4\xA4\xE0\xA5\x87 "
         "\xF0\x9F\x98\x80\xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x91\xA7 "
         "e\xCC\x81\xC2\xA0x\xE2\x80\xA8y\xE3\x80\x80 z   ",
         63,
         {8642,  9116, 39683, 68,  257,   385, 10545, 251,  109,   12859, 105,   11,
          18923, 96,   149,   97,  149,   98,  25208, 2343, 227,   100,   28225, 101,
          11976, 106,  11976, 116, 24231, 235, 11976, 97,   24231, 229,   30325, 222,
          41840, 102,  447,   235, 41840, 102, 447,   235,  41840, 100,   304,   136,
          223,   1849, 87,    447, 101,   88,  5099,  222,  1976,  220,   220,   220}},
    };
    const char *path = getenv("RINGFOLD_R50K");
    if (!path) {
        print_message("skipped: RINGFOLD_R50K does not name an r50k_base.tiktoken\n");
        skip();
    }
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    unsigned char *ranks = malloc(1 << 21);
    size_t count = fread(ranks, 1, 1 << 21, file);
    struct rf__tokenizer *tokenizer = NULL;
    assert_int_equal(rf__tokenizer_gpt2(ranks, count, path, &tokenizer, NULL), 0);
    assert_int_equal(rf__tokenizer_vocabulary(tokenizer), 50257);
    assert_int_equal(rf__tokenizer_end(tokenizer), 50256);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint32_t *tokens = NULL;
        size_t got = 0, expected = 0;
        while (expected < 80 && cases[i].tokens[expected]) {
            expected++;
        }
        assert_int_equal(rf__tokenizer_encode(tokenizer, cases[i].text, strlen(cases[i].text),
                                              &tokens, &got, NULL),
                         0);
        assert_int_equal(got, expected);
        assert_memory_equal(tokens, cases[i].tokens, got * sizeof *tokens);
        rf__free(tokens);
    }
    rf__tokenizer_destroy(tokenizer);
    free(ranks);
    fclose(file);
}

/* --- anything at all -------------------------------------------------------------------------- */

static void mutants_pass_the_fuzz_target(void **state) {
    (void)state;
    static unsigned char text[4000];
    static const uint32_t points[] = {'\n', 'a', 0x1F600};
    struct rf__tokenizer *chars = chars_of(points, 3);
    char *json = rf__tokenizer_describe(chars, NULL, 0);
    struct rf__rng seed = rf__rng(0xb9e, 0, 0);
    ranks_words(&small);
    const struct {
        const void *bytes;
        size_t count;
    } seeds[] = {{small.text, small.count},
                 {json, strlen(json)},
                 {text, text_make(&seed, text, sizeof text, true)}};
    for (uint64_t round = 0; round < 600; round++) {
        struct rf__rng rng = rf__rng(0xb9e, round, 1);
        size_t which = round % 3, count = seeds[which].count;
        count = rf__rng_below(&rng, 3) ? count : (size_t)rf__rng_below(&rng, count + 1);
        unsigned char *mutant = malloc(count ? count : 1);
        memcpy(mutant, seeds[which].bytes, count);
        for (uint64_t k = rf__rng_below(&rng, 5); k && count; k--) {
            static const char likely[] = "0123456789=\n {}[]\"\xC3\xF0\x80";
            mutant[rf__rng_below(&rng, count)] =
                rf__rng_below(&rng, 2)
                    ? (unsigned char)likely[rf__rng_below(&rng, sizeof likely - 1)]
                    : (unsigned char)rf__rng_below(&rng, 256);
        }
        assert_int_equal(fuzz_tokenizer(mutant, count), 0);
        free(mutant);
    }
    free(json);
    rf__tokenizer_destroy(chars);
}

static void memory_may_run_out_anywhere(void **state) {
    (void)state;
    int code = RF_ENOMEM;
    long k = 0;
    ranks_words(&small);
    for (; code == RF_ENOMEM && k < 100; k++) {
        struct rf__tokenizer *tokenizer = NULL;
        uint32_t *tokens = NULL;
        size_t got = 0;
        rf__alloc_fail_after(k);
        code = rf__tokenizer_gpt2(small.text, small.count, "r", &tokenizer, NULL);
        if (!code) {
            code = rf__tokenizer_encode(tokenizer, "the lowest of them", 18, &tokens, &got, NULL);
        }
        rf__alloc_fail_after(-1);
        rf__free(tokens);
        rf__tokenizer_destroy(tokenizer);
    }
    assert_int_equal(code, RF_OK);
    assert_true(k > 9);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merges_are_those_of_the_naive_search),
        cmocka_unit_test(the_longest_piece_is_encoded),
        cmocka_unit_test(ranks_that_cannot_be_are_refused),
        cmocka_unit_test(texts_are_cut_as_gpt2_cuts_them),
        cmocka_unit_test(utf8_is_what_the_standard_says),
        cmocka_unit_test(characters_are_numbered_in_their_order),
        cmocka_unit_test(tokens_do_not_depend_on_cuts),
        cmocka_unit_test(what_the_sink_says_is_returned),
        cmocka_unit_test(only_whole_characters_come_out),
        cmocka_unit_test(tokenizers_come_back_from_their_files),
        cmocka_unit_test(with_its_ranks_it_is_gpt2),
        cmocka_unit_test(mutants_pass_the_fuzz_target),
        cmocka_unit_test(memory_may_run_out_anywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
