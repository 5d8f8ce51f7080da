/* Arenas. A memory file needs no /dev/shm and vanishes with its last user, however that ends. The
 * file is sealed against shrinking, so a peer that maps it can never be killed by the owner's
 * truncation; because offsets are never used twice, a peer's stale view of a freed block is only
 * stale, never somebody else's data. In a renewed arena the offsets start over: views belong to
 * one file. */
#include "os/heap.h"

#include "base/assert.h"
#include "base/mem.h"
#include "base/status.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008u /* Linux 6.3 */
#endif

enum { HUGE = 2 << 20 };

static uint64_t round_up(uint64_t value, uint64_t align) {
    return (value + align - 1) / align * align;
}

void *rf__map(int fd, uint64_t offset, size_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)offset);
    return memory == MAP_FAILED ? NULL : memory;
}

/* A sealed memory file. */
static int make_file(int *out, struct rf_error *err) {
    int fd = memfd_create("ringfold", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
    if (fd < 0 && errno == EINVAL) {
        fd = memfd_create("ringfold", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    }
    if (fd < 0) {
        return rf__fail(err, errno == ENOMEM ? RF_ENOMEM : RF_EIO, errno, "making a memory file");
    }
    if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK)) {
        int rc = rf__fail(err, RF_EIO, errno, "sealing the memory file");
        close(fd);
        return rc;
    }
    *out = fd;
    return 0;
}

int rf__arena_create(struct rf__arena *arena, struct rf_error *err) {
    *arena = (struct rf__arena){.fd = -1};
    return make_file(&arena->fd, err);
}

int rf__arena_renew(struct rf__arena *arena, struct rf_error *err) {
    int fd;
    int rc = make_file(&fd, err);

    if (rc) {
        return rc;
    }
    close(arena->fd);
    arena->fd = fd;
    arena->end = 0;
    for (size_t i = 0; i < arena->count; i++) {
        arena->blocks[i].left = true;
    }
    return 0;
}

void rf__arena_destroy(struct rf__arena *arena) {
    for (size_t i = 0; i < arena->count; i++) {
        munmap(arena->blocks[i].memory, arena->blocks[i].bytes);
    }
    rf__free(arena->blocks);
    if (arena->fd >= 0) {
        close(arena->fd);
    }
    *arena = (struct rf__arena){.fd = -1};
}

int rf__arena_extend(struct rf__arena *arena, uint64_t bytes, uint64_t align, uint64_t *offset,
                     struct rf_error *err) {
    uint64_t at = round_up(arena->end, align);

    if (bytes > INT64_MAX / 4 || at > INT64_MAX / 4) {
        return rf__fail(err, RF_ENOMEM, 0, "%llu bytes of shared memory",
                        (unsigned long long)bytes);
    }
    uint64_t end = round_up(at + bytes, RF__ARENA_ALIGN);
    if (ftruncate(arena->fd, (off_t)end)) {
        return rf__fail(err, RF_ENOMEM, errno, "growing shared memory to %llu bytes",
                        (unsigned long long)end);
    }
    arena->end = end;
    *offset = at;
    return 0;
}

void rf__arena_punch(struct rf__arena *arena, uint64_t offset, uint64_t bytes) {
    if (bytes) {
        /* Where it fails the memory is kept until the end: nothing to report. */
        (void)!fallocate(arena->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset,
                         (off_t)bytes);
    }
}

/* Where a block may lie, so that a large one can have huge pages. */
static uint64_t place_align(size_t bytes) {
    return bytes >= HUGE ? HUGE : RF__ARENA_ALIGN;
}

static void want_huge_pages(char *memory, size_t bytes) {
    if (bytes >= HUGE) {
        (void)madvise(memory, bytes, MADV_HUGEPAGE); /* where the host allows it */
    }
}

/* The number of blocks that start at or below the address. */
static size_t blocks_below(const struct rf__arena *arena, const char *memory) {
    size_t low = 0, high = arena->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if ((uintptr_t)arena->blocks[middle].memory <= (uintptr_t)memory) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

int rf__arena_alloc(struct rf__arena *arena, size_t bytes, void **out, struct rf_error *err) {
    uint64_t offset;

    if (arena->count == RF__ARENA_BLOCKS) {
        return rf__fail(err, RF_ELIMIT, 0, "%d blocks of shared memory are in use",
                        RF__ARENA_BLOCKS);
    }
    if (bytes > SIZE_MAX / 4) {
        return rf__fail(err, RF_ENOMEM, 0, "%zu bytes of shared memory", bytes);
    }
    if (arena->count == arena->room) {
        size_t room = arena->room ? 2 * arena->room : 16;
        void *grown = rf__grow(arena->blocks, room, sizeof *arena->blocks);
        if (!grown) {
            return rf__fail(err, RF_ENOMEM, 0, "the list of shared blocks");
        }
        arena->blocks = grown;
        arena->room = room;
    }
    size_t mapped = (size_t)round_up(bytes ? bytes : 1, RF__ARENA_ALIGN);
    int rc = rf__arena_extend(arena, mapped, place_align(mapped), &offset, err);
    if (rc) {
        return rc;
    }
    char *memory = rf__map(arena->fd, offset, mapped);
    if (!memory) {
        return rf__fail(err, RF_ENOMEM, errno, "mapping %zu bytes of shared memory", mapped);
    }
    want_huge_pages(memory, mapped);
    size_t at = blocks_below(arena, memory);
    memmove(arena->blocks + at + 1, arena->blocks + at,
            (arena->count - at) * sizeof *arena->blocks);
    arena->blocks[at] = (struct rf__block){memory, offset, mapped, false};
    arena->count++;
    *out = memory;
    return 0;
}

void rf__arena_release(struct rf__arena *arena, void *memory) {
    if (!memory) {
        return;
    }
    size_t below = blocks_below(arena, memory);
    RF_ASSERT(below && arena->blocks[below - 1].memory == memory);
    struct rf__block block = arena->blocks[below - 1];
    memmove(arena->blocks + below - 1, arena->blocks + below,
            (arena->count - below) * sizeof *arena->blocks);
    arena->count--;
    if (block.left) {
        (void)madvise(block.memory, block.bytes, MADV_REMOVE);
    } else {
        rf__arena_punch(arena, block.offset, block.bytes);
    }
    munmap(block.memory, block.bytes);
}

/* The file's bytes at the offset become those of the memory. */
static int fill(int fd, uint64_t offset, const char *memory, size_t bytes) {
    for (size_t done = 0; done < bytes;) {
        ssize_t n = pwrite(fd, memory + done, bytes - done, (off_t)(offset + done));
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            return n < 0 ? errno : EIO;
        }
        done += (size_t)n;
    }
    return 0;
}

/* Moves a block into the arena's file; its address and its contents stay. */
static int move_block(struct rf__arena *arena, struct rf__block *block, struct rf_error *err) {
    uint64_t offset;
    int prot = PROT_READ | PROT_WRITE;
    int rc = rf__arena_extend(arena, block->bytes, place_align(block->bytes), &offset, err);

    if (rc) {
        return rc;
    }
    int failed = fill(arena->fd, offset, block->memory, block->bytes);
    if (failed) {
        rf__arena_punch(arena, offset, block->bytes);
        return rf__fail(err, RF_ENOMEM, failed, "moving %zu bytes of shared memory", block->bytes);
    }
    /* A second view of the old place: a size of 0 copies a shared mapping. With it the pages are
     * given back although others still map them, and the old place can be restored. */
    char *old = mremap(block->memory, 0, block->bytes, MREMAP_MAYMOVE);
    char *moved =
        mmap(block->memory, block->bytes, prot, MAP_SHARED | MAP_FIXED, arena->fd, (off_t)offset);
    if (moved == MAP_FAILED) {
        int saved = errno;
        if (old != MAP_FAILED) {
            (void)!mremap(old, block->bytes, block->bytes, MREMAP_MAYMOVE | MREMAP_FIXED,
                          block->memory);
        }
        rf__arena_punch(arena, offset, block->bytes);
        return rf__fail(err, RF_ENOMEM, saved, "mapping %zu bytes of shared memory anew",
                        block->bytes);
    }
    if (old != MAP_FAILED) {
        (void)madvise(old, block->bytes, MADV_REMOVE);
        munmap(old, block->bytes);
    }
    want_huge_pages(block->memory, block->bytes);
    block->offset = offset;
    block->left = false;
    return 0;
}

int rf__arena_settle(struct rf__arena *arena, struct rf_error *err) {
    int rc = 0;

    for (size_t i = 0; !rc && i < arena->count; i++) {
        if (arena->blocks[i].left) {
            rc = move_block(arena, &arena->blocks[i], err);
        }
    }
    return rc;
}

static bool holds(const struct rf__block *block, const void *memory, size_t bytes) {
    uintptr_t start = (uintptr_t)block->memory, at = (uintptr_t)memory;
    return at >= start && at - start <= block->bytes && bytes <= block->bytes - (at - start);
}

int rf__arena_find(struct rf__arena *arena, const void *memory, size_t bytes,
                   uint64_t *block_offset, uint64_t *block_bytes, uint64_t *inside) {
    size_t at = arena->last;

    if (at >= arena->count || !holds(&arena->blocks[at], memory, bytes)) {
        at = blocks_below(arena, memory);
        if (!at-- || !holds(&arena->blocks[at], memory, bytes)) {
            return RF_ENOTFOUND;
        }
        arena->last = at;
    }
    if (arena->blocks[at].left) {
        return RF_ENOTFOUND;
    }
    *block_offset = arena->blocks[at].offset;
    *block_bytes = arena->blocks[at].bytes;
    *inside = (uintptr_t)memory - (uintptr_t)arena->blocks[at].memory;
    return 0;
}

void *rf__arena_at(struct rf__arena *arena, uint64_t offset, uint64_t bytes) {
    for (size_t i = 0; i < arena->count; i++) {
        const struct rf__block *block = &arena->blocks[i];
        if (!block->left && block->offset == offset && bytes <= block->bytes) {
            return block->memory;
        }
    }
    return NULL;
}

bool rf__arena_check(int fd, uint64_t *bytes) {
    struct stat file;
    int seals = fcntl(fd, F_GET_SEALS);

    if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(fd, &file) || file.st_size < 0) {
        return false;
    }
    *bytes = (uint64_t)file.st_size;
    return true;
}

static struct rf__view *oldest_view(struct rf__views *views) {
    struct rf__view *oldest = views->views;
    for (size_t i = 1; i < views->count; i++) {
        oldest = views->views[i].used < oldest->used ? &views->views[i] : oldest;
    }
    return oldest;
}

/* A free entry of the cache, growing it up to its limit and then giving up the view that was not
 * used for longest. */
static struct rf__view *new_view(struct rf__views *views) {
    if (views->count == RF__ARENA_VIEWS) {
        struct rf__view *oldest = oldest_view(views);
        munmap(oldest->block.memory, oldest->block.bytes);
        *oldest = views->views[--views->count];
    }
    if (views->count == views->room) {
        size_t room = views->room ? 2 * views->room : 16;
        void *grown = rf__grow(views->views, room, sizeof *views->views);
        if (!grown) {
            return NULL;
        }
        views->views = grown;
        views->room = room;
    }
    return &views->views[views->count];
}

void *rf__views_map(struct rf__views *views, uint64_t offset, uint64_t bytes) {
    uint64_t length;

    for (size_t i = 0; i < views->count; i++) {
        struct rf__view *view = &views->views[i];
        if (view->block.offset == offset && bytes <= view->block.bytes) {
            view->used = ++views->clock;
            return view->block.memory;
        }
    }
    if (!bytes || offset % RF__ARENA_ALIGN || !rf__arena_check(views->fd, &length) ||
        offset > length || bytes > length - offset) {
        return NULL;
    }
    struct rf__view *view = new_view(views);
    char *memory = view ? rf__map(views->fd, offset, (size_t)bytes) : NULL;
    if (!memory) {
        return NULL;
    }
    *view = (struct rf__view){{memory, offset, (size_t)bytes, false}, ++views->clock};
    views->count++;
    return memory;
}

void rf__views_destroy(struct rf__views *views) {
    for (size_t i = 0; i < views->count; i++) {
        munmap(views->views[i].block.memory, views->views[i].block.bytes);
    }
    rf__free(views->views);
    if (views->fd >= 0) {
        close(views->fd);
    }
    *views = (struct rf__views){.fd = -1};
}
