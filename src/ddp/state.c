/* Parameters and registered state: their hash, and all of them as one run of bytes that is cut into
 * stripes, one for each member that gives. A stripe's pieces lie within one tensor each, so that
 * they go out of, and into, the caller's memory without a copy. */
#include "base/digest.h"
#include "ddp/inner.h"

#include <string.h>

uint64_t rf__ddp_hash_registration(const struct rf_ddp *ddp) {
    const struct rf_ddp_options *options = &ddp->options;
    uint64_t digest = rf__digest_mix((uint64_t)ddp->tensors, (uint64_t)ddp->extras);

    for (int i = 0; i < ddp->tensors; i++) {
        digest = rf__digest(ddp->tensor[i].name, strlen(ddp->tensor[i].name), digest);
        digest = rf__digest_mix(digest, ddp->count[i]);
    }
    for (int i = 0; i < ddp->extras; i++) {
        digest = rf__digest(ddp->extra[i].name, strlen(ddp->extra[i].name), digest);
        digest = rf__digest_mix(digest, ddp->extra[i].length);
    }
    digest = rf__digest_mix(digest, options->first_bucket_bytes);
    digest = rf__digest_mix(digest, options->bucket_bytes);
    digest = rf__digest_mix(digest, ddp->shards);
    digest = rf__digest_mix(digest, options->hash_every);
    digest = rf__digest_mix(digest, ddp->saver != NULL);
    digest = ddp->also ? rf__digest_mix(digest, ddp->also) : digest;
    digest = options->wire == RF_WIRE_NONE ? digest : rf__digest_mix(digest, options->wire);
    return rf__digest_mix(digest, (uint64_t)options->algorithm);
}

uint64_t rf__ddp_hash_state(const struct rf_ddp *ddp) {
    uint64_t digest = 0;

    for (int i = 0; i < ddp->tensors; i++) {
        digest = rf__digest(ddp->tensor[i].param, ddp->count[i] * sizeof(float), digest);
    }
    for (int i = 0; i < ddp->extras; i++) {
        digest = rf__digest(ddp->extra[i].bytes, ddp->extra[i].length, digest);
    }
    return digest ? digest : 1;
}

static size_t region_bytes(const struct rf_ddp *ddp, int i) {
    return i < ddp->tensors ? ddp->count[i] * sizeof(float) : ddp->extra[i - ddp->tensors].length;
}

static char *region_start(const struct rf_ddp *ddp, int i) {
    return i < ddp->tensors ? (char *)ddp->tensor[i].param : ddp->extra[i - ddp->tensors].bytes;
}

void rf__ddp_measure_state(struct rf_ddp *ddp) {
    uint64_t end = 0;

    for (int i = 0; i < ddp->tensors + ddp->extras; i++) {
        end += region_bytes(ddp, i);
        ddp->region_end[i] = end;
    }
}

static uint64_t cut(uint64_t total, int stripe, int stripes) {
    uint64_t k = (uint64_t)stripe, rest = total % (uint64_t)stripes;
    return total / (uint64_t)stripes * k + (k < rest ? k : rest);
}

bool rf__ddp_piece(const struct rf_ddp *ddp, int stripe, int stripes, int piece, void **bytes,
                   size_t *length) {
    int regions = ddp->tensors + ddp->extras, low = 0, high = regions;
    uint64_t total = ddp->region_end[regions - 1];
    uint64_t begin = cut(total, stripe, stripes), end = cut(total, stripe + 1, stripes);

    while (low < high) { /* the first region that reaches beyond `begin` */
        int middle = low + (high - low) / 2;
        if (ddp->region_end[middle] <= begin) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    if (piece >= regions - low) {
        return false;
    }
    int i = low + piece;
    uint64_t start = ddp->region_end[i] - region_bytes(ddp, i);
    uint64_t from = start > begin ? start : begin;
    uint64_t to = ddp->region_end[i] < end ? ddp->region_end[i] : end;
    if (start >= end) {
        return false;
    }
    *bytes = region_start(ddp, i) + (from - start);
    *length = (size_t)(to > from ? to - from : 0);
    return true;
}
