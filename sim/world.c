/* The world: events in the order of their time, carried out one by one; the life of workers. */
#include "sim.h"

#include "base/assert.h"
#include "base/mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { MOST_EVENTS = 8000000, STEPS_AT_ONCE = 4, TICK_MS = 50, JOB_BYTES = 4 };

/* ---- Events: a binary heap ---- */

static bool is_before(const struct sim_event *a, const struct sim_event *b) {
    return a->at != b->at ? a->at < b->at : a->order < b->order;
}

uint64_t sim_post(struct sim *sim, int64_t at, enum sim_event_kind kind, int id, uint64_t start,
                  uint64_t a, uint64_t b) {
    struct sim_event event = {.at = at < sim->now ? sim->now : at,
                              .order = ++sim->order,
                              .kind = kind,
                              .id = id,
                              .start = start,
                              .a = a,
                              .b = b};

    if (sim->heap_count == sim->heap_room) {
        sim->heap_room = sim->heap_room ? 2 * sim->heap_room : 256;
        sim->heap = rf__grow(sim->heap, sim->heap_room, sizeof *sim->heap);
        RF_ASSERT(sim->heap);
    }
    size_t i = sim->heap_count++;
    while (i > 0 && is_before(&event, &sim->heap[(i - 1) / 2])) {
        sim->heap[i] = sim->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    sim->heap[i] = event;
    return event.order;
}

static struct sim_event pop(struct sim *sim) {
    struct sim_event first = sim->heap[0], last = sim->heap[--sim->heap_count];
    size_t i = 0;

    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= sim->heap_count) {
            break;
        }
        if (child + 1 < sim->heap_count && is_before(&sim->heap[child + 1], &sim->heap[child])) {
            child++;
        }
        if (!is_before(&sim->heap[child], &last)) {
            break;
        }
        sim->heap[i] = sim->heap[child];
        i = child;
    }
    if (sim->heap_count) {
        sim->heap[i] = last;
    }
    return first;
}

int64_t sim_soon(struct sim *sim, int64_t most) {
    return sim->now + 1 + (int64_t)rf__rng_below(&sim->rng, (uint64_t)most);
}

void sim_trace(struct sim *sim, int id, const char *format, ...) {
    va_list arguments;

    if (!sim->options.trace) {
        return;
    }
    printf("%lld.%09lld %llu ", (long long)(sim->now / 1000000000),
           (long long)(sim->now % 1000000000), (unsigned long long)sim->index);
    if (id >= 0) {
        printf("worker %d ", id);
    }
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    printf("\n");
}

/* ---- Paths ---- */

bool sim_path(const struct sim *sim, int from, int to) {
    return sim->now >= sim->cut_until[from][to];
}

int64_t sim_delay(struct sim *sim, int from, int to, size_t bytes) {
    int64_t delay = sim->latency / 2 + (int64_t)rf__rng_below(&sim->rng, (uint64_t)sim->latency);

    if (sim->now < sim->lag_until[from][to]) {
        delay += sim->lag[from][to] + (int64_t)bytes * sim->lag[from][to] / 4096;
    }
    if ((from == SIM_STORE || to == SIM_STORE) && sim->now < sim->store_lag_until) {
        delay += 50 * RF__MS + (int64_t)rf__rng_below(&sim->rng, 500) * RF__MS;
    }
    return delay + (int64_t)bytes;
}

/* ---- Workers ---- */

bool sim_is_frozen(const struct sim_worker *worker) {
    return worker->sim->now < worker->frozen_until;
}

int sim_alive(const struct sim *sim) {
    int alive = 0;
    for (int id = 0; id < SIM_IDS; id++) {
        alive += sim->workers[id].alive;
    }
    return alive;
}

void sim_wake(struct sim_worker *worker, int64_t at) {
    if (worker->alive && !worker->dying && at < worker->step_at) {
        worker->step_at = at;
        worker->step_order =
            sim_post(worker->sim, at, SIM_EV_STEP, worker->id, worker->start, 0, 0);
    }
}

static int64_t clock_now(struct rf__clock *clock) {
    return sim_local(((struct sim_clock *)clock)->worker);
}

static void set_up_clock(struct sim_worker *worker) {
    struct sim *sim = worker->sim;

    worker->clock = (struct sim_clock){.clock = {.now = clock_now}, .worker = worker};
    worker->clock_rate = 1024;
    if (sim->options.silly) { /* from a third of the true speed to three times */
        worker->clock_rate = 341 + (int64_t)rf__rng_below(&sim->rng, 2731);
    }
    worker->clock_base = RF__MS * (1 + (int64_t)rf__rng_below(&sim->rng, 1000000));
}

void sim_start(struct sim *sim, int id) {
    struct sim_worker *worker = &sim->workers[id];
    bool again = worker->start != 0, elastic = !sim->options.fixed;
    int restarts = again ? worker->restarts + 1 : 0;
    struct rf_error err;

    RF_ASSERT(!worker->alive);
    *worker = (struct sim_worker){.sim = sim,
                                  .id = id,
                                  .start = ++sim->starts,
                                  .restarts = restarts,
                                  .alive = true,
                                  .step_at = RF__NEVER};
    set_up_clock(worker);
    worker->net = (struct sim_net *)sim_net_create(worker);
    worker->store = (struct sim_store *)sim_store_create(worker);
    worker->runner = (struct rf__runner){.ops = &sim_runner_ops,
                                         .rank = elastic ? -1 : id,
                                         .size = elastic ? 0 : sim->initial,
                                         .elastic = elastic,
                                         .id = id,
                                         .max_size = elastic ? sim->max_size : sim->initial,
                                         .slow_evict = 10,
                                         .slow_window = 2};
    struct rf__group_options options = {
        .job = "sim",
        .rank = id,
        .size = sim->initial,
        .detect_ms = sim->detect_ms,
        .start_timeout_ms = sim->start_timeout_ms,
        .clock = &worker->clock.clock,
        .net = (struct rf__net *)worker->net,
        .store = (struct rf__store *)worker->store,
        .min_size = elastic ? sim->min_size : 0,
        .max_size = elastic ? sim->max_size : 0,
        .id = id,
        .restarts = restarts,
        .cool_down_ms = 500,
        .nonce = worker->start,
        .faults = true,
        .tell = sim_tell,
        .tell_context = worker,
    };
    sim_trace(sim, id, "starts, for the time %d", restarts + 1);
    int rc = rf__group_create(&options, sim_local(worker), &worker->group, &err);
    RF_ASSERT(rc == 0);
    worker->program = sim_coro_create(sim_program, worker);
    RF_ASSERT(worker->program);
    worker->resume_order =
        sim_post(sim, sim_soon(sim, RF__MS), SIM_EV_RESUME, id, worker->start, 0, 0);
    sim_wake(worker, sim_soon(sim, RF__MS));
}

/* The process is no more: what it held is given back. */
static void bury(struct sim_worker *worker) {
    struct rf__net *net = (struct rf__net *)worker->net;
    struct rf__store *store = (struct rf__store *)worker->store;

    if (worker->blocks) {
        sim_violate(worker->sim, "worker %d kept %d blocks of memory", worker->id, worker->blocks);
    }
    sim_coro_destroy(worker->program);
    rf__group_destroy(worker->group);
    net->ops->destroy(net);
    store->ops->destroy(store);
    worker->program = NULL;
    worker->group = NULL;
    worker->net = NULL;
    worker->store = NULL;
    worker->alive = worker->dying = false;
}

/* Its links end first, so that nobody sees what the program does on its way out. */
void sim_kill(struct sim_worker *worker, bool silently) {
    RF_ASSERT(worker->alive && !sim_coro_inside());
    sim_trace(worker->sim, worker->id, silently ? "vanishes" : "crashes");
    sim_net_end(worker->net, silently);
    sim_store_end(worker->store);
    worker->dying = true;
    while (!sim_coro_resume(worker->program)) {
    }
    bury(worker);
}

static void resume(struct sim_worker *worker) {
    bool ended = sim_coro_resume(worker->program);

    if (ended) {
        struct sim *sim = worker->sim;
        bool is_last = worker->finished || sim->options.fixed;
        int id = worker->id;
        bury(worker);
        if (!is_last) { /* as a launcher does */
            sim_post(sim, sim->now + 200 * RF__MS, SIM_EV_START, id, 0, 0, 0);
        }
    } else {
        sim_wake(worker, sim_soon(worker->sim, 5 * SIM_US));
    }
}

static void step(struct sim_worker *worker) {
    struct sim *sim = worker->sim;
    int most = 1 + (int)rf__rng_below(&sim->rng, STEPS_AT_ONCE);
    bool moved = true;

    worker->step_at = RF__NEVER;
    for (int i = 0; i < most && moved; i++) {
        moved = rf__group_step(worker->group, sim_local(worker)) > 0;
    }
    int64_t at = sim_soon(sim, 5 * SIM_US);
    if (!moved) {
        int64_t wanted = sim_global(worker, rf__group_next_deadline(worker->group));
        int64_t net = sim_net_deadline(worker->net);
        wanted = net < wanted ? net : wanted;
        at = wanted > at ? wanted : at;
    }
    sim_wake(worker, at);
    if (worker->waits != SIM_WAIT_NOT && worker->waits != SIM_WAIT_TIME && !worker->resume_order &&
        sim_is_ready(worker)) {
        worker->resume_order = sim_post(sim, sim_soon(sim, 20 * SIM_US), SIM_EV_RESUME, worker->id,
                                        worker->start, 0, 0);
    }
}

/* ---- One event ---- */

/* What is to be done by a worker that is frozen waits until it is not. */
static bool put_off(struct sim *sim, const struct sim_event *event) {
    struct sim_worker *worker = &sim->workers[event->id];

    if (!sim_is_frozen(worker)) {
        return false;
    }
    uint64_t order =
        sim_post(sim, worker->frozen_until, event->kind, event->id, event->start, 0, 0);
    if (event->kind == SIM_EV_STEP) {
        worker->step_at = worker->frozen_until;
        worker->step_order = order;
    } else {
        worker->resume_order = order;
    }
    return true;
}

static void carry_out(struct sim *sim, const struct sim_event *event) {
    struct sim_worker *worker = event->id >= 0 ? &sim->workers[event->id] : NULL;
    bool is_same = worker && worker->alive && worker->start == event->start;

    switch (event->kind) {
    case SIM_EV_STEP:
        if (is_same && worker->step_order == event->order && !put_off(sim, event)) {
            step(worker);
        }
        return;
    case SIM_EV_RESUME:
        if (is_same && worker->resume_order == event->order && !put_off(sim, event)) {
            worker->resume_order = 0;
            resume(worker);
        }
        return;
    case SIM_EV_FLIGHT:
        sim_net_flight(sim, event);
        return;
    case SIM_EV_DIAL:
        sim_net_dial(sim, event);
        return;
    case SIM_EV_CONNECT:
        sim_store_connect(sim, event);
        return;
    case SIM_EV_REQUEST:
        sim_store_request(sim, event);
        return;
    case SIM_EV_REPLY:
        sim_store_reply(sim, event);
        return;
    case SIM_EV_TICK:
        sim_store_tick(sim);
        sim_check_tick(sim);
        sim_post(sim, sim->now + TICK_MS * RF__MS, SIM_EV_TICK, -1, 0, 0, 0);
        return;
    case SIM_EV_FAULT:
        sim_fault_strike(sim);
        return;
    case SIM_EV_START:
        if (worker && !worker->alive && !worker->finished) {
            sim_start(sim, event->id);
        }
        return;
    case SIM_EV_STORE_UP:
        sim_store_up(sim);
        return;
    }
}

static void strike_once(struct sim *sim) {
    const struct sim_options *o = &sim->options;

    if (o->strike_b < 0) {
        if (sim->workers[o->strike_a].alive) {
            sim_kill(&sim->workers[o->strike_a], false);
            sim_post(sim, sim->now + 300 * RF__MS, SIM_EV_START, o->strike_a, 0, 0, 0);
        }
        return;
    }
    sim_trace(sim, -1, "the link between workers %d and %d is cut", o->strike_a, o->strike_b);
    int64_t until = sim->now + 4 * sim->detect_ms * RF__MS;
    sim->cut_until[o->strike_a][o->strike_b] = sim->cut_until[o->strike_b][o->strike_a] = until;
}

/* ---- One world ---- */

/* What the seed says of the world. Draws are made in any case, so that an option changes only what
 * it is about. */
static void draw(struct sim *sim) {
    const struct sim_options *o = &sim->options;
    struct rf__rng rng = rf__rng(o->seed, 1, 0);
    static const int detects[] = {200, 500, 1000};
    static const enum rf_algorithm algorithms[] = {RF_ALGORITHM_AUTO, RF_ALGORITHM_RING,
                                                   RF_ALGORITHM_NAIVE, RF_ALGORITHM_AUTO};

    int workers = 3 + (int)rf__rng_below(&rng, 4);
    sim->initial = o->workers ? o->workers : workers;
    sim->min_size = 1 + (int)rf__rng_below(&rng, 2);
    sim->max_size = sim->initial + (int)rf__rng_below(&rng, 3);
    sim->detect_ms = detects[rf__rng_below(&rng, 3)];
    sim->start_timeout_ms = 60000;
    unsigned faults = (unsigned)rf__rng_below(&rng, 1u << SIM_FAULTS);
    faults &= (unsigned)rf__rng_below(&rng, 4) ? ~(unsigned)SIM_FLIP : ~0u; /* in few worlds */
    sim->faults = (o->faults == ~0u ? faults : o->faults);
    sim->fault_every = RF__MS * (100 + (int64_t)rf__rng_below(&rng, 4) * 600);
    sim->latency = SIM_US * (int64_t)(1 + rf__rng_below(&rng, 10) * 40);
    sim->compute = SIM_US * (int64_t)(50 + rf__rng_below(&rng, 8) * 300);
    sim->most = rf__rng_below(&rng, 2) ? 1 + (size_t)rf__rng_below(&rng, 300) : 0;
    sim->window = rf__rng_below(&rng, 2) ? 65536 : 256 + (size_t)rf__rng_below(&rng, 2000);
    sim->hash_every = (uint32_t)rf__rng_below(&rng, 4);
    sim->bucket_bytes = rf__rng_below(&rng, 2) ? 1 : 4096;
    sim->algorithm = algorithms[rf__rng_below(&rng, 4)];
    sim->measure_every = rf__rng_below(&rng, 2) ? 3 + rf__rng_below(&rng, 5) : 0;
    uint64_t steps = 10 + rf__rng_below(&rng, 30);
    sim->options.steps = o->steps ? o->steps : steps;
    sim->lease_rate = 1024 * (o->silly ? 1 + (int64_t)rf__rng_below(&rng, 40) : 1);
    if (o->fixed) {
        sim->faults &= ~(unsigned)(SIM_JOIN | SIM_LEAVE | SIM_FLIP);
        sim->measure_every = 0;
        sim->max_size = sim->initial;
    }
    if (sim->faults & SIM_FLIP) { /* with fewer than three nobody can say who is wrong */
        sim->initial = sim->initial < 4 ? 4 : sim->initial;
        sim->max_size = sim->max_size < sim->initial ? sim->initial : sim->max_size;
        sim->hash_every = 1;
    }
    if (o->strike_at || o->strike_b) {
        sim->hash_every = 1;
    }
}

static void set_up(struct sim *sim, const struct sim_options *options) {
    sim->options = *options;
    sim->now = RF__MS;
    sim->rng = rf__rng(options->seed, 2, 0);
    sim->fault_rng = rf__rng(options->seed, 3, 0);
    sim->units = rf__alloc(SIM_UNITS, sizeof *sim->units);
    sim->records = rf__alloc(SIM_GENERATIONS, sizeof *sim->records);
    sim->reference_digests = rf__alloc(SIM_UNITS, sizeof *sim->reference_digests);
    sim->kv = rf__kv_create();
    RF_ASSERT(sim->units && sim->records && sim->reference_digests && sim->kv);
    sim->store_is_up = true;
    for (int id = 0; id < SIM_IDS; id++) {
        sim->workers[id] = (struct sim_worker){.sim = sim, .id = id, .clock_rate = 1024};
    }
    draw(sim);
    sim->store_clock_at = sim->now;
    sim->store_clock = sim->now;
    sim_trace(sim, -1, "seed %llu: %d workers, %d at least, %d at most, faults %x, detect %d ms",
              (unsigned long long)options->seed, sim->initial, sim->min_size, sim->max_size,
              sim->faults, sim->detect_ms);
    for (int id = 0; id < sim->initial; id++) {
        sim_post(sim, sim_soon(sim, 20 * RF__MS), SIM_EV_START, id, 0, 0, 0);
    }
    sim_post(sim, sim->now + TICK_MS * RF__MS, SIM_EV_TICK, -1, 0, 0, 0);
    sim_fault_plan(sim);
}

static void tear_down(struct sim *sim) {
    sim->options.trace = false;
    for (int id = 0; id < SIM_IDS; id++) {
        if (sim->workers[id].alive) {
            sim_kill(&sim->workers[id], false);
        }
    }
    sim_net_free(sim);
    rf__kv_destroy(sim->kv);
    rf__free(sim->reference_digests);
    rf__free(sim->records);
    rf__free(sim->units);
    rf__free(sim->heap);
    rf__free(sim);
}

static bool is_done(const struct sim *sim) {
    if (sim->outcome.violated || sim->outcome.lost) {
        return true;
    }
    bool all_over = true;
    for (int id = 0; id < SIM_IDS; id++) {
        const struct sim_worker *worker = &sim->workers[id];
        all_over = all_over && !worker->alive &&
                   (sim->options.fixed || worker->finished || !worker->start);
    }
    return all_over && sim->starts > 0 && (sim->is_healing || sim->options.fixed);
}

void sim_run(const struct sim_options *options, struct sim_outcome *outcome) {
    struct sim *sim = rf__alloc(1, sizeof *sim);

    RF_ASSERT(sim);
    set_up(sim, options);
    while (!is_done(sim)) {
        struct sim_event event = pop(sim);
        sim->now = event.at;
        sim->index++;
        if (sim->index == sim->options.strike_at) {
            strike_once(sim);
        }
        carry_out(sim, &event);
        if (sim->index > MOST_EVENTS) {
            sim_violate(sim, "no end after %d events", MOST_EVENTS);
        }
    }
    sim->outcome.events = sim->index;
    sim->outcome.now = sim->now;
    sim->outcome.units = sim->unit_count;
    sim->outcome.generations = sim->record_count;
    struct sim_outcome found = sim->outcome;
    tear_down(sim);
    *outcome = found;
}
