/* The membership of one worker: which generation it is in, what it reports when it leaves one, and
 * when it proposes the next. A pure machine: facts go in (what the store holds, what the links say,
 * the time), actions come out, and whoever drives it carries them out. No I/O, no clock, and no
 * allocation after creation but for candidates it sees for the first time.
 *
 *     JOINING --in the newest generation--> FORMING --all linked--> RUNNING
 *        ^                                     |                      |
 *        |                                     +----- revoked --------+
 *        +---- the newest is without us ---- REVOKED --in the newest--> FORMING
 *
 * docs/MEMBERSHIP.md has every message, the invariants and the argument. Thread safety: the
 * caller's lock. */
#ifndef RF_MEMBER_MEMBER_H
#define RF_MEMBER_MEMBER_H

#include "member/record.h"

#include <ringfold/error.h>

struct rf__member;

struct rf__member_options {
    int id;
    uint64_t nonce;
    uint32_t restarts;
    int min_size, max_size, start_size;
    int64_t detect_ns, start_timeout_ns, cool_down_ns;
    const char *endpoint; /* copied */
};

enum rf__member_state {
    RF__MEMBER_JOINING,
    RF__MEMBER_FORMING,
    RF__MEMBER_RUNNING,
    RF__MEMBER_REVOKED,
    RF__MEMBER_FAILED
};

enum rf__member_action_kind {
    RF__MEMBER_PUBLISH, /* put `bytes` as the own candidate record */
    RF__MEMBER_REPORT,  /* put `bytes` as the own report of `generation`, where there is none */
    RF__MEMBER_SWAP,    /* swap `bytes` in as the generation record, from `revision` on; say how it
                           went: rf__member_swapped */
    RF__MEMBER_REFUSE,  /* tell candidate `id` that it is refused: `bytes` is for it */
    RF__MEMBER_LEAVE,   /* end everything of the generation */
    RF__MEMBER_OPEN, /* link up with the members of rf__member_generation: then rf__member_linked */
    RF__MEMBER_FORGET /* delete the own report of `generation` */
};

struct rf__member_action {
    enum rf__member_action_kind kind;
    const unsigned char *bytes; /* valid until the next call on the machine */
    size_t length;
    int64_t revision;
    uint64_t generation;
    int id;
};

int rf__member_create(const struct rf__member_options *options, int64_t now,
                      struct rf__member **out);
void rf__member_destroy(struct rf__member *member);

/* --- facts. From the store: a value, or NULL where the key is gone. Values that cannot be read are
 * ignored. */
void rf__member_see_generation(struct rf__member *member, const void *bytes, size_t length,
                               int64_t revision);
void rf__member_see_candidate(struct rf__member *member, int id, const void *bytes, size_t length);
void rf__member_see_report(struct rf__member *member, const void *bytes, size_t length);
void rf__member_see_refusal(struct rf__member *member, const void *bytes, size_t length);
void rf__member_see_rollback(struct rf__member *member, const void *bytes, size_t length);
void rf__member_unsynced(struct rf__member *member); /* it is told from the start, once more */
void rf__member_synced(struct rf__member *member);   /* all that was there has been told */
void rf__member_swapped(struct rf__member *member, bool answered);
void rf__member_give_up(struct rf__member *member, const struct rf_error *why); /* FAILED */

/* From the links. A doubt, or a revoke, ends the generation for us; further doubts until the report
 * has gone out become part of it. `rank` -1: nobody's fault. */
void rf__member_linked(struct rf__member *member);
void rf__member_doubt(struct rf__member *member, int rank, enum rf__doubt doubt, const char *why);
void rf__member_revoke(struct rf__member *member, const char *why);

/* From the layers above. `may_roll_back`: the state can be had from checkpoints. */
void rf__member_enter(struct rf__member *member, uint64_t config, bool may_roll_back);
int rf__member_note(struct rf__member *member, uint64_t generation,
                    const struct rf__progress *progress);   /* RF_EREVOKED where that is over */
void rf__member_put_out(struct rf__member *member, int id); /* before rf__member_revoke */
void rf__member_end(struct rf__member *member);             /* the job is done, when we leave */

/* The time, never earlier than before: of the facts that follow. A tick decides what is due, too.
 */
void rf__member_time(struct rf__member *member, int64_t now);
void rf__member_tick(struct rf__member *member, int64_t now);

/* When to tick again at the latest; while FORMING, when the links must be up. */
int64_t rf__member_deadline(const struct rf__member *member);

/* 1 and the next action, or 0. */
int rf__member_next(struct rf__member *member, struct rf__member_action *out);

/* --- what is. */
enum rf__member_state rf__member_state(const struct rf__member *member);

/* The generation we are in, or were in last; number 0 before the first. */
const struct rf__generation *rf__member_generation(const struct rf__member *member);
int rf__member_rank(const struct rf__member *member); /* in it; -1 */

/* The newest one that was seen. */
const struct rf__generation *rf__member_newest(const struct rf__member *member);
const struct rf__progress *rf__member_progress(const struct rf__member *member);
const char *rf__member_endpoint(const struct rf__member *member, int id); /* NULL: not known */

/* Whether the generation should end with the unit: somebody waits that the next one would take in,
 * or an operator wants to go back. */
bool rf__member_is_awaited(const struct rf__member *member);

/* Why nothing goes on, for people; "" where it does. */
const char *rf__member_waits_for(const struct rf__member *member);

/* Why this worker is not in the newest generation; "" where it is or was never in one. */
const char *rf__member_out_reason(const struct rf__member *member);

/* FAILED: why. */
const struct rf_error *rf__member_error(const struct rf__member *member);

#endif
