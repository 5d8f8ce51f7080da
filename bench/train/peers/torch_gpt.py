#!/usr/bin/python3
"""GPT-2's architecture (Radford et al. 2019) in PyTorch, trained as `ringfold train gpt` trains it: same shapes, initial weights
of the same distribution, AdamW with decay for matrices only, the gradient's norm clipped, the same schedule, windows of the
same files of tokens. Several processes are DistributedDataParallel over Gloo. Written for speed on a CPU: mask and scale go
along with the product of queries and keys.
"""
import argparse
import array
import math
import pathlib

import torch
from torch import nn
from torch.nn import functional

import ranks


class Attention(nn.Module):
    def __init__(self, width, heads, context):
        super().__init__()
        self.heads = heads
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        future = torch.full((context, context), float("-inf")).triu(1)
        self.register_buffer("future", future.unsqueeze(0), persistent=False)

    def forward(self, x):
        count, length, width = x.shape
        each = width // self.heads

        def heads_of(part):
            return part.reshape(count, length, self.heads, each).transpose(1, 2).reshape(-1, length, each)

        query, key, value = map(heads_of, self.c_attn(x).split(width, 2))
        mask = self.future[:, :length, :length].to(query.dtype)
        scores = torch.baddbmm(mask, query, key.transpose(1, 2), alpha=1 / math.sqrt(each))
        mixed = torch.bmm(functional.softmax(scores, -1), value)
        return self.c_proj(mixed.view(count, self.heads, length, each).transpose(1, 2).reshape(count, length, width))


class Block(nn.Module):
    def __init__(self, width, heads, context):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = Attention(width, heads, context)
        self.c_fc, self.c_proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.c_proj(functional.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(shape.vocabulary, shape.width), nn.Embedding(shape.context, shape.width)
        self.h = nn.ModuleList(Block(shape.width, shape.heads, shape.context) for _ in range(shape.depth))
        self.ln_f = nn.LayerNorm(shape.width)
        for name, weight in self.named_parameters():
            if weight.dim() > 1:
                residual = name.endswith("c_proj.weight")
                nn.init.normal_(weight, 0, 0.02 / math.sqrt(2 * shape.depth) if residual else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(weight)

    def forward(self, windows):
        """The mean loss over all tokens but each window's first."""
        inputs, targets = windows[:, :-1], windows[:, 1:]
        x = self.wte(inputs) + self.wpe.weight[:inputs.shape[1]]
        for block in self.h:
            x = block(x)
        logits = functional.linear(self.ln_f(x), self.wte.weight)
        return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


class Windows:
    """Of a file of tokens: sample k is context + 1 tokens from k x context on."""

    def __init__(self, path, context):
        data = path.read_bytes()
        header = array.array("i", data[:20])
        kind = {20240520: "H", 20240801: "i"}[header[0]]
        values = array.array(kind, data[1024:])
        self.tokens = torch.tensor(values, dtype=torch.int64)
        self.context = context
        self.count = (len(self.tokens) - 1) // context
        if self.count < 1:
            raise SystemExit(f"torch_gpt: '{path}' has {len(self.tokens)} tokens: fewer than {context + 1}, which one sample takes")

    def __call__(self, numbers):
        each = torch.arange(self.context + 1)
        return self.tokens[torch.as_tensor(numbers).unsqueeze(1) * self.context + each]


class Shuffled:
    """Batches of numbers, each once an epoch, all ranks in the same order and each with its own part."""

    def __init__(self, count, batch, seed):
        self.count, self.batch, self.seed = count, batch, seed
        self.left, self.epoch = torch.empty(0, dtype=torch.int64), 0

    def __call__(self):
        while len(self.left) < self.batch * ranks.SIZE:
            order = torch.randperm(self.count, generator=torch.Generator().manual_seed(self.seed + self.epoch))
            self.left, self.epoch = torch.cat([self.left, order]), self.epoch + 1
        taken, self.left = self.left.split([self.batch * ranks.SIZE, len(self.left) - self.batch * ranks.SIZE])
        return taken[ranks.RANK * self.batch:(ranks.RANK + 1) * self.batch]


def validate(model, windows, count, batch, casting):
    """Over `count` windows, evenly spread."""
    count = min(count, windows.count)
    numbers = [k * windows.count // count for k in range(count)]
    total = 0.0
    with torch.no_grad(), casting():
        for first in range(0, count, batch):
            part = windows(numbers[first:first + batch])
            total += model(part).item() * len(part)
    return total / count


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("depth", "heads", "width", "context", "vocabulary", "batch", "steps", "warmup"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--data", type=pathlib.Path, required=True, help="folder that 'ringfold data tokens' made")
    parser.add_argument("--eval-samples", type=int, default=0)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--beta2", type=float, default=0.95)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--compute", choices=("f32", "bf16"), default="f32")
    return parser.parse_args()


def main():
    options = parse()
    ranks.begin()
    torch.manual_seed(options.seed)  # the same weights on all
    model = Gpt(options)
    optimizer = ranks.adamw(model, options.beta2, options.weight_decay)
    trained = ranks.spread(model)
    windows = Windows(options.data / "train.bin", options.context)
    batches = Shuffled(windows.count, options.batch, options.seed)

    def casting():
        return torch.autocast("cpu", dtype=torch.bfloat16, enabled=options.compute == "bf16")

    steps = ranks.Steps(optimizer, options.lr, options.warmup, options.steps)
    for _ in steps:
        with casting():
            loss = trained(windows(batches()))
        optimizer.zero_grad(set_to_none=ranks.SIZE == 1)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), options.clip)
        optimizer.step()
        steps.loss(loss.item())
    whole = {"loss": ranks.mean_over_ranks(steps.found), "parameters": sum(one.numel() for one in model.parameters()),
             "peak_bytes": ranks.peak_bytes()}
    if options.eval_samples:
        held_out = Windows(options.data / "val.bin", options.context)
        whole["val_loss"] = validate(model, held_out, options.eval_samples, options.batch, casting)
    ranks.tell(**whole, tokens=options.batch * options.context * ranks.SIZE)
    ranks.end()


if __name__ == "__main__":
    main()
