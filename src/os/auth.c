/* The handshake of os/auth.h as a state machine over bytes.
 *
 * Each message is a header of 10 bytes (magic, version, kind, purpose, bytes of the body) and a
 * body whose size is held against the kind's bounds as soon as the header is there. The dialler
 * checks the listener's proof before it shows its own, so a stranger who listens learns nothing
 * that depends on the key but a MAC over nonces. Nothing here may know of sockets. */
#include "os/auth.h"

#include "base/assert.h"
#include "base/cursor.h"
#include "base/status.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <string.h>

enum { VERSION = 1, HEADER = 10, NONCE = 32, MAC = 32, TEXT = 200 };

/* A peer that speaks out of turn can leave one message unsent when the next is written: both fit.
 */
_Static_assert(HEADER + NONCE + MAC + RF__AUTH_CLAIMS + HEADER + 4 + TEXT <= RF__AUTH_MESSAGE,
               "a challenge and a refusal fit");

static const unsigned char magic[4] = {'R', 'F', 'L', 'D'};

enum kind { HELLO = 1, CHALLENGE, PROOF, WELCOME, REFUSED };

/* What a side waits for. */
enum phase { AWAIT_HELLO, AWAIT_CHALLENGE, AWAIT_PROOF, AWAIT_DECISION, AWAIT_ANSWER, AWAIT_SENT };

static const char key_differs[] = "the job key differs";

static bool body_fits(enum kind kind, size_t bytes) {
    switch (kind) {
    case HELLO:
        return bytes >= NONCE && bytes <= NONCE + RF__AUTH_CLAIMS;
    case CHALLENGE:
        return bytes >= NONCE + MAC && bytes <= NONCE + MAC + RF__AUTH_CLAIMS;
    case PROOF:
        return bytes == MAC;
    case WELCOME:
        return bytes == 0;
    case REFUSED:
        return bytes >= 4 && bytes <= 4 + TEXT;
    }
    return false;
}

static bool kind_expected(const struct rf__auth *auth, uint8_t kind) {
    switch ((enum phase)auth->phase) {
    case AWAIT_HELLO:
        return kind == HELLO;
    case AWAIT_CHALLENGE:
        return kind == CHALLENGE || kind == REFUSED;
    case AWAIT_PROOF:
        return kind == PROOF || kind == REFUSED;
    case AWAIT_ANSWER:
        return kind == WELCOME || kind == REFUSED;
    case AWAIT_DECISION:
    case AWAIT_SENT:
        return false;
    }
    return false;
}

/* Puts a message behind what still waits to be sent. */
static void put(struct rf__auth *auth, enum kind kind, const void *first, size_t first_bytes,
                const void *second, size_t second_bytes) {
    size_t waiting = auth->out_bytes - auth->out_taken;
    memmove(auth->out, auth->out + auth->out_taken, waiting);
    auth->out_taken = 0;
    struct rf__writer w = rf__writer(auth->out + waiting, sizeof auth->out - waiting);
    rf__write_bytes(&w, magic, sizeof magic);
    rf__write_u16(&w, VERSION);
    rf__write_u8(&w, (uint8_t)kind);
    rf__write_u8(&w, (uint8_t)auth->options.purpose);
    rf__write_u16(&w, (uint16_t)(first_bytes + second_bytes));
    rf__write_bytes(&w, first, first_bytes);
    rf__write_bytes(&w, second, second_bytes);
    RF_ASSERT(!w.failed);
    auth->out_bytes = sizeof auth->out - w.left;
}

static void put_refusal(struct rf__auth *auth, int code, const char *text) {
    unsigned char number[4];
    struct rf__writer w = rf__writer(number, sizeof number);
    rf__write_u32(&w, (uint32_t)code);
    put(auth, REFUSED, number, sizeof number, text, strnlen(text, TEXT));
}

static void fail(struct rf__auth *auth, int code, const char *text) {
    auth->state = RF__AUTH_FAILED;
    (void)rf__fail(&auth->error, code, 0, "%s", text);
}

/* HMAC(key, label | version | purpose | both nonces | both claims), labels of 8 bytes. */
static bool make_mac(const struct rf__auth *auth, const char label[8], unsigned char out[MAC]) {
    const struct rf__auth_options *options = &auth->options;
    unsigned char text[8 + 3 + 2 * NONCE + 2 * (2 + RF__AUTH_CLAIMS)];
    const unsigned char *claims[2] = {options->claims, auth->peer_claims}; /* dialler, listener */
    size_t claims_bytes[2] = {options->claims_bytes, auth->peer_claims_bytes};
    int first = options->listener ? 1 : 0;
    unsigned length = 0;

    struct rf__writer w = rf__writer(text, sizeof text);
    rf__write_bytes(&w, label, 8);
    rf__write_u16(&w, VERSION);
    rf__write_u8(&w, (uint8_t)options->purpose);
    rf__write_bytes(&w, auth->nonce, sizeof auth->nonce);
    for (int i = 0; i < 2; i++) {
        rf__write_u16(&w, (uint16_t)claims_bytes[first ^ i]);
        rf__write_bytes(&w, claims[first ^ i], claims_bytes[first ^ i]);
    }
    RF_ASSERT(!w.failed);
    return HMAC(EVP_sha256(), options->key, (int)options->key_bytes, text, sizeof text - w.left,
                out, &length) &&
           length == MAC;
}

static bool mac_matches(const struct rf__auth *auth, const char label[8],
                        const unsigned char *claimed) {
    unsigned char mac[MAC];
    bool same = make_mac(auth, label, mac) && CRYPTO_memcmp(mac, claimed, MAC) == 0;
    OPENSSL_cleanse(mac, sizeof mac);
    return same;
}

int rf__auth_start(struct rf__auth *auth, const struct rf__auth_options *options,
                   struct rf_error *err) {
    memset(auth, 0, sizeof *auth);
    auth->error.rank = -1;
    if (!options->key || options->key_bytes < RF_MIN_KEY_BYTES ||
        options->key_bytes > RF_MAX_KEY_BYTES) {
        return rf__fail(err, RF_EINVAL, 0, "the job key has %zu bytes, not %d to %d",
                        options->key_bytes, RF_MIN_KEY_BYTES, RF_MAX_KEY_BYTES);
    }
    if (options->claims_bytes > RF__AUTH_CLAIMS) {
        return rf__fail(err, RF_ELIMIT, 0, "a handshake claims %zu bytes, more than %d",
                        options->claims_bytes, RF__AUTH_CLAIMS);
    }
    auth->options = *options;
    unsigned char *nonce = auth->nonce[options->listener ? 1 : 0];
    if (RAND_bytes(nonce, NONCE) != 1) {
        return rf__fail(err, RF_EIO, 0, "no random bytes for a handshake");
    }
    auth->state = RF__AUTH_RUNNING;
    auth->phase = AWAIT_HELLO;
    if (!options->listener) {
        put(auth, HELLO, nonce, NONCE, options->claims, options->claims_bytes);
        auth->phase = AWAIT_CHALLENGE;
    }
    return 0;
}

size_t rf__auth_output(const struct rf__auth *auth, const void **bytes) {
    *bytes = auth->out + auth->out_taken;
    return auth->out_bytes - auth->out_taken;
}

void rf__auth_sent(struct rf__auth *auth, size_t bytes) {
    RF_ASSERT(bytes <= auth->out_bytes - auth->out_taken);
    auth->out_taken += bytes;
    if (auth->out_taken == auth->out_bytes && auth->phase == AWAIT_SENT &&
        auth->state == RF__AUTH_RUNNING) {
        auth->state = RF__AUTH_DONE;
    }
}

static void take_hello(struct rf__auth *auth, struct rf__reader *body) {
    unsigned char proof[NONCE + MAC];

    rf__read_bytes(body, auth->nonce[0], NONCE);
    auth->peer_claims_bytes = body->left;
    rf__read_bytes(body, auth->peer_claims, body->left);
    memcpy(proof, auth->nonce[1], NONCE);
    if (!make_mac(auth, "listener", proof + NONCE)) {
        fail(auth, RF_EINTERNAL, "the handshake's MAC cannot be computed");
        return;
    }
    put(auth, CHALLENGE, proof, sizeof proof, auth->options.claims, auth->options.claims_bytes);
    auth->phase = AWAIT_PROOF;
}

static void take_challenge(struct rf__auth *auth, struct rf__reader *body) {
    unsigned char claimed[MAC], mac[MAC];

    rf__read_bytes(body, auth->nonce[1], NONCE);
    rf__read_bytes(body, claimed, MAC);
    auth->peer_claims_bytes = body->left;
    rf__read_bytes(body, auth->peer_claims, body->left);
    if (!mac_matches(auth, "listener", claimed)) {
        put_refusal(auth, RF_EAUTH, key_differs);
        fail(auth, RF_EAUTH, key_differs);
        return;
    }
    if (!make_mac(auth, "dialler", mac)) {
        fail(auth, RF_EINTERNAL, "the handshake's MAC cannot be computed");
        return;
    }
    put(auth, PROOF, mac, MAC, NULL, 0);
    auth->phase = AWAIT_ANSWER;
}

static void take_proof(struct rf__auth *auth, struct rf__reader *body) {
    unsigned char claimed[MAC];

    rf__read_bytes(body, claimed, MAC);
    if (mac_matches(auth, "dialler", claimed)) {
        auth->phase = AWAIT_DECISION;
    } else {
        rf__auth_refuse(auth, RF_EAUTH, key_differs);
    }
}

static void take_refusal(struct rf__auth *auth, struct rf__reader *body) {
    char text[TEXT + 1];
    int code = (int)(int32_t)rf__read_u32(body);
    size_t bytes = body->left;

    rf__read_bytes(body, text, bytes);
    text[bytes] = 0;
    for (size_t i = 0; i < bytes; i++) {
        if ((unsigned char)text[i] < ' ' || (unsigned char)text[i] > '~') {
            text[i] = '?';
        }
    }
    fail(auth, code < 0 && code > -1000 ? code : RF_EPROTO, bytes ? text : "refused");
}

static void take_message(struct rf__auth *auth) {
    struct rf__reader body = rf__reader(auth->in + HEADER, auth->in_bytes - HEADER);
    enum kind kind = (enum kind)auth->in[6];

    auth->in_bytes = 0;
    switch (kind) {
    case HELLO:
        take_hello(auth, &body);
        break;
    case CHALLENGE:
        take_challenge(auth, &body);
        break;
    case PROOF:
        take_proof(auth, &body);
        break;
    case WELCOME:
        auth->state = RF__AUTH_DONE;
        break;
    case REFUSED:
        take_refusal(auth, &body);
        break;
    }
}

/* The body's size, or -1 after a header that ends the handshake. Run on every byte of a header that
 * came so far, so that a stranger is found out by its first byte. */
static int check_header(struct rf__auth *auth) {
    struct rf__reader r = rf__reader(auth->in, auth->in_bytes);
    size_t known = auth->in_bytes < sizeof magic ? auth->in_bytes : sizeof magic;

    if (memcmp(auth->in, magic, known) != 0) {
        fail(auth, RF_EPROTO, "the peer does not speak this protocol");
        return -1;
    }
    if (auth->in_bytes < HEADER) {
        return 0;
    }
    (void)rf__read_view(&r, sizeof magic);
    unsigned version = rf__read_u16(&r);
    uint8_t kind = rf__read_u8(&r), purpose = rf__read_u8(&r);
    unsigned bytes = rf__read_u16(&r);
    if (version != VERSION) {
        (void)rf__fail(&auth->error, RF_EPROTO, 0, "the peer speaks version %u, this side %d",
                       version, VERSION);
    } else if (purpose != auth->options.purpose) {
        (void)rf__fail(&auth->error, RF_EPROTO, 0, "the peer wants a connection of kind %u, not %d",
                       purpose, (int)auth->options.purpose);
    } else if (!kind_expected(auth, kind) || !body_fits((enum kind)kind, bytes)) {
        (void)rf__fail(&auth->error, RF_EPROTO, 0,
                       "the peer sent message %u of %u bytes out of turn", kind, bytes);
    } else {
        return (int)bytes;
    }
    auth->state = RF__AUTH_FAILED;
    if (auth->options.listener && auth->phase == AWAIT_HELLO) {
        put_refusal(auth, RF_EPROTO, auth->error.text);
    }
    return -1;
}

size_t rf__auth_wants(const struct rf__auth *auth) {
    if (auth->state != RF__AUTH_RUNNING || auth->phase == AWAIT_DECISION ||
        auth->phase == AWAIT_SENT) {
        return 0;
    }
    if (auth->in_bytes < HEADER) {
        return HEADER - auth->in_bytes;
    }
    struct rf__reader r = rf__reader(auth->in + 8, 2); /* held against its bounds by check_header */
    return HEADER + rf__read_u16(&r) - auth->in_bytes;
}

size_t rf__auth_input(struct rf__auth *auth, const void *bytes, size_t count) {
    const unsigned char *at = bytes;
    size_t taken = 0, wanted;

    while (taken < count && (wanted = rf__auth_wants(auth)) > 0) {
        size_t now = count - taken < wanted ? count - taken : wanted;
        memcpy(auth->in + auth->in_bytes, at + taken, now);
        auth->in_bytes += now;
        taken += now;
        int body = check_header(auth);
        if (body >= 0 && auth->in_bytes >= HEADER && auth->in_bytes == HEADER + (size_t)body) {
            take_message(auth);
        }
    }
    return taken;
}

bool rf__auth_decides(const struct rf__auth *auth) {
    return auth->state == RF__AUTH_RUNNING && auth->phase == AWAIT_DECISION;
}

void rf__auth_accept(struct rf__auth *auth) {
    RF_ASSERT(rf__auth_decides(auth));
    put(auth, WELCOME, NULL, 0, NULL, 0);
    auth->phase = AWAIT_SENT;
}

void rf__auth_refuse(struct rf__auth *auth, int code, const char *text) {
    RF_ASSERT(auth->options.listener && auth->state == RF__AUTH_RUNNING);
    put_refusal(auth, code, text);
    fail(auth, code, text);
}
