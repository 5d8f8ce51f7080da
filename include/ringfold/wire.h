/* Sums of float32 that travel as less: what rf_ddp does with `wire`, for programs that keep their
 * gradients themselves.
 *
 * RF_WIRE_BF16 rounds each value to bfloat16 on its way to the sum, which is formed in float32, and
 * the sum on its way back. RF_WIRE_INT8 sends 8 bits an element and 16 for each block of 256; what
 * that loses stays with the object, place by place, and is added to the values of the next call
 * with the same count. Not a number, infinite, or 2^127 and more: in 8 bits its block of 256 comes
 * out as NaN. The result is bit-identical on all ranks. Sums of few values, and those of a group of
 * one, are float32 all the way.
 *
 * Thread safety: that of the communicator. */
#ifndef RINGFOLD_WIRE_H
#define RINGFOLD_WIRE_H

#include <ringfold/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

struct rf_wire_sum;

/* Sums of up to `count` values. All members give the same. The communicator is borrowed until
 * destroy. RF_EUNSUPPORTED in an elastic group, where rf_ddp is the way. */
RF_API RF_MUST_CHECK int rf_wire_sum_create(struct rf_comm *comm, enum rf_wire wire, size_t count,
                                            struct rf_wire_sum **out, struct rf_error *err);

/* NULL is fine. */
RF_API void rf_wire_sum_destroy(struct rf_wire_sum *sum);

/* recv = the sum of all members' send, `count` values, not more than at create. In place where both
 * are the same. Collective; blocks. An error is the group's, as of rf_allreduce. */
RF_API RF_MUST_CHECK int rf_wire_sum_run(struct rf_wire_sum *sum, const float *send, float *recv,
                                         size_t count);

#ifdef __cplusplus
}
#endif
#endif
