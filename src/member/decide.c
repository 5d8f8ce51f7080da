/* How the next generation follows from reports and candidates. In order:
 *
 *     who stays     members that reported, less those that were put out, less the fewest that break
 *                   every pair of which one cannot hear the other
 *     what counts   commit or retry of the unit in flight, from all reports, also of who goes
 *     who is whole  members whose history is the one that counts; the others copy it
 *     who comes     candidates with the same configuration, up to the maximum
 */
#include "member/decide.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

bool rf__candidate_is_welcome(const struct rf__facts *facts,
                              const struct rf__candidate *candidate) {
    return candidate->wants && candidate->seen == facts->current->number &&
           candidate->config != 0 && candidate->config == facts->config &&
           rf__generation_find(facts->current, candidate->id, candidate->nonce) < 0;
}

/* ---- Who stays ---- */

enum seat { SEAT_ABSENT, SEAT_STAYS, SEAT_CUT, SEAT_PUT_OUT };

/* Evidence that holds although the member has reported: that a connection ended says only that it
 * may be dead, and it is not. */
static bool is_strong(enum rf__doubt doubt) {
    return doubt == RF__DOUBT_SILENT || doubt == RF__DOUBT_UNREACHABLE;
}

static bool doubts(const struct rf__report *report, int id) {
    for (int i = 0; report && i < report->suspect_count; i++) {
        if (report->suspects[i].id == id && is_strong(report->suspects[i].doubt)) {
            return true;
        }
    }
    return false;
}

/* With how many of those who stay the member cannot talk. */
static int broken_pairs(const struct rf__facts *facts, const unsigned char *seats, int rank) {
    const struct rf__generation *g = facts->current;
    int broken = 0;

    for (int other = 0; other < g->count; other++) {
        if (other != rank && seats[other] == SEAT_STAYS &&
            (doubts(facts->reports[rank], g->members[other].id) ||
             doubts(facts->reports[other], g->members[rank].id))) {
            broken++;
        }
    }
    return broken;
}

/* Whether `a` goes before `b` where both have as many broken pairs: who has no state to lose, then
 * the later rank. */
static bool goes_first(const struct rf__facts *facts, int a, int b) {
    bool healed_a = facts->reports[a]->progress.healed,
         healed_b = facts->reports[b]->progress.healed;
    return healed_a != healed_b ? !healed_a : a > b;
}

static int count_whole(const struct rf__facts *facts, const unsigned char *seats,
                       const bool *whole) {
    int count = 0;
    for (int rank = 0; rank < facts->current->count; rank++) {
        count += seats[rank] == SEAT_STAYS && whole[rank];
    }
    return count;
}

/* The last that is whole does not go: the others would have nothing to go on with. */
static void cut_broken_pairs(const struct rf__facts *facts, const bool *whole,
                             unsigned char *seats) {
    for (;;) {
        int worst = -1, most = 0, left = count_whole(facts, seats, whole);
        for (int rank = 0; rank < facts->current->count; rank++) {
            bool may_go = seats[rank] == SEAT_STAYS && !(whole[rank] && left == 1);
            int broken = may_go ? broken_pairs(facts, seats, rank) : 0;
            if (broken > most ||
                (broken && broken == most && worst >= 0 && goes_first(facts, rank, worst))) {
                worst = rank;
                most = broken;
            }
        }
        if (worst < 0) {
            return;
        }
        seats[worst] = SEAT_CUT;
    }
}

/* Why the member is put out: its own word, or that of any other. 0: it is not. */
static enum rf__doubt put_out(const struct rf__facts *facts, int rank) {
    int id = facts->current->members[rank].id;

    for (int other = 0; other < facts->current->count; other++) {
        const struct rf__report *report = facts->reports[other];
        for (int i = 0; report && i < report->suspect_count; i++) {
            const struct rf__suspect *s = &report->suspects[i];
            if (s->id == id &&
                (s->doubt == RF__DOUBT_SLOW || (other == rank && s->doubt == RF__DOUBT_STUCK))) {
                return s->doubt;
            }
        }
    }
    return 0;
}

static int count_seats(const struct rf__facts *facts, const unsigned char *seats, enum seat seat) {
    int count = 0;
    for (int rank = 0; rank < facts->current->count; rank++) {
        count += seats[rank] == seat;
    }
    return count;
}

static int count_welcome(const struct rf__facts *facts) {
    int count = 0;
    for (int i = 0; i < facts->candidate_count; i++) {
        count += rf__candidate_is_welcome(facts, facts->candidates[i]);
    }
    return count;
}

/* The worker was started again: the process that reported is no more. */
static bool is_replaced(const struct rf__facts *facts, const struct rf__member_entry *member) {
    for (int i = 0; i < facts->candidate_count; i++) {
        if (facts->candidates[i]->id == member->id) {
            return facts->candidates[i]->nonce != member->nonce;
        }
    }
    return false;
}

/* Whether those who stay, and those who come, are a group that can go on. */
static bool suffices(const struct rf__facts *facts, const unsigned char *seats, const bool *whole,
                     int coming) {
    return count_seats(facts, seats, SEAT_STAYS) + coming >= facts->min_size &&
           count_whole(facts, seats, whole) > 0;
}

static void seat_members(const struct rf__facts *facts, const bool *whole, unsigned char *seats) {
    int count = facts->current->count, coming = count_welcome(facts);

    for (int rank = 0; rank < count; rank++) {
        bool is_here = facts->reports[rank] && !is_replaced(facts, &facts->current->members[rank]);
        seats[rank] = !is_here ? SEAT_ABSENT : put_out(facts, rank) ? SEAT_PUT_OUT : SEAT_STAYS;
    }
    if (!suffices(facts, seats, whole, coming)) {
        for (int rank = 0; rank < count; rank++) { /* slow, or stuck for now, is better than none */
            seats[rank] = seats[rank] == SEAT_PUT_OUT ? SEAT_STAYS : seats[rank];
        }
    }
    cut_broken_pairs(facts, whole, seats);
    if (!suffices(facts, seats, whole, coming)) {
        for (int rank = 0; rank < count; rank++) { /* try again: the path may be back by then */
            if (seats[rank] == SEAT_CUT) {
                seats[rank] = SEAT_STAYS;
            }
        }
    }
}

/* ---- What counts ---- */

struct outcome {
    bool known, commit, diverged;
    uint64_t units, chain;
    uint64_t prepared_state; /* commit: of who counts; 0: none was due */
};

/* The member whose prepared unit is held by most, and by how many. */
static int most_common(const struct rf__facts *facts, int *share) {
    int best = -1;

    *share = 0;
    for (int a = 0; a < facts->current->count; a++) {
        int count = 0;
        for (int b = 0; facts->reports[a] && b < facts->current->count; b++) {
            const struct rf__progress *p = &facts->reports[a]->progress;
            const struct rf__progress *q = facts->reports[b] ? &facts->reports[b]->progress : NULL;
            count += q && q->prepared && p->prepared_chain == q->prepared_chain &&
                     p->prepared_state == q->prepared_state;
        }
        if (count > *share) {
            best = a;
            *share = count;
        }
    }
    return best;
}

/* Commit-or-retry. Every reporter counts, also one that does not stay: if any of them is not
 * prepared, nobody can have had all step reports, so nobody has committed; if one has committed,
 * all others were prepared. */
static struct outcome resolve(const struct rf__facts *facts) {
    struct outcome o = {.known = false};
    bool all_prepared = true, behind = false;

    for (int rank = 0; rank < facts->current->count; rank++) {
        const struct rf__report *report = facts->reports[rank];
        if (report && report->progress.healed && (!o.known || report->progress.units > o.units)) {
            o.known = true;
            o.units = report->progress.units;
            o.chain = report->progress.chain;
            o.prepared_state = report->progress.prepared_state;
        }
    }
    if (!o.known) {
        return o;
    }
    for (int rank = 0; rank < facts->current->count; rank++) {
        const struct rf__report *report = facts->reports[rank];
        if (!report) {
            continue;
        }
        const struct rf__progress *p = &report->progress;
        if (p->units == o.units) {
            all_prepared = all_prepared && p->prepared;
        } else if (!p->healed && !p->prepared) {
            all_prepared = false; /* a joiner that does not know yet which unit it is */
        } else if (p->units + 1 == o.units) {
            behind = behind || p->prepared;
        }
        if (p->healed && p->units == o.units && p->chain != o.chain) {
            o.diverged = true;
        }
    }
    if (behind) {
        o.commit = true; /* unit o.units - 1: somebody has it */
        return o;
    }
    if (!all_prepared) {
        return o;
    }
    o.prepared_state = 0;
    int share, model = most_common(facts, &share), reporters = 0;
    for (int rank = 0; rank < facts->current->count; rank++) {
        reporters += facts->reports[rank] != NULL;
    }
    /* Where they differ, one that has gone may have seen all reports and counted: only what more
     * than half of the whole generation holds is then sure to be what it found. */
    if (share < reporters && 2 * share <= facts->current->count) {
        o.diverged = true;
        return o;
    }
    o.commit = true;
    o.units++;
    o.chain = facts->reports[model]->progress.prepared_chain;
    o.prepared_state = facts->reports[model]->progress.prepared_state;
    return o;
}

/* ---- Who is whole ---- */

static bool is_whole(const struct rf__progress *p, const struct outcome *o) {
    if (p->units == o->units) {
        return p->healed && p->chain == o->chain;
    }
    /* a joiner that had prepared the unit has a verified copy */
    return o->commit && p->prepared && p->units + 1 == o->units && p->prepared_chain == o->chain &&
           (o->prepared_state == 0 || p->prepared_state == o->prepared_state);
}

static void drop(struct rf__generation *next, int id, enum rf__doubt doubt) {
    if (next->dropped_count < RF_MAX_RANKS) {
        next->dropped[next->dropped_count++] = (struct rf__suspect){.id = id, .doubt = doubt};
    }
}

/* The strongest thing that anybody said of an absent member. */
static enum rf__doubt doubt_of(const struct rf__facts *facts, int id) {
    enum rf__doubt strongest = RF__DOUBT_END;

    for (int rank = 0; rank < facts->current->count; rank++) {
        const struct rf__report *report = facts->reports[rank];
        for (int i = 0; report && i < report->suspect_count; i++) {
            if (report->suspects[i].id == id &&
                (strongest == RF__DOUBT_END || report->suspects[i].doubt > strongest)) {
                strongest = report->suspects[i].doubt;
            }
        }
    }
    return strongest;
}

static void take_cause(const struct rf__facts *facts, struct rf__generation *next) {
    for (int rank = 0; rank < facts->current->count && !next->cause[0]; rank++) {
        if (facts->reports[rank]) {
            memcpy(next->cause, facts->reports[rank]->cause, sizeof next->cause);
        }
    }
}

static void add(struct rf__generation *next, int id, uint64_t nonce, bool healed) {
    next->members[next->count++] =
        (struct rf__member_entry){.id = id, .nonce = nonce, .healed = healed};
}

/* All members, and those who come, take the state from a checkpoint: that of the order, or of one
 * that was begun and not finished, or the newest. */
static void roll_back(const struct rf__facts *facts, struct rf__generation *next) {
    const struct rf__generation *g = facts->current;
    uint64_t target = g->rolled_back && g->units == 0 ? g->target : RF__NEWEST_STEP;

    next->order = facts->order ? facts->order->nonce : g->order;
    target = facts->order ? facts->order->step : target;
    next->commit = false;
    next->units = next->chain = 0;
    next->rolled_back = true;
    next->target = target;
    for (int i = 0; i < next->count; i++) {
        next->members[i].healed = true;
    }
}

enum rf__verdict rf__decide(const struct rf__facts *facts, struct rf__generation *next) {
    const struct rf__generation *g = facts->current;
    unsigned char seats[RF_MAX_RANKS] = {0};
    bool is_whole_at[RF_MAX_RANKS] = {false};
    struct outcome o = resolve(facts);
    int whole = 0;

    *next = (struct rf__generation){.number = g->number + 1,
                                    .commit = o.commit,
                                    .units = o.units,
                                    .chain = o.chain,
                                    .rolled_back = g->rolled_back && o.units == 0,
                                    .target = o.units == 0 ? g->target : 0,
                                    .order = g->order};
    for (int rank = 0; rank < g->count; rank++) {
        const struct rf__report *report = facts->reports[rank];
        is_whole_at[rank] = report && o.known && is_whole(&report->progress, &o);
    }
    seat_members(facts, is_whole_at, seats);
    take_cause(facts, next);
    for (int rank = 0; rank < g->count; rank++) {
        const struct rf__member_entry *member = &g->members[rank];
        if (seats[rank] == SEAT_STAYS) {
            add(next, member->id, member->nonce, is_whole_at[rank]);
            whole += is_whole_at[rank];
        } else {
            drop(next, member->id,
                 seats[rank] == SEAT_PUT_OUT ? put_out(facts, rank) : doubt_of(facts, member->id));
        }
    }
    for (int i = 0; i < facts->candidate_count && next->count < facts->max_size; i++) {
        const struct rf__candidate *candidate = facts->candidates[i];
        if (rf__candidate_is_welcome(facts, candidate) &&
            rf__generation_find(next, candidate->id, 0) < 0) {
            add(next, candidate->id, candidate->nonce, false);
        }
    }
    bool enough = next->count >= facts->min_size && next->count > 0;
    bool is_lost = o.diverged || (!whole && facts->gives_up);
    if (enough && facts->may_roll_back && (facts->order || is_lost)) {
        roll_back(facts, next);
        return RF__VERDICT_FORM;
    }
    if (o.diverged) {
        return RF__VERDICT_DIVERGED;
    }
    if (!enough) {
        return RF__VERDICT_TOO_FEW;
    }
    return whole ? RF__VERDICT_FORM : RF__VERDICT_STATELESS;
}

enum rf__verdict rf__decide_first(const struct rf__facts *facts, struct rf__generation *next) {
    /* an order that stands there already was for an earlier job of this name */
    *next = (struct rf__generation){.number = facts->current->number + 1,
                                    .order =
                                        facts->order ? facts->order->nonce : facts->current->order};
    for (int i = 0; i < facts->candidate_count && next->count < facts->max_size; i++) {
        const struct rf__candidate *candidate = facts->candidates[i];
        if (candidate->wants && candidate->seen == facts->current->number &&
            rf__generation_find(facts->current, candidate->id, candidate->nonce) < 0) {
            add(next, candidate->id, candidate->nonce, true);
        }
    }
    return next->count < facts->min_size || next->count == 0 ? RF__VERDICT_TOO_FEW
                                                             : RF__VERDICT_FORM;
}

enum rf__verdict rf__decide_anew(const struct rf__facts *facts, struct rf__generation *next) {
    const struct rf__generation *g = facts->current;

    *next = (struct rf__generation){.number = g->number + 1, .order = g->order};
    snprintf(next->cause, sizeof next->cause, "no worker of generation %" PRIu64 " is left",
             g->number);
    for (int i = 0; i < facts->candidate_count && next->count < facts->max_size; i++) {
        const struct rf__candidate *candidate = facts->candidates[i];
        if (rf__candidate_is_welcome(facts, candidate)) {
            add(next, candidate->id, candidate->nonce, true);
        }
    }
    for (int rank = 0; rank < g->count; rank++) {
        drop(next, g->members[rank].id, RF__DOUBT_END);
    }
    roll_back(facts, next);
    return next->count < facts->min_size || next->count == 0 ? RF__VERDICT_TOO_FEW
                                                             : RF__VERDICT_FORM;
}
