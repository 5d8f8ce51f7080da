/* Packing: parts block by block, the last one through a copy filled up with zeros, so that every
 * loop over elements has the same length; and the choice of the kernels. */
#include "coll/pack.h"
#include "base/assert.h"
#include "coll/pack_kernels.h"

#include <stdatomic.h>

#define TARGET
#include "coll/pack_loops.inc"

/* The table in use; NULL until the first use. Several threads may find it at the same time: they
 * find the same, so relaxed order is enough for a pointer to constants. */
static _Atomic(const struct rf__pack_kernels *) chosen;

static const struct rf__pack_kernels *kernels_of(enum rf__fold_level level) {
    const struct rf__pack_kernels *out = NULL;

    switch (level) {
    case RF__FOLD_PLAIN:
        out = &block_kernels;
        break;
    case RF__FOLD_AVX2:
        out = rf__pack_kernels_avx2();
        break;
    case RF__FOLD_AVX512:
        out = rf__pack_kernels_avx512();
        break;
    case RF__FOLD_LEVELS:
        break;
    }
    return out;
}

static const struct rf__pack_kernels *best_kernels(void) {
    const struct rf__pack_kernels *out = NULL;

    for (int level = RF__FOLD_LEVELS - 1; level >= 0 && !out; level--) {
        out = kernels_of((enum rf__fold_level)level);
    }
    return out;
}

static const struct rf__pack_kernels *kernels(void) {
    const struct rf__pack_kernels *out = atomic_load_explicit(&chosen, memory_order_relaxed);

    if (!out) {
        out = best_kernels();
        atomic_store_explicit(&chosen, out, memory_order_relaxed);
    }
    return out;
}

bool rf__pack_level(int level) {
    const struct rf__pack_kernels *out =
        level < 0 ? best_kernels() : kernels_of((enum rf__fold_level)level);

    if (out) {
        atomic_store_explicit(&chosen, out, memory_order_relaxed);
    }
    return out != NULL;
}

static void put_scale(unsigned char *part, size_t room, size_t block, uint16_t bits) {
    unsigned char *at = part + room * RF__PACK_BLOCK + 2 * block;

    at[0] = (unsigned char)bits;
    at[1] = (unsigned char)(bits >> 8);
}

static float get_scale(const unsigned char *part, size_t room, size_t block) {
    const unsigned char *at = part + room * RF__PACK_BLOCK + 2 * block;

    return value_of((uint32_t)(at[0] | at[1] << 8) << 16);
}

/* Elements of block `block`: all, but for the last. */
static size_t length_of(size_t count, size_t block) {
    size_t left = count - block * RF__PACK_BLOCK;
    return left < RF__PACK_BLOCK ? left : RF__PACK_BLOCK;
}

/* What no block fills. */
static void clear_rest(unsigned char *out, size_t blocks, size_t room) {
    memset(out + blocks * RF__PACK_BLOCK, 0, (room - blocks) * RF__PACK_BLOCK);
    memset(out + room * RF__PACK_BLOCK + 2 * blocks, 0, 2 * (room - blocks));
}

void rf__pack(float *x, float *lost, bool add, size_t count, unsigned char *out, size_t room) {
    const struct rf__pack_kernels *k = kernels();
    size_t blocks = rf__pack_blocks(count), whole = count / RF__PACK_BLOCK;
    _Alignas(64) float last[RF__PACK_BLOCK] = {0}, last_lost[RF__PACK_BLOCK] = {0};

    RF_ASSERT(blocks <= room);
    for (size_t b = 0; b < whole; b++) {
        size_t at = b * RF__PACK_BLOCK;
        put_scale(out, room, b, k->pack(x + at, lost + at, add, (int8_t *)out + at));
    }
    if (whole < blocks) {
        size_t at = whole * RF__PACK_BLOCK, length = length_of(count, whole);
        memcpy(last, x + at, length * sizeof *x);
        memcpy(last_lost, lost + at, length * sizeof *lost);
        put_scale(out, room, whole, k->pack(last, last_lost, add, (int8_t *)out + at));
        memcpy(x + at, last, length * sizeof *x);
        memcpy(lost + at, last_lost, length * sizeof *lost);
    }
    clear_rest(out, blocks, room);
}

void rf__unpack(float *x, size_t count, const unsigned char *in, size_t room, double divisor) {
    const struct rf__pack_kernels *k = kernels();
    size_t blocks = rf__pack_blocks(count);
    _Alignas(64) float last[RF__PACK_BLOCK];

    RF_ASSERT(blocks <= room);
    for (size_t b = 0; b < blocks; b++) {
        size_t at = b * RF__PACK_BLOCK, length = length_of(count, b);
        bool whole = length == RF__PACK_BLOCK;
        float scale = (float)((double)get_scale(in, room, b) / divisor);
        k->unpack(whole ? x + at : last, (const int8_t *)in + at, scale);
        if (!whole) {
            memcpy(x + at, last, length * sizeof *x);
        }
    }
}

void rf__pack_sum(const unsigned char *ins, int in_count, float *lost, size_t count,
                  unsigned char *out, size_t room) {
    const struct rf__pack_kernels *k = kernels();
    size_t blocks = rf__pack_blocks(count), part = rf__pack_bytes(room);
    _Alignas(64) float sum[RF__PACK_BLOCK], last_lost[RF__PACK_BLOCK] = {0};

    RF_ASSERT(blocks <= room && in_count >= 1);
    for (size_t b = 0; b < blocks; b++) {
        size_t at = b * RF__PACK_BLOCK, length = length_of(count, b);
        bool whole = length == RF__PACK_BLOCK;
        k->unpack(sum, (const int8_t *)ins + at, get_scale(ins, room, b));
        for (int i = 1; i < in_count; i++) {
            const unsigned char *in = ins + (size_t)i * part;
            k->add(sum, (const int8_t *)in + at, get_scale(in, room, b));
        }
        if (!whole) {
            memcpy(last_lost, lost + at, length * sizeof *lost);
        }
        put_scale(out, room, b,
                  k->pack(sum, whole ? lost + at : last_lost, true, (int8_t *)out + at));
        if (!whole) {
            memcpy(lost + at, last_lost, length * sizeof *lost);
        }
    }
    clear_rest(out, blocks, room);
}
