/* What went wrong at object storage, as a person should read it: who answered, to what, with which
 * code and words, and what to do next. What servers say is cut, made printable, and left out where
 * it repeats a secret. */
#include "os/s3_internal.h"

#include "base/status.h"

#include <stdio.h>
#include <string.h>

static const char *scheme(const struct rf__s3 *s3) {
    return s3->config.uri.google ? "gs" : "s3";
}

/* "PUT bucket/key". */
static void tell_what(const struct rf__s3 *s3, const struct rf__s3_request *request, char *out,
                      size_t capacity) {
    char key[128];

    rf__s3_printable(key, sizeof key, request->key ? request->key : "");
    snprintf(out, capacity, "%s %.60s/%s", request->verb, s3->config.uri.bucket, key);
}

static void tell_details(const struct rf__s3 *s3, const char *what, const char *why,
                         struct rf_error *err) {
    if (err) {
        rf__detail(err->what, "%s", what);
        rf__detail(err->where, "%.200s", s3->config.where);
        rf__detail(err->why, "%s", why);
    }
}

/* Whether the text holds what nobody may read. */
static bool holds_secret(const struct rf__s3_config *config, const char *text) {
    return strstr(text, config->secret) || (config->token[0] && strstr(text, config->token)) ||
           strstr(text, "Signature=");
}

static bool is(const char *code, const char *a, const char *b) {
    return !strcmp(code, a) || (b && !strcmp(code, b));
}

static int refusal_code(const struct rf__s3_answer *answer) {
    const char *fault = answer->fault.code;

    if (answer->status == 412 || is(fault, "ConditionalRequestConflict", "PreconditionFailed")) {
        return RF_ECONFLICT;
    }
    if (answer->status == 404 && !is(fault, "NoSuchBucket", "NoSuchUpload")) {
        return RF_ENOTFOUND;
    }
    return rf__s3_status_retryable(answer->status, fault) ? RF_ETIMEDOUT : RF_EIO;
}

static void next_for_access(const struct rf__s3 *s3, const struct rf__s3_request *request,
                            const char *fault, struct rf_error *err) {
    const struct rf__s3_config *config = &s3->config;

    if (is(fault, "SignatureDoesNotMatch", NULL)) {
        rf__detail(err->next, "check AWS_SECRET_ACCESS_KEY of %.150s", config->key_origin);
    } else if (is(fault, "InvalidAccessKeyId", "InvalidSecurity")) {
        rf__detail(err->next, "check AWS_ACCESS_KEY_ID of %.150s", config->key_origin);
    } else if (is(fault, "ExpiredToken", "InvalidToken")) {
        rf__detail(err->next, "renew AWS_SESSION_TOKEN and its keys in %.150s", config->key_origin);
    } else {
        rf__detail(err->next, "give the key of %.100s the right to %s in %s://%.60s, or check it",
                   config->key_origin, request->verb, scheme(s3), config->uri.bucket);
    }
}

static void next_for_refusal(const struct rf__s3 *s3, const struct rf__s3_request *request,
                             const struct rf__s3_answer *answer, struct rf_error *err) {
    const struct rf__s3_config *config = &s3->config;
    const char *fault = answer->fault.code;
    const char *region = answer->region[0] ? answer->region : answer->fault.region;

    if (is(fault, "RequestTimeTooSkewed", NULL)) {
        rf__detail(err->why, "the request says %s, the server's clock %s",
                   answer->fault.request_time[0] ? answer->fault.request_time : "another time",
                   answer->fault.server_time[0] ? answer->fault.server_time : "is unknown");
        rf__detail(err->next, "set this host's clock, for example: timedatectl set-ntp true");
    } else if (answer->status == 301 || answer->status == 307 ||
               is(fault, "AuthorizationHeaderMalformed", "IllegalLocationConstraintException")) {
        if (region[0]) {
            rf__detail(err->next, "the bucket is in another region than %.60s: set AWS_REGION=%s",
                       config->region, region);
        } else {
            rf__detail(err->next, "the bucket is not in region %.60s: set AWS_REGION to its own",
                       config->region);
        }
    } else if (is(fault, "NoSuchBucket", NULL)) {
        if (config->uri.google) {
            rf__detail(err->next, "create it: gcloud storage buckets create gs://%.100s",
                       config->uri.bucket);
        } else {
            rf__detail(err->next, "create it: aws s3 mb s3://%.60s%s%.120s", config->uri.bucket,
                       config->own_server ? " --endpoint-url " : "",
                       config->own_server ? config->base : "");
        }
    } else if (answer->status == 401 || answer->status == 403) {
        next_for_access(s3, request, fault, err);
    } else if (refusal_code(answer) == RF_ENOTFOUND) {
        rf__detail(err->next, "check the name: nothing stands under it");
    } else if (is(fault, "EntityTooLarge", NULL)) {
        rf__detail(err->next, "the server's limit for one object is reached: use more workers");
    } else if (is(fault, "InvalidBucketName", NULL)) {
        rf__detail(err->next, "check the bucket's name in the URI");
    } else if (rf__s3_status_retryable(answer->status, fault)) {
        rf__detail(err->next, "the server is overloaded or broken: see its log, try again later");
    } else {
        rf__detail(err->next, "look for the request in the server's log");
    }
}

int rf__s3_refused(const struct rf__s3 *s3, const struct rf__s3_request *request,
                   const struct rf__s3_answer *answer, struct rf_error *err) {
    const struct rf__s3_fault *fault = &answer->fault;
    char what[RF_ERROR_DETAIL_MAX];
    const char *id = answer->request_id[0] ? answer->request_id : fault->request_id;
    bool secret = holds_secret(&s3->config, fault->message);
    const char *message = secret ? "(words withheld: they repeat a secret)" : fault->message;

    tell_what(s3, request, what, sizeof what);
    int code =
        rf__fail(err, refusal_code(answer), 0, "%s at %.60s: %.100s: %ld %s%s%.110s", scheme(s3),
                 s3->config.where, what, answer->status,
                 fault->code[0] ? fault->code : "without a code", message[0] ? ": " : "", message);
    if (err) {
        char why[RF_ERROR_DETAIL_MAX] = "";
        if (id[0]) {
            snprintf(why, sizeof why, "the server's request id is %.80s", id);
        }
        tell_details(s3, what, why, err);
        next_for_refusal(s3, request, answer, err);
    }
    return code;
}

int rf__s3_failed(const struct rf__s3 *s3, const struct rf__s3_request *request, CURLcode curl,
                  const char *reason, struct rf_error *err) {
    char what[RF_ERROR_DETAIL_MAX], why[160];
    int code = RF_EIO;

    rf__s3_printable(why, sizeof why, reason && reason[0] ? reason : curl_easy_strerror(curl));
    tell_what(s3, request, what, sizeof what);
    if (curl == CURLE_COULDNT_CONNECT || curl == CURLE_COULDNT_RESOLVE_HOST) {
        code = RF_ECONNECT;
    } else if (curl == CURLE_OPERATION_TIMEDOUT) {
        code = RF_ETIMEDOUT;
    }
    rf__fail(err, code, 0, "%s at %.60s: %.100s: %.110s", scheme(s3), s3->config.where, what, why);
    if (!err) {
        return code;
    }
    tell_details(s3, what, why, err);
    if (curl == CURLE_PEER_FAILED_VERIFICATION || curl == CURLE_SSL_CACERT_BADFILE) {
        rf__detail(err->next, "set AWS_CA_BUNDLE to the file with the authority that signed the "
                              "server's certificate");
    } else if (curl == CURLE_COULDNT_RESOLVE_HOST) {
        rf__detail(err->next, "check %s",
                   s3->config.own_server ? "the endpoint's host name"
                                         : "the region and the network");
    } else {
        rf__detail(err->next, "check that the server runs and that the network to it is sound");
    }
    return code;
}

int rf__s3_confused(const struct rf__s3 *s3, const struct rf__s3_request *request,
                    const char *reason, struct rf_error *err) {
    char what[RF_ERROR_DETAIL_MAX];

    tell_what(s3, request, what, sizeof what);
    int code = rf__fail(err, RF_EPROTO, 0, "%s at %.60s: %.100s: %.110s", scheme(s3),
                        s3->config.where, what, reason);
    tell_details(s3, what, reason, err);
    if (err) {
        rf__detail(err->next, "check that the endpoint is object storage, and what stands between");
    }
    return code;
}

int rf__s3_stopped(const struct rf__s3 *s3, const struct rf__s3_request *request,
                   struct rf_error *err) {
    char what[RF_ERROR_DETAIL_MAX];

    tell_what(s3, request, what, sizeof what);
    int code = rf__fail(err, RF_ESTOPPED, 0, "%s at %.60s: %.100s: stopped on request", scheme(s3),
                        s3->config.where, what);
    tell_details(s3, what, "", err);
    if (err) {
        rf__detail(err->next, "start again to go on");
    }
    return code;
}
