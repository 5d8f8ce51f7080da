/* train/: the loop over a group of threads. The group's runner carries each collective out as it is
 * started: everybody comes, rank 0's order of addition, everybody leaves. Data is in memory, read
 * through a blob interface of the test's own: ten classes that a network can tell apart. */
#include "base/mem.h"
#include "base/status.h"
#include "os/clock.h"
#include "support/indexed_set.h"
#include "support/threads.h"
#include "train/train.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { RANKS = 4, STEPS_KEPT = 64, TENSORS_KEPT = 16 };

/* --- the group ----------------------------------------------------------------------------------
 */

struct meeting {
    pthread_mutex_t lock;
    pthread_cond_t turned;
    int size, present;
    uint64_t turn;
    struct rf_error error; /* code: the group is revoked */
    struct rf__op_params posted[RANKS];
};

struct fake_runner {
    struct rf__runner base;
    struct meeting *meeting;
};

struct rf__op {
    int code;
};

/* Waits for all ranks; an error once the group is revoked. */
static int meet(struct meeting *m) {
    pthread_mutex_lock(&m->lock);
    uint64_t turn = m->turn;
    if (!m->error.code && ++m->present == m->size) {
        m->present = 0;
        m->turn++;
        pthread_cond_broadcast(&m->turned);
    }
    while (turn == m->turn && !m->error.code) {
        pthread_cond_wait(&m->turned, &m->lock);
    }
    int code = turn == m->turn ? m->error.code : RF_OK;
    pthread_mutex_unlock(&m->lock);
    return code;
}

static void sum_into(const struct meeting *m, enum rf_type type, void *out, size_t count) {
    for (int r = 0; r < m->size; r++) {
        const void *in = m->posted[r].call.send;
        for (size_t i = 0; i < count; i++) {
            if (type == RF_F32) {
                ((float *)out)[i] = (r ? ((float *)out)[i] : 0) + ((const float *)in)[i];
            } else if (type == RF_F64) {
                ((double *)out)[i] = (r ? ((double *)out)[i] : 0) + ((const double *)in)[i];
            } else {
                assert_int_equal(rf_type_size(type), 8);
                ((uint64_t *)out)[i] = (r ? ((uint64_t *)out)[i] : 0) + ((const uint64_t *)in)[i];
            }
        }
    }
}

static int carry_out(struct fake_runner *runner, const struct rf__op_params *params) {
    struct meeting *m = runner->meeting;
    const struct rf_call *call = &params->call;
    size_t bytes = call->count * rf_type_size(call->type);
    int rank = runner->base.rank;
    unsigned char *made = NULL;

    m->posted[rank] = *params;
    int code = meet(m);
    if (code) {
        return code;
    }
    for (int r = 0; r < m->size; r++) {
        assert_int_equal(m->posted[r].call.coll, call->coll);
        assert_int_equal(m->posted[r].call.count, call->count);
    }
    if (call->coll == RF_COLL_ALLREDUCE) {
        assert_int_equal(call->redop, RF_SUM);
        made = calloc(1, bytes + 1);
        sum_into(m, call->type, made, call->count);
        if (params->divisor) {
            assert_int_equal(call->type, RF_F32);
            for (size_t i = 0; i < call->count; i++) {
                ((float *)(void *)made)[i] =
                    (float)((double)((float *)(void *)made)[i] / *params->divisor);
            }
        }
    } else if (call->coll == RF_COLL_ALL_GATHER) {
        made = calloc((size_t)m->size, bytes + 1);
        for (int r = 0; r < m->size; r++) {
            memcpy(made + (size_t)r * bytes, m->posted[r].call.send, bytes);
        }
        bytes *= (size_t)m->size;
    } else if (call->coll == RF_COLL_BROADCAST) {
        made = calloc(1, bytes + 1);
        memcpy(made, m->posted[call->root].call.send, bytes);
    } else {
        fail_msg("collective '%s' is unknown to the test", rf_coll_name(call->coll));
    }
    code = meet(m); /* all have read */
    if (!code) {
        memcpy(call->recv, made, bytes);
    }
    free(made);
    return code ? code : meet(m); /* all have written */
}

static int fake_start(struct rf__runner *runner, const struct rf__op_params *params,
                      struct rf__op **out) {
    struct rf__op *op = calloc(1, sizeof *op);
    op->code = carry_out((struct fake_runner *)runner, params);
    *out = op;
    return RF_OK;
}

static int fake_test(struct rf__runner *runner, struct rf__op *op) {
    (void)runner;
    return op->code ? op->code : 1;
}

static int fake_wait(struct rf__runner *runner, struct rf__op *op, int timeout_ms,
                     int64_t *busy_ns) {
    (void)runner;
    (void)timeout_ms;
    if (busy_ns) {
        *busy_ns = 1000;
    }
    int code = op->code;
    free(op);
    return code;
}

static void fake_error(struct rf__runner *runner, struct rf_error *out) {
    struct meeting *m = ((struct fake_runner *)runner)->meeting;
    pthread_mutex_lock(&m->lock);
    *out = m->error;
    pthread_mutex_unlock(&m->lock);
}

static void fake_fail(struct rf__runner *runner, const struct rf_error *error) {
    struct meeting *m = ((struct fake_runner *)runner)->meeting;
    pthread_mutex_lock(&m->lock);
    if (!m->error.code) {
        m->error = *error;
    }
    pthread_cond_broadcast(&m->turned);
    pthread_mutex_unlock(&m->lock);
}

static int fake_alloc(struct rf__runner *runner, size_t bytes, void **out, struct rf_error *err) {
    (void)runner;
    *out = rf__alloc_aligned(bytes);
    return *out ? RF_OK : rf__fail(err, RF_ENOMEM, 0, "no memory");
}

static void fake_release(struct rf__runner *runner, void *memory) {
    (void)runner;
    rf__free(memory);
}

static int64_t fake_now(struct rf__runner *runner) {
    (void)runner;
    return rf__now();
}

static const struct rf__runner_ops fake_ops = {.start = fake_start,
                                               .test = fake_test,
                                               .wait = fake_wait,
                                               .error = fake_error,
                                               .fail = fake_fail,
                                               .alloc = fake_alloc,
                                               .release = fake_release,
                                               .now = fake_now};

/* --- one worker, and what it saw ----------------------------------------------------------------
 */

struct tensor_copy {
    char name[64];
    float *data;
    size_t count;
};

struct worker {
    struct fake_runner runner;
    struct memory_blobs blobs;
    struct memory_files beside; /* indices; none where it has no operations */
    struct rf_train_options options;
    uint64_t stop_at; /* asks for a stop in this step; 0: never */

    int code;
    struct rf_error err;
    struct rf_train_result result;
    struct rf_train_start start;
    int starts, epochs;
    uint64_t steps, asked;
    struct rf_train_step seen[STEPS_KEPT];
    struct rf_train_epoch last_epoch;
    unsigned char bad[TRAIN]; /* how often each sample was told of */
    bool wrong_bad;           /* one of them with something else than the damaged block */
    struct tensor_copy gradients[TENSORS_KEPT], parameters[TENSORS_KEPT];
    int gradient_count, parameter_count;
};

static void on_start(void *context, const struct rf_train_start *start) {
    struct worker *w = context;
    w->start = *start;
    w->starts++;
}

static void on_step(void *context, const struct rf_train_step *step) {
    struct worker *w = context;
    if (w->steps < STEPS_KEPT) {
        w->seen[w->steps] = *step;
    }
    w->steps++;
}

static void on_epoch(void *context, const struct rf_train_epoch *epoch) {
    struct worker *w = context;
    w->last_epoch = *epoch;
    w->epochs++;
}

static void on_tensor(void *context, bool gradient, const char *name, const float *data,
                      const size_t *shape, int dims) {
    struct worker *w = context;
    int *count = gradient ? &w->gradient_count : &w->parameter_count;
    struct tensor_copy *copy = &(gradient ? w->gradients : w->parameters)[(*count)++];
    size_t elements = 1;
    for (int i = 0; i < dims; i++) {
        elements *= shape[i];
    }
    snprintf(copy->name, sizeof copy->name, "%s", name);
    copy->count = elements;
    copy->data = malloc(elements * sizeof *data);
    memcpy(copy->data, data, elements * sizeof *data);
}

static void on_bad(void *context, const struct rf_train_bad *bad) {
    struct worker *w = context;
    w->wrong_bad = w->wrong_bad || bad->block != BAD_BLOCK || bad->measure || !bad->count ||
                   bad->count > RF_TRAIN_BAD_SAMPLES || bad->rank != w->runner.base.rank ||
                   bad->id != bad->rank || bad->offset != BAD_BLOCK * RF__INDEX_BLOCK ||
                   strcmp(bad->file, disk[0].name) || !strstr(bad->cause, "mismatch: ") ||
                   bad->step != w->steps + 1 || bad->epoch != w->steps / 9 + 1;
    for (uint32_t i = 0; i < bad->count; i++) {
        w->bad[bad->samples[i]]++;
    }
}

static bool on_stop(void *context) {
    struct worker *w = context;
    w->asked++;
    return w->asked == w->stop_at;
}

struct group {
    struct meeting meeting;
    struct worker workers[RANKS];
    int size;
};

static void work(int rank, void *context) {
    struct group *g = context;
    struct worker *w = &g->workers[rank];
    const struct rf_train_callbacks callbacks = {.start = on_start,
                                                 .step = on_step,
                                                 .epoch = on_epoch,
                                                 .tensor = on_tensor,
                                                 .stop = on_stop,
                                                 .bad = on_bad,
                                                 .context = w};
    const struct rf__data_io io = {.files = &w->blobs.base,
                                   .beside = w->beside.base.ops ? &w->beside.base : NULL};
    w->code =
        rf__train(&w->runner.base, &io, NULL, NULL, &w->options, &callbacks, &w->result, &w->err);
}

static struct group *group_make(int size) {
    struct group *g = calloc(1, sizeof *g);
    g->size = size;
    g->meeting.size = size;
    pthread_mutex_init(&g->meeting.lock, NULL);
    pthread_cond_init(&g->meeting.turned, NULL);
    for (int r = 0; r < size; r++) {
        struct worker *w = &g->workers[r];
        w->runner = (struct fake_runner){
            {.ops = &fake_ops, .rank = r, .size = size, .generation = 1}, &g->meeting};
        w->blobs = (struct memory_blobs){{&memory_ops}, false};
        rf__train_options_init(&w->options);
        w->options.data = "set";
        w->options.optimizer = "sgd";
        w->options.hidden = 24;
        w->options.batch = 24;
        w->options.shards = 12;
        w->options.epochs = 1;
    }
    return g;
}

static void group_run(struct group *g) {
    run_threads(g->size, work, g);
}

/* Runs it, and every worker must have come through. */
static void group_train(struct group *g) {
    group_run(g);
    for (int r = 0; r < g->size; r++) {
        if (g->workers[r].code) {
            fail_msg("rank %d: %d '%s'", r, g->workers[r].code, g->workers[r].err.text);
        }
    }
}

static void group_drop(struct group *g) {
    for (int r = 0; r < g->size; r++) {
        struct worker *w = &g->workers[r];
        for (int i = 0; i < w->gradient_count; i++) {
            free(w->gradients[i].data);
        }
        for (int i = 0; i < w->parameter_count; i++) {
            free(w->parameters[i].data);
        }
        memory_clear(&w->beside);
    }
    pthread_cond_destroy(&g->meeting.turned);
    pthread_mutex_destroy(&g->meeting.lock);
    free(g);
}

/* --- tests --------------------------------------------------------------------------------------
 */

static void one_worker_learns_and_tells(void **state) {
    (void)state;
    struct group *g = group_make(1);
    struct worker *w = &g->workers[0];
    w->options.epochs = 4;
    w->options.shards = 0;
    group_train(g);
    assert_int_equal(w->starts, 1);
    assert_int_equal(w->start.shards, 1);
    assert_int_equal(w->start.train_samples, TRAIN);
    assert_int_equal(w->start.test_samples, TEST);
    assert_int_equal(w->start.steps_per_epoch, 9); /* 8 of 24 and one of 8 */
    assert_int_equal(w->start.memory.parameters, w->start.parameters * 4);
    assert_int_equal(w->steps, 36);
    assert_int_equal(w->result.steps, 36);
    assert_int_equal(w->result.samples, 4 * TRAIN);
    assert_int_equal(w->epochs, 4);
    assert_int_equal(w->last_epoch.test_samples, TEST);
    assert_true(w->result.accuracy > 0.9);
    assert_true(w->result.accuracy == w->last_epoch.accuracy);
    assert_true(w->seen[35].loss < w->seen[0].loss / 2);
    assert_false(w->result.stopped);
    assert_int_equal(w->result.digest, w->result.digests[0]);
    assert_true(w->gradient_count > 1 && w->gradient_count == w->parameter_count);
    for (uint64_t i = 0; i < 36; i++) {
        assert_int_equal(w->seen[i].step, i + 1);
        assert_int_equal(w->seen[i].epoch, i / 9 + 1);
        assert_int_equal(w->seen[i].samples, i % 9 == 8 ? 8 : 24);
        assert_true(w->seen[i].lr <= 0.05 && w->seen[i].lr >= 0.005 - 1e-12);
    }
    group_drop(g);
}

static void the_same_seed_gives_the_same_bits(void **state) {
    uint64_t digests[3];
    (void)state;
    for (int k = 0; k < 3; k++) {
        struct group *g = group_make(2);
        for (int r = 0; r < 2; r++) {
            g->workers[r].options.seed = k < 2 ? 5 : 6;
        }
        group_train(g);
        digests[k] = g->workers[0].result.digest;
        group_drop(g);
    }
    assert_int_equal(digests[0], digests[1]);
    assert_int_not_equal(digests[0], digests[2]);
}

/* The batch does not depend on the number of workers: the losses agree but for rounding, and every
 * worker ends with the same bits. */
static void the_batch_is_the_same_for_any_number_of_workers(void **state) {
    double losses[RANKS + 1][STEPS_KEPT];
    double accuracy[RANKS + 1];
    (void)state;
    for (int size = 1; size <= RANKS; size++) {
        struct group *g = group_make(size);
        for (int r = 0; r < size; r++) {
            g->workers[r].options.optimizer = "adamw";
            g->workers[r].options.epochs = 2;
        }
        group_train(g);
        const struct worker *first = &g->workers[0];
        assert_int_equal(first->result.samples, 2 * TRAIN);
        for (int r = 0; r < size; r++) {
            const struct worker *w = &g->workers[r];
            assert_int_equal(w->result.digest, first->result.digest);
            for (int k = 0; k < size; k++) {
                assert_int_equal(w->result.digests[k], first->result.digest);
            }
            assert_int_equal(w->parameter_count, first->parameter_count);
            for (int i = 0; i < w->parameter_count; i++) {
                assert_memory_equal(w->parameters[i].data, first->parameters[i].data,
                                    w->parameters[i].count * sizeof(float));
            }
            assert_true(w->result.accuracy == first->result.accuracy);
            assert_true(w->result.test_loss == first->result.test_loss);
        }
        for (uint64_t i = 0; i < first->steps; i++) {
            losses[size][i] = first->seen[i].loss;
            if (fabs(losses[size][i] - losses[1][i]) > 1e-3 * fabs(losses[1][i]) + 1e-4) {
                fail_msg("%d workers, step %d: %.9g, not %.9g", size, (int)i + 1, losses[size][i],
                         losses[1][i]);
            }
        }
        accuracy[size] = first->result.accuracy;
        assert_true(fabs(accuracy[size] - accuracy[1]) < 0.05);
        group_drop(g);
    }
}

/* How the batch is cut, into shards or micro-batches, is nothing the averaged gradient can show but
 * in rounding. */
static void gradients_do_not_depend_on_the_cut(void **state) {
    static const uint32_t cuts[] = {1, 2, 8, 16, 160};
    struct group *whole = NULL;
    (void)state;
    for (size_t c = 0; c < sizeof cuts / sizeof *cuts; c++) {
        struct group *g = group_make(c == 3 ? 3 : 1);
        for (int r = 0; r < g->size; r++) {
            g->workers[r].options.batch = 160; /* one shard of it is three micro-batches */
            g->workers[r].options.shards = cuts[c];
            g->workers[r].options.epochs = 0;
            g->workers[r].options.steps = 1;
        }
        group_train(g);
        if (!whole) {
            whole = g;
            continue;
        }
        for (int i = 0; i < g->workers[0].gradient_count; i++) {
            const struct tensor_copy *a = &whole->workers[0].gradients[i];
            const struct tensor_copy *b = &g->workers[0].gradients[i];
            double difference = 0;
            double size = 0;
            for (size_t k = 0; k < a->count; k++) {
                difference += pow((double)a->data[k] - (double)b->data[k], 2);
                size += pow((double)a->data[k], 2);
            }
            assert_true(size > 0 && sqrt(difference) < 1e-5 * sqrt(size));
        }
        group_drop(g);
    }
    group_drop(whole);
}

static void clipping_bounds_the_update(void **state) {
    double moved[2] = {0, 0};
    struct group *still = group_make(1);
    (void)state;
    still->workers[0].options.lr = 1e-30; /* the initial parameters, to the bit */
    still->workers[0].options.steps = 1;
    group_train(still);
    for (int k = 0; k < 2; k++) {
        struct group *g = group_make(1);
        struct worker *w = &g->workers[0];
        w->options.steps = 1;
        w->options.lr = 0.5;
        w->options.momentum = 0;
        w->options.clip = k ? 0.01 : 0;
        group_train(g);
        assert_true(w->seen[0].grad_norm > 0.01);
        for (int i = 0; i < w->parameter_count; i++) {
            for (size_t p = 0; p < w->parameters[i].count; p++) {
                moved[k] += pow((double)w->parameters[i].data[p] -
                                    (double)still->workers[0].parameters[i].data[p],
                                2);
            }
        }
        double expected = w->seen[0].lr * (k ? 0.01 : w->seen[0].grad_norm);
        assert_true(fabs(sqrt(moved[k]) / expected - 1) < 1e-3);
        group_drop(g);
    }
    group_drop(still);
}

static void one_member_stops_all_after_the_same_step(void **state) {
    (void)state;
    struct group *g = group_make(3);
    g->workers[2].stop_at = 5;
    group_train(g);
    for (int r = 0; r < 3; r++) {
        assert_int_equal(g->workers[r].result.steps, 5);
        assert_true(g->workers[r].result.stopped);
        assert_int_equal(g->workers[r].epochs, 0);
        assert_true(isnan(g->workers[r].result.accuracy));
        assert_int_equal(g->workers[r].result.digest, g->workers[0].result.digest);
    }
    group_drop(g);
}

static void steps_end_within_an_epoch_and_are_evaluated(void **state) {
    (void)state;
    struct group *g = group_make(2);
    for (int r = 0; r < 2; r++) {
        g->workers[r].options.epochs = 0;
        g->workers[r].options.steps = 11;
    }
    group_train(g);
    assert_int_equal(g->workers[0].result.steps, 11);
    assert_int_equal(g->workers[1].epochs, 2);
    assert_int_equal(g->workers[1].last_epoch.step, 11);
    assert_int_equal(g->workers[1].last_epoch.epoch, 2);
    assert_int_equal(g->workers[0].result.samples, TRAIN + 48);
    group_drop(g);
}

/* A member that fails by itself ends the group, and its reason reaches the others. */
static void one_members_bad_data_ends_all(void **state) {
    (void)state;
    struct group *g = group_make(3);
    g->workers[1].blobs.spoilt = true;
    group_run(g);
    assert_int_equal(g->workers[1].code, RF_EDATA);
    for (int r = 0; r < 3; r++) {
        assert_true(g->workers[r].code < 0);
        assert_non_null(strstr(g->workers[r].err.text, "ends after 205 of 208 bytes"));
    }
    assert_int_equal(g->workers[0].err.rank, 1);
    group_drop(g);
}

/* What is wrong on all of them is reported by the first. */
static void what_is_wrong_everywhere_is_told_once(void **state) {
    (void)state;
    for (int round = 0; round < 10; round++) {
        struct group *g = group_make(3);
        for (int r = round % 2; r < 3; r++) {
            g->workers[r].options.model = "no such model";
        }
        group_run(g);
        assert_int_equal(g->workers[round % 2].code, RF_EINVAL);
        for (int r = 0; r < 3; r++) {
            assert_true(g->workers[r].code < 0);
            assert_non_null(strstr(g->workers[r].err.text, "no such model"));
            if (r != round % 2) {
                assert_int_equal(g->workers[r].err.rank, round % 2);
            }
        }
        group_drop(g);
    }
}

/* A block of the training images is damaged: its samples are left out, by whoever meets them, and
 * told of once an epoch. */
static void damaged_samples_are_left_out(void **state) {
    (void)state;
    double clean = 0;
    for (int round = 0; round < 2; round++) {
        struct group *g = group_make(3);
        for (int r = 0; r < 3; r++) {
            set_index(&g->workers[r].beside);
            g->workers[r].options.epochs = 4;
            g->workers[r].options.max_bad = 1;
        }
        if (round) {
            set_damage();
        }
        group_train(g);
        uint64_t skipped = 0, told = 0;
        for (uint32_t i = 0; i < TRAIN; i++) {
            bool is_bad = round && i >= BAD_FIRST && i <= BAD_LAST;
            int times = g->workers[0].bad[i] + g->workers[1].bad[i] + g->workers[2].bad[i];
            assert_int_equal(times, is_bad ? 4 : 0);
            told += (uint64_t)times;
        }
        for (uint64_t i = 0; i < 36; i++) {
            const struct rf_train_step *step = &g->workers[0].seen[i];
            assert_int_equal(step->samples + step->skipped, i % 9 == 8 ? 8 : 24);
            assert_int_equal(step->skipped, g->workers[2].seen[i].skipped);
            skipped += step->skipped;
        }
        assert_int_equal(skipped, round ? 4 * BAD_SAMPLES : 0);
        assert_int_equal(told, skipped);
        for (int r = 0; r < 3; r++) {
            const struct worker *w = &g->workers[r];
            assert_false(w->wrong_bad);
            assert_int_equal(w->result.skipped, skipped);
            assert_int_equal(w->result.samples, 4 * TRAIN - skipped);
            assert_int_equal(w->result.digest, g->workers[0].result.digest);
        }
        clean = round ? clean : g->workers[0].result.accuracy;
        assert_true(g->workers[0].result.accuracy > clean - 0.1);
        group_drop(g);
    }
    set_damage();
}

/* All end after the same step, with the block's name, and the first that met it is the culprit. */
static void too_much_damage_ends_all_after_the_same_step(void **state) {
    static const double shares[] = {0, 0.2, 0.42};
    (void)state;
    for (size_t k = 0; k < sizeof shares / sizeof *shares; k++) {
        struct group *g = group_make(3);
        for (int r = 0; r < 3; r++) {
            set_index(&g->workers[r].beside);
            g->workers[r].options.max_bad = shares[k];
        }
        set_damage();
        group_run(g);
        set_damage();
        const struct worker *first = &g->workers[0];
        uint64_t skipped = 0, before = 0;
        for (uint64_t i = 0; i < first->steps; i++) {
            before = skipped;
            skipped += first->seen[i].skipped;
        }
        assert_true((double)skipped > shares[k] * TRAIN && (double)before <= shares[k] * TRAIN);
        for (int r = 0; r < 3; r++) {
            const struct worker *w = &g->workers[r];
            assert_int_equal(w->code, RF_EDATA);
            assert_true(w->result.too_bad);
            assert_int_equal(w->steps, first->steps);
            assert_non_null(strstr(w->err.text, "block 1 of 'set/train-images-idx3-ubyte'"));
            assert_non_null(strstr(w->err.text, "of 200 training samples were skipped"));
            assert_non_null(strstr(w->err.next, "ringfold data check"));
        }
        group_drop(g);
    }
}

static void a_rate_that_is_too_high_is_told(void **state) {
    (void)state;
    struct group *g = group_make(1);
    g->workers[0].options.lr = 9e5;
    group_run(g);
    assert_int_equal(g->workers[0].code, RF_EINVAL);
    assert_non_null(strstr(g->workers[0].err.text, "no longer a number at step"));
    assert_non_null(strstr(g->workers[0].err.next, "--lr"));
    group_drop(g);
}

static void memory_may_run_out_anywhere(void **state) {
    int code = RF_ENOMEM;
    long k = 0;
    (void)state;
    for (; code && k < 2000; k++) {
        struct group *g = group_make(1);
        g->workers[0].options.steps = 1;
        rf__alloc_fail_after(k);
        group_run(g);
        rf__alloc_fail_after(-1);
        code = g->workers[0].code;
        if (code && code != RF_ENOMEM) {
            fail_msg("allocation %ld: %d '%s'", k, code, g->workers[0].err.text);
        }
        group_drop(g);
    }
    assert_int_equal(code, RF_OK);
    assert_true(k > 20);
}

static void options_are_checked(void **state) {
    struct rf_train_options good;
    struct rf_train_options out;
    struct rf_error err;
    (void)state;
    rf__train_options_init(&good);
    good.data = "set";
    assert_int_equal(rf__train_options_resolve(&good, 3, &out, &err), 0);
    assert_int_equal(out.shards, 3);
    assert_int_equal(out.batch, 129);
    assert_int_equal(out.ddp.shards, 3);
    assert_true(out.lr == 0.001);
    good.optimizer = "sgd";
    assert_int_equal(rf__train_options_resolve(&good, 3, &out, &err), 0);
    assert_true(out.lr == 0.05);
#define REFUSED(expected, words, change)                                                           \
    do {                                                                                           \
        struct rf_train_options bad = good;                                                        \
        change;                                                                                    \
        assert_int_equal(rf__train_options_resolve(&bad, 3, &out, &err), expected);                \
        assert_non_null(strstr(err.text, words));                                                  \
    } while (0)
    REFUSED(RF_EINVAL, "cannot be cut into 3 equal shards", bad.batch = 100);
    assert_string_equal(err.next, "--batch 99, or --shards with a divisor of 100");
    REFUSED(RF_EINVAL, "number of epochs or of steps", bad.epochs = 0);
    REFUSED(RF_EINVAL, "lr is nan", bad.lr = NAN);
    REFUSED(RF_EINVAL, "lr is -1", bad.lr = -1);
    REFUSED(RF_EINVAL, "momentum is 1", bad.momentum = 1);
    REFUSED(RF_EINVAL, "weight decay is inf", bad.weight_decay = HUGE_VAL);
    REFUSED(RF_EINVAL, "clip is -2", bad.clip = -2);
    REFUSED(RF_EINVAL, "max bad is 1.5, expected a share from 0 to 1", bad.max_bad = 1.5);
    REFUSED(RF_EINVAL, "max bad is nan", bad.max_bad = NAN);
    REFUSED(RF_EINVAL, "hidden is -1", bad.hidden = -1);
    REFUSED(RF_EINVAL, "needs a model", bad.data = NULL);
    REFUSED(RF_ELIMIT, "shards are more than", bad.shards = RF_MAX_SHARDS + 1);
    REFUSED(RF_ELIMIT, "is larger than", bad.batch = 3u << 20);
#undef REFUSED
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_are_checked),
        cmocka_unit_test(one_worker_learns_and_tells),
        cmocka_unit_test(the_same_seed_gives_the_same_bits),
        cmocka_unit_test(the_batch_is_the_same_for_any_number_of_workers),
        cmocka_unit_test(gradients_do_not_depend_on_the_cut),
        cmocka_unit_test(clipping_bounds_the_update),
        cmocka_unit_test(one_member_stops_all_after_the_same_step),
        cmocka_unit_test(steps_end_within_an_epoch_and_are_evaluated),
        cmocka_unit_test(one_members_bad_data_ends_all),
        cmocka_unit_test(what_is_wrong_everywhere_is_told_once),
        cmocka_unit_test(damaged_samples_are_left_out),
        cmocka_unit_test(too_much_damage_ends_all_after_the_same_step),
        cmocka_unit_test(a_rate_that_is_too_high_is_told),
        cmocka_unit_test(memory_may_run_out_anywhere),
    };
    return cmocka_run_group_tests(tests, data_make, data_drop);
}
