/* An allreduce in a group of several hosts with equally many ranks on each: first on every host,
 * over its stage, then from host to host. Each rank has a slice of every chunk, and speaks with the
 * ranks that have the same slice on the host before and the host after:
 *
 *     host 0    folds its ranks' inputs                                 and gets the sum back
 *     host 1    goes on folding from what host 0 sends                  passes the sum on
 *     …
 *     host H-1  has the sum, and sends it back
 *
 * Ranks are numbered host by host, so the fold is in rank order as on one host. Chunks follow each
 * other, so all links are busy in both directions. Between two hosts travel the bytes of the buffer
 * in each direction once, however many ranks they have: what a direct exchange of two ranks sends.
 * With more hosts those in the middle send twice, where a ring would send 2 (H-1)/H. */
#include "group/board.h"

#include "base/assert.h"

void rf__hosts_begin(struct rf__group *group) {
    struct rf__hosts *hosts = &group->hosts;

    hosts->up = hosts->down = hosts->partials = hosts->sums = 0;
    hosts->partial = hosts->sum = (struct rf__pending_recv){0};
    hosts->up_send = hosts->down_send = (struct rf__pending_send){0};
}

static bool is_last(const struct rf__group *group) {
    return group->hosts.index == group->hosts.count - 1;
}

/* The rank with the same slice on the next host, or the one before. */
static int neighbour(const struct rf__group *group, int step) {
    return group->rank + step * group->shared.team.size;
}

static ssize_t take_staged(struct rf__group *group, const struct rf__piece *piece, void *context) {
    const struct rf__own_slice *slice = context;
    return rf__link_take(group, piece->peer, piece->lane, slice->staged + piece->offset,
                         piece->bytes);
}

/* What is here of the own slice of a chunk, onto the stage: 1 when it is complete. */
static int receive(struct rf__group *group, struct rf__op *op, int peer, uint64_t index,
                   struct rf__pending_recv *recv, bool *moved) {
    struct rf__own_slice slice = rf__stage_slice(group, op, index);
    struct rf__transfer from = {.peer = peer, .bytes = slice.bytes};

    return rf__exec_receive(group, op, &from, recv, moved, take_staged, &slice);
}

static int send(struct rf__group *group, struct rf__op *op, int peer, uint64_t index,
                struct rf__pending_send *send, bool *moved) {
    struct rf__own_slice slice = rf__stage_slice(group, op, index);
    struct rf__transfer to = {.peer = peer, .bytes = slice.bytes};
    int rc = rf__exec_send(group, op, &to, slice.staged, send, moved);

    if (rc > 0) {
        *send = (struct rf__pending_send){0};
    }
    /* of a link that is down its event tells, or who reads from it */
    return rc == RF_ELOST && rf__group_is_linked(group) ? 0 : rc;
}

int rf__hosts_prior(struct rf__group *group, struct rf__op *op, uint64_t index, bool *moved) {
    struct rf__hosts *hosts = &group->hosts;
    int rc = 1;

    if (hosts->index > 0 && hosts->partials == index) {
        rc = receive(group, op, neighbour(group, -1), index, &hosts->partial, moved);
        hosts->partials += rc > 0;
    }
    return rc;
}

/* The sum of a chunk's slice stands on the stage. */
static void have_sum(struct rf__group *group, struct rf__op *op) {
    struct rf__own_slice slice = rf__stage_slice(group, op, group->hosts.sums);

    if (!is_last(group)) { /* the last host folded into both */
        rf__copy(slice.out, slice.staged, slice.bytes);
    }
    rf__stage_publish_sum(group, ++group->hosts.sums);
}

int rf__hosts_run(struct rf__group *group, struct rf__op *op, bool *moved) {
    struct rf__hosts *hosts = &group->hosts;
    uint64_t folded = group->stage.folded;
    int rc = 0;

    if (!is_last(group) && hosts->up < folded) {
        rc = send(group, op, neighbour(group, 1), hosts->up, &hosts->up_send, moved);
        hosts->up += rc > 0;
    }
    if (rc == 0 && hosts->sums < (is_last(group) ? folded : hosts->up)) {
        rc = is_last(group)
                 ? 1
                 : receive(group, op, neighbour(group, 1), hosts->sums, &hosts->sum, moved);
        if (rc > 0) {
            have_sum(group, op);
        }
    }
    if (rc == 0 && hosts->down < hosts->sums) {
        rc = hosts->index == 0
                 ? 1
                 : send(group, op, neighbour(group, -1), hosts->down, &hosts->down_send, moved);
        hosts->down += rc > 0;
    }
    return rc;
}
