#!/usr/bin/env python3
"""Compares decay attention with jax-linear-attention (jla) on one Hopper GPU, in bf16. Measures the forward, and the
forward and backward together.

    pip install "jax-linear-attention[cuda]==0.1.0"      # Python 3.12 or later
    cmake --build build/cuda --target bench_decay_attention
    python3 bench/compare_jla.py --json jla.json --markdown jla.md
    python3 bench/compare_jla.py --only per_channel --shapes "B2 T16384" V256

For each shape and round, bench_decay_attention runs in a separate process, and jla's Mosaic GPU kernels run
in this one, in alternating order. Times are medians over the rounds. jla's time is the wall time of a
sequence of calls that JAX enqueues without waiting, divided by their number. halflife's calls are timed with CUDA
events. All calls of jla have the same operands, so operands that fit into the L2 cache are read from it.

Before a shape is timed, jla's output and gradients are compared with its token-by-token implementation in
fp32 on the first 256 tokens. Passes that raise an exception or are wrong are not timed, and the row lists them.

Exit codes: 1: halflife failed on some shapes; 77 and a line "SKIPPED: ...": there is no GPU, jla or binary.
"""

import argparse
import dataclasses
import importlib
import json
import os
import pathlib
import statistics
import sys
import time

import compare_fla
from compare_fla import MAX_ERROR, PASSES, REPO, Shape

KINDS = {"per_token": "simple_gla", "per_channel": "gla"}  # jla's name of each kind of decay
CHECKED_TOKENS = 256
CALLS = 10  # per sample
OPERANDS = ("q", "k", "v", "decay")


class Jla:
    """jla's operation for one kind of decay, on JAX arrays."""

    def __init__(self, jax, linear_attention, kind: str):
        self.jax, self.kind, self.linear_attention = jax, kind, linear_attention

    def inputs(self, shape: Shape) -> dict:
        jax, sizes = self.jax, (shape.batch, shape.seq_len, shape.heads)
        keys = jax.random.split(jax.random.PRNGKey(1), 5)
        rows = lambda key, width: jax.random.normal(key, (*sizes, width), dtype=jax.numpy.bfloat16)
        extra = (shape.dim,) if self.kind == "per_channel" else ()
        return {"q": rows(keys[0], shape.dim), "k": rows(keys[1], shape.dim), "v": rows(keys[2], shape.values),
                "decay": -0.2 * jax.random.uniform(keys[3], (*sizes, *extra)),
                "dout": rows(keys[4], shape.values)}

    def forward(self, impl: str):
        def run(q, k, v, decay):
            return self.linear_attention(KINDS[self.kind], q, k, v, g=decay, impl=impl, scale=q.shape[-1] ** -0.5)[0]

        return run

    def compiled(self, name: str, impl: str):
        """Returns the pass as a function of the inputs."""
        forward = self.forward(impl)
        if name == "forward":
            compiled = self.jax.jit(forward)
            return lambda inputs: compiled(*(inputs[x] for x in OPERANDS))

        def both(dout, *operands):
            out, backward = self.jax.vjp(forward, *operands)
            return backward(dout.astype(out.dtype))

        compiled = self.jax.jit(both)
        return lambda inputs: compiled(inputs["dout"], *(inputs[x] for x in OPERANDS))

    def error(self, name: str, shape: Shape) -> float:
        """Returns the largest relative RMS error of a pass on the first tokens of the shape."""
        inputs = self.inputs(dataclasses.replace(shape, seq_len=min(CHECKED_TOKENS, shape.seq_len)))
        wide = {key: value.astype("float32") for key, value in inputs.items()}
        gots, wants = self.compiled(name, "mosaic_gpu")(inputs), self.compiled(name, "reference")(wide)
        if name == "forward":
            gots, wants = (gots,), (wants,)
        norm = self.jax.numpy.linalg.norm
        return compare_fla.worst(
            float(norm((got.astype("float32") - want).ravel()) / norm(want.ravel())) for got, want in zip(gots, wants)
        )

    def ms(self, name: str, shape: Shape, samples: int) -> float:
        run, inputs = self.compiled(name, "mosaic_gpu"), self.inputs(shape)
        self.jax.block_until_ready(run(inputs))  # compiles
        times = []
        for _ in range(samples):
            begin = time.perf_counter()
            for _ in range(CALLS):
                last = run(inputs)
            self.jax.block_until_ready(last)
            times.append(1e3 * (time.perf_counter() - begin) / CALLS)
        return statistics.median(times)


def checked(jla: Jla, shape: Shape) -> tuple[list[str], list[str]]:
    """Returns the passes to time, and the reasons why the others are left out."""
    good, problems = [], []
    for name in PASSES:
        try:
            error = jla.error(name, shape)
        except Exception as raised:  # of any type; the other pass is still measured
            problems.append(f"{name.replace('_', ' + ')}: {compare_fla.describe_error(raised)}")
            continue
        if error <= MAX_ERROR:
            good.append(name)
        else:
            problems.append(f"{name.replace('_', ' + ')}: differs from the recurrence by {error:.1e}")
    return good, problems


def row_of(jla: Jla, shape: Shape, options) -> dict:
    """Times both sides in rounds with alternating order."""
    good, problems = checked(jla, shape)
    ours, theirs = [], {name: [] for name in good}

    def run_ours():
        ours.append(compare_fla.time_ours(options.binary, jla.kind, shape, options.samples))

    def run_theirs():
        for name in list(theirs):
            try:
                theirs[name].append(jla.ms(name, shape, options.samples))
            except Exception as raised:
                problems.append(f"{name.replace('_', ' + ')}, at {shape}: {compare_fla.describe_error(raised)}")
                del theirs[name]

    row = {"kind": jla.kind, "shape": str(shape), **dataclasses.asdict(shape)}
    try:
        for number in range(options.rounds):
            pair = (run_ours, run_theirs)
            for run in pair if number % 2 == 0 else reversed(pair):
                run()
    except compare_fla.Failed as failed:
        return {**row, "failed": str(failed), "problems": problems}
    return {**row, **summary(ours, theirs), "problems": problems}


def summary(ours: list[dict], theirs: dict[str, list[float]]) -> dict:
    row = {"max_error": compare_fla.worst(result["max_error"] for result in ours)}
    for name in PASSES:
        own = statistics.median(result[name]["ms"] for result in ours)
        row[name] = {"halflife_ms": own}
        if theirs.get(name):
            jla_ms = statistics.median(theirs[name])
            row[name] |= {"jla_ms": jla_ms, "speed": jla_ms / own}
    return row


def cells_of(row: dict) -> list[str]:
    if "failed" in row:
        return [row["kind"], row["shape"], f"failed: {compare_fla.cell_text(row['failed'])}", "", ""]
    show = lambda key, form: " / ".join(form.format(row[name][key]) if key in row[name] else "none" for name in PASSES)
    return [row["kind"], row["shape"], show("jla_ms", "{:.3f}"), show("halflife_ms", "{:.3f}"), show("speed", "{:.2f} x")]


def markdown(rows: list[dict], title: str) -> str:
    lines = [title, "", "| decay | shape | jla, ms: forward / both | halflife, ms: forward / both | speed: forward / both |",
             "|---|---|---|---|---|"]
    lines += ["| " + " | ".join(cells_of(row)) + " |" for row in rows]
    problems = dict.fromkeys(compare_fla.cell_text(one) for row in rows for one in row.get("problems", ()))
    if problems:
        lines += ["", "Passes of jla that were not timed:", "", *(f"- {problem}" for problem in problems)]
    return "\n".join(lines) + "\n"


def load():
    """Returns jax and jla's entry point. Ends the process if they or a GPU are missing."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # halflife's process needs memory, too
    try:
        jax = importlib.import_module("jax")
        linear_attention = importlib.import_module("jla.ops").linear_attention
    except ImportError as error:
        compare_fla.skip(f"jla is not installed ({error}). Run pip install 'jax-linear-attention[cuda]==0.1.0'.")
    if jax.default_backend() != "gpu":
        compare_fla.skip("no GPU was found")
    return jax, linear_attention


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=pathlib.Path, metavar="FILE",
                        default=REPO / "build/cuda/bench/bench_decay_attention", help="(default: %(default)s)")
    parser.add_argument("--only", choices=KINDS, action="append",
                        help="compare only this kind of decay; may be repeated (default: both)")
    parser.add_argument("--shapes", nargs="+", metavar="WORD",
                        help="compare only shapes whose names contain one of these words (default: all shapes)")
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds per shape (default: 3)")
    parser.add_argument("--samples", type=int, default=20, help="number of timed samples per round (default: 20)")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE",
                        help="write the results to this file after each shape")
    parser.add_argument("--markdown", type=pathlib.Path, metavar="FILE", help="write a table to this file")
    options = parser.parse_args()
    jax, linear_attention = load()
    if not options.binary.exists():
        target = "bench_decay_attention"
        compare_fla.skip(f"{options.binary} does not exist. Run cmake --build build/cuda --target {target}.")
    device = jax.devices()[0].device_kind
    sys.exit(compare(device, lambda kind: Jla(jax, linear_attention, kind), options))


def compare(device: str, make, options) -> int:
    rows = []
    for kind in options.only or list(KINDS):
        jla = make(kind)
        for shape in compare_fla.chosen_shapes(kind, options.shapes):
            if shape.qk_heads:  # jla does not share heads of q and k
                continue
            rows.append(row_of(jla, shape, options))
            print(json.dumps(rows[-1]), file=sys.stderr)
            if options.json:
                compare_fla.write_json(options.json, {"device": device, "rows": rows})
    table = markdown(rows, f"{device}, bf16, medians:")
    print(table)
    if options.markdown:
        options.markdown.write_text(table)
    return compare_fla.report_failures(rows)


if __name__ == "__main__":
    main()
