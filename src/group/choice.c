/* Which algorithm a collective takes where nobody asks for one, and telling of it. Everything that
 * is looked at is the same on all ranks: the table, where the ranks are, the call. */
#include "group/board.h"

#include "coll/choose.h"
#include "coll/fold.h"

#include <stdio.h>
#include <string.h>

enum { BY_HOSTS_FROM = 8 << 10 };

static enum rf_link link_of(const struct rf__group *group) {
    return group->shared.usable ? RF_LINK_SHM : RF_LINK_TCP;
}

/* Inside the hosts first, then between them. Half precision would be rounded at every host. */
static bool can_go_by_hosts(const struct rf__group *group, const struct rf_call *call) {
    return group->hosts.usable && call->coll == RF_COLL_ALLREDUCE &&
           rf__acc_type(call->type) == call->type;
}

/* By the table. SHARED is what a group with shared memory does by itself. That a group of several
 * hosts goes by hosts, where that is worth more than one message less, is no rule of the library's
 * own table, which knows nothing of hosts; rules of another table come first. */
void rf__choice_make(struct rf__group *group, struct rf__op *op) {
    const struct rf_call *call = &op->params.call;
    size_t bytes = rf__op_bytes(op);
    struct rf__choice choice =
        rf__choose(group->options.tuning, link_of(group), call->coll, group->size, bytes);
    bool by_hosts = can_go_by_hosts(group, call);

    if (choice.algorithm == RF_ALGORITHM_HIERARCHICAL && !by_hosts) {
        choice = rf__choose(NULL, link_of(group), call->coll, group->size, bytes);
    } else if (choice.is_default && by_hosts && bytes > BY_HOSTS_FROM) {
        choice.algorithm = RF_ALGORITHM_HIERARCHICAL;
    }
    if (choice.algorithm != RF_ALGORITHM_SHARED) {
        op->algorithm = choice.algorithm;
    }
}

/* How shared memory is used is no rule of any table: one that leaves the call to it leaves that
 * too.
 */
bool rf__choice_is_by_nodes(const struct rf__group *group, const struct rf__op *op) {
    return group->nodes.usable && op->params.call.coll == RF_COLL_ALLREDUCE &&
           (op->algorithm == RF_ALGORITHM_HIERARCHICAL ||
            (op->algorithm == RF_ALGORITHM_AUTO && rf__nodes_pay(group, &op->params.call)));
}

/* Of nodes: what comes of it. */
static void nodes_text(const struct rf__group *group, enum rf_type type, char *out, size_t room) {
    const struct rf__nodes *nodes = &group->nodes;

    snprintf(out, room, "%d NUMA nodes: %.3g times the buffer goes between them, not %.3g times",
             nodes->nodes, rf__nodes_share(group, type), 2 * nodes->far);
}

/* A call is complete: what was chosen for it, and why, told once for each size. */
void rf__choice_tell(struct rf__group *group, const struct rf__op *op) {
    const struct rf_call *call = &op->params.call;
    size_t bytes = rf__op_bytes(op);
    unsigned bit = 0;
    char line[512], levels[96] = "several hosts with equally many ranks";

    for (size_t left = bytes; left && bit < 63; left >>= 1) {
        bit++;
    }
    if (group->told_size != group->size) {
        memset(group->told, 0, sizeof group->told);
        group->told_size = group->size;
    }
    if (!(group->told[call->coll] >> bit & 1)) {
        group->told[call->coll] |= UINT64_C(1) << bit;
        if (group->nodes.usable) {
            nodes_text(group, call->type, levels, sizeof levels);
        }
        rf__choice_text(line, sizeof line, group->options.tuning, group->options.tuning_name,
                        link_of(group), call->coll, group->size, bytes, call->algorithm,
                        op->algorithm, levels);
        group->options.choice(group->options.choice_context, line);
    }
}
