/* Who failed first, why, and where to look. */
#include "run_report.h"

#include "format.h"
#include "report.h"

#include <stdlib.h>
#include <string.h>

enum {
    STATUS_PEER_LOST = 69,
    LAST_LINES = 10,
    CLASS_NONE = 0 /* of failure_class: no failure, or one that the launcher asked for */
};

/* What others wrote to the log, and where it is. */
struct evidence {
    const char *log; /* "err" or "out" */
    char text[STREAM_TAIL + 1];
    const char *lines[LAST_LINES];
    int count;
};

/* The lower, the nearer to the cause. SIGKILL is never a program's reaction to a lost peer; status
 * 69 always is one. A worker that a signal has stopped fails nobody but those who lose it. */
static int failure_class(const struct run_worker *worker) {
    if (worker->state == WORKER_NONE || worker->is_outlived || run_worker_ended_well(worker)) {
        return CLASS_NONE;
    }
    if (worker->frozen) {
        return 3;
    }
    if (worker->told && (worker->signal == SIGTERM || worker->signal == SIGKILL ||
                         worker->status == 128 + SIGTERM || worker->status == STATUS_PEER_LOST)) {
        return CLASS_NONE;
    }
    if (worker->signal == SIGKILL) {
        return 1;
    }
    return worker->status == STATUS_PEER_LOST ? 4 : 2;
}

const struct run_worker *run_report_culprit(const struct run_report *report) {
    const struct run_worker *culprit = NULL;
    int least = CLASS_NONE;

    for (int i = 0; i < report->options->workers; i++) {
        const struct run_worker *worker = &report->workers[i];
        int class = failure_class(worker);
        if (class != CLASS_NONE &&
            (!culprit || class < least || (class == least && worker->order < culprit->order))) {
            culprit = worker;
            least = class;
        }
    }
    return culprit;
}

/* The last lines of stderr, or of stdout where stderr has none. */
static void gather_evidence(const struct run_worker *worker, struct evidence *evidence) {
    size_t count = stream_tail(&worker->err, evidence->text);

    evidence->log = "err";
    evidence->count = 0;
    if (!count) {
        evidence->log = "out";
        count = stream_tail(&worker->out, evidence->text);
    }
    for (size_t i = 0; i < count; i++) {
        if (!evidence->text[i]) {
            evidence->text[i] = ' ';
        }
    }
    while (count && (evidence->text[count - 1] == '\n' || evidence->text[count - 1] == '\r')) {
        count--;
    }
    evidence->text[count] = '\0';
    char *end = evidence->text + count;
    int lines = 0;
    const char *found[LAST_LINES];
    while (end > evidence->text && lines < LAST_LINES) { /* from the last one backwards */
        char *newline = memrchr(evidence->text, '\n', (size_t)(end - evidence->text));
        char *line = newline ? newline + 1 : evidence->text;
        char *overwritten = strrchr(line, '\r');
        found[lines++] = overwritten && overwritten[1] ? overwritten + 1 : line;
        if (!newline) {
            break;
        }
        *newline = '\0';
        end = newline;
    }
    while (lines) {
        evidence->lines[evidence->count++] = found[--lines];
    }
}

static void explain_kill(const struct run_report *report, char why[RF_ERROR_DETAIL_MAX]) {
    struct run_memory now;
    const struct run_memory *before = &report->memory_before;

    run_memory_read(&now);
    if (now.oom_kills < 0 || before->oom_kills < 0) {
        snprintf(why, RF_ERROR_DETAIL_MAX,
                 "unknown: somebody sent SIGKILL, the launcher did not; the kernel does so when "
                 "memory runs out");
    } else if (now.oom_kills > before->oom_kills) {
        char limit[FORMAT_MAX] = "none";
        if (now.limit_bytes >= 0) {
            format_bytes(limit, (uint64_t)now.limit_bytes);
        }
        snprintf(why, RF_ERROR_DETAIL_MAX,
                 "certain: killed for memory (cgroup oom_kill %lld -> %lld, limit %s)",
                 (long long)before->oom_kills, (long long)now.oom_kills, limit);
    } else {
        snprintf(why, RF_ERROR_DETAIL_MAX,
                 "likely killed from outside: the launcher sent no SIGKILL, and the cgroup counted "
                 "no kill for memory (oom_kill %lld)",
                 (long long)now.oom_kills);
    }
}

static void explain_signal(const struct run_report *report, int signal,
                           char why[RF_ERROR_DETAIL_MAX]) {
    char name[16];
    const char *description = sigdescr_np(signal);

    run_signal_name(name, signal);
    if (signal == SIGKILL) {
        explain_kill(report, why);
    } else if (signal == SIGABRT) {
        snprintf(why, RF_ERROR_DETAIL_MAX,
                 "certain: it ended itself with SIGABRT (a failed assertion, or abort)");
    } else if (signal == SIGTERM || signal == SIGINT || signal == SIGHUP) {
        snprintf(why, RF_ERROR_DETAIL_MAX, "certain: somebody sent it %s, the launcher did not",
                 name);
    } else {
        snprintf(why, RF_ERROR_DETAIL_MAX, "certain: %s (%s)", name,
                 description ? description : "?");
    }
}

static void explain(const struct run_report *report, const struct run_worker *worker,
                    char why[RF_ERROR_DETAIL_MAX]) {
    char name[16];

    if (worker->frozen) {
        snprintf(why, RF_ERROR_DETAIL_MAX,
                 "certain: a signal had stopped it (SIGSTOP, or one from a terminal), and the "
                 "others lost it");
    } else if (worker->signal) {
        explain_signal(report, worker->signal, why);
    } else if (worker->status == 128 + SIGKILL) {
        explain_kill(report, why);
    } else if (worker->status > 128 && worker->status < 128 + NSIG) {
        run_signal_name(name, worker->status - 128);
        snprintf(why, RF_ERROR_DETAIL_MAX, "likely: a process of its own died of %s (128 + %d)",
                 name, worker->status - 128);
    } else if (worker->status == STATUS_PEER_LOST) {
        snprintf(why, RF_ERROR_DETAIL_MAX,
                 "likely: it lost a peer (status 69), though no other worker failed otherwise");
    } else if (worker->status == 127) {
        snprintf(why, RF_ERROR_DETAIL_MAX, "likely: a command in it was not found (status 127)");
    } else {
        snprintf(why, RF_ERROR_DETAIL_MAX,
                 "unknown: exit status %d is the program's own, its last lines tell more",
                 worker->status);
    }
}

/* "3 other workers ended because of it, 1 was stopped" */
static void count_consequences(const struct run_report *report, const struct run_worker *culprit,
                               int *ended, int *stopped) {
    *ended = *stopped = 0;
    for (int i = 0; i < report->options->workers; i++) {
        const struct run_worker *worker = &report->workers[i];
        if (worker == culprit || worker->state == WORKER_NONE || worker->is_outlived ||
            run_worker_ended_well(worker)) {
            continue;
        }
        *(worker->told ? stopped : ended) += 1;
    }
}

static json_t *text_or_marks(const char *text) {
    json_t *value = json_string(text);

    if (!value) { /* not UTF-8 */
        char *copy = strdup(text);
        for (char *at = copy; copy && *at; at++) {
            *at = (unsigned char)*at < 0x80 ? *at : '?';
        }
        value = copy ? json_string(copy) : NULL;
        free(copy);
    }
    return value ? value : json_null();
}

static json_t *error_object(const struct rf_error *err) {
    char code[16];
    json_t *object = json_object();

    snprintf(code, sizeof code, "RF%04d", -err->code);
    json_object_set_new(object, "code", json_string(code));
    json_object_set_new(object, "text", text_or_marks(err->text));
    json_object_set_new(object, "what", text_or_marks(err->what));
    json_object_set_new(object, "where", text_or_marks(err->where));
    json_object_set_new(object, "why", text_or_marks(err->why));
    json_object_set_new(object, "next",
                        text_or_marks(err->next[0] ? err->next : rf_error_next(err->code)));
    return object;
}

/* To the files, and to the screen where that speaks JSON; `object` is taken over. */
static void publish(const struct run_report *report, json_t *object) {
    if (report->folder->fd >= 0) {
        run_folder_error(report->folder, object);
    }
    char *line = run_folder_event(report->folder, "error", object);
    if (line && report->options->json) {
        fprintf(stderr, "%s\n", line);
    }
    free(line);
}

void run_report_launcher(const struct run_report *report, const struct rf_error *err) {
    if (!report->options->json) {
        report_error(err);
    }
    publish(report, error_object(err));
}

static void describe(const struct run_report *report, const struct run_worker *culprit,
                     struct rf_error *err) {
    char name[16], after[FORMAT_MAX];
    int ended, stopped;

    if (culprit->frozen) {
        report_fail(err, RF_EWORKER, 0, "worker %d stood still, stopped by a signal", culprit->id);
    } else if (culprit->signal) {
        run_signal_name(name, culprit->signal);
        report_fail(err, RF_EWORKER, 0, "worker %d was ended by %s", culprit->id, name);
    } else {
        report_fail(err, RF_EWORKER, 0, "worker %d failed with exit status %d", culprit->id,
                    culprit->status);
    }
    err->rank = culprit->id;
    if (report->left_below_min) {
        size_t at = strlen(err->text);
        snprintf(err->text + at, sizeof err->text - at,
                 ", and %d worker%s %s fewer than the minimum of %d", report->left,
                 report->left == 1 ? "" : "s", report->left == 1 ? "is" : "are",
                 report->options->min_size);
    }
    format_duration(after, (double)(culprit->ended_ns - culprit->started_ns) / 1e9);
    count_consequences(report, culprit, &ended, &stopped);
    int at = snprintf(err->what, sizeof err->what, "%.100s, process %d, ended after %s",
                      report->options->program[0], (int)culprit->pid, after);
    if (ended && at > 0 && (size_t)at < sizeof err->what) {
        at += snprintf(err->what + at, sizeof err->what - (size_t)at,
                       "; %d more ended because of it", ended);
    }
    if (stopped && at > 0 && (size_t)at < sizeof err->what) {
        snprintf(err->what + at, sizeof err->what - (size_t)at, "; %d had to be stopped", stopped);
    }
    explain(report, culprit, err->why);
}

static void take_text(const json_t *report, const char *key, char *out, size_t room) {
    const char *text = json_string_value(json_object_get(report, key));
    if (text && text[0]) {
        snprintf(out, room, "%s", text);
    }
}

/* What the worker itself said is nearer to the cause than its exit status. */
static bool take_own_report(const struct run_report *report, const struct run_worker *culprit,
                            struct rf_error *err) {
    json_t *own = run_folder_take_report(report->folder, culprit->id, culprit->restarts);
    int code = (int)json_integer_value(json_object_get(own, "code"));
    char end[RF_ERROR_DETAIL_MAX];

    if (code >= 0 || culprit->signal) {
        json_decref(own);
        return false;
    }
    snprintf(end, sizeof end, "worker %d, exit status %d: %.180s", culprit->id, culprit->status,
             err->what);
    err->code = code;
    err->why[0] = 0;
    take_text(own, "text", err->text, sizeof err->text);
    take_text(own, "where", err->where, sizeof err->where);
    take_text(own, "why", err->why, sizeof err->why);
    take_text(own, "next", err->next, sizeof err->next);
    snprintf(err->what, sizeof err->what, "%s", end);
    json_decref(own);
    return true;
}

void run_report_worker(const struct run_report *report, const struct run_worker *culprit) {
    struct rf_error err;
    struct evidence evidence;
    char log[PATH_MAX + RUN_LOG_NAME_MAX], name[RUN_LOG_NAME_MAX];

    describe(report, culprit, &err);
    bool said_it_itself = take_own_report(report, culprit, &err);
    gather_evidence(culprit, &evidence);
    run_folder_log_name(name, culprit->id, culprit->restarts, evidence.log);
    snprintf(log, sizeof log, "%s/%s", report->folder->shown, name);
    if (!said_it_itself &&
        snprintf(err.next, sizeof err.next, "tail -n 50 %s", log) >= (int)sizeof err.next) {
        err.next[0] = '\0';
    }
    if (!report->options->json) {
        report_error(&err);
        const char *content = evidence.count   ? ", last lines:"
                              : said_it_itself ? ""
                                               : ", nothing was written";
        fprintf(stderr, "  %-6s %s%s\n", "logs", log, content);
        for (int i = 0; i < evidence.count; i++) {
            fprintf(stderr, "         %s\n", evidence.lines[i]);
        }
    }
    json_t *object = error_object(&err);
    json_t *lines = json_array();
    for (int i = 0; i < evidence.count; i++) {
        json_array_append_new(lines, text_or_marks(evidence.lines[i]));
    }
    json_object_update_new(object,
                           json_pack("{s:i, s:i, s:i, s:i, s:i, s:o, s:o}", "id", culprit->id,
                                     "rank", culprit->id, "pid", (int)culprit->pid, "exit_code",
                                     run_worker_exit_code(culprit), "signal", culprit->signal,
                                     "log", text_or_marks(log), "last_lines", lines));
    publish(report, object);
}
