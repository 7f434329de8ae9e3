"""Compares two ranks of one thread with one rank of two threads, for the same global batch. Prints JSON.

    python3 bench/ranks/ranks_vs_threads.py --data quickstart/dataset-XXXX --mixer gla --pairs 3

Runs `halflife train` alternately, --pairs times each, in fresh folders, and reads metrics.jsonl. The ratio compares
the medians of tokens/s; above 1 means that two ranks are faster. Also reports the share of a step that waits for data,
and the communication that backward did not hide.
"""

import json

from training import compare, model_parser, model_settings, train


def main() -> None:
    options = model_parser(__doc__, layers=6, batch=8).parse_args()
    settings = {
        **model_settings(options),
        "train.global_batch": options.batch,
        "train.micro_batch": options.batch // 2,
    }
    sides = {
        "ranks": lambda: train(options.binary, ranks=2, threads=1, settings=settings),
        "threads": lambda: train(options.binary, ranks=1, threads=2, settings=settings),
    }
    summary = compare(sides, options.pairs)
    summary["ratio"] = summary["ranks"]["tokens_per_s"] / summary["threads"]["tokens_per_s"]
    print(json.dumps({"mixer": options.mixer, "layers": options.layers, "dim": options.dim, **summary}, indent=2))


if __name__ == "__main__":
    main()
