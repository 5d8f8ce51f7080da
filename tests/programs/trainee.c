/* A worker that trains something whose every step can be checked from its result alone, through the
 * public interface of data-parallel training.
 *
 * trainee STEPS STEP_MS [EXTRA]: 16 shards of 4 samples; shard k's gradient is 4 at place k and 0
 * elsewhere, so the average is 1/16 everywhere if each shard was counted once, whatever happened.
 * The update adds (1 + step % 16) x average to the parameters, which are the sums of these
 * afterwards: exact in float32 for two million steps, so a step that was applied twice or never
 * shows. Every tenth step asks for a measurement, whose tally is 0 + 1 + … + 15. EXTRA more
 * parameters make a model that is not the others'. TRAINEE_CHECKPOINT, _EVERY, _KEEP, _RESUME and
 * _ROLLBACK are where checkpoints go, after how many steps, how many are kept, what to resume from,
 * and whether histories that parted are left for what they have in common. SIGUSR1 makes it twenty
 * times slower, and again as it was. One JSON line for each commit on stdout. */
#include <ringfold/ringfold.h>

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

extern char **environ;

enum { SHARDS = 16, SAMPLES = 4, BULK = 20000, CYCLE = 16 };

struct trainee {
    struct rf_comm *comm;
    struct rf_ddp *ddp;
    uint64_t steps;
    int step_ms;
    uint64_t every; /* steps from checkpoint to checkpoint; 0: none are kept */
    bool save_missed, parted;
    bool is_guest, has_left; /* of a job of another launcher: told to stop, it leaves alone */
    float places[SHARDS], bulk[BULK], extra[16], momentum[SHARDS];
};

static volatile sig_atomic_t stop_asked, slowness = 1;

static void on_signal(int number) {
    (void)number;
    stop_asked = 1;
}

/* Twenty times slower from now on, or as before. */
static void on_slow(int number) {
    (void)number;
    slowness = slowness == 1 ? 20 : 1;
}

static void nap(int ms) {
    struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000l};
    nanosleep(&time, NULL);
}

static int complain(const char *what, const struct rf_error *err) {
    printf("{\"event\": \"error\", \"code\": \"%s\", \"rank\": %d, \"text\": \"%s: %s\"}\n",
           rf_error_name(err->code), err->rank, what, err->text);
    fflush(stdout);
    return 1;
}

static int wrong(const char *what, double found, double wanted, uint64_t step) {
    printf("{\"event\": \"wrong\", \"rank\": 0, \"text\": \"%s is %.9g, not %.9g, at step %" PRIu64
           "\"}\n",
           what, found, wanted, step);
    fflush(stdout);
    return 1;
}

static double rate_of(uint64_t step) {
    return (double)(1 + step % CYCLE);
}

/* The sum of all rates over SHARDS: what each parameter is after so many steps. */
static double wanted_after(uint64_t steps) {
    uint64_t rest = steps % CYCLE, sum = steps / CYCLE * (CYCLE * (CYCLE + 1) / 2);
    return (double)(sum + rest * (rest + 1) / 2) / SHARDS;
}

static const char *const told_names[] = {
    [RF_CHECKPOINT_SAVED] = "saved",       [RF_CHECKPOINT_FAILED] = "failed",
    [RF_CHECKPOINT_BAD] = "bad",           [RF_CHECKPOINT_PARTED] = "parted",
    [RF_CHECKPOINT_RETURNED] = "returned", [RF_CHECKPOINT_NONE] = "none"};

static void told(void *context, const struct rf_checkpoint_news *news) {
    struct trainee *t = context;

    t->parted = t->parted || news->kind == RF_CHECKPOINT_PARTED;
    printf("{\"event\": \"checkpoint\", \"what\": \"%s\", \"id\": %d, \"step\": %" PRIu64
           ", \"name\": \"%s\", \"rolled_back\": %s, \"text\": \"%s\"}\n",
           told_names[news->kind], rf_id(t->comm), news->step, news->name,
           news->rolled_back ? "true" : "false", news->text);
    fflush(stdout);
}

static int keep_checkpoints(struct trainee *t, struct rf_error *err) {
    struct rf_checkpoint_options options;
    const char *every = getenv("TRAINEE_EVERY");

    rf_checkpoint_options_init(&options);
    options.uri = getenv("TRAINEE_CHECKPOINT");
    options.resume = getenv("TRAINEE_RESUME");
    options.keep = getenv("TRAINEE_KEEP") ? atoi(getenv("TRAINEE_KEEP")) : options.keep;
    options.rollback_on_divergence = getenv("TRAINEE_ROLLBACK") != NULL;
    if (!options.uri) {
        return 0;
    }
    t->every = every ? strtoull(every, NULL, 10) : 10;
    return rf_ddp_checkpoint(t->ddp, &options, told, t, err);
}

static int set_up(struct trainee *t, int extra, struct rf_error *err) {
    struct rf_ddp_options options;

    rf_ddp_options_init(&options);
    options.shards = SHARDS;
    options.hash_every = 7;
    int rc = rf_ddp_create(t->comm, &options, &t->ddp, err);
    rc = rc ? rc : rf_ddp_register(t->ddp, "places", t->places, SHARDS, err);
    rc = rc ? rc : rf_ddp_register(t->ddp, "bulk", t->bulk, BULK, err);
    if (extra) {
        rc = rc ? rc : rf_ddp_register(t->ddp, "extra", t->extra, (size_t)extra, err);
    }
    rc = rc ? rc : rf_ddp_register_state(t->ddp, "momentum", t->momentum, sizeof t->momentum, err);
    rc = rc ? rc : keep_checkpoints(t, err);
    return rc ? rc : rf_ddp_seal(t->ddp, err);
}

static int work(struct trainee *t, const struct rf_step *step, const struct rf_shard *shard) {
    int pause = t->step_ms * (step->size > 0 ? step->size : 1) / SHARDS;

    rf_ddp_shard_samples(t->ddp, SAMPLES);
    nap(pause * slowness);
    if (step->measure) {
        rf_ddp_tally(t->ddp, shard->index);
        return rf_ddp_shard_done(t->ddp, 0);
    }
    rf_ddp_grad(t->ddp, 0)[shard->index] += SAMPLES;
    for (int i = 0; i < BULK; i++) {
        rf_ddp_grad(t->ddp, 1)[i] += SAMPLES;
    }
    int rc = rf_ddp_ready(t->ddp, 1);
    rc = rc ? rc : rf_ddp_ready(t->ddp, 0);
    return rc ? rc : rf_ddp_shard_done(t->ddp, (double)shard->index);
}

static int update(struct trainee *t, uint64_t step) {
    const float *places = rf_ddp_average(t->ddp, 0), *bulk = rf_ddp_average(t->ddp, 1);
    float rate = (float)rate_of(step);

    for (int i = 0; i < SHARDS; i++) {
        if (places[i] != 1.0f / SHARDS) {
            return wrong("an average", (double)places[i], 1.0 / SHARDS, step);
        }
        t->places[i] += rate * places[i];
        t->momentum[i] += 1;
    }
    for (int i = 0; i < BULK; i++) {
        t->bulk[i] += rate / SHARDS * bulk[i];
    }
    if ((double)t->places[3] != wanted_after(step + 1) ||
        (double)t->bulk[BULK - 1] != wanted_after(step + 1) ||
        (double)t->momentum[5] != (double)(step + 1)) {
        return wrong("a parameter", (double)t->places[3], wanted_after(step + 1), step);
    }
    return 0;
}

static void tell(const struct trainee *t, const struct rf_step_report *r) {
    printf(
        "{\"event\": \"commit\", \"id\": %d, \"rank\": %d, \"size\": %d, \"generation\": %" PRIu64
        ", \"step\": %" PRIu64 ", \"measure\": %s, \"digest\": \"%016" PRIx64
        "\", \"retries\": %u, \"redone\": %u}\n",
        rf_id(t->comm), rf_rank(t->comm), r->size, r->generation, r->step,
        r->measure ? "true" : "false", r->digest, r->retries, r->redone);
    fflush(stdout);
}

static int train(struct trainee *t, struct rf_error *err) {
    uint64_t done = 0;
    bool stopped = false, over = false;

    while (!stopped) {
        struct rf_step step;
        struct rf_shard shard;
        struct rf_step_report report;

        int rc = rf_ddp_begin(t->ddp, &step, err);
        while (rc == 0 && rf_ddp_next_shard(t->ddp, &shard) > 0) {
            rc = work(t, &step, &shard);
        }
        if (rc == 0 && step.step % 10 == 9 && !step.measure) {
            rf_ddp_request_measure(t->ddp);
        }
        bool is_last = (stop_asked && !t->is_guest) || t->parted || step.step + 1 == t->steps;
        if (rc == 0 && ((stop_asked && !t->is_guest) || t->parted)) {
            rf_ddp_request_stop(t->ddp);
        }
        if (rc == 0 && t->every && !step.measure &&
            (is_last || t->save_missed || (step.step + 1) % t->every == 0)) {
            rf_ddp_request_checkpoint(t->ddp, is_last);
        }
        if (rc == 0 && t->every && is_last) {
            rf_ddp_request_measure(t->ddp);
        }
        rc = rc ? rc : rf_ddp_commit(t->ddp, &report, err);
        if (rc == RF_RETRY) {
            continue;
        }
        if (rc) {
            return complain("training", err);
        }
        if (report.samples != SHARDS * SAMPLES) {
            return wrong("the number of samples", (double)report.samples, SHARDS * SAMPLES,
                         report.step);
        }
        if (report.measure && report.tally != SHARDS * (SHARDS - 1) / 2) {
            return wrong("a tally", report.tally, SHARDS * (SHARDS - 1) / 2, report.step);
        }
        tell(t, &report);
        if (!report.measure && update(t, step.step)) {
            return 1;
        }
        t->save_missed = report.save_late;
        done = report.measure ? step.step : step.step + 1;
        over = over || report.stop || done >= t->steps;
        t->has_left = stop_asked && t->is_guest;
        stopped = t->has_left ||
                  (over && (!t->every || report.measure)); /* the last checkpoint needs one more */
    }
    if (t->every && rf_ddp_finish_checkpoint(t->ddp, 10000, err)) {
        return complain("the last checkpoint", err);
    }
    printf("{\"event\": \"done\", \"id\": %d, \"rank\": %d, \"steps\": %" PRIu64
           ", \"value\": %.9g}\n",
           rf_id(t->comm), rf_rank(t->comm), done, (double)t->places[0]);
    fflush(stdout);
    return 0;
}

int main(int argc, char **argv) {
    static struct trainee t;
    struct rf_options options;
    struct rf_error err = {0};

    if (argc < 3) {
        fprintf(stderr, "usage: trainee STEPS STEP_MS [EXTRA]\n");
        return 64;
    }
    t.steps = strtoull(argv[1], NULL, 10);
    t.step_ms = atoi(argv[2]);
    t.is_guest = getenv("RINGFOLD_GUEST") != NULL;
    int extra = argc > 3 ? atoi(argv[3]) : 0;
    signal(SIGTERM, on_signal);
    signal(SIGUSR1, on_slow);
    rf_options_init(&options);
    options.elastic = true;
    if (rf_options_from_environ(&options, environ, &err) ||
        rf_comm_create(&options, &t.comm, &err)) {
        return complain("joining", &err);
    }
    int status =
        set_up(&t, extra < 16 ? extra : 16, &err) ? complain("setting up", &err) : train(&t, &err);
    if (status == 0 && !t.has_left) {
        rf_comm_end(t.comm);
    }
    rf_ddp_destroy(t.ddp);
    rf_comm_destroy(t.comm);
    return status;
}
