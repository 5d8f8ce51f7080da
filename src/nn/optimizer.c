/* Optimizers, and the arithmetic around them.
 *
 * Every worker must arrive at the same bits from the same gradients, on whatever machine: only
 * operations that IEEE 754 rounds exactly are used (+ - x / sqrt), in a fixed order, and none of
 * the C library's functions.
 *
 * SGD with momentum: v = momentum v + g; w = w - rate v (Polyak 1964; Sutskever et al. 2013).
 * AdamW: Loshchilov and Hutter 2019, algorithm 2. Decay is decoupled for both: w = w - rate decay
 * w. */
#include "nn/nn.h"

#include "base/assert.h"
#include "base/mem.h"
#include "base/status.h"

#include <math.h>
#include <string.h>

enum rule { SGD, ADAMW };

struct rf__optimizer {
    enum rule rule;
    struct rf__optimizer_options options;
    float *state; /* SGD: v; AdamW: m of all tensors, then v of all tensors */
    size_t count; /* elements of the model */
};

int rf__optimizer_create(const struct rf__optimizer_options *options, const struct rf__model *model,
                         struct rf__optimizer **out, struct rf_error *err) {
    const char *name = options->name ? options->name : "";
    struct rf__optimizer *optimizer = NULL;
    enum rule rule = strcmp(name, "adamw") ? SGD : ADAMW;
    int rc = 0;

    *out = NULL;
    if (rule == SGD && strcmp(name, "sgd")) {
        return rf__fail(err, RF_EINVAL, 0, "there is no optimizer '%s'; there are: sgd, adamw",
                        name);
    }
    optimizer = rf__alloc(1, sizeof *optimizer);
    if (!optimizer) {
        rc = rf__fail(err, RF_ENOMEM, 0, "no memory for an optimizer");
        goto out;
    }
    optimizer->rule = rule;
    optimizer->options = *options;
    optimizer->options.name = NULL; /* borrowed */
    if (rule == ADAMW) {
        struct rf__optimizer_options *o = &optimizer->options;
        o->beta1 = o->beta1 > 0 ? o->beta1 : 0.9;
        o->beta2 = o->beta2 > 0 ? o->beta2 : 0.999;
        o->epsilon = o->epsilon > 0 ? o->epsilon : 1e-8;
    }
    optimizer->count = rf__model_parameters(model);
    void *state = NULL;
    size_t bytes;
    rf__optimizer_state(optimizer, &state, &bytes);
    optimizer->state = rf__alloc_aligned(bytes);
    if (!optimizer->state) {
        rc = rf__fail(err, RF_ENOMEM, 0, "no memory for %zu bytes of optimizer state", bytes);
        goto out;
    }
    *out = optimizer;
    optimizer = NULL;
out:
    rf__optimizer_destroy(optimizer);
    return rc;
}

void rf__optimizer_destroy(struct rf__optimizer *optimizer) {
    if (optimizer) {
        rf__free(optimizer->state);
        rf__free(optimizer);
    }
}

void rf__optimizer_state(struct rf__optimizer *optimizer, void **state, size_t *bytes) {
    *state = optimizer->state;
    *bytes = optimizer->count * sizeof(float) * (optimizer->rule == ADAMW ? 2 : 1);
}

struct sgd {
    float momentum, rate, scale, keep; /* keep: what decay leaves of a weight */
};

static void sgd_update(const struct sgd *sgd, float *restrict w, float *restrict v,
                       const float *restrict gradient, size_t count) {
    const struct sgd s = *sgd;
    for (size_t i = 0; i < count; i++) {
        v[i] = s.momentum * v[i] + s.scale * gradient[i];
        w[i] = s.keep * w[i] - s.rate * v[i];
    }
}

struct adamw {
    float beta1, beta2, rest1, rest2; /* rest: 1 - beta */
    float rate, root; /* corrected for the start: rate / (1 - beta1^t), sqrt(1 - beta2^t) */
    float epsilon, scale, keep;
};

static void adamw_update(const struct adamw *adamw, float *restrict w, float *restrict m,
                         float *restrict v, const float *restrict gradient, size_t count) {
    const struct adamw a = *adamw;
    for (size_t i = 0; i < count; i++) {
        float g = a.scale * gradient[i];
        m[i] = a.beta1 * m[i] + a.rest1 * g;
        v[i] = a.beta2 * v[i] + a.rest2 * (g * g);
        w[i] = a.keep * w[i] - a.rate * (m[i] / (sqrtf(v[i]) / a.root + a.epsilon));
    }
}

static double power(double base, uint64_t exponent) {
    double result = 1;
    for (; exponent; exponent /= 2) {
        if (exponent % 2) {
            result *= base;
        }
        base *= base;
    }
    return result;
}

void rf__optimizer_update(struct rf__optimizer *optimizer, struct rf__model *model,
                          const float *(*gradient)(void *context, int index), void *context,
                          double rate, double scale, uint64_t step) {
    const struct rf__optimizer_options *o = &optimizer->options;
    struct sgd sgd = {(float)o->momentum, (float)rate, (float)scale, 1};
    struct adamw adamw = {.scale = (float)scale};
    size_t at = 0;

    RF_ASSERT(step > 0);
    if (optimizer->rule == ADAMW) {
        adamw.beta1 = (float)o->beta1;
        adamw.beta2 = (float)o->beta2;
        adamw.rest1 = (float)(1 - o->beta1);
        adamw.rest2 = (float)(1 - o->beta2);
        adamw.rate = (float)(rate / (1 - power(o->beta1, step)));
        adamw.root = (float)sqrt(1 - power(o->beta2, step));
        adamw.epsilon = (float)o->epsilon;
    }
    for (int i = 0; i < rf__model_tensors(model); i++) {
        const struct rf__tensor *tensor = rf__model_tensor(model, i);
        const float *g = gradient(context, i);
        sgd.keep = adamw.keep = tensor->decay ? (float)(1 - rate * o->weight_decay) : 1.0f;
        switch (optimizer->rule) {
        case SGD:
            sgd_update(&sgd, tensor->data, optimizer->state + at, g, tensor->count);
            break;
        case ADAMW:
            adamw_update(&adamw, tensor->data, optimizer->state + at,
                         optimizer->state + optimizer->count + at, g, tensor->count);
            break;
        }
        at += tensor->count;
    }
}

double rf__sum_of_squares(const float *x, size_t count) {
    enum { LANES = 8 };
    double lanes[LANES] = {0}, sum = 0;
    size_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        for (size_t k = 0; k < LANES; k++) {
            lanes[k] += (double)x[i + k] * (double)x[i + k];
        }
    }
    for (; i < count; i++) {
        sum += (double)x[i] * (double)x[i];
    }
    for (size_t k = 0; k < LANES; k++) {
        sum += lanes[k];
    }
    return sum;
}

/* cos(pi x) for 0 <= x <= 1, as 1 - 2 sin^2(pi x / 2), the sine by its series (error below 1e-11).
 */
static double cos_pi(double x) {
    double t = 3.14159265358979323846 / 2 * x, term = t, sine = t;
    for (int k = 1; k <= 8; k++) {
        term *= -t * t / (2.0 * k * (2.0 * k + 1.0));
        sine += term;
    }
    return 1 - 2 * sine * sine;
}

double rf__schedule_rate(double rate, uint64_t step, uint64_t warmup, uint64_t steps) {
    const double last = 0.1; /* of the rate, at the end */
    uint64_t top = warmup ? warmup : 1;
    if (step < top) {
        return rate * (double)step / (double)top;
    }
    if (steps <= top) {
        return rate;
    }
    double done = step < steps ? (double)(step - top) / (double)(steps - top) : 1.0;
    return rate * (last + (1 - last) * 0.5 * (1 + cos_pi(done)));
}
