/* Inside the library: the communicator as the layers below see it. */
#ifndef RF_API_COMM_H
#define RF_API_COMM_H

#include "ckpt/saver.h"
#include "group/runner.h"
#include "os/memory.h"

#include <ringfold/ddp.h>

/* Borrowed; lives as long as the communicator. */
struct rf__runner *rf__comm_runner(struct rf_comm *comm);

/* The memory that is free for so many of the job's workers on this host: all that start together
 * with this one, before any of them took some; or what is left for this one alone. */
void rf__comm_memory(const struct rf_comm *comm, struct rf__memory *memory, int *workers);

/* Whether a communicator can be made from these; RF_EINVAL says what is wrong. In options.c. */
int rf__options_check(const struct rf_options *options, struct rf_error *err);

/* A saver for checkpoints, of the communicator's: until it is destroyed, or has another one. */
int rf__comm_saver(struct rf__runner *runner, const struct rf_checkpoint_options *options,
                   struct rf__saver **out, struct rf_error *err);

#endif
