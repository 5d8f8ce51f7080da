"""ringfold train: alone and under the launcher, on a small set of images that is made here."""
import gzip
import json
import os
import pathlib
import pty
import random
import re
import select
import signal
import struct
import subprocess
import time

import pytest

BUILD = pathlib.Path(os.environ["RINGFOLD_BUILD"]).resolve()
RINGFOLD = str(BUILD / "bin" / "ringfold")
EXAMPLE = str(BUILD / "bin" / "example_least_squares")
DEADLINE_S = 120
TRAIN, TEST, SIDE = 230, 53, 28
STEP_KEYS = {"step", "epoch", "loss", "grad_norm", "lr", "step_s", "compute_s", "data_s", "comm_s", "exposed_s",
             "wait_s", "samples", "skipped", "samples_per_s", "digest"}
SUMMARY_KEYS = {"accuracy", "loss", "test_loss", "steps", "samples", "samples_per_s", "seconds", "digest", "digests",
                "workers", "compute_s", "comm_s", "exposed_s", "wait_s", "data_s", "hidden_ratio", "memory"}


def environment(**more):
    kept = {k: v for k, v in os.environ.items() if not k.startswith("RINGFOLD_")}
    return {**kept, "OMP_NUM_THREADS": "1", "TERM": "xterm", **more}


def idx(dims, elements):
    return struct.pack(">I", 0x800 + len(dims)) + b"".join(struct.pack(">I", d) for d in dims) + elements


def images(count, seed):
    """Image i shows class i mod 10: a bright bar at the class's height, over noise."""
    rng = random.Random(seed)
    rows = []
    for i in range(count):
        image = bytearray(rng.randrange(100) for _ in range(SIDE * SIDE))
        top = (i % 10 + 2) * 2 * SIDE
        for p in range(top, top + 2 * SIDE):
            image[p] += 150
        rows.append(bytes(image))
    return idx((count, SIDE, SIDE), b"".join(rows))


def labels(count):
    return idx((count,), bytes(i % 10 for i in range(count)))


@pytest.fixture(scope="module")
def content():
    return {"train-images-idx3-ubyte": images(TRAIN, 1), "train-labels-idx1-ubyte": labels(TRAIN),
            "t10k-images-idx3-ubyte": images(TEST, 2), "t10k-labels-idx1-ubyte": labels(TEST)}


@pytest.fixture
def data(tmp_path, content):
    """The set in a folder, one file of it gzip."""
    folder = tmp_path / "set"
    folder.mkdir()
    for name, whole in content.items():
        if name.startswith("train-images"):
            (folder / (name + ".gz")).write_bytes(gzip.compress(whole, 1))
        else:
            (folder / name).write_bytes(whole)
    return folder


def command(data, *words, workers=0, model="mlp", flags=()):
    train = [RINGFOLD, "train", model, "--data", data, "--hidden", 16, *words]
    launcher = [RINGFOLD, "run", "-n", workers, *flags, "--"] if workers else []
    return list(map(str, launcher + train))


def train(data, *words, workers=0, model="mlp", env=None, code=0):
    done = subprocess.run(command(data, *words, workers=workers, model=model), cwd=data.parent, timeout=DEADLINE_S,
                          env=env or environment(), capture_output=True, text=True)
    if code is not None:
        assert done.returncode == code, done.stdout + done.stderr
    return done


def objects(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def tensors(path):
    """A safetensors file: checked in all that the format demands, and taken apart."""
    whole = path.read_bytes()
    (length,) = struct.unpack("<Q", whole[:8])
    assert length % 8 == 0 and length <= 100_000_000
    header = json.loads(whole[8:8 + length])
    assert header.pop("__metadata__") == {"format": "pt"}
    found, at = {}, 0
    for name, entry in header.items():
        count = 1
        for size in entry["shape"]:
            count *= size
        assert entry["dtype"] == "F32" and entry["data_offsets"] == [at, at + 4 * count]
        found[name] = struct.unpack(f"<{count}f", whole[8 + length + at:8 + length + at + 4 * count])
        at += 4 * count
    assert 8 + length + at == len(whole)
    return found


def wait_for(condition, process):
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        assert process.poll() is None, "ended before its time"
        time.sleep(0.01)
    raise AssertionError("never happened")


def lines_in(path):
    return path.read_bytes().count(b"\n") if path.exists() else 0


def reports(text):
    """Reports on the whole screen, wherever in a line they are."""
    return text.count("error[RF")


# --- training ---------------------------------------------------------------------------------------


def test_alone(tmp_path, data):
    done = train(data, "--epochs", 3, "--batch", 50, "--optimizer", "sgd", "--log", "log.jsonl")
    folder = tmp_path / "runs" / "latest"
    assert folder.is_symlink() and folder.resolve().name.startswith("train-mlp-")
    *steps, summary = objects(tmp_path / "log.jsonl")
    assert [s["step"] for s in steps] == list(range(1, 16))
    assert [s["samples"] for s in steps] == [50, 50, 50, 50, 30] * 3
    assert [s["epoch"] for s in steps] == [1] * 5 + [2] * 5 + [3] * 5
    assert all(set(s) == STEP_KEYS for s in steps)
    assert SUMMARY_KEYS <= set(summary)
    assert set(summary["memory"]) == {"parameters", "gradients", "averaged", "optimizer", "activations"}
    assert summary["steps"] == 15 and summary["samples"] == 3 * TRAIN and summary["workers"] == 1
    assert summary["digests"] == [summary["digest"]]
    assert summary["accuracy"] > 0.9 and summary["loss"] < steps[0]["loss"]
    assert 0 <= summary["hidden_ratio"] <= 1 and not summary["stopped"]
    assert objects(folder / "metrics.jsonl") == steps
    settings = json.loads((folder / "train.json").read_text())["settings"]
    assert settings["batch"] == {"value": "50", "source": "flag"}
    assert settings["momentum"] == {"value": "0.90000000000000002", "source": "default"}
    weights = tensors(folder / "model.safetensors")
    assert 4 * sum(map(len, weights.values())) == summary["memory"]["parameters"]
    assert summary["digest"] in (folder / "SUMMARY.md").read_text()
    assert summary["digest"] in done.stdout and "model.safetensors" in done.stdout
    assert len(re.findall(r"^epoch \d: accuracy", done.stdout, re.M)) == 3
    assert not list(folder.glob("*.tmp*"))


def test_the_batch_does_not_depend_on_the_workers(tmp_path, data):
    losses, gradients = {}, {}
    for n in (1, 2, 3, 4):
        train(data, "--steps", 8, "--batch", 48, "--shards", 12, "--log", f"log{n}", "--save-gradients", f"g{n}",
              "--save", f"w{n}", workers=n)
        *steps, summary = objects(tmp_path / f"log{n}")
        assert len(steps) == 8 and [s["samples"] for s in steps] == [48, 48, 48, 48, 38, 48, 48, 48]
        assert summary["workers"] == n
        assert summary["digests"] == [summary["digest"]] * n
        losses[n] = [s["loss"] for s in steps]
        gradients[n] = tensors(tmp_path / f"g{n}")
        assert losses[n] == pytest.approx(losses[1], rel=1e-3)
        for name, values in gradients[n].items():
            assert values == pytest.approx(gradients[1][name], rel=1e-3, abs=1e-5)
        assert tensors(tmp_path / f"w{n}").keys() == gradients[n].keys()


def test_the_same_seed_gives_the_same_bits(tmp_path, data):
    digests = []
    for k, words in enumerate((["--seed", 3], ["--seed", 3], ["--seed", 3, "--no-overlap"], ["--seed", 4])):
        train(data, "--steps", 4, "--batch", 48, "--log", f"log{k}", *words, workers=2)
        digests.append(objects(tmp_path / f"log{k}")[-1]["digest"])
    assert digests[0] == digests[1] == digests[2] != digests[3]


def test_flags_win_over_variables(tmp_path, data):
    env = environment(RINGFOLD_STEPS="2", RINGFOLD_WEIGHT_DECAY="0.5", RINGFOLD_EPOCHS="")
    train(data, "--weight-decay", "0.25", "--log", "log", env=env)
    assert objects(tmp_path / "log")[-1]["steps"] == 2
    settings = json.loads((tmp_path / "runs/latest/train.json").read_text())["settings"]
    assert settings["steps"] == {"value": "2", "source": "environment"}
    assert settings["weight-decay"] == {"value": "0.25", "source": "flag"}
    done = train(data, env=environment(RINGFOLD_BATCH="many"), code=64)
    assert "RINGFOLD_BATCH is 'many'" in done.stderr


# --- the screen -------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", (0, 2))
def test_piped_output_is_plain(data, workers):
    done = train(data, "--epochs", 2, workers=workers)
    assert "\r" not in done.stdout and "\033" not in done.stdout + done.stderr
    assert done.stdout.count("|g|") == 1
    table = [line for line in done.stdout.splitlines() if re.search(r"^(\d│)? *\d+/\d+ ", line)]
    assert table and all(len(line) <= 80 for line in table)
    for digits in re.findall(r"digest 0x(\w+)", done.stdout):
        assert len(digits) == 16
    if workers:
        assert re.search(r"digest +0: 0x\w{16}  1: 0x\w{16}$", done.stdout, re.M), done.stdout
        first, second = re.findall(r"\b[01]: (0x\w{16})", done.stdout)
        assert first == second and "equal on all 2 workers" in done.stdout


@pytest.mark.parametrize("term,live", (("xterm", True), ("dumb", False)))
def test_a_terminal_has_a_live_line(data, term, live):
    leader, follower = pty.openpty()
    process = subprocess.Popen(command(data, "--epochs", 2), cwd=data.parent, env=environment(TERM=term),
                               stdout=follower, stderr=follower)
    os.close(follower)
    seen = b""
    while select.select([leader], [], [], DEADLINE_S)[0]:
        try:
            piece = os.read(leader, 65536)
        except OSError:
            break
        if not piece:
            break
        seen += piece
    os.close(leader)
    assert process.wait(DEADLINE_S) == 0
    assert (b"\r\x1b[K" in seen) == live
    assert b"\r" in seen.replace(b"\r\n", b"") if live else b"\r" not in seen.replace(b"\r\n", b"")
    assert b"\ndone: " in seen.replace(b"\r\x1b[K", b"")


def test_quiet_prints_nothing(tmp_path, data):
    done = train(data, "--steps", 2, "-q", "--log", "log")
    assert done.stdout == done.stderr == ""
    assert objects(tmp_path / "log")[-1]["steps"] == 2


# --- trouble ----------------------------------------------------------------------------------------


def spoil(data, name, change):
    path = data / name
    path.write_bytes(change(path.read_bytes()))


@pytest.mark.parametrize("name,change,words", (
    ("t10k-images-idx3-ubyte", lambda b: b[:1234], "ends after 1,234 of 41,568 bytes"),
    ("t10k-images-idx3-ubyte", lambda b: b + b"x", "trailing garbage from byte 41,568"),
    ("t10k-images-idx3-ubyte", lambda b: b"\x89PNG" + b[4:], "begins with 0x89504e47 at byte 0, expected 0x00000803"),
    ("train-images-idx3-ubyte.gz", lambda b: b[:len(b) // 2], "of 180,336 bytes"),
    ("train-images-idx3-ubyte.gz", lambda b: b[:-8] + bytes([b[-8] ^ 1]) + b[-7:], "is corrupt near byte"),
    ("train-labels-idx1-ubyte", lambda b: b[:8] + b"\x0b" + b[9:], "has label 11 for sample 0 (byte 8), expected 0 to 9"),
    ("train-labels-idx1-ubyte", lambda b: labels(TRAIN - 1), "has 229 labels (byte 4), expected 230")))
@pytest.mark.parametrize("workers", (0, 3))
def test_bad_data_is_refused_with_reasons(data, name, change, words, workers):
    spoil(data, name, change)
    done = train(data, "--steps", 2, workers=workers, code=None)
    assert done.returncode not in (0, 64, 69), done.stderr
    assert words in done.stderr and name in done.stderr
    assert reports(done.stdout + done.stderr) == 1


def test_missing_data_names_the_package(data):
    done = train(data.parent / "nowhere", code=1)
    assert "no 'train-images-idx3-ubyte' or 'train-images-idx3-ubyte.gz' in" in done.stderr
    assert "dataset-fashion-mnist" in done.stderr
    assert reports(done.stdout + done.stderr) == 1


@pytest.mark.parametrize("workers", (0, 3))
def test_an_unknown_model_names_those_there_are(data, workers):
    done = train(data, model="perceptron", workers=workers, code=None)
    assert done.returncode != 0
    assert "'perceptron'" in done.stderr and "mlp" in done.stderr and "cnn" in done.stderr
    assert reports(done.stdout + done.stderr) == 1


def test_usage(data):
    for words in (["--steps", "x"], ["--lr", "-1"], ["--lr", "nan"], ["--clip", "-1"], ["--weight-decay=-1"], ["--bucket-bytes", "1X"], ["more"],
                  ["--transport", "pigeon"], ["--batch", "10", "--shards", "3"], ["--heads", "2"], ["--compute", "bf16"], ["--memory", "1G"]):
        done = train(data, *words, code=64)
        assert done.stderr and not done.stdout
    done = subprocess.run([RINGFOLD, "train", "mlp"], env=environment(), capture_output=True, text=True)
    assert done.returncode == 64 and "--data DIR" in done.stderr


@pytest.mark.parametrize("workers", (0, 3))
@pytest.mark.parametrize("restarts", ("0", "3"))
@pytest.mark.parametrize("log,reason", (("/dev/full", "No space left on device"),
                                        ("nowhere/log", "No such file or directory")))
def test_a_log_that_cannot_be_written_ends_all(data, log, reason, restarts, workers):
    done = train(data, "--steps", 100000, "--log", log, workers=workers, code=74,
                 env=environment(RINGFOLD_MAX_RESTARTS=restarts))
    assert f"cannot write '{log}': {reason}" in done.stderr
    assert reports(done.stdout + done.stderr) == 1


def children(pid):
    found = []
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        found += [int(child) for child in (task / "children").read_text().split()]
    return found


def rank_of(pid):
    for variable in pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
        if variable.startswith(b"RINGFOLD_RANK="):
            return int(variable[14:])
    return None


@pytest.mark.parametrize("transport", ("shm", "tcp"))
@pytest.mark.parametrize("victim", (0, 2))
def test_a_killed_worker_of_a_fixed_job_ends_the_others(tmp_path, data, victim, transport):
    process = subprocess.Popen(command(data, "--steps", 10**7, "--run-dir", "run", "--transport", transport,
                                       workers=4, flags=("--max-restarts", 0)), cwd=tmp_path,
                               env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        wait_for(lambda: lines_in(tmp_path / "run" / "metrics.jsonl") > 3, process)
        workers = {rank_of(pid): pid for pid in children(process.pid)}
        os.kill(workers[victim], signal.SIGKILL)
        out, err = process.communicate(timeout=DEADLINE_S)
    finally:
        process.kill()
    assert process.returncode != 0
    assert reports(out + err) == 1 and f"worker {victim}" in err
    assert not any(pathlib.Path(f"/proc/{pid}").exists() for pid in workers.values())


@pytest.mark.parametrize("victim", (0, 2))
@pytest.mark.parametrize("words", (("-n", "3"), ("-n", "2:3", "--max-restarts", "0")))
def test_training_goes_on_without_a_killed_worker(tmp_path, data, victim, words):
    """Each step is in the files once, whoever wrote it, and whoever is left has the last word."""
    run = tmp_path / "run"
    process = subprocess.Popen(list(map(str, [
        RINGFOLD, "run", *words, "--run-dir", run, "--", RINGFOLD, "train", "mlp", "--data", data, "--hidden", 16,
        "--steps", 10**7, "--log", "log"])), cwd=tmp_path, env=environment(), stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True)
    try:
        wait_for(lambda: lines_in(tmp_path / "log") > 3, process)
        workers = {rank_of(pid): pid for pid in children(process.pid)}
        os.kill(workers[victim], signal.SIGKILL)
        wanted = '"heal"' if "3" in words else '"generation": 2'
        wait_for(lambda: wanted in (run / "events.jsonl").read_text(), process)
        seen = lines_in(tmp_path / "log")
        wait_for(lambda: lines_in(tmp_path / "log") > seen + 3, process)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=DEADLINE_S)
    finally:
        process.kill()
    assert process.returncode == 75, out + err
    *steps, summary = objects(tmp_path / "log")
    assert [s["step"] for s in steps] == list(range(1, summary["steps"] + 1))
    assert objects(run / "metrics.jsonl") == steps
    assert summary["stopped"] and set(summary["digests"]) == {summary["digest"]}
    assert reports(out + err) == 0
    assert len(re.findall(f"! worker {victim} lost: ended by SIGKILL; step [0-9]+ goes on with", err)) == 1
    assert out.count("stopped: ") == 1 and out.count("|g|") == 1
    assert "failures survived 1, " in out
    assert tensors(run / "model.safetensors")


@pytest.mark.parametrize("workers,number", ((0, signal.SIGINT), (0, signal.SIGUSR1), (3, signal.SIGTERM)))
def test_a_signal_stops_after_the_step(tmp_path, data, workers, number):
    process = subprocess.Popen(command(data, "--steps", 10**7, "--run-dir", "run", "--log", "log", workers=workers),
                               cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True)
    try:
        wait_for(lambda: lines_in(tmp_path / "log") > 3, process)
        process.send_signal(number)
        out, err = process.communicate(timeout=DEADLINE_S)
    finally:
        process.kill()
    assert process.returncode == 75, out + err
    *steps, summary = objects(tmp_path / "log")
    assert summary["stopped"] and summary["steps"] == len(steps) == steps[-1]["step"]
    assert summary["digests"] == [summary["digest"]] * max(workers, 1)
    assert "stopped: " in out and reports(err) == 0
    assert tensors(tmp_path / "run" / "model.safetensors")


# --- a user's own loop ------------------------------------------------------------------------------


def test_the_example_gives_the_same_on_any_number_of_workers(tmp_path):
    alone = subprocess.run([EXAMPLE], env=environment(), capture_output=True, text=True, timeout=DEADLINE_S)
    assert alone.returncode == 0, alone.stderr
    four = subprocess.run([RINGFOLD, "run", "-n", "4", "--", EXAMPLE], cwd=tmp_path, env=environment(),
                          capture_output=True, text=True, timeout=DEADLINE_S)
    assert four.returncode == 0, four.stderr
    first = [float(loss) for loss in re.findall(r"loss (\S+)", alone.stdout)]
    second = [float(loss) for loss in re.findall(r"loss (\S+)", four.stdout)]
    assert first == pytest.approx(second, rel=1e-3, abs=1e-5) and first[-1] < 1e-3 * first[0]
    assert "w[7] = 7.0000, b = 0.5000, digest 0x" in alone.stdout
    assert four.stdout.count("on every worker") == 1
