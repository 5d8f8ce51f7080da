/* See member.h. Facts are kept as they come; `consider` looks at all of them after each and at each
 * tick, and decides what is due. Actions are bits that `rf__member_next` turns into bytes when they
 * are asked for, so that they always say what holds then. */
#include "member/member.h"

#include "base/mem.h"
#include "base/status.h"
#include "member/decide.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define MS 1000000ll

/* How long the report of a member is waited for whose connection ended, in case that it lives; and
 * by how much each later rank holds back, so that usually one proposes. */
enum { SETTLE_MS = 150, STAGGER_MS = 100, REFUSALS = 16, GIVE_UP_DETECTS = 10 };

enum {
    DUE_PUBLISH = 1,
    DUE_LEAVE = 2,
    DUE_REPORT = 4,
    DUE_FORGET = 8,
    DUE_SWAP = 16,
    DUE_OPEN = 32,
    DUE_REFUSE = 64
};

struct rf__member {
    struct rf__member_options options;
    int64_t now;
    enum rf__member_state state;
    struct rf_error error;
    unsigned due;

    /* The own record. */
    uint64_t config;
    bool may_roll_back;
    bool synced, published;
    bool stands; /* in the store, as one who wants in: what only we know must not be counted on */
    int64_t wants_at;              /* not before: cool-down */
    bool has_come;                 /* back into a group that ran */
    int64_t came_at, return_after; /* when we were last taken in; the pause before the next time */

    /* The store, as seen. */
    struct rf__generation newest;
    int64_t newest_revision;
    struct rf__rollback rollback;                   /* the newest order; nonce 0: none */
    struct rf__candidate *candidates[RF_MAX_RANKS]; /* by id, ascending */
    int candidate_count;

    /* The generation we are or were in. */
    struct rf__generation current;
    int rank;
    struct rf__progress progress;
    struct rf__report own;          /* fixed when we leave, but for suspects until it goes out */
    struct rf__report *reports;     /* by rank */
    const struct rf__report **seen; /* NULL: none yet */
    bool ends;                      /* the job */
    bool has_seen_job;              /* that was not over */

    int64_t reported_at; /* when the own report was found in the store: from here on the others are
                            waited for, who may have been without the store as long as we */
    int64_t since;       /* when the state was entered, or began to wait */
    int64_t form_deadline;
    int64_t ready_at; /* when the facts sufficed to decide; 0: not yet */
    bool is_swapping;
    uint64_t swapped_for; /* the revision from which we swapped last */
    struct rf__generation next;

    uint64_t forget; /* generation whose report is to be deleted */
    int refused_id;
    uint64_t refused[REFUSALS]; /* nonces that were told last */
    unsigned refused_count;
    char waits_for[RF_ERROR_TEXT_MAX];
    char out_reason[RF__MEMBER_TEXT];
    unsigned char bytes[RF__GENERATION_BYTES];
};

int rf__member_create(const struct rf__member_options *options, int64_t now,
                      struct rf__member **out) {
    struct rf__member *m = rf__alloc(1, sizeof *m);

    *out = NULL;
    if (m) {
        m->reports = rf__alloc(RF_MAX_RANKS, sizeof *m->reports);
        m->seen = rf__alloc(RF_MAX_RANKS, sizeof *m->seen);
    }
    if (!m || !m->reports || !m->seen) {
        rf__member_destroy(m);
        return RF_ENOMEM;
    }
    m->options = *options;
    m->now = m->since = now;
    m->rank = -1;
    struct rf__candidate *own = rf__alloc(1, sizeof *own);
    if (!own) {
        rf__member_destroy(m);
        return RF_ENOMEM;
    }
    *own = (struct rf__candidate){
        .id = options->id, .nonce = options->nonce, .restarts = options->restarts};
    snprintf(own->endpoint, sizeof own->endpoint, "%s", options->endpoint);
    m->candidates[m->candidate_count++] = own;
    m->options.endpoint = own->endpoint;
    *out = m;
    return 0;
}

void rf__member_destroy(struct rf__member *m) {
    if (!m) {
        return;
    }
    for (int i = 0; i < m->candidate_count; i++) {
        rf__free(m->candidates[i]);
    }
    rf__free(m->reports);
    rf__free(m->seen);
    rf__free(m);
}

/* ---- Looking things up ---- */

static int find_candidate(const struct rf__member *m, int id) {
    for (int i = 0; i < m->candidate_count; i++) {
        if (m->candidates[i]->id == id) {
            return i;
        }
    }
    return -1;
}

static struct rf__candidate *own_candidate(struct rf__member *m) {
    return m->candidates[find_candidate(m, m->options.id)]; /* it is never removed */
}

/* An order to roll back that `generation` does not know of; or NULL. */
static const struct rf__rollback *order_after(const struct rf__member *m,
                                              const struct rf__generation *generation) {
    bool is_new = m->rollback.nonce && m->rollback.nonce != generation->order;
    return is_new ? &m->rollback : NULL;
}

static struct rf__facts facts_of(const struct rf__member *m) {
    return (struct rf__facts){.current = &m->current,
                              .reports = m->seen,
                              .candidates = (const struct rf__candidate *const *)m->candidates,
                              .candidate_count = m->candidate_count,
                              .min_size = m->options.min_size,
                              .max_size = m->options.max_size,
                              .config = m->config,
                              .may_roll_back = m->may_roll_back,
                              .order = order_after(m, &m->current)};
}

enum rf__member_state rf__member_state(const struct rf__member *m) {
    return m->state;
}

const struct rf__generation *rf__member_generation(const struct rf__member *m) {
    return &m->current;
}

const struct rf__generation *rf__member_newest(const struct rf__member *m) {
    return &m->newest;
}

int rf__member_rank(const struct rf__member *m) {
    return m->rank;
}

const struct rf__progress *rf__member_progress(const struct rf__member *m) {
    return &m->progress;
}

const char *rf__member_endpoint(const struct rf__member *m, int id) {
    int i = find_candidate(m, id);
    return i < 0 ? NULL : m->candidates[i]->endpoint;
}

const char *rf__member_waits_for(const struct rf__member *m) {
    return m->waits_for;
}

const char *rf__member_out_reason(const struct rf__member *m) {
    return m->out_reason;
}

const struct rf_error *rf__member_error(const struct rf__member *m) {
    return &m->error;
}

bool rf__member_is_awaited(const struct rf__member *m) {
    struct rf__facts facts = facts_of(m);

    if (m->state != RF__MEMBER_RUNNING) {
        return false;
    }
    if (facts.order && facts.may_roll_back) {
        return true;
    }
    if (m->current.count >= m->options.max_size) {
        return false;
    }
    for (int i = 0; i < m->candidate_count; i++) {
        if (rf__candidate_is_welcome(&facts, m->candidates[i])) {
            return true;
        }
    }
    return false;
}

/* ---- Changing state ---- */

static void enter(struct rf__member *m, enum rf__member_state state) {
    m->state = state;
    m->since = m->now;
    m->ready_at = 0;
    m->waits_for[0] = 0;
}

static void fail(struct rf__member *m, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void fail(struct rf__member *m, int code, const char *format, ...) {
    char text[RF_ERROR_TEXT_MAX];
    va_list arguments;

    if (m->state == RF__MEMBER_FAILED) {
        return;
    }
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    (void)rf__fail(&m->error, code, 0, "%s", text);
    m->error.rank = -1;
    if (m->state == RF__MEMBER_FORMING || m->state == RF__MEMBER_RUNNING) {
        m->due |= DUE_LEAVE;
    }
    enter(m, RF__MEMBER_FAILED);
}

/* What the own record says: that this worker wants to be taken in, while it is outside. */
static void publish_wish(struct rf__member *m) {
    struct rf__candidate *own = own_candidate(m);
    bool is_first = m->newest.number == 0 || m->newest.ended;
    bool wants =
        m->state == RF__MEMBER_JOINING && m->now >= m->wants_at && (is_first || m->config != 0);
    uint64_t seen = wants ? m->newest.number : own->seen;

    if (m->synced &&
        (own->wants != wants || own->config != m->config || own->seen != seen || !m->published)) {
        own->wants = wants;
        own->config = m->config;
        own->seen = seen;
        m->published = true;
        m->due |= DUE_PUBLISH;
    }
}

/* Leaving the generation and fixing the report is one act. */
static void leave(struct rf__member *m, const char *why) {
    m->own.generation = m->current.number; /* its suspects are there already */
    m->own.id = m->options.id;
    m->own.nonce = m->options.nonce;
    m->own.progress = m->progress;
    snprintf(m->own.cause, sizeof m->own.cause, "%s", why);
    m->due |= DUE_LEAVE | DUE_REPORT;
    m->due &= ~(unsigned)DUE_OPEN;
    enter(m, RF__MEMBER_REVOKED);
}

static bool is_in(const struct rf__member *m) {
    return m->state == RF__MEMBER_FORMING || m->state == RF__MEMBER_RUNNING;
}

static void suspect(struct rf__member *m, int id, enum rf__doubt doubt) {
    for (int i = 0; i < m->own.suspect_count; i++) {
        if (m->own.suspects[i].id == id) {
            return;
        }
    }
    if (m->own.suspect_count < RF__MEMBER_SUSPECTS) {
        m->own.suspects[m->own.suspect_count++] = (struct rf__suspect){id, doubt};
    }
}

void rf__member_put_out(struct rf__member *m, int id) {
    if (is_in(m)) {
        suspect(m, id, RF__DOUBT_SLOW);
    }
}

/* The newest generation has us: go there. What was decided about the unit in flight holds from here
 * on, whether or not the layers above have heard of it. */
static void adopt(struct rf__member *m) {
    int rank = rf__generation_find(&m->newest, m->options.id, m->options.nonce);

    if (m->current.number) {
        m->forget = m->current.number;
        m->due |= DUE_FORGET;
    }
    m->current = m->newest;
    m->rank = rank;
    m->own.suspect_count = 0;
    memset(m->seen, 0, RF_MAX_RANKS * sizeof *m->seen);
    m->progress = (struct rf__progress){.healed = m->current.members[rank].healed,
                                        .units = m->current.units,
                                        .chain = m->current.chain};
    if (m->state == RF__MEMBER_JOINING && m->current.number > 1) {
        m->has_come = true;
        m->came_at = m->now;
    }
    m->out_reason[0] = 0;
    m->due |= DUE_OPEN;
    m->due &= ~(unsigned)(DUE_REPORT | DUE_SWAP);
    enter(m, RF__MEMBER_FORMING);
    m->form_deadline = m->now + 2 * m->options.detect_ns + 1000 * MS;
}

/* Who is put out soon after it came would be put out again: its way to somebody is broken, say, and
 * each try holds all others up. */
static void back_off(struct rf__member *m) {
    int64_t least = 2 * m->options.detect_ns, most = m->options.cool_down_ns;

    if (m->now - m->came_at > 3 * m->options.detect_ns) {
        m->return_after = 0;
        return;
    }
    m->return_after = m->return_after ? 2 * m->return_after : least;
    if (m->return_after > most) {
        m->return_after = most > least ? most : least;
    }
    m->wants_at = m->now + m->return_after;
}

static void note_why_out(struct rf__member *m) {
    if (m->has_come) { /* the first time out is no pattern yet */
        back_off(m);
    }
    snprintf(m->out_reason, sizeof m->out_reason, "generation %" PRIu64 " went on without it",
             m->newest.number);
    for (int i = 0; i < m->newest.dropped_count; i++) {
        const struct rf__suspect *dropped = &m->newest.dropped[i];
        if (dropped->id == m->options.id) {
            snprintf(m->out_reason, sizeof m->out_reason, "%s", rf__doubt_text(dropped->doubt));
            if (dropped->doubt == RF__DOUBT_SLOW) {
                m->wants_at = m->now + m->options.cool_down_ns;
            }
        }
    }
}

static void look_at_newest(struct rf__member *m) {
    if (m->newest.number <= m->current.number || m->state == RF__MEMBER_FAILED) {
        return;
    }
    if (is_in(m)) {
        leave(m, "the group went on without this worker");
        m->due &= ~(unsigned)DUE_REPORT; /* too late to be of use */
    }
    bool is_known = rf__generation_find(&m->newest, m->options.id, m->options.nonce) >= 0;
    if (is_known) {
        adopt(m);
        return;
    }
    if (m->state == RF__MEMBER_REVOKED) {
        if (m->newest.ended) {
            /* the others have finished; what they decided about our unit is in the record */
            bool is_behind = m->progress.prepared && m->progress.units + 1 == m->newest.units &&
                             m->progress.prepared_chain == m->newest.chain;
            bool is_level = m->progress.healed && m->progress.units == m->newest.units;
            if (is_behind || is_level) {
                m->newest.count = 1;
                m->newest.members[0] = (struct rf__member_entry){
                    .id = m->options.id, .nonce = m->options.nonce, .healed = true};
                adopt(m);
                return;
            }
        }
        note_why_out(m);
        enter(m, RF__MEMBER_JOINING);
    }
}

/* ---- Facts ---- */

static void consider(struct rf__member *m);

void rf__member_see_generation(struct rf__member *m, const void *bytes, size_t length,
                               int64_t revision) {
    struct rf__generation *scratch = &m->next;

    if (!bytes || rf__generation_decode(bytes, length, scratch) ||
        scratch->number < m->newest.number) {
        return;
    }
    m->newest = *scratch;
    m->newest_revision = revision;
    m->is_swapping = false;
    m->due &= ~(unsigned)DUE_SWAP;
    look_at_newest(m);
    consider(m);
}

static void forget_candidate(struct rf__member *m, int i) {
    rf__free(m->candidates[i]);
    m->candidate_count--;
    memmove(&m->candidates[i], &m->candidates[i + 1],
            (size_t)(m->candidate_count - i) * sizeof m->candidates[0]);
}

static void keep_candidate(struct rf__member *m, const struct rf__candidate *seen) {
    int i = find_candidate(m, seen->id);

    if (i >= 0) {
        *m->candidates[i] = *seen;
        return;
    }
    struct rf__candidate *copy =
        m->candidate_count < RF_MAX_RANKS ? rf__alloc(1, sizeof *copy) : NULL;
    if (!copy) {
        return; /* it is not taken in then */
    }
    *copy = *seen;
    i = m->candidate_count++;
    while (i > 0 && m->candidates[i - 1]->id > copy->id) {
        m->candidates[i] = m->candidates[i - 1];
        i--;
    }
    m->candidates[i] = copy;
}

void rf__member_see_candidate(struct rf__member *m, int id, const void *bytes, size_t length) {
    struct rf__candidate seen;

    if (id == m->options.id) {
        bool is_there = bytes && rf__candidate_decode(bytes, length, &seen) == 0;
        m->stands = is_there && seen.nonce == m->options.nonce && seen.wants;
        if (is_there && seen.nonce != m->options.nonce && seen.restarts > m->options.restarts) {
            fail(m, RF_ECONFLICT, "worker %d was started again, and took the place of this process",
                 id);
        }
        consider(m);
        return;
    }
    int i = find_candidate(m, id);
    int rank = rf__generation_find(&m->current, id, 0);
    bool is_gone = !bytes || rf__candidate_decode(bytes, length, &seen) || seen.id != id;
    if (is_in(m) && rank >= 0 && rank != m->rank) {
        if (!is_gone && seen.nonce != m->current.members[rank].nonce) {
            rf__member_doubt(m, rank, RF__DOUBT_GONE, "a worker was started again");
        } else if (is_gone && m->state == RF__MEMBER_FORMING) {
            rf__member_doubt(m, rank, RF__DOUBT_GONE, "a worker was gone before the links were up");
        }
    }
    if (is_gone) {
        if (i >= 0) {
            forget_candidate(m, i);
        }
    } else {
        keep_candidate(m, &seen);
    }
    consider(m);
}

void rf__member_see_report(struct rf__member *m, const void *bytes, size_t length) {
    struct rf__report seen;

    if (!bytes || rf__report_decode(bytes, length, &seen) || seen.generation != m->current.number ||
        m->rank < 0) {
        return;
    }
    int rank = rf__generation_find(&m->current, seen.id, seen.nonce);
    if (rank < 0 || m->seen[rank]) {
        return;
    }
    m->reports[rank] = seen;
    m->seen[rank] = &m->reports[rank];
    m->reported_at = rank == m->rank ? m->now : m->reported_at;
    if (is_in(m)) {
        leave(m, seen.cause); /* it has left, and needs us to */
    }
    consider(m);
}

void rf__member_see_refusal(struct rf__member *m, const void *bytes, size_t length) {
    uint64_t nonce = 0;
    char text[RF__MEMBER_TEXT] = "";

    if (!bytes || length < sizeof nonce || length >= sizeof nonce + sizeof text) {
        return;
    }
    for (size_t i = 0; i < sizeof nonce; i++) {
        nonce |= (uint64_t)((const unsigned char *)bytes)[i] << (8 * i);
    }
    memcpy(text, (const unsigned char *)bytes + sizeof nonce, length - sizeof nonce);
    if (nonce == m->options.nonce && m->state == RF__MEMBER_JOINING) {
        fail(m, RF_EREFUSED, "worker %d was refused: %s", m->options.id, text);
    }
}

void rf__member_see_rollback(struct rf__member *m, const void *bytes, size_t length) {
    struct rf__rollback seen;

    if (bytes && rf__rollback_decode(bytes, length, &seen) == 0) {
        m->rollback = seen;
        consider(m);
    }
}

void rf__member_unsynced(struct rf__member *m) {
    m->synced = false;
    for (int i = m->candidate_count - 1; i >= 0; i--) {
        if (m->candidates[i]->id != m->options.id) {
            forget_candidate(m, i);
        }
    }
}

void rf__member_give_up(struct rf__member *m, const struct rf_error *why) {
    bool is_first = m->state != RF__MEMBER_FAILED;
    fail(m, why->code, "%s", why->text);
    if (is_first) {
        m->error = *why;
    }
}

void rf__member_synced(struct rf__member *m) {
    m->synced = true;
    consider(m);
}

void rf__member_swapped(struct rf__member *m, bool answered) {
    m->is_swapping = false;
    if (!answered) {
        m->swapped_for = 0; /* nobody knows: propose again */
    }
    m->ready_at = 0;
}

void rf__member_linked(struct rf__member *m) {
    if (m->state == RF__MEMBER_FORMING) {
        enter(m, RF__MEMBER_RUNNING);
    }
}

void rf__member_doubt(struct rf__member *m, int rank, enum rf__doubt doubt, const char *why) {
    bool may_add = is_in(m) || m->state == RF__MEMBER_REVOKED; /* then for our own use */

    if (may_add && rank >= 0 && rank < m->current.count) {
        suspect(m, m->current.members[rank].id, doubt);
    }
    if (is_in(m)) {
        leave(m, why);
    }
}

void rf__member_revoke(struct rf__member *m, const char *why) {
    if (is_in(m)) {
        leave(m, why);
    }
}

void rf__member_enter(struct rf__member *m, uint64_t config, bool may_roll_back) {
    m->config = config ? config : 1;
    m->may_roll_back = may_roll_back;
    consider(m);
}

int rf__member_note(struct rf__member *m, uint64_t generation,
                    const struct rf__progress *progress) {
    if (m->state != RF__MEMBER_RUNNING || m->current.number != generation) {
        return RF_EREVOKED;
    }
    m->progress = *progress;
    return 0;
}

void rf__member_end(struct rf__member *m) {
    m->ends = true;
    if (m->state == RF__MEMBER_RUNNING && !m->newest.ended) {
        m->due |= DUE_SWAP;
    }
}

/* ---- Deciding ---- */

static enum rf__doubt strongest(const struct rf__report *report, int id, enum rf__doubt doubt) {
    for (int i = 0; i < report->suspect_count; i++) {
        if (report->suspects[i].id == id && report->suspects[i].doubt > doubt) {
            doubt = report->suspects[i].doubt;
        }
    }
    return doubt;
}

/* How many more may come, and whether they are worth the wait: false while somebody lives, as far
 * as is known, who has not reported. */
static bool is_complete(const struct rf__member *m) {
    int64_t waited = m->now - m->reported_at;

    for (int rank = 0; rank < m->current.count; rank++) {
        const struct rf__member_entry *member = &m->current.members[rank];
        if (m->seen[rank]) {
            continue;
        }
        if (rank == m->rank) {
            return false; /* the store has not got our own yet */
        }
        int i = find_candidate(m, member->id);
        if (i < 0 || m->candidates[i]->nonce != member->nonce) {
            continue; /* its record went with its lease, or it was started again */
        }
        enum rf__doubt doubt = strongest(&m->own, member->id, 0);
        for (int other = 0; other < m->current.count; other++) {
            doubt = m->seen[other] ? strongest(m->seen[other], member->id, doubt) : doubt;
        }
        bool may_live = doubt == 0 || doubt == RF__DOUBT_SLOW || doubt == RF__DOUBT_STUCK;
        if (may_live || (doubt == RF__DOUBT_GONE && waited < SETTLE_MS * MS)) {
            return false;
        }
    }
    return true;
}

/* The own place among those who could propose. */
static int place(const struct rf__member *m, bool first) {
    int place = 0;

    for (int rank = 0; !first && rank < m->rank; rank++) {
        place += m->seen[rank] != NULL;
    }
    for (int i = 0; first && i < m->candidate_count; i++) {
        place += m->candidates[i]->wants && m->candidates[i]->id < m->options.id;
    }
    return place;
}

static void propose(struct rf__member *m, bool first) {
    if (m->is_swapping || (m->swapped_for && m->swapped_for == (uint64_t)m->newest_revision + 1)) {
        return;
    }
    if (!m->ready_at) {
        m->ready_at = m->now;
    }
    if (m->now >= m->ready_at + place(m, first) * STAGGER_MS * MS) {
        m->due |= DUE_SWAP;
    }
}

static double seconds(int64_t ns) {
    return (double)ns * 1e-9;
}

/* Ids below the size that the job starts with and that have not come. */
static void name_missing(const struct rf__member *m, char *out, size_t room) {
    size_t at = 0;
    int shown = 0;

    out[0] = 0;
    for (int id = 0; id < m->options.start_size; id++) {
        int i = find_candidate(m, id);
        if ((i >= 0 && m->candidates[i]->wants) || at >= room) {
            continue;
        }
        if (shown++ == 8) {
            (void)snprintf(out + at, room - at, " …");
            return;
        }
        at += (size_t)snprintf(out + at, room - at, "%s%d", at ? ", " : "", id);
    }
}

static void consider_first(struct rf__member *m) {
    int came = 0;
    char missing[80];

    for (int i = 0; i < m->candidate_count; i++) {
        came += m->candidates[i]->wants && m->candidates[i]->seen == m->newest.number &&
                rf__generation_find(&m->newest, m->candidates[i]->id, m->candidates[i]->nonce) < 0;
    }
    bool late = m->now - m->since > m->options.start_timeout_ns;
    bool enough = came >= m->options.start_size || (late && came >= m->options.min_size);
    if (m->stands && enough) {
        propose(m, true);
        return;
    }
    name_missing(m, missing, sizeof missing);
    snprintf(m->waits_for, sizeof m->waits_for, "%d of %d workers are here; missing: worker %s",
             came, m->options.start_size, missing);
    if (late) {
        fail(m, RF_ETIMEDOUT, "%d of %d workers came within %.0f s; missing: worker %s", came,
             m->options.start_size, seconds(m->now - m->since), missing);
    }
}

/* How many of the newest generation's processes have their record in the store. */
static int count_present(const struct rf__member *m) {
    int count = 0;

    for (int rank = 0; rank < m->newest.count; rank++) {
        int i = find_candidate(m, m->newest.members[rank].id);
        count += i >= 0 && m->candidates[i]->nonce == m->newest.members[rank].nonce;
    }
    return count;
}

/* Whether the processes of the newest generation are known to be gone: each was started again. */
static bool are_replaced(const struct rf__member *m, const struct rf__generation *g,
                         bool is_reporter) {
    for (int rank = 0; rank < g->count; rank++) {
        int i = find_candidate(m, g->members[rank].id);
        bool is_replaced = i >= 0 && m->candidates[i]->nonce != g->members[rank].nonce;
        if (!is_replaced && !(is_reporter && m->seen[rank])) {
            return false;
        }
    }
    return true;
}

/* Nobody of the newest generation is left: where that is certain, or has lasted, those that are
 * here start again from a checkpoint. */
static bool starts_anew(struct rf__member *m) {
    struct rf__facts facts = facts_of(m);
    bool late = m->now - m->since > m->options.start_timeout_ns && count_present(m) == 0;

    facts.current = &m->newest;
    facts.order = order_after(m, &m->newest);
    if (!m->may_roll_back || !m->stands || !(late || are_replaced(m, &m->newest, false)) ||
        rf__decide_anew(&facts, &m->next) != RF__VERDICT_FORM) {
        return false;
    }
    propose(m, true);
    return true;
}

static void consider_joining(struct rf__member *m) {
    bool has_job = m->newest.number && !m->newest.ended;

    if (!m->synced) {
        if (m->now - m->since > m->options.start_timeout_ns) {
            fail(m, RF_ESTORE, "the store has not answered worker %d within %.1f s", m->options.id,
                 seconds(m->now - m->since));
        }
        return;
    }
    m->has_seen_job = m->has_seen_job || has_job;
    if (m->newest.ended && (m->options.restarts > 0 || m->has_seen_job)) {
        fail(m, RF_EENDED, "the job has ended with unit %" PRIu64, m->newest.units);
        return;
    }
    if (!has_job) {
        consider_first(m);
        return;
    }
    if (!m->config) {
        m->since = m->now; /* not asked to be taken in yet */
        return;
    }
    if (m->now < m->wants_at) {
        snprintf(m->waits_for, sizeof m->waits_for,
                 "it was put out (%s), and waits before it returns", m->out_reason);
        m->since = m->now;
        return;
    }
    snprintf(m->waits_for, sizeof m->waits_for,
             "generation %" PRIu64 " of %d workers takes this one in at the end of a step",
             m->newest.number, m->newest.count);
    if (starts_anew(m) || m->now - m->since <= m->options.start_timeout_ns) {
        return;
    }
    if (count_present(m) == 0) {
        fail(m, RF_ESTATELESS,
             "none of the %d workers of generation %" PRIu64
             " has been here for %.0f s, and nobody "
             "else holds the state",
             m->newest.count, m->newest.number, seconds(m->now - m->since));
        return;
    }
    fail(m, RF_ETIMEDOUT,
         "generation %" PRIu64
         " has not taken worker %d in within %.0f s: it may be full at %d, or "
         "cut off",
         m->newest.number, m->options.id, seconds(m->now - m->since), m->options.max_size);
}

/* Whether to go back to a checkpoint where nobody holds the state: at once where those that may
 * have held it are gone for certain, else after a while. */
static bool gives_up(const struct rf__member *m) {
    bool late = m->now - m->since > GIVE_UP_DETECTS * m->options.detect_ns;
    return late || are_replaced(m, &m->current, true);
}

static void consider_revoked(struct rf__member *m) {
    struct rf__facts facts = facts_of(m);
    bool late = m->now - m->since > m->options.start_timeout_ns;

    if (!m->seen[m->rank]) {
        snprintf(m->waits_for, sizeof m->waits_for, "the store has not answered for %.1f s",
                 seconds(m->now - m->since));
        if (late) {
            fail(m, RF_ESTORE, "worker %d has not reached the store within %.0f s after %s",
                 m->options.id, seconds(m->now - m->since), m->own.cause);
        }
        return;
    }
    if (!is_complete(m) && m->now - m->reported_at < m->options.detect_ns) {
        return;
    }
    facts.gives_up = gives_up(m);
    switch (rf__decide(&facts, &m->next)) {
    case RF__VERDICT_FORM:
        m->waits_for[0] = 0;
        propose(m, false);
        return;
    case RF__VERDICT_TOO_FEW:
        snprintf(m->waits_for, sizeof m->waits_for, "%d worker%s left, and the minimum is %d: %s",
                 m->next.count, m->next.count == 1 ? " is" : "s are", m->options.min_size,
                 m->own.cause);
        if (late) {
            fail(m, RF_ETOOFEW, "%d worker%s left, and the minimum is %d, for %.0f s: %s",
                 m->next.count, m->next.count == 1 ? " is" : "s are", m->options.min_size,
                 seconds(m->now - m->since), m->own.cause);
        }
        return;
    case RF__VERDICT_STATELESS:
        snprintf(m->waits_for, sizeof m->waits_for,
                 "none of the %d workers that are left holds the state", m->next.count);
        if (late) {
            fail(m, RF_ESTATELESS, "none of the %d workers that are left holds the state: %s",
                 m->next.count, m->own.cause);
        }
        return;
    case RF__VERDICT_DIVERGED:
        fail(m, RF_EDIVERGED,
             "the workers that are left after %s hold different states, and none of them the "
             "majority's",
             m->own.cause);
        return;
    }
}

/* Somebody asks to be taken in who trains something else. */
static void consider_strangers(struct rf__member *m) {
    if (m->rank != 0 || !m->config) {
        return;
    }
    for (int i = 0; i < m->candidate_count; i++) {
        const struct rf__candidate *c = m->candidates[i];
        bool is_stranger = c->wants && c->config && c->config != m->config;
        for (int k = 0; is_stranger && k < REFUSALS; k++) {
            is_stranger = m->refused[k] != c->nonce;
        }
        if (is_stranger && rf__generation_find(&m->current, c->id, c->nonce) < 0) {
            m->refused_id = c->id;
            m->due |= DUE_REFUSE;
            return;
        }
    }
}

static void consider(struct rf__member *m) {
    publish_wish(m);
    switch (m->state) {
    case RF__MEMBER_JOINING:
        consider_joining(m);
        return;
    case RF__MEMBER_FORMING:
        if (m->now > m->form_deadline) {
            leave(m, "not all links came up in time");
        }
        return;
    case RF__MEMBER_RUNNING:
        consider_strangers(m);
        return;
    case RF__MEMBER_REVOKED:
        consider_revoked(m);
        return;
    case RF__MEMBER_FAILED:
        return;
    }
}

void rf__member_time(struct rf__member *m, int64_t now) {
    m->now = now;
}

void rf__member_tick(struct rf__member *m, int64_t now) {
    m->now = now;
    consider(m);
}

int64_t rf__member_deadline(const struct rf__member *m) {
    switch (m->state) {
    case RF__MEMBER_FORMING:
        return m->form_deadline + 1;
    case RF__MEMBER_JOINING:
    case RF__MEMBER_REVOKED:
        return m->now + SETTLE_MS * MS / 3;
    case RF__MEMBER_RUNNING:
    case RF__MEMBER_FAILED:
        break;
    }
    return INT64_MAX;
}

/* ---- Actions ---- */

/* The generation to swap in, from the facts as they are now; false where they have changed. */
static bool fill_swap(struct rf__member *m) {
    struct rf__facts facts = facts_of(m);

    if (m->state == RF__MEMBER_RUNNING && m->ends) {
        m->next = m->current;
        m->next.number++;
        m->next.ended = true;
        m->next.commit = false;
        m->next.units = m->progress.units;
        m->next.chain = m->progress.chain;
        m->next.count = m->next.dropped_count = 0;
        snprintf(m->next.cause, sizeof m->next.cause, "the job has ended");
        return true;
    }
    if (m->state == RF__MEMBER_JOINING) {
        facts.current = &m->newest;
        facts.order = order_after(m, &m->newest);
        if (m->newest.number && !m->newest.ended) {
            return rf__decide_anew(&facts, &m->next) == RF__VERDICT_FORM;
        }
        return rf__decide_first(&facts, &m->next) == RF__VERDICT_FORM;
    }
    facts.gives_up = m->state == RF__MEMBER_REVOKED && gives_up(m);
    return m->state == RF__MEMBER_REVOKED && m->newest.number == m->current.number &&
           rf__decide(&facts, &m->next) == RF__VERDICT_FORM;
}

static bool fill(struct rf__member *m, unsigned bit, struct rf__member_action *out) {
    *out = (struct rf__member_action){.bytes = m->bytes, .generation = m->current.number};
    switch (bit) {
    case DUE_PUBLISH:
        out->kind = RF__MEMBER_PUBLISH;
        out->length = rf__candidate_encode(own_candidate(m), m->bytes, sizeof m->bytes);
        return true;
    case DUE_LEAVE:
        out->kind = RF__MEMBER_LEAVE;
        return true;
    case DUE_REPORT:
        out->kind = RF__MEMBER_REPORT;
        out->length = rf__report_encode(&m->own, m->bytes, sizeof m->bytes);
        return true;
    case DUE_FORGET:
        out->kind = RF__MEMBER_FORGET;
        out->generation = m->forget;
        return true;
    case DUE_SWAP:
        if (!fill_swap(m)) {
            return false;
        }
        out->kind = RF__MEMBER_SWAP;
        out->revision = m->newest_revision;
        out->length = rf__generation_encode(&m->next, m->bytes, sizeof m->bytes);
        m->is_swapping = true;
        m->swapped_for = (uint64_t)m->newest_revision + 1;
        return true;
    case DUE_OPEN:
        out->kind = RF__MEMBER_OPEN;
        return true;
    case DUE_REFUSE: {
        int i = find_candidate(m, m->refused_id);
        if (i < 0) {
            return false;
        }
        uint64_t nonce = m->candidates[i]->nonce;
        char text[RF__MEMBER_TEXT];
        snprintf(text, sizeof text,
                 "it trains something else: its model, options or table of algorithms have digest "
                 "%016" PRIx64 ", the job's %016" PRIx64,
                 m->candidates[i]->config, m->config);
        for (int k = 0; k < 8; k++) {
            m->bytes[k] = (unsigned char)(nonce >> (8 * k));
        }
        memcpy(m->bytes + 8, text, strlen(text));
        m->refused[m->refused_count++ % REFUSALS] = nonce;
        out->kind = RF__MEMBER_REFUSE;
        out->id = m->refused_id;
        out->length = 8 + strlen(text);
        return true;
    }
    default:
        break;
    }
    return false;
}

int rf__member_next(struct rf__member *m, struct rf__member_action *out) {
    while (m->due) {
        unsigned bit = m->due & (~m->due + 1);
        m->due &= ~bit;
        if (fill(m, bit, out)) {
            return 1;
        }
    }
    return 0;
}
