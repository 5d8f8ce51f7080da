/* ringfold drill: a rehearsal of failures on this host.
 *
 * It starts a store, a launcher and through it the workers; lets faults strike them, by a schedule
 * that can be repeated; follows what they tell; and says in the end what the failures cost and
 * whether anything was lost. docs/DRILL.md says how each figure is measured. */
#include "commands.h"
#include "drill_options.h"
#include "drill_report.h"
#include "drill_session.h"
#include "format.h"
#include "report.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { NAME_TRIES = 100, STATUS_FAIL = 1, LAST_LINES_BYTES = 2048 };

struct drill {
    struct drill_options options;
    struct drill_plan plan;
    struct drill_session session, baseline;
    char folder[PATH_MAX - 128];
    FILE *log;
    int signal_fd;
    sigset_t signals;
};

/* The folder. */

static int make_parents(const char *path, struct rf_error *err) {
    char part[PATH_MAX];

    for (size_t i = 1; path[i]; i++) {
        if (path[i] == '/') {
            snprintf(part, sizeof part, "%.*s", (int)i, path);
            if (mkdir(part, 0777) && errno != EEXIST) {
                return report_fail(err, RF_EIO, errno, "cannot make the folder '%s'", part);
            }
        }
    }
    return 0;
}

static int make_named_folder(struct drill *drill, struct rf_error *err) {
    char existing[PATH_MAX];

    if (strlen(drill->options.run_dir) >= sizeof drill->folder || !drill->options.run_dir[0]) {
        return report_fail(err, RF_EIO, ENAMETOOLONG, "run folder '%.64s'", drill->options.run_dir);
    }
    snprintf(drill->folder, sizeof drill->folder, "%s", drill->options.run_dir);
    int rc = make_parents(drill->folder, err);
    if (rc) {
        return rc;
    }
    if (mkdir(drill->folder, 0777) && errno != EEXIST) {
        return report_fail(err, RF_EIO, errno, "cannot make the folder '%s'", drill->folder);
    }
    snprintf(existing, sizeof existing, "%s/drill.jsonl", drill->folder);
    if (!access(existing, F_OK)) {
        report_fail(err, RF_EUSAGE, 0, "the run folder '%s' holds another rehearsal",
                    drill->folder);
        snprintf(err->next, sizeof err->next, "give another --run-dir, or remove that one");
        return RF_EUSAGE;
    }
    return 0;
}

/* runs/drill-TIME, with a number behind it where that is taken. */
static int make_own_folder(struct drill *drill, struct rf_error *err) {
    char base[64];
    time_t now = time(NULL);
    struct tm local;

    localtime_r(&now, &local);
    strftime(base, sizeof base, "runs/drill-%Y%m%d-%H%M%S", &local);
    if (mkdir("runs", 0777) && errno != EEXIST) {
        return report_fail(err, RF_EIO, errno, "cannot make the folder 'runs'");
    }
    for (int i = 1; i <= NAME_TRIES; i++) {
        snprintf(drill->folder, sizeof drill->folder, i == 1 ? "%s" : "%s-%d", base, i);
        if (!mkdir(drill->folder, 0777)) {
            return 0;
        }
        if (errno != EEXIST) {
            break;
        }
    }
    return report_fail(err, RF_EIO, errno, "cannot make the folder '%s'", drill->folder);
}

static json_t *describe(const struct drill *drill) {
    const struct drill_options *options = &drill->options;
    json_t *command = json_array(), *kinds = json_array();

    for (char **word = options->command; *word; word++) {
        json_t *text = json_string(*word);
        json_array_append_new(command, text ? text : json_string("?"));
    }
    for (int i = 0; i < options->kind_count; i++) {
        json_array_append_new(kinds, json_string(drill_kind_name(options->kinds[i])));
    }
    return json_pack("{s:s, s:I, s:i, s:i, s:i, s:f, s:f, s:o, s:o}", "event", "drill", "seed",
                     (json_int_t)options->seed, "workers", options->workers, "min", options->least,
                     "max", options->most, "mtbf", options->mtbf_ms / 1e3, "detect",
                     options->detect_ms / 1e3, "faults", kinds, "command", command);
}

static int open_log(struct drill *drill, struct rf_error *err) {
    char path[PATH_MAX];

    snprintf(path, sizeof path, "%s/drill.jsonl", drill->folder);
    drill->log = fopen(path, "wxe");
    if (!drill->log) {
        return report_fail(err, RF_EIO, errno, "cannot write '%s'", path);
    }
    return 0;
}

/* Setting up. */

static int catch_signals(struct drill *drill, struct rf_error *err) {
    static const int stopping[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};
    sigset_t watched;

    sigemptyset(&watched);
    for (size_t i = 0; i < sizeof stopping / sizeof stopping[0]; i++) {
        sigaddset(&watched, stopping[i]);
    }
    signal(SIGPIPE, SIG_IGN);
    signal(SIGCHLD, SIG_DFL);
    sigprocmask(SIG_BLOCK, &watched, &drill->signals);
    drill->signal_fd = signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK);
    if (drill->signal_fd < 0) {
        return report_fail(err, RF_EIO, errno, "cannot watch for signals");
    }
    return 0;
}

static int set_up_plan(struct drill *drill, struct rf_error *err) {
    struct drill_options *options = &drill->options;
    struct drill_plan *plan = &drill->plan;
    int rc = 0;

    if (options->replay) {
        rc = drill_plan_read(plan, options->replay, err);
        options->kind_count = 0;
        for (size_t i = 0; i < plan->read_count; i++) {
            if (!drill_options_has(options, plan->read[i].kind)) {
                options->kinds[options->kind_count++] = plan->read[i].kind;
            }
        }
        return rc ? rc : drill_options_settle(options, err);
    }
    plan->state = options->seed;
    memcpy(plan->kinds, options->kinds, sizeof plan->kinds);
    plan->kind_count = options->kind_count;
    plan->workers = options->workers;
    plan->mtbf_ms = options->mtbf_ms;
    plan->detect_ms = options->detect_ms;
    return 0;
}

static void say_start(const struct drill *drill) {
    const struct drill_options *options = &drill->options;
    FILE *screen = options->screen;
    char time[FORMAT_MAX], kinds[128] = "";

    for (int i = 0; i < options->kind_count; i++) {
        size_t at = strlen(kinds);
        snprintf(kinds + at, sizeof kinds - at, "%s%s", i ? "," : "",
                 drill_kind_name(options->kinds[i]));
    }
    fprintf(screen, "drill: %d workers (%d:%d), %s", options->workers, options->least,
            options->most, kinds);
    if (options->replay) {
        fprintf(screen, " as in %s", options->replay);
    } else {
        fprintf(screen, " every %s, seed %llu", format_duration(time, options->mtbf_ms / 1e3),
                (unsigned long long)options->seed);
    }
    fprintf(screen, ", run folder %s\n", drill->folder);
    fflush(screen);
}

/* Running. */

static void set_up_session(struct drill *drill, struct drill_session *session) {
    session->options = &drill->options;
    session->signal_fd = drill->signal_fd;
    session->signals = drill->signals;
    session->limit_s = drill->options.limit_ms / 1e3;
}

static int run_session(struct drill_session *session, struct rf_error *err) {
    session->score = malloc(sizeof *session->score);
    if (!session->score) {
        return report_fail(err, RF_ENOMEM, 0, "no memory for the books of a rehearsal");
    }
    drill_score_init(session->score);
    return drill_session_run(session, err);
}

/* The same without faults: for the same time, or where none is set, as long as the faults will
 * take, or the command. */
static int run_baseline(struct drill *drill, double *throughput, struct rf_error *err) {
    const struct drill_options *options = &drill->options;
    struct drill_session *baseline = &drill->baseline;
    char time[FORMAT_MAX];

    set_up_session(drill, baseline);
    if (baseline->limit_s <= 0) {
        baseline->limit_s = options->faults_total * (options->mtbf_ms / 1e3);
    }
    baseline->limit_s *= options->baseline;
    snprintf(baseline->folder, sizeof baseline->folder, "%s/baseline", drill->folder);
    int rc = run_session(baseline, err);
    if (rc) {
        return rc;
    }
    if (baseline->stopped) {
        return report_fail(err, RF_ESTOPPED, 0, "stopped on request during the run without faults");
    }
    *throughput = drill_score_throughput(baseline->score);
    if (baseline->trouble[0] || (baseline->ended_by_itself && baseline->status) ||
        *throughput <= 0) {
        report_fail(err, RF_EWORKER, 0, "the run without faults failed: %s",
                    baseline->trouble[0] ? baseline->trouble
                    : baseline->status   ? "the command ended badly"
                                         : "nothing was committed");
        snprintf(err->where, sizeof err->where, "%.200s/run.err", baseline->folder);
        return RF_EWORKER;
    }
    fprintf(options->screen, "without faults: %.3g units/s in %s\n", *throughput,
            format_duration(time, baseline->score->last_commit - baseline->score->first_commit));
    fflush(options->screen);
    return 0;
}

/* Telling. */

static int write_json(const json_t *object, const char *path, struct rf_error *err) {
    if (!object) {
        return report_fail(err, RF_ENOMEM, 0, "no memory for the result");
    }
    bool to_stdout = !strcmp(path, "-");
    FILE *file = to_stdout ? stdout : fopen(path, "we");
    bool written = file && !json_dumpf(object, file, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) &&
                   fputc('\n', file) != EOF && !fflush(file);
    int reason = written ? 0 : errno;
    if (file && !to_stdout && fclose(file) && written) {
        written = false;
        reason = errno;
    }
    return written ? 0 : report_fail(err, RF_EIO, reason, "cannot write '%s'", path);
}

static int tell(struct drill *drill, const struct drill_result *result, struct rf_error *err) {
    char path[PATH_MAX];
    json_t *object = drill_result_json(result);
    int rc = 0;

    drill_result_print(result);
    snprintf(path, sizeof path, "%s/result.json", drill->folder);
    rc = write_json(object, path, err);
    if (!rc && drill->options.json) {
        rc = write_json(object, drill->options.json, err);
    }
    drill_log(&drill->session, json_pack("{s:s, s:s, s:s}", "event", "end", "verdict",
                                         result->pass ? "pass" : "fail", "reason", result->reason));
    json_decref(object);
    return rc;
}

/* The last that the launcher said, where the command ended badly. */
static void show_last_lines(const struct drill *drill) {
    char path[PATH_MAX], text[LAST_LINES_BYTES + 1];

    snprintf(path, sizeof path, "%s/run.err", drill->folder);
    FILE *file = fopen(path, "re");
    if (!file) {
        return;
    }
    if (fseek(file, -LAST_LINES_BYTES, SEEK_END)) {
        rewind(file);
    }
    size_t count = fread(text, 1, LAST_LINES_BYTES, file);
    text[count] = '\0';
    fclose(file);
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        fprintf(stderr, "  | %s\n", line);
    }
}

static int conclude(struct drill *drill, const struct drill_result *result) {
    struct rf_error err;

    if (result->pass) {
        return 0;
    }
    if (drill->session.stopped && !result->history.lost) {
        return exit_status(RF_ESTOPPED);
    }
    report_fail(&err, result->history.differ ? RF_EDIVERGED : RF_EWORKER, 0,
                "the rehearsal failed: %.280s", result->reason);
    snprintf(err.where, sizeof err.where, "%.200s: drill.jsonl, run.err, run/", drill->folder);
    snprintf(err.next, sizeof err.next, "ringfold drill --replay %.180s/drill.jsonl ...",
             drill->folder);
    report_error(&err);
    if (drill->session.ended_by_itself && drill->session.status) {
        show_last_lines(drill);
    }
    return STATUS_FAIL;
}

static int rehearse(struct drill *drill, int *status, struct rf_error *err) {
    struct drill_session *session = &drill->session;
    struct drill_result result;
    double throughput = drill->options.baseline_throughput;
    int rc = 0;

    if (drill->options.baseline > 0 && (rc = run_baseline(drill, &throughput, err))) {
        return rc;
    }
    set_up_session(drill, session);
    session->plan = &drill->plan;
    session->log = drill->log;
    snprintf(session->folder, sizeof session->folder, "%s", drill->folder);
    drill_log(session, describe(drill));
    rc = run_session(session, err);
    if (rc) {
        return rc;
    }
    if (drill_result_make(&result, &drill->options, session, throughput)) {
        return report_fail(err, RF_ENOMEM, 0, "no memory for the result");
    }
    rc = tell(drill, &result, err);
    *status = conclude(drill, &result);
    return rc;
}

static void free_session(struct drill_session *session) {
    if (session->score) {
        drill_score_free(session->score);
        free(session->score);
    }
}

int cmd_drill(int argc, char **argv) {
    static struct drill drill;
    struct rf_error err = {.rank = -1};
    int rc, status = drill_options_read(&drill.options, argc, argv);

    if (status) {
        return status;
    }
    drill.signal_fd = -1;
    (void)((rc = set_up_plan(&drill, &err)) || (rc = catch_signals(&drill, &err)) ||
           (rc = drill.options.run_dir ? make_named_folder(&drill, &err)
                                       : make_own_folder(&drill, &err)) ||
           (rc = open_log(&drill, &err)));
    if (!rc) {
        say_start(&drill);
        rc = rehearse(&drill, &status, &err);
    }
    if (rc) {
        report_error(&err);
        status = exit_status(rc);
    }
    free_session(&drill.session);
    free_session(&drill.baseline);
    drill_plan_free(&drill.plan);
    if (drill.log) {
        fclose(drill.log);
    }
    if (drill.signal_fd >= 0) {
        close(drill.signal_fd);
    }
    return status;
}
