/* The next generation, from what the store holds: a function of its arguments and nothing else, so
 * that whoever computes it from the same facts finds the same. Which facts were there when somebody
 * swapped his result in does not matter for safety; docs/MEMBERSHIP.md has the argument. Pure. */
#ifndef RF_MEMBER_DECIDE_H
#define RF_MEMBER_DECIDE_H

#include "member/record.h"

enum rf__verdict {
    RF__VERDICT_FORM,      /* `next` is to be swapped in */
    RF__VERDICT_TOO_FEW,   /* fewer than the minimum are here */
    RF__VERDICT_STATELESS, /* nobody who is here holds the state */
    RF__VERDICT_DIVERGED   /* the members that hold one disagree about it, and none has the majority
                            */
};

/* The facts. `reports` are of generation `current`, by its ranks, NULL where there is none;
 * `candidates` ascend by id. Borrowed for the call. */
struct rf__facts {
    const struct rf__generation *current;
    const struct rf__report *const *reports;
    const struct rf__candidate *const *candidates;
    int candidate_count;
    int min_size, max_size;
    uint64_t config; /* of the job; 0: not known here, so nobody new is taken in */

    /* Where the job keeps checkpoints it goes back to one by an operator's order, where members
     * disagree and nobody has a majority, and where nobody holds the state and nothing better is to
     * be waited for. */
    bool may_roll_back;
    const struct rf__rollback *order; /* not carried out yet; or NULL */
    bool gives_up;                    /* nobody is waited for any more */
};

/* `next` and `count` (who would be in it) are filled in whatever the verdict. */
enum rf__verdict rf__decide(const struct rf__facts *facts, struct rf__generation *next);

/* The first generation of a job: all candidates that want in, by id, all in the same state, for
 * which their seed stands (and their first step report). */
enum rf__verdict rf__decide_first(const struct rf__facts *facts, struct rf__generation *next);

/* The generation after `current`, of which nobody is left: all candidates that want in, to start
 * from a checkpoint. */
enum rf__verdict rf__decide_anew(const struct rf__facts *facts, struct rf__generation *next);

/* Whether a candidate is to be taken into the generation after `current`. */
bool rf__candidate_is_welcome(const struct rf__facts *facts, const struct rf__candidate *candidate);

#endif
