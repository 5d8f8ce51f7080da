/* The settings of `ringfold drill`. */
#ifndef RF_CLI_DRILL_OPTIONS_H
#define RF_CLI_DRILL_OPTIONS_H

#include "drill_score.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct drill_options {
    int workers;     /* at the start */
    int least, most; /* as --workers MIN:MAX of `ringfold run` */
    bool range_given;
    int limit_ms;     /* of the time in which faults strike; 0: none */
    int faults_total; /* 0: no limit */
    enum drill_kind kinds[DRILL_KINDS];
    int kind_count;
    int mtbf_ms, detect_ms, start_timeout_ms, settle_ms;
    uint64_t seed;
    const char *replay;         /* or NULL */
    double baseline;            /* share of the time; 0: none */
    double baseline_throughput; /* units per second; 0: not known */
    const char *json, *run_dir; /* or NULL */
    FILE *screen;               /* stdout, unless the JSON goes there */
    const char *launcher;       /* what is started in place of `ringfold run`, for tests; or NULL */
    char **command;             /* borrowed from argv, ends with NULL */
};

/* Reads argv; 0, or an exit status once the error was reported. --help ends the process. */
int drill_options_read(struct drill_options *options, int argc, char **argv);

/* Whether faults of this kind are asked for. */
bool drill_options_has(const struct drill_options *options, enum drill_kind kind);

/* Once all kinds of faults are known: makes room for a joiner where no range was given, and holds
 * the workers against the kinds. 0, or RF_EUSAGE with the reason. */
RF_MUST_CHECK int drill_options_settle(struct drill_options *options, struct rf_error *err);

#endif
