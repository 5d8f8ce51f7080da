/* The file system, wired to src/data. */
#ifndef RF_API_DATA_H
#define RF_API_DATA_H

#include "data/rehearse.h"
#include "data/source.h"

/* What one folder's files are read through. */
struct rf__data_files {
    struct rf__data_io io;
    struct rf__bad_reads bad_reads; /* in use where io.files is its base */
    char *root;
};

/* `cache` and `bad_reads` as in struct rf_data_options; `cache` is borrowed. */
int rf__data_files_open(struct rf__data_files *files, const char *folder, const char *cache,
                        const char *bad_reads, struct rf_error *err);
void rf__data_files_close(struct rf__data_files *files);

#endif
