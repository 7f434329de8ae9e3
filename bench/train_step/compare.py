"""Compares halflife's training step with the same model in plain PyTorch: time and memory. Prints JSON.

    launch/setup --compare && cmake --build build/cpu --target bench_train_step
    python3 bench/train_step/compare.py --mixer gla --pairs 5 --json step_gla.json
    python3 bench/train_step/compare.py --mixer all --pairs 3 --markdown steps.md

PyTorch runs eagerly, or under torch.compile with --compile. --precision bf16 means autocast in PyTorch, and
a bf16 copy of the parameters with fp32 main weights in halflife.

Both programs take the same model and step arguments and print one JSON line each with "median_ms"
and "peak_memory_mib". They run one after the other, --pairs times, in alternating order, so that other load
on the machine affects both equally. "processor" ratios compare the processor time of a step, on which other
programs have less influence. Both start with halflife's parameters and batch, and their losses before and after
the first update must agree. Ratios compare medians over pairs; above 1 means that halflife is faster, or needs
less memory. With several mixers, halflife's step of `retention` also runs in every pair: "over_retention" is the
mixer's time relative to it.
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

# The numbers of heads that halflife's mixers have at 256 channels. retention and softmax have 8, but all figures so far
# used 4.
HEADS, USUAL_HEADS = {"based": 12, "rebased": 12}, 4

# Bounds on the difference of losses before and after the first update, in nats per token. Before: the rounding of a
# mean of 4,096 values of about 5.6. After: AdamW's first update is the learning rate, 1e-3, times the sign of each
# gradient, which rounding may flip near 0. PyTorch also decays norms and biases, by 1e-4 of themselves. Measured: 5e-7
# and 2e-4 in fp32, 3e-4 and 5e-3 in bf16.
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
    """A message for the user."""


def check_same_model(
    results: dict[str, list[dict]], tolerances: tuple[float, float]
) -> list[list[float]]:
    """Returns the losses of the first two steps, [[halflife, pytorch], ...]. Raises ModelsDiffer if they differ."""
    ours, theirs = (results[name][0] for name in ("halflife", "pytorch"))
    if ours["parameters"] != theirs["parameters"]:
        raise ModelsDiffer(
            f"the two models differ: {ours['parameters']} parameters here, "
            f"{theirs['parameters']} in PyTorch"
        )
    losses = [list(pair) for pair in zip(ours["first_losses"], theirs["first_losses"])][:2]
    for step, ((here, there), tolerance) in enumerate(zip(losses, tolerances)):
        if not abs(here - there) <= tolerance:
            raise ModelsDiffer(
                f"the two models differ: the loss of step {step} is {here:.6f} here, {there:.6f} "
                f"in PyTorch, from the same parameters and batch; {tolerance} is allowed"
            )
    return losses


def compare(
    commands: dict[str, list[str]],
    pairs: int,
    threads: int,
    tolerances: tuple[float, float],
) -> dict:
    """`commands`: those of halflife and pytorch, and optionally of retention."""
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
        """Returns the ratio of the medians, and those of the pairs."""
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
        settings = {"mixer": mixer, "heads": args.heads or HEADS.get(mixer, USUAL_HEADS), **shape}
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
        "| mixer | halflife, ms | PyTorch, ms | speed, by processor time | peak memory | time over "
        "retention's, by processor time |",
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
    parser.add_argument("--mixer", nargs="+", default=["gla"], help="names, or all")
    for name, default in {"layers": 6, "dim": 256, "seq-len": 512, "batch": 8}.items():
        parser.add_argument("--" + name, type=int, default=default)
    parser.add_argument("--heads", type=int, help="default: 12 of based and rebased, 4 of others")
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
    parser.add_argument("--markdown", type=pathlib.Path, help="write a table to this file")
    args = parser.parse_args()
    for path, remedy in (
        (args.binary, "cmake --build build/cpu --target bench_train_step"),
        (args.python, "launch/setup --compare"),
    ):
        if not path.exists():
            sys.exit(f"{path} is not there; run: {remedy}")
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
