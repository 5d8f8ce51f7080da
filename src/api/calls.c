/* The collective calls spelled out: each fills a struct rf_call. */
#include <ringfold/comm.h>

int rf_allreduce(struct rf_comm *comm, const void *send, void *recv, size_t count,
                 enum rf_type type, enum rf_redop redop) {
    return rf_run(comm, &(struct rf_call){.coll = RF_COLL_ALLREDUCE,
                                          .type = type,
                                          .redop = redop,
                                          .send = send,
                                          .recv = recv,
                                          .count = count});
}

int rf_reduce_scatter(struct rf_comm *comm, const void *send, void *recv, size_t count,
                      enum rf_type type, enum rf_redop redop) {
    return rf_run(comm, &(struct rf_call){.coll = RF_COLL_REDUCE_SCATTER,
                                          .type = type,
                                          .redop = redop,
                                          .send = send,
                                          .recv = recv,
                                          .count = count});
}

int rf_all_gather(struct rf_comm *comm, const void *send, void *recv, size_t count,
                  enum rf_type type) {
    return rf_run(
        comm,
        &(struct rf_call){
            .coll = RF_COLL_ALL_GATHER, .type = type, .send = send, .recv = recv, .count = count});
}

int rf_broadcast(struct rf_comm *comm, const void *send, void *recv, size_t count,
                 enum rf_type type, int root) {
    return rf_run(comm, &(struct rf_call){.coll = RF_COLL_BROADCAST,
                                          .type = type,
                                          .root = root,
                                          .send = send,
                                          .recv = recv,
                                          .count = count});
}

int rf_reduce(struct rf_comm *comm, const void *send, void *recv, size_t count, enum rf_type type,
              enum rf_redop redop, int root) {
    return rf_run(comm, &(struct rf_call){.coll = RF_COLL_REDUCE,
                                          .type = type,
                                          .redop = redop,
                                          .root = root,
                                          .send = send,
                                          .recv = recv,
                                          .count = count});
}

int rf_gather(struct rf_comm *comm, const void *send, void *recv, size_t count, enum rf_type type,
              int root) {
    return rf_run(comm, &(struct rf_call){.coll = RF_COLL_GATHER,
                                          .type = type,
                                          .root = root,
                                          .send = send,
                                          .recv = recv,
                                          .count = count});
}

int rf_scatter(struct rf_comm *comm, const void *send, void *recv, size_t count, enum rf_type type,
               int root) {
    return rf_run(comm, &(struct rf_call){.coll = RF_COLL_SCATTER,
                                          .type = type,
                                          .root = root,
                                          .send = send,
                                          .recv = recv,
                                          .count = count});
}

int rf_all_to_all(struct rf_comm *comm, const void *send, void *recv, size_t count,
                  enum rf_type type) {
    return rf_run(
        comm,
        &(struct rf_call){
            .coll = RF_COLL_ALL_TO_ALL, .type = type, .send = send, .recv = recv, .count = count});
}

int rf_send(struct rf_comm *comm, const void *send, size_t count, enum rf_type type, int peer) {
    return rf_run(
        comm, &(struct rf_call){
                  .coll = RF_COLL_SEND, .type = type, .root = peer, .send = send, .count = count});
}

int rf_recv(struct rf_comm *comm, void *recv, size_t count, enum rf_type type, int peer) {
    return rf_run(
        comm, &(struct rf_call){
                  .coll = RF_COLL_RECV, .type = type, .root = peer, .recv = recv, .count = count});
}

int rf_barrier(struct rf_comm *comm) {
    return rf_run(comm, &(struct rf_call){.coll = RF_COLL_BARRIER});
}
