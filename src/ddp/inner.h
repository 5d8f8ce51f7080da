/* What the files of ddp/ share: the object, one unit's state, and the helpers of each file.
 *
 *     ddp.c      life, registration, seal
 *     fail.c     what an error ends: the group, the generation, or this object
 *     state.c    parameters and registered state as one run of bytes: hashed, cut into stripes
 *     adopt.c    a new generation: what of our work it keeps
 *     unit.c     begin, the deal of the shards, gradients that become ready
 *     compress.c gradients that travel as less than float32; knows nothing of the others
 *     save.c     checkpoints: taking them beside the units, and going back to one
 *     heal.c     copying the state from those that hold it to those that do not
 *     commit.c   prepare, agree, commit; and what becomes of a unit that is cut */
#ifndef RF_DDP_INNER_H
#define RF_DDP_INNER_H

#include "ckpt/saver.h"
#include "ddp/buckets.h"
#include "ddp/compress.h"
#include "ddp/ddp.h"
#include "member/slow.h"
#include "member/step.h"

enum {
    RF__DDP_IN_FLIGHT = 256, /* buckets; the rest starts as these complete */
    RF__DDP_DIGESTS = 3,     /* gathered at the seal: what gradients travel as, what was
                                registered, and its contents */
    RF__DDP_CONTEXT_MAX = 96,
    RF__DDP_CHOICE_BYTES = 512,  /* what to go back to, as the first member found it */
    RF__DDP_VERDICT_BYTES = 256, /* whether a member could */
    RF__HEAL_IN_FLIGHT = 64      /* messages of state */
};

struct rf__ddp_tensor {
    char *name;
    float *param; /* the caller's */
    int dims;     /* as told by the caller; 0: a row of `count` */
    uint64_t shape[RF__CKPT_DIMS];
    bool ready;
    bool stale; /* its gradient's memory holds an earlier unit's: zero it, or write all of it */
    uint64_t digest; /* of this step's average */
};

struct rf__ddp_extra {
    char *name;
    void *bytes; /* the caller's */
    size_t length;
};

enum rf__ddp_stage {
    RF__DDP_OPEN,  /* being registered */
    RF__DDP_IDLE,  /* between units */
    RF__DDP_UNIT,  /* from begin to commit */
    RF__DDP_BROKEN /* `error` says why, for good */
};

/* The sums over all members that make a unit's outcome, whoever sees the reports or not. Doubles:
 * counts are exact up to 2^53. */
enum rf__ddp_total {
    RF__TOTAL_SHARDS, /* done: must be all, each once */
    RF__TOTAL_SAMPLES,
    RF__TOTAL_SKIPPED,
    RF__TOTAL_LOSS,
    RF__TOTAL_TALLY,
    RF__TOTAL_STOP,    /* members that ask for it */
    RF__TOTAL_MEASURE, /* the same */
    RF__TOTAL_SAVE,    /* members that ask for a checkpoint */
    RF__TOTAL_MUST,    /* ... that is waited for, as it is the last */
    RF__TOTAL_BUSY,    /* members that still write an earlier one */
    RF__TOTAL_AWAITED, /* members that know of a worker that waits to be taken in */
    RF__TOTAL_COUNT
};

/* What operations other than the buckets' read and write; in the runner's memory, each on its own
 * cache lines. */
struct rf__ddp_control {
    double *count, *divisor;         /* samples of this member, and of all */
    double *total, *totals;          /* RF__TOTAL_COUNT each, as above */
    unsigned char *report, *reports; /* encoded */
    uint64_t *digests, *all_digests;
    uint32_t *order;               /* the observed one, by position */
    unsigned char *done, *alldone; /* shards, as bits; of this member, of all by rank */
    unsigned char *header;         /* of the state */
    unsigned char *choice, *verdict, *verdicts; /* of a return to a checkpoint */
};

/* A checkpoint of the state before the unit, as all know. */
enum rf__ddp_save {
    RF__SAVE_NOT,
    RF__SAVE_IF_FREE, /* unless a member still writes an earlier one */
    RF__SAVE_MUST
};

/* A unit as this member has worked on it; lives through retries. */
struct rf__ddp_work {
    bool open; /* begun, and neither committed nor void */
    uint64_t samples, skipped;
    double loss_sum, tally;
    uint32_t shards, redone; /* done by this member; of them in place of lost members */
    uint32_t retries;
    int64_t began, compute, busy, blocked, blocked_in_buckets;
};

/* One attempt at it, from a begin to its commit. */
struct rf__ddp_attempt {
    uint32_t left;        /* shards that nobody had done at its begin */
    uint32_t next, dealt; /* how many of them were handed out, of how many that are this member's */
    bool in_shard, told;  /* between next_shard and shard_done; the shard's samples are known */
    uint64_t shard_samples, shard_skipped;
    double shard_tally;
    bool late_samples;     /* told after the count had gone out */
    bool counted;          /* the count has gone out */
    int started, finished; /* buckets: operations started, and of them complete and freed */
    bool resumed;
    bool failed;   /* nothing more is started: the generation is over */
    bool prepared; /* the outcome is in `chain`, `state_digest` and the totals */
    uint64_t chain, state_digest;
    uint64_t generation; /* where it was prepared */
    int size;
    int64_t began, in_ready;
};

/* The copying of the state in one attempt. */
struct rf__ddp_heal {
    bool active;
    struct rf__op *op[RF__HEAL_IN_FLIGHT]; /* a ring, oldest first */
    int oldest, count;
    int piece, peer; /* the next message: piece by piece, each for all peers */
    bool any;        /* a peer had such a piece */
    bool all;        /* everything was started */
    uint64_t bytes;
    int64_t began, took;
};

struct rf_ddp {
    struct rf__runner *runner;
    struct rf_ddp_options options;
    uint32_t shards;
    uint64_t config; /* hash of what must be equal on all */
    uint64_t also;   /* of it, what the caller adds; 0: nothing */
    int capacity;    /* members at most */
    enum rf__ddp_stage stage;
    struct rf_error error;

    int tensors, tensors_room, extras, extras_room;
    struct rf__ddp_tensor *tensor;
    size_t *count; /* elements, by tensor */
    struct rf__ddp_extra *extra;
    size_t floats; /* of the gradient block, as far as registered */

    /* From seal on. */
    int *order;
    struct rf__bucket *bucket;
    struct rf__slot *slot;
    int *missing; /* tensors of the bucket that are not ready */
    struct rf__op **op;
    int buckets;
    uint64_t *region_end; /* of tensors and then extras, in the run of the state's bytes */
    float *gradients, *averages;
    struct rf__compress *compress; /* NULL: gradients travel as they are */
    uint32_t *deal;                /* this member's shards in this attempt */
    void *control_memory;
    struct rf__ddp_control control;
    struct rf__step_report *reports; /* decoded */
    int reported;                    /* of the last commit; 0: it was decided without them */
    struct rf__op *count_op;

    /* The generation. By rank: ids, whether the member holds the state; and the ranks of those that
     * do (donors) and do not (joiners). A fixed group has one, and all hold it. */
    uint64_t generation; /* 0: none yet */
    int *id;
    bool *healed, *agrees;
    int *donor, *joiner;
    int donors, joiners;
    bool first_unit; /* nothing was committed in it yet: shards may be done already */
    bool ended;      /* the job: nothing is begun any more */
    bool planned;    /* it ends with the unit that was committed */

    bool holds; /* this member holds the state after `units` units */
    uint64_t units, steps, chain;
    bool measure;      /* unit `units` is a measurement */
    bool averaged;     /* the averages are valid */
    bool reorder;      /* a new order waits for the next begin */
    bool stop, asked;  /* this member asks for a stop; for a measurement */
    int observed;      /* entries of control.order */
    int own_failures;  /* since the last commit, that no lost member explains */
    char trouble[160]; /* why the unit is begun again */
    struct rf__ddp_work work;
    struct rf__ddp_attempt attempt;
    struct rf__ddp_heal heal;
    struct rf__slow slow;
    int slow_id; /* the member that this one would put out, or -1 */

    /* Checkpoints. */
    struct rf__saver *saver; /* NULL: none are kept */
    rf_ddp_told_fn *told;
    void *told_context;
    struct rf__ckpt_tensor *image; /* parameters, registered state, `carried` */
    struct rf__ckpt_state state;   /* all of it */
    unsigned char *carried;        /* what this object itself must find again, encoded */
    uint64_t samples, skipped;     /* used for training since its beginning; left out */
    enum rf__ddp_save save;        /* what the members agreed on for this unit */
    bool save_asked, save_must;    /* by this member, for the next one */
    bool saving;                   /* this attempt: the saver has it */
    struct rf__saver_job last;     /* the newest that was begun, and its state's hash */
    uint64_t last_digest;          /* 0: not agreed */
    bool last_lasts;               /* the state did not change with its unit */
    uint64_t returned_to;          /* by itself, to which step the group went back last */
    int returns;                   /* ... how often */
    bool stops;                    /* the unit is the last one, as a member asked for a stop */
    bool is_touched;               /* the state: a checkpoint was read into it */
    bool is_behind;                /* units are 0, and the state may have to be had elsewhere */
    bool rolls_back;               /* ... for the group went back */
    uint64_t target;
};

static inline int64_t rf__ddp_now(const struct rf_ddp *ddp) {
    return ddp->runner->ops->now(ddp->runner);
}

static inline double rf__ddp_seconds(int64_t ns) {
    return ns > 0 ? (double)ns / 1e9 : 0;
}

static inline bool rf__ddp_in_range(const struct rf_ddp *ddp, int index) {
    return index >= 0 && index < ddp->tensors;
}

static inline void rf__ddp_alive(const struct rf_ddp *ddp) {
    if (ddp->runner->elastic) {
        ddp->runner->ops->alive(ddp->runner);
    }
}

/* ---- fail.c */

struct rf__ddp_context {
    char text[RF__DDP_CONTEXT_MAX];
};

struct rf__ddp_context rf__ddp_context(const struct rf_ddp *ddp, const char *doing);

/* Waits for every operation of this object: its memory is free again. */
void rf__ddp_drain(struct rf_ddp *ddp);

/* Ends this object for good, and in a fixed group the group, in an elastic one the generation: with
 * `cause`, or with what has ended it already. Returns the cause's code. */
int rf__ddp_break(struct rf_ddp *ddp, const struct rf_error *cause, struct rf_error *err);

/* The attempt has failed with `code`. Fixed: ends the group, with the group's first cause where
 * there is one. Elastic: ends the generation, and whoever waits recovers. `_with`: for `cause`. */
int rf__ddp_fail(struct rf_ddp *ddp, int code, const char *context, struct rf_error *err);
int rf__ddp_fail_with(struct rf_ddp *ddp, const struct rf_error *cause, struct rf_error *err);

/* The error of an object that is broken. */
int rf__ddp_broken(const struct rf_ddp *ddp, struct rf_error *err);

/* Carries one operation out, or fails the attempt. */
int rf__ddp_run(struct rf_ddp *ddp, const struct rf_call *call, const char *context,
                struct rf_error *err);

/* Fills `err`: gradients of rank `odd` travel as another type than those of rank 0. */
void rf__ddp_fail_wires(const struct rf_ddp *ddp, int odd, uint64_t wire, uint64_t first,
                        struct rf_error *err);

/* Elastic: tells of what happened in `unit`. */
void rf__ddp_tell(struct rf_ddp *ddp, uint64_t unit, struct rf_event event);

/* ---- state.c */

/* What all members must have in common for their operations to match. */
uint64_t rf__ddp_hash_registration(const struct rf_ddp *ddp);

/* Never 0, which stands for "none". */
uint64_t rf__ddp_hash_state(const struct rf_ddp *ddp);

/* Fills `region_end`. */
void rf__ddp_measure_state(struct rf_ddp *ddp);

/* Piece `piece` of stripe `stripe` of `stripes`: it lies within one tensor. False beyond the last;
 * a piece may be empty. */
bool rf__ddp_piece(const struct rf_ddp *ddp, int stripe, int stripes, int piece, void **bytes,
                   size_t *length);

/* ---- adopt.c */

/* The one generation of a fixed group. */
void rf__ddp_adopt_fixed(struct rf_ddp *ddp);

/* Elastic: after the group's end of the attempt, or at the first begin: waits for a generation with
 * this member in it, and takes it over. An error is final. Where the unit that is prepared was
 * committed by all, *committed, and the caller commits it. */
int rf__ddp_adopt(struct rf_ddp *ddp, bool *committed, struct rf_error *err);

/* Our work and our state are no longer the group's. */
void rf__ddp_void(struct rf_ddp *ddp);

/* Says what this member holds. */
int rf__ddp_note(struct rf_ddp *ddp);

/* Counts `healed` anew. */
void rf__ddp_count_healed(struct rf_ddp *ddp);

/* ---- unit.c */

void rf__ddp_lay_out(struct rf_ddp *ddp);
size_t rf__ddp_map_bytes(const struct rf_ddp *ddp);
int rf__ddp_check_idle(const struct rf_ddp *ddp, struct rf_error *err);
bool rf__ddp_is_permutation(struct rf_ddp *ddp, const uint32_t *order);

/* Sends the sample count out, ahead of all buckets: its sum is their divisor. */
int rf__ddp_start_count(struct rf_ddp *ddp, struct rf_error *err);

/* Starts, in order, the buckets that are complete, as far as the limit of operations in flight
 * allows. */
int rf__ddp_start_complete(struct rf_ddp *ddp, struct rf_error *err);

/* A gradient that nobody has asked for in this unit is zero. */
void rf__ddp_settle_gradient(struct rf_ddp *ddp, int index);
struct rf__ddp_context rf__ddp_context_of_bucket(const struct rf_ddp *ddp, int k);

/* ---- save.c */

size_t rf__ddp_carried_bytes(int tensors);

/* At the seal: describes the state for checkpoints. */
int rf__ddp_describe(struct rf_ddp *ddp, struct rf_error *err);

/* Where the group stands at its beginning: all members take the state of a checkpoint, where one is
 * to be had. Collective. */
int rf__ddp_return(struct rf_ddp *ddp, struct rf_error *err);

/* An attempt begins, with what the members agreed on. */
void rf__ddp_save_start(struct rf_ddp *ddp);
void rf__ddp_save_settle(struct rf_ddp *ddp, bool committed);
void rf__ddp_save_reject(struct rf_ddp *ddp); /* a part of it is of another state */
void rf__ddp_save_tell(struct rf_ddp *ddp);   /* what there is to tell of checkpoints */

/* ---- heal.c */

size_t rf__ddp_header_bytes(int tensors);

/* At the begin, where there are joiners: the header goes out and comes in, the first messages are
 * started. */
int rf__ddp_heal_start(struct rf_ddp *ddp, struct rf_error *err);

/* Starts what has become possible. Does not block. */
int rf__ddp_heal_pump(struct rf_ddp *ddp, struct rf_error *err);

/* Waits for the rest. */
int rf__ddp_heal_finish(struct rf_ddp *ddp, struct rf_error *err);
void rf__ddp_heal_drain(struct rf_ddp *ddp);

#endif
