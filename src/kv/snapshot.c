/* The state as records: what the journal holds. A snapshot begins with a HEAD that says how many
 * records follow; a COMMAND is a change that was applied, with the revision that it led to, so that
 * a replay that goes another way is noticed. */
#include "base/cursor.h"
#include "kv/state.h"
#include "kv/wire.h"

#include <ringfold/error.h>

enum record { HEAD = 1, LEASE, ITEM, CHANGE, CLIENT, COMMAND };

size_t rf__kv_command_record(const struct rf__kv *kv, uint64_t client,
                             const struct rf__kv_request *request, unsigned char *out,
                             size_t room) {
    struct rf__writer w = rf__writer(out, room);
    rf__write_u8(&w, COMMAND);
    rf__write_u64(&w, client);
    rf__write_u64(&w, (uint64_t)kv->revision);
    if (w.failed) {
        return 0;
    }
    size_t body = rf__kv_request_body(request, w.at, w.left);
    return body ? room - w.left + body : 0;
}

static void write_item(struct rf__writer *w, enum record kind, const struct rf__kv_item *item) {
    rf__write_u8(w, (uint8_t)kind);
    rf__write_u8(w, item->deleted);
    rf__write_u64(w, (uint64_t)item->revision);
    rf__write_u64(w, item->lease);
    rf__write_u16(w, (uint16_t)item->key_bytes);
    rf__write_u32(w, (uint32_t)item->value_bytes);
    rf__write_bytes(w, item->key, item->key_bytes);
    rf__write_bytes(w, item->value, item->value_bytes);
}

/* Replies from the oldest to the newest. */
static void write_client(struct rf__writer *w, const struct rf__kv_client *client) {
    unsigned held = client->count < RF__KV_CLIENT_REPLIES ? client->count : RF__KV_CLIENT_REPLIES;
    rf__write_u8(w, CLIENT);
    rf__write_u64(w, client->id);
    rf__write_u8(w, (uint8_t)held);
    for (unsigned i = client->count - held; i != client->count; i++) {
        const struct rf__kv_reply *reply = &client->replies[i % RF__KV_CLIENT_REPLIES];
        rf__write_u64(w, reply->number);
        rf__write_u32(w, (uint32_t)reply->result.code);
        rf__write_u64(w, (uint64_t)reply->result.key_revision);
        rf__write_u64(w, (uint64_t)reply->result.store_revision);
        rf__write_u64(w, reply->result.lease);
    }
}

static void write_head(struct rf__writer *w, const struct rf__kv *kv) {
    rf__write_u8(w, HEAD);
    rf__write_u64(w, (uint64_t)kv->revision);
    rf__write_u64(w, kv->next_lease);
    rf__write_u32(w, (uint32_t)kv->lease_count);
    rf__write_u32(w, (uint32_t)kv->count);
    rf__write_u32(w, (uint32_t)kv->history_count);
    rf__write_u32(w, (uint32_t)kv->client_count);
}

size_t rf__kv_snapshot_record(const struct rf__kv *kv, struct rf__kv_cursor *cursor,
                              unsigned char *out, size_t room) {
    const size_t counts[] = {1, kv->lease_count, kv->count, kv->history_count, kv->client_count};
    const int stages = (int)(sizeof counts / sizeof counts[0]);
    struct rf__writer w = rf__writer(out, room);

    while (cursor->stage < stages && cursor->index == counts[cursor->stage]) {
        cursor->stage++;
        cursor->index = 0;
    }
    size_t i = cursor->index++;
    switch (cursor->stage) {
    case 0:
        write_head(&w, kv);
        break;
    case 1:
        rf__write_u8(&w, LEASE);
        rf__write_u64(&w, kv->leases[i].id);
        rf__write_u64(&w, (uint64_t)kv->leases[i].ttl_ms);
        break;
    case 2:
        write_item(&w, ITEM, kv->items[i]);
        break;
    case 3:
        write_item(&w, CHANGE, kv->history[(kv->history_first + i) % RF__KV_HISTORY]);
        break;
    case 4:
        write_client(&w, &kv->clients[i]);
        break;
    default:
        return 0;
    }
    return w.failed ? 0 : room - w.left;
}

bool rf__kv_is_whole(const struct rf__kv *kv) {
    return !kv->due_leases && !kv->due_items && !kv->due_changes && !kv->due_clients;
}

static int read_head(struct rf__kv *kv, struct rf__reader *r) {
    bool fresh = !kv->revision && !kv->count && !kv->lease_count && !kv->client_count;
    uint64_t revision = rf__read_u64(r), next_lease = rf__read_u64(r);
    size_t leases = rf__read_u32(r), items = rf__read_u32(r);
    size_t changes = rf__read_u32(r), clients = rf__read_u32(r);

    if (r->failed || r->left || !fresh || !rf__kv_is_whole(kv) || revision > INT64_MAX / 2 ||
        !next_lease || leases > RF__KV_MAX_LEASES || items > RF__KV_MAX_KEYS ||
        changes > RF__KV_HISTORY || changes > revision || items > revision ||
        clients > RF__KV_MAX_CLIENTS) {
        return RF_EPROTO;
    }
    kv->revision = (int64_t)revision;
    kv->next_lease = next_lease;
    kv->due_leases = leases;
    kv->due_items = items;
    kv->due_changes = changes;
    kv->due_clients = clients;
    return 0;
}

static int read_lease(struct rf__kv *kv, struct rf__reader *r) {
    uint64_t id = rf__read_u64(r);
    int64_t ttl_ms = (int64_t)rf__read_u64(r);
    uint64_t last = kv->lease_count ? kv->leases[kv->lease_count - 1].id : 0;

    if (r->failed || r->left || !kv->due_leases || id <= last || id >= kv->next_lease ||
        ttl_ms < 1 || ttl_ms > RF__KV_MAX_TTL_MS) {
        return RF_EPROTO;
    }
    kv->due_leases--;
    return rf__kv_add_lease(kv, id, ttl_ms, 0);
}

/* NULL and *rc set where it is not an item. */
static struct rf__kv_item *read_item(struct rf__reader *r, int *rc) {
    bool deleted = rf__read_u8(r);
    uint64_t revision = rf__read_u64(r), lease = rf__read_u64(r);
    size_t key_bytes = rf__read_u16(r), value_bytes = rf__read_u32(r);
    const char *key = (const char *)rf__read_view(r, key_bytes);
    const unsigned char *value = rf__read_view(r, value_bytes);

    *rc = RF_EPROTO;
    if (r->failed || r->left || !key_bytes || key_bytes > RF_MAX_STORE_KEY ||
        value_bytes > RF_MAX_STORE_VALUE || memchr(key, 0, key_bytes) || !revision ||
        revision > INT64_MAX / 2) {
        return NULL;
    }
    struct rf__kv_item *item = rf__kv_item_create(key, key_bytes, value, value_bytes);
    *rc = item ? 0 : RF_ENOMEM;
    if (item) {
        item->deleted = deleted;
        item->revision = (int64_t)revision;
        item->lease = lease;
    }
    return item;
}

static int read_live(struct rf__kv *kv, struct rf__reader *r) {
    int rc;
    bool found;
    struct rf__kv_item *item = read_item(r, &rc);

    if (!item) {
        return rc;
    }
    size_t index = rf__kv_find(kv, item->key, item->key_bytes, &found);
    if (!kv->due_items || found || index != kv->count || item->deleted ||
        item->revision > kv->revision ||
        kv->bytes + item->key_bytes + item->value_bytes > RF__KV_MAX_BYTES) {
        rc = RF_EPROTO;
    } else {
        rc = rf__kv_reserve_item(kv);
    }
    if (rc) {
        rf__kv_release(item);
        return rc;
    }
    kv->due_items--;
    rf__kv_insert(kv, index, item);
    return 0;
}

static int read_change(struct rf__kv *kv, struct rf__reader *r) {
    int rc;
    bool found;
    struct rf__kv_item *item = read_item(r, &rc);

    if (!item) {
        return rc;
    }
    if (!kv->due_changes || item->revision != kv->revision - (int64_t)kv->due_changes + 1) {
        rf__kv_release(item);
        return RF_EPROTO;
    }
    kv->due_changes--;
    /* The key's newest change is the live item itself. */
    size_t index = rf__kv_find(kv, item->key, item->key_bytes, &found);
    if (found && kv->items[index]->revision == item->revision) {
        rf__kv_release(item);
        item = rf__kv_hold(kv->items[index]);
    }
    rf__kv_remember(kv, item);
    return 0;
}

static int read_client(struct rf__kv *kv, struct rf__reader *r) {
    uint64_t id = rf__read_u64(r);
    unsigned held = rf__read_u8(r);
    size_t known = kv->client_count;

    if (r->failed || !id || held > RF__KV_CLIENT_REPLIES || !kv->due_clients) {
        return RF_EPROTO;
    }
    struct rf__kv_client *client = rf__kv_client(kv, id);
    if (!client) {
        return RF_ENOMEM;
    }
    if (kv->client_count == known) {
        return RF_EPROTO; /* twice the same */
    }
    kv->due_clients--;
    for (unsigned i = 0; i < held; i++) {
        uint64_t number = rf__read_u64(r);
        struct rf__kv_result result = {.code = (int)(int32_t)rf__read_u32(r)};
        result.key_revision = (int64_t)rf__read_u64(r);
        result.store_revision = (int64_t)rf__read_u64(r);
        result.lease = rf__read_u64(r);
        rf__kv_add_reply(client, number, &result);
    }
    return r->failed || r->left ? RF_EPROTO : 0;
}

static int read_command(struct rf__kv *kv, struct rf__reader *r) {
    struct rf__kv_request request;
    struct rf__kv_result result;
    uint64_t client = rf__read_u64(r);
    uint64_t revision = rf__read_u64(r);
    size_t bytes = r->left;
    const unsigned char *body = rf__read_view(r, bytes);

    if (r->failed || !rf__kv_is_whole(kv) || rf__kv_read_request(body, bytes, &request) ||
        !rf__kv_is_change(request.op)) {
        return RF_EPROTO;
    }
    bool changed = rf__kv_change(kv, client, &request, 0, &result);
    if (result.code == RF_ENOMEM) {
        return RF_ENOMEM;
    }
    return changed && (uint64_t)kv->revision == revision ? 0 : RF_EPROTO;
}

int rf__kv_replay(struct rf__kv *kv, const unsigned char *record, size_t bytes) {
    struct rf__reader r = rf__reader(record, bytes);

    switch (rf__read_u8(&r)) {
    case HEAD:
        return read_head(kv, &r);
    case LEASE:
        return read_lease(kv, &r);
    case ITEM:
        return read_live(kv, &r);
    case CHANGE:
        return read_change(kv, &r);
    case CLIENT:
        return read_client(kv, &r);
    case COMMAND:
        return read_command(kv, &r);
    default:
        return RF_EPROTO;
    }
}
