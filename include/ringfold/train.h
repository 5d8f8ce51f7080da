/* The built-in trainer: models, data, optimizer and loop over rf_ddp. Prints nothing: the caller is
 * told of each step.
 *
 * A sample of "mlp" and "cnn" is an image. One of "gpt" is a window of `context` tokens, each of
 * which but the last is to tell the one after it: its loss, and with it its weight in the average,
 * is that of `context` tokens, so losses and gradients are means over tokens.
 *
 * Samples whose data is damaged are left out of a step, and the average is over the others. Where
 * more than `max_bad` of an epoch's samples were left out so far, or of the test samples, all
 * workers end with RF_EDATA after the same step.
 *
 * Thread safety: one call at a time for a communicator; callbacks run on the caller's thread. */
#ifndef RINGFOLD_TRAIN_H
#define RINGFOLD_TRAIN_H

#include <ringfold/comm.h>
#include <ringfold/ddp.h>

#ifdef __cplusplus
extern "C" {
#endif

struct rf_train_options {
    const char *model; /* "mlp", "cnn" or "gpt". Borrowed, like all strings here, until rf_train
                          returns */
    const char *data;  /* folder with the IDX files of MNIST's names, .gz or not, or TFRecords; for
                          gpt one that `ringfold data tokens` made */
    const char *index_cache; /* folder for the indices of data whose own folder cannot be written;
                                NULL: such data is indexed anew in each run */
    const char *bad_reads;   /* for rehearsals: "NAME:BEGIN-END" of a file that cannot be read; or
                                NULL */
    double max_bad;          /* the largest share of an epoch's samples, 0 to 1, that may be skipped
                                because their data is damaged; 0: none. 0.01 */
    uint64_t seed;
    uint32_t epochs;      /* 0: only `steps` counts */
    uint64_t steps;       /* 0: only `epochs` counts */
    uint32_t batch;       /* global batch in samples; a multiple of shards; 0: 128, or for gpt 32,
                             rounded up to one */
    uint32_t shards;      /* V; 0: one a member */
    uint32_t micro_batch; /* samples of a shard that are computed at once: the more, the more memory
                             activations take; 0: 64, or for gpt those of 2048 tokens */
    const char *optimizer; /* "sgd" or "adamw" */
    double lr, momentum;   /* lr 0: 0.001 for adamw, 0.05 for sgd */
    double beta2;          /* of adamw; 0: 0.999, or for gpt 0.95 */
    double weight_decay;   /* decoupled, not for biases; -1: 0, or for gpt 0.1 */
    uint64_t warmup_steps; /* the rate rises to lr; then it follows a cosine to lr / 10.
                              RF_TRAIN_AUTO: 0, or for gpt 100, and at most a tenth of all */
    double clip;           /* global norm; 0: off; -1: off, or for gpt 1 */
    int hidden;            /* width of the mlp's hidden layers; 0: 256 */

    /* What is of gpt is RF_EINVAL where it is set for another model.
     *
     * The shape of gpt: blocks, numbers a position, heads (which divide the width), tokens that are
     * looked back at. 0: 6, 384, 6, 256. */
    int depth, width, heads, context;
    double dropout;        /* of gpt: share from 0 to below 1 */
    const char *compute;   /* of gpt: what matrix products take, "f32" or "bf16"; NULL: "f32" */
    const char *init;      /* of gpt: folder in the form of Hugging Face's GPT-2, of the same shape
                              (docs/GPT.md), whose weights are the first ones; NULL: by the seed */
    uint64_t eval_every;   /* measure after every so many steps, besides after each epoch; 0:
                              never. RF_TRAIN_AUTO: never, or for gpt 250 */
    uint32_t eval_samples; /* of the test data, evenly spread, that a measurement is of; 0: all.
                              RF_TRAIN_AUTO_SAMPLES: all, or for gpt 256 */
    size_t memory_bytes;   /* of gpt: that this worker may take; it is refused where it would take
                              more. 0: a fair share of what its host has available */
    struct rf_ddp_options ddp;
    struct rf_checkpoint_options checkpoint; /* uri NULL: none are kept; its `config` is the
                                                trainer's own */
    uint64_t checkpoint_steps;               /* one every so many steps; 0: by time */
    double checkpoint_s;                     /* 600 */
};

#define RF_TRAIN_AUTO         UINT64_MAX
#define RF_TRAIN_AUTO_SAMPLES UINT32_MAX

/* What one model needs, in bytes, on one worker. */
struct rf_train_memory {
    size_t parameters, gradients, averaged, optimizer, activations;
};

struct rf_train_start {
    int rank, size;
    uint32_t batch, shards;
    uint64_t parameters; /* count */
    uint64_t train_samples, test_samples;
    uint64_t steps, steps_per_epoch;
    const char *compute; /* what carries out the arithmetic, for people */
    struct rf_train_memory memory;
    uint32_t context, vocabulary; /* of gpt; else 0 */
    uint64_t measured;            /* test samples of a measurement */
};

struct rf_train_step {
    uint64_t step, steps; /* 1 … steps: the number of committed steps, and how many there will be */
    uint64_t epoch;       /* from 1 */
    double loss;          /* mean over the step's samples, or tokens, of all workers */
    double grad_norm, lr;
    double step_s, compute_s, data_s, comm_s, exposed_s, wait_s;
    uint64_t samples, digest;
    uint64_t skipped;     /* besides: samples whose data is damaged, of all workers */
    double samples_per_s; /* of all workers */
    uint32_t context;     /* tokens of a sample; 0: samples are no tokens */
    int slowest_rank;
    uint64_t generation;
    int size;         /* members that committed it */
    uint32_t retries; /* how often it was begun again before */
    uint32_t redone;  /* shards that this worker computed in place of workers that were lost */
};

/* A measurement: after an epoch, or after `eval_every` steps. */
struct rf_train_epoch {
    uint64_t epoch, step;
    double accuracy, test_loss;          /* each test sample counted once, over all workers; of
                                            gpt: of tokens */
    uint64_t test_samples, test_skipped; /* used, and left out because their data is damaged */
    double seconds;                      /* since the one before */
    uint32_t context;                    /* tokens of a sample; 0: samples are no tokens */
};

struct rf_train_result {
    uint64_t steps;                   /* committed by the group */
    uint64_t samples, skipped;        /* these and the times: as far as this worker took part */
    double accuracy, loss, test_loss; /* of the last epoch, or measured at the end */
    double seconds, samples_per_s;
    uint32_t context; /* tokens of a sample; 0: samples are no tokens */
    double compute_s, data_s, comm_s, exposed_s, wait_s, eval_s;
    double hidden_ratio;                  /* share of the communication that the computation hid */
    uint64_t digest;                      /* of parameters and optimizer state, equal on all */
    uint64_t digests[RF_MAX_LOCAL_RANKS]; /* as each of the first ranks reported it */
    struct rf_train_memory memory;
    uint64_t resumed_from; /* the step of the checkpoint that this worker started from; 0: none */
    bool stopped;          /* by `stop`, before its time */
    bool left;             /* this worker alone, by `leave`; the others go on */
    bool too_bad; /* also where rf_train fails with RF_EDATA: more data than max_bad is damaged, and
                     all end after the same step. Other failures leave the result as it was */
    bool late;    /* the job ended while this worker was out of the group: no result is here */
};

/* Samples that this worker was to work on, and left out: their bytes are in a block of a file that
 * is damaged. All is borrowed for the call. */
struct rf_train_bad {
    const char *file;
    uint64_t block, offset; /* the block's number, and where in the file it begins */
    const char *cause;      /* "mismatch: …", "short: …" or "unreadable: …" */
    const uint32_t *samples;
    uint32_t count;       /* of samples, at most RF_TRAIN_BAD_SAMPLES in one call */
    uint64_t step, epoch; /* from 1; of a measurement, the steps before it */
    bool measure;         /* samples are of the test data */
    int id, rank;         /* of this worker */
};

enum { RF_TRAIN_BAD_SAMPLES = 64 };

struct rf_train_callbacks {
    void (*start)(void *context, const struct rf_train_start *start);
    void (*step)(void *context, const struct rf_train_step *step);
    void (*epoch)(void *context, const struct rf_train_epoch *epoch);
    void (*checkpoint)(void *context, const struct rf_checkpoint_news *news);
    /* Each averaged gradient after the first step (gradient), each parameter at the end. Row-major,
     * `dims` <= 4. */
    void (*tensor)(void *context, bool gradient, const char *name, const float *data,
                   const size_t *shape, int dims);
    bool (*stop)(
        void *context); /* asked once a step; true on any member stops all after the same step */
    bool (*leave)(void *context); /* asked after each step; true: this worker leaves, and an elastic
                                     job goes on without it */
    void (*bad)(void *context, const struct rf_train_bad *bad);
    void *context;
};

RF_API void rf_train_options_init(struct rf_train_options *options);
RF_API RF_MUST_CHECK int rf_train(struct rf_comm *comm, const struct rf_train_options *options,
                                  const struct rf_train_callbacks *callbacks,
                                  struct rf_train_result *result, struct rf_error *err);

#ifdef __cplusplus
}
#endif
#endif
