/* Checkpoints: taking them beside the units, and going back to one.
 *
 * Between a begin and the update after its commit nothing changes the state, so that is when it is
 * copied. The unit's own reports carry its hash: what they agree on is what the checkpoint holds,
 * and where they do not, there is none.
 *
 * Going back is a matter of the whole generation: the first member chooses, all load and verify,
 * and only what everybody could use is taken. A generation that fails on the way begins anew in the
 * next one. */
#include "base/cursor.h"
#include "base/digest.h"
#include "base/mem.h"
#include "base/status.h"
#include "ddp/inner.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { CARRIED_FIXED = 24, CARRIED_VERSION = 1, CARRIED_MEASURE = 1 };
enum { MOST_TRIES = 32, MOST_RETURNS = 5 };
enum { AWAY_PATIENCE_MS = 300000, AWAY_PAUSE_MS = 1000 };
/* Of a checkpoint that must be, for the one before it: of the last one, and where there is less
 * time, as somebody has asked for a stop. */
enum { LAST_PATIENCE_MS = 600000, STOP_PATIENCE_MS = 60000 };

/* ---- what a checkpoint holds
 * ------------------------------------------------------------------- */

size_t rf__ddp_carried_bytes(int tensors) {
    return CARRIED_FIXED + (size_t)tensors * sizeof(uint32_t);
}

static void carried_encode(struct rf_ddp *ddp) {
    struct rf__writer w = rf__writer(ddp->carried, rf__ddp_carried_bytes(ddp->tensors));
    bool measure = ddp->measure && !ddp->stops;

    rf__write_u32(&w, CARRIED_VERSION);
    rf__write_u32(&w, measure ? CARRIED_MEASURE : 0);
    rf__write_u64(&w, ddp->samples);
    rf__write_u64(&w, ddp->skipped);
    for (int k = 0; k < ddp->tensors; k++) {
        rf__write_u32(&w, (uint32_t)ddp->order[k]);
    }
}

static int carried_decode(struct rf_ddp *ddp, struct rf_error *err) {
    struct rf__reader r = rf__reader(ddp->carried, rf__ddp_carried_bytes(ddp->tensors));
    uint32_t version = rf__read_u32(&r);
    uint32_t flags = rf__read_u32(&r);

    ddp->samples = rf__read_u64(&r);
    ddp->skipped = rf__read_u64(&r);
    for (int k = 0; k < ddp->tensors; k++) {
        ddp->control.order[k] = rf__read_u32(&r);
    }
    if (version != CARRIED_VERSION) {
        return rf__fail(err, RF_EUNSUPPORTED, 0, "it was taken by another version of this library");
    }
    if (!rf__ddp_is_permutation(ddp, ddp->control.order)) {
        return rf__fail(err, RF_ECHECKPOINT, 0, "its order of the gradients is none");
    }
    ddp->measure = flags & CARRIED_MEASURE;
    for (int k = 0; k < ddp->tensors; k++) {
        ddp->order[k] = (int)ddp->control.order[k];
    }
    if (ddp->compress) { /* of other work, and of another layout */
        rf__compress_forget(ddp->compress);
    }
    rf__ddp_lay_out(ddp);
    return 0;
}

int rf__ddp_describe(struct rf_ddp *ddp, struct rf_error *err) {
    int count = ddp->tensors + ddp->extras + 1, at = 0;

    ddp->image = rf__alloc((size_t)count, sizeof *ddp->image);
    ddp->carried = rf__alloc(1, rf__ddp_carried_bytes(ddp->tensors));
    if (!ddp->image || !ddp->carried) {
        return rf__fail(err, RF_ENOMEM, 0, "no memory to describe %d tensors", count);
    }
    for (int i = 0; i < ddp->tensors; i++) {
        const struct rf__ddp_tensor *tensor = &ddp->tensor[i];
        struct rf__ckpt_tensor *image = &ddp->image[at++];
        *image = (struct rf__ckpt_tensor){.name = tensor->name,
                                          .type = RF_F32,
                                          .trained = true,
                                          .dims = tensor->dims ? tensor->dims : 1,
                                          .bytes = tensor->param,
                                          .length = ddp->count[i] * sizeof(float)};
        memcpy(image->shape, tensor->shape, sizeof image->shape);
        if (!tensor->dims) {
            image->shape[0] = ddp->count[i];
        }
    }
    for (int i = 0; i < ddp->extras; i++) {
        ddp->image[at++] = (struct rf__ckpt_tensor){.name = ddp->extra[i].name,
                                                    .type = RF_U8,
                                                    .dims = 1,
                                                    .shape = {ddp->extra[i].length},
                                                    .bytes = ddp->extra[i].bytes,
                                                    .length = ddp->extra[i].length};
    }
    ddp->image[at++] = (struct rf__ckpt_tensor){.name = "ringfold.ddp",
                                                .type = RF_U8,
                                                .dims = 1,
                                                .shape = {rf__ddp_carried_bytes(ddp->tensors)},
                                                .bytes = ddp->carried,
                                                .length = rf__ddp_carried_bytes(ddp->tensors)};
    ddp->state = (struct rf__ckpt_state){.tensors = ddp->image, .count = count};
    return rf__ckpt_state_check(&ddp->state, err);
}

/* ---- telling
 * ----------------------------------------------------------------------------------- */

static void tell(struct rf_ddp *ddp, const struct rf_checkpoint_news *news, const char *name) {
    struct rf_checkpoint_news told = *news;
    struct rf_event event = {.kind = RF_EVENT_CHECKPOINT,
                             .peer = -1,
                             .bytes = news->bytes,
                             .seconds = news->seconds,
                             .checkpoint = news->kind};

    told.name = name ? name : "";
    told.text = news->text ? news->text : "";
    if (ddp->told) {
        ddp->told(ddp->told_context, &told);
    }
    bool named = news->kind != RF_CHECKPOINT_FAILED && news->kind != RF_CHECKPOINT_PARTED;
    snprintf(event.text, sizeof event.text, "%s%s%.*s", named ? told.name : "",
             named && *told.name && *told.text ? ": " : "", 120, told.text);
    event.rolled_back = news->rolled_back;
    event.checkpoint_step = news->step;
    rf__ddp_tell(ddp, ddp->units, event);
}

static enum rf_checkpoint_kind kind_of(enum rf__saver_news_kind kind) {
    switch (kind) {
    case RF__SAVER_SAVED:
        return RF_CHECKPOINT_SAVED;
    case RF__SAVER_FAILED:
        return RF_CHECKPOINT_FAILED;
    case RF__SAVER_MARKED:
        return RF_CHECKPOINT_BAD;
    case RF__SAVER_PARTED:
        break;
    }
    return RF_CHECKPOINT_PARTED;
}

void rf__ddp_save_tell(struct rf_ddp *ddp) {
    struct rf__saver_news news;

    while (ddp->saver && rf__saver_news(ddp->saver, &news)) {
        struct rf_checkpoint_news told = {.kind = kind_of(news.kind),
                                          .step = news.step,
                                          .bytes = news.bytes,
                                          .seconds = news.seconds,
                                          .text = news.text};
        tell(ddp, &told, news.folder);
    }
}

/* ---- taking one
 * -------------------------------------------------------------------------------- */

void rf__ddp_save_start(struct rf_ddp *ddp) {
    struct rf_error err = {.code = 0};
    int place = 0;

    ddp->saving = false;
    if (!ddp->saver || ddp->save == RF__SAVE_NOT || !ddp->holds ||
        !ddp->healed[ddp->runner->rank]) {
        return;
    }
    while (ddp->donor[place] != ddp->runner->rank) {
        place++;
    }
    carried_encode(ddp);
    struct rf__saver_job job = {
        .id = {.step = ddp->steps, .chain = ddp->chain},
        .units = ddp->units,
        .generation = ddp->runner->generation,
        .samples = ddp->samples,
        .skipped = ddp->skipped,
        .state = &ddp->state,
        .part = place,
        .parts = ddp->donors,
        .leads = place == 0,
    };
    if (ddp->runner->elastic) {
        ddp->runner->ops->rest(ddp->runner);
    }
    int patience_ms = ddp->stops ? STOP_PATIENCE_MS : LAST_PATIENCE_MS;
    int rc = rf__saver_begin(ddp->saver, &job, ddp->save == RF__SAVE_MUST ? patience_ms : 0, &err);
    rf__ddp_alive(ddp);
    ddp->saving = rc == 0;
    ddp->last = job;
    ddp->last_digest = 0;
    ddp->last_lasts = ddp->measure;
    if (rc) {
        struct rf_checkpoint_news news = {
            .kind = RF_CHECKPOINT_FAILED, .step = ddp->steps, .text = err.text};
        tell(ddp, &news, NULL);
    }
}

void rf__ddp_save_settle(struct rf_ddp *ddp, bool committed) {
    if (!ddp->saving) {
        return;
    }
    ddp->saving = false;
    if (committed) {
        ddp->last_digest = ddp->attempt.state_digest;
        rf__saver_agreed(ddp->saver, ddp->attempt.state_digest);
    } else {
        rf__saver_drop(ddp->saver);
    }
}

void rf__ddp_save_reject(struct rf_ddp *ddp) {
    struct rf_checkpoint_news news = {.kind = RF_CHECKPOINT_FAILED,
                                      .step = ddp->steps,
                                      .text =
                                          "a worker that wrote a part of it held another state"};

    rf__ddp_save_settle(ddp, false);
    tell(ddp, &news, NULL);
}

/* The last one failed, maybe because a worker was gone before it had written its part: the state is
 * still what it was, so who led writes all of it. */
static int write_alone(struct rf_ddp *ddp, int timeout_ms, struct rf_error *err) {
    struct rf__saver_job job = ddp->last;

    job.part = 0;
    job.parts = 1;
    int rc = rf__saver_begin(ddp->saver, &job, 0, err);
    if (rc == 0) {
        rf__saver_agreed(ddp->saver, ddp->last_digest);
        rc = rf__saver_finish(ddp->saver, timeout_ms, err);
    }
    return rc;
}

int rf__ddp_finish_checkpoint(struct rf_ddp *ddp, int timeout_ms, struct rf_error *err) {
    int rc = 0;

    if (ddp->saver) {
        if (ddp->runner->elastic) {
            ddp->runner->ops->rest(ddp->runner);
        }
        rc = rf__saver_finish(ddp->saver, timeout_ms, err);
        if (rc == 0 && rf__saver_failed(ddp->saver) && ddp->last_digest && ddp->last_lasts &&
            ddp->units == ddp->last.units + 1) {
            rf__ddp_save_tell(ddp);
            rc = write_alone(ddp, timeout_ms, err);
        }
        rf__ddp_alive(ddp);
        rf__ddp_save_tell(ddp);
    }
    return rc;
}

/* ---- going back
 * -------------------------------------------------------------------------------- */

struct verdict {
    int code; /* 0, or the error */
    char text[RF__DDP_VERDICT_BYTES - 16];
};

static void verdict_encode(unsigned char *bytes, const struct verdict *verdict) {
    struct rf__writer w = rf__writer(bytes, RF__DDP_VERDICT_BYTES);
    rf__write_u32(&w, (uint32_t)-verdict->code);
    rf__write_bytes(&w, verdict->text, sizeof verdict->text);
}

static void verdict_decode(const unsigned char *bytes, struct verdict *out) {
    struct rf__reader r = rf__reader(bytes, RF__DDP_VERDICT_BYTES);
    out->code = -(int)(rf__read_u32(&r) & 0xffff);
    rf__read_bytes(&r, out->text, sizeof out->text);
    out->text[sizeof out->text - 1] = 0;
}

/* What the first member found, sent to all. */
static int share_choice(struct rf_ddp *ddp, struct rf__saver_choice *choice,
                        struct verdict *verdict, struct rf_error *err) {
    unsigned char *bytes = ddp->control.choice;
    struct rf_call call = {.coll = RF_COLL_BROADCAST,
                           .type = RF_U8,
                           .root = 0,
                           .send = bytes,
                           .recv = bytes,
                           .count = RF__DDP_CHOICE_BYTES};
    struct rf__writer w = rf__writer(bytes + RF__DDP_VERDICT_BYTES, 24);

    memset(bytes, 0, RF__DDP_CHOICE_BYTES);
    verdict_encode(bytes, verdict);
    rf__write_u64(&w, choice->id.step);
    rf__write_u64(&w, choice->id.chain);
    rf__write_u64(&w, choice->is_other);
    int rc = rf__ddp_run(ddp, &call, "looking for a checkpoint", err);
    if (rc == 0) {
        struct rf__reader r = rf__reader(bytes + RF__DDP_VERDICT_BYTES, 24);
        verdict_decode(bytes, verdict);
        choice->id.step = rf__read_u64(&r);
        choice->id.chain = rf__read_u64(&r);
        choice->is_other = rf__read_u64(&r) != 0;
    }
    return rc;
}

/* A group that goes back has nowhere else to go: a storage that is away is waited for. */
static int search(struct rf_ddp *ddp, struct rf__saver_choice *choice, struct rf_error *err) {
    int64_t until = rf__ddp_now(ddp) + (int64_t)AWAY_PATIENCE_MS * 1000000;
    bool is_away = true;
    int rc = 0;

    while (is_away) {
        rc = rf__saver_choose(ddp->saver, ddp->target, !ddp->rolls_back, choice, err);
        is_away = ddp->rolls_back && (rc == RF_ECONNECT || rc == RF_ETIMEDOUT) &&
                  rf__ddp_now(ddp) < until;
        if (is_away) {
            rf__saver_pause(ddp->saver, AWAY_PAUSE_MS);
        }
    }
    return rc;
}

/* The first member's search; the others wait for what it says. */
static int choose(struct rf_ddp *ddp, struct rf__saver_choice *choice, struct verdict *verdict,
                  struct rf_error *err) {
    struct rf_error found = {.code = 0};

    *choice = (struct rf__saver_choice){.is_other = false};
    *verdict = (struct verdict){.code = 0};
    if (ddp->runner->rank == 0) {
        verdict->code = search(ddp, choice, &found);
        snprintf(verdict->text, sizeof verdict->text, "%.*s", (int)sizeof verdict->text - 1,
                 found.text);
        rf__ddp_save_tell(ddp);
    }
    bool is_final = verdict->code && verdict->code != RF_ENOTFOUND;
    int rc = share_choice(ddp, choice, verdict, err);
    if (rc == 0 && !is_final && verdict->code && verdict->code != RF_ENOTFOUND) { /* rank 0's */
        (void)rf__fail(&found, verdict->code, 0, "%s", verdict->text);
        found.rank = 0;
        is_final = true;
    }
    /* our own failure, also where others have heard of it and left before all had it */
    return is_final ? rf__ddp_break(ddp, &found, err) : rc;
}

/* This member's own try, into the state. */
static void load(struct rf_ddp *ddp, const struct rf__saver_choice *choice,
                 struct rf__ckpt_manifest *manifest, struct verdict *verdict) {
    struct rf_error err = {.code = 0};

    *verdict = (struct verdict){.code = 0};
    if (!ddp->healed[ddp->runner->rank]) { /* it copies the state from the others in the unit */
        return;
    }
    bool begins = rf__saver_begins(ddp->saver) && !ddp->rolls_back && !ddp->is_touched;
    uint64_t initial = begins && choice->id.step == 0 ? rf__ddp_hash_state(ddp) : 0;
    ddp->is_touched = true;
    int rc = rf__saver_load(ddp->saver, choice, &ddp->state, manifest, &err);
    if (rc == 0) {
        ddp->units = manifest->units;
        ddp->steps = manifest->id.step;
        ddp->chain = manifest->id.chain;
        rc = rf__ddp_hash_state(ddp) == manifest->state_digest
                 ? carried_decode(ddp, &err)
                 : rf__fail(&err, RF_ECHECKPOINT, 0,
                            "its state has not the digest that its manifest has");
        if (rc == 0 && initial && initial != manifest->state_digest) {
            rc = rf__fail(&err, RF_EEXISTS, 0,
                          "it is the beginning of another training, with another seed or model");
        }
        rf__ckpt_manifest_free(manifest);
    }
    verdict->code = rc;
    snprintf(verdict->text, sizeof verdict->text, "%.*s", (int)sizeof verdict->text - 1, err.text);
}

/* Everybody's; *worst is the first that could not, or -1. */
static int share_verdicts(struct rf_ddp *ddp, const struct verdict *own, struct verdict *worst,
                          int *rank, struct rf_error *err) {
    struct rf_call call = {.coll = RF_COLL_ALL_GATHER,
                           .type = RF_U8,
                           .send = ddp->control.verdict,
                           .recv = ddp->control.verdicts,
                           .count = RF__DDP_VERDICT_BYTES};

    memset(ddp->control.verdict, 0, RF__DDP_VERDICT_BYTES);
    verdict_encode(ddp->control.verdict, own);
    int rc = rf__ddp_run(ddp, &call, "loading a checkpoint", err);
    *rank = -1;
    for (int r = 0; rc == 0 && r < ddp->runner->size && *rank < 0; r++) {
        verdict_decode(ddp->control.verdicts + (size_t)r * RF__DDP_VERDICT_BYTES, worst);
        *rank = worst->code ? r : -1;
    }
    return rc;
}

/* There is no checkpoint: the job begins, and takes its first one; or cannot go on. Where one was
 * read and could not be used, the state is no longer the beginning's. */
static int begin_without(struct rf_ddp *ddp, struct rf_error *err) {
    struct rf_error cause;

    if (!ddp->rolls_back && ddp->is_touched) {
        (void)rf__fail(&cause, RF_ECHECKPOINT, 0,
                       "none of the checkpoints that are there can be "
                       "used");
        cause.rank = -1;
        rf__detail(cause.next, "ringfold ckpt list tells what is wrong with each; to begin anew "
                               "choose another --checkpoint");
        return rf__ddp_break(ddp, &cause, err);
    }
    if (!ddp->rolls_back) {
        struct rf_checkpoint_news news = {.kind = RF_CHECKPOINT_NONE};
        ddp->is_behind = false;
        ddp->save = RF__SAVE_MUST;
        tell(ddp, &news, NULL);
        return 0;
    }
    (void)rf__fail(&cause, RF_ESTATELESS, 0,
                   "no worker that is left holds the state, and there is no checkpoint of it%s",
                   ddp->target == RF__NEWEST_STEP ? "" : " of that step or an earlier one");
    cause.rank = -1;
    return rf__ddp_break(ddp, &cause, err);
}

/* A member could not use it. What is damaged is left out, and the one before is tried; other
 * failures would be the same with any. That one alone cannot read what the first one has seen says
 * something of that member's way to it, and nothing of the checkpoint. */
static int refuse(struct rf_ddp *ddp, const struct rf__saver_choice *choice, int rank,
                  const struct verdict *verdict, struct rf_error *err) {
    struct rf_error cause;

    bool unread = verdict->code == RF_EIO || verdict->code == RF_ENOTFOUND;
    if (verdict->code == RF_ECHECKPOINT || (unread && rank == 0)) {
        if (ddp->runner->rank == 0) {
            rf__saver_refuse(ddp->saver, choice, verdict->text);
            rf__ddp_save_tell(ddp);
        }
        return 0;
    }
    (void)rf__fail(&cause, verdict->code, 0,
                   "rank %d of %d cannot load the checkpoint of step %" PRIu64 ": %s", rank,
                   ddp->runner->size, choice->id.step, verdict->text);
    cause.rank = rank;
    if (unread && ddp->runner->elastic && rank != ddp->runner->rank) {
        cause.code = RF_EREVOKED; /* the others go on without it */
        return rf__ddp_fail_with(ddp, &cause, err);
    }
    if (unread) {
        rf__detail(cause.next, "the place of the checkpoints must be the same, and readable, on "
                               "every host");
    } else if (verdict->code == RF_EINVAL || verdict->code == RF_EEXISTS) {
        rf__detail(cause.next, "go on with the model and the optimizer that it was taken with; "
                               "another training needs another --checkpoint");
    }
    return rf__ddp_break(ddp, &cause, err);
}

static void returned(struct rf_ddp *ddp, uint64_t step, double seconds) {
    char folder[RF__CKPT_FOLDER];
    struct rf_checkpoint_news news = {.kind = RF_CHECKPOINT_RETURNED,
                                      .step = step,
                                      .bytes = rf__ckpt_state_bytes(&ddp->state),
                                      .seconds = seconds,
                                      .rolled_back = ddp->rolls_back};

    rf__ckpt_folder(folder, &(struct rf__ckpt_id){.step = ddp->steps, .chain = ddp->chain});
    bool again = ddp->rolls_back && ddp->target == RF__NEWEST_STEP;
    ddp->returns = !again ? 0 : ddp->returned_to == step ? ddp->returns + 1 : 1;
    ddp->returned_to = step;
    ddp->is_behind = ddp->rolls_back = false;
    ddp->save = RF__SAVE_NOT;
    tell(ddp, &news, folder);
    (void)rf__ddp_note(ddp); /* refused: the same is done again in the next generation */
}

int rf__ddp_return(struct rf_ddp *ddp, struct rf_error *err) {
    int64_t began = rf__ddp_now(ddp);
    struct rf__ckpt_manifest manifest;
    struct rf__saver_choice choice;
    struct verdict own, worst;
    struct rf_error cause;
    int rank = 0, rc = 0, tries = 0;

    if (ddp->rolls_back) { /* what was agreed upon is there to be chosen, and not whole only later
                            */
        if (ddp->runner->elastic) {
            ddp->runner->ops->rest(ddp->runner);
        }
        (void)rf__saver_finish(ddp->saver, STOP_PATIENCE_MS, NULL);
    }
    while (rc == 0 && rank >= 0) {
        if (ddp->runner->elastic) {
            ddp->runner->ops->rest(ddp->runner);
        }
        rc = choose(ddp, &choice, &own, err);
        if (rc == 0 && own.code == RF_ENOTFOUND) {
            return begin_without(ddp, err);
        }
        if (rc == 0 && tries++ == MOST_TRIES) {
            (void)rf__fail(&cause, RF_ECHECKPOINT, 0,
                           "none of the %d newest checkpoints can be used", MOST_TRIES);
            cause.rank = -1;
            rc = rf__ddp_break(ddp, &cause, err);
        }
        if (rc == 0) {
            load(ddp, &choice, &manifest, &own);
            rc = share_verdicts(ddp, &own, &worst, &rank, err);
        }
        if (rc == 0 && rank >= 0) {
            rc = refuse(ddp, &choice, rank, &worst, err);
        }
        if (rc || rank >= 0) { /* nothing of it counts */
            ddp->units = ddp->steps = ddp->chain = 0;
            ddp->measure = false;
        }
    }
    rf__ddp_alive(ddp);
    if (rc == 0 && ddp->returns == MOST_RETURNS && ddp->target == RF__NEWEST_STEP &&
        ddp->rolls_back && ddp->returned_to == choice.id.step) {
        (void)rf__fail(&cause, RF_EDIVERGED, 0,
                       "the group has gone back to step %" PRIu64
                       " %d times and never came to the next checkpoint",
                       choice.id.step, MOST_RETURNS);
        cause.rank = -1;
        rf__detail(cause.next, "check for faulty memory, and for workers whose processors or "
                               "libraries compute differently");
        return rf__ddp_break(ddp, &cause, err);
    }
    if (rc == 0) {
        returned(ddp, choice.id.step, rf__ddp_seconds(rf__ddp_now(ddp) - began));
    }
    return ddp->runner->elastic && ddp->stage != RF__DDP_BROKEN ? 0 : rc;
}
