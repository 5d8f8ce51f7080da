/* os/auth: both sides of the handshake, joined by a pipe that the test holds in its hands. */
#include "os/auth.h"

#include "base/rng.h"
#include "base/status.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const unsigned char key[32] = "a key that only the job can know";
static const unsigned char other_key[32] = "a key that some other job knows.";

struct pair {
    struct rf__auth dialler, listener;
};

static struct rf__auth_options options_for(bool listener, const unsigned char *with_key) {
    struct rf__auth_options options = {
        .purpose = RF__AUTH_LINK, .listener = listener, .key = with_key, .key_bytes = 32};
    options.claims_bytes = (size_t)snprintf((char *)options.claims, sizeof options.claims,
                                            "claims of the %s", listener ? "listener" : "dialler");
    return options;
}

static void start(struct pair *pair, const unsigned char *dialler_key,
                  const unsigned char *listener_key) {
    struct rf__auth_options d = options_for(false, dialler_key);
    struct rf__auth_options l = options_for(true, listener_key);
    assert_int_equal(rf__auth_start(&pair->dialler, &d, NULL), 0);
    assert_int_equal(rf__auth_start(&pair->listener, &l, NULL), 0);
}

/* Moves what one side has to say to the other, `step` bytes at a time. Bit `flip` of the stream so
 * far sent in this direction is turned over (negative: none). Returns the bytes moved. */
static size_t move(struct rf__auth *from, struct rf__auth *to, size_t step, long flip) {
    size_t moved = 0, waiting;
    const void *bytes;

    while ((waiting = rf__auth_output(from, &bytes)) > 0) {
        unsigned char piece[RF__AUTH_MESSAGE];
        size_t now = waiting < step ? waiting : step;
        memcpy(piece, bytes, now);
        if (flip >= (long)moved * 8 && flip < (long)(moved + now) * 8) {
            piece[flip / 8 - (long)moved] ^= (unsigned char)(1u << (flip % 8));
        }
        for (size_t given = 0; given < now;) {
            size_t taken = rf__auth_input(to, piece + given, now - given);
            if (!taken) {
                break; /* it wants no more: it is through, or it has failed */
            }
            given += taken;
        }
        rf__auth_sent(from, now);
        moved += now;
    }
    return moved;
}

/* Runs to the end; message `flip_message` (0 … 3) has bit `flip` turned over. */
static void run(struct pair *pair, size_t step, int flip_message, long flip) {
    for (int message = 0; message < 4; message++) {
        struct rf__auth *from = message % 2 ? &pair->listener : &pair->dialler;
        struct rf__auth *to = message % 2 ? &pair->dialler : &pair->listener;
        if (rf__auth_decides(&pair->listener)) {
            rf__auth_accept(&pair->listener);
        }
        (void)move(from, to, step, message == flip_message ? flip : -1);
    }
}

static void both_prove_that_they_have_the_key(void **state) {
    (void)state;
    for (size_t step = 1; step < 400; step += step < 4 ? 1 : 37) {
        struct pair pair;
        start(&pair, key, key);
        run(&pair, step, -1, -1);
        assert_int_equal(pair.dialler.state, RF__AUTH_DONE);
        assert_int_equal(pair.listener.state, RF__AUTH_DONE);
        assert_int_equal(pair.dialler.peer_claims_bytes, strlen("claims of the listener"));
        assert_memory_equal(pair.dialler.peer_claims, "claims of the listener", 22);
        assert_memory_equal(pair.listener.peer_claims, "claims of the dialler", 21);
        assert_memory_equal(pair.dialler.nonce, pair.listener.nonce, sizeof pair.dialler.nonce);
        assert_memory_not_equal(pair.dialler.nonce[0], pair.dialler.nonce[1], 32);
    }
}

static void empty_claims_and_the_largest_work(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct pair pair;
        struct rf__auth_options d = options_for(false, key), l = options_for(true, key);
        d.claims_bytes = i ? RF__AUTH_CLAIMS : 0;
        l.claims_bytes = i ? 0 : RF__AUTH_CLAIMS;
        assert_int_equal(rf__auth_start(&pair.dialler, &d, NULL), 0);
        assert_int_equal(rf__auth_start(&pair.listener, &l, NULL), 0);
        run(&pair, 1000, -1, -1);
        assert_int_equal(pair.dialler.state, RF__AUTH_DONE);
        assert_int_equal(pair.listener.state, RF__AUTH_DONE);
        assert_int_equal(pair.listener.peer_claims_bytes, d.claims_bytes);
    }
}

static void a_listener_is_done_only_when_its_welcome_is_sent(void **state) {
    struct pair pair;
    const void *bytes;
    (void)state;
    start(&pair, key, key);
    (void)move(&pair.dialler, &pair.listener, 1000, -1);
    (void)move(&pair.listener, &pair.dialler, 1000, -1);
    (void)move(&pair.dialler, &pair.listener, 1000, -1);
    assert_true(rf__auth_decides(&pair.listener));
    assert_int_equal(rf__auth_wants(&pair.listener), 0);
    rf__auth_accept(&pair.listener);
    size_t waiting = rf__auth_output(&pair.listener, &bytes);
    rf__auth_sent(&pair.listener, waiting - 1);
    assert_int_equal(pair.listener.state, RF__AUTH_RUNNING);
    rf__auth_sent(&pair.listener, 1);
    assert_int_equal(pair.listener.state, RF__AUTH_DONE);
}

static void a_wrong_key_is_refused_on_both_sides(void **state) {
    struct pair pair;
    (void)state;
    start(&pair, other_key, key);
    run(&pair, 7, -1, -1);
    assert_int_equal(pair.dialler.state, RF__AUTH_FAILED);
    assert_int_equal(pair.listener.state, RF__AUTH_FAILED);
    assert_int_equal(pair.dialler.error.code, RF_EAUTH);
    assert_int_equal(pair.listener.error.code, RF_EAUTH);
    assert_string_equal(pair.dialler.error.text, "the job key differs");
}

/* Someone who has seen everything but has no key: a proof made with another key. */
static void a_bad_proof_is_answered_with_a_refusal(void **state) {
    struct pair pair;
    (void)state;
    start(&pair, key, key);
    (void)move(&pair.dialler, &pair.listener, 1000, -1);
    (void)move(&pair.listener, &pair.dialler, 1000, -1);
    (void)move(&pair.dialler, &pair.listener, 1000, 8 * 10 + 3);
    assert_false(rf__auth_decides(&pair.listener));
    assert_int_equal(pair.listener.state, RF__AUTH_FAILED);
    assert_int_equal(pair.listener.error.code, RF_EAUTH);
    assert_true(move(&pair.listener, &pair.dialler, 1, -1) > 0);
    assert_int_equal(pair.dialler.state, RF__AUTH_FAILED);
    assert_int_equal(pair.dialler.error.code, RF_EAUTH);
    assert_string_equal(pair.dialler.error.text, "the job key differs");
}

static void any_flipped_bit_ends_it(void **state) {
    size_t lengths[4] = {0};
    struct pair pair;
    (void)state;
    start(&pair, key, key);
    for (int message = 0; message < 4; message++) {
        if (rf__auth_decides(&pair.listener)) {
            rf__auth_accept(&pair.listener);
        }
        lengths[message] = message % 2 ? move(&pair.listener, &pair.dialler, 1000, -1)
                                       : move(&pair.dialler, &pair.listener, 1000, -1);
    }
    assert_int_equal(lengths[2], 10 + 32);
    assert_int_equal(lengths[3], 10);
    for (int message = 0; message < 4; message++) {
        for (long bit = 0; bit < (long)lengths[message] * 8; bit++) {
            start(&pair, key, key);
            run(&pair, 1000, message, bit);
            assert_int_not_equal(pair.dialler.state, RF__AUTH_DONE);
            if (message < 3) {
                assert_int_not_equal(pair.listener.state, RF__AUTH_DONE);
            }
        }
    }
}

/* Feeds one message made by hand to a fresh listener; returns the handshake. */
static struct rf__auth fed(const unsigned char *bytes, size_t count) {
    struct rf__auth listener;
    struct rf__auth_options options = options_for(true, key);
    assert_int_equal(rf__auth_start(&listener, &options, NULL), 0);
    (void)rf__auth_input(&listener, bytes, count);
    return listener;
}

static void strangers_are_found_out_early(void **state) {
    const void *bytes;
    (void)state;
    struct rf__auth http = fed((const unsigned char *)"GET / HTTP/1.1\r\n", 16);
    assert_int_equal(http.state, RF__AUTH_FAILED);
    assert_int_equal(http.error.code, RF_EPROTO);
    assert_int_equal(rf__auth_output(&http, &bytes), 0);
    struct rf__auth one = fed((const unsigned char *)"X", 1);
    assert_int_equal(one.state, RF__AUTH_FAILED);

    unsigned char header[10] = {'R', 'F', 'L', 'D', 1, 0, 1, RF__AUTH_LINK, 32, 0};
    assert_int_equal(fed(header, 10).state, RF__AUTH_RUNNING);
    struct rf__auth ok = fed(header, 10);
    assert_int_equal(rf__auth_wants(&ok), 32);
    header[4] = 2;
    struct rf__auth version = fed(header, 10);
    assert_int_equal(version.state, RF__AUTH_FAILED);
    assert_int_equal(version.error.code, RF_EPROTO);
    assert_non_null(strstr(version.error.text, "version 2"));

    /* The dialler hears why. */
    struct rf__auth dialler;
    struct rf__auth_options options = options_for(false, key);
    assert_int_equal(rf__auth_start(&dialler, &options, NULL), 0);
    (void)move(&version, &dialler, 1, -1);
    assert_int_equal(dialler.state, RF__AUTH_FAILED);
    assert_int_equal(dialler.error.code, RF_EPROTO);
    assert_string_equal(dialler.error.text, version.error.text);

    header[4] = 1;
    header[7] = RF__AUTH_STORE;
    assert_int_equal(fed(header, 10).error.code, RF_EPROTO);
}

static void claims_beyond_the_maximum_are_refused_at_the_header(void **state) {
    unsigned char header[10] = {'R', 'F', 'L', 'D', 1, 0, 1, RF__AUTH_LINK};
    (void)state;
    for (unsigned bytes = 0; bytes < 65536; bytes += bytes < 300 ? 1 : 997) {
        header[8] = (unsigned char)bytes;
        header[9] = (unsigned char)(bytes >> 8);
        bool fits = bytes >= 32 && bytes <= 32 + RF__AUTH_CLAIMS;
        struct rf__auth listener = fed(header, 10);
        assert_int_equal(listener.state, fits ? RF__AUTH_RUNNING : RF__AUTH_FAILED);
        assert_int_equal(rf__auth_wants(&listener), fits ? bytes : 0);
    }
    struct rf__auth auth;
    struct rf__auth_options options = options_for(false, key);
    options.claims_bytes = RF__AUTH_CLAIMS + 1;
    assert_int_equal(rf__auth_start(&auth, &options, NULL), RF_ELIMIT);
    options.claims_bytes = 0;
    options.key_bytes = RF_MIN_KEY_BYTES - 1;
    assert_int_equal(rf__auth_start(&auth, &options, NULL), RF_EINVAL);
    options.key_bytes = RF_MAX_KEY_BYTES + 1;
    assert_int_equal(rf__auth_start(&auth, &options, NULL), RF_EINVAL);
}

static void a_refusal_carries_its_code_and_text(void **state) {
    struct pair pair;
    char longer[400];
    (void)state;
    memset(longer, 'z', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    const char *texts[] = {"rank 3 is connected already", "bad \x1b[31m text", "", longer};
    for (int i = 0; i < 4; i++) {
        start(&pair, key, key);
        (void)move(&pair.dialler, &pair.listener, 1, -1);
        (void)move(&pair.listener, &pair.dialler, 1, -1);
        (void)move(&pair.dialler, &pair.listener, 1, -1);
        assert_true(rf__auth_decides(&pair.listener));
        rf__auth_refuse(&pair.listener, RF_EREVOKED, texts[i]);
        assert_int_equal(pair.listener.state, RF__AUTH_FAILED);
        (void)move(&pair.listener, &pair.dialler, 1, -1);
        assert_int_equal(pair.dialler.state, RF__AUTH_FAILED);
        assert_int_equal(pair.dialler.error.code, RF_EREVOKED);
        assert_null(strchr(pair.dialler.error.text, 0x1b));
        if (i == 0) {
            assert_string_equal(pair.dialler.error.text, texts[0]);
        }
        assert_true(pair.dialler.error.text[0]);
    }
}

static void nothing_behind_the_handshake_is_taken(void **state) {
    struct pair pair;
    const void *bytes;
    unsigned char buffer[1024];
    (void)state;
    start(&pair, key, key);
    struct rf__auth *sides[2] = {&pair.dialler, &pair.listener};
    for (int message = 0; message < 4; message++) {
        struct rf__auth *from = sides[message % 2], *to = sides[(message + 1) % 2];
        if (rf__auth_decides(&pair.listener)) {
            rf__auth_accept(&pair.listener);
        }
        size_t waiting = rf__auth_output(from, &bytes);
        memcpy(buffer, bytes, waiting);
        rf__auth_sent(from, waiting);
        /* The last message of each side is followed by bytes of the connection's own. */
        size_t extra = message >= 2 ? 100 : 0;
        memset(buffer + waiting, 'R', extra);
        assert_int_equal(rf__auth_input(to, buffer, waiting + extra), waiting);
    }
    assert_int_equal(pair.dialler.state, RF__AUTH_DONE);
    assert_int_equal(pair.listener.state, RF__AUTH_DONE);
    assert_int_equal(rf__auth_wants(&pair.dialler), 0);
    assert_int_equal(rf__auth_input(&pair.dialler, "x", 1), 0);
}

/* A dialler that does not wait for its turn: a hello and a false proof in one piece. */
static void speaking_out_of_turn_is_survived(void **state) {
    unsigned char bytes[10 + 32 + RF__AUTH_CLAIMS + 10 + 32] = {
        'R', 'F', 'L', 'D', 1, 0, 1, RF__AUTH_LINK, 32 + RF__AUTH_CLAIMS};
    static const unsigned char proof[10] = {'R', 'F', 'L', 'D', 1, 0, 3, RF__AUTH_LINK, 32, 0};
    const void *out;
    (void)state;
    memcpy(bytes + 10 + 32 + RF__AUTH_CLAIMS, proof, sizeof proof);
    struct rf__auth listener;
    struct rf__auth_options options = options_for(true, key);
    options.claims_bytes = RF__AUTH_CLAIMS;
    assert_int_equal(rf__auth_start(&listener, &options, NULL), 0);
    assert_int_equal(rf__auth_input(&listener, bytes, sizeof bytes), sizeof bytes);
    assert_int_equal(listener.state, RF__AUTH_FAILED);
    assert_int_equal(listener.error.code, RF_EAUTH);
    assert_true(rf__auth_output(&listener, &out) <= RF__AUTH_MESSAGE);
}

/* Random and mutated bytes into both sides: never a success, never more than the bounds (the
 * sanitizers look on). */
static void noise_never_gets_in(void **state) {
    struct rf__rng rng = rf__rng(20, 4, 1);
    (void)state;
    for (int round = 0; round < 20000; round++) {
        bool listener = rf__rng_below(&rng, 2);
        struct rf__auth auth;
        struct rf__auth_options options = options_for(listener, key);
        assert_int_equal(rf__auth_start(&auth, &options, NULL), 0);
        for (int i = 0; i < 4 && auth.state == RF__AUTH_RUNNING; i++) {
            unsigned char bytes[300] = {'R', 'F', 'L', 'D', 1, 0, 0, RF__AUTH_LINK};
            bytes[6] = (unsigned char)rf__rng_below(&rng, 7);
            bytes[8] = (unsigned char)rf__rng_below(&rng, 256);
            bytes[9] = (unsigned char)rf__rng_below(&rng, 2);
            for (size_t k = 10; k < sizeof bytes; k++) {
                bytes[k] = (unsigned char)rf__rng_u64(&rng);
            }
            if (rf__rng_below(&rng, 4) == 0) {
                bytes[rf__rng_below(&rng, 10)] ^= (unsigned char)rf__rng_below(&rng, 256);
            }
            (void)rf__auth_input(&auth, bytes, 1 + rf__rng_below(&rng, sizeof bytes));
            assert_false(rf__auth_decides(&auth));
            assert_int_not_equal(auth.state, RF__AUTH_DONE);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_prove_that_they_have_the_key),
        cmocka_unit_test(empty_claims_and_the_largest_work),
        cmocka_unit_test(a_listener_is_done_only_when_its_welcome_is_sent),
        cmocka_unit_test(a_wrong_key_is_refused_on_both_sides),
        cmocka_unit_test(a_bad_proof_is_answered_with_a_refusal),
        cmocka_unit_test(any_flipped_bit_ends_it),
        cmocka_unit_test(strangers_are_found_out_early),
        cmocka_unit_test(claims_beyond_the_maximum_are_refused_at_the_header),
        cmocka_unit_test(a_refusal_carries_its_code_and_text),
        cmocka_unit_test(nothing_behind_the_handshake_is_taken),
        cmocka_unit_test(speaking_out_of_turn_is_survived),
        cmocka_unit_test(noise_never_gets_in),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
