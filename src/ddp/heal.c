/* Copying the state. Parameters and registered state do not change between a begin and its commit,
 * so those that hold them (the donors) send them straight from where they lie to those that do not
 * (the joiners), while everybody computes: a stripe from each donor, in messages of one contiguous
 * piece. The first donor sends a header ahead, which says where the group stands and how gradients
 * are put into buckets: without it a joiner could not take part in the unit's operations.
 *
 *     header     magic (4), flags (4: 1 measurement), units (8), steps (8), chain (8),
 *                samples (8), skipped (8), tensors (8), order of the buckets' tensors (4 each),
 *                digest of the bytes before (8)
 *
 * Every pair goes through the same pieces in the same order, so that messages need no names. Few
 * are in flight at a time; each call of the layers above starts what has become possible. What was
 * copied is verified by the hash of the state, which is due in the step reports of this unit. */
#include "base/cursor.h"
#include "base/digest.h"
#include "base/status.h"
#include "ddp/inner.h"

#include <inttypes.h>
#include <string.h>

enum { HEADER_FIXED = 64, FLAG_MEASURE = 1 };

static const uint32_t magic = 0x48534652; /* "RFSH", little-endian */
static const uint64_t most_units = (uint64_t)1 << 53;

size_t rf__ddp_header_bytes(int tensors) {
    return HEADER_FIXED + (size_t)tensors * sizeof(uint32_t);
}

static bool is_donor(const struct rf_ddp *ddp) {
    return ddp->healed[ddp->runner->rank];
}

/* ---- header
 * ----------------------------------------------------------------------------------- */

static void header_encode(struct rf_ddp *ddp) {
    size_t bytes = rf__ddp_header_bytes(ddp->tensors);
    struct rf__writer w = rf__writer(ddp->control.header, bytes);

    rf__write_u32(&w, magic);
    rf__write_u32(&w, ddp->measure ? FLAG_MEASURE : 0);
    rf__write_u64(&w, ddp->units);
    rf__write_u64(&w, ddp->steps);
    rf__write_u64(&w, ddp->chain);
    rf__write_u64(&w, ddp->samples);
    rf__write_u64(&w, ddp->skipped);
    rf__write_u64(&w, (uint64_t)ddp->tensors);
    for (int k = 0; k < ddp->tensors; k++) {
        rf__write_u32(&w, (uint32_t)ddp->order[k]);
    }
    rf__write_u64(&w, rf__digest(ddp->control.header, bytes - 8, 0));
}

/* Takes the header over: where the group stands, and the buckets. */
static int header_decode(struct rf_ddp *ddp) {
    size_t bytes = rf__ddp_header_bytes(ddp->tensors);
    struct rf__reader r = rf__reader(ddp->control.header, bytes);

    uint32_t found_magic = rf__read_u32(&r);
    uint32_t flags = rf__read_u32(&r);
    uint64_t units = rf__read_u64(&r);
    uint64_t steps = rf__read_u64(&r);
    uint64_t chain = rf__read_u64(&r);
    uint64_t samples = rf__read_u64(&r);
    uint64_t skipped = rf__read_u64(&r);
    uint64_t tensors = rf__read_u64(&r);
    bool valid = found_magic == magic && !(flags & ~(uint32_t)FLAG_MEASURE) &&
                 units <= most_units && steps <= units && tensors == (uint64_t)ddp->tensors;
    for (int k = 0; k < ddp->tensors; k++) {
        ddp->control.order[k] = rf__read_u32(&r);
    }
    uint64_t digest = rf__read_u64(&r);
    valid = valid && !r.failed && digest == rf__digest(ddp->control.header, bytes - 8, 0) &&
            rf__ddp_is_permutation(ddp, ddp->control.order);
    if (!valid) {
        return RF_EPROTO;
    }
    ddp->units = units;
    ddp->steps = steps;
    ddp->chain = chain;
    ddp->samples = samples; /* a checkpoint's parts hold them, whoever writes which */
    ddp->skipped = skipped;
    ddp->measure = flags & FLAG_MEASURE;
    for (int k = 0; k < ddp->tensors; k++) {
        ddp->order[k] = (int)ddp->control.order[k];
    }
    rf__ddp_lay_out(ddp);
    return 0;
}

static int header_receive(struct rf_ddp *ddp, struct rf_error *err) {
    const char *context = "waiting for the group's state";
    struct rf_call call = {.coll = RF_COLL_RECV,
                           .type = RF_U8,
                           .root = ddp->donor[0],
                           .recv = ddp->control.header,
                           .count = rf__ddp_header_bytes(ddp->tensors)};
    struct rf_error cause;

    int rc = rf__ddp_run(ddp, &call, context, err);
    if (rc) {
        return rc;
    }
    rc = header_decode(ddp);
    if (rc) {
        (void)rf__fail(&cause, rc, 0, "%s: what rank %d of %d sent cannot be read", context,
                       ddp->donor[0], ddp->runner->size);
        cause.rank = ddp->donor[0];
        rc = rf__ddp_fail_with(ddp, &cause, err);
    }
    return rc;
}

/* ---- messages in flight
 * ----------------------------------------------------------------------- */

static struct rf__op **newest(struct rf__ddp_heal *heal) {
    return &heal->op[(heal->oldest + heal->count) % RF__HEAL_IN_FLIGHT];
}

/* Waits for the oldest message. */
static int reap(struct rf_ddp *ddp) {
    struct rf__ddp_heal *heal = &ddp->heal;
    int rc = ddp->runner->ops->wait(ddp->runner, heal->op[heal->oldest], -1, NULL);

    heal->op[heal->oldest] = NULL;
    heal->oldest = (heal->oldest + 1) % RF__HEAL_IN_FLIGHT;
    heal->count--;
    return rc;
}

void rf__ddp_heal_drain(struct rf_ddp *ddp) {
    while (ddp->heal.count > 0) {
        (void)reap(ddp);
    }
    ddp->heal.active = false;
}

static int fail(struct rf_ddp *ddp, int rc, struct rf_error *err) {
    return rf__ddp_fail(ddp, rc, rf__ddp_context(ddp, "copying the state").text, err);
}

static int start_message(struct rf_ddp *ddp, int peer, void *bytes, size_t length,
                         struct rf_error *err) {
    bool gives = is_donor(ddp);
    struct rf__op_params params = {.call = {.coll = gives ? RF_COLL_SEND : RF_COLL_RECV,
                                            .type = RF_U8,
                                            .root = peer,
                                            .send = gives ? bytes : NULL,
                                            .recv = gives ? NULL : bytes,
                                            .count = length}};

    int rc = ddp->runner->ops->start(ddp->runner, &params, newest(&ddp->heal));
    if (rc) {
        return fail(ddp, rc, err);
    }
    ddp->heal.count++;
    ddp->heal.bytes += length;
    return 0;
}

/* To every joiner: all of them wait for it in their begin. It has to be with them before the first
 * collective is started: between a pair a message may stand behind the data of a collective, and
 * the joiner begins none before it has the header. */
static int send_headers(struct rf_ddp *ddp, struct rf_error *err) {
    int rc = 0;

    header_encode(ddp);
    for (int k = 0; rc == 0 && (k < ddp->joiners || ddp->heal.count); k++) {
        if (k >= ddp->joiners || ddp->heal.count == RF__HEAL_IN_FLIGHT) {
            rc = reap(ddp);
            rc = rc ? fail(ddp, rc, err) : 0;
        }
        if (rc == 0 && k < ddp->joiners) {
            rc = start_message(ddp, ddp->joiner[k], ddp->control.header,
                               rf__ddp_header_bytes(ddp->tensors), err);
        }
    }
    return rc;
}

/* Starts the next message, if there is one for the present piece and peer, and moves on. */
static int start_next(struct rf_ddp *ddp, struct rf_error *err) {
    struct rf__ddp_heal *heal = &ddp->heal;
    bool gives = is_donor(ddp);
    int peers = gives ? ddp->joiners : ddp->donors;
    int stripe = heal->peer, rc = 0;
    size_t length = 0;
    void *bytes = NULL;

    if (gives) {
        for (stripe = 0; ddp->donor[stripe] != ddp->runner->rank;) {
            stripe++;
        }
    }
    bool there = rf__ddp_piece(ddp, stripe, ddp->donors, heal->piece, &bytes, &length);
    heal->any = heal->any || there;
    if (there && length > 0) {
        int peer = gives ? ddp->joiner[heal->peer] : ddp->donor[heal->peer];
        rc = start_message(ddp, peer, bytes, length, err);
    }
    if (++heal->peer == peers) {
        heal->all = !heal->any;
        heal->any = false;
        heal->peer = 0;
        heal->piece++;
    }
    return rc;
}

int rf__ddp_heal_pump(struct rf_ddp *ddp, struct rf_error *err) {
    struct rf__ddp_heal *heal = &ddp->heal;
    int rc = 0, tested = 1;

    while (rc == 0 && heal->count > 0 && tested > 0) {
        tested = ddp->runner->ops->test(ddp->runner, heal->op[heal->oldest]);
        if (tested) {
            rc = reap(ddp);
            rc = rc ? fail(ddp, rc, err) : 0;
        }
    }
    while (rc == 0 && !heal->all && heal->count < RF__HEAL_IN_FLIGHT) {
        rc = start_next(ddp, err);
    }
    return rc;
}

int rf__ddp_heal_start(struct rf_ddp *ddp, struct rf_error *err) {
    int rc = 0;

    ddp->heal = (struct rf__ddp_heal){.active = true, .began = rf__ddp_now(ddp)};
    if (!is_donor(ddp)) {
        rc = header_receive(ddp, err);
    } else if (ddp->donor[0] == ddp->runner->rank) {
        rc = send_headers(ddp, err);
    }
    return rc ? rc : rf__ddp_heal_pump(ddp, err);
}

int rf__ddp_heal_finish(struct rf_ddp *ddp, struct rf_error *err) {
    struct rf__ddp_heal *heal = &ddp->heal;
    int rc = 0;

    while (rc == 0 && heal->active) {
        rc = rf__ddp_heal_pump(ddp, err);
        if (rc == 0 && heal->count > 0) {
            rc = reap(ddp);
            rc = rc ? fail(ddp, rc, err) : 0;
        }
        if (rc == 0 && heal->count == 0 && heal->all) {
            heal->active = false;
            heal->took = rf__ddp_now(ddp) - heal->began;
        }
    }
    return rc;
}
