/* os/endpoint: what is written is read back; everything else is refused, within bounds, whatever it
 * is. */
#include "base/rng.h"
#include "io/net.h"
#include "os/endpoint.h"
#include "os/host.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void read_back(const struct rf__endpoint *endpoint) {
    char text[RF__ENDPOINT_MAX], again[RF__ENDPOINT_MAX];
    struct rf__endpoint parsed;
    assert_int_equal(rf__endpoint_format(endpoint, text, sizeof text, NULL), 0);
    assert_int_equal(rf__endpoint_parse(text, &parsed, NULL), 0);
    assert_string_equal(parsed.host, endpoint->host);
    assert_string_equal(parsed.name, endpoint->name);
    assert_int_equal(parsed.count, endpoint->count);
    assert_int_equal(parsed.node, endpoint->node);
    for (int i = 0; i < parsed.count; i++) {
        assert_int_equal(parsed.addresses[i].v6, endpoint->addresses[i].v6);
        assert_int_equal(parsed.addresses[i].port, endpoint->addresses[i].port);
        assert_memory_equal(parsed.addresses[i].bytes, endpoint->addresses[i].bytes, 16);
    }
    assert_int_equal(rf__endpoint_format(&parsed, again, sizeof again, NULL), 0);
    assert_string_equal(again, text);
}

static void make_random(struct rf__rng *rng, struct rf__endpoint *out) {
    *out = (struct rf__endpoint){0};
    snprintf(out->host, sizeof out->host, "%016llx/%llu/0", (unsigned long long)rf__rng_u64(rng),
             (unsigned long long)rf__rng_below(rng, 1000));
    if (rf__rng_below(rng, 3)) {
        snprintf(out->name, sizeof out->name, "ringfold-%016llx",
                 (unsigned long long)rf__rng_u64(rng));
    }
    out->count = (int)rf__rng_below(rng, RF__CANDIDATES + 1);
    out->count += !out->name[0] && !out->count;
    out->node = rf__rng_below(rng, 2) ? -1 : (int)rf__rng_below(rng, RF__NODES);
    for (int i = 0; i < out->count; i++) {
        struct rf__address *a = &out->addresses[i];
        a->v6 = rf__rng_below(rng, 2);
        a->port = (uint16_t)(1 + rf__rng_below(rng, 65535));
        for (int k = 0; k < (a->v6 ? 16 : 4); k++) {
            a->bytes[k] = rf__rng_below(rng, 2) ? (unsigned char)rf__rng_u64(rng) : 0;
        }
    }
}

static void texts_are_read_back(void **state) {
    struct rf__rng rng = rf__rng(1, 0, 0);
    (void)state;
    for (int i = 0; i < 2000; i++) {
        struct rf__endpoint endpoint;
        make_random(&rng, &endpoint);
        read_back(&endpoint);
    }
}

static void the_own_host_is_described(void **state) {
    struct rf__endpoint endpoint = {.name = "x"};
    char again[RF__HOST_MAX];
    (void)state;
    assert_int_equal(rf__host_identity(endpoint.host, NULL), 0);
    assert_int_equal(rf__host_identity(again, NULL), 0);
    assert_string_equal(endpoint.host, again);
    endpoint.count = rf__host_addresses(endpoint.addresses, true, 4242, NULL);
    assert_true(endpoint.count > 0 && endpoint.count <= RF__CANDIDATES);
    read_back(&endpoint);
}

static void other_texts_are_refused(void **state) {
    static const char *const bad[] = {
        "",
        "rf1",
        "rf2 host=h unix=u tcp=1.2.3.4:5",
        "rf1 host= unix=u tcp=1.2.3.4:5",
        "rf1 host=h unix= tcp=1.2.3.4:5",
        "rf1 host=h unix=- tcp=-",
        "rf1 host=h unix=u tcp=",
        "rf1 host=h unix=u tcp=1.2.3.4:5 ",
        "rf1 host=h unix=u tcp=1.2.3.4:5 more=1",
        "rf1 host=h  unix=u tcp=1.2.3.4:5",
        "rf1 host=h unix=u/../x tcp=1.2.3.4:5",
        "rf1 host=h unix=u tcp=1.2.3.4",
        "rf1 host=h unix=u tcp=1.2.3.4:",
        "rf1 host=h unix=u tcp=1.2.3.4:0",
        "rf1 host=h unix=u tcp=1.2.3.4:05",
        "rf1 host=h unix=u tcp=1.2.3.4:65536",
        "rf1 host=h unix=u tcp=1.2.3.4:123456",
        "rf1 host=h unix=u tcp=1.2.3.4:99999999999999999999",
        "rf1 host=h unix=u tcp=1.2.3.256:5",
        "rf1 host=h unix=u tcp=1.2.3.4:5,",
        "rf1 host=h unix=u tcp=,1.2.3.4:5",
        "rf1 host=h unix=u tcp=::1:5",
        "rf1 host=h unix=u tcp=[1.2.3.4]:5",
        "rf1 host=h unix=u tcp=[::1:5",
        "rf1 host=h unix=u tcp=[::1]5",
        "rf1 host=h unix=u tcp=]:5",
        "rf1 host=h unix=u tcp=[:5",
        "rf1 host=h unix=u tcp=[]:5",
        "rf1 host=h unix=u tcp=:5",
        "rf1 host=h unix=u tcp=[fe80::1%eth0]:5",
        "rf1 host=h unix=u tcp=host.example:5",
        "rf1 host=h\n unix=u tcp=1.2.3.4:5",
        "rf1 host=h unix=u tcp=1.2.3.4:5 node=",
        "rf1 host=h unix=u tcp=1.2.3.4:5 node=-1",
        "rf1 host=h unix=u tcp=1.2.3.4:5 node=01",
        "rf1 host=h unix=u tcp=1.2.3.4:5 node=1a",
        "rf1 host=h unix=u tcp=1.2.3.4:5 node=65536",
        "rf1 host=h unix=u tcp=1.2.3.4:5 node=4294967296",
        "rf1 host=h unix=u tcp=1.2.3.4:5 node=1 ",
        "rf1 host=h unix=u tcp=1.2.3.4:5 node=1 node=1",
        "rf1 host=h unix=u node=1",
    };
    struct rf__endpoint out;
    struct rf_error err;
    char longer[RF__ENDPOINT_MAX + 100];
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (rf__endpoint_parse(bad[i], &out, &err) != RF_EPROTO) {
            fail_msg("'%s' was taken", bad[i]);
        }
        assert_int_equal(err.code, RF_EPROTO);
        assert_int_equal(out.count + out.name[0] + out.host[0], 0);
    }
    for (size_t room = 60; room < sizeof longer; room += 100) {
        memset(longer, 'a', sizeof longer);
        memcpy(longer, "rf1 host=", 9);
        longer[room] = 0;
        assert_int_equal(rf__endpoint_parse(longer, &out, &err), RF_EPROTO);
    }
    int used = snprintf(longer, sizeof longer, "rf1 host=h unix=u tcp=1.2.3.4:5");
    for (int i = 0; i < RF__CANDIDATES; i++) { /* one too many */
        used += snprintf(longer + used, sizeof longer - (size_t)used, ",1.2.3.4:5");
    }
    assert_int_equal(rf__endpoint_parse(longer, &out, &err), RF_EPROTO);
    longer[used - 10] = 0;
    assert_int_equal(rf__endpoint_parse(longer, &out, &err), 0);
    assert_int_equal(out.count, RF__CANDIDATES);
}

/* Seeded mutations of good texts, each in a block of exactly its size so that a read past its end
 * is seen. What is taken must be written and read again to the same. */
static void mutations_do_no_harm(void **state) {
    static const char alphabet[] = "rf1 host=unix=tcp=-./:,[]0123456789abcdefx\n\xff%";
    struct rf__rng rng = rf__rng(2, 0, 0);
    int taken = 0;
    (void)state;
    for (int i = 0; i < 30000; i++) {
        struct rf__endpoint endpoint;
        char text[RF__ENDPOINT_MAX + 64];
        make_random(&rng, &endpoint);
        assert_int_equal(rf__endpoint_format(&endpoint, text, sizeof text, NULL), 0);
        size_t length = strlen(text);
        for (uint64_t changes = 1 + rf__rng_below(&rng, 4); changes; changes--) {
            size_t at = (size_t)rf__rng_below(&rng, length + 1);
            char c = alphabet[rf__rng_below(&rng, sizeof alphabet - 1)];
            switch (rf__rng_below(&rng, 4)) {
            case 0:
                text[at] = at < length ? c : 0;
                break;
            case 1:
                length = at;
                text[length] = 0;
                break;
            case 2:
                if (length + 1 < sizeof text) {
                    memmove(text + at + 1, text + at, length - at + 1);
                    text[at] = c;
                    length++;
                }
                break;
            default:
                if (at < length) {
                    memmove(text + at, text + at + 1, length - at);
                    length--;
                }
            }
        }
        char *exact = malloc(length + 1);
        assert_non_null(exact);
        memcpy(exact, text, length + 1);
        struct rf__endpoint out;
        if (rf__endpoint_parse(exact, &out, NULL) == 0) {
            taken++;
            read_back(&out);
        }
        free(exact);
    }
    assert_true(taken > 100 && taken < 29000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_are_read_back),
        cmocka_unit_test(the_own_host_is_described),
        cmocka_unit_test(other_texts_are_refused),
        cmocka_unit_test(mutations_do_no_harm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
