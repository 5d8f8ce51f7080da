/* What the files of the trainer share.
 *
 *     train.c   a step, a measurement, the run
 *     shard.c   one shard of each kind, and what of it cannot be used
 *     setup.c   data, model and group made ready, and agreed on */
#ifndef RF_TRAIN_INNER_H
#define RF_TRAIN_INNER_H

#include "data/dataset.h"
#include "data/sampler.h"
#include "ddp/ddp.h"
#include "nn/nn.h"
#include "train/train.h"

struct trainer {
    struct rf__runner *runner;
    struct rf_train_options options; /* resolved */
    struct rf_train_callbacks callbacks;
    struct rf__dataset data;
    struct rf__sampler *sampler;
    struct rf__model *model;
    struct rf__optimizer *optimizer;
    struct rf_ddp *ddp;
    int tensors;
    uint64_t steps_per_epoch, steps;

    /* One micro-batch: images with their labels, or windows of tokens with their numbers. */
    uint32_t micro;
    float *inputs;
    int32_t *labels;
    uint32_t *tokens;
    uint64_t *numbers;
    uint32_t weight; /* of a sample */

    uint32_t *measured; /* the test samples that a measurement is of */
    uint32_t measured_count;

    /* One shard, and what of it cannot be used. */
    uint32_t *usable;
    uint64_t epoch_skipped; /* by all, in the epoch's steps so far: the same on all members */
    struct rf_error bad;    /* the first bad block that this worker met; code 0: none */

    /* The epoch as far as this worker saw it: for its mean loss. */
    double epoch_loss_sum;
    uint64_t epoch_samples;
    int64_t epoch_began;
    double hidden_s; /* of the communication so far, what nobody waited for */
    bool started;    /* the caller has been told of the start */

    struct rf__saver *saver; /* NULL: no checkpoints */
    int64_t saved_at;        /* when the last one was begun */
    bool save_missed;        /* one was due and is not begun yet */
    struct rf_error parted;  /* another group trains on from the same past */

    /* Why the first weights could not be had; code 0: they are here, or a checkpoint or another
     * member gave the state. */
    struct rf_error init_missing;

    struct rf_train_result result;
};

/* The parts of one step that the report does not tell, in nanoseconds. */
struct step_times {
    int64_t data, update, all;
};

static inline int64_t rf__train_now(const struct trainer *t) {
    return t->runner->ops->now(t->runner);
}

static inline double rf__train_seconds(int64_t ns) {
    return (double)ns * 1e-9;
}

/* shard.c. Forward and backward over the samples of a shard, then it is done; a measurement's goes
 * forward only. */
int rf__train_shard_run(struct trainer *t, const struct rf_shard *shard, struct step_times *times,
                        struct rf_error *err);
int rf__train_test_shard_run(struct trainer *t, const struct rf_shard *shard, struct rf_error *err);
/* The unit is committed: what is known of the epoch after it. */
void rf__train_skipped_count(struct trainer *t, const struct rf_step_report *report);
/* An error where more than the largest share of `all` samples was skipped, which every member finds
 * alike. It ends the run on all: in a fixed group the first that has met a bad block tells of it.
 */
int rf__train_check_skipped(struct trainer *t, const char *what, uint64_t skipped, uint64_t all,
                            uint64_t step, struct rf_error *err);

/* train.c: what the saver's news are told to. */
void rf__train_checkpoint_told(void *context, const struct rf_checkpoint_news *news);

/* setup.c, in the order of their use. */
int rf__train_data_setup(struct trainer *t, const struct rf__data_io *io, struct rf_error *err);
struct rf__model_options rf__train_model_options_of(const struct trainer *t);
int rf__train_model_setup(struct trainer *t, const struct rf__data_io *io, struct rf_error *err);
int rf__train_ddp_setup(struct trainer *t, struct rf_error *err);
/* In a fixed group what can fail on one member alone before any work is shared is agreed on here:
 * where several failed, as all do for a misspelt name, the first of them speaks for all, and the
 * others learn its reason. `code` and `err` are the member's own. */
int rf__train_agree(struct trainer *t, int code, struct rf_error *err);

#endif
