/* The driver: one worker's part in a group. It runs forming, collectives and messages over a net
 * and a store, owns no thread and never waits: whoever owns it calls rf__group_step again and again
 * (the engine in production, the simulator in tests).
 *
 * Collectives are carried out strictly in the order submitted, one at a time; messages between a
 * pair in their order, next to the collectives. Thread safety: the caller's lock, but for
 * rf__group_error. */
#ifndef RF_GROUP_GROUP_H
#define RF_GROUP_GROUP_H

#include "group/runner.h"
#include "io/clock.h"
#include "io/net.h"
#include "io/store.h"

#include <ringfold/tuning.h>

struct rf__group;

/* What happened to the group, for whoever watches it. */
typedef void rf__group_tell_fn(void *context, const struct rf_event *event);

/* Strings and objects are borrowed until the group is destroyed. */
struct rf__group_options {
    char job[RF_MAX_JOB_NAME];
    int rank, size; /* elastic: what the job starts with */
    enum rf_algorithm algorithm;
    const struct rf_tuning *tuning; /* NULL: the library's own table */
    const char *tuning_name;
    void (*choice)(void *context, const char *line); /* as in rf_options; NULL: nobody is told */
    void *choice_context;
    int detect_ms, start_timeout_ms;
    struct rf__clock *clock; /* for the times of operations; NULL: as told to rf__group_step */
    struct rf__net *net;     /* NULL: a group of one */
    struct rf__store
        *store; /* where the members meet; NULL: `endpoints` and `generation` say all (tests) */
    const char *const *endpoints;
    uint64_t generation;

    /* Elastic: min_size > 0. A store is needed. */
    int min_size, max_size, id, restarts, cool_down_ms;
    uint64_t nonce; /* unlike that of any other start of a worker */
    bool faults;    /* take orders for rehearsed faults from the store */
    void (*rehearse)(void *context, const char *order); /* those that are not the group's own */
    rf__group_tell_fn *tell; /* NULL: nobody watches. Called within the calls below */
    void *tell_context;
};

/* A fixed group stays REVOKED. An elastic one forms again by itself; it is OUTSIDE while the newest
 * generation is without this worker, and FAILED for good. */
enum rf__group_state {
    RF__GROUP_FORMING,
    RF__GROUP_RUNNING,
    RF__GROUP_REVOKED,
    RF__GROUP_OUTSIDE,
    RF__GROUP_FAILED
};

int rf__group_create(const struct rf__group_options *options, int64_t now, struct rf__group **out,
                     struct rf_error *err);
void rf__group_destroy(struct rf__group *group);

/* Does everything that can be done at `now` without waiting. 1 if anything moved, 0 if not. */
int rf__group_step(struct rf__group *group, int64_t now);

/* Goes on with the collectives alone, for some microseconds, where all ranks share this host's
 * memory and everything else was looked at lately: a small one is often over by then. At most
 * `looks` in vain. Whether the operation is over. */
bool rf__group_rush(struct rf__group *group, const struct rf__op *op, int64_t now, int looks);

/* When to call rf__group_step again at the latest, if nothing arrives. */
int64_t rf__group_next_deadline(const struct rf__group *group);

enum rf__group_state rf__group_state(const struct rf__group *group);
uint64_t rf__group_generation(const struct rf__group *group);

/* RF_EINVAL or RF_EUNSUPPORTED with nothing sent, RF_ELIMIT with too many in flight, or the group's
 * error. */
int rf__group_submit(struct rf__group *group, const struct rf__op_params *params, int64_t now,
                     struct rf__op **out, struct rf_error *err);

/* 1 complete, 0 not yet, or the error. */
int rf__op_result(const struct rf__op *op);
int64_t rf__op_busy_ns(const struct rf__op *op);

/* Gives the op back; one that is not complete runs on and is given back then. */
void rf__group_release(struct rf__group *group, struct rf__op *op);

/* The algorithm of the collective that completed last. */
enum rf_algorithm rf__group_last_algorithm(const struct rf__group *group);

/* Ends the generation: every operation fails with this cause, peers and store are told. Only the
 * first call counts. */
void rf__group_revoke(struct rf__group *group, const struct rf_error *cause);

/* The first cause; code 0 while there is none. Any thread, at any time. */
void rf__group_error(struct rf__group *group, struct rf_error *out);

/* --- elastic groups only; the meaning is that of the same names in group/runner.h. */

/* Whether the worker may go on with what it holds: a job runs and it is outside, or it is in. */
bool rf__group_is_placed(const struct rf__group *group);
void rf__group_enter(struct rf__group *group, uint64_t config, bool may_roll_back, int64_t now);
int rf__group_note(struct rf__group *group, uint64_t generation,
                   const struct rf__progress *progress);

/* The generation that runs. RF_EREVOKED where none does, or the error of a group that FAILED. */
int rf__group_membership(struct rf__group *group, struct rf__membership *out, struct rf_error *err);

/* The number of the generation that runs, 0 while none does. Any thread, at any time. */
uint64_t rf__group_running(struct rf__group *group);
bool rf__group_is_awaited(const struct rf__group *group);
void rf__group_regroup(struct rf__group *group, const int *out, int out_count, const char *reason,
                       int64_t now);
int rf__group_slowest_link(struct rf__group *group, double *bytes_per_s);
bool rf__group_flip_is_due(struct rf__group *group);

/* The caller's thread has moved. Any thread, at any time. */
void rf__group_alive(struct rf__group *group, int64_t now);

/* The job is done: nobody is taken in any more. Before rf__group_leave. */
void rf__group_end(struct rf__group *group);
int rf__group_id_of(const struct rf__group *group, int rank);

/* The ids of the generation that was opened last, by rank, and of the one before. Borrowed until
 * the next call on the group. */
void rf__group_ids(const struct rf__group *group, const int **ids, int *size, const int **last_ids,
                   int *last_size);

/* Says goodbye to all; step on until rf__group_left, at most a bounded time, then destroy. */
void rf__group_leave(struct rf__group *group, int64_t now);
bool rf__group_left(const struct rf__group *group);

/* Whether no operation is under way. */
bool rf__group_is_idle(const struct rf__group *group);

/* Whether the whole group shares this host's memory. */
bool rf__group_is_local(const struct rf__group *group);

#endif
