/* A file of ranks for tests: the 256 bytes, then tokens of more bytes, in the order given. */
#ifndef TESTS_SMALL_RANKS_H
#define TESTS_SMALL_RANKS_H

#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What such a file may come to. */
enum { SMALL_RANKS_BYTES = 1 << 16 };

struct small_ranks {
    unsigned char text[SMALL_RANKS_BYTES];
    size_t count;
    unsigned lines;
};

static inline void ranks_add(struct small_ranks *ranks, const void *token, size_t bytes) {
    unsigned char line[2048];

    int length = EVP_EncodeBlock(line, token, (int)bytes);
    length += snprintf((char *)line + length, 16, " %u\n", ranks->lines++);
    if (ranks->count + (size_t)length > sizeof ranks->text) {
        abort();
    }
    memcpy(ranks->text + ranks->count, line, (size_t)length);
    ranks->count += (size_t)length;
}

/* The bytes as GPT-2 numbers them are in another order than theirs; here the last is the first. */
static inline void ranks_begin(struct small_ranks *ranks) {
    ranks->count = ranks->lines = 0;
    for (int b = 255; b >= 0; b--) {
        const unsigned char byte = (unsigned char)b;
        ranks_add(ranks, &byte, 1);
    }
}

/* A few words' merges, as one of English texts has them. */
static inline void ranks_words(struct small_ranks *ranks) {
    static const char *const words[] = {
        " t",       "he",           " the", "in",       "er",    "re",  " a",  "on",  "an",
        "nd",       " and",         "ing",  "\xC3\xA9", "ll",    "'ll", "'s",  "  ",  "   ",
        "    ",     "lo",           "low",  " low",     "lower", "es",  "est", "new", " newest",
        "\xE2\x82", "\xE2\x82\xAC", "12",   "!!",       "\n\n",  "of",  " of", "is",  " is"};

    ranks_begin(ranks);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        ranks_add(ranks, words[i], strlen(words[i]));
    }
}

#endif
