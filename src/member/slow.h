/* Who is slow: each member's compute time per shard, and each link's rate, against the median, unit
 * by unit. Pure: no I/O, no clock; the memory is the caller's.
 *
 * Fed with the reports of the units that all members worked on in the plain way. A member is slow
 * from RF__SLOW_RATIO times the median on, for RF__SLOW_UNITS units in a row; that is told once,
 * until it has been faster again. At `evict` times, for `window` units in a row, it is to be put
 * out. Neither counts before the row has taken it RF__SLOW_LEAST_S: short units are late for
 * reasons that are nobody's (a scheduler, with more workers than cores). Where a link is slow
 * either of its ends may be the cause: the one is blamed that more slow links share, or else the
 * one that sends. */
#ifndef RF_MEMBER_SLOW_H
#define RF_MEMBER_SLOW_H

#include "member/step.h"

enum { RF__SLOW_RATIO = 2, RF__SLOW_UNITS = 2, RF__SLOW_WARM_UP = 3 };
#define RF__SLOW_LEAST_S 0.3

/* One member's record, by its id. */
struct rf__slow_record {
    int id;
    int seen;                      /* units, of warming up */
    int units[2], evict_units[2];  /* in a row; of its processor, of its link */
    double took[2], evict_took[2]; /* seconds, in these */
    bool told[2];
};

struct rf__slow {
    struct rf__slow_record *record; /* 2 x `capacity` of them */
    double *scratch;                /* `capacity` */
    int capacity, count;
    int evict, window; /* evict 0: never */
};

enum rf__slow_part { RF__SLOW_PROCESSOR, RF__SLOW_LINK };

/* What one unit has shown. */
struct rf__slow_news {
    int told; /* rank that is slow since now, or -1; `part` and `ratio` say how */
    enum rf__slow_part part;
    double ratio;
    int put_out; /* the id that is to be put out, or -1 */
};

/* Reports of `count` <= capacity members in rank order, and their ids. A member that was not in the
 * last unit starts anew. */
void rf__slow_observe(struct rf__slow *slow, const struct rf__step_report *reports, const int *ids,
                      int count, struct rf__slow_news *out);

#endif
