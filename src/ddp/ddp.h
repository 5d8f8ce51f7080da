/* Data-parallel training over a runner: what include/ringfold/ddp.h promises, without a
 * communicator. The trainer and the public entry points call these; tests run them over a runner of
 * their own. The comments of the public header hold.
 *
 * One difference: creation takes a runner, borrowed until destroy. */
#ifndef RF_DDP_DDP_H
#define RF_DDP_DDP_H

#include "ckpt/saver.h"
#include "group/runner.h"

#include <ringfold/ddp.h>

void rf__ddp_options_init(struct rf_ddp_options *options);
int rf__ddp_create(struct rf__runner *runner, const struct rf_ddp_options *options,
                   struct rf_ddp **out, struct rf_error *err);

/* Operations of this object that are still in flight are waited for: they write into its memory. A
 * step that was begun and not committed would leave the other members waiting for this one's part,
 * so then the group is revoked first. */
void rf__ddp_destroy(struct rf_ddp *ddp);

int rf__ddp_register(struct rf_ddp *ddp, const char *name, float *param, size_t count,
                     struct rf_error *err);
int rf__ddp_register_state(struct rf_ddp *ddp, const char *name, void *state, size_t bytes,
                           struct rf_error *err);
int rf__ddp_shape(struct rf_ddp *ddp, int index, const size_t *shape, int dims,
                  struct rf_error *err);

/* RF_EINVAL after the seal, or where it keeps checkpoints already. */
int rf__ddp_may_keep(const struct rf_ddp *ddp, struct rf_error *err);
struct rf__runner *rf__ddp_runner(const struct rf_ddp *ddp);

/* Before the seal. The saver is borrowed until destroy. */
void rf__ddp_keep(struct rf_ddp *ddp, struct rf__saver *saver, rf_ddp_told_fn *told, void *context);

/* Before the seal: the digest of what else must be the same on all members, as it decides what
 * gradients are of. A member with another one is not computed with. */
void rf__ddp_also(struct rf_ddp *ddp, uint64_t digest);
int rf__ddp_seal(struct rf_ddp *ddp, struct rf_error *err);

int rf__ddp_begin(struct rf_ddp *ddp, struct rf_step *out, struct rf_error *err);
int rf__ddp_next_shard(struct rf_ddp *ddp, struct rf_shard *out);
float *rf__ddp_grad(struct rf_ddp *ddp, int index);
float *rf__ddp_grad_fresh(struct rf_ddp *ddp, int index, bool *fresh);
int rf__ddp_ready(struct rf_ddp *ddp, int index);
void rf__ddp_shard_samples(struct rf_ddp *ddp, uint64_t samples);
void rf__ddp_shard_skipped(struct rf_ddp *ddp, uint64_t samples);
int rf__ddp_shard_done(struct rf_ddp *ddp, double loss_sum);

/* Besides: where the job has ended meanwhile (RF_EENDED), the report of a member that was prepared
 * says what it held of the unit; of any other it is untouched. */
int rf__ddp_commit(struct rf_ddp *ddp, struct rf_step_report *report, struct rf_error *err);
void rf__ddp_request_stop(struct rf_ddp *ddp);
void rf__ddp_request_measure(struct rf_ddp *ddp);
void rf__ddp_request_checkpoint(struct rf_ddp *ddp, bool is_last);
int rf__ddp_finish_checkpoint(struct rf_ddp *ddp, int timeout_ms, struct rf_error *err);
void rf__ddp_tally(struct rf_ddp *ddp, double value);
const float *rf__ddp_average(const struct rf_ddp *ddp, int index);
int rf__ddp_state_digest(struct rf_ddp *ddp, uint64_t *digest, struct rf_error *err);

/* What each member reported in the last unit that was committed as the hash of its state, 0 where
 * none was due: the first `room` of them, by rank. Returns how many there are; 0 where the unit was
 * committed while the group re-formed, without reports. */
int rf__ddp_state_digests(const struct rf_ddp *ddp, uint64_t *digests, int room);

void rf__ddp_memory(const struct rf_ddp *ddp, struct rf_ddp_memory *out);
int rf__ddp_buckets(const struct rf_ddp *ddp);
int rf__ddp_bucket_of(const struct rf_ddp *ddp, int index);

#endif
