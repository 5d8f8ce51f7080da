/* The inside of struct rf__kv, for kv.c and snapshot.c only. */
#ifndef RF_KV_STATE_H
#define RF_KV_STATE_H

#include "kv/kv.h"

struct rf__kv_lease {
    uint64_t id;
    int64_t ttl_ms;
    int64_t expires; /* ns */
};

struct rf__kv_reply {
    uint64_t number; /* 0: none */
    struct rf__kv_result result;
};

struct rf__kv_client {
    uint64_t id;
    uint64_t used;   /* when last, in changes */
    uint64_t newest; /* highest number answered */
    int next;        /* in its bucket's chain, -1: the last */
    unsigned count;  /* replies ever remembered; the next goes to count % RF__KV_CLIENT_REPLIES */
    struct rf__kv_reply replies[RF__KV_CLIENT_REPLIES];
};

enum { RF__KV_BUCKETS = 1024 };

struct rf__kv {
    int64_t revision;
    uint64_t next_lease;

    struct rf__kv_item **items; /* by key */
    size_t count, capacity, bytes;

    struct rf__kv_item
        *history[RF__KV_HISTORY]; /* a ring; revisions without gaps, up to `revision` */
    size_t history_first, history_count, history_bytes;

    struct rf__kv_lease *leases; /* by id */
    size_t lease_count, lease_capacity;

    struct rf__kv_client *clients;
    size_t client_count, client_capacity;
    int buckets[RF__KV_BUCKETS];
    uint64_t uses;

    /* What a snapshot that is being read still owes. */
    size_t due_leases, due_items, due_changes, due_clients;
};

struct rf__kv_item *rf__kv_item_create(const char *key, size_t key_bytes, const void *value,
                                       size_t value_bytes);
size_t rf__kv_find(const struct rf__kv *kv, const char *key, size_t key_bytes, bool *found);

/* Take over the caller's reference. The table's and the ring's room must have been seen to. */
int rf__kv_reserve_item(struct rf__kv *kv);
void rf__kv_insert(struct rf__kv *kv, size_t index, struct rf__kv_item *item);
void rf__kv_remember(struct rf__kv *kv, struct rf__kv_item *item);

int rf__kv_add_lease(struct rf__kv *kv, uint64_t id, int64_t ttl_ms, int64_t now);
struct rf__kv_client *rf__kv_client(struct rf__kv *kv, uint64_t id);
void rf__kv_add_reply(struct rf__kv_client *client, uint64_t number,
                      const struct rf__kv_result *result);

#endif
