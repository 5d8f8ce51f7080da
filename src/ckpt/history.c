/* How checkpoints are related. A manifest is evidence of two kinds: the checkpoints that its
 * history went through (itself and its ancestors), and the chain after each step since its parent.
 * Equal evidence about a step proves a common past; only digests of the same step that differ prove
 * that the histories had parted by then, since a checkpoint's own chain may have a measurement
 * more. */
#include "ckpt/history.h"

#include <stddef.h>

static bool same_id(const struct rf__ckpt_id *a, const struct rf__ckpt_id *b) {
    return a->step == b->step && a->chain == b->chain;
}

/* Point 0 is the checkpoint itself, then come its ancestors. */
static const struct rf__ckpt_id *point(const struct rf__ckpt_manifest *m, int i) {
    return i ? &m->ancestors[i - 1] : &m->id;
}

static bool has_point(const struct rf__ckpt_manifest *m, const struct rf__ckpt_id *id) {
    for (int i = 0; i <= m->ancestor_count; i++) {
        if (same_id(point(m, i), id)) {
            return true;
        }
    }
    return false;
}

/* The chain after `step` steps, where the manifest tells. */
static const uint64_t *digest_at(const struct rf__ckpt_manifest *m, uint64_t step) {
    bool told = step >= m->first_step && step - m->first_step < (uint64_t)m->digest_count;
    return told ? &m->digests[step - m->first_step] : NULL;
}

/* Whether m's digests show that its history went through checkpoint `older`. */
static bool digests_show(const struct rf__ckpt_manifest *m, const struct rf__ckpt_manifest *older) {
    const uint64_t *mine = digest_at(m, older->id.step), *its = digest_at(older, older->id.step);
    return mine && (*mine == older->id.chain || (its && *mine == *its));
}

static bool is_ancestor(const struct rf__ckpt_manifest *a, const struct rf__ckpt_manifest *of) {
    if (same_id(&a->id, &of->id) || a->id.step > of->id.step ||
        (a->id.step == of->id.step && a->units >= of->units)) {
        return false;
    }
    return has_point(of, &a->id) || digests_show(of, a);
}

/* Nothing that `newer` tells reaches back as far as `older`. */
static bool out_of_reach(const struct rf__ckpt_manifest *newer,
                         const struct rf__ckpt_manifest *older) {
    return newer->ancestor_count == RF__CKPT_ANCESTORS &&
           newer->ancestors[RF__CKPT_ANCESTORS - 1].step > older->id.step &&
           !digest_at(newer, older->id.step);
}

/* The last step after which both are known to be the same, from checkpoints. */
static uint64_t common_points(const struct rf__ckpt_manifest *a, const struct rf__ckpt_manifest *b,
                              struct rf__ckpt_relation *out) {
    uint64_t same = 0;

    for (int i = 0; i <= a->ancestor_count; i++) {
        const struct rf__ckpt_id *id = point(a, i);
        const uint64_t *digest = digest_at(b, id->step);
        bool common = has_point(b, id);
        if (common && !out->has_common) {
            out->has_common = true; /* the first is the newest */
            out->common = *id;
        }
        if ((common || (digest && *digest == id->chain)) && id->step > same) {
            same = id->step;
        }
    }
    for (int i = 0; i <= b->ancestor_count; i++) {
        const uint64_t *digest = digest_at(a, point(b, i)->step);
        if (digest && *digest == point(b, i)->chain && point(b, i)->step > same) {
            same = point(b, i)->step;
        }
    }
    return same;
}

static void find_parting(const struct rf__ckpt_manifest *a, const struct rf__ckpt_manifest *b,
                         struct rf__ckpt_relation *out) {
    uint64_t same = common_points(a, b, out);
    uint64_t end = a->id.step < b->id.step ? a->id.step : b->id.step;
    uint64_t from = a->first_step > b->first_step ? a->first_step : b->first_step;
    uint64_t differs = end;

    for (uint64_t step = from; step <= end; step++) {
        const uint64_t *x = digest_at(a, step), *y = digest_at(b, step);
        if (!x || !y) {
            break;
        }
        if (*x != *y) {
            differs = step;
            break;
        }
        same = step > same ? step : same;
    }
    out->first = same + 1;
    out->last = differs > out->first ? differs : out->first;
}

void rf__ckpt_relate(const struct rf__ckpt_manifest *a, const struct rf__ckpt_manifest *b,
                     struct rf__ckpt_relation *out) {
    *out = (struct rf__ckpt_relation){.kind = RF__CKPT_PARTED};
    if (same_id(&a->id, &b->id)) {
        out->kind = RF__CKPT_SAME;
    } else if (is_ancestor(a, b)) {
        out->kind = RF__CKPT_ANCESTOR;
    } else if (is_ancestor(b, a)) {
        out->kind = RF__CKPT_DESCENDANT;
    } else if (out_of_reach(a, b) || out_of_reach(b, a)) {
        out->kind = RF__CKPT_UNKNOWN;
    } else {
        find_parting(a, b, out);
    }
}

/* Nothing else goes on from it, as far as is known. */
static bool is_tip(const struct rf__ckpt_manifest *const *manifests, int count, int index) {
    struct rf__ckpt_relation relation;

    for (int i = 0; i < count; i++) {
        if (i == index) {
            continue;
        }
        rf__ckpt_relate(manifests[index], manifests[i], &relation);
        bool older = manifests[index]->id.step < manifests[i]->id.step;
        if (relation.kind == RF__CKPT_ANCESTOR || (relation.kind == RF__CKPT_SAME && i < index) ||
            (relation.kind == RF__CKPT_UNKNOWN && older)) {
            return false;
        }
    }
    return true;
}

/* Keeps the first RF__CKPT_TIPS by step, the highest first. */
static void add_tip(const struct rf__ckpt_manifest *const *manifests, int index,
                    struct rf__ckpt_histories *out) {
    int at = out->tips < RF__CKPT_TIPS ? out->tips : RF__CKPT_TIPS;

    while (at > 0 && manifests[out->tip[at - 1]]->id.step < manifests[index]->id.step) {
        if (at < RF__CKPT_TIPS) {
            out->tip[at] = out->tip[at - 1];
        }
        at--;
    }
    if (at < RF__CKPT_TIPS) {
        out->tip[at] = index;
    }
    out->tips++;
}

void rf__ckpt_histories(const struct rf__ckpt_manifest *const *manifests, int count,
                        struct rf__ckpt_histories *out) {
    *out = (struct rf__ckpt_histories){0};
    for (int i = 0; i < count; i++) {
        if (is_tip(manifests, count, i)) {
            add_tip(manifests, i, out);
        }
    }
    if (out->tips > 1) {
        rf__ckpt_relate(manifests[out->tip[0]], manifests[out->tip[1]], &out->parted);
    }
}
