"""Runs `halflife train` on a few ranks, for the comparisons in this folder."""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

REPO = pathlib.Path(__file__).resolve().parents[2]
BINARY = REPO / "build/cpu/src/cli/halflife"


def model_parser(description: str, layers: int, batch: int) -> argparse.ArgumentParser:
    """Returns a parser with the options of model_settings(), and --binary, --data and --pairs."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=pathlib.Path, default=BINARY)
    parser.add_argument("--data", required=True, metavar="DATASET")
    parser.add_argument("--mixer", default="gla")
    parser.add_argument("--layers", type=int, default=layers)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--batch", type=int, default=batch)
    parser.add_argument("--steps", type=int, default=10, help="steps per run (default: %(default)s)")
    parser.add_argument("--pairs", type=int, default=3, help="runs of each side (default: 3)")
    return parser


def model_settings(options: argparse.Namespace) -> dict:
    return {
        "data.path": options.data,
        "model.mixer": options.mixer,
        "model.model_dim": options.dim,
        "model.num_layers": options.layers,
        "model.channel_mixer.swiglu.width": 0,
        "train.steps": options.steps,
    }


def under_mpirun(ranks: int, threads: int) -> list:
    """Returns the prefix of a command that runs it on several ranks, as users do."""
    return [str(REPO / "launch/mpirun/run.sh"), "--ranks", str(ranks), "--threads", str(threads), "--"]


def train(binary: pathlib.Path, ranks: int, threads: int, settings: dict, prefix: tuple = ()) -> dict:
    """Trains the quickstart recipe in a new folder. Returns medians over its steps, without the first two.

    `prefix`: a command that runs the command after it, for example in a network namespace.
    """
    with tempfile.TemporaryDirectory() as folder:
        settings = {"train.threads": threads, "eval.every": 0, "eval.windows": 1, "ckpt.every": 0, **settings}
        command = [*prefix, *(under_mpirun(ranks, threads) if ranks > 1 else [])]
        command += [str(binary), "train", "--config", str(REPO / "launch/recipes/quickstart.textproto")]
        command += ["--run", f"{folder}/run"]
        command += [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        environment = dict(os.environ, OMP_NUM_THREADS=str(threads))
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"exit {done.returncode} of {' '.join(command)}\n{done.stderr}")
        lines = [json.loads(line) for line in open(f"{folder}/run/metrics.jsonl")]
    steps = [line for line in lines if "tokens_per_s" in line][2:]

    def median(key: str) -> float:
        return statistics.median(step[key] for step in steps)

    return {
        "tokens_per_s": median("tokens_per_s"),
        "step_ms": median("step_ms"),
        "exposed_grad_ms": median("exposed_grad_ms"),
        "exposed_param_ms": median("exposed_param_ms"),
        "data_wait_share": median("data_wait_ms") / median("step_ms"),
        "exposed_comm_share": median("exposed_comm_ms") / median("step_ms"),
        "peak_memory_mib": steps[-1]["peak_memory_bytes"] / 2**20,
    }


def compare(sides: dict, pairs: int) -> dict:
    """Runs the sides alternately. Returns the medians of each side. `sides`: name -> a function that runs it once."""
    results = {name: [] for name in sides}
    for pair in range(pairs):
        order = list(sides) if pair % 2 == 0 else list(reversed(sides))
        for name in order:
            results[name].append(sides[name]())
            print(f"pair {pair + 1}/{pairs}: {name} {results[name][-1]}", file=sys.stderr)
    return {
        name: {key: statistics.median(run[key] for run in runs) for key in runs[0]} for name, runs in results.items()
    }
