/* The store over real sockets: server and clients in one process and one thread, so that every
 * interleaving is the test's choice; and the journal as a file that is cut, damaged and full. */
#include "base/digest.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/status.h"
#include "io/clock.h"
#include "io/store.h"
#include "kv/kv.h"
#include "os/clock.h"
#include "os/journal.h"
#include "os/poller.h"
#include "os/store_client.h"
#include "os/store_server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

enum { LOG = 40000, TEXT = 64, LONG_MS = 60000, CLIENTS = 8 };

static const unsigned char key[32] = "the key of the job of this test";
static const unsigned char wrong_key[32] = "another key of some other job !";

/* An event as it was told, copied. */
struct seen {
    int client;
    uint64_t id;
    enum rf__store_event_kind kind;
    int code;
    char key[TEXT], value[TEXT];
    bool deleted;
    size_t value_bytes;
    int64_t key_revision, store_revision;
    uint64_t lease;
    char text[RF_ERROR_TEXT_MAX];
};

struct world {
    char folder[64], journal[96], bind[64];
    uint64_t compact_bytes;
    bool in_memory;
    struct rf__store_server *server;
    struct rf__poll_source server_source; /* only wakes the poller */
    int port;
    struct rf__poller *poller;
    struct rf__store *clients[CLIENTS];
    struct seen *log;
    size_t count;
    uint64_t id;
};

static struct world world;

static void on_ready(struct rf__poll_source *source, uint32_t events) {
    (void)source;
    (void)events;
}

static void start_server(void) {
    struct rf_error err;
    struct rf__store_server_options options = {.bind = world.bind,
                                               .journal = world.in_memory ? NULL : world.journal,
                                               .key = key,
                                               .key_bytes = sizeof key,
                                               .compact_bytes = world.compact_bytes};
    if (rf__store_server_create(&options, &world.server, &err)) {
        fail_msg("%s", err.text);
    }
    world.port = rf__store_server_port(world.server);
    world.server_source =
        (struct rf__poll_source){.fd = rf__store_server_fd(world.server), .ready = on_ready};
    assert_int_equal(rf__poller_add(world.poller, &world.server_source, NULL), 0);
    snprintf(world.bind, sizeof world.bind, "127.0.0.1:%d", world.port);
}

/* As a process that is killed: nothing is flushed, sockets and file are just gone. */
static void kill_server(void) {
    rf__poller_remove(world.poller, &world.server_source);
    rf__store_server_destroy(world.server);
    world.server = NULL;
}

static int set_up(void **state) {
    (void)state;
    struct seen *log = world.log ? world.log : calloc(LOG, sizeof *log);
    world = (struct world){.log = log, .bind = "127.0.0.1:0"};
    /* In memory where possible: what these tests crash are processes, not the machine. */
    snprintf(world.folder, sizeof world.folder, "%s/ringfold-store-XXXXXX",
             access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm");
    assert_non_null(mkdtemp(world.folder));
    snprintf(world.journal, sizeof world.journal, "%s/journal", world.folder);
    assert_int_equal(rf__poller_create(&world.poller, NULL), 0);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    for (int i = 0; i < CLIENTS; i++) {
        if (world.clients[i]) {
            world.clients[i]->ops->destroy(world.clients[i]);
        }
    }
    rf__store_server_destroy(world.server);
    rf__poller_destroy(world.poller);
    unlink(world.journal);
    assert_int_equal(rmdir(world.folder), 0); /* nothing is left beside the journal */
    free(world.log);
    world.log = NULL;
    return 0;
}

static void add_client(int i, const unsigned char *with_key) {
    char uri[64];
    struct rf_error err;
    snprintf(uri, sizeof uri, "tcp://127.0.0.1:%d", world.port);
    if (rf__store_client_create(uri, with_key, sizeof key, world.poller, &world.clients[i], &err)) {
        fail_msg("%s", err.text);
    }
}

static void note(int client, const struct rf__store_event *event) {
    assert_true(world.count < LOG);
    struct seen *seen = &world.log[world.count++];
    *seen = (struct seen){.client = client,
                          .id = event->id,
                          .kind = event->kind,
                          .code = event->code,
                          .deleted = !event->value,
                          .value_bytes = event->value_bytes,
                          .key_revision = event->key_revision,
                          .store_revision = event->store_revision,
                          .lease = event->lease};
    if (event->key) {
        snprintf(seen->key, sizeof seen->key, "%s", event->key);
    }
    if (event->value) {
        size_t bytes = event->value_bytes < TEXT - 1 ? event->value_bytes : TEXT - 1;
        memcpy(seen->value, event->value, bytes);
    }
    if (event->error) {
        snprintf(seen->text, sizeof seen->text, "%s", event->error->text);
    }
}

/* Everybody does what there is to do; waits for the kernel where there is nothing. */
static void turn(void) {
    struct rf__store_event event;
    int64_t now = rf__now(), soonest = INT64_MAX;

    if (world.server) {
        struct rf_error err;
        if (rf__store_server_step(world.server, now, &err)) {
            fail_msg("%s", err.text);
        }
        soonest = rf__store_server_deadline(world.server);
    }
    for (int i = 0; i < CLIENTS; i++) {
        struct rf__store *client = world.clients[i];
        if (client) {
            client->ops->pump(client, now);
            while (client->ops->next(client, &event)) {
                note(i, &event);
            }
            int64_t deadline = client->ops->next_deadline(client);
            soonest = deadline < soonest ? deadline : soonest;
        }
    }
    /* Briefly: what the server left for its next step does not wake the poller. */
    int64_t wait = soonest - rf__now();
    (void)rf__poller_collect(world.poller, wait < 0 ? 0 : wait < RF__MS ? wait : RF__MS);
    rf__poller_dispatch(world.poller);
}

static uint64_t ask(int client, struct rf__store_request request) {
    struct rf_error err;
    request.id = ++world.id;
    request.deadline_ms = request.deadline_ms ? request.deadline_ms : LONG_MS;
    if (world.clients[client]->ops->submit(world.clients[client], &request, &err)) {
        fail_msg("%s", err.text);
    }
    return request.id;
}

static const struct seen *reply_of(uint64_t id) {
    for (size_t i = 0; i < world.count; i++) {
        if (world.log[i].id == id && world.log[i].kind == RF__STORE_REPLY) {
            return &world.log[i];
        }
    }
    return NULL;
}

static const struct seen *await(uint64_t id) {
    const struct seen *seen;
    while (!(seen = reply_of(id))) {
        turn();
    }
    return seen;
}

static size_t count_of(uint64_t id, enum rf__store_event_kind kind) {
    size_t count = 0;
    for (size_t i = 0; i < world.count; i++) {
        count += world.log[i].id == id && world.log[i].kind == kind;
    }
    return count;
}

static uint64_t ask_put(int client, const char *name, const char *value, uint64_t lease) {
    return ask(client, (struct rf__store_request){.op = RF__STORE_PUT,
                                                  .key = name,
                                                  .value = value,
                                                  .value_bytes = strlen(value),
                                                  .lease = lease});
}

static const struct seen *get(int client, const char *name) {
    return await(ask(client, (struct rf__store_request){.op = RF__STORE_GET, .key = name}));
}

static void changes_are_seen_by_others(void **state) {
    (void)state;
    start_server();
    add_client(0, key);
    add_client(1, key);
    uint64_t watch = ask(1, (struct rf__store_request){.op = RF__STORE_WATCH, .key = "a/"});
    assert_int_equal(await(watch)->code, 0);
    const struct seen *put = await(ask_put(0, "a/one", "1", 0));
    assert_int_equal(put->code, 0);
    assert_int_equal(put->key_revision, 1);
    assert_int_equal(await(ask_put(0, "b/other", "", 0))->key_revision, 2);

    const struct seen *got = get(1, "a/one");
    assert_int_equal(got->code, 0);
    assert_string_equal(got->value, "1");
    assert_int_equal(got->key_revision, 1);
    assert_int_equal(got->store_revision, 2);
    got = get(1, "b/other");
    assert_false(got->deleted);
    assert_int_equal(got->value_bytes, 0);
    got = get(1, "a/none");
    assert_int_equal(got->code, RF_ENOTFOUND);
    assert_non_null(strstr(got->text, "get 'a/none' at the store tcp://127.0.0.1:"));

    struct rf__store_request cas = {
        .op = RF__STORE_CAS, .key = "a/one", .value = "2", .value_bytes = 1, .revision = 7};
    const struct seen *refused = await(ask(0, cas));
    assert_int_equal(refused->code, RF_ECONFLICT);
    assert_int_equal(refused->key_revision, 1);
    cas.revision = 1;
    assert_int_equal(await(ask(0, cas))->key_revision, 3);
    assert_int_equal(
        await(ask(0, (struct rf__store_request){.op = RF__STORE_DELETE, .key = "a/one"}))->code, 0);
    while (count_of(watch, RF__STORE_CHANGE) < 3) {
        turn();
    }
    const char *expected[] = {"1", "2", ""};
    const int64_t revisions[] = {1, 3, 4};
    for (size_t i = 0, k = 0; i < world.count; i++) {
        const struct seen *seen = &world.log[i];
        if (seen->id == watch && seen->kind == RF__STORE_CHANGE) {
            assert_string_equal(seen->key, "a/one");
            assert_string_equal(seen->value, expected[k]);
            assert_int_equal(seen->store_revision, revisions[k]);
            assert_int_equal(seen->deleted, k == 2);
            assert_int_equal(seen->key_revision, k == 2 ? 0 : revisions[k]);
            k++;
        }
    }
    uint64_t end = ask(1, (struct rf__store_request){.op = RF__STORE_UNWATCH, .lease = watch});
    assert_int_equal(await(end)->code, 0);
    (void)await(ask_put(0, "a/late", "x", 0));
    (void)get(1, "a/late");
    assert_int_equal(count_of(watch, RF__STORE_CHANGE), 3);
}

static void a_listing_is_whole_and_in_order(void **state) {
    (void)state;
    enum { KEYS = 3000 };
    static char large[2000];
    memset(large, 'v', sizeof large - 1);
    start_server();
    add_client(0, key);
    uint64_t last = 0;
    for (int i = 0; i < KEYS; i++) {
        char name[32];
        snprintf(name, sizeof name, "list/%05d", (i * 7919) % KEYS);
        last = ask_put(0, name, large, 0); /* 6 MB in all: beyond every mark */
        if (i % 500 == 499) {
            (void)await(last);
        }
    }
    (void)await(ask_put(0, "lisu", "behind", 0));
    uint64_t list = ask(0, (struct rf__store_request){.op = RF__STORE_LIST, .key = "list/"});
    uint64_t after = ask(0, (struct rf__store_request){.op = RF__STORE_GET, .key = "lisu"});
    assert_int_equal(await(list)->code, 0);
    assert_int_equal(reply_of(list)->store_revision, KEYS + 1);
    int expected = 0;
    for (size_t i = 0; i < world.count; i++) {
        if (world.log[i].id == list && world.log[i].kind == RF__STORE_ITEM) {
            char name[32];
            snprintf(name, sizeof name, "list/%05d", expected++);
            assert_string_equal(world.log[i].key, name);
            assert_int_equal(world.log[i].value_bytes, sizeof large - 1);
        }
    }
    assert_int_equal(expected, KEYS);
    assert_int_equal(await(after)->code, 0);
}

static void a_value_of_the_largest_size_travels(void **state) {
    (void)state;
    start_server();
    add_client(0, key);
    char *value = malloc(RF_MAX_STORE_VALUE + 1);
    memset(value, 'x', RF_MAX_STORE_VALUE + 1);
    struct rf__store_request put = {
        .op = RF__STORE_PUT, .key = "large", .value = value, .value_bytes = RF_MAX_STORE_VALUE};
    uint64_t ids[6];
    for (int i = 0; i < 6; i++) {
        ids[i] = ask(0, put);
    }
    for (int i = 0; i < 6; i++) {
        assert_int_equal(await(ids[i])->key_revision, i + 1);
    }
    assert_int_equal(get(0, "large")->value_bytes, RF_MAX_STORE_VALUE);
    put.value_bytes++;
    put.id = ++world.id;
    assert_int_equal(world.clients[0]->ops->submit(world.clients[0], &put, NULL), RF_ELIMIT);
    free(value);
    char longer[RF_MAX_STORE_KEY + 2];
    memset(longer, 'k', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    put = (struct rf__store_request){.id = ++world.id, .op = RF__STORE_GET, .key = longer};
    assert_int_equal(world.clients[0]->ops->submit(world.clients[0], &put, NULL), RF_ELIMIT);
    put.key = longer + 1;
    put.id = ask(0, put);
    assert_int_equal(await(put.id)->code, RF_ENOTFOUND);
}

static void a_wrong_key_is_answered_at_once(void **state) {
    (void)state;
    start_server();
    add_client(0, wrong_key);
    uint64_t one = ask_put(0, "a", "b", 0);
    const struct seen *seen = await(one);
    assert_int_equal(seen->code, RF_EAUTH);
    assert_non_null(strstr(seen->text, "the job key differs"));
    assert_int_equal(await(ask_put(0, "a", "b", 0))->code, RF_EAUTH);
    add_client(1, key);
    assert_int_equal(get(1, "a")->code, RF_ENOTFOUND);
}

static void nobody_listening_is_told_at_the_deadline(void **state) {
    (void)state;
    start_server();
    kill_server();
    add_client(0, key);
    uint64_t id =
        ask(0, (struct rf__store_request){.op = RF__STORE_GET, .key = "a", .deadline_ms = 30});
    const struct seen *seen = await(id);
    assert_int_equal(seen->code, RF_ESTORE);
    assert_non_null(strstr(seen->text, "no answer within 30 ms"));
    assert_non_null(strstr(seen->text, "onnect"));
    assert_non_null(strstr(seen->text, world.bind));
}

static void a_key_dies_with_its_lease(void **state) {
    (void)state;
    start_server();
    add_client(0, key);
    uint64_t watch = ask(0, (struct rf__store_request){.op = RF__STORE_WATCH, .key = "l/"});
    uint64_t kept =
        await(ask(0, (struct rf__store_request){.op = RF__STORE_LEASE, .ttl_ms = 3600000}))->lease;
    uint64_t brief =
        await(ask(0, (struct rf__store_request){.op = RF__STORE_LEASE, .ttl_ms = 50}))->lease;
    assert_true(kept && brief && kept != brief);
    assert_int_equal(await(ask_put(0, "l/kept", "1", kept))->code, 0);
    const struct seen *put = await(ask_put(0, "l/brief", "2", brief));
    assert_true(put->code == 0 || put->code == RF_ENOTFOUND); /* where the machine is very slow */
    if (put->code == 0) {
        while (count_of(watch, RF__STORE_CHANGE) < 3) {
            turn();
        }
    }
    assert_int_equal(get(0, "l/brief")->code, RF_ENOTFOUND);
    assert_int_equal(get(0, "l/kept")->code, 0);
    struct rf__store_request request = {.op = RF__STORE_KEEPALIVE, .lease = kept, .ttl_ms = 1000};
    assert_int_equal(await(ask(0, request))->code, 0);
    request.op = RF__STORE_REVOKE;
    assert_int_equal(await(ask(0, request))->code, 0);
    assert_int_equal(get(0, "l/kept")->code, RF_ENOTFOUND);
    assert_int_equal(await(ask(0, request))->code, RF_ENOTFOUND);
}

/* The server is killed again and again, at any moment, while two clients count in one key by
 * compare-and-swap and put keys of their own, and a third watches. Every change is applied once,
 * none is lost, and the watch tells each once, in order. */
static void restarts_lose_nothing_and_repeat_nothing(uint64_t compact_bytes) {
    enum { PUTS = 400 };
    struct rf__rng rng = rf__rng(11, compact_bytes, 0);
    uint64_t asked[2][PUTS], cas = 0;
    int64_t counter_revision = 0;
    int counted = 0, sent[2] = {0, 0}, restarts = 0;

    world.compact_bytes = compact_bytes;
    start_server();
    add_client(0, key);
    add_client(1, key);
    add_client(2, key);
    uint64_t watch = ask(2, (struct rf__store_request){.op = RF__STORE_WATCH, .key = ""});
    (void)await(watch);
    while (sent[0] < PUTS || sent[1] < PUTS || cas || !reply_of(asked[0][PUTS - 1]) ||
           !reply_of(asked[1][PUTS - 1])) {
        for (int c = 0; c < 2; c++) {
            if (sent[c] < PUTS && (sent[c] < 40 || reply_of(asked[c][sent[c] - 40]))) {
                char name[32], value[16];
                snprintf(name, sizeof name, "put/%d/%d", c, sent[c]);
                snprintf(value, sizeof value, "%d", sent[c]);
                asked[c][sent[c]++] = ask_put(c, name, value, 0);
            }
        }
        if (!cas && sent[0] < PUTS) {
            char value[16];
            snprintf(value, sizeof value, "%d", counted + 1);
            cas = ask(0, (struct rf__store_request){.op = RF__STORE_CAS,
                                                    .key = "counter",
                                                    .value = value,
                                                    .value_bytes = strlen(value),
                                                    .revision = counter_revision});
        } else if (cas && reply_of(cas)) {
            /* Nobody else counts: a conflict would be our own change, applied twice. */
            assert_int_equal(reply_of(cas)->code, 0);
            counter_revision = reply_of(cas)->key_revision;
            counted++;
            cas = 0;
        }
        if (world.server && rf__rng_below(&rng, 12) == 0) {
            kill_server();
            restarts++;
        } else if (!world.server) {
            start_server();
        }
        turn();
    }
    if (!world.server) {
        start_server();
    }
    assert_true(restarts > 10);
    int64_t newest = get(0, "counter")->store_revision;
    assert_int_equal(newest, 2 * PUTS + counted);
    while (count_of(watch, RF__STORE_CHANGE) < (size_t)newest) {
        turn();
    }
    int64_t next = 1;
    for (size_t i = 0; i < world.count; i++) {
        if (world.log[i].kind == RF__STORE_CHANGE) {
            assert_int_equal(world.log[i].store_revision, next++);
        }
    }
    assert_int_equal(next, newest + 1);
    for (int c = 0; c < 2; c++) {
        for (int i = 0; i < PUTS; i++) {
            assert_int_equal(count_of(asked[c][i], RF__STORE_REPLY), 1);
            assert_int_equal(reply_of(asked[c][i])->code, 0);
        }
    }
    assert_int_equal(count_of(watch, RF__STORE_REPLY), 1);
}

static void a_restarted_server_goes_on(void **state) {
    (void)state;
    restarts_lose_nothing_and_repeat_nothing(0);
}

static void a_compacting_server_goes_on(void **state) {
    (void)state;
    restarts_lose_nothing_and_repeat_nothing(2000);
    struct stat file;
    assert_int_equal(stat(world.journal, &file), 0);
    assert_true(file.st_size < 4 << 20);
}

/* What one client of the crowd is at. */
struct counting {
    uint64_t watch, put, get, cas;
    int puts, counted;
    int64_t value, revision; /* of the counter, as it knows it */
};

static void count_on(int c, struct counting *at) {
    char name[32], value[24];

    if (at->puts < 40 && (!at->put || reply_of(at->put))) {
        snprintf(name, sizeof name, "crowd/%d/%d", c, at->puts++);
        at->put = ask_put(c, name, "x", 0);
    }
    if (at->get && reply_of(at->get)) {
        const struct seen *got = reply_of(at->get);
        assert_true(got->code == 0 || got->code == RF_ENOTFOUND);
        at->revision = got->key_revision;
        at->value = got->code ? 0 : atoll(got->value);
        at->get = 0;
    }
    if (at->cas && reply_of(at->cas)) {
        const struct seen *done = reply_of(at->cas);
        assert_true(done->code == 0 || done->code == RF_ECONFLICT);
        at->counted += !done->code;
        at->cas = 0;
        at->get = ask(c, (struct rf__store_request){.op = RF__STORE_GET, .key = "counter"});
    }
    if (!at->get && !at->cas && at->counted < 10) {
        snprintf(value, sizeof value, "%lld", (long long)at->value + 1);
        at->cas = ask(c, (struct rf__store_request){.op = RF__STORE_CAS,
                                                    .key = "counter",
                                                    .value = value,
                                                    .value_bytes = strlen(value),
                                                    .revision = at->revision});
    }
}

/* Eight clients with watches and requests in flight, all of them counting in one key, while the
 * server is killed at any moment: each change is applied once and told once to each of them. */
static void a_crowd_survives_restarts(void **state) {
    struct rf__rng rng = rf__rng(17, 0, 0);
    struct counting crowd[CLIENTS] = {0};
    int restarts = 0, done = 0;
    (void)state;
    start_server();
    for (int c = 0; c < CLIENTS; c++) {
        add_client(c, key);
        crowd[c].watch = ask(c, (struct rf__store_request){.op = RF__STORE_WATCH, .revision = 1});
    }
    while (done < CLIENTS) {
        done = 0;
        for (int c = 0; c < CLIENTS; c++) {
            count_on(c, &crowd[c]);
            done += crowd[c].counted == 10 && crowd[c].puts == 40 && reply_of(crowd[c].put);
        }
        if (world.server && rf__rng_below(&rng, 10) == 0) {
            kill_server();
            restarts++;
        } else if (!world.server) {
            start_server();
        }
        turn();
    }
    if (!world.server) {
        start_server();
    }
    assert_true(restarts > 10);
    assert_string_equal(get(0, "counter")->value, "80");
    int64_t newest = get(0, "counter")->store_revision;
    assert_int_equal(newest, CLIENTS * (40 + 10));
    for (int c = 0; c < CLIENTS; c++) {
        while (count_of(crowd[c].watch, RF__STORE_CHANGE) < (size_t)newest) {
            turn();
        }
        int64_t next = 1;
        for (size_t i = 0; i < world.count; i++) {
            if (world.log[i].id == crowd[c].watch && world.log[i].kind == RF__STORE_CHANGE) {
                assert_int_equal(world.log[i].store_revision, next++);
            }
        }
        assert_int_equal(next, newest + 1);
        assert_int_equal(count_of(crowd[c].watch, RF__STORE_REPLY), 1);
    }
}

/* Half a minute without a server, on the test's own clock: at no moment is the next attempt more
 * than 200 ms away. */
static void the_return_of_a_server_is_noticed_soon(void **state) {
    int64_t now, start;
    struct rf__store_event event;
    int dialled = 0;
    (void)state;
    start_server();
    add_client(0, key);
    uint64_t watch = ask(0, (struct rf__store_request){.op = RF__STORE_WATCH, .key = ""});
    (void)await(watch);
    kill_server();
    struct rf__store *client = world.clients[0];
    for (now = start = rf__now(); now < start + 30000 * RF__MS;) {
        client->ops->pump(client, now);
        assert_int_equal(client->ops->next(client, &event), 0);
        int64_t next = client->ops->next_deadline(client);
        if (next > now + 200 * RF__MS) {
            /* It has dialled (or has yet to see that the server is gone): the kernel's answer is
             * under way, and no clock brings it. */
            dialled++;
            assert_true(rf__poller_collect(world.poller, 60000 * RF__MS) > 0);
            rf__poller_dispatch(world.poller);
        } else {
            now = next > now ? next : now + 1;
        }
    }
    assert_true(dialled >= 150);
    start_server();
    int64_t returned = now;
    uint64_t put = ask_put(0, "k", "v", 0);
    while (!reply_of(put) || !count_of(watch, RF__STORE_CHANGE)) {
        struct rf_error err;
        assert_int_equal(rf__store_server_step(world.server, rf__now(), &err), 0);
        client->ops->pump(client, now);
        while (client->ops->next(client, &event)) {
            note(0, &event);
        }
        int64_t next = client->ops->next_deadline(client);
        if (next > now && next <= returned + 200 * RF__MS) {
            now = next;
        }
        (void)rf__poller_collect(world.poller, RF__MS);
        rf__poller_dispatch(world.poller);
    }
    assert_true(now <= returned + 200 * RF__MS);
}

static void a_lease_has_a_full_ttl_after_a_restart(void **state) {
    enum { TTL_MS = 3600000 };
    struct rf_error err;
    (void)state;
    start_server();
    add_client(0, key);
    uint64_t lease =
        await(ask(0, (struct rf__store_request){.op = RF__STORE_LEASE, .ttl_ms = TTL_MS}))->lease;
    assert_int_equal(await(ask_put(0, "l", "v", lease))->code, 0);
    int64_t granted = rf__store_server_deadline(world.server);
    assert_int_equal(rf__store_server_step(world.server, granted - 1, &err), 0);
    kill_server();
    int64_t before = rf__now();
    start_server();
    int64_t renewed = rf__store_server_deadline(world.server);
    assert_true(renewed >= before + TTL_MS * RF__MS && renewed > granted);
    assert_int_equal(rf__store_server_step(world.server, renewed - 1, &err), 0);
    assert_int_equal(get(0, "l")->code, 0);
    assert_int_equal(rf__store_server_step(world.server, renewed, &err), 0);
    assert_int_equal(get(0, "l")->code, RF_ENOTFOUND);
}

/* A client that is cut off: it hears nothing, its requests meet their deadlines, and it does not
 * spin; afterwards it goes on where it was. */
static void a_cut_off_client_goes_on_afterwards(void **state) {
    (void)state;
    start_server();
    add_client(0, key);
    add_client(1, key);
    uint64_t watch = ask(1, (struct rf__store_request){.op = RF__STORE_WATCH, .key = ""});
    (void)await(watch);
    struct rf__store *client = world.clients[1];
    client->ops->mute(client, rf__now() + 3600000 * RF__MS);
    (void)await(ask_put(0, "a", "1", 0));
    (void)await(ask_put(0, "b", "2", 0));
    uint64_t kept = ask_put(1, "c", "3", 0);
    for (int i = 0; i < 50; i++) {
        turn();
        assert_true(client->ops->next_deadline(client) > rf__now());
    }
    uint64_t late =
        ask(1, (struct rf__store_request){.op = RF__STORE_GET, .key = "a", .deadline_ms = 20});
    assert_int_equal(await(late)->code, RF_ESTORE);
    assert_int_equal(get(0, "c")->code, RF_ENOTFOUND);
    assert_int_equal(count_of(watch, RF__STORE_CHANGE), 0);
    client->ops->mute(client, rf__now() + 30 * RF__MS); /* ends by itself */
    assert_int_equal(await(kept)->code, 0);
    while (count_of(watch, RF__STORE_CHANGE) < 3) {
        turn();
    }
    assert_int_equal(get(1, "a")->code, 0);
    assert_int_equal(count_of(watch, RF__STORE_CHANGE), 3);
    assert_int_equal(count_of(watch, RF__STORE_REPLY), 1);
    assert_int_equal(count_of(late, RF__STORE_REPLY), 1);
}

static void an_emptied_store_ends_the_watches(void **state) {
    (void)state;
    world.in_memory = true;
    start_server();
    add_client(0, key);
    uint64_t watch = ask(0, (struct rf__store_request){.op = RF__STORE_WATCH, .key = ""});
    (void)await(watch);
    (void)await(ask_put(0, "a", "1", 0));
    kill_server();
    start_server();
    while (count_of(watch, RF__STORE_REPLY) < 2) {
        turn();
    }
    const struct seen *last = NULL;
    for (size_t i = 0; i < world.count; i++) {
        if (world.log[i].id == watch && world.log[i].kind == RF__STORE_REPLY) {
            last = &world.log[i];
        }
    }
    assert_int_equal(last->code, RF_ELIMIT);
    assert_int_equal(get(0, "a")->code, RF_ENOTFOUND);
}

static void a_watch_older_than_the_history_is_refused(void **state) {
    (void)state;
    start_server();
    add_client(0, key);
    add_client(1, key);
    uint64_t last = 0;
    for (int i = 0; i < RF__KV_HISTORY + 10; i++) {
        last = ask_put(0, "k", "v", 0);
        if (i % 200 == 0) {
            (void)await(last);
        }
    }
    (void)await(last);
    struct rf__store_request watch = {.op = RF__STORE_WATCH, .key = "", .revision = 5};
    assert_int_equal(await(ask(1, watch))->code, RF_ELIMIT);
    watch.revision = 11;
    uint64_t id = ask(1, watch);
    assert_int_equal(await(id)->code, 0);
    while (count_of(id, RF__STORE_CHANGE) < RF__KV_HISTORY) {
        turn();
    }
    watch.revision = RF__KV_HISTORY + 12; /* the future */
    assert_int_equal(await(ask(1, watch))->code, RF_ELIMIT);
}

/* Progress is told: a watch whose prefix never changes survives a history that has moved on. */
static void a_quiet_watch_stays_fresh(void **state) {
    (void)state;
    start_server();
    add_client(0, key);
    add_client(1, key);
    uint64_t watch = ask(1, (struct rf__store_request){.op = RF__STORE_WATCH, .key = "quiet/"});
    (void)await(watch);
    uint64_t last = 0;
    for (int i = 0; i < RF__KV_HISTORY + 2000; i++) {
        last = ask_put(0, "loud", "v", 0);
        if (i % 200 == 0) {
            (void)await(last);
        }
    }
    (void)await(last);
    kill_server();
    start_server();
    (void)await(ask_put(0, "quiet/now", "!", 0));
    while (count_of(watch, RF__STORE_CHANGE) < 1) {
        turn();
    }
    assert_int_equal(count_of(watch, RF__STORE_REPLY), 1);
}

/* A server that answers nobody: only to open the journal and look. */
static int try_server(const char *bind, const char *journal, struct rf__store_server **out,
                      struct rf_error *err) {
    struct rf__store_server_options options = {
        .bind = bind, .journal = journal, .key = key, .key_bytes = sizeof key};
    return rf__store_server_create(&options, out, err);
}

static void a_taken_port_names_its_holder(void **state) {
    struct rf__store_server *second;
    struct rf_error err;
    char holder[32];
    (void)state;
    start_server();
    assert_int_equal(try_server(world.bind, NULL, &second, &err), RF_EADDR);
    assert_null(second);
    assert_int_equal(err.sys_errno, EADDRINUSE);
    assert_string_equal(err.where, world.bind);
    assert_non_null(strstr(err.text, world.bind));
    snprintf(holder, sizeof holder, "pid %d (", (int)getpid());
    assert_non_null(strstr(err.why, holder));

    const char *bad[] = {"127.0.0.1", "127.0.0.1:", "127.0.0.1:70000", "::1:5", "[::1:5", "a:b"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(try_server(bad[i], NULL, &second, &err), RF_EINVAL);
        assert_non_null(strstr(err.text, bad[i]));
    }
    assert_int_equal(try_server("203.0.113.77:0", NULL, &second, &err), RF_EADDR);
    assert_non_null(strstr(err.text, "203.0.113.77"));
}

static bool can_connect(int family, int port) {
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6,
                              .sin6_port = htons((uint16_t)port),
                              .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    struct sockaddr_in v4 = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)port),
                             .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int fd = socket(family, SOCK_STREAM, 0);
    bool done =
        fd >= 0 && !(family == AF_INET6 ? connect(fd, (const struct sockaddr *)&v6, sizeof v6)
                                        : connect(fd, (const struct sockaddr *)&v4, sizeof v4));
    if (fd >= 0) {
        close(fd);
    }
    return done;
}

static void every_form_of_address_is_listened_on(void **state) {
    struct rf__store_server *server;
    struct rf_error err;
    (void)state;
    assert_int_equal(try_server("127.0.0.1:0", NULL, &server, &err), 0);
    assert_true(can_connect(AF_INET, rf__store_server_port(server)));
    rf__store_server_destroy(server);
    assert_int_equal(try_server(":0", NULL, &server, &err), 0);
    assert_true(can_connect(AF_INET, rf__store_server_port(server)));
    bool has_v6 = can_connect(AF_INET6, rf__store_server_port(server));
    rf__store_server_destroy(server);
    assert_int_equal(try_server("localhost:0", NULL, &server, &err), 0);
    assert_true(can_connect(AF_INET, rf__store_server_port(server)));
    rf__store_server_destroy(server);
    if (has_v6) {
        assert_int_equal(try_server("[::1]:0", NULL, &server, &err), 0);
        assert_true(can_connect(AF_INET6, rf__store_server_port(server)));
        rf__store_server_destroy(server);
        assert_int_equal(try_server("[::]:0", NULL, &server, &err), 0);
        assert_true(can_connect(AF_INET, rf__store_server_port(server)));
        rf__store_server_destroy(server);
    }
}

static void a_journal_belongs_to_one_server(void **state) {
    struct rf__store_server *second;
    struct rf_error err;
    (void)state;
    world.compact_bytes = 100;
    start_server();
    add_client(0, key);
    assert_int_equal(try_server("127.0.0.1:0", world.journal, &second, &err), RF_EJOURNAL);
    assert_non_null(strstr(err.text, world.journal));
    assert_non_null(strstr(err.text, "in use"));
    for (int i = 0; i < 10; i++) {
        (void)await(ask_put(0, "k", "a value that makes the journal grow", 0));
    }
    /* The lock went over to the compacted file. */
    assert_int_equal(try_server("127.0.0.1:0", world.journal, &second, &err), RF_EJOURNAL);
    kill_server();
    assert_int_equal(try_server("127.0.0.1:0", "/proc/nowhere/j", &second, &err), RF_EJOURNAL);
    assert_non_null(strstr(err.text, "/proc/nowhere/j"));
    assert_int_equal(try_server("127.0.0.1:0", "/dev/null", &second, &err), RF_EJOURNAL);
    assert_int_equal(try_server("127.0.0.1:0", world.folder, &second, &err), RF_EJOURNAL);
    assert_non_null(strstr(err.text, world.folder));
}

static size_t read_journal(unsigned char **out) {
    struct stat file;
    assert_int_equal(stat(world.journal, &file), 0);
    *out = malloc((size_t)file.st_size + 1);
    int fd = open(world.journal, O_RDONLY);
    assert_int_equal(pread(fd, *out, (size_t)file.st_size + 1, 0), file.st_size);
    close(fd);
    return (size_t)file.st_size;
}

static void write_journal(const unsigned char *bytes, size_t count) {
    int fd = open(world.journal, O_WRONLY | O_TRUNC | O_CREAT, 0600);
    assert_int_equal(write(fd, bytes, count), count);
    close(fd);
}

enum { STEPS = 12 };

/* A journal of STEPS puts, each in a batch of its own; where each ends. */
static size_t make_steps(unsigned char **out, size_t ends[STEPS + 1]) {
    struct stat file;
    start_server();
    add_client(0, key);
    for (int i = 0; i <= STEPS; i++) {
        if (i > 0) {
            char name[32];
            snprintf(name, sizeof name, "step/%d", i);
            assert_int_equal(await(ask_put(0, name, "value", 0))->key_revision, i);
        }
        assert_int_equal(stat(world.journal, &file), 0);
        ends[i] = (size_t)file.st_size;
    }
    kill_server();
    return read_journal(out);
}

static int replay_record(void *context, const unsigned char *record, size_t bytes) {
    return rf__kv_replay(context, record, bytes);
}

/* Opens the file and tells the revision it leads to; or the error. */
static int64_t revision_of_journal(uint64_t *cut, struct rf_error *err) {
    struct rf__journal *journal;
    struct rf__kv *kv = rf__kv_create();
    struct rf__journal_options options = {.path = world.journal,
                                          .record_max = RF__KV_RECORD_MAX,
                                          .record = replay_record,
                                          .context = kv};
    int64_t revision = rf__journal_open(&options, &journal, err);
    if (!revision) {
        revision = rf__kv_revision(kv);
        *cut = rf__journal_cut(journal);
        rf__journal_close(journal);
    }
    rf__kv_destroy(kv);
    return revision;
}

static void a_cut_journal_replays_to_a_prefix(void **state) {
    unsigned char *bytes;
    size_t ends[STEPS + 1];
    struct rf_error err;
    uint64_t cut;
    (void)state;
    size_t count = make_steps(&bytes, ends);
    assert_int_equal(count, ends[STEPS]);
    for (size_t length = 0; length <= count; length++) {
        write_journal(bytes, length);
        int whole = 0;
        while (whole < STEPS && ends[whole + 1] <= length) {
            whole++;
        }
        assert_int_equal(revision_of_journal(&cut, &err), whole);
        size_t sound = length < ends[0] ? 0 : ends[whole];
        assert_int_equal(cut, length - sound);
        /* It was cut off: the second time there is nothing to cut. */
        assert_int_equal(revision_of_journal(&cut, &err), whole);
        assert_int_equal(cut, 0);
    }
    /* A tail of zeros, as a file system leaves it after a crash. */
    unsigned char *longer = calloc(count + 5000, 1);
    memcpy(longer, bytes, count);
    write_journal(longer, count + 5000);
    assert_int_equal(revision_of_journal(&cut, &err), STEPS);
    assert_int_equal(cut, 5000);
    free(longer);
    /* The server says so. */
    write_journal(bytes, count - 1);
    start_server();
    assert_non_null(strstr(rf__store_server_note(world.server), world.journal));
    assert_non_null(strstr(rf__store_server_note(world.server), "cut off"));
    assert_int_equal(get(0, "step/12")->code, RF_ENOTFOUND);
    assert_int_equal(get(0, "step/11")->code, 0);
    free(bytes);
}

static void a_damaged_journal_is_refused(void **state) {
    unsigned char *bytes;
    size_t ends[STEPS + 1];
    struct rf_error err;
    uint64_t cut = 0;
    (void)state;
    size_t count = make_steps(&bytes, ends);
    for (size_t at = 0; at < count; at++) {
        bytes[at] ^= 0x10;
        write_journal(bytes, count);
        int64_t revision = revision_of_journal(&cut, &err);
        if (at < ends[STEPS - 1]) {
            /* Something behind it was synced later: that would be lost. */
            int whole = 0;
            while (ends[whole + 1] <= at) {
                whole++;
            }
            char offset[64];
            snprintf(offset, sizeof offset, "damaged at offset %zu of %zu",
                     at < ends[0] ? 0 : ends[whole], count);
            assert_int_equal(revision, RF_EJOURNAL);
            assert_non_null(strstr(err.text, offset));
            assert_non_null(strstr(err.text, world.journal));
            unsigned char *after;
            assert_int_equal(read_journal(&after), count); /* and nothing was touched */
            assert_memory_equal(after, bytes, count);
            free(after);
        } else {
            assert_int_equal(revision, STEPS - 1);
        }
        bytes[at] ^= 0x10;
    }
    free(bytes);
}

/* A crash while a batch of several records was written can leave its second without its first:
 * neither was acknowledged. */
static void a_torn_batch_is_cut_off_whole(void **state) {
    unsigned char record[100], *bytes;
    size_t good;
    struct rf__journal *journal;
    struct rf__kv *kv = rf__kv_create();
    struct rf__journal_options options = {.path = world.journal,
                                          .record_max = RF__KV_RECORD_MAX,
                                          .record = replay_record,
                                          .context = kv};
    struct rf__kv_request request = {
        .op = RF__KV_PUT, .key = "k", .key_bytes = 1, .value = (const void *)"v", .value_bytes = 1};
    struct rf__kv_result result;
    (void)state;
    assert_int_equal(rf__journal_open(&options, &journal, NULL), 0);
    for (int i = 0; i < 6; i++) {
        assert_true(rf__kv_change(kv, 0, &request, 0, &result));
        size_t size = rf__kv_command_record(kv, 0, &request, record, sizeof record);
        assert_int_equal(rf__journal_append(journal, record, size), 0);
        if (i == 2 || i == 5) {
            assert_int_equal(rf__journal_sync(journal, NULL), 0);
        }
    }
    rf__journal_close(journal);
    rf__kv_destroy(kv);
    size_t count = read_journal(&bytes);
    size_t each = (count - RF__JOURNAL_HEADER) / 6;
    for (size_t at = RF__JOURNAL_HEADER; at < count; at++) {
        size_t index = (at - RF__JOURNAL_HEADER) / each;
        kv = rf__kv_create();
        bytes[at] ^= 1;
        int rc = rf__journal_scan(bytes, count, RF__KV_RECORD_MAX, replay_record, kv, &good, NULL);
        bytes[at] ^= 1;
        assert_int_equal(rc, index < 3 ? RF_EJOURNAL : 0);
        assert_int_equal(good, RF__JOURNAL_HEADER + index * each);
        assert_int_equal(rf__kv_revision(kv), index);
        rf__kv_destroy(kv);
    }
    free(bytes);
}

/* The disk is full at each byte of a change's record in turn: the server ends with the path, what
 * it said before holds, and the change that was not acknowledged is made by its next incarnation,
 * once. */
static void a_full_disk_ends_the_server_and_loses_nothing(void **state) {
    struct rlimit before, limit;
    struct stat file;
    struct rf_error err;
    (void)state;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    start_server();
    add_client(0, key);
    (void)await(ask_put(0, "full/0", "0", 0));
    for (int round = 1; round <= 60; round++) {
        char name[32];
        snprintf(name, sizeof name, "full/%d", round);
        assert_int_equal(stat(world.journal, &file), 0);
        limit = before;
        limit.rlim_cur = (rlim_t)(file.st_size + round - 1);
        uint64_t id = ask_put(0, name, "value", 0);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
        int rc = 0;
        struct rf__store_event event;
        while (!rc && !reply_of(id)) {
            rc = rf__store_server_step(world.server, rf__now(), &err);
            world.clients[0]->ops->pump(world.clients[0], rf__now());
            while (world.clients[0]->ops->next(world.clients[0], &event)) {
                note(0, &event);
            }
            (void)rf__poller_collect(world.poller, 0);
            rf__poller_dispatch(world.poller);
        }
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
        assert_int_equal(rc, RF_EJOURNAL);
        assert_int_equal(err.sys_errno, EFBIG);
        assert_non_null(strstr(err.text, world.journal));
        assert_null(reply_of(id));
        kill_server();
        start_server();
        assert_int_equal(await(id)->code, 0);
        assert_int_equal(await(id)->key_revision, round + 1);
    }
    assert_int_equal(get(0, "full/60")->store_revision, 61);
}

/* Strangers: noise, silence in the middle of the handshake, and a valid client that then talks
 * nonsense. */
static void strangers_do_not_disturb(void **state) {
    struct rf__rng rng = rf__rng(8, 8, 8);
    (void)state;
    start_server();
    add_client(0, key);
    struct sockaddr_in v4 = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)world.port),
                             .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int silent[8];
    for (int i = 0; i < 40; i++) {
        unsigned char noise[300] = {'R', 'F', 'L', 'D', 1, 0, 1, 2, 40, 0};
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        assert_int_equal(connect(fd, (const struct sockaddr *)&v4, sizeof v4), 0);
        for (size_t k = i % 2 ? 10 : 0; k < sizeof noise; k++) {
            noise[k] = (unsigned char)rf__rng_u64(&rng);
        }
        ssize_t sent = send(fd, noise, i % 5 ? sizeof noise : 7, MSG_NOSIGNAL);
        assert_true(sent > 0);
        if (i < 8) {
            silent[i] = fd;
        } else {
            close(fd);
        }
        assert_int_equal(await(ask_put(0, "k", "v", 0))->key_revision, i + 1);
    }
    for (int i = 0; i < 8; i++) {
        close(silent[i]);
    }
    assert_int_equal(get(0, "k")->code, 0);
}

int main(void) {
    signal(SIGXFSZ, SIG_IGN);
    const struct CMUnitTest tests[] = {
#define WITH_WORLD(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)
        WITH_WORLD(changes_are_seen_by_others),
        WITH_WORLD(a_listing_is_whole_and_in_order),
        WITH_WORLD(a_value_of_the_largest_size_travels),
        WITH_WORLD(a_wrong_key_is_answered_at_once),
        WITH_WORLD(nobody_listening_is_told_at_the_deadline),
        WITH_WORLD(a_key_dies_with_its_lease),
        WITH_WORLD(a_restarted_server_goes_on),
        WITH_WORLD(a_compacting_server_goes_on),
        WITH_WORLD(a_crowd_survives_restarts),
        WITH_WORLD(the_return_of_a_server_is_noticed_soon),
        WITH_WORLD(a_lease_has_a_full_ttl_after_a_restart),
        WITH_WORLD(a_cut_off_client_goes_on_afterwards),
        WITH_WORLD(an_emptied_store_ends_the_watches),
        WITH_WORLD(a_watch_older_than_the_history_is_refused),
        WITH_WORLD(a_quiet_watch_stays_fresh),
        WITH_WORLD(a_taken_port_names_its_holder),
        WITH_WORLD(every_form_of_address_is_listened_on),
        WITH_WORLD(a_journal_belongs_to_one_server),
        WITH_WORLD(a_cut_journal_replays_to_a_prefix),
        WITH_WORLD(a_damaged_journal_is_refused),
        WITH_WORLD(a_torn_batch_is_cut_off_whole),
        WITH_WORLD(a_full_disk_ends_the_server_and_loses_nothing),
        WITH_WORLD(strangers_do_not_disturb),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
