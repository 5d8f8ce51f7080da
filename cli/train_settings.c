/* The settings of `ringfold train`: one table from which come the flags, the RINGFOLD_* variables,
 * the help text and the record of where each value came from. */
#include "data_env.h"
#include "format.h"
#include "report.h"
#include "train.h"

#include <argp.h>
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>

enum kind { TEXT, COUNT32, COUNT64, WIDTH, REAL, SHARE, SIZE, SWITCH, KEEP, EVERY, STREAMS };

struct setting {
    const char *name, *arg, *help;
    enum kind kind;
    size_t offset;
};

#define TRAIN(field) offsetof(struct train_settings, train.field)
#define OWN(field)   offsetof(struct train_settings, field)

static const struct setting table[TRAIN_SETTINGS] = {
    {"data", "DIR",
     "folder with the four IDX files of MNIST's names, .gz or not, or TFRecords; for gpt one that "
     "'ringfold data tokens' made",
     TEXT, TRAIN(data)},
    {"epochs", "N", "times through the training set (3; none where only --steps is given)", COUNT32,
     TRAIN(epochs)},
    {"steps", "N", "stop after N steps", COUNT64, TRAIN(steps)},
    {"batch", "B",
     "samples in the global batch, of all workers together (about 128); for gpt windows of "
     "--context tokens (about 32)",
     COUNT32, TRAIN(batch)},
    {"shards", "V", "equal parts of the batch, dealt to the workers (one a worker)", COUNT32,
     TRAIN(shards)},
    {"micro-batch", "N",
     "samples that a worker computes at once; fewer take less memory (64; for gpt those of 2048 "
     "tokens)",
     COUNT32, TRAIN(micro_batch)},
    {"lr", "X", "learning rate (0.001 for adamw, 0.05 for sgd); falls to a tenth along a cosine",
     REAL, TRAIN(lr)},
    {"optimizer", "NAME", "adamw or sgd (adamw)", TEXT, TRAIN(optimizer)},
    {"momentum", "X", "of sgd (0.9)", REAL, TRAIN(momentum)},
    {"beta2", "X", "of adamw (0.999; for gpt 0.95)", REAL, TRAIN(beta2)},
    {"weight-decay", "X", "decoupled, not for biases (0; for gpt 0.1)", REAL, TRAIN(weight_decay)},
    {"warmup", "N", "steps in which the rate rises to --lr (0; for gpt 100, or a tenth of all)",
     COUNT64, TRAIN(warmup_steps)},
    {"clip", "X", "largest norm of the whole gradient; 0: any (0; for gpt 1)", REAL, TRAIN(clip)},
    {"hidden", "N", "width of the mlp's hidden layers (256)", WIDTH, TRAIN(hidden)},
    {"depth", "N", "blocks of gpt (6)", WIDTH, TRAIN(depth)},
    {"heads", "N", "of gpt's attention; they divide the width (6)", WIDTH, TRAIN(heads)},
    {"width", "N", "of gpt: numbers for each token (384)", WIDTH, TRAIN(width)},
    {"context", "N", "tokens that gpt looks back at, and that a sample has (256)", WIDTH,
     TRAIN(context)},
    {"dropout", "X", "share of gpt's activations that is left out in training (0)", REAL,
     TRAIN(dropout)},
    {"compute", "NAME",
     "what gpt's matrix products take: f32, or bf16, which sums in f32 all the same (f32)", TEXT,
     TRAIN(compute)},
    {"init", "FOLDER",
     "of gpt: folder in the form of Hugging Face's GPT-2 that training starts from (at random)",
     TEXT, TRAIN(init)},
    {"eval-every", "N",
     "measure on the test data after every N steps, besides after each epoch; 0: never (never; for "
     "gpt 250)",
     COUNT64, TRAIN(eval_every)},
    {"eval-samples", "N",
     "of the test data, evenly spread, that a measurement is of; 0: all (all; for gpt 256)",
     COUNT32, TRAIN(eval_samples)},
    {"memory", "SIZE",
     "that a worker may take; gpt is refused where it would take more (a fair share of what is "
     "available)",
     SIZE, TRAIN(memory_bytes)},
    {"seed", "S", "of initial parameters and order of samples (1)", COUNT64, TRAIN(seed)},
    {"max-bad", "SHARE",
     "of an epoch's samples that may be skipped because their data is damaged, as 0.01 or 1% (1%)",
     SHARE, TRAIN(max_bad)},
    {"no-overlap", NULL,
     "average gradients only after the backward pass, to see what overlap gains", SWITCH,
     TRAIN(ddp.no_overlap)},
    {"bucket-bytes", "SIZE", "gradients averaged in one operation (25M)", SIZE,
     TRAIN(ddp.bucket_bytes)},
    {"first-bucket-bytes", "SIZE", "of the first one, small so that it starts early (1M)", SIZE,
     TRAIN(ddp.first_bucket_bytes)},
    {"compress", "NAME",
     "what gradients travel as: none, bf16 or int8, which makes up for what it loses (none)", TEXT,
     OWN(compress)},
    {"transport", "NAME", "auto, shm or tcp (auto)", TEXT, OWN(transport)},
    {"streams", "N", "TCP connections between two workers of two hosts, 1 to 64 (1)", STREAMS,
     OWN(streams)},
    {"algorithm", "NAME", "of collectives that can use it: ring, direct, tree, ...; auto (auto)",
     TEXT, OWN(algorithm)},
    {"log", "FILE", "write each step and at last a summary to FILE, as JSON lines", TEXT, OWN(log)},
    {"save", "FILE", "where the trained weights go (model.safetensors in the run folder)", TEXT,
     OWN(save)},
    {"save-gradients", "FILE", "write the first step's averaged gradients, as safetensors", TEXT,
     OWN(save_gradients)},
    {"checkpoint", "URI",
     "where checkpoints go: a folder, s3://bucket/prefix or gs://bucket/prefix", TEXT,
     TRAIN(checkpoint.uri)},
    {"every", "N|TIME", "a checkpoint every N steps, or so often (10m)", EVERY,
     TRAIN(checkpoint_steps)},
    {"keep", "K", "keep the newest K checkpoints, 0: all (3)", KEEP, TRAIN(checkpoint.keep)},
    {"resume", "WHAT",
     "start from a checkpoint: auto (the newest, where there is one), a step, or another URI", TEXT,
     TRAIN(checkpoint.resume)},
    {"on-divergence", "WHAT",
     "where two groups trained on from one checkpoint: stop, or rollback to what both have (stop)",
     TEXT, OWN(on_divergence)},
    {"run-dir", "DIR", "the run folder (runs/train-MODEL-TIME)", TEXT, OWN(run_dir)},
    {"model", NULL, NULL, TEXT, TRAIN(model)}, /* the argument, not a flag */
};

enum { MODEL_ROW = TRAIN_SETTINGS - 1, FLAGS = MODEL_ROW, KEY_BASE = 1000 };

static void *field_of(struct train_settings *settings, const struct setting *row) {
    return (char *)settings + row->offset;
}

static const void *field_read(const struct train_settings *settings, const struct setting *row) {
    return (const char *)settings + row->offset;
}

/* A whole decimal number within [0, most]. */
static int parse_count(const char *text, uint64_t most, uint64_t *out) {
    char *end;

    if (!isdigit((unsigned char)text[0])) {
        return RF_EINVAL;
    }
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (errno || *end || value > most) {
        return RF_EINVAL;
    }
    *out = value;
    return RF_OK;
}

static int parse_real(const char *text, double *out) {
    char *end;
    double value = strtod(text, &end);

    if (end == text || *end || !isfinite(value) || value < 0) {
        return RF_EINVAL;
    }
    *out = value;
    return RF_OK;
}

/* A number of steps, or a time. */
static int parse_every(const char *text, struct rf_train_options *options) {
    uint64_t steps = 0;
    int ms = 0;

    if (!parse_count(text, INT64_MAX, &steps) && steps > 0) {
        options->checkpoint_steps = steps;
        return RF_OK;
    }
    int code = parse_duration_ms(text, &ms);
    if (!code && ms > 0) {
        options->checkpoint_steps = 0;
        options->checkpoint_s = ms * 1e-3;
    }
    return code || ms <= 0 ? RF_EINVAL : RF_OK;
}

/* A share of a whole: "0.01" or "1%". */
static int parse_share(const char *text, double *out) {
    char *end;
    double value = strtod(text, &end);
    bool percent = end != text && !strcmp(end, "%");

    if (end == text || (*end && !percent) || !(value >= 0 && value <= (percent ? 100 : 1))) {
        return RF_EINVAL;
    }
    *out = percent ? value / 100 : value;
    return RF_OK;
}

static int setting_set(struct train_settings *settings, int index, const char *text,
                       enum train_source source) {
    const struct setting *row = &table[index];
    void *field = field_of(settings, row);
    uint64_t count = 0;
    int code = RF_OK;

    switch (row->kind) {
    case TEXT:
        *(const char **)field = text;
        break;
    case COUNT32:
        code = parse_count(text, UINT32_MAX, &count);
        if (!code) {
            *(uint32_t *)field = (uint32_t)count;
        }
        break;
    case COUNT64:
        code = parse_count(text, INT64_MAX, (uint64_t *)field);
        break;
    case WIDTH:
        code = parse_int(text, 0, 65536, (int *)field);
        break;
    case REAL:
        code = parse_real(text, (double *)field);
        break;
    case SHARE:
        code = parse_share(text, (double *)field);
        break;
    case SIZE:
        code = parse_bytes(text, &count);
        if (!code) {
            *(size_t *)field = (size_t)count;
        }
        break;
    case KEEP:
        code = parse_int(text, 0, INT_MAX, (int *)field);
        break;
    case STREAMS:
        code = parse_int(text, 1, RF_MAX_STREAMS, (int *)field);
        break;
    case EVERY:
        code = parse_every(text, &settings->train);
        break;
    case SWITCH:
        *(int *)field = !text || (text[0] && strcmp(text, "0") != 0);
        break;
    }
    if (!code) {
        settings->sources[index] = source;
    }
    return code;
}

static const char *variable_name(const struct setting *row, char out[64]) {
    int at = snprintf(out, 64, "RINGFOLD_");
    for (const char *c = row->name; *c && at < 63; c++) {
        out[at++] = *c == '-' ? '_' : (char)toupper((unsigned char)*c);
    }
    out[at] = 0;
    return out;
}

static error_t parse_option(int key, char *arg, struct argp_state *state) {
    struct train_settings *settings = state->input;

    if (key >= KEY_BASE && key < KEY_BASE + FLAGS) {
        const struct setting *row = &table[key - KEY_BASE];
        if (setting_set(settings, key - KEY_BASE, arg, TRAIN_FLAG)) {
            argp_error(state, "--%s does not take '%s': %s is expected", row->name, arg,
                       row->kind == REAL    ? "a number, 0 or more,"
                       : row->kind == SHARE ? "a share such as 0.01 or 1%"
                       : row->kind == EVERY
                           ? "a number of steps such as 500, or a time such as 10m,"
                       : row->kind == SIZE    ? "a size such as 4096, 256K or 25M"
                       : row->kind == STREAMS ? "a number from 1 to 64"
                                              : "a whole number, 0 or more,");
            return EINVAL;
        }
        return 0;
    }
    switch (key) {
    case 'q':
        settings->quiet = true;
        return 0;
    case 'v':
        settings->verbose = true;
        return 0;
    case ARGP_KEY_ARG:
        if (state->arg_num) {
            argp_error(state, "one model is trained, and '%s' is one more", arg);
            return EINVAL;
        }
        return setting_set(settings, MODEL_ROW, arg, TRAIN_FLAG) ? EINVAL : 0;
    case ARGP_KEY_NO_ARGS:
        argp_error(state, "which model? 'mlp', 'cnn' or 'gpt'");
        return EINVAL;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const char doc[] =
    "Train a built-in model, alone or as one of the workers that 'ringfold run' starts.\v"
    "Every option can also be given as a variable, RINGFOLD_DATA for --data; flags win.\n\n"
    "  ringfold train cnn --data /usr/share/datasets/fashion-mnist\n"
    "  ringfold run -n 4 -- ringfold train cnn --data DIR --save model.safetensors\n"
    "  ringfold data tokens TEXT -o tokens && ringfold run -n 2 -- ringfold train gpt --data "
    "tokens\n\n"
    "Ctrl-C finishes the step, saves and stops (exit status 75); twice stops at once.";

/* Variables speak where no flag did. */
static int environment_read(struct train_settings *settings, struct rf_error *err) {
    char name[64];

    for (int i = 0; i < FLAGS; i++) {
        bool is_library = !strcmp(table[i].name, "transport") ||
                          !strcmp(table[i].name, "algorithm") || table[i].kind == STREAMS;
        if (settings->sources[i] == TRAIN_FLAG || is_library) {
            continue; /* the library reads these itself */
        }
        const char *text = getenv(variable_name(&table[i], name));
        if (text && text[0] && setting_set(settings, i, text, TRAIN_ENVIRONMENT)) {
            return report_fail(err, RF_EUSAGE, 0, "%s is '%s', which --%s does not take", name,
                               text, table[i].name);
        }
    }
    return RF_OK;
}

static bool is_set(const struct train_settings *settings, const char *name) {
    for (int i = 0; i < TRAIN_SETTINGS; i++) {
        if (!strcmp(table[i].name, name)) {
            return settings->sources[i] != TRAIN_DEFAULT;
        }
    }
    return false;
}

static int compress_read(struct train_settings *settings, struct rf_error *err) {
    if (!settings->compress) {
        settings->compress = rf_wire_name(settings->train.ddp.wire);
    }
    if (rf_wire_parse(settings->compress, &settings->train.ddp.wire)) {
        return report_fail(err, RF_EUSAGE, 0, "--compress is none, bf16 or int8, not '%s'",
                           settings->compress);
    }
    return RF_OK;
}

/* What is said about checkpoints must make sense together. */
static int divergence_read(struct train_settings *settings, struct rf_error *err) {
    const char *what = settings->on_divergence ? settings->on_divergence : "stop";

    settings->train.checkpoint.rollback_on_divergence = !strcmp(what, "rollback");
    if (strcmp(what, "stop") != 0 && strcmp(what, "rollback") != 0) {
        return report_fail(err, RF_EUSAGE, 0, "--on-divergence is stop or rollback, not '%s'",
                           what);
    }
    if (!settings->train.checkpoint.uri && settings->train.checkpoint.resume) {
        int code = report_fail(err, RF_EUSAGE, 0, "--resume needs --checkpoint");
        snprintf(err->next, sizeof err->next, "--checkpoint %s --resume auto",
                 strcmp(settings->train.checkpoint.resume, "auto") != 0
                     ? settings->train.checkpoint.resume
                     : "URI");
        return code;
    }
    return RF_OK;
}

int train_settings_read(struct train_settings *settings, int argc, char **argv, bool quiet_errors) {
    struct argp_option options[FLAGS + 3] = {{0}};
    struct argp argp = {options, parse_option, "MODEL", doc, NULL, NULL, NULL};
    struct rf_error err = {0};

    *settings = (struct train_settings){0};
    rf_train_options_init(&settings->train);
    for (int i = 0; i < FLAGS; i++) {
        options[i] =
            (struct argp_option){table[i].name, KEY_BASE + i, table[i].arg, 0, table[i].help, 0};
    }
    options[FLAGS] = (struct argp_option){"quiet", 'q', NULL, 0, "print nothing but errors", 0};
    options[FLAGS + 1] = (struct argp_option){
        "verbose", 'v', NULL, 0, "say which algorithms are chosen, and why, on stderr", 0};
    if (argp_parse(&argp, argc, argv, quiet_errors ? ARGP_SILENT : 0, NULL, settings)) {
        return quiet_errors ? -1 : EX_USAGE;
    }
    int code = environment_read(settings, &err);
    if (!code && !settings->train.data) {
        code = report_fail(&err, RF_EUSAGE, 0, "training needs data: --data DIR");
        snprintf(err.next, sizeof err.next, "%s",
                 !strcmp(settings->train.model, "gpt")
                     ? "ringfold data tokens TEXT -o DIR, then: --data DIR"
                     : "on Debian: apt install dataset-fashion-mnist, then: "
                       "--data /usr/share/datasets/fashion-mnist");
    }
    code = code ? code : compress_read(settings, &err);
    code = code ? code : divergence_read(settings, &err);
    if (code) {
        if (quiet_errors) {
            return -1;
        }
        report_error(&err);
        return EX_USAGE;
    }
    settings->train.index_cache = data_cache_folder(settings->cache);
    settings->train.bad_reads = data_bad_reads();
    if (is_set(settings, "steps") && !is_set(settings, "epochs")) {
        settings->train.epochs = 0;
    }
    return 0;
}

static void value_text(const struct train_settings *settings, const struct setting *row, char *out,
                       size_t bytes) {
    const void *field = field_read(settings, row);

    switch (row->kind) {
    case TEXT: {
        const char *text = *(const char *const *)field;
        snprintf(out, bytes, "%s", text ? text : "");
        break;
    }
    case COUNT32:
        if (*(const uint32_t *)field == RF_TRAIN_AUTO_SAMPLES) {
            snprintf(out, bytes, "auto");
        } else {
            snprintf(out, bytes, "%u", *(const uint32_t *)field);
        }
        break;
    case COUNT64:
        if (*(const uint64_t *)field == RF_TRAIN_AUTO) {
            snprintf(out, bytes, "auto");
        } else {
            snprintf(out, bytes, "%llu", (unsigned long long)*(const uint64_t *)field);
        }
        break;
    case EVERY:
        if (settings->train.checkpoint_steps) {
            snprintf(out, bytes, "%llu", (unsigned long long)settings->train.checkpoint_steps);
        } else {
            snprintf(out, bytes, "%gs", settings->train.checkpoint_s);
        }
        break;
    case WIDTH:
    case KEEP:
    case STREAMS:
    case SWITCH:
        snprintf(out, bytes, "%d", *(const int *)field);
        break;
    case REAL:
    case SHARE:
        if (*(const double *)field == -1) { /* the model's own */
            snprintf(out, bytes, "auto");
        } else {
            snprintf(out, bytes, "%.17g", *(const double *)field);
        }
        break;
    case SIZE:
        snprintf(out, bytes, "%zu", *(const size_t *)field);
        break;
    }
}

void train_settings_each(const struct train_settings *settings,
                         void (*each)(void *context, const char *name, const char *value,
                                      const char *source),
                         void *context) {
    static const char *const sources[] = {"default", "environment", "flag"};
    char value[PATH_MAX];

    for (int i = 0; i < TRAIN_SETTINGS; i++) {
        value_text(settings, &table[i], value, sizeof value);
        each(context, table[i].name, value, sources[settings->sources[i]]);
    }
}
