/* The one place where a process waits: epoll, edge-triggered, with a doorbell. Everything with a
 * descriptor registers a callback; `rf__poller_wait` runs the callbacks of what is ready. Callbacks
 * only note readiness, they do no I/O.
 *
 * Thread safety: the caller's lock, but for rf__poller_wake (any thread, and async-signal-safe) and
 * for the waiting itself: see rf__poller_wait. */
#ifndef RF_OS_POLLER_H
#define RF_OS_POLLER_H

#include <ringfold/error.h>
#include <stdint.h>

struct rf__poller;

/* Embedded by whoever has a descriptor. `ready` gets epoll's event bits. Must stay at its address
 * while registered. */
struct rf__poll_source {
    int fd;
    void (*ready)(struct rf__poll_source *source, uint32_t events);
};

int rf__poller_create(struct rf__poller **out, struct rf_error *err);
void rf__poller_destroy(struct rf__poller *poller);

/* Edge-triggered in, out and hang-up, once and for all: no call is needed when interest changes. */
int rf__poller_add(struct rf__poller *poller, struct rf__poll_source *source, struct rf_error *err);
void rf__poller_remove(struct rf__poller *poller, struct rf__poll_source *source);

/* Collects what is ready, waiting at most `timeout_ns` (0: not at all; negative: until something
 * is) and runs the callbacks. It is in two halves so that the caller can drop its lock around the
 * first: `collect` waits and only reads the kernel's list into the poller; `dispatch` runs the
 * callbacks. Returns the number of events, 0 on timeout or signal. */
int rf__poller_collect(struct rf__poller *poller, int64_t timeout_ns);
void rf__poller_dispatch(struct rf__poller *poller);

/* Makes the current or next collect return at once. */
void rf__poller_wake(struct rf__poller *poller);

/* A source removed between collect and dispatch is not called. */

#endif
