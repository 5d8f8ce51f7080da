"""ringfold data tokens: what a user reads, what stands in the folder, and that nothing does after a failure."""
import array
import base64
import json
import os
import pathlib
import resource
import signal
import struct
import subprocess

import pytest

from helpers import DEADLINE_S, RINGFOLD, environment, reports, wait_for

TEXT = "the lowest of the newest; été, 12 €!\n" * 3000


def tokens(folder, *words, **variables):
    return subprocess.run([RINGFOLD, "data", "tokens", *map(str, words)], cwd=folder, env=environment(**variables),
                          timeout=DEADLINE_S, capture_output=True, text=True)


def refused(folder, *words, status, code, **variables):
    """One report, on stderr alone; and nothing is left of the folder."""
    done = tokens(folder, *words, "-o", "out", **variables)
    assert done.returncode == status and not done.stdout, done
    assert reports(done.stderr) == 1 and f"error[{code}]" in done.stderr, done.stderr
    assert not (folder / "out").exists(), list((folder / "out").iterdir())
    return done.stderr


@pytest.fixture
def place(tmp_path):
    (tmp_path / "text").write_text(TEXT)
    return tmp_path


def ranks(path, merges=(" the", " new", "est", "é", "of")):
    lines = [bytes([b]) for b in range(256)] + [m.encode() for m in merges]
    path.write_text("".join(f"{base64.b64encode(t).decode()} {i}\n" for i, t in enumerate(lines)))
    return lines


def read(path):
    """The header's numbers and name, and the tokens."""
    whole = path.read_bytes()
    magic, version, low, vocabulary, high, _ = struct.unpack("<6I", whole[:24])
    assert (magic, version) in ((20240520, 1), (20240801, 7))
    found = array.array("H" if version == 1 else "I", whole[1024:])
    assert len(found) == low + (high << 32) and not any(whole[40:1024])
    return vocabulary, whole[24:40].rstrip(b"\0").decode(), found


def names(folder):
    return sorted(p.name for p in folder.iterdir())


def test_characters(place):
    done = tokens(place, "text", "-o", "out")
    assert done.returncode == 0 and not done.stderr, done
    letters = sorted(set(TEXT))
    cut = len(TEXT.encode()) * 9 // 10
    while TEXT.encode()[cut] & 0xC0 == 0x80:
        cut += 1
    train, val = TEXT.encode()[:cut].decode(), TEXT.encode()[cut:].decode()
    for name, part in (("train.bin", train), ("val.bin", val)):
        assert read(place / "out" / name) == (len(letters), "chars", array.array("H", map(letters.index, part)))
        assert f"out/{name}: {len(part):,} tokens of {len(part.encode()):,} bytes of text" in done.stdout
    assert f"chars, a vocabulary of {len(letters)}, 16 bits a token" in done.stdout
    assert json.loads((place / "out/tokenizer.json").read_text()) == {
        "version": 1, "tokenizer": "chars", "vocabulary": len(letters), "characters": [ord(c) for c in letters]}
    assert names(place / "out") == ["tokenizer.json", "train.bin", "train.bin.rfindex", "val.bin", "val.bin.rfindex"]
    checked = subprocess.run([RINGFOLD, "data", "check", "out/train.bin", "out/val.bin"], cwd=place, env=environment(),
                             capture_output=True, text=True, timeout=DEADLINE_S)
    assert checked.returncode == 0 and checked.stdout.count(": good") == 2


def test_bytes_of_anything(place):
    content = os.urandom(70_001)
    (place / "noise").write_bytes(content)
    done = tokens(place, "--tokenizer", "bytes", "--validation", "0", "--json", "noise", "-o", "deep/er/out")
    assert done.returncode == 0 and not done.stderr, done
    assert json.loads(done.stdout) == {
        "folder": "deep/er/out", "tokenizer": "bytes", "vocabulary": 256, "token_bytes": 2,
        "train": {"tokens": 70_001, "text_bytes": 70_001, "file_bytes": 1024 + 2 * 70_001},
        "validation": {"tokens": 0, "text_bytes": 0, "file_bytes": 0}}
    assert read(place / "deep/er/out/train.bin") == (256, "bytes", array.array("H", list(content)))
    assert names(place / "deep/er/out") == ["tokenizer.json", "train.bin", "train.bin.rfindex"]


def test_byte_pairs(place):
    lines = ranks(place / "small.tiktoken")
    (place / "more").write_bytes(b"of the \xff\xfe" * 50)
    done = tokens(place, "--tokenizer", "gpt2", "--ranks", "small.tiktoken", "--validation", "25%", "text", "more", "-o", "out")
    assert done.returncode == 0 and not done.stderr, done
    whole = []
    for name in ("train.bin", "val.bin"):
        vocabulary, tokenizer, found = read(place / "out" / name)
        assert (vocabulary, tokenizer) == (len(lines) + 1, "gpt2")
        assert found.count(len(lines)) == 1  # <|endoftext|> between the two texts
        assert found.count(lines.index(b" the")) > 100 and found.count(lines.index("é".encode())) > 100
        texts = b"".join(b"\0END\0" if t == len(lines) else lines[t] for t in found).split(b"\0END\0")
        whole.append(texts)
    assert [a + b for a, b in zip(*whole)] == [TEXT.encode(), b"of the \xff\xfe" * 50]
    assert (place / "out/tokenizer.tiktoken").read_bytes() == (place / "small.tiktoken").read_bytes()


def test_a_folder_is_replaced_on_request_only(place):
    ranks(place / "r")
    assert tokens(place, "--tokenizer", "gpt2", "--ranks", "r", "text", "-o", "out").returncode == 0
    before = {p.name: p.read_bytes() for p in (place / "out").iterdir()}
    done = tokens(place, "text", "-o", "out")
    assert done.returncode == 1 and "error[RF0310]" in done.stderr and "--force" in done.stderr
    assert {p.name: p.read_bytes() for p in (place / "out").iterdir()} == before
    assert tokens(place, "--force", "--validation", "0", "text", "-o", "out").returncode == 0
    assert names(place / "out") == ["tokenizer.json", "train.bin", "train.bin.rfindex"]


def test_texts_that_cannot_be_used(place):
    (place / "latin").write_bytes(b"caf\xe9 " * 10)
    (place / "empty").write_bytes(b"")
    (place / "folder").mkdir()
    (place / "bad.tiktoken").write_text("IQ== 0\nIg==\n")
    text = refused(place, "text", "latin", status=1, code="RF0401")
    assert "'latin': byte 3 (0xE9) is not UTF-8" in text and "iconv" in text
    assert "'empty' is empty" in refused(place, "empty", status=1, code="RF0401")
    assert "nowhere" in refused(place, "text", "nowhere", status=1, code="RF0402")
    assert "folder" in refused(place, "folder", status=74, code="RF0104")
    text = refused(place, "--tokenizer", "gpt2", "--ranks", "bad.tiktoken", "text", status=1, code="RF0401")
    assert "line 2 of 'bad.tiktoken' is no token and rank" in text and "base64" in text
    assert "r.tiktoken" in refused(place, "--tokenizer", "gpt2", "--ranks", "r.tiktoken", "text", status=1, code="RF0402")
    text = refused(place, "text", status=74, code="RF0104", RINGFOLD_FAULTS="1", RINGFOLD_FAULT_READ="text:5000-5001")
    assert "text" in text and "Input/output error" in text


def test_folders_that_cannot_be_written(place):
    (place / "out").write_text("a file")
    done = tokens(place, "text", "-o", "out")
    assert done.returncode == 74 and reports(done.stderr) == 1 and "out" in done.stderr, done
    assert (place / "out").read_text() == "a file"
    done = tokens(place, "text", "-o", "/proc/nowhere/out")
    assert done.returncode == 74 and "/proc/nowhere" in done.stderr, done


@pytest.mark.parametrize("most", (1 << 10, 150_000, 200_000))
def test_a_disk_that_fills_up(place, most):
    """The system refuses what a file has beyond so many bytes: nothing half-written stays."""
    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    done = subprocess.run([RINGFOLD, "data", "tokens", "text", "-o", "out"], cwd=place, env=environment(), text=True,
                          capture_output=True, timeout=DEADLINE_S, preexec_fn=limit)
    assert done.returncode == 74 and "error[RF0104]" in done.stderr and "out" in done.stderr, done
    assert not (place / "out").exists(), names(place / "out")


def test_it_ends_on_a_signal_with_nothing_left(place):
    with open(place / "large", "wb") as large:
        large.truncate(40 << 30)  # zeros that take no room: more than can be read before the signal
    process = subprocess.Popen([RINGFOLD, "data", "tokens", "--tokenizer", "bytes", "large", "-o", "out"], cwd=place,
                               env=environment(), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    reading = pathlib.Path(f"/proc/{process.pid}/io")
    wait_for(lambda: int(reading.read_text().split()[1]) > 50 << 20, "50 MiB read", process)
    peak = [line for line in pathlib.Path(f"/proc/{process.pid}/status").read_text().splitlines() if "VmHWM" in line]
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 75 and not out and "error[RF0502]" in err and "nothing was kept" in err, err
    assert not (place / "out").exists()
    assert int(peak[0].split()[1]) < 400 << 10  # KiB: memory does not grow with the text


@pytest.mark.parametrize("words, said", (
    (("text",), "-o FOLDER"),
    (("-o", "out"), "needs a text"),
    (("text", "-o", "out", "--tokenizer", "words"), "none of chars, bytes, gpt2"),
    (("text", "-o", "out", "--tokenizer", "gpt2"), "--ranks FILE"),
    (("text", "-o", "out", "--ranks", "r"), "for --tokenizer gpt2"),
    (("text", "-o", "out", "--validation", "1"), "not a share"),
    (("text", "-o", "out", "--validation", "-0.1"), "not a share"),
    (("text", "-o", "out", "--validation", "nan"), "not a share"),
    (("text", "-o", "out", "--retries", "1"), "--retries is for check"),
))
def test_wrong_usage(place, words, said):
    done = tokens(place, *words)
    assert done.returncode == 64 and said in done.stderr, done.stderr
    assert not (place / "out").exists()


def test_options_of_tokens_are_for_tokens(place):
    for words in (("check", "text", "-o", "x"), ("index", "text", "--tokenizer", "bytes")):
        done = subprocess.run([RINGFOLD, "data", *words], cwd=place, env=environment(), capture_output=True, text=True,
                              timeout=DEADLINE_S)
        assert done.returncode == 64 and "is for tokens" in done.stderr, done.stderr
    assert names(place) == ["text"]
