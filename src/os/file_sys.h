/* The system calls under os/file, as a table, so that tests can put a disk in memory beneath it
 * that fails, fills up and loses power (tests/support/fake_files.h). `rf__file_system` is the
 * machine's own.
 *
 * Each call does what the system call of its name does, once: an interrupted or short one is the
 * caller's affair. All return 0 or more, or the negative of an errno. Thread safety: as the system
 * calls themselves. */
#ifndef RF_OS_FILE_SYS_H
#define RF_OS_FILE_SYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum rf__file_kind { RF__FILE_REGULAR, RF__FILE_FOLDER, RF__FILE_OTHER };

struct rf__file_status {
    enum rf__file_kind kind;
    uint64_t bytes;
    int64_t modified_s; /* seconds since 1970 */
    uint64_t device, inode;
};

/* Who made a file. `host` stands for everything that must be equal for two process numbers to be
 * comparable: the machine, its present boot, the pid namespace, the user. */
struct rf__file_maker {
    uint64_t host;
    int64_t pid;
    uint64_t started; /* as the kernel counts it; tells a process from a later one of its number */
};

struct rf__file_sys {
    int (*open_read)(struct rf__file_sys *sys, const char *path);   /* a descriptor; never blocks */
    int (*open_new)(struct rf__file_sys *sys, const char *path);    /* to write; EEXIST */
    int (*open_folder)(struct rf__file_sys *sys, const char *path); /* for fsync */
    int (*close)(struct rf__file_sys *sys, int fd);
    ssize_t (*pread)(struct rf__file_sys *sys, int fd, void *buffer, size_t bytes, uint64_t offset);
    ssize_t (*write)(struct rf__file_sys *sys, int fd, const void *bytes, size_t count);
    int (*fsync)(struct rf__file_sys *sys, int fd);
    int (*fstat)(struct rf__file_sys *sys, int fd, struct rf__file_status *out);
    int (*lstat)(struct rf__file_sys *sys, const char *path, struct rf__file_status *out);

    int (*rename)(struct rf__file_sys *sys, const char *from, const char *to);
    int (*rename_new)(struct rf__file_sys *sys, const char *from, const char *to); /* EEXIST */
    int (*link)(struct rf__file_sys *sys, const char *from, const char *to);       /* EEXIST */
    int (*unlink)(struct rf__file_sys *sys, const char *path);
    int (*mkdir)(struct rf__file_sys *sys, const char *path);
    int (*rmdir)(struct rf__file_sys *sys, const char *path);

    /* What stands in a folder, in any order, without "." and "..". What `each` returns other than 0
     * ends it and is returned. `follow`: also where the path's last part is a symbolic link. */
    int (*read_folder)(struct rf__file_sys *sys, const char *path, bool follow,
                       int (*each)(void *context, const char *name, enum rf__file_kind kind),
                       void *context);

    int (*current_folder)(struct rf__file_sys *sys, char *out, size_t room);
    int64_t (*wall_s)(struct rf__file_sys *sys); /* seconds since 1970 */
    void (*self)(struct rf__file_sys *sys, struct rf__file_maker *out);

    /* Asked of makers of this host only; true where that cannot be told. */
    bool (*lives)(struct rf__file_sys *sys, const struct rf__file_maker *maker);
};

extern struct rf__file_sys rf__file_system;

#endif
