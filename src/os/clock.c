/* The monotonic clock, for io/clock.h. */
#include "os/clock.h"

#include <time.h>

static int64_t read_clock(clockid_t id) {
    struct timespec t;
    clock_gettime(id, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int64_t rf__now(void) {
    return read_clock(CLOCK_MONOTONIC);
}

int64_t rf__lately(void) {
    return read_clock(CLOCK_MONOTONIC_COARSE);
}

static int64_t system_now(struct rf__clock *clock) {
    (void)clock;
    return rf__now();
}

struct rf__clock rf__system_clock = {.now = system_now};
