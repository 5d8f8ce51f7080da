/* How checkpoints are related: whether one's training went on from the other, or both went their
 * own ways from a common past. Pure functions over manifests.
 *
 * A chain digest stands for everything before it: where two agree after some step, all their steps
 * until then were the same. */
#ifndef RF_CKPT_HISTORY_H
#define RF_CKPT_HISTORY_H

#include "ckpt/manifest.h"

enum rf__ckpt_relation_kind {
    RF__CKPT_SAME,       /* a and b are one checkpoint */
    RF__CKPT_ANCESTOR,   /* b's training went through a */
    RF__CKPT_DESCENDANT, /* a's training went through b */
    RF__CKPT_PARTED,     /* neither */
    RF__CKPT_UNKNOWN     /* one's list of ancestors does not reach back to the other */
};

struct rf__ckpt_relation {
    enum rf__ckpt_relation_kind kind;

    /* PARTED only. The newest checkpoint that is in both histories; else has_common is false. */
    bool has_common;
    struct rf__ckpt_id common;

    /* PARTED only: the first step whose result differs is from `first` to `last`; exact where they
     * are equal. Step s is the one that makes s steps committed. */
    uint64_t first, last;
};

void rf__ckpt_relate(const struct rf__ckpt_manifest *a, const struct rf__ckpt_manifest *b,
                     struct rf__ckpt_relation *out);

enum { RF__CKPT_TIPS = 16 };

/* The histories among `count` checkpoints. A tip is one that is no other's ancestor. */
struct rf__ckpt_histories {
    int tips;                        /* how many there are: more than one, and they parted */
    int tip[RF__CKPT_TIPS];          /* indices of the first of them, highest step first */
    struct rf__ckpt_relation parted; /* of tip[0] and tip[1], where there are two */
};

void rf__ckpt_histories(const struct rf__ckpt_manifest *const *manifests, int count,
                        struct rf__ckpt_histories *out);

#endif
