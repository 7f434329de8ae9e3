"""Runs a GoogleTest program case by case, because a process cannot continue after a fault of the device."""

import dataclasses
import re
import time
from collections.abc import Callable

import command
from readers import FAILED, Outcome

# Runs the program with additional arguments and a time limit in seconds.
Run = Callable[[list[str], float], command.Finished]
LONGEST_LISTING = 60  # seconds to load the program and list its tests


def parse_names(text: str) -> list[str]:
    """Returns the names in the output of --gtest_list_tests."""
    names, suite = [], ""
    for line in text.splitlines():
        name = line.partition("#")[0].rstrip()
        if re.fullmatch(r"\S+\.", name):
            suite = name
        elif re.fullmatch(r"  \S+", name):
            names.append(suite + name.strip())
    return [name for name in names if ".DISABLED_" not in name and not name.startswith("DISABLED_")]


def ended(text: str, how: str) -> set[str]:
    """Returns the cases that ended in this way according to the output."""
    return set(re.findall(rf"^\[ +{how} \] (\S+?)(?:,| \(|$)", text, re.M))


def first_failed(text: str, names: list[str]) -> str:
    """Returns the first case that started and did not pass or skip; empty if there is none."""
    begun = re.findall(r"^\[ RUN +\] (\S+)$", text, re.M)
    verdicts = ended(text, "OK") | ended(text, "SKIPPED")
    return next((name for name in begun if name not in verdicts and name in names), "")


@dataclasses.dataclass
class Tally:
    passed: list[str] = dataclasses.field(default_factory=list)
    failed: list[str] = dataclasses.field(default_factory=list)
    skipped: list[str] = dataclasses.field(default_factory=list)
    not_run: list[str] = dataclasses.field(default_factory=list)
    # Last output of each case that failed in its own process.
    words: dict[str, str] = dataclasses.field(default_factory=dict)

    def add(self, name: str, finished: command.Finished) -> None:
        if finished.code == 0:
            (self.skipped if ended(finished.stdout, "SKIPPED") else self.passed).append(name)
            return
        self.failed.append(name)
        self.words[name] = "timed out" if finished.code is None else finished.last_words(3)

    def outcome(self) -> Outcome:
        result = {"passed": len(self.passed), "failed": self.failed, "skipped": len(self.skipped)}
        reason = "failed: " + ", ".join(self.failed[:10]) + (" and more" if len(self.failed) > 10 else "")
        if self.not_run:
            result["not_run"] = self.not_run
            reason += f"; {len(self.not_run)} did not run"
        for name, words in list(self.words.items())[:3]:
            reason += f"\n{name}: {words}"
        return Outcome(FAILED, reason, result)


def run_remaining(finished: command.Finished, outcome: Outcome, run: Run, end: float) -> tuple[Outcome, str]:
    """After a fault ended the whole program, runs each case without a result in its own process, until `end` on the
    monotonic clock. Returns the outcome and the case with the fault."""
    found = run(["--gtest_list_tests"], LONGEST_LISTING)
    names = parse_names(found.stdout) if found.code == 0 else []
    culprit = first_failed(finished.stdout, names)
    if not culprit:
        return outcome, ""
    tally = Tally(failed=[culprit])
    before = names[: names.index(culprit)]  # results after the fault are unreliable, so later cases run again
    tally.passed += [name for name in before if name in ended(finished.stdout, "OK")]
    tally.skipped += [name for name in before if name in ended(finished.stdout, "SKIPPED")]
    for name in names:
        if name == culprit or name in tally.passed or name in tally.skipped:
            continue
        left = end - time.monotonic()
        if left <= 0:
            tally.not_run.append(name)
            continue
        tally.add(name, run([f"--gtest_filter={name}"], left))
    return tally.outcome(), culprit
