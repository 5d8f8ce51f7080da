/* Object storage: URIs, keys, encodings, times, and the schedules of retries and part sizes. */
#include "os/s3_text.h"

#include "base/assert.h"
#include "base/status.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

enum { BACKOFF_FIRST_MS = 200, BACKOFF_MAX_MS = 8000, PARTS_PER_SIZE = 1000 };

static bool is_plain(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '.' || c == '_' || c == '~';
}

static bool is_control(char c) {
    return (unsigned char)c < 0x20 || c == 0x7f;
}

static bool bucket_is_good(const char *bucket, size_t length) {
    if (length < 3 || length >= RF__S3_BUCKET_MAX) {
        return false;
    }
    for (size_t i = 0; i < length; i++) {
        if (!is_plain(bucket[i]) || bucket[i] == '~') {
            return false;
        }
    }
    return bucket[0] != '.' && bucket[0] != '-' && bucket[length - 1] != '.' &&
           bucket[length - 1] != '-';
}

/* Whether every part between slashes names something, so that no server and no proxy on the way
 * reads the path as another. */
static bool parts_are_good(const char *key) {
    for (const char *part = key;;) {
        size_t length = strcspn(part, "/");
        if (!length || (length == 1 && part[0] == '.') ||
            (length == 2 && part[0] == '.' && part[1] == '.')) {
            return false;
        }
        if (!part[length]) {
            return true;
        }
        part += length + 1;
    }
}

int rf__s3_uri_parse(const char *text, struct rf__s3_uri *uri, struct rf_error *err) {
    char shown[128];
    int code = RF_OK;

    *uri = (struct rf__s3_uri){0};
    rf__s3_printable(shown, sizeof shown, text);
    if (!strncmp(text, "gs://", 5)) {
        uri->google = true;
    } else if (strncmp(text, "s3://", 5) != 0) {
        code = rf__fail(err, RF_EINVAL, 0, "'%s' is not the address of object storage", shown);
        goto out;
    }
    const char *bucket = text + 5;
    size_t length = strcspn(bucket, "/");
    if (!bucket_is_good(bucket, length)) {
        code = rf__fail(err, RF_EINVAL, 0, "'%s' does not begin with the name of a bucket", shown);
        goto out;
    }
    memcpy(uri->bucket, bucket, length);
    const char *prefix = bucket + length;
    prefix += *prefix == '/';
    size_t bytes = strlen(prefix);
    while (bytes && prefix[bytes - 1] == '/') {
        bytes--;
    }
    if (bytes + 1 >= sizeof uri->prefix) {
        code = rf__fail(err, RF_ELIMIT, 0, "the prefix of '%s' is longer than %zu bytes", shown,
                        sizeof uri->prefix - 2);
        goto out;
    }
    memcpy(uri->prefix, prefix, bytes);
    for (size_t i = 0; i < bytes; i++) {
        if (is_control(prefix[i])) {
            code =
                rf__fail(err, RF_EINVAL, 0, "the prefix of '%s' holds a control character", shown);
            goto out;
        }
    }
    if (bytes && !parts_are_good(uri->prefix)) {
        code =
            rf__fail(err, RF_EINVAL, 0, "the prefix of '%s' has an empty, '.' or '..' part", shown);
        goto out;
    }
    if (bytes) {
        uri->prefix[bytes] = '/';
    }
out:
    if (code && err) {
        rf__detail(err->next, "give s3://BUCKET/PREFIX or gs://BUCKET/PREFIX");
    }
    return code;
}

int rf__s3_key(const struct rf__s3_uri *uri, const char *name, bool whole, char key[RF__S3_KEY_MAX],
               struct rf_error *err) {
    char shown[128];
    size_t front = strlen(uri->prefix), bytes = strlen(name);

    rf__s3_printable(shown, sizeof shown, name);
    if (front + bytes >= RF__S3_KEY_MAX) {
        return rf__fail(err, RF_ELIMIT, 0, "the name '%s' under '%.60s' has more than %d bytes",
                        shown, uri->bucket, RF__S3_KEY_MAX - 1);
    }
    for (size_t i = 0; i < bytes; i++) {
        if (is_control(name[i])) {
            return rf__fail(err, RF_EINVAL, 0, "the name '%s' holds a control character", shown);
        }
    }
    if (whole && !parts_are_good(name)) {
        return rf__fail(err, RF_EINVAL, 0, "the name '%s' has an empty, '.' or '..' part", shown);
    }
    memcpy(key, uri->prefix, front);
    memcpy(key + front, name, bytes + 1);
    return RF_OK;
}

bool rf__s3_encode(char *out, size_t capacity, size_t *used, const char *text, bool slash) {
    static const char digits[] = "0123456789ABCDEF";

    for (; *text; text++) {
        bool plain = is_plain(*text) || (*text == '/' && !slash);
        size_t need = plain ? 1 : 3;
        if (*used >= capacity || capacity - *used <= need) {
            return false;
        }
        if (plain) {
            out[(*used)++] = *text;
        } else {
            out[(*used)++] = '%';
            out[(*used)++] = digits[(unsigned char)*text >> 4];
            out[(*used)++] = digits[(unsigned char)*text & 15];
        }
        out[*used] = '\0';
    }
    return true;
}

void rf__s3_query_add(struct rf__s3_query *query, const char *name, const char *value) {
    size_t room = sizeof query->text - query->used;

    int length = snprintf(query->text + query->used, room, "%s%s=", query->used ? "&" : "", name);
    if (query->failed || length < 0 || (size_t)length >= room) {
        query->failed = true;
        return;
    }
    query->used += (size_t)length;
    query->failed = !rf__s3_encode(query->text, sizeof query->text, &query->used, value, true);
}

int64_t rf__s3_time(const char *text) {
    int year, month, day, hour, minute, second, used = 0;

    int got = sscanf(text, "%4d-%2d-%2dT%2d:%2d:%2d%n", &year, &month, &day, &hour, &minute,
                     &second, &used);
    if (got != 6 || year < 1970 || month < 1 || month > 12 || day < 1 || day > 31 || hour < 0 ||
        hour > 23 || minute < 0 || minute > 59 || second < 0 || second > 60) {
        return -1;
    }
    if (text[used] == '.') {
        used++;
        used += (int)strspn(text + used, "0123456789");
    }
    if (strcmp(text + used, "Z") != 0) {
        return -1;
    }
    struct tm parts = {.tm_year = year - 1900,
                       .tm_mon = month - 1,
                       .tm_mday = day,
                       .tm_hour = hour,
                       .tm_min = minute,
                       .tm_sec = second};
    return (int64_t)timegm(&parts);
}

void rf__s3_printable(char *out, size_t capacity, const char *text) {
    size_t used = 0;

    RF_ASSERT(capacity > 0);
    for (; *text && used + 1 < capacity; text++) {
        out[used++] = *text >= 0x20 && *text < 0x7f ? *text : '?';
    }
    out[used] = '\0';
}

bool rf__s3_status_retryable(long status, const char *code) {
    static const char *const codes[] = {"RequestTimeout", "SlowDown", "InternalError",
                                        "ServiceUnavailable", "OperationAborted"};

    if (status == 408 || status == 429 || status == 500 || status == 502 || status == 503 ||
        status == 504) {
        return true;
    }
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++) {
        if (!strcmp(code, codes[i])) {
            return true;
        }
    }
    return false;
}

int64_t rf__s3_backoff_ms(unsigned attempt, uint64_t random, int64_t retry_after_ms) {
    int64_t bound = BACKOFF_FIRST_MS;

    for (unsigned i = 1; i < attempt && bound < BACKOFF_MAX_MS; i++) {
        bound *= 2;
    }
    if (bound > BACKOFF_MAX_MS) {
        bound = BACKOFF_MAX_MS;
    }
    int64_t wait = (int64_t)(random % (uint64_t)bound);
    return wait > retry_after_ms ? wait : retry_after_ms;
}

size_t rf__s3_part_bytes(unsigned number, size_t first) {
    RF_ASSERT(number >= 1 && number <= RF__S3_PARTS_MAX);
    return first << ((number - 1) / PARTS_PER_SIZE);
}
