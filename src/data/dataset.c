/* Reading a folder of IDX files into a dataset, and gathering batches from it. */
#include "data/dataset.h"

#include "base/mem.h"
#include "base/status.h"
#include "data/idx.h"
#include "data/text.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { PATH_BYTES = 4096 };

static int missing(const char *folder, const char *name, struct rf_error *err) {
    int code = rf__fail(err, RF_ENOTFOUND, 0, "no '%s' or '%s.gz' in '%s'", name, name,
                        rf__path_tail(folder));
    if (err) {
        rf__detail(err->why, "a data folder holds the four IDX files of MNIST's names");
        rf__detail(err->next, "on Debian: apt install dataset-fashion-mnist, then: "
                              "--data /usr/share/datasets/fashion-mnist");
    }
    return code;
}

/* Reads FOLDER/NAME or FOLDER/NAME.gz; `path` is set to the one that was read. */
static int part_read(struct rf__blobs *blobs, const char *folder, const char *name, int dims,
                     char path[PATH_BYTES], struct rf__idx *out, struct rf_error *err) {
    static const char *const endings[] = {"", ".gz"};

    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        int length = snprintf(path, PATH_BYTES, "%s/%s%s", folder, name, endings[i]);
        if (length < 0 || length >= PATH_BYTES) {
            return rf__fail(err, RF_ELIMIT, 0, "the data folder's name is longer than %d bytes",
                            PATH_BYTES);
        }
        int code = rf__idx_read(blobs, path, dims, out, err);
        if (code != RF_ENOTFOUND) {
            return code;
        }
    }
    return missing(folder, name, err);
}

static int labels_check(const struct rf__idx *labels, const char *path, struct rf_error *err) {
    for (size_t i = 0; i < labels->bytes; i++) {
        if (labels->data[i] >= RF__DATA_CLASSES) {
            return rf__fail(err, RF_EDATA, 0,
                            "'%s' has label %d for sample %s (byte %s), expected 0 to %d",
                            rf__path_tail(path), labels->data[i], rf__number(i).text,
                            rf__number(i + 8).text, RF__DATA_CLASSES - 1);
        }
    }
    return RF_OK;
}

/* One part of the set: `stem` is "train" or "t10k". The images' size goes to `height` and `width`,
 * or where those are known already must equal them. */
static int samples_read(struct rf__blobs *blobs, const char *folder, const char *stem, int *height,
                        int *width, struct rf__samples *out, struct rf_error *err) {
    struct rf__idx images = {0};
    struct rf__idx labels = {0};
    char name[64];
    char images_path[PATH_BYTES];
    char labels_path[PATH_BYTES];

    snprintf(name, sizeof name, "%s-images-idx3-ubyte", stem);
    int code = part_read(blobs, folder, name, 3, images_path, &images, err);
    if (code) {
        goto out;
    }
    if (images.sizes[1] > RF__DATA_MAX_SIDE || images.sizes[2] > RF__DATA_MAX_SIDE) {
        code = rf__fail(err, RF_EDATA, 0,
                        "'%s' has images of %u x %u (bytes 8 to 15), expected at most %d x %d",
                        rf__path_tail(images_path), images.sizes[1], images.sizes[2],
                        RF__DATA_MAX_SIDE, RF__DATA_MAX_SIDE);
        goto out;
    }
    if (*height && (*height != (int)images.sizes[1] || *width != (int)images.sizes[2])) {
        code =
            rf__fail(err, RF_EDATA, 0,
                     "'%s' has images of %u x %u (bytes 8 to 15), expected %d x %d as in training",
                     rf__path_tail(images_path), images.sizes[1], images.sizes[2], *height, *width);
        goto out;
    }
    snprintf(name, sizeof name, "%s-labels-idx1-ubyte", stem);
    code = part_read(blobs, folder, name, 1, labels_path, &labels, err);
    if (code) {
        goto out;
    }
    if (labels.sizes[0] != images.sizes[0]) {
        code = rf__fail(err, RF_EDATA, 0,
                        "'%s' has %s labels (byte 4), expected %s as '%s-images' has",
                        rf__path_tail(labels_path), rf__number(labels.sizes[0]).text,
                        rf__number(images.sizes[0]).text, stem);
        goto out;
    }
    code = labels_check(&labels, labels_path, err);
    if (code) {
        goto out;
    }
    *height = (int)images.sizes[1];
    *width = (int)images.sizes[2];
    *out = (struct rf__samples){images.sizes[0], images.data, labels.data};
    images.data = NULL;
    labels.data = NULL;
out:
    rf__idx_free(&images);
    rf__idx_free(&labels);
    return code;
}

/* Sums are whole numbers below 2^53, so nothing depends on the order of addition. */
static void values_measure(struct rf__dataset *dataset) {
    size_t bytes = (size_t)dataset->train.count * (size_t)(dataset->height * dataset->width);
    uint64_t histogram[256] = {0};
    uint64_t sum = 0;
    uint64_t squares = 0;

    for (size_t i = 0; i < bytes; i++) {
        histogram[dataset->train.pixels[i]]++;
    }
    for (uint64_t v = 0; v < 256; v++) {
        sum += v * histogram[v];
        squares += v * v * histogram[v];
    }
    double mean = (double)sum / (double)bytes / 255;
    double variance = (double)squares / (double)bytes / (255.0 * 255.0) - mean * mean;
    double deviation = variance > 1e-12 ? sqrt(variance) : 1;
    for (int v = 0; v < 256; v++) {
        dataset->value[v] = (float)((v / 255.0 - mean) / deviation);
    }
}

int rf__dataset_read(struct rf__blobs *blobs, const char *folder, struct rf__dataset *out,
                     struct rf_error *err) {
    struct rf__dataset dataset = {0};

    int code =
        samples_read(blobs, folder, "train", &dataset.height, &dataset.width, &dataset.train, err);
    if (code) {
        goto out;
    }
    code = samples_read(blobs, folder, "t10k", &dataset.height, &dataset.width, &dataset.test, err);
    if (code) {
        goto out;
    }
    values_measure(&dataset);
    *out = dataset;
    dataset = (struct rf__dataset){0};
out:
    rf__dataset_free(&dataset);
    return code;
}

void rf__dataset_free(struct rf__dataset *dataset) {
    rf__free(dataset->train.pixels);
    rf__free(dataset->train.labels);
    rf__free(dataset->test.pixels);
    rf__free(dataset->test.labels);
    *dataset = (struct rf__dataset){0};
}

void rf__dataset_gather(const struct rf__dataset *dataset, const struct rf__samples *part,
                        const uint32_t *indices, uint32_t count, float *inputs, int32_t *labels) {
    size_t pixels = (size_t)(dataset->height * dataset->width);

    for (uint32_t i = 0; i < count; i++) {
        const unsigned char *from = part->pixels + indices[i] * pixels;
        float *to = inputs + i * pixels;
        for (size_t p = 0; p < pixels; p++) {
            to[p] = dataset->value[from[p]];
        }
        labels[i] = part->labels[indices[i]];
    }
}
