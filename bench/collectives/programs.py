"""The programs that measure: building the peers', and running each with its ranks. What a run gives is {bytes: microseconds}."""
import contextlib
import dataclasses
import json
import os
import pathlib
import secrets
import subprocess
import tempfile
import time

import figures

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
BINARY = pathlib.Path(os.environ.get("RINGFOLD", str(ROOT / "build/bin/ringfold"))).resolve()
LIBRARY = BINARY.parent.parent / "lib"  # the one that this command runs with
DEADLINE_S = 1200  # of one run of one program; what takes longer hangs

PACKAGES = {"Open MPI": "openmpi-bin", "MPICH": "mpich", "Gloo": "libgloo-dev"}

# Every rank as if on a host of its own, and of the transports between hosts TCP alone.
MPICH_OVER_TCP = {"MPIR_CVAR_NOLOCAL": "1", "UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "lo"}
OPEN_MPI_OVER_TCP = ["--mca", "pml", "ob1", "--mca", "btl", "tcp,self"]


class Failed(Exception):
    """Something could not run: who, and why."""


class LeftOut(Exception):
    """Something that this build does not have, and need not: why."""


@dataclasses.dataclass(frozen=True)
class Sizes:
    first: int
    last: int
    factor: int = 4

    def words(self):
        return [str(self.first), str(self.last), str(self.factor)]


def environment(**more):
    """This process' own, without what a job of ours or of an MPI around it left there."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RINGFOLD", "OMPI_", "PMI_"))}
    return {**kept, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", **more}


def start(words, folder, **more):
    try:
        return subprocess.Popen(list(map(str, words)), cwd=folder, env=environment(**more), text=True,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    except OSError as problem:
        raise Failed(f"'{words[0]}' cannot be run: {problem.strerror}; tools/setup bench installs what this bench needs") \
            from problem


def stop(process):
    """Asked first, so that who starts others ends them."""
    if process.poll() is None:
        process.terminate()
        try:
            process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def finish(who, processes):
    """What the first of them printed, once all have ended well."""
    outputs, until = [], time.monotonic() + DEADLINE_S
    try:
        for process in processes:
            outputs.append(process.communicate(timeout=max(1, until - time.monotonic())))
    except subprocess.TimeoutExpired as problem:
        raise Failed(f"{who}: not done after {DEADLINE_S} s") from problem
    finally:
        for process in processes:
            stop(process)
    for process, (_, errors) in zip(processes, outputs):
        if process.returncode:
            said = " / ".join(line for line in errors.strip().splitlines()[-6:] if line.strip())
            raise Failed(f"{who}: exit status {process.returncode}: {said[-600:]}")
    return outputs[0][0]


@contextlib.contextmanager
def scratch():
    with tempfile.TemporaryDirectory(prefix="ringfold-bench-") as made:
        yield pathlib.Path(made)


# -------- building --------

def compile_with(words):
    try:
        done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False)
    except OSError as problem:
        raise Failed(f"building {words[-1]}: '{words[0]}' cannot be run: {problem.strerror}; tools/setup bench installs it") \
            from problem
    if done.returncode:
        raise Failed(f"building {words[-1]}: {words[0]} said: {done.stderr.strip()[-600:]}")


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
            "ddp_step": ["cc", "-std=gnu17", "-O3", "-march=native", "-ffp-contract=off", "-Wno-psabi", HERE / "ddp_step.c",
                         f"-I{ROOT / 'include'}", f"-L{LIBRARY}", "-lringfold", f"-Wl,-rpath,{LIBRARY}"],
        }[name]
        newest = max(path.stat().st_mtime for path in [*peers.iterdir(), HERE / "ddp_step.c"])
        if not out.exists() or out.stat().st_mtime < newest:
            compile_with(["cc", "-std=gnu17", "-O2", "-c", peers / "measure.c", "-o", measure])
            compile_with([*recipe, "-o", out])
        return out


def version_of(package):
    done = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", package], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else "not installed"


def own_version():
    return ask_binary("--version").split()[-1]


def bench_knows(option):
    """Whether this build's `ringfold bench` has the option."""
    return option in ask_binary("bench", "--help")


def ask_binary(*words):
    try:
        done = subprocess.run([BINARY, *words], capture_output=True, text=True, env=environment(), check=False)
    except OSError as problem:
        raise Failed(f"'{BINARY}' cannot be run: {problem.strerror}; build it with 'make', or name another in RINGFOLD") \
            from problem
    if done.returncode:
        raise Failed(f"'{BINARY} {' '.join(words)}' said: {done.stderr.strip()[-300:]}")
    return done.stdout


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


@contextlib.contextmanager
def store_on(hosts, folder, key):
    """A store on the first host; gives its address."""
    key.write_bytes(secrets.token_bytes(32))
    key.chmod(0o600)
    store = start([*hosts.inside(0), BINARY, "store", "--bind", f"{hosts.address(0)}:0", "--key-file", key, "--json"], folder)
    try:
        first = store.stdout.readline()
        try:
            address = json.loads(first)["store"]
        except (ValueError, KeyError) as problem:
            store.terminate()
            said = (first + store.communicate()[1]).strip()[-300:]
            raise Failed(f"the store on {hosts.address(0)} said '{said}' and not where it listens") from problem
        yield address
    finally:
        stop(store)


def ours_on_hosts(hosts, collective, each, sizes, flags=()):
    """`each` ranks on every host, one host's in a row."""
    size = hosts.count * each
    with scratch() as folder, store_on(hosts, folder, folder / "key") as store:
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
