"""What the plots of every bench have in common: the sheet, marks, and scales that are logarithmic."""
import math

STYLE = """\
text { font: 12px system-ui, sans-serif; fill: #1f2328; }
.title { font-weight: 600; }
.page { fill: #ffffff; }
.grid { stroke: #d8dee4; stroke-width: 1; }
.line { fill: none; stroke-width: 1.6; }
.ours { stroke: #0969da; } .ours.line { stroke-width: 2.6; } .openmpi { stroke: #bc4c00; } .mpich { stroke: #1a7f37; }
.gloo { stroke: #8250df; } .limit { stroke: #6e7781; stroke-dasharray: 5 4; }
.mark { stroke-width: 1.2; fill: #ffffff; } .ours.mark { fill: #0969da; }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3; }
.page { fill: #0d1117; }
.grid { stroke: #30363d; }
.ours { stroke: #58a6ff; } .openmpi { stroke: #ffa657; } .mpich { stroke: #56d364; } .gloo { stroke: #d2a8ff; }
.limit { stroke: #8b949e; } .mark { fill: #0d1117; } .ours.mark { fill: #58a6ff; }
}"""


def mark(kind, css, x, y):
    if kind == "circle":
        return f'<circle class="{css} mark" cx="{x:.1f}" cy="{y:.1f}" r="3"/>'
    shapes = {"square": ((-3, -3), (3, -3), (3, 3), (-3, 3)), "diamond": ((0, -4), (4, 0), (0, 4), (-4, 0)),
              "triangle": ((0, -4), (3.6, 3), (-3.6, 3))}
    if kind not in shapes:
        return ""
    points = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in shapes[kind])
    return f'<polygon class="{css} mark" points="{points}"/>'


class Scale:
    """From logarithms to a span of the page; both ends of the values lie inside."""

    def __init__(self, values, first, last):
        self.low, self.high = math.log10(min(values)), math.log10(max(values))
        if self.high - self.low < 0.1:
            self.low, self.high = self.low - 0.1, self.high + 0.1
        self.first, self.last = first, last

    def __call__(self, value):
        return self.first + (math.log10(value) - self.low) / (self.high - self.low) * (self.last - self.first)
