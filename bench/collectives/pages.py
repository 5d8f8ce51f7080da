"""The tables: of a section for the terminal, and of everything that was measured as a page of Markdown."""
import statistics

import figures
import goals
from common.report import BUSY, columns, made_on, markdown_rows, number  # noqa: F401

TITLES = {"shm": "Shared memory", "private": "Ordinary memory", "many": "More ranks than cores", "tcp": "TCP on loopback",
            "hosts": "Several hosts", "two": "Several ranks a host", "collectives": "The other collectives",
            "wire": "Compressed sums", "step": "A training step"}

METHOD = """\
Float32; reductions are sums; in place, but for all_to_all. Every rank writes its contribution anew before each timed call, and
meets the others at a barrier; the time of a call is that of the slowest rank, of a size the median over its calls, which are
spread over four passes over all sizes. All programs take times so (`cli/bench.c`, `bench/collectives/peers/measure.c`) and
check each element of a result of every size. A round runs them one after the other, each round another of them first; figures
are medians over the rounds. GB/s is our busbw as nccl-tests define it. The ratio is our busbw to that of the best peer at that
size, beside it the least and the greatest of a single round. Nothing is bound to cores but by what a program does by itself.
Absolute figures move with the machine's mood: only those of one table compare."""


def names_of(contest):
    return [figures.OURS, *(name for name in contest["rounds"] if name != figures.OURS)]


def head_of(contest):
    if contest.get("kind") == "bytes":
        return ["", "bytes of one call", "of the buffer", "of the first row"]
    if contest.get("kind") == "step":
        return ["", "computing ms", "step ms", "exposed ms", "hidden", "CPU ms", "of it begin", "commit", "folding alone", "ratio",
                "of a step"]
    rows = figures.rows_of(contest)
    head = ["bytes"] + [f"{name} µs" for name in names_of(contest)] + ["GB/s", "ratio", "of a round"]
    head += ["of the limit"] if any(row.limit is not None for row in rows) else []
    return head + (["of the bound"] if any(row.bound is not None for row in rows) else [])


def cells_of(contest):
    """The rows of the table, as text."""
    if contest.get("kind") == "bytes":
        return cells_of_bytes(contest)
    if contest.get("kind") == "step":
        return cells_of_steps(contest)
    head, cells = head_of(contest), []
    for row in figures.rows_of(contest):
        line = [figures.human(row.size), *[number(row.times.get(name)) for name in names_of(contest)]]
        line.append(number(row.busbw.get(figures.OURS)))
        line += [f"{row.ratio:.2f} ({row.best})", f"{row.low:.2f}–{row.high:.2f}"] if row.ratio else ["–", "–"]
        line += [f"{row.limit:.2f}" if row.limit else "–"] if "of the limit" in head else []
        line += [f"{row.bound:.3f}" if row.bound else "–"] if "of the bound" in head else []
        cells.append(line)
    return cells


def cells_of_bytes(contest):
    cells, first = [], None
    for name, rounds in contest["rounds"].items():
        for size in sorted({int(size) for measured in rounds for size in measured}):
            sent = statistics.median(measured[str(size)] for measured in rounds if str(size) in measured)
            first = first or sent
            cells.append([name, f"{sent:,.0f}", f"{sent / size:.3f}", f"{sent / first:.3f}"])
    return cells


def cells_of_steps(contest):
    cells = []
    for name, compute, row in figures.step_rows(contest):
        folding = min(row["plain_fold_cpu_ms"], row["stream_fold_cpu_ms"])
        times = [row[figure] for figure in ("wall_ms", "exposed_ms")]
        cells.append([name, compute, *[f"{value:.1f}" for value in times], f"{row['hidden']:.0%}",
                      *[f"{row[figure]:.1f}" for figure in ("cpu_ms", "begin_cpu_ms", "commit_cpu_ms")], f"{folding:.1f}",
                      f"{row['ratio']:.2f}", f"{row['low']:.2f}–{row['high']:.2f}"])
    return cells


def about(contest):
    lines = []
    if contest.get("link"):
        rates = [rate * 8 / 1e9 for rate in contest["link"]]
        lines.append(f"One TCP connection carries {statistics.median(rates):.4f} Gbit/s over a link here (iperf3), and the bound "
                     "is the time that 2(n-1)/n of the buffer takes at that rate; a link lets 256 KiB through at once, so that "
                     "small sizes can be ahead of it, and 16 MiB gains up to 1 %.")
    if contest.get("note"):
        lines.append(contest["note"])
    return lines


def table(contest):
    """For the terminal: columns of text, the first to the left."""
    lines = [f"{contest['section']}: {figures.name_of(contest)}", *about(contest)]
    return "\n".join([*lines, columns([head_of(contest), *cells_of(contest)])])


def markdown(contest):
    rows = markdown_rows([head_of(contest), *cells_of(contest)])
    return "\n".join([f"**{figures.name_of(contest)}**", "", *[line + "\n" for line in about(contest)], rows])


def goal_lines(contests):
    return [str(verdict) for verdict in goals.judge_all(contests)]


def page(results, plot):
    """All of docs/BENCH.md. `results`: of each section that was measured, in order."""
    contests = [contest for result in results for contest in result["contests"]]
    out = ["# The collectives beside Open MPI, MPICH and Gloo", "", "Written by `make bench` (`bench/collectives/run`).", "",
           f"![busbw over the size of the buffer, for each table below]({plot})", "", METHOD, "", "## Goals", ""]
    out += [f"* {line}" for line in goal_lines(contests)]
    for result in results:
        out += ["", f"## {TITLES[result['section']]} (`{result['section']}`)", "", made_on(result)]
        for contest in result["contests"]:
            out += ["", markdown(contest)]
        out += [f"\nCould not run: {line}" for line in result["failures"]]
    return "\n".join(out) + "\n"
