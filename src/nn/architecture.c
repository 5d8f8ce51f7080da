/* The models there are: each a list of layers, in order, for the sizes of a sample. A new one is a
 * function and a line. */
#include "nn/layer.h"
#include "nn/nn.h"

#include "base/status.h"

#include <stdio.h>
#include <string.h>

enum { HIDDEN_DEFAULT = 256, SMALLEST_IMAGE = 8 };

#define LINEAR(n)                                                                                  \
    { &rf__layer_linear, n }
#define CONV(n)                                                                                    \
    { &rf__layer_conv, n }
#define RELU                                                                                       \
    { &rf__layer_relu, 0 }
#define POOL                                                                                       \
    { &rf__layer_pool, 0 }
#define ROWS                                                                                       \
    { &rf__layer_rows, 0 }
#define LAYERS(...)                                                                                \
    .count = sizeof((struct rf__layer_spec[]){__VA_ARGS__}) / sizeof(struct rf__layer_spec),       \
    .layers = {__VA_ARGS__}

/* Two hidden layers. */
static struct rf__architecture mlp(const struct rf__model_options *options) {
    int hidden = options->hidden ? options->hidden : HIDDEN_DEFAULT;
    return (struct rf__architecture){
        LAYERS(LINEAR(hidden), RELU, LINEAR(hidden), RELU, LINEAR(options->classes))};
}

/* Three convolutions, two halvings. ReLU comes after the pooling: the same function, on a quarter
 * of the values. */
static struct rf__architecture cnn(const struct rf__model_options *options) {
    return (struct rf__architecture){.images = true,
                                     LAYERS(CONV(16), RELU, CONV(32), POOL, RELU, CONV(64), POOL,
                                            RELU, ROWS, LINEAR(128), RELU,
                                            LINEAR(options->classes))};
}

static const struct {
    const char *name;
    struct rf__architecture (*layers)(const struct rf__model_options *options);
} architectures[] = {{"mlp", mlp}, {"cnn", cnn}};

enum { ARCHITECTURES = sizeof architectures / sizeof architectures[0] };

static int unknown(const char *name, struct rf_error *err) {
    char names[RF_ERROR_DETAIL_MAX] = "";
    size_t at = 0;
    for (size_t i = 0; i < ARCHITECTURES && at < sizeof names; i++) {
        int length =
            snprintf(names + at, sizeof names - at, "%s%s", i ? ", " : "", architectures[i].name);
        at += length > 0 ? (size_t)length : 0;
    }
    return rf__fail(err, RF_EINVAL, 0, "there is no model '%s'; there are: %s, gpt", name, names);
}

int rf__architecture_find(const struct rf__model_options *options, struct rf__architecture *out,
                          struct rf_error *err) {
    const char *name = options->name ? options->name : "";
    for (size_t i = 0; i < ARCHITECTURES; i++) {
        if (!strcmp(name, architectures[i].name)) {
            *out = architectures[i].layers(options);
            if (out->images &&
                (options->height < SMALLEST_IMAGE || options->width < SMALLEST_IMAGE)) {
                return rf__fail(err, RF_EINVAL, 0,
                                "model '%s' needs images of at least %d x %d, not %d x %d", name,
                                SMALLEST_IMAGE, SMALLEST_IMAGE, options->height, options->width);
            }
            return 0;
        }
    }
    return unknown(name, err);
}
