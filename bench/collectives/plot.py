"""The plot: busbw over the size of the buffer, both logarithmic, a panel for each contest, as one SVG.

The colours are the sheet's own classes, given twice: for light and for dark surroundings. Lines differ in their marks too.
"""
import math
import statistics
from xml.sax.saxutils import escape

import figures
from common.svg import STYLE, Scale, mark

WIDTH, HEIGHT, COLUMNS = 460, 300, 2  # of a panel
LEFT, RIGHT, TOP, BOTTOM = 72, 30, 34, 42
LEGEND = 34

# Of each name: its class and its mark. References are dashed and have none.
LOOKS = {figures.OURS: ("ours", "circle"), "Open MPI": ("openmpi", "square"), "MPICH": ("mpich", "diamond"),
         "Gloo": ("gloo", "triangle"), "float32": ("openmpi", "square")}
REFERENCE = ("limit", "")
LIMIT = "what memory, sockets or the link allow"


def look(name):
    return LOOKS.get(name, REFERENCE)


def decades(low, high):
    """The powers of ten around the values; the axis runs from the first to the last."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    return [10.0 ** k for k in range(first, max(last, first + 1) + 1)]


def label(rate):
    """Of a power of ten of GB/s."""
    for unit, name in ((1, "GB/s"), (1e-3, "MB/s"), (1e-6, "kB/s")):
        if rate > unit * 0.99:
            return f"{rate / unit:.0f} {name}"
    return f"{rate / 1e-9:g} B/s"


def panel(contest, left, top):
    rows = [row for row in figures.rows_of(contest) if row.busbw]
    link = statistics.median(contest["link"]) / 1e9 if contest.get("link") else None
    rates = [rate for row in rows for rate in row.busbw.values()] + ([link] if link else [])
    ticks = decades(min(rates), max(rates))
    x = Scale([row.size for row in rows], left + LEFT, left + WIDTH - RIGHT)
    y = Scale(ticks, top + HEIGHT - BOTTOM, top + TOP)
    out = [f'<text class="title" x="{left + LEFT}" y="{top + 20}">{escape(figures.name_of(contest))}</text>']
    for tick in ticks:
        out.append(f'<line class="grid" x1="{x.first}" x2="{x.last}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>')
        out.append(f'<text x="{x.first - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{label(tick)}</text>')
    every = max(1, math.ceil(len(rows) / 6))
    for row in rows[::every]:
        out.append(f'<line class="grid" x1="{x(row.size):.1f}" x2="{x(row.size):.1f}" y1="{y.first}" y2="{y.last}"/>')
        out.append(f'<text x="{x(row.size):.1f}" y="{y.first + 18}" text-anchor="middle">{figures.human(row.size)}</text>')
    out.append(f'<text x="{left + LEFT}" y="{top + HEIGHT - 6}">busbw over the size of the buffer</text>')
    if link:
        out.append(f'<line class="limit line" x1="{x.first}" x2="{x.last}" y1="{y(link):.1f}" y2="{y(link):.1f}"/>')
    for name in sorted(contest["rounds"], key=lambda name: name == figures.OURS):  # ours above the others
        css, kind = look(name)
        points = [(x(row.size), y(row.busbw[name])) for row in rows if name in row.busbw]
        line = " ".join(f"{px:.1f},{py:.1f}" for px, py in points)
        out.append(f'<polyline class="{css} line" points="{line}"/>')
        out += [mark(kind, css, *point) for point in points]
    return out


def legend(names):
    out, left = [], 20
    for name in names:
        css, kind = look(name)
        out.append(f'<line class="{css} line" x1="{left}" x2="{left + 28}" y1="20" y2="20"/>{mark(kind, css, left + 14, 20)}')
        out.append(f'<text x="{left + 36}" y="24">{escape(name)}</text>')
        left += 60 + 8 * len(name)
    return out


def draw(contests):
    """The SVG's text. Contests of bytes, and those without our own figures, have no panel."""
    shown = [contest for contest in contests
             if not contest.get("kind") and any(row.busbw for row in figures.rows_of(contest))]
    lines = (len(shown) + COLUMNS - 1) // COLUMNS
    width, height = COLUMNS * WIDTH, LEGEND + lines * HEIGHT
    drawn = {name for contest in shown for name in contest["rounds"]}
    names = [name for name in LOOKS if name in drawn] + [LIMIT]
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
           'role="img">',
           "<title>busbw of Ringfold's collectives beside Open MPI, MPICH and Gloo</title>",
           f"<style>\n{STYLE}\n</style>", f'<rect class="page" width="{width}" height="{height}"/>', *legend(names)]
    for k, contest in enumerate(shown):
        out += panel(contest, k % COLUMNS * WIDTH, LEGEND + k // COLUMNS * HEIGHT)
    return "\n".join(part for part in [*out, "</svg>"] if part) + "\n"
