"""What is measured: each section is a list of contests, each contest a table of its own.

A section's function is a generator: it makes what its contests need (hosts), and yields contests with the sources to run. A
source is a function without arguments that gives {bytes: microseconds} or raises programs.Failed.
"""
import dataclasses
import functools

import figures
import programs
from common import hosts as namespaces
from programs import Sizes

KI, MI = 1 << 10, 1 << 20
RATE = "1gbit"


@dataclasses.dataclass
class Contest:
    section: str
    title: str
    collective: str
    ranks: int
    sources: dict  # name: function
    references: tuple = ()
    link: object = None  # a function that gives bytes a second; else None
    kind: str = ""  # "bytes": the sources give bytes on the wire of one call, not times; "step": what ddp_step.c tells
    note: str = ""


class Plan:
    """What the sections ask for: the programs built, and the sizes, which the command line may narrow."""

    def __init__(self, built, first=None, last=None, factor=None):
        self.built, self.first, self.last, self.factor = built, first, last, factor

    def sizes(self, first, last, factor=4):
        """The section's own sizes where the command line names none; never beyond the section's last."""
        return Sizes(self.first or first, min(self.last, last) if self.last else last, self.factor or factor)


def peers_in_memory(plan, collective, ranks, sizes):
    part = functools.partial
    return {"Open MPI": part(programs.open_mpi, plan.built, collective, ranks, sizes),
            "MPICH": part(programs.mpich, plan.built, collective, ranks, sizes),
            "Gloo": part(programs.gloo, plan.built, collective, ranks, sizes)}


def peers_over_tcp(plan, collective, sizes):
    part = functools.partial
    return {"Open MPI": part(programs.open_mpi, plan.built, collective, 2, sizes, programs.OPEN_MPI_OVER_TCP),
            "MPICH": part(programs.mpich, plan.built, collective, 2, sizes, tuple(programs.MPICH_OVER_TCP.items())),
            "Gloo": part(programs.gloo, plan.built, collective, 2, sizes)}


def ours(collective, ranks, sizes, *flags):
    return {figures.OURS: functools.partial(programs.ours, collective, ranks, sizes, flags)}


def shm(plan):
    sizes = plan.sizes(4, 256 * MI)
    limit = {"memory limit": functools.partial(programs.memory_limit, plan.built, 2, sizes)}
    yield Contest("shm", "2 ranks, buffers from rf_mem_alloc", "allreduce", 2,
                  {**ours("allreduce", 2, sizes, "--transport", "shm"), **peers_in_memory(plan, "allreduce", 2, sizes), **limit},
                  references=("memory limit",))


def private(plan):
    sizes = plan.sizes(4, 256 * MI)
    yield Contest("private", "2 ranks, buffers from malloc", "allreduce", 2,
                  {**ours("allreduce", 2, sizes, "--transport", "shm", "--private"),
                   **peers_in_memory(plan, "allreduce", 2, sizes)})


def many(plan):
    for ranks in (4, 8):
        sizes = plan.sizes(4, 64 * MI)
        yield Contest("many", f"{ranks} ranks, buffers from rf_mem_alloc", "allreduce", ranks,
                      {**ours("allreduce", ranks, sizes, "--transport", "shm"),
                       **peers_in_memory(plan, "allreduce", ranks, sizes)})


def tcp(plan):
    sizes = plan.sizes(4, 64 * MI)
    limit = {"plain sockets": functools.partial(programs.socket_limit, plan.built, sizes)}
    yield Contest("tcp", "2 ranks over TCP on loopback", "allreduce", 2,
                  {**ours("allreduce", 2, sizes, "--transport", "tcp"), **peers_over_tcp(plan, "allreduce", sizes), **limit},
                  references=("plain sockets",))


def hosts(plan):
    for count in (4, 8):
        sizes = plan.sizes(64 * KI, 64 * MI)
        with namespaces.Hosts(count, RATE) as made:
            yield Contest("hosts", f"{count} hosts, links of 1 Gbit/s", "allreduce", count,
                          {figures.OURS: functools.partial(programs.ours_on_hosts, made, "allreduce", 1, sizes),
                           "Gloo": functools.partial(programs.gloo, plan.built, "allreduce", count, sizes, made)},
                          link=made.link_bytes_per_second)


def collectives(plan):
    for transport in ("shm", "tcp"):
        for collective in ("all_gather", "reduce_scatter", "broadcast", "all_to_all"):
            sizes = plan.sizes(64, 64 * MI, 16)
            peers = peers_in_memory(plan, collective, 2, sizes) if transport == "shm" else \
                peers_over_tcp(plan, collective, sizes)
            where = "shared memory" if transport == "shm" else "TCP on loopback"
            yield Contest("collectives", f"2 ranks, {where}", collective, 2,
                          {**ours(collective, 2, sizes, "--transport", transport), **peers})


def bytes_of_a_call(made, source, size):
    """What the first host's interface sends for one allreduce: the difference of a run of many calls and one of few, so that
    meeting and parting count for nothing. `source` runs so many calls."""
    few, many_calls = 2, 12
    sent = []
    for calls in (few, many_calls):
        before = made.sent_bytes(0)
        source(calls)
        sent.append(made.sent_bytes(0) - before)
    return {size: (sent[1] - sent[0]) / (many_calls - few)}


def two(plan):
    """Several ranks a host: do the bytes between hosts grow with the ranks on them?"""
    size = min(plan.last, 16 * MI) if plan.last else 16 * MI
    with namespaces.Hosts(2, RATE) as made:
        def on(each):
            def run(calls):
                flags = ("--warmup", "0", "--check", "0", "--iterations", calls)
                programs.ours_on_hosts(made, "allreduce", each, Sizes(size, size, 2), flags)
            return functools.partial(bytes_of_a_call, made, run, size)
        yield Contest("two", "bytes from host to host, 2 hosts", "allreduce", 4,
                      {"1 rank a host": on(1), "2 ranks a host": on(2)}, kind="bytes",
                      note="Payload, headers and acknowledgements as the interface counts them, of one allreduce.")


WIRE_TYPES = ("bf16", "int8")


def wire(plan):
    """Sums that travel compressed, against our own that do not. Only where this build has them."""
    if not programs.bench_knows("--wire"):
        raise programs.LeftOut("this build's 'ringfold bench' has no --wire")
    sizes = plan.sizes(64 * KI, 64 * MI)
    with namespaces.Hosts(4, RATE) as made:
        for wire_type in WIRE_TYPES:
            yield Contest("wire", f"{wire_type} between 4 hosts, links of 1 Gbit/s", "allreduce", 4,
                          {figures.OURS: functools.partial(programs.ours_on_hosts, made, "allreduce", 1, sizes,
                                                           ("--wire", wire_type)),
                           "float32": functools.partial(programs.ours_on_hosts, made, "allreduce", 1, sizes)})


STEPS = 15  # of one run, after those that warm up
COMPUTE_MS = (0, 50)


def step(plan):
    """What a step of data-parallel training costs beside the folding alone, by how its gradients are handed over."""
    def source(bucket_bytes):
        return functools.partial(programs.ddp_step, plan.built, 2, COMPUTE_MS, STEPS, bucket_bytes)
    yield Contest("step", "2 ranks, a model of 100 MB", "allreduce", 2,
                  {figures.OURS: source(0), "buckets of 1 MiB": source(MI)}, kind="step",
                  note="Milliseconds of CPU time on each of the two ranks. A step: all threads of the process from begin to commit, "
                       "less what the caller's own computing took, which writes its "
                       "gradients where rf_ddp_grad_fresh says (with rf_ddp_grad their zeroing would count too). The folding alone: out of place, from memory that both ranks "
                       "share, plain or streaming stores, whichever is cheaper; steps and foldings alternate, and the averages are "
                       "the same bit for bit. Of the commit's time the most is the digest of the averages, which each rank reads "
                       "once more to hold its own against the others'. Exposed: waited for, beside what others still computed.")


SECTIONS = {"shm": shm, "private": private, "many": many, "tcp": tcp, "hosts": hosts, "two": two, "collectives": collectives,
            "wire": wire, "step": step}
