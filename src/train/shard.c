/* One shard: its samples, forward and backward, micro-batch by micro-batch; and what is done about
 * samples that cannot be read. */
#include "train/inner.h"

#include "base/status.h"

/* --- damaged data ---
 *
 * How much of an epoch was skipped so far must be the same on all members, also on one that joined
 * within it: so each shard's tally carries it to everybody, and from one report to the next it is
 * what the report says. */

/* By all members, in the steps of the epoch that came before `step` (from 0). */
static uint64_t skipped_before(const struct trainer *t, uint64_t step) {
    return step % t->steps_per_epoch ? t->epoch_skipped : 0;
}

void rf__train_skipped_count(struct trainer *t, const struct rf_step_report *report) {
    bool is_first = report->step % t->steps_per_epoch == 0;
    uint64_t before = is_first ? 0 : (uint64_t)(report->tally / t->options.shards);
    t->epoch_skipped = before + report->skipped;
}

int rf__train_check_skipped(struct trainer *t, const char *what, uint64_t skipped, uint64_t all,
                            uint64_t step, struct rf_error *err) {
    if ((double)skipped <= t->options.max_bad * (double)all) {
        return RF_OK;
    }
    int code =
        rf__fail(err, RF_EDATA, 0,
                 "after step %llu %llu of %llu %s samples were skipped, and max-bad %g "
                 "allows for %llu%s%.150s",
                 (unsigned long long)step, (unsigned long long)skipped, (unsigned long long)all,
                 what, t->options.max_bad, (unsigned long long)(t->options.max_bad * (double)all),
                 t->bad.code ? "; first " : "", t->bad.code ? t->bad.text : "");

    t->result.too_bad = true;
    rf__detail(err->what, "%s", t->bad.code ? t->bad.text : "the blocks were met by other workers");
    rf__detail(err->next, "ringfold data check FILE  lists the bad blocks; put a whole copy in the "
                          "file's place, or allow for more with --max-bad");
    if (!t->runner->elastic && t->runner->size > 1) {
        int agreed = rf__train_agree(t, t->bad.code ? code : RF_OK, err);
        code = agreed ? agreed : code;
    }
    return code;
}

/* --- one shard: forward and backward, micro-batch by micro-batch
 * -------------------------------------------------- */

static float *sink_grad(void *context, int index, bool *fresh) {
    struct trainer *t = context;
    return fresh ? rf__ddp_grad_fresh(t->ddp, index, fresh) : rf__ddp_grad(t->ddp, index);
}

static int sink_ready(void *context, int index) {
    struct trainer *t = context;
    return rf__ddp_ready(t->ddp, index);
}

/* More of the shard is to come: its gradients are not complete yet. */
static int sink_not_ready(void *context, int index) {
    (void)context;
    (void)index;
    return RF_OK;
}

/* What could not be used of a shard, in stretches that share a block. */
struct bad_run {
    const struct rf_shard *shard;
    bool measure;
    struct rf__bad at;
    uint32_t samples[RF_TRAIN_BAD_SAMPLES], count;
    uint64_t skipped; /* in the shard so far */
};

static void bad_tell(struct trainer *t, struct bad_run *run) {
    uint64_t step = run->shard->step + !run->measure;
    struct rf_train_bad bad = {.file = run->at.file,
                               .block = run->at.block,
                               .offset = run->at.offset,
                               .cause = run->at.cause,
                               .samples = run->samples,
                               .count = run->count,
                               .step = step,
                               .epoch = step ? (step - 1) / t->steps_per_epoch + 1 : 1,
                               .measure = run->measure,
                               .id = t->runner->elastic ? t->runner->id : t->runner->rank,
                               .rank = t->runner->rank};

    if (run->count && t->callbacks.bad) {
        t->callbacks.bad(t->callbacks.context, &bad);
    }
    run->count = 0;
}

/* `sample` cannot be used, and why. */
static void bad_note(struct trainer *t, struct bad_run *run, uint32_t sample,
                     const struct rf__bad *bad) {
    bool same = run->count && run->count < RF_TRAIN_BAD_SAMPLES && run->at.file == bad->file &&
                run->at.offset == bad->offset;

    if (!same) {
        bad_tell(t, run);
        run->at = *bad;
    }
    run->samples[run->count++] = sample;
    run->skipped++;
    if (!t->bad.code) {
        (void)rf__fail(&t->bad, RF_EDATA, 0, "block %llu of '%.160s' (from byte %llu) is bad: %s",
                       (unsigned long long)bad->block, bad->file, (unsigned long long)bad->offset,
                       bad->cause);
    }
}

/* Of the shard's samples those that can be used, into t->usable; ddp is told of both. */
static int shard_sift(struct trainer *t, const struct rf__samples *part,
                      const struct rf_shard *shard, const uint32_t *samples, uint32_t *count,
                      struct rf_error *err) {
    struct bad_run run = {.shard = shard, .measure = part == &t->data.test};
    uint32_t usable = 0;

    for (uint32_t i = 0; i < *count; i++) {
        struct rf__bad bad;
        int code = rf__dataset_usable(part, samples[i], &bad, err);
        if (code < 0) {
            return code;
        }
        if (code) {
            t->usable[usable++] = samples[i];
        } else {
            bad_note(t, &run, samples[i], &bad);
        }
    }
    bad_tell(t, &run);
    *count = usable;
    rf__ddp_shard_samples(t->ddp, (uint64_t)usable * t->weight);
    rf__ddp_shard_skipped(t->ddp, run.skipped);
    return RF_OK;
}

/* Forward and, with a sink, backward on the usable samples from `first` on. */
static int micro_run(struct trainer *t, const struct rf__samples *part,
                     const struct rf_shard *shard, uint32_t first, uint32_t count,
                     const struct rf__model_sink *sink, struct step_times *times, double *loss,
                     int64_t *correct, struct rf_error *err) {
    int64_t began = rf__train_now(t);
    int right = 0, code = RF_OK;

    if (t->data.context) {
        code = rf__dataset_gather_windows(part, t->usable + first, count, t->tokens, err);
        for (uint32_t i = 0; i < count; i++) {
            t->numbers[i] = t->usable[first + i];
        }
    } else {
        rf__dataset_gather(&t->data, part, t->usable + first, count, t->inputs, t->labels);
    }
    times->data += rf__train_now(t) - began;
    if (code) {
        return code;
    }
    if (t->data.context) {
        const struct rf__token_batch batch = {
            .tokens = t->tokens, .count = (int)count, .step = shard->step, .samples = t->numbers};
        return rf__model_pass(t->model, &batch, sink, loss, correct, err);
    }
    code = rf__model_forward(t->model, t->inputs, t->labels, (int)count, loss, &right, err);
    *correct = right;
    return !code && sink ? rf__model_backward(t->model, sink, err) : code;
}

int rf__train_shard_run(struct trainer *t, const struct rf_shard *shard, struct step_times *times,
                        struct rf_error *err) {
    struct rf__model_sink sink = {.grad = sink_grad, .context = t};
    const uint32_t *samples;
    double loss_sum = 0;

    int64_t began = rf__train_now(t);
    uint32_t count = rf__sampler_shard(t->sampler, shard->step, shard->index, &samples);
    int code = shard_sift(t, &t->data.train, shard, samples, &count, err);
    times->data += rf__train_now(t) - began;
    if (code) {
        return code;
    }
    rf__ddp_tally(t->ddp, (double)skipped_before(t, shard->step));
    for (uint32_t first = 0; first < count; first += t->micro) {
        uint32_t n = count - first < t->micro ? count - first : t->micro;
        double loss = 0;
        int64_t correct;

        sink.ready = first + n == count ? sink_ready : sink_not_ready;
        code = micro_run(t, &t->data.train, shard, first, n, &sink, times, &loss, &correct, err);
        if (code) {
            return code;
        }
        loss_sum += loss;
    }
    return rf__ddp_shard_done(t->ddp, loss_sum);
}

/* Part `shard` of V of what is measured. Once a stop was asked for, nothing of it is looked at, and
 * the tally says so. */
int rf__train_test_shard_run(struct trainer *t, const struct rf_shard *shard,
                             struct rf_error *err) {
    uint64_t all = t->measured_count;
    uint32_t begin = (uint32_t)(shard->index * all / shard->shards);
    uint32_t end = (uint32_t)((shard->index + 1ull) * all / shard->shards);
    uint32_t count = t->result.stopped ? 0 : end - begin;
    struct step_times times = {0}; /* a measurement's are told as a whole */
    double loss_sum = 0;

    int code = shard_sift(t, &t->data.test, shard, t->measured + begin, &count, err);
    if (code) {
        return code;
    }
    if (t->result.stopped) {
        rf__ddp_tally(t->ddp, 1);
    }
    for (uint32_t first = 0; first < count; first += t->micro) {
        uint32_t n = count - first < t->micro ? count - first : t->micro;
        double loss = 0;
        int64_t correct = 0;

        code = micro_run(t, &t->data.test, shard, first, n, NULL, &times, &loss, &correct, err);
        if (code) {
            return code;
        }
        loss_sum += loss;
        rf__ddp_tally(t->ddp, (double)correct);
    }
    return rf__ddp_shard_done(t->ddp, loss_sum);
}
