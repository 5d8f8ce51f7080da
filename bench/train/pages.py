"""The tables: of a contest for the terminal, and of everything that was measured as a page of Markdown."""
from common.report import columns, made_on, markdown_rows

from . import figures, goals

TITLES = {"alone": "One worker", "two": "Two workers", "bf16": "bfloat16", "scaling": "From one worker to two",
          "large": "GPT-2's smallest", "quality": "What is learned", "bf16-loss": "What is learned in bfloat16",
          "cnn": "Images"}

# Of each figure: its column's head, and how it is written.
COLUMNS = {"tokens_per_s": ("tokens/s", "{:,.0f}"), "samples_per_s": ("samples/s", "{:,.0f}"), "share": ("of sgemm", "{:.0%}"),
           "loss": ("loss", "{:.4f}"), "val_loss": ("validation loss", "{:.4f}"), "test_loss": ("test loss", "{:.4f}"),
           "accuracy": ("accuracy", "{:.2%}"), "steps": ("steps", "{:,.0f}"), "peak_bytes": ("peak MB", "{:,.0f}"),
           "printed_bytes": ("printed MB", "{:,.0f}"), "over_printed": ("peak to printed", "{:.2f}")}
SCALES = {"peak_bytes": 1e-6, "printed_bytes": 1e-6}

METHOD = """\
Ours is `ringfold train`, PyTorch's are the programs of `bench/train/peers`: the same architecture and shapes, initial weights of
the same distribution, AdamW (0.9, 0.95; decay 0.1 for matrices and tables only), the gradient's norm clipped at 1, the same
schedule, the same data; several of its processes are DistributedDataParallel over Gloo. All have one thread a process. A round
runs them one after the other, each round another of them first. The rate of a run is that of its median step, the first two
left out; figures are medians over the rounds; the ratio is that of rates (of losses, where a table is about these) in one round,
its median and beside it the least and the greatest. The share is of the rate of oneDNN's product of two 1024 x 1024 matrices of
float32 on one thread in the same round; a token counts 6 operations for each parameter but those of positions, and those of
attention, causal. MB are 10^6 bytes; the peak is the largest resident memory of rank 0. Absolute figures move with the machine's
mood: only those of one table compare."""


def cell(figure, value):
    return "–" if value is None else COLUMNS[figure][1].format(value * SCALES.get(figure, 1))


def table_of(contest):
    """Head and rows, as text."""
    to = "of it a worker" if contest.get("per") else "ratio"
    table = [["", *[COLUMNS[figure][0] for figure in contest["show"]], f"{to} to {contest['base']}", "of a round"]]
    for row in figures.rows_of(contest):
        ratio = ["–", "–"] if row.ratio is None else [f"{row.ratio:.3f}", f"{row.low:.3f}–{row.high:.3f}"]
        table.append([row.name, *[cell(figure, row.values.get(figure)) for figure in contest["show"]], *ratio])
    return table


def about(contest):
    rate = figures.median_of(contest.get("sgemm", []), "flops")
    lines = [contest["note"]] if contest["note"] else []
    return lines + ([f"sgemm: {rate / 1e9:.0f} GFLOP/s."] if rate else [])


def table(contest):
    return "\n".join([figures.name_of(contest), *about(contest), columns(table_of(contest))])


def rounds_of(result):
    """That its tables really have: the long runs have fewer than were asked for."""
    return max((len(each) for contest in result["contests"] for each in contest["rounds"].values()), default=result["rounds"])


def page(results, plot):
    """All of docs/BENCH_TRAIN.md. `results`: of each section that was measured, in order."""
    contests = [contest for result in results for contest in result["contests"]]
    out = ["# Training beside PyTorch", "", "Written by `make bench-train` (`bench/train/run`).", "",
           f"![how fast, to the fastest of each table below]({plot})", "", METHOD, "", "## Goals", ""]
    out += [f"* {line}" for line in goals.verdicts(contests)]
    for result in results:
        out += ["", f"## {TITLES[result['section']]} (`{result['section']}`)", "", made_on({**result, "rounds": rounds_of(result)}), "",
                f"{result['torch']}."]
        for contest in result["contests"]:
            out += ["", f"**{figures.name_of(contest)}**", "", *[line + "\n" for line in about(contest)],
                    markdown_rows(table_of(contest))]
        out += [f"\nCould not run: {line}" for line in result["failures"]]
    return "\n".join(out) + "\n"
