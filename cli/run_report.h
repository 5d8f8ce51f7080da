/* The one report at the end of a run that failed: on the screen, in events.jsonl and in error.json.
 */
#ifndef RF_CLI_RUN_REPORT_H
#define RF_CLI_RUN_REPORT_H

#include "run_folder.h"
#include "run_memory.h"
#include "run_worker.h"

struct run_report {
    const struct run_options *options;
    struct run_folder *folder;
    const struct run_worker *workers;
    struct run_memory memory_before;
    bool left_below_min; /* the job ended for want of workers: `left` were left */
    int left;
};

/* The worker that failed first in causal order: a local fault before a peer's view of it. NULL
 * where all ended well, or only because the launcher told them to. */
const struct run_worker *run_report_culprit(const struct run_report *report);

/* Tells about the culprit; what merely followed from it is counted. */
void run_report_worker(const struct run_report *report, const struct run_worker *culprit);

/* Tells about a failure of the launcher's own. */
void run_report_launcher(const struct run_report *report, const struct rf_error *err);

#endif
