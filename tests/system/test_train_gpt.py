"""ringfold train gpt: a small text made into tokens, trained on alone and by several workers, stopped, killed and resumed."""
import json
import math
import random
import signal
import subprocess

import pytest

from helpers import DEADLINE_S, RINGFOLD, environment, safetensors, wait_for

SHAPE = ("--depth", 2, "--heads", 2, "--width", 16, "--context", 16)
TENSORS = 2 + 12 * 2 + 2


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with the text `text` and its tokens `tokens`."""
    folder = tmp_path_factory.mktemp("gpt")
    rng = random.Random(1)
    words = ["the ", "king ", "went ", "to ", "a ", "house ", "and ", "saw ", "it.\n"]
    (folder / "text").write_text("".join(rng.choice(words) for _ in range(4000)))
    subprocess.run([RINGFOLD, "data", "tokens", "text", "-o", "tokens"], cwd=folder, env=environment(), check=True,
                   timeout=DEADLINE_S, capture_output=True)
    return folder


def command(*words, workers=0, flags=(), data="tokens", shape=SHAPE):
    train = [RINGFOLD, "train", "gpt", "--data", data, *shape, *words]
    launcher = [RINGFOLD, "run", "-n", workers, *flags, "--"] if workers else []
    return list(map(str, launcher + train))


def train(place, out, *words, code=0, **more):
    done = subprocess.run(command("--run-dir", out, *words, **more), cwd=place, timeout=DEADLINE_S, env=environment(),
                          capture_output=True, text=True)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def objects(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def floats(path):
    return {name: memoryview(data).cast("f") for name, (_, data) in safetensors(path).items()}


def assert_close(a, b, tolerance):
    difference = size = 0.0
    assert a.keys() == b.keys()
    for name in a:
        assert len(a[name]) == len(b[name])
        difference += sum((x - y) ** 2 for x, y in zip(a[name], b[name]))
        size += sum(x * x for x in a[name])
    assert (difference / size) ** 0.5 <= tolerance


def test_alone(tmp_path, place):
    out = tmp_path / "run"
    done = train(place, out, "--steps", 60, "--batch", 16, "--lr", 0.01, "--eval-every", 20, "--eval-samples", 9,
                 "--log", tmp_path / "log")
    *steps, last = objects(tmp_path / "log")
    assert [s["step"] for s in steps] == list(range(1, 61))
    assert all(s["tokens"] == 16 * s["samples"] for s in steps) and [s["samples"] for s in steps[:3]] == [16] * 3
    assert all(math.isclose(s["tokens_per_s"], 16 * s["samples_per_s"]) for s in steps)
    vocabulary = json.loads((place / "tokens" / "tokenizer.json").read_text())["vocabulary"]
    assert abs(steps[0]["loss"] - math.log(vocabulary)) < 0.5
    assert steps[-1]["loss"] < steps[0]["loss"] - 1
    assert steps[0]["lr"] < steps[5]["lr"] > steps[59]["lr"], "it rises, for a tenth of the steps, and falls"
    assert last["val_loss"] == last["test_loss"] and last["loss"] > last["val_loss"] > 0 and last["steps"] == 60
    assert last["tokens"] == sum(s["tokens"] for s in steps) and math.isclose(last["tokens_per_s"], 16 * last["samples_per_s"])
    assert last["peak_bytes"] > sum(last["memory"].values())
    metrics = objects(out / "metrics.jsonl")
    measured = [m for m in metrics if "val_loss" in m]
    start = json.loads((out / "train.json").read_text())
    epoch = start["steps_per_epoch"]
    assert 40 < epoch < 60 and [m["step"] for m in measured] == [20, 40, epoch, 60] and {m["val_tokens"] for m in measured} == {9 * 16}
    assert [m for m in metrics if "val_loss" not in m] == steps and metrics[20] == measured[0]
    assert measured[-1]["val_loss"] == last["val_loss"] < measured[0]["val_loss"]
    assert (start["context"], start["vocabulary"], start["measured"]) == (16, vocabulary, 9)
    assert start["settings"]["depth"] == {"value": "2", "source": "flag"}
    assert start["settings"]["clip"] == {"value": "auto", "source": "default"}
    weights = safetensors(out / "model.safetensors")
    assert len(weights) == TENSORS and sum(len(data) for _, data in weights.values()) == 4 * start["parameters"]
    for words in ("windows of 16 tokens", "memory a worker: parameters and optimizer", "tok/s",
                  f"step 40: val loss {measured[1]['val_loss']:.4f}", "tokens/s", "best     val loss"):
        assert words in done.stdout, done.stdout
    assert done.stdout.index("memory a worker") < done.stdout.index("1/60"), "it is told before training starts"
    assert all(len(line) < 80 for line in done.stdout.splitlines() if " log " not in line and " weights " not in line and
               "output in" not in line)
    assert "| tokens/s |" in (out / "SUMMARY.md").read_text()


def test_the_same_with_any_number_of_workers(tmp_path, place):
    held = {}
    for workers in (1, 2, 3):
        out = tmp_path / str(workers)
        train(place, out, "--steps", 12, "--batch", 12, "--shards", 6, "--dropout", 0.1, "--eval-samples", 10, "--log",
              tmp_path / f"log-{workers}", workers=workers)
        last = objects(tmp_path / f"log-{workers}")[-1]
        assert last["digests"] == [last["digest"]] * workers
        held[workers] = floats(out / "model.safetensors"), last
    for workers in (2, 3):
        assert_close(held[1][0], held[workers][0], 1e-4)
        assert math.isclose(held[1][1]["val_loss"], held[workers][1]["val_loss"], rel_tol=1e-4)


def test_stopped_and_resumed_is_as_if_it_had_not_been(tmp_path, place):
    words = ("--steps", 400, "--batch", 8, "--shards", 2, "--dropout", 0.1, "--eval-every", 150, "--eval-samples", 4)
    train(place, tmp_path / "straight", *words, workers=2)
    keep = ("--checkpoint", tmp_path / "ck", "--every", 1000)
    process = subprocess.Popen(command("--run-dir", tmp_path / "cut", *words, *keep, workers=2), cwd=place, env=environment(),
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    metrics = tmp_path / "cut" / "metrics.jsonl"
    wait_for(lambda: metrics.exists() and metrics.read_bytes().count(b"\n") > 20, "twenty steps", process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=DEADLINE_S) == 75
    at = max(line["step"] for line in objects(metrics))
    assert 20 < at < 400
    train(place, tmp_path / "rest", *words, *keep, "--resume", "auto", workers=2)
    assert objects(tmp_path / "rest" / "metrics.jsonl")[0]["step"] == at + 1
    whole, rest = (tmp_path / name / "model.safetensors" for name in ("straight", "rest"))
    assert whole.read_bytes() == rest.read_bytes()


def test_a_worker_is_killed_and_training_goes_on(tmp_path, place):
    out = tmp_path / "run"
    words = ("--steps", 600, "--batch", 12, "--shards", 6, "--eval-every", 50, "--eval-samples", 10, "--log", tmp_path / "log")
    process = subprocess.Popen(command(*words, workers="2:3", flags=("--run-dir", out)), cwd=place, env=environment(),
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    metrics = out / "metrics.jsonl"
    wait_for(lambda: metrics.exists() and metrics.read_bytes().count(b"\n") > 30, "thirty steps", process)
    children = (f"/proc/{process.pid}/task/{process.pid}/children")
    victim = int(open(children, encoding="ascii").read().split()[-1])
    subprocess.run(["kill", "-KILL", str(victim)], check=True)
    stdout, stderr = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, stdout + stderr
    *steps, last = objects(tmp_path / "log")
    assert [s["step"] for s in steps] == list(range(1, 601)), "no step is lost or told of twice"
    windows = json.loads((out / "train.json").read_text())["train_samples"]
    first = [s["samples"] for s in steps if s["epoch"] == 1]
    assert sum(first) == windows and set(first[:-1]) == {12}, "each window of an epoch counts once"
    assert set(last["digests"]) == {last["digest"]} and last["val_loss"] < steps[0]["loss"] - 1
    measured = [m["step"] for m in objects(metrics) if "val_loss" in m]
    assert measured == sorted(set(measured)) and measured[-1] == 600


def test_windows_in_a_damaged_block_are_left_out(tmp_path, place):
    (tmp_path / "long").write_text((place / "text").read_text() * 8)
    subprocess.run([RINGFOLD, "data", "tokens", tmp_path / "long", "-o", tmp_path / "made"], env=environment(), check=True,
                   timeout=DEADLINE_S, capture_output=True)
    data = tmp_path / "made"
    whole = bytearray((data / "train.bin").read_bytes())
    assert len(whole) > 3 << 16
    whole[(1 << 16) + 500] ^= 1  # block 1
    (data / "train.bin").write_bytes(whole)
    out = tmp_path / "run"
    done = train(tmp_path, out, "--epochs", 1, "--batch", 500, "--max-bad", 0.5, "--log", tmp_path / "log", data=data, workers=2)
    *steps, last = objects(tmp_path / "log")
    bad = {sample for line in objects(out / "bad_batches.jsonl") for sample in line["samples"]}
    assert {line["block"] for line in objects(out / "bad_batches.jsonl")} == {1}
    windows = (len(whole) - 1024) // 2 // 16
    touching = {w for w in range(windows) if 1024 + 2 * (16 * w + 17) > 1 << 16 and 1024 + 32 * w < 2 << 16}
    assert bad == touching and last["skipped"] == len(bad) == sum(s["skipped"] for s in steps)
    assert all(0 < s["loss"] < 5 for s in steps), "averages are over what was used"
    assert "bad" in done.stderr
    done = train(tmp_path, out, "--epochs", 1, "--batch", 500, "--max-bad", 0, data=data, workers=2, code=1)
    assert "max-bad" in done.stdout + done.stderr


@pytest.mark.parametrize("words, shape, said, then, code", (
    ((), ("--heads", 3, "--width", 16), "3 heads do not divide a width of 16", "--width 15, or --heads", 64),
    ((), ("--context", 30000), "expected more than a window of 30000", "--context", 1),
    (("--memory", "2M"), ("--width", 384), "and may take 2.00 MiB", "fewer workers", 1),
    (("--memory", "30M", "--batch", 64, "--micro-batch", 64), ("--context", 256, "--width", 64, "--heads", 2), "this worker would take",
     "--micro-batch (now ", 1),
    (("--compute", "f16"), (), "expected f32 or bf16", "", 64),
    (("--dropout", 1), (), "dropout is 1", "", 64),
))
@pytest.mark.parametrize("workers", (0, 2))
def test_what_cannot_be(tmp_path, place, words, shape, said, then, code, workers):
    done = train(place, tmp_path / "run", "--steps", 2, *words, shape=shape, workers=workers, code=code)
    told = done.stdout + done.stderr
    assert said in told and then in told and told.count("error[RF") == 1, told


def test_a_folder_without_a_tokenizer(tmp_path, place):
    (tmp_path / "empty").mkdir()
    done = train(place, tmp_path / "run", "--steps", 2, data=tmp_path / "empty", code=1)
    assert "tokenizer.json" in done.stderr and "ringfold data tokens TEXT -o" in done.stderr, done.stderr
    done = subprocess.run([RINGFOLD, "train", "gpt"], cwd=place, env=environment(), capture_output=True, text=True,
                          timeout=DEADLINE_S)
    assert done.returncode == 64 and "ringfold data tokens TEXT -o DIR" in done.stderr


def test_another_shape_does_not_go_on(tmp_path, place):
    keep = ("--steps", 6, "--checkpoint", tmp_path / "ck")
    train(place, tmp_path / "first", *keep)
    manifest = json.loads(max((tmp_path / "ck").glob("step-*/manifest.json")).read_text())
    config = manifest["config"]
    assert {k: config[k] for k in ("model", "depth", "heads", "width", "context", "dropout", "compute")} == {
        "model": "gpt", "depth": 2, "heads": 2, "width": 16, "context": 16, "dropout": 0, "compute": "f32"}
    assert config["vocabulary"] == json.loads((place / "tokens" / "tokenizer.json").read_text())["vocabulary"]
    for shape, said in ((("--depth", 2, "--heads", 4, "--width", 16, "--context", 16), "heads: 2 in the checkpoint, 4 in the model"),
                        (("--depth", 3, "--heads", 2, "--width", 16, "--context", 16), "depth: 2 in the checkpoint, 3 in the model")):
        done = train(place, tmp_path / "other", *keep, "--resume", "auto", shape=shape, code=64)
        assert said in done.stderr and "go on with the model" in done.stderr, done.stderr


def test_bf16_learns_or_says_what_is_missing(tmp_path, place):
    done = subprocess.run(command("--run-dir", tmp_path / "run", "--steps", 60, "--lr", 0.01, "--compute", "bf16", "--log",
                                  tmp_path / "log"), cwd=place, timeout=DEADLINE_S, env=environment(), capture_output=True, text=True)
    if done.returncode:
        assert "bf16 needs a processor with AVX512-BF16 or AMX" in done.stderr
        return
    *steps, last = objects(tmp_path / "log")
    assert last["val_loss"] < steps[0]["loss"] - 1
