"""What the tables and pages of every bench have in common, and what they say of the machine."""
import argparse
import os
import platform
import sys
import time

BUSY = 0.1  # of all cores, by others, before anything is measured


def number(value):
    if value is None:
        return "–"
    return f"{value:.2g}" if value < 1 else f"{value:.3g}" if value < 100 else f"{value:,.0f}"


def columns(rows):
    """For the terminal: columns of text, the first to the left."""
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) if k == 0 else cell.rjust(width)
                               for k, (cell, width) in enumerate(zip(row, widths))).rstrip() for row in rows)


def markdown_rows(rows):
    """A table of Markdown; the first row is its head."""
    head, *others = rows
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] + ["--:"] * (len(head) - 1), *others])


def made_on(result):
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    rounds = f"{result['rounds']} round{'' if result['rounds'] == 1 else 's'}"
    busy = "" if result["busy"] < BUSY else f" **Other programs took {result['busy']:.0%} of the machine: do not trust these.**"
    return f"{result['date']}, {result['machine']}; {versions}; {rounds}.{busy}"


def whole_number(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is less than 1")
    return value


def machine():
    model = next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")),
                 platform.machine())
    cores = len(os.sched_getaffinity(0))
    return f"{cores} core{'' if cores == 1 else 's'} ({model}), Linux {platform.release()}"


def tell(text):
    print(text, file=sys.stderr, flush=True)


def used_by_others(seconds=1.0):
    """The part of all cores' time that other programs take now, measured for so long."""
    def ticks():
        values = list(map(int, open("/proc/stat").readline().split()[1:9]))
        return sum(values), values[3] + values[4]  # all, idle

    before = ticks()
    time.sleep(seconds)
    everything, idle = (after - earlier for after, earlier in zip(ticks(), before))
    return 1 - idle / everything if everything else 0.0
