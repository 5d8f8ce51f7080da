/* What the environment says of data files, for the commands that read them. */
#ifndef RF_CLI_DATA_ENV_H
#define RF_CLI_DATA_ENV_H

#include <limits.h>

/* The folder for indices of data that cannot be written: $RINGFOLD_CACHE, $XDG_CACHE_HOME/ringfold
 * or ~/.cache/ringfold. NULL where none of the variables is set. */
const char *data_cache_folder(char out[PATH_MAX]);

/* RINGFOLD_FAULT_READ, a rehearsed failure, where RINGFOLD_FAULTS=1 allows for such; else NULL. */
const char *data_bad_reads(void);

#endif
