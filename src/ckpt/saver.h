/* Saving the state of a running training, and finding it again: checkpoints beside the training.
 *
 * One member's part in it. Between `begin` and `copied` the state must not change: a thread copies
 * this member's part of it, at most so much is held twice, and writes it while training goes on.
 * The member that leads also computes what all parts must be and writes the manifest, once every
 * part is there and the members have agreed (`agreed`) that they held the same state. Nothing here
 * is asked of the group: that the parts are there is seen in the blobs.
 *
 * Whatever becomes of a checkpoint is news; a storage that is slow or away costs checkpoints and
 * never a step. Thread safety: one thread at a time, the one that trains. */
#ifndef RF_CKPT_SAVER_H
#define RF_CKPT_SAVER_H

#include "ckpt/checkpoint.h"
#include "member/progress.h"

struct rf__saver;

#define RF__RESUME_NONE (UINT64_MAX - 1) /* start from the beginning, whatever is there */

struct rf__saver_options {
    const char *where;        /* the blobs' name, for people; copied, like all strings here */
    const char *job, *config; /* as in the manifest */
    int keep;                 /* the newest so many; 0: all */
    uint64_t resume;          /* at the start: from this step, RF__NEWEST_STEP or RF__RESUME_NONE */
    bool roll_back_parted;    /* histories that parted are left for what they have in common */
    struct rf__blobs *other;  /* where to start from while there is nothing in the own blobs; or
                                 NULL */
    const char *other_where;
};

/* Both blobs become the saver's, also on an error. */
int rf__saver_create(struct rf__blobs *blobs, const struct rf__saver_options *options,
                     struct rf__saver **out, struct rf_error *err);

/* What is being written is ended where it stands: rf__saver_finish comes first. NULL is fine. */
void rf__saver_destroy(struct rf__saver *saver);

/* --- saving */

struct rf__saver_job {
    struct rf__ckpt_id id;
    uint64_t units, generation, samples, skipped;
    const struct rf__ckpt_state *state; /* borrowed until `copied` or `drop` */
    int part, parts;                    /* this member's, of how many */
    bool leads;
};

/* Whether an earlier checkpoint is still being written here. */
bool rf__saver_is_busy(struct rf__saver *saver);

/* Waits, at most `patience_ms`, for an earlier one; RF_ETIMEDOUT or RF_ENOMEM: this one is not
 * begun. */
int rf__saver_begin(struct rf__saver *saver, const struct rf__saver_job *job, int patience_ms,
                    struct rf_error *err);
void rf__saver_copied(struct rf__saver *saver);                        /* waits */
void rf__saver_agreed(struct rf__saver *saver, uint64_t state_digest); /* after `copied` */
void rf__saver_drop(struct rf__saver *saver); /* not agreed; waits until the state is let go */

/* A step was committed, and the chain is now this. */
void rf__saver_step(struct rf__saver *saver, uint64_t step, uint64_t chain);

/* The state is no longer this member's own: what it has done so far is of no history any more. */
void rf__saver_forget(struct rf__saver *saver);

/* Members were lost: their parts are not waited for much longer. */
void rf__saver_regroup(struct rf__saver *saver);

/* Waits until what was agreed is whole, or has failed: RF_ETIMEDOUT where it takes longer. */
int rf__saver_finish(struct rf__saver *saver, int timeout_ms, struct rf_error *err);

/* Whether the newest that was agreed, and that this member led, has failed. */
bool rf__saver_failed(struct rf__saver *saver);

/* Waits for so long; for whoever tries again. */
void rf__saver_pause(struct rf__saver *saver, int ms);

enum rf__saver_news_kind {
    RF__SAVER_SAVED,  /* whole: bytes and seconds of all of it; told by who leads */
    RF__SAVER_FAILED, /* `text` why */
    RF__SAVER_MARKED, /* found or made bad: `text` why */
    RF__SAVER_PARTED  /* another group trains on from the same past: `text` */
};

struct rf__saver_news {
    enum rf__saver_news_kind kind;
    uint64_t step, bytes;
    double seconds;
    char folder[RF__CKPT_FOLDER];
    char text[RF_ERROR_TEXT_MAX];
};

/* True and the oldest that was not told yet. */
bool rf__saver_news(struct rf__saver *saver, struct rf__saver_news *out);

/* --- finding it again */

/* Whether nothing is to be resumed: what is there already must be this training's own beginning. */
bool rf__saver_begins(const struct rf__saver *saver);

/* Which checkpoint to take the state from. */
struct rf__saver_choice {
    struct rf__ckpt_id id;
    bool is_other; /* it lies in the other blobs */
};

/* Chooses what to go back to: the newest whole checkpoint of at most step `target`, or the newest
 * (RF__NEWEST_STEP). `at_start`: as the options say, by exactly that step, and histories are looked
 * at. Newer ones are marked bad where a step was named. RF_ENOTFOUND: there is none; RF_EDIVERGED:
 * there are two histories, with the step at which they parted; RF_EEXISTS: there are some although
 * none was to be resumed. For one member. */
int rf__saver_choose(struct rf__saver *saver, uint64_t target, bool at_start,
                     struct rf__saver_choice *out, struct rf_error *err);

/* Loads it into the state, verified; from then on it is this saver's past. RF_EINVAL: it is of
 * another model; after other errors the state may have been written to. */
int rf__saver_load(struct rf__saver *saver, const struct rf__saver_choice *choice,
                   const struct rf__ckpt_state *state, struct rf__ckpt_manifest *out,
                   struct rf_error *err);

/* It could not be loaded: marks it bad, and `choose` gives another. For the member that chose. */
void rf__saver_refuse(struct rf__saver *saver, const struct rf__saver_choice *choice,
                      const char *why);

#endif
