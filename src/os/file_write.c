/* Writing files: a temporary one beside the target, synced, renamed, and the folders synced.
 *
 * Each step is there for one crash. Without the sync of the file a name may stand over content that
 * never reached the disk; without the sync of its folder the name may go; without that of the
 * folders above, all of the folder may. Somebody else may have made those and not synced them, so
 * each `finish` syncs the whole way up to the root, which costs little where nothing changed; what
 * is above the root is synced by the first. */
#include "base/assert.h"
#include "base/mem.h"
#include "base/status.h"
#include "os/file_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum {
    BUFFER_BYTES = 1 << 20,
    PIECE_BYTES = 8 << 20, /* of one call: an interruption is noticed between them */
    ATTEMPTS = 64          /* at a temporary file while others take its name or its folder */
};

struct writer {
    int fd;
    int failed; /* the code of the first error; what was written is not to be trusted */
    char *target;
    char *temporary;
    unsigned char *buffer;
    size_t buffered;
    uint64_t written;
};

/* Makes the writers' names differ within this process. */
static atomic_uint_least64_t counter;

/* ---- names of temporary files ---- */

void rf__file_temporary_name(char out[RF__FILE_TEMPORARY_MAX], const struct rf__file_maker *maker,
                             uint64_t count) {
    snprintf(out, RF__FILE_TEMPORARY_MAX,
             RF__FILE_TEMPORARY "%016" PRIx64 "-%" PRId64 "-%" PRIx64 "-%" PRIx64, maker->host,
             maker->pid, maker->started, count);
}

/* Digits of the base, at least one and at most `most`; false where there are none or too many. */
static bool number_parse(const char **at, uint64_t base, int most, uint64_t *out) {
    int digits = 0;
    *out = 0;
    for (;; digits++, (*at)++) {
        char c = **at;
        uint64_t digit = base;
        if (c >= '0' && c <= '9') {
            digit = (uint64_t)(c - '0');
        } else if (c >= 'a' && c <= 'f') {
            digit = (uint64_t)(c - 'a') + 10;
        }
        if (digit >= base || digits == most) {
            break;
        }
        *out = *out * base + digit;
    }
    return digits > 0;
}

static bool dash_parse(const char **at) {
    bool dash = **at == '-';
    *at += dash;
    return dash;
}

bool rf__file_temporary_parse(const char *name, struct rf__file_maker *maker) {
    const char *at = name;
    uint64_t pid = 0, count = 0;

    if (strncmp(name, RF__FILE_TEMPORARY, strlen(RF__FILE_TEMPORARY)) != 0) {
        return false;
    }
    at += strlen(RF__FILE_TEMPORARY);
    bool good = number_parse(&at, 16, 16, &maker->host) && dash_parse(&at) &&
                number_parse(&at, 10, 18, &pid) && dash_parse(&at) &&
                number_parse(&at, 16, 16, &maker->started) && dash_parse(&at) &&
                number_parse(&at, 16, 16, &count) && !*at;
    maker->pid = (int64_t)pid;
    return good;
}

/* ---- creating ---- */

/* The writer without its temporary file, which is closed by whoever knows what to report. */
static void writer_free(struct rf__file_root *root, struct writer *writer) {
    if (!writer) {
        return;
    }
    if (writer->fd >= 0) {
        (void)root->sys->close(root->sys, writer->fd);
    }
    rf__free(writer->target);
    rf__free(writer->temporary);
    rf__free(writer->buffer);
    rf__free(writer);
}

/* Makes the folder and what is missing above it. 0; or a negative errno, with the path cut to the
 * folder that could not be made, but whole with -ENOENT: what was above it was removed meanwhile,
 * or is a link to nowhere. */
static int folders_make(struct rf__file_sys *sys, char *path) {
    size_t whole = strlen(path);
    int got;

    while ((got = sys->mkdir(sys, path)) == -ENOENT || got == -EINTR) {
        char *slash = strrchr(path, '/');
        if (got == -ENOENT && (!slash || slash == path)) {
            break;
        }
        if (got == -ENOENT) {
            *slash = 0;
        }
    }
    while ((!got || got == -EEXIST || got == -EINTR) && strlen(path) < whole) {
        if (got != -EINTR) {
            path[strlen(path)] = '/';
        }
        got = sys->mkdir(sys, path);
    }
    while (got == -ENOENT && strlen(path) < whole) {
        path[strlen(path)] = '/';
    }
    return got == -EEXIST ? 0 : got;
}

/* Opens a new temporary file in the folder; writer->temporary names it. */
static int temporary_open(struct rf__file_root *root, char *folder, struct writer *writer,
                          struct rf_error *err) {
    char name[RF__FILE_TEMPORARY_MAX];
    struct rf__file_maker self;
    struct rf__file_sys *sys = root->sys;
    size_t length = strlen(folder);
    int code = RF_OK, got = -ENOENT;

    writer->temporary = rf__alloc(length + 1 + sizeof name, 1);
    if (!writer->temporary) {
        code = rf__fail(err, RF_ENOMEM, 0, "no memory to write '%.200s'", writer->target);
        goto out;
    }
    sys->self(sys, &self);
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        rf__file_temporary_name(name, &self,
                                atomic_fetch_add_explicit(&counter, 1, memory_order_relaxed));
        snprintf(writer->temporary, length + 1 + sizeof name, "%s/%s", folder, name);
        do {
            got = sys->open_new(sys, writer->temporary);
        } while (got == -EINTR);
        if (got == -ENOENT) {
            /* No folder yet, or somebody who found it empty removed it. */
            atomic_store_explicit(&root->anchored, false, memory_order_relaxed);
            int made = folders_make(sys, folder);
            if (made < 0 && made != -ENOENT) {
                code = rf__file_fail(err, -made, "make the folder", folder);
                goto out;
            }
        } else if (got != -EEXIST) {
            break;
        }
    }
    if (got < 0) {
        code = rf__file_fail(err, -got, "write a temporary file in", folder);
        goto out;
    }
    writer->fd = got;
out:
    return code;
}

/* What `finish` would stumble over is told before everything is written. */
static int target_check(struct rf__file_sys *sys, const char *path, struct rf_error *err) {
    struct rf__file_status status;
    int got = sys->lstat(sys, path, &status);
    if (got == -ENAMETOOLONG) {
        return rf__file_fail(err, ENAMETOOLONG, "write", path);
    }
    if (!got && status.kind == RF__FILE_FOLDER) {
        return rf__file_fail(err, EISDIR, "write", path);
    }
    return RF_OK;
}

int rf__file_create(struct rf__blobs *blobs, const char *name, struct rf__blob_writer **out,
                    struct rf_error *err) {
    struct rf__file_root *root = rf__file_root(blobs);
    struct writer *writer = NULL;
    char *folder = NULL;

    int code = rf__file_going(root, "write", name, err);
    if (!code) {
        code = rf__file_name_check(name, false, err);
    }
    if (code) {
        goto out;
    }
    writer = rf__alloc(1, sizeof *writer);
    folder = rf__file_path(root, name);
    if (writer) {
        writer->fd = -1;
        writer->target = rf__file_path(root, name);
        writer->buffer = rf__alloc(BUFFER_BYTES, 1);
    }
    if (!writer || !folder || !writer->target || !writer->buffer) {
        code = rf__fail(err, RF_ENOMEM, 0, "no memory to write '%.200s'", name);
        goto out;
    }
    code = target_check(root->sys, writer->target, err);
    if (code) {
        goto out;
    }
    bool above = rf__file_cut(folder);
    RF_ASSERT(above);
    code = temporary_open(root, folder, writer, err);
    if (code) {
        goto out;
    }
    *out = (struct rf__blob_writer *)writer;
    writer = NULL;
out:
    writer_free(root, writer);
    rf__free(folder);
    return code;
}

/* ---- writing ---- */

static int bytes_write(struct rf__file_root *root, struct writer *writer,
                       const unsigned char *bytes, size_t length, struct rf_error *err) {
    struct rf__file_sys *sys = root->sys;
    int code = RF_OK;

    while (length && !(code = rf__file_going(root, "write", writer->target, err))) {
        size_t piece = length < PIECE_BYTES ? length : PIECE_BYTES;
        ssize_t put = sys->write(sys, writer->fd, bytes, piece);
        if (put == -EINTR) {
            continue;
        }
        if (put <= 0) {
            code = rf__fail(err, RF_EIO, put ? (int)-put : EIO,
                            "cannot write '%.200s': %zu bytes wanted at byte %" PRIu64,
                            writer->target, length, writer->written);
            rf__file_advise(err, writer->target);
            break;
        }
        bytes += put;
        length -= (size_t)put;
        writer->written += (uint64_t)put;
    }
    return code;
}

static int buffer_write(struct rf__file_root *root, struct writer *writer, struct rf_error *err) {
    int code = bytes_write(root, writer, writer->buffer, writer->buffered, err);
    writer->buffered = 0;
    return code;
}

int rf__file_write(struct rf__blobs *blobs, struct rf__blob_writer *opaque, const void *bytes,
                   size_t length, struct rf_error *err) {
    struct rf__file_root *root = rf__file_root(blobs);
    struct writer *writer = (struct writer *)opaque;
    const unsigned char *at = bytes;

    int code = rf__file_going(root, "write", writer->target, err);
    if (!code && writer->failed) {
        code =
            rf__fail(err, writer->failed, 0, "an earlier write to '%.200s' failed", writer->target);
    }
    while (!code && length) {
        if (!writer->buffered && length >= BUFFER_BYTES) {
            size_t direct = length - length % BUFFER_BYTES;
            code = bytes_write(root, writer, at, direct, err);
            at += direct;
            length -= direct;
            continue;
        }
        size_t room = BUFFER_BYTES - writer->buffered;
        size_t piece = length < room ? length : room;
        memcpy(writer->buffer + writer->buffered, at, piece);
        writer->buffered += piece;
        at += piece;
        length -= piece;
        if (writer->buffered == BUFFER_BYTES) {
            code = buffer_write(root, writer, err);
        }
    }
    if (code && !writer->failed) {
        writer->failed = code;
    }
    return code;
}

/* ---- finishing ---- */

/* Whether the target is the very file that was written: then a call that reported an error had done
 * its work, and only the answer was lost (file servers repeat what they got no answer to). */
static bool in_place(struct rf__file_sys *sys, const struct writer *writer) {
    struct rf__file_status mine, there;
    return !sys->fstat(sys, writer->fd, &mine) && !sys->lstat(sys, writer->target, &there) &&
           mine.device == there.device && mine.inode == there.inode;
}

/* 0 or a negative errno. Links where the file system cannot rename without replacing. */
static int new_in_place(struct rf__file_sys *sys, const struct writer *writer) {
    int got = sys->rename_new(sys, writer->temporary, writer->target);
    if (got == -EINVAL || got == -ENOSYS || got == -EOPNOTSUPP) {
        got = sys->link(sys, writer->temporary, writer->target);
        if (!got || in_place(sys, writer)) {
            got = 0;
            (void)sys->unlink(sys, writer->temporary); /* else collect finds it */
        } else if (got == -EPERM || got == -ENOSYS || got == -EINVAL) {
            got = -EOPNOTSUPP;
        }
    }
    return got;
}

static int put_in_place(struct rf__file_root *root, const struct writer *writer, bool only_new,
                        struct rf_error *err) {
    struct rf__file_sys *sys = root->sys;
    int code = RF_OK;

    int got =
        only_new ? new_in_place(sys, writer) : sys->rename(sys, writer->temporary, writer->target);
    if (got < 0 && in_place(sys, writer)) {
        got = 0;
    }
    if (only_new && got == -EEXIST) {
        code = rf__fail(err, RF_ECONFLICT, 0, "'%.200s' was there already", writer->target);
        if (err) {
            rf__detail(err->where, "%s", writer->target);
        }
    } else if (only_new && got == -EOPNOTSUPP) {
        code = rf__fail(err, RF_EUNSUPPORTED, EOPNOTSUPP,
                        "the file system of '%.200s' can neither rename without replacing nor link",
                        writer->target);
        if (err) {
            rf__detail(err->where, "%s", writer->target);
            rf__detail(err->next, "use a folder on a local disk or NFS, or the object store itself "
                                  "(s3://, gs://)");
        }
    } else if (got < 0) {
        code = rf__file_fail(err, -got, "put in place", writer->target);
    }
    return code;
}

/* The folder of the target and all above it, as far as the root; from there on what can be. */
static int folders_sync(struct rf__file_root *root, char *path, struct rf_error *err) {
    size_t least = strlen(root->path);
    int code = RF_OK;

    bool anchored = atomic_load_explicit(&root->anchored, memory_order_relaxed);
    do {
        bool inside = strlen(path) >= least;
        if (!inside && anchored) {
            break;
        }
        int got = rf__file_sync_folder(root->sys, path);
        /* Folders above the root may be closed to this user, or be on no disk at all. */
        if (got < 0 && (inside || got == -EIO)) {
            code = rf__file_fail(err, -got, "sync the folder", path);
            goto out;
        }
    } while (rf__file_cut(path));
    atomic_store_explicit(&root->anchored, true, memory_order_relaxed);
out:
    return code;
}

/* Removes the temporary file, and folders that hold nothing else. It is closed first: NFS keeps an
 * open file that is removed, under another name, and with it the folder. */
static void temporary_remove(struct rf__file_root *root, struct writer *writer) {
    (void)root->sys->close(root->sys, writer->fd);
    writer->fd = -1;
    (void)root->sys->unlink(root->sys, writer->temporary);
    if (rf__file_cut(writer->temporary)) {
        rf__file_prune(root, writer->temporary);
    }
}

int rf__file_finish(struct rf__blobs *blobs, struct rf__blob_writer *opaque, bool only_new,
                    struct rf_error *err) {
    struct rf__file_root *root = rf__file_root(blobs);
    struct writer *writer = (struct writer *)opaque;
    bool placed = false;

    int code = rf__file_going(root, "finish", writer->target, err);
    if (!code && writer->failed) {
        code =
            rf__fail(err, writer->failed, 0, "an earlier write to '%.200s' failed", writer->target);
    }
    if (!code) {
        code = buffer_write(root, writer, err);
    }
    if (code) {
        goto out;
    }
    int got = root->sys->fsync(root->sys, writer->fd);
    if (got < 0) {
        code = rf__fail(err, RF_EIO, -got, "cannot sync '%.200s' (%" PRIu64 " bytes)",
                        writer->target, writer->written);
        rf__file_advise(err, writer->target);
        goto out;
    }
    code = put_in_place(root, writer, only_new, err);
    if (code) {
        goto out;
    }
    placed = true;
    bool above = rf__file_cut(writer->target);
    RF_ASSERT(above);
    code = folders_sync(root, writer->target, err);
out:
    if (!placed) {
        temporary_remove(root, writer);
    }
    writer_free(root, writer);
    return code;
}

void rf__file_abandon(struct rf__blobs *blobs, struct rf__blob_writer *opaque) {
    struct writer *writer = (struct writer *)opaque;
    if (writer) {
        temporary_remove(rf__file_root(blobs), writer);
        writer_free(rf__file_root(blobs), writer);
    }
}
