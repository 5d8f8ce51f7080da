/* Files as blobs: names are paths. Reads are `pread`, so a bad disk is an error and not a signal.
 */
#ifndef RF_OS_FILE_H
#define RF_OS_FILE_H

#include "io/blob.h"

extern struct rf__blobs rf__file_blobs;

#endif
