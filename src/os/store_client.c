/* The store's client: a list of what is unanswered, one connection, and the machine that keeps it
 * up.
 *
 *     DOWN -> CONNECTING -> GREETING (handshake) -> READY -> DOWN …      REFUSED (the key is wrong:
 * for good)
 *
 * Requests keep the order of their numbers on the wire, and at most RF__KV_CLIENT_REPLIES changes
 * are unanswered there, which is how many replies the server remembers. A listing that was cut
 * short is asked for again and goes on behind the last key that was told; its reply then names the
 * older revision, so that a watch from there misses nothing. */
#include "os/store_client.h"

#include "base/assert.h"
#include "base/cursor.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/status.h"
#include "io/clock.h"
#include "kv/wire.h"
#include "os/address.h"
#include "os/auth.h"
#include "os/buffer.h"
#include "os/clock.h"
#include "os/store_server.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <unistd.h>

enum {
    OUTPUT_MARK = 1 << 20,
    INPUT_MARK = 1 << 20,
    READ_AT_ONCE = 64 << 10,
    BACKOFF_LEAST_MS = 20,
    BACKOFF_MOST_MS = 500,  /* a group waits for a report for its detection time */
    BACKOFF_LOCAL_MS = 200, /* towards this host, where dialling costs nobody anything */
    USER_TIMEOUT_MS = 5000
};

#define CONNECT_NS  (3000 * RF__MS)
#define GREETING_NS (5000 * RF__MS)

enum state { DOWN, CONNECTING, GREETING, READY, REFUSED };

struct pending {
    uint64_t id;
    struct rf__kv_request request; /* key and value in `bytes` */
    int64_t deadline, deadline_ms;
    bool sent, tried;      /* on this connection; on any */
    bool failed;           /* its answer is `error`, not yet told */
    bool answered;         /* WATCH: it has begun */
    int64_t next;          /* WATCH: the revision to resume from */
    int64_t list_revision; /* LIST: of the first attempt that told anything; 0: none did */
    char *last_key;        /* LIST: told last */
    struct rf_error error;
    unsigned char bytes[];
};

struct client {
    struct rf__store store; /* first */
    struct rf__poller *poller;
    struct rf__poll_source source;
    bool readable, writable;
    char uri[256];
    unsigned char key[RF_MAX_KEY_BYTES];
    size_t key_bytes;
    uint64_t id, number, server;
    struct rf__address addresses[RF__ADDRESSES];
    int address_count, address; /* the one tried last */
    int failures;               /* in a row */
    struct rf__rng rng;
    enum state state;
    int64_t until;      /* DOWN: when to dial; CONNECTING, GREETING: when to give up */
    int64_t mute_until; /* a rehearsed cut */
    int64_t backoff_most_ms;
    struct rf__auth auth;
    struct rf__buffer in, out;
    struct rf_error cause;                              /* why it is not connected */
    struct pending *pending[RF__STORE_CLIENT_REQUESTS]; /* by number */
    size_t pending_count;
    unsigned char *told; /* what the last event points at */
    size_t told_capacity;
    struct rf_error told_error;
};

static const char *op_name(enum rf__kv_op op) {
    static const char *const names[RF__KV_OP_END] = {
        [RF__KV_GET] = "get",
        [RF__KV_PUT] = "put",
        [RF__KV_CAS] = "compare-and-swap",
        [RF__KV_DELETE] = "delete",
        [RF__KV_LIST] = "list",
        [RF__KV_LEASE] = "lease",
        [RF__KV_KEEPALIVE] = "keepalive",
        [RF__KV_REVOKE] = "revoke",
        [RF__KV_WATCH] = "watch",
        [RF__KV_UNWATCH] = "unwatch",
    };
    return names[op];
}

static enum rf__kv_op wire_op(enum rf__store_op op) {
    switch (op) {
    case RF__STORE_GET:
        return RF__KV_GET;
    case RF__STORE_PUT:
        return RF__KV_PUT;
    case RF__STORE_CAS:
        return RF__KV_CAS;
    case RF__STORE_DELETE:
        return RF__KV_DELETE;
    case RF__STORE_LIST:
        return RF__KV_LIST;
    case RF__STORE_LEASE:
        return RF__KV_LEASE;
    case RF__STORE_KEEPALIVE:
        return RF__KV_KEEPALIVE;
    case RF__STORE_REVOKE:
        return RF__KV_REVOKE;
    case RF__STORE_WATCH:
        return RF__KV_WATCH;
    case RF__STORE_UNWATCH:
        return RF__KV_UNWATCH;
    }
    return RF__KV_OP_END;
}

/* The list of what is unanswered. */

static struct pending *find_id(struct client *client, uint64_t id) {
    for (size_t i = 0; i < client->pending_count; i++) {
        if (client->pending[i]->id == id) {
            return client->pending[i];
        }
    }
    return NULL;
}

static struct pending *find_number(struct client *client, uint64_t number) {
    size_t low = 0, high = client->pending_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (client->pending[middle]->request.number < number) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < client->pending_count && client->pending[low]->request.number == number
               ? client->pending[low]
               : NULL;
}

static void forget(struct client *client, struct pending *pending) {
    size_t i = 0;
    while (client->pending[i] != pending) {
        i++;
    }
    client->pending_count--;
    memmove(client->pending + i, client->pending + i + 1,
            (client->pending_count - i) * sizeof(struct pending *));
    rf__free(pending->last_key);
    rf__free(pending);
}

/* "put 'jobs/a/rank/3' at the store tcp://host:4321: " goes in front of a reason. */
static void name_request(const struct client *client, const struct pending *pending,
                         struct rf_error *err) {
    int shown = (int)(pending->request.key_bytes < 80 ? pending->request.key_bytes : 80);
    if (pending->request.op == RF__KV_UNWATCH) {
        (void)rf__wrap(err, RF_ESTORE, "the store %s: ", client->uri);
    } else if (shown) {
        (void)rf__wrap(err, RF_ESTORE, "%s '%.*s' at the store %s: ", op_name(pending->request.op),
                       shown, pending->request.key, client->uri);
    } else {
        (void)rf__wrap(err, RF_ESTORE, "%s at the store %s: ", op_name(pending->request.op),
                       client->uri);
    }
    rf__detail(err->where, "%s", client->uri);
}

static void fail_pending(const struct client *client, struct pending *pending, int code,
                         const char *reason) {
    if (pending->failed) {
        return;
    }
    pending->failed = true;
    (void)rf__fail(&pending->error, code, 0, "%s", reason);
    name_request(client, pending, &pending->error);
}

static int submit(struct rf__store *store, const struct rf__store_request *request,
                  struct rf_error *err) {
    struct client *client = (struct client *)store;
    size_t key_bytes = request->key ? strlen(request->key) : 0;
    struct rf__kv_request wire = {
        .op = wire_op(request->op),
        .revision = request->revision,
        .lease = request->lease,
        .ttl_ms = request->ttl_ms,
        .key = request->key,
        .key_bytes = key_bytes,
        .value = request->value,
        .value_bytes = request->value_bytes,
    };

    if (wire.op == RF__KV_OP_END || !request->id || find_id(client, request->id)) {
        return rf__fail(err, RF_EINVAL, 0, "a request of the store with a bad id or operation");
    }
    int rc = rf__kv_check_request(&wire);
    if (rc) {
        return rf__fail(err, rc, 0,
                        "%s of key '%.80s': the key has 1 to %d bytes, the value up to %d",
                        op_name(wire.op), request->key ? request->key : "", RF_MAX_STORE_KEY,
                        RF_MAX_STORE_VALUE);
    }
    if (client->pending_count == RF__STORE_CLIENT_REQUESTS) {
        return rf__fail(err, RF_ELIMIT, 0, "more than %d requests of the store at once",
                        RF__STORE_CLIENT_REQUESTS);
    }
    struct pending *pending = rf__alloc(1, sizeof *pending + key_bytes + request->value_bytes);
    if (!pending) {
        return rf__fail(err, RF_ENOMEM, 0, "no memory for a request of the store");
    }
    if (key_bytes) {
        memcpy(pending->bytes, request->key, key_bytes);
    }
    if (request->value_bytes) {
        memcpy(pending->bytes + key_bytes, request->value, request->value_bytes);
    }
    wire.number = ++client->number;
    wire.key = (const char *)pending->bytes;
    wire.value = pending->bytes + key_bytes;
    if (wire.op == RF__KV_UNWATCH) {
        struct pending *watch = find_id(client, request->lease);
        wire.lease = watch && watch->request.op == RF__KV_WATCH ? watch->request.number : 0;
        if (wire.lease) {
            forget(client, watch); /* none of its changes is told from here on */
        }
    }
    pending->id = request->id;
    pending->request = wire;
    pending->deadline_ms = request->deadline_ms;
    pending->deadline = rf__now() + request->deadline_ms * RF__MS;
    client->pending[client->pending_count++] = pending;
    return 0;
}

/* The connection. */

static void on_ready(struct rf__poll_source *source, uint32_t events) {
    struct client *client = (void *)((char *)source - offsetof(struct client, source));
    client->readable |= (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0;
    client->writable |= (events & (EPOLLOUT | EPOLLHUP | EPOLLERR)) != 0;
}

static void close_socket(struct client *client) {
    if (client->source.fd >= 0) {
        rf__poller_remove(client->poller, &client->source);
        close(client->source.fd);
        client->source.fd = -1;
    }
    client->readable = client->writable = false;
    rf__buffer_free(&client->out);
}

/* Gives up the connection for the cause in client->cause; the next address is tried at once, and
 * after a round of all of them there is a pause. What has been received whole is still told. */
static void disconnect(struct client *client, int64_t now) {
    close_socket(client);
    client->state = DOWN;
    client->until = now;
    if (++client->failures % client->address_count == 0) {
        int round = client->failures / client->address_count;
        int64_t most = BACKOFF_LEAST_MS << (round < 6 ? round : 6);
        most = most < client->backoff_most_ms ? most : client->backoff_most_ms;
        uint64_t jitter = rf__rng_below(&client->rng, (uint64_t)(most * RF__MS / 2));
        client->until = now + most * RF__MS / 2 + (int64_t)jitter;
    }
    for (size_t i = 0; i < client->pending_count; i++) {
        client->pending[i]->sent = false;
    }
}

static void blame(struct client *client, int code, int sys_errno, const char *what) {
    char text[RF__ADDRESS_TEXT];
    rf__address_text(&client->addresses[client->address], text);
    (void)rf__fail(&client->cause, code, sys_errno, "%s %s", what, text);
}

static void refuse_all(struct client *client) {
    close_socket(client);
    client->state = REFUSED;
}

static void dial(struct client *client, int64_t now) {
    int yes = 1, timeout_ms = USER_TIMEOUT_MS, idle_s = 5;

    rf__buffer_free(&client->in);
    client->address = client->failures % client->address_count;
    const struct rf__address *address = &client->addresses[client->address];
    int fd = socket(address->at.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    client->source.fd = fd;
    if (fd < 0 || rf__poller_add(client->poller, &client->source, NULL)) {
        blame(client, RF_ECONNECT, errno, "no socket to connect to");
        disconnect(client, now);
        return;
    }
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &idle_s, sizeof idle_s);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, sizeof timeout_ms);
    client->state = CONNECTING;
    client->until = now + CONNECT_NS;
    if (connect(fd, (const struct sockaddr *)&address->at, address->bytes) &&
        errno != EINPROGRESS) {
        blame(client, RF_ECONNECT, errno, "cannot connect to");
        disconnect(client, now);
    }
}

static void finish_connecting(struct client *client, int64_t now) {
    int failed = 0;
    socklen_t bytes = sizeof failed;
    struct sockaddr_storage peer;
    socklen_t peer_bytes = sizeof peer;
    struct rf__auth_options options = {.purpose = RF__AUTH_STORE,
                                       .key = client->key,
                                       .key_bytes = client->key_bytes,
                                       .claims_bytes = RF__STORE_CLAIMS};

    if (!client->writable) {
        return;
    }
    (void)getsockopt(client->source.fd, SOL_SOCKET, SO_ERROR, &failed, &bytes);
    if (!failed && getpeername(client->source.fd, (struct sockaddr *)&peer, &peer_bytes)) {
        if (errno == ENOTCONN) {
            client->writable = false; /* an early event: not yet */
            return;
        }
        failed = errno;
    }
    struct rf__writer w = rf__writer(options.claims, RF__STORE_CLAIMS);
    rf__write_u64(&w, client->id);
    if (failed) {
        blame(client, RF_ECONNECT, failed, "cannot connect to");
        disconnect(client, now);
    } else if (rf__auth_start(&client->auth, &options, &client->cause)) {
        disconnect(client, now);
    } else {
        client->state = GREETING;
        client->until = now + GREETING_NS;
        client->readable = true;
    }
}

/* Bytes read, or 0 for nothing now; disconnects at the end of the connection. */
static size_t receive(struct client *client, void *buffer, size_t bytes, int64_t now) {
    ssize_t got = recv(client->source.fd, buffer, bytes, 0);
    if (got > 0) {
        return (size_t)got;
    }
    if (got < 0 && errno == EINTR) {
        return 0;
    }
    client->readable = false;
    if (got == 0 || errno != EAGAIN) {
        blame(client, RF_ECONNECT, got ? errno : 0,
              got ? "lost the connection with" : "the connection was closed by");
        disconnect(client, now);
    }
    return 0;
}

static size_t transmit(struct client *client, const void *bytes, size_t count, int64_t now) {
    ssize_t sent = send(client->source.fd, bytes, count, MSG_NOSIGNAL);
    if (sent >= 0) {
        return (size_t)sent;
    }
    if (errno != EINTR) {
        client->writable = false;
        if (errno != EAGAIN) {
            blame(client, RF_ECONNECT, errno, "lost the connection with");
            disconnect(client, now);
        }
    }
    return 0;
}

/* A server with another id has other content: what was under way is lost with it, and every watch
 * has to list again. */
static void meet_server(struct client *client) {
    struct rf__reader r = rf__reader(client->auth.peer_claims, client->auth.peer_claims_bytes);
    uint64_t server = rf__read_u64(&r);

    for (size_t i = 0; client->server && client->server != server && i < client->pending_count;
         i++) {
        struct pending *pending = client->pending[i];
        if (pending->request.op == RF__KV_WATCH && pending->answered) {
            fail_pending(client, pending, RF_ELIMIT, "the store was replaced: list again");
        } else if (pending->last_key || (pending->tried && rf__kv_is_change(pending->request.op))) {
            fail_pending(client, pending, RF_ESTORE, "the store was replaced by another one");
        }
    }
    client->server = server;
    client->state = READY;
    client->failures = 0;
    rf__error_clear(&client->cause);
}

static void greet(struct client *client, int64_t now) {
    unsigned char buffer[RF__AUTH_MESSAGE];
    const void *bytes;
    size_t count;

    while (client->state == GREETING) {
        size_t moved = 0;
        count = client->writable ? rf__auth_output(&client->auth, &bytes) : 0;
        if (count) {
            moved = transmit(client, bytes, count, now);
            rf__auth_sent(&client->auth, moved);
        }
        count = rf__auth_wants(&client->auth);
        if (client->state == GREETING && client->readable && count) {
            size_t got = receive(client, buffer, count, now);
            (void)rf__auth_input(&client->auth, buffer, got);
            moved += got;
        }
        if (client->state != GREETING) {
            return;
        }
        if (client->auth.state == RF__AUTH_DONE) {
            meet_server(client);
        } else if (client->auth.state == RF__AUTH_FAILED) {
            (void)rf__fail(&client->cause, client->auth.error.code, 0, "%s",
                           client->auth.error.text);
            if (client->cause.code == RF_EAUTH) {
                /* The listener is told, as far as that goes without waiting. */
                count = rf__auth_output(&client->auth, &bytes);
                if (count) {
                    (void)send(client->source.fd, bytes, count, MSG_NOSIGNAL);
                }
                refuse_all(client);
            } else {
                disconnect(client, now);
            }
        } else if (!moved) {
            return;
        }
    }
}

/* Puts into the output what has not been sent on this connection. */
static void queue_requests(struct client *client) {
    int changes = 0;

    for (size_t i = 0; i < client->pending_count; i++) {
        struct pending *pending = client->pending[i];
        bool change = rf__kv_is_change(pending->request.op);
        if (pending->failed) {
            continue;
        }
        if (!pending->sent) {
            if ((change && changes == RF__KV_CLIENT_REPLIES) ||
                rf__buffer_held(&client->out) >= OUTPUT_MARK) {
                return;
            }
            size_t room = RF__KV_LENGTH_BYTES + RF__KV_REQUEST_BYTES + pending->request.key_bytes +
                          pending->request.value_bytes;
            unsigned char *at = rf__buffer_room(&client->out, room);
            if (!at) {
                return; /* the next pump tries again */
            }
            struct rf__kv_request request = pending->request;
            if (pending->answered) {
                request.revision = pending->next;
            }
            size_t bytes = rf__kv_request_frame(&request, at, room);
            RF_ASSERT(bytes == room);
            client->out.end += bytes;
            pending->sent = pending->tried = true;
        }
        changes += change;
    }
}

static void converse(struct client *client, int64_t now) {
    size_t count, moved = 1;

    while (client->state == READY && moved) {
        moved = 0;
        queue_requests(client);
        count = rf__buffer_held(&client->out);
        if (count && client->writable) {
            moved = transmit(client, rf__buffer_front(&client->out), count, now);
            if (client->state != READY) {
                break;
            }
            rf__buffer_take(&client->out, moved);
        }
        if (client->readable && rf__buffer_held(&client->in) < RF__KV_FRAME_MAX + INPUT_MARK) {
            unsigned char *room = rf__buffer_room(&client->in, READ_AT_ONCE);
            size_t got = room ? receive(client, room, READ_AT_ONCE, now) : 0;
            client->in.end += got;
            moved += got;
        }
    }
}

/* Whether a whole event waits at the front of the input; *bytes is its frame's size. Anything that
 * cannot be a frame counts: `next` deals with it. */
static bool frame_waits(const struct client *client, size_t *bytes) {
    size_t held = rf__buffer_held(&client->in);
    if (held < RF__KV_LENGTH_BYTES) {
        return false;
    }
    int64_t body = rf__kv_body_bytes(rf__buffer_front(&client->in));
    *bytes = body < 0 ? held : RF__KV_LENGTH_BYTES + (size_t)body;
    return held >= *bytes;
}

static void let_deadlines_pass(struct client *client, int64_t now) {
    char text[RF_ERROR_TEXT_MAX + 64];

    for (size_t i = 0; i < client->pending_count; i++) {
        struct pending *pending = client->pending[i];
        if (client->state == REFUSED) {
            fail_pending(client, pending, RF_EAUTH, client->cause.text);
        } else if (!pending->answered && !pending->failed && pending->deadline <= now) {
            snprintf(text, sizeof text, "no answer within %lld ms: %s",
                     (long long)pending->deadline_ms,
                     client->cause.code ? client->cause.text : "connected, but it says nothing");
            fail_pending(client, pending, RF_ESTORE, text);
            if (client->cause.sys_errno) {
                pending->error.sys_errno = client->cause.sys_errno;
            }
        }
    }
}

static void pump(struct rf__store *store, int64_t now) {
    struct client *client = (struct client *)store;
    size_t ignored;

    if (now < client->mute_until) {
        let_deadlines_pass(client, now);
        return;
    }
    if (client->state == DOWN && client->pending_count && now >= client->until &&
        !frame_waits(client, &ignored)) {
        dial(client, now);
    }
    if (client->state == CONNECTING) {
        finish_connecting(client, now);
    }
    if (client->state == GREETING) {
        greet(client, now);
    }
    if (client->state == READY) {
        converse(client, now);
    }
    if ((client->state == CONNECTING || client->state == GREETING) && now >= client->until) {
        blame(client, RF_ECONNECT, ETIMEDOUT, "cannot connect to");
        disconnect(client, now);
    }
    let_deadlines_pass(client, now);
}

/* Events. */

/* Copies key and value to where they stay until the next event. False: no memory. */
static bool keep(struct client *client, const struct rf__kv_event *event) {
    size_t need = event->key_bytes + 1 + event->value_bytes;
    if (need > client->told_capacity) {
        unsigned char *told = rf__grow(client->told, need, 1);
        if (!told) {
            return false;
        }
        client->told = told;
        client->told_capacity = need;
    }
    memcpy(client->told, event->key, event->key_bytes);
    client->told[event->key_bytes] = 0;
    memcpy(client->told + event->key_bytes + 1, event->value, event->value_bytes);
    return true;
}

static void fill(const struct client *client, const struct pending *pending,
                 const struct rf__kv_event *from, enum rf__store_event_kind kind,
                 struct rf__store_event *event) {
    *event = (struct rf__store_event){
        .id = pending->id,
        .kind = kind,
        .code = from->code,
        .key = (const char *)client->told,
        .value = from->deleted || from->code ? NULL : client->told + from->key_bytes + 1,
        .value_bytes = from->code ? 0 : from->value_bytes,
        .key_revision = from->key_revision,
        .store_revision = from->store_revision,
        .lease = from->lease,
    };
}

static int tell_failure(struct client *client, struct pending *pending,
                        struct rf__store_event *event) {
    client->told_error = pending->error;
    *event = (struct rf__store_event){.id = pending->id,
                                      .kind = RF__STORE_REPLY,
                                      .code = pending->error.code,
                                      .error = &client->told_error};
    forget(client, pending);
    return 1;
}

static int tell_reply(struct client *client, struct pending *pending, struct rf__kv_event *from,
                      struct rf__store_event *event) {
    bool watch = pending->request.op == RF__KV_WATCH;

    if (watch && !from->code) {
        bool resumed = pending->answered;
        if (!resumed) {
            pending->next =
                pending->request.revision ? pending->request.revision : from->store_revision + 1;
            pending->answered = true;
        }
        fill(client, pending, from, RF__STORE_REPLY, event);
        return !resumed;
    }
    if (pending->request.op == RF__KV_UNWATCH && from->code == RF_ENOTFOUND) {
        from->code = 0; /* it went with its connection */
    }
    if (pending->list_revision && pending->list_revision < from->store_revision) {
        from->store_revision = pending->list_revision;
    }
    fill(client, pending, from, RF__STORE_REPLY, event);
    if (from->code) {
        int shown = (int)(from->value_bytes < 200 ? from->value_bytes : 200);
        (void)rf__fail(&client->told_error, from->code, 0, "%.*s", shown,
                       (const char *)client->told + from->key_bytes + 1);
        name_request(client, pending, &client->told_error);
        event->error = &client->told_error;
    }
    forget(client, pending);
    return 1;
}

static int tell_item(struct client *client, struct pending *pending,
                     const struct rf__kv_event *from, struct rf__store_event *event) {
    const char *key = (const char *)client->told;

    if (pending->request.op != RF__KV_LIST ||
        (pending->last_key && strcmp(key, pending->last_key) <= 0)) {
        return 0;
    }
    char *copy = rf__strdup(key);
    if (!copy) {
        fail_pending(client, pending, RF_ENOMEM, "no memory for the listing");
        return 0;
    }
    rf__free(pending->last_key);
    pending->last_key = copy;
    if (!pending->list_revision) {
        pending->list_revision = from->store_revision;
    }
    fill(client, pending, from, RF__STORE_ITEM, event);
    return 1;
}

static int tell_change(struct client *client, struct pending *pending,
                       const struct rf__kv_event *from, struct rf__store_event *event) {
    if (pending->request.op != RF__KV_WATCH || !pending->answered ||
        from->store_revision < pending->next) {
        return 0;
    }
    pending->next = from->store_revision + 1;
    if (from->kind == RF__KV_PROGRESS) {
        return 0;
    }
    fill(client, pending, from, RF__STORE_CHANGE, event);
    return 1;
}

static int tell(struct client *client, struct rf__kv_event *from, struct rf__store_event *event) {
    struct pending *pending = find_number(client, from->number);

    if (!pending || pending->failed) {
        return 0;
    }
    if (!keep(client, from)) {
        fail_pending(client, pending, RF_ENOMEM, "no memory for the answer");
        return 0;
    }
    switch (from->kind) {
    case RF__KV_REPLY:
        return tell_reply(client, pending, from, event);
    case RF__KV_ITEM:
        return tell_item(client, pending, from, event);
    case RF__KV_CHANGE:
    case RF__KV_PROGRESS:
        return tell_change(client, pending, from, event);
    }
    return 0;
}

static int next(struct rf__store *store, struct rf__store_event *event) {
    struct client *client = (struct client *)store;
    struct rf__kv_event from;
    size_t frame;

    bool muted = rf__now() < client->mute_until;
    while (!muted && frame_waits(client, &frame)) {
        const unsigned char *front = rf__buffer_front(&client->in);
        if (frame <= RF__KV_LENGTH_BYTES ||
            rf__kv_read_event(front + RF__KV_LENGTH_BYTES, frame - RF__KV_LENGTH_BYTES, &from)) {
            rf__buffer_free(&client->in);
            blame(client, RF_EPROTO, 0, "what came is not an answer of a store, from");
            disconnect(client, rf__now());
            break;
        }
        int told = tell(client, &from, event);
        rf__buffer_take(&client->in, frame);
        if (told) {
            return 1;
        }
    }
    for (size_t i = 0; i < client->pending_count; i++) {
        if (client->pending[i]->failed) {
            return tell_failure(client, client->pending[i], event);
        }
    }
    return 0;
}

static int64_t next_deadline(const struct rf__store *store) {
    const struct client *client = (const struct client *)store;
    int64_t soonest = RF__NEVER;
    size_t ignored;
    bool unsent = false, muted = rf__now() < client->mute_until;

    if (!muted && (frame_waits(client, &ignored) || (client->state == READY && client->readable))) {
        return 0;
    }
    for (size_t i = 0; i < client->pending_count; i++) {
        const struct pending *pending = client->pending[i];
        if (pending->failed || client->state == REFUSED) {
            return 0;
        }
        if (!pending->answered && pending->deadline < soonest) {
            soonest = pending->deadline;
        }
        unsent |= !pending->sent;
    }
    if (muted) {
        return client->mute_until < soonest ? client->mute_until : soonest;
    }
    if (client->state == READY && unsent && client->writable) {
        /* Submitted since the last pump, or held back by the window: only the first needs a pump
         * now. */
        size_t changes = 0;
        for (size_t i = 0; i < client->pending_count; i++) {
            const struct pending *pending = client->pending[i];
            changes += pending->sent && rf__kv_is_change(pending->request.op);
        }
        return changes < RF__KV_CLIENT_REPLIES ? 0 : soonest;
    }
    if (client->state == CONNECTING || client->state == GREETING ||
        (client->state == DOWN && client->pending_count)) {
        soonest = client->until < soonest ? client->until : soonest;
    }
    return soonest;
}

static void mute(struct rf__store *store, int64_t until_ns) {
    ((struct client *)store)->mute_until = until_ns;
}

static void destroy(struct rf__store *store) {
    struct client *client = (struct client *)store;

    if (!client) {
        return;
    }
    close_socket(client);
    rf__buffer_free(&client->in);
    while (client->pending_count > 0) {
        forget(client, client->pending[client->pending_count - 1]);
    }
    rf__free(client->told);
    explicit_bzero(client->key, sizeof client->key);
    rf__free(client);
}

static bool is_loopback(const struct rf__address *address) {
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;

    if (address->at.ss_family == AF_INET) {
        memcpy(&v4, &address->at, sizeof v4);
        return ntohl(v4.sin_addr.s_addr) >> 24 == 127;
    }
    memcpy(&v6, &address->at, sizeof v6);
    return IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr);
}

static const struct rf__store_ops client_ops = {
    .submit = submit,
    .pump = pump,
    .next = next,
    .next_deadline = next_deadline,
    .mute = mute,
    .destroy = destroy,
};

int rf__store_client_create(const char *uri, const unsigned char *key, size_t key_bytes,
                            struct rf__poller *poller, struct rf__store **out,
                            struct rf_error *err) {
    int rc = 0;
    struct client *client = NULL;

    *out = NULL;
    if (!key || key_bytes < RF_MIN_KEY_BYTES || key_bytes > RF_MAX_KEY_BYTES) {
        return rf__fail(err, RF_EINVAL, 0, "the job key has %zu bytes, not %d to %d", key_bytes,
                        RF_MIN_KEY_BYTES, RF_MAX_KEY_BYTES);
    }
    if (strlen(uri) >= sizeof client->uri || strncmp(uri, "tcp://", 6) != 0) {
        return rf__fail(err, RF_EINVAL, 0, "'%.200s' is not a store: tcp://HOST:PORT", uri);
    }
    client = rf__alloc(1, sizeof *client);
    if (!client) {
        return rf__fail(err, RF_ENOMEM, 0, "no memory for the store's client");
    }
    client->store.ops = &client_ops;
    client->poller = poller;
    client->source = (struct rf__poll_source){.fd = -1, .ready = on_ready};
    memcpy(client->uri, uri, strlen(uri) + 1);
    memcpy(client->key, key, key_bytes);
    client->key_bytes = key_bytes;
    rc = rf__address_resolve(uri, 0, client->addresses, &client->address_count, err);
    client->backoff_most_ms = BACKOFF_LOCAL_MS;
    for (int i = 0; !rc && i < client->address_count; i++) {
        if (!is_loopback(&client->addresses[i])) {
            client->backoff_most_ms = BACKOFF_MOST_MS;
        }
    }
    while (!rc && !client->id) {
        if (getrandom(&client->id, sizeof client->id, 0) != (ssize_t)sizeof client->id) {
            rc = rf__fail(err, RF_EIO, errno, "no random bytes");
        }
    }
    if (!rc) {
        client->rng = rf__rng(client->id, 0, 0);
        *out = &client->store;
        client = NULL;
    }
    destroy((struct rf__store *)client);
    return rc;
}
