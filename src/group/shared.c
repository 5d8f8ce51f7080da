/* Collectives through the host's shared memory. Every rank has a board that all others see. A call
 * begins by posting it there; when all have posted, everybody compares everybody's call (a mismatch
 * is known to all at once) and takes the same way:
 *
 *     INLINE  few bytes: they stand on the board itself; each rank folds or copies what it needs
 *             from all boards
 *     DIRECT  buffers in shared heaps: each rank folds its slice of all inputs into all outputs, or
 *             copies its part, and then waits until all are done
 *     STAGED  ordinary memory: over a block in each rank's heap, see stage.c
 *     NODES   an allreduce of ranks in several NUMA nodes: see nodes.c
 *     STREAM  an algorithm was asked for by name, or there is no memory for a stage: the schedule
 *             over the links
 *
 * Folding is in rank order on every path here but STREAM's ring-like algorithms. */
#include "group/board.h"

#include "base/assert.h"
#include "coll/fold.h"

#include <string.h>

enum { INLINE_LEAST = 2048, INLINE_OF_MANY = 8192, WORK_BYTES = 1 << 20 };

/* Bytes that the rank's send and recv buffers hold; 0 where it needs none. */
static size_t send_bytes(const struct rf_call *call, int rank, int size) {
    size_t part = call->count * rf_type_size(call->type);
    switch (call->coll) {
    case RF_COLL_ALLREDUCE:
    case RF_COLL_REDUCE:
    case RF_COLL_ALL_GATHER:
    case RF_COLL_GATHER:
        return part;
    case RF_COLL_REDUCE_SCATTER:
    case RF_COLL_ALL_TO_ALL:
        return part * (size_t)size;
    case RF_COLL_BROADCAST:
        return rank == call->root ? part : 0;
    case RF_COLL_SCATTER:
        return rank == call->root ? part * (size_t)size : 0;
    case RF_COLL_BARRIER:
    case RF_COLL_SEND:
    case RF_COLL_RECV:
    case RF_COLL_COUNT:
        break;
    }
    return 0;
}

static size_t largest_send(const struct rf_call *call, int size) {
    return send_bytes(call, call->root, size); /* the root's is never smaller than the others' */
}

/* The most that goes over the boards, with one wait for the others instead of two. Of ordinary
 * memory it is more, as it is copied in any case. Where everybody folds everything, more ranks fold
 * the same more often; but the more they are, the dearer is a wait. */
static size_t most_inline(const struct rf_call *call, int size, bool is_ordinary) {
    size_t most = is_ordinary ? RF__INLINE_BYTES : INLINE_LEAST;

    if (call->coll == RF_COLL_ALLREDUCE && size > 2) {
        most = INLINE_OF_MANY;
    }
    return most;
}

static unsigned char *inline_data(const struct rf__group *group, struct rf__slot *slot) {
    return group->shared.most <= RF__FEW_BYTES ? slot->few : slot->data;
}

static bool is_free_to_choose(const struct rf__op *op) {
    return op->algorithm == RF_ALGORITHM_AUTO || op->algorithm == RF_ALGORITHM_SHARED;
}

static bool find(struct rf__group *group, const void *memory, size_t bytes,
                 struct rf__place *place) {
    struct rf__net *net = group->options.net;
    *place = (struct rf__place){0};
    return bytes == 0 ||
           net->shared->find(net, memory, bytes, &place->block, &place->bytes, &place->inside) == 0;
}

/* Says in the slot where the buffers are, or where else the data will be. */
static void offer(struct rf__group *group, struct rf__op *op, struct rf__slot *slot) {
    const struct rf_call *call = &op->params.call;
    size_t bytes = send_bytes(call, group->rank, group->size);
    bool others_write = call->coll == RF_COLL_ALLREDUCE ||
                        (call->coll == RF_COLL_REDUCE && group->rank == call->root);
    size_t recv_bytes = others_write ? call->count * rf_type_size(call->type) : 0;

    if (group->hosts.runs) {
        rf__stage_offer(group, op, slot, true);
        return;
    }
    bool small = group->shared.is_inline;
    if (!small) {
        slot->has_send = find(group, call->send, bytes, &slot->send);
        slot->has_recv = find(group, call->recv, recv_bytes, &slot->recv);
        small = !group->nodes.runs && !(slot->has_send && slot->has_recv) &&
                is_free_to_choose(op) && group->shared.most <= most_inline(call, group->size, true);
    }
    if (small) {
        if (bytes) {
            memcpy(inline_data(group, slot), call->send, bytes);
        }
        slot->has_data = 1;
    }
    if (group->nodes.runs) {
        rf__stage_offer(group, op, slot, false);
    } else if (!group->shared.is_inline && is_free_to_choose(op)) {
        rf__stage_offer(group, op, slot, !small && !(slot->has_send && slot->has_recv));
    }
}

void rf__shared_begin(struct rf__group *group, struct rf__op *op) {
    const struct rf_call *call = &op->params.call;
    group->shared.post++;
    group->shared.most = largest_send(call, group->size);
    group->shared.is_inline = !group->hosts.runs && !group->nodes.runs &&
                              group->shared.most <= most_inline(call, group->size, false);
    struct rf__slot *slot = rf__slot_of(group, group->rank);

    slot->count = call->count;
    slot->root = call->root;
    slot->coll = (uint8_t)call->coll;
    slot->type = (uint8_t)call->type;
    slot->redop = (uint8_t)call->redop;
    slot->algorithm = (uint8_t)op->algorithm;
    slot->in_place = call->send == call->recv;
    slot->has_send = slot->has_recv = slot->has_stage = slot->is_staged = slot->has_data = 0;
    offer(group, op, slot);
    group->shared.phase = RF__SHARED_POSTED;
    group->shared.waiting = 0;
    group->shared.done_bytes = 0;
    group->shared.divisor = op->params.divisor      ? *op->params.divisor
                            : call->redop == RF_AVG ? (double)group->size
                                                    : 1.0;
    atomic_store_explicit(&slot->posted, group->shared.post, memory_order_release);
    group->shared.untold = true;
}

/* Whether all have posted (or are done with) the call; a rank that left without is lost. */
static int all_arrived(struct rf__group *group, const struct rf__op *op, bool done) {
    struct rf__shared_run *run = &group->shared;

    while (run->waiting < run->team.size) {
        int rank = run->team.first + run->waiting;
        uint64_t at = atomic_load_explicit(done ? &rf__board_of(group, rank)->done
                                                : &rf__slot_of(group, rank)->posted,
                                           memory_order_acquire);
        if (at < run->post) {
            if (rank != group->rank && group->peers[rank].gone) {
                return rf__group_fail(group, RF_ELOST, rank,
                                      "rank %d has left, and rank %d waits for it in call %llu",
                                      rank, group->rank, (unsigned long long)op->seq);
            }
            return 0;
        }
        run->waiting++;
    }
    return 1;
}

static bool is_same(const struct rf__slot *a, const struct rf__slot *b) {
    return a->coll == b->coll && a->type == b->type && a->redop == b->redop &&
           a->algorithm == b->algorithm && a->root == b->root && a->count == b->count;
}

static void slot_text(char *out, size_t bytes, const struct rf__slot *slot) {
    rf__call_text(out, bytes, (enum rf_coll)slot->coll, (enum rf_type)slot->type,
                  (enum rf_redop)slot->redop, slot->count, slot->root,
                  (enum rf_algorithm)slot->algorithm);
}

/* Everybody names the same pair: the first rank of the host, and the first that differs from it. */
static int compare_calls(struct rf__group *group, const struct rf__op *op) {
    struct rf__team team = group->shared.team;
    const struct rf__slot *first = rf__slot_of(group, team.first);
    char theirs[160], firsts[160];

    for (int rank = team.first + 1; rank < team.first + team.size; rank++) {
        const struct rf__slot *slot = rf__slot_of(group, rank);
        if (!is_same(slot, first)) {
            slot_text(theirs, sizeof theirs, slot);
            slot_text(firsts, sizeof firsts, first);
            return rf__group_fail(group, RF_EMISMATCH, rank,
                                  "in call %llu rank %d called %s, but rank %d called %s",
                                  (unsigned long long)op->seq, rank, theirs, team.first, firsts);
        }
    }
    return 0;
}

/* The same on all ranks: it depends on what stands on the boards only. */
static enum rf__shared_mode choose_mode(struct rf__group *group, const struct rf__op *op) {
    const struct rf_call *call = &op->params.call;
    struct rf__team team = group->shared.team;
    bool is_direct = !group->hosts.runs, is_inline = true, is_staged = true;

    if (call->coll == RF_COLL_BARRIER) {
        return RF__SHARED_INLINE;
    }
    if (!is_free_to_choose(op) && !group->hosts.runs && !group->nodes.runs) {
        return RF__SHARED_STREAM;
    }
    if (group->shared.is_inline) {
        return RF__SHARED_INLINE;
    }
    for (int rank = team.first; rank < team.first + team.size; rank++) {
        const struct rf__slot *slot = rf__slot_of(group, rank);
        bool is_moved = call->coll == RF_COLL_ALL_TO_ALL && slot->in_place;
        is_direct = is_direct && slot->has_send && slot->has_recv && !is_moved;
        is_inline = is_inline && slot->has_data;
        is_staged = is_staged && slot->has_stage;
    }
    if (group->nodes.runs && (is_staged || !is_free_to_choose(op))) {
        group->nodes.is_direct = is_direct;
        return is_staged ? RF__SHARED_NODES : RF__SHARED_STREAM;
    }
    return is_direct   ? RF__SHARED_DIRECT
           : is_inline ? RF__SHARED_INLINE
           : is_staged ? RF__SHARED_STAGED
                       : RF__SHARED_STREAM;
}

int rf__shared_map(struct rf__group *group, int rank, const struct rf__place *place, size_t need,
                   unsigned char **out) {
    struct rf__net *net = group->options.net;
    uint64_t bytes = place->bytes;
    unsigned char *base = place->inside <= bytes && need <= bytes - place->inside
                              ? net->shared->map(net, rank, place->block, bytes)
                              : NULL;

    if (!base) {
        return rf__group_fail(group, RF_ENOMEM, group->rank,
                              "rank %d cannot map %llu bytes of rank %d's memory", group->rank,
                              (unsigned long long)bytes, rank);
    }
    *out = base + place->inside;
    return 0;
}

/* What rank `rank` sends, and where it receives, as seen from here. */
static int locate(struct rf__group *group, const struct rf__op *op, int rank, bool send,
                  void **out) {
    struct rf__slot *slot = rf__slot_of(group, rank);
    size_t need = send ? send_bytes(&op->params.call, rank, group->size)
                       : op->params.call.count * rf_type_size(op->params.call.type);
    unsigned char *mapped = NULL;
    int rc = 0;

    if (group->shared.mode == RF__SHARED_INLINE) {
        *out = inline_data(group, slot);
        return 0;
    }
    if (rank == group->rank) {
        union {
            const void *from;
            void *to;
        } own = {.from = op->params.call.send};
        *out = send ? own.to : op->params.call.recv;
        return 0;
    }
    if (need) {
        rc = rf__shared_map(group, rank, send ? &slot->send : &slot->recv, need, &mapped);
    }
    *out = mapped;
    return rc;
}

static int locate_all(struct rf__group *group, const struct rf__op *op) {
    const struct rf_call *call = &op->params.call;
    struct rf__shared_run *run = &group->shared;

    for (int rank = 0; rank < group->size; rank++) {
        void *in = NULL;
        int rc = locate(group, op, rank, true, &in);
        run->ins[rank] = in;
        run->outs[rank] = NULL;
        bool writes =
            call->coll == RF_COLL_ALLREDUCE || (call->coll == RF_COLL_REDUCE && rank == call->root);
        if (rc == 0 && writes && run->mode != RF__SHARED_INLINE) {
            rc = locate(group, op, rank, false, &run->outs[rank]);
        }
        if (rc) {
            return rc;
        }
    }
    return 0;
}

/* Folds [offset, offset + count) of all inputs (each shifted by `shift`) into the outputs. */
static void fold(struct rf__group *group, const struct rf_call *call, void *const *outs,
                 int out_count, size_t shift, size_t offset, size_t count, bool stream) {
    struct rf__shared_run *run = &group->shared;
    size_t size = rf_type_size(call->type);
    const void *ins[RF_MAX_LOCAL_RANKS];
    void *to[RF_MAX_LOCAL_RANKS];

    for (int rank = 0; rank < group->size; rank++) {
        ins[rank] = (const unsigned char *)run->ins[rank] + (shift + offset) * size;
    }
    for (int k = 0; k < out_count; k++) {
        to[k] = (unsigned char *)outs[k] + offset * size;
    }
    rf__fold_many(call->type, call->redop, to, out_count, ins, group->size, count, run->divisor,
                  stream);
}

/* Up to WORK_BYTES more of what this rank folds; 1 when all is folded. */
static int work_fold(struct rf__group *group, const struct rf_call *call) {
    struct rf__shared_run *run = &group->shared;
    size_t size = rf_type_size(call->type), offset = 0, length = call->count, shift = 0;
    void *outs[RF_MAX_LOCAL_RANKS];
    int out_count = 1;
    bool is_shared_result = run->mode == RF__SHARED_DIRECT && call->coll != RF_COLL_REDUCE_SCATTER;

    outs[0] = call->recv;
    if (is_shared_result) {
        rf__slice(call->count, group->size, group->rank, &offset, &length);
    }
    if (call->coll == RF_COLL_ALLREDUCE && is_shared_result) {
        memcpy(outs, run->outs, sizeof *outs * (size_t)group->size);
        out_count = group->size;
    } else if (call->coll == RF_COLL_REDUCE) {
        if (is_shared_result) {
            outs[0] = run->outs[call->root];
        } else if (group->rank != call->root) {
            return 1;
        }
    } else if (call->coll == RF_COLL_REDUCE_SCATTER) {
        shift = (size_t)group->rank * call->count;
    }
    size_t done = run->done_bytes / size, left = length - done;
    size_t piece = left < WORK_BYTES / size ? left : WORK_BYTES / size;
    if (piece) {
        fold(group, call, outs, out_count, shift, offset + done, piece,
             rf__exceeds_cache(group, call->count * size));
    }
    run->done_bytes += piece * size;
    return done + piece == length;
}

/* The collectives that only move data: each rank copies what it is to receive. */
static void work_copy(struct rf__group *group, const struct rf_call *call) {
    struct rf__shared_run *run = &group->shared;
    size_t part = call->count * rf_type_size(call->type);
    unsigned char *recv = call->recv;
    size_t mine = (size_t)group->rank * part;
    const unsigned char *root = run->ins[call->root];

    switch (call->coll) {
    case RF_COLL_BROADCAST:
        if (group->rank == call->root) {
            root = call->send;
        }
        rf__copy(recv, root, recv ? part : 0);
        break;
    case RF_COLL_SCATTER:
        rf__copy(recv, root + mine, part);
        break;
    case RF_COLL_GATHER:
        if (group->rank != call->root) {
            break;
        }
        __attribute__((fallthrough));
    case RF_COLL_ALL_GATHER:
        for (int rank = 0; rank < group->size; rank++) {
            const void *from = rank == group->rank ? call->send : run->ins[rank];
            rf__copy(recv + (size_t)rank * part, from, part);
        }
        break;
    case RF_COLL_ALL_TO_ALL:
        for (int rank = 0; rank < group->size; rank++) {
            rf__copy(recv + (size_t)rank * part, (const unsigned char *)run->ins[rank] + mine,
                     part);
        }
        break;
    case RF_COLL_BARRIER:
    case RF_COLL_ALLREDUCE:
    case RF_COLL_REDUCE:
    case RF_COLL_REDUCE_SCATTER:
    case RF_COLL_SEND:
    case RF_COLL_RECV:
    case RF_COLL_COUNT:
        break;
    }
}

static int work(struct rf__group *group, const struct rf_call *call) {
    if (call->coll == RF_COLL_ALLREDUCE || call->coll == RF_COLL_REDUCE ||
        call->coll == RF_COLL_REDUCE_SCATTER) {
        return work_fold(group, call);
    }
    work_copy(group, call);
    return 1;
}

static int begin_work(struct rf__group *group, struct rf__op *op) {
    bool is_nodes = group->shared.mode == RF__SHARED_NODES;
    int rc = is_nodes ? rf__nodes_begin(group, op) : 0;

    if (group->shared.mode == RF__SHARED_STAGED) {
        rc = rf__stage_begin(group, op);
    } else if (rc == 0 && (!is_nodes || group->nodes.is_direct)) {
        rc = locate_all(group, op);
    }
    return rc;
}

static int run_phases(struct rf__group *group, struct rf__op *op, bool *moved) {
    struct rf__shared_run *run = &group->shared;
    int rc;

    switch (run->phase) {
    case RF__SHARED_POSTED:
        rc = all_arrived(group, op, false);
        if (rc <= 0) {
            return rc;
        }
        *moved = true;
        op->begun = group->now; /* before, it waited for others to begin */
        rc = compare_calls(group, op);
        if (rc) {
            return rc;
        }
        run->mode = choose_mode(group, op);
        if (run->mode == RF__SHARED_STREAM && op->algorithm == RF_ALGORITHM_HIERARCHICAL) {
            return rf__group_fail(group, RF_ENOMEM, group->rank,
                                  "a rank of this host has no memory for a stage");
        }
        if (run->mode == RF__SHARED_STREAM) {
            size_t bytes = op->params.call.count * rf_type_size(op->params.call.type);
            if (is_free_to_choose(op)) {
                op->algorithm = rf__schedule_choose(op->params.call.coll, group->size, bytes);
            }
            rc = rf__exec_begin(group, op);
            if (rc) {
                return rc;
            }
            run->phase = RF__SHARED_STREAMING;
            return rf__exec_run(group, op, moved);
        }
        if (!group->hosts.runs) {
            op->algorithm =
                run->mode == RF__SHARED_NODES ? RF_ALGORITHM_HIERARCHICAL : RF_ALGORITHM_SHARED;
        }
        rc = begin_work(group, op);
        if (rc) {
            return rc;
        }
        run->phase = RF__SHARED_WORKING;
        __attribute__((fallthrough));
    case RF__SHARED_WORKING:
        if (run->mode == RF__SHARED_STAGED) {
            rc = rf__stage_run(group, op, moved);
        } else if (run->mode == RF__SHARED_NODES) {
            rc = rf__nodes_run(group, op, moved);
        } else {
            rc = work(group, &op->params.call);
            *moved = true;
        }
        if (rc <= 0) {
            return rc;
        }
        if (run->mode != RF__SHARED_DIRECT && run->mode != RF__SHARED_NODES) {
            run->phase = RF__SHARED_IDLE;
            return 1;
        }
        atomic_store_explicit(&rf__board_of(group, group->rank)->done, run->post,
                              memory_order_release);
        group->shared.untold = true;
        run->waiting = 0;
        run->phase = RF__SHARED_FINISHING;
        __attribute__((fallthrough));
    case RF__SHARED_FINISHING:
        rc = all_arrived(group, op, true);
        if (rc > 0) {
            *moved = true;
            run->phase = RF__SHARED_IDLE;
        }
        return rc;
    case RF__SHARED_STREAMING:
        rc = rf__exec_run(group, op, moved);
        if (rc > 0) {
            run->phase = RF__SHARED_IDLE;
        }
        return rc;
    case RF__SHARED_IDLE:
        break;
    }
    RF_ASSERT(!"a phase");
    return RF_EINTERNAL;
}

int rf__shared_run(struct rf__group *group, struct rf__op *op, bool *moved) {
    int rc = run_phases(group, op, moved);
    rf__tell_all(group);
    return rc;
}
