/* send and recv, on lane 0. The sender offers a message, the receiver takes it once its recv is
 * there, then the bytes flow: nothing has to be buffered, and both sides learn of a mismatch before
 * a byte has moved. One message at a time in each direction of a pair; later ones wait in line. */
#include "group/inner.h"

#include "base/assert.h"

static void start_send(struct rf__group *group, struct rf__peer *peer) {
    struct rf__op *op = peer->sends.head;
    if (op && op->state == RF__OP_QUEUED) {
        op->state = RF__OP_RUNNING;
        op->begun = group->now;
        peer->offered = true;
        peer->may_send = false;
        peer->message_sent = 0;
        peer->sent_seq++;
        peer->wanted |= RF__WANT_OFFER;
    }
}

static int run_send(struct rf__group *group, int peer_rank, bool *moved) {
    struct rf__peer *peer = &group->peers[peer_rank];

    start_send(group, peer);
    struct rf__op *op = peer->sends.head;
    if (!op || !peer->may_send) {
        return 0;
    }
    size_t total = op->params.call.count * rf_type_size(op->params.call.type);
    for (;;) {
        int rc = rf__link_flush(group, peer_rank, 0, moved);
        if (rc < 0 && peer->gone) {
            return rf__group_fail(group, RF_ELOST, peer_rank,
                                  "rank %d has left, and rank %d has a message for it", peer_rank,
                                  group->rank);
        }
        if (rc <= 0 || peer->lanes->tx.owner != RF__TX_NONE) {
            return 0; /* a link that is down says so by its event */
        }
        if (peer->message_sent == total) {
            break;
        }
        size_t piece = total - peer->message_sent;
        piece = piece < RF__FRAME_PAYLOAD ? piece : RF__FRAME_PAYLOAD;
        struct rf__frame frame = {
            .kind = RF__FRAME_MESSAGE,
            .coll = RF_COLL_SEND,
            .type = op->params.call.type,
            .count = op->params.call.count,
            .seq = peer->sent_seq,
            .bytes = (uint32_t)piece,
            .offset = peer->message_sent,
        };
        rf__link_load(group, peer_rank, 0, RF__TX_MESSAGE, &frame,
                      (const unsigned char *)op->params.call.send + peer->message_sent);
        peer->message_sent += piece;
    }
    peer->offered = peer->may_send = false;
    rf__op_finish(group, rf__queue_pop(&peer->sends), 0);
    *moved = true;
    return 0;
}

static int start_recv(struct rf__group *group, int peer_rank) {
    struct rf__peer *peer = &group->peers[peer_rank];
    struct rf__op *op = peer->recvs.head;

    if (!op || !peer->has_offer || peer->taking) {
        return 0;
    }
    const struct rf_call *call = &op->params.call;
    if (peer->offer.type != call->type || peer->offer.count != call->count) {
        return rf__group_fail(
            group, RF_EMISMATCH, peer_rank, "rank %d sends %llu %s, but rank %d receives %llu %s",
            peer_rank, (unsigned long long)peer->offer.count, rf_type_name(peer->offer.type),
            group->rank, (unsigned long long)call->count, rf_type_name(call->type));
    }
    op->state = RF__OP_RUNNING;
    op->begun = group->now;
    peer->received_seq = peer->offer.seq;
    peer->message_received = 0;
    peer->has_offer = false;
    peer->taking = true;
    peer->wanted |= RF__WANT_TAKE;
    return 0;
}

static int run_recv(struct rf__group *group, int peer_rank, bool *moved) {
    struct rf__peer *peer = &group->peers[peer_rank];
    const struct rf__lane *lane = peer->lanes;
    int rc = start_recv(group, peer_rank);
    struct rf__op *op = peer->recvs.head;

    if (rc || !op || !peer->taking) {
        return rc;
    }
    const struct rf_call *call = &op->params.call;
    size_t total = call->count * rf_type_size(call->type);
    while (peer->message_received < total) {
        rc = rf__link_receive(group, peer_rank, 0, moved);
        if (rc <= 0 || lane->frame.kind != RF__FRAME_MESSAGE) {
            return rc < 0 && !rf__group_is_linked(group) ? rc : 0;
        }
        if (lane->frame.seq != peer->received_seq ||
            lane->frame.offset + lane->taken != peer->message_received ||
            lane->frame.bytes - lane->taken > total - peer->message_received) {
            return rf__group_fail(group, RF_EPROTO, peer_rank,
                                  "rank %d sent a piece of a message that does not fit", peer_rank);
        }
        ssize_t got =
            rf__link_take(group, peer_rank, 0, (unsigned char *)call->recv + peer->message_received,
                          total - peer->message_received);
        if (got <= 0) {
            return 0;
        }
        *moved = true;
        peer->message_received += (size_t)got;
    }
    if (peer->wanted & RF__WANT_TAKE) {
        return 0; /* an empty message: the sender still has to be told */
    }
    peer->taking = false;
    rf__op_finish(group, rf__queue_pop(&peer->recvs), 0);
    *moved = true;
    return 0;
}

bool rf__message_is_whole(const struct rf__peer *peer) {
    const struct rf_call *call = &peer->recvs.head->params.call;
    return !(peer->wanted & RF__WANT_TAKE) &&
           peer->message_received == call->count * rf_type_size(call->type);
}

int rf__message_step(struct rf__group *group, int peer_rank, bool *moved) {
    struct rf__peer *peer = &group->peers[peer_rank];

    if (!peer->sends.head && !peer->recvs.head) {
        return 0;
    }
    if (peer->gone && !peer->lanes->framed) {
        return rf__group_fail(group, RF_ELOST, peer_rank,
                              "rank %d has left, and rank %d has a message with it", peer_rank,
                              group->rank);
    }
    int rc = run_send(group, peer_rank, moved);
    return rc ? rc : run_recv(group, peer_rank, moved);
}
