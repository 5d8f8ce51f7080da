"""`ringfold sample`, and what `ringfold ckpt export --format gpt2` writes for it: the same text from both, whole characters,
one seed one text, and errors that say what to do."""
import json
import os
import pathlib
import re
import shutil
import subprocess

import pytest

BUILD = pathlib.Path(os.environ["RINGFOLD_BUILD"]).resolve()
RINGFOLD = str(BUILD / "bin" / "ringfold")
GPT_FILES = str(BUILD / "tests" / "gpt_files")
TEXT = "Ein Ärger, drei Öfen und ein süßes Gefühl: 3 € für 20 Äpfel.\n" * 40
ENV = {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1"}


def run(*words, code=0, text=True, cwd=None):
    words = [word if isinstance(word, bytes) else str(word) for word in words]
    done = subprocess.run([RINGFOLD, *words], capture_output=True, timeout=120, env=ENV, text=text, cwd=cwd)
    assert done.returncode == code, (done.stdout, done.stderr)
    return done


def make(folder, tokenizer="chars"):
    """A folder of tokens and a checkpoint of random weights that says it was trained on it."""
    (folder / "text").write_text(TEXT)
    run("data", "tokens", "--tokenizer", tokenizer, folder / "text", "-o", folder / "data")
    vocabulary = json.loads((folder / "data" / "tokenizer.json").read_text())["vocabulary"]
    subprocess.run([GPT_FILES, "checkpoint", folder / "ckpt", "2", "2", "32", "24", str(vocabulary), "3", folder / "data"],
                   check=True, timeout=60)
    return vocabulary


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chars")
    make(folder)
    run("ckpt", "export", folder / "ckpt", "--format", "gpt2", "--output", folder / "hf")
    return folder


@pytest.fixture(scope="module")
def made_bytes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bytes")
    make(folder, "bytes")
    return folder


def test_a_checkpoint_and_its_export_write_the_same(made):
    words = ("--prompt", "Ein Ärger", "--tokens", "80")  # several windows of 24
    shown = run("sample", made / "ckpt", *words)
    assert shown.stderr == "" and shown.stdout.startswith("Ein Ärger") and shown.stdout.endswith("\n")
    assert len(shown.stdout) == len("Ein Ärger") + 80 + 1
    assert run("sample", made / "hf", *words).stdout == shown.stdout
    assert run("sample", made / "ckpt", *words).stdout == shown.stdout
    assert run("sample", made / "ckpt", *words, "--step", "7").stdout == shown.stdout
    assert run("sample", made / "ckpt", *words, "--seed", "2").stdout != shown.stdout


def test_the_likeliest_does_not_depend_on_the_seed(made):
    texts = {run("sample", made / "hf", "--temperature", "0", "--seed", seed).stdout for seed in (1, 2, 3)}
    assert texts == {run("sample", made / "hf", "--top-k", "1").stdout}


def test_json_tells_all_of_it(made):
    found = json.loads(run("sample", made / "ckpt", "--prompt", "Ein", "--tokens", "30", "--json").stdout)
    vocabulary = len(set(TEXT))
    assert found["model"] == {"depth": 2, "heads": 2, "width": 32, "context": 24, "vocabulary": vocabulary,
                              "parameters": found["model"]["parameters"]}
    assert found["checkpoint"].startswith("step-00000007-") and found["tokenizer"] == "chars"
    assert found["prompt"] == "Ein" and found["prompt_tokens"] == 3 and found["ended"] is False
    assert len(found["tokens"]) == 30 and all(0 <= token < vocabulary for token in found["tokens"])
    characters = sorted(set(TEXT))
    assert found["text"] == "".join(characters[token] for token in found["tokens"])
    shown = run("sample", made / "ckpt", "--prompt", "Ein", "--tokens", "30").stdout
    assert shown == "Ein" + found["text"] + "\n"
    assert found["tokens_per_s"] > 0


def test_json_of_words_that_are_not_utf8(made_bytes, tmp_path):
    where = os.fsencode(tmp_path) + b"/m\xe9"
    shutil.copytree(os.fsencode(made_bytes), where)
    found = json.loads(run("sample", where + b"/ckpt", "--json", "--tokens", "5", "--prompt", b"caf\xe9 \xe2\x82\xac\xe2\x82").stdout)
    assert found["prompt"] == "caf\ufffd \u20ac\ufffd\ufffd" and found["prompt_tokens"] == 10 and len(found["tokens"]) == 5
    assert found["where"] == str(tmp_path) + "/m\ufffd/ckpt"
    made = json.loads(run("data", "tokens", "--json", made_bytes / "text", "-o", where + b"/data2").stdout)
    assert made["folder"] == str(tmp_path) + "/m\ufffd/data2" and made["train"]["tokens"] > 0


def test_characters_are_whole(made_bytes):
    """Random bytes: what is no character becomes U+FFFD, and nothing is cut."""
    done = run("sample", made_bytes / "ckpt", "--tokens", "500", "--top-k", "0", "--temperature", "3", text=False)
    text = done.stdout.decode()  # valid UTF-8, or this fails
    found = json.loads(run("sample", made_bytes / "ckpt", "--tokens", "500", "--top-k", "0", "--temperature", "3",
                           "--json").stdout)
    assert text == found["text"] + "\n"
    assert found["text"] == bytes(found["tokens"]).decode(errors="replace") or "\ufffd" in found["text"]
    assert max(found["tokens"]) > 127


def test_folders_of_hugging_face_have_no_steps_and_may_be_uris(made):
    refused = run("sample", made / "hf", "--step", "7", code=64)
    assert "has no checkpoint '7'" in refused.stderr and "leave --step out" in refused.stderr
    words = ("--tokens", "9", "--prompt", "Ein")
    shown = run("sample", made / "hf", *words).stdout
    for uri in (f"file:{made}/hf", f"file://{made}/hf", f"FILE://localhost{made}/hf"):
        assert run("sample", uri, *words).stdout == shown
    assert "files of another host" in run("sample", f"file://other{made}/hf", code=64).stderr
    refused = run("sample", f"file:{made}/data", code=1)
    assert "or a local one with config.json and model.safetensors" in refused.stderr


def test_no_tokens_is_the_prompt(made):
    assert run("sample", made / "hf", "--tokens", "0", "--prompt", "Ein").stdout == "Ein\n"


def test_what_an_export_says(made, tmp_path):
    done = run("ckpt", "export", made / "ckpt", "--format", "gpt2", "-o", tmp_path / "a", "--json")
    found = json.loads(done.stdout)
    assert found["format"] == "gpt2" and found["tokenizer"] is True and found["tensors"] == 4 + 12 * 2
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    assert (config["n_layer"], config["n_head"], config["n_embd"], config["n_positions"]) == (2, 2, 32, 24)
    assert config["model_type"] == "gpt2" and config["tie_word_embeddings"] is True and config["eos_token_id"] is None
    again = run("ckpt", "export", made / "ckpt", "--format", "gpt2", "-o", tmp_path / "a", code=1)
    assert "error[RF0310]" in again.stderr and "there is a 'config.json' in the folder already" in again.stderr
    assert "choose another folder" in again.stderr


def test_without_a_tokenizer(made, tmp_path):
    """One that the data's folder is gone of, which is exported without, and sampled with --data."""
    shutil.copytree(made, tmp_path / "m")
    vocabulary = str(len(set(TEXT)))
    subprocess.run([GPT_FILES, "checkpoint", tmp_path / "lone", "1", "1", "8", "8", vocabulary, "3", tmp_path / "gone"],
                   check=True, timeout=60)
    done = run("ckpt", "export", tmp_path / "lone", "--format", "gpt2", "-o", tmp_path / "hf")
    assert "without a tokenizer" in done.stdout
    for where in ("lone", "hf"):
        refused = run("sample", tmp_path / where, code=1)
        assert "there is no tokenizer for the model in" in refused.stderr and "--data" in refused.stderr
        assert len(run("sample", tmp_path / where, "--data", made / "data", "--tokens", "9").stdout) == 10
    wanted = run("ckpt", "export", tmp_path / "lone", "--format", "gpt2", "-o", tmp_path / "hf2", "--data", tmp_path / "gone",
                 code=1)
    assert "no 'tokenizer.json' in" in wanted.stderr and not (tmp_path / "hf2").exists()


@pytest.mark.parametrize("name", ["vocab.json", "merges.txt", "ringfold/tokenizer.json"])
def test_an_export_leaves_the_tokenizers_of_others_alone(made, tmp_path, name):
    old = tmp_path / "hf" / name
    old.parent.mkdir(parents=True)
    old.write_text("not ours")
    refused = run("ckpt", "export", made / "ckpt", "--format", "gpt2", "-o", tmp_path / "hf", code=1)
    assert "error[RF0310]" in refused.stderr and f"there is a '{name}' in the folder already" in refused.stderr
    assert old.read_text() == "not ours"
    assert [path for path in (tmp_path / "hf").rglob("*") if path.is_file()] == [old]


def test_a_damaged_tokenizer_is_not_as_none(made, tmp_path):
    vocabulary = str(len(set(TEXT)))
    shutil.copytree(made / "data", tmp_path / "data")
    subprocess.run([GPT_FILES, "checkpoint", tmp_path / "ckpt", "1", "1", "8", "8", vocabulary, "3", tmp_path / "data"],
                   check=True, timeout=60)
    whole = (tmp_path / "data" / "tokenizer.json").read_text()
    words = ("ckpt", "export", tmp_path / "ckpt", "--format", "gpt2", "-o", tmp_path / "hf")
    for damaged in (whole[:-9], (made / "data" / "tokenizer.json").read_text().replace('"chars"', '"bytes"')):
        (tmp_path / "data" / "tokenizer.json").write_text(damaged)
        refused = run(*words, code=1)
        assert "tokenizer.json" in refused.stderr and not (tmp_path / "hf").exists()
    (tmp_path / "data" / "tokenizer.json").write_text(whole)
    assert "without a tokenizer" not in run(*words).stdout


def test_only_byte_pairs_may_be_fewer_than_the_model_has(made_bytes, tmp_path):
    subprocess.run([GPT_FILES, "checkpoint", tmp_path / "ckpt", "1", "1", "8", "8", "300", "3"], check=True, timeout=60)
    refused = run("sample", tmp_path / "ckpt", "--data", made_bytes / "data", code=1)
    assert "the tokenizer (bytes) has a vocabulary of 256, and the model one of 300" in refused.stderr
    refused = run("ckpt", "export", tmp_path / "ckpt", "--format", "gpt2", "-o", tmp_path / "hf", "--data", made_bytes / "data",
                  code=1)
    assert "the tokenizer (bytes) has a vocabulary of 256" in refused.stderr and not (tmp_path / "hf").exists()


def test_errors_say_what_to_do(made, made_bytes, tmp_path):
    refused = run("sample", tmp_path, code=1)
    assert "error[RF0402]" in refused.stderr and "one with config.json and model.safetensors" in refused.stderr
    refused = run("sample", made / "hf", "--prompt", "x§y", code=1)
    assert "the prompt: " in refused.stderr and "use only characters of the texts" in refused.stderr
    refused = run("sample", made / "hf", "--data", made_bytes / "data", code=1)
    assert "the tokenizer (bytes) has a vocabulary of 256, and the model one of" in refused.stderr
    folder = tmp_path / "cut"
    shutil.copytree(made / "hf", folder)
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:-400])
    assert re.search(r"error\[RF0401\].*cut/model.safetensors", run("sample", folder, code=1).stderr)
    (folder / "model.safetensors").unlink()
    refused = run("sample", folder, code=1)
    assert "no 'model.safetensors' in" in refused.stderr and "save_pretrained" in refused.stderr


@pytest.mark.parametrize("words", [("--tokens", "-1"), ("--temperature", "hot"), ("--temperature", "-1"), ("--top-k", "few"),
                                   ("--seed", "x"), ("more",)])
def test_wrong_words(made, words):
    assert words[0] in run("sample", made / "hf", *words, code=64).stderr


def test_no_model_or_a_wrong_format(made):
    assert "which model?" in run("sample", code=64).stderr
    assert "neither safetensors nor gpt2" in run("ckpt", "export", made / "ckpt", "-o", "x", "--format", "onnx", code=64).stderr
    refused = run("ckpt", "export", made / "ckpt", "-o", "x", "--format", "gpt2", "--optimizer", code=64)
    assert "--optimizer is not for the format gpt2" in refused.stderr


def test_byte_pairs_of_hugging_face(made_bytes, tmp_path):
    """A vocabulary of bytes and a few pairs, in both files, as their tools have them."""
    seen = [*range(33, 127), *range(161, 173), *range(174, 256)]
    character = {byte: chr(byte) for byte in seen}
    character.update({byte: chr(256 + n) for n, byte in enumerate(b for b in range(256) if b not in seen)})
    tokens = [bytes([b]) for b in [*seen, *(b for b in range(256) if b not in seen)]] + [b"he", b" t", b" the"]
    names = ["".join(character[b] for b in token) for token in tokens]
    subprocess.run([GPT_FILES, "checkpoint", tmp_path / "ckpt", "1", "2", "16", "32", "264", "5"], check=True, timeout=60)
    run("ckpt", "export", tmp_path / "ckpt", "--format", "gpt2", "-o", tmp_path / "hf")
    (tmp_path / "hf" / "vocab.json").write_text(json.dumps({**{n: i for i, n in enumerate(names)}, "<|endoftext|>": 259}))
    (tmp_path / "hf" / "merges.txt").write_text("#version: 0.2\nh e\nĠ t\nĠt he\n")
    found = json.loads(run("sample", tmp_path / "hf", "--prompt", "he the the", "--json", "--temperature", "2").stdout)
    assert found["tokenizer"] == "gpt2" and found["prompt_tokens"] == 3
    assert all(token < 260 for token in found["tokens"])  # of the 264 that the model has
    ended = found["tokens"][-1] == 259
    assert found["ended"] is ended and len(found["tokens"]) == 200 or ended
    text = b"".join(tokens[token] for token in found["tokens"] if token < 259)
    assert found["text"].replace("\ufffd", "") == text.decode(errors="ignore")


def test_from_training_to_text_and_back(made, tmp_path):
    """Trained, exported, trained on from there: the first loss is the last one's, not that of random weights."""
    shape = ("--depth", "2", "--heads", "2", "--width", "32", "--context", "24", "--batch", "8", "--eval-every", "1000")

    def train(name, *words, code=0):
        return run("train", "gpt", "--data", made / "data", *shape, "--run-dir", tmp_path / name, *words, code=code).stderr

    def losses(name):
        lines = map(json.loads, (tmp_path / name / "metrics.jsonl").read_text().splitlines())
        return [line["loss"] for line in lines if "grad_norm" in line]

    train("first", "--steps", "60", "--lr", "0.01", "--warmup", "1", "--checkpoint", tmp_path / "ckpt")
    first = losses("first")
    text = run("sample", tmp_path / "ckpt", "--tokens", "20").stdout
    assert len(text) == 21
    run("ckpt", "export", tmp_path / "ckpt", "--format", "gpt2", "-o", tmp_path / "hf")
    assert run("sample", tmp_path / "hf", "--tokens", "20").stdout == text
    train("again", "--steps", "1", "--init", tmp_path / "hf")
    again = losses("again")
    assert again[0] < 0.7 * first[0] and abs(again[0] - first[-1]) < 0.3 * first[0]
    refused = train("no", "--steps", "1", "--init", tmp_path / "hf", "--width", "64", code=64)
    assert "has a width of 32, and the model to be filled one of 64" in refused and "--depth 2 --width 32 --heads 2" in refused
    refused = train("no", "--steps", "1", "--init", tmp_path / "none", code=1)
    assert "none/config.json" in refused
    train("rest", "--steps", "62", "--init", tmp_path / "none", "--checkpoint", tmp_path / "ckpt", "--resume", "auto")
    assert len(losses("rest")) == 2, "the checkpoint's state is all that is needed"


@pytest.mark.parametrize("name", ["Ärger und \"€\"", b"caf\xe9"])
def test_the_data_is_found_from_elsewhere(made, tmp_path, name):
    """A checkpoint records where its data is, whatever its name and the working directory; or nothing."""
    here = tmp_path / os.fsdecode(name)
    shutil.copytree(made / "data", here)
    run("train", "gpt", "--data", name, "--depth", "1", "--heads", "1", "--width", "8", "--context", "8", "--batch", "2",
        "--eval-every", "1000", "--steps", "1", "--run-dir", tmp_path / "run", "--checkpoint", tmp_path / "ckpt", cwd=tmp_path,
        text=False)
    config = json.loads(run("ckpt", "show", tmp_path / "ckpt", "--json").stdout)["config"]
    (tmp_path / "deep").mkdir()
    if isinstance(name, bytes):  # no JSON has it
        assert "data" not in config
        refused = run("sample", tmp_path / "ckpt", cwd=tmp_path / "deep", code=1)
        assert "does not tell which data" in refused.stderr and "--data" in refused.stderr
    else:
        assert config["data"] == str(here)
        assert len(run("sample", "../ckpt", "--tokens", "9", cwd=tmp_path / "deep").stdout) == 10
        assert "without a tokenizer" not in run("ckpt", "export", "../ckpt", "--format", "gpt2", "-o", "../hf",
                                                cwd=tmp_path / "deep").stdout
