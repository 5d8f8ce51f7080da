/* Names and sizes of the public enums. */
#include <ringfold/types.h>
#include <ringfold/version.h>

#include <string.h>

const char *rf_version(void) {
    return RF_VERSION;
}

#define RF_X(NAME, name, bytes) [RF_##NAME] = bytes,
static const size_t type_sizes[] = {RF_TYPE_LIST(RF_X)};
#undef RF_X
#define RF_X(NAME, name, bytes) [RF_##NAME] = #name,
static const char *const type_names[] = {RF_TYPE_LIST(RF_X)};
#undef RF_X
#define RF_X(NAME, name) [RF_##NAME] = #name,
static const char *const redop_names[] = {RF_REDOP_LIST(RF_X)};
#undef RF_X
#define RF_X(NAME, name) [RF_COLL_##NAME] = #name,
static const char *const coll_names[] = {RF_COLL_LIST(RF_X)};
#undef RF_X
#define RF_X(NAME, name) [RF_ALGORITHM_##NAME] = #name,
static const char *const algorithm_names[] = {RF_ALGORITHM_LIST(RF_X)};
#undef RF_X
#define RF_X(NAME, name) [RF_WIRE_##NAME] = #name,
static const char *const wire_names[] = {RF_WIRE_LIST(RF_X)};
#undef RF_X

static const char *name_of(const char *const *names, unsigned count, unsigned value) {
    return value < count ? names[value] : "?";
}

static int parse(const char *const *names, unsigned count, const char *text) {
    for (unsigned i = 0; i < count; i++) {
        const char *a = names[i], *b = text;
        while (*a && (*a == *b || (*a == '_' && *b == '-'))) {
            a++;
            b++;
        }
        if (!*a && !*b) {
            return (int)i;
        }
    }
    return RF_EINVAL;
}

size_t rf_type_size(enum rf_type type) {
    return (unsigned)type < RF_TYPE_COUNT ? type_sizes[type] : 0;
}

const char *rf_type_name(enum rf_type type) {
    return name_of(type_names, RF_TYPE_COUNT, (unsigned)type);
}

const char *rf_redop_name(enum rf_redop redop) {
    return name_of(redop_names, RF_REDOP_COUNT, (unsigned)redop);
}

const char *rf_coll_name(enum rf_coll coll) {
    return name_of(coll_names, RF_COLL_COUNT, (unsigned)coll);
}

const char *rf_algorithm_name(enum rf_algorithm algorithm) {
    return name_of(algorithm_names, RF_ALGORITHM_COUNT, (unsigned)algorithm);
}

const char *rf_wire_name(enum rf_wire wire) {
    return name_of(wire_names, RF_WIRE_COUNT, (unsigned)wire);
}

#define PARSE(function, type, names, count)                                                        \
    int function(const char *name, type *out) {                                                    \
        int value = parse(names, count, name);                                                     \
        if (value < 0) {                                                                           \
            return value;                                                                          \
        }                                                                                          \
        *out = (type)value;                                                                        \
        return 0;                                                                                  \
    }

PARSE(rf_type_parse, enum rf_type, type_names, RF_TYPE_COUNT)
PARSE(rf_redop_parse, enum rf_redop, redop_names, RF_REDOP_COUNT)
PARSE(rf_coll_parse, enum rf_coll, coll_names, RF_COLL_COUNT)
PARSE(rf_algorithm_parse, enum rf_algorithm, algorithm_names, RF_ALGORITHM_COUNT)
PARSE(rf_wire_parse, enum rf_wire, wire_names, RF_WIRE_COUNT)

bool rf_redop_valid(enum rf_redop redop, enum rf_type type) {
    bool is_float = type == RF_F32 || type == RF_F64 || type == RF_F16 || type == RF_BF16;
    bool is_bitwise = redop == RF_AND || redop == RF_OR || redop == RF_XOR;
    return (unsigned)type < RF_TYPE_COUNT && (unsigned)redop < RF_REDOP_COUNT &&
           !(is_float && is_bitwise);
}
