/* The work of `ringfold data tokens`: on a terminal it says how far it is, and it ends on a signal
 * between two reads, so that nothing half-made is left. */
#include "data_tokens.h"

#include "format.h"
#include "json_text.h"
#include "report.h"

#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t is_stopped;

static void stop(int signal) {
    (void)signal;
    is_stopped = 1;
}

static void signals_take(void) {
    struct sigaction action = {.sa_handler = stop};

    sigemptyset(&action.sa_mask);
    (void)sigaction(SIGINT, &action, NULL);
    (void)sigaction(SIGTERM, &action, NULL);
    (void)sigaction(SIGHUP, &action, NULL);
}

struct progress {
    bool is_shown, was_shown;
    time_t last;
};

static bool go_on(void *context, uint64_t done, uint64_t total) {
    struct progress *progress = context;
    char at[FORMAT_MAX], all[FORMAT_MAX];
    time_t now = time(NULL);

    if (progress->is_shown && now != progress->last) {
        progress->last = now;
        progress->was_shown = true;
        fprintf(stderr, "\r%s of %s read, in all passes ", format_bytes(at, done),
                format_bytes(all, total));
        fflush(stderr);
    }
    return !is_stopped;
}

static json_t *part_json(const struct rf_data_tokens_part *part) {
    return json_pack("{s:I, s:I, s:I}", "tokens", (json_int_t)part->tokens, "text_bytes",
                     (json_int_t)part->text_bytes, "file_bytes", (json_int_t)part->file_bytes);
}

static int json_print(const char *folder, const char *tokenizer, const struct rf_data_tokens *made,
                      struct rf_error *err) {
    json_t *object = json_pack("{s:o, s:s, s:I, s:i, s:o, s:o}", "folder", json_text(folder),
                               "tokenizer", tokenizer, "vocabulary", (json_int_t)made->vocabulary,
                               "token_bytes", made->token_bytes, "train", part_json(&made->train),
                               "validation", part_json(&made->validation));
    char *text = object ? json_dumps(object, JSON_COMPACT) : NULL;

    int code = text ? RF_OK : report_fail(err, RF_ENOMEM, 0, "no memory for the result as JSON");

    if (text) {
        puts(text);
    }
    free(text);
    json_decref(object);
    return code;
}

static void part_print(const char *folder, const char *name,
                       const struct rf_data_tokens_part *part) {
    char tokens[FORMAT_MAX], text[FORMAT_MAX], file[FORMAT_MAX];

    if (part->file_bytes) {
        printf("%s/%s: %s tokens of %s bytes of text (%.2f bytes a token), %s\n", folder, name,
               format_count(tokens, part->tokens), format_count(text, part->text_bytes),
               (double)part->text_bytes / (double)part->tokens,
               format_bytes(file, part->file_bytes));
    }
}

int data_tokens_make(const char *const *texts, size_t count, const char *folder,
                     struct rf_data_tokens_options *options, bool json, struct rf_error *err) {
    struct progress progress = {.is_shown = !json && isatty(STDERR_FILENO), .last = time(NULL)};
    struct rf_data_tokens made;
    char vocabulary[FORMAT_MAX];

    signals_take();
    options->go_on = go_on;
    options->context = &progress;
    int code = rf_data_tokens(texts, count, folder, options, &made, err);
    if (progress.was_shown) {
        fputs("\r\033[K", stderr);
    }
    if (code) {
        return code;
    }
    if (json) {
        return json_print(folder, options->tokenizer, &made, err);
    } else {
        part_print(folder, "train.bin", &made.train);
        part_print(folder, "val.bin", &made.validation);
        printf("%s/tokenizer.json: %s, a vocabulary of %s, %d bits a token\n", folder,
               options->tokenizer, format_count(vocabulary, made.vocabulary), 8 * made.token_bytes);
    }
    return RF_OK;
}
