/* The end of a unit: prepare, agree, commit.
 *
 *     prepare    the buckets are averaged, the state is copied where it is to be, and the totals
 *                are known: from here on this member can commit whatever becomes of the others
 *     agree      all reports to all members: who has them all knows that everybody is prepared
 *     commit     the same decision from the same reports on each
 *
 * Where a failure cuts this in an elastic group, the group itself decides while it re-forms: the
 * next membership says whether the unit was committed, and a member that is prepared then commits
 * it from what it holds. Otherwise it is begun again, and work that the group still counts on is
 * kept. */
#include "base/digest.h"
#include "base/status.h"
#include "ddp/inner.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static int check_finished(const struct rf_ddp *ddp, struct rf_error *err) {
    const struct rf__ddp_attempt *attempt = &ddp->attempt;

    if (ddp->stage == RF__DDP_BROKEN) {
        return rf__ddp_broken(ddp, err);
    }
    if (ddp->stage != RF__DDP_UNIT) {
        return rf__fail(err, RF_EINVAL, 0, "no step has begun");
    }
    if (attempt->in_shard || attempt->next < attempt->dealt) {
        uint32_t at = attempt->in_shard ? attempt->next - 1 : attempt->next;
        return rf__fail(
            err, RF_EINVAL, 0, "step %" PRIu64 ": shard %" PRIu32 " of %" PRIu32 " is not done%s",
            ddp->steps, ddp->deal[at], ddp->shards,
            attempt->late_samples ? ", its samples were told after its first gradient was ready"
                                  : "");
    }
    return 0;
}

/* ---- prepare
 * ---------------------------------------------------------------------------------- */

/* What was never called ready has its gradient all the same: as it is now. */
static int start_rest(struct rf_ddp *ddp, struct rf_error *err) {
    int rc = ddp->attempt.counted ? 0 : rf__ddp_start_count(ddp, err);

    for (int i = 0; i < ddp->tensors; i++) {
        rf__ddp_settle_gradient(ddp, i);
    }
    for (int k = 0; k < ddp->buckets; k++) {
        ddp->missing[k] = 0;
    }
    return rc ? rc : rf__ddp_start_complete(ddp, err);
}

/* The same on all: from what all know. */
static bool hash_is_due(const struct rf_ddp *ddp) {
    uint32_t every = ddp->options.hash_every;

    return ddp->measure || ddp->save != RF__SAVE_NOT || ddp->joiners > 0 ||
           (ddp->runner->elastic && ddp->units == 0) ||
           (every && ddp->steps && ddp->steps % every == 0);
}

/* Waits for one operation of the unit, which frees it. */
static int finish(struct rf_ddp *ddp, struct rf__op **op, int64_t *busy) {
    int64_t entered = rf__ddp_now(ddp);
    int rc = ddp->runner->ops->wait(ddp->runner, *op, -1, busy);

    *op = NULL;
    ddp->work.blocked += rf__ddp_now(ddp) - entered;
    ddp->work.blocked_in_buckets += rf__ddp_now(ddp) - entered;
    return rc;
}

/* The total of samples, which is then final. */
static int finish_count(struct rf_ddp *ddp, struct rf_error *err) {
    int rc = finish(ddp, &ddp->count_op, NULL);
    return rc ? rf__ddp_fail(ddp, rc, rf__ddp_context(ddp, "counting samples").text, err) : 0;
}

/* Waits for bucket `k`, in several operations, and unpacks it. */
static int finish_compressed(struct rf_ddp *ddp, int k, int64_t *busy) {
    int64_t entered = rf__ddp_now(ddp);
    int rc = rf__compress_wait(ddp->compress, k, busy);

    ddp->work.blocked += rf__ddp_now(ddp) - entered;
    ddp->work.blocked_in_buckets += rf__ddp_now(ddp) - entered;
    return rc;
}

/* One bucket: waits for it, lets the next start that the limit held back, and hashes its averages
 * while others still run. */
static int finish_bucket(struct rf_ddp *ddp, struct rf_error *err) {
    int k = ddp->attempt.finished;
    const struct rf__bucket *bucket = &ddp->bucket[k];
    int64_t busy = 0;

    int rc = ddp->compress ? finish_compressed(ddp, k, &busy) : finish(ddp, &ddp->op[k], &busy);
    ddp->attempt.finished++;
    if (rc) {
        return rf__ddp_fail(ddp, rc, rf__ddp_context_of_bucket(ddp, k).text, err);
    }
    ddp->work.busy += busy;
    rc = rf__ddp_start_complete(ddp, err);
    if (rc == 0 && ddp->heal.active) {
        rc = rf__ddp_heal_pump(ddp, err);
    }
    if (*ddp->control.divisor == 0) { /* nobody used a sample: 0 / 0 */
        memset(ddp->averages + bucket->offset, 0, bucket->count * sizeof(float));
    }
    for (int i = bucket->first; i < bucket->first + bucket->tensors; i++) {
        int t = ddp->order[i];
        ddp->tensor[t].digest =
            rf__digest(ddp->averages + ddp->slot[t].offset, ddp->count[t] * sizeof(float), 0);
    }
    return rc;
}

/* A collective of the unit's end: nothing else is done meanwhile. */
static int run_blocking(struct rf_ddp *ddp, const struct rf_call *call, const char *doing,
                        struct rf_error *err) {
    int64_t entered = rf__ddp_now(ddp);
    int rc = rf__ddp_run(ddp, call, rf__ddp_context(ddp, doing).text, err);

    ddp->work.blocked += rf__ddp_now(ddp) - entered;
    return rc;
}

/* In the first step: the order in which the first member with a shard saw its gradients become
 * ready. The buckets follow it from the next begin on, since until then the averages stay where
 * they are. */
static int share_order(struct rf_ddp *ddp, struct rf_error *err) {
    uint32_t *order = ddp->control.order;
    uint64_t left = ddp->attempt.left, donors = (uint64_t)ddp->donors, k = 0;

    while (left && k * left / donors == (k + 1) * left / donors) {
        k++; /* the last donor always has one */
    }
    for (int i = 0; i < ddp->tensors; i++) { /* what was never ready comes last */
        if (!ddp->tensor[ddp->order[i]].ready) {
            order[ddp->observed++] = (uint32_t)ddp->order[i];
        }
    }
    struct rf_call call = {.coll = RF_COLL_BROADCAST,
                           .type = RF_U32,
                           .root = ddp->donor[k],
                           .send = order,
                           .recv = order,
                           .count = (size_t)ddp->tensors};
    int rc = run_blocking(ddp, &call, "sharing the order of gradients", err);
    if (rc == 0 && !rf__ddp_is_permutation(ddp, order)) {
        struct rf_error cause;
        (void)rf__fail(&cause, RF_EPROTO, 0, "step %" PRIu64 ": rank %d sent an order that is none",
                       ddp->steps, call.root);
        cause.rank = call.root;
        rc = rf__ddp_fail_with(ddp, &cause, err);
    }
    return rc;
}

/* What the totals must satisfy for the unit to count. */
static int check_totals(struct rf_ddp *ddp, struct rf_error *err) {
    const double *totals = ddp->control.totals;
    double averaged = ddp->measure ? totals[RF__TOTAL_SAMPLES] : *ddp->control.divisor;
    struct rf_error cause;
    int rc = 0;

    if (totals[RF__TOTAL_SAMPLES] != averaged) {
        rc = rf__fail(&cause, RF_EPROTO, 0,
                      "step %" PRIu64 ": %.0f samples were reported, but %.0f went into the "
                      "averages",
                      ddp->steps, totals[RF__TOTAL_SAMPLES], averaged);
    } else if (totals[RF__TOTAL_SHARDS] != (double)ddp->shards) {
        rc = rf__fail(&cause, RF_EPROTO, 0, "step %" PRIu64 ": %.0f shards were done, not %" PRIu32,
                      ddp->steps, totals[RF__TOTAL_SHARDS], ddp->shards);
    }
    return rc ? rf__ddp_fail_with(ddp, &cause, err) : 0;
}

/* After this a member knows all of the unit's outcome. */
static int sum_totals(struct rf_ddp *ddp, struct rf_error *err) {
    const struct rf__runner *runner = ddp->runner;
    const struct rf__ddp_work *work = &ddp->work;
    double *total = ddp->control.total;
    struct rf_call call = {.coll = RF_COLL_ALLREDUCE,
                           .type = RF_F64,
                           .redop = RF_SUM,
                           .send = total,
                           .recv = ddp->control.totals,
                           .count = RF__TOTAL_COUNT};

    total[RF__TOTAL_SHARDS] = (double)work->shards;
    total[RF__TOTAL_SAMPLES] = (double)work->samples;
    total[RF__TOTAL_SKIPPED] = (double)work->skipped;
    total[RF__TOTAL_LOSS] = work->loss_sum;
    total[RF__TOTAL_TALLY] = work->tally;
    total[RF__TOTAL_STOP] = ddp->stop;
    total[RF__TOTAL_MEASURE] = ddp->asked;
    total[RF__TOTAL_SAVE] = ddp->saver && ddp->save_asked;
    total[RF__TOTAL_MUST] = ddp->saver && ddp->save_must;
    total[RF__TOTAL_BUSY] = ddp->saver && rf__saver_is_busy(ddp->saver);
    total[RF__TOTAL_AWAITED] =
        runner->elastic && runner->ops->is_awaited(ddp->runner); /* once: all must see the same */
    int rc = run_blocking(ddp, &call, "summing up", err);
    return rc ? rc : check_totals(ddp, err);
}

/* In the order of registration, so that it does not depend on how tensors were put into buckets. */
static uint64_t next_in_chain(const struct rf_ddp *ddp) {
    uint64_t digest = rf__digest_mix(ddp->chain, ddp->runner->generation);

    digest = rf__digest_mix(digest, ddp->units);
    digest = rf__digest_mix(digest, ddp->measure);
    digest = rf__digest_mix(digest, (uint64_t)ddp->runner->size);
    digest = rf__digest(ddp->control.totals, RF__TOTAL_COUNT * sizeof(double), digest);
    for (int i = 0; i < ddp->tensors && !ddp->measure; i++) {
        digest = rf__digest_mix(digest, ddp->tensor[i].digest);
    }
    return digest;
}

static int average(struct rf_ddp *ddp, struct rf_error *err) {
    int rc = finish_count(ddp, err);

    while (rc == 0 && ddp->attempt.finished < ddp->buckets) {
        rc = finish_bucket(ddp, err);
    }
    return rc;
}

static int prepare(struct rf_ddp *ddp, struct rf_error *err) {
    struct rf__ddp_attempt *attempt = &ddp->attempt;
    bool due = hash_is_due(ddp), holds = ddp->holds;
    int rc = ddp->measure ? 0 : start_rest(ddp, err);

    if (rc == 0 && due && holds) { /* while the buckets run */
        attempt->state_digest = rf__ddp_hash_state(ddp);
    }
    if (rc == 0 && !ddp->measure) {
        rc = average(ddp, err);
    }
    if (rc == 0) {
        rc = rf__ddp_heal_finish(ddp, err);
    }
    if (rc == 0 && due && !holds) { /* of the copy */
        attempt->state_digest = rf__ddp_hash_state(ddp);
    }
    if (rc == 0 && !ddp->measure && ddp->steps == 0) {
        rc = share_order(ddp, err);
    }
    if (rc == 0) {
        rc = sum_totals(ddp, err);
    }
    if (rc) {
        return rc;
    }
    attempt->chain = next_in_chain(ddp);
    attempt->generation = ddp->runner->generation;
    attempt->size = ddp->runner->size;
    attempt->prepared = true;
    rc = rf__ddp_note(ddp);
    if (rc) {
        attempt->prepared = false;
        rc = rf__ddp_fail(ddp, rc, rf__ddp_context(ddp, "preparing").text, err);
    }
    return rc;
}

/* ---- agree
 * ------------------------------------------------------------------------------------ */

static int rank_of_id(const struct rf_ddp *ddp, int id) {
    for (int r = 0; r < ddp->runner->size; r++) {
        if (ddp->id[r] == id) {
            return r;
        }
    }
    return -1;
}

static struct rf__step_report own_report(struct rf_ddp *ddp) {
    const struct rf__ddp_work *work = &ddp->work;
    const struct rf__ddp_attempt *attempt = &ddp->attempt;
    struct rf__step_report report = {
        .generation = ddp->runner->generation,
        .unit = ddp->units,
        .step = ddp->steps,
        .measure = ddp->measure,
        .prepared = true,
        .stop = ddp->stop,
        .healed = ddp->healed[ddp->runner->rank],
        .samples = work->samples,
        .skipped = work->skipped,
        .digest = attempt->chain,
        .state_digest = attempt->state_digest,
        .config = ddp->config,
        .loss_sum = work->loss_sum,
        .compute_s = rf__ddp_seconds(work->compute),
        .comm_s = rf__ddp_seconds(work->busy),
        .shards = work->shards,
        .link_peer = -1,
        .put_out = ddp->slow_id < 0 ? -1 : rank_of_id(ddp, ddp->slow_id),
    };

    if (ddp->runner->elastic) {
        report.link_peer = ddp->runner->ops->slowest_link(ddp->runner, &report.link_bytes_s);
    }
    return report;
}

static int unreadable(int rank, int size, const char *what, struct rf_error *err) {
    (void)rf__fail(err, RF_EPROTO, 0, "the report of rank %d of %d %s", rank, size, what);
    err->rank = rank;
    return RF_EPROTO;
}

static int decode_reports(struct rf_ddp *ddp, struct rf_error *err) {
    int size = ddp->runner->size;

    for (int r = 0; r < size; r++) {
        const unsigned char *bytes = ddp->control.reports + (size_t)r * RF__STEP_REPORT_BYTES;
        if (rf__step_report_decode(bytes, &ddp->reports[r]) != 0) {
            return unreadable(r, size, "cannot be read", err);
        }
        if (ddp->reports[r].healed != ddp->healed[r]) {
            return unreadable(r, size, "says something else of its state than the group", err);
        }
    }
    return 0;
}

/* What the decision must also satisfy for this unit to count. */
static int check_decision(const struct rf_ddp *ddp, const struct rf__step_decision *decision,
                          struct rf_error *err) {
    if (ddp->reports[0].unit != ddp->units || ddp->reports[0].step != ddp->steps ||
        ddp->reports[0].generation != ddp->runner->generation) {
        return rf__fail(err, RF_EPROTO, 0, "all reports are of another step");
    }
    for (int r = 0; r < ddp->runner->size; r++) {
        if (!ddp->reports[r].prepared) {
            (void)rf__fail(err, RF_EPROTO, 0, "rank %d of %d is not prepared", r,
                           ddp->runner->size);
            err->rank = r;
            return RF_EPROTO;
        }
    }
    if ((double)decision->samples != ddp->control.totals[RF__TOTAL_SAMPLES]) {
        return rf__fail(err, RF_EPROTO, 0,
                        "%" PRIu64 " samples were reported, but %.0f went into the averages",
                        decision->samples, ddp->control.totals[RF__TOTAL_SAMPLES]);
    }
    return 0;
}

/* The commit barrier: all reports to all members, and the same decision from them on each. */
static int agree(struct rf_ddp *ddp, struct rf__step_decision *decision, struct rf_error *err) {
    struct rf_error cause = {.code = 0};
    struct rf__step_report own = own_report(ddp);
    struct rf_call call = {.coll = RF_COLL_ALL_GATHER,
                           .type = RF_U8,
                           .send = ddp->control.report,
                           .recv = ddp->control.reports,
                           .count = RF__STEP_REPORT_BYTES};

    rf__step_report_encode(&own, ddp->control.report);
    int rc = run_blocking(ddp, &call, "exchanging reports", err);
    if (rc) {
        return rc;
    }
    rc = decode_reports(ddp, &cause);
    if (rc == 0) {
        rc = rf__step_decide(ddp->reports, ddp->runner->size,
                             ddp->runner->elastic ? ddp->agrees : NULL, decision, &cause);
    }
    if (rc == 0) {
        rc = check_decision(ddp, decision, &cause);
    }
    if (rc == RF_EDIVERGED && ddp->runner->elastic && ddp->saver) {
        /* Nobody knows who is right, and the group goes back. What was noted says so: all have
         * prepared the unit, and differ. A member that took it back would leave those that were
         * revoked before they saw the reports as the only holders of the state, right or wrong. */
        cause.code = RF_EREVOKED; /* not this member's own failure */
        return rf__ddp_fail_with(ddp, &cause, err);
    }
    if (rc == RF_EDIVERGED) { /* that line names the step itself */
        return rf__ddp_break(ddp, &cause, err);
    }
    if (rc) {
        (void)rf__wrap(&cause, rc, "%s: ", rf__ddp_context(ddp, "deciding").text);
        return rf__ddp_fail_with(ddp, &cause, err);
    }
    return 0;
}

/* ---- commit
 * ----------------------------------------------------------------------------------- */

static void fill_report(const struct rf_ddp *ddp, const struct rf__step_decision *decision,
                        struct rf_step_report *report) {
    const struct rf__ddp_work *work = &ddp->work;
    const double *totals = ddp->control.totals;
    double own = rf__ddp_seconds(work->compute), blocked = rf__ddp_seconds(work->blocked);
    double behind = decision->slowest_compute_s - own;
    /* at most so long did this member wait for the slowest, and not for bytes */
    double waited = behind <= 0 ? 0 : behind < blocked ? behind : blocked;
    double in_buckets = rf__ddp_seconds(work->blocked_in_buckets) - waited;
    double hidden = rf__ddp_seconds(work->busy) - (in_buckets > 0 ? in_buckets : 0);

    *report = (struct rf_step_report){
        .step = ddp->steps,
        .generation = ddp->attempt.generation,
        .samples = (uint64_t)totals[RF__TOTAL_SAMPLES],
        .loss =
            totals[RF__TOTAL_SAMPLES] > 0 ? totals[RF__TOTAL_LOSS] / totals[RF__TOTAL_SAMPLES] : 0,
        .digest = ddp->attempt.chain,
        .compute_s = own,
        .comm_s = rf__ddp_seconds(work->busy),
        .hidden_s = hidden > 0 ? hidden : 0,
        .exposed_s = blocked - waited,
        .wait_s = waited,
        .slowest_compute_s = decision->slowest_compute_s,
        .slowest_rank = decision->slowest_rank,
        .size = ddp->attempt.size,
        .stop = totals[RF__TOTAL_STOP] > 0,
        .measure = ddp->measure,
        .tally = totals[RF__TOTAL_TALLY],
        .skipped = (uint64_t)totals[RF__TOTAL_SKIPPED],
        .state_digest = ddp->attempt.state_digest,
        .saved = ddp->save != RF__SAVE_NOT,
        .save_late =
            totals[RF__TOTAL_SAVE] > 0 && totals[RF__TOTAL_BUSY] > 0 && totals[RF__TOTAL_MUST] == 0,
        .retries = work->retries,
        .redone = work->redone,
    };
}

static void tell_commit(struct rf_ddp *ddp, const struct rf_step_report *report) {
    struct rf_event event = {.kind = RF_EVENT_COMMIT,
                             .peer = -1,
                             .size = report->size,
                             .seconds = rf__ddp_seconds(rf__ddp_now(ddp) - ddp->work.began),
                             .digest = report->digest,
                             .samples = report->samples,
                             .measure = report->measure,
                             .retries = report->retries,
                             .redone = report->redone};

    rf__ddp_tell(ddp, ddp->units - 1, event);
}

/* What of the totals concerns checkpoints. */
static void take_totals(struct rf_ddp *ddp, const struct rf_step_report *report) {
    const double *totals = ddp->control.totals;
    bool busy = totals[RF__TOTAL_BUSY] > 0, asked = totals[RF__TOTAL_SAVE] > 0;

    ddp->save = totals[RF__TOTAL_MUST] > 0 ? RF__SAVE_MUST
                : asked && !busy           ? RF__SAVE_IF_FREE
                                           : RF__SAVE_NOT;
    ddp->save_asked = ddp->save_must = false;
    ddp->stops = totals[RF__TOTAL_STOP] > 0;
    if (!report->measure) {
        ddp->samples += report->samples;
        ddp->skipped += report->skipped;
        if (ddp->saver) {
            rf__saver_step(ddp->saver, ddp->steps, ddp->chain);
        }
    }
}

/* The unit that is prepared is committed. */
static void settle(struct rf_ddp *ddp, const struct rf_step_report *report) {
    bool measure = ddp->measure;

    rf__ddp_save_settle(ddp, true);
    ddp->reorder = !measure && ddp->steps == 0;
    ddp->averaged = !measure;
    ddp->units++;
    ddp->steps += !measure;
    ddp->chain = ddp->attempt.chain;
    ddp->measure = ddp->control.totals[RF__TOTAL_MEASURE] > 0;
    take_totals(ddp, report);
    tell_commit(ddp, report);
    ddp->work = (struct rf__ddp_work){.open = false};
    ddp->attempt.prepared = false;
    ddp->stop = ddp->asked = false;
    ddp->own_failures = 0;
    ddp->stage = RF__DDP_IDLE;
}

/* Begun again. */
static int retry(struct rf_ddp *ddp) {
    struct rf_event event = {.kind = RF_EVENT_RETRY, .peer = -1};

    rf__ddp_save_settle(ddp, false);
    ddp->work.retries++;
    ddp->stage = RF__DDP_IDLE;
    event.retries = ddp->work.retries;
    snprintf(event.text, sizeof event.text, "%s", ddp->trouble);
    rf__ddp_tell(ddp, ddp->units, event);
    return RF_RETRY;
}

static void tell_diverged(struct rf_ddp *ddp, const struct rf__step_decision *decision) {
    const struct rf__step_report *common = &ddp->reports[decision->common];

    for (int r = 0; r < ddp->runner->size && decision->common == ddp->runner->rank; r++) {
        const struct rf__step_report *odd = &ddp->reports[r];
        struct rf_event event = {.kind = RF_EVENT_DIVERGED, .peer = ddp->id[r]};
        bool chain = odd->digest != common->digest;
        if (!ddp->agrees[r]) {
            snprintf(event.text, sizeof event.text,
                     "%s 0x%016" PRIx64 " against 0x%016" PRIx64 " of the majority",
                     chain ? "gradients" : "state", chain ? odd->digest : odd->state_digest,
                     chain ? common->digest : common->state_digest);
            rf__ddp_tell(ddp, ddp->units, event);
        }
    }
}

/* Who holds the group's state after this unit is now known to all. */
static void follow_majority(struct rf_ddp *ddp) {
    int size = ddp->runner->size;

    memcpy(ddp->healed, ddp->agrees, (size_t)size * sizeof *ddp->healed);
    rf__ddp_count_healed(ddp);
}

static void tell_healed(struct rf_ddp *ddp) {
    struct rf_event event = {.kind = RF_EVENT_HEAL,
                             .peer = ddp->donors,
                             .bytes = ddp->heal.bytes,
                             .seconds = rf__ddp_seconds(ddp->heal.took)};

    rf__ddp_tell(ddp, ddp->units, event);
}

/* Watches for slow members: only units that all worked on in the plain way say something. */
static void watch(struct rf_ddp *ddp) {
    struct rf__slow_news news;

    ddp->slow_id = -1; /* it stood in the report of this unit */
    if (ddp->measure || ddp->joiners || ddp->first_unit) {
        return;
    }
    rf__slow_observe(&ddp->slow, ddp->reports, ddp->id, ddp->runner->size, &news);
    ddp->slow_id = news.put_out;
    if (news.told >= 0 && ddp->runner->rank == 0) {
        struct rf_event event = {
            .kind = RF_EVENT_SLOW, .peer = ddp->id[news.told], .ratio = news.ratio};
        snprintf(event.text, sizeof event.text, "%s",
                 news.part == RF__SLOW_PROCESSOR ? "processor" : "link");
        rf__ddp_tell(ddp, ddp->units, event);
    }
}

/* Where a worker waits to be taken in, or one is to be put out, the generation ends here, by what
 * all have read in the same totals and reports. */
static void plan_regroup(struct rf_ddp *ddp) {
    int *out = ddp->joiner, count = 0; /* counted anew when the next generation is taken over */
    int size = ddp->runner->size;
    bool awaited = ddp->control.totals[RF__TOTAL_AWAITED] > 0;

    if (ddp->control.totals[RF__TOTAL_STOP] > 0) {
        return;
    }
    for (int r = 0; r < size; r++) {
        bool named = false;
        for (int from = 0; from < size; from++) {
            named = named || ddp->reports[from].put_out == r;
        }
        if (named && size - count > ddp->runner->min_size) {
            out[count++] = ddp->id[r];
        }
    }
    if (awaited || count) {
        ddp->planned = true;
        ddp->runner->ops->regroup(ddp->runner, out, count,
                                  count ? "slower than the others" : "a worker joins");
    }
}

/* Whether all who write a part of the checkpoint hold what the majority does. A part is known by
 * its size until somebody reads it: that of another state would pass for the right one. */
static bool writers_agree(const struct rf_ddp *ddp) {
    bool agree = true;

    for (int r = 0; r < ddp->runner->size; r++) {
        agree = agree && (ddp->agrees[r] || !ddp->healed[r]);
    }
    return agree;
}

/* All reports are here, and the same on all. */
static int commit_agreed(struct rf_ddp *ddp, const struct rf__step_decision *decision,
                         struct rf_step_report *report) {
    bool elastic = ddp->runner->elastic, joined = !ddp->holds;
    int rank = ddp->runner->rank;

    ddp->reported = ddp->runner->size;
    if (elastic) {
        tell_diverged(ddp, decision);
        watch(ddp);
    }
    ddp->first_unit = false;
    if (elastic && !ddp->agrees[rank]) {
        snprintf(ddp->trouble, sizeof ddp->trouble,
                 "this worker's state differs from that of the majority");
        follow_majority(ddp);
        rf__ddp_void(ddp);
        (void)rf__ddp_note(ddp); /* refused: the same is said when the next generation is taken */
        plan_regroup(ddp);
        return retry(ddp);
    }
    if (elastic && joined) {
        tell_healed(ddp);
    }
    ddp->holds = true;
    fill_report(ddp, decision, report);
    bool again = elastic && ddp->saving && !writers_agree(ddp);
    bool must = ddp->save == RF__SAVE_MUST;
    if (again) {
        rf__ddp_save_reject(ddp);
    }
    settle(ddp, report);
    if (again) { /* the state after the next unit instead */
        rf__ddp_request_checkpoint(ddp, must);
    }
    if (elastic) {
        follow_majority(ddp);
        plan_regroup(ddp);
    }
    return 0;
}

/* Says that the unit is committed, before anything follows from it. */
static int note_commit(struct rf_ddp *ddp, struct rf_error *err) {
    struct rf__progress progress = {.healed = true,
                                    .units = ddp->units + 1,
                                    .chain = ddp->attempt.chain,
                                    .prepared_state = ddp->attempt.state_digest};

    if (!ddp->runner->elastic || !ddp->agrees[ddp->runner->rank]) {
        return 0;
    }
    int rc = ddp->runner->ops->note(ddp->runner, &progress);
    return rc ? rf__ddp_fail(ddp, rc, rf__ddp_context(ddp, "committing").text, err) : 0;
}

/* The attempt has failed in an elastic group: what became of the unit? */
static int recover(struct rf_ddp *ddp, struct rf_step_report *report, struct rf_error *err) {
    double own = rf__ddp_seconds(ddp->work.compute);
    struct rf__step_decision decision = {.slowest_compute_s = own};
    bool committed;

    int rc = rf__ddp_adopt(ddp, &committed, err);
    bool known = committed || (rc && ddp->attempt.prepared);
    decision.slowest_rank = ddp->runner->rank;
    ddp->reported = 0;
    if (known) { /* where the job has ended, what this member holds of its last unit */
        fill_report(ddp, &decision, report);
    }
    if (committed) {
        settle(ddp, report);
    }
    return rc || committed ? rc : retry(ddp);
}

int rf__ddp_commit(struct rf_ddp *ddp, struct rf_step_report *report, struct rf_error *err) {
    struct rf__step_decision decision;
    struct rf_step_report unused;
    bool elastic = ddp->runner->elastic;
    int64_t entered = rf__ddp_now(ddp);

    rf__ddp_alive(ddp);
    int rc = check_finished(ddp, err);
    if (rc) {
        return rc;
    }
    report = report ? report : &unused;
    ddp->work.compute += entered - ddp->attempt.began - ddp->attempt.in_ready;
    if (elastic && (ddp->attempt.failed || ddp->runner->ops->is_over(ddp->runner))) {
        rc = rf__ddp_fail(ddp, RF_EREVOKED, rf__ddp_context(ddp, "computing").text, err);
    }
    if (rc == 0) {
        rc = prepare(ddp, err);
    }
    if (rc == 0) {
        rc = agree(ddp, &decision, err);
    }
    if (rc == 0) {
        rc = note_commit(ddp, err);
    }
    if (rc == 0) {
        rc = commit_agreed(ddp, &decision, report);
    } else if (elastic && ddp->stage != RF__DDP_BROKEN) {
        rc = recover(ddp, report, err);
    }
    return rc;
}
