/* Rehearsed failures of storage: passes every call on, or fails it before it gets there. Open blobs
 * are the inner ones; a writer is wrapped, so that one that failed stays failed, as with a real
 * server or disk. */
#include "os/faulty.h"

#include "base/mem.h"
#include "base/status.h"
#include "os/clock.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>

struct rf__faulty_blobs {
    struct rf__blobs base;
    struct rf__blobs *inner;
    struct rf__clock *clock;
    _Atomic int64_t down_until, full_until; /* times alone: nothing else is handed over, relaxed */
    atomic_bool kills;                      /* the same */
};

struct faulty_writer {
    struct rf__blob_writer *inner;
    char *name;
    int failed; /* the code, once it did */
    int sys_errno;
};

static struct rf__faulty_blobs *faulty_of(struct rf__blobs *blobs) {
    return (struct rf__faulty_blobs *)blobs;
}

static bool lasts(const struct rf__faulty_blobs *faulty, const _Atomic int64_t *until) {
    int64_t end = atomic_load_explicit(until, memory_order_relaxed);
    return end && (end == RF__NEVER || faulty->clock->now(faulty->clock) < end);
}

/* What a call meets before it is passed on. */
static int refused(struct rf__faulty_blobs *faulty, const char *verb, const char *name,
                   struct rf_error *err) {
    if (!lasts(faulty, &faulty->down_until)) {
        return RF_OK;
    }
    int code = rf__fail(err, RF_ECONNECT, ECONNREFUSED,
                        "cannot %s '%.150s': the storage is down (rehearsed)", verb, name);
    if (err) {
        rf__detail(err->where, "%s", name);
        rf__detail(err->next, "wait for the end of the rehearsed outage");
    }
    return code;
}

static int full(struct rf__faulty_blobs *faulty, const char *name, size_t bytes,
                struct rf_error *err) {
    if (!lasts(faulty, &faulty->full_until)) {
        return RF_OK;
    }
    int code = rf__fail(err, RF_EIO, ENOSPC,
                        "cannot write '%.150s': %zu bytes wanted, the disk is full (rehearsed)",
                        name, bytes);
    if (err) {
        rf__detail(err->where, "%s", name);
        rf__detail(err->next, "wait for the end of the rehearsed shortage");
    }
    return code;
}

static int missing(const char *verb, const char *name, struct rf_error *err) {
    return rf__fail(err, RF_EUNSUPPORTED, 0, "cannot %s '%.200s': this storage is only read", verb,
                    name);
}

/* ---- reading ---- */

static int faulty_open(struct rf__blobs *blobs, const char *name, struct rf__blob **out,
                       uint64_t *bytes, struct rf_error *err) {
    struct rf__faulty_blobs *faulty = faulty_of(blobs);
    int code = refused(faulty, "open", name, err);
    return code ? code : faulty->inner->ops->open(faulty->inner, name, out, bytes, err);
}

static ssize_t faulty_read(struct rf__blobs *blobs, struct rf__blob *blob, uint64_t offset,
                           void *buffer, size_t bytes, struct rf_error *err) {
    struct rf__faulty_blobs *faulty = faulty_of(blobs);
    int code = refused(faulty, "read", "an open blob", err);
    return code ? code : faulty->inner->ops->read(faulty->inner, blob, offset, buffer, bytes, err);
}

static void faulty_close(struct rf__blobs *blobs, struct rf__blob *blob) {
    struct rf__faulty_blobs *faulty = faulty_of(blobs);
    faulty->inner->ops->close(faulty->inner, blob);
}

/* ---- writing ---- */

static void writer_free(struct faulty_writer *writer) {
    if (writer) {
        rf__free(writer->name);
        rf__free(writer);
    }
}

static int faulty_create(struct rf__blobs *blobs, const char *name, struct rf__blob_writer **out,
                         struct rf_error *err) {
    struct rf__faulty_blobs *faulty = faulty_of(blobs);
    struct faulty_writer *writer = NULL;

    int code = refused(faulty, "write", name, err);
    if (!code && !faulty->inner->ops->create) {
        code = missing("write", name, err);
    }
    if (code) {
        goto out;
    }
    writer = rf__alloc(1, sizeof *writer);
    if (writer) {
        writer->name = rf__strdup(name);
    }
    if (!writer || !writer->name) {
        code = rf__fail(err, RF_ENOMEM, 0, "no memory to write '%.200s'", name);
        goto out;
    }
    code = faulty->inner->ops->create(faulty->inner, name, &writer->inner, err);
    if (code) {
        goto out;
    }
    *out = (struct rf__blob_writer *)writer;
    writer = NULL;
out:
    writer_free(writer);
    return code;
}

/* What meets a writer before its bytes are passed on. */
static int writer_refused(struct rf__faulty_blobs *faulty, struct faulty_writer *writer,
                          const char *verb, size_t bytes, struct rf_error *err) {
    if (writer->failed) {
        return rf__fail(err, writer->failed, writer->sys_errno,
                        "an earlier write to '%.150s' failed (rehearsed)", writer->name);
    }
    int code = refused(faulty, verb, writer->name, err);
    if (code) {
        writer->sys_errno = ECONNREFUSED;
    } else {
        code = full(faulty, writer->name, bytes, err);
        writer->sys_errno = code ? ENOSPC : 0;
    }
    writer->failed = code;
    return code;
}

static int faulty_write(struct rf__blobs *blobs, struct rf__blob_writer *opaque, const void *bytes,
                        size_t length, struct rf_error *err) {
    struct rf__faulty_blobs *faulty = faulty_of(blobs);
    struct faulty_writer *writer = (struct faulty_writer *)opaque;
    int code = writer_refused(faulty, writer, "write", length, err);
    return code ? code
                : faulty->inner->ops->write(faulty->inner, writer->inner, bytes, length, err);
}

static int faulty_finish(struct rf__blobs *blobs, struct rf__blob_writer *opaque, bool only_new,
                         struct rf_error *err) {
    struct rf__faulty_blobs *faulty = faulty_of(blobs);
    struct faulty_writer *writer = (struct faulty_writer *)opaque;

    if (atomic_load_explicit(&faulty->kills, memory_order_relaxed)) {
        raise(SIGKILL);
    }
    int code = writer_refused(faulty, writer, "finish", 0, err);
    if (code) {
        faulty->inner->ops->abandon(faulty->inner, writer->inner);
    } else {
        code = faulty->inner->ops->finish(faulty->inner, writer->inner, only_new, err);
    }
    writer_free(writer);
    return code;
}

static void faulty_abandon(struct rf__blobs *blobs, struct rf__blob_writer *opaque) {
    struct rf__faulty_blobs *faulty = faulty_of(blobs);
    struct faulty_writer *writer = (struct faulty_writer *)opaque;
    if (writer) {
        faulty->inner->ops->abandon(faulty->inner, writer->inner);
        writer_free(writer);
    }
}

/* ---- the rest ---- */

static int faulty_remove(struct rf__blobs *blobs, const char *name, struct rf_error *err) {
    struct rf__faulty_blobs *faulty = faulty_of(blobs);
    int code = refused(faulty, "remove", name, err);
    if (!code && !faulty->inner->ops->remove) {
        code = missing("remove", name, err);
    }
    return code ? code : faulty->inner->ops->remove(faulty->inner, name, err);
}

static int faulty_list(struct rf__blobs *blobs, const char *prefix,
                       int (*each)(void *context, const struct rf__blob_entry *entry),
                       void *context, struct rf_error *err) {
    struct rf__faulty_blobs *faulty = faulty_of(blobs);
    int code = refused(faulty, "list", prefix, err);
    if (!code && !faulty->inner->ops->list) {
        code = missing("list", prefix, err);
    }
    return code ? code : faulty->inner->ops->list(faulty->inner, prefix, each, context, err);
}

static int faulty_collect(struct rf__blobs *blobs, const char *prefix, int64_t age_s,
                          struct rf_error *err) {
    struct rf__faulty_blobs *faulty = faulty_of(blobs);
    int code = refused(faulty, "collect", prefix, err);
    if (!code && !faulty->inner->ops->collect) {
        code = missing("collect", prefix, err);
    }
    return code ? code : faulty->inner->ops->collect(faulty->inner, prefix, age_s, err);
}

static void faulty_interrupt(struct rf__blobs *blobs) {
    struct rf__blobs *inner = faulty_of(blobs)->inner;
    if (inner->ops->interrupt) {
        inner->ops->interrupt(inner);
    }
}

static void inner_destroy(struct rf__blobs *inner) {
    if (inner->ops->destroy) {
        inner->ops->destroy(inner);
    }
}

static void faulty_destroy(struct rf__blobs *blobs) {
    if (blobs) {
        inner_destroy(faulty_of(blobs)->inner);
        rf__free(blobs);
    }
}

static const struct rf__blob_ops faulty_ops = {
    .open = faulty_open,
    .read = faulty_read,
    .close = faulty_close,
    .create = faulty_create,
    .write = faulty_write,
    .finish = faulty_finish,
    .abandon = faulty_abandon,
    .remove = faulty_remove,
    .list = faulty_list,
    .collect = faulty_collect,
    .interrupt = faulty_interrupt,
    .destroy = faulty_destroy,
};

int rf__faulty_blobs_create(struct rf__blobs *inner, struct rf__clock *clock,
                            struct rf__faulty_blobs **out, struct rf_error *err) {
    struct rf__faulty_blobs *faulty = rf__alloc(1, sizeof *faulty);
    if (!faulty) {
        inner_destroy(inner);
        return rf__fail(err, RF_ENOMEM, 0, "no memory for rehearsed failures of storage");
    }
    faulty->base.ops = &faulty_ops;
    faulty->inner = inner;
    faulty->clock = clock ? clock : &rf__system_clock;
    *out = faulty;
    return RF_OK;
}

struct rf__blobs *rf__faulty_blobs_base(struct rf__faulty_blobs *faulty) {
    return &faulty->base;
}

void rf__faulty_blobs_down(struct rf__faulty_blobs *faulty, int64_t until_ns) {
    atomic_store_explicit(&faulty->down_until, until_ns, memory_order_relaxed);
}

void rf__faulty_blobs_full(struct rf__faulty_blobs *faulty, int64_t until_ns) {
    atomic_store_explicit(&faulty->full_until, until_ns, memory_order_relaxed);
}

void rf__faulty_blobs_kill(struct rf__faulty_blobs *faulty) {
    atomic_store_explicit(&faulty->kills, true, memory_order_relaxed);
}
