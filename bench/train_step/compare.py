"""halflife's training step against the same model in plain PyTorch: time and memory, as JSON.

    launch/setup --compare && cmake --build build/cpu --target bench_train_step
    python3 bench/train_step/compare.py --mixer gla --pairs 5 --json step_gla.json

PyTorch runs eagerly, or under torch.compile with --compile; --precision bf16 means autocast there and
a bf16 copy of the parameters with fp32 main weights here.

Both programs take the same model and step arguments and print one JSON line each with "median_ms"
and "peak_memory_mib". They run in turn, --pairs times, never at once, and the order within a pair
alternates: what else the machine does meets both alike. Both begin with halflife's parameters and
batch, and their losses before and after the first update must agree. The ratios are of the medians
over pairs; above 1 means that halflife is faster, or needs less memory.
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

# How far the losses may part before and after the first update, nats a token. Before: the rounding of a
# mean of 4,096 of about 5.6. After: AdamW's first update is the learning rate, 1e-3, times each gradient's
# sign, which rounding turns where a gradient is near 0. Seen: 5e-7 and 5e-5 in fp32, 3e-4 and 5e-3 in bf16.
LOSS_TOLERANCE = {"fp32": (1e-5, 1e-3), "bf16": (2e-3, 2e-2)}


def run(command: list[str], threads: int) -> dict:
    environment = dict(os.environ, OMP_NUM_THREADS=str(threads))
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"exit {done.returncode} of: {' '.join(command)}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def spread(values: list[float]) -> dict:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def check_same_model(
    results: dict[str, list[dict]], tolerances: tuple[float, float]
) -> list[list[float]]:
    """The losses of the first two steps, [[halflife, pytorch], ...]; exits where they differ."""
    ours, theirs = (results[name][0] for name in ("halflife", "pytorch"))
    if ours["parameters"] != theirs["parameters"]:
        sys.exit(
            f"the two models differ: {ours['parameters']} parameters here, "
            f"{theirs['parameters']} in PyTorch"
        )
    losses = [list(pair) for pair in zip(ours["first_losses"], theirs["first_losses"])][:2]
    for step, ((here, there), tolerance) in enumerate(zip(losses, tolerances)):
        if not abs(here - there) <= tolerance:
            sys.exit(
                f"the two models differ: the loss of step {step} is {here:.6f} here, {there:.6f} "
                f"in PyTorch, from the same parameters and batch; {tolerance} is allowed"
            )
    return losses


def compare(
    ours: list[str],
    theirs: list[str],
    pairs: int,
    threads: int,
    tolerances: tuple[float, float],
) -> dict:
    results: dict[str, list[dict]] = {"halflife": [], "pytorch": []}
    for pair in range(pairs):
        order = [("halflife", ours), ("pytorch", theirs)]
        for name, command in order if pair % 2 == 0 else reversed(order):
            results[name].append(run(command, threads))
            print(
                f"pair {pair + 1}/{pairs}: {name} {results[name][-1]['median_ms']:.1f} ms",
                file=sys.stderr,
            )
        losses = check_same_model(results, tolerances)
    summary = {}
    for key in ("median_ms", "peak_memory_mib"):
        summary[key] = {name: spread([r[key] for r in runs]) for name, runs in results.items()}
    return {
        "median_ms": summary["median_ms"],
        "peak_memory_mib": summary["peak_memory_mib"],
        "speed_ratio": summary["median_ms"]["pytorch"]["median"]
        / summary["median_ms"]["halflife"]["median"],
        "speed_ratio_of_pairs": spread(
            [
                theirs["median_ms"] / ours["median_ms"]
                for ours, theirs in zip(results["halflife"], results["pytorch"])
            ]
        ),
        "memory_ratio": summary["peak_memory_mib"]["pytorch"]["median"]
        / summary["peak_memory_mib"]["halflife"]["median"],
        "parameters": results["halflife"][0]["parameters"],
        "first_losses": losses,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mixer", choices=["gla", "retention", "softmax"], default="gla")
    for name, default in {"layers": 6, "dim": 256, "heads": 4, "seq-len": 512, "batch": 8}.items():
        parser.add_argument("--" + name, type=int, default=default)
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--compile", action="store_true", help="PyTorch under torch.compile")
    parser.add_argument("--steps", type=int, default=5, help="timed steps of one program's run")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument(
        "--binary", type=pathlib.Path, default=REPO / "build/cpu/bench/bench_train_step"
    )
    parser.add_argument("--python", type=pathlib.Path, default=REPO / ".venv-compare/bin/python")
    parser.add_argument("--json", type=pathlib.Path, help="also write the result to this file")
    args = parser.parse_args()
    for path, remedy in (
        (args.binary, "cmake --build build/cpu --target bench_train_step"),
        (args.python, "launch/setup --compare"),
    ):
        if not path.exists():
            sys.exit(f"{path} is not there; run: {remedy}")

    shape = {
        key: getattr(args, key)
        for key in (
            *("mixer", "precision", "layers", "dim", "heads", "seq_len", "batch", "steps"),
            "threads",
        )
    }
    flags = [
        word for key, value in shape.items() for word in ("--" + key.replace("_", "-"), str(value))
    ]
    ours = [str(args.binary), *flags]
    theirs = [str(args.python), str(REPO / "bench/train_step/pytorch_step.py"), *flags]
    if args.compile:
        theirs.append("--compile")
    with tempfile.TemporaryDirectory() as folder:
        start = str(pathlib.Path(folder) / "start.pt")
        subprocess.run([*ours, "--save-start", start], check=True)
        theirs += ["--start", start]
        measured = compare(ours, theirs, args.pairs, args.threads, LOSS_TOLERANCE[args.precision])
    result = {"shape": shape, "compile": args.compile, "pairs": args.pairs, **measured}
    text = json.dumps(result, indent=2)
    print(text)
    if args.json:
        args.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
