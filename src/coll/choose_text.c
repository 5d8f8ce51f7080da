/* Tables as JSON text, both ways. What is read is held against its limits first, and against the
 * rules for rules (rf_tuning_add) last; a member that nobody knows is refused, because it is most
 * likely a known one that was misspelt. */
#include "coll/choose.h"

#include "base/mem.h"
#include "base/status.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

enum { SCHEMA = 1 };

static const char FORMAT[] = "ringfold-tuning";

/* -------- reading -------- */

/* Whether every member of the object is among `names`. */
static const char *stranger_in(const json_t *object, const char *const *names, size_t count) {
    const char *key;
    json_t *value;

    json_object_foreach((json_t *)(uintptr_t)object, key, value) {
        bool known = false;
        for (size_t i = 0; i < count && !known; i++) {
            known = !strcmp(key, names[i]);
        }
        if (!known) {
            return key;
        }
    }
    return NULL;
}

/* A text without control characters, cut at what a table holds. jansson has seen to UTF-8. */
static bool read_text(const json_t *value, char out[RF_TUNING_TEXT]) {
    const char *text = json_string_value(value);

    if (!value) {
        out[0] = 0;
        return true;
    }
    if (!text || strlen(text) >= RF_TUNING_TEXT || json_string_length(value) != strlen(text)) {
        return false;
    }
    for (const char *c = text; *c; c++) {
        if ((unsigned char)*c < ' ' || *c == 0x7f) {
            return false;
        }
    }
    memcpy(out, text, strlen(text) + 1);
    return true;
}

/* A whole number within [0, most]; `absent` where there is none. */
static bool read_count(const json_t *value, uint64_t most, uint64_t absent, uint64_t *out) {
    *out = absent;
    if (value) {
        json_int_t number = json_integer_value(value);
        if (!json_is_integer(value) || number < 0 || (uint64_t)number > most) {
            return false;
        }
        *out = (uint64_t)number;
    }
    return true;
}

/* Microseconds, more than 0; 0 where there are none. */
static bool read_us(const json_t *value, double *seconds) {
    double us = json_number_value(value);
    *seconds = us * 1e-6;
    return !value || (json_is_number(value) && isfinite(us) && us > 0 && us < 1e12);
}

static bool read_algorithm(const json_t *value, enum rf_algorithm *out) {
    return json_is_string(value) && rf_algorithm_parse(json_string_value(value), out) == 0 &&
           *out != RF_ALGORITHM_AUTO;
}

static int decode_rule(const json_t *object, struct rf_tuning *out, struct rf_error *err) {
    static const char *const names[] = {"collective",     "link", "ranks",  "bytes",    "algorithm",
                                        "measured_bytes", "us",   "second", "second_us"};
    struct rf_tuning_rule rule = {.coll = RF_COLL_COUNT, .link = RF_LINK_COUNT};
    uint64_t ranks = 0;

    if (!json_is_object(object)) {
        return rf__fail(err, RF_EINVAL, 0, "it is no object");
    }
    const char *stranger = stranger_in(object, names, sizeof names / sizeof names[0]);
    if (stranger) {
        return rf__fail(err, RF_EINVAL, 0, "'%.40s' is no member of a rule", stranger);
    }
    const char *coll = json_string_value(json_object_get(object, "collective"));
    if (!coll || rf_coll_parse(coll, &rule.coll)) {
        return rf__fail(err, RF_EINVAL, 0, "'collective' is '%.40s'", coll ? coll : "missing");
    }
    const char *link = json_string_value(json_object_get(object, "link"));
    for (int i = 0; link && i < RF_LINK_COUNT; i++) {
        if (!strcmp(link, rf_link_name((enum rf_link)i))) {
            rule.link = (enum rf_link)i;
        }
    }
    if (rule.link == RF_LINK_COUNT) {
        return rf__fail(err, RF_EINVAL, 0, "'link' must be 'shm' or 'tcp', not '%.40s'",
                        link ? link : "missing");
    }
    if (!read_count(json_object_get(object, "ranks"), RF_TUNING_ANY_RANKS, RF_TUNING_ANY_RANKS,
                    &ranks) ||
        !read_count(json_object_get(object, "bytes"), INT64_MAX, RF_TUNING_ANY_BYTES,
                    &rule.bytes) ||
        !read_count(json_object_get(object, "measured_bytes"), INT64_MAX, 0,
                    &rule.measured_bytes)) {
        return rf__fail(err, RF_EINVAL, 0,
                        "'ranks', 'bytes' or 'measured_bytes' is no whole number in its range");
    }
    rule.ranks = (int)ranks;
    if (!read_algorithm(json_object_get(object, "algorithm"), &rule.algorithm)) {
        const char *text = json_string_value(json_object_get(object, "algorithm"));
        return rf__fail(err, RF_EINVAL, 0, "'algorithm' is '%.40s', which does not exist",
                        text ? text : "missing");
    }
    const json_t *second = json_object_get(object, "second");
    if ((second && !read_algorithm(second, &rule.second)) ||
        !read_us(json_object_get(object, "us"), &rule.seconds) ||
        !read_us(json_object_get(object, "second_us"), &rule.second_seconds)) {
        return rf__fail(err, RF_EINVAL, 0, "'us', 'second' or 'second_us' is not what it must be");
    }
    return rf_tuning_add(out, &rule, err);
}

static int decode_head(const json_t *root, struct rf_tuning *out, struct rf_error *err) {
    static const char *const names[] = {"format", "version",   "machine",
                                        "when",   "any_order", "rules"};
    const char *format = json_string_value(json_object_get(root, "format"));

    if (!format || strcmp(format, FORMAT) != 0) {
        return rf__fail(err, RF_EINVAL, 0, "it is no tuning table: \"format\" is not \"%s\"",
                        FORMAT);
    }
    json_int_t version = json_integer_value(json_object_get(root, "version"));
    if (version != SCHEMA) {
        return rf__fail(err, RF_EINVAL, 0, "it is of version %lld; this library knows version %d",
                        (long long)version, SCHEMA);
    }
    const char *stranger = stranger_in(root, names, sizeof names / sizeof names[0]);
    if (stranger) {
        return rf__fail(err, RF_EINVAL, 0, "'%.40s' is no member of a table", stranger);
    }
    const json_t *any = json_object_get(root, "any_order");
    out->any_order = json_is_true(any);
    if ((any && !json_is_boolean(any)) ||
        !read_text(json_object_get(root, "machine"), out->machine) ||
        !read_text(json_object_get(root, "when"), out->when)) {
        return rf__fail(err, RF_EINVAL, 0,
                        "'machine', 'when' or 'any_order' is not what it must be");
    }
    return 0;
}

int rf__tuning_decode(const void *bytes, size_t count, struct rf_tuning *out,
                      struct rf_error *err) {
    json_error_t problem;
    int rc = 0;

    *out = (struct rf_tuning){.count = 0};
    if (count > RF_MAX_TUNING_FILE) {
        return rf__fail(err, RF_EINVAL, 0, "it has %zu bytes, more than %d", count,
                        RF_MAX_TUNING_FILE);
    }
    json_t *root = json_loadb(bytes, count, JSON_REJECT_DUPLICATES, &problem);
    if (!root) {
        rc = json_error_code(&problem) == json_error_out_of_memory ? RF_ENOMEM : RF_EINVAL;
        return rf__fail(err, rc, 0, "line %d, column %d: %s", problem.line, problem.column,
                        problem.text);
    }
    const json_t *rules = json_object_get(root, "rules");
    rc = decode_head(root, out, err);
    if (!rc && !json_is_array(rules)) {
        rc = rf__fail(err, RF_EINVAL, 0, "it has no list \"rules\"");
    }
    if (!rc && json_array_size(rules) > RF_MAX_TUNING_RULES) {
        rc = rf__fail(err, RF_EINVAL, 0, "it has %zu rules, more than %d", json_array_size(rules),
                      RF_MAX_TUNING_RULES);
    }
    for (size_t i = 0; !rc && i < json_array_size(rules); i++) {
        rc = decode_rule(json_array_get(rules, i), out, err);
        if (rc) {
            rc = rf__wrap(err, rc, "rule %zu: ", i + 1);
        }
    }
    json_decref(root);
    return rc;
}

/* -------- writing -------- */

/* Takes `value`. */
static int put(json_t *object, const char *name, json_t *value) {
    return json_object_set_new(object, name, value);
}

/* Microseconds with the digits that a clock can have seen. */
static json_t *us_json(double seconds) {
    return json_real(round(seconds * 1e9) / 1e3);
}

static json_t *rule_json(const struct rf_tuning_rule *rule) {
    json_t *object = json_object();
    int failed = put(object, "collective", json_string(rf_coll_name(rule->coll))) |
                 put(object, "link", json_string(rf_link_name(rule->link)));

    if (rule->ranks != RF_TUNING_ANY_RANKS) {
        failed |= put(object, "ranks", json_integer(rule->ranks));
    }
    if (rule->bytes != RF_TUNING_ANY_BYTES) {
        failed |= put(object, "bytes", json_integer((json_int_t)rule->bytes));
    }
    failed |= put(object, "algorithm", json_string(rf_algorithm_name(rule->algorithm)));
    if (rule->seconds >= 1e-9) {
        failed |= put(object, "measured_bytes", json_integer((json_int_t)rule->measured_bytes));
        failed |= put(object, "us", us_json(rule->seconds));
    }
    if (rule->second != RF_ALGORITHM_AUTO && rule->second_seconds >= 1e-9) {
        failed |= put(object, "second", json_string(rf_algorithm_name(rule->second)));
        failed |= put(object, "second_us", us_json(rule->second_seconds));
    }
    if (failed) {
        json_decref(object);
        return NULL;
    }
    return object;
}

/* One rule a line, so that people can read and compare. */
static char *encode(const struct rf_tuning *tuning, size_t *length) {
    json_t *head =
        json_pack("{s:s, s:i, s:s, s:s, s:b}", "format", FORMAT, "version", SCHEMA, "machine",
                  tuning->machine, "when", tuning->when, "any_order", (int)tuning->any_order);
    char *text = head ? rf__alloc(RF_MAX_TUNING_FILE, 1) : NULL;
    size_t room = RF_MAX_TUNING_FILE, at = 0;
    static const char LIST[] = ",\n \"rules\": [", END[] = "\n ]\n}\n";
    bool fits = text != NULL;

    if (fits) {
        at = json_dumpb(head, text, room, JSON_INDENT(1));
        fits = at > 2 && at < room / 2;
    }
    if (fits) {
        at -= 2; /* the line break and the brace */
        memcpy(text + at, LIST, sizeof LIST - 1);
        at += sizeof LIST - 1;
    }
    for (int i = 0; fits && i < tuning->count; i++) {
        json_t *rule = rule_json(&tuning->rules[i]);
        memcpy(text + at, i ? ",\n  " : "\n  ", i ? 4 : 3);
        at += i ? 4 : 3;
        size_t bytes =
            rule ? json_dumpb(rule, text + at, room - at, JSON_COMPACT | JSON_REAL_PRECISION(9))
                 : 0;
        json_decref(rule);
        fits = bytes > 0 && bytes < room - at - 64;
        at += fits ? bytes : 0;
    }
    if (fits) {
        memcpy(text + at, END, sizeof END - 1);
        *length = at + sizeof END - 1;
    } else {
        rf__free(text);
        text = NULL;
    }
    json_decref(head);
    return text;
}

int rf__tuning_encode(const struct rf_tuning *tuning, char **text, size_t *length,
                      struct rf_error *err) {
    *text = encode(tuning, length);
    return *text ? 0
                 : rf__fail(err, RF_ENOMEM, 0, "no memory for a table of %d rules", tuning->count);
}
