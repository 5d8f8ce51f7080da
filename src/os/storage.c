/* Which storage a URI means. */
#include "os/storage.h"

#include "base/status.h"
#include "os/file.h"
#include "os/s3.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

static const char kinds[] =
    "give a path, file:/path, s3://bucket/prefix or gs://bucket/prefix; a path with a colon in its "
    "first part is written ./a:b";

/* The length of the scheme, without its colon; 0 where there is none. */
static size_t scheme_length(const char *uri) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    static const char others[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+.-";
    size_t length = strspn(uri, others);
    return *uri && strchr(letters, *uri) && uri[length] == ':' ? length : 0;
}

static bool scheme_is(const char *uri, size_t length, const char *scheme) {
    return length == strlen(scheme) && !strncasecmp(uri, scheme, length);
}

static int wrong(const char *uri, const char *why, struct rf_error *err) {
    int code = rf__fail(err, RF_EUSAGE, 0, "'%.180s' names no storage: %s", uri, why);
    if (err) {
        rf__detail(err->next, "%s", kinds);
    }
    return code;
}

/* The path behind "file:", where "//" begins the name of a host, which has to be this one. */
static int file_open(const char *uri, const char *path, const struct rf__storage_options *options,
                     struct rf__blobs **out, struct rf_error *err) {
    if (!strncmp(path, "//", 2)) {
        size_t host = strcspn(path + 2, "/");
        if (host && !(host == strlen("localhost") && !strncasecmp(path + 2, "localhost", host))) {
            return wrong(uri, "files of another host cannot be reached so", err);
        }
        path += 2 + host;
    }
    if (!*path) {
        return wrong(uri, "there is no path in it", err);
    }
    return rf__file_blobs_create(path, options ? options->files : NULL, out, err);
}

static int object_store_open(const char *uri, const struct rf__storage_options *options,
                             struct rf__blobs **out, struct rf_error *err) {
    return rf__s3_blobs_create(uri, options ? options->s3 : NULL, out, err);
}

int rf__storage_open(const char *uri, const struct rf__storage_options *options,
                     struct rf__blobs **out, struct rf_error *err) {
    size_t scheme = scheme_length(uri);
    if (!*uri) {
        return wrong(uri, "it is empty", err);
    }
    if (!scheme) {
        return rf__file_blobs_create(uri, options ? options->files : NULL, out, err);
    }
    if (scheme_is(uri, scheme, "file")) {
        return file_open(uri, uri + scheme + 1, options, out, err);
    }
    if (scheme_is(uri, scheme, "s3") || scheme_is(uri, scheme, "gs")) {
        if (strncmp(uri + scheme, "://", 3) != 0) {
            return wrong(uri, "behind the scheme '//' and the bucket's name are missing", err);
        }
        return object_store_open(uri, options, out, err);
    }
    char why[64];
    int shown = scheme < 20 ? (int)scheme : 20;
    snprintf(why, sizeof why, "there is no kind of storage '%.*s:'", shown, uri);
    return wrong(uri, why, err);
}
