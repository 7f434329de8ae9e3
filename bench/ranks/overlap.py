"""Measures how much of the time of gradient sums is hidden by overlap on a slow network. Prints JSON. Needs root to
limit the bandwidth.

    python3 bench/ranks/overlap.py --data quickstart/dataset-XXXX --pairs 3

Two ranks use TCP over the loopback of a separate network namespace. Its bandwidth (`tc`, a token bucket) is chosen so
that the sums of a step take about --share of its compute. With overlap, buckets are sent while backward runs. Without
it, one bucket has all gradients and is sent when backward ends. `hidden` is the share of the transfer time that a step
does not wait for, and `speedup` is the ratio of the medians of step times. `bf16_speedup` compares gradients in bf16
(parallel.grad_reduce) with fp32, both with overlap.
"""

import json
import os
import shutil
import sys

from training import compare, model_parser, model_settings, train

TCP = {"OMPI_MCA_btl": "tcp,self", "OMPI_MCA_btl_tcp_if_include": "lo", "OMPI_MCA_oob_tcp_if_include": "lo"}


def namespace(bits_per_s: float) -> tuple:
    """Returns a command prefix that runs a command with this loopback bandwidth. 0: unlimited."""
    shape = f"tc qdisc add dev lo root tbf rate {bits_per_s:.0f}bit burst 256kb limit 64mb &&" if bits_per_s else ""
    return ("unshare", "-n", "bash", "-c", f'ip link set lo up && {shape} exec "$@"', "-")


def require_network_namespaces() -> None:
    """Exits if this process cannot create a network namespace and limit its bandwidth."""
    if os.geteuid() != 0 or shutil.which("tc") is None:
        sys.exit("network namespaces need root and `tc`. Run this as root, and install tc (Debian: iproute2).")


def main() -> None:
    parser = model_parser(__doc__, layers=8, batch=4)  # rows of 512 tokens per rank
    parser.set_defaults(steps=12)
    parser.add_argument("--share", type=float, default=0.5, help="time of the sums / compute time (default: 0.5)")
    options = parser.parse_args()
    require_network_namespaces()
    os.environ.update(TCP)
    one_bucket = 1 << 40

    def run(bits_per_s: float, first_bucket: int, bucket: int, grad_reduce: str = "fp32") -> dict:
        settings = {
            **model_settings(options),
            "train.global_batch": 2 * options.batch,
            "train.micro_batch": options.batch,
            "parallel.first_bucket_bytes": first_bucket,
            "parallel.bucket_bytes": bucket,
            "parallel.grad_reduce": grad_reduce,
            "log.tensorboard": "false",
        }
        return train(options.binary, ranks=2, threads=1, settings=settings, prefix=namespace(bits_per_s))

    free = run(0, one_bucket, one_bucket)
    compute_ms = free["step_ms"] - free["exposed_grad_ms"]
    # A run with a trial bandwidth measures the bits that a step sends. Time is inversely proportional to bandwidth.
    trial = 1e9
    slow = run(trial, one_bucket, one_bucket)
    bits_per_s = trial * slow["exposed_grad_ms"] / (options.share * compute_ms)
    sides = {
        "overlap": lambda: run(bits_per_s, 1 << 20, 2 << 20),
        "overlap, bf16": lambda: run(bits_per_s, 1 << 20, 2 << 20, "bf16"),
        "one bucket": lambda: run(bits_per_s, one_bucket, one_bucket),
    }
    summary = compare(sides, options.pairs)
    summary["bandwidth_mbit_per_s"] = bits_per_s / 1e6
    summary["compute_ms"] = compute_ms
    summary["hidden"] = 1 - summary["overlap"]["exposed_grad_ms"] / summary["one bucket"]["exposed_grad_ms"]
    summary["speedup"] = summary["one bucket"]["step_ms"] / summary["overlap"]["step_ms"]
    summary["bf16_speedup"] = summary["overlap"]["step_ms"] / summary["overlap, bf16"]["step_ms"]
    print(json.dumps(summary, indent=2))


if __name__ == "__main__":
    main()
