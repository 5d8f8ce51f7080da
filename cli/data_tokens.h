/* `ringfold data tokens`: texts to a folder of tokens. */
#ifndef RF_CLI_DATA_TOKENS_H
#define RF_CLI_DATA_TOKENS_H

#include <ringfold/data.h>

/* The work, with its result as a few lines or as a line of JSON. Ctrl-C and TERM end it with
 * nothing left. */
int data_tokens_make(const char *const *texts, size_t count, const char *folder,
                     struct rf_data_tokens_options *options, bool json, struct rf_error *err);

#endif
