/* See engine.h. Only one thread at a time waits in the poller: the engine, or a caller that drives.
 * `polling` says that the engine does; a caller then rings the doorbell and waits until it has come
 * out. `asleep` says that a caller does: what another thread ends (an abort) rings it up.
 *
 * A caller that drove tends to come back, so the engine stands aside for LINGER_MS more; but not
 * while operations are under way that nobody drives. */
#include "api/engine.h"

#include "base/mem.h"
#include "base/status.h"
#include "os/clock.h"

#include <pthread.h>
#include <sched.h>

enum {
    PAUSE_US = 5,
    SPIN_US = 200,
    LINGER_MS = 8,
    LOOK_US = 20,
    BUSY_LOOK_MS = 5,
    RUSH_LOOKS = 100
};

struct rf__engine {
    struct rf__group *group;
    struct rf__net *net;
    struct rf__poller *poller;
    bool crowded;

    pthread_mutex_t lock;
    pthread_cond_t changed; /* polling fell, kicked or stopping rose */
    bool polling, asleep, kicked, stopping, has_thread;
    int drivers;
    int64_t driven, looked; /* when a caller last drove; when the poller was last asked */
    pthread_t thread;
};

static bool step(struct rf__engine *engine, int64_t now, int64_t moved_at) {
    /* Shared memory is seen without asking the kernel; only deaths, the store and timers come
     * through the poller then: looked at where nothing moves, and now and then. */
    bool is_waiting = now - moved_at >= LOOK_US * 1000;
    int64_t look_ns = !rf__group_is_local(engine->group) ? 0
                      : is_waiting                       ? LOOK_US * 1000
                                                         : BUSY_LOOK_MS * RF__MS;
    if (engine->poller && now - engine->looked >= look_ns) {
        engine->looked = now;
        if (rf__poller_collect(engine->poller, 0) > 0) {
            rf__poller_dispatch(engine->poller);
        }
    }
    return rf__group_step(engine->group, now);
}

/* Waits in the poller with the lock dropped, at most until `deadline`. */
static void sleep_until(struct rf__engine *engine, int64_t deadline) {
    int64_t wanted = rf__group_next_deadline(engine->group);
    engine->net->ops->sleep(engine->net, true);
    if (!rf__group_step(engine->group, rf__now())) {
        int64_t until = wanted < deadline ? wanted : deadline, now = rf__now();
        pthread_mutex_unlock(&engine->lock);
        rf__poller_collect(engine->poller, until > now ? until - now : 0);
        pthread_mutex_lock(&engine->lock);
        engine->net->ops->sleep(engine->net, false);
        rf__poller_dispatch(engine->poller);
        return;
    }
    engine->net->ops->sleep(engine->net, false);
}

static void wait_until(struct rf__engine *engine, int64_t deadline) {
    struct timespec at = {.tv_sec = deadline / 1000000000, .tv_nsec = deadline % 1000000000};
    pthread_cond_timedwait(&engine->changed, &engine->lock, &at);
}

static void *run(void *context) {
    struct rf__engine *engine = context;

    pthread_mutex_lock(&engine->lock);
    while (!engine->stopping) {
        int64_t now = rf__now(), quiet = engine->driven + LINGER_MS * RF__MS;
        if (engine->drivers || (now < quiet && !engine->kicked)) {
            wait_until(engine, engine->drivers ? now + 10 * LINGER_MS * RF__MS : quiet);
            continue;
        }
        engine->kicked = false;
        if (step(engine, now, 0)) {
            continue;
        }
        engine->polling = true;
        sleep_until(engine, RF__NEVER);
        engine->polling = false;
        pthread_cond_broadcast(&engine->changed);
    }
    pthread_mutex_unlock(&engine->lock);
    return NULL;
}

int rf__engine_create(struct rf__group *group, struct rf__net *net, struct rf__poller *poller,
                      bool crowded, struct rf__engine **out, struct rf_error *err) {
    struct rf__engine *engine = rf__alloc(1, sizeof *engine);
    pthread_condattr_t attributes;

    *out = NULL;
    if (!engine) {
        return rf__fail(err, RF_ENOMEM, 0, "no memory for the engine");
    }
    engine->group = group;
    engine->net = net;
    engine->poller = poller;
    engine->crowded = crowded;
    pthread_mutex_init(&engine->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&engine->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    if (net) {
        int rc = pthread_create(&engine->thread, NULL, run, engine);
        if (rc) {
            rf__engine_destroy(engine);
            return rf__fail(err, RF_ENOMEM, rc, "the engine's thread cannot be started");
        }
        engine->has_thread = true;
    }
    *out = engine;
    return 0;
}

void rf__engine_destroy(struct rf__engine *engine) {
    if (!engine) {
        return;
    }
    if (engine->has_thread) {
        pthread_mutex_lock(&engine->lock);
        engine->stopping = true;
        rf__poller_wake(engine->poller);
        pthread_cond_broadcast(&engine->changed);
        pthread_mutex_unlock(&engine->lock);
        pthread_join(engine->thread, NULL);
    }
    pthread_cond_destroy(&engine->changed);
    pthread_mutex_destroy(&engine->lock);
    rf__free(engine);
}

void rf__engine_lock(struct rf__engine *engine) {
    pthread_mutex_lock(&engine->lock);
}

void rf__engine_unlock(struct rf__engine *engine) {
    pthread_mutex_unlock(&engine->lock);
}

/* It goes on at once, and does not linger. */
static void wake_engine(struct rf__engine *engine) {
    engine->driven = 0;
    engine->kicked = true;
    pthread_cond_broadcast(&engine->changed);
}

/* What can go out at once goes out from the caller's thread; the engine is needed only where there
 * is more to do now. */
void rf__engine_kick(struct rf__engine *engine) {
    bool more =
        rf__group_step(engine->group, rf__now()) && rf__group_step(engine->group, rf__now());

    if (!engine->net) {
        return;
    }
    if (engine->asleep) {
        rf__poller_wake(engine->poller); /* what it waits for may be over */
    } else if (!engine->polling) {
        wake_engine(engine);
    } else if (more) {
        rf__poller_wake(engine->poller);
    } /* else what arrives wakes it */
}

/* Whom we wait for may stand in line for the very core that we spin on. */
static void relax(const struct rf__engine *engine, int64_t waited_ns) {
    if (engine->crowded || waited_ns > PAUSE_US * 1000) {
        sched_yield();
    } else {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }
}

bool rf__engine_rush(struct rf__engine *engine, const struct rf__op *op, int64_t now) {
    int looks = engine->crowded ? 1 : RUSH_LOOKS;
    if (engine->polling || !rf__group_rush(engine->group, op, now, looks)) {
        return false;
    }
    engine->driven = now;
    if (!rf__group_is_idle(engine->group)) {
        wake_engine(engine);
    }
    return true;
}

int rf__engine_drive(struct rf__engine *engine, bool (*done)(void *context), void *context,
                     int64_t deadline) {
    int64_t now = rf__now(), moved_at = now;
    int rc = 0;

    engine->drivers++;
    while (engine->polling) {
        rf__poller_wake(engine->poller);
        pthread_cond_wait(&engine->changed, &engine->lock);
    }
    while (!done(context)) {
        now = rf__now();
        bool moved =
            step(engine, now, moved_at); /* at least once: who asks with no time at all helps too */
        if (now >= deadline && !done(context)) {
            rc = RF_ETIMEDOUT;
            break;
        }
        if (moved) {
            moved_at = now;
        } else if (!engine->net || now - moved_at < SPIN_US * 1000) {
            relax(engine, now - moved_at);
        } else {
            engine->asleep = true;
            sleep_until(engine, deadline);
            engine->asleep = false;
            moved_at = rf__now();
        }
    }
    engine->drivers--;
    engine->driven = now;
    if (engine->net && !rf__group_is_idle(engine->group)) {
        wake_engine(engine);
    }
    return rc;
}
