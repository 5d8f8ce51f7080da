/* The communicator: wires poller, net, store, driver and engine together, and is the runner that
 * the layers above use. */
#include "api/comm.h"

#include "api/engine.h"
#include "base/mem.h"
#include "base/status.h"
#include "os/clock.h"
#include "os/net.h"
#include "os/store_client.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

struct rf_comm {
    struct rf__runner runner; /* first */
    struct rf_options options;
    struct rf__poller *poller;
    struct rf__net *net;
    struct rf__store *store;
    struct rf__group *group;
    struct rf__engine *engine;
    enum rf_algorithm last_algorithm;
    const char *transport;
    void **memory; /* from rf_mem_alloc, where none is shared */
    size_t memory_count, memory_room;
};

struct rf_request {
    struct rf_comm *comm;
    struct rf__op *op;
};

/* Cores this process may run on. */
static int allowed_cores(void) {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

static bool op_done(void *context) {
    return rf__op_result(context) != 0;
}

static int runner_start(struct rf__runner *runner, const struct rf__op_params *params,
                        struct rf__op **out) {
    struct rf_comm *comm = (struct rf_comm *)runner;
    struct rf_error err;

    rf__engine_lock(comm->engine);
    int rc = rf__group_submit(comm->group, params, rf__now(), out, &err);
    if (rc == 0) {
        rf__engine_kick(comm->engine);
    }
    rf__engine_unlock(comm->engine);
    return rc;
}

static int runner_test(struct rf__runner *runner, struct rf__op *op) {
    struct rf_comm *comm = (struct rf_comm *)runner;
    rf__engine_lock(comm->engine);
    int rc = rf__op_result(op);
    rf__engine_unlock(comm->engine);
    return rc;
}

/* With the lock held. */
static int finish(struct rf_comm *comm, struct rf__op *op, int timeout_ms, int64_t *busy_ns) {
    int64_t deadline = timeout_ms < 0 ? RF__NEVER : rf__now() + timeout_ms * RF__MS;
    int rc = rf__engine_drive(comm->engine, op_done, op, deadline);

    if (rc == 0) {
        rc = rf__op_result(op);
        comm->last_algorithm = rf__group_last_algorithm(comm->group);
        if (busy_ns) {
            *busy_ns = rf__op_busy_ns(op);
        }
        rf__group_release(comm->group, op);
        rc = rc > 0 ? 0 : rc;
    }
    return rc;
}

static int runner_wait(struct rf__runner *runner, struct rf__op *op, int timeout_ms,
                       int64_t *busy_ns) {
    struct rf_comm *comm = (struct rf_comm *)runner;
    rf__engine_lock(comm->engine);
    int rc = finish(comm, op, timeout_ms, busy_ns);
    rf__engine_unlock(comm->engine);
    return rc;
}

static void runner_error(struct rf__runner *runner, struct rf_error *out) {
    rf__group_error(((struct rf_comm *)runner)->group, out);
}

static void runner_fail(struct rf__runner *runner, const struct rf_error *error) {
    struct rf_comm *comm = (struct rf_comm *)runner;
    rf__engine_lock(comm->engine);
    rf__group_revoke(comm->group, error);
    rf__engine_kick(comm->engine);
    rf__engine_unlock(comm->engine);
}

static int runner_alloc(struct rf__runner *runner, size_t bytes, void **out, struct rf_error *err) {
    struct rf_comm *comm = (struct rf_comm *)runner;
    int rc = 0;

    if (comm->net && comm->net->shared) {
        rf__engine_lock(comm->engine);
        rc = comm->net->shared->alloc(comm->net, bytes, out, err);
        rf__engine_unlock(comm->engine);
        return rc;
    }
    if (comm->memory_count == comm->memory_room) {
        size_t room = comm->memory_room ? 2 * comm->memory_room : 16;
        void **grown = rf__grow(comm->memory, room, sizeof *grown);
        if (!grown) {
            return rf__fail(err, RF_ENOMEM, 0, "no memory for %zu bytes", bytes);
        }
        comm->memory = grown;
        comm->memory_room = room;
    }
    *out = rf__alloc_aligned(bytes);
    if (!*out) {
        return rf__fail(err, RF_ENOMEM, 0, "no memory for %zu bytes", bytes);
    }
    comm->memory[comm->memory_count++] = *out;
    return 0;
}

static void runner_release(struct rf__runner *runner, void *memory) {
    struct rf_comm *comm = (struct rf_comm *)runner;

    if (comm->net && comm->net->shared && memory) {
        rf__engine_lock(comm->engine);
        comm->net->shared->release(comm->net, memory);
        rf__engine_unlock(comm->engine);
        return;
    }
    for (size_t i = 0; i < comm->memory_count && memory; i++) {
        if (comm->memory[i] == memory) {
            comm->memory[i] = comm->memory[--comm->memory_count];
            rf__free(memory);
            return;
        }
    }
}

static int64_t runner_now(struct rf__runner *runner) {
    (void)runner;
    return rf__now();
}

static const struct rf__runner_ops runner_ops = {
    .start = runner_start,
    .test = runner_test,
    .wait = runner_wait,
    .error = runner_error,
    .fail = runner_fail,
    .alloc = runner_alloc,
    .release = runner_release,
    .now = runner_now,
};

struct rf__runner *rf__comm_runner(struct rf_comm *comm) {
    return &comm->runner;
}

static const char *transport_name(const struct rf_comm *comm) {
    bool shm = false, tcp = false;
    for (int rank = 0; rank < comm->runner.size && comm->net; rank++) {
        shm = shm || comm->net->kind[rank] == RF__LINK_SHM;
        tcp = tcp || comm->net->kind[rank] == RF__LINK_TCP;
    }
    return shm && tcp ? "shm+tcp" : shm ? "shm" : tcp ? "tcp" : "self";
}

static int open_links(struct rf_comm *comm, struct rf_error *err) {
    const struct rf_options *options = &comm->options;
    struct rf__net_options net = {
        .job = options->job,
        .key = options->key,
        .key_bytes = options->key_bytes,
        .transport = options->transport,
        .detect_ms = options->detect_ms,
    };
    int rc = rf__poller_create(&comm->poller, err);
    if (rc == 0) {
        rc = rf__store_client_create(options->store, options->key, options->key_bytes, comm->poller,
                                     &comm->store, err);
    }
    if (rc == 0) {
        rc = rf__net_create(&net, comm->poller, &comm->net, err);
    }
    return rc;
}

static bool is_formed(void *context) {
    return rf__group_state(context) != RF__GROUP_FORMING;
}

int rf_comm_create(const struct rf_options *options, struct rf_comm **out, struct rf_error *err) {
    struct rf_error ignored;
    struct rf_comm *comm = NULL;

    *out = NULL;
    err = err ? err : &ignored;
    rf__error_clear(err);
    int rc = rf__options_check(options, err);
    if (rc) {
        goto out;
    }
    comm = rf__alloc(1, sizeof *comm);
    if (!comm) {
        rc = rf__fail(err, RF_ENOMEM, 0, "no memory for a communicator");
        goto out;
    }
    comm->options = *options;
    comm->runner =
        (struct rf__runner){.ops = &runner_ops, .rank = options->rank, .size = options->size};
    if (options->size > 1) {
        rc = open_links(comm, err);
        if (rc) {
            goto out;
        }
    }
    struct rf__group_options group = {
        .rank = options->rank,
        .size = options->size,
        .algorithm = options->algorithm,
        .detect_ms = options->detect_ms,
        .start_timeout_ms = options->start_timeout_ms,
        .clock = &rf__system_clock,
        .net = comm->net,
        .store = comm->store,
    };
    snprintf(group.job, sizeof group.job, "%s", options->job);
    rc = rf__group_create(&group, rf__now(), &comm->group, err);
    if (rc) {
        goto out;
    }
    /* each worker computes with at least one thread, and has an engine */
    bool crowded = options->local_size > allowed_cores();
    rc = rf__engine_create(comm->group, comm->net, comm->poller, crowded, &comm->engine, err);
    if (rc) {
        goto out;
    }
    rf__engine_lock(comm->engine);
    (void)rf__engine_drive(comm->engine, is_formed, comm->group,
                           RF__NEVER); /* the group keeps its own deadline */
    rf__engine_unlock(comm->engine);
    rf__group_error(comm->group, err);
    rc = err->code;
    if (rc == 0) {
        comm->runner.generation = rf__group_generation(comm->group);
        comm->transport = transport_name(comm);
        *out = comm;
        comm = NULL;
    }
out:
    rf_comm_destroy(comm);
    return rc;
}

static bool has_left(void *context) {
    return rf__group_left(context);
}

void rf_comm_destroy(struct rf_comm *comm) {
    if (!comm) {
        return;
    }
    if (comm->engine) {
        rf__engine_lock(comm->engine);
        rf__group_leave(comm->group, rf__now());
        (void)rf__engine_drive(comm->engine, has_left, comm->group,
                               RF__NEVER); /* bounded by the group */
        rf__engine_unlock(comm->engine);
        rf__engine_destroy(comm->engine);
    }
    rf__group_destroy(comm->group);
    if (comm->net) {
        comm->net->ops->destroy(comm->net);
    }
    if (comm->store) {
        comm->store->ops->destroy(comm->store);
    }
    if (comm->poller) {
        rf__poller_destroy(comm->poller);
    }
    for (size_t i = 0; i < comm->memory_count; i++) {
        rf__free(comm->memory[i]);
    }
    rf__free(comm->memory);
    rf__free(comm);
}

int rf_rank(const struct rf_comm *comm) {
    return comm->runner.rank;
}

int rf_size(const struct rf_comm *comm) {
    return comm->runner.size;
}

uint64_t rf_generation(const struct rf_comm *comm) {
    return comm->runner.generation;
}

const char *rf_comm_transport(const struct rf_comm *comm) {
    return comm->transport;
}

void rf_comm_error(struct rf_comm *comm, struct rf_error *out) {
    rf__group_error(comm->group, out);
}

void rf_comm_abort(struct rf_comm *comm, const char *reason) {
    struct rf_error error;
    (void)rf__fail(&error, RF_EREVOKED, 0, "rank %d gave up: %s", comm->runner.rank, reason);
    error.rank = comm->runner.rank;
    runner_fail(&comm->runner, &error);
}

int rf_run(struct rf_comm *comm, const struct rf_call *call) {
    struct rf__op_params params = {.call = *call};
    struct rf__op *op;
    struct rf_error err;

    rf__engine_lock(comm->engine);
    int rc = rf__group_submit(comm->group, &params, rf__now(), &op, &err);
    if (rc == 0) {
        rc = finish(comm, op, -1, NULL);
    }
    rf__engine_unlock(comm->engine);
    return rc;
}

int rf_start(struct rf_comm *comm, const struct rf_call *call, struct rf_request **out) {
    struct rf__op_params params = {.call = *call};
    struct rf_request *request = rf__alloc(1, sizeof *request);

    *out = NULL;
    if (!request) {
        return RF_ENOMEM;
    }
    request->comm = comm;
    int rc = runner_start(&comm->runner, &params, &request->op);
    if (rc) {
        rf__free(request);
        return rc;
    }
    *out = request;
    return 0;
}

int rf_test(struct rf_request *request) {
    return runner_test(&request->comm->runner, request->op);
}

int rf_wait(struct rf_request *request, int timeout_ms) {
    int rc = runner_wait(&request->comm->runner, request->op, timeout_ms, NULL);
    if (rc != RF_ETIMEDOUT) {
        rf__free(request);
    }
    return rc;
}

void rf_release(struct rf_request *request) {
    if (!request) {
        return;
    }
    rf__engine_lock(request->comm->engine);
    rf__group_release(request->comm->group, request->op);
    rf__engine_unlock(request->comm->engine);
    rf__free(request);
}

enum rf_algorithm rf_last_algorithm(const struct rf_comm *comm) {
    return comm->last_algorithm;
}

int rf_mem_alloc(struct rf_comm *comm, size_t bytes, void **out, struct rf_error *err) {
    return runner_alloc(&comm->runner, bytes, out, err);
}

void rf_mem_free(struct rf_comm *comm, void *memory) {
    runner_release(&comm->runner, memory);
}
