/* Requests and events as bytes. */
#include "kv/wire.h"

#include "base/cursor.h"

#include <ringfold/error.h>
#include <string.h>

int64_t rf__kv_body_bytes(const unsigned char length[RF__KV_LENGTH_BYTES]) {
    struct rf__reader r = rf__reader(length, RF__KV_LENGTH_BYTES);
    uint32_t bytes = rf__read_u32(&r);
    return bytes && bytes <= RF__KV_BODY_MAX ? (int64_t)bytes : RF_EPROTO;
}

size_t rf__kv_request_body(const struct rf__kv_request *request, unsigned char *out, size_t room) {
    struct rf__writer w = rf__writer(out, room);

    rf__write_u8(&w, (uint8_t)request->op);
    rf__write_u64(&w, request->number);
    rf__write_u64(&w, (uint64_t)request->revision);
    rf__write_u64(&w, request->lease);
    rf__write_u64(&w, (uint64_t)request->ttl_ms);
    rf__write_u16(&w, (uint16_t)request->key_bytes);
    rf__write_u32(&w, (uint32_t)request->value_bytes);
    rf__write_bytes(&w, request->key, request->key_bytes);
    rf__write_bytes(&w, request->value, request->value_bytes);
    return w.failed ? 0 : room - w.left;
}

/* Puts the length in front of a body that was written behind its place. */
static size_t close_frame(unsigned char *out, size_t room, size_t body) {
    struct rf__writer w = rf__writer(out, room);
    rf__write_u32(&w, (uint32_t)body);
    return body && !w.failed ? body + RF__KV_LENGTH_BYTES : 0;
}

size_t rf__kv_request_frame(const struct rf__kv_request *request, unsigned char *out, size_t room) {
    if (room < RF__KV_LENGTH_BYTES) {
        return 0;
    }
    size_t body =
        rf__kv_request_body(request, out + RF__KV_LENGTH_BYTES, room - RF__KV_LENGTH_BYTES);
    return close_frame(out, room, body);
}

size_t rf__kv_event_frame(const struct rf__kv_event *event, unsigned char *out, size_t room) {
    if (room < RF__KV_LENGTH_BYTES) {
        return 0;
    }
    struct rf__writer w = rf__writer(out + RF__KV_LENGTH_BYTES, room - RF__KV_LENGTH_BYTES);
    rf__write_u8(&w, (uint8_t)event->kind);
    rf__write_u8(&w, event->deleted);
    rf__write_u64(&w, event->number);
    rf__write_u32(&w, (uint32_t)event->code);
    rf__write_u64(&w, (uint64_t)event->key_revision);
    rf__write_u64(&w, (uint64_t)event->store_revision);
    rf__write_u64(&w, event->lease);
    rf__write_u16(&w, (uint16_t)event->key_bytes);
    rf__write_u32(&w, (uint32_t)event->value_bytes);
    rf__write_bytes(&w, event->key, event->key_bytes);
    rf__write_bytes(&w, event->value, event->value_bytes);
    return w.failed ? 0 : close_frame(out, room, room - RF__KV_LENGTH_BYTES - w.left);
}

/* Key and value fill the rest of the body exactly. */
static bool read_rest(struct rf__reader *r, const char **key, size_t *key_bytes,
                      const unsigned char **value, size_t *value_bytes) {
    *key_bytes = rf__read_u16(r);
    *value_bytes = rf__read_u32(r);
    *key = (const char *)rf__read_view(r, *key_bytes);
    *value = rf__read_view(r, *value_bytes);
    return !r->failed && r->left == 0;
}

static bool needs_key(enum rf__kv_op op) {
    return op == RF__KV_GET || op == RF__KV_PUT || op == RF__KV_CAS || op == RF__KV_DELETE;
}

int rf__kv_check_request(const struct rf__kv_request *request) {
    if (request->key_bytes > RF_MAX_STORE_KEY || request->value_bytes > RF_MAX_STORE_VALUE) {
        return RF_ELIMIT;
    }
    if (needs_key(request->op) && !request->key_bytes) {
        return RF_EINVAL;
    }
    if (request->key_bytes && memchr(request->key, 0, request->key_bytes)) {
        return RF_EINVAL;
    }
    if (request->op == RF__KV_LEASE &&
        (request->ttl_ms < 1 || request->ttl_ms > RF__KV_MAX_TTL_MS)) {
        return RF_EINVAL;
    }
    if (request->op == RF__KV_KEEPALIVE &&
        (request->ttl_ms < 0 || request->ttl_ms > RF__KV_MAX_TTL_MS)) {
        return RF_EINVAL;
    }
    return request->revision < 0 ? RF_EINVAL : 0;
}

int rf__kv_read_request(const unsigned char *body, size_t bytes, struct rf__kv_request *out) {
    struct rf__reader r = rf__reader(body, bytes);
    uint8_t op = rf__read_u8(&r);

    out->op = (enum rf__kv_op)op;
    out->number = rf__read_u64(&r);
    out->revision = (int64_t)rf__read_u64(&r);
    out->lease = rf__read_u64(&r);
    out->ttl_ms = (int64_t)rf__read_u64(&r);
    if (!read_rest(&r, &out->key, &out->key_bytes, &out->value, &out->value_bytes) || op < 1 ||
        op >= RF__KV_OP_END) {
        return RF_EPROTO;
    }
    return rf__kv_check_request(out);
}

int rf__kv_read_event(const unsigned char *body, size_t bytes, struct rf__kv_event *out) {
    struct rf__reader r = rf__reader(body, bytes);
    uint8_t kind = rf__read_u8(&r), deleted = rf__read_u8(&r);

    out->kind = (enum rf__kv_event_kind)kind;
    out->deleted = deleted == 1;
    out->number = rf__read_u64(&r);
    out->code = (int)(int32_t)rf__read_u32(&r);
    out->key_revision = (int64_t)rf__read_u64(&r);
    out->store_revision = (int64_t)rf__read_u64(&r);
    out->lease = rf__read_u64(&r);
    if (!read_rest(&r, &out->key, &out->key_bytes, &out->value, &out->value_bytes) ||
        kind < RF__KV_REPLY || kind > RF__KV_PROGRESS || deleted > 1 ||
        out->key_bytes > RF_MAX_STORE_KEY || out->value_bytes > RF_MAX_STORE_VALUE ||
        out->code > 0 || out->code <= -1000 || out->key_revision < 0 || out->store_revision < 0 ||
        (out->key_bytes && memchr(out->key, 0, out->key_bytes))) {
        return RF_EPROTO;
    }
    return 0;
}
