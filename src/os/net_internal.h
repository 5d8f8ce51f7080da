/* What net.c, dial.c, tcp.c and shm.c share: a net, its links, and its sockets. Included by nobody
 * else but their test.
 *
 * net.c owns the events and the timers, dial.c who dials whom and the handshakes; tcp.c and shm.c
 * know how to open sockets of their kind and how to move bytes over a link that is up. */
#ifndef RF_OS_NET_INTERNAL_H
#define RF_OS_NET_INTERNAL_H

#include "io/clock.h"
#include "os/auth.h"
#include "os/endpoint.h"
#include "os/heap.h"
#include "os/net.h"

enum {
    RF__SHM_INFO = 64, /* bytes of the message that follows a handshake on a unix socket */
    RF__SHM_HEADER = RF__ARENA_ALIGN, /* control page and board; also a ring's header */
    RF__RING_MAX = 1 << 20,
    RF__RING_MIN = RF__ARENA_ALIGN,
    RF__RINGS_TOTAL = 16 << 20,
    RF__AHEAD = 16384 /* read-ahead of a TCP link: a frame's header comes with what is before it */
};

enum rf__conn_role {
    RF__CONN_DIAL,   /* an attempt to reach a peer */
    RF__CONN_ACCEPT, /* somebody who has yet to say who it is */
    RF__CONN_LINK,   /* up */
    RF__CONN_CLOSING /* said good-bye, waits for the peer's end */
};

struct rf__os_net;

/* One socket. The source comes first: callbacks get its address. */
struct rf__conn {
    struct rf__poll_source source;
    struct rf__os_net *net;
    struct rf__conn *next; /* in net->conns, unless role is LINK */
    enum rf__conn_role role;
    enum rf__link_kind kind;
    int peer;      /* -1: not known yet */
    int candidate; /* DIAL over TCP: which address */
    int stream;    /* of its link; 0: the first, which makes the link */
    bool connecting, readable, writable, hung_up, failed;
    int64_t deadline;
    struct rf__auth *auth;
    char local[RF__ADDRESS_TEXT], remote[RF__ADDRESS_TEXT];

    /* A stream of a TCP link. */
    unsigned char *ahead;
    size_t ahead_at, ahead_bytes;
    bool no_write, no_read;

    /* Shared memory, after the handshake: both sides send their info. */
    bool info_sent;
    unsigned char info[RF__SHM_INFO];
    size_t info_bytes;
    int fds[2]; /* arena, bell */
    bool over;  /* the peer has ended its side, and with it its views of the own arena */
};

/* One direction of a shared-memory link: a header and the data mapped twice in a row, so that every
 * span is contiguous. */
struct rf__ring {
    char *base; /* NULL: none */
    uint64_t capacity;
    uint64_t at;        /* the own position: head of an outbound ring, tail of an inbound one */
    uint64_t seen;      /* the other side's position, as last looked at */
    uint64_t published; /* inbound: the tail that the writer knows */
};

enum rf__link_state {
    RF__LINK_IDLE,
    RF__LINK_PENDING, /* being dialled or waited for */
    RF__LINK_UP,
    RF__LINK_OVER, /* a DOWN event was queued; what arrived may still be read */
    RF__LINK_SHUT
};

struct rf__link {
    enum rf__link_state state;
    enum rf__link_kind kind;
    struct rf__endpoint endpoint;
    struct rf__conn *conn;
    int64_t deadline; /* PENDING: when to give up */

    /* TCP: the other streams, in the order in which they came up. */
    struct rf__conn **more; /* room for net->streams - 1; NULL: there will be none */
    int more_count, dialled;
    bool dialling;         /* one is on its way */
    int64_t stream_end_by; /* when the others have to follow one that has ended; 0: none has */

    /* Dialling. */
    int64_t retry_at, retry_delay;
    int next_candidate, attempts; /* attempts in flight */
    bool hopeless;                /* the last round met a refusal that will not change */
    struct rf_error last;         /* why the last attempt failed */

    /* How it ends. */
    bool no_write, no_read;
    bool ending; /* `error` says why; the DOWN event waits for the reader until end_by */
    int64_t end_by;
    struct rf_error error;

    /* Shared memory. */
    struct rf__ring in, out;
    uint64_t out_offset;
    char *control; /* the peer's control page and board */
    int bell;      /* the peer's */
    struct rf__views views;
};

struct rf__note {
    enum rf__net_event_kind kind;
    int peer;
};

struct rf__os_net {
    struct rf__net base; /* first */
    struct rf__poller *poller;
    char job[RF_MAX_JOB_NAME];
    unsigned char key[RF_MAX_KEY_BYTES];
    size_t key_bytes;
    enum rf_transport transport;
    int64_t detect_ns;
    int streams;
    struct rf__endpoint endpoint; /* the own */

    /* Things that wake: the listeners, the timer, the own bell. */
    struct rf__conn tcp_listener, unix_listener, timer, bell;
    int accept_errno;         /* why accepting failed last */
    struct rf_error stranger; /* the last incoming connection that was turned away */

    /* Since open. */
    bool opened;
    uint64_t generation;
    int rank, size;
    struct rf__link *links;
    struct rf__conn *conns;
    int accepted; /* of conns: ACCEPT */
    struct rf__note *notes;
    int note_first, note_count;
    bool work; /* pump has something to look at */
    int64_t wake_at, probe_at;
    bool has_tcp;
    bool is_paced; /* the host paces TCP connections, see congestion.c */

    /* A rehearsed cut. What is to be closed meanwhile is kept: closing would be noticed. */
    int64_t mute_until; /* 0: none */
    int *parked;
    int parked_count;

    struct rf__arena arena;
    char (*holders)[RF__UNIX_MAX]; /* the peers that can write into the arena's file, by socket */
    int holder_count;
    uint64_t region, region_bytes;   /* control page, board, rings */
    uint64_t retired, retired_bytes; /* those of the open before */
    char *control;
};

static inline int64_t rf__sooner(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* net.c: sockets. A conn is listed in net->conns until it is a link; free also closes it; drop
 * frees all that is under way with a peer, but for `keep`. */
struct rf__conn *rf__conn_new(struct rf__os_net *net, int fd, enum rf__conn_role role,
                              enum rf__link_kind kind, int peer, struct rf_error *err);
void rf__conn_watch(struct rf__conn *conn, struct rf__os_net *net, int fd);
void rf__conn_unlist(struct rf__os_net *net, struct rf__conn *conn);
void rf__conn_free(struct rf__os_net *net, struct rf__conn *conn);
bool rf__net_is_muted(struct rf__os_net *net);
void rf__conn_drop(struct rf__os_net *net, int peer, const struct rf__conn *keep);

/* net.c: events. `ends`: the link has come to its end, the reader may still find bytes; `drained`:
 * it has found the last one; `fails`: the link never came up. A stream of several has ended, or
 * one has and bytes still come on the others: these have some time to end too. */
void rf__net_note(struct rf__os_net *net, enum rf__net_event_kind kind, int peer);
void rf__link_ends(struct rf__os_net *net, struct rf__link *link, const struct rf_error *why);
void rf__link_drained(struct rf__os_net *net, struct rf__link *link);
void rf__stream_ends(struct rf__os_net *net, struct rf__link *link);
void rf__link_fails(struct rf__os_net *net, struct rf__link *link, const struct rf_error *why);
int rf__link_rank(const struct rf__os_net *net, const struct rf__link *link);
int64_t rf__net_connect_limit(const struct rf__os_net *net);

/* dial.c. `dial`, `dial_more` (further streams) and `accept` start what is due and tell whether
 * anything happened; `advance`
 * drives one connection that is no link yet, which may be gone afterwards; `give_up` ends a link
 * that did not come up. */
bool rf__net_dials(const struct rf__os_net *net, int peer);
int rf__link_candidates(const struct rf__link *link);
bool rf__link_dial(struct rf__os_net *net, struct rf__link *link, int64_t now);
bool rf__link_dial_more(struct rf__os_net *net, struct rf__link *link, int64_t now);
void rf__link_give_up(struct rf__os_net *net, struct rf__link *link, bool late);
bool rf__conn_advance(struct rf__os_net *net, struct rf__conn *conn, int64_t now);
bool rf__net_accept(struct rf__os_net *net, struct rf__conn *listener, int64_t now);

/* tcp.c */
int rf__tcp_listen(struct rf__os_net *net, const char *bind_address, int port,
                   struct rf_error *err);

/* A socket on its way to the address, or -errno. */
int rf__tcp_dial(const struct rf__address *address);
int rf__tcp_accept(int listener); /* the socket, or -errno */

/* After connect: 0 or an errno. Notes both addresses. */
int rf__tcp_connected(struct rf__conn *conn);
void rf__tcp_tune(const struct rf__os_net *net, int fd);
bool rf__tcp_unpaced(int fd);     /* before it connects or listens; whether that changes anything */
void rf__tcp_pace_if_far(int fd); /* once connected, where it did */
ssize_t rf__tcp_write(struct rf__os_net *net, struct rf__link *link, struct rf__conn *conn,
                      const struct iovec *parts, int count);
ssize_t rf__tcp_read(struct rf__os_net *net, struct rf__link *link, struct rf__conn *conn,
                     void *buffer, size_t bytes);

/* Whether the peer's host has stopped to answer; says so in *why. */
bool rf__tcp_silent(struct rf__os_net *net, const struct rf__conn *conn, struct rf_error *why);

/* The socket says it is over: why, without reading. */
void rf__tcp_end_reason(const struct rf__conn *conn, struct rf_error *why);

/* shm.c */
int rf__shm_listen(struct rf__os_net *net, struct rf_error *err);
int rf__shm_dial(const char *name);

/* Lays out control page, board and one ring for each local peer in the own arena. */
int rf__shm_open(struct rf__os_net *net, struct rf_error *err);
void rf__shm_close(struct rf__os_net *net);

/* After the endpoints are known, before rf__shm_open: where somebody holds the arena's file who may
 * live and is not of the new group, a fresh one takes its place. */
int rf__shm_renew(struct rf__os_net *net, struct rf_error *err);
void rf__shm_let_go(struct rf__os_net *net, struct rf__conn *conn); /* before the conn is closed */

/* Sends the own info and takes the peer's: 1 when the link can be used, 0 not yet, or an error. */
int rf__shm_introduce(struct rf__os_net *net, struct rf__conn *conn, struct rf__link *link,
                      struct rf_error *err);
void rf__shm_unlink(struct rf__link *link); /* gives up the views of the peer's memory */
ssize_t rf__shm_write(struct rf__os_net *net, struct rf__link *link, const struct iovec *parts,
                      int count);
ssize_t rf__shm_read(struct rf__os_net *net, struct rf__link *link, void *buffer, size_t bytes);
ssize_t rf__shm_peek(struct rf__os_net *net, struct rf__link *link, const void **view,
                     size_t bytes);
void rf__shm_consume(struct rf__os_net *net, struct rf__link *link, size_t bytes);

/* The unix socket has news: the peer's good-bye or its end. */
void rf__shm_notice(struct rf__os_net *net, struct rf__link *link);
void rf__shm_goodbye(struct rf__link *link);
bool rf__shm_empty(struct rf__link *link);
void rf__shm_sleep(struct rf__os_net *net, bool sleeping);
void rf__shm_notify(struct rf__link *link);
void *rf__shm_board(char *control);

#endif
