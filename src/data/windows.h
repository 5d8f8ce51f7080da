/* A folder of tokens as a dataset. Part of data/dataset, where the rest of it is declared. */
#ifndef RF_DATA_WINDOWS_H
#define RF_DATA_WINDOWS_H

#include "data/dataset.h"

/* As rf__dataset_usable. */
int rf__windows_usable(const struct rf__samples *part, uint32_t sample, struct rf__bad *bad,
                       struct rf_error *err);

#endif
