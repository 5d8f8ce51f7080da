/* What the parts of a plan share: counting and modelling (plan.c), the picture (plan_svg.c).
 * Private to src/coll. */
#ifndef RF_COLL_PLAN_H
#define RF_COLL_PLAN_H

#include <ringfold/plan.h>

struct rf_plan {
    struct rf_plan_options options;
    struct rf_plan_totals totals;
    uint64_t steps; /* in which any rank sends; only where messages were kept */
    uint64_t *messages, *sent, *received; /* of each rank */
    struct rf_plan_message *list;         /* of totals.messages, or NULL */
};

/* Carries the plan's messages out in the model: fills start and end of list[], and the total time.
 * `ops` is what the ranks do, rank r's from first[r] to first[r + 1]. RF_ENOMEM. */
enum rf__op_kind { RF__OP_SEND, RF__OP_RECV, RF__OP_WORK };

struct rf__op {
    uint8_t kind; /* enum rf__op_kind */
    uint32_t step;
    uint32_t message; /* SEND, RECV: index into list */
    uint64_t work;    /* bytes folded by it: with what was received, or alone */
};

int rf__plan_model(struct rf_plan *plan, const struct rf__op *ops, const size_t *first);

#endif
