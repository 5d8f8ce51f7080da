/* Carrying faults out, and ending them. See drill_session.h.
 *
 * A fault strikes when it is due and what it takes can be spared: its victim, so that MIN healthy
 * workers stay, and more than hold a flipped bit; the store, where the fault is an order through
 * it. Otherwise it waits, and those after it with it: the order of a schedule is kept. */
#include "drill_session.h"

#include "format.h"

#include <math.h>
#include <ringfold/store.h>
#include <stdlib.h>
#include <string.h>

static const double SLOW_RUN_S = 0.002; /* a slow worker runs 2 ms in 20 */
static const double SLOW_STAND_S = 0.018;
static const double STORE_AGAIN_S = 0.2; /* until a store that did not start is started again */
static const double STORE_LATE_S = 15;
static const double JOINER_GRACE_S = 35;
static const double FLIP_AGAIN_S = 5; /* until an order that was not heard is given again */
static const double OUTCOME_S = 1;    /* what the others tell of the same moment may come later */
static const int STORE_TIMEOUT_MS = 1000;

/* Orders through the store. */

static int order(struct drill_session *session, int id, const char *text) {
    struct rf_store *store = NULL;
    struct rf_error err;
    char uri[64], key[64];
    int64_t revision;

    snprintf(uri, sizeof uri, "tcp://127.0.0.1:%d", session->port);
    snprintf(key, sizeof key, "rf/drill/fault/%d", id);
    int rc = rf_store_open(uri, session->key, sizeof session->key, STORE_TIMEOUT_MS, &store, &err);
    if (!rc && text) {
        rc = rf_store_put(store, key, text, strlen(text), &revision, &err);
    } else if (!rc) {
        rc = rf_store_delete(store, key, &err);
    }
    rf_store_close(store);
    return rc;
}

/* What can be spared. */

static int count_active(const struct drill_session *session, enum drill_kind kind) {
    int count = 0;

    for (int i = 0; i < DRILL_MAX_ACTIVE; i++) {
        const struct drill_active *active = &session->active[i];
        count += active->used && (kind == DRILL_KINDS || active->planned.kind == kind);
    }
    return count;
}

int drill_strike_active(const struct drill_session *session) {
    return count_active(session, DRILL_KINDS);
}

static bool takes_worker(enum drill_kind kind) {
    return kind != DRILL_STORE && kind != DRILL_JOIN && kind != DRILL_STORAGE;
}

static bool needs_store(enum drill_kind kind) {
    return kind != DRILL_KILL && kind != DRILL_FREEZE && kind != DRILL_SLOW;
}

/* As many as the group has room for. */
static bool takes_joiner(const struct drill_session *session) {
    int room = session->options->most - session->options->workers;
    int most = room < DRILL_MAX_JOINERS ? room : DRILL_MAX_JOINERS;

    return count_active(session, DRILL_JOIN) < (most > 1 ? most : 1);
}

/* The victim's id where the fault can be afforded now (-1 where it has none); -2: not now. */
static int choose_victim(struct drill_session *session, const struct drill_planned *planned) {
    static int healthy[DRILL_MAX_IDS];

    if (needs_store(planned->kind) && (session->store_down || !drill_child_runs(&session->store))) {
        return -2;
    }
    bool is_single = planned->kind == DRILL_FLIP || planned->kind == DRILL_STORAGE;
    if (is_single && count_active(session, planned->kind)) {
        return -2;
    }
    if (planned->kind == DRILL_JOIN && !takes_joiner(session)) {
        return -2;
    }
    if (!takes_worker(planned->kind)) {
        return -1;
    }
    int count = drill_score_healthy(session->score, healthy);
    int flipped = count_active(session, DRILL_FLIP) + (planned->kind == DRILL_FLIP);
    /* of more than three, one may be lost by itself meanwhile */
    int right = flipped + (flipped && session->options->workers > 3);
    if (count - 1 < session->options->least || count - 1 <= right) {
        return -2;
    }
    return healthy[planned->victim % count];
}

/* Striking. */

static bool begin_join(struct drill_session *session, struct drill_active *active) {
    struct rf_error err;

    active->source = ++session->joiners;
    if (drill_launch(session, active->source, &active->joiner, &err)) {
        drill_trouble(session, "no worker can be added: %.200s", err.text);
        return false;
    }
    return true;
}

/* An order to all workers that take part now; NULL: is taken back from all. */
static bool order_all(struct drill_session *session, const char *text) {
    static int healthy[DRILL_MAX_IDS];
    int count = drill_score_healthy(session->score, healthy);
    bool done = count > 0;

    for (int i = 0; i < count; i++) {
        done = order(session, healthy[i], text) == 0 && done;
    }
    return done;
}

/* Does it; false: not possible now. */
static bool carry_out(struct drill_session *session, struct drill_active *active) {
    char text[32];

    switch (active->planned.kind) {
    case DRILL_KILL:
        active->ended = true;
        return drill_signal_worker(active->pid, &session->launcher, SIGKILL);
    case DRILL_FREEZE:
    case DRILL_SLOW:
        active->stopped = drill_signal_worker(active->pid, &session->launcher, SIGSTOP);
        active->edge = session->now + SLOW_STAND_S;
        return active->stopped;
    case DRILL_CUT:
        snprintf(text, sizeof text, "cut %d", active->planned.length_ms);
        active->order_left = true;
        return order(session, active->id, text) == 0;
    case DRILL_FLIP:
        active->order_left = true;
        active->edge = session->now + FLIP_AGAIN_S;
        return order(session, active->id, "flip") == 0;
    case DRILL_CHECKPOINT:
        active->ended = true;
        active->order_left = true;
        return order(session, active->id, "storage kill") == 0;
    case DRILL_STORAGE:
        snprintf(text, sizeof text, "storage %s %d", active->planned.abrupt ? "full" : "down",
                 active->planned.length_ms);
        return order_all(session, text);
    case DRILL_STORE:
        drill_child_kill(&session->store);
        session->store_down = true;
        return true;
    case DRILL_JOIN:
        return begin_join(session, active);
    case DRILL_KINDS:
        break;
    }
    return false;
}

static bool strike(struct drill_session *session, const struct drill_planned *planned) {
    struct drill_active *active = NULL;
    int id = choose_victim(session, planned);

    for (int i = 0; i < DRILL_MAX_ACTIVE && !active; i++) {
        active = session->active[i].used ? NULL : &session->active[i];
    }
    if (!active || id == -2) {
        return false;
    }
    *active = (struct drill_active){.planned = *planned,
                                    .number = session->struck + 1,
                                    .id = id,
                                    .pid = id < 0 ? 0 : session->score->workers[id].pid,
                                    .until = session->now + planned->length_ms / 1e3};
    if (!carry_out(session, active)) {
        return false;
    }
    if (drill_score_strike(session->score, planned->kind, id, session->wall, &active->fault)) {
        drill_trouble(session, "no memory for another fault");
        return false;
    }
    active->used = true;
    session->struck++;
    session->postponed += session->next_was_late;
    drill_say_struck(session, active);
    return true;
}

/* Each fault that has struck has its own time to be over; where none is left that could be waited
 * for, so has the one that is due. */
static void wait_longer(struct drill_session *session) {
    double settle_s = session->options->settle_ms / 1e3;
    char time[FORMAT_MAX];

    if (!session->next_was_late || drill_strike_active(session)) {
        session->next_was_late = true;
        session->late_since = session->now;
    } else if (session->now > session->late_since + settle_s) {
        drill_trouble(session, "for %s too few workers took part for another '%s'",
                      format_duration(time, settle_s), drill_kind_name(session->next.kind));
    }
}

bool drill_strike_due(struct drill_session *session) {
    int total = session->options->faults_total;

    for (;;) {
        if (total && session->struck >= (size_t)total) {
            return false;
        }
        if (!session->next_known) {
            if (!drill_plan_next(session->plan, &session->next)) {
                return false;
            }
            session->next_known = true;
            session->next_was_late = false;
            drill_log(session, drill_plan_line(&session->next, session->struck + 1));
        }
        if (session->now - session->began_at < session->next.at || session->trouble[0]) {
            return true;
        }
        if (!strike(session, &session->next)) {
            wait_longer(session);
            return true;
        }
        session->next_known = false;
    }
}

/* Ending. */

static void end_active(struct drill_session *session, struct drill_active *active) {
    active->ended = true;
    drill_score_over(session->score, active->fault, session->wall);
}

static void let_go(struct drill_session *session, struct drill_active *active) {
    if (active->stopped) {
        drill_signal_worker(active->pid, &session->launcher, SIGCONT);
        active->stopped = false;
    }
}

/* On for 2 ms, off for 18. */
static void step_slow(struct drill_session *session, struct drill_active *active) {
    if (session->now < active->edge) {
        return;
    }
    active->stopped = !active->stopped;
    drill_signal_worker(active->pid, &session->launcher, active->stopped ? SIGSTOP : SIGCONT);
    active->edge = session->now + (active->stopped ? SLOW_STAND_S : SLOW_RUN_S);
}

static void step_store(struct drill_session *session, struct drill_active *active) {
    struct rf_error err;

    if (session->now < active->until) {
        return;
    }
    if (!drill_child_runs(&session->store)) {
        if (session->now < active->edge) {
            return;
        }
        if (session->now > active->until + STORE_LATE_S || drill_store_start(session, &err)) {
            drill_trouble(session, "the store could not be started again");
        }
        active->edge = session->now + STORE_AGAIN_S;
    } else if (drill_store_listens(session)) {
        session->store_down = false;
        end_active(session, active);
    }
}

/* A worker that had lost the store just then has not heard of it, and one that was started again
 * does not heed orders from before. */
static void step_flip(struct drill_session *session, struct drill_active *active) {
    const struct drill_fault *fault = &session->score->faults[active->fault];

    if (fault->flipped || fault->done) {
        active->ended = true;
    } else if (session->now >= active->edge && !session->store_down) {
        (void)order(session, active->id, "flip");
        active->edge = session->now + FLIP_AGAIN_S;
    }
}

static void feed_exit(struct drill_session *session, const struct drill_active *active) {
    const struct drill_event event = {.kind = DRILL_EVENT_EXIT,
                                      .time = session->wall,
                                      .id = active->id,
                                      .peer = -1,
                                      .pid = active->pid};

    if (active->id >= 0 && drill_score_event(session->score, &event)) {
        drill_trouble(session, "no memory to follow the workers");
    }
}

/* A joiner that is killed takes its launcher with it: nobody tells of its end. */
static void step_join(struct drill_session *session, struct drill_active *active) {
    bool runs = drill_child_runs(&active->joiner);

    if (!runs) {
        active->ended = true;
        drill_score_left(session->score, active->fault, session->wall, false);
        feed_exit(session, active);
        return;
    }
    if (session->now < active->until) {
        return;
    }
    if (active->planned.abrupt || active->joiner_asks) {
        drill_child_kill(&active->joiner);
        active->ended = true;
        drill_score_left(session->score, active->fault, session->wall, true);
        feed_exit(session, active);
    } else {
        drill_score_left(session->score, active->fault, session->wall, false);
        drill_child_signal(&active->joiner, SIGTERM);
        active->joiner_asks++;
        active->until = session->now + JOINER_GRACE_S;
    }
}

static void step_active(struct drill_session *session, struct drill_active *active) {
    bool time_is_up = session->now >= active->until;

    switch (active->planned.kind) {
    case DRILL_FREEZE:
    case DRILL_SLOW:
        if (time_is_up) {
            let_go(session, active);
            end_active(session, active);
        } else if (active->planned.kind == DRILL_SLOW) {
            step_slow(session, active);
        }
        break;
    case DRILL_CUT:
    case DRILL_STORAGE:
        if (time_is_up) {
            end_active(session, active);
        }
        break;
    case DRILL_STORE:
        step_store(session, active);
        break;
    case DRILL_FLIP:
        step_flip(session, active);
        break;
    case DRILL_JOIN:
        step_join(session, active);
        break;
    case DRILL_KILL:
    case DRILL_CHECKPOINT:
    case DRILL_KINDS:
        break;
    }
}

/* At once, before the same worker can be given another one. Where the store does not answer it
 * stays: it was carried out and does no harm. */
static void take_order_back(struct drill_session *session, struct drill_active *active) {
    if (active->order_left && !session->store_down) {
        (void)order(session, active->id, NULL);
    }
    active->order_left = false;
}

/* Whether all is known of it that can be. */
static bool is_told(struct drill_session *session, struct drill_active *active) {
    const struct drill_fault *fault = &session->score->faults[active->fault];

    if (!active->ended || !fault->done) {
        return false;
    }
    if (!active->seen_done) {
        active->seen_done = session->now;
        take_order_back(session, active);
    }
    return (fault->detected && fault->next_commit) || session->now >= active->seen_done + OUTCOME_S;
}

/* Nobody is waited for without end. */
static void look_for_victim(struct drill_session *session, const struct drill_active *active) {
    const struct drill_fault *fault = &session->score->faults[active->fault];
    double settle_s = session->options->settle_ms / 1e3;
    char time[FORMAT_MAX];

    bool is_due = active->ended || fault->kind == DRILL_FLIP;
    if (!is_due || fault->done || session->now < active->until + settle_s) {
        return;
    }
    format_duration(time, settle_s);
    if (fault->kind == DRILL_FLIP && !fault->flipped) {
        drill_trouble(session,
                      "worker %d flipped no bit within %s: does the program train with rf_ddp?",
                      active->id, time);
    } else if (fault->kind == DRILL_FLIP && !fault->over) {
        drill_trouble(session, "the flipped bit of worker %d was not found within %s", active->id,
                      time);
    } else if (fault->kind == DRILL_CHECKPOINT && !fault->over) {
        drill_trouble(session,
                      "worker %d wrote no checkpoint within %s: does the program keep any?",
                      active->id, time);
    } else if (!takes_worker(fault->kind)) {
        drill_trouble(session, "nothing was committed for %s after '%s'", time,
                      drill_kind_name(fault->kind));
    } else {
        drill_trouble(session, "worker %d was not back %s after its fault", active->id, time);
    }
}

static void release(struct drill_session *session, struct drill_active *active) {
    drill_say_outcome(session, active);
    if (active->planned.kind == DRILL_JOIN) {
        drill_feed_forget(&session->feed, active->source);
    }
    active->used = false;
}

void drill_strike_step(struct drill_session *session) {
    for (int i = 0; i < DRILL_MAX_ACTIVE; i++) {
        struct drill_active *active = &session->active[i];
        if (!active->used) {
            continue;
        }
        if (!active->ended) {
            step_active(session, active);
        }
        if (is_told(session, active)) {
            release(session, active);
        } else {
            look_for_victim(session, active);
        }
    }
}

void drill_strike_joined(struct drill_session *session, const struct drill_event *event) {
    for (int i = 0; i < DRILL_MAX_ACTIVE && event->source > 0; i++) {
        struct drill_active *active = &session->active[i];
        if (active->used && active->planned.kind == DRILL_JOIN && active->id < 0 &&
            event->kind == DRILL_EVENT_WORKER && event->source == active->source) {
            active->id = event->id;
            active->pid = event->pid;
            drill_score_joined(session->score, active->fault, event->id);
        }
    }
}

double drill_strike_next(const struct drill_session *session, double most) {
    double next = most;

    for (int i = 0; i < DRILL_MAX_ACTIVE; i++) {
        const struct drill_active *active = &session->active[i];
        if (active->used && !active->ended && active->planned.kind == DRILL_SLOW &&
            active->edge < next) {
            next = active->edge;
        }
    }
    return next;
}

void drill_strike_hurry(struct drill_session *session) {
    for (int i = 0; i < DRILL_MAX_ACTIVE; i++) {
        struct drill_active *active = &session->active[i];
        if (active->used && active->planned.kind == DRILL_JOIN && !active->joiner_asks) {
            active->until = session->now;
        }
    }
}

void drill_strike_end(struct drill_session *session) {
    for (int i = 0; i < DRILL_MAX_ACTIVE; i++) {
        struct drill_active *active = &session->active[i];
        if (!active->used) {
            continue;
        }
        let_go(session, active);
        drill_child_signal(&active->joiner, SIGTERM);
        session->dropped++;
        drill_say_outcome(session, active);
        active->used = false;
    }
}
