#!/usr/bin/env python3
"""Checks the resources of the CUDA kernels. Fails if a kernel spills, has a stack frame, or uses more registers than
its budget, or if ptxas serialized its WGMMA instructions or ignored its setmaxnreg.

Reads the output of nvcc with -Xptxas -v, from files or standard input:

  nvcc -Xptxas -v ... 2>&1 | tests/kernels/resource_gate.py
  tests/kernels/resource_gate.py build/*.ptxas.log
  tests/kernels/resource_gate.py --record build/*.ptxas.log     # updates the budget after an intended change

The budget, tests/kernels/resource_budget.json, is {"kernel": {"sm_90a": registers}}. A kernel that it does not list
fails too. Needs no GPU.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys

SLACK = 4  # allowed excess over the budget, because registers vary between compiler versions
ROOT = pathlib.Path(__file__).resolve().parents[2]
ENTRY = re.compile(r"Compiling entry function '(\S+)' for '(sm_\w+)'")
FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
SHARED = re.compile(r"(\d+) bytes smem")
# These messages do not always name a function.
IGNORED = re.compile(r"\((C75\d\d)\).*'setmaxnreg' ignored.*")
LOSS = re.compile(r"\((C75\d\d)\) (.*?)(?: (?:for|in) (?:the )?function)? '(\S+)'")


def demangle(names):
    text = subprocess.run(["c++filt"], input="\n".join(names), text=True, capture_output=True,
                          check=True).stdout
    short = []
    for line in text.splitlines():
        line = re.sub(r"^void ", "", line)
        line = re.sub(r"\((?!anonymous namespace\)).*$", "", line.replace("(anonymous namespace)::", ""))
        line = re.sub(r"halflife::kernels::|decay::", "", line)
        line = re.sub(r"\((?:int|bool)\)", "", line)
        short.append(line)
    return dict(zip(names, short))


def parse(lines):
    """Returns [{name, arch, registers, shared, frame, spills}], one entry per kernel and architecture."""
    kernels, current, losses = [], None, {}
    for line in lines:
        if not IGNORED.search(line) and (match := LOSS.search(line)):
            losses[match[3]] = f"{match[1]}, {match[2]}"
        if match := ENTRY.search(line):
            current = {"symbol": match[1], "arch": match[2], "frame": 0, "spills": 0}
        elif current is not None and (match := FRAME.search(line)):
            current["frame"] = int(match[1])
            current["spills"] = int(match[2]) + int(match[3])
        elif current is not None and (match := USED.search(line)):
            current["registers"] = int(match[1])
            shared = SHARED.search(line)
            current["shared"] = int(shared[1]) if shared else 0
            kernels.append(current)
            current = None
    names = demangle([kernel["symbol"] for kernel in kernels])
    for kernel in kernels:
        kernel["name"] = names[kernel["symbol"]]
        kernel["loss"] = losses.get(kernel["symbol"]) if kernel["arch"] == "sm_90a" else None
    return sorted(kernels, key=lambda kernel: (kernel["name"], kernel["arch"]))


def problems_of(kernel, budget):
    found = []
    if kernel["frame"]:
        found.append(f"stack frame of {kernel['frame']} bytes")
    if kernel["spills"]:
        found.append(f"{kernel['spills']} bytes of spills")
    if kernel["loss"]:
        found.append(kernel["loss"])
    allowed = budget.get(kernel["name"], {}).get(kernel["arch"])
    if allowed is None:
        found.append("not in the budget")
    elif kernel["registers"] > allowed + SLACK:
        found.append(f"{kernel['registers']} registers, budget {allowed} + {SLACK}")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("logs", nargs="*", help="logs of nvcc (default: standard input)")
    parser.add_argument("--budget", default=ROOT / "tests/kernels/resource_budget.json")
    parser.add_argument("--record", action="store_true", help="write the budget from the logs")
    options = parser.parse_args()
    lines = [] if options.logs else sys.stdin.read().splitlines()
    for log in options.logs:
        lines += pathlib.Path(log).read_text().splitlines()
    kernels = parse(lines)
    if not kernels:
        print("no kernel found. Delete the objects of the kernels, and compile them with -Xptxas -v.", file=sys.stderr)
        return 2
    path = pathlib.Path(options.budget)
    budget = json.loads(path.read_text()) if path.exists() else {}
    if options.record:
        for kernel in kernels:
            budget.setdefault(kernel["name"], {})[kernel["arch"]] = kernel["registers"]
        path.write_text(json.dumps(budget, indent=2, sort_keys=True) + "\n")
    failures = [f"FAILS: {line.strip()}" for line in lines if IGNORED.search(line)]
    print(f"{'arch':8}{'registers':>10}{'static shared':>15}  kernel")
    for kernel in kernels:
        found = problems_of(kernel, budget)
        print(f"{kernel['arch']:8}{kernel['registers']:>10}{kernel['shared']:>15}  {kernel['name']}")
        if found:
            failures.append(f"FAILS: {kernel['name']} for {kernel['arch']}: {'; '.join(found)}")
    print(*failures, f"{len(kernels)} kernels, {len(failures)} failures", sep="\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
