/* The training loop, to be read from the top: what a trainer holds, one shard of each kind, a step,
 * a measurement, the run; then what sets it up.
 *
 * The loop goes from unit to unit of the group: a training step, or a measurement of the test set.
 * Which one it is, and which number it has, the group says; a unit that was not committed is begun
 * again, by this worker as by one that has just joined. After each epoch and at the end a
 * measurement is asked for, also by who asks for a stop: then an empty one, for the sake of the
 * state's hash, which every measurement's reports carry.
 *
 * A shard is the unit of the arithmetic: its samples always come in the same micro-batches, so what
 * it adds to the gradients is the same bits on whichever worker it runs. Everything else that could
 * differ between workers (order of samples, initial parameters, dropout) comes from the seed. Time
 * is asked of the runner, files of the blobs; nothing is printed: callbacks tell.
 *
 * A sample weighs as much as it has losses: an image one, a window of tokens its context. What ddp
 * is told, and reports, are weights; everybody else is told samples. */
#include "train/train.h"

#include "base/digest.h"
#include "base/mem.h"
#include "base/status.h"
#include "data/dataset.h"
#include "data/sampler.h"
#include "data/tokenizer_file.h"
#include "ddp/ddp.h"
#include "train/memory.h"
#include "train/weights.h"

#include <limits.h>
#include <math.h>
#include <string.h>

enum { STOP_PATIENCE_MS = 25000, END_PATIENCE_MS = 600000 }; /* for the last checkpoint */

struct trainer {
    struct rf__runner *runner;
    struct rf_train_options options; /* resolved */
    struct rf_train_callbacks callbacks;
    struct rf__dataset data;
    struct rf__sampler *sampler;
    struct rf__model *model;
    struct rf__optimizer *optimizer;
    struct rf_ddp *ddp;
    int tensors;
    uint64_t steps_per_epoch, steps;

    /* One micro-batch: images with their labels, or windows of tokens with their numbers. */
    uint32_t micro;
    float *inputs;
    int32_t *labels;
    uint32_t *tokens;
    uint64_t *numbers;
    uint32_t weight; /* of a sample */

    uint32_t *measured; /* the test samples that a measurement is of */
    uint32_t measured_count;

    /* One shard, and what of it cannot be used. */
    uint32_t *usable;
    uint64_t epoch_skipped; /* by all, in the epoch's steps so far: the same on all members */
    struct rf_error bad;    /* the first bad block that this worker met; code 0: none */

    /* The epoch as far as this worker saw it: for its mean loss. */
    double epoch_loss_sum;
    uint64_t epoch_samples;
    int64_t epoch_began;
    double hidden_s; /* of the communication so far, what nobody waited for */
    bool started;    /* the caller has been told of the start */

    struct rf__saver *saver; /* NULL: no checkpoints */
    int64_t saved_at;        /* when the last one was begun */
    bool save_missed;        /* one was due and is not begun yet */
    struct rf_error parted;  /* another group trains on from the same past */

    /* Why the first weights could not be had; code 0: they are here, or a checkpoint or another
     * member gave the state. */
    struct rf_error init_missing;

    struct rf_train_result result;
};

/* The parts of one step that the report does not tell, in nanoseconds. */
struct step_times {
    int64_t data, update, all;
};

static int64_t now(const struct trainer *t) {
    return t->runner->ops->now(t->runner);
}

static double seconds(int64_t ns) {
    return (double)ns * 1e-9;
}

/* --- damaged data
 * -------------------------------------------------------------------------------------------------
 *
 * How much of an epoch was skipped so far must be the same on all members, also on one that joined
 * within it: so each shard's tally carries it to everybody, and from one report to the next it is
 * what the report says. */

/* By all members, in the steps of the epoch that came before `step` (from 0). */
static uint64_t skipped_before(const struct trainer *t, uint64_t step) {
    return step % t->steps_per_epoch ? t->epoch_skipped : 0;
}

/* The unit is committed: what is known of the epoch after it. */
static void skipped_count(struct trainer *t, const struct rf_step_report *report) {
    bool is_first = report->step % t->steps_per_epoch == 0;
    uint64_t before = is_first ? 0 : (uint64_t)(report->tally / t->options.shards);
    t->epoch_skipped = before + report->skipped;
}

/* Whether more than the largest share of `all` samples was skipped. Every member decides alike;
 * which of them speaks, and of which block, is for too_bad. */
static bool is_too_bad(const struct trainer *t, uint64_t skipped, uint64_t all) {
    return (double)skipped > t->options.max_bad * (double)all;
}

static int setup_agree(struct trainer *t, int code, struct rf_error *err);

/* Ends the run on all members: in a fixed group the first that has met a bad block tells of it. */
static int too_bad(struct trainer *t, const char *what, uint64_t skipped, uint64_t all,
                   uint64_t step, struct rf_error *err) {
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
        int agreed = setup_agree(t, t->bad.code ? code : RF_OK, err);
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
    int64_t began = now(t);
    int right = 0, code = RF_OK;

    if (t->data.context) {
        code = rf__dataset_gather_windows(part, t->usable + first, count, t->tokens, err);
        for (uint32_t i = 0; i < count; i++) {
            t->numbers[i] = t->usable[first + i];
        }
    } else {
        rf__dataset_gather(&t->data, part, t->usable + first, count, t->inputs, t->labels);
    }
    times->data += now(t) - began;
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

static int shard_run(struct trainer *t, const struct rf_shard *shard, struct step_times *times,
                     struct rf_error *err) {
    struct rf__model_sink sink = {.grad = sink_grad, .context = t};
    const uint32_t *samples;
    double loss_sum = 0;

    int64_t began = now(t);
    uint32_t count = rf__sampler_shard(t->sampler, shard->step, shard->index, &samples);
    int code = shard_sift(t, &t->data.train, shard, samples, &count, err);
    times->data += now(t) - began;
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
static int test_shard_run(struct trainer *t, const struct rf_shard *shard, struct rf_error *err) {
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

/* --- one step
 * -----------------------------------------------------------------------------------------------------
 */

static const float *average_of(void *context, int index) {
    struct trainer *t = context;
    return rf__ddp_average(t->ddp, index);
}

static double grad_norm(const struct trainer *t) {
    double sum = 0;
    for (int i = 0; i < t->tensors; i++) {
        sum += rf__sum_of_squares(rf__ddp_average(t->ddp, i), rf__model_tensor(t->model, i)->count);
    }
    return sqrt(sum);
}

static void tensors_tell(const struct trainer *t, bool gradient) {
    if (!t->callbacks.tensor) {
        return;
    }
    for (int i = 0; i < t->tensors; i++) {
        const struct rf__tensor *tensor = rf__model_tensor(t->model, i);
        t->callbacks.tensor(t->callbacks.context, gradient, tensor->name,
                            gradient ? rf__ddp_average(t->ddp, i) : tensor->data, tensor->shape,
                            tensor->dims);
    }
}

/* Adds the step to the run's sums and tells the caller of it. */
static void step_tell(struct trainer *t, const struct rf_step_report *report,
                      const struct step_times *times, double norm, double rate) {
    struct rf_train_result *sum = &t->result;
    double data = seconds(times->data);
    double all = seconds(times->all);
    double compute = report->compute_s - data;
    uint64_t samples = report->samples / t->weight;
    struct rf_train_step step = {.step = report->step + 1,
                                 .steps = t->steps,
                                 .epoch = report->step / t->steps_per_epoch + 1,
                                 .loss = report->loss,
                                 .grad_norm = norm,
                                 .lr = rate,
                                 .step_s = all,
                                 .compute_s = (compute > 0 ? compute : 0) + seconds(times->update),
                                 .data_s = data,
                                 .comm_s = report->comm_s,
                                 .exposed_s = report->exposed_s,
                                 .wait_s = report->wait_s,
                                 .samples = samples,
                                 .skipped = report->skipped,
                                 .digest = report->digest,
                                 .samples_per_s = all > 0 ? (double)samples / all : 0,
                                 .context = t->data.context,
                                 .slowest_rank = report->slowest_rank,
                                 .generation = report->generation,
                                 .size = report->size,
                                 .retries = report->retries,
                                 .redone = report->redone};

    sum->steps = step.step;
    sum->samples += step.samples;
    sum->skipped += step.skipped;
    sum->compute_s += step.compute_s;
    sum->data_s += step.data_s;
    sum->comm_s += step.comm_s;
    t->hidden_s += report->hidden_s;
    sum->exposed_s += step.exposed_s;
    sum->wait_s += step.wait_s;
    t->epoch_loss_sum += report->loss * (double)samples;
    t->epoch_samples += samples;
    sum->loss = t->epoch_samples ? t->epoch_loss_sum / (double)t->epoch_samples : 0;
    if (t->callbacks.step) {
        t->callbacks.step(t->callbacks.context, &step);
    }
}

/* The step is committed: the update, and what there is to tell. `times` has its data so far; it
 * began at `began`. */
static int step_end(struct trainer *t, const struct rf_step_report *report,
                    struct step_times *times, int64_t began, struct rf_error *err) {
    uint64_t number = report->step + 1;
    int64_t committed = now(t);
    double norm = grad_norm(t);
    double rate = rf__schedule_rate(t->options.lr, number, t->options.warmup_steps, t->steps);

    if (!isfinite(norm) || !isfinite(report->loss)) {
        int code = rf__fail(err, RF_EINVAL, 0,
                            "the loss or its gradient is no longer a number at step %llu, at "
                            "rate %g",
                            (unsigned long long)number, rate);
        if (err) {
            rf__detail(err->next, "train with a lower --lr, a --warmup or a --clip");
        }
        return code;
    }
    if (number == 1) {
        tensors_tell(t, true);
    }
    if (report->step % t->steps_per_epoch == 0) {
        t->epoch_loss_sum = 0;
        t->epoch_samples = 0;
    }
    double scale = t->options.clip > 0 && norm > t->options.clip ? t->options.clip / norm : 1;
    skipped_count(t, report);
    if (report->samples) {
        rf__optimizer_update(t->optimizer, t->model, average_of, t, rate, scale, number);
    }
    times->update = now(t) - committed;
    times->all = now(t) - began;
    step_tell(t, report, times, norm, rate);
    t->result.stopped = report->stop;
    if (is_too_bad(t, t->epoch_skipped, t->data.train.count)) {
        return too_bad(t, "training", t->epoch_skipped, t->data.train.count, number, err);
    }
    return RF_OK;
}

/* --- a measurement
 * ------------------------------------------------------------------------------------------------
 */

/* What each member holds, as that member said it. */
static void digests_keep(struct trainer *t, const struct rf_step_report *report) {
    struct rf_train_result *result = &t->result;
    int reported = rf__ddp_state_digests(t->ddp, result->digests, RF_MAX_LOCAL_RANKS);

    result->digest = report->state_digest;
    for (int r = 0; !reported && r < report->size && r < RF_MAX_LOCAL_RANKS; r++) {
        result->digests[r] = report->state_digest; /* the chain, which all share, stands for it */
    }
}

static int measurement_end(struct trainer *t, const struct rf_step_report *report, int64_t began,
                           struct rf_error *err) {
    struct rf_train_result *result = &t->result;
    uint64_t samples = report->samples / t->weight;
    int64_t at = now(t);

    result->steps = report->step;
    digests_keep(t, report);
    if (samples + report->skipped ==
        0) { /* of a stop, maybe unseen by this worker, or of nothing */
        result->stopped = result->stopped || t->measured_count || report->tally > 0;
        return RF_OK;
    }
    if (samples + report->skipped != t->measured_count) {
        return rf__fail(err, RF_EINTERNAL, 0, "%llu test samples were seen and %llu skipped, of %u",
                        (unsigned long long)samples, (unsigned long long)report->skipped,
                        t->measured_count);
    }
    if (is_too_bad(t, report->skipped, t->measured_count)) {
        return too_bad(t, "test", report->skipped, t->measured_count, report->step, err);
    }
    result->accuracy = report->samples ? report->tally / (double)report->samples : NAN;
    result->test_loss = report->loss;
    result->eval_s += seconds(at - began);
    struct rf_train_epoch epoch = {.epoch =
                                       (report->step + t->steps_per_epoch - 1) / t->steps_per_epoch,
                                   .step = report->step,
                                   .accuracy = result->accuracy,
                                   .test_loss = result->test_loss,
                                   .test_samples = samples,
                                   .test_skipped = report->skipped,
                                   .seconds = seconds(at - t->epoch_began),
                                   .context = t->data.context};
    t->epoch_began = at;
    if (t->callbacks.epoch) {
        t->callbacks.epoch(t->callbacks.context, &epoch);
    }
    return RF_OK;
}

/* --- the run
 * ------------------------------------------------------------------------------------------------------
 */

static void start_tell(struct trainer *t) {
    struct rf_train_start start = {.rank = t->runner->rank,
                                   .size = t->runner->size,
                                   .batch = t->options.batch,
                                   .shards = t->options.shards,
                                   .parameters = rf__model_parameters(t->model),
                                   .train_samples = t->data.train.count,
                                   .test_samples = t->data.test.count,
                                   .steps = t->steps,
                                   .steps_per_epoch = t->steps_per_epoch,
                                   .compute = rf__model_compute(),
                                   .memory = t->result.memory,
                                   .context = t->data.context,
                                   .vocabulary = t->data.vocabulary,
                                   .measured = t->measured_count};
    if (t->callbacks.start && !t->started) {
        t->callbacks.start(t->callbacks.context, &start);
    }
    t->started = true;
}

/* By time one worker's clock decides. */
static bool is_save_due(const struct trainer *t, uint64_t number) {
    const struct rf_train_options *o = &t->options;
    bool by_time = !o->checkpoint_steps && o->checkpoint_s > 0 && t->runner->rank == 0 &&
                   seconds(now(t) - t->saved_at) >= o->checkpoint_s;
    bool by_steps = o->checkpoint_steps && number % o->checkpoint_steps == 0;
    return t->saver && (by_time || by_steps || t->save_missed || number == t->steps);
}

/* What the unit's report says of checkpoints. */
static void save_follow(struct trainer *t, const struct rf_step_report *report) {
    if (report->saved) {
        t->saved_at = now(t);
    }
    t->save_missed = report->save_late;
}

static void checkpoint_told(void *context, const struct rf_checkpoint_news *news) {
    struct trainer *t = context;

    if (news->kind == RF_CHECKPOINT_RETURNED) {
        rf__error_clear(&t->init_missing);
        if (!news->rolled_back) {
            t->result.resumed_from = news->step;
        }
        t->result.steps = news->step;
        t->epoch_skipped = 0; /* on all members; the rest of the epoch is judged by itself */
        t->epoch_loss_sum = 0;
        t->epoch_samples = 0;
    } else if (news->kind == RF_CHECKPOINT_PARTED) {
        (void)rf__fail(&t->parted, RF_EDIVERGED, 0, "%s", news->text);
        t->parted.rank = t->runner->rank;
        rf__detail(t->parted.next, "stop one of the two; then go on from what both have: --resume "
                                   "auto --on-divergence rollback");
    }
    if (t->callbacks.checkpoint) {
        t->callbacks.checkpoint(t->callbacks.context, news);
    }
}

/* What this worker wishes for after the unit. */
static void wishes_tell(struct trainer *t, const struct rf_step *step) {
    uint64_t number = step->step + 1;

    if (step->measure) {
        return;
    }
    bool asked = t->callbacks.stop && t->callbacks.stop(t->callbacks.context);
    if (number == t->steps) { /* it stops anyway */
        asked = false;
    }
    if (asked || t->parted.code) {
        rf__ddp_request_stop(t->ddp);
        rf__ddp_request_measure(t->ddp);
        rf__ddp_request_checkpoint(t->ddp, true);
    }
    bool is_due = t->options.eval_every && number % t->options.eval_every == 0;
    if (is_due || number % t->steps_per_epoch == 0 || number == t->steps) {
        rf__ddp_request_measure(t->ddp);
    }
    if (is_save_due(t, number)) {
        rf__ddp_request_checkpoint(t->ddp, number == t->steps);
    }
}

/* This member's part of a unit, and its commit. RF_RETRY: begin again. */
static int unit_run(struct trainer *t, const struct rf_step *step, struct rf_step_report *report,
                    struct step_times *times, struct rf_error *err) {
    struct rf_shard shard;
    int code;

    while ((code = rf__ddp_next_shard(t->ddp, &shard)) > 0) {
        code = step->measure ? test_shard_run(t, &shard, err) : shard_run(t, &shard, times, err);
        if (code) {
            return code;
        }
    }
    if (code) {
        return code;
    }
    wishes_tell(t, step);
    return rf__ddp_commit(t->ddp, report, err);
}

/* The others were done while this worker was out of the group: what it holds is not the result. */
static int late_end(struct trainer *t, struct rf_error *err) {
    rf__error_clear(err);
    t->result.late = true;
    return RF_OK;
}

/* Whether the unit that was cut by the job's end is its last and this worker holds all of it: as a
 * measurement changes nothing, it holds the result too. */
static bool is_result(const struct trainer *t, const struct rf_step *step,
                      const struct rf_step_report *report) {
    bool last = t->result.stopped || step->step >= t->steps;
    return step->measure && last && !step->healing && report->measure;
}

/* Nobody goes on from random weights in place of those that were asked for. */
static int init_check(struct trainer *t, const struct rf_step *step, struct rf_error *err) {
    if (step->healing) {
        rf__error_clear(&t->init_missing);
    }
    if (t->init_missing.code) {
        *err = t->init_missing;
    }
    return t->init_missing.code;
}

/* From unit to unit, until the one after the last step, or after a stop, is committed. */
static int units_run(struct trainer *t, struct rf_error *err) {
    struct step_times times = {0};
    int64_t began = now(t);
    bool done = false;

    while (!done) {
        struct rf_step_report report = {.samples = 0};
        struct rf_step step;

        int code = rf__ddp_begin(t->ddp, &step, err);
        if (code == RF_EENDED) {
            return late_end(t, err);
        }
        code = code ? code : init_check(t, &step, err);
        if (code) {
            return code;
        }
        start_tell(t);
        if (step.step > t->steps || (!step.measure && step.step == t->steps)) {
            code = rf__fail(err, RF_EINVAL, 0,
                            "the checkpoint is of step %llu, and the training ends with step %llu",
                            (unsigned long long)step.step, (unsigned long long)t->steps);
            rf__detail(err->next, "give it more --epochs or --steps");
            return code;
        }
        code = unit_run(t, &step, &report, &times, err);
        if (code == RF_RETRY) {
            continue;
        }
        if (code == RF_EENDED && !is_result(t, &step, &report)) {
            return late_end(t, err);
        }
        if (code == RF_EENDED) {
            rf__error_clear(err);
            code = RF_OK;
        }
        if (!code) {
            save_follow(t, &report);
        }
        if (!code && report.measure) {
            code = measurement_end(t, &report, began, err);
            done = t->result.stopped || report.step >= t->steps;
        } else if (!code) {
            code = step_end(t, &report, &times, began, err);
        }
        if (code) {
            return code;
        }
        if (!done && t->runner->elastic && t->callbacks.leave &&
            t->callbacks.leave(t->callbacks.context)) {
            t->result.left = t->result.stopped = done = true;
        }
        times = (struct step_times){0};
        began = now(t);
    }
    return RF_OK;
}

static void memory_measure(struct trainer *t) {
    struct rf_ddp_memory buckets;
    void *state;
    struct rf_train_memory *memory = &t->result.memory;

    rf__ddp_memory(t->ddp, &buckets);
    rf__optimizer_state(t->optimizer, &state, &memory->optimizer);
    memory->parameters = rf__model_parameters(t->model) * sizeof(float);
    memory->gradients = buckets.gradients;
    memory->averaged = buckets.averaged + buckets.compression;
    memory->activations = rf__model_activation_bytes(t->model);
}

/* The last checkpoint: who was told to stop has not much time. That it failed is told, and nothing
 * else follows from it. */
static void save_finish(struct trainer *t) {
    struct rf_error err;
    int timeout_ms = t->result.stopped ? STOP_PATIENCE_MS : END_PATIENCE_MS;

    if (t->saver && rf__ddp_finish_checkpoint(t->ddp, timeout_ms, &err)) {
        struct rf_checkpoint_news news = {
            .kind = RF_CHECKPOINT_FAILED, .step = t->result.steps, .name = "", .text = err.text};
        checkpoint_told(t, &news);
    }
}

static int run(struct trainer *t, struct rf_error *err) {
    struct rf_train_result *result = &t->result;

    memory_measure(t);
    int64_t began = now(t);
    result->context = t->data.context;
    t->epoch_began = began;
    t->saved_at = began;
    int code = units_run(t, err);
    if (code) {
        return code;
    }
    if (!result->late) {
        save_finish(t);
    }
    if (t->parted.code) {
        *err = t->parted;
        return err->code;
    }
    result->seconds = seconds(now(t) - began);
    double training = result->seconds - result->eval_s;
    result->samples_per_s = training > 0 ? (double)result->samples / training : 0;
    if (result->comm_s > 0) {
        result->hidden_ratio = t->hidden_s / result->comm_s;
    }
    if (!result->late && !result->left) {
        tensors_tell(t, false);
    }
    return RF_OK;
}

/* --- set-up
 * -------------------------------------------------------------------------------------------------------
 */

uint32_t rf__train_vocabulary(const struct rf__data_io *io,
                              const struct rf_train_options *options) {
    struct rf__tokenizer *tokenizer = NULL;
    uint32_t vocabulary = 0;

    if (rf__train_takes_tokens(options) && options->data &&
        !rf__tokenizer_load(io->files, options->data, &tokenizer, NULL)) {
        vocabulary = rf__tokenizer_vocabulary(tokenizer);
    }
    rf__tokenizer_destroy(tokenizer);
    return vocabulary;
}

/* What a folder lacks, and how to make it. */
static int tokens_open(struct trainer *t, const struct rf__data_io *io, struct rf_error *err) {
    const struct rf_train_options *o = &t->options;

    int code = rf__dataset_read_tokens(io, o->data, (uint32_t)o->context, &t->data, err);
    if (code == RF_ENOTFOUND) {
        rf__detail(err->next, "ringfold data tokens TEXT -o FOLDER  makes a folder for gpt");
    } else if (code == RF_EDATA && !err->next[0]) {
        rf__detail(err->next,
                   "a --context of fewer tokens than the data has, or more text; ringfold "
                   "data tokens makes such a folder anew");
    }
    return code;
}

/* How many steps there will be. */
static int steps_setup(struct trainer *t, struct rf_error *err) {
    struct rf_train_options *o = &t->options;

    int code =
        rf__sampler_create(o->seed, t->data.train.count, o->batch, o->shards, &t->sampler, err);
    if (code) {
        return code;
    }
    t->steps_per_epoch = rf__sampler_steps_per_epoch(t->sampler);
    t->steps = o->epochs ? o->epochs * t->steps_per_epoch : o->steps;
    if (o->steps && o->steps < t->steps) {
        t->steps = o->steps;
    }
    if (o->warmup_steps == RF_TRAIN_AUTO) {
        uint64_t tenth = t->steps / 10;
        o->warmup_steps = tenth < RF__TRAIN_GPT_WARMUP ? tenth : RF__TRAIN_GPT_WARMUP;
    }
    return RF_OK;
}

/* Which test samples a measurement is of: always the same ones, over all of the set. */
static void measured_setup(struct trainer *t) {
    for (uint32_t i = 0; i < t->measured_count; i++) {
        t->measured[i] = (uint32_t)((uint64_t)i * t->data.test.count / t->measured_count);
    }
}

static int data_setup(struct trainer *t, const struct rf__data_io *io, struct rf_error *err) {
    const struct rf_train_options *o = &t->options;
    bool tokens = rf__train_takes_tokens(o);
    uint32_t test = 0;

    int code = tokens ? tokens_open(t, io, err) : rf__dataset_read(io, o->data, &t->data, err);
    if (!code) {
        code = steps_setup(t, err);
    }
    if (code) {
        return code;
    }
    uint32_t largest = rf__sampler_shard_max(t->sampler);
    t->micro = largest < o->micro_batch ? largest : o->micro_batch;
    t->weight = tokens ? t->data.context : 1;
    test = t->data.test.count;
    t->measured_count = o->eval_samples && o->eval_samples < test ? o->eval_samples : test;
    uint32_t test_shard = t->measured_count / o->shards + 1; /* the largest */
    t->usable = rf__alloc(largest > test_shard ? largest : test_shard, sizeof *t->usable);
    t->measured = rf__alloc((size_t)t->measured_count + 1, sizeof *t->measured);
    bool has_room = t->usable && t->measured;
    if (tokens) {
        t->tokens = rf__alloc(t->micro, ((size_t)t->data.context + 1) * sizeof *t->tokens);
        t->numbers = rf__alloc(t->micro, sizeof *t->numbers);
        has_room = has_room && t->tokens && t->numbers;
    } else {
        size_t pixels = (size_t)(t->data.height * t->data.width);
        t->inputs = rf__alloc_aligned(t->micro * pixels * sizeof *t->inputs);
        t->labels = rf__alloc(t->micro, sizeof *t->labels);
        has_room = has_room && t->inputs && t->labels;
    }
    if (!has_room) {
        return rf__fail(err, RF_ENOMEM, 0, "no memory for a micro-batch of %u samples", t->micro);
    }
    measured_setup(t);
    return RF_OK;
}

static struct rf__model_options model_options(const struct trainer *t) {
    const struct rf_train_options *o = &t->options;
    bool bf16 = !strcmp(o->compute, "bf16");

    return (struct rf__model_options){
        .name = o->model,
        .channels = 1,
        .height = t->data.height,
        .width = t->data.width,
        .classes = RF__DATA_CLASSES,
        .batch = (int)t->micro,
        .hidden = o->hidden,
        .seed = o->seed,
        .gpt = {.depth = o->depth,
                .width = o->width,
                .heads = o->heads,
                .context = (int)t->data.context,
                .vocabulary = t->data.vocabulary <= INT_MAX ? (int)t->data.vocabulary : 0,
                .dropout = o->dropout,
                .compute = bf16 ? RF__COMPUTE_BF16 : RF__COMPUTE_F32}};
}

/* The first weights. A folder that is gone is not missed where the state comes from a checkpoint,
 * or from the other members; which is only known later. */
static int init_read(struct trainer *t, const struct rf__data_io *io,
                     const struct rf__gpt_options *gpt, struct rf_error *err) {
    bool may_come = t->runner->elastic || (t->saver && !rf__saver_begins(t->saver));

    int code = rf__weights_read(io->files, t->options.init, gpt, t->model, err);
    if (code == RF_ENOTFOUND && may_come) {
        t->init_missing = *err;
        code = RF_OK;
    }
    return code;
}

static int model_setup(struct trainer *t, const struct rf__data_io *io, struct rf_error *err) {
    const struct rf_train_options *o = &t->options;
    const struct rf__model_options model = model_options(t);
    struct rf__optimizer_options optimizer = {.name = o->optimizer,
                                              .momentum = o->momentum,
                                              .beta2 = o->beta2,
                                              .weight_decay = o->weight_decay};

    int code = rf__model_create(&model, &t->model, err);
    if (!code && o->init) {
        code = init_read(t, io, &model.gpt, err);
    }
    if (code) {
        return code;
    }
    t->tensors = rf__model_tensors(t->model);
    return rf__optimizer_create(&optimizer, t->model, &t->optimizer, err);
}

/* Of everything that decides what a step computes, but for the data's bytes: where it differs, the
 * average is of gradients of different functions. */
static uint64_t computing_digest(const struct trainer *t) {
    struct rf_train_options o = t->options;
    char config[RF__TRAIN_CONFIG];

    o.data = "";
    o.epochs = 0;
    o.steps = t->steps;
    o.micro_batch = t->micro;
    rf__train_config(&o, t->data.vocabulary, config);
    uint64_t digest = rf__digest(config, strlen(config), 0);
    digest = rf__digest(&o.max_bad, sizeof o.max_bad, digest);
    digest = rf__digest_mix(digest, t->data.train.count);
    digest = rf__digest_mix(digest, t->data.test.count);
    return rf__digest_mix(digest, t->measured_count);
}

static int ddp_setup(struct trainer *t, struct rf_error *err) {
    void *state;
    size_t bytes;

    int code = rf__ddp_create(t->runner, &t->options.ddp, &t->ddp, err);
    for (int i = 0; !code && i < t->tensors; i++) {
        const struct rf__tensor *tensor = rf__model_tensor(t->model, i);
        code = rf__ddp_register(t->ddp, tensor->name, tensor->data, tensor->count, err);
        if (!code) {
            code = rf__ddp_shape(t->ddp, i, tensor->shape, tensor->dims, err);
        }
    }
    if (code) {
        return code;
    }
    rf__optimizer_state(t->optimizer, &state, &bytes);
    if (bytes) {
        code = rf__ddp_register_state(t->ddp, "optimizer", state, bytes, err);
        if (code) {
            return code;
        }
    }
    if (t->saver) {
        rf__ddp_keep(t->ddp, t->saver, checkpoint_told, t);
    }
    rf__ddp_also(t->ddp, computing_digest(t));
    code = rf__ddp_seal(t->ddp, err);
    if (code == RF_EDIVERGED && t->init_missing.code) { /* the others have the folder */
        *err = t->init_missing;
        code = err->code;
    }
    return code;
}

/* One collective of the trainer's own, carried out to its end. */
static int collective(struct trainer *t, enum rf_coll coll, enum rf_type type, const void *send,
                      void *recv, size_t count, struct rf_error *err) {
    struct rf__runner *runner = t->runner;
    struct rf__op_params params = {.call = {.coll = coll,
                                            .type = type,
                                            .redop = RF_SUM,
                                            .send = send,
                                            .recv = recv,
                                            .count = count}};
    struct rf__op *op = NULL;

    int code = runner->ops->start(runner, &params, &op);
    if (!code) {
        code = runner->ops->wait(runner, op, -1, NULL);
    }
    if (code && err) {
        runner->ops->error(runner, err);
    }
    return code;
}

/* In a fixed group what can fail on one member alone before any work is shared is agreed on here:
 * where several failed, as all do for a misspelt name, the first of them speaks for all, and the
 * others learn its reason. `code` and `err` are the member's own. */
static int setup_agree(struct trainer *t, int code, struct rf_error *err) {
    size_t size = (size_t)t->runner->size;
    uint64_t mine = code ? 1 : 0;
    uint64_t *all = rf__alloc(size, sizeof *all);
    size_t first = 0;

    if (!all) {
        return rf__fail(err, RF_ENOMEM, 0, "no memory for the reports of %zu members", size);
    }
    int rc = collective(t, RF_COLL_ALL_GATHER, RF_U64, &mine, all, 1, err);
    while (!rc && first < size && !all[first]) {
        first++;
    }
    if (!rc && first < size && first != (size_t)t->runner->rank) {
        /* Its report is on the way, and ends this. */
        rc = collective(t, RF_COLL_ALLREDUCE, RF_U64, &mine, &mine, 1, err);
        rc = rc ? rc : rf__fail(err, RF_EINTERNAL, 0, "rank %zu failed and went on", first);
    }
    rf__free(all);
    return rc ? rc : code;
}

static void trainer_release(struct trainer *t) {
    rf__ddp_destroy(t->ddp);
    rf__optimizer_destroy(t->optimizer);
    rf__model_destroy(t->model);
    rf__sampler_destroy(t->sampler);
    rf__dataset_free(&t->data);
    rf__free(t->inputs);
    rf__free(t->labels);
    rf__free(t->tokens);
    rf__free(t->numbers);
    rf__free(t->measured);
    rf__free(t->usable);
}

/* Makes sure that an error has its report, and that nobody waits for a member that has given up. In
 * an elastic group why a generation ended is not why this member gives up. */
static int give_up(struct trainer *t, int code, struct rf_error *err) {
    struct rf_error group = {.code = 0};

    if (!t->runner->elastic) {
        t->runner->ops->error(t->runner, &group);
    }
    if (group.code) {
        if (err->code != code) {
            *err = group;
        }
        return code;
    }
    if (err->code != code) {
        (void)rf__fail(err, code, 0, "training failed after step %llu: %s",
                       (unsigned long long)t->result.steps, rf_error_text(code));
    }
    struct rf_error told = *err;
    told.rank = t->runner->rank;
    t->runner->ops->fail(t->runner, &told);
    return code;
}

int rf__train(struct rf__runner *runner, const struct rf__data_io *io,
              const struct rf__train_host *host, struct rf__saver *saver,
              const struct rf_train_options *options, const struct rf_train_callbacks *callbacks,
              struct rf_train_result *result, struct rf_error *err) {
    struct trainer t = {.runner = runner,
                        .saver = saver,
                        .callbacks = callbacks ? *callbacks : (struct rf_train_callbacks){0},
                        .result = {.accuracy = NAN, .test_loss = NAN}};
    struct rf_error local;
    bool agreed = false; /* that it ends here */

    err = err ? err : &local;
    rf__error_clear(err);
    int code = rf__train_options_resolve(options, runner->elastic ? runner->max_size : runner->size,
                                         &t.options, err);
    if (runner->elastic && !t.options.ddp.hash_every) {
        t.options.ddp.hash_every = RF__TRAIN_HASH_EVERY;
    }
    if (!code) {
        code = data_setup(&t, io, err);
    }
    if (!code) {
        const struct rf__model_options model = model_options(&t);
        code = rf__train_memory_check(&t.options, &model, host, err);
    }
    if (!runner->elastic && rf__train_takes_tokens(options)) { /* all look before one takes */
        code = setup_agree(&t, code, err);
        agreed = code != 0;
    }
    if (!code) {
        code = model_setup(&t, io, err);
    }
    if (!runner->elastic && !agreed) {
        code = setup_agree(&t, code, err);
    }
    if (!code) {
        rf__error_clear(err); /* of what was tried on the way */
        code = ddp_setup(&t, err);
    }
    if (!code) {
        code = run(&t, err);
    }
    if (code == RF_EMISMATCH && !err->next[0]) {
        rf__detail(err->next,
                   "give every worker the same model, data, options (--heads, --dropout, "
                   "--lr, ...) and RINGFOLD_* variables");
    }
    if (code) {
        code = give_up(&t, code, err);
    }
    if (!code || t.result.too_bad) {
        *result = t.result;
    }
    trainer_release(&t);
    return code;
}
