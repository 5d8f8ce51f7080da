/* Reading the job key. */
#include "os/key.h"

#include "base/status.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

static int take(int fd, const char *name, unsigned char key[RF_MAX_KEY_BYTES], size_t *bytes,
                struct rf_error *err) {
    unsigned char all[RF_MAX_KEY_BYTES + 1];
    ssize_t got = pread(fd, all, sizeof all, 0);
    if (got < 0) {
        return rf__fail(err, RF_EIO, errno, "reading the job key from %s", name);
    }
    if (got < RF_MIN_KEY_BYTES || got > RF_MAX_KEY_BYTES) {
        return rf__fail(err, RF_EINVAL, 0, "%s holds a key of %s%zd bytes; it must have %d … %d",
                        name, got > RF_MAX_KEY_BYTES ? "more than " : "",
                        got > RF_MAX_KEY_BYTES ? got - 1 : got, RF_MIN_KEY_BYTES, RF_MAX_KEY_BYTES);
    }
    for (ssize_t i = 0; i < got; i++) {
        key[i] = all[i];
    }
    *bytes = (size_t)got;
    return 0;
}

int rf__key_from_fd(int fd, unsigned char key[RF_MAX_KEY_BYTES], size_t *bytes,
                    struct rf_error *err) {
    return take(fd, "the inherited descriptor", key, bytes, err);
}

int rf__key_from_file(const char *path, unsigned char key[RF_MAX_KEY_BYTES], size_t *bytes,
                      struct rf_error *err) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return rf__fail(err, errno == ENOENT ? RF_ENOTFOUND : RF_EIO, errno,
                        "opening the key file '%s'", path);
    }
    int rc = take(fd, path, key, bytes, err);
    close(fd);
    return rc;
}
