/* The trainer's public entry: the communicator's runner, the data's folder and the checkpoints'
 * storage, wired to src/train. */
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
    struct rf_checkpoint_options checkpoint = options->checkpoint;
    char config[RF__TRAIN_CONFIG];
    struct rf__saver *saver = NULL;
    struct rf__data_files files = {0};
    struct rf_error local;

    err = err ? err : &local;
    int code = rf__data_files_open(&files, options->data ? options->data : "", options->index_cache,
                                   options->bad_reads, err);
    if (!code && checkpoint.uri) {
        struct rf_train_options resolved = *options; /* where it cannot be, rf__train says so */
        (void)rf__train_options_resolve(options, runner->elastic ? runner->max_size : runner->size,
                                        &resolved, NULL);
        resolved.data = files.io.root; /* from wherever it is looked for; NULL: it is not there */
        rf__train_config(&resolved, rf__train_vocabulary(&files.io, options), config);
        checkpoint.config = config;
        code = rf__comm_saver(runner, &checkpoint, &saver, err);
    }
    if (code) { /* nobody shall wait for this worker */
        struct rf_error told = *err;
        told.rank = runner->rank;
        runner->ops->fail(runner, &told);
        goto out;
    }
    struct rf__memory memory;
    int workers;
    rf__comm_memory(comm, &memory, &workers);
    const struct rf__train_host host = {
        .available = memory.available, .total = memory.total, .workers = workers};
    code = rf__train(runner, &files.io, &host, saver, options, callbacks, result, err);

out:
    rf__data_files_close(&files);
    return code;
}
