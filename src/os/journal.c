/* The journal's file. It is read whole at the start (its size is bounded), written by one write and
 * one fdatasync a batch, and replaced by writing a snapshot beside it, syncing that, renaming it
 * and syncing the folder. The lock is on the file itself, so it moves with the rename. */
#include "os/journal.h"

#include "base/assert.h"
#include "base/cursor.h"
#include "base/digest.h"
#include "base/mem.h"
#include "base/status.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

enum { COMPACT_BYTES = 4 << 20, ID_AT = 8, SUM_AT = 16 };

static const unsigned char magic[8] = {'R', 'F', 'J', 'R', 'N', 'L', '0', '1'};

struct rf__journal {
    char *path;
    int fd;
    uint64_t id;
    uint64_t size; /* of what counts */
    uint64_t cut;
    uint64_t compact_least, compact_at;
    size_t record_max;

    unsigned char *batch;
    size_t batch_bytes, batch_capacity;
};

static void write_header(unsigned char header[RF__JOURNAL_HEADER], uint64_t id) {
    struct rf__writer w = rf__writer(header, RF__JOURNAL_HEADER);
    rf__write_bytes(&w, magic, sizeof magic);
    rf__write_u64(&w, id);
    rf__write_u64(&w, rf__digest(header, SUM_AT, 0));
    RF_ASSERT(!w.failed);
}

/* The sum covers where the record stands and in which file, so that stale bytes never pass for a
 * record. */
static uint64_t sum_of(const unsigned char *body, size_t bytes, uint64_t id, uint64_t offset,
                       uint64_t batch) {
    uint64_t seed = rf__digest_mix(rf__digest_mix(rf__digest_mix(id, offset), batch), bytes);
    return rf__digest(body, bytes, seed);
}

struct found {
    const unsigned char *body;
    size_t bytes;
    uint64_t batch;
};

static bool read_record(const unsigned char *bytes, size_t count, size_t offset, size_t record_max,
                        uint64_t id, struct found *found) {
    struct rf__reader r = rf__reader(bytes + offset, count - offset);
    found->bytes = rf__read_u32(&r);
    found->batch = rf__read_u64(&r);
    uint64_t sum = rf__read_u64(&r);
    if (r.failed || !found->bytes || found->bytes > record_max ||
        found->batch < RF__JOURNAL_HEADER || found->batch > offset) {
        return false;
    }
    found->body = rf__read_view(&r, found->bytes);
    return found->body && sum_of(found->body, found->bytes, id, offset, found->batch) == sum;
}

/* Whether a sound record of a later batch than one that was cut at `bad` stands behind it. */
static bool synced_behind(const unsigned char *bytes, size_t count, size_t bad, size_t record_max,
                          uint64_t id) {
    struct found found;
    for (size_t at = bad + 1; count - at >= RF__JOURNAL_RECORD_HEADER; at++) {
        if (read_record(bytes, count, at, record_max, id, &found) && found.batch > bad) {
            return true;
        }
    }
    return false;
}

int rf__journal_scan(const unsigned char *bytes, size_t count, size_t record_max,
                     rf__journal_record_fn *record, void *context, size_t *good, uint64_t *id) {
    unsigned char header[RF__JOURNAL_HEADER];
    struct found found;

    *good = 0;
    if (count < RF__JOURNAL_HEADER) {
        /* A file whose making was cut short: it never held anything. */
        size_t known = count < sizeof magic ? count : sizeof magic;
        return !count || memcmp(bytes, magic, known) == 0 ? 0 : RF_EJOURNAL;
    }
    struct rf__reader r = rf__reader(bytes + ID_AT, 8);
    uint64_t file_id = rf__read_u64(&r);
    write_header(header, file_id);
    if (memcmp(bytes, header, sizeof header) != 0) {
        return RF_EJOURNAL;
    }
    if (id) {
        *id = file_id;
    }
    *good = RF__JOURNAL_HEADER;
    while (*good < count) {
        if (!read_record(bytes, count, *good, record_max, file_id, &found)) {
            return synced_behind(bytes, count, *good, record_max, file_id) ? RF_EJOURNAL : 0;
        }
        int rc = record(context, found.body, found.bytes);
        if (rc) {
            return rc;
        }
        *good += RF__JOURNAL_RECORD_HEADER + found.bytes;
    }
    return 0;
}

static int write_all(int fd, const unsigned char *bytes, size_t count) {
    while (count > 0) {
        ssize_t written = write(fd, bytes, count);
        if (written < 0 && errno == EINTR) {
            continue;
        }
        if (written <= 0) {
            return written < 0 ? errno : EIO;
        }
        bytes += written;
        count -= (size_t)written;
    }
    return 0;
}

static int read_all(int fd, unsigned char *bytes, size_t count) {
    size_t at = 0;
    while (at < count) {
        ssize_t got = pread(fd, bytes + at, count - at, (off_t)at);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            return got < 0 ? errno : EIO;
        }
        at += (size_t)got;
    }
    return 0;
}

/* Makes a new name in the folder survive a crash; an errno or 0. */
static int sync_folder(const char *path) {
    char folder[PATH_MAX];
    const char *slash = strrchr(path, '/');
    size_t length = slash ? (size_t)(slash - path) : 0;

    if (length >= sizeof folder) {
        return ENAMETOOLONG;
    }
    memcpy(folder, path, length);
    folder[length] = 0;
    int fd = open(length ? folder : slash ? "/" : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        return errno;
    }
    int failed = fsync(fd) && errno != EINVAL ? errno : 0;
    close(fd);
    return failed;
}

static int draw_id(uint64_t *id) {
    return getrandom(id, sizeof *id, 0) == (ssize_t)sizeof *id ? 0 : RF_EIO;
}

/* Opens and locks the file that the path names when the lock is held: another process may have
 * renamed a new one there. */
static int open_locked(struct rf__journal *journal, struct rf_error *err) {
    struct stat held, named;

    for (int i = 0; i < 16; i++) {
        journal->fd =
            open(journal->path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0600);
        if (journal->fd < 0) {
            return rf__fail(err, RF_EJOURNAL, errno, "journal '%s' cannot be opened",
                            journal->path);
        }
        if (fstat(journal->fd, &held)) {
            return rf__fail(err, RF_EJOURNAL, errno, "journal '%s' cannot be read", journal->path);
        }
        if (!S_ISREG(held.st_mode)) {
            return rf__fail(err, RF_EJOURNAL, 0, "journal '%s' is not a regular file",
                            journal->path);
        }
        if (flock(journal->fd, LOCK_EX | LOCK_NB)) {
            if (errno == EWOULDBLOCK) {
                (void)rf__fail(err, RF_EJOURNAL, 0, "journal '%s' is in use by another store",
                               journal->path);
                if (err) {
                    rf__detail(err->next, "stop that store, or give this one its own journal");
                }
                return RF_EJOURNAL;
            }
            return rf__fail(err, RF_EJOURNAL, errno, "journal '%s' cannot be locked",
                            journal->path);
        }
        if (!stat(journal->path, &named) && named.st_dev == held.st_dev &&
            named.st_ino == held.st_ino) {
            journal->size = (uint64_t)held.st_size;
            return 0;
        }
        close(journal->fd);
        journal->fd = -1;
    }
    return rf__fail(err, RF_EJOURNAL, 0, "journal '%s' is being replaced all the time",
                    journal->path);
}

static int replay(struct rf__journal *journal, const struct rf__journal_options *options,
                  size_t *good, struct rf_error *err) {
    int rc = 0, failed;
    unsigned char *bytes = NULL;

    *good = 0;
    if (journal->size > RF__JOURNAL_MAX) {
        return rf__fail(err, RF_EJOURNAL, 0, "journal '%s' has %llu bytes, more than %d",
                        journal->path, (unsigned long long)journal->size, RF__JOURNAL_MAX);
    }
    bytes = rf__alloc(journal->size, 1);
    if (!bytes) {
        return rf__fail(err, RF_ENOMEM, 0, "no memory to read journal '%s'", journal->path);
    }
    failed = read_all(journal->fd, bytes, journal->size);
    if (failed) {
        rc = rf__fail(err, RF_EJOURNAL, failed, "journal '%s' cannot be read", journal->path);
        goto out;
    }
    rc = rf__journal_scan(bytes, journal->size, options->record_max, options->record,
                          options->context, good, &journal->id);
    if (rc == RF_ENOMEM) {
        rc = rf__fail(err, RF_ENOMEM, 0, "no memory to replay journal '%s'", journal->path);
    } else if (rc) {
        rc = rf__fail(err, RF_EJOURNAL, 0, "journal '%s' is damaged at offset %zu of %llu",
                      journal->path, *good, (unsigned long long)journal->size);
        if (err) {
            rf__detail(err->next, "restore it from a copy, or move it away to start empty");
        }
    }
out:
    rf__free(bytes);
    return rc;
}

/* Leaves a file with a header and nothing behind the sound part. */
static int settle(struct rf__journal *journal, size_t good, struct rf_error *err) {
    unsigned char header[RF__JOURNAL_HEADER];
    int failed = 0;

    if (good < journal->size) {
        journal->cut = journal->size - good;
        failed = ftruncate(journal->fd, (off_t)good) || fdatasync(journal->fd) ? errno : 0;
        journal->size = good;
    }
    if (!failed && !good) {
        if (draw_id(&journal->id)) {
            return rf__fail(err, RF_EIO, errno, "no random bytes");
        }
        write_header(header, journal->id);
        failed = write_all(journal->fd, header, sizeof header);
        failed = !failed && fdatasync(journal->fd) ? errno : failed;
        failed = !failed ? sync_folder(journal->path) : failed;
        journal->size = sizeof header;
    }
    if (failed) {
        return rf__fail(err, RF_EJOURNAL, failed, "journal '%s' cannot be written", journal->path);
    }
    return 0;
}

static void plan_compaction(struct rf__journal *journal) {
    uint64_t doubled = 2 * journal->size;
    journal->compact_at = doubled > journal->compact_least ? doubled : journal->compact_least;
}

int rf__journal_open(const struct rf__journal_options *options, struct rf__journal **out,
                     struct rf_error *err) {
    size_t good = 0;
    int rc = 0;
    struct rf__journal *journal = rf__alloc(1, sizeof *journal);

    *out = NULL;
    if (!journal) {
        return rf__fail(err, RF_ENOMEM, 0, "no memory for the journal");
    }
    journal->fd = -1;
    journal->record_max = options->record_max;
    journal->compact_least = options->compact_bytes ? options->compact_bytes : COMPACT_BYTES;
    journal->path = rf__strdup(options->path);
    if (!journal->path) {
        rc = rf__fail(err, RF_ENOMEM, 0, "no memory for the journal");
        goto out;
    }
    rc = open_locked(journal, err);
    if (!rc) {
        rc = replay(journal, options, &good, err);
    }
    if (!rc) {
        rc = settle(journal, good, err);
    }
    if (!rc) {
        journal->compact_at = journal->compact_least;
        *out = journal;
        journal = NULL;
    }
out:
    rf__journal_close(journal);
    return rc;
}

void rf__journal_close(struct rf__journal *journal) {
    if (!journal) {
        return;
    }
    if (journal->fd >= 0) {
        close(journal->fd);
    }
    rf__free(journal->batch);
    rf__free(journal->path);
    rf__free(journal);
}

uint64_t rf__journal_cut(const struct rf__journal *journal) {
    return journal->cut;
}

uint64_t rf__journal_id(const struct rf__journal *journal) {
    return journal->id;
}

size_t rf__journal_pending(const struct rf__journal *journal) {
    return journal->batch_bytes;
}

/* Puts a record with its header at the end of the batch, which will stand at `base` in the file. */
static int append(struct rf__journal *journal, uint64_t base, const void *record, size_t bytes) {
    size_t need = journal->batch_bytes + RF__JOURNAL_RECORD_HEADER + bytes;
    uint64_t offset = base + journal->batch_bytes;

    if (need > journal->batch_capacity) {
        size_t capacity = journal->batch_capacity ? journal->batch_capacity : 4096;
        while (capacity < need) {
            capacity *= 2;
        }
        unsigned char *batch = rf__grow(journal->batch, capacity, 1);
        if (!batch) {
            return RF_ENOMEM;
        }
        journal->batch = batch;
        journal->batch_capacity = capacity;
    }
    struct rf__writer w = rf__writer(journal->batch + journal->batch_bytes,
                                     journal->batch_capacity - journal->batch_bytes);
    rf__write_u32(&w, (uint32_t)bytes);
    rf__write_u64(&w, base);
    rf__write_u64(&w, sum_of(record, bytes, journal->id, offset, base));
    rf__write_bytes(&w, record, bytes);
    RF_ASSERT(!w.failed);
    journal->batch_bytes = need;
    return 0;
}

int rf__journal_append(struct rf__journal *journal, const void *record, size_t bytes) {
    RF_ASSERT(bytes && bytes <= journal->record_max);
    return append(journal, journal->size, record, bytes);
}

int rf__journal_sync(struct rf__journal *journal, struct rf_error *err) {
    if (!journal->batch_bytes) {
        return 0;
    }
    if (journal->size + journal->batch_bytes > RF__JOURNAL_MAX) {
        return rf__fail(err, RF_EJOURNAL, 0, "journal '%s' would grow beyond %d bytes",
                        journal->path, RF__JOURNAL_MAX);
    }
    int failed = write_all(journal->fd, journal->batch, journal->batch_bytes);
    failed = !failed && fdatasync(journal->fd) ? errno : failed;
    if (failed) {
        return rf__fail(err, RF_EJOURNAL, failed, "journal '%s' cannot be written at offset %llu",
                        journal->path, (unsigned long long)journal->size);
    }
    journal->size += journal->batch_bytes;
    journal->batch_bytes = 0;
    return 0;
}

bool rf__journal_wants_compaction(const struct rf__journal *journal) {
    return journal->size >= journal->compact_at && !journal->batch_bytes;
}

/* Writes header and snapshot to the descriptor, as one batch; an errno or 0. */
static int write_snapshot(struct rf__journal *journal, int fd, rf__journal_snapshot_fn *next,
                          void *context, uint64_t *size) {
    unsigned char header[RF__JOURNAL_HEADER];
    unsigned char *record = rf__alloc(journal->record_max, 1);
    size_t bytes;
    int failed = record ? 0 : ENOMEM;

    if (!failed) {
        write_header(header, journal->id);
        failed = write_all(fd, header, sizeof header);
        *size = sizeof header;
    }
    while (!failed && (bytes = next(context, record, journal->record_max)) > 0) {
        /* Each record a batch of its own: all are synced before the file gets its name. */
        failed = append(journal, *size, record, bytes)
                     ? ENOMEM
                     : write_all(fd, journal->batch, journal->batch_bytes);
        *size += journal->batch_bytes;
        journal->batch_bytes = 0;
    }
    failed = !failed && fsync(fd) ? errno : failed;
    rf__free(record);
    return failed;
}

int rf__journal_compact(struct rf__journal *journal, rf__journal_snapshot_fn *next, void *context,
                        struct rf_error *err) {
    char beside[PATH_MAX];
    uint64_t size = 0;
    int rc = 0, failed = 0, fd = -1;
    bool named = false;

    RF_ASSERT(!journal->batch_bytes);
    plan_compaction(journal);
    int length = snprintf(beside, sizeof beside, "%s.new", journal->path);
    if (length < 0 || (size_t)length >= sizeof beside) {
        failed = ENAMETOOLONG;
        goto out;
    }
    fd = open(beside, O_RDWR | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) {
        failed = errno;
        goto out;
    }
    named = true;
    failed = flock(fd, LOCK_EX | LOCK_NB) ? errno : 0;
    failed = failed ? failed : write_snapshot(journal, fd, next, context, &size);
    failed = !failed && rename(beside, journal->path) ? errno : failed;
    if (failed) {
        goto out;
    }
    named = false;
    close(journal->fd);
    journal->fd = fd;
    fd = -1;
    journal->size = size;
    plan_compaction(journal);
    failed = sync_folder(journal->path);
    if (failed) {
        rc = rf__fail(err, RF_EJOURNAL, failed, "the folder of journal '%s' cannot be synced",
                      journal->path);
        failed = 0;
    }
out:
    if (fd >= 0) {
        close(fd);
    }
    if (named) {
        unlink(beside);
    }
    if (failed) {
        rc = rf__fail(err, RF_EIO, failed, "journal '%s' cannot be compacted", journal->path);
    }
    return rc;
}
