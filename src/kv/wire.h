/* The store's protocol after the handshake: frames of a length (4 bytes) and a body. One layout for
 * all requests and one for all events, shared by server, client and journal. docs/WIRE.md has them
 * field by field. */
#ifndef RF_KV_WIRE_H
#define RF_KV_WIRE_H

#include "kv/kv.h"

enum {
    RF__KV_LENGTH_BYTES = 4,
    RF__KV_REQUEST_BYTES = 1 + 8 + 8 + 8 + 8 + 2 + 4, /* without key and value */
    RF__KV_EVENT_BYTES = 1 + 1 + 8 + 4 + 8 + 8 + 8 + 2 + 4,
    RF__KV_BODY_MAX = RF__KV_EVENT_BYTES + RF_MAX_STORE_KEY + RF_MAX_STORE_VALUE,
    RF__KV_FRAME_MAX = RF__KV_LENGTH_BYTES + RF__KV_BODY_MAX
};

enum rf__kv_event_kind {
    RF__KV_REPLY = 1,
    RF__KV_ITEM,
    RF__KV_CHANGE,
    RF__KV_PROGRESS /* a watch has seen everything up to store_revision */
};

/* Where code is not 0 the value is a text. Views as in a request. */
struct rf__kv_event {
    enum rf__kv_event_kind kind;
    bool deleted; /* CHANGE: the key is gone */
    uint64_t number;
    int code;
    int64_t key_revision, store_revision;
    uint64_t lease;
    const char *key;
    size_t key_bytes;
    const unsigned char *value;
    size_t value_bytes;
};

/* The length of a frame's body, or RF_EPROTO where it is out of bounds. */
int64_t rf__kv_body_bytes(const unsigned char length[RF__KV_LENGTH_BYTES]);

/* Bytes of the whole frame, length included; 0 where it does not fit. */
size_t rf__kv_request_frame(const struct rf__kv_request *request, unsigned char *out, size_t room);
size_t rf__kv_event_frame(const struct rf__kv_event *event, unsigned char *out, size_t room);

/* The body alone, for the journal. */
size_t rf__kv_request_body(const struct rf__kv_request *request, unsigned char *out, size_t room);

/* 0; RF_EPROTO where the bytes are not a message; RF_EINVAL or RF_ELIMIT where a request can be
 * read but not be carried out (its number is known then). */
int rf__kv_read_request(const unsigned char *body, size_t bytes, struct rf__kv_request *out);
int rf__kv_read_event(const unsigned char *body, size_t bytes, struct rf__kv_event *out);

/* Whether a request could be carried out by any store: key, value and ttl within their bounds. */
int rf__kv_check_request(const struct rf__kv_request *request);

#endif
