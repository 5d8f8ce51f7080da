/* The store and its clients. The server is the library's own state machine (kv/kv.h); what is
 * simulated is what lies between it and a worker: one connection with a queue in each direction,
 * that delays, is cut, is lost with what is on its way, and comes up again. Then the client sends
 * what was not answered once more, under the same number, and its watches go on behind what they
 * have told. */
#include "sim.h"

#include "base/assert.h"
#include "base/mem.h"

#include <stdio.h>
#include <string.h>

enum { PENDING = 64, WATCHES = 64, LOST_ONE_IN = 12 };

/* A request on its way, or something that the store says. */
struct message {
    struct message *next;
    uint64_t epoch, number;
    struct rf__kv_request request; /* key and value behind the message */
    enum rf__store_event_kind kind;
    bool deleted;
    int code;
    int64_t key_revision, store_revision;
    uint64_t lease;
    char *key;
    unsigned char *value;
    size_t value_bytes;
};

struct queue {
    struct message *first, **last;
    struct message *flown; /* what flies: up to and with this one */
    bool flying;
};

struct pending {
    uint64_t id, number;
    struct rf__kv_request request;
    char *key;
    unsigned char *value;
    int64_t deadline;
    bool sent, answered;
    int64_t next; /* WATCH: from where it goes on */
};

struct watch {
    uint64_t number;
    int64_t next;
    char *prefix;
};

struct sim_store {
    struct rf__store store; /* first */
    struct sim_worker *worker;
    struct sim *sim;
    uint64_t number, epoch; /* epoch 0: not connected */
    bool connecting;
    int failures;
    struct pending pending[PENDING];
    int pending_count;
    struct queue out, in;
    struct message *told, *events, **last_event; /* handed out last; to be handed out */
    struct rf_error error;

    struct watch watches[WATCHES]; /* the server's, of this connection */
    int watch_count;
};

static struct sim_store *of(struct rf__store *store) {
    return (struct sim_store *)store;
}

static void connect_soon(struct sim_store *client, int64_t after);

/* ---- Messages ---- */

static struct message *message_create(const char *key, size_t key_bytes, const void *value,
                                      size_t value_bytes) {
    struct message *m = rf__alloc(1, sizeof *m + key_bytes + 1 + value_bytes);

    RF_ASSERT(m);
    m->key = (char *)(m + 1);
    m->value = (unsigned char *)m->key + key_bytes + 1;
    m->value_bytes = value_bytes;
    if (key_bytes) {
        memcpy(m->key, key, key_bytes);
    }
    if (value_bytes) {
        memcpy(m->value, value, value_bytes);
    }
    return m;
}

static void queue_clear(struct queue *queue) {
    while (queue->first) {
        struct message *m = queue->first;
        queue->first = m->next;
        rf__free(m);
    }
    *queue = (struct queue){.first = NULL};
}

static void queue_push(struct queue *queue, struct message *m) {
    if (!queue->first) {
        queue->last = &queue->first;
    }
    m->next = NULL;
    *queue->last = m;
    queue->last = &m->next;
}

/* Takes off what has flown, in order. */
static struct message *queue_pop_flown(struct queue *queue) {
    struct message *m = queue->flown ? queue->first : NULL;

    if (m) {
        queue->first = m->next;
        if (m == queue->flown) {
            queue->flown = NULL;
        }
    }
    return m;
}

static void fly(struct sim_store *client, struct queue *queue) {
    struct sim *sim = client->sim;
    int id = client->worker->id;
    bool out = queue == &client->out;

    if (queue->flying || !queue->first || !client->epoch) {
        return;
    }
    queue->flying = true;
    struct message *m = queue->first;
    while (m->next) {
        m = m->next;
    }
    queue->flown = m;
    int64_t delay = out ? sim_delay(sim, id, SIM_STORE, 200) : sim_delay(sim, SIM_STORE, id, 200);
    sim_post(sim, sim->now + delay, out ? SIM_EV_REQUEST : SIM_EV_REPLY, id, client->worker->start,
             client->epoch, 0);
}

/* ---- The server ---- */

static int64_t store_now(struct sim *sim) {
    sim->store_clock += (sim->now - sim->store_clock_at) / 1024 * sim->lease_rate;
    sim->store_clock_at = sim->now - (sim->now - sim->store_clock_at) % 1024;
    return sim->store_clock;
}

void sim_store_set_rate(struct sim *sim, int64_t rate) {
    (void)store_now(sim);
    sim->lease_rate = rate;
}

static void say(struct sim_store *client, struct message *m) {
    m->epoch = client->epoch;
    queue_push(&client->in, m);
    fly(client, &client->in);
}

static void serve_watches(struct sim_store *client) {
    struct sim *sim = client->sim;
    int64_t newest = rf__kv_revision(sim->kv);

    for (int i = 0; i < client->watch_count; i++) {
        struct watch *watch = &client->watches[i];
        for (; watch->next <= newest; watch->next++) {
            const struct rf__kv_item *item = rf__kv_history(sim->kv, watch->next);
            if (!item || !rf__kv_has_prefix(item, watch->prefix, strlen(watch->prefix))) {
                continue;
            }
            struct message *m =
                message_create(item->key, item->key_bytes, item->value, item->value_bytes);
            m->kind = RF__STORE_CHANGE;
            m->number = watch->number;
            m->deleted = item->deleted;
            m->key_revision = item->deleted ? 0 : item->revision;
            m->store_revision = item->revision;
            m->lease = item->lease;
            say(client, m);
        }
    }
}

static void serve_all_watches(struct sim *sim) {
    for (int id = 0; id < SIM_IDS; id++) {
        if (sim->seats[id].client && sim->seats[id].epoch) {
            serve_watches(sim->seats[id].client);
        }
    }
}

static void tell_checkers(struct sim *sim, int64_t before) {
    for (int64_t revision = before + 1; revision <= rf__kv_revision(sim->kv); revision++) {
        const struct rf__kv_item *item = rf__kv_history(sim->kv, revision);
        if (item) {
            sim_check_change(sim, item->key, item->deleted ? NULL : item->value, item->value_bytes,
                             revision);
        }
    }
}

static void forget_watches(struct sim_store *client) {
    while (client->watch_count > 0) {
        rf__free(client->watches[--client->watch_count].prefix);
    }
}

static void serve_list(struct sim_store *client, const struct rf__kv_request *request) {
    struct sim *sim = client->sim;
    size_t first, count = rf__kv_range(sim->kv, request->key, request->key_bytes, &first);

    for (size_t i = 0; i < count; i++) {
        const struct rf__kv_item *item = rf__kv_at(sim->kv, first + i);
        struct message *m =
            message_create(item->key, item->key_bytes, item->value, item->value_bytes);
        m->kind = RF__STORE_ITEM;
        m->number = request->number;
        m->key_revision = item->revision;
        m->store_revision = rf__kv_revision(sim->kv);
        m->lease = item->lease;
        say(client, m);
    }
}

static int serve_watch(struct sim_store *client, const struct rf__kv_request *request) {
    struct sim *sim = client->sim;
    int64_t newest = rf__kv_revision(sim->kv);
    int64_t from = request->revision ? request->revision : newest + 1;

    if (from < rf__kv_oldest(sim->kv) || from > newest + 1 || client->watch_count == WATCHES) {
        return RF_ELIMIT;
    }
    char *prefix = rf__alloc(request->key_bytes + 1, 1);
    RF_ASSERT(prefix);
    memcpy(prefix, request->key, request->key_bytes);
    client->watches[client->watch_count++] =
        (struct watch){.number = request->number, .next = from, .prefix = prefix};
    return 0;
}

/* `answers` false: it comes over a connection that its client has given up. */
static void serve(struct sim_store *client, const struct rf__kv_request *request, bool answers) {
    struct sim *sim = client->sim;
    struct rf__kv_result result = {.store_revision = rf__kv_revision(sim->kv)};
    int64_t before = rf__kv_revision(sim->kv);
    const struct rf__kv_item *item = NULL;

    switch (request->op) {
    case RF__KV_GET:
        item = rf__kv_get(sim->kv, request->key, request->key_bytes);
        result.code = item ? 0 : RF_ENOTFOUND;
        result.key_revision = item ? item->revision : 0;
        break;
    case RF__KV_PUT:
    case RF__KV_CAS:
    case RF__KV_DELETE:
    case RF__KV_LEASE:
    case RF__KV_REVOKE:
        (void)rf__kv_change(sim->kv, client->worker->start, request, store_now(sim), &result);
        break;
    case RF__KV_LIST:
        if (answers) {
            serve_list(client, request);
        }
        break;
    case RF__KV_KEEPALIVE:
        result.code = rf__kv_keepalive(sim->kv, request->lease, request->ttl_ms, store_now(sim));
        break;
    case RF__KV_WATCH:
        result.code = answers ? serve_watch(client, request) : 0;
        break;
    case RF__KV_UNWATCH:
    case RF__KV_OP_END:
        break;
    }
    tell_checkers(sim, before);
    if (answers) {
        struct message *m = message_create(item ? item->key : "", item ? item->key_bytes : 0,
                                           item ? item->value : NULL, item ? item->value_bytes : 0);
        m->kind = RF__STORE_REPLY;
        m->number = request->number;
        m->code = result.code;
        m->key_revision = result.key_revision;
        m->store_revision = result.store_revision;
        m->lease = item ? item->lease : result.lease;
        say(client, m);
    }
    serve_all_watches(sim);
}

void sim_store_tick(struct sim *sim) {
    uint64_t lease;
    int64_t now = store_now(sim);

    if (!sim->store_is_up) {
        return;
    }
    while ((lease = rf__kv_expired(sim->kv, now))) {
        struct rf__kv_request request = {.op = RF__KV_REVOKE, .lease = lease};
        struct rf__kv_result result;
        int64_t before = rf__kv_revision(sim->kv);
        sim_trace(sim, -1, "store: lease %llu runs out", (unsigned long long)lease);
        (void)rf__kv_change(sim->kv, 0, &request, now, &result);
        tell_checkers(sim, before);
    }
    serve_all_watches(sim);
}

/* ---- Connections ---- */

/* The connection is lost: what is on its way to the store may still arrive there. */
static void disconnect(struct sim_store *client) {
    struct sim *sim = client->sim;
    struct message *m;

    while (sim->store_is_up && (m = queue_pop_flown(&client->out))) {
        if (rf__rng_below(&sim->rng, 2)) {
            serve(client, &m->request, false);
        }
        rf__free(m);
    }
    queue_clear(&client->out);
    queue_clear(&client->in);
    forget_watches(client);
    client->epoch = sim->seats[client->worker->id].epoch = 0;
    for (int i = 0; i < client->pending_count; i++) {
        client->pending[i].sent = false;
    }
    connect_soon(client, RF__MS * (10 + (int64_t)rf__rng_below(&sim->rng, 90)));
}

/* What its process had sent may still arrive. */
void sim_store_end(struct sim_store *client) {
    struct sim *sim = client->sim;
    struct message *m;
    bool arrives = sim->store_is_up && sim_path(sim, client->worker->id, SIM_STORE);

    while (arrives && client->epoch && (m = queue_pop_flown(&client->out))) {
        if (rf__rng_below(&sim->rng, 2)) {
            serve(client, &m->request, false);
        }
        rf__free(m);
    }
    sim->seats[client->worker->id].client = NULL;
    sim->seats[client->worker->id].epoch = 0;
    client->epoch = 0;
}

static void connect_soon(struct sim_store *client, int64_t after) {
    struct sim *sim = client->sim;

    if (!client->connecting && sim->seats[client->worker->id].client == client) {
        client->connecting = true;
        sim_post(sim, sim->now + after, SIM_EV_CONNECT, client->worker->id, client->worker->start,
                 0, 0);
    }
}

static struct sim_store *client_of(struct sim *sim, const struct sim_event *event) {
    struct sim_store *client = sim->seats[event->id].client;
    return client && client->worker->start == event->start ? client : NULL;
}

static void send_all(struct sim_store *client) {
    int changes = 0;

    for (int i = 0; i < client->pending_count && client->epoch; i++) {
        struct pending *p = &client->pending[i];
        changes += rf__kv_is_change(p->request.op);
        if (p->sent || (rf__kv_is_change(p->request.op) && changes > RF__KV_CLIENT_REPLIES)) {
            continue;
        }
        struct message *m =
            message_create(p->key, p->request.key_bytes, p->value, p->request.value_bytes);
        m->epoch = client->epoch;
        m->number = p->number;
        m->request = p->request;
        m->request.key = m->key;
        m->request.value = m->value;
        if (p->request.op == RF__KV_WATCH && p->answered) {
            m->request.revision = p->next;
        }
        p->sent = true;
        queue_push(&client->out, m);
    }
    fly(client, &client->out);
}

void sim_store_connect(struct sim *sim, const struct sim_event *event) {
    struct sim_store *client = client_of(sim, event);

    if (!client) {
        return;
    }
    client->connecting = false;
    if (!sim->store_is_up || sim_is_frozen(client->worker) ||
        !sim_path(sim, event->id, SIM_STORE) || !sim_path(sim, SIM_STORE, event->id)) {
        int64_t back_off = 20 + 20 * (int64_t)(client->failures < 8 ? client->failures++ : 8);
        connect_soon(client, RF__MS * (back_off + (int64_t)rf__rng_below(&sim->rng, 20)));
        return;
    }
    client->failures = 0;
    client->epoch = sim->seats[event->id].epoch = ++sim->starts;
    sim_trace(sim, event->id, "connects with the store");
    send_all(client);
}

/* Whether what flies gets through now; else it is tried again, or the connection is lost. */
static bool gets_through(struct sim_store *client, const struct sim_event *event, int from,
                         int to) {
    struct sim *sim = client->sim;

    if (sim_path(sim, from, to) && sim->store_is_up) {
        return true;
    }
    if (rf__rng_below(&sim->rng, LOST_ONE_IN) == 0) {
        disconnect(client);
    } else {
        int64_t later = RF__MS * (20 + (int64_t)rf__rng_below(&sim->rng, 200));
        sim_post(sim, sim->now + later, event->kind, event->id, event->start, event->a, event->b);
    }
    return false;
}

void sim_store_request(struct sim *sim, const struct sim_event *event) {
    struct sim_store *client = client_of(sim, event);
    struct message *m;

    if (!client || client->epoch != event->a ||
        !gets_through(client, event, event->id, SIM_STORE)) {
        return;
    }
    client->out.flying = false;
    while ((m = queue_pop_flown(&client->out))) {
        sim_trace(sim, event->id, "store: op %d of '%s'", (int)m->request.op, m->key);
        serve(client, &m->request, true);
        rf__free(m);
    }
    fly(client, &client->out);
}

static int find_number(const struct sim_store *client, uint64_t number) {
    for (int i = 0; i < client->pending_count; i++) {
        if (client->pending[i].number == number) {
            return i;
        }
    }
    return -1;
}

static void forget(struct sim_store *client, int i) {
    rf__free(client->pending[i].key);
    client->pending_count--;
    memmove(&client->pending[i], &client->pending[i + 1],
            (size_t)(client->pending_count - i) * sizeof client->pending[0]);
}

static void hand_over(struct sim_store *client, struct message *m, uint64_t id) {
    m->number = id;
    m->next = NULL;
    if (!client->events) {
        client->last_event = &client->events;
    }
    *client->last_event = m;
    client->last_event = &m->next;
}

/* What the store said reaches the client: of what it has given up, nothing. */
static void take(struct sim_store *client, struct message *m) {
    int i = find_number(client, m->number);

    if (i < 0) {
        rf__free(m);
        return;
    }
    struct pending *p = &client->pending[i];
    uint64_t id = p->id;
    bool is_watch = p->request.op == RF__KV_WATCH;
    if (m->kind == RF__STORE_CHANGE) {
        p->next = m->store_revision + 1;
    } else if (m->kind == RF__STORE_REPLY && is_watch && m->code == 0) {
        bool is_news = !p->answered;
        p->next = p->answered ? p->next : p->request.revision;
        p->answered = true;
        if (!is_news) {
            rf__free(m);
            return;
        }
    } else if (m->kind == RF__STORE_REPLY) {
        forget(client, i);
    }
    hand_over(client, m, id);
}

void sim_store_reply(struct sim *sim, const struct sim_event *event) {
    struct sim_store *client = client_of(sim, event);
    struct message *m;

    if (!client || client->epoch != event->a ||
        !gets_through(client, event, SIM_STORE, event->id)) {
        return;
    }
    client->in.flying = false;
    while ((m = queue_pop_flown(&client->in))) {
        take(client, m);
    }
    send_all(client); /* what the window held back */
    fly(client, &client->in);
    sim_wake(client->worker, sim_soon(sim, 30 * SIM_US));
}

/* ---- The server's life ---- */

void sim_store_down(struct sim *sim) {
    if (!sim->store_is_up) {
        return;
    }
    sim_trace(sim, -1, "store: down");
    sim->store_is_up = false;
    for (int id = 0; id < SIM_IDS; id++) {
        if (sim->seats[id].client && sim->seats[id].epoch) {
            disconnect(sim->seats[id].client);
        }
    }
}

/* From its journal: the state is rebuilt from the records that it writes itself. */
void sim_store_up(struct sim *sim) {
    enum { ROOM = RF__KV_RECORD_MAX };
    struct rf__kv *again = rf__kv_create();
    unsigned char *record = rf__alloc(ROOM, 1);
    struct rf__kv_cursor cursor = {0};
    size_t bytes;

    if (sim->store_is_up) {
        rf__kv_destroy(again);
        rf__free(record);
        return;
    }
    RF_ASSERT(again && record);
    while ((bytes = rf__kv_snapshot_record(sim->kv, &cursor, record, ROOM)) > 0) {
        RF_ASSERT(rf__kv_replay(again, record, bytes) == 0);
    }
    RF_ASSERT(rf__kv_is_whole(again));
    rf__free(record);
    rf__kv_destroy(sim->kv);
    sim->kv = again;
    sim->store_is_up = true;
    rf__kv_renew(sim->kv, store_now(sim));
    sim_trace(sim, -1, "store: up, revision %lld", (long long)rf__kv_revision(sim->kv));
}

/* ---- The interface ---- */

static enum rf__kv_op op_of(enum rf__store_op op) {
    static const enum rf__kv_op ops[] = {
        [RF__STORE_GET] = RF__KV_GET,
        [RF__STORE_PUT] = RF__KV_PUT,
        [RF__STORE_CAS] = RF__KV_CAS,
        [RF__STORE_DELETE] = RF__KV_DELETE,
        [RF__STORE_LIST] = RF__KV_LIST,
        [RF__STORE_LEASE] = RF__KV_LEASE,
        [RF__STORE_KEEPALIVE] = RF__KV_KEEPALIVE,
        [RF__STORE_REVOKE] = RF__KV_REVOKE,
        [RF__STORE_WATCH] = RF__KV_WATCH,
        [RF__STORE_UNWATCH] = RF__KV_UNWATCH,
    };
    return ops[op];
}

static int submit(struct rf__store *store, const struct rf__store_request *request,
                  struct rf_error *err) {
    struct sim_store *client = of(store);
    size_t key_bytes = strlen(request->key);

    RF_ASSERT(request->id && request->op != RF__STORE_UNWATCH);
    if (client->pending_count == PENDING) {
        return rf__fail(err, RF_ELIMIT, 0, "too many requests of the store at once");
    }
    struct pending *p = &client->pending[client->pending_count++];
    char *copy = rf__alloc(key_bytes + 1 + request->value_bytes, 1);
    RF_ASSERT(copy);
    memcpy(copy, request->key, key_bytes);
    if (request->value_bytes) {
        memcpy(copy + key_bytes + 1, request->value, request->value_bytes);
    }
    *p = (struct pending){
        .id = request->id,
        .number = ++client->number,
        .key = copy,
        .value = (unsigned char *)copy + key_bytes + 1,
        .deadline = client->sim->now + request->deadline_ms * RF__MS,
        .request = {.op = op_of(request->op),
                    .number = client->number,
                    .revision = request->revision,
                    .lease = request->lease,
                    .ttl_ms = request->ttl_ms,
                    .key_bytes = key_bytes,
                    .value_bytes = request->value_bytes},
    };
    send_all(client);
    if (!client->epoch) {
        connect_soon(client, sim_delay(client->sim, client->worker->id, SIM_STORE, 200));
    }
    return 0;
}

static void pump(struct rf__store *store, int64_t now) {
    struct sim_store *client = of(store);

    (void)now;
    for (int i = 0; i < client->pending_count; i++) {
        struct pending *p = &client->pending[i];
        if (p->answered || client->sim->now < p->deadline) {
            continue;
        }
        struct message *m = message_create("", 0, NULL, 0);
        m->kind = RF__STORE_REPLY;
        m->code = RF_ESTORE;
        hand_over(client, m, p->id);
        forget(client, i--);
    }
}

static int next(struct rf__store *store, struct rf__store_event *event) {
    struct sim_store *client = of(store);
    struct message *m = client->events;

    rf__free(client->told);
    client->told = m;
    if (!m) {
        return 0;
    }
    client->events = m->next;
    *event = (struct rf__store_event){
        .id = m->number,
        .kind = m->kind,
        .code = m->code,
        .key = m->key,
        .value = m->deleted || (m->kind == RF__STORE_REPLY && m->code) ? NULL : m->value,
        .value_bytes = m->deleted ? 0 : m->value_bytes,
        .key_revision = m->key_revision,
        .store_revision = m->store_revision,
        .lease = m->lease,
    };
    if (m->kind == RF__STORE_REPLY && m->code) {
        (void)rf__fail(&client->error, m->code, 0, "the store answered with %d", m->code);
        client->error.rank = -1;
        event->error = &client->error;
    }
    return 1;
}

static int64_t next_deadline(const struct rf__store *store) {
    const struct sim_store *client = (const struct sim_store *)store;
    int64_t soonest = RF__NEVER;

    if (client->events) {
        return 0;
    }
    for (int i = 0; i < client->pending_count; i++) {
        const struct pending *p = &client->pending[i];
        if (!p->answered && p->deadline < soonest) {
            soonest = p->deadline;
        }
    }
    return soonest == RF__NEVER ? soonest : sim_local(client->worker) + soonest - client->sim->now;
}

static void destroy(struct rf__store *store) {
    struct sim_store *client = of(store);
    struct sim *sim = client->sim;

    if (sim->seats[client->worker->id].client == client) {
        sim->seats[client->worker->id].client = NULL;
        sim->seats[client->worker->id].epoch = 0;
    }
    while (client->pending_count > 0) {
        forget(client, client->pending_count - 1);
    }
    while (client->events) {
        struct message *m = client->events;
        client->events = m->next;
        rf__free(m);
    }
    rf__free(client->told);
    queue_clear(&client->in);
    queue_clear(&client->out);
    forget_watches(client);
    rf__free(client);
}

static const struct rf__store_ops store_ops = {
    .submit = submit,
    .pump = pump,
    .next = next,
    .next_deadline = next_deadline,
    .destroy = destroy,
};

struct rf__store *sim_store_create(struct sim_worker *worker) {
    struct sim_store *client = rf__alloc(1, sizeof *client);

    RF_ASSERT(client);
    client->store.ops = &store_ops;
    client->worker = worker;
    client->sim = worker->sim;
    worker->sim->seats[worker->id].client = client;
    return &client->store;
}
