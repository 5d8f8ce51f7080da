/* Byte pair encoding with ranks: of the pairs of neighbours in a piece that form a token together,
 * the one of lowest rank is merged, the first of them where there are several, until there is none
 * (Sennrich et al. 2016). A token's rank is its number.
 *
 * Ranks come from a file in tiktoken's form: a line for each token, its bytes in base64, a space,
 * its rank. The ranks are 0 to n - 1, in any order, and each of the 256 bytes has one, so that
 * there is nothing that cannot be encoded. */
#ifndef RF_DATA_BPE_H
#define RF_DATA_BPE_H

#include <ringfold/error.h>
#include <stddef.h>
#include <stdint.h>

enum {
    RF__BPE_TOKENS = 1 << 20,      /* in a file, at most */
    RF__BPE_TOKEN_BYTES = 1 << 10, /* in a token */
    RF__BPE_FILE_BYTES = 64 << 20, /* of a file */
    RF__BPE_PIECE_BYTES = 1 << 18  /* of what is encoded at once */
};

struct rf__bpe;

/* `name` is the file's, for the report. RF_EDATA with the line that is wrong. */
int rf__bpe_create(const unsigned char *ranks, size_t count, const char *name, struct rf__bpe **out,
                   struct rf_error *err);
void rf__bpe_destroy(struct rf__bpe *bpe);

uint32_t rf__bpe_count(const struct rf__bpe *bpe);
const unsigned char *rf__bpe_token(const struct rf__bpe *bpe, uint32_t token, size_t *bytes);

/* The memory that encoding takes: of one thread, grown to the longest piece it has seen. */
struct rf__bpe_room {
    struct rf__bpe_part *parts;
    struct rf__bpe_pair *pairs;
    size_t bytes; /* of the longest piece that fits */
};

void rf__bpe_room_free(struct rf__bpe_room *room);

/* The tokens of a piece of 1 to RF__BPE_PIECE_BYTES bytes, at most as many as it has bytes. 0 and
 * *got; RF_ENOMEM. */
int rf__bpe_encode(const struct rf__bpe *bpe, struct rf__bpe_room *room, const unsigned char *piece,
                   size_t count, uint32_t *tokens, size_t *got, struct rf_error *err);

#endif
