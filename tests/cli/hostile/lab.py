"""Provides a small dataset and run to damage, the output of the program for the undamaged ones, and a
class that runs commands.

    halflife = Halflife(binary, limit_s=60)
    lab = Lab(halflife, folder, "bytes")     # FOLDER/data, FOLDER/run at step 6, references
    result = halflife.run(["ckpt", "ls", lab.run], folder)
"""

import dataclasses
import hashlib
import json
import os
import pathlib
import random
import resource
import shutil
import signal
import stat
import struct
import subprocess

STEPS = [2, 4, 6]  # the saved steps of a lab's run
LAST_STEP = 8  # the last step of a continued run
LARGEST_READ = 64 << 20  # read_bytes() reads at most this many bytes, because some files are huge and sparse
MEMORY_LIMIT = 8 << 30  # address space of a command, in case it reads an endless file
OUTPUT_LIMIT = 1 << 30  # size of a file that a command writes

RECIPE = """
data { seq_len: 32 }
model {
  model_dim: 16 num_layers: 1 channel_mixer { swiglu { width: 32 } }
  mixer { gla { num_heads: 2 } }
}
optimizer { lr: 3e-3 clip_norm: 1.0 }
schedule { kind: "constant" warmup_steps: 2 }
train { steps: 6 global_batch: 4 micro_batch: 2 seed: 7 threads: 1 log_every: 1 }
eval { windows: 8 }
ckpt { every: 2 keep_last: 4 background: false }  # one order of calls: cases follow from their names
"""
TOKENIZERS = {"bytes": ["--tokenizer", "bytes"], "pieces": ["--train-tokenizer", "--vocab", "300"]}


@dataclasses.dataclass(frozen=True)
class Result:
    command: list
    code: int  # negative: the number of the signal that ended the command
    hung: bool
    out: str
    err: str


class Halflife:
    """Runs the program. A command that exceeds the time limit is killed."""

    def __init__(self, binary, limit_s):
        self.binary = str(binary)
        self.limit_s = limit_s
        # AddressSanitizer needs terabytes of address space, and must be loaded first.
        self.sanitized = b"__asan_init" in pathlib.Path(binary).read_bytes()

    def run(self, arguments, folder, env=None):
        """Runs a command. Its output is written to files in `folder`."""
        command = [self.binary, *map(str, arguments)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **(env or {})}
        out, err = folder / "command.out", folder / "command.err"
        with open(out, "wb") as out_file, open(err, "wb") as err_file:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out_file,
                                       stderr=err_file, env=environment, start_new_session=True)
            set_limits(process.pid, OUTPUT_LIMIT, None if self.sanitized else MEMORY_LIMIT)
            code, hung = wait(process, self.limit_s)
        return Result(command, code, hung, read_text(out), read_text(err))

    def expect(self, arguments, folder):
        result = self.run(arguments, folder)
        if result.code != 0:
            raise SystemExit(f"{' '.join(result.command)} ended with {result.code}: {result.err}")
        return result


def set_limits(pid, file_bytes, memory_bytes):
    limits = {resource.RLIMIT_CORE: 0, resource.RLIMIT_FSIZE: file_bytes}
    if memory_bytes is not None:
        limits[resource.RLIMIT_AS] = memory_bytes
    try:
        for which, limit in limits.items():
            resource.prlimit(pid, which, (limit, limit))
    except ProcessLookupError:
        pass  # it has ended already


def wait(process, limit_s):
    try:
        return process.wait(limit_s), False
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # its own session, without other processes
        return process.wait(), True


def read_text(path):
    with open(path, "rb") as file:
        return file.read(1 << 20).decode(errors="replace")


def read_bytes(path):
    """Returns the bytes of a regular file, through links. None: anything else, which could block or never end."""
    try:
        info = os.stat(path)
        if not stat.S_ISREG(info.st_mode) or info.st_size > LARGEST_READ:
            return None
        return pathlib.Path(path).read_bytes()
    except OSError:
        return None


def tree(folder):
    """Returns {relative path: bytes} of the files in a folder. None: not a readable file."""
    files = {}
    for place, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(place, name)
            files[os.path.relpath(path, folder)] = read_bytes(path)
    return files


def digest(data):
    return None if data is None else hashlib.sha256(data).hexdigest()


def step_name(step):
    return f"step_{step:012d}"


def tensors(step_dir):
    """Returns the bytes of a step's tensors without the header, which names the attempt, or None."""
    data = read_bytes(step_dir / "rank_00000.safetensors")
    if data is None or len(data) < 8:
        return None
    (header_bytes,) = struct.unpack("<Q", data[:8])
    return data[8 + header_bytes:]


def metrics(run):
    """Returns the lines of metrics.jsonl that are JSON objects. None: not a readable file."""
    data = read_bytes(run / "metrics.jsonl")
    if data is None:
        return None
    lines = []
    for line in data.split(b"\n"):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            lines.append(value)
    return lines


def make_text(num_bytes, rng):
    words = ("the river carried a small boat past old stone walls while birds sang and rain fell "
             "softly over green hills").split()
    text = ""
    while len(text) < num_bytes:
        draw = rng.random()
        text += rng.choice(words) + (".\n\n" if draw < 0.005 else ".\n" if draw < 0.1 else " ")
    return text


class Lab:
    """A dataset, a run that stopped at step 6, and the correct results for both."""

    def __init__(self, halflife, folder, tokenizer):
        self.halflife, self.folder, self.tokenizer = halflife, folder, tokenizer
        folder.mkdir(parents=True)
        self.text, self.score_text = folder / "text.txt", folder / "score.txt"
        self.recipe = folder / "recipe.textproto"
        self.data, self.run = folder / "data", folder / "run"
        text = make_text(120000, random.Random(1))
        self.text.write_text(text)
        self.score_text.write_text(text[:700])
        self.recipe.write_text(RECIPE)
        halflife.expect(self.prepare_command(self.data), folder)
        halflife.expect(self.train_command(self.run, 6), folder)
        self._take_references()

    def prepare_command(self, out, tokenizer=None):
        tokenizer = ["--tokenizer", tokenizer] if tokenizer else TOKENIZERS[self.tokenizer]
        return ["prepare", "--input", self.text, *tokenizer, "--out", out, "--threads", 1,
                "--documents", "blank_lines", "--validation-fraction", 0.2, "--shard-tokens", 32768]

    def train_command(self, run, steps, data=None):
        command = ["train", "--config", self.recipe, "--set", f"data.path={data or self.data}",
                   "--set", f"train.steps={steps}", "--run", run]
        return command + (["--allow-change", "train.steps"] if steps != 6 else [])

    def read_only_commands(self, model, data, out):
        """Returns the commands that show a model's results: name -> command. Each writes to OUT, or prints."""
        return {
            "score": ["score", "--model", model, "--text", self.score_text, "--threads", 1,
                      "--out", out / "score.jsonl"],
            "eval": ["eval", "--model", model, "--data", data, "--threads", 1, "--json"],
            "generate": ["generate", "--model", model, "--prompt", "the river", "--temperature", 0,
                         "--max-tokens", 12, "--threads", 1],
            "export": ["export", "--run", model, "--out", out / "export"],
        }

    def outcome(self, name, out, result):
        """Returns the output of such a command without paths and times."""
        if name == "score":
            return digest(read_bytes(out / "score.jsonl"))
        if name == "eval":
            values = json.loads(result.out or "null") or {}
            return {key: values.get(key) for key in ("step", "tokens", "loss")}
        if name == "generate":
            return result.out
        return {path: digest(data) for path, data in tree(out / "export").items()}

    def _take_references(self):
        """Continues a copy to the last step without faults, and records the results of every step."""
        whole = self.folder / "whole"
        shutil.copytree(self.run, whole)
        self.halflife.expect(self.train_command(whole, LAST_STEP), self.folder)
        self.tensors = {step: tensors(whole / "ckpt" / step_name(step))
                        for step in [*STEPS, LAST_STEP]}
        lines = metrics(whole)
        self.losses = {key: {line["step"]: line[key] for line in lines if key in line}
                       for key in ("loss", "val_loss")}
        self.outcomes = {}
        for step in [*STEPS, LAST_STEP]:
            out = self.folder / f"reference-{step}"
            out.mkdir()
            commands = self.read_only_commands(whole / "ckpt" / step_name(step), self.data, out)
            for name, command in commands.items():
                result = self.halflife.expect(command, self.folder)
                self.outcomes.setdefault(name, []).append(self.outcome(name, out, result))
        self.steps = {step: tree(self.run / "ckpt" / step_name(step)) for step in STEPS}
        self.data_tree = tree(self.data)
        self.texts = {}
        for name, command in {
                "ckpt inspect": ["ckpt", "inspect", self.run / "ckpt" / step_name(6)],
                "inspect dataset": ["inspect", self.data],
                "dry run": [*self.train_command(self.run, 6), "--dry-run"]}.items():
            self.texts[name] = self.halflife.expect(command, self.folder).out.replace(
                str(self.folder), "")

    def is_unchanged(self):
        """Returns whether the files that all cases share are unchanged."""
        return self.data_tree == tree(self.data) and all(
            self.steps[step] == tree(self.run / "ckpt" / step_name(step)) for step in STEPS)
