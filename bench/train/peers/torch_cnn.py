#!/usr/bin/python3
"""The network of `ringfold train cnn` in PyTorch, on the same IDX files: three convolutions of 3 x 3, two halvings, two linear
layers; weights of the same distribution, AdamW, the same schedule. Several processes are DistributedDataParallel over Gloo.
"""
import argparse
import gzip
import math
import pathlib

import torch
from torch import nn
from torch.nn import functional

import ranks


class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in ((1, 16), (16, 32), (32, 64)))
        self.hidden, self.out = nn.Linear(64 * 7 * 7, 128), nn.Linear(128, 10)
        for layer in (*self.conv, self.hidden, self.out):
            inputs = layer.weight[0].numel()
            bound = math.sqrt((3 if layer is self.out else 6) / inputs)
            nn.init.uniform_(layer.weight, -bound, bound)
            nn.init.zeros_(layer.bias)

    def forward(self, x):
        x = functional.relu(self.conv[0](x))
        x = functional.relu(functional.max_pool2d(self.conv[1](x), 2))
        x = functional.relu(functional.max_pool2d(self.conv[2](x), 2))
        return self.out(functional.relu(self.hidden(x.flatten(1))))


def idx(folder, name, dims):
    """The bytes of an IDX file, as its dimensions have them."""
    path = next(path for path in (folder / f"{name}.gz", folder / name) if path.exists())
    data = gzip.open(path).read() if path.suffix == ".gz" else path.read_bytes()
    shape = [int.from_bytes(data[4 + 4 * k:8 + 4 * k], "big") for k in range(dims)]
    return torch.frombuffer(bytearray(data[4 + 4 * dims:]), dtype=torch.uint8).view(*shape)


def part(folder, name):
    images = idx(folder, f"{name}-images-idx3-ubyte", 3).float().div(255).unsqueeze(1)
    return images, idx(folder, f"{name}-labels-idx1-ubyte", 1).long()


def measure(model, images, labels):
    right, total = 0, 0.0
    with torch.no_grad():
        for first in range(0, len(images), 500):
            found, wanted = model(images[first:first + 500]), labels[first:first + 500]
            total += functional.cross_entropy(found, wanted, reduction="sum").item()
            right += (found.argmax(1) == wanted).sum().item()
    return right / len(images), total / len(images)


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--batch", type=int, default=128, help="of all processes together")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def main():
    options = parse()
    ranks.begin()
    torch.manual_seed(options.seed)
    model = Cnn()
    optimizer = ranks.adamw(model, 0.999, 0.0)
    trained = ranks.spread(model)
    images, labels = part(options.data, "train")
    order, each = torch.empty(0, dtype=torch.int64), options.batch // ranks.SIZE
    shuffling = torch.Generator().manual_seed(options.seed)
    steps = ranks.Steps(optimizer, options.lr, 0, options.steps)
    for _ in steps:
        if len(order) < options.batch:
            order = torch.randperm(len(images), generator=shuffling)
        taken, order = order.split([options.batch, len(order) - options.batch])
        taken = taken[ranks.RANK * each:(ranks.RANK + 1) * each]
        loss = functional.cross_entropy(trained(images[taken]), labels[taken])
        optimizer.zero_grad(set_to_none=ranks.SIZE == 1)
        loss.backward()
        optimizer.step()
        steps.loss(loss.item())
    accuracy, test_loss = measure(model, *part(options.data, "t10k"))
    ranks.tell(loss=ranks.mean_over_ranks(steps.found), accuracy=accuracy, test_loss=test_loss, samples=options.batch,
               parameters=sum(one.numel() for one in model.parameters()), peak_bytes=ranks.peak_bytes())
    ranks.end()


if __name__ == "__main__":
    main()
