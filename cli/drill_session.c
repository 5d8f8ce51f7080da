/* One run of a rehearsal, from the store's start to the launcher's end. See drill_session.h.
 *
 *     STARTING    until the first commit
 *     FAULTING    faults strike, each when it is due and enough healthy workers are left
 *     SETTLING    no new ones; until all are back, together, and commit
 *     STOPPING    the launcher is asked to stop
 *
 * It wakes up often and looks at everything: the files that the launchers write, the processes, the
 * clock. */
#include "drill_session.h"

#include "format.h"
#include "report.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { MAX_COMMAND = 4096, STORE_START_S = 10 };

static const double TICK_S = 0.01;
static const double SORT_S = 0.1; /* events wait so long for earlier ones */
static const double GRACE_S = 35; /* a launcher gets its workers' grace and a little more */
static const double HURRY_S = 5;

static double clock_s(clockid_t clock) {
    struct timespec now;

    clock_gettime(clock, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void look_at_clocks(struct drill_session *session) {
    session->now = clock_s(CLOCK_MONOTONIC);
    session->wall = clock_s(CLOCK_REALTIME);
}

void drill_trouble(struct drill_session *session, const char *format, ...) {
    va_list arguments;

    if (session->trouble[0]) {
        return;
    }
    va_start(arguments, format);
    vsnprintf(session->trouble, sizeof session->trouble, format, arguments);
    va_end(arguments);
}

/* The store. */

static int make_key(struct drill_session *session, struct rf_error *err) {
    int rc = 0;

    snprintf(session->key_file, sizeof session->key_file, "%s/job.key", session->folder);
    if (getrandom(session->key, sizeof session->key, 0) != (ssize_t)sizeof session->key) {
        return report_fail(err, RF_EIO, errno, "no random numbers are to be had");
    }
    int fd = open(session->key_file, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, session->key, sizeof session->key) != (ssize_t)sizeof session->key) {
        rc = report_fail(err, RF_EIO, errno, "cannot write '%s'", session->key_file);
    }
    if (fd >= 0) {
        close(fd);
    }
    return rc;
}

int drill_store_start(struct drill_session *session, struct rf_error *err) {
    char name[] = "ringfold", command[] = "store", address[32], journal[PATH_MAX], errors[PATH_MAX];
    char bind_flag[] = "--bind", journal_flag[] = "--journal", key_flag[] = "--key-file",
         json_flag[] = "--json";
    char *argv[] = {name,    command,  bind_flag,         address,   journal_flag,
                    journal, key_flag, session->key_file, json_flag, NULL};
    struct drill_start start = {.path = "/proc/self/exe",
                                .argv = argv,
                                .err_path = errors,
                                .out_pipe = &session->store_pipe,
                                .signals = session->signals};

    snprintf(address, sizeof address, "127.0.0.1:%d", session->port);
    snprintf(journal, sizeof journal, "%s/store.journal", session->folder);
    snprintf(errors, sizeof errors, "%s/store.err", session->folder);
    if (session->store_pipe >= 0) {
        close(session->store_pipe);
        session->store_pipe = -1;
    }
    session->store_held = 0;
    return drill_child_start(&session->store, &start, err);
}

bool drill_store_listens(struct drill_session *session) {
    size_t room = sizeof session->store_line - session->store_held;
    ssize_t count = read(session->store_pipe, session->store_line + session->store_held, room);

    session->store_held += count > 0 ? (size_t)count : 0;
    const char *end = memchr(session->store_line, '\n', session->store_held);
    if (!end) {
        return false;
    }
    json_t *line = json_loadb(session->store_line, (size_t)(end - session->store_line), 0, NULL);
    uint64_t port = 0;
    bool found = drill_json_whole(line, "port", 65535, &port) && port;
    json_decref(line);
    session->port = found ? (int)port : session->port;
    return found;
}

static int wait_for_store(struct drill_session *session, struct rf_error *err) {
    double deadline = clock_s(CLOCK_MONOTONIC) + STORE_START_S;

    while (!drill_store_listens(session)) {
        struct pollfd ready = {.fd = session->store_pipe, .events = POLLIN};
        if (!drill_child_runs(&session->store) || clock_s(CLOCK_MONOTONIC) > deadline) {
            report_fail(err, RF_ESTORE, 0, "the rehearsal's store does not start");
            snprintf(err->where, sizeof err->where, "%.200s/store.err", session->folder);
            return RF_ESTORE;
        }
        poll(&ready, 1, 50);
    }
    return 0;
}

/* The launcher. */

struct words {
    char *argv[MAX_COMMAND];
    size_t count;
    char text[8][64];
    size_t texts;
};

static void add_word(struct words *words, const char *word) {
    if (words->count + 1 < MAX_COMMAND) {
        words->argv[words->count++] = (char *)(uintptr_t)word; /* exec does not write to them */
    }
}

static void add_flag(struct words *words, const char *flag, const char *value) {
    add_word(words, flag);
    add_word(words, value);
}

/* A value that is made up here. */
static void add_number(struct words *words, const char *flag, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void add_number(struct words *words, const char *flag, const char *format, ...) {
    char *text = words->text[words->texts++ % 8];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text, sizeof words->text[0], format, arguments);
    va_end(arguments);
    add_flag(words, flag, text);
}

int drill_launch(struct drill_session *session, int joiner, struct drill_child *child,
                 struct rf_error *err) {
    static struct words words;
    const struct drill_options *options = session->options;
    char folder[PATH_MAX], out[PATH_MAX], errors[PATH_MAX], name[24];

    words = (struct words){0};
    snprintf(name, sizeof name, joiner ? "join-%d" : "run", joiner);
    snprintf(folder, sizeof folder, "%s/%s", session->folder, name);
    snprintf(out, sizeof out, "%s/%s.out", session->folder, name);
    snprintf(errors, sizeof errors, "%s/%s.err", session->folder, name);
    add_word(&words, options->launcher ? options->launcher : "ringfold");
    add_word(&words, "run");
    if (joiner) {
        add_number(&words, "--join", "127.0.0.1:%d", session->port);
        add_flag(&words, "-n", "1");
    } else {
        add_number(&words, "--store", "tcp://127.0.0.1:%d", session->port);
        add_number(&words, "--workers", "%d:%d", options->least, options->most);
        if (options->workers < options->most) {
            add_number(&words, "--nproc-per-node", "%d", options->workers);
        }
        add_flag(&words, "--max-restarts", "100000");
    }
    add_flag(&words, "--job", "drill");
    add_flag(&words, "--key-file", session->key_file);
    add_word(&words, "--faults");
    add_word(&words, "--commits");
    if (drill_options_has(options, DRILL_CUT)) {
        add_flag(&words, "--transport", "tcp");
    }
    add_number(&words, "--detect", "%dms", options->detect_ms);
    add_number(&words, "--start-timeout", "%dms", options->start_timeout_ms);
    add_flag(&words, "--run-dir", folder);
    add_word(&words, "--");
    for (char **word = options->command; *word; word++) {
        add_word(&words, *word);
    }
    if (words.count + 1 >= MAX_COMMAND) {
        return report_fail(err, RF_ELIMIT, 0, "the command has more than %d words", MAX_COMMAND);
    }
    struct drill_start start = {.path = options->launcher ? options->launcher : "/proc/self/exe",
                                .argv = words.argv,
                                .out_path = out,
                                .err_path = errors,
                                .signals = session->signals};
    int rc = drill_feed_follow(&session->feed, folder, joiner);
    if (rc) {
        return report_fail(err, rc, 0, "cannot follow '%s'", folder);
    }
    return drill_child_start(child, &start, err);
}

/* Waiting and deciding. */

static int take_event(void *context, const struct drill_event *event) {
    struct drill_session *session = context;

    drill_strike_joined(session, event);
    return drill_score_event(session->score, event);
}

static void read_events(struct drill_session *session, double before) {
    if (drill_feed_read(&session->feed) ||
        drill_feed_take(&session->feed, before, take_event, session)) {
        drill_trouble(session, "no memory to follow the workers");
    }
}

static void begin_stopping(struct drill_session *session) {
    if (session->phase == DRILL_STOPPING) {
        return;
    }
    session->phase = DRILL_STOPPING;
    session->score->ending = session->wall;
    session->deadline = session->now + GRACE_S;
    session->asks = 1;
    drill_strike_end(session);
    drill_child_signal(&session->launcher, SIGTERM);
}

/* Once more, and harder. */
static void press(struct drill_session *session) {
    session->asks++;
    session->deadline = session->now + HURRY_S;
    drill_child_signal(&session->launcher, session->asks > 2 ? SIGKILL : SIGTERM);
}

static void read_signals(struct drill_session *session) {
    struct signalfd_siginfo info;

    while (read(session->signal_fd, &info, sizeof info) == (ssize_t)sizeof info) {
        session->stopped = true;
        if (session->phase == DRILL_STOPPING) {
            press(session);
        } else {
            fprintf(stderr, "drill: stopping (again: now; 3rd: kill)\n");
            begin_stopping(session);
        }
    }
}

static void begin_settling(struct drill_session *session, bool time_is_over) {
    session->phase = DRILL_SETTLING;
    if (time_is_over) {
        drill_strike_hurry(session);
    }
}

/* All faults are over; then each worker has to commit once more, together with the others. */
static void settle(struct drill_session *session) {
    int active = drill_strike_active(session), culprit = -1;
    char time[FORMAT_MAX];

    if (!active && !session->settle_unit_known) {
        session->settle_unit = session->score->high + 1;
        session->settle_unit_known = true;
        session->deadline = session->now + session->options->settle_ms / 1e3;
    }
    if (session->settle_unit_known &&
        drill_score_is_settled(session->score, session->settle_unit, &culprit)) {
        session->settled = true;
        begin_stopping(session);
        return;
    }
    if (active || session->now < session->deadline) {
        return; /* those that are active have deadlines of their own */
    }
    format_duration(time, session->options->settle_ms / 1e3);
    if (culprit >= 0) {
        drill_trouble(session, "worker %d was not with the others %s after the last fault", culprit,
                      time);
    } else {
        drill_trouble(session, "the workers were not together again %s after the last fault", time);
    }
    begin_stopping(session);
}

static void advance(struct drill_session *session) {
    char time[FORMAT_MAX];

    switch (session->phase) {
    case DRILL_STARTING:
        if (session->score->any_commit) {
            session->phase = DRILL_FAULTING;
            session->began = true;
            session->began_at = session->now;
        } else if (session->now > session->deadline) {
            format_duration(time, session->options->start_timeout_ms / 1e3);
            drill_trouble(session, "nothing was committed within %s", time);
            begin_stopping(session);
        }
        break;
    case DRILL_FAULTING: {
        bool over = session->limit_s > 0 && session->now - session->began_at >= session->limit_s;
        if (over && !session->plan) {
            begin_stopping(session);
        } else if (over || (session->plan && !drill_strike_due(session))) {
            begin_settling(session, over);
        }
        break;
    }
    case DRILL_SETTLING:
        settle(session);
        break;
    case DRILL_STOPPING:
        if (session->now > session->deadline) {
            press(session);
        }
        break;
    case DRILL_OVER:
        break;
    }
    if (session->trouble[0] && session->phase < DRILL_STOPPING) {
        begin_stopping(session);
    }
}

/* The launcher has ended: everything that it wrote is there. */
static void finish(struct drill_session *session) {
    session->ended_by_itself = session->phase != DRILL_STOPPING;
    session->status = session->launcher.status;
    if (!session->score->ending) {
        session->score->ending = session->wall;
    }
    read_events(session, INFINITY);
    session->began |= session->score->any_commit;
    drill_strike_step(session);
    session->phase = DRILL_OVER;
}

static void look_after_store(struct drill_session *session) {
    if (!session->store_down && !drill_child_runs(&session->store) &&
        session->phase != DRILL_STOPPING) {
        drill_trouble(session, "the store ended by itself, with status %d", session->store.status);
    }
}

static void loop(struct drill_session *session) {
    while (session->phase != DRILL_OVER) {
        double next = drill_strike_next(session, session->now + TICK_S);
        struct pollfd ready = {.fd = session->signal_fd, .events = POLLIN};
        int64_t wait_ns = (int64_t)((next - clock_s(CLOCK_MONOTONIC)) * 1e9);
        struct timespec wait = {.tv_nsec = wait_ns < 0 ? 0 : wait_ns};
        if (wait.tv_nsec > (long)(TICK_S * 1e9)) {
            wait.tv_nsec = (long)(TICK_S * 1e9);
        }
        ppoll(&ready, 1, &wait, NULL);
        look_at_clocks(session);
        bool runs = drill_child_runs(&session->launcher);
        if (!runs) {
            finish(session);
            break;
        }
        read_events(session, session->wall - SORT_S);
        read_signals(session);
        look_after_store(session);
        drill_strike_step(session);
        advance(session);
    }
}

static void tear_down(struct drill_session *session) {
    drill_strike_end(session);
    for (int i = 0; i < DRILL_MAX_ACTIVE; i++) {
        drill_child_kill(&session->active[i].joiner);
    }
    drill_child_kill(&session->launcher);
    drill_child_signal(&session->store, SIGTERM);
    drill_child_kill(&session->store);
    if (session->store_pipe >= 0) {
        close(session->store_pipe);
    }
    session->bad_lines = session->feed.bad_lines + session->score->ignored;
    drill_feed_close(&session->feed);
    explicit_bzero(session->key, sizeof session->key);
}

int drill_session_run(struct drill_session *session, struct rf_error *err) {
    int rc = 0;

    session->store_pipe = -1;
    session->phase = DRILL_STARTING;
    if (mkdir(session->folder, 0777) && errno != EEXIST) {
        return report_fail(err, RF_EIO, errno, "cannot make the folder '%s'", session->folder);
    }
    (void)((rc = make_key(session, err)) || (rc = drill_store_start(session, err)) ||
           (rc = wait_for_store(session, err)) ||
           (rc = drill_launch(session, 0, &session->launcher, err)));
    if (!rc) {
        look_at_clocks(session);
        session->deadline = session->now + session->options->start_timeout_ms / 1e3;
        loop(session);
    }
    tear_down(session);
    return rc;
}
