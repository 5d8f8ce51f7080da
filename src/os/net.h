/* The links of one worker over TCP and shared memory: the implementation of io/net.h.
 *
 * The peer with the higher rank dials the lower one. Peers of one host (same boot, network
 * namespace and user) talk through shared memory, all others through TCP; docs/WIRE.md has the
 * layouts. The library's process state stays as it is: no signal handlers, no limits raised. */
#ifndef RF_OS_NET_H
#define RF_OS_NET_H

#include "io/net.h"
#include "os/poller.h"

#include <ringfold/comm.h>

struct rf__net_options {
    const char *job; /* copied */
    const unsigned char *key;
    size_t key_bytes;            /* copied */
    enum rf_transport transport; /* with TCP no memory is shared: net->shared is NULL */
    int detect_ms;               /* connecting may take 2 x this and half a second; 0: 3 s */
    const char *bind;            /* an address to listen at and to be found at; NULL or "": all */
    int port;                    /* TCP; 0: a free one */
    int streams;                 /* TCP connections with each peer, as far as both sides want and
                                    get them; 0: 1 */
    int node;                    /* of this process, as rf__topology_node has it; told to all */
};

/* Registers with `poller`, which must outlive the net. `open` may be called again for a later
 * generation: it ends the links of the earlier one. */
int rf__net_create(const struct rf__net_options *options, struct rf__poller *poller,
                   struct rf__net **out, struct rf_error *err);

#endif
