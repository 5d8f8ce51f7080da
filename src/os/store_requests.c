/* What a store's server does with the requests of a connection: changes, which are logged, reads,
 * listings, which hold on to the items as they were, and watches, which wait in the history while
 * there is no room for what they have to tell. */
#include "base/assert.h"
#include "base/status.h"
#include "os/store_server_internal.h"

#include <stdio.h>
#include <string.h>

enum {
    PROGRESS_EVERY = 512 /* revisions a watch passes over before its client is told */
};

/* Queues an event; a connection for which there is no memory ends. */
static void queue(struct rf__server_conn *connection, const struct rf__kv_event *event) {
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

static void queue_item(struct rf__server_conn *connection, enum rf__kv_event_kind kind,
                       uint64_t number, const struct rf__kv_item *item, int64_t store_revision) {
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

static void queue_reply(struct rf__server_conn *connection, uint64_t number, int code,
                        const char *text, const struct rf__kv_result *result) {
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

/* Changes and reads. */

bool rf__server_log_change(struct rf__store_server *server, uint64_t client,
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
static bool serve_change(struct rf__store_server *server, struct rf__server_conn *connection,
                         const struct rf__kv_request *request, int64_t now) {
    char text[96];
    struct rf__kv_result result;

    if (rf__kv_change(server->kv, connection->client, request, now, &result) &&
        !rf__server_log_change(server, connection->client, request)) {
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

static void serve_get(struct rf__store_server *server, struct rf__server_conn *connection,
                      const struct rf__kv_request *request) {
    const struct rf__kv_item *item = rf__kv_get(server->kv, request->key, request->key_bytes);
    if (item) {
        queue_item(connection, RF__KV_REPLY, request->number, item, rf__kv_revision(server->kv));
    } else {
        struct rf__kv_result result = {.store_revision = rf__kv_revision(server->kv)};
        queue_reply(connection, request->number, RF_ENOTFOUND, "there is no such key", &result);
    }
}

/* Listings. */

void rf__server_end_listing(struct rf__server_listing *listing) {
    for (size_t i = listing->next; i < listing->count; i++) {
        rf__kv_release(listing->items[i]);
    }
    rf__free(listing->items);
    *listing = (struct rf__server_listing){0};
}

static void serve_list(struct rf__store_server *server, struct rf__server_conn *connection,
                       const struct rf__kv_request *request) {
    size_t first;
    struct rf__server_listing *listing = &connection->listing;
    size_t count = rf__kv_range(server->kv, request->key, request->key_bytes, &first);

    *listing = (struct rf__server_listing){.number = request->number,
                                           .revision = rf__kv_revision(server->kv)};
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

static void go_on_listing(struct rf__server_conn *connection) {
    struct rf__server_listing *listing = &connection->listing;
    while (listing->next < listing->count &&
           rf__buffer_held(&connection->out) < RF__SERVER_OUTPUT_MARK) {
        struct rf__kv_item *item = listing->items[listing->next++];
        queue_item(connection, RF__KV_ITEM, listing->number, item, listing->revision);
        rf__kv_release(item);
    }
    if (listing->next == listing->count) {
        struct rf__kv_result result = {.store_revision = listing->revision};
        queue_reply(connection, listing->number, 0, NULL, &result);
        rf__server_end_listing(listing);
    }
}

/* Watches. */

static struct rf__server_watch *find_watch(struct rf__server_conn *connection, uint64_t number) {
    for (size_t i = 0; i < connection->watch_count; i++) {
        if (connection->watches[i].number == number) {
            return &connection->watches[i];
        }
    }
    return NULL;
}

static void end_watch(struct rf__server_conn *connection, struct rf__server_watch *watch) {
    rf__free(watch->prefix);
    *watch = connection->watches[--connection->watch_count];
}

static const char history_gone[] = "the history no longer goes back so far: list again";

static void serve_watch(struct rf__store_server *server, struct rf__server_conn *connection,
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
            (struct rf__server_watch){.number = request->number,
                                      .next = from,
                                      .told = from - 1,
                                      .prefix = prefix,
                                      .prefix_bytes = request->key_bytes};
    }
    queue_reply(connection, request->number, code, text, &result);
}

static void serve_unwatch(struct rf__store_server *server, struct rf__server_conn *connection,
                          const struct rf__kv_request *request) {
    struct rf__kv_result result = {.store_revision = rf__kv_revision(server->kv)};
    struct rf__server_watch *watch = find_watch(connection, request->lease);
    if (watch) {
        end_watch(connection, watch);
    }
    queue_reply(connection, request->number, watch ? 0 : RF_ENOTFOUND, "there is no such watch",
                &result);
}

/* Tells a watch what it has not seen, as far as there is room. */
void rf__server_go_on_watching(struct rf__store_server *server,
                               struct rf__server_conn *connection) {
    int64_t newest = rf__kv_revision(server->kv);

    for (size_t i = 0; i < connection->watch_count;) {
        struct rf__server_watch *watch = &connection->watches[i];
        while (watch->next <= newest &&
               rf__buffer_held(&connection->out) < RF__SERVER_OUTPUT_MARK) {
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

/* Frames. */

/* False where the server has to end. */
static bool serve_request(struct rf__store_server *server, struct rf__server_conn *connection,
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

bool rf__server_may_serve(const struct rf__server_conn *connection) {
    return !connection->dead && connection->accepted && !connection->listing.items &&
           rf__buffer_held(&connection->out) < RF__SERVER_OUTPUT_MARK;
}

/* The next whole frame's body, or NULL. */
const unsigned char *rf__server_next_frame(struct rf__server_conn *connection, size_t *bytes) {
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

bool rf__server_serve_frames(struct rf__store_server *server, struct rf__server_conn *connection,
                             int64_t now) {
    const unsigned char *body;
    size_t bytes;

    if (connection->listing.items) {
        go_on_listing(connection);
    }
    while (rf__server_may_serve(connection) && (body = rf__server_next_frame(connection, &bytes))) {
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
