/* The symbolic checker. Every element of every rank's memory is a `struct value`: whose
 * contributions it holds, and a hash of the expression that made it (which operands in which order,
 * divided, rounded), so that equal hashes mean equal bits.
 *
 * Messages are carried out as a rendezvous, the strictest link there may be: a SEND ends when its
 * receiver takes it. Each rank runs until it needs something; a queue holds the ranks for which
 * something may have changed. */
#include "coll/check.h"

#include "base/assert.h"
#include "base/mem.h"
#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { BUFFERS = 4 };

struct value {
    uint64_t ranks; /* bit r: rank r's contribution is in it; 0: never written */
    uint64_t hash;
    uint32_t index; /* which element of the contributors' IN */
    bool divided;
    bool wide; /* of the accumulator's precision, and not representable in the type as far as we
                  know */
};

struct rank_state {
    const struct rf__schedule *schedule;
    struct value *memory;
    size_t base[BUFFERS], length[BUFFERS];
    size_t begin, end, at; /* the step: its instructions, and the next one that is no SEND */
    size_t sends_left;
    uint64_t heard, heard_before; /* of which ranks, now and when the step began */
    bool *taken;                  /* for each SEND */
    bool queued;
};

struct checker {
    const struct rf__schedule_params *params;
    struct rf_error *err;
    int size, queue[RF__CHECK_MAX_RANKS], queue_head, queue_count;
    struct rank_state ranks[RF__CHECK_MAX_RANKS];
};

RF__PRINTF(4, 5)
static int broken(struct checker *c, int rank, uint32_t step, const char *format, ...) {
    char text[RF_ERROR_TEXT_MAX - 64];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    rf__fail(c->err, RF_EINTERNAL, 0, "rank %d, step %u: %s", rank, (unsigned)step, text);
    if (c->err) {
        c->err->rank = rank;
    }
    return RF_EINTERNAL;
}

/* ---- expressions ---- */

static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

static uint64_t hash_leaf(int rank, uint32_t index) {
    return mix(((uint64_t)(unsigned)rank << 32) + index + 1);
}
static uint64_t hash_fold(uint64_t left, uint64_t right) {
    return mix(mix(left) + 3 * right);
}
static uint64_t hash_divide(uint64_t x) {
    return mix(x + 0x9e3779b97f4a7c15ull);
}
static uint64_t hash_round(uint64_t x) {
    return mix(~x);
}

static struct value leaf(int rank, size_t index) {
    return (struct value){
        .ranks = 1ull << rank, .index = (uint32_t)index, .hash = hash_leaf(rank, (uint32_t)index)};
}

static struct value stored(struct value value, enum rf__buffer buffer) {
    if (value.wide && buffer != RF__ACC) {
        value.hash = hash_round(value.hash);
        value.wide = false;
    }
    return value;
}

/* *dst = *dst op x, or x op *dst. NULL, or what is wrong. */
static const char *fold(struct value *dst, const struct value *x, bool left, bool wide) {
    if (!dst->ranks || !x->ranks) {
        return "folds what was never written";
    }
    if (dst->index != x->index) {
        return "folds different elements";
    }
    if (dst->ranks & x->ranks) {
        return "folds a contribution twice";
    }
    if (dst->divided || x->divided) {
        return "folds what is divided already";
    }
    dst->hash = left ? hash_fold(x->hash, dst->hash) : hash_fold(dst->hash, x->hash);
    dst->ranks |= x->ranks;
    dst->wide = wide;
    if (!wide) {
        dst->hash = hash_round(dst->hash);
    }
    return NULL;
}

/* ---- what the collective has in its buffers ---- */

static bool is_rooted(enum rf_coll coll) {
    return coll == RF_COLL_BROADCAST || coll == RF_COLL_REDUCE || coll == RF_COLL_GATHER ||
           coll == RF_COLL_SCATTER;
}

static bool is_reducing(enum rf_coll coll) {
    return coll == RF_COLL_ALLREDUCE || coll == RF_COLL_REDUCE || coll == RF_COLL_REDUCE_SCATTER;
}

/* Elements of IN and OUT that a rank has; what it does not need it does not have. */
static void extents(const struct rf__schedule_params *p, int rank, size_t *in, size_t *out) {
    size_t one = p->count, all = (size_t)p->size * p->count;
    bool root = rank == p->root;

    *in = *out = 0;
    switch (p->coll) {
    case RF_COLL_ALLREDUCE:
        *in = *out = one;
        break;
    case RF_COLL_REDUCE_SCATTER:
        *in = all;
        *out = one;
        break;
    case RF_COLL_ALL_GATHER:
        *in = one;
        *out = all;
        break;
    case RF_COLL_BROADCAST:
        *in = root ? one : 0;
        *out = one;
        break;
    case RF_COLL_REDUCE:
        *in = one;
        *out = root ? one : 0;
        break;
    case RF_COLL_GATHER:
        *in = one;
        *out = root ? all : 0;
        break;
    case RF_COLL_SCATTER:
        *in = root ? all : 0;
        *out = one;
        break;
    case RF_COLL_ALL_TO_ALL:
        *in = *out = all;
        break;
    case RF_COLL_BARRIER:
    case RF_COLL_SEND:
    case RF_COLL_RECV:
    case RF_COLL_COUNT:
        break;
    }
}

/* Whose contributions element `j` of rank's OUT shall hold, and of which element. */
static void promised(const struct rf__schedule_params *p, int rank, size_t j, uint64_t *ranks,
                     size_t *index) {
    uint64_t everyone = p->size == 64 ? UINT64_MAX : (1ull << p->size) - 1;

    *index = j;
    *ranks = everyone;
    switch (p->coll) {
    case RF_COLL_ALLREDUCE:
    case RF_COLL_REDUCE:
        break;
    case RF_COLL_REDUCE_SCATTER:
        *index = (size_t)rank * p->count + j;
        break;
    case RF_COLL_ALL_GATHER:
    case RF_COLL_GATHER:
        *index = j % p->count;
        *ranks = 1ull << (j / p->count);
        break;
    case RF_COLL_BROADCAST:
        *ranks = 1ull << p->root;
        break;
    case RF_COLL_SCATTER:
        *index = (size_t)rank * p->count + j;
        *ranks = 1ull << p->root;
        break;
    case RF_COLL_ALL_TO_ALL:
        *index = (size_t)rank * p->count + j % p->count;
        *ranks = 1ull << (j / p->count);
        break;
    case RF_COLL_BARRIER:
    case RF_COLL_SEND:
    case RF_COLL_RECV:
    case RF_COLL_COUNT:
        *ranks = 0;
        break;
    }
}

/* ---- setting up ---- */

static int lay_out(struct checker *c, int rank, bool in_place) {
    struct rank_state *s = &c->ranks[rank];
    size_t in, out, total, shift;

    extents(c->params, rank, &in, &out);
    s->length[RF__IN] = in;
    s->length[RF__OUT] = out;
    s->length[RF__ACC] = s->schedule->acc_count;
    s->length[RF__TMP] = s->schedule->tmp_count;
    if (in_place && in && out) {
        shift = in == out ? 0 : (size_t)rank * c->params->count;
        s->base[RF__IN] = in < out ? shift : 0;
        s->base[RF__OUT] = in > out ? shift : 0;
        total = in > out ? in : out;
    } else {
        s->base[RF__OUT] = in;
        total = in + out;
    }
    s->base[RF__ACC] = total;
    s->base[RF__TMP] = total + s->length[RF__ACC];
    s->memory = rf__alloc(s->base[RF__TMP] + s->length[RF__TMP], sizeof *s->memory);
    s->taken = rf__alloc(s->schedule->count, sizeof *s->taken);
    if (!s->memory || !s->taken) {
        return rf__fail(c->err, RF_ENOMEM, 0, "checking a schedule: out of memory");
    }
    for (size_t i = 0; i < in; i++) {
        s->memory[s->base[RF__IN] + i] = leaf(rank, i);
    }
    s->heard = 1ull << rank;
    return 0;
}

static bool reads_local(const struct rf__instr *x) {
    return x->kind == RF__COPY || x->kind == RF__JOIN;
}
static bool takes_message(const struct rf__instr *x) {
    return x->kind == RF__RECV || x->kind == RF__FOLD;
}

/* What can be seen without carrying it out. */
static int well_formed(struct checker *c, int rank, const struct rf__instr *x, uint32_t before) {
    const struct rank_state *s = &c->ranks[rank];
    bool message = x->kind == RF__SEND || takes_message(x);

    if (x->kind > RF__DIVIDE || x->src >= BUFFERS || x->dst >= BUFFERS) {
        return broken(c, rank, x->step, "no such instruction or buffer");
    }
    if (x->step < before) {
        return broken(c, rank, x->step, "comes after step %u", (unsigned)before);
    }
    if (message && (x->peer < 0 || x->peer >= c->size || x->peer == rank)) {
        return broken(c, rank, x->step, "no such peer: rank %d", (int)x->peer);
    }
    if ((x->kind == RF__SEND || x->kind == RF__JOIN) && x->src == RF__ACC) {
        return broken(c, rank, x->step, "sends or joins from the accumulator");
    }
    if ((x->kind == RF__SEND || reads_local(x)) &&
        (x->src_offset > s->length[x->src] || x->count > s->length[x->src] - x->src_offset)) {
        return broken(c, rank, x->step, "reads elements %zu + %zu of a buffer of %zu",
                      x->src_offset, x->count, s->length[x->src]);
    }
    if (x->kind != RF__SEND &&
        (x->dst_offset > s->length[x->dst] || x->count > s->length[x->dst] - x->dst_offset)) {
        return broken(c, rank, x->step, "writes elements %zu + %zu of a buffer of %zu",
                      x->dst_offset, x->count, s->length[x->dst]);
    }
    return 0;
}

static bool overlap(size_t a, size_t b, size_t count_a, size_t count_b) {
    return count_a && count_b && a < b + count_b && b < a + count_a;
}

/* ---- carrying out ---- */

static void enqueue(struct checker *c, int rank) {
    if (!c->ranks[rank].queued) {
        c->ranks[rank].queued = true;
        c->queue[(c->queue_head + c->queue_count++) % RF__CHECK_MAX_RANKS] = rank;
    }
}

/* Nothing of the step may write what a SEND of the step reads. */
static int check_writes(struct checker *c, int rank) {
    const struct rank_state *s = &c->ranks[rank];

    for (size_t i = s->begin; i < s->end; i++) {
        const struct rf__instr *send = &s->schedule->instrs[i];
        for (size_t j = s->begin; send->kind == RF__SEND && send->count && j < s->end; j++) {
            const struct rf__instr *x = &s->schedule->instrs[j];
            if (x->kind != RF__SEND &&
                overlap(s->base[send->src] + send->src_offset, s->base[x->dst] + x->dst_offset,
                        send->count, x->count)) {
                return broken(c, rank, x->step, "writes what the message to rank %d is reading",
                              (int)send->peer);
            }
        }
    }
    return 0;
}

static int enter_step(struct checker *c, int rank) {
    struct rank_state *s = &c->ranks[rank];
    const struct rf__instr *instrs = s->schedule->instrs;

    s->begin = s->at = s->end;
    s->heard_before = s->heard;
    while (s->end < s->schedule->count && instrs[s->end].step == instrs[s->begin].step) {
        if (instrs[s->end].kind == RF__SEND) {
            s->sends_left++;
            enqueue(c, instrs[s->end].peer);
        }
        s->end++;
    }
    return check_writes(c, rank);
}

static int do_local(struct checker *c, int rank, const struct rf__instr *x) {
    struct rank_state *s = &c->ranks[rank];
    size_t src_at = s->base[x->src] + x->src_offset, dst_at = s->base[x->dst] + x->dst_offset;
    struct value *dst = s->memory + dst_at;
    const struct value *src = s->memory + src_at;
    const char *wrong = NULL;

    if (reads_local(x) && overlap(src_at, dst_at, x->count, x->count)) {
        return broken(c, rank, x->step, "copies or joins a buffer with itself");
    }
    for (size_t i = 0; i < x->count && !wrong; i++) {
        if (x->kind == RF__COPY) {
            wrong = src[i].ranks ? NULL : "copies what was never written";
            dst[i] = stored(src[i], x->dst);
        } else if (x->kind == RF__JOIN) {
            wrong = fold(&dst[i], &src[i], x->left, x->dst == RF__ACC);
        } else {
            wrong = !dst[i].ranks    ? "divides what was never written"
                    : dst[i].divided ? "divides twice"
                                     : NULL;
            dst[i].divided = true;
            dst[i].hash = hash_divide(dst[i].hash);
            dst[i].wide = true;
            dst[i] = stored(dst[i], x->dst);
        }
        if (wrong) {
            return broken(c, rank, x->step, "%s: element %zu", wrong, x->dst_offset + i);
        }
    }
    return 0;
}

static int do_message(struct checker *c, int rank, const struct rf__instr *x,
                      const struct rf__instr *send) {
    struct rank_state *s = &c->ranks[rank];
    const struct rank_state *from = &c->ranks[x->peer];
    struct value *dst = s->memory + s->base[x->dst] + x->dst_offset;
    const struct value *src = from->memory + from->base[send->src] + send->src_offset;
    const char *wrong = NULL;

    if (send->count != x->count) {
        return broken(c, rank, x->step,
                      "expects %zu elements from rank %d, which sends %zu in its step %u", x->count,
                      (int)x->peer, send->count, (unsigned)send->step);
    }
    for (size_t i = 0; i < x->count; i++) {
        if (x->kind == RF__RECV) {
            wrong = src[i].ranks ? NULL : "receives what was never written";
            dst[i] = stored(src[i], x->dst);
        } else {
            wrong = fold(&dst[i], &src[i], x->left, x->dst == RF__ACC);
        }
        if (wrong) {
            return broken(c, rank, x->step, "%s: element %zu, from rank %d", wrong,
                          x->dst_offset + i, (int)x->peer);
        }
    }
    s->heard |= from->heard_before;
    return 0;
}

/* The first message of `from`'s step to `to` that is not taken yet; schedule->count if there is
 * none. */
static size_t pending_send(const struct rank_state *from, int to) {
    for (size_t i = from->begin; i < from->end; i++) {
        const struct rf__instr *x = &from->schedule->instrs[i];
        if (x->kind == RF__SEND && x->peer == to && !from->taken[i]) {
            return i;
        }
    }
    return from->schedule->count;
}

/* Runs the rank until it has to wait or is done. */
static int advance(struct checker *c, int rank) {
    struct rank_state *s = &c->ranks[rank];
    int rc = 0;

    while (rc == 0) {
        if (s->at == s->end) {
            if (s->sends_left || s->end == s->schedule->count) {
                break;
            }
            rc = enter_step(c, rank);
            continue;
        }
        const struct rf__instr *x = &s->schedule->instrs[s->at];
        if (takes_message(x)) {
            struct rank_state *from = &c->ranks[x->peer];
            size_t send = pending_send(from, rank);
            if (send == from->schedule->count) {
                break;
            }
            rc = do_message(c, rank, x, &from->schedule->instrs[send]);
            from->taken[send] = true;
            from->sends_left--;
            enqueue(c, x->peer);
        } else if (x->kind != RF__SEND) {
            rc = do_local(c, rank, x);
        }
        s->at++;
    }
    return rc;
}

/* Whom the rank waits for; -1 if it is done. *receives: it waits for a message, not for one to be
 * taken. */
static int waits_for(const struct rank_state *s, uint32_t *step, bool *receives) {
    int peer = -1;

    *receives = s->at < s->end;
    if (*receives) {
        peer = s->schedule->instrs[s->at].peer;
        *step = s->schedule->instrs[s->at].step;
    }
    for (size_t i = s->begin; peer < 0 && i < s->end; i++) {
        if (s->schedule->instrs[i].kind == RF__SEND && !s->taken[i]) {
            peer = s->schedule->instrs[i].peer;
            *step = s->schedule->instrs[i].step;
        }
    }
    return peer;
}

/* Follows the waiting from the first rank that is not done to its end: a rank that is done, or a
 * circle. */
static int check_finished(struct checker *c) {
    int rank = 0, next;
    uint32_t step = 0, other_step;
    bool receives = false, other;
    uint64_t seen = 0;

    while (rank < c->size && waits_for(&c->ranks[rank], &step, &receives) < 0) {
        rank++;
    }
    if (rank == c->size) {
        return 0;
    }
    next = waits_for(&c->ranks[rank], &step, &receives);
    while (!(seen & (1ull << rank)) && waits_for(&c->ranks[next], &other_step, &other) >= 0) {
        seen |= 1ull << rank;
        rank = next;
        next = waits_for(&c->ranks[rank], &step, &receives);
    }
    if (seen & (1ull << rank)) {
        return broken(
            c, rank, step, "waits in a circle: %s rank %d, which waits in turn for rank %d",
            receives ? "for a message from" : "for its message to be taken by", next, rank);
    }
    return broken(c, rank, step,
                  receives ? "waits for a message that rank %d never sends"
                           : "sends a message that rank %d never receives",
                  next);
}

/* ---- results ---- */

static uint64_t rank_order_hash(const struct rf__schedule_params *p, size_t index) {
    uint64_t hash = hash_leaf(0, (uint32_t)index);
    for (int r = 1; r < p->size; r++) {
        hash = hash_fold(hash, hash_leaf(r, (uint32_t)index));
    }
    return hash_round(hash_divide(hash));
}

static int check_result(struct checker *c, int rank, bool rank_order) {
    const struct rf__schedule_params *p = c->params;
    const struct rank_state *s = &c->ranks[rank];
    const struct value *out = s->memory + s->base[RF__OUT];
    const struct value *out_0 = c->ranks[0].memory + c->ranks[0].base[RF__OUT];
    size_t last = s->schedule->count;
    uint32_t step = last ? s->schedule->instrs[last - 1].step : 0;
    bool divided = is_reducing(p->coll);

    for (size_t j = 0; j < s->length[RF__OUT]; j++) {
        uint64_t ranks;
        size_t index;
        promised(p, rank, j, &ranks, &index);
        if (out[j].ranks != ranks || out[j].index != index) {
            return broken(c, rank, step,
                          "result element %zu holds element %u of ranks %#llx, not element %zu of "
                          "ranks %#llx",
                          j, (unsigned)out[j].index, (unsigned long long)out[j].ranks, index,
                          (unsigned long long)ranks);
        }
        if (out[j].divided != divided) {
            return broken(c, rank, step, "result element %zu is %s", j,
                          divided ? "not divided" : "divided");
        }
        if (p->coll == RF_COLL_ALLREDUCE && out[j].hash != out_0[j].hash) {
            return broken(c, rank, step, "result element %zu is not the same bits as on rank 0", j);
        }
        if (rank_order && out[j].hash != rank_order_hash(p, index)) {
            return broken(c, rank, step,
                          "result element %zu is not folded in rank order and rounded once", j);
        }
    }
    return 0;
}

static int check_untouched(struct checker *c, int rank) {
    const struct rank_state *s = &c->ranks[rank];

    for (size_t i = 0; i < s->length[RF__IN]; i++) {
        size_t at = s->base[RF__IN] + i;
        struct value was = leaf(rank, i);
        bool in_out = at >= s->base[RF__OUT] && at < s->base[RF__OUT] + s->length[RF__OUT];
        if (!in_out && s->memory[at].hash != was.hash) {
            return broken(c, rank, 0, "element %zu of IN was overwritten", i);
        }
    }
    return 0;
}

static int check_heard(struct checker *c, int rank) {
    uint64_t missing = ~c->ranks[rank].heard;

    if (is_rooted(c->params->coll) && !c->params->agree) {
        return 0;
    }
    for (int r = 0; r < c->size; r++) {
        if (missing & (1ull << r)) {
            return broken(c, rank, 0, "never hears of rank %d", r);
        }
    }
    return 0;
}

static int set_up(struct checker *c, const struct rf__schedule *schedules,
                  const struct rf__check_options *options) {
    int rc = 0;

    for (int r = 0; r < c->size && rc == 0; r++) {
        uint32_t before = 0;
        c->ranks[r].schedule = &schedules[r];
        rc = lay_out(c, r,
                     options && options->in_place ? options->in_place[r] : c->params->in_place);
        for (size_t i = 0; i < schedules[r].count && rc == 0; i++) {
            rc = well_formed(c, r, &schedules[r].instrs[i], before);
            before = schedules[r].instrs[i].step;
        }
    }
    for (int r = 0; r < c->size && rc == 0; r++) {
        enqueue(c, r);
    }
    return rc;
}

int rf__check(const struct rf__schedule *schedules, const struct rf__schedule_params *params,
              const struct rf__check_options *options, struct rf_error *err) {
    struct checker *c = NULL;
    int rc;

    RF_ASSERT(params->size >= 1 && params->size <= RF__CHECK_MAX_RANKS);
    c = rf__alloc(1, sizeof *c);
    if (!c) {
        return rf__fail(err, RF_ENOMEM, 0, "checking a schedule: out of memory");
    }
    c->params = params;
    c->err = err;
    c->size = params->size;
    rc = set_up(c, schedules, options);
    while (rc == 0 && c->queue_count) {
        int rank = c->queue[c->queue_head];
        c->queue_head = (c->queue_head + 1) % RF__CHECK_MAX_RANKS;
        c->queue_count--;
        c->ranks[rank].queued = false;
        rc = advance(c, rank);
    }
    if (rc == 0) {
        rc = check_finished(c);
    }
    for (int r = 0; r < c->size && rc == 0; r++) {
        rc = check_result(c, r, options && options->rank_order);
        rc = rc ? rc : check_untouched(c, r);
        rc = rc ? rc : check_heard(c, r);
    }
    for (int r = 0; r < c->size; r++) {
        rf__free(c->ranks[r].memory);
        rf__free(c->ranks[r].taken);
    }
    rf__free(c);
    return rc;
}

int rf__check_algorithm(const struct rf__schedule_params *params,
                        const struct rf__check_options *options, struct rf_error *err) {
    struct rf__schedule schedules[RF__CHECK_MAX_RANKS] = {0};
    int rc = 0;

    RF_ASSERT(params->size >= 1 && params->size <= RF__CHECK_MAX_RANKS);
    for (int r = 0; r < params->size && rc == 0; r++) {
        struct rf__schedule_params own = *params;
        own.rank = r;
        own.in_place = options && options->in_place ? options->in_place[r] : params->in_place;
        rc = rf__schedule_write(&schedules[r], &own);
        if (rc) {
            rf__fail(err, rc, 0, "%s by %s: %s", rf_coll_name(params->coll),
                     rf_algorithm_name(params->algorithm), rf_error_text(rc));
        }
    }
    if (rc == 0) {
        rc = rf__check(schedules, params, options, err);
    }
    for (int r = 0; r < params->size; r++) {
        rf__schedule_free(&schedules[r]);
    }
    return rc;
}
