/* The values of bench_data.h, and their reductions by a loop over the ranks that knows nothing of
 * the library's own. */
#include "bench_data.h"

#include <math.h>
#include <string.h>

static bool is_float(enum rf_type type) {
    return type == RF_F32 || type == RF_F64 || type == RF_F16 || type == RF_BF16;
}

static bool is_signed(enum rf_type type) {
    return type == RF_I8 || type == RF_I32 || type == RF_I64;
}

/* Up to here the type counts without gaps; integers wrap and have no such end. */
static int64_t exact_up_to(enum rf_type type) {
    return type == RF_BF16 ? 256 : type == RF_F16 ? 2048 : 1 << 24;
}

static int64_t value_of(enum rf_type type, enum rf_redop redop, int64_t place, int64_t rank,
                        int64_t size) {
    int64_t most = exact_up_to(type) / size, out = 0;
    switch (redop) {
    case RF_SUM:
    case RF_AVG:
        most = most < 1 ? 1 : most > 100 ? 100 : most;
        out = (place * 3 + rank * 5) % (most + 1);
        break;
    case RF_PROD: /* one small number, and signs */
        out = rank == 0 ? 1 + place % 3 : (place + rank) % 2 ? -1 : 1;
        break;
    case RF_MIN:
    case RF_MAX:
        out = (place * 5 + rank * 7) % 101 - (is_float(type) || is_signed(type) ? 50 : 0);
        break;
    case RF_AND:
    case RF_OR:
    case RF_XOR:
        out = (int64_t)((uint64_t)(place * 1024 + rank + 1) * UINT64_C(0x9e3779b97f4a7c15) >> 1);
        break;
    case RF_REDOP_COUNT: /* nothing is computed: tell ranks and places apart */
        out = (place * 3 + rank * 5) % 127;
        break;
    }
    return out;
}

static uint16_t f16_of(float value) {
    double magnitude = fabs((double)value);
    unsigned bits = 0;
    if (magnitude > 0) {
        int exponent = ilogb(magnitude) < -14 ? -14 : ilogb(magnitude);
        bits = (unsigned)(exponent + 14) << 10;
        bits += (unsigned)nearbyint(ldexp(magnitude, 10 - exponent));
    }
    return (uint16_t)(bits | (signbit(value) ? 0x8000u : 0));
}

static uint16_t bf16_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* Element `place` of the table: `real` for floating-point types, else the low bytes of `integer`.
 */
static void put(struct bench_table *table, enum rf_type type, size_t place, double real,
                int64_t integer) {
    unsigned char *at = table->elements + place * table->element_bytes;
    float single = (float)real;
    uint16_t half = type == RF_F16 ? f16_of(single) : bf16_of(single);
    if (type == RF_F64) {
        memcpy(at, &real, sizeof real);
    } else if (type == RF_F32) {
        memcpy(at, &single, sizeof single);
    } else if (is_float(type)) {
        memcpy(at, &half, sizeof half);
    } else {
        for (size_t i = 0; i < table->element_bytes; i++) {
            at[i] = (unsigned char)((uint64_t)integer >> (8 * i));
        }
    }
}

void bench_table_of_rank(struct bench_table *table, enum rf_type type, enum rf_redop redop,
                         int rank, int size) {
    table->element_bytes = rf_type_size(type);
    for (size_t place = 0; place < BENCH_PERIOD; place++) {
        int64_t value = value_of(type, redop, (int64_t)place, rank, size);
        put(table, type, place, (double)value, value);
    }
}

static int64_t combine(enum rf_redop redop, int64_t a, int64_t b) {
    int64_t out = a;
    switch (redop) {
    case RF_SUM:
    case RF_AVG:
        out = a + b;
        break;
    case RF_PROD:
        out = a * b;
        break;
    case RF_MIN:
        out = a < b ? a : b;
        break;
    case RF_MAX:
        out = a > b ? a : b;
        break;
    case RF_AND:
        out = a & b;
        break;
    case RF_OR:
        out = a | b;
        break;
    case RF_XOR:
        out = a ^ b;
        break;
    case RF_REDOP_COUNT:
        break;
    }
    return out;
}

/* A sum as the type holds it before it is divided: integers wrap. */
static int64_t wrapped(enum rf_type type, int64_t value) {
    unsigned unused = (unsigned)(64 - 8 * rf_type_size(type));
    uint64_t raised = (uint64_t)value << unused;
    return is_signed(type) ? (int64_t)raised >> unused : (int64_t)(raised >> unused);
}

void bench_table_reduced(struct bench_table *table, enum rf_type type, enum rf_redop redop,
                         int size) {
    table->element_bytes = rf_type_size(type);
    for (size_t place = 0; place < BENCH_PERIOD; place++) {
        int64_t value = value_of(type, redop, (int64_t)place, 0, size);
        for (int rank = 1; rank < size; rank++) {
            value = combine(redop, value, value_of(type, redop, (int64_t)place, rank, size));
        }
        double real = redop == RF_AVG ? (double)value / size : (double)value;
        put(table, type, place, real, redop == RF_AVG ? wrapped(type, value) / size : value);
    }
}

/* Elements of the table from `place` on, at most `count`. */
static size_t run_length(size_t place, size_t count) {
    return BENCH_PERIOD - place < count ? BENCH_PERIOD - place : count;
}

void bench_fill(const struct bench_table *table, void *at, size_t first, size_t count) {
    unsigned char *to = at;
    size_t place = first % BENCH_PERIOD, element = table->element_bytes;
    while (count > 0) {
        size_t length = run_length(place, count);
        memcpy(to, table->elements + place * element, length * element);
        to += length * element;
        count -= length;
        place = 0;
    }
}

size_t bench_count_wrong(const struct bench_table *table, const void *at, size_t first,
                         size_t count) {
    const unsigned char *from = at;
    size_t place = first % BENCH_PERIOD, element = table->element_bytes, wrong = 0;
    while (count > 0) {
        size_t length = run_length(place, count);
        const unsigned char *want = table->elements + place * element;
        if (memcmp(from, want, length * element)) {
            for (size_t i = 0; i < length; i++) {
                wrong += memcmp(from + i * element, want + i * element, element) != 0;
            }
        }
        from += length * element;
        count -= length;
        place = 0;
    }
    return wrong;
}
