/* Data-parallel training: gradients averaged while the backward pass still runs, through failures.
 *
 *     rf_ddp_create, rf_ddp_register … for each parameter, rf_ddp_seal
 *     for each step:
 *         rf_ddp_begin(ddp, &step)
 *         while (rf_ddp_next_shard(ddp, &shard) > 0)   the member's part of the global batch
 *             rf_ddp_shard_samples(ddp, samples)
 *             forward; backward: add the sum over the shard's samples to rf_ddp_grad(ddp, i), then
 *             rf_ddp_ready(ddp, i)                     as soon as that gradient is written
 *             rf_ddp_shard_done(ddp, loss_sum)
 *         if (rf_ddp_commit(ddp, &report) == RF_RETRY) continue;
 *         update the parameters from rf_ddp_average(ddp, i)
 *
 * The global batch is cut into V shards whatever the number of members, so the batch does not
 * depend on it. Gradients are sums over samples; the average divides once by all samples used.
 * Averages are bit-identical on all members.
 *
 * A step is committed by all members of a generation or by none. In an elastic job the commit says
 * RF_RETRY where the step is not committed because the group changed: go back to rf_ddp_begin. It
 * gives the same step again, the gradients so far kept, and then only the shards of members that
 * were lost are handed out; or, on a worker that was out of the group for a while, a later step,
 * into whose state the worker is healed: parameters and registered state are overwritten with the
 * others' while they compute. So a step's number comes from `struct rf_step`, never from a counter
 * of the caller's.
 *
 * A unit is a training step or a measurement: a pass over test data that changes nothing, dealt,
 * retried and committed like a step (`rf_ddp_request_measure`). Measurements have no gradients.
 *
 * Failure: RF_EINVAL is wrong use and changes nothing. Any other error of a collective call or of
 * rf_ddp_ready is final for this worker; in a fixed group it ends the group, on all members, with
 * the first cause. Afterwards every call gives it again, until rf_ddp_destroy.
 *
 * Thread safety: one thread at a time, the same communicator must not be used meanwhile. */
#ifndef RINGFOLD_DDP_H
#define RINGFOLD_DDP_H

#include <ringfold/comm.h>
#include <ringfold/event.h>
#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

struct rf_ddp;

enum { RF_RETRY = 1 }; /* not committed: begin again */

struct rf_ddp_options {
    size_t first_bucket_bytes; /* 1 MiB: small, so that communication starts early. A bucket is
                                  closed by the tensor that fills it */
    size_t bucket_bytes;       /* 25 MiB, for the others */
    uint32_t shards;           /* V; 0: one for each member at the start */
    int no_overlap; /* start all communication in rf_ddp_commit, to measure what overlap gains */
    uint32_t
        hash_every; /* full hash of the registered state every K steps; 0: never but at the start */
    enum rf_algorithm algorithm;
    enum rf_wire wire; /* what gradients travel as; the same on all members. NONE: float32, the
                          default. Averages are bit-identical on all members in each. INT8 adds what
                          was lost in one step to the gradients of the next, so rf_ddp_grad shows
                          it once the parameter is ready */
};

struct rf_step {
    uint64_t step; /* the number of the step, from 0; of a measurement: steps committed before it */
    uint64_t generation;
    int rank, size;
    uint32_t shards; /* V */
    bool measure;    /* shards are of the test data, and nothing is updated after the commit */
    bool resumed;    /* begun before: shards that are done are not handed out again */
    bool healing;    /* this member takes no shard: it copies the state from the others */
};

/* One shard of the step's global batch. */
struct rf_shard {
    uint64_t step;
    uint32_t index, shards; /* shard `index` of V */
};

/* What all members know after a commit; equal on all but for the times, which are this member's
 * own. */
struct rf_step_report {
    uint64_t step, generation;
    uint64_t samples; /* used by all members */
    double loss;      /* mean over those samples */
    uint64_t
        digest; /* of the chain: previous digest, generation, step, members, averaged gradients */
    double compute_s; /* begin to commit: the caller's own time */
    double comm_s;    /* the step's buckets were under way, without waiting for others to begin */
    double hidden_s;  /* of that, the caller did not have to wait for */
    double exposed_s; /* the caller had to wait for averages and reports */
    double wait_s;    /* besides, for members that were still computing */
    double slowest_compute_s;
    int slowest_rank;
    int size; /* members that committed it */
    int stop; /* a member asked for it: all see this after the same step */
    bool measure;
    double tally;          /* sum of what the members told rf_ddp_tally */
    uint64_t skipped;      /* samples that could not be used */
    uint64_t state_digest; /* of parameters and state before this unit, equal on all; 0: not due */
    bool saved;            /* a checkpoint of the state before this unit is being written */
    bool save_late; /* one was asked for, and is not begun, as an earlier one is not written yet */
    uint32_t retries; /* how often this unit was begun again before */
    uint32_t redone;  /* shards that this member computed in place of members that were lost */
};

/* Where checkpoints go, and what to start from. Strings are copied. */
struct rf_checkpoint_options {
    const char *uri;    /* file:/dir, a path, s3://bucket/prefix or gs://bucket/prefix */
    const char *resume; /* NULL: begin anew, and where there are checkpoints of more than step 0
                           already refuse to (RF_EEXISTS); "auto": from the newest that is whole,
                           where there is one; a step's number; or another URI, to start from the
                           newest there while there is none in `uri` */
    int keep;           /* the newest so many are kept; 0: all */
    int rollback_on_divergence; /* where two groups trained on from one checkpoint: go back to the
                                   newest that both have, instead of RF_EDIVERGED */
    const char *config;         /* a JSON object that is kept in each; NULL: {} */
};

/* What became of checkpoints, on the thread of the caller, within rf_ddp_begin and
 * rf_ddp_finish_checkpoint. */
struct rf_checkpoint_news {
    enum rf_checkpoint_kind kind;
    uint64_t step, bytes;
    double seconds;
    bool rolled_back; /* RETURNED: the group had trained on, and went back */
    const char *name; /* of the checkpoint under its root; borrowed for the call, as `text` is */
    const char *text;
};
typedef void rf_ddp_told_fn(void *context, const struct rf_checkpoint_news *news);

/* Bytes held for one worker. */
struct rf_ddp_memory {
    size_t gradients, averaged;
    size_t compression; /* what travels, and what it has lost */
};

RF_API void rf_ddp_options_init(struct rf_ddp_options *options);

/* The communicator is borrowed until rf_ddp_destroy. */
RF_API RF_MUST_CHECK int rf_ddp_create(struct rf_comm *comm, const struct rf_ddp_options *options,
                                       struct rf_ddp **out, struct rf_error *err);

/* NULL is fine. Between begin and commit it revokes the group: the others would wait for this
 * member's part. */
RF_API void rf_ddp_destroy(struct rf_ddp *ddp);

/* A trained parameter of `count` float32 at `param`, borrowed until destroy. Its index is the
 * number of calls before: 0, 1, …; register in the order of the forward pass. `name` is copied. */
RF_API RF_MUST_CHECK int rf_ddp_register(struct rf_ddp *ddp, const char *name, float *param,
                                         size_t count, struct rf_error *err);

/* The parameter's shape, row-major, 1 to 4 dimensions, for whoever reads checkpoints; without it it
 * is a row. */
RF_API RF_MUST_CHECK int rf_ddp_shape(struct rf_ddp *ddp, int index, const size_t *shape, int dims,
                                      struct rf_error *err);

RF_API void rf_checkpoint_options_init(struct rf_checkpoint_options *options);

/* Before the seal, on all members alike: the job keeps checkpoints. The state is then that of the
 * checkpoint to resume from, once rf_ddp_seal (in an elastic group: the first rf_ddp_begin) has
 * returned, and struct rf_step says which step that is. It holds the parameters, the registered
 * state and nothing else: whatever a step needs besides must follow from its number.
 *
 * One of step 0 is taken where there is none. Others are taken when rf_ddp_request_checkpoint asks
 * for them: copied while the next unit computes, by a thread of the library, each member its part,
 * and written in the background; a storage that is slow or away costs checkpoints and never a step.
 * Where no member that is left holds the state, or they disagree and there is no majority, an
 * elastic group goes back to the newest. `told` may be NULL. One object of a communicator at a
 * time: what another one began to write ends with this call, and that one must be destroyed before.
 */
RF_API RF_MUST_CHECK int rf_ddp_checkpoint(struct rf_ddp *ddp,
                                           const struct rf_checkpoint_options *options,
                                           rf_ddp_told_fn *told, void *context,
                                           struct rf_error *err);

/* Further state that must stay equal (optimizer moments): hashed with the parameters, not averaged.
 * Borrowed. */
RF_API RF_MUST_CHECK int rf_ddp_register_state(struct rf_ddp *ddp, const char *name, void *state,
                                               size_t bytes, struct rf_error *err);

/* Allocates the buckets and checks that all members registered the same with the same options
 * (RF_EMISMATCH) and hold equal parameters and state: RF_EDIVERGED names who differs. Collective.
 */
RF_API RF_MUST_CHECK int rf_ddp_seal(struct rf_ddp *ddp, struct rf_error *err);

RF_API RF_MUST_CHECK int rf_ddp_begin(struct rf_ddp *ddp, struct rf_step *out,
                                      struct rf_error *err);

/* 1 and the next shard, or 0 when this member has done its part. */
RF_API RF_MUST_CHECK int rf_ddp_next_shard(struct rf_ddp *ddp, struct rf_shard *out);

/* Where to add parameter `index`'s gradient: zero at the begin of a step, valid until the commit;
 * it may lie elsewhere in the next step. NULL outside a step. */
RF_API float *rf_ddp_grad(struct rf_ddp *ddp, int index);

/* The same for who can write a gradient as well as add to it. *fresh: nothing was added in this
 * step yet, what is there is of no meaning, and every element must be written before the shard is
 * done; else add. It saves the zeroing of memory that is written over in any case. Told at most
 * once a step, retries included, and only within a shard; not where the library has zeroed it
 * itself. Who asks again, or rf_ddp_grad, finds what the first has left. Where NULL is returned,
 * *fresh is untouched. */
RF_API float *rf_ddp_grad_fresh(struct rf_ddp *ddp, int index, bool *fresh);

/* The gradient is complete for this shard; once for each parameter and shard. In the member's last
 * shard the bucket starts when all its gradients are, so nothing may be added to them any more; the
 * samples of that shard must be told before the first of these calls, with rf_ddp_shard_samples. A
 * parameter that is never called ready counts as ready at the commit. Does not block. */
RF_API RF_MUST_CHECK int rf_ddp_ready(struct rf_ddp *ddp, int index);

/* The samples whose gradients are in the shard, 0 where it was skipped; told once a shard. */
RF_API void rf_ddp_shard_samples(struct rf_ddp *ddp, uint64_t samples);

/* Samples of the shard that could not be used and are not among the above: they are counted in the
 * report, on all members. Between next_shard and shard_done. */
RF_API void rf_ddp_shard_skipped(struct rf_ddp *ddp, uint64_t samples);

/* The shard is done: the sum of its samples' losses, in the same call for the sake of the report.
 * RF_EINVAL where its samples were not told, or too late. */
RF_API RF_MUST_CHECK int rf_ddp_shard_done(struct rf_ddp *ddp, double loss_sum);

/* Waits for all members' gradients; all commit, or none does. 0: committed, and the averages are
 * valid until the next begin. RF_RETRY (elastic): not committed, begin again. */
RF_API RF_MUST_CHECK int rf_ddp_commit(struct rf_ddp *ddp, struct rf_step_report *report,
                                       struct rf_error *err);

/* This member's next step report asks all to stop after that unit. */
RF_API void rf_ddp_request_stop(struct rf_ddp *ddp);

/* The unit after this one is a measurement, if any member asks before its commit. */
RF_API void rf_ddp_request_measure(struct rf_ddp *ddp);

/* The state after this unit goes into a checkpoint, if any member asks before its commit; not where
 * a member still writes an earlier one (the report's `save_late`), unless this is to be the last:
 * `is_last`, as with rf_ddp_request_stop. There must be one more unit for it: a measurement at
 * least. */
RF_API void rf_ddp_request_checkpoint(struct rf_ddp *ddp, int is_last);

/* After the last unit: waits until this member's part of the checkpoint that was begun, and for who
 * leads all of it, is written. RF_ETIMEDOUT. What fails is told to `told`. */
RF_API RF_MUST_CHECK int rf_ddp_finish_checkpoint(struct rf_ddp *ddp, int timeout_ms,
                                                  struct rf_error *err);

/* Adds to the unit's tally, with the shard that is being worked on (the right answers, say). */
RF_API void rf_ddp_tally(struct rf_ddp *ddp, double value);

RF_API const float *rf_ddp_average(const struct rf_ddp *ddp, int index);

/* The hash of parameters and registered state, checked equal on all members. Collective, between
 * steps. */
RF_API RF_MUST_CHECK int rf_ddp_state_digest(struct rf_ddp *ddp, uint64_t *digest,
                                             struct rf_error *err);
RF_API void rf_ddp_memory(const struct rf_ddp *ddp, struct rf_ddp_memory *out);

/* Buckets in use, and the index of the bucket that parameter `index` is in. */
RF_API int rf_ddp_buckets(const struct rf_ddp *ddp);
RF_API int rf_ddp_bucket_of(const struct rf_ddp *ddp, int index);

#ifdef __cplusplus
}
#endif
#endif
