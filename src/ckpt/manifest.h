/* The manifest: what a checkpoint consists of, where it stands in the history of the training, and
 * how to know that all of it is there. JSON, whose last member is a digest of all bytes before it,
 * so that a manifest that was cut short or edited is noticed. docs/CHECKPOINTS.md has every member.
 * No I/O here. */
#ifndef RF_CKPT_MANIFEST_H
#define RF_CKPT_MANIFEST_H

#include "ckpt/layout.h"

#include <stddef.h>

enum {
    RF__CKPT_MANIFEST_VERSION = 1,
    RF__CKPT_MANIFEST_MAX = 64 << 20, /* bytes */
    RF__CKPT_CONFIG_MAX = 1 << 20,    /* bytes of the configuration */
    RF__CKPT_ANCESTORS = 64,
    RF__CKPT_DIGESTS = 10000,
    RF__CKPT_FOLDER = 48,    /* bytes of a folder's name, with its end */
    RF__CKPT_PART_NAME = 48, /* of a part's, too */
    RF__CKPT_VERSION = 32
};

/* A checkpoint is known by the number of steps committed before it and by the digest of the chain
 * after them. */
struct rf__ckpt_id {
    uint64_t step, chain;
};

/* "step-00001400-6f3a9c21": the step, and the upper 32 bits of the chain. */
void rf__ckpt_folder(char out[RF__CKPT_FOLDER], const struct rf__ckpt_id *id);

/* The other way round; false where it is no such name. Only the upper half of id->chain is set. */
bool rf__ckpt_folder_parse(const char *folder, struct rf__ckpt_id *id);

/* "part-0-of-4.safetensors" */
void rf__ckpt_part_name(char out[RF__CKPT_PART_NAME], int part, int parts);

/* What a part's file must be. */
struct rf__ckpt_part {
    uint64_t bytes, digest; /* XXH3, 64 bits, of the whole file */
};

/* To write one, fill in a struct that borrows everything. One that was read owns what it points to
 * and is freed with rf__ckpt_manifest_free. */
struct rf__ckpt_manifest {
    struct rf__ckpt_id id;
    char job[RF_MAX_JOB_NAME];
    uint64_t units;                 /* of the chain: steps and measurements */
    uint64_t generation;            /* that took it */
    uint64_t state_digest;          /* of parameters and state, as the members compare it */
    uint64_t samples;               /* used for training since its beginning */
    uint64_t skipped;               /* samples that could not be used, since then */
    int64_t time_s;                 /* since 1970 */
    char version[RF__CKPT_VERSION]; /* of the library; writing puts its own where it is empty */
    const char *config;             /* a JSON object; NULL: {} */
    struct rf__ckpt_state state;    /* described only: the memory is not looked at */
    const struct rf__ckpt_part *parts;
    int part_count;

    /* Checkpoints before this one in the same history, newest first: its parent, and so on. */
    const struct rf__ckpt_id *ancestors;
    int ancestor_count;

    /* The chain after each step since the parent: digests[i] after `first_step` + i steps. The last
     * is that of id.step; where there would be more than RF__CKPT_DIGESTS, the newest are here. */
    const uint64_t *digests;
    uint64_t first_step;
    int digest_count;

    void *owned; /* private; NULL while writing */
};

/* The text to store; *out is freed with rf__free. RF_EINVAL: the configuration is not a JSON
 * object, or the numbers contradict each other; RF_ELIMIT. */
int rf__ckpt_manifest_encode(const struct rf__ckpt_manifest *manifest, char **out, size_t *bytes,
                             struct rf_error *err);

/* RF_ECHECKPOINT says what is wrong with it; RF_EUNSUPPORTED: it is of a later version. */
int rf__ckpt_manifest_decode(const void *bytes, size_t length, struct rf__ckpt_manifest *out,
                             struct rf_error *err);
void rf__ckpt_manifest_free(struct rf__ckpt_manifest *manifest);

#endif
