"""The programs that train: ours and PyTorch's, alone, on this host or on hosts of their own, and the data they train on. What a
run gives is {figure: value} (figures.parse)."""
import base64
import functools
import glob
import os
import pathlib
import random
import string
import subprocess

from common import processes
from common.processes import Failed

from . import figures

HERE = pathlib.Path(__file__).resolve().parent
FASHION = pathlib.Path("/usr/share/datasets/fashion-mnist")
PORT = 29517  # where PyTorch's ranks meet

# What both are given: GPT-2's usual ones, of which ours has them by default.
LEARNING = {"lr": 1e-3, "beta2": 0.95, "weight-decay": 0.1, "clip": 1.0}


def words_of(options):
    return [word for name, value in options.items() for word in (f"--{name}", str(value))]


# -------- PyTorch's surroundings --------

def has_avx512():
    return "avx512f" in pathlib.Path("/proc/cpuinfo").read_text()


def has_bf16():
    return any(flag in pathlib.Path("/proc/cpuinfo").read_text() for flag in ("avx512_bf16", "amx_bf16"))


@functools.lru_cache
def blas_folder():
    """OpenBLAS's own folder, or None: then PyTorch takes what the system has, of which Debian's default is many times slower."""
    given = os.environ.get("BENCH_BLAS")
    found = [given] if given else sorted(glob.glob("/usr/lib/*/openblas-serial") + glob.glob("/usr/lib/*/openblas-pthread"))
    return next((folder for folder in found if (pathlib.Path(folder) / "libblas.so.3").exists()), None)


def torch_environment():
    """PyTorch at its best: OpenBLAS and vectors of the processor's full width (Debian's OpenBLAS does not know every processor
    that has them), and an allocator that does not hand each activation's pages back to the kernel."""
    made = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": str(1 << 32),
            "MALLOC_TRIM_THRESHOLD_": str(1 << 32), "PYTHONDONTWRITEBYTECODE": "1"}
    if has_avx512():
        made |= {"OPENBLAS_CORETYPE": "SkylakeX", "ATEN_CPU_CAPABILITY": "avx512"}
    if blas_folder():
        made["LD_LIBRARY_PATH"] = ":".join(filter(None, [blas_folder(), os.environ.get("LD_LIBRARY_PATH")]))
    return made


def torch_is_there():
    return subprocess.run(["/usr/bin/python3", "-c", "import torch"], capture_output=True, check=False).returncode == 0


def about_torch():
    blas = pathlib.Path(blas_folder()).name if blas_folder() else "the system's libblas, as OpenBLAS is not installed"
    chosen = " ".join(f"{name}={value}" for name, value in torch_environment().items()
                      if name.startswith(("OPENBLAS", "ATEN", "MALLOC")))
    return f"PyTorch at its best here: {blas}, {chosen}"


# -------- runs --------

def torch(program, options, units, ranks=1, hosts=None, who=figures.TORCH):
    """`ranks` processes of a program of peers/, all here or one on each host."""
    with processes.scratch() as folder:
        started = []
        for rank in range(ranks):
            inside = hosts.inside(rank) if hosts else []
            device = {"GLOO_SOCKET_IFNAME": "eth0" if hosts else "lo"}
            place = {"RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_PORT": str(PORT),
                     "MASTER_ADDR": hosts.address(0) if hosts else "127.0.0.1"} if ranks > 1 else {}
            words = [*inside, "/usr/bin/python3", HERE / "peers" / f"{program}.py", *words_of(options)]
            started.append(processes.start(words, folder, **place, **device, **torch_environment()))
        return figures.parse(processes.finish(who, started), who, units)


def trainer(model, options, log, run):
    return [processes.BINARY, "train", model, *words_of(options), "--log", log, "--run-dir", run, "-q"]


def ours(model, options, units, ranks=1, who=figures.OURS):
    with processes.scratch() as folder:
        log = folder / "log.jsonl"
        launcher = [processes.BINARY, "run", "-n", ranks, "-q", "--prefix", "none", "--"] if ranks > 1 else []
        words = [*launcher, *trainer(model, options, log, folder / "run")]
        processes.finish(who, [processes.start(words, folder, OMP_NUM_THREADS="1")])
        return figures.parse(log.read_text(), who, units)


def ours_apart(shape, data, steps, count):
    """So many jobs of one worker at once, that have nothing to do with each other: what the machine has to give."""
    options = gpt_options(shape, data, steps, shape.batch, {"eval-every": steps, "eval-samples": 8})
    with processes.scratch() as folder:
        logs = [folder / f"log{k}.jsonl" for k in range(count)]
        processes.finish(figures.OURS, [
            processes.start(trainer("gpt", options, log, f"{log}.run"), folder, OMP_NUM_THREADS="1") for log in logs])
        each = [figures.parse(log.read_text(), figures.OURS, gpt_units(shape, 1)) for log in logs]
        return each[0] | {"tokens_per_s": sum(one["tokens_per_s"] for one in each)}


def ours_on_hosts(model, options, units, hosts):
    """One worker on each host."""
    who = f"{figures.OURS} on {hosts.count} hosts"
    with processes.scratch() as folder, processes.store_on(processes.BINARY, hosts, folder, folder / "key") as store:
        log, started = folder / "log.jsonl", []
        for rank in range(hosts.count):
            place = {"RINGFOLD_JOB": "bench", "RINGFOLD_RANK": str(rank), "RINGFOLD_SIZE": str(hosts.count),
                     "RINGFOLD_LOCAL_RANK": "0", "RINGFOLD_LOCAL_SIZE": "1", "RINGFOLD_STORE": store,
                     "RINGFOLD_KEY_FILE": str(folder / "key"), "RINGFOLD_START_TIMEOUT": "60s"}
            words = [*hosts.inside(rank), *trainer(model, options, log, folder / f"run{rank}")]
            started.append(processes.start(words, folder, OMP_NUM_THREADS="1", **place))
        processes.finish(who, started)
        return figures.parse(log.read_text(), who, units)


def gpt_units(shape, ranks):
    return shape.batch * shape.context * ranks, "tokens_per_s"


def gpt_options(shape, data, steps, batch, more):
    return {"data": data, "depth": shape.depth, "heads": shape.heads, "width": shape.width, "context": shape.context,
            "batch": batch, "steps": steps, "warmup": min(100, steps // 10), **LEARNING, **more}


def ours_gpt(shape, data, steps, ranks=1, hosts=None, **more):
    options = gpt_options(shape, data, steps, shape.batch * ranks, {"eval-every": steps, "eval-samples": 8, **more})
    if hosts:
        return ours_on_hosts("gpt", options, gpt_units(shape, ranks), hosts)
    return ours("gpt", options, gpt_units(shape, ranks), ranks)


def torch_gpt(shape, data, steps, ranks=1, hosts=None, **more):
    options = gpt_options(shape, data, steps, shape.batch, {"vocabulary": shape.vocabulary, **more})
    return torch("torch_gpt", options, gpt_units(shape, ranks), ranks, hosts)


def sgemm_rate(work, seconds=1):
    """Operations a second of oneDNN's product of matrices on one thread."""
    out, source = work / "sgemm", HERE / "sgemm.c"
    if not out.exists() or out.stat().st_mtime < source.stat().st_mtime:
        processes.compile_with(["cc", "-std=gnu17", "-O2", source, "-ldnnl", "-o", out])
    with processes.scratch() as folder:
        text = processes.finish("sgemm", [processes.start([out, seconds], folder, OMP_NUM_THREADS="1")])
    return figures.flops_of(text)


# -------- data --------

def tokens(folder, text, *options):
    """A folder of tokens of a text, made once."""
    if not (folder / "tokenizer.json").exists():
        source = folder.with_suffix(".txt")
        source.write_bytes(text())
        processes.ask(processes.BINARY, "data", "tokens", source, "-o", folder, "--force", *options)
    return folder


def of_characters(work, count):
    """Text at random of so many characters: what a step costs does not depend on it."""
    def text():
        letters = (string.ascii_letters + string.digits + " \n.,;:!?'-")[:count]
        chosen = random.Random(count)
        return (letters + "".join(chosen.choices(letters, k=400_000)) + letters).encode()
    return tokens(work / f"characters-{count}", text)


def of_pairs(work, count):
    """Tokens of a vocabulary of GPT-2's size, by ranks that are made up: bytes, then pairs of them, and the end of a text."""
    def text():
        chosen = random.Random(count)
        return bytes(chosen.choices(range(97, 123), k=1_000_000))
    ranks = work / f"pairs-{count}.tiktoken"
    values = [bytes([k]) for k in range(256)] + [bytes(divmod(k, 256)) for k in range(count - 1 - 256)]
    ranks.write_text("".join(f"{base64.b64encode(value).decode()} {rank}\n" for rank, value in enumerate(values)))
    return tokens(work / f"pairs-{count}", text, "--tokenizer", "gpt2", "--ranks", ranks)


def king_james(work):
    """The King James Bible by characters, of Debian's bible-kjv, and how many characters there are."""
    def text():
        try:
            done = subprocess.run(["bible", "gen1:1-rev22:21"], stdin=subprocess.DEVNULL, capture_output=True, check=False)
        except OSError as problem:
            raise Failed(f"the text: 'bible' cannot be run: {problem.strerror}; tools/setup bench installs bible-kjv") from problem
        if done.returncode or len(done.stdout) < 1_000_000:
            raise Failed(f"the text: 'bible gen1:1-rev22:21' gave {len(done.stdout)} bytes: {done.stderr.decode()[-200:]}")
        return done.stdout
    folder = tokens(work / "king-james", text)
    return folder, figures.vocabulary_of((folder / "tokenizer.json").read_text())
