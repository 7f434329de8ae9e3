"""Faults that no command may show on any input. Each finding is a line of text.

    problems = misbehaviour(result)                     # hang, signal, exit 70, raw exception text
    problems += changes(outside, before)                # of unrelated files
"""

import re
import signal

from hostile.lab import tree

# From src/core/exit_code.h. The other codes are for peers, requests and internal errors, which are not caused here.
EXIT_CODES = {0, 1, 2, 3, 4, 73, 74, 76}
# Messages of libraries and of C++ itself, which do not help users.
RAW_TEXT = re.compile(
    r"terminate called|what\(\)|\bstd::|\bc10::|\bat::|basic_string|bad_alloc|filesystem error"
    r"|Exception raised from|json\.exception|vector::|\bsto(i|l|ul|ll|ull|d|f)\b|iostream error"
    r"|HDF5-DIAG|libprotobuf|internal fault|check failed|Assertion|locale::|\bcannot \w+ : |: : ")
NOTICE = re.compile(r"\[(warning|error)\]|DAMAGED|damaged|cannot |no tokenizer")


def misbehaviour(result):
    problems = []
    if result.hung:
        problems.append("did not end")
    elif result.code < 0:
        problems.append(f"ended by {signal.Signals(-result.code).name}")
    elif result.code not in EXIT_CODES:
        problems.append(f"exit code {result.code}")
    # exit 70 already reports it
    if result.code != 70 and (raw := RAW_TEXT.search(result.err) or RAW_TEXT.search(result.out)):
        problems.append(f"raw text: {raw[0]}")
    if result.code > 0 and not (result.err + result.out).strip():
        problems.append(f"exit code {result.code} without a word")
    return problems


def noticed(result):
    return result.code != 0 or bool(NOTICE.search(result.err + result.out))


def snapshot(outside):
    """Changes of unrelated files. `moved` is a part of the damaged folder that is in another place."""
    return {path: data for path, data in tree(outside).items() if not path.startswith("moved")}


def changes(outside, before):
    """A log may grow through a link, but earlier bytes must not change."""
    after, problems = snapshot(outside), []
    for path, data in before.items():
        if path not in after:
            problems.append(f"removed {path}, which belongs to others")
        elif after[path] is None or not after[path].startswith(data):
            problems.append(f"overwrote {path}, which belongs to others")
    return problems
