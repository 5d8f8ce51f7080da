/* Files as blobs, for io/blob.h: the root and its names, reading and removing. Writing is in
 * file_write.c, listing and collecting in file_walk.c. An open blob is one descriptor of a regular
 * file, whose size is taken when it is opened. */
#include "os/file.h"

#include "base/assert.h"
#include "base/mem.h"
#include "base/status.h"
#include "os/file_internal.h"

#include <errno.h>
#include <limits.h>
#include <string.h>

/* One open file; the path is kept for error reports. */
struct file {
    struct rf__file_sys *sys;
    int fd;
    char *path;
};

/* ---- error reports ---- */

static const char *advice(int sys_errno) {
    switch (sys_errno) {
    case ENOSPC:
        return "free space on that disk, or use another one";
    case EDQUOT:
        return "free some of this user's space on that disk, or have the quota raised";
    case EROFS:
        return "mount that disk for writing, or use another folder";
    case EACCES:
    case EPERM:
        return "give this user the right to that path, or use another folder";
    case ENAMETOOLONG:
        return "use a shorter path";
    case EMFILE:
    case ENFILE:
        return "raise the limit of open files (ulimit -n)";
    case EFBIG:
        return "raise the limit of a file's size (ulimit -f), or use another file system";
    case ENOTDIR:
    case EEXIST:
    case EISDIR:
    case ENOTEMPTY:
        return "see what stands at that path and above it: a file where a folder should be, or a "
               "folder for a file";
    case EIO:
    case ESTALE:
        return "look at the kernel's log for what that disk or file server reported";
    default:
        return NULL;
    }
}

void rf__file_advise(struct rf_error *err, const char *path) {
    if (!err) {
        return;
    }
    const char *next = advice(err->sys_errno);
    rf__detail(err->where, "%s", path);
    if (next) {
        rf__detail(err->next, "%s", next);
    }
}

int rf__file_fail(struct rf_error *err, int sys_errno, const char *verb, const char *path) {
    int code = rf__fail(err, RF_EIO, sys_errno, "cannot %s '%.200s'", verb, path);
    rf__file_advise(err, path);
    return code;
}

int rf__file_going(const struct rf__file_root *root, const char *verb, const char *name,
                   struct rf_error *err) {
    if (!atomic_load_explicit(&root->interrupted, memory_order_relaxed)) {
        return RF_OK;
    }
    return rf__fail(err, RF_ESTOPPED, 0, "stopped on request: did not %s '%.200s'", verb, name);
}

/* ---- names and paths ---- */

int rf__file_name_check(const char *name, bool prefix, struct rf_error *err) {
    const char *why = NULL;

    if (!*name && !prefix) {
        why = "it is empty";
    } else if (*name == '/') {
        why = "it begins with '/'";
    } else if (strnlen(name, RF__FILE_NAME_MAX) >= RF__FILE_NAME_MAX) {
        why = "it is longer than 1023 bytes";
    }
    for (const char *part = name; !why && *part;) {
        size_t length = strcspn(part, "/");
        bool last = !part[length];
        if (length == 0) {
            why = "it has an empty part";
        } else if (length > NAME_MAX) {
            why = "a part of it is longer than 255 bytes";
        } else if ((length == 2 && !memcmp(part, "..", 2)) || (length == 1 && *part == '.')) {
            why = "it has a part '.' or '..'";
        } else if (!prefix && !strncmp(part, RF__FILE_TEMPORARY, strlen(RF__FILE_TEMPORARY))) {
            why = "'" RF__FILE_TEMPORARY "' is for temporary files";
        } else if (!prefix && !last && !part[length + 1]) {
            why = "it ends in '/'";
        }
        part += length + !last;
    }
    if (!why) {
        return RF_OK;
    }
    return rf__fail(err, RF_EINVAL, 0, "'%.200s' is not a blob's name: %s", name, why);
}

static char *path_join(const char *folder, const char *name) {
    size_t above = strlen(folder), below = strlen(name);
    char *path = rf__alloc(above + below + 2, 1);
    if (path) {
        memcpy(path, folder, above);
        path[above] = '/';
        memcpy(path + above + 1, name, below);
    }
    return path;
}

char *rf__file_path(const struct rf__file_root *root, const char *name) {
    return !*name && *root->path ? rf__strdup(root->path) : path_join(root->path, name);
}

bool rf__file_cut(char *path) {
    char *slash = strrchr(path, '/');
    if (!slash || !slash[1]) {
        return false;
    }
    slash[slash == path] = 0;
    return true;
}

int rf__file_sync_folder(struct rf__file_sys *sys, const char *path) {
    int fd, got;
    do {
        fd = sys->open_folder(sys, path);
    } while (fd == -EINTR);
    if (fd == -ENOENT) {
        return 0; /* somebody removed what stood in it, and then it */
    }
    if (fd < 0) {
        return fd;
    }
    got = sys->fsync(sys, fd);
    (void)sys->close(sys, fd);
    return got == -EINVAL || got == -EOPNOTSUPP ? 0 : got;
}

void rf__file_prune(const struct rf__file_root *root, char *path) {
    size_t least = strlen(root->path);
    while (strlen(path) > least && strcmp(path, "/") != 0 && !root->sys->rmdir(root->sys, path) &&
           rf__file_cut(path)) {
    }
}

/* ---- reading ---- */

static void file_free(struct file *file) {
    if (!file) {
        return;
    }
    if (file->fd >= 0) {
        (void)file->sys->close(file->sys, file->fd);
    }
    rf__free(file->path);
    rf__free(file);
}

/* The path is taken, also on an error. */
static int path_open(struct rf__file_sys *sys, char *path, struct rf__blob **out, uint64_t *bytes,
                     struct rf_error *err) {
    struct rf__file_status status;
    int code = RF_OK;

    struct file *file = rf__alloc(1, sizeof *file);
    if (!file || !path) {
        rf__free(path);
        rf__free(file);
        return rf__fail(err, RF_ENOMEM, 0, "no memory to open a file");
    }
    *file = (struct file){.sys = sys, .path = path};
    do {
        file->fd = sys->open_read(sys, path);
    } while (file->fd == -EINTR);
    if (file->fd < 0) {
        int missing = file->fd == -ENOENT || file->fd == -ENOTDIR;
        code = rf__file_fail(err, -file->fd, "open", path);
        if (missing) {
            code = rf__fail(err, RF_ENOTFOUND, -file->fd, "cannot open '%.200s'", path);
        }
        goto out;
    }
    int got = sys->fstat(sys, file->fd, &status);
    if (got < 0) {
        code = rf__file_fail(err, -got, "look at", path);
        goto out;
    }
    if (status.kind != RF__FILE_REGULAR) {
        code = rf__fail(err, RF_EIO, status.kind == RF__FILE_FOLDER ? EISDIR : 0,
                        "'%.200s' is not a regular file", path);
        goto out;
    }
    *bytes = status.bytes;
    *out = (struct rf__blob *)file;
    file = NULL;
out:
    file_free(file);
    return code;
}

static int plain_open(struct rf__blobs *blobs, const char *name, struct rf__blob **out,
                      uint64_t *bytes, struct rf_error *err) {
    (void)blobs;
    return path_open(&rf__file_system, rf__strdup(name), out, bytes, err);
}

static int root_open(struct rf__blobs *blobs, const char *name, struct rf__blob **out,
                     uint64_t *bytes, struct rf_error *err) {
    const struct rf__file_root *root = rf__file_root(blobs);
    int code = rf__file_going(root, "open", name, err);
    if (!code) {
        code = rf__file_name_check(name, false, err);
    }
    return code ? code : path_open(root->sys, rf__file_path(root, name), out, bytes, err);
}

static ssize_t plain_read(struct rf__blobs *blobs, struct rf__blob *blob, uint64_t offset,
                          void *buffer, size_t bytes, struct rf_error *err) {
    struct file *file = (struct file *)blob;
    size_t done = 0;

    (void)blobs;
    if (offset > INT64_MAX - bytes) {
        return rf__file_fail(err, EOVERFLOW, "read", file->path);
    }
    while (done < bytes) {
        ssize_t n = file->sys->pread(file->sys, file->fd, (char *)buffer + done, bytes - done,
                                     offset + done);
        if (n == -EINTR) {
            continue;
        }
        if (n < 0) {
            int code = rf__fail(err, RF_EIO, (int)-n, "cannot read '%.200s' at byte %llu",
                                file->path, (unsigned long long)(offset + done));
            rf__file_advise(err, file->path);
            return code;
        }
        if (!n) {
            break;
        }
        done += (size_t)n;
    }
    return (ssize_t)done;
}

static ssize_t root_read(struct rf__blobs *blobs, struct rf__blob *blob, uint64_t offset,
                         void *buffer, size_t bytes, struct rf_error *err) {
    const struct file *file = (const struct file *)blob;
    int code = rf__file_going(rf__file_root(blobs), "read", file->path, err);
    return code ? code : plain_read(blobs, blob, offset, buffer, bytes, err);
}

static void any_close(struct rf__blobs *blobs, struct rf__blob *blob) {
    (void)blobs;
    file_free((struct file *)blob);
}

/* ---- removing ---- */

static int root_remove(struct rf__blobs *blobs, const char *name, struct rf_error *err) {
    const struct rf__file_root *root = rf__file_root(blobs);
    char *path = NULL;
    int got;

    int code = rf__file_going(root, "remove", name, err);
    if (!code) {
        code = rf__file_name_check(name, false, err);
    }
    if (code) {
        goto out;
    }
    path = rf__file_path(root, name);
    if (!path) {
        code = rf__fail(err, RF_ENOMEM, 0, "no memory to remove '%.200s'", name);
        goto out;
    }
    do {
        got = root->sys->unlink(root->sys, path);
    } while (got == -EINTR);
    struct rf__file_status status;
    bool folder = (got == -EISDIR || got == -EPERM) &&
                  !root->sys->lstat(root->sys, path, &status) && status.kind == RF__FILE_FOLDER;
    if (got == -ENOENT || got == -ENOTDIR || folder) {
        code = rf__fail(err, RF_ENOTFOUND, ENOENT, "cannot remove '%.200s'", path);
        goto out;
    }
    if (got < 0) {
        code = rf__file_fail(err, -got, "remove", path);
        goto out;
    }
    bool above = rf__file_cut(path);
    RF_ASSERT(above);
    got = rf__file_sync_folder(root->sys, path);
    if (got < 0) {
        code = rf__file_fail(err, -got, "sync the folder of what was removed,", path);
        goto out;
    }
    rf__file_prune(root, path);
out:
    rf__free(path);
    return code;
}

/* ---- the root ---- */

static void root_interrupt(struct rf__blobs *blobs) {
    atomic_store_explicit(&rf__file_root(blobs)->interrupted, true, memory_order_relaxed);
}

static void root_destroy(struct rf__blobs *blobs) {
    if (blobs) {
        rf__free(rf__file_root(blobs)->path);
        rf__free(blobs);
    }
}

static const struct rf__blob_ops plain_ops = {
    .open = plain_open, .read = plain_read, .close = any_close};

static const struct rf__blob_ops root_ops = {
    .open = root_open,
    .read = root_read,
    .close = any_close,
    .create = rf__file_create,
    .write = rf__file_write,
    .finish = rf__file_finish,
    .abandon = rf__file_abandon,
    .remove = root_remove,
    .list = rf__file_list,
    .collect = rf__file_collect,
    .interrupt = root_interrupt,
    .destroy = root_destroy,
};

struct rf__blobs rf__file_blobs = {.ops = &plain_ops};

/* No slash twice, none at the end. */
static void path_tidy(char *path) {
    char *to = path;
    for (const char *from = path; *from; from++) {
        if (*from != '/' || to == path || to[-1] != '/') {
            *to++ = *from;
        }
    }
    *to = 0;
    if (to > path && to[-1] == '/') {
        to[-1] = 0;
    }
}

int rf__file_blobs_create(const char *path, struct rf__file_sys *sys, struct rf__blobs **out,
                          struct rf_error *err) {
    char here[PATH_MAX];
    struct rf__file_root *root = NULL;
    int code = RF_OK;

    if (!*path) {
        code = rf__fail(err, RF_EINVAL, 0, "the path of the folder for blobs is empty");
        goto out;
    }
    if (!sys) {
        sys = &rf__file_system;
    }
    if (*path != '/') {
        int got = sys->current_folder(sys, here, sizeof here);
        if (got < 0) {
            code =
                rf__fail(err, RF_EIO, -got, "cannot tell the present folder, for '%.200s'", path);
            goto out;
        }
    }
    root = rf__alloc(1, sizeof *root);
    if (root) {
        root->base.ops = &root_ops;
        root->sys = sys;
        root->path = *path == '/' ? rf__strdup(path) : path_join(here, path);
    }
    if (!root || !root->path) {
        code = rf__fail(err, RF_ENOMEM, 0, "no memory for the folder '%.200s'", path);
        goto out;
    }
    path_tidy(root->path);
    *out = &root->base;
    root = NULL;
out:
    root_destroy(root ? &root->base : NULL);
    return code;
}
