/* What a worker is given: its environment, its cores, and the job's key as a sealed descriptor. */
#ifndef RF_CLI_RUN_ENV_H
#define RF_CLI_RUN_ENV_H

#include "run_options.h"

#include <ringfold/error.h>
#include <sched.h>
#include <stddef.h>

enum { RUN_MAX_KEY_FILE = 4096 };

/* The bytes of the key file, or 32 random ones; and what the library takes for the key when it
 * reads them. */
struct run_key {
    unsigned char file[RUN_MAX_KEY_FILE];
    size_t file_bytes;
    unsigned char key[RF_MAX_KEY_BYTES];
    size_t key_bytes;
};

RF_MUST_CHECK int run_key_read(struct run_key *key, const char *key_file, struct rf_error *err);

/* A descriptor from which the key can be read and which cannot be changed, close-on-exec. RF_EIO.
 */
RF_MUST_CHECK int run_key_descriptor(const struct run_key *key, struct rf_error *err);

struct run_env {
    const struct run_options *options;
    const char *store_uri;
    const char *run_dir; /* absolute */
    int master_port;     /* for programs that bring their own rendezvous */
};

/* One start of one worker. */
struct run_env_worker {
    int id;       /* within the job; its rank at the start */
    int local;    /* among those of this host */
    int restarts; /* how often it was started before */
    int key_fd;
    int event_fd; /* -1: it has none */
};

/* This process's environment with the worker's variables; give it to run_env_free. NULL without
 * memory. */
char **run_env_create(const struct run_env *env, const struct run_env_worker *worker);
void run_env_free(char **variables);

/* Threads for each worker. */
int run_env_threads(const struct run_options *options);

/* The worker's own share of the cores that this process may use. */
void run_env_cores(const struct run_options *options, int local, cpu_set_t *out);

/* A TCP port of 127.0.0.1 that nobody has at the moment; 0 if there is none. */
int run_env_free_port(void);

#endif
