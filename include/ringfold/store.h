/* The store: a small key-value service over which workers find each other and agree. Its semantics
 * are a strict subset of etcd v3's: one revision counter that grows with each change,
 * compare-and-swap on a key's revision, keys that die with their lease, watches that resume from a
 * revision.
 *
 * Thread safety: one thread at a time for each object. */
#ifndef RINGFOLD_STORE_H
#define RINGFOLD_STORE_H

#include <ringfold/error.h>
#include <ringfold/limits.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct rf_store_server;
struct rf_store;

struct rf_store_server_options {
    const char *bind; /* "HOST:PORT", "[V6]:PORT", ":PORT"; port 0 takes a free one. Borrowed */
    const char
        *journal; /* file, created if missing and replayed if not; NULL: in memory only. Borrowed */
    const unsigned char *key;
    size_t key_bytes;
};

/* Listens. RF_EADDR (with the address and, where it can be found, who holds it), RF_EJOURNAL (with
 * the path). */
RF_API RF_MUST_CHECK int rf_store_server_create(const struct rf_store_server_options *options,
                                                struct rf_store_server **out, struct rf_error *err);
RF_API void rf_store_server_destroy(struct rf_store_server *server);

/* A descriptor that polls readable when rf_store_server_step has something to do. */
RF_API int rf_store_server_fd(const struct rf_store_server *server);

/* Milliseconds until a lease may run out; -1: nothing to wait for. */
RF_API int rf_store_server_timeout_ms(const struct rf_store_server *server);

/* Serves what is ready, without waiting. An error ends the server (its journal cannot be written).
 */
RF_API RF_MUST_CHECK int rf_store_server_step(struct rf_store_server *server, struct rf_error *err);

RF_API int rf_store_server_port(const struct rf_store_server *server);

/* What people may want to know of the start: that a torn tail of the journal was cut off. "" for
 * nothing. */
RF_API const char *rf_store_server_note(const struct rf_store_server *server);

/* A blocking client, for tools. `uri` is "tcp://HOST:PORT". Each call waits at most `timeout_ms`,
 * reconnecting meanwhile. */
RF_API RF_MUST_CHECK int rf_store_open(const char *uri, const unsigned char *key, size_t key_bytes,
                                       int timeout_ms, struct rf_store **out, struct rf_error *err);
RF_API void rf_store_close(struct rf_store *store);

/* *bytes holds the room at `value` on entry and the value's size on return. *revision is that of
 * the key's last change. RF_ENOTFOUND where there is no such key, RF_ELIMIT where the room is too
 * small. */
RF_API RF_MUST_CHECK int rf_store_get(struct rf_store *store, const char *key, void *value,
                                      size_t *bytes, int64_t *revision, struct rf_error *err);
RF_API RF_MUST_CHECK int rf_store_put(struct rf_store *store, const char *key, const void *value,
                                      size_t bytes, int64_t *revision, struct rf_error *err);

/* Puts only where the key's last change is `expected` (0: there is no such key), else RF_ECONFLICT.
 */
RF_API RF_MUST_CHECK int rf_store_cas(struct rf_store *store, const char *key, int64_t expected,
                                      const void *value, size_t bytes, int64_t *revision,
                                      struct rf_error *err);
RF_API RF_MUST_CHECK int rf_store_delete(struct rf_store *store, const char *key,
                                         struct rf_error *err);

/* Calls `each` for every key that starts with `prefix`, in key order. */
typedef void rf_store_each_fn(void *context, const char *key, const void *value, size_t bytes,
                              int64_t revision);
RF_API RF_MUST_CHECK int rf_store_list(struct rf_store *store, const char *prefix,
                                       rf_store_each_fn *each, void *context, struct rf_error *err);

#ifdef __cplusplus
}
#endif
#endif
