/* The connections of a store's server: accepting, the handshake, bytes in and out, and what epoll
 * is asked for. Everything of a connection is bounded: while its output is above a mark its
 * requests stay unread. */
#include "base/assert.h"
#include "base/cursor.h"
#include "base/status.h"
#include "io/clock.h"
#include "os/store_server_internal.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    ACCEPTS_AT_ONCE = 64,
    READ_AT_ONCE = 64 << 10,
    READ_A_STEP = 2 << 20,
    USER_TIMEOUT_MS = 15000
};

#define HANDSHAKE_NS (10 * 1000 * RF__MS)

static int add_connection(struct rf__store_server *server, int fd, int64_t now) {
    int yes = 1, timeout_ms = USER_TIMEOUT_MS, idle_s = 15;
    struct rf__server_conn *connection = NULL;
    struct rf__auth_options auth = {.purpose = RF__AUTH_STORE,
                                    .listener = true,
                                    .key = server->key,
                                    .key_bytes = server->key_bytes,
                                    .claims_bytes = RF__STORE_CLAIMS};
    struct rf__writer w = rf__writer(auth.claims, RF__STORE_CLAIMS);

    rf__write_u64(&w, server->id);
    if (server->connection_count == server->connection_capacity) {
        size_t capacity = server->connection_capacity ? 2 * server->connection_capacity : 16;
        struct rf__server_conn **grown =
            rf__grow(server->connections, capacity, sizeof(struct rf__server_conn *));
        if (!grown) {
            return RF_ENOMEM;
        }
        server->connections = grown;
        server->connection_capacity = capacity;
    }
    connection = rf__alloc(1, sizeof *connection);
    if (!connection) {
        return RF_ENOMEM;
    }
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = connection};
    if (rf__auth_start(&connection->auth, &auth, NULL) ||
        epoll_ctl(server->epoll, EPOLL_CTL_ADD, fd, &event)) {
        rf__free(connection);
        return RF_EIO;
    }
    /* A peer that is gone without a word is found out by the kernel; failing to set this only makes
     * that slower. */
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, sizeof timeout_ms);
    connection->fd = fd;
    connection->interest = EPOLLIN;
    connection->handshake_until = now + HANDSHAKE_NS;
    connection->index = server->connection_count;
    server->connections[server->connection_count++] = connection;
    return 0;
}

void rf__server_accept(struct rf__store_server *server, int64_t now) {
    for (int i = 0; i < server->listener_count; i++) {
        for (int k = 0; k < ACCEPTS_AT_ONCE; k++) {
            if (server->connection_count == RF__SERVER_CLIENTS) {
                (void)rf__server_watch_listeners(server, false);
                return;
            }
            int fd = accept4(server->listeners[i], NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
            if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM)) {
                (void)rf__server_watch_listeners(server, false);
                server->accept_again = now + RF__SERVER_ACCEPT_PAUSE;
                return;
            }
            if (fd < 0) {
                break;
            }
            if (add_connection(server, fd, now)) {
                close(fd);
            }
        }
    }
}

/* Bytes in. */

/* How many bytes may be read now: to the end of the frame at the front, or a good piece of what
 * follows. */
static size_t read_now(const struct rf__server_conn *connection) {
    size_t held = rf__buffer_held(&connection->in);
    if (held >= RF__KV_LENGTH_BYTES) {
        int64_t body = rf__kv_body_bytes(rf__buffer_front(&connection->in));
        size_t frame = RF__KV_LENGTH_BYTES + (size_t)(body < 0 ? 0 : body);
        if (frame > held + READ_AT_ONCE) {
            return frame - held;
        }
    }
    return READ_AT_ONCE;
}

/* Bytes received, 0 when there is nothing for now; the connection is dead at its end. */
static size_t receive(struct rf__server_conn *connection, void *buffer, size_t bytes) {
    ssize_t got = recv(connection->fd, buffer, bytes, 0);
    if (got > 0) {
        return (size_t)got;
    }
    if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
        connection->dead = true;
    }
    return 0;
}

bool rf__server_read_requests(struct rf__store_server *server, struct rf__server_conn *connection,
                              int64_t now) {
    size_t total = 0;

    while (rf__server_may_serve(connection) && total < READ_A_STEP) {
        size_t wanted = read_now(connection);
        unsigned char *room = rf__buffer_room(&connection->in, wanted);
        if (!room) {
            connection->dead = true;
            return true;
        }
        size_t got = receive(connection, room, wanted);
        if (!got) {
            break;
        }
        connection->in.end += got;
        total += got;
        if (!rf__server_serve_frames(server, connection, now)) {
            return false;
        }
    }
    return true;
}

static void settle_handshake(struct rf__server_conn *connection) {
    struct rf__auth *auth = &connection->auth;

    if (rf__auth_decides(auth)) {
        struct rf__reader r = rf__reader(auth->peer_claims, auth->peer_claims_bytes);
        connection->client = rf__read_u64(&r);
        if (r.failed || r.left || !connection->client) {
            rf__auth_refuse(auth, RF_EPROTO, "a client has to claim an id");
        } else {
            rf__auth_accept(auth);
            connection->accepted = true;
        }
    }
}

void rf__server_read_handshake(struct rf__server_conn *connection) {
    unsigned char buffer[RF__AUTH_MESSAGE];
    size_t wanted;

    while (!connection->dead && (wanted = rf__auth_wants(&connection->auth)) > 0) {
        RF_ASSERT(wanted <= sizeof buffer);
        size_t got = receive(connection, buffer, wanted);
        if (!got) {
            break;
        }
        (void)rf__auth_input(&connection->auth, buffer, got);
        settle_handshake(connection);
    }
}

/* Bytes out. */

static size_t send_some(struct rf__server_conn *connection, const void *bytes, size_t count) {
    ssize_t sent = send(connection->fd, bytes, count, MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN && errno != EINTR) {
        connection->dead = true;
    }
    return sent < 0 ? 0 : (size_t)sent;
}

void rf__server_flush(struct rf__server_conn *connection) {
    const void *bytes;
    size_t waiting, sent;

    while (!connection->dead && (waiting = rf__auth_output(&connection->auth, &bytes)) > 0) {
        sent = send_some(connection, bytes, waiting);
        if (!sent) {
            return;
        }
        rf__auth_sent(&connection->auth, sent);
    }
    if (connection->auth.state == RF__AUTH_FAILED) {
        connection->dead = true;
    }
    while (!connection->dead && (waiting = rf__buffer_held(&connection->out)) > 0) {
        sent = send_some(connection, rf__buffer_front(&connection->out), waiting);
        if (!sent) {
            return;
        }
        rf__buffer_take(&connection->out, sent);
    }
    if (connection->out.capacity > READ_AT_ONCE) {
        rf__buffer_free(&connection->out);
    }
    if (connection->in.capacity > 4 * READ_AT_ONCE && !rf__buffer_held(&connection->in)) {
        rf__buffer_free(&connection->in);
    }
}

/* What epoll is asked for. */

static bool has_more_to_do(const struct rf__store_server *server,
                           struct rf__server_conn *connection) {
    const void *bytes;
    size_t ignored;

    if (rf__auth_output(&connection->auth, &bytes) || rf__buffer_held(&connection->out) ||
        connection->listing.items) {
        return true;
    }
    for (size_t i = 0; i < connection->watch_count; i++) {
        if (connection->watches[i].next <= rf__kv_revision(server->kv)) {
            return true;
        }
    }
    return connection->accepted && rf__server_next_frame(connection, &ignored);
}

void rf__server_set_interest(struct rf__store_server *server, struct rf__server_conn *connection) {
    bool reads =
        connection->accepted ? rf__server_may_serve(connection) : rf__auth_wants(&connection->auth);
    uint32_t interest = (reads ? (uint32_t)EPOLLIN : 0) |
                        (has_more_to_do(server, connection) ? (uint32_t)EPOLLOUT : 0);
    if (interest == connection->interest) {
        return;
    }
    struct epoll_event event = {.events = interest, .data.ptr = connection};
    if (epoll_ctl(server->epoll, EPOLL_CTL_MOD, connection->fd, &event)) {
        connection->dead = true;
        return;
    }
    connection->interest = interest;
}

/* The end. */

void rf__server_free_conn(struct rf__server_conn *connection) {
    close(connection->fd);
    for (size_t i = 0; i < connection->watch_count; i++) {
        rf__free(connection->watches[i].prefix);
    }
    rf__server_end_listing(&connection->listing);
    rf__buffer_free(&connection->in);
    rf__buffer_free(&connection->out);
    rf__free(connection);
}

void rf__server_remove_conn(struct rf__store_server *server, struct rf__server_conn *connection) {
    struct rf__server_conn *last = server->connections[--server->connection_count];
    server->connections[connection->index] = last;
    last->index = connection->index;
    rf__server_free_conn(connection);
}
