/* Blobs in memory, as io/blob.h has them, for the tests of checkpoints: they can be looked into and
 * damaged, every call is counted, and one call of them fails as it is told: before its effect, or
 * after it, as where a server's answer is lost. */
#ifndef TESTS_MEMORY_BLOBS_H
#define TESTS_MEMORY_BLOBS_H

#include "base/status.h"
#include "io/blob.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOB_NAME = 128, BLOB_COUNT = 512 };

struct blob_file {
    char name[BLOB_NAME];
    unsigned char *bytes;
    size_t length;
    int64_t modified_s;
};

struct memory_blobs {
    struct rf__blobs base;
    struct blob_file files[BLOB_COUNT]; /* ascending by name */
    int count;
    int64_t now_s;  /* of what is written next */
    long calls;     /* made so far */
    long fail_at;   /* the call that fails, from 0; negative: none */
    int fail_code;  /* 0: RF_EIO */
    bool fail_late; /* after its effect */
    bool fail_on;   /* every call from fail_at on fails */
    int open_now, writing_now;
    int unfinished;                      /* for collect */
    char removed[BLOB_COUNT][BLOB_NAME]; /* in their order */
    int removed_count;
    /* Called before a finish takes effect, once. */
    void (*before_finish)(struct memory_blobs *blobs, const char *name);
};

struct blob_writing {
    char name[BLOB_NAME];
    unsigned char *bytes;
    size_t length;
};

static struct memory_blobs *memory_of(struct rf__blobs *blobs) {
    return (struct memory_blobs *)blobs;
}

/* Counts the call; whether it is to fail. */
static bool memory_strikes(struct memory_blobs *self) {
    long call = self->calls++;
    return self->fail_at >= 0 && (call == self->fail_at || (self->fail_on && call > self->fail_at));
}

static int memory_failed(struct memory_blobs *self, const char *name, struct rf_error *err) {
    return rf__fail(err, self->fail_code ? self->fail_code : RF_EIO, 0, "call %ld failed at '%s'",
                    self->calls - 1, name);
}

/* Its index, or where it would be as -1 - index. */
static int memory_find(const struct memory_blobs *self, const char *name) {
    int i = 0;
    while (i < self->count && strcmp(self->files[i].name, name) < 0) {
        i++;
    }
    return i < self->count && !strcmp(self->files[i].name, name) ? i : -1 - i;
}

static struct blob_file *memory_get(struct memory_blobs *self, const char *name) {
    int i = memory_find(self, name);
    return i >= 0 ? &self->files[i] : NULL;
}

/* Takes `bytes`. */
static void memory_put(struct memory_blobs *self, const char *name, unsigned char *bytes,
                       size_t length) {
    int i = memory_find(self, name);
    if (i < 0) {
        i = -1 - i;
        if (self->count == BLOB_COUNT) {
            abort();
        }
        memmove(&self->files[i + 1], &self->files[i],
                (size_t)(self->count++ - i) * sizeof *self->files);
        self->files[i] = (struct blob_file){0};
        snprintf(self->files[i].name, BLOB_NAME, "%s", name);
    } else {
        free(self->files[i].bytes);
    }
    self->files[i].bytes = bytes;
    self->files[i].length = length;
    self->files[i].modified_s = self->now_s;
}

static void memory_drop(struct memory_blobs *self, int i) {
    free(self->files[i].bytes);
    memmove(&self->files[i], &self->files[i + 1],
            (size_t)(--self->count - i) * sizeof *self->files);
}

static int memory_open(struct rf__blobs *blobs, const char *name, struct rf__blob **out,
                       uint64_t *bytes, struct rf_error *err) {
    struct memory_blobs *self = memory_of(blobs);
    struct blob_file *file = memory_get(self, name);

    if (memory_strikes(self)) {
        return memory_failed(self, name, err);
    }
    if (!file) {
        return rf__fail(err, RF_ENOTFOUND, 0, "no '%s'", name);
    }
    struct blob_writing *copy = calloc(1, sizeof *copy); /* as it was when it was opened */
    copy->length = file->length;
    copy->bytes = malloc(file->length + 1);
    memcpy(copy->bytes, file->bytes, file->length);
    snprintf(copy->name, sizeof copy->name, "%s", name);
    *bytes = file->length;
    *out = (struct rf__blob *)copy;
    self->open_now++;
    return RF_OK;
}

static ssize_t memory_read(struct rf__blobs *blobs, struct rf__blob *blob, uint64_t offset,
                           void *buffer, size_t bytes, struct rf_error *err) {
    const struct blob_writing *file = (const struct blob_writing *)blob;

    if (memory_strikes(memory_of(blobs))) {
        return memory_failed(memory_of(blobs), file->name, err);
    }
    size_t left = offset < file->length ? file->length - (size_t)offset : 0;
    size_t n = bytes < left ? bytes : left;
    if (n) {
        memcpy(buffer, file->bytes + offset, n);
    }
    return (ssize_t)n;
}

static void memory_close(struct rf__blobs *blobs, struct rf__blob *blob) {
    struct blob_writing *file = (struct blob_writing *)blob;
    memory_of(blobs)->open_now--;
    free(file->bytes);
    free(file);
}

static int memory_create(struct rf__blobs *blobs, const char *name, struct rf__blob_writer **out,
                         struct rf_error *err) {
    struct memory_blobs *self = memory_of(blobs);

    if (memory_strikes(self)) {
        return memory_failed(self, name, err);
    }
    struct blob_writing *writing = calloc(1, sizeof *writing);
    snprintf(writing->name, sizeof writing->name, "%s", name);
    *out = (struct rf__blob_writer *)writing;
    self->writing_now++;
    return RF_OK;
}

static int memory_write(struct rf__blobs *blobs, struct rf__blob_writer *writer, const void *bytes,
                        size_t length, struct rf_error *err) {
    struct blob_writing *writing = (struct blob_writing *)writer;

    if (memory_strikes(memory_of(blobs))) {
        return memory_failed(memory_of(blobs), writing->name, err);
    }
    writing->bytes = realloc(writing->bytes, writing->length + length + 1);
    memcpy(writing->bytes + writing->length, bytes, length);
    writing->length += length;
    return RF_OK;
}

static int memory_finish(struct rf__blobs *blobs, struct rf__blob_writer *writer, bool only_new,
                         struct rf_error *err) {
    struct memory_blobs *self = memory_of(blobs);
    struct blob_writing *writing = (struct blob_writing *)writer;
    void (*before)(struct memory_blobs *, const char *) = self->before_finish;
    bool strikes = memory_strikes(self);
    int code = RF_OK;

    self->before_finish = NULL;
    if (before) {
        before(self, writing->name);
    }
    if (strikes && !self->fail_late) {
        code = memory_failed(self, writing->name, err);
    } else if (only_new && memory_get(self, writing->name)) {
        code = rf__fail(err, RF_ECONFLICT, 0, "'%s' is there", writing->name);
    } else {
        memory_put(self, writing->name, writing->bytes, writing->length);
        writing->bytes = NULL;
        code = strikes ? memory_failed(self, writing->name, err) : RF_OK;
    }
    self->writing_now--;
    free(writing->bytes);
    free(writing);
    return code;
}

static void memory_abandon(struct rf__blobs *blobs, struct rf__blob_writer *writer) {
    struct blob_writing *writing = (struct blob_writing *)writer;
    memory_of(blobs)->writing_now--;
    free(writing->bytes);
    free(writing);
}

static int memory_remove(struct rf__blobs *blobs, const char *name, struct rf_error *err) {
    struct memory_blobs *self = memory_of(blobs);
    bool strikes = memory_strikes(self);
    int i = memory_find(self, name);

    if (strikes && (!self->fail_late || i < 0)) {
        return memory_failed(self, name, err);
    }
    if (i < 0) {
        return rf__fail(err, RF_ENOTFOUND, 0, "no '%s'", name);
    }
    memory_drop(self, i);
    if (self->removed_count < BLOB_COUNT) {
        snprintf(self->removed[self->removed_count++], BLOB_NAME, "%s", name);
    }
    return strikes ? memory_failed(self, name, err) : RF_OK;
}

static int memory_list(struct rf__blobs *blobs, const char *prefix,
                       int (*each)(void *context, const struct rf__blob_entry *entry),
                       void *context, struct rf_error *err) {
    struct memory_blobs *self = memory_of(blobs);
    int code = RF_OK;

    if (memory_strikes(self)) {
        return memory_failed(self, prefix, err);
    }
    for (int i = 0; i < self->count && !code; i++) {
        struct rf__blob_entry entry = {.name = self->files[i].name,
                                       .bytes = self->files[i].length,
                                       .modified_s = self->files[i].modified_s};
        if (!strncmp(entry.name, prefix, strlen(prefix))) {
            code = each(context, &entry);
        }
    }
    return code;
}

static int memory_collect(struct rf__blobs *blobs, const char *prefix, int64_t age_s,
                          struct rf_error *err) {
    struct memory_blobs *self = memory_of(blobs);
    int found = self->unfinished;

    (void)age_s;
    if (memory_strikes(self)) {
        return memory_failed(self, prefix, err);
    }
    self->unfinished = 0;
    return found;
}

static void memory_interrupt(struct rf__blobs *blobs) {
    struct memory_blobs *self = memory_of(blobs);
    self->fail_at = self->calls;
    self->fail_on = true;
    self->fail_code = RF_ESTOPPED;
}

static void memory_destroy(struct rf__blobs *blobs) {
    struct memory_blobs *self = memory_of(blobs);
    while (self->count) {
        memory_drop(self, self->count - 1);
    }
    free(self);
}

static const struct rf__blob_ops memory_blob_ops = {
    .open = memory_open,
    .read = memory_read,
    .close = memory_close,
    .create = memory_create,
    .write = memory_write,
    .finish = memory_finish,
    .abandon = memory_abandon,
    .remove = memory_remove,
    .list = memory_list,
    .collect = memory_collect,
    .interrupt = memory_interrupt,
    .destroy = memory_destroy,
};

static inline struct memory_blobs *memory_blobs_create(void) {
    struct memory_blobs *self = calloc(1, sizeof *self);
    self->base.ops = &memory_blob_ops;
    self->fail_at = -1;
    self->now_s = 1790000000;
    return self;
}

/* The same blobs once more, nothing failing. */
static inline struct memory_blobs *memory_blobs_clone(const struct memory_blobs *from) {
    struct memory_blobs *self = memory_blobs_create();
    for (int i = 0; i < from->count; i++) {
        unsigned char *bytes = malloc(from->files[i].length + 1);
        memcpy(bytes, from->files[i].bytes, from->files[i].length);
        self->now_s = from->files[i].modified_s;
        memory_put(self, from->files[i].name, bytes, from->files[i].length);
    }
    self->now_s = from->now_s;
    return self;
}

/* From now on call number `k` fails. */
static inline void memory_fail(struct memory_blobs *self, long k, int code, bool late) {
    self->calls = 0;
    self->fail_at = k;
    self->fail_code = code;
    self->fail_late = late;
    self->fail_on = false;
}

#endif
