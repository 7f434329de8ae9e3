#!/usr/bin/env python3
"""Compares decay attention, the delta rule and the selective scan with other programs on one GPU, in bf16. Measures the
forward, and the forward and backward together.

    pip install torch==2.11.0 flash-linear-attention==0.6.0
    cmake --build build/cuda --target bench
    python3 bench/compare_fla.py --json fla.json --markdown fla.md
    python3 bench/compare_fla.py --only per_head --rounds 3 --samples 20 --json fla.json --resume
    python3 bench/compare_fla.py --peer flash_qla --only gated_delta_net      # pip install flash-qla==0.1.3

--peer selects the other program: fla (flash-linear-attention), flash_qla (FlashQLA), mamba_ssm, or helion, whose
kernels are in its repository: add a checkout of it to PYTHONPATH. Helion tunes a kernel for minutes
(HELION_AUTOTUNE_EFFORT=quick shortens that).

For each shape and round, halflife's benchmark runs in a separate process, and the operations of the peer run in
this one, in alternating order. Each call is timed with CUDA events, and the time of a round is the median over its
calls. Results are medians over the rounds. If the peer has several operations of a kind, the fastest one is used.

Before a shape is timed, each pass of each operation is compared with the recurrence in fp64 on the first
256 tokens of that shape, on its first sequence and two of its heads. Triton tunes a kernel again for other
heads or widths, so this comparison also tunes the kernels that are timed. halflife's benchmark compares its
results with its own reference and reports the error. Operations that raise an exception or are wrong are not timed,
and the row lists them.

On Hopper, fla 0.6.0 refuses the backward of chunk_simple_gla with triton 3.4 to 3.7.0. --without-guard disables this
check, and the comparison with the recurrence decides instead.

--shapes selects shapes by parts of their names: --shapes "B2 T16384" V256.

The file of --json is written after each shape. --resume keeps its rows, and finally repeats those in which halflife
failed. Exit codes: 1: halflife failed on some shapes; 75: a fault in a kernel of the peer ended the process, and
--resume continues; 77 and a line "SKIPPED: ...": there is no GPU, peer or binary.
"""

import argparse
import dataclasses
import importlib
import inspect
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys

REPO = pathlib.Path(__file__).resolve().parents[1]
MAX_ERROR = 1e-2  # relative RMS; three consecutive products round bf16 operands and results by 2^-9 each
LONGEST_RECURRENT = 2048  # for longer rows, a per-token kernel is too slow to compare
WARM_UPS = 10
MANY_LATE = 0.1  # times are unreliable if a larger share of calls waited for the host
LOST = 75  # exit code if --resume can continue
LATE = " (late)"
LATE_MEANS = f"(late): the GPU waited for the host in more than {MANY_LATE:.0%} of the calls of one side."
PASSES = ("forward", "forward_backward")


@dataclasses.dataclass(frozen=True)
class Shape:
    batch: int
    seq_len: int
    heads: int
    dim: int  # K, and also V if dim_v is 0
    dim_v: int = 0
    qk_heads: int = 0  # heads of q and k, which the `heads` heads of v share; 0: as many as `heads`

    def __str__(self) -> str:
        dims = f"K{self.dim} V{self.dim_v}" if self.dim_v else f"D{self.dim}"
        groups = f" {self.qk_heads} of q and k" if self.qk_heads else ""
        return f"B{self.batch} T{self.seq_len} H{self.heads} {dims}{groups}"

    @property
    def values(self) -> int:
        return self.dim_v or self.dim


SHAPES = (  # most informative first
    Shape(2, 16384, 16, 128),
    Shape(8, 2048, 32, 64),
    Shape(8, 2048, 8, 128, dim_v=256),  # a layer of gla_1.3b
    Shape(1, 8192, 96, 128),
    Shape(1, 131072, 16, 128),
    Shape(8, 16384, 32, 128),
    Shape(4, 2048, 16, 128),
    Shape(4, 4096, 64, 128),
    Shape(8, 1024, 8, 64),
    Shape(8, 2048, 32, 256),
    Shape(32, 512, 12, 64),
    Shape(8, 2048, 4, 128, dim_v=512),
)
# Mamba-2: all heads share q and k (its C and B).
SHAPES_OF_KIND = {"per_token": (Shape(4, 4096, 64, 128, dim_v=64, qk_heads=1),)}
DELTA_KINDS = ("delta_net", "gated_delta_net", "kda")
DELTA_SHAPES = (Shape(2, 16384, 16, 128), Shape(8, 2048, 16, 128))
SCAN = "selective_scan"
SCAN_SHAPES = (Shape(8, 2048, 1, 2048),)  # `dim` channels with STATES states each, as in Mamba with model_dim 1024
STATES = 16
CHECKED_TOKENS, CHECKED_HEADS = 256, 2  # of one sequence, because the recurrence in fp64 keeps a state per token


@dataclasses.dataclass(frozen=True)
class Operation:
    """One function of a peer. `decay` is its name for log_decay. None: it has no decay, or uses RetNet's constants."""

    module: str
    name: str
    decay: str | None
    more: tuple[str, ...] = ()  # additional arguments of the call
    heads_first: bool = False  # q, k, v and the output are [B, H, T, *]

    @property
    def peer(self) -> str:
        package = self.module.partition(".")[0]
        return "helion" if package == "examples" else package

    def load(self):
        return getattr(importlib.import_module(self.module), self.name)

    def parameters(self) -> list[str]:
        """Returns the arguments of the call."""
        if self.peer == "mamba_ssm":
            return list(SCAN_ARGUMENTS)
        return ["q", "k", "v", "scale"] + ([self.decay] if self.decay else []) + list(self.more)

    def suits(self, shape: Shape) -> bool:
        return not self.name.startswith("fused_recurrent") or shape.seq_len <= LONGEST_RECURRENT


# How to install each peer.
INSTALL = {
    "fla": "pip install flash-linear-attention==0.6.0",
    "flash_qla": "pip install flash-qla==0.1.3",
    "mamba_ssm": "pip install mamba_ssm",
    "helion": "pip install helion, and add a checkout of its repository, which contains the kernels, to PYTHONPATH",
}
# The arguments of mamba_ssm's scan, in the order of its gradients. Rows are [B, channels, T].
SCAN_ARGUMENTS = ("u", "delta", "A", "B", "C", "D", "delta_bias")

# The operations of each kind. halflife's benchmark uses the same names of kinds.
KINDS = {
    "per_head": (
        Operation("fla.ops.retention", "chunk_retention", None),
        Operation("fla.ops.retention", "fused_recurrent_retention", None),
    ),
    "per_token": (
        Operation("fla.ops.simple_gla", "chunk_simple_gla", "g"),
        Operation("fla.ops.simple_gla", "fused_recurrent_simple_gla", "g"),
        Operation("examples.fla.simple_gla.chunk", "chunk_simple_gla", "g", heads_first=True),
    ),
    "per_channel": (
        Operation("fla.ops.gla", "chunk_gla", "g"),
        Operation("fla.ops.gla", "fused_recurrent_gla", "gk"),
    ),
    "delta_net": (Operation("fla.ops.delta_rule", "chunk_delta_rule", None, more=("beta",)),),
    "gated_delta_net": (
        Operation("fla.ops.gated_delta_rule", "chunk_gated_delta_rule", "g", more=("beta",)),
        Operation("flash_qla", "chunk_gated_delta_rule", "g", more=("beta",)),
    ),
    "kda": (Operation("fla.ops.kda", "chunk_kda", "g", more=("beta",)),),
    SCAN: (Operation("mamba_ssm.ops.selective_scan_interface", "selective_scan_fn", None),),
}


def operations_of(kind: str, peer: str) -> list[Operation]:
    return [operation for operation in KINDS[kind] if operation.peer == peer]


def kinds_of(peer: str) -> list[str]:
    return [kind for kind in KINDS if operations_of(kind, peer)]


# ---- statistics and tables: no GPU needed ----


def missing_parameters(function, wanted: list[str]) -> list[str]:
    known = inspect.signature(function).parameters
    return [name for name in wanted if name not in known]


def fastest(times: dict[str, list[float]]) -> tuple[str, float]:
    """Returns the name with the lowest median, and that median."""
    medians = {name: statistics.median(values) for name, values in times.items()}
    name = min(medians, key=medians.get)
    return name, medians[name]


def worst(values) -> float:
    """Returns the largest value, and NaN if any is NaN, which max() may ignore."""
    values = list(values)
    return math.nan if any(math.isnan(value) for value in values) else max(values)


@dataclasses.dataclass(frozen=True)
class Time:
    """The result of one round: the median time, and the share of calls in which the GPU waited for the host."""

    ms: float
    late_share: float = 0.0


def summarise(
    kind: str,
    shape: Shape,
    ours: list[dict],
    fla: dict[str, dict[str, list[Time]]],
    problems: list[str] | tuple[str, ...] = (),
) -> dict:
    """Returns the row of a shape. `ours`: JSON of halflife's benchmark per round. `fla`: pass -> operation -> times
    per round, without unsupported operations. `problems`: why these are unsupported."""
    row = {"kind": kind, "shape": str(shape), **dataclasses.asdict(shape)}
    row["max_error"] = worst(result["max_error"] for result in ours)
    row["problems"] = list(problems)
    for name in PASSES:
        own = statistics.median(result[name]["ms"] for result in ours)
        row[name] = {
            "halflife_ms": own,
            "share_of_memory_roofline": statistics.median(
                result[name]["share_of_memory_roofline"] for result in ours
            ),
            "halflife_late_share": worst(result[name]["late_share"] for result in ours),
        }
        if not fla[name]:
            continue
        times = {operation: [one.ms for one in rounds] for operation, rounds in fla[name].items()}
        operation, fla_ms = fastest(times)
        row[name] |= {
            "fla_ms": fla_ms,
            "fla_operation": operation,
            "fla_late_share": worst(one.late_share for one in fla[name][operation]),
            "speed": fla_ms / own,
        }
    return row


def failed_row(kind: str, shape: Shape, reason: str, problems: list[str]) -> dict:
    return {"kind": kind, "shape": str(shape), **dataclasses.asdict(shape), "failed": reason,
            "problems": problems}


def is_late(one: dict) -> bool:
    """Returns whether a side waited for the host so often that the ratio is unreliable."""
    shares = (one.get("halflife_late_share", 0), one.get("fla_late_share", 0))
    return not all(share <= MANY_LATE for share in shares)


def cells_of(row: dict) -> list[str]:
    if "failed" in row:
        return [row["kind"], row["shape"], f"failed: {cell_text(row['failed'])}", "", "", ""]
    passes = [row[name] for name in PASSES]
    cells = [row["kind"], row["shape"]]
    for key in ("fla_ms", "halflife_ms"):
        cells.append(" / ".join(f"{one[key]:.3f}" if key in one else "none" for one in passes))
    cells.append(marked_ratios(passes))
    return [*cells, " / ".join(f"{one['share_of_memory_roofline']:.0%}" for one in passes)]


def marked_ratios(passes: list[dict]) -> str:
    ratios = [f"{one['speed']:.2f} x" if "speed" in one else "none" for one in passes]
    return " / ".join(ratio + (LATE if is_late(one) else "") for ratio, one in zip(ratios, passes))


def cell_text(text: str) -> str:
    """Returns a text for a cell of a table: one line of at most 200 characters."""
    return " ".join(text.split())[:200].replace("|", "/")


def markdown(rows: list[dict], title: str, peer: str = "fla") -> str:
    lines = [
        title,
        "",
        f"| kind | shape | {peer}, ms: forward / both | halflife, ms: forward / both "
        "| speed: forward / both | share of memory roofline: forward / both |",
        "|---|---|---|---|---|---|",
    ]
    lines += ["| " + " | ".join(cells_of(row)) + " |" for row in rows]
    if any(is_late(row[name]) for row in rows for name in PASSES if name in row):
        lines += ["", LATE_MEANS]
    problems = dict.fromkeys(cell_text(one) for row in rows for one in row.get("problems", ()))
    if problems:
        lines += ["", f"Operations of {peer} that were not timed:", ""]
        lines += [f"- {problem}" for problem in problems]
    return "\n".join(lines) + "\n"


# ---- results so far ----


def write_json(path: pathlib.Path, result: dict) -> None:
    """Writes the file atomically."""
    temporary = path.with_name(path.name + ".new")
    temporary.write_text(json.dumps(result, indent=2) + "\n")
    os.replace(temporary, path)


def results_so_far(path: pathlib.Path, device: str, torch_version: str) -> dict:
    """Returns the results of an earlier, incomplete call. Empty if there was none."""
    if not path.exists():
        return {}
    earlier = json.loads(path.read_text())
    if (earlier["device"], earlier["torch"]) != (device, torch_version):
        sys.exit(
            f"{path} has results of {earlier['device']} with torch {earlier['torch']}, but this is {device} with "
            f"torch {torch_version}. Use another file for --json."
        )
    return earlier


def chosen_shapes(kind: str, words: list[str] | None) -> list[Shape]:
    """Returns the shapes whose names contain one of the words, or all shapes if there are no words."""
    return [shape for shape in shapes_of(kind) if not words or any(word in str(shape) for word in words)]


def remaining_shapes(kinds: list[str], rows: list[dict], words: list[str] | None = None) -> list[tuple[str, Shape]]:
    """Returns the chosen shapes that have no row, followed by those that failed."""
    known = {(row["kind"], row["shape"]): row for row in rows}
    wanted = [(kind, shape) for kind in kinds for shape in chosen_shapes(kind, words)]
    fresh = [(kind, shape) for kind, shape in wanted if (kind, str(shape)) not in known]
    failed = [one for one in wanted if "failed" in known.get((one[0], str(one[1])), {})]
    return fresh + failed


def put_row(rows: list[dict], row: dict) -> None:
    """Replaces the row of the same shape, or appends the row."""
    for place, one in enumerate(rows):
        if (one["kind"], one["shape"]) == (row["kind"], row["shape"]):
            rows[place] = row
            return
    rows.append(row)


# ---- on the GPU ----


def skip(reason: str):
    print(f"SKIPPED: {reason}")
    sys.exit(77)


def shapes_of(kind: str) -> tuple[Shape, ...]:
    if kind == SCAN:
        return SCAN_SHAPES
    return DELTA_SHAPES if kind in DELTA_KINDS else SHAPES + SHAPES_OF_KIND.get(kind, ())


def make_inputs(torch, kind: str, shape: Shape) -> dict:
    """Returns random inputs. q and k have as many heads as v, because the peers do not share heads. The times of the
    peer therefore contain neither the repetition of shared heads nor the sum of their gradients."""
    if kind == SCAN:
        return make_scan_inputs(torch, shape)
    sizes = (shape.batch, shape.seq_len, shape.heads)
    rows = lambda width: torch.randn(*sizes, width, device="cuda", dtype=torch.bfloat16)
    widths = {"q": shape.dim, "k": shape.dim, "v": shape.values}
    inputs = {name: rows(width) for name, width in widths.items()}
    if kind in DELTA_KINDS:  # unit queries and keys, as in a model
        for name in ("q", "k"):
            inputs[name] = torch.nn.functional.normalize(inputs[name].float(), dim=-1).to(torch.bfloat16)
        inputs["beta"] = torch.rand(*sizes, device="cuda") * 0.8 + 0.1
    if kind not in ("per_head", "delta_net"):
        extra = (shape.dim,) if kind in ("per_channel", "kda") else ()
        inputs["decay"] = torch.rand(*sizes, *extra, device="cuda") * (-0.1 if kind in DELTA_KINDS else -0.2)
    for leaf in inputs.values():
        leaf.requires_grad_()
    inputs["dout"] = rows(shape.values)
    return inputs


def make_scan_inputs(torch, shape: Shape) -> dict:
    """Returns random inputs of the scan. Its step sizes are 0.001 to 0.1, as in a model at the start of training."""
    rows = lambda width: torch.randn(shape.batch, width, shape.seq_len, device="cuda", dtype=torch.bfloat16)
    step = (torch.rand(shape.dim, device="cuda") * 4.6 - 6.9).exp()
    inputs = {"u": rows(shape.dim), "delta": rows(shape.dim) * 0.1,
              "A": -(torch.rand(shape.dim, STATES, device="cuda") * 2.77).exp(), "B": rows(STATES), "C": rows(STATES),
              "D": torch.randn(shape.dim, device="cuda"), "delta_bias": step + torch.log(-torch.expm1(-step))}
    for leaf in inputs.values():
        leaf.requires_grad_()
    return {**inputs, "dout": rows(shape.dim)}


def to_peer_layout(operation: Operation, inputs: dict) -> dict:
    """Returns the inputs in the peer's layout. This conversion is not timed."""
    if not operation.heads_first:
        return inputs
    swap = lambda x: x.detach().transpose(1, 2).contiguous().requires_grad_(x.requires_grad)
    return {name: swap(x) if name in ("q", "k", "v", "dout") else x for name, x in inputs.items()}


def call(operation: Operation, inputs: dict):
    """Calls the operation. `inputs` are in the peer's layout."""
    if operation.peer == "mamba_ssm":
        return operation.load()(**{name: inputs[name] for name in SCAN_ARGUMENTS}, delta_softplus=True)
    arguments = {name: inputs[name] for name in ("q", "k", "v", *operation.more)}
    if operation.decay:
        arguments[operation.decay] = inputs["decay"]
    result = operation.load()(scale=inputs["q"].shape[-1] ** -0.5, **arguments)
    return result[0] if isinstance(result, tuple) else result


def leaves(inputs: dict) -> list:
    return [inputs[name] for name in ("q", "k", "v", "decay", "beta", *SCAN_ARGUMENTS) if name in inputs]


def scan_recurrence(torch, inputs: dict):
    """Computes h_t = exp(step_t A) h_{t-1} + step_t u_t B_t, y_t = C_t h_t + D u_t with step = softplus(delta + bias),
    in fp64."""
    u, delta, a, b, c, skip, bias = (inputs[name].double() for name in SCAN_ARGUMENTS)
    step = torch.nn.functional.softplus(delta + bias[:, None])
    state, outs = torch.zeros(u.shape[0], *a.shape, device=u.device).double(), []
    for t in range(u.shape[2]):
        now = step[:, :, t, None]
        state = (now * a).exp() * state + now * u[:, :, t, None] * b[:, None, :, t]
        outs.append((state * c[:, None, :, t]).sum(-1))
    return torch.stack(outs, -1) + skip[:, None] * u


def recurrence(torch, inputs: dict):
    """Computes o_t = scale q_t S_t, S_t = exp(decay_t) S_{t-1} + k_t^T v_t in fp64. With beta, computes the delta rule:
    S~ = exp(decay_t) S_{t-1}, S_t = S~ + k_t^T beta_t (v_t - k_t S~)."""
    if "u" in inputs:
        return scan_recurrence(torch, inputs)
    q, k, v = (inputs[name].double() for name in ("q", "k", "v"))
    beta = inputs["beta"].double() if "beta" in inputs else None
    if "decay" in inputs:
        decay = inputs["decay"].double()
    elif beta is not None:
        decay = torch.zeros(q.shape[:3], device=q.device).double()
    else:
        heads = torch.arange(q.shape[2], device=q.device, dtype=torch.float64)
        decay = torch.log1p(-(2.0 ** (-5 - heads))).expand(q.shape[:3])
    decay = decay.exp().reshape(*q.shape[:3], -1, 1)  # [B, T, H, K or 1, 1]
    state = torch.zeros(q.shape[0], q.shape[2], q.shape[3], v.shape[3], device=q.device).double()
    outs = []
    for t in range(q.shape[1]):
        state, written = decay[:, t] * state, v[:, t]
        if beta is not None:
            written = beta[:, t, :, None] * (written - (k[:, t].unsqueeze(-1) * state).sum(-2))
        state = state + k[:, t].unsqueeze(-1) * written.unsqueeze(-2)
        outs.append((q[:, t].unsqueeze(-1) * state).sum(-2) * q.shape[-1] ** -0.5)
    return torch.stack(outs, 1)


def relative_error(got, want) -> float:
    return float((got.double() - want).norm() / want.double().norm())


def part_of(inputs: dict) -> dict:
    """Returns the first sequence and its first heads as new leaves. Sequences and heads are independent. The sequences
    of a scan share its weights, so all of its inputs are returned."""
    return {name: first_of(inputs, x.detach()).clone().requires_grad_(x.requires_grad) for name, x in inputs.items()}


def first_of(inputs: dict, x):
    return x if "u" in inputs else x[:1, :, :CHECKED_HEADS]


def error_of(torch, kind: str, operation: Operation, name: str, shape: Shape) -> float:
    """Returns the error of one pass on the first tokens of the shape."""
    small = dataclasses.replace(shape, seq_len=min(CHECKED_TOKENS, shape.seq_len), batch=1 if kind == SCAN else shape.batch)
    inputs = make_inputs(torch, kind, small)
    part, theirs = part_of(inputs), to_peer_layout(operation, inputs)
    want = recurrence(torch, part)
    swapped = lambda x: x.transpose(1, 2) if operation.heads_first and x.dim() == 4 else x
    if name == "forward":
        with torch.no_grad():
            return relative_error(first_of(inputs, swapped(call(operation, theirs))), want)
    wants = torch.autograd.grad(want, leaves(part), part["dout"].double())
    gots = torch.autograd.grad(call(operation, theirs), leaves(theirs), theirs["dout"])
    return worst(relative_error(first_of(inputs, swapped(got)), one) for got, one in zip(gots, wants))


def describe_error(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def trial(torch, kind: str, operation: Operation, shape: Shape) -> dict:
    """Returns the error of each pass at a shape, or the reason why it is not timed."""
    found = {"errors": {}, "problems": {}}
    for name in PASSES:
        try:
            error = error_of(torch, kind, operation, name, shape)
        except Exception as raised:  # of any type; the other passes are still measured
            found["problems"][name] = describe_error(raised)
            continue
        if error <= MAX_ERROR:
            found["errors"][name] = error
        else:
            found["problems"][name] = f"differs from the recurrence by {error:.1e}"
    return found


class Timer:
    """Times only the work of the device, like bench/support/measure.h. A spinning kernel precedes each call, so that
    Python has enqueued the whole call when the device starts it. If the kernel was too short, the call counts as late,
    and the next kernel spins twice as long."""

    LONGEST_MS = 50
    CYCLES_PER_MS = 2e6  # at 2 GHz; at a lower clock the kernel takes longer

    def __init__(self, torch):
        self.torch = torch
        self.spin_ms = 0.1
        self.start_counting()

    def start_counting(self) -> None:
        self.calls = self.late = 0

    def late_share(self) -> float:
        return self.late / self.calls if self.calls else 0.0

    def ms(self, run) -> float:
        before, after = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.torch.cuda._sleep(int(self.spin_ms * self.CYCLES_PER_MS))
        before.record()
        run()
        after.record()
        self.calls += 1
        if before.query():
            self.late += 1
            self.spin_ms = min(2 * self.spin_ms, self.LONGEST_MS)
        after.synchronize()
        return before.elapsed_time(after)


def num_input_sets(cache_bytes: int, shape: Shape) -> int:
    """Returns a number of sets of inputs, at least 2, with which none is still in the cache when it is used again."""
    one = 4 * shape.batch * shape.seq_len * shape.heads * (shape.dim + shape.values)
    return max(2, min(64, -(-2 * cache_bytes // one)))


def time_fla(
    torch, kind: str, operation: Operation, name: str, shape: Shape, samples: int
) -> Time:
    """Times one pass. Each call uses the next set of inputs, so that operands are not in the cache."""
    cache = torch.cuda.get_device_properties(0).L2_cache_size
    count = num_input_sets(cache, shape)
    input_sets = [to_peer_layout(operation, make_inputs(torch, kind, shape)) for _ in range(count)]

    def forward(inputs):
        with torch.no_grad():
            call(operation, inputs)

    def both(inputs):
        torch.autograd.grad(call(operation, inputs), leaves(inputs), inputs["dout"])

    run = forward if name == "forward" else both
    times: list[float] = []
    timer = Timer(torch)
    for sample in range(WARM_UPS + samples):
        if sample == WARM_UPS:
            times.clear()
            timer.start_counting()
        inputs = input_sets[sample % len(input_sets)]
        times.append(timer.ms(lambda inputs=inputs: run(inputs)))
    return Time(statistics.median(times), timer.late_share())


class Failed(Exception):
    """halflife's benchmark failed. The message says how."""


def program_of(kind: str) -> str:
    if kind == SCAN:
        return "bench_scans"
    return "bench_delta_rule" if kind in DELTA_KINDS else "bench_decay_attention"


def shape_options(kind: str, shape: Shape) -> list[str]:
    """Returns the options of halflife's benchmark for the shape."""
    options = ["--kind", kind, "--batch", shape.batch, "--seq-len", shape.seq_len, "--dim", shape.dim]
    if kind == SCAN:
        options += ["--states", STATES]
    else:
        options += ["--heads", shape.heads]
        if kind not in DELTA_KINDS:
            options += ["--dim-v", shape.dim_v, "--qk-heads", shape.qk_heads]
    return list(map(str, options))


def time_ours(binary: pathlib.Path, kind: str, shape: Shape, samples: int) -> dict:
    """Runs halflife's benchmark of the kind. `binary` is any benchmark; all are in one folder."""
    command = [binary.with_name(program_of(kind)), "--device", "cuda", *shape_options(kind, shape), "--rounds", samples]
    done = subprocess.run([str(x) for x in command], capture_output=True, text=True, check=False)
    sys.stderr.write(done.stderr)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise Failed(f"exit {done.returncode} of {' '.join(map(str, command))}: {last}")
    try:
        result = json.loads(done.stdout)
    except json.JSONDecodeError as error:
        raise Failed(f"the output of {' '.join(map(str, command))} is not JSON: {error}") from error
    figures = [result["max_error"]] + [value for name in PASSES for value in result[name].values()]
    if None in figures:
        raise Failed(f"{' '.join(map(str, command))} reported NaN or infinity")
    return result


class Comparison:
    """Runs both sides on one shape in rounds with alternating order."""

    def __init__(self, torch, kind: str, shape: Shape, trials: dict[str, dict], options):
        """`trials`: the results of trial() for this shape, by the operation's name."""
        self.torch, self.kind, self.shape, self.options = torch, kind, shape, options
        self.ours: list[dict] = []
        self.fla: dict[str, dict[str, list[Time]]] = {name: {} for name in PASSES}
        self.problems: list[str] = []
        self.to_time: list[tuple[Operation, str]] = []
        for operation in operations_of(kind, options.peer):
            if not operation.suits(shape):
                continue
            problems = trials[operation.name]["problems"]
            for name in PASSES:
                if name in problems:
                    self.add_problem(operation, name, problems[name])
                else:
                    self.to_time.append((operation, name))

    def add_problem(self, operation: Operation, name: str, problem: str) -> None:
        self.problems.append(f"{operation.name}, {name.replace('_', ' + ')}: {problem}")

    def run_fla(self) -> None:
        """Times the peer's operations once. If one raises, its results of earlier rounds are dropped, too."""
        for operation, name in list(self.to_time):
            try:
                time = time_fla(
                    self.torch, self.kind, operation, name, self.shape, self.options.samples
                )
            except Exception as raised:  # of any type; the other passes are still measured
                self.add_problem(operation, name, f"at {self.shape}: {describe_error(raised)}")
                self.to_time.remove((operation, name))
                self.fla[name].pop(operation.name, None)
                continue
            self.fla[name].setdefault(operation.name, []).append(time)
        try:
            self.torch.cuda.empty_cache()  # halflife's process needs the memory now
        except Exception:  # the context is lost; the caller checks that
            pass

    def run_ours(self) -> None:
        self.ours.append(
            time_ours(self.options.binary, self.kind, self.shape, self.options.samples)
        )

    def row(self) -> dict:
        try:
            for number in range(self.options.rounds):
                pair = (self.run_ours, self.run_fla)
                for run in pair if number % 2 == 0 else reversed(pair):
                    run()
        except Failed as failed:
            return failed_row(self.kind, self.shape, str(failed), self.problems)
        return summarise(self.kind, self.shape, self.ours, self.fla, self.problems)


def context_is_lost(torch) -> bool:
    """Returns whether a fault in a kernel has made the GPU unusable for this process."""
    try:
        torch.cuda.synchronize()
    except Exception:  # the type of the exception differs between versions
        return True
    return False


def set_tuning(ms: float) -> None:
    """Sets the time for which Triton measures each configuration of a kernel."""
    import triton.testing

    benchmark = triton.testing.do_bench
    triton.testing.do_bench = lambda call, **more: benchmark(call, **{"warmup": ms / 4, "rep": ms, **more})


def disable_guard() -> None:
    """Lets fla run every backward of chunk_simple_gla. fla reads this variable in each call."""
    module, name = importlib.import_module("fla.ops.common.chunk_o"), "IS_NVIDIA_HOPPER"
    if not hasattr(module, name):
        sys.exit(f"{module.__name__} has no {name} in this version of fla. Install 0.6.0, or remove --without-guard.")
    setattr(module, name, False)


def load_torch(peer: str, kinds: list[str]):
    os.environ.setdefault("FLA_FLASH_QLA", "0")  # otherwise fla calls FlashQLA, which is a separate peer
    try:
        import torch
    except ImportError as error:
        skip(f"torch is not installed ({error}). Run pip install torch==2.11.0.")
    if not torch.cuda.is_available():
        skip("no GPU was found")
    for operation in sum((operations_of(kind, peer) for kind in kinds), []):
        try:
            missing = missing_parameters(operation.load(), operation.parameters())
        except ImportError as error:
            skip(f"{peer} is not installed ({error}). Run {INSTALL[peer]}.")
        if missing:
            sys.exit(f"{operation.name} of this {peer} has no argument {', '.join(missing)}. Run {INSTALL[peer]}.")
    return torch


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--binary", type=pathlib.Path, metavar="FILE",
                        default=REPO / "build/cuda/bench/bench_decay_attention",
                        help="one of halflife's benchmarks; all must be in its folder (default: %(default)s)")
    parser.add_argument("--peer", choices=INSTALL, default="fla", help="the other program (default: fla)")
    parser.add_argument("--only", choices=KINDS, action="append",
                        help="compare only this kind; may be repeated (default: all kinds of the peer)")
    parser.add_argument("--shapes", nargs="+", metavar="WORD",
                        help="compare only shapes whose names contain one of these words (default: all shapes)")
    parser.add_argument("--without-guard", action="store_true",
                        help="run fla's backward of chunk_simple_gla also with the versions of triton that fla refuses")
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds per shape (default: 3)")
    parser.add_argument("--tune-ms", type=float, default=100, metavar="MS",
                        help="time for which Triton measures each configuration of a kernel (default: 100)")
    parser.add_argument("--samples", type=int, default=50, help="number of timed calls per round (default: 50)")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE",
                        help="write the results to this file after each shape")
    parser.add_argument("--resume", action="store_true", help="keep the rows of the file of --json")
    parser.add_argument("--markdown", type=pathlib.Path, metavar="FILE", help="write a table to this file")
    options = parser.parse_args()
    if options.resume and not options.json:
        parser.error("--resume continues the file of --json. Add --json FILE.")
    kinds = options.only = options.only or kinds_of(options.peer)
    foreign = [kind for kind in kinds if not operations_of(kind, options.peer)]
    if foreign:
        parser.error(f"--peer {options.peer} has no {', '.join(foreign)}. Use {', '.join(kinds_of(options.peer))}.")
    if options.shapes and not remaining_shapes(kinds, [], options.shapes):
        parser.error(f"--shapes {' '.join(options.shapes)}: no name of a shape contains this. Use a part of one of "
                     "these names: " + ", ".join(map(str, shapes_of(kinds[0]))))
    torch = load_torch(options.peer, kinds)
    if options.peer in ("fla", "helion"):  # their kernels are written in Triton
        set_tuning(options.tune_ms)
    if options.without_guard:
        disable_guard()
    if not options.binary.exists():
        skip(f"{options.binary} does not exist. Run cmake --build build/cuda --target bench.")
    sys.exit(compare(torch, options))


def compare(torch, options) -> int:
    kinds = options.only
    device = torch.cuda.get_device_name(0)
    result = {"device": device, "torch": torch.__version__, "trials": {}, "rows": []}
    if options.resume:
        result |= results_so_far(options.json, device, torch.__version__)
    rows, trials = result["rows"], result["trials"]

    def save() -> None:
        if options.json:
            write_json(options.json, result)
        if context_is_lost(torch):
            print("A fault in a kernel made the GPU unusable for this process. Use --resume.", file=sys.stderr)
            sys.exit(LOST)

    for kind, shape in remaining_shapes(kinds, rows, options.shapes):
        tried = trials.setdefault(f"{kind} {shape}", {})
        for operation in operations_of(kind, options.peer):
            if operation.suits(shape) and operation.name not in tried:
                tried[operation.name] = trial(torch, kind, operation, shape)
                save()
        put_row(rows, Comparison(torch, kind, shape, tried, options).row())
        print(json.dumps(rows[-1]), file=sys.stderr)
        save()
    table = markdown(rows, f"{device}, torch {torch.__version__}, bf16, medians:", options.peer)
    print(table)
    if options.markdown:
        options.markdown.write_text(table)
    return report_failures(rows)


def report_failures(rows: list[dict]) -> int:
    """Prints the failed rows. Returns the exit code."""
    failed = [row for row in rows if "failed" in row]
    for row in failed:
        print(f"failed: {row['kind']} {row['shape']}: {row['failed']}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    main()
