/* The log of damaged data. One line, one write, to a file that is opened for appending: lines of
 * different workers do not mix. Which of them prints that a block is bad is settled under the
 * file's lock: who finds no line about it. */
#include "train_bad.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LOOK_MOST = 4 << 20 }; /* bytes of the log that are searched */

/* FNV-1a over the file's name and the offset: to tell blocks apart, no more. */
static uint64_t block_key(const struct rf_train_bad *bad) {
    uint64_t key = 0xcbf29ce484222325ull;

    for (const char *c = bad->file; *c; c++) {
        key = (key ^ (unsigned char)*c) * 0x100000001b3ull;
    }
    for (int i = 0; i < 8; i++) {
        key = (key ^ (bad->offset >> 8 * i & 0xff)) * 0x100000001b3ull;
    }
    return key;
}

/* Whether this worker meets the block for the first time, as far as it remembers. */
static bool is_new_here(struct train_bad_log *log, const struct rf_train_bad *bad) {
    uint64_t key = block_key(bad);

    for (int i = 0; i < log->count; i++) {
        if (log->told[i] == key) {
            return false;
        }
    }
    if (log->count == TRAIN_BAD_TOLD) {
        return false;
    }
    log->told[log->count++] = key;
    return true;
}

/* The line up to its end; free it. NULL: no memory. `place`, which begins the line, is what all
 * lines about one block share; its length goes to `shared`. */
static char *line_make(const struct rf_train_bad *bad, size_t *shared) {
    json_t *samples = json_array();
    json_t *place = json_pack("{s:s, s:I, s:I}", "file", bad->file, "block", (json_int_t)bad->block,
                              "offset", (json_int_t)bad->offset);
    json_t *rest = json_pack("{s:s, s:s, s:I, s:I, s:i, s:i, s:i, s:O}", "cause", bad->cause,
                             "part", bad->measure ? "test" : "train", "step", (json_int_t)bad->step,
                             "epoch", (json_int_t)bad->epoch, "worker", bad->id, "rank", bad->rank,
                             "count", (int)bad->count, "samples", samples);
    char *text = NULL;
    char *begin = place ? json_dumps(place, JSON_COMPACT) : NULL;

    for (uint32_t i = 0; i < bad->count; i++) {
        json_array_append_new(samples, json_integer(bad->samples[i]));
    }
    if (begin && rest && !json_object_update(place, rest)) {
        *shared = strlen(begin) - 1;
        text = json_dumps(place, JSON_COMPACT);
    }
    free(begin);
    json_decref(samples);
    json_decref(place);
    json_decref(rest);
    return text;
}

/* Whether a line of the file begins like this one. */
static bool is_logged(int fd, const char *line, size_t shared) {
    struct stat status;
    bool found = false;

    if (fstat(fd, &status) || !status.st_size) {
        return false;
    }
    size_t count = status.st_size < LOOK_MOST ? (size_t)status.st_size : LOOK_MOST;
    char *content = malloc(count);
    ssize_t got = content ? pread(fd, content, count, 0) : -1;
    found = got > 0 && memmem(content, (size_t)got, line, shared);
    free(content);
    return found;
}

/* 0 or errno; *is_first: nobody has told of the block before. */
static int append(const char *path, const char *line, size_t shared, bool *is_first) {
    struct stat status;
    char *whole = NULL;
    int failed = 0;

    int fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0) {
        return errno;
    }
    bool is_regular = !fstat(fd, &status) && S_ISREG(status.st_mode);
    if (is_regular) {
        flock(fd, LOCK_EX);
        *is_first = *is_first && !is_logged(fd, line, shared);
    }
    int length = asprintf(&whole, "%s\n", line);
    ssize_t n = length < 0 ? -1 : write(fd, whole, (size_t)length);
    if (n < 0) {
        failed = length < 0 ? ENOMEM : errno;
    } else if (n < length) {
        failed = ENOSPC;
    }
    free(whole);
    close(fd); /* and the lock with it */
    return failed;
}

static void block_print(struct train_bad_log *log, const struct rf_train_bad *bad) {
    fprintf(stderr, "! block %llu of '%s' (from byte %llu) is bad: %s; its samples are skipped\n",
            (unsigned long long)bad->block, bad->file, (unsigned long long)bad->offset, bad->cause);
    if (log->count == TRAIN_BAD_TOLD && !log->full_told) {
        log->full_told = true;
        fprintf(stderr, "! more bad blocks are told in %s only\n", TRAIN_BAD_FILE);
    }
}

void bad_log_take(struct train_bad_log *log, const char *folder, const struct rf_train_bad *bad) {
    char path[PATH_MAX];
    size_t shared = 0;
    int failed = 0;
    bool is_first = is_new_here(log, bad);

    if (folder) {
        int length = snprintf(path, sizeof path, "%s/%s", folder, TRAIN_BAD_FILE);
        char *line = line_make(bad, &shared);
        failed = length < 0 || length >= PATH_MAX ? ENAMETOOLONG
                 : !line                          ? ENOMEM
                                                  : append(path, line, shared, &is_first);
        free(line);
    }
    if (failed && !log->failed_told) {
        log->failed_told = true;
        fprintf(stderr, "! cannot write '%s/%s': %s; skipped samples are only counted\n", folder,
                TRAIN_BAD_FILE, strerror(failed));
    }
    if (is_first) {
        block_print(log, bad);
    }
}

bool bad_log_first(const char *folder, char *out, size_t bytes) {
    char path[PATH_MAX];
    const char *file, *cause;
    json_int_t block, offset;
    bool found = false;

    int length = snprintf(path, sizeof path, "%s/%s", folder, TRAIN_BAD_FILE);
    if (length > 0 && length < PATH_MAX) {
        json_t *line = NULL;
        FILE *stream = fopen(path, "re");
        if (stream) {
            line = json_loadf(stream, JSON_DISABLE_EOF_CHECK, NULL);
            fclose(stream);
        }
        found = line && !json_unpack(line, "{s:s, s:s, s:I, s:I}", "file", &file, "cause", &cause,
                                     "block", &block, "offset", &offset);
        if (found) {
            snprintf(out, bytes, "block %lld of '%.160s' (from byte %lld) is bad: %s",
                     (long long)block, file, (long long)offset, cause);
        }
        json_decref(line);
    }
    return found;
}
