/* A blob interface that fails where it was told to. */
#include "data/rehearse.h"

#include "base/mem.h"
#include "base/status.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct rehearsed_blob {
    struct rf__blob *inner;
    bool is_meant;
};

static bool is_meant(const struct rf__bad_reads *reads, const char *path) {
    const char *slash = strrchr(path, '/');
    return !strcmp(slash ? slash + 1 : path, reads->name);
}

static int rehearsed_open(struct rf__blobs *blobs, const char *name, struct rf__blob **out,
                          uint64_t *bytes, struct rf_error *err) {
    struct rf__bad_reads *reads = (struct rf__bad_reads *)blobs;
    struct rehearsed_blob *blob = rf__alloc(1, sizeof *blob);

    if (!blob) {
        return rf__fail(err, RF_ENOMEM, 0, "no memory to open '%.200s'", name);
    }
    blob->is_meant = is_meant(reads, name);
    int code = reads->inner->ops->open(reads->inner, name, &blob->inner, bytes, err);
    if (code) {
        rf__free(blob);
        return code;
    }
    *out = (struct rf__blob *)blob;
    return RF_OK;
}

static ssize_t rehearsed_read(struct rf__blobs *blobs, struct rf__blob *handle, uint64_t offset,
                              void *buffer, size_t bytes, struct rf_error *err) {
    struct rf__bad_reads *reads = (struct rf__bad_reads *)blobs;
    struct rehearsed_blob *blob = (struct rehearsed_blob *)handle;

    if (blob->is_meant && offset < reads->end && offset + bytes > reads->begin) {
        return rf__fail(err, RF_EIO, EIO, "cannot read '%s' at byte %llu", reads->name,
                        (unsigned long long)(offset > reads->begin ? offset : reads->begin));
    }
    return reads->inner->ops->read(reads->inner, blob->inner, offset, buffer, bytes, err);
}

static void rehearsed_close(struct rf__blobs *blobs, struct rf__blob *handle) {
    struct rf__bad_reads *reads = (struct rf__bad_reads *)blobs;
    struct rehearsed_blob *blob = (struct rehearsed_blob *)handle;

    reads->inner->ops->close(reads->inner, blob->inner);
    rf__free(blob);
}

static const struct rf__blob_ops rehearsed_ops = {
    .open = rehearsed_open, .read = rehearsed_read, .close = rehearsed_close};

/* A decimal number and the byte that must follow it. */
static bool number_take(const char **at, char after, uint64_t *out) {
    char *end;

    if (**at < '0' || **at > '9') {
        return false;
    }
    errno = 0;
    *out = strtoull(*at, &end, 10);
    bool taken = !errno && *end == after;
    *at = taken && after ? end + 1 : end;
    return taken;
}

int rf__bad_reads_init(struct rf__bad_reads *reads, struct rf__blobs *inner, const char *order,
                       struct rf_error *err) {
    const char *colon = strrchr(order, ':');
    const char *at = colon ? colon + 1 : order;
    size_t length = colon ? (size_t)(colon - order) : 0;

    *reads = (struct rf__bad_reads){.base = {&rehearsed_ops}, .inner = inner};
    if (!length || length >= RF__REHEARSED_NAME || !number_take(&at, '-', &reads->begin) ||
        !number_take(&at, 0, &reads->end) || reads->end <= reads->begin) {
        return rf__fail(err, RF_EINVAL, 0,
                        "bad reads are told as NAME:BEGIN-END, in bytes, not as '%.80s'", order);
    }
    memcpy(reads->name, order, length);
    return RF_OK;
}
