"""Workers that train something whose every step can be checked (tests/programs/trainee.c), started one by one."""
import json
import signal
import subprocess
import time

from helpers import BUILD, DEADLINE_S, RINGFOLD, environment, wait_for

TRAINEE = str(BUILD / "tests" / "trainee")


def order(folder, server, worker, text):
    """Rehearses a fault of that worker."""
    subprocess.run([RINGFOLD, "store", "put", f"rf/trainees/fault/{worker}", text, "--store", server.uri, "--key-file", "job.key"],
                   cwd=folder, env=environment(), check=True, timeout=DEADLINE_S, capture_output=True)


def flip_until(folder, server, condition):
    """A bit of worker 1 may be rounded away, or put right by a copy, before anybody compares: once more then."""
    asked = [0.0]

    def met():
        if time.monotonic() > asked[0] + 3 and not condition():
            order(folder, server, 1, "flip")
            asked[0] = time.monotonic()
        return condition()
    wait_for(met, "the flipped bit is found")


class Trainees:
    """Their commits and events are read from files as they come; killed at the end of the test."""

    def __init__(self, folder, store, size, minimum, steps=1000000, step_ms=20, **variables):
        self.folder, self.steps, self.step_ms = folder, steps, step_ms
        self.started, self.all = {}, []
        self.variables = {"RINGFOLD_JOB": "trainees", "RINGFOLD_STORE": store, "RINGFOLD_SIZE": str(size),
                          "RINGFOLD_MIN_SIZE": str(minimum), "RINGFOLD_MAX_SIZE": str(2 * size),
                          "RINGFOLD_KEY_FILE": str(folder / "job.key"), "RINGFOLD_EVENT_FD": "2",
                          "RINGFOLD_DETECT": "500ms", **variables}

    def start(self, worker, before=(), extra=(), **variables):
        restarts = self.started.get(worker, -1) + 1
        self.started[worker] = restarts
        name = f"{worker}.{restarts}"
        out, err = open(self.folder / f"{name}.out", "w"), open(self.folder / f"{name}.err", "w")
        process = subprocess.Popen(
            [*before, TRAINEE, str(self.steps), str(self.step_ms), *map(str, extra)], stdout=out, stderr=err,
            env=environment(**{**self.variables, "RINGFOLD_RANK": str(worker), "RINGFOLD_ID": str(worker),
                               "RINGFOLD_RESTARTS": str(restarts), **variables}))
        out.close()
        err.close()
        process.worker, process.name = worker, name
        self.all.append(process)
        return process

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.all:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait(timeout=DEADLINE_S)

    def lines(self, process, kind):
        text = (self.folder / f"{process.name}.{kind}").read_text()
        whole = text[:text.rfind("\n") + 1]
        return [json.loads(line) for line in whole.splitlines() if line.startswith("{")]

    def commits(self, process):
        return [line for line in self.lines(process, "out") if line["event"] == "commit"]

    def events(self, process, kind):
        return [line for line in self.lines(process, "err") if line["event"] == kind]

    def last(self, process):
        found = self.commits(process)
        return found[-1] if found else {"step": -1, "size": 0, "generation": 0}

    def wait_for_steps(self, processes, more=5, size=None):
        """Each of them commits so many more steps, in a group of that size where one is given."""
        first = {p: self.last(p)["step"] for p in processes}

        def reached():
            return all(self.last(p)["step"] >= first[p] + more and size in (None, self.last(p)["size"])
                       for p in processes)
        wait_for(reached, f"{more} more steps of workers {[p.worker for p in processes]} in a group of {size}")

    def stop(self, processes):
        """Asks one to stop all; every one of them ends well, with the same value."""
        processes[0].send_signal(signal.SIGTERM)
        ends = []
        for process in processes:
            process.wait(timeout=DEADLINE_S)
            last = self.lines(process, "out")[-1]
            assert process.returncode == 0 and last["event"] == "done", (process.name, last)
            ends.append((last["steps"], last["value"]))
        assert len(set(ends)) == 1, ends

    def check_history(self, but=()):
        """One history: whoever committed a unit, whenever, committed the same, and no step is missing. `but`: starts
        that were to fail."""
        history = {}
        for process in self.all:
            wrong = process.name not in but and [line for line in self.lines(process, "out") if line["event"] in ("wrong", "error")]
            assert not wrong, (process.name, wrong)
            for commit in self.commits(process):
                unit = (commit["step"], commit["measure"])
                assert history.setdefault(unit, commit["digest"]) == commit["digest"], (process.name, commit)
        steps = sorted(step for step, measure in history if not measure)
        assert steps == list(range(len(steps))), "a step is missing"
        return history
