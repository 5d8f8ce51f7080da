/* The communicator: wires poller, net, store, driver and engine together, and is the runner that
 * the layers above use. */
#include "api/comm.h"

#include "api/checkpoint.h"
#include "api/engine.h"
#include "api/events.h"
#include "base/mem.h"
#include "base/status.h"
#include "os/clock.h"
#include "os/faulty.h"
#include "os/host.h"
#include "os/net.h"
#include "os/store_client.h"
#include "os/topology.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

enum { PATIENCE_MS = 1000 };

struct rf_comm {
    struct rf__runner runner; /* first */
    atomic_bool interrupted;  /* relaxed: a wish, nothing hangs on it */
    struct rf_options options;
    struct rf__poller *poller;
    struct rf__net *net;
    struct rf__store *store;
    struct rf__group *group;
    struct rf__engine *engine;
    struct rf__events events;
    struct rf__saver *saver;          /* NULL: none */
    struct rf__faulty_blobs *storage; /* the saver's, where failures are rehearsed */
    enum rf_algorithm last_algorithm;
    const char *transport;
    struct rf_tuning *tuning;        /* NULL: the library's own table */
    struct rf__memory memory_before; /* of the host, before it met the others */
    int rank, size;                  /* as the caller is told */
    int ids[RF_MAX_RANKS];           /* of the generation taken over */
    bool healed[RF_MAX_RANKS];
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

/* With the lock held. The caller's generation may be over while a later one runs already: what it
 * starts is of its own. */
static int submit(struct rf_comm *comm, const struct rf__op_params *params, int64_t now,
                  struct rf__op **out, struct rf_error *err) {
    if (comm->runner.elastic && rf__group_running(comm->group) != comm->runner.generation) {
        return rf__fail(err, RF_EREVOKED, 0, "generation %llu is over",
                        (unsigned long long)comm->runner.generation);
    }
    return rf__group_submit(comm->group, params, now, out, err);
}

static int runner_start(struct rf__runner *runner, const struct rf__op_params *params,
                        struct rf__op **out) {
    struct rf_comm *comm = (struct rf_comm *)runner;
    struct rf_error err;

    rf__engine_lock(comm->engine);
    int rc = submit(comm, params, rf__now(), out, &err);
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

static void note_alive(struct rf_comm *comm, int64_t at) {
    if (comm->runner.elastic) {
        rf__group_alive(comm->group, at);
    }
}

/* With the lock held. */
static int finish(struct rf_comm *comm, struct rf__op *op, int64_t now, int timeout_ms,
                  int64_t *busy_ns) {
    int rc = 0;

    if (rf__engine_rush(comm->engine, op, now)) {
        note_alive(comm, now);
    } else {
        int64_t deadline = timeout_ms < 0 ? RF__NEVER : rf__now() + timeout_ms * RF__MS;
        note_alive(comm, RF__NEVER); /* who waits here does not stand still */
        rc = rf__engine_drive(comm->engine, op_done, op, deadline);
        note_alive(comm, rf__now());
    }
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
    int rc = finish(comm, op, rf__now(), timeout_ms, busy_ns);
    rf__engine_unlock(comm->engine);
    return rc;
}

static bool runner_is_over(struct rf__runner *runner) {
    return rf__group_running(((struct rf_comm *)runner)->group) != runner->generation;
}

static void runner_error(struct rf__runner *runner, struct rf_error *out) {
    struct rf_comm *comm = (struct rf_comm *)runner;

    if (!runner->elastic) {
        rf__group_error(comm->group, out);
        return;
    }
    rf__engine_lock(comm->engine);
    rf__group_error(comm->group, out);
    rf__engine_unlock(comm->engine);
    if (out->code == 0 && runner_is_over(runner)) {
        (void)rf__fail(out, RF_EREVOKED, 0, "generation %llu is over",
                       (unsigned long long)runner->generation);
        out->rank = -1;
    }
}

static void runner_fail(struct rf__runner *runner, const struct rf_error *error) {
    struct rf_comm *comm = (struct rf_comm *)runner;
    rf__engine_lock(comm->engine);
    if (!runner->elastic || !runner_is_over(runner)) { /* a later generation has done nothing */
        rf__group_revoke(comm->group, error);
        rf__engine_kick(comm->engine);
    }
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

static const char *transport_name(const struct rf_comm *comm) {
    bool shm = false, tcp = false;
    for (int rank = 0; rank < comm->runner.size && comm->net; rank++) {
        shm = shm || comm->net->kind[rank] == RF__LINK_SHM;
        tcp = tcp || comm->net->kind[rank] == RF__LINK_TCP;
    }
    return shm && tcp ? "shm+tcp" : shm ? "shm" : tcp ? "tcp" : "self";
}

static void runner_enter(struct rf__runner *runner, uint64_t config, bool may_roll_back) {
    struct rf_comm *comm = (struct rf_comm *)runner;
    rf__engine_lock(comm->engine);
    rf__group_enter(comm->group, config, may_roll_back, rf__now());
    rf__engine_kick(comm->engine);
    rf__engine_unlock(comm->engine);
}

static int runner_note(struct rf__runner *runner, const struct rf__progress *progress) {
    struct rf_comm *comm = (struct rf_comm *)runner;
    rf__engine_lock(comm->engine);
    int rc = rf__group_note(comm->group, runner->generation, progress);
    rf__engine_unlock(comm->engine);
    return rc;
}

static bool is_settled(void *context) {
    enum rf__group_state state = rf__group_state(context);
    return state == RF__GROUP_RUNNING || state == RF__GROUP_FAILED;
}

static int runner_reform(struct rf__runner *runner, struct rf__membership *out,
                         struct rf_error *err) {
    struct rf_comm *comm = (struct rf_comm *)runner;
    struct rf_error ignored;

    rf__engine_lock(comm->engine);
    rf__group_alive(comm->group, RF__NEVER);
    while (
        rf__engine_drive(comm->engine, is_settled, comm->group, rf__now() + PATIENCE_MS * RF__MS) &&
        !atomic_load_explicit(&comm->interrupted, memory_order_relaxed)) {
        /* the group keeps its own deadlines */
    }
    rf__group_alive(comm->group, rf__now());
    int rc = !is_settled(comm->group)
                 ? rf__fail(err, RF_ESTOPPED, 0, "stopped while worker %d waited for the group",
                            runner->id)
                 : rf__group_membership(comm->group, out, err ? err : &ignored);
    if (rc == 0 && comm->net->shared && comm->net->shared->settle) {
        /* memory that a process which was left out could still write to moves away from it */
        rc = comm->net->shared->settle(comm->net, err);
    }
    if (rc == 0) {
        runner->generation = out->generation;
        runner->rank = out->rank;
        runner->size = out->size;
        if (!out->ended) { /* else, for people, the worker is still who it was */
            comm->rank = out->rank;
            comm->size = out->size;
        }
        memcpy(comm->ids, out->ids, (size_t)out->size * sizeof *comm->ids);
        memcpy(comm->healed, out->healed, (size_t)out->size * sizeof *comm->healed);
        out->ids = comm->ids; /* the engine may go on to the next generation at any time */
        out->healed = comm->healed;
        comm->transport = transport_name(comm);
    }
    rf__engine_unlock(comm->engine);
    return rc;
}

static bool runner_is_awaited(struct rf__runner *runner) {
    struct rf_comm *comm = (struct rf_comm *)runner;
    rf__engine_lock(comm->engine);
    bool is_awaited = rf__group_is_awaited(comm->group);
    rf__engine_unlock(comm->engine);
    return is_awaited;
}

static void runner_regroup(struct rf__runner *runner, const int *out, int out_count,
                           const char *reason) {
    struct rf_comm *comm = (struct rf_comm *)runner;
    rf__engine_lock(comm->engine);
    if (!runner_is_over(runner)) {
        rf__group_regroup(comm->group, out, out_count, reason, rf__now());
        rf__engine_kick(comm->engine);
    }
    rf__engine_unlock(comm->engine);
}

static int runner_slowest_link(struct rf__runner *runner, double *bytes_per_s) {
    struct rf_comm *comm = (struct rf_comm *)runner;
    rf__engine_lock(comm->engine);
    int rank = rf__group_slowest_link(comm->group, bytes_per_s);
    rf__engine_unlock(comm->engine);
    return rank;
}

static bool runner_flip_is_due(struct rf__runner *runner) {
    struct rf_comm *comm = (struct rf_comm *)runner;
    rf__engine_lock(comm->engine);
    bool is_due = rf__group_flip_is_due(comm->group);
    rf__engine_unlock(comm->engine);
    return is_due;
}

static void runner_tell(struct rf__runner *runner, const struct rf_event *event) {
    struct rf_comm *comm = (struct rf_comm *)runner;
    struct rf_event told = *event;

    told.id = runner->id;
    told.rank = runner->rank;
    told.size = event->size ? event->size : runner->size;
    told.generation = runner->generation;
    rf__engine_lock(comm->engine);
    rf__events_write(&comm->events, &told);
    rf__engine_unlock(comm->engine);
}

static void runner_alive(struct rf__runner *runner) {
    rf__group_alive(((struct rf_comm *)runner)->group, rf__now());
}

static void runner_rest(struct rf__runner *runner) {
    rf__group_alive(((struct rf_comm *)runner)->group, RF__NEVER);
}

/* From within the driver, so with the lock held. */
static void on_event(void *context, const struct rf_event *event) {
    struct rf_comm *comm = context;
    struct rf__events_form form = {.size = 0};

    if (event->kind == RF_EVENT_FORM) {
        rf__group_ids(comm->group, &form.ids, &form.size, &form.last_ids, &form.last_size);
    }
    comm->events.form = form;
    rf__events_write(&comm->events, event);
}

/* The same: an order of a rehearsal. */
static void on_order(void *context, const char *order) {
    struct rf_comm *comm = context;
    int ms = 0;

    if (!comm->storage) {
        return;
    }
    if (sscanf(order, "storage down %d", &ms) == 1) {
        rf__faulty_blobs_down(comm->storage, rf__now() + ms * RF__MS);
    } else if (sscanf(order, "storage full %d", &ms) == 1) {
        rf__faulty_blobs_full(comm->storage, rf__now() + ms * RF__MS);
    } else if (!strcmp(order, "storage kill")) {
        rf__faulty_blobs_kill(comm->storage);
    }
}

int rf__comm_saver(struct rf__runner *runner, const struct rf_checkpoint_options *options,
                   struct rf__saver **out, struct rf_error *err) {
    struct rf_comm *comm = (struct rf_comm *)runner;
    struct rf__faulty_blobs *storage = NULL;
    bool has_engine = comm->engine != NULL;

    if (has_engine) {
        rf__engine_lock(comm->engine);
    }
    struct rf__saver *before = comm->saver;
    comm->saver = NULL;
    comm->storage = NULL;
    if (has_engine) {
        rf__engine_unlock(comm->engine);
    }
    rf__saver_destroy(before);
    int code = rf__checkpoint_saver(options, comm->options.job,
                                    comm->options.faults ? &storage : NULL, out, err);
    if (code) {
        return code;
    }
    if (has_engine) {
        rf__engine_lock(comm->engine);
    }
    comm->saver = *out;
    comm->storage = storage;
    if (has_engine) {
        rf__engine_unlock(comm->engine);
    }
    return RF_OK;
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
    .enter = runner_enter,
    .note = runner_note,
    .reform = runner_reform,
    .is_over = runner_is_over,
    .is_awaited = runner_is_awaited,
    .regroup = runner_regroup,
    .slowest_link = runner_slowest_link,
    .flip_is_due = runner_flip_is_due,
    .tell = runner_tell,
    .alive = runner_alive,
    .rest = runner_rest,
};

struct rf__runner *rf__comm_runner(struct rf_comm *comm) {
    return &comm->runner;
}

void rf__comm_memory(const struct rf_comm *comm, struct rf__memory *memory, int *workers) {
    bool together = comm->runner.generation == 1; /* nobody has taken anything before the meeting */

    *memory = together ? comm->memory_before : rf__memory_read("");
    *workers = comm->options.local_size > 1 ? comm->options.local_size : 1;
    if (!together) { /* the others may have taken theirs: what is left is this worker's */
        uint64_t part = memory->total / (uint64_t)*workers;
        memory->available = memory->available < part ? memory->available : part;
        *workers = 1;
    }
}

static int open_links(struct rf_comm *comm, struct rf_error *err) {
    const struct rf_options *options = &comm->options;
    struct rf__net_options net = {
        .job = options->job,
        .key = options->key,
        .key_bytes = options->key_bytes,
        .transport = options->transport,
        .streams = options->streams,
        .detect_ms = options->detect_ms,
    };
    int rc = rf__topology_node(options->topology, &net.node, err);

    rc = rc ? rc : rf__poller_create(&comm->poller, err);
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

static bool is_placed(void *context) {
    return rf__group_is_placed(context);
}

/* Fixed: the group is formed. Elastic: it is, or a job runs already, and this worker is outside. */
static int meet(struct rf_comm *comm, struct rf_error *err) {
    struct rf__membership membership;
    bool elastic = comm->runner.elastic;
    int rc = 0;

    rf__engine_lock(comm->engine);
    (void)rf__engine_drive(comm->engine, elastic ? is_placed : is_formed, comm->group,
                           RF__NEVER); /* the group keeps its own deadline */
    enum rf__group_state state = rf__group_state(comm->group);
    rf__engine_unlock(comm->engine);
    if (elastic && state == RF__GROUP_FAILED) {
        rc = rf__group_membership(comm->group, &membership, err);
    } else if (!elastic) {
        rf__group_error(comm->group, err);
        rc = err->code;
        comm->runner.generation = rf__group_generation(comm->group);
        comm->rank = comm->runner.rank;
        comm->size = comm->runner.size;
    } else if (state == RF__GROUP_RUNNING) {
        rc = runner_reform(&comm->runner, &membership, err);
    } else {
        comm->rank = comm->runner.rank = -1;
        comm->size = comm->runner.size = 0;
    }
    return rc;
}

/* The table that the options name. */
static int load_tuning(struct rf_comm *comm, struct rf_error *err) {
    int rc = 0;

    if (comm->options.tuning[0]) {
        comm->tuning = rf__alloc(1, sizeof *comm->tuning);
        rc = comm->tuning ? rf_tuning_load(comm->options.tuning, comm->tuning, err)
                          : rf__fail(err, RF_ENOMEM, 0, "no memory for a table of algorithms");
    }
    return rc;
}

static bool is_elastic(const struct rf_options *options) {
    return options->elastic && options->min_size > 0;
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
    comm->memory_before = rf__memory_read("");
    comm->runner = (struct rf__runner){
        .ops = &runner_ops,
        .rank = options->rank,
        .size = options->size,
        .elastic = is_elastic(options),
        .id = options->id < 0 ? options->rank : options->id,
        .max_size = options->max_size ? options->max_size : options->size,
        .min_size = options->min_size,
        .slow_evict = options->slow_evict,
        .slow_window = options->slow_window,
    };
    comm->events.fd = options->event_fd;
    rc = load_tuning(comm, err);
    if (rc) {
        goto out;
    }
    if (options->size > 1 || comm->runner.elastic) {
        rc = open_links(comm, err);
        if (rc) {
            goto out;
        }
    }
    struct rf__group_options group = {
        .rank = options->rank,
        .size = options->size,
        .algorithm = options->algorithm,
        .tuning = comm->tuning,
        .tuning_name = comm->options.tuning,
        .choice = options->choice,
        .choice_context = options->choice_context,
        .detect_ms = options->detect_ms,
        .start_timeout_ms = options->start_timeout_ms,
        .clock = &rf__system_clock,
        .net = comm->net,
        .store = comm->store,
        .min_size = comm->runner.elastic ? options->min_size : 0,
        .max_size = comm->runner.max_size,
        .id = comm->runner.id,
        .restarts = options->restarts,
        .cool_down_ms = options->cool_down_ms,
        .faults = options->faults,
        .tell = on_event,
        .tell_context = comm,
        .rehearse = on_order,
    };
    rc = rf__host_random(&group.nonce, sizeof group.nonce, err);
    if (rc) {
        goto out;
    }
    group.nonce |= 1; /* 0 stands for none */
    snprintf(group.job, sizeof group.job, "%s", options->job);
    rc = rf__group_create(&group, rf__now(), &comm->group, err);
    if (rc) {
        goto out;
    }
    /* each worker computes with at least one thread, and has an engine */
    int cores = options->local_cores ? options->local_cores : allowed_cores();
    bool crowded = options->local_size > cores;
    rc = rf__engine_create(comm->group, comm->net, comm->poller, crowded, &comm->engine, err);
    if (rc) {
        goto out;
    }
    rc = meet(comm, err);
    if (rc == 0) {
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
    rf__saver_destroy(comm->saver);
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
    rf__free(comm->tuning);
    rf__free(comm);
}

int rf_rank(const struct rf_comm *comm) {
    return comm->rank;
}

int rf_size(const struct rf_comm *comm) {
    return comm->size;
}

uint64_t rf_generation(const struct rf_comm *comm) {
    return comm->runner.generation;
}

const char *rf_comm_transport(const struct rf_comm *comm) {
    return comm->transport;
}

int rf_id(const struct rf_comm *comm) {
    return comm->runner.id;
}

int rf_id_of(const struct rf_comm *comm, int rank) {
    if (rank < 0 || rank >= comm->runner.size) {
        return -1;
    }
    return comm->runner.elastic ? comm->ids[rank] : rank;
}

int rf_comm_reform(struct rf_comm *comm, struct rf_error *err) {
    struct rf__membership membership;

    if (!comm->runner.elastic) {
        return rf__fail(err, RF_EUNSUPPORTED, 0, "a fixed group does not form again");
    }
    if (!comm->runner.size) {
        runner_enter(&comm->runner, 1,
                     false); /* in a job without rf_ddp there is nothing to compare */
    }
    return runner_reform(&comm->runner, &membership, err);
}

void rf_comm_interrupt(struct rf_comm *comm) {
    atomic_store_explicit(&comm->interrupted, true, memory_order_relaxed);
}

void rf_comm_end(struct rf_comm *comm) {
    if (comm->runner.elastic) {
        rf__engine_lock(comm->engine);
        rf__group_end(comm->group);
        rf__engine_kick(comm->engine);
        rf__engine_unlock(comm->engine);
    }
}

void rf_comm_error(struct rf_comm *comm, struct rf_error *out) {
    runner_error(&comm->runner, out);
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
    int64_t now = rf__lately();
    int rc = submit(comm, &params, now, &op, &err);
    if (rc == 0) {
        rc = finish(comm, op, now, -1, NULL);
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
