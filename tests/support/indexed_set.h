/* The set of memory_set.h with the indices of its files, so that it can be damaged afterwards. */
#ifndef TESTS_INDEXED_SET_H
#define TESTS_INDEXED_SET_H

#include "data/index.h"
#include "support/memory_files.h"
#include "support/memory_set.h"

/* Training images in this block of their file are damaged by set_damage; and how many they are. */
enum {
    BAD_BLOCK = 1,
    BAD_FIRST = (BAD_BLOCK * RF__INDEX_BLOCK - 16) / (SIDE * SIDE),
    BAD_LAST = ((BAD_BLOCK + 1) * RF__INDEX_BLOCK - 17) / (SIDE * SIDE),
    BAD_SAMPLES = BAD_LAST - BAD_FIRST + 1
};

/* Indices of the files as they are now. One for each thread: they count their reads. */
static void set_index(struct memory_files *beside) {
    *beside = (struct memory_files){.base = {&memory_files_ops}};
    for (size_t i = 0; i < sizeof disk / sizeof *disk; i++) {
        const struct rf__data_io io = {.beside = &beside->base};
        struct rf__index_maker maker;
        struct rf__index index;
        const char *name = strchr(disk[i].name, '/') + 1;
        if (rf__index_begin(&maker, disk[i].count, NULL) ||
            rf__index_feed(&maker, disk[i].bytes, disk[i].count, NULL) ||
            rf__index_end(&maker, &index, NULL) ||
            rf__index_keep(&io, name, &index, false, NULL, NULL)) {
            abort();
        }
        rf__index_free(&index);
    }
}

/* Flips a bit of the block, or flips it back. */
static void set_damage(void) {
    disk[0].bytes[BAD_BLOCK * RF__INDEX_BLOCK + 77] ^= 4;
}

#endif
