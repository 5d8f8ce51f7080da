/* What each worker trains: three parameters of odd sizes, whose gradients say which shards of which
 * step went into them. Tensor 0: element s is a number of (step, shard s), so that a shard that was
 * left out or used twice shows at its own place. Tensor 1: every element sums a number of every
 * shard. Tensor 2: the samples themselves, whose average is 1. All are integers that float32 sums
 * exactly, so the averages do not depend on who sums. */
#include "sim.h"

#include <string.h>

int sim_elements(int tensor) {
    static const int elements[SIM_TENSORS] = {SIM_SHARDS + 1, 37, 1};
    return elements[tensor];
}

static uint64_t number_of(uint64_t a, uint64_t b, uint64_t c) {
    struct rf__rng rng = rf__rng(a, b, c);
    return rf__rng_u64(&rng);
}

uint64_t sim_samples(uint64_t step, uint32_t shard, bool measure) {
    uint64_t draw = number_of(step, shard, measure ? 77 : 7) % 16;
    return draw == 0 ? 0 : 1 + draw % 3; /* one shard in sixteen could not be read */
}

float sim_gradient(uint64_t step, uint32_t shard, int tensor, int element) {
    if (sim_samples(step, shard, false) == 0) {
        return 0;
    }
    switch (tensor) {
    case 0:
        return element == (int)shard ? (float)(1 + number_of(step, shard, 1) % 4095) : 0;
    case 1:
        return (float)(number_of(step, shard, 100 + (uint64_t)element) % 256) - 128;
    default:
        return (float)sim_samples(step, shard, false);
    }
}

float sim_rate(uint64_t step) {
    return 1.0f / (float)(4 + step % 8);
}

double sim_score(uint32_t shard) {
    return (double)(1 + number_of(5, shard, 9) % 1000);
}

/* Who begins the job has its initial state; who comes later has what no other has, so that a state
 * that was not copied shows. */
static void initialise(struct sim_worker *worker) {
    bool first = rf__group_state(worker->group) == RF__GROUP_RUNNING;
    struct rf__rng rng = rf__rng(SIM_INITIAL, first ? 0 : worker->start, 3);

    for (int t = 0; t < SIM_TENSORS; t++) {
        for (int i = 0; i < sim_elements(t); i++) {
            worker->param[t][i] = (float)(rf__rng_below(&rng, 2001)) - 1000;
        }
    }
    memset(worker->moment, 0, sizeof worker->moment);
    worker->applied = 0;
}

static int set_up(struct sim_worker *worker, struct rf_ddp **ddp, struct rf_error *err) {
    struct sim *sim = worker->sim;
    struct rf_ddp_options options;
    static const char *const names[SIM_TENSORS] = {"shards", "sums", "ones"};

    rf__ddp_options_init(&options);
    options.shards = SIM_SHARDS;
    options.first_bucket_bytes = options.bucket_bytes = sim->bucket_bytes;
    options.hash_every = sim->hash_every;
    options.algorithm = sim->algorithm;
    int rc = rf__ddp_create(&worker->runner, &options, ddp, err);
    for (int t = 0; t < SIM_TENSORS && rc == 0; t++) {
        rc = rf__ddp_register(*ddp, names[t], worker->param[t], (size_t)sim_elements(t), err);
    }
    if (rc == 0) {
        rc = rf__ddp_register_state(*ddp, "moment", worker->moment, sizeof worker->moment, err);
    }
    if (rc == 0) {
        rc = rf__ddp_register_state(*ddp, "applied", &worker->applied, sizeof worker->applied, err);
    }
    return rc ? rc : rf__ddp_seal(*ddp, err);
}

static void compute(struct sim_worker *worker) {
    struct sim *sim = worker->sim;
    int64_t ns = sim->compute / 2 + (int64_t)rf__rng_below(&sim->rng, (uint64_t)sim->compute);

    sim_sleep(worker, sim->now < worker->slow_until ? ns * worker->slow : ns);
}

static int train_shard(struct sim_worker *worker, struct rf_ddp *ddp, const struct rf_step *step,
                       const struct rf_shard *shard) {
    int rc = 0;

    rf__ddp_shard_samples(ddp, sim_samples(step->step, shard->index, step->measure));
    if (step->measure) {
        compute(worker);
        rf__ddp_tally(ddp, sim_score(shard->index));
        return rf__ddp_shard_done(ddp, 1);
    }
    for (int t = SIM_TENSORS - 1; t >= 0 && rc == 0; t--) {
        compute(worker);
        float *gradient = rf__ddp_grad(ddp, t);
        for (int i = 0; i < sim_elements(t) && gradient; i++) {
            gradient[i] += sim_gradient(step->step, shard->index, t, i);
        }
        rc = rf__ddp_ready(ddp, t);
    }
    return rc ? rc : rf__ddp_shard_done(ddp, 1);
}

static void update(struct sim_worker *worker, const struct rf_ddp *ddp, uint64_t step) {
    float rate = sim_rate(step);

    for (int t = 0; t < SIM_TENSORS; t++) {
        const float *average = rf__ddp_average(ddp, t);
        for (int i = 0; i < sim_elements(t) && average; i++) {
            if (t == 1) {
                worker->moment[i] = 0.5f * worker->moment[i] + average[i];
                worker->param[t][i] -= rate * worker->moment[i];
            } else {
                worker->param[t][i] -= rate * average[i];
            }
        }
    }
    worker->applied++;
}

/* One unit: 0 to go on, 1 the job is done, or the error. */
static int unit(struct sim_worker *worker, struct rf_ddp *ddp, struct rf_error *err) {
    struct sim *sim = worker->sim;
    struct rf_step step;
    struct rf_shard shard;
    struct rf_step_report report;

    int rc = rf__ddp_begin(ddp, &step, err);
    if (rc) {
        return rc;
    }
    if (!worker->dying) {
        sim_check_begin(worker, &step);
    }
    while (rc == 0 && (rc = rf__ddp_next_shard(ddp, &shard)) > 0) {
        rc = train_shard(worker, ddp, &step, &shard);
    }
    if (rc) {
        return rc;
    }
    if (sim->measure_every && !step.measure && step.step % sim->measure_every == 2) {
        rf__ddp_request_measure(ddp);
    }
    if (sim->may_stop) {
        rf__ddp_request_stop(ddp);
    }
    rc = rf__ddp_commit(ddp, &report, err);
    if (rc == RF_RETRY) {
        sim_trace(sim, worker->id, "retries step %llu", (unsigned long long)step.step);
        return 0;
    }
    if (rc || worker->dying) {
        return rc;
    }
    sim_check_commit(worker, ddp, &step, &report);
    if (!step.measure) {
        update(worker, ddp, step.step);
        sim_check_update(worker, step.step + 1);
    }
    return report.stop ? 1 : 0;
}

void sim_program(void *context) {
    struct sim_worker *worker = context;
    struct sim *sim = worker->sim;
    struct rf_ddp *ddp = NULL;
    struct rf_error err = {.code = 0};

    sim_wait(worker, SIM_WAIT_PLACE, NULL);
    if (!worker->dying && rf__group_state(worker->group) == RF__GROUP_FAILED) {
        rf__group_error(worker->group, &err);
    }
    int rc = worker->dying ? RF_ELOST : err.code;
    if (rc == 0 && !worker->runner.elastic) {
        worker->runner.generation = rf__group_generation(worker->group);
        rf__group_error(worker->group, &err);
        rc = err.code;
    }
    initialise(worker);
    rc = rc ? rc : set_up(worker, &ddp, &err);
    while (rc == 0 && !worker->is_to_go) {
        rc = unit(worker, ddp, &err);
    }
    if (rc == 1 && worker->runner.elastic && !worker->dying) {
        rf__group_end(worker->group);
    }
    rf__ddp_destroy(ddp);
    if (!worker->dying) {
        worker->finished = rc >= 0;
        worker->code = rc;
        sim_trace(sim, worker->id, "its program ends with %d: %s", rc, rc < 0 ? err.text : "well");
        sim_check_end(worker, &err);
        rf__group_leave(worker->group, sim_local(worker));
        sim_wait(worker, SIM_WAIT_LEFT, NULL);
    }
}
