"""ringfold bench and the collectives example, under ringfold run."""
import json
import os
import pathlib
import subprocess

import pytest

BIN = pathlib.Path(os.environ["RINGFOLD_BUILD"]).resolve() / "bin"
KEYS = {"bytes", "count", "type", "redop", "time_us", "algbw", "busbw", "wrong", "algorithm", "transport", "n"}
DEADLINE_S = 120


def call(folder, *words):
    kept = {k: v for k, v in os.environ.items() if not k.startswith("RINGFOLD_")}
    return subprocess.run(list(map(str, words)), cwd=folder, env=kept, timeout=DEADLINE_S,
                          capture_output=True, text=True)


def bench(folder, workers, *words):
    return call(folder, BIN / "ringfold", "run", "-n", workers, "-q", "--prefix", "none", "--",
                BIN / "ringfold", "bench", *words)


def lines_of(done):
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("place", [[], ["--out-of-place"], ["--private"]])
@pytest.mark.parametrize("coll", ["allreduce", "all_gather", "reduce_scatter", "broadcast", "reduce",
                                  "gather", "scatter", "all-to-all", "sendrecv"])
def test_each_collective_is_right(tmp_path, coll, place):
    rooted = ["-r", "1"] if coll in ("broadcast", "reduce", "gather", "scatter") else []
    lines = lines_of(bench(tmp_path, 3, coll, "-b", "300", "-e", "70K", "-f", "230", "-n", 2, "-w", 1,
                           "--json", *rooted, *place))
    assert len(lines) == 2
    for line in lines:
        assert KEYS <= line.keys()
        assert line["wrong"] == 0 and line["n"] == 3 and line["time_us"] > 0 and line["count"] > 0
        assert line["in_place"] == (coll != "sendrecv" and place != ["--out-of-place"])
    share = {"allreduce": 4 / 3, "broadcast": 1, "reduce": 1, "sendrecv": 1}.get(coll, 2 / 3)
    assert lines[1]["busbw"] == pytest.approx(lines[1]["algbw"] * share, rel=1e-4)
    assert lines[1]["algbw"] == pytest.approx(lines[1]["bytes"] / lines[1]["time_us"] / 1e3, rel=1e-2)


@pytest.mark.parametrize("kind, redop", [("f32", "avg"), ("f64", "prod"), ("f16", "sum"), ("bf16", "avg"),
                                         ("i8", "avg"), ("u8", "max"), ("i32", "min"), ("u64", "xor")])
def test_types_and_operations(tmp_path, kind, redop):
    (line,) = lines_of(bench(tmp_path, 3, "allreduce", "-b", "24K", "-e", "24K", "-n", 2, "-t", kind, "-o", redop,
                             "--json"))
    assert (line["type"], line["redop"], line["wrong"]) == (kind, redop, 0)


def test_table_for_people(tmp_path):
    done = bench(tmp_path, 2, "allreduce", "-b", "4", "-e", "1K", "-n", 2)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert sum("algbw" in line for line in lines) == 1
    assert [int(line.split()[0]) for line in lines if not line.startswith("#")] == [4, 16, 64, 256, 1024]
    assert lines[-1].startswith("# average busbw: ")


@pytest.mark.parametrize("words", [[], ["nothing"], ["allreduce", "-b", "x"], ["allreduce", "-t", "f32", "-o", "xor"],
                                   ["allreduce", "-b", "8", "-e", "4"], ["broadcast", "-o", "sum"],
                                   ["broadcast", "-r", "1"], ["allreduce", "-b", "1", "-e", "3"], ["sendrecv"],
                                   ["allreduce", "--transport", "smoke"]])
def test_wrong_usage(tmp_path, words):
    done = call(tmp_path, BIN / "ringfold", "bench", *words)
    assert done.returncode == 64
    assert done.stdout == "" and done.stderr != ""


def test_the_example_adds_and_gathers(tmp_path):
    done = call(tmp_path, BIN / "ringfold", "run", "-n", 3, "-q", "--", BIN / "example_collectives")
    assert done.returncode == 0, done.stderr
    for rank in range(3):
        assert f"rank {rank} of 3 all-reduce [9, 12]" in done.stdout
        assert f"rank {rank} of 3 all-gather [1, 2, 3, 4, 5, 6]" in done.stdout
