"""Workers on a host with several NUMA nodes, which is made up (RINGFOLD_TOPOLOGY): what their allreduce goes by."""
import json
import os
import re
import subprocess

import pytest
from helpers import DEADLINE_S, RINGFOLD, environment

CORES = sorted(os.sched_getaffinity(0))
# A machine on which all cores of this one are in node 0, and one on which they are in node 1.
NODE = [f"numa:2 pu:{CORES[-1] + 1}", f"numa:2(indexes=1,0) pu:{CORES[-1] + 1}"]
LINE = re.compile(r"^allreduce of (\S+ \S+) on (\d+) ranks over shm: (\w+) \((.*)\)$", re.M)


def run(folder, *words, **more):
    return subprocess.run(list(map(str, words)), cwd=folder, timeout=DEADLINE_S, capture_output=True, text=True,
                          env=environment(XDG_CONFIG_HOME=str(folder / "config")), **more)


def bench(folder, nodes, *words, bind="none", **more):
    """Each rank on the node that its digit in `nodes` says."""
    cases = "".join(f"{rank}) export RINGFOLD_TOPOLOGY='{NODE[int(node)]}';;" for rank, node in enumerate(nodes))
    return run(folder, RINGFOLD, "run", "-n", len(nodes), "-q", "--prefix", "none", "--bind", bind, "--", "sh", "-c",
               f'case $RINGFOLD_RANK in {cases} esac; exec "$@"', "-", RINGFOLD, "bench", "allreduce", "--json", "-v",
               *words, **more)


def results(done):
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("private", [[], ["--private"]])
def test_a_large_allreduce_goes_from_node_to_node(tmp_path, private):
    done = bench(tmp_path, "0011", "-b", 65536, "-e", 4 << 20, "-f", 64, "-n", 3, *private)
    assert [(r["bytes"], r["algorithm"], r["wrong"]) for r in results(done)] == [
        (65536, "shared", 0), (4 << 20, "hierarchical", 0)]
    told = LINE.findall(done.stderr)  # the small ones among them are of the bench itself
    assert [line for line in told if "KiB" in line[0] or "MiB" in line[0]] == [
        ("64 KiB", "4", "shared", "table: default"),
        ("4 MiB", "4", "hierarchical", "2 NUMA nodes: 2 times the buffer goes between them, not 4 times")]


def test_it_can_be_asked_for_and_be_declined(tmp_path):
    size = ["-b", 4 << 20, "-e", 4 << 20, "-n", 2]
    assert [r["algorithm"] for r in results(bench(tmp_path, "0011", *size, "--algorithm", "shared"))] == ["shared"]
    small = bench(tmp_path, "001", "-b", 12, "-e", 12, "-n", 5, "--algorithm", "hierarchical", "--type", "bf16")
    assert [(r["algorithm"], r["wrong"]) for r in results(small)] == [("hierarchical", 0)]
    done = bench(tmp_path, "000", *size, "--algorithm", "hierarchical")
    assert done.returncode != 0
    assert "not supported" in done.stderr


def test_ranks_that_take_turns_stay_flat(tmp_path):
    done = bench(tmp_path, "0101", "-b", 4 << 20, "-e", 4 << 20, "-n", 2)
    assert [(r["algorithm"], r["wrong"]) for r in results(done)] == [("shared", 0)]


@pytest.mark.skipif(len(CORES) < 2, reason="one core is in one node, whatever the machine")
def test_the_node_is_that_of_the_cores_that_run_binds_to(tmp_path):
    two = CORES[:2]
    words = [RINGFOLD, "bench", "allreduce", "--json", "-b", 4 << 20, "-e", 4 << 20, "-n", 2]
    for bind, algorithm in ("core", "hierarchical"), ("none", "shared"):
        done = run(tmp_path, "env", f"RINGFOLD_TOPOLOGY=numa:{two[1] + 1} pu:1", RINGFOLD, "run", "-n", 4, "-q",
                   "--prefix", "none", "--bind", bind, "--", *words,
                   preexec_fn=lambda: os.sched_setaffinity(0, two))
        assert [(r["algorithm"], r["wrong"]) for r in results(done)] == [(algorithm, 0)]


@pytest.mark.parametrize("value", ["two nodes", "numa:0", "no/such.xml"])
def test_a_machine_that_cannot_be_is_refused(tmp_path, value):
    done = run(tmp_path, "env", f"RINGFOLD_TOPOLOGY={value}", RINGFOLD, "run", "-n", 2, "-q", "--", RINGFOLD, "bench",
               "allreduce", "-n", 1)
    assert done.returncode == 64
    assert f"the topology '{value}' (RINGFOLD_TOPOLOGY) cannot be used" in done.stderr
