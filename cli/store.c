/* ringfold store: serves a store, and looks into one.
 *
 *     ringfold store [serve] [--bind HOST:PORT] [--journal FILE] --key-file FILE
 *     ringfold store get|put|list|delete --store URI --key-file FILE [KEY [VALUE]]
 *
 * The server runs in this process: it waits for its sockets and for a signal to end, and prints one
 * line, where it listens. Results go to stdout as they are, or as JSON lines. */
#include "commands.h"
#include "format.h"
#include "report.h"

#include <argp.h>
#include <errno.h>
#include <jansson.h>
#include <poll.h>
#include <ringfold/comm.h>
#include <ringfold/store.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

extern char **environ;

enum action { SERVE, GET, PUT, LIST, DELETE, ACTIONS };

struct action_shape {
    const char *name;
    int least, most; /* words after it */
};

static const struct action_shape shapes[ACTIONS] = {
    [SERVE] = {"serve", 0, 0}, [GET] = {"get", 1, 1},       [PUT] = {"put", 1, 2},
    [LIST] = {"list", 0, 1},   [DELETE] = {"delete", 1, 1},
};

struct settings {
    enum action action;
    const char *bind, *journal, *key_file, *store;
    const char *words[2];
    int word_count;
    bool action_given, json;
    int timeout_ms;
    struct rf_options options; /* key and store */
};

enum { KEY_BIND = 1000, KEY_JOURNAL, KEY_FILE, KEY_STORE, KEY_JSON, KEY_TIMEOUT };

static const struct argp_option flags[] = {
    {"bind", KEY_BIND, "HOST:PORT", 0, "Where to listen (127.0.0.1:0; port 0 takes a free one)", 0},
    {"journal", KEY_JOURNAL, "FILE", 0, "Keep the content in FILE over restarts (in memory only)",
     0},
    {"key-file", KEY_FILE, "FILE", 0, "The job's key, 16 to 64 bytes (RINGFOLD_KEY_FILE)", 0},
    {"store", KEY_STORE, "URI", 0, "The store to look into, tcp://HOST:PORT (RINGFOLD_STORE)", 0},
    {"timeout", KEY_TIMEOUT, "SECONDS", 0, "How long to try to reach it (5)", 0},
    {"json", KEY_JSON, NULL, 0, "Results as JSON lines", 0},
    {"key_file", KEY_FILE, "FILE", OPTION_HIDDEN, NULL, 0},
    {0},
};

static void take_word(struct settings *settings, const char *word, struct argp_state *state) {
    if (!settings->action_given) {
        for (int i = 0; i < ACTIONS; i++) {
            if (!strcmp(shapes[i].name, word)) {
                settings->action = (enum action)i;
                settings->action_given = true;
                return;
            }
        }
        argp_error(state, "'%s' is none of serve, get, put, list, delete", word);
    } else if (settings->word_count == 2) {
        argp_error(state, "'%s' is one word too many", word);
    } else {
        settings->words[settings->word_count++] = word;
    }
}

static error_t parse(int flag, char *argument, struct argp_state *state) {
    struct settings *settings = state->input;

    switch (flag) {
    case KEY_BIND:
        settings->bind = argument;
        break;
    case KEY_JOURNAL:
        settings->journal = argument;
        break;
    case KEY_FILE:
        settings->key_file = argument;
        break;
    case KEY_STORE:
        settings->store = argument;
        break;
    case KEY_TIMEOUT:
        if (parse_seconds_ms(argument, &settings->timeout_ms)) {
            argp_error(state, "--timeout '%s' is not a number of seconds", argument);
        }
        break;
    case KEY_JSON:
        settings->json = true;
        break;
    case ARGP_KEY_ARG:
        take_word(settings, argument, state);
        break;
    case ARGP_KEY_END: {
        const struct action_shape *shape = &shapes[settings->action];
        if (settings->word_count < shape->least) {
            argp_error(state, "%s needs a key", shape->name);
        } else if (settings->word_count > shape->most) {
            argp_error(state, "'%s' is one word too many for %s",
                       settings->words[settings->word_count - 1], shape->name);
        }
        break;
    }
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static const struct argp parser = {
    .options = flags,
    .parser = parse,
    .args_doc = "[serve]\nget KEY\nput KEY [VALUE]\nlist [PREFIX]\ndelete KEY",
    .doc = "Serve the store over which the workers of a job meet, or look into one.\v"
           "put without VALUE reads it from stdin.",
};

/* Key and address, as the library takes them: flags before variables. */
static int read_key(struct settings *settings, struct rf_error *err) {
    static const char *const taken[] = {
        "RINGFOLD_KEY_FD=", "RINGFOLD_KEY_FILE=", "RINGFOLD_STORE="};
    char file[4096 + 32], store[300];
    char *list[4];
    int count = 0;

    if (settings->key_file) {
        snprintf(file, sizeof file, "RINGFOLD_KEY_FILE=%s", settings->key_file);
        list[count++] = file;
    }
    if (settings->store) {
        snprintf(store, sizeof store, "RINGFOLD_STORE=%s", settings->store);
        list[count++] = store;
    }
    for (char **variable = environ; *variable && count < 3; variable++) {
        for (int i = 0; i < 3 && count < 3; i++) {
            bool flag_given = i < 2 ? settings->key_file != NULL : settings->store != NULL;
            if (!flag_given && !strncmp(*variable, taken[i], strlen(taken[i]))) {
                list[count++] = *variable;
            }
        }
    }
    list[count] = NULL;
    rf_options_init(&settings->options);
    int rc = rf_options_from_environ(&settings->options, list, err);
    if (!rc && !settings->options.key_bytes) {
        rc = report_fail(err, RF_EUSAGE, 0, "the job's key is missing");
        snprintf(err->next, sizeof err->next,
                 "head -c 32 /dev/urandom > job.key; chmod 600 job.key, then --key-file job.key");
    }
    if (!rc && settings->action != SERVE && !settings->options.store[0]) {
        rc = report_fail(err, RF_EUSAGE, 0, "which store? --store tcp://HOST:PORT is missing");
    }
    return rc;
}

static void print_json(json_t *object) {
    char *text = json_dumps(object, JSON_COMPACT);
    if (text) {
        puts(text);
    }
    free(text);
    json_decref(object);
}

/* The server. */

/* The host part of what was bound to, for the line that people copy. */
static void announce(const struct settings *settings, const struct rf_store_server *server) {
    char host[256];
    const char *colon = strrchr(settings->bind, ':');
    size_t bytes = colon ? (size_t)(colon - settings->bind) : 0;

    snprintf(host, sizeof host, "%.*s", (int)(bytes < 255 ? bytes : 255), settings->bind);
    if (!host[0]) {
        gethostname(host, sizeof host - 1);
        host[sizeof host - 1] = 0;
    }
    int port = rf_store_server_port(server);
    if (settings->json) {
        char uri[300];
        snprintf(uri, sizeof uri, "tcp://%s:%d", host, port);
        print_json(json_pack("{s:s, s:s, s:i, s:s?, s:i}", "event", "listening", "store", uri,
                             "port", port, "journal", settings->journal, "pid", (int)getpid()));
    } else {
        printf("store at tcp://%s:%d, %s%s\n", host, port,
               settings->journal ? "journal " : "in memory only",
               settings->journal ? settings->journal : "");
    }
    fflush(stdout);
    if (rf_store_server_note(server)[0]) {
        fprintf(stderr, "! %s\n", rf_store_server_note(server));
    }
}

/* A descriptor that is readable once INT or TERM has come; they do nothing else any more. */
static int catch_signals(struct rf_error *err) {
    sigset_t signals;

    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGTERM);
    int fd = -1;
    if (sigprocmask(SIG_BLOCK, &signals, NULL) ||
        (fd = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK)) < 0) {
        return report_fail(err, RF_EIO, errno, "cannot wait for signals");
    }
    return fd;
}

static int serve(const struct settings *settings, struct rf_error *err) {
    struct rf_store_server_options options = {.bind = settings->bind,
                                              .journal = settings->journal,
                                              .key = settings->options.key,
                                              .key_bytes = settings->options.key_bytes};
    struct rf_store_server *server = NULL;
    int rc = 0, signals = catch_signals(err);

    if (signals < 0) {
        return signals;
    }
    /* A file that has reached its limit is an error of write, not a signal. */
    signal(SIGXFSZ, SIG_IGN);
    rc = rf_store_server_create(&options, &server, err);
    if (rc) {
        goto out;
    }
    announce(settings, server);
    struct pollfd ready[2] = {{.fd = signals, .events = POLLIN},
                              {.fd = rf_store_server_fd(server), .events = POLLIN}};
    while (!rc && !ready[0].revents) {
        if (poll(ready, 2, rf_store_server_timeout_ms(server)) < 0 && errno != EINTR) {
            rc = report_fail(err, RF_EIO, errno, "cannot wait for the store's sockets");
        } else {
            rc = rf_store_server_step(server, err);
        }
    }
out:
    rf_store_server_destroy(server);
    close(signals);
    return rc;
}

/* Looking into one. */

static void print_entry(const struct settings *settings, const char *key, const void *value,
                        size_t bytes, int64_t revision) {
    if (settings->json) {
        /* Values are bytes: what is not UTF-8 is shown as hexadecimal. */
        json_t *text = json_stringn(value, bytes);
        char *hex = NULL;
        if (!text && (hex = malloc(2 * bytes + 1))) {
            for (size_t i = 0; i < bytes; i++) {
                snprintf(hex + 2 * i, 3, "%02x", ((const unsigned char *)value)[i]);
            }
        }
        const char *name = text ? "value" : "value_hex";
        print_json(json_pack("{s:s, s:I, s:o}", "key", key, "revision", (json_int_t)revision, name,
                             text ? text : json_string(hex ? hex : "")));
        free(hex);
    } else if (settings->action == LIST) {
        printf("%lld\t%s\t%.*s\n", (long long)revision, key, (int)bytes, (const char *)value);
    } else {
        fwrite(value, 1, bytes, stdout);
        if (isatty(STDOUT_FILENO)) {
            putchar('\n');
        }
    }
}

static void list_entry(void *context, const char *key, const void *value, size_t bytes,
                       int64_t revision) {
    print_entry(context, key, value, bytes, revision);
}

static int get(const struct settings *settings, struct rf_store *store, char *value,
               struct rf_error *err) {
    size_t bytes = RF_MAX_STORE_VALUE;
    int64_t revision;
    int rc = rf_store_get(store, settings->words[0], value, &bytes, &revision, err);
    if (!rc) {
        print_entry(settings, settings->words[0], value, bytes, revision);
    }
    return rc;
}

static int put(const struct settings *settings, struct rf_store *store, char *value,
               struct rf_error *err) {
    const char *bytes = settings->words[1];
    size_t count = bytes ? strlen(bytes) : 0;
    int64_t revision;

    if (!bytes) {
        count = fread(value, 1, RF_MAX_STORE_VALUE + 1, stdin);
        bytes = value;
    }
    int rc = rf_store_put(store, settings->words[0], bytes, count, &revision, err);
    if (!rc && settings->json) {
        print_json(
            json_pack("{s:s, s:I}", "key", settings->words[0], "revision", (json_int_t)revision));
    }
    return rc;
}

static int look(struct settings *settings, struct rf_error *err) {
    struct rf_store *store = NULL;
    int rc = 0;
    char *value = malloc(RF_MAX_STORE_VALUE + 1);

    if (!value) {
        return report_fail(err, RF_ENOMEM, 0, "no memory for a value");
    }
    rc = rf_store_open(settings->options.store, settings->options.key, settings->options.key_bytes,
                       settings->timeout_ms, &store, err);
    if (rc) {
        goto out;
    }
    switch (settings->action) {
    case GET:
        rc = get(settings, store, value, err);
        break;
    case PUT:
        rc = put(settings, store, value, err);
        break;
    case LIST:
        rc = rf_store_list(store, settings->word_count ? settings->words[0] : "", list_entry,
                           settings, err);
        break;
    case DELETE:
        rc = rf_store_delete(store, settings->words[0], err);
        break;
    case SERVE:
    case ACTIONS:
        break;
    }
    if (!rc && (fflush(stdout) || ferror(stdout))) {
        rc = report_fail(err, RF_EIO, errno, "cannot write the result");
    }
out:
    rf_store_close(store);
    free(value);
    return rc;
}

int cmd_store(int argc, char **argv) {
    struct rf_error err = {.rank = -1};
    struct settings settings = {.bind = "127.0.0.1:0", .timeout_ms = 5000};

    if (argp_parse(&parser, argc, argv, 0, NULL, &settings)) {
        return exit_status(RF_EUSAGE);
    }
    int rc = read_key(&settings, &err);
    if (!rc) {
        rc = settings.action == SERVE ? serve(&settings, &err) : look(&settings, &err);
    }
    if (rc) {
        report_error(&err);
    }
    explicit_bzero(settings.options.key, sizeof settings.options.key);
    return exit_status(rc);
}
