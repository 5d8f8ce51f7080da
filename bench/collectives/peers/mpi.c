/* The collectives of an MPI, timed as measure.h says: one source, built with Open MPI's and with
 * MPICH's compiler.
 *
 * Usage: mpirun -n N mpi COLLECTIVE MIN MAX FACTOR */
#include "measure.h"

#include <limits.h>
#include <mpi.h>
#include <stdlib.h>

static void must(int rc, const char *what) {
    if (rc != MPI_SUCCESS) {
        measure_fail(what);
    }
}

static void barrier(struct measure *m) {
    (void)m;
    must(MPI_Barrier(MPI_COMM_WORLD), "MPI_Barrier failed");
}

static void largest(struct measure *m, double *values, int count) {
    (void)m;
    must(MPI_Allreduce(MPI_IN_PLACE, values, count, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD),
         "MPI_Allreduce of the times failed");
}

static void call(struct measure *m, size_t elements) {
    int count = (int)elements, rc = MPI_SUCCESS;
    MPI_Comm world = MPI_COMM_WORLD;
    switch (m->coll) {
    case ALLREDUCE:
        rc = MPI_Allreduce(MPI_IN_PLACE, m->memory, count, MPI_FLOAT, MPI_SUM, world);
        break;
    case ALL_GATHER:
        rc = MPI_Allgather(MPI_IN_PLACE, 0, MPI_FLOAT, m->memory, count, MPI_FLOAT, world);
        break;
    case REDUCE_SCATTER:
        rc = MPI_Reduce_scatter_block(MPI_IN_PLACE, m->memory, count, MPI_FLOAT, MPI_SUM, world);
        break;
    case BROADCAST:
        rc = MPI_Bcast(m->memory, count, MPI_FLOAT, m->root, world);
        break;
    case ALL_TO_ALL:
        rc = MPI_Alltoall(m->memory, count, MPI_FLOAT, m->other, count, MPI_FLOAT, world);
        break;
    case COLL_COUNT:
        break;
    }
    must(rc, "the collective failed");
}

int main(int argc, char **argv) {
    struct measure m = {.barrier = barrier, .call = call, .largest = largest};
    must(MPI_Init(&argc, &argv), "MPI_Init failed");
    must(MPI_Comm_rank(MPI_COMM_WORLD, &m.rank), "MPI_Comm_rank failed");
    must(MPI_Comm_size(MPI_COMM_WORLD, &m.size), "MPI_Comm_size failed");
    if (argc != 5) {
        measure_fail("usage: mpirun -n N mpi COLLECTIVE MIN MAX FACTOR");
    }
    measure_parse(&m, argv[1], argv[2], argv[3], argv[4]);
    if (m.max_bytes / sizeof(float) > INT_MAX) {
        measure_fail("MAX is more than an MPI call's count holds");
    }
    measure_open(&m);
    size_t wrong = measure_all(&m);
    measure_close(&m);
    MPI_Finalize();
    return wrong ? EXIT_FAILURE : EXIT_SUCCESS;
}
