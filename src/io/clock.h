/* Time as the driver sees it: monotonic nanoseconds, from os/clock or from the simulator. */
#ifndef RF_IO_CLOCK_H
#define RF_IO_CLOCK_H

#include <stdint.h>

#define RF__MS    1000000ll
#define RF__NEVER INT64_MAX

struct rf__clock {
    int64_t (*now)(struct rf__clock *clock);
};

#endif
