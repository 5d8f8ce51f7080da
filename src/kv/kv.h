/* The store's state: keys, leases, history, and what it answered to whom. A pure state machine: no
 * I/O, no clock (the time is a parameter, expiry is asked for), so the server, its journal and the
 * tests run the same code.
 *
 * Every change makes one immutable item with its own revision. The key table and the history share
 * items by reference count, so that a listing or a slow watcher can hold on to what it saw.
 *
 * Once-only: a change names its client and a number that only grows. The last replies of a client
 * are remembered; a change that comes again gets the same reply and is not applied again. Client 0
 * is the store itself. */
#ifndef RF_KV_KV_H
#define RF_KV_KV_H

#include <ringfold/limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    RF__KV_MAX_KEYS = 65536,
    RF__KV_MAX_BYTES = 256 << 20, /* of all keys and values */
    RF__KV_MAX_LEASES = 8192,
    RF__KV_MAX_TTL_MS = 24 * 3600 * 1000,
    RF__KV_MAX_CLIENTS = 4096, /* remembered; the one silent for longest is forgotten */
    RF__KV_CLIENT_REPLIES =
        16,                /* remembered of each: a client has at most so many changes unanswered */
    RF__KV_HISTORY = 4096, /* changes that a watch can go back */
    RF__KV_HISTORY_BYTES = 16 << 20
};

enum rf__kv_op {
    RF__KV_GET = 1,
    RF__KV_PUT,
    RF__KV_CAS,
    RF__KV_DELETE,
    RF__KV_LIST,
    RF__KV_LEASE,
    RF__KV_KEEPALIVE,
    RF__KV_REVOKE,
    RF__KV_WATCH,
    RF__KV_UNWATCH,
    RF__KV_OP_END
};

/* The fields mean what they mean in io/store.h. Key and value are borrowed views; the key has no
 * end mark. */
struct rf__kv_request {
    enum rf__kv_op op;
    uint64_t number;
    int64_t revision;
    uint64_t lease;
    int64_t ttl_ms;
    const char *key;
    size_t key_bytes;
    const unsigned char *value;
    size_t value_bytes;
};

/* One change, immutable. `key` has an end mark behind it; a deletion has no value. */
struct rf__kv_item {
    unsigned refs;
    bool deleted;
    int64_t revision;
    uint64_t lease;
    size_t key_bytes, value_bytes;
    const char *key;
    const unsigned char *value;
};

struct rf__kv_result {
    int code;             /* 0 or RF_E… */
    int64_t key_revision; /* of the key after the change, or now where it was refused; 0: absent */
    int64_t store_revision; /* the counter after the change */
    uint64_t lease;
};

struct rf__kv;

struct rf__kv *rf__kv_create(void); /* NULL: no memory */
void rf__kv_destroy(struct rf__kv *kv);

/* Whether the request is one that changes the store (PUT, CAS, DELETE, LEASE, REVOKE). */
bool rf__kv_is_change(enum rf__kv_op op);

/* Applies a change, or finds that it was applied. True where the state changed: the caller has to
 * write the request to its journal before it tells anybody. `now` in nanoseconds, as everywhere
 * here. */
bool rf__kv_change(struct rf__kv *kv, uint64_t client, const struct rf__kv_request *request,
                   int64_t now, struct rf__kv_result *result);

/* RF_ENOTFOUND, RF_EINVAL. `ttl_ms` 0: as granted. */
int rf__kv_keepalive(struct rf__kv *kv, uint64_t lease, int64_t ttl_ms, int64_t now);

/* Borrowed until the next change; NULL: absent. */
const struct rf__kv_item *rf__kv_get(const struct rf__kv *kv, const char *key, size_t key_bytes);

/* The keys that start with the prefix: [*first, *first + return value), for rf__kv_at; in byte
 * order. */
size_t rf__kv_range(const struct rf__kv *kv, const char *prefix, size_t prefix_bytes,
                    size_t *first);
struct rf__kv_item *rf__kv_at(const struct rf__kv *kv, size_t index);
struct rf__kv_item *rf__kv_hold(struct rf__kv_item *item);
void rf__kv_release(struct rf__kv_item *item); /* NULL is fine */

int64_t rf__kv_revision(const struct rf__kv *kv);

/* The oldest revision that the history still has (revision + 1 where it has none), and the change
 * with a revision that it has. */
int64_t rf__kv_oldest(const struct rf__kv *kv);
const struct rf__kv_item *rf__kv_history(const struct rf__kv *kv, int64_t revision);
bool rf__kv_has_prefix(const struct rf__kv_item *item, const char *prefix, size_t prefix_bytes);

/* When the next lease runs out (INT64_MAX: none), one that has (0: none), and a full ttl from now
 * for all. */
int64_t rf__kv_next_expiry(const struct rf__kv *kv);
uint64_t rf__kv_expired(const struct rf__kv *kv, int64_t now);
void rf__kv_renew(struct rf__kv *kv, int64_t now);

size_t rf__kv_count(const struct rf__kv *kv);
size_t rf__kv_bytes(const struct rf__kv *kv);

/* The journal's records. A command is a change that was applied; a snapshot is a list of records
 * that rebuild the state. Records are at most RF__KV_RECORD_MAX bytes. */
enum { RF__KV_RECORD_MAX = RF_MAX_STORE_VALUE + RF_MAX_STORE_KEY + 128 };

/* Bytes written, 0 where it does not fit. */
size_t rf__kv_command_record(const struct rf__kv *kv, uint64_t client,
                             const struct rf__kv_request *request, unsigned char *out, size_t room);

/* Start with a zeroed cursor; bytes of the next record, 0 at the end. The state must not change
 * meanwhile. */
struct rf__kv_cursor {
    int stage;
    size_t index;
};
size_t rf__kv_snapshot_record(const struct rf__kv *kv, struct rf__kv_cursor *cursor,
                              unsigned char *out, size_t room);

/* Carries out one record. 0, RF_EPROTO (it makes no sense here) or RF_ENOMEM. */
int rf__kv_replay(struct rf__kv *kv, const unsigned char *record, size_t bytes);

/* Whether the records so far end with a whole snapshot and any commands behind it, not in the
 * middle of one. */
bool rf__kv_is_whole(const struct rf__kv *kv);

#endif
