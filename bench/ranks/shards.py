"""Measures ZeRO's shard groups and the prefetch of stage 3 on slow networks. Prints JSON. Needs root to limit the
bandwidth.

    python3 bench/ranks/shards.py --data quickstart/dataset-XXXX --pairs 3

`groups`: four ranks in two pairs, as on two nodes. Each rank has its own address in a network namespace. Its bandwidth
within the pair is limited to --mbit (`tc`, hierarchical token buckets), and to the other pair to a quarter of that.
ZeRO stage 1 with one shard group of four ranks ("flat") is compared with two shard groups of two ranks ("pairs").
`speedup` is the ratio of the medians of step times.

`prefetch`: two ranks at ZeRO stage 3 on a loopback whose bandwidth makes gathers without prefetch take about --share of
a step's compute. `hidden` is the share of the waiting for weights that a prefetch of one layer saves.
"""

import json
import os
import pathlib
import tempfile

from overlap import TCP, namespace, require_network_namespaces
from training import compare, model_parser, model_settings, train

NUM_RANKS, PAIR = 4, 2
# Starts a rank whose sockets use the interface r<rank>.
AS_RANK = """#!/bin/bash
export OMPI_MCA_btl=tcp,self OMPI_MCA_btl_tcp_if_include=r$OMPI_COMM_WORLD_RANK
exec {binary} "$@"
"""


def pairs_of_ranks(mbit: float) -> tuple:
    """Returns a command prefix that runs a command in a namespace with an address and two bandwidths for each rank."""
    shape = ["ip link set lo up", "tc qdisc add dev lo root handle 1: htb default 99"]
    shape += ["tc class add dev lo parent 1: classid 1:99 htb rate 40gbit"]
    for rank in range(NUM_RANKS):
        node = rank // PAIR
        address = f"10.{node}.0.{rank + 1}"
        shape += [f"ip link add r{rank} type veth peer name peer{rank}", f"ip addr add {address}/8 dev r{rank}"]
        shape += [f"ip link set peer{rank} up", f"ip link set r{rank} up"]
        for other in range(NUM_RANKS // PAIR):
            link = 10 * (rank + 1) + other
            rate = mbit if other == node else mbit / 4
            shape += [
                f"tc class add dev lo parent 1: classid 1:{link} htb rate {rate:.0f}mbit burst 256kb cburst 256kb",
                f"tc filter add dev lo parent 1: protocol ip u32 match ip src {address}/32"
                f" match ip dst 10.{other}.0.0/16 flowid 1:{link}",
            ]
    return ("unshare", "-n", "bash", "-ec", " && ".join(shape) + ' && exec "$@"', "-")


def compare_groups(options) -> dict:
    """Compares one shard group with two. The steps have few tokens, so they mostly wait for other ranks."""
    settings = {
        **model_settings(options),
        "data.seq_len": 64,
        "train.global_batch": NUM_RANKS,
        "train.micro_batch": 1,
        "parallel.zero_stage": 1,
        "parallel.first_bucket_bytes": 1 << 20,
        "parallel.bucket_bytes": 2 << 20,
        "log.tensorboard": "false",
    }
    with tempfile.TemporaryDirectory() as folder:
        as_rank = pathlib.Path(folder) / "as_rank"
        as_rank.write_text(AS_RANK.format(binary=options.binary.resolve()))
        as_rank.chmod(0o755)

        def run(shard: int) -> dict:
            network = pairs_of_ranks(options.mbit)
            return train(as_rank, NUM_RANKS, 1, {**settings, "parallel.shard": shard}, prefix=network)

        summary = compare({"flat": lambda: run(NUM_RANKS), "pairs": lambda: run(PAIR)}, options.pairs)
    summary["speedup"] = summary["flat"]["step_ms"] / summary["pairs"]["step_ms"]
    return summary


def compare_prefetch(options) -> dict:
    settings = {
        **model_settings(options),
        "train.global_batch": 2 * options.batch,
        "train.micro_batch": options.batch,
        "parallel.zero_stage": 3,
        "log.tensorboard": "false",
    }

    def run(bits_per_s: float, prefetch: int) -> dict:
        return train(options.binary.resolve(), 2, 1, {**settings, "parallel.prefetch": prefetch}, prefix=namespace(bits_per_s))

    free = run(0, 0)
    compute_ms = free["step_ms"] - free["step_ms"] * free["exposed_comm_share"]
    # A run with a trial bandwidth measures the transfer time, which is inversely proportional to the bandwidth.
    trial = 1e9
    bits_per_s = trial * run(trial, 0)["exposed_param_ms"] / (options.share * compute_ms)
    summary = compare({"prefetch": lambda: run(bits_per_s, 1), "none": lambda: run(bits_per_s, 0)}, options.pairs)
    summary["bandwidth_mbit_per_s"] = bits_per_s / 1e6
    summary["compute_ms"] = compute_ms
    summary["hidden"] = 1 - summary["prefetch"]["exposed_param_ms"] / summary["none"]["exposed_param_ms"]
    return summary


def main() -> None:
    parser = model_parser(__doc__, layers=8, batch=4)
    parser.set_defaults(steps=8)
    parser.add_argument("--mbit", type=float, default=400, help="Mbit/s of a rank within its pair (default: 400)")
    parser.add_argument("--share", type=float, default=0.25, help="time of the gathers / compute time (default: 0.25)")
    options = parser.parse_args()
    require_network_namespaces()
    load = os.getloadavg()[0]
    groups = compare_groups(options)
    os.environ.update(TCP)
    summary = {"groups": groups, "prefetch": compare_prefetch(options)}
    summary["load_before"] = load
    print(json.dumps(summary, indent=2))


if __name__ == "__main__":
    main()
