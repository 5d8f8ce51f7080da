"""The communicator between real processes: results, disagreement, failures, strangers, two hosts."""
import contextlib
import json
import os
import pathlib
import re
import signal
import socket
import subprocess

import pytest

from helpers import (ByHand, DEADLINE_S, KEY, RINGFOLD, Server, WORKER, alive, end_of, environment, last_words, launcher,
                     read_event, reports, run_workers, said, wait_for)

TRANSPORTS = ("shm", "tcp")
LARGE = 1 << 20  # elements of 4 bytes
GIB = 1 << 30


def done_by_all(done, size, transport):
    assert done.returncode == 0, done.stdout + done.stderr
    for entry in last_words(done.stdout, size):
        assert entry["event"] == "done" and entry["transport"] == transport


# --- results ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("n", (1, 2, 3, 5))
def test_every_collective_type_and_odd_count(tmp_path, n, transport):
    done = run_workers(tmp_path, n, "collectives", transport=transport)
    done_by_all(done, n, transport if n > 1 else "self")


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("n,count", ((2, LARGE), (3, 100003)))
def test_requests_in_flight_and_deadlines(tmp_path, n, count, transport):
    done_by_all(run_workers(tmp_path, n, "requests", count, transport=transport), n, transport)


def test_a_message_passes_a_collective_that_waits(tmp_path):
    done_by_all(run_workers(tmp_path, 2, "message", LARGE, transport="shm"), 2, "shm")


@pytest.mark.parametrize("kind,transport", (("allreduce", "shm"), ("broadcast", "tcp")))
def test_more_than_two_to_the_31_elements(tmp_path, kind, transport):
    free = int(re.search(r"MemAvailable: *(\d+) kB", pathlib.Path("/proc/meminfo").read_text()).group(1)) << 10
    assert free >= 10 * GIB, f"this test needs 10 GiB of free memory, and there are {free / GIB:.1f} GiB"
    done_by_all(run_workers(tmp_path, 2, "huge", kind, transport=transport, deadline_s=4 * DEADLINE_S), 2, transport)


def test_a_tiny_dev_shm_does_not_matter(tmp_path):
    tiny = "mount -t tmpfs -o size=64k tmpfs /dev/shm && df --output=size /dev/shm >&2 && exec \"$@\""
    command = launcher(tmp_path, 2, "once", 4 << 20, "shared", transport="shm")
    done = subprocess.run(["unshare", "-m", "sh", "-c", tiny, "sh", *command], cwd=tmp_path, env=environment(),
                          timeout=DEADLINE_S, capture_output=True, text=True)
    done_by_all(done, 2, "shm")
    assert re.search(r"^ *64$", done.stderr, re.M)


# --- disagreement -----------------------------------------------------------------------------------

DIFFERENCES = {"collective": ("broadcast", "allreduce"), "type": ("i32", "f32"), "count": ("{more}", "{count}"),
               "redop": ("max", "sum"), "root": ("root 1", "root 0"), "reduce_root": ("root 1", "root 0")}


@pytest.mark.parametrize("transport,memory", (("shm", []), ("shm", ["private"]), ("tcp", ["private"])))
@pytest.mark.parametrize("count", (5, LARGE + 1))
@pytest.mark.parametrize("kind", DIFFERENCES)
def test_a_mismatch_is_told_to_every_rank(tmp_path, kind, count, transport, memory):
    n, odd = 3, 2
    done = run_workers(tmp_path, n, "mismatch", kind, odd, count, *memory, transport=transport)
    assert done.returncode == 0, done.stdout + done.stderr
    words = last_words(done.stdout, n)
    assert [entry["code"] for entry in words] == ["RF_EMISMATCH"] * n, words
    for entry in words:
        assert f"rank {odd}" in entry["text"], entry
        for text in DIFFERENCES[kind]:
            assert text.format(count=f" {count} ", more=f" {count + 1} ") in entry["text"], entry


# --- failures ---------------------------------------------------------------------------------------


def logs_of(folder, n):
    texts = [folder / "run" / "logs" / "g1" / f"{rank:03}.out" for rank in range(n)]
    return "".join(path.read_text() for path in texts if path.exists())


def start_loop(folder, n, count, memory, transport, *flags):
    process = subprocess.Popen(launcher(folder, n, "loop", count, memory, transport=transport, flags=flags),
                               cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True)
    wait_for(lambda: len(said(logs_of(folder, n))) == n, "all workers at work", process)
    return process, {rank: entries[0]["pid"] for rank, entries in said(logs_of(folder, n)).items()}


def nothing_left(folder, pids):
    """Processes gone, and with them their memory files; the store's port closed; /dev/shm as it was."""
    for pid in pids.values():
        wait_for(lambda: not alive(pid), f"the end of process {pid}")
    port = int(json.loads((folder / "run" / "run.json").read_text())["store"].rsplit(":", 1)[1])
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 10)
    users = []
    for links in pathlib.Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if "memfd:ringfold" in os.readlink(links) and os.readlink(links.parents[1] / "cwd") == str(folder):
                users.append(links)
    assert users == []


def check_loss(folder, process, n, victim, pids, shm_before):
    out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode not in (0, None), out + err
    words = said(logs_of(folder, n))
    for rank in set(range(n)) - {victim}:
        entry = words[rank][-1]
        assert entry["code"] == "RF_ELOST" and entry["culprit"] == victim, (out, err)
        assert f"{victim}" in entry["text"] and re.search(rf"(rank|worker) {victim}\b", entry["text"]), entry
    assert reports(out + err) == 1, out + err
    assert f"worker {victim} " in re.search(r"error\[.*", err).group(0), err
    nothing_left(folder, pids)
    assert set(os.listdir("/dev/shm")) <= shm_before


PATHS = (("shm", "shared"), ("shm", "private"), ("tcp", "private"))


@pytest.mark.parametrize("transport,memory", PATHS)
@pytest.mark.parametrize("number", (signal.SIGKILL, signal.SIGSTOP))
@pytest.mark.parametrize("count", (1000, 2 * LARGE))
def test_a_lost_worker_is_named_by_all_others(tmp_path, count, number, transport, memory):
    n, victim, shm_before = 3, 1, set(os.listdir("/dev/shm"))
    process, pids = start_loop(tmp_path, n, count, memory, transport, "--detect", "1s")
    try:
        os.kill(pids[victim], number)
        check_loss(tmp_path, process, n, victim, pids, shm_before)
    finally:
        process.kill()


@pytest.mark.parametrize("transport,memory", PATHS)
def test_a_worker_that_exits_within_an_allreduce(tmp_path, transport, memory):
    n, victim = 3, 2
    done = run_workers(tmp_path, n, "exit", victim, LARGE, memory, transport=transport)
    assert done.returncode == 7, done.stdout + done.stderr
    words = said(done.stdout)
    assert sorted(words) == [0, 1]
    for rank in words:
        assert words[rank][-1]["code"] == "RF_ELOST" and words[rank][-1]["culprit"] == victim
    assert reports(done.stdout + done.stderr) == 1
    assert f"worker {victim} failed with exit status 7" in done.stderr


# --- started by hand --------------------------------------------------------------------------------


def test_workers_by_hand_and_a_stranger(tmp_path):
    (tmp_path / "wrong.key").write_bytes(KEY[::-1])
    with Server(tmp_path) as store, ByHand(tmp_path, store.uri, 2) as workers:
        good = [workers.start(rank, "loop", 1000, "shared", "stop") for rank in range(2)]
        for process in good:
            read_event(process, "running")
        status, entry, _ = end_of(workers.start(1, "once", 10, "private",
                                                RINGFOLD_KEY_FILE=str(tmp_path / "wrong.key")))
        assert status == 1 and entry["event"] == "refused" and entry["code"] == "RF_EAUTH", entry
        (tmp_path / "stop").write_text("")
        for process in good:
            status, entry, err = end_of(process)
            assert status == 0 and entry["event"] == "done", (entry, err)


def test_two_workers_of_one_rank(tmp_path):
    with Server(tmp_path) as store, ByHand(tmp_path, store.uri, 2) as workers:
        first = workers.start(0, "once", 1000, "private")
        wait_for(lambda: "rf/by-hand/g/1/m/0" in store.keys(), "the record of rank 0", first)
        status, entry, _ = end_of(workers.start(0, "once", 1000, "private", RINGFOLD_START_TIMEOUT="3s"))
        assert status == 1 and entry["code"] == "RF_ECONFLICT" and "rank 0 of job 'by-hand'" in entry["text"], entry
        second = workers.start(1, "once", 1000, "private")
        for process in (first, second):
            status, entry, err = end_of(process)
            assert status == 0 and entry["event"] == "done", (entry, err)


def test_a_missing_worker_is_named(tmp_path):
    with Server(tmp_path) as store, ByHand(tmp_path, store.uri, 3, RINGFOLD_START_TIMEOUT="2s") as workers:
        there = [workers.start(rank, "once", 10, "private") for rank in (0, 2)]
        for process in there:
            status, entry, _ = end_of(process)
            assert status == 1 and entry["code"] == "RF_ETIMEDOUT", entry
            assert re.search(r"2 of 3 workers .*missing: rank 1$", entry["text"]), entry


def test_a_store_that_is_not_there_is_named(tmp_path):
    (tmp_path / "job.key").write_bytes(KEY)
    with socket.socket() as taken:  # bound, but it does not listen
        taken.bind(("127.0.0.1", 0))
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        with ByHand(tmp_path, f"tcp://{where}", 2, RINGFOLD_START_TIMEOUT="2s") as workers:
            status, entry, _ = end_of(workers.start(0, "once", 10, "private"))
    assert status == 1 and entry["event"] == "refused"
    assert entry["code"] in ("RF_ECONNECT", "RF_ETIMEDOUT", "RF_ESTORE") and where in entry["text"], entry


# --- two hosts --------------------------------------------------------------------------------------


def ip(*words, check=True):
    done = subprocess.run(["ip", *map(str, words)], capture_output=True, text=True, timeout=DEADLINE_S)
    assert not check or done.returncode == 0, f"ip {' '.join(map(str, words))}: {done.stderr}"
    return done


class Hosts:
    """Two network namespaces and a cable between them."""

    def __init__(self):
        self.names = [f"rf{os.getpid()}{side}" for side in "ab"]

    def __enter__(self):
        for name in self.names:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        ip("-n", self.names[0], "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", self.names[1])
        for side, name in enumerate(self.names):
            ip("-n", name, "addr", "add", f"10.213.7.{side + 1}/24", "dev", "cable")
            ip("-n", name, "addr", "add", f"fd00:213:7::{side + 1}/64", "dev", "cable", "nodad")
            ip("-n", name, "link", "set", "cable", "up")
        return self

    def __exit__(self, *_):
        for name in self.names:
            ip("netns", "del", name, check=False)

    def on(self, side):
        """What to put before a command that shall run there."""
        return ["ip", "netns", "exec", self.names[side]]

    def no_ipv4(self):
        for side, name in enumerate(self.names):
            ip("-n", name, "addr", "del", f"10.213.7.{side + 1}/24", "dev", "cable")

    def cut(self):
        ip("-n", self.names[0], "link", "set", "cable", "down")

    def bytes_sent(self, side):
        counted = subprocess.run([*self.on(side), "cat", "/sys/class/net/cable/statistics/tx_bytes"],
                                 check=True, capture_output=True, text=True)
        return int(counted.stdout)


@pytest.fixture
def hosts():
    if os.geteuid() != 0:
        pytest.skip("two hosts: network namespaces need root")
    probe = f"rf{os.getpid()}p"
    made = ip("netns", "add", probe, check=False)
    ip("netns", "del", probe, check=False)
    if made.returncode != 0:
        pytest.skip(f"two hosts: 'ip netns add' is not permitted here: {made.stderr.strip()}")
    there = Hosts()
    try:
        yield there.__enter__()
    finally:
        there.__exit__()


@pytest.mark.parametrize("family", ("IPv4", "IPv6"))
def test_two_hosts(tmp_path, hosts, family):
    address = "10.213.7.1" if family == "IPv4" else "[fd00:213:7::1]"
    if family == "IPv6":
        hosts.no_ipv4()
    with Server(tmp_path, f"{address}:0", hosts.on(0)) as store, ByHand(tmp_path, store.uri, 2) as workers:
        both = [workers.start(rank, "once", LARGE + 7, "shared", before=hosts.on(rank)) for rank in range(2)]
        for process in both:
            status, entry, err = end_of(process)
            assert status == 0 and entry["event"] == "done" and entry["transport"] == "tcp", (entry, err)


def test_two_hosts_of_two_workers(tmp_path, hosts):
    with Server(tmp_path, "10.213.7.1:0", hosts.on(0)) as store, \
            ByHand(tmp_path, store.uri, 4, RINGFOLD_LOCAL_SIZE="2") as workers:
        all_four = [workers.start(rank, "collectives", before=hosts.on(rank // 2)) for rank in range(4)]
        for process in all_four:
            status, entry, err = end_of(process)
            assert status == 0 and entry["event"] == "done" and entry["transport"] == "shm+tcp", (entry, err)


def test_between_hosts_travels_what_two_workers_would_exchange(tmp_path, hosts):
    count = 6_000_011
    with Server(tmp_path, "10.213.7.1:0", hosts.on(0)) as store, ByHand(tmp_path, store.uri, 4) as workers:
        before = [hosts.bytes_sent(side) for side in range(2)]
        all_four = [workers.start(rank, "once", count, "shared", before=hosts.on(rank // 2)) for rank in range(4)]
        for process in all_four:
            status, entry, err = end_of(process)
            assert status == 0 and entry["event"] == "done" and entry["transport"] == "shm+tcp", (entry, err)
        for side in range(2):
            sent = hosts.bytes_sent(side) - before[side]
            assert 4 * count < sent < 1.1 * 4 * count, (side, sent, 4 * count)


@pytest.mark.parametrize("count", (100, 2 * LARGE))
def test_a_cut_cable(tmp_path, hosts, count):
    with Server(tmp_path, "10.213.7.1:0", hosts.on(0)) as store, \
            ByHand(tmp_path, store.uri, 4, RINGFOLD_DETECT="1s") as workers:
        all_four = [workers.start(rank, "loop", count, "shared", before=hosts.on(rank // 2)) for rank in range(4)]
        for process in all_four:
            read_event(process, "running")
        hosts.cut()
        for rank, process in enumerate(all_four):
            status, entry, err = end_of(process)
            assert status == 69 and entry["code"] == "RF_ELOST", (rank, entry, err)
            assert entry["culprit"] // 2 != rank // 2, (rank, entry)  # somebody beyond the cable


# --- several streams --------------------------------------------------------------------------------


def connections(hosts, side, store):
    """Established TCP connections of a host, but for those with the store."""
    table = subprocess.run([*hosts.on(side), "cat", "/proc/net/tcp", "/proc/net/tcp6"], check=True, capture_output=True,
                           text=True).stdout
    store_port = f"{int(store.uri.rsplit(':', 1)[1]):04X}"
    rows = [line.split() for line in table.splitlines() if line.split()[0] != "sl"]
    return sum(row[3] == "01" and store_port not in (row[1].split(":")[1], row[2].split(":")[1]) for row in rows)


@pytest.mark.parametrize("count", (100, 2 * LARGE))
@pytest.mark.parametrize("event", ("stop", "cut", "kill"))
def test_several_streams_between_two_hosts(tmp_path, hosts, event, count):
    with Server(tmp_path, "10.213.7.1:0", hosts.on(0)) as store, \
            ByHand(tmp_path, store.uri, 2, RINGFOLD_DETECT="1s", RINGFOLD_STREAMS="4") as workers:
        both = [workers.start(rank, "loop", count, "private", "stop", before=hosts.on(rank)) for rank in range(2)]
        pids = [read_event(process, "running")["pid"] for process in both]
        wait_for(lambda: connections(hosts, 1, store) == 4, "four connections", both[0])
        if event == "stop":
            (tmp_path / "stop").write_text("")
        elif event == "cut":
            hosts.cut()
        else:
            os.kill(pids[1], signal.SIGKILL)
        for rank, process in enumerate(both):
            if (rank, event) == (1, "kill"):
                continue
            status, entry, err = end_of(process)
            if event == "stop":
                assert status == 0 and entry["event"] == "done" and entry["transport"] == "tcp", (entry, err)
            else:
                assert status == 69 and entry["code"] == "RF_ELOST" and entry["culprit"] == 1 - rank, (entry, err)


def test_the_numbers_of_streams_may_differ(tmp_path, hosts):
    with Server(tmp_path, "10.213.7.1:0", hosts.on(0)) as store, ByHand(tmp_path, store.uri, 3) as workers:
        three = [workers.start(rank, "collectives", before=hosts.on(rank % 2), RINGFOLD_TRANSPORT="tcp",
                               RINGFOLD_STREAMS=streams) for rank, streams in enumerate(("1", "3", "8"))]
        for process in three:
            status, entry, err = end_of(process)
            assert status == 0 and entry["event"] == "done" and entry["transport"] == "tcp", (entry, err)
