/* Which faults strike when: drawn from a seed, or read from an earlier rehearsal's drill.jsonl. */
#ifndef RF_CLI_DRILL_PLAN_H
#define RF_CLI_DRILL_PLAN_H

#include "drill_score.h"

#include <jansson.h>

enum { DRILL_MAX_PLANNED = 100000, DRILL_MAX_LENGTH_MS = 3600000 };

struct drill_planned {
    double at; /* seconds from the first commit */
    enum drill_kind kind;
    int victim;    /* position among the healthy workers, by id */
    int length_ms; /* how long it lasts; 0 where it is over at once */
    bool abrupt; /* a joiner is killed in the end, not asked to stop; a storage is full, not down */
};

struct drill_plan {
    /* What it is drawn from. */
    uint64_t state;
    enum drill_kind kinds[DRILL_KINDS];
    int kind_count, workers, mtbf_ms, detect_ms;
    double at;

    /* Or what was read. */
    struct drill_planned *read;
    size_t read_count, read_at;
};

/* The next fault; false: there is none (of a replay). */
bool drill_plan_next(struct drill_plan *plan, struct drill_planned *out);

/* Reads a drill.jsonl; with RF_EDATA, RF_EIO, RF_ENOMEM, RF_ELIMIT `err` names the line. */
RF_MUST_CHECK int drill_plan_read(struct drill_plan *plan, const char *path, struct rf_error *err);
void drill_plan_free(struct drill_plan *plan);

/* The line of drill.jsonl. NULL without memory. */
json_t *drill_plan_line(const struct drill_planned *planned, size_t number);

#endif
