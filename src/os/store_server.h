/* The store's server: src/kv behind TCP, with a journal. Driven by its owner: poll the descriptor,
 * then step. */
#ifndef RF_OS_STORE_SERVER_H
#define RF_OS_STORE_SERVER_H

#include <ringfold/error.h>
#include <stdint.h>

enum {
    RF__STORE_CLAIMS = 8, /* both sides claim an id: the client its own, the server its journal's */
    RF__SERVER_CLIENTS = 4096, /* connections at once */
    RF__SERVER_WATCHES = 64    /* of one connection */
};

struct rf__store_server;

struct rf__store_server_options {
    const char *bind;
    const char *journal; /* NULL: in memory only */
    const unsigned char *key;
    size_t key_bytes;
    uint64_t compact_bytes; /* 0: the journal's default */
};

int rf__store_server_create(const struct rf__store_server_options *options,
                            struct rf__store_server **out, struct rf_error *err);
void rf__store_server_destroy(struct rf__store_server *server);
int rf__store_server_fd(const struct rf__store_server *server);
int rf__store_server_port(const struct rf__store_server *server);

/* When a step is due without the descriptor being readable, in ns of rf__now; INT64_MAX: never. */
int64_t rf__store_server_deadline(const struct rf__store_server *server);

/* One round: read and carry out, let leases run out, sync the journal, then answer. An error is
 * final. */
int rf__store_server_step(struct rf__store_server *server, int64_t now, struct rf_error *err);

/* What happened at the start that people may want to know (a torn tail was cut off); "" for
 * nothing. */
const char *rf__store_server_note(const struct rf__store_server *server);

#endif
