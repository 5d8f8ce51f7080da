/* Compressed gradients in an elastic group: members die in each of their calls, and results arrive
 * on some members only; the survivors hold the same bits, every shard counts once, and what all
 * steps together have lost stays what one or two steps lose.
 *
 * One tensor marks each shard in a place of its own.
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

/* Fewer elements would be too few to be compressed. */
enum { SHARDS = 5, WIDE = 20001, LONG = 13000, STEPS = 4, WORKERS = 3, TENSORS = 3 };

struct state {
    float marks[SHARDS], wide[WIDE], longer[LONG];
};

struct job {
    struct world world;
    enum rf_wire wire;
    int odd; /* it compresses in another way; -1: nobody */
    int starts[WORKERS];

    pthread_mutex_t lock;
    uint64_t digests[STEPS];
    int code[WORKERS], retries[WORKERS], healed[WORKERS];
    bool finished[WORKERS];
    struct rf_error error[WORKERS];
    uint32_t redone;
    struct state *state[WORKERS];
};

/* Between -1 and 1. */
static float gradient_of(uint32_t shard, size_t i) {
    uint32_t h = (uint32_t)i * 2654435761u + shard * 40503u;

    h ^= h >> 15;
    h *= 2246822519u;
    h ^= h >> 13;
    return (float)(h & 0xffff) / 32768 - 1;
}

static int do_shard(struct rf_ddp *ddp, const struct rf_shard *shard) {
    float *wide = rf__ddp_grad(ddp, 1), *longer = rf__ddp_grad(ddp, 2);
    int rc = 0;

    rf__ddp_shard_samples(ddp, 1);
    rf__ddp_grad(ddp, 0)[shard->index] += 1;
    for (size_t i = 0; i < WIDE; i++) {
        wide[i] += gradient_of(shard->index, i);
    }
    for (size_t i = 0; i < LONG; i++) {
        longer[i] += gradient_of(shard->index, i);
    }
    for (int t = 0; t < TENSORS && rc == 0; t++) { /* buckets move after the first step */
        rc = rf__ddp_ready(ddp, t == 0 ? 1 : t == 1 ? 0 : 2);
    }
    return rc ? rc : rf__ddp_shard_done(ddp, 1);
}

static int do_step(struct job *job, struct rf_ddp *ddp, int id, struct state *state, bool *done) {
    struct rf_step step;
    struct rf_step_report report;
    struct rf_shard shard;

    int rc = rf__ddp_begin(ddp, &step, &job->error[id]);
    if (rc) {
        return rc;
    }
    while ((rc = rf__ddp_next_shard(ddp, &shard)) > 0) {
        CHECK(do_shard(ddp, &shard) == 0);
    }
    rc = rf__ddp_commit(ddp, &report, &job->error[id]);
    if (rc == RF_RETRY) {
        job->retries[id]++;
        return 0;
    }
    if (rc) {
        return rc;
    }
    job->healed[id] += step.healing;
    CHECK(report.samples == SHARDS);
    pthread_mutex_lock(&job->lock);
    CHECK(job->digests[step.step] == 0 || job->digests[step.step] == report.digest);
    job->digests[step.step] = report.digest;
    job->redone += report.redone;
    pthread_mutex_unlock(&job->lock);
    const float *marks = rf__ddp_average(ddp, 0), *wide = rf__ddp_average(ddp, 1);
    const float *longer = rf__ddp_average(ddp, 2);
    for (int k = 0; k < SHARDS; k++) {
        CHECK(fabsf(marks[k] - 1.0f / SHARDS) < 0.25f / SHARDS); /* once */
        state->marks[k] += marks[k];
    }
    for (size_t i = 0; i < WIDE; i++) {
        state->wide[i] += wide[i];
    }
    for (size_t i = 0; i < LONG; i++) {
        state->longer[i] += longer[i];
    }
    *done = step.step + 1 == STEPS;
    return 0;
}

static int live_once(int id, bool is_first, void *context) {
    struct job *job = context;
    struct worker *w = &job->world.worker[id];
    struct state *state = job->state[id];
    struct rf_ddp_options options;
    struct rf_ddp *ddp = NULL;
    bool done = false;

    memset(state, is_first ? 0 : 0x11, sizeof *state);
    rf__ddp_options_init(&options);
    options.shards = SHARDS;
    options.hash_every = 1;
    options.first_bucket_bytes = options.bucket_bytes = 4096;
    options.wire = id == job->odd ? RF_WIRE_BF16 : job->wire;
    CHECK(rf__ddp_create(&w->base, &options, &ddp, NULL) == 0);
    CHECK(rf__ddp_register(ddp, "marks", state->marks, SHARDS, NULL) == 0);
    CHECK(rf__ddp_register(ddp, "wide", state->wide, WIDE, NULL) == 0);
    CHECK(rf__ddp_register(ddp, "longer", state->longer, LONG, NULL) == 0);
    int rc = rf__ddp_seal(ddp, &job->error[id]);
    if (rc == 0 && is_first) {
        await_others(&job->world, id);
    }
    while (rc == 0 && !done) {
        rc = do_step(job, ddp, id, state, &done);
    }
    job->finished[id] = rc == 0;
    rf__ddp_destroy(ddp);
    return rc;
}

static void live(int id, void *context) {
    struct job *job = context;
    struct worker *w = &job->world.worker[id];

    job->code[id] = worker_lives(w, job->starts[id], live_once, job);
    worker_leaves(w, job->code[id] == 0);
}

static struct job *new_job(enum rf_wire wire) {
    struct job *job = calloc(1, sizeof *job);
    if (!job) {
        abort();
    }
    world_open(&job->world, WORKERS, WORKERS);
    pthread_mutex_init(&job->lock, NULL);
    job->wire = wire;
    job->odd = -1;
    for (int id = 0; id < WORKERS; id++) {
        job->starts[id] = 1;
        job->state[id] = calloc(1, sizeof *job->state[id]);
    }
    return job;
}

static void free_job(struct job *job) {
    for (int id = 0; id < WORKERS; id++) {
        free(job->state[id]);
    }
    world_close(&job->world);
    pthread_mutex_destroy(&job->lock);
    free(job);
}

/* By how much an element may be off after all steps. In 8 bits: what each of three ranks' last
 * values lost, and their sum's; what the sums lost that is dropped where buckets move, and with
 * each generation; and with a worker, what its values lost. */
static double most_off(const struct job *job) {
    double each = (job->wire == RF_WIRE_INT8 ? 1 / 254.0 : 1 / 256.0) * 1.02;

    return job->wire == RF_WIRE_INT8 ? each * (2 + 1 + 2 + 1) : each * STEPS;
}

static void check_state(const struct job *job, const struct state *state) {
    double most = most_off(job), worst = 0;

    for (size_t i = 0; i < WIDE + LONG; i++) {
        float found = i < WIDE ? state->wide[i] : state->longer[i - WIDE];
        double sum = 0;
        for (uint32_t k = 0; k < SHARDS; k++) {
            sum += (double)gradient_of(k, i < WIDE ? i : i - WIDE);
        }
        worst = fmax(worst, fabs((double)found - STEPS * sum / SHARDS));
    }
    assert_true(worst <= most);
    assert_true(worst > 1e-5); /* something was rounded at all */
}

/* Whatever came of it, nothing is left over and the oracle was content. */
static void run_workers(struct job *job) {
    atomic_store(&failed_checks, 0);
    alarm(120);
    run_threads(WORKERS, live, job);
    alarm(0);
    assert_int_equal(atomic_load(&failed_checks), 0);
    assert_true(world_is_content(&job->world));
}

/* Whoever finished holds the same, and it is right. */
static void run_job(struct job *job, unsigned dead) {
    int first = -1;

    run_workers(job);
    for (int id = 0; id < WORKERS; id++) {
        assert_int_equal(job->world.worker[id].events[RF_EVENT_DIVERGED], 0);
        if (!(dead & 1u << id) && !job->finished[id]) {
            print_error("worker %d: %d '%s'\n", id, job->code[id], job->error[id].text);
        }
        assert_true((dead & 1u << id) || job->finished[id]);
        if (job->finished[id]) {
            first = first < 0 ? id : first;
            assert_memory_equal(job->state[id], job->state[first], sizeof(struct state));
        }
    }
    check_state(job, job->state[first]);
}

static void nothing_happens_and_all_commit(void **state) {
    (void)state;
    for (int wire = RF_WIRE_BF16; wire <= RF_WIRE_INT8; wire++) {
        struct job *job = new_job((enum rf_wire)wire);
        run_job(job, 0);
        free_job(job);
    }
}

/* Each dies in each of its calls in turn, in the middle of a bucket's operations too. */
static void one_dies_at_every_point(void **state) {
    int redone = 0, retried = 0, points = 0;
    (void)state;
    for (int wire = RF_WIRE_BF16; wire <= RF_WIRE_INT8; wire++) {
        for (int who = 0; who < WORKERS; who++) {
            int hits = 1;
            for (int at = 0; hits; at++) {
                struct job *job = new_job((enum rf_wire)wire);
                job->world.fault[0] = (struct fault){.kind = FAULT_DIES, .who = who, .at = at};
                run_job(job, 1u << who);
                hits = job->world.fault[0].hits;
                redone += (int)job->redone;
                retried += job->retries[(who + 1) % WORKERS];
                points++;
                free_job(job);
            }
        }
    }
    assert_true(points > 150 && redone > 30 && retried > 30);
}

/* Each result arrives on some members only: some commit, and others find out. */
static void a_meeting_is_cut_for_each_set_of_members(void **state) {
    (void)state;
    for (unsigned mask = 0; mask < 8; mask++) {
        int who = mask & 1 ? mask & 2 ? 2 : 1 : 0, hits = !(mask & 1u << who);
        for (int at = 0; hits; at++) {
            struct job *job = new_job(RF_WIRE_INT8);
            job->world.fault[0] =
                (struct fault){.kind = FAULT_CUT, .who = who, .at = at, .mask = mask};
            run_job(job, 1u << who);
            hits = job->world.fault[0].hits;
            free_job(job);
        }
    }
}

/* It comes back, with nothing lost yet, while the others go on with what they have lost. */
static void who_comes_back_is_healed(void **state) {
    int healed = 0;
    (void)state;
    for (int turn = 0; turn < 130 && (turn < 13 || healed <= 3); turn++) {
        struct job *job = new_job(RF_WIRE_INT8);
        int at = 2 + turn % 13 * 3;
        job->starts[1] = 2;
        job->world.worker[1].returns = true;
        job->world.fault[0] = (struct fault){.kind = FAULT_DIES, .who = 1, .at = at};
        run_job(job, 1u << 1); /* it may come too late */
        healed += job->healed[1];
        free_job(job);
    }
    assert_true(healed > 3);
}

/* One has another option: all end with both values, and nobody trains on with either. */
static void different_compression_is_named(void **state) {
    (void)state;
    for (int odd = 1; odd < WORKERS; odd++) {
        struct job *job = new_job(RF_WIRE_INT8);
        job->odd = odd;
        job->world.may_differ = true;
        run_workers(job);
        for (int id = 0; id < WORKERS; id++) {
            assert_int_equal(job->code[id], RF_EMISMATCH);
            assert_int_equal(job->error[id].rank, id); /* none leaves it to another to tell */
            assert_non_null(
                strstr(job->error[id].text, "of 3 travel as 'bf16', those of rank 0 as 'int8'"));
        }
        free_job(job);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_happens_and_all_commit),
        cmocka_unit_test(one_dies_at_every_point),
        cmocka_unit_test(a_meeting_is_cut_for_each_set_of_members),
        cmocka_unit_test(who_comes_back_is_healed),
        cmocka_unit_test(different_compression_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
