/* What the files of the driver share: the group, its peers, its operations. Nothing outside group/
 * includes this.
 *
 *     group.c    life of a group, the step, revoking, submitting
 *     choice.c   which algorithm a call takes
 *     form.c     a fixed group: meeting the others through the store
 *     elastic.c  an elastic group: the membership machine, its store and its links
 *     link.c     frames on a peer's stream, both ways; beats
 *     exec.c     carrying out a schedule
 *     table.c    comparing the tables by which members choose algorithms
 *     shared.c   collectives through the host's shared memory
 *     stage.c    the same for ordinary memory
 *     hosts.c    several hosts: from one to the next, beside stage.c
 *     nodes.c    several NUMA nodes of one host: the same from node to node
 *     message.c  send and recv */
#ifndef RF_GROUP_INNER_H
#define RF_GROUP_INNER_H

#include "coll/choose.h"
#include "coll/schedule.h"
#include "group/frame.h"
#include "group/group.h"
#include "member/member.h"

#include <stdatomic.h>

enum rf__op_state { RF__OP_FREE, RF__OP_QUEUED, RF__OP_RUNNING, RF__OP_DONE };

struct rf__op {
    struct rf__op_params params;
    enum rf__op_state state;
    bool released; /* nobody will ask for its result */
    int result;
    uint64_t seq;                /* collectives: of the call */
    enum rf_algorithm algorithm; /* asked for, then used */
    int64_t begun, ended;
    struct rf__op *next; /* in the queue it stands in, or in the list of free ones */
};

struct rf__op_queue {
    struct rf__op *head, *tail;
};

/* As rf__choose and the tables count them. */
static inline size_t rf__op_bytes(const struct rf__op *op) {
    return op->params.call.count * rf_type_size(op->params.call.type);
}

/* What is being written to a peer: one frame at a time, because its bytes must not be mixed with
 * another's. STUCK: the group was revoked within a data frame, whose bytes are the caller's again;
 * nothing more is written. */
enum rf__tx_owner { RF__TX_NONE, RF__TX_CONTROL, RF__TX_DATA, RF__TX_MESSAGE, RF__TX_STUCK };

struct rf__tx {
    enum rf__tx_owner owner;
    unsigned char head[RF__FRAME_BYTES];
    const unsigned char *data;
    size_t bytes, sent; /* sent counts head and data */
};

/* Control frames that wait to be written, as bits, the most urgent first. */
enum {
    RF__WANT_REVOKE = 1,
    RF__WANT_TAKE = 2,
    RF__WANT_OFFER = 4,
    RF__WANT_BEAT = 8,
    RF__WANT_BYE = 16
};

/* One stream of a link, both ways. Pieces of a large message of a collective take whichever lane is
 * free; everything else is on lane 0. The others come up at each end at its own time: a beat says
 * that this end listens, and nothing else is sent before the other end's has come. */
struct rf__lane {
    struct rf__tx tx;
    bool greeted, heard; /* not on lane 0 */

    /* The frame at its head. */
    unsigned char head[RF__FRAME_BYTES];
    size_t head_bytes;
    bool framed, checked;
    bool starved; /* the last read found nothing: we listen */
    bool over;    /* it has ended, and nothing is in it */
    struct rf__frame frame;
    size_t taken; /* of its payload */
    size_t cut_bytes;
    unsigned char cut[8]; /* of an element to be folded, whose rest is still to come */
};

struct rf__peer {
    bool came; /* its record was seen in the store */
    bool up;
    bool gone; /* said goodbye, or the link is down: no more will come than what is in the stream */
    int64_t heard, told; /* when something was last read from it, and written to it */

    struct rf__lane *lanes; /* net->most_lanes; net->lanes[] of them can be used */
    unsigned wanted;
    unsigned char control[RF__CONTROL_PAYLOAD]; /* of the control frame at the head of lane 0 */

    /* Collectives: messages begun to it, and received from it, in this generation. One at a time in
     * each direction. */
    uint32_t data_sent, data_received;
    bool is_sending;

    /* Messages with it: one at a time in each direction, the others wait in line. */
    struct rf__op_queue sends, recvs;
    uint64_t sent_seq, received_seq;
    bool offered, taking; /* we offered and wait; we took and receive */
    bool may_send;        /* it took our offer */
    bool has_offer;       /* it offered */
    struct rf__frame offer;
    size_t message_sent, message_received;

    /* How fast large frames of it arrive. */
    int arriving; /* that have begun to, on different lanes */
    int64_t arriving_since, arriving_ns;
    uint64_t arrived_bytes;
};

struct rf__pending_send {
    size_t instr;
    size_t framed; /* bytes given to frames so far */
    bool begun;
    uint32_t number; /* once begun: of the message in this direction of the pair */
};

struct rf__pending_recv {
    size_t received;  /* bytes */
    uint64_t borders; /* of its complete pieces: together they have to be the whole message */
};

/* The collective that runs over links. */
struct rf__exec {
    struct rf__schedule schedule;
    size_t begin, end, next;
    struct rf__pending_recv recv;
    struct rf__pending_send *sends;
    size_t send_count, send_capacity;
    unsigned char *acc, *tmp;
    size_t acc_bytes, tmp_bytes;
    unsigned char *piece; /* where bytes to fold land while they are in cache */
    double divisor;
    bool is_moving; /* something has arrived */
};

enum { RF__PIECE_BYTES = 256 << 10 };

/* A message of more bytes than this goes out over all lanes, in pieces of such a size. */
enum { RF__SPREAD_FROM = 256 << 10, RF__SPREAD_LEAST = 64 << 10, RF__SPREAD_MOST = 256 << 10 };

enum rf__shared_phase {
    RF__SHARED_IDLE,
    RF__SHARED_POSTED,
    RF__SHARED_WORKING,
    RF__SHARED_FINISHING,
    RF__SHARED_STREAMING
};
enum rf__shared_mode {
    RF__SHARED_INLINE,
    RF__SHARED_DIRECT,
    RF__SHARED_STAGED,
    RF__SHARED_NODES,
    RF__SHARED_STREAM
};

/* The ranks of one host that work together on a call: [first, first + size), this one at `index`.
 */
struct rf__team {
    int first, size, index;
};

struct rf__shared_run {
    bool usable; /* all ranks are on one host */
    struct rf__team team;
    uint64_t post; /* calls that went over the boards; the number of the one that runs */
    bool untold;   /* something was published, and who sleeps was not woken yet */
    void *boards[RF_MAX_LOCAL_RANKS]; /* of the team, by rank - team.first */
    size_t most;                      /* bytes that a rank of the call sends */
    bool is_inline;                   /* the boards have room for them */
    enum rf__shared_phase phase;
    enum rf__shared_mode mode;
    int waiting; /* every rank below has arrived */
    size_t done_bytes;
    const void *ins[RF_MAX_LOCAL_RANKS];
    void *outs[RF_MAX_LOCAL_RANKS];
    double divisor;
};

enum { RF__STAGE_BYTES = 2 << 20, RF__STAGE_CHUNKS = 4 };

/* Where a buffer lies in its owner's shared heap. */
struct rf__place {
    uint64_t block, bytes, inside;
};

/* Ordinary memory on one host goes over a stage, chunk by chunk. */
struct rf__stage {
    /* In the own heap; NULL until it is needed. It goes with the net, not before: a slower rank may
     * still take from it what it needs of the last call, and its own mapping keeps the pages. */
    unsigned char *memory;
    bool found; /* its place there is known, in this generation */
    struct rf__place place;
    uint64_t base;                          /* chunks of the generation's calls before this one */
    uint64_t chunks, staged, folded, taken; /* of the call that runs */
    unsigned char *stages[RF_MAX_LOCAL_RANKS]; /* everybody's, as mapped here */
};

/* Groups of several hosts with equally many ranks on each: what is folded on a host goes on to the
 * next one, the sums come back. */
struct rf__hosts {
    bool usable;
    int count, index;        /* hosts, and which of them this is */
    bool runs;               /* for the call that runs */
    uint64_t up, down;       /* chunks sent to the next host, and to the one before */
    uint64_t partials, sums; /* chunks received from there */
    struct rf__pending_send up_send, down_send;
    struct rf__pending_recv partial, sum; /* the chunk that is being received */
};

/* One host whose ranks are in several NUMA nodes. */
struct rf__nodes {
    bool usable;
    int nodes;                         /* that are different */
    int count, index;                  /* teams: runs of ranks in one node; this rank's */
    int first[RF_MAX_LOCAL_RANKS + 1]; /* their first ranks, and the end */
    double far; /* buffers that travel between nodes before a sum where nobody minds nodes */
    bool runs;  /* for the call that runs, if all have a stage */
    bool is_direct;
    uint64_t base;                               /* pieces of the generation's calls before */
    uint64_t pieces, put, folded, summed, taken; /* of the call that runs */
    uint64_t crossed; /* bytes that this rank has fetched from other teams, for tests */
};

enum rf__form_state {
    RF__FORM_READ,
    RF__FORM_REGISTER,
    RF__FORM_LIST,
    RF__FORM_WAIT,
    RF__FORM_AGREE,
    RF__FORM_CONNECT,
    RF__FORM_DONE
};

struct rf__form {
    enum rf__form_state state;
    int64_t begun, deadline, retry_at;
    uint64_t request, watch; /* ids in flight; 0: none */
    uint64_t next_id;
    uint64_t lease, lease_request; /* lease_request: giving it back */
    int64_t lease_renew;
    int64_t generation_revision;         /* of the record of generations */
    char (*endpoints)[RF__ENDPOINT_MAX]; /* by rank; "" while unknown */
    int known, connected; /* members whose record is there; links that came up, ended or not */
    bool was_taken;       /* the own rank, when we wanted to register */
    uint64_t registered;  /* generation that holds our record; 0: none */
    uint64_t agreed_generation, agreed_job; /* as the record of generations says */
    uint64_t cause_get, cause_put;
};

/* A value that is to stand in the store, and the request that is to put it there. */
struct rf__wish {
    bool is_due;
    uint64_t request; /* in flight; 0: none */
    int64_t retry_at;
    uint64_t generation;
    int64_t revision;
    int id;
    unsigned char *bytes;
    size_t length, room;
};

enum {
    RF__WISH_PUBLISH,
    RF__WISH_REPORT,
    RF__WISH_SWAP,
    RF__WISH_REFUSE,
    RF__WISH_FORGET,
    RF__WISHES
};

struct rf__elastic {
    struct rf__member *member; /* NULL: a fixed group */
    uint64_t next_id, list, watch, lease_request, keepalive, revoke;
    int64_t begun, list_retry_at, tick_at;
    uint64_t lease;
    int64_t lease_renew, lease_retry_at;
    struct rf__wish wishes[RF__WISHES];
    int64_t own_revision; /* of the own candidate record; 0: there is none */
    uint64_t own_nonce;   /* in it */
    uint32_t own_restarts;
    int64_t taken_since; /* another process stands there; 0: none */

    int *ids, *last_ids; /* by rank: of the generation that runs, and of the one before */
    bool *healed;
    int last_size;
    int64_t ended_at;               /* when the last generation ended */
    int64_t waits_since, told_wait; /* for the pause that is told */
    bool told_out;
    struct rf__progress noted; /* what the layers above said last */
    bool flip_is_due;
    _Atomic uint64_t running; /* release; partner: rf__group_running's acquire */
    _Atomic int64_t alive;    /* relaxed: a time, nothing hangs on it */
    int64_t alive_seen, longest_gap;
};

struct rf__group {
    struct rf__group_options options;
    int rank, size;
    uint64_t generation, job;
    enum rf__group_state state;
    int64_t now, stepped;

    struct rf__form form;
    struct rf__elastic elastic;
    struct rf__peer *peers;
    bool leaving;
    int64_t leave_deadline;

    struct rf__op *ops, *free_ops;
    struct rf__op_queue calls; /* collectives; the head is the one that runs */
    uint64_t next_seq;
    enum rf_algorithm last_algorithm;
    uint64_t tuning_digest;       /* of the table; 0: the library's own */
    uint64_t told[RF_COLL_COUNT]; /* choices, a bit a size, in groups of told_size */
    int told_size;
    struct rf__exec exec;
    struct rf__shared_run shared;
    struct rf__stage stage;
    struct rf__hosts hosts;
    struct rf__nodes nodes;

    atomic_bool revoked; /* release; partner: rf__group_error's acquire */
    struct rf_error cause;
    struct rf_error suspicion; /* a lost peer, until the store has said whether there is an earlier
                                  cause; code 0: none */
    int64_t suspicion_deadline;
    unsigned char cause_bytes[RF__CONTROL_PAYLOAD];
    size_t cause_length;
};

/* group.c */
int rf__group_fail(struct rf__group *group, int code, int rank, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
void rf__group_settle(struct rf__group *group); /* the suspicion becomes the cause */
void rf__op_finish(struct rf__group *group, struct rf__op *op, int result);
struct rf__op *rf__queue_pop(struct rf__op_queue *queue);
void rf__queue_push(struct rf__op_queue *queue, struct rf__op *op);

/* "allreduce sum of 100 f32", for people. */
void rf__call_text(char *out, size_t bytes, enum rf_coll coll, enum rf_type type,
                   enum rf_redop redop, uint64_t count, int root, enum rf_algorithm algorithm);

/* choice.c: for a call whose algorithm is AUTO; and, once for each size, to who wants to know. */
void rf__choice_make(struct rf__group *group, struct rf__op *op);
/* After that: whether it goes from node to node, within one host. */
bool rf__choice_is_by_nodes(const struct rf__group *group, const struct rf__op *op);
void rf__choice_tell(struct rf__group *group, const struct rf__op *op);

/* nodes.c: after shared.usable is known. */
void rf__nodes_check(struct rf__group *group);

/* form.c: 1 if anything moved; errors revoke the group. */
int rf__form_start(struct rf__group *group, struct rf_error *err);
int rf__form_step(struct rf__group *group);
void rf__form_ask_cause(struct rf__group *group);
void rf__form_publish_cause(struct rf__group *group);
void rf__form_leave(struct rf__group *group);

/* Whether there are links to serve: else the generation is over. */
static inline bool rf__group_is_linked(const struct rf__group *group) {
    return group->state == RF__GROUP_FORMING || group->state == RF__GROUP_RUNNING;
}

/* group.c, for elastic.c: `cause` ends the generation, peers are told. */
void rf__group_end_generation(struct rf__group *group, const struct rf_error *cause);

/* Ready for the links of a generation: nothing of the one before is left. */
int rf__group_reset(struct rf__group *group, int rank, int size);
void rf__group_check_local(struct rf__group *group);

/* elastic.c: 1 if anything moved. */
int rf__elastic_start(struct rf__group *group, struct rf_error *err);
int rf__elastic_step(struct rf__group *group);
void rf__elastic_doubt(struct rf__group *group, int rank, enum rf__doubt doubt,
                       const struct rf_error *why);
void rf__elastic_revoke(struct rf__group *group, const struct rf_error *why);
void rf__elastic_leave(struct rf__group *group);
bool rf__elastic_left(const struct rf__group *group);
int64_t rf__elastic_deadline(const struct rf__group *group);
void rf__elastic_free(struct rf__group *group);

/* table.c */
enum { RF__TABLE_LINE = 128 };
/* What follows the endpoint in this member's record; "" for the library's own table. */
void rf__table_line(const struct rf__group *group, char out[RF__TABLE_LINE]);
/* The length of the endpoint in a record. */
size_t rf__table_endpoint(const char *record);
/* Whether the other's table chooses unlike ours; both as people call them. */
bool rf__table_differs(const struct rf__group *group, const char *record,
                       char theirs[RF__TABLE_LINE], char ours[RF__TABLE_LINE]);

/* link.c */
static inline int rf__link_lanes(const struct rf__group *group, int peer) {
    return group->options.net->lanes[peer];
}
void rf__link_down(struct rf__group *group, int peer);
/* Whether all lanes are over. */
bool rf__link_is_over(const struct rf__group *group, int peer);
/* Writes what is due: 1 when nothing is left to write, 0 when the lane is full, or an error. */
int rf__link_flush(struct rf__group *group, int peer, int lane, bool *moved);
/* Loads a data frame; only when tx is free. */
void rf__link_load(struct rf__group *group, int peer, int lane, enum rf__tx_owner owner,
                   const struct rf__frame *frame, const void *data);
/* Reads until a data frame stands at the head: 1 then, 0 when there is none yet, or an error.
 * Control frames are dealt with. */
int rf__link_receive(struct rf__group *group, int peer, int lane, bool *moved);
/* Up to `bytes` of the payload at the head into `out`: bytes read. The frame ends when all is
 * taken. */
ssize_t rf__link_take(struct rf__group *group, int peer, int lane, void *out, size_t bytes);
ssize_t rf__link_peek(struct rf__group *group, int peer, int lane, const void **view, size_t bytes);
void rf__link_consume(struct rf__group *group, int peer, int lane, size_t bytes);
void rf__link_beats(struct rf__group *group);

/* exec.c */
struct rf__transfer {
    int peer;
    size_t bytes;
};
/* Gives frames to the link as long as it takes them. 1 when all is out, 0, or an error. A message
 * waits for the one before it to the same peer. */
int rf__exec_send(struct rf__group *group, const struct rf__op *op, const struct rf__transfer *to,
                  const unsigned char *from, struct rf__pending_send *send, bool *moved);
/* Payload at the head of a lane, and where it belongs in its message: whole elements, but for those
 * that are here in part. */
struct rf__piece {
    int peer, lane;
    size_t offset, bytes;
};
/* Takes some of it from the link: bytes taken, 0 when there are none now, or an error. */
typedef ssize_t rf__take_fn(struct rf__group *group, const struct rf__piece *piece, void *context);
/* Takes what is here of a message, in whatever order its pieces come. 1 when it is complete (`recv`
 * is ready for the next one then), 0, or an error. */
int rf__exec_receive(struct rf__group *group, const struct rf__op *op,
                     const struct rf__transfer *from, struct rf__pending_recv *recv, bool *moved,
                     rf__take_fn *take, void *context);
int rf__exec_begin(struct rf__group *group, struct rf__op *op);
/* 1 when the collective is complete, 0 when it waits, or an error. */
int rf__exec_run(struct rf__group *group, struct rf__op *op, bool *moved);
/* Holds the frame at a lane's head against the running call; an error where they differ. */
int rf__exec_check(struct rf__group *group, int peer, int lane);
/* Writes the running call into a beat. Ranks that carry out different algorithms may wait for each
 * other without a frame that tells; their beats do. */
void rf__exec_tell(const struct rf__group *group, struct rf__frame *frame);
void rf__exec_free(struct rf__exec *exec);

/* shared.c */
void rf__shared_begin(struct rf__group *group, struct rf__op *op);
int rf__shared_run(struct rf__group *group, struct rf__op *op, bool *moved);

/* message.c */
/* Whether all of the message that is being received is here. */
bool rf__message_is_whole(const struct rf__peer *peer);
int rf__message_step(struct rf__group *group, int peer, bool *moved);

#endif
