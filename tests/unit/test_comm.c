/* api/: the real communicator, engine, links and store, with the ranks as threads of one process.
 * What is held against an oracle is small whole numbers, so sums are exact in any order; random
 * pauses and sizes are seeded.
 *
 * cmocka's assertions may not be used on the ranks' threads: there CHECK counts, and the test looks
 * at the count. */
#include "base/mem.h"
#include "base/rng.h"
#include "os/clock.h"
#include "os/store_server.h"
#include "support/threads.h"

#include <ringfold/comm.h>
#include <ringfold/ddp.h>
#include <ringfold/store.h>

#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum { RANKS = 5 };

#define CHECK(condition) CHECK_BY("rank", rank, condition)

static const unsigned char key[] = "sixteen bytes it is, or more";

/* ---- The store: one for all tests, on a thread of its own. ---- */

static struct {
    struct rf__store_server *server;
    pthread_t thread;
    atomic_bool stopping;
    int bell;
    char uri[64];
} store;

static void *serve(void *context) {
    struct rf_error err;

    (void)context;
    while (!atomic_load(&store.stopping)) {
        struct pollfd fds[2] = {{.fd = rf__store_server_fd(store.server), .events = POLLIN},
                                {.fd = store.bell, .events = POLLIN}};
        int64_t deadline = rf__store_server_deadline(store.server), now = rf__now();
        int64_t ms = deadline == INT64_MAX ? 1000 : deadline > now ? (deadline - now) / 1000000 : 0;
        (void)poll(fds, 2, ms < 1000 ? (int)ms + 1 : 1000);
        if (rf__store_server_step(store.server, rf__now(), &err)) {
            fprintf(stderr, "store: %s\n", err.text);
            abort();
        }
    }
    return NULL;
}

static void start_store(void) {
    struct rf__store_server_options options = {
        .bind = "127.0.0.1:0", .key = key, .key_bytes = sizeof key};
    struct rf_error err;

    if (rf__store_server_create(&options, &store.server, &err)) {
        fail_msg("%s", err.text);
    }
    snprintf(store.uri, sizeof store.uri, "tcp://127.0.0.1:%d",
             rf__store_server_port(store.server));
    atomic_store(&store.stopping, false);
    store.bell = eventfd(0, EFD_CLOEXEC);
    assert_true(store.bell >= 0);
    assert_int_equal(pthread_create(&store.thread, NULL, serve, NULL), 0);
}

static void stop_store(void) {
    uint64_t one = 1;
    if (store.server) {
        atomic_store(&store.stopping, true);
        (void)!write(store.bell, &one, sizeof one);
        pthread_join(store.thread, NULL);
        rf__store_server_destroy(store.server);
        store.server = NULL;
        close(store.bell);
    }
}

static int set_up(void **state) {
    (void)state;
    start_store();
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    stop_store();
    return 0;
}

/* ---- Ranks ---- */

struct world {
    int size;
    enum rf_transport transport;
    void (*body)(struct rf_comm *comm, int rank, struct world *world);
    char job[RF_MAX_JOB_NAME];
    pthread_barrier_t barrier;
    struct rf_comm *comms[RANKS];
    int calls;
    atomic_int arrived;
};

static void options_of(struct rf_options *options, const char *job, int rank, int size,
                       enum rf_transport transport) {
    rf_options_init(options);
    snprintf(options->job, sizeof options->job, "%s", job);
    snprintf(options->store, sizeof options->store, "%s", store.uri);
    options->rank = rank;
    options->size = size;
    options->local_size = size;
    options->transport = transport;
    options->key_bytes = sizeof key;
    options->detect_ms = 20000; /* no verdicts on a busy machine */
    options->start_timeout_ms = 60000;
    memcpy(options->key, key, sizeof key);
}

static void rank_main(int rank, void *context) {
    struct world *world = context;
    struct rf_options options;
    struct rf_error err;

    options_of(&options, world->job, rank, world->size, world->transport);
    int rc = rf_comm_create(&options, &world->comms[rank], &err);
    if (rc) {
        fprintf(stderr, "rank %d: %s\n", rank, err.text);
    }
    CHECK(rc == 0);
    if (rc == 0) {
        world->body(world->comms[rank], rank, world);
        rf_comm_destroy(world->comms[rank]);
    }
}

static void run_world(int size, enum rf_transport transport,
                      void (*body)(struct rf_comm *comm, int rank, struct world *world)) {
    static int jobs;
    struct world world = {.size = size, .transport = transport, .body = body};

    snprintf(world.job, sizeof world.job, "job-%d", jobs++);
    pthread_barrier_init(&world.barrier, NULL, (unsigned)size);
    run_threads(size, rank_main, &world);
    pthread_barrier_destroy(&world.barrier);
    assert_int_equal(atomic_exchange(&failed_checks, 0), 0);
}

static void run_worlds(void (*body)(struct rf_comm *comm, int rank, struct world *world)) {
    static const int sizes[] = {1, 2, 3, RANKS};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        run_world(sizes[i], RF_TRANSPORT_SHM, body);
        run_world(sizes[i], RF_TRANSPORT_TCP, body);
    }
}

static void rest(struct rf__rng *rng) {
    uint64_t kind = rf__rng_below(rng, 8);
    struct timespec pause = {.tv_nsec = (long)rf__rng_below(rng, 100000)};

    if (kind == 0) { /* longer than the engine stands aside */
        pause.tv_nsec = 3000000 + (long)rf__rng_below(rng, 2000000);
    }
    if (kind < 3) {
        nanosleep(&pause, NULL);
    }
}

static int32_t value_of(int rank, size_t index, uint64_t call) {
    return (int32_t)((index * 31 + (size_t)rank * 7 + call * 13) % 1009) - 500;
}

static int32_t sum_of(int size, size_t index, uint64_t call) {
    int32_t sum = 0;
    for (int rank = 0; rank < size; rank++) {
        sum += value_of(rank, index, call);
    }
    return sum;
}

static void fill(int32_t *x, size_t count, int rank, uint64_t call) {
    for (size_t i = 0; i < count; i++) {
        x[i] = value_of(rank, i, call);
    }
}

static bool holds_sum(const int32_t *x, size_t count, int size, uint64_t call) {
    for (size_t i = 0; i < count; i++) {
        if (x[i] != sum_of(size, i, call)) {
            return false;
        }
    }
    return true;
}

static bool holds_values(const int32_t *x, size_t count, int rank, uint64_t call) {
    for (size_t i = 0; i < count; i++) {
        if (x[i] != value_of(rank, i, call)) {
            return false;
        }
    }
    return true;
}

static int32_t *allocate(struct rf_comm *comm, size_t count, bool heap) {
    void *out = NULL;
    struct rf_error err;
    if (heap) {
        return rf_mem_alloc(comm, count * sizeof(int32_t), &out, &err) ? NULL : out;
    }
    return calloc(count + 1, sizeof(int32_t));
}

static void release(struct rf_comm *comm, int32_t *memory, bool heap) {
    if (heap) {
        rf_mem_free(comm, memory);
    } else {
        free(memory);
    }
}

/* ---- Blocking ---- */

static void each_collective(struct rf_comm *comm, int rank, struct world *world, size_t count,
                            bool heap, uint64_t call) {
    int size = world->size, root = (int)(call % (uint64_t)size);
    size_t all = count * (size_t)size;
    int32_t *in = allocate(comm, all, heap), *out = allocate(comm, all, heap);

    CHECK(in && out);
    fill(in, count, rank, call);
    CHECK(rf_allreduce(comm, in, out, count, RF_I32, RF_SUM) == 0);
    CHECK(holds_sum(out, count, size, call));
    CHECK(holds_values(in, count, rank, call));
    CHECK(rf_all_gather(comm, in, out, count, RF_I32) == 0);
    for (int from = 0; from < size; from++) {
        CHECK(holds_values(out + (size_t)from * count, count, from, call));
    }
    CHECK(rf_reduce(comm, in, rank == root ? out : NULL, count, RF_I32, RF_SUM, root) == 0);
    CHECK(rank != root || holds_sum(out, count, size, call));
    CHECK(rf_broadcast(comm, rank == root ? in : NULL, rank == root ? NULL : out, count, RF_I32,
                       root) == 0);
    CHECK(rank == root || holds_values(out, count, root, call));
    CHECK(rf_gather(comm, in, rank == root ? out : NULL, count, RF_I32, root) == 0);
    for (int from = 0; from < size && rank == root; from++) {
        CHECK(holds_values(out + (size_t)from * count, count, from, call));
    }
    fill(in, all, rank, call);
    CHECK(rf_reduce_scatter(comm, in, out, count, RF_I32, RF_SUM) == 0);
    bool is_right = true;
    for (size_t i = 0; i < count; i++) {
        is_right = is_right && out[i] == sum_of(size, (size_t)rank * count + i, call);
    }
    CHECK(is_right);
    CHECK(rf_scatter(comm, rank == root ? in : NULL, out, count, RF_I32, root) == 0);
    for (size_t i = 0; i < count; i++) {
        is_right = is_right && out[i] == value_of(root, (size_t)rank * count + i, call);
    }
    CHECK(is_right);
    CHECK(rf_all_to_all(comm, in, out, count, RF_I32) == 0);
    for (size_t i = 0; i < all && count; i++) {
        size_t mine = (size_t)rank * count + i % count;
        is_right = is_right && out[i] == value_of((int)(i / count), mine, call);
    }
    CHECK(is_right);
    CHECK(rf_allreduce(comm, in, in, count, RF_I32, RF_SUM) == 0);
    CHECK(holds_sum(in, count, size, call));
    CHECK(rf_barrier(comm) == 0);
    release(comm, in, heap);
    release(comm, out, heap);
}

static void blocking_body(struct rf_comm *comm, int rank, struct world *world) {
    static const size_t counts[] = {0, 1, 7, 100, 511, 513, 5000, 70001};
    struct rf_error err;
    uint64_t call = 0;

    CHECK(rf_rank(comm) == rank && rf_size(comm) == world->size && rf_generation(comm) == 1);
    const char *want = world->size == 1                       ? "self"
                       : world->transport == RF_TRANSPORT_SHM ? "shm"
                                                              : "tcp";
    CHECK(strcmp(rf_comm_transport(comm), want) == 0);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        each_collective(comm, rank, world, counts[i], false, call++);
        each_collective(comm, rank, world, counts[i], true, call++);
    }
    rf_comm_error(comm, &err);
    CHECK(err.code == 0);
}

static void blocking_collectives(void **state) {
    (void)state;
    run_worlds(blocking_body);
}

/* ---- Asynchronous ---- */

enum { IN_FLIGHT = 12 };

struct flight {
    struct rf_request *request;
    int32_t *in, *out;
    size_t count;
    uint64_t call;
    bool heap;
};

/* 0 or the error. By polling, by short waits, by one wait. */
static int complete(struct rf_request *request, struct rf__rng *rng) {
    uint64_t way = rf__rng_below(rng, 4);
    int rc = 0;

    for (int i = 0; way == 0 && rc == 0; i++) {
        rc = rf_test(request);
        if (rc == 0 && i % 64 == 63) {
            rest(rng);
        }
    }
    if (rc < 0) {
        (void)!rf_wait(request, -1);
        return rc;
    }
    do {
        rc = rf_wait(request, way == 1 ? 0 : way == 2 ? (int)rf__rng_below(rng, 3) : -1);
    } while (rc == RF_ETIMEDOUT);
    return rc;
}

/* All ranks draw sizes from one stream and pauses from their own. */
static void asynchronous_body(struct rf_comm *comm, int rank, struct world *world) {
    struct rf__rng shape = rf__rng(11, (uint64_t)world->size, 0),
                   own = rf__rng(11, (uint64_t)world->size, 1 + (uint64_t)rank);
    uint64_t call = 0;

    for (int round = 0; round < 6; round++) {
        struct flight flights[IN_FLIGHT];
        for (int i = 0; i < IN_FLIGHT; i++) {
            struct flight *f = &flights[i];
            f->count = (size_t)rf__rng_below(&shape, i % 4 == 3 ? 60000 : 900);
            f->heap = rf__rng_below(&shape, 2);
            f->call = call++;
            f->in = allocate(comm, f->count, f->heap);
            f->out = allocate(comm, f->count, f->heap);
            CHECK(f->in && f->out);
            fill(f->in, f->count, rank, f->call);
            struct rf_call what = {.coll = RF_COLL_ALLREDUCE,
                                   .type = RF_I32,
                                   .send = f->in,
                                   .recv = f->out,
                                   .count = f->count};
            CHECK(rf_start(comm, &what, &f->request) == 0);
            rest(&own);
        }
        bool drops = round == 5; /* nobody asks again; a barrier comes after them all */
        for (int i = 0; i < IN_FLIGHT; i++) {
            struct flight *f = &flights[i];
            if (drops) {
                rf_release(f->request);
            } else {
                CHECK(complete(f->request, &own) == 0);
                CHECK(holds_sum(f->out, f->count, world->size, f->call));
            }
        }
        if (drops) {
            CHECK(rf_barrier(comm) == 0);
        }
        for (int i = 0; i < IN_FLIGHT; i++) {
            CHECK(holds_sum(flights[i].out, flights[i].count, world->size, flights[i].call));
            release(comm, flights[i].in, flights[i].heap);
            release(comm, flights[i].out, flights[i].heap);
        }
    }
}

static void asynchronous_collectives(void **state) {
    (void)state;
    run_worlds(asynchronous_body);
}

/* A caller that only ever asks "now?" must not keep the engine standing aside for ever. */
static void impatient_body(struct rf_comm *comm, int rank, struct world *world) {
    int32_t in[600], out[600];
    for (uint64_t call = 0; call < 50; call++) {
        struct rf_request *request;
        fill(in, 600, rank, call);
        struct rf_call what = {.coll = RF_COLL_ALLREDUCE,
                               .type = RF_I32,
                               .send = in,
                               .recv = out,
                               .count = call % 2 ? 600 : 3};
        CHECK(rf_start(comm, &what, &request) == 0);
        int rc;
        do {
            rc = rf_wait(request, 0);
        } while (rc == RF_ETIMEDOUT);
        CHECK(rc == 0 && holds_sum(out, what.count, world->size, call));
    }
}

static void waiting_for_no_time_gets_there(void **state) {
    (void)state;
    run_worlds(impatient_body);
}

/* The caller drives, the engine drives, in turn, at random; messages pass around meanwhile. */
static void mixture_body(struct rf_comm *comm, int rank, struct world *world) {
    struct rf__rng shape = rf__rng(5, (uint64_t)world->size, 0),
                   own = rf__rng(5, (uint64_t)world->size, 1 + (uint64_t)rank);
    static const size_t most = 3000;
    int size = world->size, next = (rank + 1) % size, previous = (rank + size - 1) % size;
    int32_t *in = calloc(most, sizeof *in), *out = calloc(most, sizeof *out),
            *in2 = calloc(most, sizeof *in2), *out2 = calloc(most, sizeof *out2),
            *sent = calloc(most, sizeof *sent), *got = calloc(most, sizeof *got);

    for (uint64_t call = 0; call < 150; call++) {
        struct rf_request *request = NULL, *sending = NULL, *receiving = NULL;
        size_t count = (size_t)rf__rng_below(&shape, call % 5 ? 200 : most);
        bool overlaps = rf__rng_below(&shape, 2), messages = size > 1 && rf__rng_below(&shape, 2);
        if (messages) {
            struct rf_call send = {
                .coll = RF_COLL_SEND, .type = RF_I32, .root = next, .send = sent, .count = count};
            struct rf_call recv = {.coll = RF_COLL_RECV,
                                   .type = RF_I32,
                                   .root = previous,
                                   .recv = got,
                                   .count = count};
            fill(sent, count, rank, call);
            CHECK(rf_start(comm, &send, &sending) == 0);
            rest(&own);
            CHECK(rf_start(comm, &recv, &receiving) == 0);
        }
        if (overlaps) {
            struct rf_call what = {.coll = RF_COLL_ALLREDUCE,
                                   .type = RF_I32,
                                   .send = in2,
                                   .recv = out2,
                                   .count = count};
            fill(in2, count, rank, call + 1);
            CHECK(rf_start(comm, &what, &request) == 0);
            rest(&own);
        }
        fill(in, count, rank, call);
        CHECK(rf_allreduce(comm, in, out, count, RF_I32, RF_SUM) == 0);
        CHECK(holds_sum(out, count, size, call));
        rest(&own);
        if (overlaps) {
            CHECK(complete(request, &own) == 0);
            CHECK(holds_sum(out2, count, size, call + 1));
        }
        if (messages) {
            CHECK(complete(receiving, &own) == 0);
            CHECK(complete(sending, &own) == 0);
            CHECK(holds_values(got, count, previous, call));
        }
    }
    free(in);
    free(out);
    free(in2);
    free(out2);
    free(sent);
    free(got);
}

static void caller_and_engine_hand_over(void **state) {
    (void)state;
    run_worlds(mixture_body);
}

/* ---- Endings ---- */

static void *abort_main(void *context) {
    struct world *world = context;
    struct rf_error err;
    int rank = 0;

    for (int i = 0; i < 100; i++) {
        rf_comm_error(world->comms[0], &err);
        CHECK(err.code == 0);
    }
    /* the others are inside by now, or nearly: either way they have to come out */
    struct timespec pause = {.tv_nsec = 5000000};
    nanosleep(&pause, NULL);
    rf_comm_abort(world->comms[0], "the test says so");
    do {
        rf_comm_error(world->comms[0], &err);
    } while (err.code == 0);
    CHECK(err.code == RF_EREVOKED && strstr(err.text, "the test says so"));
    return NULL;
}

/* Rank 1 never calls; rank 0 is aborted by another thread while it blocks. */
static void abort_body(struct rf_comm *comm, int rank, struct world *world) {
    pthread_t thread;
    struct rf_error err;
    int32_t x[10] = {0};

    pthread_barrier_wait(&world->barrier);
    if (rank == 0) {
        CHECK(pthread_create(&thread, NULL, abort_main, world) == 0);
    }
    if (rank != 1) {
        CHECK(rf_allreduce(comm, x, x, 10, RF_I32, RF_SUM) == RF_EREVOKED);
        CHECK(rf_barrier(comm) == RF_EREVOKED);
    } else {
        do {
            rf_comm_error(comm, &err);
        } while (err.code == 0);
    }
    rf_comm_error(comm, &err);
    CHECK(err.code == RF_EREVOKED && err.rank == 0);
    CHECK(strstr(err.text, "rank 0 gave up: the test says so"));
    if (rank == 0) {
        pthread_join(thread, NULL);
    }
}

static void an_abort_ends_a_blocked_call_everywhere(void **state) {
    (void)state;
    for (int i = 0; i < 5; i++) {
        run_world(3, RF_TRANSPORT_SHM, abort_body);
        run_world(3, RF_TRANSPORT_TCP, abort_body);
    }
}

/* The last rank leaves with operations under way; the others are told who. */
static void destroy_body(struct rf_comm *comm, int rank, struct world *world) {
    static int32_t x[RANKS][4][20000];
    struct rf_request *requests[4];
    struct rf_error err;
    int leaver = world->size - 1;

    if (rank == leaver) {
        struct rf_call recv = {
            .coll = RF_COLL_RECV, .type = RF_I32, .recv = x[rank][0], .count = 5, .root = 0};
        CHECK(rf_start(comm, &recv, &requests[0]) == 0);
        rf_release(requests[0]);
        return;
    }
    for (int i = 0; i < 4; i++) {
        struct rf_call what = {.coll = RF_COLL_ALLREDUCE,
                               .type = RF_I32,
                               .send = x[rank][i],
                               .recv = x[rank][i],
                               .count = 20000};
        int rc = rf_start(comm, &what, &requests[i]);
        CHECK(rc == 0 || rc == RF_ELOST);
        requests[i] = rc ? NULL : requests[i];
    }
    for (int i = 0; i < 4; i++) {
        CHECK(!requests[i] || rf_wait(requests[i], -1) == RF_ELOST);
    }
    rf_comm_error(comm, &err);
    CHECK(err.code == RF_ELOST && err.rank == leaver);
}

static void leaving_in_the_middle_is_told_to_the_others(void **state) {
    (void)state;
    for (int size = 2; size <= 3; size++) {
        run_world(size, RF_TRANSPORT_SHM, destroy_body);
        run_world(size, RF_TRANSPORT_TCP, destroy_body);
    }
}

static void a_rank_that_never_comes_is_named(void **state) {
    struct rf_options options;
    struct rf_error err;
    struct rf_comm *comm;

    (void)state;
    options_of(&options, "lonely", 0, 3, RF_TRANSPORT_AUTO);
    options.start_timeout_ms = 300;
    assert_int_equal(rf_comm_create(&options, &comm, &err), RF_ETIMEDOUT);
    assert_null(comm);
    assert_non_null(strstr(err.text, "1 of 3 workers came"));
    assert_non_null(strstr(err.text, "rank 1, 2"));
}

/* The same job again and again on one store: the next generation each time. */
static void again_body(struct rf_comm *comm, int rank, struct world *world) {
    CHECK(rf_generation(comm) == (uint64_t)world->calls);
    CHECK(rf_barrier(comm) == 0);
}

static void one_job_after_the_other_on_one_store(void **state) {
    (void)state;
    for (int launch = 1; launch <= 4; launch++) {
        struct world world = {
            .size = 2, .transport = RF_TRANSPORT_AUTO, .body = again_body, .calls = launch};
        snprintf(world.job, sizeof world.job, "again");
        run_threads(2, rank_main, &world);
        assert_int_equal(atomic_exchange(&failed_checks, 0), 0);
    }
}

static void put(struct rf_store *client, const char *name, const char *value) {
    struct rf_error err;
    int64_t revision;
    assert_int_equal(rf_store_put(client, name, value, strlen(value), &revision, &err), 0);
}

/* An earlier launch holds the ranks of generation 1, forms it and ends: the later one waits for its
 * ranks and takes the next generation. */
static void a_launch_that_overlaps_an_earlier_one_takes_the_next_generation(void **state) {
    struct threads threads;
    struct rf_store *client;
    struct rf_error err;
    struct world world = {
        .size = 2, .transport = RF_TRANSPORT_AUTO, .body = again_body, .calls = 2, .job = "twice"};
    struct timespec pause = {.tv_nsec = 100000000}; /* not needed, but makes it interesting */

    (void)state;
    assert_int_equal(rf_store_open(store.uri, key, sizeof key, 10000, &client, &err), 0);
    put(client, "rf/twice/g/1/m/0", "somebody");
    put(client, "rf/twice/g/1/m/1", "somebody else");
    start_threads(&threads, 2, rank_main, &world);
    nanosleep(&pause, NULL);
    put(client, "rf/twice/generation", "1 00000000000000ff");
    assert_int_equal(rf_store_delete(client, "rf/twice/g/1/m/0", &err), 0);
    nanosleep(&pause, NULL);
    assert_int_equal(rf_store_delete(client, "rf/twice/g/1/m/1", &err), 0);
    join_threads(&threads);
    rf_store_close(client);
    assert_int_equal(atomic_exchange(&failed_checks, 0), 0);
}

static void a_rank_that_is_taken_is_named(void **state) {
    struct rf_options options;
    struct rf_store *client;
    struct rf_error err;
    struct rf_comm *comm;

    (void)state;
    assert_int_equal(rf_store_open(store.uri, key, sizeof key, 10000, &client, &err), 0);
    put(client, "rf/taken/g/1/m/0", "somebody");
    options_of(&options, "taken", 0, 2, RF_TRANSPORT_AUTO);
    options.start_timeout_ms = 300;
    assert_int_equal(rf_comm_create(&options, &comm, &err), RF_ECONFLICT);
    assert_non_null(strstr(err.text, "rank 0 of job 'taken' is taken"));
    rf_store_close(client);
}

/* ---- Without the store ---- */

static void store_gone_body(struct rf_comm *comm, int rank, struct world *world) {
    int32_t in[500], out[500];
    struct rf_error err;

    pthread_barrier_wait(&world->barrier);
    if (rank == 0) {
        stop_store();
    }
    pthread_barrier_wait(&world->barrier);
    for (uint64_t call = 0; call < 20; call++) {
        fill(in, 500, rank, call);
        CHECK(rf_allreduce(comm, in, out, 500, RF_I32, RF_SUM) == 0);
        CHECK(holds_sum(out, 500, world->size, call));
    }
    rf_comm_error(comm, &err);
    CHECK(err.code == 0);
}

static void the_store_may_go_away_while_running(void **state) {
    struct rf_options options;
    struct rf_error err;
    struct rf_comm *comm;

    (void)state;
    run_world(3, RF_TRANSPORT_AUTO, store_gone_body);
    assert_null(store.server);
    options_of(&options, "nowhere", 0, 2, RF_TRANSPORT_AUTO);
    options.start_timeout_ms = 300;
    int rc = rf_comm_create(&options, &comm, &err);
    start_store();
    assert_int_equal(rc, RF_ESTORE);
    assert_null(comm);
    assert_non_null(strstr(err.text, "store"));
}

/* ---- Data-parallel training over it ---- */

static void ddp_body(struct rf_comm *comm, int rank, struct world *world) {
    enum { TENSORS = 3, COUNT = 3001, STEPS = 4 };
    struct rf_ddp_options options;
    struct rf_ddp *ddp = NULL;
    struct rf_error err;
    float *params[TENSORS];
    char name[] = "t0";

    rf_ddp_options_init(&options);
    options.first_bucket_bytes = options.bucket_bytes = 8192;
    options.shards = (uint32_t)world->size + 1;
    options.hash_every = 2;
    CHECK(rf_ddp_create(comm, &options, &ddp, &err) == 0);
    for (int t = 0; t < TENSORS; t++) {
        params[t] = calloc(COUNT, sizeof(float));
        name[1] = (char)('0' + t);
        CHECK(rf_ddp_register(ddp, name, params[t], COUNT, &err) == 0);
    }
    CHECK(rf_ddp_seal(ddp, &err) == 0);
    for (uint64_t number = 0; number < STEPS; number++) {
        struct rf_step step;
        struct rf_shard shard;
        struct rf_step_report report;
        CHECK(rf_ddp_begin(ddp, &step, &err) == 0);
        while (rf_ddp_next_shard(ddp, &shard) == 1) {
            rf_ddp_shard_samples(ddp, 1);
            for (int t = TENSORS - 1; t >= 0; t--) {
                float *grad = rf_ddp_grad(ddp, t);
                for (size_t i = 0; i < COUNT; i++) {
                    grad[i] += (float)(shard.index + number + i % 5);
                }
                CHECK(rf_ddp_ready(ddp, t) == 0);
            }
            CHECK(rf_ddp_shard_done(ddp, 2.0) == 0);
        }
        if (rank == 0 && number == STEPS - 1) {
            rf_ddp_request_stop(ddp);
        }
        CHECK(rf_ddp_commit(ddp, &report, &err) == 0);
        CHECK(report.samples == options.shards && report.loss == 2.0 && report.step == number);
        float indices = (float)(options.shards * (options.shards - 1) / 2);
        bool is_right = true;
        for (int t = 0; t < TENSORS; t++) {
            for (size_t i = 0; i < COUNT; i++) {
                float sum = indices + (float)(options.shards * (number + i % 5));
                is_right = is_right && rf_ddp_average(ddp, t)[i] == sum / (float)options.shards;
                params[t][i] -= rf_ddp_average(ddp, t)[i];
            }
        }
        CHECK(is_right);
        CHECK(number < STEPS - 1 || report.stop);
    }
    uint64_t digest;
    CHECK(rf_ddp_state_digest(ddp, &digest, &err) == 0);
    rf_ddp_destroy(ddp);
    for (int t = 0; t < TENSORS; t++) {
        free(params[t]);
    }
}

static void ddp_over_the_communicator(void **state) {
    (void)state;
    run_worlds(ddp_body);
}

/* ---- Options ---- */

static void refuse_environ(const char *entry, const char *word) {
    struct rf_options options;
    struct rf_error err = {0};
    char text[400], name[40];
    char *list[] = {text, NULL};

    rf_options_init(&options);
    snprintf(text, sizeof text, "%s", entry);
    snprintf(name, sizeof name, "%.*s", (int)strcspn(entry, "="), entry);
    int rc = rf_options_from_environ(&options, list, &err);
    if (rc == 0 || !strstr(err.text, name) || !strstr(err.text, word)) {
        fail_msg("%s: %d '%s' does not name %s and '%s'", entry, rc, err.text, name, word);
    }
}

static void bad_environments_are_refused_by_name(void **state) {
    char entry[400];

    (void)state;
    refuse_environ("RINGFOLD_SIZE=0", "1 to 1024");
    refuse_environ("RINGFOLD_SIZE=1025", "1 to 1024");
    refuse_environ("RINGFOLD_SIZE=", "number");
    refuse_environ("RINGFOLD_SIZE=4x", "number");
    refuse_environ("RINGFOLD_SIZE=99999999999999999999", "number");
    refuse_environ("RINGFOLD_RANK=1", "0 to 0");
    refuse_environ("RINGFOLD_STREAMS=0", "1 to 64");
    refuse_environ("RINGFOLD_STREAMS=65", "1 to 64");
    refuse_environ("RINGFOLD_RANK=-1", "number");
    refuse_environ("RINGFOLD_LOCAL_SIZE=0", "number");
    refuse_environ("RINGFOLD_DETECT=soon", "duration");
    refuse_environ("RINGFOLD_DETECT=", "duration");
    refuse_environ("RINGFOLD_DETECT=-3s", "duration");
    refuse_environ("RINGFOLD_DETECT=3 parsecs", "duration");
    refuse_environ("RINGFOLD_DETECT=nan", "duration");
    refuse_environ("RINGFOLD_DETECT=inf", "duration");
    refuse_environ("RINGFOLD_DETECT=1e300h", "duration");
    refuse_environ("RINGFOLD_START_TIMEOUT=0", "duration");
    refuse_environ("RINGFOLD_TRANSPORT=rdma", "auto, shm or tcp");
    refuse_environ("RINGFOLD_TRANSPORT=", "auto, shm or tcp");
    refuse_environ("RINGFOLD_ALGORITHM=best", "rabenseifner");
    refuse_environ("RINGFOLD_JOB=a/b", "letters");
    refuse_environ("RINGFOLD_KEY_FD=-1", "number");
    refuse_environ("RINGFOLD_KEY_FD=999999", "");
    refuse_environ("RINGFOLD_KEY_FILE=/nonexistent/key", "");
    memset(entry, 'a', sizeof entry);
    memcpy(entry, "RINGFOLD_JOB=", 13);
    entry[13 + 64] = 0;
    refuse_environ(entry, "shorter than 64");
    memset(entry, 'a', sizeof entry);
    memcpy(entry, "RINGFOLD_STORE=", 15);
    entry[15 + 256] = 0;
    refuse_environ(entry, "shorter than 256");
}

static void good_environments_are_taken(void **state) {
    char path[] = "/tmp/test_comm_XXXXXX", file[64];
    int fd = mkstemp(path);
    struct rf_options options;
    struct rf_error err;

    (void)state;
    assert_true(fd >= 0);
    assert_int_equal(write(fd, key, sizeof key), sizeof key);
    close(fd);
    snprintf(file, sizeof file, "RINGFOLD_KEY_FILE=%s", path);
    char job[] = "RINGFOLD_JOB=a.b_c-9", uri[] = "RINGFOLD_STORE=tcp://h:1",
         rank[] = "RINGFOLD_RANK=3", size[] = "RINGFOLD_SIZE=4", local[] = "RINGFOLD_LOCAL_SIZE=2",
         detect[] = "RINGFOLD_DETECT=500ms", timeout[] = "RINGFOLD_START_TIMEOUT=2m",
         transport[] = "RINGFOLD_TRANSPORT=tcp",
         algorithm[] = "RINGFOLD_ALGORITHM=reduce-broadcast", other[] = "RINGFOLD_JOBS=17",
         plain[] = "PATH";
    char *list[] = {other,  plain,   job,       uri,       rank, size, local,
                    detect, timeout, transport, algorithm, file, NULL};
    rf_options_init(&options);
    assert_int_equal(rf_options_from_environ(&options, list, &err), 0);
    assert_string_equal(options.job, "a.b_c-9");
    assert_string_equal(options.store, "tcp://h:1");
    assert_int_equal(options.rank, 3);
    assert_int_equal(options.size, 4);
    assert_int_equal(options.local_size, 2);
    assert_int_equal(options.detect_ms, 500);
    assert_int_equal(options.start_timeout_ms, 120000);
    assert_int_equal(options.transport, RF_TRANSPORT_TCP);
    assert_int_equal(options.algorithm, RF_ALGORITHM_REDUCE_BROADCAST);
    assert_int_equal(options.key_bytes, sizeof key);
    assert_memory_equal(options.key, key, sizeof key);
    unlink(path);
}

/* ---- Memory ---- */

static void bad_options_are_refused(void **state) {
    (void)state;
    struct rf_options good, bad[8];
    struct rf_comm *comm;
    struct rf_error err;

    rf_options_init(&good);
    good.size = 2;
    good.key_bytes = 32;
    snprintf(good.job, sizeof good.job, "job");
    snprintf(good.store, sizeof good.store, "tcp://127.0.0.1:1");
    for (size_t i = 0; i < 8; i++) {
        bad[i] = good;
    }
    memset(bad[0].job, 'x', sizeof bad[0].job);
    memset(bad[1].store, 'x', sizeof bad[1].store);
    snprintf(bad[2].job, sizeof bad[2].job, "../job");
    bad[3].transport = (enum rf_transport)9;
    bad[4].algorithm = RF_ALGORITHM_COUNT;
    bad[5].key_bytes = RF_MAX_KEY_BYTES + 1;
    bad[6].rank = 2;
    bad[7].store[0] = 0;
    for (size_t i = 0; i < 8; i++) {
        assert_int_equal(rf_comm_create(&bad[i], &comm, &err), RF_EINVAL);
        assert_null(comm);
        assert_true(err.code == RF_EINVAL && err.text[0]);
    }
}

static void memory_goes_with_the_communicator(void **state) {
    struct rf_options options;
    struct rf_error err;
    struct rf_comm *comm;
    void *memory[20];

    (void)state;
    rf_options_init(&options);
    assert_int_equal(rf_comm_create(&options, &comm, &err), 0);
    for (int i = 0; i < 20; i++) {
        assert_int_equal(rf_mem_alloc(comm, 1000, &memory[i], &err), 0);
        assert_int_equal((uintptr_t)memory[i] % 64, 0);
    }
    for (int i = 0; i < 20; i += 3) {
        rf_mem_free(comm, memory[i]);
    }
    rf_mem_free(comm, NULL);
    rf_comm_destroy(comm); /* the rest goes here, or the leak checker tells */
}

static void any_allocation_may_fail(void **state) {
    int failures = 0, successes = 0;

    (void)state;
    for (long k = 0; k < 40; k++) {
        struct rf_options options;
        struct rf_error err = {0};
        struct rf_comm *comm = NULL;
        float in[100] = {1}, out[100];
        void *memory = NULL;

        rf_options_init(&options);
        rf__alloc_fail_after(k);
        int rc = rf_comm_create(&options, &comm, &err);
        assert_true(rc == 0 || (!comm && err.text[0]));
        for (int i = 0; i < 3 && rc == 0; i++) {
            struct rf_call call = {.coll = i ? RF_COLL_ALLREDUCE : RF_COLL_REDUCE_SCATTER,
                                   .type = RF_F32,
                                   .send = in,
                                   .recv = out,
                                   .count = 100};
            struct rf_request *request = NULL;
            rc = i == 2 ? rf_start(comm, &call, &request) : rf_run(comm, &call);
            rc = request ? rf_wait(request, -1) : rc;
        }
        rc = rc ? rc : rf_mem_alloc(comm, 100, &memory, &err);
        rf__alloc_fail_after(-1);
        assert_true(rc == 0 || rc == RF_ENOMEM);
        failures += rc != 0;
        successes += rc == 0;
        rf_comm_destroy(comm);
    }
    assert_true(failures > 5 && successes > 5);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_environments_are_refused_by_name),
        cmocka_unit_test(good_environments_are_taken),
        cmocka_unit_test(bad_options_are_refused),
        cmocka_unit_test(memory_goes_with_the_communicator),
        cmocka_unit_test(any_allocation_may_fail),
        cmocka_unit_test(a_rank_that_never_comes_is_named),
        cmocka_unit_test(blocking_collectives),
        cmocka_unit_test(asynchronous_collectives),
        cmocka_unit_test(waiting_for_no_time_gets_there),
        cmocka_unit_test(caller_and_engine_hand_over),
        cmocka_unit_test(an_abort_ends_a_blocked_call_everywhere),
        cmocka_unit_test(leaving_in_the_middle_is_told_to_the_others),
        cmocka_unit_test(one_job_after_the_other_on_one_store),
        cmocka_unit_test(a_launch_that_overlaps_an_earlier_one_takes_the_next_generation),
        cmocka_unit_test(a_rank_that_is_taken_is_named),
        cmocka_unit_test(the_store_may_go_away_while_running),
        cmocka_unit_test(ddp_over_the_communicator),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
