/* The runner over a driver: waits give the thread back to the world. Between any two calls of a
 * program the others may move, as an engine thread would let them. */
#include "sim.h"

#include "base/assert.h"
#include "base/mem.h"
#include "io/clock.h"

#include <string.h>

enum { INTERRUPTED_ONE_IN = 10 };

int64_t sim_local(const struct sim_worker *worker) {
    return worker->clock_base + worker->sim->now / 1024 * worker->clock_rate +
           worker->sim->now % 1024 * worker->clock_rate / 1024;
}

int64_t sim_global(const struct sim_worker *worker, int64_t local) {
    int64_t now = worker->sim->now, left = local - sim_local(worker);

    if (local >= RF__NEVER / 2) {
        return RF__NEVER;
    }
    return left <= 0 ? now : now + left / worker->clock_rate * 1024 + 1024;
}

static struct sim_worker *of(struct rf__runner *runner) {
    return (struct sim_worker *)runner;
}

bool sim_is_ready(const struct sim_worker *worker) {
    enum rf__group_state state = rf__group_state(worker->group);

    switch (worker->waits) {
    case SIM_WAIT_NOT:
    case SIM_WAIT_TIME:
        return false; /* the resume is under way */
    case SIM_WAIT_OP:
        return rf__op_result(worker->waited) != 0;
    case SIM_WAIT_PLACE:
        return worker->runner.elastic ? rf__group_is_placed(worker->group)
                                      : state != RF__GROUP_FORMING;
    case SIM_WAIT_REFORM:
        return state == RF__GROUP_RUNNING || state == RF__GROUP_FAILED;
    case SIM_WAIT_LEFT:
        return rf__group_left(worker->group);
    }
    return false;
}

void sim_wait(struct sim_worker *worker, enum sim_wait wait, struct rf__op *op) {
    if (worker->dying) {
        return;
    }
    worker->waits = wait;
    worker->waited = op;
    worker->wait_since = worker->sim->now;
    worker->resume_order = 0;
    while (!worker->dying && !sim_is_ready(worker)) {
        sim_wake(worker, sim_soon(worker->sim, 5 * SIM_US));
        sim_coro_yield();
    }
    worker->waits = SIM_WAIT_NOT;
}

void sim_sleep(struct sim_worker *worker, int64_t ns) {
    if (worker->dying) {
        return;
    }
    worker->waits = SIM_WAIT_TIME;
    worker->wait_since = worker->sim->now;
    worker->resume_order = sim_post(worker->sim, worker->sim->now + ns, SIM_EV_RESUME, worker->id,
                                    worker->start, 0, 0);
    sim_coro_yield();
    worker->waits = SIM_WAIT_NOT;
}

/* A place where the engine, or anybody else, may come in between. */
static void interrupt(struct sim_worker *worker) {
    struct sim *sim = worker->sim;

    if (sim_coro_inside() && !worker->dying && rf__rng_below(&sim->rng, INTERRUPTED_ONE_IN) == 0) {
        sim_sleep(worker, sim_soon(sim, 200 * SIM_US) - sim->now);
    }
}

static int runner_start(struct rf__runner *runner, const struct rf__op_params *params,
                        struct rf__op **out) {
    struct sim_worker *worker = of(runner);
    struct rf_error err;

    interrupt(worker);
    if (worker->dying ||
        (runner->elastic && rf__group_running(worker->group) != runner->generation)) {
        return RF_EREVOKED;
    }
    struct rf__op_params given = *params;
    sim_plant_starts(worker, &given);
    int rc = rf__group_submit(worker->group, &given, sim_local(worker), out, &err);
    if (rc == 0) {
        sim_plant_started(worker, &given, *out);
    }
    if (rc == 0 && rf__rng_below(&worker->sim->rng, 2)) {
        (void)rf__group_step(worker->group, sim_local(worker));
    }
    sim_wake(worker, sim_soon(worker->sim, 5 * SIM_US));
    return rc;
}

static int runner_test(struct rf__runner *runner, struct rf__op *op) {
    struct sim_worker *worker = of(runner);

    interrupt(worker);
    return worker->dying ? RF_ELOST : rf__op_result(op);
}

static int runner_wait(struct rf__runner *runner, struct rf__op *op, int timeout_ms,
                       int64_t *busy_ns) {
    struct sim_worker *worker = of(runner);

    RF_ASSERT(timeout_ms < 0);
    if (!worker->dying && sim_plant_skips(worker, op)) {
        rf__group_release(worker->group, op);
        return 0;
    }
    if (runner->elastic && !worker->dying) {
        rf__group_alive(worker->group, RF__NEVER);
    }
    sim_wait(worker, SIM_WAIT_OP, op);
    if (runner->elastic && !worker->dying) {
        rf__group_alive(worker->group, sim_local(worker));
    }
    if (worker->dying) {
        rf__group_release(worker->group, op);
        return RF_ELOST;
    }
    int rc = rf__op_result(op);
    if (busy_ns) {
        *busy_ns = rf__op_busy_ns(op);
    }
    rf__group_release(worker->group, op);
    return rc > 0 ? 0 : rc;
}

static void runner_error(struct rf__runner *runner, struct rf_error *out) {
    struct sim_worker *worker = of(runner);

    rf__group_error(worker->group, out);
    if (out->code == 0 && runner->elastic) {
        (void)rf__fail(out, RF_EREVOKED, 0, "generation %llu is over",
                       (unsigned long long)runner->generation);
        out->rank = -1;
    }
}

static void runner_fail(struct rf__runner *runner, const struct rf_error *error) {
    struct sim_worker *worker = of(runner);

    bool is_over = runner->elastic && rf__group_running(worker->group) != runner->generation;
    if (!worker->dying && !is_over) {
        sim_trace(worker->sim, worker->id, "fails: %s", error->text);
        rf__group_revoke(worker->group, error);
        sim_wake(worker, sim_soon(worker->sim, 5 * SIM_US));
    }
}

static int runner_alloc(struct rf__runner *runner, size_t bytes, void **out, struct rf_error *err) {
    *out = rf__alloc_aligned(bytes);
    of(runner)->blocks += *out != NULL;
    return *out ? 0 : rf__fail(err, RF_ENOMEM, 0, "no memory for %zu bytes", bytes);
}

static void runner_release(struct rf__runner *runner, void *memory) {
    of(runner)->blocks -= memory != NULL;
    rf__free(memory);
}

static int64_t runner_now(struct rf__runner *runner) {
    return sim_local(of(runner));
}

static void runner_enter(struct rf__runner *runner, uint64_t config, bool may_roll_back) {
    struct sim_worker *worker = of(runner);

    interrupt(worker);
    if (!worker->dying) {
        rf__group_enter(worker->group, config, may_roll_back, sim_local(worker));
        sim_wake(worker, sim_soon(worker->sim, 5 * SIM_US));
    }
}

static int runner_note(struct rf__runner *runner, const struct rf__progress *progress) {
    struct sim_worker *worker = of(runner);

    interrupt(worker);
    int rc =
        worker->dying ? RF_EREVOKED : rf__group_note(worker->group, runner->generation, progress);
    if (rc == 0) {
        sim_check_note(worker, progress);
    }
    return rc;
}

static int runner_reform(struct rf__runner *runner, struct rf__membership *out,
                         struct rf_error *err) {
    struct sim_worker *worker = of(runner);

    rf__group_alive(worker->group, RF__NEVER);
    sim_wait(worker, SIM_WAIT_REFORM, NULL);
    if (worker->dying) {
        return rf__fail(err, RF_EINTERNAL, 0, "the process is no more");
    }
    rf__group_alive(worker->group, sim_local(worker));
    int rc = rf__group_membership(worker->group, out, err);
    if (rc == 0) {
        RF_ASSERT(out->size <= SIM_IDS);
        runner->generation = out->generation;
        runner->rank = out->rank;
        runner->size = out->size;
        for (int rank = 0; rank < out->size; rank++) {
            worker->ids[rank] = out->ids[rank];
            worker->healed_of[rank] = out->healed[rank];
        }
        out->ids = worker->ids;
        out->healed = worker->healed_of;
        worker->holds = worker->holds && out->healed[out->rank];
        sim_trace(worker->sim, worker->id, "adopts generation %llu: rank %d of %d, units %llu%s%s",
                  (unsigned long long)out->generation, out->rank, out->size,
                  (unsigned long long)out->units, out->commit ? ", commit" : "",
                  out->healed[out->rank] ? "" : ", to be healed");
    }
    return rc;
}

static bool runner_is_over(struct rf__runner *runner) {
    struct sim_worker *worker = of(runner);

    interrupt(worker);
    return worker->dying || rf__group_running(worker->group) != runner->generation;
}

static bool runner_is_awaited(struct rf__runner *runner) {
    struct sim_worker *worker = of(runner);

    interrupt(worker);
    return !worker->dying && rf__group_is_awaited(worker->group);
}

static void runner_regroup(struct rf__runner *runner, const int *out, int out_count,
                           const char *reason) {
    struct sim_worker *worker = of(runner);

    interrupt(worker);
    if (!worker->dying && rf__group_running(worker->group) == runner->generation) {
        sim_trace(worker->sim, worker->id, "regroups: %s", reason);
        rf__group_regroup(worker->group, out, out_count, reason, sim_local(worker));
        sim_wake(worker, sim_soon(worker->sim, 5 * SIM_US));
    }
}

static int runner_slowest_link(struct rf__runner *runner, double *bytes_per_s) {
    return rf__group_slowest_link(of(runner)->group, bytes_per_s);
}

static bool runner_flip_is_due(struct rf__runner *runner) {
    struct sim_worker *worker = of(runner);
    int whole = 0;
    bool is_clean = true;

    for (int rank = 0; rank < runner->size; rank++) {
        whole += worker->healed_of[rank];
    }
    for (int id = 0; id < SIM_IDS; id++) {
        const struct sim_worker *other = &worker->sim->workers[id];
        is_clean = is_clean && !(other->alive && other->tainted);
    }
    /* with fewer than three nobody could say who is wrong */
    bool is_due = worker->flip_is_due && !worker->dying && is_clean && whole > 2 && worker->holds &&
                  sim_is_dispensable(worker->sim, worker);
    worker->flip_is_due = false;
    if (is_due) {
        worker->tainted = worker->sim->flipped = true;
        sim_trace(worker->sim, worker->id, "a bit flips");
    }
    return is_due;
}

void sim_tell(void *context, const struct rf_event *event) {
    struct sim_worker *worker = context;

    if (!worker->dying) {
        sim_check_told(worker, event);
    }
}

static void runner_tell(struct rf__runner *runner, const struct rf_event *event) {
    sim_tell(runner, event);
}

static void runner_alive(struct rf__runner *runner) {
    struct sim_worker *worker = of(runner);

    if (!worker->dying) {
        rf__group_alive(worker->group, sim_local(worker));
    }
    interrupt(worker);
}

const struct rf__runner_ops sim_runner_ops = {
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
};
