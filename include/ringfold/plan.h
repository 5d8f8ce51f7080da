/* Plans: what a collective would do, counted from its schedule and not from a formula. Needs no
 * group, no network.
 *
 * Thread safety: a plan is immutable after creation. */
#ifndef RINGFOLD_PLAN_H
#define RINGFOLD_PLAN_H

#include <ringfold/limits.h>
#include <ringfold/types.h>

#ifdef __cplusplus
extern "C" {
#endif

struct rf_plan;

struct rf_plan_options {
    enum rf_coll coll;
    enum rf_algorithm algorithm; /* not AUTO, SHARED, HIERARCHICAL */
    int size;                    /* 1 … RF_PLAN_MAX_RANKS */
    int root;
    size_t count; /* elements as in struct rf_call */
    enum rf_type type;
    double latency_s;        /* per message; 0 or more */
    double bytes_per_s;      /* of one link and direction; more than 0 */
    double fold_bytes_per_s; /* of one rank's folding; 0: folding takes no time */
};

enum {
    RF_PLAN_MAX_RANKS = 16384,
    RF_PLAN_MAX_MODELLED = 1 << 22, /* messages; of larger plans only the counts are known */
    RF_PLAN_MAX_PICTURE_RANKS = 24,
    RF_PLAN_MAX_PICTURE_STEPS = 64
};

/* Counts are per rank, or the sum over all ranks; `max_` is the busiest rank. A message may be
 * empty: a slice can have no elements where there are fewer of them than ranks, and some messages
 * only synchronise; they count all the same.
 *
 * A step is what the schedule lets happen at once, which can be many messages: the naive allreduce
 * sends n-1 in one.
 *
 * The model: a message occupies its sender's way out and its receiver's way in from its start to
 * its end, latency_s + bytes / bytes_per_s later; a rank sends one message and receives one at a
 * time, in both directions at once, in the order of its schedule. A rank reads its messages in the
 * order of its schedule and folds them, own operands too, at fold_bytes_per_s; copies are free. */
struct rf_plan_totals {
    uint64_t steps;        /* steps of the longest rank in which it sends or receives */
    uint64_t messages;     /* in all */
    uint64_t max_messages; /* sent by the busiest rank */
    uint64_t bytes;        /* sent in all */
    uint64_t max_bytes_sent, max_bytes_received;
    double
        time_s; /* by the model; negative: more than RF_PLAN_MAX_MODELLED messages, not modelled */
    double lower_bound_s; /* no algorithm of this collective can be faster under the model: the
                             largest of what latency, bandwidth and folding take at least */
};

/* One message of the plan, in order of its start in the model. */
struct rf_plan_message {
    int from, to;
    uint64_t step; /* of the sender, counting from 0 the steps in which any rank sends */
    uint64_t offset,
        bytes; /* within the collective's data (of size x count elements where one side has that
                  many); where the sender has it in scratch memory, as the receiver places it */
    bool fold; /* the receiver adds it up, instead of storing it */
    double start_s, end_s;
};

/* An allreduce by the ring of 64 MiB of f32 on 4 ranks; 20 us, 10 Gbit/s, folding at 5 GB/s. */
RF_API void rf_plan_options_init(struct rf_plan_options *options);

/* RF_EUNSUPPORTED: the algorithm does not cover the collective (tried before anything else, so a
 * plan of one rank tells which do); RF_EINVAL names the option; RF_ELIMIT: too many ranks, or bytes
 * that do not fit 63 bits. Takes time in proportion to the messages (some ten million a second),
 * and memory to those modelled. */
RF_API RF_MUST_CHECK int rf_plan_create(const struct rf_plan_options *options, struct rf_plan **out,
                                        struct rf_error *err);
RF_API void rf_plan_destroy(struct rf_plan *plan);
RF_API void rf_plan_get_totals(const struct rf_plan *plan, struct rf_plan_totals *out);

/* Messages sent, and bytes sent and received, by one rank. */
RF_API void rf_plan_rank(const struct rf_plan *plan, int rank, uint64_t *messages, uint64_t *sent,
                         uint64_t *received);

/* Message `index` of `totals.messages`; false past the end, and for every index where nothing was
 * modelled. */
RF_API bool rf_plan_get_message(const struct rf_plan *plan, uint64_t index,
                                struct rf_plan_message *out);

/* A picture of who sends what when, as SVG text in *out, which the caller gives to
 * rf_plan_svg_free. The ranks stand on a circle, one small picture a step: its messages, and what
 * each rank holds after it (at most RF_PLAN_MAX_PICTURE_RANKS and RF_PLAN_MAX_PICTURE_STEPS;
 * RF_ELIMIT beyond). */
RF_API RF_MUST_CHECK int rf_plan_svg(const struct rf_plan *plan, char **out, size_t *bytes,
                                     struct rf_error *err);
RF_API void rf_plan_svg_free(char *svg);

#ifdef __cplusplus
}
#endif
#endif
