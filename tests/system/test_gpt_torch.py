"""The gpt model beside PyTorch: same weights, same batch, loss and every gradient."""
import os
import subprocess

import numpy
import pytest

torch = pytest.importorskip("torch", reason="python3-torch is not installed: nothing to compare the gpt model with")

NN_GPT = os.path.join(os.environ["RINGFOLD_BUILD"], "tests", "nn_gpt")


def dump(tmp_path, shape, *more):
    """What `nn_gpt dump` writes: {(name, kind): array}."""
    path = tmp_path / "dump"
    subprocess.run([NN_GPT, "dump", *map(str, shape), str(path), *more], check=True, env={"OMP_NUM_THREADS": "1"})
    types = {"int": "<u4", "double": "<f8"}
    out = {}
    with open(path, "rb") as file:
        for line in iter(file.readline, b""):
            name, kind, count, *sizes = line.decode().split()
            type_ = numpy.dtype(types.get(kind, "<f4"))
            data = numpy.frombuffer(file.read(int(count) * type_.itemsize), type_)
            assert data.size == int(count)
            out[name, kind if kind in ("weight", "gradient") else ""] = data.reshape([int(s) for s in sizes]) if sizes else data
    return out


def reference(weights, tokens, depth, heads):
    """GPT-2 written down with PyTorch's own functions, in double precision: the sum of the losses."""
    functional = torch.nn.functional
    w = weights
    width = w["wte.weight"].shape[1]
    inputs, labels = tokens[:, :-1], tokens[:, 1:]
    samples, context = inputs.shape

    def norm(x, name):
        return functional.layer_norm(x, (width,), w[name + ".weight"], w[name + ".bias"], 1e-5)

    def linear(x, name):
        return x @ w[name + ".weight"] + w[name + ".bias"]

    def split(x):
        return x.view(samples, context, heads, width // heads).transpose(1, 2)

    x = w["wte.weight"][inputs] + w["wpe.weight"][:context]
    future = torch.ones(context, context).triu(1).bool()
    for i in range(depth):
        h = f"h.{i}."
        q, k, v = (split(part) for part in linear(norm(x, h + "ln_1"), h + "attn.c_attn").split(width, 2))
        scores = (q @ k.transpose(2, 3) / (width // heads) ** 0.5).masked_fill(future, float("-inf"))
        y = (scores.softmax(3) @ v).transpose(1, 2).reshape(samples, context, width)
        x = x + linear(y, h + "attn.c_proj")
        y = linear(norm(x, h + "ln_2"), h + "mlp.c_fc")
        y = 0.5 * y * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (y + 0.044715 * y**3)))
        x = x + linear(y, h + "mlp.c_proj")
    logits = norm(x, "ln_f") @ w["wte.weight"].T
    return functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")


def compare(found, shape, tolerance):
    depth, heads, _, context, batch, _ = shape
    weights = {name: torch.tensor(data, dtype=torch.float64, requires_grad=True)
               for (name, kind), data in found.items() if kind == "weight"}
    assert len(weights) == 4 + 12 * depth
    tokens = torch.tensor(found["tokens", ""].astype(numpy.int64)).view(batch, context + 1)
    loss = reference(weights, tokens, depth, heads)
    loss.backward()
    assert abs(found["loss", ""][0] - loss.item()) <= tolerance * loss.item()
    for name, weight in weights.items():
        expected, got = weight.grad.numpy(), found[name, "gradient"]
        error = numpy.linalg.norm(got - expected) / numpy.linalg.norm(expected)
        assert error <= tolerance, (name, error)


# depth, heads, width, context, batch, vocabulary: whole vectors and blocks; nothing whole; one of each; several slices
# of the head.
@pytest.mark.parametrize("shape", [(2, 4, 128, 64, 3, 65), (3, 3, 42, 77, 2, 101), (1, 1, 8, 1, 1, 2), (2, 2, 96, 200, 1, 259),
                                   (1, 2, 32, 150, 3, 30000)])
def test_as_torch(tmp_path, shape):
    compare(dump(tmp_path, shape), shape, 1e-4)
