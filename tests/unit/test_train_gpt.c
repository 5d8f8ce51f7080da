/* train/ with gpt: windows of tokens instead of images, over a group of threads. */
#include "os/memory.h"
#include "support/shared_blobs.h"
#include "support/threaded_runner.h"
#include "support/token_set.h"
#include "train/memory.h"
#include "train/train.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <unistd.h>

#include <cmocka.h>

enum { RANKS = 3, KEPT = 64, MOST_FLOATS = 1 << 16, STEPS_AN_EPOCH = 5 }; /* 4 of 12 and one of 2 */

struct trainee {
    struct rf_train_options options;
    struct token_blobs blobs;
    struct rf__train_host host;
    bool has_host;
    uint64_t stop_at; /* asks for a stop in this step; 0: never */
    uint64_t resume;  /* as in rf__saver_options, where there are checkpoints */
    struct shared_blobs *store;

    int code;
    struct rf_error err;
    struct rf_train_result result;
    struct rf_train_start start;
    uint64_t steps, asked;
    struct rf_train_step seen[KEPT];
    int epochs;
    struct rf_train_epoch measured[KEPT];
    unsigned char bad[SET_WINDOWS];
    float *gradients, *parameters;
    size_t gradient_floats, parameter_floats;
};

struct training {
    struct group group;
    struct trainee trainee[RANKS];
};

static void on_start(void *context, const struct rf_train_start *start) {
    ((struct trainee *)context)->start = *start;
}

static void on_step(void *context, const struct rf_train_step *step) {
    struct trainee *t = context;
    t->seen[t->steps++ % KEPT] = *step;
}

static void on_epoch(void *context, const struct rf_train_epoch *epoch) {
    struct trainee *t = context;
    t->measured[t->epochs++ % KEPT] = *epoch;
}

static void on_tensor(void *context, bool gradient, const char *name, const float *data,
                      const size_t *shape, int dims) {
    struct trainee *t = context;
    size_t *at = gradient ? &t->gradient_floats : &t->parameter_floats, count = 1;
    (void)name;
    for (int i = 0; i < dims; i++) {
        count *= shape[i];
    }
    assert_true(*at + count <= MOST_FLOATS);
    memcpy((gradient ? t->gradients : t->parameters) + *at, data, count * sizeof *data);
    *at += count;
}

static void on_bad(void *context, const struct rf_train_bad *bad) {
    struct trainee *t = context;
    for (uint32_t i = 0; i < bad->count; i++) {
        t->bad[bad->samples[i]]++;
    }
}

static bool on_stop(void *context) {
    struct trainee *t = context;
    return ++t->asked == t->stop_at;
}

static void work(int rank, void *context) {
    struct training *training = context;
    struct trainee *t = &training->trainee[rank];
    const struct rf_train_callbacks callbacks = {.start = on_start,
                                                 .step = on_step,
                                                 .epoch = on_epoch,
                                                 .tensor = on_tensor,
                                                 .stop = on_stop,
                                                 .bad = on_bad,
                                                 .context = t};
    const struct rf__data_io io = {.files = &t->blobs.base};
    struct rf__saver *saver = NULL;

    if (t->store) {
        char config[RF__TRAIN_CONFIG];
        struct rf_train_options resolved;
        const struct rf__saver_options saving = {
            .where = "memory:/ckpt", .job = "job", .config = config, .resume = t->resume};
        assert_int_equal(
            rf__train_options_resolve(&t->options, training->group.size, &resolved, NULL), 0);
        rf__train_config(&resolved, rf__train_vocabulary(&io, &t->options), config);
        assert_int_equal(rf__saver_create(shared_handle(t->store), &saving, &saver, &t->err), 0);
    }
    t->code = rf__train(&training->group.members[rank].base, &io, t->has_host ? &t->host : NULL,
                        saver, &t->options, &callbacks, &t->result, &t->err);
    rf__saver_destroy(saver);
}

static struct training *training_make(int size) {
    struct training *training = calloc(1, sizeof *training);
    group_open(&training->group, size);
    for (int r = 0; r < size; r++) {
        struct trainee *t = &training->trainee[r];
        t->blobs = (struct token_blobs){{&token_ops}, false};
        t->gradients = malloc(MOST_FLOATS * sizeof(float));
        t->parameters = malloc(MOST_FLOATS * sizeof(float));
        rf__train_options_init(&t->options);
        t->options.model = "gpt";
        t->options.data = "set";
        t->options.depth = 2;
        t->options.width = 16;
        t->options.heads = 2;
        t->options.context = SET_CONTEXT;
        t->options.batch = 12;
        t->options.shards = 6;
        t->options.epochs = 2;
        t->options.lr = 0.01;
    }
    return training;
}

#define ON_ALL(training, change)                                                                   \
    do {                                                                                           \
        for (int each = 0; each < (training)->group.size; each++) {                                \
            struct trainee *t = &(training)->trainee[each];                                        \
            change;                                                                                \
        }                                                                                          \
    } while (0)

static void training_run(struct training *training) {
    alarm(200);
    run_threads(training->group.size, work, training);
    alarm(0);
}

/* Runs it; every worker must have come through, with the same bits. */
static void training_pass(struct training *training) {
    const struct trainee *first = &training->trainee[0];
    training_run(training);
    for (int r = 0; r < training->group.size; r++) {
        const struct trainee *t = &training->trainee[r];
        if (t->code) {
            fail_msg("rank %d: %d '%s'", r, t->code, t->err.text);
        }
        assert_int_equal(t->result.digest, first->result.digest);
        assert_int_equal(t->parameter_floats, first->parameter_floats);
        assert_memory_equal(t->parameters, first->parameters,
                            first->parameter_floats * sizeof(float));
    }
    assert_int_equal(training->group.mismatches, 0);
}

static void training_drop(struct training *training) {
    assert_int_equal(training->group.live_ops, 0);
    assert_int_equal(training->group.live_memory, 0);
    ON_ALL(training, free(t->gradients); free(t->parameters));
    group_close(&training->group);
    free(training);
}

/* Within `tolerance` of each other, as vectors. */
static void assert_close(const float *a, const float *b, size_t count, double tolerance) {
    double difference = 0, size = 0;
    for (size_t i = 0; i < count; i++) {
        difference += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        size += (double)a[i] * a[i];
    }
    if (!(sqrt(difference) <= tolerance * sqrt(size))) {
        fail_msg("%g apart, of %g", sqrt(difference), sqrt(size));
    }
}

/* --- tests ---------------------------------------------------------------------------------------
 */

static void it_learns_and_tells(void **state) {
    (void)state;
    struct training *training = training_make(2);
    const struct trainee *one = &training->trainee[0];
    ON_ALL(training, t->options.epochs = 8; t->options.eval_every = 3;
           t->options.eval_samples = 10);
    training_pass(training);
    assert_int_equal(one->start.context, SET_CONTEXT);
    assert_int_equal(one->start.vocabulary, SET_VOCABULARY);
    assert_int_equal(one->start.train_samples, SET_WINDOWS);
    assert_int_equal(one->start.test_samples, SET_TEST_WINDOWS);
    assert_int_equal(one->start.measured, 10);
    assert_int_equal(one->start.steps_per_epoch, STEPS_AN_EPOCH);
    assert_int_equal(one->start.memory.parameters, one->start.parameters * 4);
    assert_int_equal(one->start.memory.optimizer, one->start.parameters * 8);
    assert_int_equal(one->start.parameters, one->parameter_floats);
    assert_int_equal(one->steps, 40);
    for (uint64_t i = 0; i < 40; i++) {
        assert_int_equal(one->seen[i].samples, i % 5 == 4 ? 2 : 12);
        assert_int_equal(one->seen[i].skipped, 0);
        assert_int_equal(one->seen[i].context, SET_CONTEXT);
    }
    assert_int_equal(one->result.samples, 8 * SET_WINDOWS);
    assert_int_equal(one->result.context, SET_CONTEXT);
    /* the loss is one of a token: at first that of guessing */
    assert_true(fabs(one->seen[0].loss - log(SET_VOCABULARY)) < 0.5);
    assert_true(one->seen[38].loss < one->seen[0].loss / 2);
    /* every third step and after each epoch: 13 and 8, of which two are both */
    assert_int_equal(one->epochs, 19);
    for (int i = 0; i < one->epochs; i++) {
        const struct rf_train_epoch *m = &one->measured[i];
        assert_true(m->step % 3 == 0 || m->step % 5 == 0);
        assert_int_equal(m->test_samples, 10);
        double right = m->accuracy * 10 * SET_CONTEXT;
        assert_true(fabs(right - round(right)) < 1e-9);
    }
    assert_true(one->result.test_loss == one->measured[18].test_loss);
    assert_true(one->measured[18].test_loss < one->measured[0].test_loss);
    assert_true(one->result.accuracy > 0.3);
    training_drop(training);
}

/* Whatever the number of workers, and with dropout: the masks are the samples' own. */
static void the_batch_is_the_same_for_any_number_of_workers(void **state) {
    static const double rates[] = {0, 0.2};
    double losses[2];
    (void)state;
    for (int k = 0; k < 2; k++) {
        struct training *alone = training_make(1);
        ON_ALL(alone, t->options.dropout = rates[k]);
        training_pass(alone);
        losses[k] = alone->trainee[0].result.test_loss;
        for (int size = 2; size <= RANKS; size++) {
            struct training *training = training_make(size);
            const struct trainee *a = &alone->trainee[0], *b = &training->trainee[0];
            ON_ALL(training, t->options.dropout = rates[k]);
            training_pass(training);
            assert_close(a->gradients, b->gradients, a->gradient_floats, 1e-5);
            assert_close(a->parameters, b->parameters, a->parameter_floats, 1e-4);
            for (uint64_t i = 0; i < a->steps; i++) {
                assert_true(fabs(a->seen[i].loss - b->seen[i].loss) < 1e-4);
            }
            assert_true(fabs(a->result.test_loss - b->result.test_loss) < 1e-4);
            training_drop(training);
        }
        training_drop(alone);
    }
    assert_true(fabs(losses[0] - losses[1]) > 1e-4);
}

/* What does not show in the shapes of the tensors decides as well what the gradients are of. */
static void members_must_compute_the_same(void **state) {
    (void)state;
    for (int k = 0; k < 6; k++) {
        struct training *training = training_make(2 + k % 2);
        struct rf_train_options *odd = &training->trainee[1].options;
        odd->heads = k == 0 ? 4 : odd->heads;
        odd->dropout = k == 1 ? 0.1 : odd->dropout;
        odd->lr = k == 2 ? 0.02 : odd->lr;
        odd->steps = k == 3 ? 7 : odd->steps;
        odd->micro_batch = k == 4 ? 1 : odd->micro_batch;
        odd->eval_samples = k == 5 ? 3 : odd->eval_samples;
        training_run(training);
        ON_ALL(training, assert_int_equal(t->code, RF_EMISMATCH); assert_int_equal(t->steps, 0);
               assert_non_null(strstr(t->err.text, "set of registered tensors or options"));
               assert_non_null(strstr(t->err.next, "the same model, data, options")));
        training_drop(training);
    }
    struct training *training = training_make(2); /* the same number of steps, told otherwise */
    training->trainee[1].options.epochs = 0;
    training->trainee[1].options.steps = 2 * STEPS_AN_EPOCH;
    training->trainee[1].options.micro_batch = 100;
    training_pass(training);
    training_drop(training);
}

static void micro_batches_do_not_matter(void **state) {
    static const uint32_t micro[] = {1, 2, 3, 12};
    struct training *first = NULL;
    (void)state;
    for (size_t k = 0; k < sizeof micro / sizeof *micro; k++) {
        struct training *training = training_make(1);
        ON_ALL(training, t->options.shards = 1; t->options.micro_batch = micro[k];
               t->options.dropout = 0.1; t->options.steps = 1);
        training_pass(training);
        const struct trainee *t = &training->trainee[0];
        if (!first) {
            first = training;
            continue;
        }
        assert_close(first->trainee[0].gradients, t->gradients, t->gradient_floats, 1e-5);
        assert_true(t->result.memory.activations > first->trainee[0].result.memory.activations);
        training_drop(training);
    }
    training_drop(first);
}

/* The average is over the tokens of what could be used: that of the other windows. */
static void windows_that_cannot_be_used_are_left_out(void **state) {
    (void)state;
    for (int size = 1; size <= 2; size++) {
        struct training *training = training_make(size);
        const struct trainee *one = &training->trainee[0];
        uint64_t skipped = 0, samples = 0;
        int told = 0;
        ON_ALL(training, t->options.max_bad = 0.2; t->options.epochs = 1);
        for (uint32_t w = 0; w < SET_WINDOWS; w += 10) {
            token_spoil(w, true);
        }
        training_pass(training);
        for (uint32_t w = 0; w < SET_WINDOWS; w += 10) {
            token_spoil(w, false);
        }
        for (uint64_t i = 0; i < one->steps; i++) {
            skipped += one->seen[i].skipped;
            samples += one->seen[i].samples;
            assert_int_equal(one->seen[i].samples + one->seen[i].skipped, i % 5 == 4 ? 2 : 12);
            assert_true(one->seen[i].loss < 1.2 * log(SET_VOCABULARY));
        }
        assert_int_equal(skipped, 5);
        assert_int_equal(samples, SET_WINDOWS - 5);
        assert_true(fabs(one->seen[0].loss - log(SET_VOCABULARY)) < 0.5);
        for (uint32_t w = 0; w < SET_WINDOWS; w++) {
            int times = 0;
            for (int r = 0; r < size; r++) {
                times += training->trainee[r].bad[w];
            }
            assert_int_equal(times, w % 10 == 0);
            told += times;
        }
        assert_int_equal(told, 5);
        training_drop(training);
    }
}

static void too_many_of_them_end_all(void **state) {
    (void)state;
    struct training *training = training_make(2);
    ON_ALL(training, t->options.max_bad = 0.05);
    for (uint32_t w = 0; w < 30; w++) {
        token_spoil(w, true);
    }
    training_run(training);
    for (uint32_t w = 0; w < 30; w++) {
        token_spoil(w, false);
    }
    ON_ALL(training, assert_int_equal(t->code, RF_EDATA); assert_true(t->result.too_bad);
           assert_int_equal(t->steps, training->trainee[0].steps);
           assert_non_null(strstr(t->err.text, "of 50 training samples were skipped")));
    training_drop(training);
}

/* A folder without val.bin: nothing is measured, and that is no stop. */
static void there_may_be_nothing_to_measure(void **state) {
    (void)state;
    for (uint64_t stop_at = 0; stop_at < 4; stop_at += 3) {
        struct training *training = training_make(2);
        ON_ALL(training, t->blobs.no_test = true; t->options.eval_every = 1);
        training->trainee[1].stop_at = stop_at;
        training_pass(training);
        ON_ALL(training, assert_int_equal(t->result.steps, stop_at ? 3 : 10);
               assert_int_equal(t->result.stopped, stop_at > 0);
               assert_true(isnan(t->result.test_loss)); assert_int_equal(t->epochs, 0);
               assert_true(t->result.digest != 0));
        training_drop(training);
    }
}

/* Stopped, and gone on from the last checkpoint: the same bits as if it had not been. */
static void resumed_is_as_if_it_had_not_been_stopped(void **state) {
    (void)state;
    for (int size = 1; size <= 2; size++) {
        struct shared_blobs store;
        struct training *straight = training_make(size), *cut = training_make(size);
        struct training *rest = training_make(size);

        shared_open(&store);
        ON_ALL(straight, t->options.dropout = 0.1);
        training_pass(straight);
        ON_ALL(cut, t->options.dropout = 0.1; t->store = &store; t->resume = RF__RESUME_NONE);
        cut->trainee[size - 1].stop_at = 4;
        training_pass(cut);
        assert_true(cut->trainee[0].result.stopped);
        ON_ALL(rest, t->options.dropout = 0.1; t->store = &store; t->resume = RF__NEWEST_STEP);
        training_pass(rest);
        assert_int_equal(rest->trainee[0].result.resumed_from, 4);
        assert_int_equal(rest->trainee[0].steps, 6);
        assert_int_equal(rest->trainee[0].result.digest, straight->trainee[0].result.digest);
        training_drop(straight);
        training_drop(cut);
        training_drop(rest);
        shared_close(&store);
    }
}

/* The folder of the first weights is needed only where nothing else gives the state. */
static void first_weights_may_be_gone_on_resuming(void **state) {
    (void)state;
    for (int size = 1; size <= 2; size++) {
        struct shared_blobs store;
        shared_open(&store);
        for (int k = 0; k < 4; k++) { /* no checkpoints, none there, the first run, gone on */
            struct training *training = training_make(size);
            ON_ALL(training, t->store = k ? &store : NULL;
                   t->resume = k == 2 ? RF__RESUME_NONE : RF__NEWEST_STEP;
                   t->options.init = k == 2 ? NULL : "gone");
            training->trainee[0].stop_at = k == 2 ? 4 : 0;
            if (k < 2) {
                training_run(training);
                ON_ALL(training, assert_int_equal(t->code, RF_ENOTFOUND);
                       assert_int_equal(t->steps, 0);
                       assert_non_null(strstr(t->err.text, "gone/config.json")));
            } else {
                training_pass(training);
                assert_int_equal(training->trainee[0].result.resumed_from, k == 2 ? 0 : 4);
                assert_int_equal(training->trainee[0].steps, k == 2 ? 4 : 6);
            }
            training_drop(training);
        }
        shared_close(&store);
    }
}

static void another_shape_cannot_go_on(void **state) {
    struct shared_blobs store;
    (void)state;
    shared_open(&store);
    struct training *training = training_make(1);
    ON_ALL(training, t->store = &store; t->resume = RF__RESUME_NONE; t->options.steps = 3);
    training_pass(training);
    training_drop(training);
    for (int k = 0; k < 4; k++) {
        static const char *const words[] = {"heads: 2 in the checkpoint, 4 in the model",
                                            "width: 16 in the checkpoint, 32 in the model",
                                            "depth: 2 in the checkpoint, 3 in the model",
                                            "context: 8 in the checkpoint, 4 in the model"};
        training = training_make(1);
        struct trainee *t = &training->trainee[0];
        t->store = &store;
        t->resume = RF__NEWEST_STEP;
        t->options.heads = k == 0 ? 4 : 2;
        t->options.width = k == 1 ? 32 : 16;
        t->options.depth = k == 2 ? 3 : 2;
        t->options.context = k == 3 ? 4 : SET_CONTEXT;
        training_run(training);
        assert_int_equal(t->code, RF_EINVAL);
        assert_int_equal(t->steps, 0);
        if (!strstr(t->err.text, words[k])) {
            fail_msg("%d: '%s'", k, t->err.text);
        }
        assert_non_null(strstr(t->err.text, "of another model"));
        training_drop(training);
    }
    shared_close(&store);
}

/* --- memory --------------------------------------------------------------------------------------
 */

static void what_does_not_fit_is_refused(void **state) {
    (void)state;
    size_t need = 0;
    for (int k = 0; k < 4; k++) { /* unknown, enough, enough for one alone, not what was given */
        struct training *training = training_make(2);
        ON_ALL(training, t->has_host = k > 0; t->options.memory_bytes = k == 3 ? need / 2 : 0;
               t->host = ((struct rf__train_host){k == 2 ? need : 2 * need, 1ull << 40, 2}));
        training_run(training);
        const struct trainee *one = &training->trainee[0];
        if (k < 2) {
            const struct rf_train_memory *m = &one->result.memory;
            assert_int_equal(one->code, 0);
            need = m->parameters + m->gradients + m->averaged + m->optimizer + m->activations;
        } else {
            int first = 0;
            ON_ALL(training, assert_int_equal(t->code, RF_ENOMEM); assert_int_equal(t->steps, 0);
                   first += t->err.rank < 0 || t->err.rank == each);
            assert_true(first >= 1); /* the others learn of it from that one */
            assert_non_null(strstr(one->err.text, "this worker would take "));
            assert_non_null(strstr(one->err.text, "and may take "));
            assert_non_null(strstr(one->err.what, "activations"));
            assert_non_null(strstr(one->err.where, k == 2 ? "for 2 workers" : "--memory"));
            assert_true(one->err.next[0] != 0);
        }
        training_drop(training);
    }
}

/* What is known before a model is made is what it then has. */
static void estimates_are_what_is_taken(void **state) {
    static const int shapes[][5] = {{2, 16, 2, 8, 3}, {1, 24, 3, 33, 1}, {3, 64, 4, 128, 5}};
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        const int *s = shapes[i];
        const struct rf__model_options options = {
            .name = "gpt",
            .batch = s[4],
            .seed = 1,
            .gpt = {
                .depth = s[0], .width = s[1], .heads = s[2], .context = s[3], .vocabulary = 77}};
        struct rf__model_bytes bytes;
        struct rf__model *model = NULL;
        assert_int_equal(rf__model_estimate(&options, &bytes, NULL), 0);
        assert_int_equal(rf__model_create(&options, &model, NULL), 0);
        assert_true(bytes.parameters >= rf__model_parameters(model) * sizeof(float));
        assert_true(bytes.parameters < rf__model_parameters(model) * sizeof(float) +
                                           64u * (unsigned)rf__model_tensors(model));
        assert_true(bytes.activations <= rf__model_activation_bytes(model));
        assert_true(10 * bytes.activations > 5 * rf__model_activation_bytes(model));
        rf__model_destroy(model);
    }
}

static void shares_of_memory(void **state) {
    struct rf_train_options options;
    struct rf__model_options model = {
        .name = "gpt",
        .batch = 1,
        .gpt = {.depth = 1, .width = 16, .heads = 2, .context = 8, .vocabulary = 32}};
    struct rf__model_bytes bytes;
    struct rf_error err;
    (void)state;
    rf__train_options_init(&options);
    assert_int_equal(rf__model_estimate(&model, &bytes, &err), 0);
    uint64_t need = 5 * bytes.parameters + bytes.activations;
    struct rf__train_host host = {2 * need, 4 * need, 2};
    assert_int_equal(rf__train_memory_check(&options, &model, &host, &err), 0);
    host.available = 2 * need - 2;
    assert_int_equal(rf__train_memory_check(&options, &model, &host, &err), RF_ENOMEM);
    host.workers = 1;
    assert_int_equal(rf__train_memory_check(&options, &model, &host, &err), 0);
    host.available = need - 1;
    assert_int_equal(rf__train_memory_check(&options, &model, &host, &err), RF_ENOMEM);
    options.memory_bytes = need;
    assert_int_equal(rf__train_memory_check(&options, &model, &host, &err), 0);
    options.optimizer = "sgd";
    options.memory_bytes = need - bytes.parameters;
    assert_int_equal(rf__train_memory_check(&options, &model, NULL, &err), 0);
    options.memory_bytes = need - bytes.parameters - 1;
    assert_int_equal(rf__train_memory_check(&options, &model, NULL, &err), RF_ENOMEM);
    model.batch = 64;
    assert_int_equal(rf__train_memory_check(&options, &model, NULL, &err), RF_ENOMEM);
    assert_non_null(strstr(err.next, "--micro-batch (now 64)"));
}

/* --- the rest ------------------------------------------------------------------------------------
 */

static void memory_may_run_out_anywhere(void **state) {
    int code = RF_ENOMEM;
    long k = 0;
    (void)state;
    for (; code && k < 4000; k++) {
        struct training *training = training_make(1);
        ON_ALL(training, t->options.steps = 1);
        rf__alloc_fail_after(k);
        training_run(training);
        rf__alloc_fail_after(-1);
        code = training->trainee[0].code;
        if (code && code != RF_ENOMEM) {
            fail_msg("allocation %ld: %d '%s'", k, code, training->trainee[0].err.text);
        }
        training_drop(training);
    }
    assert_int_equal(code, RF_OK);
    assert_true(k > 20);
}

static void a_folder_must_have_what_is_needed(void **state) {
    (void)state;
    static const char *const words[] = {"tokenizer.json", "expected more than a window of 4096",
                                        "3 heads do not divide a width of 16"};
    for (int k = 0; k < 3; k++) {
        struct training *training = training_make(2);
        ON_ALL(training, t->options.data = k == 0 ? "other" : "set";
               t->options.context = k == 1 ? 4096 : SET_CONTEXT; t->options.heads = k == 2 ? 3 : 2);
        training_run(training);
        ON_ALL(training, assert_true(t->code != 0); assert_true(t->err.next[0] != 0);
               assert_int_equal(t->code, k == 0   ? RF_ENOTFOUND
                                         : k == 1 ? RF_EDATA
                                                  : RF_EINVAL));
        if (!strstr(training->trainee[0].err.text, words[k])) {
            fail_msg("%d: '%s'", k, training->trainee[0].err.text);
        }
        training_drop(training);
    }
}

/* What the configuration says of a folder of data; "" where it is left out. */
static const char *told_data(const char *folder, char config[RF__TRAIN_CONFIG]) {
    static char told[RF__TRAIN_CONFIG];
    struct rf_train_options options;

    rf__train_options_init(&options);
    options.data = folder;
    rf__train_config(&options, 0, config);
    const char *at = strstr(config, ", \"data\": ");
    const char *next = strstr(config, ", \"optimizer\": \"adamw\"");
    assert_non_null(next);
    assert_int_equal(config[strlen(config) - 1], '}');
    snprintf(told, sizeof told, "%.*s", at ? (int)(next - at) : 0, at ? at : "");
    return told;
}

static void folders_are_told_as_they_are(void **state) {
    char config[RF__TRAIN_CONFIG], long_one[8192];
    (void)state;

    assert_string_equal(told_data("/a/\xC3\xA9\xE2\x82\xAC", config),
                        ", \"data\": \"/a/\xC3\xA9\xE2\x82\xAC\"");
    assert_string_equal(told_data("/a \"b\"\\\n\x7F", config),
                        ", \"data\": \"/a \\\"b\\\"\\\\\\u000a\\u007f\"");
    assert_string_equal(told_data("/caf\xE9", config), "");
    assert_string_equal(told_data("/\xED\xA0\x80", config), "");
    assert_string_equal(told_data(NULL, config), "");
    memset(long_one, '"', sizeof long_one);
    long_one[4095] = 0;
    assert_int_equal(strlen(told_data(long_one, config)), 2 * 4095 + 12);
    memset(long_one, 1, 4095);
    assert_string_equal(told_data(long_one, config), "");
}

static void defaults_are_the_models_own(void **state) {
    struct rf_train_options options, out;
    char config[RF__TRAIN_CONFIG];
    struct rf_error err;
    (void)state;
    rf__train_options_init(&options);
    options.data = "set";
    assert_int_equal(rf__train_options_resolve(&options, 2, &out, &err), 0);
    assert_true(out.weight_decay == 0 && out.clip == 0 && out.warmup_steps == 0);
    assert_true(out.beta2 == 0.999 && out.micro_batch == 64);
    assert_true(out.eval_every == 0 && out.eval_samples == 0);
    options.model = "gpt";
    assert_int_equal(rf__train_options_resolve(&options, 3, &out, &err), 0);
    assert_true(out.weight_decay == 0.1 && out.clip == 1 && out.beta2 == 0.95);
    assert_int_equal(out.batch, 33);
    assert_int_equal(out.micro_batch, 8);
    assert_int_equal(out.depth, 6);
    assert_int_equal(out.width, 384);
    assert_int_equal(out.heads, 6);
    assert_int_equal(out.context, 256);
    assert_true(out.eval_every == 250 && out.eval_samples == 256);
    rf__train_config(&out, 71, config);
    assert_non_null(strstr(config, "\"model\": \"gpt\""));
    assert_non_null(strstr(config, "\"depth\": 6, \"width\": 384, \"heads\": 6, \"context\": 256, "
                                   "\"vocabulary\": 71, \"dropout\": 0, \"compute\": \"f32\""));
    options.context = 4096;
    assert_int_equal(rf__train_options_resolve(&options, 3, &out, &err), 0);
    assert_int_equal(out.micro_batch, 1);
    options.weight_decay = options.clip = 0;
    options.warmup_steps = options.eval_every = 0;
    options.eval_samples = 0;
    assert_int_equal(rf__train_options_resolve(&options, 3, &out, &err), 0);
    assert_true(out.weight_decay == 0 && out.clip == 0 && out.warmup_steps == 0);
    assert_true(out.eval_every == 0 && out.eval_samples == 0);
#define REFUSED(words, change)                                                                     \
    do {                                                                                           \
        struct rf_train_options bad = options;                                                     \
        change;                                                                                    \
        assert_int_equal(rf__train_options_resolve(&bad, 3, &out, &err), RF_EINVAL);               \
        assert_non_null(strstr(err.text, words));                                                  \
    } while (0)
    REFUSED("7 heads do not divide a width of 384", bad.heads = 7);
    assert_string_equal(err.next, "--width 378, or --heads with a divisor of 384");
    REFUSED("dropout is 1", bad.dropout = 1);
    REFUSED("compute is 'f16', expected f32 or bf16", bad.compute = "f16");
    REFUSED("context is -1", bad.context = -1);
    REFUSED("beta2 is 1", bad.beta2 = 1);
    REFUSED("clip is -0.5", bad.clip = -0.5);
    REFUSED("weight decay is -0.5", bad.weight_decay = -0.5);
    options.context = 0;
    options.compute = "f32"; /* what the others take too */
    options.model = "cnn";
    assert_int_equal(rf__train_options_resolve(&options, 3, &out, &err), 0);
    REFUSED("depth is an option of gpt, and the model is 'cnn'", bad.depth = 6);
    assert_non_null(strstr(err.next, "--depth"));
    REFUSED("heads is an option of gpt", bad.heads = 6);
    REFUSED("width is an option of gpt", bad.width = 384);
    REFUSED("context is an option of gpt", bad.context = 256);
    REFUSED("dropout is an option of gpt", bad.dropout = 0.1);
    REFUSED("compute is an option of gpt", bad.compute = "bf16");
    REFUSED("init is an option of gpt", bad.init = "folder");
    options.model = "mlp";
    REFUSED("memory is an option of gpt, and the model is 'mlp'", bad.memory_bytes = 1 << 30);
#undef REFUSED
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_are_the_models_own),
        cmocka_unit_test(folders_are_told_as_they_are),
        cmocka_unit_test(it_learns_and_tells),
        cmocka_unit_test(the_batch_is_the_same_for_any_number_of_workers),
        cmocka_unit_test(members_must_compute_the_same),
        cmocka_unit_test(micro_batches_do_not_matter),
        cmocka_unit_test(windows_that_cannot_be_used_are_left_out),
        cmocka_unit_test(too_many_of_them_end_all),
        cmocka_unit_test(there_may_be_nothing_to_measure),
        cmocka_unit_test(resumed_is_as_if_it_had_not_been_stopped),
        cmocka_unit_test(first_weights_may_be_gone_on_resuming),
        cmocka_unit_test(another_shape_cannot_go_on),
        cmocka_unit_test(what_does_not_fit_is_refused),
        cmocka_unit_test(estimates_are_what_is_taken),
        cmocka_unit_test(shares_of_memory),
        cmocka_unit_test(a_folder_must_have_what_is_needed),
        cmocka_unit_test(memory_may_run_out_anywhere),
    };
    return cmocka_run_group_tests(tests, token_set_make, token_set_drop);
}
