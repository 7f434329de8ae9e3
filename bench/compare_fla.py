#!/usr/bin/env python3
"""Decay attention against flash-linear-attention on the same GPU: forward, forward + backward, bf16.

    pip install torch==2.11.0 flash-linear-attention==0.6.0
    cmake --build build/cuda --target bench_decay_attention
    python3 bench/compare_fla.py --json fla.json --markdown fla.md
    python3 bench/compare_fla.py --only per_head --rounds 3 --samples 20 --json fla.json --resume

Per shape and round bench_decay_attention runs as a process of its own, then fla's operations here, the
order turned each round; times are medians over the rounds of medians between CUDA events. fla counts
with the fastest of its operations for that kind of decay. Before anything is timed, fla is compared
with the recurrence in fp64 on a small shape; bench_decay_attention does so with its own oracle and
reports the error. The file of --json is written anew after each shape; --resume keeps its rows. Exit code 77 and a line "SKIPPED: ..." where there is no GPU, no fla or no binary.
"""

import argparse
import dataclasses
import importlib
import inspect
import json
import os
import pathlib
import statistics
import subprocess
import sys

REPO = pathlib.Path(__file__).resolve().parents[1]
MAX_ERROR = 1e-2  # relative RMS: bf16 operands and results, 2^-9 each, in three products in a row
LONGEST_RECURRENT = 2048  # beyond, one step a token is no rival
WARM_UPS = 10


@dataclasses.dataclass(frozen=True)
class Shape:
    batch: int
    seq_len: int
    heads: int
    dim: int  # K, and V where dim_v is 0
    dim_v: int = 0
    qk_heads: int = 0  # of q and k, shared by `heads` of v; 0: as many

    def __str__(self) -> str:
        dims = f"K{self.dim} V{self.dim_v}" if self.dim_v else f"D{self.dim}"
        groups = f" {self.qk_heads} of q and k" if self.qk_heads else ""
        return f"B{self.batch} T{self.seq_len} H{self.heads} {dims}{groups}"

    @property
    def values(self) -> int:
        return self.dim_v or self.dim


SHAPES = (
    Shape(2, 16384, 16, 128),
    Shape(1, 8192, 96, 128),
    Shape(8, 2048, 32, 64),
    Shape(1, 131072, 16, 128),
    Shape(8, 16384, 32, 128),
    Shape(4, 2048, 16, 128),
    Shape(4, 4096, 64, 128),
    Shape(8, 1024, 8, 64),
    Shape(8, 2048, 32, 256),
    Shape(32, 512, 12, 64),
    Shape(8, 2048, 8, 128, dim_v=256),  # a layer of gla_1.3b
    Shape(8, 2048, 4, 128, dim_v=512),
)
# Mamba-2: q and k (its C and B) are one for all heads.
SHAPES_OF_KIND = {"per_token": (Shape(4, 4096, 64, 128, dim_v=64, qk_heads=1),)}
SMALL = Shape(1, 200, 2, 64)


@dataclasses.dataclass(frozen=True)
class Operation:
    """One function of fla. `decay` is its name for log_decay; None: it makes RetNet's constants itself."""

    module: str
    name: str
    decay: str | None

    def load(self):
        return getattr(importlib.import_module(self.module), self.name)

    def parameters(self) -> list[str]:
        """What it is called with."""
        return ["q", "k", "v", "scale"] + ([self.decay] if self.decay else [])

    def suits(self, shape: Shape) -> bool:
        return not self.name.startswith("fused_recurrent") or shape.seq_len <= LONGEST_RECURRENT


# Kind of decay, by bench_decay_attention's name for it.
KINDS = {
    "per_head": (
        Operation("fla.ops.retention", "chunk_retention", None),
        Operation("fla.ops.retention", "fused_recurrent_retention", None),
    ),
    "per_token": (
        Operation("fla.ops.simple_gla", "chunk_simple_gla", "g"),
        Operation("fla.ops.simple_gla", "fused_recurrent_simple_gla", "g"),
    ),
    "per_channel": (
        Operation("fla.ops.gla", "chunk_gla", "g"),
        Operation("fla.ops.gla", "fused_recurrent_gla", "gk"),
    ),
}


# ---- statistics and tables: no GPU needed ----


def missing_parameters(function, wanted: list[str]) -> list[str]:
    known = inspect.signature(function).parameters
    return [name for name in wanted if name not in known]


def fastest(times: dict[str, list[float]]) -> tuple[str, float]:
    """The name with the least median, and that median."""
    medians = {name: statistics.median(values) for name, values in times.items()}
    name = min(medians, key=medians.get)
    return name, medians[name]


def summarise(kind: str, shape: Shape, ours: list[dict], fla: dict[str, dict[str, list[float]]]) -> dict:
    """`ours`: JSON of bench_decay_attention, a round each; `fla`: pass -> operation -> ms, a round each."""
    row = {"kind": kind, "shape": str(shape), **dataclasses.asdict(shape)}
    row["max_error"] = max(result["max_error"] for result in ours)
    for name in ("forward", "forward_backward"):
        own = statistics.median(result[name]["ms"] for result in ours)
        rival, rival_ms = fastest(fla[name])
        row[name] = {
            "halflife_ms": own,
            "fla_ms": rival_ms,
            "fla_operation": rival,
            "speed": rival_ms / own,
            "share_of_memory_roofline": statistics.median(
                result[name]["share_of_memory_roofline"] for result in ours
            ),
        }
    return row


def markdown(rows: list[dict], title: str) -> str:
    lines = [
        title,
        "",
        "| decay | shape | fla, ms: forward / both | halflife, ms: forward / both "
        "| speed: forward / both | share of memory roofline: forward / both |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = [row["kind"], row["shape"]]
        passes = (row["forward"], row["forward_backward"])
        for key, form in (("fla_ms", "{:.3f}"), ("halflife_ms", "{:.3f}"), ("speed", "{:.2f} x")):
            cells.append(" / ".join(form.format(one[key]) for one in passes))
        cells.append(" / ".join(f"{one['share_of_memory_roofline']:.0%}" for one in passes))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


# ---- results so far ----


def write_json(path: pathlib.Path, result: dict) -> None:
    """All of it or none."""
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(json.dumps(result, indent=2) + "\n")
    os.replace(fresh, path)


def rows_so_far(path: pathlib.Path, device: str, torch_version: str) -> list[dict]:
    """Of an earlier call that did not come to its end; none where there was none."""
    if not path.exists():
        return []
    earlier = json.loads(path.read_text())
    if (earlier["device"], earlier["torch"]) != (device, torch_version):
        sys.exit(
            f"{path} is of {earlier['device']}, torch {earlier['torch']}, and here is {device}, "
            f"torch {torch_version}; another --json would work"
        )
    return earlier["rows"]


# ---- the GPU's part ----


def skip(reason: str):
    print(f"SKIPPED: {reason}")
    sys.exit(77)


def shapes_of(kind: str) -> tuple[Shape, ...]:
    return SHAPES + SHAPES_OF_KIND.get(kind, ())


def make_inputs(torch, kind: str, shape: Shape) -> dict:
    """For fla, which shares no heads: q and k come repeated, and neither that nor summing their
    gradients is in its time."""
    sizes = (shape.batch, shape.seq_len, shape.heads)
    rows = lambda width: torch.randn(*sizes, width, device="cuda", dtype=torch.bfloat16)
    widths = {"q": shape.dim, "k": shape.dim, "v": shape.values}
    inputs = {name: rows(width).requires_grad_() for name, width in widths.items()}
    if kind != "per_head":
        extra = (shape.dim,) if kind == "per_channel" else ()
        inputs["decay"] = (torch.rand(*sizes, *extra, device="cuda") * -0.2).requires_grad_()
    inputs["dout"] = rows(shape.values)
    return inputs


def call(operation: Operation, inputs: dict):
    arguments = {name: inputs[name] for name in ("q", "k", "v")}
    if operation.decay:
        arguments[operation.decay] = inputs["decay"]
    return operation.load()(scale=inputs["q"].shape[-1] ** -0.5, **arguments)[0]


def leaves(inputs: dict) -> list:
    return [inputs[name] for name in ("q", "k", "v", "decay") if name in inputs]


def recurrence(torch, inputs: dict):
    """o_t = scale q_t S_t, S_t = exp(decay_t) S_{t-1} + k_t^T v_t, in fp64."""
    q, k, v = (inputs[name].double() for name in ("q", "k", "v"))
    if "decay" in inputs:
        decay = inputs["decay"].double()
    else:
        heads = torch.arange(q.shape[2], device=q.device, dtype=torch.float64)
        decay = torch.log1p(-(2.0 ** (-5 - heads))).expand(q.shape[:3])
    decay = decay.exp().reshape(*q.shape[:3], -1, 1)  # [B, T, H, K or 1, 1]
    state = torch.zeros(q.shape[0], q.shape[2], q.shape[3], v.shape[3], device=q.device).double()
    outs = []
    for t in range(q.shape[1]):
        state = decay[:, t] * state + k[:, t].unsqueeze(-1) * v[:, t].unsqueeze(-2)
        outs.append((q[:, t].unsqueeze(-1) * state).sum(-2) * q.shape[-1] ** -0.5)
    return torch.stack(outs, 1)


def worst_error(torch, kind: str, operation: Operation) -> float:
    inputs = make_inputs(torch, kind, SMALL)
    want = recurrence(torch, inputs)
    got = call(operation, inputs)
    wants = [want, *torch.autograd.grad(want, leaves(inputs), inputs["dout"].double())]
    gots = [got, *torch.autograd.grad(got, leaves(inputs), inputs["dout"])]
    pairs = zip(gots, wants)
    return max(float((g.double() - w).norm() / w.double().norm()) for g, w in pairs)


class Timer:
    """Of the device's work alone, as bench/support/measure.h times halflife's: a kernel that spins goes ahead, so that
    Python has enqueued all of a call when the device begins it, and spins twice as long after a call for which it was
    too short."""

    LONGEST_MS = 50
    CYCLES_A_MS = 2e6  # at 2 GHz; longer at a lower clock

    def __init__(self, torch):
        self.torch = torch
        self.spin_ms = 0.1

    def ms(self, run) -> float:
        before, after = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.torch.cuda._sleep(int(self.spin_ms * self.CYCLES_A_MS))
        before.record()
        run()
        after.record()
        if before.query():
            self.spin_ms = min(2 * self.spin_ms, self.LONGEST_MS)
        after.synchronize()
        return before.elapsed_time(after)


def time_fla(torch, kind: str, operation: Operation, shape: Shape, samples: int) -> dict[str, float]:
    # as many problems as leave the cache between two visits of one
    cache = torch.cuda.get_device_properties(0).L2_cache_size
    one = 4 * shape.batch * shape.seq_len * shape.heads * (shape.dim + shape.values)
    problems = [make_inputs(torch, kind, shape) for _ in range(max(1, min(64, -(-2 * cache // one))))]
    times = {"forward": [], "forward_backward": []}
    timers = {name: Timer(torch) for name in times}
    for sample in range(WARM_UPS + samples):
        inputs = problems[sample % len(problems)]

        def forward():
            with torch.no_grad():
                call(operation, inputs)

        def both():
            torch.autograd.grad(call(operation, inputs), leaves(inputs), inputs["dout"])

        for name, run in (("forward", forward), ("forward_backward", both)):
            ms = timers[name].ms(run)
            if sample >= WARM_UPS:
                times[name].append(ms)
    return {name: statistics.median(values) for name, values in times.items()}


def time_ours(binary: pathlib.Path, kind: str, shape: Shape, samples: int) -> dict:
    command = [binary, "--device", "cuda", "--kind", kind, "--rounds", samples]
    command += ["--batch", shape.batch, "--seq-len", shape.seq_len]
    command += ["--heads", shape.heads, "--dim", shape.dim]
    command += ["--dim-v", shape.dim_v, "--qk-heads", shape.qk_heads]
    done = subprocess.run([str(x) for x in command], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"exit {done.returncode} of: {' '.join(map(str, command))}")
    return json.loads(done.stdout)


def compare(torch, binary: pathlib.Path, kind: str, shape: Shape, options) -> dict:
    ours: list[dict] = []
    fla: dict[str, dict[str, list[float]]] = {"forward": {}, "forward_backward": {}}

    def run_fla():
        for operation in KINDS[kind]:
            if not operation.suits(shape):
                continue
            for name, ms in time_fla(torch, kind, operation, shape, options.samples).items():
                fla[name].setdefault(operation.name, []).append(ms)
        torch.cuda.empty_cache()  # the memory is the other process's now

    def run_ours():
        ours.append(time_ours(binary, kind, shape, options.samples))

    for turn in range(options.rounds):
        for run in (run_ours, run_fla) if turn % 2 == 0 else (run_fla, run_ours):
            run()
    return summarise(kind, shape, ours, fla)


def load_torch():
    try:
        import torch
    except ImportError as error:
        skip(f"no torch here ({error}); pip install torch==2.11.0 would bring it")
    if not torch.cuda.is_available():
        skip("no GPU was found")
    for operation in sum(KINDS.values(), ()):
        try:
            missing = missing_parameters(operation.load(), operation.parameters())
        except ImportError as error:
            skip(f"no fla here ({error}); pip install flash-linear-attention==0.6.0 would bring it")
        if missing:
            sys.exit(f"{operation.name} of this fla takes no {', '.join(missing)}; 0.6.0 does")
    return torch


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--binary", type=pathlib.Path,
                        default=REPO / "build/cuda/bench/bench_decay_attention")
    parser.add_argument("--only", choices=KINDS, action="append", help="this kind; may be repeated")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--samples", type=int, default=50, help="timed calls of a round")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--resume", action="store_true", help="keep the rows that --json has")
    parser.add_argument("--markdown", type=pathlib.Path)
    options = parser.parse_args()
    if options.resume and not options.json:
        parser.error("--resume wants --json, the file to go on with")
    torch = load_torch()
    if not options.binary.exists():
        skip(f"no {options.binary}; cmake --build build/cuda --target bench_decay_attention makes it")
    kinds = options.only or list(KINDS)
    errors = {}
    for kind in kinds:
        for operation in KINDS[kind]:
            errors[operation.name] = worst_error(torch, kind, operation)
            if errors[operation.name] > MAX_ERROR:
                sys.exit(f"{operation.name} is off the recurrence by {errors[operation.name]:.1e}")
    device = torch.cuda.get_device_name(0)
    result = {"device": device, "torch": torch.__version__, "fla_errors": errors, "rows": []}
    if options.resume:
        result["rows"] = rows_so_far(options.json, device, torch.__version__)
    rows = result["rows"]
    for kind in kinds:
        for shape in shapes_of(kind):
            if any((row["kind"], row["shape"]) == (kind, str(shape)) for row in rows):
                continue
            rows.append(compare(torch, options.binary, kind, shape, options))
            print(json.dumps(rows[-1]), file=sys.stderr)
            if options.json:
                write_json(options.json, result)
    table = markdown(rows, f"{device}, torch {torch.__version__}, bf16, medians:")
    print(table)
    if options.markdown:
        options.markdown.write_text(table)


if __name__ == "__main__":
    main()
