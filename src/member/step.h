/* The agreement at the end of a step: each member says what it did, everyone has all reports,
 * everyone takes the same decision. Pure: no I/O, no clock, no allocation. */
#ifndef RF_MEMBER_STEP_H
#define RF_MEMBER_STEP_H

#include <ringfold/error.h>
#include <ringfold/limits.h>
#include <stdbool.h>
#include <stdint.h>

enum { RF__STEP_REPORT_BYTES = 144 };

/* What one member reports of a unit: a training step or a measurement. Encoded little-endian, fixed
 * size; the layout is in docs/WIRE.md. */
struct rf__step_report {
    uint64_t generation, unit;
    uint64_t step;    /* training steps committed before */
    bool measure;     /* the unit is a measurement */
    bool prepared;    /* holds everything that the unit's commit needs */
    bool stop;        /* wishes to stop after this unit */
    bool healed;      /* held the state when the unit began */
    uint64_t samples; /* used */
    uint64_t skipped;
    uint64_t digest;       /* the chain after this unit */
    uint64_t state_digest; /* full hash of parameters and state, 0 where this unit has none */
    uint64_t config;       /* hash of what must be the same on all */
    double loss_sum;
    double compute_s, comm_s;
    uint32_t shards;     /* computed by this member in this unit */
    double link_bytes_s; /* of its slowest incoming link, and whose that is: -1 if unknown */
    int link_peer;
    int put_out; /* the rank that this member would put out for being slow, or -1 */
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
    int common; /* a rank whose digests are the common ones */
};

/* Decides from all members' reports, in rank order. RF_EDIVERGED (see rf__step_compare) where
 * digests differ and all are prepared; RF_EPROTO where generation, unit or configuration differ.
 * Sums are formed in rank order, so the result is the same on all.
 *
 * Where `agrees` is not NULL a majority of those that report to be healed speaks for the group:
 * agrees[rank] says who holds the same as it, and only without a majority it is RF_EDIVERGED. */
int rf__step_decide(const struct rf__step_report *reports, int count, bool *agrees,
                    struct rf__step_decision *out, struct rf_error *err);

/* Holds one digest of each rank against the others': 0 where all are equal, else `code` and a line
 * that lists the ranks, "rank 3 of 8 holds another WHAT WHEN: digest 0x… against 0x… on the 7
 * others". err->rank is the odd one out, or the first of the minority, or -1 where there is no
 * majority: then nobody can say who is wrong. 1 <= count <= RF_MAX_RANKS. */
int rf__step_compare(const uint64_t *digests, int count, int code, const char *what,
                     const char *when, struct rf_error *err);

#endif
