/* A token from its logits: by their softmax, at some temperature, among the likeliest. */
#include "nn/generate.h"

#include <math.h>

/* Whether token a comes before token b, the likelier first. */
static bool before(const float *logits, uint32_t a, uint32_t b) {
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
}

/* `room` is a heap whose top is the last of those that are kept. */
static void sink(const float *logits, uint32_t *room, size_t count, size_t at) {
    for (size_t child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && before(logits, room[child], room[child + 1])) {
            child++;
        }
        if (before(logits, room[child], room[at])) {
            break;
        }
        uint32_t kept = room[at];
        room[at] = room[child];
        room[child] = kept;
    }
}

static void keep_likeliest(const float *logits, size_t count, uint32_t *room, size_t keep) {
    for (size_t i = 0; i < keep; i++) {
        room[i] = (uint32_t)i;
    }
    for (size_t i = keep / 2; i-- > 0;) {
        sink(logits, room, keep, i);
    }
    for (size_t i = keep; i < count; i++) {
        if (before(logits, (uint32_t)i, room[0])) {
            room[0] = (uint32_t)i;
            sink(logits, room, keep, 0);
        }
    }
}

int64_t rf__draw(const struct rf__draw *draw, const float *logits, size_t count,
                 struct rf__rng *rng) {
    size_t best = 0, among = count;
    const uint32_t *kept = NULL;
    double sum = 0;

    for (size_t i = 0; i < count; i++) {
        if (!isfinite(logits[i])) {
            return -1;
        }
        best = logits[i] > logits[best] ? i : best;
    }
    if (!(draw->temperature > 0)) {
        return (int64_t)best;
    }
    if (draw->top_k && draw->top_k < count) {
        keep_likeliest(logits, count, draw->room, draw->top_k);
        kept = draw->room;
        among = draw->top_k;
    }
    const double sharpness = 1 / draw->temperature;
    for (size_t i = 0; i < among; i++) {
        sum += exp((double)(logits[kept ? kept[i] : i] - logits[best]) * sharpness);
    }
    double left = (double)(rf__rng_u64(rng) >> 11) * 0x1p-53 * sum;
    for (size_t i = 0; i < among; i++) {
        size_t token = kept ? kept[i] : i;
        left -= exp((double)(logits[token] - logits[best]) * sharpness);
        if (left < 0) {
            return (int64_t)token;
        }
    }
    return (int64_t)best; /* what rounding left over */
}
