/* Events as lines of JSON on a descriptor; docs/EVENTS.md has their keys. A line is written whole
 * or not at all: who does not read loses lines, and holds nobody up. */
#ifndef RF_API_EVENTS_H
#define RF_API_EVENTS_H

#include <ringfold/event.h>

/* What a FORM event tells besides: ids by rank, of this generation and of the one before. */
struct rf__events_form {
    const int *ids, *last_ids;
    int size, last_size;
};

struct rf__events {
    int fd; /* -1: nowhere */
    struct rf__events_form form;
};

void rf__events_write(struct rf__events *events, const struct rf_event *event);

#endif
