/* Where object storage is and who asks: the options, the environment and the profile's files, in
 * the order that AWS's own tools have. */
#include "os/s3_internal.h"

#include "base/mem.h"
#include "base/status.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

extern char **environ;

/* The text of a configuration file, or nothing where there is none. */
struct file_text {
    char path[1024];
    char *text;
    size_t bytes;
};

struct sources {
    const char *const *environment;
    const char *profile;
    char profile_section[200]; /* how the config file names it */
    struct file_text credentials, config;
};

static const char *lookup(const struct sources *from, const char *name) {
    size_t length = strlen(name);

    for (const char *const *entry = from->environment; *entry; entry++) {
        if (!strncmp(*entry, name, length) && (*entry)[length] == '=') {
            return (*entry)[length + 1] ? *entry + length + 1 : NULL;
        }
    }
    return NULL;
}

static int copy(char *out, size_t capacity, const char *value, const char *name,
                struct rf_error *err) {
    size_t length = strlen(value);

    if (length >= capacity) {
        return rf__fail(err, RF_ELIMIT, 0, "%s has %zu bytes; at most %zu can be used", name,
                        length, capacity - 1);
    }
    for (size_t i = 0; i < length; i++) {
        if ((unsigned char)value[i] < 0x21 || value[i] == 0x7f) {
            return rf__fail(err, RF_EINVAL, 0, "%s holds a blank or a control character", name);
        }
    }
    memcpy(out, value, length + 1);
    return RF_OK;
}

static int read_whole(struct file_text *file, int fd, struct rf_error *err) {
    struct stat status;

    if (fstat(fd, &status)) {
        return rf__fail(err, RF_EIO, errno, "cannot look at '%.200s'", file->path);
    }
    if (!S_ISREG(status.st_mode) || status.st_size > RF__S3_INI_BYTES_MAX) {
        return rf__fail(err, RF_EINVAL, 0, "'%.200s' is no file of at most %d bytes", file->path,
                        RF__S3_INI_BYTES_MAX);
    }
    file->text = rf__alloc((size_t)status.st_size + 1, 1);
    if (!file->text) {
        return rf__fail(err, RF_ENOMEM, 0, "no memory to read '%.200s'", file->path);
    }
    while (file->bytes < (size_t)status.st_size) {
        ssize_t got = read(fd, file->text + file->bytes, (size_t)status.st_size - file->bytes);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            return rf__fail(err, RF_EIO, errno, "cannot read '%.200s'", file->path);
        }
        if (!got) {
            break;
        }
        file->bytes += (size_t)got;
    }
    return RF_OK;
}

/* The file that `variable` names, or ~/.aws/`name`. That there is none is no error. */
static int open_text(struct sources *from, struct file_text *file, const char *variable,
                     const char *name, struct rf_error *err) {
    const char *path = lookup(from, variable), *home = lookup(from, "HOME");

    if (!path && !home) {
        return RF_OK;
    }
    int length = path ? snprintf(file->path, sizeof file->path, "%s", path)
                      : snprintf(file->path, sizeof file->path, "%s/.aws/%s", home, name);
    if (length < 0 || (size_t)length >= sizeof file->path) {
        return rf__fail(err, RF_ELIMIT, 0, "the path in %s is too long", path ? variable : "HOME");
    }
    int fd = open(file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        bool missing = errno == ENOENT || errno == ENOTDIR;
        return missing ? RF_OK : rf__fail(err, RF_EIO, errno, "cannot open '%.200s'", file->path);
    }
    int code = read_whole(file, fd, err);
    close(fd);
    return code;
}

static void close_text(struct file_text *file) {
    if (file->text) {
        explicit_bzero(file->text, file->bytes);
    }
    rf__free(file->text);
}

/* A value of the profile; the credentials file goes before the config file, as AWS has it. Empty
 * where neither has it. */
static int from_profile(const struct sources *from, const char *key, char *out, size_t capacity,
                        const struct file_text **found, struct rf_error *err) {
    const struct file_text *files[2] = {&from->credentials, &from->config};
    const char *sections[2] = {from->profile, from->profile_section};

    out[0] = '\0';
    for (size_t i = 0; i < 2; i++) {
        if (!files[i]->text) {
            continue;
        }
        int code =
            rf__s3_ini_find(files[i]->text, files[i]->bytes, sections[i], key, out, capacity);
        if (code == RF_OK && out[0]) {
            *found = files[i];
            for (const char *c = out; *c; c++) {
                if ((unsigned char)*c < 0x21 || *c == 0x7f) {
                    return rf__fail(err, RF_EINVAL, 0,
                                    "%s of profile %.60s in '%.150s' holds a blank or a control "
                                    "character",
                                    key, from->profile, files[i]->path);
                }
            }
            return RF_OK;
        }
        if (code == RF_ELIMIT) {
            return rf__fail(err, RF_ELIMIT, 0, "%s of profile %.60s in '%.150s' is too long", key,
                            from->profile, files[i]->path);
        }
    }
    out[0] = '\0';
    return RF_OK;
}

static int no_credentials(const struct sources *from, const struct rf__s3_config *config,
                          struct rf_error *err) {
    rf__fail(err, RF_ENOTFOUND, 0,
             "no credentials for %s://%.100s: neither AWS_ACCESS_KEY_ID nor "
             "profile %.60s in %.80s",
             config->uri.google ? "gs" : "s3", config->uri.bucket, from->profile,
             from->credentials.path[0] ? from->credentials.path : "~/.aws/credentials");
    if (err) {
        rf__detail(err->what, "reading the access key");
        rf__detail(err->next,
                   "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY%s, or write them "
                   "into the profile; roles of instances and SSO are not read: "
                   "eval \"$(aws configure export-credentials --format env)\"",
                   config->uri.google ? " to an HMAC key of GCS" : "");
    }
    return RF_ENOTFOUND;
}

static int read_credentials(const struct sources *from, struct rf__s3_config *config,
                            struct rf_error *err) {
    const char *key = lookup(from, "AWS_ACCESS_KEY_ID");
    const char *secret = lookup(from, "AWS_SECRET_ACCESS_KEY");
    const char *token = lookup(from, "AWS_SESSION_TOKEN");
    const struct file_text *found = NULL;
    int code;

    if (key) {
        if (!secret) {
            code = rf__fail(err, RF_EINVAL, 0,
                            "AWS_ACCESS_KEY_ID is set, and "
                            "AWS_SECRET_ACCESS_KEY is not");
            if (err) {
                rf__detail(err->next, "set both");
            }
            return code;
        }
        snprintf(config->key_origin, sizeof config->key_origin, "the environment");
        code = copy(config->access_key, sizeof config->access_key, key, "AWS_ACCESS_KEY_ID", err);
        code = code ? code
                    : copy(config->secret, sizeof config->secret, secret, "AWS_SECRET_ACCESS_KEY",
                           err);
        return code || !token
                   ? code
                   : copy(config->token, sizeof config->token, token, "AWS_SESSION_TOKEN", err);
    }
    code = from_profile(from, "aws_access_key_id", config->access_key, sizeof config->access_key,
                        &found, err);
    if (code || !config->access_key[0]) {
        return code ? code : no_credentials(from, config, err);
    }
    snprintf(config->key_origin, sizeof config->key_origin, "profile %.60s in %.200s",
             from->profile, found->path);
    code = from_profile(from, "aws_secret_access_key", config->secret, sizeof config->secret,
                        &found, err);
    if (!code && !config->secret[0]) {
        code = rf__fail(err, RF_EINVAL, 0, "%s has aws_access_key_id and no aws_secret_access_key",
                        config->key_origin);
    }
    return code ? code
                : from_profile(from, "aws_session_token", config->token, sizeof config->token,
                               &found, err);
}

/* Takes "http[s]://host[:port]" apart and writes where requests go. */
static int set_endpoint(struct rf__s3_config *config, const char *endpoint, struct rf_error *err) {
    char shown[128];
    char *scheme = NULL, *host = NULL, *port = NULL, *path = NULL, *user = NULL, *query = NULL;
    int code = RF_EINVAL;

    rf__s3_printable(shown, sizeof shown, endpoint);
    CURLU *url = curl_url();
    if (!url) {
        code = rf__fail(err, RF_ENOMEM, 0, "no memory for an endpoint");
        goto out;
    }
    bool sound = !curl_url_set(url, CURLUPART_URL, endpoint, 0) &&
                 !curl_url_get(url, CURLUPART_SCHEME, &scheme, 0) &&
                 !curl_url_get(url, CURLUPART_HOST, &host, 0) &&
                 !curl_url_get(url, CURLUPART_PORT, &port, CURLU_DEFAULT_PORT) &&
                 !curl_url_get(url, CURLUPART_PATH, &path, 0);
    bool secret = curl_url_get(url, CURLUPART_USER, &user, 0) == CURLUE_OK;
    bool asks = curl_url_get(url, CURLUPART_QUERY, &query, 0) == CURLUE_OK;
    if (secret) {
        rf__fail(err, RF_EINVAL, 0, "the endpoint of object storage holds a user name");
        goto out;
    }
    if (!sound || asks || strcmp(path, "/") != 0 ||
        (strcmp(scheme, "http") != 0 && strcmp(scheme, "https") != 0)) {
        rf__fail(err, RF_EINVAL, 0, "'%s' is no endpoint of object storage", shown);
        goto out;
    }
    config->secure = !strcmp(scheme, "https");
    bool usual = !strcmp(port, config->secure ? "443" : "80");
    const char *front = config->bucket_in_path ? "" : config->uri.bucket;
    int length = snprintf(config->base, sizeof config->base, "%s://%s%s%s%s%s", scheme, front,
                          *front ? "." : "", host, usual ? "" : ":", usual ? "" : port);
    int told = snprintf(config->where, sizeof config->where, "%s%s%s:%s", front, *front ? "." : "",
                        host, port);
    if (length < 0 || (size_t)length >= sizeof config->base || told < 0 ||
        (size_t)told >= sizeof config->where) {
        code = rf__fail(err, RF_ELIMIT, 0, "the endpoint '%s' is too long", shown);
        goto out;
    }
    code = RF_OK;
out:
    if (code && err) {
        rf__detail(err->next, "give it as http://HOST:PORT or https://HOST, without a path");
    }
    curl_free(scheme);
    curl_free(host);
    curl_free(port);
    curl_free(path);
    curl_free(user);
    curl_free(query);
    curl_url_cleanup(url);
    return code;
}

static int find_endpoint(const struct sources *from, const struct rf__s3_options *options,
                         struct rf__s3_config *config, struct rf_error *err) {
    const struct file_text *found = NULL;
    char profile[512] = "", amazon[256];
    const char *endpoint = options->endpoint;
    int code = RF_OK;

    if (!endpoint && !config->uri.google) {
        endpoint = lookup(from, "AWS_ENDPOINT_URL_S3");
        endpoint = endpoint ? endpoint : lookup(from, "AWS_ENDPOINT_URL");
        if (!endpoint) {
            code = from_profile(from, "endpoint_url", profile, sizeof profile, &found, err);
            endpoint = profile[0] ? profile : NULL;
        }
    }
    if (code) {
        return code;
    }
    config->own_server = endpoint != NULL;
    config->bucket_in_path = config->own_server || config->uri.google ||
                             strchr(config->uri.bucket, '.') || strlen(config->uri.bucket) > 63;
    if (!endpoint) {
        bool china = !strncmp(config->region, "cn-", 3);
        snprintf(amazon, sizeof amazon, "https://s3.%s.amazonaws.com%s", config->region,
                 china ? ".cn" : "");
        endpoint = config->uri.google ? "https://storage.googleapis.com" : amazon;
    }
    return set_endpoint(config, endpoint, err);
}

static int find_region(const struct sources *from, struct rf__s3_config *config,
                       struct rf_error *err) {
    const struct file_text *found = NULL;
    const char *region = lookup(from, "AWS_REGION");
    int code = RF_OK;

    region = region ? region : lookup(from, "AWS_DEFAULT_REGION");
    if (config->uri.google) {
        code = copy(config->region, sizeof config->region, "auto", "the region", err);
    } else if (region) {
        code = copy(config->region, sizeof config->region, region, "AWS_REGION", err);
    } else {
        code = from_profile(from, "region", config->region, sizeof config->region, &found, err);
        if (!code && !config->region[0]) {
            code = copy(config->region, sizeof config->region, "us-east-1", "the region", err);
        }
    }
    /* It becomes part of a host's name and of what is signed. */
    for (const char *c = config->region; !code && *c; c++) {
        if (!((*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || (*c >= '0' && *c <= '9') ||
              *c == '-' || *c == '_')) {
            code = rf__fail(err, RF_EINVAL, 0, "'%.60s' is no region of object storage",
                            config->region);
            if (err) {
                rf__detail(err->next, "set AWS_REGION, for example to us-east-1");
            }
        }
    }
    return code;
}

int rf__s3_config_read(const char *uri, const struct rf__s3_options *options,
                       struct rf__s3_config *config, struct rf_error *err) {
    struct sources from = {.environment = options->environment ? options->environment
                                                               : (const char *const *)environ};
    const char *profile = lookup(&from, "AWS_PROFILE"), *bundle = lookup(&from, "AWS_CA_BUNDLE");

    *config = (struct rf__s3_config){0};
    from.profile = profile ? profile : "default";
    snprintf(from.profile_section, sizeof from.profile_section, "%s%.180s",
             strcmp(from.profile, "default") ? "profile " : "", from.profile);
    int code = rf__s3_uri_parse(uri, &config->uri, err);
    if (code) {
        goto out;
    }
    code = open_text(&from, &from.credentials, "AWS_SHARED_CREDENTIALS_FILE", "credentials", err);
    code = code ? code : open_text(&from, &from.config, "AWS_CONFIG_FILE", "config", err);
    code = code ? code : find_region(&from, config, err);
    code = code ? code : find_endpoint(&from, options, config, err);
    code = code ? code : read_credentials(&from, config, err);
    if (!code && bundle) {
        int length = snprintf(config->ca_bundle, sizeof config->ca_bundle, "%s", bundle);
        if (length < 0 || (size_t)length >= sizeof config->ca_bundle) {
            code = rf__fail(err, RF_ELIMIT, 0, "the path in AWS_CA_BUNDLE is too long");
        }
    }
out:
    close_text(&from.credentials);
    close_text(&from.config);
    return code;
}
