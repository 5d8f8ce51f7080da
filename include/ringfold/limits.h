/* Every stated maximum. A value from outside (wire, file, environment, caller) is held against
 * these before anything is allocated or done. */
#ifndef RINGFOLD_LIMITS_H
#define RINGFOLD_LIMITS_H

enum {
    RF_MAX_RANKS = 1024,      /* workers in one group */
    RF_MAX_LOCAL_RANKS = 128, /* workers of one group on one host */
    RF_MAX_STREAMS = 64,      /* TCP connections with one other worker */
    RF_MAX_JOB_NAME = 64,     /* bytes of a job's name, with its end */
    RF_MAX_KEY_BYTES = 64,    /* the job key */
    RF_MIN_KEY_BYTES = 16,
    RF_MAX_REQUESTS = 1024,      /* operations in flight on one communicator */
    RF_MAX_TENSORS = 65536,      /* parameters registered with one rf_ddp */
    RF_MAX_SHARDS = 65536,       /* shards of a global batch */
    RF_MAX_STORE_KEY = 512,      /* bytes of a key in the store */
    RF_MAX_STORE_VALUE = 1 << 20 /* bytes of a value in the store */
};

#endif
