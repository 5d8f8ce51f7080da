/* Object storage: what is there, what was left behind, and removing it. Pages are walked as they
 * come; names must ascend, so that no server can make a list that does not end by repeating itself.
 */
#include "os/s3_internal.h"

#include "base/mem.h"
#include "base/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { EMPTY_PAGES_MAX = 100, MARKER_MAX = 2049, UPLOAD_MAX = 1025 };

/* A list in progress, of blobs or of uploads. */
struct listing {
    struct rf__s3 *s3;
    char prefix[RF__S3_KEY_MAX]; /* of keys */
    struct rf__s3_query query;
    struct rf__s3_request request;
    struct rf__s3_answer answer;
    struct rf_error *err;

    /* The element that is being read. */
    char key[RF__S3_KEY_MAX];
    char upload[UPLOAD_MAX];
    char size[24];
    char time[40];

    /* The page. */
    const char *problem; /* what cannot be */
    size_t entries;
    bool truncated;
    char next[MARKER_MAX], next_upload[UPLOAD_MAX];

    char before[RF__S3_KEY_MAX]; /* the last key that was told */
    int stop;                    /* what ended it */

    int (*each)(void *context, const struct rf__blob_entry *entry);
    void *context;
    int64_t age_s;
    int collected;
};

static void keep(struct listing *listing, char *out, size_t capacity, const char *text) {
    size_t length = strlen(text);

    if (length >= capacity) {
        listing->problem = "a name or a marker in the list is too long";
        return;
    }
    memcpy(out, text, length + 1);
}

static bool is_number(const char *text) {
    return text[0] && strspn(text, "0123456789") == strlen(text) && strlen(text) < 20;
}

/* What a page says besides its entries. */
static bool keep_common(struct listing *listing, const char *rest, const char *text) {
    if (!strcmp(rest, "/IsTruncated")) {
        listing->truncated = !strcmp(text, "true");
    } else if (!strcmp(rest, "/NextContinuationToken") || !strcmp(rest, "/NextKeyMarker")) {
        keep(listing, listing->next, sizeof listing->next, text);
    } else if (!strcmp(rest, "/NextUploadIdMarker")) {
        keep(listing, listing->next_upload, sizeof listing->next_upload, text);
    } else {
        return false;
    }
    return true;
}

/* Reads pages until the last. `ask` writes the next page's query. */
static int walk_pages(struct listing *listing, void (*ask)(struct listing *listing),
                      rf__s3_visit *visit) {
    unsigned empty = 0;

    listing->request = (struct rf__s3_request){.verb = "GET", .query = listing->query.text};
    do {
        listing->query.used = 0;
        listing->query.failed = false;
        ask(listing);
        listing->truncated = false;
        listing->next[0] = listing->next_upload[0] = '\0';
        listing->entries = 0;
        if (listing->query.failed) {
            return rf__fail(listing->err, RF_ELIMIT, 0, "%s: the query of a list is too long",
                            listing->s3->config.where);
        }
        int code = rf__s3_call(listing->s3, &listing->request, &listing->answer, listing->err);
        if (code) {
            return code;
        }
        code = rf__s3_xml_walk(listing->answer.body ? listing->answer.body : "",
                               listing->answer.body_bytes, visit, listing);
        if (listing->stop) {
            return listing->stop;
        }
        empty = listing->entries ? 0 : empty + 1;
        if (code && !listing->problem) {
            listing->problem = "the list is no sound XML, or too large";
        } else if (listing->truncated && !listing->next[0]) {
            listing->problem = "the list goes on, and does not say where";
        } else if (empty > EMPTY_PAGES_MAX) {
            listing->problem = "the list goes on with pages that are empty";
        }
        if (listing->problem) {
            return rf__s3_confused(listing->s3, &listing->request, listing->problem, listing->err);
        }
    } while (listing->truncated);
    return RF_OK;
}

static struct listing *begin(struct rf__s3 *s3, const char *prefix, struct rf_error *err,
                             int *code) {
    struct listing *listing = rf__alloc(1, sizeof *listing);

    if (!listing) {
        *code = rf__fail(err, RF_ENOMEM, 0, "no memory for a list");
        return NULL;
    }
    listing->s3 = s3;
    listing->err = err;
    *code = rf__s3_key(&s3->config.uri, prefix, false, listing->prefix, err);
    return listing;
}

static void end(struct listing *listing) {
    if (listing) {
        rf__s3_answer_free(&listing->answer);
    }
    rf__free(listing);
}

/* ---- blobs ---- */

static void ask_blobs(struct listing *listing) {
    char count[16];

    snprintf(count, sizeof count, "%u", listing->s3->max_keys);
    if (listing->next[0]) {
        rf__s3_query_add(&listing->query, "continuation-token", listing->next);
    }
    rf__s3_query_add(&listing->query, "list-type", "2");
    rf__s3_query_add(&listing->query, "max-keys", count);
    rf__s3_query_add(&listing->query, "prefix", listing->prefix);
}

static int tell_blob(struct listing *listing) {
    size_t front = strlen(listing->s3->config.uri.prefix);
    int64_t time = rf__s3_time(listing->time);

    listing->entries++;
    if (strncmp(listing->key, listing->prefix, strlen(listing->prefix)) != 0) {
        listing->problem = "the list holds what was not asked for";
    } else if (strcmp(listing->key, listing->before) <= 0) {
        listing->problem = "the list is out of order";
    } else if (!is_number(listing->size) || time < 0) {
        listing->problem = "the list tells no size or no time";
    }
    if (listing->problem) {
        return RF_EPROTO;
    }
    memcpy(listing->before, listing->key, sizeof listing->before);
    if (!listing->key[front]) {
        return RF_OK; /* the folder itself, as some tools leave it */
    }
    struct rf__blob_entry entry = {.name = listing->key + front,
                                   .bytes = strtoull(listing->size, NULL, 10),
                                   .modified_s = time};
    return listing->stop = listing->each(listing->context, &entry);
}

static int visit_blobs(void *context, const char *path, const char *text) {
    struct listing *listing = context;
    static const char root[] = "ListBucketResult";

    if (strncmp(path, root, sizeof root - 1) != 0) {
        return RF_EPROTO;
    }
    const char *rest = path + sizeof root - 1;
    if (!strcmp(rest, "/Contents/Key")) {
        keep(listing, listing->key, sizeof listing->key, text);
    } else if (!strcmp(rest, "/Contents/Size")) {
        keep(listing, listing->size, sizeof listing->size, text);
    } else if (!strcmp(rest, "/Contents/LastModified")) {
        keep(listing, listing->time, sizeof listing->time, text);
    } else if (!strcmp(rest, "/Contents")) {
        int code = listing->problem ? RF_EPROTO : tell_blob(listing);
        listing->key[0] = listing->size[0] = listing->time[0] = '\0';
        return code;
    } else {
        keep_common(listing, rest, text);
    }
    return listing->problem ? RF_EPROTO : RF_OK;
}

int rf__s3_list(struct rf__blobs *blobs, const char *prefix,
                int (*each)(void *context, const struct rf__blob_entry *entry), void *context,
                struct rf_error *err) {
    struct rf__s3 *s3 = (struct rf__s3 *)blobs;
    int code = RF_OK;

    struct listing *listing = begin(s3, prefix, err, &code);
    if (!code) {
        listing->each = each;
        listing->context = context;
        code = walk_pages(listing, ask_blobs, visit_blobs);
    }
    end(listing);
    return code;
}

/* ---- unfinished uploads ---- */

static void ask_uploads(struct listing *listing) {
    char count[16];

    snprintf(count, sizeof count, "%u", listing->s3->max_keys);
    if (listing->next[0]) {
        rf__s3_query_add(&listing->query, "key-marker", listing->next);
    }
    rf__s3_query_add(&listing->query, "max-uploads", count);
    rf__s3_query_add(&listing->query, "prefix", listing->prefix);
    if (listing->next[0] && listing->next_upload[0]) {
        rf__s3_query_add(&listing->query, "upload-id-marker", listing->next_upload);
    }
    rf__s3_query_add(&listing->query, "uploads", "");
}

/* Aborts it where it is old enough by the clock of the server, which also dated it. */
static int collect_upload(struct listing *listing) {
    int64_t begun = rf__s3_time(listing->time);
    int64_t now = listing->answer.date_s >= 0 ? listing->answer.date_s : (int64_t)time(NULL);

    listing->entries++;
    if (strncmp(listing->key, listing->prefix, strlen(listing->prefix)) != 0) {
        listing->problem = "the list holds what was not asked for";
    } else if (strcmp(listing->key, listing->before) < 0) {
        listing->problem = "the list is out of order";
    } else if (begun < 0 || !listing->upload[0] || !listing->key[0]) {
        listing->problem = "the list tells no time or no upload";
    }
    if (listing->problem) {
        return RF_EPROTO;
    }
    memcpy(listing->before, listing->key, sizeof listing->before);
    if (now - begun < listing->age_s) {
        return RF_OK;
    }
    int code = rf__s3_abort_upload(listing->s3, listing->key, listing->upload, false, listing->err);
    listing->collected += code == RF_OK;
    return listing->stop = code;
}

static int visit_uploads(void *context, const char *path, const char *text) {
    struct listing *listing = context;
    static const char root[] = "ListMultipartUploadsResult";

    if (strncmp(path, root, sizeof root - 1) != 0) {
        return RF_EPROTO;
    }
    const char *rest = path + sizeof root - 1;
    if (!strcmp(rest, "/Upload/Key")) {
        keep(listing, listing->key, sizeof listing->key, text);
    } else if (!strcmp(rest, "/Upload/UploadId")) {
        keep(listing, listing->upload, sizeof listing->upload, text);
    } else if (!strcmp(rest, "/Upload/Initiated")) {
        keep(listing, listing->time, sizeof listing->time, text);
    } else if (!strcmp(rest, "/Upload")) {
        int code = listing->problem ? RF_EPROTO : collect_upload(listing);
        listing->key[0] = listing->upload[0] = listing->time[0] = '\0';
        return code;
    } else {
        keep_common(listing, rest, text);
    }
    return listing->problem ? RF_EPROTO : RF_OK;
}

int rf__s3_collect(struct rf__blobs *blobs, const char *prefix, int64_t age_s,
                   struct rf_error *err) {
    struct rf__s3 *s3 = (struct rf__s3 *)blobs;
    int code = RF_OK, collected = 0;

    struct listing *listing = begin(s3, prefix, err, &code);
    if (!code) {
        listing->age_s = age_s;
        code = walk_pages(listing, ask_uploads, visit_uploads);
        collected = listing->collected;
    }
    end(listing);
    return code ? code : collected;
}

/* ---- removing ---- */

int rf__s3_remove(struct rf__blobs *blobs, const char *name, struct rf_error *err) {
    struct rf__s3 *s3 = (struct rf__s3 *)blobs;
    struct rf__s3_answer answer = {0};
    char key[RF__S3_KEY_MAX];

    int code = rf__s3_key(&s3->config.uri, name, true, key, err);
    if (code) {
        return code;
    }
    /* DELETE answers the same whether something was there or not. */
    code = rf__s3_head(s3, key, &answer, err);
    if (!code) {
        struct rf__s3_request request = {.verb = "DELETE", .key = key};
        code = rf__s3_call(s3, &request, &answer, err);
        if (code == RF_ENOTFOUND && answer.lost) {
            code = RF_OK; /* an earlier try of ours did it */
        }
    }
    rf__s3_answer_free(&answer);
    return code;
}
