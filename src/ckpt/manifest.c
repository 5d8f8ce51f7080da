/* The manifest as JSON text, both ways, and the rules that hold for its numbers. Its last member is
 * the digest of all bytes before the comma that precedes it; numbers that are digests are 16
 * hexadecimal digits, because JSON's numbers are no good for 64 bits. */
#include "ckpt/manifest.h"

#include "base/digest.h"
#include "base/mem.h"
#include "base/status.h"

#include <inttypes.h>
#include <jansson.h>
#include <ringfold/version.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEX = 17, TAIL_ROOM = 64 };

static const char FORMAT[] = "ringfold-checkpoint";
static const char TAIL_BEFORE[] = ",\n \"digest\": \"", TAIL_AFTER[] = "\"\n}\n";

/* What a manifest that was read points into. */
struct owned {
    char *config;
    json_t *root; /* the tensors' names */
    struct rf__ckpt_tensor *tensors;
    struct rf__ckpt_part *parts;
    struct rf__ckpt_id *ancestors;
    uint64_t *digests;
};

static const char *hex(char out[HEX], uint64_t value) {
    snprintf(out, HEX, "%016" PRIx64, value);
    return out;
}

/* Exactly 16 lower-case digits. */
static bool hex_parse(const char *text, uint64_t *out) {
    uint64_t value = 0;

    if (!text || strnlen(text, HEX) != HEX - 1) {
        return false;
    }
    for (int i = 0; i < HEX - 1; i++) {
        char c = text[i];
        if (!(c >= '0' && c <= '9') && !(c >= 'a' && c <= 'f')) {
            return false;
        }
        value = value << 4 | (uint64_t)(c <= '9' ? c - '0' : c - 'a' + 10);
    }
    *out = value;
    return true;
}

/* ---- folders ---- */

void rf__ckpt_folder(char out[RF__CKPT_FOLDER], const struct rf__ckpt_id *id) {
    snprintf(out, RF__CKPT_FOLDER, "step-%08" PRIu64 "-%08" PRIx32, id->step,
             (uint32_t)(id->chain >> 32));
}

bool rf__ckpt_folder_parse(const char *folder, struct rf__ckpt_id *id) {
    char again[RF__CKPT_FOLDER], *end;
    struct rf__ckpt_id read = {0};

    if (strncmp(folder, "step-", 5) || folder[5] < '0' || folder[5] > '9' ||
        strnlen(folder, RF__CKPT_FOLDER) == RF__CKPT_FOLDER) {
        return false;
    }
    read.step = strtoull(folder + 5, &end, 10);
    if (*end != '-') {
        return false;
    }
    read.chain = strtoull(end + 1, NULL, 16) << 32;
    rf__ckpt_folder(again, &read); /* the one way to write it */
    if (strcmp(again, folder)) {
        return false;
    }
    *id = read;
    return true;
}

void rf__ckpt_part_name(char out[RF__CKPT_PART_NAME], int part, int parts) {
    snprintf(out, RF__CKPT_PART_NAME, "part-%d-of-%d.safetensors", part, parts);
}

/* ---- rules for both ways ---- */

/* What is wrong with the numbers, or NULL. */
static const char *contradiction(const struct rf__ckpt_manifest *m) {
    const uint64_t numbers[] = {m->id.step, m->units, m->generation, m->samples, m->skipped};

    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        if (numbers[i] > INT64_MAX) {
            return "a number does not fit 63 bits";
        }
    }
    if (m->time_s < 0) {
        return "its time is before 1970";
    }
    if (m->part_count < 1 || m->part_count > RF__CKPT_PARTS) {
        return "it has no parts, or too many";
    }
    for (int i = 0; i < m->part_count; i++) {
        if (m->parts[i].bytes > INT64_MAX) {
            return "a part is too large";
        }
    }
    if (m->ancestor_count < 0 || m->ancestor_count > RF__CKPT_ANCESTORS) {
        return "it has too many ancestors";
    }
    uint64_t newest = m->id.step;
    for (int i = 0; i < m->ancestor_count; i++) {
        if (m->ancestors[i].step > newest) {
            return "its ancestors are not in order";
        }
        newest = m->ancestors[i].step;
    }
    if (m->digest_count < 0 || m->digest_count > RF__CKPT_DIGESTS) {
        return "it has too many digests of steps";
    }
    if (m->digest_count && (m->first_step > m->id.step ||
                            m->id.step - m->first_step != (uint64_t)m->digest_count - 1)) {
        return "its digests of steps do not end at its step";
    }
    return NULL;
}

/* ---- writing ---- */

static json_t *id_json(const struct rf__ckpt_id *id) {
    char text[HEX];
    return json_pack("{s:I, s:s}", "step", (json_int_t)id->step, "chain", hex(text, id->chain));
}

static json_t *tensors_json(const struct rf__ckpt_state *state) {
    json_t *all = json_array();

    for (int i = 0; i < state->count; i++) {
        const struct rf__ckpt_tensor *tensor = &state->tensors[i];
        json_t *shape = json_array();
        for (int k = 0; k < tensor->dims; k++) {
            json_array_append_new(shape, json_integer((json_int_t)tensor->shape[k]));
        }
        json_array_append_new(all, json_pack("{s:s, s:s, s:o, s:s}", "name", tensor->name, "dtype",
                                             tensor->type == RF_F32 ? "F32" : "U8", "shape", shape,
                                             "kind", tensor->trained ? "parameter" : "state"));
    }
    return all;
}

static json_t *parts_json(const struct rf__ckpt_manifest *m) {
    json_t *all = json_array();
    char name[RF__CKPT_PART_NAME], text[HEX];

    for (int i = 0; i < m->part_count; i++) {
        rf__ckpt_part_name(name, i, m->part_count);
        json_array_append_new(all, json_pack("{s:s, s:I, s:s}", "name", name, "bytes",
                                             (json_int_t)m->parts[i].bytes, "digest",
                                             hex(text, m->parts[i].digest)));
    }
    return all;
}

static json_t *ancestors_json(const struct rf__ckpt_manifest *m) {
    json_t *all = json_array();

    for (int i = 0; i < m->ancestor_count; i++) {
        json_array_append_new(all, id_json(&m->ancestors[i]));
    }
    return all;
}

static json_t *digests_json(const struct rf__ckpt_manifest *m) {
    json_t *chain = json_array();
    char text[HEX];

    for (int i = 0; i < m->digest_count; i++) {
        json_array_append_new(chain, json_string(hex(text, m->digests[i])));
    }
    return json_pack("{s:I, s:o}", "first_step", (json_int_t)(m->digest_count ? m->first_step : 0),
                     "chain", chain);
}

static json_t *manifest_json(const struct rf__ckpt_manifest *m, json_t *config) {
    char chain[HEX], state[HEX];

    return json_pack("{s:s, s:i, s:s, s:I, s:I, s:s, s:s, s:I, s:s, s:I, s:{s:I, s:I, s:I}, s:O, "
                     "s:o, s:o, s:o, s:o}",
                     "format", FORMAT, "version", RF__CKPT_MANIFEST_VERSION, "job", m->job, "step",
                     (json_int_t)m->id.step, "units", (json_int_t)m->units, "chain",
                     hex(chain, m->id.chain), "state_digest", hex(state, m->state_digest),
                     "generation", (json_int_t)m->generation, "library",
                     m->version[0] ? m->version : RF_VERSION, "time", (json_int_t)m->time_s,
                     "totals", "samples", (json_int_t)m->samples, "skipped", (json_int_t)m->skipped,
                     "bytes", (json_int_t)rf__ckpt_state_bytes(&m->state), "config", config,
                     "tensors", tensors_json(&m->state), "parts", parts_json(m), "ancestors",
                     ancestors_json(m), "digests", digests_json(m));
}

/* The text without the "\n}" at its end, then the digest of it and the end. */
static int sign(const char *text, char **out, size_t *bytes, struct rf_error *err) {
    size_t length = strlen(text) - 2;
    char *signed_text = NULL, digest[HEX];

    if (length > RF__CKPT_MANIFEST_MAX - TAIL_ROOM) {
        return rf__fail(err, RF_ELIMIT, 0, "a manifest of %zu bytes, at most %d are read", length,
                        RF__CKPT_MANIFEST_MAX);
    }
    signed_text = rf__alloc(length + TAIL_ROOM, 1);
    if (!signed_text) {
        return rf__fail(err, RF_ENOMEM, 0, "no memory for a manifest of %zu bytes", length);
    }
    memcpy(signed_text, text, length);
    int tail = snprintf(signed_text + length, TAIL_ROOM, "%s%s%s", TAIL_BEFORE,
                        hex(digest, rf__digest(text, length, 0)), TAIL_AFTER);
    *out = signed_text;
    *bytes = length + (size_t)tail;
    return RF_OK;
}

int rf__ckpt_manifest_encode(const struct rf__ckpt_manifest *manifest, char **out, size_t *bytes,
                             struct rf_error *err) {
    const char *given = manifest->config ? manifest->config : "{}";
    const char *problem = contradiction(manifest);
    json_t *config = NULL, *root = NULL;
    char *text = NULL;
    int code = RF_OK;

    if (problem) {
        return rf__fail(err, RF_EINVAL, 0, "the manifest of step %llu cannot be written: %s",
                        (unsigned long long)manifest->id.step, problem);
    }
    code = rf__ckpt_state_check(&manifest->state, err);
    if (code) {
        return code;
    }
    if (strlen(given) <= RF__CKPT_CONFIG_MAX) {
        config = json_loads(given, JSON_REJECT_DUPLICATES, NULL);
    }
    if (!json_is_object(config)) {
        code =
            rf__fail(err, RF_EINVAL, 0,
                     "the configuration for the manifest is not a JSON object of at most %d bytes",
                     RF__CKPT_CONFIG_MAX);
        goto out;
    }
    root = manifest_json(manifest, config);
    text = root ? json_dumps(root, JSON_INDENT(1) | JSON_PRESERVE_ORDER) : NULL;
    if (!text) {
        code = rf__fail(err, RF_EINVAL, 0,
                        "the manifest of job '%.64s' cannot be written as JSON: its name is not "
                        "UTF-8, or there is no memory",
                        manifest->job);
        goto out;
    }
    code = sign(text, out, bytes, err);
out:
    free(text);
    json_decref(root);
    json_decref(config);
    return code;
}

/* ---- reading ---- */

static int wrong(struct rf_error *err, const char *what) {
    return rf__fail(err, RF_ECHECKPOINT, 0, "the manifest is damaged: %s", what);
}

/* The digest at the end of the text, against the text. */
static int check_digest(const char *text, size_t length, struct rf_error *err) {
    const size_t before = sizeof TAIL_BEFORE - 1, after = sizeof TAIL_AFTER - 1;
    const size_t tail = before + HEX - 1 + after;
    char digits[HEX] = "";
    uint64_t digest;

    if (length > RF__CKPT_MANIFEST_MAX) {
        return wrong(err, "it is too long");
    }
    if (length < tail || memcmp(text + length - tail, TAIL_BEFORE, before) ||
        memcmp(text + length - after, TAIL_AFTER, after)) {
        return wrong(err, "it does not end as one does");
    }
    memcpy(digits, text + length - after - (HEX - 1), HEX - 1);
    if (!hex_parse(digits, &digest) || digest != rf__digest(text, length - tail, 0)) {
        return wrong(err, "its digest does not match");
    }
    return RF_OK;
}

static int take_text(char *out, size_t room, const char *text, const char *what,
                     struct rf_error *err) {
    size_t length = strlen(text);
    if (length >= room) {
        return wrong(err, what);
    }
    memcpy(out, text, length + 1);
    return RF_OK;
}

static bool take_number(json_int_t from, uint64_t *to) {
    *to = (uint64_t)from;
    return from >= 0;
}

static int take_tensor(struct rf__ckpt_tensor *tensor, json_t *value, struct rf_error *err) {
    const char *dtype, *kind;
    json_t *shape;

    if (json_unpack(value, "{s:s, s:s, s:o, s:s !}", "name", &tensor->name, "dtype", &dtype,
                    "shape", &shape, "kind", &kind) ||
        !json_is_array(shape) || json_array_size(shape) > RF__CKPT_DIMS ||
        (strcmp(dtype, "F32") && strcmp(dtype, "U8")) ||
        (strcmp(kind, "parameter") && strcmp(kind, "state"))) {
        return wrong(err, "a tensor is not described as one is");
    }
    tensor->type = strcmp(dtype, "F32") ? RF_U8 : RF_F32;
    tensor->trained = !strcmp(kind, "parameter");
    tensor->dims = (int)json_array_size(shape);
    tensor->length = rf_type_size(tensor->type);
    for (int i = 0; i < tensor->dims; i++) {
        const json_t *size = json_array_get(shape, (size_t)i);
        if (!json_is_integer(size) || !take_number(json_integer_value(size), &tensor->shape[i]) ||
            (tensor->shape[i] && tensor->length > (uint64_t)INT64_MAX / tensor->shape[i])) {
            return wrong(err, "a tensor's shape is not one");
        }
        tensor->length *= tensor->shape[i];
    }
    return RF_OK;
}

static int take_tensors(struct rf__ckpt_manifest *m, struct owned *owned, json_t *array,
                        struct rf_error *err) {
    size_t count = json_array_size(array);
    int code = RF_OK;

    if (!json_is_array(array) || count > RF__CKPT_TENSORS) {
        return wrong(err, "its tensors are no list, or too many");
    }
    owned->tensors = rf__alloc(count, sizeof *owned->tensors);
    if (!owned->tensors) {
        return rf__fail(err, RF_ENOMEM, 0, "no memory for %zu tensors of a manifest", count);
    }
    for (size_t i = 0; i < count && !code; i++) {
        code = take_tensor(&owned->tensors[i], json_array_get(array, i), err);
    }
    if (code) {
        return code;
    }
    m->state = (struct rf__ckpt_state){.tensors = owned->tensors, .count = (int)count};
    code = rf__ckpt_state_check(&m->state, err);
    if (code == RF_EINVAL) {
        code = RF_ECHECKPOINT;
        if (err) {
            err->code = code;
        }
        (void)rf__wrap(err, code, "the manifest is damaged: ");
    }
    return code;
}

static int take_parts(struct rf__ckpt_manifest *m, struct owned *owned, json_t *array,
                      struct rf_error *err) {
    char expected[RF__CKPT_PART_NAME];
    const char *name, *digest;
    json_int_t bytes;
    size_t count = json_array_size(array);

    if (!count || count > RF__CKPT_PARTS) {
        return wrong(err, "it has no parts, or too many");
    }
    owned->parts = rf__alloc(count, sizeof *owned->parts);
    if (!owned->parts) {
        return rf__fail(err, RF_ENOMEM, 0, "no memory for %zu parts of a manifest", count);
    }
    for (size_t i = 0; i < count; i++) {
        struct rf__ckpt_part *part = &owned->parts[i];
        rf__ckpt_part_name(expected, (int)i, (int)count);
        if (json_unpack(json_array_get(array, i), "{s:s, s:I, s:s !}", "name", &name, "bytes",
                        &bytes, "digest", &digest) ||
            strcmp(name, expected) || !take_number(bytes, &part->bytes) ||
            !hex_parse(digest, &part->digest)) {
            return wrong(err, "a part is not described as one is");
        }
    }
    m->parts = owned->parts;
    m->part_count = (int)count;
    return RF_OK;
}

static int take_ancestors(struct rf__ckpt_manifest *m, struct owned *owned, json_t *array,
                          struct rf_error *err) {
    size_t count = json_array_size(array);
    const char *chain;
    json_int_t step;

    if (!json_is_array(array) || count > RF__CKPT_ANCESTORS) {
        return wrong(err, "its ancestors are no list, or too many");
    }
    owned->ancestors = rf__alloc(count, sizeof *owned->ancestors);
    if (!owned->ancestors) {
        return rf__fail(err, RF_ENOMEM, 0, "no memory for %zu ancestors of a manifest", count);
    }
    for (size_t i = 0; i < count; i++) {
        struct rf__ckpt_id *id = &owned->ancestors[i];
        if (json_unpack(json_array_get(array, i), "{s:I, s:s !}", "step", &step, "chain", &chain) ||
            !take_number(step, &id->step) || !hex_parse(chain, &id->chain)) {
            return wrong(err, "an ancestor is not described as one is");
        }
    }
    m->ancestors = owned->ancestors;
    m->ancestor_count = (int)count;
    return RF_OK;
}

static int take_digests(struct rf__ckpt_manifest *m, struct owned *owned, json_t *object,
                        struct rf_error *err) {
    json_int_t first;
    json_t *array;

    if (json_unpack(object, "{s:I, s:o !}", "first_step", &first, "chain", &array) ||
        !json_is_array(array) || json_array_size(array) > RF__CKPT_DIGESTS ||
        !take_number(first, &m->first_step)) {
        return wrong(err, "its digests of steps are no list, or too many");
    }
    size_t count = json_array_size(array);
    owned->digests = rf__alloc(count, sizeof *owned->digests);
    if (!owned->digests) {
        return rf__fail(err, RF_ENOMEM, 0, "no memory for %zu digests of a manifest", count);
    }
    for (size_t i = 0; i < count; i++) {
        if (!hex_parse(json_string_value(json_array_get(array, i)), &owned->digests[i])) {
            return wrong(err, "a digest of a step is not one");
        }
    }
    m->digests = owned->digests;
    m->digest_count = (int)count;
    return RF_OK;
}

static int take_config(struct rf__ckpt_manifest *m, struct owned *owned, const json_t *config,
                       struct rf_error *err) {
    if (!json_is_object(config)) {
        return wrong(err, "its configuration is no object");
    }
    owned->config = json_dumps(config, JSON_COMPACT | JSON_PRESERVE_ORDER);
    if (!owned->config) {
        return rf__fail(err, RF_ENOMEM, 0, "no memory for the configuration of a manifest");
    }
    m->config = owned->config;
    return RF_OK;
}

/* Whether it is a manifest, and of which version: what a later version adds is not looked at. */
static int check_version(const json_t *root, struct rf_error *err) {
    const json_t *version = json_object_get(root, "version");
    const char *format = json_string_value(json_object_get(root, "format"));

    if (!format || strcmp(format, FORMAT) || !json_is_integer(version)) {
        return wrong(err, "it is not the manifest of a checkpoint");
    }
    if (json_integer_value(version) != RF__CKPT_MANIFEST_VERSION) {
        return rf__fail(
            err, RF_EUNSUPPORTED, 0,
            "the manifest has version %lld of the format, this program reads version %d",
            (long long)json_integer_value(version), RF__CKPT_MANIFEST_VERSION);
    }
    return RF_OK;
}

static int take_members(struct rf__ckpt_manifest *m, struct owned *owned, json_t *root,
                        struct rf_error *err) {
    const char *job, *chain, *state, *library, *format, *digest;
    json_int_t version, step, units, generation, time, samples, skipped, bytes;
    json_t *config, *tensors, *parts, *ancestors, *digests;

    if (json_unpack(root,
                    "{s:s, s:I, s:s, s:I, s:I, s:s, s:s, s:I, s:s, s:I, s:{s:I, s:I, s:I !}, s:o, "
                    "s:o, s:o, s:o, s:o, s:s !}",
                    "format", &format, "version", &version, "job", &job, "step", &step, "units",
                    &units, "chain", &chain, "state_digest", &state, "generation", &generation,
                    "library", &library, "time", &time, "totals", "samples", &samples, "skipped",
                    &skipped, "bytes", &bytes, "config", &config, "tensors", &tensors, "parts",
                    &parts, "ancestors", &ancestors, "digests", &digests, "digest", &digest)) {
        return wrong(err, "a member is missing, unknown, or not of its type");
    }
    m->time_s = time;
    if (!take_number(step, &m->id.step) || !take_number(units, &m->units) ||
        !take_number(generation, &m->generation) || !take_number(samples, &m->samples) ||
        !take_number(skipped, &m->skipped)) {
        return wrong(err, "a number is negative");
    }
    if (!hex_parse(chain, &m->id.chain) || !hex_parse(state, &m->state_digest)) {
        return wrong(err, "a digest is not one");
    }
    int code = take_text(m->job, sizeof m->job, job, "its job's name is too long", err);
    code = code ? code
                : take_text(m->version, sizeof m->version, library,
                            "its library's version is too long", err);
    code = code ? code : take_config(m, owned, config, err);
    code = code ? code : take_tensors(m, owned, tensors, err);
    code = code ? code : take_parts(m, owned, parts, err);
    code = code ? code : take_ancestors(m, owned, ancestors, err);
    code = code ? code : take_digests(m, owned, digests, err);
    if (code) {
        return code;
    }
    if ((uint64_t)bytes != rf__ckpt_state_bytes(&m->state)) {
        return wrong(err, "its total of bytes is not that of its tensors");
    }
    const char *problem = contradiction(m);
    return problem ? wrong(err, problem) : RF_OK;
}

static void owned_free(struct owned *owned) {
    if (owned) {
        free(owned->config);
        json_decref(owned->root);
        rf__free(owned->tensors);
        rf__free(owned->parts);
        rf__free(owned->ancestors);
        rf__free(owned->digests);
        rf__free(owned);
    }
}

int rf__ckpt_manifest_decode(const void *bytes, size_t length, struct rf__ckpt_manifest *out,
                             struct rf_error *err) {
    struct rf__ckpt_manifest m = {0};
    struct owned *owned = NULL;
    json_error_t problem;

    *out = m;
    int code = check_digest(bytes, length, err);
    if (code) {
        goto out;
    }
    owned = rf__alloc(1, sizeof *owned);
    if (!owned) {
        code = rf__fail(err, RF_ENOMEM, 0, "no memory for a manifest");
        goto out;
    }
    owned->root = json_loadb(bytes, length, JSON_REJECT_DUPLICATES, &problem);
    if (!owned->root) {
        code = rf__fail(err, RF_ECHECKPOINT, 0, "the manifest is not JSON at line %d: %s",
                        problem.line, problem.text);
        goto out;
    }
    code = check_version(owned->root, err);
    code = code ? code : take_members(&m, owned, owned->root, err);
    if (code) {
        goto out;
    }
    m.owned = owned;
    *out = m;
    owned = NULL;
out:
    owned_free(owned);
    return code;
}

void rf__ckpt_manifest_free(struct rf__ckpt_manifest *manifest) {
    owned_free(manifest->owned);
    *manifest = (struct rf__ckpt_manifest){0};
}
