/* The store's server. One step reads requests and applies them to the state, then syncs the journal
 * once for all of them, and only then sends what was queued: nobody hears of a change (not even a
 * reader) before it is on the disk.
 *
 * Everything of a connection is bounded: while its output is above a mark its requests stay unread
 * and its watches wait in the history. epoll is level-triggered here, so that work left for the
 * next step keeps the descriptor readable. */
#include "os/store_server.h"

#include "base/assert.h"
#include "base/cursor.h"
#include "base/status.h"
#include "kv/wire.h"
#include "os/address.h"
#include "os/auth.h"
#include "os/buffer.h"
#include "os/clock.h"
#include "os/holder.h"
#include "os/journal.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <unistd.h>

enum {
    EVENTS_AT_ONCE = 512,
    ACCEPTS_AT_ONCE = 64,
    READ_AT_ONCE = 64 << 10,
    READ_A_STEP = 2 << 20,
    OUTPUT_MARK = 1 << 20,
    BATCH_MARK = 8 << 20,
    PROGRESS_EVERY = 512, /* revisions a watch passes over before its client is told */
    BIND_TRIES = 16,
    USER_TIMEOUT_MS = 15000
};

#define HANDSHAKE_NS    (10 * 1000 * RF__MS)
#define ACCEPT_PAUSE_NS (100 * RF__MS)

struct watch {
    uint64_t number;
    int64_t next, told; /* the next revision to look at; what the client knows it has seen */
    size_t prefix_bytes;
    char *prefix;
};

/* A listing under way: it holds on to the items as they were. */
struct listing {
    uint64_t number;
    int64_t revision;
    struct rf__kv_item **items;
    size_t count, next;
};

struct connection {
    int fd;
    size_t index; /* in the server's table */
    bool dead, accepted;
    uint32_t interest;
    int64_t handshake_until;
    struct rf__auth auth;
    uint64_t client;
    struct rf__buffer in, out;
    struct watch watches[RF__SERVER_WATCHES];
    size_t watch_count;
    struct listing listing;
};

struct rf__store_server {
    int epoll;
    int listeners[RF__ADDRESSES];
    int listener_count, port;
    bool listening;       /* the listeners are in the epoll set */
    int64_t accept_again; /* when, after there were no descriptors left */
    unsigned char key[RF_MAX_KEY_BYTES];
    size_t key_bytes;
    uint64_t id;
    struct rf__kv *kv;
    struct rf__journal *journal; /* NULL: in memory only */
    struct connection **connections;
    size_t connection_count, connection_capacity;
    unsigned char *record;
    char note[RF_ERROR_TEXT_MAX];
};

/* Listening. */

static int listen_failed(const struct rf__address *address, int sys_errno, struct rf_error *err) {
    char text[RF__ADDRESS_TEXT], holder[96];
    int port = rf__address_port(address);

    rf__address_text(address, text);
    (void)rf__fail(err, RF_EADDR, sys_errno, "cannot listen on %s", text);
    if (err) {
        rf__detail(err->where, "%s", text);
        if (sys_errno == EADDRINUSE && rf__port_holder(port, holder, sizeof holder)) {
            rf__detail(err->why, "certain: %s listens on port %d", holder, port);
        }
    }
    return RF_EADDR;
}

/* An errno, or 0 and the descriptor. */
static int listen_on(const struct rf__address *address, bool alone, int *out) {
    int yes = 1, only = !alone, failed = 0;
    int fd = socket(address->at.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    if (fd < 0) {
        return errno;
    }
    failed = setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) ? errno : 0;
    if (!failed && address->at.ss_family == AF_INET6) {
        failed = setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &only, sizeof only) ? errno : 0;
    }
    if (!failed && bind(fd, (const struct sockaddr *)&address->at, address->bytes)) {
        failed = errno;
    }
    failed = !failed && listen(fd, SOMAXCONN) ? errno : failed;
    if (failed) {
        close(fd);
        return failed;
    }
    *out = fd;
    return 0;
}

static int bound_port(int fd) {
    struct rf__address address = {.bytes = sizeof address.at};
    return getsockname(fd, (struct sockaddr *)&address.at, &address.bytes)
               ? 0
               : rf__address_port(&address);
}

static void stop_listening(struct rf__store_server *server) {
    while (server->listener_count > 0) {
        close(server->listeners[--server->listener_count]);
    }
}

/* Listens on all addresses with one port; an errno and the address, or 0. */
static int listen_on_all(struct rf__store_server *server, struct rf__address *addresses, int count,
                         const struct rf__address **bad) {
    int missing = 0;

    server->port = rf__address_port(&addresses[0]);
    for (int i = 0; i < count; i++) {
        struct rf__address address = addresses[i];
        rf__address_set_port(&address, server->port);
        int *fd = &server->listeners[server->listener_count];
        int failed = listen_on(&address, count == 1, fd);
        if (failed == EAFNOSUPPORT || failed == EADDRNOTAVAIL) {
            missing = failed; /* the host has only the other kind of address */
            *bad = &addresses[i];
            continue;
        }
        if (failed) {
            *bad = &addresses[i];
            return failed;
        }
        server->listener_count++;
        server->port = server->port ? server->port : bound_port(*fd);
    }
    return server->listener_count ? 0 : missing;
}

static int start_listening(struct rf__store_server *server, const char *bind_to,
                           struct rf_error *err) {
    struct rf__address addresses[RF__ADDRESSES];
    const struct rf__address *bad = NULL;
    int count, failed = 0;

    int rc = rf__address_resolve(bind_to, 1, addresses, &count, err);
    if (rc) {
        return rc;
    }
    bool any_port = rf__address_port(&addresses[0]) == 0;
    for (int i = 0; i < (any_port ? BIND_TRIES : 1); i++) {
        failed = listen_on_all(server, addresses, count, &bad);
        if (failed != EADDRINUSE) {
            break;
        }
        if (i + 1 < BIND_TRIES && any_port) {
            stop_listening(server);
        }
    }
    return failed ? listen_failed(bad, failed, err) : 0;
}

static int watch_listeners(struct rf__store_server *server, bool on) {
    if (server->listening == on) {
        return 0;
    }
    for (int i = 0; i < server->listener_count; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
        if (epoll_ctl(server->epoll, on ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, server->listeners[i],
                      &event)) {
            return errno;
        }
    }
    server->listening = on;
    return 0;
}

/* Set-up and end. */

static int replay_record(void *context, const unsigned char *record, size_t bytes) {
    struct rf__store_server *server = context;
    return rf__kv_replay(server->kv, record, bytes);
}

static int open_journal(struct rf__store_server *server,
                        const struct rf__store_server_options *options, struct rf_error *err) {
    if (!options->journal) {
        return getrandom(&server->id, sizeof server->id, 0) == (ssize_t)sizeof server->id
                   ? 0
                   : rf__fail(err, RF_EIO, errno, "no random bytes");
    }
    struct rf__journal_options journal = {
        .path = options->journal,
        .record_max = RF__KV_RECORD_MAX,
        .compact_bytes = options->compact_bytes,
        .record = replay_record,
        .context = server,
    };
    int rc = rf__journal_open(&journal, &server->journal, err);
    if (rc) {
        return rc;
    }
    if (!rf__kv_is_whole(server->kv)) {
        return rf__fail(err, RF_EJOURNAL, 0, "journal '%s' ends within its snapshot",
                        options->journal);
    }
    server->id = rf__journal_id(server->journal);
    if (rf__journal_cut(server->journal)) {
        snprintf(server->note, sizeof server->note,
                 "journal '%s' ended in the middle of a record: %llu bytes that were never "
                 "acknowledged are cut off",
                 options->journal, (unsigned long long)rf__journal_cut(server->journal));
    }
    rf__kv_renew(server->kv, rf__now());
    return 0;
}

int rf__store_server_create(const struct rf__store_server_options *options,
                            struct rf__store_server **out, struct rf_error *err) {
    int rc = 0;
    struct rf__store_server *server = NULL;

    *out = NULL;
    if (!options->key || options->key_bytes < RF_MIN_KEY_BYTES ||
        options->key_bytes > RF_MAX_KEY_BYTES) {
        return rf__fail(err, RF_EINVAL, 0, "the job key has %zu bytes, not %d to %d",
                        options->key_bytes, RF_MIN_KEY_BYTES, RF_MAX_KEY_BYTES);
    }
    server = rf__alloc(1, sizeof *server);
    if (!server) {
        return rf__fail(err, RF_ENOMEM, 0, "no memory for the store");
    }
    memcpy(server->key, options->key, options->key_bytes);
    server->key_bytes = options->key_bytes;
    server->accept_again = INT64_MAX;
    server->epoll = epoll_create1(EPOLL_CLOEXEC);
    server->kv = rf__kv_create();
    server->record = rf__alloc(RF__KV_RECORD_MAX, 1);
    if (server->epoll < 0) {
        rc = rf__fail(err, RF_EIO, errno, "creating an epoll descriptor");
    } else if (!server->kv || !server->record) {
        rc = rf__fail(err, RF_ENOMEM, 0, "no memory for the store");
    }
    /* The address first: a second server on the same port must not touch the journal. */
    rc = rc ? rc : start_listening(server, options->bind ? options->bind : ":0", err);
    rc = rc ? rc : open_journal(server, options, err);
    if (!rc) {
        int failed = watch_listeners(server, true);
        rc = failed ? rf__fail(err, RF_EIO, failed, "watching the store's sockets") : 0;
    }
    if (!rc) {
        *out = server;
        server = NULL;
    }
    rf__store_server_destroy(server);
    return rc;
}

static void end_listing(struct listing *listing) {
    for (size_t i = listing->next; i < listing->count; i++) {
        rf__kv_release(listing->items[i]);
    }
    rf__free(listing->items);
    *listing = (struct listing){0};
}

static void free_connection(struct connection *connection) {
    close(connection->fd);
    for (size_t i = 0; i < connection->watch_count; i++) {
        rf__free(connection->watches[i].prefix);
    }
    end_listing(&connection->listing);
    rf__buffer_free(&connection->in);
    rf__buffer_free(&connection->out);
    rf__free(connection);
}

void rf__store_server_destroy(struct rf__store_server *server) {
    if (!server) {
        return;
    }
    for (size_t i = 0; i < server->connection_count; i++) {
        free_connection(server->connections[i]);
    }
    stop_listening(server);
    rf__journal_close(server->journal);
    rf__kv_destroy(server->kv);
    if (server->epoll >= 0) {
        close(server->epoll);
    }
    rf__free(server->connections);
    rf__free(server->record);
    explicit_bzero(server->key, sizeof server->key);
    rf__free(server);
}

int rf__store_server_fd(const struct rf__store_server *server) {
    return server->epoll;
}

int rf__store_server_port(const struct rf__store_server *server) {
    return server->port;
}

const char *rf__store_server_note(const struct rf__store_server *server) {
    return server->note;
}

int64_t rf__store_server_deadline(const struct rf__store_server *server) {
    int64_t soonest = rf__kv_next_expiry(server->kv);
    for (size_t i = 0; i < server->connection_count; i++) {
        const struct connection *connection = server->connections[i];
        if (!connection->accepted && connection->handshake_until < soonest) {
            soonest = connection->handshake_until;
        }
    }
    return server->accept_again < soonest ? server->accept_again : soonest;
}

/* Connections. */

static int add_connection(struct rf__store_server *server, int fd, int64_t now) {
    int yes = 1, timeout_ms = USER_TIMEOUT_MS, idle_s = 15;
    struct connection *connection = NULL;
    struct rf__auth_options auth = {.purpose = RF__AUTH_STORE,
                                    .listener = true,
                                    .key = server->key,
                                    .key_bytes = server->key_bytes,
                                    .claims_bytes = RF__STORE_CLAIMS};
    struct rf__writer w = rf__writer(auth.claims, RF__STORE_CLAIMS);

    rf__write_u64(&w, server->id);
    if (server->connection_count == server->connection_capacity) {
        size_t capacity = server->connection_capacity ? 2 * server->connection_capacity : 16;
        struct connection **grown =
            rf__grow(server->connections, capacity, sizeof(struct connection *));
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

static void accept_some(struct rf__store_server *server, int64_t now) {
    for (int i = 0; i < server->listener_count; i++) {
        for (int k = 0; k < ACCEPTS_AT_ONCE; k++) {
            if (server->connection_count == RF__SERVER_CLIENTS) {
                (void)watch_listeners(server, false);
                return;
            }
            int fd = accept4(server->listeners[i], NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
            if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM)) {
                (void)watch_listeners(server, false);
                server->accept_again = now + ACCEPT_PAUSE_NS;
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

/* Queues an event; a connection for which there is no memory ends. */
static void queue(struct connection *connection, const struct rf__kv_event *event) {
    size_t room = RF__KV_LENGTH_BYTES + RF__KV_EVENT_BYTES + event->key_bytes + event->value_bytes;
    unsigned char *at = rf__buffer_room(&connection->out, room);
    if (!at) {
        connection->dead = true;
        return;
    }
    size_t bytes = rf__kv_event_frame(event, at, room);
    RF_ASSERT(bytes == room);
    connection->out.end += bytes;
}

static void queue_item(struct connection *connection, enum rf__kv_event_kind kind, uint64_t number,
                       const struct rf__kv_item *item, int64_t store_revision) {
    struct rf__kv_event event = {
        .kind = kind,
        .deleted = item->deleted,
        .number = number,
        .key_revision = item->deleted ? 0 : item->revision,
        .store_revision = store_revision,
        .lease = item->lease,
        .key = item->key,
        .key_bytes = item->key_bytes,
        .value = item->value,
        .value_bytes = item->value_bytes,
    };
    queue(connection, &event);
}

static void queue_reply(struct connection *connection, uint64_t number, int code, const char *text,
                        const struct rf__kv_result *result) {
    struct rf__kv_event event = {.kind = RF__KV_REPLY,
                                 .number = number,
                                 .code = code,
                                 .key_revision = result->key_revision,
                                 .store_revision = result->store_revision,
                                 .lease = result->lease};
    if (code) {
        event.value = (const unsigned char *)(text ? text : rf_error_text(code));
        event.value_bytes = strlen((const char *)event.value);
    }
    queue(connection, &event);
}

/* Requests. */

static bool log_change(struct rf__store_server *server, uint64_t client,
                       const struct rf__kv_request *request) {
    if (!server->journal) {
        return true;
    }
    size_t bytes =
        rf__kv_command_record(server->kv, client, request, server->record, RF__KV_RECORD_MAX);
    RF_ASSERT(bytes);
    return rf__journal_append(server->journal, server->record, bytes) == 0;
}

/* False: a change happened that cannot be logged; the server has to end. */
static bool serve_change(struct rf__store_server *server, struct connection *connection,
                         const struct rf__kv_request *request, int64_t now) {
    char text[96];
    struct rf__kv_result result;

    if (rf__kv_change(server->kv, connection->client, request, now, &result) &&
        !log_change(server, connection->client, request)) {
        return false;
    }
    const char *why = NULL;
    if (result.code == RF_ECONFLICT) {
        snprintf(text, sizeof text, "revision %lld was expected, the key's is %lld",
                 (long long)request->revision, (long long)result.key_revision);
        why = text;
    } else if (result.code == RF_ENOTFOUND) {
        why = request->op == RF__KV_DELETE ? "there is no such key" : "there is no such lease";
    } else if (result.code == RF_ELIMIT) {
        why = "the store is full, or no longer knows this request";
    }
    queue_reply(connection, request->number, result.code, why, &result);
    return true;
}

static void serve_get(struct rf__store_server *server, struct connection *connection,
                      const struct rf__kv_request *request) {
    const struct rf__kv_item *item = rf__kv_get(server->kv, request->key, request->key_bytes);
    if (item) {
        queue_item(connection, RF__KV_REPLY, request->number, item, rf__kv_revision(server->kv));
    } else {
        struct rf__kv_result result = {.store_revision = rf__kv_revision(server->kv)};
        queue_reply(connection, request->number, RF_ENOTFOUND, "there is no such key", &result);
    }
}

static void serve_list(struct rf__store_server *server, struct connection *connection,
                       const struct rf__kv_request *request) {
    size_t first;
    struct listing *listing = &connection->listing;
    size_t count = rf__kv_range(server->kv, request->key, request->key_bytes, &first);

    *listing = (struct listing){.number = request->number, .revision = rf__kv_revision(server->kv)};
    listing->items = rf__alloc(count, sizeof(struct rf__kv_item *));
    if (!listing->items) {
        struct rf__kv_result result = {.store_revision = listing->revision};
        queue_reply(connection, request->number, RF_ENOMEM, NULL, &result);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        listing->items[i] = rf__kv_hold(rf__kv_at(server->kv, first + i));
    }
    listing->count = count;
}

static void go_on_listing(struct connection *connection) {
    struct listing *listing = &connection->listing;
    while (listing->next < listing->count && rf__buffer_held(&connection->out) < OUTPUT_MARK) {
        struct rf__kv_item *item = listing->items[listing->next++];
        queue_item(connection, RF__KV_ITEM, listing->number, item, listing->revision);
        rf__kv_release(item);
    }
    if (listing->next == listing->count) {
        struct rf__kv_result result = {.store_revision = listing->revision};
        queue_reply(connection, listing->number, 0, NULL, &result);
        end_listing(listing);
    }
}

static struct watch *find_watch(struct connection *connection, uint64_t number) {
    for (size_t i = 0; i < connection->watch_count; i++) {
        if (connection->watches[i].number == number) {
            return &connection->watches[i];
        }
    }
    return NULL;
}

static void end_watch(struct connection *connection, struct watch *watch) {
    rf__free(watch->prefix);
    *watch = connection->watches[--connection->watch_count];
}

static const char history_gone[] = "the history no longer goes back so far: list again";

static void serve_watch(struct rf__store_server *server, struct connection *connection,
                        const struct rf__kv_request *request) {
    int64_t now_at = rf__kv_revision(server->kv);
    int64_t from = request->revision ? request->revision : now_at + 1;
    struct rf__kv_result result = {.store_revision = now_at};
    int code = 0;
    const char *text = NULL;
    char *prefix = NULL;

    if (find_watch(connection, request->number)) {
        code = RF_EINVAL;
    } else if (connection->watch_count == RF__SERVER_WATCHES) {
        code = RF_ELIMIT;
        text = "too many watches on one connection";
    } else if (from < rf__kv_oldest(server->kv) || from > now_at + 1) {
        code = RF_ELIMIT;
        text = history_gone;
    } else {
        prefix = rf__alloc(request->key_bytes + 1, 1);
        code = prefix ? 0 : RF_ENOMEM;
    }
    if (!code) {
        if (request->key_bytes) {
            memcpy(prefix, request->key, request->key_bytes);
        }
        connection->watches[connection->watch_count++] =
            (struct watch){.number = request->number,
                           .next = from,
                           .told = from - 1,
                           .prefix = prefix,
                           .prefix_bytes = request->key_bytes};
    }
    queue_reply(connection, request->number, code, text, &result);
}

static void serve_unwatch(struct rf__store_server *server, struct connection *connection,
                          const struct rf__kv_request *request) {
    struct rf__kv_result result = {.store_revision = rf__kv_revision(server->kv)};
    struct watch *watch = find_watch(connection, request->lease);
    if (watch) {
        end_watch(connection, watch);
    }
    queue_reply(connection, request->number, watch ? 0 : RF_ENOTFOUND, "there is no such watch",
                &result);
}

/* Tells a watch what it has not seen, as far as there is room. */
static void go_on_watching(struct rf__store_server *server, struct connection *connection) {
    int64_t newest = rf__kv_revision(server->kv);

    for (size_t i = 0; i < connection->watch_count;) {
        struct watch *watch = &connection->watches[i];
        while (watch->next <= newest && rf__buffer_held(&connection->out) < OUTPUT_MARK) {
            const struct rf__kv_item *item = rf__kv_history(server->kv, watch->next);
            if (!item) {
                break;
            }
            if (rf__kv_has_prefix(item, watch->prefix, watch->prefix_bytes)) {
                queue_item(connection, RF__KV_CHANGE, watch->number, item, item->revision);
                watch->told = watch->next;
            }
            watch->next++;
        }
        if (watch->next < rf__kv_oldest(server->kv)) {
            struct rf__kv_result result = {.store_revision = newest};
            queue_reply(connection, watch->number, RF_ELIMIT, history_gone, &result);
            end_watch(connection, watch);
            continue;
        }
        if (watch->next - 1 - watch->told >= PROGRESS_EVERY) {
            struct rf__kv_event event = {.kind = RF__KV_PROGRESS,
                                         .number = watch->number,
                                         .store_revision = watch->next - 1};
            queue(connection, &event);
            watch->told = watch->next - 1;
        }
        i++;
    }
}

/* False where the server has to end. */
static bool serve_request(struct rf__store_server *server, struct connection *connection,
                          const unsigned char *body, size_t bytes, int64_t now) {
    struct rf__kv_request request;
    struct rf__kv_result result = {.store_revision = rf__kv_revision(server->kv)};
    int code = rf__kv_read_request(body, bytes, &request);

    if (code == RF_EPROTO) {
        connection->dead = true;
        return true;
    }
    if (code) {
        queue_reply(connection, request.number, code, NULL, &result);
        return true;
    }
    switch (request.op) {
    case RF__KV_PUT:
    case RF__KV_CAS:
    case RF__KV_DELETE:
    case RF__KV_LEASE:
    case RF__KV_REVOKE:
        return serve_change(server, connection, &request, now);
    case RF__KV_GET:
        serve_get(server, connection, &request);
        break;
    case RF__KV_LIST:
        serve_list(server, connection, &request);
        break;
    case RF__KV_KEEPALIVE:
        code = rf__kv_keepalive(server->kv, request.lease, request.ttl_ms, now);
        result.lease = request.lease;
        queue_reply(connection, request.number, code, "there is no such lease", &result);
        break;
    case RF__KV_WATCH:
        serve_watch(server, connection, &request);
        break;
    case RF__KV_UNWATCH:
        serve_unwatch(server, connection, &request);
        break;
    case RF__KV_OP_END:
        break;
    }
    return true;
}

static bool may_serve(const struct connection *connection) {
    return !connection->dead && connection->accepted && !connection->listing.items &&
           rf__buffer_held(&connection->out) < OUTPUT_MARK;
}

/* The next whole frame's body, or NULL. */
static const unsigned char *next_frame(struct connection *connection, size_t *bytes) {
    const unsigned char *front = rf__buffer_front(&connection->in);
    size_t held = rf__buffer_held(&connection->in);

    if (held < RF__KV_LENGTH_BYTES) {
        return NULL;
    }
    int64_t body = rf__kv_body_bytes(front);
    if (body < 0) {
        connection->dead = true;
        return NULL;
    }
    if (held < RF__KV_LENGTH_BYTES + (size_t)body) {
        return NULL;
    }
    *bytes = (size_t)body;
    return front + RF__KV_LENGTH_BYTES;
}

static bool serve_frames(struct rf__store_server *server, struct connection *connection,
                         int64_t now) {
    const unsigned char *body;
    size_t bytes;

    if (connection->listing.items) {
        go_on_listing(connection);
    }
    while (may_serve(connection) && (body = next_frame(connection, &bytes))) {
        if (!serve_request(server, connection, body, bytes, now)) {
            return false;
        }
        rf__buffer_take(&connection->in, RF__KV_LENGTH_BYTES + bytes);
        if (connection->listing.items) {
            go_on_listing(connection);
        }
    }
    return true;
}

/* How many bytes may be read now: to the end of the frame at the front, or a good piece of what
 * follows. */
static size_t read_now(const struct connection *connection) {
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
static size_t receive(struct connection *connection, void *buffer, size_t bytes) {
    ssize_t got = recv(connection->fd, buffer, bytes, 0);
    if (got > 0) {
        return (size_t)got;
    }
    if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
        connection->dead = true;
    }
    return 0;
}

static bool read_requests(struct rf__store_server *server, struct connection *connection,
                          int64_t now) {
    size_t total = 0;

    while (may_serve(connection) && total < READ_A_STEP) {
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
        if (!serve_frames(server, connection, now)) {
            return false;
        }
    }
    return true;
}

static void settle_handshake(struct connection *connection) {
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

static void read_handshake(struct connection *connection) {
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

/* Sending. */

static size_t send_some(struct connection *connection, const void *bytes, size_t count) {
    ssize_t sent = send(connection->fd, bytes, count, MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN && errno != EINTR) {
        connection->dead = true;
    }
    return sent < 0 ? 0 : (size_t)sent;
}

static void flush(struct connection *connection) {
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

static bool has_more_to_do(const struct rf__store_server *server, struct connection *connection) {
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
    return connection->accepted && next_frame(connection, &ignored);
}

static void set_interest(struct rf__store_server *server, struct connection *connection) {
    bool reads = connection->accepted ? may_serve(connection) : rf__auth_wants(&connection->auth);
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

static void remove_connection(struct rf__store_server *server, struct connection *connection) {
    struct connection *last = server->connections[--server->connection_count];
    server->connections[connection->index] = last;
    last->index = connection->index;
    free_connection(connection);
}

/* The step. */

static bool serve_ready(struct rf__store_server *server, const struct epoll_event *event,
                        int64_t now) {
    struct connection *connection = event->data.ptr;

    if (!connection) {
        accept_some(server, now);
        return true;
    }
    if (event->events & (EPOLLERR | EPOLLHUP)) {
        connection->dead = !(event->events & EPOLLIN);
    }
    if (!connection->accepted) {
        read_handshake(connection);
    }
    /* What waited for room first, then what is new. */
    return serve_frames(server, connection, now) && read_requests(server, connection, now);
}

static int lost_log(struct rf_error *err) {
    return rf__fail(err, RF_ENOMEM, 0, "no memory to log a change of the store");
}

static int let_leases_expire(struct rf__store_server *server, int64_t now, struct rf_error *err) {
    uint64_t lease;

    while ((lease = rf__kv_expired(server->kv, now))) {
        struct rf__kv_request request = {.op = RF__KV_REVOKE, .lease = lease};
        struct rf__kv_result result;
        if (!rf__kv_change(server->kv, 0, &request, now, &result)) {
            return rf__fail(err, result.code, 0, "lease %llu cannot be ended",
                            (unsigned long long)lease);
        }
        if (!log_change(server, 0, &request)) {
            return lost_log(err);
        }
    }
    return 0;
}

static int serve_all_ready(struct rf__store_server *server, int64_t now, struct rf_error *err) {
    struct epoll_event events[EVENTS_AT_ONCE];
    int count = epoll_wait(server->epoll, events, EVENTS_AT_ONCE, 0);

    for (int i = 0; i < count; i++) {
        if (!serve_ready(server, &events[i], now)) {
            return lost_log(err);
        }
        if (server->journal && rf__journal_pending(server->journal) >= BATCH_MARK) {
            int rc = rf__journal_sync(server->journal, err);
            if (rc) {
                return rc;
            }
        }
    }
    /* With more waiting than one round takes, some keepalives may be unread: leases wait for the
     * next step. */
    return count < EVENTS_AT_ONCE ? let_leases_expire(server, now, err) : 0;
}

static void answer_all(struct rf__store_server *server, int64_t now) {
    for (size_t i = server->connection_count; i-- > 0;) {
        struct connection *connection = server->connections[i];
        flush(connection);
        if (!connection->accepted && now >= connection->handshake_until) {
            connection->dead = true;
        }
        if (!connection->dead) {
            set_interest(server, connection);
        }
        if (connection->dead) {
            remove_connection(server, connection);
        }
    }
    bool room = server->connection_count < RF__SERVER_CLIENTS;
    if (!server->listening && room &&
        (server->accept_again == INT64_MAX || now >= server->accept_again)) {
        server->accept_again = watch_listeners(server, true) ? now + ACCEPT_PAUSE_NS : INT64_MAX;
    }
}

struct snapshot {
    const struct rf__kv *kv;
    struct rf__kv_cursor cursor;
};

static size_t next_record(void *context, unsigned char *out, size_t room) {
    struct snapshot *snapshot = context;
    return rf__kv_snapshot_record(snapshot->kv, &snapshot->cursor, out, room);
}

static int compact(struct rf__store_server *server, struct rf_error *err) {
    struct snapshot snapshot = {.kv = server->kv};
    if (!server->journal || !rf__journal_wants_compaction(server->journal)) {
        return 0;
    }
    int rc = rf__journal_compact(server->journal, next_record, &snapshot, err);
    return rc == RF_EIO ? 0 : rc;
}

int rf__store_server_step(struct rf__store_server *server, int64_t now, struct rf_error *err) {
    int rc = serve_all_ready(server, now, err);
    for (size_t i = 0; !rc && i < server->connection_count; i++) {
        if (!server->connections[i]->dead) {
            go_on_watching(server, server->connections[i]);
        }
    }
    rc = !rc && server->journal ? rf__journal_sync(server->journal, err) : rc;
    if (!rc) {
        answer_all(server, now);
        rc = compact(server, err);
    }
    return rc;
}
