"""The folder of a session, and the loop over its items. The complete record of an item is written as soon as it ends."""

import concurrent.futures
import dataclasses
import fcntl
import json
import os
import pathlib
import re
import time

import command
import machine
from cases import run_remaining
from items import Item, program_of, words_of
from readers import DONE, FAILED, INTERRUPTED, SKIPPED, TIMED_OUT, Outcome, read_gtest, read_last_json

MINUTE = 60
FAULT = re.compile(r"CUDA error|cuda[A-Z]\w*Error|illegal memory access|unspecified launch failure|misaligned address"
                   r"|launch failed|an illegal instruction")
CHECKED = {"HALFLIFE_CHECK_LAUNCHES": "1", "CUDA_LAUNCH_BLOCKING": "1"}


def write_json(path: pathlib.Path, value: dict) -> None:
    """Writes the file atomically, so that it is complete even if the machine is taken away."""
    fresh = path.with_name(path.name + ".new")
    with open(fresh, "w") as file:
        file.write(json.dumps(value, indent=1) + "\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, path)


def num_rows(file: pathlib.Path) -> int:
    return len(json.loads(file.read_text())["rows"]) if file.exists() else 0


def read(item: Item, finished: command.Finished, file: pathlib.Path) -> Outcome:
    """Reads the results of a program. The output of a program that crashed can have any content."""
    try:
        return item.read(finished, file)
    except (ValueError, KeyError, TypeError) as error:
        return Outcome(FAILED, f"its output cannot be read ({error!r}); {finished.last_words()}")


def is_fault(finished: command.Finished) -> bool:
    """Returns whether the device failed, or a signal ended the process, which a fault of the device can cause."""
    return finished.code < 0 or FAULT.search(finished.stderr + finished.stdout) is not None


class Refused(Exception):
    """An error that the user must correct, with the exit code of the program."""

    def __init__(self, code: int, text: str):
        super().__init__(text)
        self.code = code


@dataclasses.dataclass(frozen=True)
class Budget:
    minutes: float  # for all calls on one folder
    piece_minutes: float  # for this call


class Folder:
    """The folder of a session. One call at a time holds it: `with Folder(path) as folder`."""

    def __init__(self, path: pathlib.Path):
        self.path = path
        (path / "items").mkdir(parents=True, exist_ok=True)
        (path / "logs").mkdir(exist_ok=True)
        self._lock = open(path / "lock", "w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._lock.close()
            raise Refused(4, f"another call works on {path}. Wait until it ends, or use another --out.") from error

    def __enter__(self) -> "Folder":
        return self

    def __exit__(self, *_) -> None:
        self._lock.close()

    def claim(self, here: machine.Machine) -> None:
        """Refuses a folder with results of another GPU, driver or commit, because they are not comparable."""
        state = self.path / "session.json"
        if not state.exists():
            write_json(state, {"machine": dataclasses.asdict(here), "seconds": 0})
        there = machine.Machine(**self._state()["machine"])
        if there != here:
            raise Refused(2, f"{self.path} holds results of {there}, and this is {here}. Use another --out.")

    def _state(self) -> dict:
        return json.loads((self.path / "session.json").read_text())

    def seconds(self) -> float:
        return self._state()["seconds"]

    def add_seconds(self, seconds: float) -> None:
        state = self._state()
        write_json(self.path / "session.json", {**state, "seconds": state["seconds"] + seconds})

    def record_of(self, item: Item) -> dict:
        path = self.path / "items" / f"{item.file_name}.json"
        return json.loads(path.read_text()) if path.exists() else {}

    def records(self) -> list[dict]:
        return [json.loads(path.read_text()) for path in sorted((self.path / "items").glob("*.json"))]

    def write(self, item: Item, record: dict) -> None:
        write_json(self.path / "items" / f"{item.file_name}.json", record)

    def log(self, item: Item) -> pathlib.Path:
        return self.path / "logs" / item.file_name

    def file(self, item: Item) -> pathlib.Path:
        return self.path / "logs" / f"{item.file_name}.file"


class Session:
    def __init__(self, folder: Folder, build: pathlib.Path, here: machine.Machine, rehearse: bool):
        self.folder = folder
        self.build = build
        self.here = here
        self.rehearse = rehearse
        self.environment = machine.environment(build)
        self.end = 0.0  # end of this call on the monotonic clock
        self.stopped = False  # True: items that end now have no result
        self.judged: set[str] = set()  # names of the items that have a result in this call

    def run(self, items: list[Item], budget: Budget, again: bool = False, jobs: int = 1) -> None:
        """Runs the items that have no result yet; with `again` also those that failed or timed out. Tests run first,
        `jobs` in parallel, because their time is not measured. An item that does not fit into the remaining time is
        left for the next call, and the shorter items after it still run."""
        last = time.monotonic()
        self.end = last + MINUTE * min(budget.piece_minutes, budget.minutes - self.folder.seconds() / MINUTE)
        if jobs > 1:
            self.run_in_parallel([item for item in items if item.group == "tests" and self.must_run(item, again)], jobs)
            self.folder.add_seconds(time.monotonic() - last)
            last = time.monotonic()
        tried = 0
        for item in items:
            if item.name in self.judged or not self.must_run(item, again):
                continue
            left = self.end - time.monotonic()
            whole = item.minutes * MINUTE
            if left <= 0 or (left < whole / 2 and tried > 0):
                print(f"{item.name}: not started, because it can take {whole:.0f} s and {max(left, 0):.0f} s are left", flush=True)
                continue
            tried += 1
            # The first item of a call has all the time that a call can give.
            self.attempt(item, min(left, whole), last_chance=left >= whole or tried == 1)
            self.folder.add_seconds(time.monotonic() - last)
            last = time.monotonic()
        self.folder.add_seconds(time.monotonic() - last)

    def must_run(self, item: Item, again: bool) -> bool:
        """Returns whether the item must run. Records the reason if it cannot run."""
        done = self.folder.record_of(item).get("status")
        if done == DONE or (done in (FAILED, TIMED_OUT) and not again):
            return False
        reason = self.reason_to_skip(item)
        if reason and done in (None, SKIPPED):  # an earlier result is more informative
            self.keep(item, Outcome(SKIPPED, reason), "", 0)
        return not reason

    def run_in_parallel(self, items: list[Item], jobs: int) -> None:
        threads = str(max(1, (os.cpu_count() or 1) // jobs))
        environment = self.environment
        self.environment = {**environment, "OMP_NUM_THREADS": threads}
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            try:
                for done in [pool.submit(self.attempt_in_time, item) for item in items]:
                    done.result()
            except KeyboardInterrupt:
                self.stopped = True
                pool.shutdown(wait=False, cancel_futures=True)
                command.end_all()
                raise
        self.environment = environment

    def attempt_in_time(self, item: Item) -> None:
        left = self.end - time.monotonic()
        if left > 0:
            self.attempt(item, min(left, item.minutes * MINUTE), last_chance=True)

    def reason_to_skip(self, item: Item) -> str:
        """Returns why the item cannot run; empty if it can."""
        for need in item.needs:
            reason = machine.why_missing(need)
            if reason:
                return reason
        program = program_of(item, self.rehearse)
        if not (self.build / program).exists():
            only_cuda = self.rehearse and item.group == "tests"
            remedy = "Only CUDA builds make it." if only_cuda else "Build the targets halflife, gpu_tests and bench."
            return f"{self.build.name} has no {program}. {remedy}"
        if item.of_slowest and self.slowest(item.of_slowest) is None:
            return f"no item of the group {item.of_slowest} was measured"
        return ""

    def slowest(self, group: str) -> dict | None:
        measured = [r for r in self.folder.records() if r["item"].startswith(group + "/") and r["status"] == DONE]
        return max(measured, key=lambda record: record["result"]["median_ms"] or 0, default=None)

    def attempt(self, item: Item, seconds: float, last_chance: bool) -> None:
        """Runs an item. `last_chance`: another call would not give it more time."""
        slowest = self.slowest(item.of_slowest) if item.of_slowest else None
        tools = {need: machine.find_tool(need) for need in item.needs if machine.find_tool(need)}
        file = self.folder.file(item)
        words = words_of(item, tuple(slowest["words"][1:]) if slowest else (), self.build, file, self.rehearse, tools)
        print(f"{item.name}: {' '.join(words)}", flush=True)
        rows_before = num_rows(file) if item.resumes else 0
        if not item.resumes:
            file.unlink(missing_ok=True)
        try:
            finished = command.run(words, seconds, self.folder.log(item), machine.REPO, self.environment)
        except OSError as error:
            self.keep(item, Outcome(FAILED, f"it cannot be started: {error}"), words, 0)
            return
        if self.stopped:
            return
        if finished.code is None:
            made_progress = item.resumes and num_rows(file) > rows_before
            has_parts = item.resumes or item.read is read_last_json
            result = read(item, dataclasses.replace(finished, code=-9), file).result if has_parts else {}
            outcome = Outcome(TIMED_OUT if last_chance and not made_progress else INTERRUPTED,
                              f"ended after {finished.seconds:.0f} s", result)
        else:
            outcome = read(item, finished, file)
        if outcome.status == FAILED and is_fault(finished):
            outcome = self.after_fault(item, words, finished, outcome)
        self.keep(item, outcome, words, finished.seconds)

    def after_fault(self, item: Item, words: list[str], finished: command.Finished, outcome: Outcome) -> Outcome:
        """Continues after a fault of the device: runs the other cases of a test within its time limit, then repeats the
        case with the fault with launch checks, which name the kernel."""
        log = self.folder.log(item)

        def again(more: list[str], seconds: float, name: str, extra: dict[str, str]) -> command.Finished:
            environment = {**self.environment, **extra}
            return command.run([*words, *more], seconds, log.with_name(f"{log.name}.{name}"), machine.REPO, environment)

        more: list[str] = []
        if item.read is read_gtest:
            end = min(time.monotonic() + item.minutes * MINUTE - finished.seconds, self.end)
            outcome, culprit = run_remaining(finished, outcome, lambda *call: again(*call, "case", {}), end)
            more = [f"--gtest_filter={culprit}"] if culprit else []
        checked = again(more, min(item.minutes * MINUTE, self.end - time.monotonic()), "checked", CHECKED)
        return dataclasses.replace(outcome, reason=f"{outcome.reason}\nlaunches checked: {checked.last_words(5)}")

    def keep(self, item: Item, outcome: Outcome, words, seconds: float) -> None:
        self.folder.write(item, {
            "item": item.name, "status": outcome.status, "reason": outcome.reason, "seconds": round(seconds, 1),
            "words": list(words), "machine": dataclasses.asdict(self.here), "result": outcome.result})
        self.judged.add(item.name)
        first = outcome.reason.splitlines()[0] if outcome.reason else ""
        print(f"{item.name}: {outcome.status}{': ' + first if first else ''}", flush=True)
