"""Measures the overhead of MPI with one rank: compares `halflife train` without and with `mpirun -n 1`. Prints JSON.

    python3 bench/ranks/world_of_one.py --data quickstart/dataset-XXXX --pairs 5

Without mpirun, MPI is not started. Under mpirun, all sums, barriers and exchanges run in a world of one rank. `slower`
is the relative increase of the median step time. `exposed_comm_share` is the share of a step that waits for other
ranks.
"""

import json

from training import compare, model_parser, model_settings, train, under_mpirun


def main() -> None:
    options = model_parser(__doc__, layers=4, batch=4).parse_args()
    settings = {
        **model_settings(options),
        "train.global_batch": options.batch,
        "train.micro_batch": options.batch,
        "log.tensorboard": "false",
    }

    def run(*prefix: str) -> dict:
        return train(options.binary, ranks=1, threads=1, settings=settings, prefix=prefix)

    sides = {"alone": run, "mpirun -n 1": lambda: run(*under_mpirun(ranks=1, threads=1))}
    results = compare(sides, options.pairs)
    slower = results["mpirun -n 1"]["step_ms"] / results["alone"]["step_ms"] - 1
    print(json.dumps({"slower": slower, **results}, indent=2))


if __name__ == "__main__":
    main()
