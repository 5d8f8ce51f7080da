"""What training is meant to reach. The goals stand here and nowhere else."""
from dataclasses import dataclass

from . import figures

# How a row answers to a goal: the figure, and how that reads.
RATIO, SHARE, LOSS, PRINTED, ACCURACY = "ratio", "share", "loss", "printed", "accuracy"


@dataclass(frozen=True)
class Goal:
    section: str
    title: str  # of the contest
    kind: str
    value: float
    row: str = figures.OURS

    def __str__(self):
        where = f"{self.section}, {self.title}: {self.row}"
        return {
            RATIO: f"{where} at least {self.value:g} times as fast as the reference",
            SHARE: f"{where} at least {self.value:.0%} of the rate of sgemm",
            LOSS: f"{where} loses at most {self.value:g} more on validation than the reference",
            PRINTED: f"{where} takes at most {self.value:g} times the memory that it said it would",
            ACCURACY: f"{where} at most {self.value:.1%} less accurate than the reference",
        }[self.kind]

    def figure(self, contest):
        """None where it was not measured."""
        rows = {row.name: row for row in figures.rows_of(contest)}
        row, base = rows.get(self.row), rows.get(contest["base"])
        if row is None:
            return None
        if self.kind == RATIO:
            return row.ratio
        if self.kind in (SHARE, PRINTED):
            return row.values.get("share" if self.kind == SHARE else "over_printed")
        name = "val_loss" if self.kind == LOSS else "accuracy"
        if base is None or row.values.get(name) is None or base.values.get(name) is None:
            return None
        less = base.values[name] - row.values[name]
        return less if self.kind == ACCURACY else -less

    def reached(self, figure):
        return figure >= self.value if self.kind in (RATIO, SHARE) else figure <= self.value


GOALS = [
    Goal("alone", "small", RATIO, 1.22),
    Goal("alone", "baby", RATIO, 1.3),
    Goal("alone", "small", SHARE, 0.85),
    Goal("two", "small", RATIO, 1.3),
    Goal("two", "baby", RATIO, 1.6),
    Goal("bf16", "small", RATIO, 1.5),
    Goal("scaling", "shared memory", RATIO, 0.95, "2 workers"),
    Goal("scaling", "10 Gbit/s", RATIO, 0.9, "2 workers"),
    Goal("large", "GPT-2 124M", RATIO, 1),
    Goal("large", "GPT-2 124M", PRINTED, 1.25),
    Goal("quality", "baby", LOSS, 0.05),
    Goal("bf16-loss", "baby", LOSS, 0.02, "Ringfold bf16"),
    Goal("bf16-loss", "small", LOSS, 0.02, "Ringfold bf16"),
    Goal("cnn", "Fashion-MNIST", RATIO, 1),
    Goal("cnn", "Fashion-MNIST", ACCURACY, 0.01),
]


def verdict(goal, contests):
    """The line that the page and the terminal have."""
    for contest in contests:
        if (contest["section"], contest["title"]) == (goal.section, goal.title):
            figure = goal.figure(contest)
            if figure is not None:
                return f"{goal}: {'met' if goal.reached(figure) else 'MISSED'} ({figure:.3g})"
    return f"{goal}: not measured"


def verdicts(contests):
    return [verdict(goal, contests) for goal in GOALS]
