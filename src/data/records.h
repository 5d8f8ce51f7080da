/* A folder of TFRecord files as a dataset: train*.tfrecord, and test*.tfrecord or t10k*.tfrecord,
 * in the order of their names. Each record is a tf.train.Example with the features image_raw
 * (bytes, height x width pixels), label (int64), and height and width where the image is not
 * square.
 *
 * The files are read whole, and each record is verified by its own check sums. As there is no index
 * of pixels, mean and deviation are those of the records that can be used: workers must read the
 * same files. Part of data/dataset. */
#ifndef RF_DATA_RECORDS_H
#define RF_DATA_RECORDS_H

#include "data/dataset.h"

/* Fills both parts and the images' size. `are_there`: the folder has such files to train on. */
int rf__records_open(const struct rf__data_io *io, const char *folder, bool *are_there,
                     struct rf__dataset *out, struct rf_error *err);

/* As rf__dataset_usable. */
int rf__records_usable(const struct rf__samples *part, uint32_t sample, struct rf__bad *bad);

#endif
