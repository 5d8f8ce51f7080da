/* The collectives of Gloo over its TCP transport, timed as measure.h says. Its reduce_scatter is
 * the one of its older interface, an object made once for each size, as there is no newer one.
 *
 * Usage: gloo RANK SIZE FOLDER ADDRESS COLLECTIVE MIN MAX FACTOR
 * Ranks meet in FOLDER, and each listens at its own ADDRESS. */
#include "measure.h"

#include <cstdlib>
#include <exception>
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/alltoall.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/math.h>
#include <gloo/reduce_scatter.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <map>
#include <memory>
#include <vector>

namespace {

using Scatter = gloo::ReduceScatterHalvingDoubling<float>;

struct Peer {
    std::shared_ptr<gloo::rendezvous::Context> group;
    std::map<size_t, std::unique_ptr<Scatter>> scatters; // by count
};

Peer &peer_of(struct measure *m) {
    return *static_cast<Peer *>(m->context);
}

void barrier(struct measure *m) {
    gloo::BarrierOptions options(peer_of(m).group);
    gloo::barrier(options);
}

void largest(struct measure *m, double *values, int count) {
    gloo::AllreduceOptions options(peer_of(m).group);
    void (*fold)(void *, const void *, const void *, size_t) = &gloo::max<double>;
    options.setOutput(values, static_cast<size_t>(count));
    options.setReduceFunction(fold);
    gloo::allreduce(options);
}

void run_allreduce(struct measure *m, size_t count) {
    gloo::AllreduceOptions options(peer_of(m).group);
    void (*fold)(void *, const void *, const void *, size_t) = &gloo::sum<float>;
    options.setOutput(m->memory, count);
    options.setReduceFunction(fold);
    gloo::allreduce(options);
}

void run_all_gather(struct measure *m, size_t count) {
    gloo::AllgatherOptions options(peer_of(m).group);
    options.setOutput(m->memory, count * static_cast<size_t>(m->size));
    gloo::allgather(options); // in place where there is no input
}

void run_reduce_scatter(struct measure *m, size_t count) {
    std::unique_ptr<Scatter> &scatter = peer_of(m).scatters[count];
    if (!scatter) {
        std::vector<int> parts(static_cast<size_t>(m->size), static_cast<int>(count));
        scatter.reset(
            new Scatter(peer_of(m).group, {m->memory}, static_cast<int>(count) * m->size, parts));
    }
    scatter->run();
}

void run_broadcast(struct measure *m, size_t count) {
    gloo::BroadcastOptions options(peer_of(m).group);
    options.setOutput(m->memory, count);
    options.setRoot(m->root);
    gloo::broadcast(options);
}

void run_all_to_all(struct measure *m, size_t count) {
    gloo::AlltoallOptions options(peer_of(m).group);
    options.setInput(m->memory, count * static_cast<size_t>(m->size));
    options.setOutput(m->other, count * static_cast<size_t>(m->size));
    gloo::alltoall(options);
}

void call(struct measure *m, size_t count) {
    switch (m->coll) {
    case ALLREDUCE:
        run_allreduce(m, count);
        break;
    case ALL_GATHER:
        run_all_gather(m, count);
        break;
    case REDUCE_SCATTER:
        run_reduce_scatter(m, count);
        break;
    case BROADCAST:
        run_broadcast(m, count);
        break;
    case ALL_TO_ALL:
        run_all_to_all(m, count);
        break;
    case COLL_COUNT:
        break;
    }
}

size_t run(char **argv) {
    struct measure m = {};
    Peer peer;
    m.rank = std::atoi(argv[1]);
    m.size = std::atoi(argv[2]);
    m.barrier = barrier;
    m.call = call;
    m.largest = largest;
    m.context = &peer;
    measure_parse(&m, argv[5], argv[6], argv[7], argv[8]);
    gloo::transport::tcp::attr address(argv[4]);
    auto device = gloo::transport::tcp::CreateDevice(address);
    gloo::rendezvous::FileStore store(argv[3]);
    peer.group = std::make_shared<gloo::rendezvous::Context>(m.rank, m.size);
    peer.group->connectFullMesh(store, device);
    measure_open(&m);
    size_t wrong = measure_all(&m);
    barrier(&m); // nobody closes while another still waits
    peer.scatters.clear();
    measure_close(&m);
    return wrong;
}

} // namespace

int main(int argc, char **argv) {
    size_t wrong = 0;
    if (argc != 9) {
        measure_fail("usage: gloo RANK SIZE FOLDER ADDRESS COLLECTIVE MIN MAX FACTOR");
    }
    try {
        wrong = run(argv);
    } catch (const std::exception &e) {
        measure_fail(e.what());
    }
    return wrong ? EXIT_FAILURE : EXIT_SUCCESS;
}
