/* ringfold data: makes the integrity indices of data files, and holds files against them.
 *
 *     ringfold data index [--force] FILE…
 *     ringfold data check [--retries N] FILE…
 *
 * One line a file, and for a damaged one a line a bad block; or JSON lines. A file that fails does
 * not keep the others from their turn; the first failure is the report. */
#include "commands.h"
#include "data_env.h"
#include "format.h"
#include "report.h"

#include <argp.h>
#include <jansson.h>
#include <ringfold/data.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>

enum { KEY_FORCE = 1000, KEY_RETRIES, KEY_JSON, RETRIES_MOST = 100 };

struct settings {
    struct rf_data_options options;
    bool is_check, action_given, json, retries_given;
    char **files; /* argp's own */
    int count;
};

static const struct argp_option flags[] = {
    {"force", KEY_FORCE, NULL, 0, "index: make it anew, in place of the one that is there", 0},
    {"retries", KEY_RETRIES, "N", 0, "check: read a bad block again up to N times (0)", 0},
    {"json", KEY_JSON, NULL, 0, "Results as JSON lines", 0},
    {0},
};

static void take_word(struct settings *settings, char **word, struct argp_state *state) {
    if (settings->action_given) {
        settings->files[settings->count++] = *word;
    } else if (!strcmp(*word, "index") || !strcmp(*word, "check")) {
        settings->action_given = true;
        settings->is_check = (*word)[0] == 'c';
    } else {
        argp_error(state, "'%s' is none of index, check", *word);
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
    case KEY_JSON:
        settings->json = true;
        break;
    case ARGP_KEY_ARG:
        take_word(settings, &argument, state);
        break;
    case ARGP_KEY_END:
        if (!settings->action_given) {
            argp_error(state, "what is to be done? 'index' or 'check'");
        } else if (!settings->count) {
            argp_error(state, "%s needs a file", settings->is_check ? "check" : "index");
        } else if (settings->is_check && settings->options.force) {
            argp_error(state, "--force is for index: check changes nothing");
        } else if (!settings->is_check && settings->retries_given) {
            argp_error(state, "--retries is for check");
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
    .args_doc = "index FILE...\ncheck FILE...",
    .doc =
        "Make the integrity indices of data files, or hold files against them.\v"
        "An index has a digest for each block of 64 KiB, made while the file is whole. It stands "
        "beside the file as FILE.rfindex, or in the cache folder where that cannot be written. "
        "Training makes the missing ones of plain files itself.",
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

int cmd_data(int argc, char **argv) {
    struct settings settings = {0};
    char cache[PATH_MAX];
    struct rf_error first = {0};

    rf_data_options_init(&settings.options);
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
    for (int i = 0; i < settings.count; i++) {
        struct rf_error err = {0};
        int code = settings.is_check ? check_one(&settings, settings.files[i], &err)
                                     : index_one(&settings, settings.files[i], &err);
        if (code && !first.code) {
            first = err;
        }
    }
    free(settings.files);
    if (first.code) {
        report_error(&first);
    }
    return exit_status(first.code);
}
