#!/usr/bin/env python3
"""Runs the binary with damaged, replaced and missing files, and with I/O that fails.

  hostile_folders_test.py --halflife build/cpu/src/cli/halflife              # a short test
  hostile_folders_test.py --halflife ... --run-mutations 300 --dataset-mutations 150 \\
      --io-errors 60 --seed 5                                                # a long test: 20 minutes
  hostile_folders_test.py --halflife ... --seed 5 --only run-17              # repeats one case

A case damages one file or folder of a small run or dataset and then starts one to three commands, or
makes one call into the C library fail while a command runs. Every command must end by itself with an
exit code of the project. It must either report the damage or give the right result: the same losses,
scores and files, bit for bit. Files outside the folder must not change. Prints one line per fault, and
exits with 1 if there is one. A case depends only on the seed and its name, except that files with times
differ slightly between calls.
"""

import argparse
import collections
import concurrent.futures
import pathlib
import random
import shutil
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from hostile import commands, io_errors, mutations, verdict
from hostile.lab import Halflife, Lab


class Session:
    """One call of this program: labs, cases and their results."""

    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        self.halflife = Halflife(options.halflife.resolve(), options.limit)
        self.pool = concurrent.futures.ThreadPoolExecutor(options.jobs)
        self.labs = list(self.pool.map(
            lambda name: Lab(self.halflife, folder / f"lab-{name}", name), ["bytes", "pieces"]))

    def place(self, name, lab):
        folder = self.folder / name
        for made in ("out", "outside"):
            (folder / made).mkdir(parents=True)
        mutations.make_outside(folder / "outside")
        shutil.copytree(lab.run, folder / "run")
        return commands.Place(lab, folder)

    def mutate(self, part, number, target, action, lab):
        """Runs one case of damage. Returns counts and the lines to print."""
        name = f"{part}-{number}"
        rng = random.Random(f"{self.options.seed}/{name}")
        place = self.place(name, lab)
        root = place.run
        if part == "data":
            root = place.folder / "data"
            shutil.copytree(lab.data, root)
        place.target, place.choice = target, rng.randrange(1 << 16)
        detail = mutations.apply(root, target, action, rng, place.outside)
        table = commands.RUN_COMMANDS if part == "run" else commands.DATA_COMMANDS
        what = f"{lab.tokenizer}, {part}/{target}: {action}{' ' + detail if detail else ''}"
        counts, lines = collections.Counter(), []
        for command in commands.choose(table, rng.randint(1, 3), rng):
            self.one_command(name, what, command, place, counts, lines)
        self.clean(place.folder, lines)
        return counts, lines

    def one_command(self, name, what, command, place, counts, lines):
        place.remember()
        before = verdict.snapshot(place.outside)
        result = self.halflife.run(command.arguments(place), place.folder)
        problems = commands.judge(command, place, result)
        problems += verdict.changes(place.outside, before)
        counts[verdict.category(problems, result)] += 1
        lines += [self.describe(name, f"{what}, {command.name}", problem, result)
                  for problem in problems]

    def describe(self, name, what, problem, result):
        def short(text):
            return text.replace(f"{self.folder}/", "")
        words = short(" ".join(result.command[1:]))
        last = " | ".join(short(result.err).splitlines()[-3:])
        return (f"FAULT {name} (--seed {self.options.seed} --only {name}): {what}: {problem}\n"
                f"    halflife {words}\n    exit {result.code}: {last[-600:]}")

    def clean(self, folder, lines):
        if not (lines and self.options.keep):
            shutil.rmtree(folder, ignore_errors=True)

    def mutation_cases(self, part, count):
        """Distributes cases over all pairs of target and action. No pair repeats before each occurred once."""
        planted = mutations.PLANTED_IN_RUN if part == "run" else mutations.PLANTED_IN_DATASET
        pairs = [(target, action, lab) for lab in self.labs for target, action in
                 mutations.all_mutations(lab.run if part == "run" else lab.data, planted)]
        random.Random(f"{self.options.seed}/{part}").shuffle(pairs)
        return {f"{part}-{i}": (self.mutate, part, i, *pairs[i % len(pairs)])
                for i in self.numbers(part, count)}

    def numbers(self, part, count):
        """Returns the numbers of the selected cases of a part."""
        if not self.options.only:
            return range(count)
        chosen, _, number = self.options.only.rpartition("-")
        return [int(number)] if chosen == part else []

    def run_part(self, title, cases):
        total = collections.Counter()
        for counts, lines in self.pool.map(lambda case: case[0](*case[1:]), cases.values()):
            total.update(counts)
            for line in lines:
                print(line, flush=True)
        print(f"{title}: {total.total()} commands, {total['reported']} reported the damage, "
              f"{total['harmless']} harmless, {total['faults']} faults", flush=True)
        return total["faults"]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--halflife", type=pathlib.Path, required=True, help="the program")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--run-mutations", type=int, default=60, metavar="N")
    parser.add_argument("--dataset-mutations", type=int, default=30, metavar="N")
    parser.add_argument("--io-errors", type=int, default=3, metavar="N",
                        help="cases of each operation (default: 3)")
    parser.add_argument("--io-operations", default=",".join(io_errors.OPERATIONS), metavar="NAMES")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--limit", type=float, default=60,
                        help="time limit of a command in seconds (default: 60)")
    parser.add_argument("--only", metavar="CASE", help="run one case, e.g. run-17 or io-train-3")
    parser.add_argument("--keep", action="store_true", help="keep the folders of cases with faults")
    return parser.parse_args()


def main():
    options = parse_arguments()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="hostile-"))
    print(f"seed {options.seed}, in {folder}", flush=True)
    faults = 0
    try:
        session = Session(options, folder)
        faults += session.run_part("run mutations",
                                   session.mutation_cases("run", options.run_mutations))
        faults += session.run_part("dataset mutations",
                                   session.mutation_cases("data", options.dataset_mutations))
        faults += io_errors.run(session)
        for lab in session.labs:
            if not lab.is_unchanged():
                faults += 1
                print(f"FAULT: the shared {lab.tokenizer} dataset or run was changed by a case")
    finally:
        if not (faults and options.keep):
            shutil.rmtree(folder, ignore_errors=True)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
