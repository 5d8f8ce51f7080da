/* ddp/compress: sums that travel as less than float32, of up to six ranks in one process. Against
 * an oracle in double precision, within what one rounding loses; bit-identical on all ranks; and in
 * 8 bits the losses of many steps do not add up.
 *
 * cmocka's assertions may not be used on the ranks' threads: there CHECK counts. */
#include "coll/pack.h"
#include "ddp/compress.h"
#include "ddp/ddp.h"
#include "support/threaded_runner.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>
#undef fail /* a macro of cmocka, a member of the runner */

enum { MOST_TENSORS = 6, MOST_STEPS = 60 };

/* In the range of one block's scale, another one for every few hundred elements. */
static float gradient_of(uint32_t shard, int tensor, size_t i) {
    uint32_t h = (uint32_t)i * 2654435761u + shard * 40503u + (uint32_t)tensor * 977u;

    h ^= h >> 15;
    h *= 2246822519u;
    h ^= h >> 13;
    return ((float)(h & 0xffff) / 32768 - 1) * (float)(1 + i / 300 % 7);
}

enum { LARGEST = 7 }; /* of a gradient */

/* ---- the sums alone */

struct sums {
    struct group group;
    enum rf_wire wire;
    int size, runs, rounds;
    bool retries; /* each round is done again */
    size_t piece;
    struct rf__bucket run[MOST_TENSORS];
    size_t floats;
    float *out[RUNNER_RANKS];
    double sent;  /* bytes, by each rank */
    int kinds[3]; /* operations of rank 0: allreduce, all_to_all, all_gather */
};

static void add_run(struct sums *s, size_t count) {
    s->run[s->runs++] = (struct rf__bucket){.offset = s->floats, .count = count};
    s->floats += (count + RF__BUCKET_ALIGN - 1) / RF__BUCKET_ALIGN * RF__BUCKET_ALIGN;
}

static void check_sums(const struct sums *s, const float *out, int rank, int round, double by) {
    /* A rounding to 8 bits loses 1/254 of the largest of a block at most; as many as the ranks',
     * and one of their sum; and what the round before has lost comes on top. */
    double each = s->wire == RF_WIRE_INT8 ? LARGEST / 254.0 : LARGEST / 256.0;
    double most = (s->size + s->size) * each * (round ? 2 : 1) * 1.02 / by;

    for (int r = 0; r < s->runs; r++) {
        int wrong = 0;
        for (size_t i = 0; i < s->run[r].count; i++) {
            double sum = 0;
            for (int k = 0; k < s->size; k++) {
                sum += (double)gradient_of((uint32_t)k, r, i);
            }
            wrong += !(fabs((double)out[s->run[r].offset + i] - sum / by) <= most);
        }
        CHECK(wrong == 0);
    }
}

/* The same unit once more, in a later generation: what was lost before is in the
 * values already. */
static void again(struct sums *s, struct rf__compress *c, float *values, int rank,
                  const double *by) {
    size_t bytes = s->floats * sizeof *values;
    struct rf__runner *runner = &s->group.members[rank].base;
    float *before = malloc(bytes);
    int64_t busy = 0;

    CHECK(before != NULL);
    memcpy(before, values, bytes);
    runner->generation++;
    rf__compress_attempt(c, s->run, s->runs, values, s->out[rank], by);
    CHECK(rf__compress_wait(c, s->runs - 1, &busy) == 0);
    CHECK(memcmp(before, values, bytes) == 0);
    check_sums(s, s->out[rank], rank, 1, *by);
    free(before);
}

static void sum_body(int rank, void *context) {
    struct sums *s = context;
    struct rf__runner *runner = &s->group.members[rank].base;
    struct rf__compress_options options = {.wire = s->wire,
                                           .algorithm = RF_ALGORITHM_AUTO,
                                           .floats = s->floats,
                                           .runs = s->runs,
                                           .piece_floats = s->piece};
    struct rf__compress *c = NULL;
    float *values = calloc(s->floats, sizeof *values);
    double by = 3;

    s->out[rank] = calloc(s->floats, sizeof(float));
    CHECK(values && s->out[rank]);
    CHECK(rf__compress_create(runner, &options, &c, NULL) == 0);
    for (int round = 0; round < s->rounds && c; round++) {
        for (int r = 0; r < s->runs; r++) {
            for (size_t i = 0; i < s->run[r].count; i++) {
                values[s->run[r].offset + i] = gradient_of((uint32_t)rank, r, i);
            }
        }
        rf__compress_unit(c);
        rf__compress_attempt(c, s->run, s->runs, values, s->out[rank], &by);
        int64_t busy = 0;
        for (int r = 0; r < s->runs; r++) { /* how soon who sees what differs from rank to rank */
            for (int k = 0; k < (rank + r) % 3; k++) {
                CHECK(rf__compress_pump(c, r + 1) == 0);
            }
        }
        for (int r = 0; r < s->runs; r++) {
            CHECK(rf__compress_wait(c, r, &busy) == 0);
        }
        check_sums(s, s->out[rank], rank, round, by);
        if (s->retries) {
            again(s, c, values, rank, &by);
        }
        rf__compress_drain(c);
    }
    rf__compress_destroy(c);
    free(values);
}

static void run_sums(struct sums *s, enum rf_wire wire, int size) {
    group_open(&s->group, size);
    s->wire = wire;
    s->size = size;
    atomic_store(&failed_checks, 0);
    run_threads(size, sum_body, s);
    assert_int_equal(atomic_load(&failed_checks), 0);
    assert_int_equal(s->group.mismatches, 0);
    assert_int_equal(s->group.live_ops, 0);
    assert_int_equal(s->group.live_memory, 0);
    memset(s->kinds, 0, sizeof s->kinds);
    for (int i = 0; i < s->group.members[0].started; i++) {
        const struct rf_call *call = &s->group.meetings[i].call;
        double others = size - 1;
        double share = call->coll == RF_COLL_ALLREDUCE ? 2 * others / size : others;
        s->sent += share * (double)(call->count * rf_type_size(call->type));
        s->kinds[call->coll == RF_COLL_ALLREDUCE ? 0 : call->coll == RF_COLL_ALL_TO_ALL ? 1 : 2]++;
    }
    for (int rank = 0; rank < size; rank++) {
        if (rank) {
            assert_memory_equal(s->out[rank], s->out[0], s->floats * sizeof(float));
        }
    }
    for (int rank = 0; rank < size; rank++) {
        free(s->out[rank]);
    }
    group_close(&s->group);
}

/* Runs of every kind one after the other, in pieces and whole; more of them than are under way. */
static void sums_are_the_oracle_s(void **state) {
    (void)state;
    for (int wire = RF_WIRE_BF16; wire <= RF_WIRE_INT8; wire++) {
        for (int size = 1; size <= 6; size++) {
            struct sums s = {.rounds = 3, .piece = 51200};
            add_run(&s, 1);
            add_run(&s, 77777);
            add_run(&s, 24577 + 256);
            add_run(&s, 300);
            add_run(&s, 51200);
            add_run(&s, 24600);
            run_sums(&s, (enum rf_wire)wire, size);
            bool bytes = wire == RF_WIRE_INT8 && size > 1;
            assert_int_equal(s.kinds[1], bytes ? 3 * (2 + 1 + 1 + 1) : 0);
            assert_int_equal(s.kinds[2], s.kinds[1]);
            assert_int_equal(s.kinds[0], 3 * (bytes ? 2 : 7));
        }
    }
}

static void what_is_begun_again_takes_nothing_twice(void **state) {
    (void)state;
    for (int size = 1; size <= 4; size++) {
        struct sums s = {.rounds = 5, .piece = 51200, .retries = true};
        add_run(&s, 66666);
        add_run(&s, 300);
        add_run(&s, 40000);
        run_sums(&s, RF_WIRE_INT8, size);
    }
}

/* What one rank of two sends for a bucket, next to float32. */
static void bytes_are_a_half_and_a_quarter(void **state) {
    (void)state;
    for (int wire = RF_WIRE_BF16; wire <= RF_WIRE_INT8; wire++) {
        for (int size = 2; size <= 6; size++) {
            struct sums s = {.rounds = 1, .piece = 51200};
            size_t least = (size_t)16 * RF__PACK_BLOCK * (size_t)size;
            add_run(&s, least + 1); /* about the smallest that is packed */
            run_sums(&s, (enum rf_wire)wire, size);
            double plain = 8.0 * (double)(least + 1) * (size - 1) / size;
            assert_true(s.sent / plain <= (wire == RF_WIRE_BF16 ? 0.501 : 0.27));
        }
    }
}

/* ---- training */

struct job {
    struct group group;
    struct rf_ddp_options options;
    enum rf_wire wire[RUNNER_RANKS];
    int size, steps, tensors;
    size_t counts[MOST_TENSORS];
    bool forward; /* gradients become ready in the order of registration: buckets move */
    int bad_rank; /* its gradient is no number, in step 1; -1: none */
    bool no_allocation;

    int code[RUNNER_RANKS], committed[RUNNER_RANKS];
    struct rf_error error[RUNNER_RANKS];
    uint64_t digests[RUNNER_RANKS][MOST_STEPS];
    double *total[RUNNER_RANKS]; /* of all averages, by tensor and element */
    size_t elements;
    size_t memory;
};

static struct job *new_job(int size, enum rf_wire wire) {
    static const size_t counts[] = {40000, 3, 30001, 25000, 5000};
    struct job *job = calloc(1, sizeof *job);
    if (!job) {
        abort();
    }
    group_open(&job->group, size);
    job->size = size;
    job->steps = 4;
    job->tensors = sizeof counts / sizeof *counts;
    memcpy(job->counts, counts, sizeof counts);
    for (int t = 0; t < job->tensors; t++) {
        job->elements += counts[t];
    }
    job->bad_rank = -1;
    rf__ddp_options_init(&job->options);
    job->options.first_bucket_bytes = job->options.bucket_bytes = 100000;
    for (int r = 0; r < size; r++) {
        job->wire[r] = wire;
        job->total[r] = calloc(job->elements, sizeof(double));
    }
    return job;
}

static void free_job(struct job *job) {
    for (int r = 0; r < job->size; r++) {
        free(job->total[r]);
    }
    group_close(&job->group);
    free(job);
}

static int do_step(struct job *job, struct rf_ddp *ddp, int rank, int step) {
    struct rf_step_report report;
    struct rf_shard shard;
    int rc = rf__ddp_begin(ddp, NULL, &job->error[rank]);

    while (rc == 0 && rf__ddp_next_shard(ddp, &shard) > 0) {
        rf__ddp_shard_samples(ddp, 2);
        for (int t = 0; t < job->tensors; t++) {
            float *gradient = rf__ddp_grad(ddp, t);
            for (size_t i = 0; i < job->counts[t]; i++) {
                gradient[i] += gradient_of(shard.index, t, i);
            }
            if (t == 2 && step == 1 && rank == job->bad_rank) {
                gradient[20000] = NAN;
            }
        }
        for (int k = 0; k < job->tensors && rc == 0; k++) {
            rc = rf__ddp_ready(ddp, job->forward ? k : job->tensors - 1 - k);
        }
        rc = rc ? rc : rf__ddp_shard_done(ddp, 1);
    }
    rc = rf__ddp_commit(ddp, &report, &job->error[rank]);
    if (rc) {
        return rc;
    }
    job->committed[rank]++;
    job->digests[rank][step] = report.digest;
    double *total = job->total[rank];
    CHECK(step < 2 || isfinite(rf__ddp_average(ddp, 2)[20000]));
    for (int t = 0; t < job->tensors; t++) {
        const float *average = rf__ddp_average(ddp, t);
        for (size_t i = 0; i < job->counts[t]; i++) {
            *total++ += (double)average[i];
        }
    }
    return 0;
}

static void train(int rank, void *context) {
    struct job *job = context;
    struct rf_ddp_options options = job->options;
    struct rf_ddp *ddp = NULL;
    static const char *const names[] = {"a", "b", "c", "d", "e", "f"};
    float *params = calloc(job->elements, sizeof *params), *at = params;
    struct rf_ddp_memory memory;

    CHECK(params != NULL);
    options.wire = job->wire[rank];
    int rc = rf__ddp_create(&job->group.members[rank].base, &options, &ddp, &job->error[rank]);
    for (int t = 0; t < job->tensors && rc == 0; t++) {
        rc = rf__ddp_register(ddp, names[t], at, job->counts[t], &job->error[rank]);
        at += job->counts[t];
    }
    rc = rc ? rc : rf__ddp_seal(ddp, &job->error[rank]);
    for (int s = 0; s < job->steps && rc == 0; s++) {
        if (job->no_allocation && s == 2 && rank == 0) {
            rf__alloc_fail_after(0);
        }
        rc = do_step(job, ddp, rank, s);
    }
    if (rank == 0 && ddp) {
        rf__ddp_memory(ddp, &memory);
        job->memory = memory.compression;
    }
    job->code[rank] = rc;
    rf__ddp_destroy(ddp);
    free(params);
}

static void run_job(struct job *job) {
    atomic_store(&failed_checks, 0);
    run_threads(job->size, train, job);
    rf__alloc_fail_after(-1);
    assert_int_equal(atomic_load(&failed_checks), 0);
    assert_int_equal(job->group.live_ops, 0);
    assert_int_equal(job->group.live_memory, 0);
}

static void assert_trained(const struct job *job) {
    assert_int_equal(job->group.mismatches, 0);
    for (int r = 0; r < job->size; r++) {
        if (job->code[r]) {
            print_error("rank %d: %d '%s'\n", r, job->code[r], job->error[r].text);
        }
        assert_int_equal(job->code[r], 0);
        assert_int_equal(job->committed[r], job->steps);
        assert_memory_equal(job->digests[r], job->digests[0], sizeof job->digests[0]);
        assert_memory_equal(job->total[r], job->total[0], job->elements * sizeof(double));
    }
}

/* The largest distance of a sum of averages from what it should be, over all elements. */
static double distance(const struct job *job) {
    const double *total = job->total[0];
    double most = 0;

    for (int t = 0; t < job->tensors; t++) {
        for (size_t i = 0; i < job->counts[t]; i++) {
            double sum = 0;
            for (int k = 0; k < job->size; k++) {
                sum += (double)gradient_of((uint32_t)k, t, i);
            }
            most = fmax(most, fabs(*total++ - job->steps * sum / (2 * job->size)));
        }
    }
    return most;
}

/* What was lost is not lost: the same gradient again and again, and the sum of all averages is off
 * by what a step or two lose, be they five or sixty. Buckets move after the first step. */
static void losses_do_not_add_up(void **state) {
    (void)state;
    for (int size = 1; size <= 4; size++) {
        for (int forward = 0; forward < 2; forward++) {
            double off[2];
            for (int k = 0; k < 2; k++) {
                struct job *job = new_job(size, RF_WIRE_INT8);
                job->steps = k ? 60 : 5;
                job->forward = forward;
                run_job(job);
                assert_trained(job);
                off[k] = distance(job);
                free_job(job);
            }
            /* each rank's loss, the sum's, and where the buckets move the sum's of the first step
             */
            double most = LARGEST / 254.0 * 1.02 * (size + 2 * size) / (2 * size) + 1e-3;
            assert_true(off[0] <= most && off[1] <= most);
            assert_true(size == 1 || off[1] > 1e-4); /* something was rounded at all */
        }
    }
}

static void bfloat16_rounds_each_average(void **state) {
    (void)state;
    for (int size = 2; size <= 5; size++) {
        struct job *job = new_job(size, RF_WIRE_BF16);
        run_job(job);
        assert_trained(job);
        double off = distance(job) / job->steps;
        assert_true(off <= LARGEST / 256.0 && off > 1e-4);
        assert_true(job->memory > 0);
        free_job(job);
    }
}

/* Overlap or not, one bucket or many: the order of operations may differ, the bits may not where
 * the pieces are the same. */
static void without_overlap_the_bits_are_the_same(void **state) {
    (void)state;
    for (int wire = RF_WIRE_BF16; wire <= RF_WIRE_INT8; wire++) {
        struct job *a = new_job(3, (enum rf_wire)wire), *b = new_job(3, (enum rf_wire)wire);
        b->options.no_overlap = 1;
        run_job(a);
        run_job(b);
        assert_trained(a);
        assert_trained(b);
        assert_memory_equal(a->digests, b->digests, sizeof a->digests);
        free_job(a);
        free_job(b);
    }
}

static void off_it_takes_nothing(void **state) {
    (void)state;
    struct job *job = new_job(2, RF_WIRE_NONE);
    run_job(job);
    assert_trained(job);
    assert_int_equal(job->memory, 0);
    free_job(job);
}

/* Not a number on one rank is none on all, and the steps after it are sound again. */
static void what_is_no_number_is_seen_by_all(void **state) {
    (void)state;
    for (int wire = RF_WIRE_BF16; wire <= RF_WIRE_INT8; wire++) {
        struct job *job = new_job(3, (enum rf_wire)wire);
        job->bad_rank = 1;
        job->steps = 2;
        run_job(job);
        assert_trained(job);
        size_t at = job->counts[0] + job->counts[1] + 20000, odd = 0;
        for (int r = 0; r < 3; r++) {
            assert_true(isnan(job->total[r][at]));
        }
        for (size_t i = 0; i < job->elements; i++) {
            odd += !isfinite(job->total[0][i]);
        }
        assert_true(odd <= 512); /* a block on its way there, and the one of the sum: the same */
        free_job(job);
    }
    struct job *job = new_job(3, RF_WIRE_INT8);
    job->bad_rank = 1;
    job->steps = 6;
    run_job(job);
    assert_trained(job);
    free_job(job);
}

static void different_compression_is_named(void **state) {
    (void)state;
    struct job *job = new_job(3, RF_WIRE_NONE);
    job->wire[2] = RF_WIRE_INT8;
    run_job(job);
    for (int r = 0; r < 3; r++) {
        assert_int_equal(job->code[r], RF_EMISMATCH);
        assert_int_equal(job->error[r].rank, 2);
        assert_non_null(strstr(job->error[r].text, "rank 2 of 3 travel as 'int8'"));
        assert_non_null(strstr(job->error[r].text, "those of rank 0 as 'none'"));
    }
    free_job(job);
}

static void a_value_of_no_kind_is_refused(void **state) {
    struct rf_ddp_options options;
    struct rf_error err = {0};
    struct rf_ddp *ddp = NULL;
    struct rf__runner runner = {.size = 1};
    (void)state;
    rf__ddp_options_init(&options);
    assert_int_equal(options.wire, RF_WIRE_NONE);
    options.wire = RF_WIRE_COUNT;
    assert_int_equal(rf__ddp_create(&runner, &options, &ddp, &err), RF_EINVAL);
    assert_non_null(strstr(err.text, "'wire'"));
    enum rf_wire wire = RF_WIRE_NONE;
    assert_int_equal(rf_wire_parse("int8", &wire), 0);
    assert_int_equal(wire, RF_WIRE_INT8);
    assert_int_equal(rf_wire_parse("int4", &wire), RF_EINVAL);
    assert_string_equal(rf_wire_name(RF_WIRE_BF16), "bf16");
    assert_string_equal(rf_wire_name(RF_WIRE_COUNT), "?");
}

static void a_step_allocates_nothing(void **state) {
    (void)state;
    for (int wire = RF_WIRE_BF16; wire <= RF_WIRE_INT8; wire++) {
        struct job *job = new_job(1, (enum rf_wire)wire);
        job->no_allocation = true;
        run_job(job);
        assert_trained(job);
        free_job(job);
    }
}

/* Each operation fails for all, or its start on one: everybody sees it, nothing is left over. */
static void every_operation_can_fail(void **state) {
    (void)state;
    for (int wire = RF_WIRE_BF16; wire <= RF_WIRE_INT8; wire++) {
        for (int fault = FAULT_START; fault <= FAULT_RUN; fault++) {
            int at = 0;
            for (int hits = 1; hits; at++) {
                struct job *job = new_job(3, (enum rf_wire)wire);
                job->steps = 2;
                job->group.fault = (enum fault)fault;
                job->group.fault_rank = at % 3;
                job->group.fault_at = at;
                run_job(job);
                hits = job->group.fault_hits;
                for (int r = 0; r < 3; r++) {
                    assert_true(!hits == !job->code[r]);
                }
                free_job(job);
            }
            assert_true(at > 10);
        }
    }
}

/* A bit of a result changes on one rank alone: what is committed is the same on all, or nothing is
 * any more. */
static void no_flipped_bit_is_committed(void **state) {
    int broken = 0, at = 0;
    (void)state;
    for (int hits = 1; hits; at++) {
        struct job *job = new_job(3, RF_WIRE_INT8);
        job->steps = 2;
        job->group.fault = FAULT_BIT;
        job->group.fault_rank = 1;
        job->group.fault_at = at;
        run_job(job);
        hits = job->group.fault_hits;
        for (int s = 0; s < 2; s++) {
            for (int r = 1; r < 3; r++) {
                if (job->committed[r] > s && job->committed[0] > s) {
                    assert_true(job->digests[r][s] == job->digests[0][s]);
                }
            }
        }
        broken += job->code[0] != 0;
        free_job(job);
    }
    assert_true(at > 15 && broken > 6);
}

static void every_allocation_can_fail(void **state) {
    (void)state;
    for (int wire = RF_WIRE_BF16; wire <= RF_WIRE_INT8; wire++) {
        int failed = 0, at = 0;
        for (bool hit = true; hit; at++) {
            struct job *job = new_job(1, (enum rf_wire)wire);
            job->steps = 1;
            rf__alloc_fail_after(at);
            run_job(job);
            hit = job->code[0] != 0;
            assert_true(!hit || job->code[0] == RF_ENOMEM);
            failed += hit;
            free_job(job);
        }
        assert_true(failed > 12);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_are_the_oracle_s),
        cmocka_unit_test(what_is_begun_again_takes_nothing_twice),
        cmocka_unit_test(bytes_are_a_half_and_a_quarter),
        cmocka_unit_test(losses_do_not_add_up),
        cmocka_unit_test(bfloat16_rounds_each_average),
        cmocka_unit_test(without_overlap_the_bits_are_the_same),
        cmocka_unit_test(off_it_takes_nothing),
        cmocka_unit_test(what_is_no_number_is_seen_by_all),
        cmocka_unit_test(different_compression_is_named),
        cmocka_unit_test(a_value_of_no_kind_is_refused),
        cmocka_unit_test(a_step_allocates_nothing),
        cmocka_unit_test(every_operation_can_fail),
        cmocka_unit_test(no_flipped_bit_is_committed),
        cmocka_unit_test(every_allocation_can_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
