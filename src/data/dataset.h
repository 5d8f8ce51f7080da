/* A labelled set of images in memory: a training part and a test part, read from a folder with the
 * four IDX files of MNIST's names (train-images-idx3-ubyte, train-labels-idx1-ubyte,
 * t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte), each plain or with ".gz". Pixels stay bytes;
 * they become (pixel / 255 - mean) / deviation when a batch is gathered, with mean and deviation
 * measured over the training part in whole numbers, so that they are the same on every worker. */
#ifndef RF_DATA_DATASET_H
#define RF_DATA_DATASET_H

#include "io/blob.h"

enum { RF__DATA_CLASSES = 10, RF__DATA_MAX_SIDE = 1024 };

struct rf__samples {
    uint32_t count;
    unsigned char *pixels; /* count x height x width */
    unsigned char *labels; /* count, each below RF__DATA_CLASSES */
};

struct rf__dataset {
    int height, width;
    struct rf__samples train, test;
    float value[256]; /* what each pixel becomes */
};

/* RF_ENOTFOUND where the folder lacks a file, RF_EDATA where one cannot be used, RF_EIO where one
 * cannot be read. */
int rf__dataset_read(struct rf__blobs *blobs, const char *folder, struct rf__dataset *out,
                     struct rf_error *err);
void rf__dataset_free(struct rf__dataset *dataset);

/* The samples `indices[0 … count)` as rows of height x width floats, and their labels. `part` is
 * one of the set's own. */
void rf__dataset_gather(const struct rf__dataset *dataset, const struct rf__samples *part,
                        const uint32_t *indices, uint32_t count, float *inputs, int32_t *labels);

#endif
