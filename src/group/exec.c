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
    exec->received = 0;
    exec->piece_held = 0;
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

int rf__exec_send(struct rf__group *group, const struct rf__op *op, const struct rf__transfer *to,
                  const unsigned char *from, struct rf__pending_send *send, bool *moved) {
    const struct rf_call *call = &op->params.call;
    struct rf__tx *tx = &group->peers[to->peer].tx;

    for (;;) {
        int rc = rf__link_flush(group, to->peer, moved);
        const struct rf__peer *peer = &group->peers[to->peer];
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
        size_t left = to->bytes - send->framed;
        size_t piece = left < RF__FRAME_PAYLOAD ? left : RF__FRAME_PAYLOAD;
        struct rf__frame frame = {
            .kind = RF__FRAME_DATA,
            .coll = call->coll,
            .type = call->type,
            .redop = call->redop,
            .algorithm = op->algorithm,
            .root = call->root,
            .bytes = (uint32_t)piece,
            .step = to->step,
            .seq = op->seq,
            .count = call->count,
            .offset = send->framed,
        };
        rf__link_load(group, to->peer, RF__TX_DATA, &frame, to->bytes ? from + send->framed : NULL);
        send->begun = true;
        send->framed += piece;
    }
}

static int run_send(struct rf__group *group, struct rf__op *op, struct rf__pending_send *send,
                    bool *moved) {
    const struct rf__instr *instr = &group->exec.schedule.instrs[send->instr];
    struct rf__transfer to = {.peer = instr->peer,
                              .step = instr->step,
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

int rf__exec_check(struct rf__group *group, int peer_rank) {
    struct rf__peer *peer = &group->peers[peer_rank];
    const struct rf__op *op = group->calls.head;
    const struct rf__frame *frame = &peer->frame;

    if (peer->checked || !op || op->state != RF__OP_RUNNING || frame->seq < op->seq) {
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
    peer->checked = true;
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

/* One helping of payload from the frame at the head. Bytes consumed, 0 when there are none now. */
static ssize_t receive_some(struct rf__group *group, struct rf__op *op,
                            const struct rf__instr *instr) {
    struct rf__exec *exec = &group->exec;
    const struct rf_call *call = &op->params.call;
    size_t size = rf_type_size(call->type), total = instr->count * size;

    if (instr->kind == RF__RECV && instr->dst != RF__ACC) {
        unsigned char *to = locate(group, call, instr->dst, instr->dst_offset) + exec->received;
        return rf__link_take(group, instr->peer, to, total - exec->received);
    }
    if (exec->piece_held == 0) {
        const void *view;
        ssize_t there = rf__link_peek(group, instr->peer, &view, RF__PIECE_BYTES);
        if (there >= (ssize_t)size) {
            size_t whole = (size_t)there / size;
            store(group, op, instr, exec->received / size, view, whole);
            rf__link_consume(group, instr->peer, whole * size);
            return (ssize_t)(whole * size);
        }
        if (there == RF_ELOST) {
            return there;
        }
    }
    ssize_t got = rf__link_take(group, instr->peer, exec->piece + exec->piece_held,
                                RF__PIECE_BYTES - exec->piece_held);
    if (got > 0) {
        size_t held = exec->piece_held + (size_t)got, whole = held / size;
        size_t first = (exec->received - exec->piece_held) / size;
        store(group, op, instr, first, exec->piece, whole);
        exec->piece_held = held - whole * size;
        memmove(exec->piece, exec->piece + whole * size, exec->piece_held);
    }
    return got;
}

int rf__exec_expect(struct rf__group *group, const struct rf__op *op,
                    const struct rf__transfer *from, size_t received, bool *moved) {
    struct rf__peer *peer = &group->peers[from->peer];
    int rc = rf__link_receive(group, from->peer, moved);

    if (rc < 0 && !rf__group_is_linked(group)) {
        return rc;
    }
    if (rc <= 0 && peer->gone) {
        return rf__group_fail(group, RF_ELOST, from->peer,
                              "rank %d has left, and rank %d waits for its part of call %llu",
                              from->peer, group->rank, (unsigned long long)op->seq);
    }
    if (rc <= 0 || peer->frame.kind != RF__FRAME_DATA) {
        return 0; /* nothing yet; of a broken link the event tells */
    }
    rc = rf__exec_check(group, from->peer);
    if (rc) {
        return rc;
    }
    if (peer->frame.seq > op->seq) {
        return rf__group_fail(
            group, RF_EMISMATCH, from->peer,
            "rank %d has gone on to call %llu (%s), but rank %d waits for it in call %llu (%s)",
            from->peer, (unsigned long long)peer->frame.seq, rf_coll_name(peer->frame.coll),
            group->rank, (unsigned long long)op->seq, rf_coll_name(op->params.call.coll));
    }
    if (peer->frame.seq < op->seq || peer->frame.bytes > from->bytes ||
        peer->frame.offset + peer->taken != received ||
        peer->frame.bytes - peer->taken > from->bytes - received) {
        return rf__group_fail(group, RF_EPROTO, from->peer,
                              "rank %d sent a piece of call %llu that does not fit", from->peer,
                              (unsigned long long)peer->frame.seq);
    }
    return 1;
}

/* 1 when the message is complete. */
static int run_receive(struct rf__group *group, struct rf__op *op, const struct rf__instr *instr,
                       bool *moved) {
    struct rf__exec *exec = &group->exec;
    struct rf__transfer from = {.peer = instr->peer,
                                .step = instr->step,
                                .bytes = instr->count * rf_type_size(op->params.call.type)};

    for (;;) {
        int rc = rf__exec_expect(group, op, &from, exec->received, moved);
        if (rc <= 0) {
            return rc;
        }
        if (from.bytes == 0) {
            (void)rf__link_take(group, instr->peer, NULL, 0);
            *moved = true;
            return 1;
        }
        ssize_t got = receive_some(group, op, instr);
        if (got < 0) {
            rf__link_down(group, instr->peer);
            continue;
        }
        if (got == 0) {
            return 0;
        }
        *moved = true;
        if (!exec->is_moving) { /* before, it waited for others to begin */
            exec->is_moving = true;
            op->begun = group->now;
        }
        exec->received += (size_t)got;
        if (exec->received == from.bytes) {
            return 1;
        }
    }
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
            exec->received = 0;
            exec->piece_held = 0;
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
