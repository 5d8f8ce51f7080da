/* Making and filling the run folder. Everything is written relative to its descriptor, so that a
 * renamed folder stays whole. A folder that stops taking files does not stop the run: it is told at
 * the end. */
#include "run_folder.h"

#include "report.h"

#include <errno.h>
#include <fcntl.h>
#include <gnu/libc-version.h>
#include <ringfold/version.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

enum { NAME_TRIES = 100 };

static double wall_time(void) {
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + (double)(now.tv_nsec / 1000000) / 1e3;
}

/* mkdir -p; an existing folder is fine. */
static int make_folders(const char *path, struct rf_error *err) {
    char part[PATH_MAX];
    size_t length = strlen(path);

    if (length >= sizeof part) {
        return report_fail(err, RF_EIO, ENAMETOOLONG, "run folder '%.64s...'", path);
    }
    for (size_t i = 1; i <= length; i++) {
        if (path[i] != '/' && path[i] != '\0') {
            continue;
        }
        memcpy(part, path, i);
        part[i] = '\0';
        if (mkdir(part, 0777) && errno != EEXIST) {
            return report_fail(err, RF_EIO, errno, "cannot make the run folder '%s'", part);
        }
    }
    return 0;
}

/* runs/NAME-TIME, with a number behind it where that is taken. */
static int make_own_folder(struct run_folder *folder, const char *name, struct rf_error *err) {
    char base[RUN_NAME_MAX + 32];
    time_t now = time(NULL);
    struct tm local;

    localtime_r(&now, &local);
    int at = snprintf(base, sizeof base, "%s", name);
    strftime(base + at, sizeof base - (size_t)at, "-%Y%m%d-%H%M%S", &local);
    if (mkdir("runs", 0777) && errno != EEXIST) {
        return report_fail(err, RF_EIO, errno, "cannot make the folder 'runs'");
    }
    for (int i = 1; i <= NAME_TRIES; i++) {
        if (i == 1) {
            snprintf(folder->shown, sizeof folder->shown, "runs/%s", base);
        } else {
            snprintf(folder->shown, sizeof folder->shown, "runs/%s-%d", base, i);
        }
        if (!mkdir(folder->shown, 0777)) {
            return 0;
        }
        if (errno != EEXIST) {
            break;
        }
    }
    return report_fail(err, RF_EIO, errno, "cannot make the run folder '%s'", folder->shown);
}

/* Swapped in with a rename, so that there is always a latest one. A file system without links just
 * has none. */
static void link_latest(const struct run_folder *folder) {
    char temporary[64];

    snprintf(temporary, sizeof temporary, "runs/.latest-%d", (int)getpid());
    if (!symlink(folder->shown + strlen("runs/"), temporary) && rename(temporary, "runs/latest")) {
        unlink(temporary);
    }
}

int run_folder_create(struct run_folder *folder, const struct run_options *options,
                      struct rf_error *err) {
    const char *wanted = options->values[RUN_RUN_DIR].text;
    int rc = 0;

    folder->fd = folder->events_fd = folder->commits_fd = -1;
    if (wanted[0]) {
        rc = make_folders(wanted, err);
        snprintf(folder->shown, sizeof folder->shown, "%s", wanted);
    } else {
        rc = make_own_folder(folder, options->name, err);
    }
    if (rc) {
        return rc;
    }
    folder->fd = open(folder->shown, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder->fd < 0 || !realpath(folder->shown, folder->absolute)) {
        return report_fail(err, RF_EIO, errno, "cannot open the run folder '%s'", folder->shown);
    }
    if (!faccessat(folder->fd, "run.json", F_OK, 0)) {
        report_fail(err, RF_EUSAGE, 0, "the run folder '%s' holds another run", folder->shown);
        snprintf(err->next, sizeof err->next, "give another --run-dir, or remove that one");
        return RF_EUSAGE;
    }
    if ((mkdirat(folder->fd, "logs", 0777) && errno != EEXIST) ||
        (mkdirat(folder->fd, "logs/g1", 0777) && errno != EEXIST)) {
        return report_fail(err, RF_EIO, errno, "cannot make '%s/logs/g1'", folder->shown);
    }
    folder->events_fd =
        openat(folder->fd, "events.jsonl", O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (folder->events_fd < 0) {
        return report_fail(err, RF_EIO, errno, "cannot write '%s/events.jsonl'", folder->shown);
    }
    if (options->commits && options->elastic) {
        folder->commits_fd =
            openat(folder->fd, "commits.jsonl", O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
        if (folder->commits_fd < 0) {
            return report_fail(err, RF_EIO, errno, "cannot write '%s/commits.jsonl'",
                               folder->shown);
        }
    }
    if (!wanted[0]) {
        link_latest(folder);
    }
    return 0;
}

void run_folder_close(struct run_folder *folder) {
    if (folder->events_fd >= 0) {
        close(folder->events_fd);
    }
    if (folder->commits_fd >= 0) {
        close(folder->commits_fd);
    }
    if (folder->fd >= 0) {
        close(folder->fd);
    }
    folder->fd = folder->events_fd = folder->commits_fd = -1;
}

/* A whole file: under another name first, then renamed. */
static int write_json(const struct run_folder *folder, const char *name, const json_t *value) {
    char temporary[64];
    int rc = -1;

    snprintf(temporary, sizeof temporary, ".%s.new", name);
    char *text = json_dumps(value, JSON_INDENT(2));
    int fd = openat(folder->fd, temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0 || !text) {
        goto out;
    }
    FILE *file = fdopen(fd, "w");
    if (!file) {
        goto out;
    }
    fd = -1;
    bool written = fputs(text, file) >= 0 && fputc('\n', file) != EOF;
    bool closed = !fclose(file);
    if (written && closed && !renameat(folder->fd, temporary, folder->fd, name)) {
        rc = 0;
    }
out:
    if (fd >= 0) {
        close(fd);
    }
    free(text);
    return rc;
}

/* Names and arguments are bytes to the kernel but text to JSON: what is not UTF-8 is told as "?".
 */
static json_t *text_value(const char *text) {
    json_t *value = json_string(text);
    return value ? value : json_string("?");
}

static json_t *describe_settings(const struct run_options *options) {
    json_t *settings = json_object();

    for (int i = 0; i < RUN_SETTING_COUNT; i++) {
        const struct run_value *value = &options->values[i];
        json_object_set_new(
            settings, run_setting_name((enum run_setting)i),
            json_pack("{s:o, s:s}", "value", text_value(value->text), "source", value->source));
    }
    return settings;
}

int run_folder_describe(struct run_folder *folder, const struct run_options *options,
                        const char *store_uri, struct rf_error *err) {
    struct utsname host;
    char cwd[PATH_MAX];
    json_t *command = json_array();

    if (uname(&host)) {
        host = (struct utsname){.nodename = "?"};
    }
    for (char **word = options->program; *word; word++) {
        json_array_append_new(command, text_value(*word));
    }
    json_t *run = json_pack(
        "{s:s, s:f, s:o, s:o, s:o, s:i, s:o, s:o, s:{s:s, s:s, s:s}, s:[{s:o, s:i, s:s}]}", "job",
        options->job, "started", wall_time(), "command", command, "folder",
        text_value(folder->absolute), "cwd", text_value(getcwd(cwd, sizeof cwd) ? cwd : "?"),
        "workers", options->workers, "store", text_value(store_uri), "settings",
        describe_settings(options), "versions", "ringfold", rf_version(), "kernel", host.release,
        "libc", gnu_get_libc_version(), "hosts", "name", text_value(host.nodename), "cores",
        options->cores, "machine", host.machine);
    int failed = !run || write_json(folder, "run.json", run) ? errno : 0;
    bool written = run && !failed;
    json_decref(run);
    if (!written) {
        return report_fail(err, RF_EIO, failed, "cannot write '%s/run.json'", folder->shown);
    }
    return 0;
}

void run_folder_log_name(char out[RUN_LOG_NAME_MAX], int id, int restarts, const char *kind) {
    if (restarts) {
        snprintf(out, RUN_LOG_NAME_MAX, "logs/g1/%03d.r%d.%.8s", id, restarts, kind);
    } else {
        snprintf(out, RUN_LOG_NAME_MAX, "logs/g1/%03d.%.8s", id, kind);
    }
}

int run_folder_open_log(const struct run_folder *folder, int id, int restarts, const char *kind,
                        struct rf_error *err) {
    char name[RUN_LOG_NAME_MAX];

    run_folder_log_name(name, id, restarts, kind);
    int fd = openat(folder->fd, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) {
        return report_fail(err, RF_EIO, errno, "cannot write '%s/%s'", folder->shown, name);
    }
    return fd;
}

json_t *run_folder_take_report(const struct run_folder *folder, int id, int restarts) {
    char name[RUN_LOG_NAME_MAX];

    run_folder_log_name(name, id, restarts, "report");
    int fd = openat(folder->fd, name, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return NULL;
    }
    json_t *report = json_loadfd(fd, 0, NULL);
    close(fd);
    return report;
}

void run_folder_line(struct run_folder *folder, bool is_commit, const char *line, size_t bytes) {
    int fd = is_commit ? folder->commits_fd : folder->events_fd;

    if (fd >= 0) {
        folder->write_failed |= write(fd, line, bytes) != (ssize_t)bytes;
    }
}

char *run_folder_event(struct run_folder *folder, const char *name, json_t *event) {
    json_t *line = json_pack("{s:f, s:s}", "time", wall_time(), "event", name);
    char *text = NULL;

    if (line && event && !json_object_update(line, event)) {
        text = json_dumps(line, JSON_COMPACT | JSON_REAL_PRECISION(13));
    }
    json_decref(event);
    json_decref(line);
    if (text && folder->events_fd >= 0) {
        size_t length = strlen(text);
        text[length] = '\n'; /* one write a line: others append here too */
        ssize_t written = write(folder->events_fd, text, length + 1);
        text[length] = '\0';
        folder->write_failed |= written != (ssize_t)(length + 1);
    }
    return text;
}

void run_folder_error(struct run_folder *folder, json_t *report) {
    folder->write_failed |= folder->fd >= 0 && write_json(folder, "error.json", report) != 0;
}
