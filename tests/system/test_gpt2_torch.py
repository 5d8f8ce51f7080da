"""GPT-2 in PyTorch, with the names and layouts of Hugging Face's GPT2LMHeadModel: it loads what `ringfold ckpt export` writes,
and what it writes Ringfold loads, with the same loss; and both write the same text."""
import json
import os
import pathlib
import struct
import subprocess

import numpy
import pytest

torch = pytest.importorskip("torch", reason="python3-torch is not installed: nothing to compare GPT-2's files with")

BUILD = pathlib.Path(os.environ["RINGFOLD_BUILD"]).resolve()
RINGFOLD = str(BUILD / "bin" / "ringfold")
GPT_FILES = str(BUILD / "tests" / "gpt_files")
ENV = {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1"}
DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "U8": torch.uint8}


class Conv1D(torch.nn.Module):
    """Inputs x outputs."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(inputs, outputs) * 0.08)
        self.bias = torch.nn.Parameter(torch.randn(outputs) * 0.05)

    def forward(self, x):
        return x @ self.weight + self.bias


class Attention(torch.nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.c_attn, self.c_proj = heads, Conv1D(width, 3 * width), Conv1D(width, width)

    def forward(self, x):
        samples, context, width = x.shape
        q, k, v = (part.view(samples, context, self.heads, -1).transpose(1, 2) for part in self.c_attn(x).split(width, 2))
        scores = q @ k.transpose(2, 3) / (width // self.heads) ** 0.5
        scores = scores.masked_fill(torch.ones(context, context).triu(1).bool(), float("-inf"))
        return self.c_proj((scores.softmax(3) @ v).transpose(1, 2).reshape(samples, context, width))


class Mlp(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.c_fc, self.c_proj = Conv1D(width, 4 * width), Conv1D(4 * width, width)

    def forward(self, x):
        return self.c_proj(torch.nn.functional.gelu(self.c_fc(x), approximate="tanh"))


class Block(torch.nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.ln_1, self.attn = torch.nn.LayerNorm(width), Attention(width, heads)
        self.ln_2, self.mlp = torch.nn.LayerNorm(width), Mlp(width)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Gpt2(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        width = config["n_embd"]
        self.wte, self.wpe = torch.nn.Embedding(config["vocab_size"], width), torch.nn.Embedding(config["n_positions"], width)
        self.h = torch.nn.ModuleList(Block(width, config["n_head"]) for _ in range(config["n_layer"]))
        self.ln_f = torch.nn.LayerNorm(width, eps=config["layer_norm_epsilon"])

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe.weight[:tokens.shape[1]]
        for block in self.h:
            x = block(x)
        return self.ln_f(x) @ self.wte.weight.T

    def loss(self, tokens):
        return torch.nn.functional.cross_entropy(self(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()).item()


def read(path):
    whole = bytearray(pathlib.Path(path).read_bytes())
    length = struct.unpack("<Q", whole[:8])[0]
    header = json.loads(whole[8:8 + length])
    assert header.pop("__metadata__")["format"] == "pt"
    data = memoryview(whole)[8 + length:]
    return {name: torch.frombuffer(data[slice(*entry["data_offsets"])], dtype=DTYPES[entry["dtype"]]).reshape(entry["shape"])
            for name, entry in header.items()}


def write(path, tensors):
    """Sorted by name, as Hugging Face's own writer would put them."""
    names = {dtype: name for name, dtype in DTYPES.items()}
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, tensor in sorted(tensors.items()):
        tensor = tensor.detach().contiguous()
        raw = tensor.view(torch.int16 if tensor.element_size() == 2 else tensor.dtype).numpy().tobytes()
        header[name] = {"dtype": names[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    pathlib.Path(path).write_bytes(struct.pack("<Q", len(text)) + text + data)


def tokens_of(folder, samples, context, vocabulary):
    tokens = numpy.random.default_rng(3).integers(0, vocabulary, (samples, context + 1)).astype("<u4")
    (folder / "tokens").write_bytes(tokens.tobytes())
    return torch.tensor(tokens.astype(numpy.int64))


def ringfold_loss(folder, model, samples):
    done = subprocess.run([GPT_FILES, "loss", model, folder / "tokens", str(samples)], capture_output=True, text=True,
                          timeout=120, env=ENV)
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


def config_of(depth, heads, width, context, vocabulary):
    return {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "activation_function": "gelu_new", "n_layer": depth,
            "n_head": heads, "n_embd": width, "n_positions": context, "n_ctx": context, "vocab_size": vocabulary,
            "layer_norm_epsilon": 1e-5}


def make(folder, shape):
    """A model of PyTorch's, every number of it random."""
    torch.manual_seed(1)
    model = Gpt2(config_of(*shape)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config_of(*shape)))
    return model


@pytest.mark.parametrize("shape", [(3, 4, 64, 48, 131), (2, 3, 42, 37, 1000)])
def test_torch_reads_an_export(tmp_path, shape):
    subprocess.run([GPT_FILES, "checkpoint", tmp_path / "ckpt", *map(str, shape), "5"], check=True, timeout=60, env=ENV)
    subprocess.run([RINGFOLD, "ckpt", "export", tmp_path / "ckpt", "--format", "gpt2", "-o", tmp_path / "hf"], check=True,
                   timeout=60, env=ENV)
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert {name: config[name] for name in config_of(*shape)} == config_of(*shape)
    model = Gpt2(config).eval()
    model.load_state_dict(read(tmp_path / "hf" / "model.safetensors"))  # strict: all names and shapes
    tokens = tokens_of(tmp_path, 3, shape[3], shape[4])
    with torch.no_grad():
        expected = model.loss(tokens)
    assert abs(ringfold_loss(tmp_path, tmp_path / "hf", 3) - expected) < 1e-4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("prefix", ["", "transformer."])
def test_ringfold_reads_torch(tmp_path, dtype, prefix):
    shape = (2, 4, 48, 40, 97)
    model = make(tmp_path / "hf", shape)
    tensors = {prefix + name: tensor.to(dtype) for name, tensor in model.state_dict().items()}
    if prefix:  # as older programs wrote it
        tensors["lm_head.weight"] = tensors["transformer.wte.weight"]
        tensors["transformer.h.0.attn.bias"] = torch.ones(40, 40).tril().to(torch.uint8).view(1, 1, 40, 40)
        tensors["transformer.h.1.attn.masked_bias"] = torch.tensor(-1e4)
    write(tmp_path / "hf" / "model.safetensors", tensors)
    model.load_state_dict({name: tensor.to(dtype).float() for name, tensor in model.state_dict().items()})
    tokens = tokens_of(tmp_path, 2, 40, 97)
    with torch.no_grad():
        expected = model.loss(tokens)
    assert abs(ringfold_loss(tmp_path, tmp_path / "hf", 2) - expected) < 1e-4


def test_both_write_the_same_text(tmp_path):
    """The likeliest token each time, within one window, of a model of bytes."""
    context, prompt = 64, "Once"
    model = make(tmp_path / "hf", (2, 2, 32, context, 256))
    write(tmp_path / "hf" / "model.safetensors", model.state_dict())
    (tmp_path / "text").write_text("some bytes\n" * 50)
    subprocess.run([RINGFOLD, "data", "tokens", "--tokenizer", "bytes", tmp_path / "text", "-o", tmp_path / "data"], check=True,
                   timeout=60, env=ENV, stdout=subprocess.DEVNULL)
    done = subprocess.run([RINGFOLD, "sample", tmp_path / "hf", "--data", tmp_path / "data", "--prompt", prompt, "--json",
                           "--temperature", "0", "--tokens", str(context - len(prompt))], capture_output=True, text=True,
                          timeout=60, env=ENV)
    assert done.returncode == 0, done.stderr
    text, margins = list(prompt.encode()), []
    with torch.no_grad():
        while len(text) < context:
            logits = model(torch.tensor([text]))[0, -1]
            best = logits.topk(2).values
            margins.append((best[0] - best[1]).item())
            text.append(int(logits.argmax()))
    assert min(margins) > 1e-4  # no token hangs on rounding
    assert json.loads(done.stdout)["tokens"] == text[len(prompt):]
