/* ringfold run: starts workers on this host, hosts the store through which they meet, shows what
 * they write, and ends them together.
 *
 * One loop waits for everything at once: signals, the store, the workers' pipes, and room on the
 * screen. Nothing in it waits on its own. What happens when a worker fails or somebody asks to stop
 * is a small machine of phases, each with a deadline:
 *
 *     RUNNING --failure--> SETTLING --deadline--> ENDING --grace--> KILLING --> done
 *        \--------------stop request-------------->/ (again: little grace; a third time: KILLING)
 *
 * SETTLING lets the others find out by themselves who was lost, so that their own reports get into
 * their logs. */
#include "commands.h"
#include "format.h"
#include "report.h"
#include "run_env.h"
#include "run_folder.h"
#include "run_memory.h"
#include "run_options.h"
#include "run_output.h"
#include "run_report.h"
#include "run_worker.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <ringfold/store.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sysexits.h>
#include <time.h>
#include <unistd.h>

enum {
    STATUS_STOPPED = 75,
    STATUS_NOT_FOUND = 127,
    STATUS_NOT_EXECUTABLE = 126,
    SETTLE_MORE_MS = 2000, /* beyond --detect */
    HURRY_MS = 2000,       /* what is left after the second request to stop */
    DRAIN_MS = 2000,       /* how long the processes of a worker that ended may go on writing */
    KILLED_MS = 5000,      /* how long a killed process may take to go */
    POLL_FIXED = 4,        /* signals, store, two sinks */
    NS_PER_MS = 1000000
};

enum phase { PHASE_RUNNING, PHASE_SETTLING, PHASE_ENDING, PHASE_KILLING };

struct run {
    struct run_options options;
    struct run_folder folder;
    struct run_key key;
    struct run_guard guard;
    struct run_launch launch;
    struct run_env env;
    struct run_memory memory_before;
    struct rf_store_server *store;
    char store_uri[256];
    char own_path[PATH_MAX];
    struct run_worker *workers;
    struct sink sinks[2]; /* stdout, stderr */
    int signal_fd;
    enum phase phase;
    int64_t deadline_ns; /* of every phase but RUNNING */
    int64_t started_ns;
    int stop_requests;
    int ends_seen;
    bool output_abandoned; /* asked to stop again while only output was left */
    struct rf_error error; /* of the launcher's own; code 0: none */
    int exec_status;       /* 126 or 127, where the program cannot be executed */
};

static int64_t monotonic_ns(void) {
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* --- what the launcher itself has to say --- */

/* A line that a worker has not ended yet must not get ours behind it. */
static void end_line(struct run *run) {
    struct sink *out = &run->sinks[0], *err = &run->sinks[1];

    if (err->midline || (out->midline && out->terminal && err->terminal)) {
        sink_put(err, "\n", 1);
    }
    out->midline &= !err->terminal;
}

static void say_line(struct run *run, const char *begin, const char *text) {
    struct sink *sink = &run->sinks[1];

    end_line(run);
    sink_put(sink, begin, strlen(begin));
    sink_put(sink, text, strlen(text));
    sink_put(sink, "\n", 1);
    sink_flush(sink);
}

static void say(struct run *run, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void say(struct run *run, const char *format, ...) {
    char text[PATH_MAX + 256];
    va_list arguments;

    if (run->options.quiet || run->options.json) {
        return;
    }
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    say_line(run, "ringfold: ", text);
}

/* Into events.jsonl; with --json on the screen too. */
static void note_event(struct run *run, const char *name, json_t *event) {
    char *line = run_folder_event(&run->folder, name, event);

    if (line && run->options.json) {
        say_line(run, "", line);
    }
    free(line);
}

static const char *plural(int count) {
    return count == 1 ? "" : "s";
}

static void say_start(struct run *run) {
    const struct run_options *options = &run->options;
    char notes[512] = "";
    size_t at = 0;

    say(run, "%d worker%s on this host, run folder %s", options->workers, plural(options->workers),
        run->folder.shown);
    for (int i = 0; i < options->note_count && at < sizeof notes; i++) {
        at += (size_t)snprintf(notes + at, sizeof notes - at, "%s%s", i ? ", " : "",
                               options->notes[i]);
    }
    if (at) {
        say(run, "without effect here: %s", notes);
    }
    if (options->verbose) {
        say(run, "job %s, store %s, %d thread%s each", options->job, run->store_uri,
            run_env_threads(options), plural(run_env_threads(options)));
        say(run,
            "detect %d ms, start timeout %d ms, grace %d ms; after a failure the others get %d ms "
            "to end",
            options->detect_ms, options->start_timeout_ms, options->grace_ms,
            options->detect_ms + SETTLE_MORE_MS);
    }
}

/* --- phases --- */

static int count_alive(const struct run *run) {
    int count = 0;

    for (int i = 0; i < run->options.workers; i++) {
        count += run->workers[i].state == WORKER_RUNNING;
    }
    return count;
}

static bool all_done(const struct run *run) {
    for (int i = 0; i < run->options.workers; i++) {
        if (run->workers[i].state != WORKER_DONE && run->workers[i].state != WORKER_NONE) {
            return false;
        }
    }
    return true;
}

static void enter_phase(struct run *run, enum phase phase, int64_t now_ns, int64_t wait_ms) {
    int signal = phase == PHASE_ENDING ? SIGTERM : phase == PHASE_KILLING ? SIGKILL : 0;

    run->phase = phase;
    run->deadline_ns = now_ns + wait_ms * NS_PER_MS;
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

    worker->order = ++run->ends_seen;
    worker->ended_ns = now_ns;
    worker->drain_deadline_ns = now_ns + (int64_t)DRAIN_MS * NS_PER_MS;
    note_event(run, "exit",
               json_pack("{s:i, s:i, s:i, s:i}", "rank", worker->rank, "pid", (int)worker->pid,
                         "exit_code", run_worker_exit_code(worker), "signal", worker->signal));
    if (options->verbose) {
        say(run, "worker %d (process %d) ended: %s %d", worker->rank, (int)worker->pid,
            worker->signal ? "signal" : "exit status",
            worker->signal ? worker->signal : worker->status);
    }
    if (!run_worker_ended_well(worker) && run->phase == PHASE_RUNNING) {
        enter_phase(run, PHASE_SETTLING, now_ns, options->detect_ms + SETTLE_MORE_MS);
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
    alive = count_alive(run);
    run->stop_requests++;
    note_event(run, "stop",
               json_pack("{s:s+, s:i}", "signal", "SIG", name ? name : "?", "request",
                         run->stop_requests));
    if (all_done(run)) {
        run->output_abandoned = true;
    } else if (run->stop_requests == 1) {
        say(run, "stopping %d worker%s: finish the step, save (again: now; 3rd: kill)", alive,
            plural(alive));
        enter_phase(run, PHASE_ENDING, now_ns, run->options.grace_ms);
    } else if (run->stop_requests == 2 && run->phase != PHASE_KILLING) {
        say(run, "stopping now: %d worker%s left (again: kill)", alive, plural(alive));
        enter_phase(run, PHASE_ENDING, now_ns, HURRY_MS);
    } else {
        say(run, "killing %d worker%s", alive, plural(alive));
        enter_phase(run, PHASE_KILLING, now_ns, KILLED_MS);
    }
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
        say(run, "a worker failed: stopping the %d that still run%s", alive, alive == 1 ? "s" : "");
        enter_phase(run, PHASE_ENDING, now_ns, run->options.grace_ms);
        return true;
    case PHASE_ENDING:
        format_duration(time,
                        run->stop_requests > 1 ? HURRY_MS / 1e3 : run->options.grace_ms / 1e3);
        say(run, "%d worker%s did not stop within %s: killing", alive, plural(alive), time);
        enter_phase(run, PHASE_KILLING, now_ns, KILLED_MS);
        return true;
    case PHASE_KILLING:
        if (!run->error.code) {
            report_fail(&run->error, RF_EWORKER, 0, "%d worker%s cannot be killed", alive,
                        plural(alive));
            snprintf(run->error.why, sizeof run->error.why,
                     "likely: blocked in the kernel, on a disk or device that does not answer");
        }
        return false;
    case PHASE_RUNNING:
        break;
    }
    return true;
}

/* --- the end of a worker --- */

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
        run_worker_reap(worker, &run->guard);
    }
}

/* --- the loop --- */

static int64_t next_deadline(const struct run *run) {
    int64_t least = run->phase == PHASE_RUNNING ? INT64_MAX : run->deadline_ns;

    for (int i = 0; i < run->options.workers; i++) {
        const struct run_worker *worker = &run->workers[i];
        bool draining = worker->state == WORKER_DRAINING || worker->state == WORKER_KILLED;
        if (draining && worker->drain_deadline_ns < least && !worker_blocked(worker)) {
            least = worker->drain_deadline_ns;
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
        enter_phase(run, PHASE_ENDING, now_ns, run->options.grace_ms);
    }
}

/* Fills `polls`; the worker's streams are at POLL_FIXED + 2 x rank and the next. A stream whose
 * sink is full waits. */
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
    }
    return count;
}

static void read_streams(struct run *run, const struct pollfd *polls) {
    for (int i = 0; i < run->options.workers; i++) {
        struct stream *streams[] = {&run->workers[i].out, &run->workers[i].err};
        for (int k = 0; k < 2; k++) {
            struct stream *stream = streams[k];
            if (polls[2 * i + k].revents && stream->fd >= 0 && sink_has_room(stream->sink)) {
                stream_read(stream);
                sink_flush(stream->sink);
            }
        }
    }
}

static void run_loop(struct run *run) {
    static struct pollfd polls[POLL_FIXED + 2 * RF_MAX_LOCAL_RANKS];

    while (!all_done(run) || (!run->output_abandoned &&
                              (sink_pending(&run->sinks[0]) || sink_pending(&run->sinks[1])))) {
        nfds_t count = prepare_polls(run, polls);
        int ready = poll(polls, count, poll_timeout_ms(run, monotonic_ns()));
        int64_t now_ns = monotonic_ns();
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
        if (!advance_phase(run, now_ns)) {
            break;
        }
    }
}

/* --- before and after --- */

/* Where the caller closed one of them, no descriptor of ours may take its number. */
static int occupy_standard_streams(void) {
    int fd;

    do {
        fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    } while (fd >= 0 && fd <= 2);
    if (fd >= 0) {
        close(fd);
    }
    return fd < 0 ? errno : 0;
}

static int set_up_signals(struct run *run, struct rf_error *err) {
    static const int stopping[] = {SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
    struct sigaction hangup;
    sigset_t watched;

    sigemptyset(&watched);
    sigaddset(&watched, SIGCHLD);
    for (size_t i = 0; i < sizeof stopping / sizeof stopping[0]; i++) {
        sigaddset(&watched, stopping[i]);
    }
    if (!sigaction(SIGHUP, NULL, &hangup) && hangup.sa_handler != SIG_IGN) { /* else: nohup */
        sigaddset(&watched, SIGHUP);
    }
    signal(SIGPIPE, SIG_IGN);
    signal(SIGCHLD, SIG_DFL); /* ignored, it would leave nothing to wait for */
    sigprocmask(SIG_BLOCK, &watched, &run->launch.signals);
    run->signal_fd = signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK);
    if (run->signal_fd < 0) {
        return report_fail(err, RF_EIO, errno, "cannot watch for signals");
    }
    return 0;
}

/* Two pipes and two logs for each worker may be more than the usual 1024. */
static void raise_open_files(struct run *run) {
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit)) {
        limit = (struct rlimit){RLIM_INFINITY, RLIM_INFINITY};
    }
    run->launch.open_files = limit;
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit)) {
        return; /* opening will say so, if it matters */
    }
}

static int host_store(struct run *run, struct rf_error *err) {
    struct rf_store_server_options options = {
        .bind = "127.0.0.1:0", .key = run->key.key, .key_bytes = run->key.key_bytes};
    const char *given = run->options.values[RUN_STORE].text;

    if (given[0]) {
        snprintf(run->store_uri, sizeof run->store_uri, "%s", given);
        return 0;
    }
    int rc = rf_store_server_create(&options, &run->store, err);
    if (!rc) {
        snprintf(run->store_uri, sizeof run->store_uri, "tcp://127.0.0.1:%d",
                 rf_store_server_port(run->store));
    }
    return rc;
}

static int set_up_streams(struct run *run, struct run_worker *worker, struct rf_error *err) {
    const struct run_options *options = &run->options;
    struct stream *streams[] = {&worker->out, &worker->err};
    int width = snprintf(NULL, 0, "%d", options->workers - 1);

    for (int i = 0; i < 2; i++) {
        struct stream *stream = streams[i];
        stream->sink = &run->sinks[i];
        stream->rank = worker->rank;
        stream->rank_width = options->prefix ? width : 0;
        stream->raw = options->workers == 1;
        stream->shown = options->shown[worker->rank];
        stream->log_fd = run_folder_open_log(&run->folder, worker->rank, i ? "err" : "out", err);
        if (stream->log_fd < 0) {
            return stream->log_fd;
        }
    }
    return 0;
}

static void explain_exec(struct run *run, int exec_errno, struct rf_error *err) {
    const char *program = run->options.program[0];
    const char *dot = strrchr(program, '.');

    run->exec_status = exec_errno == ENOENT ? STATUS_NOT_FOUND : STATUS_NOT_EXECUTABLE;
    if (exec_errno == ENOENT && strchr(program, '/') && !access(program, F_OK)) {
        snprintf(err->why, sizeof err->why,
                 "likely: the interpreter in its first line does not exist");
    } else if (exec_errno == ENOENT && !strchr(program, '/')) {
        snprintf(err->why, sizeof err->why, "certain: it is in no folder of PATH");
    }
    if (dot && !strcmp(dot, ".py")) {
        snprintf(err->next, sizeof err->next, "ringfold run ... -- python3 %.200s", program);
    } else if (exec_errno == EACCES) {
        snprintf(err->next, sizeof err->next, "chmod +x %.200s", program);
    } else {
        snprintf(err->next, sizeof err->next, "check the spelling and the path of the program");
    }
}

static int start_worker(struct run *run, struct run_worker *worker, struct rf_error *err) {
    cpu_set_t cores;
    int exec_errno = 0;
    char **environment = NULL;

    int key_fd = run_key_descriptor(&run->key, err);
    if (key_fd < 0) {
        return key_fd;
    }
    int rc = set_up_streams(run, worker, err);
    if (rc) {
        goto out;
    }
    environment = run_env_create(&run->env, worker->rank, key_fd);
    if (!environment) {
        rc = report_fail(err, RF_ENOMEM, 0, "no memory for worker %d's environment", worker->rank);
        goto out;
    }
    run_env_cores(&run->options, worker->rank, &cores);
    worker->started_ns = monotonic_ns();
    rc = run_worker_start(worker, &run->launch, environment, key_fd,
                          run->options.bind == RUN_BIND_CORE ? &cores : NULL, &exec_errno, err);
    if (exec_errno) {
        explain_exec(run, exec_errno, err);
    }
    if (!rc && run->options.verbose) {
        say(run, "worker %d is process %d", worker->rank, (int)worker->pid);
    }
out:
    run_env_free(environment);
    close(key_fd);
    return rc;
}

static void start_workers(struct run *run) {
    json_t *pids = json_array();

    for (int i = 0; i < run->options.workers && !run->error.code; i++) {
        struct rf_error err;
        if (start_worker(run, &run->workers[i], &err)) {
            run->error = err;
            enter_phase(run, PHASE_KILLING, monotonic_ns(), KILLED_MS);
        }
        json_array_append_new(pids, json_integer(run->workers[i].pid));
    }
    note_event(run, "start",
               json_pack("{s:s, s:i, s:s, s:o}", "job", run->options.job, "workers",
                         run->options.workers, "store", run->store_uri, "pids", pids));
}

/* The program to execute: this very binary where the bare name of it was given. */
static void set_up_launch(struct run *run) {
    run->launch.argv = run->options.program;
    run->launch.path = run->options.program[0];
    run->launch.guard = &run->guard;
    if (!strcmp(run->launch.path, "ringfold")) {
        ssize_t length = readlink("/proc/self/exe", run->own_path, sizeof run->own_path - 1);
        run->launch.path = "/proc/self/exe";
        if (length > 0 && !access(run->own_path, X_OK)) {
            run->launch.path = run->own_path;
        }
    }
    run->env = (struct run_env){.options = &run->options,
                                .store_uri = run->store_uri,
                                .run_dir = run->folder.absolute,
                                .master_port = run_env_free_port()};
}

static int set_up(struct run *run, struct rf_error *err) {
    int rc;

    run->workers = calloc((size_t)run->options.workers, sizeof *run->workers);
    for (int i = 0; run->workers && i < run->options.workers; i++) {
        struct run_worker *worker = &run->workers[i];
        worker->rank = i;
        worker->out.fd = worker->err.fd = worker->out.log_fd = worker->err.log_fd = -1;
        worker->out.sink = &run->sinks[0];
        worker->err.sink = &run->sinks[1];
    }
    if (!run->workers || sink_open(&run->sinks[0], 1, report_colour(stdout)) ||
        sink_open(&run->sinks[1], 2, report_colour(stderr))) {
        return report_fail(err, RF_ENOMEM, 0, "no memory for %d workers", run->options.workers);
    }
    raise_open_files(run);
    run_memory_read(&run->memory_before);
    (void)((rc = set_up_signals(run, err)) ||
           (rc = run_key_read(&run->key, run->options.values[RUN_KEY_FILE].text, err)) ||
           (rc = run_folder_create(&run->folder, &run->options, err)) ||
           (rc = host_store(run, err)) ||
           (rc = run_folder_describe(&run->folder, &run->options, run->store_uri, err)) ||
           (rc = run_guard_start(&run->guard, err)));
    return rc;
}

static void tear_down(struct run *run) {
    for (int i = 0; run->workers && i < run->options.workers; i++) {
        stream_close(&run->workers[i].out);
        stream_close(&run->workers[i].err);
    }
    run_guard_stop(&run->guard);
    rf_store_server_destroy(run->store);
    run_folder_close(&run->folder);
    explicit_bzero(&run->key, sizeof run->key);
    sink_close(&run->sinks[0]);
    sink_close(&run->sinks[1]);
    free(run->workers);
    if (run->signal_fd >= 0) {
        close(run->signal_fd);
    }
}

/* Where the run ended without a failure: what the workers' statuses come to. */
static int status_without_failure(const struct run *run) {
    int status = run->stop_requests ? STATUS_STOPPED : 0;

    for (int i = 0; i < run->options.workers; i++) {
        const struct run_worker *worker = &run->workers[i];
        if (!run_worker_ended_well(worker)) {
            return run_worker_exit_code(worker);
        }
        status = worker->status ? STATUS_STOPPED : status;
    }
    return status;
}

static void say_lost_output(struct run *run) {
    for (int i = 0; i < run->options.workers; i++) {
        const struct run_worker *worker = &run->workers[i];
        int reason = worker->out.log_errno ? worker->out.log_errno : worker->err.log_errno;
        if (reason) {
            fprintf(stderr, "ringfold: warning: the logs of worker %d in %s are not complete: %s\n",
                    i, run->folder.shown, strerror(reason));
            return;
        }
    }
    if (run->folder.write_failed) {
        fprintf(stderr, "ringfold: warning: not all could be written into %s\n", run->folder.shown);
    }
}

/* The last word: one report where something failed, one line where nothing did. */
static int conclude(struct run *run) {
    struct run_report report = {.options = &run->options,
                                .folder = &run->folder,
                                .workers = run->workers,
                                .memory_before = run->memory_before};
    const struct run_worker *culprit = run_report_culprit(&report);
    char time[FORMAT_MAX];
    int status = status_without_failure(run);

    format_duration(time, (double)(monotonic_ns() - run->started_ns) / 1e9);
    end_line(run);
    sink_flush(&run->sinks[1]);
    if (run->error.code) {
        status = run->exec_status ? run->exec_status : exit_status(run->error.code);
        run_report_launcher(&report, &run->error);
    } else if (culprit) {
        status = run_worker_exit_code(culprit);
        run_report_worker(&report, culprit);
    } else if (run->stop_requests && status == STATUS_STOPPED) {
        say(run, "stopped on request after %s, logs in %s/logs", time, run->folder.shown);
    } else if (run->stop_requests) {
        say(run, "stopped on request after %s, but not every worker could save", time);
    } else if (run->options.verbose) {
        say(run, "all workers ended well after %s", time);
    }
    sink_flush(&run->sinks[1]);
    char *line = run_folder_event(&run->folder, "end", json_pack("{s:i}", "exit_code", status));
    if (line && run->options.json) {
        fprintf(stderr, "%s\n", line);
    }
    free(line);
    say_lost_output(run);
    return status;
}

static void dry_run(const struct run *run) {
    const struct run_options *options = &run->options;
    char **environment = run_env_create(&run->env, 0, 3);

    printf("workers     %d on this host, %d core%s, %d thread%s each\n", options->workers,
           options->cores, plural(options->cores), run_env_threads(options),
           plural(run_env_threads(options)));
    printf("job         %s\n", options->job);
    printf("store       %s\n", run->store_uri);
    printf("run folder  %s\n", run->env.run_dir);
    printf("program    ");
    for (char **word = options->program; *word; word++) {
        printf(" %s", *word);
    }
    printf("\nworker 0 of %d gets\n", options->workers);
    for (char **variable = environment; variable && *variable; variable++) {
        if (!strncmp(*variable, "RINGFOLD_", 9) || strstr(*variable, "RANK=") == *variable ||
            !strncmp(*variable, "WORLD_SIZE=", 11) || !strncmp(*variable, "LOCAL_", 6) ||
            !strncmp(*variable, "MASTER_", 7) || !strncmp(*variable, "OMP_NUM_", 8)) {
            printf("  %s\n", *variable);
        }
    }
    run_env_free(environment);
}

static void prepare_dry_run(struct run *run) {
    const char *store = run->options.values[RUN_STORE].text;
    const char *folder = run->options.values[RUN_RUN_DIR].text;
    char own[RUN_NAME_MAX + 16];

    snprintf(own, sizeof own, "runs/%s-TIME", run->options.name);
    snprintf(run->store_uri, sizeof run->store_uri, "%s",
             store[0] ? store : "tcp://127.0.0.1:PORT");
    snprintf(run->folder.absolute, sizeof run->folder.absolute, "%s", folder[0] ? folder : own);
    set_up_launch(run);
    dry_run(run);
}

int cmd_run(int argc, char **argv) {
    static struct run run = {
        .signal_fd = -1, .guard.fd = -1, .folder.fd = -1, .folder.events_fd = -1};
    struct rf_error err;

    run.started_ns = monotonic_ns();
    int status = run_options_read(&run.options, argc, argv);
    if (status) {
        return status;
    }
    if (run.options.explain) {
        run_options_explain(&run.options);
    }
    if (run.options.dry_run) {
        prepare_dry_run(&run);
    }
    if (run.options.explain || run.options.dry_run) {
        return 0;
    }
    if (occupy_standard_streams()) {
        return EX_OSERR;
    }
    int rc = set_up(&run, &err);
    if (rc) {
        report_error(&err);
        status = exit_status(rc);
    } else {
        set_up_launch(&run);
        say_start(&run);
        start_workers(&run);
        run_loop(&run);
        status = conclude(&run);
    }
    tear_down(&run);
    return status;
}
