"""Programs that a bench runs: where ours is, how others are built, started, waited for and named where they fail."""
import contextlib
import json
import os
import pathlib
import secrets
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BINARY = pathlib.Path(os.environ.get("RINGFOLD", str(ROOT / "build/bin/ringfold"))).resolve()
LIBRARY = BINARY.parent.parent / "lib"  # the one that this command runs with
DEADLINE_S = 1200  # of one run of one program; what takes longer hangs


class Failed(Exception):
    """Something could not run: who, and why."""


class LeftOut(Exception):
    """Something that this build does not have, and need not: why."""


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


def compile_with(words):
    try:
        done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False)
    except OSError as problem:
        raise Failed(f"building {words[-1]}: '{words[0]}' cannot be run: {problem.strerror}; tools/setup bench installs it") \
            from problem
    if done.returncode:
        raise Failed(f"building {words[-1]}: {words[0]} said: {done.stderr.strip()[-600:]}")


def version_of(package):
    done = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", package], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else "not installed"


def ask(binary, *words):
    try:
        done = subprocess.run([binary, *words], capture_output=True, text=True, env=environment(), check=False)
    except OSError as problem:
        raise Failed(f"'{binary}' cannot be run: {problem.strerror}; build it with 'make', or name another in RINGFOLD") \
            from problem
    if done.returncode:
        raise Failed(f"'{binary} {' '.join(words)}' said: {done.stderr.strip()[-300:]}")
    return done.stdout


@contextlib.contextmanager
def store_on(binary, hosts, folder, key):
    """A store on the first host; gives its address."""
    key.write_bytes(secrets.token_bytes(32))
    key.chmod(0o600)
    store = start([*hosts.inside(0), binary, "store", "--bind", f"{hosts.address(0)}:0", "--key-file", key, "--json"], folder)
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
