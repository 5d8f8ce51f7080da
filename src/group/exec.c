/* Carries out a schedule over links. A step's SENDs progress each on their own; everything else
 * strictly in order. Bytes to be folded are folded in pieces while they are in cache: straight from
 * the link where it can show them in place, else through a small buffer. Each data frame is held
 * against the running call: a rank that calls something else is found here. */
#include "group/inner.h"

#include "base/assert.h"
#include "base/mem.h"
#include "coll/fold.h"

#include <string.h>

/* After warm-up the scratch is large enough and nothing is allocated. */
static int reserve(unsigned char **block, size_t *have, size_t want) {
    if (want <= *have) {
        return 0;
    }
    unsigned char *larger = rf__alloc_aligned(want);
    if (!larger) {
        return RF_ENOMEM;
    }
    rf__free(*block);
    *block = larger;
    *have = want;
    return 0;
}

static unsigned char *locate(struct rf__group *group, const struct rf_call *call, uint8_t buffer,
                             size_t offset) {
    size_t size = rf_type_size(call->type);
    switch ((enum rf__buffer)buffer) {
    case RF__IN: {
        union {
            const void *from;
            unsigned char *to;
        } in = {.from = call->send}; /* a schedule never writes IN unless it is OUT */
        return in.to + offset * size;
    }
    case RF__OUT:
        return (unsigned char *)call->recv + offset * size;
    case RF__ACC:
        return group->exec.acc + offset * rf_type_size(rf__acc_type(call->type));
    case RF__TMP:
        return group->exec.tmp + offset * size;
    }
    RF_ASSERT(!"a buffer");
    return NULL;
}

static bool is_in_place(const struct rf__group *group, const struct rf_call *call) {
    size_t part = call->count * rf_type_size(call->type);
    const unsigned char *send = call->send, *recv = call->recv;

    switch (call->coll) {
    case RF_COLL_ALLREDUCE:
    case RF_COLL_BROADCAST:
    case RF_COLL_REDUCE:
    case RF_COLL_ALL_TO_ALL:
        return send == recv;
    case RF_COLL_REDUCE_SCATTER:
        return recv == send + (size_t)group->rank * part;
    case RF_COLL_SCATTER:
        return group->rank == call->root && recv == send + (size_t)group->rank * part;
    case RF_COLL_ALL_GATHER:
        return send == recv + (size_t)group->rank * part;
    case RF_COLL_GATHER:
        return group->rank == call->root && send == recv + (size_t)group->rank * part;
    case RF_COLL_BARRIER:
    case RF_COLL_SEND:
    case RF_COLL_RECV:
    case RF_COLL_COUNT:
        break;
    }
    return true;
}

/* Finds the borders of the step that starts at exec->begin. */
static int enter_step(struct rf__exec *exec) {
    const struct rf__instr *instrs = exec->schedule.instrs;
    exec->end = exec->begin;
    exec->next = exec->begin;
    exec->send_count = 0;
    while (exec->end < exec->schedule.count && instrs[exec->end].step == instrs[exec->begin].step) {
        if (instrs[exec->end].kind == RF__SEND) {
            if (exec->send_count == exec->send_capacity) {
                size_t capacity = exec->send_capacity ? 2 * exec->send_capacity : 64;
                struct rf__pending_send *larger = rf__grow(exec->sends, capacity, sizeof *larger);
                if (!larger) {
                    return RF_ENOMEM;
                }
                exec->sends = larger;
                exec->send_capacity = capacity;
            }
            exec->sends[exec->send_count++] = (struct rf__pending_send){.instr = exec->end};
        }
        exec->end++;
    }
    return 0;
}

int rf__exec_begin(struct rf__group *group, struct rf__op *op) {
    struct rf__exec *exec = &group->exec;
    const struct rf_call *call = &op->params.call;
    struct rf__schedule_params params = {
        .coll = call->coll,
        .algorithm = op->algorithm,
        .rank = group->rank,
        .size = group->size,
        .root = call->root,
        .count = call->count,
        .in_place = is_in_place(group, call),
        .agree = !group->shared.usable, /* else all calls were compared on the board */
    };
    int rc = rf__schedule_write(&exec->schedule, &params);
    if (rc == 0 && !exec->piece) {
        exec->piece = rf__alloc_aligned(RF__PIECE_BYTES);
        rc = exec->piece ? 0 : RF_ENOMEM;
    }
    if (rc == 0) {
        rc = reserve(&exec->acc, &exec->acc_bytes,
                     exec->schedule.acc_count * rf_type_size(rf__acc_type(call->type)));
    }
    if (rc == 0) {
        rc = reserve(&exec->tmp, &exec->tmp_bytes,
                     exec->schedule.tmp_count * rf_type_size(call->type));
    }
    if (rc == 0) {
        exec->begin = 0;
        exec->recv = (struct rf__pending_recv){0};
        exec->is_moving = group->shared.usable;
        rc = enter_step(exec);
    }
    if (rc) {
        return rf__group_fail(group, rc, group->rank, "rank %d cannot prepare call %llu (%s)",
                              group->rank, (unsigned long long)op->seq, rf_error_text(rc));
    }
    exec->divisor = op->params.divisor      ? *op->params.divisor
                    : call->redop == RF_AVG ? (double)group->size
                                            : 1.0;
    return 0;
}

void rf__exec_free(struct rf__exec *exec) {
    rf__schedule_free(&exec->schedule);
    rf__free(exec->sends);
    rf__free(exec->acc);
    rf__free(exec->tmp);
    rf__free(exec->piece);
}

/* How many lanes the pieces of a message may take: both ends have to think the same of what is
 * large, else one of them may wait at a lane where nothing comes. */
static int lanes_for(const struct rf__group *group, const struct rf__transfer *transfer) {
    return transfer->bytes > RF__SPREAD_FROM ? rf__link_lanes(group, transfer->peer) : 1;
}

/* Several pieces for each lane, so that none has much more to do than the others at the end; whole
 * pages, and with them whole elements. */
static size_t piece_bytes(size_t total, int lanes) {
    size_t piece = total / (4 * (size_t)lanes) & ~(size_t)4095;

    if (lanes == 1) {
        return RF__FRAME_PAYLOAD;
    }
    piece = piece < RF__SPREAD_MOST ? piece : RF__SPREAD_MOST;
    return piece > RF__SPREAD_LEAST ? piece : RF__SPREAD_LEAST;
}

/* On one lane. 1 when there is nothing more to do on it, 0 when it is full, or an error. */
static int send_on(struct rf__group *group, const struct rf__op *op, const struct rf__transfer *to,
                   const unsigned char *from, struct rf__pending_send *send, int lane, size_t most,
                   bool *moved) {
    const struct rf_call *call = &op->params.call;
    struct rf__peer *peer = &group->peers[to->peer];
    const struct rf__tx *tx = &peer->lanes[lane].tx;

    for (;;) {
        int rc = rf__link_flush(group, to->peer, lane, moved);
        bool is_down = !peer->up || (rc < 0 && peer->gone);
        if (!is_down && (rc <= 0 || tx->owner != RF__TX_NONE)) {
            return rc < 0 ? rc : 0;
        }
        if (send->begun && send->framed == to->bytes && tx->owner != RF__TX_DATA) {
            return 1;
        }
        if (is_down) {
            return rf__group_fail(group, RF_ELOST, to->peer,
                                  "rank %d has left, and rank %d has still data for it", to->peer,
                                  group->rank);
        }
        if (!send->begun) {
            send->begun = peer->is_sending = true;
            send->number = peer->data_sent++;
        }
        size_t left = to->bytes - send->framed;
        size_t piece = left < most ? left : most;
        struct rf__frame frame = {
            .kind = RF__FRAME_DATA,
            .coll = call->coll,
            .type = call->type,
            .redop = call->redop,
            .algorithm = op->algorithm,
            .root = call->root,
            .bytes = (uint32_t)piece,
            .message = send->number,
            .seq = op->seq,
            .count = call->count,
            .offset = send->framed,
        };
        rf__link_load(group, to->peer, lane, RF__TX_DATA, &frame,
                      to->bytes ? from + send->framed : NULL);
        send->framed += piece;
    }
}

/* Whichever lane can take the next piece gets it, so a slow one does not hold up the others. */
int rf__exec_send(struct rf__group *group, const struct rf__op *op, const struct rf__transfer *to,
                  const unsigned char *from, struct rf__pending_send *send, bool *moved) {
    int lanes = lanes_for(group, to), result = 1;
    size_t most = piece_bytes(to->bytes, lanes);

    if (!send->begun && group->peers[to->peer].is_sending) {
        return 0;
    }
    for (int lane = 0; lane < lanes; lane++) {
        if (lane && !group->peers[to->peer].lanes[lane].heard) {
            continue;
        }
        int rc = send_on(group, op, to, from, send, lane, most, moved);
        if (rc < 0) {
            return rc;
        }
        result = result && rc;
    }
    if (result) {
        group->peers[to->peer].is_sending = false;
    }
    return result;
}

static int run_send(struct rf__group *group, struct rf__op *op, struct rf__pending_send *send,
                    bool *moved) {
    const struct rf__instr *instr = &group->exec.schedule.instrs[send->instr];
    struct rf__transfer to = {.peer = instr->peer,
                              .bytes = instr->count * rf_type_size(op->params.call.type)};
    const unsigned char *from =
        to.bytes ? locate(group, &op->params.call, instr->src, instr->src_offset) : NULL;

    return rf__exec_send(group, op, &to, from, send, moved);
}

void rf__exec_tell(const struct rf__group *group, struct rf__frame *frame) {
    const struct rf__op *op = group->calls.head;
    bool over_links = op && op->state == RF__OP_RUNNING &&
                      (!group->shared.usable || group->shared.phase == RF__SHARED_STREAMING);

    if (over_links) {
        frame->coll = op->params.call.coll;
        frame->type = op->params.call.type;
        frame->redop = op->params.call.redop;
        frame->algorithm = op->algorithm;
        frame->root = op->params.call.root;
        frame->count = op->params.call.count;
        frame->seq = op->seq;
    }
}

int rf__exec_check(struct rf__group *group, int peer_rank, int index) {
    struct rf__lane *lane = &group->peers[peer_rank].lanes[index];
    const struct rf__op *op = group->calls.head;
    const struct rf__frame *frame = &lane->frame;

    if (lane->checked || !op || op->state != RF__OP_RUNNING || frame->seq < op->seq) {
        return 0;
    }
    if (group->shared.usable && group->shared.phase != RF__SHARED_STREAMING) {
        return 0; /* the boards are compared first, and say which algorithm it is */
    }
    const struct rf_call *call = &op->params.call;
    char theirs[160], ours[160];
    if (frame->seq > op->seq) {
        return 0; /* it may have finished its part of this call; who waits for it will tell */
    }
    lane->checked = true;
    if (frame->coll == call->coll && frame->type == call->type && frame->redop == call->redop &&
        frame->count == call->count && frame->root == call->root &&
        frame->algorithm == op->algorithm) {
        return 0;
    }
    rf__call_text(theirs, sizeof theirs, frame->coll, frame->type, frame->redop, frame->count,
                  frame->root, frame->algorithm);
    rf__call_text(ours, sizeof ours, call->coll, call->type, call->redop, call->count, call->root,
                  op->algorithm);
    return rf__group_fail(group, RF_EMISMATCH, peer_rank,
                          "in call %llu rank %d called %s, but rank %d called %s",
                          (unsigned long long)op->seq, peer_rank, theirs, group->rank, ours);
}

/* Where received elements go. */
static void store(struct rf__group *group, struct rf__op *op, const struct rf__instr *instr,
                  size_t element, const void *bytes, size_t count) {
    const struct rf_call *call = &op->params.call;
    unsigned char *to = locate(group, call, instr->dst, instr->dst_offset + element);

    if (instr->kind == RF__RECV) {
        if (instr->dst == RF__ACC) {
            rf__widen(call->type, to, bytes, count);
        } else {
            memcpy(to, bytes, count * rf_type_size(call->type));
        }
    } else if (instr->dst == RF__ACC) {
        rf__fold_acc(call->type, call->redop, to, bytes, instr->left, count);
    } else if (instr->left) {
        rf__fold(call->type, call->redop, to, bytes, to, count);
    } else {
        rf__fold(call->type, call->redop, to, to, bytes, count);
    }
}

/* Bytes to be folded, or widened, pass through a buffer that stays in cache, unless the link shows
 * them in place. */
static ssize_t fold_some(struct rf__group *group, struct rf__op *op, const struct rf__instr *instr,
                         const struct rf__piece *piece) {
    struct rf__lane *lane = &group->peers[piece->peer].lanes[piece->lane];
    unsigned char *buffer = group->exec.piece;
    size_t size = rf_type_size(op->params.call.type), cut = lane->cut_bytes;

    if (cut == 0) {
        const void *view;
        ssize_t there = rf__link_peek(group, piece->peer, piece->lane, &view, RF__PIECE_BYTES);
        if (there >= (ssize_t)size) {
            size_t whole = (size_t)there / size;
            store(group, op, instr, piece->offset / size, view, whole);
            rf__link_consume(group, piece->peer, piece->lane, whole * size);
            return (ssize_t)(whole * size);
        }
        if (there == RF_ELOST) {
            return there;
        }
    }
    memcpy(buffer, lane->cut, cut);
    ssize_t got =
        rf__link_take(group, piece->peer, piece->lane, buffer + cut, RF__PIECE_BYTES - cut);
    if (got > 0) {
        size_t held = cut + (size_t)got, whole = held / size;
        store(group, op, instr, (piece->offset - cut) / size, buffer, whole);
        lane->cut_bytes = held - whole * size;
        memcpy(lane->cut, buffer + whole * size, lane->cut_bytes);
    }
    return got;
}

struct reception {
    struct rf__op *op;
    const struct rf__instr *instr;
};

static ssize_t take_some(struct rf__group *group, const struct rf__piece *piece, void *context) {
    const struct reception *to = context;
    const struct rf__instr *instr = to->instr;
    struct rf__exec *exec = &group->exec;
    ssize_t got;

    if (instr->kind == RF__RECV && instr->dst != RF__ACC) {
        unsigned char *out = locate(group, &to->op->params.call, instr->dst, instr->dst_offset);
        got = rf__link_take(group, piece->peer, piece->lane, out + piece->offset, piece->bytes);
    } else {
        got = fold_some(group, to->op, instr, piece);
    }
    if (got > 0 && !exec->is_moving) { /* before, it waited for others to begin */
        exec->is_moving = true;
        to->op->begun = group->now;
    }
    return got;
}

/* Whether a piece of the message stands at the head of a lane: 1, 0 when not, or an error. */
static int expect(struct rf__group *group, const struct rf__op *op, const struct rf__transfer *from,
                  size_t received, int index, bool *moved) {
    struct rf__peer *peer = &group->peers[from->peer];
    const struct rf__lane *lane = &peer->lanes[index];
    const struct rf__frame *frame = &lane->frame;
    int rc = rf__link_receive(group, from->peer, index, moved);

    if (rc < 0 && !rf__group_is_linked(group)) {
        return rc;
    }
    if (rc <= 0 || frame->kind != RF__FRAME_DATA) {
        return 0; /* nothing yet; of a broken link the event tells */
    }
    rc = rf__exec_check(group, from->peer, index);
    if (rc) {
        return rc;
    }
    uint32_t ahead = frame->message - peer->data_received;
    bool is_spread = from->bytes > RF__SPREAD_FROM && group->options.net->most_lanes > 1;
    if (ahead && ahead <= INT32_MAX && is_spread) {
        return 0; /* of a later message: what we wait for is on other lanes */
    }
    if (frame->seq > op->seq) {
        return rf__group_fail(
            group, RF_EMISMATCH, from->peer,
            "rank %d has gone on to call %llu (%s), but rank %d waits for it in call %llu (%s)",
            from->peer, (unsigned long long)frame->seq, rf_coll_name(frame->coll), group->rank,
            (unsigned long long)op->seq, rf_coll_name(op->params.call.coll));
    }
    size_t size = rf_type_size(op->params.call.type);
    if (ahead || frame->seq < op->seq || frame->bytes > from->bytes ||
        frame->offset > from->bytes - frame->bytes ||
        ((frame->offset | frame->bytes) & (size - 1)) ||
        frame->bytes - lane->taken > from->bytes - received) {
        return rf__group_fail(group, RF_EPROTO, from->peer,
                              "rank %d sent a piece of call %llu that does not fit", from->peer,
                              (unsigned long long)frame->seq);
    }
    return 1;
}

/* Whether a lane has nothing more of the message that is waited for, now that its sender is gone: a
 * later one stands in it, or nothing. */
static bool is_spent(const struct rf__peer *peer, int index) {
    const struct rf__lane *lane = &peer->lanes[index];

    if (!peer->up) {
        return true;
    }
    return lane->framed ? lane->frame.kind == RF__FRAME_DATA : index == 0 || lane->over;
}

/* Pieces that cover a message exactly have borders that cancel but for the first and the last. */
static uint64_t border(uint64_t at) {
    at *= 0x9e3779b97f4a7c15;
    return (at ^ at >> 29) * 0xbf58476d1ce4e5b9;
}

/* Counts what was taken of a message: 1 when it is complete, 0, or an error. */
static int count_in(struct rf__group *group, const struct rf__op *op,
                    const struct rf__transfer *from, struct rf__pending_recv *recv,
                    const struct rf__piece *piece, size_t got) {
    struct rf__peer *peer = &group->peers[piece->peer];
    const struct rf__lane *lane = &peer->lanes[piece->lane];

    recv->received += got;
    if (!lane->framed) {
        recv->borders +=
            border(lane->frame.offset + lane->frame.bytes) - border(lane->frame.offset);
    }
    if (recv->received < from->bytes || (got == 0 && lane->framed)) {
        return 0;
    }
    if (recv->borders != border(from->bytes) - border(0)) {
        return rf__group_fail(group, RF_EPROTO, from->peer,
                              "rank %d sent pieces of call %llu that do not make a whole",
                              from->peer, (unsigned long long)op->seq);
    }
    peer->data_received++;
    *recv = (struct rf__pending_recv){0};
    return 1;
}

int rf__exec_receive(struct rf__group *group, const struct rf__op *op,
                     const struct rf__transfer *from, struct rf__pending_recv *recv, bool *moved,
                     rf__take_fn *take, void *context) {
    struct rf__peer *peer = &group->peers[from->peer];
    int lanes = lanes_for(group, from);
    bool got_some;

    do {
        int spent = 0;
        got_some = false;
        for (int lane = 0; lane < lanes; lane++) {
            int rc = expect(group, op, from, recv->received, lane, moved);
            if (rc < 0) {
                return rc;
            }
            if (rc == 0) {
                spent += is_spent(peer, lane);
                continue;
            }
            const struct rf__lane *at = &peer->lanes[lane];
            struct rf__piece piece = {.peer = from->peer,
                                      .lane = lane,
                                      .offset = at->frame.offset + at->taken,
                                      .bytes = at->frame.bytes - at->taken};
            ssize_t got = piece.bytes ? take(group, &piece, context)
                                      : rf__link_take(group, from->peer, lane, NULL, 0);
            if (got < 0) {
                rf__link_down(group, from->peer);
                got_some = true; /* once more, to say so */
                break;
            }
            rc = count_in(group, op, from, recv, &piece, (size_t)got);
            if (rc) {
                *moved = true;
                return rc;
            }
            got_some = got_some || got > 0;
        }
        if (peer->gone && spent == lanes) {
            return rf__group_fail(group, RF_ELOST, from->peer,
                                  "rank %d has left, and rank %d waits for its part of call %llu",
                                  from->peer, group->rank, (unsigned long long)op->seq);
        }
        *moved = *moved || got_some;
    } while (got_some);
    return 0;
}

/* 1 when the message is complete. */
static int run_receive(struct rf__group *group, struct rf__op *op, const struct rf__instr *instr,
                       bool *moved) {
    struct rf__transfer from = {.peer = instr->peer,
                                .bytes = instr->count * rf_type_size(op->params.call.type)};
    struct reception to = {.op = op, .instr = instr};

    return rf__exec_receive(group, op, &from, &group->exec.recv, moved, take_some, &to);
}

static void run_local(struct rf__group *group, struct rf__op *op, const struct rf__instr *instr) {
    const struct rf_call *call = &op->params.call;
    unsigned char *to = locate(group, call, instr->dst, instr->dst_offset);
    enum rf_type acc_type = rf__acc_type(call->type);
    bool is_acc = instr->dst == RF__ACC;

    if (instr->count == 0) {
        return;
    }
    if (instr->kind == RF__DIVIDE) {
        rf__divide(is_acc ? acc_type : call->type, to, group->exec.divisor, instr->count);
        return;
    }
    const unsigned char *from = locate(group, call, instr->src, instr->src_offset);
    bool from_acc = instr->src == RF__ACC;
    if (instr->kind == RF__COPY) {
        if (is_acc == from_acc) {
            memmove(to, from, instr->count * rf_type_size(is_acc ? acc_type : call->type));
        } else if (is_acc) {
            rf__widen(call->type, to, from, instr->count);
        } else {
            rf__narrow(call->type, to, from, instr->count);
        }
        return;
    }
    RF_ASSERT(instr->kind == RF__JOIN && (!from_acc || is_acc));
    if (is_acc && !from_acc) {
        rf__fold_acc(call->type, call->redop, to, from, instr->left, instr->count);
    } else {
        rf__fold(is_acc ? acc_type : call->type, call->redop, to, instr->left ? from : to,
                 instr->left ? to : from, instr->count);
    }
}

static int run_ordered(struct rf__group *group, struct rf__op *op, bool *moved) {
    struct rf__exec *exec = &group->exec;

    while (exec->next < exec->end) {
        const struct rf__instr *instr = &exec->schedule.instrs[exec->next];
        if (instr->kind == RF__RECV || instr->kind == RF__FOLD) {
            int rc = run_receive(group, op, instr, moved);
            if (rc <= 0) {
                return rc;
            }
        } else if (instr->kind != RF__SEND) {
            run_local(group, op, instr);
        }
        exec->next++;
    }
    return 1;
}

int rf__exec_run(struct rf__group *group, struct rf__op *op, bool *moved) {
    struct rf__exec *exec = &group->exec;

    while (exec->begin < exec->schedule.count) {
        size_t left = 0;
        for (size_t i = 0; i < exec->send_count; i++) {
            int rc = run_send(group, op, &exec->sends[i], moved);
            if (rc < 0) {
                /* the link is down; its event, or who reads from it, knows why */
                return rc == RF_ELOST && rf__group_is_linked(group) ? 0 : rc;
            }
            if (rc == 0) {
                exec->sends[left++] = exec->sends[i];
            }
        }
        exec->send_count = left;
        int rc = run_ordered(group, op, moved);
        if (rc < 0) {
            return rc;
        }
        if (left || rc == 0) {
            return 0;
        }
        exec->begin = exec->end;
        if (exec->begin < exec->schedule.count && enter_step(exec)) {
            return rf__group_fail(group, RF_ENOMEM, group->rank, "rank %d has no memory for a step",
                                  group->rank);
        }
    }
    return 1;
}
