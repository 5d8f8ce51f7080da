"""What several system tests need: where the binaries are, waiting for conditions, a store, workers started by hand."""
import json
import os
import pathlib
import re
import struct
import subprocess
import time

BUILD = pathlib.Path(os.environ["RINGFOLD_BUILD"]).resolve()
RINGFOLD = str(BUILD / "bin" / "ringfold")
WORKER = str(BUILD / "tests" / "worker")
DEADLINE_S = 60
KEY = bytes(range(32))


def environment(**more):
    kept = {k: v for k, v in os.environ.items() if not k.startswith("RINGFOLD_")}
    return {**kept, "OMP_NUM_THREADS": "1", **more}


def wait_for(condition, what, process=None):
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        if process and process.poll() is not None:
            raise AssertionError(f"ended before {what}: {process.communicate()}")
        time.sleep(0.01)
    raise AssertionError("never happened: " + what)


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat_file:
            return stat_file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def reports(text):
    """Reports on the whole screen, wherever in a line they are."""
    return text.count("error[RF")


def said(text):
    """The JSON lines among what was written, by rank."""
    found = {}
    for line in text.splitlines():
        if line.startswith("{"):
            entry = json.loads(line)
            found.setdefault(entry["rank"], []).append(entry)
    return found


def last_words(text, size):
    """The last line of each of `size` workers."""
    found = said(text)
    assert sorted(found) == list(range(size)), text
    return [found[rank][-1] for rank in range(size)]


def launcher(folder, n, *words, transport=None, program=WORKER, flags=()):
    """Arguments and options for a run whose workers' output is passed on as it is."""
    words = [RINGFOLD, "run", "-n", n, "-q", "--prefix", "none", "--run-dir", folder / "run", *flags,
             *(["--transport", transport] if transport else []), "--", program, *words]
    return list(map(str, words))


def run_workers(folder, n, *words, deadline_s=DEADLINE_S, **more):
    return subprocess.run(launcher(folder, n, *words, **more), cwd=folder, env=environment(),
                          timeout=deadline_s, capture_output=True, text=True)


class Server:
    """A store that has said where it listens; killed at the end of the test if it still runs."""

    def __init__(self, folder, bind="127.0.0.1:0", before=(), more=()):
        (folder / "job.key").write_bytes(KEY)
        self.folder = folder
        self.process = subprocess.Popen(
            [*before, RINGFOLD, "store", "--bind", bind, "--key-file", "job.key", *more],
            cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.line = self.process.stdout.readline().decode()
        found = re.search(r'tcp://[^\s",]+:(\d+)', self.line)
        if not found:
            raise AssertionError(self.process.communicate(timeout=DEADLINE_S))
        self.uri = found.group(0)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate(timeout=DEADLINE_S)

    def keys(self, before=()):
        done = subprocess.run([*before, RINGFOLD, "store", "list", "--store", self.uri, "--key-file", "job.key"],
                              cwd=self.folder, env=environment(), timeout=DEADLINE_S, capture_output=True,
                              text=True)
        assert done.returncode == 0, done.stderr
        return [line.split("\t")[1] for line in done.stdout.splitlines()]


class ByHand:
    """Workers started without a launcher, each with its variables; killed at the end of the test."""

    def __init__(self, folder, store, size, **variables):
        self.folder, self.all = folder, []
        self.variables = {"RINGFOLD_JOB": "by-hand", "RINGFOLD_STORE": store, "RINGFOLD_SIZE": str(size),
                          "RINGFOLD_KEY_FILE": str(folder / "job.key"), **variables}

    def start(self, rank, *words, before=(), **variables):
        process = subprocess.Popen([*before, WORKER, *map(str, words)], cwd=self.folder, text=True,
                                   env=environment(**{**self.variables, "RINGFOLD_RANK": str(rank), **variables}),
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.all.append(process)
        return process

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.all:
            if process.poll() is None:
                process.kill()
            process.communicate()


def end_of(process):
    """Exit status, the JSON object it wrote last, and what it complained of."""
    out, err = process.communicate(timeout=DEADLINE_S)
    lines = [json.loads(line) for line in out.splitlines()]
    return process.returncode, lines[-1] if lines else None, err


def read_event(process, event):
    """Waits for a line of that kind on the worker's stdout; the process ends at latest by its own deadlines."""
    for line in process.stdout:
        found = json.loads(line)
        if found["event"] == event:
            return found
        assert found["event"] == "running", found
    raise AssertionError(f"ended without '{event}': {process.communicate()}")


def safetensors(path):
    """Name to (shape, raw little-endian bytes) of a safetensors file; the format is checked."""
    whole = path.read_bytes()
    (length,) = struct.unpack("<Q", whole[:8])
    assert length % 8 == 0 and length <= 100_000_000
    header = json.loads(whole[8:8 + length])
    assert header.pop("__metadata__") == {"format": "pt"}
    found, at = {}, 0
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        assert entry["dtype"] == "F32" and begin == at
        found[name] = (entry["shape"], whole[8 + length + begin:8 + length + end])
        at = end
    assert 8 + length + at == len(whole)
    return found
