"""Finds faults that no command may have on any input. Each fault is a line of text.

    problems = find_misbehaviour(result)    # a hang, a signal, exit code 70, or the text of an exception
    problems += changes(outside, before)    # changes of unrelated files
"""

import re
import signal

from hostile.lab import tree

# From src/core/exit_code.h. The other codes are for lost peers, stop requests and internal errors, which do
# not occur here.
EXIT_CODES = {0, 1, 2, 3, 4, 73, 74, 76}
# Messages of libraries and of C++ itself, which do not help users.
RAW_TEXT = re.compile(
    r"terminate called|what\(\)|\bstd::|\bc10::|\bat::|basic_string|bad_alloc|filesystem error"
    r"|Exception raised from|json\.exception|vector::|\bsto(i|l|ul|ll|ull|d|f)\b|iostream error"
    r"|HDF5-DIAG|libprotobuf|internal fault|check failed|Assertion|locale::|\bcannot \w+ : |: : ")
NOTICE = re.compile(r"\[(warning|error)\]|DAMAGED|damaged|cannot |no tokenizer")


def find_misbehaviour(result):
    problems = []
    if result.hung:
        problems.append("timed out")
    elif result.code < 0:
        problems.append(f"ended by {signal.Signals(-result.code).name}")
    elif result.code not in EXIT_CODES:
        problems.append(f"exit code {result.code}")
    # Exit code 70 already reports an internal error.
    if result.code != 70 and (raw := RAW_TEXT.search(result.err) or RAW_TEXT.search(result.out)):
        problems.append(f"raw text: {raw[0]}")
    if result.code > 0 and not (result.err + result.out).strip():
        problems.append(f"exit code {result.code} without a message")
    return problems


def is_reported(result):
    """Returns whether the command reported the damage."""
    return result.code != 0 or bool(NOTICE.search(result.err + result.out))


def category(problems, result):
    """Returns the category of a case in the summary."""
    return "faults" if problems else "reported" if is_reported(result) else "harmless"


def snapshot(outside):
    """Returns {path: bytes} of the unrelated files. `moved` is a part of the damaged folder, so it is
    excluded."""
    return {path: data for path, data in tree(outside).items() if not path.startswith("moved")}


def changes(outside, before):
    """Returns the faults in unrelated files. A log may grow through a link, but existing bytes must not
    change."""
    after, problems = snapshot(outside), []
    for path, data in before.items():
        if path not in after:
            problems.append(f"removed {path}, which does not belong to the program")
        elif after[path] is None or not after[path].startswith(data):
            problems.append(f"overwrote {path}, which does not belong to the program")
    return problems
