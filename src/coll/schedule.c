/* From a collective and an algorithm to the function that writes the schedule; groups of one. */
#include "coll/schedule.h"

#include "base/assert.h"
#include "base/mem.h"
#include "coll/algorithms.h"

static rf__algorithm_writer *const writers[RF_COLL_COUNT][RF_ALGORITHM_COUNT] = {
    [RF_COLL_ALLREDUCE] =
        {
            [RF_ALGORITHM_NAIVE] = rf__write_naive_allreduce,
            [RF_ALGORITHM_REDUCE_BROADCAST] = rf__write_reduce_broadcast_allreduce,
            [RF_ALGORITHM_RING] = rf__write_ring_allreduce,
            [RF_ALGORITHM_DIRECT] = rf__write_direct_allreduce,
            [RF_ALGORITHM_RECURSIVE_DOUBLING] = rf__write_doubling_allreduce,
            [RF_ALGORITHM_RABENSEIFNER] = rf__write_rabenseifner_allreduce,
            [RF_ALGORITHM_TREE] = rf__write_tree_allreduce,
        },
    [RF_COLL_REDUCE_SCATTER] =
        {
            [RF_ALGORITHM_NAIVE] = rf__write_direct_reduce_scatter,
            [RF_ALGORITHM_DIRECT] = rf__write_direct_reduce_scatter,
            [RF_ALGORITHM_RING] = rf__write_ring_reduce_scatter,
        },
    [RF_COLL_ALL_GATHER] =
        {
            [RF_ALGORITHM_NAIVE] = rf__write_direct_all_gather,
            [RF_ALGORITHM_DIRECT] = rf__write_direct_all_gather,
            [RF_ALGORITHM_RING] = rf__write_ring_all_gather,
            [RF_ALGORITHM_RECURSIVE_DOUBLING] = rf__write_doubling_all_gather,
        },
    [RF_COLL_BROADCAST] =
        {
            [RF_ALGORITHM_NAIVE] = rf__write_naive_broadcast,
            [RF_ALGORITHM_TREE] = rf__write_tree_broadcast,
        },
    [RF_COLL_REDUCE] =
        {
            [RF_ALGORITHM_NAIVE] = rf__write_naive_reduce,
            [RF_ALGORITHM_TREE] = rf__write_tree_reduce,
        },
    [RF_COLL_GATHER] =
        {
            [RF_ALGORITHM_NAIVE] = rf__write_naive_gather,
            [RF_ALGORITHM_TREE] = rf__write_tree_gather,
        },
    [RF_COLL_SCATTER] =
        {
            [RF_ALGORITHM_NAIVE] = rf__write_naive_scatter,
            [RF_ALGORITHM_TREE] = rf__write_tree_scatter,
        },
    [RF_COLL_ALL_TO_ALL] = {[RF_ALGORITHM_NAIVE] = rf__write_naive_all_to_all},
    [RF_COLL_BARRIER] = {[RF_ALGORITHM_RECURSIVE_DOUBLING] = rf__write_dissemination},
};

static bool is_rooted(enum rf_coll coll) {
    return coll == RF_COLL_BROADCAST || coll == RF_COLL_REDUCE || coll == RF_COLL_GATHER ||
           coll == RF_COLL_SCATTER;
}

static bool is_reducing(enum rf_coll coll) {
    return coll == RF_COLL_ALLREDUCE || coll == RF_COLL_REDUCE || coll == RF_COLL_REDUCE_SCATTER;
}

/* A group of one: the result is what is there, divided where the caller divides. */
/* In pieces that are still in the cache when they are divided. */
static void write_alone(struct rf__draft *draft) {
    enum { PIECE = 16 << 10 };
    size_t count = draft->params.coll == RF_COLL_BARRIER ? 0 : draft->params.count;

    for (size_t at = 0; at < count; at += PIECE) {
        struct rf__span piece = rf__span(RF__OUT, at, count - at < PIECE ? count - at : PIECE);
        if (!draft->params.in_place) {
            rf__draft_copy(draft, piece, RF__IN, at);
        }
        if (is_reducing(draft->params.coll)) {
            rf__draft_divide(draft, piece);
        }
    }
}

bool rf__schedule_covers(enum rf_coll coll, enum rf_algorithm algorithm) {
    return (unsigned)coll < RF_COLL_COUNT && (unsigned)algorithm < RF_ALGORITHM_COUNT &&
           writers[coll][algorithm] != NULL;
}

int rf__schedule_write(struct rf__schedule *schedule, const struct rf__schedule_params *params) {
    struct rf__draft draft = {.schedule = schedule, .params = *params};

    RF_ASSERT(params->size >= 1 && params->rank >= 0 && params->rank < params->size);
    schedule->count = schedule->acc_count = schedule->tmp_count = 0;
    if (!rf__schedule_covers(params->coll, params->algorithm)) {
        return RF_EUNSUPPORTED;
    }
    RF_ASSERT(!is_rooted(params->coll) || (params->root >= 0 && params->root < params->size));
    if (params->size == 1) {
        write_alone(&draft);
        return draft.error;
    }
    if (params->agree && is_rooted(params->coll)) {
        rf__write_dissemination(&draft);
    }
    writers[params->coll][params->algorithm](&draft);
    return draft.error;
}

void rf__schedule_free(struct rf__schedule *schedule) {
    rf__free(schedule->instrs);
    *schedule = (struct rf__schedule){0};
}
