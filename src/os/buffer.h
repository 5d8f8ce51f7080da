/* A queue of bytes that grows up to what its owner asks for: written behind, taken in front. */
#ifndef RF_OS_BUFFER_H
#define RF_OS_BUFFER_H

#include "base/mem.h"

#include <stddef.h>
#include <string.h>

struct rf__buffer {
    unsigned char *bytes;
    size_t start, end, capacity;
};

static inline size_t rf__buffer_held(const struct rf__buffer *buffer) {
    return buffer->end - buffer->start;
}

static inline const unsigned char *rf__buffer_front(const struct rf__buffer *buffer) {
    return buffer->bytes ? buffer->bytes + buffer->start : NULL;
}

/* Room for `bytes` behind what is held (moving that to the front, growing); NULL: no memory. */
static inline unsigned char *rf__buffer_room(struct rf__buffer *buffer, size_t bytes) {
    size_t held = rf__buffer_held(buffer);
    if (buffer->capacity - buffer->end < bytes && buffer->start) {
        memmove(buffer->bytes, buffer->bytes + buffer->start, held);
        buffer->start = 0;
        buffer->end = held;
    }
    if (buffer->capacity - buffer->end < bytes) {
        size_t capacity = buffer->capacity ? buffer->capacity : 4096;
        while (capacity - buffer->end < bytes) {
            capacity *= 2;
        }
        unsigned char *grown = rf__grow(buffer->bytes, capacity, 1);
        if (!grown) {
            return NULL;
        }
        buffer->bytes = grown;
        buffer->capacity = capacity;
    }
    return buffer->bytes + buffer->end;
}

static inline void rf__buffer_take(struct rf__buffer *buffer, size_t bytes) {
    buffer->start += bytes;
    if (buffer->start == buffer->end) {
        buffer->start = buffer->end = 0;
    }
}

static inline void rf__buffer_free(struct rf__buffer *buffer) {
    rf__free(buffer->bytes);
    *buffer = (struct rf__buffer){0};
}

#endif
