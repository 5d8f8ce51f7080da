/* Bounds-checked little-endian cursors over bytes. A read past the end gives zeros, a write past
 * the end is dropped, and either sets `failed`: check it once at the end. Inline, because frames
 * are parsed on the hot path. */
#ifndef RF_BASE_CURSOR_H
#define RF_BASE_CURSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct rf__reader {
    const unsigned char *at;
    size_t left;
    bool failed;
};

struct rf__writer {
    unsigned char *at;
    size_t left;
    bool failed;
};

static inline struct rf__reader rf__reader(const void *bytes, size_t length) {
    return (struct rf__reader){.at = bytes, .left = length};
}

static inline struct rf__writer rf__writer(void *bytes, size_t length) {
    return (struct rf__writer){.at = bytes, .left = length};
}

/* A view of `length` bytes, borrowed from the cursor's bytes; NULL past the end. */
static inline const unsigned char *rf__read_view(struct rf__reader *r, size_t length) {
    if (r->failed || length > r->left) {
        r->failed = true;
        return NULL;
    }
    const unsigned char *view = r->at;
    r->at += length;
    r->left -= length;
    return view;
}

static inline void rf__read_bytes(struct rf__reader *r, void *out, size_t length) {
    const unsigned char *view = rf__read_view(r, length);
    if (!view) {
        memset(out, 0, length);
    } else if (length) {
        memcpy(out, view, length);
    }
}

static inline uint64_t rf__read_unsigned(struct rf__reader *r, size_t length) {
    unsigned char bytes[8];
    uint64_t value = 0;
    rf__read_bytes(r, bytes, length);
    for (size_t i = 0; i < length; i++) {
        value |= (uint64_t)bytes[i] << (8 * i);
    }
    return value;
}

static inline uint8_t rf__read_u8(struct rf__reader *r) {
    return (uint8_t)rf__read_unsigned(r, 1);
}
static inline uint16_t rf__read_u16(struct rf__reader *r) {
    return (uint16_t)rf__read_unsigned(r, 2);
}
static inline uint32_t rf__read_u32(struct rf__reader *r) {
    return (uint32_t)rf__read_unsigned(r, 4);
}
static inline uint64_t rf__read_u64(struct rf__reader *r) {
    return rf__read_unsigned(r, 8);
}

static inline void rf__write_bytes(struct rf__writer *w, const void *bytes, size_t length) {
    if (w->failed || length > w->left) {
        w->failed = true;
        return;
    }
    if (length) {
        memcpy(w->at, bytes, length);
    }
    w->at += length;
    w->left -= length;
}

static inline void rf__write_unsigned(struct rf__writer *w, uint64_t value, size_t length) {
    unsigned char bytes[8];
    for (size_t i = 0; i < length; i++) {
        bytes[i] = (unsigned char)(value >> (8 * i));
    }
    rf__write_bytes(w, bytes, length);
}

static inline void rf__write_u8(struct rf__writer *w, uint8_t value) {
    rf__write_unsigned(w, value, 1);
}
static inline void rf__write_u16(struct rf__writer *w, uint16_t value) {
    rf__write_unsigned(w, value, 2);
}
static inline void rf__write_u32(struct rf__writer *w, uint32_t value) {
    rf__write_unsigned(w, value, 4);
}
static inline void rf__write_u64(struct rf__writer *w, uint64_t value) {
    rf__write_unsigned(w, value, 8);
}

#endif
