/* Folders in the form of Hugging Face's GPT-2: what is read of them, what is refused and how that
 * is told, what is written, and mutations of all of it. */
#define FUZZ_GPT2 fuzz_gpt2
#include "ckpt/safetensors.h"
#include "fuzz/fuzz_gpt2.c"
#include "support/checkpoints.h"
#include "support/small_ranks.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>
#include <jansson.h>

static const struct rf__gpt_options small = {
    .depth = 2, .width = 4, .heads = 2, .context = 3, .vocabulary = 5};

/* --- config.json ------------------------------------------------------------------------------ */

static const char gpt2_config[] =
    "{\"activation_function\": \"gelu_new\", \"architectures\": [\"GPT2LMHeadModel\"], "
    "\"bos_token_id\": 50256, \"eos_token_id\": 50256, \"layer_norm_epsilon\": 1e-05, "
    "\"model_type\": \"gpt2\", \"n_ctx\": 1024, \"n_embd\": 768, \"n_head\": 12, \"n_layer\": 12, "
    "\"n_positions\": 1024, \"n_special\": 0, \"resid_pdrop\": 0.1, \"summary_type\": "
    "\"cls_index\", \"task_specific_params\": {\"text-generation\": {\"do_sample\": true}}, "
    "\"vocab_size\": 50257}";

static int parse(const char *text, struct rf__gpt2_shape *out, struct rf_error *err) {
    return rf__gpt2_shape_parse(text, strlen(text), "m/config.json", out, err);
}

static void a_released_configuration(void **state) {
    struct rf__gpt2_shape shape;
    (void)state;

    assert_int_equal(parse(gpt2_config, &shape, NULL), 0);
    assert_int_equal(shape.depth, 12);
    assert_int_equal(shape.heads, 12);
    assert_int_equal(shape.width, 768);
    assert_int_equal(shape.context, 1024);
    assert_int_equal(shape.vocabulary, 50257);
    assert_int_equal(shape.end, 50256);
}

static void configurations_that_are_refused(void **state) {
    static const struct {
        const char *member; /* put behind all others */
        int code;
        const char *text;
    } cases[] = {
        {"\"n_layer\": 0", RF_EDATA, "'n_layer' is not a whole number from 1"},
        {"\"n_head\": 2.5", RF_EDATA, "'n_head' is not a whole number from 1"},
        {"\"n_embd\": 9999999999", RF_EDATA, "'n_embd' is not a whole number from 1"},
        {"\"n_head\": 5", RF_EDATA, "'n_head' does not divide 'n_embd'"},
        {"\"model_type\": \"llama\"", RF_EUNSUPPORTED, "'model_type' is not \"gpt2\""},
        {"\"activation_function\": \"relu\"", RF_EUNSUPPORTED, "'activation_function' is not"},
        {"\"layer_norm_epsilon\": 1e-6", RF_EUNSUPPORTED, "'layer_norm_epsilon' is not 1e-5"},
        {"\"n_inner\": 100", RF_EUNSUPPORTED, "'n_inner' is not four times"},
        {"\"scale_attn_weights\": false", RF_EUNSUPPORTED, "'scale_attn_weights' is not true"},
        {"\"add_cross_attention\": true", RF_EUNSUPPORTED, "'add_cross_attention' is not false"},
        {"\"scale_attn_by_inverse_layer_idx\": 1", RF_EUNSUPPORTED, "_inverse_layer_idx' is not"},
    };
    struct rf__gpt2_shape shape;
    struct rf_error err;
    (void)state;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *object = json_loads(gpt2_config, 0, NULL);
        char text[128];
        snprintf(text, sizeof text, "{%s}", cases[i].member);
        json_t *change = json_loads(text, 0, NULL);
        assert_non_null(change);
        json_object_update(object, change);
        char *whole = json_dumps(object, 0);
        err = (struct rf_error){.code = 0};
        assert_int_equal(parse(whole, &shape, &err), cases[i].code);
        assert_non_null(strstr(err.text, "'m/config.json' cannot be used: "));
        assert_non_null(strstr(err.text, cases[i].text));
        free(whole);
        json_decref(change);
        json_decref(object);
    }
    assert_int_equal(parse("{\"model_type\": \"gpt2\"}", &shape, &err), RF_EDATA);
    assert_non_null(strstr(err.text, "'n_layer' is missing"));
    assert_int_equal(parse("{}", &shape, &err), RF_EDATA);
    assert_non_null(strstr(err.text, "'model_type' is missing"));
    assert_int_equal(parse("[1]", &shape, &err), RF_EDATA);
    assert_int_equal(parse("{\"model_type\"", &shape, &err), RF_EDATA);
    assert_non_null(strstr(err.text, "is not a JSON object: "));
}

static void a_configuration_there_and_back(void **state) {
    const struct rf__gpt2_shape shapes[] = {
        {.depth = 3, .heads = 2, .width = 8, .context = 9, .vocabulary = 7, .end = RF__GPT2_NO_END},
        {.depth = 1, .heads = 1, .width = 1, .context = 1, .vocabulary = 300, .end = 299}};
    struct rf__gpt2_shape again;
    (void)state;

    for (size_t i = 0; i < 2; i++) {
        char *text = rf__gpt2_shape_text(&shapes[i]);
        assert_int_equal(parse(text, &again, NULL), 0);
        assert_memory_equal(&again, &shapes[i], sizeof again);
        free(text);
    }
}

/* --- weights ---------------------------------------------------------------------------------- */

/* A model to be filled, and a file to fill it from: one entry a tensor, to be changed by tests. */
struct file {
    struct rf__generator *generator;
    struct rf__weights weights;
    struct rf__safetensors_entry *entries;
    int count;
    struct memory_blobs *blobs;
};

enum { FURTHER = 4 };

/* Number k of tensor i: exact in every type. */
static float value_of(int i, size_t k) {
    return (float)(i % 7) + (float)(k % 16) / 8 - 3;
}

static void file_begin(struct file *file, const char *prefix, enum rf_type type) {
    *file = (struct file){.blobs = memory_blobs_create()};
    assert_int_equal(rf__generator_create(&small, &file->generator, NULL), 0);
    assert_int_equal(rf__weights_of_generator(file->generator, &file->weights, NULL), 0);
    file->count = file->weights.state.count;
    file->entries = calloc((size_t)file->count + FURTHER, sizeof *file->entries);
    for (int i = 0; i < file->count; i++) {
        const struct rf__ckpt_tensor *tensor = &file->weights.state.tensors[i];
        struct rf__safetensors_entry *entry = &file->entries[i];
        snprintf(entry->name, sizeof entry->name, "%s%s", prefix, tensor->name);
        entry->type = type;
        entry->dims = tensor->dims;
        memcpy(entry->shape, tensor->shape, sizeof entry->shape);
    }
}

/* One more entry; as `like`, if that is not negative. */
static struct rf__safetensors_entry *file_add(struct file *file, const char *name, int like) {
    struct rf__safetensors_entry *entry = &file->entries[file->count++];
    if (like >= 0) {
        *entry = file->entries[like];
    }
    snprintf(entry->name, sizeof entry->name, "%s", name);
    return entry;
}

static int entry_named(const struct file *file, const char *name) {
    int i = 0;
    while (strcmp(file->entries[i].name, name)) {
        i++;
        assert_true(i < file->count);
    }
    return i;
}

static void number_put(unsigned char *at, enum rf_type type, float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    /* Halves: what the values of these tests are in them, without rounding. */
    uint32_t exponent = bits >> 23 & 0xff;
    uint32_t half = exponent ? (exponent - 112) << 10 | (bits >> 13 & 0x3ff) : 0;
    uint32_t narrow = type == RF_BF16 ? bits >> 16 : half | (bits >> 16 & 0x8000);
    bits = type == RF_F32 ? bits : narrow;
    memcpy(at, &bits, type == RF_F32 ? 4 : 2);
}

/* The file's bytes, by malloc; the entry `odd` (-1: none) has other values than its like. */
static unsigned char *file_bytes(struct file *file, int odd, size_t *bytes) {
    size_t at = 0, length = 0;
    void *header = NULL;

    for (int i = 0; i < file->count; i++) {
        struct rf__safetensors_entry *entry = &file->entries[i];
        entry->begin = at;
        at += rf_type_size(entry->type);
        for (int d = 0; d < entry->dims; d++) {
            at = entry->begin + (at - entry->begin) * entry->shape[d];
        }
        entry->end = at;
    }
    assert_int_equal(
        rf__safetensors_header(NULL, 0, file->entries, file->count, &header, &length, NULL), 0);
    unsigned char *all = calloc(length + at, 1);
    memcpy(all, header, length);
    rf__free(header);
    for (int i = 0; i < file->count; i++) {
        const struct rf__safetensors_entry *entry = &file->entries[i];
        size_t size = rf_type_size(entry->type);
        int like = i < file->weights.state.count ? i : i == odd ? 1 : 0;
        for (size_t k = 0; size <= 4 && size > 1 && k < (entry->end - entry->begin) / size; k++) {
            number_put(all + length + entry->begin + k * size, entry->type, value_of(like, k));
        }
    }
    *bytes = length + at;
    return all;
}

static int file_read(struct file *file, int odd, struct rf_error *err) {
    size_t bytes = 0;
    unsigned char *all = file_bytes(file, odd, &bytes);
    memory_put(file->blobs, "m/model.safetensors", all, bytes);
    return rf__gpt2_read(&file->blobs->base, "m", &file->weights.state, err);
}

static void file_end(struct file *file) {
    assert_int_equal(file->blobs->open_now, 0);
    rf__weights_free(&file->weights);
    rf__generator_destroy(file->generator);
    free(file->entries);
    file->blobs->base.ops->destroy(&file->blobs->base);
}

static void assert_filled(const struct file *file) {
    for (int i = 0; i < file->weights.state.count; i++) {
        const struct rf__ckpt_tensor *tensor = &file->weights.state.tensors[i];
        for (size_t k = 0; k < tensor->length / sizeof(float); k++) {
            assert_true(((const float *)tensor->bytes)[k] == value_of(i, k));
        }
    }
}

static void every_type_and_prefix(void **state) {
    static const enum rf_type types[] = {RF_F32, RF_F16, RF_BF16};
    (void)state;

    for (size_t i = 0; i < 6; i++) {
        struct file file;
        file_begin(&file, i % 2 ? "transformer." : "", types[i / 2]);
        file_add(&file, "lm_head.weight", 0);
        *file_add(&file, i % 2 ? "transformer.h.0.attn.bias" : "h.0.attn.bias", -1) =
            (struct rf__safetensors_entry){
                .name = "h.1.attn.bias", .type = RF_U8, .dims = 4, .shape = {1, 1, 3, 3}};
        file_add(&file, "h.0.attn.masked_bias", -1)->type = RF_F32;
        assert_int_equal(file_read(&file, -1, NULL), 0);
        assert_filled(&file);
        file_end(&file);
    }
}

/* A change to a good file, and what is said of it. */
static void refused(void (*change)(struct file *file), int code, const char *text,
                    const char *why) {
    struct rf_error err = {.code = 0};
    struct file file;

    file_begin(&file, "", RF_F32);
    change(&file);
    assert_int_equal(file_read(&file, file.count - 1, &err), code);
    assert_int_equal(err.code, code);
    assert_non_null(strstr(err.text, "'m/model.safetensors': "));
    assert_non_null(strstr(err.text, text));
    assert_true(!why || strstr(err.why, why));
    file_end(&file);
}

static void lacks_one(struct file *file) {
    int i = entry_named(file, "h.1.mlp.c_fc.bias");
    file->count--;
    memmove(&file->entries[i], &file->entries[i + 1],
            (size_t)(file->count - i) * sizeof *file->entries);
}

static void is_wider(struct file *file) {
    file->entries[entry_named(file, "wte.weight")].shape[0] = 6;
}

static void is_turned(struct file *file) {
    struct rf__safetensors_entry *entry = &file->entries[entry_named(file, "h.0.mlp.c_fc.weight")];
    entry->shape[0] = 16;
    entry->shape[1] = 4;
}

static void is_whole_numbers(struct file *file) {
    file->entries[entry_named(file, "ln_f.bias")].type = RF_I64;
}

static void has_another_block(struct file *file) {
    file_add(file, "h.2.ln_1.weight", entry_named(file, "h.1.ln_1.weight"));
}

static void has_it_twice(struct file *file) {
    file_add(file, "transformer.wpe.weight", entry_named(file, "wpe.weight"));
}

static void has_a_head(struct file *file) {
    file_add(file, "lm_head.weight", 0);
}

static void weights_that_are_refused(void **state) {
    (void)state;
    refused(lacks_one, RF_EDATA, "tensor 'h.1.mlp.c_fc.bias', 16, is missing", NULL);
    refused(is_wider, RF_EDATA, "tensor 'wte.weight' is 6 x 4, and by 'config.json' it should be 5",
            NULL);
    refused(is_turned, RF_EDATA, "'h.0.mlp.c_fc.weight' is 16 x 4", "inputs x outputs");
    refused(is_whole_numbers, RF_EDATA, "'ln_f.bias' is of type i64; only f32", NULL);
    refused(has_another_block, RF_EDATA, "'h.2.ln_1.weight' is none of a GPT-2 of the depth", NULL);
    refused(has_it_twice, RF_EDATA, "'wpe.weight' and 'transformer.wpe.weight' are the same", NULL);
    refused(has_a_head, RF_EUNSUPPORTED, "'lm_head.weight' is not equal to 'wte.weight'", NULL);
}

static void files_that_are_cut_or_gone(void **state) {
    struct rf_error err = {.code = 0};
    struct file file;
    size_t bytes = 0;
    (void)state;

    file_begin(&file, "", RF_F32);
    assert_int_equal(rf__gpt2_read(&file.blobs->base, "m", &file.weights.state, &err),
                     RF_ENOTFOUND);
    assert_non_null(strstr(err.text, "no 'model.safetensors' in 'm'"));
    memory_put(file.blobs, "m/model.safetensors.index.json", calloc(1, 1), 1);
    assert_int_equal(rf__gpt2_read(&file.blobs->base, "m", &file.weights.state, &err),
                     RF_ENOTFOUND);
    assert_non_null(strstr(err.text, "in several files"));
    unsigned char *all = file_bytes(&file, -1, &bytes);
    for (size_t length = 0; length < bytes; length += length < 1000 ? 1 : 37) {
        unsigned char *cut = malloc(length + 1);
        memcpy(cut, all, length);
        memory_put(file.blobs, "m/model.safetensors", cut, length);
        assert_int_equal(rf__gpt2_read(&file.blobs->base, "m", &file.weights.state, &err),
                         RF_EDATA);
    }
    free(all);
    file_end(&file);
}

static void reads_and_memory_fail(void **state) {
    struct file file;
    int code = RF_EIO;
    long k = 0;
    (void)state;

    file_begin(&file, "", RF_F16);
    assert_int_equal(file_read(&file, -1, NULL), 0);
    for (; code; k++) {
        file.blobs->calls = 0;
        file.blobs->fail_at = k;
        code = rf__gpt2_read(&file.blobs->base, "m", &file.weights.state, NULL);
        assert_true(code == 0 || code == RF_EIO);
        assert_int_equal(file.blobs->open_now, 0);
    }
    assert_true(k > file.weights.state.count);
    file.blobs->fail_at = -1;
    code = RF_ENOMEM;
    for (k = 0; code; k++) {
        rf__alloc_fail_after(k);
        code = rf__gpt2_read(&file.blobs->base, "m", &file.weights.state, NULL);
        rf__alloc_fail_after(-1);
        assert_true(code == 0 || code == RF_ENOMEM);
    }
    assert_true(k > 5);
    file_end(&file);
}

/* A configuration may claim anything; what is there of weights bounds what is believed. */
static void sizes_are_held_against_the_weights(void **state) {
    struct rf__gpt_options sizes;
    struct rf_error err = {.code = 0};
    struct file file;
    (void)state;

    file_begin(&file, "", RF_F32);
    assert_int_equal(file_read(&file, -1, NULL), 0);
    memory_put(file.blobs, "m/config.json", (unsigned char *)strdup(gpt2_config),
               strlen(gpt2_config));
    assert_int_equal(rf__weights_folder(&file.blobs->base, "m", &sizes, &err), RF_EDATA);
    assert_non_null(strstr(err.text, "too few for the 124439808 parameters"));
    file_end(&file);
}

/* --- from a checkpoint ------------------------------------------------------------------------ */

struct trained {
    struct rf__generator *generator;
    struct rf__weights weights;
    struct rf__ckpt_tensor *tensors;
    struct rf__ckpt_state state; /* with an optimizer's */
    struct memory_blobs *from;
    struct rf__ckpt_manifest manifest;
};

static void trained_begin(struct trained *t) {
    static unsigned char moments[100];
    char folder[RF__CKPT_FOLDER];
    struct rf__ckpt_id id = test_id(20);

    *t = (struct trained){.from = memory_blobs_create()};
    assert_int_equal(rf__generator_create(&small, &t->generator, NULL), 0);
    assert_int_equal(rf__weights_of_generator(t->generator, &t->weights, NULL), 0);
    int count = t->weights.state.count;
    t->tensors = calloc((size_t)count + 1, sizeof *t->tensors);
    memcpy(t->tensors, t->weights.state.tensors, (size_t)count * sizeof *t->tensors);
    for (int i = 0; i < count; i++) {
        for (size_t k = 0; k < t->tensors[i].length / sizeof(float); k++) {
            ((float *)t->tensors[i].bytes)[k] = value_of(i, k);
        }
    }
    t->tensors[count] = (struct rf__ckpt_tensor){.name = "optimizer",
                                                 .type = RF_U8,
                                                 .dims = 1,
                                                 .shape = {sizeof moments},
                                                 .bytes = moments,
                                                 .length = sizeof moments};
    t->state = (struct rf__ckpt_state){.tensors = t->tensors, .count = count + 1};
    assert_int_equal(test_write(&t->from->base, &t->state, id, 3, NULL), 0);
    rf__ckpt_folder(folder, &id);
    assert_int_equal(rf__ckpt_read_manifest(&t->from->base, folder, &t->manifest, NULL), 0);
}

static void trained_end(struct trained *t) {
    rf__ckpt_manifest_free(&t->manifest);
    rf__weights_free(&t->weights);
    rf__generator_destroy(t->generator);
    free(t->tensors);
    t->from->base.ops->destroy(&t->from->base);
}

static const struct rf__gpt2_shape small_shape = {
    .depth = 2, .heads = 2, .width = 4, .context = 3, .vocabulary = 5, .end = RF__GPT2_NO_END};

static void the_shape_of_a_checkpoint(void **state) {
    struct rf__gpt2_shape shape;
    struct rf_error err = {.code = 0};
    struct trained t;
    (void)state;

    trained_begin(&t);
    t.manifest.config = "{\"model\": \"gpt\", \"heads\": 2}";
    assert_int_equal(rf__gpt2_shape_of(&t.manifest, &shape, NULL), 0);
    assert_memory_equal(&shape, &small_shape, sizeof shape);
    t.manifest.config = "{\"model\": \"gpt\", \"heads\": 3}";
    assert_int_equal(rf__gpt2_shape_of(&t.manifest, &shape, &err), RF_ECHECKPOINT);
    assert_non_null(strstr(err.text, "how many heads"));
    t.manifest.config = "{\"model\": \"cnn\", \"heads\": 2}";
    assert_int_equal(rf__gpt2_shape_of(&t.manifest, &shape, &err), RF_EUNSUPPORTED);
    assert_non_null(strstr(err.text, "is of model 'cnn'"));
    trained_end(&t);
}

static void loads_what_was_trained(void **state) {
    struct rf__generator *generator = NULL;
    struct rf__weights weights;
    struct trained t;
    (void)state;

    trained_begin(&t);
    assert_int_equal(rf__generator_create(&small, &generator, NULL), 0);
    assert_int_equal(rf__weights_of_generator(generator, &weights, NULL), 0);
    assert_int_equal(rf__ckpt_load_trained(&t.from->base, &t.manifest, &weights.state, NULL), 0);
    for (int i = 0; i < weights.state.count; i++) {
        assert_memory_equal(weights.state.tensors[i].bytes, t.tensors[i].bytes,
                            t.tensors[i].length);
    }
    rf__weights_free(&weights);
    rf__generator_destroy(generator);
    trained_end(&t);
}

static int export_to(const struct trained *t, struct memory_blobs *to, struct rf_error *err) {
    struct rf__gpt2_export order = {.from = &t->from->base,
                                    .to = &to->base,
                                    .manifest = &t->manifest,
                                    .state = &t->weights.state,
                                    .shape = &small_shape};
    return rf__gpt2_export(&order, NULL, err);
}

/* A folder is there, whole, or it is not; whatever call fails. */
static void exports_are_whole(void **state) {
    struct trained t;
    int code = RF_EIO;
    long k = 0;
    (void)state;

    trained_begin(&t);
    for (; code; k++) {
        struct memory_blobs *to = memory_blobs_create();
        struct rf_error err = {.code = 0};
        memory_fail(to, k, 0, false);
        code = export_to(&t, to, &err);
        assert_int_equal(to->writing_now, 0);
        assert_true((code == 0) == (memory_get(to, "config.json") != NULL));
        assert_true((code == 0) == (memory_get(to, "model.safetensors") != NULL));
        if (code == 0) {
            to->fail_at = -1;
            assert_int_equal(export_to(&t, to, &err), RF_EEXISTS);
            assert_non_null(strstr(err.text, "there is a 'config.json'"));
        }
        to->base.ops->destroy(&to->base);
    }
    assert_true(k > 5);
    trained_end(&t);
}

static void exported_and_read(void **state) {
    struct memory_blobs *to = memory_blobs_create();
    struct rf__generator *generator = NULL;
    struct rf__weights weights;
    struct rf__gpt2_shape shape;
    struct trained t;
    (void)state;

    trained_begin(&t);
    assert_int_equal(export_to(&t, to, NULL), 0);
    const struct blob_file *file = memory_get(to, "config.json");
    assert_int_equal(
        rf__gpt2_shape_parse((const char *)file->bytes, file->length, "c", &shape, NULL), 0);
    assert_memory_equal(&shape, &small_shape, sizeof shape);
    file = memory_get(to, "model.safetensors");
    unsigned char *copy = malloc(file->length);
    size_t length = file->length;
    memcpy(copy, file->bytes, length);
    memory_put(to, "m/model.safetensors", copy, length);
    assert_int_equal(rf__generator_create(&small, &generator, NULL), 0);
    assert_int_equal(rf__weights_of_generator(generator, &weights, NULL), 0);
    assert_int_equal(rf__gpt2_read(&to->base, "m", &weights.state, NULL), 0);
    for (int i = 0; i < weights.state.count; i++) {
        assert_memory_equal(weights.state.tensors[i].bytes, t.tensors[i].bytes,
                            t.tensors[i].length);
    }
    rf__weights_free(&weights);
    rf__generator_destroy(generator);
    to->base.ops->destroy(&to->base);
    trained_end(&t);
}

/* --- vocabularies ----------------------------------------------------------------------------- */

static struct rf__tokenizer *pairs_make(struct small_ranks *ranks) {
    static const char *const words[] = {"he", " t", " the", "in", "ing", "\xC3\xA9", "  ", "    "};
    struct rf__tokenizer *tokenizer = NULL;

    ranks_begin(ranks);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        ranks_add(ranks, words[i], strlen(words[i]));
    }
    assert_int_equal(rf__tokenizer_gpt2(ranks->text, ranks->count, "ranks", &tokenizer, NULL), 0);
    return tokenizer;
}

static void vocabularies_there_and_back(void **state) {
    static struct small_ranks ranks;
    struct rf__tokenizer *tokenizer = pairs_make(&ranks), *again = NULL;
    unsigned char a[RF__TOKEN_BYTES], b[RF__TOKEN_BYTES];
    char *json = NULL, *merges = NULL;
    (void)state;

    assert_int_equal(rf__vocab_texts(tokenizer, &json, &merges, NULL), 0);
    /* The space is the 33rd that cannot be seen, U+0120; the order is that of ranks. */
    assert_string_equal(merges, "#version: 0.2\nh e\n\xC4\xA0 t\n\xC4\xA0t he\ni n\nin g\n"
                                "\xC3\x83 \xC2\xA9\n\xC4\xA0 \xC4\xA0\n\xC4\xA0\xC4\xA0 "
                                "\xC4\xA0\xC4\xA0\n");
    assert_non_null(strstr(json, "\"\xC4\xA0the\":258"));
    assert_non_null(strstr(json, "\"<|endoftext|>\":264"));
    assert_int_equal(rf__vocab_parse(json, strlen(json), merges, strlen(merges), "v", &again, NULL),
                     0);
    assert_int_equal(rf__tokenizer_vocabulary(again), rf__tokenizer_vocabulary(tokenizer));
    for (uint32_t token = 0; token < rf__tokenizer_vocabulary(tokenizer); token++) {
        size_t count = rf__tokenizer_token(tokenizer, token, a);
        assert_int_equal(rf__tokenizer_token(again, token, b), count);
        assert_memory_equal(a, b, count);
    }
    rf__free(json);
    rf__free(merges);
    rf__tokenizer_destroy(again);
    rf__tokenizer_destroy(tokenizer);
}

static void put_old(struct memory_blobs *to, const char *name) {
    unsigned char *old = malloc(3);
    memcpy(old, "old", 3);
    memory_put(to, name, old, 3);
}

/* Both files or none, and none that was there is changed or removed. */
static void vocabularies_are_saved_beside_what_is_there(void **state) {
    static const char *const names[] = {RF__VOCAB_FILE, RF__MERGES_FILE,
                                        RF__VOCAB_OWN "/tokenizer.json"};
    static struct small_ranks ranks;
    struct rf__tokenizer *pairs = pairs_make(&ranks), *bytes = NULL;
    int code = RF_EIO;
    (void)state;

    assert_int_equal(rf__tokenizer_bytes(&bytes, NULL), 0);
    for (size_t i = 0; i < 3; i++) {
        struct memory_blobs *to = memory_blobs_create();
        const struct rf__tokenizer *tokenizer = i < 2 ? pairs : bytes;
        put_old(to, names[i]);
        assert_int_equal(rf__vocab_save(tokenizer, &to->base, NULL), RF_ECONFLICT);
        assert_int_equal(to->count, 1);
        assert_memory_equal(memory_get(to, names[i])->bytes, "old", 3);
        to->base.ops->destroy(&to->base);
    }
    for (long k = 0; code; k++) {
        struct memory_blobs *to = memory_blobs_create();
        put_old(to, names[2]);
        memory_fail(to, k, 0, false);
        code = rf__vocab_save(pairs, &to->base, NULL);
        assert_int_equal(to->count, code ? 1 : 3);
        assert_int_equal(to->writing_now, 0);
        to->fail_at = -1;
        if (!code) {
            rf__vocab_remove(pairs, &to->base);
            assert_int_equal(to->count, 1);
        }
        to->base.ops->destroy(&to->base);
    }
    rf__tokenizer_destroy(bytes);
    rf__tokenizer_destroy(pairs);
}

static void vocabularies_that_are_refused(void **state) {
    static const char swapped[] = "h e\ni n\n\xC4\xA0 t\n";
    static struct small_ranks ranks;
    struct rf__tokenizer *tokenizer = pairs_make(&ranks), *again = NULL;
    char *json = NULL, *merges = NULL;
    struct rf_error err = {.code = 0};
    (void)state;

    assert_int_equal(rf__vocab_texts(tokenizer, &json, &merges, NULL), 0);
    assert_int_equal(
        rf__vocab_parse(json, strlen(json), swapped, strlen(swapped), "v", &again, &err),
        RF_EUNSUPPORTED);
    assert_non_null(strstr(err.text, "not in the order of its numbers"));
    assert_int_equal(rf__vocab_parse(json, strlen(json), "h e\n", 4, "v", &again, &err),
                     RF_EUNSUPPORTED);
    assert_non_null(strstr(err.text, "a line for each of its pairs"));
    char *end = strstr(json, "<|endoftext|>");
    end[2] = 'E';
    assert_int_equal(rf__vocab_parse(json, strlen(json), NULL, 0, "v", &again, &err),
                     RF_EUNSUPPORTED);
    assert_non_null(strstr(err.text, "'v' is not usable"));
    assert_int_equal(rf__vocab_parse("{", 1, NULL, 0, "v", &again, &err), RF_EDATA);
    assert_null(again);
    rf__free(json);
    rf__free(merges);
    rf__tokenizer_destroy(tokenizer);

    /* A word that no pair of its forerunners makes. */
    ranks_begin(&ranks);
    ranks_add(&ranks, "new", 3);
    assert_int_equal(rf__tokenizer_gpt2(ranks.text, ranks.count, "ranks", &tokenizer, NULL), 0);
    assert_int_equal(rf__vocab_texts(tokenizer, &json, &merges, &err), RF_EUNSUPPORTED);
    assert_non_null(strstr(err.text, "token 256 is not made of two"));
    rf__tokenizer_destroy(tokenizer);
}

/* RINGFOLD_R50K names r50k_base.tiktoken, whose merges are those that GPT-2 was released with. */
static void with_its_ranks_they_are_gpt2s(void **state) {
    static const char first[] = "#version: 0.2\n\xC4\xA0 t\n\xC4\xA0 a\nh e\ni n\nr e\no n\n";
    static const char last[] = "\n\xC4\xA0inform ants\n\xC4\xA0g azed\n";
    const char *path = getenv("RINGFOLD_R50K");
    struct rf__tokenizer *tokenizer = NULL, *again = NULL;
    char *json = NULL, *merges = NULL;
    size_t lines = 0;
    (void)state;

    if (!path) {
        print_message("skipped: RINGFOLD_R50K does not name an r50k_base.tiktoken\n");
        skip();
    }
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    unsigned char *ranks = malloc(1 << 21);
    size_t count = fread(ranks, 1, 1 << 21, file);
    fclose(file);
    assert_int_equal(rf__tokenizer_gpt2(ranks, count, path, &tokenizer, NULL), 0);
    free(ranks);
    assert_int_equal(rf__vocab_texts(tokenizer, &json, &merges, NULL), 0);
    for (const char *at = merges; (at = strchr(at, '\n')); at++) {
        lines++;
    }
    assert_int_equal(lines, 50001);
    assert_memory_equal(merges, first, sizeof first - 1);
    assert_string_equal(merges + strlen(merges) - (sizeof last - 1), last);
    assert_int_equal(rf__vocab_parse(json, strlen(json), merges, strlen(merges), "v", &again, NULL),
                     0);
    assert_int_equal(rf__tokenizer_vocabulary(again), 50257);
    rf__free(json);
    rf__free(merges);
    rf__tokenizer_destroy(again);
    rf__tokenizer_destroy(tokenizer);
}

/* --- mutations -------------------------------------------------------------------------------- */

enum { ROUNDS = 4000 };

static size_t mutate(struct rf__rng *rng, unsigned char *bytes, size_t count) {
    static const char likely[] = "0123456789-{}[]\",:.eEF\\ x";

    for (uint64_t i = 1 + rf__rng_below(rng, 3); i > 0 && count > 1; i--) {
        size_t at = rf__rng_below(rng, count);
        size_t piece = 1 + rf__rng_below(rng, count - at < 30 ? count - at : 30);
        switch (rf__rng_below(rng, 5)) {
        case 0:
            bytes[at] ^= (unsigned char)(1u << rf__rng_below(rng, 8));
            break;
        case 1:
            memmove(bytes + at, bytes + at + piece, count - at - piece);
            count -= piece;
            break;
        case 2:
            memmove(bytes + at, bytes + rf__rng_below(rng, count - piece + 1), piece);
            break;
        case 3:
            bytes[at] = (unsigned char)likely[rf__rng_below(rng, sizeof likely - 1)];
            break;
        default:
            count = rf__rng_below(rng, 8) ? count : at;
            break;
        }
    }
    return count;
}

static void drive(const void *good, size_t count, int rounds, uint64_t seed) {
    struct rf__rng rng = rf__rng(seed, 5, 6);

    (void)fuzz_gpt2(good, count);
    for (int i = 0; i < rounds; i++) {
        unsigned char *changed = malloc(count + 1);
        memcpy(changed, good, count);
        size_t length = mutate(&rng, changed, count);
        unsigned char *exact = malloc(length ? length : 1);
        memcpy(exact, changed, length);
        (void)fuzz_gpt2(exact, length);
        free(exact);
        free(changed);
    }
}

static void everything_survives_anything(void **state) {
    static struct small_ranks ranks;
    static const char tiny[] =
        "{\"model_type\": \"gpt2\", \"n_layer\": 1, \"n_head\": 1, \"n_embd\": 2, "
        "\"n_positions\": 2, \"vocab_size\": 3, \"n_inner\": null, \"eos_token_id\": 2, "
        "\"scale_attn_weights\": true, \"layer_norm_epsilon\": 1e-5}";
    struct rf__gpt_options sizes = {
        .depth = 1, .width = 2, .heads = 1, .context = 2, .vocabulary = 3};
    struct rf__tokenizer *tokenizer = pairs_make(&ranks);
    struct file file;
    char *json = NULL, *merges = NULL;
    size_t bytes = 0;
    (void)state;

    drive(tiny, strlen(tiny), ROUNDS, 1);
    file_begin(&file, "transformer.", RF_BF16);
    rf__weights_free(&file.weights);
    assert_int_equal(rf__weights_described(&sizes, &file.weights, NULL), 0);
    file.count = file.weights.state.count;
    for (int i = 0; i < file.count; i++) {
        const struct rf__ckpt_tensor *tensor = &file.weights.state.tensors[i];
        snprintf(file.entries[i].name, sizeof file.entries[i].name, "%s", tensor->name);
        file.entries[i].dims = tensor->dims;
        memcpy(file.entries[i].shape, tensor->shape, sizeof tensor->shape);
    }
    file_add(&file, "lm_head.weight", 0);
    unsigned char *all = file_bytes(&file, -1, &bytes);
    drive(all, bytes, ROUNDS, 2);
    free(all);
    file_end(&file);
    assert_int_equal(rf__vocab_texts(tokenizer, &json, &merges, NULL), 0);
    drive(json, strlen(json), ROUNDS / 4, 3);
    rf__free(json);
    rf__free(merges);
    rf__tokenizer_destroy(tokenizer);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_released_configuration),
        cmocka_unit_test(configurations_that_are_refused),
        cmocka_unit_test(a_configuration_there_and_back),
        cmocka_unit_test(every_type_and_prefix),
        cmocka_unit_test(weights_that_are_refused),
        cmocka_unit_test(files_that_are_cut_or_gone),
        cmocka_unit_test(reads_and_memory_fail),
        cmocka_unit_test(sizes_are_held_against_the_weights),
        cmocka_unit_test(the_shape_of_a_checkpoint),
        cmocka_unit_test(loads_what_was_trained),
        cmocka_unit_test(exports_are_whole),
        cmocka_unit_test(exported_and_read),
        cmocka_unit_test(vocabularies_there_and_back),
        cmocka_unit_test(vocabularies_are_saved_beside_what_is_there),
        cmocka_unit_test(vocabularies_that_are_refused),
        cmocka_unit_test(with_its_ranks_they_are_gpt2s),
        cmocka_unit_test(everything_survives_anything),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
