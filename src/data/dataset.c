/* Opening a folder as a dataset, and gathering batches from it. The formats differ in how a sample
 * is found; everything behind that is common. */
#include "data/dataset.h"

#include "base/assert.h"
#include "base/mem.h"
#include "base/status.h"
#include "data/idx.h"
#include "data/records.h"
#include "data/text.h"
#include "data/windows.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { PATH_BYTES = 4096, CACHE_BYTES = RF__IDX_MAX_BYTES + 4 + 4 * RF__IDX_DIMS };

/* --- IDX files -------------------------------------------------------------------------------- */

/* One opened file: its bytes through `source`, the elements from `at`. */
struct part {
    struct rf__source *source;
    uint64_t at;
    struct rf__idx idx; /* without elements */
    char path[PATH_BYTES];
};

static int missing(const char *folder, const char *name, struct rf_error *err) {
    int code = rf__fail(err, RF_ENOTFOUND, 0, "no '%s' or '%s.gz' in '%s'", name, name,
                        rf__path_tail(folder));
    if (err) {
        rf__detail(err->why, "a data folder holds the four IDX files of MNIST's names, or "
                             "train*.tfrecord and test*.tfrecord (or t10k*.tfrecord)");
        rf__detail(err->next, "on Debian: apt install dataset-fashion-mnist, then: "
                              "--data /usr/share/datasets/fashion-mnist");
    }
    return code;
}

/* Before a file is indexed it must be what its header says. */
static int plain_check(struct rf__blobs *files, const char *path, int dims, struct rf_error *err) {
    unsigned char header[4 + 4 * RF__IDX_DIMS];
    struct rf__blob *blob = NULL;
    struct rf__idx idx;
    uint64_t bytes = 0;

    int code = files->ops->open(files, path, &blob, &bytes, err);
    if (code) {
        return code;
    }
    ssize_t got = files->ops->read(files, blob, 0, header, rf__idx_header_bytes(dims), err);
    files->ops->close(files, blob);
    if (got < 0) {
        return (int)got;
    }
    code = rf__idx_header(header, (size_t)got, path, dims, &idx, err);
    return code ? code : rf__idx_size_check(path, bytes, &idx, err);
}

/* The header as it is in verified bytes, and that the index is of such a file. */
static int header_take(struct part *part, int dims, struct rf_error *err) {
    unsigned char header[4 + 4 * RF__IDX_DIMS];
    size_t count = rf__idx_header_bytes(dims);
    uint64_t bytes = rf__source_bytes(part->source);

    if (bytes < count) {
        count = (size_t)bytes;
    }
    int code = rf__source_read(part->source, 0, header, count, NULL, err);
    if (code == RF_EDATA || code == RF_EIO) {
        return rf__wrap(err, code, "nothing can be read without the header: ");
    }
    if (!code) {
        code = rf__idx_header(header, count, part->path, dims, &part->idx, err);
    }
    if (!code) {
        code = rf__idx_size_check(part->path, bytes, &part->idx, err);
        code = code ? rf__wrap(err, code, "by its index, ") : RF_OK;
    }
    part->at = rf__idx_header_bytes(dims);
    return code;
}

static int plain_open(const struct rf__data_io *io, const char *name, int dims, struct part *part,
                      struct rf_error *err) {
    struct rf__index index = {0};

    int code = rf__index_find(io, name, &index, NULL, err);
    if (code == RF_ENOTFOUND) {
        code = plain_check(io->files, part->path, dims, err);
        if (!code) {
            code = rf__index_of(io, part->path, name, &index, err);
        }
    }
    if (!code) {
        code = rf__source_open(io->files, part->path, &index, CACHE_BYTES, &part->source, err);
    }
    if (!code) {
        code = header_take(part, dims, err);
    }
    rf__index_free(&index);
    return code;
}

/* A packed file is unpacked into memory. Its own check sum tells that it is whole, but not where it
 * is damaged: without an index of what was in it, a damaged one cannot be used. */
static int packed_open(const struct rf__data_io *io, const char *name, int dims, struct part *part,
                       struct rf_error *err) {
    struct rf__index index = {0};
    struct rf_error damage;
    unsigned char *bytes = NULL;
    size_t count = 0;

    int code = rf__index_find(io, name, &index, NULL, err);
    if (code == RF_ENOTFOUND) {
        code = rf__idx_read(io->files, part->path, dims, &part->idx, err);
        if (!code) {
            bytes = part->idx.data;
            count = part->idx.bytes;
            part->idx.data = NULL;
            code = rf__source_wrap(part->path, bytes, count, NULL, &part->source, err);
        }
        return code;
    }
    if (!code && index.bytes > CACHE_BYTES) {
        code = rf__fail(err, RF_EDATA, 0, "the index of '%s' is of %s bytes, expected at most %s",
                        rf__path_tail(part->path), rf__number(index.bytes).text,
                        rf__number(CACHE_BYTES).text);
    }
    if (!code) {
        code = rf__idx_unpack(io->files, part->path, (size_t)index.bytes, &bytes, &count, &damage,
                              err);
    }
    if (!code) {
        code = rf__source_wrap(part->path, bytes, count, &index, &part->source, err);
    }
    if (!code) {
        code = header_take(part, dims, err);
    }
    rf__index_free(&index);
    return code;
}

/* Opens FOLDER/NAME or FOLDER/NAME.gz. */
static int part_open(const struct rf__data_io *io, const char *folder, const char *name, int dims,
                     struct part *part, struct rf_error *err) {
    char packed[96];

    int length = snprintf(part->path, PATH_BYTES, "%s/%s.gz", folder, name);
    if (length < 0 || length >= PATH_BYTES) {
        return rf__fail(err, RF_ELIMIT, 0, "the data folder's name is longer than %d bytes",
                        PATH_BYTES);
    }
    part->path[length - 3] = 0;
    int code = plain_open(io, name, dims, part, err);
    if (code == RF_ENOTFOUND) {
        snprintf(packed, sizeof packed, "%s.gz", name);
        part->path[length - 3] = '.';
        code = packed_open(io, packed, dims, part, err);
    }
    return code == RF_ENOTFOUND ? missing(folder, name, err) : code;
}

static int images_open(const struct rf__data_io *io, const char *folder, const char *stem,
                       const struct rf__dataset *dataset, struct part *part, struct rf_error *err) {
    const uint32_t *sizes = part->idx.sizes;
    char name[64];

    snprintf(name, sizeof name, "%s-images-idx3-ubyte", stem);
    int code = part_open(io, folder, name, 3, part, err);
    if (code) {
        return code;
    }
    if (sizes[1] > RF__DATA_MAX_SIDE || sizes[2] > RF__DATA_MAX_SIDE) {
        return rf__fail(err, RF_EDATA, 0,
                        "'%s' has images of %u x %u (bytes 8 to 15), expected at most %d x %d",
                        rf__path_tail(part->path), sizes[1], sizes[2], RF__DATA_MAX_SIDE,
                        RF__DATA_MAX_SIDE);
    }
    if (dataset->height && (dataset->height != (int)sizes[1] || dataset->width != (int)sizes[2])) {
        return rf__fail(err, RF_EDATA, 0,
                        "'%s' has images of %u x %u (bytes 8 to 15), expected %d x %d as in "
                        "training",
                        rf__path_tail(part->path), sizes[1], sizes[2], dataset->height,
                        dataset->width);
    }
    return RF_OK;
}

/* Every label that can be read is that of a class. */
static int labels_check(const struct part *part, struct rf_error *err) {
    uint64_t count = part->idx.bytes;

    for (uint64_t i = 0; i < count; i++) {
        uint64_t at = part->at + i;
        if (i == 0 || at % RF__INDEX_BLOCK == 0) { /* a new block */
            uint64_t left = RF__INDEX_BLOCK - at % RF__INDEX_BLOCK;
            uint64_t stretch = left < count - i ? left : count - i;
            int code = rf__source_touch(part->source, at, (size_t)stretch, NULL, err);
            if (code == RF_EDATA || code == RF_EIO) {
                i += stretch - 1;
                rf__error_clear(err);
                continue;
            }
            if (code) {
                return code;
            }
        }
        int label = *rf__source_view(part->source, at, 1);
        if (label >= RF__DATA_CLASSES) {
            return rf__fail(err, RF_EDATA, 0,
                            "'%s' has label %d for sample %s (byte %s), expected 0 to %d",
                            rf__path_tail(part->path), label, rf__number(i).text,
                            rf__number(i + 8).text, RF__DATA_CLASSES - 1);
        }
    }
    return RF_OK;
}

static int labels_open(const struct rf__data_io *io, const char *folder, const char *stem,
                       uint32_t images, struct part *part, struct rf_error *err) {
    char name[64];

    snprintf(name, sizeof name, "%s-labels-idx1-ubyte", stem);
    int code = part_open(io, folder, name, 1, part, err);
    if (code) {
        return code;
    }
    if (part->idx.sizes[0] != images) {
        return rf__fail(err, RF_EDATA, 0,
                        "'%s' has %s labels (byte 4), expected %s as '%s-images' has",
                        rf__path_tail(part->path), rf__number(part->idx.sizes[0]).text,
                        rf__number(images).text, stem);
    }
    return labels_check(part, err);
}

/* One part of the set: `stem` is "train" or "t10k". The images' size goes to the set, or where it
 * is known already must equal it. */
static int idx_open(const struct rf__data_io *io, const char *folder, const char *stem,
                    struct rf__dataset *dataset, struct rf__samples *out, struct rf_error *err) {
    struct part images = {0};
    struct part labels = {0};

    int code = images_open(io, folder, stem, dataset, &images, err);
    if (!code) {
        code = labels_open(io, folder, stem, images.idx.sizes[0], &labels, err);
    }
    if (!code) {
        dataset->height = (int)images.idx.sizes[1];
        dataset->width = (int)images.idx.sizes[2];
        *out = (struct rf__samples){.count = images.idx.sizes[0],
                                    .pixels = images.idx.sizes[1] * images.idx.sizes[2],
                                    .images = images.source,
                                    .labels = labels.source,
                                    .images_at = images.at,
                                    .labels_at = labels.at};
        images.source = labels.source = NULL;
    }
    rf__source_close(images.source);
    rf__source_close(labels.source);
    return code;
}

/* --- normalisation ---------------------------------------------------------------------------- */

/* How often each pixel value occurs in the training images: from the index, less its header's bytes
 * (which have been verified); or counted. */
static uint64_t values_count(const struct rf__samples *train, uint64_t histogram[256]) {
    const uint64_t *known = train->images ? rf__source_histogram(train->images) : NULL;
    uint64_t bytes = 0;

    if (known) {
        memcpy(histogram, known, 256 * sizeof *histogram);
        const unsigned char *header = rf__source_view(train->images, 0, (size_t)train->images_at);
        for (uint64_t i = 0; i < train->images_at; i++) {
            histogram[header[i]]--;
        }
        return (uint64_t)train->count * train->pixels;
    }
    for (uint32_t i = 0; i < train->count; i++) {
        struct rf__bad bad;
        int label;
        if (rf__dataset_usable(train, i, &bad, NULL) == 1) {
            const unsigned char *image = rf__dataset_image(train, i, &label);
            for (uint32_t p = 0; p < train->pixels; p++) {
                histogram[image[p]]++;
            }
            bytes += train->pixels;
        }
    }
    return bytes;
}

/* Sums are whole numbers below 2^53, so nothing depends on the order of addition. */
static void values_measure(struct rf__dataset *dataset) {
    uint64_t histogram[256] = {0};
    uint64_t sum = 0;
    uint64_t squares = 0;

    uint64_t bytes = values_count(&dataset->train, histogram);
    for (uint64_t v = 0; v < 256; v++) {
        sum += v * histogram[v];
        squares += v * v * histogram[v];
    }
    bytes = bytes ? bytes : 1; /* none that can be used: whatever */
    double mean = (double)sum / (double)bytes / 255;
    double variance = (double)squares / (double)bytes / (255.0 * 255.0) - mean * mean;
    double deviation = variance > 1e-12 ? sqrt(variance) : 1;
    for (int v = 0; v < 256; v++) {
        dataset->value[v] = (float)((v / 255.0 - mean) / deviation);
    }
}

/* --- the set ---------------------------------------------------------------------------------- */

static int parts_open(const struct rf__data_io *io, const char *folder, struct rf__dataset *dataset,
                      struct rf_error *err) {
    struct rf_error other = {0};
    bool are_there = false;

    int code = idx_open(io, folder, "train", dataset, &dataset->train, err);
    if (code == RF_ENOTFOUND) {
        int read = rf__records_open(io, folder, &are_there, dataset, &other);
        if (read != RF_ENOTFOUND || are_there) {
            code = read;
            if (err) {
                *err = other;
            }
            return code;
        }
    }
    return code ? code : idx_open(io, folder, "t10k", dataset, &dataset->test, err);
}

int rf__dataset_read(const struct rf__data_io *io, const char *folder, struct rf__dataset *out,
                     struct rf_error *err) {
    struct rf__dataset dataset = {0};

    int code = parts_open(io, folder, &dataset, err);
    if (!code) {
        values_measure(&dataset);
        *out = dataset;
        dataset = (struct rf__dataset){0};
        rf__error_clear(err); /* of what was looked for on the way */
    }
    rf__dataset_free(&dataset);
    return code;
}

static void samples_free(struct rf__samples *samples) {
    rf__source_close(samples->images);
    rf__source_close(samples->labels);
    for (uint32_t i = 0; i < samples->file_count; i++) {
        rf__source_close(samples->files[i]);
    }
    rf__free(samples->files);
    rf__free(samples->records);
    rf__tokens_close(&samples->tokens);
    rf__free(samples->window);
}

void rf__dataset_free(struct rf__dataset *dataset) {
    samples_free(&dataset->train);
    samples_free(&dataset->test);
    *dataset = (struct rf__dataset){0};
}

/* --- samples ---------------------------------------------------------------------------------- */

int rf__dataset_usable(const struct rf__samples *part, uint32_t sample, struct rf__bad *bad,
                       struct rf_error *err) {
    int code;

    RF_ASSERT(sample < part->count);
    if (part->records) {
        return rf__records_usable(part, sample, bad);
    }
    if (part->window) {
        return rf__windows_usable(part, sample, bad, err);
    }
    code = rf__source_touch(part->images, part->images_at + (uint64_t)sample * part->pixels,
                            part->pixels, bad, err);
    if (!code) {
        code = rf__source_touch(part->labels, part->labels_at + sample, 1, bad, err);
    }
    return !code ? 1 : code == RF_EDATA || code == RF_EIO ? 0 : code;
}

const unsigned char *rf__dataset_image(const struct rf__samples *part, uint32_t sample,
                                       int *label) {
    if (part->records) {
        const struct rf__image_record *record = &part->records[sample];
        *label = record->label;
        return rf__source_view(part->files[record->file], record->image, part->pixels);
    }
    *label = *rf__source_view(part->labels, part->labels_at + sample, 1);
    return rf__source_view(part->images, part->images_at + (uint64_t)sample * part->pixels,
                           part->pixels);
}

void rf__dataset_gather(const struct rf__dataset *dataset, const struct rf__samples *part,
                        const uint32_t *indices, uint32_t count, float *inputs, int32_t *labels) {
    size_t pixels = part->pixels;

    for (uint32_t i = 0; i < count; i++) {
        int label;
        const unsigned char *from = rf__dataset_image(part, indices[i], &label);
        float *to = inputs + i * pixels;
        for (size_t p = 0; p < pixels; p++) {
            to[p] = dataset->value[from[p]];
        }
        labels[i] = label;
    }
}
