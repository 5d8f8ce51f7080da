/* A running job, seen through its store: the records are those of src/member. */
#include <ringfold/job.h>

#include "base/mem.h"
#include "base/status.h"
#include "member/record.h"
#include "os/clock.h"
#include "os/host.h"

#include <stdio.h>
#include <time.h>

#define NS_PER_MS 1000000ll

enum { LOOK_EVERY_MS = 50 };

static int read_generation(struct rf_store *store, const char *job, struct rf__generation *out,
                           struct rf_error *err) {
    char key[RF_MAX_STORE_KEY];
    size_t bytes = RF__GENERATION_BYTES;
    int64_t revision;
    unsigned char *value = rf__alloc(1, bytes);

    if (!value) {
        return rf__fail(err, RF_ENOMEM, 0, "no memory for a generation");
    }
    snprintf(key, sizeof key, "rf/%s/generation", job);
    int rc = rf_store_get(store, key, value, &bytes, &revision, err);
    if (rc == RF_ENOTFOUND) {
        rc = rf__fail(err, RF_ENOTFOUND, 0, "the store knows no running job '%.100s'", job);
        if (err) {
            rf__detail(err->next, "ringfold store list rf/ --store … shows what it knows");
        }
    }
    if (rc == 0 && rf__generation_decode(value, bytes, out)) {
        rc = rf__fail(err, RF_EPROTO, 0, "the generation of job '%.100s' cannot be read", job);
    }
    rf__free(value);
    return rc;
}

static struct rf_job_state state_of(const struct rf__generation *g) {
    return (struct rf_job_state){.generation = g->number, .members = g->count, .ended = g->ended};
}

int rf_job_look(struct rf_store *store, const char *job, struct rf_job_state *out,
                struct rf_error *err) {
    struct rf__generation *g = rf__alloc(1, sizeof *g);

    if (!g) {
        return rf__fail(err, RF_ENOMEM, 0, "no memory for a generation");
    }
    int rc = read_generation(store, job, g, err);
    if (rc == 0) {
        *out = state_of(g);
    }
    rf__free(g);
    return rc;
}

static int await_order(struct rf_store *store, const char *job, uint64_t nonce, int timeout_ms,
                       struct rf__generation *g, struct rf_error *err) {
    const struct timespec pause = {.tv_nsec = LOOK_EVERY_MS * NS_PER_MS};
    int64_t until = rf__now() + timeout_ms * NS_PER_MS;
    int rc = 0;

    while (rc == 0 && g->order != nonce) {
        rc = read_generation(store, job, g, err);
        if (rc == 0 && g->ended) {
            rc = rf__fail(err, RF_EENDED, 0, "job '%.100s' has ended", job);
        } else if (rc == 0 && g->order != nonce && rf__now() > until) {
            rc = rf__fail(err, RF_ETIMEDOUT, 0,
                          "job '%.100s' has not taken the order within %.0f s: no step has ended "
                          "since, or it keeps no checkpoints",
                          job, timeout_ms * 1e-3);
            if (err) {
                rf__detail(err->next, "the order still stands, and is followed at the end of the "
                                      "next step, where the job keeps checkpoints");
            }
        } else if (rc == 0 && g->order != nonce) {
            nanosleep(&pause, NULL);
        }
    }
    return rc;
}

int rf_job_rollback(struct rf_store *store, const char *job, uint64_t step, int timeout_ms,
                    struct rf_job_state *out, struct rf_error *err) {
    struct rf__rollback order = {.step = step};
    unsigned char bytes[RF__ROLLBACK_BYTES];
    char key[RF_MAX_STORE_KEY];
    int64_t revision;
    struct rf__generation *g = rf__alloc(1, sizeof *g);

    if (!g) {
        return rf__fail(err, RF_ENOMEM, 0, "no memory for a generation");
    }
    int rc = read_generation(store, job, g, err);
    if (rc == 0 && g->ended) {
        rc = rf__fail(err, RF_EENDED, 0, "job '%.100s' has ended", job);
    }
    if (rc == 0) {
        rc = rf__host_random(&order.nonce, sizeof order.nonce, err);
    }
    if (rc == 0) {
        order.nonce |= 1; /* 0 stands for none */
        snprintf(key, sizeof key, "rf/%s/rollback", job);
        rc = rf_store_put(store, key, bytes, rf__rollback_encode(&order, bytes, sizeof bytes),
                          &revision, err);
    }
    if (rc == 0) {
        rc = await_order(store, job, order.nonce, timeout_ms, g, err);
    }
    if (rc == 0) {
        *out = state_of(g);
    }
    rf__free(g);
    return rc;
}
