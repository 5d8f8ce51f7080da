"""ringfold plan: what it prints, draws and refuses."""
import json
import os
import subprocess
import xml.etree.ElementTree

import pytest

RINGFOLD = os.path.join(os.environ.get("RINGFOLD_BUILD", "build-gcc"), "bin", "ringfold")


def plan(*arguments, cwd=None):
    return subprocess.run([os.path.abspath(RINGFOLD), "plan", *map(str, arguments)], cwd=cwd,
                          capture_output=True, text=True, timeout=120)


def test_naive_and_ring_of_a_hundred():
    naive = plan("allreduce", "-n", 100, "--algorithm", "naive")
    assert naive.returncode == 0 and naive.stderr == ""
    assert "9,900 messages in all" in naive.stdout
    assert "99 per rank, 9,900 in all" in naive.stdout
    ring = plan("allreduce", "-n", 100, "--algorithm", "ring", "--count", 1600)
    assert ring.returncode == 0 and ring.stderr == ""
    assert "19,800 messages in all, in 198 steps" in ring.stdout
    assert "198 per rank, 19,800 in all" in ring.stdout
    assert "12.38 KiB per rank, 1.21 MiB in all" in ring.stdout
    # Both sides of both, whichever was asked for.
    for text in (naive.stdout, ring.stdout):
        assert any(line.lstrip("> ").startswith("naive") and "99 " in line and "9,900" in line
                   for line in text.splitlines())
        assert any(line.lstrip("> ").startswith("ring") and "198" in line and "19,800" in line
                   for line in text.splitlines())


def test_lower_bound_and_options_are_used():
    out = plan("allreduce", "-n", 4, "--algorithm", "ring", "--bytes", "4M", "--latency", 100,
               "--bandwidth", 8, "--fold", 0).stdout
    # 6 steps of 100 us and 1 MiB at 1 GB/s, against 6 MiB at 1 GB/s.
    assert "6.89 ms predicted, 1.10 times the lower bound of 6.29 ms" in out


def test_table_of_all():
    out = plan("all-gather", "-n", 8).stdout
    names = [line.split()[0] for line in out.splitlines()[4:] if line.startswith("  ")]
    assert names[:4] == ["naive", "ring", "direct", "recursive_doubling"]


def test_json():
    one = json.loads(plan("allreduce", "-n", 100, "-a", "ring", "--json").stdout)
    assert one["messages"] == 19800 and one["max_messages_per_rank"] == 198
    assert one["time_s"] > one["lower_bound_s"] > 0
    every = json.loads(plan("reduce", "-n", 5, "--root", 3, "--json").stdout)
    assert [p["algorithm"] for p in every] == ["naive", "tree"]
    assert all(p["messages"] == 4 for p in every)


def test_svg(tmp_path):
    result = plan("allreduce", "-n", 4, "-a", "ring", "--svg", "ring.svg", cwd=tmp_path)
    assert result.returncode == 0 and "ring.svg" in result.stdout
    assert [p.name for p in tmp_path.iterdir()] == ["ring.svg"]
    root = xml.etree.ElementTree.parse(tmp_path / "ring.svg").getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    texts = ["".join(t.itertext()) for t in root.iter("{http://www.w3.org/2000/svg}text")]
    assert sum(t.startswith("step ") for t in texts) == 6


def test_no_file_without_svg(tmp_path):
    assert plan("barrier", "-n", 9, cwd=tmp_path).returncode == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments, words", [
    (["allreduce", "--algorithm", "rings"], ["'rings'", "ring,", "rabenseifner"]),
    (["broadcast", "--algorithm", "ring"], ["broadcast by 'ring'", "naive, tree"]),
    (["allreduces"], ["'allreduces'", "reduce_scatter"]),
    (["send"], ["'send'"]),
    ([], ["a collective is needed"]),
    (["allreduce", "-n", "0"], ["'0'", "1 to 16384"]),
    (["allreduce", "-n", "16385"], ["'16385'"]),
    (["allreduce", "--bytes", "10"], ["10 bytes", "4 bytes"]),
    (["allreduce", "--bytes", "-1"], ["'-1'"]),
    (["allreduce", "--bytes", "4", "--count", "1"], ["--bytes or --count"]),
    (["allreduce", "--type", "f8"], ["'f8'", "bf16"]),
    (["broadcast", "-a", "tree", "--root", "4"], ["root 4"]),
    (["allreduce", "--bandwidth", "0"], ["'0'"]),
    (["allreduce", "--latency", "nan"], ["'nan'"]),
    (["allreduce", "--svg", "x.svg"], ["--algorithm"]),
    (["allreduce", "--nonsense"], ["--nonsense"]),
])
def test_wrong_usage(arguments, words, tmp_path):
    result = plan(*arguments, cwd=tmp_path)
    assert result.returncode == 64
    assert result.stdout == ""
    for word in words:
        assert word in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_svg_that_cannot_be_written():
    result = plan("allreduce", "-a", "ring", "--svg", "/nonexistent/ring.svg")
    assert result.returncode == 74
    assert result.stdout == ""
    assert "'/nonexistent/ring.svg': No such file or directory" in result.stderr
    full = plan("allreduce", "-a", "ring", "--svg", "/dev/full")
    assert full.returncode == 74 and "No space left" in full.stderr


def test_too_large_a_picture():
    result = plan("allreduce", "-n", 25, "-a", "ring", "--svg", "/dev/null")
    assert result.returncode != 0 and "25 ranks" in result.stderr
