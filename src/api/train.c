/* The trainer's public entry: the communicator's runner and the data's
 * folder, wired to src/train. */
#include "train/train.h"
#include "api/comm.h"
#include "api/data.h"

#include <ringfold/train.h>

void rf_train_options_init(struct rf_train_options *options) {
    rf__train_options_init(options);
}

int rf_train(struct rf_comm *comm, const struct rf_train_options *options,
             const struct rf_train_callbacks *callbacks, struct rf_train_result *result,
             struct rf_error *err) {
    struct rf__runner *runner = rf__comm_runner(comm);
    struct rf__data_files files = {0};
    struct rf_error local;

    err = err ? err : &local;
    int code = rf__data_files_open(&files, options->data ? options->data : "", options->index_cache,
                                   options->bad_reads, err);
    if (code) { /* nobody shall wait for this worker */
        struct rf_error told = *err;
        told.rank = runner->rank;
        runner->ops->fail(runner, &told);
        return code;
    }
    code = rf__train(runner, &files.io, options, callbacks, result, err);
    rf__data_files_close(&files);
    return code;
}
