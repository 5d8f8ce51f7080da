"""Damaged data: exactly the samples in damaged blocks are skipped and logged, and the model is as good as before.

Which samples those are is computed here from the format: image i of an IDX file is bytes 16 + 784 i to 16 + 784 (i + 1).
"""
import gzip
import json
import pathlib
import re
import shutil
import subprocess

import pytest

from helpers import RINGFOLD, environment, reports

SOURCE = pathlib.Path("/usr/share/datasets/fashion-mnist")
IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
TEST_IMAGES, TEST_LABELS = "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"
NAMES = (IMAGES, LABELS, TEST_IMAGES, TEST_LABELS)
TRAIN, TEST, PIXELS, BLOCK = 60000, 10000, 784, 65536
DEADLINE_S = 240


def samples_in(blocks, count=TRAIN):
    """Samples of which at least a byte lies in one of the blocks."""
    found = set()
    for block in blocks:
        first, end = (block * BLOCK - 16) // PIXELS, ((block + 1) * BLOCK - 17) // PIXELS + 1
        found |= set(range(max(first, 0), min(end, count)))
    return found


def command(*words, cwd, code=0, **variables):
    done = subprocess.run([RINGFOLD, *map(str, words)], cwd=cwd, env=environment(HOME=str(cwd), **variables),
                          timeout=DEADLINE_S, capture_output=True, text=True)
    if code is not None:
        assert done.returncode == code, done.stdout + done.stderr
    return done


def objects(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_samples_are_computed_from_the_format():
    for block in (0, 1, 77, 717):
        touching = {i for i in range(TRAIN) if 16 + PIXELS * i < (block + 1) * BLOCK and 16 + PIXELS * (i + 1) > block * BLOCK}
        assert samples_in({block}) == touching


class Run:
    """A training that has ended: what it wrote."""

    def __init__(self, data, folder, *words, workers=2, code=0, **variables):
        folder.mkdir()
        train = [RINGFOLD, "train", "mlp", "--data", data, "--log", folder / "log.jsonl", *words]
        launcher = ["run", "-n", *str(workers).split(), "--run-dir", folder / "run", "--"] if workers else train.pop(0) and []
        self.done = command(*launcher, *train, *([] if workers else ["--run-dir", folder / "run"]), cwd=folder, code=code,
                            **variables)
        log = objects(folder / "log.jsonl")
        self.steps = [line for line in log if "grad_norm" in line]
        self.summary = log[-1]
        bad = folder / "run" / "bad_batches.jsonl"
        self.bad = objects(bad) if bad.exists() else []
        self.screen = self.done.stdout + self.done.stderr

    def skipped(self, part="train", epoch=1):
        """The samples logged for an epoch; none twice."""
        found = [s for line in self.bad if line["part"] == part and line["epoch"] == epoch for s in line["samples"]]
        assert len(found) == len(set(found))
        return set(found)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Fashion-MNIST unpacked and indexed."""
    folder = tmp_path_factory.mktemp("whole")
    for name in NAMES:
        (folder / name).write_bytes(gzip.decompress((SOURCE / (name + ".gz")).read_bytes()))
    done = command("data", "index", *NAMES, cwd=folder)
    assert len(done.stdout.splitlines()) == 4 and "47,040,016 bytes in 718 blocks, indexed in" in done.stdout
    return folder


@pytest.fixture
def data(whole, tmp_path):
    """A copy with its indices, to be damaged."""
    return pathlib.Path(shutil.copytree(whole, tmp_path / "set"))


def flip(path, *offsets):
    with open(path, "r+b") as file:
        for offset in offsets:
            file.seek(offset)
            byte = file.read(1)[0]
            file.seek(offset)
            file.write(bytes([byte ^ 0x55]))


def test_damaged_blocks_cost_their_samples_and_no_more(whole, data, tmp_path):
    blocks = {3, 100, 101, 333, 500, 700, 717}
    expected = samples_in(blocks)
    assert 500 < len(expected) <= TRAIN // 100
    sound = Run(whole, tmp_path / "sound", "--epochs", 2)
    assert not sound.bad and sound.summary["skipped"] == 0
    flip(data / IMAGES, *(b * BLOCK + 1000 for b in blocks), 333 * BLOCK + 60000)
    run = Run(data, tmp_path / "damaged", "--epochs", 2)

    assert run.skipped(epoch=1) == expected and run.skipped(epoch=2) == expected
    for line in run.bad:
        assert set(line) == {"file", "block", "offset", "cause", "part", "step", "epoch", "worker", "rank", "count", "samples"}
        assert line["file"].endswith("/" + IMAGES) and line["block"] in blocks and line["offset"] == line["block"] * BLOCK
        assert line["cause"].startswith("mismatch: ") and line["count"] == len(line["samples"])
        assert line["part"] == "train" and line["worker"] in (0, 1) and line["rank"] == line["worker"]
        assert all(i in samples_in({line["block"]}) for i in line["samples"])
        assert 1 <= line["step"] <= len(run.steps) and run.steps[line["step"] - 1]["epoch"] == line["epoch"]
    for step in run.steps:
        logged = sum(line["count"] for line in run.bad if line["step"] == step["step"])
        assert step["skipped"] == logged
    assert sum(step["samples"] for step in run.steps) == 2 * (TRAIN - len(expected)) == run.summary["samples"]
    assert run.summary["skipped"] == 2 * len(expected)

    assert abs(run.summary["accuracy"] - sound.summary["accuracy"]) <= 0.005
    assert len(set(run.summary["digests"])) == 1 and len(run.summary["digests"]) == 2
    # One line a block, by whichever worker met it first.
    told = re.findall(r"! block (\d+) of '[^']*" + IMAGES + "'", run.screen)
    assert sorted(map(int, told)) == sorted(blocks)
    assert f"skipped  {2 * len(expected):,} samples" in run.screen


def test_a_short_file_costs_what_is_missing(data, tmp_path):
    size = 16 + PIXELS * (TRAIN - 400)
    with open(data / IMAGES, "r+b") as file:
        file.truncate(size)
    expected = samples_in(set(range(size // BLOCK, 718)))
    assert 400 <= len(expected) < 500
    run = Run(data, tmp_path / "short", "--epochs", 1, "--hidden", 16)
    assert run.skipped() == expected
    assert all(line["cause"].startswith("short: the file ends after 46,726,416 of 47,040,016") for line in run.bad)
    assert len(set(run.summary["digests"])) == 1


@pytest.mark.parametrize("workers", ("2", "1:2", "2 --max-restarts 0"))
def test_no_bad_block_is_allowed_with_max_bad_0(data, tmp_path, workers):
    flip(data / IMAGES, 77 * BLOCK)
    run = Run(data, tmp_path / "none", "--max-bad", "0", "--epochs", 1, "--hidden", 16, workers=workers, code=None)
    assert run.done.returncode not in (0, 75)
    assert reports(run.screen) == 1 and "error[RF0401]" in run.screen, run.screen
    assert re.search(r"error\[RF0401\].*block 77 of '[^']*" + IMAGES, run.screen), run.screen
    # The first step that met it is the last one.
    assert run.steps[-1]["skipped"] > 0 and all(s["skipped"] == 0 for s in run.steps[:-1])
    assert {line["step"] for line in run.bad} == {run.steps[-1]["step"]}
    assert len(list((tmp_path / "none" / "run" / "logs").iterdir())) == 1  # nobody was started again


def test_more_than_the_share_ends_the_run(data, tmp_path):
    flip(data / IMAGES, *(b * BLOCK for b in range(10, 40)))
    run = Run(data, tmp_path / "many", "--epochs", 1, "--hidden", 16, code=None)
    assert run.done.returncode not in (0, 75) and reports(run.screen) == 1
    before = [sum(s["skipped"] for s in run.steps[:k]) for k in range(1, len(run.steps) + 1)]
    assert before[-1] > TRAIN // 100 and before[-2] <= TRAIN // 100
    assert f"{before[-1]} of {TRAIN} training samples were skipped" in run.screen
    run = Run(data, tmp_path / "allowed", "--epochs", 1, "--hidden", 16, "--max-bad", "10%")
    assert run.skipped() == samples_in(set(range(10, 40)))


def test_damaged_test_data_is_left_out_of_the_accuracy(data, tmp_path):
    flip(data / TEST_IMAGES, 50 * BLOCK + 17)
    expected = samples_in({50}, TEST)
    run = Run(data, tmp_path / "test", "--epochs", 2, "--hidden", 16)
    for epoch in (1, 2):
        assert run.skipped("test", epoch) == expected and not run.skipped("train", epoch)
    assert run.summary["skipped"] == 0 and run.screen.count(f"of {TEST - len(expected):,}, test loss") == 2
    usable = run.summary["accuracy"] * (TEST - len(expected))
    assert abs(usable - round(usable)) < 1e-6


def test_what_cannot_be_read_is_skipped(data, tmp_path):
    read = {"RINGFOLD_FAULTS": "1", "RINGFOLD_FAULT_READ": f"{IMAGES}:{200 * BLOCK + 5}-{201 * BLOCK + 1}"}
    checked = command("data", "check", "--json", IMAGES, cwd=data, code=1, **read)
    lines = [json.loads(line) for line in checked.stdout.splitlines()]
    assert [line["block"] for line in lines[:-1]] == [200, 201] and lines[-1]["bad"] == 2
    assert all(line["cause"] == "unreadable: Input/output error" for line in lines[:-1])
    run = Run(data, tmp_path / "eio", "--epochs", 1, "--hidden", 16, workers=0, **read)
    assert run.skipped() == samples_in({200, 201})
    assert all(line["cause"] == "unreadable: Input/output error" for line in run.bad)
    # Without the permission to rehearse there is no rehearsal.
    del read["RINGFOLD_FAULTS"]
    command("data", "check", IMAGES, cwd=data, **read)


def test_check_finds_what_is_damaged(data):
    assert "good, 47,040,016 bytes in 718 blocks" in command("data", "check", *NAMES, cwd=data).stdout
    flip(data / IMAGES, 5 * BLOCK, 717 * BLOCK + 50000)
    done = command("data", "check", *NAMES, cwd=data, code=1)
    assert f"{IMAGES}: block 5, 65536 bytes from 327,680: mismatch: " in done.stdout
    assert f"{IMAGES}: block 717, 50704 bytes from 46,989,312: mismatch: " in done.stdout
    assert done.stdout.count("good, ") == 3 and "2 of the 718 blocks" in done.stderr and reports(done.stderr) == 1
    assert "already in" in command("data", "index", IMAGES, cwd=data).stdout
    assert "indexed in" in command("data", "index", "--force", IMAGES, cwd=data).stdout
    command("data", "check", IMAGES, cwd=data)


def test_indices_are_made_by_who_comes_first_and_results_stay(whole, tmp_path):
    data = tmp_path / "set"
    data.mkdir()
    for name in NAMES:
        shutil.copy(whole / name, data / name)
    run = Run(data, tmp_path / "first", "--steps", 20, "--hidden", 16)
    assert {path.name for path in data.iterdir()} == {*NAMES, *(name + ".rfindex" for name in NAMES)}
    for name in NAMES:
        assert (data / (name + ".rfindex")).read_bytes() == (whole / (name + ".rfindex")).read_bytes()
    packed = Run(SOURCE, tmp_path / "packed", "--steps", 20, "--hidden", 16)
    assert packed.summary["digest"] == run.summary["digest"]
    assert not list(SOURCE.glob("*.rfindex"))


def test_words_that_make_no_sense(data):
    for words in (("data",), ("data", "look"), ("data", "index"), ("data", "check", "--force", IMAGES),
                  ("data", "index", "--retries", "1", IMAGES), ("data", "check", "--retries", "x", IMAGES),
                  ("train", "mlp", "--data", ".", "--max-bad", "101%"), ("train", "mlp", "--data", ".", "--max-bad", "x")):
        assert command(*words, cwd=data, code=64).stderr
    done = command("data", "check", "nowhere", cwd=data, code=1)
    assert "error[RF0402]" in done.stderr and "'nowhere'" in done.stderr
    (data / "other").write_bytes(b"bytes")
    assert "'other' has no index" in command("data", "check", "other", cwd=data, code=1).stderr
    (data / (IMAGES + ".rfindex")).write_bytes(b"nonsense")
    done = command("data", "check", IMAGES, cwd=data, code=1)
    assert "error[RF0401]" in done.stderr and f"'{IMAGES}.rfindex'" in done.stderr and "--force" in done.stderr
