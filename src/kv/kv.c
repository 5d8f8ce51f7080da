/* The state machine of kv/kv.h. Keys stand in one sorted array, the history in a ring indexed by
 * revision, leases in an array sorted by id (they are granted in that order), clients in an array
 * with hash chains. */
#include "kv/state.h"

#include "base/assert.h"
#include "base/mem.h"

#include <ringfold/error.h>
#include <string.h>

#define NS_PER_MS 1000000ll

struct rf__kv *rf__kv_create(void) {
    struct rf__kv *kv = rf__alloc(1, sizeof *kv);
    if (kv) {
        kv->next_lease = 1;
        memset(kv->buckets, -1, sizeof kv->buckets);
    }
    return kv;
}

void rf__kv_destroy(struct rf__kv *kv) {
    if (!kv) {
        return;
    }
    for (size_t i = 0; i < kv->count; i++) {
        rf__kv_release(kv->items[i]);
    }
    for (size_t i = 0; i < kv->history_count; i++) {
        rf__kv_release(kv->history[(kv->history_first + i) % RF__KV_HISTORY]);
    }
    rf__free(kv->items);
    rf__free(kv->leases);
    rf__free(kv->clients);
    rf__free(kv);
}

/* Items. */

struct rf__kv_item *rf__kv_item_create(const char *key, size_t key_bytes, const void *value,
                                       size_t value_bytes) {
    struct rf__kv_item *item = rf__alloc(1, sizeof *item + key_bytes + 1 + value_bytes);
    if (!item) {
        return NULL;
    }
    char *text = (char *)(item + 1);
    item->refs = 1;
    item->key = text;
    item->key_bytes = key_bytes;
    item->value = (unsigned char *)text + key_bytes + 1;
    item->value_bytes = value_bytes;
    memcpy(text, key, key_bytes);
    if (value_bytes) {
        memcpy(text + key_bytes + 1, value, value_bytes);
    }
    return item;
}

struct rf__kv_item *rf__kv_hold(struct rf__kv_item *item) {
    item->refs++;
    return item;
}

void rf__kv_release(struct rf__kv_item *item) {
    if (item && --item->refs == 0) {
        rf__free(item);
    }
}

static size_t item_bytes(const struct rf__kv_item *item) {
    return item->key_bytes + item->value_bytes;
}

static int compare(const char *a, size_t a_bytes, const char *b, size_t b_bytes) {
    size_t common = a_bytes < b_bytes ? a_bytes : b_bytes;
    int order = common ? memcmp(a, b, common) : 0;
    return order ? order : (a_bytes > b_bytes) - (a_bytes < b_bytes);
}

/* The index of the key, or of where it would stand. */
size_t rf__kv_find(const struct rf__kv *kv, const char *key, size_t key_bytes, bool *found) {
    size_t low = 0, high = kv->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const struct rf__kv_item *item = kv->items[middle];
        if (compare(item->key, item->key_bytes, key, key_bytes) < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    *found = low < kv->count &&
             compare(kv->items[low]->key, kv->items[low]->key_bytes, key, key_bytes) == 0;
    return low;
}

const struct rf__kv_item *rf__kv_get(const struct rf__kv *kv, const char *key, size_t key_bytes) {
    bool found;
    size_t index = rf__kv_find(kv, key, key_bytes, &found);
    return found ? kv->items[index] : NULL;
}

bool rf__kv_has_prefix(const struct rf__kv_item *item, const char *prefix, size_t prefix_bytes) {
    return item->key_bytes >= prefix_bytes &&
           (!prefix_bytes || memcmp(item->key, prefix, prefix_bytes) == 0);
}

size_t rf__kv_range(const struct rf__kv *kv, const char *prefix, size_t prefix_bytes,
                    size_t *first) {
    bool found;
    *first = rf__kv_find(kv, prefix, prefix_bytes, &found);
    size_t end = *first;
    while (end < kv->count && rf__kv_has_prefix(kv->items[end], prefix, prefix_bytes)) {
        end++;
    }
    return end - *first;
}

struct rf__kv_item *rf__kv_at(const struct rf__kv *kv, size_t index) {
    RF_ASSERT(index < kv->count);
    return kv->items[index];
}

int rf__kv_reserve_item(struct rf__kv *kv) {
    if (kv->count < kv->capacity) {
        return 0;
    }
    size_t capacity = kv->capacity ? 2 * kv->capacity : 64;
    struct rf__kv_item **items = rf__grow(kv->items, capacity, sizeof(struct rf__kv_item *));
    if (!items) {
        return RF_ENOMEM;
    }
    kv->items = items;
    kv->capacity = capacity;
    return 0;
}

void rf__kv_insert(struct rf__kv *kv, size_t index, struct rf__kv_item *item) {
    RF_ASSERT(kv->count < kv->capacity && index <= kv->count);
    memmove(kv->items + index + 1, kv->items + index, (kv->count - index) * sizeof *kv->items);
    kv->items[index] = item;
    kv->count++;
    kv->bytes += item_bytes(item);
}

static void take_out(struct rf__kv *kv, size_t index) {
    struct rf__kv_item *item = kv->items[index];
    kv->count--;
    kv->bytes -= item_bytes(item);
    memmove(kv->items + index, kv->items + index + 1, (kv->count - index) * sizeof *kv->items);
    rf__kv_release(item);
}

/* History. */

static void forget_oldest(struct rf__kv *kv) {
    struct rf__kv_item *oldest = kv->history[kv->history_first];
    kv->history_bytes -= item_bytes(oldest);
    kv->history_first = (kv->history_first + 1) % RF__KV_HISTORY;
    kv->history_count--;
    rf__kv_release(oldest);
}

void rf__kv_remember(struct rf__kv *kv, struct rf__kv_item *item) {
    if (kv->history_count == RF__KV_HISTORY) {
        forget_oldest(kv);
    }
    kv->history[(kv->history_first + kv->history_count) % RF__KV_HISTORY] = item;
    kv->history_count++;
    kv->history_bytes += item_bytes(item);
    while (kv->history_bytes > RF__KV_HISTORY_BYTES) {
        forget_oldest(kv);
    }
}

int64_t rf__kv_revision(const struct rf__kv *kv) {
    return kv->revision;
}

int64_t rf__kv_oldest(const struct rf__kv *kv) {
    return kv->revision - (int64_t)kv->history_count + 1;
}

const struct rf__kv_item *rf__kv_history(const struct rf__kv *kv, int64_t revision) {
    if (revision < rf__kv_oldest(kv) || revision > kv->revision) {
        return NULL;
    }
    size_t offset = (size_t)(revision - rf__kv_oldest(kv));
    return kv->history[(kv->history_first + offset) % RF__KV_HISTORY];
}

size_t rf__kv_count(const struct rf__kv *kv) {
    return kv->count;
}

size_t rf__kv_bytes(const struct rf__kv *kv) {
    return kv->bytes;
}

/* Leases. */

static struct rf__kv_lease *find_lease(const struct rf__kv *kv, uint64_t id) {
    size_t low = 0, high = kv->lease_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (kv->leases[middle].id < id) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < kv->lease_count && kv->leases[low].id == id ? &kv->leases[low] : NULL;
}

int rf__kv_add_lease(struct rf__kv *kv, uint64_t id, int64_t ttl_ms, int64_t now) {
    if (kv->lease_count == RF__KV_MAX_LEASES) {
        return RF_ELIMIT;
    }
    if (kv->lease_count == kv->lease_capacity) {
        size_t capacity = kv->lease_capacity ? 2 * kv->lease_capacity : 64;
        struct rf__kv_lease *leases = rf__grow(kv->leases, capacity, sizeof *leases);
        if (!leases) {
            return RF_ENOMEM;
        }
        kv->leases = leases;
        kv->lease_capacity = capacity;
    }
    RF_ASSERT(!kv->lease_count || kv->leases[kv->lease_count - 1].id < id);
    kv->leases[kv->lease_count++] =
        (struct rf__kv_lease){.id = id, .ttl_ms = ttl_ms, .expires = now + ttl_ms * NS_PER_MS};
    return 0;
}

int rf__kv_keepalive(struct rf__kv *kv, uint64_t lease, int64_t ttl_ms, int64_t now) {
    struct rf__kv_lease *found = find_lease(kv, lease);
    if (!found) {
        return RF_ENOTFOUND;
    }
    if (ttl_ms < 0 || ttl_ms > RF__KV_MAX_TTL_MS) {
        return RF_EINVAL;
    }
    if (ttl_ms) {
        found->ttl_ms = ttl_ms;
    }
    found->expires = now + found->ttl_ms * NS_PER_MS;
    return 0;
}

int64_t rf__kv_next_expiry(const struct rf__kv *kv) {
    int64_t soonest = INT64_MAX;
    for (size_t i = 0; i < kv->lease_count; i++) {
        if (kv->leases[i].expires < soonest) {
            soonest = kv->leases[i].expires;
        }
    }
    return soonest;
}

uint64_t rf__kv_expired(const struct rf__kv *kv, int64_t now) {
    for (size_t i = 0; i < kv->lease_count; i++) {
        if (kv->leases[i].expires <= now) {
            return kv->leases[i].id;
        }
    }
    return 0;
}

void rf__kv_renew(struct rf__kv *kv, int64_t now) {
    for (size_t i = 0; i < kv->lease_count; i++) {
        kv->leases[i].expires = now + kv->leases[i].ttl_ms * NS_PER_MS;
    }
}

/* Clients. */

static int *bucket_of(struct rf__kv *kv, uint64_t id) {
    return &kv->buckets[(id ^ id >> 32) % RF__KV_BUCKETS];
}

static void unlink_client(struct rf__kv *kv, int index) {
    int *link = bucket_of(kv, kv->clients[index].id);
    while (*link != index) {
        link = &kv->clients[*link].next;
    }
    *link = kv->clients[index].next;
}

/* A place for one more: a new one, or that of the client that was silent for longest. -1: no
 * memory. */
static int place_for_client(struct rf__kv *kv) {
    if (kv->client_count == RF__KV_MAX_CLIENTS) {
        size_t oldest = 0;
        for (size_t i = 1; i < kv->client_count; i++) {
            if (kv->clients[i].used < kv->clients[oldest].used) {
                oldest = i;
            }
        }
        unlink_client(kv, (int)oldest);
        return (int)oldest;
    }
    if (kv->client_count == kv->client_capacity) {
        size_t capacity = kv->client_capacity ? 2 * kv->client_capacity : 16;
        struct rf__kv_client *clients = rf__grow(kv->clients, capacity, sizeof *clients);
        if (!clients) {
            return -1;
        }
        kv->clients = clients;
        kv->client_capacity = capacity;
    }
    return (int)kv->client_count++;
}

struct rf__kv_client *rf__kv_client(struct rf__kv *kv, uint64_t id) {
    int index = *bucket_of(kv, id);
    while (index >= 0 && kv->clients[index].id != id) {
        index = kv->clients[index].next;
    }
    if (index < 0) {
        index = place_for_client(kv);
        if (index < 0) {
            return NULL;
        }
        int *bucket = bucket_of(kv, id);
        kv->clients[index] = (struct rf__kv_client){.id = id, .next = *bucket};
        *bucket = index;
    }
    kv->clients[index].used = ++kv->uses;
    return &kv->clients[index];
}

void rf__kv_add_reply(struct rf__kv_client *client, uint64_t number,
                      const struct rf__kv_result *result) {
    struct rf__kv_reply *reply = &client->replies[client->count++ % RF__KV_CLIENT_REPLIES];
    *reply = (struct rf__kv_reply){.number = number, .result = *result};
    client->newest = number > client->newest ? number : client->newest;
}

/* Changes. Each either happens as a whole or leaves the state as it was. */

bool rf__kv_is_change(enum rf__kv_op op) {
    return op == RF__KV_PUT || op == RF__KV_CAS || op == RF__KV_DELETE || op == RF__KV_LEASE ||
           op == RF__KV_REVOKE;
}

static int put(struct rf__kv *kv, const struct rf__kv_request *request,
               struct rf__kv_result *result) {
    bool found;
    size_t index = rf__kv_find(kv, request->key, request->key_bytes, &found);
    int64_t present = found ? kv->items[index]->revision : 0;
    size_t before = found ? item_bytes(kv->items[index]) : 0;

    result->key_revision = present;
    if (request->op == RF__KV_CAS && present != request->revision) {
        return RF_ECONFLICT;
    }
    if (request->lease && !find_lease(kv, request->lease)) {
        return RF_ENOTFOUND;
    }
    if ((!found && kv->count == RF__KV_MAX_KEYS) ||
        kv->bytes - before + request->key_bytes + request->value_bytes > RF__KV_MAX_BYTES) {
        return RF_ELIMIT;
    }
    if (rf__kv_reserve_item(kv)) {
        return RF_ENOMEM;
    }
    struct rf__kv_item *item =
        rf__kv_item_create(request->key, request->key_bytes, request->value, request->value_bytes);
    if (!item) {
        return RF_ENOMEM;
    }
    item->lease = request->lease;
    item->revision = ++kv->revision;
    if (found) {
        take_out(kv, index);
    }
    rf__kv_insert(kv, index, item);
    rf__kv_remember(kv, rf__kv_hold(item));
    result->key_revision = item->revision;
    return 0;
}

/* Takes the key out, with its tombstone made beforehand. */
static void bury(struct rf__kv *kv, size_t index, struct rf__kv_item *tombstone) {
    tombstone->deleted = true;
    tombstone->revision = ++kv->revision;
    take_out(kv, index);
    rf__kv_remember(kv, tombstone);
}

static int delete (struct rf__kv *kv, const struct rf__kv_request *request) {
    bool found;
    size_t index = rf__kv_find(kv, request->key, request->key_bytes, &found);
    if (!found) {
        return RF_ENOTFOUND;
    }
    struct rf__kv_item *tombstone = rf__kv_item_create(request->key, request->key_bytes, NULL, 0);
    if (!tombstone) {
        return RF_ENOMEM;
    }
    bury(kv, index, tombstone);
    return 0;
}

static int grant(struct rf__kv *kv, const struct rf__kv_request *request, int64_t now,
                 struct rf__kv_result *result) {
    int rc = rf__kv_add_lease(kv, kv->next_lease, request->ttl_ms, now);
    if (!rc) {
        result->lease = kv->next_lease++;
    }
    return rc;
}

static int revoke(struct rf__kv *kv, const struct rf__kv_request *request) {
    int rc = 0;
    size_t dying = 0, made = 0;
    struct rf__kv_lease *lease = find_lease(kv, request->lease);
    struct rf__kv_item **tombstones = NULL;

    if (!lease) {
        return RF_ENOTFOUND;
    }
    for (size_t i = 0; i < kv->count; i++) {
        dying += kv->items[i]->lease == request->lease;
    }
    tombstones = rf__alloc(dying, sizeof(struct rf__kv_item *));
    for (size_t i = 0; tombstones && i < kv->count; i++) {
        const struct rf__kv_item *item = kv->items[i];
        if (item->lease == request->lease) {
            tombstones[made] = rf__kv_item_create(item->key, item->key_bytes, NULL, 0);
            if (!tombstones[made]) {
                break;
            }
            made++;
        }
    }
    if (!tombstones || made < dying) {
        rc = RF_ENOMEM;
        goto out;
    }
    for (size_t i = 0, next = 0; i < kv->count;) {
        if (kv->items[i]->lease == request->lease) {
            bury(kv, i, tombstones[next++]);
        } else {
            i++;
        }
    }
    made = 0;
    kv->lease_count--;
    memmove(lease, lease + 1,
            (kv->lease_count - (size_t)(lease - kv->leases)) * sizeof *kv->leases);
out:
    while (made > 0) {
        rf__kv_release(tombstones[--made]);
    }
    rf__free(tombstones);
    return rc;
}

static int apply(struct rf__kv *kv, const struct rf__kv_request *request, int64_t now,
                 struct rf__kv_result *result) {
    switch (request->op) {
    case RF__KV_PUT:
    case RF__KV_CAS:
        return put(kv, request, result);
    case RF__KV_DELETE:
        return delete (kv, request);
    case RF__KV_LEASE:
        return grant(kv, request, now, result);
    case RF__KV_REVOKE:
        return revoke(kv, request);
    case RF__KV_GET:
    case RF__KV_LIST:
    case RF__KV_KEEPALIVE:
    case RF__KV_WATCH:
    case RF__KV_UNWATCH:
    case RF__KV_OP_END:
        break;
    }
    return RF_EINVAL;
}

/* The reply that this change got before; NULL: it is new. A number that is neither new nor
 * remembered gets a refusal. */
static const struct rf__kv_reply *reply_before(const struct rf__kv_client *client,
                                               uint64_t number) {
    static const struct rf__kv_reply forgotten = {.result = {.code = RF_ELIMIT}};
    for (int i = 0; i < RF__KV_CLIENT_REPLIES; i++) {
        if (client->replies[i].number == number) {
            return &client->replies[i];
        }
    }
    return number <= client->newest ? &forgotten : NULL;
}

bool rf__kv_change(struct rf__kv *kv, uint64_t client_id, const struct rf__kv_request *request,
                   int64_t now, struct rf__kv_result *result) {
    struct rf__kv_client *client = NULL;

    *result = (struct rf__kv_result){.store_revision = kv->revision};
    if (client_id && !request->number) {
        result->code = RF_EINVAL;
        return false;
    }
    if (client_id) {
        client = rf__kv_client(kv, client_id);
        if (!client) {
            result->code = RF_ENOMEM;
            return false;
        }
        const struct rf__kv_reply *before = reply_before(client, request->number);
        if (before) {
            *result = before->result;
            return false;
        }
    }
    result->code = apply(kv, request, now, result);
    result->store_revision = kv->revision;
    if (client) {
        rf__kv_add_reply(client, request->number, result);
    }
    return result->code == 0;
}
