/* Checkpoints on named blobs: writing, listing, reading, verifying, marking and pruning them.
 *
 *     step-00001400-6f3a9c21/part-0-of-4.safetensors     first, by each member its own
 *     step-00001400-6f3a9c21/manifest.json               last, by one: now there is a checkpoint
 *     step-00001400-6f3a9c21/bad.json                    where somebody found that it is not good
 *
 * Every call blocks for as long as the blobs do; interrupting those ends it with RF_ESTOPPED. No
 * thread, no clock. Thread safety: as the blobs have it; calls share nothing else. */
#ifndef RF_CKPT_CHECKPOINT_H
#define RF_CKPT_CHECKPOINT_H

#include "ckpt/manifest.h"
#include "io/blob.h"

enum { RF__CKPT_REASON = 256, RF__CKPT_CHUNK = 4 << 20 /* bytes a call reads or writes at once */ };

/* Writing. */

/* What part `part` of `parts` must be, computed from the state's memory without building the file:
 * so whoever writes the manifest knows what the others have to write. Reads the part's pieces. */
int rf__ckpt_part_digest(const struct rf__ckpt_state *state, const struct rf__ckpt_id *id, int part,
                         int parts, struct rf__ckpt_part *out, struct rf_error *err);

/* Writes a part from what rf__ckpt_stage copied; the state's memory is not looked at. Replaces a
 * part of an earlier attempt. *out is what was written. */
int rf__ckpt_write_part(struct rf__blobs *blobs, const struct rf__ckpt_state *state,
                        const struct rf__ckpt_id *id, int part, int parts, const void *staged,
                        struct rf__ckpt_part *out, struct rf_error *err);

/* Makes a checkpoint of the parts, which all must be written. 0 also where the same checkpoint (id
 * and parts) stands there already; RF_ECONFLICT where another one does. */
int rf__ckpt_write_manifest(struct rf__blobs *blobs, const struct rf__ckpt_manifest *manifest,
                            struct rf_error *err);

/* Looking. */

enum rf__ckpt_condition {
    RF__CKPT_WHOLE,      /* manifest and all parts are there in the right size; not yet read */
    RF__CKPT_INCOMPLETE, /* there is no manifest: being written, or never finished, or removed */
    RF__CKPT_BAD         /* marked so; or its manifest or a part is damaged or missing */
};

struct rf__ckpt_entry {
    char folder[RF__CKPT_FOLDER];
    struct rf__ckpt_id id; /* without a manifest only the upper half of the chain is known */
    enum rf__ckpt_condition condition;
    char reason[RF__CKPT_REASON];       /* why it is not whole */
    uint64_t bytes;                     /* of all blobs of the folder */
    int64_t time_s;                     /* the manifest's; without one the newest blob's */
    int parts;                          /* parts that are there */
    bool marked;                        /* there is a bad.json */
    bool newer;                         /* of a later version of the format: left alone */
    struct rf__ckpt_manifest *manifest; /* NULL where there is none that can be read */
};

struct rf__ckpt_list {
    struct rf__ckpt_entry *entries; /* ascending: the newest is the last */
    int count;
};

/* Every checkpoint under the root; none is not an error. */
int rf__ckpt_list(struct rf__blobs *blobs, struct rf__ckpt_list *out, struct rf_error *err);
void rf__ckpt_list_free(struct rf__ckpt_list *list);

/* The newest whole one before index `before` (list->count for all), or -1. */
int rf__ckpt_newest(const struct rf__ckpt_list *list, int before);

/* RF_ENOTFOUND: there is none; RF_ECHECKPOINT: it is damaged, or is not that folder's. */
int rf__ckpt_read_manifest(struct rf__blobs *blobs, const char *folder,
                           struct rf__ckpt_manifest *out, struct rf_error *err);

/* Reading. */

/* Reads one part into the state's memory, which must be the manifest's state
 * (rf__ckpt_state_compare; RF_ECHECKPOINT names the first tensor that differs, before anything is
 * read). Only 0 says that the part's bytes are what was written: on any error its pieces of the
 * memory may have been overwritten with anything. RF_ECHECKPOINT: the part is missing, damaged, or
 * another one's. Different parts may be loaded by different threads at once. */
int rf__ckpt_load_part(struct rf__blobs *blobs, const struct rf__ckpt_manifest *manifest, int part,
                       const struct rf__ckpt_state *state, struct rf_error *err);

/* All parts, until the first error. */
int rf__ckpt_load(struct rf__blobs *blobs, const struct rf__ckpt_manifest *manifest,
                  const struct rf__ckpt_state *state, struct rf_error *err);

/* The trained parameters alone, where nothing goes on training: `state` is made of these, and its
 * further tensors are of no account. Otherwise as the two above. */
int rf__ckpt_compare_trained(const struct rf__ckpt_manifest *manifest,
                             const struct rf__ckpt_state *state, struct rf_error *err);
int rf__ckpt_load_trained(struct rf__blobs *blobs, const struct rf__ckpt_manifest *manifest,
                          const struct rf__ckpt_state *state, struct rf_error *err);

/* Reads every part and keeps none of it. `each` (may be NULL) is told of every part: 0, or its
 * error. Returns the first error, after all were read; RF_ESTOPPED and the like at once. */
typedef void rf__ckpt_part_fn(void *context, int part, int code, const struct rf_error *err);
int rf__ckpt_verify(struct rf__blobs *blobs, const struct rf__ckpt_manifest *manifest,
                    rf__ckpt_part_fn *each, void *context, struct rf_error *err);

/* Looking after them. */

/* Writes bad.json: it is not used for a restart any more. An earlier mark stays as it is. `by` says
 * who found it. Both are cut to RF__CKPT_REASON bytes. */
int rf__ckpt_mark_bad(struct rf__blobs *blobs, const char *folder, const char *reason,
                      const char *by, int64_t time_s, struct rf_error *err);

struct rf__ckpt_pruned {
    int kept;       /* whole ones that are left */
    int removed;    /* whole ones */
    int bad;        /* bad ones removed */
    int incomplete; /* incomplete ones removed */
    int collected;  /* unfinished writes removed */
    uint64_t bytes; /* freed, as far as known */
};

/* Keeps the `keep` (at least 1) newest whole ones, and removes: older whole ones; bad ones older
 * than the oldest kept; incomplete ones of a step below the newest whole one; what is left of
 * writes that were begun an hour ago. Where nothing is whole, nothing but such writes is removed. A
 * folder's manifest goes first, so that what is half removed is not taken for a checkpoint. Ends at
 * the first error; another call goes on. */
int rf__ckpt_prune(struct rf__blobs *blobs, int keep, struct rf__ckpt_pruned *out,
                   struct rf_error *err);

#endif
