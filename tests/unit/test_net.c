/* os/net: several nets in one process, each with a poller of its own, driven in turn: meshes over
 * shared memory and TCP, exact byte streams, events, refusals, strangers, the shared heap, the
 * doorbell, and a worker that is killed. */
#include "base/mem.h"
#include "base/rng.h"
#include "os/clock.h"
#include "os/endpoint.h"
#include "os/net.h"
#include "os/net_internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
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
    int streams;
};

static void node_create(struct node *node, const struct setting *setting, const unsigned char *key,
                        const char *job, int detect_ms) {
    struct rf_error err = {0};
    struct rf__net_options options = {.job = job,
                                      .key = key,
                                      .key_bytes = 16,
                                      .transport = setting->transport,
                                      .detect_ms = detect_ms,
                                      .bind = setting->bind,
                                      .streams = setting->streams};
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
    uint64_t x =
        (at >> 3) * 0x9e3779b97f4a7c15ull + (uint64_t)(from * 31 + to) * 0xd1342543de82ef95ull;
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
    ssize_t n = nodes[from].net->ops->write(nodes[from].net, to, 0, parts, 3);
    assert_true(n >= 0 && (size_t)n <= count);
    s->sent += (uint64_t)n;
}

static void receive_some(struct node *nodes, int from, int to, struct stream *s,
                         struct rf__rng *rng) {
    static unsigned char bytes[100000];
    struct rf__net *net = nodes[to].net;
    size_t count = (size_t)rf__rng_below(rng, rf__rng_below(rng, 4) ? 300 : sizeof bytes) + 1;
    const void *view = bytes;
    bool peek = net->kind[from] == RF__LINK_SHM && rf__rng_below(rng, 2);
    ssize_t n = peek ? net->ops->peek(net, from, 0, &view, count)
                     : net->ops->read(net, from, 0, bytes, count);
    assert_true(n >= 0 && (size_t)n <= count);
    for (ssize_t i = 0; i < n; i++) {
        if (((const unsigned char *)view)[i] != expected(from, to, s->received + (uint64_t)i)) {
            fail_msg("byte %llu from %d to %d", (unsigned long long)s->received + (unsigned)i, from,
                     to);
        }
    }
    if (peek && n > 0) {
        n = (ssize_t)rf__rng_below(rng, (uint64_t)n) + 1; /* the rest is seen again */
        net->ops->consume(net, from, 0, (size_t)n);
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

static bool has_v6_loopback(void) {
    struct sockaddr_storage at;
    struct rf__address address;
    assert_true(rf__address_parse("::1", &address));
    socklen_t length = rf__address_to_socket(&address, &at);
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool has = fd >= 0 && !bind(fd, (struct sockaddr *)&at, length);
    if (fd >= 0) {
        close(fd);
    }
    return has;
}

static void v6_alone_is_enough(void **state) {
    (void)state;
    if (!has_v6_loopback()) {
        print_message("no IPv6 on this host\n");
        skip();
    }
    streams_are_exact(&(struct setting){.transport = RF_TRANSPORT_TCP, .bind = "::1"},
                      RF__LINK_TCP);
}

/* ---- Congestion control ---- */

static void control_of(int fd, char *name) {
    socklen_t bytes = 16;
    memset(name, 0, 17);
    assert_int_equal(getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &bytes), 0);
}

/* BBR is what a connection begins without, and what a far one may get; anything else stays. */
static void only_bbr_is_replaced(void **state) {
    char usual[17], now[17];
    struct node nodes[MOST];
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    (void)state;
    assert_true(fd >= 0);
    control_of(fd, usual);
    assert_int_equal(rf__tcp_unpaced(fd), !strcmp(usual, "bbr"));
    control_of(fd, now);
    assert_string_equal(now, strcmp(usual, "bbr") ? usual : "reno");
    close(fd);

    mesh_create(nodes, 2, &(struct setting){.transport = RF_TRANSPORT_TCP});
    for (int i = 0; i < 2; i++) {
        const struct rf__os_net *net = (const struct rf__os_net *)nodes[i].net;
        const struct rf__conn *conn = net->links[!i].conn;
        control_of(conn->source.fd, now);
        assert_true(!strcmp(now, usual) || (!strcmp(usual, "bbr") && !strcmp(now, "reno")));
        assert_int_equal(net->is_paced, !strcmp(usual, "bbr"));
    }
    mesh_destroy(nodes, 2);
}

/* ---- How links end ---- */

static const struct setting both[] = {{.transport = RF_TRANSPORT_SHM},
                                      {.transport = RF_TRANSPORT_TCP}};

/* What was written before the end arrives, then the end is told. */
static void the_end_comes_last(void **state) {
    (void)state;
    for (size_t t = 0; t < 2; t++) {
        for (int polite = 0; polite < 2; polite++) {
            struct node nodes[MOST];
            unsigned char bytes[20000], got[20001];
            size_t have = 0;
            memset(bytes, 7, sizeof bytes);
            mesh_create(nodes, 2, &both[t]);
            struct iovec part = {bytes, sizeof bytes};
            assert_int_equal(nodes[1].net->ops->write(nodes[1].net, 0, 0, &part, 1), sizeof bytes);
            if (polite) {
                nodes[1].net->ops->shutdown(nodes[1].net, 0);
                assert_int_equal(nodes[1].net->ops->write(nodes[1].net, 0, 0, &part, 1), RF_ELOST);
                turn_all(nodes, 2, 0);
            } else {
                node_destroy(&nodes[1]);
            }
            for (;;) {
                ssize_t n =
                    nodes[0].net->ops->read(nodes[0].net, 1, 0, got + have, sizeof got - have);
                if (n == RF_ELOST) {
                    break;
                }
                assert_true(n >= 0);
                have += (size_t)n;
                if (!n) {
                    turn_all(nodes, 2, RF__MS);
                }
            }
            assert_int_equal(have, sizeof bytes);
            assert_memory_equal(got, bytes, sizeof bytes);
            wait_for(nodes, 2, &nodes[0].down[1]);
            assert_int_equal(nodes[0].down[1], 1);
            assert_int_equal(nodes[0].error[1].code, RF_ELOST);
            assert_int_equal(nodes[0].error[1].rank, 1);
            assert_non_null(strstr(nodes[0].error[1].text, "closed by peer"));
            assert_int_equal(nodes[0].net->ops->read(nodes[0].net, 1, 0, got, 1), RF_ELOST);
            assert_int_equal(nodes[0].net->ops->write(nodes[0].net, 1, 0, &part, 1), RF_ELOST);
            if (polite) { /* whoever ended it hears nothing */
                assert_int_equal(nodes[1].down[0], 0);
            }
            mesh_destroy(nodes, polite ? 2 : 1);
        }
    }
}

/* A DOWN event does not wait for ever for a reader who does not read. */
static void the_end_is_told_to_those_who_do_not_read(void **state) {
    (void)state;
    for (size_t t = 0; t < 2; t++) {
        struct node nodes[MOST];
        char bytes[100] = {1}, got[200];
        mesh_create(nodes, 2, &both[t]);
        struct iovec part = {bytes, sizeof bytes};
        assert_int_equal(nodes[0].net->ops->write(nodes[0].net, 1, 0, &part, 1), sizeof bytes);
        node_destroy(&nodes[0]);
        wait_for(nodes, 2, &nodes[1].down[0]);
        ssize_t n = nodes[1].net->ops->read(nodes[1].net, 0, 0, got, sizeof got);
        assert_int_equal(n, sizeof bytes);
        assert_int_equal(nodes[1].net->ops->read(nodes[1].net, 0, 0, got, sizeof got), RF_ELOST);
        node_destroy(&nodes[1]);
    }
}

struct child {
    pid_t pid;
    int from, to;
};

static void send_all(int fd, const void *bytes, size_t count) {
    assert_int_equal(write(fd, bytes, count), count);
}

static void take_all(int fd, void *bytes, size_t count) {
    for (size_t got = 0; got < count;) {
        ssize_t n = read(fd, (char *)bytes + got, count - got);
        assert_true(n > 0);
        got += (size_t)n;
    }
}

enum { LAST_WORDS = 5000 };

/* A worker of rank 2 of 3 in a process of its own: connects, writes its last words to both, tells
 * so and waits to be killed. */
static void child_life(const struct setting *setting, int from, int to) {
    struct node nodes[MOST] = {0};
    unsigned char bytes[LAST_WORDS];
    node_create(&nodes[2], setting, good_key, "job", DETECT_MS);
    send_all(to, nodes[2].endpoint, RF__ENDPOINT_MAX);
    take_all(from, nodes[0].endpoint, RF__ENDPOINT_MAX);
    take_all(from, nodes[1].endpoint, RF__ENDPOINT_MAX);
    node_open(nodes, 2, 3, 1);
    memset(bytes, 9, sizeof bytes);
    for (int peer = 0; peer < 2; peer++) {
        struct iovec part = {bytes, sizeof bytes};
        wait_for(nodes, 3, &nodes[2].up[peer]);
        if (nodes[2].net->ops->write(nodes[2].net, peer, 0, &part, 1) != LAST_WORDS) {
            _exit(1);
        }
    }
    send_all(to, "!", 1);
    for (;;) {
        pause();
    }
}

static struct child child_start(const struct setting *setting) {
    int there[2], back[2];
    assert_int_equal(pipe(there), 0);
    assert_int_equal(pipe(back), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (!pid) {
        child_life(setting, there[0], back[1]);
        _exit(1);
    }
    close(there[0]);
    close(back[1]);
    return (struct child){pid, back[0], there[1]};
}

static void a_killed_worker_is_noticed(void **state) {
    (void)state;
    for (size_t t = 0; t < 2; t++) {
        struct node nodes[MOST] = {0};
        struct child child = child_start(&both[t]);
        char mark;
        int status;
        for (int i = 0; i < 2; i++) {
            node_create(&nodes[i], &both[t], good_key, "job", DETECT_MS);
            send_all(child.to, nodes[i].endpoint, RF__ENDPOINT_MAX);
        }
        take_all(child.from, nodes[2].endpoint, RF__ENDPOINT_MAX);
        for (int i = 0; i < 2; i++) {
            node_open(nodes, i, 3, 1);
        }
        for (int i = 0; i < 2; i++) {
            wait_for(nodes, 3, &nodes[i].up[2]);
            wait_for(nodes, 3, &nodes[i].up[1 - i]);
        }
        take_all(child.from, &mark, 1);
        assert_int_equal(kill(child.pid, SIGKILL), 0);
        assert_int_equal(waitpid(child.pid, &status, 0), child.pid);
        for (int i = 0; i < 2; i++) {
            unsigned char bytes[LAST_WORDS + 1];
            size_t have = 0;
            ssize_t n;
            while ((n = nodes[i].net->ops->read(nodes[i].net, 2, 0, bytes + have,
                                                sizeof bytes - have)) >= 0) {
                have += (size_t)n;
                turn_all(nodes, 3, 0);
            }
            assert_int_equal(n, RF_ELOST);
            assert_int_equal(have, LAST_WORDS);
            assert_int_equal(bytes[LAST_WORDS - 1], 9);
            wait_for(nodes, 3, &nodes[i].down[2]);
            assert_int_equal(nodes[i].error[2].code, RF_ELOST);
            assert_int_equal(nodes[i].error[2].rank, 2);
            assert_true(
                strstr(nodes[i].error[2].text, t ? "closed by peer" : "its process ended") ||
                (t && strstr(nodes[i].error[2].text, "reset")));
            assert_int_equal(nodes[i].down[1 - i], 0);
        }
        close(child.from);
        close(child.to);
        mesh_destroy(nodes, 2);
    }
}

/* ---- Who is refused ---- */

/* Rank 1 dials rank 0 with something amiss; returns rank 1's report. Rank 0 stays undisturbed until
 * its own limit. */
static struct rf_error refused(const struct setting *setting, const unsigned char *key,
                               const char *job, uint64_t generation, uint64_t listener_generation) {
    struct node nodes[MOST] = {0};
    node_create(&nodes[0], setting, good_key, "job", 30000);
    node_create(&nodes[1], setting, key, job, 30000);
    node_open(nodes, 0, 2, listener_generation);
    node_open(nodes, 1, 2, generation);
    wait_for(nodes, 2, &nodes[1].down[0]);
    struct rf_error error = nodes[1].error[0];
    assert_int_equal(nodes[0].up[1] + nodes[0].down[1] + nodes[1].up[0], 0);
    assert_int_equal(error.rank, 0);
    assert_true(error.what[0] && error.where[0] && error.why[0]);
    mesh_destroy(nodes, 2);
    return error;
}

static void the_wrong_are_refused_with_a_reason(void **state) {
    (void)state;
    for (size_t t = 0; t < 2; t++) {
        struct rf_error error = refused(&both[t], bad_key, "job", 1, 1);
        assert_int_equal(error.code, RF_EAUTH);
        assert_non_null(strstr(error.text, "key"));
        error = refused(&both[t], good_key, "jobs", 1, 1);
        assert_int_equal(error.code, RF_EAUTH);
        assert_non_null(strstr(error.text, "'job'"));
        error = refused(&both[t], good_key, "job", 3, 4);
        assert_int_equal(error.code, RF_EREVOKED);
        assert_non_null(strstr(error.text, "generation 4"));
    }
}

/* Whoever is early waits for the others: for a listener that has not opened, and for one that is a
 * generation behind. */
static void the_early_wait(void **state) {
    (void)state;
    for (size_t t = 0; t < 2; t++) {
        struct node nodes[MOST] = {0};
        for (int i = 0; i < 3; i++) {
            node_create(&nodes[i], &both[t], good_key, "job", 30000);
        }
        node_open(nodes, 2, 3, 1);
        for (int i = 0; i < 50; i++) {
            turn_all(nodes, 3, RF__MS);
        }
        assert_int_equal(nodes[2].up[0] + nodes[2].up[1] + nodes[2].down[0] + nodes[2].down[1], 0);
        mesh_open(nodes, 3, 1);
        exchange(nodes, 3, 5, 100000);
        node_open(nodes, 2, 3, 2); /* a generation ahead */
        for (int i = 0; i < 50; i++) {
            turn_all(nodes, 3, RF__MS);
        }
        assert_int_equal(nodes[2].up[0] + nodes[2].up[1] + nodes[2].down[0] + nodes[2].down[1], 0);
        assert_int_equal(nodes[0].down[2], 1);
        node_open(nodes, 0, 3, 2);
        node_open(nodes, 1, 3, 2);
        wait_for(nodes, 3, &nodes[2].up[0]);
        wait_for(nodes, 3, &nodes[2].up[1]);
        wait_for(nodes, 3, &nodes[0].up[1]);
        wait_for(nodes, 3, &nodes[1].up[0]);
        exchange(nodes, 3, 6, 100000);
        mesh_destroy(nodes, 3);
    }
}

/* Nobody answers: both sides give up, and say where they looked. */
static void the_absent_are_named(void **state) {
    (void)state;
    for (size_t t = 0; t < 2; t++) {
        struct node nodes[MOST] = {0};
        for (int i = 0; i < 3; i++) {
            node_create(&nodes[i], &both[t], good_key, "job", 100);
        }
        node_destroy(&nodes[1]);
        node_create(&nodes[1], &both[t], good_key, "job", 100);
        char endpoint[RF__ENDPOINT_MAX];
        memcpy(endpoint, nodes[1].endpoint, sizeof endpoint);
        node_destroy(&nodes[1]);
        memcpy(nodes[1].endpoint, endpoint, sizeof endpoint);
        node_open(nodes, 0, 3, 1);
        node_open(nodes, 2, 3, 1);
        wait_for(nodes, 3, &nodes[0].down[1]);
        wait_for(nodes, 3, &nodes[2].down[1]);
        wait_for(nodes, 3, &nodes[0].up[2]);
        wait_for(nodes, 3, &nodes[2].up[0]);
        assert_int_equal(nodes[0].error[1].code, RF_ECONNECT);
        assert_int_equal(nodes[2].error[1].code, RF_ECONNECT);
        assert_int_equal(nodes[2].error[1].sys_errno, ECONNREFUSED);
        assert_non_null(strstr(nodes[2].error[1].text, "Connection refused"));
        assert_non_null(strstr(nodes[2].error[1].where, t ? ":" : "unix:ringfold-"));
        assert_non_null(strstr(nodes[0].error[1].text, "worker 1"));
        node_destroy(&nodes[0]);
        node_destroy(&nodes[2]);
    }
}

static void transports_must_agree(void **state) {
    struct node nodes[MOST] = {0};
    struct rf_error err = {0};
    (void)state;
    node_create(&nodes[0], &both[0], good_key, "job", DETECT_MS);
    node_create(&nodes[1], &both[1], good_key, "job", DETECT_MS);
    const char *endpoints[2] = {nodes[0].endpoint, nodes[1].endpoint};
    struct rf__net_group group = {.generation = 1, .rank = 0, .size = 2, .endpoints = endpoints};
    assert_int_equal(nodes[0].net->ops->open(nodes[0].net, &group, &err), RF_EUNSUPPORTED);
    assert_non_null(strstr(err.text, "workers 0 and 1"));
    endpoints[1] = "rf1 host=else/1/2 unix=ringfold-0 tcp=127.0.0.1:9";
    assert_int_equal(nodes[0].net->ops->open(nodes[0].net, &group, &err), RF_EUNSUPPORTED);
    assert_non_null(strstr(err.text, "different hosts"));
    endpoints[1] = "nonsense";
    assert_int_equal(nodes[0].net->ops->open(nodes[0].net, &group, &err), RF_EPROTO);
    assert_null(nodes[1].net->shared);
    mesh_destroy(nodes, 2);
}

static int connect_to(const struct rf__endpoint *endpoint) {
    struct sockaddr_storage at;
    socklen_t length = rf__address_to_socket(&endpoint->addresses[0], &at);
    int fd = socket(at.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&at, length), 0);
    return fd;
}

/* Port scanners, babblers and the silent, many at once, before and while the mesh comes up. */
static void strangers_do_not_disturb(void **state) {
    enum { STRANGERS = 60 };
    struct setting setting = {.transport = RF_TRANSPORT_TCP, .bind = "127.0.0.1"};
    struct node nodes[MOST];
    int fds[STRANGERS], before = open_descriptors();
    struct rf__rng rng = rf__rng(11, 0, 0);
    (void)state;
    for (int i = 0; i < 3; i++) {
        node_create(&nodes[i], &setting, good_key, "job", DETECT_MS);
    }
    for (int i = 0; i < STRANGERS; i++) {
        struct rf__endpoint endpoint;
        unsigned char bytes[600];
        assert_int_equal(rf__endpoint_parse(nodes[i % 2].endpoint, &endpoint, NULL), 0);
        fds[i] = connect_to(&endpoint);
        for (size_t k = 0; k < sizeof bytes; k++) {
            bytes[k] = (unsigned char)rf__rng_u64(&rng);
        }
        memcpy(bytes, "RFLD\1\0", i % 4 == 1 ? 6 : 0);
        ssize_t sent =
            i % 4 == 0 ? 0 : send(fds[i], bytes, i % 4 == 2 ? 1 : sizeof bytes, MSG_NOSIGNAL);
        assert_true(sent >= 0);
        if (i % 4 == 3) {
            close(fds[i]);
            fds[i] = -1;
        }
    }
    mesh_open(nodes, 3, 1);
    exchange(nodes, 3, 1, 50000);
    for (int i = 0; i < STRANGERS; i++) {
        if (fds[i] >= 0) {
            close(fds[i]);
        }
    }
    for (int i = 0; i < 3; i++) {
        for (int k = 0; k < 3; k++) {
            assert_int_equal(nodes[i].down[k], 0);
        }
    }
    mesh_destroy(nodes, 3);
    assert_int_equal(open_descriptors(), before);
}

/* ---- Shared memory ---- */

static void heaps_are_shared(void **state) {
    static const size_t sizes[] = {1, 100, 65536, 65537, 5 << 20};
    struct node nodes[MOST];
    struct setting setting = {.transport = RF_TRANSPORT_AUTO};
    uint64_t offset, bytes, inside, seen = 0;
    (void)state;
    mesh_create(nodes, 3, &setting);
    for (size_t i = 0; i < 2 * sizeof sizes / sizeof *sizes; i++) {
        size_t size = sizes[i / 2];
        struct rf__net *owner = nodes[1].net;
        void *memory = NULL;
        assert_int_equal(owner->shared->alloc(owner, size, &memory, NULL), 0);
        assert_int_equal((uintptr_t)memory % 64, 0);
        for (size_t k = 0; k < size; k++) {
            assert_int_equal(((char *)memory)[k], 0);
        }
        assert_int_equal(owner->shared->find(owner, memory, size, &offset, &bytes, &inside), 0);
        assert_int_equal(inside, 0);
        assert_true(bytes >= size && offset > seen); /* no place is used twice */
        seen = offset;
        assert_int_equal(
            owner->shared->find(owner, (char *)memory + size - 1, 1, &offset, &bytes, &inside), 0);
        assert_int_equal(inside, size - 1);
        assert_int_equal(
            owner->shared->find(owner, (char *)memory + bytes - 1, 2, &offset, &bytes, &inside),
            RF_ENOTFOUND);
        assert_int_equal(
            nodes[0].net->shared->find(nodes[0].net, memory, size, &offset, &bytes, &inside),
            RF_ENOTFOUND);
        ((char *)memory)[size - 1] = 42;
        for (int peer = 0; peer < 3; peer += 2) {
            struct rf__net *net = nodes[peer].net;
            char *there = net->shared->map(net, 1, offset, bytes);
            assert_non_null(there);
            assert_ptr_equal(there, net->shared->map(net, 1, offset, bytes));
            assert_int_equal(there[size - 1], peer ? 43 : 42);
            there[size - 1]++;
            assert_null(net->shared->map(net, 1, offset + 4096, bytes));
            assert_null(net->shared->map(net, 1, offset, (uint64_t)1 << 60));
            assert_null(net->shared->map(net, 1, UINT64_MAX - 65535, 65536));
        }
        assert_int_equal(((char *)memory)[size - 1], 44);
        assert_ptr_equal(owner->shared->map(owner, 1, offset, bytes), memory);
        owner->shared->release(owner, memory);
        assert_int_equal(owner->shared->find(owner, memory, 1, &offset, &bytes, &inside),
                         RF_ENOTFOUND);
    }
    mesh_destroy(nodes, 3);
}

static void more_blocks_than_views(void **state) {
    enum { BLOCKS = RF__ARENA_VIEWS + 50 };
    struct node nodes[MOST];
    (void)state;
    mesh_create(nodes, 2, &both[0]);
    for (uint32_t i = 0; i < BLOCKS; i++) {
        struct rf__net *owner = nodes[0].net, *other = nodes[1].net;
        void *memory;
        uint64_t offset, bytes, inside;
        assert_int_equal(owner->shared->alloc(owner, 4, &memory, NULL), 0);
        memcpy(memory, &i, 4);
        assert_int_equal(owner->shared->find(owner, memory, 4, &offset, &bytes, &inside), 0);
        void *there = other->shared->map(other, 0, offset, bytes);
        assert_non_null(there);
        assert_memory_equal(there, &i, 4);
        owner->shared->release(owner, memory);
    }
    mesh_destroy(nodes, 2);
}

static void boards_are_seen_by_all(void **state) {
    struct node nodes[MOST];
    (void)state;
    mesh_create(nodes, 3, &both[0]);
    for (uint64_t generation = 1; generation < 4; generation++) {
        for (int i = 0; i < 3; i++) {
            unsigned char *own = nodes[i].net->shared->board(nodes[i].net, i);
            assert_int_equal((uintptr_t)own % 64, 0);
            for (int k = 0; k < RF__BOARD_BYTES; k++) {
                assert_int_equal(own[k], 0); /* zeroed by each open */
            }
            memset(own, i + 1, RF__BOARD_BYTES);
        }
        for (int i = 0; i < 9; i++) {
            const unsigned char *board = nodes[i / 3].net->shared->board(nodes[i / 3].net, i % 3);
            assert_int_equal(board[0], i % 3 + 1);
            assert_int_equal(board[RF__BOARD_BYTES - 1], i % 3 + 1);
        }
        mesh_open(nodes, 3, generation + 1);
    }
    nodes[0].net->ops->shutdown(nodes[0].net, 1);
    assert_null(nodes[0].net->shared->board(nodes[0].net, 1));
    mesh_destroy(nodes, 3);
}

/* The child is rank 2 of 3, maps the first block of rank 0, says so, and does what it is told: '1'
 * to '9' fill what it has mapped with that byte. */
static void writer_life(int from, int to) {
    struct node nodes[MOST] = {0};
    uint64_t place[2];
    char order;
    node_create(&nodes[2], &both[0], good_key, "job", DETECT_MS);
    send_all(to, nodes[2].endpoint, RF__ENDPOINT_MAX);
    take_all(from, nodes[0].endpoint, RF__ENDPOINT_MAX);
    take_all(from, nodes[1].endpoint, RF__ENDPOINT_MAX);
    node_open(nodes, 2, 3, 1);
    wait_for(nodes, 3, &nodes[2].up[0]);
    wait_for(nodes, 3, &nodes[2].up[1]);
    take_all(from, place, sizeof place);
    char *there = nodes[2].net->shared->map(nodes[2].net, 0, place[0], place[1]);
    if (!there) {
        _exit(1);
    }
    send_all(to, "!", 1);
    for (;;) {
        take_all(from, &order, 1);
        if (order == 'q') {
            nodes[2].net->ops->shutdown(nodes[2].net, 0);
            nodes[2].net->ops->shutdown(nodes[2].net, 1);
        } else {
            memset(there, order, (size_t)place[1]);
        }
        send_all(to, "!", 1);
    }
}

struct told_place {
    uint64_t offset, bytes;
};

static struct told_place place_of(struct node *node, const void *memory, size_t bytes) {
    uint64_t inside;
    struct told_place place;
    assert_int_equal(
        node->net->shared->find(node->net, memory, bytes, &place.offset, &place.bytes, &inside), 0);
    return place;
}

/* Starts the writer and a mesh of 3 with it, and lets it map rank 0's block. */
static struct child writer_start(struct node *nodes, void *memory, size_t bytes) {
    int there[2], back[2];
    char said;
    assert_int_equal(pipe(there), 0);
    assert_int_equal(pipe(back), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (!pid) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* should the test fail */
        writer_life(there[0], back[1]);
    }
    close(there[0]);
    close(back[1]);
    struct child child = {pid, back[0], there[1]};
    take_all(child.from, nodes[2].endpoint, RF__ENDPOINT_MAX);
    for (int i = 0; i < 2; i++) {
        send_all(child.to, nodes[i].endpoint, RF__ENDPOINT_MAX);
    }
    for (int i = 0; i < 2; i++) {
        node_open(nodes, i, 3, 1);
    }
    for (int i = 0; i < 2; i++) {
        for (int peer = 0; peer < 3; peer++) {
            if (i != peer) {
                wait_for(nodes, 2, &nodes[i].up[peer]);
            }
        }
    }
    struct told_place place = place_of(&nodes[0], memory, bytes);
    send_all(child.to, &place, sizeof place);
    take_all(child.from, &said, 1);
    return child;
}

static void writer_end(struct child *child) {
    int status;
    assert_int_equal(kill(child->pid, SIGKILL), 0);
    assert_int_equal(waitpid(child->pid, &status, 0), child->pid);
    assert_true(WIFSIGNALED(status));
    close(child->from);
    close(child->to);
}

static void order(struct child *child, char what) {
    char said;
    send_all(child->to, &what, 1);
    take_all(child->from, &said, 1);
}

/* A process that was left out of the group and lives cannot write into what the group uses; one
 * that is known to be dead, or has said good-bye, costs nothing. */
static void a_stale_writer_disturbs_nobody(void **state) {
    enum { LARGE = 5 << 20, SMALL = 100, FROZEN = 0, DEAD, POLITE, CASES };
    (void)state;
    for (int how = 0; how < CASES; how++) {
        struct node nodes[MOST] = {0};
        char *memory[2], *between = NULL;
        int descriptors = open_descriptors();
        uint64_t offset, bytes, inside;
        for (int i = 0; i < 2; i++) {
            node_create(&nodes[i], &both[0], good_key, "job", DETECT_MS);
        }
        struct rf__net *net = nodes[0].net;
        for (int i = 0; i < 2; i++) {
            void *block;
            assert_int_equal(net->shared->alloc(net, i ? SMALL : LARGE, &block, NULL), 0);
            memory[i] = block;
            memset(block, 'a' + i, i ? SMALL : LARGE);
        }
        struct child child = writer_start(nodes, memory[0], LARGE);
        order(&child, '1');
        assert_int_equal(memory[0][0], '1');
        assert_int_equal(memory[0][LARGE - 1], '1');
        if (how == DEAD) {
            writer_end(&child);
            wait_for(nodes, 2, &nodes[0].down[2]);
        } else if (how == POLITE) {
            order(&child, 'q');
        }
        struct told_place before = place_of(&nodes[0], memory[0], LARGE);
        net->ops->shutdown(net, 2); /* as a driver that gives the peer up */
        mesh_open(nodes, 2, 2);
        bool moves = how == FROZEN;
        assert_int_equal(net->shared->find(net, memory[0], LARGE, &offset, &bytes, &inside),
                         moves ? RF_ENOTFOUND : 0);
        if (moves) {
            void *block; /* new blocks are at once where they belong */
            assert_int_equal(net->shared->alloc(net, SMALL, &block, NULL), 0);
            between = block;
            assert_int_equal(place_of(&nodes[0], between, SMALL).bytes, 65536);
            assert_int_equal(between[0], 0);
        }
        memory[0][7] = 'c'; /* whoever computes goes on until settle */
        assert_int_equal(net->shared->settle(net, NULL), 0);
        assert_int_equal(memory[0][7], 'c');
        memory[0][7] = '1';
        for (size_t k = 0; k < LARGE; k++) {
            assert_int_equal(memory[0][k], '1');
        }
        for (size_t k = 0; k < SMALL; k++) {
            assert_int_equal(memory[1][k], 'b');
        }
        struct told_place place = place_of(&nodes[0], memory[0], LARGE);
        if (!moves) {
            assert_int_equal(place.offset, before.offset);
        }
        struct rf__net *other = nodes[1].net;
        char *there = other->shared->map(other, 0, place.offset, place.bytes);
        assert_non_null(there);
        assert_int_equal(there[LARGE - 1], '1');
        if (how == FROZEN) {
            order(&child, '2');
        }
        assert_int_equal(memory[0][0], '1');
        assert_int_equal(there[LARGE - 1], '1');
        there[LARGE - 1] = '3'; /* the new peers do see each other */
        assert_int_equal(memory[0][LARGE - 1], '3');
        exchange(nodes, 2, 5, 100000);
        if (how != DEAD) {
            writer_end(&child);
        }
        /* Once is enough: nobody of before can write into the new file. */
        mesh_open(nodes, 2, 3);
        assert_int_equal(place_of(&nodes[0], memory[0], LARGE).offset, place.offset);
        for (int i = 0; i < 2; i++) {
            net->shared->release(net, memory[i]);
        }
        net->shared->release(net, between);
        mesh_destroy(nodes, 2);
        assert_int_equal(open_descriptors(), descriptors);
    }
}

/* A peer that never connected in the generation after still holds what it was given before. */
static void a_frozen_peer_is_remembered(void **state) {
    struct node nodes[MOST] = {0};
    uint64_t offset, bytes, inside;
    void *memory;
    (void)state;
    mesh_create(nodes, 3, &both[0]);
    struct rf__net *net = nodes[0].net;
    assert_int_equal(net->shared->alloc(net, 10, &memory, NULL), 0);
    char *stale =
        nodes[2].net->shared->map(nodes[2].net, 0, place_of(&nodes[0], memory, 10).offset, 65536);
    assert_non_null(stale);
    strcpy(memory, "own");
    node_open(nodes, 0, 3, 2); /* rank 2 sleeps */
    node_open(nodes, 1, 3, 2);
    wait_for(nodes, 2, &nodes[0].up[1]);
    assert_int_equal(net->shared->find(net, memory, 10, &offset, &bytes, &inside), 0);
    mesh_open(nodes, 2, 3);
    assert_int_equal(net->shared->find(net, memory, 10, &offset, &bytes, &inside), RF_ENOTFOUND);
    mesh_open(nodes, 2, 4); /* and once more before anybody settles */
    assert_int_equal(net->shared->settle(net, NULL), 0);
    strcpy(stale, "stale");
    assert_string_equal(memory, "own");
    mesh_destroy(nodes, 3);
}

/* ---- A rehearsed cut ---- */

static void mute(struct node *node, int64_t until) {
    node->net->ops->mute(node->net, until);
}

static void assert_quiet(struct node *node) {
    node_turn(node, 0);
    node_turn(node, 0);
    for (int i = 0; i < 20; i++) {
        assert_int_equal(rf__poller_collect(node->poller, 0), 0);
        rf__poller_dispatch(node->poller);
        assert_int_equal(node->net->ops->pump(node->net, rf__now()), 0);
    }
}

/* The muted side neither reads nor writes nor notices, and waits without spinning; what came
 * meanwhile is there when it is over. */
static void a_cut_is_silent(void **state) {
    (void)state;
    for (size_t t = 0; t < 2; t++) {
        struct node nodes[MOST];
        char text[8] = "";
        const void *view;
        struct iovec part = {text, 4};
        mesh_create(nodes, 2, &both[t]);
        struct rf__net *net = nodes[1].net;
        memcpy(text, "one", 4);
        assert_int_equal(nodes[0].net->ops->write(nodes[0].net, 1, 0, &part, 1), 4);
        mute(&nodes[1], rf__now() + 3600000 * RF__MS);
        memcpy(text, "two", 4);
        assert_int_equal(nodes[0].net->ops->write(nodes[0].net, 1, 0, &part, 1), 4);
        assert_quiet(&nodes[1]);
        assert_int_equal(net->ops->read(net, 0, 0, text, 4), 0);
        assert_int_equal(net->ops->write(net, 0, 0, &part, 1), 0);
        assert_int_equal(net->ops->peek(net, 0, 0, &view, 4), t ? RF_EUNSUPPORTED : 0);
        turn_all(nodes, 2, 0);
        assert_int_equal(nodes[0].net->ops->read(nodes[0].net, 1, 0, text, 4), 0);
        node_destroy(&nodes[0]);
        assert_quiet(&nodes[1]);
        assert_int_equal(nodes[1].down[0], 0);

        /* By itself, at its time: only the timer can wake this wait. */
        mute(&nodes[1], rf__now() + 20 * RF__MS);
        node_turn(&nodes[1], 0);
        size_t have = 0;
        char got[8];
        while (have < sizeof got) {
            ssize_t n = net->ops->read(net, 0, 0, got + have, sizeof got - have);
            assert_true(n >= 0);
            have += (size_t)n;
            if (!n) {
                node_turn(&nodes[1], -1);
            }
        }
        assert_memory_equal(got, "one\0two", 8);
        while (!nodes[1].down[0]) {
            assert_true(net->ops->read(net, 0, 0, got, 1) <= 0);
            node_turn(&nodes[1], RF__MS);
        }
        node_destroy(&nodes[1]);
    }
}

/* Links that the muted side gives up are not seen to end, and nobody gets to it, until it is over.
 */
static void a_cut_hides_what_is_closed_and_opened(void **state) {
    (void)state;
    for (size_t t = 0; t < 2; t++) {
        for (int muted = 0; muted < 2; muted++) { /* the one that is dialled, the one that dials */
            struct node nodes[MOST];
            int before = open_descriptors(), other = !muted;
            mesh_create(nodes, 2, &both[t]);
            mute(&nodes[muted], rf__now() + 3600000 * RF__MS);
            node_open(nodes, muted, 2, 2);
            for (int i = 0; i < 20; i++) {
                turn_all(nodes, 2, 0);
            }
            assert_int_equal(nodes[other].down[muted], 0);
            node_open(nodes, other, 2, 2);
            for (int i = 0; i < 20; i++) {
                turn_all(nodes, 2, 0);
            }
            assert_int_equal(nodes[0].up[1] + nodes[1].up[0], 0);
            assert_quiet(&nodes[muted]);
            mute(&nodes[muted], 0);
            wait_for(nodes, 2, &nodes[0].up[1]);
            wait_for(nodes, 2, &nodes[1].up[0]);
            exchange(nodes, 2, 3, 50000);
            /* Destroyed in the middle of one, it leaves nothing behind. */
            mute(&nodes[muted], rf__now() + 3600000 * RF__MS);
            node_open(nodes, muted, 2, 3);
            mesh_destroy(nodes, 2);
            assert_int_equal(open_descriptors(), before);
        }
    }
}

/* Timers go on: who is cut off gives up those whom it cannot reach. */
static void a_cut_does_not_stop_the_timers(void **state) {
    struct node nodes[MOST];
    (void)state;
    for (int i = 0; i < 2; i++) {
        node_create(&nodes[i], &both[0], good_key, "job", 10);
    }
    mute(&nodes[0], rf__now() + 3600000 * RF__MS);
    node_open(nodes, 0, 2, 1);
    while (!nodes[0].down[1]) {
        node_turn(&nodes[0], -1);
    }
    assert_int_equal(nodes[0].error[1].code, RF_ECONNECT);
    mesh_destroy(nodes, 2);
}

/* ---- A real one ---- */

/* The loopback interface of the network namespace that this thread is in. */
static void set_loopback(bool up) {
    struct ifreq request = {.ifr_name = "lo", .ifr_flags = (short)(up ? IFF_UP : 0)};
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    assert_true(fd >= 0);
    assert_int_equal(ioctl(fd, SIOCSIFFLAGS, &request), 0);
    close(fd);
}

/* The wire is cut while one end waits for the rest of what the other has begun: it reads what has
 * arrived, and then finds out that no more will come, though the stream has no end. */
static void a_cut_wire_ends_what_is_read(void **state) {
    struct node nodes[MOST];
    char text[8] = "begun", got[16];
    struct iovec part = {text, 5};
    int before = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);

    (void)state;
    assert_true(before >= 0);
    if (unshare(CLONE_NEWNET)) {
        assert_int_equal(errno, EPERM);
        print_message("a network namespace of its own needs root\n");
        close(before);
        skip();
    }
    set_loopback(true);
    for (int i = 0; i < 2; i++) {
        node_create(&nodes[i], &both[1], good_key, "job", 200);
    }
    mesh_open(nodes, 2, 1);
    assert_int_equal(nodes[0].net->ops->write(nodes[0].net, 1, 0, &part, 1), 5);
    int64_t limit = rf__now() + 60000 * RF__MS;
    while (nodes[1].net->ops->read(nodes[1].net, 0, 0, got, 2) != 2) {
        node_turn(&nodes[1], RF__MS);
        assert_true(rf__now() < limit);
    }
    set_loopback(false);
    assert_int_equal(nodes[1].net->ops->write(nodes[1].net, 0, 0, &part, 1), 5);
    while (!nodes[1].down[0]) {
        node_turn(&nodes[1], RF__MS);
        assert_true(rf__now() < limit);
    }
    assert_int_equal(nodes[1].net->ops->read(nodes[1].net, 0, 0, got, sizeof got), 3);
    assert_memory_equal(got, "gun", 3);
    assert_int_equal(nodes[1].net->ops->read(nodes[1].net, 0, 0, got, sizeof got), RF_ELOST);
    assert_int_equal(nodes[1].net->ops->write(nodes[1].net, 0, 0, &part, 1), RF_ELOST);
    mesh_destroy(nodes, 2);
    assert_int_equal(setns(before, CLONE_NEWNET), 0);
    close(before);
}

/* A peer that writes nonsense into the positions is found out, and nothing is read outside the
 * mapping. */
static void nonsense_in_a_ring_ends_the_link(void **state) {
    (void)state;
    for (int what = 0; what < 4; what++) {
        struct node nodes[MOST];
        char byte = 0;
        struct iovec part = {&byte, 1};
        mesh_create(nodes, 2, &both[0]);
        struct rf__os_net *net = (struct rf__os_net *)nodes[1].net;
        /* Rank 1 spoils the head of its own ring, or the tail of the ring that it reads: far off,
         * or by one. */
        bool tail = what % 2;
        struct rf__ring *ring = tail ? &net->links[0].in : &net->links[0].out;
        uint64_t value = what / 2 ? 0xa5a5a5a5a5a5a5a5u : tail ? UINT64_MAX : ring->capacity + 1;
        memcpy(ring->base + (tail ? 64 : 0), &value, sizeof value);
        ssize_t n = 0;
        for (int i = 0; i < 100 && n >= 0; i++) {
            char room[65536] = {0};
            struct iovec much = {room, sizeof room};
            n = tail ? nodes[0].net->ops->write(nodes[0].net, 1, 0, &much, 1)
                     : nodes[0].net->ops->read(nodes[0].net, 1, 0, &byte, 1);
        }
        assert_int_equal(n, RF_ELOST);
        wait_for(nodes, 2, &nodes[0].down[1]);
        assert_int_equal(nodes[0].error[1].code, RF_EPROTO);
        assert_int_equal(nodes[0].net->ops->write(nodes[0].net, 1, 0, &part, 1), RF_ELOST);
        mesh_destroy(nodes, 2);
    }
}

/* ---- Waking ---- */

struct worker {
    struct node *node;
    int peer;
    uint64_t sent, received, to_send, to_receive;
    bool answers; /* sends only what it has received before */
};

/* One turn of a worker; true if anything moved. */
static bool worker_turn(struct worker *w) {
    static const size_t most = 50000;
    unsigned char bytes[50000];
    struct rf__net *net = w->node->net;
    struct rf__net_event event;
    int own = 1 - w->peer;
    bool moved = net->ops->pump(net, rf__now()) > 0;
    while (net->ops->next_event(net, &event)) {
        moved = true;
    }
    ssize_t n = w->received < w->to_receive ? net->ops->read(net, w->peer, 0, bytes, most) : 0;
    for (ssize_t i = 0; i < n; i++) {
        if (bytes[i] != expected(w->peer, own, w->received + (uint64_t)i)) {
            abort();
        }
    }
    w->received += n > 0 ? (uint64_t)n : 0;
    moved = moved || n > 0;
    uint64_t allowed = w->answers ? w->received : w->to_send;
    size_t count = allowed > w->sent ? (size_t)(allowed - w->sent) : 0;
    count = count < most ? count : most;
    for (size_t i = 0; i < count; i++) {
        bytes[i] = expected(own, w->peer, w->sent + i);
    }
    struct iovec part = {bytes, count};
    n = count ? net->ops->write(net, w->peer, 0, &part, 1) : 0;
    w->sent += n > 0 ? (uint64_t)n : 0;
    return moved || n > 0;
}

static bool busy(const struct worker *w) {
    return w->sent < w->to_send || w->received < w->to_receive;
}

/* Sleeps, without limit, whenever nothing moves: a lost wake-up hangs here. */
static void *worker_run(void *context) {
    struct worker *w = context;
    struct rf__net *net = w->node->net;
    while (busy(w)) {
        if (worker_turn(w)) {
            continue;
        }
        net->ops->sleep(net, true);
        if (!worker_turn(w) && busy(w)) {
            rf__poller_collect(w->node->poller, -1);
        }
        net->ops->sleep(net, false);
        rf__poller_dispatch(w->node->poller);
    }
    return NULL;
}

/* Both ways at once; each answering the other; one way only, so that a full ring's reader alone can
 * wake the writer. */
static void nobody_sleeps_for_ever(void **state) {
    static const uint64_t totals[3][2] = {{20000000, 20000000}, {3000000, 3000000}, {60000000, 0}};
    (void)state;
    for (size_t run = 0; run < 6; run++) {
        const uint64_t *total = totals[run / 2];
        struct node nodes[MOST];
        struct worker workers[2];
        pthread_t threads[2];
        mesh_create(nodes, 2, &both[run % 2]);
        for (int i = 0; i < 2; i++) {
            workers[i] = (struct worker){.node = &nodes[i],
                                         .peer = 1 - i,
                                         .to_send = total[i],
                                         .to_receive = total[1 - i],
                                         .answers = run / 2 == 1 && i};
            assert_int_equal(pthread_create(&threads[i], NULL, worker_run, &workers[i]), 0);
        }
        for (int i = 0; i < 2; i++) {
            assert_int_equal(pthread_join(threads[i], NULL), 0);
            assert_int_equal(workers[i].received, total[1 - i]);
        }
        mesh_destroy(nodes, 2);
    }
}

enum { ROUNDS = 5000 };

struct player {
    struct node *node;
    int own;
};

/* Two ranks count up in turn on their boards, sleeping between. */
static void *player_run(void *context) {
    struct player *p = context;
    struct rf__net *net = p->node->net;
    _Atomic uint64_t *own = net->shared->board(net, p->own),
                     *other = net->shared->board(net, 1 - p->own);
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        uint64_t wanted = p->own ? round : round - 1;
        while (atomic_load_explicit(other, memory_order_acquire) < wanted) {
            net->ops->sleep(net, true);
            if (atomic_load_explicit(other, memory_order_acquire) < wanted) {
                rf__poller_collect(p->node->poller, -1);
            }
            net->ops->sleep(net, false);
            rf__poller_dispatch(p->node->poller);
        }
        atomic_store_explicit(own, round, memory_order_release);
        net->shared->notify(net, 1 - p->own);
    }
    return NULL;
}

static void notify_wakes_a_sleeper(void **state) {
    struct node nodes[MOST];
    struct player players[2];
    pthread_t threads[2];
    (void)state;
    mesh_create(nodes, 2, &both[0]);
    for (int i = 0; i < 2; i++) {
        players[i] = (struct player){&nodes[i], i};
        assert_int_equal(pthread_create(&threads[i], NULL, player_run, &players[i]), 0);
    }
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    }
    mesh_destroy(nodes, 2);
}

/* ---- Several streams ---- */

static void wait_for_lanes(struct node *nodes, int lanes) {
    int64_t limit = rf__now() + 60000 * RF__MS;
    while (nodes[0].net->lanes[1] < lanes || nodes[1].net->lanes[0] < lanes) {
        turn_all(nodes, 2, RF__MS);
        assert_true(rf__now() < limit);
    }
    for (int i = 0; i < 20; i++) { /* no more come */
        turn_all(nodes, 2, RF__MS);
    }
    assert_int_equal(nodes[0].net->lanes[1], lanes);
    assert_int_equal(nodes[1].net->lanes[0], lanes);
}

static void pair_create(struct node *nodes, int streams_0, int streams_1, int detect_ms) {
    struct setting settings[2] = {{RF_TRANSPORT_TCP, "127.0.0.1", streams_0},
                                  {RF_TRANSPORT_TCP, "127.0.0.1", streams_1}};
    for (int i = 0; i < 2; i++) {
        node_create(&nodes[i], &settings[i], good_key, "job", detect_ms);
        assert_int_equal(nodes[i].net->most_lanes, settings[i].streams);
    }
    mesh_open(nodes, 2, 1);
    wait_for_lanes(nodes, streams_0 < streams_1 ? streams_0 : streams_1);
}

/* So many as both want; what is written on each is read from one of the other side, and the first
 * is the first on both. */
static void streams_are_as_many_as_both_want(void **state) {
    (void)state;
    static const int wanted[][2] = {{4, 4}, {2, 5}, {5, 2}, {1, 3}, {3, 1}, {64, 64}};
    int before = open_descriptors();
    for (size_t k = 0; k < sizeof wanted / sizeof *wanted; k++) {
        struct node nodes[2];
        pair_create(nodes, wanted[k][0], wanted[k][1], DETECT_MS);
        int lanes = nodes[0].net->lanes[1];
        for (int from = 0; from < 2; from++) {
            bool seen[64] = {false};
            int count = 0;
            for (int lane = 0; lane < lanes; lane++) {
                unsigned char byte = (unsigned char)lane;
                struct iovec part = {&byte, 1};
                assert_int_equal(
                    nodes[from].net->ops->write(nodes[from].net, 1 - from, lane, &part, 1), 1);
            }
            int64_t limit = rf__now() + 60000 * RF__MS;
            while (count < lanes) {
                turn_all(nodes, 2, RF__MS);
                assert_true(rf__now() < limit);
                for (int lane = 0; lane < lanes; lane++) {
                    unsigned char byte;
                    struct rf__net *net = nodes[1 - from].net;
                    if (net->ops->read(net, from, lane, &byte, 1) == 1) {
                        assert_true(byte < lanes && !seen[byte] && (byte == 0) == (lane == 0));
                        seen[byte] = true;
                        count++;
                    }
                }
            }
        }
        node_open(nodes, 0, 2, 2); /* a new generation begins with one, and gets them all again */
        assert_int_equal(nodes[0].net->lanes[1], 1);
        mesh_open(nodes, 2, 3);
        wait_for_lanes(nodes, lanes);
        mesh_destroy(nodes, 2);
        assert_int_equal(open_descriptors(), before);
    }
}

/* What was written before a link was shut arrives on every stream, then its end. */
static void the_end_comes_last_on_every_stream(void **state) {
    (void)state;
    enum { LANES = 4, ROOM = 1 << 20 };
    struct node nodes[2];
    static unsigned char bytes[ROOM];
    size_t written[LANES], got[LANES] = {0}, sent = 0, read = 0;
    int ended = 0;
    pair_create(nodes, LANES, LANES, DETECT_MS);
    for (int lane = 0; lane < LANES; lane++) {
        struct iovec part = {bytes, ROOM >> (lane * 3)};
        ssize_t n = nodes[0].net->ops->write(nodes[0].net, 1, lane, &part, 1);
        assert_true(n > 0);
        written[lane] = (size_t)n;
        sent += written[lane];
    }
    nodes[0].net->ops->shutdown(nodes[0].net, 1);
    int64_t limit = rf__now() + 60000 * RF__MS;
    while (ended < LANES) {
        turn_all(nodes, 2, RF__MS);
        assert_true(rf__now() < limit);
        ended = 0;
        for (int lane = LANES - 1; lane >= 0; lane--) {
            ssize_t n = nodes[1].net->ops->read(nodes[1].net, 0, lane, bytes + got[lane], 10000);
            assert_true(n >= 0 || n == RF_ELOST);
            ended += n == RF_ELOST;
            got[lane] += n > 0 ? (size_t)n : 0;
            read += n > 0 ? (size_t)n : 0;
        }
    }
    for (int lane = 0; lane < LANES; lane++) { /* their numbers at the two ends may differ */
        bool found = false;
        for (int other = 0; other < LANES; other++) {
            found = found || got[lane] == written[other];
        }
        assert_true(found);
    }
    assert_int_equal(read, sent);
    wait_for(nodes, 2, &nodes[1].down[0]);
    assert_non_null(strstr(nodes[1].error[0].text, "worker 0"));
    mesh_destroy(nodes, 2);
}

/* A stream that is lost by itself takes the link with it. */
static void a_lost_stream_ends_the_link(void **state) {
    (void)state;
    for (int reset = 0; reset < 2; reset++) {
        struct node nodes[2];
        pair_create(nodes, 3, 3, 300);
        const struct rf__os_net *net = (const struct rf__os_net *)nodes[0].net;
        int fd = net->links[1].more[1]->source.fd;
        if (reset) {
            struct linger hard = {1, 0};
            assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard), 0);
            int copy = open("/dev/null", O_RDONLY | O_CLOEXEC);
            assert_true(copy >= 0);
            assert_int_equal(dup2(copy, fd), fd);
            close(copy);
        } else {
            assert_int_equal(shutdown(fd, SHUT_WR), 0);
        }
        wait_for(nodes, 2, &nodes[1].down[0]);
        assert_int_equal(nodes[1].error[0].code, RF_ELOST);
        assert_int_equal(nodes[1].error[0].rank, 0);
        assert_non_null(strstr(nodes[1].error[0].text, "127.0.0.1:"));
        for (int lane = 0; lane < 3; lane++) {
            unsigned char byte = 0;
            struct iovec part = {&byte, 1};
            assert_int_equal(nodes[1].net->ops->write(nodes[1].net, 0, lane, &part, 1), RF_ELOST);
            assert_int_equal(nodes[1].net->ops->read(nodes[1].net, 0, lane, &byte, 1), RF_ELOST);
        }
        mesh_destroy(nodes, 2);
    }
}

/* ---- Without memory ---- */

static void every_failed_allocation_is_survived(void **state) {
    struct rf__poller *poller;
    struct rf__net_options options = {.job = "job", .key = good_key, .key_bytes = 16};
    int before = open_descriptors();
    bool clean = false;
    (void)state;
    for (long k = 0; !clean; k++) {
        struct rf__net *net = NULL;
        struct rf_error err = {0};
        char endpoint[RF__ENDPOINT_MAX];
        void *memory;
        assert_int_equal(rf__poller_create(&poller, NULL), 0);
        rf__alloc_fail_after(k);
        int rc = rf__net_create(&options, poller, &net, &err);
        if (!rc) {
            const char *endpoints[2] = {endpoint, "rf1 host=h unix=- tcp=127.0.0.1:1"};
            struct rf__net_group group = {
                .generation = 1, .rank = 0, .size = 2, .endpoints = endpoints};
            assert_int_equal(net->ops->endpoint(net, endpoint, sizeof endpoint, NULL), 0);
            rc = net->ops->open(net, &group, &err);
            rc = rc ? rc : net->shared->alloc(net, 10, &memory, &err);
        }
        rf__alloc_fail_after(-1);
        assert_true(rc == 0 || (rc == RF_ENOMEM && err.code == RF_ENOMEM));
        clean = rc == 0;
        if (net) {
            net->ops->destroy(net);
        }
        rf__poller_destroy(poller);
        assert_int_equal(open_descriptors(), before);
        assert_true(k < 100);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shm_streams_are_exact),
        cmocka_unit_test(tcp_streams_are_exact),
        cmocka_unit_test(v6_alone_is_enough),
        cmocka_unit_test(only_bbr_is_replaced),
        cmocka_unit_test(the_end_comes_last),
        cmocka_unit_test(the_end_is_told_to_those_who_do_not_read),
        cmocka_unit_test(a_killed_worker_is_noticed),
        cmocka_unit_test(the_wrong_are_refused_with_a_reason),
        cmocka_unit_test(the_early_wait),
        cmocka_unit_test(the_absent_are_named),
        cmocka_unit_test(transports_must_agree),
        cmocka_unit_test(strangers_do_not_disturb),
        cmocka_unit_test(heaps_are_shared),
        cmocka_unit_test(more_blocks_than_views),
        cmocka_unit_test(boards_are_seen_by_all),
        cmocka_unit_test(a_stale_writer_disturbs_nobody),
        cmocka_unit_test(a_frozen_peer_is_remembered),
        cmocka_unit_test(a_cut_is_silent),
        cmocka_unit_test(a_cut_hides_what_is_closed_and_opened),
        cmocka_unit_test(a_cut_does_not_stop_the_timers),
        cmocka_unit_test(a_cut_wire_ends_what_is_read),
        cmocka_unit_test(nonsense_in_a_ring_ends_the_link),
        cmocka_unit_test(nobody_sleeps_for_ever),
        cmocka_unit_test(notify_wakes_a_sleeper),
        cmocka_unit_test(streams_are_as_many_as_both_want),
        cmocka_unit_test(the_end_comes_last_on_every_stream),
        cmocka_unit_test(a_lost_stream_ends_the_link),
        cmocka_unit_test(every_failed_allocation_is_survived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
