/* Frames on the lanes of a link. Outgoing: one frame at a time on each, control frames on lane 0,
 * before data when it is free. Incoming: headers are read and checked, control frames are dealt
 * with here; a data frame stays at the head, its payload in the link, until whoever it is for takes
 * it: that is the flow control. */
#include "group/inner.h"

#include "base/assert.h"
#include "base/status.h"

#include <string.h>

enum { RATED_BYTES = 64 << 10 };

static int64_t time_of(const struct rf__group *group) {
    struct rf__clock *clock = group->options.clock;
    return clock ? clock->now(clock) : group->now;
}

static void load(struct rf__group *group, struct rf__tx *tx, enum rf__tx_owner owner,
                 struct rf__frame frame, const void *data) {
    frame.generation = group->generation;
    frame.job = group->job;
    rf__frame_encode(&frame, tx->head);
    tx->owner = owner;
    tx->data = data;
    tx->bytes = frame.bytes;
    tx->sent = 0;
}

void rf__link_load(struct rf__group *group, int peer, int lane, enum rf__tx_owner owner,
                   const struct rf__frame *frame, const void *data) {
    struct rf__tx *tx = &group->peers[peer].lanes[lane].tx;
    RF_ASSERT(tx->owner == RF__TX_NONE);
    load(group, tx, owner, *frame, data);
}

/* Takes the most urgent wanted control frame; false when there is none. */
static bool load_control(struct rf__group *group, struct rf__peer *peer) {
    struct rf__frame frame = {.kind = RF__FRAME_BEAT};
    const void *payload = NULL;
    unsigned bit = peer->wanted & (~peer->wanted + 1);

    switch (bit) {
    case 0:
        return false;
    case RF__WANT_REVOKE:
        frame.kind = RF__FRAME_REVOKE;
        frame.bytes = (uint32_t)group->cause_length;
        payload = group->cause_bytes;
        break;
    case RF__WANT_TAKE:
        frame.kind = RF__FRAME_TAKE;
        frame.seq = peer->received_seq;
        break;
    case RF__WANT_OFFER: {
        const struct rf_call *call = &peer->sends.head->params.call;
        frame.kind = RF__FRAME_OFFER;
        frame.coll = RF_COLL_SEND;
        frame.type = call->type;
        frame.count = call->count;
        frame.seq = peer->sent_seq;
        break;
    }
    case RF__WANT_BYE:
        frame.kind = RF__FRAME_BYE;
        break;
    default: /* RF__WANT_BEAT */
        rf__exec_tell(group, &frame);
        break;
    }
    peer->wanted &= ~bit;
    load(group, &peer->lanes->tx, RF__TX_CONTROL, frame, payload);
    return true;
}

/* The first frame on a lane that is not the first. */
static bool load_greeting(struct rf__group *group, struct rf__lane *lane) {
    struct rf__frame frame = {.kind = RF__FRAME_BEAT};
    bool is_due = !lane->greeted;

    if (is_due) {
        lane->greeted = true;
        load(group, &lane->tx, RF__TX_CONTROL, frame, NULL);
    }
    return is_due;
}

int rf__link_flush(struct rf__group *group, int peer_rank, int lane, bool *moved) {
    struct rf__peer *peer = &group->peers[peer_rank];
    struct rf__tx *tx = &peer->lanes[lane].tx;
    struct rf__net *net = group->options.net;

    for (;;) {
        if (!peer->up || tx->owner == RF__TX_STUCK) {
            return 1;
        }
        if (tx->owner == RF__TX_NONE &&
            !(lane ? load_greeting(group, &peer->lanes[lane]) : load_control(group, peer))) {
            return 1;
        }
        struct iovec parts[2];
        int count = 0;
        size_t data_sent = tx->sent > RF__FRAME_BYTES ? tx->sent - RF__FRAME_BYTES : 0;
        if (tx->sent < RF__FRAME_BYTES) {
            parts[count++] = (struct iovec){tx->head + tx->sent, RF__FRAME_BYTES - tx->sent};
        }
        if (tx->bytes > data_sent) {
            /* writev's iovec is not const, but it is only read */
            union {
                const unsigned char *from;
                void *to;
            } data = {.from = tx->data + data_sent};
            parts[count++] = (struct iovec){data.to, tx->bytes - data_sent};
        }
        ssize_t written = net->ops->write(net, peer_rank, lane, parts, count);
        if (written <= 0) {
            return written < 0 ? RF_ELOST : 0;
        }
        *moved = true;
        peer->told = group->now;
        tx->sent += (size_t)written;
        if (tx->sent == RF__FRAME_BYTES + tx->bytes) {
            tx->owner = RF__TX_NONE;
        }
    }
}

/* A whole control frame with its payload in peer->control. */
static int handle_control(struct rf__group *group, int peer_rank, int lane) {
    struct rf__peer *peer = &group->peers[peer_rank];
    const struct rf__frame *frame = &peer->lanes[lane].frame;
    struct rf_error cause;

    switch (frame->kind) {
    case RF__FRAME_BEAT:
        return lane ? 0 : rf__exec_check(group, peer_rank, lane);
    case RF__FRAME_BYE:
        peer->gone = true;
        if (group->elastic.member) {
            (void)rf__fail(&cause, RF_ELOST, 0, "worker %d left",
                           rf__group_id_of(group, peer_rank));
            cause.rank = peer_rank;
            rf__elastic_doubt(group, peer_rank, RF__DOUBT_LEFT, &cause);
            return group->cause.code;
        }
        return 0;
    case RF__FRAME_REVOKE:
        if (rf__cause_decode(peer->control, frame->bytes, &cause)) {
            return rf__group_fail(group, RF_EPROTO, peer_rank,
                                  "rank %d sent a cause that cannot be read", peer_rank);
        }
        rf__group_revoke(group, &cause);
        return cause.code;
    case RF__FRAME_OFFER:
        if (peer->has_offer || (peer->taking && !rf__message_is_whole(peer))) {
            return rf__group_fail(group, RF_EPROTO, peer_rank,
                                  "rank %d offered two messages at once", peer_rank);
        }
        peer->has_offer = true;
        peer->offer = *frame;
        return 0;
    case RF__FRAME_TAKE:
        if (!peer->offered || frame->seq != peer->sent_seq) {
            return rf__group_fail(group, RF_EPROTO, peer_rank,
                                  "rank %d took a message that was not offered", peer_rank);
        }
        peer->may_send = true;
        return 0;
    case RF__FRAME_DATA:
    case RF__FRAME_MESSAGE:
    case RF__FRAME_KINDS:
        break;
    }
    RF_ASSERT(!"a control frame");
    return RF_EINTERNAL;
}

/* Reads into `out` and counts; 0 nothing now, RF_ELOST at the end of the lane. */
static ssize_t read_some(struct rf__group *group, int peer_rank, int index, void *out,
                         size_t bytes) {
    struct rf__net *net = group->options.net;
    struct rf__lane *lane = &group->peers[peer_rank].lanes[index];
    ssize_t got = net->ops->read(net, peer_rank, index, out, bytes);

    lane->starved = got <= 0;
    lane->over = got < 0;
    if (got > 0) {
        group->peers[peer_rank].heard = group->now;
    }
    return got;
}

/* Reads up to the end of the next header: 1 when a frame stands at the head, 0, or an error. */
static int receive_head(struct rf__group *group, int peer_rank, int index, bool *moved) {
    struct rf__peer *peer = &group->peers[peer_rank];
    struct rf__lane *lane = &peer->lanes[index];

    while (!lane->framed) {
        ssize_t got = read_some(group, peer_rank, index, lane->head + lane->head_bytes,
                                RF__FRAME_BYTES - lane->head_bytes);
        if (got <= 0) {
            return (int)got;
        }
        *moved = true;
        lane->head_bytes += (size_t)got;
        if (lane->head_bytes < RF__FRAME_BYTES) {
            continue;
        }
        lane->head_bytes = 0;
        if (rf__frame_decode(lane->head, &lane->frame)) {
            return rf__group_fail(group, RF_EPROTO, peer_rank,
                                  "rank %d sent a frame that cannot be read", peer_rank);
        }
        lane->heard = true;
        if (index > 0 && lane->frame.kind != RF__FRAME_DATA && lane->frame.kind != RF__FRAME_BEAT) {
            return rf__group_fail(group, RF_EPROTO, peer_rank,
                                  "rank %d sent a frame of kind %d on stream %d", peer_rank,
                                  (int)lane->frame.kind, index);
        }
        lane->framed = true;
        lane->checked = false;
        lane->taken = lane->cut_bytes = 0;
        if (lane->frame.bytes >= RATED_BYTES && peer->arriving++ == 0) {
            peer->arriving_since = time_of(group);
        }
    }
    return 1;
}

/* How long large frames take from the first header to the last byte says how fast the link is:
 * their sender had all of each when it began. */
static void end_frame(struct rf__group *group, struct rf__peer *peer, struct rf__lane *lane) {
    lane->framed = false;
    if (lane->frame.bytes >= RATED_BYTES) {
        peer->arrived_bytes += lane->frame.bytes;
        if (--peer->arriving == 0) {
            peer->arriving_ns += time_of(group) - peer->arriving_since + 1;
        }
    }
}

int rf__link_receive(struct rf__group *group, int peer_rank, int index, bool *moved) {
    struct rf__peer *peer = &group->peers[peer_rank];
    struct rf__lane *lane = &peer->lanes[index];

    if (!peer->up) {
        return 0;
    }
    for (;;) {
        int head = lane->framed ? 1 : receive_head(group, peer_rank, index, moved);
        if (head <= 0) {
            return head;
        }
        bool is_ours = lane->frame.generation == group->generation && lane->frame.job == group->job;
        bool is_data = lane->frame.kind == RF__FRAME_DATA || lane->frame.kind == RF__FRAME_MESSAGE;
        if (is_ours && is_data) {
            return 1;
        }
        /* control, or of another generation: taken whole, the latter dropped */
        unsigned char dropped[RF__CONTROL_PAYLOAD];
        while (lane->taken < lane->frame.bytes) {
            size_t left = lane->frame.bytes - lane->taken;
            size_t room = is_ours ? sizeof peer->control - lane->taken : sizeof dropped;
            ssize_t got =
                read_some(group, peer_rank, index, is_ours ? peer->control + lane->taken : dropped,
                          left < room ? left : room);
            if (got <= 0) {
                return (int)got;
            }
            *moved = true;
            lane->taken += (size_t)got;
        }
        end_frame(group, peer, lane);
        if (is_ours) {
            int rc = handle_control(group, peer_rank, index);
            if (rc) {
                return rc;
            }
        }
    }
}

ssize_t rf__link_take(struct rf__group *group, int peer_rank, int index, void *out, size_t bytes) {
    struct rf__peer *peer = &group->peers[peer_rank];
    struct rf__lane *lane = &peer->lanes[index];
    size_t left = lane->frame.bytes - lane->taken;
    ssize_t got = 0;

    if (left && bytes) {
        got = read_some(group, peer_rank, index, out, left < bytes ? left : bytes);
        if (got < 0) {
            return got;
        }
        lane->taken += (size_t)got;
    }
    if (lane->taken == lane->frame.bytes) {
        end_frame(group, peer, lane);
    }
    return got;
}

ssize_t rf__link_peek(struct rf__group *group, int peer_rank, int index, const void **view,
                      size_t bytes) {
    const struct rf__lane *lane = &group->peers[peer_rank].lanes[index];
    struct rf__net *net = group->options.net;
    size_t left = lane->frame.bytes - lane->taken;

    if (!net->ops->peek) {
        return RF_EUNSUPPORTED;
    }
    return net->ops->peek(net, peer_rank, index, view, left < bytes ? left : bytes);
}

void rf__link_consume(struct rf__group *group, int peer_rank, int index, size_t bytes) {
    struct rf__peer *peer = &group->peers[peer_rank];
    struct rf__lane *lane = &peer->lanes[index];
    struct rf__net *net = group->options.net;

    net->ops->consume(net, peer_rank, index, bytes);
    peer->heard = group->now;
    lane->starved = false;
    lane->taken += bytes;
    if (lane->taken == lane->frame.bytes) {
        end_frame(group, peer, lane);
    }
}

bool rf__link_is_over(const struct rf__group *group, int peer_rank) {
    bool is_over = true;

    for (int lane = 0; lane < rf__link_lanes(group, peer_rank) && is_over; lane++) {
        is_over = group->peers[peer_rank].lanes[lane].over;
    }
    return is_over;
}

void rf__link_down(struct rf__group *group, int peer_rank) {
    struct rf__peer *peer = &group->peers[peer_rank];
    peer->up = false;
    peer->gone = true;
}

static void note_silence(struct rf__group *group, int rank, int64_t detect) {
    double silent = (double)(group->now - group->peers[rank].heard) * 1e-9;
    struct rf_error error;

    if (!group->elastic.member) {
        (void)rf__group_fail(group, RF_ELOST, rank,
                             "rank %d is silent for %.1f s (detection time %.1f s)", rank, silent,
                             (double)detect * 1e-9);
        return;
    }
    (void)rf__fail(&error, RF_ELOST, 0, "worker %d is silent for %.1f s (detection time %.1f s)",
                   rf__group_id_of(group, rank), silent, (double)detect * 1e-9);
    error.rank = rank;
    rf__elastic_doubt(group, rank, RF__DOUBT_SILENT, &error);
}

/* Bytes of it wait until there is a use for them. */
static bool has_unread(const struct rf__group *group, int rank) {
    bool has = false;

    for (int i = 0; i < rf__link_lanes(group, rank) && !has; i++) {
        const struct rf__lane *lane = &group->peers[rank].lanes[i];
        has = lane->framed && !lane->starved;
    }
    return has;
}

/* Tells every quiet link that we live, and finds out who does not. Bytes that wait unread are a
 * sign of life too; a frame whose rest we wait for is none. */
void rf__link_beats(struct rf__group *group) {
    int64_t detect = group->options.detect_ms * RF__MS;
    bool was_away = group->now - group->stepped > detect / 2;

    for (int rank = 0; rank < group->size; rank++) {
        struct rf__peer *peer = &group->peers[rank];
        if (!peer->up || rank == group->rank) {
            continue;
        }
        if (group->now - peer->told > detect / 4 && peer->lanes->tx.owner == RF__TX_NONE) {
            peer->wanted |= RF__WANT_BEAT;
        }
        if (was_away || has_unread(group, rank)) {
            peer->heard = group->now; /* we ourselves were stopped, or have not listened */
        }
        if (group->now - peer->heard > detect && !peer->gone) {
            note_silence(group, rank, detect);
            return;
        }
    }
}
