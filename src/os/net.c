/* The net object: its life, its events and its timers. dial.c makes the links, tcp.c and shm.c move
 * the bytes.
 *
 * Callbacks only note readiness; `pump` does the work, and returns at once while there is none.
 * What it has to do at some later time it tells a timer descriptor in the same poller, so whoever
 * waits there is woken. */
#include "os/net.h"

#include "base/assert.h"
#include "base/mem.h"
#include "base/status.h"
#include "os/clock.h"
#include "os/host.h"
#include "os/net_internal.h"

#include <errno.h>
#include <linux/sockios.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define GOODBYE      (1000 * RF__MS) /* how long a closed link waits for its peer's end */
#define RETRY_ACCEPT (50 * RF__MS)   /* when descriptors ran out */
#define GRACE_MOST   (200 * RF__MS)  /* how long a DOWN event waits for the reader */

static struct rf__os_net *of(struct rf__net *net) {
    return (struct rf__os_net *)net;
}

int64_t rf__net_connect_limit(const struct rf__os_net *net) {
    return 2 * net->detect_ns + 500 * RF__MS;
}

int rf__link_rank(const struct rf__os_net *net, const struct rf__link *link) {
    return (int)(link - net->links);
}

/* ---- Sockets ---- */

static void on_ready(struct rf__poll_source *source, uint32_t events) {
    struct rf__conn *conn = (struct rf__conn *)source;
    bool ended = events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR);

    conn->readable = conn->readable || ended || (events & EPOLLIN);
    conn->writable = conn->writable || ended || (events & EPOLLOUT);
    conn->hung_up = conn->hung_up || ended;
    conn->failed = conn->failed || (events & EPOLLERR);
    /* Bytes on a TCP link are for read and write; everything else is for pump. */
    if (conn->role != RF__CONN_LINK || conn->kind == RF__LINK_SHM || ended) {
        conn->net->work = true;
    }
}

/* Forgets what the timer was set to: should the caller's clock be a little behind, it is set once
 * more. */
static void on_timer(struct rf__poll_source *source, uint32_t events) {
    struct rf__os_net *net = ((struct rf__conn *)source)->net;

    (void)events;
    net->wake_at = RF__NEVER;
    net->work = true;
}

static void on_bell(struct rf__poll_source *source, uint32_t events) {
    /* That somebody woke is all it is for. Edge-triggered, so it is never read. */
    (void)source;
    (void)events;
}

void rf__conn_watch(struct rf__conn *conn, struct rf__os_net *net, int fd) {
    conn->net = net;
    conn->source.fd = fd;
    conn->source.ready = on_ready;
    conn->fds[0] = conn->fds[1] = -1;
}

static void close_fd(int *fd) {
    if (*fd >= 0) {
        close(*fd);
        *fd = -1;
    }
}

struct rf__conn *rf__conn_new(struct rf__os_net *net, int fd, enum rf__conn_role role,
                              enum rf__link_kind kind, int peer, struct rf_error *err) {
    struct rf__conn *conn = rf__alloc(1, sizeof *conn);

    if (!conn) {
        (void)rf__fail(err, RF_ENOMEM, 0, "a connection");
        close(fd);
        return NULL;
    }
    rf__conn_watch(conn, net, fd);
    conn->role = role;
    conn->kind = kind;
    conn->peer = peer;
    if (rf__poller_add(net->poller, &conn->source, err)) {
        close(fd);
        rf__free(conn);
        return NULL;
    }
    struct rf__conn **end = &net->conns;
    while (*end) {
        end = &(*end)->next;
    }
    *end = conn;
    net->accepted += role == RF__CONN_ACCEPT;
    return conn;
}

void rf__conn_unlist(struct rf__os_net *net, struct rf__conn *conn) {
    for (struct rf__conn **at = &net->conns; *at; at = &(*at)->next) {
        if (*at == conn) {
            *at = conn->next;
            net->accepted -= conn->role == RF__CONN_ACCEPT;
            break;
        }
    }
    conn->next = NULL;
}

/* ---- A rehearsed cut ---- */

static void park(struct rf__os_net *net, int fd) {
    int *grown = rf__grow(net->parked, (size_t)net->parked_count + 1, sizeof *grown);

    if (!grown) {
        close(fd);
        return;
    }
    net->parked = grown;
    net->parked[net->parked_count++] = fd;
}

static void unmute(struct rf__os_net *net) {
    net->mute_until = 0;
    net->work = true;
    while (net->parked_count > 0) {
        close(net->parked[--net->parked_count]);
    }
    rf__free(net->parked);
    net->parked = NULL;
}

bool rf__net_is_muted(struct rf__os_net *net) {
    if (net->mute_until && rf__now() >= net->mute_until) {
        unmute(net);
    }
    return net->mute_until != 0;
}

/* Also ends it. */
void rf__conn_free(struct rf__os_net *net, struct rf__conn *conn) {
    if (!conn) {
        return;
    }
    if (conn->role != RF__CONN_LINK) {
        rf__conn_unlist(net, conn);
    }
    rf__shm_let_go(net, conn);
    rf__poller_remove(net->poller, &conn->source);
    if (rf__net_is_muted(net)) {
        park(net, conn->source.fd);
        conn->source.fd = -1;
    }
    close_fd(&conn->source.fd);
    close_fd(&conn->fds[0]);
    close_fd(&conn->fds[1]);
    rf__free(conn->ahead);
    rf__free(conn->auth);
    rf__free(conn);
}

/* Ends all that is under way with a peer, but for `keep`. */
void rf__conn_drop(struct rf__os_net *net, int peer, const struct rf__conn *keep) {
    struct rf__conn *next;

    for (struct rf__conn *conn = net->conns; conn; conn = next) {
        next = conn->next;
        if (conn->peer == peer && conn != keep && conn->role != RF__CONN_CLOSING) {
            rf__conn_free(net, conn);
        }
    }
}

/* ---- Events ---- */

void rf__net_note(struct rf__os_net *net, enum rf__net_event_kind kind, int peer) {
    RF_ASSERT(net->note_count < 2 * net->size); /* a link comes up once and goes down once */
    net->notes[net->note_count++] = (struct rf__note){kind, peer};
}

void rf__link_ends(struct rf__os_net *net, struct rf__link *link, const struct rf_error *why) {
    if (link->state != RF__LINK_UP || link->ending) {
        return;
    }
    link->ending = true;
    link->error = *why;
    link->error.rank = rf__link_rank(net, link);
    rf__detail(link->error.what, "worker %d was lost in generation %llu", link->error.rank,
               (unsigned long long)net->generation);
    rf__detail(link->error.where, "%s -> %s", link->conn->local, link->conn->remote);
    link->end_by = rf__now() + rf__sooner(net->detect_ns / 4, GRACE_MOST);
    net->work = true;
}

void rf__link_drained(struct rf__os_net *net, struct rf__link *link) {
    if (link->state == RF__LINK_UP && link->ending) {
        link->state = RF__LINK_OVER;
        rf__net_note(net, RF__NET_DOWN, rf__link_rank(net, link));
    }
}

void rf__stream_ends(struct rf__os_net *net, struct rf__link *link) {
    link->stream_end_by = rf__now() + net->detect_ns;
    net->work = true;
}

/* A link that never came up. */
void rf__link_fails(struct rf__os_net *net, struct rf__link *link, const struct rf_error *why) {
    int peer = rf__link_rank(net, link);

    rf__conn_drop(net, peer, NULL);
    link->error = *why;
    link->error.rank = peer;
    link->no_read = link->no_write = true;
    link->state = RF__LINK_OVER;
    rf__net_note(net, RF__NET_DOWN, peer);
}

/* ---- Pump ---- */

/* Said good-bye: reads and drops until the peer ends too. */
static bool fade(struct rf__os_net *net, struct rf__conn *conn, int64_t now) {
    char bytes[4096];
    bool over = now >= conn->deadline, muted = rf__net_is_muted(net);

    while (!over && conn->readable && !muted) {
        ssize_t got = recv(conn->source.fd, bytes, sizeof bytes, MSG_DONTWAIT);
        conn->readable = got > 0 || (got < 0 && errno == EINTR);
        over = !got || (got < 0 && errno != EAGAIN && errno != EINTR);
    }
    if (over) {
        rf__conn_free(net, conn);
    }
    return over;
}

/* How many streams a link has, and one of them. */
static int stream_count(const struct rf__link *link) {
    return link->conn ? 1 + link->more_count : 0;
}

static struct rf__conn *stream_at(const struct rf__link *link, int index) {
    return index ? link->more[index - 1] : link->conn;
}

static bool is_over(const struct rf__conn *conn) {
    return conn->hung_up || conn->no_read;
}

static bool nothing_unread(struct rf__link *link) {
    bool nothing = true;

    if (link->kind == RF__LINK_SHM) {
        return rf__shm_empty(link);
    }
    for (int i = 0; nothing && i < stream_count(link); i++) {
        const struct rf__conn *conn = stream_at(link, i);
        int bytes = 0;
        nothing = conn->ahead_at == conn->ahead_bytes &&
                  (conn->no_read || (!ioctl(conn->source.fd, FIONREAD, &bytes) && !bytes)) &&
                  (!link->more_count || is_over(conn));
    }
    return nothing;
}

/* A link has ended when one of its streams has failed or all have come to their end. A peer that
 * leaves ends them one after the other, and what it sent before is on its way on each. */
static void tend_streams(struct rf__os_net *net, struct rf__link *link, bool probe, int64_t now) {
    const struct rf__conn *last = NULL;
    int count = stream_count(link), over = 0;
    bool failed = false;
    struct rf_error why;

    for (int i = 0; i < count && !failed; i++) {
        const struct rf__conn *conn = stream_at(link, i);
        if (probe && rf__tcp_silent(net, conn, &why)) {
            link->no_write = true;
            rf__link_ends(net, link, &why);
            rf__link_drained(net, link);
            return;
        }
        failed = conn->failed;
        last = is_over(conn) ? conn : last;
        over += is_over(conn);
    }
    if (over && !link->stream_end_by) {
        rf__stream_ends(net, link);
    }
    if (over && (failed || over == count || now >= link->stream_end_by)) {
        rf__tcp_end_reason(last, &why);
        rf__link_ends(net, link, &why);
    }
}

static void tend_link(struct rf__os_net *net, struct rf__link *link, bool probe, int64_t now) {
    if (rf__net_is_muted(net)) {
        if (link->ending && now >= link->end_by) {
            rf__link_drained(net, link);
        }
        return;
    }
    if (link->kind == RF__LINK_SHM && link->conn->readable) {
        rf__shm_notice(net, link);
    }
    if (link->kind == RF__LINK_TCP && !link->ending) {
        tend_streams(net, link, probe, now);
    }
    if (link->ending && (now >= link->end_by || nothing_unread(link))) {
        rf__link_drained(net, link);
    }
}

static bool tend_links(struct rf__os_net *net, int64_t now) {
    bool probe = net->has_tcp && now >= net->probe_at, happened = false;

    for (int peer = 0; peer < net->size; peer++) {
        struct rf__link *link = &net->links[peer];
        int notes = net->note_count;
        if (link->state == RF__LINK_UP) {
            tend_link(net, link, probe, now);
            happened = rf__link_dial_more(net, link, now) || happened;
        } else if (link->state == RF__LINK_PENDING && now >= link->deadline) {
            rf__link_give_up(net, link, true);
        } else if (link->state == RF__LINK_PENDING && rf__net_dials(net, peer) &&
                   !rf__net_is_muted(net)) {
            happened = rf__link_dial(net, link, now) || happened;
        }
        happened = happened || net->note_count > notes;
    }
    if (probe) {
        net->probe_at = now + net->detect_ns / 4;
    }
    return happened;
}

static void set_timer(struct rf__os_net *net, int64_t now) {
    bool muted = rf__net_is_muted(net);
    int64_t at = muted ? net->mute_until : net->has_tcp ? net->probe_at : RF__NEVER;

    for (const struct rf__conn *conn = net->conns; conn; conn = conn->next) {
        at = rf__sooner(at, conn->deadline);
    }
    for (int peer = 0; net->opened && peer < net->size; peer++) {
        const struct rf__link *link = &net->links[peer];
        if (link->state == RF__LINK_PENDING) {
            at = rf__sooner(at, link->deadline);
            if (!muted && rf__net_dials(net, peer) &&
                link->next_candidate < rf__link_candidates(link)) {
                at = rf__sooner(at, link->retry_at);
            }
        } else if (link->state == RF__LINK_UP && link->ending) {
            at = rf__sooner(at, link->end_by);
        } else if (link->state == RF__LINK_UP && link->stream_end_by) {
            at = rf__sooner(at, link->stream_end_by);
        }
    }
    if (net->accept_errno && !muted) {
        at = rf__sooner(at, now + RETRY_ACCEPT);
    }
    if (net->work && !muted) {
        at = now;
    }
    if (at == net->wake_at) {
        return;
    }
    net->wake_at = at;
    struct itimerspec when = {0};
    if (at != RF__NEVER) {
        int64_t ns = at < 1 ? 1 : at;
        when.it_value = (struct timespec){ns / 1000000000, ns % 1000000000};
    }
    (void)timerfd_settime(net->timer.source.fd, TFD_TIMER_ABSTIME, &when, NULL);
}

static int net_pump(struct rf__net *base, int64_t now) {
    struct rf__os_net *net = of(base);
    bool happened = false;
    struct rf__conn *next;

    if (!net->opened || (!net->work && now < net->wake_at)) {
        return 0;
    }
    bool was_muted = net->mute_until != 0, muted = rf__net_is_muted(net);
    happened = was_muted && !muted; /* whatever came meanwhile is to be looked at */
    net->work = muted;
    if (!muted) {
        happened = rf__net_accept(net, &net->unix_listener, now) || happened;
        happened = rf__net_accept(net, &net->tcp_listener, now) || happened;
    }
    /* A connection that comes up ends others of the same peer, the next in the list maybe: start
     * over after each. */
    for (struct rf__conn *conn = net->conns; conn; conn = next) {
        next = conn->next;
        bool changed = conn->role == RF__CONN_CLOSING ? fade(net, conn, now)
                                                      : rf__conn_advance(net, conn, now);
        next = changed ? net->conns : next;
        happened = happened || changed;
    }
    happened = tend_links(net, now) || happened;
    set_timer(net, now);
    return happened;
}

static int net_next_event(struct rf__net *base, struct rf__net_event *event) {
    struct rf__os_net *net = of(base);

    while (net->note_first < net->note_count) {
        struct rf__note n = net->notes[net->note_first++];
        const struct rf__link *link = &net->links[n.peer];
        if (link->state != RF__LINK_SHUT) {
            event->kind = n.kind;
            event->peer = n.peer;
            rf__error_clear(&event->error);
            if (n.kind == RF__NET_DOWN) {
                event->error = link->error;
            }
            return 1;
        }
    }
    return 0;
}

/* ---- Bytes ---- */

static struct rf__link *link_of(struct rf__os_net *net, int peer) {
    RF_ASSERT(net->opened && peer >= 0 && peer < net->size && peer != net->rank);
    return &net->links[peer];
}

static ssize_t net_write(struct rf__net *base, int peer, int lane, const struct iovec *parts,
                         int count) {
    struct rf__os_net *net = of(base);
    struct rf__link *link = link_of(net, peer);

    if (link->state == RF__LINK_PENDING) {
        return 0;
    }
    if (link->state != RF__LINK_UP || link->no_write || stream_at(link, lane)->no_write) {
        return RF_ELOST;
    }
    if (rf__net_is_muted(net)) {
        return 0;
    }
    return link->kind == RF__LINK_SHM
               ? rf__shm_write(net, link, parts, count)
               : rf__tcp_write(net, link, stream_at(link, lane), parts, count);
}

static ssize_t net_read(struct rf__net *base, int peer, int lane, void *buffer, size_t bytes) {
    struct rf__os_net *net = of(base);
    struct rf__link *link = link_of(net, peer);

    if (link->state == RF__LINK_PENDING) {
        return 0;
    }
    if (!link->conn) {
        return RF_ELOST;
    }
    if (rf__net_is_muted(net)) {
        return 0;
    }
    return link->kind == RF__LINK_SHM
               ? rf__shm_read(net, link, buffer, bytes)
               : rf__tcp_read(net, link, stream_at(link, lane), buffer, bytes);
}

static ssize_t net_peek(struct rf__net *base, int peer, int lane, const void **view, size_t bytes) {
    struct rf__os_net *net = of(base);
    struct rf__link *link = link_of(net, peer);

    (void)lane; /* shared memory has one */
    if (link->kind != RF__LINK_SHM) {
        return RF_EUNSUPPORTED;
    }
    if (link->state == RF__LINK_PENDING || (link->conn && rf__net_is_muted(net))) {
        return 0;
    }
    return link->conn ? rf__shm_peek(net, link, view, bytes) : RF_ELOST;
}

static void net_consume(struct rf__net *base, int peer, int lane, size_t bytes) {
    struct rf__os_net *net = of(base);
    struct rf__link *link = link_of(net, peer);

    (void)lane;
    RF_ASSERT(link->kind == RF__LINK_SHM && link->conn);
    rf__shm_consume(net, link, bytes);
}

static void shut_stream(struct rf__os_net *net, struct rf__conn *conn) {
    /* Closing at once with unread bytes would reset the connection and lose what was written. */
    (void)shutdown(conn->source.fd, SHUT_WR);
    conn->deadline = rf__now() + GOODBYE;
    conn->readable = true;
    conn->role = RF__CONN_CLOSING;
    conn->next = net->conns;
    net->conns = conn;
}

static void net_shutdown(struct rf__net *base, int peer) {
    struct rf__os_net *net = of(base);
    struct rf__link *link = link_of(net, peer);

    rf__conn_drop(net, peer, NULL);
    link->state = RF__LINK_SHUT;
    if (link->conn && link->kind == RF__LINK_SHM && !rf__net_is_muted(net)) {
        rf__shm_goodbye(link);
    }
    for (int i = 0; i < stream_count(link); i++) {
        struct rf__conn *conn = stream_at(link, i);
        if (conn->kind == RF__LINK_TCP && !rf__net_is_muted(net)) {
            shut_stream(net, conn);
        } else {
            rf__conn_free(net, conn);
        }
    }
    rf__free(link->more);
    link->more = NULL;
    link->more_count = 0;
    link->conn = NULL;
    rf__shm_unlink(link);
    net->work = true;
}

static void net_mute(struct rf__net *base, int64_t until_ns) {
    struct rf__os_net *net = of(base);

    net->mute_until = until_ns > 0 ? until_ns : 1;
    net->work = true; /* sets the timer */
}

static void net_sleep(struct rf__net *base, bool sleeping) {
    rf__shm_sleep(of(base), sleeping);
}

/* ---- Shared memory ---- */

static int shared_alloc(struct rf__net *net, size_t bytes, void **out, struct rf_error *err) {
    return rf__arena_alloc(&of(net)->arena, bytes, out, err);
}

static void shared_release(struct rf__net *net, void *memory) {
    rf__arena_release(&of(net)->arena, memory);
}

static int shared_find(struct rf__net *net, const void *memory, size_t bytes,
                       uint64_t *block_offset, uint64_t *block_bytes, uint64_t *inside) {
    return rf__arena_find(&of(net)->arena, memory, bytes, block_offset, block_bytes, inside);
}

static int shared_settle(struct rf__net *net, struct rf_error *err) {
    return rf__arena_settle(&of(net)->arena, err);
}

static void *shared_map(struct rf__net *base, int peer, uint64_t block_offset,
                        uint64_t block_bytes) {
    struct rf__os_net *net = of(base);

    if (net->opened && peer == net->rank) {
        return rf__arena_at(&net->arena, block_offset, block_bytes);
    }
    struct rf__link *link = link_of(net, peer);
    return link->views.fd >= 0 ? rf__views_map(&link->views, block_offset, block_bytes) : NULL;
}

static void *shared_board(struct rf__net *base, int peer) {
    struct rf__os_net *net = of(base);

    RF_ASSERT(net->opened);
    char *control = peer == net->rank ? net->control : link_of(net, peer)->control;
    return control && (peer == net->rank || net->links[peer].conn) ? rf__shm_board(control) : NULL;
}

static void shared_notify(struct rf__net *base, int peer) {
    struct rf__link *link = link_of(of(base), peer);

    if (link->control && link->conn && !rf__net_is_muted(of(base))) {
        rf__shm_notify(link);
    }
}

/* ---- Life ---- */

static int net_endpoint(struct rf__net *base, char *out, size_t bytes, struct rf_error *err) {
    return rf__endpoint_format(&of(base)->endpoint, out, bytes, err);
}

/* What was written has `bound` ns to leave this host: closing with bytes on the way in would throw
 * those on the way out away. */
static void linger(struct rf__os_net *net, int64_t bound) {
    int64_t until = rf__now() + bound;
    bool busy = true;

    while (busy && rf__now() < until) {
        busy = false;
        for (struct rf__conn *conn = net->conns; conn; conn = conn->next) {
            int unsent = 0;
            busy = busy || (conn->role == RF__CONN_CLOSING && conn->kind == RF__LINK_TCP &&
                            !conn->hung_up && !ioctl(conn->source.fd, SIOCOUTQ, &unsent) && unsent);
        }
        if (busy) {
            (void)poll(NULL, 0, 1);
        }
    }
}

/* Ends the links of the generation, and whatever was under way. */
static void close_links(struct rf__os_net *net) {
    for (int peer = 0; net->opened && peer < net->size; peer++) {
        if (peer != net->rank) {
            net_shutdown(&net->base, peer);
        }
    }
    struct rf__conn *next;
    for (struct rf__conn *conn = net->conns; conn; conn = next) {
        next = conn->next;
        if (conn->role != RF__CONN_CLOSING) {
            rf__conn_free(net, conn);
        }
    }
    if (net->opened) {
        rf__shm_close(net);
    }
    rf__free(net->links);
    rf__free(net->notes);
    net->links = NULL;
    net->notes = NULL;
    net->note_first = net->note_count = 0;
    net->opened = net->has_tcp = false;
    net->size = 0;
}

static bool share_memory(const struct rf__endpoint *a, const struct rf__endpoint *b) {
    return a->name[0] && b->name[0] && !strcmp(a->host, b->host);
}

/* Shared memory where both are on one host and both offer it, else TCP where both offer that. */
static int choose_kind(struct rf__os_net *net, int peer, struct rf_error *err) {
    struct rf__link *link = &net->links[peer];
    bool local = !strcmp(link->endpoint.host, net->endpoint.host);

    if (share_memory(&link->endpoint, &net->endpoint)) {
        link->kind = RF__LINK_SHM;
    } else if (link->endpoint.count && net->endpoint.count) {
        link->kind = RF__LINK_TCP;
    } else {
        return rf__fail(err, RF_EUNSUPPORTED, 0,
                        "workers %d and %d %s, so they cannot use the transport that was asked for",
                        net->rank, peer,
                        local ? "were given different transports" : "are on different hosts");
    }
    net->base.kind[peer] = link->kind;
    return 0;
}

/* Ranks that share memory get the number of the first of them. And where on the host they are. */
static void number_hosts(struct rf__os_net *net) {
    for (int rank = 0; rank < net->size; rank++) {
        const struct rf__endpoint *own =
            rank == net->rank ? &net->endpoint : &net->links[rank].endpoint;
        net->base.host[rank] = rank;
        net->base.node[rank] = own->node;
        for (int other = 0; other < rank; other++) {
            const struct rf__endpoint *theirs =
                other == net->rank ? &net->endpoint : &net->links[other].endpoint;
            if (net->base.host[other] == other && share_memory(own, theirs)) {
                net->base.host[rank] = other;
                break;
            }
        }
    }
}

static int open_links(struct rf__os_net *net, const struct rf__net_group *group,
                      struct rf_error *err) {
    int64_t now = rf__now();
    int local = 0;

    for (int peer = 0; peer < net->size; peer++) {
        struct rf__link *link = &net->links[peer];
        link->bell = link->views.fd = -1;
    }
    for (int peer = 0; peer < net->size; peer++) {
        struct rf__link *link = &net->links[peer];
        if (peer == net->rank) {
            continue;
        }
        int rc = rf__endpoint_parse(group->endpoints[peer], &link->endpoint, err);
        rc = rc ? rf__wrap(err, rc, "worker %d: ", peer) : choose_kind(net, peer, err);
        if (rc) {
            return rc;
        }
        local += link->kind == RF__LINK_SHM;
        net->base.lanes[peer] = 1;
        link->state = RF__LINK_PENDING;
        link->deadline = now + rf__net_connect_limit(net);
    }
    if (local >= RF_MAX_LOCAL_RANKS) {
        return rf__fail(err, RF_ELIMIT, 0, "%d workers on one host, and %d is the most", local + 1,
                        RF_MAX_LOCAL_RANKS);
    }
    number_hosts(net);
    int rc = rf__shm_renew(net, err);
    return rc ? rc : rf__shm_open(net, err);
}

static int net_open(struct rf__net *base, const struct rf__net_group *group, struct rf_error *err) {
    struct rf__os_net *net = of(base);

    if (group->size < 1 || group->size > RF_MAX_RANKS || group->rank < 0 ||
        group->rank >= group->size) {
        return rf__fail(err, RF_EINVAL, 0, "rank %d of %d", group->rank, group->size);
    }
    close_links(net);
    memset(base->kind, 0, sizeof base->kind);
    net->links = rf__alloc((size_t)group->size, sizeof *net->links);
    net->notes = rf__alloc(2 * (size_t)group->size, sizeof *net->notes);
    if (!net->links || !net->notes) {
        close_links(net);
        return rf__fail(err, RF_ENOMEM, 0, "the links of %d workers", group->size);
    }
    net->generation = group->generation;
    net->rank = group->rank;
    net->size = group->size;
    net->opened = true;
    rf__error_clear(&net->stranger);
    int rc = open_links(net, group, err);
    if (rc) {
        close_links(net);
        return rc;
    }
    net->work = true;
    net->probe_at = rf__now() + net->detect_ns / 4;
    set_timer(net, rf__now());
    return 0;
}

static void drop_listener(struct rf__os_net *net, struct rf__conn *conn) {
    rf__poller_remove(net->poller, &conn->source);
    close_fd(&conn->source.fd);
}

static void net_destroy(struct rf__net *base) {
    struct rf__os_net *net = of(base);

    if (!net) {
        return;
    }
    unmute(net);
    close_links(net);
    linger(net, rf__sooner(net->detect_ns / 4, GRACE_MOST));
    while (net->conns) {
        rf__conn_free(net, net->conns);
    }
    drop_listener(net, &net->tcp_listener);
    drop_listener(net, &net->unix_listener);
    drop_listener(net, &net->timer);
    drop_listener(net, &net->bell);
    rf__arena_destroy(&net->arena);
    rf__free(net->holders);
    memset(net->key, 0, sizeof net->key);
    rf__free(net);
}

static const struct rf__net_ops net_ops = {
    .endpoint = net_endpoint,
    .open = net_open,
    .pump = net_pump,
    .next_event = net_next_event,
    .write = net_write,
    .read = net_read,
    .peek = net_peek,
    .consume = net_consume,
    .shutdown = net_shutdown,
    .sleep = net_sleep,
    .mute = net_mute,
    .destroy = net_destroy,
};

static const struct rf__shared_ops shared_ops = {
    .alloc = shared_alloc,
    .release = shared_release,
    .find = shared_find,
    .settle = shared_settle,
    .map = shared_map,
    .board = shared_board,
    .notify = shared_notify,
};

static int set_up_shared(struct rf__os_net *net, struct rf_error *err) {
    int rc = rf__arena_create(&net->arena, err);

    if (!rc) {
        rc = rf__shm_listen(net, err);
    }
    if (!rc) {
        net->bell.source.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        rc = net->bell.source.fd < 0 ? rf__fail(err, RF_EIO, errno, "making a doorbell") : 0;
    }
    if (!rc) {
        net->base.shared = &shared_ops;
    }
    return rc;
}

static int watch(struct rf__os_net *net, struct rf__conn *conn, struct rf_error *err) {
    return conn->source.fd < 0 ? 0 : rf__poller_add(net->poller, &conn->source, err);
}

static size_t last_cache_bytes(void) {
    long bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
    return bytes > 0 ? (size_t)bytes : 0;
}

int rf__net_create(const struct rf__net_options *options, struct rf__poller *poller,
                   struct rf__net **out, struct rf_error *err) {
    struct rf__os_net *net = NULL;
    int rc;

    *out = NULL;
    if (!options->job || !options->key || strlen(options->job) >= RF_MAX_JOB_NAME ||
        options->key_bytes < RF_MIN_KEY_BYTES || options->key_bytes > RF_MAX_KEY_BYTES ||
        options->port < 0 || options->port > 65535 || options->streams < 0 ||
        options->streams > RF_MAX_STREAMS) {
        return rf__fail(err, RF_EINVAL, 0, "a net's job, key, port or number of streams");
    }
    net = rf__alloc(1, sizeof *net);
    if (!net) {
        return rf__fail(err, RF_ENOMEM, 0, "a net");
    }
    net->base.ops = &net_ops;
    net->poller = poller;
    net->arena.fd = -1;
    rf__conn_watch(&net->tcp_listener, net, -1);
    rf__conn_watch(&net->unix_listener, net, -1);
    rf__conn_watch(&net->timer, net, -1);
    rf__conn_watch(&net->bell, net, -1);
    net->tcp_listener.kind = RF__LINK_TCP;
    net->unix_listener.kind = RF__LINK_SHM;
    net->bell.source.ready = on_bell;
    net->timer.source.ready = on_timer;
    memcpy(net->job, options->job, strlen(options->job) + 1);
    memcpy(net->key, options->key, options->key_bytes);
    net->key_bytes = options->key_bytes;
    net->transport = options->transport;
    net->streams = net->base.most_lanes = options->streams > 1 ? options->streams : 1;
    net->detect_ns = (options->detect_ms > 0 ? options->detect_ms : 3000) * RF__MS;
    net->wake_at = RF__NEVER;
    net->endpoint.node = options->node;
    net->base.cache_bytes = last_cache_bytes();
    rc = rf__host_identity(net->endpoint.host, err);
    if (!rc && net->transport != RF_TRANSPORT_SHM) {
        rc = rf__tcp_listen(net, options->bind, options->port, err);
    }
    if (!rc && net->transport != RF_TRANSPORT_TCP) {
        rc = set_up_shared(net, err);
    }
    if (!rc) {
        net->timer.source.fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
        rc = net->timer.source.fd < 0 ? rf__fail(err, RF_EIO, errno, "making a timer") : 0;
    }
    rc = rc ? rc : watch(net, &net->tcp_listener, err);
    rc = rc ? rc : watch(net, &net->unix_listener, err);
    rc = rc ? rc : watch(net, &net->timer, err);
    rc = rc ? rc : watch(net, &net->bell, err);
    if (rc) {
        net_destroy(&net->base);
        return rf__wrap(err, rc, "links: ");
    }
    *out = &net->base;
    return 0;
}
