"""Measures how fast a checkpoint is written, compared with other writers of as many bytes on the same disk, and how
long a save blocks training. Prints JSON.

    .venv-compare/bin/python bench/checkpoint/save.py --data quickstart/dataset-XXXX --rounds 5

The model has 100 M parameters: 1.2 GB of weights and AdamW's moments. In each round `halflife train` saves once after
its last step and three times in the background during training. Then safetensors, torch.save and
torch.distributed.checkpoint write arrays of as many bytes, and `dd` as many zeros. All end with fsync. `halflife` also
reads a sample back, and afterwards deletes the old step. Each writer is the first one in some rounds. Figures are
medians over rounds, and ratios are those of medians. `blocked_share` is the time for which a background save blocks
training, divided by the time of a save that training waits for.
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp

REPO = pathlib.Path(__file__).resolve().parents[2]
SETTINGS = {
    "model.model_dim": 768,
    "model.num_layers": 14,
    "model.channel_mixer.swiglu.width": 2048,
    "data.seq_len": 256,
    "train.global_batch": 1,
    "train.micro_batch": 1,
    "train.steps": 9,
    "train.threads": 2,
    "eval.windows": 1,
    "eval.every": 0,
    "ckpt.every": 2,
    "ckpt.keep_last": 2,
    "log.tensorboard": "false",
}


def fsync(path: pathlib.Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def train(options: argparse.Namespace, folder: pathlib.Path) -> tuple:
    """Returns the save that training waits for and the background saves, as lines of metrics.jsonl."""
    command = [str(options.binary), "train", "--config", str(REPO / "launch/recipes/quickstart.textproto")]
    command += ["--run", str(folder / "run"), "--set", f"data.path={options.data}"]
    command += [word for item in SETTINGS.items() for word in ("--set", "=".join(map(str, item)))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"exit {done.returncode} of {' '.join(command)}\n{done.stderr}")
    saves = [json.loads(line) for line in open(folder / "run/metrics.jsonl") if "save_bytes" in line]
    return saves[-1], saves[:-1]


def save_safetensors(state: dict, folder: pathlib.Path) -> None:
    safetensors.torch.save_file(state, folder / "a.safetensors")
    fsync(folder / "a.safetensors")


def save_torch(state: dict, folder: pathlib.Path) -> None:
    torch.save(state, folder / "a.pt")
    fsync(folder / "a.pt")


def save_dcp(state: dict, folder: pathlib.Path) -> None:
    dcp.save(state, storage_writer=dcp.FileSystemWriter(folder / "dcp", sync_files=True), no_dist=True)


def dd(state: dict, folder: pathlib.Path) -> None:
    count = sum(tensor.nbytes for tensor in state.values()) >> 22
    arguments = ["if=/dev/zero", f"of={folder / 'zeros'}", "bs=4M", f"count={count}", "oflag=direct", "conv=fsync"]
    subprocess.run(["dd", *arguments], check=True, capture_output=True)


WRITERS = {"safetensors": save_safetensors, "torch.save": save_torch, "dcp": save_dcp, "dd": dd}


def timed(write, folder: pathlib.Path, num_bytes: int) -> float:
    """Returns the speed of a writer in MB/s."""
    state = {f"tensor{i}": torch.randn(num_bytes // 4 // 64) for i in range(64)}
    start = time.monotonic()
    write(state, folder)
    return num_bytes / 1e6 / (time.monotonic() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=pathlib.Path, default=REPO / "build/cpu/src/cli/halflife")
    parser.add_argument("--data", required=True)
    parser.add_argument("--dir", type=pathlib.Path, help="folder on the disk to measure (default: for temporary files)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of all writers (default: 5)")
    options = parser.parse_args()

    rates, blocked, waited, sizes = {}, [], [], []
    for number in range(options.rounds):
        with tempfile.TemporaryDirectory(dir=options.dir) as name:
            folder = pathlib.Path(name)

            def save_halflife() -> float:
                foreground, background = train(options, folder)
                shutil.rmtree(folder / "run")
                waited.append(foreground["save_ms"])
                blocked.extend(save["save_blocked_ms"] for save in background)
                sizes.append(foreground["save_bytes"])
                return foreground["save_mb_per_s"]

            # The disk's speed drifts, so each round begins with another writer. The first round begins with halflife,
            # because the other writers need the size of its checkpoint.
            sides = ["halflife", *WRITERS]
            first = number % len(sides)
            once = {}
            for side in sides[first:] + sides[:first]:
                once[side] = save_halflife() if side == "halflife" else timed(WRITERS[side], folder, sizes[0])
            for side, rate in once.items():
                rates.setdefault(side, []).append(rate)
            print(f"round {number + 1}: {once}, blocked {[round(ms, 1) for ms in blocked[-3:]]} ms", file=sys.stderr)
    median = {writer: statistics.median(values) for writer, values in rates.items()}
    print(
        json.dumps(
            {
                "bytes": sizes[0],
                "mb_per_s": median,
                "ratio": {writer: median["halflife"] / median[writer] for writer in median},
                "save_ms": statistics.median(waited),
                "blocked_ms": statistics.median(blocked),
                "blocked_share": statistics.median(blocked) / statistics.median(waited),
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
