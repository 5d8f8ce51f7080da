/* Meeting the others through the store, and agreeing on the generation. Keys of a job:
 *
 *     rf/JOB/generation      "G DIGEST": the newest generation and the digest of its member list,
 *                            swapped in once
 *     rf/JOB/g/G/m/RANK      a member's record (table.c), put where there is none, with a lease
 *     rf/JOB/g/G/cause       why generation G ended: the first to say so
 *
 * read the generation -> lease -> put the own record -> list and watch -> all there: rank 0 swaps
 * the generation in -> connect. Records of a run that died go with their leases; two workers with
 * one rank are found out. */
#include "group/inner.h"

#include "base/digest.h"
#include "base/status.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RETRY_MS = 200, CAUSE_MS = 1000, RECORD = RF__ENDPOINT_MAX + RF__TABLE_LINE };

static int64_t lease_ms(const struct rf__group *group) {
    int64_t ttl = 4 * (int64_t)group->options.detect_ms;
    return ttl > 10000 ? ttl : 10000;
}

static void key_of_job(const struct rf__group *group, char *out, size_t bytes, const char *rest) {
    snprintf(out, bytes, "rf/%s/%s", group->options.job, rest);
}

static void key_of_member(const struct rf__group *group, char *out, size_t bytes, int rank) {
    snprintf(out, bytes, "rf/%s/g/%" PRIu64 "/m/%d", group->options.job, group->generation, rank);
}

static void key_of_cause(const struct rf__group *group, char *out, size_t bytes) {
    snprintf(out, bytes, "rf/%s/g/%" PRIu64 "/cause", group->options.job, group->generation);
}

/* Submits and returns the id; a refusal by the client revokes the group. */
static uint64_t submit(struct rf__group *group, struct rf__store_request request) {
    struct rf__store *store = group->options.store;
    struct rf_error err;
    int64_t left = (group->form.deadline - group->now) / RF__MS;

    request.id = ++group->form.next_id;
    if (!request.deadline_ms) {
        /* a little earlier than ours: the store's own report is the better one */
        left -= left / 8 < 500 ? left / 8 : 500;
        request.deadline_ms = left > 1 ? left : 1;
    }
    if (store->ops->submit(store, &request, &err)) {
        rf__group_revoke(group, &err);
    }
    return request.id;
}

static int own_host(struct rf__group *group) {
    struct rf_error err;
    char *own = group->form.endpoints[group->rank];
    int rc = group->options.net->ops->endpoint(group->options.net, own, RF__ENDPOINT_MAX, &err);
    if (rc) {
        rf__group_revoke(group, &err);
    }
    return rc;
}

static void enter(struct rf__group *group, enum rf__form_state state) {
    struct rf__form *form = &group->form;
    char key[RF_MAX_STORE_KEY], value[64], record[RECORD], table[RF__TABLE_LINE];
    struct rf__store_request request = {.key = key};

    form->state = state;
    form->request = 0;
    form->retry_at = 0;
    switch (state) {
    case RF__FORM_READ:
        key_of_job(group, key, sizeof key, "generation");
        request.op = RF__STORE_GET;
        break;
    case RF__FORM_REGISTER:
        if (!form->lease) {
            request.op = RF__STORE_LEASE;
            request.ttl_ms = lease_ms(group);
            key[0] = 0;
            break;
        }
        key_of_member(group, key, sizeof key, group->rank);
        request.op = RF__STORE_CAS;
        request.lease = form->lease;
        rf__table_line(group, table);
        request.value_bytes =
            (size_t)snprintf(record, sizeof record, "%s%s", form->endpoints[group->rank], table);
        request.value = record;
        break;
    case RF__FORM_LIST:
        for (int rank = 0; rank < group->size; rank++) {
            if (rank != group->rank) {
                form->endpoints[rank][0] = 0;
            }
        }
        form->known = 1;
        key_of_job(group, key, sizeof key, "");
        request.op = RF__STORE_LIST;
        break;
    case RF__FORM_AGREE: {
        uint64_t digest = 0;
        for (int rank = 0; rank < group->size; rank++) {
            digest = rf__digest(form->endpoints[rank], strlen(form->endpoints[rank]), digest);
        }
        group->job = rf__digest(group->options.job, strlen(group->options.job), digest);
        if (group->rank != 0) {
            return;
        }
        key_of_job(group, key, sizeof key, "generation");
        request.op = RF__STORE_CAS;
        request.revision = form->generation_revision;
        request.value = value;
        request.value_bytes = (size_t)snprintf(value, sizeof value, "%" PRIu64 " %016" PRIx64,
                                               group->generation, group->job);
        break;
    }
    case RF__FORM_WAIT:
    case RF__FORM_CONNECT:
    case RF__FORM_DONE:
        return;
    }
    form->request = submit(group, request);
}

static void connect_all(struct rf__group *group) {
    struct rf__form *form = &group->form;
    struct rf__net *net = group->options.net;
    const char *endpoints[RF_MAX_RANKS];
    struct rf_error err;

    for (int rank = 0; rank < group->size; rank++) {
        endpoints[rank] =
            group->options.endpoints ? group->options.endpoints[rank] : form->endpoints[rank];
    }
    struct rf__net_group members = {.generation = group->generation,
                                    .rank = group->rank,
                                    .size = group->size,
                                    .endpoints = endpoints};
    form->state = RF__FORM_CONNECT;
    if (net->ops->open(net, &members, &err)) {
        rf__group_revoke(group, &err);
    }
}

int rf__form_start(struct rf__group *group, struct rf_error *err) {
    struct rf__form *form = &group->form;

    form->begun = group->now;
    form->deadline = group->now + group->options.start_timeout_ms * RF__MS;
    if (group->options.store) {
        if (own_host(group)) {
            *err = group->cause;
            return group->cause.code;
        }
        enter(group, RF__FORM_READ);
    } else {
        form->known = group->size;
        connect_all(group);
    }
    if (group->state == RF__GROUP_REVOKED) {
        *err = group->cause;
        return group->cause.code;
    }
    return 0;
}

/* "rank 1, 3 and 5 more" of those who have never come (one that gave up earlier than we is not to
 * blame), or that are not connected. Returns how many. */
static int missing(struct rf__group *group, bool connecting, char *out, size_t bytes) {
    int shown = 0, more = 0;
    size_t at = 0;
    out[0] = 0;
    for (int rank = 0; rank < group->size; rank++) {
        bool is_there =
            rank == group->rank || (connecting ? group->peers[rank].up : group->peers[rank].came);
        if (is_there) {
            continue;
        }
        if (shown == 8) {
            more++;
            continue;
        }
        at += (size_t)snprintf(out + at, at < bytes ? bytes - at : 0, "%s%d",
                               shown ? ", " : "rank ", rank);
        shown++;
    }
    if (more) {
        snprintf(out + at, at < bytes ? bytes - at : 0, " and %d more", more);
    }
    return shown + more;
}

static void rank_taken(struct rf__group *group) {
    struct rf__form *form = &group->form;
    if (group->now - form->begun > (2 * lease_ms(group) + 1000) * RF__MS ||
        group->now > form->deadline) {
        (void)rf__group_fail(group, RF_ECONFLICT, group->rank,
                             "rank %d of job '%s' is taken by another process", group->rank,
                             group->options.job);
        return;
    }
    form->retry_at = group->now + RETRY_MS * RF__MS; /* it may be the record of one that died */
}

static void time_out(struct rf__group *group) {
    struct rf__form *form = &group->form;
    bool connecting = form->state == RF__FORM_CONNECT;
    double seconds = (double)(group->now - form->begun) * 1e-9;
    char who[160];

    int absent = missing(group, connecting, who, sizeof who);
    bool is_asking = form->state == RF__FORM_READ || form->state == RF__FORM_REGISTER ||
                     form->state == RF__FORM_LIST;
    if (form->was_taken) {
        rank_taken(group);
    } else if (is_asking && form->request) {
        (void)rf__group_fail(group, RF_ESTORE, -1,
                             "the store has not answered rank %d within %.1f s", group->rank,
                             seconds);
    } else if (!connecting && absent) {
        (void)rf__group_fail(group, RF_ETIMEDOUT, -1,
                             "%d of %d workers came within %.0f s; missing: %s",
                             group->size - absent, group->size, seconds, who);
    } else if (form->known < group->size) {
        (void)rf__group_fail(group, RF_ETIMEDOUT, -1,
                             "all %d workers came, but %d left again within %.0f s", group->size,
                             group->size - form->known, seconds);
    } else if (connecting) {
        (void)rf__group_fail(group, RF_ETIMEDOUT, -1,
                             "rank %d is not connected with %s after %.0f s", group->rank, who,
                             seconds);
    } else {
        (void)rf__group_fail(group, RF_ETIMEDOUT, 0,
                             "rank 0 has not agreed to generation %" PRIu64 " within %.0f s",
                             group->generation, seconds);
    }
}

static bool has_prefix(const char *text, const char *prefix) {
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

static void take_generation(struct rf__group *group, const struct rf__store_event *event) {
    struct rf__form *form = &group->form;
    char text[64] = "";
    uint64_t generation = 0, job = 0;

    if (event->value && event->value_bytes < sizeof text) {
        memcpy(text, event->value, event->value_bytes);
    }
    if (sscanf(text, "%" SCNu64 " %" SCNx64, &generation, &job) != 2) {
        return;
    }
    form->generation_revision = event->key_revision;
    if (form->state == RF__FORM_READ) {
        group->generation = generation + 1;
        return;
    }
    form->agreed_generation = generation;
    form->agreed_job = job;
    if (generation > group->generation && group->state == RF__GROUP_FORMING) {
        (void)rf__group_fail(group, RF_EREVOKED, -1,
                             "job '%s' is at generation %" PRIu64 " without rank %d",
                             group->options.job, generation, group->rank);
    }
}

static void compare_tables(struct rf__group *group, int rank, const char *record) {
    char theirs[RF__TABLE_LINE], ours[RF__TABLE_LINE];

    if (group->state == RF__GROUP_FORMING && rf__table_differs(group, record, theirs, ours)) {
        (void)rf__group_fail(group, RF_EMISMATCH, rank,
                             "rank %d chooses algorithms by %s, but rank %d by %s: give all the "
                             "same RINGFOLD_TUNING",
                             rank, theirs, group->rank, ours);
    }
}

static void take_member(struct rf__group *group, const struct rf__store_event *event, int rank) {
    struct rf__form *form = &group->form;
    char *endpoint = form->endpoints[rank], record[RECORD];

    if (rank == group->rank || form->state == RF__FORM_CONNECT || form->state == RF__FORM_DONE) {
        return;
    }
    form->known -= endpoint[0] != 0;
    endpoint[0] = 0;
    if (event->value && event->value_bytes < RECORD) {
        memcpy(record, event->value, event->value_bytes);
        record[event->value_bytes] = 0;
        size_t length = rf__table_endpoint(record);
        if (length < RF__ENDPOINT_MAX) {
            memcpy(endpoint, record, length);
            endpoint[length] = 0;
        }
        form->known += endpoint[0] != 0;
        group->peers[rank].came = true;
        compare_tables(group, rank, record);
    }
}

static void take_cause(struct rf__group *group, const struct rf__store_event *event) {
    struct rf_error cause;
    if (event->value && rf__cause_decode(event->value, event->value_bytes, &cause) == 0) {
        rf__group_revoke(group, &cause);
    }
}

/* A key of the job, from the list or from the watch. */
static void take_key(struct rf__group *group, const struct rf__store_event *event) {
    char key[RF_MAX_STORE_KEY];

    key_of_job(group, key, sizeof key, "generation");
    if (strcmp(event->key, key) == 0) {
        take_generation(group, event);
        return;
    }
    key_of_cause(group, key, sizeof key);
    if (strcmp(event->key, key) == 0) {
        take_cause(group, event);
        return;
    }
    snprintf(key, sizeof key, "rf/%s/g/%" PRIu64 "/m/", group->options.job, group->generation);
    if (has_prefix(event->key, key)) {
        char *end;
        long rank = strtol(event->key + strlen(key), &end, 10);
        if (*end == 0 && rank >= 0 && rank < group->size) {
            take_member(group, event, (int)rank);
        }
    }
}

/* The reply to the request of the present state. */
static void take_reply(struct rf__group *group, const struct rf__store_event *event) {
    struct rf__form *form = &group->form;
    bool is_expected =
        event->code == 0 || event->code == RF_ENOTFOUND || event->code == RF_ECONFLICT;

    form->request = 0;
    if (!is_expected) {
        struct rf_error err =
            event->error ? *event->error : (struct rf_error){.code = event->code, .rank = -1};
        rf__group_revoke(group, &err);
        return;
    }
    switch (form->state) {
    case RF__FORM_READ:
        group->generation = 1;
        if (event->code == 0) {
            take_generation(group, event);
        }
        enter(group, form->registered == group->generation ? RF__FORM_LIST : RF__FORM_REGISTER);
        break;
    case RF__FORM_REGISTER:
        if (!form->lease) {
            form->lease = event->lease;
            form->lease_renew = group->now + lease_ms(group) * RF__MS / 3;
            enter(group, RF__FORM_REGISTER);
        } else if (event->code == RF_ECONFLICT) {
            form->was_taken = true;
            rank_taken(group);
        } else {
            /* who had to wait for an earlier launch to end may find that it had formed meanwhile */
            form->registered = group->generation;
            enter(group, form->was_taken ? RF__FORM_READ : RF__FORM_LIST);
            form->was_taken = false;
        }
        break;
    case RF__FORM_LIST:
        form->state = RF__FORM_WAIT;
        if (!form->watch) {
            char key[RF_MAX_STORE_KEY];
            key_of_job(group, key, sizeof key, "");
            form->watch =
                submit(group, (struct rf__store_request){.op = RF__STORE_WATCH,
                                                         .key = key,
                                                         .revision = event->store_revision + 1});
        }
        break;
    case RF__FORM_AGREE:
        if (event->code == RF_ECONFLICT) {
            enter(group, RF__FORM_LIST);
        }
        break; /* the watch tells rank 0 of the generation as it tells the others */
    case RF__FORM_WAIT:
    case RF__FORM_CONNECT:
    case RF__FORM_DONE:
        break;
    }
}

static void take_event(struct rf__group *group, const struct rf__store_event *event) {
    struct rf__form *form = &group->form;

    if (event->kind != RF__STORE_REPLY) {
        take_key(group, event);
    } else if (event->id == form->request) {
        take_reply(group, event);
    } else if (event->id == form->cause_get) {
        form->cause_get = 0;
        if (event->code == 0) {
            take_cause(group, event);
        }
        rf__group_settle(group);
    } else if (event->id == form->cause_put) {
        form->cause_put = 0;
    } else if (event->id == form->lease_request) {
        form->lease_request = 0;
    }
}

int rf__form_step(struct rf__group *group) {
    struct rf__form *form = &group->form;
    struct rf__store *store = group->options.store;
    struct rf__store_event event;
    int moved = 0;

    if (store) {
        store->ops->pump(store, group->now);
        while (store->ops->next(store, &event)) {
            take_event(group, &event);
            moved = 1;
        }
        if (form->lease && group->now >= form->lease_renew) {
            form->lease_renew = group->now + lease_ms(group) * RF__MS / 3;
            struct rf__store_request request = {.id = ++form->next_id,
                                                .op = RF__STORE_KEEPALIVE,
                                                .key = "",
                                                .lease = form->lease,
                                                .ttl_ms = lease_ms(group),
                                                .deadline_ms = lease_ms(group)};
            /* refused: there is another turn before the lease runs out, and a running group does
             * not need it */
            (void)!store->ops->submit(store, &request, NULL);
        }
    }
    if (group->state != RF__GROUP_FORMING) {
        return moved;
    }
    if (form->retry_at && group->now >= form->retry_at) {
        enter(group, form->state);
        moved = 1;
    }
    if (form->state == RF__FORM_WAIT && form->known == group->size) {
        enter(group, RF__FORM_AGREE);
        moved = 1;
    }
    if (form->state == RF__FORM_AGREE && form->agreed_generation == group->generation &&
        !form->retry_at) {
        if (form->agreed_job == group->job) {
            connect_all(group);
        } else { /* somebody came back with another address meanwhile */
            form->state = RF__FORM_LIST;
            form->retry_at = group->now + RETRY_MS * RF__MS;
        }
        moved = 1;
    }
    if (form->state == RF__FORM_CONNECT && form->connected == group->size - 1) {
        form->state = RF__FORM_DONE;
        group->state = RF__GROUP_RUNNING;
        moved = 1;
    }
    if (group->state == RF__GROUP_FORMING && group->now > form->deadline) {
        time_out(group);
    }
    return moved;
}

/* Asks the store whether somebody knows a cause that comes before ours: a peer that was lost may
 * have said why it left. */
void rf__form_ask_cause(struct rf__group *group) {
    char key[RF_MAX_STORE_KEY];
    key_of_cause(group, key, sizeof key);
    group->form.cause_get = submit(
        group,
        (struct rf__store_request){.op = RF__STORE_GET, .key = key, .deadline_ms = CAUSE_MS});
}

/* The first to say why the generation ended has said it for all. */
void rf__form_publish_cause(struct rf__group *group) {
    char key[RF_MAX_STORE_KEY];
    struct rf__store *store = group->options.store;
    struct rf__store_request request = {.id = ++group->form.next_id,
                                        .op = RF__STORE_CAS,
                                        .key = key,
                                        .value = group->cause_bytes,
                                        .value_bytes = group->cause_length,
                                        .deadline_ms = CAUSE_MS};
    key_of_cause(group, key, sizeof key);
    if (store->ops->submit(store, &request, NULL) == 0) {
        group->form.cause_put = request.id;
    }
}

void rf__form_leave(struct rf__group *group) {
    struct rf__store *store = group->options.store;
    struct rf__store_request request = {.id = ++group->form.next_id,
                                        .op = RF__STORE_REVOKE,
                                        .key = "",
                                        .lease = group->form.lease,
                                        .deadline_ms = CAUSE_MS};
    if (group->form.lease && store->ops->submit(store, &request, NULL) == 0) {
        group->form.lease = 0;
        group->form.lease_request = request.id;
    }
}
