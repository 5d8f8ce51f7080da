/* The pure parts of object storage: URIs, keys, encodings, times, INI files, XML answers,
 * schedules; and what is made of options, environment and profile. */
#define FUZZ_S3 fuzz_s3
#include "fuzz/fuzz_s3.c"

#include "base/mem.h"
#include "base/rng.h"
#include "os/s3_internal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include <cmocka.h>

enum { ROUNDS = 30000, ROOM = 4096 };

static void a_uri_is_taken_apart(void **state) {
    static const struct {
        const char *text, *bucket, *prefix;
        bool google;
    } good[] = {{"s3://bucket", "bucket", "", false},
                {"s3://bucket/", "bucket", "", false},
                {"s3://my.bucket-1/a/b", "my.bucket-1", "a/b/", false},
                {"gs://bucket_2/a//", "bucket_2", "a/", true},
                {"s3://bucket/\xc3\xbc b", "bucket", "\xc3\xbc b/", false}};
    static const char *const bad[] = {"",
                                      "s3:",
                                      "s3://",
                                      "s3:///x",
                                      "s3://ab/x",
                                      "http://bucket/x",
                                      "s3://user@bucket/x",
                                      "s3://-bucket",
                                      "s3://bucket./x",
                                      "s3://bucket/a//b",
                                      "s3://bucket/../b",
                                      "s3://bucket/a/./b",
                                      "s3://bucket/a\nb",
                                      "s3://buc%2fket/a"};
    struct rf__s3_uri uri;
    struct rf_error err;
    char longest[RF__S3_KEY_MAX + 20];
    (void)state;

    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        assert_int_equal(rf__s3_uri_parse(good[i].text, &uri, &err), 0);
        assert_string_equal(uri.bucket, good[i].bucket);
        assert_string_equal(uri.prefix, good[i].prefix);
        assert_int_equal(uri.google, good[i].google);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(rf__s3_uri_parse(bad[i], &uri, &err), RF_EINVAL);
        assert_non_null(strstr(err.next, "s3://BUCKET/PREFIX"));
    }
    memset(longest, 'x', sizeof longest);
    memcpy(longest, "s3://bucket/", 12);
    longest[12 + RF__S3_KEY_MAX - 2] = '\0';
    assert_int_equal(rf__s3_uri_parse(longest, &uri, NULL), 0);
    longest[12 + RF__S3_KEY_MAX - 2] = 'x';
    longest[12 + RF__S3_KEY_MAX - 1] = '\0';
    assert_int_equal(rf__s3_uri_parse(longest, &uri, NULL), RF_ELIMIT);
}

static void a_key_is_prefix_and_name(void **state) {
    struct rf__s3_uri uri;
    char key[RF__S3_KEY_MAX], name[RF__S3_KEY_MAX + 1];
    static const char *const bad[] = {"", "/", "a/", "/a", "a//b", ".", "a/..", "../a", "a\x7f"};
    (void)state;

    assert_int_equal(rf__s3_uri_parse("s3://bucket/run", &uri, NULL), 0);
    assert_int_equal(rf__s3_key(&uri, "step-1/part", true, key, NULL), 0);
    assert_string_equal(key, "run/step-1/part");
    assert_int_equal(rf__s3_key(&uri, "", false, key, NULL), 0);
    assert_string_equal(key, "run/");
    assert_int_equal(rf__s3_key(&uri, "step-1/", false, key, NULL), 0);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(rf__s3_key(&uri, bad[i], true, key, NULL), RF_EINVAL);
    }
    memset(name, 'n', sizeof name);
    name[RF__S3_KEY_MAX - 1 - 4] = '\0';
    assert_int_equal(rf__s3_key(&uri, name, true, key, NULL), 0);
    assert_int_equal(strlen(key), 1024);
    name[RF__S3_KEY_MAX - 1 - 4] = 'n';
    name[RF__S3_KEY_MAX - 4] = '\0';
    assert_int_equal(rf__s3_key(&uri, name, true, key, NULL), RF_ELIMIT);
}

static void keys_and_queries_are_encoded(void **state) {
    char out[64];
    size_t used = 0;
    struct rf__s3_query query = {.used = 0};
    (void)state;

    assert_true(rf__s3_encode(out, sizeof out, &used, "a/b=c d+%\xc3\xbc~._-*", false));
    assert_string_equal(out, "a/b%3Dc%20d%2B%25%C3%BC~._-%2A");
    used = 0;
    assert_true(rf__s3_encode(out, sizeof out, &used, "a/b", true));
    assert_string_equal(out, "a%2Fb");
    used = 0;
    assert_true(rf__s3_encode(out, 4, &used, "abc", true));
    used = 0;
    assert_false(rf__s3_encode(out, 4, &used, "abcd", true));
    used = 0;
    assert_false(rf__s3_encode(out, 4, &used, "a/", true));

    rf__s3_query_add(&query, "list-type", "2");
    rf__s3_query_add(&query, "prefix", "a/b");
    rf__s3_query_add(&query, "uploads", "");
    assert_false(query.failed);
    assert_string_equal(query.text, "list-type=2&prefix=a%2Fb&uploads=");
    for (int i = 0; i < RF__S3_QUERY_MAX; i++) {
        rf__s3_query_add(&query, "n", "/");
    }
    assert_true(query.failed);
    assert_true(strlen(query.text) < sizeof query.text);
}

static void times_are_read(void **state) {
    (void)state;
    assert_int_equal(rf__s3_time("1970-01-01T00:00:00Z"), 0);
    assert_int_equal(rf__s3_time("2026-02-28T23:59:59.123Z"), 1772323199);
    assert_int_equal(rf__s3_time(""), -1);
    assert_int_equal(rf__s3_time("2026-02-28T23:59:59"), -1);
    assert_int_equal(rf__s3_time("2026-13-28T23:59:59Z"), -1);
    assert_int_equal(rf__s3_time("2026-02-28T23:59:59+01:00"), -1);
}

static const char ini[] = "# comment\n"
                          "region = outside\n"
                          "[default]\r\n"
                          "aws_access_key_id = KEY\r\n"
                          "aws_secret_access_key=a=b#c\n"
                          "s3 =\n"
                          "  region = nested\n"
                          "region = eu-west-1 # inline\n"
                          "empty =\n"
                          "\n"
                          "[ profile a ] ; spaced\n"
                          "region\t=\tus-gov-1\n"
                          "[broken\n"
                          "region = lost\n"
                          "[profile b]\n"
                          "region = last";

static void an_ini_file_is_searched(void **state) {
    char value[32];
    (void)state;

#define FIND(section, key) rf__s3_ini_find(ini, sizeof ini - 1, section, key, value, sizeof value)
    assert_int_equal(FIND("default", "aws_access_key_id"), 0);
    assert_string_equal(value, "KEY");
    assert_int_equal(FIND("default", "aws_secret_access_key"), 0);
    assert_string_equal(value, "a=b#c");
    assert_int_equal(FIND("default", "region"), 0);
    assert_string_equal(value, "eu-west-1");
    assert_int_equal(FIND("default", "empty"), 0);
    assert_string_equal(value, "");
    assert_int_equal(FIND("profile a", "region"), 0);
    assert_string_equal(value, "us-gov-1");
    assert_int_equal(FIND("profile b", "region"), 0);
    assert_string_equal(value, "last");
    assert_int_equal(FIND("profile a", "aws_access_key_id"), RF_ENOTFOUND);
    assert_int_equal(FIND("profile c", "region"), RF_ENOTFOUND);
    assert_int_equal(FIND("", "region"), RF_ENOTFOUND);
#undef FIND
    assert_int_equal(rf__s3_ini_find(ini, sizeof ini - 1, "default", "region", value, 9),
                     RF_ELIMIT);
    assert_int_equal(rf__s3_ini_find(ini, sizeof ini - 1, "default", "region", value, 10), 0);
}

/* Every element's path and text, joined. */
static int note(void *context, const char *path, const char *text) {
    char *all = context;
    size_t used = strlen(all);
    snprintf(all + used, ROOM - used, "%s=%s;", path, text);
    return strcmp(text, "stop") ? 0 : 77;
}

static void check_xml(const char *xml, int code, const char *expected) {
    char all[ROOM] = "";
    int rc = rf__s3_xml_walk(xml, strlen(xml), note, all);
    if (rc != code || (expected && strcmp(all, expected) != 0)) {
        fail_msg("'%s' gave %d and '%s'", xml, rc, all);
    }
}

static void xml_is_walked(void **state) {
    (void)state;
    check_xml("<a>b</a>", 0, "a=b;");
    check_xml("\xef\xbb\xbf<?xml version=\"1.0\"?>\n<!-- <x> --><a/>\n", 0, "a=;");
    check_xml("<n:a xmlns:n='>' b=\"/>\"><n:b>1</n:b> <c>2</c ></n:a>", 0, "a/b=1;a/c=2;a=;");
    check_xml("<a>&lt;&gt;&amp;&quot;&apos;&#65;&#x20AC;&#x1F600;</a>", 0,
              "a=<>&\"'A\xe2\x82\xac\xf0\x9f\x98\x80;");
    check_xml("<a>x<![CDATA[<&>]]>y</a>", 0, "a=x<&>y;");
    check_xml("<a><b>stop</b><c/></a>", 77, "a/b=stop;");
    check_xml("<a> text <b>1</b> tail </a>", 0, "a/b=1;a=;");
    check_xml("<1><2><3><4><5><6><7><8>x</8></7></6></5></4></3></2></1>", 0, NULL);
}

static void unsound_xml_is_refused(void **state) {
    static const char *const bad[] = {
        "",
        " ",
        "text",
        "<a>",
        "</a>",
        "<a></b>",
        "<a></a><b></b>",
        "<a></a>x",
        "<a><b></a></b>",
        "<a>&nbsp;</a>",
        "<a>&#0;</a>",
        "<a>&#xD800;</a>",
        "<a>&#x110000;</a>",
        "<a>&#12345678;</a>",
        "<a>&#;</a>",
        "<a>&</a>",
        "<a b='</a>",
        "<a<b></b>",
        "<!DOCTYPE a [<!ENTITY x 'y'>]><a>&x;</a>",
        "<a><![CDATA[x</a>",
        "<a><!-- x</a>",
        "<?xml",
        "<1><2><3><4><5><6><7><8><9/></8></7></6></5></4></3></2></1>"};
    char *big = rf__alloc(3 * RF__S3_XML_TEXT_MAX, 1);
    (void)state;

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        check_xml(bad[i], RF_EPROTO, NULL);
    }
    assert_non_null(big);
    for (int extra = 0; extra < 2; extra++) {
        memset(big, 'x', 2 * RF__S3_XML_TEXT_MAX);
        memcpy(big, "<a>", 3);
        memcpy(big + 3 + RF__S3_XML_TEXT_MAX - 1 + extra, "</a>", 5);
        char *all = rf__alloc(ROOM, 1);
        assert_int_equal(rf__s3_xml_walk(big, strlen(big), note, all), extra ? RF_EPROTO : 0);
        rf__free(all);
    }
    memset(big, 'x', 200);
    big[0] = '<';
    memcpy(big + RF__S3_XML_NAME_MAX + 1, "/>", 3);
    check_xml(big, RF_EPROTO, NULL);
    memcpy(big + RF__S3_XML_NAME_MAX, "/>", 3);
    check_xml(big, 0, NULL);
    rf__free(big);
}

static const char fault_xml[] =
    "<?xml version=\"1.0\"?><Error><Code>RequestTimeTooSkewed</Code><Message>The diff\xc3\xa9rence "
    "is \x1b[31mtoo large&#10;</Message><RequestId>r1</RequestId><RequestTime>20260101T000000Z"
    "</RequestTime><ServerTime>2026-01-02T00:00:00Z</ServerTime><Other><Deep>x</Deep></Other>"
    "</Error>";

static void a_fault_is_read(void **state) {
    struct rf__s3_fault fault;
    (void)state;

    assert_true(rf__s3_fault_parse(fault_xml, sizeof fault_xml - 1, &fault));
    assert_string_equal(fault.code, "RequestTimeTooSkewed");
    assert_string_equal(fault.message, "The diff??rence is ?[31mtoo large?");
    assert_string_equal(fault.request_id, "r1");
    assert_string_equal(fault.server_time, "2026-01-02T00:00:00Z");
    assert_false(rf__s3_fault_parse(fault_xml, 80, &fault));
    assert_string_equal(fault.code, "RequestTimeTooSkewed");
    assert_false(rf__s3_fault_parse("<ErrorX/>", 9, &fault));
    assert_false(rf__s3_fault_parse("<html><Error/></html>", 21, &fault));
}

static void what_is_worth_another_try(void **state) {
    static const long again[] = {408, 429, 500, 502, 503, 504};
    static const long never[] = {200, 206, 301, 307, 400, 401, 403, 404, 409, 412, 416, 501, 505};
    (void)state;

    for (size_t i = 0; i < sizeof again / sizeof again[0]; i++) {
        assert_true(rf__s3_status_retryable(again[i], ""));
    }
    for (size_t i = 0; i < sizeof never / sizeof never[0]; i++) {
        assert_false(rf__s3_status_retryable(never[i], ""));
    }
    assert_true(rf__s3_status_retryable(400, "RequestTimeout"));
    assert_true(rf__s3_status_retryable(200, "InternalError"));
    assert_false(rf__s3_status_retryable(400, "EntityTooSmall"));
    assert_false(rf__s3_status_retryable(409, "ConditionalRequestConflict"));
}

static void waits_grow_and_are_spread(void **state) {
    struct rf__rng rng = rf__rng(1, 2, 3);
    (void)state;

    for (unsigned attempt = 1; attempt < 70; attempt++) {
        int64_t bound = attempt < 7 ? 200ll << (attempt - 1) : 8000, most = 0, least = bound;
        bound = bound > 8000 ? 8000 : bound;
        for (int i = 0; i < 1000; i++) {
            int64_t wait = rf__s3_backoff_ms(attempt, rf__rng_u64(&rng), 0);
            assert_in_range(wait, 0, bound - 1);
            most = wait > most ? wait : most;
            least = wait < least ? wait : least;
        }
        assert_true(most > bound * 9 / 10 && least < bound / 10);
    }
    assert_int_equal(rf__s3_backoff_ms(1, 7, 30000), 30000);
    assert_int_equal(rf__s3_backoff_ms(0, UINT64_MAX, 0), UINT64_MAX % 200);
}

static void parts_hold_the_largest_objects(void **state) {
    size_t first = 8 << 20;
    uint64_t total = 0;
    (void)state;

    assert_int_equal(rf__s3_part_bytes(1, first), first);
    assert_int_equal(rf__s3_part_bytes(1000, first), first);
    assert_int_equal(rf__s3_part_bytes(1001, first), 2 * first);
    for (unsigned i = 1; i <= RF__S3_PARTS_MAX; i++) {
        total += rf__s3_part_bytes(i, first);
    }
    assert_true(total > 5ull << 40);
    assert_true(rf__s3_part_bytes(RF__S3_PARTS_MAX, first) <= 5ull << 30);
}

/* ---- settings ---- */

static struct rf__s3_config config;
static struct rf_error error;

static int configure(const char *uri, const char *endpoint, const char *const *environment) {
    struct rf__s3_options options = {.endpoint = endpoint, .environment = environment};
    return rf__s3_config_read(uri, &options, &config, &error);
}

#define KEYS "AWS_ACCESS_KEY_ID=KEY", "AWS_SECRET_ACCESS_KEY=SECRET"

static void the_endpoint_is_found(void **state) {
    (void)state;
    assert_int_equal(configure("s3://bucket/a", NULL, (const char *[]){KEYS, NULL}), 0);
    assert_string_equal(config.base, "https://bucket.s3.us-east-1.amazonaws.com");
    assert_false(config.bucket_in_path);
    assert_int_equal(configure("s3://my.bucket/a", NULL,
                               (const char *[]){KEYS, "AWS_DEFAULT_REGION=eu-west-1", NULL}),
                     0);
    assert_string_equal(config.base, "https://s3.eu-west-1.amazonaws.com");
    assert_true(config.bucket_in_path);
    assert_int_equal(
        configure("s3://bucket", NULL,
                  (const char *[]){KEYS, "AWS_DEFAULT_REGION=x", "AWS_REGION=cn-north-1", NULL}),
        0);
    assert_string_equal(config.where, "bucket.s3.cn-north-1.amazonaws.com.cn:443");
    assert_int_equal(configure("gs://bucket", NULL,
                               (const char *[]){KEYS, "AWS_ENDPOINT_URL=http://other", NULL}),
                     0);
    assert_string_equal(config.base, "https://storage.googleapis.com");
    assert_int_equal(configure("s3://bucket", NULL,
                               (const char *[]){"AWS_ENDPOINT_URL=http://second:1", KEYS,
                                                "AWS_ENDPOINT_URL_S3=http://first:9000/", NULL}),
                     0);
    assert_string_equal(config.base, "http://first:9000");
    assert_string_equal(config.where, "first:9000");
    assert_false(config.secure);
    assert_int_equal(configure("s3://bucket", "https://[::1]:9443", (const char *[]){KEYS, NULL}),
                     0);
    assert_string_equal(config.where, "[::1]:9443");
    assert_true(config.secure);
}

static void a_bad_endpoint_is_refused(void **state) {
    static const char *const bad[] = {
        "", "host:port:x", "ftp://host", "http://h/path", "http://h/?q", "http://user:secret@host"};
    (void)state;

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(configure("s3://bucket", bad[i], (const char *[]){KEYS, NULL}), RF_EINVAL);
        assert_null(strstr(error.text, "secret"));
        assert_non_null(strstr(error.next, "HOST:PORT"));
    }
    assert_int_equal(
        configure("s3://bucket", NULL, (const char *[]){KEYS, "AWS_REGION=evil.host/", NULL}),
        RF_EINVAL);
}

static void write_file(const char *path, const char *text) {
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void credentials_are_found(void **state) {
    char folder[] = "/tmp/ringfold-s3-XXXXXX", keys[64], settings[64];
    char keys_at[128], settings_at[128];
    (void)state;

    assert_non_null(mkdtemp(folder));
    snprintf(keys, sizeof keys, "%s/credentials", folder);
    snprintf(settings, sizeof settings, "%s/config", folder);
    snprintf(keys_at, sizeof keys_at, "AWS_SHARED_CREDENTIALS_FILE=%s", keys);
    snprintf(settings_at, sizeof settings_at, "AWS_CONFIG_FILE=%s", settings);
    write_file(keys, "[default]\naws_access_key_id=DK\naws_secret_access_key=DS\n"
                     "[other]\naws_access_key_id=OK\naws_secret_access_key=OS\n"
                     "aws_session_token=OT\n[half]\naws_access_key_id=HK\n");
    write_file(settings, "[default]\nregion=eu-north-1\n[profile other]\nregion=ap-south-1\n"
                         "endpoint_url=http://store:9000\n");

    assert_int_equal(configure("s3://bucket", NULL, (const char *[]){keys_at, settings_at, NULL}),
                     0);
    assert_string_equal(config.access_key, "DK");
    assert_string_equal(config.secret, "DS");
    assert_string_equal(config.region, "eu-north-1");
    assert_non_null(strstr(config.key_origin, "profile default"));
    assert_int_equal(configure("s3://bucket", NULL,
                               (const char *[]){keys_at, settings_at, "AWS_PROFILE=other", NULL}),
                     0);
    assert_string_equal(config.access_key, "OK");
    assert_string_equal(config.token, "OT");
    assert_string_equal(config.base, "http://store:9000");
    assert_string_equal(config.region, "ap-south-1");
    assert_int_equal(configure("s3://bucket", NULL,
                               (const char *[]){keys_at, settings_at, "AWS_PROFILE=other", KEYS,
                                                "AWS_SESSION_TOKEN=T", NULL}),
                     0);
    assert_string_equal(config.access_key, "KEY");
    assert_string_equal(config.token, "T");
    assert_int_equal(configure("s3://bucket", NULL,
                               (const char *[]){keys_at, settings_at, "AWS_PROFILE=half", NULL}),
                     RF_EINVAL);
    assert_int_equal(configure("s3://bucket", NULL,
                               (const char *[]){keys_at, settings_at, "AWS_PROFILE=none", NULL}),
                     RF_ENOTFOUND);
    assert_non_null(strstr(error.text, "profile none"));
    assert_non_null(strstr(error.next, "roles of instances"));
    assert_int_equal(
        configure("s3://bucket", NULL, (const char *[]){"AWS_ACCESS_KEY_ID=KEY", keys_at, NULL}),
        RF_EINVAL);
    assert_int_equal(configure("s3://bucket", NULL,
                               (const char *[]){"AWS_ACCESS_KEY_ID=KEY",
                                                "AWS_SECRET_ACCESS_KEY=hush\r\nx-evil: 1", NULL}),
                     RF_EINVAL);
    assert_null(strstr(error.text, "hush"));
    unlink(keys);
    unlink(settings);
    rmdir(folder);
    assert_int_equal(configure("s3://bucket", NULL, (const char *[]){NULL}), RF_ENOTFOUND);
}

static void options_out_of_range_are_refused(void **state) {
    const char *const environment[] = {KEYS, NULL};
    struct rf__s3_options options = {.environment = environment};
    struct rf__blobs *blobs = NULL;
    (void)state;

    options.max_keys = 1001;
    assert_int_equal(rf__s3_blobs_create("s3://bucket", &options, &blobs, &error), RF_EINVAL);
    options.max_keys = 0;
    options.deadline_ms = -1;
    assert_int_equal(rf__s3_blobs_create("s3://bucket", &options, &blobs, &error), RF_EINVAL);
    options.deadline_ms = 0;
    for (long k = 0; k < 20; k++) {
        rf__alloc_fail_after(k);
        int code = rf__s3_blobs_create("s3://bucket", &options, &blobs, &error);
        rf__alloc_fail_after(-1);
        assert_true(code == RF_ENOMEM || code == 0);
        if (!code) {
            assert_false(rf__s3_blobs_unconditional(blobs));
            blobs->ops->destroy(blobs);
            return;
        }
    }
    fail_msg("no try was clean");
}

/* After an interrupt nothing is asked any more, so this needs no server. */
static void interrupted_calls_return(void **state) {
    const char *const environment[] = {KEYS, NULL};
    struct rf__s3_options options = {.endpoint = "http://127.0.0.1:9", .environment = environment};
    struct rf__blobs *blobs = NULL;
    struct rf__blob *blob = NULL;
    struct rf__blob_writer *writer = NULL;
    uint64_t bytes;
    (void)state;

    assert_int_equal(rf__s3_blobs_create("s3://bucket", &options, &blobs, &error), 0);
    blobs->ops->interrupt(blobs);
    assert_int_equal(blobs->ops->open(blobs, "x", &blob, &bytes, &error), RF_ESTOPPED);
    assert_int_equal(blobs->ops->create(blobs, "x", &writer, &error), 0);
    assert_int_equal(blobs->ops->write(blobs, writer, "abc", 3, &error), 0);
    assert_int_equal(blobs->ops->finish(blobs, writer, true, &error), RF_ESTOPPED);
    assert_int_equal(blobs->ops->remove(blobs, "x", &error), RF_ESTOPPED);
    assert_int_equal(blobs->ops->collect(blobs, "", 0, NULL), RF_ESTOPPED);
    blobs->ops->destroy(blobs);
}

/* ---- mutations ---- */

static size_t mutate(struct rf__rng *rng, unsigned char *bytes, size_t count, size_t room) {
    static const char *const pieces[] = {"<",    ">", "</a>", "<![CDATA[", "&#x", ";",
                                         "&lt;", "[", "]",    "=",         "\n",  "<!--"};
    for (uint64_t i = rf__rng_below(rng, 5); i > 0 && count > 0; i--) {
        size_t at = rf__rng_below(rng, count), piece = rf__rng_below(rng, count - at) + 1;
        const char *put = pieces[rf__rng_below(rng, sizeof pieces / sizeof pieces[0])];
        switch (rf__rng_below(rng, 5)) {
        case 0:
            bytes[at] = (unsigned char)rf__rng_u64(rng);
            break;
        case 1:
            memmove(bytes + at, bytes + at + piece, count - at - piece);
            count -= piece;
            break;
        case 2:
            if (count + piece <= room) {
                memmove(bytes + at + piece, bytes + at, count - at);
                count += piece;
            }
            break;
        case 3:
            memcpy(bytes + at, put, strlen(put) <= count - at ? strlen(put) : 0);
            break;
        default:
            count = at;
            break;
        }
    }
    return count;
}

static void anything_may_come(void **state) {
    static const char list[] =
        "<?xml version='1.0'?><ListBucketResult xmlns=\"http://x/\"><Name>b</Name><IsTruncated>true"
        "</IsTruncated><Contents><Key>a&amp;b&#x263a;</Key><Size>12</Size><LastModified>"
        "2026-01-01T00:00:00.000Z</LastModified></Contents><NextContinuationToken>t"
        "</NextContinuationToken><!-- c --><x><![CDATA[d]]></x></ListBucketResult>";
    const struct {
        const char *bytes;
        size_t count;
    } seeds[] = {{list, sizeof list - 1},
                 {fault_xml, sizeof fault_xml - 1},
                 {ini, sizeof ini - 1},
                 {"s3://bucket/a/b/c", 17},
                 {"2026-01-01T00:00:00.000Z", 24}};
    struct rf__rng rng = rf__rng(11, 1, 1);
    static unsigned char bytes[ROOM];
    (void)state;

    for (size_t s = 0; s < sizeof seeds / sizeof seeds[0]; s++) {
        for (size_t cut = 0; cut <= seeds[s].count; cut++) {
            (void)fuzz_s3((const uint8_t *)seeds[s].bytes, cut);
        }
    }
    for (int round = 0; round < ROUNDS; round++) {
        size_t s = rf__rng_below(&rng, sizeof seeds / sizeof seeds[0]);
        memcpy(bytes, seeds[s].bytes, seeds[s].count);
        (void)fuzz_s3(bytes, mutate(&rng, bytes, seeds[s].count, sizeof bytes));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_uri_is_taken_apart),
        cmocka_unit_test(a_key_is_prefix_and_name),
        cmocka_unit_test(keys_and_queries_are_encoded),
        cmocka_unit_test(times_are_read),
        cmocka_unit_test(an_ini_file_is_searched),
        cmocka_unit_test(xml_is_walked),
        cmocka_unit_test(unsound_xml_is_refused),
        cmocka_unit_test(a_fault_is_read),
        cmocka_unit_test(what_is_worth_another_try),
        cmocka_unit_test(waits_grow_and_are_spread),
        cmocka_unit_test(parts_hold_the_largest_objects),
        cmocka_unit_test(the_endpoint_is_found),
        cmocka_unit_test(a_bad_endpoint_is_refused),
        cmocka_unit_test(credentials_are_found),
        cmocka_unit_test(options_out_of_range_are_refused),
        cmocka_unit_test(interrupted_calls_return),
        cmocka_unit_test(anything_may_come),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
