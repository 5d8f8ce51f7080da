/* The monotonic clock. */
#ifndef RF_OS_CLOCK_H
#define RF_OS_CLOCK_H

#include "io/clock.h"

int64_t rf__now(void);

/* The same clock as of some milliseconds ago at most, at a tenth of the price. */
int64_t rf__lately(void);
extern struct rf__clock rf__system_clock;

#endif
