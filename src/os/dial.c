/* Who dials whom, and how a socket becomes a link: addresses tried in turn, the handshake, and the
 * judging of what the other side claims to be. The rank that is higher dials. Nobody is believed
 * before its proof; how many may be on their way to it is bounded, and so is their time. */
#include "base/assert.h"
#include "base/cursor.h"
#include "base/mem.h"
#include "base/status.h"
#include "os/net_internal.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { CLAIMS_VERSION = 3, RANK_UNKNOWN = -1, STRANGERS = 64 };

#define STAGGER     (30 * RF__MS) /* between the addresses of one peer */
#define RETRY_FIRST (10 * RF__MS) /* between rounds; doubles */
#define RETRY_MOST  (200 * RF__MS)

/* For one attempt, or one stranger. */
static int64_t handshake_limit(const struct rf__os_net *net) {
    return rf__sooner(net->detect_ns + 200 * RF__MS, 5000 * RF__MS);
}

/* ---- Claims ---- */

struct claims {
    uint8_t version, kind, stream;
    uint64_t generation;
    int32_t from, to, size;
    char job[RF_MAX_JOB_NAME];
};

static size_t claims_write(const struct rf__os_net *net, const struct rf__conn *conn,
                           unsigned char out[RF__AUTH_CLAIMS]) {
    struct rf__writer w = rf__writer(out, RF__AUTH_CLAIMS);
    size_t job_bytes = strlen(net->job);

    rf__write_u8(&w, CLAIMS_VERSION);
    rf__write_u8(&w, (uint8_t)conn->kind);
    rf__write_u8(&w, (uint8_t)conn->stream);
    rf__write_u64(&w, net->generation);
    rf__write_u32(&w, (uint32_t)net->rank);
    rf__write_u32(&w, (uint32_t)conn->peer);
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
    out->stream = rf__read_u8(&r);
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

bool rf__net_dials(const struct rf__os_net *net, int peer) {
    return net->rank > peer;
}

int rf__link_candidates(const struct rf__link *link) {
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

    options.claims_bytes = claims_write(net, conn, options.claims);
    conn->auth = rf__alloc(1, sizeof *conn->auth);
    if (!conn->auth) {
        return rf__fail(err, RF_ENOMEM, 0, "a handshake");
    }
    return rf__auth_start(conn->auth, &options, err);
}

/* A connection to the peer's address number `index`, on its way; NULL and the error where it fails
 * at once. */
static struct rf__conn *start_dial(struct rf__os_net *net, struct rf__link *link, int stream,
                                   int index, int64_t now, struct rf_error *err) {
    int fd = link->kind == RF__LINK_SHM ? rf__shm_dial(link->endpoint.name)
                                        : rf__tcp_dial(&link->endpoint.addresses[index]);

    if (fd < 0) {
        (void)rf__fail(err, RF_ECONNECT, -fd, "connecting");
        return NULL;
    }
    struct rf__conn *conn =
        rf__conn_new(net, fd, RF__CONN_DIAL, link->kind, rf__link_rank(net, link), err);
    if (!conn) {
        return NULL;
    }
    conn->stream = stream;
    conn->candidate = index;
    conn->connecting = link->kind == RF__LINK_TCP;
    conn->deadline = now + handshake_limit(net);
    snprintf(conn->local, sizeof conn->local, "%s",
             link->kind == RF__LINK_SHM ? net->unix_listener.local : "?");
    candidate_text(link, index, conn->remote);
    if (!conn->connecting && start_handshake(conn, err)) {
        rf__conn_free(net, conn);
        return NULL;
    }
    return conn;
}

static void dial(struct rf__os_net *net, struct rf__link *link, int index, int64_t now) {
    struct rf_error error;

    if (start_dial(net, link, 0, index, now, &error)) {
        link->attempts++;
    } else {
        attempt_failed(link, index, &error);
    }
}

/* Gives a peer up: all that is known goes into the report. */
void rf__link_give_up(struct rf__os_net *net, struct rf__link *link, bool late) {
    char tried[RF_ERROR_DETAIL_MAX] = "";
    int peer = rf__link_rank(net, link);
    size_t used = 0;
    struct rf_error error;
    const char *own =
        link->kind == RF__LINK_SHM ? net->unix_listener.local : net->tcp_listener.local;
    const struct rf_error *last = rf__net_dials(net, peer) ? &link->last : &net->stranger;
    long long limit_ms = rf__net_connect_limit(net) / RF__MS;

    for (int i = 0; i < rf__link_candidates(link) && used + RF__ADDRESS_TEXT + 2 < sizeof tried;
         i++) {
        char text[RF__ADDRESS_TEXT];
        candidate_text(link, i, text);
        used += (size_t)snprintf(tried + used, sizeof tried - used, "%s%s", i ? ", " : "", text);
    }
    if (!rf__net_dials(net, peer)) {
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
    rf__link_fails(net, link, &error);
}

static bool skipped(const struct rf__os_net *net, const struct rf__link *link, int index) {
    return link->kind == RF__LINK_TCP &&
           rf__address_is_loopback(&link->endpoint.addresses[index]) &&
           strcmp(link->endpoint.host, net->endpoint.host) != 0;
}

/* One address after the other, a little apart; after the last of them a pause and a new round. */
bool rf__link_dial(struct rf__os_net *net, struct rf__link *link, int64_t now) {
    bool happened = false;

    while (link->next_candidate < rf__link_candidates(link) && now >= link->retry_at) {
        int index = link->next_candidate++;
        if (skipped(net, link, index)) {
            continue;
        }
        int before = link->attempts;
        dial(net, link, index, now);
        happened = true;
        link->retry_at = link->attempts > before ? now + STAGGER : now;
    }
    if (link->next_candidate < rf__link_candidates(link) || link->attempts) {
        return happened;
    }
    if (link->hopeless) {
        rf__link_give_up(net, link, false);
        return true;
    }
    link->next_candidate = 0;
    link->retry_delay =
        link->retry_delay ? rf__sooner(2 * link->retry_delay, RETRY_MOST) : RETRY_FIRST;
    link->retry_at = now + link->retry_delay;
    return happened;
}

/* The streams beside the first, one after the other, to the address of the first. One that comes to
 * nothing is done without. */
bool rf__link_dial_more(struct rf__os_net *net, struct rf__link *link, int64_t now) {
    struct rf_error ignored;
    bool is_due = link->state == RF__LINK_UP && !link->ending && link->more && !link->dialling &&
                  link->dialled < net->streams - 1 &&
                  rf__net_dials(net, rf__link_rank(net, link)) && !rf__net_is_muted(net);

    if (is_due) {
        int stream = ++link->dialled;
        link->dialling =
            start_dial(net, link, stream, link->conn->candidate, now, &ignored) != NULL;
        net->work = true;
    }
    return is_due;
}

/* ---- Handshakes ---- */

/* A connection that is no link yet comes to nothing. */
static void conn_fails(struct rf__os_net *net, struct rf__conn *conn, const struct rf_error *why,
                       int64_t now) {
    if (conn->stream) {
        struct rf__link *link = &net->links[conn->peer];
        link->dialling = false;
        link->dialled = why->code == RF_ELIMIT ? net->streams : link->dialled; /* no more wanted */
        net->work = true;
    } else if (conn->role == RF__CONN_DIAL) {
        struct rf__link *link = &net->links[conn->peer];
        link->attempts--;
        attempt_failed(link, conn->candidate, why);
        link->retry_at = link->next_candidate < rf__link_candidates(link) ? now : link->retry_at;
        net->work = true;
    } else {
        net->stranger = *why;
        (void)rf__wrap(&net->stranger, RF_ECONNECT, "%s: ", conn->remote);
    }
    rf__conn_free(net, conn);
}

static bool takes_stream(const struct rf__os_net *net, const struct rf__link *link) {
    return link->state == RF__LINK_UP && !link->ending && link->more &&
           link->more_count < net->streams - 1;
}

static void stream_up(struct rf__os_net *net, struct rf__conn *conn) {
    struct rf__link *link = &net->links[conn->peer];

    link->dialling = false;
    net->work = true;
    if (!takes_stream(net, link)) {
        rf__conn_free(net, conn);
        return;
    }
    rf__conn_unlist(net, conn);
    conn->role = RF__CONN_LINK;
    rf__tcp_tune(net, conn->source.fd);
    link->more[link->more_count++] = conn;
    net->base.lanes[conn->peer] = 1 + link->more_count;
}

static void link_up(struct rf__os_net *net, struct rf__conn *conn) {
    struct rf__link *link = &net->links[conn->peer];

    rf__conn_drop(net, conn->peer, conn);
    rf__conn_unlist(net, conn);
    conn->role = RF__CONN_LINK;
    link->conn = conn;
    link->state = RF__LINK_UP;
    link->attempts = 0;
    if (conn->kind == RF__LINK_TCP) {
        rf__tcp_tune(net, conn->source.fd);
        net->has_tcp = true;
        /* without memory for more there is one stream */
        link->more = net->streams > 1
                         ? rf__alloc((size_t)net->streams - 1, sizeof(struct rf__conn *))
                         : NULL;
    }
    net->work = true;
    rf__net_note(net, RF__NET_UP, conn->peer);
}

/* Whether the link that somebody asks for, or a further stream of it, can be had: 0, or a code and
 * text. */
static int admit(const struct rf__os_net *net, const struct rf__conn *conn,
                 const struct claims *claims, struct rf_error *why) {
    const struct rf__link *link = &net->links[claims->from];
    bool taken = link->state != RF__LINK_PENDING;

    if (link->state == RF__LINK_OVER || link->state == RF__LINK_SHUT) {
        return rf__fail(why, RF_EREVOKED, 0, "worker %d has given worker %d up", net->rank,
                        claims->from);
    }
    if (claims->stream) {
        return takes_stream(net, link)
                   ? 0
                   : rf__fail(why, RF_ELIMIT, 0, "worker %d takes no stream %d of worker %d",
                              net->rank, claims->stream, claims->from);
    }
    for (const struct rf__conn *other = net->conns; other && !taken; other = other->next) {
        taken = other->peer == claims->from && other != conn && other->role == RF__CONN_ACCEPT;
    }
    return taken ? rf__fail(why, RF_ECONFLICT, 0, "worker %d is connected already", claims->from)
                 : 0;
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
    code = code ? code : admit(net, conn, &claims, &why);
    if (code) {
        rf__auth_refuse(conn->auth, code, why.text);
        return;
    }
    conn->peer = claims.from;
    conn->stream = claims.stream;
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

/* As far as it goes: 1 when the link is up, 0 not yet, or an error. */
static int go_on(struct rf__os_net *net, struct rf__conn *conn, struct rf_error *why) {
    int rc = 0;

    if (conn->connecting && (conn->readable || conn->writable)) {
        int error = rf__tcp_connected(conn);
        if (error == ENOTCONN) {
            return 0;
        }
        conn->connecting = false;
        rc = error ? rf__fail(why, RF_ECONNECT, error, "connecting") : start_handshake(conn, why);
    }
    if (!rc && !conn->connecting && conn->auth) {
        rc = shake_hands(net, conn, why);
        rc = rc == 1 ? settle(net, conn, why) : rc;
    }
    if (!rc && !conn->connecting && !conn->auth) {
        rc = conn->kind == RF__LINK_TCP
                 ? 1
                 : rf__shm_introduce(net, conn, &net->links[conn->peer], why);
    }
    return rc;
}

/* One connection that is no link yet; true if anything happened. It may be gone afterwards. */
bool rf__conn_advance(struct rf__os_net *net, struct rf__conn *conn, int64_t now) {
    struct rf_error why = {0};
    int rc = rf__net_is_muted(net) ? 0 : go_on(net, conn, &why);

    if (rc > 0 && conn->stream) {
        stream_up(net, conn);
        return true;
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

static void evict_stranger(struct rf__os_net *net) {
    for (struct rf__conn *conn = net->conns; conn; conn = conn->next) {
        if (conn->role == RF__CONN_ACCEPT && conn->auth) {
            rf__conn_free(net, conn);
            return;
        }
    }
}

bool rf__net_accept(struct rf__os_net *net, struct rf__conn *listener, int64_t now) {
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
            rf__conn_new(net, fd, RF__CONN_ACCEPT, listener->kind, RANK_UNKNOWN, NULL);
        if (!conn) {
            continue;
        }
        conn->deadline = now + handshake_limit(net);
        snprintf(conn->local, sizeof conn->local, "%s", listener->local);
        snprintf(conn->remote, sizeof conn->remote, "unix");
        if ((conn->kind == RF__LINK_TCP && rf__tcp_connected(conn)) ||
            start_handshake(conn, NULL)) {
            rf__conn_free(net, conn);
        }
        happened = true;
    }
    return happened;
}
