/* Fuzz target: bytes as a config.json, as a model.safetensors of a small gpt, and as a vocab.json.
 * What is accepted is what the next in line can take: sizes from 1 whose heads divide the width, a
 * tokenizer whose tokens are all there and can be told again. Compiled alone for a fuzzer, included
 * by tests/unit/test_gpt2.c under another name. */
#include "base/assert.h"
#include "base/mem.h"
#include "data/vocab.h"
#include "support/memory_blobs.h"
#include "train/weights.h"

#ifndef FUZZ_GPT2
#define FUZZ_GPT2 LLVMFuzzerTestOneInput
#endif

int FUZZ_GPT2(const uint8_t *bytes, size_t count);

static void as_config(const uint8_t *bytes, size_t count) {
    struct rf__gpt2_shape shape = {0}, again = {0};

    int code = rf__gpt2_shape_parse((const char *)bytes, count, "fuzzed", &shape, NULL);
    RF_ASSERT(code == 0 || code == RF_EDATA || code == RF_EUNSUPPORTED);
    if (code == 0) {
        RF_ASSERT(shape.depth > 0 && shape.heads > 0 && shape.width % shape.heads == 0 &&
                  shape.context > 0 && shape.vocabulary > 0 && shape.end < shape.vocabulary);
        char *text = rf__gpt2_shape_text(&shape);
        RF_ASSERT(text && !rf__gpt2_shape_parse(text, strlen(text), "written", &again, NULL));
        RF_ASSERT(!memcmp(&shape, &again, sizeof shape));
        free(text);
    }
}

static void as_weights(const uint8_t *bytes, size_t count) {
    static const struct rf__gpt_options sizes = {
        .depth = 1, .width = 2, .heads = 1, .context = 2, .vocabulary = 3};
    struct memory_blobs *blobs = memory_blobs_create();
    struct rf__generator *generator = NULL;
    struct rf__weights weights;
    unsigned char *copy = malloc(count + 1);

    RF_ASSERT(copy && !rf__generator_create(&sizes, &generator, NULL));
    RF_ASSERT(!rf__weights_of_generator(generator, &weights, NULL));
    memcpy(copy, bytes, count);
    memory_put(blobs, "m/" RF__GPT2_WEIGHTS, copy, count);
    int code = rf__gpt2_read(&blobs->base, "m", &weights.state, NULL);
    RF_ASSERT(code == 0 || code == RF_EDATA || code == RF_EUNSUPPORTED);
    rf__weights_free(&weights);
    rf__generator_destroy(generator);
    blobs->base.ops->destroy(&blobs->base);
}

static void as_vocabulary(const uint8_t *bytes, size_t count) {
    struct rf__tokenizer *tokenizer = NULL, *again = NULL;
    char *json = NULL, *merges = NULL;

    int code = rf__vocab_parse((const char *)bytes, count, NULL, 0, "fuzzed", &tokenizer, NULL);
    RF_ASSERT(code == 0 || code == RF_EDATA || code == RF_EUNSUPPORTED);
    if (code == 0 && !rf__vocab_texts(tokenizer, &json, &merges, NULL)) {
        RF_ASSERT(
            !rf__vocab_parse(json, strlen(json), merges, strlen(merges), "written", &again, NULL));
        RF_ASSERT(rf__tokenizer_vocabulary(again) == rf__tokenizer_vocabulary(tokenizer));
        rf__tokenizer_destroy(again);
    }
    rf__free(json);
    rf__free(merges);
    rf__tokenizer_destroy(tokenizer);
}

int FUZZ_GPT2(const uint8_t *bytes, size_t count) {
    as_config(bytes, count);
    as_weights(bytes, count);
    as_vocabulary(bytes, count);
    return 0;
}
