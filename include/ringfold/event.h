/* Events: what happened to a job's group, as one worker saw it. A communicator writes each as one
 * line of JSON to `rf_options.event_fd`; docs/EVENTS.md lists the lines. */
#ifndef RINGFOLD_EVENT_H
#define RINGFOLD_EVENT_H

#include <stdbool.h>
#include <stdint.h>

enum rf_event_kind {
    RF_EVENT_FORM,   /* a generation runs */
    RF_EVENT_REVOKE, /* a generation is over: `peer` is the one that was lost (-1: nobody), `text`
                        why */
    RF_EVENT_PAUSE,  /* no generation can be formed: `text` says what is waited for */
    RF_EVENT_OUT,    /* this worker is not in the newest generation: `text` why */
    RF_EVENT_HEAL,   /* this worker has copied the state: `bytes`, `seconds`, `peer` donors */
    RF_EVENT_COMMIT, /* a unit was committed */
    RF_EVENT_RETRY,  /* a unit was not committed and is begun again */
    RF_EVENT_SLOW, /* `peer` is slower than the median by `ratio`; `text`: "processor" or "link" */
    RF_EVENT_CHECKPOINT, /* what became of one: `checkpoint`, `checkpoint_step`, `text` */
    RF_EVENT_DIVERGED,   /* `peer` holds another state and copies the majority's; `text` the digests
                          */
    RF_EVENT_FLIP        /* a rehearsal has turned one bit of this worker's parameters over */
};

enum rf_checkpoint_kind {
    RF_CHECKPOINT_SAVED,    /* whole and durable; told by one member */
    RF_CHECKPOINT_FAILED,   /* `text` says why; the one before stays */
    RF_CHECKPOINT_BAD,      /* one was found, or made, unusable: `text` why */
    RF_CHECKPOINT_PARTED,   /* another group trains on from the same past: `text` */
    RF_CHECKPOINT_RETURNED, /* this worker's state is now that of this checkpoint */
    RF_CHECKPOINT_NONE      /* there was none to start from */
};

struct rf_event {
    enum rf_event_kind kind;
    double time; /* wall clock, seconds since 1970 */
    int id, rank, size;
    uint64_t generation;
    uint64_t unit, step; /* number of the unit; training steps committed */
    int peer;            /* an id, or -1 */
    double seconds, ratio;
    uint64_t bytes, digest, samples;
    bool measure;
    uint32_t retries, redone;
    enum rf_checkpoint_kind checkpoint;
    uint64_t checkpoint_step;
    bool rolled_back; /* RETURNED: the group had trained on, and went back */
    char text[160];
};

#endif
