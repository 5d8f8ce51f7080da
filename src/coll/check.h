/* The symbolic checker: carries out the schedules of all ranks on sets of contributions instead of numbers, and proves
 * that each element of the result holds exactly what the collective promises, each contribution once; that no rank
 * waits in a circle; that every message meets a receive of its size; that nothing is written while a SEND of the step
 * reads it; that nothing is read that was never written. */
#ifndef RF_COLL_CHECK_H
#define RF_COLL_CHECK_H

#include "coll/schedule.h"

enum { RF__CHECK_MAX_RANKS = 64 };

/* 0, or RF_EINTERNAL and the rank, step and element that break the promise in err. `params->rank` is ignored. `schedules` holds
 * params->size of them, so that tests can plant faults in them. Allocates. */
int rf__check(const struct rf__schedule *schedules, const struct rf__schedule_params *params,
              struct rf_error *err);

/* Writes all ranks' schedules and checks them. */
int rf__check_algorithm(const struct rf__schedule_params *params, struct rf_error *err);

#endif
