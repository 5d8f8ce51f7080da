/* Whether what a worker will take fits into its share of its host's memory, before it is taken. */
#ifndef RF_TRAIN_MEMORY_H
#define RF_TRAIN_MEMORY_H

#include "nn/nn.h"
#include "train/train.h"

/* `options` are resolved; `host` NULL: nothing is known of it. RF_ENOMEM says how much it would
 * take, of how much. Models of which it is not known beforehand are let through. */
int rf__train_memory_check(const struct rf_train_options *options,
                           const struct rf__model_options *model, const struct rf__train_host *host,
                           struct rf_error *err);

#endif
