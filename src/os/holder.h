/* Who listens on a TCP port of this host, for the report when it is taken. */
#ifndef RF_OS_HOLDER_H
#define RF_OS_HOLDER_H

#include <stdbool.h>
#include <stddef.h>

/* "pid 4711 (python3)" into `out`. False where it cannot be found (another user's process, no
 * /proc). */
bool rf__port_holder(int port, char *out, size_t bytes);

#endif
