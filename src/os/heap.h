/* One worker's shared memory: a sealed memory file ("arena") that only grows, whose offsets are
 * never used twice, and the views of the arenas of its local peers.
 *
 * Who was handed the file can write into it for ever. So an arena can be renewed: it goes on in a
 * fresh file, and its blocks follow when the program does not write into them (settle). */
#ifndef RF_OS_HEAP_H
#define RF_OS_HEAP_H

#include <ringfold/error.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Every offset in an arena is a multiple of this: no page is larger. */
enum { RF__ARENA_ALIGN = 65536, RF__ARENA_BLOCKS = 65536, RF__ARENA_VIEWS = 1024 };

struct rf__block {
    char *memory;
    uint64_t offset;
    size_t bytes; /* as mapped */
    bool left;    /* an own block that still lies in a file of before; its offset is void */
};

struct rf__arena {
    int fd; /* -1: none yet */
    uint64_t end;
    struct rf__block *blocks; /* by address */
    size_t count, room, last; /* last: where find looked last */
};

/* A peer's arena, as much of it as was looked at. */
struct rf__view {
    struct rf__block block;
    uint64_t used; /* when, on the cache's own count */
};

struct rf__views {
    int fd;
    struct rf__view *views;
    size_t count, room;
    uint64_t clock;
};

int rf__arena_create(struct rf__arena *arena, struct rf_error *err);
void rf__arena_destroy(struct rf__arena *arena);

/* Makes room at the end: *offset is its place. */
int rf__arena_extend(struct rf__arena *arena, uint64_t bytes, uint64_t align, uint64_t *offset,
                     struct rf_error *err);

/* Gives the memory of a range back; its offsets stay used. */
void rf__arena_punch(struct rf__arena *arena, uint64_t offset, uint64_t bytes);

/* Goes on in a fresh, empty file. The blocks keep their addresses and contents, but stay in the
 * file of before until rf__arena_settle: till then rf__arena_find and rf__arena_at do not know
 * them. On failure nothing has changed. */
int rf__arena_renew(struct rf__arena *arena, struct rf_error *err);

/* As rf__shared_ops has them. */
int rf__arena_settle(struct rf__arena *arena, struct rf_error *err);
int rf__arena_alloc(struct rf__arena *arena, size_t bytes, void **out, struct rf_error *err);
void rf__arena_release(struct rf__arena *arena, void *memory);
int rf__arena_find(struct rf__arena *arena, const void *memory, size_t bytes,
                   uint64_t *block_offset, uint64_t *block_bytes, uint64_t *inside);

/* The own block at an offset, or NULL. */
void *rf__arena_at(struct rf__arena *arena, uint64_t offset, uint64_t bytes);

/* Whether the descriptor is a memory file that cannot shrink (so that no access to a mapping of it
 * can fault) and how long it is. */
bool rf__arena_check(int fd, uint64_t *bytes);

/* A peer's block, mapped once. The view lives until RF__ARENA_VIEWS others of the same peer were
 * asked for. NULL: it cannot be. */
void *rf__views_map(struct rf__views *views, uint64_t offset, uint64_t bytes);
void rf__views_destroy(struct rf__views *views);

/* mmap, shared, read and write; NULL on failure. */
void *rf__map(int fd, uint64_t offset, size_t bytes);

#endif
