"""Training beside PyTorch of bench/train: figures, goals, pages, the plot, what our trainer tells, and a short run of each peer."""
import importlib.util
import json
import math
import os
import pathlib
import subprocess
import sys
import xml.etree.ElementTree

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = pathlib.Path(os.environ["RINGFOLD_BUILD"]).resolve() / "bin/ringfold"
sys.path.insert(0, str(ROOT / "bench"))

from common import processes  # noqa: E402
from train import figures, goals, pages, plot, programs, sections  # noqa: E402

TINY = figures.Shape("tiny", 2, 2, 16, 8, 3, 65)
needs_torch = pytest.mark.skipif(not importlib.util.find_spec("torch"),
                                 reason="python3-torch is not installed: nothing to train beside")


@pytest.fixture
def own(monkeypatch):
    monkeypatch.setattr(processes, "BINARY", BINARY)


def contest(section="alone", title="small", base="PyTorch", show=("tokens_per_s",), ratio="tokens_per_s", per=None, **rounds):
    """Each of `rounds` is a list of {figure: value}; _ stands for a space in a name."""
    return {"section": section, "title": title, "base": base, "show": list(show), "ratio": ratio, "per": per, "note": "",
            "sgemm": [], "rounds": {name.replace("_", " "): each for name, each in rounds.items()}}


def rates(*values):
    return [{"tokens_per_s": value} for value in values]


def log(seconds, **whole):
    lines = [{"step": k + 1, "step_s": took, "loss": 4 - k} for k, took in enumerate(seconds)]
    return "".join(json.dumps(line) + "\n" for line in [*lines, {"peak_bytes": 1000, "loss": 3.0, **whole}])


def test_a_run_tells_its_median_rate_without_the_first_steps():
    text = "noise\n" + log([9, 9, 2, 4, 3], val_loss=1.5, memory={"parameters": 100, "gradients": 300})
    found = figures.parse(text, "x", (600, "tokens_per_s"))
    assert found["tokens_per_s"] == 200 and found["steps"] == 5 and found["val_loss"] == 1.5
    assert found["loss"] == 2 and found["printed_bytes"] == 400 and found["over_printed"] == 2.5
    assert figures.parse(log([4]), "x", (600, "samples_per_s"))["samples_per_s"] == 150
    assert "val_loss" not in figures.parse(log([4], val_loss=None), "x", (1, "tokens_per_s"))


@pytest.mark.parametrize("text, says", [("", "told of 0 steps"), (log([1])[:40], "no line of a training"),
                                        (log([1]).splitlines()[0], "not of the whole"),
                                        ('{"step":1,"step_s":null,"loss":2}\n', "no line of a training")])
def test_what_is_no_training_is_refused_with_its_name(text, says):
    with pytest.raises(figures.Unusable, match=says) as refused:
        figures.parse(text, "PyTorch", (1, "tokens_per_s"))
    assert str(refused.value).startswith("PyTorch: ")


def test_other_outputs_are_refused_too():
    assert figures.flops_of('{"flops": 2e11}') == 2e11 and figures.vocabulary_of('{"vocabulary": 73}') == 73
    for reader, text in ((figures.flops_of, "x"), (figures.flops_of, '{"flops": 0}'), (figures.vocabulary_of, "{}")):
        with pytest.raises(figures.Unusable):
            reader(text)


def test_parameters_and_work_of_known_shapes():
    assert sections.LARGE.parameters == 124_439_808 - (1024 - 256) * 768  # GPT-2's own, with a shorter context
    assert sections.SMALL.parameters == 10_770_816
    assert sections.SMALL.work == 6 * (10_770_816 - 256 * 384) + 6 * 6 * 384 * 256


def test_ratios_are_of_one_round_and_of_a_worker_where_workers_differ():
    made = contest(Ringfold=rates(30, 10, 40), PyTorch=rates(10, 10, 20))
    ours, theirs = figures.rows_of(made)
    assert (ours.values["tokens_per_s"], ours.ratio, ours.low, ours.high) == (30, 2, 1, 3) and theirs.ratio is None
    two = contest("scaling", base="one", per={"two": 2}, one=rates(10, 10), two=rates(18, 20))
    assert figures.rows_of(two)[1].ratio == pytest.approx(0.95)


@pytest.mark.parametrize("kind, value, ours, base, met", [
    (goals.RATIO, 1.3, {"tokens_per_s": 13}, {"tokens_per_s": 10}, True),
    (goals.RATIO, 1.3, {"tokens_per_s": 12.9}, {"tokens_per_s": 10}, False),
    (goals.SHARE, 0.6, {"share": 0.6}, {}, True), (goals.SHARE, 0.6, {"share": 0.59}, {}, False),
    (goals.PRINTED, 1.25, {"over_printed": 1.2}, {}, True), (goals.PRINTED, 1.25, {"over_printed": 1.3}, {}, False),
    (goals.LOSS, 0.05, {"val_loss": 1.54}, {"val_loss": 1.5}, True), (goals.LOSS, 0.05, {"val_loss": 1.56}, {"val_loss": 1.5}, False),
    (goals.LOSS, 0.05, {"val_loss": 1.2}, {"val_loss": 1.5}, True),
    (goals.ACCURACY, 0.01, {"accuracy": 0.9}, {"accuracy": 0.905}, True),
    (goals.ACCURACY, 0.01, {"accuracy": 0.9}, {"accuracy": 0.92}, False)])
def test_a_goal_is_met_or_missed(kind, value, ours, base, met, monkeypatch):
    goal = goals.Goal("alone", "small", kind, value)
    line = goals.verdict(goal, [contest(title="other", Ringfold=[{}]), contest(Ringfold=[ours], PyTorch=[base])])
    assert (": met (" in line, ": MISSED (" in line) == (met, not met)
    assert goals.verdict(goal, [contest("two", Ringfold=[ours], PyTorch=[base])]).endswith("not measured")
    assert goals.verdict(goal, [contest(PyTorch=[base])]).endswith("not measured")


def test_every_goal_is_of_a_section_and_every_section_has_a_title():
    assert {goal.section for goal in goals.GOALS} <= set(sections.SECTIONS) == set(pages.TITLES)
    assert len({str(goal) for goal in goals.GOALS}) == len(goals.GOALS)


def results():
    speed = contest(show=("tokens_per_s", "share", "peak_bytes"), PyTorch=[{"tokens_per_s": 1000, "share": 0.5, "peak_bytes": 8e8}],
                    Ringfold=[{"tokens_per_s": 1500, "share": 0.75, "peak_bytes": 4e8}])
    speed["sgemm"], speed["note"] = [{"flops": 1.5e11}], "small: a note."
    loss = contest("quality", "baby", show=("val_loss",), ratio="val_loss", Ringfold=[{"val_loss": 1.6}], PyTorch=[{"val_loss": 1.5}])
    about = {"date": "2026-01-02", "machine": "2 cores", "versions": {"PyTorch": "1.13"}, "rounds": 1, "busy": 0.01,
             "torch": "PyTorch with OpenBLAS"}
    return [{**about, "section": one["section"], "contests": [one], "failures": ["PyTorch: exit status 1"]} for one in (speed, loss)]


def test_the_page_has_what_was_measured_what_misses_and_what_could_not_run():
    page = pages.page(results(), "bench_train.svg")
    for text in ("| Ringfold | 1,500 | 75% | 400 | 1.500 | 1.500–1.500 |", "small: a note.", "sgemm: 150 GFLOP/s.",
                 "PyTorch with OpenBLAS.", "met (1.5)", "MISSED (0.1)", "Could not run: PyTorch: exit status 1",
                 "2026-01-02, 2 cores; PyTorch 1.13; 1 round.", "](bench_train.svg)"):
        assert text in page
    assert "of it a worker to one" in pages.table(contest("scaling", base="one", per={"two": 2}, one=rates(1), two=rates(2)))


def test_the_plot_has_a_bar_for_each_rate_and_none_for_losses():
    drawn = xml.etree.ElementTree.fromstring(plot.draw([one for result in results() for one in result["contests"]]))
    bars = [element for element in drawn.iter("{http://www.w3.org/2000/svg}rect") if "bar" in element.get("class")]
    ours, theirs = sorted((float(bar.get("width")) for bar in bars), reverse=True)
    assert theirs == pytest.approx(ours / 1.5, abs=0.1)
    xml.etree.ElementTree.fromstring(plot.draw([]))


def test_the_report_is_written_from_kept_results_and_wrong_usage_is_told(tmp_path):
    (tmp_path / "work").mkdir()
    for result in results():
        (tmp_path / "work" / f"train-{result['section']}.json").write_text(json.dumps(result))
    run = ROOT / "bench/train/run"
    done = subprocess.run([run, "--report", "--work", tmp_path / "work", "--output", tmp_path / "docs"], capture_output=True,
                          text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == len(goals.GOALS)
    assert (tmp_path / "docs/BENCH_TRAIN.md").read_text() == pages.page(results(), "bench_train.svg")
    xml.etree.ElementTree.parse(tmp_path / "docs/bench_train.svg")
    for words in (["nothing"], ["alone", "--rounds", "0"], ["--scale", "0"]):
        done = subprocess.run([run, *words], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 2 and done.stderr and not done.stdout


def test_our_own_training_is_understood(own, tmp_path):
    data = programs.of_characters(tmp_path, TINY.vocabulary)
    assert figures.vocabulary_of((data / "tokenizer.json").read_text()) == TINY.vocabulary
    found = programs.ours_gpt(TINY, data, 4, ranks=2)
    assert found["steps"] == 4 and found["tokens_per_s"] > 0 and found["peak_bytes"] > 0 and found["printed_bytes"] > 0
    assert found["val_loss"] == pytest.approx(math.log(TINY.vocabulary), rel=0.1)


def test_made_up_pairs_have_gpt2s_vocabulary(own, tmp_path):
    folder = programs.of_pairs(tmp_path, 50257)
    assert figures.vocabulary_of((folder / "tokenizer.json").read_text()) == 50257


def test_a_training_that_fails_is_named(own, tmp_path):
    with pytest.raises(processes.Failed, match="Ringfold: exit status"):
        programs.ours_gpt(TINY, tmp_path / "nothing", 2)


@needs_torch
@pytest.mark.parametrize("ranks", [1, 2])
def test_the_peer_trains_and_has_as_many_parameters(own, tmp_path, ranks):
    data = programs.of_characters(tmp_path, TINY.vocabulary)
    found = programs.torch_gpt(TINY, data, 4, ranks, **{"eval-samples": 50})
    assert found["parameters"] == TINY.parameters and found["steps"] == 4 and found["tokens_per_s"] > 0
    assert found["val_loss"] == pytest.approx(math.log(TINY.vocabulary), rel=0.1)


@needs_torch
def test_the_peer_computes_what_ours_does(tmp_path):
    """One block's weights from `nn_gpt dump`, as the peer names and lays them out: the same loss."""
    import numpy
    import torch
    sys.path.insert(0, str(ROOT / "bench/train/peers"))
    import torch_gpt
    shape, path, weights = TINY, tmp_path / "dump", {}
    words = [BINARY.parent.parent / "tests/nn_gpt", "dump", shape.depth, shape.heads, shape.width, shape.context, shape.batch,
             shape.vocabulary, path]
    subprocess.run(list(map(str, words)), check=True, env={"OMP_NUM_THREADS": "1"})
    with open(path, "rb") as file:
        for line in iter(file.readline, b""):
            name, kind, count, *sizes = line.decode().split()
            type_ = numpy.dtype({"int": "<u4", "double": "<f8"}.get(kind, "<f4"))
            data = numpy.frombuffer(file.read(int(count) * type_.itemsize), type_)
            if kind != "gradient":
                weights[name] = data.reshape([int(size) for size in sizes]) if sizes else data
    model = torch_gpt.Gpt(shape)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            found = torch.tensor(weights[name if name in weights else name.replace(".c_", ".mlp.c_")].copy())
            weight.copy_(found.T if found.dim() > 1 and name.startswith("h.") else found)
        windows = torch.tensor(weights["tokens"].astype(numpy.int64)).view(shape.batch, shape.context + 1)
        mean = model(windows).item()
    assert mean * shape.batch * shape.context == pytest.approx(weights["loss"][0], rel=1e-4)


@needs_torch
def test_the_peers_schedule_is_ours(own, tmp_path):
    sys.path.insert(0, str(ROOT / "bench/train/peers"))
    import ranks
    data, steps = programs.of_characters(tmp_path, TINY.vocabulary), 12
    options = programs.gpt_options(TINY, data, steps, 3, {"warmup": 4})
    subprocess.run([str(word) for word in [BINARY, "train", "gpt", *programs.words_of(options), "--run-dir", tmp_path / "run", "-q"]],
                   check=True, timeout=60, env=processes.environment())
    told = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    for row in told:
        if "lr" in row:
            assert row["lr"] == pytest.approx(ranks.rate_of(row["step"], 1e-3, 4, steps), rel=1e-6)
    assert sum("lr" in row for row in told) == steps


@needs_torch
def test_the_peers_images():
    if not programs.FASHION.is_dir():
        pytest.skip(f"'{programs.FASHION}' is not there: dataset-fashion-mnist is not installed")
    options = {"data": programs.FASHION, "batch": 64, "steps": 3}
    found = programs.torch("torch_cnn", options, (64, "samples_per_s"), ranks=2)
    assert found["parameters"] == 16 * 10 + 32 * 145 + 64 * 289 + 128 * 3137 + 10 * 129 and 0 < found["accuracy"] < 1
