/* Encoding and decoding of frame headers and of causes, through bounded cursors. */
#include "group/frame.h"

#include "base/assert.h"
#include "base/cursor.h"

#include <ringfold/limits.h>

static const uint32_t magic = 0x31444652; /* "RFD1" */

void rf__frame_encode(const struct rf__frame *frame, unsigned char bytes[RF__FRAME_BYTES]) {
    struct rf__writer w = rf__writer(bytes, RF__FRAME_BYTES);
    rf__write_u32(&w, magic);
    rf__write_u8(&w, (uint8_t)frame->kind);
    rf__write_u8(&w, (uint8_t)frame->coll);
    rf__write_u8(&w, (uint8_t)frame->type);
    rf__write_u8(&w, (uint8_t)frame->redop);
    rf__write_u64(&w, frame->generation);
    rf__write_u64(&w, frame->seq);
    rf__write_u64(&w, frame->count);
    rf__write_u64(&w, frame->offset);
    rf__write_u32(&w, frame->bytes);
    rf__write_u32(&w, frame->message);
    rf__write_u32(&w, (uint32_t)frame->root);
    rf__write_u32(&w, (uint32_t)frame->algorithm);
    rf__write_u64(&w, frame->job);
    RF_ASSERT(!w.failed && w.left == 0);
}

int rf__frame_decode(const unsigned char bytes[RF__FRAME_BYTES], struct rf__frame *out) {
    struct rf__reader r = rf__reader(bytes, RF__FRAME_BYTES);
    uint32_t found = rf__read_u32(&r);
    unsigned kind = rf__read_u8(&r), coll = rf__read_u8(&r), type = rf__read_u8(&r),
             redop = rf__read_u8(&r);
    out->generation = rf__read_u64(&r);
    out->seq = rf__read_u64(&r);
    out->count = rf__read_u64(&r);
    out->offset = rf__read_u64(&r);
    out->bytes = rf__read_u32(&r);
    out->message = rf__read_u32(&r);
    out->root = (int32_t)rf__read_u32(&r);
    uint32_t algorithm = rf__read_u32(&r);
    out->job = rf__read_u64(&r);
    if (found != magic || kind == 0 || kind >= RF__FRAME_KINDS || coll >= RF_COLL_COUNT ||
        type >= RF_TYPE_COUNT || redop >= RF_REDOP_COUNT || algorithm >= RF_ALGORITHM_COUNT) {
        return RF_EPROTO;
    }
    out->kind = (enum rf__frame_kind)kind;
    out->coll = (enum rf_coll)coll;
    out->type = (enum rf_type)type;
    out->redop = (enum rf_redop)redop;
    out->algorithm = (enum rf_algorithm)algorithm;
    bool is_data = kind == RF__FRAME_DATA || kind == RF__FRAME_MESSAGE;
    return out->bytes <= (is_data ? RF__FRAME_PAYLOAD : RF__CONTROL_PAYLOAD) ? 0 : RF_EPROTO;
}

static void write_text(struct rf__writer *w, const char *text, size_t limit) {
    size_t length = strnlen(text, limit);
    if (length > w->left - 2) {
        length = w->left - 2;
    }
    rf__write_u16(w, (uint16_t)length);
    rf__write_bytes(w, text, length);
}

static void read_text(struct rf__reader *r, char *out, size_t room) {
    size_t length = rf__read_u16(r);
    const unsigned char *view = rf__read_view(r, length);
    size_t kept = view ? (length < room - 1 ? length : room - 1) : 0;
    for (size_t i = 0; i < kept; i++) {
        out[i] = view[i] < 32 || view[i] == 127 ? '?' : (char)view[i];
    }
    out[kept] = 0;
}

size_t rf__cause_encode(const struct rf_error *error, unsigned char bytes[RF__CONTROL_PAYLOAD]) {
    struct rf__writer w = rf__writer(bytes, RF__CONTROL_PAYLOAD - 8);
    rf__write_u32(&w, (uint32_t)error->code);
    rf__write_u32(&w, (uint32_t)error->rank);
    write_text(&w, error->text, sizeof error->text - 1);
    write_text(&w, error->what, sizeof error->what - 1);
    write_text(&w, error->where, sizeof error->where - 1);
    return RF__CONTROL_PAYLOAD - 8 - w.left;
}

int rf__cause_decode(const unsigned char *bytes, size_t length, struct rf_error *out) {
    struct rf__reader r = rf__reader(bytes, length);
    *out = (struct rf_error){0};
    out->code = (int)rf__read_u32(&r);
    out->rank = (int)rf__read_u32(&r);
    read_text(&r, out->text, sizeof out->text);
    read_text(&r, out->what, sizeof out->what);
    read_text(&r, out->where, sizeof out->where);
    bool is_sane = !r.failed && out->code < 0 && out->rank >= -1 && out->rank < RF_MAX_RANKS;
    return is_sane ? 0 : RF_EPROTO;
}
