/* The store's journal: an append-only file of checksummed records, opaque here. A record counts
 * once `sync` has returned.
 *
 * Records written by one sync are a batch, and each says where its batch starts. So, when a record
 * is bad, it can be told whether anything behind it was synced later: then a record that counted is
 * damaged, and the file is refused; otherwise it is the tail of a batch that never counted, and is
 * cut off. docs/WIRE.md has the layout. */
#ifndef RF_OS_JOURNAL_H
#define RF_OS_JOURNAL_H

#include <ringfold/error.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    RF__JOURNAL_HEADER = 24,
    RF__JOURNAL_RECORD_HEADER = 20,
    RF__JOURNAL_MAX = 1 << 30 /* bytes of a file that is opened */
};

struct rf__journal;

/* Given each record in order; non-zero ends the replay with that code. */
typedef int rf__journal_record_fn(void *context, const unsigned char *record, size_t bytes);

/* Writes the next record of a snapshot: its bytes, or 0 at the end. */
typedef size_t rf__journal_snapshot_fn(void *context, unsigned char *out, size_t room);

struct rf__journal_options {
    const char *path; /* copied */
    size_t record_max;
    uint64_t compact_bytes; /* a file below this is never compacted; 0: 4 MiB */
    rf__journal_record_fn *record;
    void *context;
};

/* Opens or creates, locks, replays, cuts off a torn tail. RF_EJOURNAL names the path, and the
 * offset where the content is bad. */
int rf__journal_open(const struct rf__journal_options *options, struct rf__journal **out,
                     struct rf_error *err);
void rf__journal_close(struct rf__journal *journal);

/* Bytes cut off at the end when it was opened. */
uint64_t rf__journal_cut(const struct rf__journal *journal);

/* A number drawn when the file was first created. */
uint64_t rf__journal_id(const struct rf__journal *journal);

/* Into the batch; RF_ENOMEM. */
int rf__journal_append(struct rf__journal *journal, const void *record, size_t bytes);
size_t rf__journal_pending(const struct rf__journal *journal);

/* Writes the batch and waits until it is on the disk. After an error the journal must not be used
 * any more. */
int rf__journal_sync(struct rf__journal *journal, struct rf_error *err);

/* Whether it has grown enough; replaces the file by a snapshot. RF_EIO: it could not be done, the
 * old file goes on, and it is tried again after that has doubled. RF_EJOURNAL: as after a failed
 * sync. Nothing may be pending. */
bool rf__journal_wants_compaction(const struct rf__journal *journal);
int rf__journal_compact(struct rf__journal *journal, rf__journal_snapshot_fn *next, void *context,
                        struct rf_error *err);

/* The reading alone, over bytes in memory: *good is where the sound part ends. RF_EJOURNAL and its
 * offset in *good where a record that counted is damaged. `id` may be NULL. */
int rf__journal_scan(const unsigned char *bytes, size_t count, size_t record_max,
                     rf__journal_record_fn *record, void *context, size_t *good, uint64_t *id);

#endif
