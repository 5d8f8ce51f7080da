/* group/: links of several lanes. Pieces of a message overtake each other at random, lanes come up
 * late and at one end first, workers die and leave with data on every lane: results have the bits
 * that one lane gives, and nobody waits for ever. */
#include "support/cluster.h"

#include "coll/schedule.h"
#include "group/frame.h"

enum { MOST = 5, SPREAD = 256 << 10 /* larger messages take all lanes */ };

static void open_late(struct cluster *c, int lanes, int stingy, uint64_t seed) {
    form_cluster(
        c, 2,
        &(struct cluster_options){.lanes = lanes, .late = true, .stingy = stingy, .seed = seed});
}

static void open_cluster(struct cluster *c, int size, int lanes, int stingy, uint64_t seed) {
    form_cluster(c, size,
                 &(struct cluster_options){.lanes = lanes, .stingy = stingy, .seed = seed});
}

/* One collective on all ranks: inputs that make every order of folding give other bits. */
struct job {
    struct rf_call call;
    unsigned char *in[MOST], *out[MOST];
    size_t in_bytes, out_bytes;
    struct rf__op *op[MOST];
};

static void fill(unsigned char *at, enum rf_type type, size_t count, int rank) {
    size_t bytes = rf_type_size(type);
    for (size_t i = 0; i < count; i++) {
        uint32_t mixed = ((uint32_t)i + 77 * (uint32_t)rank) * 2654435761u;
        float value = (float)(mixed >> 12) / 1048573.0F;
        if (type == RF_F32) {
            memcpy(at + bytes * i, &value, bytes);
        } else {
            memset(at + bytes * i, (int)(value * 50), bytes);
        }
    }
}

static void begin(struct cluster *c, struct job *job, const struct rf_call *call) {
    size_t part = call->count * rf_type_size(call->type), all = part * (size_t)c->size;
    bool many_in = call->coll == RF_COLL_REDUCE_SCATTER || call->coll == RF_COLL_SCATTER ||
                   call->coll == RF_COLL_ALL_TO_ALL;
    bool many_out = call->coll == RF_COLL_ALL_GATHER || call->coll == RF_COLL_GATHER ||
                    call->coll == RF_COLL_ALL_TO_ALL;

    *job = (struct job){.call = *call};
    job->in_bytes = many_in ? all : part;
    job->out_bytes = many_out ? all : part;
    for (int rank = 0; rank < c->size; rank++) {
        struct rf_error err;
        job->in[rank] = malloc(job->in_bytes + 8);
        job->out[rank] = calloc(1, job->out_bytes + 8);
        fill(job->in[rank], call->type, job->in_bytes / rf_type_size(call->type), rank);
        struct rf__op_params params = {.call = *call};
        params.call.send = job->in[rank];
        params.call.recv = job->out[rank];
        if (rf__group_submit(c->groups[rank], &params, c->now, &job->op[rank], &err)) {
            fail_msg("%s", err.text);
        }
    }
}

static bool is_done(const struct cluster *c, const struct job *job) {
    bool done = true;
    for (int rank = 0; rank < c->size; rank++) {
        done = done && (c->dead[rank] || rf__op_result(job->op[rank]) != 0);
    }
    return done;
}

static void run(struct cluster *c, struct job *job) {
    for (int i = 0; i < 3000000 && !is_done(c, job); i++) {
        step_all(c);
    }
    assert_true(is_done(c, job));
}

static void expect_success(struct cluster *c, const struct job *job) {
    for (int rank = 0; rank < c->size; rank++) {
        struct rf_error err;
        rf__group_error(c->groups[rank], &err);
        if (rf__op_result(job->op[rank]) != 1) {
            fail_msg("rank %d: %s", rank, err.text);
        }
    }
}

static void finish(struct cluster *c, struct job *job) {
    for (int rank = 0; rank < c->size; rank++) {
        rf__group_release(c->groups[rank], job->op[rank]);
        free(job->in[rank]);
        free(job->out[rank]);
    }
}

/* What one lane gives for the call stands in `expected`; several give the same. */
static void compare(struct cluster *one, struct cluster *many, const struct rf_call *call) {
    struct job expected, got;

    begin(one, &expected, call);
    run(one, &expected);
    expect_success(one, &expected);
    begin(many, &got, call);
    run(many, &got);
    expect_success(many, &got);
    for (int rank = 0; rank < one->size; rank++) {
        if (memcmp(expected.out[rank], got.out[rank], expected.out_bytes) != 0) {
            fail_msg("%s by %s of %zu elements on %d ranks: rank %d has other bits",
                     rf_coll_name(call->coll), rf_algorithm_name(call->algorithm), call->count,
                     one->size, rank);
        }
    }
    finish(one, &expected);
    finish(many, &got);
}

static uint64_t sent_on(const struct cluster *c, int lane) {
    uint64_t sent = 0;
    for (int from = 0; from < c->size; from++) {
        for (int to = 0; to < c->size; to++) {
            sent += fake_lane(c->world, from, to, lane)->tail;
        }
    }
    return sent;
}

static const enum rf_coll colls[] = {RF_COLL_ALLREDUCE, RF_COLL_REDUCE_SCATTER, RF_COLL_ALL_GATHER,
                                     RF_COLL_BROADCAST, RF_COLL_REDUCE,         RF_COLL_GATHER,
                                     RF_COLL_SCATTER,   RF_COLL_ALL_TO_ALL};

static void the_bits_are_those_of_one_lane(void **state) {
    (void)state;
    static const int lanes[] = {2, 3, 8};
    static const enum rf_type types[] = {RF_F32, RF_BF16, RF_F64};
    unsigned turn = 0;
    for (int size = 2; size <= MOST; size++) {
        struct cluster one, many;
        int count = lanes[size % 3];
        open_cluster(&one, size, 1, 0, 1);
        open_cluster(&many, size, count, 3, (uint64_t)size);
        for (size_t k = 0; k < sizeof colls / sizeof *colls; k++) {
            for (int algorithm = 1; algorithm < RF_ALGORITHM_SHARED; algorithm++) {
                struct rf_call call = {.coll = colls[k],
                                       .algorithm = (enum rf_algorithm)algorithm,
                                       .type = types[turn % 3],
                                       .root = (int)(turn % (unsigned)size)};
                if (!rf__schedule_covers(call.coll, call.algorithm)) {
                    continue;
                }
                /* each slice is a little more than two pieces, or just as much as stays on one */
                size_t bytes = turn % 4 ? 2 * SPREAD + 40 : SPREAD;
                bool sliced = call.coll == RF_COLL_ALLREDUCE || call.coll == RF_COLL_BROADCAST ||
                              call.coll == RF_COLL_REDUCE;
                call.count = (sliced ? (size_t)size : 1) * bytes / rf_type_size(call.type);
                compare(&one, &many, &call);
                turn++;
            }
        }
        for (int lane = 1; lane < count; lane++) { /* they all did their part of the work */
            assert_true(sent_on(&many, lane) > sent_on(&one, 0) / (uint64_t)(5 * count));
        }
        close_cluster(&one);
        close_cluster(&many);
    }
}

static void calls_in_a_row_stay_apart(void **state) {
    (void)state;
    enum { CALLS = 12 };
    static struct job jobs[CALLS], expected[CALLS];
    struct cluster one, many;
    open_cluster(&one, 3, 1, 0, 1);
    open_cluster(&many, 3, 4, 4, 8);
    for (size_t k = 0; k < CALLS; k++) {
        struct rf_call call = {.coll = k % 3 ? RF_COLL_ALLREDUCE : RF_COLL_ALL_TO_ALL,
                               .count = k % 2 ? 10 * k : 300000 + k};
        begin(&one, &expected[k], &call);
        begin(&many, &jobs[k], &call);
        step_all(&many);
    }
    for (int k = 0; k < CALLS; k++) {
        run(&one, &expected[k]);
        run(&many, &jobs[k]);
        expect_success(&many, &jobs[k]);
        for (int rank = 0; rank < 3; rank++) {
            assert_memory_equal(jobs[k].out[rank], expected[k].out[rank], jobs[k].out_bytes);
        }
    }
    for (int k = 0; k < CALLS; k++) {
        finish(&one, &expected[k]);
        finish(&many, &jobs[k]);
    }
    close_cluster(&one);
    close_cluster(&many);
}

/* Lanes come up while calls run, at one end before the other, the last one at one end only. */
static void lanes_may_come_late(void **state) {
    (void)state;
    for (int turn = 0; turn < 24; turn++) {
        struct cluster c, one;
        struct job jobs[3], expected;
        struct rf_call call = {.coll = RF_COLL_ALLREDUCE, .count = 500000};
        int first = turn % 2;
        open_cluster(&one, 2, 1, 0, 1);
        begin(&one, &expected, &call);
        run(&one, &expected);
        open_late(&c, 4, 3, (uint64_t)turn);
        for (int k = 0; k < 3; k++) {
            begin(&c, &jobs[k], &call);
        }
        for (int lanes = 2; lanes <= 4; lanes++) {
            for (int i = 0; i < 5 * turn; i++) {
                step_all(&c);
            }
            c.world->nets[first].net.lanes[1 - first] = lanes;
            for (int i = 0; i < 3 * turn; i++) {
                step_all(&c);
            }
            c.world->nets[1 - first].net.lanes[first] = lanes < 4 ? lanes : 3;
        }
        for (int k = 0; k < 3; k++) {
            run(&c, &jobs[k]);
            expect_success(&c, &jobs[k]);
            for (int rank = 0; rank < 2; rank++) {
                assert_memory_equal(jobs[k].out[rank], expected.out[rank], expected.out_bytes);
            }
            finish(&c, &jobs[k]);
        }
        assert_true(turn > 3 || sent_on(&c, 2) > 4 * SPREAD);
        assert_int_equal(sent_on(&c, 3), RF__FRAME_BYTES); /* it said that it listens, no more */
        finish(&one, &expected);
        close_cluster(&c);
        close_cluster(&one);
    }
}

static void a_death_is_named_at_any_moment(void **state) {
    (void)state;
    int lost = 0;
    for (int steps = 0; steps < 150; steps += 3) {
        struct cluster c;
        struct job jobs[3];
        struct rf_call call = {.coll = RF_COLL_ALLREDUCE, .count = 700001};
        int victim = steps % 3;
        open_cluster(&c, 3, 1 + steps % 5, 3, (uint64_t)steps);
        for (int k = 0; k < 3; k++) {
            begin(&c, &jobs[k], &call);
        }
        for (int i = 0; i < steps; i++) {
            step_all(&c);
        }
        c.dead[victim] = true;
        fake_kill(c.world, victim);
        for (int i = 0; i < 100000 && !is_done(&c, &jobs[2]); i++) {
            step_all(&c);
            for (int rank = 0; rank < 3; rank++) { /* who has an error ends, after a while */
                if (i % 100 == 99 && rf__group_state(c.groups[rank]) == RF__GROUP_REVOKED) {
                    c.dead[rank] = true;
                    fake_kill(c.world, rank);
                }
            }
        }
        assert_true(is_done(&c, &jobs[2]));
        for (int rank = 0; rank < 3; rank++) {
            struct rf_error err;
            rf__group_error(c.groups[rank], &err);
            if (rank != victim && rf__op_result(jobs[2].op[rank]) != 1) {
                assert_int_equal(rf__op_result(jobs[2].op[rank]), RF_ELOST);
                assert_true(err.rank == victim || c.dead[err.rank]);
                lost++;
            }
        }
        for (int k = 0; k < 3; k++) {
            finish(&c, &jobs[k]);
        }
        close_cluster(&c);
    }
    assert_true(lost > 60);
}

/* One that has written all of its part may leave; who reads it later finds it all, on every lane.
 */
static void what_one_that_left_has_sent_is_read(void **state) {
    (void)state;
    int unread = 0;
    for (int turn = 0; turn < 40; turn++) {
        struct cluster c;
        struct job job;
        struct rf_error err;
        struct rf_call call = {.coll = RF_COLL_BROADCAST,
                               .algorithm = RF_ALGORITHM_NAIVE,
                               .type = RF_U8,
                               .count = SPREAD + SPREAD / 2};
        open_cluster(&c, 2, 2 + turn % 5, turn % 4 + 1, (uint64_t)turn);
        begin(&c, &job, &call);
        while (rf__op_result(job.op[0]) == 0) {
            (void)rf__group_step(c.groups[1], ++c.now);
            (void)rf__group_step(c.groups[0], ++c.now);
        }
        rf__group_leave(c.groups[0], c.now);
        for (int i = 0; i < 1000 && !rf__group_left(c.groups[0]); i++) {
            (void)rf__group_step(c.groups[1], ++c.now);
            (void)rf__group_step(c.groups[0], ++c.now);
        }
        assert_true(rf__group_left(c.groups[0]));
        unread += rf__op_result(job.op[1]) == 0;
        c.dead[0] = true;
        fake_kill(c.world, 0);
        run(&c, &job);
        rf__group_error(c.groups[1], &err);
        assert_string_equal(err.text, "");
        assert_int_equal(rf__op_result(job.op[1]), 1);
        assert_memory_equal(job.out[1], job.in[0], job.out_bytes);
        finish(&c, &job);
        close_cluster(&c);
    }
    assert_true(unread > 4);
}

/* A frozen peer is found out although the pieces that it could send wait on other lanes. */
static void silence_is_noticed(void **state) {
    (void)state;
    for (int steps = 0; steps < 40; steps += 4) {
        struct cluster c;
        struct job job;
        struct rf_error err;
        struct rf_call call = {.coll = RF_COLL_ALLREDUCE, .count = 2000000};
        open_cluster(&c, 2, 4, 2, (uint64_t)steps);
        begin(&c, &job, &call);
        for (int i = 0; i < steps; i++) {
            step_all(&c);
        }
        assert_int_equal(rf__op_result(job.op[1]), 0);
        c.dead[0] = true;
        for (int i = 0; i < 60; i++) {
            c.now += 100 * RF__MS;
            step_all(&c);
        }
        rf__group_error(c.groups[1], &err);
        assert_int_equal(err.code, RF_ELOST);
        assert_int_equal(err.rank, 0);
        finish(&c, &job);
        close_cluster(&c);
    }
}

/* ---- A peer that speaks nonsense ---- */

/* The header of the frame that comes first on the lane, to be changed by `change`. */
static void forge(struct cluster *c, int lane, void (*change)(struct rf__frame *frame)) {
    struct fake_queue *queue = fake_lane(c->world, 0, 1, lane);
    unsigned char bytes[RF__FRAME_BYTES];
    struct rf__frame frame;

    assert_true(queue->tail - queue->head >= sizeof bytes);
    for (size_t i = 0; i < sizeof bytes; i++) {
        bytes[i] = queue->bytes[(queue->head + i) % FAKE_QUEUE];
    }
    assert_int_equal(rf__frame_decode(bytes, &frame), 0);
    change(&frame);
    rf__frame_encode(&frame, bytes);
    for (size_t i = 0; i < sizeof bytes; i++) {
        queue->bytes[(queue->head + i) % FAKE_QUEUE] = bytes[i];
    }
}

static void twice(struct rf__frame *frame) {
    frame->offset = 0; /* as the piece on lane 0 */
}

static void beyond(struct rf__frame *frame) {
    frame->offset = UINT64_MAX - 3;
}

static void askew(struct rf__frame *frame) {
    frame->offset += 2;
}

static void older(struct rf__frame *frame) {
    frame->message -= 1;
}

static void control(struct rf__frame *frame) {
    frame->kind = RF__FRAME_BYE;
    frame->bytes = 0;
}

static void nonsense_is_refused(void **state) {
    (void)state;
    static const struct {
        void (*change)(struct rf__frame *frame);
        const char *words;
    } cases[] = {{twice, "do not make a whole"},
                 {beyond, "does not fit"},
                 {askew, "does not fit"},
                 {older, "does not fit"},
                 {control, "on stream 1"}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        struct cluster c;
        struct job job;
        struct rf_error err;
        struct rf_call call = {
            .coll = RF_COLL_BROADCAST, .algorithm = RF_ALGORITHM_NAIVE, .count = 150000};
        open_cluster(&c, 2, 3, 0, 1);
        begin(&c, &job, &call);
        for (int i = 0; i < 5; i++) { /* both begin: the barrier before it */
            c.world->stingy = 0;
            (void)rf__group_step(c.groups[1], ++c.now);
            if (fake_lane(c.world, 0, 1, 1)->tail - fake_lane(c.world, 0, 1, 1)->head) {
                break;
            }
            (void)rf__group_step(c.groups[0], ++c.now);
            if (fake_lane(c.world, 0, 1, 1)->tail - fake_lane(c.world, 0, 1, 1)->head) {
                break;
            }
        }
        forge(&c, 1, cases[k].change);
        run(&c, &job);
        rf__group_error(c.groups[1], &err);
        assert_int_equal(err.code, RF_EPROTO);
        assert_non_null(strstr(err.text, cases[k].words));
        assert_non_null(strstr(err.text, "rank 0"));
        finish(&c, &job);
        close_cluster(&c);
    }
}

static void a_mismatch_is_told_on_any_lane(void **state) {
    (void)state;
    for (int seed = 0; seed < 10; seed++) {
        struct cluster c;
        struct job job;
        struct rf_call call = {.coll = RF_COLL_ALLREDUCE, .count = 900000};
        struct rf__op *ops[3];
        open_cluster(&c, 3, 4, 3, (uint64_t)seed);
        float *out = calloc(1000000, sizeof *out), *in = calloc(1000000, sizeof *in);
        job = (struct job){.call = call};
        for (int rank = 0; rank < 3; rank++) {
            struct rf__op_params params = {.call = call};
            struct rf_error err;
            params.call.send = in;
            params.call.recv = rank ? out : in;
            params.call.count += rank == 2;
            if (rank == 1) {
                params.call.send = out;
            }
            assert_int_equal(rf__group_submit(c.groups[rank], &params, c.now, &ops[rank], &err), 0);
            job.op[rank] = ops[rank];
        }
        run(&c, &job);
        for (int rank = 0; rank < 3; rank++) {
            assert_int_equal(rf__op_result(ops[rank]), RF_EMISMATCH);
            rf__group_release(c.groups[rank], ops[rank]);
        }
        free(in);
        free(out);
        close_cluster(&c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_bits_are_those_of_one_lane),
        cmocka_unit_test(calls_in_a_row_stay_apart),
        cmocka_unit_test(lanes_may_come_late),
        cmocka_unit_test(a_death_is_named_at_any_moment),
        cmocka_unit_test(what_one_that_left_has_sent_is_read),
        cmocka_unit_test(silence_is_noticed),
        cmocka_unit_test(nonsense_is_refused),
        cmocka_unit_test(a_mismatch_is_told_on_any_lane),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
