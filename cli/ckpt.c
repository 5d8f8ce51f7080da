/* ringfold ckpt: looks at the checkpoints under a URI, verifies, copies, exports and prunes them.
 *
 *     ringfold ckpt list|show|verify|copy|export|prune URI [OPTION]...
 *
 * Results go to stdout, for people or as JSON; what is no good goes to stderr as a report. */
#include "ckpt_show.h"
#include "commands.h"
#include "format.h"
#include "report.h"

#include <argp.h>
#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <ringfold/ckpt.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct settings;

/* An action, and the options that it needs or may have besides --json. */
struct action {
    const char *name;
    int (*run)(const struct settings *settings, struct rf_error *err);
    const char *needs, *takes; /* keys of options */
};

struct settings {
    const struct action *action;
    const char *uri, *step, *to, *output, *data;
    int keep; /* 0: not given */
    bool gpt2, optimizer, mark, json;
    char given[8]; /* keys of the options that were given */
};

enum { KEY_JSON = 1000 };

static const struct argp_option flags[] = {
    {"step", 's', "N", 0, "Which one: its step, or its name from the list (the newest whole one)",
     0},
    {"to", 't', "URI", 0, "copy: where to", 0},
    {"output", 'o', "FILE", 0, "export: the safetensors file to write, or the folder", 0},
    {"format", 'f', "FORMAT", 0,
     "export: safetensors, one file; or gpt2, a folder as Hugging Face's GPT-2 (safetensors)", 0},
    {"data", 'd', "FOLDER", 0,
     "export, gpt2: where the tokenizer is (the data that it was trained on)", 0},
    {"optimizer", 'p', NULL, 0, "export: the optimizer's state too", 0},
    {"keep", 'k', "K", 0, "prune: how many of the newest whole ones stay", 0},
    {"mark", 'm', NULL, 0, "verify: mark what is no good, so that no run starts from it", 0},
    {"json", KEY_JSON, NULL, 0, "Results as JSON", 0},
    {0},
};

static void print_json(json_t *value) {
    json_dumpf(value, stdout, JSON_INDENT(2) | JSON_PRESERVE_ORDER);
    puts("");
    json_decref(value);
}

/* ---- list ---- */

struct listing {
    bool json;
    json_t *all;
    int counts[3], shown;
    char newest[RF_CKPT_NAME];
};

static void list_one(void *context, const struct rf_ckpt_info *info) {
    struct listing *listing = context;

    listing->counts[info->condition]++;
    if (info->condition == RF_CKPT_WHOLE) {
        memcpy(listing->newest, info->name, sizeof listing->newest);
    }
    if (listing->json) {
        json_array_append_new(listing->all, ckpt_info_json(info));
        return;
    }
    if (!listing->shown++) {
        ckpt_list_head();
    }
    ckpt_list_line(info);
}

static int list(const struct settings *settings, struct rf_error *err) {
    struct listing listing = {.json = settings->json, .all = json_array()};
    struct rf_ckpt_parting parting = {0};

    int code = rf_ckpt_list(settings->uri, list_one, &listing, &parting, err);
    if (code) {
        json_decref(listing.all);
    } else if (settings->json) {
        json_t *object = ckpt_parting_json(&parting);
        json_object_set_new(object, "checkpoints", listing.all);
        print_json(object);
    } else {
        json_decref(listing.all);
        if (listing.shown) {
            ckpt_list_foot(listing.counts, listing.newest, &parting);
        } else {
            printf("no checkpoints under %s\n", settings->uri);
        }
    }
    return code;
}

/* ---- show ---- */

static int show(const struct settings *settings, struct rf_error *err) {
    struct rf_ckpt *ckpt = NULL;

    int code = rf_ckpt_open(settings->uri, settings->step, &ckpt, err);
    if (!code && settings->json) {
        print_json(ckpt_json(ckpt));
    } else if (!code) {
        ckpt_show(ckpt);
    }
    rf_ckpt_close(ckpt);
    return code;
}

/* ---- verify ---- */

struct verifying {
    bool json;
    json_t *parts;
    int good, bad;
};

static void verify_part(void *context, int part, int code, const struct rf_error *err) {
    struct verifying *v = context;

    v->good += code == 0;
    v->bad += code != 0;
    if (v->json) {
        json_array_append_new(v->parts, json_pack("{s:i, s:b, s:s}", "part", part, "good",
                                                  code == 0, "problem", code ? err->text : ""));
    } else if (code) {
        printf("  part %d: %s\n", part, err->text);
    }
}

/* One checkpoint. `first` gets the error of the first that is no good. */
static int verify_one(const struct settings *settings, const char *which, json_t *all,
                      struct rf_error *first) {
    struct verifying v = {.json = settings->json, .parts = json_array()};
    struct rf_error err = {.rank = -1}, problem = {.rank = -1};
    struct rf_ckpt *ckpt = NULL;
    struct rf_ckpt_info info = {0};

    int code = rf_ckpt_open(settings->uri, which, &ckpt, &err);
    if (!code) {
        rf_ckpt_get_info(ckpt, &info);
        code = rf_ckpt_verify(ckpt, verify_part, &v, &err);
        if (settings->json) {
            json_array_append_new(all, json_pack("{s:s, s:b, s:O}", "name", info.name, "good",
                                                 code == 0, "parts", v.parts));
        } else {
            printf("%s  %s, %d of %d parts verified\n", info.name, code ? "no good" : "good",
                   v.good, info.parts);
        }
    }
    if (!ckpt && settings->json) {
        json_array_append_new(
            all, json_pack("{s:s, s:b, s:s}", "name", which, "good", 0, "problem", err.text));
    } else if (!ckpt) {
        printf("%s  no good: %s\n", which, err.text);
    }
    if (settings->mark && (code == RF_ECHECKPOINT || code == RF_EIO) && ckpt) {
        int marked = rf_ckpt_mark_bad(ckpt, err.text, "ringfold ckpt verify", &problem);
        if (marked) {
            code = marked;
            err = problem;
        } else if (!settings->json) {
            printf("%s  is marked as bad\n", info.name);
        }
    }
    if (code && !first->code) {
        *first = err;
        first->code = code;
    }
    json_decref(v.parts);
    rf_ckpt_close(ckpt);
    return code;
}

/* All that say they are good. What is marked is known not to be. */
static void collect_name(void *context, const struct rf_ckpt_info *info) {
    if (info->condition != RF_CKPT_INCOMPLETE && !info->marked) {
        json_array_append_new(context, json_string(info->name));
    }
}

static int verify(const struct settings *settings, struct rf_error *err) {
    json_t *names = json_array(), *all = json_array(), *name;
    size_t i;
    int code = 0;

    if (settings->step) {
        json_array_append_new(names, json_string(settings->step));
    } else {
        code = rf_ckpt_list(settings->uri, collect_name, names, NULL, err);
    }
    if (!code) {
        err->code = 0;
        json_array_foreach(names, i, name) {
            (void)verify_one(settings, json_string_value(name), all, err);
        }
        code = err->code;
        if (settings->json) {
            print_json(json_incref(all));
        }
        if (!code && !json_array_size(names)) { /* a slip in the URI shall not look like success */
            code = report_fail(err, RF_ENOTFOUND, 0, "there is no checkpoint to verify in '%s'",
                               settings->uri);
            snprintf(err->next, sizeof err->next, "ringfold ckpt list %s", settings->uri);
        }
    }
    json_decref(all);
    json_decref(names);
    return code;
}

/* ---- copy, export, prune ---- */

static int copy(const struct settings *settings, struct rf_error *err) {
    struct rf_ckpt *ckpt = NULL;
    struct rf_ckpt_info info;
    char size[FORMAT_MAX];

    int code = rf_ckpt_open(settings->uri, settings->step, &ckpt, err);
    code = code ? code : rf_ckpt_copy(ckpt, settings->to, err);
    if (!code) {
        rf_ckpt_get_info(ckpt, &info);
        if (settings->json) {
            print_json(json_pack("{s:s, s:s, s:I}", "name", info.name, "to", settings->to, "bytes",
                                 (json_int_t)info.bytes));
        } else {
            printf("%s  copied to %s, %s in %d parts, each verified\n", info.name, settings->to,
                   format_bytes(size, info.bytes), info.parts);
        }
    }
    rf_ckpt_close(ckpt);
    return code;
}

static int export_gpt2(const struct settings *settings, struct rf_error *err) {
    struct rf_ckpt *ckpt = NULL;
    struct rf_ckpt_info info;
    struct rf_ckpt_gpt2 made;
    char size[FORMAT_MAX], count[FORMAT_MAX];

    int code = rf_ckpt_open(settings->uri, settings->step, &ckpt, err);
    code = code ? code : rf_ckpt_export_gpt2(ckpt, settings->output, settings->data, &made, err);
    if (!code) {
        rf_ckpt_get_info(ckpt, &info);
        if (settings->json) {
            print_json(json_pack("{s:s, s:s, s:s, s:I, s:i, s:I, s:b}", "name", info.name, "output",
                                 settings->output, "format", "gpt2", "bytes",
                                 (json_int_t)made.bytes, "tensors", made.tensors, "parameters",
                                 (json_int_t)made.parameters, "tokenizer", made.tokenizer));
        } else {
            printf("%s  exported to %s: %s parameters in %d tensors, %s, %s tokenizer\n", info.name,
                   settings->output, format_count(count, made.parameters), made.tensors,
                   format_bytes(size, made.bytes), made.tokenizer ? "with its" : "without a");
        }
    }
    rf_ckpt_close(ckpt);
    return code;
}

static int export(const struct settings *settings, struct rf_error *err) {
    struct rf_ckpt *ckpt = NULL;
    struct rf_ckpt_info info;
    struct rf_ckpt_tensor tensor;
    char size[FORMAT_MAX];
    uint64_t bytes = 0;
    int count = 0;

    if (settings->gpt2) {
        return export_gpt2(settings, err);
    }
    int code = rf_ckpt_open(settings->uri, settings->step, &ckpt, err);
    code = code ? code : rf_ckpt_export(ckpt, settings->output, settings->optimizer, &bytes, err);
    if (!code) {
        rf_ckpt_get_info(ckpt, &info);
        for (int i = 0; rf_ckpt_get_tensor(ckpt, i, &tensor); i++) {
            count += tensor.trained || settings->optimizer;
        }
        if (settings->json) {
            print_json(json_pack("{s:s, s:s, s:I, s:i}", "name", info.name, "output",
                                 settings->output, "bytes", (json_int_t)bytes, "tensors", count));
        } else {
            printf("%s  exported to %s: %d tensors, %s\n", info.name, settings->output, count,
                   format_bytes(size, bytes));
        }
    }
    rf_ckpt_close(ckpt);
    return code;
}

static int prune(const struct settings *settings, struct rf_error *err) {
    struct rf_ckpt_pruned p;
    char size[FORMAT_MAX];

    int code = rf_ckpt_prune(settings->uri, settings->keep, &p, err);
    if (!code && settings->json) {
        print_json(json_pack("{s:i, s:i, s:i, s:i, s:i, s:I}", "kept", p.kept, "removed", p.removed,
                             "bad", p.bad, "incomplete", p.incomplete, "unfinished", p.collected,
                             "bytes", (json_int_t)p.bytes));
    } else if (!code) {
        printf("kept %d; removed %d whole, %d bad, %d incomplete and %d unfinished writes: %s\n",
               p.kept, p.removed, p.bad, p.incomplete, p.collected, format_bytes(size, p.bytes));
    }
    return code;
}

/* ---- arguments ---- */

static const struct action actions[] = {
    {"list", list, "", ""},    {"show", show, "", "s"},          {"verify", verify, "", "sm"},
    {"copy", copy, "t", "st"}, {"export", export, "o", "sopfd"}, {"prune", prune, "k", "k"},
    {NULL, NULL, NULL, NULL},
};

static void take_word(struct settings *settings, const char *word, struct argp_state *state) {
    if (!settings->action) {
        for (const struct action *action = actions; action->name; action++) {
            if (!strcmp(action->name, word)) {
                settings->action = action;
            }
        }
        if (!settings->action) {
            argp_error(state, "'%s' is none of list, show, verify, copy, export, prune", word);
        }
    } else if (settings->uri) {
        argp_error(state, "'%s' is one word too many", word);
    } else {
        settings->uri = word;
    }
}

static const char *name_of(int key) {
    const struct argp_option *flag = flags;
    while (flag->name && flag->key != key) {
        flag++;
    }
    return flag->name;
}

static void check_words(const struct settings *settings, struct argp_state *state) {
    const struct action *action = settings->action;

    if (!action) {
        argp_error(state, "which of list, show, verify, copy, export, prune?");
        return;
    }
    if (!settings->uri) {
        argp_error(state,
                   "%s needs the URI of the checkpoints: a path, file:/path, "
                   "s3://bucket/prefix or gs://bucket/prefix",
                   action->name);
    }
    for (const char *key = action->needs; *key; key++) {
        if (!strchr(settings->given, *key)) {
            argp_error(state, "%s needs --%s", action->name, name_of(*key));
        }
    }
    for (const char *key = settings->given; *key; key++) {
        if (!strchr(action->takes, *key)) {
            argp_error(state, "%s has no --%s", action->name, name_of(*key));
        }
    }
    if (settings->gpt2 ? settings->optimizer : settings->data != NULL) {
        argp_error(state, "--%s is not for the format %s", settings->gpt2 ? "optimizer" : "data",
                   settings->gpt2 ? "gpt2" : "safetensors");
    }
}

static void note(struct settings *settings, int key) {
    size_t length = strlen(settings->given);
    if (!strchr(settings->given, key) && length + 1 < sizeof settings->given) {
        settings->given[length] = (char)key;
    }
}

static error_t parse(int key, char *argument, struct argp_state *state) {
    struct settings *settings = state->input;

    switch (key) {
    case 's':
        settings->step = argument;
        break;
    case 't':
        settings->to = argument;
        break;
    case 'o':
        settings->output = argument;
        break;
    case 'p':
        settings->optimizer = true;
        break;
    case 'f':
        settings->gpt2 = !strcmp(argument, "gpt2");
        if (!settings->gpt2 && strcmp(argument, "safetensors")) {
            argp_error(state, "--format '%s' is neither safetensors nor gpt2", argument);
        }
        break;
    case 'd':
        settings->data = argument;
        break;
    case 'k':
        if (parse_int(argument, 1, INT_MAX, &settings->keep)) {
            argp_error(state, "--keep '%s' is not a number from 1", argument);
        }
        break;
    case 'm':
        settings->mark = true;
        break;
    case KEY_JSON:
        settings->json = true;
        return 0;
    case ARGP_KEY_ARG:
        take_word(settings, argument, state);
        return 0;
    case ARGP_KEY_END:
        check_words(settings, state);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    note(settings, key);
    return 0;
}

static const struct argp parser = {
    .options = flags,
    .parser = parse,
    .args_doc = "list URI\nshow URI\nverify URI\ncopy URI --to URI\nexport URI --output FILE\n"
                "prune URI --keep K",
    .doc = "Look at the checkpoints under a URI, verify, copy, export and prune them."
           "\vURI is a path, file:/path, s3://bucket/prefix or gs://bucket/prefix. verify without "
           "--step reads every one. export writes one safetensors file that other tools read, or "
           "with --format gpt2 a folder as Hugging Face's tools have it, of the gpt model.",
};

int cmd_ckpt(int argc, char **argv) {
    struct rf_error err = {.rank = -1};
    struct settings settings = {0};

    if (argp_parse(&parser, argc, argv, 0, NULL, &settings)) {
        return exit_status(RF_EUSAGE);
    }
    int code = settings.action->run(&settings, &err);
    if (!code && (fflush(stdout) || ferror(stdout))) {
        code = report_fail(&err, RF_EIO, errno, "cannot write the result");
    }
    if (code) {
        report_error(&err);
    }
    return exit_status(code);
}
