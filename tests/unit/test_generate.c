/* Generation beside training: what the model's loss says of a text is what generation says, token
 * by token, however the text is cut and whatever slid out of the window; and draws. */
#include "base/mem.h"
#include "train/weights.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const struct rf__gpt_options sizes = {
    .depth = 3, .width = 42, .heads = 3, .context = 150, .vocabulary = 77};

enum { CONTEXT = 150, VOCABULARY = 77, TOKENS = 400 };

/* A model with every number disturbed, a generator of the same weights, and a text. */
struct pair {
    struct rf__model *model;
    struct rf__generator *generator;
    uint32_t tokens[TOKENS];
};

static int setup(void **state) {
    struct pair *pair = test_calloc(1, sizeof *pair);
    struct rf__model_options options = {.name = "gpt", .batch = 1, .seed = 5, .gpt = sizes};
    struct rf__rng rng = rf__rng(3, 1, 4);

    assert_int_equal(rf__model_create(&options, &pair->model, NULL), 0);
    assert_int_equal(rf__generator_create(&sizes, &pair->generator, NULL), 0);
    assert_int_equal(rf__generator_tensors(pair->generator), rf__model_tensors(pair->model));
    uint64_t parameters = 0;
    assert_int_equal(rf__generator_parameters(&sizes, &parameters, NULL), 0);
    assert_int_equal(parameters, rf__model_parameters(pair->model));
    for (int i = 0; i < rf__model_tensors(pair->model); i++) {
        const struct rf__tensor *t = rf__model_tensor(pair->model, i);
        const struct rf__tensor *g = rf__generator_tensor(pair->generator, i);
        assert_string_equal(t->name, g->name);
        for (size_t k = 0; k < t->count; k++) {
            t->data[k] += 0.1f * rf__rng_normal(&rng);
        }
        memcpy(g->data, t->data, t->count * sizeof *t->data);
    }
    for (int i = 0; i < TOKENS; i++) {
        pair->tokens[i] = (uint32_t)rf__rng_below(&rng, VOCABULARY);
    }
    *state = pair;
    return 0;
}

static int teardown(void **state) {
    struct pair *pair = *state;
    rf__model_destroy(pair->model);
    rf__generator_destroy(pair->generator);
    test_free(pair);
    return 0;
}

static double loss_of(const float *logits, uint32_t label) {
    double sum = 0;
    for (size_t i = 0; i < VOCABULARY; i++) {
        sum += exp(logits[i]);
    }
    return log(sum) - logits[label];
}

static void feed(struct rf__generator *g, const uint32_t *tokens, size_t count,
                 float out[VOCABULARY]) {
    const float *logits = NULL;
    assert_int_equal(rf__generator_feed(g, tokens, count, &logits, NULL), 0);
    memcpy(out, logits, VOCABULARY * sizeof *out);
}

static void assert_near(const float *a, const float *b) {
    for (int i = 0; i < VOCABULARY; i++) {
        assert_true(fabsf(a[i] - b[i]) < 1e-3f * (1 + fabsf(a[i])));
    }
}

static void as_the_loss_of_training(void **state) {
    struct pair *pair = *state;
    struct rf__token_batch batch = {.tokens = pair->tokens, .count = 1};
    float logits[VOCABULARY];
    double expected = 0, sum = 0;

    assert_int_equal(rf__model_pass(pair->model, &batch, NULL, &expected, NULL, NULL), 0);
    for (int i = 0; i < CONTEXT; i++) {
        feed(pair->generator, &pair->tokens[i], 1, logits);
        sum += loss_of(logits, pair->tokens[i + 1]);
    }
    assert_true(fabs(sum - expected) < 1e-4 * expected);
}

static void cuts_do_not_matter(void **state) {
    static const size_t cuts[] = {1, 7, 64, 127, 128, 129, 140};
    struct pair *pair = *state;
    float whole[VOCABULARY], cut[VOCABULARY];

    feed(pair->generator, pair->tokens, 145, whole);
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        rf__generator_reset(pair->generator);
        feed(pair->generator, pair->tokens, cuts[i], cut);
        feed(pair->generator, pair->tokens + cuts[i], 145 - cuts[i], cut);
        assert_near(whole, cut);
    }
}

/* A full window goes on from its newest half; a long prompt from as much as fits. */
static void windows_slide(void **state) {
    struct pair *pair = *state;
    float slid[VOCABULARY], fresh[VOCABULARY];

    feed(pair->generator, pair->tokens, CONTEXT, slid);
    feed(pair->generator, pair->tokens + CONTEXT, 1, slid);
    rf__generator_reset(pair->generator);
    feed(pair->generator, pair->tokens + CONTEXT + 1 - CONTEXT / 2, CONTEXT / 2, fresh);
    assert_near(slid, fresh);
    for (int i = CONTEXT + 1; i < TOKENS; i++) { /* and on, several windows long */
        feed(pair->generator, &pair->tokens[i], 1, slid);
    }
    rf__generator_reset(pair->generator);
    feed(pair->generator, pair->tokens, TOKENS, slid);
    rf__generator_reset(pair->generator);
    feed(pair->generator, pair->tokens + TOKENS - CONTEXT, CONTEXT, fresh);
    assert_near(slid, fresh);
}

static void smallest_context(void **state) {
    static const struct rf__gpt_options small = {
        .depth = 1, .width = 4, .heads = 2, .context = 1, .vocabulary = 3};
    struct rf__generator *g = NULL;
    const uint32_t tokens[] = {2, 0, 1};
    const float *logits = NULL;
    (void)state;

    assert_int_equal(rf__generator_create(&small, &g, NULL), 0);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(rf__generator_feed(g, &tokens[i], 1, &logits, NULL), 0);
    }
    assert_int_equal(rf__generator_feed(g, tokens, 3, &logits, NULL), 0);
    rf__generator_destroy(g);
}

static void strange_tokens_are_refused(void **state) {
    struct pair *pair = *state;
    const uint32_t tokens[] = {1, VOCABULARY, 2};
    const float *logits = NULL;
    float before[VOCABULARY], after[VOCABULARY];
    struct rf_error err = {.code = 0};

    feed(pair->generator, pair->tokens, 9, before);
    assert_int_equal(rf__generator_feed(pair->generator, tokens, 3, &logits, &err), RF_EDATA);
    assert_non_null(strstr(err.text, "token 77 at position 1"));
    rf__generator_reset(pair->generator);
    feed(pair->generator, pair->tokens, 9, after);
    assert_memory_equal(before, after, sizeof before);
}

static void sizes_are_checked(void **state) {
    struct rf__gpt_options wrong = sizes;
    struct rf__generator *g = NULL;
    struct rf_error err = {.code = 0};
    (void)state;

    wrong.heads = 4;
    assert_int_equal(rf__generator_create(&wrong, &g, &err), RF_EINVAL);
    assert_non_null(strstr(err.text, "cannot be divided among 4 heads"));
    wrong = sizes;
    wrong.depth = 0;
    assert_int_equal(rf__generator_create(&wrong, &g, &err), RF_EINVAL);
    assert_non_null(strstr(err.text, "depth must be 1"));
    assert_null(g);
}

static void memory_runs_out(void **state) {
    struct rf__generator *g = NULL;
    long k = 0;
    (void)state;

    for (int code = RF_ENOMEM; code; k++) {
        rf__alloc_fail_after(k);
        code = rf__generator_create(&sizes, &g, NULL);
        rf__alloc_fail_after(-1);
        assert_true(code == RF_ENOMEM || code == 0);
        assert_true((code == 0) == (g != NULL));
    }
    assert_true(k > 10);
    rf__generator_destroy(g);
}

/* --- draws --- */

enum { FEW = 6, DRAWS = 20000 };

static void draw_many(const struct rf__draw *draw, const float *logits, int counts[FEW]) {
    memset(counts, 0, FEW * sizeof *counts);
    for (uint64_t i = 0; i < DRAWS; i++) {
        struct rf__rng rng = rf__rng(9, i, 0);
        int64_t token = rf__draw(draw, logits, FEW, &rng);
        assert_true(token >= 0 && token < FEW);
        counts[token]++;
    }
}

static void draws_follow_the_softmax(void **state) {
    const float logits[FEW] = {1, 3, -2, 3, 0, 2};
    static const double temperatures[] = {0.5, 1, 2};
    (void)state;

    for (size_t t = 0; t < 3; t++) {
        struct rf__draw draw = {.temperature = temperatures[t]};
        double sum = 0;
        int counts[FEW];
        for (int i = 0; i < FEW; i++) {
            sum += exp(logits[i] / temperatures[t]);
        }
        draw_many(&draw, logits, counts);
        for (int i = 0; i < FEW; i++) {
            double share = exp(logits[i] / temperatures[t]) / sum;
            double deviation = sqrt(DRAWS * share * (1 - share));
            assert_true(fabs(counts[i] - DRAWS * share) < 5 * deviation);
        }
    }
}

static void only_the_likeliest(void **state) {
    const float logits[FEW] = {1, 3, -2, 3, 0, 2};
    uint32_t room[FEW];
    int counts[FEW];
    (void)state;

    draw_many(&(struct rf__draw){.temperature = 5, .top_k = 3, .room = room}, logits, counts);
    assert_true(counts[1] && counts[3] && counts[5] && !counts[0] && !counts[2] && !counts[4]);
    draw_many(&(struct rf__draw){.temperature = 5, .top_k = 1, .room = room}, logits, counts);
    assert_int_equal(counts[1], DRAWS); /* of equals the first */
    draw_many(&(struct rf__draw){.temperature = 0}, logits, counts);
    assert_int_equal(counts[1], DRAWS);
}

/* Against a sort, for all sizes. */
static void the_kept_are_the_largest(void **state) {
    enum { MANY = 50 };
    struct rf__rng rng = rf__rng(1, 2, 3);
    float logits[MANY];
    (void)state;

    for (int round = 0; round < 300; round++) {
        uint32_t room[MANY];
        for (int i = 0; i < MANY; i++) {
            logits[i] = (float)rf__rng_below(&rng, 20); /* many equals */
        }
        size_t k = 1 + rf__rng_below(&rng, MANY - 1);
        struct rf__draw draw = {.temperature = 1, .top_k = k, .room = room};
        assert_true(rf__draw(&draw, logits, MANY, &rng) >= 0);
        for (uint32_t i = 0; i < MANY; i++) {
            size_t better = 0, found = 0;
            for (uint32_t j = 0; j < MANY; j++) {
                better += logits[j] > logits[i] || (logits[j] == logits[i] && j < i);
            }
            for (size_t j = 0; j < k; j++) {
                found += room[j] == i;
            }
            assert_int_equal(found, better < k ? 1 : 0);
        }
    }
}

static void no_numbers_no_token(void **state) {
    float logits[FEW] = {1, 2, 3, 4, 5, 6};
    struct rf__draw draw = {.temperature = 1};
    struct rf__rng rng = rf__rng(1, 2, 3);
    (void)state;

    logits[4] = NAN;
    assert_int_equal(rf__draw(&draw, logits, FEW, &rng), -1);
    logits[4] = INFINITY;
    assert_int_equal(rf__draw(&draw, logits, FEW, &rng), -1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(as_the_loss_of_training, setup, teardown),
        cmocka_unit_test_setup_teardown(cuts_do_not_matter, setup, teardown),
        cmocka_unit_test_setup_teardown(windows_slide, setup, teardown),
        cmocka_unit_test_setup_teardown(strange_tokens_are_refused, setup, teardown),
        cmocka_unit_test(smallest_context),
        cmocka_unit_test(sizes_are_checked),
        cmocka_unit_test(memory_runs_out),
        cmocka_unit_test(draws_follow_the_softmax),
        cmocka_unit_test(only_the_likeliest),
        cmocka_unit_test(the_kept_are_the_largest),
        cmocka_unit_test(no_numbers_no_token),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
