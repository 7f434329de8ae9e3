"""Compares ranks that share rows with ranks that have separate rows, at equal tokens per rank. Prints JSON.

    python3 bench/ranks/rows_vs_batch.py --data quickstart/dataset-XXXX --mixer gla rebased --pairs 3

Rows of --seq-len tokens x ranks are shared by all ranks (parallel.sp), or each rank has rows of --seq-len tokens. The
ratio compares the medians of tokens/s. Attention costs more per token in longer rows, mixers with a state do not. For
any number of --layers, a step waits for the scan of one layer, once in each direction.
"""

import argparse
import json
import pathlib

from training import BINARY, compare, train


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=pathlib.Path, default=BINARY)
    parser.add_argument("--data", required=True)
    parser.add_argument("--mixer", nargs="+", default=["gla"])
    parser.add_argument("--layers", type=int, default=4, help="layers (default: 4, as in the quickstart recipe)")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seq-len", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=4, help="rows per micro-batch (default: 4)")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--pairs", type=int, default=3)
    options = parser.parse_args()

    def run(mixer: str, shared: bool) -> dict:
        factor = options.ranks if shared else 1
        settings = {
            "data.path": options.data,
            "model.mixer": mixer,
            "model.num_layers": options.layers,
            "data.seq_len": options.seq_len * factor,
            "train.steps": options.steps,
            "train.micro_batch": options.batch,
            "train.global_batch": options.batch * options.ranks // factor,
            "parallel.sp": factor,
        }
        return train(options.binary, ranks=options.ranks, threads=1, settings=settings)

    results = {}
    for mixer in options.mixer:
        sides = {"rows": lambda: run(mixer, shared=True), "batch": lambda: run(mixer, shared=False)}
        summary = compare(sides, options.pairs)
        summary["ratio"] = summary["rows"]["tokens_per_s"] / summary["batch"]["tokens_per_s"]
        results[mixer] = summary
    shape = {name: getattr(options, name) for name in ("layers", "ranks", "seq_len", "batch")}
    print(json.dumps({**shape, **results}, indent=2))


if __name__ == "__main__":
    main()
