/* The store's server: its life and its step. One step reads requests and applies them to the state,
 * then syncs the journal once for all of them, and only then sends what was queued: nobody hears of
 * a change (not even a reader) before it is on the disk. store_conn.c and store_requests.c do the
 * reading, applying and sending.
 *
 * epoll is level-triggered here, so that work left for the next step keeps the descriptor readable.
 */
#include "base/status.h"
#include "io/clock.h"
#include "os/clock.h"
#include "os/store_server_internal.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <unistd.h>

enum { EVENTS_AT_ONCE = 512, BATCH_MARK = 8 << 20 };

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
    rc = rc ? rc : rf__server_listen(server, options->bind ? options->bind : ":0", err);
    rc = rc ? rc : open_journal(server, options, err);
    if (!rc) {
        int failed = rf__server_watch_listeners(server, true);
        rc = failed ? rf__fail(err, RF_EIO, failed, "watching the store's sockets") : 0;
    }
    if (!rc) {
        *out = server;
        server = NULL;
    }
    rf__store_server_destroy(server);
    return rc;
}

void rf__store_server_destroy(struct rf__store_server *server) {
    if (!server) {
        return;
    }
    for (size_t i = 0; i < server->connection_count; i++) {
        rf__server_free_conn(server->connections[i]);
    }
    rf__server_stop_listening(server);
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
        const struct rf__server_conn *connection = server->connections[i];
        if (!connection->accepted && connection->handshake_until < soonest) {
            soonest = connection->handshake_until;
        }
    }
    return server->accept_again < soonest ? server->accept_again : soonest;
}

/* The step. */

static bool serve_ready(struct rf__store_server *server, const struct epoll_event *event,
                        int64_t now) {
    struct rf__server_conn *connection = event->data.ptr;

    if (!connection) {
        rf__server_accept(server, now);
        return true;
    }
    if (event->events & (EPOLLERR | EPOLLHUP)) {
        connection->dead = !(event->events & EPOLLIN);
    }
    if (!connection->accepted) {
        rf__server_read_handshake(connection);
    }
    /* What waited for room first, then what is new. */
    return rf__server_serve_frames(server, connection, now) &&
           rf__server_read_requests(server, connection, now);
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
        if (!rf__server_log_change(server, 0, &request)) {
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
        struct rf__server_conn *connection = server->connections[i];
        rf__server_flush(connection);
        if (!connection->accepted && now >= connection->handshake_until) {
            connection->dead = true;
        }
        if (!connection->dead) {
            rf__server_set_interest(server, connection);
        }
        if (connection->dead) {
            rf__server_remove_conn(server, connection);
        }
    }
    bool room = server->connection_count < RF__SERVER_CLIENTS;
    if (!server->listening && room &&
        (server->accept_again == INT64_MAX || now >= server->accept_again)) {
        server->accept_again =
            rf__server_watch_listeners(server, true) ? now + RF__SERVER_ACCEPT_PAUSE : INT64_MAX;
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
            rf__server_go_on_watching(server, server->connections[i]);
        }
    }
    rc = !rc && server->journal ? rf__journal_sync(server->journal, err) : rc;
    if (!rc) {
        answer_all(server, now);
        rc = compact(server, err);
    }
    return rc;
}
