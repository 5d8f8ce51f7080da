/* The built-in trainer over a runner: what include/ringfold/train.h promises, without a
 * communicator. The public entry point and tests call it; the comments of the public header hold.
 */
#ifndef RF_TRAIN_TRAIN_H
#define RF_TRAIN_TRAIN_H

#include "ckpt/saver.h"
#include "data/index.h"
#include "group/runner.h"

#include <ringfold/train.h>

enum { RF__TRAIN_BATCH = 128, RF__TRAIN_MICRO_BATCH = 64, RF__TRAIN_MAX_BATCH = 1 << 20 };
enum {
    RF__TRAIN_GPT_BATCH = 32,
    RF__TRAIN_MICRO_TOKENS = 2048,
    RF__TRAIN_GPT_WARMUP = 100,
    RF__TRAIN_MAX_CONTEXT = 1 << 15
};
enum { RF__TRAIN_HASH_EVERY = 100 }; /* steps; the default of elastic groups */

void rf__train_options_init(struct rf_train_options *options);

/* The options with every 0 that means "the default" replaced for a group of `size` (elastic: at
 * most so many); RF_EINVAL names the one that cannot be. */
int rf__train_options_resolve(const struct rf_train_options *options, int size,
                              struct rf_train_options *out, struct rf_error *err);

/* Whether the model's samples are windows of tokens. */
bool rf__train_takes_tokens(const struct rf_train_options *options);

/* What of the options a checkpoint's reader may want to know, as a JSON object; `vocabulary` is
 * that of the data, for models that take tokens. The folder of data is told as it is, and left out
 * where it is NULL or not UTF-8. */
enum { RF__TRAIN_CONFIG = 10240 };
void rf__train_config(const struct rf_train_options *options, uint32_t vocabulary,
                      char out[RF__TRAIN_CONFIG]);

/* The vocabulary of the options' data; 0 where the model does not take tokens or it cannot be read,
 * which rf__train tells of. */
uint32_t rf__train_vocabulary(const struct rf__data_io *io, const struct rf_train_options *options);

/* What a host has for so many of the job's workers, this one among them. */
struct rf__train_host {
    uint64_t available, total; /* bytes; UINT64_MAX: not known */
    int workers;               /* at least 1 */
};

/* Runner, files, host (NULL: nothing is known of it) and saver (NULL: no checkpoints) are borrowed
 * for the call. A member that fails by itself revokes the group, so that nobody waits for it. */
int rf__train(struct rf__runner *runner, const struct rf__data_io *io,
              const struct rf__train_host *host, struct rf__saver *saver,
              const struct rf_train_options *options, const struct rf_train_callbacks *callbacks,
              struct rf_train_result *result, struct rf_error *err);

#endif
