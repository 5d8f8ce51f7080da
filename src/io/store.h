/* The store as the driver sees it: requests are submitted, replies and changes arrive as events.
 * Never blocks. Implemented by os/store_client (our own server), later by etcd, and by the
 * simulator.
 *
 * Semantics (a subset of etcd v3): one revision counter, +1 with each change; CAS compares the
 * revision of the key's last change (0: absent); a key put with a lease dies with it; a watch tells
 * every change from a revision on, in order, once. A request is answered exactly once, with
 * RF_ESTORE after its deadline. Connection loss is repaired inside; requests that were not answered
 * are sent again (each change carries an id, so that it happens once), watches resume. Thread
 * safety: the caller's lock. */
#ifndef RF_IO_STORE_H
#define RF_IO_STORE_H

#include <ringfold/error.h>
#include <ringfold/limits.h>
#include <stdbool.h>
#include <stdint.h>

enum rf__store_op {
    RF__STORE_GET,
    RF__STORE_PUT,
    RF__STORE_CAS,
    RF__STORE_DELETE,
    RF__STORE_LIST,      /* keys starting with `key`: an ITEM event each, then the reply */
    RF__STORE_LEASE,     /* grants one of ttl_ms; the reply carries it */
    RF__STORE_KEEPALIVE, /* `lease` lives ttl_ms from now */
    RF__STORE_REVOKE,    /* ends `lease` and its keys */
    RF__STORE_WATCH,  /* changes of keys starting with `key`, from `revision` on (0: from now on);
                         CHANGE events carry its id */
    RF__STORE_UNWATCH /* ends the watch whose id is `lease` */
};

struct rf__store_request {
    uint64_t id; /* the caller's; comes back in events; not 0, not in use */
    enum rf__store_op op;
    const char *key; /* copied, as is the value */
    const void *value;
    size_t value_bytes;
    int64_t revision; /* CAS: what the key must have; WATCH: where to start */
    uint64_t lease;   /* PUT, CAS: 0 for none */
    int64_t ttl_ms;
    int64_t deadline_ms; /* from now; how long to try */
};

enum rf__store_event_kind { RF__STORE_REPLY, RF__STORE_ITEM, RF__STORE_CHANGE };

/* Pointers are valid until the next call of `next`. */
struct rf__store_event {
    uint64_t id;
    enum rf__store_event_kind kind;
    int code; /* REPLY: 0, RF_ENOTFOUND, RF_ECONFLICT, RF_ESTORE, RF_EAUTH, … */
    const char *key;
    const void *value; /* CHANGE: NULL where the key was deleted or died */
    size_t value_bytes;
    int64_t key_revision;   /* of the key's last change; 0: absent */
    int64_t store_revision; /* the counter when the store answered */
    uint64_t lease;
    const struct rf_error *error; /* REPLY with a code: the report; else NULL */
};

struct rf__store;

struct rf__store_ops {
    int (*submit)(struct rf__store *store, const struct rf__store_request *request,
                  struct rf_error *err);

    /* Serves what is ready without waiting. `now` in ns. */
    void (*pump)(struct rf__store *store, int64_t now);

    /* 1 and an event, or 0. */
    int (*next)(struct rf__store *store, struct rf__store_event *event);

    /* When pump wants to be called again at the latest, ns; INT64_MAX: never. */
    int64_t (*next_deadline)(const struct rf__store *store);

    /* A rehearsed cut: until then nothing is read, written or noticed; deadlines go on. An earlier
     * time ends it. NULL: not supported. */
    void (*mute)(struct rf__store *store, int64_t until_ns);
    void (*destroy)(struct rf__store *store);
};

/* Implementations embed this first. */
struct rf__store {
    const struct rf__store_ops *ops;
};

#endif
