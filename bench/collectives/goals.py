"""What the collectives are meant to reach, and which sizes miss it. The goals stand here and nowhere else."""
from dataclasses import dataclass

import figures

KI, MI = 1 << 10, 1 << 20
EVERY = 1 << 62

# How a row answers to a goal: the figure, and what it is called.
RATIO, TIME, LIMIT, BOUND, COST = "ratio", "time", "limit", "bound", "cost"
FIGURES = {
    RATIO: lambda row: row.ratio,
    TIME: lambda row: None if row.ratio is None else 1 / row.ratio,
    LIMIT: lambda row: row.limit,
    BOUND: lambda row: row.bound,
}
WORDS = {
    RATIO: "{0:g} times the busbw of the best peer",
    TIME: "at most {0:g} of the best peer's time",
    LIMIT: "{1:g} % of the memory's limit",
    BOUND: "{1:g} % of the ring's bound at the link's rate",
    COST: "a step's CPU time is at most {0:g} times that of folding alone",
}


@dataclass(frozen=True)
class Goal:
    section: str
    kind: str
    value: float
    first: int = 0  # sizes, both included
    last: int = EVERY
    ranks: int = None  # of contests with so many; None: of all
    ahead: bool = False  # more than the value, not just the value

    def reached(self, figure):
        if self.kind in (TIME, COST):
            return figure <= self.value
        return figure > self.value if self.ahead else figure >= self.value

    def __str__(self):
        where = self.section + (f", {self.ranks} ranks" if self.ranks else "")
        if self.value == 1 and self.kind in (RATIO, TIME):
            what = "ahead of the best peer" if self.ahead else "no slower than the best peer"
        else:
            what = WORDS[self.kind].format(self.value, round(self.value * 100, 2))
        if self.kind == COST:
            return f"{where}: {what}"
        if self.first and self.last != EVERY:
            sizes = f"from {figures.human(self.first)} to {figures.human(self.last)}"
        elif self.first:
            sizes = f"from {figures.human(self.first)}"
        elif self.last != EVERY:
            sizes = f"up to {figures.human(self.last)}"
        else:
            sizes = "at every size"
        return f"{where}: {what} {sizes}"


GOALS = [
    Goal("shm", TIME, 0.6, last=4 * KI),
    Goal("shm", RATIO, 2.5, 64 * KI, 4 * MI),
    Goal("shm", RATIO, 4, 16 * MI),
    Goal("shm", LIMIT, 0.70, 16 * MI),
    Goal("private", RATIO, 1, last=32 * KI),
    Goal("private", RATIO, 1.5, 64 * KI, 4 * MI),
    Goal("private", RATIO, 2, 8 * MI),
    Goal("many", RATIO, 1.5),
    Goal("tcp", TIME, 1, last=4 * KI),
    Goal("tcp", RATIO, 1, 64 * KI, ahead=True),
    Goal("tcp", RATIO, 1.2, 4 * MI),
    Goal("hosts", RATIO, 1.3, 64 * KI, 256 * KI, ranks=4),
    Goal("hosts", BOUND, 0.985, 16 * MI, ranks=4),
    Goal("hosts", RATIO, 1.3, 64 * KI, 256 * KI, ranks=8),
    Goal("hosts", BOUND, 0.97, 16 * MI, ranks=8),
    Goal("collectives", RATIO, 1, ahead=True),
    Goal("step", COST, 1.1),
]


def told(size):
    return size if isinstance(size, str) else figures.human(size)


@dataclass
class Verdict:
    goal: Goal
    checked: int  # rows
    misses: list  # (contest's name, size in bytes or what else a row is of, figure)

    @property
    def met(self):
        return self.checked > 0 and not self.misses

    def __str__(self):
        if not self.checked:
            return f"{self.goal}: not measured"
        if self.met:
            return f"{self.goal}: met, {self.checked} of {self.checked}"
        places = {}
        for name, size, figure in self.misses:
            places.setdefault(name, []).append(f"{told(size)} ({figure:.3g})")
        where = "; ".join(f"{name}: {', '.join(sizes)}" for name, sizes in places.items())
        return f"{self.goal}: MISSED by {len(self.misses)} of {self.checked}: {where}"


def judge(goal, contests):
    """Held against each row that has the figure."""
    if goal.kind == COST:
        return judge_steps(goal, contests)
    checked, misses = 0, []
    for contest in contests:
        if contest["section"] != goal.section or contest.get("kind") or goal.ranks not in (None, contest["ranks"]):
            continue
        for row in figures.rows_of(contest):
            figure = FIGURES[goal.kind](row)
            if figure is None or not goal.first <= row.size <= goal.last:
                continue
            checked += 1
            if not goal.reached(figure):
                misses.append((figures.name_of(contest), row.size, figure))
    return Verdict(goal, checked, misses)


def judge_steps(goal, contests):
    """Held against the steps as they are by default."""
    rows = [(contest, row) for contest in contests if contest["section"] == goal.section
            for row in figures.step_rows(contest) if row[0] == figures.OURS]
    misses = [(figures.name_of(contest), f"{compute} ms of computing", row["ratio"])
              for contest, (_, compute, row) in rows if not goal.reached(row["ratio"])]
    return Verdict(goal, len(rows), misses)


def judge_all(contests, goals=None):
    return [judge(goal, contests) for goal in goals or GOALS]
