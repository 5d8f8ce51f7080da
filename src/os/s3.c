/* Object storage as blobs: making, stopping and ending it. The map of its files is in
 * s3_internal.h. */
#include "os/s3_internal.h"

#include "base/mem.h"
#include "base/status.h"

#include <string.h>

enum {
    USUAL_DEADLINE_MS = 60000,
    USUAL_STALL_S = 10,
    USUAL_PART_BYTES = 8 << 20,
    USUAL_MAX_KEYS = 1000
};

static void s3_interrupt(struct rf__blobs *blobs) {
    struct rf__s3 *s3 = (struct rf__s3 *)blobs;

    /* Under the lock, so that who is about to wait for `wake` does not miss it. */
    pthread_mutex_lock(&s3->lock);
    atomic_store_explicit(&s3->interrupted, true, memory_order_release);
    pthread_cond_broadcast(&s3->wake);
    pthread_mutex_unlock(&s3->lock);
}

static void s3_destroy(struct rf__blobs *blobs) {
    struct rf__s3 *s3 = (struct rf__s3 *)blobs;

    if (!s3) {
        return;
    }
    for (size_t i = 0; i < s3->idle_count; i++) {
        curl_easy_cleanup(s3->idle[i]);
    }
    pthread_cond_destroy(&s3->wake);
    pthread_mutex_destroy(&s3->lock);
    explicit_bzero(&s3->config, sizeof s3->config);
    rf__free(s3);
}

static const struct rf__blob_ops s3_ops = {.open = rf__s3_open,
                                           .read = rf__s3_read,
                                           .close = rf__s3_close,
                                           .create = rf__s3_create,
                                           .write = rf__s3_write,
                                           .finish = rf__s3_finish,
                                           .abandon = rf__s3_abandon,
                                           .remove = rf__s3_remove,
                                           .list = rf__s3_list,
                                           .collect = rf__s3_collect,
                                           .interrupt = s3_interrupt,
                                           .destroy = s3_destroy};

bool rf__s3_blobs_unconditional(const struct rf__blobs *blobs) {
    const struct rf__s3 *s3 = (const struct rf__s3 *)blobs;
    return atomic_load_explicit(&s3->unconditional, memory_order_relaxed);
}

int rf__s3_blobs_create(const char *uri, const struct rf__s3_options *options,
                        struct rf__blobs **out, struct rf_error *err) {
    static const struct rf__s3_options usual = {0};
    pthread_condattr_t clock;
    int code;

    options = options ? options : &usual;
    if (options->deadline_ms < 0 || options->stall_s < 0 || options->stall_s > 3600 ||
        options->deadline_ms > INT32_MAX || options->part_bytes > (size_t)1 << 30 ||
        options->max_keys > 1000) {
        return rf__fail(err, RF_EINVAL, 0, "an option of object storage is out of its range");
    }
    struct rf__s3 *s3 = rf__alloc(1, sizeof *s3);
    if (!s3) {
        return rf__fail(err, RF_ENOMEM, 0, "no memory for object storage");
    }
    s3->blobs.ops = &s3_ops;
    s3->deadline_ms = options->deadline_ms ? options->deadline_ms : USUAL_DEADLINE_MS;
    s3->stall_s = options->stall_s ? options->stall_s : USUAL_STALL_S;
    s3->part_bytes = options->part_bytes ? options->part_bytes : USUAL_PART_BYTES;
    s3->max_keys = options->max_keys ? options->max_keys : USUAL_MAX_KEYS;
    atomic_init(&s3->unconditional, false);
    atomic_init(&s3->interrupted, false);
    pthread_mutex_init(&s3->lock, NULL);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&s3->wake, &clock);
    pthread_condattr_destroy(&clock);
    code = rf__s3_global(err);
    code = code ? code : rf__s3_config_read(uri, options, &s3->config, err);
    if (code) {
        goto out;
    }
    *out = &s3->blobs;
    s3 = NULL;
out:
    s3_destroy((struct rf__blobs *)s3);
    return code;
}
