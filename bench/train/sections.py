"""What is measured: each section yields contests, each contest a table of its own. A source is a function without arguments that
gives {figure: value} (figures.parse) or raises processes.Failed."""
import dataclasses
import functools

from common import hosts as namespaces
from common.processes import LeftOut
from common.report import tell

from . import figures, programs
from .figures import OURS, TORCH, Shape

SMALL = Shape("small", 6, 6, 384, 256, 4, 65)
BABY = Shape("baby", 4, 4, 128, 64, 12, 65)
LARGE = Shape("GPT-2 124M", 12, 12, 768, 256, 1, 50257)
STEPS = {"small": 15, "baby": 120, "GPT-2 124M": 5}  # of a run that is about speed
QUALITY_STEPS, BF16_STEPS, CNN_STEPS, EVAL = 3000, 500, 938, 2000
RATE = "10gbit"

DDP = "PyTorch DDP + Gloo"


@dataclasses.dataclass
class Contest:
    section: str
    title: str
    sources: dict  # name: function
    base: str  # what the ratios are to
    show: tuple  # figures, in columns
    ratio: str = "tokens_per_s"
    rounds: int = None  # instead of the command line's
    work: float = None  # operations a token: then the share of the sgemm rate is a figure too
    per: dict = None  # name: what its rate counts for, where workers differ: the ratio is a worker's then
    note: str = ""


class Plan:
    def __init__(self, work, steps=None, scale=1.0):
        self.work, self.given, self.scale = work, steps, scale
        work.mkdir(parents=True, exist_ok=True)

    def steps(self, own):
        return self.given or own

    def data(self, shape):
        maker = programs.of_characters if shape.vocabulary < 75 else programs.of_pairs
        return maker(self.work, shape.vocabulary)

    def long(self, own):
        """Steps of a run that is about the loss."""
        return max(2, round(self.given or own * self.scale))


def need_torch():
    if not programs.torch_is_there():
        raise LeftOut("python3-torch is not installed: tools/setup bench installs it")
    if not programs.blas_folder():
        tell("bench: OpenBLAS is not installed, so PyTorch is many times slower than it can be: tools/setup bench installs it")


def speed(plan, run, shape, **more):
    data = plan.data(shape)
    return functools.partial(run, shape, data, plan.steps(STEPS[shape.name]), **more)


def alone(plan):
    need_torch()
    for shape in (SMALL, BABY):
        yield Contest("alone", shape.name, {OURS: speed(plan, programs.ours_gpt, shape),
                                            TORCH: speed(plan, programs.torch_gpt, shape)}, TORCH,
                      ("tokens_per_s", "share", "peak_bytes"), work=shape.work,
                      note=f"{shape}; {shape.parameters:,} parameters, {shape.work / 1e6:.1f} million operations a token.")


def two(plan):
    need_torch()
    for shape in (SMALL, BABY):
        yield Contest("two", shape.name, {OURS: speed(plan, programs.ours_gpt, shape, ranks=2),
                                          DDP: speed(plan, programs.torch_gpt, shape, ranks=2)}, DDP,
                      ("tokens_per_s", "peak_bytes"), note=f"{shape}.")


def bf16(plan):
    if not programs.has_bf16():
        raise LeftOut("this processor multiplies no bfloat16")
    sources = {OURS: speed(plan, programs.ours_gpt, SMALL, compute="bf16"),
               "Ringfold f32": speed(plan, programs.ours_gpt, SMALL)}
    if programs.torch_is_there():
        sources["PyTorch bf16"] = speed(plan, programs.torch_gpt, SMALL, compute="bf16")
    yield Contest("bf16", "small", sources, "Ringfold f32", ("tokens_per_s",),
                  note=f"{SMALL}. PyTorch's bfloat16 is that of torch.autocast.")


def scaling(plan):
    one, two_workers, apart = "1 worker", "2 workers", "2 jobs of 1 worker"
    note = "The batch a worker stays the same; the ratio is 2 workers' rate to twice that of 1."
    yield Contest("scaling", "shared memory", {one: speed(plan, programs.ours_gpt, SMALL),
                                               two_workers: speed(plan, programs.ours_gpt, SMALL, ranks=2),
                                               apart: speed(plan, programs.ours_apart, SMALL, count=2)}, one,
                  ("tokens_per_s",), per={two_workers: 2, apart: 2},
                  note=f"{SMALL}. {note} Two jobs that do not know of each other are what the machine itself gives at most.")
    with namespaces.Hosts(2, RATE) as made:
        sources = {one: speed(plan, programs.ours_gpt, SMALL),
                   two_workers: speed(plan, programs.ours_gpt, SMALL, ranks=2, hosts=made)}
        if programs.torch_is_there():
            sources["PyTorch, 2 workers"] = speed(plan, programs.torch_gpt, SMALL, ranks=2, hosts=made)
        yield Contest("scaling", "10 Gbit/s", sources, one, ("tokens_per_s",), per={two_workers: 2, "PyTorch, 2 workers": 2},
                      note=f"Two hosts of network namespaces, a link of 10 Gbit/s. {SMALL}. {note}")


def large(plan):
    need_torch()
    yield Contest("large", LARGE.name, {OURS: speed(plan, programs.ours_gpt, LARGE, ranks=2),
                                        DDP: speed(plan, programs.torch_gpt, LARGE, ranks=2)}, DDP,
                  ("tokens_per_s", "loss", "peak_bytes", "printed_bytes", "over_printed"),
                  note=f"{LARGE}; 2 workers. Printed: what a worker said, before its first step, that the model takes; the peak "
                       "is that of the whole process.")


def quality(plan):
    need_torch()
    data, vocabulary = programs.king_james(plan.work)
    shape, steps = dataclasses.replace(BABY, vocabulary=vocabulary), plan.long(QUALITY_STEPS)
    runs = {OURS: functools.partial(programs.ours_gpt, shape, data, steps, **{"eval-samples": EVAL}),
            TORCH: functools.partial(programs.torch_gpt, shape, data, steps, **{"eval-samples": EVAL})}
    yield Contest("quality", "baby", runs, TORCH, ("val_loss", "loss", "steps", "tokens_per_s"), ratio="val_loss", rounds=1,
                  note=f"{shape}. The King James Bible by characters, the last tenth of it for validation: the loss over the "
                       f"same {EVAL} windows after {steps:,} steps. Initial weights and the order of windows are of the same "
                       "distribution, not the same.")


def bf16_loss(plan):
    if not programs.has_bf16():
        raise LeftOut("this processor multiplies no bfloat16")
    data, vocabulary = programs.king_james(plan.work)
    steps = plan.long(BF16_STEPS)
    for shape in (dataclasses.replace(own, vocabulary=vocabulary) for own in (BABY, SMALL)):
        runs = {f"Ringfold {kind}": functools.partial(programs.ours_gpt, shape, data, steps,
                                                      **{"eval-samples": EVAL // 8, "compute": kind}) for kind in ("f32", "bf16")}
        yield Contest("bf16-loss", shape.name, runs, "Ringfold f32", ("val_loss", "loss", "steps", "tokens_per_s"),
                      ratio="val_loss", rounds=1, note=f"{shape}. The same initial weights and the same order, {steps:,} steps.")


def cnn(plan):
    need_torch()
    steps, batch = plan.long(CNN_STEPS), 128
    if not programs.FASHION.is_dir():
        raise LeftOut(f"'{programs.FASHION}' is not there: apt install dataset-fashion-mnist")
    options = {"data": programs.FASHION, "batch": batch, "steps": steps, "lr": 1e-3}
    units = batch, "samples_per_s"
    yield Contest("cnn", "Fashion-MNIST", {OURS: functools.partial(programs.ours, "cnn", options, units),
                                           TORCH: functools.partial(programs.torch, "torch_cnn", options, units)}, TORCH,
                  ("samples_per_s", "accuracy", "test_loss", "steps"), ratio="samples_per_s",
                  note=f"Three convolutions and two linear layers, AdamW, a batch of {batch}, {steps:,} steps, one thread.")


SECTIONS = {"alone": alone, "two": two, "bf16": bf16, "scaling": scaling, "large": large, "quality": quality,
            "bf16-loss": bf16_loss, "cnn": cnn}
