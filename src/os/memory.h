/* How much memory there is for this process: of the host, and of the control groups it is in. */
#ifndef RF_OS_MEMORY_H
#define RF_OS_MEMORY_H

#include <stdint.h>

struct rf__memory {
    uint64_t available; /* can be had now, without swapping and without being killed for it */
    uint64_t total;     /* the host's, or the lowest limit */
};

/* `root`: where /proc and /sys are, "" but in tests. What cannot be found out is UINT64_MAX. */
struct rf__memory rf__memory_read(const char *root);

#endif
