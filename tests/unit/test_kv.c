/* kv/: the store's state machine, without any socket or clock. */
#include "base/mem.h"
#include "base/rng.h"
#include "kv/kv.h"
#include "kv/wire.h"

#include <ringfold/error.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MS 1000000ll

static struct rf__kv *kv;
static int64_t now;
static uint64_t number;
static struct rf__kv_result result;

static int set_up(void **state) {
    (void)state;
    kv = rf__kv_create();
    now = 1000 * MS;
    number = 0;
    assert_non_null(kv);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    rf__kv_destroy(kv);
    return 0;
}

static struct rf__kv_request make(enum rf__kv_op op, const char *key, const char *value) {
    return (struct rf__kv_request){.op = op,
                                   .key = key,
                                   .key_bytes = strlen(key),
                                   .value = (const unsigned char *)value,
                                   .value_bytes = strlen(value)};
}

static int change(uint64_t client, struct rf__kv_request request) {
    request.number = request.number ? request.number : ++number;
    int64_t before = rf__kv_revision(kv);
    bool changed = rf__kv_change(kv, client, &request, now, &result);
    assert_int_equal(changed, result.code == 0);
    assert_true(changed || rf__kv_revision(kv) == before);
    return result.code;
}

static int put(const char *key, const char *value, uint64_t lease) {
    struct rf__kv_request request = make(RF__KV_PUT, key, value);
    request.lease = lease;
    return change(1, request);
}

static int cas(uint64_t client, const char *key, const char *value, int64_t expected) {
    struct rf__kv_request request = make(RF__KV_CAS, key, value);
    request.revision = expected;
    return change(client, request);
}

static uint64_t grant(int64_t ttl_ms) {
    struct rf__kv_request request = {.op = RF__KV_LEASE, .ttl_ms = ttl_ms};
    assert_int_equal(change(1, request), 0);
    return result.lease;
}

static int revoke(uint64_t lease) {
    struct rf__kv_request request = {.op = RF__KV_REVOKE, .lease = lease};
    return change(1, request);
}

static const char *value_of(const char *key) {
    static char text[64];
    const struct rf__kv_item *item = rf__kv_get(kv, key, strlen(key));
    if (!item) {
        return NULL;
    }
    snprintf(text, sizeof text, "%.*s", (int)item->value_bytes, (const char *)item->value);
    return text;
}

static void one_counter_grows_with_each_change(void **state) {
    (void)state;
    assert_int_equal(put("a", "1", 0), 0);
    assert_int_equal(result.key_revision, 1);
    assert_int_equal(put("b", "2", 0), 0);
    assert_int_equal(put("a", "3", 0), 0);
    assert_int_equal(result.key_revision, 3);
    assert_int_equal(rf__kv_get(kv, "b", 1)->revision, 2);
    assert_string_equal(value_of("a"), "3");
    assert_int_equal(change(1, make(RF__KV_DELETE, "b", "")), 0);
    assert_int_equal(result.store_revision, 4);
    assert_null(value_of("b"));
    assert_int_equal(change(1, make(RF__KV_DELETE, "b", "")), RF_ENOTFOUND);
    assert_int_equal(rf__kv_revision(kv), 4);
    assert_int_equal(put("b", "", 0), 0);
    assert_string_equal(value_of("b"), "");
    (void)grant(100);
    assert_int_equal(rf__kv_revision(kv), 5);
    assert_int_equal(rf__kv_count(kv), 2);
    assert_int_equal(rf__kv_bytes(kv), 1 + 1 + 1);
}

/* Two clients read the counter and swap in one more, in every interleaving of their steps: one of
 * two that read the same loses, and after each has retried until it won, both counted. */
static void compare_and_swap_lets_one_win(void **state) {
    (void)state;
    for (unsigned order = 0; order < 1u << 12; order++) {
        rf__kv_destroy(kv);
        kv = rf__kv_create();
        number = 0;
        int64_t read_revision[2] = {-1, -1};
        int read_value[2] = {0, 0}, won[2] = {0, 0}, lost = 0;
        for (int i = 0; won[0] + won[1] < 4; i++) {
            int who = (order >> (i % 12)) & 1;
            who = won[who] == 2 ? !who : who;
            if (read_revision[who] < 0) {
                const struct rf__kv_item *item = rf__kv_get(kv, "n", 1);
                read_revision[who] = item ? item->revision : 0;
                read_value[who] = item ? atoi(value_of("n")) : 0;
                continue;
            }
            char text[16];
            snprintf(text, sizeof text, "%d", read_value[who] + 1);
            int code = cas((uint64_t)who + 1, "n", text, read_revision[who]);
            assert_true(code == 0 || code == RF_ECONFLICT);
            if (code == 0) {
                assert_true(result.key_revision > read_revision[who]);
                assert_string_equal(value_of("n"), text);
            }
            won[who] += code == 0;
            lost += code != 0;
            read_revision[who] = -1;
        }
        assert_string_equal(value_of("n"), "4");
        assert_true(lost <= 4);
    }
    assert_int_equal(cas(1, "fresh", "x", 3), RF_ECONFLICT);
    assert_int_equal(result.key_revision, 0);
    assert_int_equal(cas(1, "fresh", "x", 0), 0);
    assert_int_equal(cas(1, "fresh", "y", 0), RF_ECONFLICT);
}

static void keys_die_with_their_lease(void **state) {
    (void)state;
    uint64_t a = grant(100), b = grant(200);
    assert_int_equal(put("k1", "a", a), 0);
    assert_int_equal(put("k2", "b", b), 0);
    assert_int_equal(put("k3", "a", a), 0);
    assert_int_equal(put("k4", "a", a), 0);
    assert_int_equal(put("k4", "none", 0), 0); /* no longer bound */
    assert_int_equal(put("k5", "?", 999), RF_ENOTFOUND);
    assert_int_equal(rf__kv_next_expiry(kv), now + 100 * MS);
    assert_int_equal(rf__kv_expired(kv, now + 100 * MS - 1), 0);
    assert_int_equal(rf__kv_expired(kv, now + 100 * MS), a);
    assert_int_equal(rf__kv_keepalive(kv, a, 0, now + 90 * MS), 0);
    assert_int_equal(rf__kv_expired(kv, now + 189 * MS), 0);
    assert_int_equal(rf__kv_expired(kv, now + 190 * MS), a);
    assert_int_equal(revoke(a), 0);
    assert_int_equal(result.store_revision, 7); /* five puts, two keys died */
    assert_null(value_of("k1"));
    assert_null(value_of("k3"));
    assert_string_equal(value_of("k2"), "b");
    assert_string_equal(value_of("k4"), "none");
    assert_true(rf__kv_history(kv, 6)->deleted && rf__kv_history(kv, 7)->deleted);
    assert_string_equal(rf__kv_history(kv, 6)->key, "k1");
    assert_string_equal(rf__kv_history(kv, 7)->key, "k3");
    assert_int_equal(rf__kv_keepalive(kv, a, 0, now), RF_ENOTFOUND);
    assert_int_equal(revoke(a), RF_ENOTFOUND);
    assert_int_equal(rf__kv_next_expiry(kv), now + 200 * MS);
    rf__kv_renew(kv, now + 500 * MS);
    assert_int_equal(rf__kv_next_expiry(kv), now + 700 * MS);
    assert_int_equal(rf__kv_keepalive(kv, b, 50, now + 500 * MS), 0);
    assert_int_equal(rf__kv_next_expiry(kv), now + 550 * MS);
    assert_int_equal(rf__kv_keepalive(kv, b, RF__KV_MAX_TTL_MS + 1, now), RF_EINVAL);
    assert_int_equal(revoke(b), 0);
    assert_int_equal(rf__kv_next_expiry(kv), INT64_MAX);
    assert_int_not_equal(grant(100), a);
}

static void a_change_that_comes_again_is_applied_once(void **state) {
    (void)state;
    struct rf__kv_request first = make(RF__KV_PUT, "k", "first");
    first.number = 10;
    assert_int_equal(change(1, first), 0);
    struct rf__kv_request lease = {.op = RF__KV_LEASE, .ttl_ms = 100, .number = 11};
    assert_int_equal(change(1, lease), 0);
    struct rf__kv_result lease_result = result;
    struct rf__kv_request conflict = make(RF__KV_CAS, "k", "x");
    conflict.number = 12;
    conflict.revision = 9;
    assert_int_equal(change(1, conflict), RF_ECONFLICT);
    number = 20;
    assert_int_equal(put("k", "second", 0), 0);

    for (int i = 0; i < 3; i++) {
        assert_false(rf__kv_change(kv, 1, &first, now, &result));
        assert_int_equal(result.code, 0);
        assert_int_equal(result.key_revision, 1);
        assert_false(rf__kv_change(kv, 1, &lease, now, &result));
        assert_int_equal(result.lease, lease_result.lease);
        assert_false(rf__kv_change(kv, 1, &conflict, now, &result));
        assert_int_equal(result.code, RF_ECONFLICT);
    }
    assert_string_equal(value_of("k"), "second");
    assert_int_equal(rf__kv_revision(kv), 2);
    /* Another client's number 10 is another request. */
    assert_true(rf__kv_change(kv, 2, &first, now, &result));
    assert_string_equal(value_of("k"), "first");
    /* A number that is neither new nor remembered is refused, never applied. */
    for (int i = 0; i < RF__KV_CLIENT_REPLIES; i++) {
        assert_int_equal(put("k", "later", 0), 0);
    }
    assert_false(rf__kv_change(kv, 1, &first, now, &result));
    assert_int_equal(result.code, RF_ELIMIT);
    first.number = 15; /* was never sent, but a newer one was */
    assert_false(rf__kv_change(kv, 1, &first, now, &result));
    assert_int_equal(result.code, RF_ELIMIT);
    first.number = 0;
    assert_false(rf__kv_change(kv, 1, &first, now, &result));
    assert_int_equal(result.code, RF_EINVAL);
    assert_string_equal(value_of("k"), "later");
}

static void only_so_many_clients_are_remembered(void **state) {
    (void)state;
    struct rf__kv_request request = make(RF__KV_PUT, "k", "v");
    request.number = 1;
    for (uint64_t client = 1; client <= RF__KV_MAX_CLIENTS; client++) {
        assert_true(rf__kv_change(kv, client * 4099, &request, now, &result));
    }
    assert_false(rf__kv_change(kv, 4099, &request, now, &result)); /* used again: stays */
    assert_true(rf__kv_change(kv, 5, &request, now, &result));     /* takes the second's place */
    assert_false(rf__kv_change(kv, 4099, &request, now, &result));
    assert_false(rf__kv_change(kv, 5, &request, now, &result));
    assert_false(rf__kv_change(kv, 3 * 4099, &request, now, &result));
    assert_true(rf__kv_change(kv, 2 * 4099, &request, now, &result));
}

/* What a watcher does: from a revision on, every change of a prefix, in order. */
static void a_watch_can_go_back(void **state) {
    (void)state;
    struct rf__rng rng = rf__rng(3, 3, 3);
    enum { CHANGES = 10000 };
    for (int i = 0; i < CHANGES; i++) {
        char key[16];
        snprintf(key, sizeof key, "%c/%d", 'a' + (int)rf__rng_below(&rng, 3), i % 7);
        assert_int_equal(put(key, "v", 0), 0);
    }
    int64_t oldest = rf__kv_oldest(kv);
    assert_int_equal(oldest, CHANGES - RF__KV_HISTORY + 1);
    assert_null(rf__kv_history(kv, oldest - 1));
    assert_null(rf__kv_history(kv, CHANGES + 1));
    int matching = 0;
    for (int64_t revision = oldest; revision <= CHANGES; revision++) {
        const struct rf__kv_item *item = rf__kv_history(kv, revision);
        assert_int_equal(item->revision, revision);
        matching += rf__kv_has_prefix(item, "b/", 2);
        assert_true(rf__kv_has_prefix(item, "", 0));
        assert_false(rf__kv_has_prefix(item, "b/0000", 6));
    }
    assert_true(matching > RF__KV_HISTORY / 4 && matching < RF__KV_HISTORY / 2);

    /* By bytes, too: seventeen of the largest values do not fit. */
    char *value = malloc(RF_MAX_STORE_VALUE + 1);
    memset(value, 'v', RF_MAX_STORE_VALUE);
    value[RF_MAX_STORE_VALUE] = 0;
    for (int i = 0; i < 20; i++) {
        assert_int_equal(put("large", value, 0), 0);
    }
    int64_t held = rf__kv_revision(kv) - rf__kv_oldest(kv) + 1;
    assert_true(held >= 15 && held <= 16);
    free(value);
}

static void ranges_are_in_byte_order(void **state) {
    (void)state;
    const char *keys[] = {"b", "a/2", "a", "a/10", "a/1", "a0", "\x7f", "a/\xff"};
    size_t first;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        assert_int_equal(put(keys[i], "", 0), 0);
    }
    assert_int_equal(rf__kv_range(kv, "a/", 2, &first), 4);
    const char *expected[] = {"a/1", "a/10", "a/2", "a/\xff"};
    for (size_t i = 0; i < 4; i++) {
        assert_string_equal(rf__kv_at(kv, first + i)->key, expected[i]);
    }
    assert_int_equal(rf__kv_range(kv, "", 0, &first), 8);
    assert_int_equal(rf__kv_range(kv, "a/3", 3, &first), 0);
    assert_int_equal(rf__kv_range(kv, "zz", 2, &first), 0);
}

static void limits_hold(void **state) {
    (void)state;
    struct rf__kv_request request = make(RF__KV_PUT, "", "");
    assert_int_equal(rf__kv_check_request(&request), RF_EINVAL);
    char key[RF_MAX_STORE_KEY + 2];
    memset(key, 'k', sizeof key - 1);
    key[sizeof key - 1] = 0;
    request = make(RF__KV_PUT, key, "");
    assert_int_equal(rf__kv_check_request(&request), RF_ELIMIT);
    request.key_bytes--;
    assert_int_equal(rf__kv_check_request(&request), 0);
    request.key = "a\0b";
    request.key_bytes = 3;
    assert_int_equal(rf__kv_check_request(&request), RF_EINVAL);
    request = (struct rf__kv_request){.op = RF__KV_LEASE, .ttl_ms = 0};
    assert_int_equal(rf__kv_check_request(&request), RF_EINVAL);
    request.ttl_ms = RF__KV_MAX_TTL_MS + 1ll;
    assert_int_equal(rf__kv_check_request(&request), RF_EINVAL);

    for (int i = 0; i < RF__KV_MAX_LEASES; i++) {
        (void)grant(1000);
    }
    request.ttl_ms = 1000;
    assert_int_equal(change(1, request), RF_ELIMIT);

    for (int i = 0; i < RF__KV_MAX_KEYS; i++) {
        char name[16];
        snprintf(name, sizeof name, "%07d", (int)((unsigned)i * 40503u % RF__KV_MAX_KEYS));
        assert_int_equal(put(name, "", 0), 0);
    }
    assert_int_equal(rf__kv_count(kv), RF__KV_MAX_KEYS);
    assert_int_equal(put("one more", "", 0), RF_ELIMIT);
    assert_int_equal(put("0000000", "again", 0), 0);
    char *value = malloc(RF_MAX_STORE_VALUE + 1);
    memset(value, 'v', RF_MAX_STORE_VALUE);
    value[RF_MAX_STORE_VALUE] = 0;
    int code = 0, large = 0;
    for (; !code && large < 300; large++) {
        char name[16];
        snprintf(name, sizeof name, "%07d", large);
        code = put(name, value, 0);
    }
    assert_int_equal(code, RF_ELIMIT);
    assert_true(rf__kv_bytes(kv) <= RF__KV_MAX_BYTES);
    assert_true(large > 250);
    free(value);
}

static size_t state_records(const struct rf__kv *from, unsigned char *out, size_t room,
                            size_t *sizes) {
    struct rf__kv_cursor cursor = {0};
    size_t count = 0, bytes;
    while ((bytes = rf__kv_snapshot_record(from, &cursor, out, room)) > 0) {
        sizes[count++] = bytes;
        out += bytes;
        room -= bytes;
    }
    return count;
}

/* A snapshot replayed gives the same snapshot, and goes on in the same way. */
static void a_snapshot_is_the_whole_state(void **state) {
    (void)state;
    enum { ROOM = 4 << 20, RECORDS = 20000 };
    unsigned char *one = malloc(ROOM), *two = malloc(ROOM);
    static size_t one_sizes[RECORDS], two_sizes[RECORDS];
    struct rf__rng rng = rf__rng(9, 9, 9);
    for (int i = 0; i < 6000; i++) {
        char key[16];
        snprintf(key, sizeof key, "k%d", (int)rf__rng_below(&rng, 50));
        uint64_t client = 1 + rf__rng_below(&rng, 5);
        struct rf__kv_request request = make(RF__KV_PUT, key, "value");
        switch (rf__rng_below(&rng, 6)) {
        case 0:
            request = make(RF__KV_DELETE, key, "");
            break;
        case 1:
            request = (struct rf__kv_request){.op = RF__KV_LEASE, .ttl_ms = 100 + i};
            break;
        case 2:
            request = (struct rf__kv_request){.op = RF__KV_REVOKE,
                                              .lease = rf__rng_below(&rng, (uint64_t)i + 1) / 6};
            break;
        case 3:
            request.op = RF__KV_CAS;
            request.revision = rf__kv_revision(kv);
            break;
        default:
            request.lease = rf__rng_below(&rng, 2) * rf__rng_below(&rng, (uint64_t)i + 1) / 6;
            break;
        }
        (void)change(client, request);
    }
    struct rf__kv *twin = rf__kv_create();
    size_t count = state_records(kv, one, ROOM, one_sizes);
    for (size_t i = 0, at = 0; i < count; i++) {
        assert_int_equal(rf__kv_replay(twin, one + at, one_sizes[i]), 0);
        assert_int_equal(rf__kv_is_whole(twin), i + 1 == count);
        at += one_sizes[i];
    }
    assert_int_equal(state_records(twin, two, ROOM, two_sizes), count);
    assert_memory_equal(one_sizes, two_sizes, count * sizeof *one_sizes);
    size_t total = 0;
    for (size_t i = 0; i < count; i++) {
        total += one_sizes[i];
    }
    assert_memory_equal(one, two, total);

    /* The same commands lead both to the same place; a record of another history is noticed. */
    struct rf__kv_request request = make(RF__KV_PUT, "k1", "next");
    request.number = number + 1;
    assert_int_equal(change(3, request), 0);
    size_t bytes = rf__kv_command_record(kv, 3, &request, one, ROOM);
    assert_int_equal(rf__kv_replay(twin, one, bytes), 0);
    assert_int_equal(rf__kv_revision(twin), rf__kv_revision(kv));
    assert_int_equal(rf__kv_replay(twin, one, bytes), RF_EPROTO); /* twice */
    request.number = 999999999;
    bytes = rf__kv_command_record(kv, 4, &request, one, ROOM);
    assert_int_equal(rf__kv_replay(twin, one, bytes), RF_EPROTO); /* another revision */
    rf__kv_destroy(twin);
    free(one);
    free(two);
}

/* Every allocation of a change fails in turn: it happens as a whole or not at all. */
static void a_failed_allocation_changes_nothing(void **state) {
    (void)state;
    uint64_t lease = grant(100);
    for (int i = 0; i < 64; i++) {
        char key[16];
        snprintf(key, sizeof key, "k%02d", i);
        assert_int_equal(put(key, "v", lease), 0);
    }
    struct rf__kv_request requests[] = {make(RF__KV_PUT, "new", "v"),
                                        make(RF__KV_DELETE, "k01", ""),
                                        {.op = RF__KV_LEASE, .ttl_ms = 5},
                                        {.op = RF__KV_REVOKE, .lease = lease}};
    for (size_t i = 0; i < sizeof requests / sizeof requests[0]; i++) {
        for (long k = 0;; k++) {
            int64_t revision = rf__kv_revision(kv);
            size_t count = rf__kv_count(kv), bytes = rf__kv_bytes(kv);
            requests[i].number = ++number;
            rf__alloc_fail_after(k);
            bool changed = rf__kv_change(kv, 77 + i, &requests[i], now, &result);
            rf__alloc_fail_after(-1);
            if (changed) {
                assert_true(k > 0 || i == 2);
                break;
            }
            assert_int_equal(result.code, RF_ENOMEM);
            assert_int_equal(rf__kv_revision(kv), revision);
            assert_int_equal(rf__kv_count(kv), count);
            assert_int_equal(rf__kv_bytes(kv), bytes);
        }
    }
    assert_int_equal(rf__kv_count(kv), 1);
}

static void messages_go_both_ways(void **state) {
    (void)state;
    unsigned char frame[512];
    struct rf__kv_request request = make(RF__KV_CAS, "key", "value"), back;
    request.number = 0x1122334455667788ull;
    request.revision = 77;
    request.lease = 5;
    request.ttl_ms = 1234;
    size_t bytes = rf__kv_request_frame(&request, frame, sizeof frame);
    assert_int_equal(bytes, RF__KV_LENGTH_BYTES + RF__KV_REQUEST_BYTES + 3 + 5);
    assert_int_equal(rf__kv_body_bytes(frame), bytes - RF__KV_LENGTH_BYTES);
    assert_int_equal(rf__kv_read_request(frame + 4, bytes - 4, &back), 0);
    assert_int_equal(back.op, RF__KV_CAS);
    assert_int_equal(back.number, request.number);
    assert_int_equal(back.revision, 77);
    assert_int_equal(back.lease, 5);
    assert_int_equal(back.ttl_ms, 1234);
    assert_memory_equal(back.key, "key", 3);
    assert_memory_equal(back.value, "value", 5);
    for (size_t cut = 0; cut < bytes - 4; cut++) {
        assert_int_equal(rf__kv_read_request(frame + 4, cut, &back), RF_EPROTO);
        assert_int_equal(rf__kv_request_frame(&request, frame + 300, cut), 0);
    }
    assert_int_equal(rf__kv_read_request(frame + 4, bytes - 3, &back), RF_EPROTO); /* too long */

    struct rf__kv_event event = {.kind = RF__KV_CHANGE,
                                 .deleted = true,
                                 .number = 9,
                                 .code = 0,
                                 .store_revision = 12,
                                 .key = "gone",
                                 .key_bytes = 4},
                        read;
    bytes = rf__kv_event_frame(&event, frame, sizeof frame);
    assert_int_equal(rf__kv_read_event(frame + 4, bytes - 4, &read), 0);
    assert_true(read.deleted);
    assert_int_equal(read.store_revision, 12);
    for (size_t cut = 0; cut < bytes - 4; cut++) {
        assert_int_equal(rf__kv_read_event(frame + 4, cut, &read), RF_EPROTO);
    }
    unsigned char longest[4] = {0xff, 0xff, 0xff, 0xff}, none[4] = {0};
    assert_int_equal(rf__kv_body_bytes(longest), RF_EPROTO);
    assert_int_equal(rf__kv_body_bytes(none), RF_EPROTO);
}

int main(void) {
    const struct CMUnitTest tests[] = {
#define WITH_STORE(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)
        WITH_STORE(one_counter_grows_with_each_change),
        WITH_STORE(compare_and_swap_lets_one_win),
        WITH_STORE(keys_die_with_their_lease),
        WITH_STORE(a_change_that_comes_again_is_applied_once),
        WITH_STORE(only_so_many_clients_are_remembered),
        WITH_STORE(a_watch_can_go_back),
        WITH_STORE(ranges_are_in_byte_order),
        WITH_STORE(limits_hold),
        WITH_STORE(a_snapshot_is_the_whole_state),
        WITH_STORE(a_failed_allocation_changes_nothing),
        WITH_STORE(messages_go_both_ways),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
