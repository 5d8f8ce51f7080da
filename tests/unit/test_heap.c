/* os/heap: an arena that goes on in a fresh file. Blocks keep addresses and contents, whatever is
 * written through views of the old file; and where there is no room nothing is lost. */
#include "base/rng.h"
#include "os/heap.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

enum { BLOCKS = 40, SLOTS = 2 * BLOCKS };

struct block {
    unsigned char *memory; /* NULL: none */
    size_t bytes;
    unsigned char seed;
};

static unsigned char expected(const struct block *block, size_t at) {
    return (unsigned char)(block->seed + at / 4096 + at % 251);
}

static void fill(struct block *block) {
    for (size_t i = 0; i < block->bytes; i++) {
        block->memory[i] = expected(block, i);
    }
}

static void check(const struct block *block) {
    for (size_t i = 0; i < block->bytes; i++) {
        if (block->memory[i] != expected(block, i)) {
            fail_msg("byte %zu of %zu", i, block->bytes);
        }
    }
}

static void make(struct rf__arena *arena, struct block *block, struct rf__rng *rng) {
    void *memory;
    *block = (struct block){.bytes = 1 + (size_t)rf__rng_below(rng, 300000),
                            .seed = (unsigned char)rf__rng_u64(rng)};
    if (rf__rng_below(rng, 10) == 0) {
        block->bytes += 2 << 20; /* a large one: aligned otherwise */
    }
    assert_int_equal(rf__arena_alloc(arena, block->bytes, &memory, NULL), 0);
    block->memory = memory;
    fill(block);
}

static int find(struct rf__arena *arena, const struct block *block, uint64_t *offset) {
    uint64_t bytes, inside;
    return rf__arena_find(arena, block->memory, block->bytes, offset, &bytes, &inside);
}

/* Everything that was ever handed out of a file is overwritten through it. */
static void scribble(int fd) {
    struct stat file;
    assert_int_equal(fstat(fd, &file), 0);
    char *all = mmap(NULL, (size_t)file.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(all != MAP_FAILED);
    memset(all, 0xee, (size_t)file.st_size);
    munmap(all, (size_t)file.st_size);
}

static void blocks_move_unharmed(void **state) {
    struct rf__rng rng = rf__rng(5, 0, 0);
    struct rf__arena arena;
    struct block blocks[SLOTS] = {0};
    (void)state;
    assert_int_equal(rf__arena_create(&arena, NULL), 0);
    for (int round = 0; round < 6; round++) {
        int old = -1;
        uint64_t offset;
        for (int i = 0; i < BLOCKS; i++) {
            struct block *block = &blocks[rf__rng_below(&rng, SLOTS)];
            if (block->memory) {
                rf__arena_release(&arena, block->memory);
                block->memory = NULL;
            } else {
                make(&arena, block, &rng);
            }
        }
        /* Renewed once, or twice before anybody settles. */
        for (int k = 0; k <= round % 2; k++) {
            if (old >= 0) {
                close(old);
            }
            old = fcntl(arena.fd, F_DUPFD_CLOEXEC, 0);
            assert_true(old >= 0);
            assert_int_equal(rf__arena_renew(&arena, NULL), 0);
        }
        struct block fresh;
        make(&arena, &fresh, &rng); /* before the others have followed */
        assert_int_equal(find(&arena, &fresh, &offset), 0);
        for (int i = 0; i < SLOTS; i++) {
            if (blocks[i].memory) {
                check(&blocks[i]);
                assert_int_equal(find(&arena, &blocks[i], &offset), RF_ENOTFOUND);
                if (rf__rng_below(&rng, 8) == 0) {
                    rf__arena_release(&arena, blocks[i].memory);
                    blocks[i].memory = NULL;
                } else {
                    blocks[i].seed++;
                    fill(&blocks[i]); /* the program goes on with it */
                }
            }
        }
        assert_int_equal(rf__arena_settle(&arena, NULL), 0);
        if (round % 2 == 0) {
            scribble(old);
        }
        close(old);
        check(&fresh);
        rf__arena_release(&arena, fresh.memory);
        for (int i = 0; i < SLOTS; i++) {
            if (blocks[i].memory) {
                check(&blocks[i]);
                assert_int_equal(find(&arena, &blocks[i], &offset), 0);
                struct rf__views views = {.fd = fcntl(arena.fd, F_DUPFD_CLOEXEC, 0)};
                unsigned char *view = rf__views_map(&views, offset, blocks[i].bytes);
                assert_non_null(view);
                view[blocks[i].bytes - 1] ^= 1; /* it is the same memory */
                assert_int_equal(blocks[i].memory[blocks[i].bytes - 1],
                                 expected(&blocks[i], blocks[i].bytes - 1) ^ 1);
                view[blocks[i].bytes - 1] ^= 1;
                rf__views_destroy(&views);
            }
        }
        assert_int_equal(rf__arena_settle(&arena, NULL), 0); /* nothing is left to do */
    }
    rf__arena_destroy(&arena);
}

/* The pages of the old file are given back although somebody else still maps them. */
static void the_old_pages_are_given_back(void **state) {
    enum { BYTES = 8 << 20, BLOCK = 512 };
    struct rf__arena arena;
    struct stat file;
    void *memory;
    (void)state;
    assert_int_equal(rf__arena_create(&arena, NULL), 0);
    assert_int_equal(rf__arena_alloc(&arena, BYTES, &memory, NULL), 0);
    memset(memory, 1, BYTES);
    int old = fcntl(arena.fd, F_DUPFD_CLOEXEC, 0);
    struct rf__views views = {.fd = old};
    assert_non_null(rf__views_map(&views, arena.blocks[0].offset, BYTES));
    assert_int_equal(fstat(old, &file), 0);
    assert_true(file.st_blocks * BLOCK >= BYTES);
    assert_int_equal(rf__arena_renew(&arena, NULL), 0);
    assert_int_equal(rf__arena_settle(&arena, NULL), 0);
    assert_int_equal(fstat(old, &file), 0);
    assert_int_equal(file.st_blocks, 0);
    rf__views_destroy(&views);
    rf__arena_destroy(&arena);
}

/* With no room in the new file some blocks stay, with all that is in them, until there is. */
static void without_room_nothing_is_lost(void **state) {
    struct rf__rng rng = rf__rng(6, 0, 0);
    struct rf__arena arena;
    struct block blocks[BLOCKS];
    struct rlimit before, limit;
    struct rf_error err = {0};
    int left = 0;
    uint64_t offset;
    (void)state;
    assert_int_equal(rf__arena_create(&arena, NULL), 0);
    for (int i = 0; i < BLOCKS; i++) {
        make(&arena, &blocks[i], &rng);
    }
    assert_int_equal(rf__arena_renew(&arena, NULL), 0);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    limit = before;
    limit.rlim_cur = 5 << 20; /* more than any block, less than all */
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    int rc = rf__arena_settle(&arena, &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(rc, RF_ENOMEM);
    assert_int_equal(err.sys_errno, EFBIG);
    for (int i = 0; i < BLOCKS; i++) {
        check(&blocks[i]);
        left += find(&arena, &blocks[i], &offset) == RF_ENOTFOUND;
    }
    assert_true(left > 0 && left < BLOCKS);
    assert_int_equal(rf__arena_settle(&arena, NULL), 0);
    for (int i = 0; i < BLOCKS; i++) {
        check(&blocks[i]);
        assert_int_equal(find(&arena, &blocks[i], &offset), 0);
    }
    rf__arena_destroy(&arena);
}

int main(void) {
    signal(SIGXFSZ, SIG_IGN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_move_unharmed),
        cmocka_unit_test(the_old_pages_are_given_back),
        cmocka_unit_test(without_room_nothing_is_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
