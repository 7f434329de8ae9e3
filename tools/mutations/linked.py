#!/usr/bin/env python3
"""Plants bugs in copies of what g++ compiles (mixers, LibTorch's side of the kernels, CPU kernels,
what divides a step among ranks) and reports which test of a built tree caught each.

  tools/mutations/linked.py                          # all, in build/cpu
  tools/mutations/linked.py --only d2d --build DIR   # those with the word in their name

Each bug is compiled with the tree's own command and linked before the tree's libraries. A test is a
target of the tree, which must have been built, with a filter perhaps: TARGET or TARGET:FILTER. Of a
header that each instruction set compiles, the baseline alone is compiled anew. Exit code 1 if a bug
survives.
"""

import argparse
import json
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

from family import ROOT
import attention
import fine_tuning
import layers
import mixers
import ranks
from run import verdict_of

MUTATIONS = (mixers.MUTATIONS + ranks.MUTATIONS + attention.MUTATIONS + fine_tuning.MUTATIONS +
             layers.MUTATIONS)
INCLUDED = re.compile(r'#include "(.+)"')  # of a file that compiles a folder
OTHER_INSTRUCTION_SETS = ("avx2.cc", "avx512.cc")


class Tree:
    def __init__(self, folder):
        self.folder = folder.resolve()
        entries = json.loads((self.folder / "compile_commands.json").read_text())
        # not those that an emulated test compiles into itself
        self.compiled = {pathlib.Path(e["file"]).relative_to(ROOT): shlex.split(e["command"])
                         for e in entries
                         if pathlib.Path(e["file"]).is_relative_to(ROOT / "src") and " -o src/" in e["command"]}
        self.folders = {}  # source -> the file that compiles it with the others of its folder
        for entry in entries:
            if pathlib.Path(entry["file"]).parent.name != "folders":
                continue
            for source in INCLUDED.findall(pathlib.Path(entry["file"]).read_text()):
                source = pathlib.Path("src", source)
                self.compiled[source] = shlex.split(entry["command"])
                self.folders[source] = pathlib.Path(entry["file"])

    def units_of(self, source):
        """What is compiled anew where `source`, below src/, has changed."""
        if source in self.compiled:
            return [source]
        seen, left = set(), [source]  # headers of the family that see it, by way of others too
        while left:
            header = f'"{left.pop().relative_to("src")}"'
            for path in (ROOT / pathlib.Path(*source.parts[:3])).rglob("*"):
                reader = path.relative_to(ROOT)
                if path.suffix in (".h", ".cc") and reader not in seen and header in path.read_text():
                    seen.add(reader)
                    left.append(reader)
        units = [unit for unit in sorted(seen)
                 if unit in self.compiled and unit.name not in OTHER_INSTRUCTION_SETS]
        if not units:
            raise RuntimeError(f"nothing that is compiled sees {source}")
        return list({self.folders.get(unit, unit): unit for unit in units}.values())

    def place_of(self, unit, copy):
        """What to compile of a unit: its folder's file, which finds what `copy` has there first."""
        if unit in self.folders:
            return self.folders[unit]
        return copy / unit if (copy / unit).exists() else ROOT / unit

    def compile(self, unit, copy):
        """The object of a unit that sees the sources in `copy` first."""
        command = list(self.compiled[unit])
        target = copy / f"{unit.parent.name}_{unit.name}.o"
        command[command.index("-o") + 1] = str(target)
        command[command.index("-c") + 1] = str(self.place_of(unit, copy))
        command[1:1] = ["-w", f"-I{copy / 'src'}"]
        command = [c for c in command if c != "-Werror"]
        run = subprocess.run(command, cwd=self.folder, capture_output=True, text=True)
        if run.returncode != 0:
            raise RuntimeError(run.stderr[:2000])
        return target

    def link(self, target, objects, binary):
        commands = subprocess.run(["ninja", "-t", "commands", target], cwd=self.folder, check=True,
                                  capture_output=True, text=True).stdout.splitlines()
        words = shlex.split(commands[-1])
        words = words[words.index("&&") + 1:]
        words = words[:words.index("&&")]
        place = words.index("-o")
        words[place:place + 2] = [*map(str, objects), "-o", str(binary)]
        subprocess.run(words, cwd=self.folder, check=True, capture_output=True)

    def binary_of(self, target):
        found = [path for path in (self.folder / "tests").rglob(target) if path.is_file()]
        if len(found) != 1:
            sys.exit(f"{target} is not built in {self.folder}; `ninja -C {self.folder} {target}`")
        return found[0]


def filtered(binary, test, folder):
    """A program that runs the test's part of the binary."""
    script = folder / "run"
    _, _, wanted = test.partition(":")
    script.write_text(f"#!/bin/sh\nOMP_NUM_THREADS=1 exec {shlex.quote(str(binary))} "
                      f"--gtest_filter={shlex.quote(wanted or '*')} \"$@\"\n")
    script.chmod(0o755)
    return script


def try_mutation(tree, timeout, name, source, text, replacement, test):
    """Whether the test caught it; says how."""
    original = (ROOT / source).read_text()
    if original.count(text) != 1:
        print(f"STALE     {name}: matches {original.count(text)} times in {source}")
        return False
    copy = pathlib.Path(tempfile.mkdtemp(prefix="mutation_"))
    try:
        changed = copy / source
        changed.parent.mkdir(parents=True)
        changed.write_text(original.replace(text, replacement))
        objects = [tree.compile(unit, copy) for unit in tree.units_of(pathlib.Path(source))]
        tree.link(test.partition(":")[0], objects, copy / "test")
        caught, what = verdict_of(filtered(copy / "test", test, copy), timeout)
    except RuntimeError as error:
        caught, what = False, f"does not compile: {str(error)[:200]}"
    finally:
        shutil.rmtree(copy)
    print(f"{'caught  ' if caught else 'SURVIVED'}  {name}: {what}", flush=True)
    return caught


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="mutations with this in their name")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/cpu")
    parser.add_argument("--timeout", type=int, default=600, help="seconds for a run of a test")
    options = parser.parse_args()
    tree = Tree(options.build)
    mutations = [m for m in MUTATIONS if options.only in m[0]]
    with tempfile.TemporaryDirectory() as folder:
        for test in sorted({m[4] for m in mutations}):
            binary = tree.binary_of(test.partition(":")[0])
            caught, what = verdict_of(filtered(binary, test, pathlib.Path(folder)), options.timeout)
            if caught:
                sys.exit(f"the unchanged {test} fails: {what}")
    survivors = [m for m in mutations if not try_mutation(tree, options.timeout, *m)]
    print(f"{len(mutations) - len(survivors)} caught, {len(survivors)} survived"
          + "".join(f"\n  {m[0]}" for m in survivors))
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
