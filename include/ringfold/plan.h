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
    enum rf_algorithm algorithm; /* not AUTO, not SHARED */
    int size;                    /* 1 … RF_PLAN_MAX_RANKS */
    int root;
    size_t count; /* elements as in struct rf_call */
    enum rf_type type;
    double latency_s;        /* per message */
    double bytes_per_s;      /* of one link and direction */
    double fold_bytes_per_s; /* of one rank's folding; 0: folding takes no time */
};

enum { RF_PLAN_MAX_RANKS = 16384 };

/* Counts are per rank, or the sum over all ranks; `max_` is the busiest rank. A message is one SEND
 * of at least one element, or of none where the schedule only synchronises. */
struct rf_plan_totals {
    uint64_t steps;        /* steps of the longest rank in which it sends or receives */
    uint64_t messages;     /* in all */
    uint64_t max_messages; /* sent by the busiest rank */
    uint64_t bytes;        /* sent in all */
    uint64_t max_bytes_sent, max_bytes_received;
    double time_s; /* by the model: each link carries one message at a time in each direction */
    double lower_bound_s; /* no algorithm of this collective can be faster under the model */
};

/* One message of the plan, in order of its start in the model. */
struct rf_plan_message {
    int from, to;
    uint64_t step;          /* of the sender */
    uint64_t offset, bytes; /* within the collective's data */
    bool fold;              /* the receiver adds it up, instead of storing it */
    double start_s, end_s;
};

RF_API void rf_plan_options_init(struct rf_plan_options *options);
RF_API RF_MUST_CHECK int rf_plan_create(const struct rf_plan_options *options, struct rf_plan **out,
                                        struct rf_error *err);
RF_API void rf_plan_destroy(struct rf_plan *plan);
RF_API void rf_plan_get_totals(const struct rf_plan *plan, struct rf_plan_totals *out);

/* Messages sent, and bytes sent and received, by one rank. */
RF_API void rf_plan_rank(const struct rf_plan *plan, int rank, uint64_t *messages, uint64_t *sent,
                         uint64_t *received);

/* Message `index` of `totals.messages`; false past the end. */
RF_API bool rf_plan_get_message(const struct rf_plan *plan, uint64_t index,
                                struct rf_plan_message *out);

/* A picture of who sends what when, as SVG text in *out, which the caller gives to
 * rf_plan_svg_free. The ranks stand on a circle, one small picture a step (at most 24 ranks and 64
 * steps; RF_ELIMIT beyond). */
RF_API RF_MUST_CHECK int rf_plan_svg(const struct rf_plan *plan, char **out, size_t *bytes,
                                     struct rf_error *err);
RF_API void rf_plan_svg_free(char *svg);

#ifdef __cplusplus
}
#endif
#endif
