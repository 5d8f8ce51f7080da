/* The public store: the server with the system's clock, and a blocking client that turns the events
 * of io/store.h into calls. */
#include <ringfold/store.h>

#include "base/mem.h"
#include "base/status.h"
#include "io/store.h"
#include "os/clock.h"
#include "os/poller.h"
#include "os/store_client.h"
#include "os/store_server.h"

#include <string.h>

#define NS_PER_MS 1000000ll

struct rf_store_server {
    struct rf__store_server *server;
};

int rf_store_server_create(const struct rf_store_server_options *options,
                           struct rf_store_server **out, struct rf_error *err) {
    struct rf__store_server_options inner = {.bind = options->bind,
                                             .journal = options->journal,
                                             .key = options->key,
                                             .key_bytes = options->key_bytes};
    struct rf_store_server *server = rf__alloc(1, sizeof *server);

    *out = NULL;
    if (!server) {
        return rf__fail(err, RF_ENOMEM, 0, "no memory for the store");
    }
    int rc = rf__store_server_create(&inner, &server->server, err);
    if (rc) {
        rf__free(server);
        return rc;
    }
    *out = server;
    return 0;
}

void rf_store_server_destroy(struct rf_store_server *server) {
    if (server) {
        rf__store_server_destroy(server->server);
        rf__free(server);
    }
}

int rf_store_server_fd(const struct rf_store_server *server) {
    return rf__store_server_fd(server->server);
}

int rf_store_server_port(const struct rf_store_server *server) {
    return rf__store_server_port(server->server);
}

const char *rf_store_server_note(const struct rf_store_server *server) {
    return rf__store_server_note(server->server);
}

int rf_store_server_timeout_ms(const struct rf_store_server *server) {
    int64_t deadline = rf__store_server_deadline(server->server), now = rf__now();
    if (deadline == RF__NEVER) {
        return -1;
    }
    int64_t ms = deadline > now ? (deadline - now + NS_PER_MS - 1) / NS_PER_MS : 0;
    return ms > 1000000 ? 1000000 : (int)ms;
}

int rf_store_server_step(struct rf_store_server *server, struct rf_error *err) {
    return rf__store_server_step(server->server, rf__now(), err);
}

/* The blocking client. */

struct rf_store {
    struct rf__poller *poller;
    struct rf__store *store;
    int timeout_ms;
    uint64_t id;
};

/* What to do with the events of one request: the reply is handed to `reply`, each item to `item`.
 */
struct call {
    struct rf__store_request request;
    void (*item)(struct call *call, const struct rf__store_event *event);
    int (*reply)(struct call *call, const struct rf__store_event *event, struct rf_error *err);
    int64_t *revision;
    void *value;
    size_t *bytes;
    rf_store_each_fn *each;
    void *context;
};

static int take_reply(struct call *call, const struct rf__store_event *event,
                      struct rf_error *err) {
    if (event->code) {
        if (err) {
            *err = *event->error;
        }
        return event->code;
    }
    if (call->revision) {
        *call->revision = event->key_revision;
    }
    return call->reply ? call->reply(call, event, err) : 0;
}

static int carry_out(struct rf_store *store, struct call *call, struct rf_error *err) {
    struct rf__store *inner = store->store;
    struct rf__store_event event;

    call->request.id = ++store->id;
    call->request.deadline_ms = store->timeout_ms;
    int rc = inner->ops->submit(inner, &call->request, err);
    if (rc) {
        return rc;
    }
    /* Ends, because every request is answered by its deadline. */
    for (;;) {
        inner->ops->pump(inner, rf__now());
        while (inner->ops->next(inner, &event)) {
            if (event.id != call->request.id) {
                continue;
            }
            if (event.kind == RF__STORE_REPLY) {
                return take_reply(call, &event, err);
            }
            if (event.kind == RF__STORE_ITEM && call->item) {
                call->item(call, &event);
            }
        }
        int64_t deadline = inner->ops->next_deadline(inner), now = rf__now();
        int64_t wait = deadline == RF__NEVER ? -1 : deadline > now ? deadline - now : 0;
        (void)rf__poller_collect(store->poller, wait);
        rf__poller_dispatch(store->poller);
    }
}

static int take_value(struct call *call, const struct rf__store_event *event,
                      struct rf_error *err) {
    size_t room = *call->bytes;
    *call->bytes = event->value_bytes;
    if (event->value_bytes > room) {
        return rf__fail(err, RF_ELIMIT, 0, "the value of '%.200s' has %zu bytes, the room %zu",
                        call->request.key, event->value_bytes, room);
    }
    if (event->value_bytes) {
        memcpy(call->value, event->value, event->value_bytes);
    }
    return 0;
}

static void take_item(struct call *call, const struct rf__store_event *event) {
    call->each(call->context, event->key, event->value, event->value_bytes, event->key_revision);
}

int rf_store_open(const char *uri, const unsigned char *key, size_t key_bytes, int timeout_ms,
                  struct rf_store **out, struct rf_error *err) {
    /* A request that changes nothing, so that a store that is not there, or another key, is told
     * here. */
    struct call hello = {.request = {.op = RF__STORE_UNWATCH}};
    struct rf_store *store = rf__alloc(1, sizeof *store);
    int rc;

    *out = NULL;
    if (!store) {
        return rf__fail(err, RF_ENOMEM, 0, "no memory for a store's client");
    }
    store->timeout_ms = timeout_ms;
    rc = rf__poller_create(&store->poller, err);
    rc = rc ? rc : rf__store_client_create(uri, key, key_bytes, store->poller, &store->store, err);
    rc = rc ? rc : carry_out(store, &hello, err);
    if (rc) {
        rf_store_close(store);
        return rc;
    }
    *out = store;
    return 0;
}

void rf_store_close(struct rf_store *store) {
    if (!store) {
        return;
    }
    if (store->store) {
        store->store->ops->destroy(store->store);
    }
    rf__poller_destroy(store->poller);
    rf__free(store);
}

int rf_store_get(struct rf_store *store, const char *key, void *value, size_t *bytes,
                 int64_t *revision, struct rf_error *err) {
    struct call call = {.request = {.op = RF__STORE_GET, .key = key},
                        .reply = take_value,
                        .revision = revision,
                        .value = value,
                        .bytes = bytes};
    return carry_out(store, &call, err);
}

int rf_store_put(struct rf_store *store, const char *key, const void *value, size_t bytes,
                 int64_t *revision, struct rf_error *err) {
    struct call call = {
        .request = {.op = RF__STORE_PUT, .key = key, .value = value, .value_bytes = bytes},
        .revision = revision};
    return carry_out(store, &call, err);
}

int rf_store_cas(struct rf_store *store, const char *key, int64_t expected, const void *value,
                 size_t bytes, int64_t *revision, struct rf_error *err) {
    struct call call = {.request = {.op = RF__STORE_CAS,
                                    .key = key,
                                    .value = value,
                                    .value_bytes = bytes,
                                    .revision = expected},
                        .revision = revision};
    return carry_out(store, &call, err);
}

int rf_store_delete(struct rf_store *store, const char *key, struct rf_error *err) {
    struct call call = {.request = {.op = RF__STORE_DELETE, .key = key}};
    return carry_out(store, &call, err);
}

int rf_store_list(struct rf_store *store, const char *prefix, rf_store_each_fn *each, void *context,
                  struct rf_error *err) {
    struct call call = {.request = {.op = RF__STORE_LIST, .key = prefix},
                        .item = take_item,
                        .each = each,
                        .context = context};
    return carry_out(store, &call, err);
}
