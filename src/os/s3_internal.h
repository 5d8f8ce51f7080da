/* What the files of object storage share: settings, requests and their answers.
 *
 * s3_text, s3_ini, s3_xml   pure: texts, formats, schedules (s3_text.h)
 * s3_config                 endpoint, region, credentials
 * s3_request                one HTTP request, signed and sent by libcurl; retries
 * s3_error                  what went wrong, as a person should read it
 * s3_read, s3_upload, s3_list, s3   the operations of io/blob.h */
#ifndef RF_OS_S3_INTERNAL_H
#define RF_OS_S3_INTERNAL_H

#include "os/s3.h"
#include "os/s3_text.h"

#include <curl/curl.h>
#include <pthread.h>
#include <stdatomic.h>

enum {
    RF__S3_ETAG_MAX = 160,
    RF__S3_TOKEN_MAX = 33,       /* of a writer: 16 bytes in hexadecimal */
    RF__S3_ANSWER_MAX = 8 << 20, /* bytes of an answer that is kept: a page of 1000 long names */
    RF__S3_IDLE_HANDLES = 4,     /* connections that are kept */
    RF__S3_MORE_HEADERS_MAX = 3
};

/* Where requests go and who signs them. */
struct rf__s3_config {
    struct rf__s3_uri uri;
    char base[640];  /* "https://host[:port]", with the bucket in the host where it stands there */
    char where[300]; /* "host:port", for people */
    bool bucket_in_path;
    bool secure;     /* TLS */
    bool own_server; /* an endpoint was named, so it is not AWS or GCS */
    char region[64];
    char access_key[256];
    char secret[256];
    char token[4096];     /* empty: none */
    char key_origin[320]; /* where the credentials stood, for people */
    char ca_bundle[1024]; /* empty: the system's */
};

int rf__s3_config_read(const char *uri, const struct rf__s3_options *options,
                       struct rf__s3_config *config, struct rf_error *err) RF_MUST_CHECK;

struct rf__s3 {
    struct rf__blobs blobs; /* first: what callers hold */
    struct rf__s3_config config;
    int64_t deadline_ms;
    int64_t stall_s;
    size_t part_bytes;
    unsigned max_keys;

    /* Set once, by whoever finds it; relaxed: a late reader only asks the server once more. */
    atomic_bool unconditional;

    /* Set by interrupt (release), read between and during transfers (acquire). */
    atomic_bool interrupted;
    atomic_bool answered; /* relaxed: it has given a proper answer, so it is what it should be */

    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t wake;  /* interrupted: ends waits between tries */
    CURL *idle[RF__S3_IDLE_HANDLES];
    size_t idle_count;
};

/* One request. Borrowed for the call. */
struct rf__s3_request {
    const char *verb;
    const char *key;   /* NULL: the bucket itself */
    const char *query; /* canonical; NULL: none */
    const void *body;  /* of a PUT or POST */
    size_t body_bytes;
    const char
        *headers[RF__S3_MORE_HEADERS_MAX]; /* "name: value", lower case; NULLs are left out */
    bool ranged;                           /* a GET of `into_bytes` from `first` on */
    uint64_t first;
    uint64_t total;   /* bytes that the blob must have; 0: any */
    const char *etag; /* the blob that it must be; NULL: any */
    void *into;
    size_t into_bytes;
    bool patient; /* the server may work for long before it answers */
    bool once;    /* not worth another try */
};

/* What came back. Freed with rf__s3_answer_free, also after errors; may be used again. */
struct rf__s3_answer {
    long status; /* 0: none came */
    bool lost;   /* the server may have done an earlier try whose answer did not arrive */
    char etag[RF__S3_ETAG_MAX];
    char request_id[80];
    char region[48];
    char token[RF__S3_TOKEN_MAX]; /* whose writer put it there */
    int64_t content_bytes;        /* -1: not told */
    int64_t date_s;               /* the server's clock; -1: not told */
    int64_t retry_after_ms;       /* 0: not told */
    bool has_range;
    uint64_t range_first, range_total;
    size_t into_done; /* bytes of the range that arrived */
    char *body;       /* what was not read into the caller's memory; ends with a 0 */
    size_t body_bytes, body_capacity;
    bool too_long; /* more came than was asked for, or than is kept */
    struct rf__s3_fault fault;
};

/* Sends it until it is answered, as docs/STORAGE.md says. 0: the status is 2xx. Otherwise an error
 * is filled in; `answer` then tells what the server said last. A 2xx whose body is an <Error> is
 * that error. */
int rf__s3_call(struct rf__s3 *s3, const struct rf__s3_request *request,
                struct rf__s3_answer *answer, struct rf_error *err) RF_MUST_CHECK;
void rf__s3_answer_free(struct rf__s3_answer *answer);

/* Makes curl ready for all threads, once. */
int rf__s3_global(struct rf_error *err) RF_MUST_CHECK;

/* "x-amz-" or "x-goog-". */
const char *rf__s3_header_front(const struct rf__s3 *s3);

/* Errors, all with who, what and what next. `refused`: the server answered with an error. `failed`:
 * none came, for `reason`. `confused`: an answer came that cannot be. */
int rf__s3_refused(const struct rf__s3 *s3, const struct rf__s3_request *request,
                   const struct rf__s3_answer *answer, struct rf_error *err);
int rf__s3_failed(const struct rf__s3 *s3, const struct rf__s3_request *request, CURLcode curl,
                  const char *reason, struct rf_error *err);
int rf__s3_confused(const struct rf__s3 *s3, const struct rf__s3_request *request,
                    const char *reason, struct rf_error *err);
int rf__s3_stopped(const struct rf__s3 *s3, const struct rf__s3_request *request,
                   struct rf_error *err);

/* Asks whether the key stands there: the answer's size, ETag and writer. RF_ENOTFOUND. */
int rf__s3_head(struct rf__s3 *s3, const char *key, struct rf__s3_answer *answer,
                struct rf_error *err) RF_MUST_CHECK;

/* DELETE of an unfinished upload; that there is none is no error. `once`: one try is enough. */
int rf__s3_abort_upload(struct rf__s3 *s3, const char *key, const char *upload, bool once,
                        struct rf_error *err);

/* io/blob.h's operations. */
int rf__s3_open(struct rf__blobs *blobs, const char *name, struct rf__blob **out, uint64_t *bytes,
                struct rf_error *err);
ssize_t rf__s3_read(struct rf__blobs *blobs, struct rf__blob *blob, uint64_t offset, void *buffer,
                    size_t bytes, struct rf_error *err);
void rf__s3_close(struct rf__blobs *blobs, struct rf__blob *blob);
int rf__s3_create(struct rf__blobs *blobs, const char *name, struct rf__blob_writer **out,
                  struct rf_error *err);
int rf__s3_write(struct rf__blobs *blobs, struct rf__blob_writer *writer, const void *bytes,
                 size_t length, struct rf_error *err);
int rf__s3_finish(struct rf__blobs *blobs, struct rf__blob_writer *writer, bool only_new,
                  struct rf_error *err);
void rf__s3_abandon(struct rf__blobs *blobs, struct rf__blob_writer *writer);
int rf__s3_remove(struct rf__blobs *blobs, const char *name, struct rf_error *err);
int rf__s3_list(struct rf__blobs *blobs, const char *prefix,
                int (*each)(void *context, const struct rf__blob_entry *entry), void *context,
                struct rf_error *err);
int rf__s3_collect(struct rf__blobs *blobs, const char *prefix, int64_t age_s,
                   struct rf_error *err);

#endif
