/* A runner for n ranks that are n threads of one process. The k-th operations of all ranks meet:
 * the last to arrive carries the operation out for all, naively and in rank order, under one lock.
 * Holds the ranks against each other (same sequence, same counts), counts what lives, and fails, or
 * changes a bit, where a test asks for it.
 *
 * Time is each member's own counter: nothing passes but what a test adds, and `wait_ns` for each
 * wait. */
#ifndef TESTS_THREADED_RUNNER_H
#define TESTS_THREADED_RUNNER_H

#include "base/mem.h"
#include "base/status.h"
#include "coll/fold.h"
#include "group/runner.h"
#include "support/threads.h"

#include <string.h>

#define CHECK(condition)                                                                           \
    CHECK_BY("rank", rank, condition) /* where `rank` is whose thread it is                        \
                                       */

enum { RUNNER_RANKS = 8, RUNNER_MEETINGS = 8192 };

enum fault {
    FAULT_NONE,
    FAULT_START, /* the start is refused on `fault_rank` alone; the group lives */
    FAULT_RUN,   /* the operation fails on all: `fault_rank` was lost */
    FAULT_BIT    /* a bit of the result changes on `fault_rank` alone */
};

struct meeting {
    struct rf_call call;
    int joined;
    bool done;
    const void *send[RUNNER_RANKS];
    void *recv[RUNNER_RANKS];
    const double *divisor[RUNNER_RANKS];
};

struct group;

struct member {
    struct rf__runner base;
    struct group *group;
    int started; /* operations; the member's thread's own */
    int in_flight, most_in_flight;
    int64_t clock_ns;
};

struct group {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct rf_error error;
    struct meeting *meetings;
    struct member members[RUNNER_RANKS];
    int size;
    int live_ops, live_memory; /* not freed yet */
    int mismatches;            /* operations that did not match, or buffers that must not be */
    enum fault fault;
    int fault_rank, fault_at, fault_hits;
    int64_t wait_ns, busy_ns;
};

struct rf__op {
    int sequence;
};

static struct member *member_of(struct rf__runner *runner) {
    return (struct member *)(void *)runner;
}

static void group_fails(struct group *group, const struct rf_error *error) {
    if (group->error.code == 0) {
        group->error = *error;
    }
    pthread_cond_broadcast(&group->changed);
}

static void add_f32(const struct meeting *m, int size) {
    for (size_t i = 0; i < m->call.count; i++) {
        float sum = ((const float *)m->send[0])[i];
        for (int r = 1; r < size; r++) {
            sum += ((const float *)m->send[r])[i];
        }
        for (int r = 0; r < size; r++) {
            const double *divisor = m->divisor[r];
            ((float *)m->recv[r])[i] = divisor ? (float)((double)sum / *divisor) : sum;
        }
    }
}

static void add_f64(const struct meeting *m, int size) {
    for (size_t i = 0; i < m->call.count; i++) {
        double sum = 0;
        for (int r = 0; r < size; r++) {
            sum += ((const double *)m->send[r])[i];
        }
        for (int r = 0; r < size; r++) {
            ((double *)m->recv[r])[i] = sum;
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

static void carry_out(struct group *group, struct meeting *m) {
    size_t bytes = m->call.count * rf_type_size(m->call.type);

    if (m->call.coll == RF_COLL_ALLREDUCE && m->call.redop == RF_SUM && m->call.type == RF_F32) {
        add_f32(m, group->size);
    } else if (m->call.coll == RF_COLL_ALLREDUCE && m->call.redop == RF_SUM &&
               m->call.type == RF_F64) {
        add_f64(m, group->size);
    } else if (m->call.coll == RF_COLL_ALL_GATHER) {
        for (int r = 0; r < group->size; r++) {
            for (int from = 0; from < group->size; from++) {
                memmove((char *)m->recv[r] + (size_t)from * bytes, m->send[from], bytes);
            }
        }
    } else if (m->call.coll == RF_COLL_ALL_TO_ALL) {
        for (int r = 0; r < group->size; r++) {
            for (int from = 0; from < group->size; from++) {
                memcpy((char *)m->recv[r] + (size_t)from * bytes,
                       (const char *)m->send[from] + (size_t)r * bytes, bytes);
            }
        }
    } else if (m->call.coll == RF_COLL_ALLREDUCE && m->call.redop == RF_SUM &&
               m->call.type == RF_BF16) {
        for (int r = 0; r < group->size; r++) {
            add_bf16(m, group->size, r);
        }
    } else if (m->call.coll == RF_COLL_BROADCAST) {
        for (int r = 0; r < group->size; r++) {
            memmove(m->recv[r], m->send[m->call.root], bytes);
        }
    } else {
        group->mismatches++;
    }
    m->done = true;
}

/* All ranks have arrived. */
static void meet(struct group *group, struct meeting *m, int sequence) {
    bool hit =
        group->fault != FAULT_NONE && group->fault != FAULT_START && sequence == group->fault_at;

    if (hit && group->fault == FAULT_RUN) {
        struct rf_error lost;
        (void)rf__fail(&lost, RF_ELOST, 0, "worker %d was lost", group->fault_rank);
        lost.rank = group->fault_rank;
        group->fault_hits++;
        group_fails(group, &lost);
        return;
    }
    carry_out(group, m);
    if (hit) {
        *(unsigned char *)m->recv[group->fault_rank] ^= 1;
        group->fault_hits++;
    }
    pthread_cond_broadcast(&group->changed);
}

static bool same_call(const struct rf_call *a, const struct rf_call *b) {
    return a->coll == b->coll && a->type == b->type && a->redop == b->redop && a->root == b->root &&
           a->count == b->count && a->algorithm == b->algorithm;
}

static int runner_start(struct rf__runner *runner, const struct rf__op_params *params,
                        struct rf__op **out) {
    struct member *self = member_of(runner);
    struct group *group = self->group;
    struct rf__op *op = NULL;

    pthread_mutex_lock(&group->lock);
    int sequence = self->started++;
    int rc = group->error.code;
    if (rc == 0 && group->fault == FAULT_START && runner->rank == group->fault_rank &&
        sequence == group->fault_at) {
        group->fault_hits++;
        rc = RF_ENOMEM;
    }
    if (rc == 0) {
        struct meeting *m = &group->meetings[sequence];
        op = calloc(1, sizeof *op);
        if (!op || sequence >= RUNNER_MEETINGS) {
            abort();
        }
        op->sequence = sequence;
        group->live_ops++;
        if (++self->in_flight > self->most_in_flight) {
            self->most_in_flight = self->in_flight;
        }
        if (m->joined == 0) {
            m->call = params->call;
        } else if (!same_call(&m->call, &params->call)) {
            struct rf_error mismatch;
            group->mismatches++;
            (void)rf__fail(&mismatch, RF_EMISMATCH, 0, "operation %d differs", sequence);
            group_fails(group, &mismatch);
        }
        m->send[runner->rank] = params->call.send;
        m->recv[runner->rank] = params->call.recv;
        m->divisor[runner->rank] = params->divisor;
        m->joined++;
        if (m->joined == group->size && group->error.code == 0) {
            meet(group, m, sequence);
        }
        *out = op;
    }
    pthread_mutex_unlock(&group->lock);
    return rc;
}

static int runner_test(struct rf__runner *runner, struct rf__op *op) {
    struct group *group = member_of(runner)->group;

    pthread_mutex_lock(&group->lock);
    int rc = group->meetings[op->sequence].done ? 1 : group->error.code;
    pthread_mutex_unlock(&group->lock);
    return rc;
}

static int runner_wait(struct rf__runner *runner, struct rf__op *op, int timeout_ms,
                       int64_t *busy_ns) {
    struct member *self = member_of(runner);
    struct group *group = self->group;

    pthread_mutex_lock(&group->lock);
    struct meeting *m = &group->meetings[op->sequence];
    while (!m->done && group->error.code == 0 && timeout_ms < 0) {
        pthread_cond_wait(&group->changed, &group->lock);
    }
    int rc = m->done ? 0 : group->error.code ? group->error.code : RF_ETIMEDOUT;
    if (rc != RF_ETIMEDOUT) {
        group->live_ops--;
        self->in_flight--;
        free(op);
    }
    if (busy_ns) {
        *busy_ns = group->busy_ns;
    }
    self->clock_ns += group->wait_ns;
    pthread_mutex_unlock(&group->lock);
    return rc;
}

static void runner_error(struct rf__runner *runner, struct rf_error *out) {
    struct group *group = member_of(runner)->group;

    pthread_mutex_lock(&group->lock);
    *out = group->error;
    pthread_mutex_unlock(&group->lock);
}

static void runner_fail(struct rf__runner *runner, const struct rf_error *error) {
    struct group *group = member_of(runner)->group;

    pthread_mutex_lock(&group->lock);
    group_fails(group, error);
    pthread_mutex_unlock(&group->lock);
}

static int runner_alloc(struct rf__runner *runner, size_t bytes, void **out, struct rf_error *err) {
    struct group *group = member_of(runner)->group;

    *out = rf__alloc_aligned(bytes);
    if (!*out) {
        return rf__fail(err, RF_ENOMEM, 0, "no memory for %zu bytes", bytes);
    }
    pthread_mutex_lock(&group->lock);
    group->live_memory++;
    pthread_mutex_unlock(&group->lock);
    return 0;
}

static void runner_release(struct rf__runner *runner, void *memory) {
    struct group *group = member_of(runner)->group;

    pthread_mutex_lock(&group->lock);
    group->live_memory--;
    pthread_mutex_unlock(&group->lock);
    rf__free(memory);
}

static int64_t runner_now(struct rf__runner *runner) {
    return member_of(runner)->clock_ns;
}

static const struct rf__runner_ops threaded_ops = {
    .start = runner_start,
    .test = runner_test,
    .wait = runner_wait,
    .error = runner_error,
    .fail = runner_fail,
    .alloc = runner_alloc,
    .release = runner_release,
    .now = runner_now,
};

static void group_open(struct group *group, int size) {
    memset(group, 0, sizeof *group);
    pthread_mutex_init(&group->lock, NULL);
    pthread_cond_init(&group->changed, NULL);
    group->meetings = calloc(RUNNER_MEETINGS, sizeof *group->meetings);
    if (!group->meetings) {
        abort();
    }
    group->size = size;
    group->fault_at = -1;
    for (int r = 0; r < size; r++) {
        group->members[r] = (struct member){
            .base = {.ops = &threaded_ops, .rank = r, .size = size, .generation = 1},
            .group = group,
        };
    }
}

static void group_close(struct group *group) {
    free(group->meetings);
    pthread_cond_destroy(&group->changed);
    pthread_mutex_destroy(&group->lock);
}

#endif
