/* The state that a checkpoint holds, and which bytes of it are in which part.
 *
 * A state is an ordered list of tensors: the trained parameters first, then what else must be the
 * same on all members (optimizer moments, counters). Their bytes, one tensor after the other, are
 * cut into parts of nearly equal size; a cut inside a tensor is at a multiple of 64 bytes from its
 * start. A part is an ordered list of pieces, each within one tensor. Pure functions: the cut
 * depends on the tensors' lengths and the number of parts alone. */
#ifndef RF_CKPT_LAYOUT_H
#define RF_CKPT_LAYOUT_H

#include <ringfold/error.h>
#include <ringfold/limits.h>
#include <ringfold/types.h>
#include <stdbool.h>
#include <stdint.h>

enum {
    RF__CKPT_DIMS = 4,
    RF__CKPT_NAME = 256,                   /* bytes of a tensor's name, with its end */
    RF__CKPT_TENSORS = 2 * RF_MAX_TENSORS, /* parameters and further state */
    RF__CKPT_PARTS = RF_MAX_RANKS,
    RF__CKPT_CUT = 64
};

/* Names are UTF-8 without control characters and '@', and not "__metadata__". `length` is the
 * product of the shape (1 without dimensions) times the element's size. */
struct rf__ckpt_tensor {
    const char *name;  /* borrowed */
    enum rf_type type; /* RF_F32 or RF_U8 */
    bool trained;      /* a parameter; false: further state */
    int dims;          /* 0 … RF__CKPT_DIMS */
    uint64_t shape[RF__CKPT_DIMS];
    void *bytes; /* borrowed; NULL where a state is only described */
    uint64_t length;
};

struct rf__ckpt_state {
    const struct rf__ckpt_tensor *tensors; /* borrowed */
    int count;
};

struct rf__ckpt_piece {
    int tensor;              /* its index */
    uint64_t offset, length; /* bytes within the tensor; both multiples of the element's size */
    bool whole;              /* it is all of the tensor */
};

/* Holds a state against the rules above, equal names included: RF_EINVAL names the tensor. Once for
 * a state; the other functions here and in checkpoint.h take one that was checked. */
int rf__ckpt_state_check(const struct rf__ckpt_state *state, struct rf_error *err);

uint64_t rf__ckpt_state_bytes(const struct rf__ckpt_state *state);

/* Bytes of the part's pieces together: the room that rf__ckpt_stage needs. 0 <= part < parts. */
uint64_t rf__ckpt_part_bytes(const struct rf__ckpt_state *state, int part, int parts);

/* The pieces of a part in order:
 *     struct rf__ckpt_pieces pieces = rf__ckpt_pieces(state, part, parts);
 *     while (rf__ckpt_next_piece(&pieces, &piece)) … */
struct rf__ckpt_pieces {
    const struct rf__ckpt_state *state;
    uint64_t begin, end, start; /* of the part, and where tensor `next` starts */
    int next;
    bool last; /* the part is the last one */
};
struct rf__ckpt_pieces rf__ckpt_pieces(const struct rf__ckpt_state *state, int part, int parts);
bool rf__ckpt_next_piece(struct rf__ckpt_pieces *pieces, struct rf__ckpt_piece *out);

/* Copies a part's pieces from the state's memory, one after the other, into `buffer`. */
void rf__ckpt_stage(const struct rf__ckpt_state *state, int part, int parts, void *buffer);

/* RF_ECHECKPOINT, naming the first tensor that differs in name, type, shape or kind; `theirs` is
 * the checkpoint's. */
int rf__ckpt_state_compare(const struct rf__ckpt_state *theirs, const struct rf__ckpt_state *ours,
                           struct rf_error *err);

#endif
