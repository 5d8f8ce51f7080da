/* How the layers above the driver run operations and wait for them, without knowing about threads:
 * the public interface implements it over its engine, tests over something simpler. */
#ifndef RF_GROUP_RUNNER_H
#define RF_GROUP_RUNNER_H

#include <ringfold/comm.h>

struct rf__op; /* one operation in flight */

/* A collective as the library itself calls it. */
struct rf__op_params {
    struct rf_call call;

    /* Where not NULL: what the result of a SUM is divided by (as AVG by the size). Read when the
     * operation begins to run, that is after all operations started before it are complete.
     * Borrowed. */
    const double *divisor;
};

struct rf__runner;

struct rf__runner_ops {
    int (*start)(struct rf__runner *runner, const struct rf__op_params *params,
                 struct rf__op **out);

    /* 1 complete, 0 not yet, or the error. */
    int (*test)(struct rf__runner *runner, struct rf__op *op);

    /* 0 or the error, and the op is freed and its buffers are the caller's again; RF_ETIMEDOUT and
     * it lives on. Negative timeout: as long as the group is whole. Where `busy_ns` is not NULL and
     * the result 0: nanoseconds that the operation ran, from the first to the last of its work. */
    int (*wait)(struct rf__runner *runner, struct rf__op *op, int timeout_ms, int64_t *busy_ns);
    void (*error)(struct rf__runner *runner, struct rf_error *out);

    /* Revokes the group with this error, on all members. */
    void (*fail)(struct rf__runner *runner, const struct rf_error *error);

    /* Memory that collectives like best; zeroed, 64-byte aligned. */
    int (*alloc)(struct rf__runner *runner, size_t bytes, void **out, struct rf_error *err);
    void (*release)(struct rf__runner *runner, void *memory);
    int64_t (*now)(struct rf__runner *runner);
};

/* Implementations embed this first. */
struct rf__runner {
    const struct rf__runner_ops *ops;
    int rank, size;
    uint64_t generation;
};

#endif
