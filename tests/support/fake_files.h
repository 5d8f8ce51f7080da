/* A disk in memory behind os/file_sys.h, for tests: it fails on demand, fills up, gives short
 * writes, and loses power.
 *
 *     struct fake_files *disk = fake_files_create();
 *     rf__file_blobs_create("/ckpt", &disk->sys, &blobs, NULL);
 *     …
 *     struct fake_files *after = fake_files_crash(disk, variant);   // as it may look after restart
 *
 * What is promised over a crash is what POSIX promises and no more:
 *  - bytes that were written and not synced may be there, gone, cut short at any byte, zeros, or
 *    garbage, each file on its own;
 *  - a name that was made, replaced or removed, and whose folder was not synced since, may be as
 *    before or as after, each change on its own; a rename is one change;
 *  - the sync of a file secures its content, not its name; that of a folder, the names in it, but
 *    not its own name in the folder above;
 *  - after a sync that failed, the bytes are forgotten, and the next one that succeeds secures
 *    nothing of them.
 *
 * The first variants are the plain ones (enum fake_variant), all others are drawn from their
 * number. `fake_files_each_crash` carries out a piece of work once for every call that changes the
 * disk, cut off before it, and shows every variant of what is left. */
#ifndef TESTS_SUPPORT_FAKE_FILES_H
#define TESTS_SUPPORT_FAKE_FILES_H

#include "base/assert.h"
#include "base/rng.h"
#include "os/file_sys.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum fake_call {
    FAKE_OPEN_READ,
    FAKE_OPEN_NEW,
    FAKE_OPEN_FOLDER,
    FAKE_CLOSE,
    FAKE_PREAD,
    FAKE_WRITE,
    FAKE_FSYNC,
    FAKE_FSTAT,
    FAKE_LSTAT,
    FAKE_RENAME,
    FAKE_RENAME_NEW,
    FAKE_LINK,
    FAKE_UNLINK,
    FAKE_MKDIR,
    FAKE_RMDIR,
    FAKE_READ_FOLDER,
    FAKE_CALLS
};

enum fake_variant {
    FAKE_ALL_LOST,      /* nothing that was not synced */
    FAKE_ALL_KEPT,      /* as if all of it had been */
    FAKE_NAMES_ONLY,    /* files are there and empty */
    FAKE_NAMES_ZEROS,   /* … and full of zeros */
    FAKE_NAMES_GARBAGE, /* … and full of garbage */
    FAKE_BYTES_ONLY,    /* content kept, names as they were synced */
    FAKE_DRAWN          /* from here on */
};

enum { FAKE_FDS = 256, FAKE_NAME = 256, FAKE_NEVER = -1 };

struct fake_entry {
    char name[FAKE_NAME];
    int node;
};

struct fake_entries {
    struct fake_entry *at;
    size_t count, capacity;
};

/* One change of a folder: `name` stands for `node`, or for nothing if that is -1; `gone` (or "")
 * stands for nothing afterwards. */
struct fake_change {
    char name[FAKE_NAME], gone[FAKE_NAME];
    int node;
};

struct fake_node {
    bool folder, forgotten; /* forgotten: a sync failed */
    int64_t modified_s;
    unsigned char *bytes; /* a file's content; the first `safe` bytes are synced */
    size_t count, capacity, safe;
    struct fake_entries entries, safe_entries; /* a folder's */
    struct fake_change *changes;               /* since its sync */
    size_t change_count, change_capacity;
};

struct fake_fd {
    int node; /* -1: free */
};

struct fake_files {
    struct rf__file_sys sys;
    pthread_mutex_t mutex;
    struct fake_node *nodes; /* the first is "/" */
    int node_count;
    size_t node_capacity;
    struct fake_fd fds[FAKE_FDS];

    /* Set by the test. Counts begin with 0. */
    long fail_at;        /* this call fails with fail_errno; FAKE_NEVER */
    unsigned fail_kinds; /* and all calls of these kinds, as 1 << FAKE_… */
    int fail_errno;
    bool answer_lost;    /* what fails was done none the less */
    long power_off_at;   /* from this changing call on nothing is done and all fails */
    size_t write_most;   /* bytes that one write takes at most; 0: all */
    int interrupt_every; /* each n-th open, read, write and mkdir is interrupted; 0: none */
    uint64_t room;       /* bytes of all files together */
    bool no_rename_new, no_link;
    int64_t wall_s;
    struct rf__file_maker self;
    int64_t living_pid; /* another process of this host */

    /* Told to the test. */
    long calls, changes; /* all, and those that change or sync something */
    long count[FAKE_CALLS];
    int open_fds;
    uint64_t used;
    size_t largest_write;
    long interruptible;
};

/* ---- nodes and names ---- */

static inline void *fake_more(void *block, size_t need, size_t *capacity, size_t bytes) {
    if (need > *capacity) {
        *capacity = need > 2 * *capacity ? need : 2 * *capacity;
        block = realloc(block, *capacity * bytes);
        RF_ASSERT(block);
    }
    return block;
}

static inline int fake_node_new(struct fake_files *files, bool folder) {
    files->nodes = fake_more(files->nodes, (size_t)files->node_count + 1, &files->node_capacity,
                             sizeof *files->nodes);
    files->nodes[files->node_count] =
        (struct fake_node){.folder = folder, .modified_s = files->wall_s};
    return files->node_count++;
}

static inline int fake_find(const struct fake_entries *entries, const char *name) {
    for (size_t i = 0; i < entries->count; i++) {
        if (!strcmp(entries->at[i].name, name)) {
            return (int)i;
        }
    }
    return -1;
}

static inline void fake_entry_put(struct fake_entries *entries, const char *name, int node) {
    int at = fake_find(entries, name);
    if (at >= 0 && node < 0) {
        entries->at[at] = entries->at[--entries->count];
    } else if (at >= 0) {
        entries->at[at].node = node;
    } else if (node >= 0) {
        entries->at =
            fake_more(entries->at, entries->count + 1, &entries->capacity, sizeof *entries->at);
        struct fake_entry *entry = &entries->at[entries->count++];
        strcpy(entry->name, name);
        entry->node = node;
    }
}

static inline void fake_entries_copy(struct fake_entries *to, const struct fake_entries *from) {
    to->at = fake_more(to->at, from->count, &to->capacity, sizeof *to->at);
    to->count = from->count;
    if (from->count) {
        memcpy(to->at, from->at, from->count * sizeof *to->at);
    }
}

static inline void fake_change_apply(struct fake_entries *entries,
                                     const struct fake_change *change) {
    if (*change->gone) {
        fake_entry_put(entries, change->gone, -1);
    }
    fake_entry_put(entries, change->name, change->node);
}

static inline void fake_change(struct fake_files *files, int folder, const char *name, int node,
                               const char *gone) {
    struct fake_node *in = &files->nodes[folder];
    in->changes =
        fake_more(in->changes, in->change_count + 1, &in->change_capacity, sizeof *in->changes);
    struct fake_change *change = &in->changes[in->change_count++];
    strcpy(change->name, name);
    strcpy(change->gone, gone);
    change->node = node;
    fake_change_apply(&in->entries, change);
    in->modified_s = files->wall_s;
}

/* The folder that the path's last part is in, and that part; or a negative errno. */
static inline int fake_walk(struct fake_files *files, const char *path, char name[FAKE_NAME]) {
    int node = 0;
    RF_ASSERT(*path == '/');
    name[0] = 0;
    while (*path) {
        while (*path == '/') {
            path++;
        }
        size_t length = strcspn(path, "/");
        if (!length) {
            break;
        }
        if (*name) {
            int at = fake_find(&files->nodes[node].entries, name);
            if (at < 0) {
                return -ENOENT;
            }
            node = files->nodes[node].entries.at[at].node;
            if (!files->nodes[node].folder) {
                return -ENOTDIR;
            }
        }
        if (length >= FAKE_NAME) {
            return -ENAMETOOLONG;
        }
        memcpy(name, path, length);
        name[length] = 0;
        RF_ASSERT(strcmp(name, "..") != 0);
        path += length;
    }
    return node;
}

/* The node at the path, or a negative errno. */
static inline int fake_at(struct fake_files *files, const char *path) {
    char name[FAKE_NAME];
    int folder = fake_walk(files, path, name);
    if (folder < 0 || !*name) {
        return folder;
    }
    int at = fake_find(&files->nodes[folder].entries, name);
    return at < 0 ? -ENOENT : files->nodes[folder].entries.at[at].node;
}

/* ---- before each call ---- */

static inline struct fake_files *fake_files_of(struct rf__file_sys *sys) {
    return (struct fake_files *)(void *)sys;
}

static inline bool fake_changes(enum fake_call call) {
    return call == FAKE_OPEN_NEW || call == FAKE_WRITE || call == FAKE_FSYNC ||
           call == FAKE_RENAME || call == FAKE_RENAME_NEW || call == FAKE_LINK ||
           call == FAKE_UNLINK || call == FAKE_MKDIR || call == FAKE_RMDIR;
}

/* Counts the call and takes the lock. 0: go on; else the errno that is to be answered, `*done`
 * telling whether to carry it out all the same. */
static inline int fake_begin(struct fake_files *files, enum fake_call call, bool *done) {
    int failed = 0;
    pthread_mutex_lock(&files->mutex);
    long number = files->calls++;
    long change = fake_changes(call) ? files->changes++ : files->changes - 1;
    files->count[call]++;
    *done = true;
    if (files->power_off_at >= 0 && change >= files->power_off_at) {
        *done = false;
        return EIO;
    }
    if (number == files->fail_at || (files->fail_kinds & (1u << call))) {
        failed = files->fail_errno;
        *done = files->answer_lost;
    }
    bool may_wait = call == FAKE_OPEN_READ || call == FAKE_OPEN_NEW || call == FAKE_PREAD ||
                    call == FAKE_WRITE || call == FAKE_MKDIR || call == FAKE_OPEN_FOLDER;
    if (!failed && may_wait && files->interrupt_every &&
        ++files->interruptible % files->interrupt_every == 0) {
        failed = EINTR;
        *done = false;
    }
    return failed;
}

static inline int fake_end(struct fake_files *files, int failed, int got) {
    pthread_mutex_unlock(&files->mutex);
    return failed ? -failed : got;
}

/* ---- the calls ---- */

static inline int fake_fd_new(struct fake_files *files, int node) {
    for (int fd = 0; fd < FAKE_FDS; fd++) {
        if (files->fds[fd].node < 0) {
            files->fds[fd].node = node;
            files->open_fds++;
            return fd;
        }
    }
    return -EMFILE;
}

static inline int fake_open(struct rf__file_sys *sys, const char *path, enum fake_call call) {
    struct fake_files *files = fake_files_of(sys);
    bool done;
    int failed = fake_begin(files, call, &done);
    int got = -EIO;
    if (!failed) {
        got = fake_at(files, path);
        if (got >= 0 && call == FAKE_OPEN_FOLDER && !files->nodes[got].folder) {
            got = -ENOTDIR;
        }
        got = got < 0 ? got : fake_fd_new(files, got);
    }
    return fake_end(files, failed, got);
}

static inline int fake_open_read(struct rf__file_sys *sys, const char *path) {
    return fake_open(sys, path, FAKE_OPEN_READ);
}

static inline int fake_open_folder(struct rf__file_sys *sys, const char *path) {
    return fake_open(sys, path, FAKE_OPEN_FOLDER);
}

static inline int fake_open_new(struct rf__file_sys *sys, const char *path) {
    struct fake_files *files = fake_files_of(sys);
    char name[FAKE_NAME];
    bool done;
    int failed = fake_begin(files, FAKE_OPEN_NEW, &done);
    int got = -EIO;
    if (done) {
        int folder = got = fake_walk(files, path, name);
        if (folder >= 0 && fake_at(files, path) != -ENOENT) {
            got = -EEXIST;
        } else if (folder >= 0) {
            int node = fake_node_new(files, false);
            fake_change(files, folder, name, node, "");
            got = failed ? 0 : fake_fd_new(files, node);
        }
    }
    return fake_end(files, failed, got);
}

static inline int fake_close(struct rf__file_sys *sys, int fd) {
    struct fake_files *files = fake_files_of(sys);
    bool done;
    int failed = fake_begin(files, FAKE_CLOSE, &done);
    RF_ASSERT(fd >= 0 && fd < FAKE_FDS && files->fds[fd].node >= 0);
    files->fds[fd].node = -1;
    files->open_fds--;
    return fake_end(files, failed, 0);
}

static inline ssize_t fake_pread(struct rf__file_sys *sys, int fd, void *buffer, size_t bytes,
                                 uint64_t offset) {
    struct fake_files *files = fake_files_of(sys);
    bool done;
    int failed = fake_begin(files, FAKE_PREAD, &done);
    const struct fake_node *node = &files->nodes[files->fds[fd].node];
    size_t got = 0;
    if (!failed && offset < node->count) {
        got = node->count - (size_t)offset < bytes ? node->count - (size_t)offset : bytes;
        memcpy(buffer, node->bytes + offset, got);
    }
    int code = fake_end(files, failed, 0);
    return code ? code : (ssize_t)got;
}

static inline ssize_t fake_write(struct rf__file_sys *sys, int fd, const void *bytes,
                                 size_t count) {
    struct fake_files *files = fake_files_of(sys);
    bool done;
    int failed = fake_begin(files, FAKE_WRITE, &done);
    if (files->largest_write < count) {
        files->largest_write = count;
    }
    if (files->write_most && count > files->write_most) {
        count = files->write_most;
    }
    if (!failed && count && files->used >= files->room) {
        failed = ENOSPC;
    } else if (count > files->room - files->used) {
        count = (size_t)(files->room - files->used);
    }
    if (!failed) {
        struct fake_node *node = &files->nodes[files->fds[fd].node];
        node->bytes = fake_more(node->bytes, node->count + count, &node->capacity, 1);
        memcpy(node->bytes + node->count, bytes, count);
        node->count += count;
        node->modified_s = files->wall_s;
        files->used += count;
    }
    int code = fake_end(files, failed, 0);
    return code ? code : (ssize_t)count;
}

static inline int fake_fsync(struct rf__file_sys *sys, int fd) {
    struct fake_files *files = fake_files_of(sys);
    bool done;
    int failed = fake_begin(files, FAKE_FSYNC, &done);
    struct fake_node *node = &files->nodes[files->fds[fd].node];
    if (!done && failed) {
        node->forgotten = !node->folder;
    } else if (node->folder) {
        fake_entries_copy(&node->safe_entries, &node->entries);
        node->change_count = 0;
    } else if (!node->forgotten) {
        node->safe = node->count;
    }
    return fake_end(files, failed, 0);
}

static inline void fake_status(const struct fake_files *files, int node,
                               struct rf__file_status *out) {
    const struct fake_node *at = &files->nodes[node];
    *out = (struct rf__file_status){.kind = at->folder ? RF__FILE_FOLDER : RF__FILE_REGULAR,
                                    .bytes = at->count,
                                    .modified_s = at->modified_s,
                                    .device = 1,
                                    .inode = (uint64_t)node + 1};
}

static inline int fake_fstat(struct rf__file_sys *sys, int fd, struct rf__file_status *out) {
    struct fake_files *files = fake_files_of(sys);
    bool done;
    int failed = fake_begin(files, FAKE_FSTAT, &done);
    fake_status(files, files->fds[fd].node, out);
    return fake_end(files, failed, 0);
}

static inline int fake_lstat(struct rf__file_sys *sys, const char *path,
                             struct rf__file_status *out) {
    struct fake_files *files = fake_files_of(sys);
    bool done;
    int failed = fake_begin(files, FAKE_LSTAT, &done);
    int node = fake_at(files, path);
    if (node >= 0) {
        fake_status(files, node, out);
    }
    return fake_end(files, failed, node < 0 ? node : 0);
}

/* Rename, rename_new and link, all within one folder. */
static inline int fake_move(struct rf__file_sys *sys, const char *from, const char *to,
                            enum fake_call call) {
    struct fake_files *files = fake_files_of(sys);
    char old_name[FAKE_NAME], new_name[FAKE_NAME];
    bool done;
    int failed = fake_begin(files, call, &done);
    int got = 0;
    if (!done) {
        goto out;
    }
    if ((call == FAKE_RENAME_NEW && files->no_rename_new) ||
        (call == FAKE_LINK && files->no_link)) {
        got = call == FAKE_LINK ? -EPERM : -EINVAL;
        goto out;
    }
    int folder = fake_walk(files, from, old_name), into = fake_walk(files, to, new_name);
    int node = fake_at(files, from), there = into < 0 ? into : fake_at(files, to);
    if (folder < 0 || node < 0 || into < 0) {
        got = folder < 0 ? folder : node < 0 ? node : into;
        goto out;
    }
    RF_ASSERT(folder == into && !files->nodes[node].folder);
    if (there >= 0 && call != FAKE_RENAME) {
        got = -EEXIST;
    } else if (there >= 0 && files->nodes[there].folder) {
        got = -EISDIR;
    } else {
        fake_change(files, folder, new_name, node, call == FAKE_LINK ? "" : old_name);
    }
out:
    return fake_end(files, failed, got);
}

static inline int fake_rename(struct rf__file_sys *sys, const char *from, const char *to) {
    return fake_move(sys, from, to, FAKE_RENAME);
}

static inline int fake_rename_new(struct rf__file_sys *sys, const char *from, const char *to) {
    return fake_move(sys, from, to, FAKE_RENAME_NEW);
}

static inline int fake_link(struct rf__file_sys *sys, const char *from, const char *to) {
    return fake_move(sys, from, to, FAKE_LINK);
}

static inline int fake_unlink(struct rf__file_sys *sys, const char *path) {
    struct fake_files *files = fake_files_of(sys);
    char name[FAKE_NAME];
    bool done;
    int failed = fake_begin(files, FAKE_UNLINK, &done);
    int got = 0;
    if (done) {
        int folder = fake_walk(files, path, name);
        int node = got = fake_at(files, path);
        if (node >= 0 && files->nodes[node].folder) {
            got = -EISDIR;
        } else if (node >= 0) {
            fake_change(files, folder, name, -1, "");
            got = 0;
        }
    }
    return fake_end(files, failed, got);
}

static inline int fake_mkdir(struct rf__file_sys *sys, const char *path) {
    struct fake_files *files = fake_files_of(sys);
    char name[FAKE_NAME];
    bool done;
    int failed = fake_begin(files, FAKE_MKDIR, &done);
    int got = 0;
    if (done) {
        int folder = got = fake_walk(files, path, name);
        if (folder >= 0 && fake_at(files, path) != -ENOENT) {
            got = -EEXIST;
        } else if (folder >= 0) {
            fake_change(files, folder, name, fake_node_new(files, true), "");
            got = 0;
        }
    }
    return fake_end(files, failed, got);
}

static inline int fake_rmdir(struct rf__file_sys *sys, const char *path) {
    struct fake_files *files = fake_files_of(sys);
    char name[FAKE_NAME];
    bool done;
    int failed = fake_begin(files, FAKE_RMDIR, &done);
    int got = 0;
    if (done) {
        int folder = fake_walk(files, path, name);
        int node = got = fake_at(files, path);
        if (node >= 0 && !files->nodes[node].folder) {
            got = -ENOTDIR;
        } else if (node >= 0 && files->nodes[node].entries.count) {
            got = -ENOTEMPTY;
        } else if (node >= 0) {
            fake_change(files, folder, name, -1, "");
            got = 0;
        }
    }
    return fake_end(files, failed, got);
}

static inline int fake_read_folder(struct rf__file_sys *sys, const char *path, bool follow,
                                   int (*each)(void *context, const char *name,
                                               enum rf__file_kind kind),
                                   void *context) {
    struct fake_files *files = fake_files_of(sys);
    bool done;
    int failed = fake_begin(files, FAKE_READ_FOLDER, &done);
    int got = fake_at(files, path);
    (void)follow;
    if (got >= 0 && !files->nodes[got].folder) {
        got = -ENOTDIR;
    }
    if (!failed && got >= 0) {
        const struct fake_entries *entries = &files->nodes[got].entries;
        got = 0;
        for (size_t i = entries->count; i > 0 && !got; i--) {
            bool folder = files->nodes[entries->at[i - 1].node].folder;
            got =
                each(context, entries->at[i - 1].name, folder ? RF__FILE_FOLDER : RF__FILE_REGULAR);
        }
    }
    return fake_end(files, failed, got);
}

static inline int fake_current_folder(struct rf__file_sys *sys, char *out, size_t room) {
    (void)sys;
    RF_ASSERT(room > 5);
    strcpy(out, "/here");
    return 0;
}

static inline int64_t fake_wall_s(struct rf__file_sys *sys) {
    return fake_files_of(sys)->wall_s;
}

static inline void fake_self(struct rf__file_sys *sys, struct rf__file_maker *out) {
    *out = fake_files_of(sys)->self;
}

static inline bool fake_lives(struct rf__file_sys *sys, const struct rf__file_maker *maker) {
    const struct fake_files *files = fake_files_of(sys);
    return (maker->pid == files->self.pid && maker->started == files->self.started) ||
           maker->pid == files->living_pid;
}

/* ---- what tests use ---- */

/* An empty disk with a clock that stands still. Fails hard without memory. */
static inline struct fake_files *fake_files_create(void) {
    struct fake_files *files = calloc(1, sizeof *files);
    RF_ASSERT(files);
    files->sys = (struct rf__file_sys){.open_read = fake_open_read,
                                       .open_new = fake_open_new,
                                       .open_folder = fake_open_folder,
                                       .close = fake_close,
                                       .pread = fake_pread,
                                       .write = fake_write,
                                       .fsync = fake_fsync,
                                       .fstat = fake_fstat,
                                       .lstat = fake_lstat,
                                       .rename = fake_rename,
                                       .rename_new = fake_rename_new,
                                       .link = fake_link,
                                       .unlink = fake_unlink,
                                       .mkdir = fake_mkdir,
                                       .rmdir = fake_rmdir,
                                       .read_folder = fake_read_folder,
                                       .current_folder = fake_current_folder,
                                       .wall_s = fake_wall_s,
                                       .self = fake_self,
                                       .lives = fake_lives};
    pthread_mutex_init(&files->mutex, NULL);
    for (int i = 0; i < FAKE_FDS; i++) {
        files->fds[i].node = -1;
    }
    files->fail_at = files->power_off_at = FAKE_NEVER;
    files->fail_errno = EIO;
    files->room = UINT64_MAX;
    files->wall_s = 1000000;
    files->self = (struct rf__file_maker){.host = 77, .pid = 1234, .started = 5};
    fake_node_new(files, true);
    return files;
}

static inline void fake_files_destroy(struct fake_files *files) {
    for (int i = 0; files && i < files->node_count; i++) {
        free(files->nodes[i].bytes);
        free(files->nodes[i].entries.at);
        free(files->nodes[i].safe_entries.at);
        free(files->nodes[i].changes);
    }
    if (files) {
        pthread_mutex_destroy(&files->mutex);
        free(files->nodes);
        free(files);
    }
}

/* What may be left of a file's content: the synced part, and something of the rest. */
static inline void fake_node_tear(struct fake_node *to, const struct fake_node *from,
                                  unsigned variant, struct rf__rng *rng) {
    size_t rest = from->count - from->safe, kept = 0, filled = 0;
    bool garbage = false;

    switch (variant) {
    case FAKE_ALL_LOST:
    case FAKE_NAMES_ONLY:
        break;
    case FAKE_ALL_KEPT:
    case FAKE_BYTES_ONLY:
        kept = rest;
        break;
    case FAKE_NAMES_ZEROS:
    case FAKE_NAMES_GARBAGE:
        filled = rest;
        garbage = variant == FAKE_NAMES_GARBAGE;
        break;
    default:
        kept = (size_t)rf__rng_below(rng, rest + 1);
        filled = (size_t)rf__rng_below(rng, rest - kept + 1);
        garbage = rf__rng_below(rng, 2);
        filled = rf__rng_below(rng, 3) ? filled : 0;
        kept = rf__rng_below(rng, 4) ? kept : rest;
        filled = kept == rest ? 0 : filled;
        break;
    }
    to->count = to->safe = from->safe + kept + filled;
    to->bytes = fake_more(to->bytes, to->count, &to->capacity, 1);
    if (from->safe + kept) {
        memcpy(to->bytes, from->bytes, from->safe + kept);
    }
    for (size_t i = 0; i < filled; i++) {
        to->bytes[from->safe + kept + i] = garbage ? (unsigned char)rf__rng_u64(rng) : 0;
    }
}

static inline bool fake_change_kept(unsigned variant, struct rf__rng *rng) {
    if (variant == FAKE_ALL_LOST || variant == FAKE_BYTES_ONLY) {
        return false;
    }
    return variant < FAKE_DRAWN || rf__rng_below(rng, 2);
}

/* The disk as it may look after the power went: a new one, on which all is synced and no process
 * lives. The old one stays as it is. */
static inline struct fake_files *fake_files_crash(const struct fake_files *files,
                                                  unsigned variant) {
    struct fake_files *after = fake_files_create();
    struct rf__rng rng = rf__rng(variant, (uint64_t)files->changes, 17);

    after->wall_s = files->wall_s;
    after->self = files->self;
    after->self.host++;
    while (after->node_count < files->node_count) {
        fake_node_new(after, false);
    }
    for (int i = 0; i < files->node_count; i++) {
        const struct fake_node *from = &files->nodes[i];
        struct fake_node *to = &after->nodes[i];
        *to = (struct fake_node){.folder = from->folder, .modified_s = from->modified_s};
        if (!from->folder) {
            fake_node_tear(to, from, variant, &rng);
            continue;
        }
        fake_entries_copy(&to->entries, &from->safe_entries);
        for (size_t c = 0; c < from->change_count; c++) {
            if (fake_change_kept(variant, &rng)) {
                fake_change_apply(&to->entries, &from->changes[c]);
            }
        }
        fake_entries_copy(&to->safe_entries, &to->entries);
    }
    return after;
}

/* All that was done so far is secured, as by `sync`. */
static inline void fake_files_settle(struct fake_files *files) {
    for (int i = 0; i < files->node_count; i++) {
        struct fake_node *node = &files->nodes[i];
        node->safe = node->count;
        if (node->folder) {
            fake_entries_copy(&node->safe_entries, &node->entries);
            node->change_count = 0;
        }
    }
}

/* A file's content, borrowed; NULL where there is none. Also for spoiling it. */
static inline unsigned char *fake_files_content(struct fake_files *files, const char *path,
                                                size_t *bytes) {
    static unsigned char nothing[1];
    int node = fake_at(files, path);
    if (node < 0 || files->nodes[node].folder) {
        return NULL;
    }
    *bytes = files->nodes[node].count;
    return *bytes ? files->nodes[node].bytes : nothing;
}

/* Names in a folder, or a negative errno. */
static inline long fake_files_entries(struct fake_files *files, const char *path) {
    int node = fake_at(files, path);
    return node < 0 ? node : (long)files->nodes[node].entries.count;
}

/* A piece of work and what must hold whenever the power goes in the middle of it. */
struct fake_crash_plan {
    /* What comes before, on an empty disk; also sets the context back. May be NULL. */
    void (*prepare)(struct fake_files *disk, void *context);

    /* Told to stop by errors alone. It notes in the context how far it got. */
    void (*work)(struct fake_files *disk, void *context);

    /* Is given the disk after the crash, to read and to write. `at` and `variant` are for the
     * report: the changing call before which the power went, -1 where it went after the work. */
    void (*check)(struct fake_files *after, long at, unsigned variant, void *context);
    void *context;
    unsigned variants;
};

/* How many disks `check` was shown. */
static inline long fake_files_each_crash(const struct fake_crash_plan *plan) {
    long shown = 0;
    bool whole = false;

    for (long at = 0; !whole; at++) {
        struct fake_files *disk = fake_files_create();
        if (plan->prepare) {
            plan->prepare(disk, plan->context);
        }
        long first = disk->changes;
        disk->power_off_at = first + at;
        plan->work(disk, plan->context);
        whole = disk->changes <= first + at;
        for (unsigned variant = 0; variant < plan->variants; variant++) {
            struct fake_files *after = fake_files_crash(disk, variant);
            plan->check(after, whole ? -1 : at, variant, plan->context);
            fake_files_destroy(after);
            shown++;
        }
        fake_files_destroy(disk);
    }
    return shown;
}

#endif
