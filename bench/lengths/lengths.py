"""Evaluates models beyond their training length. Each position method is trained on short rows with two seeds, and
evaluated with every inference method that it supports.

    launch/quickstart                                     # builds, and writes the text
    python3 bench/lengths/lengths.py --out sweeps/lengths

Prints a Markdown table of perplexities by length. They are means over the seeds. The last column has the largest
relative deviation of a seed from the mean if it exceeds 1 %. The models are those of
`halflife sweep --config launch/sweeps/lengths.textproto`. The sweep and the evaluations continue where they were
stopped.
"""

import argparse
import json
import pathlib
import statistics
import sys

REPO = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO / "bench/zoo"))
import zoo  # for write_text() and run()

LENGTHS = [128, 256, 512, 1024, 2048]
PATTERNS = ["as_trained", "window", "blocks", "streaming_llm"]
# Position method of training -> inference methods of its softmax layers.
METHODS = {
    "rope": [*PATTERNS, "lm_infinite", "rerope", "interpolated", "ntk_aware", "yarn", "info_scale",
             "yarn+info_scale"],
    "xpos": ["as_trained", "window", "blocks"],
    "alibi": ["as_trained", "window", "blocks", "info_scale"],
    "cos_info": ["as_trained", "window", "blocks", "rerope", "yarn"],
}

# Methods whose attention is reported. Only a few windows are used, because whole blocks of scores are computed.
ATTENTION_METHODS = {
    "rope": ["as_trained", "blocks", "info_scale"],
    "xpos": ["as_trained", "blocks"],
    "alibi": ["as_trained"],
    "cos_info": ["as_trained", "blocks"],
}
ATTENTION_WINDOWS = 4


def evaluate(args: argparse.Namespace, label: str, seed: int, attention: bool = False) -> dict:
    """Returns {method: {length: row}}. All methods of a run are in one file."""
    folder = args.out / "runs" / f"positions={label},seed={seed}"
    table = folder / ("attention.json" if attention else "lengths.json")
    methods = ATTENTION_METHODS[label] if attention else METHODS.get(label, ["as_trained"])
    windows = ATTENTION_WINDOWS if attention else args.windows
    zoo.run([args.program, "eval", "--model", str(folder), "--data", str(args.out / "datasets/king_james"),
             "--lengths", ",".join(map(str, LENGTHS)), "--windows", str(windows), "--method", ",".join(methods),
             "--out", str(table), *(["--attention"] if attention else [])])
    rows: dict = {}
    for row in json.loads(table.read_text())["rows"]:
        rows.setdefault(row["method"], {})[row["length"]] = row
    return rows


def by_most_queries(row: dict) -> dict:
    """Returns the statistics of the range of key counts that has most queries. Without an attention pattern, this is
    half a row to a whole row."""
    return max(row["attention"]["by_keys"], key=lambda by: by["queries"])


def mean(values: list[float]) -> float:
    return statistics.fmean(values)


def line(label: str, method: str, of_seeds: list[dict]) -> str:
    cells, spread = [], 0.0
    for length in LENGTHS:
        values = [rows[method][length]["perplexity"] for rows in of_seeds]
        cells.append(f"{mean(values):.3f}")
        spread = max(spread, *(abs(value / mean(values) - 1) for value in values))
    note = f"± {spread:.0%}" if spread > 0.01 else ""
    return f"| {label} | {method} | " + " | ".join(cells) + f" | {note} |"


def attention_line(label: str, method: str, of_seeds: list[dict]) -> str:
    def at(length: int, key: str) -> float:
        rows = [seed[method][length] for seed in of_seeds]
        if key == "resolution":
            return mean([row["attention"]["resolution"] for row in rows])
        return mean([by_most_queries(row)[key] for row in rows])

    ends = (LENGTHS[0], LENGTHS[-1])
    cells = [f"{at(length, 'resolution'):.4f}" for length in ends]
    cells += [f"{at(length, 'entropy'):.2f}" for length in ends]
    cells += [f"{at(length, 'largest'):.2f}" for length in ends]
    return f"| {label} | {method} | " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--program", default=str(REPO / "build/cpu/src/cli/halflife"))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--windows", type=int, default=32, help="number of windows of the longest length (default: 32)")
    args = parser.parse_args()
    args.out = args.out.absolute()
    args.program = str(pathlib.Path(args.program).absolute())
    zoo.write_text()
    zoo.run([args.program, "sweep", "--config", "launch/sweeps/lengths.textproto", "--out", str(args.out),
             "--jobs", str(args.jobs)])
    labels = sorted({p.name.split("=")[1].split(",")[0] for p in (args.out / "runs").glob("positions=*")},
                    key=lambda label: (list(METHODS) + [label]).index(label))
    results = {label: [evaluate(args, label, seed) for seed in (1, 2)] for label in labels}
    print("| trained with | evaluated | " + " | ".join(f"{n:,}" for n in LENGTHS) + " | seeds |")
    print("|---" * (len(LENGTHS) + 3) + "|")
    for label, of_seeds in results.items():
        for method in METHODS.get(label, ["as_trained"]):
            print(line(label, method, of_seeds))
    print(f"\n| trained with | evaluated | resolution at {LENGTHS[0]} | at {LENGTHS[-1]:,} | entropy, nats, "
          f"at {LENGTHS[0]} | at {LENGTHS[-1]:,} | largest weight at {LENGTHS[0]} | at {LENGTHS[-1]:,} |")
    print("|---" * 8 + "|")
    for label, methods in ATTENTION_METHODS.items():
        of_seeds = [evaluate(args, label, seed, attention=True) for seed in (1, 2)]
        for method in methods:
            print(attention_line(label, method, of_seeds))


if __name__ == "__main__":
    main()
