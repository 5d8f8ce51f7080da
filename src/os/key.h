/* Reading the job key from a file or an inherited descriptor. */
#ifndef RF_OS_KEY_H
#define RF_OS_KEY_H

#include <ringfold/error.h>
#include <ringfold/limits.h>

/* The whole content is the key: bytes as they are, RF_MIN_KEY_BYTES … RF_MAX_KEY_BYTES. The
 * descriptor is read from its start and left open. */
int rf__key_from_fd(int fd, unsigned char key[RF_MAX_KEY_BYTES], size_t *bytes,
                    struct rf_error *err);
int rf__key_from_file(const char *path, unsigned char key[RF_MAX_KEY_BYTES], size_t *bytes,
                      struct rf_error *err);

#endif
