/* ringfold sample: text from a trained gpt, printed as it comes.
 *
 *     ringfold sample WHERE [--prompt TEXT] [--tokens 200] [--temperature 0.8] [--top-k 40]
 *
 * The prompt and what follows it go to stdout, or with --json all of it at the end, as an object.
 */
#include "commands.h"
#include "format.h"
#include "json_text.h"
#include "report.h"

#include <argp.h>
#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <ringfold/sample.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct settings {
    struct rf_sampler_options options;
    int tokens;
    bool json;
};

enum { KEY_JSON = 1000, KEY_TOP_K, KEY_SEED, TOKENS_DEFAULT = 200 };

static const struct argp_option flags[] = {
    {"prompt", 'p', "TEXT", 0, "What the text begins with (nothing)", 0},
    {"tokens", 'n', "N", 0, "How many tokens, at most (200)", 0},
    {"temperature", 't', "T", 0, "0: always the likeliest token; more: more varied (0.8)", 0},
    {"top-k", KEY_TOP_K, "K", 0, "Draw among the K likeliest tokens; 0: among all (40)", 0},
    {"seed", KEY_SEED, "N", 0, "Another one draws another text (1)", 0},
    {"step", 's', "N", 0, "Which checkpoint: its step, or its name (the newest whole one)", 0},
    {"data", 'd', "FOLDER", 0, "Where the tokenizer is (beside the model, or the training's data)",
     0},
    {"json", KEY_JSON, NULL, 0, "The result as JSON, at the end", 0},
    {0},
};

/* A text that grows. */
struct text {
    char *bytes;
    size_t count, room;
};

static bool text_add(struct text *text, const char *bytes, size_t count) {
    if (text->room - text->count < count) {
        size_t room = 2 * text->room + count;
        char *grown = realloc(text->bytes, room);
        if (!grown) {
            return false;
        }
        text->bytes = grown;
        text->room = room;
    }
    if (count) {
        memcpy(text->bytes + text->count, bytes, count);
    }
    text->count += count;
    return true;
}

/* What was made so far. */
struct made {
    struct text text;
    json_t *tokens; /* NULL: not wanted */
    int count;
    bool ended;
};

/* A piece of text as soon as it is there, or kept for the end. */
static int put(const struct settings *settings, struct made *made, const char *bytes, size_t count,
               struct rf_error *err) {
    if (settings->json) {
        return text_add(&made->text, bytes, count)
                   ? RF_OK
                   : report_fail(err, RF_ENOMEM, 0, "no memory for the text");
    }
    bool good = fwrite(bytes, 1, count, stdout) == count && !fflush(stdout);
    return good ? RF_OK : report_fail(err, RF_EIO, errno, "cannot write the text");
}

static int write_text(const struct settings *settings, struct rf_sampler *sampler,
                      struct made *made, struct rf_error *err) {
    const char *rest;
    int code = RF_OK;

    while (!code && !made->ended && made->count < settings->tokens) {
        struct rf_sample sample;
        code = rf_sampler_next(sampler, &sample, err);
        if (code) {
            break;
        }
        made->count++;
        made->ended = sample.end;
        if (made->tokens) {
            json_array_append_new(made->tokens, json_integer(sample.token));
        }
        code = put(settings, made, sample.text, sample.bytes, err);
    }
    if (!code) {
        size_t count = rf_sampler_rest(sampler, &rest);
        code = put(settings, made, rest, count, err);
    }
    return code;
}

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int print_json(const struct settings *settings, const struct rf_sampler_info *info,
                      const struct made *made, double seconds, struct rf_error *err) {
    const struct rf_sampler_options *o = &settings->options;
    json_t *model =
        json_pack("{s:i, s:i, s:i, s:i, s:i, s:I}", "depth", info->depth, "heads", info->heads,
                  "width", info->width, "context", info->context, "vocabulary", info->vocabulary,
                  "parameters", (json_int_t)info->parameters);
    json_t *object = json_pack(
        "{s:o, s:s, s:o, s:s, s:o, s:I, s:s%, s:O, s:b, s:I, s:f, s:i, s:f, s:f}", "where",
        json_text(o->where), "checkpoint", info->name, "model", model, "tokenizer", info->tokenizer,
        "prompt", json_text(o->prompt ? o->prompt : ""), "prompt_tokens",
        (json_int_t)info->prompt_tokens, "text", made->text.bytes ? made->text.bytes : "",
        made->text.count, "tokens", made->tokens, "ended", made->ended, "seed", (json_int_t)o->seed,
        "temperature", o->temperature, "top_k", o->top_k, "seconds", seconds, "tokens_per_s",
        seconds > 0 ? made->count / seconds : 0);

    char *text = object ? json_dumps(object, JSON_INDENT(2) | JSON_PRESERVE_ORDER) : NULL;
    int code = text ? RF_OK : report_fail(err, RF_ENOMEM, 0, "no memory for the result as JSON");

    if (text) {
        puts(text);
    }
    free(text);
    json_decref(object);
    return code;
}

static int sample(const struct settings *settings, struct rf_error *err) {
    const char *prompt = settings->options.prompt ? settings->options.prompt : "";
    struct made made = {.tokens = settings->json ? json_array() : NULL};
    struct rf_sampler *sampler = NULL;
    struct rf_sampler_info info;

    int code = rf_sampler_open(&settings->options, &sampler, err);
    if (code) {
        goto out;
    }
    double began = now_s();
    if (!settings->json) {
        code = put(settings, &made, prompt, strlen(prompt), err);
    }
    code = code ? code : write_text(settings, sampler, &made, err);
    double seconds = now_s() - began;
    rf_sampler_get_info(sampler, &info);
    if (settings->json && !code) {
        code = print_json(settings, &info, &made, seconds, err);
    } else if (!settings->json) {
        puts(""); /* also behind what an error cut short */
    }
out:
    rf_sampler_close(sampler);
    json_decref(made.tokens);
    free(made.text.bytes);
    return code;
}

/* ---- arguments ---- */

static double number_of(const char *text) {
    char *end;

    errno = 0;
    double value = strtod(text, &end);
    return errno || end == text || *end ? NAN : value;
}

static bool seed_of(const char *text, uint64_t *out) {
    char *end;

    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    *out = value;
    return text[0] >= '0' && text[0] <= '9' && !errno && !*end && value <= INT64_MAX;
}

static error_t parse(int key, char *argument, struct argp_state *state) {
    struct settings *settings = state->input;
    struct rf_sampler_options *o = &settings->options;

    switch (key) {
    case 'p':
        o->prompt = argument;
        break;
    case 'n':
        if (parse_int(argument, 0, INT_MAX, &settings->tokens)) {
            argp_error(state, "--tokens '%s' is not a number from 0", argument);
        }
        break;
    case 't':
        o->temperature = number_of(argument);
        if (!isfinite(o->temperature) || o->temperature < 0) {
            argp_error(state, "--temperature '%s' is not a number from 0", argument);
        }
        break;
    case KEY_TOP_K:
        if (parse_int(argument, 0, INT_MAX, &o->top_k)) {
            argp_error(state, "--top-k '%s' is not a number from 0", argument);
        }
        break;
    case KEY_SEED:
        if (!seed_of(argument, &o->seed)) {
            argp_error(state, "--seed '%s' is not a number from 0", argument);
        }
        break;
    case 's':
        o->which = argument;
        break;
    case 'd':
        o->data = argument;
        break;
    case KEY_JSON:
        settings->json = true;
        break;
    case ARGP_KEY_ARG:
        if (o->where) {
            argp_error(state, "'%s' is one word too many", argument);
        }
        o->where = argument;
        break;
    case ARGP_KEY_END:
        if (!o->where) {
            argp_error(state, "which model? A folder of checkpoints, or one with config.json and "
                              "model.safetensors");
        }
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static const struct argp parser = {
    .options = flags,
    .parser = parse,
    .args_doc = "WHERE",
    .doc = "Write text with a trained gpt."
           "\vWHERE is where checkpoints of training are (a path, file:/path, s3://bucket/prefix "
           "or gs://bucket/prefix), or a folder in the form of Hugging Face's GPT-2: config.json, "
           "model.safetensors and a tokenizer; that must be local (a path, or file:/path). The "
           "same seed gives the same text.",
};

int cmd_sample(int argc, char **argv) {
    struct rf_error err = {.rank = -1};
    struct settings settings = {.tokens = TOKENS_DEFAULT};

    rf_sampler_options_init(&settings.options);
    if (argp_parse(&parser, argc, argv, 0, NULL, &settings)) {
        return exit_status(RF_EUSAGE);
    }
    int code = sample(&settings, &err);
    if (!code && (fflush(stdout) || ferror(stdout))) {
        code = report_fail(&err, RF_EIO, errno, "cannot write the result");
    }
    if (code) {
        report_error(&err);
    }
    return exit_status(code);
}
