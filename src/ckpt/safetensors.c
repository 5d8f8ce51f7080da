/* Headers of safetensors files, both ways. jansson keeps members in the order in which they came,
 * so a header that this file wrote is read back in the order of its data. */
#include "ckpt/safetensors.h"

#include "base/cursor.h"
#include "base/mem.h"
#include "base/status.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static const char METADATA[] = "__metadata__";

/* ---- writing ---- */

/* The first name of a type is the one that is written. */
static const struct {
    const char *name;
    enum rf_type type;
} dtypes[] = {{"F32", RF_F32}, {"U8", RF_U8},   {"F16", RF_F16}, {"BF16", RF_BF16},
              {"F64", RF_F64}, {"I8", RF_I8},   {"I32", RF_I32}, {"U32", RF_U32},
              {"I64", RF_I64}, {"U64", RF_U64}, {"BOOL", RF_U8}};

enum { DTYPES = sizeof dtypes / sizeof *dtypes };

static const char *dtype_name(enum rf_type type) {
    size_t i = 0;
    while (i + 1 < DTYPES && dtypes[i].type != type) {
        i++;
    }
    return dtypes[i].name;
}

static bool dtype_parse(const char *name, enum rf_type *out) {
    for (size_t i = 0; i < DTYPES; i++) {
        if (!strcmp(dtypes[i].name, name)) {
            *out = dtypes[i].type;
            return true;
        }
    }
    return false;
}

static json_t *entry_json(const struct rf__safetensors_entry *entry) {
    json_t *shape = json_array();

    for (int i = 0; i < entry->dims; i++) {
        json_array_append_new(shape, json_integer((json_int_t)entry->shape[i]));
    }
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", dtype_name(entry->type), "shape", shape,
                     "data_offsets", (json_int_t)entry->begin, (json_int_t)entry->end);
}

static json_t *header_json(const struct rf__safetensors_pair *metadata, int pairs,
                           const struct rf__safetensors_entry *entries, int count) {
    json_t *root = json_object(), *object = json_object();
    int failed = 0;

    for (int i = 0; i < pairs; i++) {
        failed |= json_object_set_new(object, metadata[i].key, json_string(metadata[i].value));
    }
    failed |= json_object_set_new(root, METADATA, object);
    for (int i = 0; i < count && !failed; i++) {
        failed |= json_object_set_new(root, entries[i].name, entry_json(&entries[i]));
    }
    if (failed) {
        json_decref(root);
        root = NULL;
    }
    return root;
}

int rf__safetensors_header(const struct rf__safetensors_pair *metadata, int pairs,
                           const struct rf__safetensors_entry *entries, int count, void **out,
                           size_t *bytes, struct rf_error *err) {
    json_t *root = header_json(metadata, pairs, entries, count);
    char *text = root ? json_dumps(root, JSON_COMPACT | JSON_PRESERVE_ORDER) : NULL;
    unsigned char *header = NULL;
    int code = RF_OK;

    if (!text) {
        code = rf__fail(err, RF_ENOMEM, 0, "no memory for the header of %d tensors", count);
        goto out;
    }
    size_t length = strlen(text), padded = (length + 7) / 8 * 8;
    if (padded > RF__SAFETENSORS_HEADER_MAX) {
        code = rf__fail(err, RF_ELIMIT, 0, "a safetensors header of %zu bytes, at most %d are read",
                        padded, RF__SAFETENSORS_HEADER_MAX);
        goto out;
    }
    header = rf__alloc(RF__SAFETENSORS_LENGTH_BYTES + padded, 1);
    if (!header) {
        code = rf__fail(err, RF_ENOMEM, 0, "no memory for a header of %zu bytes", padded);
        goto out;
    }
    struct rf__writer w = rf__writer(header, RF__SAFETENSORS_LENGTH_BYTES);
    rf__write_u64(&w, padded);
    memcpy(header + RF__SAFETENSORS_LENGTH_BYTES, text, length);
    memset(header + RF__SAFETENSORS_LENGTH_BYTES + length, ' ', padded - length);
    *out = header;
    *bytes = RF__SAFETENSORS_LENGTH_BYTES + padded;
out:
    free(text);
    json_decref(root);
    return code;
}

/* ---- reading ---- */

static int wrong(struct rf_error *err, const char *name, const char *what) {
    return rf__fail(err, RF_ECHECKPOINT, 0, "tensor '%.100s' of the safetensors header %s", name,
                    what);
}

static int read_shape(struct rf__safetensors_entry *entry, const json_t *shape, uint64_t *bytes,
                      struct rf_error *err) {
    size_t dims = json_array_size(shape); /* 0 for what is no array */

    if (!json_is_array(shape) || dims > RF__CKPT_DIMS) {
        return wrong(err, entry->name, "has no shape of at most 4 dimensions");
    }
    *bytes = rf_type_size(entry->type);
    for (size_t i = 0; i < dims; i++) {
        const json_t *item = json_array_get(shape, i);
        json_int_t size = json_integer_value(item);
        if (!json_is_integer(item) || size < 0) {
            return wrong(err, entry->name, "has a shape that is not of whole numbers");
        }
        if (size && *bytes > (uint64_t)INT64_MAX / (uint64_t)size) {
            return wrong(err, entry->name, "is too large");
        }
        *bytes *= (uint64_t)size;
        entry->shape[i] = (uint64_t)size;
    }
    entry->dims = (int)dims;
    return RF_OK;
}

static int read_entry(struct rf__safetensors_entry *entry, const char *name, json_t *value,
                      uint64_t data_bytes, struct rf_error *err) {
    const char *dtype;
    json_t *shape, *offsets;
    json_int_t begin, end;
    uint64_t bytes = 0;
    size_t length = strlen(name);

    if (!length || length >= sizeof entry->name) {
        return wrong(err, name, "has a name that is too long, or none");
    }
    memcpy(entry->name, name, length + 1);
    if (json_unpack(value, "{s:s, s:o, s:o !}", "dtype", &dtype, "shape", &shape, "data_offsets",
                    &offsets)) {
        return wrong(err, name, "does not have dtype, shape and data_offsets, and nothing else");
    }
    if (!dtype_parse(dtype, &entry->type)) {
        return wrong(err, name, "has a dtype that is not known here");
    }
    int code = read_shape(entry, shape, &bytes, err);
    if (code) {
        return code;
    }
    if (json_unpack(offsets, "[I, I !]", &begin, &end) || begin < 0 || end < begin ||
        (uint64_t)end > data_bytes) {
        return wrong(err, name, "has data_offsets that are not within the data");
    }
    if ((uint64_t)(end - begin) != bytes) {
        return wrong(err, name, "has data_offsets that do not go with its shape");
    }
    entry->begin = (uint64_t)begin;
    entry->end = (uint64_t)end;
    return RF_OK;
}

static int check_metadata(json_t *metadata, struct rf_error *err) {
    const char *key;
    json_t *value;

    if (metadata && !json_is_object(metadata)) {
        return rf__fail(err, RF_ECHECKPOINT, 0,
                        "'__metadata__' of the safetensors header is no object");
    }
    json_object_foreach(metadata, key, value) {
        if (!json_is_string(value)) {
            return rf__fail(err, RF_ECHECKPOINT, 0,
                            "'%.100s' in the metadata of the safetensors header is no text", key);
        }
    }
    return RF_OK;
}

static int compare_offsets(const void *a, const void *b) {
    const struct rf__safetensors_entry *x = a, *y = b;
    if (x->begin != y->begin) {
        return x->begin < y->begin ? -1 : 1;
    }
    if (x->end != y->end) {
        return x->end < y->end ? -1 : 1;
    }
    return strcmp(x->name, y->name);
}

static bool in_order(const struct rf__safetensors *s) {
    for (int i = 1; i < s->count; i++) {
        if (s->entries[i - 1].end > s->entries[i].begin) {
            return false;
        }
    }
    return true;
}

/* The tensors follow each other from the first to the last byte of the data. */
static int check_order(struct rf__safetensors *s, uint64_t data_bytes, struct rf_error *err) {
    uint64_t at = 0;

    if (!in_order(s)) {
        qsort(s->entries, (size_t)s->count, sizeof *s->entries, compare_offsets);
    }
    for (int i = 0; i < s->count; i++) {
        if (s->entries[i].begin != at) {
            return wrong(err, s->entries[i].name,
                         s->entries[i].begin < at ? "overlaps the one before it"
                                                  : "comes after a hole in the data");
        }
        at = s->entries[i].end;
    }
    if (at != data_bytes) {
        return rf__fail(err, RF_ECHECKPOINT, 0,
                        "the safetensors header describes %llu bytes of data, there are %llu",
                        (unsigned long long)at, (unsigned long long)data_bytes);
    }
    return RF_OK;
}

int rf__safetensors_parse(const void *header, size_t length, uint64_t data_bytes,
                          struct rf__safetensors *out, struct rf_error *err) {
    struct rf__safetensors s = {0};
    json_error_t problem;
    json_t *root = NULL, *value;
    const char *name;
    int code = RF_OK;

    *out = s;
    if (!length || length > RF__SAFETENSORS_HEADER_MAX || *(const char *)header != '{') {
        code = rf__fail(err, RF_ECHECKPOINT, 0,
                        "no safetensors header in its %zu bytes (at most %d are read)", length,
                        RF__SAFETENSORS_HEADER_MAX);
        goto out;
    }
    root = json_loadb(header, length, JSON_REJECT_DUPLICATES, &problem);
    if (!root) {
        code = rf__fail(err, RF_ECHECKPOINT, 0, "the safetensors header is not JSON at byte %d: %s",
                        problem.position, problem.text);
        goto out;
    }
    json_t *metadata = json_object_get(root, METADATA);
    size_t count = json_object_size(root) - (metadata != NULL);
    code = check_metadata(metadata, err);
    if (code) {
        goto out;
    }
    if (count > RF__CKPT_TENSORS) {
        code = rf__fail(err, RF_ECHECKPOINT, 0,
                        "the safetensors header has %zu tensors, at most %d are read", count,
                        RF__CKPT_TENSORS);
        goto out;
    }
    s.entries = rf__alloc(count, sizeof *s.entries);
    if (!s.entries) {
        code = rf__fail(err, RF_ENOMEM, 0, "no memory for the names of %zu tensors", count);
        goto out;
    }
    json_object_foreach(root, name, value) {
        if (value != metadata) {
            code = read_entry(&s.entries[s.count++], name, value, data_bytes, err);
            if (code) {
                goto out;
            }
        }
    }
    code = check_order(&s, data_bytes, err);
    if (code) {
        goto out;
    }
    s.json = root;
    *out = s;
    s.entries = NULL;
    root = NULL;
out:
    if (code && err) {
        rf__ckpt_printable(err->text);
    }
    rf__free(s.entries);
    json_decref(root);
    return code;
}

void rf__safetensors_free(struct rf__safetensors *safetensors) {
    rf__free(safetensors->entries);
    json_decref(safetensors->json);
    *safetensors = (struct rf__safetensors){0};
}

const char *rf__safetensors_metadata(const struct rf__safetensors *safetensors, const char *key) {
    return json_string_value(json_object_get(json_object_get(safetensors->json, METADATA), key));
}
