"""What the programs measured, and what follows from it: medians over the rounds, busbw, ratios to the best peer, shares.

A contest is one table: the same collective, ranks and memory, measured by us, by each peer and perhaps by a reference, in
rounds that alternate. It is plain data, as it is kept in a file:

  {"section": "shm", "title": "…", "collective": "allreduce", "ranks": 2, "references": ["memory limit"],
   "rounds": {"Ringfold": [{"4": 0.3, "1024": 0.4}, …one a round: microseconds by bytes…], "Open MPI": […], …},
   "link": [117.1e6, …one a round: bytes a second that a link carries…]}

A reference is no peer: what it reaches is the measure of a share. Where the rates of a link are known, the share is that of the
ring's bound. Nothing here runs a program or draws.
"""
import json
import statistics
from dataclasses import dataclass

OURS = "Ringfold"

# The part of the buffer that travels on each bus, as nccl-tests have it: times (n-1)/n, or the whole.
SHARES = {"allreduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1, "broadcast": None}


class Unusable(Exception):
    """Output that is not what a program of this bench prints, or a wrong result."""


def measurements(text, who, take):
    """take(row) of each JSON line; at least one."""
    found = []
    for line in text.splitlines():
        if not line.startswith("{"):
            continue
        try:
            found.append(take(json.loads(line)))
        except (ValueError, KeyError, TypeError) as problem:
            raise Unusable(f"{who}: '{line[:80]}' is no line of a measurement ({problem})") from problem
    if not found:
        raise Unusable(f"{who}: printed no figures")
    return found


def parse(text, who):
    """{bytes: microseconds} of the JSON lines; of several variants of one size the fastest counts."""
    found = {}
    for size, time, wrong, row in measurements(
            text, who, lambda row: (int(row["bytes"]), float(row["time_us"]), row["wrong"], row)):
        if wrong:
            raise Unusable(f"{who}: {wrong} elements of {row.get('collective', 'the result')} of {size} bytes are wrong")
        if not time > 0:
            raise Unusable(f"{who}: {size} bytes in {time} microseconds")
        found[size] = min(time, found.get(size, time))
    return found


# What ddp_step.c tells of a step, all of them numbers.
STEP_FIGURES = ("wall_ms", "cpu_ms", "exposed_ms", "hidden", "begin_cpu_ms", "commit_cpu_ms", "plain_fold_cpu_ms",
                "stream_fold_cpu_ms", "ratio", "low", "high")


def parse_steps(text, who):
    """{milliseconds of computing: {figure: value}} of the JSON lines."""
    found = {}
    for compute, wrong, values in measurements(
            text, who, lambda row: (row["compute_ms"], row["wrong"], {name: float(row[name]) for name in STEP_FIGURES})):
        if wrong:
            raise Unusable(f"{who}: {wrong} averages of steps of {compute} ms differ from the folding's")
        found[f"{compute:g}"] = values
    return found


def step_rows(contest):
    """(title of the source, milliseconds of computing, {figure: median over the rounds; low and high: the extremes})."""
    rows = []
    for name, rounds in contest["rounds"].items():
        for compute in rounds[0]:
            each = [one[compute] for one in rounds if compute in one]
            row = {figure: statistics.median(one[figure] for one in each) for figure in STEP_FIGURES}
            rows.append((name, compute, {**row, "low": min(one["low"] for one in each),
                                         "high": max(one["high"] for one in each)}))
    return rows


def bus_share(collective, ranks):
    share = SHARES[collective]
    return 1.0 if share is None else share * (ranks - 1) / ranks


def busbw(collective, ranks, size, time_us):
    """Gigabytes a second."""
    return size / time_us / 1e3 * bus_share(collective, ranks)


@dataclass
class Row:
    size: int
    times: dict  # name: median microseconds
    busbw: dict  # name: GB/s at that
    best: str = None  # the peer with the shortest median
    ratio: float = None  # our busbw to the best peer's, which is its time to ours
    low: float = None  # the least and the greatest ratio of a round, to the same peer
    high: float = None
    limit: float = None  # our busbw to the reference's
    bound: float = None  # the time that the ring needs at the link's rate, to ours


def medians(contest, size):
    found = {}
    for name, rounds in contest["rounds"].items():
        times = [times[str(size)] for times in rounds if str(size) in times]
        if times:
            found[name] = statistics.median(times)
    return found


def ratios_of_rounds(contest, size, peer):
    pairs = zip(contest["rounds"][OURS], contest["rounds"][peer])
    return [theirs[str(size)] / ours[str(size)] for ours, theirs in pairs if str(size) in ours and str(size) in theirs]


def row_of(contest, size):
    collective, ranks = contest["collective"], contest["ranks"]
    times = medians(contest, size)
    row = Row(size, times, {name: busbw(collective, ranks, size, time) for name, time in times.items()})
    references = contest.get("references", [])
    peers = [name for name in times if name != OURS and name not in references]
    if OURS not in times:
        return row
    if peers:
        row.best = min(peers, key=times.get)
        row.ratio = times[row.best] / times[OURS]
        each = ratios_of_rounds(contest, size, row.best)
        row.low, row.high = (min(each), max(each)) if each else (row.ratio, row.ratio)
    limits = [times[name] for name in references if name in times]
    if limits:
        row.limit = min(limits) / times[OURS]
    if contest.get("link"):
        seconds = size * bus_share(collective, ranks) / statistics.median(contest["link"])
        row.bound = seconds * 1e6 / times[OURS]
    return row


def rows_of(contest):
    sizes = {int(size) for rounds in contest["rounds"].values() for times in rounds for size in times}
    return [row_of(contest, size) for size in sorted(sizes)]


def name_of(contest):
    return f"{contest['collective']}, {contest['title']}"


def human(size):
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} B"
