/* Links. A connection is two pipes; what is written into one flies as a lump to the other end,
 * where it can be read in pieces. A path that is cut holds the lump back and tries again, as TCP
 * does; a process that ends closes its pipes behind what was written, a machine that vanishes
 * closes nothing. The higher rank dials, and goes on doing so until its time is over. */
#include "sim.h"

#include "base/assert.h"
#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NOTES = 4 * SIM_IDS };

#define GRACE (200 * RF__MS) /* how long the end of a link waits for its reader */

struct pipe {
    unsigned char *bytes;
    size_t head, arrived, tail, room; /* read up to, readable up to, written up to */
    size_t flies_to;                  /* of the lump on its way; only where `flying` */
    bool flying, closed, ended, dead; /* dead: what flies never arrives */
};

struct sim_conn {
    size_t index;
    int id[2];
    uint64_t start[2];
    struct pipe pipe[2]; /* [k]: from side k to the other */
    bool attached[2];    /* the side still holds on to it */
};

enum link_state { LINK_NONE, LINK_PENDING, LINK_UP, LINK_OVER, LINK_SHUT };

struct link {
    enum link_state state;
    int id; /* of the peer */
    uint64_t start;
    struct sim_conn *conn;
    int side; /* ours */
    int64_t deadline, retry_at, delay, end_by;
    bool ending;
    int code;
};

struct note {
    enum rf__net_event_kind kind;
    int peer;
};

struct sim_net {
    struct rf__net net; /* first */
    struct sim_worker *worker;
    struct sim *sim;
    bool opened;
    uint64_t generation;
    int rank, size;
    struct link links[SIM_IDS];
    struct note notes[NOTES];
    int note_first, note_count;
};

static struct sim_net *of(struct rf__net *net) {
    return (struct sim_net *)net;
}

static void note(struct sim_net *net, enum rf__net_event_kind kind, int peer) {
    RF_ASSERT(net->note_count < NOTES);
    net->notes[net->note_count++] = (struct note){kind, peer};
}

static struct sim_worker *holder(struct sim *sim, const struct sim_conn *conn, int side) {
    struct sim_worker *worker = &sim->workers[conn->id[side]];
    return worker->alive && worker->start == conn->start[side] ? worker : NULL;
}

/* ---- Pipes ---- */

static void fly(struct sim *sim, size_t index, int side) {
    struct sim_conn *conn = sim->conns[index];
    struct pipe *pipe = &conn->pipe[side];

    if (pipe->flying || pipe->dead || pipe->ended) {
        return;
    }
    if (pipe->tail == pipe->arrived && !pipe->closed) {
        return;
    }
    pipe->flying = true;
    pipe->flies_to = pipe->tail;
    int64_t delay = sim_delay(sim, conn->id[side], conn->id[1 - side], pipe->tail - pipe->arrived);
    sim_post(sim, sim->now + delay, SIM_EV_FLIGHT, conn->id[side], conn->start[side], index,
             (uint64_t)side);
}

static void wake_side(struct sim *sim, const struct sim_conn *conn, int side) {
    struct sim_worker *worker = holder(sim, conn, side);
    if (worker && conn->attached[side]) {
        sim_wake(worker, sim_soon(sim, 30 * SIM_US));
    }
}

void sim_net_flight(struct sim *sim, const struct sim_event *event) {
    struct sim_conn *conn = sim->conns[event->a];
    int side = (int)event->b;
    struct pipe *pipe = &conn->pipe[side];

    if (pipe->dead || pipe->ended) {
        return;
    }
    if (!sim_path(sim, conn->id[side], conn->id[1 - side])) {
        int64_t later = RF__MS * (20 + (int64_t)rf__rng_below(&sim->rng, 80));
        sim_post(sim, sim->now + later, SIM_EV_FLIGHT, event->id, event->start, event->a, event->b);
        return;
    }
    pipe->flying = false;
    pipe->arrived = pipe->flies_to;
    pipe->ended = pipe->closed && pipe->arrived == pipe->tail;
    wake_side(sim, conn, 1 - side);
    fly(sim, event->a, side);
}

/* The side writes no more: what it has written still arrives, but for what is lost with it. */
static void close_pipe(struct sim *sim, struct sim_conn *conn, int side, bool cut_short) {
    struct pipe *pipe = &conn->pipe[side];

    if (cut_short && pipe->tail > pipe->arrived) {
        size_t least = pipe->flying ? pipe->flies_to : pipe->arrived;
        pipe->tail = least + (size_t)rf__rng_below(&sim->rng, pipe->tail - least + 1);
    }
    pipe->closed = true;
    fly(sim, conn->index, side);
}

static void let_go(struct sim_conn *conn, int side) {
    conn->attached[side] = false;
    conn->pipe[1 - side].dead = true; /* nobody reads it any more */
    if (!conn->attached[1 - side]) {
        for (int k = 0; k < 2; k++) {
            rf__free(conn->pipe[k].bytes);
            conn->pipe[k] = (struct pipe){.dead = true};
        }
    }
}

/* ---- Ending ---- */

static void drop_link(struct sim_net *net, int peer, bool cut_short, bool silently) {
    struct link *link = &net->links[peer];
    struct sim_conn *conn = link->conn;

    if (conn) {
        if (silently) {
            conn->pipe[link->side].dead = true;
        } else {
            close_pipe(net->sim, conn, link->side, cut_short);
        }
        let_go(conn, link->side);
    }
    link->conn = NULL;
}

void sim_net_end(struct sim_net *net, bool silently) {
    for (int peer = 0; net->opened && peer < net->size; peer++) {
        drop_link(net, peer, true, silently);
        net->links[peer].state = LINK_SHUT;
    }
}

bool sim_net_reset(struct sim *sim, int a, int b) {
    bool found = false;

    for (size_t i = 0; i < sim->conn_count; i++) {
        struct sim_conn *conn = sim->conns[i];
        bool is_theirs =
            (conn->id[0] == a && conn->id[1] == b) || (conn->id[0] == b && conn->id[1] == a);
        if (!is_theirs || !conn->attached[0] || !conn->attached[1]) {
            continue;
        }
        for (int k = 0; k < 2; k++) {
            struct pipe *pipe = &conn->pipe[k];
            pipe->tail = pipe->arrived;
            pipe->closed = pipe->ended = true;
            wake_side(sim, conn, 1 - k);
        }
        found = true;
    }
    return found;
}

void sim_net_free(struct sim *sim) {
    for (size_t i = 0; i < sim->conn_count; i++) {
        rf__free(sim->conns[i]->pipe[0].bytes);
        rf__free(sim->conns[i]->pipe[1].bytes);
        rf__free(sim->conns[i]);
    }
    rf__free(sim->conns);
}

/* ---- Connecting ---- */

static int64_t connect_limit(const struct sim_net *net) {
    return (2 * net->sim->detect_ms + 500) * RF__MS;
}

static int net_endpoint(struct rf__net *base, char *out, size_t bytes, struct rf_error *err) {
    struct sim_net *net = of(base);
    (void)err;
    (void)snprintf(out, bytes, "sim:%d:%llu", net->worker->id,
                   (unsigned long long)net->worker->start);
    return 0;
}

static int net_open(struct rf__net *base, const struct rf__net_group *group, struct rf_error *err) {
    struct sim_net *net = of(base);

    if (group->size < 1 || group->size > SIM_IDS || group->rank < 0 || group->rank >= group->size) {
        return rf__fail(err, RF_EINVAL, 0, "rank %d of %d", group->rank, group->size);
    }
    for (int peer = 0; net->opened && peer < net->size; peer++) {
        drop_link(net, peer, false, false);
    }
    memset(net->links, 0, sizeof net->links);
    memset(base->kind, 0, sizeof base->kind);
    net->note_first = net->note_count = 0;
    net->opened = true;
    net->generation = group->generation;
    net->rank = group->rank;
    net->size = group->size;
    sim_trace(net->sim, net->worker->id, "opens generation %llu as rank %d of %d",
              (unsigned long long)group->generation, group->rank, group->size);
    for (int peer = 0; peer < group->size; peer++) {
        struct link *link = &net->links[peer];
        unsigned long long start = 0;
        if (peer == group->rank) {
            continue;
        }
        if (sscanf(group->endpoints[peer], "sim:%d:%llu", &link->id, &start) != 2) {
            return rf__fail(err, RF_EPROTO, 0, "'%.80s' is no endpoint", group->endpoints[peer]);
        }
        base->kind[peer] = RF__LINK_TCP;
        base->lanes[peer] = 1;
        link->start = start;
        link->state = LINK_PENDING;
        link->deadline = net->sim->now + connect_limit(net);
        link->retry_at = group->rank > peer ? net->sim->now : RF__NEVER;
    }
    return 0;
}

static bool links_to(const struct sim_net *net, int peer, const struct sim_worker *worker) {
    const struct link *link = &net->links[peer];
    return link->id == worker->id && link->start == worker->start;
}

static void attach(struct sim_net *net, int peer, struct sim_conn *conn, int side) {
    struct link *link = &net->links[peer];

    link->state = LINK_UP;
    link->conn = conn;
    link->side = side;
    conn->id[side] = net->worker->id;
    conn->start[side] = net->worker->start;
    conn->attached[side] = true;
    note(net, RF__NET_UP, peer);
    sim_wake(net->worker, sim_soon(net->sim, 30 * SIM_US));
}

static bool connect_ends(struct sim_net *from, int to_rank) {
    struct sim *sim = from->sim;
    struct link *link = &from->links[to_rank];
    struct sim_worker *target = &sim->workers[link->id];
    struct sim_net *to = target->net;

    if (!target->alive || target->start != link->start || sim_is_frozen(target) || !to ||
        !to->opened || to->generation != from->generation || to->rank != to_rank ||
        from->rank >= to->size || !links_to(to, from->rank, from->worker) ||
        to->links[from->rank].state != LINK_PENDING || !sim_path(sim, from->worker->id, link->id) ||
        !sim_path(sim, link->id, from->worker->id)) {
        return false;
    }
    if (sim->conn_count == sim->conn_room) {
        sim->conn_room = sim->conn_room ? 2 * sim->conn_room : 64;
        sim->conns = rf__grow(sim->conns, sim->conn_room, sizeof(struct sim_conn *));
        RF_ASSERT(sim->conns);
    }
    struct sim_conn *conn = rf__alloc(1, sizeof *conn);
    RF_ASSERT(conn);
    conn->index = sim->conn_count;
    sim->conns[sim->conn_count++] = conn;
    attach(from, to_rank, conn, 0);
    attach(to, from->rank, conn, 1);
    return true;
}

void sim_net_dial(struct sim *sim, const struct sim_event *event) {
    struct sim_worker *worker = &sim->workers[event->id];
    struct sim_net *net = worker->net;
    int peer = (int)event->a;

    if (!worker->alive || worker->start != event->start || !net->opened ||
        net->generation != event->b || net->links[peer].state != LINK_PENDING) {
        return;
    }
    if (!connect_ends(net, peer)) {
        struct link *link = &net->links[peer];
        link->delay = link->delay ? 2 * link->delay : 10 * RF__MS;
        link->delay = link->delay < 200 * RF__MS ? link->delay : 200 * RF__MS;
        link->retry_at = sim->now + link->delay;
        sim_wake(worker, link->retry_at);
    }
}

/* ---- The interface ---- */

static bool tend(struct sim_net *net, int peer) {
    struct link *link = &net->links[peer];
    struct sim *sim = net->sim;

    if (link->state == LINK_PENDING && sim->now >= link->deadline) {
        link->state = LINK_OVER;
        link->code = RF_ECONNECT;
        note(net, RF__NET_DOWN, peer);
        return true;
    }
    if (link->state == LINK_PENDING && sim->now >= link->retry_at) {
        link->retry_at = RF__NEVER;
        sim_post(sim, sim->now + sim_delay(sim, net->worker->id, link->id, 200), SIM_EV_DIAL,
                 net->worker->id, net->worker->start, (uint64_t)peer, net->generation);
        return false;
    }
    if (link->state != LINK_UP) {
        return false;
    }
    const struct pipe *in = &link->conn->pipe[1 - link->side];
    if (in->ended && !link->ending) {
        int64_t quarter = net->sim->detect_ms * RF__MS / 4;
        link->ending = true;
        link->end_by = sim->now + (quarter < GRACE ? quarter : GRACE);
    }
    if (link->ending && (in->head == in->arrived || sim->now >= link->end_by)) {
        link->state = LINK_OVER;
        link->code = RF_ELOST;
        note(net, RF__NET_DOWN, peer);
        return true;
    }
    return false;
}

static int net_pump(struct rf__net *base, int64_t now) {
    struct sim_net *net = of(base);
    int happened = 0;

    (void)now; /* the net has a clock of its own, as the kernel's timers are */
    for (int peer = 0; net->opened && peer < net->size; peer++) {
        happened |= tend(net, peer);
    }
    return happened;
}

int64_t sim_net_deadline(const struct sim_net *net) {
    int64_t soonest = RF__NEVER;

    for (int peer = 0; net->opened && peer < net->size; peer++) {
        const struct link *link = &net->links[peer];
        int64_t at = RF__NEVER;
        if (link->state == LINK_PENDING) {
            at = link->deadline < link->retry_at ? link->deadline : link->retry_at;
        } else if (link->state == LINK_UP && link->ending) {
            at = link->end_by;
        }
        soonest = at < soonest ? at : soonest;
    }
    return soonest;
}

static int net_next_event(struct rf__net *base, struct rf__net_event *event) {
    struct sim_net *net = of(base);

    while (net->note_first < net->note_count) {
        struct note n = net->notes[net->note_first++];
        const struct link *link = &net->links[n.peer];
        if (link->state == LINK_SHUT) {
            continue;
        }
        event->kind = n.kind;
        event->peer = n.peer;
        rf__error_clear(&event->error);
        if (n.kind == RF__NET_DOWN) {
            (void)rf__fail(&event->error, link->code, 0, "worker %d %s", link->id,
                           link->code == RF_ELOST ? "was lost" : "cannot be reached");
            event->error.rank = n.peer;
        }
        sim_trace(net->sim, net->worker->id, "link with worker %d is %s", link->id,
                  n.kind == RF__NET_UP ? "up" : "down");
        return 1;
    }
    return 0;
}

static size_t some_of(struct sim *sim, size_t bytes) {
    if (sim->most && bytes) {
        size_t most = 1 + (size_t)rf__rng_below(&sim->rng, sim->most);
        return bytes < most ? bytes : most;
    }
    return bytes;
}

static void append(struct pipe *pipe, const unsigned char *bytes, size_t count) {
    if (pipe->head == pipe->tail && !pipe->flying) {
        pipe->head = pipe->arrived = pipe->tail = 0;
    }
    if (pipe->tail + count > pipe->room) {
        pipe->room = 2 * (pipe->tail + count);
        pipe->bytes = rf__grow(pipe->bytes, pipe->room, 1);
        RF_ASSERT(pipe->bytes);
    }
    memcpy(pipe->bytes + pipe->tail, bytes, count);
    pipe->tail += count;
}

static ssize_t net_write(struct rf__net *base, int peer, int lane, const struct iovec *parts,
                         int count) {
    struct sim_net *net = of(base);
    struct link *link = &net->links[peer];
    size_t taken = 0;

    RF_ASSERT(net->opened && peer >= 0 && peer < net->size && peer != net->rank && lane == 0);
    if (link->state == LINK_PENDING) {
        return 0;
    }
    if (link->state != LINK_UP || link->ending) {
        return RF_ELOST;
    }
    struct pipe *pipe = &link->conn->pipe[link->side];
    if (pipe->closed) {
        return RF_ELOST;
    }
    for (int i = 0; i < count; i++) {
        size_t held = pipe->tail - pipe->head;
        size_t room = held < net->sim->window ? net->sim->window - held : 0;
        size_t bytes = parts[i].iov_len < room ? parts[i].iov_len : room;
        bytes = some_of(net->sim, bytes);
        append(pipe, parts[i].iov_base, bytes);
        taken += bytes;
        if (bytes < parts[i].iov_len) {
            break;
        }
    }
    fly(net->sim, link->conn->index, link->side);
    return (ssize_t)taken;
}

static ssize_t net_read(struct rf__net *base, int peer, int lane, void *buffer, size_t bytes) {
    struct sim_net *net = of(base);
    struct link *link = &net->links[peer];

    RF_ASSERT(net->opened && peer >= 0 && peer < net->size && peer != net->rank && lane == 0);
    if (link->state == LINK_PENDING) {
        return 0;
    }
    if (!link->conn) {
        return RF_ELOST;
    }
    struct pipe *pipe = &link->conn->pipe[1 - link->side];
    size_t there = pipe->arrived - pipe->head;
    if (there == 0) {
        return pipe->ended ? RF_ELOST : 0;
    }
    bool was_full = pipe->tail - pipe->head >= net->sim->window;
    bytes = some_of(net->sim, bytes < there ? bytes : there);
    memcpy(buffer, pipe->bytes + pipe->head, bytes);
    pipe->head += bytes;
    if (was_full && bytes) {
        wake_side(net->sim, link->conn, 1 - link->side);
    }
    return (ssize_t)bytes;
}

static void net_shutdown(struct rf__net *base, int peer) {
    struct sim_net *net = of(base);

    drop_link(net, peer, false, false);
    net->links[peer].state = LINK_SHUT;
}

static void net_sleep(struct rf__net *base, bool sleeping) {
    (void)base;
    (void)sleeping;
}

static void net_destroy(struct rf__net *base) {
    struct sim_net *net = of(base);

    for (int peer = 0; net->opened && peer < net->size; peer++) {
        drop_link(net, peer, false, false);
    }
    rf__free(net);
}

static const struct rf__net_ops net_ops = {
    .endpoint = net_endpoint,
    .open = net_open,
    .pump = net_pump,
    .next_event = net_next_event,
    .write = net_write,
    .read = net_read,
    .shutdown = net_shutdown,
    .sleep = net_sleep,
    .destroy = net_destroy,
};

struct rf__net *sim_net_create(struct sim_worker *worker) {
    struct sim_net *net = rf__alloc(1, sizeof *net);

    RF_ASSERT(net);
    net->net.ops = &net_ops;
    net->net.most_lanes = 1;
    net->worker = worker;
    net->sim = worker->sim;
    return &net->net;
}
