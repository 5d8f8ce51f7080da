/* config.json of GPT-2, both ways, and the same from a checkpoint of training. Of its many members
 * those are read that say what the model computes; whatever would compute something else than the
 * model here is refused by name. */
#include "ckpt/gpt2.h"

#include "base/status.h"

#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double EPSILON = 1e-5; /* of layer norm, in src/nn */

/* --- reading ---------------------------------------------------------------------------------- */

struct reading {
    json_t *object;
    const char *name;
    struct rf_error *err;
};

static int refuse(const struct reading *r, int code, const char *member, const char *what) {
    rf__fail(r->err, code, 0, "'%.100s' cannot be used: '%s' %s", r->name, member, what);
    if (r->err) {
        rf__detail(r->err->why, "it has to describe a GPT2LMHeadModel as GPT-2 itself is one");
    }
    return code;
}

static int take_size(const struct reading *r, const char *member, int *out) {
    const json_t *value = json_object_get(r->object, member);
    json_int_t size = json_integer_value(value);

    if (!value) {
        return refuse(r, RF_EDATA, member, "is missing");
    }
    if (!json_is_integer(value) || size < 1 || size > INT_MAX) {
        return refuse(r, RF_EDATA, member, "is not a whole number from 1");
    }
    *out = (int)size;
    return RF_OK;
}

/* A switch that is not there has its usual value. */
static int must_be(const struct reading *r, const char *member, bool expected) {
    const json_t *value = json_object_get(r->object, member);

    if (!value || (json_is_boolean(value) && json_is_true(value) == expected)) {
        return RF_OK;
    }
    return refuse(r, RF_EUNSUPPORTED, member,
                  expected ? "is not true, and only that is known here"
                           : "is not false, and only that is known here");
}

static int check_kind(const struct reading *r) {
    const char *type = json_string_value(json_object_get(r->object, "model_type"));

    if (!type) {
        return refuse(r, RF_EDATA, "model_type", "is missing");
    }
    return strcmp(type, "gpt2") ? refuse(r, RF_EUNSUPPORTED, "model_type", "is not \"gpt2\"")
                                : RF_OK;
}

/* GELU by the hyperbolic tangent, under its names. */
static int check_activation(const struct reading *r) {
    static const char *const names[] = {"gelu_new", "gelu_pytorch_tanh", "gelu_fast"};
    const json_t *value = json_object_get(r->object, "activation_function");
    const char *name = json_string_value(value);

    for (size_t i = 0; name && i < sizeof names / sizeof *names; i++) {
        if (!strcmp(name, names[i])) {
            return RF_OK;
        }
    }
    return value ? refuse(r, RF_EUNSUPPORTED, "activation_function", "is not \"gelu_new\"") : RF_OK;
}

static int check_epsilon(const struct reading *r) {
    const json_t *value = json_object_get(r->object, "layer_norm_epsilon");

    if (!value || fabs(json_number_value(value) - EPSILON) <= 1e-3 * EPSILON) {
        return RF_OK;
    }
    return refuse(r, RF_EUNSUPPORTED, "layer_norm_epsilon", "is not 1e-5");
}

static int check_inner(const struct reading *r, int width) {
    const json_t *value = json_object_get(r->object, "n_inner");

    if (!value || json_is_null(value) ||
        (json_is_integer(value) && json_integer_value(value) == 4 * (json_int_t)width)) {
        return RF_OK;
    }
    return refuse(r, RF_EUNSUPPORTED, "n_inner", "is not four times 'n_embd'");
}

static int check_rest(const struct reading *r, const struct rf__gpt2_shape *shape) {
    int code = check_activation(r);

    code = code ? code : check_epsilon(r);
    code = code ? code : check_inner(r, shape->width);
    code = code ? code : must_be(r, "scale_attn_weights", true);
    code = code ? code : must_be(r, "scale_attn_by_inverse_layer_idx", false);
    code = code ? code : must_be(r, "add_cross_attention", false);
    if (!code && shape->width % shape->heads) {
        code = refuse(r, RF_EDATA, "n_head", "does not divide 'n_embd'");
    }
    return code;
}

static int take_end(const json_t *object, const struct rf__gpt2_shape *shape) {
    const json_t *value = json_object_get(object, "eos_token_id");
    json_int_t end = json_integer_value(value);

    return json_is_integer(value) && end >= 0 && end < shape->vocabulary ? (int)end
                                                                         : RF__GPT2_NO_END;
}

int rf__gpt2_shape_parse(const char *json, size_t bytes, const char *name,
                         struct rf__gpt2_shape *out, struct rf_error *err) {
    struct reading r = {.name = name, .err = err};
    struct rf__gpt2_shape shape = {0};
    json_error_t problem;
    int code;

    if (bytes > RF__GPT2_CONFIG_MAX) {
        return rf__fail(err, RF_EDATA, 0, "'%.100s' has %zu bytes, at most %d are read", name,
                        bytes, RF__GPT2_CONFIG_MAX);
    }
    r.object = json_loadb(json, bytes, JSON_REJECT_DUPLICATES, &problem);
    if (!json_is_object(r.object)) {
        code = rf__fail(err, RF_EDATA, 0, "'%.100s' is not a JSON object%s%.100s", name,
                        r.object ? "" : ": ", r.object ? "" : problem.text);
        goto out;
    }
    code = check_kind(&r);
    code = code ? code : take_size(&r, "n_layer", &shape.depth);
    code = code ? code : take_size(&r, "n_head", &shape.heads);
    code = code ? code : take_size(&r, "n_embd", &shape.width);
    code = code ? code : take_size(&r, "vocab_size", &shape.vocabulary);
    code = code ? code
                : take_size(&r, json_object_get(r.object, "n_positions") ? "n_positions" : "n_ctx",
                            &shape.context);
    code = code ? code : check_rest(&r, &shape);
    if (!code) {
        shape.end = take_end(r.object, &shape);
        *out = shape;
    }
out:
    json_decref(r.object);
    if (code && err) {
        rf__ckpt_printable(err->text);
    }
    return code;
}

/* --- writing ---------------------------------------------------------------------------------- */

char *rf__gpt2_shape_text(const struct rf__gpt2_shape *shape) {
    json_t *object = json_pack(
        "{s:[s], s:s, s:s, s:i, s:i, s:i, s:i, s:i, s:n, s:i, s:f, s:f, s:b, s:b, s:s}",
        "architectures", "GPT2LMHeadModel", "model_type", "gpt2", "activation_function", "gelu_new",
        "n_layer", shape->depth, "n_head", shape->heads, "n_embd", shape->width, "n_positions",
        shape->context, "n_ctx", shape->context, "n_inner", "vocab_size", shape->vocabulary,
        "layer_norm_epsilon", EPSILON, "initializer_range", 0.02, "scale_attn_weights", 1,
        "tie_word_embeddings", 1, "torch_dtype", "float32");
    bool good = object != NULL;

    /* Without these two GPT-2's own would be taken, also where there is no such token. */
    static const char *const ends[] = {"bos_token_id", "eos_token_id"};
    for (size_t i = 0; i < 2 && good; i++) {
        good = !json_object_set_new(object, ends[i],
                                    shape->end == RF__GPT2_NO_END ? json_null()
                                                                  : json_integer(shape->end));
    }
    char *text =
        good ? json_dumps(object, JSON_INDENT(2) | JSON_SORT_KEYS | JSON_REAL_PRECISION(6)) : NULL;
    json_decref(object);
    return text;
}

/* --- a checkpoint of training ----------------------------------------------------------------- */

static const struct rf__ckpt_tensor *matrix_of(const struct rf__ckpt_manifest *manifest,
                                               const char *name) {
    const struct rf__ckpt_state *state = &manifest->state;

    for (int i = 0; i < state->count; i++) {
        const struct rf__ckpt_tensor *tensor = &state->tensors[i];
        if (!strcmp(tensor->name, name)) {
            bool fits = tensor->dims == 2 && tensor->shape[0] <= INT_MAX &&
                        tensor->shape[1] <= INT_MAX && tensor->length;
            return fits ? tensor : NULL;
        }
    }
    return NULL;
}

static int count_blocks(const struct rf__ckpt_manifest *manifest) {
    static const char first[] = ".ln_1.weight";
    int count = 0;

    for (int i = 0; i < manifest->state.count; i++) {
        const char *name = manifest->state.tensors[i].name;
        size_t length = strlen(name);
        count += !strncmp(name, "h.", 2) && length > sizeof first &&
                 !strcmp(name + length - (sizeof first - 1), first);
    }
    return count;
}

int rf__gpt2_shape_of(const struct rf__ckpt_manifest *manifest, struct rf__gpt2_shape *out,
                      struct rf_error *err) {
    const struct rf__ckpt_tensor *wte = matrix_of(manifest, "wte.weight");
    const struct rf__ckpt_tensor *wpe = matrix_of(manifest, "wpe.weight");
    json_t *config = manifest->config ? json_loads(manifest->config, 0, NULL) : NULL;
    const char *model = json_string_value(json_object_get(config, "model"));
    json_int_t heads = json_integer_value(json_object_get(config, "heads"));
    char folder[RF__CKPT_FOLDER];
    int blocks = count_blocks(manifest), code = RF_OK;

    rf__ckpt_folder(folder, &manifest->id);
    if (!wte || !wpe || !blocks || (model && strcmp(model, "gpt"))) {
        code = rf__fail(err, RF_EUNSUPPORTED, 0,
                        "checkpoint '%s' is of model '%.60s', and only a 'gpt' can be used here",
                        folder, model ? model : "?");
        if (err) {
            rf__ckpt_printable(err->text);
        }
    } else if (heads < 1 || heads > (json_int_t)wte->shape[1] ||
               (json_int_t)wte->shape[1] % heads) {
        code = rf__fail(err, RF_ECHECKPOINT, 0,
                        "checkpoint '%s' does not record how many heads its gpt has: 'heads' in "
                        "its configuration must divide its width of %llu",
                        folder, (unsigned long long)wte->shape[1]);
        if (err) {
            rf__detail(err->next, "have the program that trains it put \"model\": \"gpt\" and "
                                  "\"heads\" into the checkpoint's config");
        }
    } else {
        *out = (struct rf__gpt2_shape){.depth = blocks,
                                       .heads = (int)heads,
                                       .width = (int)wte->shape[1],
                                       .context = (int)wpe->shape[0],
                                       .vocabulary = (int)wte->shape[0],
                                       .end = RF__GPT2_NO_END};
    }
    json_decref(config);
    return code;
}
