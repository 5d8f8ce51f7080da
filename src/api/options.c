/* The communicator's options, and what the environment says of them. */
#include "api/comm.h"
#include "base/status.h"
#include "os/key.h"

#include <ringfold/comm.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_ID = 999999, MOST_CORES = 65536 };

void rf_options_init(struct rf_options *options) {
    *options = (struct rf_options){.size = 1,
                                   .streams = 1,
                                   .detect_ms = 3000,
                                   .start_timeout_ms = 300000,
                                   .id = -1,
                                   .slow_evict = 10,
                                   .slow_window = 2,
                                   .cool_down_ms = 30000,
                                   .event_fd = -1};
}

static const char *lookup(char **environ_list, const char *name) {
    size_t length = strlen(name);
    for (char **entry = environ_list; entry && *entry; entry++) {
        if (strncmp(*entry, "RINGFOLD_", 9) == 0 && strncmp(*entry + 9, name, length) == 0 &&
            (*entry)[9 + length] == '=') {
            return *entry + 9 + length + 1;
        }
    }
    return NULL;
}

static int refuse(struct rf_error *err, const char *name, const char *value, const char *wanted) {
    return rf__fail(err, RF_EINVAL, 0, "RINGFOLD_%s is '%.80s'; it must be %s", name, value,
                    wanted);
}

static int read_int(char **environ_list, const char *name, int least, int most, int *out,
                    struct rf_error *err) {
    const char *text = lookup(environ_list, name);
    char *end, wanted[64];

    if (!text) {
        return 0;
    }
    long value = strtol(text, &end, 10);
    if (end == text || *end || value < least || value > most) {
        snprintf(wanted, sizeof wanted, "a number from %d to %d", least, most);
        return refuse(err, name, text, wanted);
    }
    *out = (int)value;
    return 0;
}

/* "3s", "500ms", "5m"; a bare number is seconds. */
static int read_duration(char **environ_list, const char *name, int *out_ms, struct rf_error *err) {
    const char *text = lookup(environ_list, name);
    char *end;

    if (!text) {
        return 0;
    }
    double value = strtod(text, &end);
    double unit = strcmp(end, "ms") == 0                  ? 1
                  : strcmp(end, "s") == 0 || *end == '\0' ? 1e3
                  : strcmp(end, "m") == 0                 ? 6e4
                  : strcmp(end, "h") == 0                 ? 3.6e6
                                                          : 0;
    if (end == text || unit <= 0 || !(value * unit >= 1 && value * unit <= 1e9)) {
        return refuse(err, name, text, "a duration such as 500ms, 3s or 5m");
    }
    *out_ms = (int)(value * unit);
    return 0;
}

static int read_text(char **environ_list, const char *name, char *out, size_t room,
                     struct rf_error *err) {
    const char *text = lookup(environ_list, name);

    if (!text) {
        return 0;
    }
    if (strlen(text) >= room) {
        char wanted[64];
        snprintf(wanted, sizeof wanted, "shorter than %zu bytes", room);
        return refuse(err, name, text, wanted);
    }
    snprintf(out, room, "%s", text);
    return 0;
}

static bool job_is_valid(const char *job) {
    const char *letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    return job[strspn(job, letters)] == 0;
}

static int read_job(char **environ_list, struct rf_options *options, struct rf_error *err) {
    int rc = read_text(environ_list, "JOB", options->job, sizeof options->job, err);
    if (rc == 0 && !job_is_valid(options->job)) {
        rc = refuse(err, "JOB", options->job, "letters, digits, '.', '_' and '-'");
    }
    return rc;
}

static int read_key(char **environ_list, struct rf_options *options, struct rf_error *err) {
    const char *path = lookup(environ_list, "KEY_FILE");
    int fd = -1;
    int rc = read_int(environ_list, "KEY_FD", 0, 1 << 20, &fd, err);

    if (rc == 0 && fd >= 0) {
        rc = rf__key_from_fd(fd, options->key, &options->key_bytes, err);
        rc = rc ? rf__wrap(err, rc, "RINGFOLD_KEY_FD=%d: ", fd) : 0;
    } else if (rc == 0 && path) {
        rc = rf__key_from_file(path, options->key, &options->key_bytes, err);
        rc = rc ? rf__wrap(err, rc, "RINGFOLD_KEY_FILE: ") : 0;
    }
    return rc;
}

static int read_choices(char **environ_list, struct rf_options *options, struct rf_error *err) {
    const char *transport = lookup(environ_list, "TRANSPORT"),
               *algorithm = lookup(environ_list, "ALGORITHM");

    if (transport) {
        if (strcmp(transport, "auto") == 0) {
            options->transport = RF_TRANSPORT_AUTO;
        } else if (strcmp(transport, "shm") == 0) {
            options->transport = RF_TRANSPORT_SHM;
        } else if (strcmp(transport, "tcp") == 0) {
            options->transport = RF_TRANSPORT_TCP;
        } else {
            return refuse(err, "TRANSPORT", transport, "auto, shm or tcp");
        }
    }
    if (algorithm && rf_algorithm_parse(algorithm, &options->algorithm)) {
        return refuse(err, "ALGORITHM", algorithm,
                      "auto, naive, reduce_broadcast, ring, direct, recursive_doubling, "
                      "rabenseifner, tree or shared");
    }
    return 0;
}

/* A table by name, or the user's own. */
static int read_tuning(char **environ_list, struct rf_options *options, struct rf_error *err) {
    char own[RF_TUNING_PATH];
    int rc = read_text(environ_list, "TUNING", options->tuning, sizeof options->tuning, err);

    if (rc == 0 && !strcmp(options->tuning, "default")) {
        options->tuning[0] = 0;
    } else if (rc == 0 && !options->tuning[0] && !rf_tuning_user_path(environ_list, own) &&
               access(own, F_OK) == 0) {
        memcpy(options->tuning, own, sizeof own);
    }
    return rc;
}

static int read_elastic(char **environ_list, struct rf_options *options, struct rf_error *err) {
    int faults = options->faults;
    const struct {
        const char *name;
        int least, most, *out;
    } numbers[] = {
        {"MIN_SIZE", 0, RF_MAX_RANKS, &options->min_size},
        {"MAX_SIZE", 0, RF_MAX_RANKS, &options->max_size},
        {"ID", 0, MOST_ID, &options->id},
        {"RESTARTS", 0, 1 << 30, &options->restarts},
        {"SLOW_EVICT", 0, 1 << 20, &options->slow_evict},
        {"SLOW_WINDOW", 1, 1 << 20, &options->slow_window},
        {"EVENT_FD", 0, 1 << 20, &options->event_fd},
        {"FAULTS", 0, 1, &faults},
    };
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < sizeof numbers / sizeof numbers[0]; i++) {
        rc = read_int(environ_list, numbers[i].name, numbers[i].least, numbers[i].most,
                      numbers[i].out, err);
    }
    options->faults = faults != 0;
    return rc ? rc : read_duration(environ_list, "COOL_DOWN", &options->cool_down_ms, err);
}

int rf_options_from_environ(struct rf_options *options, char **environ_list, struct rf_error *err) {
    int rc = read_job(environ_list, options, err);

    if (rc == 0) {
        rc = read_text(environ_list, "STORE", options->store, sizeof options->store, err);
    }
    if (rc == 0) {
        rc = read_int(environ_list, "SIZE", 1, RF_MAX_RANKS, &options->size, err);
    }
    if (rc == 0) {
        rc = read_elastic(environ_list, options, err);
    }
    if (rc == 0) { /* of an elastic job, whose size may grow, it is no more than a name */
        int last = options->min_size ? RF_MAX_RANKS - 1 : options->size - 1;
        rc = read_int(environ_list, "RANK", 0, last, &options->rank, err);
    }
    if (rc == 0) {
        rc = read_int(environ_list, "LOCAL_SIZE", 1, RF_MAX_RANKS, &options->local_size, err);
    }
    if (rc == 0) {
        rc = read_int(environ_list, "LOCAL_CORES", 1, MOST_CORES, &options->local_cores, err);
    }
    if (rc == 0) {
        rc = read_duration(environ_list, "DETECT", &options->detect_ms, err);
    }
    if (rc == 0) {
        rc = read_duration(environ_list, "START_TIMEOUT", &options->start_timeout_ms, err);
    }
    if (rc == 0) {
        rc = read_int(environ_list, "STREAMS", 1, RF_MAX_STREAMS, &options->streams, err);
    }
    if (rc == 0) {
        rc = read_choices(environ_list, options, err);
    }
    if (rc == 0) {
        rc = read_tuning(environ_list, options, err);
    }
    if (rc == 0) {
        rc = read_text(environ_list, "TOPOLOGY", options->topology, sizeof options->topology, err);
    }
    if (rc == 0) {
        rc = read_key(environ_list, options, err);
    }
    return rc;
}

static int check_elastic(const struct rf_options *options, struct rf_error *err) {
    int most = options->max_size ? options->max_size : options->size;

    if (options->min_size < 0 || options->min_size > options->size || most < options->size ||
        most > RF_MAX_RANKS) {
        return rf__fail(err, RF_EINVAL, 0,
                        "an elastic job of %d to %d workers cannot start with %d",
                        options->min_size, most, options->size);
    }
    if ((options->id < 0 && options->rank < 0) || options->id > MOST_ID || options->restarts < 0 ||
        options->slow_evict < 0 || options->slow_window < 1 || options->cool_down_ms < 0) {
        return rf__fail(err, RF_EINVAL, 0, "an option of an elastic job is out of its range");
    }
    return 0;
}

int rf__options_check(const struct rf_options *options, struct rf_error *err) {
    if (options->size < 1 || options->size > RF_MAX_RANKS) {
        return rf__fail(err, RF_EINVAL, 0, "size %d is not in 1 … %d", options->size, RF_MAX_RANKS);
    }
    if (options->elastic && options->min_size) {
        int rc = check_elastic(options, err);
        if (rc) {
            return rc;
        }
    } else if (options->rank < 0 || options->rank >= options->size) {
        return rf__fail(err, RF_EINVAL, 0, "rank %d is not in 0 … %d", options->rank,
                        options->size - 1);
    }
    if (!memchr(options->job, 0, sizeof options->job) ||
        !memchr(options->store, 0, sizeof options->store) ||
        !memchr(options->tuning, 0, sizeof options->tuning) ||
        !memchr(options->topology, 0, sizeof options->topology)) {
        return rf__fail(
            err, RF_EINVAL, 0,
            "the job's name, the store's address, the table's path or the topology has no end");
    }
    if ((unsigned)options->transport > RF_TRANSPORT_TCP ||
        (unsigned)options->algorithm >= RF_ALGORITHM_COUNT) {
        return rf__fail(err, RF_EINVAL, 0, "a transport or algorithm that does not exist");
    }
    if (options->streams < 1 || options->streams > RF_MAX_STREAMS) {
        return rf__fail(err, RF_EINVAL, 0, "%d streams between two workers are not in 1 … %d",
                        options->streams, RF_MAX_STREAMS);
    }
    if (options->detect_ms < 10 || options->start_timeout_ms < 1) {
        return rf__fail(err, RF_EINVAL, 0,
                        "detection time and start timeout must be at least 10 ms and 1 ms");
    }
    if (options->size == 1 && !(options->elastic && options->min_size)) {
        return 0;
    }
    if (!options->store[0]) {
        return rf__fail(err, RF_EINVAL, 0,
                        "a group of %d needs a store to meet at (RINGFOLD_STORE)", options->size);
    }
    if (!options->job[0]) {
        return rf__fail(err, RF_EINVAL, 0, "a group of %d needs a job name (RINGFOLD_JOB)",
                        options->size);
    }
    if (!job_is_valid(options->job)) {
        return rf__fail(err, RF_EINVAL, 0,
                        "the job name '%s' must have letters, digits, '.', '_' and '-'",
                        options->job);
    }
    if (options->key_bytes < RF_MIN_KEY_BYTES || options->key_bytes > RF_MAX_KEY_BYTES) {
        return rf__fail(
            err, RF_EINVAL, 0,
            "a job key of %zu bytes; it must have %d … %d (RINGFOLD_KEY_FD, RINGFOLD_KEY_FILE)",
            options->key_bytes, RF_MIN_KEY_BYTES, RF_MAX_KEY_BYTES);
    }
    return 0;
}
