/* ddp/save: training with checkpoints. Whatever happens, a checkpoint that is whole holds what one
 * worker alone would have had after that step, with the digest that the members' reports had; who
 * starts from one goes on as if nothing had happened; and so does a group that goes back.
 *
 * Workers are threads, each with a saver over one memory of blobs. cmocka's assertions may not be
 * used on them: there CHECK counts. */
#include "ckpt/saver.h"
#include "ddp/ddp.h"
#include "support/elastic_runner.h"
#include "support/shared_blobs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <unistd.h>

#include <cmocka.h>
#undef fail /* a macro of cmocka, a member of the runner */

enum { SHARDS = 5, WIDE = 33, MOST_STEPS = 24, KINDS = RF_CHECKPOINT_NONE + 1 };
enum { PATIENCE_MS = 60000 };

struct state {
    float wide[WIDE], one[1];
    double moments[2];
};

struct job {
    struct world world;
    int workers, from, steps;
    uint64_t resume;
    bool fixed;               /* the group */
    int apart;                /* the worker that has another place for checkpoints; 0: none */
    bool is_other;            /* the model: less of the further state */
    bool saves;               /* after every second step, and the last */
    uint64_t order_at, order; /* in step order_at, once, an order to go back to `order`; 0: none */

    /* Results. */
    pthread_mutex_t lock;
    uint64_t state_digests[MOST_STEPS + 1]; /* of the state before the step, as reported with a save
                                             */
    int code[WORLD_WORKERS];
    struct rf_error error[WORLD_WORKERS];
    bool finished[WORLD_WORKERS];
    int told[WORLD_WORKERS][KINDS];
    struct rf_checkpoint_news last[WORLD_WORKERS][KINDS]; /* but for its texts */
    char texts[WORLD_WORKERS][KINDS][160];
    uint64_t first_step[WORLD_WORKERS];
};

static struct shared_blobs store, elsewhere;
static struct state expected[MOST_STEPS + 1]; /* before each step */

/* ---- what one worker alone computes */

static float gradient_of(uint64_t step, uint32_t shard, size_t i) {
    return (float)((int)((shard * 7 + i * 3 + (uint32_t)step * 5) % 31) - 15);
}

static void expect(void) {
    for (size_t i = 0; i < WIDE; i++) {
        expected[0].wide[i] = (float)i / 8;
    }
    for (uint64_t step = 0; step < MOST_STEPS; step++) {
        struct state *s = &expected[step + 1];
        *s = expected[step];
        for (size_t i = 0; i < WIDE; i++) {
            float sum = 0;
            for (uint32_t k = 0; k < SHARDS; k++) {
                sum += gradient_of(step, k, i);
            }
            s->wide[i] -= (float)((double)sum / SHARDS);
        }
        s->one[0] -= (float)step;
        s->moments[0] += (double)step + 1;
        s->moments[1] = s->moments[1] / 2 + 1;
    }
}

/* ---- a worker */

struct self {
    struct job *job;
    int id;
};

static void told(void *context, const struct rf_checkpoint_news *news) {
    struct self *self = context;
    struct job *job = self->job;

    job->told[self->id][news->kind]++;
    job->last[self->id][news->kind] = *news;
    snprintf(job->texts[self->id][news->kind], sizeof job->texts[0][0], "%s|%s", news->name,
             news->text);
}

static int do_shard(struct rf_ddp *ddp, int id, const struct rf_step *step,
                    const struct rf_shard *shard) {
    rf__ddp_shard_samples(ddp, 1);
    if (step->measure) {
        return rf__ddp_shard_done(ddp, 3);
    }
    for (size_t i = 0; i < WIDE; i++) {
        rf__ddp_grad(ddp, 0)[i] += gradient_of(step->step, shard->index, i);
    }
    rf__ddp_grad(ddp, 1)[0] += (float)step->step;
    int rc = rf__ddp_ready(ddp, 0);
    CHECK(rc == 0);
    rc = rc ? rc : rf__ddp_ready(ddp, 1);
    return rc ? rc : rf__ddp_shard_done(ddp, shard->index);
}

static void update(const struct rf_ddp *ddp, uint64_t step, struct state *state) {
    for (size_t i = 0; i < WIDE; i++) {
        state->wide[i] -= rf__ddp_average(ddp, 0)[i];
    }
    state->one[0] -= rf__ddp_average(ddp, 1)[0];
    state->moments[0] += (double)step + 1;
    state->moments[1] = state->moments[1] / 2 + 1;
}

static void ask(struct job *job, struct rf_ddp *ddp, const struct rf_step *step) {
    bool is_last = step->step + 1 == (uint64_t)job->steps;

    if (!step->measure && (step->step + 1) % 3 == 0) {
        rf__ddp_request_measure(ddp);
    }
    if (job->saves && !step->measure && ((step->step + 1) % 2 == 0 || is_last)) {
        rf__ddp_request_checkpoint(ddp, true); /* that is waited for: so each is taken */
    }
    pthread_mutex_lock(&job->world.lock);
    if (job->order_at && job->order_at == step->step) {
        job->order_at = 0;
        job->world.ordered = true;
        job->world.order = job->order;
    }
    pthread_mutex_unlock(&job->world.lock);
}

/* One unit, as far as it gets. */
static int do_unit(struct job *job, struct rf_ddp *ddp, int id, struct state *state, bool *done) {
    struct rf_step step;
    struct rf_step_report report;
    struct rf_shard shard;

    int rc = rf__ddp_begin(ddp, &step, &job->error[id]);
    if (rc) {
        return rc;
    }
    if (job->first_step[id] == UINT64_MAX) {
        job->first_step[id] = step.step;
    }
    while ((rc = rf__ddp_next_shard(ddp, &shard)) > 0) {
        rc = do_shard(ddp, id, &step, &shard);
        CHECK(rc == 0);
    }
    ask(job, ddp, &step);
    rc = rf__ddp_commit(ddp, &report, &job->error[id]);
    if (rc) {
        return rc == RF_RETRY ? 0 : rc;
    }
    CHECK(memcmp(state, &expected[step.step], sizeof *state) == 0);
    CHECK(report.samples == SHARDS && !report.save_late);
    if (report.saved) {
        pthread_mutex_lock(&job->lock);
        uint64_t *digest = &job->state_digests[step.step];
        CHECK(report.state_digest != 0);
        CHECK(*digest == 0 || *digest == report.state_digest);
        *digest = report.state_digest;
        pthread_mutex_unlock(&job->lock);
    }
    if (step.measure) {
        *done = step.step == (uint64_t)job->steps;
    } else {
        update(ddp, step.step, state);
    }
    return 0;
}

static int prepare(struct self *self, struct state *state, struct rf__runner *runner,
                   struct rf__saver **saver, struct rf_ddp **ddp) {
    struct job *job = self->job;
    int id = self->id;
    struct rf__saver_options saving = {
        .where = "memory:/ckpt", .job = "job", .resume = job->resume};
    struct rf_ddp_options options;
    const size_t shape[2] = {3, 11};

    rf__ddp_options_init(&options);
    options.shards = SHARDS;
    options.hash_every = 1;
    options.first_bucket_bytes = options.bucket_bytes = 64;
    int rc = rf__saver_create(shared_handle(job->apart && job->apart == id ? &elsewhere : &store),
                              &saving, saver, &job->error[id]);
    CHECK(rc == 0);
    rc = rf__ddp_create(runner, &options, ddp, &job->error[id]);
    CHECK(rc == 0);
    rc = rf__ddp_register(*ddp, "wide", state->wide, WIDE, NULL);
    CHECK(rc == 0);
    rc = rf__ddp_register(*ddp, "one", state->one, 1, NULL);
    CHECK(rc == 0);
    rc = rf__ddp_shape(*ddp, 0, shape, 2, NULL);
    CHECK(rc == 0);
    rc = rf__ddp_register_state(*ddp, "moments", state->moments,
                                sizeof state->moments / (job->is_other ? 2 : 1), NULL);
    CHECK(rc == 0);
    CHECK(rf__ddp_may_keep(*ddp, NULL) == 0);
    rf__ddp_keep(*ddp, *saver, told, self);
    CHECK(rf__ddp_may_keep(*ddp, NULL) == RF_EINVAL);
    return rf__ddp_seal(*ddp, &job->error[id]);
}

static int live(struct self *self, struct rf__runner *runner) {
    struct job *job = self->job;
    int id = self->id;
    struct state state = expected[0];
    struct rf__saver *saver = NULL;
    struct rf_ddp *ddp = NULL;
    bool done = false;

    if (job->from > 0) { /* only what is loaded can be right */
        memset(&state, 0x11 * (id + 1), sizeof state);
    }
    int rc = prepare(self, &state, runner, &saver, &ddp);
    if (rc == 0 && job->fixed) { /* it is there before the first step */
        CHECK(memcmp(&state, &expected[job->from], sizeof state) == 0);
    }
    while (rc == 0 && !done) {
        rc = do_unit(job, ddp, id, &state, &done);
    }
    if (rc == 0) {
        CHECK(memcmp(&state, &expected[job->steps], sizeof state) == 0);
        rc = rf__ddp_finish_checkpoint(ddp, PATIENCE_MS, &job->error[id]);
        CHECK(rc == 0);
        job->finished[id] = rc == 0;
    }
    rf__ddp_destroy(ddp);
    rf__saver_destroy(saver);
    return rc;
}

static void live_elastic(int id, void *context) {
    struct self self = {.job = context, .id = id};
    struct worker *w = &self.job->world.worker[id];

    self.job->code[id] = live(&self, &w->base);
    if (!self.job->fixed) {
        worker_leaves(w, self.job->code[id] == 0);
    }
}

/* ---- jobs */

static int open_store(void **state) {
    (void)state;
    alarm(240);
    expect();
    shared_open(&store);
    return 0;
}

static int close_store(void **state) {
    (void)state;
    alarm(0);
    bool clean =
        store.handles == 0 && store.memory->open_now == 0 && store.memory->writing_now == 0;
    shared_close(&store);
    return clean ? 0 : -1;
}

/* From the checkpoint of step `from`, 0: anew, to `steps`, which 3 divides. */
static struct job *new_job(int workers, int from, int steps) {
    struct job *job = calloc(1, sizeof *job);
    if (!job) {
        abort();
    }
    world_open(&job->world, workers, workers);
    pthread_mutex_init(&job->lock, NULL);
    job->workers = workers;
    job->from = from;
    job->steps = steps;
    job->resume = from ? RF__NEWEST_STEP : RF__RESUME_NONE;
    job->saves = true;
    return job;
}

static void free_job(struct job *job) {
    world_close(&job->world);
    pthread_mutex_destroy(&job->lock);
    free(job);
}

static void run_job(struct job *job) {
    atomic_store(&failed_checks, 0);
    for (int id = 0; id < job->workers; id++) {
        job->first_step[id] = UINT64_MAX;
        if (job->fixed) {
            struct rf__runner *runner = &job->world.worker[id].base;
            runner->elastic = false;
            runner->rank = id;
            runner->size = job->workers;
            runner->generation = 1;
        }
    }
    run_threads(job->workers, live_elastic, job);
    assert_int_equal(atomic_load(&failed_checks), 0);
    assert_true(world_is_content(&job->world));
}

/* All but `dead` (a mask) went through to the end. */
static void assert_finished(const struct job *job, unsigned dead) {
    for (int id = 0; id < job->workers; id++) {
        if (dead & 1u << id) {
            continue;
        }
        if (job->code[id]) {
            print_error("worker %d: %d '%s'\n", id, job->code[id], job->error[id].text);
        }
        assert_true(job->finished[id]);
    }
}

/* Every one that is whole says of the state what the members' reports did, and is usable. Returns a
 * mask of their steps. */
static unsigned look_at_all(const struct job *job, int parts) {
    struct rf__blobs *blobs = shared_handle(&store);
    struct rf__ckpt_list list;
    struct rf_error err = {.code = 0};
    unsigned steps = 0;

    assert_int_equal(rf__ckpt_list(blobs, &list, &err), 0);
    for (int i = 0; i < list.count; i++) {
        const struct rf__ckpt_manifest *m = list.entries[i].manifest;
        if (list.entries[i].condition != RF__CKPT_WHOLE) {
            continue;
        }
        assert_int_equal(rf__ckpt_verify(blobs, m, NULL, NULL, &err), 0);
        assert_int_equal(m->samples, SHARDS * m->id.step);
        if (job->state_digests[m->id.step]) {
            assert_true(m->state_digest == job->state_digests[m->id.step]);
        }
        assert_true(!parts || m->part_count == parts);
        assert_int_equal(m->state.count, 4);
        assert_string_equal(m->state.tensors[0].name, "wide");
        assert_int_equal(m->state.tensors[0].dims, 2);
        assert_true(m->state.tensors[0].shape[0] == 3 && m->state.tensors[0].shape[1] == 11);
        assert_int_equal(m->state.tensors[1].dims, 1);
        assert_int_equal(m->state.tensors[1].shape[0], 1);
        steps |= 1u << m->id.step;
    }
    rf__ckpt_list_free(&list);
    blobs->ops->destroy(blobs);
    return steps;
}

/* A training of 6 steps, whose checkpoints stay. */
static void train_six(int workers) {
    struct job *job = new_job(workers, 0, 6);
    run_job(job);
    assert_finished(job, 0);
    assert_int_equal(look_at_all(job, workers), 1u << 0 | 1u << 2 | 1u << 4 | 1u << 6);
    for (int id = 0; id < workers; id++) {
        assert_int_equal(job->told[id][RF_CHECKPOINT_NONE], 1);
        assert_int_equal(job->told[id][RF_CHECKPOINT_SAVED], id == 0 ? 4 : 0);
        assert_int_equal(job->told[id][RF_CHECKPOINT_FAILED], 0);
    }
    assert_int_equal(job->last[0][RF_CHECKPOINT_SAVED].step, 6);
    free_job(job);
}

static void checkpoints_hold_what_the_reports_said(void **state) {
    (void)state;
    for (int workers = 1; workers <= 4; workers++) {
        train_six(workers);
        shared_empty(&store);
    }
}

static void assert_returned(const struct job *job, uint64_t step, bool rolled_back) {
    for (int id = 0; id < job->workers; id++) {
        assert_int_equal(job->told[id][RF_CHECKPOINT_RETURNED], 1);
        assert_int_equal(job->last[id][RF_CHECKPOINT_RETURNED].step, step);
        assert_int_equal(job->last[id][RF_CHECKPOINT_RETURNED].rolled_back, rolled_back);
    }
}

/* By another number of workers, too. */
static void all_start_from_the_newest(void **state) {
    int steps = 6;
    (void)state;
    train_six(3);
    for (int workers = 1; workers <= 5; workers++) {
        struct job *job = new_job(workers, steps, steps + 3);
        run_job(job);
        assert_finished(job, 0);
        assert_returned(job, (uint64_t)steps, false);
        for (int id = 0; id < workers; id++) {
            assert_int_equal(job->first_step[id], steps);
        }
        (void)look_at_all(job, 0);
        steps += 3;
        free_job(job);
    }
}

/* A bit of each blob with both in its name. */
static void damage(const char *folder, const char *part) {
    pthread_mutex_lock(&store.lock);
    for (int i = 0; i < store.memory->count; i++) {
        struct blob_file *file = &store.memory->files[i];
        if (strstr(file->name, folder) && strstr(file->name, part)) {
            file->bytes[file->length - 3] ^= 1;
        }
    }
    pthread_mutex_unlock(&store.lock);
}

static void what_is_damaged_is_passed_over(void **state) {
    (void)state;
    train_six(3);
    damage("step-00000006", "part-1");
    struct job *job = new_job(2, 6, 9);
    run_job(job);
    assert_finished(job, 0);
    assert_returned(job, 4, false);
    assert_int_equal(job->told[0][RF_CHECKPOINT_BAD], 1); /* by the one that chose */
    assert_int_equal(job->last[0][RF_CHECKPOINT_BAD].step, 6);
    assert_int_equal(job->told[1][RF_CHECKPOINT_BAD], 0);
    free_job(job);
}

/* What was read of it is in the state by then: that is no beginning. */
static void where_all_is_damaged_nothing_begins(void **state) {
    (void)state;
    for (int fixed = 0; fixed < 2; fixed++) {
        train_six(2);
        damage("step-", "part-1");
        struct job *job = new_job(2, 0, 6);
        job->resume = RF__NEWEST_STEP;
        job->fixed = fixed;
        run_job(job);
        for (int id = 0; id < 2; id++) {
            assert_true(job->code[id] == RF_ECHECKPOINT || (fixed && job->code[id] == RF_EREVOKED));
        }
        assert_int_equal(job->told[0][RF_CHECKPOINT_BAD], 4);
        free_job(job);
        shared_empty(&store);
    }
}

/* A worker that does not see what the first has chosen (a folder that is not mounted there, say)
 * ends, and the others go on; nothing is marked. */
static void one_that_looks_elsewhere_ends_alone(void **state) {
    (void)state;
    train_six(3);
    shared_open(&elsewhere);
    for (int who = 1; who < 3; who++) {
        struct job *job = new_job(3, 6, 9);
        job->saves = false;
        job->apart = who;
        run_job(job);
        assert_int_equal(job->code[who], RF_ENOTFOUND);
        assert_finished(job, 1u << who);
        assert_int_equal(job->told[0][RF_CHECKPOINT_BAD], 0);
        assert_int_equal(look_at_all(job, 3), 1u << 0 | 1u << 2 | 1u << 4 | 1u << 6);
        free_job(job);
    }
    shared_close(&elsewhere);
}

/* Whoever starts another model over the same place is told so, and nothing there is harmed. */
static void another_model_is_no_damage(void **state) {
    (void)state;
    train_six(2);
    for (int fixed = 0; fixed < 2; fixed++) {
        struct job *job = new_job(2, 0, 6);
        job->resume = RF__NEWEST_STEP;
        job->is_other = true;
        job->fixed = fixed;
        run_job(job);
        for (int id = 0; id < 2; id++) {
            assert_true(job->code[id] == RF_EINVAL || (fixed && job->code[id] == RF_EREVOKED));
            assert_non_null(strstr(job->error[id].text, "moments"));
        }
        assert_int_equal(job->told[0][RF_CHECKPOINT_BAD], 0);
        assert_int_equal(look_at_all(job, 2), 1u << 0 | 1u << 2 | 1u << 4 | 1u << 6);
        free_job(job);
    }
}

static void a_named_step_is_the_one(void **state) {
    (void)state;
    train_six(2);
    struct job *job = new_job(2, 2, 6);
    job->resume = 2;
    run_job(job);
    assert_finished(job, 0);
    assert_returned(job, 2, false);
    free_job(job);
    job = new_job(2, 2, 6);
    job->resume = 3; /* which nobody has */
    run_job(job);
    for (int id = 0; id < 2; id++) {
        assert_int_equal(job->code[id], RF_EINVAL);
        assert_non_null(strstr(job->error[id].text, "step 3"));
    }
    free_job(job);
}

static void what_is_there_is_not_begun_over(void **state) {
    (void)state;
    train_six(2);
    struct job *job = new_job(3, 0, 6);
    run_job(job);
    for (int id = 0; id < 3; id++) {
        assert_int_equal(job->code[id], RF_EEXISTS);
    }
    free_job(job);
}

/* A member dies in each of its calls while all load: the others start from there all the same. */
static void one_dies_while_all_return(void **state) {
    (void)state;
    train_six(3);
    for (int workers = 2; workers <= 3; workers++) {
        for (int who = 0; who < workers; who++) {
            for (int at = 0; at < 14; at++) {
                struct job *job = new_job(workers, 6, 9);
                job->saves = false;
                job->world.fault[0] = (struct fault){.kind = FAULT_DIES, .who = who, .at = at};
                run_job(job);
                assert_int_equal(job->world.fault[0].hits, 1);
                assert_int_equal(job->code[who], RF_ELOST);
                assert_finished(job, 1u << who);
                free_job(job);
            }
        }
    }
}

/* The meetings of a return, complete on some of the members only. */
static void a_return_is_cut_for_each_set_of_members(void **state) {
    (void)state;
    train_six(3);
    for (int at = 0; at < 6; at++) {
        for (unsigned mask = 0; mask < 8; mask++) {
            int who = 2 - at % 3;
            struct job *job = new_job(3, 6, 9);
            job->saves = false;
            job->world.fault[0] =
                (struct fault){.kind = FAULT_CUT, .who = who, .at = at, .mask = mask};
            run_job(job);
            assert_int_equal(job->world.fault[0].hits, 1);
            assert_finished(job, 1u << who);
            free_job(job);
        }
    }
}

/* A bit of a parameter changes on one of two: nobody can tell on which. */
static void two_that_differ_go_back(void **state) {
    (void)state;
    for (int at = 1; at < 8; at++) {
        struct job *job = new_job(2, 0, 6);
        job->world.fault[0] = (struct fault){.kind = FAULT_FLIP, .who = at % 2, .at = at};
        run_job(job);
        assert_int_equal(job->world.fault[0].hits, 1);
        assert_finished(job, 0);
        assert_int_equal(job->world.rollbacks, 1);
        for (int id = 0; id < 2; id++) {
            assert_int_equal(job->told[id][RF_CHECKPOINT_RETURNED], 1);
            assert_true(job->last[id][RF_CHECKPOINT_RETURNED].rolled_back);
        }
        assert_true(look_at_all(job, 2) & 1u << 6);
        free_job(job);
        shared_empty(&store);
    }
}

/* Of three the majority is right, and nobody goes back. Whoever copied then writes its part of what
 * all hold: the last one's has the counts in it. */
static void one_of_three_copies(void **state) {
    (void)state;
    for (int n = 0; n < 18; n++) {
        struct job *job = new_job(3, 0, 6);
        int who = n % 3, at = 1 + n / 3; /* the last unit has number 7 */
        job->world.fault[0] = (struct fault){.kind = FAULT_FLIP, .who = who, .at = at};
        run_job(job);
        assert_int_equal(job->world.fault[0].hits, 1);
        assert_finished(job, 0);
        assert_int_equal(job->world.rollbacks, 0);
        assert_true(look_at_all(job, 0) & 1u << 6);
        free_job(job);
        shared_empty(&store);
    }
}

/* Before the first checkpoint there is nothing to go back to. */
static void differing_from_the_start_is_final(void **state) {
    (void)state;
    struct job *job = new_job(2, 0, 6);
    job->world.fault[0] = (struct fault){.kind = FAULT_FLIP, .who = 1, .at = 0};
    run_job(job);
    for (int id = 0; id < 2; id++) {
        assert_int_equal(job->code[id], RF_ESTATELESS);
        assert_non_null(strstr(job->error[id].text, "no checkpoint"));
    }
    free_job(job);
}

static void an_order_is_followed(void **state) {
    (void)state;
    struct job *job = new_job(3, 0, 6);
    job->order_at = 5;
    job->order = 3;
    run_job(job);
    assert_finished(job, 0);
    assert_int_equal(job->world.rollbacks, 1);
    assert_returned(job, 2, true);
    assert_true(look_at_all(job, 3) & 1u << 6);
    free_job(job);
}

/* ---- fixed groups, and what is asked for wrongly */

static void a_fixed_group_returns_at_its_seal(void **state) {
    (void)state;
    for (int from = 0; from <= 6; from += 6) {
        struct job *job = new_job(3, from, from + 6);
        job->fixed = true;
        run_job(job);
        assert_finished(job, 0);
        if (from) {
            assert_returned(job, 6, false);
        }
        assert_int_equal(look_at_all(job, 3), (1u << 0 | 1u << 2 | 1u << 4 | 1u << 6) |
                                                  (from ? 1u << 8 | 1u << 10 | 1u << 12 : 0));
        free_job(job);
    }
    struct job *job = new_job(2, 0, 6); /* and not over what is there */
    job->fixed = true;
    run_job(job);
    for (int id = 0; id < 2; id++) { /* or the other was faster, and its word ended the group */
        assert_true(job->code[id] == RF_EEXISTS || job->code[id] == RF_EREVOKED);
        assert_non_null(strstr(job->error[id].text, "earlier training, up to step 12"));
    }
    assert_true(job->code[0] == RF_EEXISTS || job->code[1] == RF_EEXISTS);
    free_job(job);
}

static void shapes_are_those_of_the_elements(void **state) {
    static const size_t good[4] = {1, 2, 3, 4}, flat[1] = {24}, less[2] = {4, 5}, more[2] = {5, 5},
                        none[2] = {0, 24}, huge[2] = {SIZE_MAX / 2 + 2, 24}, short_one[2] = {24, 2};
    struct rf_ddp_options options;
    struct world *world = calloc(1, sizeof *world);
    struct rf_ddp *ddp = NULL;
    struct rf_error err = {.code = 0};
    float wide[24] = {0};
    (void)state;

    world_open(world, 1, 1);
    rf__ddp_options_init(&options);
    options.shards = 1;
    assert_int_equal(rf__ddp_create(&world->worker[0].base, &options, &ddp, NULL), 0);
    assert_int_equal(rf__ddp_register(ddp, "wide", wide, 24, NULL), 0);
    assert_int_equal(rf__ddp_shape(ddp, 0, good, 4, &err), 0);
    assert_int_equal(rf__ddp_shape(ddp, 0, less, 2, &err), RF_EINVAL);
    assert_non_null(strstr(err.text, "wide"));
    assert_int_equal(rf__ddp_shape(ddp, 0, more, 2, &err), RF_EINVAL);
    assert_int_equal(rf__ddp_shape(ddp, 0, none, 2, &err), RF_EINVAL);
    assert_int_equal(rf__ddp_shape(ddp, 0, huge, 2, &err), RF_EINVAL);
    assert_int_equal(rf__ddp_shape(ddp, 0, short_one, 2, &err), RF_EINVAL);
    assert_int_equal(rf__ddp_shape(ddp, 0, good, 0, &err), RF_EINVAL);
    assert_int_equal(rf__ddp_shape(ddp, 0, good, RF__CKPT_DIMS + 1, &err), RF_EINVAL);
    assert_int_equal(rf__ddp_shape(ddp, 1, good, 4, &err), RF_EINVAL);
    assert_int_equal(rf__ddp_shape(ddp, -1, good, 4, &err), RF_EINVAL);

    /* what was refused has changed nothing of what was said before */
    struct rf__saver_options saving = {
        .where = "memory:/ckpt", .job = "job", .resume = RF__RESUME_NONE};
    struct rf__saver *saver = NULL;
    assert_int_equal(rf__saver_create(shared_handle(&store), &saving, &saver, &err), 0);
    rf__ddp_keep(ddp, saver, NULL, NULL);
    assert_int_equal(rf__ddp_seal(ddp, &err), 0);
    assert_int_equal(rf__ddp_shape(ddp, 0, flat, 1, &err), RF_EINVAL); /* too late */
    struct rf_step step;
    struct rf_step_report report;
    struct rf_shard shard;
    assert_int_equal(rf__ddp_begin(ddp, &step, &err), 0); /* takes the first one */
    assert_int_equal(rf__ddp_next_shard(ddp, &shard), 1);
    rf__ddp_shard_samples(ddp, 1);
    assert_int_equal(rf__ddp_ready(ddp, 0), 0);
    assert_int_equal(rf__ddp_shard_done(ddp, 0), 0);
    assert_int_equal(rf__ddp_next_shard(ddp, &shard), 0);
    assert_int_equal(rf__ddp_commit(ddp, &report, &err), 0);
    assert_true(report.saved);
    assert_int_equal(rf__ddp_finish_checkpoint(ddp, PATIENCE_MS, &err), 0);
    struct rf__ckpt_list list;
    struct rf__blobs *blobs = shared_handle(&store);
    assert_int_equal(rf__ckpt_list(blobs, &list, &err), 0);
    assert_int_equal(list.count, 1);
    assert_int_equal(list.entries[0].condition, RF__CKPT_WHOLE);
    const struct rf__ckpt_tensor *tensor = &list.entries[0].manifest->state.tensors[0];
    assert_int_equal(tensor->dims, 4);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(tensor->shape[i], good[i]);
    }
    rf__ckpt_list_free(&list);
    blobs->ops->destroy(blobs);
    rf__ddp_destroy(ddp);
    rf__saver_destroy(saver);
    world_close(world);
    free(world);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, open_store, close_store)
    const struct CMUnitTest tests[] = {
        TEST(checkpoints_hold_what_the_reports_said),
        TEST(all_start_from_the_newest),
        TEST(what_is_damaged_is_passed_over),
        TEST(where_all_is_damaged_nothing_begins),
        TEST(one_that_looks_elsewhere_ends_alone),
        TEST(another_model_is_no_damage),
        TEST(a_named_step_is_the_one),
        TEST(what_is_there_is_not_begun_over),
        TEST(one_dies_while_all_return),
        TEST(a_return_is_cut_for_each_set_of_members),
        TEST(two_that_differ_go_back),
        TEST(one_of_three_copies),
        TEST(differing_from_the_start_is_final),
        TEST(an_order_is_followed),
        TEST(a_fixed_group_returns_at_its_seal),
        TEST(shapes_are_those_of_the_elements),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
