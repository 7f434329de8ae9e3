"""Compares halflife's training step with the same model in plain PyTorch: time and memory. Prints JSON.

    launch/setup --compare && cmake --build build/cpu --target bench_train_step
    python3 bench/train_step/compare.py --mixer gla --pairs 5 --json step_gla.json
    python3 bench/train_step/compare.py --mixer all --pairs 3 --markdown steps.md

PyTorch runs eagerly, or under torch.compile with --compile. --precision bf16 means autocast in PyTorch, and
a bf16 copy of the parameters with fp32 main weights in halflife.

The two programs run one after the other, --pairs times, in alternating order, so that other load on the machine
affects both equally. Both start with halflife's parameters and batch, and their losses before and after the first
update must agree.

Ratios compare medians over the pairs. A ratio above 1 means that halflife is faster or needs less memory. The
"processor" ratios compare the processor time of a step, on which other programs have less influence. With several
mixers, halflife's step of `retention` also runs in every pair, and "over_retention" is the time of the mixer relative
to it.
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
STEP = REPO / "bench/train_step/pytorch_step.py"

# Numbers of heads of halflife's mixers with 256 channels. retention and softmax have 8 by default, but all published
# results used 4.
HEADS, DEFAULT_HEADS = {"based": 12, "rebased": 12}, 4

# Tolerances of the losses before and after the first update, in nats per token. Before the update, the losses differ by
# the rounding of a mean of 4,096 values of about 5.6. AdamW's first update is the learning rate, 1e-3, times the sign
# of each gradient, which rounding may flip near 0. PyTorch also decays norms and biases, by 1e-4 of their values.
# Measured differences: 5e-7 and 2e-4 in fp32, 3e-4 and 5e-3 in bf16.
LOSS_TOLERANCE = {"fp32": (1e-5, 1e-3), "bf16": (2e-3, 2e-2)}


def run(command: list[str], threads: int) -> dict:
    environment = dict(os.environ, OMP_NUM_THREADS=str(threads))
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"exit {done.returncode} of: {' '.join(command)}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def spread(values: list[float]) -> dict:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


class ModelsDiffer(Exception):
    """The two programs do not train the same model. The message says how they differ."""


def check_same_model(
    results: dict[str, list[dict]], tolerances: tuple[float, float]
) -> list[list[float]]:
    """Returns the losses of the first two steps, [[halflife, pytorch], ...]. Raises ModelsDiffer if they differ."""
    ours, theirs = (results[name][0] for name in ("halflife", "pytorch"))
    if ours["parameters"] != theirs["parameters"]:
        raise ModelsDiffer(
            f"the two models differ: {ours['parameters']} parameters in halflife, "
            f"{theirs['parameters']} in PyTorch"
        )
    losses = [list(pair) for pair in zip(ours["first_losses"], theirs["first_losses"])][:2]
    for step, ((here, there), tolerance) in enumerate(zip(losses, tolerances)):
        if not abs(here - there) <= tolerance:
            raise ModelsDiffer(
                f"the two models differ: with the same parameters and batch, the loss of step {step} is "
                f"{here:.6f} in halflife and {there:.6f} in PyTorch; the tolerance is {tolerance}"
            )
    return losses


def compare(
    commands: dict[str, list[str]],
    pairs: int,
    threads: int,
    tolerances: tuple[float, float],
) -> dict:
    """Runs the commands in pairs. `commands`: "halflife", "pytorch" and optionally "retention"."""
    results: dict[str, list[dict]] = {name: [] for name in commands}
    for pair in range(pairs):
        order = list(commands.items())
        for name, command in order if pair % 2 == 0 else reversed(order):
            results[name].append(run(command, threads))
            print(
                f"pair {pair + 1}/{pairs}: {name} {results[name][-1]['median_ms']:.1f} ms",
                file=sys.stderr,
            )
        losses = check_same_model(results, tolerances)
    summary = {}
    for key in ("median_ms", "median_processor_ms", "peak_memory_mib"):
        summary[key] = {name: spread([r[key] for r in runs]) for name, runs in results.items()}

    def ratios(key: str, over: str, under: str) -> tuple[float, dict]:
        """Returns the ratio of the medians, and the spread of the ratios of the pairs."""
        medians = (summary[key][name]["median"] for name in (over, under))
        of_pairs = [a[key] / b[key] for a, b in zip(results[over], results[under])]
        return next(medians) / next(medians), spread(of_pairs)

    speed, speed_of_pairs = ratios("median_ms", "pytorch", "halflife")
    measured = {
        **summary,
        "speed_ratio": speed,
        "speed_ratio_of_pairs": speed_of_pairs,
        "processor_ratio": ratios("median_processor_ms", "pytorch", "halflife")[0],
        "memory_ratio": ratios("peak_memory_mib", "pytorch", "halflife")[0],
        "parameters": results["halflife"][0]["parameters"],
        "first_losses": losses,
    }
    if "retention" in commands:
        over, over_of_pairs = ratios("median_ms", "halflife", "retention")
        measured |= {
            "over_retention": over,
            "over_retention_of_pairs": over_of_pairs,
            "processor_over_retention": ratios("median_processor_ms", "halflife", "retention")[0],
        }
    return measured


def measure_mixer(args: argparse.Namespace, mixer: str) -> dict:
    shape = {
        key: getattr(args, key)
        for key in (*("precision", "layers", "dim", "seq_len", "batch", "steps"), "threads")
    }

    def command_of(program: list[str], mixer: str) -> list[str]:
        settings = {"mixer": mixer, "heads": args.heads or HEADS.get(mixer, DEFAULT_HEADS), **shape}
        flags = ((f"--{key.replace('_', '-')}", str(value)) for key, value in settings.items())
        return [*program, *(word for flag in flags for word in flag)]

    commands = {
        "halflife": command_of([str(args.binary)], mixer),
        "pytorch": command_of([str(args.python), str(STEP)], mixer),
    }
    if len(args.mixer) > 1 and mixer != "retention":
        commands["retention"] = command_of([str(args.binary)], "retention")
    if args.compile:
        commands["pytorch"].append("--compile")
    with tempfile.TemporaryDirectory() as folder:
        start = str(pathlib.Path(folder) / "start.pt")
        subprocess.run([*commands["halflife"], "--save-start", start], check=True)
        commands["pytorch"] += ["--start", start]
        return compare(commands, args.pairs, args.threads, LOSS_TOLERANCE[args.precision])


def markdown(rows: list[dict]) -> str:
    lines = [
        "| mixer | halflife, ms | PyTorch, ms | speed, by processor time | peak memory | time relative to "
        "retention, by processor time |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        if "problem" in row:
            lines.append(f"| {row['mixer']} | {row['problem']} |")
            continue
        ms = {name: figures["median"] for name, figures in row["median_ms"].items()}
        over = ""
        if "over_retention" in row:
            over = f"{row['over_retention']:.2f}, {row['processor_over_retention']:.2f}"
        lines.append(
            f"| {row['mixer']} | {ms['halflife']:,.0f} | {ms['pytorch']:,.0f} | "
            f"{row['speed_ratio']:.2f} x, {row['processor_ratio']:.2f} x | "
            f"{100 / row['memory_ratio']:.0f} % | {over} |"
        )
    return "\n".join(lines) + "\n"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--mixer", nargs="+", default=["gla"], metavar="NAME", help="mixers, or all (default: gla)"
    )
    for name, default in {"layers": 6, "dim": 256, "seq-len": 512, "batch": 8}.items():
        parser.add_argument("--" + name, type=int, default=default)
    parser.add_argument("--heads", type=int, help="heads (default: 12 for based and rebased, otherwise 4)")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--compile", action="store_true", help="run PyTorch under torch.compile")
    parser.add_argument("--steps", type=int, default=5, help="timed steps per run (default: 5)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=3, help="runs of each program (default: 3)")
    parser.add_argument(
        "--binary", type=pathlib.Path, default=REPO / "build/cpu/bench/bench_train_step"
    )
    parser.add_argument("--python", type=pathlib.Path, default=REPO / ".venv-compare/bin/python")
    parser.add_argument("--json", type=pathlib.Path, help="also write the result to this file")
    parser.add_argument("--markdown", type=pathlib.Path, help="write a table to this file")
    args = parser.parse_args()
    for path, remedy in (
        (args.binary, "cmake --build build/cpu --target bench_train_step"),
        (args.python, "launch/setup --compare"),
    ):
        if not path.exists():
            sys.exit(f"{path} does not exist. Run {remedy}.")
    if args.mixer == ["all"]:
        listed = subprocess.run(
            [args.binary, "--list-mixers"], stdout=subprocess.PIPE, text=True, check=True
        )
        args.mixer = listed.stdout.split()
    return args


def main() -> None:
    args = parse_arguments()
    rows: list[dict] = []
    for mixer in args.mixer:
        print(mixer, file=sys.stderr)
        try:
            rows.append({"mixer": mixer, **measure_mixer(args, mixer)})
        except ModelsDiffer as problem:
            rows.append({"mixer": mixer, "problem": str(problem)})
    settings = ("layers", "dim", "seq_len", "batch", "heads", "precision", "compile", "threads")
    shape = {key: getattr(args, key) for key in (*settings, "steps", "pairs")}
    text = json.dumps({"shape": shape, "mixers": rows}, indent=2)
    print(text)
    if args.json:
        args.json.write_text(text + "\n", encoding="utf-8")
    if args.markdown:
        args.markdown.write_text(markdown(rows), encoding="utf-8")
    problems = [f"{row['mixer']}: {row['problem']}" for row in rows if "problem" in row]
    if problems:
        sys.exit("\n".join(problems))


if __name__ == "__main__":
    main()
