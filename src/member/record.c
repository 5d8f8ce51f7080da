/* Encoding of what membership writes into the store. Little-endian, each value with a version byte
 * in front; docs/MEMBERSHIP.md has the layouts. */
#include "member/record.h"

#include "base/cursor.h"

#include <ringfold/error.h>
#include <string.h>

enum { VERSION = 2 };
enum { HEALED = 1, PREPARED = 2 };
enum { COMMIT = 1, ENDED = 2, ROLLED_BACK = 4 };

const char *rf__doubt_text(enum rf__doubt doubt) {
    switch (doubt) {
    case RF__DOUBT_GONE:
        return "its connection ended";
    case RF__DOUBT_SILENT:
        return "it was silent for the detection time";
    case RF__DOUBT_UNREACHABLE:
        return "no connection with it came about";
    case RF__DOUBT_STUCK:
        return "its program stood still";
    case RF__DOUBT_SLOW:
        return "it was too slow";
    case RF__DOUBT_LEFT:
        return "it left";
    case RF__DOUBT_END:
        break;
    }
    return "it did not report";
}

static void write_text(struct rf__writer *w, const char *text, size_t room) {
    size_t length = strnlen(text, room - 1);
    rf__write_u16(w, (uint16_t)length);
    rf__write_bytes(w, text, length);
}

/* Control characters become '?', so that nothing from outside can move a screen's cursor. */
static void read_text(struct rf__reader *r, char *out, size_t room) {
    size_t length = rf__read_u16(r);

    out[0] = 0;
    if (length >= room) {
        r->failed = true;
        return;
    }
    rf__read_bytes(r, out, length);
    out[length] = 0;
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)out[i];
        if (c < 32 || c == 127) {
            out[i] = '?';
        }
    }
}

static void read_version(struct rf__reader *r) {
    if (rf__read_u8(r) != VERSION) {
        r->failed = true;
    }
}

static int read_id(struct rf__reader *r) {
    uint32_t id = rf__read_u32(r);
    if (id >= RF__MEMBER_ID_MAX) {
        r->failed = true;
        id = 0;
    }
    return (int)id;
}

static int finish(const struct rf__reader *r) {
    return r->failed || r->left ? RF_EPROTO : 0;
}

static size_t written(const struct rf__writer *w, size_t room) {
    return w->failed ? 0 : room - w->left;
}

static void write_suspects(struct rf__writer *w, const struct rf__suspect *suspects, int count) {
    rf__write_u16(w, (uint16_t)count);
    for (int i = 0; i < count; i++) {
        rf__write_u32(w, (uint32_t)suspects[i].id);
        rf__write_u8(w, (uint8_t)suspects[i].doubt);
    }
}

/* DOUBT_END, which no report carries, stands for "did not report" in a generation's list. */
static int read_suspects(struct rf__reader *r, struct rf__suspect *suspects, int room) {
    int count = rf__read_u16(r);

    if (count > room) {
        r->failed = true;
    }
    for (int i = 0; i < count && !r->failed; i++) {
        suspects[i].id = read_id(r);
        uint8_t doubt = rf__read_u8(r);
        if (doubt < RF__DOUBT_GONE || doubt > RF__DOUBT_END) {
            r->failed = true;
        }
        suspects[i].doubt = (enum rf__doubt)doubt;
    }
    return r->failed ? 0 : count;
}

size_t rf__candidate_encode(const struct rf__candidate *candidate, unsigned char *out,
                            size_t room) {
    struct rf__writer w = rf__writer(out, room);

    rf__write_u8(&w, VERSION);
    rf__write_u32(&w, (uint32_t)candidate->id);
    rf__write_u64(&w, candidate->nonce);
    rf__write_u32(&w, candidate->restarts);
    rf__write_u64(&w, candidate->config);
    rf__write_u8(&w, candidate->wants);
    rf__write_u64(&w, candidate->seen);
    write_text(&w, candidate->endpoint, sizeof candidate->endpoint);
    return written(&w, room);
}

int rf__candidate_decode(const void *bytes, size_t length, struct rf__candidate *out) {
    struct rf__reader r = rf__reader(bytes, length);

    read_version(&r);
    out->id = read_id(&r);
    out->nonce = rf__read_u64(&r);
    out->restarts = rf__read_u32(&r);
    out->config = rf__read_u64(&r);
    out->wants = rf__read_u8(&r) != 0;
    out->seen = rf__read_u64(&r);
    read_text(&r, out->endpoint, sizeof out->endpoint);
    if (out->nonce == 0 || out->endpoint[0] == 0) {
        r.failed = true;
    }
    return finish(&r);
}

size_t rf__report_encode(const struct rf__report *report, unsigned char *out, size_t room) {
    const struct rf__progress *p = &report->progress;
    struct rf__writer w = rf__writer(out, room);

    rf__write_u8(&w, VERSION);
    rf__write_u64(&w, report->generation);
    rf__write_u32(&w, (uint32_t)report->id);
    rf__write_u64(&w, report->nonce);
    rf__write_u8(&w, (uint8_t)((p->healed ? HEALED : 0) | (p->prepared ? PREPARED : 0)));
    rf__write_u64(&w, p->units);
    rf__write_u64(&w, p->chain);
    rf__write_u64(&w, p->prepared_chain);
    rf__write_u64(&w, p->prepared_state);
    write_suspects(&w, report->suspects, report->suspect_count);
    write_text(&w, report->cause, sizeof report->cause);
    return written(&w, room);
}

int rf__report_decode(const void *bytes, size_t length, struct rf__report *out) {
    struct rf__reader r = rf__reader(bytes, length);

    read_version(&r);
    out->generation = rf__read_u64(&r);
    out->id = read_id(&r);
    out->nonce = rf__read_u64(&r);
    uint8_t flags = rf__read_u8(&r);
    out->progress.healed = flags & HEALED;
    out->progress.prepared = flags & PREPARED;
    out->progress.units = rf__read_u64(&r);
    out->progress.chain = rf__read_u64(&r);
    out->progress.prepared_chain = rf__read_u64(&r);
    out->progress.prepared_state = rf__read_u64(&r);
    out->suspect_count = read_suspects(&r, out->suspects, RF__MEMBER_SUSPECTS);
    read_text(&r, out->cause, sizeof out->cause);
    return finish(&r);
}

size_t rf__generation_encode(const struct rf__generation *generation, unsigned char *out,
                             size_t room) {
    struct rf__writer w = rf__writer(out, room);

    rf__write_u8(&w, VERSION);
    rf__write_u64(&w, generation->number);
    rf__write_u8(&w, (uint8_t)((generation->commit ? COMMIT : 0) | (generation->ended ? ENDED : 0) |
                               (generation->rolled_back ? ROLLED_BACK : 0)));
    rf__write_u64(&w, generation->units);
    rf__write_u64(&w, generation->chain);
    rf__write_u64(&w, generation->target);
    rf__write_u64(&w, generation->order);
    write_text(&w, generation->cause, sizeof generation->cause);
    rf__write_u16(&w, (uint16_t)generation->count);
    for (int i = 0; i < generation->count; i++) {
        const struct rf__member_entry *member = &generation->members[i];
        rf__write_u32(&w, (uint32_t)member->id);
        rf__write_u64(&w, member->nonce);
        rf__write_u8(&w, member->healed);
    }
    write_suspects(&w, generation->dropped, generation->dropped_count);
    return written(&w, room);
}

int rf__generation_decode(const void *bytes, size_t length, struct rf__generation *out) {
    struct rf__reader r = rf__reader(bytes, length);

    read_version(&r);
    out->number = rf__read_u64(&r);
    uint8_t flags = rf__read_u8(&r);
    out->commit = flags & COMMIT;
    out->ended = flags & ENDED;
    out->rolled_back = flags & ROLLED_BACK;
    out->units = rf__read_u64(&r);
    out->chain = rf__read_u64(&r);
    out->target = rf__read_u64(&r);
    out->order = rf__read_u64(&r);
    read_text(&r, out->cause, sizeof out->cause);
    int count = rf__read_u16(&r);
    out->count = 0;
    if (count > RF_MAX_RANKS || out->number == 0) {
        r.failed = true;
    }
    for (int i = 0; i < count && !r.failed; i++) {
        struct rf__member_entry *member = &out->members[i];
        member->id = read_id(&r);
        member->nonce = rf__read_u64(&r);
        member->healed = rf__read_u8(&r) != 0;
    }
    out->count = r.failed ? 0 : count;
    out->dropped_count = read_suspects(&r, out->dropped, RF_MAX_RANKS);
    return finish(&r);
}

size_t rf__rollback_encode(const struct rf__rollback *rollback, unsigned char *out, size_t room) {
    struct rf__writer w = rf__writer(out, room);

    rf__write_u8(&w, VERSION);
    rf__write_u64(&w, rollback->nonce);
    rf__write_u64(&w, rollback->step);
    return written(&w, room);
}

int rf__rollback_decode(const void *bytes, size_t length, struct rf__rollback *out) {
    struct rf__reader r = rf__reader(bytes, length);

    read_version(&r);
    out->nonce = rf__read_u64(&r);
    out->step = rf__read_u64(&r);
    if (out->nonce == 0) {
        r.failed = true;
    }
    return finish(&r);
}

int rf__generation_find(const struct rf__generation *generation, int id, uint64_t nonce) {
    for (int rank = 0; rank < generation->count; rank++) {
        const struct rf__member_entry *member = &generation->members[rank];
        if (member->id == id && (nonce == 0 || member->nonce == nonce)) {
            return rank;
        }
    }
    return -1;
}
