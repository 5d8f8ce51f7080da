/* Blobs of object storage from the command line, for the system tests.
 *
 *     blobs [options] URI put FILE NAME     FILE "-": from standard input, as it comes
 *     blobs [options] URI leave FILE NAME   as put, but neither finished nor abandoned
 *     blobs [options] URI drop FILE NAME    … but abandoned
 *     blobs [options] URI get NAME          to standard output
 *     blobs [options] URI list PREFIX       lines of: size, seconds, name
 *     blobs [options] URI remove NAME
 *     blobs [options] URI collect PREFIX AGE_S
 *
 * SIGTERM interrupts what is being done. Progress ("written N", "read N") and errors go to standard
 * error; an error is its name and text, then a line for each detail. */
#include "base/status.h"
#include "os/s3.h"

#include <getopt.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CHUNK_MAX = 64 << 20 };

struct task {
    struct rf__blobs *blobs;
    bool only_new;
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
                                                 {NULL, 0, NULL, 0}};
    struct rf__s3_options options = {0};
    struct task task = {.chunk_bytes = 1 << 20};
    struct rf_error err = {0};
    pthread_t waiter;
    sigset_t set;
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
