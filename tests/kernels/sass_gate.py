#!/usr/bin/env python3
"""Fails if the machine code of a CUDA kernel is not as intended: it uses local memory, it lacks the tensor-core,
asynchronous-copy or matrix-load instructions of its design, or a tile waits for a load.

Reads object files, archives or programs with `cuobjdump -sass`, or its output:

  tests/kernels/sass_gate.py build/cuda/src/kernels/CMakeFiles/hl_kernels.dir
  cuobjdump -sass scan.o | tests/kernels/sass_gate.py -

A folder means all .cu.o files below it. No kernel may use local memory. RULES lists additional requirements of some
kernels. Exit code 1: a kernel fails; 2: no kernel found; 77: cuobjdump or nvdisasm is missing. Needs no GPU.
"""

import argparse
import collections
import pathlib
import re
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from resource_gate import demangle  # noqa: E402

# Spills and arrays indexed at run time.
LOCAL_MEMORY = ("LDL", "STL")
# Kernel (prefix of its demangled name) -> (instruction, purpose), each required at least once. A kernel of the table
# that is missing in the input fails too, so that the table follows the code.
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
# Kernels in which a warpgroup gives registers to others on sm_90a. ptxas may ignore the instruction.
REGISTER_TRANSFERS = re.compile(r"WarpgroupScanKernel\b|ChannelWarpgroupScanKernel<ChannelWarpgroupConfig<\d+, 128>|delta::TokenScanKernel")
# Kernels that have a body only for one architecture.
ONLY_FOR = {"WarpgroupStatesKernel": "sm_90a", "WarpgroupScanKernel": "sm_90a", "ChannelWarpgroupScanKernel": "sm_90a",
            "WarpgroupGradientsKernel": "sm_90a", "delta::TokenScanKernel": "sm_90a",
            "delta::WarpgroupScanKernel": "sm_90a",
            "delta::WarpgroupAdjointScanKernel": "sm_90a", "ChannelChunkGradientsKernel": "sm_90a"}
# Kernels whose loop over tiles, the innermost with a barrier (of the block, or an mbarrier) and products, reads global
# memory by asynchronous copies, and the most other loads in it: any that a tile wants would be waited for in every
# tile. The known ones are the entry of a chunk, 24 bytes, which is there a chunk before it is used.
PLAIN_LOADS = {"ChannelScanKernel": 4, "delta::TokenScanKernel": 0, "delta::WarpgroupScanKernel": 0, "delta::WarpgroupAdjointScanKernel": 0}

ARCH = re.compile(r"^\s*(?:code for|arch =) (sm_\w+)")
FUNCTION = re.compile(r"^\s*Function : (\S+)")
INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9]*)(.*)")
BRANCH_TARGET = re.compile(r"\b0x([0-9a-f]+)\b")


class Kernel(collections.Counter):
    """Counts of instructions without their suffixes, and the instructions: [(address, name)]."""

    def __init__(self):
        super().__init__()
        self.code, self.loops = [], []  # loops: (first, last address) of each branch back

    def add(self, address, name, rest):
        self[name] += 1
        self.code.append((address, name))
        if name == "BRA" and (target := BRANCH_TARGET.search(rest.split(";")[0])):
            if int(target[1], 16) <= address:
                self.loops.append((int(target[1], 16), address))

    def tile_loop(self):
        """Returns the counts within the shortest loop with a barrier and products. Empty: there is none."""
        found = []
        for first, last in self.loops:
            inside = collections.Counter(name for at, name in self.code if first <= at <= last)
            if (inside["BAR"] and inside["HMMA"]) or (inside["SYNCS"] and inside["HGMMA"]):
                found.append(inside)
        return min(found, key=lambda counts: sum(counts.values()), default=collections.Counter())


def parse(lines):
    """{(symbol, arch): Kernel}."""
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
            found.append(f"{loop['LDG']} LDG in the loop over tiles: plain loads from global memory; {most} are known")
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
        print(f"{start}: no such kernel in the input, but a rule for it  FAILS", file=out)
    print(f"{len(kernels)} kernels, {failed + len(missing)} fail", file=out)
    return failed + len(missing)


def skip(reason):
    print(f"SKIPPED: {reason}; the CUDA toolkit has both, and so has pip's triton (backends/nvidia/bin)")
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
    parser.add_argument("inputs", nargs="+", help="objects, archives, programs, folders; -: cuobjdump's output")
    parser.add_argument("--cuobjdump", help="where it is not in PATH")
    options = parser.parse_args()
    kernels = {}
    for given in options.inputs:
        if given == "-":
            kernels.update(parse(sys.stdin))
            continue
        path = pathlib.Path(given)
        tool = options.cuobjdump or find_cuobjdump()
        if tool is None:
            skip("no cuobjdump in PATH or /usr/local/cuda/bin (it needs nvdisasm, too)")
        for file in sorted(path.rglob("*.cu.o")) if path.is_dir() else [path]:
            kernels.update(parse(disassemble(tool, file)))
    if not kernels:
        print("no kernel found: is this an object of nvcc for a real architecture?", file=sys.stderr)
        return 2
    return 1 if report(kernels, sys.stdout) else 0


if __name__ == "__main__":
    sys.exit(main())
