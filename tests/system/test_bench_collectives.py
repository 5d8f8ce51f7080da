"""The side-by-side of bench/collectives, but for its peers: figures, goals, pages, the plot, and what ringfold bench prints."""
import json
import os
import pathlib
import subprocess
import sys
import xml.etree.ElementTree

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = pathlib.Path(os.environ["RINGFOLD_BUILD"]).resolve() / "bin/ringfold"
os.environ["RINGFOLD"] = str(BINARY)
sys.path[:0] = [str(ROOT / "bench/collectives"), str(ROOT / "bench")]

import figures  # noqa: E402
import goals  # noqa: E402
import pages  # noqa: E402
import plot  # noqa: E402
import programs  # noqa: E402
import sections  # noqa: E402

KI, MI = 1 << 10, 1 << 20


def contest(section="shm", ranks=2, collective="allreduce", references=(), link=(), **rounds):
    """Each of `rounds` is a list of {bytes: microseconds}; _ stands for a space in a name."""
    return {"section": section, "title": f"{ranks} made-up ranks", "collective": collective, "ranks": ranks,
            "references": list(references), "link": list(link), "kind": "", "note": "",
            "rounds": {name.replace("_", " "): [{str(size): time for size, time in one.items()} for one in each]
                       for name, each in rounds.items()}}


def line(**more):
    return json.dumps({"collective": "allreduce", "bytes": 4, "time_us": 2.0, "wrong": 0, **more}) + "\n"


def test_lines_are_understood_and_the_fastest_variant_counts():
    text = "noise\n" + line() + line(bytes=16, time_us=3.0) + line(bytes=16, time_us=2.5, variant="streaming")
    assert figures.parse(text, "x") == {4: 2.0, 16: 2.5}
    assert figures.parse(line(wrong=None), "x") == {4: 2.0}  # not checked


@pytest.mark.parametrize("text, says", [("", "no figures"), ("{\n", "no line of a measurement"), ('{"bytes":4}\n', "no line of"),
                                        (line(wrong=3), "3 elements"), (line(time_us=0), "0.0 microseconds")])
def test_what_is_no_measurement_is_refused_with_its_name(text, says):
    with pytest.raises(figures.Unusable, match=says) as refused:
        figures.parse(text, "MPICH")
    assert str(refused.value).startswith("MPICH: ")


@pytest.mark.parametrize("collective, ranks, share", [("allreduce", 2, 1), ("allreduce", 4, 1.5), ("all_gather", 4, 0.75),
                                                      ("reduce_scatter", 2, 0.5), ("all_to_all", 8, 7 / 8), ("broadcast", 4, 1)])
def test_busbw_is_that_of_nccl_tests(collective, ranks, share):
    assert figures.busbw(collective, ranks, 1_000_000, 1000) == pytest.approx(share)


def test_a_row_has_medians_the_best_peer_and_the_spread_of_rounds():
    made = contest(references=["memory limit"], memory_limit=[{MI: 9}, {MI: 8}, {MI: 10}],
                   Ringfold=[{MI: 10}, {MI: 30}, {MI: 20}], MPICH=[{MI: 40}, {MI: 40}, {MI: 40}],
                   Gloo=[{MI: 90}, {MI: 20}, {MI: 70}])
    (row,) = figures.rows_of(made)
    assert row.times == {"Ringfold": 20, "MPICH": 40, "Gloo": 70, "memory limit": 9}
    assert (row.best, row.ratio, row.low, row.high) == ("MPICH", 2, 40 / 30, 4)
    assert row.limit == pytest.approx(9 / 20) and row.bound is None


def test_a_reference_is_no_peer_and_a_size_without_ours_has_no_ratio():
    made = contest(references=["memory limit"], Ringfold=[{4: 2}], memory_limit=[{4: 1}], Gloo=[{16: 5}])
    small, large = figures.rows_of(made)
    assert small.best is None and small.ratio is None and small.limit == 0.5
    assert large.ratio is None and "Ringfold" not in large.times


def test_the_bound_is_the_time_of_the_rings_bytes_at_the_links_rate():
    made = contest("hosts", 4, link=[100e6, 120e6, 90e6], Ringfold=[{1_000_000: 20_000}])
    assert figures.rows_of(made)[0].bound == pytest.approx(1_000_000 * 1.5 / 100e6 * 1e6 / 20_000)


def test_goals_pick_sizes_and_tell_what_misses():
    goal = goals.Goal("shm", goals.RATIO, 2.5, 64 * KI, 4 * MI)
    made = contest(Ringfold=[{4: 1, 64 * KI: 10, MI: 10, 16 * MI: 10}], Gloo=[{4: 1, 64 * KI: 25, MI: 24, 16 * MI: 10}])
    verdict = goals.judge(goal, [made, contest("tcp", Ringfold=[{MI: 1}], Gloo=[{MI: 1}])])
    assert verdict.checked == 2 and not verdict.met
    assert [(size, figure) for _, size, figure in verdict.misses] == [(MI, 2.4)]
    assert "MISSED by 1 of 2" in str(verdict) and "allreduce, 2 made-up ranks: 1 MiB (2.4)" in str(verdict)
    assert str(goals.judge(goal, [])).endswith("not measured")


@pytest.mark.parametrize("goal, ours, theirs, met", [
    (goals.Goal("shm", goals.TIME, 0.6), 6, 10, True), (goals.Goal("shm", goals.TIME, 0.6), 7, 10, False),
    (goals.Goal("shm", goals.RATIO, 1), 10, 10, True), (goals.Goal("shm", goals.RATIO, 1, ahead=True), 10, 10, False),
    (goals.Goal("shm", goals.RATIO, 1, ahead=True), 9, 10, True)])
def test_a_goal_is_reached_or_not(goal, ours, theirs, met):
    assert goals.judge(goal, [contest(Ringfold=[{4: ours}], Gloo=[{4: theirs}])]).met == met


def test_goals_of_shares_and_of_ranks():
    limit = contest(references=["memory limit"], Ringfold=[{16 * MI: 10}], memory_limit=[{16 * MI: 6.9}])
    assert not goals.judge(goals.Goal("shm", goals.LIMIT, 0.7, 16 * MI), [limit]).met
    hosts = [contest("hosts", ranks, link=[1e6], Ringfold=[{16 * MI: 16 * MI * 2 * (ranks - 1) / ranks / share}])
             for ranks, share in ((4, 0.98), (8, 0.98))]
    met = {goal.ranks: goals.judge(goal, hosts).met for goal in goals.GOALS if goal.kind == goals.BOUND}
    assert met == {4: False, 8: True}


def test_every_goal_is_of_a_section_and_every_section_has_a_title():
    assert {goal.section for goal in goals.GOALS} <= set(sections.SECTIONS)
    assert set(pages.TITLES) == set(sections.SECTIONS)
    assert len({str(goal) for goal in goals.GOALS}) == len(goals.GOALS)


def results():
    sent = {**contest("two", 4), "kind": "bytes",
            "rounds": {"1 rank a host": [{"100": 110}], "2 ranks a host": [{"100": 220}]}}
    made = [contest(references=["memory limit"], Ringfold=[{4: 1, MI: 10}], MPICH=[{4: 2, MI: 20}], memory_limit=[{MI: 9}]),
            contest("hosts", 4, link=[1.2e8], Ringfold=[{64 * KI: 100}], Gloo=[{64 * KI: 180}])]
    about = {"date": "2026-01-02", "machine": "2 cores", "versions": {"MPICH": "4.0"}, "rounds": 1, "busy": 0.01}
    return [{**about, "section": one["section"], "contests": [one], "failures": ["Gloo: exit status 1"]}
            for one in (made[0], made[1], sent)]


def steps(section="step", **figures_of):
    """A contest of steps; each of `figures_of` is a list of rounds, each {milliseconds of computing: ratio}."""
    def row(ratio):
        return {**dict.fromkeys(figures.STEP_FIGURES, 8.0), "ratio": ratio, "low": ratio - 0.1, "high": ratio + 0.1, "hidden": 0.75}
    return {**contest(section), "kind": "step",
            "rounds": {name: [{compute: row(ratio) for compute, ratio in one.items()} for one in each]
                       for name, each in figures_of.items()}}


def step_line(**more):
    return json.dumps({"compute_ms": 50, "wrong": 0, **dict.fromkeys(figures.STEP_FIGURES, 1.5), **more}) + "\n"


def test_lines_of_steps_are_understood_and_wrong_averages_refused():
    found = figures.parse_steps("noise\n" + step_line() + step_line(compute_ms=0, ratio=2), "x")
    assert found["50"]["ratio"] == 1.5 and found["0"]["ratio"] == 2 and list(found) == ["50", "0"]
    for text, says in (("", "no figures"), (step_line(wrong=3), "3 averages"), (step_line(cpu_ms=None), "no line of"),
                       ('{"compute_ms": 1}\n', "no line of")):
        with pytest.raises(figures.Unusable, match=says):
            figures.parse_steps(text, "x")


def test_the_goal_of_a_step_is_of_its_default_and_each_time_of_computing():
    goal = goals.Goal("step", goals.COST, 1.1)
    made = steps(Ringfold=[{"0": 1.0, "50": 1.3}, {"0": 1.2, "50": 1.3}, {"0": 1.1, "50": 1.0}], other=[{"0": 9.0}])
    verdict = goals.judge(goal, [made, contest(Ringfold=[{4: 2}])])
    assert verdict.checked == 2 and verdict.misses == [("allreduce, 2 made-up ranks", "50 ms of computing", 1.3)]
    assert "50 ms of computing (1.3)" in str(verdict) and str(goal).endswith("at most 1.1 times that of folding alone")
    assert not goals.judge(goal, [contest(Ringfold=[{4: 2}])]).checked


def test_the_table_of_steps():
    lines = pages.table(steps(Ringfold=[{"0": 1.0}, {"0": 1.5}, {"0": 1.2}])).splitlines()
    assert lines[-1].split() == ["Ringfold", "0", "8.0", "8.0", "75%", "8.0", "8.0", "8.0", "8.0", "1.20", "0.90–1.60"]


def test_the_page_has_what_was_measured_what_misses_and_what_could_not_run():
    page = pages.page(results(), "bench.svg")
    for text in ("| 1 MiB | 10 | 20 | 9 |", "2.00 (MPICH)", "1.80 (Gloo)", "0.9600 Gbit/s",
                 "| 2 ranks a host | 220 | 2.200 | 2.000 |",
                 "2026-01-02, 2 cores; MPICH 4.0; 1 round.", "Could not run: Gloo: exit status 1", "MISSED", "](bench.svg)"):
        assert text in page
    assert "do not trust" not in page
    assert "**Other programs took 35% of the machine" in pages.page([{**results()[0], "busy": 0.35}], "bench.svg")
    tables = [row for row in page.splitlines() if row.startswith("|")]
    assert all(row.count("|") >= 5 for row in tables)


def test_the_plot_is_well_formed_and_has_a_line_for_each_name():
    sheet = plot.draw([one for result in results() for one in result["contests"]])
    drawn = xml.etree.ElementTree.fromstring(sheet)
    space = "{http://www.w3.org/2000/svg}"
    lines = [element.get("class") for element in drawn.iter(f"{space}polyline")]
    assert sorted(lines) == ["gloo line", "limit line", "mpich line", "ours line", "ours line"]
    assert "prefers-color-scheme: dark" in sheet
    _, _, width, height = map(float, drawn.get("viewBox").split())
    for element in drawn.iter(f"{space}polyline"):
        for point in element.get("points").split():
            x, y = map(float, point.split(","))
            assert 0 <= x <= width and 0 <= y <= height
    xml.etree.ElementTree.fromstring(plot.draw([]))


def test_our_own_bench_is_understood(monkeypatch):
    monkeypatch.setattr(programs, "BINARY", BINARY)
    found = programs.ours("all_to_all", 3, programs.Sizes(12, 12288, 32), ("--transport", "tcp", "-n", "2"))
    assert sorted(found) == [12, 384, 12288] and all(time > 0 for time in found.values())
    assert programs.bench_knows("--private") and not programs.bench_knows("--nothing-like-it")


def test_steps_are_measured_and_average_as_the_folding_does(tmp_path, monkeypatch):
    if os.environ.get("RINGFOLD_SANITIZE"):
        pytest.skip("the program that measures is built without sanitizers, and cannot load a library that has them")
    monkeypatch.setattr(programs, "BINARY", BINARY)
    found = programs.ddp_step(programs.Built(tmp_path / "work"), 2, (0, 1), 1, MI)
    assert list(found) == ["0", "1"] and all(row["cpu_ms"] > 0 and row["ratio"] > 0 for row in found.values())


def test_a_program_that_fails_is_named(monkeypatch):
    monkeypatch.setattr(programs, "BINARY", BINARY)
    with pytest.raises(programs.Failed, match="Ringfold: exit status"):
        programs.ours("allreduce", 2, programs.Sizes(1, 2))
    monkeypatch.setattr(programs, "BINARY", pathlib.Path("/nonexistent/ringfold"))
    with pytest.raises(programs.Failed, match="/nonexistent/ringfold.*No such file"):
        programs.ours("allreduce", 2, programs.Sizes(4, 4))


def test_the_report_is_written_from_kept_results(tmp_path):
    (tmp_path / "work").mkdir()
    for result in results():
        (tmp_path / "work" / f"{result['section']}.json").write_text(json.dumps(result))
    done = subprocess.run([ROOT / "bench/collectives/run", "--report", "--work", tmp_path / "work", "--output",
                           tmp_path / "docs"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == len(goals.GOALS)
    assert (tmp_path / "docs/BENCH.md").read_text() == pages.page(results(), "bench.svg")
    xml.etree.ElementTree.parse(tmp_path / "docs/bench.svg")


@pytest.mark.parametrize("words", [["nothing"], ["shm", "--rounds", "0"], ["--factor", "1"]])
def test_wrong_usage(words):
    done = subprocess.run([ROOT / "bench/collectives/run", *words], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2 and done.stderr and not done.stdout
