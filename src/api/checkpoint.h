/* Inside the library: where a job's checkpoints go, as its options say. */
#ifndef RF_API_CHECKPOINT_H
#define RF_API_CHECKPOINT_H

#include "ckpt/saver.h"

#include <ringfold/comm.h>
#include <ringfold/ddp.h>

struct rf__faulty_blobs;

/* Opens the storage and makes a saver over it, which belongs to the communicator: until that is
 * destroyed, or has another one. `job` names the job in manifests. Where `faulty` is not NULL,
 * *faulty is what rehearsed failures of the storage are told to. */
int rf__checkpoint_saver(const struct rf_checkpoint_options *options, const char *job,
                         struct rf__faulty_blobs **faulty, struct rf__saver **out,
                         struct rf_error *err);

#endif
