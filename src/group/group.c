/* Life of a group: creation, the step, submitting operations, revoking, leaving. */
#include "group/inner.h"

#include "base/assert.h"
#include "base/mem.h"
#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum {
    LEAVE_MS = 1000,
    SUSPICION_MS = 1000,
    TIMED_BYTES = 4096,
    RUSH_WITHIN_US = 1000,
};

void rf__call_text(char *out, size_t bytes, enum rf_coll coll, enum rf_type type,
                   enum rf_redop redop, uint64_t count, int root, enum rf_algorithm algorithm) {
    bool reduces =
        coll == RF_COLL_ALLREDUCE || coll == RF_COLL_REDUCE || coll == RF_COLL_REDUCE_SCATTER;
    bool has_root = coll == RF_COLL_BROADCAST || coll == RF_COLL_REDUCE || coll == RF_COLL_GATHER ||
                    coll == RF_COLL_SCATTER;
    int at = snprintf(out, bytes, "%s", rf_coll_name(coll));

    if (coll != RF_COLL_BARRIER) {
        at += snprintf(out + at, bytes - (size_t)at, "%s%s of %llu %s", reduces ? " " : "",
                       reduces ? rf_redop_name(redop) : "", (unsigned long long)count,
                       rf_type_name(type));
    }
    if (has_root && (size_t)at < bytes) {
        at += snprintf(out + at, bytes - (size_t)at, ", root %d", root);
    }
    if (algorithm != RF_ALGORITHM_AUTO && (size_t)at < bytes) {
        snprintf(out + at, bytes - (size_t)at, ", algorithm %s", rf_algorithm_name(algorithm));
    }
}

struct rf__op *rf__queue_pop(struct rf__op_queue *queue) {
    struct rf__op *op = queue->head;
    if (op) {
        queue->head = op->next;
        op->next = NULL;
    }
    return op;
}

void rf__queue_push(struct rf__op_queue *queue, struct rf__op *op) {
    op->next = NULL;
    if (queue->head) {
        queue->tail->next = op;
    } else {
        queue->head = op;
    }
    queue->tail = op;
}

static void give_back(struct rf__group *group, struct rf__op *op) {
    op->state = RF__OP_FREE;
    op->next = group->free_ops;
    group->free_ops = op;
}

void rf__op_finish(struct rf__group *group, struct rf__op *op, int result) {
    op->state = RF__OP_DONE;
    op->result = result;
    op->ended = group->options.clock && rf__op_bytes(op) > TIMED_BYTES
                    ? group->options.clock->now(group->options.clock)
                    : group->now;
    if (op->released) {
        give_back(group, op);
    }
}

void rf__group_release(struct rf__group *group, struct rf__op *op) {
    if (op->state == RF__OP_DONE) {
        give_back(group, op);
    } else {
        op->released = true;
    }
}

int rf__op_result(const struct rf__op *op) {
    return op->state != RF__OP_DONE ? 0 : op->result ? op->result : 1;
}

int64_t rf__op_busy_ns(const struct rf__op *op) {
    return op->state == RF__OP_DONE ? op->ended - op->begun : 0;
}

static void finish_all(struct rf__group *group, struct rf__op_queue *queue, int code) {
    struct rf__op *op;
    while ((op = rf__queue_pop(queue))) {
        rf__op_finish(group, op, code);
    }
}

void rf__group_end_generation(struct rf__group *group, const struct rf_error *cause) {
    group->cause = *cause;
    if (group->cause.code >= 0) {
        group->cause.code = RF_EINTERNAL;
    }
    group->suspicion.code = 0;
    group->state = RF__GROUP_REVOKED;
    atomic_store_explicit(&group->revoked, true, memory_order_release);
    group->cause_length = rf__cause_encode(&group->cause, group->cause_bytes);
    finish_all(group, &group->calls, group->cause.code);
    for (int rank = 0; rank < group->size && group->peers; rank++) {
        struct rf__peer *peer = &group->peers[rank];
        finish_all(group, &peer->sends, group->cause.code);
        finish_all(group, &peer->recvs, group->cause.code);
        for (int lane = 0; group->options.net && lane < rf__link_lanes(group, rank); lane++) {
            struct rf__tx *tx = &peer->lanes[lane].tx;
            if (tx->owner == RF__TX_DATA || tx->owner == RF__TX_MESSAGE) {
                tx->owner = tx->sent ? RF__TX_STUCK : RF__TX_NONE;
            }
        }
        peer->wanted = RF__WANT_REVOKE;
    }
}

void rf__group_revoke(struct rf__group *group, const struct rf_error *cause) {
    bool was_running = group->state == RF__GROUP_RUNNING;

    if (group->elastic.member) {
        rf__elastic_revoke(group, cause);
    } else if (group->state != RF__GROUP_REVOKED) {
        rf__group_end_generation(group, cause);
        if (was_running && group->options.store) {
            rf__form_publish_cause(group);
        }
    }
}

void rf__group_settle(struct rf__group *group) {
    if (group->suspicion.code) {
        struct rf_error cause = group->suspicion;
        rf__group_revoke(group, &cause);
    }
}

/* A lost peer may have had a reason, and told the store: that is the first cause then. */
static void suspect(struct rf__group *group, const struct rf_error *error) {
    if (group->elastic.member) {
        rf__elastic_doubt(group, error->rank, RF__DOUBT_GONE, error);
    } else if (group->state != RF__GROUP_RUNNING || !group->options.store) {
        rf__group_revoke(group, error);
    } else if (!group->suspicion.code) {
        group->suspicion = *error;
        group->suspicion_deadline = group->now + SUSPICION_MS * RF__MS;
        rf__form_ask_cause(group);
    }
}

int rf__group_fail(struct rf__group *group, int code, int rank, const char *format, ...) {
    struct rf_error error;
    char text[RF_ERROR_TEXT_MAX];
    va_list arguments;

    if (!rf__group_is_linked(group)) {
        return group->cause.code;
    }
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    (void)rf__fail(&error, code, 0, "%s", text);
    error.rank = rank;
    rf__detail(error.what, "generation %llu, noticed by rank %d",
               (unsigned long long)group->generation, group->rank);
    if (code == RF_ELOST) {
        suspect(group, &error);
        return rf__group_is_linked(group) ? 0 : group->cause.code;
    }
    rf__group_revoke(group, &error);
    return group->cause.code;
}

void rf__group_error(struct rf__group *group, struct rf_error *out) {
    if (atomic_load_explicit(&group->revoked, memory_order_acquire)) {
        *out = group->cause;
    } else {
        rf__error_clear(out);
    }
}

enum rf__group_state rf__group_state(const struct rf__group *group) {
    return group->state;
}

uint64_t rf__group_generation(const struct rf__group *group) {
    return group->generation;
}

enum rf_algorithm rf__group_last_algorithm(const struct rf__group *group) {
    return group->last_algorithm;
}

bool rf__group_is_local(const struct rf__group *group) {
    return group->shared.usable;
}

bool rf__group_is_idle(const struct rf__group *group) {
    bool is_idle = !group->calls.head;
    for (int rank = 0; rank < group->size && is_idle; rank++) {
        is_idle = !group->peers[rank].sends.head && !group->peers[rank].recvs.head;
    }
    return is_idle;
}

/* The line of a lost link names ranks and addresses; who reads of an elastic job knows workers by
 * their ids, and a rank may be another's by then. */
static void name_by_id(const struct rf__group *group, struct rf_error *error) {
    char why[128];
    const char *found = error->where[0] ? strstr(error->text, error->where) : NULL;

    if (!group->elastic.member) {
        return;
    }
    found = found ? found + strlen(error->where) : "";
    found += strspn(found, ": ");
    snprintf(why, sizeof why, "%.*s", (int)sizeof why - 1, found);
    (void)snprintf(error->text, sizeof error->text, "worker %d was lost%s%s",
                   rf__group_id_of(group, error->rank), why[0] ? ": " : "", why);
}

/* Reads up to the data frames that wait: whether there are any. */
static bool has_frames(struct rf__group *group, int rank) {
    bool moved = false, has = false;

    for (int lane = 0; lane < rf__link_lanes(group, rank); lane++) {
        (void)rf__link_receive(group, rank, lane, &moved);
        has = has || group->peers[rank].lanes[lane].framed;
    }
    return has;
}

static void take_net_event(struct rf__group *group, const struct rf__net_event *event) {
    struct rf__peer *peer = &group->peers[event->peer];

    switch (event->kind) {
    case RF__NET_UP:
        peer->up = true;
        peer->heard = peer->told = group->now;
        group->form.connected++; /* even if it leaves at once: it had its reasons */
        return;
    case RF__NET_DOWN: {
        bool expected = peer->gone || group->leaving, was_up = peer->up;
        struct rf_error error = event->error;
        /* a goodbye, or a cause, may stand in the stream before its end */
        bool is_framed = has_frames(group, event->peer);
        /* With a frame at the head, nobody knows yet what stands behind it: who needs more than is
         * in the stream finds out. */
        expected = expected || peer->gone || is_framed || !rf__group_is_linked(group);
        if (!was_up && group->elastic.member) {
            error.rank = event->peer;
            name_by_id(group, &error);
            rf__elastic_doubt(group, event->peer, RF__DOUBT_UNREACHABLE, &error);
            return;
        }
        if (!is_framed) {
            rf__link_down(group, event->peer);
        }
        bool is_news = group->elastic.member && !peer->gone && group->state == RF__GROUP_REVOKED;
        peer->gone = true;
        if (!expected || is_news) {
            error.rank = event->peer;
            name_by_id(group, &error);
            if (error.code >= 0) {
                error.code = RF_ELOST;
            }
            if (error.code == RF_ELOST) {
                suspect(group, &error);
            } else {
                rf__group_revoke(group, &error);
            }
        }
        return;
    }
    }
}

/* Whether all hosts have equally many ranks, numbered host by host: the same on all ranks. */
static void check_hosts(struct rf__group *group) {
    const int *host = group->options.net->host;
    int local = 1;

    while (local < group->size && host[local] == host[0]) {
        local++;
    }
    bool usable = local > 1 && local < RF_MAX_LOCAL_RANKS && group->size % local == 0;
    for (int rank = 0; rank < group->size && usable; rank++) {
        usable = host[rank] == rank / local * local;
    }
    if (usable) {
        group->hosts.usable = true;
        group->hosts.count = group->size / local;
        group->hosts.index = group->rank / local;
        group->shared.team = (struct rf__team){
            .first = group->rank / local * local, .size = local, .index = group->rank % local};
    }
}

void rf__group_check_local(struct rf__group *group) {
    struct rf__net *net = group->options.net;
    bool usable = net && net->shared && group->size > 1 && group->size <= RF_MAX_LOCAL_RANKS;

    for (int rank = 0; rank < group->size && usable; rank++) {
        usable = rank == group->rank || net->kind[rank] == RF__LINK_SHM;
    }
    group->shared.usable = usable;
    group->shared.team = (struct rf__team){.size = group->size, .index = group->rank};
    group->hosts.usable = false;
    if (net && net->shared && !usable) {
        check_hosts(group);
    }
    struct rf__team team = group->shared.team;
    for (int k = 0; k < team.size && (group->shared.usable || group->hosts.usable); k++) {
        group->shared.boards[k] = net->shared->board(net, team.first + k);
        if (!group->shared.boards[k]) { /* its link is lost: calls over the others find that out */
            group->shared.usable = group->hosts.usable = false;
        }
    }
    rf__nodes_check(group);
}

/* What has arrived on it: false when it is over. */
static bool serve_lane(struct rf__group *group, int rank, int index, bool *moved) {
    const struct rf__lane *lane = &group->peers[rank].lanes[index];
    bool was_over = lane->over;
    int rc = rf__link_receive(group, rank, index, moved);

    if (rc == RF_ELOST) {
        *moved = *moved || !was_over; /* the event, which is there soon, says why */
        return false;
    }
    if (rc == 1 && lane->frame.kind == RF__FRAME_DATA) {
        (void)rf__exec_check(group, rank, index);
    }
    if (index && (!lane->greeted || lane->tx.owner == RF__TX_CONTROL)) {
        (void)rf__link_flush(group, rank, index, moved);
    }
    return true;
}

/* Links of all peers: what has arrived, what is due, messages. */
static bool serve_links(struct rf__group *group) {
    bool moved = false;

    for (int rank = 0; rank < group->size && rf__group_is_linked(group); rank++) {
        if (rank == group->rank || !group->peers[rank].up) {
            continue;
        }
        bool is_open = false;
        for (int lane = 0; lane < rf__link_lanes(group, rank); lane++) {
            is_open = serve_lane(group, rank, lane, &moved) || is_open;
        }
        if (!is_open && group->peers[rank].gone) {
            rf__link_down(group, rank);
        }
        if (!group->peers[rank].lanes->over) {
            (void)rf__message_step(group, rank, &moved);
            (void)rf__link_flush(group, rank, 0, &moved);
        }
    }
    return moved;
}

static int begin_call(struct rf__group *group, struct rf__op *op) {
    op->state = RF__OP_RUNNING;
    op->begun = group->now;
    bool is_plain = group->shared.usable && !group->options.tuning; /* SHARED, as said above */
    if (op->algorithm == RF_ALGORITHM_AUTO && !is_plain) {
        rf__choice_make(group, op);
    }
    group->nodes.runs = rf__choice_is_by_nodes(group, op);
    group->hosts.runs = op->algorithm == RF_ALGORITHM_HIERARCHICAL && !group->shared.usable;
    if (group->shared.usable || group->hosts.runs) {
        rf__shared_begin(group, op);
        return 0;
    }
    return rf__exec_begin(group, op);
}

/* The collectives in line, one after the other. */
static bool run_calls(struct rf__group *group) {
    bool moved = false;

    while (group->state == RF__GROUP_RUNNING && group->calls.head) {
        struct rf__op *op = group->calls.head;
        int rc = op->state == RF__OP_QUEUED ? begin_call(group, op) : 0;
        if (rc == 0) {
            rc = group->shared.usable || group->hosts.runs ? rf__shared_run(group, op, &moved)
                                                           : rf__exec_run(group, op, &moved);
        }
        if (rc <= 0) {
            return moved || rc < 0; /* an error has revoked the group, and with it the call */
        }
        group->last_algorithm = op->algorithm;
        if (group->options.choice) {
            rf__choice_tell(group, op);
        }
        (void)rf__queue_pop(&group->calls);
        rf__op_finish(group, op, 0);
        moved = true;
    }
    return moved;
}

static void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

bool rf__group_rush(struct rf__group *group, const struct rf__op *op, int64_t now, int looks) {
    if (!group->shared.usable || now - group->stepped > RUSH_WITHIN_US * 1000) {
        return false;
    }
    group->now =
        now > group->now ? now : group->now; /* the times of operations are taken from it */
    for (int k = 0; k < looks && group->state == RF__GROUP_RUNNING; k++) {
        bool moved = run_calls(group);
        if (op->state == RF__OP_DONE) {
            return true;
        }
        if (!moved) {
            relax();
        }
    }
    return false;
}

int rf__group_step(struct rf__group *group, int64_t now) {
    struct rf__net *net = group->options.net;
    struct rf__net_event event;
    bool moved = false;

    group->now = now;
    if (net) {
        moved = net->ops->pump(net, now) > 0;
        while (net->ops->next_event(net, &event)) {
            take_net_event(group, &event);
            moved = true;
        }
        bool was_forming = group->state == RF__GROUP_FORMING;
        if (group->elastic.member ? rf__elastic_step(group) : rf__form_step(group)) {
            moved = true;
        }
        if (was_forming && group->state == RF__GROUP_RUNNING) {
            rf__group_check_local(group);
        }
        if (group->suspicion.code && now > group->suspicion_deadline) {
            rf__group_settle(group);
        }
        if (serve_links(group)) {
            moved = true;
        }
    }
    if (run_calls(group)) {
        moved = true;
    }
    if (net && rf__group_is_linked(group)) {
        rf__link_beats(group); /* also while forming: the others may be through already */
    } else if (net) {
        for (int rank = 0; rank < group->size; rank++) {
            if (rank != group->rank) {
                (void)rf__link_flush(group, rank, 0, &moved);
            }
        }
    }
    group->stepped = now;
    return moved;
}

int64_t rf__group_next_deadline(const struct rf__group *group) {
    if (!group->options.net) {
        return RF__NEVER;
    }
    int64_t deadline = group->now + group->options.detect_ms * RF__MS / 8;
    if (group->elastic.member) {
        int64_t wanted = rf__elastic_deadline(group);
        deadline = wanted < deadline ? wanted : deadline;
    }
    if (group->options.store) {
        int64_t wanted = group->options.store->ops->next_deadline(group->options.store);
        deadline = wanted < deadline ? wanted : deadline;
    }
    if (group->form.retry_at && group->form.retry_at < deadline) {
        deadline = group->form.retry_at;
    }
    if (group->suspicion.code && group->suspicion_deadline < deadline) {
        deadline = group->suspicion_deadline;
    }
    if (!group->elastic.member && group->state == RF__GROUP_FORMING &&
        group->form.deadline < deadline) {
        deadline = group->form.deadline + 1;
    }
    if (group->form.lease && group->form.lease_renew < deadline) {
        deadline = group->form.lease_renew;
    }
    if (group->leaving && group->leave_deadline < deadline) {
        deadline = group->leave_deadline + 1;
    }
    return deadline;
}

static bool reduces(enum rf_coll coll) {
    return coll == RF_COLL_ALLREDUCE || coll == RF_COLL_REDUCE || coll == RF_COLL_REDUCE_SCATTER;
}

/* Several hosts, or several nodes of one, for what can make use of that. */
static bool has_levels(const struct rf__group *group, const struct rf_call *call) {
    return (group->hosts.usable || group->nodes.usable) && call->coll == RF_COLL_ALLREDUCE;
}

/* What can be refused before anything is sent. */
static int check_call(const struct rf__group *group, const struct rf_call *call,
                      struct rf_error *err) {
    size_t size = rf_type_size(call->type);
    bool is_message = call->coll == RF_COLL_SEND || call->coll == RF_COLL_RECV;
    bool is_root = group->rank == call->root;

    if ((unsigned)call->coll >= RF_COLL_COUNT || size == 0 ||
        (unsigned)call->algorithm >= RF_ALGORITHM_COUNT ||
        (unsigned)call->redop >= RF_REDOP_COUNT) {
        return rf__fail(err, RF_EINVAL, 0,
                        "a collective, type, operation or algorithm that does not exist");
    }
    if (reduces(call->coll) && !rf_redop_valid(call->redop, call->type)) {
        return rf__fail(err, RF_EINVAL, 0, "%s is not defined for %s", rf_redop_name(call->redop),
                        rf_type_name(call->type));
    }
    if (call->root < 0 || call->root >= group->size) {
        return rf__fail(err, RF_EINVAL, 0, "rank %d does not exist in a group of %d", call->root,
                        group->size);
    }
    if (is_message && is_root) {
        return rf__fail(err, RF_EINVAL, 0, "rank %d cannot send to itself or receive from itself",
                        group->rank);
    }
    if (call->count > (SIZE_MAX / 8) / size / (size_t)group->size) {
        return rf__fail(err, RF_EINVAL, 0, "%zu elements are too many", call->count);
    }
    bool needs_send = true, needs_recv = true;
    switch (call->coll) {
    case RF_COLL_BROADCAST:
        needs_send = is_root;
        needs_recv = !is_root;
        break;
    case RF_COLL_SCATTER:
        needs_send = is_root;
        break;
    case RF_COLL_REDUCE:
    case RF_COLL_GATHER:
        needs_recv = is_root;
        break;
    case RF_COLL_BARRIER:
        needs_send = needs_recv = false;
        break;
    case RF_COLL_SEND:
        needs_recv = false;
        break;
    case RF_COLL_RECV:
        needs_send = false;
        break;
    case RF_COLL_ALLREDUCE:
    case RF_COLL_REDUCE_SCATTER:
    case RF_COLL_ALL_GATHER:
    case RF_COLL_ALL_TO_ALL:
    case RF_COLL_COUNT:
        break;
    }
    if (call->count && ((needs_send && !call->send) || (needs_recv && !call->recv))) {
        return rf__fail(err, RF_EINVAL, 0, "%s needs a buffer that is NULL",
                        rf_coll_name(call->coll));
    }
    if (!is_message && call->algorithm == RF_ALGORITHM_SHARED && group->size > 1 &&
        !group->shared.usable) {
        return rf__fail(err, RF_EUNSUPPORTED, 0, "the group does not share one host's memory");
    }
    if (!is_message && call->algorithm == RF_ALGORITHM_HIERARCHICAL && !has_levels(group, call)) {
        return rf__fail(
            err, RF_EUNSUPPORTED, 0,
            "algorithm hierarchical is for allreduce on several hosts with equally many "
            "ranks, numbered host by host, or on one whose ranks are bound to several NUMA nodes");
    }
    bool is_named = call->algorithm != RF_ALGORITHM_AUTO &&
                    call->algorithm != RF_ALGORITHM_SHARED &&
                    call->algorithm != RF_ALGORITHM_HIERARCHICAL;
    if (!is_message && is_named && !rf__schedule_covers(call->coll, call->algorithm)) {
        char names[RF_ALGORITHMS_TEXT];
        return rf__fail(err, RF_EUNSUPPORTED, 0, "algorithm %s does not cover %s: %s can",
                        rf_algorithm_name(call->algorithm), rf_coll_name(call->coll),
                        rf_algorithms_covering(call->coll, names));
    }
    return 0;
}

/* What is compared between ranks and need not be said by the caller gets one value. */
static void normalise(struct rf__group *group, struct rf_call *call) {
    bool has_root = call->coll == RF_COLL_BROADCAST || call->coll == RF_COLL_REDUCE ||
                    call->coll == RF_COLL_GATHER || call->coll == RF_COLL_SCATTER ||
                    call->coll == RF_COLL_SEND || call->coll == RF_COLL_RECV;
    if (!has_root) {
        call->root = 0;
    }
    if (!reduces(call->coll)) {
        call->redop = RF_SUM;
    }
    if (call->coll == RF_COLL_BARRIER) {
        call->type = RF_U8;
        call->count = 0;
    }
    if (call->coll == RF_COLL_BROADCAST) { /* schedules know one buffer per direction */
        if (group->rank != call->root) {
            call->send = call->recv;
        } else if (!call->recv) {
            call->recv = (void *)(uintptr_t)call->send;
        }
    }
    enum rf_algorithm wanted = group->options.algorithm;
    bool is_known = wanted == RF_ALGORITHM_SHARED         ? group->shared.usable
                    : wanted == RF_ALGORITHM_HIERARCHICAL ? has_levels(group, call)
                                                          : rf__schedule_covers(call->coll, wanted);
    if (call->algorithm == RF_ALGORITHM_AUTO && wanted != RF_ALGORITHM_AUTO && is_known) {
        call->algorithm = wanted;
    }
    bool needs_others =
        call->algorithm == RF_ALGORITHM_SHARED || call->algorithm == RF_ALGORITHM_HIERARCHICAL;
    if (group->size == 1 && needs_others) {
        call->algorithm = RF_ALGORITHM_AUTO;
    }
}

int rf__group_submit(struct rf__group *group, const struct rf__op_params *params, int64_t now,
                     struct rf__op **out, struct rf_error *err) {
    struct rf_call call = params->call;

    if (group->state != RF__GROUP_RUNNING) {
        *err = group->cause;
        if (!err->code) {
            (void)rf__fail(err, RF_EREVOKED, 0, "this worker is outside of the group");
        }
        return err->code;
    }
    if ((unsigned)call.coll < RF_COLL_COUNT) {
        normalise(group, &call);
    }
    int rc = check_call(group, &call, err);
    if (rc) {
        return rc;
    }
    struct rf__op *op = group->free_ops;
    if (!op) {
        return rf__fail(err, RF_ELIMIT, 0, "%d operations are in flight, more than a group takes",
                        RF_MAX_REQUESTS);
    }
    group->free_ops = op->next;
    *op = (struct rf__op){.params = *params, .state = RF__OP_QUEUED, .algorithm = call.algorithm};
    op->params.call = call;
    op->begun = now;
    if (call.coll == RF_COLL_SEND) {
        rf__queue_push(&group->peers[call.root].sends, op);
    } else if (call.coll == RF_COLL_RECV) {
        rf__queue_push(&group->peers[call.root].recvs, op);
    } else {
        op->seq = ++group->next_seq;
        rf__queue_push(&group->calls, op);
    }
    *out = op;
    return 0;
}

void rf__group_leave(struct rf__group *group, int64_t now) {
    group->leaving = true;
    group->leave_deadline = now + LEAVE_MS * RF__MS;
    if (!group->options.net) {
        return;
    }
    for (int rank = 0; rank < group->size; rank++) {
        if (rank != group->rank && group->peers[rank].up) {
            group->peers[rank].wanted |= RF__WANT_BYE;
        }
    }
    if (group->elastic.member) {
        rf__elastic_leave(group);
    } else if (group->options.store) {
        rf__form_leave(group);
    }
}

static bool is_writing(const struct rf__group *group, int rank) {
    bool writes = false;

    for (int lane = 0; lane < rf__link_lanes(group, rank) && !writes; lane++) {
        enum rf__tx_owner owner = group->peers[rank].lanes[lane].tx.owner;
        writes = owner != RF__TX_NONE && owner != RF__TX_STUCK;
    }
    return writes;
}

bool rf__group_left(const struct rf__group *group) {
    if (!group->options.net || group->now > group->leave_deadline) {
        return true;
    }
    for (int rank = 0; rank < group->size; rank++) {
        const struct rf__peer *peer = &group->peers[rank];
        if (rank != group->rank && peer->up && !peer->gone &&
            (is_writing(group, rank) || (peer->wanted && peer->lanes->tx.owner != RF__TX_STUCK))) {
            return false;
        }
    }
    if (group->elastic.member && !rf__elastic_left(group)) {
        return false;
    }
    return !group->form.cause_put && !group->form.lease_request;
}

static struct rf__peer *make_peers(const struct rf__group *group, int size) {
    size_t most = group->options.net ? (size_t)group->options.net->most_lanes : 1;
    struct rf__peer *peers = rf__alloc((size_t)size, sizeof *peers);
    struct rf__lane *lanes = rf__alloc((size_t)size * most, sizeof *lanes);

    if (!peers || !lanes) {
        rf__free(peers);
        rf__free(lanes);
        return NULL;
    }
    for (int rank = 0; rank < size; rank++) {
        peers[rank].lanes = lanes + (size_t)rank * most;
    }
    return peers;
}

static void free_peers(struct rf__peer *peers) {
    if (peers) {
        rf__free(peers->lanes);
        rf__free(peers);
    }
}

/* Operations of the generation before are complete, with its error where they were not. */
int rf__group_reset(struct rf__group *group, int rank, int size) {
    struct rf__peer *peers = make_peers(group, size);

    if (!peers) {
        return RF_ENOMEM;
    }
    RF_ASSERT(!group->calls.head);
    free_peers(group->peers);
    group->peers = peers;
    group->rank = rank;
    group->size = size;
    group->next_seq = 0;
    group->form.connected = 0;
    group->shared = (struct rf__shared_run){.usable = false};
    group->stage.found = false;
    group->stage.base = 0;
    group->nodes.base = 0;
    group->suspicion.code = 0;
    rf__error_clear(&group->cause);
    atomic_store_explicit(&group->revoked, false, memory_order_release);
    return 0;
}

int rf__group_create(const struct rf__group_options *options, int64_t now, struct rf__group **out,
                     struct rf_error *err) {
    struct rf__group *group = rf__alloc(1, sizeof *group);
    int rc = RF_ENOMEM;

    *out = NULL;
    if (!group) {
        goto out;
    }
    group->options = *options;
    group->rank = options->rank;
    group->size = options->size;
    group->generation = options->generation;
    group->now = group->stepped = now;
    group->tuning_digest = rf__tuning_digest(options->tuning);
    group->peers = make_peers(group, options->size);
    group->ops = rf__alloc(RF_MAX_REQUESTS, sizeof *group->ops);
    group->form.endpoints = rf__alloc((size_t)options->size, sizeof *group->form.endpoints);
    if (!group->peers || !group->ops || !group->form.endpoints) {
        goto out;
    }
    for (int i = RF_MAX_REQUESTS - 1; i >= 0; i--) {
        give_back(group, &group->ops[i]);
    }
    if (!options->net) {
        RF_ASSERT(options->size == 1);
        group->state = RF__GROUP_RUNNING;
        group->generation = 1;
        rc = 0;
    } else if (options->min_size > 0) {
        rc = rf__elastic_start(group, err);
        if (rc) {
            rf__group_destroy(group);
            return rc;
        }
    } else {
        rc = rf__form_start(group, err);
        if (rc) {
            rf__group_destroy(group);
            return rc;
        }
    }
out:
    if (rc) {
        rf__group_destroy(group);
        return rf__fail(err, rc, 0, "no memory for a group of %d", options->size);
    }
    *out = group;
    return 0;
}

void rf__group_destroy(struct rf__group *group) {
    if (!group) {
        return;
    }
    rf__elastic_free(group);
    rf__exec_free(&group->exec);
    free_peers(group->peers);
    rf__free(group->ops);
    rf__free(group->form.endpoints);
    rf__free(group);
}
