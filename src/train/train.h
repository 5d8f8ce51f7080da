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
enum { RF__TRAIN_HASH_EVERY = 100 }; /* steps; the default of elastic groups */

void rf__train_options_init(struct rf_train_options *options);

/* The options with every 0 that means "the default" replaced for a group of `size` (elastic: at
 * most so many); RF_EINVAL names the one that cannot be. */
int rf__train_options_resolve(const struct rf_train_options *options, int size,
                              struct rf_train_options *out, struct rf_error *err);

/* What of the options a checkpoint's reader may want to know, as a JSON object. */
enum { RF__TRAIN_CONFIG = 2048 };
void rf__train_config(const struct rf_train_options *options, char out[RF__TRAIN_CONFIG]);

/* Runner, files and saver (NULL: no checkpoints) are borrowed for the call. A member that fails by
 * itself revokes the group, so that nobody waits for it. */
int rf__train(struct rf__runner *runner, const struct rf__data_io *io, struct rf__saver *saver,
              const struct rf_train_options *options, const struct rf_train_callbacks *callbacks,
              struct rf_train_result *result, struct rf_error *err);

#endif
