"""The exported file is read by a reader of its own, made from safetensors' rules alone: equal names, shapes and values."""
import json
import os
import pathlib
import struct
import subprocess

import numpy
import pytest

BUILD = pathlib.Path(os.environ["RINGFOLD_BUILD"]).resolve()
RINGFOLD = str(BUILD / "bin" / "ringfold")
MAKE = str(BUILD / "tests" / "make_ckpt")
SHAPES = {"layer1.weight": (128, 100), "layer1.bias": (128,), "scale": (), "empty": (0, 3)}


def read(path):
    whole = pathlib.Path(path).read_bytes()
    length = struct.unpack("<Q", whole[:8])[0]
    header, data, at = json.loads(whole[8:8 + length]), whole[8 + length:], 0
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = entry["data_offsets"]
        assert begin == at and whole[8:9] == b"{" and length % 8 == 0
        at = end
        dtype = {"F32": "<f4", "U8": "u1"}[entry["dtype"]]
        tensors[name] = numpy.frombuffer(data[begin:end], dtype).reshape(entry["shape"])
    assert at == len(data)
    return tensors, metadata


def expected(name, seed):
    count = int(numpy.prod(SHAPES[name], dtype=int))
    values = list(SHAPES).index(name) + numpy.arange(count, dtype=numpy.float32) / 64 + seed
    return values.astype(numpy.float32).reshape(SHAPES[name])


@pytest.mark.parametrize("parts", [1, 3, 7])
@pytest.mark.parametrize("further", [False, True])
def test_values_are_equal(tmp_path, parts, further):
    subprocess.run([MAKE, tmp_path / "ckpt", "20", str(parts), "5"], check=True, timeout=60)
    done = subprocess.run([RINGFOLD, "ckpt", "export", tmp_path / "ckpt", "--output", tmp_path / "model.safetensors",
                           *(["--optimizer"] if further else [])], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "" and "exported" in done.stdout
    tensors, metadata = read(tmp_path / "model.safetensors")
    assert metadata["format"] == "pt" and metadata["step"] == "20"
    assert set(tensors) == {*SHAPES, *(["momentum"] if further else [])}
    for name in SHAPES:
        assert tensors[name].dtype == numpy.float32 and tensors[name].shape == SHAPES[name]
        assert numpy.array_equal(tensors[name], expected(name, 5)), name
    if further:
        assert numpy.array_equal(tensors["momentum"], (numpy.arange(5001) * 7 + 5).astype(numpy.uint8))


def test_each_part_is_a_safetensors_file_too(tmp_path):
    subprocess.run([MAKE, tmp_path, "20", "3", "5"], check=True, timeout=60)
    weights = {}
    for part in range(3):
        tensors, metadata = read(next(tmp_path.glob(f"step-*/part-{part}-of-3.safetensors")))
        assert (metadata["part"], metadata["parts"], metadata["step"]) == (str(part), "3", "20")
        for name, values in tensors.items():
            base, _, offset = name.partition("@")
            weights.setdefault(base, {})[int(offset or 0)] = values.reshape(-1)
    for name in SHAPES:
        pieces, at = [], 0
        for offset, values in sorted(weights[name].items()):
            assert offset == at
            at += len(values)
            pieces.append(values)
        assert numpy.array_equal(numpy.concatenate(pieces), expected(name, 5).reshape(-1)), name
