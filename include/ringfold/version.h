/* The version of this library; rf_version() gives the one that is linked. */
#ifndef RINGFOLD_VERSION_H
#define RINGFOLD_VERSION_H

#include <ringfold/error.h>

#define RF_VERSION "0.1.0"

#ifdef __cplusplus
extern "C" {
#endif
RF_API const char *rf_version(void);
#ifdef __cplusplus
}
#endif
#endif
