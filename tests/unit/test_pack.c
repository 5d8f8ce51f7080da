/* coll/pack: what is promised of single values, over random blocks of every magnitude, odd counts,
 * and every level of kernels, which give the same bytes. */
#include "base/rng.h"
#include "coll/pack.h"
#include "coll/pack_kernels.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MOST = 5 * RF__PACK_BLOCK + 77, ROOM = 7, RANKS = 5, BYTES = ROOM * RF__PACK_BLOCK_BYTES };

static const size_t counts[] = {0,   1,   2,   3,   7,    31,   64,   255,  256,
                                257, 511, 512, 600, 1000, 1024, 1279, 1281, MOST};
enum { COUNTS = sizeof counts / sizeof *counts };

static float of_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* The scale of block `b`, read as the format says. */
static float scale_of(const unsigned char *part, size_t b) {
    const unsigned char *at = part + ROOM * RF__PACK_BLOCK + 2 * b;
    return of_bits((uint32_t)(at[0] | at[1] << 8) << 16);
}

/* Of one magnitude for the block, spread over a few powers of two within it. `kind` chooses. */
static float random_value(struct rf__rng *rng, int kind) {
    static const int exponents[] = {0, -20, 40, 120, 126, -110, -126, -149, -140, -8};
    int exponent = exponents[kind % 10] - (int)rf__rng_below(rng, kind % 3 ? 3 : 12);
    float value = (float)(1.0 + (double)rf__rng_below(rng, 1 << 23) / (1 << 23));

    value = ldexpf(value, exponent);
    return rf__rng_below(rng, 2) ? -value : value;
}

static void fill(struct rf__rng *rng, float *x, size_t count, int kind) {
    for (size_t i = 0; i < count; i++) {
        x[i] = kind == 10 ? 0 : random_value(rng, kind);
    }
    if (kind == 3 && count > 2) { /* ties: the largest is 127, so the scale is 1 */
        for (size_t i = 0; i < count; i++) {
            x[i] = (float)((int)rf__rng_below(rng, 254) - 127) + 0.5f;
        }
        for (size_t i = 0; i < count; i += RF__PACK_BLOCK) {
            x[i] = 127;
        }
    }
}

/* |x - decoded| <= scale / 2, and x = decoded + lost, both to the bit. */
static void nothing_is_lost_but_what_is_kept(void **state) {
    static float x[MOST], before[MOST], lost[MOST], decoded[MOST];
    static unsigned char part[BYTES];
    struct rf__rng rng = rf__rng(11, 0, 0);
    (void)state;
    for (int kind = 0; kind <= 10; kind++) {
        for (size_t c = 0; c < COUNTS; c++) {
            size_t count = counts[c], blocks = rf__pack_blocks(count);
            fill(&rng, x, count, kind);
            memcpy(before, x, sizeof x);
            memset(part, 0xee, sizeof part);
            rf__pack(x, lost, false, count, part, ROOM);
            assert_memory_equal(x, before, sizeof x);
            memset(decoded, 0xee, sizeof decoded);
            rf__unpack(decoded, count, part, ROOM, 1);
            for (size_t i = 0; i < count; i++) {
                float scale = scale_of(part, i / RF__PACK_BLOCK);
                double distance = fabs((double)x[i] - (double)decoded[i]);
                assert_true(distance <= (double)scale / 2);
                assert_true(decoded[i] + lost[i] == x[i]);
                assert_true((double)decoded[i] + (double)lost[i] == (double)x[i]);
            }
            assert_true(blocks <= ROOM);
            for (size_t b = 0; b < ROOM; b++) { /* what no value fills is zero */
                size_t from = b * RF__PACK_BLOCK;
                for (size_t i = from < count ? count - from : 0; i < RF__PACK_BLOCK; i++) {
                    assert_int_equal(part[from + i], 0);
                }
                assert_true(b < blocks || scale_of(part, b) == 0);
            }
            for (size_t i = count; i < MOST; i++) { /* nothing beyond is touched */
                uint32_t bits;
                memcpy(&bits, &decoded[i], sizeof bits);
                assert_int_equal(bits, 0xeeeeeeee);
            }
        }
    }
}

/* The largest magnitude over 127, and no more than a bit in the eighth place above. */
static void scales_are_tight(void **state) {
    static float x[RF__PACK_BLOCK], lost[RF__PACK_BLOCK];
    static unsigned char part[BYTES];
    struct rf__rng rng = rf__rng(12, 0, 0);
    (void)state;
    for (int round = 0; round < 3000; round++) {
        double most = 0;
        fill(&rng, x, RF__PACK_BLOCK, round % 3 ? 0 : 1);
        for (int i = 0; i < RF__PACK_BLOCK; i++) {
            most = fmax(most, fabs((double)x[i]));
        }
        rf__pack(x, lost, false, RF__PACK_BLOCK, part, ROOM);
        double scale = (double)scale_of(part, 0);
        assert_true(scale >= most / 127 * (1 - 0x1p-22));
        assert_true(scale <= most / 127 * (1 + 0x1p-7));
    }
}

static void what_is_lost_comes_back(void **state) {
    static float x[MOST], lost[MOST], decoded[MOST], sum[MOST];
    static unsigned char part[BYTES];
    enum { STEPS = 400 };
    struct rf__rng rng = rf__rng(13, 0, 0);
    static float value[MOST];
    (void)state;
    fill(&rng, value, MOST, 9);
    for (int s = 0; s < STEPS; s++) {
        memcpy(x, value, sizeof x);
        rf__pack(x, lost, true, MOST, part, ROOM);
        rf__unpack(decoded, MOST, part, ROOM, 1);
        for (int i = 0; i < MOST; i++) {
            assert_true(decoded[i] + lost[i] == x[i]);
            sum[i] += decoded[i];
        }
    }
    /* All steps together are off by what one of them loses, and by the rounding of sums. */
    for (int i = 0; i < MOST; i++) {
        double scale = (double)scale_of(part, (size_t)i / RF__PACK_BLOCK);
        double most = scale * 1.5 + fabs((double)value[i]) * STEPS * 1e-5;
        assert_true(fabs((double)sum[i] - (double)value[i] * STEPS) <= most);
    }
}

static void what_is_not_finite_stays_so(void **state) {
    static const uint32_t bad[] = {0x7fc00000, 0xffc00001, 0x7f800001, 0x7f800000,
                                   0xff800000, 0x7f7fffff, 0x7f000000, 0xff000001};
    static float x[MOST], lost[MOST], decoded[MOST];
    static unsigned char part[BYTES], sum[BYTES];
    (void)state;
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
        for (size_t at = 0; at < MOST; at += 101) {
            for (size_t i = 0; i < MOST; i++) {
                x[i] = 1;
                lost[i] = 0.25f;
            }
            x[at] = of_bits(bad[k]);
            rf__pack(x, lost, true, MOST, part, ROOM);
            rf__unpack(decoded, MOST, part, ROOM, 3);
            for (size_t i = 0; i < MOST; i++) {
                bool same_block = i / RF__PACK_BLOCK == at / RF__PACK_BLOCK;
                assert_true(same_block ? isnan(decoded[i]) : fabsf(decoded[i] * 3 - 1.25f) < 0.01f);
                assert_true(isfinite(lost[i]) && (!same_block || lost[i] == 0));
            }
            memset(lost, 0, sizeof lost);
            rf__pack_sum(part, 1, lost, MOST, sum, ROOM);
            rf__unpack(decoded, MOST, sum, ROOM, 1);
            assert_true(isnan(decoded[at]) && isfinite(lost[at]));
        }
    }
}

/* Sums of numbers that are finite, and that is not. */
static void an_overflowing_sum_is_no_number(void **state) {
    static float x[10], lost[10], decoded[10];
    static unsigned char parts[RANKS * BYTES], sum[BYTES];
    (void)state;
    for (int r = 0; r < RANKS; r++) {
        for (int i = 0; i < 10; i++) {
            x[i] = 1.5e38f;
        }
        rf__pack(x, lost, false, 10, parts + (size_t)r * BYTES, ROOM);
    }
    memset(lost, 0, sizeof lost);
    rf__pack_sum(parts, RANKS, lost, 10, sum, ROOM);
    rf__unpack(decoded, 10, sum, ROOM, 1);
    assert_true(isnan(decoded[0]) && lost[0] == 0);
}

/* The owner's sum: of what was decoded, in rank order, and its loss is exact. */
static void sums_are_those_of_the_parts(void **state) {
    static float x[MOST], scratch[MOST], lost[MOST], before[MOST], decoded[MOST], want[MOST];
    static unsigned char parts[RANKS * BYTES], sum[BYTES];
    struct rf__rng rng = rf__rng(14, 0, 0);
    (void)state;
    for (int ranks = 1; ranks <= RANKS; ranks++) {
        for (size_t c = 0; c < COUNTS; c++) {
            size_t count = counts[c];
            for (int r = 0; r < ranks; r++) {
                fill(&rng, x, count, r);
                rf__pack(x, scratch, false, count, parts + (size_t)r * BYTES, ROOM);
                rf__unpack(decoded, count, parts + (size_t)r * BYTES, ROOM, 1);
                for (size_t i = 0; i < count; i++) {
                    want[i] = r ? want[i] + decoded[i] : decoded[i];
                }
            }
            fill(&rng, lost, count, 9);
            memcpy(before, lost, sizeof lost);
            rf__pack_sum(parts, ranks, lost, count, sum, ROOM);
            rf__unpack(decoded, count, sum, ROOM, 1);
            for (size_t i = 0; i < count; i++) {
                assert_true(decoded[i] + lost[i] == want[i] + before[i]);
            }
            rf__unpack(want, count, sum, ROOM, 7);
            for (size_t i = 0; i < count; i++) {
                assert_true(fabs((double)want[i] * 7 - (double)decoded[i]) <=
                            fabs((double)decoded[i]) * 3e-7 + 1e-44);
            }
        }
    }
}

static void all_levels_give_the_same_bytes(void **state) {
    static float x[3][MOST], lost[3][MOST], out[3][MOST], first[MOST], first_lost[MOST];
    static unsigned char part[3][RANKS * BYTES], sum[3][BYTES];
    struct rf__rng rng = rf__rng(15, 0, 0);
    int levels = 0;
    (void)state;
    for (int kind = 0; kind <= 10; kind++) {
        for (size_t c = 0; c < COUNTS; c++) {
            size_t count = counts[c];
            fill(&rng, first, count, kind);
            fill(&rng, first_lost, count, kind);
            if (kind == 5 && count > 300) {
                first[300] = NAN;
            }
            for (int level = 0; level < RF__FOLD_LEVELS; level++) {
                if (!rf__pack_level(level)) {
                    continue;
                }
                levels++;
                memcpy(x[level], first, sizeof first);
                memcpy(lost[level], first_lost, sizeof first_lost);
                rf__pack(x[level], lost[level], true, count, part[level], ROOM);
                memcpy(part[level] + BYTES, part[level], BYTES);
                rf__pack_sum(part[level], 2, lost[level], count, sum[level], ROOM);
                rf__unpack(out[level], count, sum[level], ROOM, 3);
                assert_memory_equal(part[level], part[0], BYTES);
                assert_memory_equal(sum[level], sum[0], BYTES);
                assert_memory_equal(lost[level], lost[0], sizeof lost[0]);
                assert_memory_equal(out[level], out[0], sizeof out[0]);
                for (size_t i = 0; i < count; i++) { /* a NaN's sign may be any */
                    assert_true(x[level][i] == x[0][i] || (isnan(x[level][i]) && isnan(x[0][i])));
                }
            }
        }
    }
    assert_true(rf__pack_level(-1));
    assert_true(levels >= 11 * COUNTS);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_lost_but_what_is_kept),
        cmocka_unit_test(scales_are_tight),
        cmocka_unit_test(what_is_lost_comes_back),
        cmocka_unit_test(what_is_not_finite_stays_so),
        cmocka_unit_test(an_overflowing_sum_is_no_number),
        cmocka_unit_test(sums_are_those_of_the_parts),
        cmocka_unit_test(all_levels_give_the_same_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
