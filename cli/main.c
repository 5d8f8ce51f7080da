/* ringfold: finds the command that the first argument names and hands the rest over to it.
 *
 * Nothing else happens here: a command's own file knows its options, its help and its exit status.
 */
#include "commands.h"
#include "report.h"

#include <argp.h>
#include <ringfold/version.h>
#include <stdio.h>
#include <string.h>
#include <sysexits.h>

struct command {
    const char *name;
    int (*main)(int argc, char **argv);
    const char *summary;
};

static const struct command commands[] = {
    {"run", cmd_run, "start workers on this host and look after them"},
    {"train", cmd_train, "train a built-in model, as a worker or alone"},
    {"plan", cmd_plan, "show what a collective would send, without sending it"},
    {"bench", cmd_bench, "measure the collectives"},
    {"tune", cmd_tune, "measure which algorithms are the fastest here, and have them used"},
    {"store", cmd_store, "serve or look into a job's store"},
    {"drill", cmd_drill, "rehearse failures, and measure what they cost"},
    {"ckpt", cmd_ckpt, "look at checkpoints, verify, copy, export and prune them"},
    {"sample", cmd_sample, "write text with a trained gpt"},
    {"data", cmd_data, "index data files, find damage in them, make tokens of texts"},
    {"rollback", cmd_rollback, "send a running job back to a checkpoint"},
    {NULL, NULL, NULL},
};

enum { NAME_MAX_COMPARED = 32 };

static void print_help(FILE *out) {
    fputs("usage: ringfold [--version|--help] COMMAND ...\n\n"
          "Fault-tolerant, synchronous data-parallel training.\n\ncommands:\n",
          out);
    for (size_t i = 0; commands[i].name; i++) {
        fprintf(out, "  %-9s %s\n", commands[i].name, commands[i].summary);
    }
    fputs("\n'ringfold COMMAND --help' tells more about one of them.\n", out);
}

static const struct command *find_command(const char *name) {
    for (size_t i = 0; commands[i].name; i++) {
        if (!strcmp(commands[i].name, name)) {
            return &commands[i];
        }
    }
    return NULL;
}

/* Levenshtein's distance between two words, the second cut at NAME_MAX_COMPARED bytes. */
static size_t edit_distance(const char *a, const char *b) {
    size_t row[NAME_MAX_COMPARED + 1];
    size_t b_length = strnlen(b, NAME_MAX_COMPARED);

    for (size_t j = 0; j <= b_length; j++) {
        row[j] = j;
    }
    for (size_t i = 1; a[i - 1]; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= b_length; j++) {
            size_t best = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            best = row[j] + 1 < best ? row[j] + 1 : best;
            row[j] = row[j - 1] + 1 < best ? row[j - 1] + 1 : best;
        }
    }
    return row[b_length];
}

static const struct command *nearest_command(const char *name) {
    const struct command *nearest = NULL;
    size_t least = 3;

    for (size_t i = 0; commands[i].name; i++) {
        size_t distance = edit_distance(commands[i].name, name);
        if (distance < least) {
            least = distance;
            nearest = &commands[i];
        }
    }
    return nearest;
}

static int unknown_command(const char *name) {
    struct rf_error err;
    const struct command *nearest = nearest_command(name);

    report_fail(&err, RF_EUSAGE, 0, "there is no command '%s'", name);
    if (nearest) {
        snprintf(err.next, sizeof err.next, "did you mean:  ringfold %s", nearest->name);
    } else {
        snprintf(err.next, sizeof err.next, "ringfold --help  lists the commands");
    }
    report_error(&err);
    return EX_USAGE;
}

static int run_command(const struct command *command, int argc, char **argv) {
    static char full_name[64];

    snprintf(full_name, sizeof full_name, "ringfold %s", command->name);
    argv[0] = full_name;
    return command->main(argc, argv);
}

int main(int argc, char **argv) {
    argp_err_exit_status = EX_USAGE;
    if (argc < 2) {
        print_help(stderr);
        return EX_USAGE;
    }
    const char *name = argv[1];
    if (!strcmp(name, "--version") || !strcmp(name, "-V")) {
        printf("ringfold %s\n", rf_version());
        return 0;
    }
    bool help = !strcmp(name, "help");
    if (!strcmp(name, "--help") || !strcmp(name, "-h") || (help && argc < 3)) {
        print_help(stdout);
        return 0;
    }
    if (name[0] == '-') {
        struct rf_error err;
        report_fail(&err, RF_EUSAGE, 0, "unknown option '%s' before the command", name);
        snprintf(err.next, sizeof err.next, "ringfold --help  lists the commands");
        report_error(&err);
        return EX_USAGE;
    }
    const struct command *command = find_command(help ? argv[2] : name);
    if (!command) {
        return unknown_command(help ? argv[2] : name);
    }
    if (help) {
        static char help_flag[] = "--help";
        argv[2] = help_flag;
    }
    return run_command(command, argc - 1, argv + 1);
}
