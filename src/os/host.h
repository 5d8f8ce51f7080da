/* Who this host is, and under which addresses it can be reached. */
#ifndef RF_OS_HOST_H
#define RF_OS_HOST_H

#include "os/endpoint.h"

/* Boot id, network namespace and user: processes with equal identities can share memory and
 * loopback addresses. */
int rf__host_identity(char out[RF__HOST_MAX], struct rf_error *err);

/* The addresses of all interfaces that are up, IPv4 first, each with `port`: at most
 * RF__CANDIDATES. Link-local ones are left out. `v6` tells whether the listener takes IPv6 too.
 * Returns their number. */
int rf__host_addresses(struct rf__address out[], bool v6, uint16_t port, struct rf_error *err);

/* `bytes` random bytes from the kernel. */
int rf__host_random(void *out, size_t bytes, struct rf_error *err);

#endif
