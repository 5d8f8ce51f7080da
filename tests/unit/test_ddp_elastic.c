/* ddp/ in an elastic group: members die at every point, come back, differ; and whatever happens,
 * what is committed is what one worker alone would have computed, bit for bit, on every survivor.
 *
 * Gradients are small integers, so that sums are exact in any order; one tensor marks each shard in
 * a place of its own, so that its average proves that each was used once. A worker that starts anew
 * starts from other parameters, so that only a whole copy can make it right.
 *
 * cmocka's assertions may not be used on the workers' threads: there CHECK counts. */
#include "ddp/ddp.h"
#include "support/elastic_runner.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <unistd.h>

#include <cmocka.h>
#undef fail /* a macro of cmocka, a member of the runner */

enum { MOST_SHARDS = 16, WIDE = 37, STEPS = 4, TENSORS = 3, MOST_STARTS = 3 };

struct state {
    float marks[MOST_SHARDS], wide[WIDE], one[1];
    double moments[2];
};

struct job {
    struct world world;
    int first, workers;
    uint32_t shards, hash_every;
    int steps, measure_every;
    int starts[WORLD_WORKERS]; /* how often each may start */
    bool stops[WORLD_WORKERS]; /* asks for a stop in step 2 */
    bool ends_early;
    bool patient;                    /* all wait for one that comes back before they begin a unit */
    int64_t shard_ns[WORLD_WORKERS]; /* what a shard takes */

    struct state expected[STEPS * 8 + 1]; /* before each step */

    /* Results. */
    pthread_mutex_t lock;
    uint64_t digests[WORLD_UNITS];
    int code[WORLD_WORKERS];
    struct rf_error error[WORLD_WORKERS];
    bool finished[WORLD_WORKERS];
    int commits[WORLD_WORKERS], measures[WORLD_WORKERS], retries[WORLD_WORKERS];
    int healed[WORLD_WORKERS];
    uint32_t redone;
};

/* ---- what one worker alone computes */

static float gradient_of(uint64_t step, uint32_t shard, size_t i) {
    return (float)((int)((shard * 7 + i * 3 + (uint32_t)step * 5) % 31) - 15);
}

static void expect(struct job *job) {
    struct state *s = &job->expected[0];

    for (size_t i = 0; i < WIDE; i++) {
        s->wide[i] = (float)i / 8;
    }
    for (int step = 0; step < job->steps; step++) {
        s = &job->expected[step + 1];
        *s = job->expected[step];
        double v = job->shards;
        for (uint32_t k = 0; k < job->shards; k++) {
            s->marks[k] -= (float)(1 / v);
        }
        for (size_t i = 0; i < WIDE; i++) {
            float sum = 0;
            for (uint32_t k = 0; k < job->shards; k++) {
                sum += gradient_of((uint64_t)step, k, i);
            }
            s->wide[i] -= (float)((double)sum / v);
        }
        s->one[0] -= (float)((double)step * v / v);
        s->moments[0] += step + 1;
        s->moments[1] = s->moments[1] / 2 + 1;
    }
}

/* ---- a worker */

static int do_shard(struct job *job, struct rf_ddp *ddp, int id, const struct rf_step *step,
                    const struct rf_shard *shard) {
    struct worker *w = &job->world.worker[id];

    w->clock_ns += job->shard_ns[id];
    CHECK(shard->index < job->shards && shard->shards == job->shards);
    CHECK(shard->step == step->step && !step->healing);
    if (step->measure) {
        CHECK(rf__ddp_grad(ddp, 0) == NULL);
        rf__ddp_shard_samples(ddp, 2);
        rf__ddp_tally(ddp, shard->index);
        rf__ddp_tally(ddp, 1);
        return rf__ddp_shard_done(ddp, 3);
    }
    rf__ddp_shard_samples(ddp, 1);
    rf__ddp_grad(ddp, 0)[shard->index] += 1;
    for (size_t i = 0; i < WIDE; i++) {
        rf__ddp_grad(ddp, 1)[i] += gradient_of(step->step, shard->index, i);
    }
    rf__ddp_grad(ddp, 2)[0] += (float)step->step;
    for (int t = 0; t < TENSORS; t++) { /* against the order of registration */
        int rc = rf__ddp_ready(ddp, t == 0 ? 1 : t == 1 ? 0 : 2);
        if (rc) {
            return rc;
        }
    }
    return rf__ddp_shard_done(ddp, shard->index);
}

static void check_commit(struct job *job, int id, const struct rf_step *step,
                         const struct rf_step_report *report, const struct state *state,
                         uint64_t unit) {
    double v = job->shards;

    CHECK(report->measure == step->measure && report->step == step->step);
    CHECK(report->samples == (step->measure ? 2 : 1) * job->shards);
    CHECK(report->loss == (step->measure ? 3 * v : v * (v - 1) / 2) / (double)report->samples);
    CHECK(report->tally == (step->measure ? v * (v + 1) / 2 : 0));
    CHECK(report->state_digest != 0 || !step->measure);
    CHECK(memcmp(state, &job->expected[step->step], sizeof *state) == 0);
    pthread_mutex_lock(&job->lock);
    CHECK(job->digests[unit] == 0 || job->digests[unit] == report->digest);
    job->digests[unit] = report->digest;
    job->redone += report->redone;
    pthread_mutex_unlock(&job->lock);
}

static void update(const struct job *job, const struct rf_ddp *ddp, int id, uint64_t step,
                   struct state *state) {
    const float *marks = rf__ddp_average(ddp, 0), *wide = rf__ddp_average(ddp, 1);

    for (uint32_t k = 0; k < job->shards; k++) {
        CHECK(marks[k] == (float)(1 / (double)job->shards)); /* each shard once */
        state->marks[k] -= marks[k];
    }
    for (size_t i = 0; i < WIDE; i++) {
        state->wide[i] -= wide[i];
    }
    state->one[0] -= rf__ddp_average(ddp, 2)[0];
    state->moments[0] += (double)step + 1;
    state->moments[1] = state->moments[1] / 2 + 1;
}

/* One unit, as far as it gets. */
static int do_unit(struct job *job, struct rf_ddp *ddp, int id, struct state *state, bool *done) {
    struct rf_step step;
    struct rf_step_report report;
    struct rf_shard shard;

    if (job->patient && job->world.worker[id].base.generation) {
        await_others(&job->world, id);
    }
    int rc = rf__ddp_begin(ddp, &step, &job->error[id]);
    if (rc) {
        return rc;
    }
    CHECK(step.size >= 1 && step.rank >= 0 && step.rank < step.size);
    CHECK(step.shards == job->shards && !(step.healing && step.resumed));
    while ((rc = rf__ddp_next_shard(ddp, &shard)) > 0) {
        rc = do_shard(job, ddp, id, &step, &shard);
        CHECK(rc == 0);
    }
    CHECK(rc == 0);
    if (job->stops[id] && step.step == 2 && !step.measure) {
        rf__ddp_request_stop(ddp);
    }
    if (!step.measure && (step.step + 1) % (uint64_t)job->measure_every == 0) {
        rf__ddp_request_measure(ddp);
    }
    uint64_t unit = step.step + step.step / (uint64_t)job->measure_every - step.measure;
    rc = rf__ddp_commit(ddp, &report, &job->error[id]);
    if (rc == RF_RETRY) {
        CHECK(rf__ddp_average(ddp, 0) == NULL);
        job->retries[id]++;
        return 0;
    }
    if (rc) {
        return rc;
    }
    job->healed[id] += step.healing;
    job->commits[id]++;
    check_commit(job, id, &step, &report, state, unit);
    if (step.measure) {
        job->measures[id]++;
        CHECK(rf__ddp_average(ddp, 0) == NULL);
        *done = step.step == (uint64_t)job->steps;
    } else {
        update(job, ddp, id, step.step, state);
    }
    *done = *done || report.stop;
    return 0;
}

static int live_once(int id, bool is_first, void *context) {
    struct job *job = context;
    struct worker *w = &job->world.worker[id];
    struct state state = job->expected[0];
    struct rf_ddp_options options;
    struct rf_ddp *ddp = NULL;
    bool fresh = is_first && id < job->first, done = false;

    if (!fresh) {
        memset(&state, 0x11 * (id + 1), sizeof state);
        memset(state.marks + job->shards, 0, sizeof state.marks - job->shards * sizeof(float));
    }
    rf__ddp_options_init(&options);
    options.shards = job->shards;
    options.hash_every = job->hash_every;
    options.first_bucket_bytes = options.bucket_bytes = 32;
    int rc = rf__ddp_create(&w->base, &options, &ddp, &job->error[id]);
    CHECK(rc == 0);
    rc = rf__ddp_register(ddp, "marks", state.marks, job->shards, NULL);
    CHECK(rc == 0);
    rc = rf__ddp_register(ddp, "wide", state.wide, WIDE, NULL);
    CHECK(rc == 0);
    rc = rf__ddp_register(ddp, "one", state.one, 1, NULL);
    CHECK(rc == 0);
    rc = rf__ddp_register_state(ddp, "moments", state.moments, sizeof state.moments, NULL);
    CHECK(rc == 0);
    rc = rf__ddp_seal(ddp, &job->error[id]);
    if (rc == 0 && fresh) {
        await_others(&job->world, id);
    }
    while (rc == 0 && !done) {
        rc = do_unit(job, ddp, id, &state, &done);
    }
    if (rc == 0) {
        CHECK(memcmp(&state, &job->expected[job->steps], sizeof state) == 0 || job->ends_early);
        job->finished[id] = true;
    } else {
        CHECK(rf__ddp_begin(ddp, NULL, NULL) == rc);
    }
    rf__ddp_destroy(ddp);
    return rc;
}

static void live(int id, void *context) {
    struct job *job = context;
    struct worker *w = &job->world.worker[id];

    job->code[id] = worker_lives(w, job->starts[id], live_once, job);
    worker_leaves(w, job->code[id] == 0);
}

/* ---- jobs */

static struct job *new_job(int first, int workers, uint32_t shards) {
    struct job *job = calloc(1, sizeof *job);
    if (!job) {
        abort();
    }
    world_open(&job->world, first, workers);
    pthread_mutex_init(&job->lock, NULL);
    job->first = first;
    job->workers = workers;
    job->shards = shards;
    job->steps = STEPS;
    job->measure_every = 2;
    for (int id = 0; id < workers; id++) {
        job->starts[id] = 1;
    }
    return job;
}

static void free_job(struct job *job) {
    world_close(&job->world);
    pthread_mutex_destroy(&job->lock);
    free(job);
}

/* Runs it to its end. Whatever came of it, nothing is left over and the oracle was content. */
static void run_job(struct job *job) {
    atomic_store(&failed_checks, 0);
    alarm(60);
    expect(job);
    run_threads(job->workers, live, job);
    alarm(0);
    assert_int_equal(atomic_load(&failed_checks), 0);
    assert_true(world_is_content(&job->world));
}

/* All but `dead` (a mask) went through to the end; a worker that came too late may have found the
 * job over. */
static void assert_survived(const struct job *job, unsigned dead) {
    for (int id = 0; id < job->workers; id++) {
        bool late = job->code[id] == RF_EENDED || job->code[id] == RF_ESTATELESS;
        bool may_be_late = id >= job->first || job->starts[id] > 1;
        if (!(dead & 1u << id) && job->code[id] && !(late && may_be_late)) {
            print_error("worker %d: %d '%s'\n", id, job->code[id], job->error[id].text);
        }
        if (!(dead & 1u << id)) {
            assert_true(job->finished[id] || (late && may_be_late));
        }
    }
}

static void nothing_happens_and_all_commit(void **state) {
    static const uint32_t shards[] = {1, 3, 8, 13};
    (void)state;
    for (int size = 1; size <= 5; size++) {
        for (size_t k = 0; k < sizeof shards / sizeof *shards; k++) {
            struct job *job = new_job(size, size, shards[k]);
            job->hash_every = k % 2;
            run_job(job);
            assert_survived(job, 0);
            for (int id = 0; id < size; id++) {
                assert_int_equal(job->commits[id], 6);
                assert_int_equal(job->measures[id], 2);
                assert_int_equal(job->healed[id], 0);
                assert_true(job->world.worker[id].alive > 6);
                assert_int_equal(job->world.worker[id].events[RF_EVENT_COMMIT] +
                                     job->world.worker[id].events[RF_EVENT_RETRY],
                                 6 + job->retries[id]);
            }
            assert_int_equal(job->redone, 0);
            free_job(job);
        }
    }
}

/* Each of three dies in each of its calls in turn: the two others finish, and where it comes back
 * it is healed. */
static void one_dies_at_every_point(void **state) {
    int healed = 0, redone = 0, retried = 0, points = 0;
    (void)state;
    for (int who = 0; who < 3; who++) {
        for (int back = 0; back < 2; back++) {
            int hits = 1;
            for (int at = 0; hits; at++) {
                struct job *job = new_job(3, 3, 7);
                job->starts[who] += back;
                job->patient = back;
                job->world.worker[who].returns = back;
                job->world.fault[0] = (struct fault){.kind = FAULT_DIES, .who = who, .at = at};
                run_job(job);
                hits = job->world.fault[0].hits;
                assert_survived(job, hits && !back ? 1u << who : 0);
                healed += job->healed[who];
                redone += (int)job->redone;
                retried += job->retries[(who + 1) % 3];
                points++;
                free_job(job);
            }
        }
    }
    assert_true(points > 200);
    assert_true(healed > 50);
    assert_true(redone > 50 && retried > 50);
}

/* Each meeting is complete on some only, whichever they are: so some commit, and others find out.
 */
static void a_meeting_is_cut_for_each_set_of_members(void **state) {
    int committed_late = 0;
    (void)state;
    for (int who = 0; who < 3; who++) {
        for (unsigned mask = 0; mask < 8; mask++) {
            int hits = !(mask & 1u << who);
            for (int at = 0; hits; at++) {
                struct job *job = new_job(3, 3, 7);
                job->world.fault[0] =
                    (struct fault){.kind = FAULT_CUT, .who = who, .at = at, .mask = mask};
                run_job(job);
                hits = job->world.fault[0].hits;
                assert_survived(job, hits ? 1u << who : 0);
                committed_late += job->retries[(who + 1) % 3] == 0 && hits;
                free_job(job);
            }
        }
    }
    assert_true(committed_late > 20);
}

/* All but one die at the same time. */
static void one_alone_goes_on(void **state) {
    int hits = 1;
    (void)state;
    for (int at = 0; hits; at += 2) {
        struct job *job = new_job(3, 3, 5);
        for (int who = 0; who < 2; who++) {
            job->world.fault[who] = (struct fault){.kind = FAULT_DIES, .who = who, .at = at + who};
        }
        run_job(job);
        hits = job->world.fault[0].hits && job->world.fault[1].hits;
        unsigned dead = (job->world.fault[0].hits ? 1u : 0) | (job->world.fault[1].hits ? 2u : 0);
        assert_survived(job, dead);
        free_job(job);
    }
}

static void late_workers_are_healed(void **state) {
    (void)state;
    for (int first = 1; first <= 3; first++) {
        int healed = 0;
        for (int round = 0; round < 5; round++) {
            struct job *job = new_job(first, first + 2, 6);
            run_job(job);
            assert_survived(job, 0);
            for (int id = first; id < first + 2; id++) {
                const struct worker *w = &job->world.worker[id];
                assert_int_equal(job->healed[id], w->events[RF_EVENT_HEAL]);
                if (job->healed[id]) {
                    healed++;
                    assert_int_equal(w->last[RF_EVENT_HEAL].bytes,
                                     (6 + WIDE + 1) * sizeof(float) + 2 * sizeof(double));
                    assert_true(w->last[RF_EVENT_HEAL].peer >= 1);
                }
            }
            free_job(job);
        }
        assert_int_equal(healed, 5 * 2);
    }
}

/* A worker is healed while each of the others, or it itself, dies at each point. */
static void healing_is_cut_at_every_point(void **state) {
    int healed = 0, both = 0;
    (void)state;
    for (int who = 0; who < 3; who++) {
        int hits = 1;
        for (int at = 0; hits; at++) {
            struct job *job = new_job(2, 3, 5);
            job->world.fault[0] = (struct fault){.kind = FAULT_DIES, .who = who, .at = at};
            job->steps = 6;
            job->starts[who] = 2;
            run_job(job);
            hits = job->world.fault[0].hits || at < 40;
            assert_survived(job, 0);
            healed += job->healed[2];
            both += job->healed[2] && job->healed[who];
            free_job(job);
        }
    }
    assert_true(healed > 50 && both > 50);
}

/* Whoever dies comes back; two faults at once, over a range of distances. */
static void two_die_and_both_come_back(void **state) {
    (void)state;
    for (int a = 3; a < 60; a += 4) {
        for (int b = 3; b < 60; b += 5) {
            struct job *job = new_job(4, 4, 9);
            job->world.fault[0] = (struct fault){.kind = FAULT_DIES, .who = 1, .at = a};
            job->world.fault[1] = (struct fault){.kind = FAULT_DIES, .who = 3, .at = b};
            job->world.fault[2] = (struct fault){.kind = FAULT_DIES, .who = 1, .at = a + b};
            job->starts[1] = 3;
            job->starts[3] = 2;
            run_job(job);
            assert_survived(job, 0);
            free_job(job);
        }
    }
}

/* ---- what differs */

static void a_flipped_bit_is_healed_by_the_majority(void **state) {
    (void)state;
    for (int who = 0; who < 3; who++) {
        for (int at = 0; at < 4; at++) { /* later there is no unit left to be healed in */
            struct job *job = new_job(3, 3, 7);
            job->hash_every = 1;
            job->world.fault[0] = (struct fault){.kind = FAULT_FLIP, .who = who, .at = at};
            run_job(job);
            assert_survived(job, 0);
            int told = 0;
            for (int id = 0; id < 3; id++) {
                const struct worker *w = &job->world.worker[id];
                told += w->events[RF_EVENT_DIVERGED];
                if (w->events[RF_EVENT_DIVERGED]) {
                    assert_int_not_equal(id, who);
                    assert_int_equal(w->last[RF_EVENT_DIVERGED].peer, who);
                    assert_non_null(strstr(w->last[RF_EVENT_DIVERGED].text, "state 0x"));
                }
            }
            assert_int_equal(job->world.fault[0].hits, 1);
            assert_int_equal(told, 1);
            assert_int_equal(job->healed[who], 1);
            assert_true(job->retries[who] >= 1);
            free_job(job);
        }
    }
}

static void without_a_majority_all_give_up(void **state) {
    (void)state;
    for (int size = 2; size <= 4; size += 2) {
        struct job *job = new_job(size, size, 7);
        job->hash_every = 1;
        for (int who = 0; who < size / 2; who++) {
            job->world.fault[who] = (struct fault){.kind = FAULT_FLIP, .who = who, .at = 3};
        }
        run_job(job);
        for (int id = 0; id < size; id++) {
            assert_int_equal(job->code[id], RF_EDIVERGED);
            assert_false(job->finished[id]);
            assert_int_equal(job->error[id].rank, -1);
        }
        free_job(job);
    }
}

/* A bit of any result changes on one member alone: it never gets into what is committed. */
static void a_bit_of_any_result_is_noticed(void **state) {
    int diverged = 0, at = 0;
    (void)state;
    for (int hits = 1; hits; at++) {
        struct job *job = new_job(3, 3, 7);
        job->world.fault[0] = (struct fault){.kind = FAULT_BIT, .who = 1, .at = at};
        run_job(job);
        hits = job->world.fault[0].hits;
        /* in the last unit nobody is left to heal it */
        assert_survived(job, job->code[1] == RF_ESTATELESS ? 1u << 1 : 0);
        diverged += job->world.worker[0].events[RF_EVENT_DIVERGED];
        free_job(job);
    }
    assert_true(at > 20 && diverged > 3);
}

/* A bit changes in the header (message 0), or in one of the pieces that two donors send. */
static void a_bad_copy_is_not_accepted(void **state) {
    enum { MESSAGES = 6 };
    (void)state;
    for (int at = 0; at < MESSAGES; at++) {
        struct job *job = new_job(2, 3, 7);
        job->world.fault[0] = (struct fault){.kind = FAULT_MESSAGE, .at = at};
        run_job(job);
        assert_survived(job, 0);
        assert_int_equal(job->world.fault[0].hits, 1);
        assert_int_equal(job->healed[2], 1);
        int told = 0;
        for (int id = 0; id < 2; id++) {
            told += job->world.worker[id].events[RF_EVENT_DIVERGED];
        }
        assert_int_equal(told, at > 0);
        assert_true(at == 0 || job->retries[2] >= 1);
        free_job(job);
    }
}

/* ---- requests */

static void a_stop_ends_all_after_the_same_step(void **state) {
    (void)state;
    for (int who = 0; who < 3; who++) {
        struct job *job = new_job(3, 3, 7);
        job->stops[who] = true;
        job->ends_early = true;
        run_job(job);
        for (int id = 0; id < 3; id++) {
            assert_int_equal(job->code[id], 0);
            assert_int_equal(job->commits[id], 4); /* steps 0 and 1, a measurement, step 2 */
        }
        free_job(job);
    }
}

static void a_slow_member_is_told_and_put_out(void **state) {
    (void)state;
    struct job *job = new_job(3, 3, 6);
    job->steps = 12;
    job->measure_every = 12;
    for (int id = 0; id < 3; id++) {
        job->shard_ns[id] = id == 1 ? 20000000 : 1000000;
    }
    run_job(job);
    assert_int_equal(job->world.put_out, 2);
    const struct worker *w = &job->world.worker[0];
    assert_true(w->events[RF_EVENT_SLOW] >= 1);
    assert_int_equal(w->last[RF_EVENT_SLOW].peer, 1);
    assert_true(w->last[RF_EVENT_SLOW].ratio == 20);
    assert_string_equal(w->last[RF_EVENT_SLOW].text, "processor");
    assert_true(job->finished[0] && job->finished[2]);
    free_job(job);
}

/* A fault that no lost member explains is not retried for ever. */
static void what_fails_every_time_is_final(void **state) {
    (void)state;
    struct job *job = new_job(1, 1, 2);
    job->world.chain = 0;
    job->world.units = 3; /* more than anybody holds */
    run_job(job);
    assert_int_equal(job->code[0], RF_ESTATELESS);
    free_job(job);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_happens_and_all_commit),
        cmocka_unit_test(one_dies_at_every_point),
        cmocka_unit_test(a_meeting_is_cut_for_each_set_of_members),
        cmocka_unit_test(one_alone_goes_on),
        cmocka_unit_test(late_workers_are_healed),
        cmocka_unit_test(healing_is_cut_at_every_point),
        cmocka_unit_test(two_die_and_both_come_back),
        cmocka_unit_test(a_flipped_bit_is_healed_by_the_majority),
        cmocka_unit_test(without_a_majority_all_give_up),
        cmocka_unit_test(a_bit_of_any_result_is_noticed),
        cmocka_unit_test(a_bad_copy_is_not_accepted),
        cmocka_unit_test(a_stop_ends_all_after_the_same_step),
        cmocka_unit_test(a_slow_member_is_told_and_put_out),
        cmocka_unit_test(what_fails_every_time_is_final),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
