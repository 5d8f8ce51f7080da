/* Whether the kernel killed for memory: the counter of this process's control group. */
#ifndef RF_CLI_RUN_MEMORY_H
#define RF_CLI_RUN_MEMORY_H

#include <stdint.h>

struct run_memory {
    int64_t oom_kills;   /* -1: unknown */
    int64_t limit_bytes; /* -1: none, or unknown */
};

void run_memory_read(struct run_memory *out);

#endif
