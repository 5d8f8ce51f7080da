/* The result of a rehearsal. See drill_report.h. */
#include "drill_report.h"

#include "format.h"

#include <stdarg.h>
#include <string.h>

static bool fails(struct drill_result *result, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static bool fails(struct drill_result *result, const char *format, ...) {
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(result->reason, sizeof result->reason, format, arguments);
    va_end(arguments);
    return false;
}

/* The gravest comes first. */
static bool judge(struct drill_result *result) {
    const struct drill_session *session = result->session;
    const struct drill_history *history = &result->history;

    if (history->differ) {
        return fails(result, "%llu units were committed with different digests",
                     (unsigned long long)history->differ);
    }
    if (history->lost) {
        return fails(result,
                     "%llu committed units are lost: %llu missing, %llu only on workers that were "
                     "lost, %llu that nobody went on from",
                     (unsigned long long)history->lost, (unsigned long long)history->missing,
                     (unsigned long long)history->beyond, (unsigned long long)history->broken);
    }
    if (session->ended_by_itself && session->status) {
        return fails(result, "the command ended with status %d", session->status);
    }
    if (session->trouble[0]) {
        return fails(result, "%s", session->trouble);
    }
    if (!session->began) {
        return fails(result, "nothing was committed");
    }
    if (session->stopped) {
        return fails(result, "stopped on request before it could be judged");
    }
    if (!session->ended_by_itself && !session->settled) {
        return fails(result, "the workers were not together in the end");
    }
    if (!session->struck) {
        return fails(result, "the command ended before anything struck");
    }
    return true;
}

int drill_result_make(struct drill_result *result, const struct drill_options *options,
                      const struct drill_session *session, double baseline) {
    const struct drill_score *score = session->score;
    int rc = 0;

    *result = (struct drill_result){.options = options, .session = session, .baseline = baseline};
    drill_score_history(score, &result->history);
    for (int i = 0; i <= DRILL_KINDS && !rc; i++) {
        rc = drill_score_times(score, (enum drill_kind)i,
                               i < DRILL_KINDS ? &result->by_kind[i] : &result->all);
    }
    result->participation = drill_score_participation(score, options->workers);
    result->throughput = drill_score_throughput(score);
    result->seconds = score->last_commit - score->first_commit;
    result->pass = judge(result);
    return rc;
}

/* The table. */

static void print_series(FILE *screen, const struct drill_series *series) {
    char median[FORMAT_MAX] = "-", p99[FORMAT_MAX] = "-";

    if (series->count) {
        format_duration(median, series->median / 1e3);
        format_duration(p99, series->p99 / 1e3);
    }
    fprintf(screen, "  %7s %7s", median, p99);
}

static void print_row(FILE *screen, const char *name, const struct drill_times *times) {
    fprintf(screen, "%-8s %5zu", name, times->faults);
    print_series(screen, &times->detect);
    print_series(screen, &times->next_commit);
    print_series(screen, &times->rejoin);
    fputc('\n', screen);
}

void drill_result_print(const struct drill_result *result) {
    const struct drill_score *score = result->session->score;
    FILE *screen = result->options->screen;
    char steps[FORMAT_MAX], time[FORMAT_MAX];

    fprintf(screen, "\n%-8s %5s  %15s  %15s  %15s\n%-8s %5s", "fault", "count", "seen after",
            "next commit", "rejoined after", "", "");
    for (int i = 0; i < 3; i++) {
        fprintf(screen, "  %7s %7s", "median", "p99");
    }
    fputc('\n', screen);
    for (int i = 0; i < DRILL_KINDS; i++) {
        if (result->by_kind[i].faults) {
            print_row(screen, drill_kind_name((enum drill_kind)i), &result->by_kind[i]);
        }
    }
    print_row(screen, "all", &result->all);
    fprintf(screen,
            "\nsteps          %s in %s: %llu lost, %llu retried, %llu shards computed again\n",
            format_count(steps, score->step), format_duration(time, result->seconds),
            (unsigned long long)result->history.lost, (unsigned long long)result->history.retried,
            (unsigned long long)score->redone);
    fprintf(screen, "digests        %s\n",
            result->history.differ ? "differ" : "equal on all workers");
    fprintf(screen, "participation  %.1f%% of the workers' time\n", 100 * result->participation);
    fprintf(screen, "throughput     %.3g units/s", result->throughput);
    if (result->baseline > 0) {
        fprintf(screen, ", %.1f%% of the %.3g without faults",
                100 * result->throughput / result->baseline, result->baseline);
    }
    fprintf(screen, "\nverdict        %s%s%s\n", result->pass ? "pass" : "fail",
            result->pass ? "" : ": ", result->reason);
    fflush(screen);
}

/* JSON. */

static json_t *series_json(const struct drill_series *series) {
    bool any = series->count > 0;
    return json_pack("{s:o, s:o, s:I}", "median", any ? json_real(series->median) : json_null(),
                     "p99", any ? json_real(series->p99) : json_null(), "count",
                     (json_int_t)series->count);
}

static json_t *times_json(const struct drill_times *times) {
    return json_pack("{s:I, s:o, s:o, s:o}", "faults", (json_int_t)times->faults, "detect_ms",
                     series_json(&times->detect), "next_commit_ms",
                     series_json(&times->next_commit), "rejoin_ms", series_json(&times->rejoin));
}

static void set_whole(json_t *object, const char *key, uint64_t value) {
    json_object_set_new(object, key, json_integer((json_int_t)value));
}

json_t *drill_result_json(const struct drill_result *result) {
    const struct drill_session *session = result->session;
    const struct drill_score *score = session->score;
    json_t *object = times_json(&result->all);
    json_t *by_kind = json_object();

    for (int i = 0; i < DRILL_KINDS; i++) {
        if (result->by_kind[i].faults) {
            json_object_set_new(by_kind, drill_kind_name((enum drill_kind)i),
                                times_json(&result->by_kind[i]));
        }
    }
    json_object_set_new(object, "by_kind", by_kind);
    set_whole(object, "steps", score->step);
    set_whole(object, "steps_lost", result->history.lost);
    set_whole(object, "steps_retried", result->history.retried);
    set_whole(object, "units", result->history.units);
    set_whole(object, "shards_redone", score->redone);
    json_object_set_new(object, "seconds", json_real(result->seconds));
    json_object_set_new(object, "units_per_second", json_real(result->throughput));
    json_object_set_new(object, "baseline_units_per_second",
                        result->baseline > 0 ? json_real(result->baseline) : json_null());
    json_object_set_new(object, "throughput_ratio",
                        result->baseline > 0 ? json_real(result->throughput / result->baseline)
                                             : json_null());
    json_object_set_new(object, "participation", json_real(result->participation));
    json_object_set_new(object, "digests_equal", json_boolean(!result->history.differ));
    json_object_set_new(object, "verdict", json_string(result->pass ? "pass" : "fail"));
    json_object_set_new(object, "reason", json_string(result->reason));
    set_whole(object, "workers", (uint64_t)result->options->workers);
    set_whole(object, "seed", result->options->seed);
    set_whole(object, "postponed", session->postponed);
    set_whole(object, "unfinished", session->dropped);
    set_whole(object, "bad_lines", session->bad_lines);
    json_object_set_new(object, "ended_by_itself", json_boolean(session->ended_by_itself));
    json_object_set_new(object, "run_dir", json_string(session->folder));
    return object;
}
