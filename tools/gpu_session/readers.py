"""Reads the outcome of a finished command: its status, the reason if the status is not "done", and its figures."""

import csv
import dataclasses
import json
import pathlib
import re

import command

DONE, FAILED, SKIPPED, TIMED_OUT, INTERRUPTED = "done", "failed", "skipped", "timed out", "interrupted"


@dataclasses.dataclass(frozen=True)
class Outcome:
    status: str
    reason: str = ""
    result: dict = dataclasses.field(default_factory=dict)


def _exit_of(finished: command.Finished) -> str:
    how = f"signal {-finished.code}" if finished.code < 0 else f"exit code {finished.code}"
    return f"{how}: {finished.last_words()}"


def reason_of_skip(finished: command.Finished) -> str:
    """Returns the reason that a program gives for skipping; empty if it gives none."""
    for text in (finished.stdout, finished.stderr):
        for line in text.splitlines():
            if line.startswith(("SKIPPED: ", "skipped: ")):
                return line.partition(": ")[2]
    return ""


def read_json(finished: command.Finished, _: pathlib.Path) -> Outcome:
    """Reads the output of a benchmark, which is JSON even if parts of the benchmark failed."""
    reason = reason_of_skip(finished) if finished.code in (4, 77) else ""
    if reason:
        return Outcome(SKIPPED, reason)
    try:
        result = json.loads(finished.stdout)
    except json.JSONDecodeError as error:
        return Outcome(FAILED, _exit_of(finished) if finished.code != 0 else f"its output is not JSON: {error}")
    return Outcome(DONE, result=result) if finished.code == 0 else Outcome(FAILED, _exit_of(finished), result)


def read_last_json(finished: command.Finished, file: pathlib.Path) -> Outcome:
    """Reads the output of a program that prints its results so far, as one line of JSON, after each part. The last
    complete line counts."""
    lines = [line for line in finished.stdout.splitlines(keepends=True) if line.startswith("{") and line.endswith("\n")]
    return read_json(dataclasses.replace(finished, stdout=lines[-1]) if lines else finished, file)


def read_gtest(finished: command.Finished, file: pathlib.Path) -> Outcome:
    """Reads a GoogleTest program, which wrote its report to `file`."""
    if not file.exists():
        return Outcome(FAILED, f"no report was written; {_exit_of(finished)}")
    suites = json.loads(file.read_text())["testsuites"]
    cases = [(f"{suite['name']}.{case['name']}", case) for suite in suites for case in suite["testsuite"]]
    failed = [name for name, case in cases if case.get("failures")]
    skipped = [name for name, case in cases if case["result"] == "SKIPPED"]
    ran = sum(case["result"] == "COMPLETED" for _, case in cases) - len(failed)
    result = {"passed": ran, "failed": failed, "skipped": len(skipped)}
    if failed or finished.code != 0:
        words = ", ".join(failed[:10]) + (f" and {len(failed) - 10} more" if len(failed) > 10 else "")
        return Outcome(FAILED, f"failed: {words}" if failed else _exit_of(finished), result)
    if ran == 0:
        why = re.search(r": Skipped\n(.*)", finished.stdout)
        return Outcome(SKIPPED, why[1] if why else "no test ran", result)
    return Outcome(DONE, result=result)


def read_sanitizer(finished: command.Finished, _: pathlib.Path) -> Outcome:
    """Reads compute-sanitizer with a GoogleTest program. Without a summary the item failed."""
    text = finished.stdout + finished.stderr
    summary = re.search(r"(?:ERROR|RACECHECK) SUMMARY: .*", text)
    result = {"summary": summary[0] if summary else "", "passed": len(re.findall(r"^\[       OK \] ", text, re.M))}
    if finished.code != 0:
        return Outcome(FAILED, _exit_of(finished), result)
    if re.search(r"[1-9]\d* warning", result["summary"]):  # the exit code does not count warnings
        return Outcome(FAILED, result["summary"], result)
    if result["passed"] == 0:
        why = re.search(r": Skipped\n(.*)", text)
        return Outcome(SKIPPED, why[1] if why else "no test ran", result)
    return Outcome(DONE, result=result) if summary else Outcome(FAILED, "compute-sanitizer printed no summary", result)


def read_rows(finished: command.Finished, file: pathlib.Path) -> Outcome:
    """Reads a comparison, which appends rows to `file`. The rows of an interrupted comparison count."""
    rows = json.loads(file.read_text()) if file.exists() else {}
    if finished.code == 0:
        return Outcome(DONE, result=rows)
    if finished.code == 75:
        return Outcome(INTERRUPTED, finished.last_words(1), rows)
    reason = reason_of_skip(finished) if finished.code == 77 else ""
    if reason:
        return Outcome(SKIPPED, reason)
    bad = [f"{row['kind']} {row['shape']}: {row['failed']}" for row in rows.get("rows", []) if "failed" in row]
    return Outcome(FAILED, "; ".join(bad) or _exit_of(finished), rows)


def kernel_of(name: str) -> str:
    """Returns the name of a kernel as in the sources, with its template arguments, from a demangled signature:
    "void halflife::kernels::decay::<unnamed>::Scan<(int)64>(Args)" is decay::Scan<64>."""
    name = re.sub(r"\(anonymous namespace\)::|<unnamed>::|\{anonymous\}::", "", name)
    name = re.sub(r"\([a-z ]+\)(?=-?\d)", "", name)
    depth = 0
    for i, letter in enumerate(name):
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and depth == 0:
            name = name[:i]
            break
    return name.removeprefix("void ").removeprefix("halflife::kernels::")


def read_ncu(finished: command.Finished, file: pathlib.Path) -> Outcome:
    """Reads the table of Nsight Compute, one line per kernel and metric, as a dict of metrics per launch."""
    if finished.code != 0:
        return Outcome(FAILED, _exit_of(finished))
    lines = file.read_text().splitlines() if file.exists() else []
    table = [line for line in lines if line.startswith('"')]  # the other lines are messages of ncu
    launches: dict[str, dict] = {}
    for row in csv.DictReader(table):
        launch = launches.setdefault(row["ID"], {"kernel": kernel_of(row["Kernel Name"]), "metrics": {}})
        if row.get("Metric Name"):  # a rule has none
            launch["metrics"][row["Metric Name"]] = f"{row['Metric Value']} {row['Metric Unit']}".strip()
    if not launches:
        return Outcome(FAILED, "ncu profiled no kernel. Is the program older than this script?")
    return Outcome(DONE, result={"launches": list(launches.values())})


def read_text(finished: command.Finished, _: pathlib.Path) -> Outcome:
    """Keeps the last lines of a text report."""
    if finished.code != 0:
        return Outcome(FAILED, _exit_of(finished))
    return Outcome(DONE, result={"text": "\n".join(finished.stdout.splitlines()[-120:])})
