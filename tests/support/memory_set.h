/* A labelled set of images in memory, read through a blob interface of its own: ten classes that a
 * network can tell apart. For the trainer's tests. */
#ifndef TESTS_MEMORY_SET_H
#define TESTS_MEMORY_SET_H

#include "base/rng.h"
#include "base/status.h"
#include "io/blob.h"

#include <stdlib.h>
#include <string.h>

enum { SIDE = 28, TRAIN = 200, TEST = 61 };

struct memory_file {
    const char *name;
    unsigned char *bytes;
    size_t count;
};

static struct memory_file disk[4];

struct memory_blobs {
    struct rf__blobs base;
    bool spoilt; /* the training labels end too soon */
};

static int memory_open(struct rf__blobs *blobs, const char *name, struct rf__blob **out,
                       uint64_t *bytes, struct rf_error *err) {
    const struct memory_blobs *self = (const struct memory_blobs *)blobs;
    for (size_t i = 0; i < sizeof disk / sizeof *disk; i++) {
        if (!strcmp(name, disk[i].name)) {
            *out = (struct rf__blob *)&disk[i];
            *bytes = disk[i].count - (self->spoilt && i == 1 ? 3 : 0);
            return RF_OK;
        }
    }
    return rf__fail(err, RF_ENOTFOUND, 0, "no '%s'", name);
}

static ssize_t memory_read(struct rf__blobs *blobs, struct rf__blob *blob, uint64_t offset,
                           void *buffer, size_t bytes, struct rf_error *err) {
    const struct memory_file *file = (const struct memory_file *)blob;
    (void)blobs;
    (void)err;
    size_t left = offset < file->count ? file->count - offset : 0;
    size_t n = bytes < left ? bytes : left;
    memcpy(buffer, file->bytes + offset, n);
    return (ssize_t)n;
}

static void memory_close(struct rf__blobs *blobs, struct rf__blob *blob) {
    (void)blobs;
    (void)blob;
}

static const struct rf__blob_ops memory_ops = {
    .open = memory_open, .read = memory_read, .close = memory_close};

static void be32(unsigned char *at, uint32_t value) {
    for (int i = 0; i < 4; i++) {
        at[i] = (unsigned char)(value >> (24 - 8 * i));
    }
}

/* Sample i is of class i mod 10: a bright bar at the class's height, over noise. */
static void part_make(struct memory_file *images, struct memory_file *labels, uint32_t count,
                      uint64_t stream) {
    images->count = 16 + (size_t)count * SIDE * SIDE;
    labels->count = 8 + (size_t)count;
    images->bytes = calloc(1, images->count);
    labels->bytes = calloc(1, labels->count);
    be32(images->bytes, 0x803);
    be32(images->bytes + 4, count);
    be32(images->bytes + 8, SIDE);
    be32(images->bytes + 12, SIDE);
    be32(labels->bytes, 0x801);
    be32(labels->bytes + 4, count);
    for (uint32_t i = 0; i < count; i++) {
        struct rf__rng rng = rf__rng(5, stream, i);
        unsigned char *image = images->bytes + 16 + (size_t)i * SIDE * SIDE;
        uint32_t class = i % 10;
        for (uint32_t p = 0; p < SIDE * SIDE; p++) {
            bool bar = p / SIDE / 2 == class + 2;
            image[p] = (unsigned char)(rf__rng_below(&rng, 100) + (bar ? 150 : 0));
        }
        labels->bytes[8 + i] = (unsigned char)class;
    }
}

static int data_make(void **state) {
    (void)state;
    disk[0].name = "set/train-images-idx3-ubyte";
    disk[1].name = "set/train-labels-idx1-ubyte";
    disk[2].name = "set/t10k-images-idx3-ubyte";
    disk[3].name = "set/t10k-labels-idx1-ubyte";
    part_make(&disk[0], &disk[1], TRAIN, 0);
    part_make(&disk[2], &disk[3], TEST, 1);
    return 0;
}

static int data_drop(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof disk / sizeof *disk; i++) {
        free(disk[i].bytes);
    }
    return 0;
}

#endif
