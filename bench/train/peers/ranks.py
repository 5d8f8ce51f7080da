"""What both of the PyTorch programs need: their place in the job, the rate of each step, what they have to tell.

The place comes as torchrun gives it: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; without them a program is alone. One thread
a process. Rank 0 prints JSON lines: one for each step, at last one of the whole.
"""
import json
import math
import os
import resource
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

RANK, SIZE = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def begin():
    torch.set_num_threads(1)
    if SIZE > 1:
        dist.init_process_group("gloo")


def spread(model):
    return DistributedDataParallel(model, gradient_as_bucket_view=True) if SIZE > 1 else model


def end():
    if SIZE > 1:
        dist.barrier()
        dist.destroy_process_group()


def mean_over_ranks(value):
    if SIZE == 1:
        return value
    held = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(held)
    return held.item() / SIZE


def tell(**what):
    if RANK == 0:
        print(json.dumps(what), flush=True)


def peak_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def rate_of(step, rate, warmup, steps):
    """Of step 1 and on: a line up to `rate`, then half a cosine to a tenth of it."""
    top = max(warmup, 1)
    if step < top:
        return rate * step / top
    if steps <= top:
        return rate
    return rate * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * (step - top) / (steps - top))))


def adamw(model, beta2, decay):
    """Decay for matrices and tables, none for biases and norms."""
    weights = list(model.parameters())
    groups = [{"params": [one for one in weights if one.dim() > 1], "weight_decay": decay},
              {"params": [one for one in weights if one.dim() < 2], "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, betas=(0.9, beta2), eps=1e-8)


class Steps:
    """The loop's frame: `for step in Steps(…)`, in it `step.loss(value)` and nothing else is told."""

    def __init__(self, optimizer, rate, warmup, steps):
        self.optimizer, self.rate, self.warmup, self.steps = optimizer, rate, warmup, steps

    def __iter__(self):
        for step in range(1, self.steps + 1):
            began = time.perf_counter()
            for group in self.optimizer.param_groups:
                group["lr"] = rate_of(step, self.rate, self.warmup, self.steps)
            self.found = None
            yield step
            took = time.perf_counter() - began
            tell(step=step, step_s=took, loss=self.found)

    def loss(self, value):
        self.found = value
