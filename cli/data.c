/* ringfold data: makes the integrity indices of data files, holds files against them, and makes
 * tokens of texts.
 *
 *     ringfold data index [--force] FILE…
 *     ringfold data check [--retries N] FILE…
 *     ringfold data tokens [--tokenizer chars|bytes|gpt2] TEXT… -o FOLDER
 *
 * One line a file, and for a damaged one a line a bad block; or JSON lines. A file that fails does
 * not keep the others from their turn; the first failure is the report. */
#include "commands.h"
#include "data_env.h"
#include "data_tokens.h"
#include "format.h"
#include "report.h"

#include <argp.h>
#include <jansson.h>
#include <ringfold/data.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>

enum {
    KEY_FORCE = 1000,
    KEY_RETRIES,
    KEY_JSON,
    KEY_TOKENIZER,
    KEY_RANKS,
    KEY_VALIDATION,
    RETRIES_MOST = 100
};

enum action { NONE, INDEX, CHECK, TOKENS };

struct settings {
    enum action action;
    struct rf_data_options options;
    struct rf_data_tokens_options tokens;
    const char *folder;        /* of tokens */
    const char *tokens_option; /* one that was given and is for tokens alone */
    bool json, retries_given;
    char **files; /* argp's own */
    int count;
};

static const struct argp_option flags[] = {
    {"force", KEY_FORCE, NULL, 0, "index, tokens: make it anew, in place of what is there", 0},
    {"retries", KEY_RETRIES, "N", 0, "check: read a bad block again up to N times (0)", 0},
    {"tokenizer", KEY_TOKENIZER, "NAME", 0, "tokens: chars (the default), bytes or gpt2", 0},
    {"ranks", KEY_RANKS, "FILE", 0, "tokens: the .tiktoken file of gpt2", 0},
    {"validation", KEY_VALIDATION, "SHARE", 0,
     "tokens: the last part of each text that is for validation (0.1, also 10%)", 0},
    {"output", 'o', "FOLDER", 0, "tokens: where they go", 0},
    {"json", KEY_JSON, NULL, 0, "Results as JSON lines", 0},
    {0},
};

static void take_word(struct settings *settings, char **word, struct argp_state *state) {
    static const char *const names[] = {[INDEX] = "index", [CHECK] = "check", [TOKENS] = "tokens"};

    if (settings->action) {
        settings->files[settings->count++] = *word;
        return;
    }
    for (enum action a = INDEX; a <= TOKENS; a++) {
        if (!strcmp(*word, names[a])) {
            settings->action = a;
            return;
        }
    }
    argp_error(state, "'%s' is none of index, check, tokens", *word);
}

/* "0.1" or "10%". */
static int parse_share(const char *text, double *out) {
    char *end;
    double value = strtod(text, &end);

    if (end == text || !(value >= 0)) {
        return RF_EINVAL;
    }
    if (*end == '%') {
        value /= 100;
        end++;
    }
    if (*end || !(value < 1)) {
        return RF_EINVAL;
    }
    *out = value;
    return RF_OK;
}

/* Options that one action does not know are usage errors: they would be ignored in silence. */
static void check_usage(const struct settings *settings, struct argp_state *state) {
    bool is_gpt2 = !strcmp(settings->tokens.tokenizer, "gpt2");

    if (!settings->action) {
        argp_error(state, "what is to be done? 'index', 'check' or 'tokens'");
    } else if (!settings->count) {
        argp_error(state, "%s",
                   settings->action == TOKENS  ? "tokens needs a text"
                   : settings->action == CHECK ? "check needs a file"
                                               : "index needs a file");
    } else if (settings->action == CHECK && settings->options.force) {
        argp_error(state, "--force is for index and tokens: check changes nothing");
    } else if (settings->action != CHECK && settings->retries_given) {
        argp_error(state, "--retries is for check");
    } else if (settings->action != TOKENS && settings->tokens_option) {
        argp_error(state, "--%s is for tokens", settings->tokens_option);
    } else if (settings->action == TOKENS && !settings->folder) {
        argp_error(state, "tokens needs a folder to go to: -o FOLDER");
    } else if (settings->action == TOKENS && is_gpt2 && !settings->tokens.ranks) {
        argp_error(state, "gpt2 needs --ranks FILE, its r50k_base.tiktoken");
    } else if (settings->action == TOKENS && !is_gpt2 && settings->tokens.ranks) {
        argp_error(state, "--ranks is for --tokenizer gpt2");
    }
}

static error_t parse(int key, char *argument, struct argp_state *state) {
    struct settings *settings = state->input;

    switch (key) {
    case KEY_FORCE:
        settings->options.force = true;
        break;
    case KEY_RETRIES:
        settings->retries_given = true;
        if (parse_int(argument, 0, RETRIES_MOST, &settings->options.retries)) {
            argp_error(state, "--retries '%s' is not a number from 0 to %d", argument,
                       RETRIES_MOST);
        }
        break;
    case KEY_TOKENIZER:
        settings->tokens_option = "tokenizer";
        settings->tokens.tokenizer = argument;
        if (strcmp(argument, "chars") && strcmp(argument, "bytes") && strcmp(argument, "gpt2")) {
            argp_error(state, "--tokenizer '%s' is none of chars, bytes, gpt2", argument);
        }
        break;
    case KEY_RANKS:
        settings->tokens_option = "ranks";
        settings->tokens.ranks = argument;
        break;
    case KEY_VALIDATION:
        settings->tokens_option = "validation";
        if (parse_share(argument, &settings->tokens.validation)) {
            argp_error(state, "--validation '%s' is not a share from 0 to less than 1", argument);
        }
        break;
    case 'o':
        settings->tokens_option = "output";
        settings->folder = argument;
        break;
    case KEY_JSON:
        settings->json = true;
        break;
    case ARGP_KEY_ARG:
        take_word(settings, &argument, state);
        break;
    case ARGP_KEY_END:
        check_usage(settings, state);
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static const struct argp parser = {
    .options = flags,
    .parser = parse,
    .args_doc = "index FILE...\ncheck FILE...\ntokens TEXT... -o FOLDER",
    .doc =
        "Make the integrity indices of data files, hold files against them, or make tokens of "
        "texts.\v"
        "An index has a digest for each block of 64 KiB, made while the file is whole. It stands "
        "beside the file as FILE.rfindex, or in the cache folder where that cannot be written. "
        "Training makes the missing ones of plain files itself.\n\n"
        "tokens writes train.bin, val.bin, their indices and tokenizer.json to FOLDER: all of "
        "them or none. With chars each character of the texts is a token, with bytes each byte, "
        "with gpt2 GPT-2's byte pairs are.",
};

static void json_print(json_t *object) {
    char *text = object ? json_dumps(object, JSON_COMPACT) : NULL;
    puts(text ? text : "{}");
    free(text);
    json_decref(object);
}

/* --- index ------------------------------------------------------------------------------------ */

static int index_one(const struct settings *settings, const char *path, struct rf_error *err) {
    static struct rf_data_index index; /* large */
    char bytes[FORMAT_MAX], blocks[FORMAT_MAX];

    int code = rf_data_index(path, &settings->options, &index, err);
    if (code) {
        return code;
    }
    if (settings->json) {
        json_print(json_pack("{s:s, s:s, s:I, s:I, s:b}", "file", path, "index", index.where,
                             "bytes", (json_int_t)index.bytes, "blocks", (json_int_t)index.blocks,
                             "new", (int)index.is_new));
    } else {
        printf("%s: %s bytes in %s blocks, %s %s\n", path, format_count(bytes, index.bytes),
               format_count(blocks, index.blocks), index.is_new ? "indexed in" : "already in",
               index.where);
    }
    return RF_OK;
}

/* --- check ------------------------------------------------------------------------------------ */

struct checking {
    const struct settings *settings;
    const char *path;
};

static void bad_print(void *context, const struct rf_data_bad *bad) {
    const struct checking *checking = context;
    char offset[FORMAT_MAX];

    if (checking->settings->json) {
        json_print(json_pack("{s:s, s:I, s:I, s:I, s:s}", "file", checking->path, "block",
                             (json_int_t)bad->block, "offset", (json_int_t)bad->offset, "bytes",
                             (json_int_t)bad->bytes, "cause", bad->cause));
    } else {
        printf("%s: block %llu, %llu bytes from %s: %s\n", checking->path,
               (unsigned long long)bad->block, (unsigned long long)bad->bytes,
               format_count(offset, bad->offset), bad->cause);
    }
}

static int check_one(const struct settings *settings, const char *path, struct rf_error *err) {
    struct checking checking = {settings, path};
    struct rf_data_check check;
    char bytes[FORMAT_MAX], blocks[FORMAT_MAX], again[FORMAT_MAX];

    int code = rf_data_check(path, &settings->options, bad_print, &checking, &check, err);
    if (code && code != RF_EDATA) {
        return code;
    }
    if (settings->json) {
        json_print(json_pack("{s:s, s:I, s:I, s:I, s:I, s:I}", "file", path, "bytes",
                             (json_int_t)check.bytes, "found", (json_int_t)check.found, "blocks",
                             (json_int_t)check.blocks, "bad", (json_int_t)check.bad, "recovered",
                             (json_int_t)check.recovered));
    } else if (!code) {
        printf("%s: good, %s bytes in %s blocks\n", path, format_count(bytes, check.found),
               format_count(blocks, check.blocks));
    }
    if (check.recovered && !settings->json) {
        printf("%s: %s blocks were good only when they were read again\n", path,
               format_count(again, check.recovered));
    }
    return code;
}

/* Each file in turn; the first failure is kept. */
static void files_each(const struct settings *settings, struct rf_error *first) {
    for (int i = 0; i < settings->count; i++) {
        struct rf_error err = {0};
        int code = settings->action == CHECK ? check_one(settings, settings->files[i], &err)
                                             : index_one(settings, settings->files[i], &err);
        if (code && !first->code) {
            *first = err;
        }
    }
}

int cmd_data(int argc, char **argv) {
    struct settings settings = {0};
    char cache[PATH_MAX];
    struct rf_error first = {0};

    rf_data_options_init(&settings.options);
    rf_data_tokens_options_init(&settings.tokens);
    settings.options.cache = data_cache_folder(cache);
    settings.options.bad_reads = data_bad_reads();
    settings.files = calloc((size_t)argc + 1, sizeof *settings.files);
    if (!settings.files) {
        report_fail(&first, RF_ENOMEM, 0, "no memory for the names of %d files", argc);
        report_error(&first);
        return 1;
    }
    if (argp_parse(&parser, argc, argv, 0, NULL, &settings)) {
        free(settings.files);
        return EX_USAGE;
    }
    if (settings.action == TOKENS) {
        settings.tokens.bad_reads = settings.options.bad_reads;
        settings.tokens.force = settings.options.force;
        (void)data_tokens_make((const char *const *)settings.files, (size_t)settings.count,
                               settings.folder, &settings.tokens, settings.json, &first);
    } else {
        files_each(&settings, &first);
    }
    free(settings.files);
    if (first.code) {
        report_error(&first);
    }
    return exit_status(first.code);
}
