#!/usr/bin/python3
"""Stands in for `ringfold run` in the tests of `ringfold drill`: real processes that can be killed and frozen, and a group
that exists only in this one, which commits a unit every few milliseconds and writes down what a real job would.

The words after -- say how it goes wrong: steps=N (end well after N units), exit=N (with that status), differ (a worker
commits another digest after the first fault), lose (the group goes on without the last unit after the first fault), stuck (a
worker that was lost is never taken back), slow_start (nothing is ever committed), garbage (between the events stands what is
none, and lines come in pieces).
"""
import json
import os
import pathlib
import select
import signal
import subprocess
import sys
import time

BEAT_S, UNIT_S, RESTART_S = 0.005, 0.005, 0.05


def options(words):
    at = words.index("--")
    flags, command, i = {}, words[at + 1:], 0
    while i < at:
        has_value = i + 1 < at and not words[i + 1].startswith("--")
        flags[words[i].lstrip("-")] = words[i + 1] if has_value else True
        i += 2 if has_value else 1
    return flags, dict((word.split("=") + ["1"])[:2] for word in command)


class Worker:
    """A process that beats until it is killed or its launcher is gone."""

    def __init__(self, id):
        self.id, self.restarts = id, -1
        self.start()

    def start(self):
        self.restarts += 1
        self.pipe, end = os.pipe()
        os.set_blocking(self.pipe, False)
        parent = os.getpid()
        self.pid = os.fork()
        if not self.pid:
            os.setpgid(0, 0)
            os.close(self.pipe)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            while os.getppid() == parent:
                os.write(end, b".")
                time.sleep(BEAT_S)
            os._exit(0)
        try:
            os.setpgid(self.pid, self.pid)
        except OSError:
            pass
        os.close(end)
        self.beat = None
        self.gone_at = None

    def read(self, now):
        try:
            if os.read(self.pipe, 65536):
                self.beat = now
        except BlockingIOError:
            pass

    def end(self):
        """(exit code, signal) once the process has ended."""
        if self.gone_at is not None or os.waitpid(self.pid, os.WNOHANG)[0] == 0:
            return None
        self.gone_at = time.time()
        os.close(self.pipe)
        return (0, signal.SIGKILL)


class Group:
    def __init__(self, flags, behaviour):
        self.folder = pathlib.Path(flags["run-dir"])
        self.folder.mkdir(parents=True)
        (self.folder / "run.json").write_text("{}")
        self.events = open(self.folder / "events.jsonl", "w", buffering=1)
        self.commits = open(self.folder / "commits.jsonl", "w", buffering=1)
        self.behaviour, self.flags = behaviour, flags
        self.detect = int(flags["detect"].removesuffix("ms")) / 1000
        self.least, self.most = map(int, flags["workers"].split(":"))
        self.count = int(flags.get("nproc-per-node", self.most))
        self.generation, self.unit, self.members, self.struck = 1, 0, [], False
        self.cut, self.flips, self.orders_at, self.orders = {}, set(), 0, None
        self.retries = 0
        self.rubbish = ["\0\0\n", "{\n", "[]\n", "x" * 200000 + "\n", '{"event": "commit", "time": "now"}\n', "\n",
                        '{"event": "commit", "time": 1, "id": 1e9, "generation": 1, "unit": 1, "digest": "1"}\n',
                        '{"event": "commit", "time": 1, "id": 1, "generation": 1, "unit": 1, "digest": "xyz"}\n',
                        '{"event": "worker", "time": 1, "id": 1, "pid": -1}\n', "{" * 5000 + "\n"]
        self.workers = [Worker(id) for id in range(self.count)]
        self.tell("start", job="drill", workers=self.count, store=flags["store"], pids=[w.pid for w in self.workers])

    def tell(self, event, **more):
        print(json.dumps({"time": time.time(), "event": event, **more}), file=self.events)

    def tell_as(self, id, event, **more):
        self.tell(event, id=id, rank=self.members.index(id) if id in self.members else -1, size=len(self.members),
                  generation=self.generation, unit=self.unit, step=self.unit, **more)

    def read_orders(self):
        """What stands in the store under rf/drill/fault/, as often as a process for it costs little."""
        if self.orders is None and time.monotonic() > self.orders_at:
            self.orders_at = time.monotonic() + 0.05
            self.orders = subprocess.Popen(
                [os.environ["RINGFOLD_BINARY"], "store", "list", "rf/drill/fault/", "--store", self.flags["store"],
                 "--key-file", self.flags["key-file"], "--timeout", "0.2"],
                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        elif self.orders is not None and self.orders.poll() is not None:
            for line in self.orders.communicate()[0].splitlines():
                revision, key, value = line.split("\t")
                self.obey(int(revision), int(key.rsplit("/", 1)[1]), value)
            self.orders = None

    def obey(self, revision, id, value):
        if (id, revision) in self.flips:
            return
        self.flips.add((id, revision))
        if value == "flip":
            self.tell_as(id, "flip")
            self.tell_as(self.members[0], "diverged", peer=id, text="another state")
            self.tell_as(id, "heal", bytes=1000, seconds=0.001, donors=1)
        elif value.startswith("cut "):
            self.cut[id] = time.time() + int(value.split()[1]) / 1000

    def form(self, members, lost, reason):
        if self.members:
            self.struck |= bool(lost)
            for id in self.members:
                if id not in lost:
                    self.tell_as(id, "revoke", peer=lost[0] if lost else -1, text=reason)
            self.generation += 1
        joined = [id for id in members if id not in self.members]
        fresh = not self.members
        self.members = members
        for id in members:
            self.tell_as(id, "form", members=members, joined=joined, lost=lost, seconds=0.01, text=reason)
        for id in joined if not fresh else []:
            self.tell_as(id, "heal", bytes=1000, seconds=0.01, donors=1)
        if lost:
            self.retries = 1
            if "lose" in self.behaviour:
                self.unit += 1  # as if the one before had been committed

    def is_here(self, worker, now):
        silence = self.detect if worker.id in self.members else 3 * BEAT_S
        return (worker.gone_at is None and worker.beat is not None and now - worker.beat < silence + BEAT_S
                and self.cut.get(worker.id, 0) < now)

    def joiner(self):
        try:
            id, beat = (self.folder / "joiner").read_text().split()
            return [int(id)] if time.time() - float(beat) < 0.3 else []
        except (FileNotFoundError, ValueError):
            return []

    def step(self):
        now = time.time()
        for worker in self.workers:
            if worker.gone_at is None:
                if now >= self.cut.get(worker.id, 0):
                    worker.read(now)
                ended = worker.end()
                if ended:
                    self.tell("exit", id=worker.id, pid=worker.pid, exit_code=ended[0], signal=ended[1])
            elif now - worker.gone_at > RESTART_S and "stuck" not in self.behaviour:
                worker.start()
                self.tell("worker", id=worker.id, pid=worker.pid, restarts=worker.restarts)
        here = [w.id for w in self.workers if self.is_here(w, now)]
        lost = [id for id in self.members if id not in here + self.joiner()]
        silent = [w.id for w in self.workers if w.id in self.members and w.gone_at is None and now - w.beat > 0.1]
        members = sorted(here) + self.joiner()
        if not self.members and len(here) < self.count or len(here) < self.least or "slow_start" in self.behaviour:
            return
        if members != self.members:
            self.form(members, lost, "lost" if lost else "joined")
        elif not silent:  # else the group waits for it, until it is silent for too long
            self.commit()

    def commit(self):
        for i, id in enumerate(self.members):
            if "garbage" in self.behaviour:
                self.litter()
            digest = self.unit * 2654435761 + 17
            if "differ" in self.behaviour and self.struck and i == 1:
                digest += 1
            if id < 1000:
                print(json.dumps({"event": "commit", "time": time.time(), "id": id, "rank": i,
                                  "size": len(self.members), "generation": self.generation, "unit": self.unit,
                                  "step": self.unit + 1, "digest": f"{digest:x}", "samples": 64, "measure": False,
                                  "retries": self.retries, "redone": self.retries if i == 0 else 0,
                                  "seconds": 0.01}), file=self.commits)
        self.unit += 1
        self.retries = 0

    def litter(self):
        """Lines that are no events, and the first half of one that is; the other half comes with the commit."""
        if self.unit % 20 == 1 and self.rubbish:
            self.commits.write(self.rubbish.pop())
        self.commits.write('{"time": 1')
        self.commits.flush()
        self.commits.write('.5, "event": "commit", "id": 0, "unit": -1}\n')

    def finish(self):
        for worker in self.workers:
            if worker.gone_at is None:
                os.kill(worker.pid, signal.SIGKILL)
                os.waitpid(worker.pid, 0)
                self.tell("exit", id=worker.id, pid=worker.pid, exit_code=0, signal=0)
        if self.orders:
            self.orders.communicate()


def lead(flags, behaviour):
    group = Group(flags, behaviour)
    stopped = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
    while not stopped and group.unit < int(behaviour.get("steps", "1000000")):
        if "exit" in behaviour and group.unit > 50:
            print("the launcher has given up", file=sys.stderr)
            os._exit(int(behaviour["exit"]))
        group.step()
        group.read_orders()
        select.select([], [], [], UNIT_S)
    group.finish()
    return 75 if stopped else 0


def join(flags):
    """A worker of another launcher: it commits what the group commits, as long as that knows of it."""
    folder = pathlib.Path(flags["run-dir"])
    folder.mkdir(parents=True)
    other = folder.parent / "run"
    id = 1000 + int(folder.name.rsplit("-", 1)[1])
    worker = Worker(id)
    stopped = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
    with open(folder / "events.jsonl", "w", buffering=1) as events, \
            open(folder / "commits.jsonl", "w", buffering=1) as commits, open(other / "commits.jsonl") as others:
        print(json.dumps({"time": time.time(), "event": "start", "pids": [worker.pid]}), file=events)  # of no id
        print(json.dumps({"time": time.time(), "event": "worker", "id": id, "pid": worker.pid, "restarts": 0}),
              file=events)
        others.seek(0, os.SEEK_END)
        others.readline()
        seen, rest, first = -1, "", True
        while not stopped:
            (folder / "beat").write_text(f"{id} {time.time()}")
            os.replace(folder / "beat", other / "joiner")
            *lines, rest = (rest + others.read()).split("\n")
            for line in lines:
                commit = json.loads(line)
                if commit["unit"] > seen and commit["size"] > commit["rank"] + 1:
                    seen = commit["unit"]
                    if first:
                        print(json.dumps({**commit, "event": "heal", "id": id, "time": time.time()}), file=events)
                    first = False
                    print(json.dumps({**commit, "id": id, "time": time.time(), "redone": 0}), file=commits)
            worker.read(time.time())
            select.select([], [], [], UNIT_S)
        os.kill(worker.pid, signal.SIGKILL)
        os.waitpid(worker.pid, 0)
        print(json.dumps({"time": time.time(), "event": "exit", "id": id, "pid": worker.pid, "exit_code": 75,
                          "signal": 0}), file=events)
    return 75


def main():
    assert sys.argv[1] == "run"
    flags, behaviour = options(sys.argv[2:])
    return join(flags) if "join" in flags else lead(flags, behaviour)


if __name__ == "__main__":
    sys.exit(main())
