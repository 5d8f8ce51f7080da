/* The communicator: joining a job, collective operations, memory the collectives like best.
 *
 * Thread safety: a communicator may be used by one thread at a time; `rf_comm_abort` and
 * `rf_comm_error` may be called by any thread at any time. One engine thread of the library's own
 * serves links and operations in flight.
 *
 * Order: every member issues the same collectives in the same order; they are carried out in that
 * order. Send and receive match each other in order for each pair and direction. Between a pair on
 * TCP a message waits behind the data of a collective that its sender began before it: do not wait
 * for a message before the collectives that its sender began first have begun here too.
 *
 * Failure: an error other than RF_EINVAL, RF_EUNSUPPORTED and rf_start's RF_ELIMIT and RF_ENOMEM
 * (refused before anything was sent) revokes the group: each operation in flight and each later
 * one, on every member, fails with the first cause, kept in `rf_comm_error`. In an elastic job this
 * lasts until rf_comm_reform. */
#ifndef RINGFOLD_COMM_H
#define RINGFOLD_COMM_H

#include <ringfold/error.h>
#include <ringfold/limits.h>
#include <ringfold/tuning.h>
#include <ringfold/types.h>
#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

struct rf_comm;
struct rf_request;

enum rf_transport {
    RF_TRANSPORT_AUTO, /* shared memory between processes of one host, TCP between hosts */
    RF_TRANSPORT_SHM,
    RF_TRANSPORT_TCP
};

/* Strings are borrowed until the call that takes the options returns. */
struct rf_options {
    char job[RF_MAX_JOB_NAME]; /* letters, digits, '.', '_', '-' */
    char store[256];           /* "tcp://host:port"; empty: only a group of one is possible */
    int rank;                  /* this worker's starting rank, 0 <= rank < size */
    int size;                  /* workers in all */
    int local_size;  /* workers of this job on this host, a hint for spinning; 0: unknown */
    int local_cores; /* cores that these share; 0: those this process may run on */
    unsigned char key[RF_MAX_KEY_BYTES];
    size_t key_bytes; /* RF_MIN_KEY_BYTES … RF_MAX_KEY_BYTES, the same for the whole job */
    enum rf_transport transport;
    int streams; /* TCP connections with each worker of another host, 1 … RF_MAX_STREAMS: more where
                    one alone does not fill the path. Of two workers the lower number counts;
                    results do not depend on it */
    enum rf_algorithm
        algorithm; /* RF_ALGORITHM_AUTO, or what every collective that can use it shall use */
    int detect_ms; /* how soon a silent peer is taken for lost; every other timeout follows from it
                    */
    int start_timeout_ms; /* how long to wait for all workers to come, and for a job that is paused
                           */

    /* Elastic jobs. */
    bool elastic; /* this program goes on in a group that has changed: it uses rf_ddp and knows
                     RF_RETRY, or calls rf_comm_reform. Its own to say; false: a fixed group */
    int min_size; /* 0: a fixed group all the same, which the first failure ends. Else the group
                     re-forms after failures and goes on while at least so many workers are left */
    int max_size; /* so many workers are taken at most; 0: `size` */
    int id;       /* this worker's name in the job, kept across its restarts; -1: `rank` */
    int restarts; /* how often it was started before: a later start takes the place of an earlier */
    int slow_evict;   /* so many times slower than the median: put out; 0: never */
    int slow_window;  /* steps in a row */
    int cool_down_ms; /* how long a slow worker stays out */
    int event_fd;     /* where each event goes as one line of JSON (docs/EVENTS.md); -1: nowhere */
    bool faults;      /* take orders for rehearsed faults from the store (`ringfold drill`) */

    /* Choosing algorithms (tuning.h); the same on all workers, which is checked. */
    char tuning[RF_TUNING_PATH]; /* file of a table; empty: the library's own */

    /* Told in one line, for people, what was chosen for a call, and why: once for each collective
     * and size (to a power of two). Within a call, or by the library's thread: of this
     * communicator it may use rf_rank and rf_size only. NULL: nobody is told. */
    void (*choice)(void *context, const char *line);
    void *choice_context;

    char topology[256]; /* for tests: the machine whose NUMA nodes the cores are in, as one of
                           hwloc's synthetic topologies ("numa:2 core:4 pu:1") or the path of an
                           XML file with one; empty: this machine */
};

/* A fixed group of one, AUTO for the rest, one stream, detect 3 s, start timeout 5 min; slow_evict
 * 10, slow_window 2, cool-down 30 s, no events. */
RF_API void rf_options_init(struct rf_options *options);

/* Overwrites what the RINGFOLD_* variables in `environ` (as main's third argument; only read) set:
 * JOB STORE RANK SIZE LOCAL_SIZE LOCAL_CORES KEY_FD (a descriptor, read from its start) KEY_FILE
 * TRANSPORT STREAMS ALGORITHM DETECT START_TIMEOUT MIN_SIZE MAX_SIZE ID RESTARTS SLOW_EVICT
 * SLOW_WINDOW COOL_DOWN EVENT_FD FAULTS TUNING (a file, or "default") TOPOLOGY. Durations take
 * "3s", "500ms", "5m". RF_EINVAL names the variable that cannot be used. Without RINGFOLD_TUNING
 * the user's own table is taken, where there is one (rf_tuning_user_path). */
RF_API RF_MUST_CHECK int rf_options_from_environ(struct rf_options *options, char **environ,
                                                 struct rf_error *err);

/* Joins the job: meets the other workers through the store and connects to them. Returns when all
 * `size` workers are connected, or with an error that names who is missing, within
 * `start_timeout_ms`. Collective over the job.
 *
 * Elastic, and the job runs already: returns at once, outside of the group (rank -1, size 0). The
 * others take this worker in at the end of a step, once rf_comm_reform (or rf_ddp_seal) asks. */
RF_API RF_MUST_CHECK int rf_comm_create(const struct rf_options *options, struct rf_comm **out,
                                        struct rf_error *err);

/* Leaves the group; operations in flight are abandoned. NULL is fine. Memory from rf_mem_alloc goes
 * with it. */
RF_API void rf_comm_destroy(struct rf_comm *comm);

RF_API int rf_rank(const struct rf_comm *comm);
RF_API int rf_size(const struct rf_comm *comm);
RF_API uint64_t rf_generation(const struct rf_comm *comm);

/* Elastic: waits until the group has re-formed with this worker in it, and takes the new generation
 * over: rank and size may be others, and calls work again. Survivors keep their order. Returns at
 * once where nothing has happened. RF_ETOOFEW: below `min_size` for longer than `start_timeout_ms`;
 * RF_EREFUSED, RF_EENDED, RF_ESTOPPED. rf_ddp does this by itself. Meanwhile no other thread may
 * write memory from rf_mem_alloc: it may have to move away from a process that was left out. */
RF_API RF_MUST_CHECK int rf_comm_reform(struct rf_comm *comm, struct rf_error *err);

/* Elastic: ends a wait for the group (in rf_comm_reform, or within rf_ddp) that lasts for more than
 * a second, now or later, with RF_ESTOPPED. A running group is not disturbed. Any thread, and
 * signal handlers. */
RF_API void rf_comm_interrupt(struct rf_comm *comm);

/* Elastic: the job is done. Who comes later is told so (RF_EENDED), and waits for nobody. */
RF_API void rf_comm_end(struct rf_comm *comm);

/* This worker's id, and that of a rank of the present generation (-1: there is no such rank). */
RF_API int rf_id(const struct rf_comm *comm);
RF_API int rf_id_of(const struct rf_comm *comm, int rank);

/* "shm", "tcp", "shm+tcp" or "self". Static string. */
RF_API const char *rf_comm_transport(const struct rf_comm *comm);

/* The first cause of the group's failure; code 0 while there is none. */
RF_API void rf_comm_error(struct rf_comm *comm, struct rf_error *out);

/* Fails every operation on every member with RF_EREVOKED and the given reason. */
RF_API void rf_comm_abort(struct rf_comm *comm, const char *reason);

/* One collective call. `count` is in elements:
 *   allreduce, broadcast, reduce     count in, count out
 *   reduce_scatter                   size x count in, count out (this rank's part)
 *   all_gather, gather               count in, size x count out (gather: at the root)
 *   scatter                          size x count in (at the root), count out
 *   all_to_all                       size x count in, size x count out; part k goes to and comes
 *                                    from rank k
 *   send, recv                       count elements to or from rank `root`
 *   barrier                          nothing
 *
 * In place where send and recv address the same data: send == recv (allreduce, broadcast, reduce,
 * all_to_all); recv == send + rank x count (reduce_scatter, scatter at the root); send == recv +
 * rank x count (all_gather, gather at the root). Otherwise they must not overlap. A buffer that the
 * rank does not need may be NULL; broadcast reads `send` at the root and writes `recv` elsewhere
 * (at the root too, where they differ). Buffers are borrowed until the operation is complete; the
 * contents of recv are unspecified after an error. */
struct rf_call {
    enum rf_coll coll;
    enum rf_type type;
    enum rf_redop redop; /* reducing collectives only */
    int root;            /* rooted collectives; the peer of send and recv */
    const void *send;
    void *recv;
    size_t count;
    enum rf_algorithm algorithm; /* AUTO: the communicator's */
};

/* Carries the call out; returns when this rank's part is complete. */
RF_API RF_MUST_CHECK int rf_run(struct rf_comm *comm, const struct rf_call *call);

/* Starts it; the request must be given to rf_wait (until it says something else than RF_ETIMEDOUT)
 * or rf_release. */
RF_API RF_MUST_CHECK int rf_start(struct rf_comm *comm, const struct rf_call *call,
                                  struct rf_request **out);

/* 1 when complete, 0 when not yet, or the operation's error. Does not free the request. */
RF_API RF_MUST_CHECK int rf_test(struct rf_request *request);

/* Waits for completion at most `timeout_ms` (negative: as long as the group is whole). 0 or the
 * operation's error; the request is freed. RF_ETIMEDOUT: not complete, the request lives on, and
 * nothing else happened. */
RF_API RF_MUST_CHECK int rf_wait(struct rf_request *request, int timeout_ms);

/* Forgets the request; the operation runs on, and its buffers stay borrowed until the group ends.
 * NULL is fine. */
RF_API void rf_release(struct rf_request *request);

/* The calls spelled out, blocking. */
RF_API RF_MUST_CHECK int rf_allreduce(struct rf_comm *comm, const void *send, void *recv,
                                      size_t count, enum rf_type type, enum rf_redop redop);
RF_API RF_MUST_CHECK int rf_reduce_scatter(struct rf_comm *comm, const void *send, void *recv,
                                           size_t count, enum rf_type type, enum rf_redop redop);
RF_API RF_MUST_CHECK int rf_all_gather(struct rf_comm *comm, const void *send, void *recv,
                                       size_t count, enum rf_type type);
RF_API RF_MUST_CHECK int rf_broadcast(struct rf_comm *comm, const void *send, void *recv,
                                      size_t count, enum rf_type type, int root);
RF_API RF_MUST_CHECK int rf_reduce(struct rf_comm *comm, const void *send, void *recv, size_t count,
                                   enum rf_type type, enum rf_redop redop, int root);
RF_API RF_MUST_CHECK int rf_gather(struct rf_comm *comm, const void *send, void *recv, size_t count,
                                   enum rf_type type, int root);
RF_API RF_MUST_CHECK int rf_scatter(struct rf_comm *comm, const void *send, void *recv,
                                    size_t count, enum rf_type type, int root);
RF_API RF_MUST_CHECK int rf_all_to_all(struct rf_comm *comm, const void *send, void *recv,
                                       size_t count, enum rf_type type);
RF_API RF_MUST_CHECK int rf_send(struct rf_comm *comm, const void *send, size_t count,
                                 enum rf_type type, int peer);
RF_API RF_MUST_CHECK int rf_recv(struct rf_comm *comm, void *recv, size_t count, enum rf_type type,
                                 int peer);
RF_API RF_MUST_CHECK int rf_barrier(struct rf_comm *comm);

/* The algorithm the last completed call on this communicator used. */
RF_API enum rf_algorithm rf_last_algorithm(const struct rf_comm *comm);

/* Memory that other ranks of the host can read and write directly: collectives on it copy nothing.
 * 64-byte aligned, zeroed. Any memory works with every call; this kind is faster between processes
 * of one host. */
RF_API RF_MUST_CHECK int rf_mem_alloc(struct rf_comm *comm, size_t bytes, void **out,
                                      struct rf_error *err);
RF_API void rf_mem_free(struct rf_comm *comm, void *memory);

#ifdef __cplusplus
}
#endif
#endif
