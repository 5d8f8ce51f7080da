/* What the launchers of a rehearsal write while it runs: files of JSON lines that grow, read to
 * their ends again and again, and what stands in them put into the order of its times.
 *
 * Everything read is bounded: lines, numbers, and how much waits. A line that is not complete yet
 * is left for the next time. */
#ifndef RF_CLI_DRILL_FEED_H
#define RF_CLI_DRILL_FEED_H

#include "drill_score.h"

#include <jansson.h>
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

enum {
    DRILL_MAX_LINE = 1 << 16,
    DRILL_MAX_JOINERS = 8,
    DRILL_MAX_TAILS = 2 * (1 + DRILL_MAX_JOINERS)
};

/* One growing file. */
struct drill_tail {
    char path[PATH_MAX];
    int fd; /* -1: not there yet */
    char *line;
    size_t held;
    bool skipping; /* the rest of a line that was too long */
};

typedef void drill_line_fn(void *context, const char *line, size_t bytes);

/* The file may come later. RF_ENOMEM. */
RF_MUST_CHECK int drill_tail_open(struct drill_tail *tail, const char *path);
void drill_tail_close(struct drill_tail *tail);

/* Calls `each` with every line that is complete by now; returns how many were too long. */
size_t drill_tail_read(struct drill_tail *tail, drill_line_fn *each, void *context);

/* A number of a JSON object that has to be whole and within 0 … most; false where it is not there
 * or something else. */
bool drill_json_whole(const json_t *object, const char *key, uint64_t most, uint64_t *out);

struct drill_feed {
    struct drill_tail tails[DRILL_MAX_TAILS];
    int sources[DRILL_MAX_TAILS];
    bool used[DRILL_MAX_TAILS];
    int reading; /* source of the line at hand */
    struct drill_event *events;
    size_t count, room;
    uint64_t bad_lines;
    bool out_of_memory;
};

/* Follows events.jsonl and commits.jsonl of a run folder. RF_ENOMEM, RF_ELIMIT. */
RF_MUST_CHECK int drill_feed_follow(struct drill_feed *feed, const char *folder, int source);

/* Follows that source no more. */
void drill_feed_forget(struct drill_feed *feed, int source);
void drill_feed_close(struct drill_feed *feed);

/* Reads what is there. RF_ENOMEM. */
RF_MUST_CHECK int drill_feed_read(struct drill_feed *feed);

typedef int drill_event_fn(void *context, const struct drill_event *event);

/* Hands out, in the order of their times, all events before `time`. The first error of `each` is
 * returned, and the rest are dropped. */
RF_MUST_CHECK int drill_feed_take(struct drill_feed *feed, double time, drill_event_fn *each,
                                  void *context);

#endif
