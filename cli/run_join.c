/* How workers of another host come into a running job. Two keys of its store, both decimal text:
 *
 *     rf/JOB/size      "SIZE MIN MAX": with how many it started, and its limits
 *     rf/JOB/next_id   the first id that no worker has had
 *
 * The launcher that started the job writes them once its workers run; one that joins takes ids by
 * compare-and-swap. */
#include "run.h"

#include "report.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STORE_MS = 10000, SWAP_TRIES = 1000, MOST_ID = 999999, TEXT_MAX = 64 };

static void key_of(const struct run *run, const char *name, char out[RF_MAX_STORE_KEY]) {
    snprintf(out, RF_MAX_STORE_KEY, "rf/%s/%s", run->options.job, name);
}

static int open_store(const struct run *run, struct rf_store **out, struct rf_error *err) {
    return rf_store_open(run->store_uri, run->key.key, run->key.key_bytes, STORE_MS, out, err);
}

/* --- the job's first launcher ----------------------------------------------------------------- */

static int publish(const struct run *run) {
    const struct run_options *options = &run->options;
    struct rf_store *store = NULL;
    struct rf_error err;
    char key[RF_MAX_STORE_KEY], value[TEXT_MAX];
    int64_t revision;

    int rc = open_store(run, &store, &err);
    if (!rc) {
        key_of(run, "next_id", key);
        snprintf(value, sizeof value, "%d", options->first_id + options->workers);
        rc = rf_store_cas(store, key, 0, value, strlen(value), &revision, &err);
    }
    if (!rc) {
        key_of(run, "size", key);
        snprintf(value, sizeof value, "%d %d %d", options->size, options->min_size,
                 options->max_size);
        rc = rf_store_put(store, key, value, strlen(value), &revision, &err);
    }
    rf_store_close(store);
    return rc;
}

void run_publish_start(struct run *run) {
    pid_t parent = getpid();

    if (!run->options.elastic || run->options.first_id || run->options.values[RUN_JOIN].text[0]) {
        return;
    }
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        _exit(getppid() == parent ? publish(run) != 0 : 1);
    }
    run->publisher = pid > 0 ? pid : 0; /* without it nobody can join, and nothing else */
}

void run_publish_ended(struct run *run) {
    if (run->publisher && waitpid(run->publisher, NULL, WNOHANG) == run->publisher) {
        run->publisher = 0;
    }
}

void run_publish_stop(struct run *run) {
    if (run->publisher) {
        kill(run->publisher, SIGKILL);
        while (waitpid(run->publisher, NULL, 0) < 0 && errno == EINTR) {
        }
    }
    run->publisher = 0;
}

/* --- one that joins --------------------------------------------------------------------------- */

/* A value as text; RF_ENOTFOUND where there is no such key. */
static int get_text(struct rf_store *store, const char *key, char out[TEXT_MAX], int64_t *revision,
                    struct rf_error *err) {
    size_t bytes = TEXT_MAX - 1;

    int rc = rf_store_get(store, key, out, &bytes, revision, err);
    out[rc ? 0 : bytes] = '\0';
    return rc;
}

/* `count` numbers with blanks between them, each within 1 … most. */
static bool read_numbers(const char *text, int *out, int count, int most) {
    for (int i = 0; i < count; i++) {
        char *end;
        if (*text < '0' || *text > '9') {
            return false;
        }
        errno = 0;
        long value = strtol(text, &end, 10);
        if (errno || value < 1 || value > most || *end != (i + 1 < count ? ' ' : '\0')) {
            return false;
        }
        out[i] = (int)value;
        text = end + 1;
    }
    return true;
}

static int fail_unusable(const struct run *run, const char *key, struct rf_error *err) {
    return report_fail(err, RF_ESTORE, 0, "the key %.200s in the store at %.60s holds no numbers",
                       key, run->options.values[RUN_JOIN].text);
}

static int read_sizes(struct run *run, struct rf_store *store, struct rf_error *err) {
    struct run_options *options = &run->options;
    char key[RF_MAX_STORE_KEY], text[TEXT_MAX];
    int64_t revision;
    int sizes[3];

    key_of(run, "size", key);
    int rc = get_text(store, key, text, &revision, err);
    if (rc == RF_ENOTFOUND) {
        report_fail(err, RF_ENOTFOUND, 0, "no job '%s' that others can join is at %.100s",
                    options->job, options->values[RUN_JOIN].text);
        snprintf(err->why, sizeof err->why,
                 "likely: its workers have not started yet, or it has another name");
        snprintf(err->next, sizeof err->next,
                 "check --job against the job's own, or start it first: ringfold run -v ...");
        return rc;
    }
    if (rc) {
        return rc;
    }
    if (!read_numbers(text, sizes, 3, RF_MAX_RANKS) || sizes[1] > sizes[0] || sizes[0] > sizes[2]) {
        return fail_unusable(run, key, err);
    }
    options->size = sizes[0];
    options->min_size = sizes[1];
    options->max_size = sizes[2];
    return 0;
}

/* The next `workers` ids are ours once we have swapped in what comes after them. */
static int take_ids(struct run *run, struct rf_store *store, struct rf_error *err) {
    struct run_options *options = &run->options;
    char key[RF_MAX_STORE_KEY], text[TEXT_MAX];
    int64_t revision = 0;
    int rc = RF_ECONFLICT;

    key_of(run, "next_id", key);
    for (int i = 0; i < SWAP_TRIES && rc == RF_ECONFLICT; i++) {
        int first = options->size;
        rc = get_text(store, key, text, &revision, err);
        if (rc == RF_ENOTFOUND) {
            revision = 0;
        } else if (rc) {
            return rc;
        } else if (!read_numbers(text, &first, 1, MOST_ID)) {
            return fail_unusable(run, key, err);
        }
        if (first + options->workers > MOST_ID) {
            return report_fail(err, RF_ELIMIT, 0, "the job '%s' has used up its %d ids",
                               options->job, MOST_ID);
        }
        options->first_id = first;
        snprintf(text, sizeof text, "%d", first + options->workers);
        rc = rf_store_cas(store, key, revision, text, strlen(text), &revision, err);
    }
    return rc;
}

int run_join(struct run *run, struct rf_error *err) {
    const char *join = run->options.values[RUN_JOIN].text;
    struct rf_store *store = NULL;

    if (!join[0]) {
        return 0;
    }
    int rc = open_store(run, &store, err);
    if (!rc) {
        rc = read_sizes(run, store, err);
    }
    if (!rc) {
        rc = take_ids(run, store, err);
    }
    for (int i = 0; !rc && i < run->options.workers; i++) {
        run->workers[i].id = run->options.first_id + i;
    }
    rf_store_close(store);
    return rc;
}
