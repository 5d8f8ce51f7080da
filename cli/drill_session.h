/* One run of the command under a launcher, with faults or without.
 *
 * drill_session.c starts the store and the launcher, waits, and decides when it is enough;
 * drill_strike.c carries faults out and ends them; drill_say.c tells. */
#ifndef RF_CLI_DRILL_SESSION_H
#define RF_CLI_DRILL_SESSION_H

#include "drill_child.h"
#include "drill_feed.h"
#include "drill_options.h"
#include "drill_plan.h"
#include "drill_score.h"

#include <limits.h>
#include <stdio.h>

enum { DRILL_MAX_ACTIVE = 64, DRILL_KEY_BYTES = 32 };

/* A fault that has struck and is not settled yet. Times are of the monotonic clock, in seconds. */
struct drill_active {
    bool used;
    struct drill_planned planned;
    size_t number; /* 1, 2, … as in drill.jsonl */
    size_t fault;  /* its index in the score */
    int id, pid;
    double until; /* when it ends */
    double edge;  /* when a slow worker is next stopped or let go */
    double seen_done;
    bool stopped;    /* its victim stands still */
    bool ended;      /* nothing more is to be done */
    bool order_left; /* a key in the store is to be removed */
    struct drill_child joiner;
    int source;      /* the joiner's, of events */
    int joiner_asks; /* how often it was asked to end */
};

enum drill_phase { DRILL_STARTING, DRILL_FAULTING, DRILL_SETTLING, DRILL_STOPPING, DRILL_OVER };

struct drill_session {
    /* Set by the caller. */
    const struct drill_options *options;
    char folder[PATH_MAX - 64];
    struct drill_plan *plan; /* NULL: no faults */
    FILE *log;               /* drill.jsonl, or NULL */
    double limit_s;          /* 0: until the command ends */
    int signal_fd;
    sigset_t signals; /* of the children */
    struct drill_score *score;

    /* What came of it. */
    bool began;           /* something was committed */
    bool settled;         /* in the end all were together */
    bool ended_by_itself; /* with `status` */
    bool stopped;         /* on request */
    int status;
    int culprit;       /* who was not back, or -1 */
    char trouble[256]; /* what went wrong; "" for nothing */
    uint64_t bad_lines;
    size_t struck, postponed, dropped;

    /* Its own. */
    enum drill_phase phase;
    double now, wall; /* the same moment on both clocks */
    double began_at, deadline;
    uint64_t settle_unit;
    bool settle_unit_known;
    int stop_requests, asks;
    unsigned char key[DRILL_KEY_BYTES];
    char key_file[PATH_MAX];
    int port, store_pipe;
    char store_line[512];
    size_t store_held;
    struct drill_child store, launcher;
    bool store_down; /* killed on purpose, not back yet */
    struct drill_feed feed;
    struct drill_active active[DRILL_MAX_ACTIVE];
    int joiners; /* started so far */
    struct drill_planned next;
    bool next_known, next_was_late;
    double late_since; /* it was due, and there was nothing left to wait for */
};

/* Runs it; RF_EIO, RF_ENOMEM and others where it could not even be started. Nothing is left behind
 * then, nor otherwise. */
RF_MUST_CHECK int drill_session_run(struct drill_session *session, struct rf_error *err);

/* The rest is between its parts. */

/* Starts the store's process; on its old port where it had one. */
RF_MUST_CHECK int drill_store_start(struct drill_session *session, struct rf_error *err);

/* Whether it has said where it listens. */
bool drill_store_listens(struct drill_session *session);

/* Starts a launcher: the job's own (joiner 0), or one that adds a worker to it. */
RF_MUST_CHECK int drill_launch(struct drill_session *session, int joiner, struct drill_child *child,
                               struct rf_error *err);

/* Something is wrong with the rehearsal itself: keeps the first reason. */
void drill_trouble(struct drill_session *session, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Lets the next faults strike that are due and can be afforded. False: there are none any more. */
bool drill_strike_due(struct drill_session *session);

/* What goes on with those that have struck. */
void drill_strike_step(struct drill_session *session);

/* An own launcher tells of a joiner's process. */
void drill_strike_joined(struct drill_session *session, const struct drill_event *event);

int drill_strike_active(const struct drill_session *session);

/* When drill_strike_step is needed next at the latest; `most` where nothing presses. */
double drill_strike_next(const struct drill_session *session, double most);

/* Joiners are asked to go now. */
void drill_strike_hurry(struct drill_session *session);

/* Lets all go that stand still; nothing more is done to anybody. */
void drill_strike_end(struct drill_session *session);

/* A line of drill.jsonl; `line` is taken over. */
void drill_log(struct drill_session *session, json_t *line);

/* Tells of a fault on the screen and in drill.jsonl: that it has struck, and what came of it. */
void drill_say_struck(struct drill_session *session, const struct drill_active *active);
void drill_say_outcome(struct drill_session *session, const struct drill_active *active);

#endif
