"""Tests with pytest that the Python module agrees with the program:

    HALFLIFE=build/cpu/src/cli/halflife PYTHONPATH=build/cpu/python \\
        .venv-compare/bin/python -m pytest tests/python
"""

import inspect
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

import halflife

PROGRAM = os.environ["HALFLIFE"]
TEXT = "In the beginning God created the heaven and the earth. And the earth was without form.\n"
RECIPE = """
data { seq_len: 32 }
model {
  model_dim: 32 num_layers: 2
  mixer { gla { num_heads: 2 } }
  hybrid { layers: [1] mixer { softmax { num_heads: 2 } } }
}
optimizer { lr: 0.01 }
train { steps: 6 global_batch: 4 micro_batch: 4 seed: 5 device: "cpu" }
"""


def run(*arguments) -> str:
    done = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def work(tmp_path_factory) -> pathlib.Path:
    """Creates a folder with a text, a dataset, a run of 6 steps and its export."""
    folder = tmp_path_factory.mktemp("halflife")
    (folder / "text.txt").write_text("".join(f"{i} {TEXT}" for i in range(40)))
    (folder / "recipe.textproto").write_text(RECIPE)
    run("prepare", "--input", folder / "text.txt", "--tokenizer", "bytes", "--documents", "line",
        "--validation-fraction", "0.2", "--out", folder / "data")
    run("train", "--config", folder / "recipe.textproto", "--set", f"data.path={folder / 'data'}", "--run",
        folder / "run")
    run("export", "--run", folder / "run", "--out", folder / "export")
    return folder


@pytest.fixture(scope="session")
def model(work) -> halflife.Model:
    return halflife.load(str(work / "run"), device="cpu")


def test_scores_are_those_of_the_program(work, model):
    ids = [[7, 8, 9, 200, 30], list(range(3, 80)), [5]]
    (work / "ids.json").write_text(json.dumps(ids))
    run("score", "--model", work / "run", "--tokens", work / "ids.json", "--out", work / "scores.jsonl",
        "--device", "cpu")
    expected = [json.loads(line)["logprobs"] for line in (work / "scores.jsonl").read_text().splitlines()]
    scores = model.score(ids)
    assert [len(row) for row in scores] == [4, 76, 0]
    for own, others in zip(scores, expected):
        assert own.dtype == np.float32
        np.testing.assert_array_equal(own, np.array(others, np.float32))
    np.testing.assert_array_equal(model.score([TEXT])[0], model.score([model.tokenizer.encode(TEXT)])[0])


def test_logits_give_the_scores(model):
    ids = model.tokenizer.encode(TEXT)
    logits = model.logits(ids[None].astype(np.int64))[0].astype(np.float64)
    assert logits.shape == (len(ids), model.vocab_size)
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    np.testing.assert_allclose(log_probs[np.arange(len(ids) - 1), ids[1:]], model.score([ids])[0], atol=1e-5)


def test_a_classifier_has_no_logits_of_tokens(work):
    rows = "".join(f"text {i}\t{i % 2}\n" for i in range(40))
    (work / "rows.tsv").write_text("text\tlabel\n" + rows)
    run("prepare", "--labels", "classes", "--input", work / "rows.tsv", "--tokenizer", "bytes", "--row-len", "16",
        "--validation-fraction", "0", "--out", work / "rows")
    settings = [f"data.path={work / 'rows'}", "data.seq_len=16", "model.objective=classification",
                "model.objective.classification.num_classes=2", "model.head.tied=false"]
    options = [option for setting in settings for option in ("--set", setting)]
    run("train", "--config", work / "recipe.textproto", *options, "--run", work / "classifier")
    classifier = halflife.load(str(work / "classifier"), device="cpu")
    with pytest.raises(halflife.Error, match="which has logits of classes and none of tokens") as caught:
        classifier.logits(np.array([[5, 6, 7]]))
    assert caught.value.exit_code == 2


def test_names_of_special_tokens_are_read_as_by_the_program(work, tmp_path):
    """Scores a text with a tokenizer that has a token for each byte and one for <|end|>."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]  # bytes that stand for themselves, as in GPT-2
    others = [byte for byte in range(256) if byte not in shown]
    characters = {byte: chr(byte) for byte in shown} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    added = {"id": 256, "content": "<|end|>", "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    bpe = {"type": "BPE", "vocab": {characters[byte]: byte for byte in range(256)}, "merges": []}
    tokenizer = {"version": "1.0", "added_tokens": [added], "pre_tokenizer": byte_level, "decoder": byte_level,
                 "model": bpe}
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "<|end|>"}')
    text = "a<|end|>b"
    (tmp_path / "text.txt").write_text(text)
    run("score", "--model", work / "run", "--tokenizer", tmp_path, "--text", tmp_path / "text.txt", "--out",
        tmp_path / "scores.jsonl", "--device", "cpu")
    expected = json.loads((tmp_path / "scores.jsonl").read_text())["logprobs"]
    model = halflife.load(str(work / "run"), tokenizer=str(tmp_path), device="cpu")
    assert model.tokenizer.encode(text, parse_special=True).tolist() == [97, 256, 98]
    np.testing.assert_array_equal(model.score([text])[0], np.array(expected, np.float32))


def test_text_is_that_of_the_program(work, model):
    options = {"max_tokens": 40, "temperature": 0.9, "top_k": 20, "seed": 3}
    arguments = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    shown = run("generate", "--model", work / "run", "--prompt", "In the", "--device", "cpu", *arguments)
    text = model.generate("In the", **options)
    assert "In the" + text + "\n" == shown
    pieces = []
    model.generate("In the", on_text=pieces.append, **options)  # None continues
    assert "".join(pieces) == text and len(pieces) > 1
    ids = model.generate_ids(model.tokenizer.encode("In the"), **options)
    assert model.tokenizer.decode(ids).decode("utf-8", "replace") == text
    assert len(model.generate_ids([40, 41], max_tokens=50, on_token=lambda token: False)) == 1
    assert len(model.generate_ids([40, 41], max_tokens=5, ignore_eos=True, on_token=lambda token: True)) == 5


def test_a_callback_that_returns_something_else_is_an_error(model):
    with pytest.raises(TypeError, match="on_token returned a value of type int. Return False to stop"):
        model.generate_ids([40, 41], on_token=lambda token: 0)
    with pytest.raises(TypeError, match="on_text returned a value of type str. Return False to stop"):
        model.generate("In the", on_text=lambda piece: piece)


def test_paths_are_strings_or_path_objects(work, model):
    other = halflife.load(work / "run", tokenizer=work / "data" / "tokenizer", device="cpu")
    assert other.path == model.path and other.tokenizer.kind == "bytes"
    assert halflife.Dataset(work / "data").path == halflife.Dataset(str(work / "data")).path
    assert halflife.load_tokenizer(work / "data" / "tokenizer").kind == "bytes"
    assert halflife.read_metrics(work / "run").keys() == halflife.read_metrics(str(work / "run")).keys()


def test_an_exception_of_a_callback_reaches_the_caller(model):
    def fail(token):
        raise KeyError("stop here")

    with pytest.raises(KeyError, match="stop here"):
        model.generate_ids([40, 41], on_token=fail)
    assert len(model.score([[40, 41]])[0]) == 1  # the model is still usable


def test_a_hugging_face_folder_is_the_same_model(work, model):
    imported = halflife.load(str(work / "export"), device="cpu")
    assert imported.num_parameters == model.num_parameters and imported.step == 0 and model.step == 6
    np.testing.assert_allclose(imported.score([TEXT])[0], model.score([TEXT])[0], atol=1e-5)


def test_tokenizer():
    tokenizer = halflife.load_tokenizer("bytes")
    assert (tokenizer.kind, tokenizer.vocab_size, tokenizer.eos_id) == ("bytes", 259, 1)
    text = "héllo\0 \N{GREEK SMALL LETTER ALPHA}"
    ids = tokenizer.encode(text)
    assert ids.dtype == np.int32 and ids.tolist() == [byte + 3 for byte in text.encode()]
    assert tokenizer.decode(ids) == text.encode()


def test_batches_are_rows_of_the_dataset(work):
    dataset = halflife.Dataset(str(work / "data"))
    train = dataset.splits["train"]
    tokens = dataset.read("train", 0, train["num_tokens"])
    assert len(tokens) == train["num_tokens"] > 0 and dataset.load_tokenizer().kind == "bytes"
    options = {"seq_len": 32, "batch_size": 4, "seed": 5}
    stream = dataset.batches("train", **options)
    batches = [next(stream) for _ in range(3)]
    later = next(dataset.batches("train", first_step=2, **options))
    np.testing.assert_array_equal(later.inputs, batches[2].inputs)
    assert later.samples.tolist() == [8, 9, 10, 11]
    windows = {tuple(tokens[i:i + 32]) for i in range(0, len(tokens) - 32, 32)}
    for batch in batches:
        assert batch.inputs.shape == batch.targets.shape == (4, 32)
        assert batch.cu_seqlens[0] == 0 and batch.cu_seqlens[-1] == 128
        for row, targets in zip(batch.inputs, batch.targets):
            assert tuple(row) in windows
            known = targets[:-1] != -100  # the eos of a document has no target
            np.testing.assert_array_equal(targets[:-1][known], row[1:][known])
            np.testing.assert_array_equal(row[:-1][~known], np.ones((~known).sum()))
    del dataset  # the iterator keeps the dataset alive
    next(stream)


def test_metrics(work):
    steps, losses = halflife.read_metrics(str(work / "run"))["loss"]
    lines = [json.loads(line) for line in (work / "run/metrics.jsonl").read_text().splitlines()]
    expected = {line["step"]: line["loss"] for line in lines if "loss" in line}
    assert steps.dtype == np.int64 and dict(zip(steps.tolist(), losses.tolist())) == expected


@pytest.mark.parametrize("call, message, code", [
    (lambda model: halflife.load("nowhere"), "Use the folder of a run", 76),
    (lambda model: halflife.load(model.path, precision="fp16"), "Use 'fp32' or 'bf16'", 2),
    (lambda model: halflife.load(model.path, device="gpu"), "Use 'auto', 'cpu' or 'cuda'", 2),
    (lambda model: halflife.load(model.path, threads=-1), "threads is -1. Use a number", 2),
    (lambda model: halflife.Dataset(model.path), "dataset manifest", 3),
    (lambda model: model.score([[5, 9999]]), "9999", 2),
    (lambda model: model.logits(np.array([[5, 9999]])), "Use the model's own tokenizer", 2),
    (lambda model: model.logits(np.zeros((1, 0), np.int64)), "Give at least one", 2),
    (lambda model: model.generate(""), "Give at least one character or token", 2),
    (lambda model: model.tokenizer.decode([5, 259]), "id 259 is outside of the tokenizer's vocabulary of 259. Use", 2),
    (lambda model: model.tokenizer.decode([-1]), "id -1 is outside", 2),
    (lambda model: model.generate("a", temperature=-1), "temperature", 2),
    (lambda model: halflife.read_metrics("nowhere"), "nowhere", 2),
])
def test_errors_are_those_of_the_program(model, call, message, code):
    with pytest.raises(halflife.Error, match=message) as caught:
        call(model)
    assert caught.value.exit_code == code


def test_ranges_outside_of_a_split(work):
    dataset = halflife.Dataset(str(work / "data"))
    with pytest.raises(halflife.Error, match=r"Use 0 <= begin <= end <= \d+"):
        dataset.read("train", 5, 10**9)
    with pytest.raises(halflife.Error, match="train, validation"):
        dataset.read("nothing", 0, 1)
    with pytest.raises(halflife.Error, match="batch_size is 0. Use numbers of at least 1"):
        dataset.batches("train", seq_len=8, batch_size=0)


def test_torch_is_optional():
    code = "import sys, halflife; assert 'torch' not in sys.modules; halflife.load_tokenizer('bytes')"
    subprocess.run([sys.executable, "-c", code], check=True)
    pytest.importorskip("torch")
    for modules in ("torch, halflife", "halflife, torch"):
        subprocess.run([sys.executable, "-c", f"import {modules}; torch.ones(3) @ torch.ones(3)"], check=True)


def test_all_public_names_have_docstrings():
    for name in halflife.__all__:
        thing = getattr(halflife, name)
        assert thing.__doc__, name
        members = inspect.getmembers(thing) if inspect.isclass(thing) and name != "Error" else []
        for member, value in members:
            if not member.startswith("_"):
                assert value.__doc__, f"{name}.{member}"
    stub = pathlib.Path(halflife.__file__).with_name("_core.pyi").read_text()
    compile(stub, "_core.pyi", "exec")
    assert all(f"class {name}" in stub or f"def {name}" in stub for name in halflife.__all__)
