/* Element types, reduction operations, collectives and algorithms: their names, sizes and rules.
 * Pure functions. */
#ifndef RINGFOLD_TYPES_H
#define RINGFOLD_TYPES_H

#include <ringfold/error.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* X(NAME, name, bytes) */
#define RF_TYPE_LIST(X)                                                                            \
    X(F32, f32, 4)                                                                                 \
    X(F64, f64, 8)                                                                                 \
    X(F16, f16, 2)                                                                                 \
    X(BF16, bf16, 2)                                                                               \
    X(I8, i8, 1)                                                                                   \
    X(U8, u8, 1)                                                                                   \
    X(I32, i32, 4)                                                                                 \
    X(U32, u32, 4)                                                                                 \
    X(I64, i64, 8)                                                                                 \
    X(U64, u64, 8)

/* Sums of f16 and bf16 are formed in float32. Integers wrap. AVG is a sum divided once at the end
 * (integers: towards zero). MIN and MAX give NaN if any input is NaN. AND, OR and XOR are bitwise
 * and for integers only. */
#define RF_REDOP_LIST(X)                                                                           \
    X(SUM, sum)                                                                                    \
    X(AVG, avg)                                                                                    \
    X(PROD, prod)                                                                                  \
    X(MIN, min)                                                                                    \
    X(MAX, max)                                                                                    \
    X(AND, and)                                                                                    \
    X(OR, or)                                                                                      \
    X(XOR, xor)

#define RF_COLL_LIST(X)                                                                            \
    X(ALLREDUCE, allreduce)                                                                        \
    X(REDUCE_SCATTER, reduce_scatter)                                                              \
    X(ALL_GATHER, all_gather)                                                                      \
    X(BROADCAST, broadcast)                                                                        \
    X(REDUCE, reduce)                                                                              \
    X(GATHER, gather)                                                                              \
    X(SCATTER, scatter)                                                                            \
    X(ALL_TO_ALL, all_to_all)                                                                      \
    X(BARRIER, barrier)                                                                            \
    X(SEND, send)                                                                                  \
    X(RECV, recv)

/* How a collective is carried out. AUTO lets the library choose; a collective that an algorithm
 * does not cover refuses it with RF_EUNSUPPORTED. SHARED is the path through shared memory, not a
 * schedule of messages. HIERARCHICAL, for allreduce on several hosts with equally many ranks:
 * inside the hosts first, then from host to host; or on one host with several NUMA nodes: the same
 * from node to node (docs/TUNING.md). */
#define RF_ALGORITHM_LIST(X)                                                                       \
    X(AUTO, auto)                                                                                  \
    X(NAIVE, naive)                                                                                \
    X(REDUCE_BROADCAST, reduce_broadcast)                                                          \
    X(RING, ring)                                                                                  \
    X(DIRECT, direct)                                                                              \
    X(RECURSIVE_DOUBLING, recursive_doubling)                                                      \
    X(RABENSEIFNER, rabenseifner)                                                                  \
    X(TREE, tree)                                                                                  \
    X(SHARED, shared)                                                                              \
    X(HIERARCHICAL, hierarchical)

/* What sums of float32 travel as, between the members that form them (docs/WIRE.md). BF16 is
 * rounded once on the way to a sum and once on the way back; INT8 is 8 bits an element and a scale
 * for each 256, and what that loses is kept and added to the next sum. */
#define RF_WIRE_LIST(X)                                                                            \
    X(NONE, none)                                                                                  \
    X(BF16, bf16)                                                                                  \
    X(INT8, int8)

#define RF_X(NAME, name, bytes) RF_##NAME,
enum rf_type { RF_TYPE_LIST(RF_X) RF_TYPE_COUNT };
#undef RF_X
#define RF_X(NAME, name) RF_##NAME,
enum rf_redop { RF_REDOP_LIST(RF_X) RF_REDOP_COUNT };
#undef RF_X
#define RF_X(NAME, name) RF_COLL_##NAME,
enum rf_coll { RF_COLL_LIST(RF_X) RF_COLL_COUNT };
#undef RF_X
#define RF_X(NAME, name) RF_ALGORITHM_##NAME,
enum rf_algorithm { RF_ALGORITHM_LIST(RF_X) RF_ALGORITHM_COUNT };
#undef RF_X
#define RF_X(NAME, name) RF_WIRE_##NAME,
enum rf_wire { RF_WIRE_LIST(RF_X) RF_WIRE_COUNT };
#undef RF_X

/* Bytes of one element; 0 for a value outside the enum. */
RF_API size_t rf_type_size(enum rf_type type);

/* The lower-case names above ("f32", "sum", "all_gather", "ring"); "?" for a value outside the
 * enum. */
RF_API const char *rf_type_name(enum rf_type type);
RF_API const char *rf_redop_name(enum rf_redop redop);
RF_API const char *rf_coll_name(enum rf_coll coll);
RF_API const char *rf_algorithm_name(enum rf_algorithm algorithm);
RF_API const char *rf_wire_name(enum rf_wire wire);

/* The other way round; dashes and underscores are the same. RF_EINVAL and an untouched *out for an
 * unknown name. */
RF_API RF_MUST_CHECK int rf_type_parse(const char *name, enum rf_type *out);
RF_API RF_MUST_CHECK int rf_redop_parse(const char *name, enum rf_redop *out);
RF_API RF_MUST_CHECK int rf_coll_parse(const char *name, enum rf_coll *out);
RF_API RF_MUST_CHECK int rf_algorithm_parse(const char *name, enum rf_algorithm *out);
RF_API RF_MUST_CHECK int rf_wire_parse(const char *name, enum rf_wire *out);

/* Whether the operation is defined for the type (bitwise operations are not, for floats). */
RF_API bool rf_redop_valid(enum rf_redop redop, enum rf_type type);

#ifdef __cplusplus
}
#endif
#endif
