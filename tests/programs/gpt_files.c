/* Files of gpt models, without training.
 *
 *   gpt_files checkpoint FOLDER DEPTH HEADS WIDTH CONTEXT VOCABULARY SEED [DATA]
 *     Writes a checkpoint of random weights, biases and gains among them, in three parts, as a
 *     training on the folder DATA would.
 *
 *   gpt_files loss FOLDER TOKENS COUNT
 *     Fills a model from a folder in Hugging Face's form and prints its mean loss over COUNT
 *     samples of the file TOKENS: 32-bit numbers, context + 1 a sample. */
#include "base/digest.h"
#include "base/mem.h"
#include "ckpt/checkpoint.h"
#include "os/file.h"
#include "train/weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PARTS = 3, OPTIMIZER_BYTES = 1000 };

static int complain(const struct rf_error *err) {
    fprintf(stderr, "gpt_files: %s\n", err->text);
    return 1;
}

static struct rf__model *model_of(const struct rf__gpt_options *gpt, int batch, uint64_t seed,
                                  struct rf_error *err) {
    struct rf__model_options options = {.name = "gpt", .batch = batch, .seed = seed, .gpt = *gpt};
    struct rf__model *model = NULL;
    return rf__model_create(&options, &model, err) ? NULL : model;
}

/* Every number a little off, so that none of them can be left out unseen. */
static void disturb(const struct rf__model *model, uint64_t seed) {
    struct rf__rng rng = rf__rng(seed, 1, 2);
    for (int i = 0; i < rf__model_tensors(model); i++) {
        const struct rf__tensor *tensor = rf__model_tensor(model, i);
        for (size_t k = 0; k < tensor->count; k++) {
            tensor->data[k] += 0.05f * rf__rng_normal(&rng);
        }
    }
}

static int write_checkpoint(const char *folder, struct rf__ckpt_state *state, const char *config,
                            uint64_t seed, struct rf_error *err) {
    struct rf__ckpt_part parts[PARTS];
    struct rf__ckpt_manifest manifest = {.id = {.step = 7, .chain = rf__digest_mix(seed, 7)},
                                         .job = "made",
                                         .units = 7,
                                         .generation = 1,
                                         .samples = 7,
                                         .time_s = 1790000000,
                                         .config = config,
                                         .state = *state,
                                         .parts = parts,
                                         .part_count = PARTS};
    struct rf__blobs *blobs = NULL;
    int code = rf__file_blobs_create(folder, NULL, &blobs, err);
    for (int i = 0; i < PARTS && !code; i++) {
        void *staged = malloc(rf__ckpt_part_bytes(state, i, PARTS) + 1);
        if (!staged) {
            return RF_ENOMEM;
        }
        rf__ckpt_stage(state, i, PARTS, staged);
        code = rf__ckpt_write_part(blobs, state, &manifest.id, i, PARTS, staged, &parts[i], err);
        free(staged);
    }
    code = code ? code : rf__ckpt_write_manifest(blobs, &manifest, err);
    if (blobs) {
        blobs->ops->destroy(blobs);
    }
    return code;
}

static int checkpoint(char **a, const char *data) {
    static unsigned char optimizer[OPTIMIZER_BYTES];
    struct rf__gpt_options gpt = {.depth = atoi(a[1]),
                                  .heads = atoi(a[2]),
                                  .width = atoi(a[3]),
                                  .context = atoi(a[4]),
                                  .vocabulary = atoi(a[5])};
    uint64_t seed = strtoull(a[6], NULL, 10);
    struct rf_error err = {.code = 0};
    struct rf__weights weights = {.owned = NULL};
    char config[2048];

    struct rf__model *model = model_of(&gpt, 1, seed, &err);
    if (!model || rf__weights_of_model(model, &weights, &err)) {
        return complain(&err);
    }
    disturb(model, seed);
    int count = weights.state.count;
    struct rf__ckpt_tensor *all = calloc((size_t)count + 1, sizeof *all);
    if (!all) {
        return 1;
    }
    memcpy(all, weights.state.tensors, (size_t)count * sizeof *all);
    all[count] = (struct rf__ckpt_tensor){.name = "optimizer",
                                          .type = RF_U8,
                                          .dims = 1,
                                          .shape = {OPTIMIZER_BYTES},
                                          .bytes = optimizer,
                                          .length = OPTIMIZER_BYTES};
    snprintf(config, sizeof config,
             "{\"model\": \"gpt\", \"data\": \"%s\", \"depth\": %d, \"heads\": %d, \"width\": %d, "
             "\"context\": %d, \"vocabulary\": %d}",
             data, gpt.depth, gpt.heads, gpt.width, gpt.context, gpt.vocabulary);
    struct rf__ckpt_state state = {.tensors = all, .count = count + 1};
    int code = write_checkpoint(a[0], &state, config, seed, &err);
    free(all);
    rf__weights_free(&weights);
    rf__model_destroy(model);
    return code ? complain(&err) : 0;
}

static int loss(const char *folder, const char *path, int count) {
    struct rf__gpt_options gpt;
    struct rf_error err = {.code = 0};
    double sum = 0;

    if (rf__weights_folder(&rf__file_blobs, folder, &gpt, &err)) {
        return complain(&err);
    }
    struct rf__model *model = model_of(&gpt, count, 99, &err);
    if (!model || rf__weights_read(&rf__file_blobs, folder, &gpt, model, &err)) {
        return complain(&err);
    }
    size_t wanted = (size_t)count * ((size_t)gpt.context + 1);
    uint32_t *tokens = calloc(wanted, sizeof *tokens);
    FILE *file = fopen(path, "rb");
    if (!tokens || !file || fread(tokens, sizeof *tokens, wanted, file) != wanted) {
        fprintf(stderr, "gpt_files: '%s' does not have %zu tokens\n", path, wanted);
        return 1;
    }
    fclose(file);
    struct rf__token_batch batch = {.tokens = tokens, .count = count};
    int code = rf__model_pass(model, &batch, NULL, &sum, NULL, &err);
    printf("%.9g\n", sum / ((double)count * gpt.context));
    free(tokens);
    rf__model_destroy(model);
    return code ? complain(&err) : 0;
}

int main(int argc, char **argv) {
    if ((argc == 9 || argc == 10) && !strcmp(argv[1], "checkpoint")) {
        return checkpoint(argv + 2, argc == 10 ? argv[9] : "");
    }
    if (argc == 5 && !strcmp(argv[1], "loss")) {
        return loss(argv[2], argv[3], atoi(argv[4]));
    }
    fprintf(stderr, "usage: gpt_files checkpoint FOLDER DEPTH HEADS WIDTH CONTEXT VOCABULARY SEED "
                    "[DATA]\n       gpt_files loss FOLDER TOKENS COUNT\n");
    return 64;
}
