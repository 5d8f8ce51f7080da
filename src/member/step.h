/* The agreement at the end of a step: each member says what it did, everyone has all reports,
 * everyone takes the same decision. Pure: no I/O, no clock, no allocation. */
#ifndef RF_MEMBER_STEP_H
#define RF_MEMBER_STEP_H

#include <ringfold/error.h>
#include <ringfold/limits.h>
#include <stdbool.h>
#include <stdint.h>

enum { RF__STEP_REPORT_BYTES = 96 };

/* What one member reports. Encoded little-endian, fixed size; the layout is in docs/WIRE.md. */
struct rf__step_report {
    uint64_t generation, step;
    bool prepared;    /* holds all averaged gradients of this step */
    bool stop;        /* wishes to stop after this step */
    uint64_t samples; /* used */
    uint64_t skipped;
    uint64_t digest;       /* the chain after this step */
    uint64_t state_digest; /* full hash of parameters and state, 0 where this step has none */
    double loss_sum;
    double compute_s, comm_s;
};

void rf__step_report_encode(const struct rf__step_report *report,
                            unsigned char bytes[RF__STEP_REPORT_BYTES]);

/* RF_EPROTO where a field is out of range. */
int rf__step_report_decode(const unsigned char bytes[RF__STEP_REPORT_BYTES],
                           struct rf__step_report *out);

struct rf__step_decision {
    bool commit;
    bool stop;
    uint64_t samples, skipped;
    double loss_sum;
    double slowest_compute_s;
    int slowest_rank;
};

/* Decides from all members' reports, in rank order. RF_EDIVERGED (see rf__step_compare) where
 * digests differ and all are prepared; RF_EPROTO where generation or step differ. Sums are formed
 * in rank order, so the result is the same on all. */
int rf__step_decide(const struct rf__step_report *reports, int count, struct rf__step_decision *out,
                    struct rf_error *err);

/* Holds one digest of each rank against the others': 0 where all are equal, else `code` and a line
 * that lists the ranks, "rank 3 of 8 holds another WHAT WHEN: digest 0x… against 0x… on the 7
 * others". err->rank is the odd one out, or the first of the minority, or -1 where there is no
 * majority: then nobody can say who is wrong. 1 <= count <= RF_MAX_RANKS. */
int rf__step_compare(const uint64_t *digests, int count, int code, const char *what,
                     const char *when, struct rf_error *err);

#endif
