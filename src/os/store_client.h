/* The client of our own store, as io/store.h sees it, over a poller.
 *
 * Connects when there is something to ask, to the addresses that the name had at creation, in turn;
 * reconnects as long as anything is unanswered or watched, with jittered back-off of at most a
 * second, and of at most 200 ms where all its addresses are this host's. What was not
 * answered is sent again: a change carries its client's id and a number, so the server applies it
 * once. A wrong key answers everything with RF_EAUTH, for good. */
#ifndef RF_OS_STORE_CLIENT_H
#define RF_OS_STORE_CLIENT_H

#include "io/store.h"
#include "os/poller.h"

enum {
    RF__STORE_CLIENT_REQUESTS = 1024
}; /* unanswered requests and watches at once; more: RF_ELIMIT */

/* `uri` is "tcp://HOST:PORT". The key is copied, the poller borrowed until destroy. Blocks while
 * names are resolved. */
int rf__store_client_create(const char *uri, const unsigned char *key, size_t key_bytes,
                            struct rf__poller *poller, struct rf__store **out,
                            struct rf_error *err);

#endif
