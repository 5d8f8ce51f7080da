/* Ranks and merging. Tokens lie in one block of bytes, found by a table of their digests.
 *
 * Merging is O(n log n): parts are a list in place (each knows the ends of its neighbours), and
 * pairs that can be merged lie in a heap by rank, then place. A pair that was overtaken by another
 * merge stays in the heap, and is passed over when it comes up: its left part is gone, or ends
 * elsewhere. */
#include "data/bpe.h"

#include "base/assert.h"
#include "base/digest.h"
#include "base/mem.h"
#include "base/status.h"
#include "data/text.h"

#include <openssl/evp.h>
#include <string.h>

enum { NONE = -1, LINE_BYTES = 2 * RF__BPE_TOKEN_BYTES, LEAST_ROOM = 256 };

struct rf__bpe {
    uint32_t count;
    unsigned char *bytes; /* of all tokens */
    uint32_t *begin;      /* where each begins, in the order of their lines; count + 1 */
    uint32_t *line;       /* of each token */
    uint32_t longest;     /* token, in bytes */
    uint32_t *table;      /* tokens + 1 by digest; 0: free */
    size_t mask;
    uint32_t single[256];
};

/* --- finding a token by its bytes ------------------------------------------------------------- */

const unsigned char *rf__bpe_token(const struct rf__bpe *bpe, uint32_t token, size_t *bytes) {
    RF_ASSERT(token < bpe->count);
    uint32_t line = bpe->line[token];
    *bytes = bpe->begin[line + 1] - bpe->begin[line];
    return bpe->bytes + bpe->begin[line];
}

uint32_t rf__bpe_count(const struct rf__bpe *bpe) {
    return bpe->count;
}

/* Its place in the table, or the free one that it would take. */
static uint32_t *place_of(const struct rf__bpe *bpe, const unsigned char *bytes, size_t count) {
    size_t at = (size_t)rf__digest(bytes, count, 0) & bpe->mask;

    for (;; at = (at + 1) & bpe->mask) {
        uint32_t *place = &bpe->table[at];
        if (!*place) {
            return place;
        }
        size_t length;
        const unsigned char *token = rf__bpe_token(bpe, *place - 1, &length);
        if (length == count && !memcmp(token, bytes, count)) {
            return place;
        }
    }
}

/* The token of these bytes, or NONE. */
static int32_t find(const struct rf__bpe *bpe, const unsigned char *bytes, size_t count) {
    return count > bpe->longest ? NONE : (int32_t)*place_of(bpe, bytes, count) - 1;
}

/* --- reading ranks ---------------------------------------------------------------------------- */

struct reading {
    struct rf__bpe *bpe;
    const char *name;
    uint32_t line;  /* from 0 */
    uint32_t *rank; /* of each line */
    uint32_t lines; /* in the file */
};

static int refuse(const struct reading *reading, const char *what, struct rf_error *err) {
    int code = rf__fail(err, RF_EDATA, 0, "line %s of '%s' %s", rf__number(reading->line + 1).text,
                        rf__path_tail(reading->name), what);
    if (err) {
        rf__detail(err->why, "a file of ranks has a line for each token: its bytes in base64, a "
                             "space, its rank");
    }
    return code;
}

static bool is_base64(const unsigned char *text, size_t count) {
    size_t padding = 0;

    while (padding < 2 && padding < count && text[count - 1 - padding] == '=') {
        padding++;
    }
    for (size_t i = 0; i < count - padding; i++) {
        unsigned char c = text[i];
        if (!((c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
              c == '+' || c == '/')) {
            return false;
        }
    }
    return count && count % 4 == 0;
}

/* The bytes of a line's token go behind the last one's. */
static int token_take(struct reading *reading, const unsigned char *text, size_t count,
                      struct rf_error *err) {
    unsigned char decoded[LINE_BYTES];
    struct rf__bpe *bpe = reading->bpe;
    uint32_t begin = bpe->begin[reading->line];

    if (!is_base64(text, count)) {
        return refuse(reading, "has no token in base64", err);
    }
    uint32_t length = (uint32_t)(count / 4 * 3);
    length -= text[count - 1] == '=';
    length -= text[count - 2] == '=';
    if (!length || length > RF__BPE_TOKEN_BYTES || count > LINE_BYTES) {
        return refuse(reading, "has a token of more than 1,024 bytes", err);
    }
    if (EVP_DecodeBlock(decoded, text, (int)count) < (int)length) {
        return refuse(reading, "has no token in base64", err);
    }
    memcpy(bpe->bytes + begin, decoded, length);
    bpe->begin[reading->line + 1] = begin + length;
    bpe->longest = length > bpe->longest ? length : bpe->longest;
    return RF_OK;
}

static int rank_take(struct reading *reading, const unsigned char *text, size_t count,
                     struct rf_error *err) {
    uint32_t rank = 0;

    bool good = count > 0 && count <= 7;
    for (size_t i = 0; i < count && good; i++) {
        good = text[i] >= '0' && text[i] <= '9';
        rank = rank * 10 + (text[i] - '0');
    }
    if (!good) {
        return refuse(reading, "has no rank after its token", err);
    }
    if (rank >= reading->lines) {
        return refuse(reading, "has a rank that is not less than the number of lines", err);
    }
    reading->rank[reading->line] = rank;
    return RF_OK;
}

static int line_take(struct reading *reading, const unsigned char *line, size_t count,
                     struct rf_error *err) {
    count -= count && line[count - 1] == '\r';
    const unsigned char *space = memchr(line, ' ', count);
    if (!space) {
        return refuse(reading, "is no token and rank", err);
    }
    int code = token_take(reading, line, (size_t)(space - line), err);
    return code ? code : rank_take(reading, space + 1, count - (size_t)(space - line) - 1, err);
}

/* The end of the line that begins here: its '\n', or the end of all. */
static const unsigned char *line_end(const unsigned char *at, const unsigned char *end) {
    const unsigned char *found = memchr(at, '\n', (size_t)(end - at));
    return found ? found : end;
}

static uint32_t lines_count(const unsigned char *ranks, size_t count) {
    uint32_t lines = 0;

    for (size_t i = 0; i < count; i++) {
        lines += ranks[i] == '\n';
    }
    return lines + (count && ranks[count - 1] != '\n');
}

static int room_take(struct reading *reading, size_t file_bytes, struct rf_error *err) {
    struct rf__bpe *bpe = reading->bpe;
    size_t places = 2;

    while (places < 2 * (size_t)reading->lines) {
        places *= 2;
    }
    bpe->mask = places - 1;
    bpe->bytes = rf__alloc(file_bytes, 1); /* base64 is the longer form */
    bpe->begin = rf__alloc((size_t)reading->lines + 1, sizeof *bpe->begin);
    bpe->line = rf__alloc(reading->lines, sizeof *bpe->line);
    bpe->table = rf__alloc(places, sizeof *bpe->table);
    reading->rank = rf__alloc(reading->lines, sizeof *reading->rank);
    if (!bpe->bytes || !bpe->begin || !bpe->line || !bpe->table || !reading->rank) {
        return rf__fail(err, RF_ENOMEM, 0, "no memory for the ranks of '%s'",
                        rf__path_tail(reading->name));
    }
    return RF_OK;
}

/* Every rank once, every token once, and a token for each byte. */
static int tokens_enter(struct reading *reading, struct rf_error *err) {
    struct rf__bpe *bpe = reading->bpe;

    for (uint32_t i = 0; i < bpe->count; i++) {
        bpe->line[i] = UINT32_MAX;
    }
    for (reading->line = 0; reading->line < bpe->count; reading->line++) {
        uint32_t rank = reading->rank[reading->line];
        if (bpe->line[rank] != UINT32_MAX) {
            return refuse(reading, "has a rank that an earlier line has", err);
        }
        bpe->line[rank] = reading->line;
        size_t length;
        const unsigned char *bytes = rf__bpe_token(bpe, rank, &length);
        uint32_t *place = place_of(bpe, bytes, length);
        if (*place) {
            return refuse(reading, "has a token that an earlier line has", err);
        }
        *place = rank + 1;
    }
    for (int b = 0; b < 256; b++) {
        const unsigned char byte = (unsigned char)b;
        int32_t token = find(bpe, &byte, 1);
        if (token == NONE) {
            return rf__fail(err, RF_EDATA, 0,
                            "'%s' has no token for the byte 0x%02X alone, expected one for each "
                            "of the 256",
                            rf__path_tail(reading->name), (unsigned)b);
        }
        bpe->single[b] = (uint32_t)token;
    }
    return RF_OK;
}

int rf__bpe_create(const unsigned char *ranks, size_t count, const char *name, struct rf__bpe **out,
                   struct rf_error *err) {
    struct reading reading = {.name = name};
    const unsigned char *end = ranks + count;

    if (count > RF__BPE_FILE_BYTES) {
        return rf__fail(err, RF_ELIMIT, 0, "'%s' has %s bytes, more than ranks may, %s",
                        rf__path_tail(name), rf__number(count).text,
                        rf__number(RF__BPE_FILE_BYTES).text);
    }
    reading.lines = lines_count(ranks, count);
    if (reading.lines > RF__BPE_TOKENS) {
        return rf__fail(err, RF_ELIMIT, 0, "'%s' has %s lines, more than ranks may, %s",
                        rf__path_tail(name), rf__number(reading.lines).text,
                        rf__number(RF__BPE_TOKENS).text);
    }
    reading.bpe = rf__alloc(1, sizeof *reading.bpe);
    int code = reading.bpe ? room_take(&reading, count, err)
                           : rf__fail(err, RF_ENOMEM, 0, "no memory for the ranks of '%s'",
                                      rf__path_tail(name));
    for (const unsigned char *at = ranks; at < end && !code; reading.line++) {
        const unsigned char *stop = line_end(at, end);
        code = line_take(&reading, at, (size_t)(stop - at), err);
        at = stop < end ? stop + 1 : end;
    }
    if (!code) {
        reading.bpe->count = reading.lines;
        code = tokens_enter(&reading, err);
    }
    rf__free(reading.rank);
    if (code) {
        rf__bpe_destroy(reading.bpe);
    } else {
        *out = reading.bpe;
    }
    return code;
}

void rf__bpe_destroy(struct rf__bpe *bpe) {
    if (bpe) {
        rf__free(bpe->bytes);
        rf__free(bpe->begin);
        rf__free(bpe->line);
        rf__free(bpe->table);
        rf__free(bpe);
    }
}

/* --- merging ---------------------------------------------------------------------------------- */

/* The part that begins at this byte of the piece. `end` 0: none does any more. */
struct rf__bpe_part {
    uint32_t end;    /* where the next one begins */
    uint32_t before; /* where the one before begins */
    uint32_t token;
};

/* Two neighbours that form a token. */
struct rf__bpe_pair {
    uint64_t order; /* its rank, then the byte where it begins */
    uint32_t end;   /* the byte behind it */
};

void rf__bpe_room_free(struct rf__bpe_room *room) {
    rf__free(room->parts);
    rf__free(room->pairs);
    *room = (struct rf__bpe_room){0};
}

static int room_grow(struct rf__bpe_room *room, size_t bytes, struct rf_error *err) {
    size_t wanted = LEAST_ROOM;

    if (bytes <= room->bytes) {
        return RF_OK;
    }
    while (wanted < bytes) {
        wanted *= 2;
    }
    rf__bpe_room_free(room);
    room->parts = rf__alloc(wanted, sizeof *room->parts);
    /* One for each two neighbours at first, and two more with each merge. */
    room->pairs = rf__alloc(3 * wanted, sizeof *room->pairs);
    if (!room->parts || !room->pairs) {
        rf__bpe_room_free(room);
        return rf__fail(err, RF_ENOMEM, 0, "no memory to encode a word of %s bytes",
                        rf__number(bytes).text);
    }
    room->bytes = wanted;
    return RF_OK;
}

struct merging {
    const struct rf__bpe *bpe;
    const unsigned char *piece;
    size_t count;
    struct rf__bpe_part *parts;
    struct rf__bpe_pair *pairs; /* a heap: the least is the first */
    size_t pair_count;
};

static void pair_push(struct merging *m, struct rf__bpe_pair pair) {
    size_t at = m->pair_count++;

    while (at && pair.order < m->pairs[(at - 1) / 2].order) {
        m->pairs[at] = m->pairs[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    m->pairs[at] = pair;
}

static struct rf__bpe_pair pair_pop(struct merging *m) {
    struct rf__bpe_pair least = m->pairs[0];
    struct rf__bpe_pair last = m->pairs[--m->pair_count];
    size_t at = 0;

    for (;;) {
        size_t below = 2 * at + 1;
        if (below >= m->pair_count) {
            break;
        }
        below += below + 1 < m->pair_count && m->pairs[below + 1].order < m->pairs[below].order;
        if (last.order <= m->pairs[below].order) {
            break;
        }
        m->pairs[at] = m->pairs[below];
        at = below;
    }
    m->pairs[at] = last;
    return least;
}

/* The part that begins at `begin` and the one behind it, if they form a token. */
static void pair_offer(struct merging *m, uint32_t begin) {
    uint32_t middle = m->parts[begin].end;

    if (middle < m->count) {
        uint32_t end = m->parts[middle].end;
        int32_t token = find(m->bpe, m->piece + begin, end - begin);
        if (token != NONE) {
            pair_push(m, (struct rf__bpe_pair){(uint64_t)token << 32 | begin, end});
        }
    }
}

static void pair_merge(struct merging *m, struct rf__bpe_pair pair) {
    uint32_t begin = (uint32_t)pair.order;
    struct rf__bpe_part *left = &m->parts[begin];

    if (!left->end || left->end >= m->count || m->parts[left->end].end != pair.end) {
        return; /* overtaken */
    }
    m->parts[left->end].end = 0;
    left->end = pair.end;
    left->token = (uint32_t)(pair.order >> 32);
    if (pair.end < m->count) {
        m->parts[pair.end].before = begin;
        pair_offer(m, begin);
    }
    if (begin) {
        pair_offer(m, left->before);
    }
}

int rf__bpe_encode(const struct rf__bpe *bpe, struct rf__bpe_room *room, const unsigned char *piece,
                   size_t count, uint32_t *tokens, size_t *got, struct rf_error *err) {
    RF_ASSERT(count && count <= RF__BPE_PIECE_BYTES);
    int32_t whole = find(bpe, piece, count);
    if (whole != NONE) {
        tokens[0] = (uint32_t)whole;
        *got = 1;
        return RF_OK;
    }
    int code = room_grow(room, count, err);
    if (code) {
        return code;
    }
    struct merging m = {bpe, piece, count, room->parts, room->pairs, 0};
    for (uint32_t i = 0; i < count; i++) {
        m.parts[i] = (struct rf__bpe_part){i + 1, i - 1, bpe->single[piece[i]]};
    }
    for (uint32_t i = 0; i + 1 < count; i++) {
        pair_offer(&m, i);
    }
    while (m.pair_count) {
        pair_merge(&m, pair_pop(&m));
    }
    *got = 0;
    for (uint32_t at = 0; at < count; at = m.parts[at].end) {
        tokens[(*got)++] = m.parts[at].token;
    }
    return RF_OK;
}
