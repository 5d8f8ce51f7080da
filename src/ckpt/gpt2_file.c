/* Folders of GPT-2's weights: one that is read into a state, and one that is written from a
 * checkpoint. */
#include "ckpt/gpt2.h"

#include "base/cursor.h"
#include "base/mem.h"
#include "base/status.h"
#include "ckpt/copy.h"
#include "ckpt/inner.h"
#include "ckpt/safetensors.h"
#include "coll/fold_element.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH_BYTES = 4096, CHUNK = 1 << 20 /* elements */ };

static int join(const char *folder, const char *name, char out[PATH_BYTES], struct rf_error *err) {
    int length = snprintf(out, PATH_BYTES, "%s/%s", folder, name);

    return length > 0 && length < PATH_BYTES
               ? RF_OK
               : rf__fail(err, RF_ELIMIT, 0, "a folder's name is longer than %d bytes", PATH_BYTES);
}

/* --- config.json ------------------------------------------------------------------------------ */

/* 1, 0 or an error; *size where it is 1. */
static int is_there(struct rf__blobs *files, const char *name, uint64_t *size,
                    struct rf_error *err) {
    struct rf__blob *blob = NULL;

    int code = files->ops->open(files, name, &blob, size, err);
    if (!code) {
        files->ops->close(files, blob);
    }
    return code == RF_ENOTFOUND ? 0 : code ? code : 1;
}

static int is_in(struct rf__blobs *files, const char *folder, const char *name,
                 struct rf_error *err) {
    char path[PATH_BYTES];
    uint64_t size;
    int code = join(folder, name, path, err);

    return code ? code : is_there(files, path, &size, err);
}

int rf__gpt2_is_folder(struct rf__blobs *files, const char *folder, struct rf_error *err) {
    return is_in(files, folder, RF__GPT2_CONFIG, err);
}

/* The code of the readers below says that a checkpoint is no good; here it is a file. */
static int as_data(int code, struct rf_error *err) {
    if (code == RF_ECHECKPOINT) {
        code = RF_EDATA;
        if (err) {
            err->code = code;
            err->next[0] = '\0';
        }
    }
    return code;
}

int rf__gpt2_read_shape(struct rf__blobs *files, const char *folder, struct rf__gpt2_shape *out,
                        uint64_t *weight_bytes, struct rf_error *err) {
    char path[PATH_BYTES], *text = NULL;
    size_t bytes = 0;

    int code = join(folder, RF__GPT2_CONFIG, path, err);
    code = code ? code : rf__ckpt_read_blob(files, path, RF__GPT2_CONFIG_MAX, &text, &bytes, err);
    code = code ? code : rf__gpt2_shape_parse(text, bytes, path, out, err);
    rf__free(text);
    *weight_bytes = 0;
    code = code ? code : join(folder, RF__GPT2_WEIGHTS, path, err);
    if (!code) {
        code = is_there(files, path, weight_bytes, err);
        code = code > 0 ? RF_OK : code;
    }
    return as_data(code, err);
}

/* --- the weights ------------------------------------------------------------------------------ */

/* The file that is read, and what its tensors are to the state's. */
struct weights {
    struct rf__blobs *files;
    struct rf__blob *blob;
    uint64_t data; /* where the tensors' bytes begin */
    struct rf__safetensors header;
    const struct rf__ckpt_state *state;
    const struct rf__ckpt_tensor **sorted;     /* by name */
    const struct rf__safetensors_entry **from; /* of each tensor of the state */
    const struct rf__safetensors_entry *head;
    unsigned char *chunk;
    float *values; /* of a chunk of the head */
};

static int read_exactly(const struct weights *w, uint64_t offset, void *bytes, size_t length,
                        struct rf_error *err) {
    ssize_t n = w->files->ops->read(w->files, w->blob, offset, bytes, length, err);

    if (n < 0) {
        return (int)n;
    }
    return (size_t)n == length
               ? RF_OK
               : rf__fail(err, RF_EDATA, 0, "it ends at byte %" PRIu64, offset + (uint64_t)n);
}

static int read_header(struct weights *w, uint64_t size, struct rf_error *err) {
    unsigned char prefix[RF__SAFETENSORS_LENGTH_BYTES];
    unsigned char *text = NULL;

    if (size < sizeof prefix) {
        return rf__fail(err, RF_EDATA, 0, "it has %" PRIu64 " bytes and is no safetensors file",
                        size);
    }
    int code = read_exactly(w, 0, prefix, sizeof prefix, err);
    if (code) {
        return code;
    }
    struct rf__reader cursor = rf__reader(prefix, sizeof prefix);
    uint64_t length = rf__read_u64(&cursor);
    if (length > RF__SAFETENSORS_HEADER_MAX || length > size - sizeof prefix) {
        return rf__fail(err, RF_EDATA, 0,
                        "its %" PRIu64 " bytes cannot hold a safetensors header of %" PRIu64, size,
                        length);
    }
    text = rf__alloc((size_t)length + 1, 1);
    if (!text) {
        return rf__fail(err, RF_ENOMEM, 0, "no memory for its header of %" PRIu64 " bytes", length);
    }
    w->data = sizeof prefix + length;
    code = read_exactly(w, sizeof prefix, text, (size_t)length, err);
    code =
        code ? code : rf__safetensors_parse(text, (size_t)length, size - w->data, &w->header, err);
    rf__free(text);
    return code;
}

static int by_name(const void *a, const void *b) {
    const struct rf__ckpt_tensor *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

static int find_name(const void *name, const void *b) {
    const struct rf__ckpt_tensor *const *tensor = b;
    return strcmp(name, (*tensor)->name);
}

/* "h.N.attn.bias" and "h.N.attn.masked_bias": masks, the same in every model. */
static bool is_mask(const char *name) {
    size_t digits = strncmp(name, "h.", 2) ? 0 : strspn(name + 2, "0123456789");

    return digits && (!strcmp(name + 2 + digits, ".attn.bias") ||
                      !strcmp(name + 2 + digits, ".attn.masked_bias"));
}

/* "768 x 2304", "" without dimensions. */
static void shape_text(const uint64_t *shape, int dims, char *out, size_t room) {
    size_t at = 0;

    out[0] = '\0';
    for (int i = 0; i < dims && at < room; i++) {
        int n = snprintf(out + at, room - at, i ? " x %" PRIu64 : "%" PRIu64, shape[i]);
        at += n > 0 ? (size_t)n : 0;
    }
}

static int check_entry(const struct rf__safetensors_entry *entry,
                       const struct rf__ckpt_tensor *tensor, struct rf_error *err) {
    char found[96], expected[96];

    if (entry->type != RF_F32 && entry->type != RF_F16 && entry->type != RF_BF16) {
        return rf__fail(err, RF_EDATA, 0,
                        "tensor '%.80s' is of type %s; only f32, f16 and bf16 are read",
                        entry->name, rf_type_name(entry->type));
    }
    if (entry->dims == tensor->dims &&
        !memcmp(entry->shape, tensor->shape, (size_t)tensor->dims * sizeof *tensor->shape)) {
        return RF_OK;
    }
    shape_text(entry->shape, entry->dims, found, sizeof found);
    shape_text(tensor->shape, tensor->dims, expected, sizeof expected);
    rf__fail(err, RF_EDATA, 0, "tensor '%.80s' is %s, and by '" RF__GPT2_CONFIG "' it should be %s",
             entry->name, entry->dims ? found : "one number", expected);
    if (err && entry->dims == 2 && tensor->dims == 2 && entry->shape[0] == tensor->shape[1] &&
        entry->shape[1] == tensor->shape[0]) {
        rf__detail(err->why, "it is transposed: GPT-2's matrices are inputs x outputs");
    }
    return RF_EDATA;
}

static int place_entry(struct weights *w, const struct rf__safetensors_entry *entry,
                       struct rf_error *err) {
    static const char prefix[] = "transformer.";
    const char *name = entry->name;

    if (!strcmp(name, "lm_head.weight")) {
        w->head = entry;
        return RF_OK;
    }
    name += strncmp(name, prefix, sizeof prefix - 1) ? 0 : sizeof prefix - 1;
    if (is_mask(name)) {
        return RF_OK;
    }
    const struct rf__ckpt_tensor *const *found =
        bsearch(name, w->sorted, (size_t)w->state->count, sizeof *w->sorted, find_name);
    if (!found) {
        rf__fail(err, RF_EDATA, 0,
                 "tensor '%.80s' is none of a GPT-2 of the depth that '" RF__GPT2_CONFIG "' says",
                 entry->name);
        return RF_EDATA;
    }
    size_t index = (size_t)(*found - w->state->tensors);
    if (w->from[index]) {
        return rf__fail(err, RF_EDATA, 0, "tensors '%.80s' and '%.80s' are the same one",
                        w->from[index]->name, entry->name);
    }
    w->from[index] = entry;
    return check_entry(entry, *found, err);
}

/* Each of the state's tensors has its entry. */
static int place_all(struct weights *w, struct rf_error *err) {
    int count = w->state->count, code = RF_OK;

    for (int i = 0; i < count; i++) {
        w->sorted[i] = &w->state->tensors[i];
    }
    qsort(w->sorted, (size_t)count, sizeof *w->sorted, by_name);
    for (int i = 0; i < w->header.count && !code; i++) {
        code = place_entry(w, &w->header.entries[i], err);
    }
    for (int i = 0; i < count && !code; i++) {
        if (!w->from[i]) {
            char expected[96];
            const struct rf__ckpt_tensor *tensor = &w->state->tensors[i];
            shape_text(tensor->shape, tensor->dims, expected, sizeof expected);
            code = rf__fail(err, RF_EDATA, 0, "tensor '%.80s', %s, is missing", tensor->name,
                            expected);
        }
    }
    if (!code && w->head) {
        code = check_entry(w->head, &w->state->tensors[0], err);
    }
    return code;
}

static void widen(enum rf_type type, const unsigned char *bytes, float *out, size_t count) {
    if (type == RF_F32) {
        memcpy(out, bytes, count * sizeof *out);
    }
    for (size_t i = 0; i < count && type != RF_F32; i++) {
        uint16_t half = (uint16_t)(bytes[2 * i] | bytes[2 * i + 1] << 8);
        out[i] = type == RF_F16 ? widen_f16(half) : widen_bf16(half);
    }
}

static int read_values(const struct weights *w, const struct rf__safetensors_entry *entry,
                       size_t first, float *out, size_t count, struct rf_error *err) {
    size_t element = rf_type_size(entry->type);
    int code =
        read_exactly(w, w->data + entry->begin + first * element, w->chunk, count * element, err);

    if (!code) {
        widen(entry->type, w->chunk, out, count);
    }
    return code;
}

static int read_tensor(const struct weights *w, int index, struct rf_error *err) {
    const struct rf__ckpt_tensor *tensor = &w->state->tensors[index];
    size_t count = (size_t)(tensor->length / sizeof(float));
    int code = RF_OK;

    for (size_t at = 0; at < count && !code; at += CHUNK) {
        size_t n = count - at < CHUNK ? count - at : CHUNK;
        code = read_values(w, w->from[index], at, (float *)tensor->bytes + at, n, err);
    }
    return code;
}

/* The head is the token embedding, the state's first tensor, or else something is lost. */
static int check_head(const struct weights *w, struct rf_error *err) {
    const struct rf__ckpt_tensor *wte = &w->state->tensors[0];
    size_t count = (size_t)(wte->length / sizeof(float));
    int code = RF_OK;

    for (size_t at = 0; w->head && at < count && !code; at += CHUNK) {
        size_t n = count - at < CHUNK ? count - at : CHUNK;
        code = read_values(w, w->head, at, w->values, n, err);
        if (!code && memcmp(w->values, (const float *)wte->bytes + at, n * sizeof *w->values)) {
            code = rf__fail(err, RF_EUNSUPPORTED, 0,
                            "tensor 'lm_head.weight' is not equal to '%.80s': a head of its own is "
                            "not known here",
                            wte->name);
        }
    }
    return code;
}

static int read_all(struct weights *w, uint64_t size, struct rf_error *err) {
    size_t count = (size_t)w->state->count;

    int code = read_header(w, size, err);
    if (code) {
        return code;
    }
    w->sorted = rf__alloc(count, sizeof *w->sorted);
    w->from = rf__alloc(count, sizeof *w->from);
    w->chunk = rf__alloc(CHUNK, sizeof(float));
    w->values = rf__alloc(CHUNK, sizeof(float));
    if (!w->sorted || !w->from || !w->chunk || !w->values) {
        return rf__fail(err, RF_ENOMEM, 0, "no memory to read %d tensors", w->header.count);
    }
    code = place_all(w, err);
    for (int i = 0; i < w->state->count && !code; i++) {
        code = read_tensor(w, i, err);
    }
    return code ? code : check_head(w, err);
}

/* There is no model.safetensors: what there is instead says what to do. */
static int missing(struct rf__blobs *files, const char *folder, struct rf_error *err) {
    int split = is_in(files, folder, RF__GPT2_WEIGHTS ".index.json", NULL);

    rf__fail(err, RF_ENOTFOUND, 0, "no '" RF__GPT2_WEIGHTS "' in '%.200s'%s", folder,
             split == 1 ? ": the weights are in several files, which are not read" : "");
    if (err) {
        rf__detail(err->next, "write it with transformers: model.save_pretrained(FOLDER, "
                              "safe_serialization=True, max_shard_size=\"100GB\")");
    }
    return RF_ENOTFOUND;
}

int rf__gpt2_read(struct rf__blobs *files, const char *folder, const struct rf__ckpt_state *state,
                  struct rf_error *err) {
    char path[PATH_BYTES];
    struct weights w = {.files = files, .state = state};
    uint64_t size = 0;

    int code = join(folder, RF__GPT2_WEIGHTS, path, err);
    if (code) {
        return code;
    }
    code = files->ops->open(files, path, &w.blob, &size, err);
    if (code == RF_ENOTFOUND) {
        return missing(files, folder, err);
    }
    if (code) {
        return code;
    }
    code = read_all(&w, size, err);
    if (code) {
        (void)rf__wrap(err, code, "'%.120s': ", path);
        if (err) {
            rf__ckpt_printable(err->text);
        }
        code = as_data(code, err);
    }
    files->ops->close(files, w.blob);
    rf__safetensors_free(&w.header);
    rf__free(w.sorted);
    rf__free(w.from);
    rf__free(w.chunk);
    rf__free(w.values);
    return code;
}

/* --- writing ---------------------------------------------------------------------------------- */

static int refuse_old(struct rf__blobs *to, const char *name, struct rf_error *err) {
    uint64_t size;
    int found = is_there(to, name, &size, err);

    if (found == 1) {
        rf__fail(err, RF_EEXISTS, 0, "there is a '%s' in the folder already", name);
        if (err) {
            rf__detail(err->next, "choose another folder, or remove that one");
        }
        return RF_EEXISTS;
    }
    return found;
}

static int write_config(struct rf__blobs *to, const struct rf__gpt2_shape *shape,
                        struct rf_error *err) {
    char *text = rf__gpt2_shape_text(shape);
    int code = text ? rf__ckpt_put_blob(to, RF__GPT2_CONFIG, text, strlen(text), true, err)
                    : rf__fail(err, RF_ENOMEM, 0, "no memory for '" RF__GPT2_CONFIG "'");
    free(text);
    return code;
}

int rf__gpt2_export(const struct rf__gpt2_export *order, uint64_t *bytes, struct rf_error *err) {
    struct rf__blobs *to = order->to;
    int code = rf__ckpt_compare_trained(order->manifest, order->state, err);

    code = code ? code : refuse_old(to, RF__GPT2_CONFIG, err);
    code = code ? code : refuse_old(to, RF__GPT2_WEIGHTS, err);
    for (size_t i = 0; i < order->others_count && !code; i++) {
        code = refuse_old(to, order->others[i], err);
    }
    code = code ? code
                : rf__ckpt_export(order->from, order->manifest, false, to, RF__GPT2_WEIGHTS, bytes,
                                  err);
    if (code) {
        return code;
    }
    code = order->further ? order->further(order->context, to, err) : RF_OK;
    code = code ? code : write_config(to, order->shape, err);
    if (code) {
        (void)to->ops->remove(to, RF__GPT2_WEIGHTS, NULL);
    }
    return code;
}
