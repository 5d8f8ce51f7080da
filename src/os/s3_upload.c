/* Writing to object storage. What fits one part is one PUT; more becomes a multipart upload, one
 * part in memory at a time, which stands under its name only once it is completed.
 *
 * Every writer marks what it writes with a random token. An answer that was lost leaves open
 * whether the server did what it was asked; where that matters (a name that must be new, an upload
 * that is gone) the token of what stands there tells whether it is ours. */
#include "os/s3_internal.h"

#include "base/digest.h"
#include "base/mem.h"
#include "base/status.h"

#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

enum { BUFFER_FIRST = 65536, UPLOAD_MAX = 1025, MD5_BYTES = 16, PART_XML_MAX = 128 };

struct part {
    char etag[RF__S3_ETAG_MAX];
    unsigned char md5[MD5_BYTES];
};

struct writer {
    char key[RF__S3_KEY_MAX];
    char token_header[80];
    const char *token;       /* in it */
    char upload[UPLOAD_MAX]; /* empty: none was begun */
    struct part *parts;
    unsigned count, room;
    char *buffer;
    size_t used, capacity;
    uint64_t total;
    bool no_md5;

    /* A write that failed: how many of its bytes were taken, and which. */
    bool failed;
    size_t taken;
    uint64_t taken_digest;

    struct rf__s3_answer answer;
};

static const char *conditional_header(const struct rf__s3 *s3) {
    return s3->config.uri.google ? "x-goog-if-generation-match: 0" : "if-none-match: *";
}

static bool is_conditional(const struct rf__s3 *s3) {
    return !atomic_load_explicit(&s3->unconditional, memory_order_relaxed);
}

/* Whether the server does not know conditional puts; remembers it. */
static bool is_unsupported(struct rf__s3 *s3, const struct rf__s3_answer *answer) {
    bool unsupported = answer->status == 501 || !strcmp(answer->fault.code, "NotImplemented");
    if (unsupported) {
        atomic_store_explicit(&s3->unconditional, true, memory_order_relaxed);
    }
    return unsupported;
}

static int exists(const struct rf__s3 *s3, const char *key, struct rf_error *err) {
    char shown[160];

    rf__s3_printable(shown, sizeof shown, key);
    rf__fail(err, RF_ECONFLICT, 0, "%s at %.60s: %.60s/%s stands there already",
             s3->config.uri.google ? "gs" : "s3", s3->config.where, s3->config.uri.bucket, shown);
    if (err) {
        rf__detail(err->what, "writing what must be new");
        rf__detail(err->where, "%.200s", s3->config.where);
        rf__detail(err->next, "somebody else wrote it: read it, or choose another name");
    }
    return RF_ECONFLICT;
}

/* ---- what stands there now ---- */

static void md5_of(struct writer *writer, const void *bytes, size_t length,
                   unsigned char md5[MD5_BYTES]) {
    unsigned char md[EVP_MAX_MD_SIZE];
    unsigned count = 0;

    if (EVP_Digest(length ? bytes : "", length, md, &count, EVP_md5(), NULL) &&
        count == MD5_BYTES) {
        memcpy(md5, md, MD5_BYTES);
    } else {
        writer->no_md5 = true;
    }
}

/* The ETag that servers give to these bytes where they do not encrypt them with keys of their own:
 * the MD5, or that of the parts' MD5s with their count. */
static bool expected_etag(struct writer *writer, char *etag, size_t capacity) {
    unsigned char md5[MD5_BYTES] = {0};
    size_t used = 1;

    if (!writer->upload[0]) {
        md5_of(writer, writer->buffer, writer->used, md5);
    } else {
        unsigned char *all = rf__alloc(writer->count, MD5_BYTES);
        if (!all) {
            return false;
        }
        for (unsigned i = 0; i < writer->count; i++) {
            memcpy(all + (size_t)i * MD5_BYTES, writer->parts[i].md5, MD5_BYTES);
        }
        md5_of(writer, all, (size_t)writer->count * MD5_BYTES, md5);
        rf__free(all);
    }
    etag[0] = '"';
    for (size_t i = 0; i < MD5_BYTES; i++, used += 2) {
        snprintf(etag + used, capacity - used, "%02x", md5[i]);
    }
    if (writer->upload[0]) {
        snprintf(etag + used, capacity - used, "-%u\"", writer->count);
    } else {
        snprintf(etag + used, capacity - used, "\"");
    }
    return !writer->no_md5;
}

/* 1: what stands under the key is this writer's; 0: it is not, or nothing is; or an error. */
static int is_ours(struct rf__s3 *s3, struct writer *writer, struct rf_error *err) {
    char etag[64];

    int code = rf__s3_head(s3, writer->key, &writer->answer, err);
    if (code) {
        return code == RF_ENOTFOUND ? 0 : code;
    }
    if (writer->answer.token[0]) {
        return !strcmp(writer->answer.token, writer->token);
    }
    return writer->answer.content_bytes == (int64_t)writer->total &&
           expected_etag(writer, etag, sizeof etag) && !strcmp(etag, writer->answer.etag);
}

static int must_be_absent(struct rf__s3 *s3, struct writer *writer, struct rf_error *err) {
    int code = rf__s3_head(s3, writer->key, &writer->answer, err);

    if (code == RF_ENOTFOUND) {
        return RF_OK;
    }
    return code ? code : exists(s3, writer->key, err);
}

/* The server refused because something stands there: an earlier try of ours, perhaps. */
static int settle_conflict(struct rf__s3 *s3, struct writer *writer, struct rf_error *err) {
    int ours = writer->answer.lost ? is_ours(s3, writer, err) : 0;

    return ours < 0 ? ours : ours ? RF_OK : exists(s3, writer->key, err);
}

/* ---- small blobs ---- */

static int put_whole(struct rf__s3 *s3, struct writer *writer, bool only_new,
                     struct rf_error *err) {
    bool condition = only_new && is_conditional(s3);
    struct rf__s3_request request = {
        .verb = "PUT",
        .key = writer->key,
        .body = writer->buffer,
        .body_bytes = writer->used,
        .headers = {writer->token_header, condition ? conditional_header(s3) : NULL}};

    if (only_new && !condition) {
        int code = must_be_absent(s3, writer, err);
        if (code) {
            return code;
        }
    }
    int code = rf__s3_call(s3, &request, &writer->answer, err);
    if (code && condition && is_unsupported(s3, &writer->answer)) {
        return put_whole(s3, writer, only_new, err);
    }
    return code == RF_ECONFLICT && only_new ? settle_conflict(s3, writer, err) : code;
}

/* ---- multipart ---- */

struct begun {
    char *upload;
    bool found;
};

static int visit_begun(void *context, const char *path, const char *text) {
    struct begun *begun = context;

    if (!strcmp(path, "InitiateMultipartUploadResult/UploadId") && text[0] &&
        strlen(text) < UPLOAD_MAX) {
        memcpy(begun->upload, text, strlen(text) + 1);
        begun->found = true;
    }
    return RF_OK;
}

static int begin_upload(struct rf__s3 *s3, struct writer *writer, struct rf_error *err) {
    struct begun begun = {.upload = writer->upload};
    struct rf__s3_request request = {
        .verb = "POST", .key = writer->key, .query = "uploads=", .headers = {writer->token_header}};

    int code = rf__s3_call(s3, &request, &writer->answer, err);
    if (code) {
        return code;
    }
    if (rf__s3_xml_walk(writer->answer.body ? writer->answer.body : "", writer->answer.body_bytes,
                        visit_begun, &begun) ||
        !begun.found) {
        writer->upload[0] = '\0';
        return rf__s3_confused(s3, &request, "the answer names no upload", err);
    }
    return RF_OK;
}

static bool make_room_for_part(struct writer *writer) {
    if (writer->count < writer->room) {
        return true;
    }
    unsigned room = writer->room ? 2 * writer->room : 16;
    struct part *grown = rf__grow(writer->parts, room, sizeof *grown);
    if (!grown) {
        return false;
    }
    writer->parts = grown;
    writer->room = room;
    return true;
}

static int send_part(struct rf__s3 *s3, struct writer *writer, const void *bytes, size_t length,
                     struct rf_error *err) {
    char number[16];
    int code;

    if (writer->count == RF__S3_PARTS_MAX) {
        return rf__fail(err, RF_ELIMIT, 0, "%s: a blob has more than %d parts", s3->config.where,
                        RF__S3_PARTS_MAX);
    }
    if (!make_room_for_part(writer)) {
        return rf__fail(err, RF_ENOMEM, 0, "no memory for an upload");
    }
    if (!writer->upload[0]) {
        code = begin_upload(s3, writer, err);
        if (code) {
            return code;
        }
    }
    struct rf__s3_query *query = rf__alloc(1, sizeof *query);
    if (!query) {
        return rf__fail(err, RF_ENOMEM, 0, "no memory for an upload");
    }
    snprintf(number, sizeof number, "%u", writer->count + 1);
    rf__s3_query_add(query, "partNumber", number);
    rf__s3_query_add(query, "uploadId", writer->upload);
    struct rf__s3_request request = {.verb = "PUT",
                                     .key = writer->key,
                                     .query = query->text,
                                     .body = bytes,
                                     .body_bytes = length};
    code = rf__s3_call(s3, &request, &writer->answer, err);
    if (!code && !writer->answer.etag[0]) {
        code = rf__s3_confused(s3, &request, "the answer tells no ETag", err);
    }
    if (!code) {
        struct part *part = &writer->parts[writer->count++];
        memcpy(part->etag, writer->answer.etag, sizeof part->etag);
        md5_of(writer, bytes, length, part->md5);
    }
    rf__free(query);
    return code;
}

/* Appends with XML's own characters written as entities; `out` has room for the longest. */
static size_t append_etag(char *out, const char *etag) {
    size_t used = 0;

    for (; *etag; etag++) {
        const char *entity = *etag == '"'   ? "&quot;"
                             : *etag == '&' ? "&amp;"
                             : *etag == '<' ? "&lt;"
                             : *etag == '>' ? "&gt;"
                                            : NULL;
        if (entity) {
            memcpy(out + used, entity, strlen(entity));
            used += strlen(entity);
        } else {
            out[used++] = *etag;
        }
    }
    return used;
}

/* The list of parts, for the server to put together; NULL: no memory. */
static char *list_parts(const struct writer *writer, size_t *bytes) {
    static const char front[] = "<CompleteMultipartUpload>", back[] = "</CompleteMultipartUpload>";
    size_t used = sizeof front - 1;

    char *xml = rf__alloc(writer->count + 1, PART_XML_MAX + 6 * RF__S3_ETAG_MAX);
    if (!xml) {
        return NULL;
    }
    memcpy(xml, front, used);
    for (unsigned i = 0; i < writer->count; i++) {
        used += (size_t)snprintf(xml + used, PART_XML_MAX,
                                 "<Part><PartNumber>%u</PartNumber><ETag>", i + 1);
        used += append_etag(xml + used, writer->parts[i].etag);
        used += (size_t)snprintf(xml + used, PART_XML_MAX, "</ETag></Part>");
    }
    memcpy(xml + used, back, sizeof back - 1);
    *bytes = used + sizeof back - 1;
    return xml;
}

static int visit_completed(void *context, const char *path, const char *text) {
    bool *completed = context;

    (void)text;
    *completed = !strcmp(path, "CompleteMultipartUploadResult");
    return RF_OK;
}

/* What a 2xx to the completion means. The upload is done only where the answer says so; where it
 * says nothing that can be read, what stands there tells. */
static int settle_completion(struct rf__s3 *s3, struct writer *writer,
                             const struct rf__s3_request *request, struct rf_error *err) {
    bool completed = false;

    if (writer->answer.body &&
        !rf__s3_xml_walk(writer->answer.body, writer->answer.body_bytes, visit_completed,
                         &completed) &&
        completed) {
        return RF_OK;
    }
    int ours = is_ours(s3, writer, err);
    return ours < 0 ? ours
           : ours   ? RF_OK
                  : rf__s3_confused(s3, request, "the answer does not say that the upload is done",
                                    err);
}

static int send_completion(struct rf__s3 *s3, struct writer *writer, struct rf__s3_request *request,
                           bool only_new, struct rf_error *err) {
    /* GCS knows no conditions here. */
    bool condition = only_new && is_conditional(s3) && !s3->config.uri.google;

    request->headers[0] = condition ? conditional_header(s3) : NULL;
    int code = rf__s3_call(s3, request, &writer->answer, err);
    if (!code) {
        return settle_completion(s3, writer, request, err);
    }
    if (condition && is_unsupported(s3, &writer->answer)) {
        return send_completion(s3, writer, request, only_new, err);
    }
    if (code == RF_ECONFLICT && only_new) {
        return settle_conflict(s3, writer, err);
    }
    if (writer->answer.lost && writer->answer.status == 404) {
        struct rf_error other;
        int ours = is_ours(s3, writer, &other);
        return ours > 0 ? RF_OK : code;
    }
    return code;
}

static int complete(struct rf__s3 *s3, struct writer *writer, bool only_new, struct rf_error *err) {
    size_t bytes = 0;
    int code = RF_OK;

    struct rf__s3_query *query = rf__alloc(1, sizeof *query);
    char *xml = list_parts(writer, &bytes);
    if (!query || !xml) {
        code = rf__fail(err, RF_ENOMEM, 0, "no memory to complete an upload");
        goto out;
    }
    /* Also where the completion is conditional: some servers pass over the condition. */
    code = only_new ? must_be_absent(s3, writer, err) : RF_OK;
    if (code) {
        goto out;
    }
    rf__s3_query_add(query, "uploadId", writer->upload);
    struct rf__s3_request request = {.verb = "POST",
                                     .key = writer->key,
                                     .query = query->text,
                                     .body = xml,
                                     .body_bytes = bytes,
                                     .patient = true};
    code = send_completion(s3, writer, &request, only_new, err);
out:
    rf__free(xml);
    rf__free(query);
    return code;
}

int rf__s3_abort_upload(struct rf__s3 *s3, const char *key, const char *upload, bool once,
                        struct rf_error *err) {
    struct rf__s3_answer answer = {0};

    struct rf__s3_query *query = rf__alloc(1, sizeof *query);
    if (!query) {
        return rf__fail(err, RF_ENOMEM, 0, "no memory to abort an upload");
    }
    rf__s3_query_add(query, "uploadId", upload);
    struct rf__s3_request request = {
        .verb = "DELETE", .key = key, .query = query->text, .once = once};
    int code = rf__s3_call(s3, &request, &answer, err);
    bool gone = code && answer.status == 404 && strcmp(answer.fault.code, "NoSuchBucket") != 0;
    rf__s3_answer_free(&answer);
    rf__free(query);
    return gone ? RF_OK : code;
}

/* ---- the writer ---- */

static void writer_free(struct writer *writer) {
    if (!writer) {
        return;
    }
    rf__s3_answer_free(&writer->answer);
    rf__free(writer->parts);
    rf__free(writer->buffer);
    rf__free(writer);
}

/* A token that nobody else has. */
static int make_token(const struct rf__s3 *s3, struct writer *writer, struct rf_error *err) {
    unsigned char bytes[(RF__S3_TOKEN_MAX - 1) / 2];

    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes) {
        return rf__fail(err, RF_EIO, 0, "no random bytes for an upload");
    }
    size_t front = (size_t)snprintf(writer->token_header, sizeof writer->token_header,
                                    "%smeta-ringfold-writer: ", rf__s3_header_front(s3));
    for (size_t i = 0; i < sizeof bytes; i++) {
        snprintf(writer->token_header + front + 2 * i, 3, "%02x", bytes[i]);
    }
    writer->token = writer->token_header + front;
    return RF_OK;
}

int rf__s3_create(struct rf__blobs *blobs, const char *name, struct rf__blob_writer **out,
                  struct rf_error *err) {
    struct rf__s3 *s3 = (struct rf__s3 *)blobs;

    struct writer *writer = rf__alloc(1, sizeof *writer);
    if (!writer) {
        return rf__fail(err, RF_ENOMEM, 0, "no memory to write '%.200s'", name);
    }
    int code = rf__s3_key(&s3->config.uri, name, true, writer->key, err);
    code = code ? code : make_token(s3, writer, err);
    if (code) {
        writer_free(writer);
        return code;
    }
    *out = (struct rf__blob_writer *)writer;
    return RF_OK;
}

/* Room in the buffer for `more` bytes, of at most `most` in all. */
static bool make_room(struct writer *writer, size_t more, size_t most) {
    size_t need = writer->used + more, capacity = writer->capacity;

    if (need <= capacity) {
        return true;
    }
    capacity = capacity ? capacity : BUFFER_FIRST;
    while (capacity < need) {
        capacity *= 2;
    }
    capacity = capacity > most ? most : capacity;
    char *grown = rf__grow(writer->buffer, capacity, 1);
    if (!grown) {
        return false;
    }
    writer->buffer = grown;
    writer->capacity = capacity;
    return true;
}

/* Takes some of the bytes: sends a full part, or keeps them. The last part of a blob is never sent
 * from here, so that `finish` knows whether it is the only one. */
static int take(struct rf__s3 *s3, struct writer *writer, const char *bytes, size_t length,
                size_t *took, struct rf_error *err) {
    unsigned number = writer->count < RF__S3_PARTS_MAX ? writer->count + 1 : RF__S3_PARTS_MAX;
    size_t part = rf__s3_part_bytes(number, s3->part_bytes);
    int code;

    *took = 0;
    if (!writer->used && length > part) {
        code = send_part(s3, writer, bytes, part, err);
        *took = code ? 0 : part;
        return code;
    }
    if (writer->used == part) {
        code = send_part(s3, writer, writer->buffer, writer->used, err);
        writer->used = code ? writer->used : 0;
        return code;
    }
    size_t some = part - writer->used < length ? part - writer->used : length;
    if (!make_room(writer, some, part)) {
        return rf__fail(err, RF_ENOMEM, 0, "no memory to hold a part of an upload (%zu bytes)",
                        part);
    }
    memcpy(writer->buffer + writer->used, bytes, some);
    writer->used += some;
    *took = some;
    return RF_OK;
}

int rf__s3_write(struct rf__blobs *blobs, struct rf__blob_writer *opaque, const void *bytes,
                 size_t length, struct rf_error *err) {
    struct rf__s3 *s3 = (struct rf__s3 *)blobs;
    struct writer *writer = (struct writer *)opaque;
    size_t done = writer->taken;
    int code = RF_OK;

    if (writer->failed && (length < done || rf__digest(bytes, done, 0) != writer->taken_digest)) {
        return rf__fail(err, RF_EINVAL, 0,
                        "a write to object storage failed, and is not repeated with its bytes");
    }
    while (!code && done < length) {
        size_t took;
        code = take(s3, writer, (const char *)bytes + done, length - done, &took, err);
        done += took;
        writer->total += took;
    }
    writer->failed = code != RF_OK;
    writer->taken = code ? done : 0;
    writer->taken_digest = code ? rf__digest(bytes, done, 0) : 0;
    return code;
}

/* Leaves nothing at the server, as far as that goes without waiting. */
static void drop_upload(struct rf__s3 *s3, struct writer *writer) {
    struct rf_error ignored;

    if (writer->upload[0]) {
        (void)rf__s3_abort_upload(s3, writer->key, writer->upload, true, &ignored);
    }
}

int rf__s3_finish(struct rf__blobs *blobs, struct rf__blob_writer *opaque, bool only_new,
                  struct rf_error *err) {
    struct rf__s3 *s3 = (struct rf__s3 *)blobs;
    struct writer *writer = (struct writer *)opaque;
    int code = RF_OK;

    if (writer->failed) {
        code =
            rf__fail(err, RF_EINVAL, 0, "a write to object storage failed: it cannot be finished");
    } else if (!writer->upload[0]) {
        code = put_whole(s3, writer, only_new, err);
    } else {
        code = writer->used ? send_part(s3, writer, writer->buffer, writer->used, err) : RF_OK;
        code = code ? code : complete(s3, writer, only_new, err);
    }
    if (code) {
        drop_upload(s3, writer);
    }
    writer_free(writer);
    return code;
}

void rf__s3_abandon(struct rf__blobs *blobs, struct rf__blob_writer *opaque) {
    if (opaque) {
        drop_upload((struct rf__s3 *)blobs, (struct writer *)opaque);
    }
    writer_free((struct writer *)opaque);
}
