/* Fuzz target: bytes as an XML answer, as a configuration file, as a URI with a name, and as a
 * time. Whatever comes, nothing is read outside of it, every output ends within its maximum, and
 * what the encoder writes holds only characters that may stand in a URL. */
#include "base/assert.h"
#include "os/s3_text.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifndef FUZZ_S3
#define FUZZ_S3 LLVMFuzzerTestOneInput
#endif

int FUZZ_S3(const uint8_t *bytes, size_t count);

static int fuzz_visit(void *context, const char *path, const char *text) {
    unsigned *depth_most = context;
    unsigned depth = 1;

    RF_ASSERT(strlen(text) < RF__S3_XML_TEXT_MAX);
    for (const char *c = path; *c; c++) {
        depth += *c == '/';
    }
    RF_ASSERT(path[0] && depth <= RF__S3_XML_DEPTH_MAX);
    *depth_most = depth > *depth_most ? depth : *depth_most;
    return 0;
}

static void as_uri(const char *text) {
    struct rf__s3_uri uri;
    char key[RF__S3_KEY_MAX];
    char *encoded = malloc(RF__S3_PATH_MAX);
    size_t used = 0;

    RF_ASSERT(encoded);
    if (rf__s3_uri_parse(text, &uri, NULL) == 0) {
        RF_ASSERT(uri.bucket[0] && !strchr(uri.bucket, '/'));
        if (rf__s3_key(&uri, text, false, key, NULL) == 0) {
            RF_ASSERT(strlen(key) == strlen(uri.prefix) + strlen(text));
        }
    }
    if (rf__s3_encode(encoded, RF__S3_PATH_MAX, &used, text, true)) {
        RF_ASSERT(used < RF__S3_PATH_MAX && (!used || strlen(encoded) == used));
        RF_ASSERT(!used || strspn(encoded, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                                           "0123456789-._~%") == used);
    }
    RF_ASSERT(rf__s3_time(text) >= -1);
    free(encoded);
}

int FUZZ_S3(const uint8_t *bytes, size_t count) {
    struct rf__s3_fault fault;
    char value[64];
    unsigned depth = 0;
    /* A copy of just its size, so that a read past the end is seen; and one with an end. */
    char *exact = malloc(count ? count : 1), *text = malloc(count + 1);

    RF_ASSERT(exact && text);
    if (count) {
        memcpy(exact, bytes, count);
        memcpy(text, bytes, count);
    }
    text[count] = '\0';
    int rc = rf__s3_xml_walk(exact, count, fuzz_visit, &depth);
    RF_ASSERT(rc == 0 || rc == RF_EPROTO);
    RF_ASSERT(rc || depth);
    bool whole = rf__s3_fault_parse(exact, count, &fault);
    RF_ASSERT(!whole || rc == 0);
    RF_ASSERT(strlen(fault.message) < sizeof fault.message);
    rc = rf__s3_ini_find(exact, count, "profile a", "region", value, sizeof value);
    RF_ASSERT(rc == RF_ENOTFOUND || rc == RF_ELIMIT || (rc == 0 && strlen(value) < sizeof value));
    as_uri(text);
    free(exact);
    free(text);
    return 0;
}
