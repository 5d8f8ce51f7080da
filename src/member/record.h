/* What membership writes into the store, as data and as bytes. Four kinds of value:
 *
 *     candidate    rf/JOB/m/ID          a worker that is here, leased by it
 *     report       rf/JOB/g/G/r/ID      what a member says when it leaves generation G: once, for
 *                                       good
 *     generation   rf/JOB/generation    the newest one, swapped in by compare-and-swap
 *     rollback     rf/JOB/rollback      an operator's order to go back to a checkpoint
 *
 * Decoding takes bytes from outside: every length is held against its limit, RF_EPROTO otherwise.
 */
#ifndef RF_MEMBER_RECORD_H
#define RF_MEMBER_RECORD_H

#include "member/progress.h"

#include <ringfold/limits.h>
#include <stddef.h>

enum {
    RF__MEMBER_SUSPECTS = 16,    /* told of in one report */
    RF__MEMBER_TEXT = 160,       /* bytes of a cause, with its end */
    RF__MEMBER_ENDPOINT = 2048,  /* bytes of an endpoint, with its end */
    RF__MEMBER_ID_MAX = 1000000, /* an id is below */
    RF__CANDIDATE_BYTES = RF__MEMBER_ENDPOINT + 64,
    RF__REPORT_BYTES = 128 + RF__MEMBER_SUSPECTS * 5 + RF__MEMBER_TEXT,
    RF__ROLLBACK_BYTES = 17,
    RF__GENERATION_BYTES = 160 + RF__MEMBER_TEXT + RF_MAX_RANKS * (13 + 5)
};

/* Why a member is held for lost, from weak to certain. */
enum rf__doubt {
    RF__DOUBT_GONE = 1,    /* its connection ended: it may have died */
    RF__DOUBT_SILENT,      /* nothing was heard of it for the detection time */
    RF__DOUBT_UNREACHABLE, /* no connection came about */
    RF__DOUBT_STUCK,       /* it says so of itself: its program stands still */
    RF__DOUBT_SLOW,        /* put out by all */
    RF__DOUBT_LEFT,        /* said goodbye */
    RF__DOUBT_END
};

const char *rf__doubt_text(enum rf__doubt doubt);

struct rf__candidate {
    int id;
    uint64_t nonce; /* of this start of the worker */
    uint32_t restarts;
    uint64_t config; /* what it trains; 0: it has not said yet */
    bool wants;      /* to be taken into the generation after number `seen`: so that the wish of one
                        that was taken in and then died does not count again */
    uint64_t seen;
    char endpoint[RF__MEMBER_ENDPOINT];
};

/* An operator's order to go back to a checkpoint, as rf/JOB/rollback has it. */
struct rf__rollback {
    uint64_t nonce; /* of this order; not 0 */
    uint64_t step;  /* or RF__NEWEST_STEP */
};

struct rf__suspect {
    int id;
    enum rf__doubt doubt;
};

struct rf__report {
    uint64_t generation;
    int id;
    uint64_t nonce;
    struct rf__progress progress;
    int suspect_count;
    struct rf__suspect suspects[RF__MEMBER_SUSPECTS];
    char cause[RF__MEMBER_TEXT];
};

struct rf__member_entry {
    int id;
    uint64_t nonce;
    bool healed;
};

struct rf__generation {
    uint64_t number; /* 0: there is none */
    bool ended;      /* the job is done: nobody is taken in any more */
    bool commit;     /* unit `units` - 1 is committed by who has it prepared and not committed */
    uint64_t units, chain;
    bool rolled_back; /* nobody holds anything: `units` is 0, and the members take the state from
                         the checkpoint of step `target` */
    uint64_t target;  /* or RF__NEWEST_STEP */
    uint64_t order;   /* the nonce of the newest order to roll back that was carried out; 0: none */
    char cause[RF__MEMBER_TEXT]; /* why the one before ended */
    int count;                   /* members, in rank order */
    struct rf__member_entry members[RF_MAX_RANKS];
    int dropped_count; /* of the generation before */
    struct rf__suspect dropped[RF_MAX_RANKS];
};

/* Bytes written; 0 where they do not fit. */
size_t rf__candidate_encode(const struct rf__candidate *candidate, unsigned char *out, size_t room);
int rf__candidate_decode(const void *bytes, size_t length, struct rf__candidate *out);
size_t rf__report_encode(const struct rf__report *report, unsigned char *out, size_t room);
int rf__report_decode(const void *bytes, size_t length, struct rf__report *out);
size_t rf__generation_encode(const struct rf__generation *generation, unsigned char *out,
                             size_t room);
int rf__generation_decode(const void *bytes, size_t length, struct rf__generation *out);

size_t rf__rollback_encode(const struct rf__rollback *rollback, unsigned char *out, size_t room);
int rf__rollback_decode(const void *bytes, size_t length, struct rf__rollback *out);

/* The member's rank in the generation, or -1. `nonce` 0: of any start. */
int rf__generation_find(const struct rf__generation *generation, int id, uint64_t nonce);

#endif
