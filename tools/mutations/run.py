#!/usr/bin/env python3
"""Plants bugs in copies of the sources and reports which test catches each.

  tools/mutations/run.py --list                  print the names of all mutations
  tools/mutations/run.py --only "row operations" run the mutations whose name contains a text
  tools/mutations/run.py                         run all mutations (hours)

The tool works in a build folder of CMake with Ninja (default: build/cpu). For each mutation it
builds the unchanged test program, compiles the objects that include the changed source from a copy,
links a second program and runs the cases of the test in it. The tool changes neither sources nor
objects of the build folder.

Exit codes: 0 every bug was caught, 1 a bug survived or could not be tried, 2 (only with --strict)
no bug survived, but some mutations no longer apply to the sources.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

import cpu_mutations
import cuda_mutations

ROOT = pathlib.Path(__file__).resolve().parents[2]
MUTATIONS = cuda_mutations.MUTATIONS + cpu_mutations.MUTATIONS
# Orders in which the emulator runs the threads of a block. Other tests ignore the variable.
EMULATED_ORDERS = ("reverse", "random")
# Texts that a report quotes: a sanitizer's summary, or the message of an exception.
MESSAGES = (r"SUMMARY: (\w+Sanitizer: .*)", r"(runtime error: .*)",
            r'description "([^"\n]{0,150})')


class Failure(Exception):
    """A mutation or a test cannot be built or run. The message says why."""


def run(command, folder):
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace")
    if result.returncode != 0:
        raise Failure((result.stdout + result.stderr)[-2000:])
    return result.stdout


class BuildTree:
    """A configured build folder. Objects are named by their path relative to it, as Ninja does."""

    def __init__(self, folder, jobs):
        self.folder, self.jobs = folder.resolve(), jobs
        if not (self.folder / "build.ninja").exists():
            sys.exit(f"{self.folder} is not a Ninja build folder. Run `cmake --preset cpu` first.")
        entries = json.loads((self.folder / "compile_commands.json").read_text())
        commands = (shlex.split(entry["command"]) for entry in entries)
        self.commands = {command[command.index("-o") + 1]: command for command in commands}

    def find_program(self, source, emulated, kind):
        """Returns the target that compiles the test `source`."""
        programs = set()
        for name, command in self.commands.items():
            target = re.search(r"CMakeFiles/([\w-]+)\.dir/", name)[1]
            if emulated:
                is_wanted = target.endswith(f"_emulated_test_{kind}")
            else:
                is_wanted = "_emulated_" not in target
            if is_wanted and command[command.index("-c") + 1] == str(ROOT / source):
                programs.add(target)
        if len(programs) != 1:
            raise Failure(f"{len(programs)} programs of {self.folder} compile {source}")
        return programs.pop()

    def build(self, program):
        """Builds the unchanged program. Returns the command that links it."""
        run(["ninja", f"-j{self.jobs}", program], self.folder)
        link = shlex.split(run(["ninja", "-t", "commands", program], self.folder).splitlines()[-1])
        link = link[link.index("&&") + 1:]
        return link[:link.index("&&")]

    def find_objects(self, source, link):
        """Returns the objects of a program that include or compile `source`."""
        objects = []
        changed = str(ROOT / source)
        for block in run(["ninja", "-t", "deps"], self.folder).split("\n\n"):
            head, *inputs = block.splitlines() or [""]
            name = head.partition(":")[0]
            if name in self.commands and self._is_linked(name, link):
                paths = (os.path.normpath(self.folder / path.strip()) for path in inputs)
                if changed in paths:
                    objects.append(name)
        return objects

    @staticmethod
    def _is_linked(name, link):
        library = re.search(r"^(.*)CMakeFiles/([\w-]+)\.dir/", name)
        return name in link or f"{library[1]}lib{library[2]}.a" in link

    def compile(self, name, source, copy):
        """Compiles an object from the sources in `copy` first. Returns the new object's path."""
        command = [word for word in self.commands[name] if word != "-Werror"]
        target = copy / name.replace("/", "_")
        command[command.index("-o") + 1] = str(target)
        unit = command.index("-c") + 1
        if command[unit] == str(ROOT / source):
            command[unit] = str(copy / source)
        command[1:1] = ["-w", f"-I{copy}/src"]
        run(command, self.folder)
        return target

    def build_mutant(self, mutation, link):
        """Returns the program with the bug. Its folder belongs to the caller."""
        source = mutation.source
        text = mutation.apply((ROOT / source).read_text())
        names = self.find_objects(source, link)
        if not names:
            raise Failure(f"the test program does not compile {source}")
        copy = pathlib.Path(tempfile.mkdtemp(prefix="mutation_"))
        try:
            (copy / source).parent.mkdir(parents=True)
            (copy / source).write_text(text)
            with concurrent.futures.ThreadPoolExecutor(self.jobs) as pool:
                compiled = pool.map(lambda name: self.compile(name, source, copy), names)
                objects = dict(zip(names, compiled))
            # An object on the command line is replaced. The replacement of a library's object is
            # placed before the library, so that the linker uses it instead.
            command = [str(objects.get(word, word)) for word in link]
            place = command.index("-o")
            others = [str(path) for name, path in objects.items() if name not in link]
            command[place:place + 2] = [*others, "-o", str(copy / "program")]
            run(command, self.folder)
            return copy / "program"
        except BaseException:
            shutil.rmtree(copy)
            raise


def make_filter(test):
    """Returns the --gtest_filter for a test, PATH or PATH:FILTER."""
    path, _, wanted = test.partition(":")
    text = (ROOT / path).read_text()
    suites = sorted(set(re.findall(r"^(?:TYPED_)?TEST(?:_F|_P)?\((\w+),", text, re.M)))
    if not suites:
        raise Failure(f"{path} defines no tests")
    return wanted or ":".join(f"{suite}.*:{suite}/*:*/{suite}.*:*/{suite}/*" for suite in suites)


def find_failure(program, wanted, emulated, timeout):
    """Runs the tests. Returns how they failed, or None if they passed."""
    for order in EMULATED_ORDERS if emulated else ("",):
        environment = dict(os.environ, OMP_NUM_THREADS="1", HL_EMU_ORDER=order or "forward",
                           TSAN_OPTIONS="halt_on_error=1", ASAN_OPTIONS="detect_leaks=0")
        suffix = f" ({order} order)" if order else ""
        try:
            result = subprocess.run([str(program), f"--gtest_filter={wanted}"], env=environment,
                                    capture_output=True, text=True, errors="replace",
                                    timeout=timeout)
        except subprocess.TimeoutExpired:
            return f"no end within {timeout} s{suffix}"
        output = result.stdout + result.stderr
        if result.returncode == 0:
            if "[==========] Running 0 tests" in output:
                raise Failure(f"no test matches {wanted}")
            continue
        failed = sorted(set(re.findall(r"\[  FAILED  \] ([\w/]+\.[\w/]+)", output)))
        running = re.findall(r"\[ RUN +\] (\S+)", output)
        place = f"in {running[-1] if running else 'start-up'}{suffix}"
        for pattern in MESSAGES:
            if match := re.search(pattern, output):
                return f"{match[1][:140]} {place}"
        if failed:
            return f"{failed[0]} and {len(failed) - 1} more{suffix}"
        return f"exit code {result.returncode} {place}"
    return None


class Report:
    def __init__(self):
        self.caught, self.survived, self.stale, self.broken = [], [], [], []

    def add(self, outcome, name, reason):
        getattr(self, outcome).append((name, reason))
        print(f"{outcome:9} {name}: {reason}", flush=True)

    def print_summary(self):
        print(f"\n{len(self.caught)} caught, {len(self.survived)} survived, "
              f"{len(self.broken)} could not be tried")
        for name, _ in self.survived:
            print(f"  survived: {name}")
        for name, reason in self.broken:
            print(f"  not tried: {name}: {reason.splitlines()[0] if reason else ''}")
        if self.stale:
            print(f"{len(self.stale)} rows no longer apply:")
        for name, reason in self.stale:
            print(f"  {name}: {reason}")


def try_mutations(tree, program, mutations, options, report):
    """Tries the mutations that one test program must catch."""
    try:
        link = tree.build(program)
    except Failure as failure:
        for mutation in mutations:
            report.add("broken", mutation.name, f"{program} does not build: {failure}")
        return
    unchanged = tree.folder / link[link.index("-o") + 1]
    failures = {}  # test -> how the unchanged test fails
    for mutation in mutations:
        binary = None
        try:
            wanted = make_filter(mutation.test)
            if mutation.test not in failures:
                failures[mutation.test] = find_failure(unchanged, wanted, mutation.emulated,
                                                       options.timeout)
            if failures[mutation.test]:
                raise Failure(f"the unchanged test fails: {failures[mutation.test]}")
            binary = tree.build_mutant(mutation, link)
            failure = find_failure(binary, wanted, mutation.emulated, options.timeout)
            outcome = "caught" if failure else "survived"
            report.add(outcome, mutation.name, failure or "all tests pass")
        except Failure as failure:
            report.add("broken", mutation.name, str(failure))
        finally:
            if binary:
                shutil.rmtree(binary.parent)


def find_stale(mutation):
    """Returns why the mutation no longer applies to the sources, or None."""
    for path in (mutation.source, mutation.test.partition(":")[0]):
        if not (ROOT / path).is_file():
            return f"{path} does not exist"
    try:
        mutation.apply((ROOT / mutation.source).read_text())
    except ValueError as error:
        return str(error)
    return None


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="TEXT",
                        help="run the mutations whose name contains TEXT (default: all)")
    parser.add_argument("--list", action="store_true", help="print the names and run nothing")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/cpu", metavar="DIR",
                        help="the CMake build folder (default: build/cpu)")
    parser.add_argument("--kind", choices=("plain", "asan", "tsan"), default="plain",
                        help="the kind of the emulated test programs; asan and tsan need a build "
                             "folder with -DHALFLIFE_SANITIZED_EMULATION=ON (default: plain)")
    parser.add_argument("--jobs", type=int, default=2, help="parallel compilations (default: 2)")
    parser.add_argument("--timeout", type=int, default=600,
                        help="seconds for one run of a test (default: 600)")
    parser.add_argument("--strict", action="store_true",
                        help="exit with 2 if a mutation no longer applies")
    return parser.parse_args()


def main():
    options = parse_options()
    mutations = [mutation for mutation in MUTATIONS if options.only in mutation.name]
    if options.list:
        print("\n".join(mutation.name for mutation in mutations))
        return 0
    report = Report()
    tree = BuildTree(options.build, options.jobs)
    by_program = {}
    for mutation in mutations:
        reason = find_stale(mutation)
        if reason:
            report.add("stale", mutation.name, reason)
            continue
        try:
            test = mutation.test.partition(":")[0]
            program = tree.find_program(test, mutation.emulated, options.kind)
            by_program.setdefault(program, []).append(mutation)
        except Failure as failure:
            report.add("broken", mutation.name, str(failure))
    for program, group in by_program.items():
        try_mutations(tree, program, group, options, report)
    report.print_summary()
    if report.survived or report.broken:
        return 1
    return 2 if options.strict and report.stale else 0


if __name__ == "__main__":
    sys.exit(main())
