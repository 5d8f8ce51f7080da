/* The gpt model by itself, without workers: how fast a step is, and what it computes.
 *
 *   nn_gpt speed DEPTH HEADS WIDTH CONTEXT BATCH VOCABULARY STEPS [f32|bf16]
 *     Tokens a second of forward, backward and AdamW on random tokens (the median step), and what
 *     share that is of the rate of this processor's single-precision matrix product, a 1024 x 1024
 *     x 1024 one before each step (the median share): a step counts 6 x parameters x tokens, wpe
 * excepted, plus 6 x depth x width x context x tokens for attention (causal: half of the square).
 * Time is the processor's, of this thread, so that it means something on a machine that is not
 * idle; for one thread: OMP_NUM_THREADS=1.
 *
 *   nn_gpt dump DEPTH HEADS WIDTH CONTEXT BATCH VOCABULARY FILE [f32|bf16]
 *     Writes parameters, a batch, its loss and all gradients, for another program to compare: lines
 *     "NAME KIND COUNT SHAPE…", each followed by its numbers, little-endian. */
#include "base/mem.h"
#include "base/rng.h"
#include "nn/nn.h"

#include <oneapi/dnnl/dnnl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct run {
    struct rf__model_options options;
    struct rf__model *model;
    struct rf__optimizer *optimizer;
    uint32_t *tokens;
    size_t token_count;
    float **gradients;
};

static double cpu_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void must(int rc, const struct rf_error *err) {
    if (rc) {
        fprintf(stderr, "nn_gpt: %s\n", err->text);
        exit(1);
    }
}

static void *need(void *memory) {
    if (!memory) {
        fprintf(stderr, "nn_gpt: no memory\n");
        exit(1);
    }
    return memory;
}

static float *grad(void *context, int index, bool *fresh) {
    if (fresh) {
        *fresh = false;
    }
    return ((struct run *)context)->gradients[index];
}

static const float *grad_read(void *context, int index) {
    return ((struct run *)context)->gradients[index];
}

static int ready(void *context, int index) {
    (void)context;
    (void)index;
    return 0;
}

static void run_open(struct run *r, char **a, bool bf16) {
    struct rf_error err = {0};
    struct rf__rng rng = rf__rng(7, 0, 0);
    r->options =
        (struct rf__model_options){.name = "gpt",
                                   .batch = atoi(a[4]),
                                   .seed = 1,
                                   .gpt = {.depth = atoi(a[0]),
                                           .heads = atoi(a[1]),
                                           .width = atoi(a[2]),
                                           .context = atoi(a[3]),
                                           .vocabulary = atoi(a[5]),
                                           .compute = bf16 ? RF__COMPUTE_BF16 : RF__COMPUTE_F32}};
    struct rf__optimizer_options adamw = {.name = "adamw", .weight_decay = 0.1};
    must(rf__model_create(&r->options, &r->model, &err), &err);
    must(rf__optimizer_create(&adamw, r->model, &r->optimizer, &err), &err);
    r->token_count = (size_t)r->options.batch * (size_t)(r->options.gpt.context + 1);
    r->tokens = need(rf__alloc(r->token_count, sizeof *r->tokens));
    for (size_t i = 0; i < r->token_count; i++) {
        r->tokens[i] = (uint32_t)rf__rng_below(&rng, (uint64_t)r->options.gpt.vocabulary);
    }
    int tensors = rf__model_tensors(r->model);
    r->gradients = need(rf__alloc((size_t)tensors, sizeof *r->gradients));
    for (int i = 0; i < tensors; i++) {
        r->gradients[i] =
            need(rf__alloc_aligned(rf__model_tensor(r->model, i)->count * sizeof(float)));
    }
}

static void run_close(struct run *r) {
    for (int i = 0; i < rf__model_tensors(r->model); i++) {
        rf__free(r->gradients[i]);
    }
    rf__free(r->gradients);
    rf__free(r->tokens);
    rf__optimizer_destroy(r->optimizer);
    rf__model_destroy(r->model);
}

static double pass(struct run *r) {
    struct rf_error err = {0};
    struct rf__token_batch batch = {.tokens = r->tokens, .count = r->options.batch};
    struct rf__model_sink sink = {.grad = grad, .ready = ready, .context = r};
    double loss;
    must(rf__model_pass(r->model, &batch, &sink, &loss, NULL, &err), &err);
    return loss;
}

enum { SIDE = 1024, MAX_STEPS = 10000 };

/* The rate of one large product, in operations a second: the better of two. */
static double product_rate(const float *a, const float *b, float *c) {
    double best = 0;
    for (int i = 0; i < 2; i++) {
        double began = cpu_seconds();
        if (dnnl_sgemm('N', 'N', SIDE, SIDE, SIDE, 1.0f, a, SIDE, b, SIDE, 0.0f, c, SIDE)) {
            fprintf(stderr, "nn_gpt: the matrix product failed\n");
            exit(1);
        }
        double rate = 2.0 * SIDE * SIDE * SIDE / (cpu_seconds() - began);
        best = rate > best ? rate : best;
    }
    return best;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *x, int count) {
    qsort(x, (size_t)count, sizeof *x, ascending);
    return x[count / 2];
}

static double step(struct run *r, int number) {
    double tokens = (double)r->options.batch * r->options.gpt.context;
    for (int k = 0; k < rf__model_tensors(r->model); k++) {
        memset(r->gradients[k], 0, rf__model_tensor(r->model, k)->count * sizeof(float));
    }
    pass(r);
    double began = cpu_seconds();
    rf__optimizer_update(r->optimizer, r->model, grad_read, r, 1e-3, 1 / tokens,
                         (uint64_t)number + 1);
    return cpu_seconds() - began;
}

static void speed(struct run *r, int steps) {
    const struct rf__gpt_options *o = &r->options.gpt;
    double tokens = (double)r->options.batch * o->context;
    double matrices = (double)rf__model_parameters(r->model) - (double)o->context * o->width;
    double work = 6 * matrices * tokens + 6.0 * o->depth * (double)o->width * o->context * tokens;
    static double seconds[MAX_STEPS], updates[MAX_STEPS], rates[MAX_STEPS], shares[MAX_STEPS];
    float *square[3];
    steps = steps < 1 ? 1 : steps > MAX_STEPS ? MAX_STEPS : steps;
    for (int i = 0; i < 3; i++) {
        square[i] = need(rf__alloc_aligned(sizeof(float) * SIDE * SIDE));
        for (int k = 0; k < SIDE * SIDE; k++) {
            square[i][k] = (float)(k % 7);
        }
    }
    step(r, 0);
    for (int i = 0; i < steps; i++) {
        rates[i] = product_rate(square[0], square[1], square[2]);
        double began = cpu_seconds();
        updates[i] = step(r, i + 1);
        seconds[i] = cpu_seconds() - began;
        shares[i] = 100 * work / seconds[i] / rates[i];
    }
    double typical = median(seconds, steps);
    printf("%.0f tokens/s (best %.0f), %.2f ms a step (AdamW %.2f), %.1f GFLOP/s, %.1f%% of "
           "sgemm's %.1f, %zu parameters, %.1f MiB of activations, %s\n",
           tokens / typical, tokens / seconds[0], typical * 1e3, median(updates, steps) * 1e3,
           work / typical * 1e-9, median(shares, steps), median(rates, steps) * 1e-9,
           rf__model_parameters(r->model), (double)rf__model_activation_bytes(r->model) / 1048576,
           rf__model_compute());
    for (int i = 0; i < 3; i++) {
        rf__free(square[i]);
    }
}

static void section(FILE *out, const char *name, const char *kind, const void *data, size_t count,
                    size_t each, const struct rf__tensor *tensor) {
    fprintf(out, "%s %s %zu", name, kind, count);
    for (int i = 0; tensor && i < tensor->dims; i++) {
        fprintf(out, " %zu", tensor->shape[i]);
    }
    fputc('\n', out);
    fwrite(data, each, count, out);
}

static void dump(struct run *r, const char *path) {
    FILE *out = need(fopen(path, "wb"));
    double loss = pass(r);
    section(out, "tokens", "int", r->tokens, r->token_count, sizeof *r->tokens, NULL);
    section(out, "loss", "double", &loss, 1, sizeof loss, NULL);
    for (int i = 0; i < rf__model_tensors(r->model); i++) {
        const struct rf__tensor *t = rf__model_tensor(r->model, i);
        section(out, t->name, "weight", t->data, t->count, sizeof(float), t);
        section(out, t->name, "gradient", r->gradients[i], t->count, sizeof(float), t);
    }
    if (fclose(out)) {
        fprintf(stderr, "nn_gpt: cannot write '%s'\n", path);
        exit(1);
    }
}

int main(int argc, char **argv) {
    struct run r = {0};
    if (argc < 9 || (strcmp(argv[1], "speed") && strcmp(argv[1], "dump"))) {
        fprintf(stderr, "usage: nn_gpt speed|dump DEPTH HEADS WIDTH CONTEXT BATCH VOCABULARY "
                        "STEPS|FILE [f32|bf16]\n");
        return 2;
    }
    run_open(&r, argv + 2, argc > 9 && !strcmp(argv[9], "bf16"));
    if (!strcmp(argv[1], "speed")) {
        speed(&r, atoi(argv[8]));
    } else {
        dump(&r, argv[8]);
    }
    run_close(&r);
    return 0;
}
