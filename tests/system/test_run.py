"""ringfold run: real processes, small programs as workers."""
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time

import pytest

RINGFOLD = str(pathlib.Path(os.environ["RINGFOLD_BUILD"]).resolve() / "bin" / "ringfold")
PYTHON = sys.executable
DEADLINE_S = 60


def environment(**more):
    kept = {k: v for k, v in os.environ.items()
            if not k.startswith("RINGFOLD_") and k not in ("OMP_NUM_THREADS", "RANK", "WORLD_SIZE")}
    return {**kept, **more}


def run(folder, *words, env=None, **more):
    return subprocess.run([RINGFOLD, "run", *map(str, words)], cwd=folder, timeout=DEADLINE_S,
                          env=env or environment(), capture_output=True, **more)


def start(folder, *words, env=None):
    return subprocess.Popen([RINGFOLD, "run", *map(str, words)], cwd=folder, env=env or environment(),
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def python(script):
    """Arguments that start the script as a worker; `rank` and `folder` (of the run) are there already."""
    begin = ("import os, sys, time, signal, json\nrank = int(os.environ['RANK'])\n"
             "folder = os.environ['RINGFOLD_RUN_DIR']\n")
    return [PYTHON, "-c", begin + script]


def wait_for(condition, what):
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.01)
    raise AssertionError("never happened: " + what)


def finish(process):
    out, err = process.communicate(timeout=DEADLINE_S)
    return out, err.decode()


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat_file:
            return stat_file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def events(folder):
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


@pytest.fixture
def there(tmp_path):
    return tmp_path / "r"


# --- what workers are given ---

def test_environment_of_the_workers(tmp_path, there):
    done = run(tmp_path, "-n", 3, "--run-dir", there, "--job", "j1", "--detect", "1500ms",
               "--start-timeout", "2m", "--transport", "tcp", "--algorithm", "ring", "-x", "EXTRA=a=b",
               "--", *python("json.dump(dict(os.environ), open(f'{folder}/env{rank}', 'w'))"))
    assert done.returncode == 0, done.stderr
    for rank in range(3):
        env = json.loads((there / f"env{rank}").read_text())
        expected = {
            "RINGFOLD_JOB": "j1", "RINGFOLD_RANK": str(rank), "RINGFOLD_SIZE": "3",
            "RINGFOLD_LOCAL_RANK": str(rank), "RINGFOLD_LOCAL_SIZE": "3", "RINGFOLD_GENERATION": "1",
            "RINGFOLD_RESTARTS": "0", "RINGFOLD_RUN_DIR": str(there), "RINGFOLD_DETECT": "1500ms",
            "RINGFOLD_START_TIMEOUT": "120000ms", "RINGFOLD_TRANSPORT": "tcp",
            "RINGFOLD_ALGORITHM": "ring", "RANK": str(rank), "WORLD_SIZE": "3",
            "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1",
            "EXTRA": "a=b",
            "OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // 3))}
        assert {name: env.get(name) for name in expected} == expected
        assert re.fullmatch(r"tcp://127\.0\.0\.1:\d+", env["RINGFOLD_STORE"])
        assert 0 < int(env["MASTER_PORT"]) < 65536
        assert not env["RINGFOLD_STORE"].endswith(":" + env["MASTER_PORT"])
        assert env["PATH"] == os.environ["PATH"]


def test_transport_and_algorithm_are_not_set_unless_asked_for(tmp_path, there):
    done = run(tmp_path, "--run-dir", there, "--", *python(
        "print(os.environ.get('RINGFOLD_TRANSPORT'), os.environ.get('RINGFOLD_ALGORITHM'))"))
    assert done.stdout == b"None None\n"


def test_omp_num_threads_of_the_user_stays_unless_threads_is_given(tmp_path):
    print_it = python("print(os.environ['OMP_NUM_THREADS'])")
    env = environment(OMP_NUM_THREADS="7")
    assert run(tmp_path, "--", *print_it, env=env).stdout == b"7\n"
    assert run(tmp_path, "--threads", 5, "--", *print_it, env=env).stdout == b"5\n"


def test_each_worker_is_bound_to_its_cores(tmp_path, there):
    done = run(tmp_path, "-n", 2, "--bind", "core", "--run-dir", there, "--",
               *python("json.dump(sorted(os.sched_getaffinity(0)), open(f'{folder}/c{rank}', 'w'))"))
    assert done.returncode == 0
    bound = [set(json.loads((there / f"c{rank}").read_text())) for rank in range(2)]
    allowed = os.sched_getaffinity(0)
    assert bound[0] | bound[1] == allowed
    if len(allowed) > 1:
        assert not bound[0] & bound[1]


KEY_PROBE = """
fd = int(os.environ['RINGFOLD_KEY_FD'])
key = os.pread(fd, 4096, 0)
seen = b''
for pid in (os.getpid(), os.getppid()):
    for name in ('environ', 'cmdline'):
        seen += open(f'/proc/{pid}/{name}', 'rb').read()
try:
    again = os.open(f'/proc/self/fd/{fd}', os.O_RDWR)
    os.pwrite(again, b'x', 0)
    changed = True
except OSError:
    changed = False
hidden = key not in seen and key.hex().encode() not in seen
json.dump([key.hex(), hidden, changed, os.lseek(fd, 0, os.SEEK_CUR)], open(f'{folder}/key{rank}', 'w'))
"""


def test_the_key_comes_by_descriptor_and_is_seen_nowhere_else(tmp_path, there):
    done = run(tmp_path, "-n", 3, "--run-dir", there, "--", *python(KEY_PROBE))
    assert done.returncode == 0, done.stderr
    keys = [json.loads((there / f"key{rank}").read_text()) for rank in range(3)]
    assert len(keys[0][0]) == 64
    assert keys[1] == keys[0] and keys[2] == keys[0]
    assert keys[0][1:] == [True, False, 0]
    for path in there.rglob("*"):
        if path.is_file() and not path.name.startswith("key"):
            assert keys[0][0] not in path.read_text()


def test_the_key_file_is_what_the_workers_read(tmp_path, there):
    (tmp_path / "key").write_bytes(bytes(range(100, 140)))
    done = run(tmp_path, "--key-file", "key", "--run-dir", there, "--", *python(KEY_PROBE))
    assert done.returncode == 0, done.stderr
    assert json.loads((there / "key0").read_text())[0] == bytes(range(100, 140)).hex()


def test_a_key_file_that_is_too_short_names_the_file(tmp_path):
    (tmp_path / "short.key").write_bytes(b"abc")
    done = run(tmp_path, "--key-file", "short.key", "--", "true")
    assert done.returncode == 64
    assert "short.key" in done.stderr.decode()


def test_standard_input_of_the_workers_is_empty(tmp_path):
    done = run(tmp_path, "-n", 2, "--", "sh", "-c", "readlink /proc/self/fd/0; cat", input=b"secret\n")
    assert sorted(done.stdout.decode().splitlines()) == ["0│/dev/null", "1│/dev/null"]


def test_a_worker_inherits_no_descriptor_but_its_own(tmp_path):
    done = run(tmp_path, "--", *python("""
left = []
for name in os.listdir('/proc/self/fd'):
    try:
        target = os.readlink(f'/proc/self/fd/{name}')
    except OSError:
        continue
    if int(name) > 2 and name != os.environ['RINGFOLD_KEY_FD']:
        left.append(target)
print(left)
"""))
    assert done.stdout == b"[]\n"


def test_the_bare_name_starts_this_very_binary(tmp_path):
    done = run(tmp_path, "-n", 2, "--", "ringfold", "--version", env=environment(PATH="/nowhere"))
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"0│ringfold \S+", sorted(done.stdout.decode().splitlines())[0])


# --- output ---

NOISE = """
line = 0
kind = sys.argv[1]
for line in range(1500):
    text = f'{kind} {rank} {line} ' + 'x' * (line * 7 % 300) + '\\n'
    data = text.encode()
    cut = line * 13 % len(data)
    os.write(1 if kind == 'out' else 2, data[:cut])
    os.write(1 if kind == 'out' else 2, data[cut:])
"""


def noise(kind, rank):
    return [f"{kind} {rank} {line} " + "x" * (line * 7 % 300) for line in range(1500)]


@pytest.mark.parametrize("kind", ["out", "err"])
def test_lines_of_noisy_workers_stay_whole_and_logs_are_exact(tmp_path, there, kind):
    done = run(tmp_path, "-q", "-n", 4, "--run-dir", there, "--", *python(NOISE), kind)
    assert done.returncode == 0, done.stderr
    shown, other = (done.stdout, done.stderr) if kind == "out" else (done.stderr, done.stdout)
    assert other == b""
    by_rank = {rank: [] for rank in range(4)}
    for line in shown.decode().splitlines():
        rank, bar, text = line.partition("│")
        assert bar
        by_rank[int(rank)].append(text)
    for rank in range(4):
        assert by_rank[rank] == noise(kind, rank)
        log = there / "logs" / "g1" / f"{rank:03d}.{kind}"
        assert log.read_text() == "".join(line + "\n" for line in noise(kind, rank))


def test_prefixes_are_as_wide_as_the_largest_rank(tmp_path):
    done = run(tmp_path, "-n", 11, "--", "sh", "-c", "echo $RANK")
    assert sorted(done.stdout.decode().splitlines()) == sorted(
        f"{rank:2d}│{rank}" for rank in range(11))


def test_one_worker_has_no_prefix_and_its_bytes_pass_unchanged(tmp_path):
    done = run(tmp_path, "-q", "--", *python("os.write(1, b'a\\rb\\n\\n' + b'z' * 200000 + bytes([255]))"))
    assert done.stdout == b"a\rb\n\n" + b"z" * 200000 + bytes([255])


def test_much_output_without_a_newline(tmp_path, there):
    done = run(tmp_path, "-q", "-n", 2, "--run-dir", there, "--", *python(
        "os.write(1, b'') \nfor i in range(48): sys.stdout.write(chr(97 + rank) * 65536)"))
    assert done.returncode == 0
    for rank in range(2):
        letter = "ab"[rank]
        assert (there / "logs" / "g1" / f"00{rank}.out").read_text() == letter * 48 * 65536
        pieces = [line for line in done.stdout.decode().splitlines() if line[0] == str(rank)]
        assert "".join(piece[2:] for piece in pieces) == letter * 48 * 65536
        assert [piece[1] for piece in pieces] == ["│"] + ["┊"] * (len(pieces) - 1)


def test_only_the_last_state_of_a_progress_bar_is_shown(tmp_path, there):
    run_words = ["-q", "-n", 2, "--run-dir", there, "--", "sh", "-c", "printf '10%%\\r50%%\\r100%%\\r\\n'"]
    done = run(tmp_path, *run_words)
    assert sorted(done.stdout.decode().splitlines()) == ["0│100%", "1│100%"]
    assert (there / "logs/g1/001.out").read_bytes() == b"10%\r50%\r100%\r\n"


@pytest.mark.parametrize("show,ranks", [("all", "0123"), ("none", ""), ("0,2-3", "023"), ("1", "1")])
def test_show(tmp_path, there, show, ranks):
    done = run(tmp_path, "-n", 4, "--show", show, "--run-dir", there, "--", "sh", "-c", "echo $RANK")
    assert sorted(done.stdout.decode().split()) == [f"{rank}│{rank}" for rank in ranks]
    assert [(there / f"logs/g1/00{rank}.out").read_text() for rank in range(4)] == \
        ["0\n", "1\n", "2\n", "3\n"]


def test_no_prefix_on_request(tmp_path):
    done = run(tmp_path, "-n", 2, "--prefix", "none", "--", "sh", "-c", "echo w$RANK")
    assert sorted(done.stdout.decode().splitlines()) == ["w0", "w1"]


def test_what_a_child_of_the_worker_writes_after_its_end_is_not_lost(tmp_path):
    done = run(tmp_path, "-n", 2, "--", "sh", "-c", "(sleep 0.2; echo late) & exit 0")
    assert sorted(done.stdout.decode().splitlines()) == ["0│late", "1│late"]


def test_a_reader_that_goes_away_does_not_end_the_run(tmp_path, there):
    process = start(tmp_path, "-q", "-n", 2, "--run-dir", there, "--", *python("""
while not os.path.exists(f'{folder}/closed'): time.sleep(0.01)
for i in range(5000): print('line', i)
"""))
    process.stdout.close()
    wait_for(there.exists, "the run folder")
    (there / "closed").touch()
    assert process.wait(timeout=DEADLINE_S) == 0
    process.stderr.close()
    for rank in range(2):
        assert (there / f"logs/g1/00{rank}.out").read_text().splitlines()[-1] == "line 4999"


def test_a_reader_that_waits_gets_everything_in_the_end(tmp_path, there):
    process = start(tmp_path, "-q", "-n", 2, "--run-dir", there, "--", *python(
        "for i in range(60): os.write(1, (b'%d' % rank) * 65535 + b'\\n')"))
    wait_for(lambda: sum(log.stat().st_size for log in there.glob("logs/g1/*.out")) > 500000,
             "output in the logs")
    out, _ = finish(process)
    assert process.returncode == 0
    text = out.decode()
    for rank in range(2):
        shown = "".join(line[2:] for line in text.splitlines() if line[0] == str(rank))
        assert shown == str(rank) * 60 * 65535


def test_quiet_and_json(tmp_path):
    assert run(tmp_path, "-q", "-n", 2, "--", "true").stderr == b""
    done = run(tmp_path, "--json", "-n", 2, "--", "sh", "-c", "echo out; exit $((RANK * 4))")
    assert done.returncode == 4
    lines = [json.loads(line) for line in done.stderr.decode().splitlines()]
    assert [line["event"] for line in lines] == ["start", "worker", "worker", "exit", "exit", "error", "end"]
    assert [line["id"] for line in lines[1:3]] == [0, 1]
    assert lines[5]["code"] == "RF0501" and lines[5]["rank"] == 1
    assert lines[6]["exit_code"] == 4
    assert sorted(done.stdout.decode().splitlines()) == ["0│out", "1│out"]


def test_no_colour_when_piped(tmp_path):
    done = run(tmp_path, "-n", 2, "--", "sh", "-c", "echo x; exit 3", env=environment(TERM="xterm"))
    assert b"\033" not in done.stdout + done.stderr


# --- ends ---

def test_the_status_of_a_program_that_ends_well(tmp_path):
    assert run(tmp_path, "-n", 3, "--", "true").returncode == 0
    assert run(tmp_path, "-n", 3, "--", "sh", "-c", "exit 75").returncode == 75


def test_an_exit_status_is_passed_on(tmp_path, there):
    done = run(tmp_path, "-n", 3, "--run-dir", there, "--", "sh", "-c",
               "[ $RANK = 1 ] && { echo reason >&2; exit 3; }; exit 0")
    text = done.stderr.decode()
    assert done.returncode == 3
    assert text.count("error[") == 1
    assert "error[RF0501]: worker 1 failed with exit status 3\n" in text
    assert text.endswith(f"  logs   {there}/logs/g1/001.err, last lines:\n         reason\n")
    error = json.loads((there / "error.json").read_text())
    assert error["rank"] == 1 and error["exit_code"] == 3 and error["last_lines"] == ["reason"]


def test_a_signal_is_128_and_its_number(tmp_path, there):
    done = run(tmp_path, "-n", 2, "--run-dir", there, "--detect", "10ms", "--", "sh", "-c",
               "[ $RANK = 1 ] && kill -9 $$; exit 0")
    text = done.stderr.decode()
    assert done.returncode == 137
    assert "worker 1 was ended by SIGKILL" in text
    assert "oom_kill" in text or "unknown: somebody sent SIGKILL" in text
    assert run(tmp_path, "--", "sh", "-c", "kill -SEGV $$").returncode == 139


def test_a_lost_peer_is_a_consequence_even_if_it_is_seen_first(tmp_path, there):
    done = run(tmp_path, "-n", 4, "--run-dir", there, "--", *python("""
if rank != 2: sys.exit(69)
while open(f'{folder}/events.jsonl').read().count('"exit_code":69') < 3: time.sleep(0.01)
print('the cause', file=sys.stderr)
sys.exit(5)
"""))
    text = done.stderr.decode()
    assert done.returncode == 5
    assert "worker 2 failed with exit status 5" in text
    assert "3 more ended because of it" in text
    assert text.count("error[") == 1


def test_sigkill_from_outside_comes_before_a_status(tmp_path, there):
    done = run(tmp_path, "-n", 2, "--run-dir", there, "--", *python("""
if rank == 0: sys.exit(1)
while '"event":"exit"' not in open(f'{folder}/events.jsonl').read(): time.sleep(0.01)
os.kill(os.getpid(), 9)
"""))
    assert done.returncode == 137
    assert "worker 1 was ended by SIGKILL" in done.stderr.decode()


def test_only_lost_peers(tmp_path):
    done = run(tmp_path, "-n", 2, "--", "sh", "-c", "exit 69")
    assert done.returncode == 69
    assert "lost a peer" in done.stderr.decode()


def test_the_others_are_ended_after_a_failure(tmp_path, there):
    done = run(tmp_path, "-n", 3, "--run-dir", there, "--detect", "10ms", "--", *python("""
open(f'{folder}/pid{rank}', 'w').write(str(os.getpid()))
while len([n for n in os.listdir(folder) if n.startswith('pid')]) < 3: time.sleep(0.01)
if rank == 1: sys.exit(3)
time.sleep(1000)
"""))
    assert done.returncode == 3
    assert "2 had to be stopped" in done.stderr.decode()
    for rank in range(3):
        assert not alive(int((there / f"pid{rank}").read_text()))


def test_a_worker_that_ignores_term_is_killed_after_the_grace(tmp_path, there):
    done = run(tmp_path, "-n", 2, "--run-dir", there, "--detect", "10ms", "--grace", "100ms", "--",
               *python("""
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(f'{folder}/ready{rank}', 'w')
while not all(os.path.exists(f'{folder}/ready{r}') for r in range(2)): time.sleep(0.01)
if rank == 0: sys.exit(4)
time.sleep(1000)
"""))
    assert done.returncode == 4
    assert "killing" in done.stderr.decode()
    ends = {e["rank"]: e for e in events(there) if e["event"] == "exit"}
    assert ends[1]["signal"] == 9


def test_processes_that_a_worker_leaves_behind_are_ended(tmp_path, there):
    done = run(tmp_path, "--run-dir", there, "--", "sh", "-c",
               'sleep 1000 >/dev/null 2>&1 & echo $! > "$RINGFOLD_RUN_DIR/pid"')
    assert done.returncode == 0
    pid = int((there / "pid").read_text())
    wait_for(lambda: not alive(pid), "the end of the process left behind")


@pytest.mark.parametrize("make,status", [(None, 127), (0o644, 126)])
def test_a_program_that_cannot_be_executed(tmp_path, there, make, status):
    program = tmp_path / "prog"
    if make:
        program.write_text("#!/bin/sh\n")
        program.chmod(make)
    done = run(tmp_path, "-n", 4, "--run-dir", there, "--", program)
    text = done.stderr.decode()
    assert done.returncode == status
    assert done.stdout == b""
    assert text.count(str(program)) == (2 if status == 126 else 1)
    assert text.count("error[") == 1 and f"cannot execute '{program}'" in text
    assert json.loads((there / "error.json").read_text())["code"] == "RF0501"


def test_a_script_without_its_interpreter(tmp_path):
    program = tmp_path / "prog"
    program.write_text("#!/no/such/interpreter\n")
    program.chmod(0o755)
    done = run(tmp_path, "--", "./prog")
    assert done.returncode == 127 and "interpreter" in done.stderr.decode()


@pytest.mark.parametrize("words,text", [
    (["-n", "0", "true"], "--workers '0'"),
    (["-n", "x", "true"], "--workers 'x'"),
    (["-n", "129", "true"], "128"),
    (["-n", "4:2", "true"], "MIN:MAX"),
    (["-n", "0:2", "true"], "MIN:MAX"),
    (["-n", "2:129", "true"], "at most 128"),
    (["-n", "2:4", "--ppn", "5", "true"], "not within --workers 2:4"),
    (["--max-restarts", "x", "true"], "--max-restarts 'x'"),
    (["--slow-evict", "-1", "true"], "--slow-evict '-1'"),
    (["--slow-window", "0", "true"], "--slow-window '0'"),
    (["--cool-down", "30", "true"], "--cool-down '30'"),
    (["--store-bind", "here", "true"], "--store-bind 'here'"),
    (["--store-bind", "127.0.0.1:0", "--store", "tcp://127.0.0.1:1", "--key-file", "k", "true"], "hosted here"),
    (["-n", "2"], "none was given"),
    (["--no-such-flag", "true"], "--no-such-flag"),
    (["-n"], "requires an argument"),
    (["--detect", "3", "true"], "--detect '3'"),
    (["--grace", "0s", "true"], "--grace '0s'"),
    (["--show", "0,9", "-n", "2", "true"], "--show '0,9'"),
    (["--show", "1-0", "-n", "2", "true"], "--show '1-0'"),
    (["--transport", "carrier-pigeon", "true"], "carrier-pigeon"),
    (["--algorithm", "bubble", "true"], "bubble"),
    (["--bind", "numa", "true"], "not there yet"),
    (["--job", "a/b", "true"], "--job 'a/b'"),
    (["-x", "RANK=3", "true"], "launcher's"),
    (["-x", "NO_SUCH_VARIABLE", "true"], "NO_SUCH_VARIABLE"),
    (["--join", "host:1", "true"], "--job"),
    (["--join", "host:1", "--job", "j", "true"], "--key-file"),
    (["--join", "host", "--job", "j", "--key-file", "k", "true"], "'host' is not HOST:PORT"),
    (["--join", "host:1", "--job", "j", "--key-file", "k", "-n", "1:2", "true"], "the running job's to say"),
    (["--rdzv-endpoint", "host:1", "true"], "--job"),
    (["--master-addr", "host", "true"], "--master-port"),
    (["--nnodes", "2", "true"], "not there yet"),
    (["-n", "2", "--nproc-per-node", "3", "true"], "do not agree"),
    (["--store", "tcp://127.0.0.1:1", "true"], "--key-file"),
])
def test_wrong_usage(tmp_path, words, text):
    done = run(tmp_path, *words)
    assert done.returncode == 64
    assert text in done.stderr.decode()
    assert done.stdout == b"" and not (tmp_path / "runs").exists()


def test_spellings_of_another_launcher(tmp_path):
    cores = len(os.sched_getaffinity(0))
    count_them = ["--", "sh", "-c", "[ $RANK = 0 ] && echo $WORLD_SIZE; :"]
    for words, count in [(["-np", "2"], 2), (["--nproc_per_node=2"], 2), (["--nproc-per-node", "auto"], cores),
                         (["--ppn", "2", "--nnodes=1", "--node_rank", "0", "--standalone"], 2),
                         (["-n", "2:2"], 2)]:
        done = run(tmp_path, "-q", "--prefix", "none", *words, *count_them)
        assert done.stdout.decode() == f"{count}\n", done.stderr
    done = run(tmp_path, "--max_restarts=3", "--master_port", "29500", "true")
    assert done.returncode == 0
    assert done.stderr.decode().count("without effect here: --master-port\n") == 1


def test_arguments_of_the_program_are_its_own(tmp_path):
    done = run(tmp_path, "-n", 1, "echo", "-n", "5", "--show", "none")
    assert done.stdout == b"5 --show none"


# --- stopping ---

STOPPABLE = """
seen = 0
def on_term(number, frame):
    global seen
    seen += 1
    open(f'{folder}/term{seen}.{rank}', 'w')
signal.signal(signal.SIGTERM, on_term)
open(f'{folder}/ready{rank}', 'w')
while seen < int(sys.argv[1]): time.sleep(0.01)
sys.exit(int(sys.argv[2]))
"""


def start_stoppable(tmp_path, there, terms, status, *words):
    process = start(tmp_path, "-n", 2, "--run-dir", there, *words, "--", *python(STOPPABLE), terms, status)
    wait_for(lambda: (there / "ready0").exists() and (there / "ready1").exists(), "workers")
    return process


def both(there, name):
    wait_for(lambda: (there / f"{name}.0").exists() and (there / f"{name}.1").exists(), name)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2,
                                    signal.SIGHUP])
def test_asked_once_workers_save_and_stop(tmp_path, there, number):
    process = start_stoppable(tmp_path, there, 1, 0)
    process.send_signal(number)
    _, err = finish(process)
    assert process.returncode == 75
    assert "stopping 2 workers: finish the step, save" in err
    assert "error[" not in err
    assert not (there / "error.json").exists()
    assert [e["signal"] for e in events(there) if e["event"] == "stop"] == [number.name]


def test_asked_once_and_a_worker_says_saved(tmp_path, there):
    process = start_stoppable(tmp_path, there, 1, 75)
    process.send_signal(signal.SIGINT)
    assert finish(process) and process.returncode == 75


def test_asked_once_and_a_worker_fails_at_it(tmp_path, there):
    process = start_stoppable(tmp_path, there, 1, 9)
    process.send_signal(signal.SIGINT)
    _, err = finish(process)
    assert process.returncode == 9 and "failed with exit status 9" in err


def test_asked_twice_the_workers_hear_of_it_again(tmp_path, there):
    process = start_stoppable(tmp_path, there, 2, 0)
    process.send_signal(signal.SIGINT)
    both(there, "term1")
    process.send_signal(signal.SIGINT)
    _, err = finish(process)
    assert process.returncode == 75
    assert (there / "term2.0").exists() and (there / "term2.1").exists()
    assert "stopping now" in err


def test_asked_twice_who_does_not_stop_is_killed_soon(tmp_path, there):
    process = start_stoppable(tmp_path, there, 99, 0, "--grace", "10m")
    process.send_signal(signal.SIGTERM)
    both(there, "term1")
    process.send_signal(signal.SIGTERM)
    _, err = finish(process)
    assert process.returncode == 137
    assert "did not stop within 2.0s: killing" in err and "error[" not in err


def test_asked_three_times_workers_are_killed(tmp_path, there):
    process = start_stoppable(tmp_path, there, 99, 0, "--grace", "10m")
    process.send_signal(signal.SIGINT)
    both(there, "term1")
    process.send_signal(signal.SIGINT)
    both(there, "term2")
    process.send_signal(signal.SIGINT)
    _, err = finish(process)
    assert process.returncode == 137
    assert "killing 2 workers" in err


def test_asked_once_who_does_not_stop_within_the_grace_is_killed(tmp_path, there):
    process = start_stoppable(tmp_path, there, 99, 0, "--grace", "200ms")
    process.send_signal(signal.SIGINT)
    _, err = finish(process)
    assert process.returncode == 137 and "did not stop within 200ms: killing" in err


def test_a_program_that_knows_nothing_of_stopping(tmp_path):
    process = start(tmp_path, "-n", 2, "--", "sh", "-c", "echo ready; exec sleep 1000")
    lines = [process.stdout.readline(), process.stdout.readline()]
    assert all(line.endswith(b"ready\n") for line in lines)
    process.send_signal(signal.SIGINT)
    _, err = finish(process)
    assert process.returncode == 143
    assert "not every worker could save" in err and "error[" not in err


def test_a_stopped_worker_is_ended_too(tmp_path, there):
    process = start(tmp_path, "-n", 2, "--run-dir", there, "--", *python(
        "open(f'{folder}/pid{rank}', 'w').write(f'{os.getpid()}\\n')\ntime.sleep(1000)"))
    pids = [int(wait_for(lambda: (there / f"pid{rank}").exists() and
                         (there / f"pid{rank}").read_text(), "pid")) for rank in range(2)]
    os.kill(pids[0], signal.SIGSTOP)
    process.send_signal(signal.SIGTERM)
    finish(process)
    assert process.returncode == 143 and not any(alive(pid) for pid in pids)


def children(pid):
    return [int(word) for word in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_killed_launcher_leaves_no_process_behind(tmp_path, there):
    process = start(tmp_path, "-n", 2, "--run-dir", there, "--", "sh", "-c",
                    'trap "" TERM HUP INT; sleep 1000 & echo $! > "$RINGFOLD_RUN_DIR/pid.$RANK"; wait')
    grandchildren = [int(wait_for(lambda: (there / f"pid.{rank}").exists() and
                                  (there / f"pid.{rank}").read_text().strip(), "grandchild"))
                     for rank in range(2)]
    # two workers, their children, and the guard; for a moment also who writes into the store
    family = wait_for(lambda: (found := children(process.pid) + grandchildren) and len(found) == 5 and found,
                      "the family")
    assert all(alive(pid) for pid in family)
    process.kill()
    process.wait(timeout=DEADLINE_S)
    for pid in family:
        wait_for(lambda: not alive(pid), f"the end of {pid}")
    finish(process)


# --- the run folder ---

def test_files_of_the_run_folder(tmp_path):
    done = run(tmp_path, "-n", 2, "--grace", "5s", "--", "sh", "-c", "echo hi", "a word",
               env=environment(RINGFOLD_DETECT="2s"))
    assert done.returncode == 0, done.stderr
    latest = tmp_path / "runs" / "latest"
    assert latest.is_symlink()
    assert re.fullmatch(r"sh-\d{8}-\d{6}", os.readlink(latest))
    assert f"2 workers on this host, run folder runs/{os.readlink(latest)}\n" in done.stderr.decode()
    description = json.loads((latest / "run.json").read_text())
    assert description["command"] == ["sh", "-c", "echo hi", "a word"]
    assert description["workers"] == 2 and description["cwd"] == str(tmp_path)
    assert description["versions"]["ringfold"] and description["hosts"][0]["name"]
    settings = description["settings"]
    assert settings["workers"] == {"value": "2", "source": "flag --workers"}
    assert settings["grace"] == {"value": "5s", "source": "flag --grace"}
    assert settings["detect"] == {"value": "2s", "source": "variable RINGFOLD_DETECT"}
    assert settings["start-timeout"] == {"value": "5m", "source": "default"}
    assert settings["job"]["source"] == "derived" and settings["job"]["value"].startswith("sh-")
    names = [event["event"] for event in events(latest)]
    assert names[0] == "start" and names[-1] == "end" and names.count("exit") == 2
    assert all(isinstance(event["time"], float) for event in events(latest))
    assert sorted(path.name for path in (latest / "logs" / "g1").iterdir()) == [
        "000.err", "000.out", "001.err", "001.out"]
    assert not (latest / "error.json").exists()


def test_a_flag_comes_before_a_variable(tmp_path, there):
    run(tmp_path, "--detect", "1s", "--run-dir", there, "true", env=environment(RINGFOLD_DETECT="2s"))
    assert json.loads((there / "run.json").read_text())["settings"]["detect"]["value"] == "1s"


def test_a_bad_variable_is_named(tmp_path):
    done = run(tmp_path, "true", env=environment(RINGFOLD_DETECT="soon"))
    assert done.returncode == 64 and "'soon'" in done.stderr.decode()


def test_each_run_gets_its_own_folder(tmp_path):
    for _ in range(3):
        assert run(tmp_path, "-q", "true").returncode == 0
    folders = [path for path in (tmp_path / "runs").iterdir() if not path.is_symlink()]
    assert len(folders) == 3


def test_a_folder_of_another_run_is_not_overwritten(tmp_path, there):
    assert run(tmp_path, "--run-dir", there, "echo", "first").returncode == 0
    done = run(tmp_path, "--run-dir", there, "echo", "second")
    assert done.returncode == 64 and "holds another run" in done.stderr.decode()
    assert (there / "logs/g1/000.out").read_text() == "first\n"


@pytest.mark.parametrize("words", [["--run-dir", "file/x"], []])
def test_a_run_folder_that_cannot_be_made(tmp_path, words):
    (tmp_path / "file").write_text("")
    (tmp_path / "runs").write_text("")
    done = run(tmp_path, *words, "--", "touch", "started")
    text = done.stderr.decode()
    assert done.returncode == 74
    assert "error[RF0104]: cannot make" in text and ("file/x" if words else "runs/") in text
    assert "Not a directory" in text
    assert not (tmp_path / "started").exists()


def test_dry_run_and_explain_start_nothing(tmp_path):
    done = run(tmp_path, "-n", 3, "--dry-run", "--", "touch", "started")
    assert done.returncode == 0 and "RINGFOLD_SIZE=3" in done.stdout.decode()
    done = run(tmp_path, "-n", 3, "--explain", "--", "touch", "started", env=environment(RINGFOLD_GRACE="9s"))
    assert done.returncode == 0
    rows = {line.split()[0]: line.split()[1:] for line in done.stdout.decode().splitlines()}
    assert rows["workers"] == ["3", "flag", "--workers"]
    assert rows["grace"] == ["9s", "variable", "RINGFOLD_GRACE"]
    assert list(tmp_path.iterdir()) == []


def port_of(uri):
    return int(uri.rsplit(":", 1)[1])


def test_the_store_listens_during_the_run_and_not_after(tmp_path, there):
    done = run(tmp_path, "--run-dir", there, "--", *python("""
import socket
socket.create_connection(('127.0.0.1', int(os.environ['RINGFOLD_STORE'].rsplit(':', 1)[1])), 10).close()
"""))
    assert done.returncode == 0, done.stderr
    port = port_of(json.loads((there / "run.json").read_text())["store"])
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 10)


def test_an_existing_store_is_used_as_it_is(tmp_path, there):
    (tmp_path / "key").write_bytes(b"k" * 32)
    done = run(tmp_path, "--store", "tcp://127.0.0.1:9", "--key-file", "key", "--run-dir", there, "--",
               *python("print(os.environ['RINGFOLD_STORE'])"))
    assert done.stdout == b"tcp://127.0.0.1:9\n"


def test_a_run_within_a_worker_is_a_job_of_its_own(tmp_path, there):
    done = run(tmp_path, "--job", "outer", "--run-dir", there, "--", RINGFOLD, "run", "-q", "--run-dir",
               tmp_path / "inner", "--", *python("print(os.environ['RINGFOLD_JOB'], rank)"))
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(rb"python[\w.]*-\w{8} 0\n", done.stdout)


def test_as_many_workers_as_one_host_may_have(tmp_path, there):
    done = run(tmp_path, "-n", 128, "--run-dir", there, "--", "sh", "-c", "echo $RANK")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.decode().splitlines()) == sorted(f"{r:3d}│{r}" for r in range(128))


# --- the command itself ---

def command(*words):
    return subprocess.run([RINGFOLD, *words], capture_output=True, timeout=DEADLINE_S, text=True)


def test_help_and_version():
    assert re.fullmatch(r"ringfold \d+\.\d+\.\d+\n", command("--version").stdout)
    assert "\n  run " in command("--help").stdout
    assert command("help", "run").stdout == command("run", "--help").stdout
    assert "--workers" in command("run", "--help").stdout
    assert command().returncode == 64


def test_an_unknown_command_suggests_the_nearest():
    done = command("rnu")
    assert done.returncode == 64 and "ringfold run" in done.stderr
    done = command("entirely-different")
    assert done.returncode == 64 and "did you mean" not in done.stderr
