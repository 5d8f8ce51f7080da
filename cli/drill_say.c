/* What a rehearsal tells while it runs: a line on the screen for each fault once it is known what
 * came of it, and drill.jsonl. */
#include "drill_session.h"

#include "format.h"

#include <stdarg.h>
#include <string.h>
#include <time.h>

void drill_log(struct drill_session *session, json_t *line) {
    if (session->log && line) {
        json_dumpf(line, session->log, JSON_COMPACT);
        fputc('\n', session->log);
        fflush(session->log); /* a fault is written down before it strikes */
    }
    json_decref(line);
}

void drill_say_struck(struct drill_session *session, const struct drill_active *active) {
    json_t *line = json_pack(
        "{s:s, s:I, s:f, s:s, s:I, s:b}", "event", "fault", "number", (json_int_t)active->number,
        "time", session->wall, "fault", drill_kind_name(active->planned.kind), "generation",
        (json_int_t)session->score->generation, "postponed", session->next_was_late);

    if (active->id >= 0) {
        json_object_set_new(line, "id", json_integer(active->id));
        json_object_set_new(line, "pid", json_integer(active->pid));
    }
    drill_log(session, line);
}

/* Appends to a text of limited room. */
static void append(char *text, size_t room, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void append(char *text, size_t room, const char *format, ...) {
    size_t at = strlen(text);
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text + at, room - at, format, arguments);
    va_end(arguments);
}

static void append_time(char *text, size_t room, const char *what, double from, double to) {
    char time[FORMAT_MAX];

    if (from > 0 && to >= from) {
        append(text, room, "%s%s %s", text[0] ? ", " : "", what, format_duration(time, to - from));
    }
}

static json_t *seconds(double from, double to) {
    return from > 0 && to >= from ? json_real(to - from) : json_null();
}

/* When the group begins to suffer: of a joiner, when it goes, if it ever took part. */
static double struck(const struct drill_fault *fault) {
    if (fault->kind == DRILL_JOIN) {
        return fault->back ? fault->left : 0;
    }
    return fault->from;
}

static void describe(const struct drill_session *session, const struct drill_active *active,
                     char *text, size_t room) {
    const struct drill_fault *fault = &session->score->faults[active->fault];
    double from = struck(fault);

    text[0] = '\0';
    switch (active->planned.kind) {
    case DRILL_JOIN:
        append_time(text, room, "took part after", fault->over, fault->back);
        if (!fault->back) {
            append(text, room, "was not taken in");
        } else if (fault->left) {
            append(text, room, ", %s", active->planned.abrupt ? "then killed" : "then left");
        }
        append_time(text, room, "seen after", from, fault->detected);
        append_time(text, room, "next commit after", from, fault->next_commit);
        return;
    case DRILL_STORE:
        append_time(text, room, "back after", from, fault->over);
        break;
    case DRILL_STORAGE:
        append(text, room, "%s", active->planned.abrupt ? "full" : "down");
        append_time(text, room, "for", from, fault->over);
        break;
    case DRILL_FREEZE:
    case DRILL_SLOW:
    case DRILL_CUT:
        append_time(text, room, "for", from, fault->over);
        if (!fault->detected && fault->back) {
            append(text, room, ", not put out");
        }
        break;
    case DRILL_KILL:
    case DRILL_FLIP:
    case DRILL_CHECKPOINT:
    case DRILL_KINDS:
        break;
    }
    append_time(text, room, "seen after", from, fault->detected);
    append_time(text, room, "next commit after", from, fault->next_commit);
    append_time(text, room, "rejoined after", fault->over, fault->back);
    if (!fault->done) {
        append(text, room, "%snot over when the rehearsal ended", text[0] ? ", " : "");
    }
}

void drill_say_outcome(struct drill_session *session, const struct drill_active *active) {
    const struct drill_fault *fault = &session->score->faults[active->fault];
    char text[256], clock[16], victim[32] = "";
    time_t second = (time_t)fault->from;
    struct tm local;
    double from = struck(fault);

    localtime_r(&second, &local);
    strftime(clock, sizeof clock, "%H:%M:%S", &local);
    if (active->id >= 0) {
        snprintf(victim, sizeof victim, "worker %d", active->id);
    } else {
        snprintf(victim, sizeof victim, "%s",
                 active->planned.kind == DRILL_STORE     ? "the store"
                 : active->planned.kind == DRILL_STORAGE ? "the storage"
                                                         : "a worker");
    }
    describe(session, active, text, sizeof text);
    fprintf(session->options->screen, "%s %-10s %s: %s\n", clock,
            drill_kind_name(active->planned.kind), victim, text);
    fflush(session->options->screen);
    drill_log(session,
              json_pack("{s:s, s:I, s:s, s:o, s:o, s:o, s:b}", "event", "outcome", "number",
                        (json_int_t)active->number, "fault", drill_kind_name(active->planned.kind),
                        "detect", seconds(from, fault->detected), "next_commit",
                        seconds(from, fault->next_commit), "rejoin",
                        seconds(fault->over, fault->back), "done", fault->done));
}
