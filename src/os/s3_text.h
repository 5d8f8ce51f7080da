/* The pure parts of object storage: URIs, encodings, INI files, XML answers, the retry schedule.
 * No I/O, no clock; every output has a stated maximum. */
#ifndef RF_OS_S3_TEXT_H
#define RF_OS_S3_TEXT_H

#include <ringfold/error.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    RF__S3_BUCKET_MAX = 224, /* bytes, with the end: GCS allows 222 with dots */
    RF__S3_KEY_MAX = 1025,
    RF__S3_PATH_MAX = 3 * RF__S3_KEY_MAX + RF__S3_BUCKET_MAX + 3,
    RF__S3_QUERY_MAX = 16384,
    RF__S3_XML_DEPTH_MAX = 8,
    RF__S3_XML_NAME_MAX = 64,
    RF__S3_XML_TEXT_MAX = 4097,
    RF__S3_INI_BYTES_MAX = 1 << 18,
    RF__S3_PARTS_MAX = 10000
};

/* s3://bucket/prefix, taken apart. */
struct rf__s3_uri {
    bool google;
    char bucket[RF__S3_BUCKET_MAX];
    char prefix[RF__S3_KEY_MAX]; /* ends with '/' unless empty */
};

int rf__s3_uri_parse(const char *text, struct rf__s3_uri *uri, struct rf_error *err) RF_MUST_CHECK;

/* The key of a blob: prefix + name. `whole`: it must be the name of a blob, with no empty, "." or
 * ".." part; otherwise it is the beginning of some. */
int rf__s3_key(const struct rf__s3_uri *uri, const char *name, bool whole, char key[RF__S3_KEY_MAX],
               struct rf_error *err) RF_MUST_CHECK;

/* Appends to a string of `capacity` bytes whose length is *used; false: did not fit. All but
 * A-Z a-z 0-9 - . _ ~ becomes %XX, '/' only where `slash`. */
bool rf__s3_encode(char *out, size_t capacity, size_t *used, const char *text, bool slash);

/* A query in the canonical form that signatures need: encoded, every name with its '=', ascending.
 */
struct rf__s3_query {
    char text[RF__S3_QUERY_MAX];
    size_t used;
    bool failed; /* it did not fit */
};

void rf__s3_query_add(struct rf__s3_query *query, const char *name, const char *value);

/* Seconds since 1970 of "2026-01-31T12:34:56.789Z"; -1: it is none. */
int64_t rf__s3_time(const char *text);

/* The value of `key` in `[section]` of an AWS configuration file; RF_ENOTFOUND, or RF_ELIMIT where
 * it does not fit. */
int rf__s3_ini_find(const char *text, size_t bytes, const char *section, const char *key,
                    char *value, size_t capacity) RF_MUST_CHECK;

/* Walks an answer's elements: `visit` is called at the end of each, with the names from the root on
 * ("ListBucketResult/Contents/Key", without namespaces) and, where it has no children, its decoded
 * text. What it returns other than 0 ends the walk and is returned. RF_EPROTO: not XML, cut short,
 * too deep or too long. */
typedef int rf__s3_visit(void *context, const char *path, const char *text);
int rf__s3_xml_walk(const char *bytes, size_t length, rf__s3_visit *visit,
                    void *context) RF_MUST_CHECK;

/* What an <Error> answer says; empty where it does not. */
struct rf__s3_fault {
    char code[64];
    char message[160]; /* printable ASCII */
    char request_id[80];
    char region[48];
    char request_time[40];
    char server_time[40];
};

/* false: the bytes are no whole <Error>; `fault` then holds what was found before it broke. */
bool rf__s3_fault_parse(const char *bytes, size_t length, struct rf__s3_fault *fault);

/* Copies with a bound; what is not printable ASCII becomes '?'. */
void rf__s3_printable(char *out, size_t capacity, const char *text);

/* Whether an answer is worth another try. `code` may be empty. */
bool rf__s3_status_retryable(long status, const char *code);

/* How long to wait before try `attempt` + 1, of a call whose tries so far were 1 … attempt: a
 * uniform draw below a bound that doubles from 200 ms to 8 s, at least what the server asked for
 * (0: nothing). */
int64_t rf__s3_backoff_ms(unsigned attempt, uint64_t random, int64_t retry_after_ms);

/* Bytes of part `number` (from 1): they double every 1000 parts, so that RF__S3_PARTS_MAX parts of
 * the usual size hold more than 5 TiB. */
size_t rf__s3_part_bytes(unsigned number, size_t first);

#endif
