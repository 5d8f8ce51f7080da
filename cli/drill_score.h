/* What a rehearsal came to: the arithmetic of `ringfold drill`, apart from all processes and files.
 *
 * It is fed, in the order of their times, with what the workers and the launcher told
 * (docs/EVENTS.md) and with what was done to them, and keeps three books: of each worker (whether
 * it takes part), of each unit (who committed what), and of each fault (noticed, gone on after,
 * healed). Times are seconds of the wall clock, 0: not yet. */
#ifndef RF_CLI_DRILL_SCORE_H
#define RF_CLI_DRILL_SCORE_H

#include <ringfold/error.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* X(NAME, name) */
#define DRILL_KIND_LIST(X)                                                                         \
    X(KILL, kill)                                                                                  \
    X(FREEZE, freeze)                                                                              \
    X(SLOW, slow)                                                                                  \
    X(CUT, cut)                                                                                    \
    X(JOIN, join)                                                                                  \
    X(FLIP, flip)                                                                                  \
    X(STORE, store)                                                                                \
    X(CHECKPOINT, checkpoint)                                                                      \
    X(STORAGE, storage)

#define RF_X(NAME, name) DRILL_##NAME,
enum drill_kind { DRILL_KIND_LIST(RF_X) DRILL_KINDS };
#undef RF_X

enum {
    DRILL_MAX_IDS = 4096,     /* worker ids, joiners among them */
    DRILL_MAX_UNITS = 1 << 24 /* units of a rehearsal */
};

const char *drill_kind_name(enum drill_kind kind);

/* RF_EINVAL for an unknown name. `length` bytes of `name` are read. */
RF_MUST_CHECK int drill_kind_parse(const char *name, size_t length, enum drill_kind *out);

enum drill_event_kind {
    DRILL_EVENT_OTHER, /* of no interest here */
    DRILL_EVENT_FORM,
    DRILL_EVENT_REVOKE,
    DRILL_EVENT_COMMIT,
    DRILL_EVENT_HEAL,
    DRILL_EVENT_OUT,
    DRILL_EVENT_SLOW,
    DRILL_EVENT_DIVERGED,
    DRILL_EVENT_FLIP,   /* it was carried out */
    DRILL_EVENT_WORKER, /* a process was started: `id`, `pid` */
    DRILL_EVENT_EXIT    /* it ended: `id`, `pid`, `well` */
};

struct drill_event {
    enum drill_event_kind kind;
    double time;
    int id, peer, pid;
    bool well; /* ended with 0 or, stopped on request, with 75 */
    uint64_t generation, unit, step, digest;
    uint32_t retries, redone;
    int source; /* whose file it stood in: 0 the launcher's, else the joining launcher's number */
};

struct drill_worker {
    bool known, alive; /* alive: as far as the launcher told */
    bool own;          /* counts for participation: not a joiner */
    bool lost;         /* ended badly, before the rehearsal was ended; until started again */
    bool committed;    /* in this life of its process: the fields below are of its last commit */
    bool healed;       /* copied the state since then */
    int pid;
    int victim; /* number of faults that it suffers from */
    uint64_t unit, generation;
    double commit_time;
    double taking_part; /* seconds between commits that follow each other */
};

struct drill_unit {
    uint64_t digest;
    uint32_t commits;
    uint32_t retries; /* the most that a worker told */
    bool differs;     /* two workers committed it with different digests */
    bool carried;     /* by a worker that had the unit before it */
};

struct drill_fault {
    enum drill_kind kind;
    int id;       /* the victim, -1: none (the store), or a joiner whose id is not known yet */
    double from;  /* when it struck; of a joiner, when it was started */
    bool flipped; /* of a flipped bit: the victim has turned it over, at `from` */
    uint64_t generation;
    double over; /* started again, thawed, connected again, put right: it can come back from here */
    double detected, next_commit, back;
    double left; /* of a joiner: when it was asked or made to go; the others' times count from it */
    bool abrupt; /* it was made to */
    bool absent; /* of a joiner: it was out of the group before it went */
    uint64_t back_generation;
    bool done; /* nothing more to wait for */
};

struct drill_score {
    struct drill_worker workers[DRILL_MAX_IDS];
    struct drill_unit *units;
    size_t unit_room;
    uint64_t low, high; /* units committed, where any_commit */
    bool any_commit;
    uint64_t step;              /* training steps committed */
    uint64_t generation;        /* the newest told of */
    uint64_t commit_generation; /* the newest in which anything was committed */
    double first_commit, last_commit;
    uint64_t redone;
    uint64_t ignored; /* events with numbers that cannot be */
    double ending;    /* when the rehearsal began to end its workers; 0: not yet */
    struct drill_fault *faults;
    size_t fault_count, fault_room, first_open;
};

struct drill_series {
    size_t count;
    double median, p99; /* milliseconds, where count is not 0 */
};

struct drill_times {
    size_t faults;
    struct drill_series detect, next_commit, rejoin;
};

struct drill_history {
    uint64_t units;   /* from the first committed to the last */
    uint64_t differ;  /* units with two digests */
    uint64_t missing; /* units that nobody committed though a later one was */
    uint64_t beyond;  /* committed only by workers that were lost, after all that is left */
    uint64_t broken;  /* units that nobody went on from: the next was committed by others */
    uint64_t lost;    /* all of these */
    uint64_t retried;
};

void drill_score_init(struct drill_score *score);
void drill_score_free(struct drill_score *score);

/* Takes an event in. RF_ENOMEM. */
RF_MUST_CHECK int drill_score_event(struct drill_score *score, const struct drill_event *event);

/* A fault strikes; *out is its index. Of a joiner `id` is -1. RF_ENOMEM. */
RF_MUST_CHECK int drill_score_strike(struct drill_score *score, enum drill_kind kind, int id,
                                     double time, size_t *out);

/* The victim can come back from now on (thawed, connected, the store runs again). */
void drill_score_over(struct drill_score *score, size_t fault, double time);

/* The joiner has this id; it is asked to go now, or, where `abrupt`, killed. */
void drill_score_joined(struct drill_score *score, size_t fault, int id);
void drill_score_left(struct drill_score *score, size_t fault, double time, bool abrupt);

/* Runs, has committed in this life and in the newest generation, and suffers from nothing. */
bool drill_score_is_healthy(const struct drill_score *score, int id);

/* The ids of the healthy workers that are no joiners, in order; returns how many. */
int drill_score_healthy(const struct drill_score *score, int ids[DRILL_MAX_IDS]);

/* All workers that run are in the newest generation and have committed `unit` or a later one there;
 * otherwise *culprit is one that has not, or -1. */
bool drill_score_is_settled(const struct drill_score *score, uint64_t unit, int *culprit);

void drill_score_history(const struct drill_score *score, struct drill_history *out);

/* Of all faults of the kind; DRILL_KINDS: of all. RF_ENOMEM. */
RF_MUST_CHECK int drill_score_times(const struct drill_score *score, enum drill_kind kind,
                                    struct drill_times *out);

/* Share of the time of `workers` workers, from the first commit to the last, in which they took
 * part; 0 … 1. */
double drill_score_participation(const struct drill_score *score, int workers);

/* Units per second; 0 where there are fewer than two. */
double drill_score_throughput(const struct drill_score *score);

/* Sorts `values`; the median is the mean of the middle two where their count is even, the 99th
 * percentile the smallest value that 99 of 100 do not exceed. */
struct drill_series drill_series_of(double *values, size_t count);

#endif
