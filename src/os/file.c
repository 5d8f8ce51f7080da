/* Files as blobs, for io/blob.h. A blob is one descriptor of a regular file, whose size is taken
 * when it is opened. */
#include "os/file.h"

#include "base/mem.h"
#include "base/status.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

/* One open file; the path is kept for error reports. */
struct file {
    int fd;
    char *path;
};

static void file_free(struct file *file) {
    if (!file) {
        return;
    }
    if (file->fd >= 0) {
        close(file->fd);
    }
    rf__free(file->path);
    rf__free(file);
}

static int file_open(struct rf__blobs *blobs, const char *name, struct rf__blob **out,
                     uint64_t *bytes, struct rf_error *err) {
    struct stat status;
    int code = RF_OK;

    (void)blobs;
    struct file *file = rf__alloc(1, sizeof *file);
    if (!file) {
        return rf__fail(err, RF_ENOMEM, 0, "no memory to open '%.200s'", name);
    }
    file->fd = -1;
    file->path = rf__strdup(name);
    if (!file->path) {
        code = rf__fail(err, RF_ENOMEM, 0, "no memory to open '%.200s'", name);
        goto out;
    }
    do {
        /* Not blocking, so that a FIFO in the place of a file is refused below instead of waited
         * for. */
        file->fd = open(name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    } while (file->fd < 0 && errno == EINTR);
    if (file->fd < 0) {
        int missing = errno == ENOENT || errno == ENOTDIR;
        code = rf__fail(err, missing ? RF_ENOTFOUND : RF_EIO, errno, "cannot open '%.200s'", name);
        goto out;
    }
    if (fstat(file->fd, &status)) {
        code = rf__fail(err, RF_EIO, errno, "cannot look at '%.200s'", name);
        goto out;
    }
    if (!S_ISREG(status.st_mode)) {
        code = rf__fail(err, RF_EIO, S_ISDIR(status.st_mode) ? EISDIR : 0,
                        "'%.200s' is not a regular file", name);
        goto out;
    }
    *bytes = (uint64_t)status.st_size;
    *out = (struct rf__blob *)file;
    file = NULL;
out:
    file_free(file);
    return code;
}

static ssize_t file_read(struct rf__blobs *blobs, struct rf__blob *blob, uint64_t offset,
                         void *buffer, size_t bytes, struct rf_error *err) {
    struct file *file = (struct file *)blob;
    size_t done = 0;

    (void)blobs;
    while (done < bytes) {
        ssize_t n = pread(file->fd, (char *)buffer + done, bytes - done, (off_t)(offset + done));
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            return rf__fail(err, RF_EIO, errno, "cannot read '%.200s' at byte %llu", file->path,
                            (unsigned long long)(offset + done));
        }
        if (!n) {
            break;
        }
        done += (size_t)n;
    }
    return (ssize_t)done;
}

static void file_close(struct rf__blobs *blobs, struct rf__blob *blob) {
    (void)blobs;
    file_free((struct file *)blob);
}

static const struct rf__blob_ops file_ops = {
    .open = file_open, .read = file_read, .close = file_close};

struct rf__blobs rf__file_blobs = {.ops = &file_ops};
