/* One memory of blobs (memory_blobs.h) that several threads use, each through a handle of its own,
 * as the members of a group use one storage. Calls that make a blob whose name contains a text can
 * be told to fail, or to block until they are let go or their handle is interrupted. */
#ifndef TESTS_SHARED_BLOBS_H
#define TESTS_SHARED_BLOBS_H

#include "support/memory_blobs.h"

#include <pthread.h>

struct shared_blobs {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct memory_blobs *memory;
    char held[BLOB_NAME];   /* what is made and contains this waits; "": nothing */
    char failed[BLOB_NAME]; /* ... fails with RF_EIO */
    int waiting;            /* calls that are held */
    int handles;            /* not destroyed yet */
};

struct shared_handle {
    struct rf__blobs base;
    struct shared_blobs *shared;
    bool interrupted;
};

static inline void shared_open(struct shared_blobs *shared) {
    memset(shared, 0, sizeof *shared);
    pthread_mutex_init(&shared->lock, NULL);
    pthread_cond_init(&shared->changed, NULL);
    shared->memory = memory_blobs_create();
}

static inline void shared_close(struct shared_blobs *shared) {
    memory_destroy(&shared->memory->base);
    pthread_cond_destroy(&shared->changed);
    pthread_mutex_destroy(&shared->lock);
}

static struct shared_handle *handle_of(struct rf__blobs *blobs) {
    return (struct shared_handle *)(void *)blobs;
}

/* With the lock held from here until shared_leave. */
static int shared_enter(struct rf__blobs *blobs, const char *name, struct rf_error *err) {
    struct shared_handle *handle = handle_of(blobs);

    pthread_mutex_lock(&handle->shared->lock);
    return handle->interrupted ? rf__fail(err, RF_ESTOPPED, 0, "'%s' was interrupted", name) : 0;
}

static void shared_leave(struct rf__blobs *blobs) {
    pthread_mutex_unlock(&handle_of(blobs)->shared->lock);
}

static int shared_blob_open(struct rf__blobs *blobs, const char *name, struct rf__blob **out,
                            uint64_t *bytes, struct rf_error *err) {
    int code = shared_enter(blobs, name, err);
    code =
        code ? code : memory_open(&handle_of(blobs)->shared->memory->base, name, out, bytes, err);
    shared_leave(blobs);
    return code;
}

static ssize_t shared_read(struct rf__blobs *blobs, struct rf__blob *blob, uint64_t offset,
                           void *buffer, size_t bytes, struct rf_error *err) {
    ssize_t n = shared_enter(blobs, "a read", err);
    n = n ? n
          : memory_read(&handle_of(blobs)->shared->memory->base, blob, offset, buffer, bytes, err);
    shared_leave(blobs);
    return n;
}

static void shared_blob_close(struct rf__blobs *blobs, struct rf__blob *blob) {
    pthread_mutex_lock(&handle_of(blobs)->shared->lock);
    memory_close(&handle_of(blobs)->shared->memory->base, blob);
    shared_leave(blobs);
}

static int shared_create(struct rf__blobs *blobs, const char *name, struct rf__blob_writer **out,
                         struct rf_error *err) {
    struct shared_handle *handle = handle_of(blobs);
    struct shared_blobs *shared = handle->shared;
    int code = shared_enter(blobs, name, err);

    while (!handle->interrupted && shared->held[0] && strstr(name, shared->held)) {
        shared->waiting++;
        pthread_cond_broadcast(&shared->changed);
        pthread_cond_wait(&shared->changed, &shared->lock);
        shared->waiting--;
    }
    if (!code && handle->interrupted) {
        code = rf__fail(err, RF_ESTOPPED, 0, "'%s' was interrupted", name);
    }
    if (!code && shared->failed[0] && strstr(name, shared->failed)) {
        code = rf__fail(err, RF_EIO, 0, "'%s' cannot be made", name);
    }
    code = code ? code : memory_create(&shared->memory->base, name, out, err);
    shared_leave(blobs);
    return code;
}

static int shared_write(struct rf__blobs *blobs, struct rf__blob_writer *writer, const void *bytes,
                        size_t length, struct rf_error *err) {
    int code = shared_enter(blobs, "a write", err);
    code = code ? code
                : memory_write(&handle_of(blobs)->shared->memory->base, writer, bytes, length, err);
    shared_leave(blobs);
    return code;
}

static int shared_finish(struct rf__blobs *blobs, struct rf__blob_writer *writer, bool only_new,
                         struct rf_error *err) {
    struct rf__blobs *memory = &handle_of(blobs)->shared->memory->base;
    int code = shared_enter(blobs, "a finish", err);

    if (code) {
        memory_abandon(memory, writer);
    } else {
        code = memory_finish(memory, writer, only_new, err);
    }
    shared_leave(blobs);
    return code;
}

static void shared_abandon(struct rf__blobs *blobs, struct rf__blob_writer *writer) {
    pthread_mutex_lock(&handle_of(blobs)->shared->lock);
    memory_abandon(&handle_of(blobs)->shared->memory->base, writer);
    shared_leave(blobs);
}

static int shared_remove(struct rf__blobs *blobs, const char *name, struct rf_error *err) {
    int code = shared_enter(blobs, name, err);
    code = code ? code : memory_remove(&handle_of(blobs)->shared->memory->base, name, err);
    shared_leave(blobs);
    return code;
}

static int shared_list(struct rf__blobs *blobs, const char *prefix,
                       int (*each)(void *context, const struct rf__blob_entry *entry),
                       void *context, struct rf_error *err) {
    int code = shared_enter(blobs, prefix, err);
    code = code ? code
                : memory_list(&handle_of(blobs)->shared->memory->base, prefix, each, context, err);
    shared_leave(blobs);
    return code;
}

static int shared_collect(struct rf__blobs *blobs, const char *prefix, int64_t age_s,
                          struct rf_error *err) {
    int code = shared_enter(blobs, prefix, err);
    code =
        code ? code : memory_collect(&handle_of(blobs)->shared->memory->base, prefix, age_s, err);
    shared_leave(blobs);
    return code;
}

static void shared_interrupt(struct rf__blobs *blobs) {
    pthread_mutex_lock(&handle_of(blobs)->shared->lock);
    handle_of(blobs)->interrupted = true;
    pthread_cond_broadcast(&handle_of(blobs)->shared->changed);
    shared_leave(blobs);
}

static void shared_destroy(struct rf__blobs *blobs) {
    pthread_mutex_lock(&handle_of(blobs)->shared->lock);
    handle_of(blobs)->shared->handles--;
    shared_leave(blobs);
    free(blobs);
}

static const struct rf__blob_ops shared_blob_ops = {
    .open = shared_blob_open,
    .read = shared_read,
    .close = shared_blob_close,
    .create = shared_create,
    .write = shared_write,
    .finish = shared_finish,
    .abandon = shared_abandon,
    .remove = shared_remove,
    .list = shared_list,
    .collect = shared_collect,
    .interrupt = shared_interrupt,
    .destroy = shared_destroy,
};

static inline struct rf__blobs *shared_handle(struct shared_blobs *shared) {
    struct shared_handle *handle = calloc(1, sizeof *handle);
    handle->base.ops = &shared_blob_ops;
    handle->shared = shared;
    pthread_mutex_lock(&shared->lock);
    shared->handles++;
    pthread_mutex_unlock(&shared->lock);
    return &handle->base;
}

/* What is made from now on and contains `text` waits; "": what waits goes on. */
static inline void shared_hold(struct shared_blobs *shared, const char *text) {
    pthread_mutex_lock(&shared->lock);
    snprintf(shared->held, sizeof shared->held, "%s", text);
    pthread_cond_broadcast(&shared->changed);
    pthread_mutex_unlock(&shared->lock);
}

/* Waits until `count` calls are held. */
static inline void shared_await(struct shared_blobs *shared, int count) {
    pthread_mutex_lock(&shared->lock);
    while (shared->waiting < count) {
        pthread_cond_wait(&shared->changed, &shared->lock);
    }
    pthread_mutex_unlock(&shared->lock);
}

static inline void shared_empty(struct shared_blobs *shared) {
    pthread_mutex_lock(&shared->lock);
    while (shared->memory->count) {
        memory_drop(shared->memory, 0);
    }
    pthread_mutex_unlock(&shared->lock);
}

static inline void shared_fail(struct shared_blobs *shared, const char *text) {
    pthread_mutex_lock(&shared->lock);
    snprintf(shared->failed, sizeof shared->failed, "%s", text);
    pthread_mutex_unlock(&shared->lock);
}

#endif
