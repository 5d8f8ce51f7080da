/* Checkpoints that training left: looking at them, verifying, copying, exporting and removing them.
 * Needs no communicator and no running job.
 *
 * A root holds the checkpoints of one job, each in a folder of its own. It is named by a URI:
 *
 *     /path, path, file:/path      a folder
 *     s3://bucket/prefix           an object store; gs://bucket/prefix
 *
 * A checkpoint is named by `which`: its folder ("step-00001400-6f3a9c21"), its step ("1400"), or
 * NULL for the newest whole one. A step at which two histories have one each is refused, with the
 * folders' names.
 *
 * Calls block while they read and write. Errors besides those named: RF_EUSAGE (the URI, or
 * `which`), RF_ENOTFOUND (no such checkpoint), RF_EIO, RF_ECONNECT, RF_EAUTH, RF_ETIMEDOUT,
 * RF_ENOMEM.
 *
 * Thread safety: one thread at a time for each object; everything else is free. */
#ifndef RINGFOLD_CKPT_H
#define RINGFOLD_CKPT_H

#include <ringfold/error.h>
#include <ringfold/limits.h>
#include <ringfold/types.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct rf_ckpt;

enum { RF_CKPT_NAME = 48, RF_CKPT_REASON = 256, RF_CKPT_VERSION = 32, RF_CKPT_DIMS = 4 };

enum rf_ckpt_condition {
    RF_CKPT_WHOLE,      /* manifest and parts are there in the right size; nothing was read */
    RF_CKPT_INCOMPLETE, /* no manifest: being written, or never finished */
    RF_CKPT_BAD         /* marked so, or damaged */
};

/* "whole", "incomplete", "bad". */
RF_API const char *rf_ckpt_condition_name(enum rf_ckpt_condition condition);

/* What an incomplete or unreadable one does not tell is 0 or "". Strings are valid for the call. */
struct rf_ckpt_info {
    char name[RF_CKPT_NAME]; /* its folder */
    enum rf_ckpt_condition condition;
    char reason[RF_CKPT_REASON]; /* why it is not whole */
    bool marked;                 /* somebody marked it as bad */
    char job[RF_MAX_JOB_NAME];
    char version[RF_CKPT_VERSION]; /* of the library that wrote it */
    uint64_t step;                 /* steps committed before it */
    uint64_t units;                /* steps and measurements */
    uint64_t generation;
    uint64_t chain, state_digest;
    uint64_t samples, skipped; /* since the training's beginning */
    uint64_t bytes;            /* of its files */
    int64_t time_s;            /* since 1970 */
    int parts, tensors;
};

typedef void rf_ckpt_each_fn(void *context, const struct rf_ckpt_info *info);

/* Two histories among the whole checkpoints of a root: a run was continued from an older
 * checkpoint, or two runs share the root. The newest of either, and where they parted: after the
 * checkpoint of `common_step` (where has_common), at a step from `first` to `last`. */
struct rf_ckpt_parting {
    int histories;
    char newest[2][RF_CKPT_NAME];
    bool has_common;
    uint64_t common_step, first, last;
};

/* Every checkpoint, the oldest first. `parting` (may be NULL): histories is 1 where there is one, 0
 * where nothing is whole, and the rest is set from 2 on. */
RF_API RF_MUST_CHECK int rf_ckpt_list(const char *uri, rf_ckpt_each_fn *each, void *context,
                                      struct rf_ckpt_parting *parting, struct rf_error *err);

/* Opens one that has a manifest, also a bad one where it is named. RF_ECHECKPOINT: its manifest is
 * damaged. */
RF_API RF_MUST_CHECK int rf_ckpt_open(const char *uri, const char *which, struct rf_ckpt **out,
                                      struct rf_error *err);
RF_API void rf_ckpt_close(struct rf_ckpt *ckpt);

struct rf_ckpt_tensor {
    const char *name;
    enum rf_type type; /* RF_F32 or RF_U8 */
    bool trained;      /* a parameter; false: optimizer state and the like */
    int dims;
    uint64_t shape[RF_CKPT_DIMS];
    uint64_t bytes;
};

struct rf_ckpt_part {
    uint64_t bytes, digest; /* XXH3, 64 bits, of the file */
};

/* Strings are borrowed until rf_ckpt_close. Indices from 0; false past the end. */
RF_API void rf_ckpt_get_info(const struct rf_ckpt *ckpt, struct rf_ckpt_info *out);
RF_API const char *rf_ckpt_config(const struct rf_ckpt *ckpt); /* a JSON object */
RF_API bool rf_ckpt_get_tensor(const struct rf_ckpt *ckpt, int index, struct rf_ckpt_tensor *out);
RF_API bool rf_ckpt_get_part(const struct rf_ckpt *ckpt, int index, struct rf_ckpt_part *out);

/* Checkpoints before this one, the newest first. */
RF_API bool rf_ckpt_get_ancestor(const struct rf_ckpt *ckpt, int index, uint64_t *step,
                                 uint64_t *chain);

/* Reads all parts. `each` (may be NULL) is told of every one: 0, or its error. RF_ECHECKPOINT (or
 * RF_EIO): the first that is no good. */
typedef void rf_ckpt_part_fn(void *context, int part, int code, const struct rf_error *err);
RF_API RF_MUST_CHECK int rf_ckpt_verify(struct rf_ckpt *ckpt, rf_ckpt_part_fn *each, void *context,
                                        struct rf_error *err);

/* Marks it as bad: no restart takes it any more. */
RF_API RF_MUST_CHECK int rf_ckpt_mark_bad(struct rf_ckpt *ckpt, const char *reason, const char *by,
                                          struct rf_error *err);

/* Copies it to another root, verifying it on the way. 0 also where it is there already;
 * RF_ECONFLICT: another one is in its place. */
RF_API RF_MUST_CHECK int rf_ckpt_copy(struct rf_ckpt *ckpt, const char *to_uri,
                                      struct rf_error *err);

/* Writes one safetensors file of all parameters; with `further` of the other state too. *bytes (may
 * be NULL) is its size. Nothing stands at `path` (a file, or a URI of an object) but all of it. */
RF_API RF_MUST_CHECK int rf_ckpt_export(struct rf_ckpt *ckpt, const char *path, bool further,
                                        uint64_t *bytes, struct rf_error *err);

/* What rf_ckpt_export_gpt2 wrote. */
struct rf_ckpt_gpt2 {
    uint64_t bytes, parameters; /* of the weights */
    int tensors;
    bool tokenizer; /* one was found, and is there too */
};

/* Writes a folder (or a prefix of objects) in the form of Hugging Face's GPT-2, of a checkpoint of
 * the gpt model: model.safetensors, the tokenizer, config.json last (docs/GPT.md). `data`: the
 * folder with the tokenizer; NULL: the one that the checkpoint was trained on, where it is still
 * there. RF_EEXISTS: a file of it is there; RF_EUNSUPPORTED: it is of another model; RF_EDATA: the
 * tokenizer is damaged, or of another model. */
RF_API RF_MUST_CHECK int rf_ckpt_export_gpt2(struct rf_ckpt *ckpt, const char *folder,
                                             const char *data, struct rf_ckpt_gpt2 *out,
                                             struct rf_error *err);

struct rf_ckpt_pruned {
    int kept, removed;   /* whole ones */
    int bad, incomplete; /* removed */
    int collected;       /* unfinished writes that were removed */
    uint64_t bytes;      /* freed */
};

/* Keeps the `keep` (1 or more) newest whole ones. Removes older ones, bad ones older than those
 * kept, incomplete ones below the newest whole one, and writes that were begun an hour ago and
 * never finished. Where none is whole only such writes are removed. */
RF_API RF_MUST_CHECK int rf_ckpt_prune(const char *uri, int keep, struct rf_ckpt_pruned *out,
                                       struct rf_error *err);

#ifdef __cplusplus
}
#endif
#endif
