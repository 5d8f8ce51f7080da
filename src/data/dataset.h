/* A labelled set of images: a training part and a test part, read from a folder with the four IDX
 * files of MNIST's names (train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte,
 * t10k-labels-idx1-ubyte), each plain or with ".gz"; or else with TFRecord files, train*.tfrecord
 * and test*.tfrecord or t10k*.tfrecord.
 *
 * Plain files are read as samples are asked for, and each block is verified first: a sample that
 * lies in a damaged block is told of, and nothing else is. Pixels stay bytes; they become (pixel /
 * 255 - mean) / deviation when a batch is gathered, with mean and deviation of the training part in
 * whole numbers. They come from the file's index where there is one, so that they are the same on
 * every worker whatever is damaged there.
 *
 * Or a text as tokens, which rf__dataset_read_tokens opens: what `ringfold data tokens` makes. A
 * sample is a window of it. */
#ifndef RF_DATA_DATASET_H
#define RF_DATA_DATASET_H

#include "data/source.h"
#include "data/tokens.h"

enum { RF__DATA_CLASSES = 10, RF__DATA_MAX_SIDE = 1024 };

/* One sample of a TFRecord file. */
struct rf__image_record {
    uint64_t offset, image; /* of the record and of its pixels, in its file */
    uint32_t file;
    signed char label; /* -1: the record is bad */
};

struct rf__samples {
    uint32_t count;
    uint32_t pixels; /* of one image; 0: these are windows of tokens */

    /* IDX: where image 0 and label 0 begin in their files. */
    struct rf__source *images, *labels;
    uint64_t images_at, labels_at;

    /* TFRecord; else NULL. */
    struct rf__source **files;
    uint32_t file_count;
    struct rf__image_record *records;

    /* Tokens: `source` is NULL where there are none. */
    struct rf__tokens tokens;
    uint32_t vocabulary;
    uint32_t *window; /* the last one that was read */
};

struct rf__dataset {
    int height, width;
    struct rf__samples train, test;
    float value[256]; /* what each pixel becomes */

    uint32_t context, vocabulary; /* of tokens; else 0 */
};

/* RF_ENOTFOUND where the folder lacks a file, RF_EDATA where one cannot be used at all, RF_EIO
 * where one cannot be read. `io` is borrowed for as long as the set lives. */
int rf__dataset_read(const struct rf__data_io *io, const char *folder, struct rf__dataset *out,
                     struct rf_error *err);
void rf__dataset_free(struct rf__dataset *dataset);

/* The same of a folder that `ringfold data tokens` made (train.bin, val.bin, tokenizer.json), to be
 * read in windows of context + 1 tokens, `context` apart: sample i is tokens i x context to
 * (i + 1) x context, and there are (tokens - 1) / context of them. The test part has no samples
 * where the folder has no val.bin. A sample with a token beyond the vocabulary cannot be used. */
int rf__dataset_read_tokens(const struct rf__data_io *io, const char *folder, uint32_t context,
                            struct rf__dataset *out, struct rf_error *err);

/* Whether sample `sample` can be used: 1, or 0 and `bad` says what of it cannot. An error is one of
 * neither. `part` is one of a set's own. */
int rf__dataset_usable(const struct rf__samples *part, uint32_t sample, struct rf__bad *bad,
                       struct rf_error *err);

/* The samples `indices[0 … count)`, all of which have been found usable, as rows of height x width
 * floats, and their labels. */
void rf__dataset_gather(const struct rf__dataset *dataset, const struct rf__samples *part,
                        const uint32_t *indices, uint32_t count, float *inputs, int32_t *labels);

/* The same of tokens: rows of `context` inputs, and of the tokens that come after them. RF_EDATA or
 * RF_EIO where what was usable is no more. */
int rf__dataset_gather_tokens(const struct rf__samples *part, const uint32_t *indices,
                              uint32_t count, int32_t *inputs, int32_t *targets,
                              struct rf_error *err);

/* The same as whole windows: rows of context + 1 tokens. */
int rf__dataset_gather_windows(const struct rf__samples *part, const uint32_t *indices,
                               uint32_t count, uint32_t *tokens, struct rf_error *err);

/* The bytes and the label of one usable sample. */
const unsigned char *rf__dataset_image(const struct rf__samples *part, uint32_t sample, int *label);

#endif
