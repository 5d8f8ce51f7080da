/* The monotonic clock, for io/clock.h. */
#include "os/clock.h"

#include <time.h>

int64_t rf__now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int64_t system_now(struct rf__clock *clock) {
    (void)clock;
    return rf__now();
}

struct rf__clock rf__system_clock = {.now = system_now};
