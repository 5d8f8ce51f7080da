"""The programs that measure: building the peers', and running each with its ranks. What a run gives is {bytes: microseconds}."""
import dataclasses
import os
import pathlib

import figures
from common.processes import (BINARY, LIBRARY, ROOT, Failed, LeftOut, ask, compile_with, finish, scratch, start,  # noqa: F401
                              store_on, version_of)

HERE = pathlib.Path(__file__).resolve().parent

PACKAGES = {"Open MPI": "openmpi-bin", "MPICH": "mpich", "Gloo": "libgloo-dev"}

# Every rank as if on a host of its own, and of the transports between hosts TCP alone.
MPICH_OVER_TCP = {"MPIR_CVAR_NOLOCAL": "1", "UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "lo"}
OPEN_MPI_OVER_TCP = ["--mca", "pml", "ob1", "--mca", "btl", "tcp,self"]


@dataclasses.dataclass(frozen=True)
class Sizes:
    first: int
    last: int
    factor: int = 4

    def words(self):
        return [str(self.first), str(self.last), str(self.factor)]


# -------- building --------

class Built:
    """The programs of peers/, each built when it is first asked for."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def __call__(self, name):
        out, peers, measure = self.folder / name, HERE / "peers", self.folder / "measure.o"
        recipe = {
            "openmpi": ["mpicc.openmpi", "-O2", peers / "mpi.c", measure],
            "mpich": ["mpicc.mpich", "-O2", peers / "mpi.c", measure],
            "gloo": ["g++", "-std=c++17", "-O2", peers / "gloo.cc", measure, "-lgloo", "-pthread"],
            "limits": ["cc", "-std=gnu17", "-O3", "-march=native", "-pthread", peers / "limits.c", measure],
            "tcp_limit": ["cc", "-std=gnu17", "-O2", peers / "tcp_limit.c", measure],
            "ddp_step": ["cc", "-std=gnu17", "-O3", "-march=native", "-ffp-contract=off", "-Wno-psabi", peers / "ddp_step.c",
                         f"-I{ROOT / 'include'}", f"-L{LIBRARY}", "-lringfold", f"-Wl,-rpath,{LIBRARY}"],
        }[name]
        newest = max(path.stat().st_mtime for path in peers.iterdir())
        if name == "ddp_step" or not out.exists() or out.stat().st_mtime < newest:  # that one of the library of this run
            compile_with(["cc", "-std=gnu17", "-O2", "-c", peers / "measure.c", "-o", measure])
            compile_with([*recipe, "-o", out])
        return out


def own_version():
    return ask_binary("--version").split()[-1]


def bench_knows(option):
    """Whether this build's `ringfold bench` has the option."""
    return option in ask_binary("bench", "--help")


def ask_binary(*words):
    return ask(BINARY, *words)


# -------- ours --------

def ours(collective, ranks, sizes, flags=()):
    """On this host, under ringfold run. all_to_all is out of place everywhere in this bench: where MPI users have it."""
    place = ["--out-of-place"] if collective == "all_to_all" else []
    with scratch() as folder:
        words = [BINARY, "run", "-n", ranks, "-q", "--prefix", "none", "--", BINARY, "bench", collective, "-b", sizes.first,
                 "-e", sizes.last, "-f", sizes.factor, "--json", *place, *flags]
        return figures.parse(finish(figures.OURS, [start(words, folder)]), figures.OURS)


def ddp_step(built, ranks, compute_ms, steps, bucket_bytes):
    """Steps of data-parallel training on this host: {milliseconds of computing: figures of ddp_step.c}."""
    with scratch() as folder:
        words = [BINARY, "run", "-n", ranks, "-q", "--prefix", "none", "--", built("ddp_step"), steps,
                 ",".join(map(str, compute_ms)), *([bucket_bytes] if bucket_bytes else [])]
        return figures.parse_steps(finish("ddp_step", [start(words, folder)]), "ddp_step")


def ours_on_hosts(hosts, collective, each, sizes, flags=()):
    """`each` ranks on every host, one host's in a row."""
    size = hosts.count * each
    with scratch() as folder, store_on(BINARY, hosts, folder, folder / "key") as store:
        ranks = []
        for rank in range(size):
            place = {"RINGFOLD_JOB": "bench", "RINGFOLD_RANK": str(rank), "RINGFOLD_SIZE": str(size),
                     "RINGFOLD_LOCAL_RANK": str(rank % each), "RINGFOLD_LOCAL_SIZE": str(each), "RINGFOLD_STORE": store,
                     "RINGFOLD_KEY_FILE": str(folder / "key"), "RINGFOLD_START_TIMEOUT": "60s"}
            words = [*hosts.inside(rank // each), BINARY, "bench", collective, "-b", sizes.first, "-e", sizes.last, "-f",
                     sizes.factor, "--json", *flags]
            ranks.append(start(words, folder, **place))
        who = f"{figures.OURS} on {hosts.count} hosts"
        return figures.parse(finish(who, ranks), who)


# -------- peers --------

def open_mpi(built, collective, ranks, sizes, flags=()):
    with scratch() as folder:
        more = ["--oversubscribe"] if ranks > len(os.sched_getaffinity(0)) else []
        words = ["mpirun.openmpi", *flags, *more, "-n", ranks, built("openmpi"), collective, *sizes.words()]
        return figures.parse(finish("Open MPI", [start(words, folder)]), "Open MPI")


def mpich(built, collective, ranks, sizes, more=()):
    with scratch() as folder:
        words = ["mpiexec.mpich", "-n", ranks, built("mpich"), collective, *sizes.words()]
        return figures.parse(finish("MPICH", [start(words, folder, **dict(more))]), "MPICH")


def gloo(built, collective, ranks, sizes, hosts=None):
    """On loopback, or as many ranks on each of the hosts."""
    with scratch() as folder:
        (folder / "meet").mkdir()
        processes = []
        for rank in range(ranks):
            host = rank * hosts.count // ranks if hosts else None
            inside = hosts.inside(host) if hosts else []
            address = hosts.address(host) if hosts else "127.0.0.1"
            words = [*inside, built("gloo"), rank, ranks, folder / "meet", address, collective, *sizes.words()]
            processes.append(start(words, folder))
        return figures.parse(finish("Gloo", processes), "Gloo")


# -------- references --------

def memory_limit(built, threads, sizes):
    with scratch() as folder:
        return figures.parse(finish("memory limit", [start([built("limits"), threads, *sizes.words()], folder)]),
                             "memory limit")


def socket_limit(built, sizes):
    with scratch() as folder:
        return figures.parse(finish("plain sockets", [start([built("tcp_limit"), *sizes.words()], folder)]), "plain sockets")
