/* group/: all collectives by all algorithms in groups of 1 to 17 within one process, over links
 * that deliver as they like and over shared memory, against a naive oracle; several in flight;
 * messages; mismatches; deaths. */
#include "support/cluster.h"

#include "base/mem.h"
#include "coll/fold.h"
#include "coll/schedule.h"
#include "group/frame.h"

static void open_hosts(struct cluster *c, int size, bool shared, int local, size_t most,
                       uint64_t seed) {
    form_cluster(
        c, size,
        &(struct cluster_options){.shared = shared, .local = local, .most = most, .seed = seed});
}

static void open_cluster(struct cluster *c, int size, bool shared, size_t most, uint64_t seed) {
    open_hosts(c, size, shared, 0, most, seed);
}

/* Elements as doubles, whatever the type. */
static void put(enum rf_type type, void *base, size_t index, double value) {
    unsigned char *at = (unsigned char *)base + index * rf_type_size(type);
    float f = (float)value;
    int64_t i = (int64_t)value;
    switch (type) {
    case RF_F32:
        memcpy(at, &f, 4);
        return;
    case RF_F64:
        memcpy(at, &value, 8);
        return;
    case RF_F16:
    case RF_BF16:
        rf__narrow(type, at, &f, 1);
        return;
    case RF_I8:
    case RF_U8:
    case RF_I32:
    case RF_U32:
    case RF_I64:
    case RF_U64:
        memcpy(at, &i, rf_type_size(type)); /* little-endian */
        return;
    case RF_TYPE_COUNT:
        break;
    }
    fail();
}

static double get(enum rf_type type, const void *base, size_t index) {
    const unsigned char *at = (const unsigned char *)base + index * rf_type_size(type);
    double d = 0;
    float f = 0;
    int64_t i = 0;
    switch (type) {
    case RF_F32:
        memcpy(&f, at, 4);
        return (double)f;
    case RF_F64:
        memcpy(&d, at, 8);
        return d;
    case RF_F16:
    case RF_BF16:
        rf__widen(type, &f, at, 1);
        return (double)f;
    case RF_I8:
        return *(const int8_t *)at;
    case RF_I32:
        memcpy(&i, at, 4);
        return (int32_t)i;
    case RF_U8:
    case RF_U32:
    case RF_I64:
    case RF_U64:
        memcpy(&i, at, rf_type_size(type));
        return (double)i;
    case RF_TYPE_COUNT:
        break;
    }
    fail();
    return 0;
}

/* Small whole numbers, so that every order of summing is exact; signed where the type is. */
static double value_of(const struct rf_call *call, int rank, size_t index) {
    uint64_t mixed = ((uint64_t)rank * 31 + index) * 2654435761u % 65521;
    bool is_unsigned = call->type == RF_U8 || call->type == RF_U32 || call->type == RF_U64;
    if (call->redop == RF_PROD) {
        return mixed % 3 == 0 && !is_unsigned ? -1 : 1 + (mixed % 17 == 0);
    }
    return is_unsigned ? (double)(mixed % 6) : (double)(mixed % 7) - 3;
}

static double combine(const struct rf_call *call, double a, double b) {
    switch (call->redop) {
    case RF_SUM:
    case RF_AVG:
        return a + b;
    case RF_PROD:
        return a * b;
    case RF_MIN:
        return a < b ? a : b;
    case RF_MAX:
        return a > b ? a : b;
    case RF_AND:
        return (double)((int64_t)a & (int64_t)b);
    case RF_OR:
        return (double)((int64_t)a | (int64_t)b);
    case RF_XOR:
        return (double)((int64_t)a ^ (int64_t)b);
    case RF_REDOP_COUNT:
        break;
    }
    fail();
    return 0;
}

/* What element `index` of the result is, from all inputs. */
static double reduced(const struct rf_call *call, int size, size_t index) {
    double all = value_of(call, 0, index);
    for (int rank = 1; rank < size; rank++) {
        all = combine(call, all, value_of(call, rank, index));
    }
    if (call->redop == RF_AVG) {
        bool is_float = call->type == RF_F32 || call->type == RF_F64 || call->type == RF_F16 ||
                        call->type == RF_BF16;
        unsigned char rounded[8];
        if (call->type == RF_F64) {
            return all / size;
        }
        put(call->type, rounded, 0,
            is_float ? (double)((float)all / (float)size) : (double)((int64_t)all / size));
        return get(call->type, rounded, 0);
    }
    return all;
}

static bool is(const struct rf_call *call, enum rf_coll a, enum rf_coll b, enum rf_coll c) {
    return call->coll == a || call->coll == b || call->coll == c;
}

static size_t in_count(const struct rf_call *call, int rank, int size) {
    size_t all = call->count * (size_t)size;
    if (call->coll == RF_COLL_BARRIER ||
        (rank != call->root && is(call, RF_COLL_SCATTER, RF_COLL_BROADCAST, RF_COLL_BROADCAST))) {
        return 0;
    }
    return is(call, RF_COLL_REDUCE_SCATTER, RF_COLL_ALL_TO_ALL, RF_COLL_SCATTER) ? all
                                                                                 : call->count;
}

static size_t out_count(const struct rf_call *call, int rank, int size) {
    size_t all = call->count * (size_t)size;
    if (call->coll == RF_COLL_BARRIER ||
        (rank != call->root && is(call, RF_COLL_GATHER, RF_COLL_REDUCE, RF_COLL_REDUCE))) {
        return 0;
    }
    return is(call, RF_COLL_ALL_GATHER, RF_COLL_ALL_TO_ALL, RF_COLL_GATHER) ? all : call->count;
}

static double expected(const struct rf_call *call, int rank, int size, size_t index) {
    size_t part = call->count ? index / call->count : 0;
    size_t within = call->count ? index % call->count : 0, mine = (size_t)rank * call->count;
    if (is(call, RF_COLL_ALLREDUCE, RF_COLL_REDUCE, RF_COLL_REDUCE)) {
        return reduced(call, size, index);
    }
    if (call->coll == RF_COLL_REDUCE_SCATTER) {
        return reduced(call, size, mine + index);
    }
    if (call->coll == RF_COLL_BROADCAST) {
        return value_of(call, call->root, index);
    }
    if (call->coll == RF_COLL_SCATTER) {
        return value_of(call, call->root, mine + index);
    }
    return value_of(call, (int)part, call->coll == RF_COLL_ALL_TO_ALL ? mine + within : within);
}

struct buffers {
    unsigned char *send, *recv; /* as allocated */
    struct rf_call call;
    struct rf__op *op;
    double divisor;
};

static void *allocate(struct cluster *c, int rank, size_t bytes, bool heap) {
    void *out = NULL;
    struct rf_error err;
    if (heap) {
        assert_int_equal(
            c->world->nets[rank].net.shared->alloc(&c->world->nets[rank].net, bytes, &out, &err),
            0);
        return out;
    }
    out = malloc(bytes ? bytes : 1);
    return out;
}

static void release(struct cluster *c, int rank, void *memory, bool heap) {
    if (heap) {
        c->world->nets[rank].net.shared->release(&c->world->nets[rank].net, memory);
    } else {
        free(memory);
    }
}

/* Fills the inputs and points the call at them, in place where asked. */
static void prepare(struct cluster *c, struct buffers *b, const struct rf_call *call, int rank,
                    bool in_place, bool heap) {
    size_t size = rf_type_size(call->type), ins = in_count(call, rank, c->size),
           outs = out_count(call, rank, c->size);
    size_t larger = ins > outs ? ins : outs;

    b->call = *call;
    b->recv = allocate(c, rank, larger * size + 64, heap);
    memset(b->recv, 0xa5, larger * size + 64);
    b->send = in_place ? NULL : allocate(c, rank, ins * size, heap);
    unsigned char *send = in_place ? b->recv : b->send;
    unsigned char *recv = b->recv;
    if (in_place && (call->coll == RF_COLL_ALL_GATHER ||
                     (call->coll == RF_COLL_GATHER && rank == call->root))) {
        send = b->recv + (size_t)rank * call->count * size;
    }
    if (in_place && (call->coll == RF_COLL_REDUCE_SCATTER ||
                     (call->coll == RF_COLL_SCATTER && rank == call->root))) {
        recv = b->recv + (size_t)rank * call->count * size;
    }
    for (size_t i = 0; i < ins; i++) {
        put(call->type, send, i, value_of(call, rank, i));
    }
    b->call.send = ins ? send : NULL;
    b->call.recv = outs || call->coll == RF_COLL_BROADCAST ? recv : NULL;
}

static void check(struct cluster *c, const struct buffers *b, int rank, bool in_place) {
    const struct rf_call *call = &b->call;
    size_t outs = out_count(call, rank, c->size);
    bool is_half = call->type == RF_F16 || call->type == RF_BF16;

    for (size_t i = 0; i < outs; i++) {
        double want = expected(call, rank, c->size, i), got = get(call->type, call->recv, i);
        double slack = is_half && call->redop == RF_AVG ? 0.02 : 0;
        if (!(got - want <= slack && want - got <= slack)) {
            fail_msg("%s %s %s n=%d count=%zu rank %d element %zu: %g instead of %g",
                     rf_coll_name(call->coll), rf_type_name(call->type), rf_redop_name(call->redop),
                     c->size, call->count, rank, i, got, want);
        }
    }
    if (!in_place) { /* the input is as it was */
        for (size_t i = 0; i < in_count(call, rank, c->size); i++) {
            assert_true(get(call->type, b->send, i) == value_of(call, rank, i));
        }
    }
}

static void finish(struct cluster *c, struct buffers *b, int rank, bool heap) {
    rf__group_release(c->groups[rank], b->op);
    release(c, rank, b->recv, heap);
    if (b->send) {
        release(c, rank, b->send, heap);
    }
}

static bool all_done(struct cluster *c, struct buffers *b) {
    for (int rank = 0; rank < c->size; rank++) {
        if (!c->dead[rank] && rf__op_result(b[rank].op) == 0) {
            return false;
        }
    }
    return true;
}

static void run_until_done(struct cluster *c, struct buffers *b) {
    for (int i = 0; i < 5000000; i++) {
        if (all_done(c, b)) {
            return;
        }
        step_all(c);
    }
    fail_msg("the operations are not complete");
}

static void submit(struct cluster *c, struct buffers *b, int rank) {
    struct rf__op_params params = {.call = b->call};
    struct rf_error err;

    if (rf__group_submit(c->groups[rank], &params, c->now, &b->op, &err)) {
        fail_msg("%s", err.text);
    }
}

static void run_call(struct cluster *c, const struct rf_call *call, unsigned in_place_mask,
                     bool heap) {
    struct buffers b[FAKE_MAX] = {0};
    struct rf_error err;

    for (int rank = 0; rank < c->size; rank++) {
        prepare(c, &b[rank], call, rank, in_place_mask >> (rank % 3) & 1, heap);
        submit(c, &b[rank], rank);
    }
    run_until_done(c, b);
    for (int rank = 0; rank < c->size; rank++) {
        if (rf__op_result(b[rank].op) != 1) {
            rf__group_error(c->groups[rank], &err);
            fail_msg("%s %s n=%d count=%zu: %s", rf_coll_name(call->coll),
                     rf_algorithm_name(call->algorithm), c->size, call->count, err.text);
        }
        check(c, &b[rank], rank, in_place_mask >> (rank % 3) & 1);
        bool same_result = call->coll == RF_COLL_ALLREDUCE && call->count;
        if (same_result) {
            assert_memory_equal(b[rank].call.recv, b[0].call.recv,
                                call->count * rf_type_size(call->type));
        }
    }
    for (int rank = 0; rank < c->size; rank++) {
        finish(c, &b[rank], rank, heap);
    }
}

static const enum rf_coll colls[] = {RF_COLL_ALLREDUCE, RF_COLL_REDUCE_SCATTER, RF_COLL_ALL_GATHER,
                                     RF_COLL_BROADCAST, RF_COLL_REDUCE,         RF_COLL_GATHER,
                                     RF_COLL_SCATTER,   RF_COLL_ALL_TO_ALL,     RF_COLL_BARRIER};

/* A type and an operation that go together, another pair for each `turn`. */
static void choose(struct rf_call *call, unsigned turn) {
    do {
        call->type = (enum rf_type)(turn % RF_TYPE_COUNT);
        call->redop = (enum rf_redop)(turn / RF_TYPE_COUNT % RF_REDOP_COUNT);
        turn++;
    } while (!rf_redop_valid(call->redop, call->type));
}

static void all_algorithms_agree_with_the_oracle(void **state) {
    (void)state;
    unsigned turn = 0;
    for (int size = 1; size <= 17; size++) {
        struct cluster c;
        open_cluster(&c, size, false, size % 2 ? 500 : 0, (uint64_t)size);
        size_t counts[] = {0, 1, (size_t)size - 1, (size_t)size, (size_t)size + 1, 131, 2003};
        for (size_t k = 0; k < sizeof colls / sizeof *colls; k++) {
            for (int algorithm = 0; algorithm < RF_ALGORITHM_SHARED; algorithm++) {
                if (algorithm && !rf__schedule_covers(colls[k], (enum rf_algorithm)algorithm)) {
                    continue;
                }
                for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
                    struct rf_call call = {.coll = colls[k],
                                           .algorithm = (enum rf_algorithm)algorithm,
                                           .count = counts[i],
                                           .root = (int)(turn % (unsigned)size)};
                    choose(&call, turn);
                    run_call(&c, &call, turn % 8, false);
                    turn++;
                }
            }
        }
        close_cluster(&c);
    }
}

static void shared_memory_agrees_with_the_oracle(void **state) {
    (void)state;
    unsigned turn = 0;
    for (int size = 2; size <= 17; size++) {
        struct cluster c;
        open_cluster(&c, size, true, 0, (uint64_t)size);
        size_t counts[] = {0, 1, (size_t)size + 1, 131, 5003};
        for (size_t k = 0; k < sizeof colls / sizeof *colls; k++) {
            for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
                for (int heap = 0; heap < 2; heap++) {
                    struct rf_call call = {.coll = colls[k],
                                           .count = counts[i],
                                           .root = (int)(turn % (unsigned)size),
                                           .algorithm = turn % 5 == 0 ? RF_ALGORITHM_SHARED
                                                                      : RF_ALGORITHM_AUTO};
                    choose(&call, turn * 7);
                    run_call(&c, &call, turn % 8, heap);
                    turn++;
                }
            }
        }
        close_cluster(&c);
    }
}

/* Many chunks, more of them than the stage holds; and calls that differ follow each other on it. */
static void ordinary_memory_goes_over_the_stage(void **state) {
    (void)state;
    unsigned turn = 0;
    for (int size = 2; size <= 5; size += 3) {
        struct cluster c;
        open_cluster(&c, size, true, 0, (uint64_t)size);
        size_t counts[] = {17001, 400003};
        for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
            for (size_t k = 0; k < sizeof colls / sizeof *colls; k++) {
                for (int in_place = 0; in_place < 2; in_place++) {
                    struct rf_call call = {
                        .coll = colls[k], .count = counts[i], .root = (int)(turn % (unsigned)size)};
                    choose(&call, turn++);
                    run_call(&c, &call, in_place, false);
                }
            }
        }
        for (int rank = 0; rank < size; rank++) {
            assert_int_equal(rf__group_last_algorithm(c.groups[rank]), RF_ALGORITHM_SHARED);
        }
        close_cluster(&c);
    }
}

/* What one rank after the other folds, exactly: 'allreduce' of floats whose sum depends on the
 * order. */
static void hosts_fold_in_rank_order(void **state) {
    (void)state;
    static const struct {
        int size, local;
        size_t most;
    } groups[] = {{4, 2, 0}, {6, 2, 0}, {6, 3, 7000}, {8, 2, 30000}, {12, 4, 0}, {4, 2, 500}};
    for (size_t g = 0; g < sizeof groups / sizeof *groups; g++) {
        struct cluster c;
        int size = groups[g].size;
        size_t counts[] = {1, 2500, 50021, 1000003};
        open_hosts(&c, size, true, groups[g].local, groups[g].most, g);
        for (size_t k = 0; k < (groups[g].most ? 3 : sizeof counts / sizeof *counts); k++) {
            struct buffers b[FAKE_MAX] = {0};
            struct rf_call call = {.coll = RF_COLL_ALLREDUCE,
                                   .redop = RF_AVG,
                                   .count = counts[k],
                                   .algorithm =
                                       k % 2 ? RF_ALGORITHM_AUTO : RF_ALGORITHM_HIERARCHICAL};
            struct rf__rng rng = rf__rng(counts[k], g, 0);
            float *want = calloc(counts[k], sizeof *want);
            for (int rank = 0; rank < size; rank++) {
                prepare(&c, &b[rank], &call, rank, rank % 2, false);
                float *in = (float *)(uintptr_t)b[rank].call.send;
                for (size_t i = 0; i < counts[k]; i++) {
                    in[i] = rf__rng_float(&rng) * (i % 3 ? 1.0f : 1e6f);
                    want[i] = rank ? want[i] + in[i] : in[i];
                }
                submit(&c, &b[rank], rank);
            }
            run_until_done(&c, b);
            for (int rank = 0; rank < size; rank++) {
                const float *got = b[rank].call.recv;
                assert_int_equal(rf__op_result(b[rank].op), 1);
                for (size_t i = 0; i < counts[k]; i++) {
                    if (got[i] != want[i] / (float)size) {
                        fail_msg("%d ranks, %d a host, rank %d, element %zu of %zu: %a not %a",
                                 size, groups[g].local, rank, i, counts[k], (double)got[i],
                                 (double)(want[i] / (float)size));
                    }
                }
                bool by_hosts = k != 1 || counts[k] * sizeof *want > 8192;
                assert_int_equal(rf__group_last_algorithm(c.groups[rank]),
                                 by_hosts ? RF_ALGORITHM_HIERARCHICAL : RF_ALGORITHM_NAIVE);
                finish(&c, &b[rank], rank, false);
            }
            free(want);
        }
        /* Other collectives, which go over the links, between calls by way of the hosts. */
        for (unsigned turn = 0; turn < 3 * sizeof colls / sizeof *colls; turn++) {
            struct rf_call call = {.coll = colls[turn % (sizeof colls / sizeof *colls)],
                                   .count = turn % 2 ? 4001 : 11,
                                   .root = (int)(turn % (unsigned)size)};
            choose(&call, turn);
            run_call(&c, &call, turn % 4, false);
        }
        close_cluster(&c);
    }
}

/* A rank that ends in the middle takes all with it, whichever host they are on; and calls that
 * differ are found. */
static void hosts_fail_together(void **state) {
    int lost = 0;
    (void)state;
    for (int dead = 0; dead < 6; dead++) {
        for (int at = 0; at < 40; at += 3) {
            struct cluster c;
            struct buffers b[FAKE_MAX] = {0};
            struct rf_call call = {.coll = RF_COLL_ALLREDUCE, .count = 300000};
            open_hosts(&c, 6, true, 2, 40000, (uint64_t)at);
            for (int rank = 0; rank < 6; rank++) {
                prepare(&c, &b[rank], &call, rank, false, false);
                submit(&c, &b[rank], rank);
            }
            for (int i = 0; i < at; i++) {
                step_all(&c);
            }
            fake_kill(c.world, dead);
            c.dead[dead] = true;
            run_until_done(&c, b);
            for (int rank = 0; rank < 6; rank++) {
                if (rank != dead) {
                    struct rf_error err;
                    int result = rf__op_result(b[rank].op);
                    if (result == 1 && at > 0) { /* it had all it needed */
                        check(&c, &b[rank], rank, false);
                        continue;
                    }
                    assert_int_equal(result, RF_ELOST);
                    lost++;
                    rf__group_error(c.groups[rank], &err);
                    assert_int_equal(err.rank, dead);
                }
            }
            for (int rank = 0; rank < 6; rank++) {
                finish(&c, &b[rank], rank, false);
            }
            close_cluster(&c);
        }
    }
    assert_true(lost > 100);
    for (int odd = 0; odd < 6; odd++) {
        struct cluster c;
        struct buffers b[FAKE_MAX] = {0};
        open_hosts(&c, 6, true, 2, 0, 1);
        for (int rank = 0; rank < 6; rank++) {
            struct rf_call call = {.coll = RF_COLL_ALLREDUCE,
                                   .count = rank == odd ? 300001 : 300000};
            prepare(&c, &b[rank], &call, rank, false, false);
            submit(&c, &b[rank], rank);
        }
        run_until_done(&c, b);
        for (int rank = 0; rank < 6; rank++) {
            assert_int_equal(rf__op_result(b[rank].op), RF_EMISMATCH);
            finish(&c, &b[rank], rank, false);
        }
        close_cluster(&c);
    }
}

/* Once every size was there, calls allocate nothing: the first allocation would fail, and the call
 * with it. */
static void nothing_is_allocated_after_warm_up(void **state) {
    (void)state;
    static const struct {
        bool shared, heap;
        int local;
    } kinds[] = {{true, true, 0}, {true, false, 0}, {true, false, 2}, {false, false, 0}};
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        struct cluster c;
        open_hosts(&c, 4, kinds[k].shared, kinds[k].local, 0, k);
        for (int turn = 0; turn < 2; turn++) {
            rf__alloc_fail_after(turn ? 0 : -1);
            for (size_t i = 0; i < sizeof colls / sizeof *colls; i++) {
                for (size_t count = 1; count < 100000; count = count * 7 + 3) {
                    struct rf_call call = {.coll = colls[i], .count = count};
                    run_call(&c, &call, 1, kinds[k].heap);
                }
            }
        }
        rf__alloc_fail_after(-1);
        close_cluster(&c);
    }
}

static void every_type_and_operation(void **state) {
    (void)state;
    for (int shared = 0; shared < 2; shared++) {
        struct cluster c;
        open_cluster(&c, 5, shared, 0, 1);
        for (int algorithm = 0; algorithm < RF_ALGORITHM_SHARED; algorithm++) {
            for (unsigned turn = 0; turn < RF_TYPE_COUNT * RF_REDOP_COUNT; turn++) {
                struct rf_call call = {.coll = RF_COLL_ALLREDUCE,
                                       .algorithm = (enum rf_algorithm)algorithm,
                                       .count = 1501};
                choose(&call, turn);
                run_call(&c, &call, 2, shared);
            }
        }
        close_cluster(&c);
    }
}

static void long_messages_are_cut_into_frames(void **state) {
    (void)state;
    struct cluster c;
    open_cluster(&c, 3, false, 0, 1);
    for (int algorithm = 1; algorithm < RF_ALGORITHM_SHARED; algorithm++) {
        struct rf_call call = {.coll = RF_COLL_ALLREDUCE,
                               .algorithm = (enum rf_algorithm)algorithm,
                               .count = 900001,
                               .type = RF_F64};
        run_call(&c, &call, 1, false);
    }
    close_cluster(&c);
}

static void several_in_flight(void **state) {
    (void)state;
    for (int shared = 0; shared < 2; shared++) {
        struct cluster c;
        struct rf_error err;
        enum { CALLS = 40 };
        static struct buffers b[CALLS][FAKE_MAX];
        memset(b, 0, sizeof b);
        open_cluster(&c, 4, shared, 300, 9);
        for (int rank = 0; rank < c.size; rank++) { /* the ranks are at different calls */
            for (unsigned k = 0; k < CALLS; k++) {
                struct rf_call call = {
                    .coll = colls[k % 9], .count = 100 * k, .root = (int)(k % 4)};
                choose(&call, k);
                prepare(&c, &b[k][rank], &call, rank, k % 2, shared);
                struct rf__op_params params = {.call = b[k][rank].call};
                assert_int_equal(
                    rf__group_submit(c.groups[rank], &params, c.now, &b[k][rank].op, &err), 0);
                step_all(&c);
            }
        }
        for (int k = 0; k < CALLS; k++) {
            run_until_done(&c, b[k]);
            for (int rank = 0; rank < c.size; rank++) {
                assert_int_equal(rf__op_result(b[k][rank].op), 1);
                check(&c, &b[k][rank], rank, k % 2);
                finish(&c, &b[k][rank], rank, shared);
            }
        }
        close_cluster(&c);
    }
}

static struct rf__op *submit_message(struct cluster *c, int rank, enum rf_coll coll, int peer,
                                     void *buffer, size_t count, enum rf_type type) {
    struct rf__op *op = NULL;
    struct rf_error err;
    struct rf__op_params params = {.call = {.coll = coll,
                                            .root = peer,
                                            .send = buffer,
                                            .recv = buffer,
                                            .count = count,
                                            .type = type}};
    assert_int_equal(rf__group_submit(c->groups[rank], &params, c->now, &op, &err), 0);
    return op;
}

static void messages_cross_and_queue(void **state) {
    (void)state;
    struct cluster c;
    enum { COUNT = 400000, MESSAGES = 5 };
    open_cluster(&c, 3, false, 0, 4);
    static uint32_t out[3][3][MESSAGES][1], in[3][3][MESSAGES][1];
    static uint32_t large_out[3][COUNT], large_in[3][COUNT];
    struct rf__op *ops[3 * 3 * 2 * (MESSAGES + 2)];
    int count = 0;

    for (int rank = 0; rank < 3; rank++) {
        for (uint32_t i = 0; i < COUNT; i++) {
            large_out[rank][i] = i * 3 + (uint32_t)rank;
        }
        int next = (rank + 1) % 3, previous = (rank + 2) % 3;
        ops[count++] = submit_message(&c, rank, RF_COLL_SEND, next, large_out[rank], COUNT, RF_U32);
        ops[count++] =
            submit_message(&c, rank, RF_COLL_RECV, previous, large_in[rank], COUNT, RF_U32);
        for (int peer = 0; peer < 3; peer++) {
            for (int k = 0; k < MESSAGES && peer != rank; k++) {
                out[rank][peer][k][0] = (uint32_t)(rank * 100 + peer * 10 + k);
                ops[count++] = submit_message(&c, rank, RF_COLL_SEND, peer, out[rank][peer][k],
                                              k == 2 ? 0 : 1, RF_U32);
                ops[count++] = submit_message(&c, rank, RF_COLL_RECV, peer, in[rank][peer][k],
                                              k == 2 ? 0 : 1, RF_U32);
            }
        }
    }
    struct rf_call call = {.coll = RF_COLL_ALLREDUCE, .count = 1000, .type = RF_I32};
    run_call(&c, &call, 0, false); /* collectives pass between */
    for (int i = 0; i < 100000; i++) {
        step_all(&c);
    }
    for (int i = 0; i < count; i++) {
        assert_int_equal(rf__op_result(ops[i]), 1);
    }
    for (int rank = 0; rank < 3; rank++) {
        assert_memory_equal(large_in[rank], large_out[(rank + 2) % 3], sizeof large_in[rank]);
        for (int peer = 0; peer < 3; peer++) {
            for (int k = 0; k < MESSAGES && peer != rank; k++) {
                assert_int_equal(in[rank][peer][k][0], k == 2 ? 0 : peer * 100 + rank * 10 + k);
            }
        }
    }
    close_cluster(&c);
}

/* Submits another call on one rank and expects every rank to fail with the reason. */
static void expect_mismatch(bool shared, struct rf_call usual, struct rf_call odd, int odd_rank,
                            const char *words) {
    struct cluster c;
    struct buffers b[FAKE_MAX] = {0};
    struct rf_error err;

    open_cluster(&c, 4, shared, 0, 3);
    for (int rank = 0; rank < c.size; rank++) {
        prepare(&c, &b[rank], rank == odd_rank ? &odd : &usual, rank, false, shared);
        struct rf__op_params params = {.call = b[rank].call};
        assert_int_equal(rf__group_submit(c.groups[rank], &params, c.now, &b[rank].op, &err), 0);
    }
    run_until_done(&c, b);
    for (int rank = 0; rank < c.size; rank++) {
        char name[16];
        rf__group_error(c.groups[rank], &err);
        assert_int_equal(rf__op_result(b[rank].op), RF_EMISMATCH);
        assert_int_equal(err.code, RF_EMISMATCH);
        snprintf(name, sizeof name, "rank %d", odd_rank);
        if (!strstr(err.text, name) || !strstr(err.text, words)) {
            fail_msg("'%s' does not name %s and '%s'", err.text, name, words);
        }
        struct rf__op *late;
        struct rf__op_params params = {.call = b[rank].call};
        assert_int_equal(rf__group_submit(c.groups[rank], &params, c.now, &late, &err),
                         RF_EMISMATCH);
        finish(&c, &b[rank], rank, shared);
    }
    close_cluster(&c);
}

static void mismatches_are_named_on_every_rank(void **state) {
    (void)state;
    const struct rf_call usual = {
        .coll = RF_COLL_ALLREDUCE, .type = RF_F32, .redop = RF_SUM, .count = 1000};
    for (int shared = 0; shared < 2; shared++) {
        for (int rank = 0; rank < 4; rank++) {
            struct rf_call odd = usual;
            odd.count = 999;
            expect_mismatch(shared, usual, odd, rank, "999");
            odd = usual;
            odd.type = RF_I32;
            expect_mismatch(shared, usual, odd, rank, "i32");
            odd = usual;
            odd.redop = RF_MAX;
            expect_mismatch(shared, usual, odd, rank, "max");
            odd = usual;
            odd.coll = RF_COLL_ALL_GATHER;
            expect_mismatch(shared, usual, odd, rank, "all_gather");
            odd = usual;
            odd.coll = RF_COLL_BARRIER;
            expect_mismatch(shared, usual, odd, rank, "barrier");
            struct rf_call rooted = {
                .coll = RF_COLL_BROADCAST, .type = RF_U8, .count = 10, .root = 1};
            odd = rooted;
            odd.root = 2;
            expect_mismatch(shared, rooted, odd, rank, "root 2");
            rooted.coll = RF_COLL_REDUCE;
            odd = rooted;
            odd.count = 11;
            expect_mismatch(shared, rooted, odd, rank, "11");
            rooted.coll = RF_COLL_SCATTER;
            odd.coll = RF_COLL_GATHER;
            odd.count = 10;
            expect_mismatch(shared, rooted, odd, rank, "gather");
        }
    }
}

static void message_mismatch_is_named(void **state) {
    (void)state;
    struct cluster c;
    struct rf_error err;
    uint32_t buffer[20];
    open_cluster(&c, 2, false, 0, 1);
    struct rf__op *send = submit_message(&c, 0, RF_COLL_SEND, 1, buffer, 10, RF_U32);
    struct rf__op *recv = submit_message(&c, 1, RF_COLL_RECV, 0, buffer, 20, RF_U32);
    for (int i = 0; i < 100; i++) {
        step_all(&c);
    }
    assert_int_equal(rf__op_result(send), RF_EMISMATCH);
    assert_int_equal(rf__op_result(recv), RF_EMISMATCH);
    rf__group_error(c.groups[0], &err);
    assert_string_equal(err.text, "rank 0 sends 10 u32, but rank 1 receives 20 u32");
    close_cluster(&c);
}

static void a_death_ends_every_call(void **state) {
    (void)state;
    for (int shared = 0; shared < 2; shared++) {
        for (int at = 0; at < 60; at += 3) {
            struct cluster c;
            struct buffers b[FAKE_MAX] = {0};
            struct rf_error err;
            struct rf_call call = {.coll = colls[at % 8], .count = 30000, .type = RF_F32};
            open_cluster(&c, 4, shared, 2000, (uint64_t)at);
            for (int rank = 0; rank < c.size; rank++) {
                prepare(&c, &b[rank], &call, rank, false, shared);
                struct rf__op_params params = {.call = b[rank].call};
                if (rank != 2) { /* the victim is late, so nobody can be through */
                    assert_int_equal(
                        rf__group_submit(c.groups[rank], &params, c.now, &b[rank].op, &err), 0);
                }
            }
            for (int i = 0; i < at; i++) {
                step_all(&c);
            }
            c.dead[2] = true;
            fake_kill(c.world, 2);
            run_until_done(&c, b);
            bool was_lost = false;
            for (int rank = 0; rank < c.size; rank++) {
                if (rank == 2) {
                    continue;
                }
                int result = rf__op_result(b[rank].op);
                rf__group_error(c.groups[rank], &err);
                assert_int_equal(err.code, RF_ELOST);
                assert_int_equal(err.rank, 2);
                was_lost = was_lost || result == RF_ELOST;
                rf__group_release(c.groups[rank], b[rank].op);
            }
            assert_true(was_lost);
            close_cluster(&c);
            for (int rank = 0; rank < 4 && !shared; rank++) {
                free(b[rank].recv);
                free(b[rank].send);
            }
        }
    }
}

static void silence_is_noticed_but_not_when_all_slept(void **state) {
    (void)state;
    struct cluster c;
    struct rf_error err;
    open_cluster(&c, 3, false, 0, 1);
    for (int i = 0; i < 100; i++) { /* 10 s of quiet: beats keep it alive */
        c.now += 100 * RF__MS;
        step_all(&c);
    }
    c.now += 60 * 1000 * RF__MS; /* all stopped for a minute */
    for (int i = 0; i < 10; i++) {
        c.now += 100 * RF__MS;
        step_all(&c);
    }
    for (int rank = 0; rank < 3; rank++) {
        assert_int_equal(rf__group_state(c.groups[rank]), RF__GROUP_RUNNING);
    }
    c.dead[1] = true; /* frozen: its links stay open */
    for (int i = 0; i < 40; i++) {
        c.now += 100 * RF__MS;
        step_all(&c);
    }
    for (int rank = 0; rank < 3; rank += 2) {
        rf__group_error(c.groups[rank], &err);
        assert_int_equal(err.code, RF_ELOST);
        assert_int_equal(err.rank, 1);
        assert_non_null(strstr(err.text, "silent"));
    }
    close_cluster(&c);
}

static void goodbye_after_the_last_call_is_no_loss(void **state) {
    (void)state;
    struct cluster c;
    struct rf_error err;
    open_cluster(&c, 3, false, 100, 1);
    struct rf_call call = {.coll = RF_COLL_ALLREDUCE, .count = 5000, .type = RF_F32};
    run_call(&c, &call, 0, false);
    rf__group_leave(c.groups[0], c.now);
    for (int i = 0; i < 1000 && !rf__group_left(c.groups[0]); i++) {
        step_all(&c);
    }
    c.dead[0] = true;
    fake_kill(c.world, 0);
    for (int i = 0; i < 100; i++) {
        step_all(&c);
    }
    rf__group_error(c.groups[1], &err);
    assert_int_equal(err.code, 0);
    struct buffers b[FAKE_MAX] = {0};
    for (int rank = 1; rank < 3; rank++) { /* but a further call cannot be */
        prepare(&c, &b[rank], &call, rank, false, false);
        struct rf__op_params params = {.call = b[rank].call};
        assert_int_equal(rf__group_submit(c.groups[rank], &params, c.now, &b[rank].op, &err), 0);
    }
    run_until_done(&c, b);
    for (int rank = 1; rank < 3; rank++) {
        assert_int_equal(rf__op_result(b[rank].op), RF_ELOST);
        finish(&c, &b[rank], rank, false);
    }
    close_cluster(&c);
}

static void bad_calls_are_refused_before_anything_is_sent(void **state) {
    (void)state;
    struct cluster c;
    struct rf_error err;
    struct rf__op *op;
    float x[4];
    open_cluster(&c, 2, false, 0, 1);
    const struct rf_call good = {.coll = RF_COLL_ALLREDUCE, .send = x, .recv = x, .count = 4};
    struct rf_call bad[10] = {good, good, good, good, good, good, good, good, good, good};
    bad[0].type = (enum rf_type)77;
    bad[1].coll = (enum rf_coll)77;
    bad[2].redop = RF_XOR;
    bad[3].send = NULL;
    bad[4].recv = NULL;
    bad[5].count = SIZE_MAX / 2;
    bad[6].coll = RF_COLL_BROADCAST;
    bad[6].root = 2;
    bad[7].coll = RF_COLL_SEND;
    bad[7].root = 0;
    bad[8].algorithm = RF_ALGORITHM_SHARED;
    bad[9].coll = RF_COLL_ALL_TO_ALL;
    bad[9].algorithm = RF_ALGORITHM_RABENSEIFNER;
    for (int i = 0; i < 10; i++) {
        struct rf__op_params params = {.call = bad[i]};
        int want = i >= 8 ? RF_EUNSUPPORTED : RF_EINVAL;
        assert_int_equal(rf__group_submit(c.groups[0], &params, c.now, &op, &err), want);
        assert_true(err.text[0]);
    }
    struct rf_call call = {.coll = RF_COLL_ALLREDUCE, .count = 10, .type = RF_F32};
    run_call(&c, &call, 0, false);
    close_cluster(&c);
}

/* Every pair of algorithms, one rank using another than the rest: somebody always finds out, though
 * no frame may tell. */
static void differing_algorithms_are_found_out(void **state) {
    (void)state;
    for (int usual = 1; usual < RF_ALGORITHM_SHARED; usual++) {
        for (int other = 1; other < RF_ALGORITHM_SHARED; other++) {
            for (unsigned k = 0; k < sizeof colls / sizeof *colls; k++) {
                if (usual == other || !rf__schedule_covers(colls[k], (enum rf_algorithm)usual) ||
                    !rf__schedule_covers(colls[k], (enum rf_algorithm)other)) {
                    continue;
                }
                for (int odd = 0; odd < 6; odd++) {
                    struct cluster c;
                    struct buffers b[FAKE_MAX] = {0};
                    struct rf_error err;
                    open_cluster(&c, 6, false, 0, 1);
                    for (int rank = 0; rank < c.size; rank++) {
                        struct rf_call call = {
                            .coll = colls[k], .count = 100, .algorithm = (enum rf_algorithm)usual};
                        call.algorithm = rank == odd ? (enum rf_algorithm)other : call.algorithm;
                        prepare(&c, &b[rank], &call, rank, false, false);
                        struct rf__op_params params = {.call = b[rank].call};
                        assert_int_equal(
                            rf__group_submit(c.groups[rank], &params, c.now, &b[rank].op, &err), 0);
                    }
                    for (int i = 0; i < 100 && !all_done(&c, b); i++) {
                        c.now += 100 * RF__MS;
                        step_all(&c);
                    }
                    int failed = 0;
                    for (int rank = 0; rank < c.size; rank++) {
                        assert_int_not_equal(rf__op_result(b[rank].op), 0);
                        failed += rf__op_result(b[rank].op) == RF_EMISMATCH;
                        finish(&c, &b[rank], rank, false);
                    }
                    assert_true(failed > 0);
                    close_cluster(&c);
                }
            }
        }
    }
}

/* The sender is through with an empty message and offers the next before the receiver has looked
 * again. */
static void an_offer_may_follow_an_empty_message_at_once(void **state) {
    (void)state;
    struct cluster c;
    struct rf_error err;
    uint32_t out = 7, in = 0;
    open_cluster(&c, 2, false, 0, 1);
    struct rf__op *ops[4] = {submit_message(&c, 0, RF_COLL_SEND, 1, NULL, 0, RF_U32),
                             submit_message(&c, 0, RF_COLL_SEND, 1, &out, 1, RF_U32),
                             submit_message(&c, 1, RF_COLL_RECV, 0, NULL, 0, RF_U32),
                             submit_message(&c, 1, RF_COLL_RECV, 0, &in, 1, RF_U32)};
    for (int i = 0; i < 20; i++) {
        for (int k = 0; k < 5; k++) {
            (void)rf__group_step(c.groups[0], c.now += 1000);
        }
        (void)rf__group_step(c.groups[1], c.now += 1000);
    }
    rf__group_error(c.groups[1], &err);
    assert_string_equal(err.text, "");
    for (int i = 0; i < 4; i++) {
        assert_int_equal(rf__op_result(ops[i]), 1);
    }
    assert_int_equal(in, 7);
    close_cluster(&c);
}

/* A peer that stops in the middle of a frame is as silent as one that stops between two. */
static void silence_within_a_frame_is_noticed(void **state) {
    (void)state;
    struct cluster c;
    struct rf_error err;
    static unsigned char out[300000], in[300000];
    open_cluster(&c, 2, false, 0, 1);
    (void)submit_message(&c, 0, RF_COLL_SEND, 1, out, sizeof out, RF_U8);
    struct rf__op *op = submit_message(&c, 1, RF_COLL_RECV, 0, in, sizeof in, RF_U8);
    for (int i = 0; i < 4; i++) {
        step_all(&c);
    }
    assert_int_equal(rf__op_result(op), 0);
    c.dead[0] = true;
    for (int i = 0; i < 40; i++) {
        c.now += 100 * RF__MS;
        step_all(&c);
    }
    rf__group_error(c.groups[1], &err);
    assert_int_equal(err.code, RF_ELOST);
    assert_non_null(strstr(err.text, "rank 0 is silent"));
    assert_int_equal(rf__op_result(op), RF_ELOST);
    close_cluster(&c);
}

/* One that has done its part may leave while others, who were stopped, have it all still to read.
 */
static void unread_data_of_one_that_left_is_no_loss(void **state) {
    (void)state;
    struct cluster c;
    struct buffers b[FAKE_MAX] = {0};
    struct rf_error err;
    struct rf_call call = {
        .coll = RF_COLL_BROADCAST, .count = 1000, .algorithm = RF_ALGORITHM_NAIVE};
    open_cluster(&c, 2, false, 0, 1);
    for (int rank = 0; rank < 2; rank++) {
        prepare(&c, &b[rank], &call, rank, false, false);
        struct rf__op_params params = {.call = b[rank].call};
        assert_int_equal(rf__group_submit(c.groups[rank], &params, c.now, &b[rank].op, &err), 0);
    }
    (void)rf__group_step(c.groups[1], ++c.now);
    for (int i = 0; i < 20; i++) {
        (void)rf__group_step(c.groups[0], ++c.now);
    }
    assert_int_equal(rf__op_result(b[0].op), 1);
    assert_int_equal(rf__op_result(b[1].op), 0);
    rf__group_leave(c.groups[0], c.now);
    for (int i = 0; i < 20; i++) {
        (void)rf__group_step(c.groups[0], ++c.now);
    }
    assert_true(rf__group_left(c.groups[0]));
    fake_kill(c.world, 0);
    for (int i = 0; i < 20; i++) {
        (void)rf__group_step(c.groups[1], ++c.now);
    }
    rf__group_error(c.groups[1], &err);
    assert_string_equal(err.text, "");
    assert_int_equal(rf__op_result(b[1].op), 1);
    check(&c, &b[1], 1, false);
    for (int rank = 0; rank < 2; rank++) {
        finish(&c, &b[rank], rank, false);
    }
    close_cluster(&c);
}

/* Takes the event "rank `peer` is up" from a net, to give it back later. */
static struct rf__net_event withhold_up(struct fake_net *net, int peer) {
    for (int i = net->event_taken; i < net->event_count; i++) {
        struct rf__net_event event = net->events[i];
        if (event.peer == peer) {
            memmove(&net->events[i], &net->events[i + 1],
                    sizeof event * (size_t)(net->event_count - i - 1));
            net->event_count--;
            return event;
        }
    }
    fail();
    return (struct rf__net_event){0};
}

/* Three ranks of which 1 and 2 have not found each other yet; `late` has what will tell them. */
static void create_apart(struct cluster *c, int start_timeout_ms, struct rf__net_event *late) {
    create_cluster(c, 3,
                   &(struct cluster_options){.start_timeout_ms = start_timeout_ms, .seed = 1});
    late[1] = withhold_up(&c->world->nets[1], 2);
    late[2] = withhold_up(&c->world->nets[2], 1);
}

static void tell_late(struct cluster *c, const struct rf__net_event *late) {
    for (int rank = 1; rank < 3; rank++) {
        struct fake_net *net = &c->world->nets[rank];
        net->events[net->event_count++] = late[rank];
    }
}

/* Two ranks find each other late: to the third, which is through, they must not seem dead. */
static void forming_takes_its_time_without_seeming_dead(void **state) {
    (void)state;
    struct cluster c;
    struct rf__net_event late[3];
    create_apart(&c, 20000, late);
    for (int i = 0; i < 60; i++) {
        c.now += 100 * RF__MS;
        step_all(&c);
    }
    assert_int_equal(rf__group_state(c.groups[0]), RF__GROUP_RUNNING);
    for (int rank = 1; rank < 3; rank++) {
        assert_int_equal(rf__group_state(c.groups[rank]), RF__GROUP_FORMING);
    }
    tell_late(&c, late);
    struct rf_call call = {.coll = RF_COLL_ALLREDUCE, .count = 10, .type = RF_F32};
    step_all(&c);
    run_call(&c, &call, 0, false);
    close_cluster(&c);
}

/* One that is through may leave while the others still form. */
static void leaving_does_not_keep_others_from_forming(void **state) {
    (void)state;
    struct cluster c;
    struct rf__net_event late[3];
    create_apart(&c, 1000, late);
    for (int i = 0; i < 5; i++) {
        step_all(&c);
    }
    assert_int_equal(rf__group_state(c.groups[0]), RF__GROUP_RUNNING);
    rf__group_leave(c.groups[0], c.now);
    for (int i = 0; i < 5; i++) {
        step_all(&c);
    }
    assert_true(rf__group_left(c.groups[0]));
    c.dead[0] = true;
    fake_kill(c.world, 0);
    for (int i = 0; i < 5; i++) {
        step_all(&c);
    }
    tell_late(&c, late);
    for (int i = 0; i < 5; i++) {
        step_all(&c);
    }
    for (int rank = 1; rank < 3; rank++) {
        assert_int_equal(rf__group_state(c.groups[rank]), RF__GROUP_RUNNING);
    }
    close_cluster(&c);
}

/* However long the detection time, nobody sleeps past what has to be done. */
static void deadlines_are_kept(void **state) {
    (void)state;
    struct fake_world *world = fake_world_create(2, false, 0, 1);
    const char *endpoints[2] = {"fake", "fake"};
    struct rf__group *group;
    struct rf_error err;
    struct rf__group_options options = {.job = "test",
                                        .size = 2,
                                        .detect_ms = 600000,
                                        .start_timeout_ms = 300,
                                        .net = &world->nets[0].net,
                                        .endpoints = endpoints,
                                        .generation = 7};
    assert_int_equal(rf__group_create(&options, 1, &group, &err), 0);
    int64_t due = rf__group_next_deadline(group);
    assert_in_range(due, 1, 301 * RF__MS);
    (void)withhold_up(&world->nets[0], 1);
    (void)rf__group_step(group, due);
    (void)rf__group_step(group, due + 1);
    rf__group_error(group, &err);
    assert_int_equal(err.code, RF_ETIMEDOUT);
    assert_non_null(strstr(err.text, "rank 1"));
    rf__group_leave(group, due);
    assert_in_range(rf__group_next_deadline(group), 1, due + 1001 * RF__MS);
    rf__group_destroy(group);
    fake_world_destroy(world);
}

/* Whatever allocation fails: a clean error on all, or success. */
static void any_allocation_may_fail(void **state) {
    (void)state;
    int failures = 0, successes = 0;
    for (long k = 0; k < 80; k++) {
        struct cluster c = {.size = 3, .now = 1, .world = fake_world_create(3, k % 2, 0, 1)};
        const char *endpoints[3] = {"fake", "fake", "fake"};
        struct buffers b[3][FAKE_MAX] = {0};
        struct rf_error err = {0};
        int rc = 0, submitted = 0;

        rf__alloc_fail_after(k / 2);
        for (int rank = 0; rank < 3 && rc == 0; rank++) {
            struct rf__group_options options = {.job = "test",
                                                .rank = rank,
                                                .size = 3,
                                                .detect_ms = 3000,
                                                .start_timeout_ms = 1000,
                                                .net = &c.world->nets[rank].net,
                                                .endpoints = endpoints,
                                                .generation = 7};
            rc = rf__group_create(&options, c.now, &c.groups[rank], &err);
            assert_int_equal(rc, rc ? RF_ENOMEM : 0);
            assert_true(rc == 0 || (err.text[0] && !c.groups[rank]));
        }
        for (int i = 0; i < 10 && rc == 0; i++) {
            step_all(&c);
        }
        for (unsigned call_index = 0; call_index < 3 && rc == 0; call_index++) {
            struct rf_call call = {.coll = call_index == 1 ? RF_COLL_REDUCE : RF_COLL_ALLREDUCE,
                                   .algorithm = (enum rf_algorithm)(call_index == 2
                                                                        ? RF_ALGORITHM_RABENSEIFNER
                                                                        : RF_ALGORITHM_TREE),
                                   .type = RF_F16,
                                   .count = 3000};
            for (int rank = 0; rank < 3 && rc == 0; rank++) {
                struct buffers *own = &b[call_index][rank];
                prepare(&c, own, &call, rank, false, false);
                struct rf__op_params params = {.call = own->call};
                rc = rf__group_submit(c.groups[rank], &params, c.now, &own->op, &err);
                assert_true(rc == 0);
            }
            submitted++;
            run_until_done(&c, b[call_index]);
            rc = rf__op_result(b[call_index][0].op);
            rc = rc == 1 ? 0 : rc;
        }
        rf__alloc_fail_after(-1);
        failures += rc == RF_ENOMEM;
        successes += rc == 0;
        assert_true(rc == 0 || rc == RF_ENOMEM);
        for (int call_index = 0; call_index < submitted; call_index++) {
            for (int rank = 0; rank < 3; rank++) {
                finish(&c, &b[call_index][rank], rank, false);
            }
        }
        close_cluster(&c);
    }
    assert_true(failures > 20 && successes > 2);
}

static void frames_survive_any_bytes(void **state) {
    (void)state;
    struct rf__rng rng = rf__rng(5, 0, 0);
    unsigned char bytes[RF__FRAME_BYTES], again[RF__FRAME_BYTES], cause[RF__CONTROL_PAYLOAD];
    struct rf__frame frame = {.kind = RF__FRAME_DATA, .bytes = 100, .root = -1};
    struct rf_error error;
    int accepted = 0;

    for (int i = 0; i < 200000; i++) {
        rf__frame_encode(&frame, bytes);
        for (uint64_t k = rf__rng_below(&rng, 4); k; k--) {
            bytes[rf__rng_below(&rng, sizeof bytes)] = (unsigned char)rf__rng_u64(&rng);
        }
        struct rf__frame out;
        if (rf__frame_decode(bytes, &out) == 0) {
            accepted++;
            assert_true(out.kind < RF__FRAME_KINDS && out.coll < RF_COLL_COUNT &&
                        out.bytes <= RF__FRAME_PAYLOAD);
            rf__frame_encode(&out, again);
            assert_memory_equal(bytes, again, sizeof bytes);
        }
        for (size_t k = 0; k < sizeof cause; k++) {
            cause[k] = (unsigned char)rf__rng_u64(&rng);
        }
        if (rf__cause_decode(cause, (size_t)rf__rng_below(&rng, sizeof cause), &error) == 0) {
            assert_true(error.code < 0 && strlen(error.text) < sizeof error.text);
        }
    }
    assert_true(accepted > 1000 && accepted < 199000);
    (void)rf__fail(&error, RF_ELOST, 0, "rank 3 was lost");
    error.rank = 3;
    struct rf_error back;
    assert_int_equal(rf__cause_decode(cause, rf__cause_encode(&error, cause), &back), 0);
    assert_string_equal(back.text, "rank 3 was lost");
    assert_int_equal(back.rank, 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_algorithms_agree_with_the_oracle),
        cmocka_unit_test(shared_memory_agrees_with_the_oracle),
        cmocka_unit_test(ordinary_memory_goes_over_the_stage),
        cmocka_unit_test(nothing_is_allocated_after_warm_up),
        cmocka_unit_test(hosts_fold_in_rank_order),
        cmocka_unit_test(hosts_fail_together),
        cmocka_unit_test(every_type_and_operation),
        cmocka_unit_test(long_messages_are_cut_into_frames),
        cmocka_unit_test(several_in_flight),
        cmocka_unit_test(messages_cross_and_queue),
        cmocka_unit_test(mismatches_are_named_on_every_rank),
        cmocka_unit_test(message_mismatch_is_named),
        cmocka_unit_test(a_death_ends_every_call),
        cmocka_unit_test(silence_is_noticed_but_not_when_all_slept),
        cmocka_unit_test(goodbye_after_the_last_call_is_no_loss),
        cmocka_unit_test(bad_calls_are_refused_before_anything_is_sent),
        cmocka_unit_test(differing_algorithms_are_found_out),
        cmocka_unit_test(an_offer_may_follow_an_empty_message_at_once),
        cmocka_unit_test(silence_within_a_frame_is_noticed),
        cmocka_unit_test(unread_data_of_one_that_left_is_no_loss),
        cmocka_unit_test(forming_takes_its_time_without_seeming_dead),
        cmocka_unit_test(leaving_does_not_keep_others_from_forming),
        cmocka_unit_test(deadlines_are_kept),
        cmocka_unit_test(any_allocation_may_fail),
        cmocka_unit_test(frames_survive_any_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
