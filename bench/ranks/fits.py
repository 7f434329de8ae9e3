"""Finds the address space that a rank needs at ZeRO stages 2 and 3, with `ulimit -v`. Prints JSON.

    python3 bench/ranks/fits.py --data quickstart/dataset-XXXX

Four ranks train for a few steps with few tokens. For each stage, bisection finds the smallest limit at which they
train, to within 5 %. `between` is a limit between the two results: the model trains at stage 3 and does not fit at
stage 2. The output contains the error of stage 2.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from training import BINARY, REPO, under_mpirun

LIMIT = """#!/bin/bash
ulimit -v {kib}
exec {binary} "$@"
"""


def script(path: pathlib.Path, text: str) -> pathlib.Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


def train(options: argparse.Namespace, binary: pathlib.Path, folder: pathlib.Path, stage: int) -> dict:
    """Returns whether the run succeeded, its last loss, and its first error."""
    run = folder / f"run{stage}"
    settings = {
        "data.path": options.data,
        "data.seq_len": 32,
        "model.model_dim": options.dim,
        "model.num_layers": options.layers,
        "model.channel_mixer.swiglu.width": 0,
        "train.global_batch": options.ranks,
        "train.micro_batch": 1,
        "train.steps": 3,
        "train.threads": 1,
        "parallel.zero_stage": stage,
        "parallel.bucket_bytes": 4 << 20,
        "eval.every": 0,
        "eval.windows": 1,
        "ckpt.every": 0,
        "log.tensorboard": "false",
    }
    command = [*under_mpirun(options.ranks, 1), str(binary), "train", "--run", str(run)]
    command += ["--config", str(REPO / "launch/recipes/quickstart.textproto")]
    command += [word for item in settings.items() for word in ("--set", "=".join(map(str, item)))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    losses = []
    if (run / "metrics.jsonl").exists():
        lines = [json.loads(line) for line in open(run / "metrics.jsonl")]
        losses = [line["loss"] for line in lines if "loss" in line]
    errors = [line for line in done.stderr.splitlines() if "error" in line.lower()]
    return {"trains": done.returncode == 0 and len(losses) == 3, "loss": losses[-1:], "error": errors[:1]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=pathlib.Path, default=BINARY)
    parser.add_argument("--data", required=True)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--low-mib", type=float, default=500)
    parser.add_argument("--high-mib", type=float, default=4000)
    options = parser.parse_args()
    summary = {"load_before": os.getloadavg()[0]}

    def attempt(stage: int, mib: float) -> dict:
        with tempfile.TemporaryDirectory() as name:
            text = LIMIT.format(kib=int(mib * 1024), binary=options.binary.resolve())
            limited = script(pathlib.Path(name) / "limited", text)
            result = train(options, limited, pathlib.Path(name), stage)
        print(f"stage {stage}, {mib:.0f} MiB: {result}", file=sys.stderr)
        return result

    needed = {}
    for stage in (2, 3):
        low, high = options.low_mib, options.high_mib
        while high > 1.05 * low:
            middle = (low * high) ** 0.5
            low, high = (low, middle) if attempt(stage, middle)["trains"] else (middle, high)
        needed[stage] = high
        summary[f"stage_{stage}_mib"] = high
    between = (needed[2] * needed[3]) ** 0.5
    summary["between"] = {"mib": between, **{f"stage_{stage}": attempt(stage, between) for stage in (2, 3)}}
    print(json.dumps(summary, indent=2))


if __name__ == "__main__":
    main()
