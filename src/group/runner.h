/* How the layers above the driver run operations and wait for them, without knowing about threads:
 * the public interface implements it over its engine, tests over something simpler. */
#ifndef RF_GROUP_RUNNER_H
#define RF_GROUP_RUNNER_H

#include "member/progress.h"

#include <ringfold/comm.h>
#include <ringfold/event.h>

struct rf__op; /* one operation in flight */

/* A collective as the library itself calls it. */
struct rf__op_params {
    struct rf_call call;

    /* Where not NULL: what the result of a SUM is divided by (as AVG by the size). Read when the
     * operation begins to run, that is after all operations started before it are complete.
     * Borrowed. */
    const double *divisor;
};

/* A generation, as this worker takes part in it. Arrays are by rank, borrowed until the next
 * reform. */
struct rf__membership {
    uint64_t generation;
    int rank, size;
    bool ended;       /* the job is over: this worker is by itself, to commit its last unit */
    bool rolled_back; /* nobody holds the state, whatever `healed` says: all take that of the
                         checkpoint of step `target`, or the newest (RF__NEWEST_STEP) */
    uint64_t target;
    uint64_t units; /* committed by the group: the next unit has this number */
    uint64_t chain; /* the digest after them */
    bool commit;    /* unit `units` - 1 was decided while the group re-formed: a member that has it
                       prepared and not committed commits it now, from what it holds */
    const int *ids;
    const bool *healed; /* false: copies the state from those that are; the own entry may be false
                           although this worker thinks otherwise: then its work is void */
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

    /* The rest is for elastic groups (`elastic`), and NULL in others. There `fail` ends the
     * generation, not the group. */

    /* Before this worker takes part: what it trains, as a digest that must be equal on all; whether
     * the state can be had from checkpoints. Not blocking: a worker outside of the group is taken
     * in later. */
    void (*enter)(struct rf__runner *runner, uint64_t config, bool may_roll_back);

    /* Says what this member has done. RF_EREVOKED, and nothing is said, where the runner's
     * generation is over: what became of the unit is then in the next membership. */
    int (*note)(struct rf__runner *runner, const struct rf__progress *progress);

    /* Waits until a generation later than the runner's runs with this worker in it, and takes it
     * over: rank, size and generation of the runner change. At once, with the present one, where
     * that runs still. Or the error that ends it for this worker. Operations of the generation
     * before must have been waited for. */
    int (*reform)(struct rf__runner *runner, struct rf__membership *out, struct rf_error *err);

    /* Whether the runner's generation is over. Never blocks: one atomic load. */
    bool (*is_over)(struct rf__runner *runner);

    /* Whether the group should re-form at the end of the unit: a worker waits to be taken in. */
    bool (*is_awaited)(struct rf__runner *runner);

    /* Ends the runner's generation at the end of a unit, as planned by all: `out` are ids to leave
     * out, with the reason. */
    void (*regroup)(struct rf__runner *runner, const int *out, int out_count, const char *reason);

    /* The bytes of payload and the nanoseconds that large frames took to arrive over the slowest
     * incoming link since the last call, and whose it is: a rank, or -1 where nothing is known. */
    int (*slowest_link)(struct rf__runner *runner, double *bytes_per_s);

    /* Whether a rehearsed bit flip is due (once). */
    bool (*flip_is_due)(struct rf__runner *runner);

    /* One thing that happened, for whoever watches the job: id, rank and generation are filled in.
     */
    void (*tell)(struct rf__runner *runner, const struct rf_event *event);

    /* The caller's thread has moved: called whenever it enters the layers above. */
    void (*alive)(struct rf__runner *runner);

    /* Until it is called again the caller's thread may stand still for as long as it likes: it
     * waits for a storage, say. */
    void (*rest)(struct rf__runner *runner);
};

/* Implementations embed this first. */
struct rf__runner {
    const struct rf__runner_ops *ops;
    int rank, size; /* -1 and 0: outside of the group */
    uint64_t generation;
    bool elastic;
    int id;
    int min_size;                /* nobody is put out where fewer would be left */
    int max_size;                /* the largest size that it may come to have */
    int slow_evict, slow_window; /* as in rf_options */
};

#endif
