/* A reader for the little XML that object storage answers with. It knows elements, text, CDATA,
 * comments, processing instructions and the five named entities; it refuses document types, so that
 * nothing can be defined or fetched. Depth, names and texts are bounded. */
#include "os/s3_text.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { PATH_MAX_BYTES = RF__S3_XML_DEPTH_MAX * (RF__S3_XML_NAME_MAX + 1) };

struct walk {
    const char *at, *end;
    char path[PATH_MAX_BYTES];
    size_t path_bytes;
    size_t starts[RF__S3_XML_DEPTH_MAX]; /* where each open element's name begins in the path */
    unsigned depth;
    char text[RF__S3_XML_TEXT_MAX];
    size_t text_bytes;
    bool leaf; /* no child has ended since the innermost element began */
    bool rooted;
    rf__s3_visit *visit;
    void *context;
};

static bool is_space(char c) {
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static bool is_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.' || c == ':';
}

static bool begins(const struct walk *walk, const char *text) {
    size_t length = strlen(text);
    return (size_t)(walk->end - walk->at) >= length && !memcmp(walk->at, text, length);
}

/* Moves behind the next `text`; false: there is none. */
static bool skip_past(struct walk *walk, const char *text) {
    size_t length = strlen(text);
    const char *found = memmem(walk->at, (size_t)(walk->end - walk->at), text, length);
    if (!found) {
        return false;
    }
    walk->at = found + length;
    return true;
}

static bool add_bytes(struct walk *walk, const char *bytes, size_t length) {
    if (length >= sizeof walk->text - walk->text_bytes) {
        return false;
    }
    memcpy(walk->text + walk->text_bytes, bytes, length);
    walk->text_bytes += length;
    return true;
}

static bool add_code_point(struct walk *walk, uint32_t point) {
    char bytes[4];
    size_t length;

    if (!point || point > 0x10ffff || (point >= 0xd800 && point <= 0xdfff)) {
        return false;
    }
    if (point < 0x80) {
        bytes[0] = (char)point;
        length = 1;
    } else if (point < 0x800) {
        bytes[0] = (char)(0xc0 | point >> 6);
        bytes[1] = (char)(0x80 | (point & 63));
        length = 2;
    } else if (point < 0x10000) {
        bytes[0] = (char)(0xe0 | point >> 12);
        bytes[1] = (char)(0x80 | (point >> 6 & 63));
        bytes[2] = (char)(0x80 | (point & 63));
        length = 3;
    } else {
        bytes[0] = (char)(0xf0 | point >> 18);
        bytes[1] = (char)(0x80 | (point >> 12 & 63));
        bytes[2] = (char)(0x80 | (point >> 6 & 63));
        bytes[3] = (char)(0x80 | (point & 63));
        length = 4;
    }
    return add_bytes(walk, bytes, length);
}

/* "&#65;" and "&#x41;", without the "&#" and ";". */
static bool add_reference(struct walk *walk, const char *digits, size_t length) {
    uint32_t base = 10, point = 0;

    if (length && (digits[0] == 'x' || digits[0] == 'X')) {
        base = 16;
        digits++;
        length--;
    }
    if (!length || length > 7) {
        return false;
    }
    for (size_t i = 0; i < length; i++) {
        char c = digits[i];
        uint32_t digit = c >= '0' && c <= '9'   ? (uint32_t)(c - '0')
                         : c >= 'a' && c <= 'f' ? (uint32_t)(c - 'a' + 10)
                         : c >= 'A' && c <= 'F' ? (uint32_t)(c - 'A' + 10)
                                                : 16;
        if (digit >= base) {
            return false;
        }
        point = point * base + digit;
    }
    return add_code_point(walk, point);
}

static bool take_entity(struct walk *walk) {
    static const struct {
        const char *name, *text;
    } named[] = {{"&lt;", "<"}, {"&gt;", ">"}, {"&amp;", "&"}, {"&quot;", "\""}, {"&apos;", "'"}};

    for (size_t i = 0; i < sizeof named / sizeof named[0]; i++) {
        if (begins(walk, named[i].name)) {
            walk->at += strlen(named[i].name);
            return add_bytes(walk, named[i].text, 1);
        }
    }
    if (!begins(walk, "&#")) {
        return false;
    }
    const char *digits = walk->at + 2;
    const char *end = memchr(digits, ';', (size_t)(walk->end - digits));
    if (!end) {
        return false;
    }
    walk->at = end + 1;
    return add_reference(walk, digits, (size_t)(end - digits));
}

static bool take_cdata(struct walk *walk) {
    const char *begin = walk->at + strlen("<![CDATA[");

    walk->at = begin;
    return skip_past(walk, "]]>") && add_bytes(walk, begin, (size_t)(walk->at - 3 - begin));
}

/* The name of a tag, without its namespace. */
static bool take_name(struct walk *walk, char name[RF__S3_XML_NAME_MAX]) {
    const char *begin = walk->at;

    while (walk->at < walk->end && is_name(*walk->at)) {
        begin = *walk->at == ':' ? walk->at + 1 : begin;
        walk->at++;
    }
    size_t length = (size_t)(walk->at - begin);
    if (!length || length >= RF__S3_XML_NAME_MAX) {
        return false;
    }
    memcpy(name, begin, length);
    name[length] = '\0';
    return true;
}

/* Passes over attributes to the tag's end. */
static bool take_attributes(struct walk *walk, bool *closed) {
    char quote = '\0', before = '\0';

    for (; walk->at < walk->end; walk->at++) {
        char c = *walk->at;
        if (quote) {
            quote = c == quote ? '\0' : quote;
        } else if (c == '"' || c == '\'') {
            quote = c;
        } else if (c == '>') {
            *closed = before == '/';
            walk->at++;
            return true;
        } else if (c == '<') {
            return false;
        }
        before = c;
    }
    return false;
}

static int end_element(struct walk *walk) {
    walk->text[walk->leaf ? walk->text_bytes : 0] = '\0';
    int code = walk->visit(walk->context, walk->path, walk->text);
    walk->depth--;
    walk->path_bytes = walk->depth ? walk->starts[walk->depth] - 1 : 0;
    walk->path[walk->path_bytes] = '\0';
    walk->text_bytes = 0;
    walk->leaf = false;
    return code;
}

static int take_open(struct walk *walk) {
    char name[RF__S3_XML_NAME_MAX];
    bool closed = false;

    walk->at++;
    if (!take_name(walk, name) || !take_attributes(walk, &closed) ||
        walk->depth == RF__S3_XML_DEPTH_MAX || (!walk->depth && walk->rooted)) {
        return RF_EPROTO;
    }
    walk->rooted = true;
    if (walk->depth) {
        walk->path[walk->path_bytes++] = '/';
    }
    walk->starts[walk->depth++] = walk->path_bytes;
    size_t length = strlen(name);
    memcpy(walk->path + walk->path_bytes, name, length + 1);
    walk->path_bytes += length;
    walk->text_bytes = 0;
    walk->leaf = true;
    return closed ? end_element(walk) : RF_OK;
}

static int take_close(struct walk *walk) {
    char name[RF__S3_XML_NAME_MAX];

    walk->at += 2;
    if (!walk->depth || !take_name(walk, name) ||
        strcmp(name, walk->path + walk->starts[walk->depth - 1]) != 0) {
        return RF_EPROTO;
    }
    while (walk->at < walk->end && is_space(*walk->at)) {
        walk->at++;
    }
    if (walk->at == walk->end || *walk->at != '>') {
        return RF_EPROTO;
    }
    walk->at++;
    return end_element(walk);
}

static int take_markup(struct walk *walk) {
    if (begins(walk, "</")) {
        return take_close(walk);
    }
    if (begins(walk, "<?")) {
        return skip_past(walk, "?>") ? RF_OK : RF_EPROTO;
    }
    if (begins(walk, "<!--")) {
        walk->at += strlen("<!--");
        return skip_past(walk, "-->") ? RF_OK : RF_EPROTO;
    }
    if (begins(walk, "<![CDATA[")) {
        return walk->depth && take_cdata(walk) ? RF_OK : RF_EPROTO;
    }
    if (begins(walk, "<!")) {
        return RF_EPROTO;
    }
    return take_open(walk);
}

int rf__s3_xml_walk(const char *bytes, size_t length, rf__s3_visit *visit, void *context) {
    struct walk walk = {.at = bytes, .end = bytes + length, .visit = visit, .context = context};
    int code = RF_OK;

    if (begins(&walk, "\xef\xbb\xbf")) {
        walk.at += 3;
    }
    while (!code && walk.at < walk.end) {
        char c = *walk.at;
        if (c == '<') {
            code = take_markup(&walk);
        } else if (!walk.depth) {
            code = is_space(c) ? RF_OK : RF_EPROTO;
            walk.at++;
        } else if (c == '&') {
            code = take_entity(&walk) ? RF_OK : RF_EPROTO;
        } else {
            code = c && add_bytes(&walk, &c, 1) ? RF_OK : RF_EPROTO;
            walk.at++;
        }
    }
    return code ? code : walk.rooted && !walk.depth ? RF_OK : RF_EPROTO;
}

static int visit_fault(void *context, const char *path, const char *text) {
    struct rf__s3_fault *fault = context;
    const struct {
        const char *path;
        char *out;
        size_t capacity;
    } known[] = {{"Error/Code", fault->code, sizeof fault->code},
                 {"Error/Message", fault->message, sizeof fault->message},
                 {"Error/RequestId", fault->request_id, sizeof fault->request_id},
                 {"Error/Region", fault->region, sizeof fault->region},
                 {"Error/RequestTime", fault->request_time, sizeof fault->request_time},
                 {"Error/ServerTime", fault->server_time, sizeof fault->server_time}};

    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (!strcmp(path, known[i].path)) {
            rf__s3_printable(known[i].out, known[i].capacity, text);
        }
    }
    return !strncmp(path, "Error", 5) && (!path[5] || path[5] == '/') ? RF_OK : RF_EPROTO;
}

bool rf__s3_fault_parse(const char *bytes, size_t length, struct rf__s3_fault *fault) {
    *fault = (struct rf__s3_fault){0};
    return rf__s3_xml_walk(bytes, length, visit_fault, fault) == RF_OK;
}
