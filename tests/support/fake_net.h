/* Links between groups of one process, for tests: byte queues that take and give as little as they
 * like (seeded), optionally with shared memory, and that can be cut. */
#ifndef TESTS_SUPPORT_FAKE_NET_H
#define TESTS_SUPPORT_FAKE_NET_H

#include "base/assert.h"
#include "base/rng.h"
#include "base/status.h"
#include "io/net.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FAKE_MAX = 64, FAKE_QUEUE = 1 << 16, FAKE_BLOCKS = 1024 };

struct fake_queue {
    unsigned char bytes[FAKE_QUEUE];
    size_t head, tail; /* tail - head bytes are in it */
    bool closed;
};

struct fake_block {
    int owner;
    unsigned char *memory;
    size_t bytes;
};

struct fake_net {
    struct rf__net net;
    struct fake_world *world;
    int rank;
    struct rf__net_event events[2 * FAKE_MAX];
    int event_count, event_taken;
    bool was_told[FAKE_MAX]; /* of the end of the link */
};

struct fake_world {
    int size, lanes; /* of each link between hosts */
    bool shared;
    int local;          /* ranks on each host where memory is shared; 0: all on one */
    int node[FAKE_MAX]; /* of each rank */
    size_t most;        /* bytes a read or write moves at most; 0: as many as fit */
    bool late;          /* further lanes are there when the test says so, in net.lanes */
    int stingy;         /* so many of as many calls to read or write find nothing to do */
    struct rf__rng rng;
    struct fake_net nets[FAKE_MAX];
    struct fake_queue *queues; /* (from * size + to) * lanes + lane */
    struct fake_block blocks[FAKE_BLOCKS];
    int block_count;
    unsigned char *boards;
    uint64_t written; /* bytes in all */
};

static struct fake_queue *fake_lane(struct fake_world *world, int from, int to, int lane) {
    return &world->queues[(from * world->size + to) * world->lanes + lane];
}

/* Of lane 0, which stands for the link where its end is asked for. */
static struct fake_queue *fake_queue(struct fake_world *world, int from, int to) {
    return fake_lane(world, from, to, 0);
}

static void fake_close(struct fake_world *world, int from, int to) {
    for (int lane = 0; lane < world->lanes; lane++) {
        fake_lane(world, from, to, lane)->closed = true;
    }
}

/* Each lane has its moods, so that what is on one overtakes what is on another. */
static bool fake_is_idle(struct fake_world *world) {
    return world->stingy && rf__rng_below(&world->rng, (uint64_t)world->stingy) != 0;
}

static size_t fake_bound(struct fake_world *world, size_t bytes) {
    if (world->most && bytes) {
        size_t most = 1 + (size_t)rf__rng_below(&world->rng, world->most);
        return bytes < most ? bytes : most;
    }
    return bytes;
}

static int fake_endpoint(struct rf__net *net, char *out, size_t bytes, struct rf_error *err) {
    (void)net;
    (void)err;
    snprintf(out, bytes, "fake");
    return 0;
}

static int fake_open(struct rf__net *net, const struct rf__net_group *group, struct rf_error *err) {
    struct fake_net *self = (struct fake_net *)net;
    (void)err;
    int local = self->world->local ? self->world->local : group->size;
    for (int peer = 0; peer < group->size; peer++) {
        bool shares = self->world->shared && peer / local == group->rank / local;
        net->node[peer] = self->world->node[peer];
        net->host[peer] = self->world->shared ? peer / local * local : peer;
        if (peer != group->rank) {
            net->kind[peer] = shares ? RF__LINK_SHM : RF__LINK_TCP;
            net->lanes[peer] = shares || self->world->late ? 1 : net->most_lanes;
            self->events[self->event_count++] =
                (struct rf__net_event){.kind = RF__NET_UP, .peer = peer};
        }
    }
    return 0;
}

static int fake_pump(struct rf__net *net, int64_t now) {
    struct fake_net *self = (struct fake_net *)net;
    (void)now;
    for (int peer = 0; peer < self->world->size; peer++) {
        if (peer != self->rank && fake_queue(self->world, peer, self->rank)->closed &&
            !self->was_told[peer]) {
            self->was_told[peer] = true;
            struct rf__net_event event = {.kind = RF__NET_DOWN, .peer = peer};
            (void)rf__fail(&event.error, RF_ELOST, 0, "rank %d was lost: closed by peer", peer);
            self->events[self->event_count++] = event;
        }
    }
    return 0;
}

static int fake_next_event(struct rf__net *net, struct rf__net_event *event) {
    struct fake_net *self = (struct fake_net *)net;
    if (self->event_taken == self->event_count) {
        return 0;
    }
    *event = self->events[self->event_taken++];
    return 1;
}

static ssize_t fake_write(struct rf__net *net, int peer, int lane, const struct iovec *parts,
                          int count) {
    struct fake_net *self = (struct fake_net *)net;
    struct fake_queue *queue = fake_lane(self->world, self->rank, peer, lane);
    size_t taken = 0;

    if (queue->closed) {
        return RF_ELOST;
    }
    if (fake_is_idle(self->world)) {
        return 0;
    }
    for (int i = 0; i < count; i++) {
        size_t room = FAKE_QUEUE - (queue->tail - queue->head);
        size_t bytes = fake_bound(self->world, parts[i].iov_len < room ? parts[i].iov_len : room);
        size_t at = queue->tail % FAKE_QUEUE;
        size_t first = bytes < FAKE_QUEUE - at ? bytes : FAKE_QUEUE - at;
        if (bytes) {
            memcpy(queue->bytes + at, parts[i].iov_base, first);
            memcpy(queue->bytes, (unsigned char *)parts[i].iov_base + first, bytes - first);
        }
        queue->tail += bytes;
        taken += bytes;
        if (bytes < parts[i].iov_len) {
            break;
        }
    }
    self->world->written += taken;
    return (ssize_t)taken;
}

static ssize_t fake_read(struct rf__net *net, int peer, int lane, void *buffer, size_t bytes) {
    struct fake_net *self = (struct fake_net *)net;
    struct fake_queue *queue = fake_lane(self->world, peer, self->rank, lane);
    size_t there = queue->tail - queue->head;

    if (there == 0) {
        return queue->closed ? RF_ELOST : 0;
    }
    if (fake_is_idle(self->world)) {
        return 0;
    }
    bytes = fake_bound(self->world, bytes < there ? bytes : there);
    size_t at = queue->head % FAKE_QUEUE, first = bytes < FAKE_QUEUE - at ? bytes : FAKE_QUEUE - at;
    if (bytes) {
        memcpy(buffer, queue->bytes + at, first);
        memcpy((unsigned char *)buffer + first, queue->bytes, bytes - first);
    }
    queue->head += bytes;
    return (ssize_t)bytes;
}

static ssize_t fake_peek(struct rf__net *net, int peer, int lane, const void **view, size_t bytes) {
    struct fake_net *self = (struct fake_net *)net;
    struct fake_queue *queue = fake_lane(self->world, peer, self->rank, lane);
    size_t there = queue->tail - queue->head, at = queue->head % FAKE_QUEUE;

    if (there == 0 && queue->closed) {
        return RF_ELOST;
    }
    there = there < FAKE_QUEUE - at ? there : FAKE_QUEUE - at;
    *view = queue->bytes + at;
    return (ssize_t)fake_bound(self->world, bytes < there ? bytes : there);
}

static void fake_consume(struct rf__net *net, int peer, int lane, size_t bytes) {
    struct fake_net *self = (struct fake_net *)net;
    fake_lane(self->world, peer, self->rank, lane)->head += bytes;
}

static void fake_shutdown(struct rf__net *net, int peer) {
    struct fake_net *self = (struct fake_net *)net;
    fake_close(self->world, self->rank, peer);
}

static void fake_sleep(struct rf__net *net, bool sleeping) {
    (void)net;
    (void)sleeping;
}

static void fake_destroy(struct rf__net *net) {
    (void)net;
}

static const struct rf__net_ops fake_ops = {
    .endpoint = fake_endpoint,
    .open = fake_open,
    .pump = fake_pump,
    .next_event = fake_next_event,
    .write = fake_write,
    .read = fake_read,
    .peek = fake_peek,
    .consume = fake_consume,
    .shutdown = fake_shutdown,
    .sleep = fake_sleep,
    .destroy = fake_destroy,
};

static int fake_alloc(struct rf__net *net, size_t bytes, void **out, struct rf_error *err) {
    struct fake_net *self = (struct fake_net *)net;
    struct fake_world *world = self->world;
    size_t rounded = (bytes + 63) / 64 * 64 + 64;
    (void)err;
    RF_ASSERT(world->block_count < FAKE_BLOCKS);
    unsigned char *memory = aligned_alloc(64, rounded);
    memset(memory, 0, rounded);
    world->blocks[world->block_count++] = (struct fake_block){self->rank, memory, rounded};
    *out = memory;
    return 0;
}

static void fake_release(struct rf__net *net, void *memory) {
    struct fake_world *world = ((struct fake_net *)net)->world;
    for (int i = 0; i < world->block_count; i++) {
        if (world->blocks[i].memory == memory) {
            free(memory);
            world->blocks[i] = world->blocks[--world->block_count];
            return;
        }
    }
}

static int fake_find(struct rf__net *net, const void *memory, size_t bytes, uint64_t *block_offset,
                     uint64_t *block_bytes, uint64_t *inside) {
    struct fake_net *self = (struct fake_net *)net;
    const unsigned char *at = memory;
    for (int i = 0; i < self->world->block_count; i++) {
        const struct fake_block *block = &self->world->blocks[i];
        if (block->owner == self->rank && at >= block->memory &&
            at + bytes <= block->memory + block->bytes) {
            *block_offset = (uint64_t)(uintptr_t)block->memory;
            *block_bytes = block->bytes;
            *inside = (uint64_t)(at - block->memory);
            return 0;
        }
    }
    return RF_ENOTFOUND;
}

static void *fake_map(struct rf__net *net, int peer, uint64_t block_offset, uint64_t block_bytes) {
    struct fake_net *self = (struct fake_net *)net;
    for (int i = 0; i < self->world->block_count; i++) {
        const struct fake_block *block = &self->world->blocks[i];
        if (block->owner == peer && (uint64_t)(uintptr_t)block->memory == block_offset &&
            block->bytes == block_bytes) {
            return block->memory;
        }
    }
    return NULL;
}

static void *fake_board(struct rf__net *net, int peer) {
    return ((struct fake_net *)net)->world->boards + (size_t)peer * RF__BOARD_BYTES;
}

static void fake_notify(struct rf__net *net, int peer) {
    (void)net;
    (void)peer;
}

static const struct rf__shared_ops fake_shared = {
    .alloc = fake_alloc,
    .release = fake_release,
    .find = fake_find,
    .map = fake_map,
    .board = fake_board,
    .notify = fake_notify,
};

/* Before the first group: so many lanes on each link between hosts. */
static void fake_set_lanes(struct fake_world *world, int lanes) {
    size_t links = (size_t)world->size * (size_t)world->size;

    free(world->queues);
    world->queues = calloc(links * (size_t)lanes, sizeof *world->queues);
    world->lanes = lanes;
    for (int rank = 0; rank < world->size; rank++) {
        world->nets[rank].net.most_lanes = lanes;
    }
}

static struct fake_world *fake_world_create(int size, bool shared, size_t most, uint64_t seed) {
    struct fake_world *world = calloc(1, sizeof *world);
    world->size = size;
    world->shared = shared;
    world->most = most;
    world->rng = rf__rng(seed, 0, 0);
    world->boards = aligned_alloc(64, (size_t)size * RF__BOARD_BYTES);
    memset(world->boards, 0, (size_t)size * RF__BOARD_BYTES);
    for (int rank = 0; rank < size; rank++) {
        world->nets[rank].net.ops = &fake_ops;
        world->nets[rank].net.shared = shared ? &fake_shared : NULL;
        world->nets[rank].world = world;
        world->nets[rank].rank = rank;
    }
    fake_set_lanes(world, 1);
    return world;
}

static void fake_world_destroy(struct fake_world *world) {
    while (world->block_count) {
        free(world->blocks[--world->block_count].memory);
    }
    free(world->queues);
    free(world->boards);
    free(world);
}

/* The rank is gone: its links end in both directions. */
static inline void fake_kill(struct fake_world *world, int rank) {
    for (int peer = 0; peer < world->size; peer++) {
        fake_close(world, rank, peer);
        fake_close(world, peer, rank);
    }
}

#endif
