/* What the ranks of one host see of each other: boards, and the stage. For shared.c and stage.c.
 *
 * A board has two slots. A rank that posts call k+2 has completed k+1, so all have posted k+1, so
 * all have completed k: slot k is free again. (Counted are the calls that go over the boards.) */
#ifndef RF_GROUP_BOARD_H
#define RF_GROUP_BOARD_H

#include "group/inner.h"

#include <stddef.h>
#include <string.h>

enum { RF__FEW_BYTES = 28, RF__INLINE_BYTES = 16 << 10 };

/* `posted` is the number of the call that stands here. A call with few bytes is one cache line. */
struct rf__slot {
    _Alignas(64) _Atomic uint64_t posted;
    uint64_t count;
    int32_t root;
    uint8_t coll, type, redop, algorithm;
    uint8_t has_send, has_recv, has_stage; /* it lies in the heap: at the place below */
    uint8_t is_staged;                     /* the call's first chunk stands on the stage already */
    uint8_t has_data;                      /* it stands here, in `few` or `data` */
    uint8_t in_place, pad[2];
    unsigned char few[RF__FEW_BYTES];
    struct rf__place send, recv, stage;
    _Alignas(64) unsigned char data[RF__INLINE_BYTES];
};

struct rf__counter {
    _Alignas(64) _Atomic uint64_t pieces;
};

/* `done` holds the number of the newest call whose direct part is over; `staged`,
 * `folded` and `taken` count chunks of all the generation's calls that went over the stage. All are
 * stored with release by the owner, after what they vouch for, and loaded with acquire by the
 * others before they use it. */
struct rf__board {
    _Alignas(64) _Atomic uint64_t done;
    _Alignas(64) _Atomic uint64_t staged;
    _Alignas(64) _Atomic uint64_t folded;
    _Alignas(64) _Atomic uint64_t taken;
    _Alignas(64) struct rf__slot slots[2];
    struct rf__counter nodes[4]; /* of nodes.c, in the same way */
};

_Static_assert(sizeof(struct rf__board) <= RF__BOARD_BYTES, "the board must fit");

static inline struct rf__board *rf__board_of(struct rf__group *group, int rank) {
    return group->shared.boards[rank - group->shared.team.first];
}

_Static_assert(offsetof(struct rf__slot, send) == 64, "what few bytes need must be one line");

/* Of the call that runs. */
static inline struct rf__slot *rf__slot_of(struct rf__group *group, int rank) {
    return &rf__board_of(group, rank)->slots[group->shared.post % 2];
}

/* Wakes those of the host who sleep. It takes a full fence, which waits until what was published is
 * out; so this comes only where there is nothing better to do: before waiting for the others, or
 * when the call is over. Nobody may sleep before. */
static inline void rf__tell_all(struct rf__group *group) {
    struct rf__team team = group->shared.team;

    if (!group->shared.untold) {
        return;
    }
    group->shared.untold = false;
    for (int rank = team.first; rank < team.first + team.size; rank++) {
        if (rank != group->rank) {
            group->options.net->shared->notify(group->options.net, rank);
        }
    }
}

/* Whether the ranks' buffers of so many bytes are more than the host's last cache holds: only then
 * are stores better that bypass it (16 MiB on 2 ranks: 540 µs with them, 336 without). */
static inline bool rf__exceeds_cache(const struct rf__group *group, size_t bytes) {
    enum { USUAL_CACHE = 32 << 20 };
    size_t cache = group->options.net->cache_bytes;
    return bytes * (size_t)group->shared.team.size > (cache ? cache : USUAL_CACHE);
}

static inline void rf__copy(void *to, const void *from, size_t bytes) {
    if (bytes && to != from) {
        memmove(to, from, bytes);
    }
}

/* shared.c: a peer's memory as mapped here; an error revokes the group. */
int rf__shared_map(struct rf__group *group, int rank, const struct rf__place *place, size_t need,
                   unsigned char **out);

/* stage.c. Before the call is posted: says in the slot where the stage is, and with `begin` puts
 * the first chunk there where it is free. */
void rf__stage_offer(struct rf__group *group, struct rf__op *op, struct rf__slot *slot, bool begin);
/* After all have posted, and all have a stage. */
int rf__stage_begin(struct rf__group *group, struct rf__op *op);
/* Everybody's stage, as mapped here. */
int rf__stage_map(struct rf__group *group);
/* 1 when the call is complete, 0 when it waits, or an error. */
int rf__stage_run(struct rf__group *group, struct rf__op *op, bool *moved);

/* The own slice of an allreduce's chunk `index`. */
struct rf__own_slice {
    size_t count, bytes;
    unsigned char *staged, *out; /* on the own stage, and where the result belongs */
};
struct rf__own_slice rf__stage_slice(const struct rf__group *group, const struct rf__op *op,
                                     uint64_t index);
/* Its sum stands on the stage: the others of the host may take it. */
void rf__stage_publish_sum(struct rf__group *group, uint64_t chunks);

/* hosts.c, beside the stage. Before the slice of chunk `index` is folded: 1 when what the hosts
 * before have folded stands on the stage (and is `first`), 0 when not yet, or an error. */
int rf__hosts_prior(struct rf__group *group, struct rf__op *op, uint64_t index, bool *moved);
/* Sends what is folded, receives and passes on what is complete. */
int rf__hosts_run(struct rf__group *group, struct rf__op *op, bool *moved);
void rf__hosts_begin(struct rf__group *group);

/* nodes.c, of the same shape as stage.c: after all have posted, and all have a stage. */
int rf__nodes_begin(struct rf__group *group, const struct rf__op *op);
int rf__nodes_run(struct rf__group *group, const struct rf__op *op, bool *moved);
/* Whether an allreduce takes that way by itself; and how often its buffer goes between nodes then.
 */
bool rf__nodes_pay(const struct rf__group *group, const struct rf_call *call);
double rf__nodes_share(const struct rf__group *group, enum rf_type type);

#endif
