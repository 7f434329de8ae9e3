"""Trains eighteen mixers on the same text with the budget of the quickstart and two seeds. Prints a table of losses,
speed, state size, and the time to decode a token after a short and after a long context.

    launch/quickstart                                     # builds, and writes the text
    cmake --build build/cpu --target bench_decode
    python3 bench/zoo/zoo.py --out sweeps/zoo

Prints Markdown. The losses are those of `halflife sweep --config launch/sweeps/zoo.textproto`, which continues where it
was stopped. Speeds are measured afterwards, one program at a time on one thread. The training speed is the median over
--speed-steps steps of the recipe. bench_decode measures decode steps after 1,000 and after 10,000 tokens, and first
checks that decoding gives the same results as the parallel form.
"""

import argparse
import csv
import json
import pathlib
import shutil
import statistics
import subprocess
import sys

REPO = pathlib.Path(__file__).resolve().parents[2]
SWEEP = "launch/sweeps/zoo.textproto"
RECIPE = "launch/recipes/quickstart.textproto"
TEXT = REPO / "quickstart/zoo"
BIBLE = REPO / "quickstart/king_james_bible.txt"


def write_text() -> None:
    """Writes the text for training and validation. Chapters are separated by empty lines; every 16th is for
    validation."""
    if not BIBLE.exists():
        sys.exit(f"{BIBLE} does not exist. Run launch/quickstart, which writes it.")
    chapters = [chapter for chapter in BIBLE.read_text().split("\n\n") if chapter.strip()]
    TEXT.mkdir(parents=True, exist_ok=True)
    for name, keep in (("train", lambda i: i % 16 != 7), ("validation", lambda i: i % 16 == 7)):
        text = "".join(c.strip("\n") + "\n\n" for i, c in enumerate(chapters) if keep(i))
        (TEXT / f"{name}.txt").write_text(text)


def run(command: list[str]) -> str:
    done = subprocess.run(command, cwd=REPO, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"exit {done.returncode} of: {' '.join(command)}")
    return done.stdout


def speed_of(halflife: str, mixer: str, out: pathlib.Path, steps: int) -> float:
    """Returns the median tokens/s over the steps of the recipe."""
    folder = out / "speed" / mixer
    shutil.rmtree(folder, ignore_errors=True)
    settings = [f"model.mixer={mixer}", f"data.path={out}/datasets/king_james", f"train.steps={steps}",
                "eval.every=0", "ckpt.every=0", "schedule.warmup_steps=1"]
    flags = [word for setting in settings for word in ("--set", setting)]
    run([halflife, "train", "--config", RECIPE, *flags, "--run", str(folder), "--resume", "none"])
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    speeds = [line["tokens_per_s"] for line in lines if "tokens_per_s" in line]
    return statistics.median(speeds[-steps:])


def decode_of(binary: str, mixer: str) -> dict:
    flags = ["--config", RECIPE, "--set", f"model.mixer={mixer}"]
    done = subprocess.run(
        [binary, *flags, "--early", "1000", "--tokens", "10000"],
        cwd=REPO,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 2 and "tokens at most" in done.stderr:  # rows cannot be longer than the mixer's filter
        return json.loads(run([binary, *flags, "--early", "500", "--tokens", "1000"]))
    if done.returncode != 0:
        sys.exit(f"bench_decode {mixer}: {done.stderr}")
    return json.loads(done.stdout)


def row(mixer: str, runs: list[dict], speed: float, decode: dict) -> str:
    losses = [float(run["val_loss"]) for run in runs]
    early_bytes = decode["early_state_bytes"] / decode["layers"]
    late_bytes = decode["late_state_bytes"] / decode["layers"]
    state = f"{early_bytes:,.0f}" + ("" if late_bytes == early_bytes else f" to {late_bytes:,.0f}")
    early, late = decode["early_ms_per_token"], decode["late_ms_per_token"]
    short = decode["tokens"] < 10000
    times = f"– | – | {late / early:.2f} (500 to 1,000)" if short else (
        f"{early:.3f} | {late:.3f} | {late / early:.2f}")
    cells = [f"`{mixer}`", f"{int(runs[0]['parameters']):,}", *(f"{x:.4f}" for x in losses),
             f"{statistics.mean(losses):.4f}", f"{speed:,.0f}", state, times]
    return "| " + " | ".join(cells) + " |"


def table(runs: dict[str, list[dict]], speeds: dict, decodes: dict) -> str:
    seeds = [run["seed"] for run in next(iter(runs.values()))]
    head = ["mixer", "parameters", *(f"seed {seed}" for seed in seeds), "mean", "tokens/s",
            "state, bytes per layer", "decode, ms at 1,000", "at 10,000", "ratio"]
    order = sorted(runs, key=lambda m: statistics.mean(float(run["val_loss"]) for run in runs[m]))
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    lines += [row(mixer, runs[mixer], speeds[mixer], decodes[mixer]) for mixer in order]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("sweeps/zoo"))
    parser.add_argument("--build", type=pathlib.Path, default=REPO / "build/cpu")
    parser.add_argument("--speed-steps", type=int, default=15)
    args = parser.parse_args()
    args.build = args.build.resolve()
    halflife = str(args.build / "src/cli/halflife")
    out = args.out.resolve()
    write_text()
    run([halflife, "sweep", "--config", SWEEP, "--out", str(out)])
    runs: dict[str, list[dict]] = {}
    with open(out / "results.csv", newline="") as results:
        for line in csv.DictReader(results):
            runs.setdefault(line["mixer"], []).append(line)
    speeds = {mixer: speed_of(halflife, mixer, out, args.speed_steps) for mixer in runs}
    decodes = {m: decode_of(str(args.build / "bench/bench_decode"), m) for m in runs}
    print(table(runs, speeds, decodes))


if __name__ == "__main__":
    main()
