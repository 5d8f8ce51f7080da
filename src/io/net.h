/* All links of one worker, as the driver sees them: byte streams to peers that never block, and
 * events when one comes up or goes down. Implemented by os/net (TCP, shared memory) and by the
 * simulator.
 *
 * A link has one stream or more, its lanes, which are up and down together: lane 0 from the UP
 * event on, further ones as they come (`lanes`). What is written on one is read from one at the
 * other end, in order; the numbers of a lane at its two ends may differ, but for 0.
 *
 * Who a peer is has been proved before its UP event: the handshake (job key, job, generation, rank)
 * is the implementation's business. Ranks are those of `rf__net_ops.open`. Thread safety: the
 * caller's lock. */
#ifndef RF_IO_NET_H
#define RF_IO_NET_H

#include <ringfold/error.h>
#include <ringfold/limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

enum { RF__ENDPOINT_MAX = 2048 };

enum rf__net_event_kind { RF__NET_UP, RF__NET_DOWN };

struct rf__net_event {
    enum rf__net_event_kind kind;
    int peer;
    struct rf_error error; /* DOWN: why, with the addresses */
};

struct rf__net_group {
    uint64_t generation;
    int rank, size;
    const char *const
        *endpoints; /* size texts, as published by each; borrowed until open returns */
};

struct rf__net;

/* The part of a link that only processes of one host have: memory they all see. */
struct rf__shared_ops {
    /* Zeroed, 64-byte aligned memory in this worker's heap, which its local peers can map. */
    int (*alloc)(struct rf__net *net, size_t bytes, void **out, struct rf_error *err);
    void (*release)(struct rf__net *net, void *memory);

    /* Whether [memory, memory + bytes) lies in one block of this worker's heap: 0 and the block's
     * place, or RF_ENOTFOUND. */
    int (*find)(struct rf__net *net, const void *memory, size_t bytes, uint64_t *block_offset,
                uint64_t *block_bytes, uint64_t *inside);

    /* After open, before the generation's first operation, by the thread that works with the
     * memory: brings the blocks to where only the processes of the new group can write. Until then
     * `find` may not know them. Needed when a process was left out of the group that may still
     * live: when it thaws, it may go on writing into what it mapped. Contents and addresses stay,
     * but nothing may be written into the blocks meanwhile. RF_ENOMEM: some are not moved, and may
     * be by another call. NULL: they never have to move. */
    int (*settle)(struct rf__net *net, struct rf_error *err);

    /* A local peer's block as mapped here (cached); NULL when it cannot be mapped. */
    void *(*map)(struct rf__net *net, int peer, uint64_t block_offset, uint64_t block_bytes);

    /* The board: zeroed memory, 64-byte aligned, that every local peer sees; `peer` may be the own
     * rank. NULL: not local, or not up. */
    void *(*board)(struct rf__net *net, int peer);

    /* After something was published (release): wakes the peer if it sleeps. */
    void (*notify)(struct rf__net *net, int peer);
};

enum { RF__BOARD_BYTES = 36 << 10 };

struct rf__net_ops {
    /* What peers need to find this worker, as printable text, for the store. */
    int (*endpoint)(struct rf__net *net, char *out, size_t bytes, struct rf_error *err);

    /* Starts to connect with all ranks; an UP event for each follows, or a DOWN event. */
    int (*open)(struct rf__net *net, const struct rf__net_group *group, struct rf_error *err);

    /* Serves what is ready (accepts, handshakes) without waiting; 1 if anything happened. `now` in
     * ns. */
    int (*pump)(struct rf__net *net, int64_t now);

    /* 1 and an event, or 0. */
    int (*next_event)(struct rf__net *net, struct rf__net_event *event);

    /* Bytes taken (0: full for now), or RF_ELOST once the link is down (a DOWN event tells why). */
    ssize_t (*write)(struct rf__net *net, int peer, int lane, const struct iovec *parts, int count);

    /* Bytes read (0: nothing for now), or RF_ELOST at the end of the lane. Everything that arrived
     * before the end is delivered first. */
    ssize_t (*read)(struct rf__net *net, int peer, int lane, void *buffer, size_t bytes);

    /* Received bytes in place: *view points at up to `bytes` contiguous ones (the count is
     * returned, 0: nothing), valid until `consume` or `read`. NULL op: not supported by this net. A
     * link that cannot do it returns RF_EUNSUPPORTED. */
    ssize_t (*peek)(struct rf__net *net, int peer, int lane, const void **view, size_t bytes);
    void (*consume)(struct rf__net *net, int peer, int lane, size_t bytes);

    /* Ends the link after what was written has gone out (within a bound). No DOWN event follows. */
    void (*shutdown)(struct rf__net *net, int peer);

    /* Told before and after the caller waits in its poller, so that peers know to ring the
     * doorbell. After sleep(true) the caller must look at everything once more before it waits. */
    void (*sleep)(struct rf__net *net, bool sleeping);

    /* A rehearsed cut: until then nothing is read, written, accepted, dialled or noticed; timers
     * go on. An earlier time ends it. NULL: not supported. */
    void (*mute)(struct rf__net *net, int64_t until_ns);

    void (*destroy)(struct rf__net *net);
};

enum rf__link_kind { RF__LINK_NONE, RF__LINK_SHM, RF__LINK_TCP };

/* Implementations embed this first. */
struct rf__net {
    const struct rf__net_ops *ops;
    const struct rf__shared_ops *shared;   /* NULL: no memory is shared */
    size_t cache_bytes;                    /* the last cache's, shared by cores; 0: unknown */
    int most_lanes;                        /* that a link can have; at least 1 */
    int lanes[RF_MAX_RANKS];               /* after open: that can be used; 1, and more later */
    enum rf__link_kind kind[RF_MAX_RANKS]; /* after open; NONE for the own rank */
    int host[RF_MAX_RANKS]; /* after open: equal for ranks that share memory with each other; every
                               rank is given the same */
    int node[RF_MAX_RANKS]; /* after open: the NUMA node of that host in which all cores are that
                               the rank may use; -1: they are in several, or it is not known. Every
                               rank is given the same */
};

#endif
