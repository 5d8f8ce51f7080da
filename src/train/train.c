/* The training loop, to be read from the top: a step, a measurement, the run. One shard of each
 * kind is in shard.c, what sets the trainer up in setup.c.
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
#include "train/inner.h"

#include "base/mem.h"
#include "base/status.h"
#include "train/memory.h"

#include <math.h>
#include <string.h>

enum { STOP_PATIENCE_MS = 25000, END_PATIENCE_MS = 600000 }; /* for the last checkpoint */

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
    double data = rf__train_seconds(times->data);
    double all = rf__train_seconds(times->all);
    double compute = report->compute_s - data;
    uint64_t samples = report->samples / t->weight;
    struct rf_train_step step = {.step = report->step + 1,
                                 .steps = t->steps,
                                 .epoch = report->step / t->steps_per_epoch + 1,
                                 .loss = report->loss,
                                 .grad_norm = norm,
                                 .lr = rate,
                                 .step_s = all,
                                 .compute_s =
                                     (compute > 0 ? compute : 0) + rf__train_seconds(times->update),
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
    int64_t committed = rf__train_now(t);
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
    rf__train_skipped_count(t, report);
    if (report->samples) {
        rf__optimizer_update(t->optimizer, t->model, average_of, t, rate, scale, number);
    }
    times->update = rf__train_now(t) - committed;
    times->all = rf__train_now(t) - began;
    step_tell(t, report, times, norm, rate);
    t->result.stopped = report->stop;
    return rf__train_check_skipped(t, "training", t->epoch_skipped, t->data.train.count, number,
                                   err);
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
    int64_t at = rf__train_now(t);

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
    int code =
        rf__train_check_skipped(t, "test", report->skipped, t->measured_count, report->step, err);
    if (code) {
        return code;
    }
    result->accuracy = report->samples ? report->tally / (double)report->samples : NAN;
    result->test_loss = report->loss;
    result->eval_s += rf__train_seconds(at - began);
    struct rf_train_epoch epoch = {.epoch =
                                       (report->step + t->steps_per_epoch - 1) / t->steps_per_epoch,
                                   .step = report->step,
                                   .accuracy = result->accuracy,
                                   .test_loss = result->test_loss,
                                   .test_samples = samples,
                                   .test_skipped = report->skipped,
                                   .seconds = rf__train_seconds(at - t->epoch_began),
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
                   rf__train_seconds(rf__train_now(t) - t->saved_at) >= o->checkpoint_s;
    bool by_steps = o->checkpoint_steps && number % o->checkpoint_steps == 0;
    return t->saver && (by_time || by_steps || t->save_missed || number == t->steps);
}

/* What the unit's report says of checkpoints. */
static void save_follow(struct trainer *t, const struct rf_step_report *report) {
    if (report->saved) {
        t->saved_at = rf__train_now(t);
    }
    t->save_missed = report->save_late;
}

void rf__train_checkpoint_told(void *context, const struct rf_checkpoint_news *news) {
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
        code = step->measure ? rf__train_test_shard_run(t, &shard, err)
                             : rf__train_shard_run(t, &shard, times, err);
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
    int64_t began = rf__train_now(t);
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
        began = rf__train_now(t);
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
        rf__train_checkpoint_told(t, &news);
    }
}

static int run(struct trainer *t, struct rf_error *err) {
    struct rf_train_result *result = &t->result;

    memory_measure(t);
    int64_t began = rf__train_now(t);
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
    result->seconds = rf__train_seconds(rf__train_now(t) - began);
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
        code = rf__train_data_setup(&t, io, err);
    }
    if (!code) {
        const struct rf__model_options model = rf__train_model_options_of(&t);
        code = rf__train_memory_check(&t.options, &model, host, err);
    }
    if (!runner->elastic && rf__train_takes_tokens(options)) { /* all look before one takes */
        code = rf__train_agree(&t, code, err);
        agreed = code != 0;
    }
    if (!code) {
        code = rf__train_model_setup(&t, io, err);
    }
    if (!runner->elastic && !agreed) {
        code = rf__train_agree(&t, code, err);
    }
    if (!code) {
        rf__error_clear(err); /* of what was tried on the way */
        code = rf__train_ddp_setup(&t, err);
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
