/* What an error ends.
 *
 * In a fixed group it ends everything: the group, with the first cause, and this object, whose own
 * operations are waited for so that its memory may be freed. In an elastic group it ends the
 * generation: nothing more is started, and the commit, or the begin, goes on in the next one. Where
 * no member was lost and yet attempt after attempt fails, another one would not help: after a few,
 * the error is final there too. */
#include "base/status.h"
#include "ddp/inner.h"

#include <inttypes.h>
#include <stdio.h>

struct rf__ddp_context rf__ddp_context(const struct rf_ddp *ddp, const char *doing) {
    struct rf__ddp_context context;
    snprintf(context.text, sizeof context.text, "step %" PRIu64 ", %s", ddp->steps, doing);
    return context;
}

static void drain(struct rf_ddp *ddp, struct rf__op **op) {
    if (*op) {
        (void)ddp->runner->ops->wait(ddp->runner, *op, -1, NULL);
        *op = NULL;
    }
}

void rf__ddp_drain(struct rf_ddp *ddp) {
    drain(ddp, &ddp->count_op);
    for (int k = ddp->attempt.finished; k < ddp->attempt.started; k++) {
        drain(ddp, &ddp->op[k]);
    }
    ddp->attempt.finished = ddp->attempt.started;
    if (ddp->compress) {
        rf__compress_drain(ddp->compress);
    }
    rf__ddp_heal_drain(ddp);
}

int rf__ddp_broken(const struct rf_ddp *ddp, struct rf_error *err) {
    if (err) {
        *err = ddp->error;
    }
    return ddp->error.code;
}

int rf__ddp_break(struct rf_ddp *ddp, const struct rf_error *cause, struct rf_error *err) {
    if (ddp->stage != RF__DDP_BROKEN) {
        ddp->stage = RF__DDP_BROKEN;
        ddp->averaged = false;
        ddp->error = *cause;
        ddp->runner->ops->fail(ddp->runner, cause);
        rf__ddp_drain(ddp);
    }
    return rf__ddp_broken(ddp, err);
}

/* Whether a member that was lost, or a plan, explains it. */
static bool is_explained(int code) {
    return code == RF_ELOST || code == RF_EREVOKED || code == RF_ETIMEDOUT || code == RF_ECONNECT;
}

int rf__ddp_fail_with(struct rf_ddp *ddp, const struct rf_error *cause, struct rf_error *err) {
    if (!ddp->runner->elastic) {
        return rf__ddp_break(ddp, cause, err);
    }
    if (!ddp->attempt.failed) {
        ddp->attempt.failed = true;
        snprintf(ddp->trouble, sizeof ddp->trouble, "%.*s", (int)sizeof ddp->trouble - 1,
                 cause->text);
        if (!is_explained(cause->code)) {
            ddp->own_failures++;
            ddp->error = *cause;
        }
        ddp->runner->ops->fail(ddp->runner, cause);
    }
    if (err) {
        *err = *cause;
    }
    return cause->code;
}

int rf__ddp_fail(struct rf_ddp *ddp, int code, const char *context, struct rf_error *err) {
    struct rf_error cause = {.code = 0};

    ddp->runner->ops->error(ddp->runner, &cause);
    if (cause.code == 0) {
        (void)rf__fail(&cause, code, 0, "rank %d of %d: %s", ddp->runner->rank, ddp->runner->size,
                       rf_error_text(code));
        cause.rank = ddp->runner->rank;
    }
    (void)rf__wrap(&cause, code, "%s: ", context);
    return rf__ddp_fail_with(ddp, &cause, err);
}

static const char *wire_name(uint64_t wire) {
    return wire < RF_WIRE_COUNT ? rf_wire_name((enum rf_wire)wire) : "?";
}

void rf__ddp_fail_wires(const struct rf_ddp *ddp, int odd, uint64_t wire, uint64_t first,
                        struct rf_error *err) {
    (void)rf__fail(err, RF_EMISMATCH, 0,
                   "gradients of rank %d of %d travel as '%s', those of rank 0 as '%s': give all "
                   "workers the same compression",
                   odd, ddp->runner->size, wire_name(wire), wire_name(first));
    err->rank = odd;
}

int rf__ddp_run(struct rf_ddp *ddp, const struct rf_call *call, const char *context,
                struct rf_error *err) {
    const struct rf__runner_ops *ops = ddp->runner->ops;
    struct rf__op *op = NULL;

    int rc = ops->start(ddp->runner, &(struct rf__op_params){.call = *call}, &op);
    if (rc == 0) {
        rc = ops->wait(ddp->runner, op, -1, NULL);
    }
    return rc ? rf__ddp_fail(ddp, rc, context, err) : 0;
}

void rf__ddp_tell(struct rf_ddp *ddp, uint64_t unit, struct rf_event event) {
    if (ddp->runner->elastic) {
        event.unit = unit;
        event.step = ddp->steps;
        event.size = event.size ? event.size : ddp->runner->size;
        ddp->runner->ops->tell(ddp->runner, &event);
    }
}
