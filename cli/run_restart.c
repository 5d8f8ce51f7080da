/* Whether a worker that failed ends the run, and when it is started again.
 *
 * Before the first commit of a job a failure ends the run: a program that cannot start is not
 * started again. Later a worker is started again as long as the budget of the hour lasts; without
 * it the job goes on as long as it has its minimum. A job whose last worker with the state is gone
 * is over, unless it has a checkpoint: those started again would find nobody to copy it from. */
#include "run.h"

#include <string.h>
#include <sysexits.h>

enum {
    FIRST_WAIT_MS = 250, /* doubled for each restart within a minute */
    MOST_WAIT_MS = 10000
};
static const int64_t NS_PER_MILLISECOND = 1000000;
static const int64_t MINUTE_NS = 60000000000, HOUR_NS = 3600000000000;

static void forget_old(struct run_budget *budget, int64_t now_ns) {
    int old = 0;

    while (old < budget->used && now_ns - budget->used_ns[old] > HOUR_NS) {
        old++;
    }
    budget->used -= old;
    memmove(budget->used_ns, budget->used_ns + old, (size_t)budget->used * sizeof(int64_t));
}

bool run_awaits_restart(const struct run_worker *worker) {
    return worker->wants_restart;
}

/* Workers of the job that run or will: ours, and those of other hosts. */
static int count_left(const struct run *run) {
    int count = run_events_remote_members(run);

    for (int i = 0; i < run->options.workers; i++) {
        const struct run_worker *worker = &run->workers[i];
        count += worker->state == WORKER_RUNNING || worker->wants_restart;
    }
    return count;
}

/* Whether there is one that could hand the state on: it has been there from the start, or has
 * copied it. Nothing is known of other hosts but who is a member there. */
static bool has_holder(const struct run *run) {
    for (int i = 0; i < run->options.workers; i++) {
        const struct run_worker *worker = &run->workers[i];
        if (worker->state == WORKER_RUNNING && (worker->has_committed || !worker->restarts)) {
            return true;
        }
    }
    return run_events_remote_members(run) > 0 || run->options.first_id > 0;
}

static bool is_job_done(const struct run *run) {
    for (int i = 0; i < run->options.workers; i++) {
        const struct run_worker *worker = &run->workers[i];
        bool has_ended = worker->state != WORKER_NONE && worker->state != WORKER_RUNNING;
        if (has_ended && !worker->wants_restart && !worker->signal && !worker->status) {
            return true;
        }
    }
    return false;
}

bool run_goes_on_without(struct run *run, struct run_worker *worker, int64_t now_ns) {
    const struct run_options *options = &run->options;
    struct run_budget *budget = &run->budget;

    if (!options->elastic || run->phase != PHASE_RUNNING || !run->news.has_committed) {
        return false;
    }
    if (is_job_done(run)) {
        /* Who came too late for the end, or had lost the others by then, fails nobody. */
        worker->is_outlived |=
            !worker->has_committed || (!worker->signal && worker->status == EX_UNAVAILABLE);
        return worker->is_outlived;
    }
    if (!has_holder(run) && !run->news.has_checkpoint) {
        return false;
    }
    forget_old(budget, now_ns);
    if (budget->used < options->max_restarts) {
        budget->used_ns[budget->used++] = now_ns;
        worker->wants_restart = true;
        worker->restart_at_ns = 0;
        return true;
    }
    int left = count_left(run);
    if (left >= (options->first_id ? 1 : options->min_size)) {
        if (options->max_restarts) {
            run_tell(run, '!',
                     "worker %d is not started again: %d restart%s within an hour %s used up",
                     worker->id, budget->used, run_plural(budget->used),
                     budget->used == 1 ? "is" : "are");
        }
        worker->is_outlived = true;
        return true;
    }
    run->has_ended_below_min = true;
    run->left_below_min = left;
    return false;
}

/* 250 ms, doubled for each restart of this worker within a minute; apart from other workers that
 * failed at the same time. */
static int64_t wait_ms(struct run_worker *worker, int64_t now_ns) {
    bool is_quick = worker->last_restart_ns && now_ns - worker->last_restart_ns < MINUTE_NS;
    int64_t wait = FIRST_WAIT_MS;

    worker->quick_restarts = is_quick ? worker->quick_restarts + 1 : 0;
    for (int i = 0; i < worker->quick_restarts && wait < MOST_WAIT_MS; i++) {
        wait *= 2;
    }
    wait = wait < MOST_WAIT_MS ? wait : MOST_WAIT_MS;
    return wait + wait * (int64_t)((uint32_t)worker->id * 2654435761U >> 24) / 1024;
}

void run_schedule_restart(struct run *run, struct run_worker *worker, int64_t now_ns) {
    if (!worker->wants_restart || worker->restart_at_ns || run->phase != PHASE_RUNNING) {
        return;
    }
    int64_t wait = wait_ms(worker, now_ns);
    int left = run->options.max_restarts - run->budget.used;
    worker->last_restart_ns = worker->restart_at_ns = now_ns + wait * NS_PER_MILLISECOND;
    run_note_event(run, "restart",
                   json_pack("{s:i, s:f, s:i}", "id", worker->id, "seconds", (double)wait / 1e3,
                             "left", left));
    run_tell(run, '+', "worker %d starts again in %.2f s (restart %d, %d left this hour)",
             worker->id, (double)wait / 1e3, worker->restarts + 1, left);
}

void run_forget_restarts(struct run *run) {
    for (int i = 0; i < run->options.workers; i++) {
        run->workers[i].wants_restart = false;
        run->workers[i].restart_at_ns = 0;
    }
}

void run_restart_due(struct run *run, int64_t now_ns) {
    struct rf_error err;

    for (int i = 0; i < run->options.workers && run->phase == PHASE_RUNNING; i++) {
        struct run_worker *worker = &run->workers[i];
        if (!worker->wants_restart || !worker->restart_at_ns || now_ns < worker->restart_at_ns) {
            continue;
        }
        worker->wants_restart = false;
        worker->restart_at_ns = 0;
        worker->restarts++;
        if (run_start_worker(run, worker, &err)) {
            run->error = err;
            run_enter_phase(run, PHASE_KILLING, now_ns, KILLED_MS);
        }
    }
}
