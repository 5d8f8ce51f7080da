/* An allreduce among the ranks of one host whose cores are in several NUMA nodes. Where each rank
 * folds its slice of everybody's buffer (shared.c, stage.c), each buffer is read from every node,
 * and each result written to every node. Here the ranks are teams, runs of neighbours in one node,
 * and a buffer is read by its own team only:
 *
 *     team 0    folds its ranks' inputs                                  and takes the result over
 *     team 1    goes on folding from what team 0 has                     takes it over from team 2
 *     …
 *     team T-1  ends the fold: the result is in its memory
 *
 * Between two teams each byte of the buffer goes once in each direction, however many ranks they
 * have: a partial sum one way, the result the other. As ranks are in order, so is the fold, and its
 * bits are those of the flat way; partial sums are of the accumulator's type, so that half
 * precision is rounded once, at the end.
 *
 * Pieces follow each other, so that all teams work at the same time. Of each, a rank has a slice
 * of its own team's, and on its own stage there are, for the last PIECES of them:
 *
 *     what its team needs of its input (ordinary memory only: a heap's is read where it lies)
 *     the partial sum of its slice, until the next team has folded it
 *     the result of its slice, until its team and the team before have it (ordinary memory only:
 *     in heaps each rank stores it into the buffers of its team, from where others take it over)
 *
 * Counters on the boards say how far each rank is; like the stage's they count all pieces of the
 * generation. All ranks end a call together, so a stage is free when the next one begins. */
#include "group/board.h"

#include "base/assert.h"
#include "coll/fold.h"

enum {
    PIECES = 4,
    HELPING = 4,
    BLOCK = 16, /* elements: what rf__slice cuts by */
    COPIED_BYTES = 32 << 10,
    PIECE_BYTES = 256 << 10 /* of most types */
};

struct span {
    size_t offset, count;
};

/* Elements [at, at + count) of the buffer; bytes of an element and of one that is being folded. */
struct piece {
    uint64_t index;
    size_t at, count, size, wide;
};

static struct rf__team team_at(const struct rf__group *group, int index) {
    int first = group->nodes.first[index];
    return (struct rf__team){.first = first,
                             .size = group->nodes.first[index + 1] - first,
                             .index = group->rank - first};
}

static bool is_last(const struct rf__group *group) {
    return group->nodes.index == group->nodes.count - 1;
}

/* Such that the areas below fit on the stage, whatever the team: the results' is needed once more
 * than the inputs' where a team has one rank, and the inputs' where it has more. */
static size_t elements_of_piece(const struct rf_call *call) {
    size_t wide = rf_type_size(rf__acc_type(call->type));
    return RF__STAGE_BYTES / PIECES / (rf_type_size(call->type) + wide) / BLOCK * BLOCK;
}

static struct piece piece_at(const struct rf_call *call, uint64_t index) {
    size_t most = elements_of_piece(call), at = (size_t)index * most;
    return (struct piece){
        .index = index,
        .at = at,
        .count = call->count - at < most ? call->count - at : most,
        .size = rf_type_size(call->type),
        .wide = rf_type_size(rf__acc_type(call->type)),
    };
}

static struct span slice_of(const struct piece *piece, struct rf__team team, int index) {
    struct span out;
    rf__slice(piece->count, team.size, index, &out.offset, &out.count);
    return out;
}

static struct span common(struct span a, struct span b) {
    size_t from = a.offset > b.offset ? a.offset : b.offset;
    size_t a_end = a.offset + a.count, b_end = b.offset + b.count;
    size_t end = a_end < b_end ? a_end : b_end;
    return (struct span){from, end > from ? end - from : 0};
}

/* ---- What is on a stage ---- */

struct areas {
    size_t input, partial, result, end; /* offsets of the piece's place in each */
};

static struct areas areas_of(const struct rf_call *call, const struct piece *piece,
                             struct rf__team team) {
    size_t most = elements_of_piece(call), place = (size_t)(piece->index % PIECES);
    size_t slice = (most / BLOCK + (size_t)team.size - 1) / (size_t)team.size * BLOCK;
    size_t partials = team.size > 1 ? PIECES * most * piece->size : 0;
    size_t results = partials + PIECES * slice * piece->wide;

    return (struct areas){.input = place * most * piece->size,
                          .partial = partials + place * slice * piece->wide,
                          .result = results + place * slice * piece->size,
                          .end = results + PIECES * slice * piece->size};
}

/* Of a rank of a team, from element `at` of the piece on; that has to be in its slice. */
static unsigned char *partial_of(const struct rf__group *group, const struct rf_call *call,
                                 const struct piece *piece, struct rf__team team, int index,
                                 size_t at) {
    struct areas areas = areas_of(call, piece, team);
    size_t skip = at - slice_of(piece, team, index).offset;
    return group->stage.stages[team.first + index] + areas.partial + skip * piece->wide;
}

static unsigned char *result_of(const struct rf__group *group, const struct rf_call *call,
                                const struct piece *piece, struct rf__team team, int index,
                                size_t at) {
    struct areas areas = areas_of(call, piece, team);
    size_t skip = at - slice_of(piece, team, index).offset;
    return group->stage.stages[team.first + index] + areas.result + skip * piece->size;
}

static const unsigned char *input_of(const struct rf__group *group, const struct rf_call *call,
                                     const struct piece *piece, struct rf__team team, int index,
                                     size_t at) {
    const unsigned char *from = call->send;
    size_t skip = (piece->at + at) * piece->size;

    if (group->nodes.is_direct) {
        from = group->shared.ins[team.first + index];
    } else if (index != team.index) {
        from = group->stage.stages[team.first + index] + areas_of(call, piece, team).input;
        skip = at * piece->size;
    }
    return from + skip;
}

/* The buffers for results that this rank stores into, from element `at` of the piece on. */
static int outputs(const struct rf__group *group, const struct rf_call *call,
                   const struct piece *piece, struct rf__team team, size_t at, void **outs) {
    size_t skip = (piece->at + at) * piece->size;
    int count = 0;

    outs[count++] = (unsigned char *)call->recv + skip;
    if (!group->nodes.is_direct) {
        outs[count++] = result_of(group, call, piece, team, team.index, at);
    }
    for (int k = 0; k < team.size && group->nodes.is_direct; k++) {
        if (k != team.index) {
            outs[count++] = (unsigned char *)group->shared.outs[team.first + k] + skip;
        }
    }
    return count;
}

/* ---- Who is how far ---- */

enum counter { PUT, FOLDED, SUMMED, TAKEN };

static _Atomic uint64_t *counter_of(struct rf__board *board, enum counter counter) {
    return &board->nodes[counter].pieces;
}

static void publish(struct rf__group *group, enum counter counter, uint64_t pieces) {
    atomic_store_explicit(counter_of(rf__board_of(group, group->rank), counter),
                          group->nodes.base + pieces, memory_order_release);
    group->shared.untold = true;
}

/* 1 when those of a team who have a part in `within` of the piece have come to `want` pieces of the
 * call, 0 when not yet; one that left without is lost. */
static int reached(struct rf__group *group, const struct rf__op *op, struct rf__team team,
                   enum counter counter, const struct piece *piece, struct span within,
                   uint64_t want) {
    for (int k = 0; k < team.size; k++) {
        int rank = team.first + k;
        if (rank == group->rank || !common(slice_of(piece, team, k), within).count ||
            atomic_load_explicit(counter_of(rf__board_of(group, rank), counter),
                                 memory_order_acquire) >= group->nodes.base + want) {
            continue;
        }
        return group->peers[rank].gone
                   ? rf__group_fail(group, RF_ELOST, rank,
                                    "rank %d has left, and rank %d waits for its part of call %llu",
                                    rank, group->rank, (unsigned long long)op->seq)
                   : 0;
    }
    return 1;
}

/* All of the own team, whether they have a part in the piece or not. */
static int team_reached(struct rf__group *group, const struct rf__op *op, enum counter counter,
                        uint64_t want) {
    struct rf__team team = team_at(group, group->nodes.index);
    struct piece whole = {.count = (size_t)team.size * BLOCK};

    return reached(group, op, team, counter, &whole, (struct span){0, whole.count}, want);
}

/* Those of the team before or after with whom this rank shares elements of the piece. */
static int neighbours_reached(struct rf__group *group, const struct rf__op *op, int step,
                              enum counter counter, uint64_t index, uint64_t want) {
    struct rf__team own = team_at(group, group->nodes.index);
    struct piece piece = piece_at(&op->params.call, index);

    return reached(group, op, team_at(group, group->nodes.index + step), counter, &piece,
                   slice_of(&piece, own, own.index), want);
}

/* Whether nobody needs any more what is in the places where this piece's result and partial sum are
 * to stand: those of PIECES before. */
static int is_result_free(struct rf__group *group, const struct rf__op *op, uint64_t index) {
    int rc = 1;

    if (index >= PIECES && !group->nodes.is_direct) {
        rc = team_reached(group, op, TAKEN, index + 1 - PIECES);
        if (rc > 0 && group->nodes.index > 0) {
            rc = neighbours_reached(group, op, -1, SUMMED, index - PIECES, index + 1 - PIECES);
        }
    }
    return rc;
}

static int is_partial_free(struct rf__group *group, const struct rf__op *op, uint64_t index) {
    return index < PIECES
               ? 1
               : neighbours_reached(group, op, 1, FOLDED, index - PIECES, index + 1 - PIECES);
}

/* ---- The parts of the work ---- */

static void put(struct rf__group *group, const struct rf_call *call, uint64_t index) {
    struct rf__team team = team_at(group, group->nodes.index);
    struct piece piece = piece_at(call, index);
    struct span own = slice_of(&piece, team, team.index);
    const unsigned char *from = (const unsigned char *)call->send + piece.at * piece.size;
    unsigned char *to = group->stage.memory + areas_of(call, &piece, team).input;
    size_t begin = own.offset * piece.size, end = begin + own.count * piece.size;

    rf__copy(to, from, begin);
    rf__copy(to + end, from + end, piece.count * piece.size - end);
}

/* Elements of the own slice, from the same partial sum. */
static void fold_span(struct rf__group *group, const struct rf_call *call,
                      const struct piece *piece, struct span span, const void *from) {
    struct rf__team team = team_at(group, group->nodes.index);
    const void *ins[RF_MAX_LOCAL_RANKS];
    void *outs[RF_MAX_LOCAL_RANKS + 1];

    for (int k = 0; k < team.size; k++) {
        ins[k] = input_of(group, call, piece, team, k, span.offset);
    }
    if (is_last(group)) {
        int out_count = outputs(group, call, piece, team, span.offset, outs);
        bool stream = group->nodes.is_direct && rf__exceeds_cache(group, call->count * piece->size);
        rf__fold_last(call->type, call->redop, outs, out_count, from, ins, team.size, span.count,
                      group->shared.divisor, stream);
    } else {
        rf__fold_part(call->type, call->redop,
                      partial_of(group, call, piece, team, team.index, span.offset), from, ins,
                      team.size, span.count);
    }
}

static void fold(struct rf__group *group, const struct rf_call *call, uint64_t index) {
    struct rf__nodes *nodes = &group->nodes;
    struct rf__team team = team_at(group, nodes->index), before;
    struct piece piece = piece_at(call, index);
    struct span own = slice_of(&piece, team, team.index);

    if (nodes->index == 0) {
        if (own.count) {
            fold_span(group, call, &piece, own, NULL);
        }
        return;
    }
    before = team_at(group, nodes->index - 1);
    for (int k = 0; k < before.size; k++) {
        struct span span = common(slice_of(&piece, before, k), own);
        if (span.count) {
            fold_span(group, call, &piece, span,
                      partial_of(group, call, &piece, before, k, span.offset));
            nodes->crossed += span.count * piece.wide;
        }
    }
}

/* Comes from the other node once; further copies are made of the first while it is in cache. */
static void copy_out(void *const *outs, int out_count, const unsigned char *from, size_t bytes) {
    for (size_t at = 0; at < bytes; at += COPIED_BYTES) {
        size_t length = bytes - at < COPIED_BYTES ? bytes - at : COPIED_BYTES;
        memcpy((unsigned char *)outs[0] + at, from + at, length);
        for (int k = 1; k < out_count; k++) {
            memcpy((unsigned char *)outs[k] + at, (const unsigned char *)outs[0] + at, length);
        }
    }
}

/* The result of the own slice, from the team after. */
static void take_over(struct rf__group *group, const struct rf_call *call, uint64_t index) {
    struct rf__nodes *nodes = &group->nodes;
    struct rf__team team = team_at(group, nodes->index), after = team_at(group, nodes->index + 1);
    struct piece piece = piece_at(call, index);
    struct span own = slice_of(&piece, team, team.index);
    void *outs[RF_MAX_LOCAL_RANKS + 1];

    for (int k = 0; k < after.size; k++) {
        struct span span = common(slice_of(&piece, after, k), own);
        if (!span.count) {
            continue;
        }
        const unsigned char *from =
            nodes->is_direct ? (const unsigned char *)group->shared.outs[after.first + k] +
                                   (piece.at + span.offset) * piece.size
                             : result_of(group, call, &piece, after, k, span.offset);
        int out_count = outputs(group, call, &piece, team, span.offset, outs);
        copy_out(outs, out_count, from, span.count * piece.size);
        nodes->crossed += span.count * piece.size;
    }
}

/* The others' slices of the result, from the own team. */
static void take(struct rf__group *group, const struct rf_call *call, uint64_t index) {
    struct rf__team team = team_at(group, group->nodes.index);
    struct piece piece = piece_at(call, index);

    for (int k = 0; k < team.size; k++) {
        struct span span = slice_of(&piece, team, k);
        if (k != team.index && span.count) {
            rf__copy((unsigned char *)call->recv + (piece.at + span.offset) * piece.size,
                     result_of(group, call, &piece, team, k, span.offset), span.count * piece.size);
        }
    }
}

/* ---- A call ---- */

static int take_next(struct rf__group *group, const struct rf__op *op) {
    struct rf__nodes *nodes = &group->nodes;
    int rc = 0;

    if (nodes->taken < nodes->summed && !nodes->is_direct) {
        rc = team_reached(group, op, SUMMED, nodes->taken + 1);
    }
    if (rc > 0) {
        take(group, &op->params.call, nodes->taken);
        publish(group, TAKEN, ++nodes->taken);
    }
    return rc;
}

static int take_over_next(struct rf__group *group, const struct rf__op *op) {
    struct rf__nodes *nodes = &group->nodes;
    int rc = 0;

    if (nodes->summed < nodes->folded && !is_last(group)) {
        rc = neighbours_reached(group, op, 1, SUMMED, nodes->summed, nodes->summed + 1);
    }
    rc = rc > 0 ? is_result_free(group, op, nodes->summed) : rc;
    if (rc > 0) {
        take_over(group, &op->params.call, nodes->summed);
        publish(group, SUMMED, ++nodes->summed);
    }
    return rc;
}

static int fold_next(struct rf__group *group, const struct rf__op *op) {
    struct rf__nodes *nodes = &group->nodes;
    uint64_t index = nodes->folded;
    int rc = 0;

    if (index < nodes->put) {
        rc = nodes->is_direct ? 1 : team_reached(group, op, PUT, index + 1);
    }
    if (rc > 0 && nodes->index > 0) {
        rc = neighbours_reached(group, op, -1, FOLDED, index, index + 1);
    }
    if (rc > 0) {
        rc = is_last(group) ? is_result_free(group, op, index) : is_partial_free(group, op, index);
    }
    if (rc > 0) {
        fold(group, &op->params.call, index);
        nodes->folded++;
        if (is_last(group)) {
            nodes->summed++;
            publish(group, SUMMED, nodes->summed);
        }
        publish(group, FOLDED, nodes->folded);
    }
    return rc;
}

static int put_next(struct rf__group *group, const struct rf__op *op) {
    struct rf__nodes *nodes = &group->nodes;
    int rc = 0;

    if (nodes->put < nodes->pieces && nodes->put < nodes->folded + PIECES) {
        rc = nodes->put < PIECES ? 1 : team_reached(group, op, FOLDED, nodes->put + 1 - PIECES);
    }
    if (rc > 0) {
        put(group, &op->params.call, nodes->put);
        publish(group, PUT, ++nodes->put);
    }
    return rc;
}

/* One part of the work that can be done now: 1, 0 when there is none, or an error. What others wait
 * for longest comes first. */
static int advance(struct rf__group *group, const struct rf__op *op) {
    int rc = take_next(group, op);

    rc = rc ? rc : take_over_next(group, op);
    rc = rc ? rc : fold_next(group, op);
    return rc ? rc : put_next(group, op);
}

int rf__nodes_begin(struct rf__group *group, const struct rf__op *op) {
    const struct rf_call *call = &op->params.call;
    struct rf__nodes *nodes = &group->nodes;
    size_t most = elements_of_piece(call);
    struct rf__team team = team_at(group, nodes->index);

    nodes->pieces = (call->count + most - 1) / most;
    nodes->folded = nodes->summed = nodes->taken = 0;
    /* what lies in a heap, or is wanted by nobody, stands there already */
    nodes->put = nodes->is_direct || team.size == 1 ? nodes->pieces : 0;
    struct piece first = piece_at(call, 0);
    RF_ASSERT(areas_of(call, &first, team).end <= RF__STAGE_BYTES);
    return rf__stage_map(group);
}

static bool is_complete(const struct rf__group *group) {
    const struct rf__nodes *nodes = &group->nodes;
    return nodes->summed == nodes->pieces && (nodes->is_direct || nodes->taken == nodes->pieces);
}

int rf__nodes_run(struct rf__group *group, const struct rf__op *op, bool *moved) {
    for (int k = 0; !is_complete(group); k++) {
        int rc = k < HELPING ? advance(group, op) : 0;
        if (rc <= 0) {
            return rc;
        }
        *moved = true;
        rf__tell_all(group); /* there may be much to do before this one waits */
    }
    group->nodes.base += group->nodes.pieces;
    return 1;
}

/* ---- Which ranks, and when ---- */

void rf__nodes_check(struct rf__group *group) {
    const int *node = group->options.net ? group->options.net->node : NULL;
    struct rf__nodes *nodes = &group->nodes;
    int64_t near = 0; /* pairs of ranks in the same node */

    nodes->usable = false;
    nodes->count = nodes->nodes = 0;
    if (!group->shared.usable) {
        return;
    }
    for (int rank = 0; rank < group->size; rank++) {
        if (node[rank] < 0) {
            return;
        }
        if (rank == 0 || node[rank] != node[rank - 1]) {
            nodes->first[nodes->count++] = rank;
        }
        if (rank == group->rank) {
            nodes->index = nodes->count - 1;
        }
        bool is_new = true;
        for (int other = 0; other < group->size; other++) {
            near += node[other] == node[rank];
            is_new = is_new && (other >= rank || node[other] != node[rank]);
        }
        nodes->nodes += is_new;
    }
    nodes->first[nodes->count] = group->size;
    nodes->far = (double)group->size - (double)near / group->size;
    nodes->usable = nodes->nodes > 1;
}

/* By the bytes that go from one node to another, partial sums and results. Flat, each rank reads
 * its slice of the buffers of all others, and writes to as many: of n ranks, m in a node, n - (the
 * sum of m m) / n buffers each way. Here it is a buffer between each two teams, one of the
 * accumulator's type on the way in. Besides, while the first pieces come to the last team, and the
 * last results to the first, other ways stand idle. */
double rf__nodes_share(const struct rf__group *group, enum rf_type type) {
    double wide = (double)rf_type_size(rf__acc_type(type)) / (double)rf_type_size(type);
    return (group->nodes.count - 1) * (wide + 1);
}

bool rf__nodes_pay(const struct rf__group *group, const struct rf_call *call) {
    const struct rf__nodes *nodes = &group->nodes;
    double bytes = (double)call->count * (double)rf_type_size(call->type);
    double ways = nodes->count - 1, idle = 4 * ways * ways * PIECE_BYTES;

    return nodes->usable && bytes >= 2 * PIECE_BYTES &&
           2 * nodes->far * bytes > rf__nodes_share(group, call->type) * bytes + idle;
}
