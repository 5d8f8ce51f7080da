"""ringfold run with elastic jobs: who is started again, what is told, who joins. The workers are small programs that
write the events of a job that never was, and die on purpose; at the end there is real training."""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest

from helpers import Server

RINGFOLD = str(pathlib.Path(os.environ["RINGFOLD_BUILD"]).resolve() / "bin" / "ringfold")
DEADLINE_S = 60

BEGIN = """
import json, os, signal, sys, time
env = os.environ
me, start, folder = int(env['RINGFOLD_ID']), int(env['RINGFOLD_RESTARTS']), env['RINGFOLD_RUN_DIR']
pipe = int(env['RINGFOLD_EVENT_FD'])
def raw(data):
    while data:
        try:
            data = data[os.write(pipe, data[:4096]):]
        except BlockingIOError:
            time.sleep(0.001)
def tell(event, rank=me, generation=1, step=0, **more):
    raw((json.dumps({'event': event, 'time': time.time(), 'id': me, 'rank': rank, 'size': 4,
                     'generation': generation, 'unit': step, 'step': step, **more}) + '\\n').encode())
def form(generation, members, lost=(), joined=(), **more):
    tell('form', members.index(me), generation, members=members, joined=list(joined), lost=list(lost),
         **{'seconds': 0.31, 'text': 'a link broke', **more})
def commit(step=3, **more):
    tell('commit', step=step, digest='0', samples=8, measure=False, retries=0, redone=0, seconds=0.1, **more)
def mark(name):
    open(f'{folder}/{name}', 'w').close()
def wait(*names):
    while not all(os.path.exists(f'{folder}/{name}') for name in names): time.sleep(0.005)
def seen(text):
    while text not in open(f'{folder}/events.jsonl').read(): time.sleep(0.005)
"""


def environment(**more):
    kept = {k: v for k, v in os.environ.items()
            if not k.startswith("RINGFOLD_") and k not in ("OMP_NUM_THREADS", "RANK", "WORLD_SIZE")}
    return {**kept, "OMP_NUM_THREADS": "1", **more}


def program(script):
    return [sys.executable, "-c", BEGIN + script]


def run(folder, *words, env=None):
    return subprocess.run([RINGFOLD, "run", *map(str, words)], cwd=folder, timeout=DEADLINE_S, text=True,
                          env=env or environment(), capture_output=True)


def wait_for(condition, what):
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.01)
    raise AssertionError("never happened: " + what)


def events(folder, *names):
    found = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    return [event for event in found if not names or event["event"] in names]


def told(text):
    """The lines with the time of day, without it."""
    return [line[9:] for line in text.splitlines() if re.match(r"\d\d:\d\d:\d\d [!+=] ", line)]


@pytest.fixture
def there(tmp_path):
    return tmp_path / "r"


# --- which jobs are elastic ---

PRINT = ["sh", "-c", "echo ${RINGFOLD_MIN_SIZE-none} ${RINGFOLD_MAX_SIZE-none} ${RINGFOLD_SIZE} ${RINGFOLD_ID-none}"]


@pytest.mark.parametrize("words,variables", [
    (["-n", "1"], "none none 1 none"),
    (["-n", "2", "--max-restarts", "0"], "none none 2 none"),
    (["-n", "2:2", "--restarts", "0"], "none none 2 none"),
    (["-n", "1", "--store-bind", "127.0.0.1:0"], "1 1 1 0"),
    (["-n", "2"], "2 2 2 0"),
    (["-n", "1:2", "--max_restarts", "0"], "1 2 2 0"),
    (["-n", "1:5", "--ppn", "2"], "1 5 2 0")])
def test_which_jobs_are_elastic(tmp_path, words, variables):
    done = run(tmp_path, "-q", "--prefix", "none", "--show", "0", *words, "--", *PRINT)
    assert done.stdout == variables + "\n", done.stderr


def test_the_environment_of_an_elastic_worker(tmp_path, there):
    env = environment(RINGFOLD_MIN_SIZE="7", RINGFOLD_EVENT_FD="99", RINGFOLD_RANK="0", RINGFOLD_FAULTS="1")
    words = ["-n", 2, "--slow-evict", 7, "--slow-window", 5, "--cool-down", "2s", "--run-dir", there]
    script = program("json.dump(dict(env), open(f'{folder}/env{me}', 'w'))")
    assert run(tmp_path, *words, "--faults", "--", *script, env=env).returncode == 0
    found = json.loads((there / "env1").read_text())
    expected = {"RINGFOLD_ID": "1", "RINGFOLD_RANK": "1", "RINGFOLD_RESTARTS": "0", "RINGFOLD_MIN_SIZE": "2",
                "RINGFOLD_MAX_SIZE": "2", "RINGFOLD_SLOW_EVICT": "7", "RINGFOLD_SLOW_WINDOW": "5",
                "RINGFOLD_COOL_DOWN": "2000ms", "RINGFOLD_FAULTS": "1"}
    assert {name: found.get(name) for name in expected} == expected
    assert 2 < int(found["RINGFOLD_EVENT_FD"]) != 99
    # A fixed job inside of an elastic one inherits none of it.
    done = run(tmp_path, "-q", "--", *PRINT, env=env)
    assert done.stdout == "none none 1 none\n"


# --- starting again ---

def test_a_killed_worker_is_started_again(tmp_path, there):
    done = run(tmp_path, "-n", 3, "--run-dir", there, "--", *program("""
print('start', start)
if start == 0:
    form(1, [0, 1, 2], text='')
    commit()
    mark(f'ready{me}')
    if me == 1:
        wait('ready0', 'ready2')
        os.kill(os.getpid(), 9)
    seen('"event":"restart"')
    tell('revoke', peer=1, text='worker 1 was lost: closed')
    if me == 0: form(2, [0, 2, 1], joined=[], text='closed')
    wait('back')
else:
    tell('heal', step=7, generation=2, bytes=1490000000, seconds=1.9, donors=2)
    commit(step=8)
    mark('back')
"""))
    assert done.returncode == 0, done.stderr
    assert sorted(told(done.stderr)) == sorted([
        "+ worker 1 starts again in 0.29 s (restart 1, 2 left this hour)",
        "! worker 1 lost: ended by SIGKILL; step 4 goes on with 3 workers after 0.31 s, batch kept",
        "+ worker 1 joined at step 8: copied 1.49 GB from 2 workers in 1.9 s"])
    assert "error[" not in done.stderr and not (there / "error.json").exists()
    assert (there / "logs/g1/001.out").read_text() == "start 0\n"
    assert (there / "logs/g1/001.r1.out").read_text() == "start 1\n"
    assert [(e["id"], e["restarts"]) for e in events(there, "worker")] == [(0, 0), (1, 0), (2, 0), (1, 1)]
    (restart,) = events(there, "restart")
    assert restart["id"] == 1 and restart["left"] == 2 and restart["seconds"] >= 0.25
    assert [e["exit_code"] for e in events(there, "exit") if e["id"] == 1] == [137, 0]
    assert not (there / "commits.jsonl").exists() and not events(there, "commit")


def test_nobody_is_started_again_before_the_first_commit(tmp_path, there):
    done = run(tmp_path, "-n", "1:3", "--run-dir", there, "--detect", "10ms", "--", *program("""
form(1, [0, 1, 2])
mark(f'ready{me}')
wait('ready0', 'ready1', 'ready2')
if me == 1: sys.exit(3)
time.sleep(1000)
"""))
    assert done.returncode == 3
    assert done.stderr.count("error[") == 1 and "worker 1 failed with exit status 3" in done.stderr
    assert not events(there, "restart") and len(events(there, "worker")) == 3


def test_a_commit_that_was_written_just_before_the_end_counts(tmp_path, there):
    done = run(tmp_path, "-n", 2, "--run-dir", there, "--", *program("""
if me == 0 and start == 0:
    wait('other')
    commit()
    os.kill(os.getpid(), 9)
if me == 1:
    commit()
    mark('other')
    wait('back')
mark('back')
"""))
    assert done.returncode == 0, done.stderr
    assert [e["id"] for e in events(there, "restart")] == [0]


def test_the_budget_is_the_whole_jobs(tmp_path, there):
    """Two restarts among four workers; the third failure leaves three, and the job goes on; the fourth is too many."""
    done = run(tmp_path, "-n", "3:4", "--max-restarts", 2, "--run-dir", there, "--detect", "10ms", "--",
               *program("""
commit()
if start == 0:
    mark(f'ready{me}')
    wait('ready0', 'ready1', 'ready2', 'ready3')
else:
    mark(f'again{me}')
if me in (1, 2) and start == 0: sys.exit(5)
wait('again1', 'again2')
if me == 3: sys.exit(6)
seen('"exit_code":6')
if me == 0:
    form(2, [0, 1, 2], lost=[3])
    seen('"lost": [3]')
    mark('without3')
wait('without3')
if me == 2:
    print('why', file=sys.stderr)
    sys.exit(7)
time.sleep(1000)
"""))
    text = done.stderr
    assert done.returncode == 7, text
    assert [e["id"] for e in events(there, "restart")] in ([1, 2], [2, 1])
    assert "! worker 3 is not started again: 2 restarts within an hour are used up" in text
    assert "! worker 3 lost: ended with exit status 6; step 4 goes on with 3 workers after 0.31 s, batch kept" in text
    assert text.count("error[") == 1
    assert "worker 2 failed with exit status 7, and 2 workers are fewer than the minimum of 3" in text
    assert "logs/g1/002.r1.err, last lines:\n         why\n" in text


def test_waits_between_restarts_grow(tmp_path, there):
    done = run(tmp_path, "-n", 2, "--run-dir", there, "--", *program("""
commit()
if me == 0 and start < 3: sys.exit(1)
mark('done') if me == 0 else wait('done')
"""))
    assert done.returncode == 0, done.stderr
    assert [e["seconds"] for e in events(there, "restart")] == [0.25, 0.5, 1.0]
    assert [e["left"] for e in events(there, "restart")] == [2, 1, 0]
    assert (there / "logs/g1/000.r3.out").exists()


def test_when_all_fail_together_the_state_is_lost(tmp_path, there):
    done = run(tmp_path, "-n", "1:3", "--run-dir", there, "--", *program("""
commit()
mark(f'ready{me}')
wait('ready0', 'ready1', 'ready2')
sys.exit(9)
"""))
    assert done.returncode == 9
    assert done.stderr.count("error[") == 1 and "failed with exit status 9" in done.stderr
    assert len(events(there, "worker")) == 3


def test_who_ends_well_is_done_and_the_others_go_on(tmp_path, there):
    done = run(tmp_path, "-n", "1:3", "--run-dir", there, "--", *program("""
commit()
if me == 2: sys.exit(0)
seen('"event":"exit"')
"""))
    assert done.returncode == 0 and not events(there, "restart")


def test_a_failure_that_nobody_outlived_is_the_runs_failure(tmp_path, there):
    """The others finish before the group has gone on without it, as after a failure to write the results."""
    done = run(tmp_path, "-n", 2, "--run-dir", there, "--", *program("""
form(1, [0, 1])
commit()
if me == 0:
    wait('finished')
    seen('"exit_code":0')
    sys.exit(74)
mark('finished')
"""))
    assert done.returncode == 74 and done.stderr.count("error[") == 1
    assert not events(there, "restart")


def test_who_comes_back_too_late_fails_nobody(tmp_path, there):
    done = run(tmp_path, "-n", "1:2", "--run-dir", there, "--", *program("""
if start == 0:
    commit()
    mark(f'ready{me}')
    wait('ready0', 'ready1')
    if me == 1: os.kill(os.getpid(), 9)
    seen('"restarts":1')
else:
    seen('"exit_code":0')
    sys.exit(69)
"""))
    assert done.returncode == 0, done.stderr
    assert "error[" not in done.stderr


def test_a_worker_that_was_left_behind_is_ended_when_the_job_is_done(tmp_path, there):
    done = run(tmp_path, "-n", "1:2", "--run-dir", there, "--", *program("""
commit()
mark(f'ready{me}')
wait('ready0', 'ready1')
if me == 1:
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(1000)
form(2, [0], lost=[1], text='worker 1 was lost: nothing heard for 3.0 s')
"""))
    assert done.returncode == 0, done.stderr
    assert "! worker 1 lost: was lost: nothing heard" not in done.stderr
    assert "! worker 1 lost: nothing heard for 3.0 s; step 4 goes on with 1 worker after" in done.stderr


def test_asked_to_stop_while_a_worker_is_to_come_back(tmp_path, there):
    process = subprocess.Popen([RINGFOLD, "run", "-n", "2", "--run-dir", there, "--", *program("""
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
commit()
if me == 1: sys.exit(1) if start == 0 else mark('back')
time.sleep(1000)
""")], cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for((there / "back").exists, "the second start")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 75 and "error[" not in err


# --- what is told ---

def test_events_are_told_once_in_words(tmp_path, there):
    done = run(tmp_path, "-n", "2:3", "--run-dir", there, "--commits", "--", *program("""
commit(step=9)
mark(f'ready{me}')
wait('ready0', 'ready1', 'ready2')
if me == 2:
    tell('out', text='10.4 times slower than the median in 2 steps')
    seen('"out"')
    mark('out')
wait('out')
tell('revoke', peer=2, text='worker 2 was lost: \\x1b[31mreset')
form(2, [0, 1], lost=[2]) if me < 2 else 0
tell('slow', peer=1, ratio=2.44, text='processor')
tell('diverged', peer=1, text='state 0x1 against 0x2 of the majority')
seen('"rank": 0, "size": 4, "generation": 2')
tell('pause', text='2 workers are fewer than the minimum of 3')
"""))
    assert done.returncode == 0, done.stderr
    assert set(told(done.stderr)) == {
        "! worker 2 put out: 10.4 times slower than the median in 2 steps",
        "! step 10 goes on with 2 workers after 0.31 s, batch kept",
        "! worker 1 is 2.4x slower than the median (processor)",
        "! worker 1 holds another state, state 0x1 against 0x2 of the majority; healed from the majority",
        "! paused: 2 workers are fewer than the minimum of 3"}
    assert len(told(done.stderr)) == len(set(told(done.stderr))) == 5
    assert len(events(there, "slow")) == 3 and len(events(there, "form")) == 2
    commits = [json.loads(line) for line in (there / "commits.jsonl").read_text().splitlines()]
    assert sorted(c["id"] for c in commits) == [0, 1, 2] and {c["step"] for c in commits} == {9}


def test_quiet_tells_nothing_and_json_tells_all(tmp_path):
    script = program("commit()\ntell('slow', peer=0, ratio=3, text='link')")
    assert run(tmp_path, "-q", "-n", 2, "--", *script).stderr == ""
    done = run(tmp_path, "--json", "-n", 2, "--", *script)
    names = [json.loads(line)["event"] for line in done.stderr.splitlines()]
    assert names.count("slow") == 2 and "commit" not in names


def test_bad_lines_are_counted_and_dropped(tmp_path, there):
    done = run(tmp_path, "-v", "-n", 2, "--run-dir", there, "--", *program("""
if me == 0:
    for line in (b'{', b'[]', b'7', b'', b'\\xff\\xfe', b'{"event": "slow"}', b'{"event": "start", "id": 0}',
                 b'{"event": "slow", "id": 1, "peer": 1, "ratio": 9}', b'x' * 5000, b'y' * 100000,
                 b'{"event": 3, "id": 0}', b'[' * 4000):
        raw(line + b'\\n')
    tell('form', rank=0, members='all', lost=[None, -1, 2**40, 'x'], joined={}, seconds='a', text=None)
    tell('slow', peer=1, ratio=2.5, text='link' * 30)
    commit()
    raw(b'{"event": "slow", "id": 0')
"""))
    assert done.returncode == 0, done.stderr
    assert "13 lines on the workers' event pipes were no events" in done.stderr
    assert [e["event"] for e in events(there) if e["event"] not in ("start", "worker", "exit", "end")] == \
        ["form", "slow"]


def test_events_are_read_while_the_screen_stands_still(tmp_path, there):
    """More events than a pipe holds, and more output than the launcher does; nobody reads the screen meanwhile."""
    process = subprocess.Popen([RINGFOLD, "run", "-q", "-n", "2", "--run-dir", there, "--commits", "--",
                                *program("""
os.set_blocking(1, False)
if me == 0:
    try:
        while True: os.write(1, b'o' * 4095 + b'\\n')
    except BlockingIOError:
        time.sleep(0.3)
    try:
        while True: os.write(1, b'o' * 4095 + b'\\n')
    except BlockingIOError:
        mark('stuck')
wait('stuck')
for step in range(2000): commit(step)
mark(f'told{me}')
wait('told0', 'told1', 'read')
""")], cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_for(lambda: (there / "told0").exists() and (there / "told1").exists(), "all events")
    (there / "read").touch()
    process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0
    assert len((there / "commits.jsonl").read_text().splitlines()) == 4000


# --- joining ---

HOST = """
commit()
if me == 0:
    print(env['RINGFOLD_STORE'], flush=True)
wait('joined')
"""


def start_host(tmp_path, there, *words):
    (tmp_path / "job.key").write_bytes(bytes(range(32)))
    process = subprocess.Popen([RINGFOLD, "run", "-n", "2:4", "--ppn", "2", "--job", "j", "--key-file", "job.key",
                                "--run-dir", str(there), *words, "--", *program(HOST)], cwd=tmp_path,
                               env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    line = process.stdout.readline()
    uri = re.search(r"tcp://(\S+)", line).group(1)
    keys = ["store", "list", "rf/j/", "--store", "tcp://" + uri, "--key-file", "job.key"]
    wait_for(lambda: b"rf/j/size" in subprocess.run([RINGFOLD, *keys], cwd=tmp_path, env=environment(),
                                                    capture_output=True).stdout, "the job's sizes in its store")
    return process, uri


def test_workers_join_a_running_job(tmp_path, there):
    process, uri = start_host(tmp_path, there, "--store-bind", "127.0.0.1:0")
    try:
        script = program("json.dump(dict(env), open(f'{folder}/env{me}', 'w'))\n"
                         "tell('heal', rank=2, step=5, bytes=100, seconds=0.5, donors=2)")
        host, port = uri.rsplit(":", 1)
        common = ["--job", "j", "--key-file", "job.key"]
        first = run(tmp_path, "--join", uri, *common, "-n", 2, "--run-dir", "a", "--", *script)
        assert first.returncode == 0, first.stderr
        second = run(tmp_path, "--master-addr", host, "--master-port", port, *common, "--run-dir", "b", "--", *script)
        assert second.returncode == 0, second.stderr
        (there / "joined").touch()
        out, err = process.communicate(timeout=DEADLINE_S)
    finally:
        process.kill()
    assert process.returncode == 0, err
    assert f"others join by: ringfold run --join {uri} --job j --key-file job.key -n N -- " in err
    assert f"2 workers on this host, from id 2, join job j at {uri}, run folder a" in first.stderr
    assert sorted(told(first.stderr)) == ["+ worker 2 joined at step 6: copied 100 B from 2 workers in 0.5 s",
                                          "+ worker 3 joined at step 6: copied 100 B from 2 workers in 0.5 s"]
    for folder, id, local, count in (("a", 2, 0, 2), ("a", 3, 1, 2), ("b", 4, 0, 1)):
        env = json.loads((tmp_path / folder / f"env{id}").read_text())
        expected = {"RINGFOLD_JOB": "j", "RINGFOLD_STORE": "tcp://" + uri, "RINGFOLD_ID": str(id),
                    "RINGFOLD_SIZE": "2", "RINGFOLD_MIN_SIZE": "2", "RINGFOLD_MAX_SIZE": "4",
                    "RINGFOLD_LOCAL_RANK": str(local), "RINGFOLD_LOCAL_SIZE": str(count)}
        assert {name: env.get(name) for name in expected} == expected
    assert sorted(path.name for path in (tmp_path / "a/logs/g1").iterdir()) == [
        "002.err", "002.out", "003.err", "003.out"]


def test_a_job_that_is_not_there(tmp_path):
    with Server(tmp_path) as server:
        words = ["--join", server.uri.removeprefix("tcp://"), "--key-file", "job.key", "--run-dir", "r"]
        done = run(tmp_path, *words, "--job", "none", "--", "true")
        assert done.returncode == 1 and "no job 'none' that others can join" in done.stderr
        assert not (tmp_path / "r").exists()
        for value in ("", "2 1", "2 1 2 ", "1 2 3", "x", "3 1 2", "9999999999999999999 1 2", "2 1 2000"):
            put = ["store", "put", "rf/bad/size", value, "--store", server.uri, "--key-file", "job.key"]
            assert subprocess.run([RINGFOLD, *put], cwd=tmp_path, env=environment()).returncode == 0
            done = run(tmp_path, *words, "--job", "bad", "--", "true")
            assert done.returncode == 1 and "rf/bad/size" in done.stderr, value


def test_a_random_key_lets_nobody_join(tmp_path):
    done = run(tmp_path, "-n", 2, "--store-bind", "127.0.0.1:0", "--", "true")
    assert done.returncode == 0 and "others cannot join, for the key is random" in done.stderr
