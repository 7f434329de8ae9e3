#!/usr/bin/env python3
"""Checks the machine code of the CUDA kernels. Fails if a kernel uses local memory, lacks the tensor-core,
asynchronous-copy or matrix-load instructions of its design, or has synchronous loads in its loop over tiles.

Reads object files, archives or programs with `cuobjdump -sass`, or its output:

  tests/kernels/sass_gate.py build/cuda/src/kernels/CMakeFiles/hl_kernels.dir
  cuobjdump -sass scan.o | tests/kernels/sass_gate.py -

A folder means all .cu.o files below it. No kernel may use local memory. RULES lists additional requirements of some
kernels. Exit codes: 1: a kernel fails; 2: no kernel found; 77: cuobjdump or nvdisasm is missing. Needs no GPU.
"""

import argparse
import collections
import concurrent.futures
import pathlib
import re
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from resource_gate import demangle

# Spills and arrays indexed at run time.
LOCAL_MEMORY = ("LDL", "STL")
# Kernel (regular expression for the start of its demangled name) -> (instruction, purpose). Each instruction is
# required at least once. A kernel of this table that is missing in the input fails too, so that the table matches the
# code.
MMA = (("HMMA", "mma.sync"), ("LDSM", "ldmatrix"), ("LDGSTS", "cp.async"))
WARPGROUPS = (("LDSM", "ldmatrix"), ("HGMMA", "wgmma"), ("UTMALDG", "bulk copies"))
# fp32 operands are split into two bf16 terms between global and shared memory, so they pass through registers.
TWO_TERMS = MMA[:2]
RULES = {
    r"ChunkScanKernel<ChunkScanConfig<\d+, \d+, \w+, 2": TWO_TERMS,
    r"ReverseScanKernel<ReverseScanConfig<\d+, \d+, \d+, 2": TWO_TERMS,
    r"StateScanKernel<StateScanConfig<\d+, \d+, \w+, 2": TWO_TERMS,
    "ChunkScanKernel": MMA,
    "ChannelScanKernel": MMA,
    "ReverseScanKernel": MMA,
    "ChannelReverseScanKernel": MMA,
    "StateScanKernel": MMA,
    "ChannelStateScanKernel": MMA,
    "ChannelChunkOperandsKernel": MMA,
    "ChannelChunkGradientsKernel": MMA,
    "ChannelWarpgroupScanKernel": MMA[1:2] + (("HGMMA", "wgmma"), ("UTMALDG", "bulk copies")),
    "delta::PrepareKernel": MMA[:1] + MMA[2:],
    "delta::ScanKernel": MMA[:1] + MMA[2:],
    "delta::OutputKernel": MMA[:1] + MMA[2:],
    "delta::TokenScanKernel": WARPGROUPS + (("UBLKCP", "bulk copies of decays"),),
    "delta::WarpgroupScanKernel": WARPGROUPS + (("UBLKCP", "bulk copies of decays"),),
    "delta::WarpgroupAdjointScanKernel": WARPGROUPS + (("UBLKCP", "bulk copies of decays"),),
    "delta::AdjointScanKernel": MMA[:1] + MMA[2:],
    "delta::TokenGradientsKernel": MMA[:1] + MMA[2:],
    "delta::ChannelGradientsKernel": MMA[:1] + MMA[2:],
    "pairs::ForwardKernel": MMA,
    "pairs::QueryGradientKernel": MMA,
    "pairs::KeyGradientKernel": MMA,
    "pairs::BiasGradientKernel": MMA,
    "WarpgroupStatesKernel": WARPGROUPS + (("UBLKCP", "bulk copies of factors"),),
    "WarpgroupScanKernel": WARPGROUPS,
    "WarpgroupGradientsKernel": WARPGROUPS,
}
# Kernels in which a warpgroup transfers registers to others on sm_90a with setmaxnreg, which ptxas may ignore.
REGISTER_TRANSFERS = re.compile(r"WarpgroupScanKernel\b|ChannelWarpgroupScanKernel<ChannelWarpgroupConfig<\d+, 128>|delta::TokenScanKernel")
# Kernels whose body is compiled for only one architecture.
ONLY_FOR = {"WarpgroupStatesKernel": "sm_90a", "WarpgroupScanKernel": "sm_90a", "ChannelWarpgroupScanKernel": "sm_90a",
            "WarpgroupGradientsKernel": "sm_90a", "delta::TokenScanKernel": "sm_90a",
            "delta::WarpgroupScanKernel": "sm_90a",
            "delta::WarpgroupAdjointScanKernel": "sm_90a", "ChannelChunkGradientsKernel": "sm_90a"}
# Kernels whose loop over tiles reads global memory by asynchronous copies -> allowed number of other loads (LDG) in it.
# The loop over tiles is the innermost one with products and a barrier of the block or an mbarrier. A synchronous load
# would delay every tile. The allowed loads read the 24-byte entry of a chunk, one chunk before it is used.
PLAIN_LOADS = {"ChannelScanKernel": 4, "delta::TokenScanKernel": 0, "delta::WarpgroupScanKernel": 0, "delta::WarpgroupAdjointScanKernel": 0}

ARCH = re.compile(r"^\s*(?:code for|arch =) (sm_\w+)")
FUNCTION = re.compile(r"^\s*Function : (\S+)")
INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9]*)(.*)")
BRANCH_TARGET = re.compile(r"\b0x([0-9a-f]+)\b")


class Kernel(collections.Counter):
    """Counts of instructions without their suffixes. `code` is [(address, name)] of all instructions. `loops` is
    [(first address, last address)] of all backward branches."""

    def __init__(self):
        super().__init__()
        self.code, self.loops = [], []

    def add(self, address, name, rest):
        self[name] += 1
        self.code.append((address, name))
        if name == "BRA" and (target := BRANCH_TARGET.search(rest.split(";")[0])):
            if int(target[1], 16) <= address:
                self.loops.append((int(target[1], 16), address))

    def tile_loop(self):
        """Returns the counts of the shortest loop with a barrier and products. Empty if there is none."""
        found = []
        for first, last in self.loops:
            inside = collections.Counter(name for at, name in self.code if first <= at <= last)
            if (inside["BAR"] and inside["HMMA"]) or (inside["SYNCS"] and inside["HGMMA"]):
                found.append(inside)
        return min(found, key=lambda counts: sum(counts.values()), default=collections.Counter())


def parse(lines):
    """Returns {(symbol, arch): Kernel} from the output of cuobjdump."""
    kernels, arch, current = {}, "", None
    for line in lines:
        if match := ARCH.match(line):
            # Some versions of cuobjdump print `arch = sm_90a`, and then `code for sm_90`.
            arch, current = arch if arch == match[1] + "a" else match[1], None
        elif match := FUNCTION.match(line):
            current = kernels.setdefault((match[1], arch), Kernel())
        elif current is not None and (match := INSTRUCTION.match(line)):
            current.add(int(match[1], 16), match[2], match[3])
    return kernels


def rule_of(name):
    return next((rule for start, rule in RULES.items() if re.match(rf"{start}\b", name)), ())


def problems_of(name, arch, counts):
    found = [f"{counts[one]} {one}: local memory" for one in LOCAL_MEMORY if counts[one]]
    if any(re.match(rf"{start}\b", name) and arch != only for start, only in ONLY_FOR.items()):
        return found
    found += [f"no {one} ({what})" for one, what in rule_of(name) if not counts[one]]
    if REGISTER_TRANSFERS.match(name) and not counts["USETMAXREG"]:
        found.append("no USETMAXREG (registers for the warpgroups that multiply)")
    most = next((most for start, most in PLAIN_LOADS.items() if re.match(rf"{start}\b", name)), None)
    if most is not None:
        loop = counts.tile_loop()
        if not loop:
            found.append("no loop over tiles, with a barrier and products")
        elif loop["LDG"] > most:
            found.append(f"{loop['LDG']} LDG in the loop over tiles: synchronous loads of global memory; {most} are allowed")
    return found


def report(kernels, out):
    """Prints a line per kernel. Returns the number of failures."""
    names = demangle(sorted({symbol for symbol, _ in kernels}))
    failed = 0
    print(f"{'arch':8}{'HMMA':>6}{'LDSM':>6}{'LDGSTS':>8}{'local':>7}  kernel", file=out)
    for (symbol, arch), counts in sorted(kernels.items(), key=lambda x: (names[x[0][0]], x[0][1])):
        found = problems_of(names[symbol], arch, counts)
        failed += bool(found)
        local = sum(counts[one] for one in LOCAL_MEMORY)
        note = "   FAILS: " + "; ".join(found) if found else ""
        print(f"{arch:8}{counts['HMMA']:>6}{counts['LDSM']:>6}{counts['LDGSTS']:>8}{local:>7}  "
              f"{names[symbol]}{note}", file=out)
    missing = [start for start in RULES
               if not any(re.match(rf"{start}\b", name) for name in names.values())]
    for start in missing:
        print(f"{start}: no such kernel in the input, but RULES lists it  FAILS", file=out)
    print(f"{len(kernels)} kernels, {failed + len(missing)} fail", file=out)
    return failed + len(missing)


def skip(reason):
    print(f"SKIPPED: {reason}. The CUDA toolkit and pip's triton (backends/nvidia/bin) contain cuobjdump and nvdisasm.")
    sys.exit(77)


def find_cuobjdump():
    for place in (shutil.which("cuobjdump"), "/usr/local/cuda/bin/cuobjdump"):
        if place and pathlib.Path(place).exists():
            return place
    return None


def disassemble(tool, path):
    done = subprocess.run([tool, "-sass", str(path)], capture_output=True, text=True, check=False)
    if done.returncode != 0 and "Could not find executable file 'nvdisasm'" in done.stderr:
        skip(f"{tool} needs nvdisasm in PATH")
    if done.returncode != 0:
        sys.exit(f"{tool} -sass {path}: exit {done.returncode}: {done.stderr.strip()}")
    return done.stdout.splitlines()


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("inputs", nargs="+", help="objects, archives, programs or folders; -: output of cuobjdump")
    parser.add_argument("--cuobjdump", metavar="FILE", help="(default: cuobjdump in PATH or /usr/local/cuda/bin)")
    options = parser.parse_args()
    kernels = {}
    for given in options.inputs:
        if given == "-":
            kernels.update(parse(sys.stdin))
            continue
        path = pathlib.Path(given)
        tool = options.cuobjdump or find_cuobjdump()
        if tool is None:
            skip("cuobjdump was not found in PATH or /usr/local/cuda/bin")
        files = sorted(path.rglob("*.cu.o")) if path.is_dir() else [path]
        with concurrent.futures.ThreadPoolExecutor(2) as pool:  # cuobjdump takes most of the time
            for lines in pool.map(lambda file, tool=tool: disassemble(tool, file), files):
                kernels.update(parse(lines))
    if not kernels:
        print("no kernel found. Pass an object that nvcc compiled for a real architecture (sm_*).", file=sys.stderr)
        return 2
    return 1 if report(kernels, sys.stdout) else 0


if __name__ == "__main__":
    sys.exit(main())
