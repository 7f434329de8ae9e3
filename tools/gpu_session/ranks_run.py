#!/usr/bin/env python3
"""Trains on 2 and 4 ranks, which share one GPU over NCCL, and compares the losses with those of one rank. Prints
one line of JSON after each mesh, with the results so far, so that a run that is killed keeps them.

    python3 tools/gpu_session/ranks_run.py build/cuda/src/cli/halflife --device cuda
    python3 tools/gpu_session/ranks_run.py build/cpu/src/cli/halflife --device cpu --small

Needs mpirun. The ranks share one GPU, so their times are not meaningful. Exit codes: 0 all losses are equal within
TOLERANCE, 1 they differ or a run failed or hung, 77 there is no mpirun or no GPU.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import shutil
import sys
import tempfile

import machine
from whole_run import REPO, SMALL, Failed, run, write_text

STEPS = 5
# Relative, of the loss of each step. The ranks compute the same rows, and only the order of sums differs.
TOLERANCE = 1e-3
SHARE = "HALFLIFE_SHARE_GPU"
HANG_CODES = (None, 71, 72)  # None: killed after LONGEST; others: ended by the watchdog of a rank (core/exit_code.h)
MOST_HANGS = 2  # after this many hangs the remaining meshes are skipped, to limit the time


@dataclasses.dataclass(frozen=True)
class Mesh:
    ranks: int
    zero_stage: int = 0
    shard: int = 0  # 0: all ranks
    sp: int = 1
    grad_reduce: str = "fp32"

    @property
    def name(self) -> str:
        parts = [f"ranks_{self.ranks}", f"zero_{self.zero_stage}"]
        parts += [f"shard_{self.shard}"] * (self.shard > 0) + [f"sp_{self.sp}"] * (self.sp > 1)
        return "_".join([*parts, *[self.grad_reduce] * (self.grad_reduce != "fp32")])

    @property
    def settings(self) -> list[str]:
        shard = [f"parallel.shard={self.shard}"] if self.shard else []
        return [f"parallel.zero_stage={self.zero_stage}", f"parallel.sp={self.sp}",
                f"parallel.grad_reduce={self.grad_reduce}", *shard]


MESHES = (
    *(Mesh(2, stage) for stage in range(4)),
    Mesh(2, sp=2),
    Mesh(2, 1, grad_reduce="ordered"),
    Mesh(4, 1, shard=2),
    Mesh(4, 2, shard=2),
    Mesh(4, 3, shard=2),
    Mesh(4, 3),
    Mesh(4, 1, sp=2),
    Mesh(4, 3, shard=2, sp=2, grad_reduce="ordered"),
)
REPEATED = MESHES[-1]  # Sums in the order of ranks give equal bits in each run.


class Runs:
    def __init__(self, options: argparse.Namespace, folder: pathlib.Path):
        self.program, self.folder, self.device = options.program.resolve(), folder, options.device
        small = (*SMALL, "model.num_layers=3") if options.small else ()
        # This deadline lets a watchdog name a hanging rank before LONGEST is over. The first steps have five times as long.
        deadline = ("comm.timeout_s=15",) if options.device == "cuda" else ()
        sets = ["data.path=data", f"train.device={options.device}", "train.precision=bf16", f"train.steps={STEPS}",
                "train.log_every=1", "train.global_batch=8", "train.micro_batch=2", "eval.every=0", "eval.windows=4",
                *small, *deadline]
        recipe = REPO / "launch/recipes/quickstart.textproto"
        self.words = ["train", "--config", recipe, *(word for one in sets for word in ("--set", one))]

    def prepare(self) -> None:
        write_text(self.folder / "text")
        run([self.program, "prepare", "--input", "text", "--tokenizer", "bytes", "--out", "data"], self.folder)

    def losses(self, name: str, mesh: Mesh, share: str = "1") -> list[float]:
        """Trains, and returns the loss of each step."""
        os.environ |= {SHARE: share, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]
        launch = ["mpirun", "-n", mesh.ranks, "--oversubscribe", "--bind-to", "none"] if mesh.ranks > 1 else []
        sets = [word for one in mesh.settings for word in ("--set", one)]
        # The first word of a command is not part of the messages of run().
        run(["env", *launch, self.program, *self.words, *sets, "--run", name], self.folder)
        lines = [json.loads(line) for line in (self.folder / name / "metrics.jsonl").read_text().splitlines()]
        return [line["loss"] for line in lines if "loss" in line]

    def is_equal(self, one: str, other: str) -> bool:
        return run([self.program, "ckpt", "diff", one, other], self.folder, good=(0, 1)).returncode == 0

    def refusal(self) -> str:
        """Returns what is wrong with the refusal of two ranks that share a GPU without the setting."""
        try:
            self.losses("refused", Mesh(2), share="0")
        except Failed as failed:
            return "" if SHARE in str(failed) else f"the error for two ranks on one GPU does not name {SHARE}: {failed}"
        return f"two ranks shared a GPU without {SHARE}"


def difference(losses: list[float], expected: list[float]) -> float:
    """Returns the largest relative difference. Infinite if steps are missing."""
    if len(losses) != STEPS or len(expected) != STEPS:
        return float("inf")
    return max(abs(loss / other - 1) for loss, other in zip(losses, expected, strict=True))


def measure(options: argparse.Namespace, folder: pathlib.Path) -> dict:
    runs = Runs(options, folder)
    result = {"device": options.device, "problems": [], "differences": {}}
    try:
        runs.prepare()
        expected = runs.losses("one", Mesh(1))
    except Failed as failed:
        return {**result, "problems": [str(failed)]}
    hangs = 0
    for mesh in MESHES[::3] if options.small else MESHES:
        try:
            off = difference(runs.losses(mesh.name, mesh), expected)
        except Failed as failed:
            result["problems"].append(f"{mesh.name}: {failed}")
            hangs += failed.code in HANG_CODES
            if hangs == MOST_HANGS:
                return result
        else:
            result["differences"][mesh.name] = off
            if not off <= TOLERANCE:
                result["problems"].append(f"{mesh.name}: the losses differ by {off:.1e} from those of one rank")
        print(json.dumps(result), flush=True)
    try:
        for name in ("first", "second"):
            runs.losses(name, REPEATED)
        if not runs.is_equal("first", "second"):
            result["problems"].append(f"{REPEATED.name}: a second run has other bits")
    except Failed as failed:
        result["problems"].append(f"{REPEATED.name}, twice: {failed}")
    if options.device == "cuda" and (problem := runs.refusal()):
        result["problems"].append(problem)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("--device", choices=("cpu", "cuda"), required=True)
    parser.add_argument("--small", action="store_true", help="use a model with three layers and few meshes, for a rehearsal")
    options = parser.parse_args()
    if shutil.which("mpirun") is None:
        print("SKIPPED: mpirun not found (Debian: openmpi-bin)")
        return 77
    if options.device == "cuda" and machine.first_gpu() is None:
        print("SKIPPED: nvidia-smi finds no GPU")
        return 77
    with tempfile.TemporaryDirectory() as scratch:
        result = measure(options, pathlib.Path(scratch))
    print(json.dumps(result))
    for problem in result["problems"]:
        print(problem, file=sys.stderr)
    return 1 if result["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
