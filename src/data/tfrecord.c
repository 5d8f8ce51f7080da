/* TFRecord framing, and a reader of protocol buffers that is bounded by the bytes at hand: a field
 * is a key (number and wire type) and a value that is a varint, 4 or 8 bytes, or a length and so
 * many bytes. An Example holds Features (field 1), those a map (field 1) of entries with a name
 * (1) and a Feature (2); a Feature has a bytes_list (1), float_list (2) or int64_list (3), each
 * with its values in field 1, numbers packed or one by one. */
#include "data/tfrecord.h"

#include "base/cursor.h"

#include <string.h>

enum { LENGTH_BYTES = 8, CRC_BYTES = 4 };

/* One byte's worth of division by the reflected polynomial 0x82f63b78. */
static uint32_t crc_step(uint32_t value) {
    for (int bit = 0; bit < 8; bit++) {
        value = value >> 1 ^ (value & 1 ? 0x82f63b78u : 0);
    }
    return value;
}

struct crc_table {
    uint32_t entry[4][256];
};

/* Four bytes at a time: entry[k][b] is what byte b does that k bytes follow. */
static void crc_table_fill(struct crc_table *table) {
    for (uint32_t b = 0; b < 256; b++) {
        table->entry[0][b] = crc_step(b);
    }
    for (int k = 1; k < 4; k++) {
        for (uint32_t b = 0; b < 256; b++) {
            uint32_t before = table->entry[k - 1][b];
            table->entry[k][b] = before >> 8 ^ table->entry[0][before & 0xff];
        }
    }
}

static uint32_t crc_go_on(const struct crc_table *table, uint32_t crc, const unsigned char *bytes,
                          uint64_t count) {
    while (count >= 4) {
        crc ^= (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 |
               (uint32_t)bytes[3] << 24;
        crc = table->entry[3][crc & 0xff] ^ table->entry[2][crc >> 8 & 0xff] ^
              table->entry[1][crc >> 16 & 0xff] ^ table->entry[0][crc >> 24];
        bytes += 4;
        count -= 4;
    }
    while (count--) {
        crc = crc >> 8 ^ table->entry[0][(crc ^ *bytes++) & 0xff];
    }
    return crc;
}

uint32_t rf__crc32c(const unsigned char *bytes, uint64_t count) {
    static _Thread_local struct crc_table table; /* filled by each thread for itself */
    static _Thread_local bool is_filled;

    if (!is_filled) {
        crc_table_fill(&table);
        is_filled = true;
    }
    return ~crc_go_on(&table, ~0u, bytes, count);
}

uint32_t rf__crc32c_masked(const unsigned char *bytes, uint64_t count) {
    uint32_t crc = rf__crc32c(bytes, count);
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

bool rf__record_next(const unsigned char *file, uint64_t count, uint64_t *offset,
                     struct rf__record *out) {
    uint64_t left = count - *offset;
    struct rf__reader r = rf__reader(file + *offset, (size_t)left);

    if (!left) {
        return false;
    }
    *out = (struct rf__record){.state = RF__RECORD_LOST, .offset = *offset};
    const unsigned char *length = rf__read_view(&r, LENGTH_BYTES);
    uint32_t length_crc = rf__read_u32(&r);
    if (r.failed || rf__crc32c_masked(length, LENGTH_BYTES) != length_crc) {
        *offset = count;
        return true;
    }
    struct rf__reader of_length = rf__reader(length, LENGTH_BYTES);
    uint64_t bytes = rf__read_u64(&of_length);
    if (r.left < CRC_BYTES || bytes > r.left - CRC_BYTES) { /* the file is cut within it */
        *offset = count;
        return true;
    }
    out->data = *offset + LENGTH_BYTES + CRC_BYTES;
    out->bytes = bytes;
    const unsigned char *data = rf__read_view(&r, (size_t)bytes);
    uint32_t data_crc = rf__read_u32(&r);
    out->state = rf__crc32c_masked(data, bytes) == data_crc ? RF__RECORD_GOOD : RF__RECORD_BAD;
    *offset = out->data + bytes + CRC_BYTES;
    return true;
}

/* --- protocol buffers ------------------------------------------------------------------------- */

enum wire_type { VARINT = 0, FIXED64 = 1, LENGTH = 2, FIXED32 = 5 };

struct field {
    uint64_t number, value; /* of a VARINT */
    unsigned type;
    struct rf__reader content; /* of a LENGTH */
};

static uint64_t varint(struct rf__reader *r) {
    uint64_t value = 0;

    for (unsigned shift = 0; shift < 70; shift += 7) {
        uint8_t byte = rf__read_u8(r);
        if (shift == 63 && byte > 1) {
            break; /* more than 64 bits */
        }
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80)) {
            return value;
        }
    }
    r->failed = true;
    return 0;
}

/* The next field; false at the end, or where what follows is none. */
static bool field_next(struct rf__reader *r, struct field *out) {
    if (r->failed || !r->left) {
        return false;
    }
    uint64_t key = varint(r);
    *out = (struct field){.number = key >> 3, .type = (unsigned)(key & 7)};
    if (out->type == VARINT) {
        out->value = varint(r);
    } else if (out->type == FIXED64) {
        out->value = rf__read_u64(r);
    } else if (out->type == FIXED32) {
        out->value = rf__read_u32(r);
    } else if (out->type == LENGTH) {
        uint64_t bytes = varint(r);
        const unsigned char *view = bytes <= r->left ? rf__read_view(r, (size_t)bytes) : NULL;
        r->failed = r->failed || !view;
        out->content = rf__reader(view, view ? (size_t)bytes : 0);
    } else {
        r->failed = true;
    }
    return !r->failed && out->number != 0;
}

/* Whether the reader came to its end, field by field. */
static bool is_done(const struct rf__reader *r) {
    return !r->failed && !r->left;
}

/* The first number of an int64_list, packed or not. */
static bool first_number(struct rf__reader list, int64_t *out) {
    struct field field;

    while (field_next(&list, &field)) {
        if (field.number == 1 && field.type == VARINT) {
            *out = (int64_t)field.value;
            return true;
        }
        if (field.number == 1 && field.type == LENGTH && field.content.left) {
            *out = (int64_t)varint(&field.content);
            return !field.content.failed;
        }
    }
    return is_done(&list);
}

static bool first_bytes(struct rf__reader list, struct rf__example *out) {
    struct field field;

    while (field_next(&list, &field)) {
        if (field.number == 1 && field.type == LENGTH) {
            out->image = field.content.at;
            out->image_bytes = field.content.left;
            return true;
        }
    }
    return is_done(&list);
}

static bool is_name(const struct rf__reader *name, const char *text) {
    return name->left == strlen(text) && !memcmp(name->at, text, name->left);
}

static bool feature_take(const struct rf__reader *name, struct rf__reader feature,
                         struct rf__example *out) {
    struct field field;
    int64_t *number = is_name(name, "label")    ? &out->label
                      : is_name(name, "height") ? &out->height
                      : is_name(name, "width")  ? &out->width
                                                : NULL;
    bool holds = true;

    while (holds && field_next(&feature, &field)) {
        if (field.number == 3 && field.type == LENGTH && number) {
            holds = first_number(field.content, number);
        } else if (field.number == 1 && field.type == LENGTH && is_name(name, "image_raw")) {
            holds = first_bytes(field.content, out);
        }
    }
    return holds && is_done(&feature);
}

/* One entry of the map: a name and a feature, in any order. */
static bool entry_take(struct rf__reader entry, struct rf__example *out) {
    struct rf__reader name = rf__reader("", 0);
    struct rf__reader feature = rf__reader("", 0);
    struct field field;

    while (field_next(&entry, &field)) {
        if (field.number == 1 && field.type == LENGTH) {
            name = field.content;
        } else if (field.number == 2 && field.type == LENGTH) {
            feature = field.content;
        }
    }
    return is_done(&entry) && feature_take(&name, feature, out);
}

int rf__example_parse(const unsigned char *bytes, uint64_t count, struct rf__example *out) {
    struct rf__reader example = rf__reader(bytes, (size_t)count);
    struct field field;
    struct field entry;
    bool holds = true;

    *out = (struct rf__example){.label = -1, .height = -1, .width = -1};
    while (holds && field_next(&example, &field)) {
        if (field.number != 1 || field.type != LENGTH) {
            continue;
        }
        while (holds && field_next(&field.content, &entry)) {
            if (entry.number == 1 && entry.type == LENGTH) {
                holds = entry_take(entry.content, out);
            }
        }
        holds = holds && is_done(&field.content);
    }
    return holds && is_done(&example) ? RF_OK : RF_EDATA;
}
