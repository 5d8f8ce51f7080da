/* What the files of the simulator share: one world of workers, links and a store on a virtual
 * clock.
 *
 *     main.c      options, seeds, the exhaustive mode
 *     world.c     the events in the order of their time, the life of workers
 *     coro.c      stacks for the workers' programs
 *     net.c       links: io/net.h over byte pipes that delay, cut and end
 *     store.c     io/store.h over the store's own state machine
 *     worker.c    the runner that the layers above use, over a driver
 *     program.c   what each worker trains
 *     fault.c     what goes wrong, and when
 *     check.c     what must hold
 *     plant.c     bugs that the checkers have to find
 *
 * Everything follows from the seed: one thread, no clock, no address, no hash order. */
#ifndef SIM_SIM_H
#define SIM_SIM_H

#include "base/rng.h"
#include "base/status.h"
#include "coro.h"
#include "ddp/ddp.h"
#include "group/group.h"
#include "kv/kv.h"
#include "plant.h"

enum {
    SIM_IDS = 12,        /* workers that can ever be, by id */
    SIM_STORE = SIM_IDS, /* the store's place in tables of paths */
    SIM_NODES = SIM_IDS + 1,
    SIM_SHARDS = 12,
    SIM_INITIAL = 42, /* stream of the initial state */
    SIM_TENSORS = 3,
    SIM_UNITS = 1 << 16,    /* the history is kept of so many */
    SIM_GENERATIONS = 4096, /* records */
    SIM_HISTORY = 64
};

#define SIM_US 1000ll

enum sim_fault {
    SIM_CRASH = 1,      /* the process ends; its links end */
    SIM_VANISH = 2,     /* the machine is gone: its links fall silent */
    SIM_FREEZE = 4,     /* nothing of the worker runs for a while */
    SIM_SLOW = 8,       /* its program computes slowly */
    SIM_RESET = 16,     /* one connection is reset */
    SIM_PARTITION = 32, /* nothing gets from some nodes to others, in one direction or both */
    SIM_LAG = 64,       /* one path is slow */
    SIM_STORE_DOWN = 128,
    SIM_STORE_LAG = 256,
    SIM_JOIN = 512,  /* a worker more */
    SIM_FLIP = 1024, /* one bit of a parameter */
    SIM_LEAVE = 2048,
    SIM_FAULTS = 12 /* kinds */
};

/* What a run is; the rest follows from the seed. */
struct sim_options {
    uint64_t seed;
    int workers;    /* 0: of the seed */
    uint64_t steps; /* committed under faults before the world heals; 0: of the seed */
    bool trace;
    bool fixed; /* a fixed group: the first failure ends it */
    bool silly; /* clocks that run at wrong speeds, leases that last too short */
    enum sim_plant plant;
    unsigned faults; /* kinds allowed; ~0: of the seed */

    /* The exhaustive mode: exactly one strike, before the event with this number. 0: none. */
    uint64_t strike_at;
    int strike_a, strike_b; /* b -1: `a` crashes; else the link between them is cut */
};

struct sim_outcome {
    bool violated;
    char text[512]; /* the first violation */
    bool lost;      /* the state went with the last that held it, or no majority could be found */
    uint64_t events, commits, units, generations, faults;
    int64_t now, healed_after;        /* ns: of liveness */
    uint64_t first_event, last_event; /* of the step that the exhaustive mode takes apart */
};

enum sim_event_kind {
    SIM_EV_STEP,    /* a worker's driver */
    SIM_EV_RESUME,  /* a worker's program */
    SIM_EV_FLIGHT,  /* bytes, or the end, arrive on a pipe */
    SIM_EV_DIAL,    /* a dial arrives */
    SIM_EV_CONNECT, /* a client of the store connects */
    SIM_EV_REQUEST, /* requests arrive at the store */
    SIM_EV_REPLY,   /* its answers arrive */
    SIM_EV_TICK,    /* the store looks at its leases, the checkers at waits */
    SIM_EV_FAULT,
    SIM_EV_START, /* a worker is started */
    SIM_EV_STORE_UP
};

struct sim_event {
    int64_t at;
    uint64_t order; /* of two at one time the one that was posted first comes first */
    enum sim_event_kind kind;
    int id;         /* the worker */
    uint64_t start; /* which start of it */
    uint64_t a, b;
};

struct sim;
struct sim_net;
struct sim_store;

enum sim_wait {
    SIM_WAIT_NOT,
    SIM_WAIT_TIME,
    SIM_WAIT_OP,
    SIM_WAIT_PLACE,  /* to be in the group, or to know that it runs without us */
    SIM_WAIT_REFORM, /* to be in */
    SIM_WAIT_LEFT
};

struct sim_clock {
    struct rf__clock clock; /* first */
    struct sim_worker *worker;
};

struct sim_worker {
    struct rf__runner runner; /* first */
    struct sim *sim;
    int id;
    uint64_t start; /* number of this start, from 1, unique in the world; 0: never started */
    int restarts;
    bool alive;    /* a process is there */
    bool dying;    /* its program is being unwound: every call fails, nothing is checked */
    bool is_to_go; /* asked to leave */
    bool finished; /* ended well: the job was done, or it was asked to leave */
    int code;      /* how the program ended */
    int64_t frozen_until, slow_until, thawed_at;
    int slow;
    struct sim_clock clock;
    int64_t clock_base, clock_rate; /* local = base + now * rate / 1024 */

    struct sim_net *net;
    struct sim_store *store;
    struct rf__group *group;
    struct sim_coro *program;
    int64_t step_at;
    uint64_t step_order, resume_order;
    enum sim_wait waits;
    struct rf__op *waited;
    int64_t wait_since;
    int ids[SIM_IDS];
    bool healed_of[SIM_IDS];
    int blocks; /* of memory, not given back */
    bool flip_is_due;
    const struct rf__op *barrier; /* for a planted bug: the exchange of reports under way */
    unsigned char *barrier_reports, barrier_own[256], barrier_scratch[256 * SIM_IDS];

    /* The program's, looked at by checkers and faults. */
    float param[SIM_TENSORS][64], moment[64];
    uint64_t applied;    /* updates: a registered state */
    bool holds, healing; /* the state; is copying it in this unit */
    uint64_t units;      /* committed, as told */
    uint64_t told_units; /* by the last commit that was told of */
    bool has_units;      /* `units` is known */
    bool tainted;        /* a bit was flipped */
};

struct sim_unit {
    bool known, measure;
    uint64_t step, digest, content, state;
    int by;
};

struct sim_record {
    uint64_t number, units;
    int count;
    int ids[SIM_IDS];
    bool healed[SIM_IDS];
};

struct sim {
    struct sim_options options;
    struct sim_outcome outcome;
    int64_t now;
    uint64_t order, starts, index; /* index: of the event being carried out */
    struct rf__rng rng, fault_rng;
    struct sim_event *heap;
    size_t heap_count, heap_room;

    struct sim_worker workers[SIM_IDS];
    int initial;

    /* Of the seed. */
    int min_size, max_size, detect_ms, start_timeout_ms;
    unsigned faults;
    int64_t fault_every;
    int64_t latency, compute;
    size_t most, window; /* bytes that a read or write moves at most (0: all); of a pipe */
    uint32_t hash_every;
    size_t bucket_bytes;
    enum rf_algorithm algorithm;
    uint64_t measure_every;
    int64_t lease_rate; /* how fast the store's clock goes, in 1024ths */
    int64_t store_clock_at, store_clock;

    /* Paths. */
    int64_t cut_until[SIM_NODES][SIM_NODES], lag_until[SIM_NODES][SIM_NODES];
    int64_t lag[SIM_NODES][SIM_NODES];
    struct sim_conn **conns;
    size_t conn_count, conn_room;

    /* The store. */
    struct rf__kv *kv;
    bool store_is_up;
    int64_t store_lag_until;
    struct sim_seat {
        struct sim_store *client; /* of the worker with this id; NULL: none */
        uint64_t epoch;           /* of its connection; 0: not connected */
    } seats[SIM_IDS];

    /* Checkers. */
    bool is_healing, may_stop;
    int64_t heal_begun, heal_deadline;
    int whole_commits; /* by groups of all that live, since the world healed */
    struct sim_unit *units;
    uint64_t unit_count;
    struct sim_record *records;
    uint64_t record_count;
    int64_t record_revision;
    float reference[SIM_TENSORS][64], reference_moment[64]; /* after reference_steps */
    uint64_t reference_steps;
    uint64_t *reference_digests; /* of parameters, by steps */
    bool flipped;
};

/* world.c */
void sim_run(const struct sim_options *options, struct sim_outcome *outcome);
uint64_t sim_post(struct sim *sim, int64_t at, enum sim_event_kind kind, int id, uint64_t start,
                  uint64_t a, uint64_t b);
void sim_wake(struct sim_worker *worker, int64_t at); /* its driver, at the latest then */
int64_t sim_soon(struct sim *sim, int64_t most);      /* now, and a little that is not 0 */
void sim_trace(struct sim *sim, int id, const char *format, ...) RF__PRINTF(3, 4);
void sim_start(struct sim *sim, int id);
void sim_kill(struct sim_worker *worker, bool silently);
bool sim_is_frozen(const struct sim_worker *worker);
int sim_alive(const struct sim *sim);
bool sim_path(const struct sim *sim, int from, int to);
int64_t sim_delay(struct sim *sim, int from, int to, size_t bytes);

/* net.c */
struct rf__net *sim_net_create(struct sim_worker *worker);
void sim_net_end(struct sim_net *net, bool silently); /* the process is no more */
int64_t sim_net_deadline(const struct sim_net *net);
void sim_net_flight(struct sim *sim, const struct sim_event *event);
void sim_net_dial(struct sim *sim, const struct sim_event *event);
bool sim_net_reset(struct sim *sim, int a, int b); /* their connection; false: there is none */
void sim_net_free(struct sim *sim);

/* store.c */
struct rf__store *sim_store_create(struct sim_worker *worker);
void sim_store_connect(struct sim *sim, const struct sim_event *event);
void sim_store_request(struct sim *sim, const struct sim_event *event);
void sim_store_reply(struct sim *sim, const struct sim_event *event);
void sim_store_end(struct sim_store *store); /* the process is no more */
void sim_store_tick(struct sim *sim);
void sim_store_down(struct sim *sim);
void sim_store_up(struct sim *sim);
void sim_store_set_rate(struct sim *sim, int64_t rate);

/* worker.c */
extern const struct rf__runner_ops sim_runner_ops;
int64_t sim_local(const struct sim_worker *worker);
int64_t sim_global(const struct sim_worker *worker, int64_t local); /* when the clock says so */
void sim_sleep(struct sim_worker *worker, int64_t ns);
void sim_wait(struct sim_worker *worker, enum sim_wait wait, struct rf__op *op);
bool sim_is_ready(const struct sim_worker *worker);
void sim_tell(void *worker, const struct rf_event *event);

/* program.c */
void sim_program(void *worker);
uint64_t sim_samples(uint64_t step, uint32_t shard, bool measure);
float sim_gradient(uint64_t step, uint32_t shard, int tensor, int element);
int sim_elements(int tensor);
float sim_rate(uint64_t step);
double sim_score(uint32_t shard);

/* fault.c */
void sim_fault_plan(struct sim *sim);
void sim_fault_strike(struct sim *sim);
void sim_fault_heal(struct sim *sim);

/* Whether another one is there, in the newest generation, with the newest state. */
bool sim_is_dispensable(const struct sim *sim, const struct sim_worker *worker);

/* check.c */
void sim_violate(struct sim *sim, const char *format, ...) RF__PRINTF(2, 3);
void sim_check_begin(struct sim_worker *worker, const struct rf_step *step);
void sim_check_commit(struct sim_worker *worker, const struct rf_ddp *ddp,
                      const struct rf_step *step, const struct rf_step_report *report);
void sim_check_update(struct sim_worker *worker, uint64_t steps);
void sim_check_change(struct sim *sim, const char *key, const void *value, size_t bytes,
                      int64_t revision);
void sim_check_tick(struct sim *sim);
void sim_check_told(struct sim_worker *worker, const struct rf_event *event);
void sim_check_end(struct sim_worker *worker, const struct rf_error *err);
void sim_check_note(struct sim_worker *worker, const struct rf__progress *progress);

#endif
