/* The public entry points of data-parallel training: those of ddp/, over a communicator's runner.
 */
#include "ddp/ddp.h"

#include "api/comm.h"
#include "base/status.h"

void rf_ddp_options_init(struct rf_ddp_options *options) {
    rf__ddp_options_init(options);
}

int rf_ddp_create(struct rf_comm *comm, const struct rf_ddp_options *options, struct rf_ddp **out,
                  struct rf_error *err) {
    if (!comm || !out) {
        return rf__fail(err, RF_EINVAL, 0, "data-parallel training needs a communicator");
    }
    *out = NULL;
    return rf__ddp_create(rf__comm_runner(comm), options, out, err);
}

void rf_ddp_destroy(struct rf_ddp *ddp) {
    rf__ddp_destroy(ddp);
}

int rf_ddp_register(struct rf_ddp *ddp, const char *name, float *param, size_t count,
                    struct rf_error *err) {
    return rf__ddp_register(ddp, name, param, count, err);
}

int rf_ddp_register_state(struct rf_ddp *ddp, const char *name, void *state, size_t bytes,
                          struct rf_error *err) {
    return rf__ddp_register_state(ddp, name, state, bytes, err);
}

int rf_ddp_seal(struct rf_ddp *ddp, struct rf_error *err) {
    return rf__ddp_seal(ddp, err);
}

int rf_ddp_begin(struct rf_ddp *ddp, struct rf_step *out, struct rf_error *err) {
    return rf__ddp_begin(ddp, out, err);
}

int rf_ddp_next_shard(struct rf_ddp *ddp, struct rf_shard *out) {
    return rf__ddp_next_shard(ddp, out);
}

float *rf_ddp_grad(struct rf_ddp *ddp, int index) {
    return rf__ddp_grad(ddp, index);
}

float *rf_ddp_grad_fresh(struct rf_ddp *ddp, int index, bool *fresh) {
    return rf__ddp_grad_fresh(ddp, index, fresh);
}

int rf_ddp_ready(struct rf_ddp *ddp, int index) {
    return rf__ddp_ready(ddp, index);
}

void rf_ddp_shard_samples(struct rf_ddp *ddp, uint64_t samples) {
    rf__ddp_shard_samples(ddp, samples);
}

void rf_ddp_shard_skipped(struct rf_ddp *ddp, uint64_t samples) {
    rf__ddp_shard_skipped(ddp, samples);
}

int rf_ddp_shard_done(struct rf_ddp *ddp, double loss_sum) {
    return rf__ddp_shard_done(ddp, loss_sum);
}

int rf_ddp_commit(struct rf_ddp *ddp, struct rf_step_report *report, struct rf_error *err) {
    return rf__ddp_commit(ddp, report, err);
}

void rf_ddp_request_stop(struct rf_ddp *ddp) {
    rf__ddp_request_stop(ddp);
}

void rf_ddp_request_measure(struct rf_ddp *ddp) {
    rf__ddp_request_measure(ddp);
}

void rf_ddp_tally(struct rf_ddp *ddp, double value) {
    rf__ddp_tally(ddp, value);
}

const float *rf_ddp_average(const struct rf_ddp *ddp, int index) {
    return rf__ddp_average(ddp, index);
}

int rf_ddp_state_digest(struct rf_ddp *ddp, uint64_t *digest, struct rf_error *err) {
    return rf__ddp_state_digest(ddp, digest, err);
}

void rf_ddp_memory(const struct rf_ddp *ddp, struct rf_ddp_memory *out) {
    rf__ddp_memory(ddp, out);
}

int rf_ddp_buckets(const struct rf_ddp *ddp) {
    return rf__ddp_buckets(ddp);
}

int rf_ddp_bucket_of(const struct rf_ddp *ddp, int index) {
    return rf__ddp_bucket_of(ddp, index);
}

int rf_ddp_shape(struct rf_ddp *ddp, int index, const size_t *shape, int dims,
                 struct rf_error *err) {
    return rf__ddp_shape(ddp, index, shape, dims, err);
}

int rf_ddp_checkpoint(struct rf_ddp *ddp, const struct rf_checkpoint_options *options,
                      rf_ddp_told_fn *told, void *context, struct rf_error *err) {
    struct rf__saver *saver;

    int code = rf__ddp_may_keep(ddp, err);
    if (code) {
        return code;
    }
    code = rf__comm_saver(rf__ddp_runner(ddp), options, &saver, err);
    if (code) {
        return code;
    }
    rf__ddp_keep(ddp, saver, told, context);
    return RF_OK;
}

void rf_ddp_request_checkpoint(struct rf_ddp *ddp, int is_last) {
    rf__ddp_request_checkpoint(ddp, is_last != 0);
}

int rf_ddp_finish_checkpoint(struct rf_ddp *ddp, int timeout_ms, struct rf_error *err) {
    return rf__ddp_finish_checkpoint(ddp, timeout_ms, err);
}
