"""ringfold tune, tables of algorithms in use, and algorithms that are asked for."""
import json
import re
import subprocess

import pytest
from helpers import DEADLINE_S, RINGFOLD, environment

DATA = "/usr/share/datasets/fashion-mnist"
LINE = re.compile(r"^(\w+)(?: of \S+ \S+)? on (\d+) ranks? over (\w+): (\w+) \((.*)\)$")


def call(folder, *words, **variables):
    return subprocess.run(list(map(str, words)), cwd=folder, timeout=DEADLINE_S, capture_output=True, text=True,
                          env=environment(**{"XDG_CONFIG_HOME": str(folder / "config"), **variables}))


def under_run(folder, n, *words, transport="tcp", **variables):
    return call(folder, RINGFOLD, "run", "-n", n, "-q", "--prefix", "none", "--transport", transport, "--", *words,
                **variables)


def bench(folder, n, *words, **more):
    return under_run(folder, n, RINGFOLD, "bench", *words, "--json", **more)


def rule(coll="allreduce", link="tcp", algorithm="reduce_broadcast", **more):
    return {"collective": coll, "link": link, "algorithm": algorithm, **more}


def write_table(path, *rules, **more):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"format": "ringfold-tuning", "version": 1, "rules": rules, **more}))
    return path


def algorithms(done):
    assert done.returncode == 0, done.stderr
    return [json.loads(line)["algorithm"] for line in done.stdout.splitlines()]


def choices(done):
    """Of the lines that tell of a choice: collective, ranks, link, algorithm, why."""
    assert done.returncode == 0, done.stderr
    return [match.groups() for match in map(LINE.match, done.stderr.splitlines()) if match]


def test_the_table_that_is_written_is_used(tmp_path):
    done = under_run(tmp_path, 2, RINGFOLD, "tune", "--quick", "--seconds", 1, "-o", "sub/t.json")
    assert done.returncode == 0, done.stderr
    table = json.loads((tmp_path / "sub" / "t.json").read_text())
    assert (table["format"], table["version"], table["any_order"]) == ("ringfold-tuning", 1, False)
    assert table["machine"] and re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", table["when"])
    assert {r["collective"] for r in table["rules"]} == {"allreduce", "all_gather", "broadcast", "reduce", "gather",
                                                         "scatter"}  # of the others one alone is left to choose
    for entry in table["rules"]:
        assert (entry["link"], entry["ranks"]) == ("tcp", 2)
        assert entry["us"] > 0 and entry["bytes"] >= entry["measured_bytes"]
        assert ("second" in entry) == ("second_us" in entry)
        if entry["collective"] == "allreduce":
            assert entry["algorithm"] in ("naive", "direct", "reduce_broadcast")  # in rank order
    printed = [line.split() for line in done.stdout.splitlines() if not line.startswith("#")]
    assert [line[0] for line in printed] == [entry["collective"] for entry in table["rules"]]
    assert [line[3] for line in printed] == [entry["algorithm"] for entry in table["rules"]]
    assert list((tmp_path / "sub").iterdir()) == [tmp_path / "sub" / "t.json"]

    wanted = [entry["algorithm"] for entry in table["rules"] if entry["collective"] == "allreduce"]
    found = algorithms(bench(tmp_path, 2, "allreduce", "-b", 4, "-e", "256K", "-f", 256, "-n", 1,
                             RINGFOLD_TUNING="sub/t.json"))
    assert found == [wanted[0], wanted[1], wanted[2]]


def test_the_users_own_table_is_found_and_other_rules_stay(tmp_path):
    own = write_table(tmp_path / "config" / "ringfold" / "tuning.json",
                      rule(ranks=2), rule("broadcast", algorithm="naive", ranks=2), rule(ranks=5, algorithm="naive"))
    assert algorithms(bench(tmp_path, 2, "broadcast", "-b", 64, "-e", 64, "-n", 1)) == ["naive"]
    assert algorithms(bench(tmp_path, 2, "broadcast", "-b", 64, "-e", 64, "-n", 1,
                            RINGFOLD_TUNING="default")) == ["tree"]
    done = call(tmp_path, RINGFOLD, "tune", "-n", 2, "--transport", "tcp", "--quick", "--seconds", 1, "allreduce")
    assert done.returncode == 0, done.stderr
    rules = json.loads(own.read_text())["rules"]
    assert [r["ranks"] for r in rules if r["collective"] == "allreduce"] == [2, 2, 2, 5]
    assert [r["algorithm"] for r in rules if r["collective"] == "broadcast"] == ["naive"]


def test_any_order_is_measured_and_kept_apart(tmp_path):
    ring = [rule(algorithm="ring")]
    write_table(tmp_path / "a.json", *ring)
    write_table(tmp_path / "b.json", *ring, any_order=True)
    words = ("allreduce", "-b", 64, "-e", 64, "-n", 1)
    assert algorithms(bench(tmp_path, 2, *words, RINGFOLD_TUNING="a.json")) == ["naive"]
    assert algorithms(bench(tmp_path, 2, *words, RINGFOLD_TUNING="b.json")) == ["ring"]
    done = call(tmp_path, RINGFOLD, "tune", "-n", 2, "--transport", "tcp", "--quick", "--seconds", 1, "--any-order",
                "-o", "c.json", "reduce-scatter")
    assert done.returncode == 0, done.stderr
    table = json.loads((tmp_path / "c.json").read_text())
    assert table["any_order"] is True
    assert all({r["algorithm"], r.get("second", "ring")} <= {"ring", "direct"} for r in table["rules"])
    assert len(table["rules"]) == 3


def test_over_shared_memory_a_table_may_prefer_messages(tmp_path):
    write_table(tmp_path / "t.json", rule(link="shm", algorithm="direct", bytes=4096))
    words = ("allreduce", "-b", "4K", "-e", "8K", "-f", 2, "-n", 1)
    assert algorithms(bench(tmp_path, 2, *words, transport="shm", RINGFOLD_TUNING="t.json")) == ["direct", "shared"]
    done = call(tmp_path, RINGFOLD, "tune", "-n", 2, "--quick", "--seconds", 1, "-o", "s.json", "all_to_all")
    assert done.returncode == 0, done.stderr
    rules = json.loads((tmp_path / "s.json").read_text())["rules"]
    assert {r["link"] for r in rules} == {"shm"} and {r["algorithm"] for r in rules} <= {"shared", "naive"}


def test_a_choice_is_told_once_for_each_size(tmp_path):
    table = write_table(tmp_path / "t.json", rule(bytes=1024))
    words = ("allreduce", "-b", 64, "-e", "16K", "-f", 256, "-n", 5, "-v")
    done = bench(tmp_path, 3, *words, RINGFOLD_TUNING=table)
    assert len(done.stderr.splitlines()) == len(set(done.stderr.splitlines()))
    told = choices(done)
    assert all(line[1:3] == ("3", "tcp") for line in told)
    assert ("allreduce", "3", "tcp", "reduce_broadcast", f"table: {table}, up to 1 KiB") in told
    assert ("allreduce", "3", "tcp", "direct", "table: default, up to 16 ranks, above 8 KiB") in told
    assert ("barrier", "3", "tcp", "recursive_doubling", "table: default") in told
    told = choices(bench(tmp_path, 3, *words, "--algorithm", "tree"))
    assert [line[3:] for line in told if line[3] == "tree"] == [("tree", "asked for")] * 2
    told = choices(bench(tmp_path, 2, *words, transport="shm"))
    assert {line[2:] for line in told} == {("shm", "shared", "table: default")}
    assert not bench(tmp_path, 2, *words[:-1]).stderr


def test_training_tells_and_obeys(tmp_path):
    words = (RINGFOLD, "train", "mlp", "--data", DATA, "--steps", 2, "--hidden", 16)
    told = choices(under_run(tmp_path, 2, *words, "-v", "--algorithm", "ring"))
    assert ("allreduce", "2", "tcp", "ring", "asked for") in told
    told = choices(under_run(tmp_path, 2, *words, "-v", RINGFOLD_TUNING=write_table(tmp_path / "t.json", rule())))
    assert {line[3] for line in told if line[0] == "allreduce"} == {"reduce_broadcast"}
    done = under_run(tmp_path, 2, *words, "--algorithm", "circle")
    assert done.returncode == 64
    assert "there is no algorithm 'circle'; there are auto, shared, hierarchical, naive, reduce_broadcast, ring" in done.stderr


@pytest.mark.parametrize("words, said", [
    (("all-to-all", "--algorithm", "ring"), "algorithm ring does not cover all_to_all: naive can"),
    (("broadcast", "--algorithm", "direct"), "algorithm direct does not cover broadcast: naive and tree can"),
    (("sendrecv", "--algorithm", "ring"), "sendrecv has no algorithm")])
def test_an_algorithm_that_cannot_is_refused(tmp_path, words, said):
    done = call(tmp_path, RINGFOLD, "bench", *words)
    assert done.returncode == 64 and said in done.stderr and done.stdout == ""


def test_the_environment_forces_what_can_use_it(tmp_path):
    done = call(tmp_path, RINGFOLD, "run", "-n", 2, "-q", "--prefix", "none", "--transport", "tcp", "--algorithm", "tree",
                "--", RINGFOLD, "bench", "allreduce", "-b", 64, "-e", 64, "-n", 1, "--json")
    assert algorithms(done) == ["tree"]


@pytest.mark.parametrize("content, said", [
    ("{", "line 1, column 1: string or '}' expected near end of file"),
    ("{}", "it is no tuning table"),
    ('{"format": "ringfold-tuning", "version": 7}', "it is of version 7; this library knows version 1"),
    (json.dumps({"format": "ringfold-tuning", "version": 1, "rules": [rule(algorithm="ring"), rule("gather")]}),
     "rule 2: algorithm reduce_broadcast does not cover gather: naive and tree can"),
    (None, "No such file")])
def test_a_table_that_cannot_be_used_is_refused(tmp_path, content, said):
    if content is not None:
        (tmp_path / "t.json").write_text(content)
    done = bench(tmp_path, 2, "allreduce", "-e", 4, RINGFOLD_TUNING="t.json")
    assert done.returncode == 64
    assert re.search(r"error\[RF0101\]: .*the tuning table 't.json' cannot be used: ", done.stderr), done.stderr
    assert said.lower() in done.stderr.lower()
    assert "RINGFOLD_TUNING=default" in done.stderr
    assert done.stderr.count("error[RF") == 1
    done = bench(tmp_path, 2, "allreduce", "-e", 4, "-n", 1, RINGFOLD_TUNING="default")
    assert algorithms(done) == ["naive"]


@pytest.mark.parametrize("tables", [("a", "b"), ("a", "default"), ("default", "a")])
def test_tables_that_differ_are_found_at_the_start(tmp_path, tables):
    write_table(tmp_path / "a", rule())
    write_table(tmp_path / "b", rule(bytes=100))
    first, second = tables
    done = under_run(tmp_path, 2, "sh", "-c",
                     f"case $RINGFOLD_RANK in 0) export RINGFOLD_TUNING={first};; *) export RINGFOLD_TUNING={second};; esac;"
                     f"exec {RINGFOLD} bench allreduce -e 4 -n 1")
    assert done.returncode != 0
    reports = re.findall(r"error\[RF0301\]: .*", done.stderr)
    assert len(reports) == 1, done.stderr
    names = [f"{name} ([0-9a-f]{{16}})".replace("(", r"\(").replace(")", r"\)") if name != "default"
             else "the default table" for name in tables]
    assert re.search(rf"rank (0 chooses algorithms by {names[0]}, but rank 1 by {names[1]}|"
                     rf"1 chooses algorithms by {names[1]}, but rank 0 by {names[0]}): "
                     "give all the same RINGFOLD_TUNING", reports[0]), reports[0]


@pytest.mark.parametrize("odd", [0, 1])
def test_an_elastic_job_finds_tables_that_differ(tmp_path, odd):
    write_table(tmp_path / "a", rule())
    done = under_run(tmp_path, 2, "sh", "-c",
                     f"case $RINGFOLD_RANK in {odd}) export RINGFOLD_TUNING=a;; esac;"
                     f"exec {RINGFOLD} train mlp --data {DATA} --steps 1 --hidden 16")
    assert done.returncode != 0
    names = [r"a \([0-9a-f]{16}\)" if rank == odd else "the default table" for rank in (0, 1)]
    reports = re.findall(r"error\[RF.*", done.stderr)
    assert len(reports) == 1 and reports[0].startswith("error[RF0301]: worker 1 chooses"), done.stderr
    assert re.search(f"worker 1 chooses algorithms by {names[1]}, but worker 0 by {names[0]}: give all", reports[0])


def test_tables_that_choose_alike_may_be_two(tmp_path):
    write_table(tmp_path / "a", rule(), rule("broadcast", algorithm="naive"), machine="here")
    write_table(tmp_path / "b", rule("broadcast", algorithm="naive"), rule(us=3.5), machine="there")
    done = under_run(tmp_path, 2, "sh", "-c",
                     "case $RINGFOLD_RANK in 0) export RINGFOLD_TUNING=a;; *) export RINGFOLD_TUNING=b;; esac;"
                     f"exec {RINGFOLD} bench allreduce -b 4 -e 4 -n 1 --json")
    assert algorithms(done) == ["reduce_broadcast"]


@pytest.mark.parametrize("words", [["nothing"], ["barrier"], ["--seconds", "0"], ["--transport", "smoke"], ["-n", "1"],
                                   ["-o", "folder/"], []])
def test_wrong_usage(tmp_path, words):
    done = call(tmp_path, RINGFOLD, "tune", *words)
    assert done.returncode == 64 and done.stdout == "" and done.stderr


def test_a_place_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "file").write_text("x")
    done = call(tmp_path, RINGFOLD, "tune", "-n", 2, "--quick", "--seconds", 1, "-o", "file/t.json", "allreduce")
    assert done.returncode == 74
    assert done.stderr.count("error[RF") == 1 and "file" in done.stderr
