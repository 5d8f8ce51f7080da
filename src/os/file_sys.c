/* The machine's own system calls, for os/file. A process is told from a later one of the same
 * number by the time at which it started (field 22 of /proc/PID/stat). */
#include "os/file_sys.h"

#include "base/digest.h"
#include "os/host.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* The kernel's habit: a negative errno. */
static int answer(int got) {
    return got < 0 ? -errno : got;
}

static int real_open_read(struct rf__file_sys *sys, const char *path) {
    (void)sys;
    /* Not blocking, so that a FIFO in the place of a file can be refused instead of waited for. */
    return answer(open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK));
}

static int real_open_new(struct rf__file_sys *sys, const char *path) {
    (void)sys;
    return answer(open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
}

static int real_open_folder(struct rf__file_sys *sys, const char *path) {
    (void)sys;
    return answer(open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
}

static int real_close(struct rf__file_sys *sys, int fd) {
    (void)sys;
    return answer(close(fd));
}

static ssize_t real_pread(struct rf__file_sys *sys, int fd, void *buffer, size_t bytes,
                          uint64_t offset) {
    (void)sys;
    ssize_t got = pread(fd, buffer, bytes, (off_t)offset);
    return got < 0 ? -errno : got;
}

static ssize_t real_write(struct rf__file_sys *sys, int fd, const void *bytes, size_t count) {
    (void)sys;
    ssize_t put = write(fd, bytes, count);
    return put < 0 ? -errno : put;
}

static int real_fsync(struct rf__file_sys *sys, int fd) {
    (void)sys;
    return answer(fsync(fd));
}

static enum rf__file_kind kind_of(mode_t mode) {
    if (S_ISREG(mode)) {
        return RF__FILE_REGULAR;
    }
    return S_ISDIR(mode) ? RF__FILE_FOLDER : RF__FILE_OTHER;
}

static void status_of(const struct stat *in, struct rf__file_status *out) {
    *out = (struct rf__file_status){.kind = kind_of(in->st_mode),
                                    .bytes = in->st_size > 0 ? (uint64_t)in->st_size : 0,
                                    .modified_s = in->st_mtim.tv_sec,
                                    .device = in->st_dev,
                                    .inode = in->st_ino};
}

static int real_fstat(struct rf__file_sys *sys, int fd, struct rf__file_status *out) {
    struct stat status;
    (void)sys;
    int got = answer(fstat(fd, &status));
    if (!got) {
        status_of(&status, out);
    }
    return got;
}

static int real_lstat(struct rf__file_sys *sys, const char *path, struct rf__file_status *out) {
    struct stat status;
    (void)sys;
    int got = answer(lstat(path, &status));
    if (!got) {
        status_of(&status, out);
    }
    return got;
}

static int real_rename(struct rf__file_sys *sys, const char *from, const char *to) {
    (void)sys;
    return answer(rename(from, to));
}

static int real_rename_new(struct rf__file_sys *sys, const char *from, const char *to) {
    (void)sys;
    return answer(renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE));
}

static int real_link(struct rf__file_sys *sys, const char *from, const char *to) {
    (void)sys;
    return answer(link(from, to));
}

static int real_unlink(struct rf__file_sys *sys, const char *path) {
    (void)sys;
    return answer(unlink(path));
}

static int real_mkdir(struct rf__file_sys *sys, const char *path) {
    (void)sys;
    return answer(mkdir(path, 0777));
}

static int real_rmdir(struct rf__file_sys *sys, const char *path) {
    (void)sys;
    return answer(rmdir(path));
}

/* Some file systems do not tell the kind with the name. */
static enum rf__file_kind kind_of_entry(DIR *folder, const struct dirent *entry) {
    struct stat status;
    if (entry->d_type != DT_UNKNOWN) {
        return kind_of(DTTOIF(entry->d_type));
    }
    if (fstatat(dirfd(folder), entry->d_name, &status, AT_SYMLINK_NOFOLLOW)) {
        return RF__FILE_OTHER; /* it went in the meantime */
    }
    return kind_of(status.st_mode);
}

static int real_read_folder(struct rf__file_sys *sys, const char *path, bool follow,
                            int (*each)(void *context, const char *name, enum rf__file_kind kind),
                            void *context) {
    int code = 0;
    DIR *folder = NULL;
    (void)sys;

    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | (follow ? 0 : O_NOFOLLOW));
    if (fd < 0) {
        code = -errno;
        goto out;
    }
    folder = fdopendir(fd);
    if (!folder) {
        code = -errno;
        close(fd);
        goto out;
    }
    while (!code) {
        errno = 0;
        const struct dirent *entry = readdir(folder);
        if (!entry) {
            code = -errno;
            break;
        }
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
            code = each(context, entry->d_name, kind_of_entry(folder, entry));
        }
    }
out:
    if (folder) {
        closedir(folder);
    }
    return code;
}

static int real_current_folder(struct rf__file_sys *sys, char *out, size_t room) {
    (void)sys;
    return getcwd(out, room) ? 0 : -errno;
}

static int64_t real_wall_s(struct rf__file_sys *sys) {
    (void)sys;
    return (int64_t)time(NULL);
}

/* When the process began, in the kernel's ticks; 0 where that cannot be read. */
static uint64_t started_at(int64_t pid) {
    char path[64], text[1024];
    uint64_t ticks = 0;

    snprintf(path, sizeof path, "/proc/%" PRId64 "/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return 0;
    }
    ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    text[got > 0 ? got : 0] = 0;
    /* The program's name is the second field, in parentheses, and may hold anything. */
    const char *at = strrchr(text, ')');
    for (int field = 2; at && field < 22; field++) {
        at = strchr(at + 1, ' ');
    }
    if (at) {
        ticks = strtoull(at, NULL, 10);
    }
    return ticks;
}

static void real_self(struct rf__file_sys *sys, struct rf__file_maker *out) {
    char host[RF__HOST_MAX] = "";
    struct stat pids = {0};

    (void)sys;
    /* Without an identity all such hosts look alike: then a foreign process may pass for a living
     * one of this host, and its leftovers stay. */
    if (rf__host_identity(host, NULL)) {
        host[0] = 0;
    }
    if (stat("/proc/self/ns/pid", &pids)) {
        pids.st_ino = 0;
    }
    out->host = rf__digest(host, strlen(host), pids.st_ino);
    out->pid = getpid();
    out->started = started_at(out->pid);
}

static bool real_lives(struct rf__file_sys *sys, const struct rf__file_maker *maker) {
    (void)sys;
    if (maker->pid <= 0 || maker->pid > INT32_MAX) {
        return false;
    }
    if (kill((pid_t)maker->pid, 0) && errno == ESRCH) {
        return false;
    }
    uint64_t started = started_at(maker->pid);
    return !started || !maker->started || started == maker->started;
}

struct rf__file_sys rf__file_system = {
    .open_read = real_open_read,
    .open_new = real_open_new,
    .open_folder = real_open_folder,
    .close = real_close,
    .pread = real_pread,
    .write = real_write,
    .fsync = real_fsync,
    .fstat = real_fstat,
    .lstat = real_lstat,
    .rename = real_rename,
    .rename_new = real_rename_new,
    .link = real_link,
    .unlink = real_unlink,
    .mkdir = real_mkdir,
    .rmdir = real_rmdir,
    .read_folder = real_read_folder,
    .current_folder = real_current_folder,
    .wall_s = real_wall_s,
    .self = real_self,
    .lives = real_lives,
};
