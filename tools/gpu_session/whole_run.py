#!/usr/bin/env python3
"""Trains a model and resumes the run from an earlier step. On a GPU, also trains with CUDA graphs: on the same packed
rows, and on rows of one document, which are also trained without graphs. Prints JSON.

    python3 tools/gpu_session/whole_run.py build/cuda/src/cli/halflife --device cuda
    python3 tools/gpu_session/whole_run.py build/cpu/src/cli/halflife --device cpu --steps 6 --small

The runs of a pair must end with the same checkpoint, bit for bit. Exit codes: 0 the checkpoints are equal, 1 they differ
or a run failed. The JSON names the run and contains its last output.
"""

import argparse
import json
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile

REPO = pathlib.Path(__file__).resolve().parents[2]
LONGEST = 90  # time limit of a command in seconds, so that a hang does not use up the session
SMALL = ("model.num_layers=1", "model.model_dim=32", "model.mixer.gla.num_heads=2", "data.seq_len=64", "eval.windows=4",
         "eval.every=0")


class Failed(Exception):
    """A command that failed or timed out; the message says how."""

    def __init__(self, message: str, code: int | None = None):
        super().__init__(message)
        self.code = code  # None: it timed out, or it did not run


def run(words: list, cwd: pathlib.Path, good: tuple[int, ...] = (0,)) -> subprocess.CompletedProcess:
    words = [str(word) for word in words]
    try:
        done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=LONGEST, check=False)
    except subprocess.TimeoutExpired as error:
        raise Failed(f"{' '.join(words[1:])} timed out after {LONGEST} s") from error
    if done.returncode not in good:
        last = "\n".join((done.stderr + done.stdout).strip().splitlines()[-5:])
        raise Failed(f"{' '.join(words[1:])}: exit code {done.returncode}: {last}", done.returncode)
    return done


def write_text(folder: pathlib.Path) -> None:
    """Writes one sum per line, from which a small model can learn."""
    folder.mkdir()
    lines = [f"{a} plus {b} is {a + b}.\n" + ("\n" if b % 10 == 9 else "") for a in range(100) for b in range(100)]
    (folder / "sums.txt").write_text("".join(lines))


def tokens_per_second(run_folder: pathlib.Path) -> float | None:
    """Returns the median over the steps of a run."""
    lines = [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()]
    speeds = [line["tokens_per_s"] for line in lines if line.get("tokens_per_s")]
    return statistics.median(speeds) if speeds else None


def waits(text: str) -> list[str]:
    """Returns the lines of train --check-sync about waits in its phases."""
    return re.findall(r"^ *(\w+: [0-9.]+ waits, .*)$", text, re.M)


class Runs:
    def __init__(self, options: argparse.Namespace, folder: pathlib.Path):
        self.program, self.folder = options.program.resolve(), folder
        every = max(1, options.steps // 3)
        sets = ["data.path=data", f"train.device={options.device}", "train.precision=bf16", f"train.steps={options.steps}",
                f"ckpt.every={every}", f"eval.every={every}", "train.log_every=1", *(SMALL if options.small else ())]
        recipe = REPO / "launch/recipes/quickstart.textproto"
        self.train = [self.program, "train", "--config", recipe, *(word for one in sets for word in ("--set", one))]

    def prepare(self) -> None:
        """Prepares two datasets. The rows of `data` contain several documents. `whole` is one document, so no row
        contains a boundary."""
        write_text(self.folder / "text")
        for documents, out in (("blank_lines", "data"), ("file", "whole")):
            run([self.program, "prepare", "--input", "text", "--documents", documents, "--tokenizer", "bytes", "--out", out], self.folder)

    def straight(self) -> str:
        done = run([*self.train, "--run", "straight", "--check-sync"], self.folder)
        return done.stdout + done.stderr

    def resumed(self) -> None:
        shutil.copytree(self.folder / "straight", self.folder / "resumed", symlinks=True)
        steps = sorted((self.folder / "resumed/ckpt").glob("step_*"))
        if len(steps) < 2:
            raise Failed(f"the run kept {len(steps)} checkpoints, but resuming from the first needs two")
        shutil.rmtree(steps[-1])
        run([*self.train, "--run", "resumed"], self.folder)

    def replay(self, name: str, *more: str) -> None:
        """Trains with CUDA graphs and requires that every step but the first few replays micro-batches."""
        run([*self.train, *more, "--run", name, "--set", "train.cuda_graphs=true"], self.folder)
        lines = (self.folder / name / "metrics.jsonl").read_text().splitlines()
        replays = [line["replayed"] for line in map(json.loads, lines) if "replayed" in line]
        if not replays or 0 in replays[len(replays) // 2 :]:
            raise Failed(f"later steps replayed no micro-batch. Replayed micro-batches of each step: {replays}")

    def graphs(self) -> None:
        whole = ["--set", "data.path=whole"]
        run([*self.train, *whole, "--run", "launched"], self.folder)
        self.replay("graphs", *whole)

    def packed_graphs(self) -> None:
        self.replay("packed_graphs")

    def is_equal(self, one: str, other: str) -> bool:
        return run([self.program, "ckpt", "diff", one, other], self.folder, good=(0, 1)).returncode == 0


def measure(options: argparse.Namespace, folder: pathlib.Path) -> dict:
    runs = Runs(options, folder)
    result = {"device": options.device, "steps": options.steps, "problems": []}
    try:
        runs.prepare()
        result["waits"] = waits(runs.straight())
        result["tokens_per_s"] = tokens_per_second(folder / "straight")
    except Failed as failed:
        return {**result, "problems": [str(failed)]}
    # The CPU adds micro-batches in another order with graphs, so the checkpoints may differ there in the last bits.
    replayed = (("graphs", "launched"), ("packed_graphs", "straight")) if options.device == "cuda" else ()
    pairs = (("resumed", "straight"), *replayed)
    for name, reference in pairs:
        try:
            getattr(runs, name)()
            result[f"{name}_equal"] = runs.is_equal(reference, name)
            if not result[f"{name}_equal"]:
                result["problems"].append(f"{name}: the last checkpoint differs")
        except Failed as failed:
            result["problems"].append(f"{name}: {failed}")
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("--device", choices=("cpu", "cuda"), required=True)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--small", action="store_true", help="use a model with one layer, for a rehearsal")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        result = measure(options, pathlib.Path(scratch))
    print(json.dumps(result, indent=1))
    for problem in result["problems"]:
        print(problem, file=sys.stderr)
    return 1 if result["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
