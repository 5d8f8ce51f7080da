/* train/ in an elastic group: workers die at many points of a run, come back or come late, and
 * whoever reaches the end holds the same parameters, bit for bit, and has seen each test sample
 * counted once. */
#include "support/elastic_runner.h"
#include "support/indexed_set.h"
#include "train/train.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <unistd.h>

#include <cmocka.h>
#undef fail /* a macro of cmocka, a member of the runner */

enum { STEPS = 18, MOST_FLOATS = 40000 }; /* two epochs of 9 */

struct trainee {
    struct job *job;
    int starts, stop_at; /* asks for a stop when it is asked so often; 0: never */
    int code, asked, epochs;
    struct rf_error err;
    struct rf_train_result result;
    struct rf_train_step last;
    uint64_t steps_seen, retries, redone;
    bool bad_epoch, bad_order;
    float *parameters;
    size_t floats;
    struct memory_files beside; /* indices of the set before it was damaged */
};

struct job {
    struct world world;
    struct trainee trainee[WORLD_WORKERS];
    int first, workers;
    double max_bad; /* of a set that is damaged; 0: it is sound */
};

static void on_step(void *context, const struct rf_train_step *step) {
    struct trainee *t = context;
    t->bad_order = t->bad_order || (t->steps_seen && step->step <= t->last.step) ||
                   step->epoch != (step->step - 1) / 9 + 1 || step->steps != STEPS ||
                   step->samples + step->skipped != (step->step % 9 ? 24 : 8) || step->size < 1;
    t->last = *step;
    t->steps_seen++;
    t->retries += step->retries;
    t->redone += step->redone;
}

static void on_epoch(void *context, const struct rf_train_epoch *epoch) {
    struct trainee *t = context;
    double right = epoch->accuracy * TEST;
    t->epochs++;
    t->bad_epoch = t->bad_epoch || epoch->test_samples != TEST || epoch->step % 9 != 0 ||
                   fabs(right - round(right)) > 1e-9;
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

static bool on_stop(void *context) {
    struct trainee *t = context;
    return ++t->asked == t->stop_at;
}

static int train_once(int id, bool is_first, void *context) {
    struct trainee *t = context;
    const struct rf_train_callbacks callbacks = {
        .step = on_step, .epoch = on_epoch, .tensor = on_tensor, .stop = on_stop, .context = t};
    struct memory_blobs blobs = {{&memory_ops}, false};
    struct memory_files beside;
    struct rf__data_io io = {.files = &blobs.base};
    struct rf_train_options options;

    (void)is_first;
    rf__train_options_init(&options);
    options.data = "set";
    options.optimizer = "adamw";
    options.hidden = 24;
    options.batch = 24;
    options.shards = 6;
    options.epochs = 2;
    t->floats = 0;
    t->steps_seen = 0;
    if (t->job->max_bad > 0) {
        options.max_bad = t->job->max_bad;
        beside = t->beside;
        io.beside = &beside.base;
    }
    return rf__train(&t->job->world.worker[id].base, &io, NULL, NULL, &options, &callbacks,
                     &t->result, &t->err);
}

static void work(int id, void *context) {
    struct job *job = context;
    struct trainee *t = &job->trainee[id];

    if (id < job->first) {
        await_others(&job->world, id);
    }
    t->code = worker_lives(&job->world.worker[id], t->starts, train_once, t);
    worker_leaves(&job->world.worker[id], t->code == 0 && !t->result.late);
}

static struct job *new_job(int first, int workers) {
    struct job *job = calloc(1, sizeof *job);
    if (!job) {
        abort();
    }
    world_open(&job->world, first, workers);
    job->world.ends_all = true;
    job->first = first;
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

/* Runs it; all but `dead` come through, and those that were in at the end agree. Returns how many
 * they are. */
static int run_job(struct job *job, bool stopped) {
    const struct trainee *one = NULL;
    int results = 0;

    alarm(120);
    run_threads(job->workers, work, job);
    alarm(0);
    for (int id = 0; id < job->workers; id++) {
        const struct trainee *t = &job->trainee[id];
        bool died = t->code == RF_ELOST && t->starts == 1;
        if (t->code && !died) {
            print_error("worker %d: %d '%s'\n", id, t->code, t->err.text);
        }
        assert_true(t->code == 0 || died);
        assert_false(t->bad_epoch || t->bad_order);
        if (died || t->result.late) {
            continue;
        }
        one = one ? one : t;
        results++;
        assert_int_equal(t->result.stopped, stopped);
        assert_true(t->floats > 1000);
        assert_int_equal(t->floats, one->floats);
        assert_memory_equal(t->parameters, one->parameters, t->floats * sizeof(float));
        assert_true(t->result.digest != 0);
        assert_int_equal(t->result.digest, one->result.digest);
        assert_int_equal(t->result.digests[0], one->result.digest);
        if (!stopped) {
            assert_int_equal(t->result.steps, STEPS);
            assert_true(t->result.accuracy > 0.3);
            assert_true(t->result.accuracy == one->result.accuracy);
            assert_true(t->result.test_loss == one->result.test_loss);
        }
    }
    assert_true(world_is_content(&job->world));
    return results;
}

static void nobody_dies(void **state) {
    (void)state;
    for (int size = 1; size <= 4; size++) {
        struct job *job = new_job(size, size);
        assert_int_equal(run_job(job, false), size);
        for (int id = 0; id < size; id++) {
            assert_int_equal(job->trainee[id].epochs >= 1, 1);
            assert_int_equal(job->trainee[id].result.samples, 2 * TRAIN);
        }
        free_job(job);
    }
}

/* A step of the way through a run, at some distance. */
static void one_dies_somewhere(void **state) {
    int results = 0, runs = 0;
    uint64_t redone = 0;
    (void)state;
    for (int back = 0; back < 2; back++) {
        int hits = 1;
        for (int at = 1; hits; at += 13) {
            int who = at % 3;
            struct job *job = new_job(3, 3);
            job->trainee[who].starts += back;
            job->world.fault[0] = (struct fault){.kind = FAULT_DIES, .who = who, .at = at};
            results += run_job(job, false);
            runs++;
            hits = job->world.fault[0].hits;
            redone += job->trainee[(who + 1) % 3].redone + job->trainee[(who + 2) % 3].redone;
            free_job(job);
        }
    }
    assert_true(runs > 10 && results >= 2 * runs && redone > 0);
}

static void latecomers_end_with_the_same_bits(void **state) {
    (void)state;
    struct job *job = new_job(2, 4);
    assert_int_equal(run_job(job, false), 4);
    for (int id = 2; id < 4; id++) {
        assert_true(job->trainee[id].steps_seen > 0 && job->trainee[id].steps_seen <= STEPS);
        assert_int_equal(job->world.worker[id].events[RF_EVENT_HEAL], 1);
    }
    free_job(job);
}

/* How much of an epoch was skipped is known to all, also to those that joined within it: they end
 * after the same step. */
static void too_much_damage_ends_latecomers_too(void **state) {
    static const double shares[] = {0.1, 0.25, 0.4};
    uint64_t late = 0;
    (void)state;
    for (size_t k = 0; k < sizeof shares / sizeof *shares; k++) {
        struct job *job = new_job(2, 4);
        const struct trainee *first = &job->trainee[0];
        job->max_bad = shares[k];
        for (int id = 0; id < 4; id++) {
            set_index(&job->trainee[id].beside);
        }
        set_damage();
        alarm(120);
        run_threads(4, work, job);
        alarm(0);
        set_damage();
        for (int id = 0; id < 4; id++) {
            struct trainee *t = &job->trainee[id];
            if (t->steps_seen) {
                late += id >= 2;
                if (t->code != RF_EDATA || t->last.step != first->last.step) {
                    print_error("worker %d: %d '%s' after step %d, not %d\n", id, t->code,
                                t->err.text, (int)t->last.step, (int)first->last.step);
                }
                assert_int_equal(t->code, RF_EDATA);
                assert_int_equal(t->last.step, first->last.step);
            }
            memory_clear(&t->beside);
        }
        assert_true(first->steps_seen > 0 && job->trainee[1].steps_seen > 0);
        free_job(job);
    }
    assert_true(late > 0);
}

static void one_stops_all(void **state) {
    (void)state;
    for (int who = 0; who < 3; who++) {
        struct job *job = new_job(3, 3);
        job->trainee[who].stop_at = 5;
        assert_int_equal(run_job(job, true), 3);
        for (int id = 0; id < 3; id++) {
            assert_int_equal(job->trainee[id].result.steps, 5);
            assert_int_equal(job->trainee[id].epochs, 0);
            assert_true(isnan(job->trainee[id].result.accuracy));
        }
        free_job(job);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nobody_dies),
        cmocka_unit_test(one_dies_somewhere),
        cmocka_unit_test(latecomers_end_with_the_same_bits),
        cmocka_unit_test(too_much_damage_ends_latecomers_too),
        cmocka_unit_test(one_stops_all),
    };
    return cmocka_run_group_tests(tests, data_make, data_drop);
}
