/* One request to object storage: built, signed and sent by libcurl, and sent again while that is
 * worth it.
 *
 * libcurl 7.88 signs what it is given: it does not sort or encode the query, and it signs every
 * header of ours, also one without a value. So queries come in canonical form (s3_text), our
 * headers are few and in lower case, and the payload's digest is always given by us. */
#include "os/s3_internal.h"

#include "base/mem.h"
#include "base/status.h"
#include "os/clock.h"

#include <openssl/evp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

enum {
    URL_MAX = 640 + RF__S3_PATH_MAX + RF__S3_QUERY_MAX,
    CONNECT_MS = 10000,
    SLOWEST_BYTES_S = 1024,
    ERROR_BODY_MAX = 65536,
    SMALL_BODY = 65536, /* whose digest costs nothing, so that it is signed also under TLS */
    HEADER_MAX = 5000,
    DOUBTFUL_TRIES = 5
};

/* What the callbacks of one try share. */
struct attempt {
    struct rf__s3 *s3;
    const struct rf__s3_request *request;
    struct rf__s3_answer *answer;
    CURL *curl;
    size_t sent;     /* of the request's body */
    size_t into_was; /* bytes of the range before this try */
    bool headed;     /* the answer's headers were taken */
    bool misplaced;  /* the bytes are not those that were asked for */
    bool replaced;   /* … because the blob is another by now */
    bool no_memory;
    unsigned tries;
    const char *url;
    struct curl_slist *headers;
    char range[48];
    char reason[CURL_ERROR_SIZE];
};

enum verdict { ANSWERED, AGAIN, OVER };

static pthread_once_t global_once = PTHREAD_ONCE_INIT;
static CURLcode global_code;

static void make_global(void) {
    global_code = curl_global_init(CURL_GLOBAL_DEFAULT);
}

int rf__s3_global(struct rf_error *err) {
    pthread_once(&global_once, make_global);
    return global_code ? rf__fail(err, RF_EINTERNAL, 0, "libcurl cannot start: %s",
                                  curl_easy_strerror(global_code))
                       : RF_OK;
}

const char *rf__s3_header_front(const struct rf__s3 *s3) {
    return s3->config.uri.google ? "x-goog-" : "x-amz-";
}

/* ---- handles ---- */

static CURL *take_handle(struct rf__s3 *s3) {
    CURL *curl = NULL;

    pthread_mutex_lock(&s3->lock);
    if (s3->idle_count) {
        curl = s3->idle[--s3->idle_count];
    }
    pthread_mutex_unlock(&s3->lock);
    return curl ? curl : curl_easy_init();
}

static void give_handle(struct rf__s3 *s3, CURL *curl) {
    if (!curl) {
        return;
    }
    curl_easy_reset(curl);
    pthread_mutex_lock(&s3->lock);
    if (s3->idle_count < RF__S3_IDLE_HANDLES) {
        s3->idle[s3->idle_count++] = curl;
        curl = NULL;
    }
    pthread_mutex_unlock(&s3->lock);
    if (curl) {
        curl_easy_cleanup(curl);
    }
}

/* ---- what the answer's headers say ---- */

/* libcurl 7.88 gives the line's end as the value of a header that has none. */
static bool take_header(struct attempt *attempt, const char *name, char *out, size_t capacity) {
    struct curl_header *header;

    out[0] = '\0';
    if (curl_easy_header(attempt->curl, name, 0, CURLH_HEADER, -1, &header) != CURLHE_OK) {
        return false;
    }
    size_t length = strcspn(header->value, "\r\n");
    if (!length || length >= capacity) {
        return false;
    }
    rf__s3_printable(out, length + 1, header->value);
    return true;
}

static bool take_own_header(struct attempt *attempt, const char *name, char *out, size_t capacity) {
    char whole[64];

    snprintf(whole, sizeof whole, "%s%s", rf__s3_header_front(attempt->s3), name);
    return take_header(attempt, whole, out, capacity);
}

/* "bytes 10-19/200"; the last byte is what arrives, so it is not looked at. */
static void take_range(struct rf__s3_answer *answer, const char *text) {
    unsigned long long first, last, total;
    int used = 0;

    if (strspn(text, "bytes 0123456789-/") == strlen(text) &&
        sscanf(text, "bytes %19llu-%19llu/%19llu%n", &first, &last, &total, &used) == 3 &&
        !text[used] && first <= last && last < total) {
        answer->has_range = true;
        answer->range_first = first;
        answer->range_total = total;
    }
}

static void take_headers(struct attempt *attempt) {
    struct rf__s3_answer *answer = attempt->answer;
    char text[96];
    curl_off_t length = -1;

    if (attempt->headed) {
        return;
    }
    attempt->headed = true;
    curl_easy_getinfo(attempt->curl, CURLINFO_RESPONSE_CODE, &answer->status);
    if (!answer->status) {
        return;
    }
    curl_easy_getinfo(attempt->curl, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &length);
    answer->content_bytes = length;
    take_header(attempt, "etag", answer->etag, sizeof answer->etag);
    if (!take_own_header(attempt, "request-id", answer->request_id, sizeof answer->request_id)) {
        take_header(attempt, "x-guploader-uploadid", answer->request_id, sizeof answer->request_id);
    }
    take_own_header(attempt, "bucket-region", answer->region, sizeof answer->region);
    take_own_header(attempt, "meta-ringfold-writer", answer->token, sizeof answer->token);
    if (take_header(attempt, "content-range", text, sizeof text)) {
        take_range(answer, text);
    }
    if (take_header(attempt, "date", text, sizeof text)) {
        answer->date_s = (int64_t)curl_getdate(text, NULL);
    }
}

/* Whether the bytes that come are the range that was asked for. */
static bool is_in_place(struct attempt *attempt) {
    const struct rf__s3_request *request = attempt->request;
    const struct rf__s3_answer *answer = attempt->answer;

    if (request->etag && strcmp(request->etag, answer->etag) != 0) {
        attempt->replaced = true;
        return false;
    }
    if (answer->status == 206) {
        return answer->has_range && answer->range_first == request->first + attempt->into_was &&
               (!request->total || answer->range_total == request->total);
    }
    return answer->status == 200 && !request->first && !attempt->into_was &&
           answer->content_bytes == (int64_t)request->into_bytes;
}

/* ---- callbacks ---- */

static size_t keep_body(struct attempt *attempt, const char *bytes, size_t count) {
    struct rf__s3_answer *answer = attempt->answer;
    size_t most = answer->status >= 300 ? ERROR_BODY_MAX : RF__S3_ANSWER_MAX;

    if (count > most - answer->body_bytes) {
        answer->too_long = true;
        return 0;
    }
    if (answer->body_bytes + count >= answer->body_capacity) {
        size_t capacity = answer->body_capacity ? answer->body_capacity : 4096;
        while (capacity <= answer->body_bytes + count) {
            capacity *= 2;
        }
        char *grown = rf__grow(answer->body, capacity, 1);
        if (!grown) {
            attempt->no_memory = true;
            return 0;
        }
        answer->body = grown;
        answer->body_capacity = capacity;
    }
    memcpy(answer->body + answer->body_bytes, bytes, count);
    answer->body_bytes += count;
    answer->body[answer->body_bytes] = '\0';
    return count;
}

static size_t on_body(char *bytes, size_t size, size_t count, void *context) {
    struct attempt *attempt = context;
    struct rf__s3_answer *answer = attempt->answer;

    (void)size; /* always 1 */
    take_headers(attempt);
    if (!attempt->request->ranged || answer->status >= 300) {
        return keep_body(attempt, bytes, count);
    }
    if (answer->into_done == attempt->into_was && !is_in_place(attempt)) {
        attempt->misplaced = true;
        return 0;
    }
    if (count > attempt->request->into_bytes - answer->into_done) {
        answer->too_long = true;
        return 0;
    }
    memcpy((char *)attempt->request->into + answer->into_done, bytes, count);
    answer->into_done += count;
    return count;
}

static size_t on_read(char *out, size_t size, size_t count, void *context) {
    struct attempt *attempt = context;
    size_t left = attempt->request->body_bytes - attempt->sent;
    size_t bytes = size * count < left ? size * count : left;

    if (bytes) {
        memcpy(out, (const char *)attempt->request->body + attempt->sent, bytes);
    }
    attempt->sent += bytes;
    return bytes;
}

static int on_seek(void *context, curl_off_t offset, int origin) {
    struct attempt *attempt = context;

    if (origin != SEEK_SET || offset < 0 || (uint64_t)offset > attempt->request->body_bytes) {
        return CURL_SEEKFUNC_FAIL;
    }
    attempt->sent = (size_t)offset;
    return CURL_SEEKFUNC_OK;
}

static int on_progress(void *context, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d) {
    struct attempt *attempt = context;

    (void)a, (void)b, (void)c, (void)d;
    return atomic_load_explicit(&attempt->s3->interrupted, memory_order_acquire);
}

/* ---- building ---- */

static bool make_url(const struct rf__s3 *s3, const struct rf__s3_request *request, char *url) {
    const struct rf__s3_config *config = &s3->config;
    size_t used = 0;

    int length = snprintf(url, URL_MAX, "%s%s%s/", config->base, config->bucket_in_path ? "/" : "",
                          config->bucket_in_path ? config->uri.bucket : "");
    if (length < 0 || length >= URL_MAX) {
        return false;
    }
    used = (size_t)length;
    if (request->key && !rf__s3_encode(url, URL_MAX, &used, request->key, false)) {
        return false;
    }
    length = request->query ? snprintf(url + used, URL_MAX - used, "?%s", request->query) : 0;
    return length >= 0 && (size_t)length < URL_MAX - used;
}

static bool add_header(struct curl_slist **list, const char *format, ...) RF__PRINTF(2, 3);

static bool add_header(struct curl_slist **list, const char *format, ...) {
    char text[HEADER_MAX];
    va_list arguments;

    va_start(arguments, format);
    int length = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    struct curl_slist *longer =
        length >= 0 && (size_t)length < sizeof text ? curl_slist_append(*list, text) : NULL;
    explicit_bzero(text, sizeof text);
    *list = longer ? longer : *list;
    return longer != NULL;
}

/* The digests by which the server checks what it gets. MD5 may be missing (FIPS); then SHA-256 does
 * its work. */
static bool add_digests(struct attempt *attempt) {
    const struct rf__s3_request *request = attempt->request;
    const char *front = rf__s3_header_front(attempt->s3);
    unsigned char md[EVP_MAX_MD_SIZE];
    char text[2 * EVP_MAX_MD_SIZE + 1];
    unsigned bytes = 0;
    bool by_md5 = false;

    if (request->body_bytes && !strcmp(request->verb, "PUT") &&
        EVP_Digest(request->body, request->body_bytes, md, &bytes, EVP_md5(), NULL)) {
        by_md5 = true;
        EVP_EncodeBlock((unsigned char *)text, md, (int)bytes);
        if (!add_header(&attempt->headers, "content-md5: %s", text)) {
            return false;
        }
    }
    if (by_md5 && attempt->s3->config.secure && request->body_bytes > SMALL_BODY) {
        return add_header(&attempt->headers, "%scontent-sha256: UNSIGNED-PAYLOAD", front);
    }
    if (!EVP_Digest(request->body ? request->body : "", request->body_bytes, md, &bytes,
                    EVP_sha256(), NULL)) {
        return false;
    }
    for (unsigned i = 0; i < bytes; i++) {
        snprintf(text + 2 * (size_t)i, 3, "%02x", md[i]);
    }
    return add_header(&attempt->headers, "%scontent-sha256: %s", front, text);
}

static bool make_headers(struct attempt *attempt) {
    const struct rf__s3_request *request = attempt->request;
    const struct rf__s3_config *config = &attempt->s3->config;
    bool made = add_digests(attempt);

    for (size_t i = 0; made && i < RF__S3_MORE_HEADERS_MAX; i++) {
        made = !request->headers[i] || add_header(&attempt->headers, "%s", request->headers[i]);
    }
    if (made && request->etag) {
        made = add_header(&attempt->headers, "if-match: %s", request->etag);
    }
    if (made && config->token[0] && !config->uri.google) {
        made = add_header(&attempt->headers, "x-amz-security-token: %s", config->token);
    }
    return made;
}

static bool set_signature(CURL *curl, const struct rf__s3_config *config) {
    char provider[128];

    snprintf(provider, sizeof provider, "%s:%s:%s", config->uri.google ? "goog:goog" : "aws:amz",
             config->region, config->uri.google ? "storage" : "s3");
    return !curl_easy_setopt(curl, CURLOPT_AWS_SIGV4, provider) &&
           !curl_easy_setopt(curl, CURLOPT_USERNAME, config->access_key) &&
           !curl_easy_setopt(curl, CURLOPT_PASSWORD, config->secret);
}

static bool set_verb(CURL *curl, struct attempt *attempt) {
    const struct rf__s3_request *request = attempt->request;

    if (!strcmp(request->verb, "HEAD")) {
        return !curl_easy_setopt(curl, CURLOPT_NOBODY, 1L);
    }
    if (!strcmp(request->verb, "PUT") || !strcmp(request->verb, "POST")) {
        /* libcurl asks whether it may send a body; with a small one it does not wait for leave. */
        long patience_ms = request->body_bytes > SMALL_BODY ? 1000 : 1;
        return !curl_easy_setopt(curl, CURLOPT_EXPECT_100_TIMEOUT_MS, patience_ms) &&
               !curl_easy_setopt(curl, CURLOPT_UPLOAD, 1L) &&
               !curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, request->verb) &&
               !curl_easy_setopt(curl, CURLOPT_INFILESIZE_LARGE, (curl_off_t)request->body_bytes) &&
               !curl_easy_setopt(curl, CURLOPT_READFUNCTION, on_read) &&
               !curl_easy_setopt(curl, CURLOPT_READDATA, attempt) &&
               !curl_easy_setopt(curl, CURLOPT_SEEKFUNCTION, on_seek) &&
               !curl_easy_setopt(curl, CURLOPT_SEEKDATA, attempt);
    }
    if (request->ranged) {
        uint64_t last = request->first + request->into_bytes - 1;
        snprintf(attempt->range, sizeof attempt->range, "%llu-%llu",
                 (unsigned long long)(request->first + attempt->into_was),
                 (unsigned long long)last);
        return !curl_easy_setopt(curl, CURLOPT_RANGE, attempt->range);
    }
    return !strcmp(request->verb, "GET") ||
           !curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, request->verb);
}

static bool set_times(CURL *curl, const struct attempt *attempt, int64_t left_ms) {
    long whole_ms = (long)(left_ms > 1000 ? left_ms : 1000);
    bool set = !curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS,
                                 whole_ms < CONNECT_MS ? whole_ms : (long)CONNECT_MS);

    if (attempt->request->patient) {
        /* Half of the time, so that a server that fell silent is asked again. */
        return set && !curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, (whole_ms + 1) / 2);
    }
    return set && !curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, (long)SLOWEST_BYTES_S) &&
           !curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, (long)attempt->s3->stall_s);
}

static bool set_rest(CURL *curl, struct attempt *attempt) {
    const struct rf__s3_config *config = &attempt->s3->config;
    bool set = !curl_easy_setopt(curl, CURLOPT_URL, attempt->url) &&
               !curl_easy_setopt(curl, CURLOPT_HTTPHEADER, attempt->headers) &&
               !curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https") &&
               !curl_easy_setopt(curl, CURLOPT_PATH_AS_IS, 1L) &&
               !curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 0L) &&
               !curl_easy_setopt(curl, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1) &&
               !curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L) &&
               !curl_easy_setopt(curl, CURLOPT_TCP_KEEPALIVE, 1L) &&
               !curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, attempt->reason) &&
               !curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_body) &&
               !curl_easy_setopt(curl, CURLOPT_WRITEDATA, attempt) &&
               !curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L) &&
               !curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, on_progress) &&
               !curl_easy_setopt(curl, CURLOPT_XFERINFODATA, attempt);

    if (set && config->ca_bundle[0]) {
        set = !curl_easy_setopt(curl, CURLOPT_CAINFO, config->ca_bundle);
    }
    return set;
}

/* ---- sending ---- */

static void answer_clear(struct rf__s3_answer *answer) {
    char *body = answer->body;
    size_t capacity = answer->body_capacity, into_done = answer->into_done;
    bool lost = answer->lost;

    *answer = (struct rf__s3_answer){.body = body,
                                     .body_capacity = capacity,
                                     .into_done = into_done,
                                     .lost = lost,
                                     .content_bytes = -1,
                                     .date_s = -1};
}

void rf__s3_answer_free(struct rf__s3_answer *answer) {
    rf__free(answer->body);
    *answer = (struct rf__s3_answer){0};
}

/* One try. What it needs and cannot get is CURLE_OUT_OF_MEMORY. */
static CURLcode send_once(struct attempt *attempt, int64_t left_ms) {
    CURLcode code = CURLE_OUT_OF_MEMORY;

    answer_clear(attempt->answer);
    attempt->sent = 0;
    attempt->into_was = attempt->answer->into_done;
    attempt->headed = attempt->misplaced = attempt->replaced = false;
    attempt->reason[0] = '\0';
    attempt->curl = take_handle(attempt->s3);
    if (!attempt->curl || !set_rest(attempt->curl, attempt) ||
        !set_signature(attempt->curl, &attempt->s3->config) || !set_verb(attempt->curl, attempt) ||
        !set_times(attempt->curl, attempt, left_ms)) {
        goto out;
    }
    code = curl_easy_perform(attempt->curl);
    take_headers(attempt);
    curl_off_t after = 0;
    curl_easy_getinfo(attempt->curl, CURLINFO_RETRY_AFTER, &after);
    attempt->answer->retry_after_ms = after > 0 && after < 86400 ? after * 1000 : 0;
out:
    give_handle(attempt->s3, attempt->curl);
    attempt->curl = NULL;
    return code;
}

static bool curl_is_retryable(CURLcode code) {
    static const CURLcode codes[] = {
        CURLE_COULDNT_CONNECT,  CURLE_PARTIAL_FILE,  CURLE_OPERATION_TIMEDOUT,
        CURLE_GOT_NOTHING,      CURLE_SEND_ERROR,    CURLE_RECV_ERROR,
        CURLE_SEND_FAIL_REWIND, CURLE_UPLOAD_FAILED, CURLE_AGAIN};

    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++) {
        if (code == codes[i]) {
            return true;
        }
    }
    return false;
}

/* What may pass, and more likely is a setting: a misspelt host, a port of something else. Unless
 * the server has answered properly before. */
static bool is_doubtful(CURLcode code) {
    return code == CURLE_COULDNT_RESOLVE_HOST || code == CURLE_COULDNT_RESOLVE_PROXY ||
           code == CURLE_UNSUPPORTED_PROTOCOL || code == CURLE_WEIRD_SERVER_REPLY ||
           code == CURLE_SSL_CONNECT_ERROR;
}

static bool was_sent(CURLcode code) {
    return code != CURLE_COULDNT_RESOLVE_HOST && code != CURLE_COULDNT_RESOLVE_PROXY &&
           code != CURLE_COULDNT_CONNECT && code != CURLE_SSL_CONNECT_ERROR;
}

static enum verdict judge_failure(struct attempt *attempt, CURLcode code, struct rf_error *err) {
    struct rf__s3_answer *answer = attempt->answer;

    if (attempt->no_memory || code == CURLE_OUT_OF_MEMORY) {
        rf__fail(err, RF_ENOMEM, 0, "no memory to talk to %s", attempt->s3->config.where);
        return OVER;
    }
    if (attempt->replaced || attempt->misplaced || answer->too_long) {
        rf__s3_confused(attempt->s3, attempt->request,
                        attempt->replaced    ? "what is read was replaced by another blob"
                        : attempt->misplaced ? "the answer is not the range that was asked for"
                                             : "the answer is longer than it may be",
                        err);
        return OVER;
    }
    answer->lost = answer->lost || was_sent(code);
    rf__s3_failed(attempt->s3, attempt->request, code, attempt->reason, err);
    if (is_doubtful(code)) {
        bool is_known = atomic_load_explicit(&attempt->s3->answered, memory_order_relaxed);
        return is_known || attempt->tries < DOUBTFUL_TRIES ? AGAIN : OVER;
    }
    return curl_is_retryable(code) ? AGAIN : OVER;
}

/* An answer with a status. */
static enum verdict judge_answer(struct attempt *attempt, struct rf_error *err) {
    const struct rf__s3_request *request = attempt->request;
    struct rf__s3_answer *answer = attempt->answer;
    bool fault =
        answer->body_bytes && rf__s3_fault_parse(answer->body, answer->body_bytes, &answer->fault);

    if (answer->status >= 200 && answer->status < 300 && !fault) {
        answer->fault = (struct rf__s3_fault){0};
        atomic_store_explicit(&attempt->s3->answered, true, memory_order_relaxed);
        if (!request->ranged || answer->into_done == request->into_bytes) {
            return ANSWERED;
        }
        if (answer->into_done == attempt->into_was && !is_in_place(attempt)) {
            attempt->misplaced = true;
            return judge_failure(attempt, CURLE_OK, err);
        }
        rf__s3_failed(attempt->s3, request, CURLE_PARTIAL_FILE, "the answer ended early", err);
        return AGAIN;
    }
    rf__s3_refused(attempt->s3, request, answer, err);
    if (rf__s3_status_retryable(answer->status, answer->fault.code)) {
        answer->lost = true;
        return AGAIN;
    }
    return OVER;
}

static enum verdict judge(struct attempt *attempt, CURLcode code, struct rf_error *err) {
    if (atomic_load_explicit(&attempt->s3->interrupted, memory_order_acquire)) {
        rf__s3_stopped(attempt->s3, attempt->request, err);
        return OVER;
    }
    /* An error of the server whose body did not end, or an upload that it did not want to see. */
    bool refused = attempt->answer->status >= 300 && code != CURLE_OUT_OF_MEMORY;
    if (code != CURLE_OK && !refused) {
        return judge_failure(attempt, code, err);
    }
    enum verdict verdict = judge_answer(attempt, err);
    bool unexplained =
        code != CURLE_OK && curl_is_retryable(code) && !attempt->answer->fault.code[0];
    return verdict == OVER && unexplained && attempt->tries < DOUBTFUL_TRIES ? AGAIN : verdict;
}

/* false: interrupted. */
static bool pause_for(struct rf__s3 *s3, int64_t wait_ms) {
    struct timespec until;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += wait_ms / 1000;
    until.tv_nsec += wait_ms % 1000 * RF__MS;
    if (until.tv_nsec >= 1000 * RF__MS) {
        until.tv_nsec -= 1000 * RF__MS;
        until.tv_sec++;
    }
    pthread_mutex_lock(&s3->lock);
    int waited = 0;
    while (!waited && !atomic_load_explicit(&s3->interrupted, memory_order_acquire)) {
        waited = pthread_cond_timedwait(&s3->wake, &s3->lock, &until);
    }
    pthread_mutex_unlock(&s3->lock);
    return !atomic_load_explicit(&s3->interrupted, memory_order_acquire);
}

static uint64_t draw(void) {
    uint64_t value = 0;

    if (getrandom(&value, sizeof value, GRND_NONBLOCK) != (ssize_t)sizeof value) {
        value = (uint64_t)rf__now();
    }
    return value;
}

/* Says, behind the last cause, how long it was tried. */
static void tell_tries(struct rf_error *err, unsigned tries, int64_t since) {
    if (err) {
        size_t length = strlen(err->text);
        snprintf(err->text + length, sizeof err->text - length, " (%u %s in %.1f s)", tries,
                 tries == 1 ? "try" : "tries", (double)(rf__now() - since) / 1e9);
    }
}

static int try_until(struct attempt *attempt, struct rf_error *err) {
    struct rf__s3 *s3 = attempt->s3;
    struct rf_error cause;
    int64_t began = rf__now(), progress = began;
    unsigned futile = 0;

    for (;;) {
        int64_t left_ms = s3->deadline_ms - (rf__now() - progress) / RF__MS;
        CURLcode sent = CURLE_ABORTED_BY_CALLBACK;
        if (!atomic_load_explicit(&s3->interrupted, memory_order_acquire)) {
            sent = send_once(attempt, left_ms);
        }
        attempt->tries++;
        enum verdict verdict = judge(attempt, sent, &cause);
        if (verdict == ANSWERED) {
            return RF_OK;
        }
        if (verdict == AGAIN && !attempt->request->once) {
            bool moved = attempt->answer->into_done > attempt->into_was;
            futile = moved ? 1 : futile + 1;
            progress = moved ? rf__now() : progress;
            left_ms = s3->deadline_ms - (rf__now() - progress) / RF__MS;
            int64_t wait_ms = rf__s3_backoff_ms(futile, draw(), attempt->answer->retry_after_ms);
            if (wait_ms < left_ms && pause_for(s3, wait_ms)) {
                continue;
            }
            if (atomic_load_explicit(&s3->interrupted, memory_order_acquire)) {
                rf__s3_stopped(s3, attempt->request, &cause);
            } else {
                tell_tries(&cause, attempt->tries, began);
            }
        }
        if (err) {
            *err = cause;
        }
        return cause.code;
    }
}

int rf__s3_call(struct rf__s3 *s3, const struct rf__s3_request *request,
                struct rf__s3_answer *answer, struct rf_error *err) {
    struct attempt attempt = {.s3 = s3, .request = request, .answer = answer};
    int code;

    answer->lost = false;
    answer->into_done = 0;
    answer_clear(answer);
    char *url = rf__alloc(URL_MAX, 1);
    attempt.url = url;
    if (!url || !make_headers(&attempt)) {
        code = rf__fail(err, RF_ENOMEM, 0, "no memory to talk to %s", s3->config.where);
        goto out;
    }
    if (!make_url(s3, request, url)) {
        code = rf__fail(err, RF_ELIMIT, 0, "%s: a request is longer than %d bytes",
                        s3->config.where, URL_MAX);
        goto out;
    }
    code = try_until(&attempt, err);
out:
    curl_slist_free_all(attempt.headers);
    rf__free(url);
    return code;
}
