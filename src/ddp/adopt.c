/* A new generation: what it means for the state and the work that this member holds.
 *
 * The membership says which unit is next, and who holds the state for it. This member's own word
 * does not count: a member that the group does not take for healed copies the state, whatever it
 * holds. Where the group takes it for healed and it is not (which only a fault can bring about), it
 * says so and ends the generation, so that the next one knows. */
#include "base/status.h"
#include "ddp/inner.h"

#include <inttypes.h>
#include <string.h>

enum { MOST_OWN_FAILURES = 4 };

int rf__ddp_note(struct rf_ddp *ddp) {
    const struct rf__ddp_attempt *attempt = &ddp->attempt;
    struct rf__progress progress = {
        .healed = ddp->holds,
        .units = ddp->units,
        .chain = ddp->chain,
        .prepared = attempt->prepared,
        .prepared_chain = attempt->prepared ? attempt->chain : 0,
        .prepared_state = attempt->prepared ? attempt->state_digest : 0,
    };
    return ddp->runner->elastic ? ddp->runner->ops->note(ddp->runner, &progress) : 0;
}

void rf__ddp_count_healed(struct rf_ddp *ddp) {
    ddp->donors = ddp->joiners = 0;
    for (int r = 0; r < ddp->runner->size; r++) {
        if (ddp->healed[r]) {
            ddp->donor[ddp->donors++] = r;
        } else {
            ddp->joiner[ddp->joiners++] = r;
        }
    }
}

void rf__ddp_adopt_fixed(struct rf_ddp *ddp) {
    for (int r = 0; r < ddp->runner->size; r++) {
        ddp->id[r] = r;
        ddp->healed[r] = true;
    }
    ddp->generation = ddp->runner->generation;
    ddp->holds = true;
    rf__ddp_count_healed(ddp);
}

void rf__ddp_void(struct rf_ddp *ddp) {
    ddp->holds = false;
    ddp->work = (struct rf__ddp_work){.retries = ddp->work.retries};
    ddp->attempt.prepared = false;
    ddp->asked = false; /* it was meant for a unit that is no longer ours */
    ddp->slow_id = -1;  /* what was seen before is of another group */
    ddp->slow.count = 0;
    if (ddp->compress) { /* it belonged to the work that is void */
        rf__compress_forget(ddp->compress);
    }
    if (ddp->saver) {
        rf__saver_forget(ddp->saver); /* until it has loaded or copied another state */
    }
}

/* The membership takes this member for a holder of the state that it does not hold. */
static void refuse(struct rf_ddp *ddp, const struct rf__membership *m) {
    struct rf_error cause;

    (void)rf__fail(&cause, RF_EPROTO, 0,
                   "rank %d of %d does not hold the state after unit %" PRIu64
                   " that generation %" PRIu64 " takes it to hold",
                   m->rank, m->size, m->units, m->generation);
    cause.rank = m->rank;
    rf__ddp_void(ddp);
    (void)rf__ddp_note(ddp);
    (void)rf__ddp_fail_with(ddp, &cause, NULL);
}

/* Whether somebody who held the state, and so writes a part of what is being saved, is gone, or is
 * here without it. */
static bool has_lost_holders(const struct rf_ddp *ddp, const struct rf__membership *m) {
    bool lost = m->rolled_back;

    for (int old = 0; old < ddp->donors + ddp->joiners && !lost; old++) {
        int rank = 0;
        while (rank < m->size && m->ids[rank] != ddp->id[old]) {
            rank++;
        }
        lost = ddp->healed[old] && (rank == m->size || !m->healed[rank]);
    }
    return lost;
}

/* The group goes back: nothing that was done counts any more. */
static void start_over(struct rf_ddp *ddp, uint64_t target) {
    rf__ddp_void(ddp);
    ddp->work.retries = 0;
    ddp->units = ddp->steps = ddp->chain = 0;
    ddp->measure = ddp->stop = false;
    ddp->save = RF__SAVE_NOT;
    ddp->save_asked = ddp->save_must = false;
    ddp->holds = true;
    ddp->rolls_back = true;
    ddp->target = target;
}

static void take(struct rf_ddp *ddp, const struct rf__membership *m) {
    size_t size = (size_t)m->size;

    if (ddp->saver && has_lost_holders(ddp, m)) {
        rf__saver_regroup(ddp->saver);
    }
    ddp->first_unit = ddp->first_unit || m->generation != ddp->generation;
    ddp->generation = m->generation;
    ddp->planned = false;
    ddp->slow_id = -1; /* what was said of the generation before is done, or void */
    memcpy(ddp->id, m->ids, size * sizeof *ddp->id);
    memcpy(ddp->healed, m->healed, size * sizeof *ddp->healed);
    rf__ddp_count_healed(ddp);
    ddp->attempt.failed = false;
    ddp->attempt.prepared = false;
    ddp->is_behind = ddp->saver && m->units == 0 && !m->ended;
    if (m->rolled_back && m->units == 0) {
        start_over(ddp, m->target);
    } else if (ddp->is_behind) { /* a checkpoint that was loaded, and not noted in time */
        ddp->units = ddp->steps = ddp->chain = 0;
        ddp->measure = false;
    }
    if (!ddp->healed[m->rank]) {
        rf__ddp_void(ddp);
    } else if (!ddp->holds || m->units != ddp->units ||
               (ddp->units > 0 && m->chain != ddp->chain)) {
        refuse(ddp, m);
        return;
    }
    (void)rf__ddp_note(ddp); /* where this generation is over already, the next is told */
}

/* The unit that this member has prepared and not committed is what the group stands after: then it
 * was committed, while the group re-formed, be it now or in a generation that this member has not
 * seen. The chain says that it is this unit and no other. */
static bool is_committed(const struct rf_ddp *ddp, const struct rf__membership *m) {
    return ddp->attempt.prepared && m->healed[m->rank] && ddp->holds &&
           m->units == ddp->units + 1 && m->chain == ddp->attempt.chain;
}

int rf__ddp_adopt(struct rf_ddp *ddp, bool *committed, struct rf_error *err) {
    struct rf__membership m = {.size = 0};
    struct rf_error cause = {.code = 0};

    *committed = false;
    rf__ddp_drain(ddp);
    if (ddp->own_failures > MOST_OWN_FAILURES) {
        cause = ddp->error;
        return rf__ddp_break(ddp, &cause, err);
    }
    int rc = ddp->runner->ops->reform(ddp->runner, &m, &cause);
    if (rc == 0 && (m.size < 1 || m.size > ddp->capacity || m.rank < 0 || m.rank >= m.size)) {
        rc = rf__fail(&cause, RF_EINTERNAL, 0, "a generation of %d members, but at most %d fit",
                      m.size, ddp->capacity);
    }
    *committed = rc == 0 && is_committed(ddp, &m);
    ddp->ended = rc == 0 && m.ended;
    if (ddp->ended && !*committed) { /* never to train on alone */
        rc = rf__fail(&cause, RF_EENDED, 0, "the job has ended with unit %" PRIu64, m.units);
    }
    if (rc) {
        return rf__ddp_break(ddp, &cause, err);
    }
    if (*committed) { /* what `take` compares with; the caller does the rest */
        struct rf__ddp_attempt prepared = ddp->attempt;
        uint64_t chain = ddp->chain;
        ddp->units++;
        ddp->chain = prepared.chain;
        take(ddp, &m);
        ddp->units--;
        ddp->chain = chain;
        ddp->attempt = prepared;
        ddp->attempt.failed = false;
    } else {
        take(ddp, &m);
    }
    return 0;
}
