"""ringfold drill: real processes are killed, frozen and added; most tests with a launcher of the test's own, whose group exists
only in it and can be made to go wrong."""
import json
import os
import pathlib
import signal
import subprocess

import pytest

from helpers import DEADLINE_S, RINGFOLD, environment, wait_for

FAKE = str(pathlib.Path(__file__).resolve().parents[1] / "programs" / "fake_launcher.py")
KEYS = {"faults", "detect_ms", "next_commit_ms", "rejoin_ms", "steps", "steps_lost", "steps_retried", "throughput_ratio",
        "participation", "digests_equal", "verdict"}


def words(folder, *flags, command=("x",)):
    return [RINGFOLD, "drill", "--launcher", FAKE, "--run-dir", str(folder / "run"), "--json", str(folder / "out.json"),
            *map(str, flags), "--", *command]


def drill(folder, *flags, command=("x",)):
    """(exit status, result, stdout, stderr), and nothing is left behind."""
    done = subprocess.run(words(folder, *flags, command=command), cwd=folder, timeout=2 * DEADLINE_S, text=True,
                          env=environment(RINGFOLD_BINARY=RINGFOLD), capture_output=True)
    wait_for(lambda: not left_behind(folder), "the last process ends")
    out = folder / "out.json"
    return done.returncode, json.loads(out.read_text()) if out.exists() else None, done.stdout, done.stderr


def left_behind(folder):
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if bytes(folder) in path.read_bytes() and int(path.parent.name) != os.getpid():
                found.append(path.parent.name)
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            pass
    return found


def log(folder, event=None):
    lines = [json.loads(line) for line in (folder / "run" / "drill.jsonl").read_text().splitlines()]
    return [line for line in lines if event in (None, line["event"])]


def plan(folder):
    return [{k: v for k, v in line.items() if k != "event"} for line in log(folder, "plan")]


def events(folder, event):
    lines = (folder / "run" / "run" / "events.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, lines) if line["event"] == event]


@pytest.mark.parametrize("kind", ["kill", "freeze", "cut", "flip", "store"])
def test_each_kind_of_fault_is_carried_out_and_measured(tmp_path, kind):
    status, result, out, err = drill(tmp_path, "-n", 4, "--faults", kind, "--faults-total", 3, "--mtbf", "200ms",
                                     "--detect", "1s" if kind == "cut" else "300ms", "--seed", 5)
    assert status == 0, out + err
    assert KEYS <= set(result)
    assert result["verdict"] == "pass" and result["digests_equal"] is True and result["steps_lost"] == 0
    assert result["faults"] == 3 and result["by_kind"][kind]["faults"] == 3 and list(result["by_kind"]) == [kind]
    assert result["throughput_ratio"] is None and result["steps"] > 0
    assert 0 < result["participation"] <= 1
    noticed = 0 if kind == "store" else 3
    for name in ("detect_ms", "rejoin_ms"):
        assert result[name]["count"] == noticed
        assert (result[name]["median"] is None) == (noticed == 0)
    if kind in ("kill", "freeze", "cut"):
        assert result["next_commit_ms"]["count"] == 3
        assert result["next_commit_ms"]["median"] >= result["detect_ms"]["median"] > 0
    # One line for each on the screen.
    assert sum(f" {kind} " in line and line[2] == ":" for line in out.splitlines()) == 3
    assert out.rstrip().splitlines()[-1].split() == ["verdict", "pass"]


def test_a_killed_worker_is_another_process_afterwards(tmp_path):
    status, result, _, _ = drill(tmp_path, "-n", 3, "--faults", "kill", "--faults-total", 2, "--mtbf", "200ms")
    assert status == 0
    struck = [(line["id"], line["pid"]) for line in log(tmp_path, "fault")]
    ended = [(line["id"], line["pid"]) for line in events(tmp_path, "exit") if line["signal"] == signal.SIGKILL]
    assert struck == ended
    assert [line["id"] for line in events(tmp_path, "worker")] == [id for id, _ in struck]
    assert result["shards_redone"] > 0 and result["steps_retried"] > 0


def test_the_same_worker_can_be_given_one_order_after_the_other(tmp_path):
    """The order of a fault that is over is taken back before the next one is given."""
    faults = [{"event": "plan", "at": 0.2 * i, "fault": "flip", "victim": 1, "seconds": 0} for i in range(6)]
    (tmp_path / "plan.jsonl").write_text("".join(json.dumps(fault) + "\n" for fault in faults))
    status, result, out, err = drill(tmp_path, "-n", 3, "--replay", "plan.jsonl")
    assert status == 0, out + err
    assert result["detect_ms"]["count"] == 6 and result["rejoin_ms"]["count"] == 6


def test_a_slow_worker_goes_on_in_the_end(tmp_path):
    status, result, out, _ = drill(tmp_path, "-n", 3, "--faults", "slow", "--faults-total", 1, "--mtbf", "100ms")
    assert status == 0, out
    assert result["rejoin_ms"]["count"] == 1 and result["detect_ms"]["count"] == 0
    assert "not put out" in out


@pytest.mark.parametrize("seed", [3, 8])
def test_a_joiner_takes_part_and_goes(tmp_path, seed):
    status, result, out, err = drill(tmp_path, "-n", 3, "--faults", "join", "--faults-total", 1, "--mtbf", "100ms",
                                     "--seed", seed)
    assert status == 0, out + err
    assert result["rejoin_ms"]["count"] == 1 and result["next_commit_ms"]["count"] == 1
    assert log(tmp_path, "outcome")[0]["done"] is True
    commits = (tmp_path / "run" / "join-1" / "commits.jsonl").read_text().splitlines()
    assert len(commits) > 1
    assert out.splitlines()[1].split()[1:4] == ["join", "worker", "1001:"]


def test_the_schedule_is_written_before_it_is_carried_out_and_can_be_repeated(tmp_path):
    flags = ["-n", 4, "--workers", "2:4", "--faults", "kill,flip,freeze", "--mtbf", "150ms", "--detect", "200ms"]
    folders = [tmp_path / name for name in ("first", "same", "replay", "other")]
    for folder in folders:
        folder.mkdir()
    first, same, replay, other = folders
    assert drill(first, *flags, "--faults-total", 6, "--seed", 11)[0] == 0
    assert drill(same, *flags, "--faults-total", 6, "--seed", 11)[0] == 0
    assert drill(other, *flags, "--faults-total", 6, "--seed", 12)[0] == 0
    assert plan(first) == plan(same) != plan(other)
    status, result, out, err = drill(replay, "-n", 4, "--workers", "2:4", "--detect", "200ms", "--replay",
                                     first / "run" / "drill.jsonl")
    assert status == 0, out + err
    assert plan(replay) == plan(first) and result["faults"] == 6
    order = [(line["event"], line["number"]) for line in log(first) if line["event"] in ("plan", "fault")]
    assert order == [(event, number) for number in range(1, 7) for event in ("plan", "fault")]
    assert log(first)[0]["event"] == "drill" and log(first)[0]["seed"] == 11
    assert log(first)[-1] == {"event": "end", "verdict": "pass", "reason": ""}


def test_enough_healthy_workers_always_stay(tmp_path):
    status, result, out, err = drill(tmp_path, "-n", 3, "--workers", "2:3", "--faults", "kill,freeze", "--mtbf", "20ms",
                                     "--detect", "100ms", "--faults-total", 15)
    assert status == 0, out + err
    assert result["postponed"] > 0 and result["faults"] == 15
    assert all(line["size"] >= 2 for line in events(tmp_path, "form"))
    # Only one could be spared: until it commits again, nobody else is struck.
    commits = [json.loads(line) for line in (tmp_path / "run" / "run" / "commits.jsonl").read_text().splitlines()]
    faults = log(tmp_path, "fault")
    for fault, later in zip(faults, faults[1:]):
        assert any(commit["id"] == fault["id"] and fault["time"] < commit["time"] < later["time"] for commit in commits)


@pytest.mark.parametrize("wrong, reason", [
    ("differ", "different digests"),
    ("lose", "committed units are lost"),
    ("stuck", "was not back"),
    ("exit=7", "the command ended with status 7"),
])
def test_what_goes_wrong_is_found(tmp_path, wrong, reason):
    total = 100 if wrong == "exit=7" else 2
    status, result, out, err = drill(tmp_path, "-n", 3, "--faults", "kill", "--faults-total", total, "--mtbf", "300ms",
                                     "--settle", "3s", "--seed", 1, command=("y", wrong))
    assert status == 1
    assert result["verdict"] == "fail" and reason in result["reason"], out
    assert f"verdict        fail: {result['reason']}" in out
    assert err.count("error[RF") == 1 and reason in err
    assert result["digests_equal"] is (wrong != "differ")
    assert (result["steps_lost"] > 0) is (wrong in ("differ", "lose"))
    if wrong == "exit=7":
        assert "the launcher has given up" in err


def test_a_command_that_never_begins_is_not_waited_for_for_ever(tmp_path):
    status, result, _, err = drill(tmp_path, "-n", 3, "--start-timeout", "500ms", command=("slow_start",))
    assert status == 1 and "nothing was committed within 500ms" in err
    assert result["steps"] == 0 and result["faults"] == 0


def test_a_command_may_end_by_itself(tmp_path):
    status, result, out, _ = drill(tmp_path, "-n", 3, "--faults", "kill", "--mtbf", "50ms", "--seed", 2,
                                   command=("steps=300",))
    assert status == 0, out
    assert result["ended_by_itself"] is True and result["steps"] == 300 and result["faults"] > 0


def test_a_rehearsal_without_a_fault_is_none(tmp_path):
    status, result, _, err = drill(tmp_path, "-n", 3, "--faults", "kill", "--mtbf", "2h", command=("steps=20",))
    assert status == 1 and result["faults"] == 0 and "before anything struck" in err


def test_throughput_is_held_against_a_run_without_faults(tmp_path):
    status, result, out, _ = drill(tmp_path, "-n", 3, "--faults", "kill", "--mtbf", "200ms", "--minutes", "0.03",
                                   "--baseline=0.5")
    assert status == 0, out
    ratio = result["units_per_second"] / result["baseline_units_per_second"]
    assert abs(result["throughput_ratio"] - ratio) < 1e-6
    commits = (tmp_path / "run" / "baseline" / "run" / "commits.jsonl").read_text().splitlines()
    assert len({json.loads(line)["generation"] for line in commits}) == 1


def test_a_known_throughput(tmp_path):
    status, result, _, _ = drill(tmp_path, "-n", 3, "--faults", "kill", "--mtbf", "100ms", "--faults-total", 1,
                                 "--baseline-throughput", 1000)
    assert status == 0
    assert abs(result["throughput_ratio"] - result["units_per_second"] / 1000) < 1e-6


def test_what_is_no_event_is_counted_and_left_out(tmp_path):
    status, result, out, err = drill(tmp_path, "-n", 3, "--faults", "kill", "--faults-total", 3, "--mtbf", "300ms",
                                     command=("garbage",))
    assert status == 0, out + err
    assert result["bad_lines"] > 10 and result["steps_lost"] == 0 and result["faults"] == 3


def running(folder, *flags):
    process = subprocess.Popen(words(folder, *flags), cwd=folder, text=True, env=environment(RINGFOLD_BINARY=RINGFOLD),
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_for(lambda: (folder / "run" / "drill.jsonl").exists() and log(folder, "fault"), "a fault strikes", process)
    return process


@pytest.mark.parametrize("kind", ["freeze", "slow", "store", "join", "cut"])
def test_asked_to_stop_it_reports_and_leaves_nothing_behind(tmp_path, kind):
    process = running(tmp_path, "-n", 3, "--faults", kind, "--mtbf", "50ms", "--detect", "30s")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 75, out + err
    wait_for(lambda: not left_behind(tmp_path), "the last process ends")
    result = json.loads((tmp_path / "out.json").read_text())
    assert result["verdict"] == "fail" and "stopped on request" in result["reason"]
    assert result["faults"] >= 1 and result["steps_lost"] == 0 and result["digests_equal"] is True
    assert "not over when the rehearsal ended" in out or kind == "join"


def test_killed_it_leaves_nothing_behind(tmp_path):
    process = running(tmp_path, "-n", 3, "--faults", "join,freeze", "--mtbf", "50ms", "--detect", "30s")
    process.kill()
    process.communicate(timeout=DEADLINE_S)
    wait_for(lambda: not left_behind(tmp_path), "the last process ends")


def test_json_on_stdout_is_all_that_is_there(tmp_path):
    done = subprocess.run([RINGFOLD, "drill", "--launcher", FAKE, "-n", "3", "--faults", "kill", "--faults-total", "1",
                           "--mtbf", "50ms", "--json", "-", "--", "x"], cwd=tmp_path, timeout=DEADLINE_S,
                          env=environment(RINGFOLD_BINARY=RINGFOLD), capture_output=True, text=True)
    assert done.returncode == 0
    result = json.loads(done.stdout)
    assert result["verdict"] == "pass" and "verdict" in done.stderr
    assert result["run_dir"].startswith("runs/drill-") and (tmp_path / result["run_dir"] / "result.json").exists()


@pytest.mark.parametrize("flags, reason", [
    (["-n", 2, "--workers", "2:2"], "none of 2 workers can be spared for 'kill'"),
    (["-n", 1], "none of 1 workers can be spared"),
    (["-n", 2, "--faults", "flip"], "'flip' needs 3 workers"),
    (["-n", 3, "--workers", "4:5"], "-n 3 is not within --workers 4:5"),
    (["--workers", "3:2"], "is not MIN:MAX"),
    (["-n", 0], "is not a number from 1"),
    (["-n", 3, "--faults", "kill,burn"], "'burn' is none of"),
    (["-n", 3, "--faults", ""], "is none of"),
    (["-n", 3, "--minutes", "-1"], "is not a number of minutes"),
    (["-n", 3, "--mtbf", "5"], "is not a time"),
    (["-n", 3, "--seed", "x"], "is not a whole number"),
    (["-n", 3, "--baseline=2"], "is not a number above 0"),
    (["-n", 3, "--baseline", "--baseline-throughput", 3], "measures what"),
    (["-n", 3, "--replay", "missing.jsonl"], "cannot read 'missing.jsonl'"),
])
def test_wrong_use(tmp_path, flags, reason):
    status, result, _, err = drill(tmp_path, *flags)
    assert status in (64, 74) and reason in err and result is None
    assert not (tmp_path / "run").exists()


def test_a_program_is_needed(tmp_path):
    done = subprocess.run([RINGFOLD, "drill", "-n", "3"], cwd=tmp_path, timeout=DEADLINE_S, capture_output=True, text=True)
    assert done.returncode == 64 and "which program" in done.stderr


@pytest.mark.parametrize("text, reason", [
    ("", "not one fault"),
    ('{"event": "drill"}\n', "not one fault"),
    ("kill\n", "line 1 of"),
    ('{"event": "plan", "at": 1, "fault": "burn", "victim": 0, "seconds": 0}\n', "line 1 of"),
    ('{"event": "drill"}\n{"event": "plan", "at": -1, "fault": "kill", "victim": 0, "seconds": 0}\n', "line 2 of"),
    ('{"event": "plan", "at": 1, "fault": "kill", "victim": -1, "seconds": 0}\n', "line 1 of"),
    ('{"event": "plan", "at": 1, "fault": "slow", "victim": 1, "seconds": 1e9}\n', "line 1 of"),
    ("x" * 100000 + "\n", "not one fault"),
])
def test_a_schedule_that_cannot_be_read_is_refused(tmp_path, text, reason):
    (tmp_path / "plan.jsonl").write_text(text)
    status, result, _, err = drill(tmp_path, "-n", 3, "--replay", "plan.jsonl")
    assert status != 0 and reason in err and result is None


def test_another_rehearsals_folder_is_refused(tmp_path):
    flags = ["-n", 3, "--faults", "kill", "--faults-total", 1, "--mtbf", "50ms"]
    assert drill(tmp_path, *flags)[0] == 0
    status, _, _, err = drill(tmp_path, *flags)
    assert status == 64 and "holds another rehearsal" in err


def test_a_launcher_that_cannot_be_started(tmp_path):
    done = subprocess.run([RINGFOLD, "drill", "--launcher", "/no/such", "--run-dir", "run", "-n", "3", "--", "x"],
                          cwd=tmp_path, timeout=DEADLINE_S, capture_output=True, text=True)
    assert done.returncode == 74 and "cannot execute '/no/such'" in done.stderr
    wait_for(lambda: not left_behind(tmp_path), "the last process ends")


def test_faults_of_checkpoints_and_their_storage(tmp_path):
    """Real workers: killed while they write their part, and with a storage that is down or full."""
    trainee = str(pathlib.Path(RINGFOLD).parents[1] / "tests" / "trainee")
    done = subprocess.run(list(map(str, [RINGFOLD, "drill", "-n", 3, "--faults", "checkpoint,storage", "--faults-total", 6, "--mtbf", "500ms",
                                         "--detect", "1s", "--seed", 4, "--run-dir", tmp_path / "run", "--json", tmp_path / "out.json", "--",
                                         trainee, 1000000, 10])),
                          cwd=tmp_path, env=environment(TRAINEE_CHECKPOINT=str(tmp_path / "ck"), TRAINEE_EVERY="5"), timeout=4 * DEADLINE_S,
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "out.json").read_text())
    assert result["verdict"] == "pass" and result["steps_lost"] == 0 and result["digests_equal"] is True and result["faults"] == 6
    assert set(result["by_kind"]) == {"checkpoint", "storage"}
    told = [line["what"] for line in events(tmp_path, "checkpoint")]
    assert "failed" in told and told.count("saved") > 2
