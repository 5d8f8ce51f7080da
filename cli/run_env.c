/* Builds a worker's environment. The key never becomes part of it: only the number of a descriptor
 * does. */
#include "run_env.h"

#include "report.h"
#include "run_folder.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <ringfold/comm.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

extern char **environ;

enum { RUN_ENV_OWN = 48 /* variables that the launcher sets itself */ };

static int read_file(struct run_key *key, const char *path, struct rf_error *err) {
    int rc = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0) {
        return report_fail(err, RF_EIO, errno, "cannot read the key file '%s'", path);
    }
    while (key->file_bytes < sizeof key->file) {
        ssize_t count = read(fd, key->file + key->file_bytes, sizeof key->file - key->file_bytes);
        if (count < 0 && errno == EINTR) {
            continue;
        }
        if (count < 0) {
            rc = report_fail(err, RF_EIO, errno, "cannot read the key file '%s'", path);
        }
        if (count <= 0) {
            break;
        }
        key->file_bytes += (size_t)count;
    }
    if (!rc && key->file_bytes == sizeof key->file) {
        rc = report_fail(err, RF_ELIMIT, 0, "the key file '%s' has %d bytes or more", path,
                         RUN_MAX_KEY_FILE);
    }
    close(fd);
    return rc;
}

int run_key_descriptor(const struct run_key *key, struct rf_error *err) {
    int fd = memfd_create("ringfold-key", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (fd < 0) {
        return report_fail(err, RF_EIO, errno, "cannot make a memory file for the job's key");
    }
    if (write(fd, key->file, key->file_bytes) != (ssize_t)key->file_bytes ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) ||
        lseek(fd, 0, SEEK_SET)) {
        report_fail(err, RF_EIO, errno, "cannot seal the memory file of the job's key");
        close(fd);
        return RF_EIO;
    }
    return fd;
}

int run_key_read(struct run_key *key, const char *key_file, struct rf_error *err) {
    struct rf_options options;
    char variable[PATH_MAX + 32];
    char *const only[] = {variable, NULL};
    int rc = 0;

    *key = (struct run_key){0};
    if (key_file[0]) {
        rc = read_file(key, key_file, err);
    } else if (getrandom(key->file, 32, 0) == 32) {
        key->file_bytes = 32;
    } else {
        rc = report_fail(err, RF_EIO, errno, "no random numbers are to be had");
    }
    if (rc) {
        return rc;
    }
    /* The library says what it takes for the key, here as in the workers. */
    int fd = run_key_descriptor(key, err);
    if (fd < 0) {
        return fd;
    }
    if (key_file[0]) {
        snprintf(variable, sizeof variable, "RINGFOLD_KEY_FILE=%s", key_file);
    } else {
        snprintf(variable, sizeof variable, "RINGFOLD_KEY_FD=%d", fd);
    }
    rf_options_init(&options);
    rc = rf_options_from_environ(&options, (char **)only, err);
    if (!rc) {
        memcpy(key->key, options.key, sizeof key->key);
        key->key_bytes = options.key_bytes;
    }
    explicit_bzero(&options, sizeof options);
    close(fd);
    return rc;
}

int run_env_threads(const struct run_options *options) {
    int share = options->cores / options->workers;

    if (options->threads) {
        return options->threads;
    }
    return share > 0 ? share : 1;
}

void run_env_cores(const struct run_options *options, int local, cpu_set_t *out) {
    cpu_set_t allowed;
    int first = options->cores * local / options->workers;
    int last = options->cores * (local + 1) / options->workers;
    int seen = 0;

    last = last > first ? last : first + 1; /* more workers than cores: neighbours share one */
    CPU_ZERO(out);
    CPU_ZERO(&allowed);
    if (sched_getaffinity(0, sizeof allowed, &allowed)) {
        return;
    }
    for (int core = 0; core < CPU_SETSIZE; core++) {
        if (!CPU_ISSET(core, &allowed)) {
            continue;
        }
        if (seen >= first && seen < last) {
            CPU_SET(core, out);
        }
        seen++;
    }
}

int run_env_free_port(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof address;
    int port = 0;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd >= 0 && !bind(fd, (struct sockaddr *)&address, sizeof address) &&
        !getsockname(fd, (struct sockaddr *)&address, &bytes)) {
        port = ntohs(address.sin_port);
    }
    if (fd >= 0) {
        close(fd);
    }
    return port;
}

struct variables {
    char **list;
    size_t count, room;
    bool failed;
};

static void take(struct variables *variables, char *text) {
    if (!text || variables->count + 1 >= variables->room) {
        variables->failed = true;
        free(text);
        return;
    }
    variables->list[variables->count++] = text;
    variables->list[variables->count] = NULL;
}

/* NAME=VALUE; a variable of that name that is there already goes. */
static void set(struct variables *variables, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void set(struct variables *variables, const char *format, ...) {
    char *text = NULL;
    va_list arguments;

    va_start(arguments, format);
    if (vasprintf(&text, format, arguments) < 0) {
        text = NULL;
    }
    va_end(arguments);
    size_t name_bytes = text ? strcspn(text, "=") + 1 : 0;
    for (size_t i = 0; text && i < variables->count; i++) {
        if (!strncmp(variables->list[i], text, name_bytes)) {
            free(variables->list[i]);
            variables->list[i] = text;
            return;
        }
    }
    take(variables, text);
}

/* What belongs to a run around this one, or is set anew. */
static bool is_dropped(const char *variable) {
    static const char *const names[] = {
        "RINGFOLD_KEY_FILE=",    "RINGFOLD_KEY_FD=",       "RINGFOLD_TRANSPORT=",
        "RINGFOLD_ALGORITHM=",   "RINGFOLD_MIN_SIZE=",     "RINGFOLD_MAX_SIZE=",
        "RINGFOLD_ID=",          "RINGFOLD_EVENT_FD=",     "RINGFOLD_SLOW_EVICT=",
        "RINGFOLD_SLOW_WINDOW=", "RINGFOLD_COOL_DOWN=",    "RINGFOLD_FAULTS=",
        "RINGFOLD_JOIN=",        "RINGFOLD_MAX_RESTARTS=", "RINGFOLD_GUEST=",
        "RINGFOLD_STREAMS="};

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (!strncmp(variable, names[i], strlen(names[i]))) {
            return true;
        }
    }
    return false;
}

static void set_elastic(struct variables *v, const struct run_options *options,
                        const struct run_env_worker *worker) {
    set(v, "RINGFOLD_ID=%d", worker->id);
    set(v, "RINGFOLD_MIN_SIZE=%d", options->min_size);
    set(v, "RINGFOLD_MAX_SIZE=%d", options->max_size);
    set(v, "RINGFOLD_SLOW_EVICT=%d", options->slow_evict);
    set(v, "RINGFOLD_SLOW_WINDOW=%d", options->slow_window);
    set(v, "RINGFOLD_COOL_DOWN=%dms", options->cool_down_ms);
    if (worker->event_fd >= 0) {
        set(v, "RINGFOLD_EVENT_FD=%d", worker->event_fd);
    }
    if (options->faults) {
        set(v, "RINGFOLD_FAULTS=1");
    }
    if (options->values[RUN_JOIN].text[0]) {
        set(v, "RINGFOLD_GUEST=1");
    }
}

static void set_own(struct variables *v, const struct run_env *env,
                    const struct run_env_worker *worker) {
    const struct run_options *options = env->options;
    int rank = worker->id < RF_MAX_RANKS ? worker->id : RF_MAX_RANKS - 1; /* of one that joins: a
                                                                             name, no more */
    char report[RUN_LOG_NAME_MAX];

    run_folder_log_name(report, worker->id, worker->restarts, "report");
    set(v, "RINGFOLD_JOB=%s", options->job);
    set(v, "RINGFOLD_RANK=%d", rank);
    set(v, "RINGFOLD_SIZE=%d", options->size);
    set(v, "RINGFOLD_LOCAL_RANK=%d", worker->local);
    set(v, "RINGFOLD_LOCAL_SIZE=%d", options->workers);
    set(v, "RINGFOLD_LOCAL_CORES=%d", options->cores);
    set(v, "RINGFOLD_GENERATION=1");
    set(v, "RINGFOLD_RESTARTS=%d", worker->restarts);
    set(v, "RINGFOLD_STORE=%s", env->store_uri);
    set(v, "RINGFOLD_RUN_DIR=%s", env->run_dir);
    set(v, "RINGFOLD_REPORT=%s/%s", env->run_dir, report);
    set(v, "RINGFOLD_KEY_FD=%d", worker->key_fd);
    set(v, "RINGFOLD_DETECT=%dms", options->detect_ms);
    set(v, "RINGFOLD_START_TIMEOUT=%dms", options->start_timeout_ms);
    if (options->elastic) {
        set_elastic(v, options, worker);
    }
    if (strcmp(options->values[RUN_TRANSPORT].text, "auto")) {
        set(v, "RINGFOLD_TRANSPORT=%s", options->values[RUN_TRANSPORT].text);
    }
    if (options->streams > 1) {
        set(v, "RINGFOLD_STREAMS=%d", options->streams);
    }
    if (strcmp(options->values[RUN_ALGORITHM].text, "auto")) {
        set(v, "RINGFOLD_ALGORITHM=%s", options->values[RUN_ALGORITHM].text);
    }
    set(v, "RANK=%d", rank);
    set(v, "WORLD_SIZE=%d", options->size);
    set(v, "LOCAL_RANK=%d", worker->local);
    set(v, "LOCAL_WORLD_SIZE=%d", options->workers);
    set(v, "MASTER_ADDR=127.0.0.1");
    set(v, "MASTER_PORT=%d", env->master_port);
}

char **run_env_create(const struct run_env *env, const struct run_env_worker *worker) {
    struct variables v = {.room = RUN_ENV_OWN + RUN_MAX_EXPORTS};

    for (char **variable = environ; *variable; variable++) {
        v.room++;
    }
    v.list = calloc(v.room, sizeof *v.list);
    if (!v.list) {
        return NULL;
    }
    for (char **variable = environ; *variable; variable++) {
        if (!is_dropped(*variable)) {
            take(&v, strdup(*variable));
        }
    }
    if (env->options->threads || !getenv("OMP_NUM_THREADS")) {
        set(&v, "OMP_NUM_THREADS=%d", run_env_threads(env->options));
    }
    for (int i = 0; i < env->options->export_count; i++) {
        if (strchr(env->options->exports[i], '=')) {
            set(&v, "%s", env->options->exports[i]);
        }
    }
    set_own(&v, env, worker);
    if (v.failed) {
        run_env_free(v.list);
        return NULL;
    }
    return v.list;
}

void run_env_free(char **variables) {
    for (char **variable = variables; variables && *variable; variable++) {
        free(*variable);
    }
    free(variables);
}
