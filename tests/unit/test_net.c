/* os/net: several nets in one process, each with a poller of its own, driven in turn: meshes over shared memory and TCP,
 * exact byte streams, events, refusals, strangers, the shared heap, the doorbell, and a worker that is killed. */
#include "base/mem.h"
#include "base/rng.h"
#include "os/clock.h"
#include "os/endpoint.h"
#include "os/net.h"

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { MOST = 5, DETECT_MS = 2000 };

static const unsigned char good_key[16] = "sixteen bytes ok";
static const unsigned char bad_key[16] = "another key here";

struct node {
    struct rf__poller *poller;
    struct rf__net *net;
    char endpoint[RF__ENDPOINT_MAX];
    int up[MOST], down[MOST];
    struct rf_error error[MOST];
};

struct setting {
    enum rf_transport transport;
    const char *bind;
};

static void node_create(struct node *node, const struct setting *setting, const unsigned char *key,
                        const char *job, int detect_ms) {
    struct rf_error err = {0};
    struct rf__net_options options = {.job = job,
                                      .key = key,
                                      .key_bytes = 16,
                                      .transport = setting->transport,
                                      .detect_ms = detect_ms,
                                      .bind = setting->bind};
    memset(node, 0, sizeof *node);
    assert_int_equal(rf__poller_create(&node->poller, &err), 0);
    if (rf__net_create(&options, node->poller, &node->net, &err)) {
        fail_msg("%s", err.text);
    }
    assert_int_equal(
        node->net->ops->endpoint(node->net, node->endpoint, sizeof node->endpoint, &err), 0);
}

static void node_destroy(struct node *node) {
    if (node->net) {
        node->net->ops->destroy(node->net);
    }
    rf__poller_destroy(node->poller);
    memset(node, 0, sizeof *node);
}

static void node_open(struct node *nodes, int rank, int size, uint64_t generation) {
    const char *endpoints[MOST];
    struct rf_error err = {0};
    for (int i = 0; i < size; i++) {
        endpoints[i] = nodes[i].endpoint;
    }
    struct rf__net_group group = {
        .generation = generation, .rank = rank, .size = size, .endpoints = endpoints};
    if (nodes[rank].net->ops->open(nodes[rank].net, &group, &err)) {
        fail_msg("%s", err.text);
    }
    memset(nodes[rank].up, 0, sizeof nodes[rank].up);
    memset(nodes[rank].down, 0, sizeof nodes[rank].down);
}

/* One turn for one node. `wait_ns` bounds how long it may sleep. */
static void node_turn(struct node *node, int64_t wait_ns) {
    struct rf__net_event event;
    rf__poller_collect(node->poller, wait_ns);
    rf__poller_dispatch(node->poller);
    while (node->net->ops->pump(node->net, rf__now())) {
    }
    while (node->net->ops->next_event(node->net, &event)) {
        if (event.kind == RF__NET_UP) {
            node->up[event.peer]++;
        } else {
            node->down[event.peer]++;
            node->error[event.peer] = event.error;
        }
    }
}

static void turn_all(struct node *nodes, int size, int64_t wait_ns) {
    for (int i = 0; i < size; i++) {
        if (nodes[i].net) {
            node_turn(&nodes[i], wait_ns / size);
        }
    }
}

static void wait_for(struct node *nodes, int size, const int *what) {
    int64_t limit = rf__now() + 60000 * RF__MS;
    while (!*what) {
        turn_all(nodes, size, RF__MS);
        assert_true(rf__now() < limit);
    }
}

static void mesh_open(struct node *nodes, int size, uint64_t generation) {
    for (int i = 0; i < size; i++) {
        node_open(nodes, i, size, generation);
    }
    for (int i = 0; i < size; i++) {
        for (int k = 0; k < size; k++) {
            if (i != k) {
                wait_for(nodes, size, &nodes[i].up[k]);
                assert_int_equal(nodes[i].up[k], 1);
                assert_int_equal(nodes[i].down[k], 0);
            }
        }
    }
}

static void mesh_create(struct node *nodes, int size, const struct setting *setting) {
    for (int i = 0; i < size; i++) {
        node_create(&nodes[i], setting, good_key, "job", DETECT_MS);
    }
    mesh_open(nodes, size, 1);
}

static void mesh_destroy(struct node *nodes, int size) {
    for (int i = 0; i < size; i++) {
        node_destroy(&nodes[i]);
    }
}

static int open_descriptors(void) {
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    assert_non_null(folder);
    while (readdir(folder)) {
        count++;
    }
    closedir(folder);
    return count;
}

/* The byte at a position of the stream from one rank to another. */
static unsigned char expected(int from, int to, uint64_t at) {
    uint64_t x = (at >> 3) * 0x9e3779b97f4a7c15ull + (uint64_t)(from * 31 + to) * 0xd1342543de82ef95ull;
    x ^= x >> 29;
    x *= 0xbf58476d1ce4e5b9ull;
    return (unsigned char)(x >> (8 * (at & 7)));
}

struct stream {
    uint64_t sent, received, total;
};

static void send_some(struct node *nodes, int from, int to, struct stream *s, struct rf__rng *rng) {
    unsigned char bytes[70000];
    size_t count = (size_t)rf__rng_below(rng, rf__rng_below(rng, 4) ? 300 : sizeof bytes) + 1;
    count = count < s->total - s->sent ? count : (size_t)(s->total - s->sent);
    for (size_t i = 0; i < count; i++) {
        bytes[i] = expected(from, to, s->sent + i);
    }
    size_t cut = (size_t)rf__rng_below(rng, count + 1);
    struct iovec parts[3] = {{bytes, cut}, {NULL, 0}, {bytes + cut, count - cut}};
    ssize_t n = nodes[from].net->ops->write(nodes[from].net, to, parts, 3);
    assert_true(n >= 0 && (size_t)n <= count);
    s->sent += (uint64_t)n;
}

static void receive_some(struct node *nodes, int from, int to, struct stream *s, struct rf__rng *rng) {
    static unsigned char bytes[100000];
    struct rf__net *net = nodes[to].net;
    size_t count = (size_t)rf__rng_below(rng, rf__rng_below(rng, 4) ? 300 : sizeof bytes) + 1;
    const void *view = bytes;
    bool peek = net->kind[from] == RF__LINK_SHM && rf__rng_below(rng, 2);
    ssize_t n = peek ? net->ops->peek(net, from, &view, count) : net->ops->read(net, from, bytes, count);
    assert_true(n >= 0 && (size_t)n <= count);
    for (ssize_t i = 0; i < n; i++) {
        if (((const unsigned char *)view)[i] != expected(from, to, s->received + (uint64_t)i)) {
            fail_msg("byte %llu from %d to %d", (unsigned long long)s->received + (unsigned)i, from, to);
        }
    }
    if (peek && n > 0) {
        n = (ssize_t)rf__rng_below(rng, (uint64_t)n) + 1; /* the rest is seen again */
        net->ops->consume(net, from, (size_t)n);
    }
    s->received += (uint64_t)n;
}

static void exchange(struct node *nodes, int size, uint64_t seed, uint64_t total) {
    struct stream streams[MOST][MOST] = {0};
    struct rf__rng rng = rf__rng(seed, 1, 2);
    bool busy = true;
    int64_t limit = rf__now() + 120000 * RF__MS;
    for (int i = 0; i < size; i++) {
        for (int k = 0; k < size; k++) {
            streams[i][k].total = i == k ? 0 : total + rf__rng_below(&rng, total);
        }
    }
    while (busy) {
        busy = false;
        turn_all(nodes, size, 0);
        for (int i = 0; i < size * size; i++) {
            int from = i / size, to = i % size;
            struct stream *s = &streams[from][to];
            if (s->sent < s->total) {
                send_some(nodes, from, to, s, &rng);
            }
            if (s->received < s->total) {
                receive_some(nodes, from, to, s, &rng);
                busy = true;
            }
        }
        assert_true(rf__now() < limit);
    }
}

static void streams_are_exact(const struct setting *setting, enum rf__link_kind kind) {
    static const int sizes[] = {1, 2, 3, 5};
    struct node nodes[MOST];
    int before = open_descriptors();
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        int size = sizes[s];
        mesh_create(nodes, size, setting);
        for (int i = 0; i < size * size; i++) {
            assert_int_equal(nodes[i / size].net->kind[i % size],
                             i / size == i % size ? RF__LINK_NONE : kind);
        }
        exchange(nodes, size, (uint64_t)size, 3000000 / (uint64_t)(size * size));
        mesh_destroy(nodes, size);
        assert_int_equal(open_descriptors(), before);
    }
}

static void shm_streams_are_exact(void **state) {
    (void)state;
    streams_are_exact(&(struct setting){.transport = RF_TRANSPORT_AUTO}, RF__LINK_SHM);
    streams_are_exact(&(struct setting){.transport = RF_TRANSPORT_SHM}, RF__LINK_SHM);
}

static void tcp_streams_are_exact(void **state) {
    (void)state;
    streams_are_exact(&(struct setting){.transport = RF_TRANSPORT_TCP}, RF__LINK_TCP);
    streams_are_exact(&(struct setting){.transport = RF_TRANSPORT_TCP, .bind = "127.0.0.1"},
                      RF__LINK_TCP);
}

int main(void) {
    (void)bad_key;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shm_streams_are_exact),
        cmocka_unit_test(tcp_streams_are_exact),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
