/* Compressed sums by themselves: ddp/compress over a communicator's runner, with one run. */
#include <ringfold/wire.h>

#include "api/comm.h"
#include "base/mem.h"
#include "base/status.h"
#include "ddp/compress.h"

#include <string.h>

struct rf_wire_sum {
    struct rf__runner *runner;
    struct rf__compress *compress; /* NULL: float32 */
    size_t most, count;            /* at create; of the last call */
};

int rf_wire_sum_create(struct rf_comm *comm, enum rf_wire wire, size_t count,
                       struct rf_wire_sum **out, struct rf_error *err) {
    if (!comm || !out || count == 0 || (unsigned)wire >= RF_WIRE_COUNT) {
        return rf__fail(err, RF_EINVAL, 0,
                        "a sum needs a communicator, a wire type, and at least one value");
    }
    *out = NULL;
    struct rf__runner *runner = rf__comm_runner(comm);
    if (runner->elastic) {
        return rf__fail(err, RF_EUNSUPPORTED, 0, "an elastic group compresses in rf_ddp only");
    }
    struct rf_wire_sum *sum = rf__alloc(1, sizeof *sum);
    if (!sum) {
        return rf__fail(err, RF_ENOMEM, 0, "no memory for a sum of %zu values", count);
    }
    sum->runner = runner;
    sum->most = count;
    struct rf__compress_options options = {
        .wire = wire, .algorithm = RF_ALGORITHM_AUTO, .floats = count, .runs = 1};
    int rc =
        wire == RF_WIRE_NONE ? 0 : rf__compress_create(sum->runner, &options, &sum->compress, err);
    if (rc) {
        rf__free(sum);
        return rc;
    }
    *out = sum;
    return 0;
}

void rf_wire_sum_destroy(struct rf_wire_sum *sum) {
    if (sum) {
        rf__compress_destroy(sum->compress);
        rf__free(sum);
    }
}

static int run_plain(struct rf_wire_sum *sum, const float *send, float *recv, size_t count) {
    struct rf__op_params params = {.call = {.coll = RF_COLL_ALLREDUCE,
                                            .type = RF_F32,
                                            .redop = RF_SUM,
                                            .send = send,
                                            .recv = recv,
                                            .count = count}};
    struct rf__op *op = NULL;
    int rc = sum->runner->ops->start(sum->runner, &params, &op);

    return rc ? rc : sum->runner->ops->wait(sum->runner, op, -1, NULL);
}

int rf_wire_sum_run(struct rf_wire_sum *sum, const float *send, float *recv, size_t count) {
    struct rf__bucket run = {.tensors = 1, .count = count};
    int64_t busy = 0;

    if (!sum || count > sum->most || (count && (!send || !recv))) {
        return RF_EINVAL;
    }
    if (!sum->compress || count == 0) {
        return run_plain(sum, send, recv, count);
    }
    if (count != sum->count) { /* other values in the same places */
        rf__compress_forget(sum->compress);
        sum->count = count;
    }
    if (send != recv) {
        memcpy(recv, send, count * sizeof *recv);
    }
    rf__compress_unit(sum->compress);
    rf__compress_attempt(sum->compress, &run, 1, recv, recv, NULL);
    int rc = rf__compress_wait(sum->compress, 0, &busy);
    rf__compress_drain(sum->compress);
    return rc;
}
