/* What goes wrong: faults of the kinds that the seed allows, at intervals that it draws. They never
 * take the last that holds the newest state (there would be nothing to go on with), and they end
 * when the steps under faults are done: then the world heals, and has a bounded time to become
 * whole again. */
#include "sim.h"

#include "base/assert.h"

#include <string.h>

static uint64_t below(struct sim *sim, uint64_t bound) {
    return rf__rng_below(&sim->fault_rng, bound);
}

static int64_t ms(struct sim *sim, int64_t least, int64_t most) {
    return RF__MS * (least + (int64_t)below(sim, (uint64_t)(most - least)));
}

void sim_fault_plan(struct sim *sim) {
    int64_t after = sim->fault_every / 4 + (int64_t)below(sim, (uint64_t)sim->fault_every * 2);
    if (sim->faults && !sim->is_healing) {
        sim_post(sim, sim->now + after, SIM_EV_FAULT, -1, 0, 0, 0);
    }
}

/* Any that lives, or NULL. */
static struct sim_worker *any(struct sim *sim) {
    int alive = sim_alive(sim), chosen = alive ? (int)below(sim, (uint64_t)alive) : 0;

    for (int id = 0; id < SIM_IDS; id++) {
        if (sim->workers[id].alive && chosen-- == 0) {
            return &sim->workers[id];
        }
    }
    return NULL;
}

/* Whether another one is there, in the newest generation, with the newest state. */
bool sim_is_dispensable(const struct sim *sim, const struct sim_worker *worker) {
    const struct sim_record *newest =
        sim->record_count ? &sim->records[sim->record_count - 1] : NULL;

    if (sim->options.fixed || !newest) {
        return true;
    }
    for (int i = 0; i < newest->count; i++) {
        const struct sim_worker *other = &sim->workers[newest->ids[i]];
        if (newest->healed[i] && other != worker && other->alive && other->holds &&
            !other->tainted && !other->is_to_go && other->units == sim->unit_count) {
            return true;
        }
    }
    return false;
}

static void crash(struct sim *sim, bool silently) {
    struct sim_worker *worker = any(sim);

    if (worker && sim_is_dispensable(sim, worker)) {
        int id = worker->id;
        sim_kill(worker, silently);
        if (below(sim, 8)) {
            sim_post(sim, sim->now + ms(sim, 20, 4000), SIM_EV_START, id, 0, 0, 0);
        }
    }
}

static void freeze(struct sim *sim) {
    struct sim_worker *worker = any(sim);

    if (worker) {
        int64_t until = sim->now + ms(sim, 1, 4 * sim->detect_ms);
        worker->frozen_until = until > worker->frozen_until ? until : worker->frozen_until;
        worker->thawed_at = worker->frozen_until;
        sim_trace(sim, worker->id, "freezes until %lld ms",
                  (long long)(worker->frozen_until / RF__MS));
    }
}

static void slow(struct sim *sim) {
    struct sim_worker *worker = any(sim);

    if (worker) {
        worker->slow = 2 + (int)below(sim, 30);
        worker->slow_until = sim->now + ms(sim, 100, 5000);
        sim_trace(sim, worker->id, "is %d times slower", worker->slow);
    }
}

static void reset(struct sim *sim) {
    struct sim_worker *a = any(sim), *b = any(sim);

    if (a && b && a != b && sim_net_reset(sim, a->id, b->id)) {
        sim_trace(sim, -1, "the connection of workers %d and %d is reset", a->id, b->id);
    }
}

static void partition(struct sim *sim) {
    unsigned side = 1 + (unsigned)below(sim, (1u << SIM_NODES) - 1);
    int direction = (int)below(sim, 3);
    int64_t until = sim->now + ms(sim, 10, 5 * sim->detect_ms);

    if (below(sim, 3) == 0) { /* one node alone */
        side = 1u << below(sim, SIM_NODES);
    }
    sim_trace(sim, -1, "partition of %x, direction %d, until %lld ms", side, direction,
              (long long)(until / RF__MS));
    for (int from = 0; from < SIM_NODES; from++) {
        for (int to = 0; to < SIM_NODES; to++) {
            bool in_from = side >> from & 1, in_to = side >> to & 1;
            bool is_cut =
                (in_from && !in_to && direction != 1) || (!in_from && in_to && direction != 0);
            if (is_cut && until > sim->cut_until[from][to]) {
                sim->cut_until[from][to] = until;
            }
        }
    }
}

static void lag(struct sim *sim) {
    struct sim_worker *a = any(sim), *b = any(sim);

    if (a && b && a != b) {
        sim->lag[a->id][b->id] = ms(sim, 1, 100);
        sim->lag_until[a->id][b->id] = sim->now + ms(sim, 100, 3000);
        sim_trace(sim, -1, "the way from worker %d to %d lags by %lld ms", a->id, b->id,
                  (long long)(sim->lag[a->id][b->id] / RF__MS));
    }
}

static void store_down(struct sim *sim) {
    if (sim->store_is_up) {
        sim_store_down(sim);
        sim_post(sim, sim->now + ms(sim, 20, 5000), SIM_EV_STORE_UP, -1, 0, 0, 0);
    }
}

static void join(struct sim *sim) {
    int there = 0;

    for (int id = 0; id < SIM_IDS; id++) {
        there += sim->workers[id].start && !sim->workers[id].finished;
    }
    for (int id = 0; id < SIM_IDS && there < sim->max_size; id++) {
        if (!sim->workers[id].start) {
            sim_start(sim, id);
            return;
        }
    }
}

static void flip(struct sim *sim) {
    struct sim_worker *worker = any(sim);
    bool is_clean = true;

    for (int id = 0; id < SIM_IDS; id++) {
        is_clean = is_clean && !(sim->workers[id].alive && sim->workers[id].tainted);
    }
    if (worker && is_clean && worker->holds && sim_is_dispensable(sim, worker)) {
        worker->flip_is_due = true;
    }
}

static void leave(struct sim *sim) {
    struct sim_worker *worker = any(sim);

    if (worker && worker->id >= sim->initial && sim_is_dispensable(sim, worker)) {
        sim_trace(sim, worker->id, "is asked to leave");
        worker->is_to_go = true;
    }
}

static void strike(struct sim *sim, enum sim_fault fault) {
    switch (fault) {
    case SIM_CRASH:
        crash(sim, false);
        return;
    case SIM_VANISH:
        crash(sim, true);
        return;
    case SIM_FREEZE:
        freeze(sim);
        return;
    case SIM_SLOW:
        slow(sim);
        return;
    case SIM_RESET:
        reset(sim);
        return;
    case SIM_PARTITION:
        partition(sim);
        return;
    case SIM_LAG:
        lag(sim);
        return;
    case SIM_STORE_DOWN:
        store_down(sim);
        return;
    case SIM_STORE_LAG:
        sim->store_lag_until = sim->now + ms(sim, 100, 3000);
        return;
    case SIM_JOIN:
        join(sim);
        return;
    case SIM_FLIP:
        flip(sim);
        return;
    case SIM_LEAVE:
        leave(sim);
        return;
    case SIM_FAULTS:
        return;
    }
}

void sim_fault_strike(struct sim *sim) {
    unsigned kind;

    if (sim->is_healing || !sim->faults) {
        return;
    }
    do {
        kind = 1u << below(sim, SIM_FAULTS);
    } while (!(sim->faults & kind));
    sim->outcome.faults++;
    strike(sim, (enum sim_fault)kind);
    sim_fault_plan(sim);
}

/* Everything is well from here on, and whoever is dead is started again. */
void sim_fault_heal(struct sim *sim) {
    sim_trace(sim, -1, "the world heals");
    sim->is_healing = true;
    sim->heal_begun = sim->now;
    memset(sim->cut_until, 0, sizeof sim->cut_until);
    memset(sim->lag_until, 0, sizeof sim->lag_until);
    sim->store_lag_until = 0;
    sim_store_up(sim);
    sim_store_set_rate(sim, 1024);
    for (int id = 0; id < SIM_IDS; id++) {
        struct sim_worker *worker = &sim->workers[id];
        if (worker->alive && sim_is_frozen(worker)) {
            worker->frozen_until = worker->thawed_at = sim->now;
            sim_wake(worker, sim->now);
            if (worker->resume_order) {
                worker->resume_order =
                    sim_post(sim, sim->now, SIM_EV_RESUME, id, worker->start, 0, 0);
            }
        }
        int64_t local = sim_local(worker);
        worker->clock_rate = 1024;
        worker->clock_base += local - sim_local(worker);
        worker->slow_until = 0;
        worker->flip_is_due = false;
        if (!worker->alive && worker->start && !worker->finished) {
            sim_post(sim, sim_soon(sim, 100 * RF__MS), SIM_EV_START, id, 0, 0, 0);
        }
    }
}
