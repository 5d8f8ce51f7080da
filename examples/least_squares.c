/* Least squares by gradient descent, on as many workers as you like. Nothing but the public header
 * is used.
 *
 *     example_least_squares                        alone
 *     ringfold run -n 4 -- example_least_squares   on four workers
 *
 * The model is y = w·x + b. Every sample is made from its number, so there is no data to read:
 * sample i is the same on every worker. The batch of a step is cut into 8 shards, whatever the
 * number of workers: 1, 3 or 8 of them compute the same step, and all print the same loss. Kill one
 * while it runs: the others compute its shards of the step and go on, and it comes back. At the end
 * all hold the same weights, bit for bit, and say so. */
#include <ringfold/ringfold.h>

#include <stdio.h>

enum { FEATURES = 16, SHARDS = 8, SHARD_SAMPLES = 32, STEPS = 200 };

static float weights[FEATURES], bias;

/* A number between -1 and 1 that depends on nothing but its two arguments. */
static float noise(uint64_t sample, uint64_t feature) {
    uint64_t z = (sample * FEATURES + feature + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (float)((z ^ (z >> 31)) >> 40) * 0x1p-23f - 1;
}

/* The shard's samples: adds its gradients to what the shards before it left, and returns the sum of
 * its losses. */
static double shard_compute(const struct rf_shard *shard, float *weights_grad, float *bias_grad) {
    uint64_t first = (shard->step * SHARDS + shard->index) * SHARD_SAMPLES;
    double loss = 0;

    for (uint64_t sample = first; sample < first + SHARD_SAMPLES; sample++) {
        float x[FEATURES];
        float wanted = 0.5f; /* the weights to be found are 0, 1, 2, …, and the bias is 0.5 */
        float got = bias;
        for (int f = 0; f < FEATURES; f++) {
            x[f] = noise(sample, (uint64_t)f);
            wanted += x[f] * (float)f;
            got += x[f] * weights[f];
        }
        float error = got - wanted;
        loss += (double)(error * error);
        for (int f = 0; f < FEATURES; f++) {
            weights_grad[f] += 2 * error * x[f];
        }
        *bias_grad += 2 * error;
    }
    return loss;
}

/* This worker's shards of the step, each added to what those before it left. */
static int shards_run(struct rf_ddp *ddp, bool measure) {
    struct rf_shard shard;
    int code;

    while ((code = rf_ddp_next_shard(ddp, &shard)) > 0) {
        if (measure) { /* there is no test data */
            rf_ddp_shard_samples(ddp, 0);
            code = rf_ddp_shard_done(ddp, 0);
            if (code) {
                return code;
            }
            continue;
        }
        double loss = shard_compute(&shard, rf_ddp_grad(ddp, 0), rf_ddp_grad(ddp, 1));
        rf_ddp_shard_samples(ddp, SHARD_SAMPLES);
        code = rf_ddp_ready(
            ddp, 1); /* as early as possible: averaging starts while you go on computing */
        code = code ? code : rf_ddp_ready(ddp, 0);
        code = code ? code : rf_ddp_shard_done(ddp, loss);
        if (code) {
            return code;
        }
    }
    return code;
}

static void update(struct rf_ddp *ddp) {
    const float rate = 0.3f;

    for (int f = 0; f < FEATURES; f++) {
        weights[f] -= rate * rf_ddp_average(ddp, 0)[f];
    }
    bias -= rate * rf_ddp_average(ddp, 1)[0];
}

/* Step by step: the shards, everybody's average, the same update everywhere. After the last one a
 * measurement, which here is only about the state: all must hold the same. */
static int steps_run(struct rf_comm *comm, struct rf_ddp *ddp, struct rf_error *err) {
    struct rf_step_report report = {0};

    while (!report.measure) {
        struct rf_step step;
        int code = rf_ddp_begin(ddp, &step, err);
        if (!code) {
            code = shards_run(ddp, step.measure);
        }
        if (!code && step.step == STEPS - 1) {
            rf_ddp_request_measure(ddp);
        }
        if (!code) {
            code = rf_ddp_commit(ddp, &report, err);
        }
        if (code == RF_RETRY) {
            report.measure = false;
            continue; /* the group has changed: begin says where it stands now */
        }
        if (code) {
            return code;
        }
        if (!report.measure) {
            update(ddp);
        }
        if (!report.measure && rf_rank(comm) == 0 &&
            (step.step % 40 == 0 || step.step == STEPS - 1)) {
            printf("step %3d  loss %.6f  %llu samples on %d workers\n", (int)step.step + 1,
                   report.loss, (unsigned long long)report.samples, rf_size(comm));
        }
    }
    if (rf_rank(comm) == 0) {
        printf("w[7] = %.4f, b = %.4f, digest 0x%016llx on every worker\n", (double)weights[7],
               (double)bias, (unsigned long long)report.state_digest);
    }
    return 0;
}

static int train(struct rf_comm *comm, struct rf_ddp *ddp, struct rf_error *err) {
    int code = rf_ddp_register(ddp, "weights", weights, FEATURES, err);
    code = code ? code : rf_ddp_register(ddp, "bias", &bias, 1, err);
    code = code ? code : rf_ddp_seal(ddp, err); /* all must start from the same: here from zeros */
    code = code ? code : steps_run(comm, ddp, err);
    if (!code) {
        rf_comm_end(comm); /* nobody who comes now is waited for */
    }
    return code;
}

int main(int argc, char **argv, char **environment) {
    struct rf_options options;
    struct rf_ddp_options ddp_options;
    struct rf_comm *comm = NULL;
    struct rf_ddp *ddp = NULL;
    struct rf_error err = {0};

    (void)argc;
    (void)argv;
    rf_options_init(&options);                                       /* a group of one … */
    int code = rf_options_from_environ(&options, environment, &err); /* … unless launched as more */
    options.elastic = true;                                          /* we know RF_RETRY */
    if (!code) {
        code = rf_comm_create(&options, &comm, &err);
    }
    if (!code) {
        rf_ddp_options_init(&ddp_options);
        ddp_options.shards = SHARDS;
        code = rf_ddp_create(comm, &ddp_options, &ddp, &err);
    }
    if (!code) {
        code = train(comm, ddp, &err);
    }
    if (code) {
        if (comm && !err.code) {
            rf_comm_error(comm, &err);
        }
        fprintf(stderr, "least_squares: %s\n", err.text[0] ? err.text : rf_error_text(code));
    }
    rf_ddp_destroy(ddp);
    rf_comm_destroy(comm);
    return code ? 1 : 0;
}
