/* Steering a running job from outside, through its store.
 *
 * Thread safety: as the store's. */
#ifndef RINGFOLD_JOB_H
#define RINGFOLD_JOB_H

#include <ringfold/store.h>

#ifdef __cplusplus
extern "C" {
#endif

struct rf_job_state {
    uint64_t generation; /* 0: the job has none yet */
    int members;
    int ended;
};

/* RF_ENOTFOUND where the store knows no such job. */
RF_API RF_MUST_CHECK int rf_job_look(struct rf_store *store, const char *job,
                                     struct rf_job_state *out, struct rf_error *err);

/* Orders an elastic job that keeps checkpoints to go back to the newest whole one of at most step
 * `step` (UINT64_MAX: the newest), and waits for at most `timeout_ms` until its workers have agreed
 * to. Whoever orders sees to it that there is one: without it the job ends with RF_ESTATELESS.
 * RF_ENOTFOUND, RF_EENDED; RF_ETIMEDOUT: the order stands, and no unit has ended since, or the job
 * keeps no checkpoints. */
RF_API RF_MUST_CHECK int rf_job_rollback(struct rf_store *store, const char *job, uint64_t step,
                                         int timeout_ms, struct rf_job_state *out,
                                         struct rf_error *err);

#ifdef __cplusplus
}
#endif
#endif
