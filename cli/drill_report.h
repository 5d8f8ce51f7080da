/* The result of a rehearsal: verdict, table, JSON. */
#ifndef RF_CLI_DRILL_REPORT_H
#define RF_CLI_DRILL_REPORT_H

#include "drill_session.h"

struct drill_result {
    const struct drill_options *options;
    const struct drill_session *session;
    double baseline; /* units per second without faults; 0: not known */
    struct drill_history history;
    struct drill_times all, by_kind[DRILL_KINDS];
    double participation, throughput, seconds;
    bool pass;
    char reason[320]; /* where it did not pass */
};

/* Works everything out. RF_ENOMEM. */
RF_MUST_CHECK int drill_result_make(struct drill_result *result,
                                    const struct drill_options *options,
                                    const struct drill_session *session, double baseline);

/* On the screen. */
void drill_result_print(const struct drill_result *result);

/* NULL without memory. */
json_t *drill_result_json(const struct drill_result *result);

#endif
