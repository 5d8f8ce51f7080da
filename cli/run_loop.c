/* The launcher's one loop, and what it does when a worker fails or somebody asks to stop.
 *
 * One loop waits for everything at once: signals, the store, the workers' pipes, and room on the
 * screen. Nothing in it waits on its own. What happens when a worker fails or somebody asks to stop
 * is a small machine of phases, each with a deadline:
 *
 *     RUNNING --failure--> SETTLING --deadline--> ENDING --grace--> KILLING --> done
 *        \--------------stop request-------------->/ (again: little grace; a third time: KILLING)
 *
 * SETTLING lets the others find out by themselves who was lost, so that their own reports get into
 * their logs. In an elastic job most failures are none of these: the job goes on, and who failed is
 * started again (run_restart.c). */
#include "format.h"
#include "report.h"
#include "run.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

enum {
    HURRY_MS = 2000, /* what is left after the second request to stop */
    DRAIN_MS = 2000, /* how long the processes of a worker that ended may go on writing */
    POLL_FIXED = 4,  /* signals, store, two sinks */
    POLL_EACH = 3,   /* stdout, stderr and events of a worker */
    NS_PER_MS = 1000000
};

static int count_alive(const struct run *run) {
    int count = 0;

    for (int i = 0; i < run->options.workers; i++) {
        count += run->workers[i].state == WORKER_RUNNING;
    }
    return count;
}

static bool all_done(const struct run *run) {
    for (int i = 0; i < run->options.workers; i++) {
        const struct run_worker *worker = &run->workers[i];
        if ((worker->state != WORKER_DONE && worker->state != WORKER_NONE) ||
            run_awaits_restart(worker)) {
            return false;
        }
    }
    return true;
}

void run_enter_phase(struct run *run, enum run_phase phase, int64_t now_ns, int64_t wait_ms) {
    int signal = phase == PHASE_ENDING ? SIGTERM : phase == PHASE_KILLING ? SIGKILL : 0;

    run->phase = phase;
    run->deadline_ns = now_ns + wait_ms * NS_PER_MS;
    run_forget_restarts(run);
    for (int i = 0; signal && i < run->options.workers; i++) {
        struct run_worker *worker = &run->workers[i];
        if (worker->state == WORKER_RUNNING || phase == PHASE_KILLING) {
            run_worker_signal(worker, signal);
            run_worker_signal(worker, SIGCONT); /* a stopped process would never hear of it */
        }
    }
}

/* A worker that has gone wrong ends the run, unless that is on its way already. */
static void note_end(struct run *run, struct run_worker *worker, int64_t now_ns) {
    const struct run_options *options = &run->options;

    run_events_read(run, worker); /* what it told before its end comes before its end */
    worker->order = ++run->ends_seen;
    worker->ended_ns = now_ns;
    worker->drain_deadline_ns = now_ns + (int64_t)DRAIN_MS * NS_PER_MS;
    run_note_event(run, "exit",
                   json_pack("{s:i, s:i, s:i, s:i, s:i}", "id", worker->id, "rank", worker->id,
                             "pid", (int)worker->pid, "exit_code", run_worker_exit_code(worker),
                             "signal", worker->signal));
    if (options->verbose) {
        run_say(run, "worker %d (process %d) ended: %s %d", worker->id, (int)worker->pid,
                worker->signal ? "signal" : "exit status",
                worker->signal ? worker->signal : worker->status);
    }
    run_worker_end_text(worker, worker->lost_by, sizeof worker->lost_by);
    if (!run_worker_ended_well(worker) && run->phase == PHASE_RUNNING &&
        !run_goes_on_without(run, worker, now_ns)) {
        run_enter_phase(run, PHASE_SETTLING, now_ns, options->detect_ms + SETTLE_MORE_MS);
    }
}

static void note_ends(struct run *run, int64_t now_ns) {
    for (int i = 0; i < run->options.workers; i++) {
        if (run_worker_ended(&run->workers[i])) {
            note_end(run, &run->workers[i], now_ns);
        }
    }
}

static void request_stop(struct run *run, int signal, int64_t now_ns) {
    const char *name = sigabbrev_np(signal);
    int alive;

    note_ends(run, now_ns); /* who ended before is not a victim of the request */
    run->sinks[1].midline |= signal == SIGINT && run->sinks[1].terminal; /* it shows ^C */
    for (int i = 0; i < run->options.workers; i++) { /* the run had gone on without them */
        run->workers[i].is_outlived |= run_awaits_restart(&run->workers[i]);
    }
    alive = count_alive(run);
    run->stop_requests++;
    run_note_event(run, "stop",
                   json_pack("{s:s+, s:i}", "signal", "SIG", name ? name : "?", "request",
                             run->stop_requests));
    if (all_done(run)) {
        run->output_abandoned = true;
    } else if (run->stop_requests == 1) {
        run_say(run, "stopping %d worker%s: finish the step, save (again: now; 3rd: kill)", alive,
                run_plural(alive));
        run_enter_phase(run, PHASE_ENDING, now_ns, run->options.grace_ms);
    } else if (run->stop_requests == 2 && run->phase != PHASE_KILLING) {
        run_say(run, "stopping now: %d worker%s left (again: kill)", alive, run_plural(alive));
        run_enter_phase(run, PHASE_ENDING, now_ns, HURRY_MS);
    } else {
        run_say(run, "killing %d worker%s", alive, run_plural(alive));
        run_enter_phase(run, PHASE_KILLING, now_ns, KILLED_MS);
    }
}

/* What the others get after a failure. A group that has trained nothing yet has nothing to save,
 * and its workers may be waiting for the one that failed; but what the user says holds. */
static int settled_grace_ms(const struct run *run) {
    const struct run_options *options = &run->options;
    bool is_default = !strcmp(options->values[RUN_GRACE].source, "default");
    bool is_empty = run->news.has_formed && !run->news.has_committed;
    return is_default && is_empty && options->grace_ms > HURRY_MS ? HURRY_MS : options->grace_ms;
}

/* The next phase where this one's time is over. False: even killed processes do not go. */
static bool advance_phase(struct run *run, int64_t now_ns) {
    char time[FORMAT_MAX];
    int alive = count_alive(run);

    if (run->phase == PHASE_RUNNING || now_ns < run->deadline_ns || !alive) {
        return true;
    }
    switch (run->phase) {
    case PHASE_SETTLING:
        for (int i = 0; i < run->options.workers; i++) {
            run->workers[i].frozen = run_worker_stands_still(&run->workers[i]);
        }
        run_say(run, "a worker failed: stopping the %d that still run%s", alive,
                alive == 1 ? "s" : "");
        run_enter_phase(run, PHASE_ENDING, now_ns, settled_grace_ms(run));
        return true;
    case PHASE_ENDING:
        format_duration(time, (run->stop_requests > 1 ? HURRY_MS : settled_grace_ms(run)) / 1e3);
        run_say(run, "%d worker%s did not stop within %s: killing", alive, run_plural(alive), time);
        run_enter_phase(run, PHASE_KILLING, now_ns, KILLED_MS);
        return true;
    case PHASE_KILLING:
        if (!run->error.code) {
            report_fail(&run->error, RF_EWORKER, 0, "%d worker%s cannot be killed", alive,
                        run_plural(alive));
            snprintf(run->error.why, sizeof run->error.why,
                     "likely: blocked in the kernel, on a disk or device that does not answer");
        }
        return false;
    case PHASE_RUNNING:
        break;
    }
    return true;
}

static bool worker_drained(const struct run_worker *worker) {
    return worker->out.fd < 0 && worker->err.fd < 0;
}

static bool worker_blocked(const struct run_worker *worker) {
    return !sink_has_room(worker->out.sink) || !sink_has_room(worker->err.sink);
}

/* Ended workers: first their output to its end, then whatever is left of their group goes. */
static void settle_worker(struct run *run, struct run_worker *worker, int64_t now_ns) {
    bool late = now_ns >= worker->drain_deadline_ns && !worker_blocked(worker);

    if (worker->state == WORKER_DRAINING && (worker_drained(worker) || late)) {
        run_worker_signal(worker, SIGKILL);
        worker->state = WORKER_KILLED;
        worker->drain_deadline_ns = now_ns + (int64_t)DRAIN_MS * NS_PER_MS;
        late = false;
    }
    if (worker->state == WORKER_KILLED && (worker_drained(worker) || late)) {
        stream_close(&worker->out);
        stream_close(&worker->err);
        run_events_read(run, worker);
        run_pipe_close(&worker->events);
        run_worker_reap(worker, &run->guard);
        run_schedule_restart(run, worker, now_ns);
    }
}

/* Where the job is done, nobody can come back to it, and whom the others went on without is
 * ended. */
static void end_leftovers(struct run *run, int64_t now_ns) {
    bool has_ended_well = false, has_member = false, has_leftover = false;

    if (!run->options.elastic || run->phase != PHASE_RUNNING) {
        return;
    }
    for (int i = 0; i < run->options.workers; i++) {
        const struct run_worker *worker = &run->workers[i];
        bool runs = worker->state == WORKER_RUNNING;
        has_member |= runs && !worker->is_outlived;
        has_leftover |= (runs && worker->is_outlived) || run_awaits_restart(worker);
        has_ended_well |= !runs && worker->state != WORKER_NONE && !run_awaits_restart(worker) &&
                          run_worker_ended_well(worker);
    }
    if (has_ended_well && !has_member && has_leftover) {
        run_enter_phase(run, PHASE_ENDING, now_ns, HURRY_MS);
    }
}

static int64_t next_deadline(const struct run *run) {
    int64_t least = run->phase == PHASE_RUNNING ? INT64_MAX : run->deadline_ns;

    for (int i = 0; i < run->options.workers; i++) {
        const struct run_worker *worker = &run->workers[i];
        bool draining = worker->state == WORKER_DRAINING || worker->state == WORKER_KILLED;
        if (draining && worker->drain_deadline_ns < least && !worker_blocked(worker)) {
            least = worker->drain_deadline_ns;
        }
        if (worker->restart_at_ns && worker->restart_at_ns < least) {
            least = worker->restart_at_ns;
        }
    }
    return least;
}

static int poll_timeout_ms(const struct run *run, int64_t now_ns) {
    int64_t deadline_ns = next_deadline(run);
    int64_t wait_ms = -1;

    if (deadline_ns != INT64_MAX) {
        wait_ms = deadline_ns <= now_ns ? 0 : (deadline_ns - now_ns) / NS_PER_MS + 1;
    }
    if (run->store) {
        int store_ms = rf_store_server_timeout_ms(run->store);
        wait_ms = store_ms >= 0 && (wait_ms < 0 || store_ms < wait_ms) ? store_ms : wait_ms;
    }
    return wait_ms > INT32_MAX ? INT32_MAX : (int)wait_ms;
}

static void read_signals(struct run *run, int64_t now_ns) {
    struct signalfd_siginfo info;

    while (read(run->signal_fd, &info, sizeof info) == (ssize_t)sizeof info) {
        if (info.ssi_signo == SIGCHLD) {
            run_publish_ended(run);
            note_ends(run, now_ns);
        } else {
            request_stop(run, (int)info.ssi_signo, now_ns);
        }
    }
}

static void step_store(struct run *run, int64_t now_ns) {
    struct rf_error err;

    if (!run->store || !rf_store_server_step(run->store, &err)) {
        return;
    }
    if (!run->error.code) {
        run->error = err;
    }
    rf_store_server_destroy(run->store);
    run->store = NULL;
    if (run->phase == PHASE_RUNNING || run->phase == PHASE_SETTLING) {
        run_enter_phase(run, PHASE_ENDING, now_ns, run->options.grace_ms);
    }
}

/* Fills `polls`; worker i's streams and events are from POLL_FIXED + POLL_EACH x i on. A stream
 * whose sink is full waits; events never do. */
static nfds_t prepare_polls(const struct run *run, struct pollfd *polls) {
    nfds_t count = POLL_FIXED;

    polls[0] = (struct pollfd){.fd = run->signal_fd, .events = POLLIN};
    polls[1] =
        (struct pollfd){.fd = run->store ? rf_store_server_fd(run->store) : -1, .events = POLLIN};
    for (int i = 0; i < 2; i++) {
        const struct sink *sink = &run->sinks[i];
        polls[2 + i] = (struct pollfd){.fd = sink_pending(sink) ? sink->fd : -1, .events = POLLOUT};
    }
    for (int i = 0; i < run->options.workers; i++) {
        const struct stream *streams[] = {&run->workers[i].out, &run->workers[i].err};
        for (int k = 0; k < 2; k++) {
            bool wanted = streams[k]->fd >= 0 && sink_has_room(streams[k]->sink);
            polls[count++] = (struct pollfd){.fd = wanted ? streams[k]->fd : -1, .events = POLLIN};
        }
        polls[count++] = (struct pollfd){.fd = run->workers[i].events.fd, .events = POLLIN};
    }
    return count;
}

static void read_streams(struct run *run, const struct pollfd *polls) {
    for (int i = 0; i < run->options.workers; i++) {
        struct stream *streams[] = {&run->workers[i].out, &run->workers[i].err};
        for (int k = 0; k < 2; k++) {
            struct stream *stream = streams[k];
            if (polls[POLL_EACH * i + k].revents && stream->fd >= 0 &&
                sink_has_room(stream->sink)) {
                stream_read(stream);
                sink_flush(stream->sink);
            }
        }
        if (polls[POLL_EACH * i + 2].revents) {
            run_events_read(run, &run->workers[i]);
        }
    }
}

void run_loop(struct run *run) {
    static struct pollfd polls[POLL_FIXED + POLL_EACH * RF_MAX_LOCAL_RANKS];

    while (!all_done(run) || (!run->output_abandoned &&
                              (sink_pending(&run->sinks[0]) || sink_pending(&run->sinks[1])))) {
        nfds_t count = prepare_polls(run, polls);
        int ready = poll(polls, count, poll_timeout_ms(run, run_now_ns()));
        int64_t now_ns = run_now_ns();
        if (ready < 0 && errno != EINTR) {
            report_fail(&run->error, RF_EINTERNAL, errno, "cannot wait for the workers");
            break;
        }
        read_streams(run, polls + POLL_FIXED);
        sink_flush(&run->sinks[0]);
        sink_flush(&run->sinks[1]);
        read_signals(run, now_ns);
        step_store(run, now_ns);
        for (int i = 0; i < run->options.workers; i++) {
            settle_worker(run, &run->workers[i], now_ns);
        }
        end_leftovers(run, now_ns);
        run_restart_due(run, now_ns);
        if (!advance_phase(run, now_ns)) {
            break;
        }
    }
}
