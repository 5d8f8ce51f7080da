/* The trainer's public entry: the communicator's runner, the file system and the checkpoints' storage,
 * wired to src/train. */
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
    struct rf_checkpoint_options checkpoint = options->checkpoint;
    char config[RF__TRAIN_CONFIG];
    struct rf__saver *saver = NULL;

    if (checkpoint.uri) {
        rf__train_config(options, config);
        checkpoint.config = config;
        int code = rf__comm_saver(rf__comm_runner(comm), &checkpoint, &saver, err);
        if (code) {
            return code;
        }
    }
    return rf__train(rf__comm_runner(comm), &rf__file_blobs, saver, options, callbacks, result,
                     err);
}
