/* Blobs of object storage from the command line, for the system tests.
 *
 *     blobs [options] URI put FILE NAME     FILE "-": from standard input, as it comes
 *     blobs [options] URI leave FILE NAME   as put, but neither finished nor abandoned
 *     blobs [options] URI drop FILE NAME    … but abandoned
 *     blobs [options] URI get NAME          to standard output
 *     blobs [options] URI list PREFIX       lines of: size, seconds, name
 *     blobs [options] URI remove NAME
 *     blobs [options] URI collect PREFIX AGE_S
 *     blobs [options] URI storm COUNT       that many threads at once, each writing, reading,
 * removing
 *
 * With --again a write that failed is repeated once; with --fail-alloc K the allocation after K
 * more fails. SIGTERM interrupts what is being done. Progress ("written N", "read N") and errors go
 * to standard error; an error is its name and text, then a line for each detail. */
#include "base/mem.h"
#include "base/status.h"
#include "os/s3.h"

#include <getopt.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CHUNK_MAX = 64 << 20, GUSTS_MAX = 16 };

struct task {
    struct rf__blobs *blobs;
    bool only_new;
    bool again;
    bool step; /* wait for a line of standard input before each further chunk is read */
    size_t chunk_bytes;
    char *chunk;
};

static int put(struct task *task, const char *path, const char *name, const char *end,
               struct rf_error *err) {
    struct rf__blob_writer *writer;
    uint64_t total = 0;
    size_t got;

    FILE *file = strcmp(path, "-") ? fopen(path, "rb") : stdin;
    if (!file) {
        return rf__fail(err, RF_EIO, 0, "cannot open '%s'", path);
    }
    const struct rf__blob_ops *ops = task->blobs->ops;
    int code = ops->create(task->blobs, name, &writer, err);
    if (code) {
        return code;
    }
    while (!code && (got = fread(task->chunk, 1, task->chunk_bytes, file)) > 0) {
        code = ops->write(task->blobs, writer, task->chunk, got, err);
        if (code && task->again) {
            task->again = false;
            code = ops->write(task->blobs, writer, task->chunk, got, err);
        }
        total += code ? 0 : got;
        fprintf(stderr, "written %llu\n", (unsigned long long)total);
    }
    if (code || !strcmp(end, "drop")) {
        ops->abandon(task->blobs, writer);
    } else if (!strcmp(end, "put")) {
        code = ops->finish(task->blobs, writer, task->only_new, err);
    } else {
        _exit(0); /* as if it had been killed here */
    }
    return code;
}

static int get(struct task *task, const char *name, struct rf_error *err) {
    struct rf__blob *blob;
    uint64_t bytes, offset = 0;

    int code = task->blobs->ops->open(task->blobs, name, &blob, &bytes, err);
    if (code) {
        return code;
    }
    while (!code) {
        char line[16];
        ssize_t got =
            task->blobs->ops->read(task->blobs, blob, offset, task->chunk, task->chunk_bytes, err);
        if (got <= 0) {
            code = (int)got;
            break;
        }
        offset += (uint64_t)got;
        fwrite(task->chunk, 1, (size_t)got, stdout);
        fprintf(stderr, "read %llu\n", (unsigned long long)offset);
        if (task->step && !fgets(line, sizeof line, stdin)) {
            break;
        }
    }
    task->blobs->ops->close(task->blobs, blob);
    return code || offset == bytes ? code : rf__fail(err, RF_EIO, 0, "'%s' ended early", name);
}

static int print_entry(void *context, const struct rf__blob_entry *entry) {
    (void)context;
    return printf("%llu %lld %s\n", (unsigned long long)entry->bytes, (long long)entry->modified_s,
                  entry->name) < 0
               ? RF_EIO
               : RF_OK;
}

static int collect(struct task *task, const char *prefix, const char *age, struct rf_error *err) {
    int count = task->blobs->ops->collect(task->blobs, prefix, atoll(age), err);

    if (count >= 0) {
        printf("%d\n", count);
    }
    return count < 0 ? count : RF_OK;
}

/* One thread of a storm: its own blob, of a size of its own, there and back. */
struct gust {
    struct rf__blobs *blobs;
    unsigned number;
    int code;
    struct rf_error err;
    pthread_t thread;
};

static int blow(struct gust *gust, char *sent, char *got, size_t bytes) {
    const struct rf__blob_ops *ops = gust->blobs->ops;
    struct rf__blob_writer *writer;
    struct rf__blob *blob;
    char name[32];
    uint64_t there;

    snprintf(name, sizeof name, "storm/%u", gust->number);
    memset(sent, 'a' + (int)(gust->number % 26), bytes);
    int code = ops->create(gust->blobs, name, &writer, &gust->err);
    if (code) {
        return code;
    }
    code = ops->write(gust->blobs, writer, sent, bytes, &gust->err);
    if (code) {
        ops->abandon(gust->blobs, writer);
        return code;
    }
    code = ops->finish(gust->blobs, writer, true, &gust->err);
    code = code ? code : ops->open(gust->blobs, name, &blob, &there, &gust->err);
    if (code) {
        return code;
    }
    ssize_t read = ops->read(gust->blobs, blob, 0, got, bytes, &gust->err);
    ops->close(gust->blobs, blob);
    if (read < 0) {
        return (int)read;
    }
    if (there != bytes || (size_t)read != bytes || memcmp(sent, got, bytes) != 0) {
        return rf__fail(&gust->err, RF_EDATA, 0, "'%s' is not what was written", name);
    }
    return ops->remove(gust->blobs, name, &gust->err);
}

static void *run_gust(void *context) {
    struct gust *gust = context;
    size_t bytes = ((size_t)gust->number << 20) + gust->number;
    char *sent = malloc(bytes + 1), *got = malloc(bytes + 1);

    gust->code = sent && got ? blow(gust, sent, got, bytes)
                             : rf__fail(&gust->err, RF_ENOMEM, 0, "no memory for a storm");
    free(sent);
    free(got);
    return NULL;
}

static int storm(struct task *task, const char *count_text, struct rf_error *err) {
    static struct gust gusts[GUSTS_MAX];
    unsigned count = (unsigned)atoi(count_text), started = 0;
    int code = RF_OK;

    for (; started < count && started < GUSTS_MAX; started++) {
        gusts[started] = (struct gust){.blobs = task->blobs, .number = started};
        if (pthread_create(&gusts[started].thread, NULL, run_gust, &gusts[started])) {
            code = rf__fail(err, RF_EINTERNAL, 0, "no thread for a storm");
            break;
        }
    }
    for (unsigned i = 0; i < started; i++) {
        pthread_join(gusts[i].thread, NULL);
        if (gusts[i].code && !code) {
            code = gusts[i].code;
            *err = gusts[i].err;
        }
    }
    return code;
}

static int carry_out(struct task *task, int count, char **words, struct rf_error *err) {
    const char *verb = words[0];

    if (count == 3 && (!strcmp(verb, "put") || !strcmp(verb, "leave") || !strcmp(verb, "drop"))) {
        return put(task, words[1], words[2], verb, err);
    }
    if (count == 2 && !strcmp(verb, "get")) {
        return get(task, words[1], err);
    }
    if (count == 2 && !strcmp(verb, "list")) {
        return task->blobs->ops->list(task->blobs, words[1], print_entry, NULL, err);
    }
    if (count == 2 && !strcmp(verb, "remove")) {
        return task->blobs->ops->remove(task->blobs, words[1], err);
    }
    if (count == 3 && !strcmp(verb, "collect")) {
        return collect(task, words[1], words[2], err);
    }
    if (count == 2 && !strcmp(verb, "storm")) {
        return storm(task, words[1], err);
    }
    return rf__fail(err, RF_EUSAGE, 0, "unknown words: '%s' and %d more", verb, count - 1);
}

static void *wait_for_signal(void *context) {
    struct rf__blobs *blobs = context;
    sigset_t set;
    int caught;

    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    if (!sigwait(&set, &caught)) {
        blobs->ops->interrupt(blobs);
    }
    return NULL;
}

static void tell(const struct rf_error *err) {
    fprintf(stderr, "%s: %s\n", rf_error_name(err->code), err->text);
    fprintf(stderr, "what %s\nwhere %s\nwhy %s\nnext %s\n", err->what, err->where, err->why,
            err->next);
}

int main(int count, char **words) {
    static const struct option long_options[] = {{"endpoint", required_argument, NULL, 'e'},
                                                 {"deadline-ms", required_argument, NULL, 'd'},
                                                 {"stall-s", required_argument, NULL, 's'},
                                                 {"part-bytes", required_argument, NULL, 'p'},
                                                 {"max-keys", required_argument, NULL, 'm'},
                                                 {"new", no_argument, NULL, 'n'},
                                                 {"chunk-bytes", required_argument, NULL, 'c'},
                                                 {"step", no_argument, NULL, 't'},
                                                 {"again", no_argument, NULL, 'a'},
                                                 {"fail-alloc", required_argument, NULL, 'f'},
                                                 {NULL, 0, NULL, 0}};
    struct rf__s3_options options = {0};
    struct task task = {.chunk_bytes = 1 << 20};
    struct rf_error err = {0};
    pthread_t waiter;
    sigset_t set;
    long fail_after = -1;
    int option;

    while ((option = getopt_long(count, words, "+", long_options, NULL)) != -1) {
        unsigned long long number = optarg ? strtoull(optarg, NULL, 10) : 0;
        options.endpoint = option == 'e' ? optarg : options.endpoint;
        options.deadline_ms = option == 'd' ? (int64_t)number : options.deadline_ms;
        options.stall_s = option == 's' ? (int64_t)number : options.stall_s;
        options.part_bytes = option == 'p' ? (size_t)number : options.part_bytes;
        options.max_keys = option == 'm' ? (unsigned)number : options.max_keys;
        task.chunk_bytes =
            option == 'c' && number && number <= CHUNK_MAX ? (size_t)number : task.chunk_bytes;
        task.only_new |= option == 'n';
        task.step |= option == 't';
        task.again |= option == 'a';
        fail_after = option == 'f' ? (long)number : fail_after;
        if (option == '?') {
            return 64;
        }
    }
    if (count - optind < 2) {
        fprintf(stderr, "usage: blobs [options] URI put|leave|drop|get|list|remove|collect …\n");
        return 64;
    }
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    task.chunk = malloc(task.chunk_bytes);
    int code = rf__s3_blobs_create(words[optind], &options, &task.blobs, &err);
    if (!task.chunk || code) {
        tell(&err);
        free(task.chunk);
        return 1;
    }
    if (pthread_create(&waiter, NULL, wait_for_signal, task.blobs)) {
        return 1;
    }
    rf__alloc_fail_after(fail_after);
    code = carry_out(&task, count - optind - 1, words + optind + 1, &err);
    if (code < 0) {
        tell(&err);
    }
    if (rf__s3_blobs_unconditional(task.blobs)) {
        fprintf(stderr, "unconditional\n");
    }
    pthread_cancel(waiter);
    pthread_join(waiter, NULL);
    task.blobs->ops->destroy(task.blobs);
    free(task.chunk);
    return code ? 1 : 0;
}
