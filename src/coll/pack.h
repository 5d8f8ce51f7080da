/* The 8-bit format in which float32 travels: blocks of 256 elements, each an integer of 8 bits, and
 * one scale a block; and the arithmetic of error feedback. Pure.
 *
 *     scale      the largest magnitude of the block over 127, rounded up to bfloat16
 *     element    x over the scale, rounded to nearest even: -127 … 127
 *
 * An integer of 8 bits times a scale of 8 significant bits is exact in float32, and what is lost by
 * an element, x - element * scale, is exact too: so a value and what it lost add up to the bit, and
 * nothing depends on the instructions that compute it. |lost| is at most scale / 2.
 *
 * A block in which anything is not finite, or beyond 2^127 (where the product could overflow),
 * becomes NaN in all of its elements: it cannot pass for numbers. It has lost nothing.
 *
 * `room` is how many blocks a packed part has place for; the count may fill fewer. A packed part is
 * room x 256 elements, then room x 2 bytes of scales; what is not filled is zero. */
#ifndef RF_COLL_PACK_H
#define RF_COLL_PACK_H

#include <stdbool.h>
#include <stddef.h>

enum { RF__PACK_BLOCK = 256, RF__PACK_BLOCK_BYTES = RF__PACK_BLOCK + 2 };

/* Blocks that `count` elements take. */
static inline size_t rf__pack_blocks(size_t count) {
    return (count + RF__PACK_BLOCK - 1) / RF__PACK_BLOCK;
}

static inline size_t rf__pack_bytes(size_t room) {
    return room * RF__PACK_BLOCK_BYTES;
}

/* Packs x into `out`, of rf__pack_bytes(room). `add`: what was `lost` is first added to x, which
 * keeps the sum. Then `lost` is what this packing loses. */
void rf__pack(float *x, float *lost, bool add, size_t count, unsigned char *out, size_t room);

/* x = what is packed, / divisor: the scales are divided, once each. */
void rf__unpack(float *x, size_t count, const unsigned char *in, size_t room, double divisor);

/* out = the sum of `in_count` packed parts, which lie one after the other from `ins`, formed in
 * float32 in their order, plus what was `lost`; packed again. Then `lost` is what that lost. */
void rf__pack_sum(const unsigned char *ins, int in_count, float *lost, size_t count,
                  unsigned char *out, size_t room);

#endif
