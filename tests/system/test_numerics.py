"""The same training on 1 to 4 workers: how far apart the results are, and what is the same bit for bit."""
import functools
import json
import math
import pathlib
import subprocess

import numpy
import pytest

from helpers import RINGFOLD, environment, safetensors

DATA = pathlib.Path("/usr/share/datasets/fashion-mnist")
WORKERS = (1, 2, 3, 4)
LIMIT_PARAMETERS, LIMIT_GRADIENTS = 1e-4, 1e-6
DEADLINE_S = 300


@pytest.fixture(scope="module")
def train(tmp_path_factory):
    """Trains once for each set of arguments and remembers what came of it."""
    assert (DATA / "train-images-idx3-ubyte.gz").exists() or (DATA / "train-images-idx3-ubyte").exists(), \
        f"no Fashion-MNIST in {DATA}: install the package dataset-fashion-mnist ('make setup' does)"

    @functools.cache
    def run(workers, transport="auto", repetition=0):
        folder = tmp_path_factory.mktemp(f"n{workers}-{transport}-{repetition}-")
        done = subprocess.run(
            [RINGFOLD, "run", "-n", str(workers), "-q", "--run-dir", "run", "--", RINGFOLD, "train", "cnn", "--data", DATA,
             "--shards", "12", "--steps", "20", "--batch", "120", "--transport", transport, "--log", "log",
             "--save", "parameters.safetensors", "--save-gradients", "gradients.safetensors", "-q"],
            cwd=folder, env=environment(), timeout=DEADLINE_S, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        summary = json.loads((folder / "log").read_text().splitlines()[-1])
        assert summary["steps"] == 20 and summary["samples"] == 2400 and summary["workers"] == workers
        return summary, values(folder / "parameters.safetensors"), values(folder / "gradients.safetensors")

    return run


def values(path):
    return {name: numpy.frombuffer(raw, "<f4").astype(numpy.float64).reshape(shape)
            for name, (shape, raw) in safetensors(path).items()}


def distance(some, others):
    """Relative L2 difference of all tensors together."""
    assert some.keys() == others.keys()
    apart = sum(float(((some[name] - others[name]) ** 2).sum()) for name in some)
    norm = sum(float((others[name] ** 2).sum()) for name in others)
    assert norm > 0 and math.isfinite(apart)
    return math.sqrt(apart / norm)


@pytest.mark.parametrize("n", WORKERS[1:])
def test_the_result_hardly_depends_on_the_number_of_workers(train, n):
    _, parameters, gradients = train(n)
    _, alone, gradients_alone = train(1)
    apart = distance(parameters, alone), distance(gradients, gradients_alone)
    told = f"{n} workers against 1: parameters {apart[0]:.3g}, first gradients {apart[1]:.3g} apart"
    print(told)
    assert apart[0] <= LIMIT_PARAMETERS and apart[1] <= LIMIT_GRADIENTS, told


@pytest.mark.parametrize("n", WORKERS)
def test_all_workers_hold_the_same_bits(train, n):
    summary = train(n)[0]
    assert summary["digests"] == [summary["digest"]] * n


@pytest.mark.parametrize("n", WORKERS)
def test_a_repeated_run_gives_the_same_bits(train, n):
    first, parameters, gradients = train(n)
    second, parameters_again, gradients_again = train(n, repetition=1)
    assert first["digest"] == second["digest"]
    for one, other in ((parameters, parameters_again), (gradients, gradients_again)):
        assert all(one[name].tobytes() == other[name].tobytes() for name in one)


@pytest.mark.parametrize("n", WORKERS[1:])
def test_the_transport_changes_no_bit(train, n):
    assert train(n, "shm")[0]["digest"] == train(n, "tcp")[0]["digest"]
