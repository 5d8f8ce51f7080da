"""What the runs told, and what follows from it: medians over the rounds, ratios to a reference, shares of the sgemm rate.

A contest is one table: programs that do the same work, in rounds that alternate. It is plain data, as it is kept in a file:

  {"section": "alone", "title": "small", "base": "PyTorch", "show": ["tokens_per_s", "share"], "ratio": "tokens_per_s",
   "note": "…",
   "rounds": {"Ringfold": [{"tokens_per_s": 2345.6}, …one a round…], "PyTorch": […]}}

The ratio is each row's to that of `base` in the same round, divided by `per` where there is one. Nothing here runs a program or draws.
"""
import json
import statistics
from dataclasses import dataclass

OURS, TORCH = "Ringfold", "PyTorch"
WARM_UP = 2  # steps of each run that are not looked at, where it has more


class Unusable(Exception):
    """Output that is not what a trainer of this bench tells."""


@dataclass(frozen=True)
class Shape:
    """Of the gpt model, and of a worker's part of a step."""
    name: str
    depth: int
    heads: int
    width: int
    context: int
    batch: int  # windows a worker
    vocabulary: int

    @property
    def parameters(self):
        block = 12 * self.width * self.width + 13 * self.width
        return (self.vocabulary + self.context) * self.width + self.depth * block + 2 * self.width

    @property
    def work(self):
        """Operations a token: 6 for each parameter but those of the positions, which are only added, and those of attention,
        forward and backward, of which each token looks at half of the window."""
        return 6 * (self.parameters - self.context * self.width) + 6 * self.depth * self.width * self.context

    def __str__(self):
        return (f"{self.name}: {self.depth} layers, {self.heads} heads, width {self.width}, context {self.context}, batch "
                f"{self.batch} a worker, vocabulary {self.vocabulary:,}")


def parse(text, who, units):
    """What a run told, as {figure: value}: the JSON lines of its steps, and of the whole the last one. `units`: what one step is
    of, in tokens or samples, and what its rate is called."""
    steps, whole = [], None
    for line in text.splitlines():
        if not line.startswith("{"):
            continue
        try:
            row = json.loads(line)
            if "step_s" in row and "step" in row:
                steps.append((float(row["step_s"]), float(row["loss"])))
            elif "peak_bytes" in row:
                whole = row
        except (ValueError, KeyError, TypeError) as problem:
            raise Unusable(f"{who}: '{line[:80]}' is no line of a training ({problem})") from problem
    if not steps or whole is None:
        raise Unusable(f"{who}: told of {len(steps)} steps and {'not of' if whole is None else 'of'} the whole: its log is not "
                       "one of a training that came to its end")
    count, rate = units
    warm = [seconds for seconds, _ in steps[WARM_UP:]] or [steps[-1][0]]
    found = {rate: count / statistics.median(warm), "steps": len(steps), "loss": statistics.mean(loss for _, loss in steps[-20:])}
    for name in ("val_loss", "accuracy", "test_loss", "peak_bytes", "parameters"):
        if isinstance(whole.get(name), (int, float)):
            found[name] = float(whole[name])
    memory = whole.get("memory")
    if isinstance(memory, dict):
        found["printed_bytes"] = float(sum(memory.values()))
        found["over_printed"] = found["peak_bytes"] / found["printed_bytes"]
    return found


@dataclass
class Row:
    name: str
    values: dict  # figure: median over the rounds
    ratio: float = None  # median of the rounds' ratios to the base
    low: float = None  # the least and the greatest of them
    high: float = None


def median_of(rounds, figure):
    values = [one[figure] for one in rounds if figure in one]
    return statistics.median(values) if values else None


def rows_of(contest):
    rows, base, figure = [], contest["rounds"].get(contest["base"], []), contest["ratio"]
    per = contest.get("per") or {}
    for name, rounds in contest["rounds"].items():
        row = Row(name, {one: median_of(rounds, one) for one in sorted({key for each in rounds for key in each})})
        ratios = [mine[figure] / theirs[figure] / per.get(name, 1) for mine, theirs in zip(rounds, base)
                  if figure in mine and figure in theirs]
        if ratios and name != contest["base"]:
            row.ratio, row.low, row.high = statistics.median(ratios), min(ratios), max(ratios)
        rows.append(row)
    return rows


def name_of(contest):
    return f"{contest['section']}, {contest['title']}"


def flops_of(text):
    """What sgemm.c prints."""
    try:
        rate = float(json.loads(text)["flops"])
    except (ValueError, KeyError, TypeError) as problem:
        raise Unusable(f"sgemm: '{text[:80]}' is no rate ({problem})") from problem
    if not rate > 0:
        raise Unusable(f"sgemm: {rate} operations a second")
    return rate


def vocabulary_of(text):
    """Of a tokenizer.json."""
    try:
        return int(json.loads(text)["vocabulary"])
    except (ValueError, KeyError, TypeError) as problem:
        raise Unusable(f"tokenizer.json: '{text[:80]}' does not tell of a vocabulary ({problem})") from problem
