/* What a worker tells of damaged data: bad_batches.jsonl in the run folder, to which every worker
 * appends, and a line on stderr for each block that nobody has told of yet. */
#ifndef RF_CLI_TRAIN_BAD_H
#define RF_CLI_TRAIN_BAD_H

#include <ringfold/train.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TRAIN_BAD_FILE "bad_batches.jsonl"

enum { TRAIN_BAD_TOLD = 256 };

struct train_bad_log {
    uint64_t told[TRAIN_BAD_TOLD]; /* blocks, as digests of file and offset */
    int count;
    bool full_told;   /* that there are more of them */
    bool failed_told; /* that the file cannot be written */
};

/* `folder` NULL: it is not known here, and only stderr is told. */
void bad_log_take(struct train_bad_log *log, const char *folder, const struct rf_train_bad *bad);

/* The first block that a worker told of in the folder, as text for a report; false where there is
 * none. */
bool bad_log_first(const char *folder, char *out, size_t bytes);

#endif
