/* The files of `ringfold train`: the run folder with metrics.jsonl, train.json, SUMMARY.md and the
 * weights; the user's log.
 *
 * A file that matters at its end only (weights, SUMMARY.md) is written under another name, synced
 * and renamed, so that it is whole or not there. A log is written a line at a time, under a lock:
 * in an elastic job another worker may have become rank 0 meanwhile, and a step that is there
 * already is left out. The first failure is kept in files->err; nothing is written after it. */
#include "report.h"
#include "train.h"
#include "train_bad.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { TENSOR_DIMS = 4, TENSOR_NAME = 128, HEADER_ALIGN = 8, LINE_MOST = 1 << 14 };

struct train_tensor {
    char name[TENSOR_NAME];
    size_t shape[TENSOR_DIMS];
    int dims;
    size_t count;
    float *data;
};

static void fail(struct train_files *files, int sys_errno, const char *doing, const char *path) {
    if (!files->err.code) {
        report_fail(&files->err, RF_EIO, sys_errno, "cannot %s '%.200s'", doing, path);
    }
}

static void fail_memory(struct train_files *files) {
    if (!files->err.code) {
        report_fail(&files->err, RF_ENOMEM, 0, "no memory for the records of the run");
    }
}

/* --- the run folder -----------------------------------------------------------------------------
 */

/* Makes the folder and those it is in. 0 or errno. */
static int make_folders(const char *path) {
    char part[PATH_MAX];

    snprintf(part, sizeof part, "%s", path);
    for (char *slash = strchr(part + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        if (mkdir(part, 0777) && errno != EEXIST) {
            return errno;
        }
        *slash = '/';
    }
    return mkdir(part, 0777) && errno != EEXIST ? errno : 0;
}

/* runs/latest names the newest; that it cannot be set spoils nothing. */
static void latest_link(const char *name) {
    char temporary[64];

    snprintf(temporary, sizeof temporary, "runs/.latest-%ld", (long)getpid());
    unlink(temporary);
    if (symlink(name, temporary) || rename(temporary, "runs/latest")) {
        unlink(temporary);
    }
}

static int folder_make(struct train_files *files, const struct train_settings *settings) {
    char name[128];
    struct tm local;
    time_t at = time(NULL);

    if (settings->run_dir) {
        snprintf(files->folder, sizeof files->folder, "%s", settings->run_dir);
    } else {
        localtime_r(&at, &local);
        int length = snprintf(name, sizeof name, "train-%.32s-", settings->train.model);
        strftime(name + length, sizeof name - (size_t)length, "%Y%m%d-%H%M%S", &local);
        for (char *c = name; *c; c++) {
            *c = *c == '/' ? '_' : *c;
        }
        snprintf(files->folder, sizeof files->folder, "runs/%s", name);
    }
    int failed = make_folders(files->folder);
    if (failed) {
        fail(files, failed, "make the run folder", files->folder);
        return RF_EIO;
    }
    if (!settings->run_dir) {
        latest_link(name);
    }
    return RF_OK;
}

/* out = FOLDER/NAME; false and a failure where that is too long. */
static bool path_join(struct train_files *files, char out[PATH_MAX], const char *name) {
    int length = snprintf(out, PATH_MAX, "%s/%s", files->folder, name);
    if (length < 0 || length >= PATH_MAX) {
        fail(files, ENAMETOOLONG, "use the run folder", files->folder);
        return false;
    }
    return true;
}

static void log_open(struct train_files *files, struct train_log *log, const char *path,
                     bool is_first) {
    struct stat status;
    int flags = O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | (is_first ? O_TRUNC : 0);

    *log = (struct train_log){.fd = open(path, flags, 0666), .path = path};
    if (log->fd < 0 && errno == EACCES) { /* a file that can only be written */
        log->fd = open(path, (flags & ~O_RDWR) | O_WRONLY, 0666);
    }
    if (log->fd < 0) {
        fail(files, errno, "write", path);
        return;
    }
    log->is_regular = !fstat(log->fd, &status) && S_ISREG(status.st_mode);
}

static void log_close(struct train_log *log) {
    if (log->fd >= 0) {
        close(log->fd);
    }
    log->fd = -1;
}

/* That a file cannot be written should be known before the training and not after it. */
static void writable_check(struct train_files *files, const char *path) {
    char temporary[PATH_MAX + 32];

    snprintf(temporary, sizeof temporary, "%s.tmp-%ld", path, (long)getpid());
    int fd = open(temporary, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0) {
        fail(files, errno, "write", path);
        return;
    }
    close(fd);
    unlink(temporary);
}

int files_open(struct train_files *files, const struct train_settings *settings, bool is_first,
               struct rf_error *err) {
    files->is_open = true;
    if (!folder_make(files, settings) && path_join(files, files->metrics_path, "metrics.jsonl") &&
        path_join(files, files->weights_path, "model.safetensors")) {
        char page[PATH_MAX];
        if (is_first && path_join(files, page, "SUMMARY.md")) {
            unlink(
                page); /* of an earlier training: whether it is there tells that this one ended */
        }
        if (is_first && path_join(files, page, TRAIN_BAD_FILE)) {
            unlink(page);
        }
        log_open(files, &files->metrics, files->metrics_path, is_first);
        if (settings->log) {
            log_open(files, &files->log, settings->log, is_first);
        }
        if (settings->save) {
            snprintf(files->weights_path, sizeof files->weights_path, "%s", settings->save);
            writable_check(files, files->weights_path);
        }
        if (settings->save_gradients) {
            files->gradients_path = settings->save_gradients;
            writable_check(files, files->gradients_path);
        }
    }
    *err = files->err;
    return err->code;
}

static void tensors_free(struct train_tensors *tensors) {
    for (size_t i = 0; i < tensors->count; i++) {
        free(tensors->list[i].data);
    }
    free(tensors->list);
    *tensors = (struct train_tensors){0};
}

void files_close(struct train_files *files) {
    log_close(&files->metrics);
    log_close(&files->log);
    files->is_open = false;
    tensors_free(&files->gradients);
    tensors_free(&files->weights);
}

/* --- whole files --------------------------------------------------------------------------------
 */

struct part {
    const void *bytes;
    size_t count;
};

static int write_all(int fd, const void *bytes, size_t count) {
    const char *at = bytes;
    while (count) {
        ssize_t n = write(fd, at, count);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            return errno;
        }
        at += n;
        count -= (size_t)n;
    }
    return 0;
}

/* The folder's own entry of the new name must reach the disk too. */
static int folder_sync(const char *path) {
    char folder[PATH_MAX];
    const char *slash = strrchr(path, '/');
    int length = slash ? (int)(slash - path) : 0;
    int failed = 0;

    snprintf(folder, sizeof folder, "%.*s", length, path);
    int fd = open(length ? folder : slash ? "/" : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        return errno;
    }
    if (fsync(fd) && errno != EINVAL && errno != EROFS) {
        failed = errno;
    }
    close(fd);
    return failed;
}

/* Writes the parts one after the other under another name, then renames: whole or not there. */
static void file_replace(struct train_files *files, const char *path, const struct part *parts,
                         size_t count) {
    char temporary[PATH_MAX + 32];
    int failed = 0;

    snprintf(temporary, sizeof temporary, "%s.tmp-%ld", path, (long)getpid());
    int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) {
        fail(files, errno, "write", path);
        return;
    }
    for (size_t i = 0; i < count && !failed; i++) {
        failed = write_all(fd, parts[i].bytes, parts[i].count);
    }
    if (!failed && fsync(fd)) {
        failed = errno;
    }
    if (close(fd) && !failed) {
        failed = errno;
    }
    if (!failed && rename(temporary, path)) {
        failed = errno;
    }
    if (!failed) {
        failed = folder_sync(path);
    } else {
        unlink(temporary);
    }
    if (failed) {
        fail(files, failed, "write", path);
    }
}

/* --- tensors ------------------------------------------------------------------------------------
 */

void files_tensor(struct train_files *files, bool gradient, const char *name, const float *data,
                  const size_t *shape, int dims) {
    struct train_tensors *tensors = gradient ? &files->gradients : &files->weights;

    if (files->err.code || (gradient && !files->gradients_path)) {
        return;
    }
    if (tensors->count == tensors->capacity) {
        size_t capacity = tensors->capacity ? 2 * tensors->capacity : 16;
        struct train_tensor *list = realloc(tensors->list, capacity * sizeof *list);
        if (!list) {
            fail_memory(files);
            return;
        }
        tensors->list = list;
        tensors->capacity = capacity;
    }
    struct train_tensor tensor = {.dims = dims, .count = 1};
    snprintf(tensor.name, sizeof tensor.name, "%s", name);
    for (int i = 0; i < dims; i++) {
        tensor.shape[i] = shape[i];
        tensor.count *= shape[i];
    }
    tensor.data = malloc(tensor.count * sizeof *data);
    if (!tensor.data) {
        fail_memory(files);
        return;
    }
    memcpy(tensor.data, data, tensor.count * sizeof *data);
    tensors->list[tensors->count++] = tensor;
}

/* The header's JSON: each tensor's type, shape and place, without holes. NULL: no memory. */
static char *safetensors_header(const struct train_tensors *tensors) {
    json_t *header = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
    size_t offset = 0;
    int failed = !header;

    for (size_t i = 0; i < tensors->count && !failed; i++) {
        const struct train_tensor *t = &tensors->list[i];
        json_t *shape = json_array();
        for (int d = 0; d < t->dims; d++) {
            failed |= json_array_append_new(shape, json_integer((json_int_t)t->shape[d]));
        }
        size_t end = offset + t->count * sizeof(float);
        failed |=
            json_object_set_new(header, t->name,
                                json_pack("{s:s, s:o, s:[I, I]}", "dtype", "F32", "shape", shape,
                                          "data_offsets", (json_int_t)offset, (json_int_t)end));
        offset = end;
    }
    char *text = failed ? NULL : json_dumps(header, JSON_COMPACT);
    json_decref(header);
    return text;
}

/* The bytes are those of little-endian machines, the only ones the data type of the format
 * describes. */
_Static_assert(__BYTE_ORDER == __LITTLE_ENDIAN, "tensors are written as they lie in memory");

static void safetensors_write(struct train_files *files, const char *path,
                              const struct train_tensors *tensors) {
    struct part *parts = calloc(tensors->count + 3, sizeof *parts);
    char *header = safetensors_header(tensors);

    if (!parts || !header) {
        fail_memory(files);
        goto out;
    }
    size_t length = strlen(header);
    size_t padding = (HEADER_ALIGN - length % HEADER_ALIGN) % HEADER_ALIGN;
    uint64_t announced = htole64(length + padding);
    parts[0] = (struct part){&announced, sizeof announced};
    parts[1] = (struct part){header, length};
    parts[2] = (struct part){"       ", padding};
    for (size_t i = 0; i < tensors->count; i++) {
        parts[3 + i] = (struct part){tensors->list[i].data, tensors->list[i].count * sizeof(float)};
    }
    file_replace(files, path, parts, tensors->count + 3);
out:
    free(header);
    free(parts);
}

void files_gradients_write(struct train_files *files) {
    if (!files->err.code && files->gradients_path) {
        safetensors_write(files, files->gradients_path, &files->gradients);
        tensors_free(&files->gradients);
    }
}

/* VmHWM: what getrusage tells may be of the program that this process was before. 0: not known. */
uint64_t train_peak_bytes(void) {
    char line[128];
    unsigned long long kib = 0;

    FILE *in = fopen("/proc/self/status", "re");
    while (in && !kib && fgets(line, sizeof line, in)) {
        if (!strncmp(line, "VmHWM:", 6)) {
            kib = strtoull(line + 6, NULL, 10);
        }
    }
    if (in) {
        fclose(in);
    }
    return kib << 10;
}

/* --- records ------------------------------------------------------------------------------------
 */

/* The order of lines: a measurement comes after the step that it is of. */
static uint64_t place_of(uint64_t step, bool measurement) {
    return 2 * step + measurement;
}

/* The place of the last whole line; what a writer that died has left of a line is cut
 * off. */
static void log_look_back(struct train_log *log, off_t size) {
    char tail[LINE_MOST];
    off_t from = size > LINE_MOST ? size - LINE_MOST : 0;

    ssize_t count = pread(log->fd, tail, sizeof tail, from);
    if (count <= 0) {
        return;
    }
    const char *end = memrchr(tail, '\n', (size_t)count);
    off_t whole = end ? from + (end + 1 - tail) : from;
    if (whole < size && (end || !from) && !ftruncate(log->fd, whole)) {
        size = whole;
    }
    const char *before = end ? memrchr(tail, '\n', (size_t)(end - tail)) : NULL;
    const char *line = before ? before + 1 : tail;
    json_t *object = end ? json_loadb(line, (size_t)(end - line), 0, NULL) : NULL;
    json_int_t step = json_integer_value(json_object_get(object, "step"));
    log->last = step > 0 ? place_of((uint64_t)step, json_object_get(object, "val_loss")) : 0;
    log->end = size;
    json_decref(object);
}

/* One object a line. `place` 0: it is not in the order of steps. */
static void line_write(struct train_files *files, struct train_log *log, uint64_t place,
                       const json_t *object) {
    struct stat status;
    int failed = 0;

    if (log->fd < 0 || files->err.code) {
        return;
    }
    char *text = json_dumps(object, JSON_COMPACT);
    if (!text) {
        fail_memory(files);
        return;
    }
    size_t length = strlen(text);
    text[length++] = '\n'; /* in place of the end */
    if (log->is_regular) {
        flock(log->fd, LOCK_EX);
        if (!fstat(log->fd, &status) && status.st_size != log->end) {
            log_look_back(log, status.st_size);
        }
    }
    if (!place || place > log->last) {
        failed = write_all(log->fd, text, length);
        log->end += (off_t)length;
        log->last = place ? place : log->last;
    }
    if (log->is_regular) {
        flock(log->fd, LOCK_UN);
    }
    free(text);
    if (failed) {
        fail(files, failed, "write", log->path);
    }
}

/* JSON has no word for what is not a number. */
static json_t *real(double value) {
    return isfinite(value) ? json_real(value) : json_null();
}

static json_t *hex(uint64_t value) {
    char text[20];
    snprintf(text, sizeof text, "0x%016llx", (unsigned long long)value);
    return json_string(text);
}

void files_step(struct train_files *files, const struct rf_train_step *s) {
    json_t *object = json_pack(
        "{s:I, s:I, s:o, s:o, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:I, s:I, s:f, s:o}", "step",
        (json_int_t)s->step, "epoch", (json_int_t)s->epoch, "loss", real(s->loss), "grad_norm",
        real(s->grad_norm), "lr", s->lr, "step_s", s->step_s, "compute_s", s->compute_s, "data_s",
        s->data_s, "comm_s", s->comm_s, "exposed_s", s->exposed_s, "wait_s", s->wait_s, "samples",
        (json_int_t)s->samples, "skipped", (json_int_t)s->skipped, "samples_per_s",
        s->samples_per_s, "digest", hex(s->digest));

    if (object && s->context) {
        json_object_set_new(object, "tokens", json_integer((json_int_t)(s->samples * s->context)));
        json_object_set_new(object, "tokens_per_s", json_real(s->samples_per_s * s->context));
    }
    if (!object) {
        fail_memory(files);
        return;
    }
    line_write(files, &files->metrics, place_of(s->step, false), object);
    line_write(files, &files->log, place_of(s->step, false), object);
    json_decref(object);
}

void files_measurement(struct train_files *files, const struct rf_train_epoch *e) {
    if (!e->context) {
        return;
    }
    json_t *object =
        json_pack("{s:I, s:I, s:o, s:o, s:I, s:I}", "step", (json_int_t)e->step, "epoch",
                  (json_int_t)e->epoch, "val_loss", real(e->test_loss), "val_accuracy",
                  real(e->accuracy), "val_tokens", (json_int_t)(e->test_samples * e->context),
                  "val_skipped", (json_int_t)e->test_skipped);
    if (!object) {
        fail_memory(files);
        return;
    }
    line_write(files, &files->metrics, place_of(e->step, true), object);
    json_decref(object);
}

/* The end of the last line that tells of `step` or an earlier one. */
static off_t end_of_step(const struct train_log *log, uint64_t step) {
    FILE *in = fdopen(dup(log->fd), "r");
    char *line = NULL;
    size_t room = 0;
    ssize_t length;
    off_t at = 0, end = 0;

    if (!in) {
        return -1;
    }
    rewind(in);
    while ((length = getline(&line, &room, in)) > 0) {
        json_t *object = json_loadb(line, (size_t)length, 0, NULL);
        json_int_t told = json_integer_value(json_object_get(object, "step"));
        at += length;
        if (told <= (json_int_t)step) {
            end = at;
        }
        json_decref(object);
    }
    free(line);
    fclose(in);
    return end;
}

static void log_go_back(struct train_log *log, uint64_t step) {
    if (log->fd < 0 || !log->is_regular) {
        return;
    }
    flock(log->fd, LOCK_EX);
    off_t end = end_of_step(log, step);
    if (end >= 0 && !ftruncate(log->fd, end)) {
        log->end = -1; /* to be looked at before the next line */
        log->last = place_of(step, false);
    }
    flock(log->fd, LOCK_UN);
}

void files_go_back(struct train_files *files, uint64_t step) {
    log_go_back(&files->metrics, step);
    log_go_back(&files->log, step);
}

static void setting_add(void *context, const char *name, const char *value, const char *source) {
    json_object_set_new(context, name, json_pack("{s:s, s:s}", "value", value, "source", source));
}

void files_start(struct train_files *files, const struct train_settings *settings,
                 const struct rf_train_start *start, const char *transport) {
    char path[PATH_MAX], host[256] = "";
    json_t *chosen = json_object();

    gethostname(host, sizeof host - 1);
    train_settings_each(settings, setting_add, chosen);
    json_t *object = json_pack(
        "{s:s, s:s, s:I, s:I, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o}",
        "version", rf_version(), "host", host, "pid", (json_int_t)getpid(), "workers",
        (json_int_t)start->size, "transport", transport, "compute", start->compute, "parameters",
        (json_int_t)start->parameters, "batch", (json_int_t)start->batch, "shards",
        (json_int_t)start->shards, "train_samples", (json_int_t)start->train_samples,
        "test_samples", (json_int_t)start->test_samples, "steps", (json_int_t)start->steps,
        "steps_per_epoch", (json_int_t)start->steps_per_epoch, "context",
        (json_int_t)start->context, "vocabulary", (json_int_t)start->vocabulary, "measured",
        (json_int_t)start->measured, "settings", chosen);
    char *text = object ? json_dumps(object, JSON_INDENT(2)) : NULL;
    if (!text) {
        fail_memory(files);
    } else if (path_join(files, path, "train.json")) {
        const struct part parts[] = {{text, strlen(text)}, {"\n", 1}};
        file_replace(files, path, parts, 2);
    }
    free(text);
    json_decref(object);
}

static void summary_log(struct train_files *files, const struct rf_train_result *r, int size) {
    json_t *digests = json_array();
    const struct rf_train_memory *m = &r->memory;

    for (int i = 0; i < size && i < RF_MAX_LOCAL_RANKS; i++) {
        json_array_append_new(digests, hex(r->digests[i]));
    }
    json_t *object = json_pack(
        "{s:o, s:o, s:o, s:I, s:I, s:I, s:f, s:f, s:o, s:o, s:I, s:f, s:f, s:f, s:f, s:f, s:f, "
        "s:f, s:b, s:I, s:{s:I, s:I, s:I, s:I, s:I}}",
        "accuracy", real(r->accuracy), "loss", real(r->loss), "test_loss", real(r->test_loss),
        "steps", (json_int_t)r->steps, "samples", (json_int_t)r->samples, "skipped",
        (json_int_t)r->skipped, "samples_per_s", r->samples_per_s, "seconds", r->seconds, "digest",
        hex(r->digest), "digests", digests, "workers", (json_int_t)size, "compute_s", r->compute_s,
        "comm_s", r->comm_s, "exposed_s", r->exposed_s, "wait_s", r->wait_s, "data_s", r->data_s,
        "eval_s", r->eval_s, "hidden_ratio", r->hidden_ratio, "stopped", (int)r->stopped,
        "peak_bytes", (json_int_t)train_peak_bytes(), "memory", "parameters",
        (json_int_t)m->parameters, "gradients", (json_int_t)m->gradients, "averaged",
        (json_int_t)m->averaged, "optimizer", (json_int_t)m->optimizer, "activations",
        (json_int_t)m->activations);
    if (object && r->context) {
        json_object_set_new(object, "val_loss", real(r->test_loss));
        json_object_set_new(object, "tokens", json_integer((json_int_t)(r->samples * r->context)));
        json_object_set_new(object, "tokens_per_s", json_real(r->samples_per_s * r->context));
    }
    if (!object) {
        fail_memory(files);
        return;
    }
    line_write(files, &files->log, 0, object);
    json_decref(object);
}

static void summary_page(struct train_files *files, const struct train_settings *settings,
                         const struct rf_train_result *r, int size) {
    char path[PATH_MAX], accuracy[32] = "not measured", test_loss[32] = "not measured";
    char *text = NULL;

    char rate[96];

    snprintf(rate, sizeof rate, "| samples/s | %.0f |\n", r->samples_per_s);
    if (r->context) {
        snprintf(rate, sizeof rate, "| samples/s | %.1f of %u tokens |\n| tokens/s | %.0f |\n",
                 r->samples_per_s, r->context, r->samples_per_s * r->context);
    }
    if (isfinite(r->accuracy)) {
        snprintf(accuracy, sizeof accuracy, "%.2f %%", r->accuracy * 100);
        snprintf(test_loss, sizeof test_loss, "%.4f", r->test_loss);
    }
    int length = asprintf(
        &text,
        "# %s on %d worker%s%s\n\n"
        "| | |\n|---|---|\n"
        "| data | %s |\n| accuracy | %s |\n| loss | %.4f |\n| test loss | %s |\n"
        "| steps | %llu |\n| samples | %llu |\n| skipped samples | %llu |\n%s| "
        "wall time | %.1f s |\n"
        "| compute | %.1f s |\n| data | %.1f s |\n| communication | %.1f s, %.0f %% hidden |\n"
        "| waiting | %.1f s |\n| evaluation | %.1f s |\n"
        "| memory of a worker | %zu bytes |\n| digest | 0x%016llx |\n| weights | %s |\n\n"
        "Each step is in metrics.jsonl, every setting in train.json.\n",
        settings->train.model, size, size == 1 ? "" : "s", r->stopped ? ", stopped early" : "",
        settings->train.data, accuracy, r->loss, test_loss, (unsigned long long)r->steps,
        (unsigned long long)r->samples, (unsigned long long)r->skipped, rate, r->seconds,
        r->compute_s, r->data_s, r->comm_s, r->hidden_ratio * 100, r->wait_s, r->eval_s,
        r->memory.parameters + r->memory.gradients + r->memory.averaged + r->memory.optimizer +
            r->memory.activations,
        (unsigned long long)r->digest, files->weights_path);
    if (length < 0) {
        fail_memory(files);
        return;
    }
    if (path_join(files, path, "SUMMARY.md")) {
        const struct part part = {text, (size_t)length};
        file_replace(files, path, &part, 1);
    }
    free(text);
}

bool files_finish(struct train_files *files, const struct train_settings *settings,
                  const struct rf_train_result *result, int size, bool others) {
    char path[PATH_MAX];
    bool is_ours = true;

    if (others && files->metrics.fd >= 0) { /* until it is closed */
        flock(files->metrics.fd, LOCK_EX);
        is_ours = !path_join(files, path, "SUMMARY.md") || access(path, F_OK) != 0;
    }
    if (is_ours && !files->err.code) {
        safetensors_write(files, files->weights_path, &files->weights);
    }
    if (is_ours && !files->err.code) {
        summary_log(files, result, size);
    }
    if (is_ours && !files->err.code) {
        summary_page(files, settings, result, size);
    }
    return is_ours;
}
