/* A unit from its begin: the shards are dealt, gradients become ready and their buckets start.
 *
 * In the first unit of a generation shards may be done already, by members that worked on the same
 * unit in an earlier one. So all say which, and what nobody has done is dealt to those that hold
 * the state: how many generations a member has seen in between makes no difference. In the units
 * after that nothing needs to be asked. */
#include "base/cursor.h"
#include "base/digest.h"
#include "base/status.h"
#include "ddp/inner.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- the deal
 * --------------------------------------------------------------------------------- */

/* A map travels with what its member knows of a checkpoint that is due (1: yes, 2: it must be, 4:
 * it still writes an earlier one) and what its gradients travel as, in the upper half of that byte,
 * with the hash of what must be equal on all, and with a digest behind it: a bit that flipped on
 * the way would deal one member other shards than the others know of. */
enum { SAVE_BYTES = 1, CONFIG_BYTES = 8, SEAL_BYTES = 8 };
enum { SAVE_DUE = 1, SAVE_MUST = 2, SAVE_BUSY = 4, WIRE_SHIFT = 4 };

static size_t bitmap_bytes(const struct rf_ddp *ddp) {
    return (ddp->shards + 7) / 8;
}

/* Without the digest. */
static size_t sealed_bytes(const struct rf_ddp *ddp) {
    return bitmap_bytes(ddp) + SAVE_BYTES + CONFIG_BYTES;
}

size_t rf__ddp_map_bytes(const struct rf_ddp *ddp) {
    return sealed_bytes(ddp) + SEAL_BYTES;
}

static bool bit(const unsigned char *bits, uint32_t i) {
    return bits[i / 8] >> (i % 8) & 1;
}

static int refuse_map(struct rf_ddp *ddp, int rank, const char *why, struct rf_error *err) {
    struct rf_error cause;

    (void)rf__fail(&cause, RF_EPROTO, 0, "%srank %d of %d %s",
                   rf__ddp_context(ddp, "dealing shards: ").text, rank, ddp->runner->size, why);
    cause.rank = rank;
    return rf__ddp_fail_with(ddp, &cause, err);
}

/* One member's map, as it can be. */
static bool is_valid(const struct rf_ddp *ddp, int rank, const unsigned char *map) {
    size_t bytes = bitmap_bytes(ddp);
    struct rf__reader r = rf__reader(map + sealed_bytes(ddp), SEAL_BYTES);
    unsigned char beyond = ddp->shards % 8 ? (unsigned char)(0xff << ddp->shards % 8) : 0;
    bool some = false;

    for (size_t i = 0; i < bytes; i++) {
        some = some || map[i];
    }
    return rf__read_u64(&r) == rf__digest(map, sealed_bytes(ddp), 0) &&
           !(map[bytes - 1] & beyond) && (ddp->healed[rank] || !some);
}

static struct rf_call gather_call(const struct rf_ddp *ddp) {
    return (struct rf_call){.coll = RF_COLL_ALL_GATHER,
                            .type = RF_U8,
                            .send = ddp->control.done,
                            .recv = ddp->control.alldone,
                            .count = rf__ddp_map_bytes(ddp)};
}

/* Rank `odd` registered something else than rank 0, or compresses in another way: the job was
 * started wrongly, and all end it, for who comes later with another registration is not taken in.
 * All have the same maps; but whoever ended the generation before the others have seen theirs would
 * keep them from knowing why. So all meet once more. */
static int refuse_odd(struct rf_ddp *ddp, struct rf_error *cause, struct rf_error *err) {
    const struct rf__runner_ops *ops = ddp->runner->ops;
    struct rf__op_params params = {.call = gather_call(ddp)};
    struct rf__op *op = NULL;

    cause->rank = ddp->runner->rank; /* its own failure as much as the other's */
    if (ops->start(ddp->runner, &params, &op) == 0) {
        (void)ops->wait(ddp->runner, op, -1, NULL);
    }
    return rf__ddp_break(ddp, cause, err);
}

static uint64_t config_of(const struct rf_ddp *ddp, const unsigned char *map) {
    struct rf__reader r = rf__reader(map + bitmap_bytes(ddp) + SAVE_BYTES, CONFIG_BYTES);
    return rf__read_u64(&r);
}

/* Whether rank `odd` trains the same as rank 0; if not, why, in `cause`. */
static bool trains_the_same(const struct rf_ddp *ddp, int odd, const unsigned char *map,
                            struct rf_error *cause) {
    const unsigned char *first = ddp->control.alldone;
    unsigned wire = map[bitmap_bytes(ddp)] >> WIRE_SHIFT;
    unsigned first_wire = first[bitmap_bytes(ddp)] >> WIRE_SHIFT;
    bool same = config_of(ddp, map) == config_of(ddp, first);

    if (wire != first_wire) {
        rf__ddp_fail_wires(ddp, odd, wire, first_wire, cause);
    } else if (!same) {
        (void)rf__fail(cause, RF_EMISMATCH, 0,
                       "rank %d of %d registered other tensors or options than rank 0", odd,
                       ddp->runner->size);
    }
    return same && wire == first_wire;
}

/* Adds all members' maps into the first one's place; each shard is done once at most. */
static int merge_done(struct rf_ddp *ddp, struct rf_error *err) {
    unsigned char *merged = ddp->control.alldone, save = 0;
    struct rf_error cause;

    for (int r = 0; r < ddp->runner->size; r++) {
        const unsigned char *map = merged + (size_t)r * rf__ddp_map_bytes(ddp);
        bool twice = false;
        save |= map[bitmap_bytes(ddp)];
        if (!is_valid(ddp, r, map)) {
            return refuse_map(ddp, r, "says that it has done shards that it cannot have done", err);
        }
        if (!trains_the_same(ddp, r, map, &cause)) {
            return refuse_odd(ddp, &cause, err);
        }
        for (size_t i = 0; i < bitmap_bytes(ddp); i++) {
            twice = twice || (r > 0 && merged[i] & map[i]);
            merged[i] |= map[i];
        }
        if (twice) {
            return refuse_map(ddp, r, "has done a shard that another has done too", err);
        }
    }
    ddp->save = save & SAVE_MUST                           ? RF__SAVE_MUST
                : (save & SAVE_DUE) && !(save & SAVE_BUSY) ? RF__SAVE_IF_FREE
                                                           : RF__SAVE_NOT;
    if ((save & SAVE_DUE) && ddp->save == RF__SAVE_NOT) {
        ddp->save_asked = true; /* what was given up on is still being written: after this unit */
    }
    return 0;
}

static int gather_done(struct rf_ddp *ddp, struct rf_error *err) {
    unsigned char *save = ddp->control.done + bitmap_bytes(ddp);
    struct rf__writer w = rf__writer(save + SAVE_BYTES, CONFIG_BYTES + SEAL_BYTES);
    struct rf_call call = gather_call(ddp);

    *save = (unsigned char)((unsigned)ddp->options.wire << WIRE_SHIFT |
                            (ddp->save != RF__SAVE_NOT ? SAVE_DUE : 0) |
                            (ddp->save == RF__SAVE_MUST ? SAVE_MUST : 0) |
                            (ddp->saver && rf__saver_is_busy(ddp->saver) ? SAVE_BUSY : 0));
    rf__write_u64(&w, ddp->config);
    rf__write_u64(&w, rf__digest(ddp->control.done, sealed_bytes(ddp), 0));
    int rc =
        rf__ddp_run(ddp, &call, rf__ddp_context(ddp, "asking which shards are done").text, err);
    return rc ? rc : merge_done(ddp, err);
}

/* Each donor gets a run of what is left, as even as can be, in rank order. */
static void deal_shards(struct rf_ddp *ddp) {
    const unsigned char *done = ddp->control.alldone;
    uint32_t left = 0, at = 0;
    int place = 0;

    for (uint32_t v = 0; v < ddp->shards; v++) {
        left += !bit(done, v);
    }
    ddp->attempt.left = left;
    ddp->attempt.dealt = 0;
    if (!ddp->healed[ddp->runner->rank]) {
        return;
    }
    while (ddp->donor[place] != ddp->runner->rank) {
        place++;
    }
    uint64_t begin = (uint64_t)place * left / (uint64_t)ddp->donors;
    uint64_t end = ((uint64_t)place + 1) * left / (uint64_t)ddp->donors;
    for (uint32_t v = 0; v < ddp->shards; v++) {
        if (!bit(done, v)) {
            if (at >= begin && at < end) {
                ddp->deal[ddp->attempt.dealt++] = v;
            }
            at++;
        }
    }
}

/* ---- begin
 * ------------------------------------------------------------------------------------ */

/* No gradient is held now. The gaps between tensors are averaged with them, and nobody writes
 * there: so they are zero from here on. */
void rf__ddp_lay_out(struct rf_ddp *ddp) {
    ddp->buckets =
        rf__buckets_layout(ddp->count, ddp->order, ddp->tensors, ddp->options.first_bucket_bytes,
                           ddp->options.bucket_bytes, ddp->bucket, ddp->slot);
    memset(ddp->gradients, 0, ddp->floats * sizeof(float));
    for (int i = 0; i < ddp->tensors; i++) {
        ddp->tensor[i].stale = false;
    }
}

bool rf__ddp_is_permutation(struct rf_ddp *ddp, const uint32_t *order) {
    bool valid = true;

    for (int i = 0; i < ddp->tensors; i++) {
        ddp->tensor[i].ready = false;
    }
    for (int k = 0; k < ddp->tensors && valid; k++) {
        valid = order[k] < (uint32_t)ddp->tensors && !ddp->tensor[order[k]].ready;
        if (valid) {
            ddp->tensor[order[k]].ready = true;
        }
    }
    return valid;
}

/* What compression has lost of each tensor moves with its gradient: out into the averages, which
 * nobody reads any more, tensor by tensor, and back in to where they lie now. */
static void carry_lost(struct rf_ddp *ddp, float *lost, bool out) {
    float *at = ddp->averages;

    for (int t = 0; t < ddp->tensors; t++) {
        float *place = lost + ddp->slot[t].offset;
        memcpy(out ? at : place, out ? place : at, ddp->count[t] * sizeof *at);
        at += ddp->count[t];
    }
}

static void adopt_order(struct rf_ddp *ddp) {
    float *lost = ddp->compress ? rf__compress_move(ddp->compress) : NULL;

    if (lost) {
        carry_lost(ddp, lost, true);
        memset(lost, 0, ddp->floats * sizeof *lost);
    }
    for (int k = 0; k < ddp->tensors; k++) {
        ddp->order[k] = (int)ddp->control.order[k];
    }
    rf__ddp_lay_out(ddp);
    if (lost) {
        carry_lost(ddp, lost, false);
    }
    ddp->reorder = false;
}

int rf__ddp_check_idle(const struct rf_ddp *ddp, struct rf_error *err) {
    if (ddp->stage == RF__DDP_BROKEN) {
        return rf__ddp_broken(ddp, err);
    }
    if (ddp->stage != RF__DDP_IDLE) {
        return rf__fail(err, RF_EINVAL, 0,
                        ddp->stage == RF__DDP_OPEN ? "not sealed yet"
                                                   : "a step is not committed yet");
    }
    return 0;
}

/* A unit that this member has no work for yet. */
static void open_work(struct rf_ddp *ddp) {
    for (int i = 0; i < ddp->tensors; i++) {
        ddp->tensor[i].stale = true;
    }
    if (ddp->reorder && ddp->holds) {
        adopt_order(ddp);
    }
    ddp->reorder = false;
    memset(ddp->control.done, 0, bitmap_bytes(ddp));
    if (ddp->compress) {
        rf__compress_unit(ddp->compress);
    }
    ddp->work = (struct rf__ddp_work){
        .open = true, .retries = ddp->work.retries, .began = rf__ddp_now(ddp)};
}

static void reset_ready(struct rf_ddp *ddp) {
    for (int i = 0; i < ddp->tensors; i++) {
        ddp->tensor[i].ready = false;
    }
    for (int k = 0; k < ddp->buckets; k++) {
        ddp->missing[k] = ddp->bucket[k].tensors;
    }
    ddp->observed = 0;
    if (ddp->compress) {
        rf__compress_attempt(ddp->compress, ddp->bucket, ddp->buckets, ddp->gradients,
                             ddp->averages, ddp->control.divisor);
    }
}

static int open_attempt(struct rf_ddp *ddp, struct rf_error *err) {
    int rc = 0;

    ddp->attempt = (struct rf__ddp_attempt){.resumed = ddp->work.open};
    if (!ddp->work.open) {
        open_work(ddp);
    }
    memset(ddp->control.alldone, 0, bitmap_bytes(ddp));
    if (ddp->first_unit) {
        rc = gather_done(ddp, err);
    }
    if (rc == 0) {
        deal_shards(ddp);
        rc = ddp->joiners ? rf__ddp_heal_start(ddp, err) : 0;
    }
    if (rc == 0) {
        rf__ddp_save_start(ddp);
    }
    reset_ready(ddp);
    return rc;
}

/* What a faulty memory would do. Of the bits of a float one that later sums do not round away. */
static void flip_a_bit(struct rf_ddp *ddp) {
    if (ddp->holds && ddp->runner->ops->flip_is_due(ddp->runner)) {
        size_t place = (size_t)ddp->runner->id % ddp->count[0]; /* another one on each worker */
        ((unsigned char *)&ddp->tensor[0].param[place])[2] ^= 0x10;
        rf__ddp_tell(ddp, ddp->units, (struct rf_event){.kind = RF_EVENT_FLIP, .peer = -1});
    }
}

static int begin_elastic(struct rf_ddp *ddp, struct rf_error *err) {
    bool committed, open = false;
    int rc = 0;

    while (rc == 0 && !open) {
        if (ddp->ended || ddp->generation == 0 || ddp->planned || ddp->attempt.failed ||
            ddp->runner->ops->is_over(ddp->runner)) {
            rc = rf__ddp_adopt(ddp, &committed, err);
        }
        bool may = rc == 0 && !ddp->attempt.failed;
        if (may && ddp->is_behind) {
            rc = rf__ddp_return(ddp, err);
            may = rc == 0 && !ddp->attempt.failed;
        }
        if (may) {
            flip_a_bit(ddp);
            open = open_attempt(ddp, NULL) == 0;
        }
        if (rc == 0 && ddp->stage == RF__DDP_BROKEN) {
            rc = rf__ddp_broken(ddp, err);
        }
    }
    return rc;
}

int rf__ddp_begin(struct rf_ddp *ddp, struct rf_step *out, struct rf_error *err) {
    struct rf__runner *runner = ddp->runner;

    rf__ddp_alive(ddp);
    int rc = rf__ddp_check_idle(ddp, err);
    if (rc) {
        return rc;
    }
    ddp->averaged = false;
    rf__ddp_save_tell(ddp);
    rc = runner->elastic ? begin_elastic(ddp, err) : open_attempt(ddp, err);
    if (rc) {
        return rc;
    }
    ddp->stage = RF__DDP_UNIT;
    if (out) {
        *out = (struct rf_step){.step = ddp->steps,
                                .generation = runner->generation,
                                .rank = runner->rank,
                                .size = runner->size,
                                .shards = ddp->shards,
                                .measure = ddp->measure,
                                .resumed = ddp->attempt.resumed,
                                .healing = !ddp->healed[runner->rank]};
    }
    ddp->attempt.began = rf__ddp_now(ddp);
    return 0;
}

/* ---- shards and gradients
 * ---------------------------------------------------------------------- */

/* An attempt that has failed goes on as if it had not: what is computed now is kept, and the commit
 * says what became of it. */
static void pump(struct rf_ddp *ddp) {
    if (ddp->heal.active && !ddp->attempt.failed) {
        (void)rf__ddp_heal_pump(ddp, NULL);
    }
}

int rf__ddp_next_shard(struct rf_ddp *ddp, struct rf_shard *out) {
    struct rf__ddp_attempt *attempt = &ddp->attempt;

    if (ddp->stage == RF__DDP_BROKEN) {
        return ddp->error.code;
    }
    if (ddp->stage != RF__DDP_UNIT || attempt->in_shard) {
        return RF_EINVAL;
    }
    rf__ddp_alive(ddp);
    pump(ddp);
    if (attempt->next == attempt->dealt) {
        return 0;
    }
    *out = (struct rf_shard){
        .step = ddp->steps, .index = ddp->deal[attempt->next], .shards = ddp->shards};
    attempt->in_shard = true;
    attempt->told = false;
    attempt->shard_samples = 0;
    attempt->shard_skipped = 0;
    attempt->shard_tally = 0;
    attempt->next++;
    return 1;
}

float *rf__ddp_grad_fresh(struct rf_ddp *ddp, int index, bool *fresh) {
    if (ddp->stage != RF__DDP_UNIT || ddp->measure || !rf__ddp_in_range(ddp, index)) {
        return NULL;
    }
    rf__ddp_alive(ddp);
    if (!ddp->attempt.in_shard) { /* who is dealt none never comes to write */
        rf__ddp_settle_gradient(ddp, index);
    }
    *fresh = ddp->tensor[index].stale;
    ddp->tensor[index].stale = false;
    return ddp->gradients + ddp->slot[index].offset;
}

/* Zeroed by whoever asks first, and not all at the begin: so the zeros are still in a cache when
 * they are added to. */
float *rf__ddp_grad(struct rf_ddp *ddp, int index) {
    bool fresh = false;
    float *gradient = rf__ddp_grad_fresh(ddp, index, &fresh);

    if (fresh) {
        memset(gradient, 0, ddp->count[index] * sizeof *gradient);
    }
    return gradient;
}

void rf__ddp_settle_gradient(struct rf_ddp *ddp, int index) {
    if (ddp->tensor[index].stale) {
        memset(ddp->gradients + ddp->slot[index].offset, 0, ddp->count[index] * sizeof(float));
        ddp->tensor[index].stale = false;
    }
}

void rf__ddp_shard_samples(struct rf_ddp *ddp, uint64_t samples) {
    struct rf__ddp_attempt *attempt = &ddp->attempt;

    rf__ddp_alive(ddp);
    if (attempt->counted && !(attempt->told && samples == attempt->shard_samples)) {
        attempt->late_samples = true; /* shard_done says so */
        return;
    }
    attempt->told = true;
    attempt->shard_samples = samples;
}

void rf__ddp_shard_skipped(struct rf_ddp *ddp, uint64_t samples) {
    rf__ddp_alive(ddp);
    if (ddp->attempt.in_shard) {
        ddp->attempt.shard_skipped += samples;
    }
}

void rf__ddp_tally(struct rf_ddp *ddp, double value) {
    rf__ddp_alive(ddp);
    if (ddp->attempt.in_shard) {
        ddp->attempt.shard_tally += value;
    }
}

int rf__ddp_start_count(struct rf_ddp *ddp, struct rf_error *err) {
    struct rf__ddp_attempt *attempt = &ddp->attempt;
    struct rf__op_params params = {.call = {.coll = RF_COLL_ALLREDUCE,
                                            .type = RF_F64,
                                            .redop = RF_SUM,
                                            .send = ddp->control.count,
                                            .recv = ddp->control.divisor,
                                            .count = 1}};
    uint64_t shard_samples = attempt->in_shard ? attempt->shard_samples : 0;

    *ddp->control.count = (double)(ddp->work.samples + shard_samples);
    int rc = ddp->runner->ops->start(ddp->runner, &params, &ddp->count_op);
    if (rc) {
        ddp->count_op = NULL;
        return rf__ddp_fail(ddp, rc, rf__ddp_context(ddp, "counting samples").text, err);
    }
    attempt->counted = true;
    return 0;
}

struct rf__ddp_context rf__ddp_context_of_bucket(const struct rf_ddp *ddp, int k) {
    struct rf__ddp_context context;
    snprintf(context.text, sizeof context.text, "step %" PRIu64 ", averaging bucket %d of %d",
             ddp->steps, k + 1, ddp->buckets);
    return context;
}

static int start_bucket(struct rf_ddp *ddp, struct rf_error *err) {
    int k = ddp->attempt.started;
    const struct rf__bucket *bucket = &ddp->bucket[k];
    struct rf__op_params params = {.call = {.coll = RF_COLL_ALLREDUCE,
                                            .type = RF_F32,
                                            .redop = RF_SUM,
                                            .send = ddp->gradients + bucket->offset,
                                            .recv = ddp->averages + bucket->offset,
                                            .count = bucket->count,
                                            .algorithm = ddp->options.algorithm},
                                   .divisor = ddp->control.divisor};

    int rc = ddp->runner->ops->start(ddp->runner, &params, &ddp->op[k]);
    if (rc) {
        ddp->op[k] = NULL;
        return rf__ddp_fail(ddp, rc, rf__ddp_context_of_bucket(ddp, k).text, err);
    }
    ddp->attempt.started++;
    return 0;
}

/* The same where buckets are compressed, each in several operations. */
static int pump_compressed(struct rf_ddp *ddp, struct rf_error *err) {
    int ready = 0;

    while (ready < ddp->buckets && ddp->missing[ready] == 0) {
        ready++;
    }
    int rc = rf__compress_pump(ddp->compress, ready);
    return rc ? rf__ddp_fail(ddp, rc, rf__ddp_context(ddp, "averaging gradients").text, err) : 0;
}

int rf__ddp_start_complete(struct rf_ddp *ddp, struct rf_error *err) {
    struct rf__ddp_attempt *attempt = &ddp->attempt;
    int rc = 0;

    if (ddp->compress) {
        return pump_compressed(ddp, err);
    }
    while (rc == 0 && attempt->started < ddp->buckets && ddp->missing[attempt->started] == 0 &&
           attempt->started - attempt->finished < RF__DDP_IN_FLIGHT) {
        rc = start_bucket(ddp, err);
    }
    return rc;
}

static void mark_ready(struct rf_ddp *ddp, int index) {
    rf__ddp_settle_gradient(ddp, index);
    ddp->tensor[index].ready = true;
    ddp->missing[ddp->slot[index].bucket]--;
    ddp->control.order[ddp->observed++] = (uint32_t)index;
}

/* In an elastic group a failure is the commit's to tell. */
static int start_ready(struct rf_ddp *ddp) {
    struct rf__ddp_attempt *attempt = &ddp->attempt;
    bool elastic = ddp->runner->elastic;
    int rc = 0;

    if (elastic && (attempt->failed || ddp->runner->ops->is_over(ddp->runner))) {
        return 0;
    }
    if (!attempt->counted) {
        rc = rf__ddp_start_count(ddp, NULL);
    }
    if (rc == 0) {
        rc = rf__ddp_start_complete(ddp, NULL);
    }
    return elastic ? 0 : rc;
}

int rf__ddp_ready(struct rf_ddp *ddp, int index) {
    struct rf__ddp_attempt *attempt = &ddp->attempt;
    int rc = 0;

    if (ddp->stage == RF__DDP_BROKEN) {
        return ddp->error.code;
    }
    if (ddp->stage != RF__DDP_UNIT || !attempt->in_shard || ddp->measure ||
        !rf__ddp_in_range(ddp, index)) {
        return RF_EINVAL;
    }
    rf__ddp_alive(ddp);
    if (attempt->next < attempt->dealt) {
        return 0; /* further shards will add to it */
    }
    if (!attempt->told || ddp->tensor[index].ready) {
        return RF_EINVAL;
    }
    mark_ready(ddp, index);
    if (!ddp->options.no_overlap) {
        int64_t entered = rf__ddp_now(ddp);
        rc = start_ready(ddp);
        pump(ddp);
        attempt->in_ready += rf__ddp_now(ddp) - entered;
    }
    return rc;
}

int rf__ddp_shard_done(struct rf_ddp *ddp, double loss_sum) {
    struct rf__ddp_attempt *attempt = &ddp->attempt;
    struct rf__ddp_work *work = &ddp->work;

    if (ddp->stage == RF__DDP_BROKEN) {
        return ddp->error.code;
    }
    if (ddp->stage != RF__DDP_UNIT || !attempt->in_shard || !attempt->told ||
        attempt->late_samples) {
        return RF_EINVAL;
    }
    rf__ddp_alive(ddp);
    uint32_t index = ddp->deal[attempt->next - 1];
    ddp->control.done[index / 8] |= (unsigned char)(1u << index % 8);
    attempt->in_shard = false;
    work->samples += attempt->shard_samples;
    work->skipped += attempt->shard_skipped;
    work->loss_sum += loss_sum;
    work->tally += attempt->shard_tally;
    work->shards++;
    work->redone += attempt->resumed;
    pump(ddp);
    return 0;
}
