/* What a member has done, as its group and the store are told: fixed at the moment it leaves a
 * generation. Pure data. */
#ifndef RF_MEMBER_PROGRESS_H
#define RF_MEMBER_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

#define RF__NEWEST_STEP UINT64_MAX /* of the newest checkpoint there is */

/* A unit is a training step or a measurement. */
struct rf__progress {
    bool healed;    /* holds the group's state after `units` units */
    uint64_t units; /* committed */
    uint64_t chain; /* the digest after them */

    /* Unit number `units` is prepared: everything that its commit needs is here, and our step
     * report may have gone out. `prepared_chain` is the digest after it; `prepared_state` the full
     * hash of the state before it where one was due, else 0. Not prepared: that of the unit that
     * was committed last in this generation, by which those that have prepared it are held to it.
     */
    bool prepared;
    uint64_t prepared_chain, prepared_state;
};

#endif
