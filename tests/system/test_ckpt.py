"""ringfold ckpt: what it prints, refuses, copies, marks and removes."""
import json
import os
import pathlib
import subprocess

import pytest

BUILD = pathlib.Path(os.environ["RINGFOLD_BUILD"]).resolve()
RINGFOLD = str(BUILD / "bin" / "ringfold")
MAKE = str(BUILD / "tests" / "make_ckpt")


def make(folder, step, parts=2, *more):
    subprocess.run([MAKE, folder, str(step), str(parts), *map(str, more)], check=True, timeout=60)


def ckpt(*words, status=0, cwd=None):
    done = subprocess.run([RINGFOLD, "ckpt", *map(str, words)], capture_output=True, text=True, timeout=60, cwd=cwd)
    assert done.returncode == status, (done.stdout, done.stderr)
    assert (done.stderr == "") == (status == 0), done.stderr
    return done.stdout if status == 0 else done.stderr


def names(folder):
    return {entry["step"]: entry for entry in json.loads(ckpt("list", folder, "--json"))["checkpoints"]}


def damage(folder, step, file="part-0-of-2.safetensors"):
    path = next(folder.glob(f"step-{step:08}-*")) / file
    bytes_ = bytearray(path.read_bytes())
    bytes_[len(bytes_) // 2] ^= 1
    path.write_bytes(bytes_)
    return path


def test_list(tmp_path):
    assert ckpt("list", tmp_path / "none") == f"no checkpoints under {tmp_path}/none\n"
    make(tmp_path, 10)
    make(tmp_path, 20, 3, 0, 10)
    make(tmp_path, 30)
    next(tmp_path.glob("step-00000030-*/manifest.json")).unlink()
    lines = ckpt("list", f"file:{tmp_path}").splitlines()
    assert lines[0].split() == ["step", "checkpoint", "state", "parts", "size", "written"]
    assert [line.split()[0] for line in lines[1:4]] == ["10", "20", "30"]
    assert [line.split()[2] for line in lines[1:4]] == ["whole", "whole", "incomplete"]
    assert lines[3].endswith("there is no manifest")
    assert "2 whole, 1 incomplete, 0 bad; the newest whole one is step-00000020-" in lines[5]
    assert len(lines) == 6
    listed = json.loads(ckpt("list", tmp_path, "--json"))
    assert listed["histories"] == 1 and [c["state"] for c in listed["checkpoints"]] == ["whole", "whole", "incomplete"]


def test_two_histories_are_told(tmp_path):
    make(tmp_path, 10)
    make(tmp_path, 20, 2, 0, 10)
    make(tmp_path, 25, 2, 1, 10)
    last = ckpt("list", tmp_path).splitlines()[-1]
    assert "2 histories: step-00000025-" in last and "have step 10 in common and part at a step from 11 to 20" in last
    listed = json.loads(ckpt("list", tmp_path, "--json"))
    assert listed["histories"] == 2 and listed["common_step"] == 10 and listed["first_different_step"] == [11, 20]


def test_show(tmp_path):
    make(tmp_path, 10)
    make(tmp_path, 20, 3, 0, 10)
    text = ckpt("show", tmp_path)
    assert text.startswith("step-00000020-") and "job         made" in text and "after       step 10" in text
    assert any(line.split()[:5] == ["layer1.weight", "f32", "[128,", "100]", "50.00"] for line in text.splitlines())
    one = json.loads(ckpt("show", tmp_path, "--step", 10, "--json"))
    assert one["step"] == 10 and one["parts"] == 2 and one["config"] == {"model": "none", "batch": 128}
    assert [t["name"] for t in one["tensor_list"]][-1] == "momentum" and not one["tensor_list"][-1]["trained"]
    assert sum(p["bytes"] for p in one["part_list"]) < one["bytes"]
    assert json.loads(ckpt("show", tmp_path, "--step", one["name"], "--json")) == one


def test_which_one_must_be_clear(tmp_path):
    make(tmp_path, 10)
    make(tmp_path, 10, 2, 1)
    assert "two whole checkpoints have step 10: 'step-00000010-" in ckpt("show", tmp_path, "--step", 10, status=64)
    assert "there is no checkpoint of step 11" in ckpt("show", tmp_path, "--step", 11, status=1)
    assert "neither a step nor the name" in ckpt("show", tmp_path, "--step", "newest", status=64)
    assert "there is no whole checkpoint" in ckpt("show", tmp_path / "none", status=1)
    damage(tmp_path, 10, "manifest.json")
    name = next(c["name"] for c in json.loads(ckpt("list", tmp_path, "--json"))["checkpoints"] if c["state"] == "bad")
    assert "its digest does not match" in ckpt("show", tmp_path, "--step", name, status=1)
    assert ckpt("show", tmp_path, "--step", 10).startswith("step-00000010-")  # the other one


def test_verify_and_mark(tmp_path):
    for step in (10, 20, 30, 40):
        make(tmp_path, step)
    assert ckpt("verify", tmp_path).count("good, 2 of 2 parts verified") == 4
    damage(tmp_path, 20)
    damage(tmp_path, 40, "manifest.json")
    error = ckpt("verify", tmp_path, status=1)
    assert error.startswith("error[RF0309]: ") and "part-0-of-2.safetensors': its " in error
    assert error.count("error[") == 1 and "\n  next " in error
    assert names(tmp_path)[20]["state"] == "whole"  # nobody marked it
    found = subprocess.run([RINGFOLD, "ckpt", "verify", tmp_path, "--mark", "--json"], capture_output=True, text=True,
                           timeout=60)
    assert found.returncode == 1
    assert [one["good"] for one in json.loads(found.stdout)] == [True, False, True, False]
    assert names(tmp_path)[20]["state"] == "bad" and "digest" in names(tmp_path)[20]["reason"]
    assert json.loads(ckpt("show", tmp_path, "--json"))["step"] == 30
    ckpt("verify", tmp_path, "--step", 30)
    ckpt("verify", tmp_path, "--step", 20, status=1)


def test_copy(tmp_path):
    make(tmp_path / "a", 10, 3)
    make(tmp_path / "a", 20, 3)
    assert "each verified" in ckpt("copy", tmp_path / "a", "--to", "file:b", cwd=tmp_path)
    assert list(names(tmp_path / "b")) == [20]
    ckpt("copy", tmp_path / "a", "--to", tmp_path / "b")  # again
    ckpt("copy", tmp_path / "a", "--to", tmp_path / "b", "--step", 10)
    for path in (tmp_path / "a").rglob("*.*"):
        assert (tmp_path / "b" / path.relative_to(tmp_path / "a")).read_bytes() == path.read_bytes()
    make(tmp_path / "c", 10, 2)
    assert "another checkpoint stands at" in ckpt("copy", tmp_path / "c", "--to", tmp_path / "b", status=1)
    damage(tmp_path / "a", 20, "part-1-of-3.safetensors")
    assert "part-1-of-3.safetensors': its " in ckpt("copy", tmp_path / "a", "--to", tmp_path / "d", status=1)
    assert all(entry["state"] == "incomplete" for entry in names(tmp_path / "d").values())


def test_export_replaces_all_or_nothing(tmp_path):
    make(tmp_path / "a", 10)
    ckpt("export", "a", "--output", "model", cwd=tmp_path)
    before = (tmp_path / "model").read_bytes()
    assert json.loads(ckpt("export", "a", "-o", "file:model", "--json", cwd=tmp_path))["bytes"] == len(before)
    damage(tmp_path / "a", 10)
    assert "exporting step 10" in ckpt("export", "a", "-o", "model", cwd=tmp_path, status=1)
    assert (tmp_path / "model").read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {"a", "model"}
    assert "name of a folder" in ckpt("export", "a", "-o", "out/", cwd=tmp_path, status=64)
    ckpt("export", "a", "-o", "/proc/none/model", cwd=tmp_path, status=74)


def test_prune(tmp_path):
    for step in (10, 20, 30, 40, 50):
        make(tmp_path, step)
    next(tmp_path.glob("step-00000030-*/manifest.json")).unlink()
    damage(tmp_path, 20)
    ckpt("verify", tmp_path, "--mark", status=1)
    told = json.loads(ckpt("prune", tmp_path, "--keep", 1, "--json"))
    assert (told["kept"], told["removed"], told["bad"], told["incomplete"]) == (1, 2, 1, 1)
    assert told["bytes"] > 4 * 50 * 1024
    assert list(names(tmp_path)) == [50]
    assert [path.name[:13] for path in tmp_path.iterdir()] == ["step-00000050"]
    assert ckpt("prune", tmp_path, "--keep", 2).startswith("kept 1; removed 0 whole")


@pytest.mark.parametrize("words, expected", [
    ([], "which of list"), (["list"], "list needs the URI"), (["look", "x"], "'look' is none of"),
    (["list", "x", "y"], "'y' is one word too many"), (["copy", "x"], "copy needs --to"),
    (["export", "x"], "export needs --output"), (["prune", "x"], "prune needs --keep"),
    (["prune", "x", "--keep", "0"], "--keep '0'"), (["list", "x", "--step", "3"], "list has no --step"),
    (["list", "ftp://x"], "'ftp://x' names no storage"), (["verify", "x", "--to", "y"], "verify has no --to"),
])
def test_wrong_usage(tmp_path, words, expected):
    assert expected in ckpt(*words, status=64, cwd=tmp_path)
    assert not list(tmp_path.iterdir())
