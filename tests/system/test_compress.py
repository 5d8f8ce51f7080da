"""Training with gradients that travel as less than float32: the same seed, and nearly the same losses; workers that stay
identical, also when one of them is killed; and what is said where the settings do not fit."""
import json
import os
import pathlib
import signal
import statistics
import subprocess

import pytest

from helpers import RINGFOLD, environment, reports, wait_for

DATA = pathlib.Path("/usr/share/datasets/fashion-mnist")
STEPS, DEADLINE_S = 240, 300
LIMIT_LOSS = {"bf16": 0.01, "int8": 0.02}  # relative, of the mean over the last fifth of all steps


def command(*words, flags=("-n", 2), model="mlp"):
    words = [RINGFOLD, "run", *flags, "--run-dir", "run", "--", RINGFOLD, "train", model, "--data", DATA, "--hidden", 64,
             "--shards", 12, "--batch", 96, *words]
    return list(map(str, words))


def train(folder, *words, env=None, **more):
    return subprocess.run(command(*words, **more), cwd=folder, env=env or environment(), timeout=DEADLINE_S,
                          capture_output=True, text=True)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    found = {}
    for wire in ("none", "bf16", "int8"):
        folder = tmp_path_factory.mktemp(wire)
        done = train(folder, "--steps", STEPS, "--compress", wire, "--log", "log", "--transport", "tcp")
        assert done.returncode == 0, done.stdout + done.stderr
        *steps, summary = map(json.loads, (folder / "log").read_text().splitlines())
        settings = json.loads((folder / "run/train.json").read_text())["settings"]
        found[wire] = [step["loss"] for step in steps], summary, settings, done.stdout
    return found


@pytest.mark.parametrize("wire", ("bf16", "int8"))
def test_losses_are_those_of_float32(runs, wire):
    losses, summary, settings, screen = runs[wire]
    exact, exact_summary, _, exact_screen = runs["none"]
    assert len(losses) == len(exact) == STEPS
    assert losses[0] == exact[0] and losses != exact  # the same start, and then something was rounded
    last, exact_last = (statistics.mean(each[-STEPS // 5:]) for each in (losses, exact))
    assert last < 0.5 * exact[0]
    assert abs(last - exact_last) <= LIMIT_LOSS[wire] * exact_last
    assert abs(summary["accuracy"] - exact_summary["accuracy"]) < 0.02
    assert summary["digests"] == [summary["digest"]] * 2 and summary["digest"] != exact_summary["digest"]
    assert settings["compress"] == {"value": wire, "source": "flag"}
    assert f"gradients travel as {wire}" in screen and "travel" not in exact_screen


@pytest.mark.parametrize("wire", ("bf16", "int8"))
def test_the_transport_does_not_change_the_bits(tmp_path, wire):
    digests = []
    for transport in ("shm", "tcp"):
        folder = tmp_path / transport
        folder.mkdir()
        env = environment(RINGFOLD_COMPRESS=wire)
        done = train(folder, "--steps", 12, "--transport", transport, "--log", "log", "-q", env=env, flags=("-n", 3))
        assert done.returncode == 0, done.stderr
        summary = json.loads((folder / "log").read_text().splitlines()[-1])
        assert summary["digests"] == [summary["digest"]] * 3
        digests.append(summary["digest"])
    assert digests[0] == digests[1]


@pytest.mark.parametrize("wire", ("bf16", "int8"))
def test_a_worker_is_killed(tmp_path, wire):
    words = command("--epochs", 1, "--compress", wire, "--log", "log", flags=("--workers", "2:3", "--max-restarts", 0))
    job = subprocess.Popen(words, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    log = tmp_path / "log"
    wait_for(lambda: log.exists() and log.read_bytes().count(b"\n") >= 20, "20 steps", job)
    victim = None
    for entry in pathlib.Path("/proc").iterdir():  # rank 2 among the launcher's own children
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
                if parent == job.pid and b"RINGFOLD_RANK=2\0" in (entry / "environ").read_bytes():
                    victim = int(entry.name)
            except OSError:
                pass
    assert victim
    os.kill(victim, signal.SIGKILL)
    out, err = job.communicate(timeout=DEADLINE_S)
    assert job.returncode == 0, out + err
    *steps, summary = map(json.loads, log.read_text().splitlines())
    assert [step["step"] for step in steps] == list(range(1, summary["steps"] + 1)) and summary["steps"] == 625
    assert summary["workers"] == 2 and summary["digests"] == [summary["digest"]] * 2
    assert summary["samples"] == 60000 and summary["accuracy"] > 0.75
    assert "worker 2 lost" in err


def test_workers_that_differ_are_named(tmp_path):
    script = f"exec {RINGFOLD} train mlp --data {DATA} --steps 4 --compress $([ $RINGFOLD_RANK = 1 ] && echo int8 || echo bf16)"
    for flags in (("-n", "2"), ("--workers", "1:2")):
        done = subprocess.run([RINGFOLD, "run", *flags, "--", "sh", "-c", script], cwd=tmp_path, env=environment(),
                              timeout=DEADLINE_S, capture_output=True, text=True)
        assert done.returncode == 1, done.stdout + done.stderr
        assert "gradients of rank 1 of 2 travel as 'int8', those of rank 0 as 'bf16'" in done.stderr
        assert reports(done.stderr) == 1 and "done:" not in done.stdout


def test_a_type_that_is_none(tmp_path):
    done = subprocess.run([RINGFOLD, "train", "mlp", "--data", DATA, "--compress", "int4"], cwd=tmp_path,
                          env=environment(), timeout=DEADLINE_S, capture_output=True, text=True)
    assert done.returncode == 64 and "--compress is none, bf16 or int8, not 'int4'" in done.stderr


@pytest.mark.parametrize("place", [[], ["--out-of-place"], ["--private"]])
@pytest.mark.parametrize("wire", ("none", "bf16", "int8"))
def test_bench(tmp_path, wire, place):
    for transport in ("shm", "tcp"):
        done = subprocess.run([RINGFOLD, "run", "-n", "3", "-q", "--prefix", "none", "--", RINGFOLD, "bench", "allreduce",
                               "-b", "4", "-e", "4M", "-f", "32", "-n", "4", "--json", "--wire", wire, "--transport",
                               transport, *place], cwd=tmp_path, env=environment(), timeout=DEADLINE_S,
                              capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        assert [line["bytes"] for line in lines] == [4, 128, 4096, 131072, 4194304]
        assert all(line["wrong"] == 0 and line["wire"] == wire and line["type"] == "f32" for line in lines)


@pytest.mark.parametrize("words", [["all_gather", "--wire", "int8"], ["allreduce", "--wire", "int8", "-t", "f16"],
                                   ["allreduce", "--wire", "bf16", "-o", "max"], ["allreduce", "--wire", "tin"]])
def test_bench_of_what_cannot_be_compressed(tmp_path, words):
    done = subprocess.run([RINGFOLD, "bench", *words], cwd=tmp_path, env=environment(), timeout=DEADLINE_S,
                          capture_output=True, text=True)
    assert done.returncode == 64 and "--wire" in done.stderr or "wire type" in done.stderr
