/* What store_server.c and its parts share: a server, its connections and what is under way on them.
 * Included by nobody else.
 *
 * store_server.c owns life and step, store_listen.c the addresses it listens on, store_conn.c the
 * sockets and their bytes, store_requests.c what the requests mean. */
#ifndef RF_OS_STORE_SERVER_INTERNAL_H
#define RF_OS_STORE_SERVER_INTERNAL_H

#include "io/clock.h"
#include "kv/wire.h"
#include "os/address.h"
#include "os/auth.h"
#include "os/buffer.h"
#include "os/journal.h"
#include "os/store_server.h"

#include <ringfold/limits.h>
#include <stdbool.h>

enum {
    RF__SERVER_OUTPUT_MARK = 1 << 20, /* with more than this unsent, nothing more is served */
};

/* How long nothing is accepted after there were no descriptors left. */
#define RF__SERVER_ACCEPT_PAUSE (100 * RF__MS)

struct rf__server_watch {
    uint64_t number;
    int64_t next, told; /* the next revision to look at; what the client knows it has seen */
    size_t prefix_bytes;
    char *prefix;
};

/* A listing under way: it holds on to the items as they were. */
struct rf__server_listing {
    uint64_t number;
    int64_t revision;
    struct rf__kv_item **items;
    size_t count, next;
};

struct rf__server_conn {
    int fd;
    size_t index; /* in the server's table */
    bool dead, accepted;
    uint32_t interest;
    int64_t handshake_until;
    struct rf__auth auth;
    uint64_t client;
    struct rf__buffer in, out;
    struct rf__server_watch watches[RF__SERVER_WATCHES];
    size_t watch_count;
    struct rf__server_listing listing;
};

struct rf__store_server {
    int epoll;
    int listeners[RF__ADDRESSES];
    int listener_count, port;
    bool listening;       /* the listeners are in the epoll set */
    int64_t accept_again; /* when, after there were no descriptors left */
    unsigned char key[RF_MAX_KEY_BYTES];
    size_t key_bytes;
    uint64_t id;
    struct rf__kv *kv;
    struct rf__journal *journal; /* NULL: in memory only */
    struct rf__server_conn **connections;
    size_t connection_count, connection_capacity;
    unsigned char *record;
    char note[RF_ERROR_TEXT_MAX];
};

/* store_listen.c */
int rf__server_listen(struct rf__store_server *server, const char *bind_to, struct rf_error *err);
void rf__server_stop_listening(struct rf__store_server *server);

/* Whether connections are accepted now; 0 or an errno. */
int rf__server_watch_listeners(struct rf__store_server *server, bool on);

/* store_conn.c. A connection that is `dead` is removed at the end of the step. */
void rf__server_accept(struct rf__store_server *server, int64_t now);
void rf__server_read_handshake(struct rf__server_conn *connection);

/* False where the server has to end. */
bool rf__server_read_requests(struct rf__store_server *server, struct rf__server_conn *connection,
                              int64_t now);
void rf__server_flush(struct rf__server_conn *connection);
void rf__server_set_interest(struct rf__store_server *server, struct rf__server_conn *connection);
void rf__server_remove_conn(struct rf__store_server *server, struct rf__server_conn *connection);
void rf__server_free_conn(struct rf__server_conn *connection);

/* store_requests.c. Carries out what has been received whole, as far as there is room for answers;
 * false where the server has to end. */
bool rf__server_serve_frames(struct rf__store_server *server, struct rf__server_conn *connection,
                             int64_t now);
bool rf__server_may_serve(const struct rf__server_conn *connection);

/* The next whole frame's body, or NULL. */
const unsigned char *rf__server_next_frame(struct rf__server_conn *connection, size_t *bytes);

/* Tells the watches what they have not seen, as far as there is room. */
void rf__server_go_on_watching(struct rf__store_server *server, struct rf__server_conn *connection);
void rf__server_end_listing(struct rf__server_listing *listing);

/* False: no memory, and the change would be lost. */
bool rf__server_log_change(struct rf__store_server *server, uint64_t client,
                           const struct rf__kv_request *request);

#endif
