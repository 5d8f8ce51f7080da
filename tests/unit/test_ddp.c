/* ddp/: the bucket layout, and steps of up to eight ranks in one process against a naive oracle.
 * Gradients are small integers in float32, so sums are exact in any order and averages can be held
 * against the oracle bit for bit.
 *
 * cmocka's assertions may not be used on the ranks' threads: there CHECK counts, and the test looks
 * at the count. */
#include "base/rng.h"
#include "ddp/buckets.h"
#include "ddp/ddp.h"
#include "member/step.h"
#include "support/threaded_runner.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>
#undef fail /* a macro of cmocka, a member of the runner */

/* ---- bucket layout
 * ------------------------------------------------------------------------------------------------
 */

static void buckets_hold_each_tensor_once(void **state) {
    enum { MOST = 40 };
    struct rf__rng rng = rf__rng(7, 0, 0);
    (void)state;
    for (int round = 0; round < 2000; round++) {
        int n = 1 + (int)rf__rng_below(&rng, MOST);
        size_t counts[MOST], first = 4 * (1 + rf__rng_below(&rng, 300));
        size_t other = 4 * (1 + rf__rng_below(&rng, 900));
        int order[MOST], seen[MOST] = {0};
        struct rf__bucket buckets[MOST];
        struct rf__slot slots[MOST];
        for (int i = 0; i < n; i++) {
            counts[i] = 1 + rf__rng_below(&rng, 200);
            order[i] = i;
        }
        for (int i = n - 1; i > 0; i--) {
            int j = (int)rf__rng_below(&rng, (uint64_t)i + 1), swap = order[i];
            order[i] = order[j];
            order[j] = swap;
        }
        int used = rf__buckets_layout(counts, order, n, first, other, buckets, slots);
        size_t floats = rf__buckets_floats(counts, n), end = 0;
        int position = 0;
        assert_true(used >= 1 && used <= n);
        for (int b = 0; b < used; b++) {
            size_t limit = b == 0 ? first : other;
            assert_int_equal(buckets[b].first, position);
            assert_true(buckets[b].tensors >= 1 && buckets[b].offset >= end);
            assert_int_equal(buckets[b].offset % RF__BUCKET_ALIGN, 0);
            int last = order[position + buckets[b].tensors - 1];
            size_t before = slots[last].offset - buckets[b].offset; /* not full without its last */
            assert_true(buckets[b].tensors == 1 || (before + 1 - RF__BUCKET_ALIGN) * 4 < limit ||
                        before < RF__BUCKET_ALIGN);
            for (int k = position; k < position + buckets[b].tensors; k++) {
                int t = order[k];
                seen[t]++;
                assert_int_equal(slots[t].bucket, b);
                assert_int_equal(slots[t].offset % RF__BUCKET_ALIGN, 0);
                assert_true(slots[t].offset >= end); /* no overlap */
                end = slots[t].offset + counts[t];
            }
            assert_int_equal(end, buckets[b].offset + buckets[b].count);
            position += buckets[b].tensors;
            assert_true(b + 1 == used || buckets[b].count * 4 >= limit / 4 * 4); /* full */
        }
        assert_int_equal(position, n);
        assert_true(end <= floats);
        for (int i = 0; i < n; i++) {
            assert_int_equal(seen[i], 1);
        }
    }
}

static void sizes_that_do_not_fit_are_refused(void **state) {
    size_t counts[] = {SIZE_MAX / 32, SIZE_MAX / 32, SIZE_MAX / 32, SIZE_MAX};
    (void)state;
    assert_true(rf__buckets_floats(counts, 1) > 0);
    assert_int_equal(rf__buckets_floats(counts, 3), 0);
    assert_int_equal(rf__buckets_floats(counts + 3, 1), 0);
}

/* ---- jobs
 * ---------------------------------------------------------------------------------------------------------
 */

enum { MOST_TENSORS = 400, MOST_STEPS = 8 };

enum readiness { READY_BACKWARD, READY_FORWARD, READY_MIXED, READY_SOME };

struct job {
    struct group group;
    int size, steps, tensors;
    size_t counts[MOST_TENSORS];
    struct rf_ddp_options options;
    enum readiness readiness;
    bool fractions;  /* gradients that are no integers */
    bool no_samples; /* in step 1 */

    /* What goes wrong on `odd`, or what it asks for; -1: nothing. */
    int odd;
    bool odd_state, odd_shape, odd_leaves, odd_memory, odd_stops;
    bool no_allocation; /* from step 2 on */

    /* Results, by rank. */
    int code[RUNNER_RANKS];
    struct rf_error error[RUNNER_RANKS];
    int committed[RUNNER_RANKS];
    struct rf_step_report reports[RUNNER_RANKS][MOST_STEPS];
    uint64_t state[RUNNER_RANKS];
    int started_in_ready[RUNNER_RANKS][MOST_STEPS];    /* operations */
    int started_before_last[RUNNER_RANKS][MOST_STEPS]; /* of them before the last call of ready */
    int first_bucket_of_0[RUNNER_RANKS][MOST_STEPS];   /* the bucket of tensor 0 */
    int bucket_count[RUNNER_RANKS][MOST_STEPS];
};

static struct job *new_job(int size, int tensors) {
    struct job *job = calloc(1, sizeof *job);
    if (!job) {
        abort();
    }
    group_open(&job->group, size);
    job->size = size;
    job->steps = 4;
    job->tensors = tensors;
    job->odd = -1;
    for (int i = 0; i < tensors; i++) {
        job->counts[i] = 1 + (size_t)(i * 37 % 61);
    }
    rf__ddp_options_init(&job->options);
    job->options.first_bucket_bytes = 128;
    job->options.bucket_bytes = 512;
    return job;
}

static void free_job(struct job *job) {
    group_close(&job->group);
    free(job);
}

static uint32_t shards_of(const struct job *job) {
    return job->options.shards ? job->options.shards : (uint32_t)job->size;
}

static uint64_t samples_of(const struct job *job, int step, uint32_t shard) {
    if (job->no_samples && step == 1) {
        return 0;
    }
    return (shard * 5 + (uint32_t)step) % 4 * 3; /* uneven, and none now and then */
}

static float gradient_of(const struct job *job, int step, uint32_t shard, int tensor, size_t i) {
    if (samples_of(job, step, shard) == 0) {
        return 0;
    }
    float value = (float)((int)((shard * 7 + (uint32_t)tensor * 3 + i + (uint32_t)step) % 31) - 15);
    return job->fractions ? value / 7 : value;
}

static float average_of(const struct job *job, int step, int tensor, size_t i) {
    uint64_t samples = 0;
    double sum = 0;
    for (uint32_t v = 0; v < shards_of(job); v++) {
        samples += samples_of(job, step, v);
        sum += (double)gradient_of(job, step, v, tensor, i);
    }
    return samples ? (float)sum / (float)samples : 0;
}

/* The tensor whose gradient becomes ready as the k-th; -1: none any more. */
static int ready_at(const struct job *job, int rank, int step, int k) {
    int last = job->tensors - 1;
    switch (job->readiness) {
    case READY_BACKWARD:
        return last - k;
    case READY_FORWARD:
        return k;
    case READY_MIXED: /* another order on each rank and in each step */
        return (k + rank * 3 + step * 5) % job->tensors;
    case READY_SOME:
        return k < last / 2 ? last - 2 * k : -1;
    }
    return -1;
}

static void check_averages(const struct job *job, const struct rf_ddp *ddp, int rank, int step) {
    for (int t = 0; t < job->tensors && !job->fractions; t++) {
        const float *average = rf__ddp_average(ddp, t);
        int wrong = 0;
        for (size_t i = 0; i < job->counts[t]; i++) {
            float expected = average_of(job, step, t, i);
            expected = expected == 0 ? 0 : expected; /* -0 is 0 for this */
            wrong += !(average[i] == expected);
        }
        CHECK(wrong == 0);
    }
}

static int do_shard(struct job *job, struct rf_ddp *ddp, int rank, const struct rf_shard *shard,
                    bool last) {
    struct member *self = &job->group.members[rank];
    int step = (int)shard->step, rc = 0;

    rf__ddp_shard_samples(ddp, samples_of(job, step, shard->index));
    rf__ddp_shard_skipped(ddp, shard->index % 3); /* twice: they add up */
    rf__ddp_shard_skipped(ddp, 1);
    for (int t = 0; t < job->tensors; t++) {
        bool fresh = false;
        float *gradient =
            (t + step) % 2 ? rf__ddp_grad_fresh(ddp, t, &fresh) : rf__ddp_grad(ddp, t);
        for (size_t i = 0; i < job->counts[t]; i++) {
            float add = gradient_of(job, step, shard->index, t, i);
            gradient[i] = fresh ? add : gradient[i] + add;
        }
    }
    self->clock_ns += 1000000000ll * (rank + 1);
    for (int k = 0; k < job->tensors && rc == 0; k++) {
        int t = ready_at(job, rank, step, k);
        int before = self->started;
        if (t < 0) {
            break;
        }
        rc = rf__ddp_ready(ddp, t);
        CHECK(last || self->started == before);
        job->started_in_ready[rank][step] += self->started - before;
        if (k + 1 < job->tensors) {
            job->started_before_last[rank][step] += self->started - before;
        }
    }
    if (job->odd == rank && job->odd_leaves && step == 2) {
        return RF_ESTOPPED;
    }
    return rc ? rc : rf__ddp_shard_done(ddp, (double)shard->index);
}

static int do_shards(struct job *job, struct rf_ddp *ddp, int rank, const struct rf_step *step) {
    uint32_t begin = (uint32_t)rank * step->shards / (uint32_t)step->size;
    uint32_t end = (uint32_t)(rank + 1) * step->shards / (uint32_t)step->size;
    struct rf_shard shard;
    int rc;

    while ((rc = rf__ddp_next_shard(ddp, &shard)) > 0) {
        CHECK(shard.index == begin && shard.step == step->step && shard.shards == shards_of(job));
        begin++;
        rc = do_shard(job, ddp, rank, &shard, begin == end);
        if (rc) {
            break;
        }
    }
    CHECK(rc || begin == end);
    return rc;
}

static int do_step(struct job *job, struct rf_ddp *ddp, float *const *params, int rank, int s) {
    struct rf_error *err = &job->error[rank];
    struct rf_step_report *report = &job->reports[rank][s];
    struct rf_step step;

    int rc = rf__ddp_begin(ddp, &step, err);
    if (rc) {
        return rc;
    }
    CHECK(step.step == (uint64_t)s && step.rank == rank && step.size == job->size);
    CHECK(step.shards == shards_of(job) && step.generation == 1);
    CHECK(rf__ddp_average(ddp, 0) == NULL);
    job->bucket_count[rank][s] = rf__ddp_buckets(ddp);
    job->first_bucket_of_0[rank][s] = rf__ddp_bucket_of(ddp, 0);
    if (job->odd == rank && job->odd_stops && s == 2) {
        rf__ddp_request_stop(ddp);
    }
    rc = do_shards(job, ddp, rank, &step);
    if (rc == RF_ESTOPPED) {
        return rc;
    }
    rc = rf__ddp_commit(ddp, report, err); /* after an error in a shard it tells which */
    if (rc) {
        CHECK(rf__ddp_average(ddp, 0) == NULL && rf__ddp_grad(ddp, 0) == NULL);
        CHECK(rf__ddp_begin(ddp, NULL, NULL) == rc);
        return rc;
    }
    job->committed[rank]++;
    check_averages(job, ddp, rank, s);
    uint64_t skipped = 0;
    for (uint32_t v = 0; v < shards_of(job); v++) {
        skipped += v % 3 + 1;
    }
    CHECK(report->skipped == skipped);
    for (int t = 0; t < job->tensors; t++) {
        const float *average = rf__ddp_average(ddp, t);
        for (size_t i = 0; i < job->counts[t]; i++) {
            params[t][i] -= average[i];
        }
    }
    if (job->odd == rank && job->odd_memory && s == 2) {
        params[1][0] += 1; /* what faulty memory does */
    }
    return 0;
}

static int do_steps(struct job *job, struct rf_ddp *ddp, float *const *params, int rank) {
    struct rf_error *err = &job->error[rank];
    int rc = rf__ddp_seal(ddp, err);

    if (rc) {
        CHECK(rf__ddp_buckets(ddp) == 0 && rf__ddp_begin(ddp, NULL, NULL) == rc);
        return rc;
    }
    for (int s = 0; s < job->steps; s++) {
        if (job->no_allocation && s == 2 && rank == 0) {
            rf__alloc_fail_after(0);
        }
        rc = do_step(job, ddp, params, rank, s);
        if (rc) {
            return rc;
        }
    }
    return rf__ddp_state_digest(ddp, &job->state[rank], err);
}

static int register_all(struct job *job, struct rf_ddp *ddp, float *const *params, float *moments,
                        int rank) {
    struct rf_error *err = &job->error[rank];
    int rc = 0;

    for (int t = 0; t < job->tensors && rc == 0; t++) {
        char name[16];
        size_t less = job->odd == rank && job->odd_shape && t == 1;
        snprintf(name, sizeof name, "t%d", t);
        rc = rf__ddp_register(ddp, name, params[t], job->counts[t] - less, err);
    }
    if (rc == 0) {
        rc = rf__ddp_register_state(ddp, "moments", moments, 3 * sizeof *moments, err);
    }
    return rc;
}

static void rank_body(int rank, void *context) {
    struct job *job = context;
    struct rf__runner *runner = &job->group.members[rank].base;
    float *params[MOST_TENSORS] = {NULL}, moments[3] = {1, 2, 3};
    struct rf_ddp *ddp = NULL;

    for (int t = 0; t < job->tensors; t++) {
        params[t] = calloc(job->counts[t], sizeof *params[t]);
        if (!params[t]) {
            abort();
        }
        params[t][0] = (float)t;
    }
    if (job->odd == rank && job->odd_state) {
        params[0][0] += 1;
    }
    int rc = rf__ddp_create(runner, &job->options, &ddp, &job->error[rank]);
    if (rc == 0) {
        rc = register_all(job, ddp, params, moments, rank);
    }
    if (rc) { /* leaves before it took part in anything: the communicator would tell the others */
        runner->ops->fail(runner, &job->error[rank]);
    } else {
        rc = do_steps(job, ddp, params, rank);
    }
    rf__ddp_destroy(ddp);
    job->code[rank] = rc;
    for (int t = 0; t < job->tensors; t++) {
        free(params[t]);
    }
}

/* Runs the job; whatever came of it, nothing may be left and every sequence must have matched. */
static void run_job(struct job *job) {
    atomic_store(&failed_checks, 0);
    run_threads(job->size, rank_body, job);
    rf__alloc_fail_after(-1);
    assert_int_equal(atomic_load(&failed_checks), 0);
    assert_int_equal(job->group.live_ops, 0);
    assert_int_equal(job->group.live_memory, 0);
    if (!job->odd_shape) {
        assert_int_equal(job->group.mismatches, 0);
    }
}

static void assert_all_done(const struct job *job) {
    for (int r = 0; r < job->size; r++) {
        if (job->code[r]) {
            print_error("rank %d: %s\n", r, job->error[r].text);
        }
        assert_int_equal(job->code[r], 0);
        assert_int_equal(job->committed[r], job->steps);
        assert_int_equal(job->state[r], job->state[0]);
        for (int s = 0; s < job->steps; s++) {
            const struct rf_step_report *a = &job->reports[r][s], *b = &job->reports[0][s];
            uint64_t samples = 0, shards = 0;
            for (uint32_t v = 0; v < shards_of(job); v++) {
                samples += samples_of(job, s, v);
                shards += v;
            }
            assert_int_equal(a->step, s);
            assert_int_equal(a->samples, samples);
            assert_int_equal(a->digest, b->digest);
            assert_true(a->loss == (samples ? (double)shards / (double)samples : 0));
            assert_int_equal(a->slowest_rank, b->slowest_rank);
            assert_int_equal(a->stop, b->stop);
        }
    }
}

static void assert_all_fail(const struct job *job, int code, int culprit) {
    for (int r = 0; r < job->size; r++) {
        assert_int_equal(job->code[r], code);
        assert_int_equal(job->error[r].code, code);
        assert_int_equal(job->error[r].rank, culprit);
        assert_int_equal(job->committed[r], job->committed[0]);
    }
}

static void averages_are_the_oracle_s(void **state) {
    static const int sizes[] = {1, 2, 3, 5, 8};
    static const uint32_t shards[] = {0, 1, 3, 7, 16};
    (void)state;
    for (size_t a = 0; a < sizeof sizes / sizeof *sizes; a++) {
        for (size_t b = 0; b < sizeof shards / sizeof *shards; b++) {
            for (int readiness = READY_BACKWARD; readiness <= READY_SOME; readiness++) {
                struct job *job = new_job(sizes[a], 11);
                job->options.shards = shards[b];
                job->options.hash_every = 2;
                job->options.no_overlap = (a + b) % 2 == 1;
                job->readiness = (enum readiness)readiness;
                run_job(job);
                assert_all_done(job);
                free_job(job);
            }
        }
    }
}

static void a_step_without_samples_averages_to_zero(void **state) {
    (void)state;
    for (int size = 1; size <= 3; size++) {
        struct job *job = new_job(size, 5);
        job->no_samples = true;
        run_job(job);
        assert_all_done(job);
        assert_int_equal(job->reports[0][1].samples, 0);
        free_job(job);
    }
}

static void a_single_tensor_and_one_huge_bucket(void **state) {
    (void)state;
    struct job *job = new_job(3, 1);
    run_job(job);
    assert_all_done(job);
    free_job(job);
    job = new_job(3, 9);
    job->options.first_bucket_bytes = job->options.bucket_bytes = (size_t)1 << 30;
    run_job(job);
    assert_all_done(job);
    assert_int_equal(job->bucket_count[0][0], 1);
    free_job(job);
}

/* More buckets than may be in flight at once. */
static void many_buckets_take_turns(void **state) {
    (void)state;
    for (int readiness = READY_BACKWARD; readiness <= READY_FORWARD; readiness++) {
        struct job *job = new_job(2, 400);
        job->options.first_bucket_bytes = job->options.bucket_bytes = 4;
        job->readiness = (enum readiness)readiness;
        run_job(job);
        assert_all_done(job);
        assert_int_equal(job->bucket_count[0][0], 400);
        for (int r = 0; r < 2; r++) {
            assert_true(job->group.members[r].most_in_flight > 200);
            assert_true(job->group.members[r].most_in_flight < 300);
        }
        free_job(job);
    }
}

static void buckets_start_while_gradients_are_still_missing(void **state) {
    (void)state;
    struct job *job = new_job(3, 11);
    run_job(job);
    assert_all_done(job);
    for (int r = 0; r < 3; r++) {
        for (int s = 0; s < job->steps; s++) {
            assert_int_equal(job->started_in_ready[r][s], job->bucket_count[r][s] + 1);
            assert_true(job->started_before_last[r][s] >= 3); /* the count, and buckets */
        }
    }
    free_job(job);
}

static void buckets_follow_the_order_that_was_seen(void **state) {
    (void)state;
    struct job *job = new_job(3, 11);
    job->readiness = READY_FORWARD;
    run_job(job);
    assert_all_done(job);
    for (int r = 0; r < 3; r++) {
        assert_int_equal(job->first_bucket_of_0[r][0], job->bucket_count[r][0] - 1);
        assert_int_equal(job->started_before_last[r][0], 1); /* the count alone */
        for (int s = 1; s < job->steps; s++) {
            assert_int_equal(job->first_bucket_of_0[r][s], 0);
            assert_true(job->started_before_last[r][s] >= 3);
        }
    }
    free_job(job);

    job = new_job(5, 11); /* rank 0 has no shard and sees no order: rank 1's counts */
    job->options.shards = 3;
    job->readiness = READY_FORWARD;
    run_job(job);
    assert_all_done(job);
    for (int r = 0; r < 5; r++) {
        assert_true(job->first_bucket_of_0[r][0] > 0);
        assert_int_equal(job->first_bucket_of_0[r][1], 0);
    }
    assert_int_equal(job->started_in_ready[0][1], 0);
    free_job(job);
}

static void without_overlap_the_bits_are_the_same(void **state) {
    struct job *jobs[2];
    (void)state;
    for (int i = 0; i < 2; i++) {
        jobs[i] = new_job(3, 11);
        jobs[i]->options.shards = 7;
        jobs[i]->fractions = true;
        jobs[i]->options.no_overlap = i;
        run_job(jobs[i]);
        assert_all_done(jobs[i]);
    }
    assert_int_equal(jobs[0]->state[0], jobs[1]->state[0]);
    for (int s = 0; s < jobs[0]->steps; s++) {
        assert_int_equal(jobs[0]->reports[0][s].digest, jobs[1]->reports[0][s].digest);
        for (int r = 0; r < 3; r++) {
            assert_true(jobs[0]->started_in_ready[r][s] > 0);
            assert_int_equal(jobs[1]->started_in_ready[r][s], 0);
        }
    }
    free_job(jobs[0]);
    free_job(jobs[1]);
}

/* The chain does not depend on how tensors are put into buckets, but on everything else. */
static void the_chain_tells_histories_apart(void **state) {
    struct job *jobs[3];
    (void)state;
    for (int i = 0; i < 3; i++) {
        jobs[i] = new_job(3, 11);
        jobs[i]->options.first_bucket_bytes = i == 1 ? 1 << 20 : 64;
        jobs[i]->readiness = i == 1 ? READY_FORWARD : READY_BACKWARD;
        jobs[i]->no_samples = i == 2;
        run_job(jobs[i]);
        assert_all_done(jobs[i]);
    }
    assert_true(jobs[0]->bucket_count[0][0] != jobs[1]->bucket_count[0][0]);
    for (int s = 0; s < 4; s++) {
        assert_int_equal(jobs[0]->reports[0][s].digest, jobs[1]->reports[0][s].digest);
        assert_int_equal(jobs[0]->reports[0][s].digest == jobs[2]->reports[0][s].digest, s == 0);
        assert_true(s == 0 || jobs[0]->reports[0][s].digest != jobs[0]->reports[0][s - 1].digest);
    }
    for (int i = 0; i < 3; i++) {
        free_job(jobs[i]);
    }
}

static void times_are_told_apart(void **state) {
    (void)state;
    struct job *job = new_job(3, 11);
    job->group.wait_ns = 250000000;
    job->group.busy_ns = 500000000;
    run_job(job);
    assert_all_done(job);
    for (int r = 0; r < 3; r++) {
        const struct rf_step_report *report = &job->reports[r][1];
        int buckets = job->bucket_count[r][1];
        double blocked = 0.25 * (buckets + 3),
               behind = 2 - r; /* the count, the buckets, the totals, the reports */
        double waited = behind < blocked ? behind : blocked;
        assert_true(report->compute_s == r + 1);
        assert_true(report->slowest_compute_s == 3);
        assert_int_equal(report->slowest_rank, 2);
        assert_true(report->comm_s == 0.5 * buckets);
        assert_true(report->exposed_s == blocked - waited);
        double in_buckets = 0.25 * (buckets + 1) - waited;
        assert_true(report->hidden_s == 0.5 * buckets - (in_buckets > 0 ? in_buckets : 0));
        assert_true(report->wait_s == waited);
    }
    free_job(job);
}

static void a_stop_is_seen_by_all_after_the_same_step(void **state) {
    (void)state;
    for (int odd = 0; odd < 3; odd++) {
        struct job *job = new_job(3, 3);
        job->odd = odd;
        job->odd_stops = true;
        run_job(job);
        assert_all_done(job);
        for (int r = 0; r < 3; r++) {
            for (int s = 0; s < job->steps; s++) {
                assert_int_equal(job->reports[r][s].stop, s == 2);
            }
        }
        free_job(job);
    }
}

static void a_step_allocates_nothing(void **state) {
    (void)state;
    struct job *job = new_job(3, 11);
    job->no_allocation = true;
    job->steps = 6;
    job->options.shards = 7;
    job->options.hash_every = 1;
    run_job(job);
    assert_all_done(job);
    free_job(job);
}

/* ---- what goes wrong
 * ---------------------------------------------------------------------------------------------- */

static void a_different_start_is_named(void **state) {
    (void)state;
    for (int odd = 0; odd < 3; odd++) {
        struct job *job = new_job(3, 5);
        char expected[80];
        job->odd = odd;
        job->odd_state = true;
        run_job(job);
        snprintf(expected, sizeof expected,
                 "rank %d of 3 holds another state at the start: digest 0x", odd);
        for (int r = 0; r < 3; r++) {
            assert_memory_equal(job->error[r].text, expected, strlen(expected));
        }
        assert_all_fail(job, RF_EDIVERGED, odd);
        free_job(job);
    }
}

static void a_different_shape_is_named(void **state) {
    (void)state;
    struct job *job = new_job(3, 5);
    job->odd = 2;
    job->odd_shape = true;
    run_job(job);
    assert_all_fail(job, RF_EMISMATCH, 2);
    assert_non_null(
        strstr(job->error[0].text, "rank 2 of 3 holds another set of registered tensors"));
    free_job(job);
}

/* A bit of one average differs on one rank: nobody commits, and everybody names it. */
static void a_corrupt_average_is_named_by_all(void **state) {
    (void)state;
    for (int odd = 0; odd < 3; odd++) {
        struct job *job = new_job(3, 5);
        job->group.fault = FAULT_BIT;
        job->group.fault_rank = odd;
        job->group.fault_at = 2; /* the seal's digests, the count of samples, bucket 0 */
        run_job(job);
        assert_all_fail(job, RF_EDIVERGED, odd);
        assert_int_equal(job->group.fault_hits, 1);
        assert_int_equal(job->committed[0], 0);
        assert_int_equal(job->group.error.code, RF_EDIVERGED); /* the group has ended */
        for (int r = 0; r < 3; r++) {
            assert_non_null(
                strstr(job->error[r].text, "of 3 holds another state after step 0: digest"));
            assert_string_equal(job->error[r].text, job->error[0].text);
        }
        free_job(job);
    }
}

/* Any bit that flips in any operation on one rank is noticed by all, and never committed by some
 * only. */
static void no_flipped_bit_goes_unnoticed(void **state) {
    bool hit = true;
    (void)state;
    for (int k = 0; hit; k++) {
        struct job *job = new_job(3, 6);
        job->options.hash_every = 1;
        job->group.fault = FAULT_BIT;
        job->group.fault_rank = 1;
        job->group.fault_at = k;
        run_job(job);
        hit = job->group.fault_hits > 0;
        int failed = 0;
        for (int r = 0; r < 3; r++) {
            failed += job->code[r] != 0;
            assert_true(!hit || job->code[r] == 0 || job->error[r].text[0] != 0);
        }
        if (k > 0 && k == job->bucket_count[1][0] + 2) { /* the order of gradients */
            assert_int_equal(job->code[1], RF_EPROTO);
            assert_string_equal(job->error[1].text, "step 0: rank 0 sent an order that is none");
        }
        if (!hit) {
            assert_all_done(job);
        } else {
            assert_true(failed > 0);
        }
        free_job(job);
    }
}

static void faulty_memory_is_found_by_the_full_hash(void **state) {
    (void)state;
    struct job *job = new_job(3, 5);
    job->steps = 7;
    job->options.hash_every = 4;
    job->odd = 1;
    job->odd_memory = true; /* after step 2 */
    run_job(job);
    assert_all_fail(job, RF_EDIVERGED, 1);
    assert_int_equal(job->committed[0], 4);
    assert_non_null(strstr(job->error[2].text,
                           "rank 1 of 3 holds another state before the update of "
                           "step 4"));
    free_job(job);
}

static void one_that_leaves_in_a_step_ends_it_for_all(void **state) {
    (void)state;
    for (int odd = 0; odd < 3; odd++) {
        struct job *job = new_job(3, 5);
        job->odd = odd;
        job->odd_leaves = true;
        run_job(job);
        for (int r = 0; r < 3; r++) {
            assert_int_equal(job->code[r], r == odd ? RF_ESTOPPED : RF_EREVOKED);
            assert_int_equal(job->committed[r], 2);
            if (r != odd) {
                assert_int_equal(job->error[r].rank, odd);
                assert_memory_equal(job->error[r].text, "step 2, ", 8);
                assert_non_null(strstr(job->error[r].text, "left in the middle of step 2"));
            }
        }
        free_job(job);
    }
}

/* Each operation fails in turn until a run is clean: every rank gets the cause and what it was
 * doing, and nothing is left. */
static void every_operation_can_fail(void **state) {
    (void)state;
    for (int fault = FAULT_START; fault <= FAULT_RUN; fault++) {
        bool hit = true;
        int k = 0;
        for (; hit; k++) {
            struct job *job = new_job(3, 7);
            job->steps = 3;
            job->group.fault = (enum fault)fault;
            job->group.fault_rank = k % 3;
            job->group.fault_at = k;
            run_job(job);
            hit = job->group.fault_hits > 0;
            if (!hit) {
                assert_all_done(job);
            }
            for (int r = 0; r < 3 && hit; r++) {
                const char *text = job->error[r].text;
                assert_int_equal(job->code[r], fault == FAULT_START ? RF_ENOMEM : RF_ELOST);
                assert_int_equal(job->error[r].code, job->code[r]);
                assert_int_equal(job->error[r].rank, k % 3);
                assert_true(strncmp(text, "step ", 5) == 0 || strncmp(text, "comparing ", 10) == 0);
                assert_non_null(strstr(text, fault == FAULT_START ? "out of memory" : "was lost"));
                if (fault == FAULT_RUN && k == 3) {
                    assert_memory_equal(text, "step 0, averaging bucket ",
                                        25); /* or a later one, not started yet */
                }
            }
            free_job(job);
        }
        assert_true(k > 12);
    }
}

/* Each allocation fails in turn until a run is clean. */
static void every_allocation_can_fail(void **state) {
    bool clean = false;
    long k = 0;
    (void)state;
    for (; !clean; k++) {
        struct job *job = new_job(3, 7);
        int failed = 0, named = 0;
        job->steps = 2;
        rf__alloc_fail_after(k);
        run_job(job);
        for (int r = 0; r < 3; r++) {
            failed += job->code[r] == RF_ENOMEM;
            named += job->code[r] && job->error[r].text[0];
        }
        clean = failed == 0;
        assert_int_equal(failed, clean ? 0 : 3);
        assert_int_equal(named, failed);
        if (clean) {
            assert_all_done(job);
        }
        free_job(job);
    }
    assert_true(k > 3 * (1 + 7 + 2 + 2 + 9));
}

/* ---- wrong use
 * ----------------------------------------------------------------------------------------------------
 */

static void wrong_use_is_refused_and_changes_nothing(void **state) {
    struct group group;
    struct rf_ddp_options options;
    struct rf_ddp_memory memory;
    struct rf_ddp *ddp = NULL;
    struct rf_error err;
    struct rf_shard shard;
    float a[3] = {1, 2, 3}, b[20] = {0};
    uint64_t digest;
    (void)state;
    group_open(&group, 1);
    struct rf__runner *runner = &group.members[0].base;

    rf__ddp_options_init(&options);
    options.shards = RF_MAX_SHARDS + 1;
    assert_int_equal(rf__ddp_create(runner, &options, &ddp, &err), RF_ELIMIT);
    rf__ddp_options_init(&options);
    options.bucket_bytes = 0;
    assert_int_equal(rf__ddp_create(runner, &options, &ddp, &err), RF_EINVAL);
    assert_string_equal(err.text, "'bucket_bytes' must not be 0");
    rf__ddp_options_init(&options);
    options.algorithm = RF_ALGORITHM_COUNT;
    assert_int_equal(rf__ddp_create(runner, &options, &ddp, &err), RF_EINVAL);
    assert_null(ddp);
    rf__ddp_destroy(NULL);

    rf__ddp_options_init(&options);
    options.shards = 2;
    assert_int_equal(rf__ddp_create(runner, &options, &ddp, &err), 0);
    assert_int_equal(rf__ddp_seal(ddp, &err), RF_EINVAL); /* nothing registered */
    assert_int_equal(rf__ddp_register(ddp, "", a, 3, &err), RF_EINVAL);
    assert_int_equal(rf__ddp_register(ddp, "a", NULL, 3, &err), RF_EINVAL);
    assert_int_equal(rf__ddp_register(ddp, "a", a, 0, &err), RF_EINVAL);
    assert_int_equal(rf__ddp_register(ddp, "a", a, SIZE_MAX / 4, &err), RF_ELIMIT);
    assert_int_equal(rf__ddp_register(ddp, "a", a, 3, &err), 0);
    assert_int_equal(rf__ddp_register(ddp, "b", b, 20, &err), 0);
    assert_int_equal(rf__ddp_register_state(ddp, "s", NULL, 8, &err), RF_EINVAL);
    assert_int_equal(rf__ddp_register_state(ddp, "s", NULL, 0, &err), 0);
    assert_int_equal(rf__ddp_begin(ddp, NULL, &err), RF_EINVAL);
    assert_int_equal(rf__ddp_next_shard(ddp, &shard), RF_EINVAL);
    assert_int_equal(rf__ddp_state_digest(ddp, &digest, &err), RF_EINVAL);
    assert_null(rf__ddp_grad(ddp, 0));
    assert_int_equal(rf__ddp_bucket_of(ddp, 0), -1);
    rf__ddp_memory(ddp, &memory);
    assert_int_equal(memory.gradients + memory.averaged, 0);

    assert_int_equal(rf__ddp_seal(ddp, &err), 0);
    assert_int_equal(rf__ddp_seal(ddp, &err), RF_EINVAL);
    assert_int_equal(rf__ddp_register(ddp, "c", a, 3, &err), RF_EINVAL);
    assert_int_equal(rf__ddp_commit(ddp, NULL, &err), RF_EINVAL);
    rf__ddp_memory(ddp, &memory);
    assert_int_equal(memory.gradients, (16 + 32) * sizeof(float));
    assert_int_equal(memory.averaged, memory.gradients);

    assert_int_equal(rf__ddp_begin(ddp, NULL, &err), 0);
    assert_int_equal(rf__ddp_begin(ddp, NULL, &err), RF_EINVAL);
    assert_int_equal(rf__ddp_state_digest(ddp, &digest, &err), RF_EINVAL);
    assert_null(rf__ddp_grad(ddp, -1));
    assert_null(rf__ddp_grad(ddp, 2));
    assert_int_equal(rf__ddp_ready(ddp, 0), RF_EINVAL); /* no shard yet */
    assert_int_equal(rf__ddp_shard_done(ddp, 0), RF_EINVAL);
    assert_int_equal(rf__ddp_next_shard(ddp, &shard), 1);
    assert_int_equal(rf__ddp_next_shard(ddp, &shard), RF_EINVAL);
    assert_int_equal(rf__ddp_ready(ddp, 0), 0); /* not the last shard: only noted */
    assert_int_equal(rf__ddp_ready(ddp, 0), 0);
    assert_int_equal(rf__ddp_shard_done(ddp, 0), RF_EINVAL); /* samples were not told */
    rf__ddp_shard_samples(ddp, 1);
    assert_int_equal(rf__ddp_shard_done(ddp, 2), 0);
    assert_int_equal(rf__ddp_commit(ddp, NULL, &err), RF_EINVAL);
    assert_string_equal(err.text, "step 0: shard 1 of 2 is not done");
    assert_int_equal(rf__ddp_next_shard(ddp, &shard), 1);
    assert_int_equal(rf__ddp_ready(ddp, 1), RF_EINVAL); /* samples were not told */
    rf__ddp_shard_samples(ddp, 3);
    rf__ddp_grad(ddp, 1)[19] = 8;
    assert_int_equal(rf__ddp_ready(ddp, 2), RF_EINVAL);
    assert_int_equal(rf__ddp_ready(ddp, 1), 0);
    assert_int_equal(rf__ddp_ready(ddp, 1), RF_EINVAL); /* twice */
    rf__ddp_shard_samples(ddp, 3);                      /* the same again is fine */
    assert_int_equal(rf__ddp_shard_done(ddp, 6), 0);
    struct rf_step_report report;
    assert_int_equal(rf__ddp_next_shard(ddp, &shard), 0);
    assert_int_equal(rf__ddp_commit(ddp, &report, &err), 0);
    assert_int_equal(report.samples, 4);
    assert_true(report.loss == 2);
    assert_true(rf__ddp_average(ddp, 1)[19] == 2 && rf__ddp_average(ddp, 0)[2] == 0);
    assert_null(rf__ddp_average(ddp, 2));

    assert_int_equal(rf__ddp_begin(ddp, NULL, &err), 0); /* samples that come too late */
    assert_int_equal(rf__ddp_next_shard(ddp, &shard), 1);
    rf__ddp_shard_samples(ddp, 1);
    assert_int_equal(rf__ddp_shard_done(ddp, 0), 0);
    assert_int_equal(rf__ddp_next_shard(ddp, &shard), 1);
    rf__ddp_shard_samples(ddp, 1);
    assert_int_equal(rf__ddp_ready(ddp, 1), 0);
    rf__ddp_shard_samples(ddp, 2);
    assert_int_equal(rf__ddp_shard_done(ddp, 0), RF_EINVAL);
    assert_int_equal(rf__ddp_commit(ddp, &report, &err), RF_EINVAL);
    assert_non_null(strstr(err.text, "told after"));
    rf__ddp_destroy(ddp); /* in the middle of a step */
    assert_int_equal(group.error.code, RF_EREVOKED);
    assert_int_equal(group.live_ops + group.live_memory, 0);
    group_close(&group);
}

/* Steps of one member with two tensors: what is added to, what is written, and what nobody touches.
 */
static void what_an_earlier_step_has_left_is_in_no_gradient(void **state) {
    struct rf_ddp_options options;
    struct group group;
    struct rf_ddp *ddp = NULL;
    struct rf_shard shard;
    struct rf_error err;
    float a[3] = {0}, b[5] = {0};
    (void)state;
    group_open(&group, 1);

    rf__ddp_options_init(&options);
    assert_int_equal(rf__ddp_create(&group.members[0].base, &options, &ddp, &err), 0);
    assert_int_equal(rf__ddp_register(ddp, "a", a, 3, &err), 0);
    assert_int_equal(rf__ddp_register(ddp, "b", b, 5, &err), 0);
    assert_int_equal(rf__ddp_seal(ddp, &err), 0);
    for (int step = 0; step < 6; step++) {
        bool fresh = step == 0, again = true, writes = step % 3 == 2;
        assert_null(rf__ddp_grad_fresh(ddp, 0, &fresh));
        assert_int_equal(fresh, step == 0); /* untouched */
        assert_int_equal(rf__ddp_begin(ddp, NULL, &err), 0);
        if (step == 4) { /* before a shard nobody is bound to write, so it is zeroed */
            assert_true(rf__ddp_grad_fresh(ddp, 0, &again)[2] == 0);
            assert_false(again);
        }
        assert_int_equal(rf__ddp_next_shard(ddp, &shard), 1);
        rf__ddp_shard_samples(ddp, 1);
        if (writes) { /* from the third step on the buckets lie where they did before */
            float *gradient = rf__ddp_grad_fresh(ddp, 0, &fresh);
            assert_true(fresh);
            for (int i = 0; i < 3; i++) {
                gradient[i] = 7;
            }
            assert_ptr_equal(rf__ddp_grad_fresh(ddp, 0, &again), gradient);
            assert_false(again);
            assert_true(rf__ddp_grad(ddp, 0)[2] == 7);
        } else {
            assert_true(rf__ddp_grad(ddp, 0)[2] == 0);
            rf__ddp_grad(ddp, 0)[2] += 5;
            (void)rf__ddp_grad_fresh(ddp, 0, &again);
            assert_false(again);
        }
        if (step % 2 == 0) {
            rf__ddp_grad(ddp, 1)[4] += 3;
        }
        if (step % 4 < 2) { /* else they count as ready at the commit */
            assert_int_equal(rf__ddp_ready(ddp, 1), 0);
            assert_int_equal(rf__ddp_ready(ddp, 0), 0);
        }
        assert_int_equal(rf__ddp_shard_done(ddp, 0), 0);
        assert_int_equal(rf__ddp_commit(ddp, NULL, &err), 0);
        assert_true(rf__ddp_average(ddp, 0)[2] == (writes ? 7 : 5));
        assert_true(rf__ddp_average(ddp, 0)[0] == (writes ? 7 : 0));
        assert_true(rf__ddp_average(ddp, 1)[4] == (step % 2 == 0 ? 3 : 0));
    }
    rf__ddp_destroy(ddp);
    group_close(&group);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buckets_hold_each_tensor_once),
        cmocka_unit_test(sizes_that_do_not_fit_are_refused),
        cmocka_unit_test(averages_are_the_oracle_s),
        cmocka_unit_test(a_step_without_samples_averages_to_zero),
        cmocka_unit_test(a_single_tensor_and_one_huge_bucket),
        cmocka_unit_test(many_buckets_take_turns),
        cmocka_unit_test(buckets_start_while_gradients_are_still_missing),
        cmocka_unit_test(buckets_follow_the_order_that_was_seen),
        cmocka_unit_test(without_overlap_the_bits_are_the_same),
        cmocka_unit_test(the_chain_tells_histories_apart),
        cmocka_unit_test(times_are_told_apart),
        cmocka_unit_test(a_stop_is_seen_by_all_after_the_same_step),
        cmocka_unit_test(a_step_allocates_nothing),
        cmocka_unit_test(a_different_start_is_named),
        cmocka_unit_test(a_different_shape_is_named),
        cmocka_unit_test(a_corrupt_average_is_named_by_all),
        cmocka_unit_test(no_flipped_bit_goes_unnoticed),
        cmocka_unit_test(faulty_memory_is_found_by_the_full_hash),
        cmocka_unit_test(one_that_leaves_in_a_step_ends_it_for_all),
        cmocka_unit_test(every_operation_can_fail),
        cmocka_unit_test(every_allocation_can_fail),
        cmocka_unit_test(wrong_use_is_refused_and_changes_nothing),
        cmocka_unit_test(what_an_earlier_step_has_left_is_in_no_gradient),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
