/* coll/: every algorithm is proved by the symbolic checker, the checker catches planted faults, and
 * message and byte counts are what the textbooks say. */
#include "base/mem.h"
#include "coll/check.h"
#include "coll/schedule.h"

#include <ringfold/limits.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_RANKS = RF__CHECK_MAX_RANKS };
enum mode { OUT_OF_PLACE, IN_PLACE, MIXED, MODES };

static bool is_rooted(enum rf_coll coll) {
    return coll == RF_COLL_BROADCAST || coll == RF_COLL_REDUCE || coll == RF_COLL_GATHER ||
           coll == RF_COLL_SCATTER;
}

/* Who promises ((0 + 1) + 2) + …, rounded once. */
static bool folds_in_rank_order(enum rf_coll coll, enum rf_algorithm algorithm) {
    switch (coll) {
    case RF_COLL_ALLREDUCE:
        return algorithm == RF_ALGORITHM_NAIVE || algorithm == RF_ALGORITHM_DIRECT ||
               algorithm == RF_ALGORITHM_REDUCE_BROADCAST;
    case RF_COLL_REDUCE_SCATTER:
        return algorithm == RF_ALGORITHM_NAIVE || algorithm == RF_ALGORITHM_DIRECT;
    case RF_COLL_REDUCE:
        return algorithm == RF_ALGORITHM_NAIVE;
    case RF_COLL_ALL_GATHER:
    case RF_COLL_BROADCAST:
    case RF_COLL_GATHER:
    case RF_COLL_SCATTER:
    case RF_COLL_ALL_TO_ALL:
    case RF_COLL_BARRIER:
    case RF_COLL_SEND:
    case RF_COLL_RECV:
    case RF_COLL_COUNT:
        break;
    }
    return false;
}

static void prove(const struct rf__schedule_params *params, enum mode mode) {
    bool in_place[MAX_RANKS];
    struct rf__check_options options = {
        .in_place = in_place, .rank_order = folds_in_rank_order(params->coll, params->algorithm)};
    struct rf_error err = {0};

    for (int r = 0; r < params->size; r++) {
        in_place[r] = mode == IN_PLACE || (mode == MIXED && (r * 7 + params->size) % 3 == 0);
    }
    if (rf__check_algorithm(params, &options, &err) != 0) {
        fail_msg("%s by %s, %d ranks, root %d, count %zu, mode %d, agree %d: %s",
                 rf_coll_name(params->coll), rf_algorithm_name(params->algorithm), params->size,
                 params->root, params->count, mode, params->agree, err.text);
    }
}

/* All modes and roots for the small groups; for the others the modes take turns, and long vectors
 * are for some only. */
static void prove_size(enum rf_coll coll, enum rf_algorithm algorithm, int n) {
    size_t size = (size_t)n, counts[] = {0, 1, size - 1, size, size + 1, 7, 131};
    bool vast = coll == RF_COLL_ALL_TO_ALL || coll == RF_COLL_REDUCE_SCATTER ||
                coll == RF_COLL_ALL_GATHER || algorithm == RF_ALGORITHM_NAIVE;
    int roots[] = {0, n - 1, n / 2};

    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        for (int mode = 0; mode < MODES; mode++) {
            bool all = n <= 9, due = (n + (int)i + mode) % MODES == 0;
            if (!all && (!due || (counts[i] > 16 && n > 24 && vast && n % 5 != (int)i % 5))) {
                continue;
            }
            for (int root = 0; root < (is_rooted(coll) ? 3 : 1); root++) {
                struct rf__schedule_params params = {.coll = coll,
                                                     .algorithm = algorithm,
                                                     .size = n,
                                                     .root = is_rooted(coll) ? roots[root] : 0,
                                                     .count = counts[i],
                                                     .agree = (n + root + mode) % 2};
                prove(&params, (enum mode)mode);
                params.agree = !params.agree;
                if (all) {
                    prove(&params, (enum mode)mode);
                }
            }
        }
    }
}

static void every_algorithm_is_right(void **state) {
    int covered = 0;
    (void)state;
    for (int coll = 0; coll < RF_COLL_COUNT; coll++) {
        for (int algorithm = 0; algorithm < RF_ALGORITHM_COUNT; algorithm++) {
            if (rf__schedule_covers((enum rf_coll)coll, (enum rf_algorithm)algorithm)) {
                covered++;
                for (int n = 1; n <= MAX_RANKS; n++) {
                    prove_size((enum rf_coll)coll, (enum rf_algorithm)algorithm, n);
                }
            }
        }
    }
    assert_int_equal(covered, 7 + 3 + 4 + 2 + 2 + 2 + 2 + 1 + 1);
}

/* ---- planted faults ---- */

struct group {
    struct rf__schedule_params params;
    struct rf__schedule schedules[MAX_RANKS];
};

static void group_write(struct group *g, enum rf_coll coll, enum rf_algorithm algorithm, int size,
                        size_t count, bool in_place) {
    *g = (struct group){.params = {.coll = coll,
                                   .algorithm = algorithm,
                                   .size = size,
                                   .count = count,
                                   .in_place = in_place}};
    for (int r = 0; r < size; r++) {
        struct rf__schedule_params own = g->params;
        own.rank = r;
        assert_int_equal(rf__schedule_write(&g->schedules[r], &own), 0);
    }
}

static void group_free(struct group *g) {
    for (int r = 0; r < g->params.size; r++) {
        rf__schedule_free(&g->schedules[r]);
    }
}

static void insert(struct rf__schedule *schedule, size_t at, struct rf__instr instr) {
    /* Writers leave room, as capacities are powers of two; the tests choose schedules for which
     * that holds. */
    assert_true(schedule->count < schedule->capacity);
    memmove(&schedule->instrs[at + 1], &schedule->instrs[at],
            (schedule->count - at) * sizeof instr);
    schedule->instrs[at] = instr;
    schedule->count++;
}

static void drop(struct rf__schedule *schedule, size_t at) {
    schedule->count--;
    memmove(&schedule->instrs[at], &schedule->instrs[at + 1],
            (schedule->count - at) * sizeof schedule->instrs[0]);
}

/* The n-th instruction of the kind. */
static size_t find(const struct rf__schedule *schedule, enum rf__instr_kind kind, int n) {
    size_t at = 0;
    while (schedule->instrs[at].kind != kind || n-- > 0) {
        at++;
        assert_true(at < schedule->count);
    }
    return at;
}

static void assert_caught(const struct group *g, const char *fault, const char *expected) {
    struct rf_error err = {0};
    int rank = -1, colon = 0;
    unsigned step;

    if (rf__check(g->schedules, &g->params, NULL, &err) != RF_EINTERNAL) {
        fail_msg("%s by %s: not caught: %s", rf_coll_name(g->params.coll),
                 rf_algorithm_name(g->params.algorithm), fault);
    }
    if (sscanf(err.text, "rank %d, step %u%n", &rank, &step, &colon) != 2 ||
        err.text[colon] != ':' || rank != err.rank || !strstr(err.text, expected)) {
        fail_msg("%s: bad report: %s", fault, err.text);
    }
}

static const struct {
    enum rf_coll coll;
    enum rf_algorithm algorithm;
} victims[] = {
    {RF_COLL_ALLREDUCE, RF_ALGORITHM_NAIVE},
    {RF_COLL_ALLREDUCE, RF_ALGORITHM_REDUCE_BROADCAST},
    {RF_COLL_ALLREDUCE, RF_ALGORITHM_RING},
    {RF_COLL_ALLREDUCE, RF_ALGORITHM_DIRECT},
    {RF_COLL_ALLREDUCE, RF_ALGORITHM_RECURSIVE_DOUBLING},
    {RF_COLL_ALLREDUCE, RF_ALGORITHM_RABENSEIFNER},
    {RF_COLL_ALLREDUCE, RF_ALGORITHM_TREE},
    {RF_COLL_REDUCE_SCATTER, RF_ALGORITHM_RING},
    {RF_COLL_ALL_GATHER, RF_ALGORITHM_RECURSIVE_DOUBLING},
    {RF_COLL_REDUCE, RF_ALGORITHM_TREE},
    {RF_COLL_GATHER, RF_ALGORITHM_TREE},
    {RF_COLL_SCATTER, RF_ALGORITHM_TREE},
    {RF_COLL_ALL_TO_ALL, RF_ALGORITHM_NAIVE},
    {RF_COLL_BARRIER, RF_ALGORITHM_RECURSIVE_DOUBLING},
};

enum fault { DROP, WRONG_PEER, WRONG_OFFSET, WRONG_COUNT, TWICE, FAULTS };
static const char *const fault_names[FAULTS] = {"an instruction dropped", "a wrong peer",
                                                "a wrong offset", "a wrong count", "done twice"};

/* Breaks instruction `at`; false where the fault does not apply to it. */
static bool plant(struct group *g, int rank, size_t at, enum fault fault) {
    struct rf__schedule *s = &g->schedules[rank];
    struct rf__instr *x = &s->instrs[at];
    bool message = x->kind == RF__SEND || x->kind == RF__RECV || x->kind == RF__FOLD;

    switch (fault) {
    case DROP:
        drop(s, at);
        return true;
    case WRONG_PEER:
        if (message) {
            x->peer = (x->peer + 1) % g->params.size;
        }
        return message;
    case WRONG_OFFSET:
        *(x->kind == RF__SEND ? &x->src_offset : &x->dst_offset) += 1;
        return x->count > 0;
    case WRONG_COUNT:
        x->count -= x->count > 0;
        return x->count > 0;
    case TWICE:
        if (x->kind != RF__COPY) {
            insert(s, at, *x);
        }
        return x->kind != RF__COPY; /* harmless */
    case FAULTS:
        break;
    }
    return false;
}

static void every_single_fault_is_caught(void **state) {
    int planted = 0;
    (void)state;
    for (size_t v = 0; v < sizeof victims / sizeof victims[0]; v++) {
        for (int fault = 0; fault < FAULTS; fault++) {
            struct group g;
            size_t count = victims[v].coll == RF_COLL_BARRIER ? 0 : 83;
            group_write(&g, victims[v].coll, victims[v].algorithm, 5, count, false);
            for (int r = 0; r < 5; r++) {
                struct rf__instr original[64];
                size_t length = g.schedules[r].count;
                assert_true(length < 64);
                memcpy(original, g.schedules[r].instrs, length * sizeof original[0]);
                for (size_t at = 0; at < length; at++) {
                    if (plant(&g, r, at, (enum fault)fault)) {
                        assert_caught(&g, fault_names[fault], "");
                        planted++;
                    }
                    memcpy(g.schedules[r].instrs, original, length * sizeof original[0]);
                    g.schedules[r].count = length;
                }
            }
            group_free(&g);
        }
    }
    assert_true(planted > 1000);
}

static void a_contribution_folded_twice_is_caught(void **state) {
    struct group g;
    (void)state;
    group_write(&g, RF_COLL_ALLREDUCE, RF_ALGORITHM_NAIVE, 5, 7, false);
    size_t send = find(&g.schedules[3], RF__SEND, 0);
    int to = g.schedules[3].instrs[send].peer;
    size_t from_3 = 0;
    while (g.schedules[to].instrs[from_3].kind == RF__SEND ||
           g.schedules[to].instrs[from_3].peer != 3) {
        from_3++;
    }
    insert(&g.schedules[3], send, g.schedules[3].instrs[send]);
    insert(&g.schedules[to], from_3, g.schedules[to].instrs[from_3]);
    assert_caught(&g, "sent and folded twice",
                  "folds a contribution twice: element 0, from rank 3");
    group_free(&g);
}

static void what_is_overwritten_too_early_is_caught(void **state) {
    struct group g;
    (void)state;
    /* Two parts that must wait for their turn in the same place. */
    group_write(&g, RF_COLL_ALLREDUCE, RF_ALGORITHM_DIRECT, 5, 160, false);
    g.schedules[1].instrs[find(&g.schedules[1], RF__RECV, 1)].dst_offset = 0;
    assert_caught(&g, "TMP used twice", "rank 1, step 0: folds");
    group_free(&g);
    /* In place: the result stored over the data before the last fold has read it. */
    group_write(&g, RF_COLL_REDUCE_SCATTER, RF_ALGORITHM_DIRECT, 4, 7, true);
    struct rf__schedule *owner = &g.schedules[3];
    insert(owner, find(owner, RF__JOIN, 0), owner->instrs[find(owner, RF__COPY, 0)]);
    assert_caught(&g, "stored too early", "rank 3, step 0: folds a contribution twice");
    group_free(&g);
    /* The caller's data changed, out of place. */
    group_write(&g, RF_COLL_REDUCE_SCATTER, RF_ALGORITHM_RING, 4, 7, false);
    struct rf__instr *last = &g.schedules[2].instrs[g.schedules[2].count - 1];
    struct rf__instr scribble = {
        .kind = RF__COPY, .src = RF__OUT, .dst = RF__IN, .count = 1, .step = last->step + 1};
    insert(&g.schedules[2], g.schedules[2].count, scribble);
    assert_caught(&g, "IN written", "rank 2, step 0: element 0 of IN was overwritten");
    group_free(&g);
}

static void writing_what_is_being_sent_is_caught(void **state) {
    struct group g;
    (void)state;
    group_write(&g, RF_COLL_ALLREDUCE, RF_ALGORITHM_NAIVE, 5, 7, true);
    g.schedules[4].instrs[g.schedules[4].count - 1].step = 0;
    assert_caught(&g, "stored while sent", "rank 4, step 0: writes what the message to rank");
    group_free(&g);
    group_write(&g, RF_COLL_REDUCE_SCATTER, RF_ALGORITHM_RING, 5, 7, true);
    size_t second = find(&g.schedules[1], RF__RECV, 1);
    g.schedules[1].instrs[second].dst_offset = 0;
    g.schedules[1].instrs[second + 1].dst_offset = 0;
    assert_caught(&g, "one half of TMP", "rank 1, step 1: writes what the message to rank 2");
    group_free(&g);
}

static void waiting_in_a_circle_is_caught(void **state) {
    struct group g;
    (void)state;
    /* Everybody listens before it speaks. */
    group_write(&g, RF_COLL_ALL_GATHER, RF_ALGORITHM_RING, 5, 7, false);
    for (int r = 0; r < 5; r++) {
        size_t send = find(&g.schedules[r], RF__SEND, 0), recv = find(&g.schedules[r], RF__RECV, 0);
        struct rf__instr first = g.schedules[r].instrs[recv];
        drop(&g.schedules[r], recv);
        insert(&g.schedules[r], send, first);
        for (size_t i = send + 1; i < g.schedules[r].count; i++) {
            g.schedules[r].instrs[i].step++;
        }
    }
    assert_caught(&g, "listening first", "waits in a circle: for a message from rank");
    group_free(&g);
    /* Everybody speaks before it listens: right on a link that stores messages, but not by the
     * contract. */
    group_write(&g, RF_COLL_BARRIER, RF_ALGORITHM_RECURSIVE_DOUBLING, 4, 0, false);
    for (int r = 0; r < 4; r++) {
        for (size_t i = 0; i < g.schedules[r].count; i++) {
            struct rf__instr *x = &g.schedules[r].instrs[i];
            x->step = 2 * x->step + (x->kind == RF__RECV);
        }
    }
    assert_caught(&g, "speaking first", "waits in a circle: for its message to be taken by rank");
    group_free(&g);
}

static void wrong_bits_are_caught(void **state) {
    struct group g;
    struct rf__check_options strict = {.rank_order = true};
    struct rf_error err = {0};
    (void)state;
    /* One partner of an exchange has the operands the other way round. */
    group_write(&g, RF_COLL_ALLREDUCE, RF_ALGORITHM_RECURSIVE_DOUBLING, 4, 7, false);
    struct rf__instr *join = &g.schedules[2].instrs[find(&g.schedules[2], RF__JOIN, 0)];
    join->left = !join->left;
    assert_caught(&g, "operands swapped", "not the same bits");
    group_free(&g);
    /* All ranks fold in the same order, which is not the order of ranks: only the strict check
     * minds. */
    group_write(&g, RF_COLL_ALLREDUCE, RF_ALGORITHM_REDUCE_BROADCAST, 4, 7, false);
    size_t fold = find(&g.schedules[0], RF__FOLD, 0);
    struct rf__instr swapped = g.schedules[0].instrs[fold];
    g.schedules[0].instrs[fold] = g.schedules[0].instrs[fold + 1];
    g.schedules[0].instrs[fold + 1] = swapped;
    assert_int_equal(rf__check(g.schedules, &g.params, NULL, &err), 0);
    assert_int_equal(rf__check(g.schedules, &g.params, &strict, &err), RF_EINTERNAL);
    assert_non_null(strstr(err.text, "not folded in rank order"));
    group_free(&g);
}

/* ---- counts ---- */

struct counted {
    uint64_t messages, elements, max_messages, max_elements;
};

static struct counted count_messages(enum rf_algorithm algorithm, int n, size_t count) {
    struct rf__schedule schedule = {0};
    struct counted c = {0};

    for (int r = 0; r < n; r++) {
        struct rf__schedule_params params = {.coll = RF_COLL_ALLREDUCE,
                                             .algorithm = algorithm,
                                             .rank = r,
                                             .size = n,
                                             .count = count};
        uint64_t messages = 0, elements = 0;
        assert_int_equal(rf__schedule_write(&schedule, &params), 0);
        for (size_t i = 0; i < schedule.count; i++) {
            messages += schedule.instrs[i].kind == RF__SEND;
            elements += schedule.instrs[i].kind == RF__SEND ? schedule.instrs[i].count : 0;
        }
        c.messages += messages;
        c.elements += elements;
        c.max_messages = messages > c.max_messages ? messages : c.max_messages;
        c.max_elements = elements > c.max_elements ? elements : c.max_elements;
    }
    rf__schedule_free(&schedule);
    return c;
}

static void assert_counted(enum rf_algorithm algorithm, int n, size_t count, uint64_t messages,
                           uint64_t elements, uint64_t max_messages, uint64_t max_elements) {
    struct counted c = count_messages(algorithm, n, count);
    if (c.messages != messages || c.elements != elements || c.max_messages != max_messages ||
        c.max_elements != max_elements) {
        fail_msg("%s, %d ranks: %llu messages, %llu elements, at most %llu and %llu by one rank",
                 rf_algorithm_name(algorithm), n, (unsigned long long)c.messages,
                 (unsigned long long)c.elements, (unsigned long long)c.max_messages,
                 (unsigned long long)c.max_elements);
    }
}

static void messages_and_bytes_are_the_textbooks(void **state) {
    const int sizes[] = {2, 3, 4, 5, 6, 7, 8, 13, 16, 17, 31, 32, 33, 64, 100};
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        uint64_t n = (uint64_t)sizes[i], power = 1, log = 0, s = 1024 * n; /* slices are equal */
        while (power * 2 <= n) {
            power *= 2;
            log++;
        }
        uint64_t rest = n - power, share = s / n, part = s / power;
        int size = sizes[i];
        /* naive: n (n-1) messages of S; through rank 0: (n-1) there and back */
        assert_counted(RF_ALGORITHM_NAIVE, size, s, n * (n - 1), n * (n - 1) * s, n - 1,
                       (n - 1) * s);
        assert_counted(RF_ALGORITHM_REDUCE_BROADCAST, size, s, 2 * (n - 1), 2 * (n - 1) * s, n - 1,
                       (n - 1) * s);
        /* ring and direct: 2 (n-1) messages of S/n from each */
        assert_counted(RF_ALGORITHM_RING, size, s, 2 * n * (n - 1), 2 * (n - 1) * s, 2 * (n - 1),
                       2 * (n - 1) * share);
        assert_counted(RF_ALGORITHM_DIRECT, size, s, 2 * n * (n - 1), 2 * (n - 1) * s, 2 * (n - 1),
                       2 * (n - 1) * share);
        /* a power of two: log2 n of S; 2 log2 n of S/2, S/4 …; the rest adds S there and S back */
        assert_counted(RF_ALGORITHM_RECURSIVE_DOUBLING, size, s, power * log + 2 * rest,
                       (power * log + 2 * rest) * s, log + (rest > 0), (log + (rest > 0)) * s);
        assert_counted(RF_ALGORITHM_RABENSEIFNER, size, part * power, 2 * power * log + 2 * rest,
                       2 * (power - 1) * part * power + 2 * rest * part * power,
                       2 * log + (rest > 0),
                       2 * (power - 1) * part + (rest > 0 ? part * power : 0));
        /* n-1 edges, up and down; the root speaks to ceil(log2 n) */
        struct counted tree = count_messages(RF_ALGORITHM_TREE, size, s);
        assert_int_equal(tree.messages, 2 * (n - 1));
        assert_int_equal(tree.elements, 2 * (n - 1) * s);
        assert_int_equal(tree.max_messages, log + (rest > 0));
    }
    assert_int_equal(count_messages(RF_ALGORITHM_NAIVE, 100, 1).messages, 9900);
    assert_int_equal(count_messages(RF_ALGORITHM_RING, 100, 1).messages, 19800);
    assert_int_equal(count_messages(RF_ALGORITHM_RING, 100, 1).max_messages, 198);
}

/* ---- what is promised of schedules ---- */

static void messages_do_not_depend_on_place_or_count(void **state) {
    struct rf__schedule a = {0}, b = {0};
    (void)state;
    for (int coll = 0; coll < RF_COLL_COUNT; coll++) {
        for (int algorithm = 0; algorithm < RF_ALGORITHM_COUNT; algorithm++) {
            for (int i = 0; i < 11 * 11; i++) {
                struct rf__schedule_params p = {.coll = (enum rf_coll)coll,
                                                .algorithm = (enum rf_algorithm)algorithm,
                                                .size = 11,
                                                .rank = i % 11,
                                                .root = i / 11,
                                                .count = 50,
                                                .agree = i % 2};
                if (!rf__schedule_covers(p.coll, p.algorithm)) {
                    assert_int_equal(rf__schedule_write(&a, &p), RF_EUNSUPPORTED);
                    continue;
                }
                assert_int_equal(rf__schedule_write(&a, &p), 0);
                p.in_place = true;
                p.count = i % 3 ? 50 : 0;
                assert_int_equal(rf__schedule_write(&b, &p), 0);
                size_t ia = 0, ib = 0;
                for (;;) {
                    while (ia < a.count && a.instrs[ia].peer < 0) {
                        ia++;
                    }
                    while (ib < b.count && b.instrs[ib].peer < 0) {
                        ib++;
                    }
                    if (ia == a.count || ib == b.count) {
                        break;
                    }
                    assert_int_equal(a.instrs[ia].peer, b.instrs[ib].peer);
                    assert_int_equal(a.instrs[ia].kind == RF__SEND, b.instrs[ib].kind == RF__SEND);
                    if (p.count == 50) {
                        assert_int_equal(a.instrs[ia].count, b.instrs[ib].count);
                    }
                    ia++;
                    ib++;
                }
                assert_true(ia == a.count && ib == b.count);
            }
        }
    }
    rf__schedule_free(&a);
    rf__schedule_free(&b);
}

static void slices_are_even_and_aligned(void **state) {
    const size_t counts[] = {0, 1, 15, 16, 17, 31, 131, 1000, 1024, 99991, SIZE_MAX - 5, SIZE_MAX};
    (void)state;
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        for (int slices = 1; slices <= 70; slices++) {
            size_t next = 0, shortest = SIZE_MAX, longest = 0;
            for (int k = 0; k < slices; k++) {
                size_t offset, length;
                rf__slice(counts[i], slices, k, &offset, &length);
                assert_true(offset == next && (offset % 16 == 0 || offset == counts[i]));
                next = offset + length;
                shortest = length < shortest ? length : shortest;
                longest = length > longest ? length : longest;
            }
            assert_true(next == counts[i]);
            /* One block, and the last one may be short besides. */
            assert_true(longest - shortest <= 31);
        }
    }
}

static void the_choice_is_always_covered(void **state) {
    (void)state;
    for (int coll = 0; coll < RF_COLL_COUNT; coll++) {
        for (int n = 1; n <= RF_MAX_RANKS; n++) {
            for (size_t bytes = 0; bytes < (size_t)1 << 34; bytes = bytes * 4 + 1) {
                enum rf_algorithm algorithm = rf__schedule_choose((enum rf_coll)coll, n, bytes);
                bool message = coll == RF_COLL_SEND || coll == RF_COLL_RECV;
                assert_true(message ? algorithm == RF_ALGORITHM_AUTO
                                    : rf__schedule_covers((enum rf_coll)coll, algorithm));
            }
        }
    }
    assert_int_equal(rf__schedule_choose(RF_COLL_ALLREDUCE, 16, 8192), RF_ALGORITHM_NAIVE);
    assert_int_equal(rf__schedule_choose(RF_COLL_ALLREDUCE, 16, 8193), RF_ALGORITHM_DIRECT);
    assert_int_equal(rf__schedule_choose(RF_COLL_ALLREDUCE, 17, 32768),
                     RF_ALGORITHM_RECURSIVE_DOUBLING);
    assert_int_equal(rf__schedule_choose(RF_COLL_ALLREDUCE, 17, 1 << 20),
                     RF_ALGORITHM_RABENSEIFNER);
    assert_int_equal(rf__schedule_choose(RF_COLL_ALLREDUCE, 17, (1 << 20) + 1), RF_ALGORITHM_RING);
}

static void memory_that_runs_out_is_reported(void **state) {
    struct rf__schedule schedule = {0};
    struct rf__schedule_params params = {
        .coll = RF_COLL_ALLREDUCE, .algorithm = RF_ALGORITHM_RING, .size = 40, .count = 1000};
    long k = 0;
    int rc = RF_ENOMEM;
    (void)state;
    for (; rc != 0; k++) {
        rf__schedule_free(&schedule);
        rf__alloc_fail_after(k);
        rc = rf__schedule_write(&schedule, &params);
        rf__alloc_fail_after(-1);
        assert_true(rc == 0 || rc == RF_ENOMEM);
    }
    assert_true(k > 2);
    size_t count = schedule.count;
    rf__alloc_fail_after(0); /* again: needs nothing */
    assert_int_equal(rf__schedule_write(&schedule, &params), 0);
    rf__alloc_fail_after(-1);
    assert_int_equal(schedule.count, count);
    rf__schedule_free(&schedule);

    params.size = 5;
    for (k = 0, rc = RF_ENOMEM; rc != 0; k++) {
        struct rf_error err = {0};
        rf__alloc_fail_after(k);
        rc = rf__check_algorithm(&params, NULL, &err);
        rf__alloc_fail_after(-1);
        assert_true(rc == 0 || (rc == RF_ENOMEM && err.code == RF_ENOMEM));
    }
    assert_true(k > 10);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_algorithm_is_right),
        cmocka_unit_test(every_single_fault_is_caught),
        cmocka_unit_test(a_contribution_folded_twice_is_caught),
        cmocka_unit_test(what_is_overwritten_too_early_is_caught),
        cmocka_unit_test(writing_what_is_being_sent_is_caught),
        cmocka_unit_test(waiting_in_a_circle_is_caught),
        cmocka_unit_test(wrong_bits_are_caught),
        cmocka_unit_test(messages_and_bytes_are_the_textbooks),
        cmocka_unit_test(messages_do_not_depend_on_place_or_count),
        cmocka_unit_test(slices_are_even_and_aligned),
        cmocka_unit_test(the_choice_is_always_covered),
        cmocka_unit_test(memory_that_runs_out_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
