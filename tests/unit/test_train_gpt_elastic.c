/* train/ with gpt in an elastic group: a worker dies at many points of a run, within steps and
 * measurements, and comes back or not. Whoever reaches the end holds the same parameters, bit for
 * bit, and what the undisturbed run has but for rounding: the masks of dropout too are the samples'
 * own. */
#include "support/elastic_runner.h"
#include "support/token_set.h"
#include "train/train.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <unistd.h>

#include <cmocka.h>
#undef fail /* a macro of cmocka, a member of the runner */

enum { STEPS = 10, MEASURED = 9, MOST_FLOATS = 1 << 15 };

struct trainee {
    struct job *job;
    int starts, code, epochs;
    struct rf_error err;
    struct rf_train_result result;
    uint64_t steps, redone;
    bool wrong;
    float *parameters;
    size_t floats;
};

struct job {
    struct world world;
    struct trainee trainee[WORLD_WORKERS];
    int workers;
    /* A folder of first weights that is not there is given to who comes back; or to all. */
    bool gone, gone_from_start;
    int odd; /* has other heads; 0: nobody */
};

static void on_step(void *context, const struct rf_train_step *step) {
    struct trainee *t = context;
    t->wrong = t->wrong || step->samples != (step->step % 5 ? 12 : 2) || step->skipped != 0;
    t->steps++;
    t->redone += step->redone;
}

static void on_epoch(void *context, const struct rf_train_epoch *epoch) {
    struct trainee *t = context;
    double right = epoch->accuracy * MEASURED * SET_CONTEXT;
    t->epochs++;
    t->wrong = t->wrong || epoch->test_samples != MEASURED || fabs(right - round(right)) > 1e-9;
}

static void on_tensor(void *context, bool gradient, const char *name, const float *data,
                      const size_t *shape, int dims) {
    struct trainee *t = context;
    size_t count = 1;
    (void)name;
    for (int i = 0; i < dims; i++) {
        count *= shape[i];
    }
    if (!gradient && t->floats + count <= MOST_FLOATS) {
        memcpy(t->parameters + t->floats, data, count * sizeof *data);
        t->floats += count;
    }
}

static int train_once(int id, bool is_first, void *context) {
    struct trainee *t = context;
    const struct rf_train_callbacks callbacks = {
        .step = on_step, .epoch = on_epoch, .tensor = on_tensor, .context = t};
    struct token_blobs blobs = {{&token_ops}, false};
    const struct rf__data_io io = {.files = &blobs.base};
    struct rf_train_options options;

    rf__train_options_init(&options);
    bool gone = (t->job->gone && !is_first) || t->job->gone_from_start;
    options.init = gone ? "gone" : NULL;
    options.model = "gpt";
    options.data = "set";
    options.depth = 1;
    options.width = 16;
    options.heads = t->job->odd && id == t->job->odd ? 4 : 2;
    options.context = SET_CONTEXT;
    options.dropout = 0.2;
    options.batch = 12;
    options.shards = 6;
    options.epochs = 2;
    options.lr = 0.01;
    options.eval_every = 3;
    options.eval_samples = MEASURED;
    t->floats = 0;
    return rf__train(&t->job->world.worker[id].base, &io, NULL, NULL, &options, &callbacks,
                     &t->result, &t->err);
}

static void work(int id, void *context) {
    struct job *job = context;
    struct trainee *t = &job->trainee[id];

    t->code = worker_lives(&job->world.worker[id], t->starts, train_once, t);
    worker_leaves(&job->world.worker[id], t->code == 0 && !t->result.late);
}

static struct job *new_job(int workers) {
    struct job *job = calloc(1, sizeof *job);
    if (!job) {
        abort();
    }
    world_open(&job->world, workers, workers);
    job->world.ends_all = true;
    job->workers = workers;
    for (int id = 0; id < workers; id++) {
        job->trainee[id] = (struct trainee){
            .job = job, .starts = 1, .parameters = calloc(MOST_FLOATS, sizeof(float))};
    }
    return job;
}

static void free_job(struct job *job) {
    for (int id = 0; id < job->workers; id++) {
        free(job->trainee[id].parameters);
    }
    world_close(&job->world);
    free(job);
}

/* Runs it, and returns one of those who were there in the end. */
static const struct trainee *run_job(struct job *job, const struct trainee *undisturbed) {
    const struct trainee *one = NULL;

    alarm(200);
    run_threads(job->workers, work, job);
    alarm(0);
    for (int id = 0; id < job->workers; id++) {
        const struct trainee *t = &job->trainee[id];
        bool died = t->code == RF_ELOST && t->starts == 1;
        if (t->code && !died) {
            print_error("worker %d: %d '%s'\n", id, t->code, t->err.text);
        }
        assert_true(t->code == 0 || died);
        assert_false(t->wrong);
        if (died || t->result.late) {
            continue;
        }
        one = one ? one : t;
        assert_int_equal(t->result.steps, STEPS);
        assert_int_equal(t->result.digest, one->result.digest);
        assert_true(t->floats > 1000 && t->floats == one->floats);
        assert_memory_equal(t->parameters, one->parameters, t->floats * sizeof(float));
        assert_true(t->result.test_loss == one->result.test_loss);
    }
    assert_non_null(one);
    if (undisturbed) {
        double difference = 0, size = 0;
        for (size_t i = 0; i < one->floats; i++) {
            double d = (double)one->parameters[i] - undisturbed->parameters[i];
            difference += d * d;
            size += (double)one->parameters[i] * one->parameters[i];
        }
        assert_true(sqrt(difference) <= 1e-4 * sqrt(size));
    }
    assert_true(world_is_content(&job->world));
    return one;
}

static void one_dies_somewhere(void **state) {
    uint64_t redone = 0;
    int runs = 0;
    (void)state;
    struct job *whole = new_job(3);
    const struct trainee *undisturbed = run_job(whole, NULL);
    assert_int_equal(undisturbed->epochs, 5); /* after steps 3, 5, 6, 9 and 10 */
    for (int back = 0; back < 2; back++) {
        int hits = 1;
        for (int at = 1; hits; at += 11) {
            int who = at % 3;
            struct job *job = new_job(3);
            job->trainee[who].starts += back;
            job->world.fault[0] = (struct fault){.kind = FAULT_DIES, .who = who, .at = at};
            run_job(job, undisturbed);
            hits = job->world.fault[0].hits;
            redone += job->trainee[(who + 1) % 3].redone + job->trainee[(who + 2) % 3].redone;
            runs++;
            free_job(job);
        }
    }
    assert_true(runs > 10 && redone > 0);
    free_job(whole);
}

/* A worker that comes back has the others' state, and needs no first weights. */
static void first_weights_may_be_gone_on_coming_back(void **state) {
    (void)state;
    struct job *whole = new_job(3), *job = new_job(3);
    const struct trainee *undisturbed = run_job(whole, NULL);
    job->gone = true;
    job->trainee[1].starts = 2;
    job->world.fault[0] = (struct fault){.kind = FAULT_DIES, .who = 1, .at = 60};
    run_job(job, undisturbed);
    assert_int_equal(job->world.fault[0].hits, 1);
    free_job(job);
    free_job(whole);
}

/* Its tensors have the same shapes, and its gradients are of another function. */
static void other_heads_end_all(void **state) {
    (void)state;
    for (int odd = 1; odd < 3; odd++) {
        struct job *job = new_job(3);
        job->odd = odd;
        job->world.may_differ = true;
        alarm(200);
        run_threads(3, work, job);
        alarm(0);
        for (int id = 0; id < 3; id++) {
            const struct trainee *t = &job->trainee[id];
            assert_int_equal(t->code, RF_EMISMATCH);
            assert_int_equal(t->steps, 0);
            assert_non_null(strstr(t->err.text, "of 3 registered other tensors or options"));
            assert_non_null(strstr(t->err.next, "the same model, data, options"));
        }
        free_job(job);
    }
}

static void nobody_begins_without_its_first_weights(void **state) {
    (void)state;
    struct job *job = new_job(1);
    job->gone_from_start = true;
    alarm(200);
    run_threads(1, work, job);
    alarm(0);
    assert_int_equal(job->trainee[0].code, RF_ENOTFOUND);
    assert_int_equal(job->trainee[0].steps, 0);
    free_job(job);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_dies_somewhere),
        cmocka_unit_test(first_weights_may_be_gone_on_coming_back),
        cmocka_unit_test(other_heads_end_all),
        cmocka_unit_test(nobody_begins_without_its_first_weights),
    };
    return cmocka_run_group_tests(tests, token_set_make, token_set_drop);
}
