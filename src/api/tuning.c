/* Tables of rules as files: finding, reading and writing them. What a table is, coll/choose knows.
 */
#include <ringfold/tuning.h>

#include "base/mem.h"
#include "base/status.h"
#include "coll/choose.h"
#include "os/file.h"

#include <stdio.h>
#include <string.h>

static const char *variable(char **environ_list, const char *name) {
    size_t length = strlen(name);

    for (char **entry = environ_list; entry && *entry; entry++) {
        if (!strncmp(*entry, name, length) && (*entry)[length] == '=') {
            return *entry + length + 1;
        }
    }
    return NULL;
}

int rf_tuning_user_path(char **environ_list, char out[RF_TUNING_PATH]) {
    const char *config = variable(environ_list, "XDG_CONFIG_HOME");
    const char *home = variable(environ_list, "HOME");
    int length = RF_TUNING_PATH;

    if (config && config[0] == '/') {
        length = snprintf(out, RF_TUNING_PATH, "%s/ringfold/tuning.json", config);
    } else if (home && home[0] == '/') {
        length = snprintf(out, RF_TUNING_PATH, "%s/.config/ringfold/tuning.json", home);
    }
    return length > 0 && length < RF_TUNING_PATH ? 0 : RF_ENOTFOUND;
}

/* All of the file, for rf__free. One byte more than is allowed tells that it is too long. */
static int read_all(const char *path, char **out, size_t *count, struct rf_error *err) {
    struct rf__blobs *files = &rf__file_blobs;
    struct rf__blob *blob = NULL;
    uint64_t bytes = 0;
    size_t room = RF_MAX_TUNING_FILE + 1;
    char *text = NULL;
    int rc = files->ops->open(files, path, &blob, &bytes, err);

    if (rc) {
        goto out;
    }
    text = rf__alloc(room, 1);
    if (!text) {
        rc = rf__fail(err, RF_ENOMEM, 0, "no memory to read it");
        goto out;
    }
    ssize_t got = files->ops->read(files, blob, 0, text, room, err);
    rc = got < 0 ? (int)got : 0;
    if (rc == 0) {
        *count = (size_t)got;
        *out = text;
        text = NULL;
    }
out:
    rf__free(text);
    if (blob) {
        files->ops->close(files, blob);
    }
    return rc;
}

int rf_tuning_load(const char *path, struct rf_tuning *out, struct rf_error *err) {
    struct rf_error ignored;
    char *text = NULL;
    size_t count = 0;

    err = err ? err : &ignored;
    int rc = read_all(path, &text, &count, err);
    if (rc == 0) {
        rc = rf__tuning_decode(text, count, out, err);
    }
    rf__free(text);
    if (rc) {
        /* whatever it was, it is the path that is to be looked at */
        rc = err->code = rc == RF_ENOMEM ? RF_ENOMEM : RF_EINVAL;
        rc = rf__wrap(err, rc, "the tuning table '%.200s' cannot be used: ", path);
        rf__detail(err->next, "measure it anew with 'ringfold tune', or go without it: "
                              "RINGFOLD_TUNING=default");
    }
    return rc;
}

/* The file's folder, and its name in there. */
static int split(const char *path, char folder[RF_TUNING_PATH], const char **name,
                 struct rf_error *err) {
    const char *slash = strrchr(path, '/');
    size_t length = slash ? (size_t)(slash - path) : 0;

    *name = slash ? slash + 1 : path;
    if (!**name || length + 2 > RF_TUNING_PATH) {
        return rf__fail(err, RF_EINVAL, 0, "'%.200s' is no file's path", path);
    }
    memcpy(folder, path, length);
    folder[length] = 0;
    if (!length) {
        snprintf(folder, RF_TUNING_PATH, "%s", slash ? "/" : ".");
    }
    return 0;
}

int rf_tuning_save(const struct rf_tuning *tuning, const char *path, struct rf_error *err) {
    char folder[RF_TUNING_PATH], *text = NULL;
    const char *name = NULL;
    struct rf__blobs *files = NULL;
    struct rf__blob_writer *writer = NULL;
    size_t length = 0;
    int rc = split(path, folder, &name, err);

    if (rc == 0) {
        rc = rf__tuning_encode(tuning, &text, &length, err);
    }
    if (rc == 0) {
        rc = rf__file_blobs_create(folder, NULL, &files, err);
    }
    if (rc == 0) {
        rc = files->ops->create(files, name, &writer, err);
    }
    if (rc == 0) {
        rc = files->ops->write(files, writer, text, length, err);
        if (rc) {
            files->ops->abandon(files, writer);
        } else {
            rc = files->ops->finish(files, writer, false, err);
        }
    }
    if (files) {
        files->ops->destroy(files);
    }
    rf__free(text);
    return rc;
}
