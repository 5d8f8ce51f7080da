/* The handshake at the start of every connection: both sides prove that they have the job's key
 * without showing it.
 *
 *     dialler -> listener   HELLO      magic, version, purpose, nonce_d[32], claims
 *     listener -> dialler   CHALLENGE  nonce_l[32], claims, HMAC(key, "listener" | both nonces |
 * both claims | purpose) dialler -> listener   PROOF      HMAC(key, "dialler" | both nonces | both
 * claims | purpose) listener -> dialler   WELCOME    or REFUSED with a code and a text
 *
 * HMAC-SHA-256 (OpenSSL). Claims are up to RF__AUTH_CLAIMS bytes that each side says of itself
 * (job, generation, rank), covered by the proof. A state machine over bytes: no socket, no clock.
 * docs/WIRE.md has the layout. */
#ifndef RF_OS_AUTH_H
#define RF_OS_AUTH_H

#include <ringfold/error.h>
#include <ringfold/limits.h>
#include <stdbool.h>
#include <stdint.h>

enum { RF__AUTH_CLAIMS = 192, RF__AUTH_MESSAGE = 512 };

enum rf__auth_purpose { RF__AUTH_LINK = 1, RF__AUTH_STORE = 2 };
enum rf__auth_state { RF__AUTH_RUNNING, RF__AUTH_DONE, RF__AUTH_FAILED };

struct rf__auth_options {
    enum rf__auth_purpose purpose;
    bool listener;
    const unsigned char *key; /* borrowed while the handshake runs */
    size_t key_bytes;
    unsigned char claims[RF__AUTH_CLAIMS];
    size_t claims_bytes;
};

struct rf__auth {
    struct rf__auth_options options;
    enum rf__auth_state state;
    int phase;
    unsigned char nonce[2][32]; /* dialler's, listener's */
    unsigned char peer_claims[RF__AUTH_CLAIMS];
    size_t peer_claims_bytes;
    unsigned char in[RF__AUTH_MESSAGE], out[RF__AUTH_MESSAGE];
    size_t in_bytes, out_bytes, out_taken;
    struct rf_error error; /* once FAILED: RF_EAUTH, RF_EPROTO, or what the listener refused with */
};

int rf__auth_start(struct rf__auth *auth, const struct rf__auth_options *options,
                   struct rf_error *err);

/* Bytes that wait to be sent; say how many were. */
size_t rf__auth_output(const struct rf__auth *auth, const void **bytes);
void rf__auth_sent(struct rf__auth *auth, size_t bytes);

/* Takes received bytes, at most as many as the handshake needs (never one of what follows it):
 * returns the number taken. Check `state` after: DONE only once the output is sent too. */
size_t rf__auth_input(struct rf__auth *auth, const void *bytes, size_t count);

/* How many more bytes may be read for the handshake now, so that a reader never takes what follows:
 * 0 when none. */
size_t rf__auth_wants(const struct rf__auth *auth);

/* The listener, once it has seen the dialler's valid proof (`rf__auth_decides` says so), accepts or
 * refuses it: refuse with a code and a text that the dialler will report. */
bool rf__auth_decides(const struct rf__auth *auth);
void rf__auth_accept(struct rf__auth *auth);
void rf__auth_refuse(struct rf__auth *auth, int code, const char *text);

#endif
