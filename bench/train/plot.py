"""The plot: of each contest that is about speed a group of bars, as one SVG; each bar is a rate, to the greatest of its group."""
from xml.sax.saxutils import escape

from common.svg import STYLE

from . import figures

WIDTH, LEFT, BAR, GAP, HEAD = 760, 190, 20, 6, 34
RATES = ("tokens_per_s", "samples_per_s")
FILLS = """
.bar { stroke: none; } .ours.bar { fill: #0969da; } .openmpi.bar { fill: #bc4c00; } .gloo.bar { fill: #8250df; }
@media (prefers-color-scheme: dark) { .ours.bar { fill: #58a6ff; } .openmpi.bar { fill: #ffa657; } .gloo.bar { fill: #d2a8ff; } }"""


def look(name):
    return "openmpi" if name.startswith(figures.TORCH) else "gloo" if name == "1 worker" or name.endswith("f32") else "ours"


def group(contest, top):
    """The parts of one contest, and where the next may begin."""
    rates = {row.name: row.values[contest["ratio"]] for row in figures.rows_of(contest) if row.values.get(contest["ratio"])}
    out = [f'<text class="title" x="20" y="{top + 20}">{escape(figures.name_of(contest))}</text>']
    top += HEAD
    for name, rate in rates.items():
        length = rate / max(rates.values()) * (WIDTH - LEFT - 110)
        out.append(f'<text x="{LEFT - 10}" y="{top + 15}" text-anchor="end">{escape(name)}</text>')
        out.append(f'<rect class="{look(name)} bar" x="{LEFT}" y="{top}" width="{length:.1f}" height="{BAR}"/>')
        out.append(f'<text x="{LEFT + length + 8:.1f}" y="{top + 15}">{rate:,.0f} {contest["ratio"].split("_")[0]}/s</text>')
        top += BAR + GAP
    return out, top + GAP


def draw(contests):
    """The SVG's text. Contests of losses have no bars."""
    parts, top = [], 0
    for contest in contests:
        if contest["ratio"] in RATES and any(contest["rounds"].values()):
            drawn, top = group(contest, top)
            parts += drawn
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top + 10}" width="{WIDTH}" '
                      f'height="{top + 10}" role="img">', "<title>How fast Ringfold and PyTorch train</title>",
                      f"<style>\n{STYLE}{FILLS}\n</style>", f'<rect class="page" width="{WIDTH}" height="{top + 10}"/>', *parts,
                      "</svg>"]) + "\n"
