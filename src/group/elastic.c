/* An elastic group: drives the membership machine. Its facts come from a watch on all of the job's
 * keys and from the links; its actions become requests to the store, links, and the end of
 * generations. Keys:
 *
 *     rf/JOB/generation   the newest generation
 *     rf/JOB/m/ID         a worker that is here; dies with its lease
 *     rf/JOB/g/G/r/ID     what a member reported when it left generation G
 *     rf/JOB/no/ID        why a worker is not taken in
 *     rf/JOB/rollback     an operator's order to go back to a checkpoint
 *     rf/JOB/fault/ID     an order of a rehearsal: "cut MS", "flip", "storage down MS",
 *                         "storage full MS" or "storage kill"
 *
 * What is to stand in the store is kept as a wish until the store has answered: a store that is
 * away delays, and changes nothing. */
#include "group/inner.h"

#include "base/digest.h"
#include "base/mem.h"
#include "base/status.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    RETRY_MS = 100,
    REQUEST_MS = 3000, /* how long one request to the store is tried before it is made again */
    TELL_WAIT_MS = 2000,
    TELL_WAIT_AGAIN_MS = 30000,
    STUCK_GAPS = 10 /* a program stands still when it does so for so many times its longest pause */
};

static int64_t lease_ms(const struct rf__group *group) {
    int64_t ttl = 4 * (int64_t)group->options.detect_ms;
    return ttl > 10000 ? ttl : 10000;
}

/* ---- Telling ---- */

static struct rf_event event_of(const struct rf__group *group, enum rf_event_kind kind) {
    const struct rf__elastic *e = &group->elastic;
    const struct rf__generation *g = rf__member_generation(e->member);
    return (struct rf_event){.kind = kind,
                             .id = group->options.id,
                             .rank = group->rank,
                             .size = group->size,
                             .generation = g->number,
                             .unit = rf__member_progress(e->member)->units,
                             .peer = -1};
}

static void tell(struct rf__group *group, const struct rf_event *event) {
    if (group->options.tell) {
        group->options.tell(group->options.tell_context, event);
    }
}

static void copy_text(char *out, size_t room, const char *text) {
    snprintf(out, room, "%.*s", (int)room - 1, text);
}

/* ---- The store ---- */

static uint64_t submit(struct rf__group *group, struct rf__store_request request) {
    struct rf__store *store = group->options.store;

    /* of a short start, a little less: the store's own report is the better one */
    int64_t most = (int64_t)group->options.start_timeout_ms / 8 * 7 + 1;

    request.id = ++group->elastic.next_id;
    request.deadline_ms = most < REQUEST_MS ? most : REQUEST_MS;
    if (!request.key) {
        request.key = "";
    }
    return store->ops->submit(store, &request, NULL) ? 0 : request.id;
}

static void start_list(struct rf__group *group) {
    struct rf__elastic *e = &group->elastic;
    char key[RF_MAX_STORE_KEY];

    rf__member_unsynced(e->member);
    snprintf(key, sizeof key, "rf/%s/", group->options.job);
    e->list = submit(group, (struct rf__store_request){.op = RF__STORE_LIST, .key = key});
    e->list_retry_at = e->list ? RF__NEVER : group->now + RETRY_MS * RF__MS;
}

static void take_fault(struct rf__group *group, const struct rf__store_event *event) {
    char text[32] = "";

    if (!group->options.faults || !event->value || event->value_bytes >= sizeof text) {
        return;
    }
    memcpy(text, event->value, event->value_bytes);
    if (!strcmp(text, "flip")) {
        group->elastic.flip_is_due = true;
    } else if (!strncmp(text, "cut ", 4)) {
        int64_t until = group->now + strtol(text + 4, NULL, 10) * RF__MS;
        if (group->options.net->ops->mute) {
            group->options.net->ops->mute(group->options.net, until);
        }
        if (group->options.store->ops->mute) {
            group->options.store->ops->mute(group->options.store, until);
        }
    } else if (group->options.rehearse) {
        group->options.rehearse(group->options.tell_context, text);
    }
}

static bool read_number(const char **at, uint64_t *out) {
    char *end;
    if (**at < '0' || **at > '9') {
        return false;
    }
    *out = strtoull(*at, &end, 10);
    *at = end;
    return true;
}

static bool skip(const char **at, const char *prefix) {
    size_t length = strlen(prefix);
    if (strncmp(*at, prefix, length) != 0) {
        return false;
    }
    *at += length;
    return true;
}

static void take_own_record(struct rf__group *group, const struct rf__store_event *event) {
    struct rf__elastic *e = &group->elastic;
    struct rf__candidate seen;

    e->own_revision = event->value ? event->key_revision : 0;
    e->own_nonce = 0;
    if (event->value && rf__candidate_decode(event->value, event->value_bytes, &seen) == 0) {
        e->own_nonce = seen.nonce;
        e->own_restarts = seen.restarts;
    }
    if (e->own_nonce != group->options.nonce && !group->leaving) {
        e->wishes[RF__WISH_PUBLISH].is_due = e->wishes[RF__WISH_PUBLISH].length > 0;
    }
    if (!event->value) {
        e->lease = 0; /* it died with it, while we were away */
    }
}

static void take_key(struct rf__group *group, const struct rf__store_event *event, bool listed) {
    struct rf__elastic *e = &group->elastic;
    const char *at = event->key;
    uint64_t id, generation;

    if (!skip(&at, "rf/") || !skip(&at, group->options.job) || !skip(&at, "/")) {
        return;
    }
    if (!strcmp(at, "generation")) {
        rf__member_see_generation(e->member, event->value, event->value_bytes, event->key_revision);
    } else if (!strcmp(at, "rollback")) {
        rf__member_see_rollback(e->member, event->value, event->value_bytes);
    } else if (skip(&at, "m/") && read_number(&at, &id) && !*at && id < RF__MEMBER_ID_MAX) {
        if ((int)id == group->options.id) {
            take_own_record(group, event);
        }
        rf__member_see_candidate(e->member, (int)id, event->value, event->value_bytes);
    } else if (skip(&at, "g/") && read_number(&at, &generation) && skip(&at, "/r/")) {
        rf__member_see_report(e->member, event->value, event->value_bytes);
    } else if (skip(&at, "no/") && read_number(&at, &id) && (int)id == group->options.id) {
        rf__member_see_refusal(e->member, event->value, event->value_bytes);
    } else if (skip(&at, "fault/") && read_number(&at, &id) && (int)id == group->options.id &&
               !listed) { /* an order that stood there before is not for this start */
        take_fault(group, event);
    }
}

static void take_wish_reply(struct rf__group *group, int which,
                            const struct rf__store_event *event) {
    struct rf__elastic *e = &group->elastic;
    struct rf__wish *wish = &e->wishes[which];
    bool is_lost = event->code != 0 && event->code != RF_ECONFLICT && event->code != RF_ENOTFOUND;

    wish->request = 0;
    if (which == RF__WISH_SWAP) {
        rf__member_swapped(e->member, !is_lost);
        return;
    }
    if (which == RF__WISH_PUBLISH && event->code == RF_ENOTFOUND) {
        e->lease = 0;
    }
    bool again = is_lost || (which == RF__WISH_PUBLISH && event->code != 0);
    if (again) {
        wish->is_due = true;
        wish->retry_at = group->now + RETRY_MS * RF__MS;
    }
}

static void take_reply(struct rf__group *group, const struct rf__store_event *event) {
    struct rf__elastic *e = &group->elastic;

    if (event->id == e->list) {
        e->list = 0;
        if (event->code) {
            e->list_retry_at = group->now + RETRY_MS * RF__MS;
            bool is_late = group->now - e->begun > group->options.start_timeout_ms / 4 * 3 * RF__MS;
            bool is_final = event->code == RF_EAUTH || event->code == RF_EPROTO ||
                            (is_late && !rf__member_newest(e->member)->number);
            if (is_final && event->error) {
                rf__member_give_up(e->member, event->error);
            }
            return;
        }
        char key[RF_MAX_STORE_KEY];
        snprintf(key, sizeof key, "rf/%s/", group->options.job);
        e->watch = submit(group, (struct rf__store_request){.op = RF__STORE_WATCH,
                                                            .key = key,
                                                            .revision = event->store_revision + 1});
        rf__member_synced(e->member);
        return;
    }
    if (event->id == e->watch) {
        if (event->code) { /* what it would have told is not all known any more */
            e->watch = 0;
            e->list_retry_at = group->now + RETRY_MS * RF__MS;
        }
        return;
    }
    if (event->id == e->lease_request) {
        e->lease_request = 0;
        e->lease = event->code ? 0 : event->lease;
        e->lease_renew = group->now + lease_ms(group) * RF__MS / 3;
        e->lease_retry_at = group->now + RETRY_MS * RF__MS;
        return;
    }
    if (event->id == e->keepalive) {
        e->keepalive = 0;
        if (event->code == RF_ENOTFOUND) {
            e->lease = 0;
            e->wishes[RF__WISH_PUBLISH].is_due = e->wishes[RF__WISH_PUBLISH].length > 0;
        }
        return;
    }
    if (event->id == e->revoke) {
        e->revoke = 0;
        return;
    }
    for (int which = 0; which < RF__WISHES; which++) {
        if (event->id == e->wishes[which].request) {
            take_wish_reply(group, which, event);
            return;
        }
    }
}

static int wish_for(struct rf__group *group, int which, const struct rf__member_action *action) {
    struct rf__wish *wish = &group->elastic.wishes[which];

    if (action->length > wish->room) {
        unsigned char *larger = rf__grow(wish->bytes, action->length, 1);
        if (!larger) {
            return RF_ENOMEM;
        }
        wish->bytes = larger;
        wish->room = action->length;
    }
    if (action->length) {
        memcpy(wish->bytes, action->bytes, action->length);
    }
    wish->length = action->length;
    wish->generation = action->generation;
    wish->revision = action->revision;
    wish->id = action->id;
    wish->is_due = true;
    wish->request = 0; /* the reply to an older one says nothing about this */
    wish->retry_at = 0;
    return 0;
}

/* The own record may stand there from an earlier start of this worker, whose place we take, or from
 * one that is no earlier: then it must go away first. */
static bool may_publish(struct rf__group *group) {
    struct rf__elastic *e = &group->elastic;
    bool is_taken = e->own_nonce && e->own_nonce != group->options.nonce &&
                    e->own_restarts >= (uint32_t)group->options.restarts;

    if (!is_taken) {
        e->taken_since = 0;
    } else if (!e->taken_since) {
        e->taken_since = group->now;
    } else if (group->now - e->taken_since > (2 * lease_ms(group) + 1000) * RF__MS) {
        struct rf_error error;
        (void)rf__fail(&error, RF_ECONFLICT, 0, "worker %d of job '%s' is there already",
                       group->options.id, group->options.job);
        rf__member_give_up(e->member, &error);
    }
    if (!is_taken && !e->lease && !e->lease_request && group->now >= e->lease_retry_at) {
        e->lease_request = submit(
            group, (struct rf__store_request){.op = RF__STORE_LEASE, .ttl_ms = lease_ms(group)});
        e->lease_retry_at = group->now + RETRY_MS * RF__MS;
    }
    return !is_taken && e->lease;
}

static void carry_out(struct rf__group *group, int which) {
    struct rf__elastic *e = &group->elastic;
    struct rf__wish *wish = &e->wishes[which];
    const char *job = group->options.job;
    char key[RF_MAX_STORE_KEY];
    struct rf__store_request request = {
        .op = RF__STORE_CAS, .key = key, .value = wish->bytes, .value_bytes = wish->length};

    switch (which) {
    case RF__WISH_PUBLISH:
        if (!may_publish(group)) {
            return;
        }
        snprintf(key, sizeof key, "rf/%s/m/%d", job, group->options.id);
        request.revision = e->own_revision;
        request.lease = e->lease;
        break;
    case RF__WISH_REPORT:
        snprintf(key, sizeof key, "rf/%s/g/%" PRIu64 "/r/%d", job, wish->generation,
                 group->options.id);
        break;
    case RF__WISH_SWAP:
        snprintf(key, sizeof key, "rf/%s/generation", job);
        request.revision = wish->revision;
        break;
    case RF__WISH_REFUSE:
        snprintf(key, sizeof key, "rf/%s/no/%d", job, wish->id);
        request.op = RF__STORE_PUT;
        request.lease = e->lease;
        break;
    case RF__WISH_FORGET:
        snprintf(key, sizeof key, "rf/%s/g/%" PRIu64 "/r/%d", job, wish->generation,
                 group->options.id);
        request.op = RF__STORE_DELETE;
        break;
    default:
        break;
    }
    wish->request = submit(group, request);
    wish->is_due = wish->request == 0;
    wish->retry_at = group->now + RETRY_MS * RF__MS;
}

static bool serve_store(struct rf__group *group) {
    struct rf__elastic *e = &group->elastic;
    struct rf__store *store = group->options.store;
    struct rf__store_event event;
    bool moved = false;

    store->ops->pump(store, group->now);
    while (store->ops->next(store, &event)) {
        moved = true;
        if (event.kind == RF__STORE_REPLY) {
            take_reply(group, &event);
        } else {
            take_key(group, &event, event.kind == RF__STORE_ITEM);
        }
    }
    if (!e->list && group->now >= e->list_retry_at) {
        start_list(group);
    }
    if (e->lease && group->now >= e->lease_renew && !group->leaving) {
        e->lease_renew = group->now + lease_ms(group) * RF__MS / 3;
        e->keepalive = submit(group, (struct rf__store_request){.op = RF__STORE_KEEPALIVE,
                                                                .lease = e->lease,
                                                                .ttl_ms = lease_ms(group)});
    }
    return moved;
}

static void carry_out_wishes(struct rf__group *group) {
    for (int which = 0; which < RF__WISHES; which++) {
        struct rf__wish *wish = &group->elastic.wishes[which];
        bool may = which != RF__WISH_PUBLISH || !group->leaving;
        if (wish->is_due && !wish->request && group->now >= wish->retry_at && may) {
            carry_out(group, which);
        }
    }
}

/* ---- Generations ---- */

static void end_generation(struct rf__group *group) {
    struct rf__elastic *e = &group->elastic;
    struct rf_event event = event_of(group, RF_EVENT_REVOKE);

    atomic_store_explicit(&e->running, 0, memory_order_release);
    e->ended_at = group->now;
    if (group->cause.code == 0) {
        (void)rf__fail(&group->cause, RF_EREVOKED, 0, "generation %" PRIu64 " is over",
                       event.generation);
        group->cause.rank = -1;
    }
    if (group->cause.rank >= 0 && group->cause.rank < group->size) {
        event.peer = e->ids[group->cause.rank];
    }
    copy_text(event.text, sizeof event.text, group->cause.text);
    if (!rf__member_newest(e->member)->ended) {
        tell(group, &event);
    }
    struct rf_error cause = group->cause;
    rf__group_end_generation(group, &cause);
}

/* Tag of the job and its members, for frames. */
static uint64_t tag_of(const struct rf__group *group, const struct rf__generation *g) {
    uint64_t digest = rf__digest(group->options.job, strlen(group->options.job), g->number);
    for (int rank = 0; rank < g->count; rank++) {
        digest = rf__digest_mix(digest, (uint64_t)g->members[rank].id);
        digest = rf__digest_mix(digest, g->members[rank].nonce);
    }
    return digest;
}

static void keep_ids(struct rf__group *group, const struct rf__generation *g) {
    struct rf__elastic *e = &group->elastic;
    int *ids = e->last_ids;

    e->last_ids = e->ids;
    e->last_size = group->size;
    e->ids = ids;
    for (int rank = 0; rank < g->count; rank++) {
        ids[rank] = g->members[rank].id;
        e->healed[rank] = g->members[rank].healed;
    }
}

/* A generation to which a member does not come. The links of the one before end all the same:
 * whatever they would still tell is of other ranks. */
static void miss_member(struct rf__group *group, int rank, int id) {
    struct rf__elastic *e = &group->elastic;
    struct rf__net *net = group->options.net;
    const char *own = rf__member_endpoint(e->member, group->options.id);
    struct rf__net_group alone = {
        .generation = group->generation, .rank = 0, .size = 1, .endpoints = &own};
    struct rf_error err;

    if (net->ops->open(net, &alone, &err)) {
        rf__member_give_up(e->member, &err);
        return;
    }
    (void)rf__fail(&err, RF_ELOST, 0, "worker %d was gone before the links were up", id);
    err.rank = rank;
    rf__elastic_doubt(group, rank, RF__DOUBT_GONE, &err);
}

/* Who has another table than the first of the members gives up, so that the others can go on. */
static bool has_table_of_first(struct rf__group *group, const struct rf__generation *g,
                               const char *record) {
    char theirs[RF__TABLE_LINE], ours[RF__TABLE_LINE];
    struct rf_error err;
    bool differs = rf__table_differs(group, record, theirs, ours);

    if (differs) {
        (void)rf__fail(&err, RF_EMISMATCH, 0,
                       "worker %d chooses algorithms by %s, but worker %d by %s: give all the same "
                       "RINGFOLD_TUNING",
                       group->options.id, ours, g->members[0].id, theirs);
        err.rank = group->rank;
        rf__member_give_up(group->elastic.member, &err);
    }
    return !differs;
}

/* The endpoints alone, where records say more: in *copy, for rf__free. */
static int cut_records(const char **endpoints, int count, char **copy) {
    char *at = NULL;
    int rc = 0;

    *copy = NULL;
    for (int rank = 0; rank < count && !rc; rank++) {
        size_t length = rf__table_endpoint(endpoints[rank]);
        if (endpoints[rank][length]) {
            if (!*copy) {
                at = *copy = rf__alloc((size_t)count, RF__MEMBER_ENDPOINT);
                rc = at ? 0 : RF_ENOMEM;
            }
            if (!rc) {
                memcpy(at, endpoints[rank], length);
                endpoints[rank] = at;
                at += length + 1;
            }
        }
    }
    return rc;
}

static void open_links(struct rf__group *group) {
    struct rf__elastic *e = &group->elastic;
    const struct rf__generation *g = rf__member_generation(e->member);
    struct rf__net *net = group->options.net;
    const char *endpoints[RF_MAX_RANKS];
    char *copy = NULL;
    struct rf_error err;

    keep_ids(group, g);
    int rc = rf__group_reset(group, rf__member_rank(e->member), g->count);
    if (rc) {
        (void)rf__fail(&err, rc, 0, "no memory for a group of %d", g->count);
        rf__member_give_up(e->member, &err);
        return;
    }
    group->generation = g->number;
    group->job = tag_of(group, g);
    for (int rank = 0; rank < g->count; rank++) {
        endpoints[rank] = rf__member_endpoint(e->member, g->members[rank].id);
        if (!endpoints[rank]) {
            miss_member(group, rank, g->members[rank].id);
            return;
        }
    }
    if (!has_table_of_first(group, g, endpoints[0])) {
        return;
    }
    struct rf__net_group members = {
        .generation = g->number, .rank = group->rank, .size = group->size, .endpoints = endpoints};
    rc = cut_records(endpoints, g->count, &copy);
    if (rc) {
        (void)rf__fail(&err, rc, 0, "no memory for the addresses of %d workers", g->count);
    } else {
        rc = net->ops->open(net, &members, &err);
    }
    if (rc) {
        rf__member_give_up(e->member, &err);
    }
    rf__free(copy);
}

static void drain(struct rf__group *group) {
    struct rf__elastic *e = &group->elastic;
    struct rf__member_action action;

    while (rf__member_next(e->member, &action)) {
        int rc = 0;
        switch (action.kind) {
        case RF__MEMBER_PUBLISH:
            rc = wish_for(group, RF__WISH_PUBLISH, &action);
            break;
        case RF__MEMBER_REPORT:
            rc = wish_for(group, RF__WISH_REPORT, &action);
            break;
        case RF__MEMBER_SWAP:
            rc = wish_for(group, RF__WISH_SWAP, &action);
            break;
        case RF__MEMBER_REFUSE:
            rc = wish_for(group, RF__WISH_REFUSE, &action);
            break;
        case RF__MEMBER_FORGET:
            rc = wish_for(group, RF__WISH_FORGET, &action);
            if (group->elastic.wishes[RF__WISH_REPORT].generation == action.generation) {
                group->elastic.wishes[RF__WISH_REPORT].is_due = false;
            } /* else it is that of the next, which was over at once */
            break;
        case RF__MEMBER_LEAVE:
            end_generation(group);
            break;
        case RF__MEMBER_OPEN:
            open_links(group);
            break;
        }
        if (rc) {
            struct rf_error err;
            (void)rf__fail(&err, rc, 0, "no memory for a request to the store");
            rf__member_give_up(e->member, &err);
        }
    }
    carry_out_wishes(group);
}

/* How the machine's state looks from outside. */
static void set_state(struct rf__group *group) {
    struct rf__elastic *e = &group->elastic;
    const struct rf__generation *newest = rf__member_newest(e->member);

    switch (rf__member_state(e->member)) {
    case RF__MEMBER_JOINING:
        group->state = newest->number && !newest->ended ? RF__GROUP_OUTSIDE : RF__GROUP_FORMING;
        break;
    case RF__MEMBER_FORMING:
        group->state = RF__GROUP_FORMING;
        break;
    case RF__MEMBER_RUNNING:
        group->state = RF__GROUP_RUNNING;
        break;
    case RF__MEMBER_REVOKED:
        group->state = RF__GROUP_REVOKED;
        break;
    case RF__MEMBER_FAILED:
        if (group->state != RF__GROUP_FAILED) {
            group->cause = *rf__member_error(e->member);
            group->state = RF__GROUP_FAILED;
        }
        break;
    }
}

static void tell_formed(struct rf__group *group) {
    struct rf__elastic *e = &group->elastic;
    struct rf_event event = event_of(group, RF_EVENT_FORM);

    if (rf__member_generation(e->member)->ended) {
        return; /* a worker by itself that sees to its own end */
    }
    event.seconds = e->ended_at ? (double)(group->now - e->ended_at) * 1e-9 : 0;
    copy_text(event.text, sizeof event.text, rf__member_generation(e->member)->cause);
    tell(group, &event);
}

static void check_links(struct rf__group *group) {
    struct rf__elastic *e = &group->elastic;
    struct rf_error err;

    if (rf__member_state(e->member) != RF__MEMBER_FORMING) {
        return;
    }
    if (group->form.connected == group->size - 1) {
        rf__group_check_local(group);
        rf__member_linked(e->member);
        atomic_store_explicit(&e->running, group->generation, memory_order_release);
        tell_formed(group);
        return;
    }
    if (group->now < rf__member_deadline(e->member)) {
        return;
    }
    for (int rank = 0; rank < group->size; rank++) {
        if (rank != group->rank && !group->peers[rank].up) {
            (void)rf__fail(&err, RF_ELOST, 0, "no connection with worker %d came about",
                           e->ids[rank]);
            err.rank = rank;
            rf__elastic_doubt(group, rank, RF__DOUBT_UNREACHABLE, &err);
        }
    }
}

/* A program that stands still for ten times as long as it ever did between two calls, and the
 * detection time more, is as good as dead, although its engine answers. */
static void check_progress(struct rf__group *group) {
    struct rf__elastic *e = &group->elastic;
    int64_t alive = atomic_load_explicit(&e->alive, memory_order_relaxed);
    int64_t detect = group->options.detect_ms * RF__MS;
    struct rf_error err;

    if (alive != e->alive_seen) {
        bool is_pause = e->alive_seen && e->alive_seen != RF__NEVER && e->noted.units;
        int64_t gap = is_pause && alive != RF__NEVER ? alive - e->alive_seen : 0;
        e->longest_gap = gap > e->longest_gap ? gap : e->longest_gap;
        e->alive_seen = alive;
    }
    if (group->now - group->stepped > detect / 2 && alive != RF__NEVER) {
        /* we ourselves were stopped, and with us the program */
        atomic_compare_exchange_strong(&e->alive, &alive, group->now);
        e->alive_seen = group->now;
        return;
    }
    if (!e->longest_gap || !alive || alive == RF__NEVER ||
        rf__member_state(e->member) != RF__MEMBER_RUNNING ||
        group->now - alive <= detect + STUCK_GAPS * e->longest_gap) {
        return;
    }
    (void)rf__fail(&err, RF_ELOST, 0,
                   "worker %d stands still for %.1f s, between calls that took %.1f s at most",
                   group->options.id, (double)(group->now - alive) * 1e-9,
                   (double)e->longest_gap * 1e-9);
    err.rank = group->rank;
    rf__elastic_doubt(group, group->rank, RF__DOUBT_STUCK, &err);
}

/* Waits that last are told, with what is waited for. */
static void tell_waits(struct rf__group *group) {
    struct rf__elastic *e = &group->elastic;
    const char *waits_for = rf__member_waits_for(e->member);
    const char *out = rf__member_out_reason(e->member);

    if (out[0] && !e->told_out) {
        struct rf_event event = event_of(group, RF_EVENT_OUT);
        event.rank = -1;
        event.size = 0;
        copy_text(event.text, sizeof event.text, out);
        tell(group, &event);
    }
    e->told_out = out[0] != 0;
    if (!waits_for[0]) {
        e->waits_since = e->told_wait = 0;
        return;
    }
    if (!e->waits_since) {
        e->waits_since = group->now;
    }
    if (group->now - e->waits_since > TELL_WAIT_MS * RF__MS &&
        (!e->told_wait || group->now - e->told_wait > TELL_WAIT_AGAIN_MS * RF__MS)) {
        struct rf_event event = event_of(group, RF_EVENT_PAUSE);
        e->told_wait = group->now;
        event.seconds = (double)(group->now - e->waits_since) * 1e-9;
        copy_text(event.text, sizeof event.text, waits_for);
        tell(group, &event);
    }
}

int rf__elastic_step(struct rf__group *group) {
    struct rf__elastic *e = &group->elastic;

    rf__member_time(e->member, group->now);
    bool moved = serve_store(group);
    rf__member_tick(e->member, group->now);
    drain(group);
    check_links(group);
    check_progress(group);
    drain(group);
    set_state(group);
    tell_waits(group);
    return moved;
}

void rf__elastic_doubt(struct rf__group *group, int rank, enum rf__doubt doubt,
                       const struct rf_error *why) {
    struct rf__elastic *e = &group->elastic;
    enum rf__member_state state = rf__member_state(e->member);
    int64_t detect = group->options.detect_ms * RF__MS;

    if (state == RF__MEMBER_REVOKED) {
        rf__member_doubt(e->member, rank, doubt, why->text);
        return;
    }
    if (state != RF__MEMBER_FORMING && state != RF__MEMBER_RUNNING) {
        return;
    }
    group->cause = *why;
    rf__member_doubt(e->member, rank, doubt, why->text);
    for (int other = 0; other < group->size; other++) { /* who else will not be heard of again */
        const struct rf__peer *peer = &group->peers[other];
        if (other != group->rank && other != rank && peer->up && !peer->gone &&
            group->now - peer->heard > detect / 4 * 3) {
            rf__member_doubt(e->member, other, RF__DOUBT_SILENT, why->text);
        }
    }
    drain(group);
    set_state(group);
}

void rf__elastic_revoke(struct rf__group *group, const struct rf_error *why) {
    struct rf__elastic *e = &group->elastic;
    enum rf__member_state state = rf__member_state(e->member);

    if (state != RF__MEMBER_FORMING && state != RF__MEMBER_RUNNING) {
        return;
    }
    group->cause = *why;
    rf__member_revoke(e->member, why->text);
    drain(group);
    set_state(group);
}

int rf__elastic_start(struct rf__group *group, struct rf_error *err) {
    struct rf__elastic *e = &group->elastic;
    const struct rf__group_options *options = &group->options;
    char endpoint[RF__MEMBER_ENDPOINT], table[RF__TABLE_LINE];

    rf__table_line(group, table);
    int rc =
        options->net->ops->endpoint(options->net, endpoint, sizeof endpoint - strlen(table), err);
    if (rc) {
        return rc;
    }
    memcpy(endpoint + strlen(endpoint), table, strlen(table) + 1);
    struct rf__member_options member = {
        .id = options->id,
        .nonce = options->nonce,
        .restarts = (uint32_t)options->restarts,
        .min_size = options->min_size,
        .max_size = options->max_size,
        .start_size = options->size,
        .detect_ns = options->detect_ms * RF__MS,
        .start_timeout_ns = options->start_timeout_ms * RF__MS,
        .cool_down_ns = options->cool_down_ms * RF__MS,
        .endpoint = endpoint,
    };
    e->ids = rf__alloc(RF_MAX_RANKS, sizeof *e->ids);
    e->last_ids = rf__alloc(RF_MAX_RANKS, sizeof *e->last_ids);
    e->healed = rf__alloc(RF_MAX_RANKS, sizeof *e->healed);
    if (!e->ids || !e->last_ids || !e->healed ||
        rf__member_create(&member, group->now, &e->member)) {
        return rf__fail(err, RF_ENOMEM, 0, "no memory for the membership of worker %d",
                        options->id);
    }
    group->rank = -1;
    group->size = 0;
    group->state = RF__GROUP_FORMING;
    e->begun = group->now;
    start_list(group);
    return 0;
}

int64_t rf__elastic_deadline(const struct rf__group *group) {
    const struct rf__elastic *e = &group->elastic;
    int64_t deadline = rf__member_deadline(e->member);

    deadline = e->list_retry_at < deadline ? e->list_retry_at : deadline;
    if (e->lease && e->lease_renew < deadline) {
        deadline = e->lease_renew;
    }
    for (int which = 0; which < RF__WISHES; which++) {
        const struct rf__wish *wish = &e->wishes[which];
        if (wish->is_due && !wish->request) {
            int64_t at = wish->retry_at > group->now ? wish->retry_at : group->now + RF__MS;
            deadline = at < deadline ? at : deadline;
        }
    }
    return deadline;
}

void rf__elastic_leave(struct rf__group *group) {
    struct rf__elastic *e = &group->elastic;

    atomic_store_explicit(&e->running, 0, memory_order_release);
    if (e->lease) {
        e->revoke =
            submit(group, (struct rf__store_request){.op = RF__STORE_REVOKE, .lease = e->lease});
    }
    e->lease = 0;
    drain(group);
}

bool rf__elastic_left(const struct rf__group *group) {
    const struct rf__elastic *e = &group->elastic;
    return !e->revoke && !e->wishes[RF__WISH_SWAP].request;
}

void rf__elastic_free(struct rf__group *group) {
    struct rf__elastic *e = &group->elastic;

    for (int which = 0; which < RF__WISHES; which++) {
        rf__free(e->wishes[which].bytes);
    }
    rf__free(e->ids);
    rf__free(e->last_ids);
    rf__free(e->healed);
    rf__member_destroy(e->member);
}

/* ---- For the layers above ---- */

bool rf__group_is_placed(const struct rf__group *group) {
    return group->state == RF__GROUP_RUNNING || group->state == RF__GROUP_OUTSIDE ||
           group->state == RF__GROUP_FAILED;
}

void rf__group_enter(struct rf__group *group, uint64_t config, bool may_roll_back, int64_t now) {
    group->now = now > group->now ? now : group->now;
    if (group->tuning_digest) { /* who chooses algorithms by another table is a stranger too */
        config = rf__digest_mix(config, group->tuning_digest);
    }
    rf__member_enter(group->elastic.member, config, may_roll_back);
    drain(group);
    set_state(group);
}

int rf__group_note(struct rf__group *group, uint64_t generation,
                   const struct rf__progress *progress) {
    int rc = rf__member_note(group->elastic.member, generation, progress);
    if (rc == 0) {
        group->elastic.noted = *progress;
    }
    return rc;
}

int rf__group_membership(struct rf__group *group, struct rf__membership *out,
                         struct rf_error *err) {
    struct rf__elastic *e = &group->elastic;
    const struct rf__generation *g = rf__member_generation(e->member);

    if (group->state != RF__GROUP_RUNNING) {
        *err = group->cause;
        return group->state == RF__GROUP_FAILED ? group->cause.code : RF_EREVOKED;
    }
    *out = (struct rf__membership){
        .generation = g->number,
        .rank = group->rank,
        .size = group->size,
        .ended = g->ended,
        .rolled_back = g->rolled_back,
        .target = g->target,
        .units = g->units,
        .chain = g->chain,
        .commit = e->healed[group->rank] && e->noted.prepared && e->noted.units + 1 == g->units,
        .ids = e->ids,
        .healed = e->healed,
    };
    return 0;
}

uint64_t rf__group_running(struct rf__group *group) {
    return atomic_load_explicit(&group->elastic.running, memory_order_acquire);
}

bool rf__group_is_awaited(const struct rf__group *group) {
    return rf__member_is_awaited(group->elastic.member);
}

void rf__group_regroup(struct rf__group *group, const int *out, int out_count, const char *reason,
                       int64_t now) {
    struct rf_error why;

    group->now = now > group->now ? now : group->now;
    for (int i = 0; i < out_count; i++) {
        rf__member_put_out(group->elastic.member, out[i]);
    }
    (void)rf__fail(&why, RF_EREVOKED, 0, "%s", reason);
    why.rank = -1;
    rf__elastic_revoke(group, &why);
}

int rf__group_slowest_link(struct rf__group *group, double *bytes_per_s) {
    int slowest = -1;

    *bytes_per_s = 0;
    for (int rank = 0; rank < group->size; rank++) {
        struct rf__peer *peer = &group->peers[rank];
        if (rank != group->rank && peer->arriving_ns > 0) {
            double rate = (double)peer->arrived_bytes / ((double)peer->arriving_ns * 1e-9);
            if (slowest < 0 || rate < *bytes_per_s) {
                slowest = rank;
                *bytes_per_s = rate;
            }
        }
        peer->arrived_bytes = 0;
        peer->arriving_ns = 0;
    }
    return slowest;
}

bool rf__group_flip_is_due(struct rf__group *group) {
    bool is_due = group->elastic.flip_is_due;
    group->elastic.flip_is_due = false;
    return is_due;
}

void rf__group_alive(struct rf__group *group, int64_t now) {
    atomic_store_explicit(&group->elastic.alive, now, memory_order_relaxed);
}

void rf__group_end(struct rf__group *group) {
    rf__member_end(group->elastic.member);
    drain(group);
}

int rf__group_id_of(const struct rf__group *group, int rank) {
    if (!group->elastic.member) {
        return rank >= 0 && rank < group->size ? rank : -1;
    }
    return rank >= 0 && rank < group->size ? group->elastic.ids[rank] : -1;
}

void rf__group_ids(const struct rf__group *group, const int **ids, int *size, const int **last_ids,
                   int *last_size) {
    *ids = group->elastic.ids;
    *size = group->size;
    *last_ids = group->elastic.last_ids;
    *last_size = group->elastic.last_size;
}
