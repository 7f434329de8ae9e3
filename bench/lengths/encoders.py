"""Evaluates GAU encoders beyond their training length, with and without the two scalings of "Information entropy
invariance" (2025). An encoder is trained to predict masked words of a text, fine-tuned on rows of 64 tokens with
products or cosines as scores, and evaluated at up to 16 times this length, with and without InfoScale.

    launch/quickstart                                     # builds, and writes the text
    python3 bench/lengths/encoders.py --out runs/encoders

Prints a Markdown table: the accuracy on the same masked bytes at every length, the perplexity, and the entropy of
attention. Runs and evaluations continue where they were stopped.
"""

import argparse
import json
import pathlib
import sys

REPO = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO / "bench/zoo"))
import zoo  # for write_text() and run()

from lengths import by_most_queries

RECIPE = "launch/recipes/gau_bytes.textproto"
LENGTHS = [64, 128, 256, 512, 1024]
METHODS = ["as_trained", "info_scale", "log_scale", "window", "yarn"]
# Values of cos_scale; 0 means products. As in the paper, softmax replaces the recipe's softmax_plus.
SCALES = {"products": 0, "cosines times 8": 8, "cosines times 16": 16, "cosines times 32": 32}
FINE = ["data.seq_len=64", "train.global_batch=64", "train.micro_batch=64",
        "model.mixer.gau.normaliser=softmax", "optimizer.lr=1e-3", "schedule.warmup_steps=50",
        "schedule.final_lr_ratio=0"]


def train(args: argparse.Namespace, folder: pathlib.Path, settings: list[str], *more: str) -> None:
    data = f"data.path={args.out}/king_james"
    sets = [word for setting in [data, *settings] for word in ("--set", setting)]
    zoo.run([args.program, "train", "--config", RECIPE, *sets, "--run", str(folder), *more])


def evaluate(args: argparse.Namespace, folder: pathlib.Path) -> dict:
    """Returns {(method, length): row}."""
    table = folder / "lengths.json"
    zoo.run([args.program, "eval", "--model", str(folder), "--data", f"{args.out}/king_james", "--lengths",
             ",".join(map(str, LENGTHS)), "--windows", str(args.windows), "--method", ",".join(METHODS), "--out",
             str(table), "--attention"])
    return {(row["method"], row["length"]): row for row in json.loads(table.read_text())["rows"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--program", default=str(REPO / "build/cpu/src/cli/halflife"))
    parser.add_argument("--steps", type=int, default=400, help="steps of fine-tuning (default: 400)")
    parser.add_argument("--windows", type=int, default=16, help="number of windows of the longest length (default: 16)")
    args = parser.parse_args()
    args.out = args.out.absolute()
    args.program = str(pathlib.Path(args.program).absolute())
    zoo.write_text()
    if not (args.out / "king_james/manifest.pb").exists():
        zoo.run([args.program, "prepare", "--input", f"{zoo.TEXT}/train.txt", "--validation-input",
                 f"{zoo.TEXT}/validation.txt", "--documents", "file", "--tokenizer", "bytes", "--out",
                 f"{args.out}/king_james"])
    train(args, args.out / "start", [])
    print("| scores | evaluated | " + " | ".join(f"{n:,}" for n in LENGTHS) + f" | perplexity at {LENGTHS[0]} "
          f"| at {LENGTHS[-1]:,} | entropy at {LENGTHS[0]} | at {LENGTHS[-1]:,} |")
    print("|---" * (len(LENGTHS) + 6) + "|")
    for name, scale in SCALES.items():
        folder = args.out / f"cos_scale={scale}"
        train(args, folder, [*FINE, f"model.mixer.gau.cos_scale={scale}", f"train.steps={args.steps}"],
              "--init-from", str(args.out / "start"))
        rows = evaluate(args, folder)
        for method in METHODS:
            ends = [rows[method, LENGTHS[0]], rows[method, LENGTHS[-1]]]
            print(f"| {name} | {method} | "
                  + " | ".join(f"{rows[method, n]['accuracy']:.4f}" for n in LENGTHS) + " | "
                  + " | ".join(f"{row['perplexity']:.2f}" for row in ends) + " | "
                  + " | ".join(f"{by_most_queries(row)['entropy']:.2f}" for row in ends) + " |", flush=True)


if __name__ == "__main__":
    main()
