/* ringfold rollback: sends a running job back to a checkpoint.
 *
 *     ringfold rollback --checkpoint URI [--to STEP] --store URI --job NAME --key-file FILE
 *
 * It first looks whether there is such a checkpoint: an order that cannot be carried out would end
 * the job. Then the order goes to the store, and the workers take it at the end of their step. */
#include "commands.h"
#include "format.h"
#include "report.h"

#include <argp.h>
#include <errno.h>
#include <inttypes.h>
#include <ringfold/ckpt.h>
#include <ringfold/comm.h>
#include <ringfold/job.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern char **environ;

struct settings {
    const char *checkpoint, *store, *job, *key_file;
    uint64_t step; /* UINT64_MAX: the newest */
    int timeout_ms;
    bool json;
    struct rf_options options; /* key and store */
};

enum { KEY_CHECKPOINT = 1000, KEY_TO, KEY_STORE, KEY_JOB, KEY_FILE, KEY_TIMEOUT, KEY_JSON };

static const struct argp_option flags[] = {
    {"checkpoint", KEY_CHECKPOINT, "URI", 0, "Where the job's checkpoints are", 0},
    {"to", KEY_TO, "STEP", 0, "The checkpoint of this step (the newest whole one)", 0},
    {"store", KEY_STORE, "URI", 0, "The job's store, tcp://HOST:PORT (RINGFOLD_STORE)", 0},
    {"job", KEY_JOB, "NAME", 0, "The job (RINGFOLD_JOB)", 0},
    {"key-file", KEY_FILE, "FILE", 0, "The job's key (RINGFOLD_KEY_FILE)", 0},
    {"timeout", KEY_TIMEOUT, "SECONDS", 0, "How long to wait for the workers (60)", 0},
    {"json", KEY_JSON, NULL, 0, "The result as a JSON line", 0},
    {0},
};

static error_t parse(int flag, char *argument, struct argp_state *state) {
    struct settings *settings = state->input;
    char *end;

    switch (flag) {
    case KEY_CHECKPOINT:
        settings->checkpoint = argument;
        break;
    case KEY_TO:
        errno = 0;
        settings->step = strtoull(argument, &end, 10);
        if (errno || end == argument || *end || argument[0] == '-') {
            argp_error(state, "--to '%s' is not the number of a step", argument);
        }
        break;
    case KEY_STORE:
        settings->store = argument;
        break;
    case KEY_JOB:
        settings->job = argument;
        break;
    case KEY_FILE:
        settings->key_file = argument;
        break;
    case KEY_TIMEOUT:
        if (parse_seconds_ms(argument, &settings->timeout_ms)) {
            argp_error(state, "--timeout '%s' is not a number of seconds", argument);
        }
        break;
    case KEY_JSON:
        settings->json = true;
        break;
    case ARGP_KEY_END:
        if (!settings->checkpoint) {
            argp_error(state, "--checkpoint is missing: where the job's checkpoints are");
        }
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static const struct argp parser = {
    .options = flags,
    .parser = parse,
    .doc = "Send a running job back to a checkpoint.\v"
           "All workers return to it at the end of their step; newer checkpoints are marked bad. "
           "The launcher's first lines say what --store, --job and --key-file are.",
};

/* Key, store and job, flags before variables, as the library reads them. */
static int options_read(struct settings *settings, struct rf_error *err) {
    const struct {
        const char *name, *value;
    } given[] = {{"RINGFOLD_KEY_FILE", settings->key_file},
                 {"RINGFOLD_STORE", settings->store},
                 {"RINGFOLD_JOB", settings->job}};

    for (size_t i = 0; i < sizeof given / sizeof *given; i++) {
        if (given[i].value && setenv(given[i].name, given[i].value, 1)) {
            return report_fail(err, RF_ENOMEM, errno, "cannot set %s", given[i].name);
        }
    }
    if (settings->key_file) {
        unsetenv("RINGFOLD_KEY_FD");
    }
    rf_options_init(&settings->options);
    int rc = rf_options_from_environ(&settings->options, environ, err);
    if (!rc && !settings->options.key_bytes) {
        rc = report_fail(err, RF_EUSAGE, 0, "the job's key is missing: --key-file FILE");
        snprintf(err->next, sizeof err->next,
                 "a job can be steered that was started with --key-file");
    }
    if (!rc && !settings->options.store[0]) {
        rc = report_fail(err, RF_EUSAGE, 0, "which store? --store tcp://HOST:PORT is missing");
    }
    return rc;
}

/* The newest whole checkpoint of at most the step that was named. */
struct search {
    uint64_t most, step;
    bool found;
    char name[RF_CKPT_NAME];
};

static void look_at(void *context, const struct rf_ckpt_info *info) {
    struct search *search = context;

    if (info->condition == RF_CKPT_WHOLE && info->step <= search->most) {
        search->found = true;
        search->step = info->step;
        memcpy(search->name, info->name, sizeof search->name);
    }
}

static int find(const struct settings *settings, struct search *search, struct rf_error *err) {
    *search = (struct search){.most = settings->step};
    int rc = rf_ckpt_list(settings->checkpoint, look_at, search, NULL, err);
    bool exact = settings->step == UINT64_MAX || search->step == settings->step;

    if (!rc && (!search->found || !exact)) {
        char step[48] = "";
        if (settings->step != UINT64_MAX) {
            snprintf(step, sizeof step, " of step %" PRIu64, settings->step);
        }
        rc = report_fail(err, RF_ENOTFOUND, 0, "there is no whole checkpoint%s in '%s'", step,
                         settings->checkpoint);
        snprintf(err->next, sizeof err->next, "ringfold ckpt list %s", settings->checkpoint);
    }
    return rc;
}

static int roll_back(const struct settings *settings, struct rf_error *err) {
    const struct rf_options *options = &settings->options;
    struct rf_job_state state;
    struct rf_store *store = NULL;
    struct search search;

    int rc = find(settings, &search, err);
    if (!rc) {
        rc = rf_store_open(options->store, options->key, options->key_bytes, 5000, &store, err);
    }
    if (!rc) {
        rc = rf_job_rollback(store, options->job, search.step, settings->timeout_ms, &state, err);
    }
    if (!rc && settings->json) {
        printf("{\"step\": %" PRIu64 ", \"checkpoint\": \"%s\", \"generation\": %" PRIu64
               ", \"workers\": %d}\n",
               search.step, search.name, state.generation, state.members);
    } else if (!rc) {
        printf("%d worker%s of job '%s' go back to step %" PRIu64 " (%s) in generation %" PRIu64
               "\n",
               state.members, state.members == 1 ? "" : "s", options->job, search.step, search.name,
               state.generation);
    }
    rf_store_close(store);
    return rc;
}

int cmd_rollback(int argc, char **argv) {
    struct rf_error err = {.rank = -1};
    struct settings settings = {.step = UINT64_MAX, .timeout_ms = 60000};

    if (argp_parse(&parser, argc, argv, 0, NULL, &settings)) {
        return exit_status(RF_EUSAGE);
    }
    int rc = options_read(&settings, &err);
    if (!rc) {
        rc = roll_back(&settings, &err);
    }
    if (rc) {
        report_error(&err);
    }
    explicit_bzero(settings.options.key, sizeof settings.options.key);
    return exit_status(rc);
}
