#!/usr/bin/env python3
"""Plants bugs in copies of the CUDA kernels and reports which emulated test caught each.

  tests/kernels/mutations/run.py                    # all, plain build
  tests/kernels/mutations/run.py --only barrier     # those with the word in their name
  tests/kernels/mutations/run.py --kind all         # what a plain run need not see again in asan, then in tsan

A mutation is a textual substitution in one source (MUTATIONS here and in step.py); one that no longer matches is an error,
so that the table follows the code. Exit code 1 if a bug survives. Needs g++, GoogleTest and CUDA's headers, no GPU.
"""

import argparse
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

from family import ROOT, Family
from step import ADAMW, STEP

FLAGS = {
    "plain": "-O1 -g0",
    "asan": "-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=undefined",
    "tsan": "-O1 -g -fsanitize=thread",
}

TESTS_OF = ("walk", "channel", "channel_rev", "segment", "simt", "bad_input", "bounds", "far")

# (name, source, text, replacement, test)
MUTATIONS = [
    ("walk: no barrier where a chunk starts", "walk.cuh",
     "    CpAsyncWait<0>();\n    __syncthreads();\n", "    CpAsyncWait<0>();\n", "walk"),
    ("walk: no barrier between the scores and their readers", "walk.cuh",
     "args.scale);\n    __syncthreads();\n", "args.scale);\n", "walk"),
    ("walk: no wait for the tiles", "walk.cuh", "    CpAsyncWait<0>();\n", "", "walk"),
    ("walk: the next chunk lands in this one's stage", "walk.cuh",
     "args.chunks[index + 1], place, 1 - stage);", "args.chunks[index + 1], place, stage);", "walk"),
    ("walk: tables of the next chunk over this one's", "walk.cuh",
     "smem.tables[1 - stage], args, args.chunks[index + 1]",
     "smem.tables[stage], args, args.chunks[index + 1]", "walk"),
    ("walk: a document's start is not honoured", "walk.cuh",
     "if ((chunk.flags & kChunkResets) != 0) Clear(state);", "", "walk"),
    ("walk: checkpoint one chunk late", "walk.cuh",
     "(index - place.first) % params.checkpoint_every == 0",
     "(index - place.first) % params.checkpoint_every == 1", "walk"),
    ("walk: key scale not in the scores", "walk.cuh", "scale * tables.key_scale[s],",
     "scale,", "walk"),
    ("walk: tiles on the diagonal dropped", "walk.cuh", "column_tile <= row_tile;",
     "column_tile < row_tile;", "walk"),
    ("walk: off by one chunk", "walk.cuh", "index < place.end; ++index",
     "index < place.end - 1; ++index", "walk"),
    ("tile: fragment's halves swapped", "tile.cuh", "const uint32_t b0[2] = {b[0], b[1]};",
     "const uint32_t b0[2] = {b[1], b[0]};", "walk"),
    ("tile: accumulator rows swapped as a fragment", "tile.cuh",
     "a[1] = PackBf16(d0[2], d0[3]);", "a[1] = PackBf16(d1[0], d1[1]);", "walk"),
    ("tile: lane rows of ldmatrix swapped", "tile.cuh",
     "return LaneOffset<kDim>(lane, 3, 4);", "return LaneOffset<kDim>(lane, 4, 3);", "walk"),
    ("tile: rows past the end are loaded", "tile.cuh",
     "const bool valid = row < length && column < rows.dim;\n      CpAsync16",
     "const bool valid = column < rows.dim;\n      CpAsync16", "walk"),
    ("tile: padded columns are loaded", "tile.cuh",
     "const bool valid = row < length && column < rows.dim;\n      tile",
     "const bool valid = row < length;\n      tile", "walk"),
    ("tile: stores past the end", "tile.cuh", "if (row < length && c < columns)\n        *rein",
     "if (c < columns)\n        *rein", "walk"),
    ("tile: factors of the wrong columns", "tile.cuh",
     "const float f8 = factor[column + 8]", "const float f8 = factor[column]", "walk"),
    ("tile: decay after the sum, not before (suffix inclusive)", "tile.cuh",
     "float suffix = __shfl_down_sync(kFullWarp, decay, 1);", "float suffix = decay;", "walk"),
    ("tile: prefix scan one step short", "tile.cuh",
     "for (int offset = 1; offset < kBaseBlock; offset *= 2) {",
     "for (int offset = 1; offset < kBaseBlock / 2; offset *= 2) {", "walk"),
    ("tile: block between counted twice", "tile.cuh", "if (j < m && m < i) between += total;",
     "if (j <= m && m < i) between += total;", "walk"),
    ("tile: the padded tail decays", "tile.cuh", "* kLog2E : 0.0f;", "* kLog2E : -0.1f;", "walk"),
    ("rev: no barrier where a chunk starts", "walk_rev.cuh",
     "      CpAsyncWait<0>();\n      __syncthreads();\n      if (kStages == 2) load(item + 1);\n      PairTiles",
     "      CpAsyncWait<0>();\n      if (kStages == 2) load(item + 1);\n      PairTiles", "walk"),
    ("rev: no barrier before the scores are read", "walk_rev.cuh",
     "      CopyAdjoint<Config>(smem.adjoint, adjoint);\n      __syncthreads();\n",
     "      CopyAdjoint<Config>(smem.adjoint, adjoint);\n", "walk"),
    ("rev: no barrier before the sums are read", "walk_rev.cuh",
     "      fill_tables(item + 1);\n      __syncthreads();\n", "      fill_tables(item + 1);\n",
     "walk"),
    ("rev: R of the last chunk skipped", "walk_rev.cuh",
     "  } else if (grads.dfinal_state != nullptr) {", "  } else if (false) {", "walk"),
    ("rev: R not decayed", "walk_rev.cuh", "      Scale(adjoint, tables.transition);\n", "", "walk"),
    ("rev: the path through the chunk (E) dropped", "walk_rev.cuh",
     "  through *= tables.transition;\n", "  through = 0;\n", "walk"),
    ("rev: diagonal kept on one side only", "walk_rev.cuh",
     "const float below0 = s < r ? x * dx : 0.0f", "const float below0 = s <= r ? x * dx : 0.0f",
     "walk"),
    ("rev: column sums dropped", "walk_rev.cuh",
     "const float h = row - tables.key_scale[r] * column;", "const float h = row;", "walk"),
    ("rev: y of token t counted in its own gradient", "walk_rev.cuh",
     "float earlier = __shfl_up_sync(kFullWarp, up_to_here[half], 1);",
     "float earlier = up_to_here[half];", "walk"),
    ("rev: state of the wrong chunk of the group", "walk_rev.cuh",
     "GradQ<Config>(smem, acc, scratch + i * kSlot,", "GradQ<Config>(smem, acc, scratch,", "walk"),
    ("rev: group recomputed without decay", "walk_rev.cuh",
     "        Scale(state, smem.tables[item % 2].transition);\n", "", "walk"),
    ("rev: gradient crosses a document's start", "walk_rev.cuh",
     "      if ((chunk.flags & kChunkResets) != 0) Clear(adjoint);\n", "", "walk"),
    ("rev: dk without its key scale", "walk_rev.cuh",
     "  ScaleAccumulatorColumns(acc, tables.key_scale);\n", "", "walk"),
    ("rev: dv of the wrong rows", "walk_rev.cuh", "for (int r = 16 * row_tile; r < kChunk; r += 16)",
     "for (int r = 16 * row_tile + 16; r < kChunk; r += 16)", "walk"),
    ("channel: no barrier before the operands are read", "walk_channel.cuh",
     "chunk, place, row);\n      __syncthreads();\n      TileScores",
     "chunk, place, row);\n      TileScores", "channel"),
    ("channel: no barrier before the scores are read", "walk_channel.cuh",
     "      __syncthreads();\n      TileOutput", "      TileOutput", "channel"),
    ("channel: checkpoint one chunk late", "walk_channel.cuh",
     "(index - place.first) % params.checkpoint_every == 0",
     "(index - place.first) % params.checkpoint_every == 1", "channel_rev"),
    ("channel: one buffer of operands", "walk_channel.cuh", "const int buffer = row / kTile % 2;",
     "const int buffer = 0;", "channel"),
    ("channel: the key decays one token too late", "channel_tile.cuh",
     "if (r > s) {", "if (r > s + 1) {", "channel"),
    ("channel: keys decay by their own token too", "walk_channel.cuh",
     "      sum += decay[r];\n    }\n  }\n}", "    }\n  }\n}", "channel"),
    ("channel: state not decayed", "walk_channel.cuh",
     "  ScaleAccumulatorColumns(state, transition);\n", "", "channel"),
    ("channel_rev: no barrier where a tile starts, forward", "walk_channel_rev.cuh",
     "    __syncthreads();\n    at.Advance();\n", "    at.Advance();\n", "channel_rev"),
    ("channel_rev: no barrier before the keys are read, forward", "walk_channel_rev.cuh",
     "ScaleKeysOf(walk, k, tile);\n    __syncthreads();\n", "ScaleKeysOf(walk, k, tile);\n",
     "channel_rev"),
    ("channel_rev: no barrier where a tile starts", "walk_channel_rev.cuh",
     "  __syncthreads();\n  walk.at.Advance();\n", "  walk.at.Advance();\n", "channel_rev"),
    ("channel_rev: no barrier before the operands are read", "walk_channel_rev.cuh",
     "  __syncthreads();\n  if (more) LoadDecaysOf(walk);\n", "  if (more) LoadDecaysOf(walk);\n",
     "channel_rev"),
    ("channel_rev: no barrier before the scores are read", "walk_channel_rev.cuh",
     "Clear(adjoint);\n  __syncthreads();\n", "Clear(adjoint);\n", "channel_rev"),
    ("channel_rev: no barrier before the gradients of pairs are read", "walk_channel_rev.cuh",
     "GradOperands(walk, in, tile);\n  __syncthreads();\n", "GradOperands(walk, in, tile);\n",
     "channel_rev"),
    ("channel_rev: no wait for the tiles", "walk_channel_rev.cuh",
     "  CpAsyncWait<0>();\n  __syncthreads();\n  walk.at.Advance();\n",
     "  __syncthreads();\n  walk.at.Advance();\n", "channel_rev"),
    ("channel_rev: no wait for the tiles, forward", "walk_channel_rev.cuh",
     "    CpAsyncWait<0>();\n    __syncthreads();\n    at.Advance();\n",
     "    __syncthreads();\n    at.Advance();\n", "channel_rev"),
    ("channel_rev: the next tile lands in this one's stage", "walk_channel_rev.cuh",
     "if (more) LoadOperands(smem, grads, walk.at, walk.place, walk.stage);",
     "if (more) LoadOperands(smem, grads, walk.at, walk.place, 1 - walk.stage);", "channel_rev"),
    ("channel_rev: decays of the next tile before this one's are read", "walk_channel_rev.cuh",
     "  PrepareTile(walk, in, tile, state, adjoint);\n",
     "  if (more) LoadDecaysOf(walk);\n  PrepareTile(walk, in, tile, state, adjoint);\n",
     "channel_rev"),
    ("channel_rev: off by one chunk", "walk_channel_rev.cuh", "} else if (chunk > group_begin) {",
     "} else if (chunk > group_begin + 1) {", "channel_rev"),
    ("channel_rev: state of the wrong tile", "walk_channel_rev.cuh",
     "const uint4* const state = walk.StateSlot();",
     "const uint4* const state = walk.scratch + walk.at.slot() / 2 * 2 * walk.kSlot;",
     "channel_rev"),
    ("channel_rev: columns of the fragment from the wrong rows", "walk_channel_rev.cuh",
     "LoadFragment<kV, true>(b, smem.adjoint, rows_v, c, column);",
     "LoadFragment<kV, true>(b, smem.adjoint, rows_v, column, column);", "channel_rev"),
    ("channel_rev: rows and columns of D swapped", "walk_channel_rev.cuh",
     "      sums.dscores[r][s] = dscore;\n", "      sums.dscores[s][r] = dscore;\n", "channel_rev"),
    ("channel_rev: fragment's halves swapped in x", "walk_channel_rev.cuh",
     "const uint32_t a[4] = {packed.x, packed.y, packed.z, packed.w};",
     "const uint32_t a[4] = {packed.x, packed.z, packed.y, packed.w};", "channel_rev"),
    ("channel_rev: states not decayed", "channel_tile.cuh",
     "  ScaleAccumulatorRows(acc, transition + WarpId() * 16);\n", "", "channel_rev"),
    ("channel_rev: R of the last tile skipped", "walk_channel_rev.cuh",
     "  } else if (grads.dfinal_state != nullptr) {", "  } else if (false) {", "channel_rev"),
    ("channel_rev: gradient crosses a document's start", "walk_channel_rev.cuh",
     "  if ((tile.flags & kChunkResets) != 0) Clear(adjoint);\n", "", "channel_rev"),
    ("channel_rev: state crosses a document's start", "walk_channel_rev.cuh",
     "    if ((tile.flags & kChunkResets) != 0) Clear(state);\n", "", "channel_rev"),
    ("channel_rev: the path through the tile dropped", "walk_channel_rev.cuh",
     "float late = smem.sums->transition[c] * smem.sums->through[c]", "float late = 0",
     "channel_rev"),
    ("channel_rev: the pair of a token with itself in its decay", "walk_channel_rev.cuh",
     "    sum_b += key * key_scale * sum;\n", "    sum_b += key * key_scale * (dk - from_after);\n",
     "channel_rev"),
    ("channel_rev: y of token t counted in its own gradient", "walk_channel_rev.cuh",
     "= before - following[t];\n    before += early;", "= (before += early) - following[t];",
     "channel_rev"),
    ("channel_rev: keys decay one token too late", "walk_channel_rev.cuh",
     "      keys[s] *= decay;\n      sum = fmaf(dscores[s], keys[s], sum);\n",
     "      sum = fmaf(dscores[s], keys[s], sum);\n      keys[s] *= decay;\n", "channel_rev"),
    ("channel_rev: dk without its key scale", "walk_channel_rev.cuh",
     "StoreValue(rows, s, c, key_scale * dk);", "StoreValue(rows, s, c, dk);", "channel_rev"),
    ("channel_rev: a decay of 0 keeps rounding as its gradient", "walk_channel_rev.cuh",
     " || smem.decays[t * Config::kK + c] == 0.0f", "", "channel_rev"),
    ("segment: reset does not cut the transition", "segment.cuh",
     "table.log2_transition, resets);", "table.log2_transition, false);", "segment"),
    ("segment: in reverse a NaN of the later document gets through", "tile.cuh",
     "return kReverse ? cut : cut + sum;", "return cut + sum;", "bad_input"),
    ("segment: no barrier", "segment.cuh", "    __syncthreads();\n", "", "segment"),
    ("segment: reset does not cut the transition, decays of channels", "segment_channel.cuh",
     "(log2_transition, sum, resets);", "(log2_transition, sum, false);", "segment"),
    ("segment: a channel's state decays as its neighbour's", "segment_channel.cuh",
     "transition[channel] = Exp2Approx(sum);", "transition[channel ^ 1] = Exp2Approx(sum);",
     "segment"),
    ("segment: no barrier before the operand is read, decays of channels", "segment_channel.cuh",
     "    __syncthreads();\n    if (at.valid()) load_decays", "    if (at.valid()) load_decays",
     "segment"),
    ("segment: no barrier where a tile starts", "segment_channel.cuh",
     "    CpAsyncWait<0>();\n    __syncthreads();\n", "    CpAsyncWait<0>();\n", "segment"),
    ("segment: off by one tile", "segment_channel.cuh",
     "row = reverse && valid() ? LastTile(chunks[chunk]) : 0;\n  }\n  HL_DEVICE void Advance",
     "row = 0;\n  }\n  HL_DEVICE void Advance", "segment"),
    ("segment: scan by one channel's transition", "reduce.cu",
     "piece * params.transitions + element / per_transition];",
     "piece * params.transitions];", "segment"),
    ("segment: scan hands on the state after the segment", "reduce.cu",
     "    *state = carry;\n    carry =", "    *state = carry = ", "segment"),
    ("segment: reverse scan runs forward", "reduce.cu",
     "params.reverse ? params.num_segments - 1 - i : i", "i", "segment"),
    ("checkpoints where the backward wants none", "cuda.cu",
     "if (BackwardRoute(args) == Route::kSimt) params.args.checkpoints = nullptr;", "", "bounds"),
    ("simt: no barrier", "simt.cuh", "      __syncthreads();\n      if (output && last_token",
     "      if (output && last_token", "simt"),
    ("simt: normaliser's gradient dropped", "simt.cuh",
     "        dout = params.dnorm[FlatRow(args, chunk, token, place.head)];\n", "        dout = 0;\n",
     "simt"),
    ("simt: S R at the chunk's end dropped", "simt.cuh",
     "through = fmaf(state[c], adjoint[c], through);", "through = 0;", "simt"),
    ("simt: the chunk's last key counts for its decay", "simt.cuh",
     "if (token + 1 < chunk.length) through -=", "through -=", "simt"),
    ("step: negative slot writes slot 0", "step.cuh", "  if (slot < 0) {", "  if (false) {", "simt"),
    ("step: no barrier before the sums", "step.cuh",
     "    sums[first][column] = y;\n    __syncthreads();\n", "    sums[first][column] = y;\n", "simt"),
    ("far: a row's offset in 32 bits", "tile.cuh",
     "(int64_t{1} * chunk.row * view.stride_b + chunk.token * view.stride_t +\n               head",
     "static_cast<int>(chunk.row * view.stride_b + chunk.token * view.stride_t +\n               head", "far"),
    ("far: a decay's offset in 32 bits", "tile.cuh", "return data[chunk.row * view.stride_b +",
     "return data[(int)chunk.row * (int)view.stride_b +", "far"),
    ("far: rows of flat tensors counted in 32 bits", "simt.cuh", "HL_DEVICE int64_t FlatRow(",
     "HL_DEVICE int FlatRow(", "far"),
    ("far: a step's slot in 32 bits", "step.cuh", "const int64_t slot = ", "const int slot = ", "far"),
    ("far: a summed gradient's offset in 32 bits", "reduce.cu", "const int64_t target = row", "const int target = row",
     "far"),
]


def compile_command(source, target, kind, include):
    return ["g++", "-std=c++20", "-DHL_EMULATE=1", "-w", *FLAGS[kind].split(), f"-I{include}/src",
            f"-I{ROOT}/src", f"-I{ROOT}/tests", f"-I{ROOT}/cmake/cuda_shim", "-isystem",
            os.environ.get("CUDA_INCLUDE", "/usr/local/cuda/include"), "-x", "c++", "-c",
            str(source), "-o", str(target)]


# What a test of a shared header is linked with anew; the rest stays as it is.
INSTANCES = {"walk": ("inst_walk_k", "inst_walk_rev"), "channel": "inst_walk_channel_k",
             "channel_rev": "inst_walk_channel_rev_", "segment": "inst_segment",
             "bad_input": "inst_segment", "simt": "inst_simt_", "far": "inst_"}

DECAY = Family(
    name="decay attention", folder="src/kernels/decay_attention",
    sources=["*.cu", "cuda_workspace.cc", "plan.cc", "chunk_table.cc", "reference.cc"],
    tests={test: f"tests/kernels/decay_attention/cuda_{test}_test.cc" for test in TESTS_OF},
    instances={"tile.cuh": INSTANCES, "channel_tile.cuh": INSTANCES},
    mutations=MUTATIONS)


def dependents(family, source, test):
    """CUDA sources of the family that see `source`, as far as the test runs them."""
    instances = family.instances[source][test] if source in family.instances else ()
    sources = [path for pattern in family.sources if pattern.endswith(".cu")
               for path in family.find(pattern)]
    return [path for path in sources
            if path == ROOT / family.folder / source or f"/{source}" in path.read_text()
            or (instances and path.name.startswith(instances))]


def object_name(source):
    return f"{source.parent.name}_{source.name}.o"


class Builder:
    def __init__(self, family, kind, jobs):
        self.family, self.kind, self.jobs = family, kind, jobs
        self.base = pathlib.Path(tempfile.mkdtemp(prefix="mutations_"))
        self.tests = {test: ROOT / path for test, path in family.tests.items()}
        self.objects = {}

    def run_all(self, commands):
        with concurrent.futures.ThreadPoolExecutor(self.jobs) as pool:
            for result in pool.map(lambda c: subprocess.run(c, capture_output=True, text=True),
                                   commands):
                if result.returncode != 0:
                    raise RuntimeError(result.stderr[:2000])

    def build_base(self):
        sources = [path for pattern in self.family.sources for path in self.family.find(pattern)]
        sources += [ROOT / "src/core/error.cc", *(ROOT / "src/kernels/emu").glob("*.cc")]
        sources += self.tests.values()
        commands = []
        for source in sources:
            target = self.base / object_name(source)
            self.objects[source] = target
            command = compile_command(source, target, self.kind, ROOT)
            # The emulator's scheduler itself is never instrumented for races.
            if self.kind == "tsan" and source.parent.name == "emu" and source.name != "access.cc":
                command = [c for c in command if c != "-fsanitize=thread"] + ["-DHL_EMU_TSAN=1"]
            commands.append(command)
        self.run_all(commands)

    def link(self, objects, test, target):
        others = set(self.tests.values()) - {self.tests[test]}
        files = [str(path) for source, path in objects.items() if source not in others]
        sanitize = [f for f in FLAGS[self.kind].split() if f.startswith("-fsanitize")]
        subprocess.run(["g++", *sanitize, *files, "-o", str(target), "-lgmock", "-lgtest",
                        "-lgtest_main", "-lpthread"], check=True, capture_output=True)

    def build_mutant(self, source, text, test):
        """The test's binary with `source`, a path below the family's folder, replaced by `text`."""
        copy = pathlib.Path(tempfile.mkdtemp(dir=self.base))
        changed = copy / self.family.folder / source
        changed.parent.mkdir(parents=True)
        changed.write_text(text)
        objects, commands = {}, []
        for path in dependents(self.family, source, test):
            origin = changed if path == ROOT / self.family.folder / source else path
            objects[path] = copy / object_name(path)
            commands.append(compile_command(origin, objects[path], self.kind, copy))
        self.run_all(commands)
        # Changed objects first: of an inline function that others hold too, the linker takes the first.
        others = {path: target for path, target in self.objects.items() if path not in objects}
        self.link({**objects, **others}, test, copy / "test")
        return copy / "test"


def verdict_of(binary, timeout):
    """(caught, by what)."""
    for order in ("forward", "random"):
        environment = dict(os.environ, HL_EMU_ORDER=order, TSAN_OPTIONS="halt_on_error=1")
        try:
            result = subprocess.run([str(binary)], capture_output=True, text=True, timeout=timeout,
                                    env=environment, errors="replace")
        except subprocess.TimeoutExpired:
            return True, f"no end within {timeout} s ({order} order)"
        text = result.stdout + result.stderr
        if result.returncode == 0:
            continue
        for pattern in (r"SUMMARY: (\w+Sanitizer: .*)", r"(runtime error: .*)",
                        r'description "([^"\n]{0,150})'):
            if match := re.search(pattern, text):
                failed = re.search(r"\[ RUN +\] (\S+)(?![\s\S]*\[ RUN)", text)
                return True, f"{match[1][:140]} ({failed[1] + ', ' if failed else ''}{order} order)"
        failed = sorted(set(re.findall(r"\[  FAILED  \] ([\w/]+\.\w+)", text)))
        if failed:
            return True, f"{failed[0]} and {len(failed) - 1} more ({order} order)"
        return True, f"exit {result.returncode} ({order} order)"
    return False, "nothing"


def try_mutation(builder, timeout, name, source, text, replacement, test):
    """Whether the test caught it; says how."""
    original = (ROOT / builder.family.folder / source).read_text()
    if original.count(text) != 1:
        print(f"STALE     {name}: matches {original.count(text)} times in {source}")
        return False
    try:
        binary = builder.build_mutant(source, original.replace(text, replacement), test)
        caught, what = verdict_of(binary, timeout)
        shutil.rmtree(binary.parent)
    except RuntimeError as error:
        caught, what = False, f"does not compile: {str(error)[:200]}"
    print(f"{'caught  ' if caught else 'SURVIVED'}  {name}: {what}", flush=True)
    return caught


def survivors_of(family, kind, mutations, options):
    builder = Builder(family, kind, options.jobs)
    start = time.time()
    builder.build_base()
    print(f"{family.name}, {kind}: unchanged sources built in {time.time() - start:.0f} s",
          flush=True)
    for test in sorted({m[4] for m in mutations}):
        binary = builder.base / test
        builder.link(builder.objects, test, binary)
        caught, what = verdict_of(binary, options.timeout)
        if caught:
            sys.exit(f"the unchanged {test} test fails: {what}")
    survivors = [m for m in mutations if not try_mutation(builder, options.timeout, *m)]
    shutil.rmtree(builder.base)
    return survivors


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="mutations with this in their name")
    parser.add_argument("--kind", choices=[*FLAGS, "all"], default="plain")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--timeout", type=int, default=120, help="seconds for a run of a test")
    options = parser.parse_args()
    kinds = list(FLAGS) if options.kind == "all" else [options.kind]
    survivors = []
    for family in (DECAY, STEP, ADAMW):
        left = [m for m in family.mutations if options.only in m[0]]
        for kind in kinds:
            if left:
                left = survivors_of(family, kind, left, options)
        survivors += left
    print(f"{len(survivors)} survived" + "".join(f"\n  {m[0]}" for m in survivors))
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
