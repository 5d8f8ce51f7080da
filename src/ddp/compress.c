/* The pieces of a compressed sum, and the order of their operations.
 *
 *     piece      first operation          then                        second operation    last
 *     plain      allreduce of float32
 *     half       allreduce of bfloat16                                                    widen
 *     bytes      all_to_all of parts      sum up and pack own slice   all_gather          unpack
 *
 * Every rank must start the same operations in the same order, but a second operation can start
 * only when the first is complete, which each rank sees at another time. So the order is fixed: the
 * second operation of a piece comes right after the first of the next piece.
 *
 *     first 0, first 1, second 0, first 2, second 1, …, second of the last
 *
 * While `first k+1` travels, a rank sums up piece k; while `second k` travels, it packs k+2. A run
 * that is too small for the padding of its slices to be worth it goes as float32, and so does
 * everything in a group of one, which loses nothing then. */
#include "ddp/compress.h"

#include "base/assert.h"
#include "base/mem.h"
#include "base/status.h"
#include "coll/fold.h"
#include "coll/pack.h"

#include <limits.h>
#include <string.h>

enum {
    PIECE_BYTES = 1 << 21, /* as it travels: long against the time to start an operation, short
                              against a step */
    SLOTS = 3,             /* pieces under way: two travel, one is unpacked or packed */
    LEAST_BLOCKS = 16      /* for each rank: padding is then 1/16 at most */
};

enum kind { PLAIN, HALF, BYTES };

enum stage {
    WAITING, /* not started */
    FIRST,   /* its first operation is under way */
    TURNED,  /* bytes: the own slice is summed up */
    SECOND,  /* its second operation is under way */
    DONE
};

struct piece {
    size_t offset, count;
    int run;
    enum kind kind;
    enum stage stage;
    bool fed; /* what was lost before is in the values; lives through the unit's attempts */
    struct rf__op *op;
};

struct rf__compress {
    struct rf__runner *runner;
    enum rf_wire wire;
    enum rf_algorithm algorithm;
    size_t floats, piece_floats;

    float *lost, *owned; /* by place in the block; NULL in bfloat16 */
    void *memory;        /* the slots' */
    unsigned char *send[SLOTS], *recv[SLOTS];
    size_t memory_bytes;

    struct piece *piece;
    int room; /* pieces at most */

    /* The attempt. */
    bool is_tried; /* the unit */
    int pieces;
    int rank, size;
    uint64_t generation;
    float *values, *out;
    const double *divisor;
    int first, second; /* the next piece whose first, or second, operation is to start */
    int done;          /* pieces complete, from the first on */
    int64_t busy;
};

/* ---- slices: piece `p` is cut into one for each rank, of the same number of blocks but for the
 * last ones, which may be short or empty */

static size_t slice_blocks(const struct rf__compress *c, const struct piece *p) {
    size_t size = (size_t)c->size;
    return (rf__pack_blocks(p->count) + size - 1) / size;
}

static size_t slice_begin(const struct rf__compress *c, const struct piece *p, int rank) {
    size_t at = (size_t)rank * slice_blocks(c, p) * RF__PACK_BLOCK;
    return at < p->count ? at : p->count;
}

static size_t slice_count(const struct rf__compress *c, const struct piece *p, int rank) {
    return slice_begin(c, p, rank + 1) - slice_begin(c, p, rank);
}

static size_t slice_bytes(const struct rf__compress *c, const struct piece *p) {
    return rf__pack_bytes(slice_blocks(c, p));
}

/* ---- life */

static size_t padded(size_t bytes) {
    return (bytes + 63) / 64 * 64;
}

static int allocate_slots(struct rf__compress *c, struct rf_error *err) {
    size_t largest = c->floats < c->piece_floats ? c->floats : c->piece_floats;
    int elastic_size = c->runner->elastic ? c->runner->max_size : c->runner->size;
    size_t blocks = rf__pack_blocks(largest) + (size_t)(elastic_size > 0 ? elastic_size : 0);
    bool bytes = c->wire == RF_WIRE_INT8;
    size_t each = padded(bytes ? rf__pack_bytes(blocks) : largest * sizeof(uint16_t));

    c->memory_bytes = each * SLOTS * 2;
    int rc = c->runner->ops->alloc(c->runner, c->memory_bytes, &c->memory, err);
    if (rc) {
        c->memory = NULL;
        return rc;
    }
    for (size_t s = 0; s < SLOTS; s++) {
        c->send[s] = (unsigned char *)c->memory + s * each;
        c->recv[s] = c->send[s] + SLOTS * each;
    }
    return 0;
}

int rf__compress_create(struct rf__runner *runner, const struct rf__compress_options *options,
                        struct rf__compress **out, struct rf_error *err) {
    struct rf__compress *c = rf__alloc(1, sizeof *c);
    size_t element = options->wire == RF_WIRE_BF16 ? sizeof(uint16_t) : 1;
    size_t piece = options->piece_floats ? options->piece_floats : PIECE_BYTES / element;
    size_t pieces = options->floats / piece + (size_t)options->runs;
    int rc = 0;

    RF_ASSERT(options->wire != RF_WIRE_NONE && options->runs >= 1);
    RF_ASSERT(piece % RF__PACK_BLOCK == 0);
    if (c) {
        c->piece_floats = piece;
        c->runner = runner;
        c->wire = options->wire;
        c->algorithm = options->algorithm;
        c->floats = options->floats;
        c->room = (int)pieces;
        c->piece = pieces <= INT_MAX ? rf__alloc(pieces, sizeof *c->piece) : NULL;
    }
    bool feeds = c && c->wire == RF_WIRE_INT8;
    if (feeds) {
        c->lost = rf__alloc(c->floats, sizeof *c->lost);
        c->owned = rf__alloc(c->floats, sizeof *c->owned);
    }
    if (!c || !c->piece || (feeds && (!c->lost || !c->owned))) {
        rc = rf__fail(err, RF_ENOMEM, 0, "no memory to compress %zu gradients", options->floats);
    }
    rc = rc ? rc : allocate_slots(c, err);
    if (rc) {
        rf__compress_destroy(c);
        return rc;
    }
    *out = c;
    return 0;
}

void rf__compress_destroy(struct rf__compress *c) {
    if (c) {
        if (c->memory) {
            c->runner->ops->release(c->runner, c->memory);
        }
        rf__free(c->owned);
        rf__free(c->lost);
        rf__free(c->piece);
        rf__free(c);
    }
}

size_t rf__compress_bytes(const struct rf__compress *c) {
    return c->memory_bytes + (c->lost ? c->floats * sizeof *c->lost : 0);
}

/* ---- what was lost */

/* Only the slices that this rank owned were ever touched: the rest stays untouched memory. */
static void forget_owned(struct rf__compress *c) {
    for (int i = 0; i < c->pieces && c->owned; i++) {
        const struct piece *p = &c->piece[i];
        if (p->kind == BYTES) {
            memset(c->owned + p->offset + slice_begin(c, p, c->rank), 0,
                   slice_count(c, p, c->rank) * sizeof *c->owned);
        }
    }
}

void rf__compress_forget(struct rf__compress *c) {
    forget_owned(c);
    if (c->lost) {
        memset(c->lost, 0, c->floats * sizeof *c->lost);
    }
}

float *rf__compress_move(struct rf__compress *c) {
    forget_owned(c);
    return c->lost;
}

/* ---- an attempt */

void rf__compress_unit(struct rf__compress *c) {
    for (int i = 0; i < c->room; i++) {
        c->piece[i].fed = false;
    }
    c->is_tried = false;
}

static enum kind kind_of(const struct rf__compress *c, size_t count) {
    size_t least = (size_t)LEAST_BLOCKS * RF__PACK_BLOCK * (size_t)c->size;

    if (c->size == 1 || (c->wire == RF_WIRE_INT8 && count < least)) {
        return PLAIN;
    }
    return c->wire == RF_WIRE_BF16 ? HALF : BYTES;
}

/* The pieces of a run of `count` are equal, and whole blocks but for the last. */
static size_t piece_count(const struct rf__compress *c, size_t count) {
    size_t pieces = (count + c->piece_floats - 1) / c->piece_floats;
    return rf__pack_blocks((count + pieces - 1) / pieces) * RF__PACK_BLOCK;
}

/* The borders of pieces do not depend on the group's size: `fed` stays true of the same elements.
 */
static void lay_out(struct rf__compress *c, const struct rf__bucket *run, int runs) {
    c->pieces = 0;
    for (int r = 0; r < runs; r++) {
        size_t each = piece_count(c, run[r].count);
        for (size_t at = 0; at < run[r].count; at += each) {
            size_t left = run[r].count - at;
            RF_ASSERT(c->pieces < c->room);
            struct piece *p = &c->piece[c->pieces++];
            p->offset = run[r].offset + at;
            p->count = left < each ? left : each;
            p->run = r;
            p->kind = kind_of(c, p->count);
            p->stage = WAITING;
            RF_ASSERT(!p->op);
        }
    }
}

void rf__compress_attempt(struct rf__compress *c, const struct rf__bucket *run, int runs,
                          float *values, float *out, const double *divisor) {
    const struct rf__runner *runner = c->runner;

    if (c->is_tried || c->generation != runner->generation || c->rank != runner->rank ||
        c->size != runner->size) {
        forget_owned(c);
    }
    c->is_tried = true;
    c->rank = runner->rank;
    c->size = runner->size;
    c->generation = runner->generation;
    c->values = values;
    c->out = out;
    c->divisor = divisor;
    c->first = c->second = c->done = 0;
    lay_out(c, run, runs);
}

static int start(struct rf__compress *c, struct piece *p, const struct rf_call *call,
                 const double *divisor) {
    struct rf__op_params params = {.call = *call, .divisor = divisor};
    int rc = c->runner->ops->start(c->runner, &params, &p->op);

    if (rc) {
        p->op = NULL;
    }
    return rc;
}

static int start_plain(struct rf__compress *c, struct piece *p) {
    struct rf_call call = {.coll = RF_COLL_ALLREDUCE,
                           .type = RF_F32,
                           .redop = RF_SUM,
                           .send = c->values + p->offset,
                           .recv = c->out + p->offset,
                           .count = p->count,
                           .algorithm = c->algorithm};

    if (c->lost) {
        float *lost = c->lost + p->offset, *values = c->values + p->offset;
        for (size_t i = 0; i < p->count && !p->fed; i++) {
            values[i] += lost[i];
        }
        memset(lost, 0, p->count * sizeof *lost);
    }
    return start(c, p, &call, c->divisor);
}

static int start_half(struct rf__compress *c, struct piece *p, int slot) {
    struct rf_call call = {.coll = RF_COLL_ALLREDUCE,
                           .type = RF_BF16,
                           .redop = RF_SUM,
                           .send = c->send[slot],
                           .recv = c->recv[slot],
                           .count = p->count,
                           .algorithm = c->algorithm};

    rf__narrow(RF_BF16, c->send[slot], c->values + p->offset, p->count);
    return start(c, p, &call, c->divisor);
}

static int start_bytes(struct rf__compress *c, struct piece *p, int slot) {
    size_t room = slice_blocks(c, p), bytes = slice_bytes(c, p);
    struct rf_call call = {.coll = RF_COLL_ALL_TO_ALL,
                           .type = RF_U8,
                           .send = c->send[slot],
                           .recv = c->recv[slot],
                           .count = bytes};

    for (int r = 0; r < c->size; r++) {
        size_t at = p->offset + slice_begin(c, p, r);
        rf__pack(c->values + at, c->lost + at, !p->fed, slice_count(c, p, r),
                 c->send[slot] + (size_t)r * bytes, room);
    }
    return start(c, p, &call, NULL);
}

static int start_first(struct rf__compress *c) {
    struct piece *p = &c->piece[c->first];
    int slot = c->first % SLOTS, rc = 0;

    switch (p->kind) {
    case PLAIN:
        rc = start_plain(c, p);
        break;
    case HALF:
        rc = start_half(c, p, slot);
        break;
    case BYTES:
        rc = start_bytes(c, p, slot);
        break;
    }
    p->fed = true;
    if (rc == 0) {
        p->stage = FIRST;
        c->first++;
    }
    return rc;
}

/* The own slice's sum stands in its place among all that the gather brings. */
static int start_second(struct rf__compress *c) {
    struct piece *p = &c->piece[c->second];
    unsigned char *all = c->send[c->second % SLOTS];
    struct rf_call call = {.coll = RF_COLL_ALL_GATHER,
                           .type = RF_U8,
                           .send = all + (size_t)c->rank * slice_bytes(c, p),
                           .recv = all,
                           .count = slice_bytes(c, p)};
    int rc = start(c, p, &call, NULL);

    if (rc == 0) {
        p->stage = SECOND;
        c->second++;
    }
    return rc;
}

static void sum_up(struct rf__compress *c, struct piece *p, int slot) {
    size_t begin = slice_begin(c, p, c->rank);

    rf__pack_sum(c->recv[slot], c->size, c->owned + p->offset + begin, slice_count(c, p, c->rank),
                 c->send[slot] + (size_t)c->rank * slice_bytes(c, p), slice_blocks(c, p));
}

static void unpack(struct rf__compress *c, struct piece *p, int slot) {
    size_t room = slice_blocks(c, p), bytes = slice_bytes(c, p);

    for (int r = 0; r < c->size; r++) {
        rf__unpack(c->out + p->offset + slice_begin(c, p, r), slice_count(c, p, r),
                   c->send[slot] + (size_t)r * bytes, room, c->divisor ? *c->divisor : 1);
    }
}

/* The operation of piece `i` that was under way is complete, and freed. */
static void advance(struct rf__compress *c, int i) {
    struct piece *p = &c->piece[i];
    int slot = i % SLOTS;

    if (p->stage == SECOND) {
        unpack(c, p, slot);
        p->stage = DONE;
    } else if (p->kind == BYTES) {
        sum_up(c, p, slot);
        p->stage = TURNED;
    } else {
        if (p->kind == HALF) {
            rf__widen(RF_BF16, c->out + p->offset, c->recv[slot], p->count);
        }
        p->stage = DONE;
    }
    while (c->done < c->pieces && c->piece[c->done].stage == DONE) {
        c->done++;
    }
}

static int finish(struct rf__compress *c, int i) {
    int64_t busy = 0;
    int rc = c->runner->ops->wait(c->runner, c->piece[i].op, -1, &busy);

    c->piece[i].op = NULL;
    c->busy += rc ? 0 : busy;
    if (rc == 0) {
        advance(c, i);
    }
    return rc;
}

/* Takes in what has arrived. */
static int poll(struct rf__compress *c) {
    int rc = 0, last = c->first;

    for (int i = c->done; i < last && rc >= 0; i++) {
        rc = c->piece[i].op ? c->runner->ops->test(c->runner, c->piece[i].op) : 0;
        if (rc == 1) {
            rc = finish(c, i);
        }
    }
    return rc < 0 ? rc : 0;
}

/* Whether the fixed order has a second operation next. */
static bool second_is_next(const struct rf__compress *c) {
    return c->second < c->first && (c->second + 1 < c->first || c->first == c->pieces);
}

/* Starts the next operation: 1, or 0 where it has to wait for something, or an error. */
static int move(struct rf__compress *c, int ready) {
    int rc;

    if (second_is_next(c) && c->piece[c->second].kind != BYTES) {
        c->second++; /* it has none */
        return 1;
    }
    if (second_is_next(c)) {
        if (c->piece[c->second].stage != TURNED) {
            return 0;
        }
        rc = start_second(c);
    } else {
        if (c->first == c->pieces || c->piece[c->first].run >= ready ||
            c->first - c->done == SLOTS) {
            return 0;
        }
        rc = start_first(c);
    }
    return rc ? rc : 1;
}

int rf__compress_pump(struct rf__compress *c, int ready) {
    int rc = 1;

    while (rc > 0) {
        rc = poll(c);
        rc = rc ? rc : move(c, ready);
    }
    return rc;
}

static bool is_done(const struct rf__compress *c, int run) {
    return c->done == c->pieces || c->piece[c->done].run > run;
}

int rf__compress_wait(struct rf__compress *c, int run, int64_t *busy_ns) {
    int64_t before = c->busy;
    int rc = rf__compress_pump(c, INT_MAX);

    while (rc == 0 && !is_done(c, run)) {
        RF_ASSERT(c->piece[c->done].op); /* all are ready: the oldest piece can only be under way */
        rc = finish(c, c->done);
        rc = rc ? rc : rf__compress_pump(c, INT_MAX);
    }
    *busy_ns += c->busy - before;
    return rc;
}

void rf__compress_drain(struct rf__compress *c) {
    for (int i = c->done; i < c->pieces; i++) {
        if (c->piece[i].op) {
            (void)c->runner->ops->wait(c->runner, c->piece[i].op, -1, NULL);
            c->piece[i].op = NULL;
        }
    }
}
