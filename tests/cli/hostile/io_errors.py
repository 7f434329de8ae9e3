"""Makes I/O fail while a command runs: a single call into the C library, or that call and all later ones.

    faults = run(session)       # session.options selects the number and the operations

The output of a command must be correct, its results must be complete or absent, and earlier files must still
exist. When the disk works again, a run continues to the same bits.
"""

import collections
import dataclasses
import errno
import pathlib
import random
import re
import shutil
import subprocess
from typing import Callable

from hostile import commands, verdict
from hostile.lab import LAST_STEP, STEPS, read_bytes, step_name, tree

SHORT = 0  # no error, but only half of the bytes are transferred
ERRORS = {
    "open": [errno.EIO, errno.EMFILE, errno.EACCES, errno.ENOSPC],
    "read": [errno.EIO, SHORT],
    "write": [errno.EIO, errno.ENOSPC, errno.EDQUOT, SHORT],
    "fsync": [errno.EIO, errno.ENOSPC],
    "close": [errno.EIO, errno.ENOSPC],
    "rename": [errno.EIO, errno.ENOSPC, errno.EACCES],
    "mkdir": [errno.EIO, errno.ENOSPC, errno.EACCES],
    "unlink": [errno.EIO, errno.EACCES],
    "truncate": [errno.EIO, errno.ENOSPC],
    "stat": [errno.EIO, errno.EACCES],
    "list": [errno.EIO],
    "map": [errno.ENOMEM],
    "reserve": [errno.EIO, errno.ENOSPC, errno.EOPNOTSUPP],
    "lock": [errno.EIO, errno.ENOLCK],
    "space": [errno.EIO],
}
# After a single failure of these calls, a command can still remove its temporary files.
CLEANABLE = {"write", "fsync", "truncate", "reserve", "rename"}


@dataclasses.dataclass(frozen=True)
class Operation:
    """A command. `whole` returns the faults of published results, after success and after failure."""
    arguments: Callable
    whole: Callable = lambda place: []
    check: Callable = commands.accept_any  # called after success
    again: Callable | None = None  # the command that must succeed when the disk works again
    changes_run: bool = False


def whole_if_present(path, is_whole, what):
    return [] if is_whole or not path.exists() else [f"{what} exists, but is incomplete"]


def whole_outcome(name, file_name):
    def whole(place):
        path = place.out / file_name
        outcome = place.lab.outcome(name, place.out, None) if path.exists() else None
        return whole_if_present(path, outcome in place.lab.outcomes[name], file_name)
    return whole


def model_operation(name, file_name):
    def arguments(place):
        return place.lab.read_only_commands(place.run, place.data, place.out)[name]
    if file_name is None:
        return Operation(arguments)
    return Operation(arguments, whole=whole_outcome(name, file_name))


def whole_dataset(place):
    path = place.out / "data"
    return whole_if_present(path, tree(path) == place.lab.data_tree, "data")


def whole_page(place):
    path = place.out / "report.html"
    data = read_bytes(path) or b""
    return whole_if_present(path, data.rstrip().endswith(b"</html>"), "report.html")


def resharded(place):
    return place.out / step_name(6)


def whole_reshard(place):
    path = resharded(place)
    if not path.exists():
        return []
    step = place.lab.run / "ckpt" / step_name(6)
    result = place.lab.halflife.run(["ckpt", "diff", path, step, "--bitwise"], place.folder)
    good = result.code == 0 and len(list(path.glob("rank_*.safetensors"))) == 2
    return whole_if_present(path, good, "the resharded step")


def whole_steps(wanted):
    def whole(place):
        lost = set(wanted) - set(place.intact_steps())
        bad = [path.name for path in (place.run / "ckpt").glob("*.bad*")]
        return ([f"step {step} was damaged" for step in sorted(lost)] +
                [f"{name} was set aside, although nothing was damaged" for name in bad])
    return whole


def fresh(place):
    """Returns the same place with a new run."""
    return dataclasses.replace(place, folder=place.folder / "fresh", lines_before=[])


def train(place):
    return place.lab.train_command(place.folder / "fresh" / "run", 6)


def resume(place):
    return place.lab.train_command(place.run, LAST_STEP)


def prune(place):
    return ["ckpt", "prune", place.run, "--keep-last", 2]


OPERATIONS = {
    "train": Operation(train, check=lambda p, r: commands.check_training(6)(fresh(p), r),
                       again=train),
    "resume": Operation(resume, whole=whole_steps(STEPS), check=commands.check_training(LAST_STEP),
                        again=resume, changes_run=True),
    "prepare": Operation(lambda p: p.lab.prepare_command(p.out / "data"), whole=whole_dataset),
    "score": model_operation("score", "score.jsonl"),
    "eval": model_operation("eval", "eval.json"),
    "generate": model_operation("generate", None),
    "export": model_operation("export", "export"),
    "report": Operation(lambda p: ["report", p.run, "--out", p.out / "report.html"],
                        whole=whole_page),
    "reshard": Operation(lambda p: ["ckpt", "reshard", p.run, "--world", 2, "--out", resharded(p)],
                         whole=whole_reshard),
    "prune": Operation(prune, whole=whole_steps([4, 6]), again=prune, changes_run=True),
    "verify": Operation(commands.verify, check=commands.check_verify),
    "ls": Operation(lambda p: ["ckpt", "ls", p.run]),
    "diff": Operation(commands.diff, check=commands.check_diff),
    "inspect": Operation(lambda p: ["inspect", p.run]),
    "inspect-data": Operation(lambda p: ["inspect", p.data]),
    "dry-run": Operation(lambda p: [*p.lab.train_command(p.run, 6), "--dry-run"]),
}


def build_shim(folder, sanitized):
    """Returns the library that makes calls fail. If it cannot be built, prints the reason and returns None."""
    source = pathlib.Path(__file__).with_name("fail_io.c")
    library = folder / "fail_io.so"
    compiler = shutil.which("cc")
    if sanitized:
        print("SKIPPED: I/O errors: AddressSanitizer must be loaded before all other libraries")
        return None
    if compiler is None:
        print("SKIPPED: I/O errors: cc was not found, which compiles fail_io.c")
        return None
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library


def printed(result, place):
    """Returns the output of a command without paths, times, speeds and the size of a page."""
    text = result.out.replace(str(place.folder), "")
    return re.sub(r"\d+(\.\d+)? (s|min|MB/s)\b|\([\d.]+ KiB\)", "T", text)


class Injector:
    def __init__(self, session, shim):
        self.session, self.shim, self.halflife = session, shim, session.halflife

    def run(self, operation, place, **failure):
        """Runs the operation. Returns the result, the last line of the shim's log, and its line of the
        failure or None."""
        log = place.folder / "fail_io.log"
        log.unlink(missing_ok=True)
        env = {"LD_PRELOAD": str(self.shim), "FAIL_IO_ROOT": str(self.session.folder),
               "FAIL_IO_LOG": str(log),
               **{f"FAIL_IO_{name.upper()}": str(value) for name, value in failure.items()}}
        result = self.halflife.run(operation.arguments(place), place.folder, env)
        lines = (read_bytes(log) or b"").decode(errors="replace").splitlines()
        failed = [line for line in lines if line.startswith("failed")]
        return result, (lines or [""])[-1], (failed or [None])[0]

    def count(self, name, lab):
        """Returns {kind: number of calls} of the operation without failures, and its output."""
        place = self.session.place(f"io-count-{name}-{lab.tokenizer}", lab)
        result, last, _ = self.run(OPERATIONS[name], place)
        shutil.rmtree(place.folder)
        if result.code != 0 or not last.startswith("counts"):
            raise SystemExit(f"{name} without failures: exit code {result.code}: {result.err}")
        counts = {kind: int(number) for kind, number in
                  (word.split("=") for word in last.split()[1:])}
        made = {kind: number for kind, number in counts.items() if number > 0}
        return made, printed(result, place)

    def case(self, name, number, lab, calls, undisturbed):
        case = f"io-{name}-{number}"
        rng = random.Random(f"{self.session.options.seed}/{case}")
        kind = rng.choice(sorted(calls))
        failure = {"call": kind, "nth": rng.randint(1, calls[kind]),
                   "errno": rng.choice(ERRORS[kind])}
        if rng.random() < 0.3:
            failure["forever"] = 1
        place, operation = self.session.place(case, lab), OPERATIONS[name]
        place.remember()
        before = verdict.snapshot(place.outside)
        result, _, failed = self.run(operation, place, **failure)
        problems = self.judge(operation, place, result, undisturbed)
        problems += self.leftovers(place, failure, result)
        problems += verdict.changes(place.outside, before)
        what = (f"{lab.tokenizer}, {failed} ({errno.errorcode.get(failure['errno'], 'half')}"
                f"{', and all later' if 'forever' in failure else ''}; {kind} {failure['nth']})")
        lines = [self.session.describe(case, what, problem, result) for problem in problems]
        if operation.again:
            lines += self.again(case, what, operation, place)
        self.session.clean(place.folder, lines)
        return collections.Counter({verdict.category(lines, result): 1}), lines

    def judge(self, operation, place, result, undisturbed):
        problems = verdict.find_misbehaviour(result) + operation.whole(place)
        if not operation.changes_run:
            problems += whole_steps(STEPS)(place)
        if result.code == 0 and not problems:
            problems += operation.check(place, result)
            if not verdict.is_reported(result) and printed(result, place) != undisturbed:
                problems.append(f"printed a different output: {printed(result, place)[:300]!r}")
        return problems

    def leftovers(self, place, failure, result):
        """Returns the temporary files that the command did not remove after a single failure."""
        if "forever" in failure or failure["call"] not in CLEANABLE or result.code == 0:
            return []
        names = sorted(path.name for path in place.out.iterdir() if ".tmp" in path.name)
        return [f"left {name}" for name in names]

    def again(self, case, what, operation, place):
        place.remember()
        result = self.halflife.run(operation.again(place), place.folder)
        problems = verdict.find_misbehaviour(result)
        if result.code != 0:
            problems.append("fails although the disk works again")
        elif not problems:
            problems += operation.check(place, result) + operation.whole(place)
        return [self.session.describe(case, f"{what}, then without failures", problem, result)
                for problem in problems]


def run(session):
    options = session.options
    if options.io_errors == 0 and not options.only:
        return 0
    shim = build_shim(session.folder, session.halflife.sanitized)
    if shim is None:
        return 0
    injector, faults = Injector(session, shim), 0
    for name in options.io_operations.split(","):
        numbers = session.numbers(f"io-{name}", options.io_errors)
        if not numbers:
            continue
        known = [injector.count(name, lab) for lab in session.labs]
        cases = {}
        for number in numbers:
            which = number % len(session.labs)
            cases[f"io-{name}-{number}"] = (injector.case, name, number, session.labs[which],
                                            *known[which])
        faults += session.run_part(f"I/O errors, {name}", cases)
    return faults
