/* The trainer's public entry: the communicator's runner and the file system, wired to src/train. */
#include "train/train.h"
#include "api/comm.h"
#include "os/file.h"

#include <ringfold/train.h>

void rf_train_options_init(struct rf_train_options *options) {
    rf__train_options_init(options);
}

int rf_train(struct rf_comm *comm, const struct rf_train_options *options,
             const struct rf_train_callbacks *callbacks, struct rf_train_result *result,
             struct rf_error *err) {
    return rf__train(rf__comm_runner(comm), &rf__file_blobs, options, callbacks, result, err);
}
