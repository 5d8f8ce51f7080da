/* Reading from object storage: a blob's size and ETag are taken when it is opened, and each read is
 * a range of that very ETag, so that a blob that is replaced meanwhile is an error and not a mix.
 */
#include "os/s3_internal.h"

#include "base/mem.h"
#include "base/status.h"

#include <string.h>

struct blob {
    char key[RF__S3_KEY_MAX];
    char etag[RF__S3_ETAG_MAX];
    uint64_t bytes;
    struct rf__s3_answer answer;
};

/* The answer to HEAD has no words. What a GET of one byte is told goes into the error. */
static int explain(struct rf__s3 *s3, const char *key, int code, struct rf_error *err) {
    char byte;
    struct rf_error told;
    struct rf__s3_answer answer = {0};
    struct rf__s3_request request = {
        .verb = "GET", .key = key, .ranged = true, .into = &byte, .into_bytes = 1};

    int again = rf__s3_call(s3, &request, &answer, &told);
    bool refused = answer.status >= 300 && answer.status < 500 && answer.status != 416 &&
                   !rf__s3_status_retryable(answer.status, answer.fault.code);
    if (again && refused && answer.fault.code[0]) {
        code = again;
        if (err) {
            *err = told;
        }
    }
    rf__s3_answer_free(&answer);
    return code;
}

int rf__s3_head(struct rf__s3 *s3, const char *key, struct rf__s3_answer *answer,
                struct rf_error *err) {
    struct rf__s3_request request = {.verb = "HEAD", .key = key};

    int code = rf__s3_call(s3, &request, answer, err);
    if (code && answer->status >= 300 && answer->status < 500) {
        code = explain(s3, key, code, err);
    }
    return code;
}

int rf__s3_open(struct rf__blobs *blobs, const char *name, struct rf__blob **out, uint64_t *bytes,
                struct rf_error *err) {
    struct rf__s3 *s3 = (struct rf__s3 *)blobs;
    int code;

    struct blob *blob = rf__alloc(1, sizeof *blob);
    if (!blob) {
        return rf__fail(err, RF_ENOMEM, 0, "no memory to open '%.200s'", name);
    }
    code = rf__s3_key(&s3->config.uri, name, true, blob->key, err);
    code = code ? code : rf__s3_head(s3, blob->key, &blob->answer, err);
    if (code) {
        goto out;
    }
    if (blob->answer.content_bytes < 0 || !blob->answer.etag[0]) {
        struct rf__s3_request request = {.verb = "HEAD", .key = blob->key};
        code = rf__s3_confused(s3, &request, "the answer tells no size or no ETag", err);
        goto out;
    }
    memcpy(blob->etag, blob->answer.etag, sizeof blob->etag);
    blob->bytes = (uint64_t)blob->answer.content_bytes;
    *bytes = blob->bytes;
    *out = (struct rf__blob *)blob;
    blob = NULL;
out:
    rf__s3_close(blobs, (struct rf__blob *)blob);
    return code;
}

ssize_t rf__s3_read(struct rf__blobs *blobs, struct rf__blob *opaque, uint64_t offset, void *buffer,
                    size_t bytes, struct rf_error *err) {
    struct rf__s3 *s3 = (struct rf__s3 *)blobs;
    struct blob *blob = (struct blob *)opaque;

    if (offset >= blob->bytes || !bytes) {
        return 0;
    }
    if (bytes > blob->bytes - offset) {
        bytes = (size_t)(blob->bytes - offset);
    }
    struct rf__s3_request request = {.verb = "GET",
                                     .key = blob->key,
                                     .ranged = true,
                                     .first = offset,
                                     .total = blob->bytes,
                                     .etag = blob->etag,
                                     .into = buffer,
                                     .into_bytes = bytes};
    int code = rf__s3_call(s3, &request, &blob->answer, err);
    if (code == RF_ECONFLICT || code == RF_ENOTFOUND) {
        const char *what = code == RF_ECONFLICT ? "what is read was replaced by another blob"
                                                : "what is read was removed";
        rf__s3_confused(s3, &request, what, err);
        code = RF_EIO;
    }
    if (code && code != RF_ESTOPPED && code != RF_ENOMEM) {
        code = RF_EIO; /* as io/blob.h has it */
        if (err) {
            err->code = code;
        }
    }
    return code ? code : (ssize_t)bytes;
}

void rf__s3_close(struct rf__blobs *blobs, struct rf__blob *opaque) {
    struct blob *blob = (struct blob *)opaque;

    (void)blobs;
    if (blob) {
        rf__s3_answer_free(&blob->answer);
    }
    rf__free(blob);
}
