/* The symbolic checker: carries out the schedules of all ranks on sets of contributions instead of
 * numbers, and proves that each element of the result holds exactly what the collective promises,
 * each contribution once, divided once; that no rank waits in a circle, even where no SEND ends
 * before its message is received; that every message meets a receive of its size; that nothing is
 * written while a SEND of the step reads it; that nothing is read that was never written; that IN
 * is as it was where it is not OUT; that an allreduce gives equal bits on all ranks; that every
 * rank hears of every other where there is no root, or where they agree first. Shares no code with
 * the algorithms. */
#ifndef RF_COLL_CHECK_H
#define RF_COLL_CHECK_H

#include "coll/schedule.h"

enum { RF__CHECK_MAX_RANKS = 64 };

/* What else is to be checked. */
struct rf__check_options {
    const bool *in_place; /* for each rank, instead of params->in_place; NULL: the same for all */
    bool rank_order; /* results are folded strictly in rank order in ACC and rounded once: ((0 + 1)
                        + 2) + … */
};

/* 0, or RF_EINTERNAL and the rank, step and element that break the promise in err. `params->rank`
 * is ignored. `schedules` holds params->size of them, so that tests can plant faults in them.
 * `options` may be NULL. Allocates: RF_ENOMEM. */
int rf__check(const struct rf__schedule *schedules, const struct rf__schedule_params *params,
              const struct rf__check_options *options, struct rf_error *err);

/* Writes all ranks' schedules and checks them. */
int rf__check_algorithm(const struct rf__schedule_params *params,
                        const struct rf__check_options *options, struct rf_error *err);

#endif
