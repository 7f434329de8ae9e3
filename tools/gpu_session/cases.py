"""A GoogleTest program case by case: after a fault of the device nothing more of it runs in the same process."""

import dataclasses
import pathlib
import re
import time
from collections.abc import Callable

import command
from readers import FAILED, Outcome

# Runs the program with these words more for so many seconds.
Run = Callable[[list[str], float], command.Finished]
LONGEST_LISTING = 60  # s: the program is loaded, and nothing run


def listed(text: str) -> list[str]:
    """Of --gtest_list_tests: a line a suite, and under it its cases, with comments on parameters."""
    names, suite = [], ""
    for line in text.splitlines():
        name = line.partition("#")[0].rstrip()
        if re.fullmatch(r"\S+\.", name):
            suite = name
        elif re.fullmatch(r"  \S+", name):
            names.append(suite + name.strip())
    return [name for name in names if ".DISABLED_" not in name and not name.startswith("DISABLED_")]


def ended(text: str, how: str) -> set[str]:
    """The cases of which a program's output says so."""
    return set(re.findall(rf"^\[ +{how} \] (\S+?)(?:,| \(|$)", text, re.M))


def first_failed(text: str, names: list[str]) -> str:
    """Or, where none says so, the one that ran when the process died; empty: neither."""
    begun = re.findall(r"^\[ RUN +\] (\S+)$", text, re.M)
    verdicts = ended(text, "OK") | ended(text, "SKIPPED")
    return next((name for name in begun if name not in verdicts and name in names), "")


@dataclasses.dataclass
class Tally:
    passed: list[str] = dataclasses.field(default_factory=list)
    failed: list[str] = dataclasses.field(default_factory=list)
    skipped: list[str] = dataclasses.field(default_factory=list)
    not_run: list[str] = dataclasses.field(default_factory=list)
    words: dict[str, str] = dataclasses.field(default_factory=dict)  # of those that failed by themselves

    def add(self, name: str, finished: command.Finished) -> None:
        if finished.code == 0:
            (self.skipped if ended(finished.stdout, "SKIPPED") else self.passed).append(name)
            return
        self.failed.append(name)
        self.words[name] = "ended after its time" if finished.code is None else finished.last_words(3)

    def outcome(self) -> Outcome:
        result = {"passed": len(self.passed), "failed": self.failed, "skipped": len(self.skipped)}
        reason = "failed: " + ", ".join(self.failed[:10]) + (" and more" if len(self.failed) > 10 else "")
        if self.not_run:
            result["not_run"] = self.not_run
            reason += f"; {len(self.not_run)} had no time"
        for name, words in list(self.words.items())[:3]:
            reason += f"\n{name}: {words}"
        return Outcome(FAILED, reason, result)


def go_on(finished: command.Finished, outcome: Outcome, run: Run, end: float) -> tuple[Outcome, str]:
    """After a run of the whole program that a fault ended, each case that it left without a verdict by itself, until
    `end` on the monotonic clock. Gives the case, too, at which the fault was met."""
    found = run(["--gtest_list_tests"], LONGEST_LISTING)
    names = listed(found.stdout) if found.code == 0 else []
    culprit = first_failed(finished.stdout, names)
    if not culprit:
        return outcome, ""
    tally = Tally(failed=[culprit])
    before = names[: names.index(culprit)]  # what passed behind the fault is not believed
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
