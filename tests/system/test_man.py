"""Every command has a man page, and each page documents the options that --help shows: all, and no others."""
import os
import pathlib
import re
import subprocess

import pytest

BUILD = pathlib.Path(os.environ["RINGFOLD_BUILD"]).resolve()
RINGFOLD = str(BUILD / "bin" / "ringfold")
MAN = pathlib.Path(__file__).resolve().parents[2] / "man"
COMMANDS = ("run", "train", "plan", "bench", "tune", "store", "drill", "ckpt", "data", "rollback")
EVERYWHERE = {"--help", "-?", "--usage"}  # in --help of each command, in no page


def help_of(*words):
    done = subprocess.run([RINGFOLD, *words, "--help"], capture_output=True, text=True, timeout=60,
                          env={"PATH": os.environ["PATH"]})
    assert done.returncode == 0 and not done.stderr
    return done.stdout


def options_in_help(command):
    found = set()
    for line in help_of(command).splitlines():
        if re.match(r" {2,6}-", line):
            # What stands before the description: options, each with its argument, separated by commas.
            flags = re.match(r"\s*((?:--?[\w?-]+(?:[ =][^\s,]+)?(?:, )?)+)", line).group(1)
            found |= set(re.findall(r"(?<![\w-])--?[\w?][\w-]*", flags))
    return found - EVERYWHERE


def plain(roff):
    return re.sub(r"\\f[A-Z]", "", roff).replace("\\-", "-")


def options_in_page(command):
    """Of the tags that begin an entry, in man and in mdoc."""
    lines = plain((MAN / f"ringfold-{command}.1").read_text()).splitlines()
    found = set()
    for i, line in enumerate(lines):
        if line.startswith(".It Fl"):
            found |= {"-" + flag for flag in re.findall(r"Fl (\S+)", line)}
        elif i and lines[i - 1].startswith(".TP") and re.match(r"\.[BIR]+ \"?-", line):
            found |= set(re.findall(r"(?<![\w-])--?[a-zA-Z][a-zA-Z0-9-]*", line.replace('"', " ")))
    return found


@pytest.mark.parametrize("command", COMMANDS)
def test_the_page_and_the_help_have_the_same_options(command):
    shown, documented = options_in_help(command), options_in_page(command)
    assert len(shown) > (2 if command == "data" else 5)
    if command == "run":
        documented -= {"-np"}  # a spelling; getopt cannot show it
        assert "-np N" in help_of("run")
    assert shown == documented


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_fits_80_columns(command):
    assert all(len(line) <= 80 for line in help_of(command).splitlines())


def test_every_command_is_listed_and_has_a_page():
    listed = re.findall(r"^  (\w+)  +\S", help_of(), re.M)
    assert tuple(listed) == COMMANDS
    overview = plain((MAN / "ringfold.1").read_text())
    assert {page.stem for page in MAN.glob("ringfold-*.1")} == {f"ringfold-{name}" for name in listed}
    for name in listed:
        assert re.search(rf"^\.BR? ringfold-{name}\b|^\.BR? {name}\b", overview, re.M), name
        assert f"ringfold-{name} (1)" in overview, name
