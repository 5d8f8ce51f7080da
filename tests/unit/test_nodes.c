/* group/nodes.c: an allreduce among the ranks of several NUMA nodes, bit for bit what the flat way
 * through shared memory has, for all types and operations, of any bits; in heaps, in ordinary
 * memory and in both; what crosses between nodes, counted; deaths; threads that run at the same
 * time (for the thread sanitizer). */
#include "support/fake_net.h"

#include "base/mem.h"
#include "coll/fold.h"
#include "group/board.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>

#include <cmocka.h>

enum memory { HEAP, ORDINARY, MIXED };

struct cluster {
    int size;
    int64_t now;
    struct fake_world *world;
    struct rf__rng rng;
    struct rf__group *groups[FAKE_MAX];
    bool dead[FAKE_MAX];
    char lines[4][256];
    int line_count;
};

/* In an order of the day, some not at all: whoever can be ahead of another is, some time. */
static void step_some(struct cluster *c) {
    c->now += 1000;
    for (int i = 0; i < c->size; i++) {
        int rank = (int)rf__rng_below(&c->rng, (uint64_t)c->size);
        if (!c->dead[rank]) {
            (void)rf__group_step(c->groups[rank], c->now);
        }
    }
}

static void note_choice(void *context, const char *line) {
    struct cluster *c = context;
    if (c->line_count < 4) {
        snprintf(c->lines[c->line_count++], sizeof *c->lines, "%s", line);
    }
}

/* `nodes`: one digit a rank; '-' for none. */
static void open_nodes(struct cluster *c, const char *nodes, uint64_t seed) {
    const char *endpoints[FAKE_MAX];
    struct rf_error err;

    memset(c, 0, sizeof *c);
    c->size = (int)strlen(nodes);
    c->now = 1;
    c->rng = rf__rng(seed, 1, 0);
    c->world = fake_world_create(c->size, true, 0, seed);
    for (int rank = 0; rank < c->size; rank++) {
        c->world->node[rank] = nodes[rank] == '-' ? -1 : nodes[rank] - '0';
        endpoints[rank] = "fake";
    }
    for (int rank = 0; rank < c->size; rank++) {
        struct rf__group_options options = {.job = "test",
                                            .rank = rank,
                                            .size = c->size,
                                            .detect_ms = 3000,
                                            .start_timeout_ms = 1000,
                                            .net = &c->world->nets[rank].net,
                                            .endpoints = endpoints,
                                            .choice = rank ? NULL : note_choice,
                                            .choice_context = c,
                                            .generation = 7};
        assert_int_equal(rf__group_create(&options, c->now, &c->groups[rank], &err), 0);
    }
    for (int i = 0; i < 100; i++) {
        step_some(c);
    }
    for (int rank = 0; rank < c->size; rank++) {
        assert_int_equal(rf__group_state(c->groups[rank]), RF__GROUP_RUNNING);
    }
}

static void close_nodes(struct cluster *c) {
    for (int rank = 0; rank < c->size; rank++) {
        rf__group_destroy(c->groups[rank]);
    }
    fake_world_destroy(c->world);
}

static int teams_of(const char *nodes) {
    int teams = 1;
    for (size_t i = 1; nodes[i]; i++) {
        teams += nodes[i] != nodes[i - 1];
    }
    return teams;
}

/* ---- Buffers ---- */

struct buffer {
    unsigned char *send, *recv, *flat; /* flat: what the other way had */
    bool heap, in_place;
    size_t bytes;
    struct rf__op *op;
};

static unsigned char *allocate(struct cluster *c, int rank, size_t bytes, bool heap) {
    void *out = heap ? NULL : malloc(bytes + 1);
    struct rf_error err;
    if (heap) {
        struct rf__net *net = &c->world->nets[rank].net;
        assert_int_equal(net->shared->alloc(net, bytes + 1, &out, &err), 0);
    }
    return out;
}

static void release(struct cluster *c, int rank, void *memory, bool heap) {
    if (heap) {
        struct rf__net *net = &c->world->nets[rank].net;
        net->shared->release(net, memory);
    } else {
        free(memory);
    }
}

/* Any bits; and, for floats, many that are numbers of a like size, so that sums depend on their
 * order. */
static void fill(enum rf_type type, unsigned char *at, size_t count, struct rf__rng *rng) {
    size_t size = rf_type_size(type), bytes = count * size;
    uint64_t bits = rf__rng_u64(rng) | 1;
    for (size_t i = 0; i < bytes; i += 8) {
        bits ^= bits << 13; /* as good as any, and fast */
        bits ^= bits >> 7;
        bits ^= bits << 17;
        memcpy(at + i, &bits, bytes - i < 8 ? bytes - i : 8);
    }
    for (size_t i = 0; i < count; i++) {
        float f = (float)((bits + i * 2654435761u) % 65521) * (i % 3 ? 1.3e-5f : 1e-3f);
        double d = (double)f;
        if (i % 64 == 0 || size == 1) {
            continue;
        }
        if (type == RF_F32) {
            memcpy(at + i * 4, &f, 4);
        } else if (type == RF_F64) {
            memcpy(at + i * 8, &d, 8);
        } else if (rf__acc_type(type) != type) {
            rf__narrow(type, at + i * 2, &f, 1);
        }
    }
}

static void make_buffers(struct cluster *c, struct buffer *b, const struct rf_call *call,
                         enum memory memory, uint64_t seed) {
    for (int rank = 0; rank < c->size; rank++) {
        struct rf__rng rng = rf__rng(seed, (uint64_t)rank, 3);
        b[rank].bytes = call->count * rf_type_size(call->type);
        b[rank].heap = memory == HEAP || (memory == MIXED && rank % 2);
        b[rank].in_place = (seed >> (rank % 5) & 1) != 0;
        b[rank].recv = allocate(c, rank, b[rank].bytes, b[rank].heap);
        b[rank].send =
            b[rank].in_place ? b[rank].recv : allocate(c, rank, b[rank].bytes, b[rank].heap);
        b[rank].flat = malloc(b[rank].bytes + 1);
        fill(call->type, b[rank].send, call->count, &rng);
    }
}

static void free_buffers(struct cluster *c, struct buffer *b) {
    for (int rank = 0; rank < c->size; rank++) {
        free(b[rank].flat);
        release(c, rank, b[rank].recv, b[rank].heap);
        if (!b[rank].in_place) {
            release(c, rank, b[rank].send, b[rank].heap);
        }
    }
}

static void submit(struct cluster *c, struct buffer *b, int rank, struct rf_call call,
                   enum rf_algorithm algorithm) {
    struct rf_error err;

    call.algorithm = algorithm;
    call.send = b->send;
    call.recv = b->recv;
    struct rf__op_params params = {.call = call};
    if (rf__group_submit(c->groups[rank], &params, c->now, &b->op, &err)) {
        fail_msg("%s", err.text);
    }
}

static bool all_done(struct cluster *c, struct buffer *b) {
    for (int rank = 0; rank < c->size; rank++) {
        if (!c->dead[rank] && rf__op_result(b[rank].op) == 0) {
            return false;
        }
    }
    return true;
}

static void run_until_done(struct cluster *c, struct buffer *b) {
    for (int i = 0; i < 200000 && !all_done(c, b); i++) {
        step_some(c);
    }
    assert_true(all_done(c, b));
}

static void finish(struct cluster *c, struct buffer *b) {
    for (int rank = 0; rank < c->size; rank++) {
        assert_int_equal(rf__op_result(b[rank].op), 1);
        rf__group_release(c->groups[rank], b[rank].op);
    }
}

static void run_call(struct cluster *c, struct buffer *b, const struct rf_call *call,
                     enum rf_algorithm algorithm) {
    for (int rank = 0; rank < c->size; rank++) {
        submit(c, &b[rank], rank, *call, algorithm);
    }
    run_until_done(c, b);
    finish(c, b);
}

/* Both ways; inputs that were written over are made anew in between. */
static void compare(struct cluster *c, const struct rf_call *call, enum memory memory,
                    uint64_t seed) {
    struct buffer b[FAKE_MAX] = {0};

    make_buffers(c, b, call, memory, seed);
    run_call(c, b, call, RF_ALGORITHM_SHARED);
    for (int rank = 0; rank < c->size; rank++) {
        struct rf__rng rng = rf__rng(seed, (uint64_t)rank, 3);
        memcpy(b[rank].flat, b[rank].recv, b[rank].bytes);
        memset(b[rank].recv, 0x5a, b[rank].bytes);
        fill(call->type, b[rank].send, call->count, &rng);
    }
    run_call(c, b, call, RF_ALGORITHM_HIERARCHICAL);
    for (int rank = 0; rank < c->size; rank++) {
        assert_int_equal(rf__group_last_algorithm(c->groups[rank]), RF_ALGORITHM_HIERARCHICAL);
        if (memcmp(b[rank].recv, b[rank].flat, b[rank].bytes)) {
            size_t at = 0;
            while (b[rank].recv[at] == b[rank].flat[at]) {
                at++;
            }
            fail_msg("%s %s of %zu, rank %d of %d, memory %d: byte %zu", rf_type_name(call->type),
                     rf_redop_name(call->redop), call->count, rank, c->size, (int)memory, at);
        }
    }
    free_buffers(c, b);
}

/* Elements of a piece: what nodes.c cuts by, seen from outside. */
static size_t piece_of(enum rf_type type) {
    size_t both = rf_type_size(type) + rf_type_size(rf__acc_type(type));
    return ((size_t)2 << 20) / 4 / both / 16 * 16;
}

static uint64_t crossed(const struct cluster *c) {
    uint64_t out = 0;
    for (int rank = 0; rank < c->size; rank++) {
        out += c->groups[rank]->nodes.crossed;
    }
    return out;
}

/* ---- The tests ---- */

static const char *const shapes[] = {"0011",   "0001",    "0111",         "01",       "001222",
                                     "012",    "001122",  "000001111123", "00110",    "3355551",
                                     "010101", "0000111", "01122223",     "00000001", "1100"};

static void any_shape_and_count(void **state) {
    uint64_t seed = 0;
    (void)state;
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        struct cluster c;
        open_nodes(&c, shapes[s], s);
        size_t piece = piece_of(RF_F32);
        size_t large = s % 2 ? 5 * piece - 7 : 6 * piece + 33;
        size_t counts[] = {0, 1, 15, 17, 1021, piece, piece + 1, large};
        for (size_t k = 0; k < sizeof counts / sizeof *counts; k++) {
            struct rf_call call = {
                .coll = RF_COLL_ALLREDUCE, .redop = k % 2 ? RF_AVG : RF_SUM, .count = counts[k]};
            compare(&c, &call, (enum memory)(seed % 3), seed * 7);
            seed++;
        }
        close_nodes(&c);
    }
}

static void every_type_and_operation(void **state) {
    static const char *const some[] = {"0011", "000112", "0122", "001"};
    uint64_t turn = 0;
    (void)state;
    for (size_t s = 0; s < sizeof some / sizeof *some; s++) {
        struct cluster c;
        open_nodes(&c, some[s], s);
        for (int type = 0; type < RF_TYPE_COUNT; type++) {
            size_t large = 2 * piece_of((enum rf_type)type) + 5;
            for (int redop = 0; redop < RF_REDOP_COUNT; redop++) {
                struct rf_call call = {.coll = RF_COLL_ALLREDUCE,
                                       .type = (enum rf_type)type,
                                       .redop = (enum rf_redop)redop,
                                       .count = turn % 16 ? 5003 : large};
                if (rf_redop_valid(call.redop, call.type)) {
                    compare(&c, &call, (enum memory)(turn % 3), turn);
                    turn++;
                }
            }
        }
        close_nodes(&c);
    }
}

/* ((0 + 1) + 2) + …, by a loop that shares nothing with the library. */
static void sums_are_in_rank_order(void **state) {
    (void)state;
    for (size_t s = 0; s < 8; s++) {
        struct cluster c;
        struct buffer b[FAKE_MAX] = {0};
        struct rf_call call = {.coll = RF_COLL_ALLREDUCE, .redop = RF_AVG, .count = 200009};
        open_nodes(&c, shapes[s], s);
        float *want = calloc(call.count, sizeof *want);
        make_buffers(&c, b, &call, s % 2 ? HEAP : ORDINARY, s);
        for (int rank = 0; rank < c.size; rank++) {
            for (size_t i = 0; i < call.count; i++) {
                float x = (float)((i * 31 + (size_t)rank * 7) % 1013) * (i % 3 ? 1.7f : 1e-4f);
                memcpy(b[rank].send + i * 4, &x, 4);
                want[i] = rank ? want[i] + x : x;
            }
        }
        run_call(&c, b, &call, RF_ALGORITHM_HIERARCHICAL);
        for (int rank = 0; rank < c.size; rank++) {
            for (size_t i = 0; i < call.count; i++) {
                float got;
                memcpy(&got, b[rank].recv + i * 4, 4);
                if (got != want[i] / (float)c.size) {
                    fail_msg("%s, rank %d, element %zu: %a, not %a", shapes[s], rank, i,
                             (double)got, (double)(want[i] / (float)c.size));
                }
            }
        }
        free(want);
        free_buffers(&c, b);
        close_nodes(&c);
    }
}

/* Between two teams each byte of the buffer once in each direction, however many ranks they have;
 * of half precision the partial sums are twice as long. */
static void what_crosses_is_as_promised(void **state) {
    (void)state;
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        for (int memory = HEAP; memory <= MIXED; memory++) {
            static const enum rf_type types[] = {RF_F32, RF_BF16, RF_I8};
            struct cluster c;
            uint64_t want = 0;
            open_nodes(&c, shapes[s], s);
            for (size_t t = 0; t < 3; t++) {
                struct buffer b[FAKE_MAX] = {0};
                struct rf_call call = {.coll = RF_COLL_ALLREDUCE, .type = types[t], .count = 70003};
                size_t both = rf_type_size(types[t]) + rf_type_size(rf__acc_type(types[t]));
                make_buffers(&c, b, &call, (enum memory)memory, t);
                run_call(&c, b, &call, RF_ALGORITHM_SHARED);
                assert_int_equal(crossed(&c), want); /* it counts this way only */
                run_call(&c, b, &call, RF_ALGORITHM_HIERARCHICAL);
                want += (uint64_t)(teams_of(shapes[s]) - 1) * call.count * both;
                assert_int_equal(crossed(&c), want);
                free_buffers(&c, b);
            }
            close_nodes(&c);
        }
    }
}

/* What a group takes where nobody asks, and what it says of it. */
static void large_ones_go_by_nodes_where_that_pays(void **state) {
    static const struct {
        const char *nodes;
        size_t bytes;
        enum rf_algorithm used;
        enum rf_type type;
    } cases[] = {
        {"00001111", 512 << 10, RF_ALGORITHM_HIERARCHICAL,
         RF_F32}, /* 4 times less, from 2 pieces on */
        {"00001111", (512 << 10) - 4, RF_ALGORITHM_SHARED, RF_F32},
        {"0011", 512 << 10, RF_ALGORITHM_SHARED, RF_F32}, /* 2 times less */
        {"0011", (512 << 10) + 4, RF_ALGORITHM_HIERARCHICAL, RF_F32},
        {"001122", 1 << 20, RF_ALGORITHM_SHARED,
         RF_F32}, /* 4 buffers against 2, and 8 pieces idle */
        {"001122", (1 << 20) + 4, RF_ALGORITHM_HIERARCHICAL, RF_F32},
        {"001", 1 << 20, RF_ALGORITHM_SHARED, RF_F32}, /* 8/3 buffers in all against 2 */
        {"001", 2 << 20, RF_ALGORITHM_HIERARCHICAL, RF_F32},
        {"001", 8 << 20, RF_ALGORITHM_SHARED, RF_BF16}, /* 8/3 against 3 */
        {"0011", 2 << 20, RF_ALGORITHM_HIERARCHICAL, RF_F16},
        {"01", 8 << 20, RF_ALGORITHM_SHARED, RF_F32},     /* nothing is saved */
        {"010101", 8 << 20, RF_ALGORITHM_SHARED, RF_F32}, /* no neighbours in one node */
        {"0000", 8 << 20, RF_ALGORITHM_SHARED, RF_F32},
        {"00-11", 8 << 20, RF_ALGORITHM_SHARED, RF_F32}, /* one is anywhere */
        {"----", 8 << 20, RF_ALGORITHM_SHARED, RF_F32},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct cluster c;
        struct buffer b[FAKE_MAX] = {0};
        struct rf_call call = {.coll = RF_COLL_ALLREDUCE,
                               .type = cases[i].type,
                               .count = cases[i].bytes / rf_type_size(cases[i].type)};
        open_nodes(&c, cases[i].nodes, i);
        make_buffers(&c, b, &call, i % 2 ? HEAP : ORDINARY, i);
        run_call(&c, b, &call, RF_ALGORITHM_AUTO);
        for (int rank = 0; rank < c.size; rank++) {
            if (rf__group_last_algorithm(c.groups[rank]) != cases[i].used) {
                fail_msg("%s, %zu bytes", cases[i].nodes, cases[i].bytes);
            }
        }
        assert_int_equal(c.line_count, 1);
        if (i == 0) {
            assert_string_equal(
                c.lines[0], "allreduce of 512 KiB on 8 ranks over shm: hierarchical (2 NUMA nodes: "
                            "2 times the buffer goes between them, not 8 times)");
        } else if (cases[i].used == RF_ALGORITHM_SHARED) {
            assert_non_null(strstr(c.lines[0], "over shm: shared (table: default)"));
        }
        free_buffers(&c, b);
        close_nodes(&c);
    }
}

static void it_is_refused_where_there_are_no_nodes(void **state) {
    static const char *const none[] = {"0000", "0-11"};
    (void)state;
    for (size_t s = 0; s < 3; s++) {
        struct cluster c;
        struct rf__op *op;
        struct rf_error err;
        float x[8] = {0};
        enum rf_coll coll = s < 2 ? RF_COLL_ALLREDUCE : RF_COLL_REDUCE;
        open_nodes(&c, s < 2 ? none[s] : "0011", s);
        struct rf__op_params params = {.call = {.coll = coll,
                                                .count = 8,
                                                .send = x,
                                                .recv = x,
                                                .algorithm = RF_ALGORITHM_HIERARCHICAL}};
        assert_int_equal(rf__group_submit(c.groups[1], &params, c.now, &op, &err), RF_EUNSUPPORTED);
        assert_non_null(strstr(err.text, "or on one whose ranks are bound to several NUMA nodes"));
        close_nodes(&c);
    }
}

/* Calls of all ways follow each other without a wait in between: a stage that one of them still
 * needs must not be written over by the next. */
static void calls_follow_each_other(void **state) {
    enum { CALLS = 15 };
    static struct buffer b[CALLS][FAKE_MAX];
    (void)state;
    for (size_t s = 0; s < 6; s++) {
        struct cluster c;
        struct rf_call calls[CALLS];
        memset(b, 0, sizeof b);
        open_nodes(&c, shapes[s], s);
        for (int k = 0; k < CALLS; k++) { /* one after the other, flat: what is wanted */
            calls[k] = (struct rf_call){.coll = RF_COLL_ALLREDUCE,
                                        .type = k % 4 == 3 ? RF_F16 : RF_F32,
                                        .count = (size_t)(k % 3 ? 90001 + k * 8000 : 700 + k)};
            make_buffers(&c, b[k], &calls[k], (enum memory)(k % 3), (uint64_t)k);
            run_call(&c, b[k], &calls[k], RF_ALGORITHM_SHARED);
            for (int rank = 0; rank < c.size; rank++) {
                struct rf__rng rng = rf__rng((uint64_t)k, (uint64_t)rank, 3);
                memcpy(b[k][rank].flat, b[k][rank].recv, b[k][rank].bytes);
                fill(calls[k].type, b[k][rank].send, calls[k].count, &rng);
            }
        }
        for (int k = 0; k < CALLS; k++) {
            static const enum rf_algorithm ways[] = {RF_ALGORITHM_HIERARCHICAL, RF_ALGORITHM_AUTO,
                                                     RF_ALGORITHM_SHARED, RF_ALGORITHM_HIERARCHICAL,
                                                     RF_ALGORITHM_NAIVE};
            for (int rank = 0; rank < c.size; rank++) {
                submit(&c, &b[k][rank], rank, calls[k], ways[k % 5]);
            }
        }
        for (int k = 0; k < CALLS; k++) {
            run_until_done(&c, b[k]);
            finish(&c, b[k]);
            for (int rank = 0; rank < c.size; rank++) {
                if (memcmp(b[k][rank].recv, b[k][rank].flat, b[k][rank].bytes)) {
                    fail_msg("%s, call %d, rank %d", shapes[s], k, rank);
                }
            }
            free_buffers(&c, b[k]);
        }
        close_nodes(&c);
    }
}

static void nothing_is_allocated_after_warm_up(void **state) {
    (void)state;
    for (int memory = HEAP; memory <= MIXED; memory++) {
        struct cluster c;
        open_nodes(&c, "00111", 4);
        for (int turn = 0; turn < 2; turn++) {
            struct buffer b[FAKE_MAX] = {0};
            struct rf_call call = {.coll = RF_COLL_ALLREDUCE, .count = 700001};
            make_buffers(&c, b, &call, (enum memory)memory, 1);
            rf__alloc_fail_after(turn ? 0 : -1);
            run_call(&c, b, &call, RF_ALGORITHM_AUTO);
            rf__alloc_fail_after(-1);
            free_buffers(&c, b);
        }
        close_nodes(&c);
    }
}

/* A rank that ends in the middle takes all with it, in whichever node it is. */
static void a_death_ends_the_call(void **state) {
    int lost = 0, in_the_middle = 0;
    (void)state;
    for (int dead = 0; dead < 5; dead++) {
        for (int at = 1; at < 40; at += 3) {
            struct cluster c;
            struct buffer b[FAKE_MAX] = {0};
            struct rf_call call = {.coll = RF_COLL_ALLREDUCE, .count = 600001};
            open_nodes(&c, "00112", (uint64_t)at);
            make_buffers(&c, b, &call, at % 2 ? HEAP : ORDINARY, 0);
            for (int rank = 0; rank < c.size; rank++) {
                submit(&c, &b[rank], rank, call, RF_ALGORITHM_AUTO);
            }
            for (int i = 0; i < at; i++) {
                step_some(&c);
            }
            in_the_middle += c.groups[dead]->nodes.folded > 0;
            fake_kill(c.world, dead);
            c.dead[dead] = true;
            run_until_done(&c, b);
            for (int rank = 0; rank < c.size; rank++) {
                int result = rf__op_result(b[rank].op);
                struct rf_error err;
                if (rank != dead && result != 1) { /* 1: it had all it needed */
                    rf__group_error(c.groups[rank], &err);
                    assert_int_equal(result, RF_ELOST);
                    assert_int_equal(err.rank, dead);
                    lost++;
                }
                rf__group_release(c.groups[rank], b[rank].op);
            }
            free_buffers(&c, b);
            close_nodes(&c);
        }
    }
    assert_true(lost > 100 && in_the_middle > 20);
}

/* Calls that differ are found before anything is folded. */
static void differing_calls_are_found(void **state) {
    (void)state;
    for (int odd = 0; odd < 4; odd++) {
        struct cluster c;
        struct buffer b[FAKE_MAX] = {0};
        struct rf_call call = {.coll = RF_COLL_ALLREDUCE, .count = 300000};
        open_nodes(&c, "0011", 2);
        make_buffers(&c, b, &call, HEAP, 0);
        for (int rank = 0; rank < c.size; rank++) {
            call.count = rank == odd ? 1000 : 300000; /* of a size for another way, too */
            submit(&c, &b[rank], rank, call, RF_ALGORITHM_AUTO);
        }
        run_until_done(&c, b);
        for (int rank = 0; rank < c.size; rank++) {
            assert_int_equal(rf__op_result(b[rank].op), RF_EMISMATCH);
            rf__group_release(c.groups[rank], b[rank].op);
        }
        free_buffers(&c, b);
        close_nodes(&c);
    }
}

/* ---- At the same time ---- */

struct runner {
    pthread_t thread;
    struct cluster *cluster;
    struct buffer *buffer;
    const struct rf_call *call;
    int rank;
};

/* The collectives alone: the links of this net are no good for threads, boards and stages are. */
static void *run_rank(void *context) {
    struct runner *runner = context;
    struct rf__group *group = runner->cluster->groups[runner->rank];

    submit(runner->cluster, runner->buffer, runner->rank, *runner->call, RF_ALGORITHM_HIERARCHICAL);
    while (!rf__group_rush(group, runner->buffer->op, runner->cluster->now, 100)) {
        sched_yield();
    }
    return NULL;
}

static void threads_agree(void **state) {
    (void)state;
    for (size_t s = 0; s < 6; s++) {
        struct cluster c;
        open_nodes(&c, shapes[s], s);
        for (int memory = HEAP; memory <= ORDINARY; memory++) {
            struct buffer b[FAKE_MAX] = {0};
            struct runner runners[FAKE_MAX];
            struct rf_call call = {.coll = RF_COLL_ALLREDUCE, .count = 330001};
            make_buffers(&c, b, &call, (enum memory)memory, 0);
            for (int turn = 0; turn < 4; turn++) { /* the first is the one that may allocate */
                for (int rank = 0; rank < c.size; rank++) {
                    struct rf__rng rng = rf__rng(9, (uint64_t)rank, 0);
                    fill(call.type, b[rank].send, call.count, &rng);
                }
                if (turn == 0) {
                    run_call(&c, b, &call, RF_ALGORITHM_SHARED);
                    memcpy(b[0].flat, b[0].recv, b[0].bytes);
                    for (int rank = 0; rank < c.size; rank++) {
                        (void)rf__group_step(c.groups[rank], c.now);
                    }
                    continue;
                }
                for (int rank = 0; rank < c.size; rank++) {
                    runners[rank] = (struct runner){
                        .cluster = &c, .buffer = &b[rank], .call = &call, .rank = rank};
                    assert_int_equal(
                        pthread_create(&runners[rank].thread, NULL, run_rank, &runners[rank]), 0);
                }
                for (int rank = 0; rank < c.size; rank++) {
                    assert_int_equal(pthread_join(runners[rank].thread, NULL), 0);
                }
                finish(&c, b);
                for (int rank = 0; rank < c.size; rank++) {
                    assert_memory_equal(b[rank].recv, b[0].flat, b[rank].bytes);
                }
            }
            free_buffers(&c, b);
        }
        close_nodes(&c);
    }
}

/* The thread sanitizer would take minutes over what has one thread only. */
#if defined(__SANITIZE_THREAD__)
enum { THREADS_ONLY = 1 };
#else
enum { THREADS_ONLY = 0 };
#endif

int main(void) {
    const struct CMUnitTest threads[] = {cmocka_unit_test(threads_agree)};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_shape_and_count),
        cmocka_unit_test(every_type_and_operation),
        cmocka_unit_test(sums_are_in_rank_order),
        cmocka_unit_test(what_crosses_is_as_promised),
        cmocka_unit_test(large_ones_go_by_nodes_where_that_pays),
        cmocka_unit_test(it_is_refused_where_there_are_no_nodes),
        cmocka_unit_test(calls_follow_each_other),
        cmocka_unit_test(nothing_is_allocated_after_warm_up),
        cmocka_unit_test(a_death_ends_the_call),
        cmocka_unit_test(differing_calls_are_found),
        cmocka_unit_test(threads_agree),
    };
    return THREADS_ONLY ? cmocka_run_group_tests(threads, NULL, NULL)
                        : cmocka_run_group_tests(tests, NULL, NULL);
}
