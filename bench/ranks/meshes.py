"""Trains the quickstart recipe on six meshes of ranks and measures how much the losses differ. Prints JSON.

    python3 bench/ranks/meshes.py --data quickstart/dataset-XXXX --out /tmp/meshes
    python3 bench/ranks/meshes.py --data quickstart/dataset-XXXX --out /tmp/meshes --slices 0

A mesh is (dp, sp, ZeRO stage). All train on the same rows in the same order, each row in four slices (parallel.slices),
so they should end with the same bits. With --slices 0 a row has one slice per rank. If rows are split differently, sums
have another order and losses differ by rounding, which training amplifies. `rounding` is another run on one rank, with
micro-batches of twice as many rows, so that only the order of sums over rows differs. Differences are relative to one
rank's losses, at the last step (`last`) and of the mean of the last 20 (`mean`). A mesh that differs by more than
`rounding` has a bug. Runs that are already in --out are not repeated.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys

from training import BINARY, REPO, under_mpirun

MESHES = [(1, 1, 0), (2, 1, 1), (1, 2, 0), (2, 2, 1), (1, 4, 2), (4, 1, 2)]
MODELS = {
    "gla": {"model.mixer": "gla"},
    "retention": {"model.mixer": "retention"},
    "rebased": {"model.mixer": "rebased"},
    "leap": {"model.mixer": "leap"},
    "softmax hybrid": {"model.hybrid": "[{ layers: 1 mixer { softmax { num_heads: 4 window: 200 } } }]"},
}


def train(options: argparse.Namespace, run: pathlib.Path, mesh: tuple, settings: dict) -> list:
    """Returns the losses of the run's steps."""
    dp, sp, stage = mesh
    settings = {
        "data.path": options.data,
        "train.steps": options.steps,
        "train.micro_batch": 2,
        "parallel.sp": sp,
        "parallel.slices": options.slices,
        "parallel.zero_stage": stage,
        "eval.every": 0,
        "eval.windows": 1,
        "ckpt.every": 0,
        "log.tensorboard": "false",
        **settings,
    }
    command = [] if dp * sp == 1 else under_mpirun(ranks=dp * sp, threads=1)
    command += [str(options.binary), "train", "--config", str(REPO / "launch/recipes/quickstart.textproto")]
    command += ["--run", str(run)] + [word for item in settings.items() for word in ("--set", "=".join(map(str, item)))]
    if not (run / "DONE").exists():
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"exit {done.returncode} of {' '.join(command)}\n{done.stderr}")
    lines = [json.loads(line) for line in open(run / "metrics.jsonl")]
    return [line["loss"] for line in lines if "loss" in line]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=pathlib.Path, default=BINARY)
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder for the runs")
    parser.add_argument("--model", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--slices", type=int, default=4, help="slices per row; 0: one per rank (default: 4)")
    options = parser.parse_args()

    results = {}
    for model in options.model:
        folder = options.out / f"{model.replace(' ', '_')}_slices{options.slices}"
        losses = {}
        for mesh in MESHES:
            run = folder.with_name(f"{folder.name}_{'_'.join(map(str, mesh))}")
            losses[str(mesh)] = train(options, run, mesh, MODELS[model])
            print(f"{model} {mesh}: {losses[str(mesh)][-1]:.6f}", file=sys.stderr, flush=True)
        other_sums = {**MODELS[model], "train.micro_batch": 4}
        losses["rounding"] = train(options, folder.with_name(f"{folder.name}_rounding"), MESHES[0], other_sums)
        one = losses[str(MESHES[0])]
        results[model] = {
            name: {
                "loss": loss[-1],
                "last": abs(loss[-1] - one[-1]),
                "mean": abs(statistics.mean(loss[-20:]) - statistics.mean(one[-20:])),
                "first": abs(loss[0] - one[0]),
            }
            for name, loss in losses.items()
        }
    print(json.dumps({"steps": options.steps, **results}, indent=2))


if __name__ == "__main__":
    main()
