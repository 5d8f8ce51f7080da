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

static void say_start(struct run *run) {
    const struct run_options *options = &run->options;
    char notes[512] = "";
    size_t at = 0;

    run_say(run, "%d worker%s on this host, run folder %s", options->workers,
            run_plural(options->workers), run->folder.shown);
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
    worker->started_ns = run_now_ns();
    rc = run_worker_start(worker, &run->launch, environment, key_fd,
                          run->options.bind == RUN_BIND_CORE ? &cores : NULL, &exec_errno, err);
    if (exec_errno) {
        explain_exec(run, exec_errno, err);
    }
    if (!rc && run->options.verbose) {
        run_say(run, "worker %d is process %d", worker->rank, (int)worker->pid);
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
            run_enter_phase(run, PHASE_KILLING, run_now_ns(), KILLED_MS);
        }
        json_array_append_new(pids, json_integer(run->workers[i].pid));
    }
    run_note_event(run, "start",
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
    char **environment = run_env_create(&run->env, 0, 3);

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
    static struct run run = {
        .signal_fd = -1, .guard.fd = -1, .folder.fd = -1, .folder.events_fd = -1};
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
