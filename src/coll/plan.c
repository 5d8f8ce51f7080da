/* Plans: writes every rank's schedule in turn, into the same memory, and counts. While there are
 * not too many messages it keeps them, finds out which RECV belongs to which SEND, and has the
 * model (plan_model.c) say when each travels.
 *
 * Schedules are taken in place: the messages are the same, and there is less in between. */
#include "coll/plan.h"

#include "base/mem.h"
#include "base/status.h"
#include "coll/schedule.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The plan while it is being made. */
struct maker {
    struct rf_plan *plan;
    struct rf__schedule schedule;
    bool keep; /* messages and ops, while they are few enough */
    struct rf__op *ops;
    size_t op_count, op_capacity, message_capacity, message_count;
    size_t *first;       /* ops of rank r begin here */
    uint32_t *op_peer;   /* of SEND and RECV */
    uint64_t *op_offset; /* of RECV: where it is placed, or UINT64_MAX in scratch */
    bool *op_fold;
};

static bool is_reducing(enum rf_coll coll) {
    return coll == RF_COLL_ALLREDUCE || coll == RF_COLL_REDUCE || coll == RF_COLL_REDUCE_SCATTER;
}

/* Bytes into the collective's data of an offset in one of rank's buffers; UINT64_MAX in scratch. */
static uint64_t data_offset(const struct rf_plan_options *o, int rank, enum rf__buffer buffer,
                            size_t offset) {
    size_t part = (size_t)rank * o->count;
    bool in_is_part = o->coll == RF_COLL_ALL_GATHER || o->coll == RF_COLL_GATHER;
    bool out_is_part = o->coll == RF_COLL_REDUCE_SCATTER || o->coll == RF_COLL_SCATTER;

    if (buffer == RF__ACC || buffer == RF__TMP) {
        return UINT64_MAX;
    }
    if ((buffer == RF__IN && in_is_part) || (buffer == RF__OUT && out_is_part)) {
        offset += part;
    }
    return offset * rf_type_size(o->type);
}

/* ---- keeping ---- */

static int grow_ops(struct maker *m) {
    size_t capacity = m->op_capacity ? m->op_capacity * 2 : 1024;
    struct rf__op *ops = rf__grow(m->ops, capacity, sizeof *ops);
    uint32_t *peer = NULL;
    uint64_t *offset = NULL;
    bool *fold = NULL;

    m->ops = ops ? ops : m->ops;
    if (ops) {
        peer = rf__grow(m->op_peer, capacity, sizeof *peer);
        m->op_peer = peer ? peer : m->op_peer;
    }
    if (peer) {
        offset = rf__grow(m->op_offset, capacity, sizeof *offset);
        m->op_offset = offset ? offset : m->op_offset;
    }
    if (offset) {
        fold = rf__grow(m->op_fold, capacity, sizeof *fold);
        m->op_fold = fold ? fold : m->op_fold;
    }
    if (!fold) {
        return RF_ENOMEM;
    }
    m->op_capacity = capacity;
    return 0;
}

static int keep_message(struct maker *m, int rank, const struct rf__instr *x, uint32_t *index) {
    struct rf_plan *plan = m->plan;

    if (m->message_count == m->message_capacity) {
        size_t capacity = m->message_capacity ? m->message_capacity * 2 : 1024;
        struct rf_plan_message *list = rf__grow(plan->list, capacity, sizeof *list);
        if (!list) {
            return RF_ENOMEM;
        }
        plan->list = list;
        m->message_capacity = capacity;
    }
    *index = (uint32_t)m->message_count;
    plan->list[m->message_count++] = (struct rf_plan_message){
        .from = rank,
        .to = x->peer,
        .step = x->step,
        .offset = data_offset(&plan->options, rank, (enum rf__buffer)x->src, x->src_offset),
        .bytes = x->count * rf_type_size(plan->options.type)};
    return 0;
}

/* Whether instruction `i`, a RECV or FOLD, is one operand of a sum. In a reducing collective what
 * is received into scratch always is; what is received into OUT is, if it is joined with the rank's
 * own data at once. *offset: where that data is. */
static bool is_folded(const struct maker *m, int rank, size_t i, uint64_t *offset) {
    const struct rf_plan_options *o = &m->plan->options;
    const struct rf__instr *x = &m->schedule.instrs[i], *next = x + 1;
    bool joined = i + 1 < m->schedule.count && next->kind == RF__JOIN && next->dst == x->dst &&
                  next->dst_offset == x->dst_offset;

    *offset = data_offset(o, rank, (enum rf__buffer)x->dst, x->dst_offset);
    if (joined && *offset == UINT64_MAX) {
        *offset = data_offset(o, rank, (enum rf__buffer)next->src, next->src_offset);
    }
    return x->kind == RF__FOLD ||
           (is_reducing(o->coll) && (joined || x->dst == RF__ACC || x->dst == RF__TMP));
}

static int keep(struct maker *m, int rank, size_t i) {
    const struct rf__instr *x = &m->schedule.instrs[i];
    uint64_t bytes = x->count * rf_type_size(m->plan->options.type);
    struct rf__op op = {.step = x->step};
    int rc = 0;

    if (m->op_count == m->op_capacity && (rc = grow_ops(m)) != 0) {
        return rc;
    }
    switch ((enum rf__instr_kind)x->kind) {
    case RF__SEND:
        op.kind = RF__OP_SEND;
        rc = keep_message(m, rank, x, &op.message);
        break;
    case RF__RECV:
    case RF__FOLD:
        op.kind = RF__OP_RECV;
        op.work = x->kind == RF__FOLD ? bytes : 0;
        m->op_fold[m->op_count] = is_folded(m, rank, i, &m->op_offset[m->op_count]);
        break;
    case RF__JOIN:
        op.kind = RF__OP_WORK;
        op.work = bytes;
        break;
    case RF__COPY:
    case RF__DIVIDE:
        return 0;
    }
    m->op_peer[m->op_count] = (uint32_t)x->peer;
    m->ops[m->op_count++] = op;
    return rc;
}

static void drop_kept(struct maker *m) {
    rf__free(m->ops);
    rf__free(m->op_peer);
    rf__free(m->op_offset);
    rf__free(m->op_fold);
    rf__free(m->plan->list);
    m->ops = NULL;
    m->op_peer = NULL;
    m->op_offset = NULL;
    m->op_fold = NULL;
    m->plan->list = NULL;
    m->keep = false;
}

/* ---- counting ---- */

static int count_rank(struct maker *m, int rank) {
    struct rf_plan *plan = m->plan;
    const struct rf_plan_options *o = &plan->options;
    struct rf__schedule_params params = {.coll = o->coll,
                                         .algorithm = o->algorithm,
                                         .rank = rank,
                                         .size = o->size,
                                         .root = o->root,
                                         .count = o->count,
                                         .in_place = true};
    uint64_t steps = 0, messages = 0, sent = 0, received = 0, last = UINT64_MAX;
    int rc = rf__schedule_write(&m->schedule, &params);

    for (size_t i = 0; i < m->schedule.count && rc == 0; i++) {
        const struct rf__instr *x = &m->schedule.instrs[i];
        bool send = x->kind == RF__SEND, recv = x->kind == RF__RECV || x->kind == RF__FOLD;
        messages += send;
        sent += send ? x->count : 0;
        received += recv ? x->count : 0;
        if ((send || recv) && x->step != last) {
            steps++;
            last = x->step;
        }
        if (m->keep) {
            rc = keep(m, rank, i);
        }
    }
    sent *= rf_type_size(o->type);
    received *= rf_type_size(o->type);
    plan->messages[rank] = messages;
    plan->sent[rank] = sent;
    plan->received[rank] = received;
    struct rf_plan_totals *t = &plan->totals;
    t->messages += messages;
    t->bytes += sent;
    t->steps = steps > t->steps ? steps : t->steps;
    t->max_messages = messages > t->max_messages ? messages : t->max_messages;
    t->max_bytes_sent = sent > t->max_bytes_sent ? sent : t->max_bytes_sent;
    t->max_bytes_received = received > t->max_bytes_received ? received : t->max_bytes_received;
    if (m->keep && t->messages > RF_PLAN_MAX_MODELLED) {
        drop_kept(m);
    }
    return rc;
}

/* ---- matching ---- */

/* Tells each RECV its message: the k-th from a peer is the k-th that the peer sends here. Sends are
 * sorted by receiver, which leaves them sorted by sender and time within; `next` then walks through
 * each pair's. */
static int match(struct maker *m) {
    int size = m->plan->options.size;
    struct rf_plan_message *list = m->plan->list;
    size_t *begin = rf__alloc((size_t)size + 2, sizeof *begin);
    size_t *next = rf__alloc((size_t)size, sizeof *next);
    uint32_t *by_receiver = rf__alloc(m->message_count, sizeof *by_receiver);
    int rc = begin && next && by_receiver ? 0 : RF_ENOMEM;

    if (rc == 0) {
        for (size_t i = 0; i < m->message_count; i++) {
            begin[list[i].to + 2]++;
        }
        for (int r = 0; r < size; r++) {
            begin[r + 2] += begin[r + 1];
        }
        for (size_t i = 0; i < m->message_count; i++) {
            by_receiver[begin[list[i].to + 1]++] = (uint32_t)i;
        }
    }
    for (int r = 0; r < size && rc == 0; r++) {
        for (size_t i = begin[r + 1]; i-- > begin[r];) {
            next[list[by_receiver[i]].from] = i;
        }
        for (size_t i = m->first[r]; i < m->first[r + 1]; i++) {
            if (m->ops[i].kind == RF__OP_RECV) {
                uint32_t index = by_receiver[next[m->op_peer[i]]++];
                m->ops[i].message = index;
                list[index].fold = m->op_fold[i];
                if (list[index].offset == UINT64_MAX) {
                    list[index].offset = m->op_offset[i] == UINT64_MAX ? 0 : m->op_offset[i];
                }
            }
        }
    }
    rf__free(by_receiver);
    rf__free(next);
    rf__free(begin);
    return rc;
}

/* Steps in which nobody sends are not counted. */
static int renumber_steps(struct rf_plan *plan) {
    uint64_t last = 0;
    uint64_t *number = NULL;

    for (uint64_t i = 0; i < plan->totals.messages; i++) {
        last = plan->list[i].step > last ? plan->list[i].step : last;
    }
    number = rf__alloc(last + 1, sizeof *number);
    if (!number) {
        return RF_ENOMEM;
    }
    for (uint64_t i = 0; i < plan->totals.messages; i++) {
        number[plan->list[i].step] = 1;
    }
    for (uint64_t i = 0; i <= last; i++) {
        bool used = number[i];
        number[i] = plan->steps;
        plan->steps += used;
    }
    for (uint64_t i = 0; i < plan->totals.messages; i++) {
        plan->list[i].step = number[plan->list[i].step];
    }
    rf__free(number);
    return 0;
}

static int by_start(const void *a, const void *b) {
    const struct rf_plan_message *x = a, *y = b;

    if (x->start_s != y->start_s) {
        return x->start_s < y->start_s ? -1 : 1;
    }
    if (x->step != y->step) {
        return x->step < y->step ? -1 : 1;
    }
    if (x->from != y->from) {
        return x->from < y->from ? -1 : 1;
    }
    return x->to == y->to ? (x->offset > y->offset) - (x->offset < y->offset)
                          : (x->to > y->to) - (x->to < y->to);
}

static int model(struct maker *m) {
    struct rf_plan *plan = m->plan;
    int rc = match(m);

    rc = rc ? rc : renumber_steps(plan);
    rc = rc ? rc : rf__plan_model(plan, m->ops, m->first);
    if (rc == 0 && plan->totals.messages) {
        qsort(plan->list, plan->totals.messages, sizeof *plan->list, by_start);
    }
    return rc;
}

/* ---- the whole ---- */

/* Each of the three alone is a lower bound: information reaches at most twice as many ranks with
 * each latency; some rank has to send or receive this much; all folding is shared by the ranks at
 * best. */
static double lower_bound(const struct rf_plan_options *o) {
    double n = o->size, s = (double)o->count * (double)rf_type_size(o->type);
    double moved = 0, folded = 0, bound;

    switch (o->coll) {
    case RF_COLL_ALLREDUCE:
        moved = 2 * (n - 1) / n * s;
        folded = (n - 1) / n * s;
        break;
    case RF_COLL_REDUCE:
        moved = n > 1 ? s : 0;
        folded = (n - 1) / n * s;
        break;
    case RF_COLL_BROADCAST:
        moved = n > 1 ? s : 0;
        break;
    case RF_COLL_REDUCE_SCATTER:
        folded = (n - 1) * s;
        moved = (n - 1) * s;
        break;
    case RF_COLL_ALL_GATHER:
    case RF_COLL_GATHER:
    case RF_COLL_SCATTER:
    case RF_COLL_ALL_TO_ALL:
        moved = (n - 1) * s;
        break;
    case RF_COLL_BARRIER:
    case RF_COLL_SEND:
    case RF_COLL_RECV:
    case RF_COLL_COUNT:
        break;
    }
    bound = o->size > 1 ? ceil(log2(n)) * o->latency_s : 0;
    bound = fmax(bound, moved / o->bytes_per_s);
    return o->fold_bytes_per_s > 0 ? fmax(bound, folded / o->fold_bytes_per_s) : bound;
}

static int check_options(const struct rf_plan_options *o, struct rf_error *err) {
    size_t each = rf_type_size(o->type), n = o->size > 0 ? (size_t)o->size : 1;

    if (!rf__schedule_covers(o->coll, o->algorithm)) {
        return rf__fail(err, RF_EUNSUPPORTED, 0, "there is no %s by '%s'", rf_coll_name(o->coll),
                        rf_algorithm_name(o->algorithm));
    }
    if (o->size < 1) {
        return rf__fail(err, RF_EINVAL, 0, "size must be at least 1, not %d", o->size);
    }
    if (o->size > RF_PLAN_MAX_RANKS) {
        return rf__fail(err, RF_ELIMIT, 0, "%d ranks are more than a plan's maximum of %d", o->size,
                        (int)RF_PLAN_MAX_RANKS);
    }
    if (o->root < 0 || o->root >= o->size) {
        return rf__fail(err, RF_EINVAL, 0, "root %d is not one of %d ranks", o->root, o->size);
    }
    if (!each) {
        return rf__fail(err, RF_EINVAL, 0, "no such element type: %d", (int)o->type);
    }
    if (!(o->latency_s >= 0) || !(o->bytes_per_s > 0) || !(o->fold_bytes_per_s >= 0) ||
        !isfinite(o->latency_s) || !isfinite(o->bytes_per_s) || !isfinite(o->fold_bytes_per_s)) {
        return rf__fail(err, RF_EINVAL, 0, "latency and rates must be finite and positive");
    }
    if (o->count > (size_t)INT64_MAX / each / n / n / 2) {
        return rf__fail(err, RF_ELIMIT, 0,
                        "%zu elements on %d ranks are more bytes than can be counted", o->count,
                        o->size);
    }
    return 0;
}

void rf_plan_options_init(struct rf_plan_options *options) {
    *options = (struct rf_plan_options){.coll = RF_COLL_ALLREDUCE,
                                        .algorithm = RF_ALGORITHM_RING,
                                        .size = 4,
                                        .count = (size_t)16 << 20,
                                        .type = RF_F32,
                                        .latency_s = 20e-6,
                                        .bytes_per_s = 1.25e9,
                                        .fold_bytes_per_s = 5e9};
}

int rf_plan_create(const struct rf_plan_options *options, struct rf_plan **out,
                   struct rf_error *err) {
    struct maker m = {.keep = true};
    struct rf_plan *plan = NULL;
    int rc = check_options(options, err);

    *out = NULL;
    if (rc) {
        return rc;
    }
    size_t size = (size_t)options->size;
    plan = m.plan = rf__alloc(1, sizeof *plan);
    m.first = rf__alloc(size + 1, sizeof *m.first);
    rc = plan && m.first ? 0 : RF_ENOMEM;
    if (rc == 0) {
        plan->options = *options;
        plan->messages = rf__alloc(size, sizeof *plan->messages);
        plan->sent = rf__alloc(size, sizeof *plan->sent);
        plan->received = rf__alloc(size, sizeof *plan->received);
        rc = plan->messages && plan->sent && plan->received ? 0 : RF_ENOMEM;
    }
    for (int r = 0; r < options->size && rc == 0; r++) {
        m.first[r] = m.op_count;
        rc = count_rank(&m, r);
    }
    if (rc == 0) {
        m.first[size] = m.op_count;
        plan->totals.lower_bound_s = lower_bound(options);
        plan->totals.time_s = -1;
        rc = m.keep ? model(&m) : 0;
    }
    rf__schedule_free(&m.schedule);
    rf__free(m.first);
    rf__free(m.ops);
    rf__free(m.op_peer);
    rf__free(m.op_offset);
    rf__free(m.op_fold);
    if (rc) {
        rf_plan_destroy(plan);
        return rf__fail(err, rc, 0, "planning %s by %s for %d ranks: %s",
                        rf_coll_name(options->coll), rf_algorithm_name(options->algorithm),
                        options->size, rf_error_text(rc));
    }
    *out = plan;
    return 0;
}

void rf_plan_destroy(struct rf_plan *plan) {
    if (plan) {
        rf__free(plan->messages);
        rf__free(plan->sent);
        rf__free(plan->received);
        rf__free(plan->list);
        rf__free(plan);
    }
}

void rf_plan_get_totals(const struct rf_plan *plan, struct rf_plan_totals *out) {
    *out = plan->totals;
}

void rf_plan_rank(const struct rf_plan *plan, int rank, uint64_t *messages, uint64_t *sent,
                  uint64_t *received) {
    bool known = rank >= 0 && rank < plan->options.size;

    *messages = known ? plan->messages[rank] : 0;
    *sent = known ? plan->sent[rank] : 0;
    *received = known ? plan->received[rank] : 0;
}

bool rf_plan_get_message(const struct rf_plan *plan, uint64_t index, struct rf_plan_message *out) {
    if (!plan->list || index >= plan->totals.messages) {
        return false;
    }
    *out = plan->list[index];
    return true;
}
