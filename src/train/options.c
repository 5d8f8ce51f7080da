/* The trainer's options: their defaults and their limits. */
#include "base/status.h"
#include "data/utf8.h"
#include "ddp/ddp.h"
#include "train/train.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* With the default batch these take the cnn on Fashion-MNIST past 90 % within three epochs. */
static const double SGD_RATE = 0.05;
static const double ADAMW_RATE = 0.001;

enum {
    ESCAPED = 6,                           /* bytes of a character as \uXXXX */
    CONFIG_DATA = RF__TRAIN_CONFIG - 1024, /* what the rest of it is less than */
};

void rf__train_options_init(struct rf_train_options *options) {
    *options = (struct rf_train_options){.model = "mlp",
                                         .max_bad = 0.01,
                                         .seed = 1,
                                         .epochs = 3,
                                         .optimizer = "adamw",
                                         .momentum = 0.9,
                                         .weight_decay = -1,
                                         .warmup_steps = RF_TRAIN_AUTO,
                                         .clip = -1,
                                         .eval_every = RF_TRAIN_AUTO,
                                         .eval_samples = RF_TRAIN_AUTO_SAMPLES,
                                         .checkpoint = {.keep = 3},
                                         .checkpoint_s = 600};
    rf__ddp_options_init(&options->ddp);
}

/* NaN is out of every range. */
static int range_check(const char *name, double value, double low, double below,
                       struct rf_error *err) {
    if (value >= low && value < below) {
        return RF_OK;
    }
    return rf__fail(err, RF_EINVAL, 0, "%s is %g, expected %g <= %s < %g", name, value, low, name,
                    below);
}

/* The batch must fall into equal shards; says which batches next to it would. */
static int batch_resolve(struct rf_train_options *o, int size, struct rf_error *err) {
    uint32_t batch = rf__train_takes_tokens(o) ? RF__TRAIN_GPT_BATCH : RF__TRAIN_BATCH;

    if (!o->shards) {
        o->shards = (uint32_t)size;
    }
    if (o->shards > RF_MAX_SHARDS) {
        return rf__fail(err, RF_ELIMIT, 0, "%u shards are more than %d", o->shards, RF_MAX_SHARDS);
    }
    if (!o->batch) {
        o->batch = (batch + o->shards - 1) / o->shards * o->shards;
    }
    if (o->batch > RF__TRAIN_MAX_BATCH) {
        return rf__fail(err, RF_ELIMIT, 0, "a batch of %u samples is larger than %d", o->batch,
                        RF__TRAIN_MAX_BATCH);
    }
    if (o->batch % o->shards) {
        uint32_t below = o->batch / o->shards * o->shards;
        int code =
            rf__fail(err, RF_EINVAL, 0, "a batch of %u samples cannot be cut into %u equal shards",
                     o->batch, o->shards);
        if (err) {
            rf__detail(err->next, "--batch %u, or --shards with a divisor of %u",
                       below ? below : o->shards, o->batch);
        }
        return code;
    }
    o->ddp.shards = o->shards;
    return RF_OK;
}

bool rf__train_takes_tokens(const struct rf_train_options *options) {
    return options->model && !strcmp(options->model, "gpt");
}

/* What only gpt has is set for no other model: it would be without effect. */
static int gpt_only_check(const struct rf_train_options *o, struct rf_error *err) {
    const struct {
        const char *name;
        bool is_set;
    } all[] = {
        {"depth", o->depth != 0},     {"heads", o->heads != 0},
        {"width", o->width != 0},     {"context", o->context != 0},
        {"dropout", o->dropout != 0}, {"compute", o->compute && strcmp(o->compute, "f32") != 0},
        {"init", o->init != NULL},    {"memory", o->memory_bytes != 0}};

    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (all[i].is_set) {
            int code =
                rf__fail(err, RF_EINVAL, 0, "%s is an option of gpt, and the model is '%.32s'",
                         all[i].name, o->model);
            if (err) {
                rf__detail(err->next,
                           "leave out --%s (RINGFOLD_* variables count too), or train gpt",
                           all[i].name);
            }
            return code;
        }
    }
    return RF_OK;
}

/* What differs between models, and what gpt alone has. */
static int model_resolve(struct rf_train_options *o, struct rf_error *err) {
    bool gpt = rf__train_takes_tokens(o);
    const char *compute = o->compute ? o->compute : "f32";
    int code = gpt ? RF_OK : gpt_only_check(o, err);

    if (code) {
        return code;
    }
    o->compute = compute;
    o->beta2 = o->beta2 == 0 ? (gpt ? 0.95 : 0.999) : o->beta2;
    o->weight_decay = o->weight_decay == -1 ? (gpt ? 0.1 : 0) : o->weight_decay;
    o->clip = o->clip == -1 ? (gpt ? 1 : 0) : o->clip;
    o->warmup_steps = o->warmup_steps == RF_TRAIN_AUTO && !gpt ? 0 : o->warmup_steps;
    if (gpt) {
        o->depth = o->depth ? o->depth : 6;
        o->width = o->width ? o->width : 384;
        o->heads = o->heads ? o->heads : 6;
        o->context = o->context ? o->context : 256;
    }
    o->eval_every = o->eval_every == RF_TRAIN_AUTO ? (gpt ? 250 : 0) : o->eval_every;
    o->eval_samples = o->eval_samples == RF_TRAIN_AUTO_SAMPLES ? (gpt ? 256 : 0) : o->eval_samples;
    if (o->context < 0 || o->context > RF__TRAIN_MAX_CONTEXT) {
        return rf__fail(err, RF_EINVAL, 0, "context is %d, expected 1 to %d tokens", o->context,
                        RF__TRAIN_MAX_CONTEXT);
    }
    if (!o->micro_batch) {
        o->micro_batch =
            !gpt ? RF__TRAIN_MICRO_BATCH : (uint32_t)(RF__TRAIN_MICRO_TOKENS / o->context);
        o->micro_batch += !o->micro_batch;
    }
    if (strcmp(compute, "f32") != 0 && strcmp(compute, "bf16") != 0) {
        return rf__fail(err, RF_EINVAL, 0, "compute is '%.32s', expected f32 or bf16", compute);
    }
    if (gpt && o->heads > 0 && o->width % o->heads) {
        code =
            rf__fail(err, RF_EINVAL, 0, "%d heads do not divide a width of %d", o->heads, o->width);
        int below = o->width / o->heads * o->heads;
        if (err) {
            rf__detail(err->next, "--width %d, or --heads with a divisor of %d",
                       below ? below : o->heads, o->width);
        }
        return code;
    }
    code = range_check("dropout", o->dropout, 0, 1, err);
    return code ? code : range_check("beta2", o->beta2, 0, 1, err);
}

int rf__train_options_resolve(const struct rf_train_options *options, int size,
                              struct rf_train_options *out, struct rf_error *err) {
    struct rf_train_options o = *options;

    if (!o.model || !o.data || !o.optimizer) {
        return rf__fail(err, RF_EINVAL, 0,
                        "training needs a model, a data folder and an optimizer");
    }
    if (!o.epochs && !o.steps) {
        return rf__fail(err, RF_EINVAL, 0, "training needs a number of epochs or of steps");
    }
    if (o.lr == 0) {
        o.lr = strcmp(o.optimizer, "adamw") ? SGD_RATE : ADAMW_RATE;
    }
    int code = model_resolve(&o, err);
    if (!code) {
        code = range_check("lr", o.lr, 0, 1e6, err);
    }
    if (!code) {
        code = range_check("momentum", o.momentum, 0, 1, err);
    }
    if (!code) {
        code = range_check("weight decay", o.weight_decay, 0, 1e6, err);
    }
    if (!code) {
        code = range_check("clip", o.clip, 0, HUGE_VAL, err);
    }
    if (!code && !(o.max_bad >= 0 && o.max_bad <= 1)) {
        code =
            rf__fail(err, RF_EINVAL, 0, "max bad is %g, expected a share from 0 to 1", o.max_bad);
    }
    if (!code && (o.hidden < 0 || o.hidden > 65536)) {
        code = rf__fail(err, RF_EINVAL, 0, "hidden is %d, expected 0 to 65536", o.hidden);
    }
    if (!code) {
        code = range_check("seconds between checkpoints", o.checkpoint_s, 0, 1e9, err);
    }
    if (!code) {
        code = batch_resolve(&o, size, err);
    }
    if (!code) {
        *out = o;
    }
    return code;
}

/* Names that came from a command line, as JSON strings. */
static void json_word(const char *text, char *out, size_t room) {
    size_t at = 0;

    for (; *text && at + 2 < room; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\') {
            out[at++] = '\\';
        }
        out[at++] = c < 32 || c >= 127 ? '?' : (char)c;
    }
    out[at] = 0;
}

/* The folder of data, from the comma on: "" where it is none, or is not UTF-8 and JSON cannot have
 * it. A name that is another one would be looked for elsewhere, so nothing in it is replaced or
 * cut.
 */
static void config_data(const char *folder, char *out, size_t room) {
    static const char head[] = ", \"data\": \"";
    size_t bytes = folder ? strlen(folder) : 0, at = sizeof head - 1;

    out[0] = 0;
    if (!bytes || rf__utf8_valid((const unsigned char *)folder, bytes) != bytes) {
        return;
    }
    memcpy(out, head, sizeof head);
    for (; *folder && at + ESCAPED + 2 <= room; folder++) {
        unsigned char c = (unsigned char)*folder;
        if (c < 32 || c == 127) {
            at += (size_t)snprintf(out + at, room - at, "\\u%04x", c);
        } else {
            if (c == '"' || c == '\\') {
                out[at++] = '\\';
            }
            out[at++] = (char)c;
        }
    }
    if (*folder) { /* longer than any path */
        out[0] = 0;
    } else {
        memcpy(out + at, "\"", 2);
    }
}

/* What only gpt has, from the comma on; else "". */
static void config_gpt(const struct rf_train_options *o, uint32_t vocabulary, char *out,
                       size_t room) {
    char compute[16];

    out[0] = 0;
    if (rf__train_takes_tokens(o)) {
        json_word(o->compute ? o->compute : "f32", compute, sizeof compute);
        snprintf(out, room,
                 ", \"depth\": %d, \"width\": %d, \"heads\": %d, \"context\": %d, \"vocabulary\": "
                 "%" PRIu32 ", \"dropout\": %.17g, \"compute\": \"%s\"",
                 o->depth, o->width, o->heads, o->context, vocabulary, o->dropout, compute);
    }
}

void rf__train_config(const struct rf_train_options *o, uint32_t vocabulary,
                      char out[RF__TRAIN_CONFIG]) {
    char model[64], optimizer[64], data[CONFIG_DATA], gpt[320], warmup[24] = "null";

    json_word(o->model ? o->model : "", model, sizeof model);
    json_word(o->optimizer ? o->optimizer : "", optimizer, sizeof optimizer);
    config_data(o->data, data, sizeof data);
    config_gpt(o, vocabulary, gpt, sizeof gpt);
    if (o->warmup_steps != RF_TRAIN_AUTO) {
        snprintf(warmup, sizeof warmup, "%" PRIu64, o->warmup_steps);
    }
    snprintf(out, RF__TRAIN_CONFIG,
             "{\"model\": \"%s\"%s, \"optimizer\": \"%s\", \"seed\": %" PRIu64
             ", \"epochs\": %" PRIu32 ", \"steps\": %" PRIu64 ", \"batch\": %" PRIu32
             ", \"shards\": %" PRIu32 ", \"micro_batch\": %" PRIu32
             ", \"lr\": %.17g, \"momentum\": %.17g, \"beta2\": %.17g, \"weight_decay\": %.17g, "
             "\"warmup\": %s, \"clip\": %.17g, \"hidden\": %d%s}",
             model, data, optimizer, o->seed, o->epochs, o->steps, o->batch, o->shards,
             o->micro_batch, o->lr, o->momentum, o->beta2, o->weight_decay, warmup, o->clip,
             o->hidden, gpt);
}
