/* ringfold run: starts workers on this host, hosts the store through which they meet, shows what
 * they write, and ends them together.
 *
 * This file sets everything up, starts the workers, and tells in the end how it went. */
#include "run.h"
#include "commands.h"
#include "format.h"
#include "report.h"
#include "run_report.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sysexits.h>
#include <unistd.h>

enum { STATUS_STOPPED = 75, STATUS_NOT_FOUND = 127, STATUS_NOT_EXECUTABLE = 126 };

/* The host that others reach the hosted store by. */
static void store_host(const struct run *run, char *out, size_t room) {
    const char *text = run->options.values[RUN_STORE_BIND].text;
    const char *colon = strrchr(text, ':');

    snprintf(out, room, "%.*s", colon ? (int)(colon - text) : 0, text);
    if (!out[0] || !strcmp(out, "0.0.0.0") || !strcmp(out, "[::]")) {
        gethostname(out, room - 1);
        out[room - 1] = '\0';
    }
}

static void say_how_to_join(struct run *run) {
    const struct run_options *options = &run->options;
    const char *key_file = options->values[RUN_KEY_FILE].text;
    bool is_asked = strcmp(options->values[RUN_STORE_BIND].source, "default") != 0;
    char address[280], host[256];

    if (!options->elastic || options->first_id || (!is_asked && !options->verbose)) {
        return;
    }
    if (!key_file[0]) {
        run_say(run, "others cannot join, for the key is random: --key-file FILE lets them");
        return;
    }
    if (run->store) {
        store_host(run, host, sizeof host);
        snprintf(address, sizeof address, "%s:%d", host, rf_store_server_port(run->store));
    } else {
        const char *uri = run->store_uri;
        snprintf(address, sizeof address, "%s", strncmp(uri, "tcp://", 6) ? uri : uri + 6);
    }
    run_say(run, "others join by: ringfold run --join %s --job %s --key-file %s -n N -- %s ...",
            address, options->job, key_file, options->program[0]);
}

static void say_start(struct run *run) {
    const struct run_options *options = &run->options;
    char notes[512] = "";
    size_t at = 0;

    if (options->values[RUN_JOIN].text[0]) {
        run_say(run, "%d worker%s on this host, from id %d, join job %s at %s, run folder %s",
                options->workers, run_plural(options->workers), options->first_id, options->job,
                options->values[RUN_JOIN].text, run->folder.shown);
    } else {
        run_say(run, "%d worker%s on this host, run folder %s", options->workers,
                run_plural(options->workers), run->folder.shown);
    }
    for (int i = 0; i < options->note_count && at < sizeof notes; i++) {
        at += (size_t)snprintf(notes + at, sizeof notes - at, "%s%s", i ? ", " : "",
                               options->notes[i]);
    }
    if (at) {
        run_say(run, "without effect here: %s", notes);
    }
    if (options->verbose) {
        run_say(run, "job %s, store %s, %d thread%s each", options->job, run->store_uri,
                run_env_threads(options), run_plural(run_env_threads(options)));
        run_say(
            run,
            "detect %d ms, start timeout %d ms, grace %d ms; after a failure the others get %d ms "
            "to end",
            options->detect_ms, options->start_timeout_ms, options->grace_ms,
            options->detect_ms + SETTLE_MORE_MS);
    }
    if (options->verbose && options->elastic) {
        run_say(run, "goes on with %d to %d workers; %d restart%s an hour", options->min_size,
                options->max_size, options->max_restarts, run_plural(options->max_restarts));
    }
    say_how_to_join(run);
}

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

/* Our own workers reach it by the address it is bound to, or, where that is any, by this host's
 * own. */
static int host_store(struct run *run, struct rf_error *err) {
    const struct run_options *options = &run->options;
    const char *given = options->values[RUN_STORE].text, *join = options->values[RUN_JOIN].text;
    const char *bind_to = options->values[RUN_STORE_BIND].text;
    struct rf_store_server_options server = {
        .bind = bind_to, .key = run->key.key, .key_bytes = run->key.key_bytes};
    char host[256];

    if (given[0]) {
        snprintf(run->store_uri, sizeof run->store_uri, "%s", given);
        return 0;
    }
    if (join[0]) {
        snprintf(run->store_uri, sizeof run->store_uri, "tcp://%.240s", join);
        return 0;
    }
    int rc = rf_store_server_create(&server, &run->store, err);
    if (!rc) {
        snprintf(host, sizeof host, "%.*s", (int)(strrchr(bind_to, ':') - bind_to), bind_to);
        if (!host[0] || !strcmp(host, "0.0.0.0")) {
            snprintf(host, sizeof host, "127.0.0.1");
        } else if (!strcmp(host, "[::]")) {
            snprintf(host, sizeof host, "[::1]");
        }
        snprintf(run->store_uri, sizeof run->store_uri, "tcp://%.240s:%d", host,
                 rf_store_server_port(run->store));
    }
    return rc;
}

static int set_up_streams(struct run *run, struct run_worker *worker, struct rf_error *err) {
    const struct run_options *options = &run->options;
    struct stream *streams[] = {&worker->out, &worker->err};
    int width = snprintf(NULL, 0, "%d", options->first_id + options->workers - 1);

    for (int i = 0; i < 2; i++) {
        struct stream *stream = streams[i];
        *stream = (struct stream){.fd = -1,
                                  .log_fd = -1,
                                  .sink = &run->sinks[i],
                                  .rank = worker->id,
                                  .rank_width = options->prefix ? width : 0,
                                  .raw = options->workers == 1,
                                  .shown = options->shown[worker->local]};
        stream->log_fd =
            run_folder_open_log(&run->folder, worker->id, worker->restarts, i ? "err" : "out", err);
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

/* What was left of an earlier start. */
static void reset_worker(struct run_worker *worker) {
    worker->state = WORKER_NONE;
    worker->signal = worker->status = worker->order = 0;
    worker->told = worker->frozen = false;
    worker->has_committed = worker->is_outlived = false;
}

static void note_worker(struct run *run, const struct run_worker *worker) {
    run_note_event(run, "worker",
                   json_pack("{s:i, s:i, s:i}", "id", worker->id, "pid", (int)worker->pid,
                             "restarts", worker->restarts));
}

int run_start_worker(struct run *run, struct run_worker *worker, struct rf_error *err) {
    struct run_env_worker start = {
        .id = worker->id, .local = worker->local, .restarts = worker->restarts, .event_fd = -1};
    cpu_set_t cores;
    int exec_errno = 0;
    char **environment = NULL;

    start.key_fd = run_key_descriptor(&run->key, err);
    if (start.key_fd < 0) {
        return start.key_fd;
    }
    reset_worker(worker);
    int rc = set_up_streams(run, worker, err);
    if (!rc && run->options.elastic) {
        rc = run_pipe_open(&worker->events, &start.event_fd, err);
    }
    if (rc) {
        goto out;
    }
    environment = run_env_create(&run->env, &start);
    if (!environment) {
        rc = report_fail(err, RF_ENOMEM, 0, "no memory for worker %d's environment", worker->id);
        goto out;
    }
    run_env_cores(&run->options, worker->local, &cores);
    worker->started_ns = run_now_ns();
    rc = run_worker_start(worker, &run->launch, environment, start.key_fd, start.event_fd,
                          run->options.bind == RUN_BIND_CORE ? &cores : NULL, &exec_errno, err);
    if (exec_errno) {
        explain_exec(run, exec_errno, err);
    }
    if (!rc && worker->restarts) {
        note_worker(run, worker);
    }
    if (!rc && run->options.verbose) {
        run_say(run, "worker %d is process %d", worker->id, (int)worker->pid);
    }
out:
    run_env_free(environment);
    close(start.key_fd);
    if (start.event_fd >= 0) {
        close(start.event_fd);
    }
    return rc;
}

static void start_workers(struct run *run) {
    json_t *pids = json_array();

    for (int i = 0; i < run->options.workers && !run->error.code; i++) {
        struct rf_error err;
        if (run_start_worker(run, &run->workers[i], &err)) {
            run->error = err;
            run_enter_phase(run, PHASE_KILLING, run_now_ns(), KILLED_MS);
        }
        json_array_append_new(pids, json_integer(run->workers[i].pid));
    }
    run_note_event(run, "start",
                   json_pack("{s:s, s:i, s:s, s:o}", "job", run->options.job, "workers",
                             run->options.workers, "store", run->store_uri, "pids", pids));
    for (int i = 0; i < run->options.workers && !run->error.code; i++) {
        note_worker(run, &run->workers[i]);
    }
    if (!run->error.code) {
        run_publish_start(run);
    }
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
        worker->id = worker->local = i;
        worker->events.fd = -1;
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
           (run->options.values[RUN_JOIN].text[0] && (rc = host_store(run, err))) ||
           (rc = run_join(run, err)) ||
           (rc = run_folder_create(&run->folder, &run->options, err)) ||
           (!run->store_uri[0] && (rc = host_store(run, err))) ||
           (rc = run_folder_describe(&run->folder, &run->options, run->store_uri, err)) ||
           (rc = run_guard_start(&run->guard, err)));
    return rc;
}

static void tear_down(struct run *run) {
    for (int i = 0; run->workers && i < run->options.workers; i++) {
        stream_close(&run->workers[i].out);
        stream_close(&run->workers[i].err);
        run_pipe_close(&run->workers[i].events);
    }
    run_publish_stop(run);
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
        if (worker->is_outlived) {
            continue;
        }
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
                    worker->id, run->folder.shown, strerror(reason));
            return;
        }
    }
    if (run->news.bad_lines && run->options.verbose) {
        fprintf(stderr, "ringfold: %llu lines on the workers' event pipes were no events\n",
                (unsigned long long)run->news.bad_lines);
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
                                .memory_before = run->memory_before,
                                .left_below_min = run->has_ended_below_min,
                                .left = run->left_below_min};
    const struct run_worker *culprit = run_report_culprit(&report);
    char time[FORMAT_MAX];
    int status = status_without_failure(run);

    format_duration(time, (double)(run_now_ns() - run->started_ns) / 1e9);
    run_end_line(run);
    sink_flush(&run->sinks[1]);
    if (run->error.code) {
        status = run->exec_status ? run->exec_status : exit_status(run->error.code);
        run_report_launcher(&report, &run->error);
    } else if (culprit) {
        status = run_worker_exit_code(culprit);
        run_report_worker(&report, culprit);
    } else if (run->stop_requests && status == STATUS_STOPPED) {
        run_say(run, "stopped on request after %s, logs in %s/logs", time, run->folder.shown);
    } else if (run->stop_requests) {
        run_say(run, "stopped on request after %s, but not every worker could save", time);
    } else if (run->options.verbose) {
        run_say(run, "all workers ended well after %s", time);
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
    const struct run_env_worker first = {.key_fd = 3, .event_fd = options->elastic ? 4 : -1};
    char **environment = run_env_create(&run->env, &first);

    printf("workers     %d on this host, %d core%s, %d thread%s each\n", options->workers,
           options->cores, run_plural(options->cores), run_env_threads(options),
           run_plural(run_env_threads(options)));
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
    static struct run run = {.signal_fd = -1,
                             .guard.fd = -1,
                             .folder.fd = -1,
                             .folder.events_fd = -1,
                             .folder.commits_fd = -1};
    struct rf_error err;

    run.started_ns = run_now_ns();
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
