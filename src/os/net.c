/* The net object: endpoints, who dials whom, handshakes, events and timers. tcp.c and shm.c move
 * the bytes.
 *
 * Callbacks only note readiness; `pump` does the work, and returns at once while there is none.
 * What it has to do at some later time it tells a timer descriptor in the same poller, so whoever
 * waits there is woken.
 *
 * Strangers: nobody is believed before the handshake is done. Connections that have not got that
 * far are bounded in number (the oldest makes room) and in time. Before `open` they wait in the
 * kernel's queue. */
#include "os/net.h"

#include "base/assert.h"
#include "base/cursor.h"
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

enum { CLAIMS_VERSION = 1, RANK_UNKNOWN = -1, STRANGERS = 64 };

#define STAGGER      (30 * RF__MS) /* between the addresses of one peer */
#define RETRY_FIRST  (10 * RF__MS) /* between rounds; doubles */
#define RETRY_MOST   (200 * RF__MS)
#define RETRY_ACCEPT (50 * RF__MS)   /* when descriptors ran out */
#define GOODBYE      (1000 * RF__MS) /* how long a closed link waits for its peer's end */
#define GRACE_MOST   (200 * RF__MS)  /* how long a DOWN event waits for the reader */

static struct rf__os_net *of(struct rf__net *net) {
    return (struct rf__os_net *)net;
}

static int64_t at_most(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t connect_limit(const struct rf__os_net *net) {
    return 2 * net->detect_ns + 500 * RF__MS;
}

/* For one attempt, or one stranger. */
static int64_t handshake_limit(const struct rf__os_net *net) {
    return at_most(net->detect_ns + 200 * RF__MS, 5000 * RF__MS);
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
    (void)source,
        (void)events; /* that somebody woke is all it is for; edge-triggered, so never read */
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

static struct rf__conn *conn_new(struct rf__os_net *net, int fd, enum rf__conn_role role,
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

static void conn_unlist(struct rf__os_net *net, struct rf__conn *conn) {
    for (struct rf__conn **at = &net->conns; *at; at = &(*at)->next) {
        if (*at == conn) {
            *at = conn->next;
            net->accepted -= conn->role == RF__CONN_ACCEPT;
            break;
        }
    }
    conn->next = NULL;
}

/* Also ends it. */
static void conn_free(struct rf__os_net *net, struct rf__conn *conn) {
    if (!conn) {
        return;
    }
    if (conn->role != RF__CONN_LINK) {
        conn_unlist(net, conn);
    }
    rf__poller_remove(net->poller, &conn->source);
    close_fd(&conn->source.fd);
    close_fd(&conn->fds[0]);
    close_fd(&conn->fds[1]);
    rf__free(conn->auth);
    rf__free(conn);
}

/* Ends all that is under way with a peer, but for `keep`. */
static void drop_attempts(struct rf__os_net *net, int peer, const struct rf__conn *keep) {
    struct rf__conn *next;

    for (struct rf__conn *conn = net->conns; conn; conn = next) {
        next = conn->next;
        if (conn->peer == peer && conn != keep && conn->role != RF__CONN_CLOSING) {
            conn_free(net, conn);
        }
    }
}

/* ---- Events ---- */

static void note(struct rf__os_net *net, enum rf__net_event_kind kind, int peer) {
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
    link->end_by = rf__now() + at_most(net->detect_ns / 4, GRACE_MOST);
    net->work = true;
}

void rf__link_drained(struct rf__os_net *net, struct rf__link *link) {
    if (link->state == RF__LINK_UP && link->ending) {
        link->state = RF__LINK_OVER;
        note(net, RF__NET_DOWN, rf__link_rank(net, link));
    }
}

/* A link that never came up. */
static void link_fails(struct rf__os_net *net, struct rf__link *link, const struct rf_error *why) {
    int peer = rf__link_rank(net, link);

    drop_attempts(net, peer, NULL);
    link->error = *why;
    link->error.rank = peer;
    link->no_read = link->no_write = true;
    link->state = RF__LINK_OVER;
    note(net, RF__NET_DOWN, peer);
}

/* ---- Claims ---- */

struct claims {
    uint8_t version, kind;
    uint64_t generation;
    int32_t from, to, size;
    char job[RF_MAX_JOB_NAME];
};

static size_t claims_write(const struct rf__os_net *net, enum rf__link_kind kind, int to,
                           unsigned char out[RF__AUTH_CLAIMS]) {
    struct rf__writer w = rf__writer(out, RF__AUTH_CLAIMS);
    size_t job_bytes = strlen(net->job);

    rf__write_u8(&w, CLAIMS_VERSION);
    rf__write_u8(&w, (uint8_t)kind);
    rf__write_u64(&w, net->generation);
    rf__write_u32(&w, (uint32_t)net->rank);
    rf__write_u32(&w, (uint32_t)to);
    rf__write_u32(&w, (uint32_t)net->size);
    rf__write_u8(&w, (uint8_t)job_bytes);
    rf__write_bytes(&w, net->job, job_bytes);
    RF_ASSERT(!w.failed);
    return RF__AUTH_CLAIMS - w.left;
}

static bool claims_read(const struct rf__auth *auth, struct claims *out) {
    struct rf__reader r = rf__reader(auth->peer_claims, auth->peer_claims_bytes);

    *out = (struct claims){0};
    out->version = rf__read_u8(&r);
    out->kind = rf__read_u8(&r);
    out->generation = rf__read_u64(&r);
    out->from = (int32_t)rf__read_u32(&r);
    out->to = (int32_t)rf__read_u32(&r);
    out->size = (int32_t)rf__read_u32(&r);
    size_t job_bytes = rf__read_u8(&r);
    if (job_bytes >= sizeof out->job) {
        return false;
    }
    rf__read_bytes(&r, out->job, job_bytes);
    return !r.failed && !r.left && out->version == CLAIMS_VERSION;
}

/* Why a connection with these claims cannot be a link of ours: 0, or a code and text. RF_ECONFLICT
 * and RF_ENOTFOUND may pass with time, or hold for one address only. `from`: who must be at the
 * other end; RANK_UNKNOWN: any that may dial us. */
static int judge(const struct rf__os_net *net, const struct rf__conn *conn,
                 const struct claims *claims, int from, struct rf_error *why) {
    if (strcmp(claims->job, net->job) != 0) {
        return rf__fail(why, RF_EAUTH, 0, "worker %d is of job '%s', the caller of another",
                        net->rank, net->job);
    }
    if (claims->generation != net->generation) {
        bool early = (claims->generation > net->generation) == (from == RANK_UNKNOWN);
        return rf__fail(
            why, early ? RF_ECONFLICT : RF_EREVOKED, 0,
            "worker %d is in generation %llu, the caller in another",
            from == RANK_UNKNOWN ? net->rank : claims->from,
            (unsigned long long)(from == RANK_UNKNOWN ? net->generation : claims->generation));
    }
    if (claims->kind != (uint8_t)conn->kind || claims->size != net->size) {
        return rf__fail(why, RF_EPROTO, 0, "worker %d sees another group or transport", net->rank);
    }
    if (from == RANK_UNKNOWN && claims->to != net->rank) {
        return rf__fail(why, RF_ENOTFOUND, 0, "this is worker %d, not %d", net->rank, claims->to);
    }
    if (from != RANK_UNKNOWN && claims->from != from) {
        return rf__fail(why, RF_ENOTFOUND, 0, "worker %d answers where %d should be", claims->from,
                        from);
    }
    if (claims->from <= net->rank && from == RANK_UNKNOWN) {
        return rf__fail(why, RF_EPROTO, 0, "worker %d must not dial worker %d", claims->from,
                        net->rank);
    }
    if (claims->from < 0 || claims->from >= net->size ||
        net->links[claims->from].kind != conn->kind) {
        return rf__fail(why, RF_EPROTO, 0, "worker %d expects another transport", net->rank);
    }
    return 0;
}

/* ---- Dialling ---- */

static bool is_hopeless(int code) {
    return code == RF_EAUTH || code == RF_EREVOKED;
}

static bool dials(const struct rf__os_net *net, int peer) {
    return net->rank > peer;
}

static int candidates(const struct rf__link *link) {
    return link->kind == RF__LINK_SHM ? 1 : link->endpoint.count;
}

/* The peer's address number `index` as text. */
static void candidate_text(const struct rf__link *link, int index, char out[RF__ADDRESS_TEXT]) {
    if (link->kind == RF__LINK_SHM) {
        snprintf(out, RF__ADDRESS_TEXT, "unix:%s", link->endpoint.name);
    } else {
        rf__address_format(&link->endpoint.addresses[index], out);
    }
}

/* Takes note of a failed attempt; `error` has code and text. */
static void attempt_failed(struct rf__link *link, int index, const struct rf_error *error) {
    char text[RF__ADDRESS_TEXT];

    candidate_text(link, index, text);
    if (!link->hopeless) {
        link->last = *error;
        (void)rf__wrap(&link->last, RF_ECONNECT, "%s: ", text);
    }
    link->hopeless = link->hopeless || is_hopeless(error->code);
}

static int start_handshake(struct rf__conn *conn, struct rf_error *err) {
    struct rf__os_net *net = conn->net;
    struct rf__auth_options options = {.purpose = RF__AUTH_LINK,
                                       .listener = conn->role == RF__CONN_ACCEPT,
                                       .key = net->key,
                                       .key_bytes = net->key_bytes};

    options.claims_bytes = claims_write(net, conn->kind, conn->peer, options.claims);
    conn->auth = rf__alloc(1, sizeof *conn->auth);
    if (!conn->auth) {
        return rf__fail(err, RF_ENOMEM, 0, "a handshake");
    }
    return rf__auth_start(conn->auth, &options, err);
}

static void dial(struct rf__os_net *net, struct rf__link *link, int index, int64_t now) {
    int peer = rf__link_rank(net, link);
    struct rf_error error;
    int fd = link->kind == RF__LINK_SHM ? rf__shm_dial(link->endpoint.name)
                                        : rf__tcp_dial(&link->endpoint.addresses[index]);

    if (fd < 0) {
        (void)rf__fail(&error, RF_ECONNECT, -fd, "connecting");
        attempt_failed(link, index, &error);
        return;
    }
    struct rf__conn *conn = conn_new(net, fd, RF__CONN_DIAL, link->kind, peer, &error);
    if (!conn) {
        attempt_failed(link, index, &error);
        return;
    }
    conn->candidate = index;
    conn->connecting = link->kind == RF__LINK_TCP;
    conn->deadline = now + handshake_limit(net);
    snprintf(conn->local, sizeof conn->local, "%s",
             link->kind == RF__LINK_SHM ? net->unix_listener.local : "?");
    candidate_text(link, index, conn->remote);
    if (!conn->connecting && start_handshake(conn, &error)) {
        attempt_failed(link, index, &error);
        conn_free(net, conn);
        return;
    }
    link->attempts++;
}

/* Gives a peer up: all that is known goes into the report. */
static void give_up(struct rf__os_net *net, struct rf__link *link, bool late) {
    char tried[RF_ERROR_DETAIL_MAX] = "";
    int peer = rf__link_rank(net, link);
    size_t used = 0;
    struct rf_error error;
    const char *own =
        link->kind == RF__LINK_SHM ? net->unix_listener.local : net->tcp_listener.local;
    const struct rf_error *last = dials(net, peer) ? &link->last : &net->stranger;
    long long limit_ms = connect_limit(net) / RF__MS;

    for (int i = 0; i < candidates(link) && used + RF__ADDRESS_TEXT + 2 < sizeof tried; i++) {
        char text[RF__ADDRESS_TEXT];
        candidate_text(link, i, text);
        used += (size_t)snprintf(tried + used, sizeof tried - used, "%s%s", i ? ", " : "", text);
    }
    if (!dials(net, peer)) {
        const char *accepting = net->accept_errno ? strerrordesc_np(net->accept_errno) : NULL;
        (void)rf__fail(&error, RF_ECONNECT, net->accept_errno,
                       "worker %d did not connect with worker %d (%s) within %lld ms%s%.100s%s",
                       peer, net->rank, own, limit_ms, last->code ? "; last turned away: " : "",
                       last->code ? last->text : "", accepting ? "; accepting" : "");
        rf__detail(error.why, "%s",
                   accepting    ? accepting
                   : last->code ? last->text
                                : "no connection came");
    } else {
        (void)rf__fail(&error, is_hopeless(last->code) ? last->code : RF_ECONNECT,
                       last->sys_errno ? last->sys_errno : 0, "%s", "");
        snprintf(error.text, sizeof error.text, "worker %d cannot connect with worker %d%s: %.200s",
                 net->rank, peer, late ? " in time" : "", last->code ? last->text : "no answer");
        rf__detail(error.why, "%s", last->code ? last->text : "no answer");
    }
    rf__detail(error.what, "workers %d and %d could not be connected for generation %llu",
               net->rank, peer, (unsigned long long)net->generation);
    rf__detail(error.where, "%s -> %.180s", own, tried);
    link_fails(net, link, &error);
}

static bool skipped(const struct rf__os_net *net, const struct rf__link *link, int index) {
    return link->kind == RF__LINK_TCP &&
           rf__address_is_loopback(&link->endpoint.addresses[index]) &&
           strcmp(link->endpoint.host, net->endpoint.host) != 0;
}

/* One address after the other, a little apart; after the last of them a pause and a new round. */
static bool dial_on(struct rf__os_net *net, struct rf__link *link, int64_t now) {
    bool happened = false;

    while (link->next_candidate < candidates(link) && now >= link->retry_at) {
        int index = link->next_candidate++;
        if (skipped(net, link, index)) {
            continue;
        }
        int before = link->attempts;
        dial(net, link, index, now);
        happened = true;
        link->retry_at = link->attempts > before ? now + STAGGER : now;
    }
    if (link->next_candidate < candidates(link) || link->attempts) {
        return happened;
    }
    if (link->hopeless) {
        give_up(net, link, false);
        return true;
    }
    link->next_candidate = 0;
    link->retry_at = now + link->retry_delay;
    link->retry_delay = at_most(2 * link->retry_delay, RETRY_MOST);
    return happened;
}

/* ---- Handshakes ---- */

/* A connection that is no link yet comes to nothing. */
static void conn_fails(struct rf__os_net *net, struct rf__conn *conn, const struct rf_error *why,
                       int64_t now) {
    if (conn->role == RF__CONN_DIAL) {
        struct rf__link *link = &net->links[conn->peer];
        link->attempts--;
        attempt_failed(link, conn->candidate, why);
        link->retry_at = link->next_candidate < candidates(link) ? now : link->retry_at;
        net->work = true;
    } else {
        net->stranger = *why;
        (void)rf__wrap(&net->stranger, RF_ECONNECT, "%s: ", conn->remote);
    }
    conn_free(net, conn);
}

static void link_up(struct rf__os_net *net, struct rf__conn *conn) {
    struct rf__link *link = &net->links[conn->peer];

    drop_attempts(net, conn->peer, conn);
    conn_unlist(net, conn);
    conn->role = RF__CONN_LINK;
    link->conn = conn;
    link->state = RF__LINK_UP;
    link->attempts = 0;
    if (conn->kind == RF__LINK_TCP) {
        rf__tcp_tune(conn->source.fd, net->detect_ns);
        net->has_tcp = true;
    }
    net->work = true;
    note(net, RF__NET_UP, conn->peer);
}

static void decide(struct rf__os_net *net, struct rf__conn *conn) {
    struct claims claims;
    struct rf_error why;
    int code;

    if (!claims_read(conn->auth, &claims)) {
        code = rf__fail(&why, RF_EPROTO, 0, "the claims of a handshake cannot be read");
    } else {
        code = judge(net, conn, &claims, RANK_UNKNOWN, &why);
    }
    if (!code) {
        struct rf__link *link = &net->links[claims.from];
        bool taken = link->state != RF__LINK_PENDING;
        for (const struct rf__conn *other = net->conns; other && !taken; other = other->next) {
            taken = other->peer == claims.from && other != conn && other->role == RF__CONN_ACCEPT;
        }
        if (link->state == RF__LINK_OVER || link->state == RF__LINK_SHUT) {
            code = rf__fail(&why, RF_EREVOKED, 0, "worker %d has given worker %d up", net->rank,
                            claims.from);
        } else if (taken) {
            code = rf__fail(&why, RF_ECONFLICT, 0, "worker %d is connected already", claims.from);
        }
    }
    if (code) {
        rf__auth_refuse(conn->auth, code, why.text);
        return;
    }
    conn->peer = claims.from;
    rf__auth_accept(conn->auth);
}

static int send_output(struct rf__conn *conn, struct rf_error *why) {
    const void *bytes;
    size_t count;

    while (conn->writable && (count = rf__auth_output(conn->auth, &bytes)) > 0) {
        ssize_t sent = send(conn->source.fd, bytes, count, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno == EAGAIN) {
            conn->writable = false;
        } else if (sent < 0 && errno != EINTR) {
            return rf__fail(why, RF_ECONNECT, errno, "in the handshake");
        } else if (sent > 0) {
            rf__auth_sent(conn->auth, (size_t)sent);
        }
    }
    return 0;
}

static int take_input(struct rf__conn *conn, struct rf_error *why) {
    unsigned char bytes[RF__AUTH_MESSAGE];
    size_t wanted = rf__auth_wants(conn->auth);
    ssize_t got =
        recv(conn->source.fd, bytes, wanted < sizeof bytes ? wanted : sizeof bytes, MSG_DONTWAIT);

    if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
        conn->readable = errno == EINTR;
        return 0;
    }
    if (got <= 0) {
        return rf__fail(why, RF_ECONNECT, got < 0 ? errno : 0, "in the handshake%s",
                        got ? "" : ": closed by the other side");
    }
    (void)rf__auth_input(conn->auth, bytes, (size_t)got);
    return 0;
}

/* As far as it goes without waiting: 1 when done, 0 not yet, or an error. */
static int shake_hands(struct rf__os_net *net, struct rf__conn *conn, struct rf_error *why) {
    struct rf__auth *auth = conn->auth;
    const void *bytes;
    int rc = 0;

    for (;;) {
        if (rf__auth_decides(auth)) {
            decide(net, conn);
        }
        rc = send_output(conn, why);
        if (rc) {
            /* What the other side said before it hung up is the better reason. */
            conn->writable = false;
        }
        if (auth->state == RF__AUTH_FAILED && (rc || !rf__auth_output(auth, &bytes))) {
            *why = auth->error;
            return auth->error.code;
        }
        if (auth->state != RF__AUTH_RUNNING) {
            return auth->state == RF__AUTH_DONE ? 1 : rc;
        }
        if (!conn->readable || !rf__auth_wants(auth)) {
            return rc;
        }
        struct rf_error ignored;
        int failed = take_input(conn, rc ? &ignored : why);
        if (failed || rc) {
            rc = rc ? rc : failed;
            if (failed) {
                return rc;
            }
        }
    }
}

/* The handshake is done. The dialler holds the listener's claims against what it wanted. */
static int settle(struct rf__os_net *net, struct rf__conn *conn, struct rf_error *why) {
    struct claims claims;

    if (conn->role == RF__CONN_DIAL) {
        if (!claims_read(conn->auth, &claims)) {
            return rf__fail(why, RF_EPROTO, 0, "the claims of a handshake cannot be read");
        }
        int code = judge(net, conn, &claims, conn->peer, why);
        if (code) {
            return code;
        }
    }
    rf__free(conn->auth);
    conn->auth = NULL;
    return 0;
}

/* One connection that is no link yet; true if anything happened. It may be gone afterwards. */
static bool advance(struct rf__os_net *net, struct rf__conn *conn, int64_t now) {
    struct rf_error why = {0};
    int rc = 0;

    if (conn->connecting && (conn->readable || conn->writable)) {
        int error = rf__tcp_connected(conn);
        if (error == ENOTCONN) {
            return false;
        }
        conn->connecting = false;
        rc = error ? rf__fail(&why, RF_ECONNECT, error, "connecting") : start_handshake(conn, &why);
    }
    if (!rc && !conn->connecting && conn->auth) {
        rc = shake_hands(net, conn, &why);
        rc = rc == 1 ? settle(net, conn, &why) : rc;
    }
    if (!rc && !conn->connecting && !conn->auth) {
        rc = conn->kind == RF__LINK_TCP
                 ? 1
                 : rf__shm_introduce(net, conn, &net->links[conn->peer], &why);
    }
    if (rc > 0) {
        link_up(net, conn);
        return true;
    }
    if (!rc && now >= conn->deadline) {
        rc = rf__fail(&why, RF_ETIMEDOUT, 0, "%s within %lld ms",
                      conn->connecting ? "no connection" : "no handshake",
                      (long long)(handshake_limit(net) / RF__MS));
    }
    if (rc) {
        conn_fails(net, conn, &why, now);
        return true;
    }
    return false;
}

/* Said good-bye: reads and drops until the peer ends too. */
static bool fade(struct rf__os_net *net, struct rf__conn *conn, int64_t now) {
    char bytes[4096];
    bool over = now >= conn->deadline;

    while (!over && conn->readable) {
        ssize_t got = recv(conn->source.fd, bytes, sizeof bytes, MSG_DONTWAIT);
        conn->readable = got > 0 || (got < 0 && errno == EINTR);
        over = !got || (got < 0 && errno != EAGAIN && errno != EINTR);
    }
    if (over) {
        conn_free(net, conn);
    }
    return over;
}

static void evict_stranger(struct rf__os_net *net) {
    for (struct rf__conn *conn = net->conns; conn; conn = conn->next) {
        if (conn->role == RF__CONN_ACCEPT && conn->auth) {
            conn_free(net, conn);
            return;
        }
    }
}

static bool accept_all(struct rf__os_net *net, struct rf__conn *listener, int64_t now) {
    bool happened = false;

    while (listener->readable && listener->source.fd >= 0) {
        int fd = rf__tcp_accept(listener->source.fd);
        if (fd == -EAGAIN) {
            listener->readable = false;
        } else if (fd == -EMFILE || fd == -ENFILE || fd == -ENOMEM || fd == -ENOBUFS) {
            net->accept_errno = -fd; /* tried again a little later */
            break;
        }
        if (fd < 0) {
            continue; /* that one is gone, others may wait */
        }
        net->accept_errno = 0;
        if (net->accepted >= STRANGERS + 2 * net->size) {
            evict_stranger(net);
        }
        struct rf__conn *conn =
            conn_new(net, fd, RF__CONN_ACCEPT, listener->kind, RANK_UNKNOWN, NULL);
        if (!conn) {
            continue;
        }
        conn->deadline = now + handshake_limit(net);
        snprintf(conn->local, sizeof conn->local, "%s", listener->local);
        snprintf(conn->remote, sizeof conn->remote, "unix");
        if ((conn->kind == RF__LINK_TCP && rf__tcp_connected(conn)) ||
            start_handshake(conn, NULL)) {
            conn_free(net, conn);
        }
        happened = true;
    }
    return happened;
}

/* ---- Pump ---- */

static bool nothing_unread(struct rf__link *link) {
    int bytes = 0;

    if (link->kind == RF__LINK_SHM) {
        return rf__shm_empty(link);
    }
    return link->ahead_at == link->ahead_bytes &&
           (link->no_read || (!ioctl(link->conn->source.fd, FIONREAD, &bytes) && !bytes));
}

static void tend_link(struct rf__os_net *net, struct rf__link *link, bool probe, int64_t now) {
    struct rf__conn *conn = link->conn;
    struct rf_error why;

    if (link->kind == RF__LINK_SHM && conn->readable) {
        rf__shm_notice(net, link);
    }
    if (link->kind == RF__LINK_TCP && conn->hung_up && !link->ending) {
        rf__tcp_end_reason(net, link, &why);
        rf__link_ends(net, link, &why);
    }
    if (link->kind == RF__LINK_TCP && probe && !link->ending && rf__tcp_silent(net, link, &why)) {
        link->no_write = true;
        rf__link_ends(net, link, &why);
        rf__link_drained(net, link);
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
        } else if (link->state == RF__LINK_PENDING && now >= link->deadline) {
            give_up(net, link, true);
        } else if (link->state == RF__LINK_PENDING && dials(net, peer)) {
            happened = dial_on(net, link, now) || happened;
        }
        happened = happened || net->note_count > notes;
    }
    if (probe) {
        net->probe_at = now + net->detect_ns / 4;
    }
    return happened;
}

static void set_timer(struct rf__os_net *net, int64_t now) {
    int64_t at = net->has_tcp ? net->probe_at : RF__NEVER;

    for (const struct rf__conn *conn = net->conns; conn; conn = conn->next) {
        at = at_most(at, conn->deadline);
    }
    for (int peer = 0; net->opened && peer < net->size; peer++) {
        const struct rf__link *link = &net->links[peer];
        if (link->state == RF__LINK_PENDING) {
            at = at_most(at, link->deadline);
            if (dials(net, peer) && link->next_candidate < candidates(link)) {
                at = at_most(at, link->retry_at);
            }
        } else if (link->state == RF__LINK_UP && link->ending) {
            at = at_most(at, link->end_by);
        }
    }
    if (net->accept_errno) {
        at = at_most(at, now + RETRY_ACCEPT);
    }
    if (net->work) {
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
    net->work = false;
    happened = accept_all(net, &net->unix_listener, now) || happened;
    happened = accept_all(net, &net->tcp_listener, now) || happened;
    /* A connection that comes up ends others of the same peer, the next in the list maybe: start
     * over after each. */
    for (struct rf__conn *conn = net->conns; conn; conn = next) {
        next = conn->next;
        bool changed =
            conn->role == RF__CONN_CLOSING ? fade(net, conn, now) : advance(net, conn, now);
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

static ssize_t net_write(struct rf__net *base, int peer, const struct iovec *parts, int count) {
    struct rf__os_net *net = of(base);
    struct rf__link *link = link_of(net, peer);

    if (link->state == RF__LINK_PENDING) {
        return 0;
    }
    if (link->state != RF__LINK_UP || link->no_write) {
        return RF_ELOST;
    }
    return link->kind == RF__LINK_SHM ? rf__shm_write(net, link, parts, count)
                                      : rf__tcp_write(net, link, parts, count);
}

static ssize_t net_read(struct rf__net *base, int peer, void *buffer, size_t bytes) {
    struct rf__os_net *net = of(base);
    struct rf__link *link = link_of(net, peer);

    if (link->state == RF__LINK_PENDING) {
        return 0;
    }
    if (!link->conn) {
        return RF_ELOST;
    }
    return link->kind == RF__LINK_SHM ? rf__shm_read(net, link, buffer, bytes)
                                      : rf__tcp_read(net, link, buffer, bytes);
}

static ssize_t net_peek(struct rf__net *base, int peer, const void **view, size_t bytes) {
    struct rf__os_net *net = of(base);
    struct rf__link *link = link_of(net, peer);

    if (link->kind != RF__LINK_SHM) {
        return RF_EUNSUPPORTED;
    }
    if (link->state == RF__LINK_PENDING) {
        return 0;
    }
    return link->conn ? rf__shm_peek(net, link, view, bytes) : RF_ELOST;
}

static void net_consume(struct rf__net *base, int peer, size_t bytes) {
    struct rf__os_net *net = of(base);
    struct rf__link *link = link_of(net, peer);

    RF_ASSERT(link->kind == RF__LINK_SHM && link->conn);
    rf__shm_consume(net, link, bytes);
}

static void net_shutdown(struct rf__net *base, int peer) {
    struct rf__os_net *net = of(base);
    struct rf__link *link = link_of(net, peer);
    struct rf__conn *conn = link->conn;

    drop_attempts(net, peer, NULL);
    link->state = RF__LINK_SHUT;
    link->conn = NULL;
    if (conn && conn->kind == RF__LINK_TCP) {
        /* Closing at once with unread bytes would reset the connection and lose what was written.
         */
        (void)shutdown(conn->source.fd, SHUT_WR);
        conn->deadline = rf__now() + GOODBYE;
        conn->readable = true;
        conn->role = RF__CONN_CLOSING;
        conn->next = net->conns;
        net->conns = conn;
    } else if (conn) {
        link->conn = conn;
        rf__shm_goodbye(link);
        link->conn = NULL;
        conn_free(net, conn);
    }
    rf__shm_unlink(link);
    rf__free(link->ahead);
    link->ahead = NULL;
    link->ahead_at = link->ahead_bytes = 0;
    net->work = true;
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

    if (link->control && link->conn) {
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
            conn_free(net, conn);
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

/* Shared memory where both are on one host and both offer it, else TCP where both offer that. */
static int choose_kind(struct rf__os_net *net, int peer, struct rf_error *err) {
    struct rf__link *link = &net->links[peer];
    bool local = !strcmp(link->endpoint.host, net->endpoint.host);

    if (local && link->endpoint.name[0] && net->endpoint.name[0]) {
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
        link->state = RF__LINK_PENDING;
        link->deadline = now + connect_limit(net);
        link->retry_delay = RETRY_FIRST;
    }
    if (local >= RF_MAX_LOCAL_RANKS) {
        return rf__fail(err, RF_ELIMIT, 0, "%d workers on one host, and %d is the most", local + 1,
                        RF_MAX_LOCAL_RANKS);
    }
    return rf__shm_open(net, err);
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
    close_links(net);
    linger(net, at_most(net->detect_ns / 4, GRACE_MOST));
    while (net->conns) {
        conn_free(net, net->conns);
    }
    drop_listener(net, &net->tcp_listener);
    drop_listener(net, &net->unix_listener);
    drop_listener(net, &net->timer);
    drop_listener(net, &net->bell);
    rf__arena_destroy(&net->arena);
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
    .destroy = net_destroy,
};

static const struct rf__shared_ops shared_ops = {
    .alloc = shared_alloc,
    .release = shared_release,
    .find = shared_find,
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

int rf__net_create(const struct rf__net_options *options, struct rf__poller *poller,
                   struct rf__net **out, struct rf_error *err) {
    struct rf__os_net *net = NULL;
    int rc;

    *out = NULL;
    if (!options->job || !options->key || strlen(options->job) >= RF_MAX_JOB_NAME ||
        options->key_bytes < RF_MIN_KEY_BYTES || options->key_bytes > RF_MAX_KEY_BYTES ||
        options->port < 0 || options->port > 65535) {
        return rf__fail(err, RF_EINVAL, 0, "a net's job, key or port");
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
    net->detect_ns = (options->detect_ms > 0 ? options->detect_ms : 3000) * RF__MS;
    net->wake_at = RF__NEVER;
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
