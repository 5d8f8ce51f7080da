/* An elastic group of threads in one process: a runner with generations, and an oracle that decides
 * what becomes of a unit when one ends. The oracle shares no code with the library: it knows the
 * rule only (all survivors prepared: commit; else begin again) and keeps, for ever, what was
 * committed as which unit, so that a second content for the same unit is a failure.
 *
 * Collectives meet: the last of a generation's members to arrive carries the operation out for all,
 * naively, in rank order. Messages match in order for each pair. A generation ends at once for
 * everybody: what is not complete fails, and each member's report is what it had noted by then. The
 * next one is there at once too, for whoever takes it over.
 *
 * Faults: a worker dies in one of its calls; or a meeting is complete on some of the members only
 * when a worker dies, and the generation ends after those have gone on by one call; or a bit of a
 * result, or of a parameter, changes. A worker that has died may start anew.
 *
 * Where all workers have checkpoints, the world goes back to one by an order, and where nobody
 * holds the state any more: the next generation is told so, and the one after it too, as long as
 * nobody has taken the state from there. What was committed is forgotten then, as units are trained
 * again by other members, whom their digests name. */
#ifndef TESTS_ELASTIC_RUNNER_H
#define TESTS_ELASTIC_RUNNER_H

#include "base/mem.h"
#include "base/status.h"
#include "coll/fold.h"
#include "group/runner.h"
#include "support/threads.h"

#include <string.h>

#define CHECK(condition) CHECK_BY("worker", id, condition) /* where `id` is whose thread it is */

enum { WORLD_WORKERS = 6, WORLD_MEETINGS = 4096, WORLD_MESSAGES = 4096, WORLD_UNITS = 256 };
enum { WORLD_FAULTS = 4, WORLD_EVENTS = RF_EVENT_FLIP + 1 };

enum fault_kind {
    FAULT_NONE,
    FAULT_DIES,   /* worker `who` in its call number `at`, of start, note and reform */
    FAULT_CUT,    /* meeting number `at` is complete only on the workers in `mask`, `who` dies */
    FAULT_BIT,    /* a bit of the result of meeting number `at` changes on `who` */
    FAULT_FLIP,   /* a bit of a parameter of `who` changes at its begin number `at` */
    FAULT_MESSAGE /* a bit of the message number `at` changes on the way */
};

struct fault {
    enum fault_kind kind;
    int who, at;
    unsigned mask;
    int hits;
};

struct meeting {
    int joined;
    struct rf_call call;
    bool done[WORLD_WORKERS]; /* by rank */
    const void *send[WORLD_WORKERS];
    void *recv[WORLD_WORKERS];
    const double *divisor[WORLD_WORKERS];
};

struct message {
    int from, to; /* ranks */
    const void *send;
    void *recv;
    size_t count, recv_count;
    bool sent, received, done;
};

struct world;

struct worker {
    struct rf__runner base;
    struct world *world;
    bool live, entered, outside; /* outside: waits to be taken in */
    bool returns;                /* once it has died it will be started again */
    struct rf__progress progress;
    int calls, begins;
    int sequence; /* of collectives in the generation it has taken over */
    uint64_t config;
    bool may_roll_back;
    int rests;
    int events[WORLD_EVENTS];
    struct rf_event last[WORLD_EVENTS];
    int alive, in_flight, most_in_flight;
    int ids[WORLD_WORKERS]; /* what a membership points to */
    bool healed[WORLD_WORKERS];
    double link_rate; /* what slowest_link says; 0: nothing */
    int link_peer;
    int64_t clock_ns;
};

struct world {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct worker worker[WORLD_WORKERS]; /* by id */
    int workers;

    /* The newest generation. */
    uint64_t generation;
    int size, ids[WORLD_WORKERS];
    bool healed[WORLD_WORKERS]; /* by rank */
    uint64_t units, chain;
    bool commit, rolled_back;
    uint64_t target;
    bool ordered; /* to go back to `order`, at the end of a unit */
    uint64_t order;
    int rollbacks;
    struct meeting *meetings;
    struct message *messages;
    int message_count;
    unsigned owed; /* workers that may go on by one call before the generation ends */
    bool ending;

    struct rf_error ended; /* of the whole job */
    struct rf_error cause; /* of the last generation's end */
    uint64_t committed[WORLD_UNITS];
    bool known[WORLD_UNITS];
    bool may_differ; /* what the workers train */
    bool ends_all;   /* the first worker that is done ends the job for whoever comes to reform */
    int met, sent;   /* meetings and messages so far */
    int generations_seen, live_ops, live_memory, mismatches, regroups, put_out;
    struct fault fault[WORLD_FAULTS];
};

struct rf__op {
    uint64_t generation;
    int sequence, message; /* one of them, the other -1 */
    int rank;
};

static struct worker *worker_of(struct rf__runner *runner) {
    return (struct worker *)(void *)runner;
}

static int id_of(const struct worker *w) {
    return w->base.id;
}

static int rank_in(const struct world *world, int id) {
    for (int r = 0; r < world->size; r++) {
        if (world->ids[r] == id) {
            return r;
        }
    }
    return -1;
}

static void world_wrong(struct world *world, const char *what) {
    fprintf(stderr, "world: %s (generation %d)\n", what, (int)world->generation);
    world->mismatches++;
}

static bool strikes(struct world *world, enum fault_kind kind, int who, int at) {
    for (int i = 0; i < WORLD_FAULTS; i++) {
        struct fault *fault = &world->fault[i];
        if (fault->kind == kind && fault->at == at && (who < 0 || fault->who == who)) {
            fault->hits++;
            return true;
        }
    }
    return false;
}

/* ---- the oracle */

static void world_end(struct world *world, int code, const char *why) {
    if (!world->ended.code) {
        (void)rf__fail(&world->ended, code, 0, "%s", why);
    }
    pthread_cond_broadcast(&world->changed);
}

/* What a unit's content is, once and for all. */
static void remember(struct world *world, uint64_t units, uint64_t chain) {
    if (units > 0 && units < WORLD_UNITS) {
        if (world->known[units] && world->committed[units] != chain) {
            world_wrong(world, "a unit was committed with two contents");
        }
        world->known[units] = true;
        world->committed[units] = chain;
    }
}

/* The value that most of the survivors with `units` have noted, and how many they are. */
static int votes_for(const struct world *world, const int *ids, int count, uint64_t units,
                     bool prepared, uint64_t *winner) {
    int best = 0;
    for (int i = 0; i < count; i++) {
        const struct rf__progress *a = &world->worker[ids[i]].progress;
        int votes = 0;
        if (!a->healed || a->units != units || (prepared && !a->prepared)) {
            continue;
        }
        for (int k = 0; k < count; k++) {
            const struct rf__progress *b = &world->worker[ids[k]].progress;
            votes += b->healed && b->units == units && (!prepared || b->prepared) &&
                     (prepared ? b->prepared_chain == a->prepared_chain &&
                                     b->prepared_state == a->prepared_state
                               : b->chain == a->chain);
        }
        if (votes > best) {
            best = votes;
            *winner = prepared ? a->prepared_chain : a->chain;
        }
    }
    return best;
}

/* All take the state from a checkpoint. */
static void roll_back(struct world *world, const int *ids, int count, uint64_t target) {
    for (int i = 0; i < count; i++) {
        world->healed[i] = true;
        world->worker[ids[i]].progress = (struct rf__progress){.healed = true};
    }
    memset(world->known, 0, sizeof world->known);
    world->rolled_back = true;
    world->rollbacks++;
    world->target = target;
    world->units = world->chain = 0;
    world->commit = world->ordered = false;
}

static bool may_roll_back(const struct world *world, const int *ids, int count) {
    bool may = count > 0;
    for (int i = 0; i < count; i++) {
        may = may && world->worker[ids[i]].may_roll_back;
    }
    return may;
}

static void decide(struct world *world, const int *ids, int count) {
    uint64_t most = 0, chain = 0;
    int healed = 0, ahead = 0, prepared = 0;
    bool may = may_roll_back(world, ids, count);
    bool restoring = may && world->units == 0; /* some may have taken it from there, others not */

    for (int i = 0; i < count; i++) {
        const struct rf__progress *p = &world->worker[ids[i]].progress;
        if (p->healed) {
            healed++;
            most = p->units > most ? p->units : most;
        }
    }
    if (may && (world->ordered || healed == 0)) {
        roll_back(world, ids, count, world->ordered ? world->order : RF__NEWEST_STEP);
        return;
    }
    if (healed == 0) {
        world_end(world, RF_ESTATELESS, "nobody is left that holds the state");
        return;
    }
    for (int i = 0; i < count; i++) {
        const struct rf__progress *p = &world->worker[ids[i]].progress;
        ahead += p->healed && p->units == most;
        prepared += p->healed && p->units == most && p->prepared;
        restoring = restoring && !p->prepared;
    }
    /* somebody has committed what the others have prepared */
    world->commit = ahead < healed && !restoring;
    if (ahead == healed && prepared == healed) {
        bool majority = 2 * votes_for(world, ids, count, most, true, &chain) > healed;
        if (!majority && may) {
            roll_back(world, ids, count, RF__NEWEST_STEP);
            return;
        }
        if (!majority) {
            world_end(world, RF_EDIVERGED, "no majority");
            return;
        }
        world->commit = true;
        most++;
    } else if (votes_for(world, ids, count, most, false, &chain) == 0) {
        world_wrong(world, "nobody holds the newest unit");
    }
    for (int i = 0; i < count; i++) {
        struct rf__progress *p = &world->worker[ids[i]].progress;
        bool holds = p->units == most && p->chain == chain;
        bool commits =
            world->commit && p->prepared && p->units + 1 == most && p->prepared_chain == chain;
        if (world->commit && p->healed && !holds && !p->prepared) {
            world_wrong(world, "a unit was committed that a member had not prepared");
        }
        world->healed[i] = p->healed && (holds || commits);
        *p = (struct rf__progress){.healed = world->healed[i],
                                   .units = world->healed[i] ? most : p->units,
                                   .chain = world->healed[i] ? chain : p->chain};
    }
    world->rolled_back = world->rolled_back && most == 0;
    world->units = most;
    world->chain = chain;
    remember(world, most, chain);
}

/* Ends the generation and forms the next from those that live, less `out`, and those that wait. */
static void turn(struct world *world, const int *out, int outs) {
    int ids[WORLD_WORKERS], count = 0;

    world->ending = false;
    world->owed = 0;
    for (int r = 0; r < world->size; r++) {
        bool stays = world->worker[world->ids[r]].live;
        for (int i = 0; i < outs; i++) {
            stays = stays && out[i] != world->ids[r];
        }
        if (stays) {
            ids[count++] = world->ids[r];
        }
    }
    for (int id = 0; id < world->workers && count; id++) {
        struct worker *w = &world->worker[id];
        if (w->live && w->outside) {
            w->outside = false;
            w->progress = (struct rf__progress){.healed = false};
            ids[count++] = id;
        }
    }
    world->generation++;
    world->size = count;
    memcpy(world->ids, ids, sizeof ids);
    memset(world->meetings, 0, WORLD_MEETINGS * sizeof *world->meetings);
    world->message_count = 0;
    if (count == 0) {
        world_end(world, RF_EENDED, "nobody is left");
    } else {
        decide(world, ids, count);
    }
    pthread_cond_broadcast(&world->changed);
}

static void leave(struct world *world, struct worker *w) {
    bool member = rank_in(world, id_of(w)) >= 0;

    w->live = w->outside = false;
    if (member && !world->ending) {
        turn(world, NULL, 0);
    }
}

/* One of those that may still go on has done so. */
static void gone_on(struct world *world, int id) {
    if (world->ending && (world->owed & 1u << id)) {
        world->owed &= ~(1u << id);
        if (world->owed == 0) {
            turn(world, NULL, 0);
        }
    }
}

/* Whether the worker lives and its generation runs. */
static bool runs(const struct world *world, const struct worker *w) {
    return w->live && !world->ended.code && w->base.generation == world->generation &&
           (!world->ending || (world->owed & 1u << id_of(w)));
}

static int code_of(const struct world *world, const struct worker *w) {
    return !w->live ? RF_ELOST : world->ended.code ? world->ended.code : RF_EREVOKED;
}

/* A call in which the worker may die. */
static bool survives(struct world *world, struct worker *w) {
    if (w->live && strikes(world, FAULT_DIES, id_of(w), w->calls++)) {
        (void)rf__fail(&world->cause, RF_ELOST, 0, "worker %d was lost", id_of(w));
        leave(world, w);
    }
    return w->live;
}

/* ---- operations */

static void sum_up(const struct meeting *m, int size, int rank) {
    for (size_t i = 0; i < m->call.count; i++) {
        double wide = 0;
        float narrow = 0;
        for (int r = 0; r < size; r++) {
            if (m->call.type == RF_F64) {
                wide += ((const double *)m->send[r])[i];
            } else {
                narrow += ((const float *)m->send[r])[i];
            }
        }
        if (m->call.type == RF_F64) {
            ((double *)m->recv[rank])[i] = wide;
        } else {
            ((float *)m->recv[rank])[i] =
                m->divisor[rank] ? (float)((double)narrow / *m->divisor[rank]) : narrow;
        }
    }
}

/* In float32, rounded once. */
static void add_bf16(const struct meeting *m, int size, int rank) {
    for (size_t i = 0; i < m->call.count; i++) {
        float sum = 0, x;
        for (int r = 0; r < size; r++) {
            rf__widen(RF_BF16, &x, (const uint16_t *)m->send[r] + i, 1);
            sum += x;
        }
        sum = m->divisor[rank] ? (float)((double)sum / *m->divisor[rank]) : sum;
        rf__narrow(RF_BF16, (uint16_t *)m->recv[rank] + i, &sum, 1);
    }
}

static void carry_out(struct world *world, struct meeting *m, int rank) {
    size_t bytes = m->call.count * rf_type_size(m->call.type);

    if (m->call.coll == RF_COLL_ALLREDUCE && m->call.redop == RF_SUM &&
        (m->call.type == RF_F32 || m->call.type == RF_F64)) {
        sum_up(m, world->size, rank);
    } else if (m->call.coll == RF_COLL_ALL_GATHER) {
        for (int from = 0; from < world->size; from++) {
            memmove((char *)m->recv[rank] + (size_t)from * bytes, m->send[from], bytes);
        }
    } else if (m->call.coll == RF_COLL_ALL_TO_ALL) {
        for (int from = 0; from < world->size; from++) {
            memcpy((char *)m->recv[rank] + (size_t)from * bytes,
                   (const char *)m->send[from] + (size_t)rank * bytes, bytes);
        }
    } else if (m->call.coll == RF_COLL_ALLREDUCE && m->call.redop == RF_SUM &&
               m->call.type == RF_BF16) {
        add_bf16(m, world->size, rank);
    } else if (m->call.coll == RF_COLL_BROADCAST) {
        memmove(m->recv[rank], m->send[m->call.root], bytes);
    } else {
        world_wrong(world, "an unknown collective");
    }
    m->done[rank] = true;
}

/* All have arrived. A cut: `mask` get the result, and the worker dies with the others' waiting. */
static void meet(struct world *world, struct meeting *m) {
    int at = world->met++;
    struct fault *cut = NULL;

    for (int i = 0; i < WORLD_FAULTS; i++) {
        struct fault *fault = &world->fault[i];
        if (fault->kind == FAULT_CUT && fault->at == at && rank_in(world, fault->who) >= 0) {
            cut = fault;
        }
    }
    world->owed = 0;
    for (int r = 0; r < world->size; r++) {
        int id = world->ids[r];
        bool gets = !cut || (id != cut->who && (cut->mask & 1u << id));
        if (gets) {
            carry_out(world, m, r);
            world->owed |= 1u << id;
        }
        if (gets && strikes(world, FAULT_BIT, id, at)) {
            ((unsigned char *)m->recv[r])[0] ^= 1;
        }
    }
    if (cut) {
        unsigned owed = world->owed;
        cut->hits++;
        (void)rf__fail(&world->cause, RF_ELOST, 0, "worker %d was lost", cut->who);
        world->ending = owed != 0;
        leave(world, &world->worker[cut->who]);
    }
    pthread_cond_broadcast(&world->changed);
}

static bool same_call(const struct rf_call *a, const struct rf_call *b) {
    return a->coll == b->coll && a->type == b->type && a->redop == b->redop && a->root == b->root &&
           a->count == b->count && a->algorithm == b->algorithm;
}

static void join_meeting(struct world *world, struct worker *w, const struct rf__op_params *params,
                         struct rf__op *op) {
    struct meeting *m = &world->meetings[w->sequence];

    op->sequence = w->sequence++;
    if (w->sequence == WORLD_MEETINGS) {
        abort();
    }
    if (m->joined == 0) {
        m->call = params->call;
    } else if (!same_call(&m->call, &params->call)) {
        world_wrong(world, "members called different collectives");
        world_end(world, RF_EMISMATCH, "different collectives");
        return;
    }
    m->send[op->rank] = params->call.send;
    m->recv[op->rank] = params->call.recv;
    m->divisor[op->rank] = params->divisor;
    if (++m->joined == world->size) {
        meet(world, m);
    }
}

static void join_message(struct world *world, const struct rf__op_params *params,
                         struct rf__op *op) {
    bool sends = params->call.coll == RF_COLL_SEND;
    int from = sends ? op->rank : params->call.root, to = sends ? params->call.root : op->rank;
    int at = 0;

    while (at < world->message_count) {
        const struct message *m = &world->messages[at];
        if (m->from == from && m->to == to && !(sends ? m->sent : m->received)) {
            break;
        }
        at++;
    }
    if (at == WORLD_MESSAGES) {
        abort();
    }
    struct message *m = &world->messages[at];
    if (at == world->message_count) {
        *m = (struct message){.from = from, .to = to};
        world->message_count++;
    }
    if (sends) {
        m->sent = true;
        m->send = params->call.send;
        m->count = params->call.count;
    } else {
        m->received = true;
        m->recv = params->call.recv;
        m->recv_count = params->call.count;
    }
    op->message = at;
    if (m->sent && m->received) {
        if (m->count != m->recv_count) {
            world_wrong(world, "a message of another size");
        } else {
            memcpy(m->recv, m->send, m->count);
            if (strikes(world, FAULT_MESSAGE, -1, world->sent++)) {
                ((unsigned char *)m->recv)[m->count / 2] ^= 4;
            }
        }
        m->done = true;
        pthread_cond_broadcast(&world->changed);
    }
}

static int world_start(struct rf__runner *runner, const struct rf__op_params *params,
                       struct rf__op **out) {
    struct worker *w = worker_of(runner);
    struct world *world = w->world;

    pthread_mutex_lock(&world->lock);
    bool ok = survives(world, w) && runs(world, w) && !world->ending;
    int rc = ok ? 0 : code_of(world, w);
    if (ok) {
        struct rf__op *op = calloc(1, sizeof *op);
        *op = (struct rf__op){
            .generation = world->generation, .sequence = -1, .message = -1, .rank = runner->rank};
        world->live_ops++;
        w->in_flight++;
        w->most_in_flight = w->in_flight > w->most_in_flight ? w->in_flight : w->most_in_flight;
        if (params->call.coll == RF_COLL_SEND || params->call.coll == RF_COLL_RECV) {
            join_message(world, params, op);
        } else {
            join_meeting(world, w, params, op);
        }
        *out = op;
    }
    gone_on(world, id_of(w));
    pthread_mutex_unlock(&world->lock);
    return rc;
}

/* 1 complete, 0 not yet, or the error. */
static int state_of(const struct world *world, const struct worker *w, const struct rf__op *op) {
    if (op->generation == world->generation) {
        bool done = op->message >= 0 ? world->messages[op->message].done
                                     : world->meetings[op->sequence].done[op->rank];
        if (done) {
            return 1;
        }
    }
    bool goes_on = runs(world, w) && !world->ending && op->generation == world->generation;
    return goes_on ? 0 : code_of(world, w);
}

static int world_test(struct rf__runner *runner, struct rf__op *op) {
    struct worker *w = worker_of(runner);

    pthread_mutex_lock(&w->world->lock);
    int rc = state_of(w->world, w, op);
    pthread_mutex_unlock(&w->world->lock);
    return rc;
}

static int world_wait(struct rf__runner *runner, struct rf__op *op, int timeout_ms,
                      int64_t *busy_ns) {
    struct worker *w = worker_of(runner);
    struct world *world = w->world;
    int rc;

    (void)timeout_ms;
    pthread_mutex_lock(&world->lock);
    while ((rc = state_of(world, w, op)) == 0) {
        pthread_cond_wait(&world->changed, &world->lock);
    }
    rc = rc > 0 ? 0 : rc;
    world->live_ops--;
    w->in_flight--;
    pthread_mutex_unlock(&world->lock);
    free(op);
    if (busy_ns) {
        *busy_ns = 0;
    }
    return rc;
}

static void world_error(struct rf__runner *runner, struct rf_error *out) {
    struct worker *w = worker_of(runner);

    pthread_mutex_lock(&w->world->lock);
    *out = (struct rf_error){.code = 0};
    if (!runs(w->world, w)) {
        *out = w->world->ended.code ? w->world->ended : w->world->cause;
    }
    pthread_mutex_unlock(&w->world->lock);
}

static void world_fail(struct rf__runner *runner, const struct rf_error *error) {
    struct worker *w = worker_of(runner);

    pthread_mutex_lock(&w->world->lock);
    if (runs(w->world, w)) {
        w->world->cause = *error;
        turn(w->world, NULL, 0);
    }
    pthread_mutex_unlock(&w->world->lock);
}

static int world_alloc(struct rf__runner *runner, size_t bytes, void **out, struct rf_error *err) {
    struct world *world = worker_of(runner)->world;

    *out = rf__alloc_aligned(bytes);
    if (!*out) {
        return rf__fail(err, RF_ENOMEM, 0, "no memory for %zu bytes", bytes);
    }
    pthread_mutex_lock(&world->lock);
    world->live_memory++;
    pthread_mutex_unlock(&world->lock);
    return 0;
}

static void world_release(struct rf__runner *runner, void *memory) {
    struct world *world = worker_of(runner)->world;

    pthread_mutex_lock(&world->lock);
    world->live_memory--;
    pthread_mutex_unlock(&world->lock);
    rf__free(memory);
}

static int64_t world_now(struct rf__runner *runner) {
    return worker_of(runner)->clock_ns;
}

/* ---- membership */

static void world_enter(struct rf__runner *runner, uint64_t config, bool may_roll_back) {
    struct worker *w = worker_of(runner);

    pthread_mutex_lock(&w->world->lock);
    w->entered = true;
    w->may_roll_back = may_roll_back;
    w->config = config;
    if (config != w->world->worker[0].config && w->world->worker[0].entered &&
        !w->world->may_differ) {
        world_wrong(w->world, "another configuration");
    }
    pthread_mutex_unlock(&w->world->lock);
}

static int world_note(struct rf__runner *runner, const struct rf__progress *progress) {
    struct worker *w = worker_of(runner);
    struct world *world = w->world;

    pthread_mutex_lock(&world->lock);
    bool ok = survives(world, w) && runs(world, w);
    if (ok) {
        w->progress = *progress;
        if (progress->healed) {
            remember(world, progress->units, progress->chain);
        }
    }
    gone_on(world, id_of(w));
    pthread_mutex_unlock(&world->lock);
    return ok ? 0 : RF_EREVOKED;
}

static int world_reform(struct rf__runner *runner, struct rf__membership *out,
                        struct rf_error *err) {
    struct worker *w = worker_of(runner);
    struct world *world = w->world;
    int rank, rc = 0;

    pthread_mutex_lock(&world->lock);
    (void)survives(world, w);
    gone_on(world, id_of(w));
    while ((rank = rank_in(world, id_of(w))) < 0 || world->ending) {
        w->outside = w->live && rank < 0;
        pthread_cond_broadcast(&world->changed);
        if (!w->live || world->ended.code) {
            break;
        }
        pthread_cond_wait(&world->changed, &world->lock);
    }
    if (!w->live || world->ended.code) {
        rc = code_of(world, w);
        (void)rf__fail(err, rc, 0, "%s", w->live ? world->ended.text : "this worker has died");
    } else {
        if (runner->generation != world->generation) {
            w->sequence = 0;
        }
        runner->generation = world->generation;
        runner->rank = rank;
        runner->size = world->size;
        memcpy(w->ids, world->ids, sizeof w->ids);
        memcpy(w->healed, world->healed, sizeof w->healed);
        *out = (struct rf__membership){.generation = world->generation,
                                       .rank = rank,
                                       .size = world->size,
                                       .units = world->units,
                                       .chain = world->chain,
                                       .commit = world->commit,
                                       .rolled_back = world->rolled_back,
                                       .target = world->target,
                                       .ids = w->ids,
                                       .healed = w->healed};
    }
    pthread_mutex_unlock(&world->lock);
    return rc;
}

static bool world_is_over(struct rf__runner *runner) {
    struct worker *w = worker_of(runner);

    pthread_mutex_lock(&w->world->lock);
    bool over = !runs(w->world, w);
    pthread_mutex_unlock(&w->world->lock);
    return over;
}

static bool world_is_awaited(struct rf__runner *runner) {
    struct world *world = worker_of(runner)->world;

    pthread_mutex_lock(&world->lock);
    bool awaited = world->ordered;
    for (int id = 0; id < world->workers; id++) {
        awaited = awaited || (world->worker[id].live && world->worker[id].outside);
    }
    pthread_mutex_unlock(&world->lock);
    return awaited;
}

static void world_regroup(struct rf__runner *runner, const int *out, int out_count,
                          const char *reason) {
    struct worker *w = worker_of(runner);
    struct world *world = w->world;

    pthread_mutex_lock(&world->lock);
    if (runs(world, w) && !world->ending) {
        (void)rf__fail(&world->cause, RF_EREVOKED, 0, "%s", reason);
        world->regroups++;
        world->put_out |= out_count ? 1 << out[0] : 0;
        turn(world, out, out_count);
    }
    pthread_mutex_unlock(&world->lock);
}

static int world_slowest_link(struct rf__runner *runner, double *bytes_per_s) {
    const struct worker *w = worker_of(runner);
    *bytes_per_s = w->link_rate;
    return w->link_rate > 0 ? w->link_peer : -1;
}

static bool world_flip_is_due(struct rf__runner *runner) {
    struct worker *w = worker_of(runner);

    pthread_mutex_lock(&w->world->lock);
    bool due = strikes(w->world, FAULT_FLIP, id_of(w), w->begins++);
    pthread_mutex_unlock(&w->world->lock);
    return due;
}

static void world_tell(struct rf__runner *runner, const struct rf_event *event) {
    struct worker *w = worker_of(runner);
    w->events[event->kind]++;
    w->last[event->kind] = *event;
}

static void world_alive(struct rf__runner *runner) {
    worker_of(runner)->alive++;
}

static void world_rest(struct rf__runner *runner) {
    worker_of(runner)->rests++;
}

static const struct rf__runner_ops world_ops = {
    .start = world_start,
    .test = world_test,
    .wait = world_wait,
    .error = world_error,
    .fail = world_fail,
    .alloc = world_alloc,
    .release = world_release,
    .now = world_now,
    .enter = world_enter,
    .note = world_note,
    .reform = world_reform,
    .is_over = world_is_over,
    .is_awaited = world_is_awaited,
    .regroup = world_regroup,
    .slowest_link = world_slowest_link,
    .flip_is_due = world_flip_is_due,
    .tell = world_tell,
    .alive = world_alive,
    .rest = world_rest,
};

/* A worker as its process starts: also again, after it has died. */
static void worker_start(struct world *world, int id) {
    struct worker *w = &world->worker[id];
    int calls = w->calls, begins = w->begins;
    struct worker before = *w;

    *w = (struct worker){.base = {.ops = &world_ops,
                                  .rank = -1,
                                  .elastic = true,
                                  .id = id,
                                  .max_size = WORLD_WORKERS,
                                  .slow_evict = 10,
                                  .slow_window = 2},
                         .world = world,
                         .calls = calls,
                         .begins = begins,
                         .live = true};
    memcpy(w->events, before.events, sizeof w->events);
    memcpy(w->last, before.last, sizeof w->last);
}

/* `first` workers are the first generation, the others come later. */
static void world_open(struct world *world, int first, int workers) {
    memset(world, 0, sizeof *world);
    pthread_mutex_init(&world->lock, NULL);
    pthread_cond_init(&world->changed, NULL);
    world->meetings = calloc(WORLD_MEETINGS, sizeof *world->meetings);
    world->messages = calloc(WORLD_MESSAGES, sizeof *world->messages);
    if (!world->meetings || !world->messages) {
        abort();
    }
    world->workers = workers;
    world->generation = 1;
    world->size = first;
    for (int id = 0; id < workers; id++) {
        worker_start(world, id);
        world->ids[id] = id;
        world->healed[id] = true;
        world->worker[id].progress = (struct rf__progress){.healed = id < first};
    }
}

static void world_close(struct world *world) {
    free(world->meetings);
    free(world->messages);
    pthread_cond_destroy(&world->changed);
    pthread_mutex_destroy(&world->lock);
}

/* The worker has done all there is to do (`done`), or given up. */
static void worker_leaves(struct worker *w, bool done) {
    pthread_mutex_lock(&w->world->lock);
    w->returns = false;
    pthread_cond_broadcast(&w->world->changed);
    if (w->live && done && w->world->ends_all) {
        world_end(w->world, RF_EENDED, "the job is done");
    }
    if (w->live) {
        leave(w->world, w);
    }
    pthread_mutex_unlock(&w->world->lock);
}

/* Worker `self` waits until each other that is not in the generation waits to be taken in. */
static inline void await_others(struct world *world, int self) {
    pthread_mutex_lock(&world->lock);
    for (int id = 0; id < world->workers; id++) {
        struct worker *w = &world->worker[id];
        while (id != self && !world->ended.code && (w->live || w->returns) && !w->outside &&
               rank_in(world, id) < 0) {
            pthread_cond_wait(&world->changed, &world->lock);
        }
    }
    pthread_mutex_unlock(&world->lock);
}

/* It has died and comes back. */
static inline void worker_returns(struct worker *w) {
    pthread_mutex_lock(&w->world->lock);
    worker_start(w->world, id_of(w));
    pthread_mutex_unlock(&w->world->lock);
}

/* A worker's life: it starts anew each time it dies, and so often in all. Returns what the last
 * life, `live(id, is_first, context)`, ended with. */
static inline int worker_lives(struct worker *w, int starts,
                               int (*live)(int id, bool is_first, void *context), void *context) {
    int rc = RF_ELOST;

    for (int start = 0; rc == RF_ELOST && start < starts; start++) {
        if (start > 0) {
            worker_returns(w);
        }
        rc = live(id_of(w), start == 0, context);
    }
    return rc;
}

/* At the end: nothing is left over, and the oracle had nothing to say against it. */
static inline bool world_is_content(const struct world *world) {
    bool content = world->mismatches == 0 && world->live_ops == 0 && world->live_memory == 0;

    if (!content) {
        fprintf(stderr,
                "the world has %d mismatches, and %d operations, %d pieces of memory left\n",
                world->mismatches, world->live_ops, world->live_memory);
    }
    return content;
}

#endif
