"""Two ranks of one thread against one rank of two threads: the same global batch, the real trainer, as JSON.

    python3 bench/ranks/ranks_vs_threads.py --data quickstart/dataset-XXXX --mixer gla --pairs 3

Runs `halflife train` in turn, --pairs times each, in fresh folders, and reads metrics.jsonl. The ratio is that of the
medians of tokens/s; above 1 means that the ranks are faster. Also reports the share of a step that waits for data, and
the communication that backward did not hide.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

REPO = pathlib.Path(__file__).resolve().parents[2]


def train(options: argparse.Namespace, ranks: int, threads: int) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        settings = [
            f"data.path={options.data}",
            f"model.mixer={options.mixer}",
            f"model.model_dim={options.dim}",
            f"model.num_layers={options.layers}",
            "model.channel_mixer.swiglu.width=0",
            f"train.steps={options.steps}",
            f"train.global_batch={options.batch}",
            f"train.micro_batch={options.batch // 2}",
            f"train.threads={threads}",
            "eval.every=0",
            "eval.windows=2",
            "ckpt.every=0",
        ]
        command = [] if ranks == 1 else ["mpirun", "-n", str(ranks), "--oversubscribe", "--bind-to", "none"]
        command += [str(options.binary), "train", "--config", str(REPO / "launch/recipes/quickstart.textproto")]
        command += ["--run", f"{folder}/run"] + [word for s in settings for word in ("--set", s)]
        environment = dict(
            os.environ,
            OMP_NUM_THREADS=str(threads),
            OMPI_ALLOW_RUN_AS_ROOT="1",
            OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
        )
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"exit {done.returncode} of {' '.join(command)}\n{done.stderr}")
        lines = [json.loads(line) for line in open(f"{folder}/run/metrics.jsonl")]
    steps = [line for line in lines if "tokens_per_s" in line][2:]  # the first two warm up
    median = lambda key: statistics.median(step[key] for step in steps)
    return {
        "tokens_per_s": median("tokens_per_s"),
        "data_wait_share": median("data_wait_ms") / median("step_ms"),
        "exposed_comm_share": median("exposed_comm_ms") / median("step_ms"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=pathlib.Path, default=REPO / "build/cpu/src/cli/halflife")
    parser.add_argument("--data", required=True)
    parser.add_argument("--mixer", default="gla")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--pairs", type=int, default=3)
    options = parser.parse_args()
    results = {"ranks": [], "threads": []}
    for pair in range(options.pairs):
        order = [("ranks", 2, 1), ("threads", 1, 2)]
        for name, ranks, threads in order if pair % 2 == 0 else reversed(order):
            results[name].append(train(options, ranks, threads))
            print(f"pair {pair + 1}/{options.pairs}: {name} {results[name][-1]}", file=sys.stderr)
    summary = {
        name: {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        for name, runs in results.items()
    }
    summary["ratio"] = summary["ranks"]["tokens_per_s"] / summary["threads"]["tokens_per_s"]
    print(json.dumps({"mixer": options.mixer, "layers": options.layers, "dim": options.dim, **summary}, indent=2))


if __name__ == "__main__":
    main()
